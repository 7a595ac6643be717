"""Interval arithmetic on integers with open ends: one function per op, for nodes of expressions and for atoms alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

Interval = tuple[int | None, int | None]
"""Least and greatest value, both included; None: unbounded."""

WIDEST = 4096
"""Bits of an interval's end beyond which it counts as unbounded."""


def interval_of(op: str, parts: Sequence[Interval]) -> Interval:
    """Bounds of a number from the bounds of its operands; the operands are taken to be independent.

    Args:
        op: an op of integer value other than a leaf.
        parts: one interval per operand; of a select, those of its two branches.
    """
    if op == "isqrt":
        low, high = parts[0]
        return isqrt(max(low or 0, 0)), None if high is None else isqrt(max(high, 0))
    (a, b), (c, d) = parts
    match op:
        case "add":
            return None if a is None or c is None else a + c, None if b is None or d is None else b + d
        case "sub":
            return None if a is None or d is None else a - d, None if b is None or c is None else b - c
        case "mul":
            return sane(product((a, b), (c, d)))
        case "floordiv" | "mod":
            if d is not None and d <= -1:  # x // y == -x // -y, x % y == -(-x % -y)
                found = _division(op, *_negated((a, b)), *_negated((c, d)))
                return found if op == "floordiv" else _negated(found)
            return _division(op, a, b, c, d)
        case "min":
            ends = [end for end in (b, d) if end is not None]
            return None if a is None or c is None else min(a, c), min(ends) if ends else None
        case "max":
            ends = [end for end in (a, c) if end is not None]
            return max(ends) if ends else None, None if b is None or d is None else max(b, d)
        case "select":
            return None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d)
        case "xor":
            return _xor(a, b, c, d)
    return None, None


def sane(p: Interval) -> Interval:
    """The interval, ends of absurd size taken as unbounded: repeated squaring must not fill the memory."""
    low, high = p
    if low is not None and low.bit_length() > WIDEST:
        low = None
    if high is not None and high.bit_length() > WIDEST:
        high = None
    return low, high


def product(p: Interval, q: Interval) -> Interval:
    """Bounds of a product, ends of any size."""
    (a, b), (c, d) = p, q
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if (a, b) == (0, 0) or (c, d) == (0, 0):
        return 0, 0
    if a is None or b is None or c is None or d is None:
        return _unbounded(p, q)
    ends = (a * c, a * d, b * c, b * d)
    return min(ends), max(ends)


def _unbounded(p: Interval, q: Interval) -> Interval:
    """The product where some end is open: it is one-sided when both factors keep their sign."""
    (a, b), (c, d) = p, q
    left = 1 if a is not None and a >= 0 else -1 if b is not None and b <= 0 else 0
    right = 1 if c is not None and c >= 0 else -1 if d is not None and d <= 0 else 0
    if left * right > 0:
        near = (a or 0) * (c or 0) if left > 0 else (b or 0) * (d or 0)
        return near, None
    if left * right < 0:
        near = (a or 0) * (d or 0) if left > 0 else (b or 0) * (c or 0)
        return None, near
    return None, None


def _division(op: str, a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    if op == "floordiv":
        return _quotient(a, b, c, d)
    if c is None or c < 1:
        return None, None
    known = [end for end in (None if d is None else d - 1, b if a is not None and a >= 0 else None) if end is not None]
    return 0, min(known) if known else None


def _quotient(a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    """Bounds of ``x // y`` for x in [a, b], y in [c, d]; only for positive y."""
    if c is None or c < 1:
        return None, None
    if a is None:
        low = None
    elif a >= 0:
        low = 0 if d is None else a // d
    else:
        low = a // c
    if b is None:
        high = None
    elif b >= 0:
        high = b // c
    else:
        high = -1 if d is None else b // d
    return low, high


def _xor(a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    if a is None or c is None or a < 0 or c < 0:
        if a is None or b is None or c is None or d is None:
            return None, None
        bits = max((end if end >= 0 else ~end).bit_length() for end in (a, b, c, d))
        return -(1 << bits), (1 << bits) - 1
    if b is None or d is None:
        return 0, None
    return 0, (1 << max(b.bit_length(), d.bit_length())) - 1


def _negated(p: Interval) -> Interval:
    return None if p[1] is None else -p[1], None if p[0] is None else -p[0]
