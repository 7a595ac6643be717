"""Ready-made bijections for LEGO: anti-diagonals, Morton and Hilbert curves, XOR swizzles, bricks, reversal, tables.

Each is written once and works on integers, integer arrays and index expressions; row-major, last dimension fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import Incongruent, LayoutError, NotDivisible
from tileweave.index import Expr
from tileweave.layout.core.checks import integer_array, no_layout
from tileweave.layout.core.symbolic import require_quotient
from tileweave.layout.notation.cute_tuples import positive
from tileweave.layout.notation.lego_numbers import Dim, choose, flat_index, lesser, make_dims, root, tuple_index
from tileweave.layout.notation.lego_value import GenP, GroupBy, OrderBy, RegP


def _integers(dims: Any, where: str) -> tuple[int, ...]:
    out = make_dims(dims, where)
    if any(isinstance(n, Expr) for n in out):
        raise LayoutError(where, "the shape is symbolic", legal="integer extents")
    return tuple(int(n) for n in out if isinstance(n, int))


def _bits(n: int, where: str) -> int:
    if n & (n - 1):
        raise LayoutError(where, f"extent {n} is no power of two", legal="powers of two")
    return n.bit_length() - 1


def _ready(
    dims: tuple[Dim, ...], apply: Callable[..., Any], inverse: Callable[..., Any] | None, call: str, proof: str
) -> GenP:
    """A ready-made bijection: its text is the call that makes it, and calls that read the same are equal."""
    out = GenP(dims, apply, inverse, name=call if len(call) <= 80 else call.split("(")[0], proof=proof)
    object.__setattr__(out, "_call", call)
    return out


def antidiagonal(n: int) -> GenP:
    """The n x n square in the order of its anti-diagonals, each from top right to bottom left.

    Example:
        >>> GroupBy((3, 3), OrderBy(antidiagonal(3))).table().tolist()
        [[0, 1, 3], [2, 4, 6], [5, 7, 8]]

    Source: LEGO, figure 8.
    """
    n = positive(n, "antidiagonal(n)", "n")

    def apply(i: Any, j: Any) -> Any:
        s = i + j + 1
        t = 2 * n - s
        return choose(s <= n, s * (s - 1) // 2 + i, n * n - n + i - t * (t - 1) // 2)

    def diagonal(p: Any) -> Any:
        """The number of anti-diagonals that end before p."""
        upper = (root(8 * p + 1) - 1) // 2
        return choose(p < n * (n + 1) // 2, upper, 2 * n - 2 - (root(8 * (n * n - 1 - p) + 1) - 1) // 2)

    def inverse(p: Any) -> tuple[Any, Any]:
        d = diagonal(p)
        t = 2 * n - 1 - d
        i = p - choose(d < n, d * (d + 1) // 2, n * n - n - t * (t - 1) // 2)
        return i, d - i

    return _ready((n, n), apply, inverse, f"antidiagonal({n})", "each anti-diagonal fills its own interval")


def _interleave(bits: Sequence[int]) -> list[tuple[int, int]]:
    """(dimension, bit) from the lowest bit of the number up: round robin, last dimension first, while bits are left."""
    out = []
    for level in range(max(bits, default=0)):
        out += [(d, level) for d in reversed(range(len(bits))) if level < bits[d]]
    return out


def morton(*dims: int) -> GenP:
    """The Z-order: the bits of the coordinates interleaved, the last dimension's lowest.

    Args:
        dims: powers of two; a longer dimension keeps its extra high bits on top.

    Example:
        >>> GroupBy((4, 4), OrderBy(morton(4, 4))).table()[1].tolist()
        [2, 3, 6, 7]
    """
    where = "morton(*dims)"
    shape = _integers(dims, where)
    places = _interleave([_bits(n, where) for n in shape])

    def apply(*index: Any) -> Any:
        out: Any = 0 * index[0]
        for at, (d, level) in enumerate(places):
            out = out + index[d] // (1 << level) % 2 * (1 << at)
        return out

    def inverse(p: Any) -> tuple[Any, ...]:
        out: list[Any] = [0 * p for _n in shape]
        for at, (d, level) in enumerate(places):
            out[d] = out[d] + p // (1 << at) % 2 * (1 << level)
        return tuple(out)

    return _ready(shape, apply, inverse, f"morton({', '.join(map(str, shape))})", "the bits are permuted")


def hilbert(n: int) -> GenP:
    """The Hilbert curve through the n x n square: consecutive numbers are neighbours.

    Args:
        n: a power of two.

    Example:
        >>> GroupBy((2, 2), OrderBy(hilbert(2))).table().tolist()
        [[0, 3], [1, 2]]

    Source: D. Hilbert, 1891; the bitwise form is folklore.
    """
    where = "hilbert(n)"
    n = positive(n, where, "n")
    levels = _bits(n, where)

    def turn(side: int, x: Any, y: Any, rx: Any, ry: Any) -> tuple[Any, Any]:
        """The quadrant's own coordinates: mirrored where rx is set, swapped, both only where ry is not."""
        mx, my = choose(rx < 1, x, side - 1 - x), choose(rx < 1, y, side - 1 - y)
        return choose(ry < 1, my, x), choose(ry < 1, mx, y)

    def apply(i: Any, j: Any) -> Any:
        x, y, out = i, j, 0 * i
        for level in reversed(range(levels)):
            side = 1 << level
            rx, ry = y // side % 2, x // side % 2
            out = out + side * side * (3 * rx + ry - 2 * rx * ry)
            y, x = y % side, x % side
            y, x = turn(side, y, x, rx, ry)
        return out

    def inverse(p: Any) -> tuple[Any, Any]:
        x, y = 0 * p, 0 * p
        for level in range(levels):
            side = 1 << level
            rx = p // 2 % 2
            ry = p % 2 + rx - 2 * (p % 2) * rx
            y, x = turn(side, y, x, rx, ry)
            y, x = y + side * rx, x + side * ry
            p = p // 4
        return x, y

    return _ready((n, n), apply, inverse, f"hilbert({n})", "every level permutes its four quadrants")


def xor_swizzle(rows: int, cols: int) -> GenP:
    """Row-major with the column XORed by the row: columns of a power-of-two tile fall into distinct banks.

    Args:
        rows: any extent, also an index expression.
        cols: a power of two; row i uses ``j ^ (i % cols)``.

    Example:
        >>> GroupBy((2, 4), OrderBy(xor_swizzle(2, 4))).table().tolist()
        [[0, 1, 2, 3], [5, 4, 7, 6]]
    """
    where = "xor_swizzle(rows, cols)"
    (height,), (cols,) = make_dims((rows,), where), _integers((cols,), where)
    _bits(cols, where)

    def apply(i: Any, j: Any) -> Any:
        return i * cols + (j ^ i % cols)

    def inverse(p: Any) -> tuple[Any, Any]:
        i = p // cols
        return i, p % cols ^ i % cols

    return _ready((height, cols), apply, inverse, f"xor_swizzle({height!r}, {cols})", "XOR permutes each row")


def bricks(shape: Any, brick: Any) -> GroupBy:
    """The layout of an array stored brick by brick, indexed by the array's own coordinates.

    A neighbour across the face of a brick is therefore found like any other.

    Args:
        shape: the array's extents, integers or index expressions.
        brick: the extents of a brick; each divides.

    Raises:
        NotDivisible: an extent of the brick does not divide. Unproved: with symbols, it is not proved to divide.

    Example:
        >>> bricks((4, 4), (2, 2)).table()[0].tolist()
        [0, 1, 4, 5]

    Source: LEGO, section 6 (bricks); indexing by whole coordinates is own.
    """
    where = "bricks(shape, brick)"
    outer, inner = make_dims(shape, where), make_dims(brick, where)
    if len(outer) != len(inner):
        raise Incongruent(where, f"{len(inner)} brick extents for {len(outer)} dimensions", legal="one for each")
    split: list[Any] = []
    for k, (n, b) in enumerate(zip(outer, inner, strict=True)):
        if isinstance(n, int) and isinstance(b, int) and n % b:
            raise NotDivisible(where, f"{b} does not divide extent {n} of dimension {k}", legal=f"a divisor of {n}")
        split += [require_quotient(n, b, where), b]
    rank = len(outer)
    sigma = tuple(2 * d + 1 for d in range(rank)) + tuple(2 * d + 2 for d in range(rank))
    return GroupBy(outer, OrderBy(RegP(tuple(split), sigma)))


def reversal(dims: Any, axes: Sequence[int] | None = None) -> GenP:
    """Row-major with some dimensions counted backwards; all of them if `axes` is left out. Extents may be symbolic.

    Example:
        >>> GroupBy((2, 3), OrderBy(reversal((2, 3), (1,)))).table().tolist()
        [[2, 1, 0], [5, 4, 3]]
    """
    where = "reversal(dims, axes)"
    shape = make_dims(dims, where)
    named = tuple(range(len(shape))) if axes is None else tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    turned = {int(a) for a in named if type(a) is int or isinstance(a, np.integer)}
    if len(turned) < len(named):
        raise LayoutError(where, f"axes {named} are not distinct integers", legal=f"0..{len(shape) - 1}")
    if not turned <= set(range(len(shape))):
        raise LayoutError(where, f"axes {sorted(turned)} do not exist", legal=f"0..{len(shape) - 1}")

    def mirror(index: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(n - 1 - i if d in turned else i for d, (i, n) in enumerate(zip(index, shape, strict=True)))

    def apply(*index: Any) -> Any:
        return flat_index(mirror(index), shape)

    def inverse(p: Any) -> tuple[Any, ...]:
        return mirror(tuple_index(p, shape))

    return _ready(
        shape, apply, inverse, f"reversal({shape}, {tuple(sorted(turned))})", "mirroring a dimension is its own inverse"
    )


def permutation(values: Any, dims: Any = None) -> GenP:
    """The bijection given by an array at run time: the element with flat index k goes to ``values[k]``.

    Args:
        values: a permutation of 0..n-1, any integer array.
        dims: the logical shape; left out, the array's.

    Raises:
        NoLayout: the array is no permutation; the witness holds two places with one value, or a value out of range.

    Example:
        >>> permutation([2, 0, 1]).apply(0), permutation([2, 0, 1]).inv(2)
        (2, (0,))
    """
    where = "permutation(values, dims)"
    array = integer_array(where, values, "the values")
    if array.size == 0:
        raise LayoutError(where, "the array is empty", legal="integers, at least one")
    shape = _integers(array.shape if dims is None else dims, where)
    flat = array.reshape(-1).astype(np.int64)
    if prod(shape) != flat.size:
        raise Incongruent(where, f"{flat.size} values for the shape {shape}", legal="one value for each point")
    order = np.argsort(flat, kind="stable")
    bad = np.flatnonzero(flat[order] != np.arange(flat.size))
    if bad.size:
        at = int(order[bad[0]])
        problem = f"the values are no permutation of 0..{flat.size - 1}: {int(flat[at])} at place {at}"
        legal, condition = f"each of 0..{flat.size - 1} once", "each value occurs once"
        points, values = (at,), (int(flat[at]),)
        raise no_layout(where, problem, inputs={}, legal=legal, points=points, values=values, condition=condition)

    def apply(*index: Any) -> Any:
        at = flat_index(index, shape)
        if isinstance(at, Expr):
            raise LayoutError(
                "permutation.apply(*index)", "a table has no index expression", legal="integers or arrays"
            )
        return int(flat[at]) if isinstance(at, int | np.integer) else flat[at]

    return _ready(shape, apply, None, f"permutation({flat.tolist()}, {shape})", "the array was checked")


def grouped(rows: int, cols: int, group: int) -> GenP:
    """The order of program ids in groups of rows, column by column within a group; the last group may be smaller.

    Args:
        rows: M tiles; cols: N tiles; group: rows per group; integers or index expressions.

    Example:
        >>> GroupBy((3, 2), OrderBy(grouped(3, 2, 2))).table().tolist()
        [[0, 2], [1, 3], [4, 5]]

    Source: the grouped ordering of Triton's matrix multiplication; correct for every M, which LEGO's tiling is not.
    """
    sizes: Any = make_dims((rows, cols, group), "grouped(rows, cols, group)")
    rows, cols, group = sizes

    def height(first: Any) -> Any:
        return lesser(rows - first, group)

    def apply(i: Any, j: Any) -> Any:
        first = i // group * group
        return first * cols + j * height(first) + (i - first)

    def inverse(p: Any) -> tuple[Any, Any]:
        first = p // (group * cols) * group
        rest, tall = p % (group * cols), height(first)
        return first + rest % tall, rest // tall

    return _ready((rows, cols), apply, inverse, f"grouped({rows!r}, {cols!r}, {group!r})", "groups fill intervals")
