"""The longest right inverse where values have several indices, by an exact search over chains of levels.

A layout R that is known below its level p, at the indices f, .., goes on at the next level q = n * p by n copies of
what it has, one stride apart. At level p an index x **begins a block** if the indices that lie from x as R's lie from f
have the values of x and the p - 1 next. All that R can become is decided by the indices that begin blocks at the
multiples of p: the search keeps those only, ends a branch where the first missing multiple is no longer than what is
known, and visits every set of blocks once. A row ends only where another index than the next of it begins a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tileweave.layout.core.coord import IntArray
from tileweave.layout.core.rows import Row

Moving = tuple[int, int, int]
"""A row that moves: (stride, extent, weight in the index)."""


class _Blocks(NamedTuple):
    """The indices that begin a block, ascending, and their values."""

    begins: IntArray
    values: IntArray


class _Node(NamedTuple):
    """What is to be looked at next: so many copies, a stride apart, of the layout that is known below its level."""

    level: int
    first: int
    rows: list[Row]
    blocks: _Blocks
    stride: int
    copies: int


def points_of(rows: Sequence[Moving], end: int | None = None) -> tuple[IntArray, IntArray]:
    """The index and the value of every point of the rows (below `end`), in the order of digits."""
    wide = max(sum(e * abs(s) for s, e, _ in rows), sum(e * abs(w) for _, e, w in rows), 0) >= 1 << 61
    index = value = np.zeros(1, object if wide else np.int64)
    for stride, extent, weight in rows:
        digits = np.arange(extent).astype(index.dtype)
        index = (index[:, None] + digits * weight).reshape(-1)
        value = (value[:, None] + digits * stride).reshape(-1)
        if end is not None:
            index, value = index[value < end], value[value < end]
    return index, value


def longest_inverse(
    rows: Sequence[Moving], end: int, known: int, first: int, any_first: bool
) -> tuple[list[Row], int] | None:
    """The rows and the first index of a longest right inverse, if it is longer than the one that is known.

    Args:
        rows: rows of strides that are not negative, at most `BOUND` points in all.
        end: the least value that no index has, or more.
        known: the length that is known.
        first: the index of the point whose digits are all zero.
        any_first: whether R may begin at any index of value 0, or at `first` only.
    """
    index, value = points_of(rows, end)
    order = np.argsort(index)
    index, value = index[order] + first, value[order]
    best: tuple[list[Row], int] | None = None
    seen: set[tuple[int, Any]] = set()
    starts = index[value == 0].tolist() if any_first else [first]
    stack = [_Node(1, f, [], _Blocks(index, value), 0, 1) for f in reversed(starts)]
    while stack:
        node = stack.pop()
        p, f = node.level * node.copies, node.first
        if known >= end - end % p:
            continue
        blocks = _repeated(node.blocks, node.level, node.stride, node.copies)
        there = np.zeros(end // p + 2, bool)
        there[(blocks.values // p).astype(np.int64)] = True
        top = int(there.argmin()) * p
        if known >= top:
            continue
        kept = blocks.values < top
        blocks = _Blocks(blocks.begins[kept], blocks.values[kept])
        offsets = blocks.begins - f
        key = (p, tuple(offsets) if offsets.dtype == object else offsets.tobytes())
        if key in seen:
            continue
        seen.add(key)
        rows_so_far = [*node.rows, (node.copies, node.stride)] if node.copies > 1 else node.rows
        holders = np.bincount(blocks.values.astype(np.int64) // p, minlength=2)
        for stride in offsets[blocks.values == p][::-1].tolist():
            if stride == node.stride * node.copies:  # a row that goes on is one longer row
                continue
            n = _run(blocks, f, stride, p)
            if p * n > known:
                known, best = p * n, ([*rows_so_far, (n, stride)], f)
            copies = np.arange(2, n + 1)
            useful = (known < top - top % (p * copies)) & (
                (copies == n) | (holders[np.minimum(copies, len(holders) - 1)] > 1)
            )
            stack += [_Node(p, f, rows_so_far, blocks, stride, m) for m in copies[useful].tolist()]
    return best


def _run(blocks: _Blocks, first: int, stride: int, p: int) -> int:
    """How many blocks of p values follow each other from the first on, a stride apart."""
    begins, values = blocks
    n = 1
    while True:
        at = int(np.searchsorted(begins, first + n * stride))
        if at == begins.size or begins[at] != first + n * stride or values[at] != n * p:
            return n
        n += 1


def _repeated(blocks: _Blocks, p: int, stride: int, times: int) -> _Blocks:
    """What begins a block of so many blocks of p values, a stride apart, at the multiples of the new level."""
    whole = blocks.values % (times * p) == 0
    begins, values = blocks.begins[whole], blocks.values[whole]
    for steps in (np.arange(1, min(times, 2)), np.arange(2, times)):  # most fail at the first step
        ahead = begins[:, None] + steps * stride
        at = np.searchsorted(blocks.begins, ahead)
        at[at == blocks.begins.size] = 0
        fits = (blocks.begins[at] == ahead) & (blocks.values[at] == values[:, None] + steps * p)
        kept = fits.all(1)
        begins, values = begins[kept], values[kept]
    return _Blocks(begins, values)
