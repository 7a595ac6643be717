"""Complement, inverses, divide and product on one axis, each with its post-condition as the definition.

The kernels work on rows, fastest first, and serve every notation. On layouts, shapes and linear indices are row-major:
the last dimension is fastest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from tileweave.errors import LayoutError, NoLayout
from tileweave.layout.core.checks import (
    BOUND,
    WORK,
    Witness,
    need_axis,
    need_layouts,
    need_numbers,
    no_layout,
    refuse,
    undecided,
)
from tileweave.layout.core.combine import group
from tileweave.layout.core.composition import Pieces, compose_rows
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord, integer
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.rows import Row, coalesce, iters_of, rows_of, rows_on, unit_rows
from tileweave.layout.core.search import LongestInverse, Moving, collision_of
from tileweave.layout.core.symbolic import (
    Open,
    by_proof,
    integer_solution,
    is_expr,
    plain,
    primes,
    proved,
    require_positive,
    same,
    simple,
)

# Complement.


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
    rows, low = _rising(layout, axis, where)
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


def _rising(layout: Layout, axis: str, where: str) -> tuple[list[Row], Any]:
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


# Inverses.


def _moving(layout: Layout, axis: str, where: str) -> tuple[list[Moving], int, int]:
    """The rows with strides turned positive, ascending; the least value, and its index."""
    need_bare(layout, where)
    need_numbers(where, layout)
    rows, low = _rising(layout, axis, where)
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
    leave a choice, which a bounded search settles.

    Raises:
        NoLayout: the layout's least value is not 0, so not even one k is reached.
        Undecided: the strides overlap, no R reaches every value that could be, and the search passed its bound.

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
        found = LongestInverse(near, end, first, length, where, inputs).search(base >= 0)
        rows, first = found or (rows, first)
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
    levels, and what they do at values that the layout skips is arbitrary.

    Raises:
        LayoutError: a value is negative.
        NoLayout: two indices collide, or no layout takes the values back.
        Undecided: the search over chains passed its bound.

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
        found = _searched_inverse(moving, low, base, where, inputs)
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


def _searched_inverse(
    moving: Sequence[Moving], low: int, base: int, where: str, inputs: Mapping[str, object]
) -> tuple[list[Row], int]:
    """The layout through the points (value, index), by an exact search over the chains of its levels.

    For one chain of levels q the coefficients of ``offset + sum of c(q) * floor(y / q)`` solve a linear system over the
    integers. A chain refined is at least as good, so only chains of primes are tried, and a chain is left as soon as
    the points below its end have no solution. Levels that divide a stride are tried first.
    """
    top = low + sum((n - 1) * d for d, n, _w in moving)
    if top >= BOUND or prod(n for _d, n, _w in moving) > BOUND:
        raise undecided(where, f"values up to {top}: the search for strides", inputs)
    points = [(low, base)]
    for d, n, w in moving:
        points = [(y + k * d, x + k * w) for y, x in points for k in range(n)]
    points.sort()
    values = [y for y, _x in points]
    candidates = primes(top + 1)
    strides = [d for d, _n, _w in moving]
    stack = [[1]]
    work = 0
    while stack:
        levels = stack.pop()

        def solved(p: int, levels: list[int] = levels) -> list[int] | None:
            """The coefficients for the points below the end that p gives; a few points refute most chains."""
            nonlocal work
            found: list[int] | None = [0] * (len(levels) + 1)
            seen = points[: bisect_left(values, levels[-1] * p)]
            for sample in (seen[:8], seen):
                if sample and found is not None:
                    work += len(sample) * len(found)
                    rows = [[1, *(y // q for q in levels)] for y, _ in sample]
                    found = integer_solution(rows, [x for _, x in sample])
            return found

        whole = solved(candidates[-1])
        if whole is not None:
            end = next(levels[-1] * p for p in candidates if levels[-1] * p > top)
            return rows_of(end, [(q, c) for q, c in zip(levels, whole[1:], strict=True) if c], 0), whole[0]
        if work > 4 * WORK:
            raise undecided(where, "the search for strides", inputs, 4 * WORK)
        known = bisect_left(
            candidates, True, key=lambda p: solved(p) is None
        )  # a later end has all points of an earlier
        after = [[*levels, levels[-1] * p] for p in candidates[:known]]
        stack += sorted(after, key=lambda chain: any(d % chain[-1] == 0 for d in strides))
    shown = points[:8]
    condition = "no chain of levels takes the values back to the indices, and all were tried"
    raise refuse(where, Witness(tuple(x for _, x in shown), tuple(y for y, _ in shown), condition), inputs)


# Divide and product.


def divide(layout: Layout, tiler: Layout | int) -> Layout:
    """The layout read tile by tile: ``layout(rest + tiler)``, with shape (number of tiles, tile size), tile fastest.

    Args:
        layout: any layout.
        tiler: which linear indices one tile takes, a layout on ``m``; an int n means n neighbours.

    Raises:
        NoLayout: the tiles do not cover the indices exactly once, or the reading is no layout.

    Example:
        >>> print(divide(Layout(((24, 1),)), 4))
        (6:4@m, 4:1@m)

    Source: CuTe's logical_divide (the rest first, being slower); exact.
    """
    where = "divide(layout, tiler)"
    need_layouts(where, layout)
    tile, _start, rising, _low = _tiler(tiler, where)
    unit, rows = unit_rows(layout.shard)
    inputs = {"layout": layout, "tiler": tiler}
    zero: Any = 0 if unit else ZERO
    pieces, start = divide_rows(rows, tile, rising, layout.size, zero, where, inputs)
    inner = coalesce([piece for row in pieces[: len(tile)] for piece in row])
    outer = coalesce([piece for row in pieces[len(tile) :] for piece in row])
    first = Coord(((unit, start),)) if unit else start
    return layout_of(iters_of(outer, unit) + iters_of(inner, unit), layout.replica, layout.offset + first)


def divide_rows(
    rows: Sequence[Row],
    tile: Sequence[Row],
    rising: Sequence[Row],
    size: Any,
    zero: Any,
    where: str,
    inputs: Mapping[str, object],
) -> tuple[Pieces, Any]:
    """The pieces of each row of a tile, then of each row of its complement in [0, size), and the value at the start.

    Args:
        rows: what is divided.
        tile, rising: the rows of the tile, and the same with negative strides turned around.
        size: how many indices there are.
        zero, where, inputs: as for `compose_rows`.

    Raises:
        NoLayout: the tile has no complement in [0, size), or the composition with both is no layout.
    """
    rest = complement_rows(rising, size, where, inputs)
    found = compose_rows(rows, [*tile, *rest], turned(tile, rising), zero, where, inputs)
    if isinstance(found, Witness):
        raise composition_refused(found, where, inputs)
    return found


def composition_refused(witness: Witness, where: str, inputs: Mapping[str, object], legal: str = "") -> NoLayout:
    """The refusal of a composition that no layout refines, from the kernel's witness."""
    value = witness.values[0]
    if "0 <= value" in witness.condition:
        problem = f"the inner layout reaches {value}, outside the domain of the outer one, which has several modes"
        legal = "an inner layout with values from 0"
    elif len(witness.points) > 1:  # along one row
        problem = witness.condition
    else:
        forced = witness.values[-1]
        problem = f"the modes carry: at {witness.points[0]} the value is {value}, the modes alone add up to {forced}"
    legal = legal or "modes whose sum does not carry in the digits of the outer layout"
    return NoLayout(where, problem, inputs=inputs, legal=legal, facts={"witness": witness})


def _tiler(tiler: Layout | int, where: str) -> tuple[list[Row], Any, list[Row], Any]:
    """The rows and the offset of a tiler (an int n is n:1); the same with strides turned up, and its least value."""
    if not isinstance(tiler, Layout):
        number = is_expr(tiler) or (isinstance(tiler, int | np.integer) and tiler > 0)
        if not number:
            raise LayoutError(where, f"tiler {tiler!r} is not a layout or a positive integer")
        rows: list[Row] = [(tiler if is_expr(tiler) else int(tiler), 1)]
        return rows, 0, rows, 0
    need_bare(tiler, where)
    rising, low = _rising(tiler, DEFAULT_AXIS, where)
    return rows_on(tiler.shard, DEFAULT_AXIS), tiler.offset[DEFAULT_AXIS], rising, low


def product(block: Layout, tiler: Layout | int) -> Layout:
    """`block` repeated as `tiler` says, without overlap: shape (size of tiler, size of block), block fastest.

    Copy y starts at the ``tiler(y)``-th free spot, as `free_spots` counts them.

    Raises:
        NoLayout: the block's iters interlock, so that copies would overlap; or the tiler does not fit the spots.

    Example:
        >>> print(product(Layout(((2, 2), (2, 1))), 3))
        (3:4@m, 4:1@m)
        >>> print(product(Layout(((4, 2),)), Layout(((3, 2), (2, 1)))))
        (3:8@m, 2:1@m, 4:2@m)

    Source: CuTe's logical_product (the tiler first, being slower); exact.
    """
    where = "product(block, tiler)"
    need_bare(block, where)
    inputs = {"block": block, "tiler": tiler}
    rows, _low = _rising(block, DEFAULT_AXIS, where)
    tile, start, _rising_tile, low = _tiler(tiler, where)
    if not proved(low >= 0):
        raise LayoutError(where, f"the tiler's value {low} is negative", inputs=inputs, legal="values from 0 on")
    found = compose_rows(free_spots(rows, where, inputs), tile, start, 0, where, inputs)
    if isinstance(found, Witness):
        raise composition_refused(found, where, inputs)
    pieces, first = found
    outer = iters_of(coalesce([piece for row in pieces for piece in row]), DEFAULT_AXIS)
    return layout_of(outer + group(block, (block.size,))[0], (), block.offset + Coord.of(first))


def free_spots(rows: Sequence[Row], where: str, inputs: Mapping[str, object]) -> list[Row]:
    """Where copies of a block start, ascending and without bound; the last row steps from period to period.

    A gap between the block's elements that holds no whole number of runs takes as many as fit. Strides of zero take up
    no room.
    """
    moving = [(n, d) for n, d in rows if not same(d, 0)]
    if any(v.__class__ is not int for row in moving for v in row):
        gaps = complement_rows(moving, None, where, inputs)
        return [*gaps, (1, simple(prod(n for n, _d in (*moving, *gaps))))]
    free: list[Row] = []
    run = 1
    for n, d in sorted((row for row in moving if row[0] > 1), key=lambda row: row[1]):
        if d < run:
            raise no_layout(
                where,
                f"stride {d} enters a run of {run}, so that copies side by side would overlap",
                inputs=inputs,
                legal=f"positive strides, each at least the extent times stride before it; here {run}",
                points=(n,),
                values=(d,),
                condition=f"{d} >= {run}",
            )
        if d // run > 1:
            free.append((d // run, run))
        run = n * d
    return [*free, (1, run)]
