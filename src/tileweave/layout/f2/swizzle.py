"""Swizzles, composed layouts, XOR strides and linear maps over F2 (bit matrices).

All of them map bit patterns: an index is the set of its binary digits, and addition becomes XOR. A strided layout is
such a map exactly when its size is a power of two and no two of its basis images share a bit (`f2_from_layout`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided
from tileweave.index import Expr, require
from tileweave.layout.core.checks import BOUND, need_numbers, no_layout
from tileweave.layout.core.coord import Coord, integer
from tileweave.layout.core.rows import coalesce as coalesce_rows
from tileweave.layout.core.symbolic import is_expr, least_and_greatest, simple
from tileweave.layout.f2.maps import MOST_BITS, F2Map, check_disjoint, check_offset, need_map
from tileweave.layout.notation.cute_algebra import coalesce, composition, extend
from tileweave.layout.notation.cute_recast import downcast, upcast
from tileweave.layout.notation.cute_tuples import (
    IntTuple,
    Stride,
    compact_strides,
    flat_tuple,
    inner_product,
    make_shape,
    tuple_text,
    zip_shape,
)
from tileweave.layout.notation.cute_value import CuteLayout, as_layout, is_free, slice_with_offset


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class Swizzle:
    """The map that XORs some bits of an offset with others; its own inverse.

    Bits ``base + max(shift, 0) ..`` are the source, bits ``base - min(shift, 0) ..`` the target.

    Args:
        bits: B, how many bits take part, from 0.
        base: M, how many low bits stay untouched, from 0.
        shift: S, the distance from target to source; ``|shift| >= bits``, so that source and target are apart.

    Example:
        >>> Swizzle(2, 0, 3)(8), Swizzle(2, 0, 3)(9), str(Swizzle(3, 4, 3))
        (9, 8, 'Sw<3,4,3>')

    Source: CuTe, ``Swizzle<B, M, S>``.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        where = "Swizzle(bits, base, shift)"
        for name in ("bits", "base", "shift"):
            if type(getattr(self, name)) is not int:
                raise LayoutError(where, f"{name} {getattr(self, name)!r} is not an integer", legal="three integers")
        if self.bits < 0 or self.base < 0:
            raise LayoutError(where, f"{self} has a negative bit count", legal="bits and base from 0")
        if self.bits + self.base + abs(self.shift) > MOST_BITS:
            raise LayoutError(
                where, f"{self} reaches beyond {MOST_BITS} bits", legal=f"at most {MOST_BITS} bits in all"
            )
        if abs(self.shift) < self.bits:
            raise LayoutError(
                where, f"source and target bits of {self} overlap", legal=f"a shift of at least {self.bits} either way"
            )

    @property
    def source_mask(self) -> int:
        """The bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    @property
    def target_mask(self) -> int:
        """The bits that are changed."""
        return ((1 << self.bits) - 1) << (self.base - min(self.shift, 0))

    def __call__(self, offset: Any) -> Any:
        """The swizzled offset: an integer from 0, an integer array or an index expression."""
        if not isinstance(offset, Expr):
            offset = check_offset(offset, "Swizzle(offset)")
            picked = offset & self.source_mask
            return offset ^ (picked >> self.shift if self.shift >= 0 else picked << -self.shift)
        if not self.bits:
            return offset
        low = self.base + max(self.shift, 0)
        target = self.base - min(self.shift, 0)
        return offset ^ (offset // (1 << low) % (1 << self.bits)) * (1 << target)

    def composed(self, a: Any, b: Any) -> Any:
        """``composition(a, b)``, one of which this is."""
        return compose_swizzled(a, b)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


def make_swizzle(source_mask: int, target_mask: int) -> Swizzle:
    """The swizzle that XORs the bits of `source_mask` onto those of `target_mask`.

    Raises:
        LayoutError: a mask that is no run of ones, or masks of different lengths.

    Example:
        >>> print(make_swizzle(0b111000000, 0b111000))
        Sw<3,3,3>
    """

    def run(mask: int) -> tuple[int, int]:
        if type(mask) is not int:
            raise LayoutError("make_swizzle(source_mask, target_mask)", f"{mask!r} is no mask", legal="integers")
        low = (mask & -mask).bit_length() - 1
        ones = mask >> max(low, 0)
        if mask < 0 or ones & (ones + 1):
            raise LayoutError("make_swizzle(source_mask, target_mask)", f"{mask:#b} is no run of ones")
        return low, ones.bit_length()

    (high, bits), (low, count) = run(source_mask), run(target_mask)
    if not bits and not count:
        return Swizzle(0, 0, 0)
    if bits != count:
        raise LayoutError("make_swizzle(source_mask, target_mask)", f"masks of {bits} and {count} bits")
    return Swizzle(bits, min(high, low), high - low)


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class ComposedLayout:
    """The map ``c -> outer(offset + inner(c))``: a layout behind a swizzle, or behind any layout.

    Args:
        outer: a `Swizzle` or a `CuteLayout`, applied last.
        offset: added to the inner value.
        inner: a layout with integer values, composed or not, which gives the shape (first mode fastest).

    Example:
        >>> tile = ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
        >>> print(tile, tile(1, 0), tile(1, 8))
        Sw<3,3,3> o 0 o (8,64):(64,1) 72 64

    Source: CuTe, ``ComposedLayout``.
    """

    outer: Swizzle | CuteLayout
    offset: int
    inner: CuteLayout | ComposedLayout

    def __post_init__(self) -> None:
        where = "ComposedLayout(outer, offset, inner)"
        outer: Any = self.outer
        inner: Any = self.inner
        if not isinstance(outer, Swizzle | CuteLayout) or not isinstance(inner, CuteLayout | ComposedLayout):
            problem = f"{outer!r} and {inner!r} are not such parts"
            raise LayoutError(where, problem, legal="a swizzle or a layout, and a layout, composed or not")
        object.__setattr__(self, "offset", integer(self.offset, where, "offset"))
        if isinstance(self.inner, CuteLayout) and isinstance(self.inner.zero, Coord):
            raise LayoutError(
                where,
                "the inner layout has coordinate strides",
                inputs={"inner": self.inner},
                legal="integer strides",
            )
        low, high = (self.offset + bound for bound in _bounds(self.inner))
        limit = self.outer.size if isinstance(self.outer, CuteLayout) else None
        if any(map(is_expr, (low, high, limit))):
            require((low >= 0) & (True if limit is None else high < limit), where)
        elif low < 0 or (limit is not None and high >= limit):
            raise LayoutError(
                where,
                f"the inner values {low}..{high} leave the outer domain",
                inputs={"outer": self.outer, "inner": self.inner},
                legal="values from 0" if limit is None else f"values in 0..{limit - 1}",
            )

    @property
    def shape(self) -> IntTuple:
        """The shape of the inner layout."""
        return self.inner.shape

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return self.inner.size

    @property
    def is_symbolic(self) -> bool:
        """Whether the offset, an extent or a stride is an index expression."""
        outer = isinstance(self.outer, CuteLayout) and self.outer.is_symbolic
        return is_expr(self.offset) or outer or self.inner.is_symbolic

    @property
    def cosize(self) -> int:
        """One more than the greatest value: exact, by F2 elimination where the map is linear, else by listing.

        Raises:
            Undecided: not linear, and more indices than `BOUND`.
        """
        try:
            return 1 + f2_from_layout(self).greatest()
        except NoLayout:
            pass
        if self.size > BOUND:
            raise Undecided(
                "ComposedLayout.cosize", f"{self.size} values", inputs={"layout": self}, facts={"bound": BOUND}
            )
        return 1 + int(np.max(self(np.arange(self.size))))

    def __call__(self, *crd: Any) -> Any:
        """The value at a linear index (first mode fastest) or a coordinate; with `_`, the slice that it leaves."""
        if any(map(is_free, crd)):
            return self.slice(crd[0] if len(crd) == 1 else crd)
        return simple(self._placed(crd))

    def _placed(self, crd: tuple[Any, ...]) -> Any:
        """The value at a coordinate; an expression is simplified once, where the outermost layout has it."""
        if isinstance(self.inner, ComposedLayout):
            inside = self.inner._placed(crd)
        elif any(isinstance(c, Expr) for c in crd):
            at = crd[0] if len(crd) == 1 else crd
            inside = inner_product(at, self.inner.shape, self.inner.stride, "layout(coordinate)")
        else:
            inside = self.inner(*crd)
        return self.outer(self.offset + inside)

    def with_inner(self, inner: CuteLayout | ComposedLayout) -> ComposedLayout:
        """The same with another inner layout."""
        return replace(self, inner=inner)

    def composed(self, a: Any, b: Any) -> Any:
        """``composition(a, b)``, one of which this is."""
        return compose_swizzled(a, b)

    def recast(self, factor: int, up: bool, where: str) -> ComposedLayout:
        """Up- or downcast by a factor: the base of the swizzle moves by the bits of the factor."""
        return _recast_swizzle(self, factor, up, where)

    def slice(self, crd: Any) -> ComposedLayout:
        """The modes at which the coordinate is `_`; the fixed coordinates move into the offset."""
        if isinstance(self.inner, ComposedLayout):
            return ComposedLayout(self.outer, self.offset, self.inner.slice(crd))
        inner, offset = slice_with_offset(self.inner, crd)
        return ComposedLayout(self.outer, self.offset + offset, inner)

    def __str__(self) -> str:
        return f"{self.outer} o {self.offset} o {self.inner}"


def compose_swizzled(a: Any, b: Any) -> Any:
    """Compositions with a swizzle on either side: a `ComposedLayout`, and less where the swizzles cancel."""
    if isinstance(a, Swizzle) and isinstance(b, Swizzle):
        if a == b:
            return Swizzle(0, 0, 0)
        raise LayoutError(
            "composition(a, b)",
            f"{a} o {b} is no single swizzle",
            legal="maps over F2: f2_from_swizzle(a, bits).compose(f2_from_swizzle(b, bits))",
        )
    if not isinstance(a, Swizzle | ComposedLayout):
        a = as_layout(a, "composition(a, b)")
    if isinstance(b, Swizzle):
        size = (a.inner if isinstance(a, ComposedLayout) else a).size
        b = ComposedLayout(b, 0, CuteLayout(size, 1))
    elif not isinstance(b, ComposedLayout):
        b = as_layout(b, "composition(a, b)")
    if isinstance(a, ComposedLayout):
        return a.with_inner(composition(a.inner, b))
    if isinstance(b, ComposedLayout):
        if a == b.outer and not b.offset and isinstance(a, Swizzle):
            return b.inner
        if isinstance(a, CuteLayout):
            if coalesce(a) == CuteLayout(a.size, 1) and b.cosize <= a.size:
                return b
            a = extend(a, b.cosize)
    return ComposedLayout(a, 0, b)


def _recast_swizzle(layout: ComposedLayout, factor: int, up: bool, where: str) -> ComposedLayout:
    """Up- or downcast behind a swizzle: its base moves by the bits of the factor."""
    bits = factor.bit_length() - 1
    outer = layout.outer
    cast = upcast if up else downcast
    if not isinstance(outer, Swizzle) or isinstance(layout.inner, ComposedLayout) or factor != 1 << bits:
        raise LayoutError(
            where, "only one swizzle over a layout can be recast, by a power of two", inputs={"layout": layout}
        )
    if up and ((outer.bits and outer.base < bits) or layout.offset % factor):
        raise no_layout(
            where,
            f"{outer} with the offset {layout.offset} reorders elements inside a unit of {factor}",
            inputs={"layout": layout},
            legal=f"a base of at least {bits}, an offset that {factor} divides",
            points=(layout.offset,),
            values=(layout(0),),
            condition=f"{bits} <= base",
        )
    base = max(outer.base - bits, 0) if up else outer.base + bits
    offset = layout.offset // factor if up else layout.offset * factor
    return ComposedLayout(Swizzle(outer.bits, base, outer.shift), offset, cast(layout.inner, factor))


def _bounds(layout: CuteLayout | ComposedLayout) -> tuple[int, int]:
    """The least and the greatest value; 0 stands for the least of a composed layout, which is never negative."""
    if isinstance(layout, ComposedLayout):
        return 0, layout.cosize - 1
    low, high = least_and_greatest(0, 0, [d * (n - 1) for n, d in layout.flat])
    return low, high


# --- linear maps over F2


def _log2(extent: int) -> int | None:
    return extent.bit_length() - 1 if extent & (extent - 1) == 0 else None


def f2_from_layout(layout: CuteLayout | ComposedLayout, rows: int | None = None) -> F2Map:
    """The F2 map of a layout's linear index (first mode fastest), which exists iff the layout is linear over F2.

    A strided layout is linear iff its size is a power of two, no value is negative, and the images of its basis
    bits have pairwise disjoint bits; a composed layout is linear where its parts
    are and the offset is 0, and else is decided by listing its values.

    Args:
        layout: integer strides.
        rows: bits of the values; left out, as many as the values need.

    Raises:
        NoLayout: with two indices x, y where ``f(x ^ y) != f(x) ^ f(y)``, or the extent that is no power of two.

    Example:
        >>> f2_from_layout(CuteLayout((2, 4), (4, 1)))
        F2Map(columns=(4, 1, 2), rows=3)

    Source: own, by the enumeration of small cases.
    """
    if isinstance(layout, ComposedLayout):
        return _f2_from_composed(layout, rows)
    where = "f2_from_layout(layout)"
    layout = as_layout(layout, where)
    need_numbers(where, layout)
    if isinstance(layout.zero, Coord):
        raise LayoutError(where, "the strides are coordinates", inputs={"layout": layout}, legal="integer strides")
    columns: list[int] = []
    for n, d in layout.flat:
        bits = _log2(n)
        if bits is None:
            raise no_layout(
                where,
                f"extent {n} is no power of two",
                inputs={"layout": layout},
                legal="extents that are powers of two",
                points=(n,),
                values=(n,),
                condition="the extent is a power of two",
            )
        columns += [d << k for k in range(bits)]
    check_disjoint(columns, layout, where)
    need = max((c.bit_length() for c in columns), default=0)
    return F2Map(tuple(columns), need if rows is None else rows)


def _f2_from_composed(layout: ComposedLayout, rows: int | None) -> F2Map:
    where = "f2_from_layout(layout)"
    need_numbers(where, layout)
    if layout(0) != 0:
        raise no_layout(
            where,
            f"the origin goes to {layout(0)}",
            inputs={"layout": layout},
            legal="a map with f(0) = 0",
            points=(0,),
            values=(layout(0),),
            condition="f(0) = 0",
        )
    bits = _log2(layout.size)
    if bits is None:
        raise no_layout(
            where,
            f"size {layout.size} is no power of two",
            inputs={"layout": layout},
            legal="a size of a power of two",
            points=(layout.size,),
            values=(),
            condition="the size is a power of two",
        )
    columns = tuple(int(layout(1 << j)) for j in range(bits))
    if not (layout.offset == 0 and _is_linear(layout.inner) and _is_linear(layout.outer)):
        _enumerate_linear(layout, columns, bits, where)
    need = max((c.bit_length() for c in columns), default=0)
    return F2Map(columns, need if rows is None else rows)


def _is_linear(part: Swizzle | CuteLayout | ComposedLayout) -> bool:
    """Whether a part is linear over F2 by itself, without enumeration of the whole."""
    if isinstance(part, Swizzle):
        return True
    try:
        f2_from_layout(part)
    except NoLayout:
        return False
    return True


def _enumerate_linear(layout: ComposedLayout, columns: tuple[int, ...], bits: int, where: str) -> None:
    """Compares all values; a composed layout may be linear although its inner part is not."""
    if any(c < 0 for c in columns):
        j = next(j for j, c in enumerate(columns) if c < 0)
        raise no_layout(
            where,
            f"value {columns[j]} is negative",
            inputs={"layout": layout},
            legal="values from 0",
            points=(1 << j,),
            values=(columns[j],),
            condition="f(x) >= 0",
        )
    if bits > 26:
        raise Undecided(
            where, f"2^{bits} values would have to be compared", inputs={"layout": layout}, facts={"bound": 1 << 26}
        )
    for chunk in range(0, 1 << bits, 1 << 20):
        index = np.arange(chunk, min(chunk + (1 << 20), 1 << bits))
        want = np.zeros_like(index)
        for j, c in enumerate(columns):
            want ^= (index >> j & 1) * c
        bad = np.flatnonzero(np.asarray(layout(index)) != want)
        if bad.size:
            x = int(index[bad[0]])
            top = 1 << (x.bit_length() - 1)
            values = (int(layout(top)), int(layout(x ^ top)), int(layout(x)))
            raise no_layout(
                where,
                f"f({top}) ^ f({x ^ top}) is not f({x})",
                inputs={"layout": layout},
                legal="a map that is linear over F2",
                points=(top, x ^ top, x),
                values=values,
                condition="f(x ^ y) = f(x) ^ f(y)",
            )


def f2_from_swizzle(swizzle: Swizzle, bits: int) -> F2Map:
    """The F2 map of a swizzle on patterns of `bits` bits; it must hold source and target.

    Example:
        >>> f2_from_swizzle(Swizzle(1, 0, 1), 2).columns
        (1, 3)
    """
    if not isinstance(swizzle, Swizzle):
        raise LayoutError("f2_from_swizzle(swizzle, bits)", f"{swizzle!r} is no swizzle", legal="Swizzle(B, M, S)")
    need = (swizzle.source_mask | swizzle.target_mask).bit_length()
    if type(bits) is not int or not 0 <= bits <= MOST_BITS:
        raise LayoutError("f2_from_swizzle(swizzle, bits)", f"bits {bits!r}", legal=f"0..{MOST_BITS}")
    if bits < need:
        raise Incongruent("f2_from_swizzle(swizzle, bits)", f"{swizzle} touches {need} bits, not {bits}")
    return F2Map(tuple(swizzle(1 << j) for j in range(bits)), bits)


def f2_to_layout(f: F2Map) -> CuteLayout:
    """The coalesced strided layout with the values of an F2 map, first mode fastest; exists iff no columns share a bit.

    Raises:
        NoLayout: with two basis inputs whose images share a bit, so that XOR is no addition there.

    Example:
        >>> print(f2_to_layout(F2Map((4, 1, 2), 3)))
        (2,4):(4,1)
    """
    need_map(f, "f2_to_layout(f)")
    check_disjoint(f.columns, f, "f2_to_layout(f)")
    modes = coalesce_rows([(2, c) for c in f.columns])
    if len(modes) < 2:
        return CuteLayout(*(modes[0] if modes else (1, 0)))
    return CuteLayout(tuple(n for n, _d in modes), tuple(d for _n, d in modes))


# --- XOR strides


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class XorLayout:
    """A layout whose terms are combined by XOR: coordinate c goes to the XOR of ``c_i (x) d_i``, a carry-less product.

    Args:
        shape: powers of two at the leaves, nested like CuTe shapes; a linear index runs first mode fastest.
        stride: integers from 0 with the same nesting.

    Example:
        >>> xor = XorLayout((8, 64), (72, 1))
        >>> sw = ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
        >>> all(xor(i) == sw(i) for i in range(512)), str(xor)
        (True, '(8,64):(72,1)^')

    Source: own; strides of CuTe's and Triton's F2 layouts.
    """

    shape: IntTuple
    stride: Stride

    def __post_init__(self) -> None:
        where = "XorLayout(shape, stride)"
        object.__setattr__(self, "shape", make_shape(self.shape, where))
        layout = CuteLayout(self.shape, self.stride)
        need_numbers(where, layout)
        object.__setattr__(self, "stride", layout.stride)
        for n, d in layout.flat:
            if _log2(n) is None or isinstance(d, Coord) or d < 0:
                raise LayoutError(where, f"mode {n}:{d} has no XOR form", legal="power-of-two extents, strides from 0")

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return CuteLayout(self.shape, self.stride).size

    def to_f2(self) -> F2Map:
        """The F2 map of the linear index; always exists."""
        columns = [d << k for n, d in CuteLayout(self.shape, self.stride).flat for k in range(n.bit_length() - 1)]
        return F2Map(tuple(columns), max((c.bit_length() for c in columns), default=0))

    def __call__(self, *crd: Any) -> Any:
        """The value at a linear index or a coordinate."""
        index = CuteLayout(self.shape, compact_strides(self.shape))(*crd)
        return self.to_f2()(index)

    def __str__(self) -> str:
        return f"{tuple_text(self.shape)}:{tuple_text(self.stride)}^"


def xor_strides(layout: CuteLayout | ComposedLayout | F2Map) -> XorLayout:
    """The XOR-stride layout with the same values; a mode is split only where its columns do not shift on.

    Raises:
        NoLayout: the values are not linear over F2 (witness as in `f2_from_layout`).

    Example:
        >>> print(xor_strides(ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))))
        (8,64):(72,1)^
    """
    if isinstance(layout, F2Map):
        shape: IntTuple = layout.size
        f = layout
    else:
        if not isinstance(layout, ComposedLayout):
            layout = as_layout(layout, "xor_strides(layout)")
        shape, f = layout.shape, f2_from_layout(layout)
    columns = iter(f.columns)
    shapes: list[IntTuple] = []
    strides: list[Any] = []
    for n in flat_tuple(shape):
        modes: list[tuple[int, int]] = []
        for _k in range(n.bit_length() - 1):
            column = next(columns)
            if modes and column == modes[-1][1] * modes[-1][0]:
                modes[-1] = (modes[-1][0] * 2, modes[-1][1])
            else:
                modes.append((2, column))
        modes = modes or [(1, 0)]
        single = len(modes) == 1
        shapes.append(modes[0][0] if single else tuple(m for m, _d in modes))
        strides.append(modes[0][1] if single else tuple(d for _m, d in modes))
    return XorLayout(zip_shape(shape, iter(shapes)), zip_shape(shape, iter(strides)))
