"""Containers of arrays (HDF5, Parquet, Arrow, safetensors) hold what was written, and are read where they lie."""

import struct
from pathlib import Path

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import StorageError
from tileweave.graph import TensorType
from tileweave.planner import machines
from tileweave.runtime.io import files as io
from tileweave.runtime.io.sinks import open_sinks
from tileweave.space import Box

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"]


def block_of(array: np.ndarray, box: Box) -> np.ndarray:
    return array[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))]


def sample(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).integers(0, 100, shape)).astype(dtype)


def inner_box(shape: tuple[int, ...]) -> Box:
    return Box.between([n // 3 for n in shape], [n - n // 4 for n in shape])


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


CONTAINERS = ["h5", "parquet", "arrow", "safetensors"]
PACKAGES = {"h5": "h5py", "parquet": "pyarrow", "arrow": "pyarrow", "safetensors": "numpy"}


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_containers_hold_what_was_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip(PACKAGES[suffix], reason=f"the optional package {PACKAGES[suffix]} is not installed")
    for number, shape in enumerate([(6,), (7, 5), (3, 4, 5), (0, 2)]):
        arrays = {dtype: sample(shape, dtype, number) for dtype in DTYPES}
        if suffix == "parquet":
            del arrays["float16"]  # no column of lists of them is read back by older packages
        path = tmp_path / f"{number}.{suffix}"
        targets = [(io.target(path, key=name), TensorType(a.shape, a.dtype)) for name, a in arrays.items()]
        sinks = open_sinks(targets)
        for writer, array in zip(sinks.writers, arrays.values(), strict=True):
            half = Box.of((shape[0] // 2, *shape[1:]))
            rest = Box((shape[0] // 2, *half.start[1:]), (shape[0] - shape[0] // 2, *shape[1:]))
            for box in (rest, half):
                writer.write(box, block_of(array, box))
        assert not path.exists()
        sinks.commit()
        assert left_in(tmp_path) == sorted(f"{k}.{suffix}" for k in range(number + 1))
        for name, array in arrays.items():
            kind, data = io.describe(path, name)
            assert kind == TensorType(array.shape, array.dtype)
            reader = io.FileSource(data, kind)
            np.testing.assert_array_equal(reader(inner_box(shape)), block_of(array, inner_box(shape)))
            np.testing.assert_array_equal(reader(kind.box), array)
            reader.close()
        with pytest.raises(StorageError, match=r"no key says which|no member"):
            io.describe(path)


@pytest.mark.parametrize("suffix", ["h5", "safetensors"])
def test_containers_hold_single_numbers(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip(PACKAGES[suffix], reason=f"the optional package {PACKAGES[suffix]} is not installed")
    path = tmp_path / f"x.{suffix}"
    tw.run([tw.sink(tw.source(np.float32(2.5)), path, key="a"), tw.sink(tw.source(np.arange(3)), path, key="b")])
    assert tw.run(tw.source(path, key="a")) == 2.5
    np.testing.assert_array_equal(tw.run(tw.source(path, key="b")), np.arange(3))


@pytest.mark.parametrize("shape", [(), (3, 0)])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_table_without_a_value_per_row_is_refused_before_work(
    tmp_path: Path, shape: tuple[int, ...], suffix: str
) -> None:
    with pytest.raises(StorageError, match=r"does not hold (a single number|rows without elements)"):
        tw.run(tw.sink(tw.source(np.ones(shape)), tmp_path / f"x.{suffix}"))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_of_unlike_lengths_are_refused_before_work(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    sinks = [tw.sink(tw.source(np.ones(count)), path, key=f"c{count}") for count in (3, 4)]
    with pytest.raises(StorageError, match=r"legal +3 rows, as the others"):
        tw.run(sinks)
    assert not path.exists()


def test_a_damaged_list_of_datasets_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="the optional package h5py is not installed")
    path = tmp_path / "x.h5"
    tw.run(tw.sink(tw.source(np.ones(3)), path, key="a"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"HEAP", b"PEAH"))
    with pytest.raises(StorageError, match="not a whole HDF5 file"):
        tw.source(path, key="a")


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="the optional package h5py is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the optional package pyarrow is not installed")
    feather = pytest.importorskip("pyarrow.feather")  # its second version is the Arrow file
    array = sample((50, 4), "float32")
    x = tw.source(array)
    tw.run([tw.sink(x * 2, tmp_path / f"a.{suffix}", key="x") for suffix in CONTAINERS], machines=3)
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["x"][:], array * 2)
    for table in (parquet.read_table(tmp_path / "a.parquet"), feather.read_table(tmp_path / "a.arrow")):
        column = table.column("x").combine_chunks()
        np.testing.assert_array_equal(column.flatten().to_numpy().reshape(50, 4), array * 2)
    raw = (tmp_path / "a.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert raw[8 : 8 + length].strip() == b'{"x":{"dtype":"F32","shape":[50,4],"data_offsets":[0,800]}}'
    assert raw[8 + length :] == (array * 2).tobytes()


def test_row_groups_of_a_table_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the optional package pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    from tileweave.runtime.io import tables

    column = np.arange(1000.0)
    table = arrow.table({"a": column, "b": column.astype("int32") + 1})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=64)
    with arrow.OSFile(str(tmp_path / "t.arrow"), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    for suffix in ("parquet", "arrow"):
        read: list[int] = []
        group = tables.ColumnReader._group
        monkeypatch.setattr(tables.ColumnReader, "_group", lambda self, k, g=group, r=read: r.append(k) or g(self, k))
        kind, data = io.describe(tmp_path / f"t.{suffix}", "b")
        got = io.open_source(data, kind).read(Box((130,), (80,)))
        np.testing.assert_array_equal(got, np.arange(131, 211))
        assert read == ([2, 3] if suffix == "parquet" else [1, 2])
        monkeypatch.undo()
        total = tw.run(tw.sum(tw.source(tmp_path / f"t.{suffix}", key="b") * 2), machines=4)
        assert total == (np.arange(1000) + 1).sum() * 2


@pytest.mark.parametrize("values", [[1.0, None], [[1.0, 2.0], [None, 3.0]], [[1.0, 2.0], None]])
def test_missing_values_of_a_table_are_refused_when_it_is_opened(tmp_path: Path, values: list[object]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    flat = not any(isinstance(each, list) for each in values)
    missing = arrow.table({"a.b": arrow.array(values, arrow.float64() if flat else arrow.list_(arrow.float64(), 2))})
    parquet.write_table(missing, tmp_path / "m.parquet")
    with arrow.ipc.new_file(tmp_path / "m.arrow", missing.schema) as file:
        file.write_table(missing)
    for name in ("m.parquet", "m.arrow") if flat or None in values else ("m.parquet",):
        with pytest.raises(StorageError, match="missing values"):
            tw.source(tmp_path / name, key="a.b")
    parquet.write_table(missing, tmp_path / "silent.parquet", write_statistics=False)
    kind, data = io.describe(tmp_path / "silent.parquet", "a.b")
    with pytest.raises(StorageError, match="missing values"):
        io.open_source(data, kind).read(kind.box)


def test_weights_in_bfloat16_are_read_where_they_lie(tmp_path: Path) -> None:
    import ml_dtypes

    array = sample((4, 6), "float32").astype(ml_dtypes.bfloat16)
    tw.run(tw.sink(tw.source(array), tmp_path / "w.safetensors", key="w"))
    x = tw.source(tmp_path / "w.safetensors", key="w")
    assert x.dtype == array.dtype
    np.testing.assert_array_equal(tw.run(tw.cast(x, "float32")), array.astype("float32"))


@pytest.mark.parametrize("suffix", ["npy", "npz", *CONTAINERS])
def test_files_behind_urls(suffix: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="the optional package fsspec is not installed")
    pytest.importorskip(PACKAGES.get(suffix, "numpy"), reason="an optional package is not installed")
    url = f"memory://folder-{suffix}/x.{suffix}"
    array = sample((30, 4), "float32")
    key = {} if suffix == "npy" else {"key": "x"}
    fsspec.filesystem("memory").makedirs(f"/folder-{suffix}", exist_ok=True)
    for factor in (1, 2):
        assert tw.run(tw.sink(tw.source(array * factor), url, overwrite=True, **key)) == url
        np.testing.assert_array_equal(tw.run(tw.source(url, **key) + 1), array * factor + 1)
    with pytest.raises(StorageError, match="it exists"):
        tw.run(tw.sink(tw.source(array), url, **key))


def test_chunks_of_a_zarr_are_read_once_where_memory_allows(tmp_path: Path) -> None:
    """A sum down the columns under little memory: column panels would read every chunk once per panel."""
    zarr = pytest.importorskip("zarr", reason="the optional package zarr is not installed")
    array = sample((512, 512), "float64")
    stored = zarr.create_array(store=str(tmp_path / "x.zarr"), shape=array.shape, dtype="f8", chunks=(64, 64))
    stored[:] = array
    plan = tw.plan(tw.sum(tw.source(tmp_path / "x.zarr"), 0), machines(1, memory="160KiB"))
    assert plan.bytes_read == array.nbytes
    np.testing.assert_array_equal(tw.run(plan), array.sum(0))
    sharded = {"shape": array.shape, "dtype": "f8", "chunks": (32, 32), "shards": (128, 128)}
    zarr.create_array(store=str(tmp_path / "s.zarr"), **sharded)[:] = array
    np.testing.assert_array_equal(tw.run(tw.source(tmp_path / "s.zarr")[3:200, 100:] * 1), array[3:200, 100:])


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npy").symlink_to(tmp_path / "a.npy")
    with pytest.raises(StorageError, match=r"sink\(.*it leads nowhere"):
        io.check_targets([(io.target(tmp_path / "a.npy"), TensorType((2,), np.dtype("float32")))])
    (tmp_path / "folder").symlink_to(tmp_path / "folder")
    with pytest.raises(StorageError, match=r"sink\(.*it leads nowhere"):
        io.check_targets([(io.target(tmp_path / "folder" / "a.npy"), TensorType((2,), np.dtype("float32")))])


def table_file(path: Path, columns: dict[str, object] | list[tuple[str, object]]) -> None:
    """A Parquet or Arrow file; names may repeat."""
    arrow = pytest.importorskip("pyarrow", reason="the optional package pyarrow is not installed")
    pairs = list(columns.items()) if isinstance(columns, dict) else columns
    table = arrow.Table.from_arrays([arrow.array(values) for _, values in pairs], names=[name for name, _ in pairs])
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
        return
    with arrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_of_one_name_are_no_member_and_hide_no_other(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    table_file(path, [("a", [1, 2]), ("a", [3, 4]), ("b", [5.0, 6.0])])
    np.testing.assert_array_equal(tw.run(tw.source(path)), [5.0, 6.0])
    with pytest.raises(StorageError, match="there is no member 'a'"):
        tw.source(path, key="a")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_column_with_a_dot_is_not_a_field_of_another(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    table_file(path, {"a": [{"b": 1.0}, {"b": 2.0}], "a.b": [7, 8], "c": [1, 2]})
    np.testing.assert_array_equal(tw.run(tw.source(path, key="a.b")), [7, 8])
    with pytest.raises(StorageError, match="column 'a' holds values of type struct"):
        tw.source(path, key="a")
