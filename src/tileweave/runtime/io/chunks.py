"""Chunk files of local zarr arrays, unpacked to where their values are wanted and packed from where these lie.

zarr itself passes a chunk through four buffers that are made anew each time; with new pages, two of three cycles of a
run from zarr to zarr went there. What is known here is the form that zarr gives arrays by default: format 3, elements
in the host's byte order, packed with Zstandard or not at all, one file per chunk. Every other form goes through zarr.

Source: own; the header of a frame is that of RFC 8878, 3.1.1.1.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from io import FileIO
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tileweave.backends.host import available_threads, empty
from tileweave.lower.reads import slices
from tileweave.space import Box
from tileweave.space.box import trusted_box

Array = np.ndarray[Any, Any]


def parts(box: Box, chunks: Sequence[int]) -> Iterator[Box]:
    """The pieces of a box that are read or written at once, each in one chunk.

    zarr works on up to ten chunks of a piece at once, and holds each of them two or three times.
    """
    if box.empty:
        return
    if all(a % n + extent <= n for a, extent, n in zip(box.start, box.shape, chunks, strict=bool(chunks))):
        yield box
        return
    edges = [
        [a, *range((a // step + 1) * step, b, step), b] for a, b, step in zip(box.start, box.stop, chunks, strict=True)
    ]
    for ends in product(*(pairwise(one) for one in edges)):
        yield trusted_box(tuple([a for a, _ in ends]), tuple([b - a for a, b in ends]))


def each(boxes: Iterable[Box], work: Callable[[Box], None]) -> None:
    """Does the work for each box, on as many threads as compute: what zarr does itself it does on one.

    Raises:
        Exception: the first that the work raises; what has not begun by then is left.
    """
    ready = list(boxes)
    if len(ready) < 2:
        for box in ready:
            work(box)
        return
    with ThreadPoolExecutor(min(len(ready), available_threads()), "tileweave-zarr") as pool:
        for _ in pool.map(work, ready):
            pass


class Buffers:
    """Byte buffers for the threads of one call: one that is given back is taken again, where it is large enough."""

    def __init__(self) -> None:
        self._idle: list[Array] = []

    @contextmanager
    def of(self, size_bytes: int) -> Iterator[Array]:
        """So many bytes, whatever they were."""
        try:
            buffer = self._idle.pop()  # two threads never take the same
        except IndexError:
            buffer = empty((0,), np.uint8)
        if buffer.size < size_bytes:
            buffer = empty((size_bytes,), np.uint8)
        yield buffer[:size_bytes]
        self._idle.append(buffer)


class ChunkFiles:
    """The chunks of one array.

    Args:
        folder: of the array.
        name: from a chunk's place in the grid to its file in the folder.
        chunks: extents of a chunk.
        dtype: of the elements.
        fill: the value of chunks without a file.
        level: of Zstandard, and whether it adds a checksum; None where elements are stored as they are.
    """

    def __init__(
        self,
        folder: Path,
        name: Callable[[tuple[int, ...]], str],
        chunks: tuple[int, ...],
        dtype: np.dtype[Any],
        fill: Any,
        level: tuple[int, bool] | None,
    ) -> None:
        self.folder, self._name, self.chunks, self.dtype, self.fill, self._level = (
            folder, name, chunks, dtype, fill, level
        )  # fmt: skip
        self._folder = f"{folder}/"  # as text: to make a path takes longer than to open its file
        self._zstd = import_module("numcodecs.zstd") if level is not None else None
        self._size = prod(chunks) * dtype.itemsize
        self._made: set[str] = set()  # folders of chunks that are known to be there

    def path(self, box: Box) -> str:
        """The file of the chunk that a box begins in."""
        return f"{self._folder}{self._name(tuple([a // n for a, n in zip(box.start, self.chunks, strict=True)]))}"

    def _in_chunk(self, box: Box) -> Box:
        return box.translate([-(a // n) * n for a, n in zip(box.start, self.chunks, strict=True)])

    def read(self, box: Box, out: Array, buffers: Buffers) -> None:
        """Reads a box that lies in one chunk into an array.

        Raises:
            OSError: the storage fails.
            RuntimeError, ValueError: it is no such chunk.
        """
        size = self._size
        try:
            file = FileIO(self.path(box))
        except FileNotFoundError:
            out[...] = self.fill
            return
        with file:
            packed = os.fstat(file.fileno()).st_size
            if out.flags.c_contiguous and out.nbytes == size:
                self._unpack(file, packed, out.reshape(-1).view(np.uint8), buffers)
                return
            with buffers.of(size) as whole:
                self._unpack(file, packed, whole, buffers)
                out[...] = whole.view(self.dtype).reshape(self.chunks)[slices(self._in_chunk(box))]

    def _unpack(self, file: Any, packed: int, out: Array, buffers: Buffers) -> None:
        """Fills an array of bytes from a file of a chunk."""
        if self._zstd is None:
            if packed != out.size:
                raise ValueError(f"{packed} bytes are no chunk of {out.size}")
            _fill(file, out)
            return
        with buffers.of(packed) as frame:
            _fill(file, frame)
            if content_bytes(bytes(frame[:18])) == out.size:
                self._zstd.decompress(frame, out)
                return
            found = self._zstd.decompress(frame)
            if len(found) != out.size:
                raise ValueError(f"{len(found)} bytes are no chunk of {out.size}")
            out[...] = np.frombuffer(found, np.uint8)

    def write(self, box: Box, block: Array, buffers: Buffers) -> None:
        """Stores the values of a box that is a chunk, up to the end of the array; a chunk that is zero has no file."""
        size = self._size
        if block.nbytes == size and block.flags.c_contiguous and block.dtype == self.dtype:
            self._store(box, block.reshape(-1).view(np.uint8))
            return
        with buffers.of(size) as whole:
            chunk = whole.view(self.dtype).reshape(self.chunks)
            if block.nbytes != size:
                chunk[...] = 0
            chunk[slices(self._in_chunk(box))] = block
            self._store(box, whole)

    def _store(self, box: Box, chunk: Array) -> None:
        path = self.path(box)
        if not chunk[:1].any() and not chunk.any():
            Path(path).unlink(missing_ok=True)
            return
        packed = chunk if self._zstd is None or self._level is None else self._zstd.compress(chunk, *self._level)
        aside = f"{path}.{secrets.token_hex(8)}.partial"  # as zarr writes: whole, or not at all
        try:
            with self._opened(aside) as file:
                put(file, packed)
            os.replace(aside, path)  # noqa: PTH105 (text, as above)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise

    def _opened(self, path: str) -> FileIO:
        """A new file; its folder is made where it is not known to be there, or is gone again."""
        folder = path.rpartition("/")[0]
        if folder in self._made:
            with suppress(FileNotFoundError):
                return FileIO(path, "wb")
        try:
            os.mkdir(folder)  # noqa: PTH102 (text, as above)
        except (FileExistsError, FileNotFoundError):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._made.add(folder)
        return FileIO(path, "wb")


def put(file: IO[bytes] | FileIO, data: bytes | Array) -> None:
    """Writes bytes to a file without a buffer, which may take them in parts."""
    left = memoryview(data.data if isinstance(data, np.ndarray) else data)
    while left:
        left = left[file.write(left) :]


def _fill(file: Any, out: Array) -> None:
    left = out.data
    while left:
        count = file.readinto(left)
        if not count:
            raise ValueError(f"the file ends {len(left)} bytes early")
        left = left[count:]


def content_bytes(header: bytes) -> int:
    """The bytes that a Zstandard frame says it holds; -1 where it does not say.

    Example:
        >>> content_bytes(bytes.fromhex("28b52ffd2064")), content_bytes(b"xx")
        (100, -1)
    """
    if header[:4] != b"\x28\xb5\x2f\xfd" or len(header) < 5:
        return -1
    flag, single, dictionary = header[4] >> 6, header[4] >> 5 & 1, header[4] & 3
    at = 5 + (not single) + (0, 1, 2, 4)[dictionary]
    count = (single, 2, 4, 8)[flag]
    if not count or len(header) < at + count:
        return -1
    return int.from_bytes(header[at : at + count], "little") + (256 if count == 2 else 0)


def chunk_files(array: Any, dtype: np.dtype[Any]) -> ChunkFiles | None:
    """The chunks of a zarr array where their form is known here, else None.

    Args:
        array: of the zarr package.
        dtype: of its elements, in the host's byte order.
    """
    store = import_module("zarr.storage").LocalStore
    metadata = array.metadata
    if not isinstance(array.store, store) or metadata.zarr_format != 3 or array.shards or not array.chunks:
        return None
    codecs = [dict(codec) for codec in metadata.to_dict()["codecs"]]
    options = [dict(codec.get("configuration") or {}) for codec in codecs]
    names = [codec["name"] for codec in codecs]
    if names not in (["bytes"], ["bytes", "zstd"]) or options[0].get("endian", sys.byteorder) != sys.byteorder:
        return None
    level = (int(options[1].get("level", 0)), bool(options[1].get("checksum"))) if len(codecs) > 1 else None
    folder, chunks = Path(array.store.root) / array.path, tuple(map(int, array.chunks))
    return ChunkFiles(folder, metadata.encode_chunk_key, chunks, dtype, metadata.fill_value, level)
