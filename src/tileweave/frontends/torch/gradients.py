"""ATen operators that differentiate others: the gradient of what these are here."""

from __future__ import annotations

from math import prod
from typing import Any

from tileweave import graph as g
from tileweave.frontends.torch.call import OPERATORS, AtenCall, aten
from tileweave.graph import Tensor


def _backward(call: AtenCall, name: str, arguments: list[Any], wrt: list[Tensor]) -> list[Tensor]:
    """The gradients of an operator's result with respect to tensors, from the result's own, the first argument."""
    import torch

    target = getattr(torch.ops.aten, name).default
    made = OPERATORS[str(target)](AtenCall(f"from_torch(..): {target}", target, tuple(arguments), {}))
    found: list[Tensor] = g.grad(g.sum(g.multiply(made, call.x())), wrt)
    return found


@aten("convolution_backward.default")
def convolution(call: AtenCall) -> tuple[Any, ...]:
    """With respect to the operand, the weights and the bias, as far as asked."""
    dy, x, w = call.x(), call.x(1), call.x(2)
    mask = call.get("output_mask")
    parts = _backward(call, "convolution", [x, w, None, *(call.value(k) for k in range(4, 10))], [x, w])
    bias = g.sum(dy, (0, *range(2, len(dy.shape))))
    return tuple(part if asked else None for part, asked in zip((*parts, bias), mask, strict=True))


@aten("avg_pool2d_backward.default", "_adaptive_avg_pool2d_backward.default")
def average_pool(call: AtenCall) -> Tensor:
    """Each mean's gradient, shared by the elements of its window."""
    x = call.x(1)
    if "adaptive" in call.where:
        return _backward(call, "_adaptive_avg_pool2d", [x, list(call.x().shape[-2:])], [x])[0]
    return _backward(call, "avg_pool2d", [x, *(call.value(k) for k in range(2, 8))], [x])[0]


@aten("max_pool2d_with_indices_backward.default")
def max_pool(call: AtenCall) -> Tensor:
    """Each gradient at the place of its window's greatest element."""
    dy, x, places = call.x(), call.x(1), call.x(7)
    rows, held = (*x.shape[:-2], prod(x.shape[-2:])), (*dy.shape[:-2], prod(dy.shape[-2:]))
    zeros = g.full(rows, 0, dy.dtype)
    made = g.scatter(zeros, g.reshape(places, held), g.reshape(dy, held), len(held) - 1, reduction="add")
    return g.reshape(made, x.shape)
