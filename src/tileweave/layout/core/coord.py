"""Coordinates: vectors over named axes, the values that layouts take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_index
from typing import Any, Union, cast

import numpy as np

from tileweave.errors import LayoutError
from tileweave.layout.core.symbolic import is_expr, plain, simple

DEFAULT_AXIS = "m"
"""The axis of a stride that names none: memory."""

CoordLike = Union["Coord", int, Mapping[str, int]]
IntArray = np.ndarray[Any, Any]
Shape = int | Sequence[int]
"""Extents, first dimension slowest; n stands for (n,)."""
Terms = tuple[tuple[str, int], ...]


def integer(value: object, where: str, what: str) -> int:
    """A plain int, or an index expression (typed as the int that it stands for), or an error that names the value."""
    if type(value) is int:
        return value
    value = plain(value)
    if is_expr(value):
        return cast("int", value)
    try:
        return int(as_index(value))  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(where, f"{what} {value!r} is not an integer", legal="an integer") from None


def integers(values: int | Iterable[int], where: str, what: str) -> tuple[int, ...]:
    """A tuple of plain ints (or index expressions), or an error that names the first value that is none; n is (n,)."""
    if values.__class__ is not tuple and (isinstance(values, (int, np.integer)) or is_expr(values)):
        return (integer(values, where, what),)
    try:
        items = None if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        items = None
    if items is None:
        raise LayoutError(where, f"{values!r} is not a sequence of {what}s", legal="a tuple of integers")
    return tuple([v if v.__class__ is int else integer(v, where, what) for v in items])


@dataclass(frozen=True, slots=True)
class Coord:
    """A vector over named axes, zero on every axis that it does not name; an element of Axe's module ZA.

    Args:
        terms: (axis, value) pairs; sorted by axis, zeros dropped, duplicates added up.

    Example:
        >>> 2 * Coord.of({"lane": 4}) - Coord.of(3)
        Coord((('lane', 8), ('m', -3)))
        >>> print(Coord.of({"a": 1, "b": -3}))
        1@a - 3@b

    Source: Axe, section 2.3.
    """

    terms: Terms = ()

    def __post_init__(self) -> None:
        total: dict[str, int] = {}
        try:
            for axis, value in self.terms:
                if not isinstance(axis, str) or not axis.isidentifier():
                    raise LayoutError("Coord(terms)", f"{axis!r} is not the name of an axis", legal="an identifier")
                total[axis] = total.get(axis, 0) + integer(value, "Coord(terms)", f"the value on axis {axis}")
        except (TypeError, ValueError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError("Coord(terms)", f"{self.terms!r} is not a list of (axis, value) pairs") from None
        kept = [(axis, simple(v)) for axis, v in sorted(total.items())]
        _set_terms(self, tuple((axis, v) for axis, v in kept if is_expr(v) or v))

    def __repr__(self) -> str:
        return f"Coord({self.terms!r})"

    @classmethod
    def of(cls, value: CoordLike) -> Coord:
        """A coordinate from itself, from an integer on the axis ``m``, or from a mapping."""
        if isinstance(value, Coord):
            return value
        if isinstance(value, Mapping):
            return cls(tuple(value.items()))
        if is_expr(value):
            return cls(((DEFAULT_AXIS, value),))
        try:
            number = int(as_index(value))
        except TypeError:
            raise LayoutError(
                "Coord.of(value)",
                f"{value!r} is not a coordinate",
                legal="an integer, a mapping axis -> integer, a Coord",
            ) from None
        return coord_of_terms(((DEFAULT_AXIS, number),)) if number else ZERO

    __iter__ = None  # with `__getitem__` alone, iteration would count axes 0, 1, .. without end

    def __getitem__(self, axis: str) -> int:
        for name, value in self.terms:
            if name == axis:
                return value
        return 0

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes on which the vector is not zero, sorted."""
        return tuple(axis for axis, _ in self.terms)

    def __add__(self, other: Coord) -> Coord:
        mine, theirs = self.terms, other.terms
        if not theirs:
            return self
        if not mine:
            return other
        if len(mine) == 1 and len(theirs) == 1 and mine[0][0] == theirs[0][0]:
            total = mine[0][1] + theirs[0][1]
            if type(total) is int:
                return coord_of_terms(((mine[0][0], total),)) if total else ZERO
        return Coord(mine + theirs)

    def __sub__(self, other: Coord) -> Coord:
        return self + -1 * other

    def __rmul__(self, factor: int) -> Coord:
        if type(factor) is int:
            if not factor:
                return ZERO
            for _, value in self.terms:
                if type(value) is not int:
                    break
            else:
                return coord_of_terms(tuple([(axis, factor * value) for axis, value in self.terms]))
        return Coord(tuple((axis, factor * value) for axis, value in self.terms))

    def __neg__(self) -> Coord:
        return -1 * self

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        text = ""
        for axis, value in self.terms:
            positive = is_expr(value) or value > 0
            term = f"({value})@{axis}" if is_expr(value) else f"{abs(value)}@{axis}"
            if not text:
                text = term if positive else f"-{term}"
            else:
                text += f" + {term}" if positive else f" - {term}"
        return text or "0"


_set_terms = Coord.__dict__["terms"].__set__
_new = object.__new__


def coord_of_terms(terms: Terms) -> Coord:
    """A coordinate from terms that are already sorted, unique and not zero; unchecked, for inner loops."""
    coord = _new(Coord)
    _set_terms(coord, terms)
    return coord


ZERO = coord_of_terms(())
"""The coordinate that is zero on every axis."""
