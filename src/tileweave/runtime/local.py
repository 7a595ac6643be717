"""The default runtime: threads of this process.

Tasks are issued strictly in the plan's order, each as soon as its inputs are there and its machine has room. When
nothing runs, the next task always fits, since the plan's own order is what its peak memory was counted on; so the
planned peak holds and no run can stand still. The thread that asks works too: a plan for one machine needs no other.

Source: own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from tileweave.backends.host import available_threads
from tileweave.graph import Operation
from tileweave.lower.execute import ShardWork
from tileweave.lower.reads import Block, Gather, Held, Taken, block_bytes, gather, own, slices, values
from tileweave.planner import ReadPiece, Step, Task
from tileweave.planner.search.spill import copies
from tileweave.runtime.events import Event, Progress
from tileweave.runtime.io.chunks import Buffers, each, parts
from tileweave.runtime.io.scratch import Scratch
from tileweave.runtime.prepare import Prepared
from tileweave.space import Box

Array = np.ndarray[Any, Any]
ReadSource = Callable[[Box], Array]
"""The values of a region of a source; not to be written."""


class Destination(Protocol):
    """Where a sink's values go.

    `atom`: the extents of what is stored at once, as a chunk of a zarr is; empty where any box will do.
    """

    @property
    def atom(self) -> tuple[int, ...]:
        """The extents of what is stored at once."""

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""

    def take(self, block: Array) -> None:
        """Stores all values at once, by becoming the block."""

    def finished(self, box: Box) -> None:
        """Everything that one task stores has been stored."""


class StoresTask(Protocol):
    """What stores a task's values."""

    def __call__(self, holds: Held, destination: Destination, threads: int = 1, hand_over: bool = False) -> int:
        """Stores what something holds; the bytes that were newly made for it."""


class TaskFailed(Exception):
    """A kernel raised; `__cause__` says what."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


def run_local(
    prepared: Prepared,
    sources: Sequence[ReadSource],
    destinations: Sequence[Destination],
    notify: Callable[[Event], None] | None,
    threads: int,
) -> tuple[int, ...]:
    """Runs every task; returns the measured peak of bytes held per machine.

    Args:
        prepared: the plan.
        sources: in the order of `prepared.sources`.
        destinations: in the order of `prepared.sinks`.
        notify: takes events, or None where nobody listens.
        threads: how many may compute at once.

    Raises:
        TaskFailed: a task raised; nothing runs any more.
    """
    width = max(map(prepared.width, range(len(prepared.steps))), default=1)
    workers = max(1, min(threads, width))
    run = _Run(prepared, sources, destinations, notify, threads)
    with _blas_threads(max(1, threads // workers)):
        helpers = [threading.Thread(target=run.work, name=f"tileweave-{k}", daemon=True) for k in range(1, workers)]
        try:
            for helper in helpers:
                helper.start()
            run.work()
        except BaseException as error:
            run.stop(error)
            raise
        finally:
            for helper in helpers:
                if helper.ident is not None:
                    helper.join()
            if run.scratch is not None:
                run.scratch.close()
    if run.error is not None:
        raise run.error
    return tuple(run.peaks)


@lru_cache(maxsize=1)
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


@contextmanager
def _blas_threads(count: int) -> Iterator[None]:
    """NumPy's BLAS with so many threads, where it has another number now."""
    controller = _controller().select(user_api="blas")
    if all(library.num_threads == count for library in controller.lib_controllers):
        yield
        return
    with controller.limit(limits=count):
        yield


@dataclass(frozen=True, slots=True)
class _Ready:
    """A task, with its reads ready to be done.

    Args:
        task: the task.
        step: its step.
        reads: (name, what gathers it) of each input.
        stores: what stores it; None where it computes.
        sink: number of the sink that it stores into, or -1.
        hands_over: whether the block that it stores becomes the result.
        width: how many shards of its step may run at once.
        work: that of its step; stores have none.
    """

    task: Task
    step: Step
    reads: tuple[tuple[str, Gather], ...]
    stores: StoresTask | None
    sink: int
    hands_over: bool
    width: int
    work: ShardWork | None


def _ready(prepared: Prepared) -> tuple[_Ready, ...]:
    """The tasks, made ready once per plan."""
    if "ready" not in prepared.extra:
        widths = [prepared.width(number) for number in range(len(prepared.steps))]
        works = [
            ShardWork(cast("Operation", s.node), s.stage, s.kernel) if s.stage != "store" else None
            for s in prepared.steps
        ]
        prepared.extra["ready"] = tuple(
            _Ready(
                task,
                prepared.steps[task.step],
                tuple((read.name, gather(read)) for read in task.reads) if works[task.step] else (),
                None if works[task.step] else storing(task),
                prepared.sink(task),
                prepared.sink(task) >= 0 and prepared.hands_over(task),
                widths[task.step],
                works[task.step],
            )
            for task in prepared.tasks
        )
    found: tuple[_Ready, ...] = prepared.extra["ready"]
    return found


def _readers_of(prepared: Prepared) -> list[list[int]]:
    """Per task, the numbers of those that read what it makes, each as often as it does."""
    if "readers" not in prepared.extra:
        readers: list[list[int]] = [[] for _ in prepared.tasks]
        for task in prepared.tasks:
            for number in task.needs:
                readers[number].append(task.number)
        prepared.extra["readers"] = readers
    found: list[list[int]] = prepared.extra["readers"]
    return found


class _Run:
    """The state of one run; every field below `turn` is read and written under it."""

    def __init__(
        self,
        prepared: Prepared,
        sources: Sequence[ReadSource],
        destinations: Sequence[Destination],
        notify: Callable[[Event], None] | None,
        threads: int,
    ) -> None:
        self.prepared, self.ready = prepared, _ready(prepared)
        self.limits, self.need_bytes = prepared.peak_bytes, prepared.need_bytes
        self.sources = dict(zip(prepared.sources, sources, strict=True))
        self.destinations, self.notify, self.threads = destinations, notify, threads
        self.begin = time.perf_counter()
        self.workers: dict[int, int] = {}  # thread -> its number
        self.turn = threading.Condition()
        self.head = self.done_count = self.running = 0
        self.error: BaseException | None = None
        self.missing = [len(task.needs) for task in prepared.tasks]  # what a task reads that is not made yet
        self.to_come = Counter(task.step for task in prepared.tasks)  # tasks of each step that are not done
        self.blocks: list[Block | None] = [None] * len(self.ready)
        self.left = list(prepared.readers)
        self.promised = [0] * len(self.limits)  # planned bytes of blocks that are held and of tasks that run
        self.held = list(self.promised)  # measured
        self.peaks = list(self.promised)
        self.readers_of = _readers_of(prepared)
        self.scratch = Scratch(self._atoms()) if any(step.spilled for step in prepared.steps) else None

    def _atoms(self) -> dict[int, tuple[int, ...]]:
        """Per task whose block is stored from a file: the extents of what is stored at once."""
        stores = [ready for ready in self.ready if ready.sink >= 0 and self.destinations[ready.sink].atom]
        pieces = ((piece, self.destinations[r.sink].atom) for r in stores for piece in r.task.reads[0].pieces)
        return {piece.task: atom for piece, atom in pieces if piece.spilled and piece.shifts}

    def work(self) -> None:
        """Takes tasks until there is none or the run stops."""
        with np.errstate(all="ignore"):  # what NumPy would warn of is part of the values
            while (ready := self._take()) is not None:
                try:
                    self._do(ready)
                except Exception as error:
                    failed = TaskFailed(ready.task)
                    failed.__cause__ = error
                    self.stop(failed)
                except BaseException as error:
                    self.stop(error)

    def stop(self, error: BaseException) -> None:
        """No further task starts."""
        with self.turn:
            self.error = self.error or error
            self.turn.notify_all()

    def _take(self) -> _Ready | None:
        with self.turn:
            while True:
                if self.error is not None or self.head == len(self.ready):
                    return None
                ready = self.ready[self.head]
                if self._may_start(ready.task):
                    self.head += 1
                    self.running += 1
                    self.promised[ready.task.machine] += self.need_bytes[ready.task.number]
                    return ready
                self.turn.wait()

    def _may_start(self, task: Task) -> bool:
        if not self.running:
            return True
        room = self.promised[task.machine] + self.need_bytes[task.number] <= self.limits[task.machine]
        return room and not self.missing[task.number] and not any(self.to_come[step] for step in task.after)

    def _holds(self, piece: ReadPiece) -> Block | None:
        if piece.task >= 0:
            return self.scratch.read(piece) if piece.spilled and self.scratch else self.blocks[piece.task]
        return self.sources[piece.source](piece.region) if piece.source is not None else None

    def _machine_of(self, piece: ReadPiece) -> int:
        return self.ready[piece.task].task.machine if piece.task >= 0 else -1

    def _do(self, ready: _Ready) -> None:
        began, taken = time.perf_counter(), Taken()
        task, step, threads = ready.task, ready.step, max(1, self.threads // ready.width)
        holds: Held = self._holds
        if self.notify is not None:
            holds = taken.counting(holds, task.machine, self._machine_of)
        if ready.sink >= 0:
            destination, pieces = self.destinations[ready.sink], task.reads[0].pieces
            if self.scratch is not None and destination.atom and all(one.spilled and one.shifts for one in pieces):
                used = self._store_atoms(task, destination, self.scratch, taken)
            else:
                used = cast("StoresTask", ready.stores)(holds, destination, threads, ready.hands_over)
            self._hold(task.machine, used)
            self._finish(task, None, used, began, taken)
            return
        inputs, used = {}, 0
        for name, gathered in ready.reads:
            inputs[name], fresh = gathered(holds, threads)
            used += fresh
        self._hold(task.machine, used)
        node = cast("Operation", step.node)
        if step.spilled and copies(node) and self.scratch is not None:
            self.scratch.put(task.number, inputs["x"])
            self._finish(task, None, used, began, taken)
            return
        made = cast("ShardWork", ready.work)(task.index, inputs, threads)
        block = own(made, step.outputs, inputs)
        self._hold(task.machine, block_bytes(block))
        if step.spilled and self.scratch is not None:
            self.scratch.put(task.number, block)
            self._finish(task, None, used + block_bytes(block), began, taken)
        else:
            self._finish(task, block, used, began, taken)

    def _store_atoms(self, task: Task, destination: Destination, scratch: Scratch, taken: Taken) -> int:
        """Stores what waits in files, atom by atom and several at once: each is put together where it is stored.

        Returns:
            The bytes that are newly made at once.
        """
        (read,) = task.reads
        for piece in read.pieces:
            taken.read += piece.region.size * read.dtype.itemsize
            taken.moved += (self._machine_of(piece) != task.machine) * piece.region.size * read.dtype.itemsize

        buffers = Buffers()

        def one(box: Box) -> None:
            with buffers.of(box.size * read.dtype.itemsize) as buffer:
                array = buffer.view(read.dtype).reshape(box.shape)
                for piece in read.pieces:
                    common = piece.box.intersect(box)
                    if not common.empty:
                        into = array[slices(common.translate([-a for a in box.start]))]
                        scratch.fill(piece, common.translate(piece.map.offset), into)
                destination.write(box, array)

        boxes = list(parts(task.index, destination.atom))
        each(iter(boxes), one)
        destination.finished(task.index)
        return sum(sorted(box.size for box in boxes)[-available_threads() :]) * read.dtype.itemsize

    def _hold(self, machine: int, size_bytes: int) -> None:
        if size_bytes:
            with self.turn:
                self.held[machine] += size_bytes
                self.peaks[machine] = max(self.peaks[machine], self.held[machine])

    def _finish(self, task: Task, block: Block | None, used: int, began: float, taken: Taken) -> None:
        machine, number = task.machine, task.number
        with self.turn:
            self.promised[machine] -= self.need_bytes[number]
            self.held[machine] -= used
            if block is not None and self.left[number]:
                self.blocks[number] = block
                self.promised[machine] += self.prepared.out_bytes[number]
            elif block is not None:
                self.held[machine] -= block_bytes(block)
            for reader in self.readers_of[number]:
                self.missing[reader] -= 1
            for needed in task.needs:
                self._release(needed)
            self.to_come[task.step] -= 1
            self.done_count += 1
            self.running -= 1
            if self.notify is not None:
                done, count = self.done_count, len(self.ready)
                worker = self.workers.setdefault(threading.get_ident(), len(self.workers))
                span = began - self.begin, time.perf_counter() - self.begin
                about = task.step, task.shard, machine, done, count
                self.notify(Progress(*about, *span, worker, taken.read, taken.moved))
            self.turn.notify_all()

    def _release(self, number: int) -> None:
        self.left[number] -= 1
        block = self.blocks[number]
        if not self.left[number] and block is None and self.scratch is not None:
            self.scratch.drop(number)
        if not self.left[number] and block is not None:
            machine = self.ready[number].task.machine
            self.promised[machine] -= self.prepared.out_bytes[number]
            self.held[machine] -= block_bytes(block)
            self.blocks[number] = None


def storing(task: Task) -> StoresTask:
    """What stores what a task reads."""
    (read,) = task.reads
    pieces = [(piece, piece.box, values(piece, read.dtype)) for piece in read.pieces]
    gathered = gather(read) if len(pieces) > 1 else None

    def store(holds: Held, destination: Destination, threads: int = 1, hand_over: bool = False) -> int:
        block, fresh = holds(read.pieces[0]) if hand_over else None, 0
        if isinstance(block, np.ndarray) and block.flags.writeable:
            destination.take(block)
        elif destination.atom and gathered is not None:
            array, fresh = gathered(holds, threads)
            destination.write(task.index, array)
        else:
            for piece, box, take in pieces:
                destination.write(box, take(holds(piece)))
        destination.finished(task.index)
        return fresh

    return store
