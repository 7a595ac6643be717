"""The bounded exact search behind `left_inverse`: is there a layout with given values at given points?

A layout on [0, N) is ``sum of v_k floor(x / Q_k)`` for a chain ``1 = Q_0 | Q_1 | ..``. For a fixed chain the strides
solve a linear system over the integers; the search runs through the chains of primes and stops where the system of
the points seen so far has no solution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tileweave.errors import Undecided
from tileweave.layout.notation.cute_exact import no_layout
from tileweave.layout.notation.cute_tuples import Pair

__all__ = ["WORK", "integer_solution", "left_inverse_modes"]

WORK = 1 << 20
"""The most entries of linear systems that one search sets up; beyond it the answer is `Undecided`."""


def integer_solution(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[int] | None:
    """Integers x with ``rows x = values``, or None if there are none; exact, by column reduction.

    Example:
        >>> integer_solution([[2, 3]], [1]), integer_solution([[2, 4]], [1])
        ([-1, 1], None)
    """
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


def left_inverse_modes(layout: Sequence[Pair], where: str, inputs: dict[str, object]) -> list[Pair]:
    """Flat modes of a layout that sends each value of an injective `layout` (strides from 1) to its linear index.

    Raises:
        NoLayout: no layout does, proved by exhausting the chains; Undecided: a bound was passed.
    """
    top = sum(d * (n - 1) for n, d in layout)
    if top >= WORK:
        raise _undecided(where, inputs)
    size = int(np.prod([n for n, _d in layout]))
    index = np.arange(size)
    values, rest = np.zeros(size, dtype=np.int64), index
    for n, d in layout:
        values, rest = values + rest % n * d, rest // n
    order = np.argsort(values)
    points = [(int(values[k]), int(index[k])) for k in order][1:]
    values_sorted = [x for x, _y in points]
    primes = _primes(top + 1)
    tried = work = 0
    stack: list[list[int]] = [[1]]
    while stack:
        chain = stack.pop()
        tried += 1
        for p in reversed(primes):
            end = chain[-1] * p
            seen = points[: bisect_left(values_sorted, end)]
            work += (len(seen) + 1) * len(chain)
            if work > WORK:
                raise _undecided(where, inputs)
            solution = integer_solution([[x // q for q in chain] for x, _y in seen], [y for _x, y in seen])
            if not seen:
                solution = [0] * len(chain)
            if solution is None:
                continue
            if end > top:
                return _modes(chain, end, solution)
            stack.append([*chain, end])
    raise no_layout(
        where,
        "no layout takes these values back to their indices",
        inputs=inputs,
        legal="a layout whose strides divide each other",
        points=[y for _x, y in points[:8]],
        values=[x for x, _y in points[:8]],
        condition=f"L(values) = points for some strides; {tried} chains exhausted",
    )


def _undecided(where: str, inputs: dict[str, object]) -> Undecided:
    return Undecided(
        where,
        f"the search for strides passed its bound of {WORK} equations",
        inputs=inputs,
        legal="a layout whose strides divide each other is decided at any size",
        facts={"bound": WORK},
    )


def _primes(top: int) -> list[int]:
    """All primes up to `top`."""
    sieve = np.ones(top + 1, dtype=bool)
    sieve[:2] = False
    for p in range(2, int(top**0.5) + 1):
        if sieve[p]:
            sieve[p * p :: p] = False
    return [int(p) for p in np.flatnonzero(sieve)]


def _modes(chain: list[int], end: int, weights: list[int]) -> list[Pair]:
    out: list[Pair] = []
    stride = weights[0]
    for k, (low, high) in enumerate(pairwise([*chain, end])):
        if k:
            stride = weights[k] + out[-1][0] * stride
        out.append((high // low, stride))
    return out
