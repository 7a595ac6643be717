"""Tiles and partitions as CuTe's kernels take them: whose tile, whose elements, and shapes put together by hand.

A layout has no pointer, so what CuTe answers with a tensor is a pair here: the layout, and the offset where it begins.
"""

from __future__ import annotations

from typing import Any

from tileweave.errors import Incongruent, LayoutError, NotDivisible, short_text
from tileweave.layout.core.checks import Witness, asked
from tileweave.layout.core.symbolic import is_expr, quotient, require_quotient
from tileweave.layout.notation.cute_algebra import composition, right_inverse
from tileweave.layout.notation.cute_tiling import raked_product, zipped_divide
from tileweave.layout.notation.cute_tuples import Shape, _, idx2crd, make_shape, positive, rank, size
from tileweave.layout.notation.cute_value import CuteLayout, as_layout, concat, new_layout, slice_with_offset

MOST_MODES = 1 << 10
"""The most modes that `append` and `prepend` add at once."""


def product_each(shape: Any) -> Shape:
    """The size of each top-level mode of a shape or a layout.

    Example:
        >>> product_each((2, (3, 4))), product_each(5)
        ((2, 12), 5)

    Source: CuTe.
    """
    tree = make_shape(shape, "product_each(shape)")
    return tuple(map(size, tree)) if isinstance(tree, tuple) else tree


def shape_div(a: Any, b: Any) -> Shape:
    """The shape a with b coordinates taken out of it, first mode fastest: ``size(result) = size(a) / size(b)``.

    Where an extent of a divides what is left of b, it shrinks to 1 and the rest of b goes on.

    Args:
        a: a shape.
        b: an integer, or a shape with one entry for each mode of a.

    Raises:
        NotDivisible: of an extent and what is left of b neither divides the other.

    Example:
        >>> shape_div((4, 6), 8), shape_div((4, 6), (2, 3)), shape_div(12, 3)
        ((1, 3), (2, 2), 4)

    Source: CuTe.
    """
    where = "shape_div(a, b)"
    left, right = make_shape(a, where), make_shape(b, where)

    def divide(part: Shape, by: Shape) -> tuple[Shape, Shape]:
        """The quotient, and what is left of the divisor."""
        if isinstance(part, tuple) and isinstance(by, tuple):
            if len(part) != len(by):
                raise Incongruent(where, f"ranks {len(part)} and {len(by)} differ", inputs={"a": a, "b": b})
            return tuple(divide(x, y)[0] for x, y in zip(part, by, strict=True)), 1
        if isinstance(part, tuple):
            out = []
            for x in part:
                found, by = divide(x, by)
                out.append(found)
            return tuple(out), by
        need = size(by)
        if (found := quotient(part, need)) is not None:
            return found, 1
        if (rest := quotient(need, part)) is not None:
            return 1, rest
        if is_expr(part) or is_expr(need):
            return require_quotient(part, need, where), 1
        raise NotDivisible(
            where,
            f"neither of {part} and {need} divides the other",
            inputs={"a": a, "b": b},
            legal=f"extents that {need} divides",
            facts={"witness": Witness((part,), (need,), f"{need} | {part}")},
        )

    return divide(left, right)[0]


def append(a: Any, b: Any, up_to_rank: int | None = None) -> Any:
    """A layout or shape with one more mode behind; with `up_to_rank`, as many as it takes, none if there are enough.

    Example:
        >>> print(append(CuteLayout((2, 3), (1, 2)), CuteLayout(4, 6)), append((2, 3), 1, up_to_rank=4))
        (2,3,4):(1,2,6) (2, 3, 1, 1)

    Source: CuTe.
    """
    return _extended(a, b, up_to_rank, "append(a, b, up_to_rank)", True)


def prepend(a: Any, b: Any, up_to_rank: int | None = None) -> Any:
    """As `append`, in front.

    Example:
        >>> print(prepend(CuteLayout((2, 3), (1, 2)), CuteLayout(4, 6)))
        (4,2,3):(6,1,2)

    Source: CuTe.
    """
    return _extended(a, b, up_to_rank, "prepend(a, b, up_to_rank)", False)


def _extended(a: Any, b: Any, up_to_rank: int | None, where: str, behind: bool) -> Any:
    count = 1 if up_to_rank is None else max(positive(up_to_rank, where, "up_to_rank") - rank(a), 0)
    if count > MOST_MODES:
        raise LayoutError(where, f"{short_text(up_to_rank)} modes are too many", legal=f"at most {MOST_MODES} more")
    if isinstance(a, CuteLayout):
        more = [as_layout(b, where)] * count
        return concat([*a, *more] if behind else [*more, *a], keep=True)
    shape, extra = make_shape(a, where), make_shape(b, where)
    modes = shape if isinstance(shape, tuple) else (shape,)
    return (*modes, *[extra] * count) if behind else (*[extra] * count, *modes)


@asked("domain_offset(coord, layout)")
def domain_offset(coord: Any, layout: CuteLayout) -> tuple[CuteLayout, Any]:
    """The layout and the offset of a coordinate: ``offset + layout(c)`` is the layout read from that coordinate on.

    Example:
        >>> shifted, offset = domain_offset((1, 2), CuteLayout((4, 8), (8, 1)))
        >>> print(shifted, offset)
        (4,8):(8,1) 10

    Source: CuTe.
    """
    layout = as_layout(layout, "domain_offset(coord, layout)")
    return layout, layout(coord)


@asked("local_tile(layout, tiler, coord, proj)")
def local_tile(layout: CuteLayout, tiler: Any, coord: Any, proj: Any = None) -> tuple[CuteLayout, Any]:
    """The tile at a coordinate of the grid of tiles, and its offset; `_` in the coordinate keeps that mode of the grid.

    Args:
        layout: any layout.
        tiler: a tiler for its leading modes, as `zipped_divide` takes it.
        coord: which tile.
        proj: one entry for each entry of tiler and coord; those at ``None`` (CuTe's ``X``) are left out of both.

    Example:
        >>> tile, offset = local_tile(CuteLayout((8, 12), (12, 1)), (4, 3), (1, 2))
        >>> print(tile, offset)
        (4,3):(12,1) 54
        >>> print(local_tile(CuteLayout((8, 12), (12, 1)), (4, 3), (1, _))[0])
        ((4,3),4):((12,1),3)

    Source: CuTe.
    """
    where = "local_tile(layout, tiler, coord, proj)"
    if proj is not None:
        kept = [k for k, entry in enumerate(proj) if entry is not None]
        if not isinstance(tiler, tuple) or not isinstance(coord, tuple) or not len(tiler) == len(coord) == len(proj):
            raise Incongruent(where, "proj needs one entry for each of tiler and coord", inputs={"proj": proj})
        tiler, coord = tuple(tiler[k] for k in kept), tuple(coord[k] for k in kept)
    tiles = zipped_divide(as_layout(layout, where), tiler)
    tile, grid = tiles
    if isinstance(coord, tuple) and isinstance(grid.shape, tuple) and len(coord) < len(grid.shape):
        coord = (*coord, *[_] * (len(grid.shape) - len(coord)))
    rest, offset = slice_with_offset(grid, coord)
    if rest.shape == ():
        return tile, offset
    return concat([tile, rest], keep=True), offset


@asked("local_partition(layout, threads, index)")
def local_partition(layout: CuteLayout, threads: CuteLayout, index: Any) -> tuple[CuteLayout, Any]:
    """The elements of one thread, where threads are dealt over the layout as `threads` arranges them; and the offset.

    Args:
        layout: any layout.
        threads: the arrangement of threads; its mode sizes divide those of the layout.
        index: the thread's value in that arrangement.

    Example:
        >>> mine, offset = local_partition(CuteLayout((8, 12), (12, 1)), CuteLayout((2, 3), (3, 1)), 4)
        >>> print(mine, offset)
        (4,4):(24,3) 13

    Source: CuTe.
    """
    where = "local_partition(layout, threads, index)"
    threads = as_layout(threads, where)
    tiler = product_each(threads.shape)
    inverse = right_inverse(threads)
    if inverse.size < threads.size:
        raise LayoutError(where, f"{threads} is no numbering of threads", legal="a layout onto 0..size - 1")
    coord = idx2crd(inverse(index), tiler)
    inside, rest = zipped_divide(as_layout(layout, where), tiler)
    _one, offset = slice_with_offset(inside, coord)
    return rest, offset


@asked("make_layout_tv(threads, values)")
def make_layout_tv(threads: CuteLayout, values: CuteLayout) -> tuple[Shape, CuteLayout]:
    """The tile that threads and their values cover, and the layout (thread, value) -> index in that tile.

    Args:
        threads: the arrangement of threads over the tile.
        values: the arrangement of each thread's values, which are neighbours.

    Example:
        >>> tiler, tv = make_layout_tv(CuteLayout((4, 8), (8, 1)), CuteLayout((2, 2), (2, 1)))
        >>> print(tiler, tv)
        (8, 16) ((8,4),(2,2)):((16,2),(8,1))

    Source: CuTe.
    """
    where = "make_layout_tv(threads, values)"
    threads, values = as_layout(threads, where), as_layout(values, where)
    tile = raked_product(threads, values)
    inverse = right_inverse(tile)
    if inverse.size < tile.size:
        raise LayoutError(where, f"{tile} is no numbering", inputs={"threads": threads, "values": values})
    split = new_layout((threads.size, values.size), (1, threads.size))
    return product_each(tile.shape), composition(inverse, split)
