"""The layout through given points, by an exact search over the chains of its levels.

A layout is ``R(y) = offset + sum of c(q) * floor(y / q)`` over levels q, each of which divides the next. Take two
points next to each other. Once a level p has the same ``floor(y / p)`` at both, no later level tells them apart, so the
difference of their indices is an equation between the coefficients of the levels below p alone. The search adds one
level after the other, solves the equations that have become due over the integers, and leaves a chain at the first that
has no solution. A chain refined is at least as good, so consecutive levels need differ by a prime only: all chains are
tried.

Beyond `BOUND` primes are not listed. What a level q leaves to decide are the quotients of the points by it, so of the
factors with the same quotients one is tried: the quotient of a point by a number, rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np

from tileweave.layout.core.checks import BOUND
from tileweave.layout.core.coord import IntArray
from tileweave.layout.core.symbolic import primes

STEPS = 1 << 14
"""The most chains that are looked at where values reach `BOUND`."""

_CHUNK = 1 << 22
"""How many entries of a table of levels by points are compared at a time."""


class _Node(NamedTuple):
    """A chain, and the solutions of the equations that are due.

    Row 0 of `state` is one solution, the other rows span the differences of solutions. The first columns are the
    coefficients of the levels; then comes a column for each pair of neighbours that is not due, with what its equation
    misses (row 0) and how it changes (the other rows).
    """

    levels: tuple[int, ...]
    state: Any
    low: IntArray
    high: IntArray


def chain_through(
    values: IntArray, indices: IntArray, strides: Sequence[int]
) -> tuple[list[int], list[int]] | Literal["undecided"] | None:
    """Levels and coefficients with ``sum of c(q) * (floor(y / q) - floor(y0 / q)) = x - x0`` at all points, or None.

    Args:
        values: the y, distinct and ascending.
        indices: the x of each.
        strides: levels that divide one of these are tried first; where values reach `BOUND`, chains of these and of
            their common divisors before all others.
    """
    if int(values[-1]) < BOUND:
        return _search(values, indices, strides, None)
    among = sorted({*strides, *(gcd(a, b) for a, b in combinations(strides, 2))})
    found = _search(values, indices, strides, among)
    return _search(values, indices, strides, None) if found is None else found


def _search(
    values: IntArray, indices: IntArray, strides: Sequence[int], among: Sequence[int] | None
) -> tuple[list[int], list[int]] | Literal["undecided"] | None:
    """The search over the chains of some levels, or of all."""
    low, high = values[:-1], values[1:]
    top = int(values[-1])
    factors = primes(min(top, BOUND)) if among is None else np.zeros(0, np.int64)
    state = np.stack([indices[:-1] - indices[1:], high - low])
    start = np.array([[0], [1]], low.dtype)
    stack = [(_Node((1,), np.concatenate([start, state], 1), low, high), 0)]
    visited, complete = 0, True
    while stack:
        node, q = stack.pop()
        grown = _grown(node, q) if q else node
        visited += 1
        if grown is None:
            continue
        if visited > STEPS and top >= BOUND:
            return "undecided"
        width = len(grown.levels)
        solved = _solved(grown.state, np.arange(width, grown.state.shape[1]))
        if not isinstance(solved, int):
            return list(grown.levels), [int(c) for c in solved[0, :width]]
        p = grown.levels[-1]
        most = min(top, int(grown.high[solved - width])) // p  # up to there all equations before that pair are due
        tried = factors[: np.searchsorted(factors, most + 1)]
        if among is not None:
            tried = np.array([q // p for q in among if q % p == 0 and p < q <= p * most], low.dtype)
        elif most > BOUND:
            ends = np.unique(np.concatenate([grown.low, grown.high]) // p)
            rounds = most // BOUND
            complete = complete and rounds * len(ends) <= _CHUNK
            times = np.arange(1, min(rounds, _CHUNK // len(ends)) + 1).astype(ends.dtype)
            large = np.unique(ends[:, None] // times)
            tried = np.concatenate([tried.astype(ends.dtype), large[(large > BOUND) & (large <= most)]])
        ahead = _may_follow(grown, tried)
        ahead.sort(key=lambda q: (any(d % (p * q) == 0 for d in strides), any(d // p == q for d in strides)))
        stack += [(grown, q) for q in ahead]
    return None if complete else "undecided"


def _may_follow(node: _Node, factors: IntArray) -> list[int]:
    """The factors q for which no equation that becomes due at level p * q is unsolvable alone."""
    width = len(node.levels)
    alone, _moves = _solvable(node.state[:, width:])
    low, high = (y[~alone] // node.levels[-1] for y in (node.low, node.high))
    step = 1 + _CHUNK // max(1, 64 * len(factors))
    for k in range(0, len(low), 64 * step):
        if not len(factors):
            break
        at = slice(k, k + 64 * step)
        factors = factors[(low[at] // factors[:, None] != high[at] // factors[:, None]).all(1)]
    return [int(q) for q in factors]


def _grown(node: _Node, q: int) -> _Node | None:
    """The chain with one level more, q times the last, the equations that become due solved; None if they cannot be."""
    width, p = len(node.levels), node.levels[-1] * q
    low, high = node.low // p, node.high // p
    due = low == high
    state: Any = node.state
    if due.any():
        state = _solved(state, width + np.flatnonzero(due))
        if isinstance(state, int):
            return None
    old = np.concatenate([state[:, :width], np.zeros((len(state), 1), state.dtype), state[:, width:][:, ~due]], 1)
    new = np.concatenate([np.zeros(width, low.dtype), np.ones(1, low.dtype), (high - low)[~due]])
    return _Node((*node.levels, p), np.concatenate([old, new[None]]), node.low[~due], node.high[~due])


def _solvable(columns: Any) -> tuple[Any, Any]:
    """Per column whether row 0 is a multiple of the other rows' common divisor, and whether that is not zero."""
    if len(columns) == 1:
        return columns[0] == 0, np.zeros(columns.shape[1], bool)
    common = np.gcd.reduce(columns[1:], axis=0)
    moves = common != 0
    return np.where(moves, columns[0] % np.where(moves, common, 1), columns[0]) == 0, moves


def _solved(state: Any, due: IntArray) -> Any:
    """The state in which the columns that are due are zero; or the position of one at which that fails."""
    while True:
        good, moves = _solvable(state[:, due])
        if not good.all():
            return int(due[good.argmin()])
        if not moves.any():
            return state
        due = due[moves]
        state, due = _pivoted(state, int(due[0])), due[1:]


def _pivoted(state: Any, column: int) -> Any:
    """The solutions at which a column is zero: the rows' combinations in which one row alone moves it, without it."""
    entries = [int(v) for v in state[1:, column]]
    made = [[int(i == j) for j in range(len(entries))] for i in range(len(entries))]
    while len(live := [k for k, v in enumerate(entries) if v]) > 1:
        least = min(live, key=lambda k: abs(entries[k]))
        for k in live:
            if k != least:
                times = entries[k] // entries[least]
                entries[k] -= times * entries[least]
                made[k] = [x - times * y for x, y in zip(made[k], made[least], strict=True)]
    (pivot,) = live
    times = int(state[0, column]) // entries[pivot]
    rows = [[1, *(-times * v for v in made[pivot])]] + [[0, *row] for k, row in enumerate(made) if k != pivot]
    largest = max(abs(v) for row in rows for v in row)
    if state.dtype != object and largest * len(rows) * int(np.abs(state).max(initial=0)) >= 1 << 62:
        state = state.astype(object)
    return np.array(rows, state.dtype) @ state
