"""Files that the command writes: the suffix says what is in them, and they appear whole or not at all.

One rule for every command: a picture goes to .svg, a program of the tiled IR to .json, an array to .npy, and a file
that exists is replaced only with --overwrite. It is held before work starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import StorageError

_KINDS = {".svg": "an SVG", ".json": "a program as JSON", ".npy": "an array", ".html": "a page", ".toml": "machines"}


def check_new(option: str, path: str, suffix: str, overwrite: bool) -> None:
    """Refuses a file that could not, or may not, be written.

    Args:
        option: what asked for it, for the message.
        path: of the file.
        suffix: what its name must end in: one of `_KINDS`.
        overwrite: whether it may exist.

    Raises:
        StorageError: another suffix, no such directory, a directory in its place, or a file that may not be replaced.
    """
    target = Path(path)
    if target.suffix.lower() != suffix:
        problem = f"{path!r} is no name for {_KINDS[suffix]}"
        raise StorageError(option, problem, legal=f"a path that ends in {suffix}")
    if not target.parent.is_dir():
        problem = f"{path}: there is no directory {str(target.parent)!r}"
        raise StorageError(option, problem, legal="a directory that exists")
    if target.is_dir():
        raise StorageError(option, f"{path}: the file cannot be written: it is a directory", legal="another name")
    if target.exists() and not overwrite:
        raise StorageError(option, f"{path}: the file exists already", legal="another name, or --overwrite")


def write_whole(path: str, content: NDArray[Any] | str) -> None:
    """The file appears whole, or not at all; an array as .npy, a text as UTF-8.

    Raises:
        StorageError: the disk refuses.
    """
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                np.save(file, content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        from tileweave.runtime.io.sinks import unwritable  # most commands need nothing of it

        raise StorageError(path, unwritable(path, error), legal="a folder that takes files, and has room") from None


def draw(path: str, picture: str) -> None:
    """Write a picture, and say so on standard error."""
    write_whole(path, picture)
    print(f"drawn: {path}", file=sys.stderr)


def document_at(path: str, what: str) -> bytes:
    """What a file, or the standard input for -, holds.

    Raises:
        StorageError: the file cannot be opened.
    """
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise StorageError(path, f"the file cannot be opened: {error.strerror}", legal=what) from None


def count(number: int, word: str) -> str:
    """A number of things, in words."""
    return f"{number} {word}{'' if number == 1 else 's'}"
