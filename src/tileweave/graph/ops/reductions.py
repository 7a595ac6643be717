"""Reductions to one value or to a tuple of them, and the statistics, norms and softmaxes that are made of them.

Sums and products of narrow floats (float16, bfloat16) are kept in float32 and narrowed once, at the end.

A reduction to a tuple (argmax, the moments, ..) has one output per part of its state. The signature names the monoid,
as for a sum: a block that holds part of the reduced dimension makes the state of that part, and states combine in any
order. `combine` is the combination as an operation of its own, for graphs that write a cut reduction out.

Source: Tapestry, "Reduction Operations".
"""

from __future__ import annotations

import builtins
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import element_type, is_floating, wide_type
from tileweave.graph.ir.forms import Form, axes_form, axis_form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType, trusted_type
from tileweave.graph.ir.select import broadcast_to, concat, dimension, unsqueeze
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
from tileweave.graph.ops.monoids import STATES, combine_states, monoid_form, place_of
from tileweave.graph.ops.operators import FLOP, Array, Arrays, Block, GradientRule, Into, Operator, register
from tileweave.space import AffineMap, Box, Projection

Axes = int | Sequence[int] | None


def axes_of(where: str, x: Tensor, axis: Any) -> tuple[int, ...]:
    """The dimensions that an axis, several or None (all) name, ascending; the error says which there are."""
    rank = len(x.shape)
    values = range(rank) if axis is None else tuple(axis) if isinstance(axis, Iterable) else (axis,)
    dims = tuple(dimension(where, x, value) for value in values)
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
    dtype = element_type(where, dtype) if dtype is not None else _reduced_type(ufunc, x.dtype)
    if not dims:
        return cast(x, dtype)
    kind = trusted_type(tuple([x.shape[k] for k in kept]), dtype)
    signature = _reduction_form(rank, dims, _MONOIDS.get(name, name))
    result = Tensor(Operation(name, x.type.box, (("x", x),), (("out", kind),), (("axes", dims),), signature))
    return unsqueeze(result, dims) if keepdims else result


@lru_cache(maxsize=1024)
def _reduced_type(ufunc: np.ufunc, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type of a reduction by a ufunc."""
    return np.asarray(ufunc.reduce(np.ones(1, dtype))).dtype


@lru_cache(maxsize=1024)
def _reduction_form(rank: int, dims: tuple[int, ...], monoid: str) -> Signature:
    """The signature of a reduction of some dimensions to one value."""
    return Signature(
        tuple(f"d{k}" for k in range(rank)),
        (("x", Projection.select(range(rank), rank)),),
        (("out", Projection.select([k for k in range(rank) if k not in dims], rank)),),
        tuple((k, monoid) for k in dims),
        FLOP,
    )


def _reduce_block(ufunc: np.ufunc) -> Block:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        dtype = operation.output_types["out"].dtype
        total = ufunc.reduce(inputs["x"], axis=operation.parameter("axes"), dtype=wide_type(dtype))
        return {"out": np.asarray(total, dtype)}

    return block


def _reduce_into(ufunc: np.ufunc) -> Into:
    block = _reduce_block(ufunc)

    def into(operation: Operation, inputs: Arrays, out: Array) -> None:
        if wide_type(out.dtype) == out.dtype:
            ufunc.reduce(inputs["x"], axis=operation.parameter("axes"), dtype=out.dtype, out=out)
        else:
            out[...] = block(operation, inputs)["out"]

    return into


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
    form = Form(("x",), {"axes": axes_form})
    register(Operator(name, _reduce_block(ufunc), form, gradient, FLOP, lowering, into=_reduce_into(ufunc)))


_MONOIDS = {"any": "max", "all": "min"}
"""Reductions that combine by a monoid of another name."""
_row("sum", np.add, _sum_gradient, "ReduceSum")
_row("product", np.multiply, _product_gradient, "ReduceProd")
_row("max", np.maximum, _extreme_gradient, "ReduceMax")
_row("min", np.minimum, _extreme_gradient, "ReduceMin")
_row("any", np.logical_or, lowering="ReduceMax")  # of truths, which are all that is compiled so
_row("all", np.logical_and, lowering="ReduceMin")


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
    axes_of("softmax(x, axis)", x, axis)
    wide = widened(x)
    weights = exp(subtract(wide, max(wide, axis, keepdims=True)))
    return narrowed(divide(weights, sum(weights, axis, keepdims=True)), x)


@public()
def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """``log(softmax(x))`` along one dimension, without losing small probabilities."""
    x = as_tensor(x, "log_softmax(x, axis)")
    axes_of("log_softmax(x, axis)", x, axis)
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


# ---------------------------------------------------------------------------------------------------------------------
# tuples


def state_of(name: str, x: Tensor, dim: int) -> Operation:
    """The reduction of a tensor along one dimension to a state: one output per part of it."""
    rank = len(x.shape)
    kept = [k for k in range(rank) if k != dim]
    monoid = STATES[name]
    made = Projection.select(kept, rank)
    shape = tuple(x.shape[k] for k in kept)
    signature = Signature(
        tuple(f"d{k}" for k in range(rank)),
        (("x", Projection.select(range(rank), rank)),),
        tuple((part, made) for part in monoid.outputs),
        ((dim, name),),
        FLOP,
    )
    outputs = tuple((part, TensorType(shape, kind(x.dtype))) for part, kind in monoid.parts)
    return Operation(name, Box.of(x.shape), (("x", x),), outputs, (("axis", dim),), signature)


def _state_block(name: str) -> Callable[[Operation, Arrays], dict[str, Array]]:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        dim, x = operation.parameter("axis"), inputs["x"]
        if [one for one, _ in operation.outputs] == ["index"] and x.shape[dim]:
            return {"index": place_of(name, x, dim) + operation.index.start[dim]}
        with np.errstate(all="ignore"):
            state = STATES[name].of(np, x, dim, operation.index.start[dim])
        return {part: np.asarray(array) for part, array in zip(STATES[name].outputs, state, strict=True)}

    return block


def _reduced(where: str, x: Any, axis: int) -> tuple[Tensor, int]:
    x = floating(where, x)
    dim = dimension(where, x, axis)
    if x.shape[dim] == 0:
        raise GraphError(where, "there is no element to reduce", inputs={"x": x.type, "axis": int(axis)})
    return widened(x), dim


@public()
def max_and_sum(x: Any, axis: int = -1) -> tuple[Tensor, Tensor]:
    """(greatest value, sum of ``exp(x - greatest)``) along one dimension, in one pass over x.

    Example:
        >>> top, total = max_and_sum(np.array([1.0, 3.0, 3.0]))
        >>> np.asarray(top).item(), round(np.asarray(total).item(), 6)
        (3.0, 2.135335)
    """
    operation = state_of("max_and_sum", *_reduced("max_and_sum(x, axis)", x, axis))
    return Tensor(operation, "max"), Tensor(operation, "sum")


@public()
def moments(x: Any, axis: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """(number of elements, mean, sum of squared distances from the mean) along one dimension, in one pass over x.

    Example:
        >>> [np.asarray(part).item() for part in moments(np.array([1.0, 2.0, 6.0]))]
        [3.0, 3.0, 14.0]
    """
    operation = state_of("moments", *_reduced("moments(x, axis)", x, axis))
    return Tensor(operation, "count"), Tensor(operation, "mean"), Tensor(operation, "m2")


def _arg(name: str, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    where = f"{name}(x, axis)"
    x = as_tensor(x, where)
    rank = len(x.shape)
    if axis is None:
        if rank != 1:
            raise GraphError(where, f"rank {rank} needs an axis", inputs={"x": x.type}, legal=f"0..{rank - 1}")
        axis = 0
    dim = dimension(where, x, axis)
    if x.shape[dim] == 0:
        raise GraphError(where, f"the {name} over no element does not exist", inputs={"x": x.type, "axis": dim})
    result = Tensor(state_of(name, x, dim), "index")
    return unsqueeze(result, dim) if keepdims else result


@public(np.argmax)
def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The first place of the greatest value along one dimension, as int64; NaN is the greatest, as in NumPy."""
    return _arg("argmax", x, axis, keepdims)


@public(np.argmin)
def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The first place of the least value along one dimension, as int64; NaN is the least, as in NumPy."""
    return _arg("argmin", x, axis, keepdims)


def combined(monoid: str, parts: Sequence[Operation]) -> Operation:
    """Partial results of one operation, stacked along a new first dimension and combined along it.

    Args:
        monoid: a tuple-valued one.
        parts: operations of one signature whose outputs have equal types, in the order of the reduced dimension.
    """
    like = parts[0]
    signature = typing.cast("Signature", like.signature)
    kept = [k for k in range(like.index.rank) if k not in signature.monoids]
    index = Box.of((len(parts), *(like.index.shape[k] for k in kept)))
    inputs, reads, makes = [], [], []
    for name, _ in like.outputs:
        stack = concat([unsqueeze(Tensor(part, name), 0) for part in parts], 0)
        own = signature.output(name)
        rows = tuple((0, *(row[k] for k in kept)) for row in own.map.matrix)
        low = AffineMap(rows, (0,) * len(rows), index.rank).cover(index).start  # the block's output starts at 0
        made = AffineMap(rows, tuple(-a for a in low), index.rank)
        first = (1, *(0 for _ in kept))
        inputs.append((name, stack))
        reads.append(
            (name, Projection(AffineMap((first, *rows), (0, *made.offset)), (1, *own.shape), (1, *own.stride)))
        )
        makes.append((name, Projection(made, own.shape, own.stride)))
    dims = ("part", *(signature.dims[k] for k in kept))
    joined = Signature(dims, tuple(reads), tuple(makes), ((0, monoid),), FLOP)
    return Operation("combine", index, tuple(inputs), like.outputs, (("monoid", monoid),), joined)


def _combine_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    count = len(next(iter(inputs.values())))
    states = [{name: array[k] for name, array in inputs.items()} for k in range(count)]
    return combine_states(operation.parameter("monoid"), states)


for _name in STATES:
    register(Operator(_name, _state_block(_name), Form(("x",), {"axis": axis_form}), spares=True))
register(Operator("combine", _combine_block, Form(None, {"monoid": monoid_form})))
