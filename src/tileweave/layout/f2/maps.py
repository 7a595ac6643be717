"""Linear maps over F2: bit matrices, whose addition is XOR.

An index is the set of its binary digits; a map is given by the images of the basis bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import index as as_index
from typing import Any

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import Incongruent, LayoutError
from tileweave.index import Expr
from tileweave.layout.core.checks import no_layout

MOST_BITS = 1 << 12
"""The most bits of an index or a value."""


def check_offset(value: Any, where: str, size: int | None = None) -> Any:
    """A plain integer or an integer array, within [0, size) where a size is given, from 0 else.

    Raises:
        LayoutError: anything else.
    """
    legal = "integers from 0" if size is None else f"0..{size - 1}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        if value.size and (int(value.min()) < 0 or (size is not None and int(value.max()) >= size)):
            bad = int(value.min()) if int(value.min()) < 0 else int(value.max())
            raise LayoutError(where, f"{bad} is out of range", legal=legal)
        return value
    if isinstance(value, bool | np.bool_ | np.ndarray) or not hasattr(type(value), "__index__"):
        raise LayoutError(where, f"{value!r} is no pattern of bits", legal=f"{legal}, arrays of them, or an expression")
    number = int(as_index(value))
    if number < 0 or (size is not None and number >= size):
        raise LayoutError(where, f"{number} is out of range", legal=legal)
    return number


def need_map(value: object, where: str) -> None:
    """Raise a `LayoutError` unless the argument is an `F2Map`."""
    if not isinstance(value, F2Map):
        raise LayoutError(where, f"{value!r} is no map over F2", legal="F2Map(columns, rows)")


def check_disjoint(columns: Sequence[int], layout: object, where: str) -> None:
    """Raise a `NoLayout` with two basis bits unless the images of all have no bit in common, so that XOR is a sum."""
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


@drawn_by("tileweave.layout.analysis.svg")
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
        if not isinstance(self.columns, tuple | list) or type(self.rows) is not int or not 0 <= self.rows <= MOST_BITS:
            raise LayoutError(
                "F2Map(columns, rows)",
                f"rows {self.rows!r}",
                legal=f"a list of patterns, and an integer 0..{MOST_BITS}",
            )
        object.__setattr__(self, "columns", tuple(self.columns))
        for j, column in enumerate(self.columns):
            if type(column) is not int or not 0 <= column < 1 << self.rows:
                raise LayoutError(
                    "F2Map(columns, rows)",
                    f"column {j} is {column!r}",
                    legal=f"patterns of {self.rows} bits, as integers",
                )

    @classmethod
    def identity(cls, bits: int) -> F2Map:
        """The map that keeps every pattern of so many bits."""
        if type(bits) is not int or not 0 <= bits <= MOST_BITS:
            raise LayoutError("F2Map.identity(bits)", f"bits {bits!r}", legal=f"0..{MOST_BITS}")
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
        if not isinstance(index, Expr):
            index = check_offset(index, "F2Map(index)", self.size)
        if isinstance(index, int):
            return reduce(lambda out, j: out ^ (self.columns[j] if index >> j & 1 else 0), range(self.bits), 0)
        out: Any = 0 * index
        for j, column in enumerate(self.columns):
            if column:
                out = out ^ (index // (1 << j) % 2 * column)
        return out

    def compose(self, inner: F2Map) -> F2Map:
        """The map ``x -> self(inner(x))``."""
        need_map(inner, "F2Map.compose(inner)")
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
        value = check_offset(value, "F2Map.solve(value)")
        if not isinstance(value, int):
            raise LayoutError("F2Map.solve(value)", "an array is no pattern", legal="one integer from 0")
        return self._solved(value, self._eliminate()[0])

    def _solved(self, value: int, pivots: dict[int, tuple[int, int]]) -> int | None:
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
        pivots, kernel = self._eliminate()
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
            missing = next(1 << r for r in range(self.rows) if self._solved(1 << r, pivots) is None)
            raise no_layout(
                "F2Map.inverse()",
                f"{missing} is no image",
                inputs={"map": self},
                legal="a bijective map",
                points=(),
                values=(missing,),
                condition="every pattern is an image",
            )
        return F2Map(tuple(self._solved(1 << r, pivots) or 0 for r in range(self.rows)), self.bits)

    def matrix(self) -> np.ndarray[Any, Any]:
        """The bit matrix: row r, column j is bit r of the image of basis bit j."""
        out = np.zeros((self.rows, self.bits), dtype=np.uint8)
        for j, column in enumerate(self.columns):
            for r in range(self.rows):
                out[r, j] = column >> r & 1
        return out
