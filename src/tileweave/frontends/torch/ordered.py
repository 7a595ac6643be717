"""ATen operators that need elements in order: sorting, medians, running results, searches, histograms."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten, cast, common, dtype_of, lifted, real
from tileweave.frontends.values import tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ops.along import last_reached


@aten("sort.default", "sort.stable")
def sort(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The elements of an axis in order, and their places; equal ones stay as they are."""
    x, axis, down = call.x(), call.get("dim"), bool(call.get("descending"))
    if not x.shape:
        return x, g.full((), 0, np.int64)
    places = g.argsort(x, axis, descending=down)
    return g.take_along_axis(x, places, axis), g.cast(places, np.int64)


@aten("kthvalue.default", "median.dim", "median.default", "nanmedian.dim", "nanmedian.default")
def ranked(call: AtenCall) -> Any:
    """The k-th smallest of an axis and where it is, or the lower median: NaN where an element is, or of the others."""
    x, whole = call.x(), call.where.endswith("median.default")
    x, axis = (g.reshape(x, (prod(x.shape),)), 0) if whole else (x, call.get("dim"))
    if not x.shape:
        return x, g.full((), 0, np.int64)
    count = g.sum(g.cast(g.equal(x, x), np.int64), axis, keepdims=True)  # NaN sorts last: it begins behind the others
    n = x.shape[axis]
    if ".nanmedian." in call.where:
        rank = g.where(g.equal(count, 0), 0, g.floor_divide(g.subtract(count, 1), 2))
    elif ".median." in call.where:
        rank = g.where(g.less(count, n), count, (n - 1) // 2)
    else:
        rank = g.full(count.shape, int(call.value(1)) - 1, np.int64)
    place = g.take_along_axis(g.argsort(x, axis), rank, axis)
    value = g.take_along_axis(x, place, axis)
    if whole:
        return g.reshape(value, ())
    return tuple(t if call.get("keepdim") else g.squeeze(t, axis) for t in (value, g.cast(place, np.int64)))


@aten("topk.default")
def top_k(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The largest or smallest of an axis."""
    x = call.x()
    values, places = g.top_k(lifted(x), int(call.value(1)), call.get("dim"), largest=bool(call.get("largest")))
    if not x.shape:
        values, places = g.squeeze(values), g.squeeze(places)
    return values, g.cast(places, np.int64)


@aten("cumsum.default", "cumprod.default")
def running(call: AtenCall) -> Tensor:
    """Running sums or products, of the type that is asked for; else of integers in 64 bits."""
    x, kind = call.x(), call.get("dtype")
    x = cast(x, dtype_of(kind)) if kind is not None else cast(x, np.int64) if x.dtype.kind in "biu" else x
    function = g.cumsum if ".cumsum." in call.where else g.cumprod
    return cast(function(x, call.value(1) % max(len(x.shape), 1)), x.dtype) if x.shape else x


@aten("cummax.default", "cummin.default")
def running_extreme(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The greatest or the least so far along an axis, and the last place where it was."""
    x = call.x()
    if not x.shape:
        return x, g.full((), 0, np.int64)
    axis = call.value(1) % len(x.shape)
    y = (g.cummax if ".cummax." in call.where else g.cummin)(x, axis)
    return y, last_reached(x, y, axis)


@aten("logcumsumexp.default")
def running_logarithms(call: AtenCall) -> Tensor:
    """Logarithms of running sums of exponentials."""
    x = call.x()
    return g.logcumsumexp(x, call.value(1) % len(x.shape)) if x.shape else x


@aten("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar")
def searched(call: AtenCall) -> Tensor:
    """Where numbers belong among sorted ones: how many are less, or with ``right`` not greater; NaN behind all."""
    bucketize = ".bucketize." in call.where
    ordered = call.x(int(bucketize))
    values = call.like(int(not bucketize), ordered)
    right = bool(call.get("right")) or (not bucketize and call.get("side") == "right")
    order = None if bucketize else call.get("sorter")
    if order is not None:
        ordered = g.take_along_axis(ordered, tensor(order, call.where), -1)
    ordered, values = common(ordered, values)
    count = g.searchsorted(ordered, values, "right" if right else "left")
    if is_floating(values.dtype):
        count = g.where(g.isnan(values), ordered.shape[-1], count)
    return g.cast(count, np.int32 if call.get("out_int32") else np.int64)


@aten("repeat_interleave.Tensor")
def repeated_places(call: AtenCall) -> Any:
    """Each index as often as a tensor says."""
    repeats, size = call.x(), call.get("output_size")
    if size is None:
        raise GraphError(call.where, "the length of the result depends on values", legal="output_size=.., or a number")
    return g.cast(g.searchsorted(g.cumsum(repeats, 0), np.arange(int(size)), "right"), repeats.dtype)


@aten("histc.default")
def histogram(call: AtenCall) -> Tensor:
    """How many elements each of so many equal parts of a range holds; the last part has its end."""
    x, bins = g.reshape(real(call.x()), (-1,)), int(call.get("bins"))
    low, high = g.full((), call.get("min"), x.dtype), g.full((), call.get("max"), x.dtype)
    if call.get("min") == call.get("max") == 0:
        low, high = g.min(x), g.max(x)
    one = g.full((), 1, x.dtype)
    flat = g.equal(low, high)
    low, high = g.where(flat, g.subtract(low, one), low), g.where(flat, g.add(high, one), high)
    inside = g.logical_and(g.less_equal(low, x), g.less_equal(x, high))
    part = g.divide(g.multiply(g.subtract(x, low), g.full((), bins, x.dtype)), g.subtract(high, low))
    place = g.cast(g.clip(g.floor(g.where(inside, part, g.full((), 0, x.dtype))), 0, bins - 1), np.int64)
    counts = g.scatter(np.zeros(bins, np.int64), place, g.cast(inside, np.int64), 0, reduction="add")
    return cast(counts, call.x().dtype)
