"""Folders for what compilers and their programs write, gone with their process.

A process that is killed cannot remove its own: the next one on this host that needs a folder does.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


def _host() -> str:
    """The name of this host, and where it has them the number of this process's namespace of processes: containers may
    share a name and a folder, and the same number is another process in each."""
    name = socket.gethostname()
    with suppress(OSError):
        name += f"_{Path('/proc/self/ns/pid').stat().st_ino:x}"
    return re.sub(r"[^A-Za-z0-9]", "_", name)


HOST = _host()
"""This host, as it stands in temporary names; whether a process of such a name runs can be asked."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder whose name tells whose it is; a context manager gives its path and removes it.

    Example:
        >>> with scratch() as folder:
        ...     Path(folder).is_dir()
        True
    """
    _sweep(tempfile.gettempdir())
    return tempfile.TemporaryDirectory(prefix=f"tileweave-{HOST}-{os.getpid()}-")


@cache
def _sweep(parent: str) -> None:
    """Removes the folders of processes that are gone; once per process: to list a folder takes time."""
    for folder in Path(parent).glob(f"tileweave-{HOST}-*-*"):
        owner = folder.name.removeprefix(f"tileweave-{HOST}-").partition("-")[0]
        if owner.isdecimal() and not alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def alive(process: int) -> bool:
    """Whether a process of this host runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    with suppress(OSError, IndexError):  # one that has ended, but was not waited for, is in the list of processes too
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True
