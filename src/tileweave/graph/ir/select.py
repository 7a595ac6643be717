"""Selectors of one tensor or several, as NumPy has them: slices, permutations, broadcasts, joins, constants.

None of them copies or computes; `tileweave.graph.ir.resolve` tells what they read. Arrays are taken as sources.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, stored
from tileweave.graph.ir.nodes import Selector, Tensor, TensorType
from tileweave.graph.ir.resolve import concat_starts
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.space import AffineMap, Box


def _view(kind: str, x: Tensor, shape: Sequence[int], map: AffineMap) -> Tensor:
    own = x.type
    shape = tuple(shape)
    if shape == own.shape and map == AffineMap.identity(len(shape)):
        return x
    pairs = (("matrix", map.matrix), ("offset", map.offset))
    return Tensor(Selector(kind, (("x", x),), TensorType(shape, own.dtype), pairs))


def dimension(where: str, x: Tensor, dim: int, extra: int = 0) -> int:
    """A dimension of x that may be counted from the end, as 0, 1, ..; the error says which there are."""
    rank = len(x.shape) + extra
    if not isinstance(dim, (int, np.integer)) or not -rank <= dim < rank:
        raise GraphError(
            where,
            f"axis {dim!r} does not exist",
            inputs={"x": x.type},
            legal=f"{-rank}..{rank - 1}" if rank else "no axis",
        )
    return int(dim) % rank


def view_of(x: object, shape: Sequence[int], map: AffineMap) -> Tensor:
    """The values ``x[map(i)]`` for i in a box of this shape, as one selector; x itself where nothing changes.

    Args:
        x: any tensor.
        shape: of the result.
        map: from the result's coordinates to those of x; at most one coefficient per row, at most one row per column.
    """
    x = as_tensor(x, "view_of(x, shape, map)")
    rows = [[k for k, c in enumerate(row) if c] for row in map.matrix]
    used = [k for row in rows for k in row]
    if any(len(row) > 1 for row in rows) or len(set(used)) != len(used):
        raise GraphError("view_of(x, shape, map)", "the map is not a strided view", inputs={"x": x.type, "map": map})
    if not x.type.box.contains(map.cover(Box.of(shape))):
        raise GraphError("view_of(x, shape, map)", "the view reads outside", inputs={"x": x.type, "map": map})
    return _view("view", x, shape, map)


@public()
def permute(x: object, axes: Sequence[int]) -> Tensor:
    """Output dimension k is dimension ``axes[k]`` of x, as `numpy.transpose`."""
    return _permuted("permute(x, axes)", as_tensor(x, "permute(x, axes)"), axes)


def _permuted(where: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    order, shape = [dimension(where, x, axis) for axis in axes], x.shape
    if sorted(order) != list(range(len(shape))):
        raise GraphError(where, f"{tuple(axes)} is not a permutation", inputs={"x": x.type}, legal="each axis once")
    map = AffineMap.select([order.index(k) for k in range(len(order))], len(order))
    return _view("permute", x, [shape[k] for k in order], map)


@public(np.transpose)
def transpose(x: object, axes: Sequence[int] | None = None) -> Tensor:
    """Dimensions in reverse order, or in the given order, as `numpy.transpose`."""
    x = as_tensor(x, "transpose(x, axes)")
    return _permuted("transpose(x, axes)", x, tuple(axes) if axes is not None else range(len(x.shape))[::-1])


@public()
def slice_(x: object, box: Box, step: Sequence[int] | None = None) -> Tensor:
    """The values ``x[start + step * i]`` for ``i`` in the shape of the box; steps may be negative, not zero.

    A slice that falls inside one part of a concat reads that part alone.
    """
    x = as_tensor(x, "slice(x, box, step)")
    steps = tuple(step) if step is not None else (1,) * box.rank
    _check_slice(x, box, steps)
    plain = not steps or min(steps) == max(steps) == 1
    producer = x.producer
    if plain and isinstance(producer, Selector) and producer.kind == "concat" and not box.empty:
        dim, starts = producer.parameter("dim"), concat_starts(producer)
        k = bisect_right(starts, box.start[dim]) - 1
        part = producer.inputs[k][1]
        if box.stop[dim] <= starts[k] + part.shape[dim]:
            return slice_(part, box.translate([-starts[k] if j == dim else 0 for j in range(box.rank)]))
    rows = AffineMap.identity(box.rank).matrix
    if not plain:
        rows = tuple([tuple([s if c else 0 for c in row]) for s, row in zip(steps, rows, strict=True)])
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
        last = tuple([a + s * (n - 1) for a, s, n in zip(box.start, steps, box.shape, strict=True)])
        ends = zip(box.start, last, x.shape, strict=True)
        if not all(0 <= a < extent and 0 <= b < extent for a, b, extent in ends):
            raise GraphError(
                "slice(x, box, step)",
                f"the slice reaches from {box.start} to {last}, outside the tensor",
                inputs={"x": x.type, "box": box, "step": steps},
                legal=f"points of {x.type.box}",
            )


@public(np.flip)
def flip(x: object, axis: int | Sequence[int] | None = None) -> Tensor:
    """The order of the elements reversed along some or all dimensions, as `numpy.flip`."""
    x = as_tensor(x, "flip(x, axis)")
    axes = range(len(x.shape)) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    dims = {dimension("flip(x, axis)", x, a) for a in axes}
    rank = len(x.shape)
    rows = tuple(tuple((-1 if k in dims else 1) if j == k else 0 for j in range(rank)) for k in range(rank))
    offset = tuple(max(n - 1, 0) if k in dims else 0 for k, n in enumerate(x.shape))
    return _view("flip", x, x.shape, AffineMap(rows, offset, rank))


@public()
def select(x: object, dim: int, index: int) -> Tensor:
    """One coordinate of a dimension, which disappears."""
    x = as_tensor(x, "select(x, dim, index)")
    dim = dimension("select(x, dim, index)", x, dim)
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


@public(np.squeeze)
def squeeze(x: object, axis: int | Sequence[int] | None = None) -> Tensor:
    """Dimensions of extent 1 removed, as `numpy.squeeze`."""
    x = as_tensor(x, "squeeze(x, axis)")
    rank = len(x.shape)
    if axis is None:
        dims = {k for k, n in enumerate(x.shape) if n == 1}
    else:
        dims = {dimension("squeeze(x, axis)", x, a) for a in ((axis,) if isinstance(axis, (int, np.integer)) else axis)}
    for dim in dims:
        if x.shape[dim] != 1:
            raise GraphError(
                "squeeze(x, axis)", f"axis {dim} has extent {x.shape[dim]}", inputs={"x": x.type}, legal="extent 1"
            )
    keep = [k for k in range(rank) if k not in dims]
    map = AffineMap.select([None if k in dims else keep.index(k) for k in range(rank)], len(keep))
    return _view("squeeze", x, [x.shape[k] for k in keep], map)


@public(np.expand_dims)
def unsqueeze(x: object, axis: int | Sequence[int]) -> Tensor:
    """Dimensions of extent 1 inserted at these places of the result, as `numpy.expand_dims`."""
    x = as_tensor(x, "unsqueeze(x, axis)")
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    dims = {dimension("unsqueeze(x, axis)", x, a, extra=len(axes)) for a in axes}
    if len(dims) != len(axes):
        raise GraphError("unsqueeze(x, axis)", f"axis {axis} repeats", inputs={"x": x.type}, legal="each axis once")
    rank = len(x.shape) + len(dims)
    old = [k for k in range(rank) if k not in dims]
    shape = [1 if k in dims else x.shape[old.index(k)] for k in range(rank)]
    return _view("unsqueeze", x, shape, AffineMap.select(old, rank))


@public(np.broadcast_to)
def broadcast_to(x: object, shape: Sequence[int]) -> Tensor:
    """Dimensions of extent 1 repeated, and leading dimensions added, as `numpy.broadcast_to`."""
    x = as_tensor(x, "broadcast_to(x, shape)")
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


@public(np.concatenate)
def concat(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors joined along a dimension, as `numpy.concatenate`; element types must be equal."""
    tensors = given = [as_tensor(part, "concat(tensors, axis)") for part in tensors]
    if not tensors:
        raise GraphError("concat(tensors, axis)", "there is no tensor", legal="at least one tensor")
    first = given[0]
    dim = dimension("concat(tensors, axis)", first, axis)
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


@public()
def full(shape: Sequence[int], value: bool | int | float, dtype: Any = None) -> Tensor:
    """A tensor of one value, generated wherever it is read; as `numpy.full`, but integers never wrap."""
    where = "full(shape, value)"
    kind = element_type(where, np.asarray(value).dtype if dtype is None else dtype)
    try:
        shape = tuple([int(n) for n in shape])
        if shape and min(shape) < 0:
            raise ValueError("an extent is negative")
        held = stored(where, value, kind)
    except DtypeError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise GraphError(where, f"{value!r} is not one number", legal="a Python number") from error
    return Tensor(Selector("full", (), TensorType(shape, kind), (("value", held),)))


def getitem(x: object, key: Any) -> Tensor:
    """Basic slicing as NumPy's: integers, slices with steps of any sign, ``...`` and ``None``."""
    x = as_tensor(x, "tensor[key]")
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
