"""The same plan on a Ray cluster.

Kernels run in Ray workers and blocks stay in Ray's object store. Files that every node sees are read and written by the
workers; arrays of this process, and files that only it sees, by this process. A sink appears whole or not at all, as it
does locally: this process creates it under a temporary name and renames it at the end. One Ray task is a unit: tasks of
one machine in a row (`units`). What a killed worker or machine loses is computed again, by Ray, since every unit is a
function of its inputs. A machine of the plan is a node while that node lives; after that, any node.

Source: own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tileweave.errors import RunError
from tileweave.graph import FileTarget, TensorType
from tileweave.lower.reads import Block, Taken
from tileweave.planner import Plan, ReadPiece, Task
from tileweave.planner.costs import OBJECT_BYTES
from tileweave.runtime.events import Event, Progress, Retry
from tileweave.runtime.io import files as io
from tileweave.runtime.io.sinks import Handle
from tileweave.runtime.local import Destination, ReadSource, TaskFailed, storing
from tileweave.runtime.prepare import Prepared
from tileweave.runtime.ray.held import HeldSink, HeldSource
from tileweave.runtime.ray.session import RaySession, close, connect, load, watch
from tileweave.runtime.ray.units import Unit, left_bytes, units
from tileweave.runtime.ray.worker import (
    FileRegion,
    KernelFailed,
    Note,
    Timed,
    WorkerTable,
    alone,
    by_value,
    foreign_operators,
    work,
)
from tileweave.space import Box

Array = np.ndarray[Any, Any]

WINDOW = 4
"""Units in flight per core."""
MAX_RETRIES = 8
"""How often Ray computes a lost task again before the run fails."""
WAIT_SECONDS = 1.0
"""How long the driver waits for a unit before it looks whether the cluster still answers."""
LOST_SECONDS = 4.0
"""A control service that has not answered for so long is gone. Ray itself would end this process after a minute."""
NODELESS_SECONDS = 60.0
"""How long a cluster may have no node that is able to compute a unit: one may come."""


# ---------------------------------------------------------------------------------------------------------------------
# the run


OWNED = Handle("raw", "", "", TensorType((), np.dtype("bool")))
"""A sink that the driver alone may write."""


def keeps_to(box: Box, atom: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a box has every chunk that it touches for itself."""
    edges = zip(box.start, box.stop, atom, shape, strict=True)
    return all(a % c == 0 and (b % c == 0 or b == n) for a, b, c, n in edges)


def visible(session: RaySession, paths: Collection[str]) -> set[str]:
    """The files that every node of a cluster sees as this process does; URLs are the same everywhere."""
    urls = {path for path in paths if "://" in path}
    mine = {path: stamp(path) for path in paths if path not in urls}
    if session.one_host or not mine:
        return set(paths)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = load()
    remote = ray.remote(stamps)
    asked = [
        remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(list(mine))
        for node in session.nodes
    ]
    try:
        answers = ray.get(asked, timeout=STAMP_SECONDS)
    except ray.exceptions.RayError:
        return urls  # a node is gone, or does not answer: the driver reads and writes
    return urls | {path for k, path in enumerate(mine) if all(answer[k] == mine[path] for answer in answers)}


def _absolute(path: str) -> str:
    """A path as processes with another working directory find it."""
    return path if "://" in path else str(Path(path).absolute())


def stamps(paths: Sequence[str]) -> list[tuple[int, ...] | None]:
    """What tells files apart, as this host sees them."""
    return [stamp(path) for path in paths]


def stamp(path: str) -> tuple[int, ...] | None:
    """What tells a file apart from others; None where there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


STAMP_SECONDS = 10.0
"""How long nodes may take to say which files they see."""


Engine = Callable[[Sequence[ReadSource], Sequence[Destination], Sequence[Collection[Box]]], "ClusterRun"]
"""(what reads the sources, where values of the sinks go, which parts of these are there already) -> the run."""


def engine(plan: Plan, prepared: Prepared, threads: int | None, address: str | None) -> Engine:
    """What makes a run on the cluster; connecting comes first, so that a cluster that is missing is an error.

    Raises:
        RunError: Ray is missing, or no cluster answers.
    """
    load()
    targets = [sink.target for sink in prepared.sinks]
    folders = sorted({str(io.folder_of(target)) for target in targets if isinstance(target, FileTarget)})
    watch(folders=folders)  # this process may be killed while it connects
    session = connect(threads, address)
    watch(folders=folders)

    return partial(ClusterRun, plan, prepared, session)


@contextmanager
def _ends_with(session: RaySession) -> Iterator[None]:
    """Where a run does not end well, no process of a cluster of our own stays that is gone, or that nobody will use."""
    try:
        yield
    except BaseException as error:
        if session.own and (isinstance(error, KeyboardInterrupt | SystemExit) or not session.answers()):
            close()
        raise


@lru_cache(maxsize=1)
def _remote_work(session: RaySession) -> Any:
    """What a unit is for Ray, sent to the cluster once per session: sending it waits for the control service."""
    return load().remote(work)


class ClusterRun:
    """One run, driven by the thread that asked for it.

    A run that fails lets the few units of its window end unseen: in Ray 2.60, a task that ends while it is being
    cancelled aborts this process.

    Attributes:
        prepared: the tasks that it runs: the plan's, or with margins, or what is left of either.
    """

    def __init__(
        self,
        plan: Plan,
        prepared: Prepared,
        session: RaySession,
        sources: Sequence[ReadSource],
        destinations: Sequence[Destination],
        finished: Sequence[Collection[Box]],
    ) -> None:
        self.ray = load()
        self.plan, self.prepared, self.session = plan, prepared, session
        self.sources, self.destinations = sources, destinations
        self.notify: Callable[[Event], None] | None = None
        self.limits = [machine.memory_bytes for machine in plan.machines.machines]
        with _ends_with(session):
            self.targets, self.readable = self._shared_files()
            self.prepared, self.units = self._units(frozenset(self.targets), finished)
            self._check_feasible()
            self.table = self._table()
        self.values: dict[tuple[int, Any], Any] = {}  # (task, k) or (-1 - source, region) -> reference or array
        self.uses = Counter(a for unit in self.units for a in unit.arguments if a[0] < 0)
        self.readers = Counter(task for unit in self.units for task in unit.releases)
        self.left: dict[int, tuple[int, int]] = {}  # task -> (machine, bytes that it left)
        self.flying: dict[Any, int] = {}  # note reference -> number of the unit
        self.waiting: list[int] = []  # stores whose inputs are not there yet
        self.done = [False] * len(self.units)
        self.tasks_done = 0
        self.begin = time.time()
        self.cores = max(map(self._threads, self.units), default=1)
        self.looked = self.answered = time.monotonic()  # when the cluster was asked, and when it answered
        self.nodeless: float | None = None  # since when it has had no node that can compute
        self.promised = [0] * len(self.limits)
        self.held = list(self.promised)
        self.peaks = list(self.promised)

    def _shared_files(self) -> tuple[dict[int, Handle], frozenset[int]]:
        """(step -> where workers store it, numbers of the sources that workers read): files that every node sees."""
        handles: dict[int, Handle] = {}
        for task in self.prepared.tasks:
            number = self.prepared.sink(task)
            if number < 0:
                continue
            handle = getattr(self.destinations[number], "handle", None)
            atom = io.atom(self.prepared.sinks[number])
            if handle is not None and (atom is None or keeps_to(task.out, atom, handle.type.shape)):
                handles.setdefault(task.step, handle)
            else:  # two workers must not write one chunk
                handles[task.step] = OWNED
        handles = {step: handle for step, handle in handles.items() if handle is not OWNED}
        sources = {
            number: source
            for number, source in enumerate(self.sources)
            if isinstance(source, io.FileSource) and source.everywhere
        }
        if self.plan.machines.storage == "private" and not self.session.one_host:
            return {}, frozenset()
        paths = {handle.path for handle in handles.values()} | {_absolute(one.data.path) for one in sources.values()}
        seen = visible(self.session, paths)
        return (
            {step: handle for step, handle in handles.items() if handle.path in seen},
            frozenset(number for number, source in sources.items() if _absolute(source.data.path) in seen),
        )

    def _units(self, stored: frozenset[int], finished: Sequence[Collection[Box]]) -> tuple[Prepared, tuple[Unit, ...]]:
        if any(finished):
            return units(self.prepared, self.limits, stored, finished)
        kept = self.prepared.extra.setdefault("units", {})
        if stored not in kept:
            kept[stored] = units(self.prepared, self.limits, stored)
        found: tuple[Prepared, tuple[Unit, ...]] = kept[stored]
        return found

    def _check_feasible(self) -> None:
        """What no node can hold is refused before work starts: Ray would wait for it without end."""
        largest = max((unit.out_bytes for unit in self.units), default=0)
        room = min(node.store_bytes for node in self.session.nodes)
        if room and largest > room:
            raise RunError(
                "run(plan, runtime='ray')",
                f"a unit of the plan leaves {largest} bytes, and a node's object store holds {room}",
                legal="a plan for machines of less memory, or nodes with a larger store",
            )

    def _table(self) -> Any:
        """A reference to the units' work in the object store, kept with the plan while the session lasts."""
        kept = self.prepared.extra.get("table")
        if kept is not None and kept[0] is self.session and kept[2] is self.units:
            return kept[1]
        operators = foreign_operators(self.prepared)
        table = WorkerTable(
            tuple(None if unit.stores else unit for unit in self.units),
            tuple(map(self._threads, self.units)),
            tuple(map(alone, self.prepared.steps)),
            operators,
        )
        with by_value(self.ray.cloudpickle, operators):
            reference = self.ray.put(table)
        self.prepared.extra["table"] = (self.session, reference, self.units)
        return reference

    def _threads(self, unit: Unit) -> int:
        if self.session.own:
            return max(1, self.session.cores // self._width(unit))
        least = min(node.cores for node in self.session.nodes)  # a unit must fit any node that is left
        return max(1, min(self.plan.machines.machines[unit.machine].cores, least))

    def _width(self, unit: Unit) -> int:
        """How many units like it may run at once."""
        return max(self.prepared.width(task.step) for task in unit.tasks)

    def run(self, notify: Callable[[Event], None] | None) -> tuple[int, ...]:
        """Does it, and tells of it; the most bytes that each machine held."""
        self.notify, self.begin = notify, time.time()
        with _ends_with(self.session):
            return self._run()

    def _run(self) -> tuple[int, ...]:
        """Submits in order, within the window and the machines' memory, until everything is done."""
        window = WINDOW * self.session.cores
        head = done = 0
        while done < len(self.units):
            while head < len(self.units) and self._may_start(self.units[head], window):
                self._start(head)
                head += 1
            ready = [number for number in self.waiting if self._is_ready(self.units[number])]
            for number in ready:
                self.waiting.remove(number)
                self._store(number)
            if self.flying and not ready:
                self._finish_one()
                done += 1
            done += len(ready)
        return tuple(self.peaks)

    def _is_ready(self, unit: Unit) -> bool:
        return all(self.done[number] for number in unit.needs)

    def _may_start(self, unit: Unit, window: int) -> bool:
        flying = len(self.flying) + len(self.waiting)
        if not flying:
            return True
        room = self.promised[unit.machine] + unit.need_bytes <= self.limits[unit.machine]
        strict = any(task.after for task in unit.tasks)  # an order that Ray could not see
        return flying < window and room and (not strict or self._is_ready(unit))

    def _start(self, number: int) -> None:
        unit = self.units[number]
        self.promised[unit.machine] += unit.need_bytes
        if unit.stores:
            self.waiting.append(number)
            return
        results = unit.results
        remote = self._remote(unit, 1 + len(results))
        targets = {task.step: self.targets[task.step] for task in unit.tasks if task.step in self.targets}
        node = self.session.node(unit.machine).id
        references = remote.remote(
            [self.table], number, targets, *(self._argument(where, node) for where in unit.arguments)
        )
        note, *given = references if results else [references]
        self.values.update(zip(results, given, strict=True))
        self.flying[note] = number

    def _remote(self, unit: Unit, count: int) -> Any:
        known = self.prepared.extra.setdefault("remote", {})
        key = (self.session, unit.machine, count, self._width(unit))
        if key not in known:
            options: dict[str, Any] = {"num_returns": count, "max_retries": MAX_RETRIES}
            options["num_cpus"] = self._threads(unit)
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            node = self.session.node(unit.machine).id
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
            known[key] = _remote_work(self.session).options(**options)
        return known[key]

    def _argument(self, where: tuple[int, Any], node: str) -> Any:
        """A value that a unit on a node reads, or a reference to it."""
        number = -1 - where[0]
        if number >= 0 and isinstance(self.sources[number], HeldSource):
            return cast("HeldSource", self.sources[number]).reference(where[1], node)
        if number in self.readable:
            source = cast("io.FileSource", self.sources[number])
            return FileRegion(replace(source.data, path=_absolute(source.data.path)), source.type, where[1])
        if where not in self.values:
            region = self.sources[number](where[1])
            small = region.nbytes <= OBJECT_BYTES
            # what is not contiguous would be written out and copied twice on its way
            self.values[where] = np.array(region) if small else self.ray.put(np.ascontiguousarray(region))
        value = self.values[where]
        if where[0] < 0:
            self.uses[where] -= 1
            if not self.uses[where]:
                del self.values[where]
        return value

    def _next(self) -> Any:
        """The note of a unit that is done."""
        return self._first(list(self.flying))

    def _first(self, references: Sequence[Any]) -> Any:
        """The first that is there.

        Raises:
            RunError: the cluster does not answer any more, or has no node that computes.
        """
        while True:
            ready, _ = self.ray.wait(references, num_returns=1, timeout=WAIT_SECONDS)
            now = time.monotonic()
            if now - self.looked >= WAIT_SECONDS:
                self._look(now)
            if ready:
                return ready[0]

    def _look(self, now: float) -> None:
        """Looks whether the cluster still answers and computes."""
        self.looked, where = now, ":".join(map(str, self.session.control))
        self.answered = now if self.session.answers() else self.answered
        patience = 0.0 if self.session.own else LOST_SECONDS  # that a process of ours has ended is certain
        if now - self.answered > patience:
            raise RunError("run(plan, runtime='ray')", f"the cluster at {where} is gone; no sink was written")
        if self.answered < now or self.session.own or self.session.has_cores(self.cores):
            self.nodeless = None
        elif self.nodeless is None:
            self.nodeless = now
        elif now - self.nodeless > NODELESS_SECONDS:
            problem = f"the cluster at {where} has no node of {self.cores} cores any more; no sink was written"
            raise RunError("run(plan, runtime='ray')", problem, legal="a cluster with a node that lives")

    def _finish_one(self) -> None:
        note = self._next()
        number = self.flying.pop(note)
        unit = self.units[number]
        try:
            said: Note = self.ray.get(note)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, KernelFailed):
                # that of another unit where an argument could not be computed
                raise TaskFailed(self.prepared.tasks[cause.number]) from cause.cause_of_it
            raise TaskFailed(unit.tasks[0]) from (cause if isinstance(cause, Exception) else error)
        except self.ray.exceptions.RayError as error:
            raise TaskFailed(unit.tasks[0]) from error
        if said.attempts > 1 and self.notify is not None:
            first = unit.tasks[0]
            self.notify(Retry(first.step, first.shard, first.machine, said.attempts))
        self._finish(number, said.peak_bytes, said.times, said.worker)

    def _store(self, number: int) -> None:
        unit = self.units[number]
        (task,) = unit.tasks
        destination, node = self.destinations[self.prepared.sink(task)], self.session.node(unit.machine).id
        if isinstance(destination, HeldSink):
            destination.keep(task, node, [self._argument(where, node) for where in unit.arguments])
            self._finish(number, 0, [(time.time(), time.time(), _taken(unit, task))])
            return
        arrays: dict[int, Block] = {}

        def held(piece: ReadPiece) -> Block | None:
            if piece.constant:
                return None
            if piece.task not in arrays:
                where = unit.arguments[piece.task - len(unit.tasks)]
                if -1 - where[0] in self.readable:
                    return self.sources[-1 - where[0]](where[1])
                value = self._argument(where, node)
                arrays[piece.task] = value if isinstance(value, np.ndarray) else self.ray.get(self._first([value]))
            return arrays[piece.task]

        began, taken = time.time(), Taken()
        counted = taken.counting(held, task.machine, unit.machine_of)
        try:
            used = storing(task)(counted, destination)
        except Exception as error:
            raise TaskFailed(task) from error
        self._finish(number, used, [(began, time.time(), taken)])

    def _finish(self, number: int, most: int, times: Sequence[Timed], worker: int = 0) -> None:
        unit, machine = self.units[number], self.units[number].machine
        self.peaks[machine] = max(self.peaks[machine], self.held[machine] + most)
        self.promised[machine] -= unit.need_bytes
        for task, gives in zip(unit.tasks, unit.gives, strict=True):
            size_bytes = left_bytes(self.prepared, task, gives)
            if size_bytes:
                self.left[task.number] = machine, size_bytes
                self.promised[machine] += size_bytes
                self.held[machine] += size_bytes
        for released in unit.releases:
            self.readers[released] -= 1
            if not self.readers[released]:
                self._free(released)
        self.done[number] = True
        for task, (began, ended, taken) in zip(unit.tasks, times, strict=True):
            self.tasks_done += 1
            if task.step in self.targets:
                self.destinations[self.prepared.sink(task)].finished(task.index)
            if self.notify is not None:
                about = task.step, task.shard, machine, self.tasks_done, len(self.prepared.tasks)
                span = began - self.begin, ended - self.begin
                self.notify(Progress(*about, *span, worker, taken.read, taken.moved))

    def _free(self, task: int) -> None:
        machine, size_bytes = self.left.pop(task, (0, 0))
        self.promised[machine] -= size_bytes
        self.held[machine] -= size_bytes
        k = 0
        while self.values.pop((task, k), None) is not None or k == 0:
            k += 1


def _taken(unit: Unit, task: Task) -> Taken:
    """What a task takes from elsewhere that stores on a node: this process sees none of the arrays."""
    (read,), out = task.reads, Taken()
    for piece in read.pieces:
        maker = unit.machine if piece.constant else unit.machine_of(piece)
        out.read += read.dtype.itemsize * piece.region.size * (maker < 0)
        out.moved += read.dtype.itemsize * piece.points * (maker not in (-1, unit.machine))
    return out
