"""Runs of executables that listeners follow: the tasks of the plan as events, as they are done.

Source: own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tileweave.lower.actions import Seconds
from tileweave.planner import Plan
from tileweave.planner.count import task_memory
from tileweave.planner.tasks import kinds_of
from tileweave.runtime import direct
from tileweave.runtime.events import Done, Event, Progress, Started
from tileweave.runtime.prepare import Prepared

Array = np.ndarray[Any, Any]


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

    def run(self, found: direct.Found, out: Sequence[Array | None]) -> list[Any] | None:
        """As `direct.run`, with all events of a run; `rest` tells what is left where it has no results."""
        about = self._prepared.labels, len(self._prepared.tasks), len(self._plan.machines)
        self._tell(Started("local", *about))
        results = direct.run(found, out, self._note)
        if results is not None:
            kinds = kinds_of(self._prepared.tasks)
            memory = task_memory(self._prepared.steps, kinds, found.executable.gathered_bytes)
            peaks = tuple(memory.peaks(len(self._plan.machines)).tolist())
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
        """Tells what the same run has to say that goes on task by task."""
        if not isinstance(event, Started) and not (isinstance(event, Progress) and event.done <= self._done):
            self._tell(event)
