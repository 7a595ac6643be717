"""Operators that move elements: shapes, slices, gathers, scatters."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.frontends.values import Value
from tileweave.frontends.windows import folded_columns
from tileweave.graph import Tensor


@operator("Shape")
def shape_of(node: OnnxNode) -> Any:
    """The extents, from one axis to another."""
    shape = node.inputs[0].shape  # type: ignore[union-attr]
    return np.asarray(shape[slice(node.get("start", 0), node.get("end"))], np.int64)


@operator("Size")
def size_of(node: OnnxNode) -> Any:
    """The number of elements."""
    return np.asarray(prod(node.inputs[0].shape), np.int64)  # type: ignore[union-attr]


@operator("Reshape")
def reshape(node: OnnxNode) -> Tensor:
    """0 keeps an extent, -1 is what remains."""
    x = node.tensor(0)
    wanted = node.integers(1, "shape") or []
    if not node.get("allowzero", 0):
        wanted = [x.shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    if -1 in wanted:
        rest = prod(n for n in wanted if n != -1)
        wanted = [prod(x.shape) // rest if n == -1 and rest else max(n, 0) for n in wanted]
    return g.reshape(x, tuple(wanted))


@operator("Flatten")
def flatten(node: OnnxNode) -> Tensor:
    """Two dimensions: those before an axis, those from it on."""
    x = node.tensor(0)
    axis = node.get("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    return g.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@operator("Squeeze")
def squeeze(node: OnnxNode) -> Tensor:
    """Without extents of one."""
    axes = node.integers(1, "axes")
    return g.squeeze(node.tensor(0), None if axes is None else tuple(axes))


@operator("Unsqueeze")
def unsqueeze(node: OnnxNode) -> Tensor:
    """With new extents of one."""
    return g.unsqueeze(node.tensor(0), tuple(node.integers(1, "axes") or ()))


@operator("Transpose")
def transpose(node: OnnxNode) -> Tensor:
    """Axes in another order."""
    return g.transpose(node.tensor(0), node.get("perm"))


@operator("Concat")
def concat(node: OnnxNode) -> Tensor:
    """Along an axis."""
    inputs = node.tensors()
    return g.concat(inputs, node.axis(inputs[0], 1 if node.version < 4 else 0))


@operator("Split")
def split(node: OnnxNode) -> tuple[Tensor, ...]:
    """Parts along an axis, of given extents or as equal as can be."""
    x = node.tensor(0)
    axis = node.axis(x)
    sizes = node.integers(1, "split")
    if sizes is None:
        count = node.get("num_outputs", len(node.outputs))
        step = -(-x.shape[axis] // count)
        sizes = [min(step, max(x.shape[axis] - k * step, 0)) for k in range(count)]
    return tuple(parts(x, axis, sizes))


def parts(x: Tensor, axis: int, sizes: list[int]) -> list[Tensor]:
    """Consecutive pieces along an axis."""
    ends = np.cumsum(sizes).tolist()
    before = (slice(None),) * axis
    return [x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


@operator("Slice")
def slice_(node: OnnxNode) -> Tensor:
    """As Python slices, along some axes."""
    x = node.tensor(0)
    starts, ends = node.integers(1, "starts") or [], node.integers(2, "ends") or []
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4) or [1] * len(starts)
    key: list[slice] = [slice(None)] * len(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = x.shape[axis]
        if step < 0:
            first = min(start + extent if start < 0 else start, extent - 1)
            last = end + extent if -extent <= end < 0 else end
            key[axis] = slice(first, last if last >= 0 else None, step)
            if first < 0:
                key[axis] = slice(0, 0)
        else:
            key[axis] = slice(start, end, step)
    return x[tuple(key)]


@operator("Expand")
def expand(node: OnnxNode) -> Tensor:
    """Broadcast to a shape, in both directions."""
    x = node.tensor(0)
    return g.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(node.integers(1) or ())))


@operator("Tile")
def tile(node: OnnxNode) -> Tensor:
    """Copies side by side."""
    return g.tile(node.tensor(0), tuple(node.integers(1) or ()))


@operator("Pad")
def pad(node: OnnxNode) -> Tensor:
    """Constant, mirrored, the edge's value, or wrapped around; negative widths cut."""
    x = node.tensor(0)
    widths = node.integers(1, "pads" if node.version > 1 else "paddings") or []
    axes = node.integers(3) or list(range(len(x.shape)))
    value = 0 if not node.has(2) else node.known(2, "the padding").reshape(-1)[0].item()
    value = node.get("value", 0.0) if node.version < 11 else value
    half = len(widths) // 2
    mode = node.text("mode", "constant")
    for axis, low, high in zip(axes, widths[:half], widths[half:], strict=True):
        x = padded(node, x, node.axis(x, given=axis), low, high, mode, value)
    return x


def padded(node: OnnxNode, x: Tensor, axis: int, low: int, high: int, mode: str, value: Any) -> Tensor:
    """One axis longer or shorter at both ends."""
    before = (slice(None),) * axis
    extent = x.shape[axis]
    if low < 0 or high < 0:
        x = x[(*before, slice(max(-low, 0), extent - max(-high, 0)))]
        low, high, extent = max(low, 0), max(high, 0), x.shape[axis]
    if low == high == 0:
        return x
    if mode == "constant":
        shape = [list(x.shape), list(x.shape)]
        shape[0][axis], shape[1][axis] = low, high
        ends = [g.full(tuple(s), value, x.dtype) for s in shape]
        return g.concat([part for part in (ends[0], x, ends[1]) if part.shape[axis]], axis)
    places = np.arange(-low, extent + high)
    if mode == "edge":
        places = np.clip(places, 0, extent - 1)
    elif mode == "wrap":
        places = places % extent
    elif mode == "reflect":
        period = max(2 * (extent - 1), 1)
        places = np.minimum(places % period, -places % period) if extent > 1 else places * 0
    else:
        raise node.refuse(f"mode {mode!r}", legal="constant, reflect, edge, wrap")
    return g.take(x, places, axis)


def _wrapped(indices: Value, extent: int) -> Value:
    """Indices from the end as indices from the start."""
    if isinstance(indices, np.ndarray):
        return np.where(indices < 0, indices + extent, indices)
    zero = g.full((), 0, indices.dtype)
    return g.where(g.less(indices, zero), g.add(indices, g.full((), extent, indices.dtype)), indices)


@operator("Gather")
def gather(node: OnnxNode) -> Tensor:
    """Elements along an axis by index."""
    x = node.tensor(0)
    axis = node.axis(x)
    index = node.inputs[1]
    if isinstance(index, np.ndarray) and index.ndim == 0:
        return g.select(x, axis, int(index))
    return g.take(x, _wrapped(index, x.shape[axis]), axis)


@operator("GatherElements")
def gather_elements(node: OnnxNode) -> Tensor:
    """An index per element of the result."""
    x = node.tensor(0)
    axis = node.axis(x)
    indices = _wrapped(node.inputs[1], x.shape[axis])
    key = tuple(slice(n) for n in indices.shape)
    reduced = x[tuple(slice(None) if k == axis else s for k, s in enumerate(key))]
    return g.take_along_axis(reduced, indices, axis)


@operator("GatherND")
def gather_nd(node: OnnxNode) -> Tensor:
    """Slices by vectors of indices."""
    x, indices, batch = node.tensor(0), node.tensor(1), node.get("batch_dims", 0)
    if not batch:
        return g.gather_nd(x, indices)
    count, lead = prod(x.shape[:batch]), x.shape[:batch]
    inner = indices.shape[batch:]
    rows = np.broadcast_to(np.arange(count).reshape(count, *(1,) * len(inner)), (count, *inner[:-1], 1))
    full = g.concat([g.as_tensor(rows.astype(indices.dtype)), g.reshape(indices, (count, *inner))], len(inner))
    made = g.gather_nd(g.reshape(x, (count, *x.shape[batch:])), full)
    return g.reshape(made, (*lead, *made.shape[1:]))


@operator("Scatter", "ScatterElements")
def scatter(node: OnnxNode) -> Tensor:
    """A copy with single elements replaced or combined."""
    x = node.tensor(0)
    axis = node.axis(x)
    indices = _wrapped(node.inputs[1], x.shape[axis])
    return g.scatter(x, indices, node.tensor(2), axis, reduction=_combination(node))


@operator("ScatterND")
def scatter_nd(node: OnnxNode) -> Tensor:
    """A copy with slices replaced or combined."""
    return g.scatter_nd(node.tensor(0), node.tensor(1), node.tensor(2), reduction=_combination(node))


def _combination(node: OnnxNode) -> str | None:
    name = node.text("reduction", "none")
    return None if name == "none" else name


@operator("DepthToSpace")
def depth_to_space(node: OnnxNode) -> Tensor:
    """Channels become blocks of pixels."""
    x, size = node.tensor(0), node.get("blocksize")
    n, c, h, w = x.shape
    if node.text("mode", "DCR") == "DCR":
        x = g.transpose(g.reshape(x, (n, size, size, c // size**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = g.transpose(g.reshape(x, (n, c // size**2, size, size, h, w)), (0, 1, 4, 2, 5, 3))
    return g.reshape(x, (n, c // size**2, h * size, w * size))


@operator("SpaceToDepth")
def space_to_depth(node: OnnxNode) -> Tensor:
    """Blocks of pixels become channels."""
    x, size = node.tensor(0), node.get("blocksize")
    n, c, h, w = x.shape
    order = (0, 3, 5, 1, 2, 4) if node.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = g.transpose(g.reshape(x, (n, c, h // size, size, w // size, size)), order)
    return g.reshape(x, (n, c * size**2, h // size, w // size))


@operator("Trilu")
def triangle(node: OnnxNode) -> Tensor:
    """The upper or the lower triangle."""
    x = node.tensor(0)
    k = int(node.known(1).reshape(-1)[0]) if node.has(1) else 0
    return g.triu(x, k) if node.get("upper", 1) else g.tril(x, k)


@operator("OneHot")
def one_hot(node: OnnxNode) -> Tensor:
    """Two values: one at the index, one elsewhere."""
    indices = node.tensor(0)
    values = node.inputs[2] if isinstance(node.inputs[2], np.ndarray) else node.tensor(2)
    depth = int(node.known(1).reshape(-1)[0])
    axis = node.get("axis", -1) % (len(indices.shape) + 1)
    if indices.dtype.kind == "f":
        indices = g.cast(indices, np.int64)
    wrapped = g.unsqueeze(_wrapped(indices, depth), axis)
    shape = tuple(depth if k == axis else 1 for k in range(len(wrapped.shape)))
    places = g.as_tensor(np.arange(depth).astype(wrapped.dtype).reshape(shape))
    return g.where(g.equal(places, wrapped), *(g.as_tensor(values[k]) for k in (1, 0)))


@operator("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> Tensor:
    """The first elements of each row, backwards."""
    x = node.tensor(0)
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    lengths = node.known(1)
    steps = np.arange(x.shape[time])
    order = np.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    order = order if batch < time else order.T
    shape = tuple(n if k in (time, batch) else 1 for k, n in enumerate(x.shape))
    return g.take_along_axis(x, np.broadcast_to(order.reshape(shape), x.shape), time)


@operator("NonZero")
def non_zero(node: OnnxNode) -> Any:
    """Where a known value is not zero."""
    return np.asarray(np.nonzero(node.known(0)), np.int64).reshape(node.known(0).ndim, -1)


@operator("Compress")
def compress(node: OnnxNode) -> Tensor:
    """Elements along an axis where a known condition holds."""
    x, places = node.tensor(0), np.flatnonzero(node.known(1))
    if "axis" not in node.attributes:
        return g.take(g.reshape(x, (prod(x.shape),)), places, 0)
    return g.take(x, places, node.axis(x))


@operator("Unique")
def unique(node: OnnxNode) -> tuple[Any, ...]:
    """The different values of a known tensor."""
    x, axis = node.known(0), node.get("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@operator("TensorScatter")
def tensor_scatter(node: OnnxNode) -> Tensor:
    """New entries of a cache written at the places where each row stands."""
    past, update = node.tensor(0), node.tensor(1)
    axis = node.axis(past, -2)
    start = node.known(2) if node.has(2) else np.zeros(past.shape[0], np.int64)
    shape = [1] * len(past.shape)
    shape[0] = past.shape[0]
    run = [1] * len(past.shape)
    run[axis] = update.shape[axis]
    places = start.reshape(shape) + np.arange(update.shape[axis]).reshape(run)
    places = places % past.shape[axis] if node.text("mode", "linear") == "circular" else places
    return g.scatter(past, np.broadcast_to(places, update.shape).copy(), update, axis, reduction=None)


@operator("Col2Im")
def columns_to_image(node: OnnxNode) -> Tensor:
    """Sums of overlapping windows."""
    image, block = node.integers(1) or [], node.integers(2) or []
    rank = len(image)
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    pads = node.get("pads", [0] * (2 * rank))
    return folded_columns(
        node.tensor(0), image, block, strides, dilations, list(zip(pads[:rank], pads[rank:], strict=True))
    )


@operator("NonMaxSuppression")
def suppressed(node: OnnxNode) -> Any:
    """Known boxes, best first, without those that overlap a better one of their class: rows of batch, class, box."""
    boxes, scores = (node.known(k).astype(np.float64) for k in (0, 1))
    most = int(node.known(2).reshape(-1)[0]) if node.has(2) else 0
    overlap = float(node.known(3).reshape(-1)[0]) if node.has(3) else 0.0
    least = float(node.known(4).reshape(-1)[0]) if node.has(4) else -np.inf
    if node.get("center_point_box", 0):
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    else:
        low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    area = (high - low).prod(-1)
    found = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        order = np.argsort(-scores[batch, kind], kind="stable")
        order = order[scores[batch, kind, order] > least]
        kept = 0
        while order.size and kept < most:
            first, order = order[0], order[1:]
            found.append((batch, kind, first))
            kept += 1
            sides = np.minimum(high[batch, first], high[batch, order]) - np.maximum(
                low[batch, first], low[batch, order]
            )
            common = np.maximum(sides, 0).prod(-1)
            order = order[common <= overlap * (area[batch, first] + area[batch, order] - common)]
    return np.asarray(found, np.int64).reshape(-1, 3)


@operator("ArrayFeatureExtractor")
def features(node: OnnxNode) -> Tensor:
    """Elements along the last axis."""
    x, places = node.tensor(0), node.tensor(1)
    x = g.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    return g.take(x, g.reshape(places, (prod(places.shape),)), len(x.shape) - 1)
