"""CuTe layouts with index expressions: composition and complement, each condition proved or named by `Unproved`.

What comes back is right for all values of the symbols within their ranges. The digits of the outer layout are walked
as in `cute_exact.compose_structural`; where that needs to know whether a mode ends inside a digit or on its border, the
answer must be proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileweave.errors import LayoutError, Unproved
from tileweave.index import equal, require
from tileweave.layout.core.layout import Coord
from tileweave.layout.core.symbolic import is_expr, proved, quotient, require_quotient, same, simple
from tileweave.layout.notation.cute_exact import coalesce_flat, continues
from tileweave.layout.notation.cute_tuples import Pair
from tileweave.layout.notation.cute_value import CuteLayout

__all__ = ["complement_symbolic", "compose_symbolic", "is_zero", "require_numbers"]


def require_numbers(where: str, *layouts: CuteLayout) -> None:
    """Raise `Unproved` where a layout is symbolic and the operation needs numbers."""
    for layout in layouts:
        if layout.is_symbolic:
            raise Unproved(
                where,
                "the extents or strides are symbolic",
                inputs={"layout": layout},
                legal="integers; coalesce, composition, complement, divides and products take expressions",
                facts={"condition": f"{layout} is made of integers"},
            )


def is_zero(stride: Any, where: str) -> bool:
    """Whether a stride is zero, decided for all values of its symbols."""
    if not is_expr(stride):
        return not stride
    if same(stride, 0):
        return True
    require(~equal(stride, 0), where)
    return False


def compose_symbolic(a: Sequence[Pair], b: Sequence[Pair], where: str, zero: Any) -> list[list[Pair]]:
    """For each mode of B (integer strides) the modes of ``A o B`` that refine it; A's last mode runs on without bound.

    Raises:
        Unproved: the first condition without a proof: a mode of B stays within a digit of A, or ends on its border,
            or two modes do not carry.
    """
    *front, (_n, last) = a or [(1, zero)]
    digits = coalesce_flat(front)
    if digits and continues(last, *digits[-1]):
        last = digits.pop()[1]
    used: list[Any] = [0] * len(digits)
    out = [_walk(n, s, digits, last, used, where, zero) for n, s in b]
    for load, (extent, _d) in zip(used, digits, strict=True):
        _require(load < extent, where)
    return out


def _require(condition: Any, where: str) -> None:
    if not proved(condition):
        require(condition, where)


def _walk(n: Any, s: Any, digits: Sequence[Pair], last: Any, used: list[Any], where: str, zero: Any) -> list[Pair]:
    """The modes of ``i -> A(s i)`` on [0, n); what they take of each digit of A is added to `used`."""
    if same(n, 1) or same(s, 0):
        return [(n, zero)]
    if digits:
        _require(s >= 0, where)
    out: list[Pair] = []
    for k, (extent, d) in enumerate(digits):
        reach = s * (n - 1)
        if proved(reach < extent):
            used[k] = used[k] + reach
            return [*out, (n, simple(s * d))]
        _require(s >= 1, where)
        part = quotient(extent, s)
        if part is not None:
            n = require_quotient(n, part, where)
            used[k] = used[k] + (extent - s)
            if not same(part, 1):
                out.append((part, simple(s * d)))
            s = 1
            if same(n, 1):
                return out
        else:
            s = require_quotient(s, extent, where)
    return [*out, (n, simple(s * last))]


def complement_symbolic(layout: CuteLayout, bound: Any, where: str) -> list[Pair]:
    """The modes of the complement, fastest first; the nest of the strides and the bound are proved to divide.

    Raises:
        Unproved: a stride is not proved positive, or some extent times stride to divide the next stride or the bound.
    """
    left = coalesce_flat(layout.flat)
    out: list[Pair] = []
    period: Any = 1
    for _n, d in left:
        if isinstance(d, Coord):
            raise LayoutError(where, "the strides are coordinates", inputs={"layout": layout}, legal="integer strides")
        _require(d >= 1, where)
    while left:
        fastest = next((m for m in left if _divides_the_others(m, left)), left[0])
        left.remove(fastest)
        n, d = fastest
        gap = require_quotient(d, period, where)
        if not same(gap, 1):
            out.append((gap, period))
        period = simple(n * d)
    if bound is not None:
        rest = require_quotient(bound, period, where)
        if not same(rest, 1):
            out.append((rest, period))
    return out


def _divides_the_others(mode: Pair, modes: Sequence[Pair]) -> bool:
    n, d = mode
    return all(quotient(other, n * d) is not None for _n, other in modes if (_n, other) != mode)
