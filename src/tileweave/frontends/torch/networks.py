"""ATen reductions, products, attention, norms, convolutions and pools."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten, cast, dtype_of, lifted, real
from tileweave.frontends.values import folded, tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import is_floating


def _axes(call: AtenCall, x: Tensor) -> tuple[int, ...]:
    dims = call.get("dim")
    if dims is None or dims == [] or not x.shape:
        return tuple(range(len(x.shape)))
    return tuple(k % max(len(x.shape), 1) for k in (dims if isinstance(dims, list) else [dims]))


@aten("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dim", "all.dim", "any.dims", "all.dims")
def reduce(call: AtenCall) -> Tensor:
    """Over some axes."""
    x = call.x()
    name = call.where.split("aten.")[1].split(".")[0]
    axes, keep = _axes(call, x), bool(call.get("keepdim"))
    if name in ("any", "all"):
        made: Tensor = getattr(g, name)(x, axes, keepdims=keep)
        return made
    kind = call.get("dtype") if name in ("sum", "mean") else None
    x = x if kind is None else cast(x, dtype_of(kind))
    if name == "sum":
        return g.sum(cast(x, np.int64) if x.dtype.kind in "biu" else x, axes, keepdims=keep)
    function = {"mean": g.mean, "amax": g.max, "amin": g.min}[name]
    return function(x, axes, keepdims=keep)


@aten("sum.default", "mean.default", "max.default", "min.default", "any.default", "all.default")
def total(call: AtenCall) -> Tensor:
    """Over everything."""
    x = call.x()
    name = call.where.split("aten.")[1].split(".")[0]
    kind = call.get("dtype") if name in ("sum", "mean") else None
    x = x if kind is None else cast(x, dtype_of(kind))
    x = cast(x, np.int64) if name == "sum" and x.dtype.kind in "biu" else x
    made: Tensor = getattr(g, name)(x)
    return made


@aten("prod.default", "prod.dim_int")
def product(call: AtenCall) -> Tensor:
    """Over everything, or along an axis."""
    x, kind = call.x(), call.get("dtype")
    x = cast(x, dtype_of(kind)) if kind is not None else cast(x, np.int64) if x.dtype.kind in "biu" else x
    if call.where.endswith("default"):
        return g.product(x)
    return g.product(x, _axes(call, x), keepdims=bool(call.get("keepdim")))


@aten("linalg_vector_norm.default")
def vector_norm(call: AtenCall) -> Tensor:
    """The p-norm over some axes; p may be 0 or infinite."""
    kind, p = call.get("dtype"), call.get("ord")
    x = call.x() if kind is None else cast(call.x(), dtype_of(kind))
    return norm_of(x, p, _axes(call, x), bool(call.get("keepdim")))


def norm_of(x: Tensor, p: float, axes: Any, keep: bool = False) -> Tensor:
    """The p-norm over some axes; p may be 0 or infinite."""
    x = g.absolute(x)
    if np.isinf(p):
        return (g.max if p > 0 else g.min)(x, axes, keepdims=keep)
    if p == 0:
        return g.sum(g.cast(g.not_equal(x, g.full((), 0, x.dtype)), x.dtype), axes, keepdims=keep)
    if p == 1:
        return g.sum(x, axes, keepdims=keep)
    if p == 2:
        return g.sqrt(g.sum(g.multiply(x, x), axes, keepdims=keep))
    return g.power(g.sum(g.power(x, g.full((), p, x.dtype)), axes, keepdims=keep), g.full((), 1 / p, x.dtype))


@aten("_cdist_forward.default")
def distances(call: AtenCall) -> Tensor:
    """The p-norms of the differences of all pairs of rows."""
    x, y = call.x(), call.x(1)
    return norm_of(g.subtract(g.unsqueeze(x, len(x.shape) - 1), g.unsqueeze(y, len(y.shape) - 2)), call.get("p"), -1)


@aten("_pdist_forward.default")
def distances_of_pairs(call: AtenCall) -> Tensor:
    """The p-norms of the differences of each row and those behind it."""
    x = call.x()
    one, other = np.triu_indices(x.shape[0], 1)
    return norm_of(g.subtract(g.take(x, one, 0), g.take(x, other, 0)), call.get("p"), -1)


@aten("_trilinear.default")
def trilinear(call: AtenCall) -> Tensor:
    """The product of three tensors that have dimensions in common, summed over some of them."""
    tensors = [call.x(n) for n in range(3)]
    rank = len(tensors[0].shape) + len(call.get("expand1"))
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    own = ["".join(c for k, c in enumerate(letters) if k not in call.get(f"expand{n}")) for n in (1, 2, 3)]
    out = "".join(c for k, c in enumerate(letters) if k not in [n % rank for n in call.get("sumdim")])
    return g.einsum(f"{','.join(own)}->{out}", *tensors)


@aten("var.correction", "var.dim")
def variance(call: AtenCall) -> Tensor:
    """With a correction of the count."""
    x = call.x()
    correction = call.get("correction") if call.where.endswith("correction") else int(call.get("unbiased"))
    correction = 1 if correction is None else correction
    return g.variance(x, _axes(call, x), correction=correction, keepdims=bool(call.get("keepdim")))


@aten("argmax.default", "argmin.default")
def position(call: AtenCall) -> Tensor:
    """Where the greatest or the least element is."""
    function = g.argmax if ".argmax." in call.where else g.argmin
    x, axis = call.x(), call.get("dim")
    if axis is None or not x.shape:
        place = function(g.reshape(x, (prod(x.shape),)), 0)
        place = g.reshape(place, (1,) * len(x.shape)) if call.get("keepdim") else place
    else:
        place = function(x, axis % len(x.shape), keepdims=bool(call.get("keepdim")))
    return g.cast(place, np.int64)


@aten("max.dim", "min.dim")
def extreme(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The greatest or the least along an axis, and where it is."""
    x, axis, keep = lifted(call.x()), call.get("dim"), bool(call.get("keepdim")) and bool(call.x().shape)
    value, place = (g.max, g.argmax) if ".max." in call.where else (g.min, g.argmin)
    return value(x, axis, keepdims=keep), g.cast(place(x, axis, keepdims=keep), np.int64)


@aten("_softmax.default", "softmax.int", "_log_softmax.default", "log_softmax.int")
def softmax(call: AtenCall) -> Tensor:
    """Along an axis."""
    function = g.log_softmax if "log_softmax" in call.where else g.softmax
    x = real(call.x())
    return g.reshape(function(lifted(x), axis=call.value(1)), x.shape)


@aten("mm.default", "bmm.default", "matmul.default")
def matmul(call: AtenCall) -> Tensor:
    """A product of matrices."""
    return g.matmul(call.x(), call.x(1))


@aten("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped(call: AtenCall) -> Tensor:
    """Rows in groups that end at ``offs``, each group by a matrix of its own, as experts have it."""
    x, w, ends = call.x(), call.x(1), call.x(2)
    if len(x.shape) != 2 or len(w.shape) != 3:
        problem = f"operands of ranks {len(x.shape)} and {len(w.shape)}"
        raise GraphError(call.where, problem, legal="rows [rows, in] by matrices [groups, in, out]")
    before = g.concat([g.full((1,), 0, ends.dtype), ends[:-1]], 0)
    made = g.ragged_dot(x, w, g.subtract(ends, before))
    if not call.where.endswith("_grouped_mm.default"):
        return made
    bias, kind = call.get("bias"), call.get("out_dtype")
    if bias is not None:
        raise GraphError(call.where, "a bias", legal="none, as PyTorch itself has it")
    return made if kind is None else cast(made, dtype_of(kind))


@aten("addmm.default")
def addmm(call: AtenCall) -> Tensor:
    """A product with a bias."""
    b, x, w = call.x(), call.x(1), call.x(2)
    if call.get("beta") == 1 and call.get("alpha") == 1:
        return g.linear(x, w, b) if b.shape == (w.shape[1],) else g.add(b, g.matmul(x, w))
    scaled = g.multiply(g.matmul(x, w), g.full((), call.get("alpha"), x.dtype))
    return g.add(g.multiply(b, g.full((), call.get("beta"), b.dtype)), scaled)


@aten("linear.default")
def linear(call: AtenCall) -> Tensor:
    """x w' + b."""
    b = call.value(2)
    return g.linear(call.x(), g.transpose(call.x(1)), None if b is None else tensor(b, call.where))


@aten("scaled_dot_product_attention.default")
def attention(call: AtenCall) -> Tensor:
    """Softmax of scaled products, with a mask of truth values or numbers."""
    if call.get("dropout_p"):
        raise GraphError(call.where, "dropout in attention", legal="evaluation mode")
    q, k, v = (call.x(n) for n in range(3))
    mask, causal = call.get("attn_mask"), bool(call.get("is_causal"))
    if causal and q.shape[-2] != k.shape[-2]:  # PyTorch aligns the first query with the first key, we the last ones
        mask, causal = np.tril(np.ones((q.shape[-2], k.shape[-2]), np.bool_)), False
    mask = None if mask is None else tensor(mask, call.where)
    made = g.attention(q, k, v, scale=call.get("scale"), causal=causal, mask=mask)
    if mask is None:
        return made
    low = g.full((), -np.inf, mask.dtype) if is_floating(mask.dtype) else None
    seen = g.any(mask if low is None else g.not_equal(mask, low), -1, keepdims=True)
    seen = folded(seen, not isinstance(call.get("attn_mask"), Tensor))
    if isinstance(seen, np.ndarray) and seen.all():
        return made
    return g.where(seen, made, g.full((), 0, made.dtype))  # a query that sees no key has no value


@aten("native_layer_norm.default")
def layer_norm(call: AtenCall) -> tuple[Any, ...]:
    """Over the last axes; with the means, and what differences from them are multiplied by."""
    x = call.x()
    axes = tuple(range(len(x.shape) - len(call.value(1)), len(x.shape)))
    weight, bias = (None if v is None else tensor(v, call.where) for v in (call.value(2), call.value(3)))
    mean, var = g.mean(x, axes, keepdims=True), g.variance(x, axes, keepdims=True)
    return g.layer_norm(x, weight, bias, axis=axes, epsilon=call.value(4)), mean, _rate(var, call.value(4))


def _rate(variance: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(variance + epsilon)."""
    one = g.full((), 1, variance.dtype)
    return g.divide(one, g.sqrt(g.add(variance, g.full((), epsilon, variance.dtype))))


@aten("native_group_norm.default")
def group_norm(call: AtenCall) -> tuple[Any, ...]:
    """Groups of channels by their own statistics."""
    x, groups = call.x(), call.get("group")
    shape = x.shape
    grouped = g.reshape(x, (shape[0], groups, -(-prod(shape[1:]) // groups)))
    mean, var = g.mean(grouped, 2, keepdims=True), g.variance(grouped, 2, keepdims=True)
    normal = g.divide(g.subtract(grouped, mean), g.sqrt(g.add(var, g.full((), call.get("eps"), var.dtype))))
    out = g.reshape(normal, shape)
    for value, function in ((call.get("weight"), g.multiply), (call.get("bias"), g.add)):
        if value is not None:
            out = function(out, g.unsqueeze(tensor(value, call.where), tuple(range(1, len(shape) - 1))))
    return out, g.squeeze(mean, 2), g.squeeze(_rate(var, call.get("eps")), 2)


@aten("var_mean.correction")
def variance_and_mean(call: AtenCall) -> tuple[Tensor, Tensor]:
    """Both over some axes."""
    return variance(call), g.mean(call.x(), _axes(call, call.x()), keepdims=bool(call.get("keepdim")))


@aten("prims.var.default")
def variance_over(call: AtenCall) -> Tensor:
    """Over some axes, with a correction of the count."""
    dims = call.value(1)
    axes = tuple(range(len(call.x().shape))) if dims is None else tuple(dims)
    return g.variance(call.x(), axes, correction=1 if call.value(2) is None else call.value(2))


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm(call: AtenCall) -> tuple[Any, ...]:
    """With given statistics: one multiplication and one addition per element."""
    x = call.x()
    weight, bias, mean, var = (call.value(k) for k in range(1, 5))
    mean, var = tensor(mean, call.where), tensor(var, call.where)
    factor = g.divide(g.full((), 1, var.dtype), g.sqrt(g.add(var, g.full((), call.get("eps"), var.dtype))))
    factor = factor if weight is None else g.multiply(factor, tensor(weight, call.where))
    shift = g.negative(g.multiply(mean, factor))
    shift = shift if bias is None else g.add(shift, tensor(bias, call.where))
    axes = tuple(range(1, len(x.shape) - 1))
    return g.add(g.multiply(x, g.unsqueeze(factor, axes)), g.unsqueeze(shift, axes)), None, None


@aten("convolution.default")
def convolution(call: AtenCall) -> Tensor:
    """Cross-correlation; transposed where that is asked."""
    x, w, b = call.x(), call.x(1), call.value(2)
    bias = None if b is None else tensor(b, call.where)
    stride, padding, dilation = call.value(3), call.value(4), call.value(5)
    rank = len(w.shape) - 2
    stride, padding, dilation = ([v[0]] * rank if len(v) == 1 else v for v in (stride, padding, dilation))
    groups = call.get("groups")
    if call.get("transposed"):
        extra = call.get("output_padding")
        made: Tensor = g.conv_transpose(
            x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, output_padding=extra
        )
        return made
    return g.conv(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@aten("_native_batch_norm_legit.no_stats")
def instance_norm(call: AtenCall) -> tuple[Any, ...]:
    """Channels by the statistics of the batch and all places; these are not given."""
    x = call.x()
    if not call.get("training"):
        raise GraphError(call.where, "no statistics", legal="those of the batch")
    axes, spatial = (0, *range(2, len(x.shape))), tuple(range(1, len(x.shape) - 1))
    mean, var = g.mean(x, axes, keepdims=True), g.variance(x, axes, keepdims=True)
    out = g.divide(g.subtract(x, mean), g.sqrt(g.add(var, g.full((), call.get("eps"), var.dtype))))
    for value, function in ((call.get("weight"), g.multiply), (call.get("bias"), g.add)):
        if value is not None:
            out = function(out, g.unsqueeze(tensor(value, call.where), spatial))
    return out, None, None
