"""The .npy and .npz formats: headers judged against the file's size, reading by memory map, whole-or-not writing.

A .npy is read where it lies. A .npz member that is stored as it is is read where it lies too; a compressed one is
unpacked once into an unnamed temporary file, so neither needs memory for more than what is read.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
import struct
import tempfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.kept import lock_of_process
from tileweave.runtime.io.mapped import Header, MappedReader, MappedWriter
from tileweave.runtime.io.retries import retried

Array = np.ndarray[Any, Any]


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this type can be read from and written to files: bool, integers and NumPy's own floats."""
    return dtype.kind in "biuf" and dtype.type.__module__ == "numpy"


# ---------------------------------------------------------------------------------------------------------------------
# reading


def _read_header(file: IO[bytes], size_bytes: int, where: str, what: str) -> Header:
    """The header of a .npy of `size_bytes` bytes that starts at the file's position, judged against that size."""
    start = file.tell()
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        shape = tuple(int(n) for n in shape)
    except Exception as error:  # whatever foreign bytes lead the parser into
        raise StorageError(where, f"{what} is not a .npy: {error}", legal="a file that numpy.save wrote") from None
    header = Header(shape, dtype, fortran, file.tell() - start)
    if not supported(dtype):
        raise StorageError(
            where, f"{what} holds elements of type {dtype}", legal="bool, integers or floats, such as float32"
        )
    if any(n < 0 for n in shape):
        raise StorageError(where, f"{what} states the impossible shape {shape}", legal="extents of zero or more")
    wanted = header.offset_bytes + prod(shape) * dtype.itemsize
    if size_bytes != wanted:
        fault = "is truncated" if size_bytes < wanted else "has bytes after its array"
        raise StorageError(
            where,
            f"{what} {fault}",
            inputs={"header": f"{header.type} in {wanted} bytes", "file": f"{size_bytes} bytes"},
            legal=f"a file of {wanted} bytes",
        )
    return header


_FETCHED: OrderedDict[str, tuple[Any, IO[bytes]]] = OrderedDict()  # URL -> (what tells its content apart, the copy)
_TURN = lock_of_process(threading.RLock)
KEEP_FETCHED = 4


def _fetched(url: str, where: str) -> IO[bytes]:
    """An unnamed copy on this host of the file behind a URL, made once while its content stays."""
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url)
        content = retried(lambda: fs.ukey(path))
        if url not in _FETCHED or _FETCHED[url][0] != content:
            file = retried(lambda: copied(fs, path))
            _forget(url)
            _FETCHED[url] = content, file
            while len(_FETCHED) > KEEP_FETCHED:
                _forget(next(iter(_FETCHED)))
    except ImportError as error:
        raise StorageError(where, f"the URL needs a package that is missing: {error}", legal="install it") from None
    except Exception as error:  # every store has errors of its own
        problem = f"the file cannot be opened: {type(error).__name__}: {error}"
        raise StorageError(where, problem, legal="a URL that answers") from None
    return _FETCHED[url][1]


def copied(fs: Any, path: str) -> IO[bytes]:
    """An unnamed copy of a file of a file system."""
    made = tempfile.TemporaryFile()  # noqa: SIM115  (kept)
    try:
        with fs.open(path, "rb") as file:
            shutil.copyfileobj(file, made, 1 << 20)
        made.seek(0)
    except BaseException:
        made.close()
        raise
    return made


def _forget(url: str) -> None:
    """Closes a copy; what is mapped of it stays readable."""
    if url in _FETCHED:
        _FETCHED.pop(url)[1].close()


@atexit.register
def _forget_all() -> None:
    for url in list(_FETCHED):
        _forget(url)


@contextmanager
def opened(path: str, where: str) -> Iterator[IO[bytes]]:
    """A file to be read, local or behind a URL.

    Raises:
        StorageError: there is none, or it cannot be read.
    """
    if "://" in path:
        with _TURN:
            file = _fetched(path, where)
            file.seek(0)
            yield file
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115  (opening may fail, the block may not)
    except OSError as error:
        raise StorageError(where, f"the file cannot be opened: {error.strerror}", legal="a file that exists") from None
    with file:
        yield file


def describe_npy(path: str, where: str) -> TensorType:
    """Shape and element type of a .npy, without reading its elements."""
    with opened(path, where) as file:
        return _read_header(file, os.fstat(file.fileno()).st_size, where, "the file").type


def open_npy(path: str, where: str) -> MappedReader:
    """A reader of a .npy."""
    with opened(path, where) as file:
        return MappedReader(file, _read_header(file, os.fstat(file.fileno()).st_size, where, "the file"))


def members_of(path: str, where: str) -> list[str]:
    """The names of the arrays in a .npz, in order."""
    with opened(path, where) as file, _unzipped(file, where) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


@contextmanager
def _unzipped(file: IO[bytes], where: str) -> Iterator[zipfile.ZipFile]:
    legal = "a file that numpy.savez wrote"
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(where, f"the file cannot be read: {error}", legal=legal) from None
    except Exception as error:  # a broken archive fails in zipfile, zlib, lzma or bz2, each in its own way
        raise StorageError(where, f"the file is not a whole .npz: {error}", legal=legal) from None


def _stored_at(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Byte offset of the data of a member that is stored without compression."""
    file.seek(info.header_offset)
    local = file.read(30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member's local header is missing")
    name_bytes, extra_bytes = struct.unpack("<HH", local[26:30])
    at = int(info.header_offset + 30 + name_bytes + extra_bytes)
    if at + info.file_size > os.fstat(file.fileno()).st_size:
        raise zipfile.BadZipFile("a member reaches past the end of the file")
    return at


def _plainly_stored(info: zipfile.ZipInfo) -> bool:
    return info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1


def describe_npz(path: str, key: str, where: str) -> TensorType:
    """Shape and element type of one member of a .npz, without reading its elements."""
    with opened(path, where) as file, _unzipped(file, where) as archive:
        info = archive.getinfo(f"{key}.npy")
        if _plainly_stored(info):
            file.seek(_stored_at(file, info))
            return _read_header(file, info.file_size, where, f"member {key!r}").type
        with archive.open(info) as member:
            return _read_header(member, info.file_size, where, f"member {key!r}").type


def open_npz(path: str, key: str, where: str) -> MappedReader:
    """A reader of one member of a .npz."""
    with opened(path, where) as file, _unzipped(file, where) as archive:
        info = archive.getinfo(f"{key}.npy")
        what = f"member {key!r}"
        if _plainly_stored(info):
            at = _stored_at(file, info)
            file.seek(at)
            return MappedReader(file, _read_header(file, info.file_size, where, what), at)
        with tempfile.TemporaryFile() as unpacked:
            with archive.open(info) as member:
                shutil.copyfileobj(member, unpacked, 1 << 20)  # checks the member's checksum at its end
            unpacked.flush()
            unpacked.seek(0)
            return MappedReader(unpacked, _read_header(unpacked, info.file_size, where, what), everywhere=False)


# ---------------------------------------------------------------------------------------------------------------------
# writing


def npy_writer(path: Path, kind: TensorType) -> MappedWriter:
    """The writer of a .npy: of a new one, or of one that such a writer has begun."""
    header = _header_of(kind)
    try:
        if not path.exists():
            path.write_bytes(header)
        return MappedWriter(path, kind, len(header))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _header_of(kind: TensorType) -> bytes:
    """The bytes of a .npy before its row-major elements."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(kind.dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": kind.shape})
    return header.getvalue()


class InPlaceFile:
    """A file whose arrays are filled where they lie; it appears whole at `publish`, or not at all.

    Args:
        path: where it appears.
        temporary: where it is filled.
        add: makes room for an array in the temporary file, by its key; where one is already, its writer.
    """

    def __init__(self, path: Path, temporary: Path, add: Callable[[Path, str, TensorType], MappedWriter]) -> None:
        self._path, self._temporary, self._add = path, temporary, add
        self._writers: list[MappedWriter] = []

    def add(self, key: str, kind: TensorType) -> MappedWriter:
        """The writer of one more array."""
        self._writers.append(self._add(self._temporary, key, kind))
        return self._writers[-1]

    def prepare(self) -> None:
        """All that may fail: the temporary file is complete and on disk."""
        for writer in self._writers:
            writer.finish()

    def publish(self) -> None:
        """The one step by which the file appears."""
        self._temporary.replace(self._path)

    def suspend(self) -> None:
        """Lets go of the file, which stays under its temporary name."""
        for writer in self._writers:
            writer.close()

    def abort(self) -> None:
        """Removes what was written; nothing is left."""
        self.suspend()
        self._temporary.unlink(missing_ok=True)


def write_npz(old: Path, path: Path, members: Mapping[str, MappedReader]) -> None:
    """Writes a .npz; members of the one that it replaces stay where they are named otherwise, and all have names."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        if "" not in members and old.exists():
            _copy_others(old, members, archive)
        for key, array in members.items():
            info = zipfile.ZipInfo(f"{key or 'arr_0'}.npy")  # a fixed date: equal values make equal files
            with archive.open(info, "w", force_zip64=True) as out:
                out.write(_header_of(array.type))
                for part in array.stream():
                    out.write(part)


def _copy_others(replaced: Path, members: Collection[str], archive: zipfile.ZipFile) -> None:
    """The members of the file that is replaced, but for those that are written anew."""
    where = f"sink({str(replaced)!r})"
    with opened(str(replaced), where) as file, _unzipped(file, where) as old:
        for name in dict.fromkeys(old.namelist()):
            if name.removesuffix(".npy") in members:
                continue
            info = old.getinfo(name)
            copied = zipfile.ZipInfo(name, info.date_time)
            copied.compress_type = info.compress_type
            with archive.open(copied, "w", force_zip64=True) as out, old.open(info) as part:
                shutil.copyfileobj(part, out, 1 << 20)
