"""The files that a run writes: each under a temporary name beside its target, and all appear together, or none.

One may have a journal of what is finished, from which an equal run goes on. What a killed process has left is removed
by the next one that writes to its folder. One behind a URL is made on this host and goes there whole, at the end; a
zarr behind a URL is written in place, its metadata last.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast

import numpy as np

from tileweave.backends.folders import HOST, alive
from tileweave.errors import StorageError
from tileweave.graph import FileTarget, TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.io import assembled, npyfile, safefile, tables, zarrfile
from tileweave.runtime.io.files import check_targets, folder_of, where_it_lies
from tileweave.runtime.io.journal import (
    Identity,
    InStore,
    Journal,
    OnHost,
    Stage,
    kept_by_journals,
    kept_in_store,
)
from tileweave.runtime.io.mapped import MappedWriter, write_runs
from tileweave.space import Box

Array = np.ndarray[Any, Any]


class SinkWriter(Protocol):
    """A tensor that is being written to a file; boxes may come in any order and from several threads."""

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""


class _File(Protocol):
    def add(self, key: str, kind: TensorType) -> SinkWriter: ...

    def prepare(self) -> None: ...

    def publish(self) -> None: ...

    def suspend(self) -> None: ...

    def abort(self) -> None: ...


def open_sinks(targets: Sequence[tuple[FileTarget, TensorType]], identity: Identity | None = None) -> Sinks:
    """Checked targets, opened for writing under temporary names.

    Args:
        targets: what goes where.
        identity: of a run that may be gone on with where it does not end well.

    Raises:
        StorageError: as `check_targets`; where the disk has no room; where another plan's unfinished run left a file.
    """
    for folder in {folder_of(one) for one, _ in targets}:
        sweep(folder)
    for url in {one.path.rpartition("/")[0] for one, _ in targets if "://" in one.path and one.format == "zarr"}:
        sweep_store(url)
    return Sinks(targets, identity)


@dataclass(slots=True)
class _Opened:
    """A file of a run: its place and its temporary name there; what is finished of it, where that is recorded."""

    file: _File
    place: OnHost | InStore
    temporary: str
    journal: Journal | None
    stage: Stage = "filling"


class Sinks:
    """The files of one run. They appear together at `commit`; after `abort` nothing is left of them but what a journal
    tells of.

    Args:
        targets: checked by `check_targets`; several may be members of one file.
        identity: where given, files get journals, and those of an equal run that did not end are gone on with.
    """

    def __init__(self, targets: Sequence[tuple[FileTarget, TensorType]], identity: Identity | None = None) -> None:
        self._identity, self._mark = identity, f"tmp-{HOST}-{os.getpid()}-{secrets.token_hex(4)}"
        self._files: dict[str, _Opened] = {}
        self._names = {where_it_lies(one): one.path for one, _ in targets}
        self._grids: defaultdict[str, dict[str, zarrfile.Grid]] = defaultdict(dict)
        for one, _ in targets:
            self._grids[where_it_lies(one)][one.key] = one.grid
        self.writers: list[SinkWriter] = []
        self._journals: dict[FileTarget, Journal | None] = {}
        self._targets = []
        try:
            opened = [(self._open(one), kind) for one, kind in targets]
            self._forget_what_has_ended([one for one, _ in opened])
            check_targets(opened)
            for one, kind in targets:
                self.writers.append(self._add(one, kind))
            for one, _ in targets:
                self._begin(one)
            for (one, _), writer in zip(targets, self.writers, strict=True):
                journal = self._journals[one] = self._files[where_it_lies(one)].journal
                if journal is not None:
                    journal.watch(one.key, cast("Any", writer))
            self._targets = [(one, kind) for one, kind in targets if not self._completed(one)]
        except BaseException:
            self.abort()
            raise

    def _open(self, one: FileTarget) -> FileTarget:
        """Finds what an earlier run has left of a file; the target, to be replaced where it is that run's own."""
        lies = where_it_lies(one)
        if self._identity is not None and lies not in self._files:
            place = _place(one, lies)
            if _is_sent(place, lies):
                sweep(place.target.parent)
            journal = place.unfinished(self._identity, f"sink({one.path!r})")
            if journal is not None:
                if journal.stage == "named" and isinstance(place, OnHost):
                    assembled.remove_members(place.target.with_name(journal.temporary))
                file = _file(one, lies, place, journal.temporary, self._grids[lies], journal.stage)
                stage: Stage = "naming" if journal.stage == "named" and _is_sent(place, lies) else journal.stage
                self._files[lies] = _Opened(file, place, journal.temporary, journal, stage)
        return replace(one, overwrite=True) if self._completed(one) else one

    def _forget_what_has_ended(self, targets: Sequence[FileTarget]) -> None:
        """Removes the journals of a run whose files have all appeared, and that was stopped while it removed them."""
        if all(opened.stage == "named" for opened in self._files.values()):
            others = [Path(lies) for one in targets if (lies := where_it_lies(one)) not in self._files]
            refused = any(not one.overwrite for one in targets if where_it_lies(one) not in self._files)
            if refused and all(path.exists() for path in others):
                for opened in self._files.values():
                    cast("Journal", opened.journal).remove()

    def _completed(self, one: FileTarget) -> bool:
        """Whether an earlier run has completed a file, so that what bears its name may be that one."""
        opened = self._files.get(where_it_lies(one))
        return opened is not None and opened.stage != "filling"

    def _add(self, one: FileTarget, kind: TensorType) -> SinkWriter:
        lies = where_it_lies(one)
        try:
            if lies not in self._files:
                place = made = _place(one, lies)
                if self._identity is None and _is_sent(place, lies):
                    made = OnHost(assembled.passing(lies, self._mark))  # for this run alone
                temporary = f".{Path(lies).name}.{self._mark}"
                file = _file(one, lies, made, temporary, self._grids[lies])
                self._files[lies] = _Opened(file, place, temporary, None)
            return self._files[lies].file.add(one.key, kind)
        except StorageError:
            raise
        except Exception as error:  # the disk is full, or the store refuses, each in its own words
            raise StorageError(f"sink({one.path!r})", unwritable(lies, error), inputs={"tensor": kind}) from error

    def _begin(self, one: FileTarget) -> None:
        opened = self._files[where_it_lies(one)]
        if self._identity is not None and opened.journal is None:
            opened.journal = opened.place.begin(opened.temporary, self._identity, self._mark)

    def finished(self, one: FileTarget) -> set[Box]:
        """The parts of a sink that are on disk."""
        journal = self._files[where_it_lies(one)].journal
        return journal.finished[one.key] if journal is not None else set()

    def record(self, one: FileTarget, box: Box) -> None:
        """A part of a sink has been written."""
        journal = self._journals[one]
        if journal is not None:
            journal.record(one.key, box)

    def commit(self) -> None:
        """Every file appears, whole. Where one cannot be completed, none appears.

        Raises:
            StorageError: a file cannot be completed, or another one has appeared in its place meanwhile.
        """
        published: dict[str, _Opened] = {}
        try:
            for path, opened in self._files.items():
                with refused(self._names[path], "completing it"):
                    if opened.journal is not None:
                        opened.journal.complete()
                    opened.file.prepare()
            check_targets(self._targets)
            for path in list(self._files):
                with refused(self._names[path], "giving it its name"):
                    self._files[path].file.publish()
                published[path] = self._files.pop(path)
            for path, opened in published.items():
                with refused(self._names[path], "removing what lay beside it"):
                    if opened.journal is not None:
                        opened.journal.remove()
                    else:
                        opened.place.discard(_remove_all)
                        if _is_sent(opened.place, path):
                            with suppress(OSError):
                                opened.place.target.parent.rmdir()
                    opened.file.abort()
        finally:
            for opened in published.values():
                if opened.journal is not None:
                    opened.journal.close()
            self.abort()

    def abort(self) -> None:
        """Removes every file that has not appeared, or leaves it with its journal where some of it is finished."""
        while self._files:
            _, opened = self._files.popitem()
            with suppress(Exception):  # the next file's remains must go too
                if opened.journal is None:
                    opened.file.abort()
                else:
                    _leave(opened.file, opened.journal)


def _leave(file: _File, journal: Journal) -> None:
    try:
        journal.sync()
    finally:
        if any(journal.finished.values()):
            file.suspend()
            journal.close()
        else:
            file.abort()
            journal.remove()


def unwritable(path: str, error: Exception) -> str:
    """What is wrong where a file could not be made or filled."""
    folder = Path(path).parent
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EPERM, errno.EACCES, errno.EROFS):
        if folder.is_dir() and not Path(path).exists():  # as of a file system that the kernel fills
            return f"the folder {str(folder)!r} takes no new file: {error.strerror}"
    return f"it cannot be written: {(isinstance(error, OSError) and error.strerror) or error}"


@contextmanager
def refused(path: str, doing: str) -> Iterator[None]:
    """What a file system refuses meanwhile names the sink, and what was done."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"sink({path!r})", f"{doing} failed: {error.strerror or error}") from error


class _Completed:
    """A file that an earlier run has completed, before it could end.

    Args:
        naming: gives it its name; None where it has it.
    """

    def __init__(self, naming: _File | None = None) -> None:
        self._naming = naming

    def add(self, key: str, kind: TensorType) -> SinkWriter:
        return self

    def write(self, box: Box, block: Array) -> None:
        raise StorageError("sink(tensor, path)", "it is written already")

    def sync(self, boxes: Sequence[Box]) -> None:
        return

    def prepare(self) -> None:
        return

    suspend = prepare

    def publish(self) -> None:
        if self._naming is not None:
            self._naming.publish()

    def abort(self) -> None:
        if self._naming is not None:
            self._naming.abort()


def _place(one: FileTarget, lies: str) -> OnHost | InStore:
    """Where a file is made that can be gone on with, and where its journal is."""
    if "://" not in lies:
        return OnHost(Path(lies))
    if one.format == "zarr":
        return InStore(*zarrfile.remote(lies, f"sink({lies!r})"), zarrfile.ROOT)
    return OnHost(assembled.stand_in(lies))


def _is_sent(place: OnHost | InStore, lies: str) -> TypeGuard[OnHost]:
    """Whether a file is made on this host and goes to a URL."""
    return "://" in lies and isinstance(place, OnHost)


def _file(
    one: FileTarget,
    lies: str,
    place: OnHost | InStore,
    temporary: str,
    grids: Mapping[str, zarrfile.Grid],
    stage: Stage = "filling",
) -> _File:
    """What writes a file under its temporary name, as far as an earlier run has left that to do."""
    if isinstance(place, InStore):
        zarr = zarrfile.RemoteZarr(lies, f"{lies.rpartition('/')[0]}/{temporary}", grids)
        return zarr if stage == "filling" else _Completed(zarr)

    def make() -> _File:
        path = place.target
        return _Completed() if stage == "named" else _local_file(one, path, path.with_name(temporary), grids)

    return (
        assembled.SentFile(*zarrfile.remote(lies, f"sink({lies!r})"), place.target, make) if "://" in lies else make()
    )


def _local_file(one: FileTarget, path: Path, temporary: Path, grids: Mapping[str, zarrfile.Grid]) -> _File:
    match one.format:
        case "npy":
            return npyfile.InPlaceFile(path, temporary, lambda at, _, kind: npyfile.npy_writer(at, kind))
        case "npz":
            return assembled.AssembledFile(path, temporary, npyfile.write_npz)
        case "hdf5":
            return npyfile.InPlaceFile(path, temporary, tables.add_dataset)
        case "parquet":
            return assembled.AssembledFile(path, temporary, tables.write_parquet)
        case "arrow":
            return assembled.AssembledFile(path, temporary, tables.write_arrow)
        case "safetensors":
            return assembled.AssembledFile(path, temporary, safefile.write_safe)
    return zarrfile.ZarrDirectory(path, temporary, grids)


_MARK = re.compile(r"\..+\.tmp-([A-Za-z0-9_]+)-(\d+)-[0-9a-f]{8}(-old|-\d+)?$")


def sweep(folder: Path) -> int:
    """Removes temporary files of runs of this host whose process is gone: it was killed, and could not do so itself.

    What a killed run had set aside to replace it comes back, where nothing has taken its place.

    Returns:
        How many there were.
    """
    count = 0
    with suppress(OSError):
        kept = kept_by_journals(folder)
        for path in folder.iterdir():
            found = _MARK.match(path.name)
            if found is None or found[1] != HOST or alive(int(found[2])):
                continue
            if path.name in kept or ((found[3] or "-old") != "-old" and path.name.removesuffix(found[3]) in kept):
                continue  # a journal tells of it, or of what it is a member of
            count += 1
            whole = path.with_name(path.name[1 : path.name.rindex(".tmp-")])
            if found[3] == "-old" and not whole.exists():
                path.rename(whole)
            else:
                _remove(path)
    return count


def sweep_store(url: str) -> None:
    """As `sweep`, for a folder behind a URL."""
    with suppress(Exception):  # the sink that goes there says what is wrong
        fs, folder = zarrfile.remote(url, f"sink({url!r})")
        fs.invalidate_cache()
        paths = {str(path).rstrip("/").rpartition("/")[2]: path for path in fs.ls(folder, detail=False)}
        kept = kept_in_store(fs, [path for name, path in paths.items() if name.endswith(".journal")])
        for name, path in paths.items():
            found = _MARK.match(name)
            if found is not None and found[1] == HOST and not alive(int(found[2])) and name not in kept:
                fs.rm(path, recursive=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_all(path: Path) -> None:
    """With what it would have been put together from."""
    _remove(path)
    assembled.remove_members(path)


@dataclass(frozen=True, slots=True)
class Handle:
    """A file that is being written, as another process finds it until the run commits.

    Args:
        format: ``raw`` (row-major elements from an offset on) or ``zarr``.
        path: of the temporary file.
        key: the member of a zarr group.
        type: of the tensor.
        offset_bytes: where its elements begin.
        sink: its path as the user wrote it.
        atom: the extents that one writer stores at once; empty where any box will do.
        system: `running_system` of the process that commits it.
    """

    format: str
    path: str
    key: str
    type: TensorType
    offset_bytes: int = 0
    sink: str = ""
    atom: tuple[int, ...] = ()
    system: str = ""


@cache
def running_system() -> str:
    """What tells the running system apart, containers on it not: its processes see at once what each has written to a
    file. Empty where it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def handle_of(writer: SinkWriter) -> Handle | None:
    """How another process writes what a writer writes; None where one process alone may write."""
    if isinstance(writer, MappedWriter):
        if writer.path.parent.name.startswith(assembled.SENT):  # on its way to a URL: this host alone has it
            return None
        return Handle("raw", str(writer.path), "", writer.type, writer.offset_bytes, system=running_system())
    if isinstance(writer, zarrfile.ZarrWriter):
        return Handle("zarr", writer.store, writer.key, writer.type, atom=writer.chunks)
    return None


class Reopened:
    """A file that another process has created and commits, for stores of this process."""

    def __init__(self, handle: Handle) -> None:
        self.atom = handle.atom
        self._handle = handle
        # on one system, what commits the file brings to the disk what any process has written
        self._elsewhere = not handle.system or handle.system != running_system()

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box; the process that commits the file sees them when this returns."""
        handle = self._handle
        if box.empty:
            return
        kind = handle.type
        with refused(handle.sink, f"writing {box}"):
            if handle.format == "zarr":
                zarrfile.reopen_zarr(handle.path, handle.key, kind).write(box, block)
                return
            with Path(handle.path).open("rb+", buffering=0) as file:
                if not write_runs(file, kind, handle.offset_bytes, box, block):
                    memory = np.memmap(file, np.uint8, "r+", handle.offset_bytes, (kind.size_bytes,))
                    np.ndarray(kind.shape, kind.dtype, memory)[slices(box)] = block
                    memory.flush() if self._elsewhere else None
                elif self._elsewhere:
                    os.fsync(file.fileno())

    def take(self, block: Array) -> None:
        """Stores all values at once."""
        self.write(self._handle.type.box, block)

    def finished(self, box: Box) -> None:
        """The process that commits the file hears of it when the task is done."""
