"""One entry for both runtimes: what is needed is checked, work is done, sinks appear, listeners hear of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from tileweave.backends.host import available_threads, empty, frugal
from tileweave.errors import RunError
from tileweave.graph import ArrayData, FileData, FileTarget, Sink, Source
from tileweave.lower.actions import WorkFailed
from tileweave.lower.reads import slices
from tileweave.planner import Plan
from tileweave.runtime import direct
from tileweave.runtime.events import Done, Event, Failed, Listener, Retry, Started
from tileweave.runtime.io import files as io
from tileweave.runtime.io.journal import Identity
from tileweave.runtime.io.sinks import Sinks, SinkWriter, handle_of, open_sinks, refused
from tileweave.runtime.local import Destination, ReadSource, TaskFailed, run_local
from tileweave.runtime.prepare import Prepared, prepare
from tileweave.runtime.resume import identity, remaining
from tileweave.space import Box

Array = np.ndarray[Any, Any]


def run_plan(
    plan: Plan,
    *,
    bind: Mapping[Source, Any] | None = None,
    runtime: Literal["local", "ray"] = "local",
    listeners: Sequence[Listener] = (),
    threads: int | None = None,
    address: str | None = None,
    overwrite: bool | None = None,
    out: Sequence[Array | None] | None = None,
    resume: bool = False,
    keys: Mapping[Any, Source] | None = None,
    keep: Callable[[Sink], Destination] | None = None,
    watch: direct.Watch | None = None,
) -> list[Any]:
    """The results of a plan's sinks in order: an array for a sink in memory, its path for a file.

    Args:
        plan: any plan.
        bind: arrays for sources, of their shapes and element types, or what reads their boxes; instead of what the
            sources hold.
        runtime: ``local`` (threads of this process) or ``ray``.
        listeners: called with every event; what one raises stops the run.
        threads: how many compute at once on this host; by default ``TILEWEAVE_THREADS``, else as many as the
            process may use.
        address: of a running Ray cluster; without one a local cluster is started and kept for the next run.
        overwrite: whether existing files are replaced; None leaves it to each sink.
        out: per sink the array that takes its values, or None.
        resume: whether the run goes on with what an equal run has finished of its files, and records
            what it finishes itself.
        keys: how the caller names what is bound, for `direct.again`.
        keep: where results in memory go instead, for a run on a cluster; they are not among the results then.
        watch: as `direct.executable`.

    Raises:
        RunError: a task failed, a source has no array, Ray is missing. No sink was written.
        StorageError: a source cannot be read or a sink cannot be written; an unfinished run was
            another one.

    Example:
        >>> from tileweave import graph, lower, planner
        >>> x = graph.as_tensor(np.array([[1, 2], [3, 4]]))
        >>> plan = planner.make_plan(graph.Graph.of(graph.sum(x, axis=0)), planner.machines(2), lower.decide)
        >>> run_plan(plan)[0].tolist()
        [4, 6]
    """
    if runtime not in ("local", "ray"):
        raise RunError("run(plan, runtime)", f"there is no runtime {runtime!r}", legal="local, ray")
    if address is not None and runtime == "local":
        raise RunError("run(plan, address)", "a Ray cluster is named for the local runtime", legal="runtime='ray'")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise RunError("run(plan, threads)", f"{threads!r} threads cannot work", legal="a number, 1 or more")
    start = time.perf_counter()
    if runtime == "ray" and any(step.spilled for step in plan.steps):  # its store of objects spills by itself
        plan = replace(plan, steps=tuple(replace(step, spilled=False) for step in plan.steps))
    prepared = prepare(plan)
    count = threads or available_threads()
    given = direct.check_out(plan.graph, out)
    identified = identity(plan, prepared, bind or {}) if resume else None
    retries: list[Retry] = []
    tell = _teller(listeners, retries)
    if runtime == "local":
        following = None if tell is None else direct.Following(plan, prepared, tell, start)
        try:
            found = direct.executable(plan, prepared, bind or {}, count, tell is not None, watch)
            if found is not None:
                done = direct.run(found, given) if following is None else following.run(found, given)
                if done is not None:
                    if keys is not None and tell is None:
                        direct.ready(plan, prepared, keys, count, found)
                    return done
                tell = following.rest if following is not None else None
        except BaseException as error:
            raised = explained(error, plan, prepared)
            if following is not None and following.open:
                _tell_failure(tell, raised)
            if raised is error:
                raise
            raise raised from raised.__cause__
        if not resume and tell is None:
            plan, prepared = direct.merged(plan, prepared)
    spare = sum(machine.memory_bytes for machine in plan.machines.machines) - sum(prepared.peak_bytes)
    with _opened_sources(prepared, bind or {}) as sources, _ends_cleanly(), frugal(max(0, spare)):
        files, destinations, finished = _open_destinations(prepared, overwrite, identified, keep)
        try:
            if runtime == "ray":
                engine = _ray(plan, prepared, threads, address)(sources, destinations, finished)
                prepared = engine.prepared
            else:
                engine, prepared = None, remaining(prepared, finished)
            if tell is not None:
                tell(Started(runtime, prepared.labels, len(prepared.tasks), len(plan.machines), prepared.margins))
            if engine is not None:
                peaks = engine.run(tell)
            else:
                peaks = run_local(prepared, sources, destinations, tell, count)
            files.commit()
        except BaseException as error:
            files.abort()
            raised = explained(error, plan, prepared)
            _tell_failure(tell, raised)
            if raised is error:
                raise
            raise raised from raised.__cause__
    if tell is not None:
        try:
            tell(Done(time.perf_counter() - start, peaks, len(retries)))
        except _ListenerRaised as error:
            raised = explained(error, plan, prepared)
            raise raised from raised.__cause__
    return direct.into(given, _results(plan, dict(zip(prepared.sinks, destinations, strict=True))))


# ---------------------------------------------------------------------------------------------------------------------
# listeners and failures


class _ListenerRaised(BaseException):
    """Carries a listener's own exception past the handlers for failing tasks."""


def _teller(listeners: Sequence[Listener], retries: list[Retry]) -> Callable[[Event], None] | None:
    if not listeners:
        return None

    def tell(event: Event) -> None:
        if isinstance(event, Retry):
            retries.append(event)
        for listener in listeners:
            try:
                listener(event)
            except Exception as error:
                raise _ListenerRaised from error

    return tell


def _tell_failure(tell: Callable[[Event], None] | None, error: BaseException) -> None:
    if tell is not None:
        try:
            tell(Failed(error))
        except _ListenerRaised:
            return  # the first failure is the one that is raised


def explained(error: BaseException, plan: Plan, prepared: Prepared) -> BaseException:
    """The error as the user should see it."""
    if isinstance(error, _ListenerRaised) and error.__cause__ is not None:
        return error.__cause__
    if not isinstance(error, (TaskFailed, WorkFailed)):
        return error
    task, cause = error.task, error.__cause__
    step = plan.steps[task.step]
    name = prepared.labels[task.step]
    raised = RunError(
        "run(plan)",
        f"{name} failed with {type(cause).__name__}; no sink was written",
        inputs={
            "operation": f"{name} {step.tensor.type} over {step.cuts.box}",
            "shard": f"{task.shard} of {step.cuts.count}, {task.index}, on machine {task.machine}",
            "cause": f"{type(cause).__name__}: {cause}",
        },
        facts={"operation": name, "step": task.step, "shard": task.shard, "machine": task.machine},
    )
    raised.__cause__ = cause
    return raised


def _ray(plan: Plan, prepared: Prepared, threads: int | None, address: str | None) -> Any:
    from tileweave.runtime.ray import engine  # ray is loaded with the first run on it, not with the package

    return engine(plan, prepared, threads, address)


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    """A request to end the process ends the run first, which removes what it has begun to write."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# ---------------------------------------------------------------------------------------------------------------------
# sources


@contextmanager
def _opened_sources(prepared: Prepared, bind: Mapping[Source, Any]) -> Iterator[list[ReadSource]]:
    """What reads each source, in order; every file is checked before the first is read."""
    readers: list[io.FileSource] = []
    out: list[ReadSource] = []
    try:
        for source in prepared.sources:
            if source in bind:
                given = bind[source]
                out.append(given if callable(given) else _array_source(source, given))
            elif isinstance(source.data, ArrayData):
                out.append(_array_source(source, source.data.array))
            elif isinstance(source.data, FileData):
                readers.append(io.FileSource(source.data, source.type))
                out.append(readers[-1])
            else:
                empty = f"source {source.name!r} {source.type} has no data"
                raise RunError("run(plan, bind)", empty, legal="bind={source: array}")
        yield out
    finally:
        for reader in readers:
            reader.close()


def _array_source(source: Source, given: Array) -> ReadSource:
    array = direct.fitting(source, given)

    def read(box: Box) -> Array:
        return np.asarray(array[slices(box)])  # always a view: it is not newly made

    return read


# ---------------------------------------------------------------------------------------------------------------------
# sinks


class _Memory:
    """A result in memory."""

    atom = ()
    handle = None

    def __init__(self, sink: Sink) -> None:
        self._type = sink.tensor.type
        self._value: Array | None = None
        self._lock = threading.Lock()  # shards that are stored at once must find one array

    @property
    def value(self) -> Array:
        """The result."""
        with self._lock:
            if self._value is None:
                self._value = empty(self._type.shape, self._type.dtype)
            return self._value

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""
        self.value[slices(box)] = block

    def take(self, block: Array) -> None:
        """Becomes the block."""
        self._value = block

    def finished(self, box: Box) -> None:
        """Nobody keeps count: a result in memory ends with its process."""


class _Written:
    """A result in a file."""

    def __init__(self, sink: Sink, target: FileTarget, writer: SinkWriter, files: Sinks) -> None:
        self.atom = io.atom(sink) or ()
        handle = handle_of(writer)
        self.handle = handle and replace(handle, sink=target.path)
        self._path, self._writer = target.path, writer
        self.finished = partial(files.record, target)
        self._box = sink.tensor.type.box

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""
        with refused(self._path, f"writing {box}"):
            self._writer.write(box, block)

    def take(self, block: Array) -> None:
        """Stores all values at once."""
        self.write(self._box, block)


def _open_destinations(
    prepared: Prepared,
    overwrite: bool | None,
    identified: Identity | None,
    keep: Callable[[Sink], Destination] | None = None,
) -> tuple[Sinks, list[Destination], list[set[Box]]]:
    """(the files, per sink where its values go, per sink which parts are there already)."""
    targets = {
        sink: sink.target if overwrite is None else replace(sink.target, overwrite=overwrite)
        for sink in prepared.sinks
        if isinstance(sink.target, FileTarget)
    }
    files = open_sinks([(target, sink.tensor.type) for sink, target in targets.items()], identified)
    writers = dict(zip(targets, files.writers, strict=True))
    out: list[Destination] = [
        _Written(sink, targets[sink], writers[sink], files) if sink in targets else (keep or _Memory)(sink)
        for sink in prepared.sinks
    ]
    return files, out, [files.finished(targets[sink]) if sink in targets else set() for sink in prepared.sinks]


def _results(plan: Plan, destinations: Mapping[Sink, Destination]) -> list[Any]:
    """One result per observed sink; a tensor that is observed twice gives two arrays."""
    out: list[Any] = []
    given: set[Sink] = set()
    for sink in plan.graph.sinks:
        destination = destinations[sink]
        if isinstance(destination, _Memory):
            out.append(destination.value.copy() if sink in given else destination.value)
        else:
            out.append(getattr(sink.target, "path", None))
        given.add(sink)
    return out
