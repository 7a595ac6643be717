"""Evaluation and decisions with index expressions: ranges proved, results simplified.

An expression stands where an integer is written in the types of this room; `is_expr` tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tileweave.errors import Unproved
from tileweave.index import Expr, constant_of, equal, maximum, minimum, require, simplify

__all__ = [
    "evaluate_at",
    "flatten",
    "is_expr",
    "least_and_greatest",
    "plain",
    "proved",
    "quotient",
    "require_positive",
    "require_quotient",
    "require_same",
    "same",
    "simple",
]


def is_expr(value: object) -> bool:
    """Whether a value is an index expression and not an integer."""
    return isinstance(value, Expr)


def plain(value: Any) -> Any:
    """A constant expression as the integer that it is; anything else as it was."""
    if isinstance(value, Expr) and not value.is_condition:
        known = constant_of(value)
        return value if known is None else known
    return value


def simple(value: Any) -> Any:
    """An expression simplified, and an integer where it is constant."""
    return plain(simplify(value)) if isinstance(value, Expr) else value


def require_positive(extent: Any, where: str) -> None:
    """Raise `Unproved` unless the ranges prove the extent positive."""
    require(extent >= 1, where)


def proved(condition: Any) -> bool:
    """Whether a condition is proved for all values of its symbols, by ranges and normal form: no point is tried."""
    return bool(simplify(condition).args == (True,)) if isinstance(condition, Expr) else bool(condition)


def same(a: Any, b: Any) -> bool:
    """Whether two numbers are proved equal."""
    return bool(a is b or simple(a - b) == 0) if isinstance(a, Expr) or isinstance(b, Expr) else bool(a == b)


def quotient(number: Any, divisor: Any) -> Any:
    """``number / divisor`` where the divisor is proved to divide it, else None; the divisor is not zero."""
    return None if simple(number % divisor) != 0 else simple(number // divisor)


def require_same(a: Any, b: Any, where: str) -> None:
    """Raise `Unproved`, naming the equation, unless two numbers are proved equal."""
    if not same(a, b):
        require(equal(a, b), where)


def require_quotient(number: Any, divisor: Any, where: str) -> Any:
    """``number / divisor``; `Unproved` names the condition where the divisor is not proved to divide."""
    found = quotient(number, divisor)
    if found is None:
        require(equal(number % divisor, 0), where)
        return simple(number // divisor)
    return found


def least_and_greatest(low: Any, high: Any, reaches: Sequence[Any]) -> tuple[Any, Any]:
    """The sum of low and the negative reaches, and of high and the positive ones, whatever their signs."""
    for reach in reaches:
        low = low + (minimum(reach, 0) if isinstance(reach, Expr) else min(reach, 0))
        high = high + (maximum(reach, 0) if isinstance(reach, Expr) else max(reach, 0))
    return simple(low), simple(high)


def flatten(coords: Sequence[Any], shape: Sequence[Any], size: Any, where: str) -> Any:
    """The row-major linear index of coordinates, each proved to lie within its dimension.

    Raises:
        Unproved: a coordinate may leave its dimension, or the shape may have another number of points than `size`.
    """
    points: Any = prod(shape)
    if simple(points - size) != 0:
        raise Unproved(
            where,
            f"the shape has {points} points and the layout {size}",
            legal="a shape with as many points",
            facts={"condition": f"{points} == {size}"},
        )
    index: Any = 0
    for c, n in zip(coords, shape, strict=True):
        require((c >= 0) & (c < n), where)
        index = index * n + c
    return index


def evaluate_at(iters: Sequence[tuple[Any, Any]], offset: Any, size: Any, index: Any) -> Any:
    """``offset + sum of digit * stride`` over iters given slowest first; the index is proved to lie in [0, size).

    Raises:
        Unproved: the ranges do not prove ``0 <= index < size``.
    """
    require((index >= 0) & (index < size), "Layout(index)")
    total = offset
    pitch: Any = 1
    for k, (extent, stride) in enumerate(reversed(iters)):
        digit = index // pitch
        if k < len(iters) - 1:
            digit = digit % extent
        total = total + simple(digit) * stride
        pitch = pitch * extent
    return total
