"""safetensors as sources: values and types, several files, and every way in which a file may be broken."""

import json

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import StorageError

RNG = np.random.default_rng(0)
KINDS = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64",
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}


def saved(path, arrays, **changes):
    """A file in the format, by the description of it."""
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        header[name] |= changes
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_type(kind, tmp_path):
    x = RNG.integers(0, 2, (3, 4)).astype(KINDS[kind])
    path = saved(tmp_path / "w.safetensors", {"pad": np.zeros(3, np.int8), "x": x, "scalar": x[0, 0].reshape(())})
    tensor = tw.source(path, key="x")
    assert tensor.dtype == x.dtype and tensor.shape == (3, 4)
    np.testing.assert_array_equal(tw.run(tensor).view(np.uint8), x.view(np.uint8))
    np.testing.assert_array_equal(tw.run(tensor[1:, ::2], machines=2).astype("f8"), x[1:, ::2].astype("f8"))
    assert tw.run(tw.source(path, key="scalar")).shape == ()


def test_a_product_with_weights_in_files(tmp_path):
    w, x = RNG.random((8, 5), np.float32), RNG.random((3, 8), np.float32)
    tensors = tw.sources(saved(tmp_path / "w.safetensors", {"w": w, "b": w[0], "none": w[:0]}))
    assert list(tensors) == ["w", "b", "none"]
    for machines in (1, 3):
        got = tw.run(tw.linear(x, tensors["w"], tensors["b"]), machines=machines)
        np.testing.assert_allclose(got, x @ w + w[0], rtol=1e-6)
    assert tw.run(tensors["none"]).shape == (0, 5)


def test_a_checkpoint_of_several_files(tmp_path):
    a, b = RNG.random((2, 3)), RNG.random(4).astype(ml_dtypes.bfloat16)
    saved(tmp_path / "one.safetensors", {"a": a})
    saved(tmp_path / "two.safetensors", {"b": b})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}}))
    tensors = tw.sources(index)
    assert list(tensors) == ["b", "a"]
    got_b, got_a = tw.run(list(tensors.values()))
    np.testing.assert_array_equal(got_a, a)
    np.testing.assert_array_equal(got_b.view(np.uint16), b.view(np.uint16))
    with pytest.raises(StorageError, match="no key says which"):
        tw.source(index)
    index.write_text("{}")
    with pytest.raises(StorageError, match="no index of tensors"):
        tw.sources(index)


def test_broken_files_are_refused_before_work(tmp_path):
    x = np.arange(6.0)
    path = saved(tmp_path / "w.safetensors", {"x": x})
    whole = path.read_bytes()

    def refused(data, said):
        path.write_bytes(data)
        with pytest.raises(StorageError, match=said):
            tw.source(path, key="x")

    refused(b"", "truncated, or has no header")
    refused(whole[:30], "truncated, or has no header")
    refused(whole[:-1], r"member 'x' lies in bytes 0..48 of 47")
    refused((2).to_bytes(8, "little") + b"[]" + whole, "names no tensors")
    refused((2).to_bytes(8, "little") + b"{x" + whole, "no JSON")
    refused((1 << 63).to_bytes(8, "little") + whole, "truncated, or has no header")
    for change, said in (
        ({"dtype": "F4"}, "elements of type 'F4'"),
        ({"shape": [-6]}, r"shape \(-6,\)"),
        ({"shape": [7]}, "48 of 48"),
        ({"shape": 6}, "no type, shape and place"),
        ({"shape": [True, 6]}, r"shape \(True, 6\)"),
        ({"data_offsets": [48, 0]}, "bytes 48..0"),
        ({"data_offsets": [0]}, "no type, shape and place"),
        ({"data_offsets": [8, 56]}, "lies in bytes 8..56 of 48"),
    ):
        saved(path, {"x": x}, **change)
        with pytest.raises(StorageError, match=said):
            tw.source(path, key="x")
    with pytest.raises(StorageError, match=r"there is no member 'y'"):
        tw.source(saved(path, {"x": x}), key="y")
    with pytest.raises(StorageError, match="read, not written"):
        tw.sink(tw.source(x), tmp_path / "out.safetensors.index.json")
    with pytest.raises(StorageError, match="is one array"):
        np.save(tmp_path / "x.npy", x)
        tw.sources(tmp_path / "x.npy")


def test_random_bytes_are_refused(tmp_path):
    path = saved(tmp_path / "w.safetensors", {"x": np.arange(6.0), "y": np.ones((2, 3), np.float32)})
    whole = bytearray(path.read_bytes())
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(int(RNG.integers(1, 4))):
            data[int(RNG.integers(0, len(whole) - 72))] = int(RNG.integers(256))
        path.write_bytes(bytes(data))
        try:
            tw.run(tw.source(path, key="x"))
        except StorageError:
            refused += 1
    assert refused > 200
