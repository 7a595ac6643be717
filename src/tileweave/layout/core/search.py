"""Bounded exact searches: collisions, holders of a coordinate, images.

Overlap of arbitrary strides contains subset-sum, so these questions have no fast general answer. Each search prunes by
reach and by common divisors, which makes it polynomial for nested strides. Up to `BOUND` points are listed instead;
collisions beyond that are sought from both halves of the strides, which meet in the middle. Only what passes the bound
on all these ways is `Undecided`.

All of them work on one integer line: coordinates over several axes are encoded by mixed radices wide enough that
sums never wrap, so an equation between vectors is one equation between integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from tileweave.errors import Unproved
from tileweave.index import Expr, equal, prove
from tileweave.layout.core.checks import BOUND, as_layout, need_numbers, undecided
from tileweave.layout.core.coord import ZERO, Coord, CoordLike, IntArray, coord_of_terms
from tileweave.layout.core.layout import Iter, Layout, all_symbols, has_symbols, require_numbers, substitute
from tileweave.layout.core.rows import are_numbers, unit_rows
from tileweave.layout.core.symbolic import proved, same

QUICK = 1 << 14
"""How many states the pruned search for a collision visits before other ways are tried."""


@dataclass(frozen=True, slots=True)
class CoordLine:
    """Coordinates as integers: axis a has weight w[a], chosen so that the box [low, low + span) encodes uniquely."""

    axes: tuple[str, ...]
    low: tuple[int, ...]
    span: tuple[int, ...]
    weight: tuple[int, ...]

    def encode(self, coord: Coord) -> int:
        """The integer of a coordinate."""
        return sum(coord[a] * w for a, w in zip(self.axes, self.weight, strict=True))

    def decode(self, value: int) -> Coord:
        """The coordinate of an integer."""
        value -= sum(low * w for low, w in zip(self.low, self.weight, strict=True))
        terms = []
        for axis, low, span in zip(self.axes, self.low, self.span, strict=True):
            value, rest = divmod(value, span)
            if low + rest:
                terms.append((axis, low + rest))
        return coord_of_terms(tuple(terms))


def line_of(iters: Sequence[Iter], start: Coord = ZERO, both_signs: bool = False) -> CoordLine:
    """The encoding of all sums of digit times stride; with `both_signs`, of differences of two such sums."""
    for it in (*iters, Iter(1, start)):
        require_numbers(it)
    axes = tuple(sorted({a for it in iters for a in it.stride.axes} | set(start.axes)))
    lows, spans, weights = [], [], []
    weight = 1
    for axis in axes:
        reaches = [(it.extent - 1) * it.stride[axis] for it in iters]
        low = start[axis] + sum(min(r, 0) for r in reaches)
        high = start[axis] + sum(max(r, 0) for r in reaches)
        if both_signs:
            low, high = low - high, high - low
        lows.append(low)
        spans.append(high - low + 1)
        weights.append(weight)
        weight *= high - low + 1
    return CoordLine(axes, tuple(lows), tuple(spans), tuple(weights))


def _class(total: int, stride: int, modulus: int) -> tuple[int, int] | None:
    """The digits d with ``total + d * stride`` divisible by modulus, as (residue, period); None if there are none."""
    if not modulus:
        return 0, 1
    g = gcd(stride, modulus)
    if total % g:
        return None
    period = modulus // g
    return (-total // g * pow(stride // g, -1, period) % period if period > 1 else 0), period


# Injectivity.


def collision(layout: Layout) -> tuple[int, int] | None:
    """Two logical indices that share a physical coordinate, or None if no two do; exact.

    Raises:
        Undecided: the strides are not nested, there are more than `BOUND` points, and the searches passed it too.
        Unproved: the layout is symbolic, and its strides are not proved nested.

    Example:
        >>> collision(Layout(((2, 3), (4, 1))))
        (3, 4)
        >>> collision(Layout(((2, 4), (4, 1))))

    Source: own.
    """
    return collision_of(layout, "collision(layout)")


def collision_of(layout: Layout, where: str) -> tuple[int, int] | None:
    """`collision` on behalf of the public function `where`."""
    layout = as_layout(layout, where)
    if has_symbols(layout):
        if _proved_injective(layout, where):
            return None
        raise Unproved(where, "for some values of the symbols two indices collide", inputs={"layout": layout})
    shard = [(k, it) for k, it in enumerate(layout.shard) if it.extent > 1]
    replica = [it for it in layout.replica if it.extent > 1 and it.stride]
    found = relation([it for _, it in shard], replica, where, {"layout": layout})
    if found is None:
        return None
    first = second = 0
    at = {k: delta for (k, _), delta in zip(shard, found, strict=True)}
    for k, it in enumerate(layout.shard):
        delta = at.get(k, 0)
        first, second = first * it.extent + max(delta, 0), second * it.extent + max(-delta, 0)
    return min(first, second), max(first, second)


def is_injective(layout: Layout) -> bool:
    """True exactly if no physical coordinate holds two different logical indices (replicas included).

    Of a symbolic layout: for all values of the symbols; true is proved, and false has values that refute it.

    Raises:
        Undecided: the strides are not nested, there are more than `BOUND` points, and the searches passed it too.
        Unproved: the layout is symbolic and neither is shown.

    Source: Rectilinear Chamber, section 3 ("compact"), for any strides.
    """
    where = "is_injective(layout)"
    layout = as_layout(layout, where)
    return _proved_injective(layout, where) if has_symbols(layout) else collision_of(layout, where) is None


def is_compact(layout: Layout) -> bool:
    """The same as `is_injective`: the name used by the Rectilinear Chamber, section 3."""
    return is_injective(layout)


def _proved_injective(layout: Layout, where: str) -> bool:
    """Whether no coordinate has two indices, for all values of the symbols: strides are a mixed radix with gaps."""
    open_question = _overlap([*layout.shard, *(it for it in layout.replica if it.stride)])
    return open_question is None or refuted(layout, open_question, is_injective, where)


def _overlap(iters: Sequence[Iter]) -> Any:
    """The first condition of a mixed radix that is not proved, or None if the sums are proved distinct."""
    by_axis: dict[str, list[tuple[Any, Any]]] = {}
    for it in iters:
        if same(it.extent, 1):
            continue
        if len(it.stride.terms) != 1:
            return equal(it.extent, 1)
        ((axis, stride),) = it.stride.terms
        if not proved(stride >= 1) and not proved(stride <= -1):
            return any_of([it.extent <= 1, stride >= 1])
        by_axis.setdefault(axis, []).append((it.extent, stride if proved(stride >= 1) else -stride))
    for rows in by_axis.values():
        while rows:
            gaps = [s > sum((f - 1) * t for j, (f, t) in enumerate(rows) if j != k) for k, (_, s) in enumerate(rows)]
            slowest = next((k for k, gap in enumerate(gaps) if proved(gap)), None)
            if slowest is None:
                return any_of(gaps)
            del rows[slowest]
    return None


def refuted(layout: Layout, condition: Any, test: Callable[[Layout], bool], where: str) -> bool:
    """False if values of the symbols at which the condition fails refute the question too; `Unproved` otherwise."""
    every = [s * s >= 0 for s in all_symbols(layout)]
    verdict = prove(condition, given=every, limit=0)
    if verdict.holds is False and not test(substitute(layout, verdict.witness)):
        return False
    facts = {"condition": condition, "witness": verdict.witness}
    raise Unproved(where, f"{condition} is not proved", inputs={"layout": layout}, facts=facts)


def any_of(conditions: Iterable[Any]) -> Expr:
    """Whether one of the conditions holds."""
    out = equal(0, 1)
    for condition in conditions:
        out = out | (condition if isinstance(condition, Expr) else equal(0, 0 if condition else 1))
    return out


def relation(shard: list[Iter], replica: list[Iter], where: str, inputs: Mapping[str, object]) -> list[int] | None:
    """Coefficients delta of D, not all zero, with ``sum delta*s + sum rho*t = 0`` for some rho of R; or None.

    Closed form where every stride exceeds what the faster ones reach, or two iters suffice; else a search over digits
    that prunes by reach and divisors, and where that grows, sums of two halves of the iters that meet in the middle.
    """
    iters = [*shard, *replica]
    unit, rows = unit_rows(iters)
    if unit and are_numbers(rows):
        signed = [s for _, s in reversed(rows)]
    else:
        line = line_of(iters, both_signs=True)
        signed = [line.encode(it.stride) for it in iters]
    return _relation(signed, [it.extent for it in iters], len(shard), 1, where, inputs)


def first_collision(extents: Sequence[int], strides: Sequence[int], width: int = 1) -> tuple[int, ...] | None:
    """The difference of two different indices whose elements share a byte, or None: the strides are injective.

    Args:
        extents: positive, one per digit.
        strides: of any sign, in the unit of ``width``.
        width: how much one element covers.

    Raises:
        Undecided: the searches passed `BOUND`.

    Example:
        >>> first_collision((4, 4), (4, 1)) is None
        True
        >>> first_collision((4, 4), (2, 1))
        (1, -2)

    Source: own.
    """
    moving = [k for k, n in enumerate(extents) if n > 1]
    inputs = {"extents": tuple(extents), "strides": tuple(strides)}
    where = "first_collision(extents, strides)"
    apart = [extents[k] for k in moving]
    found = _relation([strides[k] for k in moving], apart, len(moving), width, where, inputs)
    if found is None:
        return None
    at = dict(zip(moving, found, strict=True))
    sign = 1 if next(v for v in found if v) > 0 else -1
    return tuple([sign * at.get(k, 0) for k in range(len(extents))])


def _relation(
    signed: list[int], extents: list[int], sharded: int, width: int, where: str, inputs: Mapping[str, object]
) -> list[int] | None:
    """As `relation`, with a sum below the width; the first rows are those of D."""
    for k in range(sharded):
        if not signed[k]:
            return [int(j == k) for j in range(sharded)]
    order = sorted(range(len(signed)), key=lambda k: -abs(signed[k]))
    strides = [abs(signed[k]) for k in order]
    reach, _common = _tails(strides, [extents[k] for k in order])
    if all(s >= r + width for s, r in zip(strides, reach[1:], strict=True)):
        return None
    found = _pair(sharded, signed, extents)
    rows = [(s, 1 - extents[k], extents[k] - 1, k < sharded) for s, k in zip(strides, order, strict=True)]
    for bound in (QUICK, BOUND):
        if found is None:
            try:
                walked = _walk(rows, 1 - width, width - 1, bound)
                found = None if walked is None else dict(zip(order, walked, strict=True))
                break
            except _Passed:
                own = [abs(s) for s in signed] + [1] * (width > 1)
                all_extents = [*extents, width][: len(own)]
                halves = _halves(all_extents)
            if max(prod(2 * all_extents[k] - 1 for k in half) for half in halves) <= 4 * BOUND:
                found = _meet(halves, own, all_extents, sharded)
                break
    else:
        if found is None:
            raise undecided(where, "the search for a collision", inputs, BOUND)
    if found is None:
        return None
    return [found.get(k, 0) * (1 if signed[k] > 0 else -1) for k in range(sharded)]


class _Passed(Exception):
    """A search passed the bound that it was given."""


def _halves(extents: list[int]) -> tuple[list[int], list[int]]:
    """The iters in two groups with about as many sums of differences each."""
    halves: tuple[list[int], list[int]] = ([], [])
    sizes = [1, 1]
    for k in sorted(range(len(extents)), key=lambda k: -extents[k]):
        smaller = sizes[1] < sizes[0]
        halves[smaller].append(k)
        sizes[smaller] *= 2 * extents[k] - 1
    return halves


def _meet(
    halves: tuple[list[int], list[int]], strides: list[int], extents: list[int], sharded: int
) -> dict[int, int] | None:
    """A relation from the differences of two halves of the iters that cancel, one of them moving along D; or None."""
    wide = sum(e * s for e, s in zip(extents, strides, strict=True)) >= 1 << 62
    sides = []
    for half in halves:
        values = np.zeros(1, object if wide else np.int64)
        moved = np.zeros(1, bool)
        for k in half:
            digits = np.arange(1 - extents[k], extents[k]).astype(values.dtype)
            values = (values[:, None] + (digits * strides[k])[None, :]).reshape(-1)
            moved = (moved[:, None] | ((digits != 0) & (k < sharded))[None, :]).reshape(-1)
        sides.append((values, moved))
    for one, other in ((0, 1), (1, 0)):
        values, moved = sides[one]
        wanted, held = np.sort(values[moved]), np.sort(-sides[other][0])
        where = np.minimum(np.searchsorted(held, wanted), held.size - 1)
        common = wanted[held[where] == wanted]
        if common.size:
            at = {one: int(np.flatnonzero((values == common[0]) & moved)[0])}
            at[other] = int(np.flatnonzero(sides[other][0] == -common[0])[0])
            out = {}
            for side, half in enumerate(halves):
                for k in reversed(half):
                    at[side], digit = divmod(at[side], 2 * extents[k] - 1)
                    out[k] = digit + 1 - extents[k]
            return out
    return None


def _tails(strides: list[int], extents: list[int]) -> tuple[list[int], list[int]]:
    """From each position on: the greatest sum that the digits reach, and the common divisor of the strides."""
    reach, common = [0], [0]
    for s, e in zip(reversed(strides), reversed(extents), strict=True):
        reach.append(reach[-1] + (e - 1) * s)
        common.append(gcd(common[-1], s))
    return reach[::-1], common[::-1]


def _pair(sharded: int, signed: list[int], extents: list[int]) -> dict[int, int] | None:
    """A relation between two iters only, in closed form."""
    for i in range(sharded):
        for j in range(i + 1, len(signed)):
            a, b = abs(signed[i]), abs(signed[j])
            g = gcd(a, b)
            if b // g < extents[i] and a // g < extents[j]:
                return {i: b // g, j: -(a // g)}
    return None


Term = tuple[int, int, int]
"""(stride, least factor, greatest factor)."""


def reach(terms: Sequence[Term], low: int, high: int) -> tuple[int, ...] | None:
    """Factors ``v`` with ``low <= sum(stride * v) <= high``, each factor in its own interval, or None: there are none.

    Args:
        terms: one (stride, least, greatest) per factor.
        low, high: the least and the greatest sum that count.

    Raises:
        Undecided: the search passed `BOUND`.

    Example:
        >>> reach([(6, 0, 9), (10, 0, 9)], 26, 26)
        (1, 2)
        >>> reach([(6, 0, 9), (10, 0, 9)], 7, 9) is None
        True

    Source: own.
    """
    if low > high or any(least > greatest for _, least, greatest in terms):
        return None
    order = sorted(range(len(terms)), key=lambda k: -abs(terms[k][0]))
    rows = [(*terms[k], False) for k in order]
    try:
        found = _walk(rows, low, high, BOUND, True)
    except _Passed:
        inputs = {"terms": list(terms), "sum": f"{low}..{high}"}
        raise undecided("reach(terms, low, high)", "the search for a sum", inputs) from None
    if found is None:
        return None
    at = dict(zip(order, found, strict=True))
    return tuple([at[k] for k in range(len(terms))])


def _walk(
    rows: Sequence[tuple[int, int, int, bool]], low: int, high: int, bound: int, moved: bool = False
) -> list[int] | None:
    """Factors of rows (stride, least, greatest, whether it counts) whose sum lies between low and high, or None.

    Slowest stride first; no state (depth, sum so far, whether a factor that counts is not zero: true in the end)
    is visited twice. The first answer in the order of factors. Unless `moved`, factors and bounds must be symmetric.
    """
    least, most, common = [0], [0], [0]
    for s, a, b, _ in reversed(rows):
        least.append(least[-1] + min(s * a, s * b))
        most.append(most[-1] + max(s * a, s * b))
        common.append(gcd(common[-1], s) if a != b else common[-1])

    def choices(depth: int, total: int, so_far: bool) -> Iterator[int]:
        s, first, last, counts = rows[depth]
        k = len(rows) - depth - 1
        if not total and not so_far:
            first = 0
        bottom, top = low - total - most[k], high - total - least[k]  # what s times the factor may be
        if s:
            first = max(first, -(-bottom // s) if s > 0 else -(top // -s))
            last = min(last, top // s if s > 0 else -bottom // -s)
        elif bottom > 0 or top < 0:
            return iter(())
        elif not counts:
            last = min(first, last)
        return iter(_fitting(first, last, s, low - total - least[k], high - total - least[k], common[k]))

    seen: set[tuple[int, int, bool]] = set()
    path: list[int] = []
    if not rows:
        return path if moved and low <= 0 <= high else None
    stack = [(0, moved, choices(0, 0, moved))]
    while stack:
        total, so_far, ahead = stack[-1]
        depth = len(stack) - 1
        del path[depth:]
        factor = next(ahead, None)
        if factor is None:
            stack.pop()
            continue
        total, so_far = total + factor * rows[depth][0], so_far or (rows[depth][3] and factor != 0)
        state = (depth, total, so_far)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > bound:
            raise _Passed
        path.append(factor)
        if depth + 1 == len(rows):
            if so_far and low <= total <= high:
                return path
            continue
        stack.append((total, so_far, choices(depth + 1, total, so_far)))
    return None


def _fitting(first: int, last: int, s: int, low: int, high: int, step: int) -> Iterable[int]:
    """The factors from first to last that leave some multiple of the step between low and high, ascending."""
    if high - low + 1 >= step:
        return range(first, last + 1)
    found: set[int] = set()
    for wanted in range(low, high + 1):
        digits = _class(-wanted, s, step)
        if digits is not None:
            residue, period = digits
            found.update(range(first + (residue - first) % period, last + 1, period))
    return sorted(found)


# Holders and images.


def holders(layout: Layout, coord: CoordLike) -> tuple[int, ...]:
    """Every logical index x with ``coord in f(x)``, ascending: who holds this physical coordinate.

    Args:
        layout: a layout of any notation.
        coord: a coordinate, a mapping from axes, or an integer on the axis ``m``.

    Raises:
        Undecided: there are more than `BOUND` points, and the search passed it too.

    Example:
        >>> holders(Layout(((2, 4), (4, 1)), ((2, 8),)), 13)
        (5,)
        >>> holders(Layout(((4, 0),)), 0)
        (0, 1, 2, 3)

    Source: own.
    """
    layout = as_layout(layout, "holders(layout, coord)")
    need_numbers("holders(layout, coord)", layout)
    target = Coord.of(coord)
    iters = [*layout.shard, *layout.replica]
    line = line_of(iters, layout.offset)
    if any(axis not in line.axes for axis in target.axes) or any(
        not low <= target[a] < low + span for a, low, span in zip(line.axes, line.low, line.span, strict=True)
    ):
        return ()
    total = line.encode(target) - line.encode(layout.offset)
    weight, weights = 1, []
    for it in reversed(layout.shard):
        weights.append(weight)
        weight *= it.extent
    weights = weights[::-1] + [0] * len(layout.replica)
    rows = []  # (stride, extent, weight of the digit, index at digit 0)
    base = 0
    for it, w in zip(iters, weights, strict=True):
        stride = line.encode(it.stride)
        if stride < 0:
            total -= (it.extent - 1) * stride
            base += (it.extent - 1) * w
            w = -w
        if it.extent > 1:
            rows.append((abs(stride), it.extent, w))
    rows.sort(reverse=True)
    listed = prod(e for _, e, _ in rows) <= BOUND
    try:
        found = _solutions(rows, total, QUICK if listed else BOUND)
    except _Passed:
        if not listed:
            raise undecided("holders(layout, coord)", "the search for holders", {"layout": layout}, BOUND) from None
        found = _listed_solutions(rows, total)
    return tuple(sorted({base + x for x in found}))


def _listed_solutions(rows: list[tuple[int, int, int]], total: int) -> Iterable[int]:
    """As `_solutions`, by listing the sums of all digits."""
    wide = max(sum(e * s for s, e, _ in rows), prod(e for _, e, _ in rows)) >= 1 << 62
    values = np.zeros(1, object if wide else np.int64)
    indices = values
    for stride, extent, weight in rows:
        digits = np.arange(extent).astype(values.dtype)
        values = (values[:, None] + (digits * stride)[None, :]).reshape(-1)
        indices = (indices[:, None] + (digits * weight)[None, :]).reshape(-1)
    return [int(x) for x in indices[values == total]]


def _solutions(rows: list[tuple[int, int, int]], total: int, bound: int) -> Iterable[int]:
    """The sums of digit times weight over all digits whose strides add up to total."""
    reach, common = _tails([s for s, _, _ in rows], [e for _, e, _ in rows])
    level: dict[int, set[int]] = {total: {0}}
    visited = 0
    for depth, (stride, extent, weight) in enumerate(rows):
        after: dict[int, set[int]] = {}
        for rest, indices in level.items():
            low, high, first, period = 0, extent - 1, 0, 1
            if stride:
                digits = _class(rest, -stride, common[depth + 1])
                if digits is None:
                    continue
                first, period = digits
                low = max(0, -((reach[depth + 1] - rest) // stride))
                high = min(high, rest // stride)
            for digit in range(low + (first - low) % period, high + 1, period):
                into = after.setdefault(rest - digit * stride, set())
                into.update(x + digit * weight for x in indices)
                visited += len(indices)
                if visited > bound:
                    raise _Passed
        level = after
    return level.get(0, ())


def image(layout: Layout) -> Any:
    """The set of all physical coordinates that the layout uses, replicas included, in ascending order.

    Returns:
        a sorted int64 array without duplicates if the layout uses one axis, else a dict from axis to arrays: row i of
        all of them is one coordinate.

    Raises:
        Undecided: there are more than `BOUND` coordinates, or more have to be listed on the way.

    Example:
        >>> image(Layout(((2, 4), (2, 1)), ((2, 1),)))
        array([0, 1, 2, 4, 5, 6])
    """
    layout = as_layout(layout, "image(layout)")
    need_numbers("image(layout)", layout)
    iters = [*layout.shard, *layout.replica]
    line = line_of(iters, layout.offset)
    values = sums([(it.extent, line.encode(it.stride)) for it in iters], "image(layout)", {"layout": layout})
    values = values + (line.encode(layout.offset) - sum(l * w for l, w in zip(line.low, line.weight, strict=True)))
    out = {}
    for axis, low, span in zip(line.axes, line.low, line.span, strict=True):
        out[axis] = values % span + low
        values = values // span
    if len(out) > 1:
        order = np.lexsort([out[axis] for axis in reversed(line.axes)])
        return {axis: column[order] for axis, column in out.items()}
    return next(iter(out.values()), np.zeros(1, np.int64))


def _distinct(values: IntArray) -> IntArray:
    """The distinct values, ascending; by sorting, which is quicker here than NumPy's hashing."""
    ordered = np.sort(values, axis=None)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def sums(rows: Iterable[tuple[int, int]], where: str, inputs: Mapping[str, object]) -> IntArray:
    """The distinct sums of digit times stride, ascending."""
    rows = sorted(((e, s) for e, s in rows if e > 1 and s), key=lambda row: abs(row[1]))
    least, reach = 1, 0  # a stride beyond the reach of the smaller ones multiplies the number of sums
    for extent, stride in rows:
        least *= extent if abs(stride) > reach else 1
        reach += (extent - 1) * abs(stride)
    if least > BOUND:
        raise undecided(where, "enumerating the coordinates", inputs)
    wide = sum(e * abs(s) for e, s in rows) >= 1 << 62
    values = np.zeros(1, object if wide else np.int64)
    for extent, stride in rows:
        if len(values) * extent > BOUND:
            raise undecided(where, "enumerating the coordinates", inputs)
        steps = np.arange(extent).astype(values.dtype) * stride
        values = _distinct(steps[:, None] + values[None, :])
    return values
