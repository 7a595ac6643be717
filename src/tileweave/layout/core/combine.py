"""Layouts from layouts, dimension by dimension: group, common refinement, tile, direct sum, and their inverses.

Shapes and linear indices are row-major throughout: the last dimension is fastest. Every operation agrees with its
definition at every point, or raises `NoLayout` with a witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from math import prod
from typing import Any, cast

from tileweave.errors import LayoutError, NotDivisible, Unproved
from tileweave.layout.core.checks import Witness, asked, check_shape, need_layouts, refuse
from tileweave.layout.core.coord import ZERO, Coord, Shape, Terms, coord_of_terms, integers
from tileweave.layout.core.exact import Replicas, merge_shard, normal_shard, same_iters
from tileweave.layout.core.layout import Iter, Layout, is_symbolic, iter_of, layout_of
from tileweave.layout.core.replicas import match_ratio, normal_replica, replica_ratio, set_quotient
from tileweave.layout.core.symbolic import (
    Open,
    ascending,
    by_proof,
    is_expr,
    plain,
    quotient,
    require_quotient,
    require_same,
    same,
    simple,
)

Blocks = tuple[tuple[Iter, ...], ...]
"""One tuple of iters per dimension of a shape."""


# Grouping.


def group(layout: Layout, shape: Shape, *, written: bool = False) -> Blocks:
    """D cut into one block per dimension, the fewest iters in all, so that each block sees only its own coordinate.

    Exact: the blocks exist if and only if D is a sum of one function per dimension (unit dimensions get no iters).

    Args:
        layout: any layout; its normal D is cut.
        shape: extents with ``layout.size`` points, last fastest.
        written: cut the iters as they are written, if the shape ends between them; neighbours are then not merged.

    Raises:
        NoLayout: a dimension ends inside a digit of D; the witness is a step that depends on another coordinate.
        Unproved: the layout or the shape is symbolic, and neither of two extents is proved to divide the other.

    Example:
        >>> blocks = group(Layout(((12, 1),)), (3, 4))
        >>> [[str(it) for it in block] for block in blocks]
        [['3:4@m'], ['4:1@m']]

    Source: Axe, section 3.3 and appendix B; exact where algorithm 1 fails on unit iters.
    """
    where = "group(layout, shape)"
    need_layouts(where, layout)
    sizes = check_shape(shape, layout.size, where, layout)
    blocks = blocks_of(layout, sizes, where, written)
    if isinstance(blocks, tuple):
        return blocks
    inputs = {"layout": layout, "shape": sizes}
    raise refuse(where, _crossing(layout, *blocks), inputs, "a shape whose dimensions end between digits of D")


def blocks_of(layout: Layout, sizes: Sequence[int], where: str, written: bool = False) -> Blocks | list[int]:
    """`cut` of the layout's normal iters; or of those that are written, where that is asked for and can be."""
    if written:
        blocks = cut([it for it in layout.shard if not same(it.extent, 1)], sizes, where)
        if isinstance(blocks, tuple):
            return blocks
    return cut(normal_shard(layout), sizes, where)


def cut(iters: Sequence[Iter], sizes: Sequence[int], where: str) -> Blocks | list[int]:
    """The blocks of normal iters under a shape; or the boundary and the level of D that it crosses, as a list."""
    symbolic = False
    for it in iters:
        symbolic = symbolic or it.extent.__class__ is not int
    for n in sizes:
        symbolic = symbolic or n.__class__ is not int
    if symbolic:
        return cast("Blocks", by_proof(lambda lift: _cut(iters, [lift(n) for n in sizes], lift), where))
    return _cut(iters, sizes)  # type: ignore[return-value] # only expressions leave a condition open


def _cut(
    iters: Sequence[Iter], sizes: Sequence[Any], lift: Callable[[Any], Any] | None = None
) -> Blocks | list[int] | Open:
    rest = list(iters)
    blocks: list[tuple[Iter, ...]] = []
    level = 1
    for n in reversed(sizes):
        need = n
        block: list[Iter] = []
        while need != 1:
            if not rest:
                return Open(need, "==", 1)
            it = rest.pop()
            extent = it.extent if lift is None else lift(it.extent)
            if need % extent == 0:
                block.append(it)
                need //= extent
                level *= extent
            elif extent % need == 0:
                width = need if lift is None else plain(need)
                block.append(iter_of(width, it.stride))
                rest.append(iter_of(plain(extent // need), width * it.stride))
                level *= need
                need = 1
            else:
                return Open(need, "|", extent) if lift else [level * need, level * extent]
        block.reverse()
        blocks.append(tuple(block))
    blocks.reverse()
    return tuple(blocks)


def _crossing(layout: Layout, boundary: int, level: int) -> Witness:
    """Four points that show that the step inside a block depends on which block it is."""
    base = layout_of(layout.shard, (), layout.offset)
    size = layout.size
    for high in range(boundary, min(size, 64 * boundary), boundary):
        first = high + (-high) % level
        for x in range(first, min(high + boundary, first + 4 * level), level):
            low = x - high
            if low and base(x) - base(x - 1) != base(low) - base(low - 1):
                points = (low - 1, low, x - 1, x)
                condition = f"the steps into {low} and {x} differ, which are the same place in blocks of {boundary}"
                return Witness(points, tuple(base(p) for p in points), condition)
    return Witness((), (), f"blocks of {boundary} cut through the digit that turns at {level}")


def common_refinement(*layouts: Layout) -> tuple[int, ...]:
    """The coarsest shape, slowest first, under which every layout groups with at most one iter per dimension.

    Raises:
        LayoutError: the sizes differ.
        NoLayout: two boundaries do not divide each other.
        Unproved: some extents are symbolic, and two boundaries are not proved to divide each other.

    Example:
        >>> common_refinement(Layout(((4, 1), (6, 4))), Layout(((8, 0), (3, 1))))
        (4, 2, 3)
    """
    where = "common_refinement(layouts)"
    need_layouts(where, *layouts)
    inputs = {f"layout {k}": layout for k, layout in enumerate(layouts)}
    sizes = {layout.size for layout in layouts}
    if len(sizes) > 1 and not any(map(is_expr, sizes)):
        raise LayoutError(where, "the sizes differ", inputs=inputs, legal="layouts of one size")
    levels: list[Any] = [1]
    for layout in layouts:
        require_same(layout.size, layouts[0].size, where)
        level: Any = 1
        for it in reversed(normal_shard(layout)):
            level = simple(level * it.extent)
            if not any(same(level, have) for have in levels):
                levels.append(level)
    shape: list[int] = []
    for low, high in pairwise(ascending(levels)):
        found = quotient(high, low)
        if found is None and (is_expr(low) or is_expr(high)):
            condition = f"{low} and {high} nest"
            raise Unproved(where, f"{low} and {high} are not proved to nest", facts={"condition": condition})
        if found is None:
            raise refuse(where, Witness((low, high), (), f"the boundaries {low} and {high} do not nest"), inputs)
        shape.append(found)
    return tuple(reversed(shape))


# Tiles and direct sums.


def spans(layout: Layout) -> dict[str, int]:
    """``max - min + 1`` per axis that the layout's iters use; other axes have span 1.

    Source: Axe, lemma C.1.
    """
    need_layouts("span(layout)", layout)
    out: dict[str, int] = {}
    for it in chain(layout.shard, layout.replica):
        for axis, _ in it.stride.terms:
            if axis not in out:
                out[axis] = layout.span(axis)
    return out


def scale(value: Coord, factors: Mapping[str, int]) -> Coord:
    """The Hadamard product: each axis times its factor, 1 where none is given.

    Example:
        >>> print(scale(Coord.of({"a": 2, "b": 3}), {"a": 10}))
        20@a + 3@b
    """
    terms = tuple((axis, v * factors.get(axis, 1)) for axis, v in value.terms)
    return Coord(terms) if any(is_expr(v) for _, v in terms) else coord_of_terms(terms)


@asked("tile(a, shape_a, b, shape_b)")
def tile(a: Layout, shape_a: Shape, b: Layout, shape_b: Shape) -> Layout:
    """``f(x || y) = f_a(x) * span(f_b) + f_b(y)`` with coordinates interleaved (x0, y0, x1, y1, ..): b tiled by a.

    The strides, replicas and offset of the outer layout a are all scaled by b's spans. The result groups by the
    interleaved shape, and admits ``(shape_a[0] * shape_b[0], ..)``.

    Args:
        a: the outer layout, which places tiles.
        shape_a: a shape by which a groups.
        b: the inner layout, one tile.
        shape_b: a shape of the same rank by which b groups.

    Example:
        >>> a, b = Layout(((2, 3), (3, 1))), Layout(((8, 8), (8, 1)))
        >>> print(tile(a, (2, 3), b, (8, 8)))
        (2:192@m, 8:8@m, 3:64@m, 8:1@m)

    Source: Axe, section 3.3 and appendix C.
    """
    blocks_a, blocks_b = _both_blocks("tile(a, shape_a, b, shape_b)", a, shape_a, b, shape_b)
    factors = spans(b)
    shard: list[Iter] = []
    for mine, theirs in zip(blocks_a, blocks_b, strict=True):
        shard += [iter_of(it.extent, scale(it.stride, factors)) for it in mine]
        shard += theirs
    replica = tuple(iter_of(it.extent, scale(it.stride, factors)) for it in a.replica) + b.replica
    return layout_of(tuple(shard), replica, scale(a.offset, factors) + b.offset)


@asked("direct_sum(a, shape_a, b, shape_b)")
def direct_sum(a: Layout, shape_a: Shape, b: Layout, shape_b: Shape) -> Layout:
    """``f(x || y) = f_a(x) + f_b(y)`` with coordinates interleaved, as in `tile` but without scaling.

    Example:
        >>> a, b = Layout(((2, 8), (2, 2))), Layout(((2, 4), (2, 1)))
        >>> print(direct_sum(a, (2, 2), b, (2, 2)))
        (2:8@m, 2:4@m, 2:2@m, 2:1@m)

    Source: Axe, appendix F.
    """
    blocks_a, blocks_b = _both_blocks("direct_sum(a, shape_a, b, shape_b)", a, shape_a, b, shape_b)
    shard = tuple(chain.from_iterable(chain(mine, theirs) for mine, theirs in zip(blocks_a, blocks_b, strict=True)))
    return layout_of(shard, a.replica + b.replica, a.offset + b.offset)


def _both_blocks(where: str, a: Layout, shape_a: Shape, b: Layout, shape_b: Shape) -> tuple[Blocks, Blocks]:
    need_layouts(where, a, b)
    shape_a, shape_b = integers(shape_a, where, "extent"), integers(shape_b, where, "extent")
    if len(shape_a) != len(shape_b):
        raise LayoutError(
            where,
            f"the ranks {len(shape_a)} and {len(shape_b)} differ",
            inputs={"a": a, "shape_a": shape_a, "b": b, "shape_b": shape_b},
            legal="shapes of one rank",
        )
    return group(a, shape_a), group(b, shape_b)


@asked("tile_of(a, shape_a, b, shape_b)")
def tile_of(
    a: Layout,
    shape_a: Shape,
    b: Layout,
    shape_b: Shape,
    *,
    replicas: Replicas = "multiset",
) -> Layout:
    """The unique normal C with ``a = tile(C, shape_a / shape_b, b, shape_b)``, or the reason that there is none.

    Sound and complete: a must group by the interleaved shape; each inner block must be b's; each outer stride, the
    offset and the rest of the replicas must be multiples of b's spans.

    Args:
        a: the layout to take apart.
        shape_a: a shape that a admits; each extent a multiple of b's.
        b: the tile.
        shape_b: a shape by which b groups, of the same rank.
        replicas: whether equality counts replicas that collide.

    Raises:
        NotDivisible: an extent of shape_b does not divide that of shape_a.
        NoLayout: no C exists; the witness has the points of a that differ.
        Undecided: only for ``"set"``: the replicas that C needs were not found within the bound.

    Example:
        >>> print(tile_of(Layout(((9, 1),)), (9,), Layout(((3, 1),)), (3,)))
        (3:1@m)

    Source: Axe, appendix D; complete and sound where algorithm 3 is neither.
    """
    return _outer(a, shape_a, b, shape_b, spans(b), "tile_of(a, shape_a, b, shape_b)", replicas)


@asked("direct_sum_of(a, shape_a, b, shape_b)")
def direct_sum_of(a: Layout, shape_a: Shape, b: Layout, shape_b: Shape) -> Layout:
    """The unique normal C with ``a = direct_sum(C, shape_a / shape_b, b, shape_b)``, as multisets; else why not.

    Example:
        >>> print(direct_sum_of(Layout(((16, 1),)), (4, 4), Layout(((2, 4), (2, 1))), (2, 2)))
        (2:8@m, 2:2@m)

    Source: Axe, appendix F (recognition is our own).
    """
    return _outer(a, shape_a, b, shape_b, {}, "direct_sum_of(a, shape_a, b, shape_b)", "multiset")


def _outer(
    a: Layout,
    shape_a: Shape,
    b: Layout,
    shape_b: Shape,
    factors: dict[str, int],
    where: str,
    replicas: Replicas,
) -> Layout:
    """C from its parts: strides and offset divided by factors, replicas by the quotient of the products."""
    need_layouts(where, a, b)
    whole, inner = check_shape(shape_a, a.size, where, a), check_shape(shape_b, b.size, where, b)
    inputs = {"a": a, "shape_a": whole, "b": b, "shape_b": inner}
    if len(whole) != len(inner):
        raise LayoutError(where, f"the ranks {len(whole)} and {len(inner)} differ", inputs=inputs)
    if any(map(is_expr, (*whole, *inner))):
        counts = tuple(require_quotient(n, k, where) for n, k in zip(whole, inner, strict=True))
    elif any(n % k for n, k in zip(whole, inner, strict=True)):
        at = next(k for k, (n, t) in enumerate(zip(whole, inner, strict=True)) if n % t)
        condition = f"{inner[at]} divides {whole[at]}, extent {at}"
        raise NotDivisible(
            where,
            f"{inner} does not divide {whole}",
            inputs=inputs,
            legal="divisors, one per dimension",
            facts={"witness": Witness((at,), (whole[at],), condition)},
        )
    else:
        counts = tuple(n // k for n, k in zip(whole, inner, strict=True))
    shape = tuple(chain.from_iterable(zip(counts, inner, strict=True)))
    blocks = cut(normal_shard(a), shape, where)
    if not isinstance(blocks, tuple):
        raise refuse(where, _crossing(a, *blocks), inputs)
    weights = [prod(shape[k + 1 :]) for k in range(len(shape))]
    shard: list[Iter] = []
    for k, theirs in enumerate(group(b, inner)):
        outer, mine = blocks[2 * k], blocks[2 * k + 1]
        if mine != theirs and not _proved_equal(mine, theirs, where, inputs):
            raise refuse(where, _block_witness(a, mine, theirs, weights[2 * k + 1], k), inputs)
        weight = weights[2 * k] * prod(it.extent for it in outer)
        for it in outer:
            weight = weight // it.extent
            shard.append(iter_of(it.extent, _divided(it.stride, factors, where, inputs, weight, a)))
    (ra, shift_a), (rb, shift_b) = normal_replica(a.replica), normal_replica(b.replica)
    offset = _divided(a.offset + shift_a - b.offset - shift_b, factors, where, inputs, 0, a)
    replica = _replica_quotient(ra, rb, factors, where, inputs, replicas)
    return layout_of(merge_shard(shard), replica, offset)


def _proved_equal(mine: tuple[Iter, ...], theirs: tuple[Iter, ...], where: str, inputs: Mapping[str, object]) -> bool:
    """Whether the iters of two blocks are proved equal; False for numbers that are not, `Unproved` with symbols."""
    if not any(map(is_symbolic, (*mine, *theirs))):
        return False
    if not same_iters(mine, theirs):
        shown = " and ".join("(" + ", ".join(map(str, block)) + ")" for block in (mine, theirs))
        raise Unproved(where, f"{shown} are not proved equal", inputs=inputs, facts={"condition": f"{shown} are equal"})
    return True


def _block_witness(a: Layout, mine: tuple[Iter, ...], theirs: tuple[Iter, ...], weight: int, rank: int) -> Witness:
    left, right = layout_of(mine, (), ZERO), layout_of(theirs, (), ZERO)
    candidates = {1}
    for block in (mine, theirs):
        level = 1
        for it in reversed(block):
            candidates.update((level, level * (it.extent - 1)))
            level *= it.extent
    y = next((y for y in sorted(candidates) if left(y) != right(y)), 0)
    points = (0, y * weight)
    condition = f"inside dimension {rank} of the tile, b moves by {right(y)} from 0 to {y}"
    base = layout_of(a.shard, (), a.offset)
    return Witness(points, tuple(base(x) for x in points), condition)


def _divided(
    value: Coord, factors: Mapping[str, int], where: str, inputs: Mapping[str, object], x: int, a: Layout
) -> Coord:
    if any(is_expr(v) or is_expr(factors.get(axis, 1)) for axis, v in value.terms):
        return Coord(tuple((axis, require_quotient(v, factors.get(axis, 1), where)) for axis, v in value.terms))
    if any(v % factors.get(axis, 1) for axis, v in value.terms):
        base = layout_of(a.shard, (), a.offset)
        condition = f"C would move by {value}, not a multiple of b's span " + ", ".join(
            f"{w}@{axis}" for axis, w in sorted(factors.items())
        )
        raise refuse(where, Witness((0, x), (base(0), base(x)), condition), inputs)
    return coord_of_terms(tuple((axis, v // factors.get(axis, 1)) for axis, v in value.terms))


def _replica_quotient(
    whole: tuple[Iter, ...],
    part: tuple[Iter, ...],
    factors: Mapping[str, int],
    where: str,
    inputs: Mapping[str, object],
    replicas: Replicas,
) -> tuple[Iter, ...]:
    """The normal replicas that, scaled by factors and added to part, give whole."""
    if any(map(is_symbolic, (*whole, *part))) or (whole and any(map(is_expr, factors.values()))):
        return _replicas_left(whole, part, factors, where, inputs)
    _, copies, ratio = replica_ratio(whole)
    _, fewer, inner = replica_ratio(part)
    out: list[Iter] | None = [] if copies % fewer == 0 else None
    if out is not None and copies > fewer:
        out.append(iter_of(copies // fewer, ZERO))
    for direction in {**ratio, **inner}:
        exponents = Counter(ratio.get(direction, {}))
        exponents.subtract(inner.get(direction, {}))
        pairs = match_ratio({n: k for n, k in exponents.items() if k}, _multiples(direction, factors))
        if pairs is None or out is None:
            out = None
            break
        for m, n in pairs:
            stride = tuple((axis, m * v // factors.get(axis, 1)) for axis, v in direction)
            out.append(iter_of(n // m, coord_of_terms(stride)))
    if out is not None:
        return normal_replica(out)[0]
    if replicas == "set":
        return set_quotient(whole, part, factors, where, inputs)
    shown = " ".join(map(str, whole)) or "none"
    condition = f"the replicas {shown} are not those of b plus a multiple of its span"
    raise refuse(where, Witness((), (), condition), inputs)


def _replicas_left(
    whole: tuple[Iter, ...],
    part: tuple[Iter, ...],
    factors: Mapping[str, int],
    where: str,
    inputs: Mapping[str, object],
) -> tuple[Iter, ...]:
    """The replicas of the whole that are none of the part's, one by one, divided by factors; each step proved."""
    rest = list(whole)
    for it in part:
        found = next((k for k, have in enumerate(rest) if same_iters([have], [it])), None)
        if found is None:
            condition = f"{it} is a replica of a"
            raise Unproved(where, f"{condition}: not proved", inputs=inputs, facts={"condition": condition})
        del rest[found]
    divided = (
        Coord(tuple((axis, require_quotient(v, factors.get(axis, 1), where)) for axis, v in it.stride.terms))
        for it in rest
    )
    return tuple(iter_of(it.extent, stride) for it, stride in zip(rest, divided, strict=True))


def _multiples(direction: Terms, factors: Mapping[str, int]) -> Callable[[int, int], bool]:
    return lambda m, _n: all(m * v % factors.get(axis, 1) == 0 for axis, v in direction)
