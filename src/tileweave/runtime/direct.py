"""Plans on arrays: run as one executable of this process, which is kept with the prepared plan.

What such a run does beside its kernels is to look whether the bound arrays fit, to make arrays for the results, and to
tell the kernels where both lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import RunError
from tileweave.graph import ArrayData, MemoryTarget, Source
from tileweave.lower.executable import Executable
from tileweave.planner import Plan, tasks
from tileweave.planner.tasks import in_one_process
from tileweave.runtime.prepare import Prepared

__all__ = ["Found", "check_out", "executable", "fitting", "into", "run"]

Array = np.ndarray[Any, Any]
KEEP_PER_PLAN = 8
"""How many executables of one plan are kept: one for each kind of strides of the bound arrays."""


@dataclass(frozen=True, slots=True)
class Found:
    """An executable for a run, the arrays that it reads, and where it is kept between runs."""

    executable: Executable
    arrays: tuple[Array, ...]
    idle: list[Executable]


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
    return array


def executable(plan: Plan, prepared: Prepared, bind: Mapping[Source, Any], threads: int) -> Found | None:
    """What runs the plan as a whole; None where it reads or writes files, or gains from tasks that run at once."""
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
    key = (threads, *sorted(about))
    idle = kept.get(key)
    if idle is None:
        while len(kept) >= KEEP_PER_PLAN:
            kept.pop(next(iter(kept)), None)
        idle = kept[key] = []
    try:
        found = idle.pop()  # two runs at once never share one
    except IndexError:
        constant = [source for source in prepared.sources if source not in bind]
        sources = dict(zip(prepared.sources, arrays, strict=True))
        peak = sum(prepared.peak_bytes)
        room = max(peak, sum(machine.memory_bytes for machine in plan.machines.machines) - peak)
        for one in (in_one_process(plan), plan) if len(plan.machines) > 1 else (plan,):
            made = prepared.tasks if one.steps == plan.steps else tasks(one)
            found = Executable(one.steps, made, sources, constant, prepared.sinks, threads, room)
            if found.arena_bytes <= room:
                break
        else:
            prepared.extra["whole"] = False
            return None
    return Found(found, tuple(arrays), idle)


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
        once = len(set(plan.graph.sinks)) == len(plan.graph.sinks) == len(prepared.sinks)
        known = prepared.extra["whole"] = here and once and _slow_seconds(plan) < WORTH_THREADS
    return bool(known)


WORTH_THREADS = 1e-3
"""Seconds of work without kernels from which on threads that take tasks gain more than they cost: some 0.1 ms each."""


def _slow_seconds(plan: Plan) -> float:
    """The estimated seconds of steps that NumPy computes shard by shard, and several threads could at once."""
    several = (step for step in plan.steps if step.cuts.count > 1 and len(plan.machines) > 1)
    return sum(step.costs.seconds for step in several if step.stage == "block" and not step.kernel.backend)


def check_out(plan: Plan, out: Sequence[Array | None] | None) -> Sequence[Array | None]:
    """The arrays that take results, one or None per sink.

    Raises:
        RunError: there are more or fewer than sinks, or one does not fit its sink.
    """
    sinks = plan.graph.sinks
    if out is None:
        return (None,) * len(sinks)
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


def run(plan: Plan, prepared: Prepared, found: Found, out: Sequence[Array | None]) -> list[Any]:
    """The results of a run.

    Raises:
        WorkFailed: a step raised.
    """
    direct = [array if array is None or _apart(array, found.arrays, out) else None for array in out]
    results = found.executable.run(found.arrays, direct)
    found.idle.append(found.executable)
    return into(out, results)


def _apart(array: Array, sources: Sequence[Array], out: Sequence[Array | None]) -> bool:
    """Whether kernels may write an array while they read the sources and write the others."""
    others = [*sources, *(other for other in out if other is not None and other is not array)]
    return array.flags.c_contiguous and array.flags.aligned and not any(np.may_share_memory(array, o) for o in others)
