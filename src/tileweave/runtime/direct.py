"""Plans that are one machine's work on arrays: run as one executable, which is kept with the prepared plan.

What such a run does beside its kernels is to look whether the bound arrays fit, to make arrays for the results, and to
tell the kernels where both lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import RunError
from tileweave.graph import ArrayData, MemoryTarget, Operation, Sink, Source, Tensor
from tileweave.lower.executable import Executable, Store, Work
from tileweave.planner import Plan
from tileweave.runtime.prepare import Job, Prepared

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
    """What runs the plan as a whole; None where it is for several machines, in parts, or reads or writes files."""
    if not _fits(plan, prepared):
        return None
    arrays: list[Array] = []
    about: list[Any] = [threads]
    for number, source in enumerate(prepared.sources):
        if source in bind:
            array = fitting(source, bind[source])
            about.append((number, array.strides, array.flags.aligned))
        elif isinstance(source.data, ArrayData):
            array = source.data.array
        else:
            return None
        arrays.append(array)
    kept = prepared.extra.setdefault("executables", {})
    key = tuple(about)
    idle = kept.get(key)
    if idle is None:
        while len(kept) >= KEEP_PER_PLAN:
            kept.pop(next(iter(kept)), None)
        idle = kept[key] = []
    try:
        found = idle.pop()  # two runs at once never share one
    except IndexError:
        constant = [source not in bind for source in prepared.sources]
        kinds = [sink.tensor.type for sink in prepared.sinks]
        found = Executable([_step(plan, job) for job in prepared.jobs], arrays, constant, kinds, threads)
        room = plan.machines.machines[0].memory_bytes - prepared.peak_bytes[0]
        if found.arena_bytes > max(prepared.peak_bytes[0], room):
            prepared.extra["whole"] = False
            return None
    return Found(found, tuple(arrays), idle)


def _fits(plan: Plan, prepared: Prepared) -> bool:
    known = prepared.extra.get("whole")
    if known is None:
        whole = len(plan.machines) == 1 and len(prepared.jobs) == len(plan.steps)
        here = all(isinstance(sink.target, MemoryTarget) for sink in prepared.sinks)
        once = len(set(plan.graph.sinks)) == len(plan.graph.sinks) == len(prepared.sinks)
        known = prepared.extra["whole"] = whole and here and once
    return bool(known)


def _step(plan: Plan, job: Job) -> Work | Store:
    if isinstance(job.node, Sink):
        return Store(job.number, job.sink, job.fetches[0], job.hand_over)
    operation: Operation = job.node
    kinds = tuple((name, Tensor(operation, name).type) for name, _, _ in job.outs)
    return Work(job.number, operation, job.stage, job.index, job.fetches, kinds, job.decision)


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
