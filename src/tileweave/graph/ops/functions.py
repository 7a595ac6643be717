"""Functions composed of operators: statistics, norms, gelu, attention. Every part may be cut along every dimension.

Only erf is an operator of its own here; argmax and argmin are reductions to a state (`tileweave.graph.ops.states`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ir.select import permute, unsqueeze
from tileweave.graph.ops import operators as op
from tileweave.graph.ops.generate import arange
from tileweave.graph.ops.operators import Array, Arrays, Operator, as_tensor, elementwise, register
from tileweave.graph.ops.states import state_of

__all__ = [
    "argmax",
    "argmin",
    "attention",
    "erf",
    "gelu",
    "layer_norm",
    "logsumexp",
    "rms_norm",
    "standard_deviation",
    "variance",
]

Axes = int | Sequence[int] | None


# ---------------------------------------------------------------------------------------------------------------------
# the place of the extreme


def _arg(name: str, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    where = f"{name}(x, axis)"
    x = as_tensor(x, where)
    rank = len(x.shape)
    if axis is None:
        if rank != 1:
            raise GraphError(where, f"rank {rank} needs an axis", inputs={"x": x.type}, legal=f"0..{rank - 1}")
        axis = 0
    if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise GraphError(where, f"axis {axis!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}")
    dim = int(axis) % rank
    if x.shape[dim] == 0:
        raise GraphError(where, f"the {name} over no element does not exist", inputs={"x": x.type, "axis": dim})
    result = Tensor(state_of(name, x, dim), "index")
    return unsqueeze(result, dim) if keepdims else result


def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The first place of the greatest value along one dimension, as int64; NaN is the greatest, as in NumPy."""
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The first place of the least value along one dimension, as int64; NaN is the least, as in NumPy."""
    return _arg("argmin", x, axis, keepdims)


# ---------------------------------------------------------------------------------------------------------------------
# statistics and norms


def _floating(where: str, x: Any) -> Tensor:
    x = as_tensor(x, where)
    return op.cast(x, np.float64) if x.dtype.kind in "biu" else x


def _count(where: str, x: Tensor, axis: Axes) -> float:
    return float(math.prod(x.shape[k] for k in op.axes_of(where, x, axis)))


def _spread(x: Tensor, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    """The variance of x in its own type."""
    if not isinstance(correction, (int, float, np.integer, np.floating)):
        raise GraphError("variance(x, axis)", f"correction {correction!r}", inputs={"x": x.type}, legal="a number")
    distance = op.subtract(x, op.mean(x, axis, keepdims=True))
    total = op.sum(op.multiply(distance, distance), axis, keepdims=keepdims)
    return op.divide(total, max(_count("variance(x, axis)", x, axis) - correction, 0.0))


def variance(x: Any, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The mean square distance from the mean, as `numpy.var`; divided by the number less `correction`."""
    x = _floating("variance(x, axis)", x)
    return op.cast(_spread(op.widened(x), axis, correction, keepdims), x.dtype)


def standard_deviation(x: Any, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The square root of the variance, as `numpy.std`."""
    x = _floating("standard_deviation(x, axis)", x)
    return op.cast(op.sqrt(_spread(op.widened(x), axis, correction, keepdims)), x.dtype)


def logsumexp(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """``log(sum(exp(x)))`` without overflow; minus infinity over no element, or over minus infinities alone."""
    x = _floating("logsumexp(x, axis)", x)
    wide = op.widened(x)
    if _count("logsumexp(x, axis)", x, axis) == 0:
        return op.log(op.sum(x, axis, keepdims=keepdims))
    top = op.max(wide, axis, keepdims=True)
    base = op.where(op.less(op.absolute(top), np.inf), top, 0.0)  # an infinite maximum must not be subtracted
    total = op.log(op.sum(op.exp(op.subtract(wide, base)), axis, keepdims=keepdims))
    return op.cast(op.add(total, base if keepdims else op.sum(base, axis)), x.dtype)  # base has extent 1 there


def _last(where: str, x: Tensor, axes: Axes) -> Axes:
    if not x.shape:
        raise GraphError(where, "x has no axis", inputs={"x": x.type}, legal="rank 1 or more")
    return -1 if axes is None else axes


def layer_norm(x: Any, weight: Any = None, bias: Any = None, axis: Axes = None, epsilon: float = 1e-5) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last dimension, or over `axis`."""
    where = "layer_norm(x, weight, bias)"
    x = _floating(where, x)
    axis, wide = _last(where, x, axis), op.widened(x)
    centred = op.subtract(wide, op.mean(wide, axis, keepdims=True))
    spread = op.mean(op.multiply(centred, centred), axis, keepdims=True)
    return _affine(where, x, op.divide(centred, op.sqrt(op.add(spread, epsilon))), weight, bias)


def rms_norm(x: Any, weight: Any = None, axis: Axes = None, epsilon: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x * x) + epsilon) * weight`` over the last dimension, or over `axis`."""
    where = "rms_norm(x, weight)"
    x = _floating(where, x)
    wide = op.widened(x)
    size = op.mean(op.multiply(wide, wide), _last(where, x, axis), keepdims=True)
    return _affine(where, x, op.divide(wide, op.sqrt(op.add(size, epsilon))), weight, None)


def _affine(where: str, x: Tensor, out: Tensor, weight: Any, bias: Any) -> Tensor:
    """``out * weight + bias`` in the type that x, weight and bias promote to; either may be left out."""
    others = [as_tensor(t, where) for t in (weight, bias) if t is not None]
    out = out if weight is None else op.multiply(out, weight)
    out = out if bias is None else op.add(out, bias)
    return op.cast(out, op.common_type(x, *others))


# ---------------------------------------------------------------------------------------------------------------------
# gelu


def erf(x: Any) -> Tensor:
    """Elementwise error function."""
    x = _floating("erf(x)", x)
    return elementwise("erf", [x], x.dtype)


def _erf_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x = inputs["x"]
    out = np.array([math.erf(value) for value in x.ravel().tolist()], np.float64)
    return {"out": out.reshape(x.shape).astype(x.dtype)}


register(Operator("erf", _erf_block))


def gelu(x: Any, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """``x`` times the probability that a standard normal value is below x; exactly, or by the usual tanh formula."""
    x = _floating("gelu(x)", x)
    if approximate == "tanh":
        inner = op.multiply(math.sqrt(2 / math.pi), op.add(x, op.multiply(0.044715, op.power(x, 3))))
        return op.multiply(op.multiply(0.5, x), op.add(1.0, op.tanh(inner)))
    if approximate != "none":
        raise GraphError("gelu(x, approximate)", f"{approximate!r}", inputs={"x": x.type}, legal="none, tanh")
    return op.multiply(op.multiply(0.5, x), op.add(1.0, erf(op.multiply(x, math.sqrt(0.5)))))


# ---------------------------------------------------------------------------------------------------------------------
# attention


def attention_scores(
    q: Any,
    k: Any,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    *,
    first: int = 0,
    keys: int | None = None,
) -> Tensor:
    """``q @ k^T * scale``, minus infinity where a query must not look: beyond its own place, or where mask is False.

    Scores of narrow floats are kept in float32. `k` may be a part of the keys: `first` is its place among all `keys`.
    """
    where = "attention(q, k, v)"
    q, k = as_tensor(q, where), as_tensor(k, where)
    types = {"q": q.type, "k": k.type}
    if len(q.shape) < 2 or len(k.shape) < 2 or q.shape[-1] != k.shape[-1]:
        raise GraphError(where, "queries and keys do not fit", inputs=types, legal="q [.., lq, d], k [.., lk, d]")
    dtype = op.common_type(q, k)
    if not op.is_floating(dtype):
        raise DtypeError(where, f"element type {dtype} is not a floating type", inputs=types, legal="float32, float64")
    rank, wide = len(k.shape), op.wide_type(dtype)
    q, k = op.cast(q, wide), op.cast(k, wide)
    turned = permute(k, (*range(rank - 2), rank - 1, rank - 2))
    scores = op.multiply(op.matmul(q, turned), 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale)
    if causal:
        late = (k.shape[-2] if keys is None else keys) - q.shape[-2]  # the last query sees the last key
        rows = unsqueeze(arange(q.shape[-2], dtype=np.int64), 1)
        seen = op.less_equal(arange(first, first + k.shape[-2], dtype=np.int64), op.add(rows, late))
        scores = op.where(seen, scores, -np.inf)
    if mask is not None:
        mask = as_tensor(mask, where)
        try:
            fits = np.broadcast_shapes(mask.shape, scores.shape)[-2:] == scores.shape[-2:]
        except ValueError:
            fits = False
        if not fits:
            legal = "[.., lq, lk], or what broadcasts to it"
            raise GraphError(where, "the mask does not fit", inputs=types | {"mask": mask.type}, legal=legal)
        scores = op.where(mask, scores, -np.inf)
    return scores


def attention(q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = False, mask: Any = None) -> Tensor:
    """``softmax(q @ k^T * scale) @ v`` along the keys.

    Args:
        q: [.., queries, d].
        k: [.., keys, d].
        v: [.., keys, e].
        scale: ``1 / sqrt(d)`` when left out.
        causal: whether a query sees only the keys up to its own place, counted from the end of both.
        mask: True where a query may look, broadcast to [.., queries, keys].

    Example:
        >>> one = np.ones((1, 2))
        >>> np.asarray(attention(one, one, one)).tolist()
        [[1.0, 1.0]]
    """
    where = "attention(q, k, v)"
    k, v = as_tensor(k, where), as_tensor(v, where)
    if len(v.shape) < 2 or k.shape[-2:-1] != v.shape[-2:-1] or not v.shape[-2]:
        raise GraphError(
            where, "keys and values do not fit", inputs={"k": k.type, "v": v.type}, legal="one or more keys"
        )
    weights = op.softmax(attention_scores(q, k, scale, causal, mask), -1)
    return op.cast(op.matmul(weights, v), op.common_type(as_tensor(q), k, v))
