"""Complement, inverses, divide and product on one axis, each with its post-condition as the definition.

Shapes and linear indices are row-major: the last dimension is fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, count, takewhile
from itertools import product as every
from math import isqrt, lcm, prod

import numpy as np

from tileweave.errors import LayoutError, NoLayout, Undecided
from tileweave.layout.core.carries import Witness, rows_of
from tileweave.layout.core.checks import need_axis, need_layouts, need_numbers
from tileweave.layout.core.combine import group
from tileweave.layout.core.composition import compose
from tileweave.layout.core.coord import ZERO, integer
from tileweave.layout.core.exact import match_ratio, merge_shard, refuse
from tileweave.layout.core.layout import DEFAULT_AXIS, Coord, Iter, Layout, coord_of_terms, iter_of, layout_of
from tileweave.layout.core.parametric import complement_iters, has_symbols
from tileweave.layout.core.search import collision
from tileweave.layout.core.symbolic import is_expr, require_positive
from tileweave.layout.notation.cute_solve import integer_solution

__all__ = ["complement", "divide", "left_inverse", "product", "right_inverse"]

VALUES = 1 << 12
"""The greatest value up to which `left_inverse` searches where strides do not nest."""

WORK = 1 << 20
"""The most entries of linear systems, or values, that one such search looks at."""

POINTS = 1 << 14
"""The most indices that `right_inverse` lists where strides overlap."""


def _flat_rows(layout: Layout, axis: str, where: str) -> tuple[list[tuple[int, int, int]], int, int]:
    """(stride, extent, weight in the index) of the iters with positive strides, the least value, and its index."""
    need_bare(layout, where)
    need_numbers(where, layout)
    need_axis(where, axis)
    rows = []
    low, base, weight = layout.offset[axis], 0, 1
    for it in reversed(layout.shard):
        if it.extent > 1:
            if it.stride.axes not in ((), (axis,)):
                raise LayoutError(where, f"{it} leaves the axis {axis}", inputs={"layout": layout})
            stride = it.stride[axis]
            if stride < 0:
                low += (it.extent - 1) * stride
                base += (it.extent - 1) * weight
            rows.append((abs(stride), it.extent, weight if stride >= 0 else -weight))
        weight *= it.extent
    if layout.offset.axes not in ((), (axis,)):
        raise LayoutError(where, f"the offset {layout.offset} leaves the axis {axis}", inputs={"layout": layout})
    return sorted(rows), low, base


def need_bare(layout: Layout, where: str) -> None:
    """Raise a `LayoutError` unless the argument is a layout without replicas."""
    need_layouts(where, layout)
    if layout.replica:
        raise LayoutError(where, "a replicated layout has no inverse", inputs={"layout": layout}, legal="R empty")


def complement(layout: Layout, size: int, *, axis: str = DEFAULT_AXIS) -> Layout:
    """A layout whose values, added to those of `layout`, give every integer of [0, size) exactly once.

    Among the layouts that do, the one with the fewest iters, ascending strides, last fastest; its offset undoes the
    layout's least value. Decided for any extents and strides by pairing the factors of ``(1 - z^size) / (1 - z)``.

    Raises:
        NoLayout: there is none: two indices collide, or the factors do not pair (some value is reached twice or never).

    Example:
        >>> print(complement(Layout(((4, 1), (2, 8))), 32))
        (2:16@m, 2:4@m)
        >>> complement(Layout(((2, 1), (3, 3))), 12)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tileweave.errors.NoLayout: complement(layout, size): no layout agrees with the definition: ...

    Source: CuTe's complement, with the post-condition as the definition (own decision).
    """
    where = "complement(layout, size)"
    need_layouts(where, layout)
    inputs = {"layout": layout, "size": size}
    size = _positive(size, where, "size", inputs)
    return _complement(layout, size, axis, where, inputs)


def _positive(value: object, where: str, what: str, inputs: Mapping[str, object]) -> int:
    number = integer(value, where, what)
    if is_expr(number):
        require_positive(number, where)
    elif number < 1:
        raise LayoutError(where, f"{what} {number} is not a positive integer", inputs=inputs)
    return number


def _complement(layout: Layout, size: int, axis: str, where: str, inputs: Mapping[str, object]) -> Layout:
    if is_expr(size) or has_symbols(layout) or is_expr(layout.offset[axis]):
        need_bare(layout, where)
        need_axis(where, axis)
        between, least = complement_iters(layout, size, axis, where)
        return layout_of(between, (), Coord(((axis, -least),)))
    rows, low, _ = _flat_rows(layout, axis, where)
    exponents = Counter({size: 1})
    exponents[1] -= 1
    for stride, extent, _ in rows:
        if not stride:
            raise refuse(where, Witness((0, 1), (low, low), "a stride is zero, so indices collide"), inputs)
        exponents[stride] += 1
        exponents[stride * extent] -= 1
    pairs = match_ratio({n: k for n, k in exponents.items() if k})
    if pairs is None:
        raise refuse(where, _no_complement(layout, size), inputs, "strides that nest and divide the size")
    iters = tuple(iter_of(n // m, coord_of_terms(((axis, m),))) for m, n in reversed(pairs))
    return layout_of(iters, (), Coord(((axis, -low),)))


def _no_complement(layout: Layout, size: int) -> Witness:
    try:
        pair = collision(layout)
    except Undecided:
        pair = None
    if pair:
        return Witness(pair, tuple(layout(x) for x in pair), "these indices collide")
    if size % layout.size:
        return Witness((0,), (layout(0),), f"{layout.size} values do not divide {size}")
    condition = f"no iters fill [0, {size}) between these values exactly once"
    points = tuple(range(min(layout.size, 8)))
    return Witness(points, tuple(layout(x) for x in points), condition)


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
    rows, low, base = _flat_rows(layout, axis, where)
    if low:
        raise refuse(where, Witness((base,), (low,), "this is the least value, and it is not 0"), {"layout": layout})
    end = (
        1  # the least value that no index has: up to there every stride is at most one more than the faster ones reach
    )
    for stride, extent, _ in rows:
        if stride > end:
            break
        end += (extent - 1) * stride
    iters = _along_single_iters(rows)
    if prod(it.extent for it in iters) < end:
        near = [row for row in rows if row[0] < end]
        found = _search_right(near, end, iters, {"layout": layout})
        iters, base = (found[0], base + found[1]) if found else (iters, base)
    return layout_of(merge_shard(iters), (), Coord.of(base))


def _along_single_iters(rows: list[tuple[int, int, int]]) -> list[Iter]:
    """The longest chain of strides 1 | s | .. within the reach of one another, slowest first."""
    best: list[tuple[int, list[int]]] = []
    for k, (stride, extent, _) in enumerate(rows):
        trails: list[list[int]] = [[]] if stride == 1 else []
        for j, (below, width, _) in enumerate(rows[:k]):
            if below and stride > below and stride % below == 0 and stride // below <= width and best[j][0]:
                trails.append(best[j][1])
        longest = max(trails, key=len) if trails else None
        best.append((0, []) if longest is None else (stride * extent, [*longest, k]))
    trail = max(best, key=lambda item: item[0], default=(0, []))[1]
    iters = []
    for here, above in zip(trail, [*trail[1:], None], strict=False):  # the last has none above
        stride, extent, weight = rows[here]
        iters.append(iter_of(extent if above is None else rows[above][0] // stride, Coord.of(weight)))
    return iters[::-1]


def _search_right(
    rows: list[tuple[int, int, int]], end: int, known: list[Iter], inputs: Mapping[str, object]
) -> tuple[list[Iter], int] | None:
    """Iters and offset of the longest R, if it is longer than the one that is known.

    R is built level by level. At level p it is known below p; any index whose value is p gives the next stride, which
    repeats as long as the values go on. Extents are primes: a longer iter is several of them.
    """
    where = "right_inverse(layout)"
    if prod(e for _, e, _ in rows) > POINTS:
        raise Undecided(
            where,
            f"strides overlap, and {prod(e for _, e, _ in rows)} indices would have to be compared",
            inputs=inputs,
            legal="strides beyond the reach of the faster ones",
            facts={"bound": POINTS},
        )
    held: dict[int, list[int]] = {}
    value: dict[int, int] = {}
    for digits in every(*(range(e) for _, e, _ in rows)):
        y = sum(d * s for d, (s, _, _) in zip(digits, rows, strict=True))
        x = sum(d * w for d, (_, _, w) in zip(digits, rows, strict=True))
        value[x] = y
        if y < end:
            held.setdefault(y, []).append(x)
    longest = prod(it.extent for it in known)
    best: tuple[list[Iter], int] | None = None
    stack: list[tuple[list[int], list[Iter]]] = [([x], []) for x in reversed(held[0])]
    steps = 0
    while stack and longest < end:
        below, iters = stack.pop()
        p = len(below)
        if p > longest:
            longest, best = p, (iters, below[0])
        if 2 * p > end or end - end % p <= longest:
            continue
        for x in held[p]:
            stride = x - below[0]
            grown = list(below)
            while len(grown) + p <= end:
                after = [y + stride for y in grown[-p:]]
                steps += p
                if any(value.get(y) != len(grown) + k for k, y in enumerate(after)):
                    break
                grown += after
                times = len(grown) // p
                if all(times % q for q in range(2, isqrt(times) + 1)):
                    stack.append((list(grown), [iter_of(times, Coord.of(stride)), *iters]))
            if steps > WORK:
                raise Undecided(where, f"the search passed {WORK} values", inputs=inputs, facts={"bound": WORK})
    return best


def left_inverse(layout: Layout, *, axis: str = DEFAULT_AXIS) -> Layout:
    """R with ``R(layout(x)) = x`` for every x, a layout on [0, M) with M at least the layout's cosize.

    Strides that nest without overlap are inverted directly, at any size; others by an exact search over the levels.

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
    rows, low, base = _flat_rows(layout, axis, where)
    if low < 0:
        raise LayoutError(where, f"the value {low} is negative", inputs=inputs, legal="values from 0 on")
    pair = collision(layout)
    if pair:
        raise refuse(where, Witness(pair, tuple(layout(x) for x in pair), "these indices collide"), inputs)
    nested = _nested_inverse(rows, low, base)
    if nested:
        return nested
    return _search_inverse(layout, axis, where)


def _search_inverse(layout: Layout, axis: str, where: str) -> Layout:
    """The layout through the points (value, index), by an exact search over the chains of its levels.

    For one chain of levels q the coefficients of ``offset + sum of c(q) * floor(y / q)`` solve a linear system over the
    integers. A chain refined is at least as good, so only chains of primes are tried, and a chain is left as soon as
    the points below its end have no solution.
    """
    inputs = {"layout": layout}
    top = layout.bounds(axis)[1]
    if top >= VALUES or layout.size > VALUES:
        raise Undecided(where, f"values up to {top} pass the search's bound", inputs=inputs, facts={"bound": VALUES})
    table = layout.table()
    points = sorted((int(y), x) for x, y in enumerate(table[axis] if isinstance(table, dict) else table))
    primes = list(takewhile(lambda p: p <= top + 1, _primes()))
    stack = [[1]]
    work = 0
    while stack:
        levels = stack.pop()
        for p in reversed(primes):
            end = levels[-1] * p
            seen = [(y, x) for y, x in points if y < end]
            found: list[int] | None = [0] * (len(levels) + 1)
            for sample in (seen[:8], seen):  # a few points refute most chains
                if not sample or found is None:
                    continue
                work += len(sample) * len(found)
                found = integer_solution([[1, *(y // q for q in levels)] for y, _ in sample], [x for _, x in sample])
            if work > WORK:
                raise Undecided(where, f"the search passed {WORK} entries", inputs=inputs, facts={"bound": WORK})
            if found is None:
                continue
            if end > top:
                rows = rows_of(end, [(q, c) for q, c in zip(levels, found[1:], strict=True) if c], 0)
                return layout_of(tuple(iter_of(e, Coord.of(s)) for e, s in rows), (), Coord.of(found[0]))
            stack.append([*levels, end])
    shown = points[:8]
    condition = "no chain of levels takes the values back to the indices, and all were tried"
    raise refuse(where, Witness(tuple(x for _, x in shown), tuple(y for y, _ in shown), condition), inputs)


def _primes() -> Iterator[int]:
    return (p for p in count(2) if all(p % q for q in range(2, isqrt(p) + 1)))


def _nested_inverse(rows: list[tuple[int, int, int]], low: int, base: int) -> Layout | None:
    """The digits of a value in the radices of the strides, if each stride divides the next and no digit overflows."""
    iters, offset = [], base
    below = rows[0][0] if rows else low + 1
    if below > 1:
        iters.append(iter_of(below, ZERO))
    for k, (stride, extent, weight) in enumerate(rows):
        last = k == len(rows) - 1
        width, rest = (0, 0) if last else divmod(rows[k + 1][0], stride)
        digit = low // stride if last else low // stride % width if width else 0
        if rest or (not last and digit + extent > width):
            return None
        iters.append(iter_of(digit + extent if last else width, Coord.of(weight)))
        offset -= digit * weight
    return layout_of(merge_shard(reversed(iters)), (), Coord.of(offset))


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
    inner = _tiler(tiler, where)
    rest = _complement(inner, layout.size, DEFAULT_AXIS, where, {"layout": layout, "tiler": inner})
    order = layout_of(rest.shard + inner.shard, (), rest.offset + inner.offset)
    return _regroup(compose(layout, order), (rest.size, inner.size))


def product(block: Layout, tiler: Layout | int) -> Layout:
    """`block` repeated as `tiler` says, without overlap: shape (size of tiler, size of block), block fastest.

    The copies start at ``complement(block)(tiler(y))``.

    Raises:
        NoLayout: the block has no complement (its gaps cannot be filled), or the tiler does not fit it.

    Example:
        >>> print(product(Layout(((2, 2), (2, 1))), 3))
        (3:4@m, 4:1@m)
        >>> print(product(Layout(((4, 2),)), Layout(((3, 2), (2, 1)))))
        (3:8@m, 2:1@m, 4:2@m)

    Source: CuTe's logical_product (the tiler first, being slower); exact.
    """
    where = "product(block, tiler)"
    need_layouts(where, block)
    outer = _tiler(tiler, where)
    need = block.size * outer.cosize()
    inputs = {"block": block, "tiler": outer}
    try:
        starts = _complement(block, need, DEFAULT_AXIS, where, inputs)
    except NoLayout:
        period = lcm(*(s * e for s, e, _ in _flat_rows(block, DEFAULT_AXIS, where)[0] if s)) if block.shard else 1
        starts = _complement(block, period * -(-need // period), DEFAULT_AXIS, where, inputs)
    low = layout_of(starts.shard, (), ZERO)
    mine = group(compose(low, outer), (outer.size,))[0]
    return layout_of(mine + group(block, (block.size,))[0], (), block.offset + compose(low, outer).offset)


def _tiler(tiler: Layout | int, where: str) -> Layout:
    if isinstance(tiler, Layout):
        return tiler
    number = is_expr(tiler) or (isinstance(tiler, int | np.integer) and tiler > 0)
    if not number:
        raise LayoutError(where, f"tiler {tiler!r} is not a layout or a positive integer")
    return layout_of((Iter(tiler, Coord.of(1)),), (), ZERO)


def _regroup(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """The same layout with D cut at the shape's dimensions."""
    return layout_of(tuple(chain.from_iterable(group(layout, shape))), layout.replica, layout.offset)
