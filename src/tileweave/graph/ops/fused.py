"""What fusion makes of elementwise operators: several of them as one operation, with the same value.

Source: Tapestry, "Graph Fusion Operators".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ir.forms import Form, are_integers, dtype_form
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.elementwise import add, elementwise, fold, input_names, once_more
from tileweave.graph.ops.operators import (
    OPERATORS,
    Array,
    Arrays,
    Operator,
    is_elementwise,
    operator_named,
    register,
)

_DTYPES = frozenset(("bool", "bfloat16", *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)),
                     "float16", "float32", "float64", "longdouble", "float128"))  # fmt: skip


def fused(inputs: Sequence[Tensor], program: Sequence[tuple[str, tuple[int, ...], str]]) -> Tensor:
    """Several elementwise operators as one operation: no result in between is stored.

    Args:
        inputs: tensors that broadcast.
        program: steps (operator, arguments, element type of the result); an argument ``k >= 0`` is input k, ``-1 - k``
            is the result of step k. The last step is the result.
    """
    for k, (name, args, _) in enumerate(program):
        if not is_elementwise(name) or not all(-k <= a < len(inputs) for a in args):
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
        names = input_names(len(blocks))
        done.append(OPERATORS[name].block(step, dict(zip(names, blocks, strict=True)))["out"])
        del blocks
        for a in args:
            if last_use.get(a) == k:
                done[-1 - a] = None
    return {"out": np.asarray(np.broadcast_to(done[-1], operation.output_types["out"].shape))}


def _fused_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """Backward through the steps of a program, which are made again as operations of their own."""
    given = [t for _, t in operation.inputs]
    program = operation.parameter("program")
    steps: list[Tensor] = []
    for name, args, dtype in program:
        steps.append(once_more(name, [given[a] if a >= 0 else steps[-1 - a] for a in args], dtype))
    flow = {-len(program): fold(dy, steps[-1])}  # argument, as programs number them -> its gradient
    for k in reversed(range(len(program))):
        name, args, _ = program[k]
        made = cast("Operation", steps[k].producer)
        rule = operator_named(name).gradient
        parts = rule(made, steps[k], flow[-1 - k]) if -1 - k in flow and rule is not None else {}
        for (own, t), a in zip(made.inputs, args, strict=True):
            if own in parts and is_floating(t.dtype):
                part = cast("Tensor", parts[own])
                flow[a] = add(flow[a], part) if a in flow else part
    return {name: flow[k] for k, (name, _) in enumerate(operation.inputs) if k in flow}


def _program(node: Operation, value: object) -> str:
    """Steps (operator, arguments, element type); see `tileweave.graph.ops.fused`."""
    legal = "steps (elementwise operator, arguments, element type), the last of the result's type"
    if not isinstance(value, tuple) or not value:
        return legal
    for k, step in enumerate(value):
        if not (isinstance(step, tuple) and len(step) == 3):
            return legal
        name, args, dtype = step
        known = type(name) is str and is_elementwise(name) and are_integers(args, -k, len(node.inputs))
        if not known or len(args) != OPERATORS[name].arity or type(dtype) is not str or dtype not in _DTYPES:
            return legal
    return "" if not dtype_form(node, value[-1][2]) else legal


register(Operator("fused", _fused_block, Form(None, {"program": _program}), _fused_gradient))
