"""Calls of tasks that are alike, in columns: made from those of one of them, and put in the order of the tasks.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tileweave.backends.calls import AddsAlike, PointColumns
from tileweave.lower.actions import CallSegment, Found
from tileweave.planner.placement import IntArray


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
            segment.calls += calls[low:high].tolist()
            segment.tasks += numbers[low:high].tolist()
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


_NONE = np.zeros(0, np.int64)
