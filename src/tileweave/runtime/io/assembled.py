"""Files that are put together at the end of a run, from a temporary .npy per member; and files that go to a URL.

Until then the file is there under its temporary name and empty, so that a journal can name it, and its members lie
beside it, so that a run can be gone on with.
"""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.runtime.io.mapped import Header, MappedReader, MappedWriter
from tileweave.runtime.io.npyfile import npy_writer
from tileweave.runtime.io.retries import retried

Array = np.ndarray[Any, Any]
SENT = ".tileweave-"
"""How the names of folders begin that hold files on their way to a URL."""


class AssembledFile:
    """A file of one or more members that appears whole at `publish`, or not at all.

    Args:
        path: where it appears.
        temporary: where it is put together; its members lie beside it. One that an earlier run has begun is gone on
            with.
        write: writes a file of arrays by name: from the path of what it replaces, and its own.
    """

    def __init__(
        self, path: Path, temporary: Path, write: Callable[[Path, Path, Mapping[str, MappedReader]], None]
    ) -> None:
        self._path, self._temporary, self._write = path, temporary, write
        self._members: dict[str, tuple[Path, MappedWriter]] = {}
        self._begun = temporary.exists()
        temporary.touch()

    def add(self, key: str, kind: TensorType) -> MappedWriter:
        """The writer of one more member.

        Raises:
            StorageError: the run that is gone on with had begun it, and it is not there.
        """
        path = self._temporary.with_name(f"{self._temporary.name}-{len(self._members)}")
        if self._begun and not path.exists():
            problem = f"an unfinished run left it, and {path.name!r} is gone"
            raise StorageError(f"sink({str(self._path)!r})", problem, legal="a run without resume, which begins anew")
        writer = npy_writer(path, kind)
        self._members[key] = (path, writer)
        return writer

    def prepare(self) -> None:
        """All that may fail: the file is complete and on disk."""
        arrays: dict[str, MappedReader] = {}
        for key, (path, writer) in self._members.items():
            writer.finish()
            with path.open("rb") as file:
                kind = writer.type
                arrays[key] = MappedReader(file, Header(kind.shape, kind.dtype, False, writer.offset_bytes))
        self._write(self._path, self._temporary, arrays)
        arrays.clear()
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())

    def publish(self) -> None:
        """The one step by which the file appears; its members go afterwards."""
        self._temporary.replace(self._path)
        remove_members(self._temporary)

    def suspend(self) -> None:
        """Lets go of the members, which stay."""
        for _, writer in self._members.values():
            writer.close()

    def abort(self) -> None:
        """Removes what was written; nothing is left."""
        self.suspend()
        self._temporary.unlink(missing_ok=True)
        remove_members(self._temporary)


def remove_members(temporary: Path) -> None:
    """Removes what a file was, or would have been, put together from."""
    for path in temporary.parent.glob(f"{glob.escape(temporary.name)}-[0-9]*"):
        path.unlink(missing_ok=True)


def stand_in(url: str) -> Path:
    """Where a file that goes to a URL is made on this host, the same for each run of a user, so that one can go on."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    name = hashlib.blake2b(f"{owner} {url}".encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"{SENT}{name}" / url.rpartition("/")[2]


def passing(url: str, mark: str) -> Path:
    """Where a file that goes to a URL is made otherwise; `mark` ends names that are swept when the process is gone."""
    return Path(tempfile.gettempdir()) / f"{SENT}{secrets.token_hex(4)}.{mark}" / url.rpartition("/")[2]


class SentFile:
    """A file behind a URL: written in a temporary folder of this host, sent as one object at `publish`.

    Args:
        fs: the file system of the URL.
        path: in it.
        local: the file of this host, in a folder of its own.
        make: makes what writes that.
    """

    def __init__(self, fs: Any, path: str, local: Path, make: Callable[[], Any]) -> None:
        self._fs, self._remote, self._local = fs, path, local
        local.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = make()

    def add(self, key: str, kind: TensorType) -> Any:
        """The writer of one more member."""
        return self._file.add(key, kind)

    def prepare(self) -> None:
        """The file is complete on this host."""
        self._file.prepare()

    def publish(self) -> None:
        """The object appears when its last byte has arrived."""
        self._file.publish()
        retried(lambda: self._fs.put_file(str(self._local), self._remote))

    def suspend(self) -> None:
        """The file of this host stays."""
        self._file.suspend()

    def abort(self) -> None:
        """Removes what is left on this host."""
        self._file.abort()
        shutil.rmtree(self._local.parent, ignore_errors=True)
