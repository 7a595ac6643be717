"""Softmax and norms as chains of their definitions, in the wide type of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tileweave.teir import Operand, Program, emit_chain
from tileweave.teir.ir.dtypes import accumulator

__all__ = ["layer_norm", "rms_norm", "softmax"]


class Steps(list[tuple[Any, ...]]):
    """Steps of a chain; adding one gives the number by which later ones name it."""

    def add(self, kind: str, *arguments: float) -> int:
        self.append((kind, arguments))
        return -len(self)

    def cast(self, value: int, source: str, target: str) -> int:
        if source == target:
            return value
        self.append(("Cast", (value,), target))
        return -len(self)

    def fill(self, number: float, dtype: str) -> int:
        self.append(("Fill", (number,), dtype))
        return -len(self)

    def program(self, operands: Sequence[Operand], out: Operand, axes: Sequence[int], wide: str) -> Program:
        """The last step is the result."""
        rank = len(out.shape)
        letters = "abcdef"[:rank]
        row = "".join(letters[axis] for axis in axes)
        inputs = ",".join(letters if k == 0 else row for k in range(len(operands)))
        self.cast(-len(self), wide, out.dtype)
        return emit_chain(self, operands, out, f"{inputs}->{letters}", axes=axes)


def softmax(x: Operand, out: Operand, axes: Sequence[int] = (-1,), *, log: bool = False) -> Program:
    """exp(x - max) / sum(exp(x - max)), or its logarithm."""
    s, wide = Steps(), accumulator(x.dtype)
    value = s.cast(0, x.dtype, wide)
    left = s.add("Sub", value, s.add("ReduceMax", value))
    e = s.add("Exp", left)
    total = s.add("ReduceSum", e)
    if log:
        s.add("Sub", left, s.add("Log", total))
    else:
        s.add("Mul", e, s.add("Div", s.fill(1.0, wide), total))
    return s.program([x], out, axes, wide)


def layer_norm(
    x: Operand, out: Operand, *extra: Operand, axes: Sequence[int] = (-1,), epsilon: float = 1e-5
) -> Program:
    """(x - mean) / sqrt(variance + epsilon), times a scale and plus a shift where they are given."""
    s, wide = Steps(), accumulator(x.dtype)
    each = 1 / prod(x.shape[axis] for axis in axes)
    value = s.cast(0, x.dtype, wide)
    left = s.add("Sub", value, s.add("Mul", s.add("ReduceSum", value), s.fill(each, wide)))
    _scaled(s, left, left, each, epsilon, wide, extra)
    return s.program([x, *extra], out, axes, wide)


def rms_norm(x: Operand, out: Operand, *extra: Operand, axes: Sequence[int] = (-1,), epsilon: float = 1e-5) -> Program:
    """x / sqrt(mean of squares + epsilon), times a scale where it is given."""
    s, wide = Steps(), accumulator(x.dtype)
    value = s.cast(0, x.dtype, wide)
    _scaled(s, value, value, 1 / prod(x.shape[axis] for axis in axes), epsilon, wide, extra)
    return s.program([x, *extra], out, axes, wide)


def _scaled(
    s: Steps, value: int, squared: int, each: float, epsilon: float, wide: str, extra: Sequence[Operand]
) -> None:
    mean = s.add("Mul", s.add("ReduceSum", s.add("Mul", squared, squared)), s.fill(each, wide))
    root = s.add("Sqrt", s.add("Add", mean, s.fill(epsilon, wide)))
    last = s.add("Mul", value, s.add("Div", s.fill(1.0, wide), root))
    for k, (kind, operand) in enumerate(zip(("Mul", "Add"), extra, strict=False)):
        last = s.add(kind, last, s.cast(k + 1, operand.dtype, wide))
