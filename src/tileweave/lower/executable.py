"""One machine's work as one executable: what a run needs is decided before it, and kept between runs.

Results in between lie in one arena, where those that are never alive together share bytes. Kernels of a backend are
bound to their arrays, and run one after the other without Python between them; only what has no kernel, a read that
has to be put together, and arrays that change from run to run interrupt that.

The layout of every array is known beforehand: sources have the strides of the samples, everything else is row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tileweave.backends.base import Calls, Decision, backend
from tileweave.backends.host import LINE_BYTES, allocation, empty
from tileweave.graph import Operation, TensorType
from tileweave.graph.ir.resolve import view
from tileweave.lower.execute import copy, execute, kernel_of, regular
from tileweave.lower.programs import in_order
from tileweave.lower.reads import Block, Fetch, Part, block_bytes, own, values
from tileweave.space import Box

__all__ = ["Executable", "Store", "Work", "WorkFailed", "place_in_time"]

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
    """A kernel raised; `__cause__` says what."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Work:
    """One operation on its whole index, or on what this machine has of it.

    Args:
        number: by which reads of others name its block.
        operation: the whole operation.
        stage: block, partial or combine.
        index: the block of the index.
        fetches: what it reads.
        kinds: name and type of each output that it keeps.
        decision: what computes it.
    """

    number: int
    operation: Operation
    stage: str
    index: Box
    fetches: tuple[Fetch, ...]
    kinds: tuple[tuple[str, TensorType], ...]
    decision: Decision


@dataclass(frozen=True, slots=True)
class Store:
    """A read that is stored into a result.

    Args:
        number: for errors.
        sink: number of the result.
        fetch: what is read.
        becomes: whether the one block that it reads may become the result.
    """

    number: int
    sink: int
    fetch: Fetch
    becomes: bool


def place_in_time(buffers: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where buffers lie that share memory over time: (the first byte of each, bytes in all).

    Args:
        buffers: (bytes, first step, last step) of each; those whose steps meet lie apart. Large ones are placed first,
            each at the lowest place that is free for its steps.

    Example:
        >>> place_in_time([(100, 0, 1), (100, 1, 2), (64, 2, 3)])
        ([0, 128, 0], 256)
    """
    placed: list[tuple[int, int, int, int]] = []  # (start, end, first, last)
    starts = [0] * len(buffers)
    for number in sorted(range(len(buffers)), key=lambda k: (-buffers[k][0], k)):
        size, first, last = buffers[number]
        size = -(-max(size, 1) // LINE_BYTES) * LINE_BYTES
        at = 0
        for start, end in sorted((p[0], p[1]) for p in placed if p[2] <= last and first <= p[3]):
            if start - at >= size:
                break
            at = max(at, end)
        starts[number] = at
        placed.append((at, at + size, first, last))
    return starts, max((end for _, end, _, _ in placed), default=0)


class Executable:
    """Work made ready for sources of some strides; `run` it any number of times, one run at a time.

    Args:
        steps: works and stores, in the order in which they run.
        sources: an array per source: the constant ones themselves, samples of the others.
        constant: whether a source is the same array in every run.
        sinks: the type of each result.
        threads: that kernels may use.
    """

    def __init__(
        self,
        steps: Sequence[Work | Store],
        sources: Sequence[Array],
        constant: Sequence[bool],
        sinks: Sequence[TensorType],
        threads: int,
    ) -> None:
        self._threads = threads
        self._sources = list(sources)
        self._constant = list(constant)
        self._count = len(sources)
        self._numbers = {step.number: k for k, step in enumerate(steps)}
        self._works = {step.number: step for step in steps if isinstance(step, Work)}
        self._new = [allocation(kind.shape, kind.dtype) for kind in sinks]
        self._result_of = _results(steps)
        self._actions: list[tuple[int, Action]] = []
        self._pending: list[int] = []
        self._points: list[tuple[int, int, Get]] = []
        self._calls: dict[str, Calls] = {}
        self._by = ""
        self._kept: list[Array] = []
        self._segment_of = -1
        self.python_steps = 0
        self.kernels = 0
        self._static: dict[int, Any] = {}  # arrays, or blocks of several outputs
        self._buffers: dict[tuple[int, int], Array] = {}
        self._fixed = self._fixed_works(steps)
        self.arena_bytes = self._lay_out(steps)
        self._last = _last_reads(steps)
        for step in steps:
            if isinstance(step, Store):
                self._store(step)
            elif step.number in self._fixed:
                self._fix(step)
            else:
                self._work(step)
            self._drop(step)
        self._flush()

    # ---- running ------------------------------------------------------------------------------------------------

    def run(self, sources: Sequence[Array | None], out: Sequence[Array | None]) -> list[Array]:
        """The results, for these sources; those that are constant may be None.

        Args:
            sources: of the samples' types, shapes and strides.
            out: row-major arrays to write results to, apart from all sources; None: new ones.

        Raises:
            WorkFailed: a step raised.
        """
        held: Values = [*sources, *[None] * len(self._numbers), None]
        results = [new() if given is None else given for new, given in zip(self._new, out, strict=True)]
        held[-1] = results
        for number, sink in self._result_of.items():
            held[self._slot(number)] = results[sink]
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
            raise WorkFailed(at) from error

    # ---- the arena ----------------------------------------------------------------------------------------------

    def _fixed_works(self, steps: Sequence[Work | Store]) -> frozenset[int]:
        """Works that depend on constants alone, other than those that make a result: done once, here.

        A source is constant where nothing is bound to it and its array is read-only, as the weights of a model are.
        """
        fixed: set[int] = set()
        made = {step.fetch.parts[0].task for step in steps if isinstance(step, Store) and step.becomes}

        def stays(part: Part) -> bool:
            if part.source >= 0:
                return self._constant[part.source] and not self._sources[part.source].flags.writeable
            return part.task < 0 or part.task in fixed

        for step in steps:
            if not isinstance(step, Work) or step.number in made:
                continue
            read = sum(_bytes(fetch.shape, fetch.dtype) for fetch in step.fetches)
            kept = sum(_bytes(kind.shape, kind.dtype) for _, kind in step.kinds)
            if kept <= max(read, FIXED_BYTES) and all(stays(part) for fetch in step.fetches for part in fetch.parts):
                fixed.add(step.number)
        return frozenset(fixed)

    def _fix(self, step: Work) -> None:
        """The block of a work that is done once.

        Raises:
            WorkFailed: its operator raised.
        """
        given: dict[str, Array] = {}
        for fetch in step.fetches:
            parts = [np.asarray(self._read(part)) for part in fetch.parts]  # all of them are arrays here
            whole = parts[0] if len(parts) == 1 else np.empty(fetch.shape, fetch.dtype)
            if len(parts) > 1:
                for part, piece in zip(fetch.parts, parts, strict=True):
                    whole[part.place] = piece
            given[fetch.name] = whole
        try:
            made = execute(step.operation, step.stage, step.index, given, decision=step.decision)
        except Exception as error:
            raise WorkFailed(step.number) from error
        block = _dense(own(made, [name for name, _ in step.kinds], given))
        self._static[self._slot(step.number)] = block
        self.arena_bytes += block_bytes(block)

    def _lay_out(self, steps: Sequence[Work | Store]) -> int:
        last = _last_reads(steps)
        wanted: list[tuple[tuple[int, int], tuple[int, ...], np.dtype[Any], int, int]] = []
        for at, step in enumerate(steps):
            if step.number in self._fixed:
                continue
            fetches = (step.fetch,) if isinstance(step, Store) else step.fetches
            if isinstance(step, Work):
                for k, fetch in enumerate(fetches):
                    if len(fetch.parts) != 1:
                        wanted.append(((step.number, k), fetch.shape, fetch.dtype, at, at))
                if _native(step) and step.number not in self._result_of:
                    kind = step.kinds[0][1]
                    wanted.append(((step.number, -1), kind.shape, kind.dtype, at, last.get(step.number, at)))
        sizes = [(int(np.prod(shape, dtype=object)) * dtype.itemsize, a, b) for _, shape, dtype, a, b in wanted]
        starts, total = place_in_time(sizes)
        if total:
            memory = empty((max(total, 1 << 16),), np.uint8)
            for (key, shape, dtype, _, _), start in zip(wanted, starts, strict=True):
                self._buffers[key] = np.ndarray(shape, dtype, memory, start)
        for (number, which), array in self._buffers.items():
            if which < 0:
                self._static[self._slot(number)] = array
        for k in range(self._count):
            if self._constant[k]:
                self._static[k] = self._sources[k]
        return total

    def _slot(self, number: int) -> int:
        return self._count + self._numbers[number]

    # ---- reads --------------------------------------------------------------------------------------------------

    def _read(self, part: Part) -> Array | Get:
        """A part as an array that is always there, or as a function of the values of a run."""
        if part.task < 0 and part.source < 0:
            return values(part, None)
        slot = part.source if part.source >= 0 else self._slot(part.task)
        held = self._static.get(slot)
        index, output = part.index, part.output
        if part.source >= 0 and index is not None:  # sources are held whole here
            index = _within(part)
        if held is not None:
            return _taken(part, held, index)
        if index == (...,):
            return (lambda now: now[slot][output]) if output else (lambda now: now[slot])
        if index is not None and not output:
            return lambda now: now[slot][index]
        return lambda now: _taken(part, now[slot], index)

    def _input(self, step: Work, k: int) -> Array | Get:
        """An input of a step; what has parts is put together first."""
        fetch = step.fetches[k]
        if len(fetch.parts) == 1:
            return self._read(fetch.parts[0])
        whole = self._buffers[step.number, k]
        for part in fetch.parts:
            self._copy(step.number, whole[part.place], self._read(part))
        return whole

    def _copy(self, number: int, target: Array, source: Array | Get) -> None:
        if callable(source):
            self._act(number, lambda now: copy(target, source(now), threads=self._threads))
        else:
            ready = partial(copy, target, source, threads=self._threads)
            self._act(number, lambda now: ready())

    # ---- steps --------------------------------------------------------------------------------------------------

    def _work(self, step: Work) -> None:
        inputs = [self._input(step, k) for k in range(len(step.fetches))]
        if _native(step) and self._bind(step, inputs):
            return
        names = [fetch.name for fetch in step.fetches]
        slot, kept = self._slot(step.number), [name for name, _ in step.kinds]
        target = self._static.get(slot)
        threads = self._threads

        def compute(now: Values) -> None:
            given = {name: read(now) if callable(read) else read for name, read in zip(names, inputs, strict=True)}
            made = execute(step.operation, step.stage, step.index, given, threads=threads, decision=step.decision)
            block = own(made, kept, given)
            if target is not None:
                target[...] = block
            elif isinstance(block, np.ndarray) and now[slot] is not None:
                now[slot][...] = block
            else:
                now[slot] = _dense(block)

        self.python_steps += 1
        self._act(step.number, compute)

    def _bind(self, step: Work, inputs: Sequence[Array | Get]) -> bool:
        """Adds a kernel to the calls; False where the arrays' strides allow none."""
        sample = [self._sample(step.fetches[k], read) for k, read in enumerate(inputs)]
        slot, kind = self._slot(step.number), step.kinds[0][1]
        out = self._static.get(slot)
        place: Array | Get = (lambda now: now[slot]) if out is None else out
        made = np.empty(kind.shape, kind.dtype) if out is None else out
        if not all(regular(array) is array for array in sample):
            return False
        by = step.decision.backend
        threads = 1 if _is_small(step) else self._threads
        arrays = {fetch.name: array for fetch, array in zip(step.fetches, sample, strict=True)}
        kernel = kernel_of(by, step.operation, step.stage, arrays, made, threads)
        if self._by != by:
            self._flush()
            self._by = by
        calls = self._calls.get(by) or self._calls.setdefault(by, backend(by).calls())
        named = {name: k for k, name in enumerate(arrays)}
        order = in_order(step.operation, named, -1)
        call = calls.add(kernel, [made if k < 0 else sample[k] for k in order])
        for position, read in enumerate([place if k < 0 else inputs[k] for k in order]):
            if callable(read):
                self._points.append((call, position, read))
        self._kept += [read for read in inputs if not callable(read)]
        self._pending.append(call)
        self._segment_of = step.number
        self.kernels += 1
        return True

    def _sample(self, fetch: Fetch, read: Array | Get) -> Array:
        """An array with the layout that a read will have; its elements are never touched."""
        if not callable(read):
            return read
        part = fetch.parts[0]
        if part.source >= 0:
            return _taken(part, self._sources[part.source], None if part.index is None else _within(part))
        work = self._works[part.task]
        kinds = dict(work.kinds)
        kind = kinds[part.output] if part.output else work.kinds[0][1]
        return _taken(part, np.empty(kind.shape, kind.dtype), part.index)

    def _store(self, step: Store) -> None:
        sink = step.sink
        if step.becomes:
            number = step.fetch.parts[0].task
            if number in self._result_of:
                return  # it was written there
            slot = self._slot(number)

            def take(now: Values) -> None:
                now[-1][sink] = now[slot]

            self._act(step.number, take)
            return
        for part in step.fetch.parts:
            read, place = self._read(part), part.place

            def write(now: Values, read: Array | Get = read, place: Any = place) -> None:
                copy(now[-1][sink][place], read(now) if callable(read) else read, threads=self._threads)

            self._act(step.number, write)

    def _drop(self, step: Work | Store) -> None:
        """Let go of arrays that nobody reads after a step."""
        at = self._numbers[step.number]
        gone = [self._slot(n) for n, last in self._last.items() if last == at and self._slot(n) not in self._static]
        gone = [slot for slot in gone if not _native(self._works[self._number(slot)])]
        if gone:

            def drop(now: Values) -> None:
                for slot in gone:
                    now[slot] = None

            self._act(step.number, drop)

    def _number(self, slot: int) -> int:
        return next(n for n, k in self._numbers.items() if self._count + k == slot)

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


def _bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return prod(shape) * dtype.itemsize


def _native(step: Work) -> bool:
    """Whether a backend's kernel computes a step."""
    some = all(kind.box.size for _, kind in step.kinds) and all(0 not in fetch.shape for fetch in step.fetches)
    return bool(step.decision.backend) and some and len(step.kinds) == 1


def _results(steps: Sequence[Work | Store]) -> dict[int, int]:
    """Work -> the result that it writes itself: where its block becomes one and a kernel makes it."""
    native = {step.number for step in steps if isinstance(step, Work) and _native(step)}
    found: dict[int, int] = {}
    for step in steps:
        if isinstance(step, Store) and step.becomes and step.fetch.parts[0].task in native:
            found.setdefault(step.fetch.parts[0].task, step.sink)
    return found


def _last_reads(steps: Sequence[Work | Store]) -> dict[int, int]:
    """Work -> the place of the last step that reads its block."""
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        for fetch in (step.fetch,) if isinstance(step, Store) else step.fetches:
            for part in fetch.parts:
                if part.task >= 0:
                    last[part.task] = at
    return last


def _within(part: Part) -> Any:
    """A part's index of the whole source, of which it names a region."""
    if part.map.matrix != type(part.map).identity(part.box.rank).matrix:
        return None
    region = part.box.translate(part.map.offset)
    return (*(slice(a, b) for a, b in zip(region.start, region.stop, strict=True)), ...)


def _taken(part: Part, held: Block, index: Any) -> Array:
    """The values of a part as a view of an array that is held; of a source, which is held whole."""
    array = held[part.output] if isinstance(held, dict) else held
    if index is not None:
        return np.asarray(array[index])
    return view(array, Box.of(array.shape) if part.source >= 0 else part.hold, part.map, part.box)


def _dense(block: Block) -> Block:
    if isinstance(block, dict):
        return {name: np.ascontiguousarray(array) if array.ndim else array for name, array in block.items()}
    return block if block.flags.c_contiguous else np.ascontiguousarray(block)


def _is_small(step: Work) -> bool:
    points = step.index.size
    return points < (SMALL_CONTRACTION if "equation" in dict(step.operation.parameters) else SMALL)
