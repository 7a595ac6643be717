"""Plans on arrays: run as one executable of this process, which is kept with the prepared plan.

What such a run does beside its kernels is to look whether the bound arrays fit, to make arrays for the results, and to
tell the kernels where both lie.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tileweave.backends.calls import Keyed
from tileweave.backends.host import give_back
from tileweave.errors import RunError
from tileweave.graph import ArrayData, Graph, MemoryTarget, Source
from tileweave.kept import keep_last
from tileweave.lower.actions import Note, Seconds
from tileweave.lower.binding import TaskBinding
from tileweave.lower.executable import Executable
from tileweave.lower.execute import joined
from tileweave.lower.values import stand_in
from tileweave.planner import Plan, Step, Task, tasks
from tileweave.planner.count import task_memory
from tileweave.planner.tasks import in_one_process, kinds_of
from tileweave.runtime.events import Done, Event, Progress, Started
from tileweave.runtime.prepare import Prepared, keeping, prepare

Array = np.ndarray[Any, Any]
KEEP_PER_PLAN = 8
"""How many executables of one plan are kept: one for each kind of strides of the bound arrays."""

MANY_CALLS = 1024
"""So many kernels take 50 ms and more to bind: to give back what that took, before results are made, takes 1."""


OFTEN = 32
"""From so many runs of a plan on code combines partial results, which takes 25 to 55 ms to make: NumPy takes 15 to 20
us for each behind kernels that have filled the caches."""


class Idle(list[Executable]):
    """The executables for one kind of strides that no run uses."""

    often = False
    """Whether there were many runs."""
    quick: Executable | None = None
    """That of `QUICK`, which runs find there."""

    def kept(self) -> list[Executable]:
        """All that are kept for these strides, but for those that runs use."""
        return [*self, *filter(None, [self.quick])]

    def put_back(self, one: Executable) -> None:
        """Keeps one for the next run, unless that is better made anew."""
        if one.combined and one.runs >= OFTEN and not self.often:
            self.often = True
        else:
            self.append(one)


@dataclass(frozen=True, slots=True)
class Found:
    """An executable for a run, the arrays that it reads, and where it is kept between runs."""

    executable: Executable
    arrays: tuple[Array, ...]
    idle: Idle


def fitting(source: Source, given: Any) -> Array:
    """The array that is bound to a source.

    Raises:
        RunError: it has another shape or type.
    """
    array = np.asarray(given)
    kind = source.type
    if array.shape != kind.shape or array.dtype != kind.dtype:
        raise RunError(
            "run(plan, bind)",
            f"the array for source {source.name!r} has shape {array.shape} and type {array.dtype.name}",
            legal=str(kind),
        )
    return array if array.dtype is kind.dtype else array.view(kind.dtype)


Watch = Callable[[Graph, TaskBinding], None]
"""Takes a graph that is planned, and its tasks as they were bound."""


def executable(
    plan: Plan,
    prepared: Prepared,
    bind: Mapping[Source, Any],
    threads: int,
    apart: bool = False,
    watch: Watch | None = None,
) -> Found | None:
    """What runs the plan as a whole; None where it reads or writes files, or gains from tasks that run at once.

    Args:
        plan: any plan.
        prepared: the same.
        bind: arrays for sources.
        threads: that kernels may use.
        apart: whether the blocks of different machines are computed one by one.
        watch: told what is bound, where that has not been before.
    """
    if not _fits(plan, prepared):
        return None
    places, own, missing = _sources(prepared)
    arrays, about = list(own), list[Any]()
    for source, given in bind.items():
        number = places.get(source)
        if number is not None:
            array = arrays[number] = fitting(source, given)
            about.append((number, array.strides, array.flags.aligned))
    if missing and not missing <= {number for number, _, _ in about}:
        return None
    kept = prepared.extra.setdefault("executables", {})
    apart = apart or len(plan.machines) == 1
    key = (threads, *sorted(about), apart)
    idle = kept.get(key)
    if idle is None:
        keep_last(kept, KEEP_PER_PLAN - 1)
        idle = kept[key] = Idle()
    try:
        found = idle.pop()  # two runs at once never share one
    except IndexError:
        constant = [source for source in prepared.sources if source not in bind]
        lie = (
            array if one not in bind else stand_in(array) for one, array in zip(prepared.sources, arrays, strict=True)
        )
        sources = dict(zip(prepared.sources, lie, strict=True))
        peak = sum(prepared.peak_bytes)
        room = max(peak, sum(machine.memory_bytes for machine in plan.machines.machines) - peak)
        whole = plan if apart else in_one_process(plan)
        for one in [whole, plan] if whole is not plan else [plan]:
            made: Sequence[Task] = prepared.tasks
            if one.steps != plan.steps:
                together = made = tasks(one)
                read = {p.source for kind in together.kinds for read in kind.sample.reads for p in read.pieces}
                if not read - {None} <= sources.keys():
                    continue  # blocks that are put together reach over what no block alone reads
            with keeping():
                steps = _joined(one.steps, made, idle.often)
                binding = TaskBinding(steps, made, sources, constant, prepared.sinks, threads, room)
                found = Executable(made, binding)
            if watch is not None and one is plan:
                watch(plan.graph, binding)
            if found.kernels >= MANY_CALLS:
                give_back()
            if found.arena_bytes <= room:
                break
        else:
            prepared.extra["whole"] = False
            return None
    return Found(found, tuple(arrays), idle)


def _joined(steps: Sequence[Step], made: Sequence[Task], often: bool) -> list[Step]:
    """The steps, those in code that combine many partial results, or do so in many runs."""
    about = dict[int, set[tuple[int, tuple[str, ...]]]]()
    for kind in kinds_of(made):
        if steps[kind.sample.step].stage == "combine":
            names = tuple(read.name for read in kind.sample.reads if not read.partial)
            about.setdefault(kind.sample.step, set()).add((len(kind.sample.reads) - len(names), names))
    return [
        joined(step, *about[k].pop(), often) if len(about.get(k, ())) == 1 else step for k, step in enumerate(steps)
    ]


_Known = tuple[dict[Source, int], list[Any], frozenset[int]]


def _sources(prepared: Prepared) -> _Known:
    """The number of each source, the array that each holds itself, or None, and the numbers of those without."""
    known: _Known | None = prepared.extra.get("sources")
    if known is None:
        places = {source: number for number, source in enumerate(prepared.sources)}
        own = [source.data.array if isinstance(source.data, ArrayData) else None for source in prepared.sources]
        known = places, own, frozenset(number for number, array in enumerate(own) if array is None)
        prepared.extra["sources"] = known
    return known


def _fits(plan: Plan, prepared: Prepared) -> bool:
    known = prepared.extra.get("whole")
    if known is None:
        here = all(isinstance(sink.target, MemoryTarget) for sink in prepared.sinks)
        here = here and not any(step.spilled for step in plan.steps)
        once = len(set(plan.graph.sinks)) == len(plan.graph.sinks) == len(prepared.sinks)
        known = prepared.extra["whole"] = here and once and _slow_seconds(plan) < WORTH_THREADS
    return bool(known)


WORTH_THREADS = 1e-3
"""Seconds of work without kernels from which on threads that take tasks gain more than they cost: some 0.1 ms each."""


def _slow_seconds(plan: Plan) -> float:
    """The estimated seconds of steps that NumPy computes shard by shard, and several threads could at once."""
    several = (step for step in plan.steps if step.cuts.count > 1 and len(plan.machines) > 1)
    return sum(step.costs.seconds for step in several if step.stage == "block" and not step.kernel.backend)


def merged(plan: Plan, prepared: Prepared) -> tuple[Plan, Prepared]:
    """The plan as one process runs it: blocks of different machines together where kernels compute them all.

    A chunk of a file that several blocks lie in is unpacked once then. What machines have in turn stays apart, and
    where the memory of all does not hold the blocks, all do.
    """
    if len(plan.machines) == 1 or _slow_seconds(plan) >= WORTH_THREADS:
        return plan, prepared
    known: tuple[tuple[Step, ...], Prepared] | None = prepared.extra.get("merged")
    if known is None:
        one = in_one_process(plan)
        together = prepare(one)
        fits = sum(together.peak_bytes) <= sum(machine.memory_bytes for machine in plan.machines.machines)
        known = prepared.extra["merged"] = (one.steps, together) if fits else (plan.steps, prepared)
    steps, together = known
    return replace(plan, steps=steps), together


def check_out(graph: Graph, out: Sequence[Array | None] | None) -> Sequence[Array | None]:
    """The arrays that take results, one or None per sink.

    Raises:
        RunError: there are more or fewer than sinks, or one does not fit its sink.
    """
    sinks = graph.sinks
    if out is None:
        return (None,) * len(sinks)
    if not isinstance(out, (list, tuple)):
        legal = f"an array, {sinks[0].tensor.type}" if len(sinks) == 1 else f"a list of {len(sinks)} arrays or None"
        raise RunError("run(plan, out)", f"{type(out).__name__} is no array to write to", legal=legal)
    if len(out) != len(sinks):
        raise RunError("run(plan, out)", f"{len(out)} arrays are given", legal=f"{len(sinks)}, one per result")
    for sink, array in zip(sinks, out, strict=True):
        if array is None:
            continue
        kind = sink.tensor.type
        if not isinstance(sink.target, MemoryTarget):
            raise RunError("run(plan, out)", f"{kind} is written to a file", legal="None for it")
        if not isinstance(array, np.ndarray) or array.shape != kind.shape or array.dtype != kind.dtype:
            found = f"{array.dtype.name}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise RunError("run(plan, out)", f"{found} cannot take a result", legal=str(kind))
        if not array.flags.writeable:
            raise RunError("run(plan, out)", "an array is read-only", legal="arrays that can be written")
    return out


def into(out: Sequence[Array | None], results: Sequence[Any]) -> list[Any]:
    """The results, in the arrays that were given for them."""
    done = []
    for array, result in zip(out, results, strict=True):
        if array is not None and array is not result:
            array[...] = result
        done.append(result if array is None else array)
    return done


class _Ready(NamedTuple):
    """A plan that has run: arrays that are bound by the same keys need no more than their places.

    Args:
        plan: goes with what is kept about it.
        keys: of ``bind``, in the order in which the executable takes the arrays.
        threads: that were asked for.
        given: the arrays of ``bind`` in that order.
        idle: as `Found`.
    """

    plan: weakref.ref[Plan]
    keys: list[Any]
    threads: int
    given: Callable[[Mapping[Any, Any]], Sequence[Any]]
    idle: Idle


_READY: dict[int, list[_Ready]] = {}
"""By the identity of the plan, for as long as it lives."""


Quick = tuple[int, Keyed, dict[Any, Array], tuple[Any, ...] | None, tuple[Idle, Executable]]
"""The threads that were asked for; a further run as one native call, for one result; what it brings without ``bind``;
the backends that were registered, where that may change what runs; the executable, and where it is kept otherwise."""
QUICK: dict[int, Quick] = {}
"""By the identity of a plan or a tensor, for as long as it lives: what ran last."""
if hasattr(os, "register_at_fork"):  # another thread of the parent may have been in a call, which does not end here
    os.register_at_fork(after_in_child=QUICK.clear)


def run(found: Found, out: Sequence[Array | None], note: Note | None = None) -> list[Any] | None:
    """The results of a run; None where an array is none that kernels take, or a place lies outside of one.

    Args:
        found: what runs.
        out: as `check_out`.
        note: takes the tasks as they are done; None: nobody asks.

    Raises:
        WorkFailed: a step raised.
    """
    brought = [found.arrays[number] for number in found.executable.bound]
    given = [array if _dense(array) else None for array in out]
    clash = found.executable.apart.clashing([*brought, *given])
    given = [None if k in clash else array for k, array in enumerate(given)]
    results = found.executable.run(brought, given) if note is None else found.executable.follow(brought, given, note)
    found.idle.put_back(found.executable)
    return None if results is None else into(out, results)


def ready(plan: Plan, prepared: Prepared, bind: Mapping[Any, Source], threads: int, found: Found) -> None:
    """Have `again` run the plan on arrays that are bound by the same keys."""
    numbers, _, _ = _sources(prepared)
    keys = {numbers[source]: key for key, source in bind.items() if source in numbers}
    if tuple(sorted(keys)) != found.executable.bound or len(keys) != len(bind):
        return
    named = [keys[source] for source in sorted(keys)]
    given = itemgetter(*named) if len(named) > 1 else lambda given: [given[key] for key in named]
    number = id(plan)
    gone = weakref.ref(plan, lambda _: (_READY.pop(number, None), QUICK.pop(number, None)))
    names = [key if isinstance(key, str) else id(key) for key in named]
    known = _READY.get(number, [])
    like = (one.keys for one in known if names == [key if isinstance(key, str) else id(key) for key in one.keys])
    made = _Ready(gone, next(like, named), threads, given, found.idle)
    found.executable.named(made.keys)
    others = [one for one in known if one.threads != threads or one.keys is not made.keys or one.idle is not made.idle]
    _READY[number] = [made, *others[: KEEP_PER_PLAN - 1]]


def again(plan: Plan, bind: dict[Any, Any], threads: int, out: Sequence[Array | None] | None) -> list[Any] | None:
    """The results of a plan that has run, on arrays like those that it ran on; None, and nothing has run, elsewhere.

    Raises:
        WorkFailed: a step raised.
    """
    if out is not None and not (type(out) in (list, tuple) and len(out) == len(plan.graph.sinks)):
        return None
    for _, keys, asked, order, idle in _READY.get(id(plan), ()):
        if asked != threads or len(keys) != len(bind):
            continue
        try:
            found = idle.pop()  # two runs at once never share one
        except IndexError:
            continue
        if found.quick is not None and (out is None or len(out) == 1):
            result = found.quick(bind, None if out is None else out[0])
            if result is None or plan.listed or not _is_last(plan, asked, idle, found):
                idle.append(found)  # nothing of it is done in Python, and it is never better made anew
            if result is not None:
                return [result]
            continue
        try:
            given = order(bind)
        except KeyError:
            given = None
        results = found.run(given, out) if given is not None else None
        idle.put_back(found)
        if results is not None:
            return results
    return None


def _is_last(plan: Plan, threads: int, idle: Idle, found: Executable) -> bool:
    """Whether a further run of a plan finds this executable first, and no other, instead of one that is idle."""
    before = QUICK.get(id(plan))
    if before is not None:
        home, one = before[-1]
        if one.running:
            return False
        home.quick = None
        home.append(one)
    assert found.quick is not None
    idle.quick = found
    QUICK[id(plan)] = threads, found.quick, {}, None, (idle, found)
    return True


def _dense(array: Array | None) -> bool:
    """Whether kernels may write an array."""
    return type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned


# ---------------------------------------------------------------------------------------------------------------------
# listeners


class _About(NamedTuple):
    """What events say of tasks, in lists by number; all but their times."""

    step: list[int]
    shard: list[int]
    machine: list[int]
    bytes_read: list[int]
    bytes_moved: list[int]


def _about(prepared: Prepared) -> _About:
    """Counted once per plan, from the pieces that tasks read."""
    known: _About | None = prepared.extra.get("about")
    if known is None:
        kinds, count = kinds_of(prepared.tasks), len(prepared.tasks)
        step, shard, machine, taken, moved = (np.zeros(count, np.int64) for _ in range(5))
        for kind in kinds:
            machine[kind.numbers] = kind.machines
        for kind in kinds:
            step[kind.numbers], shard[kind.numbers] = kind.sample.step, kind.shards
            for read, columns in zip(kind.sample.reads, kind.reads, strict=True):
                for piece, column in zip(read.pieces, columns.pieces, strict=True):
                    if piece.source is not None:
                        taken[kind.numbers] += piece.region.size * read.dtype.itemsize
                    elif piece.task >= 0:
                        apart = machine[column.tasks] != kind.machines
                        moved[kind.numbers] += apart * piece.points * read.dtype.itemsize
        known = prepared.extra["about"] = _About(*(one.tolist() for one in (step, shard, machine, taken, moved)))
    return known


class Following:
    """Tells listeners of a run.

    Args:
        plan: that is run.
        prepared: the same.
        tell: takes events.
        begin: when the run began, of `time.perf_counter`.
    """

    def __init__(self, plan: Plan, prepared: Prepared, tell: Callable[[Event], None], begin: float) -> None:
        self._plan, self._prepared, self._tell, self._begin, self._done = plan, prepared, tell, begin, 0
        self._told: set[tuple[int, int]] | None = None  # (step, shard) of tasks that need not be told again
        self.open = False
        """Whether a run has begun for its listeners and may yet fail."""

    def run(self, found: Found, out: Sequence[Array | None]) -> list[Any] | None:
        """As `run`, with all events of a run; `rest` tells what is left where it has no results."""
        about = self._prepared.labels, len(self._prepared.tasks), len(self._plan.machines)
        self.open = True
        self._tell(Started("local", *about))
        results = run(found, out, self._note)
        if results is not None:
            kinds = kinds_of(self._prepared.tasks)
            memory = task_memory(self._prepared.steps, kinds, found.executable.gathered_bytes)
            peaks = tuple(memory.peaks(len(self._plan.machines)).tolist())
            self.open = False
            self._tell(Done(time.perf_counter() - self._begin, peaks, 0))
        return results

    def _note(self, first: int, began: Seconds, ended: Seconds) -> None:
        """Tells of tasks that are done: see `tileweave.lower.actions.Note`."""
        about, count, last = _about(self._prepared), len(self._prepared.tasks), first + len(began)
        rows = zip(
            *(one[first:last] for one in about),
            [one - self._begin for one in began],
            [one - self._begin for one in ended],
            strict=True,
        )
        for step, shard, machine, taken, moved, start, end in rows:
            self._done += 1
            self._tell(Progress(step, shard, machine, self._done, count, start, end, 0, taken, moved))

    def rest(self, event: Event) -> None:
        """Tells what the same run has to say that goes on task by task, in whatever order."""
        if isinstance(event, Started):
            return
        if isinstance(event, Progress):
            if self._told is None:
                steps, shards, *_ = _about(self._prepared)
                self._told = set(zip(steps[: self._done], shards[: self._done], strict=True))
            if (event.step, event.shard) in self._told:
                return
            self._done += 1
            event = replace(event, done=self._done)
        self._tell(event)
