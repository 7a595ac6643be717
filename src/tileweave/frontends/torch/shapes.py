"""ATen operators that make tensors, and that move elements: shapes, slices, joins, gathers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten, cast, common, dtype_of
from tileweave.frontends.values import tensor
from tileweave.graph import Tensor


@aten("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
      "empty.memory_format", "scalar_tensor.default", "new_zeros.default")  # fmt: skip
def full(call: AtenCall) -> Tensor:
    """One value everywhere."""
    name = call.where.split("aten.")[1].split(".")[0]
    kind = call.get("dtype")
    if name == "scalar_tensor":
        shape: tuple[int, ...] = ()
        value, default = call.value(0), np.dtype(np.float32)
    else:
        like = name.endswith("_like")
        shape = call.x().shape if like else tuple(int(n) for n in call.value(1 if name == "new_zeros" else 0))
        value = call.get("fill_value") if name.startswith("full") else int(name.startswith("ones"))
        default = call.x().dtype if like or name == "new_zeros" else np.asarray(value).dtype
        default = np.dtype(np.float32) if default == np.float64 and not like else default
    return g.full(shape, value, default if kind is None else dtype_of(kind))


@aten("arange.start_step", "arange.default", "arange.start")
def numbers(call: AtenCall) -> Any:
    """start, start + step, .. below end."""
    plain = call.where.endswith("arange.default")
    start, step = (0, 1) if plain else (call.get("start"), call.get("step") if "step" in call.where else 1)
    made = np.arange(start, call.get("end"), step)
    kind = call.get("dtype")
    default = np.float32 if made.dtype.kind == "f" else np.int64
    return made.astype(default if kind is None else dtype_of(kind))


@aten("view.default", "reshape.default", "_unsafe_view.default")
def view(call: AtenCall) -> Tensor:
    """Another shape; -1 is what remains."""
    x, shape = call.x(), [int(n) for n in call.value(1)]
    if -1 in shape:
        rest = prod(n for n in shape if n != -1)
        shape = [prod(x.shape) // rest if n == -1 else n for n in shape]
    return g.reshape(x, tuple(shape))


@aten("permute.default")
def permute(call: AtenCall) -> Tensor:
    """Axes in another order."""
    x = call.x()
    return g.transpose(x, tuple(k % len(x.shape) for k in call.value(1)))


@aten("transpose.int")
def transpose(call: AtenCall) -> Tensor:
    """Two axes exchanged."""
    x = call.x()
    axes = list(range(len(x.shape)))
    a, b = call.value(1) % len(axes), call.value(2) % len(axes)
    axes[a], axes[b] = axes[b], axes[a]
    return g.transpose(x, tuple(axes))


@aten("t.default")
def matrix_transpose(call: AtenCall) -> Tensor:
    """Rows as columns."""
    return g.transpose(call.x())


@aten("expand.default")
def expand(call: AtenCall) -> Tensor:
    """Broadcast; -1 keeps an extent."""
    x, shape = call.x(), list(call.value(1))
    old = (1,) * (len(shape) - len(x.shape)) + tuple(x.shape)
    return g.broadcast_to(x, tuple(o if n == -1 else int(n) for n, o in zip(shape, old, strict=True)))


@aten("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default")
def ones(call: AtenCall) -> Tensor:
    """With or without extents of one."""
    x = call.x()
    if ".unsqueeze." in call.where:
        return g.unsqueeze(x, call.value(1) % (len(x.shape) + 1))
    if call.where.endswith("squeeze.default"):
        return g.squeeze(x)
    dims = call.value(1)
    axes = [k % len(x.shape) for k in (dims if isinstance(dims, list) else [dims])]
    return g.squeeze(x, tuple(k for k in axes if x.shape[k] == 1))


@aten("slice.Tensor")
def slice_(call: AtenCall) -> Tensor:
    """Every step-th element between two places of an axis."""
    x, axis = call.x(), call.get("dim") % len(call.x().shape)
    end = call.get("end")
    end = None if end is None or end > x.shape[axis] else end
    return x[(*(slice(None),) * axis, slice(call.get("start"), end, call.get("step")))]


@aten("select.int")
def select(call: AtenCall) -> Tensor:
    """One index of an axis."""
    x, axis = call.x(), call.value(1) % len(call.x().shape)
    return g.select(x, axis, int(call.value(2)))


@aten("cat.default")
def concat(call: AtenCall) -> Tensor:
    """Along an axis; tensors of no elements and one dimension are left out."""
    tensors = [tensor(value, call.where) for value in call.value(0)]
    kept = [t for t in tensors if t.shape != (0,)] or tensors[:1]
    wide = kept[0].dtype
    for each in kept[1:]:
        wide = common(g.full((1,), 0, wide), g.full((1,), 0, each.dtype))[0].dtype
    return g.concat([cast(t, wide) for t in kept], (call.get("dim") or 0) % len(kept[0].shape))


@aten("stack.default")
def stack(call: AtenCall) -> Tensor:
    """Along a new axis."""
    tensors = [tensor(value, call.where) for value in call.value(0)]
    axis = (call.get("dim") or 0) % (len(tensors[0].shape) + 1)
    return g.concat([g.unsqueeze(t, axis) for t in tensors], axis)


@aten("split_with_sizes.default", "split.Tensor", "chunk.default")
def split(call: AtenCall) -> tuple[Tensor, ...]:
    """Consecutive pieces."""
    x, axis = call.x(), (call.get("dim") or 0) % len(call.x().shape)
    sizes = call.value(1)
    extent = x.shape[axis]
    if not isinstance(sizes, list):
        step = sizes if ".split." in call.where else -(-extent // sizes)
        sizes = [min(step, extent - k) for k in range(0, extent, step)]
    ends = np.cumsum(sizes).tolist()
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True))


@aten("repeat.default")
def tile(call: AtenCall) -> Tensor:
    """Copies side by side."""
    return g.tile(call.x(), tuple(call.value(1)))


@aten("flip.default")
def flip(call: AtenCall) -> Tensor:
    """Axes backwards."""
    return g.flip(call.x(), tuple(k % len(call.x().shape) for k in call.value(1)))


@aten("constant_pad_nd.default")
def pad(call: AtenCall) -> Tensor:
    """A value around the last axes; negative widths cut."""
    x, widths, value = call.x(), call.value(1), call.get("value") or 0
    for k in range(len(widths) // 2):
        axis, low, high = len(x.shape) - 1 - k, widths[2 * k], widths[2 * k + 1]
        before = (slice(None),) * axis
        x = x[(*before, slice(max(-low, 0), x.shape[axis] - max(-high, 0)))]
        shapes = [tuple(max(w, 0) if j == axis else n for j, n in enumerate(x.shape)) for w in (low, high)]
        ends = [g.full(shape, value, x.dtype) for shape in shapes]
        parts = [part for part in (ends[0], x, ends[1]) if part.shape[axis]]
        x = g.concat(parts, axis) if len(parts) > 1 else x
    return x


@aten("embedding.default")
def embedding(call: AtenCall) -> Tensor:
    """Rows of a table."""
    return g.take(call.x(), call.x(1), 0)


@aten("index_select.default")
def index_select(call: AtenCall) -> Tensor:
    """Places of an axis."""
    return g.take(call.x(), call.x(2), call.value(1) % len(call.x().shape))


@aten("gather.default")
def gather(call: AtenCall) -> Tensor:
    """An index per element of the result."""
    x, axis, indices = call.x(), call.value(1) % max(len(call.x().shape), 1), call.x(2)
    key = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
    return g.take_along_axis(x[key], indices, axis)


@aten("index.Tensor")
def index(call: AtenCall) -> Tensor:
    """Advanced indexing by integers: one vector of indices per leading axis, broadcast against each other."""
    x = call.x()
    given = [None if each is None else tensor(each, call.where) for each in call.value(1)]
    if any(each is not None and each.dtype.kind == "b" for each in given):
        raise GraphError(call.where, "a mask as an index makes a shape that depends on values", legal="integers")
    places = [k for k, each in enumerate(given) if each is not None]
    if places != list(range(places[0], places[-1] + 1)):
        raise GraphError(call.where, "indices with axes between them", legal="indices of adjacent axes")
    first, count = places[0], len(places)
    flat: Tensor | None = None
    extent = 1
    for k in places:
        at, n = g.cast(given[k], np.int64), x.shape[k]
        at = g.where(g.less(at, g.full((), 0, np.int64)), g.add(at, g.full((), n, np.int64)), at)
        flat = at if flat is None else g.add(g.multiply(flat, g.full((), n, np.int64)), at)
        extent *= n
    merged = g.reshape(x, (*x.shape[:first], extent, *x.shape[first + count :]))
    return g.take(merged, flat, first)
