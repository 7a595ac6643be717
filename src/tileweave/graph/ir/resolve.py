"""Where the values of a tensor come from: pieces of what selectors read, exactly.

Selectors are views that move values and never compute. `resolve(tensor, box)` pushes a box through any tree of them
down to tensors that something produces, and answers disjoint pieces: which part of the box comes from which tensor,
through which affine map. A broadcast dimension has coefficient zero in that map, so one copy is read, never many.

The document also lists where, max and min here. They choose by values, so no region tells what they read: they are
elementwise operations (`tileweave.graph.ops.elementwise`), which the planner cuts and moves like the others.

Source: Tapestry, "Selector Expressions and Tensor Views".
"""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import is_narrow
from tileweave.graph.ir.nodes import Selector, Tensor, Value
from tileweave.space import AffineMap, Box, Lattice


@dataclass(frozen=True, slots=True)
class ViewPiece:
    """A part of a requested box and where its values are.

    Args:
        box: the part, in coordinates of the requested tensor; with a lattice, that lattice's own coordinates from 0.
        origin: the tensor that holds the values, or None for a generated constant.
        map: from coordinates of `box` to coordinates of `origin`; every row has at most one coefficient.
        fill: the constant, where `origin` is None.
        lattice: the stepped part of the requested tensor that the piece fills, where that is not a box.
    """

    box: Box
    origin: Tensor | None
    map: AffineMap
    fill: Value = None
    lattice: Lattice | None = None

    @property
    def region(self) -> Box:
        """The least box of the origin that holds every value of the piece."""
        return self.map.cover(self.box)

    @property
    def place(self) -> tuple[slice, ...]:
        """Where the piece goes, as slices of an array that holds the whole requested tensor."""
        if self.lattice is None:
            return tuple(slice(a, b) for a, b in zip(self.box.start, self.box.stop, strict=True))
        axes = zip(self.lattice.start, self.lattice.shape, self.lattice.step, strict=True)
        return tuple(slice(a, a + n * s, s) for a, n, s in axes)

    def along(self, dim: int, first: int, count: int, step: int = 1) -> ViewPiece:
        """The part of the piece at coordinates ``first + step * j`` of one dimension of its box, for ``j < count``."""
        if step == 1 or count == 1:
            lattice = self.lattice
            if lattice is None:
                return replace(self, box=self.box.with_range(dim, first, first + count))
        else:
            lattice = self.lattice or Lattice(self.box.start, self.box.shape, (1,) * self.box.rank)
        # in coordinates of the new lattice, from 0
        origin = self.box.start if self.lattice is None else (0,) * self.box.rank
        shift = tuple(first if k == dim else a for k, a in enumerate(origin))
        scale = tuple(step if k == dim else 1 for k in range(self.box.rank))
        shape = tuple(count if k == dim else n for k, n in enumerate(self.box.shape))
        start = tuple(a + s * (b - o) for a, s, b, o in zip(lattice.start, lattice.step, shift, origin, strict=True))
        steps = tuple(s * c for s, c in zip(lattice.step, scale, strict=True))
        inner = AffineMap(
            tuple(tuple(c if j == k else 0 for j in range(len(scale))) for k, c in enumerate(scale)), shift
        )
        return ViewPiece(Box.of(shape), self.origin, self.map.after(inner), self.fill, Lattice(start, shape, steps))

    def boxes(self) -> Iterator[ViewPiece]:
        """The piece as pieces without a lattice: one for each point of its stepped dimensions."""
        if self.lattice is None:
            yield self
            return
        lattice = self.lattice
        wide = [n if s > 1 and n > 1 else 1 for n, s in zip(lattice.shape, lattice.step, strict=True)]
        for point in Box.of(wide):
            starts = tuple(a + s * i for a, s, i in zip(lattice.start, lattice.step, point, strict=True))
            shape = tuple(1 if w > 1 else n for w, n in zip(wide, lattice.shape, strict=True))
            back = tuple(i - a for i, a in zip(point, starts, strict=True))
            inner = AffineMap.shift(back)
            yield ViewPiece(Box(starts, shape), self.origin, self.map.after(inner), self.fill)


def resolve(tensor: Tensor, box: Box, *, lattices: bool = False) -> list[ViewPiece]:
    """Where the values of a box of a tensor come from: disjoint pieces that cover the box once.

    Args:
        tensor: any tensor.
        box: a region inside it. An empty box has no pieces.
        lattices: whether a piece may be a stepped box (an interleave reads every n-th element); otherwise such a
            piece is split into boxes.

    Source: own, after Tapestry "Selector Expressions and Tensor Views".
    """
    if box.empty:
        return []
    done: list[ViewPiece] = []
    todo = [ViewPiece(box, tensor, AffineMap.identity(len(tensor.shape)))]
    while todo:
        piece = todo.pop()
        origin = piece.origin
        if origin is None or not isinstance(origin.producer, Selector):
            done.extend((piece,) if lattices else piece.boxes())
        else:
            todo.extend(reversed(list(SELECTORS[origin.producer.kind](origin.producer, piece))))
    return done


def view(block: np.ndarray[Any, Any], block_box: Box, map: AffineMap, box: Box) -> np.ndarray[Any, Any]:
    """The values of `box` seen through `map` in an array that holds `block_box`; no copy.

    Every row of the map has at most one coefficient per dimension of the box, so the view is strided: the stride of a
    box dimension is the sum of coefficient times the block's stride.
    """
    strides = [0] * box.rank
    offset = 0
    first = map(box.start)
    for row, stride, at, low in zip(map.matrix, block.strides, first, block_box.start, strict=True):
        offset += (at - low) * stride
        for dim, coefficient in enumerate(row):
            strides[dim] += coefficient * stride
    if box.empty:
        return np.empty(box.shape, block.dtype)
    if block.flags.c_contiguous and block.dtype.isbuiltin == 1:  # in a tenth of the time of the general way
        made = np.ndarray(box.shape, block.dtype, block, offset, strides)
        made.flags.writeable = False
        return made
    # a zero-copy view at a byte offset: index the start element, then stride from there
    index: Any = (*(slice(at - low, at - low + 1) for at, low in zip(first, block_box.start, strict=True)), ...)
    corner = block[index]  # an array at rank 0 too, where an index without the dots would give a copy
    return strided_view(corner, box.shape, strides)


def strided_view(array: np.ndarray[Any, Any], shape: Sequence[int], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """A read-only view from the first element of an array on, with strides in bytes."""
    if is_narrow(array.dtype) and array.itemsize == 1:  # NumPy takes float8_e5m2 for a float of its own
        return as_strided(array.view(np.uint8), shape, strides, writeable=False).view(array.dtype)
    return as_strided(array, shape, strides, writeable=False)


def common_map(box: Box, parts: Sequence[tuple[Box, AffineMap]]) -> AffineMap | None:
    """The one strided map that is each part's map on that part's box, if there is one.

    Args:
        box: not empty.
        parts: disjoint boxes that cover it, each with a map.
    """

    def value(point: tuple[int, ...]) -> tuple[int, ...]:
        return next(map(point) for own, map in parts if own.contains(point))

    base = value(box.start)
    first = next(map for own, map in parts if own.contains(box.start))
    columns = []
    for k, n in enumerate(box.shape):
        step = tuple(a + (j == k) for j, a in enumerate(box.start))
        reached = value(step) if n > 1 else first(step)
        columns.append(tuple(a - b for a, b in zip(reached, base, strict=True)))
    matrix = tuple(tuple(column[r] for column in columns) for r in range(len(base)))
    straight = AffineMap(matrix, (0,) * len(base), box.rank)
    common = AffineMap(matrix, tuple(a - b for a, b in zip(base, straight(box.start), strict=True)), box.rank)
    same = all(common(p) == map(p) for own, map in parts for p in _corners(own))
    used = [k for row in matrix for k, c in enumerate(row) if c]
    strided = all(sum(c != 0 for c in row) < 2 for row in matrix) and len(set(used)) == len(used)
    return common if same and strided else None


def _corners(box: Box) -> list[tuple[int, ...]]:
    """The least corner and its last neighbour along each dimension: enough to know an affine map on the box."""
    out = [box.start]
    for k, n in enumerate(box.shape):
        out.append(tuple(a + n - 1 if j == k else a for j, a in enumerate(box.start)))
    return out


# ---------------------------------------------------------------------------------------------------------------------
# how each kind reads: Selector, ViewPiece of its output -> Pieces of its inputs


def _through(map_of: Callable[[Selector], AffineMap]) -> Callable[[Selector, ViewPiece], Iterator[ViewPiece]]:
    def rule(selector: Selector, piece: ViewPiece) -> Iterator[ViewPiece]:
        yield replace(piece, origin=selector.inputs[0][1], map=map_of(selector).after(piece.map))

    return rule


def _affine(selector: Selector) -> AffineMap:
    matrix, offset = selector.parameter("matrix"), selector.parameter("offset")
    return AffineMap(matrix, offset, len(selector.out.shape))


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a part of one dimension of an assembled tensor comes from.

    The results at ``start + step * j`` for ``0 <= j < count`` are the values of `source` at ``first + sign * j``, or a
    constant where `source` is None.
    """

    start: int
    count: int
    source: Tensor | None
    first: int = 0
    sign: int = 1
    step: int = 1
    fill: Value = None


def assembled(
    segments: Callable[[Selector], Iterator[Segment]],
) -> Callable[[Selector, ViewPiece], Iterator[ViewPiece]]:
    """The rule of a selector that assembles its result from segments along its parameter ``dim``."""

    def rule(selector: Selector, piece: ViewPiece) -> Iterator[ViewPiece]:
        dim = selector.parameter("dim")
        for segment in segments(selector):
            if segment.count:
                yield from _segment_piece(segment, dim, piece)

    return rule


def _segment_piece(segment: Segment, dim: int, piece: ViewPiece) -> Iterator[ViewPiece]:
    """The part of a piece that falls into one segment, read from the segment's source."""
    row, at = piece.map.matrix[dim], piece.map.offset[dim] - segment.start
    moving = next((k for k, c in enumerate(row) if c), None)
    if moving is None:
        if at % segment.step or not 0 <= at // segment.step < segment.count:
            return
        part = piece
    else:
        # the j with 0 <= (row[moving] * j + at) / step < count, a range of step |step / gcd|
        c, low, high = row[moving], piece.box.start[moving], piece.box.stop[moving]
        common = gcd(c, segment.step)
        if at % common:
            return
        period = segment.step // common
        phase = (-at // common) * pow(c // common, -1, period) % period
        ends = (-at, (segment.count - 1) * segment.step - at)
        first, last = (-(-ends[0] // c), ends[1] // c) if c > 0 else (-(-ends[1] // c), ends[0] // c)
        first, last = max(first, low), min(last, high - 1)
        first += (phase - first) % period
        if first > last:
            return
        part = piece.along(moving, first, (last - first) // period + 1, period)
    if segment.source is None:
        yield replace(part, origin=None, fill=segment.fill)
        return
    # inside the source: first + sign * (row - start) / step, exact because the part holds only multiples of the step
    row, at = part.map.matrix[dim], part.map.offset[dim] - segment.start
    if moving is not None and part.box.shape[moving] == 1:
        row, at = (0,) * len(row), row[moving] * part.box.start[moving] + at
    exact = tuple(segment.sign * c // segment.step for c in row)
    offset = segment.first + segment.sign * (at // segment.step)
    matrix = tuple(exact if k == dim else r for k, r in enumerate(part.map.matrix))
    offsets = tuple(offset if k == dim else b for k, b in enumerate(part.map.offset))
    yield replace(part, origin=segment.source, map=AffineMap(matrix, offsets, part.map.inputs))


def _concat_segments(selector: Selector) -> Iterator[Segment]:
    dim, low = selector.parameter("dim"), 0
    for _, part in selector.inputs:
        yield Segment(low, part.shape[dim], part)
        low += part.shape[dim]


def _full_piece(selector: Selector, piece: ViewPiece) -> Iterator[ViewPiece]:
    yield replace(piece, origin=None, fill=selector.parameter("value"))


SELECTORS: dict[str, Callable[[Selector, ViewPiece], Iterator[ViewPiece]]] = {
    "permute": _through(_affine),
    "flip": _through(_affine),
    "select": _through(_affine),
    "slice": _through(_affine),
    "squeeze": _through(_affine),
    "unsqueeze": _through(_affine),
    "broadcast": _through(_affine),
    "view": _through(_affine),
    "full": _full_piece,
}
"""Selector kind -> how a piece of its output reads its inputs."""

SEGMENTS: dict[str, Callable[[Selector], Iterator[Segment]]] = {}
"""Kind of a selector that assembles along one dimension -> its segments, which cover that dimension once."""


def register_assembly(kind: str, segments: Callable[[Selector], Iterator[Segment]]) -> None:
    """Adds a kind of selector that assembles its result along its parameter ``dim``; a taken name is refused."""
    if kind in SELECTORS:
        raise GraphError("register_assembly(kind, segments)", f"the name {kind!r} is taken", legal="a new name")
    SEGMENTS[kind] = segments
    SELECTORS[kind] = assembled(segments)


register_assembly("concat", _concat_segments)


def _concat_pieces(selector: Selector, piece: ViewPiece) -> Iterator[ViewPiece]:
    """As the segments say, without going through those that the piece does not reach."""
    dim, starts = selector.parameter("dim"), concat_starts(selector)
    reach = piece.map.cover(piece.box)
    low, high = reach.start[dim], reach.start[dim] + reach.shape[dim]
    for k in range(max(bisect_right(starts, low) - 1, 0), bisect_left(starts, high)):
        part = selector.inputs[k][1]
        if part.shape[dim]:
            yield from _segment_piece(Segment(starts[k], part.shape[dim], part), dim, piece)


SELECTORS["concat"] = _concat_pieces

_STARTS: weakref.WeakKeyDictionary[Selector, tuple[int, ...]] = weakref.WeakKeyDictionary()


def concat_starts(selector: Selector) -> tuple[int, ...]:
    """Where each part of a concat begins; kept with the selector, which may have ten thousand parts."""
    found = _STARTS.get(selector)
    if found is None:
        extents = [part.shape[selector.parameter("dim")] for _, part in selector.inputs]
        found = _STARTS[selector] = tuple(itertools.accumulate(extents[:-1], initial=0))
    return found
