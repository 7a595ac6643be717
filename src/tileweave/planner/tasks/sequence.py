"""The tasks of a plan as a sequence, of which each is made when it is asked for.

Source: own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from tileweave.kept import cached_property
from tileweave.planner.placement import undivided
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import partition_of
from tileweave.planner.tasks.columns import TaskColumns, columns_of, grouped
from tileweave.planner.tasks.records import Task
from tileweave.planner.tasks.shards import Enumerator


class Tasks(Sequence[Task]):
    """The tasks of a plan's steps in issue order; equal where all tasks are.

    Args:
        steps: of the plan.
        machines: their numbers, in the order in which they are filled.

    Attributes:
        enumerator: what makes them, and finds what any region is read from.
    """

    def __init__(self, steps: Sequence[Step], machines: Sequence[int]) -> None:
        self.enumerator = Enumerator(steps, machines)
        self._made: dict[int, Task] = {}

    @cached_property
    def kinds(self) -> tuple[TaskColumns, ...]:
        """The tasks in columns, those together that are alike, in the order of the first of each kind."""
        found = tuple(columns_of(self.enumerator))
        self._made.update((kind.sample.number, kind.sample) for kind in found)
        return found

    def __len__(self) -> int:
        return len(self.enumerator.step_of)

    @overload
    def __getitem__(self, number: int) -> Task: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Task]: ...
    def __getitem__(self, number: int | slice) -> Task | Sequence[Task]:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        found = self._made.get(number)
        if found is None:
            count = len(self)
            if not -count <= number < count:
                raise IndexError(number)
            number %= count
            found = self._made[number] = self.enumerator.task(number)
        return found

    def __iter__(self) -> Iterator[Task]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tasks) and len(self) == len(other) and all(map(Task.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def in_one_process(plan: Plan) -> Plan:
    """The plan with the blocks of different machines put together: for a process that is all of these machines.

    Blocks that one machine has in turn stay apart, since memory asked for them, and partial results do, since their
    number decides how a sum is rounded.
    """

    def whole(step: Step) -> Step:
        if step.stage not in ("block", "store") or step.where.wave_count > 1 or step.cuts.count == 1:
            return step
        place = undivided(len(step.where.grid))
        return replace(step, cuts=partition_of(step.cuts.box, place), where=place)

    return replace(plan, steps=tuple(map(whole, plan.steps)))


def kinds_of(tasks: Sequence[Task]) -> Sequence[TaskColumns]:
    """All tasks, numbered in their order, in columns."""
    return tasks.kinds if isinstance(tasks, Tasks) else grouped(tasks, [task.step for task in tasks])


def tasks(plan: Plan) -> Tasks:
    """Every task of a plan in issue order; the order, and so the plan's peak memory, is deterministic."""
    return Tasks(plan.steps, plan.machines.order)
