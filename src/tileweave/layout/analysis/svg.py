"""Layouts as pictures: a grid of coordinate -> offset, or of coordinate -> lane, register, device, memory.

One cell per logical coordinate. Where a layout uses several axes a cell has a line for each, and replicas are listed:
``warp 5,9``. Heavy lines stand where a digit of a coordinate turns, so at the borders
of tiles. Cells of one value of the colour axis have one colour. There are 64 colours; a picture that repeats them
says so, as does one that shows only the first rows and columns of a large layout: no others are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd, prod
from typing import Any, cast

import numpy as np

from tileweave.draw import PALETTE, grid, palette
from tileweave.errors import LayoutError, NoLayout
from tileweave.layout.analysis.places import LEVELS, ORDER
from tileweave.layout.core.checks import check_shape
from tileweave.layout.core.combine import group
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.f2.linear import LinearMap
from tileweave.layout.f2.maps import F2Map
from tileweave.layout.f2.swizzle import ComposedLayout, Swizzle, XorLayout
from tileweave.layout.notation.cute_tuples import flat_tuple, idx2crd, make_shape, rank, size, tuple_text
from tileweave.layout.notation.cute_value import CuteLayout
from tileweave.layout.notation.lego_numbers import tuple_index
from tileweave.layout.notation.lego_value import GenP, GroupBy, OrderBy, RegP
from tileweave.layout.text.reader import read

__all__ = ["LIMIT", "svg", "thread_value_svg"]

LIMIT = (32, 32)
"""The most rows and columns that are drawn."""

LISTED = 1 << 16
"""The most replicas that are listed; of more, only the least is drawn."""

HOLDERS_BOUND = 1 << 20
"""The most (thread, value) pairs that a thread-value picture inverts."""

SHADES = (0.0, 0.55, -0.22, 0.28)
"""What the palette is mixed with each time it is used up: so much white, or (negative) so much black."""

COLOURS = len(PALETTE) * len(SHADES)

Colour = str | Callable[[int], int] | None


@dataclass(frozen=True, slots=True)
class _Side:
    """The rows or the columns.

    Args:
        extents: of the coordinates.
        first_fastest: which of them is.
        digits: extents of the digits of a coordinate, fastest first: a line is drawn where one turns.
        shapes: the nested shape of each coordinate, where there is one.
        names: of the rows or columns themselves, instead of coordinates.
    """

    extents: tuple[int, ...]
    first_fastest: bool = False
    digits: tuple[int, ...] = ()
    shapes: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return prod(self.extents)

    def coordinate(self, k: int) -> tuple[int, ...]:
        if self.first_fastest:
            return tuple(reversed(tuple_index(k, self.extents[::-1]))) if self.extents else ()
        return tuple_index(k, self.extents) if self.extents else ()

    def name(self, k: int) -> str:
        if self.names:
            return self.names[k]
        at = self.coordinate(k)
        nested = [idx2crd(c, shape) for c, shape in zip(at, self.shapes, strict=True)] if self.shapes else at
        return ",".join(map(tuple_text, nested))

    def borders(self, limit: int) -> dict[int, int]:
        """Where digits turn, and how many of them."""
        digits = [n for n in self.digits or (self.extents if self.first_fastest else self.extents[::-1]) if n > 1]
        if self.names:  # where the name changes
            first = [name.split()[0] for name in self.names]
            return {k: 1 for k in range(1, len(first)) if first[k] != first[k - 1]}
        runs = [prod(digits[: k + 1]) for k in range(len(digits) - 1)]
        turns = {k: sum(k % run == 0 for run in runs) for k in range(1, min(self.count, limit + 1))}
        return {k: weight for k, weight in turns.items() if weight}


@dataclass(frozen=True, slots=True)
class _View:
    """What is drawn: a label and a colour number (None for white) for every pair of a row and a column."""

    title: str
    rows: _Side
    columns: _Side
    cell: Callable[[tuple[int, ...], tuple[int, ...]], tuple[str, int | None]]


_DRAWN = (Layout, CuteLayout, ComposedLayout, XorLayout, Swizzle, F2Map, LinearMap, GroupBy, OrderBy, RegP, GenP)


def svg(
    value: Any,
    *,
    shape: Sequence[int] | None = None,
    colour: Colour = None,
    limit: tuple[int, int] = LIMIT,
    title: str | None = None,
) -> str:
    """The picture of a layout: every cell shows where its logical coordinate goes; same value, same text.

    Args:
        value: a core layout, a CuTe, composed or XOR layout (rows are mode 0), a LEGO layout or piece, a `Swizzle`
            (drawn in units that it does not cut), a map over F2 (drawn as its bit matrix), or the text of any.
        shape: of a core layout, the logical shape; left out, the two-dimensional one nearest to a square whose rows
            end between iters of D.
        colour: the axis whose values choose the colours, or a function from the value to the number of a colour;
            left out, a core layout is coloured by the axis of threads or devices with the most values.
        limit: most rows and columns that are drawn.
        title: the line above; left out, the value's text.

    Raises:
        LayoutError: no layout, an axis that it does not use, or a shape that it does not admit.

    Example:
        >>> picture = svg(CuteLayout((2, 3), (3, 1)))
        >>> picture.count("<rect"), ">5<" in picture
        (7, True)

    Source: own; replicas and several axes as in Axe, figure 2.
    """
    value = read(value) if isinstance(value, str) else value
    if not isinstance(value, _DRAWN):
        raise LayoutError("svg(value)", f"{type(value).__name__} is no layout", legal="a layout, a swizzle, a bit map")
    if not (colour is None or isinstance(colour, str) or (callable(colour) and not isinstance(colour, _DRAWN))):
        raise LayoutError("svg(value, colour)", f"{colour!r} chooses no colour", legal="an axis, or a function")
    if not isinstance(limit, tuple) or len(limit) != 2 or any(type(n) is not int or n < 1 for n in limit):
        raise LayoutError("svg(value, limit)", f"{limit!r} is no limit", legal="(rows, columns), positive")
    if not (title is None or isinstance(title, str)):
        raise LayoutError("svg(value, title)", f"{title!r} is no text", legal="a line of text")
    if shape is not None and not isinstance(value, Layout):
        raise LayoutError("svg(value, shape)", f"a {type(value).__name__} has its own shape", legal="shape=None")
    if getattr(value, "is_symbolic", False):
        return _symbolic_svg(value, title)
    view = _view(value, shape, colour)
    return _draw(view, limit, title)


def thread_value_svg(layout: CuteLayout, tile: Any, *, limit: tuple[int, int] = LIMIT, title: str | None = None) -> str:
    """The inverse picture of a thread-value layout: each element of the tile names the threads and values that hold it.

    Args:
        layout: mode 0 is the thread, the other modes its values; its values are linear indices of the tile.
        tile: the shape (rows, columns) of the tile; its first mode is fastest, as everywhere in CuTe.
        limit: most rows and columns that are drawn.
        title: the line above; left out, the layout's text.

    Raises:
        LayoutError: one mode only, coordinate strides, a value outside the tile, or more than 2**20 pairs.

    Example:
        >>> picture = thread_value_svg(CuteLayout((4, 2), (2, 1)), (2, 4))
        >>> ">T3<" in picture, ">V1<" in picture
        (True, True)

    Source: CuTe's thread-value layouts; the picture is own.
    """
    where = "thread_value_svg(layout, tile)"
    inputs = {"layout": layout, "tile": tile}
    shape = make_shape(tile, where)
    if not isinstance(layout, CuteLayout) or rank(layout) < 2 or isinstance(layout.zero, Coord):
        raise LayoutError(where, "this is no thread-value layout", inputs=inputs, legal="(threads, values):strides")
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise LayoutError(where, "the tile is not two-dimensional", inputs=inputs, legal="(rows, columns)")
    if layout.size > HOLDERS_BOUND:
        raise LayoutError(where, f"{layout.size} pairs are too many", inputs=inputs, legal=f"{HOLDERS_BOUND}")
    at = np.asarray(layout(np.arange(layout.size)))
    if int(at.min()) < 0 or int(at.max()) >= size(shape):
        bad = int(at.min()) if at.min() < 0 else int(at.max())
        raise LayoutError(where, f"the value {bad} lies outside the tile", inputs=inputs, legal=f"0..{size(shape) - 1}")
    rows, columns = _Side((size(shape[0]),)), _Side((size(shape[1]),))
    threads = layout[0].size
    order = np.argsort(at, kind="stable")
    sorted_at = at[order]

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        index = row[0] + rows.count * column[0]
        first, last = np.searchsorted(sorted_at, [index, index + 1])
        found = [divmod(int(k), threads)[::-1] for k in order[first:last]]
        if len(found) == 1:
            return f"T{found[0][0]}\nV{found[0][1]}", found[0][0]
        return "\n".join(_some([f"T{t} V{v}" for t, v in found])), found[0][0] if found else None

    return _draw(_View(f"{layout} on {shape[0]} x {shape[1]}", rows, columns, cell), limit, title)


def _draw(view: _View, limit: tuple[int, int], title: str | None) -> str:
    rows = [view.rows.coordinate(k) for k in range(min(view.rows.count, limit[0]))]
    columns = [view.columns.coordinate(k) for k in range(min(view.columns.count, limit[1]))]
    cells = [[view.cell(r, c) for c in columns] for r in rows]
    keys = {key for row in cells for _, key in row if key is not None}
    colours = {key: _shade(key) for key in keys}
    repeated = f" (the {COLOURS} colours repeat)" if len(set(colours.values())) < len(keys) else ""
    return grid(
        [[label for label, _ in row] for row in cells],
        [["white" if key is None else colours[key] for _, key in row] for row in cells],
        title=(view.title if title is None else title) + repeated,
        row_names=[view.rows.name(k) for k in range(len(rows))],
        column_names=[view.columns.name(k) for k in range(len(columns))],
        borders=(view.rows.borders(limit[0]), view.columns.borders(limit[1])),
        limit=limit,
        total=(view.rows.count, view.columns.count),
    )


def _shade(key: int) -> str:
    """The colour of a number: the palette, then its shades."""
    mix = SHADES[key // len(PALETTE) % len(SHADES)]
    plain = palette(key)
    if not mix:
        return plain
    end = 255 if mix > 0 else 0
    parts = (int(plain[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (end - part) * abs(mix)):02x}" for part in parts)


def _view(value: Any, shape: Sequence[int] | None, colour: Colour) -> _View:
    if isinstance(value, Layout):
        return _core_view(value, shape, colour)
    pick = _function(colour)
    if isinstance(value, CuteLayout | ComposedLayout | XorLayout):
        return _cute_view(value, pick)
    if isinstance(value, Swizzle):
        return _swizzle_view(value, pick)
    if isinstance(value, F2Map | LinearMap):
        return _matrix_view(value)
    return _lego_view(value, pick)


def _function(colour: Colour) -> Callable[[int], int] | None:
    if isinstance(colour, str):
        if colour != DEFAULT_AXIS:
            raise LayoutError("svg(value, colour)", f"there is no axis {colour}", legal="a core layout's axis")
        return None
    return colour


# --- core layouts


def _near_square(extents: Sequence[int]) -> int:
    """How many leading extents make the rows, so that the picture is nearest to a square, rather wide than tall."""

    def key(k: int) -> tuple[Fraction, bool]:
        rows, columns = prod(extents[:k]), prod(extents[k:])
        return Fraction(max(rows, columns), min(rows, columns)), rows > columns

    return min(range(1, len(extents)), key=key, default=0)


def _core_view(layout: Layout, shape: Sequence[int] | None, colour: Colour) -> _View:
    if shape is None:
        k = _near_square(layout.extents)
        dims: tuple[int, ...] = (prod(layout.extents[:k]), prod(layout.extents[k:]))
        digits = [layout.extents[:k], layout.extents[k:]]
    else:
        dims = check_shape(shape, layout.size, "svg(layout, shape)", layout)
        digits = _digits_of(layout, dims)
    k = 1 if len(dims) == 2 else _near_square(dims)
    rows, columns = _sides(dims, digits, k)
    axes = _ordered_axes(layout)
    axis = colour if isinstance(colour, str) else _colour_axis(layout, axes)
    if axis not in axes:
        raise LayoutError("svg(layout, colour)", f"the layout does not use the axis {axis}", legal=", ".join(axes))
    base = layout_of(layout.shard, (), layout.offset)
    low, step = base.bounds(axis)[0], gcd(*(it.stride[axis] for it in layout.shard)) or 1
    number = colour if callable(colour) else lambda v: (v - low) // step
    label = _labels(layout, axes)
    title = f"{layout} on {' x '.join(map(str, dims))}" + ("" if axes == (DEFAULT_AXIS,) else f", coloured by {axis}")

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        coord = cast("Coord", base.at(row + column, dims))
        return label(coord), number(coord[axis])

    return _View(title, rows, columns, cell)


def _sides(dims: tuple[int, ...], digits: Sequence[tuple[int, ...]], k: int) -> tuple[_Side, _Side]:
    """The first k dimensions down, the others across."""
    parts = (slice(k), slice(k, None))
    a, b = (_Side(dims[part], digits=tuple(n for row in digits[part] for n in row)[::-1]) for part in parts)
    return a, b


def _digits_of(layout: Layout, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The extents of the iters of each dimension, slowest first; the dimension itself where they do not nest."""
    try:
        return [tuple(it.extent for it in block) for block in group(layout, dims)]
    except NoLayout:
        return [(n,) for n in dims]


def _level(axis: str) -> int:
    level = LEVELS.get(axis)
    return 4 if level == "register" or axis == DEFAULT_AXIS else 3 - ORDER[level] if level and ORDER[level] else 3


def _ordered_axes(layout: Layout) -> tuple[str, ...]:
    """The axes from the outermost level of the machine inwards; within one level as they appear."""
    terms = [it.stride for it in (*layout.shard, *layout.replica)]
    seen = list(dict.fromkeys(axis for coord in (*terms, layout.offset) for axis in coord.axes))
    return tuple(sorted(seen, key=_level)) or (DEFAULT_AXIS,)


def _colour_axis(layout: Layout, axes: Sequence[str]) -> str:
    """Of the axes along which elements are spread, other than registers and memory, the one with the most values."""
    spread = [a for a in axes if any(it.extent > 1 and it.stride[a] for it in layout.shard)] or list(axes)
    holders = [a for a in spread if _level(a) < 4] or spread
    counts = {a: prod(it.extent for it in layout.shard if it.stride[a]) for a in holders}
    return max(holders, key=lambda a: (counts[a], -holders.index(a)))


def _labels(layout: Layout, axes: tuple[str, ...]) -> Callable[[Coord], str]:
    """From the least replica's coordinate to the text of its cell."""
    copies = prod(it.extent for it in layout.replica)
    shifts = sorted(set(layout.replicas()) if copies <= LISTED else {ZERO}, key=lambda r: [r[a] for a in axes])
    along = {a: sorted({r[a] for r in shifts}) for a in axes}
    more = f"\n({copies} replicas)" if copies > LISTED else ""

    def name(axis: str, text: str) -> str:
        return text if axes == (DEFAULT_AXIS,) else f"{axis} {text}"

    if len(shifts) == prod(map(len, along.values())):  # every combination of the values occurs
        return lambda at: "\n".join(name(a, _values([at[a] + r for r in along[a]])) for a in axes) + more
    return lambda at: "\n".join(_some([" ".join(name(a, str((at + r)[a])) for a in axes) for r in shifts]))


def _values(values: list[int]) -> str:
    """``5``, ``5,9``, ``0..7``, ``0,4,..,28`` of ascending numbers."""
    if len(values) > 2 and all(b == a + 1 for a, b in pairwise(values)):
        return f"{values[0]}..{values[-1]}"
    return ",".join(map(str, values if len(values) <= 4 else [*values[:2], "..", values[-1]]))


def _some(lines: list[str]) -> list[str]:
    """All of up to four lines, else three and how many are left."""
    return lines if len(lines) <= 4 else [*lines[:3], f"({len(lines) - 3} more)"]


# --- CuTe, swizzles and bit maps


def _cute_view(layout: CuteLayout | ComposedLayout | XorLayout, pick: Callable[[int], int] | None) -> _View:
    shape = layout.shape if isinstance(layout.shape, tuple) else (1, layout.shape)
    modes = tuple(size(s) for s in shape)
    if len(modes) == 1:
        modes = (1, *modes)
    one = len(modes) > rank(layout.shape)  # a single mode is drawn as one row
    pairs = layout.flat if isinstance(layout, CuteLayout) and not isinstance(layout.zero, Coord) else ()
    step = gcd(*(d for _n, d in pairs)) or 1
    low = sum(min(0, d * (n - 1)) for n, d in pairs)

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        index = (row + column)[1:] if one else row + column
        value = layout(*index)
        if isinstance(value, Coord):
            lines = [f"{a} {v}" for a, v in value.terms] or ["0"]
            return "\n".join(lines), value.terms[0][1] if value.terms else 0
        number = int(value)
        return str(number), pick(number) if pick else (number - low) // step

    shapes = shape if len(shape) > 1 else (1, *shape)
    row, columns = _cute_side(shapes[:1]), _cute_side(shapes[1:])
    return _View(str(layout), row, columns, cell)


def _cute_side(shapes: tuple[Any, ...]) -> _Side:
    leaves = tuple(n for shape in shapes for n in flat_tuple(shape))
    return _Side(tuple(size(s) for s in shapes), True, leaves, shapes)


def _swizzle_view(swizzle: Swizzle, pick: Callable[[int], int] | None) -> _View:
    """Rows and columns of units of ``2**base`` offsets, a row for each pattern of the higher bits."""
    unit = 1 << swizzle.base
    rows, columns = _Side((1 << swizzle.bits,)), _Side((1 << abs(swizzle.shift),))
    title = f"{swizzle}: offset -> offset" + (f", in units of {unit}" if unit > 1 else "")

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        value = swizzle((row[0] * columns.count + column[0]) * unit) // unit
        return str(value), pick(value) if pick else value % columns.count

    return _View(title, rows, columns, cell)


def _matrix_view(f: F2Map | LinearMap) -> _View:
    """The matrix, a row per bit of the value and a column per bit of the index, lowest first; named where they are."""
    matrix = f.map if isinstance(f, LinearMap) else f

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        bit = matrix.columns[column[0]] >> row[0] & 1
        return str(bit), 0 if bit else None

    title = f"bit matrix over F2: {matrix.rows} value bits x {matrix.bits} index bits, lowest first"
    if not isinstance(f, LinearMap):
        return _View(title, _Side((matrix.rows,)), _Side((matrix.bits,)), cell)
    rows, columns = (_Side((sum(n for _, n in names),), names=_bit_names(names)) for names in (f.outputs, f.inputs))
    return _View(title, rows, columns, cell)


def _bit_names(names: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(f"{name} {1 << k}" for name, n in names for k in range(n))


# --- LEGO


def _lego_view(layout: GroupBy | OrderBy | RegP | GenP, pick: Callable[[int], int] | None) -> _View:
    dims = cast("tuple[int, ...]", layout.dims)
    k = 1 if len(dims) == 2 else _near_square(dims)

    def cell(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[str, int | None]:
        value = int(layout.apply(*row, *column))
        return str(value), pick(value) if pick else value

    digits = _lego_digits(layout, dims)
    rows, columns = _sides(dims, digits, k)
    kind = type(layout).__name__
    title = str(layout) if isinstance(layout, GenP) else f"{kind} {' x '.join(map(str, dims))}"
    return _View(f"{title}: logical index -> physical number", rows, columns, cell)


def _lego_digits(layout: GroupBy | OrderBy | RegP | GenP, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The digits of each dimension, slowest first, in which the first reordering that is applied takes the index."""
    orders = layout.orders if isinstance(layout, GroupBy) else ()
    leaves: list[Any] = [n for piece in orders[-1].pieces for n in piece.dims] if orders else []
    out = []
    for n in dims:
        row: list[int] = []
        while leaves and prod(row) * leaves[0] <= n and n % (prod(row) * leaves[0]) == 0:
            row.append(leaves.pop(0))
        out.append(tuple(row))
    return out if not leaves and [prod(row) for row in out] == list(dims) else [(n,) for n in dims]


# --- symbolic layouts


def _symbolic_svg(value: Any, title: str | None) -> str:
    """Extents over strides, as the paper writes a layout: expressions have no table of numbers."""
    if isinstance(value, CuteLayout):
        rows = [[tuple_text(n) for n, _d in value.flat], [tuple_text(d) for _n, d in value.flat]]
        return grid(rows, title=title or str(value), row_names=["extent", "stride"])
    if isinstance(value, ComposedLayout):
        return grid([[str(value)]], title=title or "a symbolic layout", row_names=["map"])
    if not isinstance(value, Layout):
        return grid([[", ".join(map(str, value.dims))]], title=title or type(value).__name__, row_names=["shape"])
    iters = [*value.shard, *value.replica]
    heads = ["D"] * len(value.shard) + ["R"] * len(value.replica) + ["O"] * bool(value.offset)
    extents = [str(it.extent) for it in iters] + [""] * bool(value.offset)
    strides = [str(it.stride) for it in iters] + [str(value.offset)] * bool(value.offset)
    names = ["extent", "stride"]
    return grid([extents, strides], title=title or "a symbolic layout", row_names=names, column_names=heads)
