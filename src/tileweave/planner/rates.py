"""How long kernels take: the rates of machines, as arrays over machines in the order in which they fill.

A kernel takes as long as the slower of arithmetic and memory. Arithmetic is so many operations at the rate of their
element type, and so many functions (exponentials, logarithms, ..) at theirs. Memory is the working set, which is all
that a step reads and makes on a machine, at the rate of the smallest cache that holds it, else of memory itself; what
an elementwise step reads across the order of its result takes so many times as long.

Source: own; the roofline of Williams, Waterman and Patterson, with a roof per cache as in Ilic, Pratas and Sousa.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.planner.count import EFFICIENCY
from tileweave.planner.machine import Machine, Machines

Floats = np.ndarray[Any, np.dtype[np.float64]]
FUNCTION_BYTES = 4
"""Of the elements that the rate of functions is of; wider ones take longer in proportion."""


class Rates:
    """The rates of machines.

    Args:
        machines: any.
        filled: those that are looked at, in the order in which they fill; all by default.
        direct: whether a plan runs as one row of calls, so that its tasks do not cost what they cost one by one.
        stored: bytes of the sources that are files.
    """

    def __init__(
        self, machines: Machines, filled: list[Machine] | None = None, direct: bool = False, stored: int = 0
    ) -> None:
        filled = [machines.machines[k] for k in machines.order] if filled is None else filled
        self.task_seconds = min(machines.task_seconds, machines.call_seconds) if direct else machines.task_seconds
        self.machines, self.filled = machines, filled
        self.read = machines.read_bytes_per_second(stored)
        self.flops: dict[str, Floats] = {}
        self.bytes = np.asarray([m.bytes_per_second for m in filled])
        self.link = np.asarray([m.link_bytes_per_second or machines.link_bytes_per_second for m in filled])
        self._functions = np.asarray([m.functions_per_second or np.inf for m in filled])
        self._crossing = np.asarray([m.crossing for m in filled])
        most = max(len(m.caches) for m in filled)
        rows = [((0, m.bytes_per_second),) * (most - len(m.caches)) + m.caches for m in filled]
        self._caches = [np.asarray(level, np.float64).T for level in zip(*rows, strict=True)]

    def flops_of(self, dtype: str) -> Floats:
        """Operations per second on an element type."""
        if dtype not in self.flops:
            self.flops[dtype] = np.asarray([m.rate(dtype) for m in self.filled])
        return self.flops[dtype]

    def bytes_of(self, touched: Any) -> Floats:
        """Bytes per second of working sets of so many bytes, per machine (the last axis)."""
        rate = np.broadcast_to(self.bytes, np.shape(touched))
        for limit, within in reversed(self._caches):
            rate = np.where(touched <= limit, within, rate)
        return np.asarray(rate)

    def kernel_seconds(
        self, dtype: np.dtype[Any], flops: Any, functions: Any, touched: Any, crossed: Any = 0
    ) -> Floats:
        """What arithmetic and memory take at the derated rates, per machine (the last axis).

        Args:
            dtype: of the results.
            flops: operations, those of functions among them.
            functions: how many of these are functions.
            touched: bytes of the working set.
            crossed: of these, what is read element by element, across the order in which it lies.
        """
        wide = max(dtype.itemsize, FUNCTION_BYTES) / FUNCTION_BYTES
        arithmetic = flops / self.flops_of(dtype.name) + functions * wide / self._functions
        memory = (touched + crossed * (self._crossing - 1)) / self.bytes_of(touched)
        return np.asarray(np.maximum(arithmetic, memory) / EFFICIENCY)
