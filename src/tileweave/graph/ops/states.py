"""Reductions whose partial results are tuples: operators with several outputs that may be cut along what they reduce.

One output per part of the state. The signature names the monoid, as for a sum: a block that holds part of the reduced
dimension makes the state of that part, and states combine in any order. `combine` is the combination as an operation of
its own, for graphs that write a cut reduction out.

Source: Tapestry, "Reduction Operations".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.forms import Form, axis_form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType
from tileweave.graph.ir.select import concat, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import cast as cast_to
from tileweave.graph.ops.monoids import STATES, combine_states, monoid_form
from tileweave.graph.ops.operators import FLOP, Array, Arrays, Operator, register
from tileweave.space import AffineMap, Box, Projection


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
        dim = operation.parameter("axis")
        with np.errstate(all="ignore"):
            state = STATES[name].of(np, inputs["x"], dim, operation.index.start[dim])
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
    if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise GraphError(where, f"axis {axis!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}")
    dim = int(axis) % rank
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
    joined = Signature(dims, tuple(reads), tuple(makes), ((0, monoid),), FLOP)
    return Operation("combine", index, tuple(inputs), like.outputs, (("monoid", monoid),), joined)


def _combine_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    count = len(next(iter(inputs.values())))
    states = [{name: array[k] for name, array in inputs.items()} for k in range(count)]
    return combine_states(operation.parameter("monoid"), states)


for _name in STATES:
    register(Operator(_name, _state_block(_name), Form(("x",), {"axis": axis_form})))
register(Operator("combine", _combine_block, Form(None, {"monoid": monoid_form})))
