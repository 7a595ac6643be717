"""Affine maps and index projections: which region of a tensor a block of work needs.

A projection sends an index point i to the region ``A i + b + stride * j`` for ``0 <= j < shape``. The image of a
whole index box is computed exactly: a `Box`, a `Lattice`, or, where neither fits, an `AffineSet`. The `cover` is the
exact bounding box of the image, computed row by row from the signs of the row (never from two corners only).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from tileweave.errors import SpaceError
from tileweave.space.box import Box, Lattice, Point, trusted_box

_INTEGERS, _ROWS = {int}, {tuple}


def _is_point(values: object) -> bool:
    """Whether these are plain integers already, as most are."""
    return type(values) is tuple and _INTEGERS.issuperset(map(type, values))


def _are_points(rows: object) -> bool:
    return type(rows) is tuple and _ROWS.issuperset(map(type, rows)) and _is_point(tuple(chain.from_iterable(rows)))


@dataclass(frozen=True, slots=True)
class AffineMap:
    """The map ``p -> matrix @ p + offset`` between integer spaces.

    Args:
        matrix: one row per output dimension, each with one integer per input dimension.
        offset: one integer per output dimension.
        inputs: the number of input dimensions; needed only when there is no row to tell it.

    Example:
        >>> AffineMap(((1, 0), (0, 2)), (0, 1))((3, 4))
        (3, 9)
    """

    matrix: tuple[Point, ...]
    offset: Point
    inputs: int = -1

    def __post_init__(self) -> None:
        matrix, offset = self.matrix, self.offset
        if not _are_points(matrix):
            matrix = tuple(tuple(int(c) for c in row) for row in matrix)
            object.__setattr__(self, "matrix", matrix)
        if not _is_point(offset):
            offset = tuple(int(c) for c in offset)
            object.__setattr__(self, "offset", offset)
        if self.inputs < 0:
            object.__setattr__(self, "inputs", len(matrix[0]) if matrix else 0)
        if len(matrix) != len(offset) or not {self.inputs}.issuperset(map(len, matrix)):
            raise SpaceError(
                "AffineMap(matrix, offset)",
                "rows, columns and offset do not fit together",
                inputs={"matrix": self.matrix, "offset": self.offset, "inputs": self.inputs},
            )

    @classmethod
    def identity(cls, rank: int) -> AffineMap:
        """The map that sends every point to itself."""
        return _identity(rank)

    @classmethod
    def select(cls, dims: Sequence[int | None], inputs: int) -> AffineMap:
        """The map whose k-th output is input ``dims[k]``, or 0 where ``dims[k]`` is None.

        Example:
            >>> AffineMap.select((1, None), 2)((5, 7))
            (7, 0)
        """
        return _selection(tuple(dims), inputs)

    @classmethod
    def shift(cls, by: Sequence[int]) -> AffineMap:
        """The map ``p -> p + by``."""
        return cls(cls.identity(len(by)).matrix, tuple(by), len(by))

    @property
    def outputs(self) -> int:
        """The number of output dimensions."""
        return len(self.matrix)

    def permute(self, inputs: Sequence[int] | None = None, outputs: Sequence[int] | None = None) -> AffineMap:
        """The same map with its dimensions in another order: new input k is old input ``inputs[k]``, as for outputs.

        Raises:
            SpaceError: an order is not a permutation.

        Example:
            >>> print(AffineMap(((1, 2),), (5,)).permute(inputs=(1, 0)))
            (i0, i1) -> (2*i0 + i1 + 5)
        """
        columns = tuple(range(self.inputs)) if inputs is None else tuple(inputs)
        rows = tuple(range(self.outputs)) if outputs is None else tuple(outputs)
        for name, order, count in (("inputs", columns, self.inputs), ("outputs", rows, self.outputs)):
            if sorted(order) != list(range(count)):
                raise SpaceError(
                    "AffineMap.permute(inputs, outputs)",
                    f"{name} {order} is not a permutation",
                    inputs={"map": self},
                    legal=f"each of 0..{count - 1} once" if count else "()",
                )
        matrix = tuple(tuple(self.matrix[r][c] for c in columns) for r in rows)
        return AffineMap(matrix, tuple(self.offset[r] for r in rows), self.inputs)

    def partial(self, fixed: Mapping[int, int]) -> AffineMap:
        """The map of the other inputs, in order, where some inputs have fixed values.

        Raises:
            SpaceError: an input does not exist.

        Example:
            >>> print(AffineMap(((1, 2),), (5,)).partial({1: 10}))
            (i0) -> (i0 + 25)
        """
        if any(not 0 <= k < self.inputs for k in fixed):
            raise SpaceError(
                "AffineMap.partial(fixed)",
                f"inputs {sorted(fixed)} do not all exist",
                inputs={"map": self},
                legal=f"0..{self.inputs - 1}" if self.inputs else "{}",
            )
        free = [k for k in range(self.inputs) if k not in fixed]
        matrix = tuple(tuple(row[k] for k in free) for row in self.matrix)
        at = self(tuple(fixed.get(k, 0) for k in range(self.inputs)))
        return AffineMap(matrix, at, len(free))

    def __call__(self, point: Sequence[int]) -> Point:
        """The image of a point."""
        if len(point) != self.inputs:
            raise SpaceError(
                "AffineMap(point)",
                f"a point of rank {len(point)} does not fit {self.inputs} inputs",
                inputs={"map": self},
            )
        return tuple(
            sum(c * p for c, p in zip(row, point, strict=True)) + b
            for row, b in zip(self.matrix, self.offset, strict=True)
        )

    def after(self, inner: AffineMap) -> AffineMap:
        """The composition ``p -> self(inner(p))``."""
        if inner.outputs != self.inputs:
            raise SpaceError(
                "AffineMap.after(inner)",
                f"{inner.outputs} outputs do not fit {self.inputs} inputs",
                inputs={"outer": self, "inner": inner},
            )
        matrix = tuple([_combined(row, inner) for row in self.matrix])
        return AffineMap(matrix, self(inner.offset), inner.inputs)

    def cover(self, box: Box) -> Box:
        """The exact bounding box of the image of a box; empty when the box is empty (a rank of 0 has no empty box).

        Each output coordinate is a sum of independent terms, so its least and greatest values are reached
        term by term, by the sign of each coefficient.
        """
        if box.rank != self.inputs:
            raise SpaceError("AffineMap.cover(box)", f"rank {box.rank} does not fit {self.inputs} inputs")
        if box.empty:
            return Box(self(box.start), (0,) * self.outputs)
        start, shape = [], []
        for row, low in zip(self.matrix, self.offset, strict=True):
            extent = 1
            for c, first, n in zip(row, box.start, box.shape, strict=True):
                if c > 0:
                    low += c * first
                    extent += c * (n - 1)
                elif c:
                    low += c * (first + n - 1)
                    extent -= c * (n - 1)
            start.append(low)
            shape.append(extent)
        return trusted_box(tuple(start), tuple(shape))

    def __str__(self) -> str:
        names = [f"i{k}" for k in range(self.inputs)]
        rows = []
        for row, b in zip(self.matrix, self.offset, strict=True):
            terms = [(c, name if abs(c) == 1 else f"{abs(c)}*{name}") for c, name in zip(row, names, strict=True) if c]
            if b or not terms:
                terms.append((b, str(abs(b))))
            (first, text), *rest = terms
            rows.append(("-" if first < 0 else "") + text + "".join(f" {'-' if c < 0 else '+'} {t}" for c, t in rest))
        return f"({', '.join(names)}) -> ({', '.join(rows)})"


def _combined(row: Point, inner: AffineMap) -> Point:
    """The rows of a matrix, each so many times, added up."""
    moving = [(c, own) for c, own in zip(row, inner.matrix, strict=True) if c]
    if len(moving) == 1:  # as of every view
        ((c, own),) = moving
        return own if c == 1 else tuple([c * n for n in own])
    return tuple([sum([c * own[j] for c, own in moving]) for j in range(inner.inputs)])


@lru_cache(maxsize=1024)
def _selection(dims: tuple[int | None, ...], inputs: int) -> AffineMap:
    rows = tuple(tuple(int(dim == column) for column in range(inputs)) for dim in dims)
    return AffineMap(rows, (0,) * len(rows), inputs)


@dataclass(frozen=True, slots=True)
class AffineSet:
    """The image of a box under an affine map, where it is neither a box nor a lattice (a diagonal, for example)."""

    map: AffineMap
    box: Box

    @property
    def cover(self) -> Box:
        """The least box that holds every point."""
        return self.map.cover(self.box)

    @property
    def size(self) -> int:
        """The number of distinct points, counted by enumeration."""
        return len(set(self))

    def __iter__(self) -> Iterator[Point]:
        seen: set[Point] = set()
        for point in self.box:
            image = self.map(point)
            if image not in seen:
                seen.add(image)
                yield image


@lru_cache(maxsize=64)
def _identity(rank: int) -> AffineMap:
    return AffineMap.select(range(rank), rank)


@dataclass(frozen=True, slots=True)
class Projection:
    """Index point i needs the region ``map(i) + stride * j`` for ``0 <= j < shape`` of a tensor.

    Args:
        map: from the index space to the tensor's space.
        shape: extents of the region that one index point touches.
        stride: steps inside that region; all ones when left out.

    Example:
        >>> rows = Projection(AffineMap.select((0, None), 2), (1, 8))
        >>> str(rows.cover(Box((4, 0), (2, 5))))
        '[4:6, 0:8]'

    Source: Tapestry, "Index Projection Functions" and "Sparse Strided Convolution Operators".
    """

    map: AffineMap
    shape: Point
    stride: Point = ()

    def __post_init__(self) -> None:
        if not _is_point(self.shape):
            object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if not self.stride or not _is_point(self.stride):
            object.__setattr__(self, "stride", tuple(int(n) for n in self.stride) or (1,) * len(self.shape))
        if len(self.shape) != self.map.outputs or len(self.stride) != self.map.outputs:
            raise SpaceError(
                "Projection(map, shape, stride)",
                f"the map has {self.map.outputs} outputs, the region has rank {len(self.shape)}",
                inputs={"map": self.map, "shape": self.shape, "stride": self.stride},
            )
        if self.shape and (min(self.shape) < 0 or min(self.stride) < 1):
            raise SpaceError(
                "Projection(map, shape, stride)",
                "an extent is negative or a stride is not positive",
                inputs={"shape": self.shape, "stride": self.stride},
            )

    @classmethod
    def select(cls, dims: Sequence[int | None], inputs: int, shape: Sequence[int] | None = None) -> Projection:
        """One tensor coordinate per selected index dimension; ``None`` selects the whole of `shape` there."""
        return cls(AffineMap.select(dims, inputs), tuple(shape) if shape is not None else (1,) * len(dims))

    @property
    def total(self) -> AffineMap:
        """The map from (index point, point inside the region) to the tensor."""
        rows = tuple(
            row + tuple(s if k == j else 0 for j in range(self.map.outputs))
            for k, (row, s) in enumerate(zip(self.map.matrix, self.stride, strict=True))
        )
        return AffineMap(rows, self.map.offset, self.map.inputs + self.map.outputs)

    def _domain(self, box: Box) -> Box:
        return Box(box.start + (0,) * len(self.shape), box.shape + self.shape)

    def cover(self, box: Box) -> Box:
        """The exact bounding box of everything that the index box touches."""
        start = self.map.cover(box)
        if box.empty or 0 in self.shape:
            return Box(start.start, (0,) * len(self.shape))
        reach = zip(start.shape, self.shape, self.stride, strict=True)
        return trusted_box(start.start, tuple(a + (n - 1) * s for a, n, s in reach))

    def span(self, box: Box) -> Box:
        """The cover taken row by row: an empty index dimension empties only the rows that it feeds.

        For a box that is not empty this is `cover`. For an empty one it still tells the shapes of blocks: the sum
        over an empty dimension has an empty index and a result.

        Example:
            >>> str(Projection.select((1,), 2).span(Box((0, 0), (0, 3))))
            '[0:3]'
        """
        start, shape = [], []
        for row, low, own, step in zip(self.map.matrix, self.map.offset, self.shape, self.stride, strict=True):
            extent, fed = 1, own > 0
            for c, first, n in zip(row, box.start, box.shape, strict=True):
                if c:
                    reach = c * (n - 1) if n else 0
                    low += c * first + min(reach, 0)
                    extent += abs(reach)
                    fed = fed and n > 0
            start.append(low)
            shape.append(extent + (own - 1) * step if fed else 0)
        return trusted_box(tuple(start), tuple(shape))

    def image(self, box: Box) -> Box | Lattice | AffineSet:
        """Exactly the points that the index box touches, in the simplest form that holds them.

        Output dimensions are independent when no index dimension of extent above one feeds two of them; each is then
        a sum of arithmetic progressions, which is one progression iff, taken by ascending step, every step is a
        multiple of the least and at most the length reached so far times it.
        """
        total, domain = self.total, self._domain(box)
        if domain.empty:  # of rank 0 no box is empty
            return Box(total(domain.start), (0,) * total.outputs) if total.outputs else AffineSet(total, domain)
        live = [j for j, extent in enumerate(domain.shape) if extent > 1]
        if any(sum(row[j] != 0 for row in total.matrix) > 1 for j in live):
            return AffineSet(total, domain)
        cover = total.cover(domain)
        shape, step = [], []
        for row in total.matrix:
            progression = _sum_of_progressions([(abs(row[j]), domain.shape[j]) for j in live if row[j]])
            if progression is None:
                return AffineSet(total, domain)
            shape.append(progression[1])
            step.append(progression[0])
        if all(s == 1 for s in step):
            return cover
        return Lattice(cover.start, tuple(shape), tuple(step))

    def __str__(self) -> str:
        stride = "" if all(s == 1 for s in self.stride) else f" step {self.stride}"
        return f"{self.map} + {self.shape}{stride}"


def _sum_of_progressions(terms: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """(step, count) of ``sum_k step_k * [0, count_k)`` when that set is one progression, else None."""
    step, count = 1, 1
    for s, n in sorted(terms):
        if count == 1:
            step, count = s, n
        elif s % step or s // step > count:
            return None
        else:
            count += (n - 1) * (s // step)
    return step, count
