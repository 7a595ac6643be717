"""Which steps of a plan are sweeps, and where fields between two sweeps lie.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any, Protocol

import numpy as np

from tileweave.graph import Operation
from tileweave.graph.ops.operators import operator_of
from tileweave.lower.sweeps.fields import Band, Input, Member, Sweep, seen_by
from tileweave.lower.sweeps.rows import scheduled
from tileweave.planner.plan import Step
from tileweave.planner.steps import drivers
from tileweave.planner.tasks import ReadPiece, Task
from tileweave.space import Box

LEAST_BYTES = 1 << 22
"""Smaller fields stay in the caches as they are."""
LIGHT = 64
"""Points per element up to which a step waits for memory: others gain nothing from what lies in a cache."""
MOST_STEPS = 64
"""Of a sweep: windows grow with them, and beyond some dozens no time is gained (a hundred steps of five points on
2048 x 2048: 0.16 s of one thread with 25, 50 or 100, whole fields 0.27)."""
SHARE = 0.25
"""Of the largest field: what the windows of a sweep may take."""


def find(
    steps: Sequence[Step],
    tasks: Iterable[Task],
    busy: Sequence[int],
    readers_of: Callable[[int], Collection[int]],
    placed: Collection[int],
) -> list[Sweep]:
    """The sweeps of tasks that follow each other, in their order.

    Args:
        steps: of the plan.
        tasks: those of steps that are not cut, of which a kernel makes the block.
        busy: the numbers of all tasks that do something in a run, in their order.
        readers_of: the tasks that read a block.
        placed: tasks whose blocks are a part of a result.
    """
    members = ((task.number, _member(steps[task.step], task)) for task in tasks)
    able = {number: member for number, member in members if member is not None}
    if len(able) < 2:
        return []
    runs: list[list[Member]] = [[]]
    for number in busy:
        member, numbers = able.get(number), {one.task.number for one in runs[-1]}
        if member is None:
            if runs[-1]:
                runs.append([])
        elif _moves_with(member, numbers):
            runs[-1].append(member)
        elif _moves_with(member, ()):
            runs.append([member])
    readers = {one.task.number: readers_of(one.task.number) for run in runs if len(run) > 1 for one in run}
    return [sweep for run in runs for sweep in _swept(run, readers, placed)]


class Lies(Protocol):
    """Where blocks lie, as `tileweave.lower.tasks.places.BlockPlaces` says it."""

    def alone(self, number: int) -> bool:
        """Whether a block has a buffer of its own."""

    def fills(self, number: int, shape: tuple[int, ...]) -> bool:
        """Whether a block lies in a buffer of this shape."""

    def lie_over(self, number: int, other: int) -> None:
        """Has a block lie where another one does."""


def over(found: Sequence[Sweep], places: Lies, readers_of: Callable[[int], Collection[int]]) -> None:
    """Has a field between two sweeps lie where one lies that the second writes, if it follows."""
    for before, sweep in reversed(list(pairwise(found))):
        inside = set(sweep.numbers)
        open_writers = [k for k, member in enumerate(sweep.members) if member.band < 0]
        for member in before.members:
            number, out = member.task.number, member.task.out
            if not places.alone(number) or not inside.issuperset(readers_of(number)):
                continue
            for k in open_writers:
                writer = sweep.members[k].task
                same = places.fills(writer.number, out.shape) and out.shape == writer.out.shape
                if same and sweep.members[k].dtype == member.dtype and sweep.follows({number}, k):
                    places.lie_over(number, writer.number)
                    open_writers.remove(k)
                    break


def _member(step: Step, task: Task) -> Member | None:
    """A task as a member of a sweep, its reads not yet known; None where it is none."""
    node = step.node
    if step.stage != "block" or step.cuts.count > 1 or not isinstance(node, Operation) or node.signature is None:
        return None
    parameters = dict(node.parameters)
    if not (node.operator == "fused" or operator_of(node).arity or "dilation" in parameters):
        return None  # a sum of rows is rounded otherwise in a narrow panel; windows are summed alike in any
    kind = node.output_types[step.outputs[0]]
    row = next((k for k, n in enumerate(kind.shape) if n > 1), None)
    heavy = row is None or node.index.size > LIGHT * kind.box.size or kind.box != task.out
    if heavy or row is None or kind.size_bytes < LEAST_BYTES:
        return None
    dim = drivers(node, step.outputs[0])[row]
    if dim is None or step.cuts.box.shape[dim] != kind.shape[row]:
        return None
    inputs = []
    for read in task.reads:
        matrix = node.signature.input(read.name).map.matrix
        moving = [k for k, line in enumerate(matrix) if line[dim]]
        if len(moving) > 1 or any(matrix[k][dim] != 1 for k in moving):
            return None
        if not moving and len(read.pieces) > 1:
            return None
        along = moving[0] if moving else -1
        more = read.box.shape[along] - kind.shape[row] if moving else 0
        if more < 0 or (len(read.pieces) > 1 and prod(read.box.shape[:along]) > 1):
            return None
        inputs.append(Input(read, along, more, -1, read.pieces[0] if len(read.pieces) == 1 else None))
    return Member(task, dim, row, kind.shape[row], kind.dtype, tuple(inputs))


def _moves_with(member: Member, numbers: Collection[int]) -> bool:
    """Whether the rows of a task need rows of these tasks' blocks, not whole ones."""
    for one in member.inputs:
        mine = [piece for piece in one.read.pieces if piece.task in numbers]
        if mine and (one.row < 0 or any(seen_by(piece, one).sign is None for piece in mine)):
            return False
    return True


def _swept(run: Sequence[Member], readers: Mapping[int, Collection[int]], placed: Collection[int]) -> list[Sweep]:
    """Members that follow each other as few sweeps whose windows are small."""
    if len(run) < 2:
        return []
    if len(run) <= MOST_STEPS:
        inside = {one.task.number for one in run}
        whole = {n for n in inside if n in placed or not inside.issuperset(readers[n])}
        made = _sweep(run, whole)
        largest = max(one.task.out.size * one.dtype.itemsize for one in run)
        if made is not None and sum(made.sizes_bytes) <= SHARE * largest:
            return [made]
    half = len(run) // 2
    return [*_swept(run[:half], readers, placed), *_swept(run[half:], readers, placed)]


def _sweep(run: Sequence[Member], whole: Collection[int]) -> Sweep | None:
    """These members as one sweep; None where no member reads a neighbourhood of what another made.

    Args:
        run: the members.
        whole: the tasks whose blocks lie whole.
    """
    places = {one.task.number: k for k, one in enumerate(run)}
    hosts = {number: _host(run, number) for number in places if number not in whole}
    bands: list[Band] = []
    of_task: dict[int, int] = {}
    of_read: dict[tuple[Box, tuple[ReadPiece, ...]], int] = {}
    members = list[Member]()
    for number, one in enumerate(run):
        inputs = []
        for given in one.inputs:
            read, piece = given.read, given.piece
            if piece is not None:
                band = of_task.get(piece.task, -1)
            else:
                key = (read.box, read.pieces)
                if key not in of_read:
                    of_read[key] = len(bands)
                    bands.append(_band(read.box, given.row, read.dtype, number, None, read.pieces))
                band = of_read[key]
            inputs.append(Input(read, given.row, given.more, band, piece))
        band = -1
        if one.task.number not in whole:
            band = of_task[one.task.number] = len(bands)
            host = hosts[one.task.number]
            if host is None:
                bands.append(Band(one.task.out, one.row, one.dtype, number, None, ()))
            else:
                piece = next(piece for piece in host.read.pieces if piece.task == one.task.number)
                rest = tuple(other for other in host.read.pieces if other is not piece)
                of_read[host.read.box, host.read.pieces] = band
                bands.append(_band(host.read.box, host.row, one.dtype, number, piece, rest))
        members.append(replace(one, inputs=tuple(inputs), band=band))
    inner = [one for member in members for one in member.inputs if one.more and _reads_any(one, places)]
    return scheduled(tuple(members), tuple(bands), places) if inner else None


def _reads_any(one: Input, numbers: Collection[int]) -> bool:
    return any(piece.task in numbers for piece in one.read.pieces)


def _band(
    box: Box, row: int, dtype: np.dtype[Any], maker: int, host: ReadPiece | None, pieces: Sequence[ReadPiece]
) -> Band:
    """A band, with the constants beside all of its rows apart."""
    still = tuple(piece for piece in pieces if piece.constant and piece.box.shape[row] == box.shape[row])
    return Band(box, row, dtype, maker, host, tuple(piece for piece in pieces if piece not in still), still)


def _host(run: Sequence[Member], number: int) -> Input | None:
    """The first read of a block that is put together of it, as it is, and constants: the block is made there."""
    for member in run:
        for one in member.inputs:
            mine = [piece for piece in one.read.pieces if not piece.constant]
            if one.piece is None and one.row >= 0 and len(mine) == 1 and mine[0].task == number:
                (piece,) = mine
                if piece.in_order and piece.region == piece.block:
                    return one
    return None
