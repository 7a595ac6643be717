"""Sources and sinks in files: .npy, .npz, zarr, HDF5, Parquet and Arrow columns, safetensors; local, or behind a URL.

Whatever is wrong with a file is said before work starts. A sink is written under a temporary name beside its target
and appears whole when the run commits, or not at all.

zarr, fsspec, h5py and pyarrow are optional packages (``tileweave[io]``) and are loaded on first use. A file behind a
URL is copied to an unnamed file of this host once, unless its format reads by ranges (zarr, HDF5, Parquet); one that is
written goes there whole, at the end. A zarr behind a URL is written in place, its metadata last.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph import FileData, FileTarget, Sink, TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.io import assembled, npyfile, safefile, tables, zarrfile
from tileweave.runtime.io.journal import Identity, Journal, begin_journal, discard, kept_by_journals, open_journal
from tileweave.space import Box

Array = np.ndarray[Any, Any]
FORMATS = {
    "npy": "npy",
    "npz": "npz",
    "zarr": "zarr",
    "h5": "hdf5",
    "hdf5": "hdf5",
    "parquet": "parquet",
    "arrow": "arrow",
    "safetensors": "safetensors",
}
"""Suffix -> format."""
_LEGAL = "a path that ends in .npy, .npz or .zarr, .h5, .parquet, .arrow or .safetensors"


class Reader(Protocol):
    """A tensor in a file.

    `type` is what the file holds now; `everywhere`: whether any process that sees the file reads it as cheaply.
    """

    type: TensorType
    everywhere: bool

    def read(self, box: Box) -> Array:
        """The values of a box; not to be written."""

    def close(self) -> None:
        """Lets go of the file."""


class SinkWriter(Protocol):
    """A tensor that is being written to a file; boxes may come in any order and from several threads."""

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box."""


class _File(Protocol):
    def add(self, key: str, kind: TensorType) -> SinkWriter: ...

    def prepare(self) -> None: ...

    def publish(self) -> None: ...

    def abort(self) -> None: ...


class _InPlace(_File, Protocol):
    def suspend(self) -> None: ...


def _split(path: str, where: str) -> tuple[str, str]:
    """(path, format); the path of a file URL is local again."""
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    suffix = path.rstrip("/").rpartition(".")[2].lower()
    suffix = "safetensors" if path.endswith(safefile.INDEX) else suffix
    if suffix not in FORMATS or not path.rstrip("/").rpartition("/")[2].rpartition(".")[0]:
        raise StorageError(where, "the format is not known by its suffix", legal=_LEGAL)
    return path, FORMATS[suffix]


# ---------------------------------------------------------------------------------------------------------------------
# sources


def describe(path: str | os.PathLike[str], key: str = "") -> tuple[TensorType, FileData]:
    """Shape and element type of a tensor in a file, without reading its elements.

    Args:
        path: path or URL of a file, or of the index of a checkpoint of several safetensors
            (``*.safetensors.index.json``); its suffix says the format.
        key: the member of a container, the column of a table; one of a single member needs none.

    Raises:
        StorageError: no such file, a format that is not known, a broken or truncated file, a member that does
            not exist or is not named, elements that are not numbers.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/a.npz", x=np.zeros((2, 3), np.float32))
        ...     kind, data = describe(folder + "/a.npz")
        >>> str(kind), data.key
        ('float32[2, 3]', 'x')
    """
    where = f"source({os.fspath(path)!r})"
    path, format = _split(os.fspath(path), where)
    if format == "npy":
        if key:
            raise StorageError(where, f"a .npy has no member {key!r}", legal="no key")
        return npyfile.describe_npy(path, where), FileData(path, format)
    key = _member(path, format, key, where)
    if format == "safetensors":
        path = safefile.file_of(path, key, where)
    if format == "npz":
        return npyfile.describe_npz(path, key, where), FileData(path, format, key)
    reader = _open(path, format, key, where)
    reader.close()
    return reader.type, FileData(path, format, key, getattr(reader, "chunks", ()))


def _open(path: str, format: str, key: str, where: str) -> Reader:
    """A reader of a member that exists."""
    if format == "npy":
        return npyfile.open_npy(path, where)
    if format == "npz":
        return npyfile.open_npz(path, key, where)
    if format == "hdf5":
        return tables.open_dataset(path, key, where)
    if format in ("parquet", "arrow"):
        return tables.open_column(path, format, key, where)
    if format == "safetensors":
        return safefile.open_safe(path, key, where)
    return zarrfile.open_zarr(path, key, where)


def members(path: str | os.PathLike[str]) -> list[str]:
    """The names of the arrays in a container.

    Raises:
        StorageError: no such file, a broken one, or one that is an array itself.
    """
    where = f"sources({os.fspath(path)!r})"
    path, format = _split(os.fspath(path), where)
    names = members_of(path, format, where) if format != "npy" else [""]
    if names == [""]:
        raise StorageError(
            where, "the file is one array", legal="a container: .npz, a zarr group, .h5, .parquet, .safetensors"
        )
    return names


def members_of(path: str, format: str, where: str) -> list[str]:
    """The names of the arrays in a container; one empty name where it is an array itself."""
    if format == "npz":
        return npyfile.members_of(path, where)
    if format == "hdf5":
        return tables.datasets_of(path, where)
    if format in ("parquet", "arrow"):
        return tables.columns_of(path, format, where)
    if format == "safetensors":
        return safefile.members_of(path, where)
    return zarrfile.members_of(path, where)


def _member(path: str, format: str, key: str, where: str) -> str:
    """The key, or the one member that there is."""
    names = members_of(path, format, where)
    if key in names or names == [""]:
        if key and names == [""]:
            raise StorageError(where, f"the zarr is one array and has no member {key!r}", legal="no key")
        return key
    if not key and len(names) == 1:
        return names[0]
    shown = ", ".join(map(repr, names[:20])) + (", .." if len(names) > 20 else "")
    problem = f"there is no member {key!r}" if key else f"the file holds {len(names)} arrays and no key says which"
    raise StorageError(where, problem, legal=f"key= one of {shown}" if names else "a file that holds an array")


def open_source(data: FileData, expected: TensorType | None = None) -> Reader:
    """A reader of a tensor in a file.

    Args:
        data: as `describe` gave it.
        expected: what the file must still hold.

    Raises:
        StorageError: as `describe`, and where the file holds something else than expected.
    """
    where = f"source({data.path!r})"
    if data.format not in ("npy", "safetensors"):
        _member(data.path, data.format, data.key, where)
    reader = _open(data.path, data.format, data.key, where)
    if expected is not None and reader.type != expected:
        raise StorageError(
            where, f"the file now holds {reader.type}", legal=f"{expected}, as when the program was written"
        )
    return reader


class FileSource:
    """What reads a source in a file; a read that the storage fails is tried again.

    Args:
        data: as `describe` gave it.
        type: what the file must still hold.

    Raises:
        StorageError: as `open_source`.
    """

    def __init__(self, data: FileData, type: TensorType) -> None:
        self.data, self.type = data, type
        self._reader = open_source(data, type)

    @property
    def everywhere(self) -> bool:
        """Whether any process that sees the file reads it as cheaply."""
        return self._reader.everywhere

    def __call__(self, box: Box) -> Array:
        """The values of a box; not to be written."""
        for seconds in (*RETRY_SECONDS, None):
            try:
                return self._reader.read(box)
            except (OSError, EOFError) as error:
                if seconds is None:
                    tries = len(RETRY_SECONDS) + 1
                    where = f"source({self.data.path!r})"
                    raise StorageError(where, f"it could not be read in {tries} tries: {error}") from error
            time.sleep(seconds)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Lets go of the file."""
        self._reader.close()


RETRY_SECONDS = (0.05, 0.4, 2.0)
"""Pauses before a read that failed is tried again: storage that is reached over a network recovers in seconds."""


# ---------------------------------------------------------------------------------------------------------------------
# sinks


@dataclass(frozen=True, slots=True)
class Handle:
    """A file that is being written, as another process finds it until the run commits.

    Args:
        format: ``raw`` (row-major elements from an offset on) or ``zarr``.
        path: of the temporary file.
        key: the member of a zarr group.
        type: of the tensor.
        offset_bytes: where its elements begin.
    """

    format: str
    path: str
    key: str
    type: TensorType
    offset_bytes: int = 0


def handle_of(writer: SinkWriter) -> Handle | None:
    """How another process writes what a writer writes; None where one process alone may write."""
    if isinstance(writer, npyfile.MappedWriter):
        if writer.path.parent.name.startswith(assembled.SENT):  # on its way to a URL: this host alone has it
            return None
        return Handle("raw", str(writer.path), "", writer.type, writer.offset_bytes)
    if isinstance(writer, zarrfile.ZarrWriter):
        return Handle("zarr", writer.store, writer.key, writer.type)
    return None


class Reopened:
    """A file that another process has created and commits, for stores of this process."""

    def __init__(self, handle: Handle) -> None:
        self.whole_blocks = handle.format == "zarr"
        self._handle = handle

    def write(self, box: Box, block: Array) -> None:
        """Stores the values of a box; they have left this process when this returns."""
        handle = self._handle
        if box.empty:
            return
        if handle.format == "zarr":
            zarrfile.reopen_zarr(handle.path, handle.key, handle.type).write(box, block)
            return
        kind = handle.type
        memory = np.memmap(handle.path, np.uint8, "r+", handle.offset_bytes, (kind.size_bytes,))
        np.ndarray(kind.shape, kind.dtype, memory)[slices(box)] = block
        memory.flush()

    def take(self, block: Array) -> None:
        """Stores all values at once."""
        self.write(self._handle.type.box, block)

    def finished(self, box: Box) -> None:
        """The process that commits the file hears of it when the task is done."""


def target(
    path: str | os.PathLike[str], key: str = "", overwrite: bool = False, grid: tuple[tuple[int, ...], ...] = ()
) -> FileTarget:
    """Where a sink goes; the suffix says the format. A zarr may have a grid: the extents of its chunks, and of shards.

    Raises:
        StorageError: a format that is not known, a key for a .npy, a key that cannot name a member.

    Example:
        >>> target("out/y.npz", key="logits").format
        'npz'
    """
    where = f"sink({os.fspath(path)!r})"
    path, format = _split(os.fspath(path), where)
    if not isinstance(overwrite, bool):
        raise StorageError(where, f"overwrite={overwrite!r} is neither yes nor no", legal="True or False")
    if format == "npy" and key:
        raise StorageError(where, f"a .npy has no member {key!r}", legal="no key")
    if format == "arrow" or path.endswith(safefile.INDEX):
        raise StorageError(where, "such files are read, not written", legal="a .parquet or .safetensors file")
    if key and (key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/"))):
        raise StorageError(where, f"{key!r} cannot name a member", legal="names, joined by /")
    if grid and format != "zarr":
        raise StorageError(where, f"a .{format} has no chunks of one's own", legal="a .zarr, or no chunks and shards")
    return FileTarget(path.rstrip("/"), format, key, overwrite, grid)


def atom(sink: Sink) -> tuple[int, ...] | None:
    """The extents of the region of a sink that must have one writer: a zarr's shard, or chunk; None where it has none.

    Boxes whose boundaries are multiples of these extents, or end with the tensor, may be written in parallel.
    """
    if isinstance(sink.target, FileTarget) and sink.target.format == "zarr":
        return sink.target.grid[-1] if sink.target.grid else zarrfile.chunk_shape(sink.tensor.type)
    return None


def check_targets(targets: Sequence[tuple[FileTarget, TensorType]]) -> None:
    """Refuses sinks that could not be written, before work starts.

    Raises:
        StorageError: a target exists and may not be replaced, or is not what it would be replaced by; its folder is
            missing or read-only; its element type has no place in the format; two sinks write one tensor.
    """
    seen: dict[str, list[FileTarget]] = {}
    for one, kind in targets:
        where = f"sink({one.path!r})"
        held = kind.dtype in safefile.names() if one.format == "safetensors" else npyfile.supported(kind.dtype)
        if not held or (one.format == "parquet" and not kind.shape):
            what = "elements of type " + kind.dtype.name if kind.shape or not held else "a single number"
            problem = f"a .{one.format} does not hold {what}"
            raise StorageError(
                where,
                problem,
                inputs={"tensor": kind},
                legal="bool, integers, float16, float32 or float64: cast(tensor, 'float32')",
            )
        others = seen.setdefault(_where_it_lies(one), [])
        if any(other.key == one.key or one.format == "npy" for other in others):
            legal = "one sink per file" if one.format == "npy" else "a key of its own for every sink of the file"
            raise StorageError(where, "two sinks write the same tensor", legal=legal)
        if any("" in (other.key, one.key) for other in others):
            raise StorageError(where, "two sinks share the file and one has no key", legal="a key for every sink")
        others.append(one)
        if one.format == "zarr":
            zarrfile.load(where)
            if one.grid:
                zarrfile.checked_grid(one.grid, kind, where)
        if "://" in one.path:
            _check_remote(one, where)
        else:
            _check_local(one, where)


def folder_of(one: FileTarget) -> Path:
    """The folder of this host where the temporary files of a sink lie."""
    return Path(tempfile.gettempdir()) if "://" in one.path else Path(_where_it_lies(one)).parent


def _where_it_lies(one: FileTarget) -> str:
    return one.path if "://" in one.path else str(Path(one.path).resolve())


def _check_local(one: FileTarget, where: str) -> None:
    path = Path(_where_it_lies(one))
    if not path.parent.is_dir():
        raise StorageError(where, f"the folder {str(path.parent)!r} does not exist", legal="a folder that exists")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StorageError(where, f"the folder {str(path.parent)!r} cannot be written", legal="a writable folder")
    if not path.exists():
        return
    if not one.overwrite:
        raise StorageError(where, "it exists", legal="another path, or overwrite=True (--overwrite)")
    fits = zarrfile.is_zarr(path) if one.format == "zarr" else path.is_file()
    if not fits:
        what = "a directory" if path.is_dir() else "a file"
        raise StorageError(where, f"it exists and is {what}, not a .{one.format}", legal="another path")
    if one.format == "npz" and one.key:
        npyfile.members_of(one.path, where)  # they will be kept


def _check_remote(one: FileTarget, where: str) -> None:
    fs, path = zarrfile.remote(one.path, where)
    try:
        exists = fs.exists(path)
    except Exception as error:  # every store has errors of its own
        raise StorageError(where, f"the URL cannot be reached: {error}", legal="a store that answers") from None
    if exists and not one.overwrite:
        raise StorageError(where, "it exists", legal="another URL, or overwrite=True (--overwrite)")


@dataclass(slots=True)
class _Opened:
    """A file of a run, under its temporary name; what is finished of it, where that is recorded."""

    file: _File
    temporary: Path | None
    journal: Journal | None


class Sinks:
    """The files of one run. They appear together at `commit`; after `abort` nothing is left of them but what a journal
    tells of.

    Args:
        targets: checked by `check_targets`; several may be members of one file.
        identity: where given, files that are filled in place get journals, and those of an equal run that did not end
            are gone on with.
    """

    def __init__(self, targets: Sequence[tuple[FileTarget, TensorType]], identity: Identity | None = None) -> None:
        self._identity, self._mark = identity, f"tmp-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}"
        self._files: dict[str, _Opened] = {}
        self._grids: defaultdict[str, dict[str, zarrfile.Grid]] = defaultdict(dict)
        for one, _ in targets:
            self._grids[_where_it_lies(one)][one.key] = one.grid
        self.writers: list[SinkWriter] = []
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
                journal = self._files[_where_it_lies(one)].journal
                if journal is not None:
                    journal.watch(one.key, cast("Any", writer))
            self._targets = [(one, kind) for one, kind in targets if not self._published(one)]
        except BaseException:
            self.abort()
            raise

    def _open(self, one: FileTarget) -> FileTarget:
        """Finds what an earlier run has left of a file; the target, to be replaced where it is that run's own."""
        lies = _where_it_lies(one)
        if self._identity is not None and one.format in RESUMABLE and "://" not in lies and lies not in self._files:
            journal = open_journal(Path(lies), self._identity, f"sink({one.path!r})")
            if journal is not None:
                file = _local_file(one, Path(lies), journal.temporary, self._grids[lies])
                self._files[lies] = _Opened(_Published() if journal.published else file, journal.temporary, journal)
        return replace(one, overwrite=True) if self._published(one) else one

    def _forget_what_has_ended(self, targets: Sequence[FileTarget]) -> None:
        """Removes the journals of a run whose files have all appeared, and that was stopped while it removed them."""
        if all(isinstance(opened.file, _Published) for opened in self._files.values()):
            others = [Path(lies) for one in targets if (lies := _where_it_lies(one)) not in self._files]
            refused = any(not one.overwrite for one in targets if _where_it_lies(one) not in self._files)
            if refused and all(path.exists() for path in others):
                for opened in self._files.values():
                    cast("Journal", opened.journal).remove()

    def _published(self, one: FileTarget) -> bool:
        opened = self._files.get(_where_it_lies(one))
        return opened is not None and isinstance(opened.file, _Published)

    def _add(self, one: FileTarget, kind: TensorType) -> SinkWriter:
        lies = _where_it_lies(one)
        try:
            if lies not in self._files:
                self._files[lies] = _new_file(one, lies, self._mark, self._grids[lies])
            return self._files[lies].file.add(one.key, kind)
        except StorageError:
            raise
        except Exception as error:  # the disk is full, or the store refuses, each in its own words
            raise StorageError(
                f"sink({one.path!r})", f"it cannot be written: {error}", inputs={"tensor": kind}
            ) from error

    def _begin(self, one: FileTarget) -> None:
        opened = self._files[_where_it_lies(one)]
        if self._identity is None or opened.journal is not None or opened.temporary is None:
            return
        if one.format in RESUMABLE:
            opened.journal = begin_journal(Path(_where_it_lies(one)), opened.temporary, self._identity, self._mark)

    def finished(self, one: FileTarget) -> set[Box]:
        """The parts of a sink that are on disk."""
        journal = self._files[_where_it_lies(one)].journal
        return journal.finished[one.key] if journal is not None else set()

    def record(self, one: FileTarget, box: Box) -> None:
        """A part of a sink has been written."""
        journal = self._files[_where_it_lies(one)].journal
        if journal is not None:
            journal.record(one.key, box)

    def commit(self) -> None:
        """Every file appears, whole. Where one cannot be completed, none appears.

        Raises:
            StorageError: a file cannot be completed, or another one has appeared in its place meanwhile.
        """
        published: dict[str, Journal | None] = {}
        try:
            for opened in self._files.values():
                if opened.journal is not None:
                    opened.journal.complete()
                opened.file.prepare()
            check_targets(self._targets)
            for path in list(self._files):
                self._files[path].file.publish()
                published[path] = self._files.pop(path).journal
            for path, journal in published.items():
                if journal is not None:
                    journal.remove()
                elif "://" not in path:
                    discard(Path(path), _remove)
        except OSError as error:
            raise StorageError("sink(tensor, path)", f"a file cannot be completed: {error}") from error
        finally:
            for journal in filter(None, published.values()):
                journal.close()
            self.abort()

    def abort(self) -> None:
        """Removes every file that has not appeared, or leaves it with its journal where some of it is finished."""
        while self._files:
            _, opened = self._files.popitem()
            with suppress(Exception):  # the next file's remains must go too
                if opened.journal is None:
                    opened.file.abort()
                else:
                    _leave(cast("_InPlace", opened.file), opened.journal)


def _leave(file: _InPlace, journal: Journal) -> None:
    try:
        journal.sync()
    finally:
        if any(journal.finished.values()):
            file.suspend()
            journal.close()
        else:
            file.abort()
            journal.remove()


RESUMABLE = ("npy", "zarr", "hdf5")
"""Formats whose parts are on disk, where they stay, as soon as they are written."""


class _Published:
    """A file that an earlier run has completed and given its name, before it could end."""

    def add(self, key: str, kind: TensorType) -> SinkWriter:
        return self

    def write(self, box: Box, block: Array) -> None:
        raise StorageError("sink(tensor, path)", "it is written already")

    def sync(self, boxes: Sequence[Box]) -> None:
        return

    def prepare(self) -> None:
        return

    publish = suspend = abort = prepare


def _new_file(one: FileTarget, lies: str, mark: str, grids: Mapping[str, zarrfile.Grid]) -> _Opened:
    if "://" in lies:
        if one.format != "zarr":
            fs, inside = zarrfile.remote(lies, f"sink({lies!r})")
            return _Opened(assembled.SentFile(fs, inside, mark, lambda a, b: _local_file(one, a, b, {})), None, None)
        folder, _, name = lies.rpartition("/")
        return _Opened(zarrfile.RemoteZarr(lies, f"{folder}/.{name}.{mark}", grids), None, None)
    path = Path(lies)
    temporary = path.with_name(f".{path.name}.{mark}")
    return _Opened(_local_file(one, path, temporary, grids), temporary, None)


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
        case "safetensors":
            return assembled.AssembledFile(path, temporary, safefile.write_safe)
    return zarrfile.ZarrDirectory(path, temporary, grids)


_HOST = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())
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
            if found is None or found[1] != _HOST or path.name in kept or _alive(int(found[2])):
                continue
            count += 1
            whole = path.with_name(path.name[1 : path.name.rindex(".tmp-")])
            if found[3] == "-old" and not whole.exists():
                path.rename(whole)
            else:
                _remove(path)
    return count


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    with suppress(OSError, IndexError):  # one that has ended, but was not waited for, is in the list of processes too
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


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
    return Sinks(targets, identity)
