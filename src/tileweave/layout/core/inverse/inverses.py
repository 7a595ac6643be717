"""Right and left inverses on one axis, each with its post-condition as the definition.

The kernels work on rows, fastest first, and serve every notation. On layouts, shapes and linear indices are row-major:
the last dimension is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import gcd, prod

import numpy as np

from tileweave.errors import LayoutError
from tileweave.layout.core.checks import BOUND, Witness, need_numbers, refuse, undecided
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord
from tileweave.layout.core.inverse.chains import STEPS, chain_through
from tileweave.layout.core.inverse.complement import need_bare, rising_rows
from tileweave.layout.core.inverse.longest import Moving, longest_inverse, points_of
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.rows import Row, coalesce, iters_of, rows_of
from tileweave.layout.core.search import collision_of


def _moving(layout: Layout, axis: str, where: str) -> tuple[list[Moving], int, int]:
    """The rows with strides turned positive, ascending; the least value, and its index."""
    need_bare(layout, where)
    need_numbers(where, layout)
    rows, low = rising_rows(layout, axis, where)
    moving, base, weight = [], 0, 1
    for it, (extent, stride) in zip(reversed(layout.shard), rows, strict=True):
        back = it.stride[axis] < 0
        if extent > 1:
            base += (extent - 1) * weight if back else 0
            moving.append((stride, extent, -weight if back else weight))
        weight *= extent
    return sorted(moving), low, base


def right_inverse(layout: Layout, *, axis: str = DEFAULT_AXIS) -> Layout:
    """The longest layout R with ``layout(R(k)) = k`` for every k below R.size; its values are linear indices on ``m``.

    Of the layouts of that length, one whose iters run along single iters of the layout is preferred. If every stride
    exceeds what the faster ones reach, the answer is read off at any size; else the values that have several indices
    leave a choice, which an exact search settles.

    Raises:
        NoLayout: the layout's least value is not 0, so not even one k is reached.
        Undecided: strides overlap on more than `BOUND` points.

    Example:
        >>> print(right_inverse(Layout(((4, 1), (8, 4)))))
        (8:1@m, 4:8@m)
        >>> print(right_inverse(Layout(((4, 2), (3, 1)))))
        (4:3@m, 2:1@m)

    Source: CuTe's right_inverse, with the length as the definition (own decision).
    """
    where = "right_inverse(layout)"
    moving, low, base = _moving(layout, axis, where)
    if low:
        raise refuse(where, Witness((base,), (low,), "this is the least value, and it is not 0"), {"layout": layout})
    rows, first = right_inverse_rows(moving, where, {"layout": layout}, base)
    return layout_of(iters_of(rows, DEFAULT_AXIS), (), Coord.of(first))


def right_inverse_rows(
    moving: Sequence[Moving], where: str, inputs: Mapping[str, object], base: int = -1
) -> tuple[list[Row], int]:
    """The rows of the longest right inverse, and its first index; least index 0 unless `base` allows for others.

    Args:
        moving: rows by ascending strides, none negative.
        where, inputs: for errors.
        base: the index whose digits are all zero; -1 for 0, and for an inverse that must begin there.
    """
    end = 1  # up to the least value that no index has, each stride is at most one more than the faster ones reach
    for stride, extent, _weight in moving:
        if stride > end:
            break
        end += (extent - 1) * stride
    rows = _along_single_rows(moving)
    first = max(base, 0)
    length = 1
    for n, _d in rows:
        length *= n
    if length < end:
        near = [row for row in moving if row[0] < end]
        if prod(extent for _stride, extent, _weight in near) > BOUND:
            raise undecided(where, "comparing all indices where strides overlap", inputs)
        rows, first = longest_inverse(near, end, length, first, base >= 0) or (rows, first)
    return coalesce(rows), first


def _along_single_rows(moving: Sequence[Moving]) -> list[Row]:
    """The longest chain of strides 1 | s | .. within the reach of one another."""
    best: dict[int, tuple[int, list[Row]]] = {}
    for stride, extent, weight in reversed(moving):
        if stride < 1:
            continue
        reach = (stride * extent, [(extent, weight)])
        for ahead, (total, rows) in best.items():
            ratio, rest = divmod(ahead, stride)
            if not rest and 2 <= ratio <= extent and total > reach[0]:
                reach = (total, [(ratio, weight), *rows])
        if stride not in best or reach[0] > best[stride][0]:
            best[stride] = reach
    return best[1][1] if 1 in best else []


def left_inverse(layout: Layout, *, axis: str = DEFAULT_AXIS) -> Layout:
    """R with ``R(layout(x)) = x`` for every x, a layout on [0, M) with M at least the layout's cosize.

    Strides that nest without overlap are inverted directly, at any size: values in gaps that are whole runs go to
    indices from the layout's size on, in the order of the complement. Others are inverted by an exact search over the
    chains of levels: all of them where the values stay below `BOUND`, at most `STEPS` beyond. What such an inverse does
    at values that the layout skips is arbitrary.

    Raises:
        LayoutError: a value is negative.
        NoLayout: two indices collide, or no layout takes the values back.
        Undecided: the strides do not nest, a value is `BOUND` or more, and the search passed its steps.

    Example:
        >>> print(left_inverse(Layout(((2, 1), (5, 3)))))
        (5:1@m, 3:5@m)

    Source: CuTe's left_inverse, right for gaps that do not divide (own decision).
    """
    where = "left_inverse(layout)"
    inputs = {"layout": layout}
    moving, low, base = _moving(layout, axis, where)
    if low < 0:
        raise LayoutError(where, f"the value {low} is negative", inputs=inputs, legal="values from 0 on")
    rows, offset = left_inverse_rows(moving, low, base, layout, where, inputs)
    return layout_of(iters_of(rows, DEFAULT_AXIS), (), Coord.of(offset))


def left_inverse_rows(
    moving: Sequence[Moving], low: int, base: int, layout: Layout, where: str, inputs: Mapping[str, object]
) -> tuple[list[Row], int]:
    """The rows and the offset of a left inverse.

    Args:
        moving: rows by ascending strides, none negative.
        low, base: the least value and its index.
        layout: the same as a core layout without offset, for the search for collisions.
        where, inputs: for errors.
    """
    found = _nested_inverse(moving, low, base)
    if found is None:
        pair = collision_of(layout, where)
        if pair:
            values = tuple(layout(x) for x in pair)
            raise refuse(where, Witness(pair, values, "these indices collide"), inputs, "an injective layout")
        found = _inverse_by_chain(moving, low, base, where, inputs)
    return coalesce(found[0]), found[1]


def _nested_inverse(moving: Sequence[Moving], low: int, base: int) -> tuple[list[Row], int] | None:
    """The digits of a value in the radices of the strides, if each stride divides the next and no digit overflows."""
    if not moving:
        return ([(low + 1, 0)] if low else []), base
    for (d, n, _w), (ahead, _n, _v) in pairwise(moving):
        if not d or ahead % d or n * d > ahead:
            return None
    if not moving[0][0]:
        return None
    rows: list[Row] = []
    if not low:
        run, free = 1, prod(n for _d, n, _w in moving)
        for k, (d, n, weight) in enumerate(moving):
            if d > run:  # a gap of whole runs: its values go to indices from the size on
                rows.append((d // run, free))
                free *= d // run
            run = n * d
            ahead = moving[k + 1][0] if k + 1 < len(moving) else run
            if ahead % run:  # a gap that is no whole number of runs: the digit is lengthened over it
                n, run = ahead // d, ahead
            rows.append((n, weight))
        return rows, base
    offset = base
    if moving[0][0] > 1:
        rows.append((moving[0][0], 0))
    for k, (d, n, weight) in enumerate(moving):
        last = k == len(moving) - 1
        width = 0 if last else moving[k + 1][0] // d
        digit = low // d if last else low // d % width
        if not last and digit + n > width:
            return None
        rows.append((digit + n if last else width, weight))
        offset -= digit * weight
    return rows, offset


def _inverse_by_chain(
    moving: Sequence[Moving], low: int, base: int, where: str, inputs: Mapping[str, object]
) -> tuple[list[Row], int]:
    """The layout through the points (value, index), by the search over chains of levels."""
    top = low + sum((n - 1) * d for d, n, _w in moving)
    if prod(n for _d, n, _w in moving) > BOUND:
        raise undecided(where, "the search for levels", inputs)
    indices, values = points_of(moving)
    order = np.argsort(values)
    indices, values = indices[order] + base, values[order] + low
    strides = sorted({d for d, _n, _w in moving})
    unit = 1 if top < BOUND or low else gcd(*strides)  # beyond the bound, a level at the common divisor comes first
    found = chain_through(values // unit, indices, [d // unit for d in strides])
    if found == "undecided":
        raise undecided(where, f"values up to {top}: the search for levels", inputs, STEPS)
    if found is not None:
        levels, steps = [unit * q for q in found[0]], found[1]
        end = levels[-1] * (top // levels[-1] + 1)
        offset = base - sum(c * (low // q) for q, c in zip(levels, steps, strict=True))
        return rows_of(end, [(q, c) for q, c in zip(levels, steps, strict=True) if c], 0), offset
    points, shown = (tuple(v[:8].tolist()) for v in (indices, values))
    condition = "no chain of levels takes the values back to the indices, and all were tried"
    raise refuse(where, Witness(points, shown, condition), inputs)
