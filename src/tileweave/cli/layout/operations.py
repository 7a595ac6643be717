"""The operations that an expression may call, by the names of the papers, over all three notations.

A name that CuTe and Axe share (slice, group, complement, ..) goes by its arguments: with an Axe layout it is Axe's.
A layout of the one notation where the other is expected is refused, with the conversions named: there are two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import tileweave.layout as core
from tileweave.errors import LayoutError
from tileweave.index import maximum, minimum
from tileweave.layout import Layout, axe, cute, lego
from tileweave.layout.analysis.conflicts import remove_conflicts
from tileweave.layout.analysis.memory import bank_conflicts, coalescing, vector_width
from tileweave.layout.analysis.movement import conversion
from tileweave.layout.cute import ComposedLayout, CuteLayout, F2Map, Swizzle, XorLayout
from tileweave.layout.f2 import from_layout, places
from tileweave.layout.lego import GenP, GroupBy, OrderBy, RegP
from tileweave.layout.text.reader import CHAINS, CONSTRUCTORS, PairList, signature_of

Operation = Callable[..., Any]

_CONVERT_TO_CUTE = "from_index_map(L) or from_coordinate_map(L, shape)"
_CONVERT_TO_AXE = "to_index_map(L) or to_coordinate_map(L)"


# ---------------------------------------------------------------------------------------------------------------------
# arguments


def _cute(name: str, function: Operation, tilers: Sequence[int] = ()) -> Operation:
    """The operation on CuTe values; pairs in brackets are a tiler at the positions given."""

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        return function(*(ready(k, a) for k, a in enumerate(args)), **{k: ready(-1, a) for k, a in named.items()})

    def ready(place: int, value: Any) -> Any:
        if isinstance(value, PairList) and (place in tilers or len(value.pairs) == 1) and not value.square:
            return value.tiler()
        if isinstance(value, PairList | Layout):
            text = str(value.core()) if isinstance(value, PairList) else str(value)
            inputs = {"argument": text}
            legal = f"shape:stride, such as (4,8):(1,4); convert with {_CONVERT_TO_CUTE}"
            raise LayoutError(name, "an Axe layout stands where a CuTe layout belongs", inputs=inputs, legal=legal)
        return value

    return run


def _core(name: str, function: Operation) -> Operation:
    """The operation on Axe values; pairs in square brackets are a box."""

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        return function(*map(ready, args), **{k: ready(v) for k, v in named.items()})

    def ready(value: Any) -> Any:
        if isinstance(value, PairList):
            return value.pairs if value.square else value.core()
        if isinstance(value, CuteLayout | ComposedLayout):
            legal = f"(8:4@lane, 2:1@reg); convert with {_CONVERT_TO_AXE}"
            raise LayoutError(
                name, "a CuTe layout stands where an Axe layout belongs", inputs={"argument": value}, legal=legal
            )
        return Layout() if value == () else value

    return run


def _either(name: str, for_cute: Operation, for_core: Operation) -> Operation:
    """Axe's operation if the first argument is an Axe layout, else CuTe's."""

    def run(first: Any, /, *args: Any, **named: Any) -> Any:
        chosen = for_core if isinstance(first, PairList | Layout) else for_cute
        try:
            inspect.signature(chosen).bind(first, *args, **named)
        except TypeError as error:
            raise LayoutError(name, str(error), legal=signature_of(name, chosen)) from None
        return chosen(first, *args, **named)

    return run


def _plain(function: Operation) -> Operation:
    """An operation of LEGO, or an analysis of any layout: pairs in brackets are an Axe layout."""

    @wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        ready = [a.core() if isinstance(a, PairList) else a for a in args]
        return function(*ready, **named)

    return run


# ---------------------------------------------------------------------------------------------------------------------
# adapters


def _shaped(name: str, function: Operation) -> Operation:
    """``f(A, SA, B, SB)``; in ``f(A, B)`` each shape is the list of extents of D, where they are of one rank."""

    def run(a: Layout, *more: Any) -> Any:
        if len(more) == 3:
            return function(a, _shape(more[0]), more[1], _shape(more[2]))
        if len(more) == 1 and isinstance(more[0], Layout) and len(a.shard) == len(more[0].shard):
            return function(a, a.extents, more[0], more[0].extents)
        raise LayoutError(name, "the shapes are missing", legal=f"{name}(A, SA, B, SB) with shapes of one rank")

    return run


def _box(value: Any, where: str) -> tuple[tuple[int, int], ...]:
    if isinstance(value, PairList):
        value = value.pairs
    if isinstance(value, tuple) and value and all(isinstance(p, tuple) and len(p) == 2 for p in value):
        return value
    raise LayoutError(where, f"{value} is no box", legal="[0:8, 8:24], a begin and an end per dimension")


def _slice(layout: Layout, shape: Any, box: Any) -> Layout:
    return axe.slice(layout, _shape(shape), _box(box, "slice(layout, shape, box)"))


def _slice_pieces(layout: Layout, shape: Any, box: Any) -> Any:
    where = "slice_pieces(layout, shape, box)"
    region = _box(box, where)
    return axe.slice_pieces(layout, _shape(shape), [b for b, _ in region], [e - b for b, e in region])


def _shape(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else (value,)


def _on_shape(function: Operation) -> Operation:
    """An operation whose second argument is a shape; a number is one of rank one."""

    def run(layout: Layout, shape: Any) -> Any:
        return function(layout, _shape(shape))

    return run


# ---------------------------------------------------------------------------------------------------------------------
# the tables

_TILERS = {
    **dict.fromkeys(("composition", "logical_divide", "zipped_divide", "tiled_divide", "flat_divide"), (1,)),
    **dict.fromkeys(("logical_product", "zipped_product", "tiled_product", "flat_product", "cover_divide"), (1,)),
    **dict.fromkeys(("local_tile", "local_partition"), (1,)),
}

_OTHERWISE = {
    "ComposedLayout", "Cover", "CuteLayout", "F2Map", "Layout", "Swizzle", "XorLayout", "_", "f2_from_core",
    "f2_from_layout", "f2_from_swizzle", "f2_to_core", "f2_to_layout", "filter_layout", "from_coordinate_map",
    "from_index_map", "make_swizzle", "parse", "slice_", "xor_strides",
}  # fmt: skip
"""Names of CuTe's notation that are no operations on its layouts, or stand below in another family."""

_CUTE: dict[str, Operation] = {
    **{
        name: _cute(name, getattr(cute, name), _TILERS.get(name, ())) for name in cute.__all__ if name not in _OTHERWISE
    },
    "ComposedLayout": ComposedLayout,
    "Layout": _cute("Layout", CuteLayout),
}

_SWIZZLE: dict[str, Operation] = {
    "Swizzle": Swizzle,
    "XorLayout": XorLayout,
    "F2Map": F2Map,
    "make_swizzle": cute.make_swizzle,
    "xor_strides": _cute("xor_strides", cute.xor_strides),
    "f2_from_layout": _cute("f2_from_layout", cute.f2_from_layout),
    "f2_from_swizzle": cute.f2_from_swizzle,
    "f2_from_core": _core("f2_from_core", cute.f2_from_core),
    "f2_to_layout": cute.f2_to_layout,
    "linear_map": _plain(from_layout),
    "places": _plain(places),
}

_AXE_FUNCTIONS: dict[str, Operation] = {
    "admits": _on_shape(axe.admits),
    "bind": axe.bind,
    "canonicalize": axe.canonicalize,
    "collision": core.collision,
    "common_refinement": axe.common_refinement,
    "complement": core.complement,
    "compose": core.compose,
    "cosize": Layout.cosize,
    "direct_sum": _shaped("direct_sum", axe.direct_sum),
    "direct_sum_of": _shaped("direct_sum_of", axe.direct_sum_of),
    "divide": core.divide,
    "from_coordinate_map": cute.from_coordinate_map,
    "from_index_map": cute.from_index_map,
    "group": _on_shape(core.group),
    "groups": _on_shape(axe.groups),
    "holders": axe.holders,
    "is_compact": core.is_compact,
    "is_contiguous": core.is_contiguous,
    "is_injective": core.is_injective,
    "left_inverse": core.left_inverse,
    "normalize": core.normalize,
    "product": core.product,
    "right_inverse": core.right_inverse,
    "same_map": axe.same_map,
    "size": lambda layout: layout.size,
    "slice": _slice,
    "slice_pieces": _slice_pieces,
    "span": axe.span,
    "tile": _shaped("tile", axe.tile),
    "tile_of": _shaped("tile_of", axe.tile_of),
    "conversion": conversion,
}

_AXE: dict[str, Operation] = {name: _core(name, function) for name, function in _AXE_FUNCTIONS.items()}

_LEGO: dict[str, Operation] = {
    **{name: _plain(function) for name, function in CONSTRUCTORS.items() if hasattr(lego, name)},
    "from_core": _plain(lego.from_core),
    "to_core": _plain(lego.to_core),
}

_ANALYSES: dict[str, Operation] = {
    "vector_width": _plain(vector_width),
    "coalescing": _plain(coalescing),
    "bank_conflicts": _plain(bank_conflicts),
    "remove_conflicts": _plain(remove_conflicts),
    "min": minimum,
    "max": maximum,
}

_SHARED = set(_CUTE) & set(_AXE)

FAMILIES: Mapping[str, Mapping[str, Operation]] = {
    "CuTe": _CUTE,
    "Axe": _AXE,
    "LEGO": _LEGO,
    "swizzles": _SWIZZLE,
    "analyses": _ANALYSES,
}
"""The operations of each notation, by name; a name may stand in two."""

OPERATIONS: Mapping[str, Operation] = {
    **_CUTE,
    **_AXE,
    **_LEGO,
    **_SWIZZLE,
    **_ANALYSES,
    **{name: _either(name, _CUTE[name], _AXE[name]) for name in _SHARED},
}
"""Every operation that an expression may call."""

METHODS: Mapping[str, tuple[type, ...]] = {
    **CHAINS,
    "apply": (OrderBy, GroupBy, RegP, GenP, lego.PartialTiles),
    "inv": (OrderBy, GroupBy, RegP, GenP),
    "mask": (lego.PartialTiles,),
    "inverse": (F2Map,),
    "compose": (F2Map,),
    "to_f2": (XorLayout,),
    "span": (Layout,),
    "cosize": (Layout,),
    "bounds": (Layout,),
}
"""What may follow a dot, and after which values."""
