"""HDF5 files, and columns of Parquet and Arrow files.

A column of numbers is a tensor of rank 1, a column of fixed-size lists one of higher rank. What is read of a Parquet
file are the row groups that a box meets; the numbers of an Arrow file are read where they lie, unless it is compressed.

h5py and pyarrow are optional packages (``tileweave[io]``) and are loaded on first use.
"""

from __future__ import annotations

import importlib
import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.io.mapped import Header, MappedReader, MappedWriter
from tileweave.runtime.io.npyfile import copied, supported
from tileweave.runtime.io.retries import retried
from tileweave.space import Box

Array = np.ndarray[Any, Any]

GROUP_BYTES = 8 << 20
"""The most bytes of one row group or record batch that we write: of Parquet, a reader holds so much to read one row."""


def _load(package: str, where: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.partition(".")[0]
        problem = f"the file needs the package {name}, which is missing"
        raise StorageError(where, problem, legal="pip install 'tileweave[io]'") from None


def _opened(path: str) -> Any:
    """What h5py and pyarrow read from: the path, or a file behind a URL that is read by ranges, or is copied where its
    server gives none."""
    if "://" not in path:
        return path
    import fsspec

    found = fsspec.open(path, "rb")
    file = found.open()
    try:
        file.read(1)
        file.seek(0)
        return file
    except ValueError:  # as fsspec says it
        file.close()
        return copied(found.fs, found.path)


# ---------------------------------------------------------------------------------------------------------------------
# HDF5


def _hdf5(path: str, where: str) -> Any:
    h5py = _load("h5py", where)
    if "://" not in path and not Path(path).exists():
        raise StorageError(where, "the file cannot be opened: No such file or directory", legal="a file that exists")

    def opened() -> Any:
        file = _opened(path)
        try:
            return h5py.File(file, "r")
        except OSError as error:
            file.close()
            if "signature" not in str(error):
                raise
            raise ValueError(str(error)) from None  # its beginning came: no further try finds another

    try:
        return retried(opened) if "://" in path else h5py.File(path, "r")
    except Exception as error:  # whatever foreign bytes lead the library into
        raise _no_hdf5(where, error) from None


def _no_hdf5(where: str, error: Exception) -> StorageError:
    return StorageError(where, f"the file is not a whole HDF5 file: {error}", legal="a .h5 file")


def datasets_of(path: str, where: str) -> list[str]:
    """The names of the datasets of an HDF5 file, however deep."""
    h5py = _load("h5py", where)
    names: list[str] = []
    with _hdf5(path, where) as file:
        try:
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        except Exception as error:  # a damaged list of its members
            raise _no_hdf5(where, error) from None
    return sorted(names)


class DatasetReader:
    """Reads boxes of one dataset of an HDF5 file."""

    everywhere = True

    def __init__(self, file: Any, key: str, where: str) -> None:
        self._file, self._dataset = file, file[key]
        dtype = np.dtype(self._dataset.dtype)
        if not supported(dtype):
            file.close()
            problem = f"member {key!r} holds elements of type {dtype}"
            raise StorageError(where, problem, legal="bool, integers or floats, such as float32")
        self.type = TensorType(tuple(map(int, self._dataset.shape)), dtype.newbyteorder("="))
        self._turn = threading.Lock()  # the library serves one thread at a time

    def read(self, box: Box) -> Array:
        """The values of a box, as a new array."""
        with self._turn:
            return np.asarray(self._dataset[slices(box)], self.type.dtype)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def open_dataset(path: str, key: str, where: str) -> DatasetReader:
    """A reader of a dataset of an HDF5 file."""
    return DatasetReader(_hdf5(path, where), key, where)


def add_dataset(path: Path, key: str, kind: TensorType) -> MappedWriter:
    """The writer of one more dataset of an HDF5 file, or of one that is there; without a key it is ``data``.

    Its elements lie in one piece whose place is fixed before any is written, so that any process may write any box,
    and the file's own structure is complete from the start.
    """
    h5py = _load("h5py", f"sink({str(path)!r})")
    with h5py.File(path, "a", alignment_threshold=1 << 10, alignment_interval=64) as file:
        name = key or "data"
        if name not in file:
            layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            made = file.create_dataset(name, kind.shape, kind.dtype, dcpl=layout)
            if not kind.shape:
                made[()] = 0  # h5py takes no layout for a single number, which has no place before it is written
        at = file[name].id.get_offset() or 0  # none where there are no elements
    return MappedWriter(path, kind, at)


# ---------------------------------------------------------------------------------------------------------------------
# Parquet and Arrow


def _table(path: str, format: str, where: str) -> tuple[Any, Any, list[int], int]:
    """(the open file, its schema, the rows of each of its groups, the address where it is mapped or 0)."""
    package = _load("pyarrow.parquet" if format == "parquet" else "pyarrow.ipc", where)
    if "://" not in path and not Path(path).exists():
        raise StorageError(where, "the file cannot be opened: No such file or directory", legal="a file that exists")

    def opened() -> tuple[Any, Any, list[int], int]:
        if format == "parquet":
            file = package.ParquetFile(_opened(path))
            groups = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            return file, file.schema_arrow, groups, 0
        source = _opened(path) if "://" in path else _load("pyarrow", where).memory_map(path)
        address = 0 if "://" in path else source.read_buffer(1).address
        file = package.open_file(source)
        groups = [file.get_batch(k).num_rows for k in range(file.num_record_batches)]
        return file, file.schema, groups, address

    try:
        return retried(opened) if "://" in path else opened()
    except StorageError:
        raise
    except Exception as error:  # whatever foreign bytes lead the library into
        raise StorageError(where, f"the file is not a whole .{format}: {error}", legal=f"a .{format} file") from None


def _column_type(kind: Any, where: str, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """(extents behind the rows, element type) of a column."""
    arrow = _load("pyarrow", where)
    shape: list[int] = []
    while arrow.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    numbers = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)
    if not numbers:
        problem = f"column {key!r} holds values of type {kind}"
        raise StorageError(where, problem, legal="numbers, or fixed-size lists of numbers")
    return tuple(shape), np.dtype(kind.to_pandas_dtype())


def columns_of(path: str, format: str, where: str) -> list[str]:
    """The names of the columns of a Parquet or Arrow file, in order; those that several share name none of them."""
    file, schema, *_ = _table(path, format, where)
    _closed(file)
    counts = Counter(schema.names)
    return [name for name, count in counts.items() if count == 1]


def _closed(file: Any) -> None:
    """Lets go of a file of pyarrow, where that can be told to."""
    close = getattr(file, "close", None)
    if close is not None:
        close()


class ColumnReader:
    """Reads boxes of one column; the group that was read last is kept."""

    everywhere = True

    def __init__(self, path: str, format: str, key: str, where: str) -> None:
        self._file, schema, groups, self._address = _table(path, format, where)
        self._shape, dtype = _column_type(schema.field(key).type, where, key)
        self._path, self._format, self._key, self._where = path, format, key, where
        if self._missing(len(groups)):
            raise self._refusal()
        self._starts = [0, *accumulate(groups)]
        self.type = TensorType((self._starts[-1], *self._shape), dtype)
        whole = format == "parquet" and self.type.box.size > 0  # a group is unpacked whole
        self.chunks = (max(groups), *self._shape) if whole else ()
        self._turn = threading.Lock()
        self._last: tuple[int, MappedReader | Array] | None = None

    def read(self, box: Box) -> Array:
        """The values of a box, not to be written: a view where the file's bytes serve as they are."""
        out: Array | None = None
        first, stop = box.start[0] if not box.empty else 0, box.stop[0] if not box.empty else 0
        with self._turn:
            group = bisect_right(self._starts, first) - 1
            while group < len(self._starts) - 1 and self._starts[group] < stop:
                start, end = self._starts[group], self._starts[group + 1]
                a, b = max(first, start), min(stop, end)
                if a < b:
                    part = self._part(group, box.with_range(0, a - start, b - start))
                    if (a, b) == (first, stop):
                        return part
                    out = np.empty(box.shape, self.type.dtype) if out is None else out
                    out[a - first : b - first] = part
                group += 1
        return np.empty(box.shape, self.type.dtype) if out is None else out

    def _part(self, number: int, box: Box) -> Array:
        """A box of a group."""
        if self._last is None or self._last[0] != number:
            self._last = None
            _load("pyarrow", self._where).default_memory_pool().release_unused()
            self._last = number, self._group(number)
        held = self._last[1]
        return held.read(box) if isinstance(held, MappedReader) else held[slices(box)]

    def _refusal(self) -> StorageError:
        return StorageError(self._where, f"column {self._key!r} has missing values", legal="a value in each row")

    def _missing(self, groups: int) -> bool:
        """Whether the file says, without reading its values, that some are missing."""
        if self._format != "parquet":
            batches = (self._file.get_batch(k) for k in range(groups))
            return any(batch.column(self._key).null_count for batch in batches)
        parts = (self._file.metadata.row_group(k) for k in range(groups))
        columns = (part.column(k) for part in parts for k in range(part.num_columns))
        held = (each.statistics for each in columns if f"{each.path_in_schema}.".startswith(f"{self._key}."))
        return any(each.null_count for each in held if each is not None and each.has_null_count)

    def _group(self, number: int) -> MappedReader | Array:
        """The values of a group: where they lie, or unpacked."""
        if self._format == "parquet":
            column = self._file.read_row_group(number, columns=[self._key]).column(self._key).combine_chunks()
        else:
            column = self._file.get_batch(number).column(self._key)
        rows, missing = len(column), column.null_count
        for _ in self._shape:
            column = column.flatten()
            missing += column.null_count
        if missing:
            raise self._refusal()
        kind = self.type.dtype
        if self._address and kind.kind != "b" and rows:  # truths are packed as bits
            at = column.buffers()[1].address - self._address + column.offset * kind.itemsize
            with Path(self._path).open("rb") as file:
                if 0 <= at < os.fstat(file.fileno()).st_size:  # else it was compressed
                    return MappedReader(file, Header((rows, *self._shape), kind, False, at))
        return np.asarray(column.to_numpy(zero_copy_only=False), kind).reshape(-1, *self._shape)

    def close(self) -> None:
        """Lets go of the file."""
        self._last = None
        _closed(self._file)
        _load("pyarrow", self._where).default_memory_pool().release_unused()


def open_column(path: str, format: str, key: str, where: str) -> ColumnReader:
    """A reader of a column."""
    return ColumnReader(path, format, key, where)


def write_parquet(target: Path, path: Path, members: Mapping[str, MappedReader]) -> None:
    """Writes arrays as columns, by row groups.

    Raises:
        StorageError: the arrays have no rows, or not the same number of rows.
    """
    where = f"sink({str(target)!r})"
    _write_groups(_load("pyarrow.parquet", where).ParquetWriter, where, path, members)


def write_arrow(target: Path, path: Path, members: Mapping[str, MappedReader]) -> None:
    """Writes arrays as columns, by record batches; where each of them lies stands behind the last.

    Raises:
        StorageError: as `write_parquet`.
    """
    where = f"sink({str(target)!r})"
    _write_groups(_load("pyarrow", where).RecordBatchFileWriter, where, path, members)


def _write_groups(opened: Any, where: str, path: Path, members: Mapping[str, MappedReader]) -> None:
    """Columns of numbers, or of fixed-size lists where the rank is above 1: some rows of all after the other."""
    arrow = _load("pyarrow", where)
    kinds = [array.type for array in members.values()]
    rows = {kind.shape[:1] for kind in kinds}
    if len(rows) != 1 or rows == {()}:
        raise StorageError(where, "columns of one file have the same number of rows", legal="arrays with equal rows")
    ((count,),) = rows
    row_bytes = sum(kind.size_bytes for kind in kinds) // max(1, count)
    step = max(1, GROUP_BYTES // max(1, row_bytes))

    def column(array: Array) -> Any:
        found = arrow.array(np.ascontiguousarray(array).reshape(-1))
        for extent in _inner(array.shape):
            found = arrow.FixedSizeListArray.from_arrays(found, extent)
        return found

    def table(first: int) -> Any:
        def rows_of(array: MappedReader) -> Array:
            return array.read(array.type.box.with_range(0, first, min(first + step, count)))

        names = [name or "data" for name in members]
        return arrow.table([column(rows_of(array)) for array in members.values()], names=names)

    with opened(str(path), table(0).schema) as writer:
        for first in range(0, max(count, 1), step):
            writer.write_table(table(first))
            arrow.default_memory_pool().release_unused()


def _inner(shape: Sequence[int]) -> list[int]:
    """The extents behind the rows, innermost first."""
    return list(reversed(shape[1:]))
