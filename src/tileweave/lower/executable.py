"""A plan's tasks as one executable of this process: what a run needs is decided before it, and kept between runs.

Results in between lie in one arena, where those that are never alive together share bytes. Blocks of a tensor that are
read together lie together, and blocks of a result lie in the result, so that reading several is a slice and no copy.
Kernels of a backend are bound to their arrays, and run one after the other without Python between them; only what has
no kernel, a read that has to be put together, and arrays that change from run to run interrupt that.

The layout of every array is known beforehand: sources have the strides of the samples, everything else is row-major,
or a slice of what is row-major.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Arranged, Calls, Moves, backend
from tileweave.backends.host import LINE_BYTES, allocation, empty
from tileweave.graph import Operation, Sink, Source, Tensor, TensorType
from tileweave.lower.execute import COPIES, copy, execute, kernel_of, regular
from tileweave.lower.programs import in_order
from tileweave.lower.reads import Block, block_bytes, constant, own, place, slices, view_of
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task
from tileweave.space import AffineMap, Box

__all__ = ["Executable", "WorkFailed", "place_in_time"]

Array = np.ndarray[Any, Any]
Values = list[Any]
Action = Callable[[Values], object]
Get = Callable[[Values], Array]

SMALL_CONTRACTION = 1 << 19
"""Products of a contraction below which one thread computes it: some 10 us of work, as long as waking another takes."""
SMALL = 1 << 16
"""The same for other operations, in points of their index."""
FIXED_BYTES = 1 << 20
"""What is computed once from constants and kept may be this large, or as large as what it is computed from."""


class WorkFailed(Exception):
    """A task raised; `__cause__` says what."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.number)
        self.task = task


def place_in_time(buffers: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where buffers lie that share memory over time: (the first byte of each, bytes in all).

    Args:
        buffers: (bytes, first step, last step) of each; those whose steps meet lie apart. Large ones are placed first,
            each at the lowest place that is free for its steps.

    Example:
        >>> place_in_time([(100, 0, 1), (100, 1, 2), (64, 2, 3)])
        ([0, 128, 0], 256)
    """
    count = len(buffers)
    sizes, first, last = (np.array([b[k] for b in buffers], np.int64).reshape(count) for k in range(3))
    sizes = -(-np.maximum(sizes, 1) // LINE_BYTES) * LINE_BYTES
    order = np.lexsort((np.arange(count), -sizes))
    starts, placed = np.zeros(count, np.int64), np.zeros(count, np.int64)  # `placed`: in the order of placing
    for done, number in enumerate(order):
        earlier = placed[:done]
        meets = earlier[(first[earlier] <= last[number]) & (first[number] <= last[earlier])]
        at, size = 0, int(sizes[number])
        for start, end in sorted(zip(starts[meets].tolist(), (starts[meets] + sizes[meets]).tolist(), strict=True)):
            if start - at >= size:
                break
            at = max(at, end)
        starts[number], placed[done] = at, number
    return starts.tolist(), int((starts + sizes).max(initial=0)) if count else 0


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a block lies: in a slice of a buffer of the arena, or of a result.

    Args:
        key: of the buffer; (-1, number) for a result.
        hold: the box of the block's tensor that the whole buffer has.
    """

    key: tuple[int, int]
    hold: Box

    @property
    def result(self) -> int:
        """The number of the result, or -1."""
        return self.key[1] if self.key[0] < 0 else -1


class Executable:
    """Tasks made ready for sources of some strides; `run` them any number of times, one run at a time.

    Args:
        steps: of the plan.
        tasks: in the order in which they run, all of them.
        sources: an array per source: the constant ones themselves, samples of the others.
        constant: the sources that are the same array in every run.
        sinks: in the order of the results.
        threads: that kernels may use.
        room_bytes: blocks of one tensor lie together while the arena does not exceed this.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        tasks: Sequence[Task],
        sources: Mapping[Source, Array],
        constant: Collection[Source],
        sinks: Sequence[Sink],
        threads: int,
        room_bytes: int = 0,
    ) -> None:
        self._steps, self._tasks, self._threads = steps, tasks, threads
        self._samples, self._constant = sources, constant
        self._slots = {source: number for number, source in enumerate(sources)}
        self._count = len(sources)
        self._sinks = {sink: number for number, sink in enumerate(sinks)}
        self._boxes = [sink.tensor.type.box for sink in sinks]
        kinds = [sink.tensor.type for sink in sinks]
        self._new = [allocation(kind.shape, kind.dtype) for kind in kinds]
        self._result_samples = [np.empty(kind.shape, kind.dtype) for kind in kinds]
        self._actions: list[tuple[int, Action]] = []
        self._pending: list[int] = []
        self._points: list[tuple[int, int, Get]] = []
        self._calls: dict[str, Calls] = {}
        self._by = ""
        self._kept: list[Array] = []
        self._segment_of = -1
        self.python_steps = 0
        self.kernels = 0
        self._native = [_native(steps[task.step], task) for task in tasks]
        self._buffers: dict[tuple[int, int], Array] = {}
        self._homes: dict[int, _Home] = {}
        self._fixed: dict[int, Any] = {}  # task -> its array, or its block of several outputs
        self.arena_bytes = self._lay_out(room_bytes)
        dropped = self._dropped()
        for task in tasks:
            if steps[task.step].stage == "store":
                self._store(task)
            elif task.number in self._fixed:
                self._fix(task)
            else:
                self._work(task)
            if task.number in dropped:
                self._drop([self._count + number for number in dropped[task.number]])
        self._flush()

    # ---- running ------------------------------------------------------------------------------------------------

    def run(self, sources: Sequence[Array | None], out: Sequence[Array | None]) -> list[Array]:
        """The results, for these sources; those that are constant may be None.

        Args:
            sources: of the samples' types, shapes and strides.
            out: row-major arrays to write results to, apart from all sources; None: new ones.

        Raises:
            WorkFailed: a task raised.
        """
        held: Values = [*sources, *[None] * len(self._tasks), None]
        results = [new() if given is None else given for new, given in zip(self._new, out, strict=True)]
        held[-1] = results
        if self.python_steps:
            with np.errstate(all="ignore"):  # what NumPy would warn of is part of the values
                self._act_all(held)
        else:
            self._act_all(held)
        return results

    def _act_all(self, held: Values) -> None:
        at = -1
        try:
            for number, action in self._actions:
                at = number
                action(held)
        except Exception as error:
            raise WorkFailed(self._tasks[at]) from error

    # ---- where blocks lie ---------------------------------------------------------------------------------------

    def _lay_out(self, room_bytes: int) -> int:
        """Places every block that a kernel makes; the bytes of the arena."""
        results = self._in_results()
        self._find_fixed(results)
        results = {number: home for number, home in results.items() if number not in self._fixed}
        together = self._together(results)
        self._homes = {**self._alone(results, together), **together, **results}
        buffers, total = self._placed()
        if total > room_bytes and together:
            self._homes = {**self._alone(results, {}), **results}
            buffers, total = self._placed()
        if total:
            memory = empty((max(total, 1 << 16),), np.uint8)
            for key, (kind, start) in buffers.items():
                self._buffers[key] = np.ndarray(kind.shape, kind.dtype, memory, start)
        return total

    def _find_fixed(self, results: Mapping[int, _Home]) -> None:
        """Tasks that depend on constants alone, other than those that only make a result: done once, here.

        A source is constant where nothing is bound to it and its array is read-only, as the weights of a model are.
        """
        readers = Counter(number for task in self._tasks for number in task.needs)
        for task in self._tasks:
            if self._steps[task.step].stage == "store" or (task.number in results and readers[task.number] == 1):
                continue
            read = sum(read.size_bytes for read in task.reads)
            kept = sum(kind.size_bytes for kind in self._kinds(task).values())
            if kept <= max(read, FIXED_BYTES) and all(map(self._never_changes, task.reads)):
                self._fixed[task.number] = None
                self._native[task.number] = False

    def _never_changes(self, read: Read) -> bool:
        """Whether what is read is the same in every run."""

        def same(piece: ReadPiece) -> bool:
            if piece.source is not None:
                return piece.source in self._constant and not self._samples[piece.source].flags.writeable
            return piece.task < 0 or piece.task in self._fixed

        return all(map(same, read.pieces))

    def _fix(self, task: Task) -> None:
        """Computes the block of a task that is done once.

        Raises:
            WorkFailed: its operator raised.
        """
        step = self._steps[task.step]
        given: dict[str, Array] = {}
        for read in task.reads:
            pieces = [np.asarray(self._read(piece, read.dtype)) for piece in read.pieces]  # all of them are arrays here
            whole = pieces[0] if len(pieces) == 1 else np.empty(read.box.shape, read.dtype)
            if len(pieces) > 1:
                for piece, values in zip(read.pieces, pieces, strict=True):
                    whole[place(read, piece)] = values
            given[read.name] = whole
        try:
            made = execute(cast("Operation", step.node), step.stage, task.index, given, decision=step.kernel)
        except Exception as error:
            raise WorkFailed(task) from error
        block = _row_major(own(made, step.outputs, given))
        self._fixed[task.number] = block
        self.arena_bytes += block_bytes(block)

    def _kinds(self, task: Task) -> dict[str, TensorType]:
        """The outputs that a task keeps."""
        step = self._steps[task.step]
        types = cast("Operation", step.node).output_types
        return {
            name: TensorType(out.shape, types[name].dtype) for name, out in zip(step.outputs, task.outs, strict=True)
        }

    def _in_results(self) -> dict[int, _Home]:
        """Tasks whose block is a part of a result as it is."""
        found: dict[int, _Home] = {}
        for task in self._tasks:
            node = self._steps[task.step].node
            if isinstance(node, Sink):
                number = self._sinks[node]
                for piece in task.reads[0].pieces:
                    if piece.task >= 0 and piece.whole and self._single(piece.task):
                        hold = self._boxes[number].translate(piece.map.offset)
                        found.setdefault(piece.task, _Home((-1, number), hold))
        return found

    def _single(self, number: int) -> bool:
        """Whether a task keeps one output."""
        return len(self._tasks[number].outs) == 1

    def _together(self, results: Mapping[int, _Home]) -> dict[int, _Home]:
        """Blocks of one tensor of which some are read together, where they fill a box: slices of one buffer."""
        wanted: set[int] = set()
        for task in self._tasks:
            for read in task.reads:
                wanted |= (
                    {self._tasks[p.task].step for p in read.pieces if p.task >= 0} if len(read.pieces) > 1 else set()
                )
        layers: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
        seen: defaultdict[tuple[int, Box], int] = defaultdict(int)
        for task in self._tasks:
            if task.step in wanted and self._native[task.number] and task.number not in results:
                layer = seen[task.step, task.out]  # partial results of one block lie in layers
                seen[task.step, task.out] += 1
                layers[task.step, layer].append(task)
        found: dict[int, _Home] = {}
        for (step, layer), members in layers.items():
            hold = _bounds([task.out for task in members])
            if len(members) > 1 and hold.size == sum(task.out.size for task in members):
                home = _Home((len(self._tasks) + step, layer), hold)
                found.update((task.number, home) for task in members)
        return found

    def _alone(self, *others: Mapping[int, _Home]) -> dict[int, _Home]:
        return {
            task.number: _Home((task.number, 0), task.out)
            for task in self._tasks
            if self._native[task.number] and not any(task.number in other for other in others)
        }

    def _placed(self) -> tuple[dict[tuple[int, int], tuple[TensorType, int]], int]:
        """Per buffer of the arena (type, first byte), and the bytes of all; a buffer per read that is put together."""
        kinds: dict[tuple[int, int], TensorType] = {}
        spans: dict[tuple[int, int], tuple[int, int]] = {}

        def used(number: int, at: int) -> None:
            home = self._homes.get(number)
            if home is not None and home.result < 0:
                first, last = spans.get(home.key, (at, at))
                spans[home.key] = min(first, at), max(last, at)
                (kind,) = self._kinds(self._tasks[number]).values()
                kinds[home.key] = TensorType(home.hold.shape, kind.dtype)

        for at, task in enumerate(self._tasks):
            used(task.number, at)
            for number in task.needs:
                used(number, at)
            if self._steps[task.step].stage != "store" and task.number not in self._fixed:
                for k, read in enumerate(task.reads):
                    if len(self._merged(read)) != 1:
                        spans[task.number, 1 + k] = at, at
                        kinds[task.number, 1 + k] = TensorType(read.box.shape, read.dtype)
        starts, total = place_in_time([(kinds[key].size_bytes, *spans[key]) for key in kinds])
        return {key: (kind, start) for (key, kind), start in zip(kinds.items(), starts, strict=True)}, total

    def _dropped(self) -> dict[int, list[int]]:
        """Task -> the tasks whose blocks, held by Python, nobody reads after it."""
        last: dict[int, int] = {}
        for task in self._tasks:
            if not self._stays(task.number) and self._steps[task.step].stage != "store":
                last[task.number] = task.number
            last.update((number, task.number) for number in task.needs if not self._stays(number))
        out: dict[int, list[int]] = {}
        for number, at in last.items():
            out.setdefault(at, []).append(number)
        return out

    def _stays(self, number: int) -> bool:
        """Whether a block lies at a place of its own, or was computed once."""
        return number in self._homes or number in self._fixed

    # ---- reads --------------------------------------------------------------------------------------------------

    def _merged(self, read: Read) -> list[ReadPiece]:
        """The pieces of a read, those together that are one slice of one buffer."""
        if len(read.pieces) < 2:
            return list(read.pieces)
        groups: defaultdict[tuple[_Home, AffineMap], list[ReadPiece]] = defaultdict(list)
        out = []
        for piece in read.pieces:
            home = self._homes.get(piece.task)
            if home is None:
                out.append(piece)
            else:
                groups[home, piece.map].append(piece)
        for members in groups.values():
            box = _bounds([piece.box for piece in members])
            whole = len(members) > 1 and box.size == sum(piece.box.size for piece in members)
            out += [replace(members[0], box=box)] if whole else members
        return out

    def _read(self, piece: ReadPiece, dtype: np.dtype[Any]) -> Array | Get:
        """A piece as an array that is always there, or as a function of the values of a run."""
        if piece.constant:
            return constant(piece, dtype)
        if piece.source is not None:
            found = view_of(piece, piece.source.type.box)
            if piece.source in self._constant:
                held = self._samples[piece.source]
                return held if found is None else found(held)
            return _getter(self._slots[piece.source], found)
        home = self._homes.get(piece.task)
        if piece.task in self._fixed:
            block, found = self._fixed[piece.task], view_of(piece, piece.block)
            held = block[piece.output] if isinstance(block, dict) else block
            return held if found is None else found(held)
        if home is None:
            found = view_of(piece, piece.block)
            get = _getter(self._count + piece.task, found)
            if self._single(piece.task):
                return get
            slot, output = self._count + piece.task, piece.output
            seen = found or (lambda array: array)
            return lambda now: seen(now[slot][output])
        found = view_of(piece, home.hold)
        if home.result < 0:
            held = self._buffers[home.key]
            return held if found is None else found(held)
        number = home.result
        return (lambda now: now[-1][number]) if found is None else (lambda now: found(now[-1][number]))

    def _sample(self, piece: ReadPiece, dtype: np.dtype[Any], read: Array | Get) -> Array:
        """An array with the layout that a read will have; its elements are never touched."""
        if not callable(read):
            return read
        home = self._homes.get(piece.task)
        if piece.source is not None:
            held, hold = self._samples[piece.source], piece.source.type.box
        elif home is not None:
            held, hold = self._result_samples[home.result], home.hold
        else:
            held, hold = np.empty(piece.block.shape, dtype), piece.block
        found = view_of(piece, hold)
        return held if found is None else found(held)

    def _input(self, task: Task, k: int) -> tuple[Array | Get, Array]:
        """(an input of a task, an array of its layout); what has several pieces is put together first."""
        read = task.reads[k]
        pieces = self._merged(read)
        if len(pieces) == 1:
            found = self._read(pieces[0], read.dtype)
            return found, self._sample(pieces[0], read.dtype, found)
        whole = self._buffers[task.number, 1 + k]
        for piece in pieces:
            found = self._read(piece, read.dtype)
            sample = self._sample(piece, read.dtype, found)
            self._copy(task.number, whole[place(read, piece)], found, sample)
        return whole, whole

    def _copy(self, number: int, target: Array, source: Array | Get, sample: Array) -> None:
        by = backend(COPIES)
        mover = by.mover(sample, target, self._threads) if isinstance(by, Moves) else None
        if mover is not None:
            calls = self._calls_of(COPIES)
            call = calls.add(mover, [sample, target])
            if callable(source):
                self._points.append((call, 0, source))
            self._kept.append(sample)
            self._pending.append(call)
            self._segment_of = number
            return
        if callable(source):
            self._act(number, lambda now: copy(target, source(now), threads=self._threads))
        else:
            ready = partial(copy, target, source, threads=self._threads)
            self._act(number, lambda now: ready())

    # ---- tasks --------------------------------------------------------------------------------------------------

    def _target(self, task: Task) -> Array | Get | None:
        """Where a task's block lies, as an array or a function of the values of a run."""
        home = self._homes.get(task.number)
        if home is None:
            return None
        index = slices(task.out.translate([-a for a in home.hold.start])) if task.out != home.hold else ...
        if home.result < 0:
            held = self._buffers[home.key]
            return held if index is ... else np.asarray(held[index])
        number = home.result
        return (lambda now: now[-1][number]) if index is ... else (lambda now: now[-1][number][index])

    def _work(self, task: Task) -> None:
        step = self._steps[task.step]
        node = cast("Operation", step.node)
        found = [self._input(task, k) for k in range(len(task.reads))]
        target = self._target(task)
        if self._native[task.number] and target is not None and self._bind(task, step, found, target):
            return
        names = [read.name for read in task.reads]
        inputs = [one for one, _ in found]
        slot, kept, threads = self._count + task.number, step.outputs, self._threads

        def compute(now: Values) -> None:
            given = {name: read(now) if callable(read) else read for name, read in zip(names, inputs, strict=True)}
            made = execute(node, step.stage, task.index, given, threads=threads, decision=step.kernel)
            if target is None:
                now[slot] = _row_major(own(made, kept, given))
            else:
                where = target(now) if callable(target) else target
                where[...] = made[kept[0]]

        self.python_steps += 1
        self._act(task.number, compute)

    def _bind(self, task: Task, step: Step, found: Sequence[tuple[Array | Get, Array]], target: Array | Get) -> bool:
        """Adds a kernel to the calls; False where the arrays' strides allow none."""
        sample = [array for _, array in found]
        made = self._out_sample(task) if callable(target) else target
        if not all(regular(array) is array for array in sample):
            return False
        node, by = cast("Operation", step.node), step.kernel.backend
        threads = 1 if _is_small(node, task.index) else self._threads
        arrays = {read.name: array for read, array in zip(task.reads, sample, strict=True)}
        fixed = [read.name for read in task.reads if len(read.pieces) == 1 and self._never_changes(read)]
        kernel = kernel_of(by, node, step.stage, arrays, made, threads, constant=fixed)
        calls = self._calls_of(by)
        named = {name: k for k, name in enumerate(arrays)}
        order = in_order(node, named, -1)
        given = [made if k < 0 else sample[k] for k in order]
        own = kernel.arranged(given) if isinstance(kernel, Arranged) else given
        call = calls.add(kernel, own)
        new = [array for array, old in zip(own, given, strict=True) if array is not old]
        self._kept += new
        self.arena_bytes += sum(array.nbytes for array in new)
        for position, read in enumerate([target if k < 0 else found[k][0] for k in order]):
            if callable(read):
                self._points.append((call, position, read))
        self._kept += [read for read, _ in found if not callable(read)]
        self._pending.append(call)
        self._segment_of = task.number
        self.kernels += 1
        return True

    def _calls_of(self, by: str) -> Calls:
        """The calls of a backend, to which what follows is added."""
        if self._by != by:
            self._flush()
            self._by = by
        return self._calls.get(by) or self._calls.setdefault(by, backend(by).calls())

    def _out_sample(self, task: Task) -> Array:
        home = self._homes[task.number]
        return np.asarray(self._result_samples[home.result][slices(task.out.translate([-a for a in home.hold.start]))])

    def _store(self, task: Task) -> None:
        sink = self._sinks[cast("Sink", self._steps[task.step].node)]
        read = task.reads[0]
        pieces = [piece for piece in read.pieces if not self._is_there(piece, sink)]
        for piece in self._merged(replace(read, pieces=tuple(pieces))):
            found, index = self._read(piece, read.dtype), slices(piece.box)

            def write(now: Values, read: Array | Get = found, index: Any = index) -> None:
                copy(now[-1][sink][index], read(now) if callable(read) else read, threads=self._threads)

            self._act(task.number, write)

    def _is_there(self, piece: ReadPiece, sink: int) -> bool:
        """Whether a piece lies in a result already, in its place."""
        home = self._homes.get(piece.task)
        if home is None or home.result != sink or not piece.shifts:
            return False
        return home.hold == self._boxes[sink].translate(piece.map.offset)

    def _drop(self, slots: Sequence[int]) -> None:
        def drop(now: Values) -> None:
            for slot in slots:
                now[slot] = None

        self._act(-1, drop)

    def _act(self, number: int, action: Action) -> None:
        self._flush()
        self._actions.append((number, action))

    def _flush(self) -> None:
        """Ends a row of calls that nothing interrupts."""
        if not self._pending:
            return
        calls = self._calls[self._by]
        run, points, point = calls.sequence(self._pending), tuple(self._points), calls.point

        def segment(now: Values) -> None:
            for call, position, read in points:
                point(call, position, read(now))
            run()

        self._actions.append((self._segment_of, segment if points else lambda now: run()))
        self._pending, self._points = [], []


def _getter(slot: int, found: Callable[[Array], Array] | None) -> Get:
    return (lambda now: now[slot]) if found is None else (lambda now: found(now[slot]))


def _native(step: Step, task: Task) -> bool:
    """Whether a backend's kernel computes a task."""
    if (
        step.stage == "store"
        or not step.kernel.backend
        or len(task.outs) != 1
        or any(read.partial for read in task.reads)
    ):
        return False
    return bool(task.out.size) and all(read.box.size for read in task.reads)


def _bounds(boxes: Sequence[Box]) -> Box:
    """The least box that holds all of them."""
    start = [min(box.start[k] for box in boxes) for k in range(boxes[0].rank)]
    stop = [max(box.stop[k] for box in boxes) for k in range(boxes[0].rank)]
    return Box.between(start, stop)


def _row_major(block: Block) -> Block:
    if isinstance(block, dict):
        return {name: np.ascontiguousarray(array) if array.ndim else array for name, array in block.items()}
    return block if block.flags.c_contiguous else np.ascontiguousarray(block)


HEAVY = frozenset(("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "gelu", "divide"))
HEAVY_POINTS = 8
"""Operators that take as long as so many additions of an element, which wait for memory."""


def _is_small(operation: Operation, index: Box) -> bool:
    """Whether one thread computes a shard sooner than several: by its products, or by its elements."""
    given = dict(operation.parameters)
    if "dilation" in given and operation.signature is not None:
        return dict(operation.signature.costs).get("flops", 2.0) / 2 * index.size < SMALL_CONTRACTION
    if "equation" in given:
        return index.size < SMALL_CONTRACTION
    whole = max(tensor.type.box.size for tensor in (*(x for _, x in operation.inputs), Tensor(operation)))
    share = index.size / max(operation.index.size, 1)
    steps: Sequence[tuple[Any, ...]] = operation.parameter("program") if "program" in given else ()
    names = [step[0] for step in steps] or [operation.operator]
    heavy = HEAVY_POINTS if not HEAVY.isdisjoint(names) else 1
    return whole * share * heavy < SMALL
