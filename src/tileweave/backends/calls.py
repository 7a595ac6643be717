"""Prepared calls of kernels: what a run brings to them, what that has to be, and what became of the run.

A backend makes kernels ready to be called many times on known arrays (`Calls`). What changes from run to run comes as
objects by number; a row of calls looks whether they are what is wanted, and whether memory that is written is apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.host import address_of, span

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Apart:
    """Which memory of a run must not be shared: results with each other and with what is read.

    Args:
        sources: what is read, as (number of the object, or -1, an array that lies as the object does, or is read).
        results: arrays that lie as the results do.
        first: the number of the first result among the objects.
        over: per result, the places of sources that it may be written over if it lies just there.
    """

    sources: Sequence[tuple[int, Array]] = ()
    results: Sequence[Array] = ()
    first: int = 0
    over: Sequence[frozenset[int]] = ()

    def clashing(self, objects: Sequence[Any]) -> frozenset[int]:
        """The results of a run, by place, that share memory.

        Args:
            objects: by number; None for a result that is new.

        Example:
            >>> a, b = np.zeros(4), np.zeros(4)
            >>> apart, inplace = (Apart([(0, a)], [a], 1, [over]) for over in (frozenset(), frozenset({0})))
            >>> apart.clashing([a, a]), inplace.clashing([a, a]), apart.clashing([a, b])
            (frozenset({0}), frozenset(), frozenset())
        """
        written = objects[self.first : self.first + len(self.results)]
        spans = [(*span(array), -1 - k) for k, array in enumerate(written) if array is not None and array.size]
        read = (held if number < 0 else objects[number] for number, held in self.sources)
        spans += [(*span(array), k) for k, array in enumerate(read) if array.size]
        found = set[int]()
        alive: list[tuple[int, int, int]] = []
        for one in sorted(spans):
            alive = [other for other in alive if other[1] > one[0]]
            for other in alive:
                result, source = sorted((one[2], other[2]))
                if result >= 0:
                    continue
                if source < 0:
                    found |= {-1 - result, -1 - source}
                elif not (source in self.over[-1 - result] and one[:2] == other[:2]):
                    found.add(-1 - result)
            alive.append(one)
        return frozenset(found)


NOWHERE = Apart()
"""Of objects that may lie anywhere."""


class Calls(Protocol):
    """Calls of kernels on arrays that are known beforehand, made ready to be run many times.

    The calls of one value never overlap in time: they share their working memory.
    """

    def add(self, kernel: Any, arrays: Sequence[Array]) -> int:
        """A call of a kernel of this backend, by number; the arrays are checked now. They must stay alive.

        Raises:
            BackendError: the kernel cannot run on these arrays.
        """

    def sequence(
        self,
        calls: Sequence[int],
        points: Sequence[Point | PointColumns] = (),
        wanted: Sequence[Wanted] = (),
        apart: Apart = NOWHERE,
    ) -> CallRow:
        """These calls one after the other.

        Args:
            calls: by number.
            points: operands that every run brings, beside those that were given to `add`; in columns where the value
                also `AddsAlike`.
            wanted: what the objects of a run have to be.
            apart: which of them have to lie apart in `CallRow.again`.
        """


class AddsAlike(Protocol):
    """Calls of which many can be made from one, without looking at arrays."""

    def add_like(self, call: int, addresses: Sequence[int]) -> int | None:
        """A call of the kernel of an earlier one on arrays that lie alike at other addresses; None where that asks for
        arrays.

        Raises:
            BackendError: what is written shares bytes with another array.
        """

    def add_columns(self, call: int, moved_bytes: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Calls like an earlier one, by number, each on arrays that lie some bytes behind its arrays; as `add_like`.

        Args:
            call: the earlier one.
            moved_bytes: a row per call, a column per operand.
        """

    def operands(self, calls: NDArray[np.int64], position: int) -> NDArray[np.int64]:
        """Where the operands of a position are named, for `PointColumns`."""


class TimedCalls(Protocol):
    """Calls in a row of which each says when it is done."""

    def run(self, low: int, high: int) -> list[float] | None:
        """Some of the calls: per call the time of `time.perf_counter` behind it; None where one met a `Outcome.FAULT`.

        Args:
            low: the place of the first.
            high: that behind the last.
        """


class TimesCalls(Protocol):
    """Calls that can be run with their times."""

    def timed(self, calls: Sequence[int]) -> TimedCalls | None:
        """These calls, whose operands an empty `Calls.sequence` points to; None where there is no clock for it."""


@dataclass(frozen=True, slots=True)
class Point:
    """An operand of a call that lies in an object of the run.

    Args:
        call: its number.
        position: of the operand.
        number: of the object.
        offset_bytes: from the object's first element to the operand's.
        view: the operand as a view of the object; None: the object itself.
    """

    call: int
    position: int
    number: int
    offset_bytes: int
    view: Callable[[Array], Array] | None


@dataclass(frozen=True, slots=True, eq=False)
class PointColumns:
    """Operands that lie in objects of the run, a row each.

    Args:
        places: where they are named, as `AddsAlike.operands` says.
        numbers: of the objects.
        offset_bytes: from the object's first element to the operand's.
    """

    places: NDArray[np.int64]
    numbers: NDArray[np.int64]
    offset_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an object of a run has to be: an array of this very type, shape and strides.

    Args:
        number: of the object.
        dtype: of its elements; the same object.
        shape: in elements.
        strides: in bytes.
        aligned: whether its elements must be aligned.
        written: whether it must be writeable.
    """

    number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool
    written: bool

    def fits(self, array: object) -> bool:
        """Whether an object is that."""
        return (
            type(array) is np.ndarray
            and array.dtype is self.dtype
            and array.shape == self.shape
            and array.strides == self.strides
            and (array.flags.aligned or not self.aligned)
            and (array.flags.writeable or not self.written)
        )


class Outcome(IntEnum):
    """What became of a run."""

    DONE = 0
    MISFIT = 1
    """An object is not what is wanted; nothing has run."""
    SHARED = 2
    """Memory that is written is read too, or written twice; nothing has run."""
    FAULT = 3
    """A call met a place outside of an array: what was written is no result."""


Keyed = Callable[[Any, Any], Array | None]
"""`CallRow.run` on objects by key and a new array, or on that which is given for the result, whose memory is looked at
first; the result, or None where that is no dict of these keys alone, or the outcome another than `Outcome.DONE`."""


class CallRow(Protocol):
    """Calls in a row, for objects by number; two runs of one value never overlap: see `keyed`."""

    @property
    def run(self) -> Callable[..., int]:
        """Run on objects whose memory is known to be apart; an `Outcome`."""

    @property
    def again(self) -> Callable[..., int]:
        """Run on objects whose memory is looked at first; an `Outcome`."""

    def keyed(self, keys: Sequence[object], new: Callable[[], Array]) -> Keyed | None:
        """A run on the objects that a dict has for keys, in their order, and behind them the array of the result.

        Two threads may call it at once: the second is refused, as everybody is while these calls run. None where
        nothing keeps them apart.

        Args:
            keys: all that the dict may have.
            new: makes an array for the result where none is given.
        """

    @property
    def running(self) -> bool:
        """Whether a thread is in these calls, as far as they know."""

    def claimed(self) -> AbstractContextManager[bool]:
        """These calls run for nobody else inside a with block; says whether nobody ran them before."""


class PythonRow:
    """Calls in a row, made ready and run from Python.

    Args:
        point: called with each point and its operand.
        run: runs the calls; an `Outcome`, or None.
        points: as `Calls.sequence`.
        wanted: as `Calls.sequence`.
        apart: as `Calls.sequence`.
    """

    def __init__(
        self,
        point: Callable[[Point, Array], object],
        run: Callable[[], int | None],
        points: Sequence[Point],
        wanted: Sequence[Wanted],
        apart: Apart,
    ) -> None:
        self._point, self._calls, self._points, self._wanted, self._apart = point, run, points, wanted, apart
        self._lay: list[int] = []  # where the objects lay that were found apart last

    def run(self, *objects: Any) -> int:
        """As `CallRow`."""
        for about in self._wanted:
            if not about.fits(objects[about.number]):
                return Outcome.MISFIT
        for point in self._points:
            array = objects[point.number]
            self._point(point, array if point.view is None else point.view(array))
        return self._calls() or Outcome.DONE

    running = False

    def claimed(self) -> AbstractContextManager[bool]:
        """As `CallRow`."""
        return nullcontext(True)

    def keyed(self, keys: Sequence[object], new: Callable[[], Array]) -> None:
        """As `CallRow`: two runs at once would name each other's arrays."""

    def again(self, *objects: Any) -> int:
        """As `CallRow`."""
        lie = [address_of(one) for one in objects if type(one) is np.ndarray]
        if lie != self._lay and len(lie) == len(objects):
            if not all(about.fits(objects[about.number]) for about in self._wanted):
                return Outcome.MISFIT
            if self._apart.clashing(objects):
                return Outcome.SHARED
            self._lay = lie
        return self.run(*objects)
