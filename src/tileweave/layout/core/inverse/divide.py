"""Divide and product on one axis, each with its post-condition as the definition.

The kernels work on rows, fastest first, and serve every notation. On layouts, shapes and linear indices are row-major:
the last dimension is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import LayoutError, NoLayout
from tileweave.layout.core.checks import Witness, need_layouts, no_layout
from tileweave.layout.core.combine import group
from tileweave.layout.core.composition import Pieces, compose_rows
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord
from tileweave.layout.core.inverse.complement import complement_rows, need_bare, rising_rows, turned
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.rows import Row, coalesce, iters_of, rows_on, unit_rows
from tileweave.layout.core.symbolic import is_expr, proved, same, simple


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
    rising, low = rising_rows(tiler, DEFAULT_AXIS, where)
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
    rows, _low = rising_rows(block, DEFAULT_AXIS, where)
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
