"""What a run brings: its values by number, calls of kernels on them, and which results may be written over sources.

The values of a run are its sources, then what tasks leave to Python, then its results.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from mmap import mmap
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Compiled, WritesOver
from tileweave.backends.calls import Apart
from tileweave.backends.host import LINE_BYTES, address_of
from tileweave.graph import Operation
from tileweave.lower.execute import is_small, kernel_of
from tileweave.lower.programs import in_order
from tileweave.lower.reads import own, row_major
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Task
from tileweave.space import Box

Array = np.ndarray[Any, Any]
Values = list[Any]
Action = Callable[[Values], object]


MANY_BUFFERS = 1024
"""From so many on, buffers are placed as they come: to look for the best place of each takes their square."""


def place_in_time(buffers: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where buffers lie that share memory over time: (the first byte of each, bytes in all).

    Args:
        buffers: (bytes, first step, last step) of each; those whose steps meet lie apart. Large ones are placed first,
            each at the lowest place that is free for its steps; many are placed in the order of their first steps.

    Example:
        >>> place_in_time([(100, 0, 1), (100, 1, 2), (64, 2, 3)])
        ([0, 128, 0], 256)
    """
    sizes = [-(-max(size, 1) // LINE_BYTES) * LINE_BYTES for size, _, _ in buffers]
    if len(buffers) > MANY_BUFFERS:
        return _placed_as_they_come(sizes, [first for _, first, _ in buffers], [last for _, _, last in buffers])
    starts, placed = [0] * len(sizes), list[tuple[int, int, int, int]]()
    for number in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        (_, begin, end), size, at = buffers[number], sizes[number], 0
        for low, high in sorted([(low, high) for low, high, first, last in placed if first <= end and begin <= last]):
            if low - at >= size:
                break
            at = max(at, high)
        starts[number] = at
        placed.append((at, at + size, begin, end))
    return starts, max([high for _, high, _, _ in placed], default=0)


def _placed_as_they_come(sizes: list[int], first: list[int], last: list[int]) -> tuple[list[int], int]:
    """Each buffer at the lowest gap that holds it when its first step begins, the larger first."""
    starts, total = [0] * len(sizes), 0
    gaps: list[tuple[int, int]] = []  # (first byte, the one behind the last), in order; none touches another
    ends = sorted(range(len(sizes)), key=lambda k: last[k])
    done = 0
    for number in sorted(range(len(sizes)), key=lambda k: (first[k], -sizes[k], k)):
        while last[ends[done]] < first[number]:
            low, high = starts[ends[done]], starts[ends[done]] + sizes[ends[done]]
            at = bisect_left(gaps, (low, high))
            if at < len(gaps) and gaps[at][0] == high:
                high = gaps.pop(at)[1]
            if at and gaps[at - 1][1] == low:
                at, low = at - 1, gaps.pop(at - 1)[0]
            gaps.insert(at, (low, high))
            done += 1
        size = sizes[number]
        at = next((k for k, (low, high) in enumerate(gaps) if high - low >= size), -1)
        if at < 0 and gaps and gaps[-1][1] == total:
            at, total = len(gaps) - 1, gaps[-1][0] + size
            gaps[at] = gaps[at][0], total
        elif at < 0:
            at, total = len(gaps), total + size
            gaps.append((total - size, total))
        low, high = gaps.pop(at)
        starts[number] = low
        if high > low + size:
            gaps.insert(at, (low + size, high))
    return starts, total


@dataclass(frozen=True, slots=True)
class Slot:
    """An array that every run brings: a value of the run, or a view of it.

    Args:
        number: of the value.
        view: None: the value itself.
        sample: an array that lies as the value will; its elements are never touched.
    """

    number: int
    view: Callable[[Array], Array] | None
    sample: Array

    def __call__(self, now: Values) -> Array:
        """The array in a run."""
        held: Array = now[self.number]
        return held if self.view is None else self.view(held)

    def part(self, view: Callable[[Array], Array] | None) -> Slot:
        """A view of it; None: itself."""
        own = self.view
        if view is None or own is None:
            return Slot(self.number, view or own, self.sample)
        return Slot(self.number, lambda array: view(own(array)), self.sample)

    @property
    def lies(self) -> Array:
        """An array that lies as this one will."""
        return self.sample if self.view is None else self.view(self.sample)

    @property
    def offset_bytes(self) -> int:
        """From the first element of the value to that of its view."""
        return address_of(self.lies) - address_of(self.sample)


def lies_as(read: Array | Slot) -> Array:
    """An array that lies as a read does."""
    return read.lies if isinstance(read, Slot) else read


def untouched(size: int) -> Array:
    """Bytes for what only lies like something else: many of them take addresses, and no memory that was in use."""
    if size < ALONE_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(mmap(-1, size), np.uint8)


ALONE_BYTES = 1 << 16
"""Fewer bytes are not worth pages of their own."""


def stand_in(array: Array) -> Array:
    """An array that lies as another one: what a run brings is not kept for its layout."""
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)] if array.size else []
    low, high = sum(min(step, 0) for step in reach), sum(max(step, 0) for step in reach)
    shift = int(not array.flags.aligned)
    memory = untouched(high - low + array.itemsize + shift)
    return np.ndarray(array.shape, array.dtype, memory, shift - low, array.strides)


def part_of(held: Array | Slot, view: Callable[[Array], Array] | None) -> Array | Slot:
    """A view of an array that is always there, or of one that every run brings; None: itself."""
    if isinstance(held, Slot):
        return held.part(view)
    return held if view is None else view(held)


def as_in(box: Box, whole: Sequence[int], shape: Sequence[int]) -> Box:
    """A box of an array as one of the same array with other dimensions of extent 1.

    Example:
        >>> str(as_in(Box((0, 2, 1), (1, 2, 3)), (1, 6, 5), (6, 1, 5)))
        '[2:4, 0:1, 1:4]'
    """
    if tuple(whole) == tuple(shape):
        return box
    moved = iter([(a, n) for a, n, extent in zip(box.start, box.shape, whole, strict=True) if extent != 1])
    rows = [(0, 1) if extent == 1 else next(moved) for extent in shape]
    return Box(tuple(a for a, _ in rows), tuple(n for _, n in rows))


def taken_from(shape: tuple[int, ...], dtype: np.dtype[Any], offset_bytes: int, memory: Array) -> Array:
    """An array in the bytes of a dense one."""
    size = prod(shape) * dtype.itemsize
    return memory.reshape(-1).view(np.uint8)[offset_bytes : offset_bytes + size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a block lies: in a slice of a buffer of the arena, or of a result.

    Args:
        buffer: its number; -1 for a result.
        result: the number of the result, or -1.
        hold: the box of the block's tensor that the whole buffer has.
        dtype: of its elements.
    """

    buffer: int
    result: int
    hold: Box
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TaskKind:
    """What tasks of one step have in common whose arrays lie alike.

    Args:
        kernel: that computes them.
        order: the numbers of the reads in the order of its operands; -1 for what it makes.
        arranges: whether it reads constants in an order of its own.
        over: per read, whether what it makes may be written over it.
    """

    kernel: Compiled
    order: tuple[int, ...]
    arranges: bool
    over: tuple[bool, ...]


def task_kind(
    task: Task, step: Step, sample: Sequence[Array], made: Array, fixed: Sequence[str], threads: int
) -> TaskKind:
    """The kernel of a task for arrays that lie like these, and what is known of it.

    Args:
        task: any of those that have it.
        step: of the task.
        sample: an array per read.
        made: one for the block.
        fixed: names of the reads that are constant.
        threads: that it may use.
    """
    node, names = cast("Operation", step.node), [read.name for read in task.reads]
    arrays = dict(zip(names, sample, strict=True))
    alone = 1 if is_small(node, task.index) else threads
    kernel = kernel_of(step.kernel.backend, node, step.stage, arrays, made, alone, constant=fixed)
    order = in_order(node, {name: k for k, name in enumerate(names)}, -1)
    over = cast("WritesOver", kernel).writes_over() if hasattr(kernel, "writes_over") else frozenset()
    places = [{place for place, number in enumerate(order) if number == k} for k in range(len(names))]
    return TaskKind(kernel, tuple(order), hasattr(kernel, "arranged"), tuple(one <= over for one in places))


def in_python(
    given: Mapping[str, Array | Slot],
    block: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    into: Callable[[Mapping[str, Array], Array], object] | None,
    target: Array | Slot | None,
    kept: Sequence[str],
    places: Sequence[tuple[int, str]],
) -> Action:
    """An action that computes a block in Python.

    Args:
        given: its inputs.
        block: makes its outputs.
        into: writes the only output into an array, where there is such a function.
        target: where the block lies; None: it becomes a value of the run.
        kept: names of the outputs that are kept.
        places: numbers of values, with the output that they take; without a name, the whole block.
    """
    order = {name: None if isinstance(one, Slot) else one for name, one in given.items()}
    brought = [(name, one.number, one.view) for name, one in given.items() if isinstance(one, Slot)]

    if into is not None and target is not None and not isinstance(target, Slot) and not brought:
        held, write, where = cast("dict[str, Array]", order), into, target
        return lambda _: write(held, where)

    def compute(now: Values) -> None:
        found: dict[str, Any] = order.copy()
        for name, number, view in brought:
            found[name] = now[number] if view is None else view(now[number])
        if target is not None and into is not None:
            into(found, target(now) if isinstance(target, Slot) else target)
            return
        made = block(found)
        if target is None:
            whole = row_major(own(made, kept, found))
            for number, name in places:
                now[number] = cast("dict[str, Array]", whole)[name] if name else whole
        else:
            where = target(now) if isinstance(target, Slot) else target
            where[...] = made[kept[0]]

    return compute


@dataclass(frozen=True, slots=True)
class ArrayAccess:
    """A region of a source that is read, or of a result that is written.

    Args:
        order: when that is done; what has the same one is done by one kernel or copy.
        of: the number of the source or the result.
        box: the region, in the coordinates of the whole.
        pointwise: whether what writes may write over the very elements that it reads.
    """

    order: int
    of: int
    box: Box
    pointwise: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AccessColumns:
    """The accesses of tasks that are alike, a row each.

    Args:
        like: any of them.
        orders: as in `ArrayAccess`.
        starts: the first points of the regions.
    """

    like: ArrayAccess
    orders: IntArray
    starts: IntArray

    def rows(self, chosen: IntArray) -> Iterator[ArrayAccess]:
        """Some of them."""
        for order, start in zip(self.orders[chosen].tolist(), self.starts[chosen].tolist(), strict=True):
            yield replace(self.like, order=order, box=Box(tuple(start), self.like.box.shape))


@dataclass(slots=True)
class ArrayAccesses:
    """Where kernels and copies read sources and write results."""

    reads: list[ArrayAccess] = field(default_factory=list)
    writes: list[ArrayAccess] = field(default_factory=list)
    read_columns: list[AccessColumns] = field(default_factory=list)
    write_columns: list[AccessColumns] = field(default_factory=list)

    def apart(self, sources: Sequence[Array], bound: Sequence[int], results: Sequence[Array]) -> Apart:
        """What must not share memory in a run.

        Args:
            sources: an array per source, as it will lie.
            bound: the numbers of the sources that every run brings.
            results: an array per result, as it will lie.
        """
        fits = {number: sources[number] for number in bound}
        over = [self.over(k, sample, fits) for k, sample in enumerate(results)]
        places = {number: place for place, number in enumerate(bound)}
        read = [(places.get(number, -1), sample) for number, sample in enumerate(sources)]
        return Apart(read, results, len(bound), over)

    def over(self, result: int, lies: Array, sources: Mapping[int, Array]) -> frozenset[int]:
        """The sources that a result may be written over, of those that lie as it does.

        Nothing is read after it was written over, and what is read then is read where it is written.

        Example:
            >>> whole, half, four = Box.of((4,)), Box.of((2,)), np.zeros(4)
            >>> ArrayAccesses([ArrayAccess(0, 0, whole)], [ArrayAccess(1, 0, whole)]).over(0, four, {0: four})
            frozenset({0})
            >>> ArrayAccesses([ArrayAccess(1, 0, half)], [ArrayAccess(0, 0, whole)]).over(0, four, {0: four})
            frozenset()
        """
        alike = {
            k for k, a in sources.items() if (a.dtype, a.shape, a.strides) == (lies.dtype, lies.shape, lies.strides)
        }
        writes = [write for write in self.writes if write.of == result and not write.box.empty]
        columns = [one for one in self.write_columns if one.like.of == result]
        if reads := [read for read in self.reads if read.of in alike and not read.box.empty]:
            every = (write for one in columns for write in one.rows(np.arange(len(one.orders))))
            alike -= _clashing(reads, [*writes, *every])
        for one in self.read_columns:
            if one.like.of in alike and writes:
                alike -= _clashing(one.rows(np.arange(len(one.orders))), writes)
            for other in columns if one.like.of in alike else ():
                rows = _in_doubt(one, other)
                if len(rows):
                    alike -= _clashing(one.rows(rows), [*other.rows(np.arange(len(other.orders)))])
        return frozenset(alike)


def _first(access: ArrayAccess) -> int:
    """Where a region begins in its first dimension: those that meet are found by it."""
    return access.box.start[0] if access.box.rank else 0


def _clashing(reads: Iterable[ArrayAccess], writes: Sequence[ArrayAccess]) -> set[int]:
    """The sources of which something is read after it was written over, or elsewhere than what is written then."""
    writes = sorted(writes, key=_first)
    starts, found = list(map(_first, writes)), set[int]()
    longest = max((write.box.shape[0] for write in writes if write.box.rank), default=1)
    for read in reads:
        first = _first(read)
        stop = first + read.box.shape[0] if read.box.rank else 1
        for write in writes[bisect_right(starts, first - longest) : bisect_left(starts, stop)]:
            same = read.box == write.box
            if read.order < write.order or (read.order == write.order and read.pointwise and same):
                continue
            if same or not read.box.intersect(write.box).empty:
                found.add(read.of)
    return found


def _in_doubt(reads: AccessColumns, writes: AccessColumns) -> IntArray:
    """The rows of reads but for those that meet no write, or just what is written at their end or later.

    The writes of one column have no element in common.
    """
    read, written = np.array(reads.like.box.shape, np.int64), np.array(writes.like.box.shape, np.int64)
    low, high = writes.starts.min(0, initial=1 << 62), (writes.starts + written).max(0, initial=0)
    doubt = np.flatnonzero(((reads.starts < high) & (reads.starts + read > low)).all(1))
    if len(doubt) and (read == written).all():
        extents = np.maximum(high, (reads.starts + read).max(0))
        steps = np.cumprod([1, *extents[:0:-1].tolist()], dtype=np.int64)[::-1][: len(extents)]
        places = writes.starts @ steps
        order = np.argsort(places)
        wanted = reads.starts[doubt] @ steps
        at = order[np.minimum(np.searchsorted(places[order], wanted), len(order) - 1)]
        later = reads.orders[doubt] < writes.orders[at] + bool(reads.like.pointwise)
        doubt = doubt[~((places[at] == wanted) & later)]
    return np.asarray(doubt)
