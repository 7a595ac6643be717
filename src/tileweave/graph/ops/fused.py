"""Programs of elementwise operators: what fusion makes of several, as one operation with the same value.

Source: Tapestry, "Graph Fusion Operators".
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import NARROW, is_floating
from tileweave.graph.ir.forms import Form, are_integers, dtype_form
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.elementwise import add, elementwise, fold, input_names
from tileweave.graph.ops.operators import OPERATORS, Array, Arrays, Operator, is_elementwise, operator_named, register
from tileweave.space import Box

_DTYPES = frozenset(("bool", *NARROW, *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)),
                     "float16", "float32", "float64", "longdouble", "float128"))  # fmt: skip


def once_more(name: str, inputs: Sequence[Tensor], dtype: str) -> Tensor:
    """An elementwise operation as a step of a fused program names it: operator, inputs, element type of the result."""
    parameters = (("dtype", dtype),) if "dtype" in _parameters_of(name) else ()
    return elementwise(name, inputs, np.dtype(dtype), *parameters)


def _parameters_of(name: str) -> Iterator[str]:
    form = OPERATORS[name].form
    return iter(form.parameters if form is not None else ())


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


_Step = tuple[Operator, Operation, tuple[tuple[str, int], ...], tuple[int, ...]]
"""An operator, what it is asked for, the argument of each of its inputs, and the steps whose results are read last."""


@lru_cache(maxsize=4096)
def _steps(program: Sequence[tuple[str, tuple[int, ...], str]]) -> tuple[_Step, ...]:
    """The steps of a program; operations have just their parameters, which is all that a definition reads."""
    last_use = {a: k for k, (_, args, _) in enumerate(program) for a in args if a < 0}
    found = []
    for k, (name, args, dtype) in enumerate(program):
        alone = Operation(name, Box.of(()), (), (("out", TensorType((), np.dtype(dtype))),), (("dtype", dtype),))
        read = tuple(zip(input_names(len(args)), args, strict=True))
        found.append((OPERATORS[name], alone, read, tuple({-1 - a for a in args if last_use.get(a) == k})))
    return tuple(found)


def _all_but_last(steps: Sequence[_Step], given: Sequence[Array]) -> dict[str, Array]:
    """The inputs of the last of some steps."""
    done: list[Any] = []
    for operator, alone, read, last in steps[:-1]:
        blocks = {name: given[a] if a >= 0 else done[-1 - a] for name, a in read}
        done.append(operator.block(alone, blocks)["out"])
        del blocks
        for k in last:
            done[k] = None
    return {name: given[a] if a >= 0 else done[-1 - a] for name, a in steps[-1][2]}


def fused_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    """The last result of an operation's program of elementwise steps on its inputs, in order."""
    steps = _steps(operation.parameter("program"))
    operator, alone, *_ = steps[-1]
    made = operator.block(alone, _all_but_last(steps, list(inputs.values())))["out"]
    return {"out": np.asarray(np.broadcast_to(made, operation.output_types["out"].shape))}


def _fused_into(operation: Operation, inputs: Arrays, out: Array) -> None:
    steps = _steps(operation.parameter("program"))
    operator, alone, *_ = steps[-1]
    given = _all_but_last(steps, list(inputs.values()))
    if operator.into is None:
        out[...] = operator.block(alone, given)["out"]
    else:
        operator.into(alone, given, out)


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
        made = typing.cast("Operation", steps[k].producer)
        rule = operator_named(name).gradient
        parts = rule(made, steps[k], flow[-1 - k]) if -1 - k in flow and rule is not None else {}
        for (own, t), a in zip(made.inputs, args, strict=True):
            if own in parts and is_floating(t.dtype):
                part = typing.cast("Tensor", parts[own])
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


register(Operator("fused", fused_block, Form(None, {"program": _program}), _fused_gradient, into=_fused_into))
