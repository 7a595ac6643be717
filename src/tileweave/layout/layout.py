"""The core value: iters on named axes, and layouts (D, R, O) made of them.

A layout maps a logical index to a set of physical coordinates: ``f(x) = {D(x) + r + O : r in R}``. D is an ordered
tuple of iters, last fastest (row-major); R a multiset of iters; O one coordinate. A stride is a vector over
named axes, so one iter may move along several axes at once. CuTe, Axe and LEGO are notations on this value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Union

from tileweave.errors import LayoutError

__all__ = ["DEFAULT_AXIS", "Coord", "Iter", "Layout", "strided"]

DEFAULT_AXIS = "m"
"""The axis of a stride that names none: memory."""

CoordLike = Union["Coord", int, Mapping[str, int]]


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

    terms: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        total: dict[str, int] = {}
        for axis, value in self.terms:
            total[axis] = total.get(axis, 0) + value
        object.__setattr__(self, "terms", tuple(sorted((a, v) for a, v in total.items() if v)))

    @classmethod
    def of(cls, value: CoordLike) -> Coord:
        """A coordinate from itself, from an integer on the axis ``m``, or from a mapping."""
        if isinstance(value, Coord):
            return value
        if isinstance(value, Mapping):
            return cls(tuple(value.items()))
        try:
            return cls(((DEFAULT_AXIS, value.__index__()),))
        except AttributeError:
            raise LayoutError(
                "Coord.of(value)", f"{value!r} is not a coordinate", legal="an integer, a mapping axis -> integer, a Coord"
            ) from None

    def __getitem__(self, axis: str) -> int:
        return next((value for name, value in self.terms if name == axis), 0)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes on which the vector is not zero, sorted."""
        return tuple(axis for axis, _ in self.terms)

    def __add__(self, other: Coord) -> Coord:
        return Coord(self.terms + other.terms)

    def __sub__(self, other: Coord) -> Coord:
        return self + -1 * other

    def __rmul__(self, factor: int) -> Coord:
        return Coord(tuple((axis, factor * value) for axis, value in self.terms))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        text = ""
        for axis, value in self.terms:
            term = f"{abs(value)}@{axis}"
            if not text:
                text = term if value > 0 else f"-{term}"
            else:
                text += f" + {term}" if value > 0 else f" - {term}"
        return text or "0"


@dataclass(frozen=True, slots=True)
class Iter:
    """An iter: `extent` steps of `stride`, the map ``x -> x * stride`` on ``[0, extent)``.

    Args:
        extent: a positive integer, the number of steps.
        stride: a `Coord`, or an integer meaning that many elements on the axis ``m``; zero and negative allowed.

    Source: Axe, definition 2.1, with vector strides (own).
    """

    extent: int
    stride: Coord

    def __post_init__(self) -> None:
        object.__setattr__(self, "stride", Coord.of(self.stride))
        if not isinstance(self.extent, int) or self.extent < 1:
            raise LayoutError(
                "Iter(extent, stride)", f"extent {self.extent!r} is not positive", legal="a positive integer extent"
            )

    def __str__(self) -> str:
        return f"{self.extent}:{self.stride}"


def _iters(items: Iterable[Iter | tuple[int, CoordLike]]) -> tuple[Iter, ...]:
    return tuple(item if isinstance(item, Iter) else Iter(item[0], Coord.of(item[1])) for item in items)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout (D, R, O): ``f(x) = {D(x) + r + O : r in R}`` for ``0 <= x < size``.

    Args:
        shard: D, ordered, last iter fastest; may be empty (one logical index).
        replica: R, a multiset; kept sorted so that equal multisets are equal values.
        offset: O, added to every result.

    Example:
        >>> tile = Layout(((8, {"lane": 4}), (4, {"lane": 1}), (2, {"reg": 1})))
        >>> print(tile(13))
        6@lane + 1@reg

    Source: Axe, definitions 2.2 and 2.3.
    """

    shard: tuple[Iter, ...] = ()
    replica: tuple[Iter, ...] = ()
    offset: Coord = Coord()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard", _iters(self.shard))
        object.__setattr__(
            self, "replica", tuple(sorted(_iters(self.replica), key=lambda it: (it.extent, it.stride.terms)))
        )
        object.__setattr__(self, "offset", Coord.of(self.offset))

    @property
    def size(self) -> int:
        """The number of logical indices: the product of the extents of D."""
        return prod(it.extent for it in self.shard)

    def __call__(self, index: int | Sequence[int]) -> Coord:
        """The least replica's coordinate ``D(x) + O`` of a linear index, or of one digit per iter of D.

        Linear indices are row-major: the last iter is fastest.
        """
        if isinstance(index, int):
            if not 0 <= index < self.size:
                raise LayoutError(
                    "Layout(index)", f"{index} is out of range", inputs={"layout": self}, legal=f"0..{self.size - 1}"
                )
            digits = []
            for it in reversed(self.shard):
                index, digit = divmod(index, it.extent)
                digits.append(digit)
            digits.reverse()
        else:
            digits = list(index)
            if len(digits) != len(self.shard) or any(
                not 0 <= d < it.extent for d, it in zip(digits, self.shard, strict=True)
            ):
                raise LayoutError("Layout(digits)", f"{tuple(digits)} does not fit", inputs={"layout": self})
        out = self.offset
        for digit, it in zip(digits, self.shard, strict=True):
            if digit:
                out = out + digit * it.stride
        return out

    def replicas(self) -> Iterator[Coord]:
        """The offsets that R adds, one per replica, as a multiset."""
        offsets = [Coord()]
        for it in self.replica:
            offsets = [base + k * it.stride for base in offsets for k in range(it.extent)]
        return iter(offsets)

    def bounds(self, axis: str = DEFAULT_AXIS) -> tuple[int, int]:
        """The least and the greatest value that the layout takes on an axis."""
        low = high = self.offset[axis]
        for it in self.shard + self.replica:
            reach = (it.extent - 1) * it.stride[axis]
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def span(self, axis: str = DEFAULT_AXIS) -> int:
        """``max - min + 1`` of the values on an axis; 1 on an axis that the layout does not use."""
        low, high = self.bounds(axis)
        return high - low + 1

    def __str__(self) -> str:
        text = "(" + ", ".join(map(str, self.shard)) + ")"
        if self.replica:
            text += " + [" + ", ".join(map(str, self.replica)) + "]"
        if self.offset:
            text += f" + {self.offset}"
        return text


def strided(shape: Sequence[int], strides: Sequence[int], offset: int = 0, axis: str = DEFAULT_AXIS) -> Layout:
    """The layout of a strided array: one iter per dimension, first dimension slowest, strides in elements.

    Args:
        shape: positive extents. Empty arrays have no layout; the floors above answer them first.
        strides: elements between neighbours, any sign, zero for a broadcast dimension.
        offset: elements before the first.

    Example:
        >>> print(strided((2, 3), (3, 1)))
        (2:3@m, 3:1@m)
    """
    if len(shape) != len(strides):
        raise LayoutError("strided(shape, strides)", f"ranks {len(shape)} and {len(strides)} differ")
    iters = tuple(Iter(int(n), Coord(((axis, int(s)),))) for n, s in zip(shape, strides, strict=True))
    return Layout(iters, (), Coord(((axis, int(offset)),)))
