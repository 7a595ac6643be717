"""Where the blocks of tasks lie: in a result, beside others that are read with them, or alone.

A plan of many tasks has few kinds of them (`planner.tasks.TaskColumns`). Each law is said once here, of all tasks of a
kind: what decides is read from one of them, and what it decides on are columns of numbers. A step of one task is a
column of length one.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from tileweave.backends.host import empty
from tileweave.graph import Operation, Sink, Source, TensorType
from tileweave.kept import cached_property
from tileweave.lower.reads import (
    bounds,
    has_place,
    in_memory_order,
    pointwise,
    written_over,
)
from tileweave.lower.sweeps import find as sweeps
from tileweave.lower.sweeps.fields import Sweep
from tileweave.lower.tasks.table import TaskTable, once, pieces_of
from tileweave.lower.values import Home, place_in_time
from tileweave.planner.placement import IntArray
from tileweave.planner.tasks import PieceColumns, Read, ReadPiece, Task, TaskColumns
from tileweave.space import AffineMap, Box

Array = np.ndarray[Any, Any]
ARENA, KEPT = -1, -2
"""Where blocks lie that lie in no result: in the arena of an executable; in arrays that are made once, or in what they
are views of."""
FIXED_BYTES = 1 << 20
"""What is computed once from constants and kept may be this large, or as large as what it is computed from."""
LONG_ROW = 512
"""From so many elements that lie together in a block on, kernels write it between others as fast as alone."""
SPARE_BYTES = 1 << 20
"""Smaller buffers stay in the arena: memory is not short there, and a run need not say where they lie."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How blocks lie, each in a buffer.

    Args:
        result: the number of the result that is the buffer; or `ARENA`, `KEPT`.
        kind: of the buffer, which is row-major.
    """

    result: int
    kind: TensorType

    @property
    def strides(self) -> IntArray:
        """Of the buffer, in bytes."""
        return _strides(self.kind.shape, self.kind.dtype.itemsize)


@lru_cache(256)
def _strides(shape: tuple[int, ...], width_bytes: int) -> IntArray:
    sizes = np.array([width_bytes, *reversed(shape[1:])], np.int64)
    made = np.cumprod(sizes)[::-1][: len(shape)]
    made.flags.writeable = False
    return made


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


class BlockPlaces:
    """Where the blocks of tasks lie; arrays are by the number of a task.

    Args:
        table: the tasks.
        sources: an array per source that lies as it will.
        constant: the sources that are the same array in every run.
        room_bytes: blocks of one tensor lie together while the arena does not exceed this.
    """

    def __init__(
        self, table: TaskTable, sources: Mapping[Source, Array], constant: Collection[Source], room_bytes: int
    ) -> None:
        self.table, self._sources, self._brought = table, sources, sources.keys() - constant
        self.views: dict[int, ReadPiece] = {}
        """Reshapes whose block needs no copy, with what it is a view of."""
        self._lay_out(True)
        if self.arena_bytes > room_bytes:
            self._lay_out(False)
        self._memory = empty((max(self.arena_bytes, 1 << 16),), np.uint8) if self.arena_bytes else None

    # ---- the laws ---------------------------------------------------------------------------------------------------

    def _lay_out(self, beside: bool) -> None:
        """Places every block that a kernel makes; ``beside``: blocks that are read together lie together."""
        table = self.table
        self.holds: list[Hold] = []
        self.hold, self._buffer = np.full(table.count, -1), np.full(table.count, -1)
        self._inner = np.zeros(table.count, np.int64)  # from the beginning of a block's buffer to it, in bytes
        self._sizes: list[int] = []  # of the buffers
        self._gathers: dict[int, IntArray] = {}  # number of a read -> the buffer of each task that puts it together
        self._homes: dict[int, Home | None] = {}
        self._begin: IntArray = np.arange(table.count)
        end: IntArray = np.arange(table.count)
        for sweep in table.each_sweep:
            self._begin[list(sweep.numbers)], end[list(sweep.numbers)] = sweep.numbers[0], sweep.numbers[-1]
        self.last = end.copy()
        """The last task that needs each block."""
        np.maximum.at(self.last, table.made, end[table.reader])
        for numbers, home in table.in_results:
            self._share(numbers[self.hold[numbers] < 0], home)
        free = table.native.copy()
        free[list(table.sweeps)] = False
        if beside:
            self._together(free)
        self._inside(free)
        self._as_views()
        self._alone()
        self._in_place()
        sweeps.over(table.each_sweep, self, table.readers_of)
        self._gather()
        self._in_spare_results()
        self._place()

    def _type(self, kind: TaskColumns, shape: tuple[int, ...]) -> TensorType:
        step = self.table.step(kind)
        return TensorType(shape, cast("Operation", step.node).output_types[step.outputs[0]].dtype)

    def _new_buffers(self, size_bytes: int, count: int = 1) -> int:
        """Adds buffers of one size; the number of the first."""
        self._sizes += [size_bytes] * count
        return len(self._sizes) - count

    def _share(self, numbers: IntArray, home: Home) -> None:
        """Has blocks of one step lie in one buffer."""
        if len(numbers):
            hold = Hold(home.result, TensorType(home.hold.shape, home.dtype))
            self.hold[numbers], self._buffer[numbers] = len(self.holds), home.buffer
            self._inner[numbers] = (self._starts(numbers) - np.array(home.hold.start, np.int64)) @ hold.strides
            self.holds.append(hold)

    def _starts(self, numbers: IntArray) -> IntArray:
        """Where the blocks of tasks of one step begin; a row each."""
        table = self.table
        if len(numbers) == 1:
            return np.array([table.kind(int(numbers[0])).outs[0][table.row[numbers[0]]]])
        kinds = table.kind_of[numbers]
        out = np.zeros((len(numbers), table.kind(int(numbers[0])).outs[0].shape[1]), np.int64)
        for k in np.unique(kinds).tolist():
            own = kinds == k
            out[own] = table.kinds[k].outs[0][table.row[numbers[own]]]
        return out

    def _together(self, free: Array) -> None:
        """Blocks of one tensor of which some are read together are slices of one buffer, where they fill a box."""
        table = self.table
        several = [read for kind in table.kinds for read in kind.sample.reads if len(read.pieces) > 1]
        wanted = {table.kind(piece.task).sample.step for read in several for piece in read.pieces if piece.task >= 0}
        for step in sorted(wanted):
            members = [kind for kind in table.kinds if kind.sample.step == step]
            numbers = np.concatenate([kind.numbers for kind in members])
            shapes = np.concatenate([np.tile(kind.sample.out.shape, (len(kind), 1)) for kind in members])
            starts = np.concatenate([kind.outs[0] for kind in members])
            own = free[numbers] & (self.hold[numbers] < 0)
            order = np.argsort(numbers[own], kind="stable")
            numbers, shapes, starts = (one[own][order].astype(np.int64) for one in (numbers, shapes, starts))
            layers = _repeats(starts)  # in which partial results of one block lie
            for layer in range(int(layers.max(initial=-1)) + 1):
                own = layers == layer
                low, high = starts[own].min(0), (starts[own] + shapes[own]).max(0)
                hold = Box.between(low.tolist(), high.tolist())
                if own.sum() > 1 and hold.size == int(shapes[own].prod(1).sum()):
                    kind = self._type(members[0], hold.shape)
                    self._share(numbers[own], Home(self._new_buffers(kind.size_bytes), ARENA, hold, kind.dtype))

    def _inside(self, free: Array) -> None:
        """A block that one task reads, put together with others or with constants, lies there where rows are long."""
        table = self.table
        for kind in table.kinds:
            if table.step(kind).stage == "store" or kind.sample.number in table.sweeps:
                continue
            for k, read in enumerate(kind.sample.reads):
                if len(read.pieces) < 2 or read.partial:
                    continue
                for piece, column in zip(read.pieces, kind.reads[k].pieces, strict=True):
                    if piece.task < 0 or not piece.whole or _run(piece.box, read.box) < LONG_ROW:
                        continue
                    made = column.tasks
                    own = free[made] & (table.readers[made] == 1) & (self.hold[made] < 0)
                    if own.any():
                        hold = Hold(ARENA, TensorType(read.box.shape, read.dtype))
                        self.hold[made[own]] = len(self.holds)
                        self._buffer[made[own]] = self._gathered(k, kind.numbers, read)[own]
                        self._inner[made[own]] = ((column.boxes - kind.reads[k].boxes) @ hold.strides)[own]
                        self.holds.append(hold)

    def _gathered(self, k: int, numbers: IntArray, read: Read) -> IntArray:
        """The buffers in which tasks put together a read of them."""
        found = self._gathers.setdefault(k, np.full(self.table.count, -1))
        new = numbers[found[numbers] < 0]
        found[new] = self._new_buffers(read.size_bytes, len(new)) + np.arange(len(new))
        return np.asarray(found[numbers])

    def _as_views(self) -> None:
        """A reshape is a view of what it reads, where that lies in row-major order at a place that is known."""
        table = self.table
        self.views = {}
        for kind in table.kinds:
            task, step = kind.sample, table.step(kind)
            node = step.node
            if not isinstance(node, Operation) or node.operator != "reshape" or step.stage != "block":
                continue
            pieces = pieces_of(task)
            if len(pieces) != 1 or task.out != node.outputs[0][1].box or self.hold[task.number] >= 0:
                continue
            if not table.fixed[task.number] and in_memory_order(pieces[0]) and self._dense(pieces[0]):
                self.views[task.number] = pieces[0]
        for number in sorted(self.views, reverse=True):
            root = self.views[number].task
            if root >= 0:
                self.last[root] = max(self.last[root], self.last[number])

    def _dense(self, piece: ReadPiece) -> bool:
        """Whether a block or a source lies in row-major order, at a place that is known beforehand."""
        if piece.source is not None:
            return bool(self._sources[piece.source].flags.c_contiguous)
        if self.table.fixed[piece.task] or piece.task in self.views:
            return True
        hold = self.hold[piece.task]
        return bool(self.table.native[piece.task]) and (hold < 0 or self.holds[hold].kind.shape == piece.block.shape)

    def _alone(self) -> None:
        """Each other block that a kernel makes, or that is written where it lies, has a buffer; others Python holds."""
        table = self.table
        held = {number for sweep in table.each_sweep for number in sweep.held}
        self._own = np.zeros(table.count, bool)
        """Whether blocks have buffers of their own."""
        kinds = once(table.kind_of[table.makes & (self.hold < 0)]).tolist()
        if not kinds:
            return
        of_kind, sizes = np.full(len(table.kinds), -1), np.zeros(len(table.kinds), np.int64)
        for k in kinds:
            kind = table.kinds[k]
            step, number = table.step(kind), kind.sample.number
            if number in held or len(kind.sample.outs) > 1:
                continue
            kept = bool(table.fixed[number]) or number in self.views
            if kept or table.native[number] or has_place(step, kind.sample):
                of_kind[k] = len(self.holds)
                self.holds.append(Hold(KEPT if kept else ARENA, self._type(kind, kind.sample.out.shape)))
                sizes[k] = -1 if kept else self.holds[-1].kind.size_bytes
        free = np.flatnonzero((self.hold < 0) & (of_kind[table.kind_of] >= 0))
        self.hold[free] = of_kind[table.kind_of[free]]
        free = free[sizes[table.kind_of[free]] >= 0]
        self._own[free] = True
        self._buffer[free] = len(self._sizes) + np.arange(len(free))
        self._sizes += sizes[table.kind_of[free]].tolist()

    def _in_place(self) -> None:
        """What only a pointwise operation reads lies where its result does, and is written over; but for sweeps."""
        table = self.table
        if not self._own.any():
            return
        names, pairs = dict[int, frozenset[str]](), list[tuple[IntArray, IntArray]]()
        for kind in table.kinds:
            task, step = kind.sample, table.step(kind)
            may = bool(task.needs) and step.stage != "store" and self.hold[task.number] >= 0
            if not may or task.number in table.sweeps:
                continue
            if task.step not in names:
                names[task.step] = pointwise(step)
            found = written_over(step, names[task.step], task)
            pairs += [(kind.numbers, _column(kind, piece).tasks) for piece in found]
        if not pairs:
            return
        reader, made = (np.concatenate(one) for one in zip(*pairs, strict=True))
        over = (self.hold[reader] >= 0) & ((self._buffer[reader] >= 0) | self._in_result(reader))
        over &= self._own[made] & (table.readers[made] == 1)
        reader, made = reader[over], made[over]
        first = np.unique(reader, return_index=True)[1]  # one operand of each
        root: IntArray = np.arange(table.count)
        root[made[first]] = reader[first]
        while (further := root[root]).tobytes() != root.tobytes():
            root = further
        self._lie_with(made[first], root[made[first]])

    def _in_result(self, numbers: IntArray) -> Array:
        """Whether blocks that lie somewhere lie in a result."""
        results = np.array([hold.result >= 0 for hold in self.holds], bool)
        return np.asarray(results[self.hold[numbers]])

    def _lie_with(self, numbers: IntArray, others: IntArray) -> None:
        """Has blocks lie where others of their shape do."""
        for column in (self.hold, self._buffer, self._inner):
            column[numbers] = column[others]
        self._own[numbers] = False

    # ---- fields between two sweeps ----------------------------------------------------------------------------------

    def alone(self, number: int) -> bool:
        """Whether a block has a buffer of its own."""
        return bool(self._own[number])

    def fills(self, number: int, shape: tuple[int, ...]) -> bool:
        """Whether a block lies in a buffer of this shape."""
        return bool(self.hold[number] >= 0) and self.holds[self.hold[number]].kind.shape == shape

    def lie_over(self, number: int, other: int) -> None:
        """Has a block lie where another one does."""
        self._lie_with(np.array([number]), np.array([other]))

    # ---- the arena --------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Tasks that lie alike, and the buffers of what they put together."""
        table = self.table
        self.rows = [rows for kind in table.kinds for rows in self._alike(kind)]
        """The tasks, those together that lie alike."""
        for rows in self.rows:
            number = rows.sample.number
            if not table.makes[number] or table.fixed[number] or number in table.sweeps:
                continue
            for k, read in enumerate(rows.sample.reads):
                if len(read.pieces) != 1 and not table.never_changes(read) and len(self.merged(read)) != 1:
                    self._gathered(k, rows.numbers, read)
        self._tracks = {id(sweep): self._new_buffers(sweep.kind.size_bytes) for sweep in table.each_sweep}

    def _alike(self, kind: TaskColumns) -> list[AlikeTasks]:
        """The tasks of a kind, those together whose arrays lie alike."""
        if len(kind) == 1:
            return [AlikeTasks(kind, _FIRST, kind.sample)]
        columns = [self.hold[kind.numbers]]
        columns += [self.hold[piece.tasks] for read in kind.reads for piece in read.pieces if piece.tasks[0] >= 0]
        number = np.zeros(len(kind), np.int64)
        for column in columns:
            if (column != column[0]).any():
                number = np.unique(np.stack([number, column], 1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(number, kind="stable")
        split = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
        return [AlikeTasks(kind, at, self.table.tasks[int(kind.numbers[at[0]])]) for at in split]

    def spans(self) -> tuple[IntArray, IntArray]:
        """The first and the last task that uses each buffer; the last of one that nobody uses is -1."""
        table = self.table
        first, last = np.full(len(self._sizes), table.count), np.full(len(self._sizes), -1)

        def used(buffers: IntArray, begin: IntArray, end: IntArray) -> None:
            there = buffers >= 0
            np.minimum.at(first, buffers[there], begin[there])
            np.maximum.at(last, buffers[there], end[there])

        used(self._buffer, self._begin, self.last)
        every: IntArray = np.arange(table.count)
        for buffers in self._gathers.values():
            used(buffers, every, every)
        for sweep in table.each_sweep:
            first[self._tracks[id(sweep)]], last[self._tracks[id(sweep)]] = sweep.numbers[0], sweep.numbers[-1]
        return first, last

    def _in_spare_results(self) -> None:
        """Blocks lie in a result of their buffer's type that is not made while they are needed.

        An array that a run brings may be given as the result, too: that is free from its last read on.
        """
        kinds = {sink.tensor.type for sink in self.table.sinks if sink.tensor.type.size_bytes >= SPARE_BYTES}
        if not kinds:
            return
        of_kind = [k for k, hold in enumerate(self.holds) if hold.result == ARENA and hold.kind in kinds]
        blocks = np.flatnonzero(np.isin(self.hold, of_kind)) if of_kind else _NONE
        inside = [buffers[buffers >= 0] for buffers in self._gathers.values()]
        large = [n for n in once(self._buffer[blocks]).tolist() if not any((one == n).any() for one in inside)]
        if not large:
            return
        first, last = self.spans()
        kind_of = {int(self._buffer[n]): self.holds[self.hold[n]].kind for n in blocks.tolist()}
        read, made = self._last_reads(), self._first_writes()
        found: dict[int, int] = {}
        for sink, result in self.table.sinks.items():
            after, before = read.get(sink.tensor.type, -1), made[result]
            for buffer in sorted(large, key=lambda n: (first[n], last[n], n), reverse=True):  # leaves the most room
                free = after < first[buffer] and last[buffer] < before
                if free and buffer not in found and kind_of[buffer] == sink.tensor.type:
                    found[buffer], before = result, int(first[buffer])
        for buffer, result in found.items():
            own = np.flatnonzero(self._buffer == buffer)
            for k in once(self.hold[own]).tolist():
                self.hold[own[self.hold[own] == k]] = len(self.holds)
                self.holds.append(replace(self.holds[k], result=result))
            self._buffer[own] = -1
        if found:
            self.rows = [rows for kind in self.table.kinds for rows in self._alike(kind)]

    def _last_reads(self) -> dict[TensorType, int]:
        """The last task that reads what a run brings of each type."""
        table = self.table
        found: dict[TensorType, int] = {}

        def note(source: Source | None, at: int) -> None:
            if source is not None and source in self._brought:
                found[source.type] = max(found.get(source.type, -1), at)

        for kind in table.kinds:
            number = int(kind.numbers[-1])
            at = table.sweeps[number].numbers[-1] if number in table.sweeps else number
            for piece in pieces_of(kind.sample):
                note(piece.source, max(at, int(self.last[number])) if number in self.views else at)
        return found

    def _first_writes(self) -> list[int]:
        """The first task that writes each result."""
        table = self.table
        made = [table.count] * len(table.sinks)
        for kind in table.kinds:
            node = table.step(kind).node
            if isinstance(node, Sink):
                made[table.sinks[node]] = min(made[table.sinks[node]], int(kind.numbers[0]))
        for k, hold in enumerate(self.holds):
            if hold.result >= 0:
                made[hold.result] = min(made[hold.result], int(self._begin[self.hold == k].min(initial=table.count)))
        return made

    def _place(self) -> None:
        """Places the buffers of the arena."""
        self._homes.clear()  # some lie in a result since they were asked for
        self._start, self.arena_bytes = np.zeros(len(self._sizes), np.int64), 0
        self.offset = self._inner.copy()
        """From the beginning of the arena, or of the result, to that of a block, in bytes."""
        if not self._sizes:
            return
        first, last = self.spans()
        used = np.flatnonzero(last >= 0)
        sizes = np.array(self._sizes, np.int64)[used]
        spans = zip(sizes.tolist(), first[used].tolist(), last[used].tolist(), strict=True)
        self._start[used], self.arena_bytes = place_in_time([*spans])
        there = self._buffer >= 0
        self.offset[there] += self._start[self._buffer[there]]

    # ---- answers ----------------------------------------------------------------------------------------------------

    def home(self, number: int) -> Home | None:
        """Where the block of a task lies; None where Python holds it, or it is no buffer's of the arena or a result."""
        try:
            return self._homes[number]
        except KeyError:
            found = self._homes[number] = self._home(number) if number >= 0 else None
            return found

    def _home(self, number: int) -> Home | None:
        k = self.hold[number]
        if k < 0 or self.holds[k].result == KEPT:
            return None
        hold, kind, rest, row = self.holds[k], self.table.kind(number), int(self._inner[number]), self.table.row[number]
        first = tuple(kind.outs[0][row].tolist()) if row else kind.sample.out.start
        if rest:
            point = list[int]()
            rest //= hold.kind.dtype.itemsize
            for extent in reversed(hold.kind.shape):
                rest, at = divmod(rest, max(extent, 1))
                point.append(at)
            first = tuple(start - at for start, at in zip(first, reversed(point), strict=True))
        return Home(int(self._buffer[number]), hold.result, Box(first, hold.kind.shape), hold.kind.dtype)

    def buffer(self, home: Home) -> Array:
        """The buffer of the arena that has blocks."""
        return self._array(home.buffer, home.hold.shape, home.dtype)

    def _array(self, buffer: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.ndarray(shape, dtype, self._memory, int(self._start[buffer]))

    def buffer_of(self, number: int) -> int:
        """The number of the buffer that has the block of a task; -1 where none of the arena has."""
        return int(self._buffer[number])

    @property
    def gathers(self) -> Mapping[int, IntArray]:
        """Number of a read -> the buffer of each task that puts it together, or -1."""
        return self._gathers

    def gathered(self, number: int, k: int) -> Array:
        """The buffer in which a task puts together a read of it."""
        read = self.table.tasks[number].reads[k]
        return self._array(int(self._gathers[k][number]), read.box.shape, read.dtype)

    def elsewhere(self, number: int, k: int) -> list[ReadPiece]:
        """The pieces of a task's read, merged, that are not made where it is put together."""
        buffer, pieces = int(self._gathers[k][number]), self.merged(self.table.tasks[number].reads[k])
        homes = (self.home(piece.task) for piece in pieces)
        return [piece for piece, home in zip(pieces, homes, strict=True) if home is None or home.buffer != buffer]

    def root(self, piece: ReadPiece) -> ReadPiece:
        """What a piece of a view is a part of; any other piece itself."""
        while piece.task in self.views:
            piece = self.views[piece.task]
        return piece

    def gathered_at(self, numbers: IntArray, k: int) -> IntArray:
        """Where these lie in the arena, in bytes."""
        return np.asarray(self._start[self._gathers[k][numbers]])

    @property
    def gathered_bytes(self) -> IntArray:
        """What each task puts together to read it, by number."""
        sizes, out = np.array(self._sizes, np.int64), np.zeros(self.table.count, np.int64)
        for buffers in self._gathers.values():
            out[buffers >= 0] += sizes[buffers[buffers >= 0]]
        return out

    def tracks(self, sweep: Sweep) -> Array:
        """The memory of a sweep's rows."""
        return self._array(self._tracks[id(sweep)], sweep.kind.shape, sweep.kind.dtype)

    def merged(self, read: Read) -> list[ReadPiece]:
        """The pieces of a read, those together that are one slice of one buffer."""
        if len(read.pieces) < 2:
            return list(read.pieces)
        groups: dict[tuple[Home, AffineMap], list[ReadPiece]] = {}
        out = []
        for piece in read.pieces:
            home = self.home(piece.task)
            if home is None:
                out.append(piece)
            else:
                groups.setdefault((home, piece.map), []).append(piece)
        for members in groups.values():
            box = bounds([piece.box for piece in members])
            whole = len(members) > 1 and box.size == sum(piece.box.size for piece in members)
            out += [replace(members[0], box=box)] if whole else members
        return out

    @cached_property
    def dropped(self) -> dict[int, list[int]]:
        """Task -> the tasks whose blocks, held by Python, nobody reads after it."""
        table = self.table
        held = table.makes & (self.hold < 0) & ~table.fixed
        held[list(table.sweeps)] = False
        out: dict[int, list[int]] = {}
        for number in np.flatnonzero(held).tolist():
            out.setdefault(int(self.last[number]), []).append(number)
        return out


_FIRST = np.zeros(1, np.int64)
_NONE = np.zeros(0, np.int64)


def _column(kind: TaskColumns, piece: ReadPiece) -> PieceColumns:
    """The column of a piece of the first task."""
    found = zip(kind.sample.reads, kind.reads, strict=True)
    return next(c for one, columns in found for p, c in zip(one.pieces, columns.pieces, strict=True) if p is piece)


def _run(part: Box, whole: Box) -> int:
    """Elements of a part that lie one behind the other in the whole."""
    run = 1
    for n, most in zip(reversed(part.shape), reversed(whole.shape), strict=True):
        run *= n
        if n != most:
            break
    return run


def _repeats(rows: IntArray) -> IntArray:
    """Per row how many before it are equal to it."""
    _, number = np.unique(rows, axis=0, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    out = np.zeros(len(rows), np.int64)
    out[order] = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    return out
