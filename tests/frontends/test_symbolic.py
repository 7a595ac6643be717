"""Symbolic dimensions: what is computed for extents equals NumPy and the model that is loaded for them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tileweave as tw
from tileweave.backends.cpu.direct.cut import Packing
from tileweave.errors import GraphError, PlanError
from tileweave.frontends.model import Model
from tileweave.frontends.symbolic import KEEP_BINDINGS, Dim, SymbolicModel

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(6, 5)).astype(np.float32)


def network(batch="batch", width=6, op="Softmax") -> onnx.ModelProto:
    """``softmax(x @ w)``, whose batch is symbolic."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(op, ["h"], ["y"], name="last")]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, k]) for n, k in (("x", width), ("y", 5))]
    graph = helper.make_graph(nodes, "net", shapes[:1], shapes[1:], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def softmax(x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ WEIGHTS - (x @ WEIGHTS).max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def mlp(x):
    return tw.relu(x @ WEIGHTS)


@pytest.mark.parametrize("machines", [None, 3])
def test_a_loaded_model_takes_any_batch(machines):
    model = tw.load(network())
    assert isinstance(model, SymbolicModel)
    assert str(model) == "net\n  in   x  float32[batch, 6]\n  dim  batch  0.."
    plan = model.plan(machines)
    for batch in (3, 1, 8, 3):
        x = RNG.normal(size=(batch, 6)).astype(np.float32)
        np.testing.assert_allclose(model(x)["y"], softmax(x), rtol=1e-5)
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}), softmax(x), rtol=1e-5)
        assert isinstance(model.at(batch=batch), Model)
    assert list(plan.made) == [(1,), (8,), (3,)]  # one plan for each, the last one used at the end
    assert plan.explain().startswith("batch=1: ")


def test_bindings_are_kept_and_share_the_weights():
    model = tw.load(network())
    assert model.at(batch=4) is model.at(batch=4)
    sources = [
        {id(n.data.array) for n in model.at(batch=b).graph.nodes() if hasattr(n, "data") and hasattr(n.data, "array")}
        for b in (4, 5)
    ]
    assert sources[0] == sources[1] != set()
    for batch in range(KEEP_BINDINGS + 3):
        model.at(batch=batch + 1)
    assert len(model.made) == KEEP_BINDINGS


def test_bounds():
    model = tw.load(network(), bind={"batch": tw.dim("batch", 2, 4)})
    assert len(model.made) == 1  # read at the bounds, so that what cannot be said is refused now
    x = np.ones((4, 6), np.float32)
    assert model(x=x)["y"].shape == (4, 5)
    for rows in (1, 5):
        with pytest.raises(GraphError, match=rf"net.at\(..\): batch={rows} is out of bounds\n  legal  batch in 2..4"):
            model(np.ones((rows, 6), np.float32))
    with pytest.raises(PlanError):
        model.plan(tw.machines(1, memory="10B"))
    with pytest.raises(GraphError, match=r"there is no operator ai\.onnx\.Nothing"):
        tw.load(network(op="Nothing"))


def test_a_program_is_a_function_of_its_inputs():
    batch = tw.dim("batch", 1, 64)
    model = tw.program(mlp, x=((batch, 6), "float32"))
    plan = model.plan(machines=2)
    assert list(plan.made) == [(64,)]
    for rows in (1, 7, 64):
        x = RNG.normal(size=(rows, 6)).astype(np.float32)
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}), np.maximum(x @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
    assert isinstance(tw.program(mlp, x=((2, 6), "float32")), Model)
    two = tw.program(
        lambda x, y: {"sum": x + y, "all": tw.concat([x, y])}, x=((batch, 2), "int64"), y=((batch, 2), "int64")
    )
    x = np.arange(6).reshape(3, 2)
    got = two(x, x)
    np.testing.assert_array_equal(got["sum"], x + x)
    assert got["all"].shape == (6, 2)
    with pytest.raises(GraphError, match="dimension 'batch' is 3 and, in input 'y', 2"):
        two(x, x[:2])


def test_the_shape_of_an_input_may_have_dimensions():
    model = tw.load(network(), bind={"x": (tw.dim("rows", 1, 8), 6)})
    assert str(model) == "net\n  in   x  float32[rows, 6]\n  dim  rows  1..8"
    assert model(np.ones((5, 6), np.float32))["y"].shape == (5, 5)


def test_threads_share_a_model():
    model = tw.load(network())
    plan = model.plan()
    batches = [int(n) for n in RNG.integers(1, 50, 120)]

    def rows(batch: int) -> np.ndarray:
        return tw.run(plan, bind={"x": np.full((batch, 6), 0.5, np.float32)})

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(rows, batches))
    wanted = softmax(np.full((1, 6), 0.5, np.float32))
    for batch, result in zip(batches, results, strict=True):
        assert result.shape == (batch, 5)
        np.testing.assert_allclose(result, np.repeat(wanted, batch, 0), rtol=1e-5)
    assert len(plan.made) <= KEEP_BINDINGS


def test_dimensions_without_a_name_are_apart():
    proto = network()
    for info, name in ((proto.graph.input[0], "?"),):
        info.type.tensor_type.shape.dim[0].dim_param = name
    model = tw.load(proto)
    assert list(model.dims) == ["x.0"]
    assert model(np.ones((2, 6), np.float32))["y"].shape == (2, 5)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(GraphError, match="onnx is not installed"):
        tw.load("model.onnx")


def test_refusals():
    model = tw.load(network())
    x = np.ones((2, 6), np.float32)
    calls = {
        "'z' is no input": lambda: model(z=x),
        r"net\(..\): no array for x float32\[batch, 6\]": lambda: model(),
        r"net.at\(..\): dimension 'batch' has no extent": lambda: model.at(),
        r"net\(..\): input 'x' is float32\[batch, 6\], the array has shape \(6,\)": lambda: model(x[0]),
        r"input 'x' is float32\[2, 6\], the array has shape \(2, 5\)": lambda: model(x[:, :5]),
        "'depth' is no dimension": lambda: model.at(depth=2),
        "batch='two' is no extent": lambda: tw.load(network(), bind={"batch": "two"}),
        "batch=True is out of bounds": lambda: model.at(batch=True),
        "2 arrays for 1 inputs": lambda: model(x, x),
        "input x=3 has no type": lambda: tw.program(mlp, x=3),
        "output 'out' is no tensor": lambda: tw.program(lambda x: 3, x=((2,), "float32")),
    }
    for said, call in calls.items():
        with pytest.raises(GraphError, match=said):
            call()
    for wrong in (("", 1, 2), ("n", 2, 1), ("n", -1), ("n", 1.5), (3, 1), ("n", True)):
        with pytest.raises(GraphError, match="this is no symbolic dimension"):
            tw.dim(*wrong)
    assert str(tw.dim("n", 1, 3)) == "n" and tw.dim("n", 1, 3) == Dim("n", 1, 3)


def test_values_that_no_node_makes_are_refused():
    def model(made, *inputs):
        ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Add", inputs, [made])], "broken", ends[:1], ends[1:])
        return helper.make_model(graph)

    with pytest.raises(GraphError, match=r"node 'y' \(Add\): no input, constant or earlier node makes 'z'"):
        tw.load(model("y", "x", "z"))
    with pytest.raises(GraphError, match="no node makes output 'y'"):
        tw.load(model("v", "x", "x"))


def test_a_further_extent_is_fused_where_the_first_was():
    """Where the groups of the first have kernels at these extents, too; elsewhere it is fused anew."""

    def layers(x):
        hidden = tw.softmax(tw.relu(x @ WEIGHTS + 1.0) * 2.0) @ WEIGHTS.T
        return tw.exp((hidden - hidden.mean(axis=1, keepdims=True)) * 0.5) + x

    def model():
        return tw.program(layers, x=((tw.dim("rows", 1, 4096), 6), "float32"))

    def names(plan):
        return [step.name for step in plan.steps]

    plan = model().plan()
    (first,) = plan.made.values()
    for rows in (2048, 1, 300):
        alone = model().at(rows=rows)
        assert names(plan.at(rows=rows)) == (names(first) if rows > 1 else names(alone.plan())) != ["store"]
        x = RNG.normal(size=(rows, 6)).astype(np.float32)
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}), alone(x)["out"], rtol=1e-5, atol=1e-6)
    assert names(plan.at(rows=2048)) == names(model().at(rows=2048).plan())


# ---------------------------------------------------------------------------------------------------------------------
# plans that are bound


def drawn(rng: np.random.Generator):
    """A program of [batch, 4, length] that depends on the extents in many ways, and the same program on NumPy."""
    filters = rng.normal(size=(4, 4, 3)).astype(np.float32)
    weights, bias = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    steps = [str(step) for step in rng.choice(["conv", "norm", "mean", "half", "join", "flip", "power", "even"], 4)]

    def program(x):
        for step in steps:
            if step == "conv":
                x = tw.relu(tw.nn.conv(x, filters, padding=1) * 0.2 + x)
            elif step == "norm":
                x = (x - tw.mean(x, axis=2, keepdims=True)) / (tw.mean(x * x, axis=2, keepdims=True) + 1.0)
            elif step == "mean":
                x = x * tw.sigmoid(tw.sum(x, axis=2, keepdims=True) / x.shape[2])
            elif step == "half":
                x = x[:, :, : x.shape[2] // 2] + x[:, :, -(x.shape[2] // 2) :]
            elif step == "join":
                x = tw.concat([x, x[:, :, :4]], 2)
            elif step == "flip":
                x = tw.softmax(x, axis=2) @ (x.transpose((0, 2, 1)) @ np.eye(4, dtype=np.float32)) @ x
            elif step == "power":
                x = tw.tanh(x) ** 2 + x.shape[0]
            else:
                x = x + 1.0 if x.shape[2] % 2 else x * 0.5
        y = tw.relu(tw.reshape(x.transpose((0, 2, 1)), (x.shape[0] * x.shape[2], 4)) @ weights + bias)
        return tw.reshape(y, (x.shape[0], -1, 8))

    return program


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_that_is_bound_computes_what_the_program_says(seed):
    rng = np.random.default_rng(seed)
    build = drawn(rng)
    model = tw.program(build, x=((tw.dim("batch", 1, 9), 4, tw.dim("length", 8, 64)), "float32"))
    plan = model.plan()
    for _ in range(4):
        batch, length = int(rng.integers(2, 9)), int(rng.integers(20, 64))
        x = rng.normal(size=(batch, 4, length)).astype(np.float32)
        made = model.at(batch=batch, length=length)
        (wanted,) = tw.graph.evaluate([made.outputs["out"]], {made.inputs["x"].producer: x})
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}), wanted, rtol=1e-5, atol=1e-5)


def is_bound(build, extents=(12, 20)) -> bool:
    """Whether the second extent takes no plan, or one bound to the steps for the first; its value is checked."""
    model = tw.program(build, x=((tw.dim("n"), 6), "float32"))
    plan = model.plan()
    for n in extents:
        x = RNG.normal(size=(n, 6)).astype(np.float32)
        made = model.at(n=n)
        (wanted,) = tw.graph.evaluate([made.outputs["out"]], {made.inputs["x"].producer: x})
        with mock.patch("tileweave.frontends.symbolic.whole", lambda *given: None):  # else nothing has estimates
            np.testing.assert_allclose(tw.run(plan, bind={"x": x}), wanted, rtol=1e-5, atol=1e-5)
    made = plan.made.get((extents[-1],))
    bound = made is None or not made.peak_bytes
    assert plan.at(n=extents[-1]).peak_bytes  # whoever asks for the plan has estimates
    return bound


def test_what_differs_in_extents_alone_is_bound():
    assert is_bound(mlp)
    assert is_bound(lambda x: tw.softmax(x @ WEIGHTS, axis=1) / x.shape[0])
    assert is_bound(lambda x: x - tw.mean(x, axis=0))  # the divisor is an extent
    assert is_bound(lambda x: tw.tanh(x) ** 2 + x.shape[0])
    assert is_bound(lambda x: tw.concat([x[: x.shape[0] // 2] * 2, x[3:]]))


def test_what_differs_in_more_is_planned():
    assert not is_bound(lambda x: tw.tanh(x) ** (2 if x.shape[0] < 16 else 3))  # written as other products
    assert not is_bound(lambda x: tw.relu(x) if x.shape[0] < 16 else tw.tanh(x))
    assert not is_bound(lambda x: tw.sum(x, axis=1 if x.shape[0] < 16 else 0, keepdims=True) * x + x)
    assert not is_bound(lambda x: x[:6] * x[: x.shape[0] // 2] if x.shape[0] == 12 else x[:10] * x[:10] * x[:10])
    assert not is_bound(mlp, (12, 1))  # an extent of 1 may broadcast
    assert not is_bound(lambda x: x[:6] + x[: x.shape[0] // 2][:6] + x[6:12] * 2)  # two slices that were one
    assert not is_bound(lambda x: x * 12.0 + x.shape[0])  # two numbers that were one


def test_extents_share_the_weights_that_code_reads_in_an_order_of_its_own():
    held = RNG.normal(size=(8, 4, 3, 3)).astype(np.float32)
    weights = np.frombuffer(held.tobytes(), np.float32).reshape(held.shape)  # read-only for good
    model = tw.program(lambda x: tw.conv(x, weights), x=((1, 4, 20, tw.dim("width")), "float32"))
    arranged, counts = Packing.arranged, []
    for width in (40, 43, 46):
        x = RNG.normal(size=(1, 4, 20, width)).astype(np.float32)
        with mock.patch.object(Packing, "arranged", autospec=True, side_effect=arranged) as made:
            found = model(x)["out"]
        counts.append(made.call_count)
        wanted = np.asarray(tw.conv(tw.source(x), weights))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert counts == [1, 0, 0]
