"""Recurrent operators of ONNX with any of its activations, beside a loop in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tileweave as tw

FUNCTIONS: dict[str, Any] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Affine": lambda x, a, b: a * x + b,
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)),
    "LeakyRelu": lambda x, a, b: np.where(x > 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
}
WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
WITH_ALPHA = (*WITH_BETA, "Elu", "LeakyRelu", "ThresholdedRelu")


@pytest.mark.parametrize("second", FUNCTIONS)
@pytest.mark.parametrize("first", ["Tanh", "Affine", "Elu"])
def test_each_function_takes_the_next_numbers_that_it_has_use_for(first: str, second: str) -> None:
    rng = np.random.default_rng(len(first) + len(second))
    x, w, r = rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 5)) / 3
    names = [first, second]
    numbers = {n: (0.3 + k, 0.2 - k) for k, n in enumerate(names)} if first != second else {first: (0.3, 0.2)}
    attributes: dict[str, Any] = {
        "activation_alpha": [numbers[n][0] for n in names if n in WITH_ALPHA],
        "activation_beta": [numbers[n][1] for n in names if n in WITH_BETA],
    }
    node = helper.make_node(
        "RNN", ["x", "w", "r"], ["y"], hidden_size=5, direction="bidirectional", activations=names,
        **{name: value for name, value in attributes.items() if value},
    )  # fmt: skip
    held = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("w", w), ("r", r))]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info], [out], held)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9)
    found = tw.load(file.SerializeToString())(x=x.astype(np.float32))["y"]
    for d, name in enumerate(names):
        h = np.zeros((2, 5))
        for step in range(4)[:: 1 - 2 * d]:
            h = FUNCTIONS[name](x[step] @ w[d].T + h @ r[d].T, *numbers[name])
            np.testing.assert_allclose(found[step, d], h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_a_layer_of_the_usual_kind_is_one_operation(kind: str, linear: int) -> None:
    """Of a GRU, whichever the reset gate multiplies: the state, or its product."""
    rng, gates = np.random.default_rng(linear), {"GRU": 3, "LSTM": 4}[kind]
    shapes = {"w": (2, gates * 7, 3), "r": (2, gates * 7, 7), "b": (2, 2 * gates * 7)}
    held = {name: rng.normal(size=shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    x = rng.normal(size=(5, 2, 3)).astype(np.float32)
    more = {"linear_before_reset": linear} if kind == "GRU" else {}
    node = helper.make_node(kind, ["x", *held], ["y"], hidden_size=7, direction="bidirectional", **more)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info], [out], [numpy_helper.from_array(v, n) for n, v in held.items()])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9).SerializeToString()
    model = tw.load(file)
    assert "recurrence" in {operation.operator for operation in tw.plan(model.outputs["y"]).graph.operations}
    found = model(x=x)["y"]
    for d in range(2):
        w, r, b = (v[d].astype(float) for v in held.values())
        h = c = np.zeros((2, 7))
        for step in range(5)[:: 1 - 2 * d]:
            mine, theirs = x[step] @ w.T + b[: gates * 7], h @ r.T + b[gates * 7 :]
            if kind == "LSTM":
                i, o, f = (1 / (1 + np.exp(-part)) for part in np.split(mine + theirs, 4, 1)[:3])
                c = f * c + i * np.tanh((mine + theirs)[:, 21:])
                h = o * np.tanh(c)
            else:
                z, g = (1 / (1 + np.exp(-part)) for part in np.split((mine + theirs)[:, :14], 2, 1))
                inner = g * theirs[:, 14:] if linear else (g * h) @ r[14:].T + b[gates * 7 + 14 :]
                h = (1 - z) * np.tanh(mine[:, 14:] + inner) + z * h
            np.testing.assert_allclose(found[step, d], h, rtol=1e-4, atol=1e-5)
