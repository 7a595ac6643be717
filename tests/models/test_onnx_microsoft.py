"""Operators of com.microsoft: equal to onnxruntime's, drawn at random, and in models that its optimiser wrote."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tileweave as tw

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="make test-models installs onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402

Rng = np.random.Generator
Case = tuple[list[str], dict[str, Any], dict[str, Any], dict[str, Any], int]
"""Inputs in order, arrays of a call, constants, attributes, and how many outputs."""


def floats(rng: Rng, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def bytes_of(rng: Rng, dtype: Any, *shape: int) -> Any:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def weights(rng: Rng, *shape: int) -> Any:
    """Weights of seven bits: onnxruntime sums pairs of products in 16 bits, which saturate with more, before VNNI.

    That is its documented limit (``reduce_range`` of its quantiser), met on every x86 processor without that extension.
    """
    return rng.integers(-64, 64, shape).astype(np.int8)


def scale(rng: Rng, *shape: int) -> Any:
    return (rng.random(shape) * 0.05 + 0.01).astype(np.float32)


def pick(rng: Rng, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def matmul(kind: str, rng: Rng) -> Case:
    outer = [int(n) for n in rng.integers(1, 4, rng.integers(0, 3))]
    m, k, n = (int(v) for v in rng.integers(1, 9, 3))
    flags = {name: int(rng.integers(2)) for name in ("transA", "transB")}
    a, b = [m, k], [k, n]
    a, b = (s[::-1] if flags[f] else s for s, f in ((a, "transA"), (b, "transB")))
    shapes = []
    for side, matrix in (("A", a), ("B", b)):
        if outer and rng.random() < 0.4:
            flags[f"transBatch{side}"] = 1
            shapes.append([matrix[0], *outer, matrix[1]])
        else:
            shapes.append([*outer, *matrix])
    return ["a", "b"], {"a": floats(rng, *shapes[0]), "b": floats(rng, *shapes[1])}, {}, flags | {"alpha": 0.5}, 1


def gemm(kind: str, rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(1, 9, 3))
    arrays = {"a": floats(rng, m, k), "b": floats(rng, n, k), "c": floats(rng, n)}
    activation = pick(rng, {"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.1})
    return list("abc"), arrays, {}, {"transB": 1, "alpha": 0.7, "beta": 0.3} | activation, 1


def convolution(kind: str, rng: Rng) -> Case:
    channels, filters, size = (int(v) for v in rng.integers(1, 6, 3))
    x, w = floats(rng, 2, channels, size + 2, 7), floats(rng, filters, channels, 3, 3)
    inputs, arrays = ["x", "w", "b"], {"x": x}
    activation = pick(
        rng,
        {"activation": "Relu"},
        {"activation": "LeakyRelu", "activation_params": [0.1]},
        {"activation": "Clip", "activation_params": [-0.5, 0.8]},
        {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]},
    )
    if rng.random() < 0.4:
        inputs, arrays["z"] = [*inputs, "z"], floats(rng, 2, filters, size + 2, 7)
        activation = {"activation": "Relu"}
    return (
        inputs,
        arrays,
        {"w": w, "b": floats(rng, filters)},
        {"pads": [1] * 4, "kernel_shape": [3, 3]} | activation,
        1,
    )


def elementwise(kind: str, rng: Rng) -> Case:
    n = int(rng.integers(1, 20))
    x = 3 * floats(rng, 2, 3, n)
    if kind in ("BiasGelu", "FastGelu"):
        return ["x", "b"], {"x": x}, {"b": floats(rng, n)}, {}, 1
    return ["x"], {"x": x}, {}, {"alpha": 1.3} if kind == "QuickGelu" else {}, 1


def norm(kind: str, rng: Rng) -> Case:
    b, s, h = (int(v) for v in rng.integers(1, 9, 3))
    x, skip = floats(rng, b, s, h), floats(rng, *pick(rng, (b, s, h), (1, s, h), (s, h)))
    constants = {"gamma": floats(rng, h), "beta": floats(rng, h), "bias": floats(rng, h)}
    inputs = ["x", "skip", "gamma"]
    if "Simplified" not in kind:
        inputs += [pick(rng, "beta", "")]
    inputs += ["bias"] if rng.random() < 0.5 else []
    return inputs, {"x": x, "skip": skip}, constants, {"epsilon": 1e-3}, 4


def simplified(kind: str, rng: Rng) -> Case:
    b, s, h = (int(v) for v in rng.integers(1, 9, 3))
    return ["x", "gamma"], {"x": floats(rng, b, s, h)}, {"gamma": floats(rng, h)}, {"epsilon": 1e-3, "axis": -1}, 1


def embedding(kind: str, rng: Rng) -> Case:
    b, s, h, words = (int(v) for v in rng.integers(1, 9, 4))
    arrays = {"ids": rng.integers(0, words, (b, s)).astype(np.int32)}
    constants = {"words": floats(rng, words, h), "places": floats(rng, s + 2, h), "segments": floats(rng, 2, h)}
    constants |= {"gamma": floats(rng, h), "beta": floats(rng, h)}
    inputs = ["ids", "", "words", "places", "", "gamma", "beta"]
    if rng.random() < 0.6:
        arrays["seg"] = rng.integers(0, 2, (b, s)).astype(np.int32)
        inputs[1], inputs[4] = "seg", "segments"
    if rng.random() < 0.6:
        arrays["mask"] = (np.arange(s) < rng.integers(1, s + 1, (b, 1))).astype(np.int32)
        inputs.append("mask")
        if rng.random() < 0.5:
            arrays["pos"] = rng.integers(0, s + 2, (b, s)).astype(np.int32)
            inputs.append("pos")
    return inputs, arrays, constants, {"epsilon": 1e-3}, 2


def padding(rng: Rng, b: int, s: int, keys: int, *, ends: bool = True) -> Any:
    """A mask in one of its forms, with something to see in each row."""
    stop = rng.integers(1, keys + 1, b)
    form = int(rng.integers(4 if ends else 3))
    if form == 0:
        return stop.astype(np.int32)
    if form == 1:
        return (np.arange(keys) < stop[:, None]).astype(np.int32)
    if form == 2:
        made = (rng.random((b, s, keys)) < 0.6).astype(np.int32)
        made[:, :, 0] = 1
        return made
    return np.concatenate([stop, rng.integers(0, stop)]).astype(np.int32)


def attention(kind: str, rng: Rng) -> Case:
    b, s, heads, d, width, past = (int(v) for v in rng.integers(1, 6, 6))
    size = heads * d
    arrays, attributes = {"x": floats(rng, b, s, width)}, {"num_heads": heads}
    constants = {"w": floats(rng, width, 3 * size), "b": floats(rng, 3 * size)}
    inputs = ["x", "w", "b", "", "", ""]
    before = rng.random() < 0.4
    past *= before
    if before:
        arrays["past"], inputs[4] = floats(rng, 2, b, heads, past, d), "past"
    if rng.random() < 0.6:
        arrays["mask"], inputs[3] = padding(rng, b, s, s + past), "mask"
    elif rng.random() < 0.5:
        arrays["bias"], inputs[5] = floats(rng, pick(rng, 1, b), pick(rng, 1, heads), s, s + past), "bias"
    if rng.random() < 0.5:
        attributes["unidirectional"] = 1
    if kind == "QAttention":
        arrays["x"], constants["w"] = bytes_of(rng, np.uint8, b, s, width), weights(rng, width, 3 * size)
        zeros = {"xs": scale(rng), "ws": scale(rng) / 9, "xz": bytes_of(rng, np.uint8), "wz": np.zeros((), np.int8)}
        inputs = ["x", "w", "b", "xs", "ws", inputs[3], "xz", "wz", inputs[4]]
        return inputs, arrays, constants | zeros, attributes, 1 + before
    return inputs, arrays, constants, attributes, 1 + before


def multi_head(kind: str, rng: Rng) -> Case:
    b, s, keys, heads, d, e, past = (int(v) for v in rng.integers(1, 6, 7))
    attributes: dict[str, Any] = {"num_heads": heads}
    inputs = ["q", "", "", "", "", "", "", ""]
    arrays = {"q": floats(rng, b, s, heads * d), "k": floats(rng, b, keys, heads * d)}
    arrays["v"] = floats(rng, b, keys, heads * e)
    past *= rng.random() < 0.5
    if past:
        e, keys = d, s
        arrays |= {"k": floats(rng, b, s, heads * d), "v": floats(rng, b, s, heads * d)}
        arrays |= {"pk": floats(rng, b, heads, past, d), "pv": floats(rng, b, heads, past, d)}
    if rng.random() < 0.5:
        arrays["bias"] = floats(rng, heads * (2 * d + e))
    if rng.random() < 0.4:
        arrays["mask"] = padding(rng, b, s, keys + past, ends=False)
    if rng.random() < 0.4:
        arrays["add"] = floats(rng, pick(rng, 1, b), pick(rng, 1, heads), s, keys + past)
    if rng.random() < 0.4 and keys == s:
        attributes["unidirectional"] = 1
    for place, name in enumerate(["q", "k", "v", "bias", "mask", "add", "pk", "pv"]):
        inputs[place] = name if name in arrays else ""
    return inputs, arrays, {}, attributes, 3 if past else 1


def rotary(kind: str, rng: Rng) -> Case:
    b, s, heads, half = (int(v) for v in rng.integers(1, 6, 4))
    places = s + 3
    angles = rng.random((places, half)) * 6
    x = floats(rng, b, s, heads * 2 * half) if rng.random() < 0.5 else floats(rng, b, heads, s, 2 * half)
    at = np.array([2]) if rng.random() < 0.5 else rng.integers(0, places, (b, s))
    constants = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    return ["x", "at", "cos", "sin"], {"x": x, "at": at}, constants, {"interleaved": int(rng.integers(2))}, 1


def group_query(kind: str, rng: Rng) -> Case:
    b, s, kv, per, past = (int(v) for v in rng.integers(1, 6, 5))
    d, heads = 16, kv * per
    mode = pick(rng, "prompt", "step", "ragged")
    past, s = (0, s) if mode == "prompt" else (past, 1)
    total, room = past + s, past + pick(rng, 0, 3)
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv}
    lengths = np.full(b, total - 1) if mode != "ragged" else rng.integers(s - 1, total, b)
    lengths[0] = total - 1
    arrays = {"q": floats(rng, b, s, heads * d), "k": floats(rng, b, s, kv * d), "v": floats(rng, b, s, kv * d)}
    inputs = ["q", "k", "v", "pk", "pv", "lengths", "total", "", "", "", ""]
    if rng.random() < 0.3:
        arrays = {"q": np.concatenate([arrays[k] for k in "qkv"], -1)}
        inputs[1] = inputs[2] = ""
    arrays |= {"pk": floats(rng, b, kv, room, d), "pv": floats(rng, b, kv, room, d)}
    arrays["lengths"] = lengths.astype(np.int32)
    constants: dict[str, Any] = {"total": np.array(total, np.int32)}
    if rng.random() < 0.5:
        angles = rng.random((total + room, d // 2)) * 6
        constants |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        inputs[7:9] = ["cos", "sin"]
    attributes |= pick(rng, {}, {"scale": 0.3}, {"softcap": 1.5}, {"local_window_size": int(rng.integers(1, 5))})
    if rng.random() < 0.2:
        arrays["add"], inputs[10] = floats(rng, 1, 1, s, total), "add"
    return inputs, arrays, constants, attributes, 3


def few_bits(kind: str, rng: Rng) -> Case:
    bits, size = pick(rng, 4, 4, 8), pick(rng, 16, 32)
    m, n, k = int(rng.integers(1, 5)), int(rng.integers(1, 9)), int(rng.integers(1, 5)) * pick(rng, 16, 12)
    blocks = -(-k // size)
    constants = {"b": bytes_of(rng, np.uint8, n, blocks, size * bits // 8), "s": scale(rng, n, blocks)}
    inputs = ["a", "b", "s", "", "", ""]
    if rng.random() < 0.5:
        constants["z"], inputs[3] = bytes_of(rng, np.uint8, n, -(-blocks * bits // 8)), "z"
    if rng.random() < 0.5:
        constants["bias"], inputs[5] = floats(rng, n), "bias"
    return inputs, {"a": floats(rng, 2, m, k)}, constants, {"K": k, "N": n, "bits": bits, "block_size": size}, 1


def integers(kind: str, rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(1, 20, 3))
    wide = pick(rng, (), (n,))
    constants = {"b": weights(rng, k, n), "bs": scale(rng, *wide), "bz": bytes_of(rng, np.int8, *wide)}
    constants |= {"as": scale(rng), "az": bytes_of(rng, np.uint8), "bias": floats(rng, n)}
    constants |= {
        "c": rng.integers(-999, 999, n).astype(np.int32),
        "ys": scale(rng) * 40,
        "yz": bytes_of(rng, np.uint8),
    }
    if kind == "DynamicQuantizeMatMul":
        return ["a", "b", "bs", "bz", "bias"], {"a": floats(rng, 2, m, k)}, constants, {}, 1
    arrays = {"a": bytes_of(rng, np.uint8, m, k)}
    if kind == "QGemm":
        end = ["ys", "yz"] if rng.random() < 0.5 else []
        return ["a", "as", "az", "b", "bs", "bz", "c", *end], arrays, constants, {"alpha": 0.5}, 1
    return ["a", "b", "as", "bs", "az", "bz", "bias"], arrays, constants, {}, 1


def quantized(kind: str, rng: Rng) -> Case:
    dtype = pick(rng, np.uint8, np.int8)
    shape = [int(n) for n in rng.integers(1, 6, 4)]
    x, y = bytes_of(rng, dtype, *shape), bytes_of(rng, dtype, *pick(rng, shape, shape[2:]))
    zeros = {f"{n}z": bytes_of(rng, dtype) for n in "xyz"}
    constants = {"xs": scale(rng), "ys": scale(rng), "zs": scale(rng) * 2} | zeros
    if kind in ("QLinearAdd", "QLinearMul"):
        return ["x", "xs", "xz", "y", "ys", "yz", "zs", "zz"], {"x": x, "y": y}, constants, {}, 1
    if kind == "QLinearConcat":
        arrays = {"x": x, "y": bytes_of(rng, dtype, *shape)}
        return ["zs", "zz", "x", "xs", "xz", "y", "ys", "yz"], arrays, constants, {"axis": 1}, 1
    if kind == "QLinearWhere":
        arrays = {"c": rng.random(shape) < 0.5, "x": x, "y": bytes_of(rng, dtype, *shape)}
        return ["c", "x", "xs", "xz", "y", "ys", "yz", "zs", "zz"], arrays, constants, {}, 1
    attributes: dict[str, Any] = {}
    if kind == "QLinearSoftmax":
        attributes = {"axis": pick(rng, -1, 2), "opset": pick(rng, 11, 13)}
        constants["zs"] = np.float32(1 / 256)
    elif kind == "QLinearLeakyRelu":
        attributes = {"alpha": 0.2}
    elif "Pool" in kind:
        attributes = {"channels_last": int(rng.integers(2))}
        if "Global" not in kind:
            x = (
                bytes_of(rng, dtype, *shape[:2], 5, 6)
                if not attributes["channels_last"]
                else np.moveaxis(bytes_of(rng, dtype, *shape[:2], 5, 6), 1, -1).copy()
            )
            attributes |= {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    return ["x", "xs", "xz", "zs", "zz"], {"x": x}, constants, attributes, 1


def quantized_convolution(kind: str, rng: Rng) -> Case:
    channels, filters = (int(v) for v in rng.integers(1, 6, 2))
    last = int(rng.integers(2))
    x = bytes_of(rng, np.uint8, 2, *((5, 6, channels) if last else (channels, 5, 6)))
    constants = {"w": weights(rng, filters, channels, 3, 3), "xs": scale(rng), "xz": bytes_of(rng, np.uint8)}
    constants |= {"ws": scale(rng, *pick(rng, (), (filters,))), "ys": scale(rng) * 50, "yz": bytes_of(rng, np.uint8)}
    constants |= {"wz": np.zeros(constants["ws"].shape, np.int8), "b": rng.integers(-99, 99, filters).astype(np.int32)}
    attributes = {"channels_last": last, "pads": [1] * 4, "strides": [2, 1]}
    return ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], {"x": x}, constants, attributes, 1


CASES: dict[str, Callable[[str, Rng], Case]] = {
    "FusedMatMul": matmul,
    "FusedGemm": gemm,
    "FusedConv": convolution,
    **dict.fromkeys(["Gelu", "BiasGelu", "FastGelu", "QuickGelu"], elementwise),
    **dict.fromkeys(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"], norm),
    "SimplifiedLayerNormalization": simplified,
    "EmbedLayerNormalization": embedding,
    **dict.fromkeys(["Attention", "QAttention"], attention),
    "MultiHeadAttention": multi_head,
    "RotaryEmbedding": rotary,
    "GroupQueryAttention": group_query,
    "MatMulNBits": few_bits,
    **dict.fromkeys(["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm"], integers),
    **dict.fromkeys(["QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearWhere", "QLinearSigmoid"], quantized),
    **dict.fromkeys(["QLinearLeakyRelu", "QLinearSoftmax"], quantized),
    **dict.fromkeys(["QLinearAveragePool", "QLinearGlobalAveragePool"], quantized),
    "QLinearConv": quantized_convolution,
}


def model_of(kind: str, case: Case) -> Any:
    """A model of one node."""
    inputs, arrays, constants, attributes, count = case
    outputs = [f"out{k}" for k in range(count)]
    while inputs and not inputs[-1]:
        inputs.pop()
    domain = "" if kind == "SimplifiedLayerNormalization" else "com.microsoft"
    named = [name for k, name in enumerate(outputs)]
    if kind.startswith("Skip"):
        named[1:3] = ["", ""]  # onnxruntime's kernels for processors leave these undefined
    node = helper.make_node(kind, inputs, named, name="node", domain=domain, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    infos = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in arrays.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in named if name]
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items() if name in inputs]
    graph = helper.make_graph([node], "one", infos, results, held)
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    made.ir_version = 9
    return made


def expected_of(model: Any, arrays: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, arrays)  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", CASES)
def test_operators_equal_onnxruntime(kind, seed):
    case = CASES[kind](kind, np.random.default_rng([seed, len(kind)]))
    model = model_of(kind, case)
    expected = expected_of(model, case[1])
    got = tw.load(model)(**case[1])
    for one, other in zip(got.values(), expected, strict=True):
        if kind == "GroupQueryAttention" and one.ndim == 4:  # what a cache has beyond its length is not specified
            beyond = np.arange(one.shape[2]) > case[1]["lengths"][:, None]
            one, other = (np.where(beyond[:, None, :, None], 0, each) for each in (one, other))
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        integer = other.dtype.kind in "iu"
        tolerance = 1.001 if integer else 2e-4 * max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=0, atol=tolerance)


def test_unidirectional_attention_to_other_sequences_is_refused() -> None:
    rng = np.random.default_rng(0)
    arrays = {"q": floats(rng, 1, 2, 8), "k": floats(rng, 1, 4, 8), "v": floats(rng, 1, 4, 8)}
    case: Case = (list("qkv"), arrays, {}, {"num_heads": 2, "unidirectional": 1}, 1)
    with pytest.raises(tw.TileweaveError, match="2 queries to 4 new keys"):
        tw.load(model_of("MultiHeadAttention", case))


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("kind", ["BertModel", "GPT2Model"])
def test_models_that_the_optimiser_wrote(tmp_path, kind, quantised):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    torch.manual_seed(0)
    if kind == "BertModel":
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    else:
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    config = getattr(transformers, kind.replace("Model", "Config"))(vocab_size=99, attn_implementation="eager", **sizes)

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(transformers, kind)(config).eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.inner(ids, attention_mask=mask, use_cache=False)[0]

    rng = np.random.default_rng(1)
    arrays = {"ids": rng.integers(0, 99, (2, 9)), "mask": (np.arange(9) < [[9], [6]]).astype(np.int64)}
    example = tuple(map(torch.from_numpy, arrays.values()))
    dims = {name: {0: "batch", 1: "length"} for name in arrays}
    names = {"input_names": list(arrays), "output_names": ["out"], "dynamic_axes": dims}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Whole(), example, tmp_path / "plain.onnx", dynamo=False, opset_version=17, **names)
    family = "gpt2" if kind == "GPT2Model" else "bert"
    made = optimize_model(str(tmp_path / "plain.onnx"), family, num_heads=4, hidden_size=64, opt_level=0)
    made.save_model_to_file(str(tmp_path / "fused.onnx"))
    path = tmp_path / "fused.onnx"
    if quantised:
        path = tmp_path / "quantised.onnx"
        kinds = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(tmp_path / "fused.onnx", path, reduce_range=True, extra_options=kinds)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "written.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, arrays)
    for file in (path, tmp_path / "written.onnx"):
        assert any(node.domain == "com.microsoft" for node in onnx.load(file).graph.node)
        (got,) = tw.load(file)(**arrays).values()
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
