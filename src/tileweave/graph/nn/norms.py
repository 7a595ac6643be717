"""Normalisations, composed of operators: every part may be cut along every dimension."""

from __future__ import annotations

from typing import Any

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import reshape
from tileweave.graph.ops.elementwise import absolute, add, cast, common_type, divide, equal, multiply, sqrt, subtract
from tileweave.graph.ops.elementwise import where as choose
from tileweave.graph.ops.reductions import Axes, floating, mean, sum, widened


def _last(where: str, x: Tensor, axes: Axes) -> Axes:
    if not x.shape:
        raise GraphError(where, "x has no axis", inputs={"x": x.type}, legal="rank 1 or more")
    return -1 if axes is None else axes


@public()
def layer_norm(x: Any, weight: Any = None, bias: Any = None, axis: Axes = None, epsilon: float = 1e-5) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last dimension, or over `axis`."""
    where = "layer_norm(x, weight, bias)"
    x = floating(where, x)
    return _affine(where, x, _normal(widened(x), _last(where, x, axis), epsilon), weight, bias)


def _normal(wide: Tensor, axis: Axes, epsilon: float) -> Tensor:
    """x with mean 0 and variance 1 over some dimensions."""
    centred = subtract(wide, mean(wide, axis, keepdims=True))
    spread = mean(multiply(centred, centred), axis, keepdims=True)
    return divide(centred, sqrt(add(spread, epsilon)))


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


def _channels(where: str, x: Tensor, *values: Any) -> list[Tensor | None]:
    """One value per channel each, standing at dimension 1 of x."""
    if len(x.shape) < 2:
        legal = "[batch, channels, spatial..]"
        raise GraphError(where, f"rank {len(x.shape)} is too low", inputs={"x": x.type}, legal=legal)
    out: list[Tensor | None] = []
    for value in values:
        given = None if value is None else as_tensor(value, where)
        if given is not None and given.shape != (x.shape[1],):
            types = {"x": x.type, "per channel": given.type}
            raise GraphError(where, f"there are {x.shape[1]} channels", inputs=types, legal=f"shape ({x.shape[1]},)")
        out.append(None if given is None else unsqueeze(given, tuple(range(1, len(x.shape) - 1))))
    return out


@public()
def batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any = None, running_variance: Any = None, epsilon: float = 1e-5
) -> Tensor:
    """Each channel of [batch, channels, spatial..] with mean 0 and variance 1, times a weight, plus a bias.

    Args:
        x: the input.
        weight: per channel, or None.
        bias: per channel, or None.
        running_mean: of each channel, as it was learnt; that of this batch when left out.
        running_variance: the same.
        epsilon: is added to the variance.
    """
    where = "batch_norm(x, weight, bias)"
    x = floating(where, x)
    w, b, m, v = _channels(where, x, weight, bias, running_mean, running_variance)
    wide = widened(x)
    if (m is None) != (v is None):
        raise GraphError(where, "a mean needs a variance", inputs={"x": x.type}, legal="both or none")
    if m is None or v is None:
        out = _normal(wide, (0, *range(2, len(x.shape))), epsilon)
    else:
        out = divide(subtract(wide, m), sqrt(add(widened(v), epsilon)))
    return cast(_affine(where, x, out, w, b), x.dtype)


@public()
def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Tensor:
    """Each group of channels of [batch, channels, spatial..] with mean 0 and variance 1, then per channel as given."""
    where = "group_norm(x, groups)"
    x = floating(where, x)
    w, b = _channels(where, x, weight, bias)
    if groups < 1 or x.shape[1] % groups:
        legal = f"a divisor of {x.shape[1]}"
        raise GraphError(where, f"{groups} groups of channels", inputs={"x": x.type}, legal=legal)
    split = reshape(widened(x), (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    out = reshape(_normal(split, tuple(range(2, len(split.shape))), epsilon), x.shape)
    return cast(_affine(where, x, out, w, b), x.dtype)


@public()
def instance_norm(x: Any, weight: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Tensor:
    """Each channel of each example with mean 0 and variance 1, then per channel as given."""
    where = "instance_norm(x, weight, bias)"
    x = floating(where, x)
    w, b = _channels(where, x, weight, bias)
    return cast(_affine(where, x, _normal(widened(x), tuple(range(2, len(x.shape))), epsilon), w, b), x.dtype)


@public()
def lp_norm(x: Any, axis: int = -1, order: int = 2) -> Tensor:
    """x divided by its norm of order 1 or 2 along a dimension; zeros stay zeros."""
    x = floating("lp_norm(x, axis)", x)
    wide = widened(x)
    if order == 1:
        size = sum(absolute(wide), axis, keepdims=True)
    else:
        size = sqrt(sum(multiply(wide, wide), axis, keepdims=True))
    return cast(divide(wide, choose(equal(size, 0.0), 1.0, size)), x.dtype)
