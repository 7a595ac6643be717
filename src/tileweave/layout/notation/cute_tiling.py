"""Divide, product, tile_to_shape and recast: how CuTe cuts layouts into tiles and builds them from tiles.

The divides are compositions with a tile and its complement, so they are exact in the same sense. Where CuTe rounds
up (a tile that does not divide), `cover_divide` and `cover_tile_to_shape` do so under their own names and return
the predicate as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tileweave.errors import Incongruent, LayoutError, NoLayout, NotDivisible
from tileweave.layout.core.checks import Witness, asked
from tileweave.layout.core.composition import compose_rows
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.inverse.complement import complement_rows
from tileweave.layout.core.inverse.divide import composition_refused, divide_rows, free_spots
from tileweave.layout.core.rows import Row
from tileweave.layout.core.rows import coalesce as coalesce_rows
from tileweave.layout.core.symbolic import is_expr, require_quotient, same, simple
from tileweave.layout.notation.cute_algebra import Tiler, by_mode, from_modes, integral, refined
from tileweave.layout.notation.cute_tuples import (
    E,
    Shape,
    Underscore,
    check_depth,
    congruent,
    flat_tuple,
    make_shape,
    rank,
    size,
    tuple_text,
    weakly_congruent,
    zip_shape,
)
from tileweave.layout.notation.cute_value import CuteLayout, as_layout, concat, new_layout, through_swizzles


def _is_by_mode(tiler: Any) -> bool:
    return isinstance(tiler, tuple | list)


def _unzip(layout: CuteLayout, tiler: Any) -> CuteLayout:
    """``((t0, r0), (t1, r1), .., more)`` -> ``((t0, t1, ..), (r0, r1, .., more))``, down the nesting of the tiler."""
    if not _is_by_mode(tiler):
        return layout
    firsts, rests = [], []
    modes = list(layout)
    for mode, entry in zip(modes, tiler, strict=False):
        if isinstance(entry, Underscore):
            rests.append(mode)
            continue
        first, rest = _unzip(mode, entry)
        firsts.append(first)
        rests.append(rest)
    rests += modes[len(tiler) :]
    return concat([concat(firsts, keep=True), concat(rests, keep=True)])


# --- divide


@through_swizzles
def logical_divide(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """The layout read tile by tile: mode 0 walks the tile, mode 1 the tiles: ``layout o (tiler, complement(tiler))``.

    Args:
        layout: any layout.
        tiler: a layout B (for `layout` as a whole), an int n for n:1, or a tuple (each leading mode by its entry).

    Raises:
        NotDivisible: the tile's period does not divide the size; `cover_divide` pads.
        NoLayout: the tile has no complement, or a composition with it is no layout (witness).

    Example:
        >>> print(logical_divide(CuteLayout((4, 2, 3), (2, 1, 8)), CuteLayout(4, 2)))
        ((2,2),(2,3)):((4,1),(2,8))

    Source: CuTe.
    """
    where = "logical_divide(layout, tiler)"
    if _is_by_mode(tiler):
        return by_mode(layout, tuple(tiler), where, logical_divide)  # type: ignore[no-any-return]
    if isinstance(tiler, Underscore):
        return layout
    tile = integral(tiler, where)
    return _divided(layout, tile, layout.size, where)[0]


def _divided(layout: CuteLayout, tile: CuteLayout, total: Any, where: str) -> tuple[CuteLayout, list[list[Row]]]:
    """The layout behind the tile and its complement in [0, total), and the rows of both that it refines.

    Raises:
        NotDivisible: the tile has a complement, but its period does not divide the total.
    """
    inputs = {"layout": layout, "tiler": tile}
    try:
        pieces, _start = divide_rows(layout.flat, tile.flat, tile.flat, total, layout.zero, where, inputs)
    except NoLayout as error:
        witness = error.facts.get("witness")
        if witness is None or not witness.condition.endswith(f"| {total}"):
            raise
        period = tile.size * prod(n for n, _d in complement_rows(tile.flat, None, where, inputs))
        raise NotDivisible(
            where,
            f"{period}, the period of the tile, does not divide the size {total}",
            inputs=inputs,
            legal=f"a size that {period} divides, or cover_divide, which pads to {-(-total // period) * period}",
            facts=error.facts,
        ) from None
    count = len(tile.flat)
    inner, rest = pieces[:count], pieces[count:] or [[(1, layout.zero)]]
    outer = refined(tuple([1] * len(rest)), rest) if len(rest) > 1 else from_modes(rest[0])
    return concat([refined(tile.shape, inner), outer], keep=True), pieces


@through_swizzles
def zipped_divide(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`logical_divide` with all tile modes gathered in mode 0 and all rest modes in mode 1.

    Example:
        >>> print(zipped_divide(CuteLayout((4, 6), (1, 4)), (2, 3)))
        ((2,3),(2,2)):((1,4),(2,12))

    Source: CuTe.
    """
    if isinstance(tiler, Underscore):
        raise LayoutError(
            "zipped_divide(layout, tiler)", "the tiler _ makes no tiles", legal="an int, a layout, a tuple"
        )
    return _unzip(logical_divide(layout, tiler), tiler)


@through_swizzles
def tiled_divide(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`zipped_divide` with the rest modes unpacked: ``((tile), rest0, rest1, ..)``."""
    tile, rest = zipped_divide(layout, tiler)
    return concat([tile, *rest], keep=True)


@through_swizzles
def flat_divide(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`zipped_divide` with both unpacked: ``(tile0, tile1, .., rest0, rest1, ..)``."""
    tile, rest = zipped_divide(layout, tiler)
    return concat([*tile, *rest], keep=True)


@dataclass(frozen=True, slots=True)
class Cover:
    """A layout over a padded domain, with the predicate that tells which of its coordinates are real.

    Args:
        layout: where the elements lie; values at padding are meaningless.
        index: congruent with `layout`: the coordinate of each point in the original layout, one axis ``E(k)`` for
            each mode k (the identity tensor of CuTe kernels).
        limits: the size of each mode of the original layout.

    Source: own; CuTe's over-approximating divides with an identity tensor beside them.
    """

    layout: CuteLayout
    index: CuteLayout
    limits: tuple[int, ...]

    def __post_init__(self) -> None:
        parts = isinstance(self.layout, CuteLayout) and isinstance(self.index, CuteLayout)
        if not parts or not congruent(self.layout, self.index) or not isinstance(self.limits, tuple):
            raise Incongruent(
                "Cover(layout, index, limits)",
                "the parts do not fit",
                inputs={"layout": self.layout, "index": self.index, "limits": self.limits},
                legal="congruent layouts, a tuple of limits",
            )

    def valid(self, *crd: Any) -> Any:
        """Whether the coordinate is an element of the original layout; a condition, where that is not decided."""
        point = self.index(*crd)
        inside: Any = True
        for k, limit in enumerate(self.limits):
            inside = (point[E(k).axes[0]] < limit) & inside
        found = simple(inside)
        return bool(found) if not is_expr(found) or found.op == "true" else found

    @property
    def always_valid(self) -> bool:
        """Whether nothing was padded, so that the predicate may be dropped."""
        return same(self.layout.size, prod(self.limits))


@asked("cover_divide(layout, tiler)")
def cover_divide(layout: CuteLayout, tiler: Tiler) -> Cover:
    """`logical_divide` of the layout padded to whole tiles, with the predicate for the padding.

    Args:
        layout: any layout.
        tiler: as for `logical_divide`; with a tuple each mode is padded by itself.

    Returns:
        a `Cover`; its `layout` is `logical_divide`'s where the tiles divide.

    Example:
        >>> cover = cover_divide(CuteLayout((5, 4), (1, 5)), (2, 4))
        >>> print(cover.layout, cover.valid((0, 2), (0, 0)), cover.valid((1, 2), (0, 0)))
        ((2,3),(4,1)):((1,2),(5,0)) True False
    """
    where = "cover_divide(layout, tiler)"
    layout = as_layout(layout, where)
    if not _is_by_mode(tiler):
        padded, index = _cover_mode(layout, tiler, 0, where)
        return Cover(padded, index, (layout.size,))
    if len(tiler) > rank(layout):
        raise Incongruent(where, f"a tiler of {len(tiler)} entries for {rank(layout)} modes", inputs={"layout": layout})
    layouts, indices = [], []
    for k, mode in enumerate(layout):
        entry = tiler[k] if k < len(tiler) else Underscore()
        padded, index = _cover_mode(mode, entry, k, where)
        layouts.append(padded)
        indices.append(index)
    return Cover(concat(layouts, keep=True), concat(indices, keep=True), tuple(mode.size for mode in layout))


def _cover_mode(mode: CuteLayout, tiler: Any, axis: int, where: str) -> tuple[CuteLayout, CuteLayout]:
    """The padded divide of one mode, and the index of its points along ``E(axis)``."""
    if not isinstance(tiler, Underscore):
        if _is_by_mode(tiler):
            raise LayoutError(
                where,
                "a nested tiler pads each leaf mode by itself",
                inputs={"mode": mode, "tiler": tiler},
                legal="a flat tuple of ints or layouts; flatten or group the layout first",
            )
        tile = integral(tiler, where)
        gaps = complement_rows(tile.flat, None, where, {"mode": mode, "tiler": tiler})
        period = tile.size * prod(n for n, _d in gaps)
        total = simple((mode.size + period - 1) // period * period)
        padded, pieces = _divided(mode, tile, total, where)
        rest = complement_rows(tile.flat, total, where, {"mode": mode, "tiler": tiler})
        steps = []  # the index along the mode, refined as the padded layout is
        for row, (_n, step) in zip(pieces, [*tile.flat, *rest], strict=True):
            for n, _d in row:
                steps.append(step * E(axis))
                step = simple(step * n)
        steps += [Coord()] * (len(padded.flat) - len(steps))
        return padded, new_layout(padded.shape, zip_shape(padded.shape, iter(steps)))
    run, steps = 1, []
    for n in flat_tuple(mode.shape):
        steps.append(run * E(axis))
        run = simple(run * n)
    return mode, new_layout(mode.shape, zip_shape(mode.shape, iter(steps)))


# --- product


def logical_product(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """Copies of a layout, arranged by another: mode 1 places copy j of mode 0 at the ``tiler(j)``-th free spot.

    The free spots are the values of the complement of `layout`, in ascending order and without bound. A gap that holds
    no whole number of runs (a padded block) takes as many as fit, so that no two copies overlap. Modes of stride
    zero take up no room.

    Args:
        layout: the block.
        tiler: a layout B of block numbers, an int n for n:1, or a tuple (mode by mode).

    Raises:
        NoLayout: the modes of the block interlock or run backwards, or the spots taken by B form no layout.

    Example:
        >>> print(logical_product(CuteLayout((2, 2), (4, 1)), CuteLayout(6, 1)))
        ((2,2),(2,3)):((4,1),(2,8))

    Source: CuTe.
    """
    where = "logical_product(layout, tiler)"
    block = as_layout(layout, where)
    if _is_by_mode(tiler):
        return by_mode(block, tuple(tiler), where, logical_product)  # type: ignore[no-any-return]
    if isinstance(tiler, Underscore):
        return block
    tile = as_layout(tiler, where)
    block, tile = integral(block, where), integral(tile, where)
    if all(n == 1 or d == 0 for n, d in tile.flat):  # one copy, in its place
        return concat([block, new_layout(tile.shape, zip_shape(tile.shape, iter([0] * len(tile.flat))))], keep=True)
    inputs = {"layout": block, "tiler": tile}
    found = compose_rows(free_spots(coalesce_rows(block.flat), where, inputs), tile.flat, 0, 0, where, inputs)
    if isinstance(found, Witness):
        raise composition_refused(found, where, inputs)
    return concat([block, refined(tile.shape, found[0])], keep=True)


@asked("zipped_product(layout, tiler)")
def zipped_product(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`logical_product` with the block modes gathered in mode 0 and the copy modes in mode 1."""
    if isinstance(tiler, Underscore):
        raise LayoutError(
            "zipped_product(layout, tiler)", "the tiler _ makes no copies", legal="an int, a layout, a tuple"
        )
    return _unzip(logical_product(layout, tiler), tiler)


@asked("tiled_product(layout, tiler)")
def tiled_product(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`zipped_product` with the copy modes unpacked."""
    block, rest = zipped_product(layout, tiler)
    return concat([block, *rest], keep=True)


@asked("flat_product(layout, tiler)")
def flat_product(layout: CuteLayout, tiler: Tiler) -> CuteLayout:
    """`zipped_product` with both parts unpacked."""
    block, rest = zipped_product(layout, tiler)
    return concat([*block, *rest], keep=True)


def _paired_product(layout: CuteLayout, tiler: CuteLayout, blocked: bool, where: str) -> CuteLayout:
    block, tile = as_layout(layout, where), as_layout(tiler, where)
    modes = max(rank(block), rank(tile))
    one = new_layout(1, 0)
    parts = [concat([*part, *[one] * (modes - rank(part))], keep=True) for part in (block, tile)]
    product = logical_product(parts[0], parts[1])
    pairs = zip(product[0], product[1], strict=True) if blocked else zip(product[1], product[0], strict=True)
    return concat([concat(list(pair)) for pair in pairs], keep=True)


@asked("blocked_product(layout, tiler)")
def blocked_product(layout: CuteLayout, tiler: CuteLayout) -> CuteLayout:
    """`logical_product` with mode k of the block and of the tiler joined, the block faster: whole blocks side by side.

    Example:
        >>> print(blocked_product(CuteLayout((2, 5), (5, 1)), CuteLayout((3, 4), (1, 3))))
        ((2,3),(5,4)):((5,10),(1,30))

    Source: CuTe.
    """
    return _paired_product(layout, tiler, True, "blocked_product(layout, tiler)")


@asked("raked_product(layout, tiler)")
def raked_product(layout: CuteLayout, tiler: CuteLayout) -> CuteLayout:
    """`logical_product` with mode k of the block and of the tiler joined, the tiler faster: blocks interleaved.

    Example:
        >>> print(raked_product(CuteLayout((2, 5), (5, 1)), CuteLayout((3, 4), (1, 3))))
        ((3,2),(4,5)):((10,5),(30,1))

    Source: CuTe.
    """
    return _paired_product(layout, tiler, False, "raked_product(layout, tiler)")


# --- tile to shape


def make_ordered_layout(shape: Any, order: Any) -> CuteLayout:
    """The compact layout of a shape whose modes get their strides in the order given: the least number is fastest.

    Args:
        shape: any shape.
        order: an integer for each mode (a nested mode may share one: first leaf fastest within it), all congruent or
            coarser than the shape. Equal numbers go first mode fastest.

    Raises:
        Incongruent: the order does not fit the shape.

    Example:
        >>> print(make_ordered_layout((2, (3, 4)), (1, 0)), make_ordered_layout((2, 3, 4), (2, 0, 1)))
        (2,(3,4)):(12,(1,3)) (2,3,4):(12,1,3)

    Source: CuTe.
    """
    where = "make_ordered_layout(shape, order)"
    shape = make_shape(shape, where)
    keys = _spread(order, shape, where)
    extents = flat_tuple(shape)
    strides: list[int] = [0] * len(extents)
    run = 1
    for k in sorted(range(len(extents)), key=lambda k: keys[k]):
        strides[k] = run
        run = simple(run * extents[k])
    return new_layout(shape, zip_shape(shape, iter(strides)))


def _spread(order: Any, shape: Shape, where: str) -> list[Any]:
    """One key for each leaf of the shape."""
    check_depth(order, where)
    if any(type(key) is not int for key in flat_tuple(order)):
        raise LayoutError(where, f"order {order!r} holds more than integers", legal="an integer for each mode")
    if not weakly_congruent(order, shape):
        raise Incongruent(where, f"order {order!r} does not fit", inputs={"shape": tuple_text(shape)})
    if isinstance(order, tuple) and isinstance(shape, tuple):
        return [key for o, s in zip(order, shape, strict=True) for key in _spread(o, s, where)]
    return [order] * len(flat_tuple(shape))


@through_swizzles
def tile_to_shape(block: CuteLayout, shape: Any, order: Any = None) -> CuteLayout:
    """The block repeated until it fills the shape: mode k runs through the block's mode k, then from block to block.

    Args:
        block: a layout whose mode sizes divide those of the shape.
        shape: the shape to fill; its top-level modes are taken by their sizes.
        order: as in `make_ordered_layout`, the order of the blocks; left out, first mode fastest.

    Raises:
        NotDivisible: a mode of the block does not divide; `cover_tile_to_shape` pads.

    Example:
        >>> print(tile_to_shape(CuteLayout((2, 2), (1, 2)), (4, 6), (1, 0)))
        ((2,2),(2,3)):((1,12),(2,4))

    Source: CuTe.
    """
    where = "tile_to_shape(block, shape, order)"
    targets, blocks = _targets(block, shape, where)
    for k, (target, part) in enumerate(zip(targets, blocks, strict=True)):
        if is_expr(target) or is_expr(part):
            require_quotient(target, part, where)
        elif target % part:
            raise NotDivisible(
                where,
                f"{part} does not divide extent {target} of mode {k}",
                inputs={"block": block},
                legal=f"an extent that {part} divides; cover_tile_to_shape pads to {-(-target // part) * part}",
                facts={"witness": Witness((k,), (target,), f"{part} | {target}")},
            )
    return _fill(block, targets, blocks, order)


@asked("cover_tile_to_shape(block, shape, order)")
def cover_tile_to_shape(block: CuteLayout, shape: Any, order: Any = None) -> Cover:
    """`tile_to_shape` for the shape padded to whole blocks, with the predicate for the padding.

    Example:
        >>> cover = cover_tile_to_shape(CuteLayout((2, 2), (1, 2)), (3, 2))
        >>> print(cover.layout, [cover.valid(i, 1) for i in range(4)])
        ((2,2),(2,1)):((1,4),(2,0)) [True, True, True, False]
    """
    where = "cover_tile_to_shape(block, shape, order)"
    block = as_layout(block, where)
    targets, blocks = _targets(block, shape, where)
    padded = tuple(simple((target + part - 1) // part * part) for target, part in zip(targets, blocks, strict=True))
    layout = _fill(block, padded, blocks, order)
    steps = []
    for k, mode in enumerate(layout):
        run = 1
        for n, _d in mode.flat:
            steps.append(run * E(k))
            run = simple(run * n)
    return Cover(layout, new_layout(layout.shape, zip_shape(layout.shape, iter(steps))), targets)


def _targets(block: CuteLayout, shape: Any, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = make_shape(shape, where)
    targets = tuple(size(s) for s in shape) if isinstance(shape, tuple) else (size(shape),)
    if rank(block) > len(targets):
        raise Incongruent(where, f"a block of {rank(block)} modes for {len(targets)}", inputs={"block": block})
    return targets, tuple(mode.size for mode in block) + (1,) * (len(targets) - rank(block))


def _fill(block: CuteLayout, targets: Sequence[int], blocks: Sequence[int], order: Any) -> CuteLayout:
    counts = tuple(simple(target // part) for target, part in zip(targets, blocks, strict=True))
    grid = make_ordered_layout(counts, tuple(range(len(counts))) if order is None else order)
    return blocked_product(concat(list(block), keep=True), grid)
