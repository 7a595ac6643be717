"""What a run does, in its order: rows of calls, and steps in Python between them; and when each task of it is done.

Source: own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import sub
from time import perf_counter
from typing import cast

import numpy as np

from tileweave.backends.calls import (
    NOWHERE,
    AddsAlike,
    Apart,
    CallRow,
    Calls,
    Outcome,
    Point,
    PointColumns,
    TimesCalls,
    Wanted,
)
from tileweave.lower.values import Action, Array, Slot, Values
from tileweave.planner.placement import IntArray
from tileweave.planner.tasks import Task

Seconds = Sequence[float]
"""Times of `time.perf_counter`."""


class WorkFailed(Exception):
    """A task raised; `__cause__` says what."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.number)
        self.task = task


@dataclass(slots=True)
class CallSegment:
    """Calls of one backend that nothing interrupts.

    Args:
        by: the backend.
        calls: by number.
        points: (call, position of an operand, what every run brings for it, and how far behind its first element).
        tasks: whose calls they are, by number.
        columns: the same of many calls; the objects are values of the run.
    """

    by: str = ""
    calls: array[int] = field(default_factory=lambda: array("q"))
    points: list[tuple[int, int, Slot, int]] = field(default_factory=list)
    tasks: array[int] = field(default_factory=lambda: array("q"))
    columns: list[PointColumns] = field(default_factory=list)

    def add(self, call: int, number: int, operands: Sequence[Array | Slot] = ()) -> None:
        """A call for a task, with what every run brings among its operands."""
        slots = ((k, one) for k, one in enumerate(operands) if isinstance(one, Slot))
        self.points += [(call, k, one, one.offset_bytes) for k, one in slots]
        self.calls.append(call)
        self.tasks.append(number)

    def row(
        self,
        calls: Mapping[str, Calls],
        numbers: Sequence[int],
        wanted: Sequence[Wanted] = (),
        apart: Apart = NOWHERE,
        own_calls: Sequence[int] | None = None,
    ) -> CallRow:
        """The calls as a function of the values of these numbers."""
        places = {number: k for k, number in enumerate(numbers)}
        points: list[Point | PointColumns] = [
            Point(call, position, places[slot.number], offset_bytes, slot.view)
            for call, position, slot, offset_bytes in self.points
        ]
        for one in self.columns:
            found, inverse = np.unique(one.numbers, return_inverse=True)
            own = np.array([places[number] for number in found.tolist()], np.int64)
            points.append(replace(one, numbers=own[inverse]))
        return calls[self.by].sequence(self.calls if own_calls is None else own_calls, points, wanted, apart)

    def part(self, low: int, high: int) -> CallSegment:
        """Some of the calls, none of which is in columns."""
        chosen = set(self.calls[low:high])
        points = [point for point in self.points if point[0] in chosen]
        return CallSegment(self.by, self.calls[low:high], points, self.tasks[low:high])

    def made(self, calls: Mapping[str, Calls], own_calls: Sequence[int] | None = None) -> Action:
        """The calls, or others that find their operands so, as an action."""
        own = [number for one in self.columns for number in np.unique(one.numbers).tolist()]
        numbers = tuple(dict.fromkeys([*(slot.number for _, _, slot, _ in self.points), *own]))
        run = self.row(calls, numbers, own_calls=own_calls).run

        def act(now: Values) -> None:
            if run(*[now[k] for k in numbers]) == Outcome.FAULT:
                raise IndexError("a place is out of bounds")

        return act


Found = tuple[int, Action | CallSegment]
"""What a run does for a task, or, in one row of calls, for several up to one; -1 where it is for none."""


def drop(numbers: Sequence[int], held: Values) -> None:
    """Forgets values of a run."""
    for number in numbers:
        held[number] = None


def wanted_of(samples: Sequence[Array], written: bool, first: int = 0) -> list[Wanted]:
    """That the objects of a run, from a number on, lie as these arrays do."""
    return [
        Wanted(first + k, one.dtype, one.shape, one.strides, one.flags.aligned, written)
        for k, one in enumerate(samples)
    ]


def act_all(actions: Sequence[tuple[int, Action]], held: Values, tasks: Sequence[Task]) -> None:
    """Does everything for the values of a run.

    Raises:
        WorkFailed: a task raised.
    """
    at = -1
    try:
        for number, action in actions:
            at = number
            action(held)
    except Exception as error:
        raise WorkFailed(tasks[at]) from error


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class CallColumns:
    """A call of each of several tasks.

    Args:
        numbers: of the tasks.
        place: of the call among those of its task.
        calls: by number.
        points: per operand that every run brings, a row per task.
    """

    numbers: IntArray
    place: int
    calls: IntArray
    points: tuple[PointColumns, ...]


def columns_of(
    numbers: IntArray, segment: CallSegment, moved: Sequence[IntArray], calls: AddsAlike
) -> list[CallColumns] | None:
    """The calls of tasks that are alike, from those of the first; None where a kernel makes no calls like another.

    Args:
        numbers: of the tasks.
        segment: the calls of the first.
        moved: as `TaskPlaces.moved`.
        calls: that those of the first are of.
    """
    out = []
    for place, (first, bytes_) in enumerate(zip(segment.calls, moved, strict=True)):
        behind = bytes_ - bytes_[0]
        made = calls.add_columns(first, behind[1:])
        if made is None:
            return None
        own = np.append(first, made)
        points = [
            PointColumns(calls.operands(own, k), np.full(len(own), slot.number), offset_bytes + behind[:, k])
            for call, k, slot, offset_bytes in segment.points
            if call == first
        ]
        out.append(CallColumns(numbers, place, own, tuple(points)))
    return out


def in_order_of_tasks(
    columns: Sequence[CallColumns], between: Sequence[tuple[int, list[Found]]], by: str
) -> list[Found]:
    """What a run does, in the order of its tasks.

    Args:
        columns: calls of tasks that are bound together.
        between: what is done for each of the others, in their order.
        by: the backend of the calls in columns.
    """
    numbers = np.concatenate([_NONE, *(one.numbers for one in columns)])
    places = np.concatenate([_NONE, *(np.full(len(one.numbers), one.place) for one in columns)])
    order = np.lexsort((places, numbers))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    begins = np.cumsum([0, *(len(one.numbers) for one in columns)])
    at = np.concatenate(
        [
            _NONE,
            *(
                rank[a : a + len(one.calls)]
                for a, one in zip(begins.tolist(), columns, strict=False)
                for _ in one.points
            ),
        ]
    )
    points = [point for one in columns for point in one.points]
    words = [
        np.concatenate([_NONE, *(getattr(point, name) for point in points)])
        for name in ("places", "numbers", "offset_bytes")
    ]
    sort = np.argsort(at, kind="stable")
    at, words = at[sort], [word[sort] for word in words]
    calls, numbers = np.concatenate([_NONE, *(one.calls for one in columns)])[order], numbers[order]
    out, segment = list[Found](), CallSegment(by)

    def flush() -> None:
        nonlocal segment
        if segment.calls:
            out.append((segment.tasks[-1], segment))
            segment = CallSegment(by)

    def take(low: int, high: int) -> None:
        if high > low:
            segment.calls.extend(calls[low:high].tolist())
            segment.tasks.extend(numbers[low:high].tolist())
            first, last = np.searchsorted(at, [low, high]).tolist()
            if last > first:
                segment.columns.append(PointColumns(*(word[first:last] for word in words)))

    done = 0
    for number, found in between:
        upto = int(np.searchsorted(numbers, number))
        take(done, upto)
        done = upto
        for one in found:
            if isinstance(one[1], CallSegment) and one[1].by == by:
                segment.calls += one[1].calls
                segment.points += one[1].points
                segment.tasks += one[1].tasks
            else:
                flush()
                out.append(one)
    take(done, len(numbers))
    flush()
    return out


Note = Callable[[int, Seconds, Seconds], object]
"""Takes tasks in their order as they are done: the number of the first, and per task the time at which it began and
that at which it ended."""
BATCH_SECONDS = 0.01
"""So long calls run before somebody hears of them, or as long as one task takes: a person sees no shorter time."""
FIRST_BATCH = 8
"""At most so many calls of a row run before the clock says how long they take; the first of a run is alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Calls or a step in Python that are run with their times.

    Args:
        tasks: per call the number of its task.
        begin: is told the values of the run first.
        run: some of the calls; per call the time behind it, None where one met a fault.
    """

    tasks: IntArray
    begin: Action
    run: Callable[[Values, int, int], Seconds | None]


class Followed:
    """What a run does, with the times of its tasks.

    Tasks are told in their order. Each begins when the one before it ends; where kernels of several tasks take turns,
    as in a sweep, these are told behind all of them, each with the time that its own kernels took.

    Args:
        found: what the run does.
        made: the same as actions, but for the first of them where that is more than there is here.
        calls: what the calls are of, by backend.
        tasks: of the run, in their order.
    """

    def __init__(
        self,
        found: Sequence[Found],
        made: Sequence[tuple[int, Action]],
        calls: Mapping[str, Calls],
        tasks: Sequence[Task],
    ) -> None:
        actions = [*([None] * (len(found) - len(made))), *(action for _, action in made)]
        both = zip(found, actions, strict=True)
        self._tasks, self._parts = tasks, [part for one, action in both for part in _parts(*one, action, calls)]
        self._own = own = np.concatenate([np.zeros(0, np.int64), *(part.tasks for part in self._parts)])
        first = np.append(np.minimum.accumulate(own[::-1])[::-1], len(tasks))  # of which there is a call from here on
        done = np.append(-1, np.maximum.accumulate(own)) < first
        self._upto: list[int] = np.where(done, first, -1).tolist()
        """Per number of calls the tasks that are done then, where no other has begun; else -1."""
        self._ends = np.flatnonzero(done)

    def run(self, held: Values, note: Note) -> bool:
        """Does it; whether no call met a fault.

        Args:
            held: the values of the run.
            note: takes the tasks.

        Raises:
            WorkFailed: a task raised.
        """
        told = done = base = 0
        batch = 1  # a listener may stop a run, so it does not wait for eight calls of a minute each
        began, spent = perf_counter(), list[float]()
        for part in self._parts:
            low, count, batch = 0, len(part.tasks), min(batch, FIRST_BATCH)
            while low < max(count, 1):
                high = count
                if count - low > batch:
                    behind = np.searchsorted(self._ends, base + low + batch)
                    high = min(count, int(self._ends[behind]) - base)
                start = perf_counter()
                try:
                    if not low:
                        part.begin(held)
                    ends = part.run(held, low, high)
                except Exception as error:
                    raise WorkFailed(self._tasks[int(part.tasks[low])]) from error
                if ends is None:
                    return False
                if high == low:
                    break
                began = began if spent else start
                spent += map(sub, ends, [start, *ends[:-1]])
                batch = min(4 * batch, 1 + int(batch * BATCH_SECONDS / max(ends[-1] - start, 1e-9)))
                low, upto = high, self._upto[base + high]
                if upto >= 0:
                    took = [0.0] * (upto - told)
                    for number, seconds in zip(self._own[done : base + high].tolist(), spent, strict=True):
                        took[number - told] += seconds
                    *starts, end = accumulate(took, initial=began)
                    note(told, starts, [*starts[1:], end])
                    told, done, spent = upto, base + high, []
            base += count
        if told < len(self._tasks):  # without a call: all that they make lies there already
            now = [perf_counter()] * (len(self._tasks) - told)
            note(told, now, now)
        return True


def _parts(number: int, action: Action | CallSegment, made: Action | None, calls: Mapping[str, Calls]) -> list[_Part]:
    """What is done for one task or in one row of calls; ``made``: as an action."""
    if not isinstance(action, CallSegment):
        return [_Part(np.array([number] if number >= 0 else [], np.int64), _nothing, _alone(action))]
    by, tasks = calls[action.by], np.array(action.tasks, np.int64)
    if made is not None and len(tasks) == 1:
        return [_Part(tasks, _nothing, _alone(made))]
    timed = cast("TimesCalls", by).timed(action.calls) if hasattr(by, "timed") else None
    if timed is not None:
        run = timed.run
        return [_Part(tasks, action.made(calls, ()), lambda held, low, high: run(low, high))]
    cuts = [0, *(np.flatnonzero(np.diff(tasks)) + 1).tolist(), len(tasks)]
    rows = [action.part(low, high) for low, high in pairwise(cuts)]
    return [_Part(np.array(row.tasks[-1:]), _nothing, _alone(row.made(calls))) for row in rows]


def _alone(action: Action) -> Callable[[Values, int, int], Seconds]:
    def run(held: Values, low: int, high: int) -> Seconds:
        action(held)
        return [perf_counter()] * (high - low)

    return run


def _nothing(held: Values) -> None:
    """Nothing has to be told."""
