"""Flat rows (extent, stride), the form on which every algorithm works: coalesced, evaluated, and as carries.

Rows run **fastest first**; strides are integers, expressions or coordinates, and `zero` is the zero among them. As
carries, a layout is ``D(x) = sum of c(p) * floor(x / p)`` over its levels p. The step ``D(m) - D(m - 1)`` is the sum of
c(p) over the levels p that divide m. A function on [0, E) is a layout if and only if its steps have that form for
levels that divide E and form a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import gcd, lcm
from typing import Any

from tileweave.errors import LayoutError
from tileweave.layout.core.checks import Witness, need_iters
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord, coord_of_terms, integer
from tileweave.layout.core.layout import Iter, iter_of, require_numbers
from tileweave.layout.core.symbolic import same, simple

Level = tuple[int, Any]  # (p, c(p)), c a Coord or an integer
Row = tuple[int, Any]  # (extent, stride), the stride a Coord or an integer


# Rows and iters.


def rows_on(iters: Sequence[Iter], unit: str) -> list[Row]:
    """The rows of iters (slowest first): strides as numbers on the axis `unit`, or as coordinates if it is empty."""
    if not unit:
        return [(it.extent, it.stride) for it in reversed(iters)]
    return [(it.extent, it.stride.terms[0][1] if it.stride.terms else 0) for it in reversed(iters)]


def iters_of(rows: Sequence[Row], unit: str) -> tuple[Iter, ...]:
    """The iters (slowest first) of rows, their strides numbers on the axis `unit`, or coordinates if it is empty."""
    if unit:
        return tuple(
            [
                iter_of(e, coord_of_terms(((unit, t),)) if t.__class__ is not int or t else ZERO)
                for e, t in reversed(rows)
            ]
        )
    return tuple([iter_of(e, t) for e, t in reversed(rows)])


def coord_on(unit: str, value: Any) -> Coord:
    """A value of rows as a coordinate: a number on the axis `unit`, or the coordinate that it is if that is empty."""
    if not unit:
        return value  # type: ignore[no-any-return]
    if value.__class__ is int:
        return coord_of_terms(((unit, value),)) if value else ZERO
    return Coord(((unit, value),))


def are_numbers(rows: Sequence[Row]) -> bool:
    """Whether all extents and strides are made of integers."""
    for n, d in rows:
        if n.__class__ is not int:
            return False
        if d.__class__ is not int and (d.__class__ is not Coord or any(v.__class__ is not int for _, v in d.terms)):
            return False
    return True


def unit_rows(iters: Sequence[Iter]) -> tuple[str, list[Row]]:
    """The one axis that all strides use (or an empty string) and the rows, as `rows_on` gives them for it."""
    axis = ""
    rows: list[Row] = []
    for it in reversed(iters):
        terms = it.stride.terms
        if not terms:
            rows.append((it.extent, 0))
        elif len(terms) == 1 and (not axis or terms[0][0] == axis):
            axis, stride = terms[0]
            rows.append((it.extent, stride))
        else:
            return "", [(it.extent, it.stride) for it in reversed(iters)]
    return axis or DEFAULT_AXIS, rows


def coalesce(rows: Sequence[Row]) -> list[Row]:
    """The unique shortest rows with the same map: units dropped (D0), a row that goes on where one ends merged (D1).

    With expressions: wherever the equation is proved.

    Source: Axe, appendix A; CuTe, ``coalesce``.
    """
    out: list[Row] = []
    run, stride = 1, None
    for n, d in rows:
        if n == 1 or (type(n) is not int and same(n, 1)):
            continue
        if stride is None:
            run, stride = n, d
        elif d == run * stride if type(d) is type(stride) is type(run) is int else goes_on(run, stride, d):
            run = run * n if type(run) is int and type(n) is int else simple(run * n)
        else:
            out.append((run, stride))
            run, stride = n, d
    if stride is not None:
        out.append((run, stride))
    return out


def goes_on(run: Any, stride: Any, d: Any) -> bool:
    """Whether a row of stride d continues the row ``run:stride``; proved, where expressions take part."""
    if type(d) is not Coord:
        return same(d, run * stride)
    mine, theirs = stride.terms, d.terms
    if len(mine) != len(theirs) or (mine and mine[0][0] != theirs[0][0]):
        return False
    if len(mine) == 1:
        end, ahead = run * mine[0][1], theirs[0][1]
        return bool(end == ahead) if type(end) is type(ahead) is int else same(end, ahead)
    return same_value(d, run * stride)


def same_value(a: Any, b: Any) -> bool:
    """Whether two strides are equal; proved, where expressions take part."""
    if isinstance(a, Coord):
        return a.terms == b.terms or (
            any(type(v) is not int for _, v in (*a.terms, *b.terms))
            and all(same(a[axis], b[axis]) for axis in {*a.axes, *b.axes})
        )
    return same(a, b)


def evaluate(rows: Sequence[Row], index: int, zero: Any = 0) -> Any:
    """The value at a linear index; the last row runs on without bound."""
    out = zero
    last = len(rows) - 1
    for k, (n, d) in enumerate(rows):
        index, digit = divmod(index, n) if k < last else (0, index)
        if digit:
            out = out + digit * d
    return out


# Carries.


def carries(shard: Sequence[Iter]) -> list[tuple[int, Coord]]:
    """The levels p and their coefficients c(p), ascending, with ``D(x) = sum of c(p) * floor(x / p)`` and no c(p) zero.

    Args:
        shard: iters, slowest first, of integer extents and strides.

    Source: Axe, lemma A.4.
    """
    where = "carries(shard)"
    if not isinstance(shard, Sequence):
        raise LayoutError(where, f"{shard!r} is not a list of iters", legal="the D of a layout")
    need_iters(where, *shard)
    for it in shard:
        require_numbers(it)
    return levels_of(((it.extent, it.stride) for it in reversed(shard)), ZERO)


def levels_of(rows: Iterable[Row], zero: Any) -> list[Level]:
    """As `carries`, of rows; unchecked."""
    out: list[Level] = []
    level, below = 1, zero
    for extent, stride in rows:
        if extent == 1:
            continue
        if stride != below:
            out.append((level, stride - below))
        level, below = level * extent, extent * stride
    return out


def from_carries(extent: int, levels: Sequence[tuple[int, Coord]]) -> tuple[Iter, ...]:
    """The normal iters of ``sum of c(p) floor(x/p)`` on [0, extent), for ascending levels that divide it in a chain.

    Args:
        extent: the number of points.
        levels: pairs (p, c(p)), as `carries` gives them.

    Raises:
        LayoutError: the levels are no chain of divisors of the extent.
    """
    where = "from_carries(extent, levels)"
    pairs = [*levels] if isinstance(levels, Sequence) else [levels]
    if not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], Coord) for p in pairs):
        raise LayoutError(where, f"{levels!r} is not a list of levels", legal="pairs (p, Coord)")
    chain = [1, *(integer(p, where, "level") for p, _ in pairs), integer(extent, where, "extent")]
    if any(type(n) is not int or n < 1 for n in chain) or any(
        high % low or (low == high and 0 < k < len(pairs)) for k, (low, high) in enumerate(pairwise(chain))
    ):
        raise LayoutError(where, f"{chain[1:]} are no chain", legal="levels that divide the next, and the extent")
    kept = [(p, c) for p, (_, c) in zip(chain[1:], pairs, strict=False)]
    return iters_of(rows_of(chain[-1], kept, ZERO), "")


def rows_of(extent: int, levels: Sequence[Level], zero: Any) -> list[Row]:
    """As `from_carries`, as rows; unchecked."""
    out: list[Row] = []
    below = zero
    last = len(levels) - 1
    if levels and levels[0][0] > 1:
        out.append((levels[0][0], zero))
    elif not levels and extent > 1:
        out.append((extent, zero))
    for k, (level, step) in enumerate(levels):
        width = (levels[k + 1][0] if k < last else extent) // level
        stride = step + below
        if width > 1:
            out.append((width, stride))
        below = width * stride
    return out


def next_level(extent: int, levels: Sequence[tuple[int, Any]], m: int) -> str:
    """Why m cannot be the next level above those found, or an empty string."""
    if extent % m:
        d = gcd(m, extent)
        return f"the steps into {d} and {m} differ, though both have the divisor {d} in common with {extent}"
    if levels and m % levels[-1][0]:
        return f"it carries at {levels[-1][0]} and at {m}, and neither divides the other"
    return ""


def witness_at(extent: int, levels: Sequence[tuple[int, Any]], m: int, value: Callable[[int], Any]) -> Witness | None:
    """The witness that m, the least unexplained step, is not a level; None if it is one."""
    condition = next_level(extent, levels, m)
    if not condition:
        return None
    other = gcd(m, extent) if extent % m else levels[-1][0]
    points = tuple(sorted({other - 1, other, m - 1, m}))
    return Witness(points, tuple(value(x) for x in points), condition)


def window(levels: Sequence[Level], start: int, extent: int, zero: Any = ZERO) -> list[Row] | Witness:
    """The normal rows of ``u -> D(start + u) - D(start)`` on [0, extent), or the witness; exact for any size.

    The step into m is the sum of c(q) over the levels q that divide start + m. Each class of m, by the deepest level of
    either side, has its first member by the Chinese remainder theorem, so the least unexplained step is found without
    looking at points.

    Args:
        levels: the carries of D, ascending.
        start: the first index read.
        extent: how many are read.
        zero: the zero of the coefficients.
    """
    theirs = list(levels) if levels and levels[0][0] == 1 else [(1, zero), *levels]
    found: list[Level] = []
    while True:
        m, rest = _first_difference(theirs, start, found, extent, zero)
        if not m:
            return rows_of(extent, found, zero)

        def value(u: int) -> Any:
            total = zero
            for q, c in theirs:
                total = total + ((start + u) // q - start // q) * c
            return total

        if found and m <= found[-1][0]:  # expressions that are equal and written differently: never so with numbers
            return Witness((m - 1, m), (value(m - 1), value(m)), f"the step into {m} is not found equal to its levels'")
        witness = witness_at(extent, found, m, value)
        if witness:
            return witness
        found.append((m, rest))


def prefixes(levels: Sequence[Level], start: int, most: int, zero: Any = ZERO) -> list[tuple[int, int, int]]:
    """Every length up to `most` for which `window` from start on is a layout, as (step, low, high): the multiples of
    step in (low, high].

    The levels that a window finds do not depend on its length, which must be a multiple of those below it.
    """
    theirs = list(levels) if levels and levels[0][0] == 1 else [(1, zero), *levels]
    found: list[Level] = []
    out: list[tuple[int, int, int]] = []
    step, low = 1, 0
    while True:
        m, rest = _first_difference(theirs, start, found, most, zero)
        out.append((step, low, m or most))
        if not m or m % step:
            return out
        found.append((m, rest))
        step = low = m


def _first_difference(
    theirs: Sequence[Level], start: int, found: Sequence[Level], extent: int, zero: Any
) -> tuple[int, Any]:
    """The least m in [1, extent) where the steps of the window and of the levels differ, and by how much; or 0."""
    ours = found if found and found[0][0] == 1 else [(1, zero), *found]
    best, rest = extent, zero
    step = zero
    for j, (q, c) in enumerate(theirs):
        step = step + c
        above = theirs[j + 1][0] if j + 1 < len(theirs) else 0
        guess = zero
        for i, (p, d) in enumerate(ours):
            if p >= best:
                break
            guess = guess + d
            if guess == step:
                continue
            m = _first_member(start, q, above, p, ours[i + 1][0] if i + 1 < len(ours) else 0)
            if 0 < m < best:
                best, rest = m, step - guess
    return (best, rest) if best < extent else (0, zero)


def _first_member(start: int, q: int, not_q: int, p: int, not_p: int) -> int:
    """The least m > 0 with q | start + m, p | m, neither not_q | start + m nor not_p | m (0: no limit); or 0."""
    g = gcd(p, q)
    if start % g:
        return 0
    # m = p*k with p*k = -start (mod q)
    k = (-start // g) * pow(p // g, -1, q // g) % (q // g) if q > g else 0
    period = lcm(p, q)
    m = p * k or period
    for _ in range(4):  # four neighbours in the class meet one that two proper subclasses leave, if there is any
        if not (not_q and (start + m) % not_q == 0) and not (not_p and m % not_p == 0):
            return m
        m += period
    return 0
