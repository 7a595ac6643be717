"""The host that every backend shares: its memory, as arrays for results, and how many of its processors are used."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tileweave.errors import BackendError

__all__ = [
    "LINE_BYTES",
    "OBJECT_DATA",
    "address_of",
    "allocation",
    "available_threads",
    "empty",
    "fills_its_memory",
    "interface_address",
    "thread_count",
]

Array = np.ndarray[Any, Any]

# ---- arrays ---------------------------------------------------------------------------------------------------------

OBJECT_DATA = 2 * struct.calcsize("P")
"""Where the C structure of an ndarray, behind the head of every object, has the pointer to its data."""


def interface_address(array: Array) -> int:
    """The address of an array's first element, by NumPy's documented interface."""
    address: int = array.__array_interface__["data"][0]
    return address


def _field_address(array: Array) -> int:
    return _POINTER.from_address(id(array) + OBJECT_DATA).value or 0


_POINTER = ctypes.c_ssize_t


def _fast_address() -> Callable[[Array], int]:
    """The quick way where this interpreter lays objects out as expected, else the documented way."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != OBJECT_DATA:
        return interface_address
    samples = [np.arange(5), np.zeros((3, 4), "f4")[1:, ::-1], np.empty(0, "i1")]
    right = all(_field_address(sample) == interface_address(sample) for sample in samples)
    return _field_address if right else interface_address


address_of = _fast_address()
"""The address of an array's first element."""

LINE_BYTES = 64
"""A cache line. NumPy's own allocation puts the elements of a large array 16 bytes behind the beginning of a page:
some contractions take up to 1.9 times as long to write to it, and 1.6 times as long to read from it."""
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


# ---- processors -----------------------------------------------------------------------------------------------------

THREADS_VARIABLE = "TILEWEAVE_THREADS"
_MOST_THREADS = 255


def available_threads() -> int:
    """How many threads compute where a call does not say: ``TILEWEAVE_THREADS``, else the processors of this process.

    Raises:
        BackendError: the variable is set, and is no positive integer.
    """
    wanted = os.environ.get(THREADS_VARIABLE, "").strip()
    if wanted:
        if not wanted.isdecimal() or int(wanted) < 1:
            problem = f"{THREADS_VARIABLE}={wanted!r} is no number of threads"
            raise BackendError("available_threads()", problem, legal="a positive integer, or unset for all processors")
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS, Windows: a process cannot be asked which processors it may use


def thread_count(where: str, threads: object) -> int:
    """The number of threads that a caller asks for; None: as `available_threads`. No pool has more than 255.

    Raises:
        BackendError: it is no positive integer.
    """
    wanted = available_threads() if threads is None else threads
    if not isinstance(wanted, int | np.integer) or isinstance(wanted, bool) or wanted < 1:
        facts = {"source": "", "log": ""}
        legal = "a positive integer, or None for all processors"
        raise BackendError(where, f"{threads!r} is no number of threads", legal=legal, facts=facts)
    return min(int(wanted), _MOST_THREADS)
