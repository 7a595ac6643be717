"""The rule that gives a convolution the elementwise chain behind it: bias, scale, residual, activation.

What the chain does costs nothing there: the sums are in registers, and neither written nor read again in between.

Source: own.
"""

from __future__ import annotations

from typing import Any

from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ops.grouped.chained import Step, conv_chain
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

MOST_STEPS, MOST_EXTRAS = 24, 8


def _conv_chain(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    outer: Any = tensor.producer
    if not isinstance(outer, Operation) or outer.signature is None or tensor.dtype.name not in ("float32", "float64"):
        return None
    if not (outer.operator == "fused" or is_elementwise(outer.operator)):
        return None
    for place, (_, x) in enumerate(outer.inputs):
        below = x.producer
        fits = isinstance(below, Operation) and below.operator in ("conv", "conv_chain") and below.signature is not None
        if fits and x.type == tensor.type and context.alone(x):
            made = _joined(outer, below, place)  # type: ignore[arg-type]
            if made is not None:
                return made
    return None


def _steps(operation: Operation) -> tuple[Step, ...]:
    if operation.operator in ("fused", "conv_chain"):
        steps: tuple[Step, ...] = operation.parameter("program")
        return steps
    return ((operation.operator, tuple(range(len(operation.inputs))), operation.outputs[0][1].dtype.name),)


def _joined(outer: Operation, below: Operation, place: int) -> Tensor | None:
    """The convolution with its own chain and, behind it, the steps of `outer`, whose input `place` it is."""
    first = _steps(below) if below.operator == "conv_chain" else ()
    second = _steps(outer)
    extras = [x for _, x in below.inputs[2:]]
    numbers: list[int] = []
    for k, (_, x) in enumerate(outer.inputs):
        if k == place or x is outer.inputs[place][1]:
            numbers.append(-len(first))  # its last step, or argument 0: the sums themselves
        else:
            if x not in extras:
                extras.append(x)
            numbers.append(1 + extras.index(x))
    if len(first) + len(second) > MOST_STEPS or len(extras) > MOST_EXTRAS:
        return None
    moved = tuple(
        (name, tuple(numbers[a] if a >= 0 else a - len(first) for a in args), dtype) for name, args, dtype in second
    )
    return conv_chain(below, extras, (*first, *moved))


CONV_CHAIN = RewriteRule(
    "conv-chain", "what is elementwise behind a convolution computes each of its sums alone", _conv_chain
)
