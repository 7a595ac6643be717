"""The core value: iters on named axes, and layouts (D, R, O) made of them.

A layout maps a logical index to a set of physical coordinates: ``f(x) = {D(x) + r + O : r in R}``. D is an ordered
tuple of iters, last fastest (row-major); R a multiset of iters; O one coordinate. A stride is a vector over
named axes, so one iter may move along several axes at once. CuTe, Axe and LEGO are notations on this value.

Extents, strides and offsets may be index expressions. Such layouts are evaluated, bounded, printed, grouped, tiled,
sliced and composed, every side condition proved for all values of the symbols (see `symbolic`); what searches for
points needs numbers and raises `Unproved` otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import LayoutError, Unproved
from tileweave.index import Expr, evaluate, symbols_of
from tileweave.layout.core.coord import (
    DEFAULT_AXIS,
    ZERO,
    Coord,
    CoordLike,
    IntArray,
    Shape,
    Terms,
    coord_of_terms,
    integer,
    integers,
)
from tileweave.layout.core.symbolic import evaluate_at, flatten, is_expr, least_and_greatest, require_positive, simple


@dataclass(frozen=True, slots=True)
class Iter:
    """An iter: `extent` steps of `stride`, the map ``x -> x * stride`` on ``[0, extent)``.

    Args:
        extent: a positive integer, the number of steps.
        stride: a `Coord`, or an integer meaning that many elements on the axis ``m``; zero and negative allowed.

    Example:
        >>> print(Iter(4, {"lane": 1}), Iter(8, -2))
        4:1@lane 8:-2@m

    Source: Axe, definition 2.1, with vector strides (own).
    """

    extent: int
    stride: Coord

    def __post_init__(self) -> None:
        if type(self.stride) is not Coord:
            _set_stride(self, Coord.of(self.stride))
        extent = integer(self.extent, "Iter(extent, stride)", "extent")
        if is_expr(extent):
            require_positive(extent, "Iter(extent, stride)")
        elif extent < 1:
            raise LayoutError(
                "Iter(extent, stride)", f"extent {extent!r} is not positive", legal="a positive integer extent"
            )
        _set_extent(self, extent)

    def __str__(self) -> str:
        return f"({self.extent}):{self.stride}" if is_expr(self.extent) else f"{self.extent}:{self.stride}"


_set_extent = Iter.__dict__["extent"].__set__
_set_stride = Iter.__dict__["stride"].__set__


def iter_of(extent: int, stride: Coord) -> Iter:
    """An iter from a positive int and a `Coord`; unchecked, for inner loops."""
    it = object.__new__(Iter)
    _set_extent(it, extent)
    _set_stride(it, stride)
    return it


def _iters(items: Iterable[Iter | tuple[int, CoordLike]], part: str) -> tuple[Iter, ...]:
    try:
        return tuple(item if isinstance(item, Iter) else Iter(*item) for item in items)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(
            "Layout(shard, replica, offset)",
            f"the {part} {items!r} is not a list of iters",
            legal="Iter values, or pairs (extent, stride)",
        ) from None


def _replica_key(it: Iter) -> tuple[int, Any]:
    return (0, str(it)) if is_symbolic(it) else (it.extent, it.stride.terms)


def is_symbolic(it: Iter) -> bool:
    """Whether the extent or the stride is an index expression."""
    return type(it.extent) is not int or any(type(v) is not int for _, v in it.stride.terms)


def has_symbols(layout: Layout) -> bool:
    """Whether an extent or a stride of D or R is an index expression; the offset does not count."""
    return any(map(is_symbolic, layout.shard)) or any(map(is_symbolic, layout.replica))


def require_numbers(it: Iter) -> None:
    """Raise `Unproved` unless the iter's extent and stride are integers: exact decisions need them."""
    if is_symbolic(it):
        raise Unproved(
            "exact decision on a layout",
            f"the iter {it} is symbolic",
            legal="integers here: substitute(layout, values) replaces symbols by their values",
            facts={"condition": f"{it} is a number"},
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What evaluation needs, worked out once per layout: the axes used, and (extent, strides), fastest first."""

    symbolic: bool
    size: int
    axes: tuple[str, ...]
    digits: tuple[tuple[int, int], ...]  # with one axis: (extent, stride), fastest first
    vectors: tuple[tuple[int, Terms], ...]  # with several axes: (extent, terms), fastest first
    start: int  # with one axis: the offset on it


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class Layout:
    """A layout (D, R, O): ``f(x) = {D(x) + r + O : r in R}`` for ``0 <= x < size``.

    Args:
        shard: D, ordered, last iter fastest; may be empty (one logical index).
        replica: R, a multiset; kept sorted so that equal multisets are equal values.
        offset: O, added to every result.

    Example:
        >>> tile = Layout(((8, {"lane": 4}), (4, {"lane": 1}), (2, {"reg": 1})))
        >>> print(tile(13))
        6@lane + 1@reg

    Source: Axe, definitions 2.2 and 2.3.
    """

    shard: tuple[Iter, ...] = ()
    replica: tuple[Iter, ...] = ()
    offset: Coord = ZERO
    _plan: _Plan | None = field(default=None, init=False, repr=False, compare=False)
    _normal: tuple[Iter, ...] | None = field(default=None, init=False, repr=False, compare=False)  # see `normal_shard`

    def __post_init__(self) -> None:
        _set_shard(self, _iters(self.shard, "shard"))
        _set_replica(self, tuple(sorted(_iters(self.replica, "replica"), key=_replica_key)))
        _set_offset(self, Coord.of(self.offset))

    @property
    def size(self) -> int:
        """The number of logical indices: the product of the extents of D."""
        return prod(it.extent for it in self.shard)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of D, slowest first."""
        return tuple(it.extent for it in self.shard)

    @property
    def is_symbolic(self) -> bool:
        """Whether an extent, a stride or the offset holds an index expression."""
        return has_symbols(self) or any(type(v) is not int for _, v in self.offset.terms)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes on which some value is not zero, sorted; ``("m",)`` for a layout that is zero everywhere."""
        names = set(self.offset.axes)
        for it in self.shard + self.replica:
            names.update(it.stride.axes)
        return tuple(sorted(names)) or (DEFAULT_AXIS,)

    # Evaluation.

    def __call__(self, index: Any) -> Any:
        """The least replica's coordinate ``D(x) + O``: of one linear index, of digits, or of many indices at once.

        Linear indices are row-major: the last iter is fastest. With R empty this is the whole of f(x); else `set_at`
        and `multiset_at` give the rest.

        Args:
            index: an int in ``[0, size)``; a sequence with one digit per iter of D; a NumPy array of linear indices; or
                an index expression.

        Returns:
            a `Coord` for an int or digits. For an array: an int64 array of the same shape if the layout uses
            one axis, else a dict from axis to such arrays. For an expression: a simplified one, or a dict.

        Raises:
            LayoutError: an index out of range, or not an integer.
            Unproved: the range of an expression does not prove that it stays within the layout.

        Example:
            >>> Layout(((2, 10), (3, 1)))(np.arange(6))
            array([ 0,  1,  2, 10, 11, 12])
        """
        if type(index) is int:
            return self._at_int(index)
        if isinstance(index, np.ndarray):
            return self._at_array(index)
        if is_expr(index):
            return self._by_axis(self._at_expr(index))
        if isinstance(index, Sequence):
            return self.at(index, self.extents)
        return self._at_int(integer(index, "Layout(index)", "index"))

    def _at_int(self, index: int) -> Coord:
        plan = self._plan or _make_plan(self)
        if plan.symbolic:
            return self._at_expr(index)
        if not 0 <= index < plan.size:
            raise LayoutError(
                "Layout(index)", f"{index} is out of range", inputs={"layout": self}, legal=f"0..{plan.size - 1}"
            )
        if plan.digits or len(plan.axes) == 1:
            total = plan.start
            for extent, stride in plan.digits:
                total += index % extent * stride
                index //= extent
            return coord_of_terms(((plan.axes[0], total),)) if total else ZERO
        sums = dict(self.offset.terms)
        for extent, terms in plan.vectors:
            digit = index % extent
            index //= extent
            if digit:
                for axis, stride in terms:
                    sums[axis] = sums.get(axis, 0) + digit * stride
        return coord_of_terms(tuple(sorted((axis, value) for axis, value in sums.items() if value)))

    def at(self, coords: int | Sequence[int], shape: Shape) -> Any:
        """The layout at a coordinate tuple under an admitted shape equals the layout at its row-major linear index.

        Args:
            coords: per dimension of `shape` one integer, array of integers or index expression, within its extent.
            shape: extents whose product is `size`; the last dimension is fastest. Arrays broadcast against each other.

        Example:
            >>> print(Layout(((6, 1),)).at((1, 2), (2, 3)))
            5@m
        """
        where = "Layout.at(coords, shape)"
        shape = integers(shape, where, "extent")
        if isinstance(coords, Sequence) and any(isinstance(c, np.ndarray) for c in coords):
            return self._at_array(_flatten_arrays(coords, shape, self.size, where))
        coords = integers(coords, where, "coordinate")
        inputs = {"layout": self, "coords": coords, "shape": shape}
        if len(coords) != len(shape):
            raise LayoutError(where, f"{len(coords)} coordinates for {len(shape)} dimensions", inputs=inputs)
        if any(map(is_expr, (*coords, *shape))) or any(map(is_symbolic, self.shard)):
            found = self._at_expr(flatten(coords, shape, self.size, where))
            return self._by_axis(found) if any(map(is_expr, coords)) else found
        if prod(shape) != self.size:
            raise LayoutError(where, f"the shape has {prod(shape)} points", inputs=inputs, legal=f"{self.size} points")
        index = 0
        for digit, n in zip(coords, shape, strict=True):
            if not 0 <= digit < n:
                raise LayoutError(where, f"coordinate {digit} is out of range", inputs=inputs, legal=f"0..{n - 1}")
            index = index * n + digit
        return self._at_int(index)

    def _at_expr(self, index: int) -> Coord:
        total = evaluate_at([(it.extent, it.stride) for it in self.shard], self.offset, self.size, index)
        return Coord(total.terms)

    def _by_axis(self, coord: Coord) -> Any:
        """The value on the only axis, or a dict from axis to value."""
        axes = (self._plan or _make_plan(self)).axes
        return coord[axes[0]] if len(axes) == 1 else {axis: coord[axis] for axis in axes}

    def _at_array(self, index: IntArray) -> Any:
        if index.dtype.kind not in "iu" and not (index.dtype.kind == "O" and self.size >= 1 << 62):
            raise LayoutError("Layout(index)", f"an array of {index.dtype} is no index", legal="an integer dtype")
        _require_table(self, "Layout(index)")
        size = self.size
        if index.size and (index.min() < 0 or index.max() >= size):
            bad = index.min() if index.min() < 0 else index.max()
            raise LayoutError(
                "Layout(index)", f"{bad} is out of range", inputs={"layout": self}, legal=f"0..{size - 1}"
            )
        if size <= 2 * index.size:  # cheaper to add outer sums once and to look up
            whole = self.table()
            if isinstance(whole, dict):
                return {axis: values[index] for axis, values in whole.items()}
            return whole[index]
        out = {axis: _evaluate(self, axis, index) for axis in self.axes}
        return out if len(out) > 1 else next(iter(out.values()))

    def table(self) -> Any:
        """Every value ``D(x) + O`` in order of x: an array of `size` values, or a dict from axis to arrays.

        Built by outer sums, without a division per point: a table of 4096 x 4096 points takes tens of milliseconds.

        Raises:
            LayoutError: the table would have more than 2**28 points.
        """
        _require_table(self, "Layout.table()")
        if self.size > 1 << 28:
            raise LayoutError("Layout.table()", f"{self.size} points are too many", legal="call it on chosen indices")
        out = {axis: _table(self, axis) for axis in self.axes}
        return out if len(out) > 1 else next(iter(out.values()))

    # Set and multiset semantics.

    def replicas(self) -> Iterator[Coord]:
        """The offsets that R adds, one per replica, as a multiset."""
        strides = [it.stride for it in self.replica]
        for steps in product(*(range(it.extent) for it in self.replica)):
            out = ZERO
            for k, stride in zip(steps, strides, strict=True):
                out = out + k * stride
            yield out

    def set_at(self, index: int | Sequence[int]) -> frozenset[Coord]:
        """f(x) as a set of coordinates: the paper's meaning, in which replicas that collide count once.

        Example:
            >>> sorted(c["m"] for c in Layout((), ((2, 1), (2, 1))).set_at(0))
            [0, 1, 2]

        Source: Axe, definition 2.3.
        """
        base = self._one(index, "Layout.set_at(index)")
        return frozenset(base + r for r in self.replicas())

    def multiset_at(self, index: int | Sequence[int]) -> Counter[Coord]:
        """f(x) as a multiset of coordinates: one entry per replica, counted; its total is always the size of R.

        Source: own (definition 2.3 with replicas counted).
        """
        base = self._one(index, "Layout.multiset_at(index)")
        return Counter(base + r for r in self.replicas())

    def _one(self, index: Any, where: str) -> Coord:
        if isinstance(index, np.ndarray) or is_expr(index):
            raise LayoutError(where, f"{index!r} is not one index", legal="an integer, or digits")
        if prod(it.extent for it in self.replica) > 1 << 24:
            raise LayoutError(where, "the replicas are too many to list", inputs={"layout": self}, legal="2**24")
        return cast("Coord", self(index))

    # Extent of the image.

    def bounds(self, axis: str = DEFAULT_AXIS) -> tuple[int, int]:
        """The least and the greatest value that the layout takes on an axis (expressions, if the layout has any)."""
        if axis.__class__ is not str:
            raise LayoutError("Layout.bounds(axis)", f"{axis!r} is not the name of an axis", legal="a string")
        low = high = self.offset[axis]
        reaches = [(it.extent - 1) * it.stride[axis] for it in self.shard + self.replica]
        if any(map(is_expr, (low, *reaches))):
            return least_and_greatest(low, high, reaches)
        return low + sum(r for r in reaches if r < 0), high + sum(r for r in reaches if r > 0)

    def span(self, axis: str = DEFAULT_AXIS) -> int:
        """``max - min + 1`` of the values on an axis; 1 on an axis that the layout does not use."""
        low, high = self.bounds(axis)
        return cast("int", simple(high - low + 1))

    def cosize(self, axis: str = DEFAULT_AXIS) -> int:
        """One more than the greatest value on an axis: how far the image reaches.

        Example:
            >>> Layout(((4, 1), (8, -4)), (), 28).cosize()
            32

        Source: Rectilinear Chamber, section 2; exact for negative strides and offsets.
        """
        return cast("int", simple(self.bounds(axis)[1] + 1))

    def __str__(self) -> str:
        text = "(" + ", ".join(map(str, self.shard)) + ")"
        if self.replica:
            text += " + [" + ", ".join(map(str, self.replica)) + "]"
        if self.offset:
            first = str(self.offset)
            text += f" - {first[1:]}" if first.startswith("-") else f" + {first}"
        return text


_set_shard = Layout.__dict__["shard"].__set__
_set_replica = Layout.__dict__["replica"].__set__
_set_offset = Layout.__dict__["offset"].__set__
_set_plan = Layout.__dict__["_plan"].__set__
_set_normal = Layout.__dict__["_normal"].__set__


def layout_of(shard: tuple[Iter, ...], replica: tuple[Iter, ...], offset: Coord) -> Layout:
    """A layout from values that are already in form (iters, sorted replicas, a `Coord`); unchecked, for inner loops."""
    layout = object.__new__(Layout)
    _set_shard(layout, shard)
    _set_replica(layout, replica if len(replica) < 2 else tuple(sorted(replica, key=_replica_key)))
    _set_offset(layout, offset)
    _set_plan(layout, None)
    _set_normal(layout, None)
    return layout


def keep_normal(layout: Layout, shard: tuple[Iter, ...]) -> None:
    """Note the normal form of a layout's D, worked out once."""
    _set_normal(layout, shard)


def _make_plan(layout: Layout) -> _Plan:
    names = set(layout.offset.axes)
    for it in layout.shard:
        names.update(it.stride.axes)
    axes = tuple(sorted(names)) or (DEFAULT_AXIS,)
    backwards = layout.shard[::-1]
    if any(map(is_symbolic, layout.shard)) or any(type(v) is not int for _, v in layout.offset.terms):
        plan = _Plan(True, layout.size, axes, (), (), 0)
    elif len(axes) == 1:
        digits = tuple((it.extent, it.stride[axes[0]]) for it in backwards if it.extent > 1)
        plan = _Plan(False, layout.size, axes, digits, (), layout.offset[axes[0]])
    else:
        plan = _Plan(False, layout.size, axes, (), tuple((it.extent, it.stride.terms) for it in backwards), 0)
    _set_plan(layout, plan)
    return plan


def _require_table(layout: Layout, where: str) -> None:
    if (layout._plan or _make_plan(layout)).symbolic:
        raise Unproved(
            where,
            "a symbolic layout has no table of numbers",
            inputs={"layout": layout},
            legal="an index expression as the index",
            facts={"condition": "extents, strides and offset are numbers"},
        )


def _flatten_arrays(coords: Sequence[Any], shape: tuple[int, ...], size: int, where: str) -> IntArray:
    """The row-major linear indices of arrays of coordinates, each checked against its extent."""
    if any(map(is_expr, shape)) or prod(shape) != size or len(coords) != len(shape):
        raise LayoutError(where, f"the shape {shape} does not fit", legal=f"{len(coords)} extents, {size} points")
    index: Any = 0
    for c, n in zip(coords, shape, strict=True):
        column: IntArray = np.asarray(c)
        if column.dtype.kind not in "iu":
            raise LayoutError(where, f"coordinates of {column.dtype} are no integers", legal="an integer dtype")
        if column.size and (column.min() < 0 or column.max() >= n):
            raise LayoutError(where, f"a coordinate is out of range 0..{n - 1}", inputs={"shape": shape})
        index = index * n + column.astype(np.int64 if size < 1 << 62 else object)
    return np.asarray(index)


def _dtype(layout: Layout, axis: str) -> type:
    """int64 where every partial sum fits, else Python integers."""
    reach = abs(layout.offset[axis]) + sum(it.extent * abs(it.stride[axis]) for it in layout.shard)
    return np.int64 if max(reach, layout.size) < 1 << 62 else object


def _evaluate(layout: Layout, axis: str, index: IntArray) -> IntArray:
    """The values on one axis at many linear indices, through ``D(x) = sum of c * floor(x / p)``."""
    dtype = _dtype(layout, axis)
    x: IntArray = index.astype(dtype)
    out: IntArray = np.full(index.shape, layout.offset[axis], dtype)
    pitch, below = 1, 0
    for it in reversed(layout.shard):
        stride = it.stride[axis]
        if stride != below:
            out += (stride - below) * (x // pitch if pitch & (pitch - 1) else x >> (pitch.bit_length() - 1))
        pitch, below = pitch * it.extent, it.extent * stride
    return out


def _table(layout: Layout, axis: str) -> IntArray:
    dtype = _dtype(layout, axis)
    out: IntArray = np.zeros(1, dtype)
    for it in reversed(layout.shard):
        steps: IntArray = np.arange(it.extent).astype(dtype) * it.stride[axis]
        out = (steps[:, None] + out[None, :]).reshape(-1)
    return out + layout.offset[axis] if layout.offset[axis] else out


def strided(shape: Shape, strides: int | Sequence[int], offset: int = 0, axis: str = DEFAULT_AXIS) -> Layout:
    """The layout of a strided array: one iter per dimension, first dimension slowest, strides in elements.

    Args:
        shape: positive extents. Empty arrays have no layout; the layers above answer them first.
        strides: elements between neighbours, any sign, zero for a broadcast dimension.
        offset: elements before the first.
        axis: the axis on which the elements lie.

    Example:
        >>> print(strided((2, 3), (3, 1)))
        (2:3@m, 3:1@m)
    """
    where = "strided(shape, strides)"
    shape, strides = integers(shape, where, "extent"), integers(strides, where, "stride")
    if len(shape) != len(strides):
        raise LayoutError(where, f"ranks {len(shape)} and {len(strides)} differ")
    iters = tuple(Iter(n, Coord(((axis, s),))) for n, s in zip(shape, strides, strict=True))
    return Layout(iters, (), Coord(((axis, offset),)))


def all_symbols(*layouts: Layout) -> list[Expr]:
    """The symbols of extents, strides and offsets."""
    numbers: list[Any] = []
    for layout in layouts:
        numbers += [v for _, v in layout.offset.terms]
        for it in (*layout.shard, *layout.replica):
            numbers += [it.extent, *(v for _, v in it.stride.terms)]
    return list(symbols_of([v for v in numbers if is_expr(v)]))


def substitute(layout: Any, values: Mapping[str, int]) -> Any:
    """The layout with every symbol replaced by its value: it agrees with the symbolic one evaluated there.

    Args:
        layout: a layout of any notation; the answer is of the same, or of the core where that has none of its own.
        values: a value within its range for each symbol, by name; other names are ignored.

    Raises:
        LayoutError: a symbol has no value, or one outside its range.

    Example:
        >>> from tileweave.index import symbol
        >>> n = symbol("n", 1)
        >>> print(substitute(Layout(((4, n), (n, 1)), (), 2 * n), {"n": 8}))
        (4:8@m, 8:1@m) + 16@m
    """
    known = isinstance(layout, Layout) or hasattr(type(layout), "as_core")
    if not known or not isinstance(values, Mapping):
        raise LayoutError("substitute(layout, values)", "the arguments are no layout and no mapping", legal="name: int")

    def number(value: Any) -> Any:
        if not is_expr(value):
            return value
        names = [str(s) for s in symbols_of((value,))]
        return evaluate(value, {name: values[name] for name in names if name in values})

    def vector(value: Coord) -> Coord:
        return Coord(tuple((axis, number(v)) for axis, v in value.terms))

    if hasattr(type(layout), "mapped"):
        return layout.mapped(number, vector)
    if not isinstance(layout, Layout):
        layout = layout.as_core()
    shard, replica = (
        tuple(Iter(number(it.extent), vector(it.stride)) for it in part) for part in (layout.shard, layout.replica)
    )
    return Layout(shard, replica, vector(layout.offset))
