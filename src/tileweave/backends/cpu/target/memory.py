"""Arrays for results, which begin where a cache line begins.

Kernels write such arrays past the caches, and read them in whole vectors. NumPy's own allocation puts the elements of a
large array 16 bytes behind the beginning of a page: some contractions take up to 1.9 times as long to write to it, and
1.6 times as long to read from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tileweave.backends.cpu.kernel import address_of

__all__ = ["LINE_BYTES", "allocation", "empty", "fills_its_memory"]

Array = np.ndarray[Any, Any]
LINE_BYTES = 64
LEAST_BYTES = 64 * 1024
"""Smaller arrays are NumPy's own: to look where a line begins would take longer than it saves."""


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array in row-major order; one of 64 KiB or more begins with a cache line.

    Its bytes are a part of a slightly larger array, so it cannot be resized in place. Elements that are Python objects,
    or strings of any length, are where NumPy puts them.

    Example:
        >>> empty((100, 1000), np.float32).ctypes.data % 64
        0
    """
    return allocation(shape, dtype)()


def allocation(shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
    """A function that makes arrays as `empty` does; for many of one shape."""
    kind = np.dtype(dtype)
    size_bytes = math.prod(map(int, shape)) * kind.itemsize
    if size_bytes < LEAST_BYTES or kind.hasobject or kind.kind == "T":
        return partial(np.empty, shape, kind)

    def make() -> Array:
        memory = np.empty(size_bytes + LINE_BYTES, np.uint8)
        return np.ndarray(shape, kind, memory, _before_line(memory))

    return make


def fills_its_memory(array: Array) -> bool:
    """Whether an array has memory of its own, or all that `empty` made for it: it keeps no other array alive."""
    memory = array.base
    if memory is None:
        return True
    if type(memory) is not np.ndarray or memory.dtype != np.uint8 or memory.shape != (array.nbytes + LINE_BYTES,):
        return False
    begin = address_of(array) - address_of(memory)
    return memory.base is None and array.flags.c_contiguous and begin == _before_line(memory)


def _before_line(memory: Array) -> int:
    """The bytes before the first cache line that begins in an array."""
    return -address_of(memory) % LINE_BYTES
