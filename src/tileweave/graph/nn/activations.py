"""Activation functions, composed of elementwise operators, which fusion joins to one operation."""

from __future__ import annotations

import math
from typing import Any, Literal

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.sugar import public
from tileweave.graph.ops.elementwise import add, multiply, tanh
from tileweave.graph.ops.functions import erf
from tileweave.graph.ops.reductions import floating


@public()
def gelu(x: Any, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """``x`` times the probability that a standard normal value is below x; exactly, or by the usual tanh formula."""
    x = floating("gelu(x)", x)
    if approximate == "tanh":
        inner = multiply(math.sqrt(2 / math.pi), add(x, multiply(0.044715, multiply(x, multiply(x, x)))))
        return multiply(multiply(0.5, x), add(1.0, tanh(inner)))
    if approximate != "none":
        raise GraphError("gelu(x, approximate)", f"{approximate!r}", inputs={"x": x.type}, legal="none, tanh")
    return multiply(multiply(0.5, x), add(1.0, erf(multiply(x, math.sqrt(0.5)))))
