"""Axe's own names for the algebra: canonicalize, group, tile, tile_of, slice, direct_sum, span, admits, bind.

Everything is row-major, as in the paper: the last iter, and the last dimension of a shape, is fastest.

Example:
    >>> from tileweave.layout import axe
    >>> L = axe.parse("(2:192, 8:8, 3:64, 8:1)")
    >>> print(axe.slice(L, (16, 24), ((0, 8), (8, 24))))
    (8:8@m, 2:64@m, 8:1@m) + 64@m
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm, prod

from tileweave.errors import LayoutError, NoLayout
from tileweave.layout.core.checks import asked, need_iters, need_layouts, need_numbers
from tileweave.layout.core.combine import (
    Blocks,
    common_refinement,
    direct_sum,
    direct_sum_of,
    group,
    spans,
    tile,
    tile_of,
)
from tileweave.layout.core.coord import Coord, Shape, integers
from tileweave.layout.core.exact import Replicas, by_set, normalize, same_map
from tileweave.layout.core.layout import Iter, Layout, has_symbols, iter_of, layout_of
from tileweave.layout.core.replicas import set_normal
from tileweave.layout.core.search import holders
from tileweave.layout.core.slices import Pieces, slice_layout, slice_pieces
from tileweave.layout.core.symbolic import is_expr, proved, require_quotient, same
from tileweave.layout.text.short import parse, to_text

__all__ = [
    "Blocks",
    "Coord",
    "Iter",
    "Layout",
    "Pieces",
    "admits",
    "bind",
    "canonicalize",
    "common_refinement",
    "direct_sum",
    "direct_sum_of",
    "group",
    "groups",
    "holders",
    "intersect",
    "parse",
    "same_map",
    "slice",
    "slice_pieces",
    "span",
    "tile",
    "tile_of",
    "to_text",
]

Region = Sequence[tuple[int, int]]
"""A box, as one half-open interval (begin, end) per dimension."""


@asked("canonicalize(layout, replicas)")
def canonicalize(layout: Layout, replicas: Replicas = "multiset") -> Layout:
    """The canonical layout with the same map: D by D0 and D1, R and O without the gap condition.

    Args:
        layout: any layout.
        replicas: ``"multiset"`` counts replicas that collide, as `same_map` does; ``"set"`` is the paper's meaning:
            they are absorbed (C2) or factored anew, to the shortest list with the same set.

    Example:
        >>> print(canonicalize(parse("(2:12, 3:4, 4:1) + [2:-3, 3:3]")))
        (24:1@m) + [2:3@m, 3:3@m] - 3@m
        >>> print(canonicalize(parse("(2:12, 3:4, 4:1) + [2:-3, 3:3]"), "set"))
        (24:1@m) + [4:3@m] - 3@m

    Source: Axe, section 3.3 and appendix A.
    """
    as_sets = by_set(replicas, "canonicalize(layout, replicas)")
    normal = normalize(layout)
    if not as_sets or not normal.replica or has_symbols(normal):
        return normal
    return layout_of(normal.shard, set_normal(normal.replica), normal.offset)


def admits(layout: Layout, shape: Shape) -> bool:
    """True exactly if the shape has as many points as D: then coordinates under it are linear indices.

    With symbols: if that is proved for all their values.

    Source: Axe, section 2.3.
    """
    need_layouts("admits(layout, shape)", layout)
    try:
        sizes = integers(shape, "admits(layout, shape)", "extent")
    except LayoutError:
        return False
    return all(proved(n >= 1) for n in sizes) and same(prod(sizes), layout.size)


@asked("groups(layout, shape)")
def groups(layout: Layout, shape: Shape) -> bool:
    """True exactly if D splits into one block per dimension of the shape.

    Example:
        >>> L = parse("(1:6, 6:1, 4:8)")
        >>> groups(L, (1, 2, 12)), groups(L, (4, 6))
        (True, False)

    Source: Axe, section 3.3 and appendix B.
    """
    if not admits(layout, shape):
        return False
    try:
        group(layout, shape)
    except NoLayout:
        return False
    return True


@asked("span(layout)")
def span(layout: Layout) -> Coord:
    """``max - min + 1`` of the values, on every axis that the layout's iters use (1 elsewhere, not shown).

    Example:
        >>> print(span(parse("(2:112@Col, 128:1@Lane, 112:1@Col)")))
        224@Col + 128@Lane

    Source: Axe, section 2.3 and lemma C.1.
    """
    return Coord(tuple(spans(layout).items()))


@asked("slice(layout, shape, region)")
def slice(layout: Layout, shape: Shape, region: Region, *, written: bool = False) -> Layout:
    """``L[R : S]``: the layout of the region R of the shape S, or the witness that it has no single layout.

    Args:
        layout: a layout that admits the shape.
        shape: S.
        region: R, one (begin, end) per dimension.
        written: keep the iters as they are written, as the paper does; by default neighbours are merged.

    Raises:
        NoLayout: no single layout; `slice_pieces` covers the region with several.

    Example:
        >>> rows = parse("(32:128, 8:16, 16:1)")
        >>> print(slice(rows, (32, 128), ((0, 16), (0, 128))))
        (16:128@m, 128:1@m)
        >>> print(slice(rows, (32, 128), ((0, 16), (0, 128)), written=True))
        (16:128@m, 8:16@m, 16:1@m)

    Source: Axe, section 3.3 and appendix E.
    """
    try:
        begin, end = [b for b, _ in region], [e for _, e in region]
        extent = [e - b for b, e in zip(begin, end, strict=True)]
    except (TypeError, ValueError):
        raise LayoutError(
            "slice(layout, shape, region)", f"{region!r} is no region", legal="one (begin, end) per dimension"
        ) from None
    return slice_layout(layout, shape, begin, extent, written=written)


@asked("bind(layout, coords, shape)")
def bind(layout: Layout, coords: int | Sequence[int], shape: Shape, *, written: bool = False) -> Layout:
    """The layout with its leading dimensions fixed: ``y -> L(coords, y)``, the loops that are left to one thread.

    Args:
        layout: a layout that groups by ``shape`` followed by the rest.
        coords: one coordinate per dimension of `shape`, integers or index expressions.
        shape: the extents of the leading dimensions; their product divides the layout's size.
        written: keep the loops as they are written, such as a vector atom; by default neighbours are merged.

    Example:
        >>> work = parse("(16:128, 8:8, 2:4, 4:1) + 2112")
        >>> print(bind(work, (3, 5), (16, 8)))
        (8:1@m) + 2536@m
        >>> print(bind(work, (3, 5), (16, 8), written=True))
        (2:4@m, 4:1@m) + 2536@m
        >>> from tileweave.index import symbol
        >>> tx = symbol("tx", 0, 128)
        >>> print(bind(work, (tx // 8, tx % 8), (16, 8)))
        (8:1@m) + (tx // 8 * 64 + tx * 8 + 2112)@m

    Source: Axe, section 3.1 (binding loops to threads).
    """
    where = "bind(layout, coords, shape)"
    need_layouts(where, layout)
    coords, shape = integers(coords, where, "coordinate"), integers(shape, where, "extent")
    lead = prod(shape)
    inputs = {"layout": layout, "coords": coords, "shape": shape}
    if len(coords) != len(shape):
        raise LayoutError(where, f"{len(coords)} coordinates for {len(shape)} dimensions", inputs=inputs)
    if is_expr(lead) or is_expr(layout.size):
        rest = require_quotient(layout.size, lead, where)
    elif lead < 1 or layout.size % lead:
        raise LayoutError(where, f"{lead} threads do not divide {layout.size} points", inputs=inputs)
    else:
        rest = layout.size // lead
    inner = group(layout, (lead, rest), written=written)[1]
    base = layout_of(layout.shard, (), layout.offset)
    start = base.at([*coords, 0], [*shape, rest])
    if not isinstance(start, Coord):  # expressions, by axis or for the only one
        start = Coord.of(start) if isinstance(start, dict) else Coord(((base.axes[0], start),))
    return layout_of(inner, layout.replica, start)


def intersect(a: Iter, b: Iter) -> Iter:
    """The iter whose values are exactly those that both iters take: both start at zero, so there always is one.

    Example:
        >>> print(intersect(Iter(12, 2), Iter(5, 3)))
        3:6@m

    Source: Axe, section 3.4 (K intersection).
    """
    need_iters("intersect(a, b)", a, b)
    need_numbers("intersect(a, b)", Layout((a, b)))
    if a.extent == 1 or b.extent == 1 or not a.stride or not b.stride or a.stride.axes != b.stride.axes:
        return iter_of(1, Coord())
    s, t = a.stride.terms[0][1], b.stride.terms[0][1]
    if t * a.stride != s * b.stride or (s > 0) != (t > 0):
        return iter_of(1, Coord())
    period = lcm(s, t)
    steps = min((a.extent - 1) * abs(s) // period, (b.extent - 1) * abs(t) // period)
    stride = Coord(tuple((n, v * period // abs(s)) for n, v in a.stride.terms))
    return iter_of(steps + 1, stride if steps else Coord())
