"""Listeners of a run: a progress bar, a Chrome trace, a report beside the plan, a live table, lines in a log.

All of them read the one stream of events of `tileweave.runtime.events`; each is a function of one event, for one run.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileweave.errors import StorageError
from tileweave.planner import Plan, with_margins
from tileweave.runtime.events import Done, Event, Failed, Listener, Progress, Retry, Started
from tileweave.words import seconds_text

if TYPE_CHECKING:  # rich is loaded with the first table, not with the package
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

REFRESH_SECONDS = 0.2
BAR_SECONDS = 0.1


class ProgressBar:
    """Shows one bar per run on standard error; nothing where that is no terminal.

    It draws in the thread that reports, at most ten times a second, so no thread of its own outlives a run.

    Args:
        console: where to draw instead.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._drawn = 0.0
        self._steps: tuple[str, ...] = ()

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        if isinstance(event, Started):
            self._start(event)
        elif self._bar is None or self._task is None:
            return
        elif isinstance(event, Progress):
            last = event.done == event.tasks
            self._bar.update(self._task, completed=event.done, description=self._steps[event.step])
            if last or time.monotonic() - self._drawn > BAR_SECONDS:
                self._bar.refresh()
                self._drawn = time.monotonic()
        elif isinstance(event, Retry):
            lost = f"{self._steps[event.step]} shard {event.shard} on machine {event.machine}"
            self._bar.console.print(f"lost and computed again: {lost}", highlight=False)
        elif isinstance(event, (Done, Failed)):
            self._bar.update(self._task, description="done" if isinstance(event, Done) else "stopped")
            self._bar.refresh()
            self._bar.stop()
            self._bar = self._task = None

    def _start(self, event: Started) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = self._console or Console(stderr=True)
        if not console.is_terminal:
            return
        columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, auto_refresh=False)
        self._steps = event.steps
        self._task = self._bar.add_task("start", total=event.tasks)
        self._bar.start()


class Trace:
    """Collects runs and writes them as one Chrome trace (chrome://tracing, Perfetto): a process per machine of a plan,
    a thread per worker, a span per task.

    Args:
        path: of the JSON file; it is written anew whenever a run ends.

    Example:
        >>> import tempfile, tileweave as tw
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace, plan = Trace(folder + "/t.json"), tw.plan(tw.source([1.0, 2.0]) * 2)
        ...     _ = tw.run(plan, listeners=[trace.of(plan)])
        ...     events = json.loads(Path(folder, "t.json").read_text())["traceEvents"]
        >>> [event["name"] for event in events if event["ph"] == "X"]
        ['multiply', 'store']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._origin = time.perf_counter()
        self._spans: list[dict[str, Any]] = []
        self._named: set[int] = set()

    def of(self, plan: Plan) -> Listener:
        """A listener for one run of a plan."""
        begin = [0.0]
        labels: list[str] = []

        def listen(event: Event) -> None:
            match event:
                case Started():
                    begin[0] = (time.perf_counter() - self._origin) * 1e6
                    labels[:] = event.steps
                case Progress():
                    self._machine(plan, event.machine)
                    self._span(begin[0], labels[event.step], event)
                case Retry():
                    self._instant(event.machine, f"lost: {labels[event.step]} {event.shard}")
                case Done() | Failed():
                    if isinstance(event, Failed):
                        self._instant(0, f"failed: {type(event.error).__name__}")
                    self.write()

        return listen

    def _machine(self, plan: Plan, machine: int) -> None:
        if machine not in self._named:
            self._named.add(machine)
            name = plan.machines.machines[machine].name or f"machine {machine}"
            self._spans.append({"ph": "M", "name": "process_name", "pid": machine, "args": {"name": name}})

    def _span(self, begin: float, name: str, event: Progress) -> None:
        self._spans.append(
            {
                "ph": "X",
                "name": name,
                "pid": event.machine,
                "tid": event.worker,
                "ts": begin + event.start_seconds * 1e6,
                "dur": (event.end_seconds - event.start_seconds) * 1e6,
                "args": {"step": event.step, "shard": event.shard},
            }
        )

    def _instant(self, machine: int, name: str) -> None:
        at = (time.perf_counter() - self._origin) * 1e6
        self._spans.append({"ph": "i", "name": name, "pid": machine, "tid": 0, "ts": at, "s": "p"})

    def write(self) -> None:
        """Writes what has been collected; the file is whole at any time."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps({"traceEvents": self._spans, "displayTimeUnit": "ms"}))
            temporary.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            problem = f"it cannot be written: {error.strerror or error}"
            raise StorageError(f"Trace({str(self._path)!r})", problem, legal="a folder that takes files") from error


@dataclass(slots=True)
class StepReport:
    """What a step of a plan was expected to do, and did.

    Args:
        name: of the step.
        tasks: that are done.
        planned_seconds: from its first task's start to its last one's end.
        seconds: the same, as measured.
        busy_seconds: of all its tasks together.
        bytes_read: that its tasks took from sources and from blocks that were spilled, as measured on the arrays.
        bytes_moved: the same from blocks of other machines.
    """

    name: str
    tasks: int = 0
    planned_seconds: float = 0.0
    seconds: float = 0.0
    busy_seconds: float = 0.0
    first: float = field(default=float("inf"), repr=False)
    last: float = field(default=0.0, repr=False)
    bytes_read: int = 0
    bytes_moved: int = 0


MARGINS = "planned with margins: chains of stencils exchange once for several steps on a cluster"
"""What a report says of plans whose tasks are run otherwise."""


class RunReport:
    """The plan beside the run, step by step; its `str` is a table. What is planned is what is run: on a cluster with
    margins (`planner.with_margins`).

    Args:
        plan: that is run.
        told: called with the report when the run is done.
    """

    def __init__(self, plan: Plan, told: Callable[[RunReport], None] | None = None) -> None:
        self._given = self._plan = plan
        self._told, self._notes = told, list[str]()
        self.steps: list[StepReport] = []
        self.seconds = 0.0
        self.peak_bytes: tuple[int, ...] = ()
        self.retries = 0

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case Started():
                self._plan = with_margins(self._given) if event.margins else self._given
                left = self._plan.tasks - event.tasks
                before = f"of {self._plan.tasks} tasks that are planned, {left} were not to be done again"
                self._notes = [MARGINS] * event.margins + [before] * (left > 0)
                costs = [step.costs.seconds for step in self._plan.steps]
                pairs = zip(event.steps, costs, strict=True)
                self.steps = [StepReport(name, planned_seconds=planned) for name, planned in pairs]
            case Progress():
                step = self.steps[event.step]
                step.tasks += 1
                step.bytes_read += event.bytes_read
                step.bytes_moved += event.bytes_moved
                step.busy_seconds += event.end_seconds - event.start_seconds
                step.first, step.last = min(step.first, event.start_seconds), max(step.last, event.end_seconds)
                step.seconds = step.last - step.first
            case Done():
                self.seconds, self.peak_bytes, self.retries = event.seconds, event.peak_bytes, event.retries
                if self._told is not None:
                    self._told(self)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("step", "tasks", "planned", "measured", "busy")]
        for step in self.steps:
            times = (step.planned_seconds, step.seconds, step.busy_seconds)
            rows.append((step.name, str(step.tasks), *map(seconds_text, times)))
        rows.append(("run", str(self._plan.tasks), seconds_text(self._plan.seconds), seconds_text(self.seconds), ""))
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        sides = (str.ljust, *[str.rjust] * 4)
        cells = [list(zip(sides, row, widths, strict=True)) for row in rows]
        lines = ["  ".join(side(word, width) for side, word, width in line) for line in cells]
        peaks = zip(self._plan.peak_bytes, self.peak_bytes, strict=True)
        lines.append("peak bytes, planned and measured: " + ", ".join(f"{a} {b}" for a, b in peaks))
        read, moved = (sum(getattr(s, name) for s in self.steps) for name in ("bytes_read", "bytes_moved"))
        lines.append(f"bytes read, planned and measured: {self._plan.bytes_read} {read}")
        lines.append(f"bytes moved, planned and measured: {self._plan.bytes_moved} {moved}")
        if self.retries:
            lines.append(f"tasks computed again: {self.retries}")
        lines += self._notes
        return "\n".join(line.rstrip() for line in lines)


class LiveTable:
    """A table of a run's steps that is drawn anew while it goes on; nothing where the output is no terminal.

    Args:
        plan: that is run.
        console: where to draw instead of the standard error.
    """

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self._report = RunReport(plan)
        self._totals = [step.cuts.count for step in plan.steps]
        self._console = console
        self._live: Live | None = None
        self._drawn = 0.0

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        self._report(event)
        if isinstance(event, Started):
            self._start()
        elif self._live is not None:
            last = isinstance(event, Done | Failed)
            if last or time.monotonic() - self._drawn > REFRESH_SECONDS:
                self._live.update(self._table(), refresh=True)
                self._drawn = time.monotonic()
            if last:
                self._live.stop()
                self._live = None

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = self._console or Console(stderr=True)
        if console.is_terminal:
            self._live = Live(self._table(), console=console, auto_refresh=False)
            self._live.start()

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("step", "tasks", "planned", "measured", "busy")
        for step, total in zip(self._report.steps, self._totals, strict=True):
            times = (step.planned_seconds, step.seconds, step.busy_seconds)
            table.add_row(step.name, f"{step.tasks} of {total}", *map(seconds_text, times))
        return table


def logged(event: Event) -> None:
    """Says what a run does in the log ``tileweave``: its start and end, and tasks that were lost."""
    log = logging.getLogger("tileweave")
    match event:
        case Started():
            log.info("run on %s: %d tasks, %d machines", event.runtime, event.tasks, event.machines)
        case Progress():
            log.debug("step %d shard %d done on machine %d", event.step, event.shard, event.machine)
        case Retry():
            log.warning("step %d shard %d was lost and computed again", event.step, event.shard)
        case Done():
            log.info("done in %.3g s, %d tasks computed again", event.seconds, event.retries)
        case Failed():
            log.error("failed: %s", event.error)
