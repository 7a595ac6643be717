"""Sources and sinks in files: .npy, .npz, zarr, HDF5, Parquet and Arrow columns, safetensors; local, or behind a URL.

Whatever is wrong with a file is said before work starts: with a source when it is described, with the target of a sink
when it is checked.

zarr, fsspec, h5py and pyarrow are optional packages (``tileweave[io]``) and are loaded on first use. A file behind a
URL is copied to an unnamed file of this host once, unless its format reads by ranges (zarr, HDF5, Parquet).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph import FileData, FileTarget, Sink, TensorType
from tileweave.runtime.io import npyfile, retries, safefile, tables, zarrfile
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
TABLES = ("parquet", "arrow")
"""Formats whose members are columns."""
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


def _split(path: str, where: str) -> tuple[str, str]:
    """(path, format); the path of a file URL is local again."""
    if "\0" in path:
        raise StorageError(where, "no file has a name with a NUL in it", legal="another path")
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
    if format in TABLES:
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
    if format in TABLES:
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
        try:
            return retries.retried(lambda: self._reader.read(box))
        except Exception as error:
            again = retries.may_pass(error)
            if not again and not isinstance(error, OSError):
                raise
            tries = f" in {len(retries.RETRY_SECONDS) + 1} tries" if again else ""
            raise StorageError(f"source({self.data.path!r})", f"it could not be read{tries}: {error}") from error

    def close(self) -> None:
        """Lets go of the file."""
        self._reader.close()


# ---------------------------------------------------------------------------------------------------------------------
# targets


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
    if path.endswith(safefile.INDEX):
        raise StorageError(where, "such files are read, not written", legal="a .safetensors file")
    if key and (key.startswith("/") or any(part in ("", ".", "..") for part in key.split("/"))):
        raise StorageError(where, f"{key!r} cannot name a member", legal="names, joined by /")
    if grid and format != "zarr":
        problem = f"a .{path.rpartition('.')[2]} has no chunks of one's own"
        raise StorageError(where, problem, legal="a .zarr, or no chunks and shards")
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
    lengths: dict[str, int] = {}  # file -> rows of its columns
    for one, kind in targets:
        where = f"sink({one.path!r})"
        held = kind.dtype in safefile.names() if one.format == "safetensors" else npyfile.supported(kind.dtype)
        rows = kind.shape and 0 not in kind.shape[1:]
        if not held or (one.format in TABLES and not rows):
            what = "rows without elements" if kind.shape else "a single number"
            what = what if held else "elements of type " + kind.dtype.name
            legal = "bool, integers, float16, float32 or float64: cast(tensor, 'float32')"
            raise StorageError(
                where,
                f"a .{one.path.rpartition('.')[2]} does not hold {what}",
                inputs={"tensor": kind},
                legal="one element or more in each row: another format, such as .npy" if held else legal,
            )
        place = where_it_lies(one)
        if one.format in TABLES and (length := lengths.setdefault(place, kind.shape[0])) != kind.shape[0]:
            problem = "columns of one file have the same number of rows"
            raise StorageError(where, problem, inputs={"tensor": kind}, legal=f"{length} rows, as the others")
        others = seen.setdefault(place, [])
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
    return Path(tempfile.gettempdir()) if "://" in one.path else Path(where_it_lies(one)).parent


def where_it_lies(one: FileTarget) -> str:
    """The URL of a sink, or its path without links: what has the same one is one file."""
    if "://" in one.path:
        return one.path
    try:
        whole = Path(one.path).resolve()
        if any(part.is_symlink() for part in (whole, *whole.parents)):  # from 3.13 on, Python lets a circle stand
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return str(whole)
    except (OSError, RuntimeError) as error:  # RuntimeError before Python 3.13
        where = f"sink({one.path!r})"
        raise StorageError(where, f"it leads nowhere: {error}", legal="a path that leads to a file") from None


def _check_local(one: FileTarget, where: str) -> None:
    path = Path(where_it_lies(one))
    if not path.parent.is_dir():
        problem = "is no folder" if path.parent.exists() else "does not exist"
        raise StorageError(where, f"the folder {str(path.parent)!r} {problem}", legal="a folder that exists")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StorageError(where, f"the folder {str(path.parent)!r} cannot be written", legal="a writable folder")
    if not path.exists():
        return
    if not one.overwrite:
        raise StorageError(where, "it exists", legal="another path, or overwrite=True (--overwrite)")
    fits = zarrfile.is_zarr(path) if one.format == "zarr" else path.is_file()
    if not fits:
        what = "a directory" if path.is_dir() else "a file"
        raise StorageError(where, f"it exists and is {what}, not a {path.suffix}", legal="another path")
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
