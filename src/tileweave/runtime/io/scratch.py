"""Blocks that wait for their readers in files, since the plan spills them.

Source: own.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tileweave.backends.folders import HOST
from tileweave.backends.host import empty
from tileweave.errors import StorageError
from tileweave.graph import Partition
from tileweave.lower.reads import Block, slices
from tileweave.planner import ReadPiece
from tileweave.runtime.io.chunks import Buffers, each, put
from tileweave.runtime.io.sinks import sweep
from tileweave.space import Box

Array = np.ndarray[Any, Any]
VARIABLE = "TILEWEAVE_SCRATCH"
"""The environment variable that names the folder for blocks; by default the one of temporary files."""
SLAB_BYTES = 1 << 22
"""About so many bytes of a file are mapped at once, since what is mapped counts as memory of the process."""


class Scratch:
    """Blocks in files of a folder of its own, which goes when it is closed, or with the next run on this host.

    Args:
        atoms: per task whose block is read in parts of some extents, these: they lie together in its file.
    """

    def __init__(self, atoms: Mapping[int, tuple[int, ...]] | None = None) -> None:
        parent = Path(os.environ.get(VARIABLE) or tempfile.gettempdir())
        self.folder = parent / f".tileweave.tmp-{HOST}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            sweep(parent)
            self.folder.mkdir()
        except OSError as error:
            raise _unwritable(parent, error) from error
        self.atoms = atoms or {}
        self.made: dict[int, dict[str, tuple[Path, np.dtype[Any], Partition, tuple[int, ...]]]] = {}

    def put(self, number: int, block: Block) -> None:
        """Writes the block of a task."""
        files = {}
        for at, (name, array) in enumerate((block if isinstance(block, dict) else {"": block}).items()):
            path, tiles = self.folder / f"{number}-{at}", _tiles(array.shape, self.atoms.get(number, ()))
            starts = (0, *accumulate(tile.size * array.itemsize for tile in tiles))
            try:
                _write(path, array, dict(zip(tiles, starts, strict=False)))
            except OSError as error:  # the disk is full
                raise _unwritable(self.folder.parent, error) from error
            files[name] = path, array.dtype, tiles, starts
        self.made[number] = files

    def read(self, piece: ReadPiece) -> Array:
        """The region of a block that a piece reads, as a new array."""
        files = self.made[piece.task]
        out = empty(piece.region.shape, (files[piece.output] if piece.output in files else files[""])[1])
        self.fill(piece, piece.region, out)
        return out

    def fill(self, piece: ReadPiece, region: Box, out: Array) -> None:
        """Reads a region of the block of a piece, in its tensor's coordinates, into an array."""
        files = self.made[piece.task]
        path, _, tiles, starts = files[piece.output] if piece.output in files else files[""]
        region = region.translate([-a for a in piece.block.start])
        if not out.size:
            return
        with path.open("rb") as file:
            for number, common in tiles.overlapping(region):
                tile, into = tiles.block(number), out[slices(common.translate([-a for a in region.start]))]
                at = starts[number]
                if common == tile and into.flags.c_contiguous:
                    file.seek(at)
                    file.readinto(into.reshape(-1).view(np.uint8).data)
                else:
                    self._read_part(file, at, into, common.translate([-a for a in tile.start]), tile.shape)

    @staticmethod
    def _read_part(file: IO[bytes], at: int, into: Array, part: Box, shape: tuple[int, ...]) -> None:
        """Fills an array with a part of a tile that begins at a byte of the file."""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            whole = np.ndarray(shape, into.dtype, mapped, at)
            lines = max(1, SLAB_BYTES * len(whole) // max(1, whole.nbytes)) if shape else 1
            found = whole[slices(part)]
            for first in range(0, len(found), lines) if shape else ():
                into[first : first + lines] = found[first : first + lines]
                if hasattr(mapped, "madvise"):
                    mapped.madvise(mmap.MADV_DONTNEED)
            if not shape:
                into[...] = whole
            del whole, found  # nothing may point into a file that is closed

    def drop(self, number: int) -> None:
        """Removes the block of a task that nobody reads any more."""
        for path, *_ in self.made.pop(number, {}).values():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes all."""
        shutil.rmtree(self.folder, ignore_errors=True)


MOST_TILES = 1024
"""A file is read and written in no more pieces than this."""


def _tiles(shape: tuple[int, ...], atom: tuple[int, ...]) -> Partition:
    """How a block is cut in its file: as it will be read, so that each read is one piece of the file."""
    steps = atom or shape
    if prod(-(-n // max(1, step)) for n, step in zip(shape, steps, strict=True)) > MOST_TILES:
        steps = shape
    return Partition(tuple((*range(0, n, max(1, step)), n) for n, step in zip(shape, steps, strict=True)))


def _write(path: Path, array: Array, places: Mapping[Box, int]) -> None:
    """Writes each tile of an array at its byte of a file; those that do not lie so go through a buffer per thread."""
    buffers = Buffers()

    def write(tile: Box) -> None:
        part = array[slices(tile)]
        with path.open("r+b", 0) as file:
            file.seek(places[tile])
            if part.flags.c_contiguous:
                put(file, part.reshape(-1).view(np.uint8))
                return
            with buffers.of(part.nbytes) as buffer:
                buffer.view(array.dtype).reshape(part.shape)[...] = part
                put(file, buffer)

    with path.open("wb"):
        pass
    if array.nbytes >= SHARED_BYTES:
        each(places, write)
    elif array.size:
        for tile in places:
            write(tile)


SHARED_BYTES = 1 << 20
"""From here on threads write a block together: a thread starts in 50 us, in which 100 KiB are written."""


def _unwritable(folder: Path, error: OSError) -> StorageError:
    problem = f"blocks cannot be spilled to {str(folder)!r}: {error.strerror or error}"
    return StorageError("run(plan)", problem, legal=f"a folder that can be written and has room, by {VARIABLE}=FOLDER")
