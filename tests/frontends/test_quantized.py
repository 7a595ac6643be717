"""Quantised operators of ONNX on random numbers: exact against int64, however many channels a sum has."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tileweave as tw

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT, "int32": TensorProto.INT32}


def loaded(node: onnx.NodeProto | list[onnx.NodeProto], inputs: dict, constants: dict, outputs: dict[str, str]):
    """What nodes make of arrays: the outputs of a run, and of a run cut over three machines."""
    info = [helper.make_tensor_value_info(n, KINDS[x.dtype.name], x.shape) for n, x in inputs.items()]
    made = [helper.make_tensor_value_info(n, KINDS[kind], None) for n, kind in outputs.items()]
    held = [numpy_helper.from_array(np.asarray(x), n) for n, x in constants.items()]
    graph = helper.make_graph(node if isinstance(node, list) else [node], "g", info, made, held)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = tw.load(file.SerializeToString())
    whole = list(model(**inputs).values())
    cut = tw.run(model.plan(machines=tw.machines(3)), bind=model.bind(**inputs))
    for a, b in zip(whole, cut if isinstance(cut, list) else [cut], strict=True):
        np.testing.assert_array_equal(a, b)
    return whole


def small(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """Integers of the whole range of a type."""
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, shape).astype(kind)


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", [(5, 7, 4), (33, 514, 40), (128, 768, 96)])
def test_products_are_exact(shape: tuple[int, int, int], kinds: tuple[str, str]) -> None:
    rng, (m, k, n) = np.random.default_rng(shape[0]), shape
    a, b, za, zb = small(rng, kinds[0], m, k), small(rng, kinds[1], k, n), small(rng, kinds[0]), small(rng, kinds[1], n)
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    (y,) = loaded(node, {"a": a}, {"b": b, "za": za, "zb": zb}, {"y": "int32"})
    np.testing.assert_array_equal(y, (a.astype(np.int64) - za) @ (b.astype(np.int64) - zb))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [2, 64, 300])
def test_convolutions_are_exact(channels: int, groups: int) -> None:
    """Filters at the ends of the range, whose sums over 300 channels are beyond what float32 holds."""
    rng = np.random.default_rng(channels)
    x, zx, zw = small(rng, "uint8", 1, channels, 6, 7), np.uint8(3), np.int8(-128)
    w = np.where(rng.random((4, channels // groups, 3, 3)) < 0.9, 127, small(rng, "int8")).astype("int8")
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], group=groups, pads=[1, 1, 1, 1])
    (y,) = loaded(node, {"x": x}, {"w": w, "zx": zx, "zw": zw}, {"y": "int32"})
    wide = np.pad(x.astype(np.int64) - 3, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = zip(np.split(wide, groups, 1), np.split(w.astype(np.int64) + 128, groups, 0), strict=True)
    windows = [
        np.einsum("nchwij,fcij->nfhw", np.lib.stride_tricks.sliding_window_view(p, (3, 3), (2, 3)), f) for p, f in parts
    ]
    np.testing.assert_array_equal(y, np.concatenate(windows, 1))


def test_what_is_quantised_and_used_at_once_is_what_its_integers_say() -> None:
    """x -> uint8 -> float32, and a product of numbers quantised by their own range."""
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=(40, 64)).astype(np.float32) * 9, small(rng, "int8", 64, 24)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["back"]),
        helper.make_node("DynamicQuantizeLinear", ["x"], ["dq", "ds", "dz"]),
        helper.make_node("MatMulInteger", ["dq", "w", "dz"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    wanted = {"q": "uint8", "back": "float32", "dq": "uint8", "dz": "uint8", "y": "float32"}
    held = {"s": np.float32(0.1), "z": np.uint8(77), "w": w}
    q, back, dq, dz, y = loaded(nodes, {"x": x}, held, wanted)
    np.testing.assert_array_equal(q, np.clip(np.rint(x / np.float32(0.1)) + 77, 0, 255))
    np.testing.assert_array_equal(back, (q.astype(np.float32) - 77) * np.float32(0.1))
    np.testing.assert_array_equal(y, (dq.astype(np.int64) - dz) @ w.astype(np.int64))
    assert np.abs((dq.astype(np.float64) - dz) * (x.max() - x.min()) / 255 - x).max() <= (x.max() - x.min()) / 255


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")])
def test_products_are_exact_whatever_stands_for_zero(kinds: tuple[str, str], known: bool) -> None:
    """Zeros of one value, per row and per column; factors that fit in signed bytes less their zeros, or do not."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(4):
        m, k, n = (int(rng.choice([1, 3, 16, 40, 130])) for _ in range(3))
        a, b = small(rng, kinds[0], *[(2, m, k), (m, k)][rng.integers(2)]), small(rng, kinds[1], k, n)
        za, zb = small(rng, kinds[0], *[(), (m,)][rng.integers(2)]), small(rng, kinds[1], *[(), (n,)][rng.integers(2)])
        if rng.random() < 0.5:
            middle = 128 if kinds[1] == "uint8" else 0
            b, zb = np.clip(b, middle - 120, middle + 120), (zb % 5 + middle).astype(kinds[1])
        node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
        constants, inputs = {"za": za}, {"a": a}
        (constants if known else inputs).update({"b": b, "zb": zb})
        (y,) = loaded(node, inputs, constants, {"y": "int32"})
        rows = za.astype(np.int64).reshape(-1, 1) if za.ndim else np.int64(za)
        np.testing.assert_array_equal(y, (a.astype(np.int64) - rows) @ (b.astype(np.int64) - zb.astype(np.int64)))


@pytest.mark.parametrize("zeros", [(7, 7), (0, 0), (7, 8), (250, 3)])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_what_is_quantised_there_and_back_takes_no_more_steps_than_it_needs(kind: str, zeros: tuple[int, int]) -> None:
    """What stands for zero is added and taken away again only where two of them differ, and what is whole stays."""
    first, second = (np.array(z).astype(kind) for z in zeros)
    x = np.random.default_rng(zeros[0]).normal(0, 60, (37, 11)).astype(np.float32)
    x.flat[:6] = 0.5, -0.5, 1.5, np.inf, -np.inf, 1e30
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z2"], ["y"]),
    ]
    scale = np.float32(1)
    (y,) = loaded(nodes, {"x": x}, {"s": scale, "z": first, "z2": second}, {"y": "float32"})
    limits = np.iinfo(kind)
    wide = np.clip(np.rint(x.astype(np.float64)) + int(first), limits.min, limits.max) - int(second)
    np.testing.assert_array_equal(y, wide.astype(np.float32))
    read = tw.quantize(tw.source(x), scale, int(first), kind)
    back = tw.dequantize(read, scale, int(second))
    np.testing.assert_array_equal(np.asarray(back), y)
    steps = [op.operator for op in tw.graph.Graph.of(back).operations]
    assert len(steps) == (5 if zeros[0] == zeros[1] else 7), steps
