"""Maps over F2 between named coordinates: ``register, lane, warp -> row, column``, as bit matrices with names.

A coordinate on each name is the set of its binary digits; the digits of all names together, the first name lowest, are
the index of one `F2Map`. A layout has such a map exactly where its places are sums of powers of two that share no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided
from tileweave.layout.core.checks import check_shape, need_layouts, need_numbers, no_layout
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord, integer
from tileweave.layout.core.exact import normalize
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.f2.maps import MOST_BITS, F2Map, check_disjoint, need_map
from tileweave.layout.f2.swizzle import ComposedLayout, XorLayout, f2_from_layout
from tileweave.layout.notation.cute_tuples import size as size_of
from tileweave.layout.notation.cute_value import CuteLayout
from tileweave.layout.notation.lego_numbers import tuple_index
from tileweave.layout.notation.lego_value import GenP, GroupBy, OrderBy, RegP

LISTED = 1 << 22
"""The most values that are compared one by one, of layouts that are no sums of strides."""

Bits = tuple[tuple[str, int], ...]
"""Names with their numbers of bits, the lowest first."""


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class LinearMap:
    """A map over F2 from named coordinates to named coordinates.

    Args:
        inputs, outputs: names with their numbers of bits; mappings will do.
        map: from the bits of all inputs, the first name lowest, to those of all outputs.

    Example:
        >>> rows = LinearMap.of({"reg": [(1, 0)], "lane": [(0, 1), (0, 2)]}, {"row": 1, "column": 2})
        >>> rows(reg=1, lane=2)
        {'row': 1, 'column': 2}
        >>> print(rows.inverse())
        row=1 -> reg=1
        column=1 -> lane=1
        column=2 -> lane=2

    Source: own; Triton's linear layouts have this form.
    """

    inputs: Bits
    outputs: Bits
    map: F2Map

    def __post_init__(self) -> None:
        where = "LinearMap(inputs, outputs, map)"
        for part in ("inputs", "outputs"):
            given = getattr(self, part)
            object.__setattr__(self, part, _bits(given, where, part))
        if not isinstance(self.map, F2Map):
            raise LayoutError(where, f"{self.map!r} is no map over F2", legal="an F2Map")
        want = sum(n for _, n in self.inputs), sum(n for _, n in self.outputs)
        if (self.map.bits, self.map.rows) != want:
            raise Incongruent(
                where, f"the map is {self.map.rows} x {self.map.bits} bits", legal=f"{want[1]} x {want[0]}"
            )

    @classmethod
    def of(cls, bases: Mapping[str, Sequence[Sequence[int]]], outputs: Mapping[str, int] | Bits) -> LinearMap:
        """From the images of the bits of each input, lowest first: one number per output, in their order."""
        where = "LinearMap.of(bases, outputs)"
        out = _bits(outputs, where, "outputs")
        if not isinstance(bases, Mapping):
            raise LayoutError(where, f"{bases!r} are no images by input", legal="{'lane': [(0, 1), (0, 2)]}")
        columns = []
        for name, images in bases.items():
            if not isinstance(images, tuple | list):
                raise LayoutError(where, f"the images {images!r} of {name}", legal="a list of tuples of integers")
            for image in images:
                if not isinstance(image, tuple | list) or len(image) != len(out):
                    raise LayoutError(where, f"the image {image!r} of {name}", legal=f"{len(out)} numbers")
                columns.append(_packed(image, out, where))
        inputs = tuple((name, len(images)) for name, images in bases.items())
        return cls(inputs, out, F2Map(tuple(columns), sum(n for _, n in out)))

    def bases(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The images of the bits of each input, lowest first, by output in order."""
        columns = iter(self.map.columns)
        return {name: tuple(_unpacked(next(columns), self.outputs) for _ in range(n)) for name, n in self.inputs}

    def __call__(self, **coordinates: Any) -> dict[str, Any]:
        """The image of a coordinate, integers or integer arrays by name; names that are left out are 0."""
        where = "LinearMap(coordinates)"
        unknown = set(coordinates) - {name for name, _ in self.inputs}
        if unknown:
            raise LayoutError(where, f"there is no input {min(unknown)}", legal=", ".join(n for n, _ in self.inputs))
        at = _packed([coordinates.get(name, 0) for name, _ in self.inputs], self.inputs, where)
        return dict(zip((name for name, _ in self.outputs), _unpacked(self.map(at), self.outputs), strict=True))

    def compose(self, inner: LinearMap) -> LinearMap:
        """The map ``x -> self(inner(x))``; the outputs of the inner map are matched by name, what is missing is 0."""
        where = "LinearMap.compose(inner)"
        if not isinstance(inner, LinearMap):
            raise LayoutError(where, f"{inner!r} is no named map", legal="a LinearMap")
        sizes = dict(self.inputs)
        for name, n in inner.outputs:
            if sizes.get(name, -1) < n:
                known = f"{name} has {sizes[name]}" if name in sizes else f"no input {name}"
                raise Incongruent(
                    where, f"{name} of {n} bits, but {known} bits", inputs={"inner": inner, "outer": self}
                )
        columns = []
        for column in inner.map.columns:
            at = dict(zip((n for n, _ in inner.outputs), _unpacked(column, inner.outputs), strict=True))
            columns.append(self.map(_packed([at.get(n, 0) for n, _ in self.inputs], self.inputs, where)))
        return LinearMap(inner.inputs, self.outputs, F2Map(tuple(columns), self.map.rows))

    def inverse(self) -> LinearMap:
        """The inverse of a bijective map.

        Raises:
            NoLayout: two coordinates (the witness) have one image, or a coordinate is no image.
        """
        return LinearMap(self.outputs, self.inputs, self.map.inverse())

    def select(self, inputs: Iterable[str], outputs: Iterable[str] | None = None) -> LinearMap:
        """The map of some inputs, the others being 0, to some outputs, the others forgotten; in the order given."""
        where = "LinearMap.select(inputs, outputs)"
        bases, sizes = self.bases(), dict(self.outputs)
        kept = list(sizes) if outputs is None else _names_of(outputs, list(sizes), where, self)
        inputs = _names_of(inputs, list(bases), where, self)
        order = [[n for n, _ in self.outputs].index(name) for name in kept]
        found = {name: [[image[k] for k in order] for image in bases[name]] for name in inputs}
        return LinearMap.of(found, {name: sizes[name] for name in kept})

    @property
    def rank(self) -> int:
        """The dimension of the image."""
        return self.map.rank

    def is_injective(self) -> bool:
        """Whether no two coordinates have the same image."""
        return self.map.is_injective()

    def is_surjective(self) -> bool:
        """Whether every coordinate of the outputs is an image."""
        return self.map.is_surjective()

    def same(self, other: LinearMap) -> bool:
        """Whether both are one map, whatever the order of their names; bits that nothing reaches do not count."""
        if not isinstance(other, LinearMap) or {n for n, _ in self.inputs} != {n for n, _ in other.inputs}:
            return False
        names = sorted({n for n, _ in self.outputs} | {n for n, _ in other.outputs})

        def key(one: LinearMap) -> dict[str, list[list[int]]]:
            at = {n: k for k, (n, _) in enumerate(one.outputs)}
            return {
                name: [[image[at[n]] if n in at else 0 for n in names] for image in images]
                for name, images in one.bases().items()
            }

        return key(self) == key(other)

    def to_layout(self) -> Layout:
        """The core layout of the map: the inputs are dimensions of the logical index, the last one fastest.

        Raises:
            NoLayout: two images on one axis share a bit, so that XOR is no sum.
        """
        iters = []
        for k in range(len(self.outputs)):
            column = [image[k] for images in self.bases().values() for image in images]
            check_disjoint(column, self, "LinearMap.to_layout()")
        for images in self.bases().values():
            at = [Coord(tuple((o, v) for (o, _), v in zip(self.outputs, image, strict=True))) for image in images]
            iters += [Iter(2, stride) for stride in reversed(at)]
        return normalize(Layout(tuple(iters)))

    def __str__(self) -> str:
        """A line per bit of the inputs: where it goes, outputs that stay 0 left out."""
        lines = []
        for name, images in self.bases().items():
            for k, image in enumerate(images):
                terms = [f"{o}={v}" for (o, _), v in zip(self.outputs, image, strict=True) if v]
                lines.append(f"{name}={1 << k} -> {', '.join(terms) or '0'}")
        return "\n".join(lines) or "0 -> 0"


def _bits(given: Any, where: str, part: str) -> Bits:
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, tuple | list) or any(not isinstance(p, tuple | list) or len(p) != 2 for p in pairs):
        raise LayoutError(where, f"{part} {given!r} are no names with bits", legal="{'reg': 2, 'lane': 5}")
    found = tuple((name, integer(n, where, f"the bits of {part}")) for name, n in pairs)
    if any(not isinstance(name, str) or type(n) is not int or not 0 <= n <= MOST_BITS for name, n in found):
        raise LayoutError(where, f"{part} {given!r}: names, and bits from 0", legal="{'reg': 2, 'lane': 5}")
    if len(dict(found)) < len(found):
        raise LayoutError(where, f"{part} {given!r} have a name twice", legal="every name once")
    return found


def _names_of(given: Any, known: Sequence[str], where: str, f: object) -> list[str]:
    """Names that are known."""
    names = list(given) if isinstance(given, tuple | list | set | dict) else [given]
    missing = [name for name in names if not isinstance(name, str) or name not in known]
    if missing:
        raise LayoutError(where, f"there is no {missing[0]!s:.60}", inputs={"map": f}, legal=", ".join(known))
    return names


def _packed(values: Sequence[Any], names: Bits, where: str) -> Any:
    """Coordinates, one per name, as one pattern of bits."""
    out: Any = 0
    starts = accumulate((n for _, n in names), initial=0)
    for value, (name, n), start in zip(values, names, starts, strict=False):
        array = isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        if not array and type(value) is not int and not isinstance(value, np.integer):
            raise LayoutError(where, f"{name} is {value!r}", legal="an integer, or an array of integers")
        if np.any(np.asarray(value) < 0) or np.any(np.asarray(value) >= 1 << n):
            raise LayoutError(where, f"{name} is {value}", legal=f"0..{(1 << n) - 1}")
        out = out | ((value if array else int(value)) << start)
    return out


def _unpacked(pattern: Any, names: Bits) -> tuple[Any, ...]:
    starts = accumulate((n for _, n in names), initial=0)
    return tuple(pattern >> start & ((1 << n) - 1) for (_, n), start in zip(names, starts, strict=False))


# --- layouts


def no_linear(where: str, layout: object, problem: str, point: int) -> NoLayout:
    """The refusal of a layout that is no linear map."""
    condition = "f(x ^ y) = f(x) ^ f(y)"
    return no_layout(where, problem, inputs={"layout": layout}, points=(point,), condition=condition)


def from_layout(layout: Any, shape: Sequence[int] | None = None) -> LinearMap:
    """The map of a layout from its logical coordinates, ``dim0, dim1, ..``, to its axes (``m`` where it names none).

    Args:
        layout: any layout of any notation without replicas and offset.
        shape: of a core layout, the logical shape (row-major); left out, one dimension for each iter.

    Raises:
        NoLayout: the layout is not linear over F2; the witness has two coordinates whose images do not add up by XOR,
            or the extent that is no power of two.
        Undecided: a bijection of LEGO's with more than 2**22 elements.

    Example:
        >>> print(from_layout(Layout(((8, {"lane": 4}), (4, {"lane": 1}), (2, {"reg": 1}))), (8, 8)))
        dim0=1 -> lane=4
        dim0=2 -> lane=8
        dim0=4 -> lane=16
        dim1=1 -> reg=1
        dim1=2 -> lane=1
        dim1=4 -> lane=2

    Source: own, by the enumeration of small cases.
    """
    where = "from_layout(layout)"
    if isinstance(layout, Layout):
        need_numbers(where, layout)
        if layout.offset or any(it.extent > 1 and it.stride for it in layout.replica):
            raise no_linear(where, layout, "a linear map has one value for each index and sends 0 to 0", 0)
        dims = _logical(layout, shape, where)
        columns, outputs = _core_columns(layout, where)
        names = tuple((f"dim{k}", _log2(n, layout, where)) for k, n in enumerate(dims))
        order = _by_dimension([n for _, n in names])
        return LinearMap(names, outputs, F2Map(tuple(columns[j] for j in order), sum(n for _, n in outputs)))
    if shape is not None:
        raise LayoutError(where, f"a {type(layout).__name__} has its own shape", legal="shape=None")
    if isinstance(layout, CuteLayout | ComposedLayout | XorLayout | F2Map):
        found = layout if isinstance(layout, F2Map) else _first_fastest(layout)
        modes = layout.shape if not isinstance(layout, F2Map) else layout.size
        sizes = [size_of(mode) for mode in modes] if isinstance(modes, tuple) else [size_of(modes)]
        names = tuple((f"dim{k}", n.bit_length() - 1) for k, n in enumerate(sizes))
        return LinearMap(names, ((DEFAULT_AXIS, found.rows),), found)
    if isinstance(layout, GroupBy | OrderBy | RegP | GenP):
        return _bijection(layout, where)
    raise LayoutError(where, f"{type(layout).__name__} is no layout", legal="a layout of any notation")


def _first_fastest(layout: CuteLayout | ComposedLayout | XorLayout) -> F2Map:
    return layout.to_f2() if isinstance(layout, XorLayout) else f2_from_layout(layout)


def places(layout: Layout, shape: Sequence[int] | None = None) -> LinearMap:
    """The map from places to logical coordinates, ``lane, reg, .. -> dim0, dim1, ..``: who holds what.

    The other way round than `from_layout`; replicas are inputs that do not matter, so they go to 0.

    Args:
        layout: a core layout without offset; its places fill whole powers of two.
        shape: the logical shape (row-major); left out, one dimension for each iter.

    Raises:
        NoLayout: as `from_layout`, or a place that holds nothing.

    Example:
        >>> print(places(Layout(((4, {"lane": 1}), (2, {"reg": 1})), ((2, {"lane": 4}),))))
        lane=1 -> dim0=1
        lane=2 -> dim0=2
        lane=4 -> 0
        reg=1 -> dim1=1

    Source: Triton's linear layouts.
    """
    where = "places(layout)"
    if not isinstance(layout, Layout):
        raise LayoutError(where, f"{layout!r} is no core layout", legal="a layout on named axes")
    need_numbers(where, layout)
    if layout.offset:
        raise no_linear(where, layout, "a linear map sends 0 to 0", 0)
    dims = _logical(layout, shape, where)
    columns, outputs = _core_columns(layout, where)
    names = tuple((f"dim{k}", _log2(n, layout, where)) for k, n in enumerate(dims))
    back = F2Map(tuple(columns), sum(n for _, n in outputs)).inverse()
    order = _by_dimension([n for _, n in names])  # bit of a dimension -> bit of the linear index
    found = [sum((c >> j & 1) << k for k, j in enumerate(order)) for c in back.columns]
    return LinearMap(outputs, names, F2Map(tuple(found), len(order)))


def _logical(layout: Layout, shape: Sequence[int] | None, where: str) -> tuple[int, ...]:
    return layout.extents if shape is None else check_shape(shape, layout.size, where, layout)


def _log2(extent: int, layout: object, where: str) -> int:
    if type(extent) is not int or extent < 1 or extent & (extent - 1):
        raise no_linear(where, layout, f"extent {extent} is no power of two", extent)
    return extent.bit_length() - 1


def _by_dimension(bits: Sequence[int]) -> list[int]:
    """For each bit of the dimensions, the first dimension lowest, the bit of the row-major linear index."""
    starts = list(accumulate(reversed(bits), initial=0))[-2::-1] if bits else []
    return [start + k for n, start in zip(bits, starts, strict=True) for k in range(n)]


def _core_columns(layout: Layout, where: str) -> tuple[list[int], Bits]:
    """The images of the bits of the linear index, then of those of the replicas; and the axes with their bits."""
    strides = []
    for it in (*reversed(layout.shard), *(it for it in layout.replica if it.stride)):
        strides += [(1 << k) * it.stride for k in range(_log2(it.extent, layout, where))]
    axes = tuple(a for a in layout.axes if any(s[a] for s in strides)) or layout.axes
    for axis in axes:
        check_disjoint([s[axis] for s in strides], layout, where)
    outputs = tuple((axis, max((s[axis].bit_length() for s in strides), default=0)) for axis in axes)
    return [_packed([s[axis] for axis in axes], outputs, where) for s in strides], outputs


def _bijection(layout: GroupBy | OrderBy | RegP | GenP, where: str) -> LinearMap:
    """From the values at the bits of each dimension, compared with all values."""
    dims = [n if isinstance(n, int) else 0 for n in layout.dims]
    bits = [_log2(n, layout, where) for n in dims]
    if layout.size > LISTED:
        raise Undecided(where, f"{layout.size} values would have to be compared", facts={"bound": LISTED})
    names = tuple((f"dim{k}", n) for k, n in enumerate(bits))
    units = [tuple((1 << b) * (d == k) for d in range(len(dims))) for k, n in enumerate(bits) for b in range(n)]
    columns = [int(layout.apply(*unit)) for unit in units]
    zero = int(layout.apply(*(0,) * len(dims)))
    if zero:
        raise no_linear(where, layout, f"the origin goes to {zero}", 0)
    index = tuple_index(np.arange(layout.size), tuple(dims))
    values = np.asarray(layout.apply(*index))
    want: Any = np.zeros(layout.size, np.int64)
    for unit, column in zip(units, columns, strict=True):
        k, step = next((k, step) for k, step in enumerate(unit) if step)
        want ^= np.where(np.asarray(index[k]) & step, column, 0)
    bad = np.flatnonzero(values != want)
    if bad.size:
        at = tuple(int(i[bad[0]]) for i in index)
        problem = f"the value at {at} is {int(values[bad[0]])}, the XOR of its bits' values {int(want[bad[0]])}"
        raise no_linear(where, layout, problem, int(bad[0]))
    return LinearMap(names, ((DEFAULT_AXIS, sum(bits)),), F2Map(tuple(columns), sum(bits)))


# --- one map per axis


def f2_from_core(core: Layout) -> dict[str, F2Map]:
    """One F2 map per hardware axis, from the bits of the row-major logical index; as `from_layout`, axis by axis.

    Raises:
        NoLayout: replicas or an offset (an offset needs an affine term), or an axis that is not linear over F2.

    Example:
        >>> maps = f2_from_core(Layout(((4, {"lane": 2}), (2, {"reg": 1}))))
        >>> maps["lane"].columns, maps["reg"].columns
        ((0, 2, 4), (1, 0, 0))
    """
    need_layouts("f2_from_core(core)", core)
    whole = from_layout(core, (core.size,))
    parts = {name: whole.select(["dim0"], [name]).map for name, _ in whole.outputs}
    return {**parts, **{axis: F2Map((0,) * whole.map.bits, 0) for axis in core.axes if axis not in parts}}


def f2_to_core(maps: Mapping[str, F2Map]) -> Layout:
    """The core layout, in normal form, of one F2 map per axis; inverse of `f2_from_core`.

    Raises:
        Incongruent: maps of different numbers of bits.
        NoLayout: columns of one map that share a bit, so that XOR is no addition on that axis.
    """
    where = "f2_to_core(maps)"
    if not isinstance(maps, Mapping):
        raise LayoutError(where, f"{maps!r} is no mapping", legal="axis -> F2Map")
    for f in maps.values():
        need_map(f, where)
    bits = {f.bits for f in maps.values()}
    if len(bits) != 1:
        raise Incongruent(where, f"maps of {sorted(bits)} bits", legal="one number of bits for all axes")
    images = [tuple(f.columns[j] for f in maps.values()) for j in range(bits.pop())]
    return LinearMap.of({"dim0": images}, {axis: f.rows for axis, f in maps.items()}).to_layout()
