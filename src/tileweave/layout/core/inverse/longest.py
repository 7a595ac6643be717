"""The longest right inverse where values have several indices, by an exact search over chains of levels.

A layout R that is known below its level p, at the indices f, .., goes on at the next level q = n * p by n copies of
what it has, one stride apart. At level p an index x **begins a block** if the indices that lie from x as R's lie from f
have the values of x and the p - 1 next. All that R can become is decided by the indices that begin blocks at the
multiples of p: the search ends a branch where the first missing multiple is no longer than what is known, and visits
every set of blocks once. A row ends only where another index than the next of it begins a block.

Indices are kept as boxes of digits, one box unless a step can be made with and without a carry, and the values that
they have as the bits of a number: what a node costs grows with its boxes and with the values, not with the points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tileweave.layout.core.coord import IntArray
from tileweave.layout.core.rows import Row

Moving = tuple[int, int, int]
"""A row that moves: (stride, extent, weight in the index)."""

_Digits = tuple[int, ...]
_Region = tuple[tuple[tuple[int, int], ...], ...]
"""Boxes that share no point: half-open ranges of digits, one for each row."""


class _Node(NamedTuple):
    """What is to be looked at next: so many copies, a stride apart, of the layout that is known below its level."""

    level: int
    first: _Digits
    rows: list[Row]
    region: _Region
    stride: int
    copies: int


def points_of(rows: Sequence[Moving]) -> tuple[IntArray, IntArray]:
    """The index and the value of every point of the rows, in the order of digits."""
    wide = max(sum(e * abs(s) for s, e, _ in rows), sum(e * abs(w) for _, e, w in rows), 0) >= 1 << 61
    index = value = np.zeros(1, object if wide else np.int64)
    for stride, extent, weight in rows:
        digits = np.arange(extent).astype(index.dtype)
        index = (index[:, None] + digits * weight).reshape(-1)
        value = (value[:, None] + digits * stride).reshape(-1)
    return index, value


def longest_inverse(
    rows: Sequence[Moving], end: int, known: int, first: int, any_first: bool
) -> tuple[list[Row], int] | None:
    """The rows and the first index of a longest right inverse, if it is longer than the one that is known.

    Args:
        rows: rows of strides that are not negative, and of weights in a mixed radix; at most `BOUND` points in all.
        end: the least value that no index has, or more.
        known: the length that is known.
        first: the index of the point whose digits are all zero.
        any_first: whether R may begin at any index of value 0, or at `first` only.
    """
    rows = _merged(rows)
    if not _may_carry(rows):  # then a digit that does not count can stay at 0
        rows = [row for row in rows if row[0]]
    whole: _Region = (tuple((0, extent) for _, extent, _ in rows),)
    best: tuple[list[Row], int] | None = None
    seen: set[tuple[int, frozenset[object]]] = set()
    starts = [*_points(rows, whole, 0)] if any_first else [(0,) * len(rows)]
    stack = [_Node(1, f, [], whole, 0, 1) for f in reversed(starts)]
    while stack:
        node = stack.pop()
        p, f = node.level * node.copies, node.first
        if known >= end - end % p:
            continue
        region = _repeated(rows, node.region, node.stride, node.level, node.copies)
        held, twice = _values(rows, region, end)
        missing = _every(1, p, end // p + 2) & ~held
        top = (missing & -missing).bit_length() - 1  # the least multiple of p at which no block begins
        if known >= top:
            continue
        key = (p, frozenset(tuple((a - x, b - x) for (a, b), x in zip(box, f, strict=True)) for box in region))
        if key in seen:
            continue
        seen.add(key)
        rows_so_far = [*node.rows, (node.copies, node.stride)] if node.copies > 1 else node.rows
        several = twice.to_bytes(end // 8 + 1, "little")
        here = _index(rows, f)
        for stride in sorted({_index(rows, x) - here for x in _points(rows, region, p)}, reverse=True):
            if stride == node.stride * node.copies:  # a row that goes on is one longer row
                continue
            n = _run(rows, region, f, stride, p)
            if p * n > known:
                known, best = p * n, ([*rows_so_far, (n, stride)], first + here)
            copies = np.arange(2, n + 1)
            stack += [
                _Node(p, f, rows_so_far, region, stride, m)
                for m in copies[known < top - top % (p * copies)].tolist()
                if m == n or several[m * p >> 3] >> (m * p & 7) & 1
            ]
    return best


def _merged(rows: Sequence[Moving]) -> list[Moving]:
    """The rows by ascending strides, those that go on where another ends joined to it."""
    out: list[Moving] = []
    for s, n, w in sorted(rows, key=lambda row: abs(row[2])):
        if out and (s, w) == (out[-1][0] * out[-1][1], out[-1][2] * out[-1][1]):
            stride, extent, weight = out.pop()
            s, n, w = stride, extent * n, weight
        out.append((s, n, w))
    return sorted(out)


def _may_carry(rows: Sequence[Moving]) -> bool:
    """Whether one stride of the index may be the same step of the value with a carry and without; true if in doubt."""
    order = sorted(rows, key=lambda row: abs(row[2]))
    sums, carried = {0}, False
    for (s, _, w), (ahead, _, v) in pairwise(order):
        jump = ahead * (1 if v > 0 else -1) - abs(v) // abs(w) * s * (1 if w > 0 else -1)
        carried = carried or not jump or bool({jump, -jump} & sums)
        sums |= {total + sign * jump for total in sums for sign in (1, -1)}
        if len(sums) > 1 << 12:
            return True
    return carried


def _index(rows: Sequence[Moving], digits: _Digits) -> int:
    return sum(w * x for (_, _, w), x in zip(rows, digits, strict=True))


def _points(rows: Sequence[Moving], region: _Region, value: int) -> Iterator[_Digits]:
    """The points of a region that have a value."""

    def descend(k: int, box: tuple[tuple[int, int], ...], rest: int) -> Iterator[_Digits]:
        if k < 0:
            if not rest:
                yield ()
            return
        stride, (low, high) = rows[k][0], box[k]
        least = sum(rows[j][0] * box[j][0] for j in range(k))
        most = sum(rows[j][0] * (box[j][1] - 1) for j in range(k))
        if stride:
            low, high = max(low, -((most - rest) // stride)), min(high, (rest - least) // stride + 1)
        for x in range(low, high):
            for digits in descend(k - 1, box, rest - x * stride):
                yield (*digits, x)

    for box in region:
        yield from descend(len(rows) - 1, box, value)


def _steps(rows: Sequence[Moving], stride: int, value: int) -> list[_Digits]:
    """The steps of digits that move the index by a stride and the value by so much; several where digits carry."""
    order = sorted(range(len(rows)), key=lambda k: -abs(rows[k][2]))
    found: list[tuple[dict[int, int], int, int]] = [({}, stride, value)]
    for k in order:
        s, n, w = rows[k]
        found = [
            ({**digits, k: x}, i - x * w, v - x * s)
            for digits, i, v in found
            for x in (i // w, i // w + 1)
            if -n < x < n
        ]
    return [tuple(digits[k] for k in range(len(rows))) for digits, i, v in found if not i and not v]


def _repeated(rows: Sequence[Moving], region: _Region, stride: int, p: int, times: int) -> _Region:
    """What begins a block of so many blocks of p values, a stride apart; made by doubling."""
    out, made = region, 1
    for bit in bin(times)[3:]:
        for other, more in ((out, made), (region, 1))[: 1 + int(bit)]:
            out = _both(out, other, _steps(rows, made * stride, made * p))
            made += more
    return out


def _both(region: _Region, other: _Region, steps: Sequence[_Digits]) -> _Region:
    """The points of a region from which one of the steps leads into the other region."""
    out = []
    for box in region:
        for target in other:
            for step in steps:
                cut = tuple(
                    [(max(a, c - x), min(b, d - x)) for (a, b), (c, d), x in zip(box, target, step, strict=True)]
                )
                if all(a < b for a, b in cut):
                    out.append(cut)
    return tuple(out)


def _run(rows: Sequence[Moving], region: _Region, first: _Digits, stride: int, p: int) -> int:
    """How many blocks of p values follow each other from the first on, a stride apart."""
    steps = _steps(rows, stride, p)
    n, at = 1, first
    while True:
        longest, ahead = 0, at
        for step in steps:
            for box in region:
                after = tuple([x + d for x, d in zip(at, step, strict=True)])
                if all(a <= x < b for (a, b), x in zip(box, after, strict=True)):
                    room = [
                        (b - 1 - x) // d if d > 0 else (x - a) // -d
                        for (a, b), x, d in zip(box, after, step, strict=True)
                        if d
                    ]
                    longest = 1 + min(room)
                    ahead = tuple([x + longest * d for x, d in zip(at, step, strict=True)])
        if not longest:
            return n
        n, at = n + longest, ahead


def _every(bits: int, stride: int, times: int) -> int:
    """Bits and their copies, a stride apart."""
    out, made = bits, 1
    for bit in bin(times)[3:]:
        out |= out << made * stride
        made *= 2
        if bit == "1":
            out |= bits << made * stride
            made += 1
    return out


def _values(rows: Sequence[Moving], region: _Region, end: int) -> tuple[int, int]:
    """The values below the end that points of a region have, and those that several have, as bits."""
    limit = (1 << end) - 1
    held = twice = 0
    for box in region:
        start = sum(s * a for (s, _, _), (a, _) in zip(rows, box, strict=True))
        if start >= end:
            continue
        once, more = 1 << start, 0
        for (s, _, _), (a, b) in zip(rows, box, strict=True):
            times = b - a if not s else min(b - a, (end - 1 - start) // s + 1)
            one, two, made = once, more, 1
            for bit in bin(times)[3:]:
                for o, t, k in ((once, more, made), (one, two, 1))[: 1 + int(bit)]:
                    o, t = o << made * s, t << made * s
                    once, more = once | o, more | t | once & o
                    made += k
            once, more = once & limit, more & limit
        held, twice = held | once, twice | more | held & once
    return held, twice
