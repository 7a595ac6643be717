"""Tasks that are alike, in columns: where their blocks lie, and what they read, as bytes from where the first one does.

A plan of many tasks has few kinds of them (`planner.tasks.TaskColumns`). The first of a kind is bound to its arrays;
of the others only the addresses differ, which are products of columns of points with strides. So a task costs a row of
numbers, and no object of Python.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from tileweave.backends.host import empty
from tileweave.graph import Operation, Sink, Source, TensorType
from tileweave.lower import homes
from tileweave.lower.programs import in_order, lowering
from tileweave.lower.reads import has_place, is_call, is_native, never_written
from tileweave.lower.values import (
    AccessColumns,
    ArrayAccess,
    ArrayAccesses,
    Home,
    Slot,
    place_in_time,
)
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.tasks import PieceColumns, Read, ReadPiece, Task, TaskColumns, Tasks
from tileweave.space import Box

Array = np.ndarray[Any, Any]
Key = tuple[int, int]
"""Of a buffer of the arena, as in `Home`."""
FEW = 4
"""So many tasks that lie alike are not worth columns of their own."""
ARRANGED = "contraction", "windows"
"""How programs begin whose constants a backend may arrange."""
ALIKE = 8
"""As many tasks of one kind as cost the same one by one as in columns."""
LARGE_BYTES = 1 << 22
"""Blocks that are whole fields of this size may be swept, which goes task by task."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How blocks lie that are bound together.

    Args:
        home: that all of them have; None: each has a buffer of its own.
        kind: of the buffer.
    """

    home: Home | None
    kind: TensorType

    @property
    def strides(self) -> IntArray:
        """Of the buffer, in bytes."""
        sizes = np.array([self.kind.dtype.itemsize, *reversed(self.kind.shape[1:])], np.int64)
        return np.cumprod(sizes)[::-1][: len(self.kind.shape)]


@dataclass(frozen=True, slots=True, eq=False)
class AlikeTasks:
    """Tasks of one kind whose arrays lie in the same buffers or alike: one of them, and the rows of all.

    Args:
        kind: that they are of.
        at: their rows.
        sample: the first of them.
    """

    kind: TaskColumns
    at: IntArray
    sample: Task

    @property
    def numbers(self) -> IntArray:
        """Of the tasks."""
        return self.kind.numbers[self.at]


class Homes(Mapping[int, Home]):
    """Where blocks lie, by the numbers of their tasks; made when asked for."""

    def __init__(self, places: TaskPlaces) -> None:
        self._places = places

    def __getitem__(self, number: int) -> Home:
        hold = self._places.hold[number] if number >= 0 else -1
        if hold < 0:
            raise KeyError(number)
        found = self._places.holds[hold]
        return found.home or Home((number, 0), Box(self._places.start(number), found.kind.shape))

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._places.hold >= 0).tolist())

    def __len__(self) -> int:
        return int((self._places.hold >= 0).sum())


class ArenaBuffers(dict[tuple[int, int], Array | Slot]):
    """The buffers of the arena by their keys, as in `Home`; made when asked for."""

    def __init__(self, places: TaskPlaces, memory: Array) -> None:
        super().__init__()
        self._places, self._memory = places, memory

    def __missing__(self, key: tuple[int, int]) -> Array:
        kind, start = self._places.buffer(key)
        made = self[key] = np.ndarray(kind.shape, kind.dtype, self._memory, start)
        return made


class TaskPlaces:
    """Where the blocks of tasks in columns lie; lists are by the number of a task.

    Args:
        steps: of the plan.
        tasks: in their order.
        kinds: the same in columns.
        sinks: the numbers of the results.
        sources: an array per source that lies as it will.
        fixed: the sources whose arrays never change.
        room_bytes: blocks of one tensor lie together while the arena does not exceed this.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        tasks: Sequence[Task],
        kinds: Sequence[TaskColumns],
        sinks: Mapping[Sink, int],
        sources: Mapping[Source, Array],
        fixed: Collection[Source],
        room_bytes: int,
    ) -> None:
        self._sources, self._fixed, self._sinks = sources, fixed, sinks
        self.steps, self.kinds, self.count, self._tasks = steps, kinds, len(tasks), tasks
        self.rows_of, self.at = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        self.native = np.zeros(self.count, bool)
        self.kind_of, self.row = (np.zeros(self.count, np.int64) for _ in range(2))
        for k, kind in enumerate(kinds):
            self.kind_of[kind.numbers], self.row[kind.numbers] = k, np.arange(len(kind))
            step = steps[kind.sample.step]
            self.native[kind.numbers] = native(step, kind.sample)
        self.last: IntArray = np.arange(self.count)
        """The last task that reads each block."""
        for kind in kinds:
            for made in kind.made.T:
                read = made >= 0
                np.maximum.at(self.last, made[read], kind.numbers[read])
        self.homes = Homes(self)
        self._lay_out(True)
        if self.total > room_bytes:
            self._lay_out(False)
        self.buffers = ArenaBuffers(self, empty((max(self.total, 1 << 16),), np.uint8))

    def _lay_out(self, beside: bool) -> None:
        self.holds: list[Hold] = []
        self.hold = np.full(self.count, -1)
        self.offset = np.zeros(self.count, np.int64)
        """From the beginning of the arena, or of the result, to that of a block, in bytes."""
        self._in_results()
        if beside:
            self._together()
        self._alone()
        self.rows = [rows for kind in self.kinds for rows in self._alike(kind)]
        """The tasks, those together that lie alike."""
        self._place()

    # ---- blocks -------------------------------------------------------------------------------------------------

    def start(self, number: int) -> tuple[int, ...]:
        """Where the block of a task begins."""
        return tuple(self.kinds[self.kind_of[number]].outs[0][self.row[number]].tolist())

    def starts(self, numbers: IntArray) -> IntArray:
        """Where the blocks of tasks of one step begin; a row each."""
        kinds = self.kind_of[numbers]
        found = np.unique(kinds)
        rank = self.kinds[found[0]].outs[0].shape[1]
        out = np.zeros((len(numbers), rank), np.int64)
        for k in found.tolist():
            own = kinds == k
            out[own] = self.kinds[k].outs[0][self.row[numbers[own]]]
        return out

    def _type(self, kind: TaskColumns, shape: tuple[int, ...]) -> TensorType:
        step = self.steps[kind.sample.step]
        return TensorType(shape, cast("Operation", step.node).output_types[step.outputs[0]].dtype)

    def _share(self, numbers: IntArray, home: Home) -> None:
        """Has blocks of one step lie in one buffer."""
        if len(numbers):
            hold = Hold(home, self._type(self.kinds[self.kind_of[numbers[0]]], home.hold.shape))
            self.hold[numbers] = len(self.holds)
            self.offset[numbers] = (self.starts(numbers) - np.array(home.hold.start, np.int64)) @ hold.strides
            self.holds.append(hold)

    def _in_results(self) -> None:
        """As `homes.in_results`."""
        alone = np.zeros(self.count, bool)
        for kind in self.kinds:
            alone[kind.numbers] = len(kind.sample.outs) == 1
        for kind in self.kinds:
            node = self.steps[kind.sample.step].node
            if isinstance(node, Sink):
                whole = node.tensor.type.box
                for piece, column in zip(kind.sample.reads[0].pieces, kind.reads[0].pieces, strict=True):
                    if piece.task >= 0 and piece.in_order and piece.region.shape == piece.block.shape:
                        complete, hold = (column.regions == column.blocks).all(1), piece.map.cover(whole)
                        numbers = np.unique(column.tasks[complete])
                        if hold.size == whole.size:
                            free = (self.hold[numbers] < 0) & alone[numbers]
                            self._share(numbers[free], Home((-1, self._sinks[node]), hold))

    def _together(self) -> None:
        """As `homes.together`."""
        several = [read for kind in self.kinds for read in kind.reads if len(read.pieces) > 1]
        made = [piece.tasks[0] for read in several for piece in read.pieces if piece.tasks[0] >= 0]
        wanted = {self.kinds[self.kind_of[number]].sample.step for number in made}
        for step in sorted(wanted):
            members = [kind for kind in self.kinds if kind.sample.step == step]
            numbers = np.concatenate([kind.numbers for kind in members])
            shapes = np.concatenate([np.tile(kind.sample.out.shape, (len(kind), 1)) for kind in members])
            starts = np.concatenate([kind.outs[0] for kind in members])
            free = self.native[numbers] & (self.hold[numbers] < 0)
            order = np.argsort(numbers[free], kind="stable")
            numbers, shapes, starts = (one[free][order].astype(np.int64) for one in (numbers, shapes, starts))
            layers = _repeats(starts)
            for layer in range(int(layers.max(initial=-1)) + 1):
                own = layers == layer
                low, high = starts[own].min(0), (starts[own] + shapes[own]).max(0)
                hold = Box.between(low.tolist(), high.tolist())
                if own.sum() > 1 and hold.size == int(shapes[own].prod(1).sum()):
                    self._share(numbers[own], Home((self.count + step, layer), hold))

    def _alone(self) -> None:
        """As `homes.alone`."""
        for kind in self.kinds:
            step, sample = self.steps[kind.sample.step], kind.sample
            if step.stage != "store" and (self.native[sample.number] or has_place(step, sample)):
                free = kind.numbers[self.hold[kind.numbers] < 0]
                self.hold[free] = len(self.holds)
                self.holds.append(Hold(None, self._type(kind, sample.out.shape)))

    def _alike(self, kind: TaskColumns) -> list[AlikeTasks]:
        """The tasks of a kind, those together whose arrays lie alike."""
        columns = [self.hold[kind.numbers]]
        columns += [self.hold[piece.tasks] for read in kind.reads for piece in read.pieces if piece.tasks[0] >= 0]
        number = np.zeros(len(kind), np.int64)
        for column in columns:
            if (column != column[0]).any():
                number = np.unique(np.stack([number, column], 1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(number, kind="stable")
        split = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
        return [AlikeTasks(kind, at, self._tasks[int(kind.numbers[at[0]])]) for at in split]

    # ---- the arena ----------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Places every buffer of the arena."""
        spans: list[tuple[int, IntArray, IntArray]] = []  # bytes, first and last tasks of buffers
        blocks: list[tuple[int, IntArray]] = []
        for number, hold in enumerate(self.holds):
            own = np.flatnonzero(self.hold == number)
            if hold.home is None:
                spans.append((hold.kind.size_bytes, own, self.last[own]))
            elif hold.home.result < 0:
                spans.append((hold.kind.size_bytes, own[:1], self.last[own].max(keepdims=True)))
            else:
                continue
            blocks.append((number, own))
        gathered: list[tuple[int, int]] = []
        for number, rows in enumerate(self.rows):
            self.rows_of[rows.numbers], self.at[rows.numbers] = number, np.arange(len(rows.numbers))
            for k, read in enumerate(rows.sample.reads if self.steps[rows.sample.step].stage != "store" else ()):
                if len(self.merged(read)) != 1 and not self._never_changes(read):
                    gathered.append((number, k))
                    spans.append((read.size_bytes, rows.numbers, rows.numbers))
        columns = [(np.full(len(first), size), first, last) for size, first, last in spans]
        joined = [np.concatenate(one).tolist() for one in zip(*columns, strict=True)]
        places, self.total = place_in_time([*zip(*joined, strict=True)])
        starts, at = np.array(places, np.int64), 0
        self._shared, self._gathered = dict[Key, tuple[TensorType, int]](), dict[tuple[int, int], IntArray]()
        for number, own in blocks:
            hold = self.holds[number]
            if hold.home is None:
                self.offset[own] = starts[at : at + len(own)]
            else:
                self.offset[own] += starts[at]
                self._shared[hold.home.key] = hold.kind, int(starts[at])
            at += len(own) if hold.home is None else 1
        for number, k in gathered:
            count = len(self.rows[number].numbers)
            self._gathered[number, k] = starts[at : at + count]
            at += count

    @property
    def gathered_bytes(self) -> IntArray:
        """What each task puts together to read it, by number."""
        out = np.zeros(self.count, np.int64)
        for number, k in self._gathered:
            out[self.rows[number].numbers] += self.rows[number].sample.reads[k].size_bytes
        return out

    def buffer(self, key: Key) -> tuple[TensorType, int]:
        """A buffer of the arena, and where it begins there."""
        number, k = key
        if number >= self.count:
            return self._shared[key]
        if not k:
            return self.holds[self.hold[number]].kind, int(self.offset[number])
        read = self._tasks[number].reads[k - 1]
        start = self._gathered[int(self.rows_of[number]), k - 1][self.at[number]]
        return TensorType(read.box.shape, read.dtype), int(start)

    # ---- what is read and written ---------------------------------------------------------------------------------

    def merged(self, read: Read) -> list[ReadPiece]:
        """As `homes.merged`."""
        return homes.merged(read, self.homes)

    def _never_changes(self, read: Read) -> bool:
        """Whether what is read is the same in every run."""
        return all(piece.constant or piece.source in self._fixed for piece in read.pieces)

    def moved(self, rows: AlikeTasks, there: Collection[ReadPiece]) -> list[IntArray] | None:
        """Per call of each task, where its operands lie behind what holds them, in bytes: a row per task.

        Args:
            rows: the tasks.
            there: pieces of what they store that lie in the result already.

        Returns:
            What the calls of the first task take, in their order; None where another task's are no calls like these.
        """
        step, sample = self.steps[rows.sample.step], rows.sample
        try:
            if isinstance(step.node, Sink):
                kind = step.node.tensor.type
                strides = Hold(None, kind).strides
                stored = self._stored(rows, there)
                return [np.stack([self._piece(rows, 0, one), points @ strides], 1) for one, points in stored]
            found, inputs = list[IntArray](), list[IntArray]()
            for k, read in enumerate(sample.reads):
                pieces = self.merged(read)
                if len(pieces) == 1:
                    inputs.append(self._piece(rows, k, pieces[0]))
                elif self._never_changes(read):
                    return None
                else:
                    whole = self._gathered[int(self.rows_of[sample.number]), k]
                    found += [np.stack([self._piece(rows, k, piece), whole], 1) for piece in pieces]
                    inputs.append(whole)
        except LookupError:
            return None
        fixed = [
            self._never_changes(read) and (one != one[0]).any() for read, one in zip(sample.reads, inputs, strict=True)
        ]
        if any(fixed) and lowering(step.node, step.stage).startswith(ARRANGED):
            return None  # each reads another part of constants, which may be arranged
        order = in_order(step.node, {read.name: k for k, read in enumerate(sample.reads)}, -1)
        return [*found, np.stack([self.offset[rows.numbers] if k < 0 else inputs[k] for k in order], 1)]

    def _stored(self, rows: AlikeTasks, there: Collection[ReadPiece]) -> list[tuple[ReadPiece, IntArray]]:
        """What tasks store that does not lie in a result already, with where it goes there."""
        (read,) = rows.sample.reads
        pieces = self.merged(replace(read, pieces=tuple(piece for piece in read.pieces if piece not in there)))
        return [(piece, self._column(rows, 0, piece)[1]) for piece in pieces]

    def _column(self, rows: AlikeTasks, k: int, piece: ReadPiece) -> tuple[PieceColumns, IntArray]:
        """The column of a piece of an input, as `merged` has it, and where its box begins."""
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
        made = column.tasks[rows.at]
        hold = self.hold[made[0]]
        if hold < 0:
            raise LookupError(piece)
        return np.asarray(self.offset[made] + (points - column.blocks[rows.at]) @ self.holds[hold].strides)

    def note(
        self, rows: AlikeTasks, of_sample: ArrayAccesses, into: ArrayAccesses, there: Collection[ReadPiece]
    ) -> None:
        """Notes the accesses of tasks that are alike, from those of the first."""
        sample, orders = rows.sample, 2 * (rows.numbers - rows.sample.number)
        pieces = [(k, j, one) for k, read in enumerate(sample.reads) for j, one in enumerate(read.pieces)]
        read = [
            rows.kind.reads[k].pieces[j].regions[rows.at] * one.shifts for k, j, one in pieces if one.source is not None
        ]
        if isinstance(self.steps[sample.step].node, Sink):
            written = [points for _, points in self._stored(rows, there)]
        else:
            written = [rows.kind.outs[0][rows.at]]
        for like, starts in zip(of_sample.reads, read, strict=True):
            into.read_columns.append(_accesses(like, orders, starts - starts[0]))
        for like, starts in zip(of_sample.writes, written, strict=False):  # none where they lie in no result
            into.write_columns.append(_accesses(like, orders, self._in_result(sample, like, starts - starts[0])))

    def _in_result(self, sample: Task, like: ArrayAccess, moved: IntArray) -> IntArray:
        """How far blocks are apart, in the dimensions of their result."""
        home = self.homes.get(sample.number)
        if home is None:
            return moved
        out = np.zeros((len(moved), like.box.rank), np.int64)
        (shape,) = (sink.tensor.type.shape for sink, number in self._sinks.items() if number == like.of)
        wide = [k for k, n in enumerate(shape) if n != 1], [k for k, n in enumerate(home.hold.shape) if n != 1]
        out[:, wide[0]] = moved[:, wide[1]]
        return out

    @cached_property
    def dropped(self) -> dict[int, list[int]]:
        """As `homes.dropped`."""
        out: dict[int, list[int]] = {}
        makes = np.array([self.steps[kind.sample.step].stage != "store" for kind in self.kinds])
        for number in np.flatnonzero((self.hold < 0) & makes[self.kind_of]).tolist():
            out.setdefault(int(self.last[number]), []).append(number)
        return out


def _accesses(like: ArrayAccess, orders: IntArray, moved: IntArray) -> AccessColumns:
    return AccessColumns(like, like.order + orders, np.array(like.box.start, np.int64) + moved)


def places_of(
    steps: Sequence[Step],
    tasks: Sequence[Task],
    sources: Mapping[Source, Array],
    constant: Collection[Source],
    sinks: Mapping[Sink, int],
    room_bytes: int,
) -> TaskPlaces | None:
    """Where blocks lie; None where tasks are few or go by turns, or where something is done that is no task's own."""
    fixed = {source for source in constant if never_written(sources[source])}
    kinds = tasks.kinds if isinstance(tasks, Tasks) and len(tasks) > ALIKE else ()
    if len(tasks) < ALIKE * len(kinds) or not kinds:
        return None
    fields = 0
    for kind in kinds:
        step, sample = steps[kind.sample.step], kind.sample
        if step.stage == "store":
            continue
        node = cast("Operation", step.node)
        pieces = [piece for read in sample.reads for piece in read.pieces]
        known = (one.constant or one.source in fixed for one in pieces)
        alone = step.cuts.count == 1
        fields += alone and sample.out.size * node.output_types[step.outputs[0]].dtype.itemsize >= LARGE_BYTES
        if all(known) or (alone and node.operator == "reshape"):
            return None
    return TaskPlaces(steps, tasks, kinds, sinks, sources, fixed, room_bytes) if fields < 2 else None


def native(step: Step, task: Task) -> bool:
    """Whether a backend's code computes a task."""
    return is_native(step, task) or is_call(step, task)


def _repeats(rows: IntArray) -> IntArray:
    """Per row how many before it are equal to it."""
    _, number = np.unique(rows, axis=0, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    out = np.zeros(len(rows), np.int64)
    out[order] = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    return out
