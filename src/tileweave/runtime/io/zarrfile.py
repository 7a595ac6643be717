"""Zarr arrays, local or behind an fsspec URL: reading by slices, and directories that appear whole or not at all.

A chunk is the atom of writing: two writers of one chunk would lose each other's values. The chunks of an array that
we create are known before it exists, so that a plan can cut along them; a write that does not keep to them
excludes every other such write for its duration.
"""

from __future__ import annotations

import importlib
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.backends.host import empty
from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.io.chunks import Buffers, chunk_files, each, parts
from tileweave.runtime.io.journal import NAMING, to_disk
from tileweave.runtime.io.npyfile import supported
from tileweave.runtime.io.retries import retried
from tileweave.space import Box

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 4 << 20
"""The most bytes of one chunk of an array that we create."""


def chunk_shape(kind: TensorType) -> tuple[int, ...]:
    """The chunks of an array that we create: its largest extents halved until a chunk is small enough.

    Example:
        >>> chunk_shape(TensorType((8192, 8192), np.dtype("float32")))
        (1024, 1024)
    """
    shape = [max(1, n) for n in kind.shape]
    size_bytes = kind.dtype.itemsize
    for n in shape:
        size_bytes *= n
    while size_bytes > CHUNK_BYTES and max(shape) > 1:
        dim = shape.index(max(shape))
        size_bytes //= shape[dim]
        shape[dim] = -(-shape[dim] // 2)
        size_bytes *= shape[dim]
    return tuple(shape)


def chunks_within(shard: tuple[int, ...], kind: TensorType) -> tuple[int, ...]:
    """The chunks of a shard of which only the extents are given: its largest even extents halved while it is large.

    Example:
        >>> chunks_within((4096, 4096), TensorType((8192, 8192), np.dtype("float32")))
        (1024, 1024)
    """
    shape, size_bytes = list(shard), kind.dtype.itemsize * prod(shard)
    while size_bytes > CHUNK_BYTES and any(n % 2 == 0 for n in shape):
        dim = max((n, k) for k, n in enumerate(shape) if n % 2 == 0)[1]
        shape[dim] //= 2
        size_bytes //= 2
    return tuple(shape)


def load(where: str) -> Any:
    """The zarr package, loaded on first use."""
    try:
        import zarr
    except ImportError:
        raise StorageError(
            where, "zarr files need a package that is missing", legal="pip install 'tileweave[io]'"
        ) from None
    return zarr


def is_zarr(directory: Path) -> bool:
    """Whether a local directory is a zarr array or group, of format 2 or 3."""
    return any((directory / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def remote(url: str, where: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    load(where)
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise StorageError(where, f"the URL needs a package that is missing: {error}", legal="install it") from None
    except ValueError as error:
        raise StorageError(where, f"the URL cannot be used: {error}", legal="a protocol that fsspec knows") from None
    return fs, path


# ---------------------------------------------------------------------------------------------------------------------
# reading


def _node(path: str, key: str, where: str) -> Any:
    zarr = load(where)
    if "://" not in path and not Path(path).exists():
        raise StorageError(where, "the file cannot be opened: No such file or directory", legal="a file that exists")
    try:
        opened = partial(zarr.open, store=path, mode="r", path=key or None)
        return retried(opened) if "://" in path else opened()
    except ImportError as error:
        raise StorageError(where, f"the URL needs a package that is missing: {error}", legal="install it") from None
    except Exception as error:  # zarr, fsspec and every store behind them have errors of their own
        what = f"member {key!r}" if key else "the file"
        problem = f"{what} is not a zarr array or group: {type(error).__name__}: {error}"
        raise StorageError(where, problem, legal="a zarr array, or a group and a key") from None


def members_of(path: str, where: str) -> list[str]:
    """The names of the arrays in a zarr group, however deep; ``[""]`` where the path is an array itself."""
    node = _node(path, "", where)
    if not hasattr(node, "members"):
        return [""]
    return sorted(name for name, member in node.members(max_depth=None) if not hasattr(member, "members"))


class ZarrReader:
    """Reads boxes of one zarr array."""

    def __init__(self, array: Any, where: str) -> None:
        self._array, self._where = array, where
        self._buffer = importlib.import_module("zarr.core.buffer").default_buffer_prototype().nd_buffer
        self.everywhere = True
        self.chunks = tuple(map(int, array.chunks))
        dtype = np.dtype(array.dtype)
        if not supported(dtype):
            raise StorageError(where, f"the array holds elements of type {dtype}", legal="bool, integers or floats")
        self.type = TensorType(tuple(int(n) for n in array.shape), dtype.newbyteorder("="))
        self._files = chunk_files(array, self.type.dtype)

    def read(self, box: Box) -> Array:
        """The values of a box, as a new array."""
        out = empty(box.shape, self.type.dtype)
        start, buffers = [-a for a in box.start], Buffers()

        def one(part: Box) -> None:
            place = out if part is box else out[slices(part.translate(start))]
            try:
                if self._files is not None:
                    self._files.read(part, place, buffers)
                else:
                    self._array.get_basic_selection(slices(part)[:-1], out=self._buffer.from_ndarray_like(place))
            except (RuntimeError, ValueError, TypeError) as error:  # of codecs; what the storage fails is tried again
                problem = f"the chunk at {part} cannot be unpacked: {error}"
                raise StorageError(self._where, problem, legal="a chunk as the array's metadata has it") from error

        each(parts(box, self.chunks), one)
        return out

    def close(self) -> None:
        """Nothing is held open between reads."""


def open_zarr(path: str, key: str, where: str) -> ZarrReader:
    """A reader of a zarr array, or of a member of a zarr group."""
    node = _node(path, key, where)
    if hasattr(node, "members"):
        raise StorageError(where, f"member {key!r} is a group", legal="an array")
    return ZarrReader(node, where)


# ---------------------------------------------------------------------------------------------------------------------
# writing


class ZarrWriter:
    """One zarr array being filled; what must be written at once is a chunk, or a shard of chunks."""

    def __init__(self, array: Any, kind: TensorType, store: str, key: str) -> None:
        self._array, self._kind = array, kind
        self.chunks: tuple[int, ...] = tuple(array.shards or array.chunks)
        self.store, self.key, self.type = store, key, kind
        self._unaligned = threading.Lock()
        self._files = chunk_files(array, kind.dtype)

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box; boxes that share a chunk are stored one after the other."""
        if box.empty:
            return
        bounds = zip(box.start, box.stop, self.chunks, self._kind.shape, strict=True)
        aligned = all(a % c == 0 and (b % c == 0 or b == n) for a, b, c, n in bounds)
        files = self._files if aligned else None
        with nullcontext() if aligned else self._unaligned:
            start, buffers = [-a for a in box.start], Buffers()

            def one(part: Box) -> None:
                values = block if part is box else block[slices(part.translate(start))]
                if files is not None:
                    files.write(part, values, buffers)
                else:
                    self._array[slices(part)] = values

            each(parts(box, self.chunks), one)

    def sync(self, boxes: Collection[Box]) -> None:
        """What was written to these boxes, by any process, reaches the disk; a store had it when its write returned."""
        if "://" in self.store:
            return
        folder = Path(self.store) / self.key
        folders = {folder, folder.parent}
        for box in boxes:
            spans = zip(box.start, box.stop, self.chunks, strict=True)
            for place in product(*(range(a // c, -(-b // c)) for a, b, c in spans)):
                path = folder / self._array.metadata.encode_chunk_key(place)
                if path.exists():  # a chunk of zeros is not stored
                    to_disk(path)
                    folders.add(path.parent)
        for one in folders:
            to_disk(one)


def reopen_zarr(store: str, key: str, kind: TensorType) -> ZarrWriter:
    """A writer of an array that another process has created and is filling too."""
    zarr = load("sink(tensor, path)")
    array = zarr.open_array(store=store, path=key or None, mode="r+")
    return ZarrWriter(array, kind, store, key)


Grid = tuple[tuple[int, ...], ...]


def checked_grid(grid: Grid, kind: TensorType, where: str) -> Grid:
    """The extents of chunks, and of shards where there are any, as a zarr of a type can have them.

    Raises:
        StorageError: not one positive extent per dimension, or shards that are not made of whole chunks.
    """
    chunks, shards = grid[0], grid[-1]
    for extents in grid:
        if len(extents) != len(kind.shape) or not all(type(n) is int and n > 0 for n in extents):
            problem = f"{extents} does not cut {kind}"
            raise StorageError(where, problem, legal=f"{len(kind.shape)} extents of 1 or more")
    if any(shard % chunk for shard, chunk in zip(shards, chunks, strict=True)):
        raise StorageError(
            where, f"shards {shards} are not made of whole chunks {chunks}", legal="multiples of a chunk"
        )
    return grid


def _create(zarr: Any, store: str, key: str, kind: TensorType, grid: Grid) -> ZarrWriter:
    chunks = grid[0] if grid else chunk_shape(kind)
    options = {"shape": kind.shape, "dtype": kind.dtype, "chunks": chunks}
    if len(grid) > 1:
        options["shards"] = grid[1]
    if key:
        array = zarr.open_group(store=store, mode="a").create_array(name=key, **options)
    else:
        array = zarr.create_array(store=store, **options)
    return ZarrWriter(array, kind, store, key)


class ZarrDirectory:
    """A local zarr array or group that appears whole at `publish`, or not at all; `grids` are by key."""

    def __init__(self, path: Path, temporary: Path, grids: Mapping[str, Grid]) -> None:
        self._path, self._temporary, self._grids = path, temporary, grids
        self._zarr = load(f"sink({str(path)!r})")

    def add(self, key: str, kind: TensorType) -> ZarrWriter:
        """The writer of the array, or of one more member of the group."""
        if (self._temporary / key / "zarr.json").exists():
            return reopen_zarr(str(self._temporary), key, kind)
        return _create(self._zarr, str(self._temporary), key, kind, self._grids.get(key, ()))

    def prepare(self) -> None:
        """Zarr has stored each block when its write returned."""

    def suspend(self) -> None:
        """The directory stays under its temporary name."""

    def publish(self) -> None:
        """The directory appears by one rename; one that is replaced is set aside first and comes back on failure."""
        if not self._path.exists():
            self._temporary.rename(self._path)
            return
        aside = self._temporary.with_name(self._temporary.name + "-old")
        self._path.rename(aside)
        try:
            self._temporary.rename(self._path)
        except BaseException:
            aside.rename(self._path)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def abort(self) -> None:
        """Removes what was written; nothing is left, whatever writes of a failed run are still under way."""
        for _ in range(20):
            shutil.rmtree(self._temporary, ignore_errors=True)
            if not self._temporary.exists():
                break
            time.sleep(0.05)


ROOT = "zarr.json"
"""The object that makes a folder a zarr array or group."""


class RemoteZarr:
    """A zarr array or group behind a URL. Its root metadata moves last, so that a part never looks whole."""

    def __init__(self, url: str, temporary: str, grids: Mapping[str, Grid]) -> None:
        self._grids = grids
        where = f"sink({url!r})"
        self._zarr = load(where)
        self._fs, self._path = remote(url, where)
        self._temporary_url = temporary
        self._temporary = remote(temporary, where)[1]

    def add(self, key: str, kind: TensorType) -> ZarrWriter:
        """The writer of the array, or of one more member of the group."""
        if self._fs.exists(f"{self._temporary}/{key}/{ROOT}" if key else f"{self._temporary}/{ROOT}"):
            return reopen_zarr(self._temporary_url, key, kind)
        return _create(self._zarr, self._temporary_url, key, kind, self._grids.get(key, ()))

    def prepare(self) -> None:
        """Zarr has stored each block when its write returned."""

    def suspend(self) -> None:
        """The objects stay under their temporary name."""

    def publish(self) -> None:
        """Moves every object, the root's metadata last; what is replaced is removed first. A second call goes on."""
        naming, root = f"{self._temporary}/{NAMING}", f"{self._temporary}/{ROOT}"
        if not self._fs.exists(naming):
            for name in (ROOT, ".zgroup", ".zarray"):  # first, so that what is left of it never looks whole
                if self._fs.exists(f"{self._path}/{name}"):
                    self._fs.rm_file(f"{self._path}/{name}")
            if self._fs.exists(self._path):
                self._fs.rm(self._path, recursive=True)
            self._fs.pipe_file(naming, b"")
        found = sorted(self._fs.find(self._temporary), key=lambda name: (name == root, name))
        for name in found:
            if name != naming:
                self._fs.mv(name, self._path + name[len(self._temporary) :])

    def abort(self) -> None:
        """Removes what is left under the temporary name."""
        if self._fs.exists(self._temporary):
            self._fs.rm(self._temporary, recursive=True)
