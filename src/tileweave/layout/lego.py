"""LEGO's notation: bijective layouts without strides, **row-major** (the last dimension is fastest).

The public names for LEGO users: ``from tileweave.layout import lego``. The values live in `lego_value`, the
ready-made bijections in `lego_bijections`; here are the sugar (Row, Col, TileBy), tiles that do not divide, and the
conversions to and from the core.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided, Unproved
from tileweave.index import Expr, proved
from tileweave.layout.core.checks import need_numbers, no_layout
from tileweave.layout.core.composition import compose
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord
from tileweave.layout.core.exact import normalize, recover
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.core.symbolic import require_quotient
from tileweave.layout.notation.lego_bijections import (
    antidiagonal,
    bricks,
    grouped,
    hilbert,
    morton,
    permutation,
    reversal,
    xor_swizzle,
)
from tileweave.layout.notation.lego_numbers import Dim, check_index, choose, make_dims, numbers, product_of, proved_zero
from tileweave.layout.notation.lego_numbers import flat_index as row_major
from tileweave.layout.notation.lego_numbers import tuple_index as digits_of
from tileweave.layout.notation.lego_slices import Slice, has_slices, sliced
from tileweave.layout.notation.lego_value import CHECK_BOUND, Chain, GenP, GroupBy, OrderBy, Piece, RegP, short_order
from tileweave.layout.template import Accessor, Filled, Template, accessor, template

__all__ = [
    "CHECK_BOUND",
    "Accessor",
    "Chain",
    "Col",
    "Filled",
    "GenP",
    "GroupBy",
    "OrderBy",
    "PartialTiles",
    "RegP",
    "Row",
    "Slice",
    "Template",
    "TileBy",
    "TileOrderBy",
    "accessor",
    "antidiagonal",
    "bricks",
    "choose",
    "flat_index",
    "from_core",
    "grouped",
    "hilbert",
    "morton",
    "permutation",
    "reversal",
    "template",
    "to_core",
    "tuple_index",
    "xor_swizzle",
]


def Row(*dims: Any) -> RegP:
    """The row-major piece: the identity permutation; the last dimension is fastest.

    Example:
        >>> Row(2, 3).apply(1, 2)
        5
    """
    return RegP(tuple(dims), tuple(range(1, len(dims) + 1)))


def Col(*dims: Any) -> RegP:
    """The column-major piece: dimensions reversed; the first one is fastest.

    Example:
        >>> Col(2, 3).apply(1, 0), Col(2, 3).apply(0, 1)
        (1, 2)
    """
    return RegP(tuple(dims), tuple(range(len(dims), 0, -1)))


def TileBy(*levels: Any) -> GroupBy:
    """A row-major space indexed by tiles, outermost level first (see `Chain.TileBy`).

    Example:
        >>> tiles = TileBy((2, 2), (3, 3))
        >>> tiles[1, 0, 0, 2], tiles.inv(20)
        (20, (1, 0, 0, 2))

    Source: LEGO, section 3.2, equation of TileBy.
    """
    return Chain().TileBy(*levels)


def TileOrderBy(*pieces: Piece) -> Chain:
    """A reordering of a tiled space, piece k at level k, outermost first (see `Chain.TileOrderBy`).

    Example:
        >>> layout = TileOrderBy(Col(2, 2), Row(3, 3)).GroupBy((6, 6))
        >>> layout[4, 2], layout[0, 3]
        (14, 18)

    Source: LEGO, section 3.2.
    """
    return Chain().TileOrderBy(*pieces)


def flat_index(index: Any, dims: Any) -> Any:
    """The row-major flat number of a tuple index, which may lie outside the shape: the last dimension is fastest.

    Args:
        index: one integer, integer array or index expression per dimension.
        dims: the shape.

    Example:
        >>> flat_index((1, 2), (3, 4))
        6
    """
    where = "flat_index(index, dims)"
    shape = make_dims(dims, where)
    items = index if isinstance(index, tuple | list) else (index,)
    if len(items) != len(shape):
        raise Incongruent(where, f"{len(items)} coordinates for {len(shape)} dimensions", inputs={"dims": shape})
    return row_major(numbers([_number(i, where) for i in items], shape), shape)


def tuple_index(flat: Any, dims: Any) -> tuple[Any, ...]:
    """The tuple index of a row-major flat number, whose first entry may lie outside; the inverse of `flat_index`.

    Example:
        >>> tuple_index(6, (3, 4))
        (1, 2)
    """
    where = "tuple_index(flat, dims)"
    shape = make_dims(dims, where)
    return digits_of(numbers([_number(flat, where)], shape)[0], shape)


def _number(value: Any, where: str) -> Any:
    known = isinstance(value, int | np.integer | Expr) or (isinstance(value, np.ndarray) and value.dtype.kind in "iu")
    if not known:
        raise LayoutError(where, f"{value!r} is no integer", legal="integers, integer arrays, index expressions")
    return value


# --- tiles that do not divide


@dataclass(frozen=True, slots=True)
class PartialTiles:
    """A space cut into tiles that need not divide it: the grid is rounded up, the strides stay those of the space.

    An index is ``(grid.., tile.., ..)``: one entry per dimension for the grid and for each level of tiles.

    Args:
        dims: the real shape, integers or index expressions; row-major unless `chain` reorders it.
        tiles: the extents of each level of tiles, outermost first.
        chain: a reordering of the real space.

    Example:
        >>> ragged = PartialTiles((100, 100), (32, 32))
        >>> ragged.grid, ragged.apply(2, 2, 31, 31), ragged.mask(2, 2, 31, 31), ragged.mask(3, 0, 4, 0)
        ((4, 4), 9595, True, False)

    Source: LEGO, section 3.3 (padding), with the real strides and the mask (own).
    """

    dims: tuple[Dim, ...]
    tiles: tuple[tuple[Dim, ...], ...]
    chain: Chain

    def __init__(self, dims: Any, *tiles: Any, chain: Chain | OrderBy | None = None) -> None:
        where = "PartialTiles(dims, *tiles)"
        object.__setattr__(self, "dims", make_dims(dims, where))
        object.__setattr__(self, "tiles", tuple(make_dims(level, where) for level in tiles))
        whole = Chain((chain,)) if isinstance(chain, OrderBy) else Chain() if chain is None else chain
        object.__setattr__(self, "chain", whole)
        if not isinstance(whole, Chain):
            raise LayoutError(where, f"chain {chain!r} is no reordering", legal="an OrderBy or a Chain")
        if not self.tiles or any(len(level) != len(self.dims) for level in self.tiles):
            raise Incongruent(where, "every level needs one extent for each dimension", inputs={"dims": self.dims})
        GroupBy(self.dims, *self.chain.orders)  # sizes agree

    def __repr__(self) -> str:
        parts = [repr(self.dims), *map(repr, self.tiles)] + ([f"chain={self.chain!r}"] if self.chain.orders else [])
        return f"PartialTiles({', '.join(parts)})"

    @property
    def grid(self) -> tuple[Dim, ...]:
        """The number of tiles along each dimension, the last one perhaps partial."""
        return tuple((n + t - 1) // t for n, t in zip(self.dims, self._whole(), strict=True))

    def _whole(self) -> tuple[Dim, ...]:
        """The extents of one outermost tile."""
        return tuple(product_of([level[d] for level in self.tiles]) for d in range(len(self.dims)))

    @property
    def index_dims(self) -> tuple[Dim, ...]:
        """The padded index space: the grid, then each level of tiles."""
        return tuple(n for level in (self.grid, *self.tiles) for n in level)

    def __getitem__(self, index: Any) -> Any:
        """The offset at an index, whether or not it exists; with ``:`` in it a `Slice`, mask included."""
        items = index if isinstance(index, tuple) else (index,)
        if not has_slices(items):
            return self.apply(*items)
        return sliced(items, self.index_dims, _words(self), self.apply, self.mask)

    def cell(self, *index: Any) -> Slice:
        """The place of one element for a template, masked where it may not exist."""
        return sliced(index, self.index_dims, _words(self), self.apply, self.mask)

    def coordinates(self, *index: Any) -> tuple[Any, ...]:
        """The coordinates in the space, which may lie in the padding."""
        index = check_index(index, self.index_dims, "PartialTiles.coordinates(*index)", beyond=len(self.dims))
        rank = len(self.dims)
        levels = (self.grid, *self.tiles)
        return tuple(
            row_major([index[k * rank + d] for k in range(len(levels))], [level[d] for level in levels])
            for d in range(rank)
        )

    def apply(self, *index: Any) -> Any:
        """The flat number in the real space; meaningful where `mask` holds."""
        flat = row_major(self.coordinates(*index), self.dims)
        for order in reversed(self.chain.orders):
            flat = order._apply(digits_of(flat, order.dims))
        return flat

    def mask(self, *index: Any) -> Any:
        """Whether the index lies in the real space; True as it stands where that is proved for all indices.

        An expression for the grid may pass its end (a launch of too many programs): the mask is false there.
        """
        out: Any = True
        for x, n, t in zip(self.coordinates(*index), self.dims, self._whole(), strict=True):
            if not isinstance(x, Expr) and divides(t, n):
                continue
            inside = x < n
            inside = bool(inside) if isinstance(inside, np.bool) else inside
            if isinstance(inside, Expr) and always(inside):
                continue
            out = inside if out is True else out & inside if isinstance(out, Expr | np.ndarray) else out and inside
        return out

    @property
    def always_inside(self) -> bool:
        """Whether every tile is whole, so that no mask is needed."""
        return all(divides(t, n) for n, t in zip(self.dims, self._whole(), strict=True))


def _words(tiles: PartialTiles) -> str:
    """The tiles in one line, extents by their short text."""
    parts = [f"({', '.join(map(str, level))})" for level in (tiles.dims, *tiles.tiles)]
    parts += [f"chain={short_order(order)}" for order in tiles.chain.orders]
    return f"PartialTiles({', '.join(parts)})"


def divides(t: Dim, n: Dim) -> bool:
    """Whether a tile extent is known to divide an extent."""
    if isinstance(t, int) and isinstance(n, int):
        return n % t == 0
    return proved_zero(n % t)


def always(condition: Expr) -> bool:
    """Whether a condition is proved for all values of its symbols."""
    return proved(condition)


# --- conversions


def to_core(layout: GroupBy) -> Layout:
    """The core layout with the same value at every row-major logical index; it exists iff the bijection is strided.

    Args:
        layout: integer extents; or symbolic ones, where every piece permutes dimensions.

    Raises:
        NoLayout: with the point at which no list of iters agrees.
        Unproved: sizes are symbolic, and what the chain needs is not proved for all values.
        Undecided: a piece that is no permutation of dimensions, on more points than the core enumerates.

    Example:
        >>> print(to_core(OrderBy(RegP((2, 3), (2, 1))).GroupBy((6,))))
        (2:1@m, 3:2@m)
    """
    where = "to_core(layout)"
    if not isinstance(layout, GroupBy):
        raise LayoutError(where, f"{layout!r} is no GroupBy", legal="close a chain with GroupBy or TileBy")
    dims = [n for order in layout.orders for n in order.dims]
    if any(isinstance(n, Expr) for n in (*layout.dims, *dims)):
        return _symbolic_core(layout, where)
    try:
        out = Layout((Iter(layout.size, Coord.of(1)),))
        for order in reversed(layout.orders):
            out = compose(_core_of(order), out)
        return normalize(out)
    except NoLayout:
        if all(isinstance(piece, RegP) for order in layout.orders for piece in order.pieces) and len(layout.orders) < 2:
            raise
    if layout.size > CHECK_BOUND:
        raise Undecided(where, f"{layout.size} values would have to be compared", facts={"bound": CHECK_BOUND})
    return recover(layout.table().reshape(-1))


setattr(GroupBy, "as_core", to_core)  # noqa: B010 - questions about layouts take any notation


def _symbolic_core(layout: GroupBy, where: str) -> Layout:
    """As `to_core`, for sizes with symbols: every piece a permutation of dimensions, every quotient proved."""
    out = Layout((Iter(layout.size, Coord.of(1)),))
    for order in reversed(layout.orders):
        if not all(isinstance(piece, RegP) for piece in order.pieces):
            raise Unproved(
                where,
                f"{order} is not made of permutations of dimensions",
                legal="RegP, Row and Col where sizes are symbolic",
                facts={"condition": f"{order} is strided"},
            )
        below: Any = order.size
        iters: list[Iter] = []
        for piece in cast("tuple[RegP, ...]", order.pieces):
            below = require_quotient(below, piece.size, where)
            pairs: Any = zip(piece.dims, piece.strides, strict=True)
            iters += [Iter(n, Coord.of(below * s)) for n, s in pairs]
        out = compose(Layout(tuple(iters)), out)
    return normalize(out)


def _core_of(order: OrderBy) -> Layout:
    """One reordering as a core layout on its row-major flat index."""
    iters: list[Iter] = []
    offset = Coord()
    scale = order.size
    for piece in order.pieces:
        scale //= piece.size
        if isinstance(piece, RegP):
            pairs = zip(piece.dims, piece.strides, strict=True)
            iters += [Iter(int(n), Coord.of(scale * s)) for n, s in pairs if isinstance(n, int)]
            continue
        if piece.size > CHECK_BOUND:
            raise Undecided("to_core(layout)", f"{piece} has too many points", facts={"bound": CHECK_BOUND})
        part = recover(piece._table()[0])
        iters += [Iter(it.extent, scale * it.stride) for it in part.shard]
        offset = offset + scale * part.offset
    return Layout(tuple(iters), (), offset)


def from_core(core: Layout, dims: Any = None) -> GroupBy:
    """The LEGO layout of a core layout that is a bijection onto [0, size): a permutation of its iters.

    Args:
        core: one axis, no replicas.
        dims: the logical shape; left out, the extents of D.

    Raises:
        NoLayout: the layout has replicas, several axes, or is no bijection onto [0, size).

    Example:
        >>> layout = from_core(Layout(((2, 1), (3, 2))))
        >>> layout.orders[0].pieces[0]
        RegP(dims=(2, 3), sigma=(2, 1))
    """
    where = "from_core(core, dims)"
    if not isinstance(core, Layout):
        raise LayoutError(where, f"{core!r} is no core layout", legal="a layout on one axis")
    need_numbers(where, core)

    def refuse(problem: str, condition: str) -> NoLayout:
        inputs, legal = {"core": core}, "a bijection from [0, size) onto [0, size)"
        return no_layout(
            where, problem, inputs=inputs, legal=legal, points=(0,), values=(core(0),), condition=condition
        )

    if any(it.extent > 1 for it in core.replica):
        raise refuse("the layout has replicas", "one value for each index")
    iters = [it for it in core.shard if it.extent > 1]
    axes = {axis for it in iters for axis in it.stride.axes} | set(core.offset.axes)
    if len(axes) > 1:
        raise refuse(f"the values lie on the axes {', '.join(sorted(axes))}", "values on one axis")
    axis = next(iter(axes), DEFAULT_AXIS)
    extents = [it.extent for it in iters] or [1]
    strides = [it.stride[axis] for it in iters] or [0]
    order = sorted(range(len(extents)), key=lambda k: -abs(strides[k]))
    run = 1
    for k in reversed(order):
        if abs(strides[k]) != run and extents[k] > 1:
            raise refuse(f"stride {strides[k]} where {run} would be compact", "strides are compact")
        run *= extents[k]
    if core.offset[axis] != -sum(min(0, s * (n - 1)) for n, s in zip(extents, strides, strict=True)):
        raise refuse(f"the least value is not 0 with the offset {core.offset}", "values start at 0")
    pieces: list[OrderBy] = [OrderBy(RegP(tuple(extents), tuple(k + 1 for k in order)))]
    flipped = [k for k, s in enumerate(strides) if s < 0]
    if flipped:
        pieces.append(OrderBy(reversal(tuple(extents), tuple(flipped))))
    shape = make_dims(extents if dims is None else dims, where)
    if not any(isinstance(n, Expr) for n in shape) and prod(shape) != prod(extents):
        raise Incongruent(where, f"shape {shape} has not the size {prod(extents)}", inputs={"core": core})
    return GroupBy(shape, *pieces)
