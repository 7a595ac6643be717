"""Files that are not what they say: the error names the file and what is wrong, and nothing is left beside it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import tileweave as tw
from tileweave.errors import TileweaveError

DATA = np.arange(64, dtype=np.float32).reshape(8, 8)


def cut(name: str, keep: float, **members: np.ndarray) -> Callable[[Path], tw.Tensor]:
    """A file that was not written to its end."""

    def read(folder: Path) -> tw.Tensor:
        key = next(iter(members), "")
        path = folder / name
        tw.run(tw.sink(tw.source(DATA), path, key=key))
        path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
        return tw.source(path, key=key)

    return read


def zarr_with(change: Callable[[Path], object]) -> Callable[[Path], tw.Tensor]:
    """A zarr array of which something was changed."""

    def read(folder: Path) -> tw.Tensor:
        tw.run(tw.sink(tw.source(DATA), folder / "x.zarr", chunks=(4, 8)))
        change(folder / "x.zarr")
        return tw.source(folder / "x.zarr")

    return read


def metadata(**changed: object) -> Callable[[Path], object]:
    """Other words in the metadata of an array."""

    def change(path: Path) -> None:
        file = path / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def safetensors(header: object, data: int = 64) -> Callable[[Path], tw.Tensor]:
    """A file with this header, and so many bytes of data."""

    def read(folder: Path) -> tw.Tensor:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        (folder / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
        return tw.source(folder / "x.safetensors", key="w")

    return read


def entry(begin: int, end: int, *shape: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}


def parquet(column: object, **changed: bool) -> Callable[[Path], tw.Tensor]:
    """A file with this column beside a whole one whose name begins alike, in two groups."""

    def read(folder: Path) -> tw.Tensor:
        table = pyarrow.table({"a": column, "ab": [1.0, None]} if changed else {"a": column, "ab": [1.0, 2.0]})
        pyarrow.parquet.write_table(table, folder / "x.parquet", row_group_size=1, **changed)
        return tw.source(folder / "x.parquet", key="a")

    return read


LISTS = pyarrow.array([[1, 2], [3, None]], pyarrow.list_(pyarrow.int32(), 2))
BAD: dict[str, tuple[Callable[[Path], tw.Tensor], str]] = {
    "half an npy": (cut("x.npy", 0.5), "x.npy.*truncated"),
    "npy without a header": (cut("x.npy", 0.05), "x.npy.*not a .npy"),
    "empty npy": (cut("x.npy", 0), "x.npy.*not a .npy"),
    "half an npz": (cut("x.npz", 0.5, a=DATA), "x.npz.*not a whole .npz"),
    "half an HDF5": (cut("x.h5", 0.3, a=DATA), "x.h5.*not a whole HDF5"),
    "half a parquet": (cut("x.parquet", 0.5, a=DATA), "x.parquet.*not a whole .parquet"),
    "a missing value": (parquet([1.0, None]), "^source.*x.parquet.*column 'a' has missing values"),
    "a missing value in a list": (parquet(LISTS), "^source.*x.parquet.*column 'a' has missing values"),
    "a missing value that only the data shows": (
        parquet([1.0, None], write_statistics=False),
        "run.*x.parquet.*column 'a' has missing values",
    ),
    "a missing value in a list that only the data shows": (
        parquet(LISTS, write_statistics=False),
        "run.*x.parquet.*column 'a' has missing values",
    ),
    "zarr without an end": (zarr_with(lambda at: (at / "zarr.json").write_text("{")), "x.zarr.*JSONDecodeError"),
    "zarr of minus five": (zarr_with(metadata(shape=[8, -5])), "x.zarr.*non-negative"),
    "zarr of no type": (zarr_with(metadata(data_type="float99")), "x.zarr.*float99"),
    "zarr with a bad chunk": (
        zarr_with(lambda at: (at / "c" / "1" / "0").write_bytes(b"xx")),
        r"x.zarr.*the chunk at \[4:8, 0:8\] cannot be unpacked",
    ),
    "data behind the end": (safetensors({"w": entry(0, 6400, 40, 40)}), "lies in bytes 0..6400 of 64"),
    "too few bytes": (safetensors({"w": entry(0, 64, 4, 5)}), "80 bytes inside the file"),
    "two tensors in one place": (safetensors({"v": entry(32, 64, 8), "w": entry(0, 64, 16)}), "has bytes of 'v'"),
    "an entry of another kind": (safetensors({"w": entry(0, 64, 16), "v": 3}), "no type, shape and place"),
    "minus four rows": (safetensors({"w": entry(0, 64, -4, -4)}), r"shape \(-4, -4\)"),
    "no JSON": (safetensors(b'{"w": [1'), "the header is no JSON"),
    "a header of 2^60 bytes": (
        lambda folder: (
            (folder / "x.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}"),
            tw.source(folder / "x.safetensors", key="w"),
        )[1],
        "truncated",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_lies_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    make, problem = BAD[name]
    with pytest.raises(TileweaveError, match=f"(?s){problem}"):
        tw.run(tw.sink(make(tmp_path) * 2, tmp_path / "out.npy"))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(TileweaveError, match="x' is no folder"):
        tw.run(tw.sink(tw.source(DATA), tmp_path / "x" / "out.npy"))


def test_a_whole_column_beside_one_with_missing_values_is_read(tmp_path: Path) -> None:
    x = parquet([1.0, 2.0], write_statistics=True)(tmp_path)
    np.testing.assert_array_equal(tw.run(x * 2), [2.0, 4.0])
