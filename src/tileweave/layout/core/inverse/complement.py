"""Complement on one axis, with its post-condition as the definition.

The kernel works on rows, fastest first, and serves every notation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import Any

from tileweave.errors import LayoutError
from tileweave.layout.core.checks import need_axis, need_layouts, no_layout
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord, integer
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.rows import Row, coalesce, iters_of
from tileweave.layout.core.symbolic import Open, by_proof, is_expr, plain, proved, require_positive, same, simple


def complement(layout: Layout, size: int, *, axis: str = DEFAULT_AXIS) -> Layout:
    """A layout whose values, added to those of `layout`, give every integer of [0, size) exactly once.

    Among the layouts that do, the one with the fewest iters, ascending strides, last fastest; its offset undoes the
    layout's least value. It exists exactly if the iters, sorted by stride, fit into each other: extent times stride
    divides the next stride, and the last of them the size (an interval has no other tilings by sums of iters).

    Raises:
        NoLayout: there is none; the witness is an index whose stride does not fit, or the last index.

    Example:
        >>> print(complement(Layout(((4, 1), (2, 8))), 32))
        (2:16@m, 2:4@m)
        >>> complement(Layout(((2, 1), (3, 3))), 12)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tileweave.errors.NoLayout: complement(layout, size): stride 3 is no multiple of 2, the period of the faster ...

    Source: CuTe's complement, with the post-condition as the definition (own decision).
    """
    where = "complement(layout, size)"
    need_bare(layout, where)
    inputs = {"layout": layout, "size": size}
    rows, low = rising_rows(layout, axis, where)
    found = complement_rows(rows, _positive(size, where, "size", inputs), where, inputs)
    return layout_of(iters_of(found, axis), (), Coord(((axis, -low),)))


def complement_rows(rows: Sequence[Row], size: Any, where: str, inputs: Mapping[str, object]) -> list[Row]:
    """The ascending rows that fill [0, size) between the sums of `rows`; size None stands for the least that works.

    Raises:
        NoLayout: there are none.
        Unproved: there are symbols, and a sign or a division is not proved.
    """
    symbolic = size is not None and size.__class__ is not int
    for n, d in rows:
        if n.__class__ is not int or d.__class__ is not int:
            symbolic = True
    if symbolic:
        proof = by_proof(lambda lift: _gaps([(lift(n), lift(d)) for n, d in rows], lift(size)), where)
        return coalesce([(plain(n), plain(d)) for n, d in proof])
    found = _gaps(rows, size)
    if not isinstance(found, Open):
        return found
    period, relation, stride = found.condition
    step = 1
    for n, d in rows:
        if d == stride and n > 1:
            break
        step *= n
    if relation == "<=":
        raise no_layout(
            where,
            f"stride {stride} leaves [0, bound) or repeats a value",
            inputs=inputs,
            legal="positive strides",
            points=(0, step),
            values=(0, stride),
            condition="values are distinct and not negative",
        )
    if any(n > 1 and d == stride for n, d in rows) and stride % period:
        raise no_layout(
            where,
            f"stride {stride} is no multiple of {period}, the period of the faster modes",
            inputs=inputs,
            legal=f"a stride that {period} divides",
            points=(0, step),
            values=(0, stride),
            condition=f"{period} | {stride}",
        )
    top = sum((n - 1) * d for n, d in rows)
    raise no_layout(
        where,
        f"{size} is no multiple of {period}, the period of the layout",
        inputs=inputs,
        legal=f"a multiple of {period}",
        points=(prod(n for n, _d in rows) - 1,),
        values=(top,),
        condition=f"{period} | {size}",
    )


def _gaps(rows: Sequence[Row], size: Any) -> list[Row] | Open:
    """The structural step of the complement: ascending through the strides, each run divides the next."""
    left = [row for row in rows if row[0] != 1]
    numbers = True
    for _n, d in left:
        numbers = numbers and d.__class__ is int
    if numbers:
        left.sort(key=itemgetter(1), reverse=True)
    out: list[Row] = []
    period: Any = 1
    while left:
        n, d = left.pop() if numbers else left.pop(_fastest(left))
        if not d >= 1:
            return Open(1, "<=", d)
        gap, rest = divmod(d, period)
        if rest != 0:
            return Open(period, "|", d)
        if gap != 1:
            out.append((gap, period))
        period = n * d
    if size is not None:
        gap, rest = divmod(size, period)
        if rest != 0:
            return Open(period, "|", size)
        if gap != 1:
            out.append((gap, period))
    return out


def _fastest(rows: Sequence[Row]) -> int:
    """Which row comes first where strides are expressions: one whose run divides the other strides."""
    for k, (n, d) in enumerate(rows):
        if all(j == k or other % (n * d) == 0 for j, (_n, other) in enumerate(rows)):
            return k
    return 0


def need_bare(layout: Layout, where: str) -> None:
    """Raise a `LayoutError` unless the argument is a layout without replicas."""
    need_layouts(where, layout)
    if layout.replica:
        raise LayoutError(where, "a replicated layout has no inverse", inputs={"layout": layout}, legal="R empty")


def _positive(value: object, where: str, what: str, inputs: Mapping[str, object]) -> int:
    number = integer(value, where, what)
    if is_expr(number):
        require_positive(number, where)
    elif number < 1:
        raise LayoutError(where, f"{what} {number} is not a positive integer", inputs=inputs)
    return number


def rising_rows(layout: Layout, axis: str, where: str) -> tuple[list[Row], Any]:
    """The rows of a layout on one axis with the negative strides turned around, and the least value."""
    need_axis(where, axis)
    for step in (layout.offset, *(it.stride for it in layout.shard if it.extent != 1)):
        if step.axes not in ((), (axis,)):
            raise LayoutError(where, f"{step} leaves the axis {axis}", inputs={"layout": layout})
    low = layout.offset[axis]
    rows = []
    for it in reversed(layout.shard):
        stride = it.stride[axis]
        if stride.__class__ is int and it.extent.__class__ is int:
            back = stride < 0
        else:
            back = not same(it.extent, 1) and proved(stride <= -1)
        if back:
            low, stride = simple(low + (it.extent - 1) * stride), -stride
        rows.append((it.extent, simple(stride)))
    return rows, low


def turned(rows: Sequence[Row], rising: Sequence[Row]) -> Any:
    """How far the sums of rows reach below zero: what turning the negative strides around adds."""
    return sum((n - 1) * up for (n, d), (_n, up) in zip(rows, rising, strict=True) if d is not up and not same(d, up))
