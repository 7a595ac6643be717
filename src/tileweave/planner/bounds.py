"""How little communication a product of matrices can do: lower bounds, and the best grid for each number of machines.

Words are what one machine receives, at most, from one balanced copy of the operands to one balanced copy of the result.
For m >= n >= k on P machines without a memory limit (Al Daas and others, 2022):

    (1 - 1/P) nk                                    P <= m/n
    2 sqrt(mnk^2/P) - (mk + nk)/P                   P <= mn/k^2
    3 (mnk/P)^(2/3) - (mn + mk + nk)/P              else

With memory for S words (Smith and others, 2019): 2mnk/(P sqrt(S)) - 2S. The larger one holds.

A grid (gm, gn, gk) of at most P blocks receives what its block needs of both operands less what the machine holds, and
the other partial results of its own part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np

from tileweave.graph import Operation

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Product:
    """An operation that is a product of two matrices, by index dimensions.

    Args:
        m: dimensions of the first operand and the result.
        n: dimensions of the second operand and the result.
        k: dimensions of both operands, summed over.
        shape: (m, n, k) extents.
    """

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    shape: tuple[int, int, int]


def product_of(operation: Operation) -> Product | None:
    """The operation as a product of two matrices; None where it is anything else (a batch of products is one of them).

    Inputs that the operation applies to the finished result (a bias) do not count.
    """
    signature = operation.signature
    if signature is None or len(operation.outputs) != 1 or not signature.monoids:
        return None
    rank = operation.index.rank
    used = []
    for name, projection in [*signature.inputs, *signature.outputs]:
        rows = projection.map.matrix
        plain = all(sum(map(abs, row)) == 1 for row in rows) and all(n == 1 for n in projection.shape)
        if not plain:
            return None
        used.append((name, frozenset(k for row in rows for k, c in enumerate(row) if c)))
    *inputs, (_, out) = used
    reduced = frozenset(signature.monoids)
    operands = [dims for _, dims in inputs if dims & reduced]
    if len(operands) != 2 or operands[0] & operands[1] != reduced or operands[0] & operands[1] & out:
        return None
    groups = tuple(tuple(sorted(g)) for g in (operands[0] - reduced, operands[1] - reduced, reduced))
    if sorted(d for g in groups for d in g) != list(range(rank)) or operation.index.empty:
        return None
    m, n, k = groups
    shape = operation.index.shape
    return Product(m, n, k, (_size(shape, m), _size(shape, n), _size(shape, k)))


def _size(shape: tuple[int, ...], dims: tuple[int, ...]) -> int:
    return prod(shape[d] for d in dims)


def lower_bound_words(m: int, n: int, k: int, count: int, memory_words: float = float("inf")) -> float:
    """Words that some machine must receive, whatever the plan.

    Example:
        >>> round(lower_bound_words(8192, 8192, 8192, 8) * 4 / 1e6, 6)
        100.663296
    """
    m, n, k = sorted((m, n, k), reverse=True)
    if count <= m / n:
        free = (1 - 1 / count) * n * k
    elif count <= m * n / k**2:
        free = 2 * sqrt(m * n * k**2 / count) - (m * k + n * k) / count
    else:
        free = 3 * (m * n * k / count) ** (2 / 3) - (m * n + m * k + n * k) / count
    tight = 2 * m * n * k / (count * sqrt(memory_words)) - 2 * memory_words
    return max(free, tight, 0.0)


def grid_words(m: int, n: int, k: int, grid: tuple[int, int, int], count: int) -> float:
    """Words that the machine with the largest block receives, or an idle one for its part of the result.

    Machines that need the same block of an operand hold it in equal shares, and those that have partial results of the
    same block combine equal shares of it, all in whole elements; nobody holds more of an operand than its part of the
    whole, and machines without a block take such a part of the result.
    """
    gm, gn, gk = (np.asarray(g, np.int64) for g in grid)
    return float(_words((m, n, k), gm, gn, gk, count))


def _words(shape: tuple[int, int, int], gm: IntArray, gn: IntArray, gk: IntArray, count: int) -> IntArray:
    m, n, k = shape
    rows, columns, depth = -(-m // gm), -(-n // gn), -(-k // gk)
    a, b, share = rows * depth, columns * depth, -(-m * n // count)
    idle = count - gm * gn * gk
    ours = np.maximum(-(-(rows * columns - idle * share // (gm * gn)) // gk), np.minimum(share, rows * columns))
    ours = np.where(gk > 1, ours, 0)
    busy = a - np.minimum(a // gn, -(-m * k // count)) + b - np.minimum(b // gm, -(-n * k // count)) + (gk - 1) * ours
    return np.asarray(np.where((idle > 0) & (gk > 1), np.maximum(busy, gk * share), busy))


@lru_cache(maxsize=1024)
def best_grid(m: int, n: int, k: int, count: int) -> tuple[tuple[int, int, int], float]:
    """(the grid of at most so many blocks that receives least, its words); ragged grids and idle machines included.

    Of grids that receive as little, the one that uses most machines.

    Example:
        >>> best_grid(8192, 8192, 8192, 8)[0], best_grid(8192, 8192, 8192, 1024)[0]
        ((2, 2, 2), (10, 10, 10))
    """
    best: tuple[float, int, tuple[int, int, int]] = (float("inf"), 0, (1, 1, 1))
    for gm in range(1, min(m, count) + 1):
        rows = np.arange(1, min(n, count // gm) + 1, dtype=np.int64)
        most = np.minimum(count // (gm * rows), k)
        gn = np.repeat(rows, most)
        gk = np.arange(1, len(gn) + 1) - np.repeat(np.cumsum(most) - most, most)
        words = _words((m, n, k), np.asarray(gm, np.int64), gn, gk, count)
        low = float(words.min())
        if low <= best[0]:
            grids = [(gm, int(gn[at]), int(gk[at])) for at in np.flatnonzero(words == low)]
            size, grid = max((prod(grid), grid) for grid in grids)
            if (low, -size) < (best[0], -best[1]):
                best = (low, size, grid)
    return best[2], best[0]


@lru_cache(maxsize=1024)
def best_factor_grid(m: int, n: int, k: int, count: int) -> tuple[tuple[int, int, int], float]:
    """The same among grids that use every machine; the whole on one machine where no such grid fits the extents.

    Example:
        >>> best_factor_grid(8192, 8192, 8192, 1024)[0]
        (8, 8, 16)
    """
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    grids = [
        (gm, gn, count // (gm * gn))
        for gm in divisors
        for gn in divisors
        if count % (gm * gn) == 0 and gm <= m and gn <= n and count // (gm * gn) <= k
    ]
    return min(((grid, grid_words(m, n, k, grid, count)) for grid in grids or [(1, 1, 1)]), key=lambda pair: pair[1])
