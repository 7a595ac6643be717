"""Programs of steps: what several operators compute as one operation, one step after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileweave.graph.ir.nodes import Operation

Step = tuple[str, tuple[Any, ...], str]
"""An operator, its arguments, the element type of its result. An argument ``k >= 0`` is input k, ``-1 - k`` the result
of step k."""
FULL = "full"
"""The step that is one number, its only argument."""


def steps_of(operation: Operation) -> tuple[Step, ...]:
    """The program of an operation that has one; the only step of any other."""
    if "program" in dict(operation.parameters):
        steps: tuple[Step, ...] = operation.parameter("program")
        return steps
    return ((operation.operator, tuple(range(len(operation.inputs))), operation.outputs[0][1].dtype.name),)


def steps_behind(count: int, steps: Sequence[Step], numbers: Sequence[int]) -> tuple[Step, ...]:
    """A program's steps as they stand behind `count` others: what was their input k is argument ``numbers[k]``."""
    return tuple(
        (name, args if name == FULL else tuple(numbers[a] if a >= 0 else a - count for a in args), dtype)
        for name, args, dtype in steps
    )
