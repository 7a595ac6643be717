"""Calls of tasks that are alike: only the first is bound to arrays, of the others only the addresses differ.

Addresses are products of columns of points with strides, so a task costs a row of numbers, and no object of Python.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.graph import Sink, Source
from tileweave.lower.programs import in_order, lowering
from tileweave.lower.tasks.places import AlikeTasks, BlockPlaces, Hold
from tileweave.lower.values import AccessColumns, ArrayAccess, ArrayAccesses
from tileweave.planner.placement import IntArray
from tileweave.planner.tasks import PieceColumns, ReadPiece

Array = np.ndarray[Any, Any]
ARRANGED = "contraction", "windows"
"""How programs begin whose constants a backend may arrange."""


class Addresses:
    """What tasks read and write, in bytes from where the first one of their kind does.

    Args:
        places: where blocks lie.
        sources: an array per source that lies as it will.
        shapes: those of the results.
    """

    def __init__(self, places: BlockPlaces, sources: Mapping[Source, Array], shapes: Sequence[tuple[int, ...]]) -> None:
        self._places, self._sources, self._shapes = places, sources, shapes

    def moved(self, rows: AlikeTasks, there: Collection[ReadPiece]) -> list[IntArray] | None:
        """Per call of each task, where its operands lie behind what holds them, in bytes: a row per task.

        Args:
            rows: the tasks.
            there: pieces of what they store that lie in the result already.

        Returns:
            What the calls of the first task take, in their order; None where another task's are no calls like these.
        """
        places, sample = self._places, rows.sample
        step = places.table.steps[sample.step]
        try:
            if isinstance(step.node, Sink):
                strides = Hold(-1, step.node.tensor.type).strides
                stored = self._stored(rows, there)
                return [np.stack([self._piece(rows, 0, one), points @ strides], 1) for one, points in stored]
            found, inputs = list[IntArray](), list[IntArray]()
            for k, read in enumerate(sample.reads):
                pieces = places.merged(read)
                if len(pieces) == 1:
                    inputs.append(self._piece(rows, k, pieces[0]))
                elif places.table.never_changes(read):
                    return None
                else:
                    whole = places.gathered_at(rows.numbers, k)
                    found += [
                        np.stack([self._piece(rows, k, one), whole], 1) for one in places.elsewhere(sample.number, k)
                    ]
                    inputs.append(whole)
        except LookupError:
            return None
        fixed = [
            places.table.never_changes(read) and (one != one[0]).any()
            for read, one in zip(sample.reads, inputs, strict=True)
        ]
        if any(fixed) and lowering(step.node, step.stage).startswith(ARRANGED):
            return None  # each reads another part of constants, which may be arranged
        order = in_order(step.node, {read.name: k for k, read in enumerate(sample.reads)}, -1)
        own = places.offset[rows.numbers]
        return [*found, np.stack([own if k < 0 else inputs[k] for k in order], 1)]

    def _stored(self, rows: AlikeTasks, there: Collection[ReadPiece]) -> list[tuple[ReadPiece, IntArray]]:
        """What tasks store that does not lie in a result already, with where it goes there."""
        (read,) = rows.sample.reads
        pieces = self._places.merged(replace(read, pieces=tuple(piece for piece in read.pieces if piece not in there)))
        return [(piece, self._column(rows, 0, piece)[1]) for piece in pieces]

    def _column(self, rows: AlikeTasks, k: int, piece: ReadPiece) -> tuple[PieceColumns, IntArray]:
        """The column of a piece of an input, as `BlockPlaces.merged` has it, and where its box begins."""
        pieces = rows.sample.reads[k].pieces
        j = next(j for j, one in enumerate(pieces) if one is piece or replace(one, box=piece.box) == piece)
        column = rows.kind.reads[k].pieces[j]
        shift = np.array(piece.box.start, np.int64) - np.array(pieces[j].box.start, np.int64)
        return column, column.boxes[rows.at] + shift

    def _piece(self, rows: AlikeTasks, k: int, piece: ReadPiece) -> IntArray:
        """Where a piece of an input lies behind what holds it, in bytes.

        Raises:
            LookupError: Python holds the blocks.
        """
        if piece.constant:
            return np.zeros(len(rows.numbers), np.int64)
        column, boxes = self._column(rows, k, piece)
        matrix = np.array(piece.map.matrix, np.int64).reshape(len(piece.map.matrix), boxes.shape[1])
        points = boxes @ matrix.T + np.array(piece.map.offset, np.int64)
        if piece.source is not None:
            return np.asarray(points @ np.array(self._sources[piece.source].strides, np.int64))
        made, places = column.tasks[rows.at], self._places
        hold = places.hold[made[0]]
        if hold < 0:
            raise LookupError(piece)
        return np.asarray(places.offset[made] + (points - column.blocks[rows.at]) @ places.holds[hold].strides)

    def note(
        self, rows: AlikeTasks, of_sample: ArrayAccesses, into: ArrayAccesses, there: Collection[ReadPiece]
    ) -> None:
        """Notes the accesses of tasks that are alike, from those of the first."""
        sample, orders, places = rows.sample, 2 * (rows.numbers - rows.sample.number), self._places
        read = list[IntArray]()
        for one, columns in zip(sample.reads, rows.kind.reads, strict=True):
            for piece, column in zip(one.pieces, columns.pieces, strict=True):
                if piece.source is not None:
                    read.append(column.regions[rows.at] * piece.shifts)
                elif (root := places.root(piece)).source is not None:  # all read one view of it
                    read.append(np.zeros((len(rows.numbers), root.source.type.box.rank), np.int64))
        if isinstance(places.table.steps[sample.step].node, Sink):
            written = [points for _, points in self._stored(rows, there)]
        else:
            written = [rows.kind.outs[0][rows.at]]
        for like, starts in zip(of_sample.reads, read, strict=True):
            into.read_columns.append(_accesses(like, orders, starts - starts[0]))
        for like, starts in zip(of_sample.writes, written, strict=False):  # none where they lie in no result
            into.write_columns.append(_accesses(like, orders, self._in_result(rows, like, starts - starts[0])))

    def _in_result(self, rows: AlikeTasks, like: ArrayAccess, moved: IntArray) -> IntArray:
        """How far blocks are apart, in the dimensions of their result."""
        home = self._places.home(rows.sample.number)
        if home is None:
            return moved
        out = np.zeros((len(moved), like.box.rank), np.int64)
        shape = self._shapes[like.of]
        wide = [k for k, n in enumerate(shape) if n != 1], [k for k, n in enumerate(home.hold.shape) if n != 1]
        out[:, wide[0]] = moved[:, wide[1]]
        return out


def _accesses(like: ArrayAccess, orders: IntArray, moved: IntArray) -> AccessColumns:
    return AccessColumns(like, like.order + orders, np.array(like.box.start, np.int64) + moved)
