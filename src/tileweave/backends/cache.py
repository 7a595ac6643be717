"""Files that are kept between processes: objects of compiled code, the runtime of CUDA text, and what tuning found.

A cache file says its own hash first, so a broken or foreign file is noticed, ignored and written anew. Writers use a
temporary file and ``os.replace``; readers see an old file, a new file, or none. The folder is bounded: what was not
read for longest goes first. Processes may share it; a file that one of them removes is made again by the next that
wants it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

from tileweave.errors import BackendError

SIZE_VARIABLE = "TILEWEAVE_CACHE_MIB"
DEFAULT_MIB = 512
"""Some 50,000 kernels."""
_MAGIC = b"tileweave object 1\n"
_WRITES_PER_TRIM = 64
"""Looking through the folder takes about as long as one compilation."""
_SHARE_KEPT = 0.75
"""A folder that is too large is cut to this share, so that it is not looked through at once again."""
_ABANDONED_SECONDS = 3600.0
"""A temporary file of this age belongs to a process that was killed."""
_FRESH_SECONDS = 3600.0
"""The time of a file's last reading is kept to this: to write it at each reading would cost more than the reading."""
_writes = 0


def cache_directory() -> Path:
    """Where files are kept: ``TILEWEAVE_CACHE``, else ``~/.cache/tileweave``; asked at every compilation.

    For ``TILEWEAVE_CACHE=off``, and a user without a home, it is a place that cannot exist, so that nothing is kept.
    """
    named = os.environ.get("TILEWEAVE_CACHE")
    if named and named != "off":
        return Path(named)
    try:
        home = Path(os.devnull) if named else Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    return home / ".cache" / "tileweave"


def limit_bytes() -> int:
    """The most that the folder may hold: ``TILEWEAVE_CACHE_MIB``, else 512 MiB; 0 keeps nothing for long.

    Raises:
        BackendError: the variable is set, and is no number.
    """
    wanted = os.environ.get(SIZE_VARIABLE, "").strip() or str(DEFAULT_MIB)
    if not wanted.isdecimal():
        problem = f"{SIZE_VARIABLE}={wanted!r} is no size"
        raise BackendError("compile(program)", problem, legal="MiB as a whole number", facts={"source": "", "log": ""})
    return int(wanted) << 20


def read(file: Path) -> bytes | None:
    """What a cache file holds; None when there is none or it is not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC)
    digest, data = content[head : head + 32], content[head + 32 :]
    if content[:head] != _MAGIC or digest != hashlib.sha256(file.name.encode() + data).digest():
        return None
    touch(file)
    return data


def touch(file: Path) -> None:
    """Note that a file was read."""
    with contextlib.suppress(OSError):
        if time.time() - file.stat().st_mtime > _FRESH_SECONDS:
            os.utime(file)


def write(file: Path, data: bytes) -> None:
    """Keep an object; a cache that cannot be written is no failure."""
    with contextlib.suppress(OSError):
        write_whole(file, _MAGIC + hashlib.sha256(file.name.encode() + data).digest() + data)


def write_whole(file: Path, content: bytes) -> None:
    """Put a file in its place: whole, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    global _writes
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if _writes % _WRITES_PER_TRIM == 0:
        trim()
    _writes += 1


def trim() -> None:
    """Remove what was not read for longest, until the folder is within its limit; what cannot be removed stays."""
    most, found, now = limit_bytes(), [], time.time()
    for kind in ("cpu/??/*.o", "cuda/*.so", "tuned/??/*.json", "*/??/.*.part"):
        for file in cache_directory().glob(kind):
            with contextlib.suppress(OSError):  # another process may have removed it
                about = file.stat()
                if file.suffix == ".part" and now - about.st_mtime > _ABANDONED_SECONDS:
                    file.unlink()
                elif file.suffix != ".part":
                    found.append((about.st_mtime, about.st_size, file))
    total = sum(size for _, size, _ in found)
    if total <= most:
        return
    for _, size, file in sorted(found):
        with contextlib.suppress(OSError):
            file.unlink()
        total -= size
        if total <= most * _SHARE_KEPT:
            return
