"""Operators that fusion makes: several of the others as one operation, with the same value.

Source: Tapestry, "Graph Fusion Operators".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.operators import (
    ELEMENTWISE,
    OPERATORS,
    Array,
    Arrays,
    Operator,
    elementwise,
    linear_block,
    register,
)

__all__ = ["fused"]


def _linear_relu_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    out = linear_block(operation, inputs)["out"]
    return {"out": np.maximum(out, out.dtype.type(0))} if "b" in inputs else {"out": out}


def _linear_relu_finished(operation: Operation, combined: Array, inputs: Arrays) -> Array:
    return np.asarray(np.maximum(combined + inputs["b"], combined.dtype.type(0)))


register(Operator("linear_relu", _linear_relu_block, ("b",), _linear_relu_finished))


# ---------------------------------------------------------------------------------------------------------------------
# elementwise programs


def fused(inputs: Sequence[Tensor], program: Sequence[tuple[str, tuple[int, ...], str]]) -> Tensor:
    """Several elementwise operators as one operation: no result in between is stored.

    Args:
        inputs: tensors that broadcast.
        program: steps (operator, arguments, element type of the result); an argument ``k >= 0`` is input k, ``-1 - k``
            is the result of step k. The last step is the result.
    """
    for k, (name, args, _) in enumerate(program):
        if name not in ELEMENTWISE or not all(-k <= a < len(inputs) for a in args):
            raise GraphError("fused(inputs, program)", f"step {k} is {name}{args}", legal="elementwise operators")
    return elementwise("fused", inputs, np.dtype(program[-1][2]), ("program", tuple(program)))


def _fused_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    given = list(inputs.values())
    program = operation.parameter("program")
    last_use = {a: k for k, (_, args, _) in enumerate(program) for a in args if a < 0}
    done: list[Any] = []
    for k, (name, args, dtype) in enumerate(program):
        # the operator's own definition, on an operation that has just its parameters
        step = replace(
            operation,
            operator=name,
            inputs=(),
            outputs=(("out", TensorType((), np.dtype(dtype))),),
            parameters=(("dtype", dtype),),
            signature=None,
        )
        blocks = [given[a] if a >= 0 else done[-1 - a] for a in args]
        names = [f"x{k}" for k in range(len(blocks))] if len(blocks) > 1 else ["x"]
        done.append(OPERATORS[name].block(step, dict(zip(names, blocks, strict=True)))["out"])
        del blocks
        for a in args:
            if last_use.get(a) == k:
                done[-1 - a] = None
    return {"out": np.asarray(np.broadcast_to(done[-1], operation.output_types["out"].shape))}


register(Operator("fused", _fused_block))
