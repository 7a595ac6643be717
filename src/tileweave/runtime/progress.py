"""A progress bar: one listener of a run's events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tileweave.runtime.events import Done, Event, Failed, Progress, Retry, Started

if TYPE_CHECKING:  # rich is loaded with the first bar, not with the package
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["ProgressBar"]

REFRESH_SECONDS = 0.1


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
            if last or time.monotonic() - self._drawn > REFRESH_SECONDS:
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
