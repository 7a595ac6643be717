"""Reductions to one value, and the statistics, norms and softmaxes that are made of them.

Sums and products of narrow floats (float16, bfloat16) are kept in float32 and narrowed once, at the end.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import element_type, is_floating, wide_type
from tileweave.graph.ir.forms import Form, axes_form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType
from tileweave.graph.ir.select import broadcast_to, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import (
    absolute,
    add,
    cast,
    divide,
    equal,
    exp,
    less,
    log,
    multiply,
    sqrt,
    subtract,
    where,
)
from tileweave.graph.ops.operators import FLOP, Array, Arrays, Block, GradientRule, Operator, register
from tileweave.space import Box, Projection

Axes = int | Sequence[int] | None


def axes_of(where: str, x: Tensor, axis: Any) -> tuple[int, ...]:
    """The dimensions that an axis, several or None (all) name, ascending; the error says which there are."""
    rank = len(x.shape)
    values = range(rank) if axis is None else tuple(axis) if isinstance(axis, Iterable) else (axis,)
    for value in values:
        if not isinstance(value, (int, np.integer)) or not -rank <= value < rank:
            raise GraphError(
                where, f"axis {value!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}"
            )
    dims = tuple(int(value) % rank for value in values)
    if len(set(dims)) != len(dims):
        raise GraphError(where, f"axis {axis} repeats", inputs={"x": x.type}, legal="each axis once")
    return tuple(sorted(dims))


# ---------------------------------------------------------------------------------------------------------------------
# rows


def _reduce(name: str, ufunc: np.ufunc, x: Any, axis: Axes, keepdims: bool, dtype: Any = None) -> Tensor:
    where = f"{name}(x, axis)"
    x = as_tensor(x, where)
    dims = axes_of(where, x, axis)
    rank = len(x.shape)
    kept = [k for k in range(rank) if k not in dims]
    if name in ("max", "min") and builtins.any(x.shape[k] == 0 for k in dims):
        raise GraphError(where, f"the {name} over no element does not exist", inputs={"x": x.type, "axis": dims})
    dtype = element_type(where, dtype) if dtype is not None else ufunc.reduce(np.ones(1, x.dtype)).dtype
    if not dims:
        return cast(x, dtype)
    signature = Signature(
        tuple(f"d{k}" for k in range(rank)),
        (("x", Projection.select(range(rank), rank)),),
        (("out", Projection.select(kept, rank)),),
        tuple((k, _MONOIDS.get(name, name)) for k in dims),
        FLOP,
    )
    out = TensorType(tuple(x.shape[k] for k in kept), dtype)
    operation = Operation(name, Box.of(x.shape), (("x", x),), (("out", out),), (("axes", dims),), signature)
    result = Tensor(operation)
    return unsqueeze(result, dims) if keepdims else result


def _reduce_block(ufunc: np.ufunc) -> Block:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        dtype = operation.output_types["out"].dtype
        total = ufunc.reduce(inputs["x"], axis=operation.parameter("axes"), dtype=wide_type(dtype))
        return {"out": np.asarray(total, dtype)}

    return block


def reduced(operation: Operation, value: Tensor) -> Tensor:
    """A reduction's result (or its gradient) at the shape of the reduction's input."""
    x = operation.input("x")
    return broadcast_to(unsqueeze(value, operation.parameter("axes")), x.shape)


def _sum_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return {"x": reduced(operation, dy)}


def _product_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    # beside one zero only that zero has a gradient, beside two none has
    x, axes = operation.input("x"), operation.parameter("axes")
    zero = equal(x, 0)
    safe = where(zero, 1.0, x)
    zeros = reduced(operation, sum(zero, axes))
    others = divide(reduced(operation, multiply(dy, product(safe, axes))), safe)
    return {"x": where(equal(zeros, cast(zero, zeros.dtype)), others, 0.0)}


def _extreme_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x = operation.input("x")
    hit = equal(x, reduced(operation, y))
    count = sum(hit, operation.parameter("axes"), dtype=wide_type(dy.dtype))
    return {"x": where(hit, reduced(operation, divide(dy, count)), 0.0)}


def _row(name: str, ufunc: np.ufunc, gradient: GradientRule | None = None, lowering: str = "") -> None:
    register(Operator(name, _reduce_block(ufunc), Form(("x",), {"axes": axes_form}), gradient, FLOP, lowering))


_MONOIDS = {"any": "max", "all": "min"}
"""Reductions that combine by a monoid of another name."""
_row("sum", np.add, _sum_gradient, "ReduceSum")
_row("product", np.multiply, _product_gradient, "ReduceProd")
_row("max", np.maximum, _extreme_gradient, "ReduceMax")
_row("min", np.minimum, _extreme_gradient, "ReduceMin")
_row("any", np.logical_or)
_row("all", np.logical_and)


@public(np.sum)
def sum(x: Any, axis: Axes = None, *, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The sum over some or all dimensions, in the type that `numpy.sum` gives, or in `dtype`."""
    return _reduce("sum", np.add, x, axis, keepdims, dtype)


@public(np.prod)
def product(x: Any, axis: Axes = None, *, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The product over some or all dimensions, in the type that `numpy.prod` gives, or in `dtype`."""
    return _reduce("product", np.multiply, x, axis, keepdims, dtype)


@public(np.max)
def max(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The greatest value over some or all dimensions; NaN wins, as in `numpy.max`."""
    return _reduce("max", np.maximum, x, axis, keepdims)


@public(np.min)
def min(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The least value over some or all dimensions; NaN wins, as in `numpy.min`."""
    return _reduce("min", np.minimum, x, axis, keepdims)


def widened(x: Tensor) -> Tensor:
    """x in the floating type in which statistics of it are computed: float64 for integers, float32 at the least."""
    return cast(x, np.float64 if x.dtype.kind in "biu" else wide_type(x.dtype))


def narrowed(out: Tensor, x: Tensor) -> Tensor:
    """A result that was computed on `widened(x)`, in the type of x where that is a floating one."""
    return cast(out, x.dtype) if is_floating(x.dtype) else out


@public(np.any)
def any(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether some element over some or all dimensions is not zero; False over none."""
    return _reduce("any", np.logical_or, x, axis, keepdims)


@public(np.all)
def all(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether every element over some or all dimensions is not zero; True over none."""
    return _reduce("all", np.logical_and, x, axis, keepdims)


@public(np.mean)
def mean(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The mean over some or all dimensions: their sum divided by their number."""
    x = as_tensor(x, "mean(x, axis)")
    dims = axes_of("mean(x, axis)", x, axis)
    count = prod(x.shape[k] for k in dims)
    return narrowed(divide(sum(widened(x), dims, keepdims=keepdims), float(count)), x)


@public()
def softmax(x: Any, axis: int = -1) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along one dimension."""
    x = as_tensor(x, "softmax(x, axis)")
    wide = widened(x)
    weights = exp(subtract(wide, max(wide, axis, keepdims=True)))
    return narrowed(divide(weights, sum(weights, axis, keepdims=True)), x)


@public()
def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """``log(softmax(x))`` along one dimension, without losing small probabilities."""
    x = as_tensor(x, "log_softmax(x, axis)")
    wide = widened(x)
    shifted = subtract(wide, max(wide, axis, keepdims=True))
    return narrowed(subtract(shifted, log(sum(exp(shifted), axis, keepdims=True))), x)


def floating(where: str, x: Any) -> Tensor:
    """x as a tensor of a floating type: integers and bools become float64."""
    x = as_tensor(x, where)
    return cast(x, np.float64) if x.dtype.kind in "biu" else x


def _count(where: str, x: Tensor, axis: Axes) -> float:
    return float(prod(x.shape[k] for k in axes_of(where, x, axis)))


def _spread(x: Tensor, axis: Axes, correction: float, keepdims: bool) -> Tensor:
    """The variance of x in its own type."""
    if not isinstance(correction, (int, float, np.integer, np.floating)):
        raise GraphError("variance(x, axis)", f"correction {correction!r}", inputs={"x": x.type}, legal="a number")
    distance = subtract(x, mean(x, axis, keepdims=True))
    total = sum(multiply(distance, distance), axis, keepdims=keepdims)
    return divide(total, builtins.max(_count("variance(x, axis)", x, axis) - correction, 0.0))


@public(np.var)
def variance(x: Any, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The mean square distance from the mean, as `numpy.var`; divided by the number less `correction`."""
    x = floating("variance(x, axis)", x)
    return cast(_spread(widened(x), axis, correction, keepdims), x.dtype)


@public(np.std)
def standard_deviation(x: Any, axis: Axes = None, *, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The square root of the variance, as `numpy.std`."""
    x = floating("standard_deviation(x, axis)", x)
    return cast(sqrt(_spread(widened(x), axis, correction, keepdims)), x.dtype)


@public()
def logsumexp(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """``log(sum(exp(x)))`` without overflow; minus infinity over no element, or over minus infinities alone."""
    x = floating("logsumexp(x, axis)", x)
    wide = widened(x)
    if _count("logsumexp(x, axis)", x, axis) == 0:
        return log(sum(x, axis, keepdims=keepdims))
    top = max(wide, axis, keepdims=True)
    base = where(less(absolute(top), np.inf), top, 0.0)  # an infinite maximum must not be subtracted
    total = log(sum(exp(subtract(wide, base)), axis, keepdims=keepdims))
    return cast(add(total, base if keepdims else sum(base, axis)), x.dtype)  # base has extent 1 there
