"""In which order a dispatched kernel adds: the same sums in NumPy, rounded where the instructions round.

A product is a chain of instructions, each of which adds some exact products at once, or of fused multiply-adds; a
reduction goes over the slots of a thread, then over lanes by butterflies, then over warps. The interpreter takes these
in place of its own sums (`check(.., arch=..)`), and then leaves what the printed text leaves, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.kernel.dispatch.layouts.registers import Holding, RegisterDigit
from tileweave.kernel.ir import DTYPES, Dtype
from tileweave.kernel.meaning import FUNCTIONS, neutral, rounded

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ChainOrder:
    """``c + a b^T`` by instructions of some depth, from the first columns to the last.

    Args:
        depth: columns of one instruction, whose products are added exactly before the result is rounded; 0: fused
            multiply-adds, a column at a time.
    """

    depth: int

    def __call__(self, a: Array, b: Array, c: Array, to: Dtype) -> Array:
        """The result of the chain."""
        if to.kind != "float":
            return rounded(a.astype(np.int64) @ b.astype(np.int64).T + c.astype(np.int64), to)
        total = c.astype(to.numpy)
        if not self.depth:
            kind = np.float64 if to.bits == 64 else np.float32
            left, right = a.astype(kind), b.astype(kind)
            for k in range(a.shape[1]):
                sums = FUNCTIONS["fma"](left[:, k, None], right[None, :, k], total.astype(kind))
                total = rounded(np.asarray(sums), to)
            return total
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        for first in range(0, a.shape[1], self.depth):
            one: Any = np.zeros(total.shape)
            for k in range(first, min(first + self.depth, a.shape[1])):
                one = one + wide_a[:, k, None] * wide_b[None, :, k]
            total = rounded(total.astype(np.float64) + one, to)
        return total


@dataclass(frozen=True)
class DeviceOrder:
    """A reduction over the devices of a mesh by one load: term by term, narrow floats in FP32, rounded once.

    Hardware leaves the order of floats open; printed text on the CPU goes from the first device to the last.

    Args:
        axis: along which the terms lie.
    """

    axis: int

    def __call__(self, values: Array, exists: Array | None, fn: str, to: Dtype) -> Array:
        """The values combined, with the reduced extent 1."""
        kind = np.dtype(np.float32) if to.kind == "float" and to.bits < 32 else to.numpy
        terms = np.moveaxis(values if exists is None else np.where(exists, values, neutral(fn, to)), self.axis, 0)
        total: Any = terms[0].astype(kind)
        for term in terms[1:]:
            with np.errstate(all="ignore"):
                total = FUNCTIONS[fn](total, term.astype(kind)).astype(kind)
        return np.expand_dims(rounded(total, to), self.axis)


def combined_in(dtype: Dtype) -> Dtype:
    """The type that threads exchange what they have reduced in: shuffles have no 8-bit floats."""
    return DTYPES["f32"] if dtype.name in ("e4m3", "e5m2") else dtype


@dataclass(frozen=True)
class TreeOrder:
    """A reduction of what threads hold: over slots, then lanes by butterflies, then threads through shared memory.

    Args:
        held: who holds what.
        axes: the dimensions that are reduced.
        distances: of the butterflies between lanes, in their order.
        shared: the digits of the warp, and of the lane, that are reduced through shared memory, the first the fastest.
    """

    held: Holding
    axes: tuple[int, ...]
    distances: tuple[int, ...]
    shared: tuple[RegisterDigit, ...]

    def __call__(self, values: Array, exists: Array | None, fn: str, to: Dtype) -> Array:
        """The values combined in this order, with the reduced extents 1."""
        held, combine = self.held, FUNCTIONS[fn]
        asked, to = to, combined_in(to)
        there = np.zeros(held.shape, bool)
        there[tuple(slice(0, n) for n in values.shape)] = True if exists is None else exists
        padded = np.zeros(held.shape, to.numpy)
        padded[tuple(slice(0, n) for n in values.shape)] = rounded(values, to)
        count = max(1, held.warps)
        warp, lane = np.arange(count)[:, None], np.arange(32 if held.warps else 1)[None, :]
        part = [held.part_slot(self.axes, r) for r in range(held.slots)]
        one = to.numpy.type(neutral(fn, to))
        totals: Any = np.full((max(part) + 1, count, lane.size), one)
        for r, into in enumerate(part):
            at = self._at(warp, lane, r, totals.shape[1:])
            with np.errstate(all="ignore"):
                more = combine(totals[into], padded[at]).astype(to.numpy)
            totals[into] = np.where(there[at], more, totals[into])
        for distance in self.distances:
            totals = combine(totals, totals[:, :, lane[0] ^ distance]).astype(to.numpy)
        totals = self._through_shared(totals, warp, lane, fn, one, to)
        out = np.zeros(tuple(1 if d in self.axes else n for d, n in enumerate(held.shape)), to.numpy)
        for r, into in enumerate(part):
            at = self._at(warp, lane, r, totals.shape[1:])
            out[tuple(np.zeros_like(c) if d in self.axes else c for d, c in enumerate(at))] = totals[into]
        return rounded(out[tuple(slice(0, 1 if d in self.axes else n) for d, n in enumerate(values.shape))], asked)

    def _at(self, warp: Any, lane: Any, slot: int, shape: Sequence[int]) -> tuple[Array, ...]:
        return tuple(np.broadcast_to(np.asarray(c), shape) for c in self.held.coordinates(warp, lane, slot))

    def _through_shared(self, totals: Array, warp: Array, lane: Array, fn: str, one: Any, to: Dtype) -> Array:
        if not self.shared:
            return totals
        at, steps = {"warp": warp, "lane": lane}, [{"warp": 0, "lane": 0}]
        for d in self.shared:
            at[d.axis] = at[d.axis] - d.of(at[d.axis]) * d.stride  # type: ignore[arg-type]
            steps = [{**s, d.axis: s[d.axis] + k * d.stride} for k in range(d.extent) for s in steps]
        found: Any = np.full(totals.shape, one)
        for s in steps:
            found = FUNCTIONS[fn](found, totals[:, at["warp"] + s["warp"], at["lane"] + s["lane"]]).astype(to.numpy)
        return np.asarray(found)
