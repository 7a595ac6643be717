"""ATen operators that make tensors, and that move elements: shapes, slices, joins, gathers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten, cast, common, dtype_of, lifted
from tileweave.frontends.torch.networks import norm_of
from tileweave.frontends.values import tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import bounds, is_floating


@aten("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
      "empty.memory_format", "empty_permuted.default", "scalar_tensor.default", "new_zeros.default")  # fmt: skip
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
    return g.transpose(x, tuple(k % max(len(x.shape), 1) for k in call.value(1)))


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


@aten("prims.broadcast_in_dim.default")
def broadcast_in(call: AtenCall) -> Tensor:
    """Each dimension at a named place of the result, others repeat."""
    x, shape, places = call.x(), [int(n) for n in call.value(1)], call.value(2)
    spread = [1] * len(shape)
    for n, place in zip(x.shape, places, strict=True):
        spread[place] = n
    return g.broadcast_to(g.reshape(x, tuple(spread)), tuple(shape))


@aten("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default")
def ones(call: AtenCall) -> Tensor:
    """With or without extents of one."""
    x = call.x()
    if ".unsqueeze." in call.where:
        return g.unsqueeze(x, call.value(1) % (len(x.shape) + 1))
    if call.where.endswith("squeeze.default"):
        return g.squeeze(x)
    dims = call.value(1)
    axes = [k % max(len(x.shape), 1) for k in (dims if isinstance(dims, list) else [dims])]
    return g.squeeze(x, tuple(k for k in axes if x.shape[k] == 1))


@aten("slice.Tensor")
def slice_(call: AtenCall) -> Tensor:
    """Every step-th element between two places of an axis."""
    x, axis = call.x(), call.get("dim") % max(len(call.x().shape), 1)
    end = call.get("end")
    end = None if end is None or end > x.shape[axis] else end
    return x[(*(slice(None),) * axis, slice(call.get("start"), end, call.get("step")))]


@aten("select.int")
def select(call: AtenCall) -> Tensor:
    """One index of an axis."""
    x, axis = call.x(), call.value(1) % max(len(call.x().shape), 1)
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
    x, axis = call.x(), (call.get("dim") or 0) % max(len(call.x().shape), 1)
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
    return g.flip(call.x(), tuple(k % max(len(call.x().shape), 1) for k in call.value(1)))


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


@aten("embedding_renorm.default")
def embedding_renorm(call: AtenCall) -> Tensor:
    """A table whose rows that are asked for have a norm of at most so much."""
    x, most = call.x(), call.get("max_norm")
    size = norm_of(x, call.get("norm_type"), -1, True)
    factor = g.divide(g.full((), most, x.dtype), g.add(size, g.full((), 1e-7, x.dtype)))
    asked = g.scatter(
        g.full((x.shape[0],), False, np.bool_),
        g.reshape(call.x(1), (-1,)),
        g.full((prod(call.x(1).shape),), True, np.bool_),
        0,
    )
    changed = g.logical_and(g.unsqueeze(asked, 1), g.greater(size, g.full((), most, x.dtype)))
    return g.where(changed, g.multiply(x, factor), x)


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(call: AtenCall) -> tuple[Tensor, None, None, None]:
    """Sums, means or greatest elements of the rows of bags, which begin at offsets; other results are for gradients."""
    table, at, starts, mode = call.x(), call.x(1), call.x(2), ("sum", "mean", "amax")[call.get("mode")]
    if call.get("include_last_offset"):
        starts = starts[:-1]
    bags, pad = starts.shape[0], call.get("padding_idx")
    rows = g.take(table, at, 0)
    if call.get("per_sample_weights") is not None:
        rows = g.multiply(rows, g.unsqueeze(tensor(call.get("per_sample_weights"), call.where), 1))
    begun = g.less_equal(cast(starts, np.int64), np.arange(at.shape[0])[:, None])
    bag = g.subtract(g.sum(g.cast(begun, np.int64), 1), g.full((), 1, np.int64))
    if pad >= 0:  # rows that count nowhere go to a bag of their own
        bag = g.where(g.equal(at, g.full((), pad, at.dtype)), g.full((), bags, np.int64), bag)
    start = g.full((bags + 1, table.shape[1]), 0, table.dtype)
    places = g.broadcast_to(g.unsqueeze(bag, 1), rows.shape)
    return _joined(start, places, rows, 0, mode, False)[:bags], None, None, None


@aten("index_select.default")
def index_select(call: AtenCall) -> Tensor:
    """Places of an axis."""
    x = lifted(call.x())
    return (
        g.reshape(g.take(x, call.x(2), call.value(1)), call.x().shape)
        if x is not call.x()
        else g.take(x, call.x(2), call.value(1))
    )


@aten("gather.default")
def gather(call: AtenCall) -> Tensor:
    """An index per element of the result."""
    x, indices = lifted(call.x()), lifted(call.x(2))
    axis = call.value(1) % len(x.shape)
    key = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
    return g.reshape(g.take_along_axis(x[key], indices, axis), call.x(2).shape)


def _from_start(indices: Tensor, extent: int) -> Tensor:
    """Indices from the end as indices from the start."""
    at = cast(indices, np.int64)
    return g.where(g.less(at, g.full((), 0, np.int64)), g.add(at, g.full((), extent, np.int64)), at)


def _places(call: AtenCall, x: Tensor) -> tuple[list[int], list[Tensor]]:
    """The axes that have indices, and these, of one shape."""
    given = [None if each is None else tensor(each, call.where) for each in call.value(1)]
    if any(each is not None and each.dtype.kind == "b" for each in given):
        raise GraphError(call.where, "a mask as an index makes a shape that depends on values", legal="integers")
    axes = [k for k, each in enumerate(given) if each is not None]
    found = [_from_start(each, x.shape[k]) for k, each in enumerate(given) if each is not None]
    shape = np.broadcast_shapes(*(each.shape for each in found))
    return axes, [g.broadcast_to(each, shape) for each in found]


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(call: AtenCall) -> Tensor:
    """Advanced indexing by integers: the indices' axes stand where these are adjacent, else in front, as in NumPy."""
    x = call.x()
    axes, places = _places(call, x)
    if axes != list(range(axes[0], axes[-1] + 1)):
        x = g.transpose(x, (*axes, *(k for k in range(len(x.shape)) if k not in axes)))
        axes = list(range(len(axes)))
    first, count = axes[0], len(axes)
    flat, extent = places[0], x.shape[first]
    for k, at in zip(axes[1:], places[1:], strict=True):
        flat = g.add(g.multiply(flat, g.full((), x.shape[k], np.int64)), at)
        extent *= x.shape[k]
    merged = g.reshape(x, (*x.shape[:first], extent, *x.shape[first + count :]))
    return g.take(merged, flat, first)


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(call: AtenCall) -> Tensor:
    """Elements at places replaced, or added to; a mask replaces by one value, or by as many as it has elements."""
    x, add = call.x(), bool(call.get("accumulate"))
    values = cast(call.x(2), x.dtype)
    masks = [each for each in call.value(1) if each is not None]
    if len(masks) == 1 and tensor(masks[0], call.where).dtype.kind == "b" and call.value(1)[0] is not None:
        mask = tensor(masks[0], call.where)
        if values.shape not in ((), (1,)):
            raise GraphError(call.where, "a mask takes as many values as it has elements", legal="one value")
        mask = g.unsqueeze(mask, tuple(range(len(mask.shape), len(x.shape))))
        return g.where(mask, g.add(x, values) if add else values, x)
    axes, places = _places(call, x)
    rest = [k for k in range(len(x.shape)) if k not in axes]
    order = [*axes, *rest]
    moved = g.transpose(x, tuple(order))
    shape = places[0].shape
    front = axes == list(range(axes[0], axes[-1] + 1))
    whole = (*(x.shape[k] for k in rest[: axes[0]]), *shape, *(x.shape[k] for k in rest[axes[0] :]))
    updates = g.broadcast_to(values, whole if front else (*shape, *(x.shape[k] for k in rest)))
    if front:  # [before.., places.., behind..] -> [places.., before.., behind..]
        before = axes[0]
        own = range(before, before + len(shape))
        updates = g.transpose(updates, (*own, *(k for k in range(len(updates.shape)) if k not in own)))
    made = g.scatter_nd(moved, g.stack(places, -1), updates, reduction="add" if add else None)
    return g.transpose(made, tuple(int(k) for k in np.argsort(order)))


_JOINED = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min", "add": "add", "multiply": "mul"}
"""How elements are joined with what is there: PyTorch's name -> ours."""


@aten("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add.default",
      "scatter_reduce.two")  # fmt: skip
def scatter(call: AtenCall) -> Tensor:
    """Elements at places along an axis replaced, or joined with what is there."""
    x, indices = lifted(call.x()), lifted(call.x(2))
    axis = call.value(1) % len(x.shape)
    value = lifted(cast(call.like(3, x), x.dtype))
    key = tuple(slice(n) for n in indices.shape)
    updates = value[key] if len(value.shape) == len(key) and call.x(3).shape else g.broadcast_to(value, indices.shape)
    if "scatter_reduce" in call.where:
        made = _joined(x, indices, updates, axis, call.get("reduce"), bool(call.get("include_self")))
    else:
        how = "add" if "scatter_add" in call.where else _JOINED[call.get("reduce")] if "reduce" in call.where else None
        made = _scattered(x, indices, updates, axis, how)
    return g.reshape(made, call.x().shape)


@aten("index_reduce.default")
def index_reduce(call: AtenCall) -> Tensor:
    """Slices of an axis joined with what is there."""
    x, updates = lifted(call.x()), lifted(cast(call.x(3), call.x().dtype))
    axis = call.value(1) % len(x.shape)
    line = [-1 if k == axis else 1 for k in range(len(x.shape))]
    indices = g.broadcast_to(g.reshape(call.x(2), line), updates.shape)
    made = _joined(x, indices, updates, axis, call.get("reduce"), bool(call.get("include_self")))
    return g.reshape(made, call.x().shape)


@aten("put.default")
def put(call: AtenCall) -> Tensor:
    """Elements at places in row-major order replaced, or added to."""
    x, indices = call.x(), g.reshape(call.x(1), (-1,))
    flat, updates = g.reshape(x, (-1,)), g.reshape(cast(call.x(2), x.dtype), (-1,))
    return g.reshape(g.scatter(flat, indices, updates, 0, reduction="add" if call.get("accumulate") else None), x.shape)


def _joined(x: Tensor, indices: Tensor, updates: Tensor, axis: int, how: str, own: bool) -> Tensor:
    """Elements joined at places; ``own``: with what is there, else where nothing comes, that remains."""
    name = _JOINED[how]
    ones = g.full(indices.shape, 1, np.int64)
    hits = _scattered(g.full(x.shape, int(own), np.int64), indices, ones, axis, "add")
    touched = g.greater(hits, g.full((), int(own), np.int64))
    start = x
    if not own:
        low, high = bounds(x.dtype)
        neutral = {"add": 0, "mul": 1, "max": low, "min": high}[name]
        start = g.where(touched, g.full((), neutral, x.dtype), x)
    made = _scattered(start, indices, updates, axis, name)
    if how != "mean":
        return made
    count = cast(g.maximum(hits, g.full((), 1, np.int64)), x.dtype)
    mean = g.divide(made, count) if is_floating(x.dtype) else g.floor_divide(made, count)
    return g.where(touched, mean, x)


def _scattered(x: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str | None) -> Tensor:
    """`tileweave.scatter`, where the places stand for a corner of the other axes only."""
    rank = len(x.shape)
    ends = [n if k == axis else m for k, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))]
    out = g.scatter(x[tuple(slice(n) for n in ends)], indices, updates, axis, reduction=reduction)
    for k in reversed(range(rank)):  # the corner becomes whole along one axis after the other
        if ends[k] < x.shape[k]:
            around = x[tuple(slice(n) if j < k else slice(None) for j, n in enumerate(ends))]
            out = _put(around, k, 0, ends[k], 1, out)
    return out


def _put(x: Tensor, axis: int, start: int, stop: int, step: int, value: Tensor) -> Tensor:
    """x with every step-th element of an axis, from start to before stop, replaced."""
    before = (slice(None),) * axis
    value = cast(value, x.dtype)
    if not value.shape[axis]:
        return x
    if step == 1:
        parts = [x[(*before, slice(start))], value, x[(*before, slice(stop, None))]]
        kept = [part for part in parts if part.shape[axis]]
        return g.concat(kept, axis) if len(kept) > 1 else kept[0] if kept else x
    places = np.zeros(x.shape[axis], np.int64)
    places[start:stop:step] = np.arange(len(range(start, stop, step)))
    inside = np.zeros(x.shape[axis], bool)
    inside[start:stop:step] = True
    mask = inside.reshape(-1, *[1] * (len(x.shape) - axis - 1))
    return g.where(g.as_tensor(mask), g.take(value, places, axis), x)


@aten("slice_scatter.default")
def slice_scatter(call: AtenCall) -> Tensor:
    """A slice of an axis replaced."""
    x, axis = call.x(), call.get("dim") % max(len(call.x().shape), 1)
    start, stop, step = slice(call.get("start"), call.get("end"), call.get("step")).indices(x.shape[axis])
    return _put(x, axis, start, max(start, stop), step, call.x(1))


@aten("select_scatter.default")
def select_scatter(call: AtenCall) -> Tensor:
    """One index of an axis replaced."""
    x, axis = call.x(), call.get("dim") % max(len(call.x().shape), 1)
    at = int(call.get("index")) % x.shape[axis]
    return _put(x, axis, at, at + 1, 1, g.unsqueeze(call.x(1), axis))


@aten("masked_scatter.default")
def masked_scatter(call: AtenCall) -> Tensor:
    """Where a mask is true, the elements of another tensor, in order."""
    x = call.x()
    mask = g.broadcast_to(call.x(1), x.shape)
    flat = g.reshape(mask, (prod(x.shape),))
    order = g.subtract(g.cumsum(g.cast(flat, np.int64), 0), g.full((), 1, np.int64))
    given = g.reshape(cast(call.x(2), x.dtype), (prod(call.x(2).shape),))
    taken = g.take(given, g.maximum(order, g.full((), 0, np.int64)), 0)
    return g.reshape(g.where(flat, taken, g.reshape(x, flat.shape)), x.shape)


@aten("as_strided.default")
def as_strided(call: AtenCall) -> Tensor:
    """Elements of a contiguous tensor by their distance."""
    x = call.x()
    return g.take(g.reshape(x, (prod(x.shape),)), _strided(call, 1), 0)


def _strided(call: AtenCall, first: int) -> Any:
    """Places by sizes and strides, which are arguments from `first` on."""
    at: Any = np.full((), call.get("storage_offset") or 0, np.int64)
    for n, stride in zip(call.value(first), call.value(first + 1), strict=True):
        at = at[..., None] + np.arange(n) * stride
    return at


@aten("as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(call: AtenCall) -> Tensor:
    """Elements of a contiguous tensor replaced by their distance."""
    x, at = call.x(), _strided(call, 2).reshape(-1)
    flat, updates = g.reshape(x, (-1,)), g.reshape(cast(call.x(1), x.dtype), (-1,))
    return g.reshape(g.scatter(flat, at, updates, 0), x.shape)


@aten("diagonal.default")
def diagonal(call: AtenCall) -> Tensor:
    """Elements whose indices of two axes have one distance, along a new last axis."""
    x, offset = call.x(), call.get("offset")
    a, b = call.get("dim1") % max(len(x.shape), 1), call.get("dim2") % max(len(x.shape), 1)
    rest = [k for k in range(len(x.shape)) if k not in (a, b)]
    n, m = x.shape[a], x.shape[b]
    count = max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))
    at = np.arange(count)
    places = (at + max(-offset, 0)) * m + at + max(offset, 0)
    rows = g.reshape(g.transpose(x, (*rest, a, b)), (*(x.shape[k] for k in rest), n * m))
    return g.take(rows, places, len(rest))
