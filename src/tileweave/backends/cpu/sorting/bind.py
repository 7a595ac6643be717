"""Sorting as a call: which records compare, how rows become columns, and who does which."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.moves import run_on_pool
from tileweave.backends.cpu.sorting.keys import INFINITIES, Keys, mask_of
from tileweave.backends.cpu.sorting.network import columns_bytes, row_bytes
from tileweave.backends.cpu.sorting.rows import AT, ENV_BYTES, RANK, WORDS, sort_code
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_KINDS = "iub"
"""Of integers, as NumPy names them."""
PARALLEL = 1 << 14
"""Elements from which on threads share them: some 50 us of work."""
_FEWEST = 32
"""Elements of a segment from which on it is cut to fill lanes: shorter ones cost more to merge than lanes are worth."""


def _walk(x: Array, out: Array, axis: int) -> list[tuple[int, int, int]]:
    """(extent, stride of what is sorted, of what is written) of the other dimensions, neighbours joined."""
    found: list[tuple[int, int, int]] = []
    for k, (n, a, b) in enumerate(zip(x.shape, x.strides, out.strides, strict=True)):
        if k == axis or n == 1:
            continue
        if found and found[-1][1] == n * a and found[-1][2] == n * b:
            found[-1] = (found[-1][0] * n, a, b)
        else:
            found.append((n, a, b))
    return found


def sortable(x: Array, out: Array, axis: int) -> bool:
    """Whether there is code to sort along an axis, into values or places, all of them or the first."""
    known = x.dtype.kind in _KINDS or x.dtype.name in INFINITIES
    fits = x.size and out.size and x.shape[axis] < 1 << 31 and len(_walk(x, out, axis)) <= RANK
    return bool(known and fits and x.dtype.isnative and x.flags.aligned and out.flags.aligned)


_TIMES = {1: 24, 2: 8}
"""By parts of a record: up to so many times the elements that are wanted, rows are sorted whole sooner than searched
(of 600 rows of 128, the first 8 in 66 us and in 246; where records have two parts, in 428 and in 301)."""


def sorts_sooner(x: Array, out: Array, axis: int, places: bool) -> bool:
    """Whether whole rows are sorted sooner than their first few elements are found: rows fill the lanes, and are
    short."""
    keys, target, count = _keys(x, axis, places), host(), out.shape[axis]
    extent = x.shape[axis]
    full = x.size // extent >= target.lanes(keys.bytes) and extent <= _longest(keys, target)
    return bool(full and count > 1 and extent <= _TIMES[keys.parts] * count)


def _longest(keys: Keys, target: Target) -> int:
    """Elements of the longest column: half of the second cache holds a batch of them."""
    return max(_FEWEST, target.l2_bytes // 2 // row_bytes(keys, target))


def _keys(x: Array, axis: int, places: bool) -> Keys:
    width, infinity = x.itemsize, INFINITIES.get(x.dtype.name, 0)
    if not places:
        bytes, parts = max(width, 4), 1
    elif width <= 2 and x.shape[axis] <= 1 << 16:
        bytes, parts = 4, 1
    else:
        bytes, parts = 8, 1 if width <= 4 else 2
    return Keys(width, infinity, places, bytes, parts)


@functools.cache
def _code(keys: Keys, target: Target) -> Code:
    return sort_code(keys, target)


class Sort:
    """Sorting along one dimension, for `NativeCalls`: see `sortable`.

    Args:
        axis: the dimension.
        descending: whether the greatest come first; equal elements stay in order all the same.
        places: whether their places are wanted, as INT64.
        threads: that it may use.
    """

    def __init__(self, axis: int, descending: bool, places: bool, threads: int) -> None:
        self.axis = axis
        self.descending = descending
        self.places = places
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The first array in order, into the second, which is that very memory or shares none with it: all of each
        row, or the first so many."""
        x, out = arrays
        if not sortable(x, out, self.axis):
            raise BackendError("Sort(..)", f"{x.dtype}{x.shape} is not sorted into {out.shape}")
        keys, target = _keys(x, self.axis, self.places), host()
        walk = _walk(x, out, self.axis)
        walk = [(1, 0, 0)] * (RANK - len(walk)) + walk
        rows, extent = prod(n for n, _, _ in walk), x.shape[self.axis]
        threads = self.threads if x.size >= PARALLEL else 1
        words = _cut(keys, target, rows, extent, threads)
        work = columns_bytes(keys, target, words["length"]), 4 * words["runs_bytes"]
        shared = not words["tasks"]
        work_bytes = threads * work[0] + work[1] if shared else threads * sum(work)
        bound = Bound(_code(keys, target), ENV_BYTES, work_bytes + 64, [AT["x"], AT["out"]])
        words |= {"x": address_of(x), "out": address_of(out), "rows": rows, "extent": extent}
        words |= {"count": out.shape[self.axis], "columns_bytes": work[0], "chunks": 4 * threads}
        words |= {"x_step": x.strides[self.axis], "out_step": out.strides[self.axis]}
        mask = mask_of(x.itemsize, x.dtype.kind in "ub", self.descending)
        words["mask"] = mask - (mask >> 63 << 64)
        for k, (n, a, b) in enumerate(walk):
            words |= {f"extent_{k}": n, f"x_{k}": a, f"out_{k}": b}
        for name in WORDS:
            bound.write(AT[name], words[name])
        run_on_pool(bound, threads)
        return bound


def _cut(keys: Keys, target: Target, rows: int, extent: int, threads: int) -> dict[str, int]:
    """How rows are cut into segments, and who sorts them."""
    lanes = target.lanes(keys.bytes)
    most = _longest(keys, target)
    segments, length = 1, extent

    def halved() -> None:
        nonlocal segments, length
        segments *= 2
        length = -(-extent // (segments * lanes)) * lanes  # runs are merged a vector at a time

    while length > most or (rows * segments < lanes and length >= 2 * _FEWEST):
        halved()
    shared = threads > 1 and -(-rows // max(1, lanes // segments)) < threads
    while shared and segments < lanes * threads and length >= 2 * _FEWEST:
        halved()
    shared = shared and segments >= lanes
    columns = max(lanes, segments)
    groups = -(-rows // (columns // segments))
    record = keys.bytes * segments * length * (columns // segments)
    return {
        "segments": segments,
        "length": length,
        "lanes": columns,
        "groups": groups,
        "runs_bytes": -(-record // 64) * 64 if segments > 1 else 0,
        "tasks": 0 if shared else min(groups, 4 * threads) if threads > 1 else 1,
    }
