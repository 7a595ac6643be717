"""Layouts for tests: hypothesis strategies, seeded random layouts, and the definitions enumerated point by point.

`fibres` is the oracle: it walks the digits with plain loops and shares no code with the package.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from random import Random

from hypothesis import strategies as st

from tileweave.errors import NoLayout
from tileweave.layout import Coord, Iter, Layout, recover

PLAIN = [0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, -1, -2, -3, -6]
VECTOR = [*PLAIN, {"lane": 1}, {"lane": 2}, {"lane": -1}, {"lane": 1, "m": -3}, {"reg": 1}, {"lane": 2, "reg": 2}]


def fibres(layout):
    """f(x) for every x in order, each a Counter of coordinates given as sorted (axis, value) pairs."""

    def total(iters, digits):
        out = Counter()
        for it, d in zip(iters, digits, strict=True):
            for axis, s in it.stride.terms:
                out[axis] += d * s
        return out

    copies = [total(layout.replica, r) for r in product(*(range(it.extent) for it in layout.replica))]
    out = []
    for digits in product(*(range(it.extent) for it in layout.shard)):
        base = total(layout.shard, digits)
        for axis, v in layout.offset.terms:
            base[axis] += v
        fibre = Counter()
        for r in copies:
            axes = set(base) | set(r)
            fibre[tuple(sorted((a, base[a] + r[a]) for a in axes if base[a] + r[a]))] += 1
        out.append(fibre)
    return out


def values(layout, axis="m"):
    """The integer at each x, for a layout without replicas on one axis."""
    return [dict(next(iter(fibre))).get(axis, 0) for fibre in fibres(layout)]


def random_layout(rng: Random, *, strides=PLAIN, rank=4, extent=5, copies=0, offsets=(0,)) -> Layout:
    """A layout with up to `rank` iters and up to `copies` replica iters."""
    shard = [(rng.randint(1, extent), rng.choice(strides)) for _ in range(rng.randint(0, rank))]
    replica = [(rng.randint(1, 3), rng.choice(strides)) for _ in range(rng.randint(0, copies))]
    return Layout(shard, replica, rng.choice(offsets))


def random_shape(rng: Random, size: int, rank: int = 3) -> tuple[int, ...]:
    """A shape with `size` points, unit extents included."""
    out = [1] * rng.randint(1, rank)
    for p in _primes(size):
        out[rng.randrange(len(out))] *= p
    return tuple(out)


def _primes(n: int) -> list[int]:
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return out


def random_index_map(rng: Random, size: int, rank: int = 3) -> Layout | None:
    """A layout whose values lie in [0, size), of any signs; None if the draw did not fit."""
    layout = random_layout(rng, rank=rank)
    low, high = layout.bounds()
    if high - low >= size:
        return None
    return Layout(layout.shard, (), rng.randint(0, size - 1 - (high - low)) - low)


# Strategies.

extents = st.integers(1, 6)
strides = st.sampled_from(PLAIN)
coords = st.dictionaries(st.sampled_from(["m", "lane", "reg"]), st.integers(-20, 20), max_size=3).map(Coord.of)
iters = st.builds(Iter, extents, st.sampled_from([Coord.of(s) for s in VECTOR]))
plain_iters = st.builds(Iter, extents, strides.map(Coord.of))


def layouts(items=iters, max_rank: int = 4, copies: int = 0, max_size: int = 500):
    """Layouts of small size, with up to `copies` replica iters and any offset."""
    return st.builds(
        Layout,
        st.lists(items, max_size=max_rank).filter(lambda row: prod(it.extent for it in row) <= max_size),
        st.lists(items, max_size=copies),
        coords if items is iters else st.integers(-9, 9).map(Coord.of),
    )


def enumerate_image(projection, box):
    """The image of a projection by its definition, point by point."""
    points = set()
    for index in box:
        base = projection.map(index)
        for inner in product(*(range(n) for n in projection.shape)):
            points.add(tuple(b + s * j for b, s, j in zip(base, projection.stride, inner, strict=True)))
    return points


def chains(top):
    """All lists of extents whose product first passes `top`."""
    out = []

    def grow(extents, run):
        if run > top:
            out.append(extents)
            return
        for n in range(2, top + 2):
            if n == 2 or run * n <= 2 * (top + 1):
                grow([*extents, n], run * n)

    grow([], 1)
    return out


def integer_solution(rows, values):
    """Integers x with ``rows x = values``, or None if there are none, by column reduction."""
    width = len(rows[0]) if rows else 0
    columns = [[row[j] for row in rows] for j in range(width)]
    made = [[int(i == j) for i in range(width)] for j in range(width)]
    solution = [0] * width
    rest = list(values)
    first = 0
    for r in range(len(rows)):
        while True:
            live = [j for j in range(first, width) if columns[j][r]]
            if len(live) < 2:
                break
            pivot = min(live, key=lambda j: abs(columns[j][r]))
            for j in live:
                if j != pivot:
                    q = columns[j][r] // columns[pivot][r]
                    columns[j] = [x - q * y for x, y in zip(columns[j], columns[pivot], strict=True)]
                    made[j] = [x - q * y for x, y in zip(made[j], made[pivot], strict=True)]
        if not live:
            if rest[r]:
                return None
            continue
        pivot = live[0]
        columns[first], columns[pivot] = columns[pivot], columns[first]
        made[first], made[pivot] = made[pivot], made[first]
        q, left = divmod(rest[r], columns[first][r])
        if left:
            return None
        rest = [x - q * y for x, y in zip(rest, columns[first], strict=True)]
        solution = [x + q * y for x, y in zip(solution, made[first], strict=True)]
        first += 1
    return solution


def any_left_inverse(values):
    """Whether any layout takes the values back to 0, 1, ..: all chains of extents, the strides by elimination."""
    for extents in chains(max(values)):
        rows = []
        for v in values:
            row = [1]
            for n in extents:
                v, digit = divmod(v, n)
                row.append(digit)
            rows.append(row)
        if integer_solution(rows, list(range(len(values)))) is not None:
            return True
    return False


def bare(layout):
    return Layout(layout.shard, (), layout.offset)


def is_layout(coords):
    """Whether some layout takes these values, by recovery from the full table."""
    try:
        recover(coords)
    except NoLayout:
        return False
    return True


def coords_of(layout):
    return [Coord(next(iter(f))) for f in fibres(bare(layout))]


def flat(point, shape):
    out = 0
    for u, n in zip(point, shape, strict=True):
        out = out * n + u
    return out
