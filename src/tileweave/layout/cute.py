"""CuTe's notation: nested ``shape:stride`` layouts, **first mode fastest**, with every operation exact.

For CuTe users: ``from tileweave.layout import cute``. Names and orders are CuTe's. A layout is
evaluated within its size; inside a composition its slowest mode runs on, as in CuTe. A refusal carries its witness, and
where CuTe rounds up there is a separate name that returns the predicate. The operations live beside this file: tuples
(`cute_tuples`), values (`cute_value`), algebra (`cute_algebra`), tiles (`cute_tiling`); the algorithms are `core`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tileweave.errors import Incongruent, LayoutError
from tileweave.layout.core.checks import need_layouts, need_numbers, no_layout
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord, integers
from tileweave.layout.core.layout import Iter
from tileweave.layout.core.layout import Layout as CoreLayout
from tileweave.layout.f2.linear import f2_from_core, f2_to_core
from tileweave.layout.f2.maps import F2Map
from tileweave.layout.f2.swizzle import (
    ComposedLayout,
    Swizzle,
    XorLayout,
    f2_from_layout,
    f2_from_swizzle,
    f2_to_layout,
    make_swizzle,
    xor_strides,
)
from tileweave.layout.notation.cute_algebra import (
    coalesce,
    complement,
    composition,
    cosize,
    filter_layout,
    filter_zeros,
    left_inverse,
    max_common_layout,
    max_common_vector,
    nullspace,
    right_inverse,
)
from tileweave.layout.notation.cute_partition import (
    append,
    domain_offset,
    local_partition,
    local_tile,
    make_layout_tv,
    prepend,
    product_each,
    shape_div,
)
from tileweave.layout.notation.cute_recast import downcast, recast_layout, upcast
from tileweave.layout.notation.cute_tiling import (
    Cover,
    blocked_product,
    cover_divide,
    cover_tile_to_shape,
    flat_divide,
    flat_product,
    logical_divide,
    logical_product,
    make_ordered_layout,
    raked_product,
    tile_to_shape,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from tileweave.layout.notation.cute_tuples import (
    E,
    Shape,
    _,
    compatible,
    congruent,
    crd2crd,
    crd2idx,
    depth,
    flat_tuple,
    idx2crd,
    make_shape,
    rank,
    size,
    weakly_congruent,
)
from tileweave.layout.notation.cute_value import (
    CuteLayout,
    as_layout,
    concat,
    mode_number,
    nested_as,
    new_layout,
    selected,
    slice_with_offset,
    through_swizzles,
)
from tileweave.layout.text.cute_text import parse

__all__ = [
    "ComposedLayout",
    "Cover",
    "CuteLayout",
    "E",
    "F2Map",
    "Layout",
    "Swizzle",
    "XorLayout",
    "_",
    "append",
    "blocked_product",
    "coalesce",
    "compatible",
    "complement",
    "composition",
    "congruent",
    "cosize",
    "cover_divide",
    "cover_tile_to_shape",
    "crd2crd",
    "crd2idx",
    "depth",
    "dice",
    "domain_offset",
    "downcast",
    "f2_from_core",
    "f2_from_layout",
    "f2_from_swizzle",
    "f2_to_core",
    "f2_to_layout",
    "filter",
    "filter_layout",
    "filter_zeros",
    "flat_divide",
    "flat_product",
    "flatten",
    "from_coordinate_map",
    "from_index_map",
    "get",
    "group",
    "idx2crd",
    "left_inverse",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_layout_tv",
    "make_ordered_layout",
    "make_swizzle",
    "max_common_layout",
    "max_common_vector",
    "nullspace",
    "parse",
    "prepend",
    "product_each",
    "raked_product",
    "rank",
    "recast_layout",
    "right_inverse",
    "select",
    "shape",
    "shape_div",
    "size",
    "slice",
    "slice_",
    "slice_and_offset",
    "stride",
    "take",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "to_coordinate_map",
    "to_index_map",
    "ungroup",
    "upcast",
    "weakly_congruent",
    "xor_strides",
    "zipped_divide",
    "zipped_product",
]


Layout = CuteLayout
"""CuTe's own name for the value."""

setattr(CuteLayout, "__matmul__", composition)  # noqa: B010 - ``a @ b``; the value does not import its algebra

filter = filter_layout
"""CuTe's own name; Python's built-in keeps its name outside this module."""


# --- constructors: first mode fastest


def make_layout(*parts: Any, stride: Any = None) -> CuteLayout:
    """A layout from a shape (column-major strides), from shape and stride, or from layouts as its modes.

    Args:
        parts: a shape; a shape and a stride; or one or more layouts. A linear index runs first mode fastest.
        stride: the strides of the one shape that is given, as CuTe's DSL names them.

    Example:
        >>> print(make_layout((2, (3, 4))), make_layout((2, 3), (3, 1)))
        (2,(3,4)):(1,(2,6)) (2,3):(3,1)
        >>> print(make_layout(make_layout(2, 1), make_layout((3, 4), (2, 6))))
        (2,(3,4)):(1,(2,6))

    Source: CuTe.
    """
    where = "make_layout(*parts)"
    if stride is not None:
        if len(parts) != 1 or isinstance(parts[0], CuteLayout):
            raise LayoutError(where, "a stride needs one shape", legal="make_layout(shape, stride=stride)")
        return CuteLayout(parts[0], stride)
    if parts and all(isinstance(p, CuteLayout) for p in parts):
        return concat(list(parts), keep=True)
    if len(parts) == 1:
        return make_ordered_layout(make_shape(parts[0], where), 0)
    if len(parts) == 2 and not any(isinstance(p, CuteLayout) for p in parts):
        return CuteLayout(*parts)
    raise LayoutError(where, f"{len(parts)} parts make no layout", legal="a shape; a shape and a stride; layouts")


def make_layout_like(layout: CuteLayout) -> CuteLayout:
    """The compact layout of the same shape whose strides keep the order of the given ones; zero strides stay zero.

    Example:
        >>> print(make_layout_like(CuteLayout((4, 3, 2), (10, 0, 1))))
        (4,3,2):(2,0,1)

    Source: CuTe.
    """
    where = "make_layout_like(layout)"
    layout = as_layout(layout, where)
    need_numbers(where, layout)
    if isinstance(layout.zero, Coord):
        raise LayoutError(where, "coordinate strides have no order", inputs={"layout": layout}, legal="integer strides")
    modes, run = list(layout.flat), 1
    for k in sorted(range(len(modes)), key=lambda k: abs(layout.flat[k][1])):
        n, d = modes[k]
        if d:
            modes[k] = n, run
            run *= n
    return nested_as(layout, modes)


def make_identity_layout(shape: Any) -> CuteLayout:
    """The layout that maps each coordinate to itself: the stride of every leaf is its unit vector `E`.

    Example:
        >>> print(make_identity_layout((2, (3, 4))))
        (2,(3,4)):(1@0,(1@0@1,1@1@1))
    """
    where = "make_identity_layout(shape)"
    checked = make_shape(shape, where)

    def units(part: Shape, path: tuple[int, ...]) -> Any:
        return tuple(units(s, (*path, k)) for k, s in enumerate(part)) if isinstance(part, tuple) else E(*path)

    return CuteLayout(checked, units(checked, ()) if isinstance(checked, tuple) else E(0))


# --- parts


def shape(layout: CuteLayout, *path: int) -> Any:
    """The shape of a layout, or of the mode at `path`."""
    return get(layout, *path).shape


def stride(layout: CuteLayout, *path: int) -> Any:
    """The stride of a layout, or of the mode at `path`."""
    found = get(layout, *path)
    if not isinstance(found, CuteLayout):
        raise LayoutError("stride(layout, *path)", f"{found} has no strides", legal="a layout without a swizzle")
    return found.stride


@through_swizzles
def get(layout: CuteLayout, *path: int) -> CuteLayout:
    """The sublayout at a path of mode numbers, outermost first.

    Example:
        >>> print(get(CuteLayout((2, (3, 4)), (1, (2, 6))), 1, 0))
        3:2
    """
    for mode in path:
        layout = layout[mode]
    return layout


@through_swizzles
def take(layout: CuteLayout, begin: int, end: int) -> CuteLayout:
    """The modes ``begin .. end - 1`` as a layout."""
    begin, end = (mode_number(k, "take(layout, begin, end)") for k in (begin, end))
    if not 0 <= begin < end <= rank(layout):
        raise LayoutError(
            "take(layout, begin, end)",
            f"there are no modes {begin} to {end}",
            inputs={"layout": layout},
            legal=f"0 <= begin < end <= {rank(layout)}",
        )
    return concat(list(layout)[begin:end], keep=True)


@through_swizzles
def select(layout: CuteLayout, *modes: int) -> CuteLayout:
    """The named modes, in the order named.

    Example:
        >>> print(select(CuteLayout((2, 3, 4), (1, 2, 6)), 2, 0))
        (4,2):(6,1)
    """
    return concat([layout[k] for k in modes], keep=True)


@through_swizzles
def group(layout: CuteLayout, begin: int, end: int) -> CuteLayout:
    """The same map with the modes ``begin .. end - 1`` nested into one; linear indices keep their values.

    Example:
        >>> print(group(CuteLayout((2, 3, 4), (1, 2, 6)), 1, 3))
        (2,(3,4)):(1,(2,6))
    """
    inner = take(layout, begin, end)
    modes = list(layout)
    return concat([*modes[:begin], inner, *modes[end:]], keep=True)


@through_swizzles
def ungroup(layout: CuteLayout, mode: int) -> CuteLayout:
    """The same map with one nested mode opened; inverse of `group`.

    Example:
        >>> print(ungroup(CuteLayout((2, (3, 4)), (1, (2, 6))), 1))
        (2,3,4):(1,2,6)
    """
    inner = layout[mode]
    modes = list(layout)
    mode %= len(modes)
    return concat([*modes[:mode], *inner, *modes[mode + 1 :]], keep=True)


@through_swizzles
def flatten(layout: CuteLayout) -> CuteLayout:
    """The same map without nesting.

    Example:
        >>> print(flatten(CuteLayout((2, (3, 4)), (1, (2, 6)))))
        (2,3,4):(1,2,6)
    """
    if not isinstance(layout.shape, tuple):
        return layout
    return new_layout(flat_tuple(layout.shape), flat_tuple(layout.stride))


def slice_(layout: Any, crd: Any) -> Any:  # as in CuTe's DSL; C++ and pycute name the coordinate first
    """The modes at which the coordinate is `_` (or None), in order; `slice_and_offset` gives the offset of the rest.

    Behind a swizzle the fixed coordinates move into the offset, since the swizzle acts on the sum.

    Example:
        >>> print(slice_(CuteLayout((2, (3, 4)), (1, (2, 6))), (1, (_, 2))))
        3:2

    Source: CuTe, ``slice``.
    """
    if type(layout) is not CuteLayout and isinstance(crd, CuteLayout | ComposedLayout):
        layout, crd = crd, layout  # the order of CuTe C++ and pycute
    if isinstance(layout, ComposedLayout):
        return layout.slice(crd)
    return selected(as_layout(layout, "slice_(layout, crd)"), crd, True)


def slice_and_offset(layout: CuteLayout, crd: Any) -> tuple[CuteLayout, Any]:
    """The sliced layout and the value of the fixed coordinates: ``layout(crd with _ = c) = offset + sliced(c)``.

    Example:
        >>> sliced, offset = slice_and_offset(CuteLayout((2, (3, 4)), (1, (2, 6))), (1, (_, 2)))
        >>> print(sliced, offset)
        3:2 13
    """
    return slice_with_offset(as_layout(layout, "slice_and_offset(layout, crd)"), crd)


slice = slice_
"""CuTe's own name; Python's built-in keeps its name outside this module."""


@through_swizzles
def dice(layout: CuteLayout, crd: Any) -> CuteLayout:
    """The modes at which the coordinate is **not** `_`, in order; the complement of `slice_`.

    Example:
        >>> print(dice(CuteLayout((2, (3, 4)), (1, (2, 6))), (1, (_, 2))))
        (2,4):(1,6)

    Source: CuTe, ``dice``.
    """
    return selected(layout, crd, False)


# --- conversions to and from the core: two maps, two names


def _core(pairs: list[tuple[int, Any]]) -> CoreLayout:
    return CoreLayout(tuple(Iter(n, Coord.of(d)) for n, d in pairs))


def to_index_map(layout: CuteLayout) -> CoreLayout:
    """The core layout with the same value at every **linear index**: the flat modes in reverse, since the core is
    row-major and CuTe is not.

    Example:
        >>> print(to_index_map(CuteLayout((2, 3), (1, 10))))
        (3:10@m, 2:1@m)
    """
    return _core(list(reversed(as_layout(layout, "to_index_map(layout)").flat)))


def to_coordinate_map(layout: CuteLayout) -> CoreLayout:
    """The core layout with the same value at every **coordinate** of the top-level modes, under the row-major shape of
    their sizes: top-level order kept, each mode reversed inside.

    Example:
        >>> print(to_coordinate_map(CuteLayout(((2, 2), 3), ((1, 8), 2))))
        (2:8@m, 2:1@m, 3:2@m)
    """
    layout = as_layout(layout, "to_coordinate_map(layout)")
    return _core([pair for mode in layout for pair in reversed(mode.flat)])


def _plain(core: CoreLayout, where: str) -> None:
    need_layouts(where, core)
    if any(it.extent > 1 for it in core.replica) or core.offset:
        part = "replicas" if any(it.extent > 1 for it in core.replica) else f"the offset {core.offset}"
        raise no_layout(
            where,
            f"a CuTe layout has no {part.removeprefix('the ')}",
            inputs={"core": core},
            legal="a core layout with empty R and O; keep the offset beside it",
            points=(0,),
            values=(core.offset,),
            condition="the origin goes to 0 alone",
        )


def _strides(core: CoreLayout) -> list[tuple[int, Any]]:
    """The iters with integer strides where all lie on the default axis, with coordinates otherwise."""
    one_axis = all(set(it.stride.axes) <= {DEFAULT_AXIS} for it in core.shard)
    return [(it.extent, it.stride[DEFAULT_AXIS] if one_axis else it.stride) for it in core.shard]


def from_index_map(core: CoreLayout) -> CuteLayout:
    """The flat CuTe layout with the value of a core layout at every linear index; inverse of `to_index_map`.

    Raises:
        NoLayout: the core layout has replicas or an offset.
    """
    _plain(core, "from_index_map(core)")
    pairs = _strides(core)[::-1]
    if len(pairs) == 1:
        return CuteLayout(*pairs[0])
    return CuteLayout(tuple(n for n, _d in pairs), tuple(d for _n, d in pairs))


def from_coordinate_map(core: CoreLayout, shape: tuple[int, ...]) -> CuteLayout:
    """The CuTe layout with one top-level mode per entry of `shape` and the values of `core` at its coordinates.

    Args:
        core: a core layout without replicas and offset.
        shape: row-major extents; each must be the product of consecutive iters of D.

    Raises:
        Incongruent: an extent ends inside an iter; group the layout first.
        NoLayout: replicas or an offset.

    Example:
        >>> core = to_coordinate_map(CuteLayout(((2, 2), 3), ((1, 8), 2)))
        >>> print(from_coordinate_map(core, (4, 3)))
        ((2,2),3):((1,8),2)
    """
    where = "from_coordinate_map(core, shape)"
    _plain(core, where)
    if not isinstance(shape, tuple | list):
        raise LayoutError(where, f"{shape!r} is no shape", legal="a tuple of extents")
    shape = integers(shape, where, "extent")
    pairs = iter(_strides(core))
    modes = [_mode_of(extent, pairs, core, where) for extent in shape]
    if any(n > 1 for n, _d in pairs):
        raise Incongruent(where, f"shape {tuple(shape)} is too small", inputs={"core": core})
    return CuteLayout(tuple(m.shape for m in modes), tuple(m.stride for m in modes))


def _mode_of(extent: int, pairs: Iterator[tuple[int, Any]], core: CoreLayout, where: str) -> CuteLayout:
    found: list[tuple[int, Any]] = []
    have = 1
    while have < extent:
        n, d = next(pairs, (0, 0))
        have *= n
        found.insert(0, (n, d))
        if not n or extent % have:
            raise Incongruent(
                where,
                f"extent {extent} ends inside an iter",
                inputs={"core": core},
                legal="a shape made of whole iters",
            )
    found = [pair for pair in found if pair[0] > 1] or [(1, 0)]
    if len(found) == 1:
        return CuteLayout(*found[0])
    return CuteLayout(tuple(n for n, _d in found), tuple(d for _n, d in found))
