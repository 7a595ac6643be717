"""The host that every backend shares: its memory, as arrays for results, and how many of its processors are used."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.errors import BackendError
from tileweave.kept import lock_of_process

__all__ = [
    "LINE_BYTES",
    "OBJECT_DATA",
    "Arena",
    "Block",
    "address_of",
    "aligned",
    "allocation",
    "arena",
    "available_threads",
    "cache_bytes",
    "empty",
    "fills_its_memory",
    "interface_address",
    "last_caches",
    "span",
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
_THREADS_AT_ONCE = not getattr(sys, "_is_gil_enabled", lambda: True)()


def _fast_address() -> Callable[[Array], int]:
    """The quick way where this interpreter lays objects out as expected, else the documented way."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != OBJECT_DATA:
        return interface_address
    samples = [np.arange(5), np.zeros((3, 4), "f4")[1:, ::-1], np.empty(0, "i1")]
    right = all(_field_address(sample) == interface_address(sample) for sample in samples)
    return _field_address if right else interface_address


address_of = _fast_address()
"""The address of an array's first element."""


def owner(array: Array) -> Array:
    """The array that owns the data of another."""
    found, below = array, array.base
    while below is not None:
        if isinstance(below, np.ndarray):
            found = below
        below = getattr(below, "base", None)
    return found


def span(array: Array) -> tuple[int, int]:
    """The first byte of an array, and the one behind its last."""
    if array.flags.c_contiguous:
        start = address_of(array)
        return start, start + array.nbytes
    return np.lib.array_utils.byte_bounds(array)


LINE_BYTES = 64
"""A cache line. NumPy's own allocation puts the elements of a large array 16 bytes behind the beginning of a page:
some contractions take up to 1.9 times as long to write to it, and 1.6 times as long to read from it."""
LEAST_BYTES = 64 * 1024
"""Smaller arrays are NumPy's own. The system clears the pages of larger ones anew, which takes up to ten times as long
as adding two arrays into them."""


class Arena:
    """Memory blocks lent to calls and taken back; large ones ask for large pages.

    Where more than ``keep_bytes`` would lie idle, the blocks that were given back first go: a process that has met many
    sizes keeps the memory of those that it meets now. Those that lie idle for longer than ``keep_seconds`` go when
    another one is given back.

    Args:
        keep_bytes: how much may lie idle.
        keep_seconds: and for how long.
    """

    def __init__(self, keep_bytes: int = 256 * 1024 * 1024, keep_seconds: float = 30.0) -> None:
        self._kept_bytes = 0
        self._keep_bytes = keep_bytes
        self._keep_seconds = keep_seconds
        self._idle: dict[int, list[_Idle]] = {}  # by size, what was given back first in front
        self._idle_bytes = 0
        self._due = math.inf  # when the first of them has lain there for long
        self._limits: list[int] = []
        self._lock = threading.RLock()  # a collection of garbage may give a block back in the midst of anything

    def take(self, size_bytes: int) -> Block:
        """A block of at least this size, aligned to 64 bytes; its content is whatever it was."""
        return self.taking(size_bytes)()

    def taking(self, size_bytes: int) -> Callable[[], Block]:
        """What takes such blocks; for many of one size."""
        size = 4096 if size_bytes <= 4096 else 1 << (size_bytes - 1).bit_length()
        if size > 1 << 22:  # beyond 4 MiB, steps of an eighth waste less than powers of two
            step = 1 << (size_bytes.bit_length() - 4)
            size = -(-size_bytes // step) * step
        with self._lock:
            idle = self._idle.setdefault(size, [])

        def take() -> Block:
            with self._lock:
                if idle:
                    self._idle_bytes -= size
                    return idle.pop()[2]
            return Block(size)

        return take

    def give(self, block: Block) -> None:
        """Take a block back."""
        now, size = time.monotonic(), block.size
        with self._lock:
            most = min(self._limits, default=self._keep_bytes) - size
            if self._idle_bytes > most >= 0 or now > self._due:  # one that cannot stay takes the place of none
                self._drop(most if most >= 0 else self._idle_bytes, now - self._keep_seconds)
            if most >= 0:
                self._idle[size].append((now, id(block), block))
                self._idle_bytes += size
                self._due = min(self._due, now + self._keep_seconds)

    def keep(self, block: Block, stays: bool) -> bool:
        """Whether a block stays with who has taken it, for the next result: if wanted, and not too much does."""
        with self._lock:
            if stays and not block.kept and self._kept_bytes + block.size <= ALL_KEPT_BYTES:
                block.kept = True
                self._kept_bytes += block.size
            elif block.kept and not stays:
                block.kept = False
                self._kept_bytes -= block.size
            return block.kept

    def _drop(self, most: int, since: float = 0.0) -> None:
        """No more bytes stay than this, and none from before a time; what was given back first goes."""
        while True:
            first = min(filter(None, self._idle.values()), key=itemgetter(0), default=None)
            if not first or (self._idle_bytes <= most and first[0][0] >= since):
                self._due = first[0][0] + self._keep_seconds if first else math.inf
                return
            self._idle_bytes -= first.pop(0)[2].size

    @contextlib.contextmanager
    def limited(self, keep_bytes: int) -> Iterator[None]:
        """No more than this lies idle inside a with block; what does already goes, where it is more."""
        with self._lock:
            self._limits.append(min(keep_bytes, self._keep_bytes))
            self._drop(keep_bytes)
        try:
            yield
        finally:
            with self._lock:
                if self._limits:  # not in a process that was forked inside the block
                    self._limits.remove(min(keep_bytes, self._keep_bytes))


class Block:
    """Anonymous memory: its ``address`` and ``size`` in bytes, and the ``memory`` itself for Python to write to."""

    __slots__ = ("address", "kept", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size, self.kept = size, False
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        there = size <= _TOUCHED and hasattr(mmap, "MAP_POPULATE")
        if there:
            private["flags"] |= mmap.MAP_POPULATE
        try:
            self.memory = mmap.mmap(-1, size, **private)  # a forked child has its own
        except OSError as error:
            raise MemoryError(f"{size} bytes: {error.strerror}") from None
        if size >= 1 << 21 and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # small pages hold the same values
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for place in range(0, size if size <= _TOUCHED and not there else 0, mmap.PAGESIZE):
            self.memory[place] = 0


_Idle = tuple[float, int, Block]
"""When a block was given back, its identity, and the block."""

_TOUCHED = 1 << 18
"""Blocks of so few bytes have all of their pages from the start: a tile asks for lines behind a short panel, and a page
that nobody touched is looked up in vain each time. 10 products of 100 x 30 x 40 take 57 us where it is so, else 32."""

arena = Arena()
"""The blocks of this process."""


@contextlib.contextmanager
def frugal(spare_bytes: int) -> Iterator[None]:
    """Inside a with block, no more memory than this lies idle, here or in the C library: where it is little, what the
    buffers of other packages leave behind goes back to the system, but for `IDLE_BYTES`."""
    with arena.limited(spare_bytes):
        if _C_LIBRARY is None:
            yield
            return
        if spare_bytes >= MUCH_BYTES:
            with _FRUGAL_TURN:
                if not _FRUGAL:
                    _generous(_C_LIBRARY)
            yield
            return
        with _FRUGAL_TURN:
            _FRUGAL.append(spare_bytes)
            _C_LIBRARY.mallopt(_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)
            _C_LIBRARY.mallopt(_TRIM_THRESHOLD, IDLE_BYTES // available_threads())
        try:
            yield
        finally:
            with _FRUGAL_TURN:
                if _FRUGAL:  # not in a process that was forked inside the block
                    _FRUGAL.pop()
                if not _FRUGAL:
                    _generous(_C_LIBRARY)


def _generous(library: Any) -> None:
    """The C library keeps what is freed as it would by itself, where it has met buffers of these sizes."""
    library.mallopt(_MMAP_THRESHOLD, 1 << 25)
    library.mallopt(_TRIM_THRESHOLD, 1 << 26)


def give_back() -> None:
    """What is free in the C library goes back to the system, where that library can be told so."""
    if _C_LIBRARY is not None:
        _C_LIBRARY.malloc_trim(0)


MUCH_BYTES = 1 << 26
"""With so much to spare, idle buffers stay: asking the system for them anew takes a third of the time of a run from
zarr to zarr."""
IDLE_BYTES = 24 << 20
"""What the threads may leave idle in the C library where there is little to spare: Zstandard takes 11 MiB to pack a
chunk of 8, and pages that are asked for anew cost a fifth of a run from zarr to zarr under 64 MiB."""
LARGE_BUFFER_BYTES = 1 << 25
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""As malloc.h of the GNU C library has them."""
_FRUGAL: list[int] = []
_FRUGAL_TURN = lock_of_process()
_C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None
if not hasattr(_C_LIBRARY, "gnu_get_libc_version"):
    _C_LIBRARY = None


def _after_fork() -> None:
    """A thread that is gone may hold the lock, and cannot end what it has limited."""
    arena._lock = threading.RLock()
    arena._limits.clear()
    if _FRUGAL and _C_LIBRARY is not None:
        _FRUGAL.clear()
        _generous(_C_LIBRARY)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array in row-major order; one of 64 KiB or more begins with a cache line.

    The bytes of a large one are borrowed, and serve the next array when nothing refers to them any more; so it cannot
    be resized in place. Elements that are Python objects, or strings of any length, are where NumPy puts them.

    Example:
        >>> empty((100, 1000), np.float32).ctypes.data % 64
        0
    """
    return allocation(shape, dtype)()


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """As `empty`, and of any size it begins with a cache line: for what kernels read in whole vectors again and again.

    Example:
        >>> aligned((3, 5), np.float32).ctypes.data % 64
        0
    """
    kind = np.dtype(dtype)
    size_bytes = math.prod(map(int, shape)) * kind.itemsize
    if size_bytes >= LEAST_BYTES:
        return empty(shape, kind)
    memory = np.empty(size_bytes + LINE_BYTES, np.uint8)
    start = -address_of(memory) % LINE_BYTES
    made: Array = memory[start : start + size_bytes].view(kind).reshape(shape)
    return made


def allocation(shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
    """A function that makes arrays as `empty` does; for many of one shape."""
    kind = np.dtype(dtype)
    size_bytes = math.prod(map(int, shape)) * kind.itemsize
    if size_bytes < LEAST_BYTES or kind.hasobject or kind.kind == "T":
        return partial(np.empty, shape, kind)

    kept: list[Array] = []
    most = KEPT_RESULTS if size_bytes <= KEPT_BYTES else 0
    take, turns = arena.taking(size_bytes), (None,) * most

    def make() -> Array:
        try:
            for _ in turns:
                memory = kept.pop()  # two threads never hold the same
                if count(memory) == _FREE:
                    kept.append(memory)
                    return memory.view()  # NumPy makes it in a fifth of the time of an array on other memory
                kept.insert(0, memory)
        except IndexError:
            pass
        while len(kept) >= most > 0:  # somebody holds these for longer; threads at once may have left more
            with contextlib.suppress(IndexError):
                longest = kept.pop(0)  # named: its block is to be found while it lives
                arena.keep(_LENT[id(longest)][1], False)
                del longest
        block = take()
        memory = np.ndarray(shape, kind, block.memory)
        # views of the result refer to this array, so it goes when the last of them does
        _LENT[id(memory)] = weakref.ref(memory, _returned(id(memory), block)), block
        if most and arena.keep(block, True):
            kept.append(memory)
        return memory.view()

    count = sys.getrefcount
    return make


KEPT_BYTES, KEPT_RESULTS, ALL_KEPT_BYTES = 1 << 23, 2, 1 << 28
"""The memory of so many results stays with what makes them, up to this size, and up to this size of all together:
borrowing it takes some 2 us, a fifth of what it takes to add two arrays of 200 KiB (bench/run.py)."""


def _references(held: list[Array]) -> int:
    """How often an array counts as referred to that one local name alone refers to."""
    memory = held.pop()
    return sys.getrefcount(memory)


_FREE = _references([np.empty(0)]) if sys.implementation.name == "cpython" and not _THREADS_AT_ONCE else -1


_LENT: dict[int, tuple[weakref.ref[Array], Block]] = {}
"""What holds the bytes of each large array that is alive, by identity."""


def _returned(number: int, block: Block) -> Callable[[object], None]:
    """What takes a block back when nobody refers to its bytes any more."""
    lent, give, keep = _LENT, arena.give, arena.keep

    def back(_: object) -> None:
        lent.pop(number, None)
        keep(block, False)
        give(block)

    return back


def fills_its_memory(array: Array) -> bool:
    """Whether an array has memory of its own, or all that `empty` made for it: it keeps no other array alive."""
    memory = array.base
    if memory is None:
        return True
    lent = _LENT.get(id(memory))
    held = None if lent is None else lent[0]()
    if held is None or held is not memory:
        return False
    return array.nbytes == held.nbytes and array.flags.c_contiguous


# ---- processors -----------------------------------------------------------------------------------------------------

THREADS_VARIABLE = "TILEWEAVE_THREADS"
_MOST_THREADS = 255


def available_threads() -> int:
    """How many threads compute where a call does not say: ``TILEWEAVE_THREADS``, else the processors of this process.

    Raises:
        BackendError: the variable is set, and is no positive integer.
    """
    wanted = (os.environ.get(THREADS_VARIABLE) or "").strip() if _SET is None or _VARIABLE in _SET else ""
    if wanted:
        if not wanted.isdecimal() or int(wanted) < 1:
            problem = f"{THREADS_VARIABLE}={wanted!r} is no number of threads"
            raise BackendError("available_threads()", problem, legal="a positive integer, or unset for all processors")
        return int(wanted)
    global _COUNTED
    count, until = _COUNTED
    now = time.monotonic()
    if now >= until:
        # macOS, Windows: a process cannot be asked which processors it may use
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _COUNTED = count, now + COUNTED_SECONDS
    return count


_VARIABLE = THREADS_VARIABLE.encode()
_SET: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None
"""What `os.environ` holds: to ask that itself for what is not there raises inside, and takes 0.6 us."""
COUNTED_SECONDS = 0.01
"""How long a count of processors holds: asking the system takes as long as a small kernel."""
_COUNTED = 0, 0.0


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


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@functools.cache
def cache_bytes() -> tuple[int, int, int]:
    """Bytes of the data caches L1, L2, L3 of the first processor as Linux tells them; modest guesses elsewhere."""
    found = {1: 32 * 1024, 2: 512 * 1024, 3: 8 * 1024 * 1024}
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    try:
        for entry in sorted(_CACHES.glob("index*")):
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            size = (entry / "size").read_text().strip()
            found[int((entry / "level").read_text())] = int(size[:-1]) * units[size[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return found[1], found[2], found[3]


@functools.cache
def last_caches() -> int:
    """How many caches L3 the host has, taking each to serve as many processors as the first one's; 1 where it is not
    known."""
    try:
        ranges = (_CACHES / "index3" / "shared_cpu_list").read_text().strip().split(",")
        edges = [[int(edge) for edge in one.split("-")] for one in ranges]
    except (OSError, ValueError):
        return 1
    return max(1, (os.cpu_count() or 1) // sum(edge[-1] - edge[0] + 1 for edge in edges))
