"""What the command line says to the program that it runs: flags win over the program, the program over defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tileweave.graph import Graph
from tileweave.planner import Machines, Plan
from tileweave.runtime.events import Listener


@dataclass(frozen=True, slots=True)
class Session:
    """Settings that override the arguments of `plan` and `run`; None leaves the program's own.

    Args:
        machines: replaces the program's machines.
        runtime: ``local`` or ``ray``.
        address: of a running Ray cluster.
        threads: of the local runtime.
        overwrite: existing sinks may be replaced.
        resume: runs go on with what an unfinished one has left.
        progress: runs show a progress bar.
        listening: further listeners of a plan's run.
        planned: called with each plan that would run; when given, nothing runs, and the program is stopped
            with `PlanningDone` at the first run whose result it needs.
        choosing: what the options say of the plan of a graph, by the names of the arguments of `plan`.
        kept: documents of plans, of which every graph takes its own instead of being planned.
        as_written: graphs are planned as the program writes them, without fusing.
        unwritten: absolute paths of the sinks that planned runs would have written.
    """

    machines: Callable[[Machines | None], Machines] | None = None
    runtime: Literal["local", "ray"] | None = None
    address: str | None = None
    threads: int | None = None
    overwrite: bool | None = None
    resume: bool = False
    progress: bool | None = None
    listening: Callable[[Plan], Sequence[Listener]] | None = None
    planned: Callable[[Plan], None] | None = None
    choosing: Callable[[Graph], Mapping[str, Any]] | None = None
    kept: Sequence[dict[str, Any]] | None = None
    as_written: bool = False
    unwritten: set[str] = field(default_factory=set)


class PlanningDone(BaseException):
    """The program needs a result that planning alone does not give. Not an Exception: programs must not catch it."""


PLAIN = Session()
"""The program's own arguments are in force."""
SETTINGS: list[Session] = [PLAIN]
"""The last are in force, for the whole process: a program's own threads obey the command line too."""


def current_session() -> Session:
    """The settings in force."""
    return SETTINGS[-1]


@contextmanager
def session(settings: Session) -> Iterator[None]:
    """The settings in force inside a with block, in every thread."""
    SETTINGS.append(settings)
    try:
        yield
    finally:
        SETTINGS.pop()
