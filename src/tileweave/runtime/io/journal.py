"""What is finished of a file that is being written, in a journal beside it: a run that ends early can be gone on with.

The journal of ``y.npy`` is ``.y.npy.journal``. Its first line says what plan on what sources writes which temporary
file; each further line is a part that was on disk before the line was written. A line carries its own checksum: one
that was cut short, and all behind it, do not count. A process that writes holds the journal locked.

Source: own.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from tileweave.errors import StorageError
from tileweave.space import Box

SYNC_SECONDS = 0.5
"""Parts are recorded this often at most: what is finished in between and lost is computed again."""
SYNC_SHARE = 0.1
"""The most of a run's time that waiting for the disk may take."""
WHOLE = "whole"
"""The line after the last part."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be the same where a run goes on with the work of another.

    Args:
        plan: digest of the plan.
        sources: name of each source -> what tells its content apart.
    """

    plan: str
    sources: Mapping[str, str]


class _Syncs(Protocol):
    def sync(self, boxes: list[Box]) -> None: ...


class Journal:
    """The journal of one file: found or begun by `open_journal`.

    Args:
        path: of the journal.
        temporary: the file that is being written.
        file: the journal, open and locked.
        finished: key -> the parts that are on disk.
    """

    def __init__(self, path: Path, temporary: Path, file: IO[bytes], finished: dict[str, set[Box]]) -> None:
        self.path, self.temporary, self.finished = path, temporary, finished
        self._file = file
        self._pending: dict[str, list[Box]] = {}
        self._writers: dict[str, _Syncs] = {}
        self._turn, self._syncing = threading.Lock(), threading.Lock()
        self._next = 0.0

    def watch(self, key: str, writer: _Syncs) -> None:
        """Names the writer of a key: it is asked to bring parts to the disk before they are recorded."""
        self._writers[key] = writer
        self.finished.setdefault(key, set())

    def record(self, key: str, box: Box) -> None:
        """A part has been written; any thread may say so."""
        with self._turn:
            self._pending.setdefault(key, []).append(box)
        if time.monotonic() >= self._next and self._syncing.acquire(blocking=False):
            try:
                self._sync()
            finally:
                self._syncing.release()

    def sync(self) -> None:
        """Every part that has been written is on disk and recorded."""
        with self._syncing:
            self._sync()

    def _sync(self) -> None:
        began = time.monotonic()
        with self._turn:
            parts, self._pending = self._pending, {}
        for key, boxes in parts.items():
            self._writers[key].sync(boxes)
        lines = [_line([key, box.start, box.shape]) for key, boxes in parts.items() for box in boxes]
        if lines:
            self._file.write(b"".join(lines))
            _to_disk(self._file)
        for key, boxes in parts.items():
            self.finished[key].update(boxes)
        now = time.monotonic()
        self._next = now + max(SYNC_SECONDS, (now - began) / SYNC_SHARE)

    def complete(self) -> None:
        """All parts are recorded: from now on, the file may have taken its name."""
        self.sync()
        self._file.write(_line(WHOLE))
        _to_disk(self._file)

    @property
    def published(self) -> bool:
        """Whether the file has its name already."""
        return not self.temporary.exists()

    def close(self) -> None:
        """Lets go of the journal; it stays."""
        self._file.close()

    def remove(self) -> None:
        """The journal is of no more use."""
        self.path.unlink(missing_ok=True)
        self._file.close()


def journal_of(target: Path) -> Path:
    """Where the journal of a file lies."""
    return target.with_name(f".{target.name}.journal")


def open_journal(target: Path, identity: Identity, where: str) -> Journal | None:
    """The journal that an unfinished run of the same plan on the same sources has left; None where there is none.

    Raises:
        StorageError: the run had another plan or other sources, or another process is at it.
    """
    path = journal_of(target)
    try:
        file = path.open("r+b")
    except OSError:
        return None
    if not _locked(file):
        file.close()
        raise StorageError(where, "another process is writing it", legal="to wait until that has ended")
    if os.fstat(file.fileno()).st_ino != _inode(path):  # its run has just ended
        file.close()
        return None
    lines, good = _read(file)
    if not lines:  # it tells of nothing
        path.unlink(missing_ok=True)
        file.close()
        return None
    head, *parts = lines
    temporary = path.with_name(head["temporary"])
    published = parts[-1:] == [WHOLE] and _inode(target) == head["inode"]
    changed = _changed(head, identity)
    if _inode(temporary) != head["inode"] and (changed or not published):
        path.unlink(missing_ok=True)  # what it tells of has been removed, or is a file like any other now
        file.close()
        return None
    if changed:
        file.close()
        raise StorageError(
            where,
            f"an unfinished run left it, and {changed[0]}",
            inputs={"journal": str(path), "changed": "; ".join(changed)},
            legal="the same program, machines and sources; or a run without resume, which begins anew",
        )
    file.seek(good)
    file.truncate()
    finished: defaultdict[str, set[Box]] = defaultdict(set)
    for key, start, shape in (part for part in parts if part != WHOLE):
        finished[key].add(Box(tuple(start), tuple(shape)))
    return Journal(path, temporary, file, dict(finished))


def begin_journal(target: Path, temporary: Path, identity: Identity, mark: str) -> Journal:
    """A new journal for a temporary file, which exists; `mark` is for names that are swept when the process is gone."""
    path = journal_of(target)
    head = {
        "plan": identity.plan,
        "sources": dict(identity.sources),
        "temporary": temporary.name,
        "inode": _inode(temporary),
    }
    made = path.with_name(f"{path.name}.{mark}")
    file = made.open("xb")
    try:
        _locked(file)
        file.write(_line(head))
        _to_disk(file)
        made.replace(path)
    except BaseException:
        file.close()
        made.unlink(missing_ok=True)
        raise
    to_disk(path.parent)
    return Journal(path, temporary, file, {})


def discard(target: Path, remove: Callable[[Path], None]) -> None:
    """Removes what an unfinished run has left beside a file that another run has written now.

    Args:
        target: the file.
        remove: a function that removes a temporary file or folder.
    """
    path = journal_of(target)
    with suppress(OSError, IndexError), path.open("r+b") as file:
        if _locked(file):
            lines, _ = _read(file)
            remove(path.with_name(lines[0]["temporary"]))
            path.unlink(missing_ok=True)


def kept_by_journals(folder: Path) -> set[str]:
    """The names of the temporary files in a folder that a run can go on with."""
    found = set()
    for path in folder.glob(".*.journal"):
        with suppress(OSError, IndexError), path.open("rb") as file:
            lines, _ = _read(file)
            found.add(lines[0]["temporary"])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# lines, locks and disks


def _line(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _read(file: IO[bytes]) -> tuple[list[Any], int]:
    """The lines up to the first that is not whole, and where that begins."""
    out, good = [], 0
    for line in file.read().splitlines(keepends=True):
        text = line[9:-1]
        if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(text):
            break
        out.append(json.loads(text))
        good += len(line)
    return out, good


def _changed(head: Mapping[str, Any], identity: Identity) -> list[str]:
    before = head["sources"]
    out = [] if head["plan"] == identity.plan else ["the plan is another one"]
    names = dict.fromkeys([*before, *identity.sources])
    return out + [f"source {name!r} has changed" for name in names if before.get(name) != identity.sources.get(name)]


def _locked(file: IO[bytes]) -> bool:
    """Locks a file for this process, until it is closed; false where another process has done so."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: the user sees to it
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def to_disk(path: Path) -> None:
    """What was written to a file, or the names in a folder, are on disk when this returns."""
    with suppress(PermissionError):  # not every system opens folders
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
