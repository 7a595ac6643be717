"""What is finished of a file that is being written, in a journal beside it: a run that ends early can be gone on with.

The journal of ``y.npy`` is ``.y.npy.journal``. Its first line says what plan on what sources writes which temporary
file; each further line is a part that was stored before the line was written. A line carries its own checksum: one
that was cut short, and all behind it, do not count. On this host, a process that writes holds the journal locked. A
store of objects has no locks and appends nothing: a journal there is written anew each time, and names its process.

Source: own.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from tileweave.backends.folders import HOST, alive
from tileweave.errors import StorageError
from tileweave.space import Box

SYNC_SECONDS = 0.5
"""Parts are recorded this often at most: what is finished in between and lost is computed again."""
SYNC_SHARE = 0.1
"""The most of a run's time that waiting for the disk may take."""
WHOLE = "whole"
"""The line after the last part."""
NAMING = ".naming"
"""The object in a temporary folder of a store that says: its objects are being given their own names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be the same where a run goes on with the work of another.

    Args:
        plan: digest of the plan.
        sources: name of each source -> what tells its content apart.
    """

    plan: str
    sources: Mapping[str, str]


Stage = Literal["filling", "naming", "named"]


class _Syncs(Protocol):
    def sync(self, boxes: list[Box]) -> None: ...


class _Log(Protocol):
    """Where the lines of a journal are stored."""

    def append(self, lines: bytes) -> None:
        """Lines are stored when this returns."""

    def close(self) -> None:
        """Lets go of it."""

    def remove(self) -> None:
        """Removes it, and lets go."""


class Journal:
    """The journal of one file: found by the `unfinished` of a place, or begun by its `begin`.

    Args:
        log: where its lines go.
        temporary: the name of the file that is being written.
        finished: key -> the parts that are stored.
        stage: how far an earlier run has come: it was ``filling`` the file, ``naming`` it, or it ``named`` it.
    """

    def __init__(self, log: _Log, temporary: str, finished: dict[str, set[Box]], stage: Stage = "filling") -> None:
        self.temporary, self.finished, self.stage = temporary, finished, stage
        self._log = log
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
            self._log.append(b"".join(lines))
        for key, boxes in parts.items():
            self.finished[key].update(boxes)
        now = time.monotonic()
        self._next = now + max(SYNC_SECONDS, (now - began) / SYNC_SHARE)

    def complete(self) -> None:
        """All parts are recorded: from now on, the file may have taken its name."""
        self.sync()
        self._log.append(_line(WHOLE))

    def close(self) -> None:
        """Lets go of the journal; it stays."""
        self._log.close()

    def remove(self) -> None:
        """The journal is of no more use."""
        self._log.remove()


# ---------------------------------------------------------------------------------------------------------------------
# on this host


@dataclass(frozen=True, slots=True)
class _FileLog:
    path: Path
    file: IO[bytes]

    def append(self, lines: bytes) -> None:
        self.file.write(lines)
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.file.close()


def journal_of(target: Path) -> Path:
    """Where the journal of a file lies."""
    return target.with_name(f".{target.name}.journal")


@dataclass(frozen=True, slots=True)
class OnHost:
    """The place of a file of this host.

    Args:
        target: the file, under its own name.
    """

    target: Path

    def unfinished(self, identity: Identity, where: str) -> Journal | None:
        """The journal that an unfinished run of the same plan on the same sources has left; None where there is none.

        Raises:
            StorageError: the run had another plan or other sources, or another process is at it.
        """
        path = journal_of(self.target)
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
        lines, good = _read(file.read())
        if not lines:  # it tells of nothing
            path.unlink(missing_ok=True)
            file.close()
            return None
        head, *parts = lines
        temporary = path.with_name(head["temporary"])
        named = parts[-1:] == [WHOLE] and _inode(self.target) == head["inode"]
        changed = _changed(head, identity)
        if _inode(temporary) != head["inode"] and (changed or not named):
            path.unlink(missing_ok=True)  # what it tells of has been removed, or is a file like any other now
            file.close()
            return None
        if changed:
            file.close()
            raise _of_another_run(where, str(path), changed)
        file.seek(good)
        file.truncate()
        stage: Stage = "filling" if temporary.exists() else "named"
        return Journal(_FileLog(path, file), temporary.name, _parts(parts), stage)

    def begin(self, temporary: str, identity: Identity, mark: str) -> Journal:
        """A new journal for a temporary file, which exists; `mark` is for names that go with the process."""
        path = journal_of(self.target)
        head = {
            "plan": identity.plan,
            "sources": dict(identity.sources),
            "temporary": temporary,
            "inode": _inode(path.with_name(temporary)),
        }
        made = path.with_name(f"{path.name}.{mark}")
        file = made.open("xb")
        log = _FileLog(path, file)
        try:
            _locked(file)
            log.append(_line(head))
            made.replace(path)
        except BaseException:
            file.close()
            made.unlink(missing_ok=True)
            raise
        to_disk(path.parent)
        return Journal(log, temporary, {})

    def discard(self, remove: Callable[[Path], None]) -> None:
        """Removes what an unfinished run has left beside a file that another run has written now.

        Args:
            remove: a function that removes a temporary file or folder.
        """
        path = journal_of(self.target)
        with suppress(OSError, IndexError), path.open("r+b") as file:
            if _locked(file):
                lines, _ = _read(file.read())
                remove(path.with_name(lines[0]["temporary"]))
                path.unlink(missing_ok=True)


def kept_by_journals(folder: Path) -> set[str]:
    """The names of the temporary files in a folder that a run can go on with."""
    found = set()
    for path in folder.glob(".*.journal"):
        with suppress(OSError, IndexError), path.open("rb") as file:
            lines, _ = _read(file.read())
            found.add(lines[0]["temporary"])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# behind a URL


_HELD: set[str] = set()
"""The journals in stores that this process writes."""


class _ObjectLog:
    """Lines in an object, which is written anew with each; the first names the process."""

    def __init__(self, fs: Any, path: str, head: Mapping[str, Any], parts: bytes) -> None:
        self._fs, self._path = fs, path
        self._content = _line({**head, "host": HOST, "process": os.getpid()}) + parts
        _HELD.add(path)
        try:
            self.append(b"")
        except BaseException:
            self.close()
            raise

    def append(self, lines: bytes) -> None:
        self._content += lines
        with _of_store(self._path):
            self._fs.pipe_file(self._path, self._content)

    def close(self) -> None:
        _HELD.discard(self._path)

    def remove(self) -> None:
        self.close()
        with _of_store(self._path):
            self._fs.rm_file(self._path)


@contextmanager
def _of_store(path: str) -> Iterator[None]:
    """What a store refuses, in words of its own, names the journal."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        problem = f"the journal {path!r} cannot be kept: {type(error).__name__}: {error}"
        raise StorageError("run(plan, resume)", problem, legal="a store that answers, or resume=False") from error


@dataclass(frozen=True, slots=True)
class InStore:
    """The place of a folder of objects behind a URL.

    Args:
        fs: the file system of the URL.
        target: the folder in it, under its own name.
        root: the object of a temporary folder that takes its own name last.
    """

    fs: Any
    target: str
    root: str

    @property
    def _journal(self) -> str:
        return self._beside(f".{self.target.rpartition('/')[2]}.journal")

    def _beside(self, name: str) -> str:
        folder, slash, _ = self.target.rpartition("/")
        return f"{folder}{slash}{name}"

    def unfinished(self, identity: Identity, where: str) -> Journal | None:
        """As `OnHost.unfinished`; of two hosts that go on with one run at a time, neither sees the other."""
        with _of_store(self._journal):
            return self._unfinished(self._journal, identity, where)

    def _unfinished(self, path: str, identity: Identity, where: str) -> Journal | None:
        self.fs.invalidate_cache()
        if not self.fs.exists(path):
            return None
        lines, _ = _read(self.fs.cat_file(path))
        if not lines:
            self.fs.rm_file(path)
            return None
        head, *parts = lines
        if _at_work(head, path):
            raise StorageError(where, "another process is writing it", legal="to wait until that has ended")
        temporary = self._beside(head["temporary"])
        filling, naming = self.fs.exists(f"{temporary}/{self.root}"), self.fs.exists(f"{temporary}/{NAMING}")
        changed = _changed(head, identity)
        if not filling and (changed or not naming):  # what it tells of has been removed, or has its name
            self._remove(head)
            return None
        if changed:
            raise _of_another_run(where, path, changed)
        log = _ObjectLog(self.fs, path, head, b"".join(map(_line, parts)))
        stage: Stage = "filling" if not naming else "naming" if filling else "named"
        return Journal(log, head["temporary"], _parts(parts), stage)

    def begin(self, temporary: str, identity: Identity, mark: str) -> Journal:
        """A new journal for a temporary folder, which exists."""
        head = {"plan": identity.plan, "sources": dict(identity.sources), "temporary": temporary}
        return Journal(_ObjectLog(self.fs, self._journal, head, b""), temporary, {})

    def discard(self, remove: object) -> None:
        """As `OnHost.discard`; objects are removed in one way."""
        with _of_store(self._journal):
            for head in _read(self.fs.cat_file(self._journal))[0][:1] if self.fs.exists(self._journal) else []:
                if not _at_work(head, self._journal):
                    self._remove(head)

    def _remove(self, head: Mapping[str, Any]) -> None:
        temporary = self._beside(head["temporary"])
        if self.fs.exists(temporary):
            self.fs.rm(temporary, recursive=True)
        self.fs.rm_file(self._journal)


def kept_in_store(fs: Any, journals: Sequence[str]) -> set[str]:
    """As `kept_by_journals`, of the journals in a folder of a store."""
    return {lines[0]["temporary"] for path in journals if (lines := _read(fs.cat_file(path))[0])}


def _at_work(head: Mapping[str, Any], path: str) -> bool:
    """Whether a process of this host still writes a journal of a store."""
    if head["host"] != HOST:
        return False
    return path in _HELD if head["process"] == os.getpid() else alive(head["process"])


# ---------------------------------------------------------------------------------------------------------------------
# lines, locks and disks


def _of_another_run(where: str, path: str, changed: list[str]) -> StorageError:
    return StorageError(
        where,
        f"an unfinished run left it, and {changed[0]}",
        inputs={"journal": path, "changed": "; ".join(changed)},
        legal="the same program, machines and sources; or a run without resume, which begins anew",
    )


def _parts(lines: list[Any]) -> dict[str, set[Box]]:
    finished: defaultdict[str, set[Box]] = defaultdict(set)
    for key, start, shape in (line for line in lines if line != WHOLE):
        finished[key].add(Box(tuple(start), tuple(shape)))
    return dict(finished)


def _line(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _read(content: bytes) -> tuple[list[Any], int]:
    """The lines up to the first that is not whole, and where that begins."""
    out, good = [], 0
    for line in content.splitlines(keepends=True):
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


def to_disk(path: Path) -> None:
    """What was written to a file, or the names in a folder, are on disk when this returns."""
    with suppress(PermissionError):  # not every system opens folders
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
