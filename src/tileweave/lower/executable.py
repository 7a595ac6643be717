"""A plan's tasks as one executable of this process: what a run needs is decided before it, and kept between runs.

Kernels of a backend are bound to their arrays (`binding`), and run one after the other without Python between them;
only what has no kernel, and a read that has to be put together, interrupt that.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tileweave.backends.base import backend
from tileweave.backends.calls import Apart, CallRow, Calls, Keyed, Wanted
from tileweave.backends.host import allocation
from tileweave.lower import actions
from tileweave.lower.actions import CallSegment, Followed, Found, Note, WorkFailed
from tileweave.lower.execute import COPIES
from tileweave.lower.values import Values
from tileweave.planner.placement import IntArray
from tileweave.planner.tasks import Task

Array = np.ndarray[Any, Any]


class BoundTasks(Protocol):
    """What a run of tasks does, as it was found: see `tileweave.lower.binding.TaskBinding`."""

    bound: tuple[int, ...]
    results: list[Array]
    first_result: int
    found: list[Found]
    calls: dict[str, Calls]
    apart: Apart
    arena_bytes: int
    in_columns: int
    kernels: int
    python_steps: int
    combined: int

    @property
    def kept(self) -> list[Any]:
        """What has to stay alive."""
        ...

    @property
    def fixed(self) -> int:
        """How many tasks were done once."""
        ...

    @property
    def outputs(self) -> int:
        """How many outputs there are of blocks that have several."""
        ...

    @property
    def gathered_bytes(self) -> IntArray:
        """What each task puts together to read it, by number."""
        ...

    def wanted(self) -> list[Wanted]:
        """What the arrays of a run have to be: the bound sources, then the results."""
        ...


class Executable:
    """Tasks made ready for sources of some strides; `run` them any number of times, one run at a time.

    Args:
        tasks: in the order in which they run, all of them.
        made: what a run of them does.
    """

    def __init__(self, tasks: Sequence[Task], made: BoundTasks) -> None:
        self._tasks, self._calls, self._found, self._kept = tasks, made.calls, made.found, made.kept
        self.bound, self.apart, self.in_columns = made.bound, made.apart, made.in_columns
        """The numbers of the sources that every run brings; which memory of a run lies apart; how many tasks were bound
        in columns."""
        self.arena_bytes, self.gathered_bytes = made.arena_bytes, made.gathered_bytes
        """Of all that is kept between runs; per task, what it puts together to read it."""
        self.kernels, self.python_steps, self.fixed = made.kernels, made.python_steps, made.fixed
        """How many calls and how many steps in Python a run has, and how many tasks were done once."""
        self.combined, self.runs = made.combined, 0
        """How many of the steps in Python combine partial results; how many runs there were that have any."""
        self._new = [allocation(sample.shape, sample.dtype) for sample in made.results]
        self._results, self._outputs = made.first_result, made.outputs
        self._wanted = wanted = made.wanted()
        rest, begun = self._found, self._found[0][1] if self._found else None
        if isinstance(begun, CallSegment):
            numbers = (*self.bound, *range(self._results, self._results + len(self._new)))
            self._first, rest = begun.row(self._calls, numbers, wanted, self.apart), rest[1:]
        else:
            self._first = self._looks()
        self._actions = [(n, one.made(self._calls) if isinstance(one, CallSegment) else one) for n, one in rest]
        self._followed: tuple[CallRow, Followed] | None = None  # made when somebody listens
        self.quick: Keyed | None = None
        """`run` on arrays by key, where there is one result, and no step in Python."""

    def _looks(self) -> CallRow:
        """What looks at the arrays of a run, and no more."""
        calls = self._calls.get(COPIES) or self._calls.setdefault(COPIES, backend(COPIES).calls())
        return calls.sequence((), (), self._wanted, self.apart)

    def run(self, given: Sequence[Array], out: Sequence[Array | None] | None = None) -> list[Array] | None:
        """The results, for these sources.

        Args:
            given: an array for each of `bound`, of the samples' types, shapes and strides.
            out: row-major arrays to write results to, apart from each other and what is read but for what `apart`
                says; None: new ones.

        Returns:
            None where an array does not fit, or shares memory, and nothing has run; or where a place lies outside.

        Raises:
            WorkFailed: a task raised.
        """
        results = self._taking(out)
        try:
            if (self._first.run if out is None else self._first.again)(*given, *results):  # another `Outcome` than DONE
                return None
        except Exception as error:
            raise WorkFailed(self._tasks[self._found[0][0]]) from error
        if self._actions:
            self.runs += 1
            with np.errstate(all="ignore"):  # what NumPy would warn of is part of the values
                actions.act_all(self._actions, self._held(given, results), self._tasks)
        return results

    def follow(self, given: Sequence[Array], out: Sequence[Array | None] | None, note: Note) -> list[Array] | None:
        """As `run`, but that ``note`` takes the tasks as they are done; None also after some of them, where a place
        lies outside, or before them, where a thread is in `quick`."""
        if self._followed is None:
            self._followed = self._looks(), Followed(self._found, self._actions, self._calls, self._tasks)
        (looks, followed), results = self._followed, self._taking(out)
        if (looks.run if out is None else looks.again)(*given, *results):
            return None
        with self._first.claimed() as mine, np.errstate(all="ignore"):
            return results if mine and followed.run(self._held(given, results), note) else None

    @property
    def running(self) -> bool:
        """Whether a thread is in `quick`."""
        return self._first.running

    def _taking(self, out: Sequence[Array | None] | None) -> list[Array]:
        """The arrays that take the results of a run."""
        if out is None:
            return [new() for new in self._new]
        return [new() if array is None else array for new, array in zip(self._new, out, strict=True)]

    def _held(self, given: Sequence[Array], results: Sequence[Array]) -> Values:
        """The values of a run."""
        held: Values = [None] * self._results
        for number, array in zip(self.bound, given, strict=True):
            held[number] = array
        return held + [*results, *([None] * self._outputs)]

    def named(self, keys: Sequence[object]) -> None:
        """Have `quick` take the arrays of a run by keys, which are in the order of `bound`."""
        if not self._actions and len(self._new) == 1:
            self.quick = self._first.keyed(keys, self._new[0])
