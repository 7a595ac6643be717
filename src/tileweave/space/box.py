"""Boxes and lattices: the regions of integer space that everything above is cut into.

A `Box` is half-open: it holds the points ``start <= p < start + shape``. A box of rank 0 holds exactly one
point; a box with a zero extent holds none. A `Lattice` is a box with steps between its points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from operator import add

from tileweave.errors import SpaceError

Point = tuple[int, ...]
_INTEGERS = {int}


def _integers(where: str, name: str, values: Sequence[int]) -> Point:
    out = []
    for value in values:
        try:
            out.append(value.__index__())
        except AttributeError:
            raise SpaceError(where, f"{value!r} in {name} is not an integer", legal="integers") from None
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Box:
    """The half-open region ``start <= p < start + shape`` of integer space.

    Args:
        start: the least corner; any integers.
        shape: the extents; zero or more. A zero extent makes the box empty.

    Raises:
        SpaceError: ranks differ, an extent is negative, or a value is not an integer.

    Example:
        >>> Box((0, 2), (3, 4)).stop
        (3, 6)
        >>> Box((), ()).size
        1

    Source: Tapestry, "Working in ZSpace" (ZRange).
    """

    start: Point
    shape: Point

    def __post_init__(self) -> None:
        start, shape = self.start, self.shape
        if type(start) is not tuple or not _INTEGERS.issuperset(map(type, start)):
            object.__setattr__(self, "start", _integers("Box(start, shape)", "start", start))
        if type(shape) is not tuple or not _INTEGERS.issuperset(map(type, shape)):
            object.__setattr__(self, "shape", _integers("Box(start, shape)", "shape", shape))
        if len(self.start) != len(self.shape):
            raise SpaceError(
                "Box(start, shape)",
                f"start has rank {len(self.start)}, shape has rank {len(self.shape)}",
                inputs={"start": self.start, "shape": self.shape},
                legal="equal ranks",
            )
        if self.shape and min(self.shape) < 0:
            raise SpaceError(
                "Box(start, shape)",
                f"extent {min(self.shape)} is negative",
                inputs={"shape": self.shape},
                legal="extents of zero or more",
            )

    @classmethod
    def of(cls, shape: Sequence[int]) -> Box:
        """The box of this shape whose least corner is the origin."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def between(cls, start: Sequence[int], stop: Sequence[int]) -> Box:
        """The box from `start` up to, not including, `stop`."""
        return cls(tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True)))

    @property
    def stop(self) -> Point:
        """The corner one past the greatest point, per dimension."""
        return tuple(map(add, self.start, self.shape))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(self.shape)

    @property
    def empty(self) -> bool:
        """Whether the box holds no point."""
        return 0 in self.shape

    def __iter__(self) -> Iterator[Point]:
        """The points, last dimension fastest."""
        return itertools.product(*(range(a, b) for a, b in zip(self.start, self.stop, strict=True)))

    def contains(self, other: Box | Point) -> bool:
        """Whether a point, or every point of a box, lies inside. An empty box lies inside every box of its rank."""
        if isinstance(other, Box):
            self._same_rank("contains", other.rank)
            return other.empty or (
                all(a <= b for a, b in zip(self.start, other.start, strict=True))
                and all(b <= a for a, b in zip(self.stop, other.stop, strict=True))
            )
        self._same_rank("contains", len(other))
        return all(a <= p < b for a, p, b in zip(self.start, other, self.stop, strict=True))

    def translate(self, by: Sequence[int]) -> Box:
        """The box moved by a vector."""
        if len(by) != len(self.shape):
            self._same_rank("translate", len(by))
        if not any(by):
            return self
        return trusted_box(tuple(map(add, self.start, by)), self.shape)

    def intersect(self, other: Box) -> Box:
        """The box of the common points; empty (never negative) when there are none."""
        self._same_rank("intersect", other.rank)
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return trusted_box(start, tuple(max(0, b - a) for a, b in zip(start, stop, strict=True)))

    def union(self, other: Box) -> Box:
        """The least box that holds both; an empty operand adds nothing."""
        self._same_rank("union", other.rank)
        if self.empty:
            return other
        if other.empty:
            return self
        return Box.between(tuple(map(min, self.start, other.start)), tuple(map(max, self.stop, other.stop)))

    def split(self, dim: int, at: int) -> tuple[Box, Box]:
        """The two boxes below and from coordinate `at` of dimension `dim`; together they hold each point once."""
        low, high = self.start[dim], self.stop[dim]
        if not low <= at <= high:
            raise SpaceError(
                "Box.split(dim, at)", f"{at} is outside dimension {dim}", inputs={"box": self}, legal=f"{low}..{high}"
            )
        return self.with_range(dim, low, at), self.with_range(dim, at, high)

    def with_range(self, dim: int, start: int, stop: int) -> Box:
        """The same box with one dimension replaced by ``start <= p < stop``."""
        starts, shape = list(self.start), list(self.shape)
        starts[dim], shape[dim] = start, stop - start
        return trusted_box(tuple(starts), tuple(shape)) if stop >= start else Box(tuple(starts), tuple(shape))

    def _same_rank(self, method: str, rank: int) -> None:
        if rank != self.rank:
            raise SpaceError(f"Box.{method}", f"rank {rank} does not fit rank {self.rank}", inputs={"box": self})

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


@dataclass(frozen=True, slots=True)
class Lattice:
    """A stepped box: the points ``start + step * i`` for ``0 <= i < shape``, with positive steps.

    Example:
        >>> list(Lattice((1,), (3,), (2,)))
        [(1,), (3,), (5,)]

    Source: own; the exact image of a striding projection.
    """

    start: Point
    shape: Point
    step: Point

    def __post_init__(self) -> None:
        for name in ("start", "shape", "step"):
            object.__setattr__(self, name, _integers("Lattice(start, shape, step)", name, getattr(self, name)))
        if not len(self.start) == len(self.shape) == len(self.step):
            raise SpaceError("Lattice(start, shape, step)", "ranks differ", inputs={"lattice": self.__repr__()})
        if any(n < 0 for n in self.shape) or any(s < 1 for s in self.step):
            raise SpaceError(
                "Lattice(start, shape, step)",
                "an extent is negative or a step is not positive",
                inputs={"shape": self.shape, "step": self.step},
                legal="extents >= 0, steps >= 1",
            )

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(self.shape)

    @property
    def cover(self) -> Box:
        """The least box that holds every point."""
        if 0 in self.shape:
            return Box(self.start, (0,) * len(self.shape))
        return Box(self.start, tuple((n - 1) * s + 1 for n, s in zip(self.shape, self.step, strict=True)))

    def __iter__(self) -> Iterator[Point]:
        axes = zip(self.start, self.shape, self.step, strict=True)
        return itertools.product(*(range(a, a + n * s, s) for a, n, s in axes))

    def __str__(self) -> str:
        axes = zip(self.start, self.shape, self.step, strict=True)
        return "[" + ", ".join(f"{a}:{a + (n - 1) * s + 1 if n else a}:{s}" for a, n, s in axes) + "]"


def disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no point lies in two of these boxes of one rank.

    The boundaries of all boxes cut space into cells; boxes are disjoint iff no cell has two owners. The parts of a grid
    are one cell each, so their number is what it costs; boxes of many cells are compared in pairs.

    Example:
        >>> disjoint([Box((0,), (2,)), Box((2,), (3,))]), disjoint([Box((0,), (3,)), Box((2,), (3,))])
        (True, False)
    """
    filled = [box for box in boxes if not box.empty]
    if not filled:
        return True
    stops = [box.stop for box in filled]
    cuts = [sorted({*(b.start[k] for b in filled), *(s[k] for s in stops)}) for k in range(filled[0].rank)]
    place = [{at: n for n, at in enumerate(row)} for row in cuts]
    spans = [
        [range(own[a], own[b]) for own, a, b in zip(place, box.start, stop, strict=True)]
        for box, stop in zip(filled, stops, strict=True)
    ]
    if sum(prod(map(len, span)) for span in spans) > _MOST_CELLS * len(filled):
        return all(a.intersect(b).empty for n, a in enumerate(filled) for b in filled[n + 1 :])
    seen: set[Point] = set()
    for span in spans:
        for cell in itertools.product(*span):
            if cell in seen:
                return False
            seen.add(cell)
    return True


_MOST_CELLS = 64
"""Cells per box up to which cells are counted."""


def trusted_box(start: Point, shape: Point) -> Box:
    """A box of tuples of integers that are known to fit, without checking them again."""
    box = _new(Box)
    _set_start(box, start)
    _set_shape(box, shape)
    return box


_new, _set_start, _set_shape = object.__new__, vars(Box)["start"].__set__, vars(Box)["shape"].__set__


def even_cuts(extent: int, parts: int, start: int = 0) -> tuple[int, ...]:
    """The ``parts + 1`` boundaries that cut ``[start, start + extent)`` as evenly as integers allow.

    Parts differ in length by at most one, longer parts first. More parts than points are refused: an empty
    part is never made silently.

    Example:
        >>> even_cuts(10, 4)
        (0, 3, 6, 8, 10)
    """
    if parts < 1 or (extent > 0 and parts > extent) or (extent == 0 and parts != 1):
        raise SpaceError(
            "even_cuts(extent, parts)",
            f"{parts} parts do not fit extent {extent}",
            legal=f"1..{max(extent, 1)}",
        )
    length, longer = divmod(extent, parts)
    cuts = [start]
    for part in range(parts):
        cuts.append(cuts[-1] + length + (part < longer))
    return tuple(cuts)
