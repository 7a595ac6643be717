"""Recast: the layout of the same bits in larger or smaller elements."""

from __future__ import annotations

from math import gcd
from typing import Any

from tileweave.errors import NotDivisible, Unproved
from tileweave.layout.core.checks import Witness, asked, no_layout
from tileweave.layout.core.rows import Row
from tileweave.layout.core.rows import coalesce as coalesce_rows
from tileweave.layout.core.symbolic import is_expr, require_quotient, simple
from tileweave.layout.notation.cute_algebra import from_modes, integral
from tileweave.layout.notation.cute_tuples import positive
from tileweave.layout.notation.cute_value import CuteLayout, nested_as


def upcast(layout: Any, factor: int) -> Any:
    """The layout in units of `factor` elements: every leaf loses the part that walks inside a unit.

    The leaves split into inner parts, which together fill a unit exactly once, and outer parts that step whole units.
    Behind a swizzle, its base moves along.

    Raises:
        NotDivisible: a leaf ends inside a unit.
        NoLayout: the inner parts do not fill the unit (the witness names the modes).

    Example:
        >>> print(upcast(CuteLayout((8, 4), (1, 8)), 4))
        (2,4):(1,2)

    Source: CuTe; the exact condition is own.
    """
    where = "upcast(layout, factor)"
    factor = positive(factor, where, "factor")
    if hasattr(layout, "recast"):
        return layout.recast(factor, True, where)
    layout = integral(layout, where)
    if layout.is_symbolic:
        return _upcast_symbolic(layout, factor, where)
    outer: list[Row] = []
    inner: list[Row] = []
    for n, d in layout.flat:
        part = min(n, factor // gcd(factor, d)) if d else 1
        if n % part or (n > part and part * d % factor):
            raise NotDivisible(
                where,
                f"the leaf {n}:{d} ends inside a unit of {factor}",
                inputs={"layout": layout},
                legal=f"extents that {factor // gcd(factor, d)} divides",
                facts={"witness": Witness((n,), (n * d,), f"{part} | {n}, {factor} | {part * d}")},
            )
        inner.append((part, d))
        outer.append((n // part, part * d // factor if n > part else 0))
    fill = [mode for mode in sorted(inner, key=lambda mode: mode[1]) if mode[0] > 1]
    if coalesce_rows(fill) != ([(factor, 1)] if factor > 1 else []):
        raise no_layout(
            where,
            f"the parts {from_modes(fill)} do not fill a unit of {factor}",
            inputs={"layout": layout},
            legal="leaves that walk whole units",
            points=fill,
            values=(),
            condition=f"the inner modes are {factor}:1",
        )
    return nested_as(layout, outer)


def _upcast_symbolic(layout: CuteLayout, factor: int, where: str) -> CuteLayout:
    """One leaf of stride 1 walks the units; the strides of the others are proved whole units."""
    runs = [k for k, (n, d) in enumerate(layout.flat) if d == 1]
    if factor > 1 and len(runs) != 1:
        raise Unproved(
            where,
            f"{len(runs)} leaves have stride 1",
            inputs={"layout": layout},
            legal="one leaf n:1, or integers",
            facts={"condition": "one leaf has stride 1"},
        )
    modes = [
        (require_quotient(n, factor, where), 1) if k in runs else (n, require_quotient(d, factor, where))
        for k, (n, d) in enumerate(layout.flat)
    ]
    return nested_as(layout, modes)


def downcast(layout: Any, factor: int) -> Any:
    """The layout in units of 1/factor: each element becomes `factor` contiguous ones, within the leaf of stride one.

    Raises:
        NoLayout: no leaf has stride one (or extent one), so that the parts have no place in a leaf.

    Example:
        >>> print(downcast(CuteLayout((2, 4), (1, 2)), 4))
        (8,4):(1,8)

    Source: CuTe.
    """
    where = "downcast(layout, factor)"
    factor = positive(factor, where, "factor")
    if hasattr(layout, "recast"):
        return layout.recast(factor, False, where)
    layout = integral(layout, where)
    leaf = next((k for k, (n, d) in enumerate(layout.flat) if d == 1 and (is_expr(n) or n > 1)), None)
    if leaf is None:
        leaf = next((k for k, (n, d) in enumerate(layout.flat) if n == 1), None)
    if leaf is None and factor > 1:
        raise no_layout(
            where,
            "no leaf has stride 1 or extent 1 to take the parts",
            inputs={"layout": layout},
            points=(0, 1),
            legal=f"a layout with a leaf n:1, or make_layout({factor}:1, ..) in front",
            values=(layout.zero,),
            condition="one leaf walks the parts of an element and then its neighbours",
        )
    modes = [(simple(n * factor), 1) if k == leaf else (n, simple(d * factor)) for k, (n, d) in enumerate(layout.flat)]
    if factor == 1:
        return layout
    return nested_as(layout, modes)


@asked("recast_layout(layout, new_bits, old_bits)")
def recast_layout(layout: Any, new_bits: int, old_bits: int) -> Any:
    """The layout of the same bits in elements of `new_bits` instead of `old_bits`.

    Example:
        >>> print(recast_layout(CuteLayout((8, 4), (1, 8)), 32, 8), recast_layout(CuteLayout(4, 1), 8, 16))
        (2,4):(1,2) 8:1

    Source: CuTe.
    """
    where = "recast_layout(layout, new_bits, old_bits)"
    new_bits, old_bits = positive(new_bits, where, "new_bits"), positive(old_bits, where, "old_bits")
    common = gcd(new_bits, old_bits)
    return upcast(downcast(layout, old_bits // common), new_bits // common)
