"""What a run tells its listeners: plain values, from both runtimes alike.

A listener is any callable of one event. Calls never overlap, but may come from any thread of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """Everything has been checked and work starts.

    Args:
        runtime: ``local`` or ``ray``.
        steps: the label of each step of the plan.
        tasks: how many tasks there are.
        machines: how many machines the plan has.
        margins: whether the run has the estimates of `planner.with_margins`, not the plan's own.
    """

    runtime: str
    steps: tuple[str, ...]
    tasks: int
    machines: int
    margins: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """A task is done.

    Args:
        step: number of its step in the plan.
        shard: number of the shard in the step.
        machine: where it ran.
        done: how many tasks are done now.
        tasks: how many there are.
        start_seconds: when it began, from the start of the run.
        end_seconds: when it was done.
        worker: number of the thread or process that did it.
        bytes_read: that it took from sources, and from blocks that were spilled.
        bytes_moved: that it took from blocks of other machines.
    """

    step: int
    shard: int
    machine: int
    done: int
    tasks: int
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    worker: int = 0
    bytes_read: int = 0
    bytes_moved: int = 0


@dataclass(frozen=True, slots=True)
class Retry:
    """A task was lost with the process or machine that ran it, and has been computed again.

    Args:
        step: number of its step in the plan.
        shard: number of the shard in the step.
        machine: where the plan has it.
        attempts: how often it was started before it succeeded.
    """

    step: int
    shard: int
    machine: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Done:
    """The run has succeeded and every sink is in place.

    Args:
        seconds: from start to the last sink.
        peak_bytes: per machine, the most that its tasks and blocks held.
        retries: how many tasks were computed again.
    """

    seconds: float
    peak_bytes: tuple[int, ...]
    retries: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The run has failed or was stopped; no sink was written.

    Args:
        error: what the run raises.
    """

    error: BaseException


Event = Started | Progress | Retry | Done | Failed
Listener = Callable[[Event], None]
