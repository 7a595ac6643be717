"""Composition where replicas of B are not replicas of A: each fibre is compared, as a multiset, point by point."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from tileweave.layout.core.exact import BOUND, Witness, from_table, normal_replica, refuse, undecided
from tileweave.layout.core.layout import Coord, Iter, Layout, iter_of, layout_of

__all__ = ["compose_fibres", "factor_multiset"]

WHERE = "compose(a, b)"


def compose_fibres(a: Layout, b: Layout, axis: str) -> Layout:
    """``C(x) + R_C`` equal to the multiset ``A(B(x) + r) + R_A`` for every x, by listing all of them; or `NoLayout`.

    The fibres must be translates of one another. The least point of each is D(x) + O, which must be a layout; the rest
    must be a product of iters.
    """
    inputs = {"a": a, "b": b}
    if b.size * prod(it.extent for it in b.replica) > BOUND:
        raise undecided(WHERE, "comparing all fibres", inputs)
    copies = [r[axis] for r in b.replicas()]
    base = layout_of(a.shard, (), a.offset)
    fibres = [Counter(base(b(x)[axis] + r) for r in copies) for x in range(b.size)]
    axes = sorted({name for fibre in fibres for c in fibre for name in c.axes}) or [axis]

    def least(fibre: Counter[Coord]) -> Coord:
        return min(fibre, key=lambda c: tuple(c[name] for name in axes))

    lows = [least(fibre) for fibre in fibres]
    shape = _shift(fibres[0], lows[0])
    for x, (fibre, low) in enumerate(zip(fibres, lows, strict=True)):
        if _shift(fibre, low) != shape:
            condition = f"the fibres at 0 and at {x} are not translates of each other"
            raise refuse(WHERE, Witness((0, x), (_show(fibres[0]), _show(fibre)), condition), inputs)
    columns = {name: np.array([low[name] for low in lows], dtype=object) for name in axes}
    found = from_table(columns, b.size, WHERE, inputs)
    iters = factor_multiset(shape)
    if iters is None:  # the replicas of a may complete it
        whole: Counter[Coord] = Counter()
        mine, shift = normal_replica(a.replica)
        for r in layout_of((), mine, Coord()).replicas():
            for c, k in shape.items():
                whole[c + r] += k
        iters = factor_multiset(whole)
        if iters is None:
            raise refuse(WHERE, Witness((0,), (_show(fibres[0]),), "the fibre at 0 is no sum of replica iters"), inputs)
        replica, more = normal_replica(iters)
        return layout_of(found.shard, replica, found.offset + shift + more)
    replica, shift = normal_replica([*a.replica, *iters])
    return layout_of(found.shard, replica, found.offset + shift)


def _shift(fibre: Counter[Coord], low: Coord) -> Counter[Coord]:
    return Counter({c - low: k for c, k in fibre.items()})


def _show(fibre: Counter[Coord]) -> str:
    return "{" + ", ".join(sorted(str(c) for c in fibre.elements())) + "}"


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
