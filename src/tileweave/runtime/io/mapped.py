"""Arrays that lie in mapped files: read where they lie, filled where they lie, and never with more pages than in use.

A page of a mapped file counts for the process that has touched it until the process gives it back, which costs it
nothing that the file does not still hold. So pages are given back as an array is gone through, and a box whose rows are
too short for that is copied out, part by part.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tileweave.backends.host import empty
from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.lower.reads import slices
from tileweave.space import Box

Array = np.ndarray[Any, Any]

MAPPED_BYTES = 4 << 20
"""How much of a mapped file is gone through before its pages are given back: what is still in use comes back from the
system's cache, at some 0.1 ms per MiB."""
AROUND_BYTES = 1 << 16
"""What the system maps around a byte that is touched."""
RUN_BYTES = 4 * mmap.PAGESIZE
"""Runs of a file from this length on are written by calls of the system, which take half the time that a mapping's
pages take to come and to be found again at the end (8 MiB: 2.4 and 4.5 ms, not 8.2 and 9.8); shorter ones cost a call
each, and break even at half that length."""


@dataclass(frozen=True, slots=True)
class Header:
    """Where the elements of an array lie, counted from its first byte."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset_bytes: int

    @property
    def type(self) -> TensorType:
        """What a tensor made of it has: the element type in this machine's byte order."""
        return TensorType(self.shape, self.dtype.newbyteorder("="))


def reach_bytes(view: Array) -> int:
    """The bytes of a mapping that going through an array touches, at most.

    Example:
        >>> rows = np.zeros((1000, 1 << 16), np.uint8)
        >>> reach_bytes(rows[:2]) >> 10, reach_bytes(rows[:, :1]) >> 10
        (256, 64064)
    """
    if view.flags.c_contiguous:
        return view.nbytes and view.nbytes + 2 * AROUND_BYTES
    run, runs = view.itemsize, 1
    for stride, extent in sorted(zip(view.strides, view.shape, strict=True)):
        if runs == 1 and stride == run:
            run *= extent
        elif extent > 1:
            runs *= extent
    span = view.itemsize + sum(stride * (extent - 1) for stride, extent in zip(view.strides, view.shape, strict=True))
    return min(span + 2 * AROUND_BYTES, runs * (run + 2 * AROUND_BYTES)) if view.size else 0


def parts(view: Array) -> Iterator[Any]:
    """Indices of the parts of an array that touch no more than is given back at once, or are one element."""
    yield from _halved(view, lambda part, k: part.strides[k])


def _in_order(view: Array) -> Iterator[Any]:
    """The same, one behind the other in row-major order."""
    yield from _halved(view, lambda _, k: -k)


def _halved(view: Array, order: Callable[[Array, int], int]) -> Iterator[Any]:
    """Of a part that is too large, the dimension of the highest order is halved."""
    if reach_bytes(view) <= MAPPED_BYTES:
        yield ...
        return
    pending = [tuple(slice(0, extent) for extent in view.shape)]
    while pending:
        index: Any = pending.pop()
        part = view[(*index, ...)]
        if reach_bytes(part) <= MAPPED_BYTES or part.size <= 1:
            yield (*index, ...)
            continue
        dim = max(range(part.ndim), key=lambda k: (part.shape[k] > 1, order(part, k)))
        a, b = index[dim].start, index[dim].stop
        halves = slice(a, (a + b) // 2), slice((a + b) // 2, b)
        pending += [(*index[:dim], half, *index[dim + 1 :]) for half in reversed(halves)]


def write_runs(file: IO[bytes], kind: TensorType, at_bytes: int, box: Box, block: Array) -> bool:
    """Writes a box of an array that lies at an offset of a file, where it is long runs there; whether it did.

    Any process that maps the file sees what was written.

    Example:
        >>> import tempfile
        >>> kind = TensorType((3, 2), np.dtype("int8"))
        >>> with tempfile.TemporaryFile() as file:
        ...     done = write_runs(file, kind, 4, kind.box.with_range(0, 1, 3), np.array([[1, 2], [3, 4]], np.int8))
        ...     done, file.read()
        (True, b'\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x02\\x03\\x04')
    """
    if not hasattr(os, "pwrite") or block.dtype != kind.dtype or block.shape != box.shape:
        return False
    strides = [kind.dtype.itemsize * prod(kind.shape[k + 1 :]) for k in range(len(kind.shape))]
    whole = len(strides)  # from this dimension on, the box is one run
    while whole and box.shape[whole:] == kind.shape[whole:]:
        whole -= 1
    outer = box.shape[:whole]
    if prod(outer) > 1 and kind.dtype.itemsize * prod(box.shape[whole:]) < RUN_BYTES:
        return False
    first = at_bytes + sum(stride * start for stride, start in zip(strides, box.start, strict=True))
    for index in np.ndindex(*outer):
        at = first + sum(stride * k for stride, k in zip(strides, index, strict=False))
        _write_run(file.fileno(), at, block[(*index, ...)], strides[whole:])
    return True


def _write_run(descriptor: int, at: int, part: Array, strides: Sequence[int]) -> None:
    """Writes an array that is one run of a file; of one that is none in memory, no more than a piece is copied."""
    if part.flags.c_contiguous or part.nbytes <= MAPPED_BYTES or part.size == 1:
        data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        while data:
            done = os.pwrite(descriptor, data, at)
            data, at = data[done:], at + done
        return
    k = next(k for k, extent in enumerate(part.shape) if extent > 1)
    half, before = part.shape[k] // 2, (slice(None),) * k
    _write_run(descriptor, at, part[(*before, slice(half))], strides)
    _write_run(descriptor, at + half * strides[k], part[(*before, slice(half, None))], strides)


class _Mapped:
    """A mapping, and how much of it was touched since its pages were given back."""

    def __init__(self, file: IO[bytes], size_bytes: int, access: int) -> None:
        self.memory = mmap.mmap(file.fileno(), size_bytes, access=access)
        self._touched_bytes = 0

    def touch(self, view: Array) -> None:
        """An array is gone through next: what was touched before is given back, where it is much."""
        self._touched_bytes += (reach := reach_bytes(view))
        if self._touched_bytes > MAPPED_BYTES:
            self.give_back()
            self._touched_bytes = reach

    def give_back(self) -> None:
        """No page counts for this process until it is touched again; the file keeps what was written."""
        self._touched_bytes = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED)


class MappedReader:
    """Reads boxes of one array that lies at a byte offset of a file; what it returns is read-only.

    Args:
        file: open; it may be closed afterwards.
        header: of the .npy.
        base_bytes: where the .npy begins.
        everywhere: whether another process reads the same by the file's name.
    """

    def __init__(self, file: IO[bytes], header: Header, base_bytes: int = 0, everywhere: bool = True) -> None:
        self.type, self.everywhere = header.type, everywhere
        self._mapped: _Mapped | None = None
        order: Any = "F" if header.fortran else "C"
        if self.type.box.empty:
            self._array: Array | None = np.empty(header.shape, header.dtype, order=order)
            return
        self._mapped = _Mapped(file, 0, mmap.ACCESS_READ)
        at = base_bytes + header.offset_bytes
        self._array = np.ndarray(header.shape, header.dtype, self._mapped.memory, at, order=order)

    def read(self, box: Box) -> Array:
        """The values of a box: a view where the file's bytes serve as they are and fill the pages that they lie in,
        else a converted copy of the box."""
        if self._array is None:
            raise StorageError("Reader.read(box)", "the reader is closed")
        view: Array = self._array[slices(box)]
        if self._mapped is not None and reach_bytes(view) > max(MAPPED_BYTES, 2 * view.nbytes):
            out = empty(box.shape, self.type.dtype)
            for index in parts(view):
                self._mapped.touch(view[index])
                out[index] = view[index]
            self._mapped.give_back()
            return out
        if self._mapped is not None:
            self._mapped.touch(view)
        plain = view.flags.aligned and view.dtype.isnative
        return view if plain else view.astype(self.type.dtype)

    def stream(self) -> Iterator[memoryview]:
        """The bytes of the elements in row-major order, part by part."""
        if self._array is None:
            raise StorageError("Reader.stream()", "the reader is closed")
        for index in _in_order(self._array):
            if self._mapped is not None:
                self._mapped.touch(self._array[index])
            yield np.ascontiguousarray(self._array[index]).reshape(-1).view(np.uint8).data

    def close(self) -> None:
        """Lets go of the file; views that were handed out stay valid."""
        self._array = self._mapped = None


class MappedWriter:
    """An array at a byte offset of a file, filled in place; boxes come in any order and from several threads.

    Args:
        path: of the file, which exists; it grows to the array's end.
        kind: of the tensor.
        offset_bytes: where its row-major elements begin.
    """

    def __init__(self, path: Path, kind: TensorType, offset_bytes: int) -> None:
        self.path, self.offset_bytes, self.type = path, offset_bytes, kind
        self._mapped: _Mapped | None = None
        self._array: Array | None = None
        self._file = path.open("rb+")
        try:
            if kind.box.empty:
                self._array = np.empty(kind.shape, kind.dtype)
                return
            self._reserve(offset_bytes + kind.size_bytes)
            self._mapped = _Mapped(self._file, offset_bytes + kind.size_bytes, mmap.ACCESS_WRITE)
            self._array = np.ndarray(kind.shape, kind.dtype, self._mapped.memory, offset_bytes)
        except BaseException:
            self._file.close()
            raise

    def _reserve(self, size_bytes: int) -> None:
        """A full disk must be an error now; inside a memory map it would kill the process."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, size_bytes)
        elif os.fstat(self._file.fileno()).st_size < size_bytes:
            self._file.truncate(size_bytes)

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""
        if self._array is None:
            raise StorageError("Writer.write(box)", "the writer is closed")
        if self._mapped is not None and write_runs(self._file, self.type, self.offset_bytes, box, block):
            return
        region: Array = self._array[slices(box)]
        for index in parts(region):
            if self._mapped is not None:
                self._mapped.touch(region[index])
            region[index] = block[index]

    def sync(self, boxes: Collection[Box]) -> None:
        """What was written to these boxes, by any process, reaches the disk."""
        if self._mapped is not None:
            self._mapped.memory.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Everything that was written reaches the disk."""
        self.sync((self.type.box,))
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        self._array = None
        if self._mapped is not None:
            with suppress(BufferError):  # a region is still held somewhere: the map goes when that goes
                self._mapped.memory.close()
            self._mapped = None
        self._file.close()
