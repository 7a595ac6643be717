"""Bounded exact searches: collisions, holders of a coordinate, images, and replica sets.

Overlap of arbitrary strides contains subset-sum, so these questions have no fast general answer. Each search prunes by
reach and by common divisors, which makes it polynomial for nested strides; past its bound it raises `Undecided`.

All of them work on one integer line: coordinates over several axes are encoded by mixed radices wide enough that
sums never wrap, so an equation between vectors is one equation between integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Any

import numpy as np

from tileweave.errors import Undecided, Unproved
from tileweave.layout.core.checks import need_axis, need_layouts, need_numbers
from tileweave.layout.core.coord import ZERO
from tileweave.layout.core.exact import BOUND, Witness, normal_replica, refuse, replica_ratio, undecided
from tileweave.layout.core.layout import (
    DEFAULT_AXIS,
    Coord,
    CoordLike,
    IntArray,
    Iter,
    Layout,
    coord_of_terms,
    iter_of,
    require_numbers,
)
from tileweave.layout.core.parametric import has_symbols, is_contiguous_symbolic, is_injective_symbolic
from tileweave.layout.core.symbolic import is_expr

__all__ = ["collision", "holders", "image", "is_compact", "is_contiguous", "is_injective", "set_key", "set_normal"]


STATES = 1 << 18
"""The greatest number of states that a search for collisions or holders visits before it answers `Undecided`."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Coordinates as integers: axis a has weight w[a], chosen so that the box [low, low + span) encodes uniquely."""

    axes: tuple[str, ...]
    low: tuple[int, ...]
    span: tuple[int, ...]
    weight: tuple[int, ...]

    def encode(self, coord: Coord) -> int:
        return sum(coord[a] * w for a, w in zip(self.axes, self.weight, strict=True))

    def decode(self, value: int) -> Coord:
        value -= sum(low * w for low, w in zip(self.low, self.weight, strict=True))
        terms = []
        for axis, low, span in zip(self.axes, self.low, self.span, strict=True):
            value, rest = divmod(value, span)
            if low + rest:
                terms.append((axis, low + rest))
        return coord_of_terms(tuple(terms))


def _line(iters: Sequence[Iter], start: Coord = ZERO, both_signs: bool = False) -> _Line:
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
    return _Line(axes, tuple(lows), tuple(spans), tuple(weights))


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
        Undecided: the strides are not nested and the search passed `STATES` states.
        Unproved: the layout is symbolic, and its strides are not proved nested.

    Example:
        >>> collision(Layout(((2, 3), (4, 1))))
        (3, 4)
        >>> collision(Layout(((2, 4), (4, 1))))

    Source: own.
    """
    need_layouts("is_injective(layout)", layout)
    if has_symbols(layout):
        if is_injective_symbolic(layout, is_injective, "is_injective(layout)"):
            return None
        raise Unproved(
            "collision(layout)", "for some values of the symbols two indices collide", inputs={"layout": layout}
        )
    shard = [(k, it) for k, it in enumerate(layout.shard) if it.extent > 1]
    relation = _relation([it for _, it in shard], [it for it in layout.replica if it.extent > 1 and it.stride], layout)
    if relation is None:
        return None
    first = second = 0
    at = {k: delta for (k, _), delta in zip(shard, relation, strict=True)}
    for k, it in enumerate(layout.shard):
        delta = at.get(k, 0)
        first, second = first * it.extent + max(delta, 0), second * it.extent + max(-delta, 0)
    return min(first, second), max(first, second)


def is_injective(layout: Layout) -> bool:
    """True exactly if no physical coordinate holds two different logical indices (replicas included).

    Of a symbolic layout: for all values of the symbols; true is proved, and false has values that refute it.

    Raises:
        Undecided: the strides are not nested and the search passed `STATES` states.
        Unproved: the layout is symbolic and neither is shown.

    Source: Rectilinear Chamber, section 3 ("compact"), for any strides.
    """
    need_layouts("is_injective(layout)", layout)
    if has_symbols(layout):
        return is_injective_symbolic(layout, is_injective, "is_injective(layout)")
    return collision(layout) is None


def is_compact(layout: Layout) -> bool:
    """The same as `is_injective`: the name used by the Rectilinear Chamber, section 3."""
    return is_injective(layout)


def is_contiguous(layout: Layout, axis: str = DEFAULT_AXIS) -> bool:
    """True exactly if the layout is injective and its image is [0, size) on one axis; decided without a search.

    The image is counted by the product of (1 - z^(es)) / (1 - z^s), which must be (1 - z^size) / (1 - z).

    Example:
        >>> is_contiguous(Layout(((4, 1), (8, -4)), (), 28))
        True

    Source: Rectilinear Chamber, section 3; the test is our own.
    """
    need_layouts("is_contiguous(layout, axis)", layout)
    need_axis("is_contiguous(layout, axis)", axis)
    if has_symbols(layout) or any(is_expr(v) for _, v in layout.offset.terms):
        return is_contiguous_symbolic(layout, axis, lambda found: is_contiguous(found, axis), "is_contiguous(layout)")
    shift, copies, ratio = replica_ratio(layout.shard)
    size = layout.size
    if copies > 1 or any(it.extent > 1 and it.stride for it in layout.replica):
        return False
    want = {((axis, 1),): {size: 1, 1: -1}} if size > 1 else {}
    return ratio == want and not layout.offset + shift


def _relation(shard: list[Iter], replica: list[Iter], layout: Layout) -> list[int] | None:
    """Coefficients delta of D, not all zero, with ``sum delta*s + sum rho*t = 0`` for some rho of R; or None."""
    line = _line([*shard, *replica], both_signs=True)
    signed = [line.encode(it.stride) for it in (*shard, *replica)]
    extents = [it.extent for it in (*shard, *replica)]
    for k in range(len(shard)):
        if not signed[k]:
            return [int(j == k) for j in range(len(shard))]
    order = sorted(range(len(signed)), key=lambda k: -abs(signed[k]))
    strides = [abs(signed[k]) for k in order]
    reach, common = _tails(strides, [extents[k] for k in order])
    if all(s > r for s, r in zip(strides, reach[1:], strict=True)):
        return None  # every stride exceeds all that faster ones reach
    found = _pair(shard, signed, extents) or _walk(order, strides, reach, common, extents, len(shard), layout)
    if found is None:
        return None
    return [found.get(k, 0) * (1 if signed[k] > 0 else -1) for k in range(len(shard))]


def _tails(strides: list[int], extents: list[int]) -> tuple[list[int], list[int]]:
    """From each position on: the greatest sum that the digits reach, and the common divisor of the strides."""
    reach, common = [0], [0]
    for s, e in zip(reversed(strides), reversed(extents), strict=True):
        reach.append(reach[-1] + (e - 1) * s)
        common.append(gcd(common[-1], s))
    return reach[::-1], common[::-1]


def _pair(shard: list[Iter], signed: list[int], extents: list[int]) -> dict[int, int] | None:
    """A relation between two iters only, in closed form."""
    for i in range(len(shard)):
        for j in range(i + 1, len(signed)):
            a, b = abs(signed[i]), abs(signed[j])
            g = gcd(a, b)
            if b // g < extents[i] and a // g < extents[j]:
                return {i: b // g, j: -(a // g)}
    return None


def _walk(
    order: list[int],
    strides: list[int],
    reach: list[int],
    common: list[int],
    extents: list[int],
    sharded: int,
    layout: Layout,
) -> dict[int, int] | None:
    """The search over digits, slowest stride first; a state is (sum so far, whether a digit of D is not zero)."""
    start = (0, False)
    trail: list[dict[tuple[int, bool], tuple[tuple[int, bool], int]]] = []
    level = {start}
    visited = 0
    for depth, k in enumerate(order):
        s, e, limit = strides[depth], extents[k], reach[depth + 1]
        step: dict[tuple[int, bool], tuple[tuple[int, bool], int]] = {}
        for state in level:
            total, moved = state
            digits = _class(total, s, common[depth + 1])
            if digits is None:
                continue
            residue, period = digits
            low = max(-(e - 1) if total or moved else 0, -((limit + total) // s))
            high = min(e - 1, (limit - total) // s)
            for delta in range(low + (residue - low) % period, high + 1, period):
                after = (total + delta * s, moved or (k < sharded and delta != 0))
                if after not in step:
                    step[after] = (state, delta)
                    visited += 1
                    if visited > STATES:
                        raise undecided(
                            "is_injective(layout)", "the search for a collision", {"layout": layout}, STATES
                        )
        trail.append(step)
        level = set(step)
        if (0, True) in level:
            break
    if (0, True) not in level:
        return None
    out, state = {}, (0, True)
    for depth in range(len(trail) - 1, -1, -1):
        state, delta = trail[depth][state]
        out[order[depth]] = delta
    return out


# Holders and images.


def holders(layout: Layout, coord: CoordLike) -> tuple[int, ...]:
    """Every logical index x with ``coord in f(x)``, ascending: who holds this physical coordinate.

    Args:
        layout: any layout.
        coord: a coordinate, a mapping from axes, or an integer on the axis ``m``.

    Raises:
        Undecided: the search passed `STATES` states.

    Example:
        >>> holders(Layout(((2, 4), (4, 1)), ((2, 8),)), 13)
        (5,)
        >>> holders(Layout(((4, 0),)), 0)
        (0, 1, 2, 3)

    Source: own.
    """
    need_numbers("holders(layout, coord)", layout)
    target = Coord.of(coord)
    iters = [*layout.shard, *layout.replica]
    line = _line(iters, layout.offset)
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
    return tuple(sorted({base + x for x in _solutions(rows, total, layout)}))


def _solutions(rows: list[tuple[int, int, int]], total: int, layout: Layout) -> Iterator[int]:
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
                if visited > STATES:
                    raise undecided("holders(layout, coord)", "the search for holders", {"layout": layout}, STATES)
        level = after
    yield from level.get(0, ())


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
    need_numbers("image(layout)", layout)
    iters = [*layout.shard, *layout.replica]
    line = _line(iters, layout.offset)
    values = _sums([(it.extent, line.encode(it.stride)) for it in iters], "image(layout)", layout)
    values = values + (line.encode(layout.offset) - sum(l * w for l, w in zip(line.low, line.weight, strict=True)))
    out = {}
    for axis, low, span in zip(line.axes, line.low, line.span, strict=True):
        out[axis] = values % span + low
        values = values // span
    if len(out) > 1:
        order = np.lexsort([out[axis] for axis in reversed(line.axes)])
        return {axis: column[order] for axis, column in out.items()}
    return next(iter(out.values()), np.zeros(1, np.int64))


def _sums(rows: Iterable[tuple[int, int]], where: str, layout: object) -> IntArray:
    """The distinct sums of digit times stride, ascending."""
    rows = sorted(((e, s) for e, s in rows if e > 1 and s), key=lambda row: abs(row[1]))
    least, reach = 1, 0  # a stride beyond the reach of the smaller ones multiplies the number of sums
    for extent, stride in rows:
        least *= extent if abs(stride) > reach else 1
        reach += (extent - 1) * abs(stride)
    if least > BOUND:
        raise undecided(where, "enumerating the coordinates", {"layout": layout})
    wide = sum(e * abs(s) for e, s in rows) >= 1 << 62
    values = np.zeros(1, object if wide else np.int64)
    for extent, stride in rows:
        if len(values) * extent > BOUND:
            raise undecided(where, "enumerating the coordinates", {"layout": layout})
        steps = np.arange(extent).astype(values.dtype) * stride
        values = np.unique(steps[:, None] + values[None, :])
    return values


# Replica sets.


def set_key(replica: Iterable[Iter]) -> Hashable:
    """A hashable value, equal for two sign-normal replica lists exactly if their sums are the same set.

    Raises:
        Undecided: a part whose replicas collide has more than `BOUND` points.

    Source: Axe, appendix A.2.2, without the gap condition (own).
    """
    kept, rest = _set_parts(replica)
    return normal_replica(kept)[0], frozenset((axes, frozenset(points)) for axes, points, _ in rest)


def set_normal(replica: Iterable[Iter]) -> tuple[Iter, ...]:
    """A short replica list with the same set of sums: distinct sums if there is such a list, else multiples absorbed.

    It is unique for the set in the first case.

    Raises:
        Undecided: a part whose replicas collide has more than `BOUND` points.

    Source: Axe, appendix A, rules C0 and C2 (own form).
    """
    kept, rest = _set_parts(replica)
    left: list[Iter] = []
    for axes, points, iters in rest:
        inside = [_restrict(it, axes) for it in iters]
        left += [it for it in inside if it.stride] if len(points) > 1 else []
    return normal_replica([*kept, *left])[0]


def _restrict(it: Iter, axes: tuple[str, ...]) -> Iter:
    return iter_of(it.extent, coord_of_terms(tuple(t for t in it.stride.terms if t[0] in axes)))


def _set_parts(
    replica: Iterable[Iter],
) -> tuple[list[Iter], list[tuple[tuple[str, ...], set[Coord], list[Iter]]]]:
    """Iters with distinct sums, and the sets that no such iters give, each with its axes and iters that give it.

    Multiples are absorbed first (Axe's C2 with ``q <= e``, which is exact). A part whose sums are distinct is kept; any
    other is listed, up to `BOUND` points, and factored if it can be.
    """
    kept: list[Iter] = []
    rest: list[tuple[tuple[str, ...], set[Coord], list[Iter]]] = []
    for part in _connected(absorb(it for it in replica if it.extent > 1 and it.stride)):
        if _relation(part, [], Layout((), tuple(part))) is None:
            kept += part
            continue
        line = _line(part)
        values = _sums([(it.extent, line.encode(it.stride)) for it in part], "same_map(a, b, 'set')", part)
        for axes, piece in _split_axes(line.axes, {line.decode(int(v)) for v in values}):
            factors = _factors(sorted(piece, key=lambda c: tuple(c[a] for a in axes)))
            if factors is None:
                rest.append((axes, piece, part))
            else:
                kept += factors
    return kept, rest


def absorb(iters: Iterable[Iter]) -> list[Iter]:
    """Iters with the same set of sums, where no stride is q times another of extent q or more (rule C2)."""
    todo = sorted(iters, key=lambda it: (sum(abs(v) for _, v in it.stride.terms), -it.extent))
    out: list[Iter] = []
    for position, it in enumerate(todo):
        for k, have in enumerate(out):
            q = _quotient(it.stride, have.stride)
            if 1 <= q <= have.extent:
                out[k] = iter_of(have.extent + q * (it.extent - 1), have.stride)
                return absorb([*out, *todo[position + 1 :]])
        out.append(it)
    return out


def _quotient(a: Coord, b: Coord) -> int:
    """The positive q with ``a = q * b``, or 0."""
    if not a.terms or a.axes != b.axes:
        return 0
    q, rest = divmod(a.terms[0][1], b.terms[0][1])
    return q if not rest and q > 0 and q * b == a else 0


def _connected(iters: Iterable[Iter]) -> list[list[Iter]]:
    """The iters in groups that share no axis."""
    groups: list[tuple[set[str], list[Iter]]] = []
    for it in iters:
        axes, members = set(it.stride.axes), [it]
        for group in [g for g in groups if g[0] & axes]:
            groups.remove(group)
            axes, members = axes | group[0], group[1] + members
        groups.append((axes, members))
    return [members for _, members in groups]


def _split_axes(axes: tuple[str, ...], points: set[Coord]) -> Iterator[tuple[tuple[str, ...], set[Coord]]]:
    """The finest split of a set of points into factors on disjoint axes whose product it is."""
    for width in range(1, len(axes) // 2 + 1):
        for chosen in combinations(axes, width):
            left = {coord_of_terms(tuple(t for t in c.terms if t[0] in chosen)) for c in points}
            right = {coord_of_terms(tuple(t for t in c.terms if t[0] not in chosen)) for c in points}
            if len(left) * len(right) == len(points):
                yield chosen, left
                yield from _split_axes(tuple(a for a in axes if a not in chosen), right)
                return
    yield axes, points


def _factors(points: list[Coord]) -> list[Iter] | None:
    """Iters whose sums are exactly these points, each once; None if there are none. Points sorted, zero first."""
    if len(points) == 1:
        return [] if not points[0] else None
    if points[0]:
        return None
    stride = points[1]  # the least positive sum is one stride
    have = set(points)
    run = 1
    while run * stride in have:
        run += 1
    for extent in range(run, 1, -1):
        if len(points) % extent:
            continue
        rest, left = [], set(have)
        for p in points:
            if p not in left:
                continue
            steps = [p + k * stride for k in range(extent)]
            if not left.issuperset(steps):
                break
            left.difference_update(steps)
            rest.append(p)
        else:
            deeper = _factors(rest)
            if deeper is not None:
                return [iter_of(extent, stride), *deeper]
    return None


def set_quotient(
    whole: Sequence[Iter],
    part: Sequence[Iter],
    factors: Mapping[str, int],
    where: str,
    inputs: Mapping[str, object],
) -> tuple[Iter, ...]:
    """Normal replicas whose set of sums, times factors, plus that of part, is the set of whole; both sign-normal.

    The factors are at least the spans of part, so every point of the whole belongs to one multiple only.

    Raises:
        NoLayout: there are none; Undecided: the multiples are not a set of distinct sums, or are too many to list.
    """
    lines = [_line(iters) for iters in (whole, part)]
    points, inner = (
        {line.decode(int(v)) for v in _sums([(it.extent, line.encode(it.stride)) for it in iters], where, inputs)}
        for line, iters in zip(lines, (whole, part), strict=True)
    )
    lows = {a: min(c[a] for c in inner) for c in points for a in c.axes}
    outer = {Coord(tuple((a, (c[a] - low) // factors.get(a, 1)) for a, low in lows.items())) for c in points}
    again = {Coord(tuple((a, v * factors.get(a, 1)) for a, v in c.terms)) + y for c in outer for y in inner}
    if again != points:
        raise refuse(where, Witness((), (), "the replica sets are not multiples of b's span plus those of b"), inputs)
    names = sorted({a for c in outer for a in c.axes})
    found = _factors(sorted(outer, key=lambda c: tuple(c[a] for a in names)))
    if found is None:
        raise Undecided(
            where, "the set of replicas that is left has collisions", inputs=inputs, facts={"bound": len(outer)}
        )
    return normal_replica(found)[0]
