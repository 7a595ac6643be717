"""Blocks that wait for their readers in files, since the plan spills them.

Source: own.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.backends.host import empty
from tileweave.errors import StorageError
from tileweave.lower.reads import Block, slices
from tileweave.planner import ReadPiece
from tileweave.runtime.io.sinks import HOST, sweep

Array = np.ndarray[Any, Any]
VARIABLE = "TILEWEAVE_SCRATCH"
"""The environment variable that names the folder for blocks; by default the one of temporary files."""
SLAB_BYTES = 1 << 22
"""About so many bytes of a file are mapped at once, since what is mapped counts as memory of the process."""


class Scratch:
    """Blocks in files of a folder of its own, which goes when it is closed, or with the next run on this host."""

    def __init__(self) -> None:
        parent = Path(os.environ.get(VARIABLE) or tempfile.gettempdir())
        self.folder = parent / f".tileweave.tmp-{HOST}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            sweep(parent)
            self.folder.mkdir()
        except OSError as error:
            raise _unwritable(parent, error) from error
        self.made: dict[int, dict[str, tuple[Path, np.dtype[Any], tuple[int, ...]]]] = {}

    def put(self, number: int, block: Block) -> None:
        """Writes the block of a task."""
        files = {}
        for at, (name, array) in enumerate((block if isinstance(block, dict) else {"": block}).items()):
            path = self.folder / f"{number}-{at}"
            try:
                with path.open("wb") as file:
                    if array.size:
                        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            except OSError as error:  # the disk is full
                raise _unwritable(self.folder.parent, error) from error
            files[name] = path, array.dtype, array.shape
        self.made[number] = files

    def read(self, piece: ReadPiece) -> Array:
        """The region of a block that a piece reads, as a new array."""
        files = self.made[piece.task]
        path, dtype, shape = files[piece.output] if piece.output in files else files[""]
        region = piece.region.translate([-a for a in piece.block.start])
        out = empty(region.shape, dtype)
        if not out.size:
            return out
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            whole = np.frombuffer(mapped, dtype).reshape(shape)
            lines = max(1, SLAB_BYTES * len(whole) // max(1, whole.nbytes)) if shape else 1
            part = whole[slices(region)]
            for first in range(0, len(part), lines) if shape else ():
                out[first : first + lines] = part[first : first + lines]
                if hasattr(mapped, "madvise"):
                    mapped.madvise(mmap.MADV_DONTNEED)
            if not shape:
                out[...] = whole
            del whole, part  # nothing may point into a file that is closed
        return out

    def drop(self, number: int) -> None:
        """Removes the block of a task that nobody reads any more."""
        for path, _, _ in self.made.pop(number, {}).values():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Removes all."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> StorageError:
    problem = f"blocks cannot be spilled to {str(folder)!r}: {error.strerror or error}"
    return StorageError("run(plan)", problem, legal=f"a folder that can be written and has room, by {VARIABLE}=FOLDER")
