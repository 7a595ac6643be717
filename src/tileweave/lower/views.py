"""Reshapes that are views: what only gives the elements of one block or source, in their order, another shape.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.graph import Operation, Source
from tileweave.lower.reads import view_of
from tileweave.lower.values import Home, Slot
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task

Array = np.ndarray[Any, Any]


def views(
    steps: Sequence[Step],
    tasks: Sequence[Task],
    native: Sequence[bool],
    placed: Mapping[int, Home],
    fixed: Collection[int],
    sources: Mapping[Source, Array],
) -> dict[int, ReadPiece]:
    """The reshapes whose block needs no copy, with what it is a view of.

    Args:
        steps: of the plan.
        tasks: all of them.
        native: per task, whether a kernel makes its block.
        placed: blocks that lie among others, or in a result.
        fixed: blocks that are computed once.
        sources: an array per source that lies as it will.
    """
    found: dict[int, ReadPiece] = {}

    def dense(piece: ReadPiece) -> bool:
        """Whether the block lies in row-major order, at a place that is known beforehand."""
        if piece.source is not None:
            return bool(sources[piece.source].flags.c_contiguous)
        home = placed.get(piece.task)
        alone = home is None or home.hold == tasks[piece.task].out
        return piece.task in fixed or piece.task in found or (native[piece.task] and alone)

    def in_order(piece: ReadPiece) -> bool:
        """Whether all elements of the block are read, in their order."""
        if piece.constant or piece.box.size != piece.block.size:
            return False
        part = view_of(piece, piece.block)
        return part is None or bool(part(np.empty(piece.block.shape, np.int8)).flags.c_contiguous)

    for task in tasks:
        step, node = steps[task.step], steps[task.step].node
        if step.stage != "block" or task.number in placed or task.number in fixed or not isinstance(node, Operation):
            continue
        if node.operator == "reshape" and len(task.reads) == 1 and len(task.reads[0].pieces) == 1:
            (piece,) = task.reads[0].pieces
            if task.out == node.outputs[0][1].box and in_order(piece) and dense(piece):
                found[task.number] = piece
    return found


def through(tasks: Sequence[Task], found: Mapping[int, ReadPiece]) -> list[Task]:
    """The tasks, as if they read what views are views of: for when that is read, and how long it is needed."""

    def root(piece: ReadPiece) -> ReadPiece:
        while piece.task in found:
            piece = found[piece.task]
        return piece

    def seen(read: Read) -> Read:
        return replace(read, pieces=tuple(map(root, read.pieces)))

    out = []
    for task in tasks:
        if any(number in found for number in task.needs):
            reads = tuple(map(seen, task.reads))
            needs = {piece.task for read in reads for piece in read.pieces if piece.task >= 0}
            task = replace(task, reads=reads, needs=tuple(sorted(needs)))
        out.append(task)
    return out


def reshaped(held: Array | Slot, shape: tuple[int, ...], part: Callable[[Array], Array] | None) -> Array | Slot:
    """A part of an array in row-major order, or of one that every run brings, in another shape; None: all of it."""

    def seen(array: Array) -> Array:
        whole = array.reshape(shape)
        return whole if part is None else part(whole)

    if not isinstance(held, Slot):
        return seen(held)
    before = held.view
    return Slot(held.number, lambda array: seen(array if before is None else before(array)), held.sample)
