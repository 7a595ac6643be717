"""Where the blocks of an executable's tasks lie: in a result, beside others that are read with them, or alone.

Source: own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tileweave.backends.host import address_of
from tileweave.graph import Operation, Sink, Source, TensorType
from tileweave.lower.reads import bounds, never_written, pointwise, view_of, written_over
from tileweave.lower.sweeps.fields import Sweep
from tileweave.lower.values import Holder, Home, Slot, lies_as, place_in_time
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task
from tileweave.space import AffineMap, Box

Array = np.ndarray[Any, Any]


def in_results(steps: Sequence[Step], tasks: Sequence[Task], sinks: Mapping[Sink, int]) -> dict[int, Home]:
    """Tasks whose block is a part of a result as it is; the results have the numbers of their sinks."""
    found: dict[int, Home] = {}
    for task in tasks:
        node = steps[task.step].node
        if isinstance(node, Sink):
            for piece in task.reads[0].pieces:
                complete = piece.task >= 0 and piece.region == piece.block and len(tasks[piece.task].outs) == 1
                if complete and piece.in_order:
                    hold = piece.map.cover(node.tensor.type.box)
                    if hold.size == node.tensor.type.box.size:  # else a dimension of the result is none of the block's
                        found.setdefault(piece.task, Home((-1, sinks[node]), hold))
    return found


FIXED_BYTES = 1 << 20
"""What is computed once from constants and kept may be this large, or as large as what it is computed from."""


def fixed(
    steps: Sequence[Step], tasks: Sequence[Task], results: Collection[int], constant: Callable[[Source], bool]
) -> set[int]:
    """Tasks that depend on constants alone, other than those that only make a result: done once.

    Args:
        steps: of the plan.
        tasks: all of them.
        results: those whose block is a part of a result.
        constant: whether nothing is bound to a source and nothing writes to its array, as to the weights of a model.
    """
    found, readers = set[int](), Counter(number for task in tasks for number in task.needs)
    for task in tasks:
        if not found.issuperset(task.needs):
            continue
        sources = {piece.source for read in task.reads for piece in read.pieces} - {None}
        if not all(constant(source) for source in sources if source is not None):
            continue
        if steps[task.step].stage == "store" or (task.number in results and readers[task.number] == 1):
            continue
        read = sum(read.size_bytes for read in task.reads)
        kept = sum(kind.size_bytes for kind in kinds(steps[task.step], task).values())
        if kept <= max(read, FIXED_BYTES):
            found.add(task.number)
    return found


def kinds(step: Step, task: Task) -> dict[str, TensorType]:
    """The outputs that a task keeps."""
    types = cast("Operation", step.node).output_types
    return {name: TensorType(out.shape, types[name].dtype) for name, out in zip(step.outputs, task.outs, strict=True)}


def dropped(steps: Sequence[Step], tasks: Sequence[Task], stays: Callable[[int], bool]) -> dict[int, list[int]]:
    """Task -> the tasks whose blocks, held by Python, nobody reads after it.

    Args:
        steps: of the plan.
        tasks: in their order.
        stays: whether the block of a task lies at a place of its own, or was computed once.
    """
    last: dict[int, int] = {}
    for task in tasks:
        if not stays(task.number) and steps[task.step].stage != "store":
            last[task.number] = task.number
        last.update((number, task.number) for number in task.needs if not stays(number))
    out: dict[int, list[int]] = {}
    for number, at in last.items():
        out.setdefault(at, []).append(number)
    return out


def together(tasks: Sequence[Task], free: Sequence[Task]) -> dict[int, Home]:
    """Blocks of one tensor of which some are read together, where they fill a box: slices of one buffer.

    Args:
        tasks: all of them.
        free: those of which a kernel makes the block, and of which it may lie anywhere.
    """
    several = [read for task in tasks for read in task.reads if len(read.pieces) > 1]
    wanted = {tasks[piece.task].step for read in several for piece in read.pieces if piece.task >= 0}
    layers: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
    seen: defaultdict[tuple[int, Box], int] = defaultdict(int)
    for task in free:
        if task.step in wanted:
            layer = seen[task.step, task.out]  # partial results of one block lie in layers
            seen[task.step, task.out] += 1
            layers[task.step, layer].append(task)
    found: dict[int, Home] = {}
    for (step, layer), members in layers.items():
        hold = bounds([task.out for task in members])
        if len(members) > 1 and hold.size == sum(task.out.size for task in members):
            home = Home((len(tasks) + step, layer), hold)
            found.update((task.number, home) for task in members)
    return found


LONG_ROW = 512
"""From so many elements that lie together in a block on, kernels write it between others as fast as alone."""


def in_reads(steps: Sequence[Step], tasks: Sequence[Task], free: Sequence[Task]) -> dict[int, Home]:
    """Blocks that one task reads, put together with others or with constants: their place there, where rows are long.

    Args:
        steps: of the plan.
        tasks: all of them.
        free: those of which a kernel makes the block, and of which it may lie anywhere.
    """
    able = {task.number for task in free}
    readers = Counter(piece.task for task in tasks for read in task.reads for piece in read.pieces)
    found: dict[int, Home] = {}
    for task in tasks:
        for k, read in enumerate(task.reads):
            if len(read.pieces) < 2 or read.partial or steps[task.step].stage == "store":
                continue
            for piece in read.pieces:
                alone = piece.task in able and readers[piece.task] == 1 and piece.whole and piece.shifts
                if alone and _run(piece.box, read.box) >= LONG_ROW:
                    found[piece.task] = Home((task.number, 1 + k), read.box.translate(piece.map.offset))
    return found


def _run(part: Box, whole: Box) -> int:
    """Elements of a part that lie one behind the other in the whole."""
    run = 1
    for n, most in zip(reversed(part.shape), reversed(whole.shape), strict=True):
        run *= n
        if n != most:
            break
    return run


def alone(tasks: Sequence[Task]) -> dict[int, Home]:
    """A buffer for each."""
    return {task.number: Home((task.number, 0), task.out) for task in tasks}


def in_place(
    steps: Sequence[Step], tasks: Sequence[Task], homes: dict[int, Home], apart: Collection[int] = ()
) -> dict[int, Home]:
    """The same, but that what only a pointwise operation reads lies where its result does, and is written over; but
    for the tasks that stay ``apart``."""
    readers = Counter(number for task in tasks for number in task.needs)
    names = [frozenset() if step.stage == "store" else pointwise(step) for step in steps]
    for task in reversed(tasks):
        step, home = steps[task.step], homes.get(task.number)
        may = home is not None and task.number not in apart
        for piece in written_over(step, names[task.step], task) if may else ():
            own = homes.get(piece.task) == Home((piece.task, 0), piece.block)
            if home is not None and own and readers[piece.task] == 1:
                homes[piece.task] = Home(home.key, home.hold.translate(piece.map.offset))
                break
    return homes


SPARE_BYTES = 1 << 20
"""Smaller buffers stay in the arena: memory is not short there, and a run need not say where they lie."""


def in_spare_results(
    steps: Sequence[Step],
    tasks: Sequence[Task],
    homes: Mapping[int, Home],
    kinds: Mapping[tuple[int, int], TensorType],
    spans: Mapping[tuple[int, int], tuple[int, int]],
    sinks: Mapping[Sink, int],
    bound: Collection[Source],
) -> dict[int, Home]:
    """Blocks that can lie in a result of their type, since they are dead before a task writes the result.

    Args:
        steps: of the plan.
        tasks: all of them.
        homes: where blocks lie so far.
        kinds: of the buffers of the arena.
        spans: the first and the last task that uses each buffer.
        sinks: the numbers of the results.
        bound: the sources that a run brings. Such an array may be given as the result, too: that is free from its
            last read on.
    """
    own = {home.key for home in homes.values() if home.result < 0 and (home.key[0] >= len(tasks) or not home.key[1])}
    large = [key for key in own & kinds.keys() if kinds[key].size_bytes >= SPARE_BYTES]
    if not large:
        return {}
    read, made = dict[TensorType, int](), dict.fromkeys(sinks.values(), len(tasks))
    for at, task in enumerate(tasks):
        home, node = homes.get(task.number), steps[task.step].node
        result = sinks[node] if isinstance(node, Sink) else home.result if home is not None else -1
        if result >= 0:
            made[result] = min(made[result], at)
        sources = (piece.source for one in task.reads for piece in one.pieces)
        read.update((source.type, at) for source in sources if source is not None and source in bound)
    found: dict[tuple[int, int], int] = {}
    for sink, result in sinks.items():
        after, before = read.get(sink.tensor.type, -1), made[result]
        for key in sorted(large, key=lambda key: (spans[key], key), reverse=True):  # the last leaves the most room
            free = after < spans[key][0] and spans[key][1] < before
            if free and key not in found and kinds[key] == sink.tensor.type:
                found[key], before = result, spans[key][0]
    return {n: Home((-1, found[home.key]), home.hold) for n, home in homes.items() if home.key in found}


def merged(read: Read, homes: Mapping[int, Home]) -> list[ReadPiece]:
    """The pieces of a read, those together that are one slice of one buffer."""
    if len(read.pieces) < 2:
        return list(read.pieces)
    groups: defaultdict[tuple[Home, AffineMap], list[ReadPiece]] = defaultdict(list)
    out = []
    for piece in read.pieces:
        home = homes.get(piece.task)
        if home is None:
            out.append(piece)
        else:
            groups[home, piece.map].append(piece)
    for members in groups.values():
        box = bounds([piece.box for piece in members])
        whole = len(members) > 1 and box.size == sum(piece.box.size for piece in members)
        out += [replace(members[0], box=box)] if whole else members
    return out


Key = tuple[int, int]
"""Of a buffer of the arena, as in `Home`."""
Buffers = tuple[dict[Key, TensorType], dict[Key, tuple[int, int]]]
"""Per buffer of the arena its type, and the first and the last task that uses it."""


def buffers(
    steps: Sequence[Step],
    tasks: Sequence[Task],
    seen: Sequence[Task],
    homes: Mapping[int, Home],
    fixed: Collection[int],
    swept: Mapping[int, Sweep],
    never_changes: Callable[[Read], bool],
) -> Buffers:
    """The buffers of the arena, one per read that is put together among them.

    Args:
        steps: of the plan.
        tasks: all of them.
        seen: the tasks, as if they read what views are views of.
        homes: where blocks lie.
        fixed: blocks that are computed once.
        swept: tasks of sweeps; those of one run together.
        never_changes: whether a read is the same in every run, so that it is put together once, in memory of its own.
    """
    kinds: dict[Key, TensorType] = {}
    spans: dict[Key, tuple[int, int]] = {}

    def used(number: int, at: int) -> None:
        home = homes.get(number)
        if home is not None and home.result < 0:
            begin, end = (at, at) if at not in swept else (swept[at].numbers[0], swept[at].numbers[-1])
            first, last = spans.get(home.key, (begin, end))
            spans[home.key] = min(first, begin), max(last, end)
            if home.key not in kinds:
                step = steps[tasks[number].step]
                dtype = cast("Operation", step.node).output_types[step.outputs[0]].dtype  # it keeps one
                kinds[home.key] = TensorType(home.hold.shape, dtype)

    for at, task in enumerate(seen):
        used(task.number, at)
        for number in task.needs:
            used(number, at)
        if steps[task.step].stage != "store" and task.number not in fixed and task.number not in swept:
            for k, read in enumerate(task.reads):
                several = len(read.pieces) != 1 and len(merged(read, homes)) != 1
                if several and not never_changes(tasks[task.number].reads[k]):
                    key = task.number, 1 + k
                    spans[key] = spans.get(key, (at, at))[0], at
                    kinds[key] = TensorType(read.box.shape, read.dtype)
    for sweep in swept.values():
        kinds[sweep.key], spans[sweep.key] = sweep.kind, (sweep.numbers[0], sweep.numbers[-1])
    return kinds, spans


def placed(
    kinds: Mapping[Key, TensorType], spans: Mapping[Key, tuple[int, int]]
) -> tuple[dict[Key, tuple[TensorType, int]], int]:
    """Per buffer of the arena (type, first byte), and the bytes of all."""
    starts, total = place_in_time([(kinds[key].size_bytes, *spans[key]) for key in kinds])
    return {key: (kind, start) for (key, kind), start in zip(kinds.items(), starts, strict=True)}, total


def gathered_bytes(buffers: Mapping[Key, Array | Slot], tasks: int) -> IntArray:
    """What each of so many tasks puts together to read it, by number."""
    out = np.zeros(tasks, np.int64)
    for (number, k), buffer in buffers.items():
        if 0 <= number < tasks and k:
            out[number] += lies_as(buffer).nbytes
    return out


class Holders:
    """The arrays of which everything that kernels read and write in place is a view.

    Args:
        sources: an array per source: the constant ones themselves, samples of the others.
        constant: the sources that are the same array in every run.
        buffers: of the arena.
        results: an array per result that lies as it will.
        first: the number of the first result among the values of a run.
    """

    def __init__(
        self,
        sources: Mapping[Source, Array],
        constant: Collection[Source],
        buffers: Mapping[Key, Array | Slot],
        results: Sequence[Array],
        first: int,
    ) -> None:
        self._sources, self._constant, self._buffers = sources, constant, buffers
        self._numbers = {source: number for number, source in enumerate(sources)}
        self._results, self._first = results, first
        self._known: dict[Source | Home, Holder] = {}

    def of(self, key: Source | Home) -> Holder:
        """What a source or a home is a part of."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(key)
        return found

    def _find(self, key: Source | Home) -> Holder:
        if isinstance(key, Source):
            constant, held = key in self._constant, self._sources[key]
            slot = None if constant else Slot(self._numbers[key], None, held)
            return Holder(held, slot, constant and never_written(held), key.type.box, address_of(held))
        buffer = self.held(key)
        array = lies_as(buffer)
        if isinstance(buffer, Slot):
            return Holder(array, buffer, False, key.hold, address_of(array), buffer.offset_bytes)
        return Holder(array, None, False, key.hold, address_of(array))

    def held(self, home: Home) -> Array | Slot:
        """The buffer of the arena, or the result, in which blocks lie, with their dimensions."""
        if home.result < 0:
            return self._buffers[home.key]
        sample, shape = self._results[home.result], home.hold.shape
        view = (lambda array: array.reshape(shape)) if sample.shape != shape else None
        return Slot(self._first + home.result, view, sample)


# ---- blocks that are views of others ------------------------------------------------------------


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
