"""The additive part of the search: one candidate per node, so that the sum of table entries is small.

Two solvers of one problem. The beam goes through the nodes in order and keeps the best partial choices; it is exact
where few values are alive at a time (chains, trees). Dual ascent takes graphs of any shape and a thousand nodes, and
says how far from the optimum its answer can be. The tests compare both with an integer program.

Source: own; the problem's form after the strategy graphs of alpa, with flows on edges, whose relaxation is tight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tileweave.graph import Operation
from tileweave.planner.bounds import product_of
from tileweave.planner.search.tables import Measures, Tables

BEAM = 24
"""Partial choices kept after each node."""
Weigh = Callable[[Measures], Any]


@dataclass(frozen=True, slots=True)
class Solved:
    """A choice, what it costs, and how much less any choice could cost (0: it is optimal).

    Args:
        chosen: a candidate per node.
        cost: the sum of its entries.
        gap: (cost - least possible cost) / cost, at most; None where nothing is known.
    """

    chosen: tuple[int, ...]
    cost: float
    gap: float | None = None


def beam(tables: Tables, weigh: Weigh, width: int = BEAM) -> list[Solved]:
    """Choices by ascending cost, the best that were found."""
    last = [max((e.reader for e in out), default=-1) for out in tables.out]
    alone, rows_of_pairs = tables.weighed(weigh)
    pairs = {id(e): row for e, row in zip(tables.edges, rows_of_pairs, strict=True)}
    costs = np.zeros(1)
    rows = np.zeros((1, 0), np.int32)  # partial choices, one per row
    live: list[int] = []
    for number in range(len(tables.nodes)):
        total = costs[:, None] + alone[number][None, :]
        for edge in tables.into[number]:
            total = total + pairs[id(edge)][rows[:, edge.maker]]
        flat = np.argsort(total, axis=None, kind="stable")
        live = [n for n in [*live, number] if last[n] > number]
        seen: set[tuple[int, ...]] = set()
        picked: list[tuple[int, int]] = []
        final = number == len(tables.nodes) - 1
        for at in flat[: 64 * width]:
            row, candidate = divmod(int(at), total.shape[1])
            key = tuple(int(candidate if n == number else rows[row, n]) for n in live)
            if key in seen and not final:
                continue
            seen.add(key)
            picked.append((row, candidate))
            if len(picked) == width:
                break
        costs = np.asarray([total[at] for at in picked])
        rows = np.concatenate([rows[[r for r, _ in picked]], np.asarray([[c] for _, c in picked], np.int32)], 1)
    return [Solved(tuple(map(int, row)), float(cost)) for row, cost in zip(rows, costs, strict=True)]


def polished(tables: Tables, weigh: Weigh, start: Solved, rounds: int = 8, *, fixed: Collection[int] = ()) -> Solved:
    """The choice after every node but those that are fixed has moved to its best candidate, given its neighbours,
    until none moves."""
    chosen, moved = list(start.chosen), True
    alone, rows_of_pairs = tables.weighed(weigh)
    pairs = {id(e): row for e, row in zip(tables.edges, rows_of_pairs, strict=True)}
    cost = start.cost
    for _ in range(rounds):
        if not moved:
            break
        moved = False
        for number in (n for n in range(len(chosen)) if n not in fixed):
            total = alone[number].copy()
            for edge in tables.into[number]:
                total += pairs[id(edge)][chosen[edge.maker]]
            for edge in tables.out[number]:
                total += pairs[id(edge)][:, chosen[edge.reader]]
            best = int(total.argmin())
            gain = float(total[chosen[number]] - total[best])
            if gain > 1e-12 * max(1.0, cost):
                chosen[number], cost, moved = best, cost - gain, True
    return Solved(tuple(chosen), cost)


def gridded(tables: Tables, weigh: Weigh, start: Solved, best: Callable[..., tuple[tuple[int, ...], float]]) -> Solved:
    """The choice with every product cut by its best grid, where it is offered that, and the rest polished around these.

    Shares of operands and results in runs, which decide the words of a grid, are in no entry of a table.
    """
    chosen, fixed = list(start.chosen), set()
    for number, (node, offer) in enumerate(zip(tables.nodes, tables.offers, strict=True)):
        found = product_of(node) if isinstance(node, Operation) else None
        if found is not None:
            grid, _ = best(*found.shape, tables.count)
            groups = (found.m, found.n, found.k)
            parts = [tuple(prod(way.parts[d] for d in group) for group in groups) for way in offer.choices]
            fits = [k for k, one in enumerate(parts) if one == grid]
            if fits:
                chosen[number] = min(fits, key=lambda k: float(weigh(tables.alone[number])[k]))
                fixed.add(number)
    return polished(tables, weigh, Solved(tuple(chosen), cost_of(tables, weigh, chosen)), fixed=fixed)


def relaxed(tables: Tables, weigh: Weigh, sweeps: int | None = None) -> Solved:
    """A choice with a bound on its gap, by dual ascent: each edge in turn gives its ends what it can.

    Entries of pairs are moved to their nodes so that the sum over nodes and pairs of the least entry of each grows; the
    cost of no choice changes, so any such sum is a bound. The choice is read off node by node, and polished.

    Source: Globerson and Jaakkola, "Fixing Max-Product" (2007), the update over edges.
    """
    plain, pairs = tables.weighed(weigh)
    alone = [row.copy() for row in plain]  # grows by what pairs give
    given = [(np.zeros(p.shape[0]), np.zeros(p.shape[1])) for p in pairs]
    rounds = sweeps if sweeps is not None else max(LEAST_SWEEPS, min(MOST_SWEEPS, ENTRIES // max(1, len(pairs))))
    order = list(enumerate(zip(tables.edges, pairs, strict=True)))
    best = Solved((), float("inf"))
    for turn in range(1, rounds + 1):
        for k, (edge, pair) in reversed(order) if turn % 2 == 0 else order:
            a, b = edge.maker, edge.reader
            mine, theirs = alone[a] - given[k][0], alone[b] - given[k][1]
            to_a, to_b = (pair + theirs).min(1), (pair.T + mine).min(1)
            given[k] = (0.5 * (to_a - mine), 0.5 * (to_b - theirs))
            alone[a], alone[b] = mine + given[k][0], theirs + given[k][1]
        if turn % LOOK == 0 or turn == rounds:
            rest = [pair - a[:, None] - b[None, :] for pair, (a, b) in zip(pairs, given, strict=True)]
            least = sum(float(row.min()) for row in alone) + sum(float(row.min()) for row in rest)
            found = polished(tables, weigh, _read_off(tables, alone, rest, weigh))
            best = min(best, found, key=lambda one: one.cost)
            best = replace(best, gap=max(0.0, (best.cost - least) / best.cost) if best.cost else 0.0)
            if best.gap is not None and best.gap <= CLOSE:
                break
    return best


LEAST_SWEEPS, MOST_SWEEPS, ENTRIES = 24, 96, 60_000
"""Sweeps of the dual ascent, by how many edges one has: most graphs close their gap within 50."""
LOOK = 8
"""Sweeps between two looks at the choice and its gap; even, so that the last one ran from readers to makers."""
CLOSE = 1e-4
"""The gap at which dual ascent ends."""


def _read_off(tables: Tables, alone: Sequence[Any], rest: Sequence[Any], weigh: Weigh) -> Solved:
    """The best candidate of each node in turn, given those of the nodes that it reads."""
    left = {id(edge): row for edge, row in zip(tables.edges, rest, strict=True)}
    chosen: list[int] = []
    for number, row in enumerate(alone):
        total = row + sum(left[id(edge)][chosen[edge.maker]] for edge in tables.into[number])
        chosen.append(int(np.argmin(total)))
    return Solved(tuple(chosen), cost_of(tables, weigh, chosen))


def cost_of(tables: Tables, weigh: Weigh, chosen: Sequence[int]) -> float:
    """The sum of the entries of a choice."""
    alone, pairs = tables.weighed(weigh)
    total = sum(float(row[k]) for row, k in zip(alone, chosen, strict=True))
    return total + sum(float(p[chosen[e.maker], chosen[e.reader]]) for e, p in zip(tables.edges, pairs, strict=True))
