"""Selectors: views that move values and never compute, and the exact regions that they read.

`resolve(tensor, box)` pushes a box through any tree of selectors down to tensors that something produces, and
answers disjoint pieces: which part of the box comes from which tensor, through which affine map. A broadcast
dimension has coefficient zero in that map, so one copy is read, never many.

The document also lists where, max and min here. They choose by values, so no region tells what they read: they are
elementwise operations (`tileweave.graph.ops.operators`), which the planner cuts and moves like the others.

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

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, stored
from tileweave.graph.ir.nodes import Selector, Tensor, TensorType, Value
from tileweave.space import AffineMap, Box, Lattice

__all__ = [
    "SEGMENTS",
    "SELECTORS",
    "Piece",
    "Segment",
    "broadcast_to",
    "common_map",
    "concat",
    "flip",
    "full",
    "getitem",
    "permute",
    "register_assembly",
    "resolve",
    "select",
    "slice_",
    "squeeze",
    "transpose",
    "unsqueeze",
    "view",
    "view_of",
]


@dataclass(frozen=True, slots=True)
class Piece:
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

    def along(self, dim: int, first: int, count: int, step: int = 1) -> Piece:
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
        return Piece(Box.of(shape), self.origin, self.map.after(inner), self.fill, Lattice(start, shape, steps))

    def boxes(self) -> Iterator[Piece]:
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
            yield Piece(Box(starts, shape), self.origin, self.map.after(inner), self.fill)


def resolve(tensor: Tensor, box: Box, *, lattices: bool = False) -> list[Piece]:
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
    done: list[Piece] = []
    todo = [Piece(box, tensor, AffineMap.identity(len(tensor.shape)))]
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
    # a zero-copy view at a byte offset: index the start element, then stride from there
    corner = block[tuple(slice(at - low, at - low + 1) for at, low in zip(first, block_box.start, strict=True))]
    return as_strided(corner, box.shape, strides, writeable=False)


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
# how each kind reads: Selector, Piece of its output -> Pieces of its inputs


def _through(map_of: Callable[[Selector], AffineMap]) -> Callable[[Selector, Piece], Iterator[Piece]]:
    def rule(selector: Selector, piece: Piece) -> Iterator[Piece]:
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


def assembled(segments: Callable[[Selector], Iterator[Segment]]) -> Callable[[Selector, Piece], Iterator[Piece]]:
    """The rule of a selector that assembles its result from segments along its parameter ``dim``."""

    def rule(selector: Selector, piece: Piece) -> Iterator[Piece]:
        dim = selector.parameter("dim")
        for segment in segments(selector):
            if segment.count:
                yield from _segment_piece(segment, dim, piece)

    return rule


def _segment_piece(segment: Segment, dim: int, piece: Piece) -> Iterator[Piece]:
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


def _full_piece(selector: Selector, piece: Piece) -> Iterator[Piece]:
    yield replace(piece, origin=None, fill=selector.parameter("value"))


SELECTORS: dict[str, Callable[[Selector, Piece], Iterator[Piece]]] = {
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


def _concat_pieces(selector: Selector, piece: Piece) -> Iterator[Piece]:
    """As the segments say, without going through those that the piece does not reach."""
    dim, starts = selector.parameter("dim"), _concat_starts(selector)
    reach = piece.map.cover(piece.box)
    low, high = reach.start[dim], reach.start[dim] + reach.shape[dim]
    for k in range(max(bisect_right(starts, low) - 1, 0), bisect_left(starts, high)):
        part = selector.inputs[k][1]
        if part.shape[dim]:
            yield from _segment_piece(Segment(starts[k], part.shape[dim], part), dim, piece)


SELECTORS["concat"] = _concat_pieces

_STARTS: weakref.WeakKeyDictionary[Selector, tuple[int, ...]] = weakref.WeakKeyDictionary()


def _concat_starts(selector: Selector) -> tuple[int, ...]:
    """Where each part of a concat begins; kept with the selector, which may have ten thousand parts."""
    found = _STARTS.get(selector)
    if found is None:
        extents = [part.shape[selector.parameter("dim")] for _, part in selector.inputs]
        found = _STARTS[selector] = tuple(itertools.accumulate(extents[:-1], initial=0))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# constructors


def _view(kind: str, x: Tensor, shape: Sequence[int], map: AffineMap, **parameters: Value) -> Tensor:
    if tuple(shape) == x.shape and map == AffineMap.identity(len(x.shape)):
        return x
    pairs: tuple[tuple[str, Value], ...] = (("matrix", map.matrix), ("offset", map.offset), *parameters.items())
    return Tensor(Selector(kind, (("x", x),), TensorType(tuple(shape), x.dtype), pairs))


def _dim(where: str, x: Tensor, dim: int, extra: int = 0) -> int:
    rank = len(x.shape) + extra
    if not isinstance(dim, (int, np.integer)) or not -rank <= dim < rank:
        raise GraphError(
            where,
            f"axis {dim!r} does not exist",
            inputs={"x": x.type},
            legal=f"{-rank}..{rank - 1}" if rank else "no axis",
        )
    return int(dim) % rank


def view_of(x: Tensor, shape: Sequence[int], map: AffineMap) -> Tensor:
    """The values ``x[map(i)]`` for i in a box of this shape, as one selector; x itself where nothing changes.

    Args:
        x: any tensor.
        shape: of the result.
        map: from the result's coordinates to those of x; at most one coefficient per row, at most one row per column.
    """
    rows = [[k for k, c in enumerate(row) if c] for row in map.matrix]
    used = [k for row in rows for k in row]
    if any(len(row) > 1 for row in rows) or len(set(used)) != len(used):
        raise GraphError("view_of(x, shape, map)", "the map is not a strided view", inputs={"x": x.type, "map": map})
    if not x.type.box.contains(map.cover(Box.of(shape))):
        raise GraphError("view_of(x, shape, map)", "the view reads outside", inputs={"x": x.type, "map": map})
    return _view("view", x, shape, map)


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Output dimension k is dimension ``axes[k]`` of x, as `numpy.transpose`."""
    return _permuted("permute(x, axes)", x, axes)


def _permuted(where: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    order = [_dim(where, x, axis) for axis in axes]
    if sorted(order) != list(range(len(x.shape))):
        raise GraphError(where, f"{tuple(axes)} is not a permutation", inputs={"x": x.type}, legal="each axis once")
    map = AffineMap.select([order.index(k) for k in range(len(order))], len(order))
    return _view("permute", x, [x.shape[k] for k in order], map)


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Dimensions in reverse order, or in the given order, as `numpy.transpose`."""
    return _permuted("transpose(x, axes)", x, tuple(axes) if axes is not None else range(len(x.shape))[::-1])


def slice_(x: Tensor, box: Box, step: Sequence[int] | None = None) -> Tensor:
    """The values ``x[start + step * i]`` for ``i`` in the shape of the box; steps may be negative, not zero.

    A slice that falls inside one part of a concat reads that part alone.
    """
    steps = tuple(step) if step is not None else (1,) * box.rank
    _check_slice(x, box, steps)
    rows = tuple(tuple(s if j == k else 0 for j in range(box.rank)) for k, s in enumerate(steps))
    producer = x.producer
    if isinstance(producer, Selector) and producer.kind == "concat" and all(s == 1 for s in steps) and not box.empty:
        dim, starts = producer.parameter("dim"), _concat_starts(producer)
        k = bisect_right(starts, box.start[dim]) - 1
        part = producer.inputs[k][1]
        if box.stop[dim] <= starts[k] + part.shape[dim]:
            return slice_(part, box.translate([-starts[k] if j == dim else 0 for j in range(box.rank)]))
    return _view("slice", x, box.shape, AffineMap(rows, box.start, box.rank))


def _check_slice(x: Tensor, box: Box, steps: tuple[int, ...]) -> None:
    if box.rank != len(x.shape) or len(steps) != len(x.shape) or 0 in steps:
        raise GraphError(
            "slice(x, box, step)",
            f"a box of rank {box.rank} with steps {steps} does not fit rank {len(x.shape)}",
            inputs={"x": x.type, "box": box},
            legal="a start, a count and a step other than 0 for each dimension",
        )
    if not box.empty:
        last = tuple(a + s * (n - 1) for a, s, n in zip(box.start, steps, box.shape, strict=True))
        if not (x.type.box.contains(box.start) and x.type.box.contains(last)):
            raise GraphError(
                "slice(x, box, step)",
                f"the slice reaches from {box.start} to {last}, outside the tensor",
                inputs={"x": x.type, "box": box, "step": steps},
                legal=f"points of {x.type.box}",
            )


def flip(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """The order of the elements reversed along some or all dimensions, as `numpy.flip`."""
    axes = range(len(x.shape)) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    dims = {_dim("flip(x, axis)", x, a) for a in axes}
    rank = len(x.shape)
    rows = tuple(tuple((-1 if k in dims else 1) if j == k else 0 for j in range(rank)) for k in range(rank))
    offset = tuple(max(n - 1, 0) if k in dims else 0 for k, n in enumerate(x.shape))
    return _view("flip", x, x.shape, AffineMap(rows, offset, rank))


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One coordinate of a dimension, which disappears."""
    dim = _dim("select(x, dim, index)", x, dim)
    extent = x.shape[dim]
    if not -extent <= index < extent:
        raise GraphError(
            "select(x, dim, index)",
            f"index {index} is out of bounds for axis {dim} of extent {extent}",
            inputs={"x": x.type},
            legal=f"{-extent}..{extent - 1}" if extent else "no index: the axis is empty",
        )
    rank = len(x.shape)
    keep = [k for k in range(rank) if k != dim]
    map = AffineMap.select([None if k == dim else keep.index(k) for k in range(rank)], rank - 1)
    at = tuple(index % extent if k == dim else 0 for k in range(rank))
    return _view("select", x, [x.shape[k] for k in keep], AffineMap(map.matrix, at, rank - 1))


def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Dimensions of extent 1 removed, as `numpy.squeeze`."""
    rank = len(x.shape)
    if axis is None:
        dims = {k for k, n in enumerate(x.shape) if n == 1}
    else:
        dims = {_dim("squeeze(x, axis)", x, a) for a in ((axis,) if isinstance(axis, (int, np.integer)) else axis)}
    for dim in dims:
        if x.shape[dim] != 1:
            raise GraphError(
                "squeeze(x, axis)", f"axis {dim} has extent {x.shape[dim]}", inputs={"x": x.type}, legal="extent 1"
            )
    keep = [k for k in range(rank) if k not in dims]
    map = AffineMap.select([None if k in dims else keep.index(k) for k in range(rank)], len(keep))
    return _view("squeeze", x, [x.shape[k] for k in keep], map)


def unsqueeze(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Dimensions of extent 1 inserted at these places of the result, as `numpy.expand_dims`."""
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    dims = {_dim("unsqueeze(x, axis)", x, a, extra=len(axes)) for a in axes}
    if len(dims) != len(axes):
        raise GraphError("unsqueeze(x, axis)", f"axis {axis} repeats", inputs={"x": x.type}, legal="each axis once")
    rank = len(x.shape) + len(dims)
    old = [k for k in range(rank) if k not in dims]
    shape = [1 if k in dims else x.shape[old.index(k)] for k in range(rank)]
    return _view("unsqueeze", x, shape, AffineMap.select(old, rank))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Dimensions of extent 1 repeated, and leading dimensions added, as `numpy.broadcast_to`."""
    extra = len(shape) - len(x.shape)
    fits = extra >= 0 and all(n in (1, m) for n, m in zip(x.shape, shape[extra:], strict=True))
    if not fits:
        raise GraphError(
            "broadcast_to(x, shape)",
            f"shape {x.shape} does not broadcast to {tuple(shape)}",
            inputs={"x": x.type},
            legal="extents equal from the right, or 1",
        )
    dims = [None if n == 1 and shape[extra + k] != 1 else extra + k for k, n in enumerate(x.shape)]
    return _view("broadcast", x, shape, AffineMap.select(dims, len(shape)))


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors joined along a dimension, as `numpy.concatenate`; element types must be equal."""
    if not tensors:
        raise GraphError("concat(tensors, axis)", "there is no tensor", legal="at least one tensor")
    first = tensors[0]
    dim = _dim("concat(tensors, axis)", first, axis)
    for k, part in enumerate(tensors):
        same = len(part.shape) == len(first.shape) and all(
            a == b for j, (a, b) in enumerate(zip(part.shape, first.shape, strict=True)) if j != dim
        )
        if not same or part.dtype != first.dtype:
            raise GraphError(
                "concat(tensors, axis)",
                f"tensor {k} does not fit tensor 0",
                inputs={"tensor 0": first.type, f"tensor {k}": part.type, "axis": dim},
                legal=f"equal element types, and equal extents except on axis {dim}",
            )
    if len(tensors) == 1:
        return first
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in tensors)
    inputs = tuple((f"x{k}", part) for k, part in enumerate(tensors))
    return Tensor(Selector("concat", inputs, TensorType(tuple(shape), first.dtype), (("dim", dim),)))


def full(shape: Sequence[int], value: bool | int | float, dtype: Any = None) -> Tensor:
    """A tensor of one value, generated wherever it is read; as `numpy.full`, but integers never wrap."""
    where = "full(shape, value)"
    kind = element_type(where, np.asarray(value).dtype if dtype is None else dtype)
    try:
        shape = tuple(int(n) for n in shape)
        if any(n < 0 for n in shape):
            raise ValueError("an extent is negative")
        held = stored(where, value, kind)
    except DtypeError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(where, f"{value!r} is not one number", legal="a Python number") from error
    return Tensor(Selector("full", (), TensorType(shape, kind), (("value", held),)))


def getitem(x: Tensor, key: Any) -> Tensor:
    """Basic slicing as NumPy's: integers, slices with steps of any sign, ``...`` and ``None``."""
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if sum(item is Ellipsis for item in items) > 1 or used > len(x.shape):
        raise GraphError("tensor[key]", f"{key!r} does not fit rank {len(x.shape)}", inputs={"x": x.type})
    at = next((k for k, item in enumerate(items) if item is Ellipsis), len(items))
    items[at : at + 1] = [slice(None)] * (len(x.shape) - used)  # "..." is at the end when it is left out
    starts: list[int] = []
    counts: list[int] = []
    steps: list[int] = []
    drop: list[int] = []  # dimensions that an integer removes
    add: list[int] = []  # places where None inserts one
    for item in items:
        dim = len(starts)
        if item is None:
            add.append(dim - len(drop) + len(add))
            continue
        extent = x.shape[dim]
        if isinstance(item, slice):
            try:
                start, stop, step = item.indices(extent)
            except (TypeError, ValueError) as error:
                raise GraphError("tensor[key]", f"{item}: {error}", inputs={"x": x.type}) from None
            count = len(range(start, stop, step))
            starts.append(start if count else 0)
        else:
            try:
                index = item.__index__() if not isinstance(item, (bool, np.bool_)) else None
            except (AttributeError, TypeError):  # TypeError: an array is no index
                index = None
            if index is None:
                raise GraphError(
                    "tensor[key]",
                    f"{item!r} is not a basic index",
                    inputs={"x": x.type},
                    legal="integers, slices, ..., None",
                )
            if not -extent <= index < extent:
                raise GraphError(
                    "tensor[key]",
                    f"index {index} is out of bounds for axis {dim} of extent {extent}",
                    inputs={"x": x.type},
                    legal=f"{-extent}..{extent - 1}" if extent else "no index: the axis is empty",
                )
            count, step = 1, 1
            starts.append(index % extent)
            drop.append(dim)
        counts.append(count)
        steps.append(step)
    out = slice_(x, Box(tuple(starts), tuple(counts)), steps)
    out = squeeze(out, drop) if drop else out
    return unsqueeze(out, add) if add else out
