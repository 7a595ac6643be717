"""Normalisations, composed of operators: every part may be cut along every dimension."""

from __future__ import annotations

from typing import Any

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import add, cast, common_type, divide, multiply, sqrt, subtract
from tileweave.graph.ops.reductions import Axes, floating, mean, widened


def _last(where: str, x: Tensor, axes: Axes) -> Axes:
    if not x.shape:
        raise GraphError(where, "x has no axis", inputs={"x": x.type}, legal="rank 1 or more")
    return -1 if axes is None else axes


@public()
def layer_norm(x: Any, weight: Any = None, bias: Any = None, axis: Axes = None, epsilon: float = 1e-5) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last dimension, or over `axis`."""
    where = "layer_norm(x, weight, bias)"
    x = floating(where, x)
    axis, wide = _last(where, x, axis), widened(x)
    centred = subtract(wide, mean(wide, axis, keepdims=True))
    spread = mean(multiply(centred, centred), axis, keepdims=True)
    return _affine(where, x, divide(centred, sqrt(add(spread, epsilon))), weight, bias)


@public()
def rms_norm(x: Any, weight: Any = None, axis: Axes = None, epsilon: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x * x) + epsilon) * weight`` over the last dimension, or over `axis`."""
    where = "rms_norm(x, weight)"
    x = floating(where, x)
    wide = widened(x)
    size = mean(multiply(wide, wide), _last(where, x, axis), keepdims=True)
    return _affine(where, x, divide(wide, sqrt(add(size, epsilon))), weight, None)


def _affine(where: str, x: Tensor, out: Tensor, weight: Any, bias: Any) -> Tensor:
    """``out * weight + bias`` in the type that x, weight and bias promote to; either may be left out."""
    others = [as_tensor(t, where) for t in (weight, bias) if t is not None]
    out = out if weight is None else multiply(out, weight)
    out = out if bias is None else add(out, bias)
    return cast(out, common_type(x, *others))
