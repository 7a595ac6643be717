"""Composition from every point: a layout that does not refine B, and replicas of B that are not replicas of C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from math import prod
from random import Random
from typing import Any

import numpy as np

from tileweave.layout.core.checks import BOUND, Witness, refuse, undecided
from tileweave.layout.core.coord import ZERO, Coord
from tileweave.layout.core.exact import from_table, probe
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.replicas import factor_multiset, normal_replica


def compose_by_points(a: Layout, b: Layout, axis: str, where: str, inputs: Mapping[str, object]) -> Layout:
    """The answer from every point of b (and every replica), or a refusal; `Undecided` past the bound."""
    base = layout_of(a.shard, (), a.offset)

    def value(x: int) -> Any:
        return base(b(x)[axis])

    if b.size * prod(it.extent for it in b.replica) > BOUND:
        if not b.replica:
            probe(value, b.size, where, inputs, _near(b))
        raise undecided(where, "b is not nested in a's extents; comparing all its points", inputs)
    if b.replica:
        return _by_fibres(a, b, axis, where, inputs)
    table = b.table()
    values = base(table if not isinstance(table, dict) else table[axis])
    found = from_table(values if isinstance(values, dict) else {base.axes[0]: values}, b.size, where, inputs)
    replica, shift = normal_replica(a.replica)
    return layout_of(found.shard, replica, found.offset + shift)


def _near(b: Layout) -> list[int]:
    """Indices where carries show first: one or two digits at 1 or at their ends, and some random ones."""
    weights, weight = [], 1
    for it in reversed(b.shard):
        weights.append((it.extent, weight))
        weight *= it.extent
    ends = [k * w for e, w in weights for k in {1, e // 2, e - 1} if 0 < k < e]
    random = Random(0)
    least = greatest = 0
    for it in b.shard:
        rising = sum(v for _, v in it.stride.terms) > 0
        least = least * it.extent + (0 if rising else it.extent - 1)
        greatest = greatest * it.extent + (it.extent - 1 if rising else 0)
    pairs = (x + y for x, y in combinations(ends, 2))
    return [least, greatest, *ends, *pairs, b.size - 1, *(random.randrange(b.size) for _ in range(256))]


def _by_fibres(a: Layout, b: Layout, axis: str, where: str, inputs: Mapping[str, object]) -> Layout:
    """``C(x) + R_C`` equal to the multiset ``A(B(x) + r) + R_A`` for every x, by listing all of them; or `NoLayout`.

    The fibres must be translates of one another. The least point of each is D(x) + O, which must be a layout; the rest
    must be a product of iters.
    """
    copies = [r[axis] for r in b.replicas()]
    base = layout_of(a.shard, (), a.offset)
    fibres = [Counter(base(b(x)[axis] + r) for r in copies) for x in range(b.size)]
    axes = sorted({name for fibre in fibres for c in fibre for name in c.axes}) or [axis]
    lows = [min(fibre, key=lambda c: tuple(c[name] for name in axes)) for fibre in fibres]
    shape = _shift(fibres[0], lows[0])
    for x, (fibre, low) in enumerate(zip(fibres, lows, strict=True)):
        if _shift(fibre, low) != shape:
            condition = f"the fibres at 0 and at {x} are not translates of each other"
            raise refuse(where, Witness((0, x), (_show(fibres[0]), _show(fibre)), condition), inputs)
    columns = {name: np.array([low[name] for low in lows], dtype=object) for name in axes}
    found = from_table(columns, b.size, where, inputs)
    iters = factor_multiset(shape)
    mine = a.replica
    if iters is None:  # the replicas of a may complete it
        own, shift = normal_replica(a.replica)
        whole: Counter[Coord] = Counter()
        for r in layout_of((), own, ZERO).replicas():
            for c, k in shape.items():
                whole[c + r] += k
        iters, mine = factor_multiset(whole), ()
        if iters is None:
            raise refuse(where, Witness((0,), (_show(fibres[0]),), "the fibre at 0 is no sum of replica iters"), inputs)
        found = layout_of(found.shard, (), found.offset + shift)
    replica, shift = normal_replica([*mine, *iters])
    return layout_of(found.shard, replica, found.offset + shift)


def _shift(fibre: Counter[Coord], low: Coord) -> Counter[Coord]:
    return Counter({c - low: k for c, k in fibre.items()})


def _show(fibre: Counter[Coord]) -> str:
    return "{" + ", ".join(sorted(str(c) for c in fibre.elements())) + "}"
