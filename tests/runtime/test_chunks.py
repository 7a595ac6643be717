"""Chunk files that are read and written without zarr, held to what zarr itself reads and writes."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import zstd
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec

from tileweave.graph import TensorType
from tileweave.runtime.io import chunks
from tileweave.runtime.io.zarrfile import ZarrReader, ZarrWriter
from tileweave.space import Box

KNOWN = {"auto": "auto", "none": None, "checksum": ZstdCodec(level=1, checksum=True)}
OTHER: dict[str, dict[str, Any]] = {
    "blosc": {"compressors": BloscCodec()},
    "gzip": {"compressors": GzipCodec()},
    "format 2": {"zarr_format": 2},
    "shards": {"shards": (8, 8)},
    "big endian": {"serializer": BytesCodec(endian="big")},
}


def values(rng: random.Random, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers of which whole regions are zero."""
    made = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 2, shape) * rng.choice([0, 1, 1])
    made[: shape[0] // 2] = 0
    return made.astype(dtype)


def boxes(rng: random.Random, shape: tuple[int, ...]) -> Box:
    starts = [rng.randrange(n) for n in shape]
    return Box(tuple(starts), tuple(rng.randint(1, n - a) for a, n in zip(starts, shape, strict=True)))


@pytest.mark.parametrize("packed", KNOWN)
@pytest.mark.parametrize("seed", range(8))
def test_chunks_are_read_and_written_as_zarr_does(tmp_path: Path, packed: str, seed: int) -> None:
    rng = random.Random(f"{packed} {seed}")
    rank, dtype = rng.randint(1, 3), rng.choice(["f4", "f8", "i2", "u1", "?", "f2"])
    shape = tuple(rng.randint(1, 20) for _ in range(rank))
    extents = tuple(rng.randint(1, n) for n in shape)
    options: dict[str, Any] = {"shape": shape, "chunks": extents, "dtype": dtype, "compressors": KNOWN[packed]}
    wanted = values(rng, shape, dtype)
    print(shape, extents, dtype)

    theirs = zarr.create_array(str(tmp_path / "theirs.zarr"), **options)
    theirs[...] = wanted
    assert chunks.chunk_files(theirs, np.dtype(dtype)) is not None
    reader = ZarrReader(theirs, "here")
    for box in (Box((0,) * rank, shape), *(boxes(rng, shape) for _ in range(5))):
        found = reader.read(box)
        np.testing.assert_array_equal(found, wanted[tuple(map(slice, box.start, box.stop))])

    ours = zarr.create_array(str(tmp_path / "ours.zarr"), **options)
    kind = TensorType(shape, np.dtype(dtype))
    ZarrWriter(ours, kind, str(tmp_path / "ours.zarr"), "").write(kind.box, np.asfortranarray(wanted))
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "ours.zarr"))[...], wanted)
    files = [sorted((f.relative_to(at), f.read_bytes()) for f in at.rglob("c*/**/*") if f.is_file())
             for at in (tmp_path / "theirs.zarr", tmp_path / "ours.zarr")]  # fmt: skip
    assert files[0] == files[1]


@pytest.mark.parametrize("other", OTHER)
def test_other_forms_go_through_zarr(tmp_path: Path, other: str) -> None:
    options = {"shape": (16, 12), "chunks": (4, 4), "dtype": "f4"} | OTHER[other]
    if other == "shards":
        options["shape"] = (16, 16)
    array = zarr.create_array(str(tmp_path / "x.zarr"), **options)
    wanted = np.random.default_rng(1).random(options["shape"], np.float32)
    array[...] = wanted
    assert chunks.chunk_files(array, np.dtype("f4")) is None
    np.testing.assert_array_equal(ZarrReader(array, "here").read(Box((0, 0), options["shape"])), wanted)


def test_a_chunk_without_a_file_is_the_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(6, 6), chunks=(3, 3), dtype="f4", fill_value=2.5)
    array[:3, :3] = 1
    found = ZarrReader(array, "here").read(Box((0, 0), (6, 6)))
    np.testing.assert_array_equal(found, array[...])
    assert found[5, 5] == 2.5


@pytest.mark.parametrize("content", [b"", b"xx", zstd.compress(bytes(8), 0), zstd.compress(bytes(80), 0)[:-1]])
def test_a_chunk_of_another_length_is_refused(tmp_path: Path, content: bytes) -> None:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(4, 5), chunks=(4, 5), dtype="f4")
    array[...] = 1
    (tmp_path / "x.zarr" / "c" / "0" / "0").write_bytes(content)
    with pytest.raises(Exception, match="cannot be unpacked"):
        ZarrReader(array, "here").read(Box((0, 0), (4, 5)))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65791, 65792, 1 << 20])
def test_a_frame_says_how_much_it_holds(size: int) -> None:
    assert chunks.content_bytes(zstd.compress(bytes(size), 0)[:18]) == size


def test_a_chunk_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(4, 5), chunks=(4, 5), dtype="f4")

    def full(file: Any, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks, "put", full)
    with pytest.raises(OSError, match="No space"):
        ZarrWriter(array, TensorType((4, 5), np.dtype("f4")), "", "").write(
            Box((0, 0), (4, 5)), np.ones((4, 5), np.float32)
        )
    assert [path.name for path in (tmp_path / "x.zarr").rglob("*") if path.is_file()] == ["zarr.json"]
