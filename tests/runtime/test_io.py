import io as bytes_io
import os
import struct
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import rows_plan

import tileweave as tw
from tileweave.backends.folders import HOST
from tileweave.errors import StorageError
from tileweave.graph import FileData, Graph, MemoryTarget, Sink, TensorType, as_tensor
from tileweave.planner import machines
from tileweave.runtime.io import files as io
from tileweave.runtime.io import sinks
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


SHAPES = [(), (0,), (5,), (4, 0, 3), (7, 5), (3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr"])
def test_what_is_written_is_read(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    for dtype in DTYPES:
        array = sample(shape, dtype)
        target = io.target(tmp_path / f"{dtype}.{suffix}")
        sinks = open_sinks([(target, TensorType(shape, array.dtype))])
        sinks.writers[0].write(Box.of(shape), array)
        assert left_in(tmp_path) != [f"{dtype}.{suffix}"]
        sinks.commit()
        kind, data = io.describe(target.path)
        assert kind == TensorType(shape, array.dtype)
        reader = io.open_source(data, kind)
        got = reader.read(inner_box(shape))
        np.testing.assert_array_equal(got, block_of(array, inner_box(shape)))
        assert got.dtype == array.dtype
        assert isinstance(got, np.ndarray)
        reader.close()
        if suffix == "npy":
            np.testing.assert_array_equal(np.load(target.path), array)
        elif suffix == "npz":
            with np.load(target.path) as members:
                np.testing.assert_array_equal(members["arr_0"], array)
    assert left_in(tmp_path) == sorted(f"{dtype}.{suffix}" for dtype in DTYPES)


@given(st.data())
def test_any_box_of_any_npy_is_read(data: st.DataObject) -> None:
    import tempfile

    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    array = sample(shape, data.draw(st.sampled_from(["int8", "<f4", ">i4", ">f8"])))
    if data.draw(st.booleans()):
        array = np.asarray(array, order="F")
    version = data.draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.npy")
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version)
        kind, where = io.describe(path)
        assert kind == TensorType(shape, array.dtype.newbyteorder("="))
        starts = [data.draw(st.integers(0, n)) for n in shape]
        box = Box.between(starts, [data.draw(st.integers(a, n)) for a, n in zip(starts, shape, strict=True)])
        got = io.open_source(where, kind).read(box)
        np.testing.assert_array_equal(got, block_of(array, box))
        assert got.dtype.isnative


def test_what_a_reader_gives_is_not_writable(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    got = io.open_source(io.describe(tmp_path / "a.npy")[1]).read(Box.of((4,)))
    assert not got.flags.writeable


def test_npz_members_are_read_stored_and_compressed(tmp_path: Path) -> None:
    members = {"a": sample((40, 3), "float32"), "b/c": sample((), "int64"), "empty": np.empty((0, 2))}
    np.savez(tmp_path / "stored.npz", **members)
    np.savez_compressed(tmp_path / "packed.npz", **members)
    for name in ("stored.npz", "packed.npz"):
        for key, array in members.items():
            kind, data = io.describe(tmp_path / name, key)
            assert kind == TensorType(array.shape, array.dtype)
            box = inner_box(array.shape)
            got = io.open_source(data, kind).read(box)
            np.testing.assert_array_equal(got, block_of(array, box))
            assert got.flags.aligned
    np.savez(tmp_path / "one.npz", only=members["a"])
    assert io.describe(tmp_path / "one.npz")[1].key == "only"


# ---------------------------------------------------------------------------------------------------------------------
# what is refused


def refusal(path: Path, key: str = "") -> str:
    with pytest.raises(StorageError) as caught:
        io.describe(path, key)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_broken_npy_is_refused_before_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "is truncated" in refusal(path)
    assert "int32[100] in 528 bytes" in refusal(path)
    path.write_bytes(whole + b"x")
    assert "bytes after its array" in refusal(path)
    for broken in (b"", b"hello", whole[:3], whole[:9], whole[:50], b"\x93NUMPY\x07\x00" + whole[8:]):
        path.write_bytes(broken)
        assert "is not a .npy" in refusal(path)
    for old, new in ((b"(100,)", b"(-10,)"), (b"(100,)", b"('a',)"), (b"'<i4'", b"'<q9'")):
        path.write_bytes(whole.replace(old, new))
        assert "impossible shape" in refusal(path) or "is not a .npy" in refusal(path)


def test_elements_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array in (np.array([None]), np.array(["a"]), np.zeros(2, "c8"), np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4")):
        np.save(path, array, allow_pickle=True)
        assert "holds elements of type" in refusal(path)
        assert "legal" in refusal(path)


def test_missing_files_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    for name in ("none.npy", "none.npz", "none.zarr"):
        assert "cannot be opened: No such file" in refusal(tmp_path / name)
    (tmp_path / "dir.npy").mkdir()
    assert "Is a directory" in refusal(tmp_path / "dir.npy")
    for name in ("a.csv", "a", ".npy"):
        assert ".npy, .npz or .zarr" in refusal(tmp_path / name)
        with pytest.raises(StorageError, match=r"\.npy, \.npz or \.zarr"):
            io.target(tmp_path / name)
    with pytest.raises(StorageError, match="the file cannot be opened"):
        io.describe("memory://nothing/here.npy")
    with pytest.raises(StorageError, match="no key"):
        io.target("a.npy", key="x")
    with pytest.raises(StorageError, match="cannot name a member"):
        io.target("a.npz", key="../x")


def test_npz_without_a_key_lists_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, first=np.zeros(1), second=np.zeros(2))
    assert "'first', 'second'" in refusal(path)
    assert "there is no member 'third'" in refusal(path, "third")
    np.savez(path)
    assert "holds 0 arrays" in refusal(path)


def test_broken_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK nothing")
    assert "not a whole .npz" in refusal(path)
    np.savez(path, a=np.arange(1000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a whole .npz" in refusal(path, "a")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"hello")
    assert "member 'a' is not a .npy" in refusal(path)
    buffer = bytes_io.BytesIO()
    np.save(buffer, np.arange(1000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", buffer.getvalue()[:-8])
    assert "is truncated" in refusal(path)


def test_a_damaged_compressed_member_is_refused_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).integers(0, 1000, 10000))
    kind, data = io.describe(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match=r"not a whole \.npz"):
        io.open_source(data, kind)


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    kind, data = io.describe(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    with pytest.raises(StorageError, match=r"now holds float64\[3, 3\]"):
        io.open_source(data, kind)


def test_a_wrong_local_header_offset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(10))
    broken = bytearray(path.read_bytes())
    at = broken.rindex(b"PK\x01\x02")
    struct.pack_into("<I", broken, at + 42, 7)
    path.write_bytes(broken)
    assert "not a whole .npz" in refusal(path)


# ---------------------------------------------------------------------------------------------------------------------
# sinks

KIND = TensorType((6, 4), np.dtype("int32"))


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    targets = [io.target(tmp_path / "a.npy"), io.target(tmp_path / "b.npz", "x"), io.target(tmp_path / "c.zarr")]
    sinks = open_sinks([(target, KIND) for target in targets])
    for writer in sinks.writers:
        writer.write(Box.of((3, 4)), np.ones((3, 4), np.int32))
    assert len(left_in(tmp_path)) == 4  # two of the .npz: what it will be, and its member
    assert all(name.startswith(".") and f".tmp-{HOST}-{os.getpid()}-" in name for name in left_in(tmp_path))
    sinks.abort()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr"])
def test_a_sink_that_exists_needs_overwrite(tmp_path: Path, suffix: str) -> None:
    for value, overwrite in ((1, False), (2, True)):
        target = io.target(tmp_path / f"a.{suffix}", overwrite=overwrite)
        sinks = open_sinks([(target, KIND)])
        sinks.writers[0].write(KIND.box, np.full((6, 4), value, np.int32))
        sinks.commit()
    with pytest.raises(StorageError, match="--overwrite"):
        open_sinks([(io.target(tmp_path / f"a.{suffix}"), KIND)])
    kind, data = io.describe(target.path)
    assert io.open_source(data, kind).read(KIND.box).max() == 2
    assert left_in(tmp_path) == [f"a.{suffix}"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    sinks = open_sinks([(io.target(tmp_path / "a.npy"), KIND), (io.target(tmp_path / "b.npy"), KIND)])
    (tmp_path / "b.npy").write_text("someone else's")
    with pytest.raises(StorageError, match="it exists"):
        sinks.commit()
    assert left_in(tmp_path) == ["b.npy"]
    assert (tmp_path / "b.npy").read_text() == "someone else's"


def test_only_a_zarr_is_replaced_by_a_zarr(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "precious").write_text("x")
    with pytest.raises(StorageError, match=r"is a directory, not a \.zarr"):
        io.check_targets([(io.target(tmp_path / "a.zarr", overwrite=True), KIND)])
    (tmp_path / "b.npy").mkdir()
    with pytest.raises(StorageError, match=r"is a directory, not a \.npy"):
        io.check_targets([(io.target(tmp_path / "b.npy", overwrite=True), KIND)])
    assert (tmp_path / "a.zarr" / "precious").exists()


def test_sinks_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        io.check_targets([(io.target(tmp_path / "none" / "a.npy"), KIND)])
    import ml_dtypes

    with pytest.raises(StorageError, match="does not hold elements of type bfloat16"):
        io.check_targets([(io.target(tmp_path / "a.npy"), TensorType((2,), np.dtype(ml_dtypes.bfloat16)))])
    with pytest.raises(StorageError, match="two sinks write the same tensor"):
        io.check_targets([(io.target(tmp_path / "a.npy"), KIND), (io.target(f"{tmp_path}/./a.npy"), KIND)])
    with pytest.raises(StorageError, match="one has no key"):
        io.check_targets([(io.target(tmp_path / "a.npz", "x"), KIND), (io.target(tmp_path / "a.npz"), KIND)])
    huge = TensorType((1 << 50,), np.dtype("int64"))
    with pytest.raises(StorageError, match="cannot be written"):
        open_sinks([(io.target(tmp_path / "a.npy"), huge)])
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("suffix", ["npz", "zarr"])
def test_members_of_one_file_appear_together(tmp_path: Path, suffix: str) -> None:
    arrays = {"x": sample((6, 4), "int32"), "y": sample((3,), "float64"), "z/deep": sample((), "float32")}
    targets = [io.target(tmp_path / f"a.{suffix}", key) for key in arrays]
    types = [TensorType(array.shape, array.dtype) for array in arrays.values()]
    sinks = open_sinks(list(zip(targets, types, strict=True)))
    for writer, array in zip(sinks.writers, arrays.values(), strict=True):
        writer.write(Box.of(array.shape), array)
    sinks.commit()
    assert left_in(tmp_path) == [f"a.{suffix}"]
    for key, array in arrays.items():
        kind, data = io.describe(tmp_path / f"a.{suffix}", key)
        np.testing.assert_array_equal(io.open_source(data, kind).read(Box.of(array.shape)), array)
    assert "'x', 'y'" in refusal(tmp_path / f"a.{suffix}")


def test_equal_values_make_equal_npz_files(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        sinks = open_sinks([(io.target(tmp_path / name), KIND)])
        sinks.writers[0].write(KIND.box, np.ones((6, 4)))
        sinks.commit()
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_the_atom_of_a_zarr_is_its_chunk(tmp_path: Path) -> None:
    import zarr

    x = as_tensor(np.broadcast_to(np.float32(0), (3000, 2000)))
    sink = Sink(x, io.target(tmp_path / "a.zarr"))
    open_sinks([(sink.target, x.type)]).commit()
    assert zarr.open_array(tmp_path / "a.zarr", mode="r").chunks == io.atom(sink) == (750, 1000)
    assert io.atom(Sink(x, io.target(tmp_path / "a.npy"))) is None
    assert io.atom(Sink(x, MemoryTarget())) is None
    assert io.atom(Sink(as_tensor(np.zeros((0, 3))), io.target("b.zarr"))) == (1, 3)
    assert io.atom(Sink(as_tensor(1.0), io.target("b.zarr"))) == ()


@pytest.mark.parametrize("suffix", ["npy", "zarr"])
def test_unaligned_parallel_writes_lose_nothing(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tileweave.runtime.io import zarrfile

    monkeypatch.setattr(zarrfile, "CHUNK_BYTES", 256)
    array = sample((64, 10), "int32")
    sinks = open_sinks([(io.target(tmp_path / f"a.{suffix}"), TensorType(array.shape, array.dtype))])
    boxes = [Box((a, 0), (3 if a < 63 else 1, 10)) for a in range(0, 64, 3)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda box: sinks.writers[0].write(box, block_of(array, box)), boxes))
    sinks.commit()
    np.testing.assert_array_equal(
        io.open_source(io.describe(tmp_path / f"a.{suffix}")[1]).read(Box.of((64, 10))), array
    )


def test_a_zarr_behind_a_url(tmp_path: Path) -> None:
    array = sample((6, 4), "int32")
    for url in (f"file://{tmp_path}/a.zarr", "memory://bucket/a.zarr"):
        for overwrite in (False, True):
            sinks = open_sinks([(io.target(url, overwrite=overwrite), KIND)])
            sinks.writers[0].write(KIND.box, array + overwrite)
            sinks.commit()
        with pytest.raises(StorageError, match="--overwrite"):
            open_sinks([(io.target(url), KIND)])
        sinks = open_sinks([(io.target(url, overwrite=True), KIND)])
        sinks.abort()
        kind, data = io.describe(url)
        np.testing.assert_array_equal(io.open_source(data, kind).read(KIND.box), array + 1)
    import fsspec

    fs, root = fsspec.core.url_to_fs("memory://bucket")
    assert [path for path in fs.find(root) if ".tmp-" in path] == []
    with pytest.raises(StorageError, match="not known"):
        io.describe("nosuch://bucket/a.zarr")


@pytest.mark.parametrize("where", ["folder", "memory://sharded"])
def test_a_shard_has_one_writer(tmp_path: Path, where: str) -> None:
    import zarr

    array = sample((50, 37), "float32")
    url = str(tmp_path / "s.zarr") if where == "folder" else f"{where}/s.zarr"
    sink = tw.sink(tw.source(array) * 2, url, chunks=(4, 5), shards=(16, 10))
    plan = rows_plan(sink, machines(7), 6)
    stores = [step for step in plan.steps if step.stage == "store"]
    edges = [{edge % extent for edge in cuts[:-1]} for cuts, extent in zip(stores[0].cuts.cuts, (16, 10), strict=True)]
    assert stores[0].cuts.count > 1 and edges == [{0}, {0}]
    assert round_trips(plan.graph)
    tw.run(plan, threads=4)
    made = zarr.open_array(url, mode="r")
    assert made.chunks == (4, 5) and made.shards == (16, 10)
    np.testing.assert_array_equal(made[:], array * 2)
    np.testing.assert_array_equal(tw.run(tw.source(url) + 0), array * 2)
    if where == "folder":
        assert len([path for path in (tmp_path / "s.zarr" / "c").rglob("*") if path.is_file()]) == 4 * 4


def round_trips(graph: Graph) -> bool:
    """Whether a graph comes back from its document; its arrays become holes."""
    from tileweave.graph import from_json, to_json

    return to_json(from_json(to_json(graph))) == to_json(graph)


def test_shards_are_made_of_chunks(tmp_path: Path) -> None:
    x = tw.source(np.ones((64, 32)))
    with pytest.raises(StorageError, match=r"shards \(10, 8\) are not made of whole chunks \(4, 8\)"):
        tw.sink(x, tmp_path / "a.zarr", chunks=(4, 8), shards=(10, 8))
    with pytest.raises(StorageError, match="does not cut"):
        tw.sink(x, tmp_path / "a.zarr", chunks=(4,))
    for suffix in ("npy", "h5", "hdf5"):
        with pytest.raises(StorageError, match=f"a .{suffix} has no chunks of one's own"):
            tw.sink(x, tmp_path / f"a.{suffix}", chunks=(4, 8))
    assert tw.sink(x, tmp_path / "a.zarr", shards=(32, 32)).target.grid == ((32, 32), (32, 32))


def test_files_behind_a_web_server_are_read(tmp_path: Path) -> None:
    """Also a zarr, whose objects are asked for one by one."""
    import http.server
    import threading

    for package in ("aiohttp", "h5py", "pyarrow"):
        pytest.importorskip(package, reason=f"the optional package {package} is not installed")
    array = sample((30, 4), "float32")
    suffixes = ("npy", "npz", "zarr", "h5", "parquet", "safetensors")
    for suffix in suffixes:
        tw.run(
            tw.sink(tw.source(array), tmp_path / f"a.{suffix}", **({} if suffix in ("npy", "zarr") else {"key": "x"}))
        )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for suffix in suffixes:
                url = f"http://127.0.0.1:{server.server_address[1]}/a.{suffix}"
                np.testing.assert_array_equal(tw.run(tw.source(url) * 2), array * 2)
            with pytest.raises(StorageError, match="cannot be opened"):
                tw.source(f"http://127.0.0.1:{server.server_address[1]}/none.npy")
        finally:
            server.shutdown()
            thread.join()


def test_a_zarr_of_another_format_or_none(tmp_path: Path) -> None:
    import zarr

    zarr.create_array(tmp_path / "two.zarr", shape=(5,), dtype=">i4", chunks=(2,), zarr_format=2)[:] = np.arange(5)
    kind, data = io.describe(tmp_path / "two.zarr")
    assert kind == TensorType((5,), np.dtype("int32"))
    assert io.open_source(data).read(Box((1,), (3,))).tolist() == [1, 2, 3]
    (tmp_path / "plain.zarr").mkdir()
    assert "not a zarr array or group" in refusal(tmp_path / "plain.zarr")
    assert "has no member 'x'" in refusal(tmp_path / "two.zarr", "x")


def test_without_zarr_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(StorageError, match=r"pip install 'tileweave\[io\]'"):
        io.describe(tmp_path / "a.zarr")
    with pytest.raises(StorageError, match=r"pip install 'tileweave\[io\]'"):
        io.check_targets([(io.target(tmp_path / "a.zarr"), KIND)])
    np.save(tmp_path / "a.npy", np.zeros(1))
    assert io.describe(tmp_path / "a.npy")[1] == FileData(str(tmp_path / "a.npy"), "npy")


def test_a_member_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x, y = np.arange(6.0).reshape(2, 3), np.arange(3)
    np.savez_compressed(path, x=x, y=y)
    made = tw.source(x * 2)
    with pytest.raises(StorageError, match="it exists"):
        tw.run(tw.sink(made, path, key="x"))
    tw.run([tw.sink(made, path, key="x", overwrite=True), tw.sink(made + 1, path, key="z", overwrite=True)])
    with np.load(path) as found:
        assert sorted(found.files) == ["x", "y", "z"]
        assert np.array_equal(found["x"], x * 2) and np.array_equal(found["y"], y)
        assert np.array_equal(found["z"], x * 2 + 1)
    tw.run(tw.sink(tw.source(path, key="x") + 1, path, key="x", overwrite=True))  # it is read where it is written
    with np.load(path) as found:
        assert np.array_equal(found["x"], x * 2 + 1) and len(found.files) == 3
    tw.run(tw.sink(made, path, overwrite=True))
    with np.load(path) as found:
        assert found.files == ["arr_0"]
    path.write_bytes(b"no archive")
    with pytest.raises(StorageError, match=r"not a whole \.npz"):
        tw.run(tw.sink(made, path, key="x", overwrite=True))
    assert path.read_bytes() == b"no archive"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr"])
def test_bfloat16_is_refused_before_work(tmp_path: Path, suffix: str) -> None:
    begun: list[object] = []
    x = tw.cast(tw.source(np.ones((4, 4), np.float32)), "bfloat16")
    with pytest.raises(StorageError, match=r"bfloat16(.|\n)*legal   bool, integers, float16, float32 or float64: cast"):
        tw.run(tw.sink(x, tmp_path / f"a.{suffix}"), listeners=[begun.append])
    assert not [event for event in begun if type(event).__name__ != "Failed"]
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------------------------
# HDF5, Parquet, Arrow, safetensors, URLs


@pytest.mark.parametrize("system", ["", "another", None])
def test_a_file_that_another_process_writes_is_flushed_where_the_committing_one_would_not_see_it(
    system: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = sinks.Handle("raw", str(tmp_path / "a"), "", TensorType((4, 6), np.dtype("int32")), 8)
    handle = replace(handle, system=sinks.running_system() if system is None else system)
    (tmp_path / "a").write_bytes(bytes(8 + 4 * 24))
    flushed: list[int] = []
    monkeypatch.setattr(np.memmap, "flush", lambda _: flushed.append(1))
    block = np.arange(8, dtype=np.int32).reshape(2, 4)
    sinks.Reopened(handle).write(Box.between((1, 2), (3, 6)), block)
    written = np.fromfile(tmp_path / "a", np.int32, offset=8).reshape(4, 6)
    np.testing.assert_array_equal(written[1:3, 2:], block)
    assert written.sum() == block.sum()
    assert bool(flushed) == (system is not None or not sinks.running_system())
