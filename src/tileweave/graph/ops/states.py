"""Reductions whose partial results are tuples: operators with several outputs that may be cut along what they reduce.

::

    argmax, argmin  (value, index)        max_and_sum  (max, sum of exp)        moments  (count, mean, m2)

One output per part of the state. The signature names the monoid, as for a sum: a block that holds part of the reduced
dimension makes the state of that part, and states combine in any order. `combine` is the combination as an operation of
its own, for graphs that write a cut reduction out.

Source: Tapestry, "Reduction Operations"; Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType
from tileweave.graph.ir.select import concat, resolve, unsqueeze
from tileweave.graph.ops.monoids import MONOIDS
from tileweave.graph.ops.operators import Array, Arrays, Operator, as_tensor, register
from tileweave.graph.ops.operators import cast as cast_to
from tileweave.space import AffineMap, Box, Projection

__all__ = [
    "STATES",
    "StateMonoid",
    "combine_states",
    "combined",
    "is_monoid",
    "max_and_sum",
    "moments",
    "stacked",
    "state_of",
]


@dataclass(frozen=True, slots=True)
class StateMonoid:
    """An associative, commutative combination of states, each a tuple of arrays of one shape.

    Args:
        name: as signatures refer to it.
        parts: (output name, element type from that of the reduced tensor) per part of the state.
        lift: (array, dimension, coordinate of its first element there) -> the state of that part of the dimension.
        combine: of two states.
    """

    name: str
    parts: tuple[tuple[str, Callable[[np.dtype[Any]], np.dtype[Any]]], ...]
    lift: Callable[[Array, int, int], tuple[Array, ...]]
    combine: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Array, ...]]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(name for name, _ in self.parts)


def is_monoid(name: str) -> bool:
    """Whether a signature may name it."""
    return name in MONOIDS or name in STATES


def combine_states(monoid: str, states: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The combination of partial results, each with an array per output; new arrays, in the order given."""
    with np.errstate(all="ignore"):
        if monoid in MONOIDS:
            names = states[0]
            return {name: np.asarray(reduce(MONOIDS[monoid].combine, [s[name] for s in states])) for name in names}
        own = STATES[monoid]
        total = reduce(own.combine, [tuple(state[name] for name in own.outputs) for state in states])
    return dict(zip(own.outputs, map(np.asarray, total), strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# the monoids


def _place_of(greatest: bool) -> Callable[[Array, int, int], tuple[Array, ...]]:
    value, place = (np.max, np.argmax) if greatest else (np.min, np.argmin)

    def lift(x: Array, dim: int, first: int) -> tuple[Array, ...]:
        return value(x, axis=dim), np.asarray(place(x, axis=dim), np.int64) + first

    return lift


def _better(greatest: bool) -> Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Array, ...]]:
    """The first of the extreme values; NaN beats every number, as in NumPy."""

    def combine(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        (x, i), (y, j) = a, b
        nan_x, nan_y = x != x, y != y
        tie = (x == y) | (nan_x & nan_y)
        wins = (x > y if greatest else x < y) & ~nan_y | nan_x & ~nan_y | tie & (i < j)
        return np.where(wins, x, y), np.where(wins, i, j)

    return combine


def _finite(top: Array) -> Array:
    """The maximum where it may be subtracted, 0 where it is infinite or NaN."""
    return np.where(np.isfinite(top), top, top.dtype.type(0))


def _lift_exp(x: Array, dim: int, first: int) -> tuple[Array, ...]:
    top = np.max(x, axis=dim, keepdims=True)
    return top.squeeze(dim), np.sum(np.exp(x - _finite(top)), axis=dim, dtype=x.dtype)


def _combine_exp(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    top = np.maximum(a[0], b[0])

    def share(own: Array) -> Array:
        scale = np.exp(_finite(own) - _finite(top))
        return np.asarray(np.where(own == -np.inf, top.dtype.type(0), scale))  # minus infinities alone count nothing

    return top, a[1] * share(a[0]) + b[1] * share(b[0])


def _lift_moments(x: Array, dim: int, first: int) -> tuple[Array, ...]:
    mean = np.mean(x, axis=dim, keepdims=True, dtype=x.dtype)
    m2 = np.sum(np.square(x - mean), axis=dim, dtype=x.dtype)
    return np.full(m2.shape, x.shape[dim], x.dtype), mean.squeeze(dim), m2


def _combine_moments(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    count = a[0] + b[0]
    step, share = b[1] - a[1], b[0] / np.maximum(count, 1)
    return count, a[1] + step * share, a[2] + b[2] + step * step * (a[0] * share)


def _same(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype


def _int64(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.int64)


STATES: dict[str, StateMonoid] = {
    monoid.name: monoid
    for monoid in (
        StateMonoid("argmax", (("value", _same), ("index", _int64)), _place_of(True), _better(True)),
        StateMonoid("argmin", (("value", _same), ("index", _int64)), _place_of(False), _better(False)),
        StateMonoid("max_and_sum", (("max", _same), ("sum", _same)), _lift_exp, _combine_exp),
        StateMonoid("moments", (("count", _same), ("mean", _same), ("m2", _same)), _lift_moments, _combine_moments),
    )
}
"""Name of a tuple-valued monoid, and of the operator that makes its states -> monoid."""


# ---------------------------------------------------------------------------------------------------------------------
# the operators


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
        (("flops", 1.0),),
    )
    outputs = tuple((part, TensorType(shape, kind(x.dtype))) for part, kind in monoid.parts)
    return Operation(name, Box.of(x.shape), (("x", x),), outputs, (("axis", dim),), signature)


def _state_block(name: str) -> Callable[[Operation, Arrays], dict[str, Array]]:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        dim = operation.parameter("axis")
        with np.errstate(all="ignore"):
            state = STATES[name].lift(inputs["x"], dim, operation.index.start[dim])
        return {part: np.asarray(array) for part, array in zip(STATES[name].outputs, state, strict=True)}

    return block


def _reduced(where: str, x: Any, axis: int) -> tuple[Tensor, int]:
    x = as_tensor(x, where)
    x = cast_to(x, np.float64) if x.dtype.kind in "biu" else x
    rank = len(x.shape)
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise GraphError(where, f"axis {axis!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}")
    if x.shape[axis] == 0:
        raise GraphError(where, "there is no element to reduce", inputs={"x": x.type, "axis": int(axis)})
    if x.dtype.itemsize < 4:
        x = cast_to(x, np.float32)
    return x, int(axis) % rank


def max_and_sum(x: Any, axis: int = -1) -> tuple[Tensor, Tensor]:
    """(greatest value, sum of ``exp(x - greatest)``) along one dimension, in one pass over x.

    Example:
        >>> top, total = max_and_sum(np.array([1.0, 3.0, 3.0]))
        >>> np.asarray(top).item(), round(np.asarray(total).item(), 6)
        (3.0, 2.135335)
    """
    operation = state_of("max_and_sum", *_reduced("max_and_sum(x, axis)", x, axis))
    return Tensor(operation, "max"), Tensor(operation, "sum")


def moments(x: Any, axis: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """(number of elements, mean, sum of squared distances from the mean) along one dimension, in one pass over x.

    Example:
        >>> [np.asarray(part).item() for part in moments(np.array([1.0, 2.0, 6.0]))]
        [3.0, 3.0, 14.0]
    """
    operation = state_of("moments", *_reduced("moments(x, axis)", x, axis))
    return Tensor(operation, "count"), Tensor(operation, "mean"), Tensor(operation, "m2")


# ---------------------------------------------------------------------------------------------------------------------
# the combination as an operation


def combined(monoid: str, parts: Sequence[Operation]) -> Operation:
    """Partial results of one operation, stacked along a new first dimension and combined along it.

    Args:
        monoid: a tuple-valued one.
        parts: operations of one signature whose outputs have equal types, in the order of the reduced dimension.
    """
    like = parts[0]
    signature = cast("Signature", like.signature)
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
    joined = Signature(dims, tuple(reads), tuple(makes), ((0, monoid),), (("flops", 1.0),))
    return Operation("combine", index, tuple(inputs), like.outputs, (("monoid", monoid),), joined)


def stacked(operation: Operation) -> tuple[str, list[Operation]] | None:
    """(monoid, the operations whose whole results an operation combines along their stack), if it does just that."""
    if operation.operator == "combine":
        monoid = str(operation.parameter("monoid"))
    elif operation.operator in MONOIDS and dict(operation.parameters).get("axes") == (0,):
        monoid = operation.operator
    else:
        return None
    layers = [_layers(x, name if monoid in STATES else None) for name, x in operation.inputs]
    return (monoid, layers[0]) if layers[0] and all(other == layers[0] for other in layers) else None


def _layers(stack: Tensor, output: str | None) -> list[Operation]:
    """The operations whose results (or this output of them) are a stack's layers in order; none if a layer is not."""
    found: list[Operation] = []
    for piece in sorted(resolve(stack, stack.type.box), key=lambda p: p.box.start):
        origin = piece.origin
        producer = origin.producer if origin is not None else None
        layer = piece.box.start[0] == len(found) and piece.box.shape == (1, *stack.shape[1:])
        if origin is None or not isinstance(producer, Operation) or not layer or origin.shape != stack.shape[1:]:
            return []
        if origin.output != output if output is not None else len(producer.outputs) != 1:
            return []
        ends = (piece.box.start, tuple(b - 1 for b in piece.box.stop))
        if any(piece.map(p) != p[1:] for p in ends):
            return []
        found.append(producer)
    return found


def _combine_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    count = len(next(iter(inputs.values())))
    states = [{name: array[k] for name, array in inputs.items()} for k in range(count)]
    return combine_states(operation.parameter("monoid"), states)


for _name in STATES:
    register(Operator(_name, _state_block(_name)))
register(Operator("combine", _combine_block))
