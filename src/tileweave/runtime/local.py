"""The default runtime: threads of this process.

Tasks are issued strictly in the plan's order, each as soon as its inputs are there and its machine has room. When
nothing runs, the next task always fits, since the plan's own order is what its peak memory was counted on; so the
planned peak holds and no run can stand still. The thread that asks works too: a plan for one machine needs no other.

Source: own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tileweave import lower
from tileweave.graph import Operation
from tileweave.lower.reads import Block, Part, assemble, block_bytes, own, values
from tileweave.runtime.events import Event, Progress
from tileweave.runtime.prepare import Job, Prepared
from tileweave.space import Box

__all__ = ["Destination", "ReadSource", "run_local", "store"]

Array = np.ndarray[Any, Any]
ReadSource = Callable[[Box], Array]
"""The values of a region of a source; not to be written."""


class Destination(Protocol):
    """Where a sink's values go."""

    whole_blocks: bool

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""

    def take(self, block: Array) -> None:
        """Stores all values at once, by becoming the block."""


class TaskFailed(Exception):
    """A kernel raised; `__cause__` says what."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.job = job


def run_local(
    prepared: Prepared,
    sources: Sequence[ReadSource],
    destinations: Sequence[Destination],
    notify: Callable[[Event], None] | None,
    threads: int,
) -> tuple[int, ...]:
    """Runs every job; returns the measured peak of bytes held per machine.

    Args:
        prepared: the plan.
        sources: in the order of `prepared.sources`.
        destinations: in the order of `prepared.sinks`.
        notify: takes events, or None where nobody listens.
        threads: how many may compute at once.

    Raises:
        TaskFailed: a task raised; nothing runs any more.
    """
    width = max((job.width for job in prepared.jobs), default=1)
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
        self.jobs = prepared.jobs
        self.limits = prepared.peak_bytes
        self.sources, self.destinations, self.notify, self.threads = sources, destinations, notify, threads
        self.turn = threading.Condition()
        self.head = self.done_count = self.running = 0
        self.error: BaseException | None = None
        self.done = [False] * len(self.jobs)
        self.to_come = Counter(job.step for job in self.jobs)  # jobs of each step that are not done
        self.blocks: list[Block | None] = [None] * len(self.jobs)
        self.left = [job.readers for job in self.jobs]
        self.promised = [0] * len(self.limits)  # planned bytes of blocks that are held and of tasks that run
        self.held = list(self.promised)  # measured
        self.peaks = list(self.promised)

    def work(self) -> None:
        """Takes jobs until there is none or the run stops."""
        with np.errstate(all="ignore"):  # what NumPy would warn of is part of the values
            while (job := self._take()) is not None:
                try:
                    self._do(job)
                except Exception as error:
                    failed = TaskFailed(job)
                    failed.__cause__ = error
                    self.stop(failed)
                except BaseException as error:
                    self.stop(error)

    def stop(self, error: BaseException) -> None:
        """No further job starts."""
        with self.turn:
            self.error = self.error or error
            self.turn.notify_all()

    def _take(self) -> Job | None:
        with self.turn:
            while True:
                if self.error is not None or self.head == len(self.jobs):
                    return None
                job = self.jobs[self.head]
                if self._may_start(job):
                    self.head += 1
                    self.running += 1
                    self.promised[job.machine] += job.need_bytes
                    return job
                self.turn.wait()

    def _may_start(self, job: Job) -> bool:
        if not self.running:
            return True
        room = self.promised[job.machine] + job.need_bytes <= self.limits[job.machine]
        if not room or any(self.to_come[step] for step in job.after):
            return False
        return all(self.done[number] for number in job.needs)

    def _holds(self, part: Part) -> Block | None:
        if part.task >= 0:
            return self.blocks[part.task]
        return self.sources[part.source](part.hold) if part.source >= 0 else None

    def _do(self, job: Job) -> None:
        node, threads = job.node, max(1, self.threads // job.width)
        if not isinstance(node, Operation):
            used = store(job, self._holds, self.destinations[job.sink], threads)
            self._hold(job.machine, used)
            self._finish(job, None, used)
            return
        inputs, used = {}, 0
        for fetch in job.fetches:
            inputs[fetch.name], fresh = assemble(fetch, self._holds, threads)
            used += fresh
        self._hold(job.machine, used)
        made = lower.execute(node, job.stage, job.index, inputs, threads=threads, decision=job.decision)
        block = own(made, [name for name, _, _ in job.outs], inputs)
        self._hold(job.machine, block_bytes(block))
        self._finish(job, block, used)

    def _hold(self, machine: int, size_bytes: int) -> None:
        if size_bytes:
            with self.turn:
                self.held[machine] += size_bytes
                self.peaks[machine] = max(self.peaks[machine], self.held[machine])

    def _finish(self, job: Job, block: Block | None, used: int) -> None:
        with self.turn:
            self.promised[job.machine] -= job.need_bytes
            self.held[job.machine] -= used
            if block is not None and job.readers:
                self.blocks[job.number] = block
                self.promised[job.machine] += job.out_bytes
            elif block is not None:
                self.held[job.machine] -= block_bytes(block)
            for number in job.releases:
                self._release(number)
            self.done[job.number] = True
            self.to_come[job.step] -= 1
            self.done_count += 1
            self.running -= 1
            if self.notify is not None:
                self.notify(Progress(job.step, job.shard, job.machine, self.done_count, len(self.jobs)))
            self.turn.notify_all()

    def _release(self, number: int) -> None:
        self.left[number] -= 1
        block = self.blocks[number]
        if not self.left[number] and block is not None:
            owner = self.jobs[number]
            self.promised[owner.machine] -= owner.out_bytes
            self.held[owner.machine] -= block_bytes(block)
            self.blocks[number] = None


def store(job: Job, holds: Callable[[Part], Block | None], destination: Destination, threads: int = 1) -> int:
    """Stores what a job reads; returns the bytes that were newly made for it."""
    (fetch,) = job.fetches
    block = holds(fetch.parts[0]) if job.hand_over else None
    if isinstance(block, np.ndarray) and block.flags.writeable:
        destination.take(block)
        return 0
    if destination.whole_blocks and len(fetch.parts) > 1:
        array, fresh = assemble(fetch, holds, threads)
        destination.write(job.index, array)
        return fresh
    for part in fetch.parts:
        destination.write(part.box, values(part, holds(part)))
    return 0
