"""Which sums can bounded integers form? The one question behind overlap, races and injectivity.

The question contains subset sum, so the search is exact up to a stated bound and `Undecided` beyond it. Strides of real
tensors nest, and then every digit leaves at most a few candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tileweave.errors import Undecided

SEARCH_LIMIT = 200_000
"""Partial sums that a search may visit before it gives up."""

Term = tuple[int, int, int]
"""(stride, least factor, greatest factor)."""


def reach(terms: Sequence[Term], low: int, high: int, limit: int = SEARCH_LIMIT) -> tuple[int, ...] | None:
    """Factors ``v`` with ``low <= sum(stride * v) <= high``, each factor in its own interval, or None: there are none.

    Args:
        terms: one (stride, least, greatest) per factor.
        low: the least sum that counts.
        high: the greatest sum that counts.
        limit: partial sums visited at most.

    Returns:
        One factor per term, in the order of the terms; None exactly when no factors do.

    Raises:
        Undecided: the search passed ``limit``.

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
    # what the terms from the k-th on add at least, at most, and the step between their sums
    least, greatest, step = [0], [0], [0]
    for k in reversed(order):
        stride, a, b = terms[k]
        least.append(least[-1] + min(stride * a, stride * b))
        greatest.append(greatest[-1] + max(stride * a, stride * b))
        step.append(gcd(step[-1], stride) if a != b else step[-1])
    least.reverse()
    greatest.reverse()
    step.reverse()
    found = [0] * len(terms)
    visited = 0
    stack = [(0, 0, 0)]  # (depth, sum so far, factor chosen for the term before)
    while stack:
        depth, total, factor = stack.pop()
        if depth:
            found[order[depth - 1]] = factor
        visited += 1
        if visited > limit:
            raise Undecided(
                "reach(terms, low, high)",
                f"the search passed {limit} partial sums",
                inputs={"terms": list(terms), "sum": f"{low}..{high}"},
                facts={"bound": limit},
            )
        if not _possible(low - total, high - total, least[depth], greatest[depth], step[depth]):
            continue
        if depth == len(order):
            return tuple(found)
        stride, a, b = terms[order[depth]]
        if stride == 0:
            stack.append((depth + 1, total, a))
            continue
        # factors for which the rest can still bring the sum between low and high
        bottom, top = low - total - greatest[depth + 1], high - total - least[depth + 1]
        if stride < 0:
            bottom, top = top, bottom
        first, last = max(a, -(-bottom // stride)), min(b, top // stride)
        if last - first > limit:
            last = first + limit + 1  # more than the bound allows: the search will say so
        stack += [(depth + 1, total + stride * v, v) for v in range(last, first - 1, -1)]
    return None


def _possible(low: int, high: int, least: int, greatest: int, step: int) -> bool:
    """Whether some number between low and high is least plus a multiple of step, and at most greatest."""
    low, high = max(low, least), min(high, greatest)
    if low > high:
        return False
    return step == 0 or least + -(-(low - least) // step) * step <= high


def first_collision(
    extents: Sequence[int], strides: Sequence[int], width: int = 1, limit: int = SEARCH_LIMIT
) -> tuple[int, ...] | None:
    """The difference of two different indices whose elements share a byte, or None: the strides are injective.

    Args:
        extents: positive, one per digit.
        strides: of any sign, in the unit of ``width``.
        width: how much one element covers.
        limit: as for `reach`.

    Raises:
        Undecided: the search passed ``limit``.

    Example:
        >>> first_collision((4, 4), (4, 1)) is None
        True
        >>> first_collision((4, 4), (2, 1))
        (1, -2)

    Source: own.
    """
    # the common case needs no search: every stride passes all that the smaller ones cover
    covered = width
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, extents, strict=True) if n > 1):
        if stride < covered:
            break
        covered += stride * (extent - 1)
    else:
        return None
    for k, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        terms = [(0, 0, 0)] * k + [(stride, 1, extent - 1)]
        terms += [(s, 1 - n, n - 1) for s, n in zip(strides[k + 1 :], extents[k + 1 :], strict=True)]
        difference = reach(terms, 1 - width, width - 1, limit)
        if difference is not None:
            return difference
    return None
