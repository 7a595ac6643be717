"""Arrays for results, which begin where a cache line begins.

Kernels write such arrays past the caches, and read them in whole vectors. NumPy's own allocation puts the elements of a
large array 16 bytes behind the beginning of a page: some contractions take twice as long on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

__all__ = ["LINE_BYTES", "allocation", "empty", "fills_its_memory"]

Array = np.ndarray[Any, Any]
LINE_BYTES = 64
LEAST_BYTES = 64 * 1024
"""Smaller arrays are NumPy's own: to look where a line begins would take longer than it saves."""


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array in row-major order, as `numpy.empty`; one of 64 KiB or more begins with a cache line.

    Example:
        >>> empty((100, 1000), np.float32).ctypes.data % 64
        0
    """
    return allocation(shape, dtype)()


def allocation(shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
    """A function that makes arrays as `empty` does; for many of one shape."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if size_bytes < LEAST_BYTES:
        return partial(np.empty, shape, dtype)

    def make() -> Array:
        memory = np.empty(size_bytes + LINE_BYTES, np.uint8)
        start = -memory.__array_interface__["data"][0] % LINE_BYTES
        return np.ndarray(shape, dtype, memory, start)

    return make


def fills_its_memory(array: Array) -> bool:
    """Whether an array keeps alive no more than its own bytes and those before the line where it begins."""
    memory = array.base
    return memory is None or (isinstance(memory, np.ndarray) and memory.nbytes == array.nbytes + LINE_BYTES)
