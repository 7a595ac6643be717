"""Choices between a matrix and 0 by where its elements lie: triangles, whose zeros are written without reading."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ops.along import triangle
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.grouping.counts import numbered
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

FEWEST_BYTES = 1024
"""Of a row: of a shorter one all elements are compared sooner than its two parts are written by calls."""
_SIDES = {"less_equal": False, "greater_equal": True}


def _made_by(tensor: Tensor, name: str) -> Operation | None:
    producer = tensor.producer
    return producer if isinstance(producer, Operation) and producer.operator == name else None


def _is_zero(number: Any) -> bool:
    """Whether a number is what clears memory: not -0.0."""
    return bool(number == 0 and not np.signbit(number))


def _number(tensor: Tensor) -> object:
    producer = tensor.producer
    return producer.parameter("value") if isinstance(producer, Selector) and producer.kind == "full" else None


def _triangle(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    where, rank = _made_by(tensor, "where"), len(tensor.shape)
    if where is None or rank < 2 or tensor.shape[-1] * tensor.dtype.itemsize < FEWEST_BYTES:
        return None
    truth, x, fill = (where.input(f"x{k}") for k in range(3))
    compared, made = truth.producer, x.producer
    if not _is_zero(_number(fill)) or x.type != tensor.type or not isinstance(compared, Operation):
        return None
    if compared.operator not in _SIDES or (isinstance(made, Operation) and _computes(made)):
        return None
    columns, rows = (compared.input(f"x{k}") for k in range(2))
    view = rows.producer
    if not isinstance(view, Selector) or view.kind != "unsqueeze" or rows.shape != (tensor.shape[-2], 1):
        return None
    moved = _made_by(view.inputs[0][1], "add")
    offset = None if moved is None else _number(moved.input("x1"))
    if moved is None or not isinstance(offset, int) or not numbered(moved.input("x0"), tensor.shape[-2], offset):
        return None
    return triangle(x, offset, _SIDES[compared.operator]) if numbered(columns, tensor.shape[-1]) else None


def _computes(operation: Operation) -> bool:
    """Whether an operation would take the choice in."""
    return operation.operator == "fused" or is_elementwise(operation.operator)


TRIANGLE = RewriteRule("triangle", "a choice between x and 0 by the side of a diagonal is a triangle of x", _triangle)
