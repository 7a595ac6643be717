"""Activation functions, composed of elementwise operators, which fusion joins to one operation."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import full, getitem
from tileweave.graph.ir.sugar import public
from tileweave.graph.ops.elementwise import (
    absolute,
    add,
    cast,
    divide,
    exp,
    greater,
    less,
    maximum,
    minimum,
    multiply,
    negative,
    sigmoid,
    tanh,
    where,
)
from tileweave.graph.ops.functions import clip, erf, expm1, log1p
from tileweave.graph.ops.generate import uniform
from tileweave.graph.ops.reductions import floating


@public()
def gelu(x: Any, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """``x`` times the probability that a standard normal value is below x; exactly, or by the usual tanh formula."""
    x = floating("gelu(x)", x)
    if approximate == "tanh":
        inner = multiply(math.sqrt(2 / math.pi), add(x, multiply(0.044715, multiply(x, multiply(x, x)))))
        return multiply(multiply(0.5, x), add(1.0, tanh(inner)))
    if approximate != "none":
        raise GraphError("gelu(x, approximate)", f"{approximate!r}", inputs={"x": x.type}, legal="none, tanh")
    return multiply(multiply(0.5, x), add(1.0, erf(multiply(x, math.sqrt(0.5)))))


@public()
def silu(x: Any) -> Tensor:
    """``x * sigmoid(x)``, also known as swish."""
    x = floating("silu(x)", x)
    return multiply(x, sigmoid(x))


@public()
def softplus(x: Any) -> Tensor:
    """``log(1 + exp(x))``, without overflow."""
    x = floating("softplus(x)", x)
    return add(maximum(x, 0.0), log1p(exp(negative(absolute(x)))))


@public()
def softsign(x: Any) -> Tensor:
    """``x / (1 + |x|)``."""
    x = floating("softsign(x)", x)
    return divide(x, add(1.0, absolute(x)))


@public()
def mish(x: Any) -> Tensor:
    """``x * tanh(softplus(x))``."""
    x = floating("mish(x)", x)
    return multiply(x, tanh(softplus(x)))


@public()
def leaky_relu(x: Any, slope: Any = 0.01) -> Tensor:
    """``x`` where it is positive, ``slope * x`` elsewhere; a slope per channel makes it a prelu."""
    x = floating("leaky_relu(x, slope)", x)
    return cast(where(greater(x, 0.0), x, multiply(x, slope)), x.dtype)


@public()
def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    x = floating("elu(x, alpha)", x)
    above = greater(x, 0.0)
    return where(above, x, multiply(alpha, expm1(where(above, 0.0, x))))  # at 0 minimum would halve the gradient


@public()
def selu(x: Any) -> Tensor:
    """A scaled `elu` that keeps mean 0 and variance 1 (Klambauer et al., "Self-Normalizing Neural Networks")."""
    return multiply(1.0507009873554805, elu(floating("selu(x)", x), 1.6732632423543772))


@public()
def celu(x: Any, alpha: float = 1.0) -> Tensor:
    """``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``."""
    x = floating("celu(x, alpha)", x)
    return add(maximum(x, 0.0), multiply(alpha, expm1(divide(minimum(x, 0.0), alpha))))


@public()
def hard_sigmoid(x: Any, slope: float = 1 / 6, offset: float = 0.5) -> Tensor:
    """``slope * x + offset`` between 0 and 1."""
    x = floating("hard_sigmoid(x)", x)
    return clip(add(multiply(x, slope), offset), 0.0, 1.0)


@public()
def hard_swish(x: Any) -> Tensor:
    """``x * hard_sigmoid(x)``."""
    x = floating("hard_swish(x)", x)
    return multiply(x, hard_sigmoid(x))


@public()
def hard_tanh(x: Any, low: float = -1.0, high: float = 1.0) -> Tensor:
    """x between two bounds."""
    return clip(floating("hard_tanh(x)", x), low, high)


@public()
def glu(x: Any, axis: int = -1) -> Tensor:
    """The first half along a dimension times the sigmoid of the second."""
    x = floating("glu(x, axis)", x)
    if not x.shape or x.shape[axis] % 2:
        raise GraphError("glu(x, axis)", "there are no two halves", inputs={"x": x.type}, legal="an even extent")
    half, dim = x.shape[axis] // 2, axis % len(x.shape)
    first, second = (getitem(x, (*(slice(None),) * dim, slice(k * half, (k + 1) * half))) for k in range(2))
    return multiply(first, sigmoid(second))


@public()
def dropout(x: Any, rate: float, seed: int) -> Tensor:
    """Each element zero with a probability, the others divided by that of staying; the seed decides which.

    The same seed drops the same elements, whole or in parts, on every machine.
    """
    given = floating("dropout(x, rate, seed)", x)
    if not 0 <= rate <= 1:
        raise GraphError("dropout(x, rate, seed)", f"rate {rate!r}", inputs={"x": given.type}, legal="0 <= rate <= 1")
    if rate == 1:
        return full(given.shape, 0.0, given.dtype)
    if rate == 0:
        return given
    kept = less(uniform(given.shape, seed, dtype=np.float32), 1 - rate)
    return where(kept, multiply(given, 1 / (1 - rate)), 0.0)
