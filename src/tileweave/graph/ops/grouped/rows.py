"""What fusion makes of reductions and the elementwise operators around them: one operation that takes row by row.

A row is what is reduced over. All steps of a row are done before the next row is begun, so that nothing in between is
stored: softmax, norms, variances and what stands before and behind them.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType, Value
from tileweave.graph.ops.elementwise import input_names
from tileweave.graph.ops.grouped.steps import FULL, Step
from tileweave.graph.ops.operators import (
    OPERATORS,
    Array,
    Arrays,
    Operator,
    is_elementwise,
    made,
    program_costs,
    register,
)
from tileweave.space import Projection

REDUCTIONS = ("sum", "product", "max", "min")
"""Operators that reduce a row to one value."""


One = TypeVar("One")


def softmax_parts(value: One, made: Callable[[One], tuple[str, Sequence[One]]]) -> tuple[bool, tuple[One, ...]] | None:
    """Of what a value is the softmax, and by which steps; None: of nothing.

    Args:
        value: a tensor, or the number of a step.
        made: value -> the operator that made it, and what it was made of; views that put in dimensions are none.

    Returns:
        Whether it is the logarithm of a softmax; what this is taken of, its maximum, difference, power and sum.
    """
    name, given = made(value)
    if name not in ("divide", "subtract"):
        return None
    log = name == "subtract"
    kind, (total, *_) = made(given[1]) if log else ("log", given[1:])
    added, (power, *_) = made(total)
    raised, (difference, *_) = made(power) if added == "sum" and kind == "log" else ("", (total,))
    if raised != "exp" or given[:1] != (difference if log else power,):
        return None
    name, shifted = made(difference)
    if name != "subtract" or made(shifted[1]) != ("max", (shifted[0],)):
        return None
    return log, (*shifted, difference, power, total)


def softmax_at_end(program: Sequence[Step]) -> tuple[int, int, int, int] | None:
    """The steps maximum, difference, power and sum of the softmax that the last step of a program is; None: of none."""
    found = softmax_parts(-len(program), lambda k: program[-1 - k][:2] if k < 0 else ("", (k,)))
    if found is None or found[0]:
        return None
    _, top, difference, power, total = found[1]
    return -1 - top, -1 - difference, -1 - power, -1 - total


def rows(inputs: Sequence[Tensor], shape: Sequence[int], axes: Sequence[int], program: Sequence[Step]) -> Tensor:
    """Several operators as one operation on rows.

    Args:
        inputs: tensors that broadcast to the shape.
        shape: what all steps but those behind a reduction have.
        axes: of a row; dimensions of the shape.
        program: steps (operator, arguments, element type of the result): an elementwise operator, a reduction of one
            argument over the axes, or ``full`` of a number. An argument ``k >= 0`` is input k, ``-1 - k`` the result of
            step k. The last step is the result; one value per row has no dimension for the axes.

    Raises:
        GraphError: there is no such operator or argument.
    """
    for k, (name, args, _) in enumerate(program):
        known = is_elementwise(name) or name in REDUCTIONS or name == FULL
        if not known or (name != FULL and not all(-k <= a < len(inputs) for a in args)):
            raise GraphError("rows(inputs, shape, axes, program)", f"step {k} is {name}{args}", legal="known operators")
    shape, axes = tuple(shape), tuple(axes)
    kept = [k for k in range(len(shape)) if k not in axes]
    kinds = kinds_of([x.shape for x in inputs], shape, axes, program)
    whole, size = kinds[-1], prod(shape[k] for k in axes)
    out = shape if whole else tuple(shape[k] for k in kept)
    places = {k: place for place, k in enumerate(kept)}
    reads = []
    for x in inputs:
        first = len(shape) - len(x.shape)
        dims = [places.get(first + k) if n == shape[first + k] else None for k, n in enumerate(x.shape)]
        region = [1 if d is not None else n for d, n in zip(dims, x.shape, strict=True)]
        reads.append(Projection.select(dims, len(kept), region))
    if whole:
        makes = Projection.select(
            [places.get(k) for k in range(len(shape))],
            len(kept),
            [1 if k in places else n for k, n in enumerate(shape)],
        )
    else:
        makes = Projection.select(range(len(kept)), len(kept))
    named: dict[str, Value] = {"axes": axes, "program": tuple(program), "rank": len(shape)}
    return made(
        "rows",
        [shape[k] for k in kept],
        list(zip(input_names(len(inputs)), inputs, reads, strict=True)),
        (TensorType(out, np.dtype(program[-1][2])), makes),
        *named.items(),
        dims=[f"d{k}" for k in kept],
        costs=program_costs(
            (name, size if is_whole or name in REDUCTIONS else 1)
            for (name, _, _), is_whole in zip(program, kinds, strict=True)
        ),
    )


def kinds_of(
    shapes: Sequence[Sequence[int]], shape: Sequence[int], axes: Sequence[int], program: Sequence[Step]
) -> list[bool]:
    """Per step, whether it has a value per element of a row, not one per row."""
    given = [
        any(k + len(own) - len(shape) >= 0 and own[k + len(own) - len(shape)] == shape[k] != 1 for k in axes)
        for own in shapes
    ]
    done: list[bool] = []
    for name, args, _ in program:
        if name == FULL or name in REDUCTIONS:
            done.append(False)
        else:
            done.append(any(given[a] if a >= 0 else done[-1 - a] for a in args))
    return done


def _rows_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    rank, axes = operation.parameter("rank"), operation.parameter("axes")
    given = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in inputs.values()]
    done: list[Array] = []
    for name, args, dtype in operation.parameter("program"):
        if name == FULL:
            done.append(np.full((1,) * rank, args[0], np.dtype(dtype)))
            continue
        blocks = [given[a] if a >= 0 else done[-1 - a] for a in args]
        step = replace(
            operation,
            operator=name,
            inputs=(),
            outputs=(("out", TensorType((), np.dtype(dtype))),),
            parameters=(("axes", axes),) if name in REDUCTIONS else (("dtype", dtype),),
            signature=None,
        )
        made = OPERATORS[name].block(step, dict(zip(input_names(len(blocks)), blocks, strict=True)))["out"]
        done.append(np.expand_dims(made, axes) if name in REDUCTIONS else made)
    out, kind = done[-1], operation.output_types["out"]
    if len(kind.shape) < rank:
        out = out.reshape(tuple(n for k, n in enumerate(out.shape) if k not in axes))
    return {"out": np.asarray(np.broadcast_to(out, kind.shape))}


register(Operator("rows", _rows_block))
