"""Replicas: the shortest list of iters with a multiset, or with a set, of sums; without listing where it can be.

R is a product of (1 - z^(es)) / (1 - z^s). The factors 1 - z^n are multiplicatively independent, so two lists are equal
as multisets exactly if their numerators and denominators agree after cancelling. No divisor is ever listed. A set of
sums that collide has no such form; it is listed, below a bound, and its canonical list is found by a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import gcd
from operator import mul

from tileweave.errors import LayoutError
from tileweave.layout.core.checks import BOUND, Witness, refuse, undecided
from tileweave.layout.core.coord import ZERO, Coord, Terms, coord_of_terms
from tileweave.layout.core.layout import Iter, is_symbolic, iter_of, layout_of, require_numbers
from tileweave.layout.core.search import line_of, relation, sums
from tileweave.layout.core.symbolic import proved, same, simple

KNOWN = 1 << 12
"""Lists of numbers whose normal forms are kept: a kernel or a mesh has a few, and asks for them again and again."""

# Multisets.


def normal_replica(iters: Iterable[Iter]) -> tuple[tuple[Iter, ...], Coord]:
    """The unique shortest replica list with the same multiset of sums, and the offset that its signs cost."""
    iters = tuple(iters)
    if any(map(is_symbolic, iters)):
        return proved_replica(iters)
    return _normal_of(iters)


@lru_cache(KNOWN)
def _normal_of(iters: tuple[Iter, ...]) -> tuple[tuple[Iter, ...], Coord]:
    if len(iters) == 1 and iters[0].extent > 1 and iters[0].stride.terms:
        (it,) = iters
        if it.stride.terms[0][1] > 0:
            return iters, ZERO
        return (iter_of(it.extent, -1 * it.stride),), (it.extent - 1) * it.stride
    shift, copies, ratio = replica_ratio(iters)
    out = [iter_of(copies, ZERO)] if copies > 1 else []
    for direction, exponents in ratio.items():
        pairs = match_ratio(exponents)
        if pairs is None:  # cannot happen: the list that was given is a matching before cancelling
            raise LayoutError("normalize(layout)", f"the replicas {list(map(str, iters))} have no normal form")
        out += [iter_of(n // m, coord_of_terms(tuple([(a, m * v) for a, v in direction]))) for m, n in pairs]
    if len(out) > 1:
        out.sort(key=lambda it: (it.extent, it.stride.terms))
    return tuple(out), shift


def proved_replica(iters: Iterable[Iter]) -> tuple[tuple[Iter, ...], Coord]:
    """Replicas with the same multiset of sums, no units, negative strides turned; and the offset of the turns."""
    out: list[Iter] = []
    shift = ZERO
    for it in iters:
        if same(it.extent, 1):
            continue
        if it.stride.terms and proved(it.stride.terms[0][1] <= 0):
            shift = shift + (it.extent - 1) * it.stride
            it = iter_of(simple(it.extent), -it.stride)
        out.append(it)
    return layout_of((), tuple(out), ZERO).replica, shift


def replica_ratio(iters: Iterable[Iter]) -> tuple[Coord, int, dict[Terms, dict[int, int]]]:
    """The multiset of sums as ``copies * product of (1 - z^n)^k`` per primitive direction, after a shift.

    Each iter ``e : s*u`` with u primitive contributes +1 at n = es and -1 at n = s. Entries that cancel are dropped.
    """
    shift, copies = ZERO, 1
    ratio: dict[Terms, dict[int, int]] = {}
    for it in iters:
        extent, terms = it.extent, it.stride.terms
        require_numbers(it)
        if extent == 1:
            continue
        if not terms:
            copies *= extent
            continue
        if terms[0][1] < 0:
            shift = shift + (extent - 1) * it.stride
            terms = tuple([(a, -v) for a, v in terms])
        pitch = terms[0][1] if len(terms) == 1 else gcd(*[v for _, v in terms])
        direction = tuple([(a, v // pitch) for a, v in terms])
        exponents = ratio.setdefault(direction, {})
        for n, k in ((extent * pitch, 1), (pitch, -1)):
            if total := exponents.get(n, 0) + k:
                exponents[n] = total
            else:
                del exponents[n]
    return shift, copies, {direction: exponents for direction, exponents in ratio.items() if exponents}


def match_ratio(
    exponents: Mapping[int, int], allowed: Callable[[int, int], bool] = lambda _m, _n: True
) -> list[tuple[int, int]] | None:
    """Pair every denominator m with a numerator n, m dividing n: the first such pairing in order, or None.

    A product of (1 - z^n)^k is a product of iters (n/m : m) exactly if there is such a pairing. `allowed` restricts it.
    """
    if len(exponents) == 2 and sorted(exponents.values()) == [-1, 1]:
        m, n = sorted(exponents, key=exponents.__getitem__)
        return [(m, n)] if n % m == 0 and allowed(m, n) else None
    numerators = sorted(n for n, k in exponents.items() for _ in range(k))
    denominators = sorted(m for m, k in exponents.items() for _ in range(-k))
    if len(numerators) != len(denominators):
        return None
    fits = [[n % m == 0 and allowed(m, n) for n in numerators] for m in denominators]
    chosen: list[int] = []
    for row in range(len(denominators)):
        for column in range(len(numerators)):
            if fits[row][column] and column not in chosen and _matches(fits, row + 1, {*chosen, column}):
                chosen.append(column)
                break
        else:
            return None
    return [(m, numerators[c]) for m, c in zip(denominators, chosen, strict=True)]


def _matches(fits: list[list[bool]], first: int, used: set[int]) -> bool:
    """Whether rows from `first` on can all be matched to columns that are not used (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in used and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(first, len(fits)))


# Sets.


def set_normal(replica: Iterable[Iter]) -> tuple[Iter, ...]:
    """The canonical replica list with the same set of sums, the same for every list with that set.

    Multiples are absorbed (Axe's C2 with ``q <= e``, which is exact). A part whose sums are distinct is normal as a
    multiset. Any other is listed: its list of distinct sums, if there is one, else the shortest list with that set, the
    first in order of strides.

    Raises:
        Undecided: a part whose replicas collide has more than `BOUND` points.

    Source: Axe, appendix A, rules C0 and C2 (own form).
    """
    return _set_normal_of(tuple(replica))


@lru_cache(KNOWN)
def _set_normal_of(replica: tuple[Iter, ...]) -> tuple[Iter, ...]:
    where = "canonicalize(layout, replicas)"
    out: list[Iter] = []
    for part in _connected(absorb(it for it in replica if it.extent > 1 and it.stride)):
        if relation(part, [], where, {"replicas": layout_of((), tuple(part), ZERO)}) is None:
            out += part
            continue
        line = line_of(part)
        values = sums([(it.extent, line.encode(it.stride)) for it in part], where, {"replicas": part})
        for axes, piece in _split_axes(line.axes, {line.decode(int(v)) for v in values}):
            points = sorted(tuple(c[a] for a in axes) for c in piece)
            found = _factor([(p, 1) for p in points])
            if found is None:
                found = _shortest_cover(points, len(part), where)
            out += [iter_of(e, Coord(tuple(zip(axes, v, strict=True)))) for e, v in found]
    return normal_replica(out)[0]


Vector = tuple[int, ...]


def _shortest_cover(points: list[Vector], most: int, where: str) -> list[tuple[int, Vector]]:
    """The shortest list of iters (extent, stride) whose sums are this set, the first in order of ascending strides.

    The points are sorted, zero first. Below the next stride every point is a sum of the strides so far, so the next
    stride is at most the least point that they leave out. The list that was given has `most` iters.
    """
    weights: list[int] = []  # points as numbers of the same order, whose differences tell the coordinates apart
    weight = 1
    for values in reversed(list(zip(*points, strict=True))):
        weights.append(weight)
        weight *= 4 * (max(values) - min(values)) + 1
    weights.reverse()
    line = [sum(map(mul, p, weights)) for p in points]
    whole, top = set(line), line[-1]
    steps = 0

    def grown(have: set[int], stride: int, extent: int) -> set[int]:
        nonlocal steps
        steps += len(have) * extent
        if steps > 16 * BOUND:
            raise undecided(where, "the shortest list of replicas", {"points": len(points)}, 16 * BOUND)
        return {x + d for d in range(0, extent * stride, stride) for x in have}

    def search(have: set[int], least: int, left: int) -> list[tuple[int, Vector]] | None:
        missing = next((k for k, x in enumerate(line) if x not in have), None)
        if missing is None:
            return []
        for k in range(least, missing + 1):
            stride = line[k]
            if left == 1:  # the last iter ends at the last point
                more, rest = divmod(top - max(have), stride)
                extents = range(more + 1, more if not rest and len(have) * (more + 1) >= len(line) else more + 1, -1)
            else:
                last, run = have, 1
                while run < len(line) and (last := {x + stride for x in last}) <= whole:
                    run += 1
                extents = range(run, 1, -1)
            for extent in extents:
                after = grown(have, stride, extent)
                found = search(after, k, left - 1) if left > 1 else [] if after == whole else None
                if found is not None:
                    return [(extent, points[k]), *found]
        return None

    for length in range(1, most + 1):
        found = search({0}, 1, length)
        if found is not None:
            return found
    raise undecided(where, "the shortest list of replicas", {"points": len(points)})


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
    lines = [line_of(iters) for iters in (whole, part)]
    points, inner = (
        {line.decode(int(v)) for v in sums([(it.extent, line.encode(it.stride)) for it in iters], where, inputs)}
        for line, iters in zip(lines, (whole, part), strict=True)
    )
    lows = {a: min(c[a] for c in inner) for c in points for a in c.axes}
    outer = {Coord(tuple((a, (c[a] - low) // factors.get(a, 1)) for a, low in lows.items())) for c in points}
    again = {Coord(tuple((a, v * factors.get(a, 1)) for a, v in c.terms)) + y for c in outer for y in inner}
    if again != points:
        lost = min(points ^ again, key=str)
        condition = f"{lost} is in one set only: a's replicas, and multiples of b's span plus b's replicas"
        raise refuse(where, Witness((0,), (lost,), condition), inputs)
    found = factor_multiset(Counter(outer))
    if found is None:
        names = sorted({a for c in outer for a in c.axes})
        cover = _shortest_cover(sorted(tuple(c[a] for a in names) for c in outer), len(whole), where)
        found = [iter_of(e, Coord(tuple(zip(names, v, strict=True)))) for e, v in cover]
    return normal_replica(found)[0]


def factor_multiset(points: Counter[Coord]) -> list[Iter] | None:
    """Iters whose sums are exactly this multiset, or None if there are none; the least point must be zero.

    The least point above zero is a stride. Its extents are tried longest first, and what is left is factored in turn.
    """
    axes = sorted({name for c in points for name in c.axes})
    copies = points[Coord()]
    if not copies or any(k % copies for k in points.values()):
        return None
    rest = _factor([(tuple(c[name] for name in axes), k // copies) for c, k in points.items()])
    if rest is None:
        return None
    strides = [iter_of(e, Coord(tuple(zip(axes, v, strict=True)))) for e, v in rest]
    return strides + ([iter_of(copies, Coord())] if copies > 1 else [])


def _factor(rows: list[tuple[tuple[int, ...], int]]) -> list[tuple[int, tuple[int, ...]]] | None:
    rows.sort()
    if len(rows) == 1:
        return [] if rows[0][1] == 1 else None
    if any(rows[0][0]) or rows[0][1] != 1:
        return None
    stride = rows[1][0]
    total = sum(k for _, k in rows)
    have = dict(rows)
    run = 1
    while tuple(run * v for v in stride) in have:
        run += 1
    for extent in range(run, 1, -1):
        if total % extent:
            continue
        left: dict[tuple[int, ...], int] = {}
        for point, k in rows:
            back = [tuple(p - j * v for p, v in zip(point, stride, strict=True)) for j in range(1, extent)]
            left[point] = k - sum(left.get(q, 0) for q in back)
            if left[point] < 0:
                break
        else:
            kept = [(p, k) for p, k in left.items() if k]
            if sum(k for _, k in kept) * extent == total:
                deeper = _factor(kept)
                if deeper is not None:
                    return [(extent, stride), *deeper]
    return None
