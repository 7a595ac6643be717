"""Swizzles, composed layouts, XOR strides and linear maps over F2 (bit matrices).

All of them map bit patterns: an index is the set of its binary digits, and addition becomes XOR. A strided layout is
such a map exactly when its size is a power of two and no two of its basis images share a bit (`f2_from_layout`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided
from tileweave.layout.cute_exact import BOUND, coalesce_flat, no_layout
from tileweave.layout.cute_value import CuteLayout, IntTuple, Stride, flat_tuple, make_shape, tuple_text, zip_shape
from tileweave.layout.layout import Coord

__all__ = [
    "ComposedLayout",
    "F2Map",
    "Swizzle",
    "XorLayout",
    "f2_from_layout",
    "f2_from_swizzle",
    "f2_to_layout",
    "make_swizzle",
    "xor_strides",
]


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
        if isinstance(offset, int):
            if offset < 0:
                raise LayoutError("Swizzle(offset)", f"offset {offset} is negative", legal="offsets from 0")
            picked = offset & self.source_mask
            return offset ^ (picked >> self.shift if self.shift >= 0 else picked << -self.shift)
        if isinstance(offset, np.ndarray):
            if offset.size and int(offset.min()) < 0:
                raise LayoutError("Swizzle(offset)", f"offset {int(offset.min())} is negative", legal="offsets from 0")
            bits = offset & self.source_mask
            return offset ^ (bits >> self.shift if self.shift >= 0 else bits << -self.shift)
        if not self.bits:
            return offset
        low = self.base + max(self.shift, 0)
        target = self.base - min(self.shift, 0)
        return offset ^ (offset // (1 << low) % (1 << self.bits)) * (1 << target)

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
        low = (mask & -mask).bit_length() - 1
        ones = mask >> max(low, 0)
        if mask < 0 or ones & (ones + 1):
            raise LayoutError("make_swizzle(source_mask, target_mask)", f"{mask:#b} is no run of ones")
        return low, ones.bit_length()

    if not source_mask and not target_mask:
        return Swizzle(0, 0, 0)
    (high, bits), (low, count) = run(source_mask), run(target_mask)
    if bits != count:
        raise LayoutError("make_swizzle(source_mask, target_mask)", f"masks of {bits} and {count} bits")
    return Swizzle(bits, min(high, low), high - low)


@dataclass(frozen=True, slots=True)
class ComposedLayout:
    """The map ``c -> outer(offset + inner(c))``: a layout behind a swizzle, or behind any layout.

    Args:
        outer: a `Swizzle` or a `CuteLayout`, applied last.
        offset: added to the inner value.
        inner: a `CuteLayout` with integer strides, which gives the shape (first mode fastest).

    Example:
        >>> tile = ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
        >>> print(tile, tile(1, 0), tile(1, 8))
        Sw<3,3,3> o 0 o (8,64):(64,1) 72 64

    Source: CuTe, ``ComposedLayout``.
    """

    outer: Swizzle | CuteLayout
    offset: int
    inner: CuteLayout

    def __post_init__(self) -> None:
        if isinstance(self.inner.zero, Coord):
            raise LayoutError(
                "ComposedLayout(outer, offset, inner)",
                "the inner layout has coordinate strides",
                inputs={"inner": self.inner},
                legal="integer strides",
            )
        low = self.offset + sum(min(0, d * (n - 1)) for n, d in self.inner.flat)
        high = self.offset + sum(max(0, d * (n - 1)) for n, d in self.inner.flat)
        limit = self.outer.size if isinstance(self.outer, CuteLayout) else None
        if low < 0 or (limit is not None and high >= limit):
            raise LayoutError(
                "ComposedLayout(outer, offset, inner)",
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
        """The value at a linear index (first mode fastest) or a coordinate."""
        return self.outer(self.offset + self.inner(*crd))

    def __str__(self) -> str:
        return f"{self.outer} o {self.offset} o {self.inner}"


# --- linear maps over F2


@dataclass(frozen=True, slots=True)
class F2Map:
    """A linear map on bits: the image of x is the XOR of the columns at the set bits of x.

    Args:
        columns: the images of the basis bits, lowest first, as bit patterns.
        rows: how many bits the values have; every column fits.

    Example:
        >>> swap = F2Map((0b10, 0b01), 2)
        >>> [swap(x) for x in range(4)], swap.inverse() == swap
        ([0, 2, 1, 3], True)

    Source: own; the maps of Triton's linear layouts.
    """

    columns: tuple[int, ...]
    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        for j, column in enumerate(self.columns):
            if type(column) is not int or not 0 <= column < 1 << self.rows:
                raise LayoutError(
                    "F2Map(columns, rows)", f"column {j} is {column!r}", legal=f"patterns of {self.rows} bits"
                )

    @classmethod
    def identity(cls, bits: int) -> F2Map:
        """The map that keeps every pattern of so many bits."""
        return cls(tuple(1 << j for j in range(bits)), bits)

    @property
    def bits(self) -> int:
        """The number of input bits."""
        return len(self.columns)

    @property
    def size(self) -> int:
        """The number of input patterns."""
        return 1 << len(self.columns)

    def __call__(self, index: Any) -> Any:
        """The image of a pattern: an integer in [0, size), an integer array, or an index expression."""
        if isinstance(index, int):
            if not 0 <= index < self.size:
                raise LayoutError("F2Map(index)", f"{index} is out of range", legal=f"0..{self.size - 1}")
            return reduce(lambda out, j: out ^ (self.columns[j] if index >> j & 1 else 0), range(self.bits), 0)
        if (
            isinstance(index, np.ndarray)
            and index.size
            and not (int(index.min()) >= 0 and int(index.max()) < self.size)
        ):
            raise LayoutError("F2Map(index)", "an index is out of range", legal=f"0..{self.size - 1}")
        out: Any = 0 * index
        for j, column in enumerate(self.columns):
            if column:
                out = out ^ (index // (1 << j) % 2 * column)
        return out

    def compose(self, inner: F2Map) -> F2Map:
        """The map ``x -> self(inner(x))``."""
        if inner.rows > self.bits:
            raise Incongruent("F2Map.compose(inner)", f"values of {inner.rows} bits for a map of {self.bits} bits")
        return F2Map(tuple(self(column) for column in inner.columns), self.rows)

    def _eliminate(self) -> tuple[dict[int, tuple[int, int]], list[int]]:
        """Pivot bit -> (reduced column, the inputs that make it), and a basis of the kernel."""
        pivots: dict[int, tuple[int, int]] = {}
        kernel = []
        for j, column in enumerate(self.columns):
            made = 1 << j
            while column:
                top = column.bit_length() - 1
                if top not in pivots:
                    pivots[top] = (column, made)
                    break
                column, made = column ^ pivots[top][0], made ^ pivots[top][1]
            else:
                kernel.append(made)
        return pivots, kernel

    @property
    def rank(self) -> int:
        """The dimension of the image."""
        return len(self._eliminate()[0])

    def kernel(self) -> tuple[int, ...]:
        """A basis of the patterns that go to 0."""
        return tuple(self._eliminate()[1])

    def greatest(self) -> int:
        """The greatest value, as a number."""
        best = 0
        for column, _made in sorted((found for found in self._eliminate()[0].values()), reverse=True):
            best = max(best, best ^ column)
        return best

    def is_injective(self) -> bool:
        """Whether no two patterns have the same image."""
        return self.rank == self.bits

    def is_surjective(self) -> bool:
        """Whether every pattern of `rows` bits is an image."""
        return self.rank == self.rows

    def solve(self, value: int) -> int | None:
        """Some pattern whose image is `value`, or None if there is none."""
        pivots, _kernel = self._eliminate()
        made = 0
        while value:
            top = value.bit_length() - 1
            if top not in pivots:
                return None
            value, made = value ^ pivots[top][0], made ^ pivots[top][1]
        return made

    def inverse(self) -> F2Map:
        """The inverse of a bijective map.

        Raises:
            NoLayout: the map is not square, or two patterns (the witness) have the same image.
        """
        kernel = self.kernel()
        if kernel:
            raise no_layout(
                "F2Map.inverse()",
                f"{kernel[0]} and 0 both go to 0",
                inputs={"map": self},
                legal="a bijective map",
                points=(0, kernel[0]),
                values=(0, 0),
                condition="f(x) = f(y) only if x = y",
            )
        if self.bits != self.rows:
            missing = next(1 << r for r in range(self.rows) if self.solve(1 << r) is None)
            raise no_layout(
                "F2Map.inverse()",
                f"{missing} is no image",
                inputs={"map": self},
                legal="a bijective map",
                points=(),
                values=(missing,),
                condition="every pattern is an image",
            )
        return F2Map(tuple(self._solved(1 << r) for r in range(self.rows)), self.bits)

    def _solved(self, value: int) -> int:
        found = self.solve(value)
        return 0 if found is None else found

    def matrix(self) -> np.ndarray[Any, Any]:
        """The bit matrix: row r, column j is bit r of the image of basis bit j."""
        out = np.zeros((self.rows, self.bits), dtype=np.uint8)
        for j, column in enumerate(self.columns):
            for r in range(self.rows):
                out[r, j] = column >> r & 1
        return out


def _log2(extent: int) -> int | None:
    return extent.bit_length() - 1 if extent & (extent - 1) == 0 else None


def f2_from_layout(layout: CuteLayout | ComposedLayout, rows: int | None = None) -> F2Map:
    """The F2 map of a layout's linear index (first mode fastest), which exists iff the layout is linear over F2.

    A strided layout is linear iff its size is a power of two, no value is negative, and the images of its basis
    bits have pairwise disjoint bits; behind a swizzle, iff the inner part is and the offset is 0.

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
    _check_disjoint(columns, layout, where)
    need = max((c.bit_length() for c in columns), default=0)
    return F2Map(tuple(columns), need if rows is None else rows)


def _check_disjoint(columns: Sequence[int], layout: object, where: str) -> None:
    used = 0
    for j, column in enumerate(columns):
        if column < 0 or column & used:
            i = 0 if column < 0 else next(i for i in range(j) if columns[i] & column)
            x, y = (0, 1 << j) if column < 0 else (1 << i, 1 << j)
            values = (column,) if column < 0 else (columns[i], column, columns[i] + column)
            problem = (
                f"value {column} is negative"
                if column < 0
                else f"f({x}) = {columns[i]} and f({y}) = {column} share a bit"
            )
            raise no_layout(
                where,
                problem,
                inputs={"layout": layout},
                legal="basis images with disjoint bits",
                points=(x, y, x | y),
                values=values,
                condition="f(x ^ y) = f(x) ^ f(y)",
            )
        used |= column


def _f2_from_composed(layout: ComposedLayout, rows: int | None) -> F2Map:
    where = "f2_from_layout(layout)"
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
    inner = tuple(layout.offset + layout.inner(1 << j) for j in range(bits))
    sound = isinstance(layout.outer, Swizzle) and not layout.offset and not any(c < 0 for c in inner)
    if not (sound and sum(inner) == reduce(lambda a, b: a | b, inner, 0)):
        _enumerate_linear(layout, columns, bits, where)
    need = max((c.bit_length() for c in columns), default=0)
    return F2Map(columns, need if rows is None else rows)


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
        bad = np.flatnonzero(layout(index) != want)
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
    need = (swizzle.source_mask | swizzle.target_mask).bit_length()
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
    _check_disjoint(f.columns, f, "f2_to_layout(f)")
    modes = coalesce_flat([(2, c) for c in f.columns])
    if len(modes) < 2:
        return CuteLayout(*(modes[0] if modes else (1, 0)))
    return CuteLayout(tuple(n for n, _d in modes), tuple(d for _n, d in modes))


# --- XOR strides


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
        index = CuteLayout(self.shape, _compact_stride(self.shape))(*crd)
        return self.to_f2()(index)

    def __str__(self) -> str:
        return f"{tuple_text(self.shape)}:{tuple_text(self.stride)}^"


def _compact_stride(shape: IntTuple) -> Stride:
    def runs() -> Iterator[int]:
        run = 1
        for n in flat_tuple(shape):
            yield run
            run *= n

    out: Stride = zip_shape(shape, runs())
    return out


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
