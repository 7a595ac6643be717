"""Kernels of shards against the operators' NumPy definitions."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.backends.base import ELEMENTS
from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import OPTIMIZATIONS
from tileweave.space import Box

RNG = np.random.default_rng(0)


def block_inputs(tensor: Tensor) -> dict[str, np.ndarray]:
    """The operands of a tensor's operation, as they were given."""
    return {name: t.producer.data.array for name, t in tensor.producer.inputs}


def array(shape, dtype):
    return (RNG.standard_normal(shape) * 9).astype(dtype)


VIEWS = {
    "dense": lambda a: a,
    "reversed": lambda a: a[::-1],
    "columns first": np.asfortranarray,
    "every other": lambda a: np.repeat(a, 2, axis=0)[::2],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("view", VIEWS)
def test_native_kernels_equal_the_definitions(dtype, view):
    x, w, b = VIEWS[view](array((13, 11), dtype)), array((11, 17), dtype), array((17,), dtype)
    cases = [
        g.linear(x, w, b),
        g.matmul(x, w),
        g.einsum("ij->ji", x),
        g.einsum("ij,jk->", x, w),
        g.einsum("ij,ij->i", x, x),
        g.einsum("ij,ij->ij", x, x),
        g.einsum("ii,jk->k", w[:, :11], w),
        g.matmul(x, w[:, 3]),
    ]
    for tensor in cases:
        operation = tensor.producer
        assert lower.decide(operation, "block").backend == "cpu"
        before = {name: a.copy() for name, a in block_inputs(tensor).items()}
        got = lower.execute(operation, "block", operation.index, block_inputs(tensor))["out"]
        want = g.evaluate([tensor])[0]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if dtype.startswith("int"):
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=3e-5 if dtype == "float32" else 1e-12, atol=1e-3)
        for name, a in block_inputs(tensor).items():
            np.testing.assert_array_equal(a, before[name])


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 0), (0, 0))])
def test_empty_operands_are_answered_before_any_kernel(shapes):
    x, w = np.ones(shapes[0]), np.ones(shapes[1])
    b = np.arange(float(shapes[1][1]))
    tensor = g.linear(x, w, b)
    got = lower.execute(tensor.producer, "block", tensor.producer.index, block_inputs(tensor))["out"]
    np.testing.assert_array_equal(got, x @ w + b)


def test_other_operators_run_their_numpy_definition_and_say_so():
    x = array((5, 7), "float32")
    for tensor, name in ((g.exp(x), "numpy: exp"), (g.sum(x, 0), "numpy: sum"), (g.cast(x, "int32"), "numpy: cast")):
        operation = tensor.producer
        assert str(lower.decide(operation, "block")) == name
        got = lower.execute(operation, "block", operation.index, block_inputs(tensor))["out"]
        np.testing.assert_array_equal(got, g.evaluate([tensor])[0])


def test_shards_of_a_linear_layer_join_to_the_whole():
    x, w, b = array((10, 12), "float64"), array((12, 6), "float64"), array((6,), "float64")
    operation = g.linear(x, w, b).producer
    parts = {}
    for k, cut in enumerate(((0, 5), (5, 12))):
        index = Box((0, 0, cut[0]), (10, 6, cut[1] - cut[0]))
        inputs = {"x": x[:, slice(*cut)], "w": w[slice(*cut)]}
        parts[f"partial{k}.out"] = lower.execute(operation, "partial", index, inputs)["out"]
    got = lower.execute(operation, "combine", operation.index, {**parts, "b": b})["out"]
    np.testing.assert_allclose(got, x @ w + b, rtol=1e-12)


def test_misaligned_and_odd_strides_are_copied_first():
    raw = np.zeros(8 * 30 + 1, np.uint8)
    x = raw[1:].view(np.float64).reshape(5, 6)
    x[:] = array((5, 6), "float64")
    record = np.zeros((4, 5), np.dtype([("tag", "u1"), ("value", "f8")]))
    y = record["value"]
    y[:] = array((4, 5), "float64")
    tensor = g.matmul(y, x)
    got = lower.execute(tensor.producer, "block", tensor.producer.index, block_inputs(tensor))["out"]
    np.testing.assert_allclose(got, y @ x, rtol=1e-12)


def test_nan_and_infinity_pass_through_relu():
    x = np.array([np.nan, -np.inf, np.inf, -0.0, -1.0, 2.0], np.float32)
    tensor = g.relu(x)
    got = lower.execute(tensor.producer, "block", tensor.producer.index, block_inputs(tensor))["out"]
    np.testing.assert_array_equal(got, np.maximum(x, 0))


def test_copies_rearrange():
    side = int(ELEMENTS**0.5) + 3
    for source in (array((side, side), "float32").T, array((9, 9), "float32")[:, ::-1]):
        out = np.full(source.shape, np.nan, np.float32)
        lower.copy(out, source)
        np.testing.assert_array_equal(out, source)


def test_an_operation_without_a_signature_is_not_cut():
    whole = g.exp(array((4,), "float32")).producer
    bare = g.Operation(whole.operator, whole.index, whole.inputs, whole.outputs)
    with pytest.raises(GraphError, match="no signature"):
        lower.execute(bare, "block", Box((0,), (2,)), {"x": np.ones(2, np.float32)})


def _large(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rows = 4 * ELEMENTS // 512
    return array((rows, 512), dtype), array((rows, 512), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_elementwise_operations_are_compiled(dtype):
    x, y = _large(dtype)
    x[0, :3], y[0, :4] = (np.nan, np.inf, -np.inf), (1.0, np.nan, 0.0, -0.0)
    row = array((512,), dtype)
    exact = [g.add(x, y), g.subtract(x[:, ::-1], row), g.multiply(x, y), g.divide(x, y), g.maximum(x, y)]
    exact += [g.minimum(x, x[:1]), g.relu(x), g.sqrt(np.abs(x)), g.negative(x), g.absolute(x)]
    close = [g.exp(x), g.log(np.abs(x)), g.tanh(x), g.sigmoid(x)]
    for tensor in exact + close:
        operation = tensor.producer
        assert lower.decide(operation, "block").backend == "cpu"
        inputs = {name: g.evaluate([t])[0] for name, t in operation.inputs}
        got = lower.execute(operation, "block", operation.index, inputs)["out"]
        want = g.evaluate([tensor])[0]
        if tensor in exact:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_large_integer_operations_wrap_as_numpy_does(dtype):
    x, y = (a * np.iinfo(dtype).max // 7 for a in _large(dtype))
    x[0, 0] = np.iinfo(dtype).min
    binary = [g.add(x, y), g.subtract(x, y), g.multiply(x, y), g.maximum(x, y), g.minimum(x, y)]
    for tensor in (*binary, g.negative(x), g.absolute(x)):
        operation = tensor.producer
        assert lower.decide(operation, "block").backend == "cpu"
        got = lower.execute(operation, "block", operation.index, block_inputs(tensor))["out"]
        np.testing.assert_array_equal(got, g.evaluate([tensor])[0])


def test_small_elementwise_operations_are_numpys():
    for tensor in (g.relu(array((13, 11), "float32")), g.add(array((13, 11), "float32"), 1)):
        assert not lower.decide(tensor.producer, "block").backend


def test_which_kernel_computes_is_decided_by_the_whole_operation():
    x, _ = _large("float32")
    operation = g.exp(x).producer
    shard = Box((0, 0), (2, 512))
    got = lower.execute(operation, "block", shard, {"x": x[:2]})["out"]
    whole = lower.execute(operation, "block", operation.index, {"x": x})["out"]
    np.testing.assert_array_equal(got, whole[:2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_contractions_round_once(dtype):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, w = (RNG.integers(-4, 5, shape).astype(kind) for shape in ((13, 300), (300, 17)))
    tensor = g.matmul(x, w)
    operation = tensor.producer
    assert str(lower.decide(operation, "block")) == "cpu: zero, contraction, copy"
    got = lower.execute(operation, "block", operation.index, block_inputs(tensor))["out"]
    assert got.dtype == kind
    np.testing.assert_array_equal(got, (x.astype("f8") @ w.astype("f8")).astype(kind))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_linear_and_relu_are_one_program(dtype):
    x, w, b = array((40, 30), dtype), array((30, 20), dtype), array((20,), dtype)
    done = rewrite(g.Graph.of(g.relu(g.linear(x, w, b))), OPTIMIZATIONS).graph
    (operation,) = done.operations
    assert str(lower.decide(operation, "block")) == "cpu: copy, contraction, relu"
    assert str(lower.decide(operation, "partial")) == "cpu: zero, contraction"
    got = lower.execute(operation, "block", operation.index, {"x": x, "w": w, "b": b})["out"]
    np.testing.assert_allclose(got, np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_chains_are_one_program(dtype):
    x, y = _large(dtype)
    row, column = array((512,), dtype), array((x.shape[0], 1), dtype)
    tensor = g.relu(g.add(g.multiply(g.subtract(x, row), y), column)) * x
    if dtype == "float32":
        tensor = g.exp(g.minimum(tensor, 3.0)) / (g.absolute(y) + 1)
    done = rewrite(g.Graph.of(tensor), OPTIMIZATIONS).graph
    fused = done.operations[-1]
    assert fused.operator == "fused"
    inputs = {name: g.evaluate([t])[0] for name, t in fused.inputs}
    want = g.evaluate([tensor])[0]
    got = lower.execute(fused, "block", fused.index, inputs, threads=2)["out"]
    if dtype == "int64":
        assert str(lower.decide(fused, "block")) == "cpu: sub, mul, add, relu, mul"
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axes", [0, 1, (0, 2), (0, 1, 2)])
def test_large_reductions_are_compiled(dtype, axes):
    x = array((40, 64, 33), dtype)
    for tensor in (g.sum(x, axes), g.max(x, axes), g.min(x, axes), g.product(x / 9, axes)):
        operation = tensor.producer
        known = operation.operator in ("max", "min") or axes != (0, 1, 2)
        known = known or (operation.operator == "sum" and dtype == "float32")  # formed in FP64
        assert bool(lower.decide(operation, "block").backend) == known
        inputs = {name: g.evaluate([t])[0] for name, t in operation.inputs}
        got = lower.execute(operation, "block", operation.index, inputs, threads=2)["out"]
        want, size = g.evaluate([tensor])[0], g.evaluate([g.sum(g.absolute(x), axes)])[0]
        bound = 100 * np.finfo(dtype).eps * (size if operation.operator == "sum" else np.abs(want))
        bound += 100 * np.finfo(dtype).smallest_subnormal  # products that nearly vanish have few digits
        assert got.shape == want.shape and np.all(np.abs(got - want) <= bound)
        shard = Box((3, 0, 1), (5, 64, 7))
        inside = {"x": x[3:8, :, 1:8] / (9 if operation.operator == "product" else 1)}
        part = lower.execute(operation, "partial", shard, inside)["out"]
        assert np.allclose(
            part,
            getattr(np, {"product": "prod"}.get(operation.operator, operation.operator))(inside["x"], axes),
            rtol=1e-4,
            atol=1e-3,
        )


_EXACT: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "chain": lambda x, y: tw.relu(x * y + x) - y / x,
    "less": lambda x, y: x < y,
    "select": lambda x, y: tw.where(x < y, tw.maximum(x, y), -x),
    "sqrt": lambda x, y: tw.sqrt(x),
    "cast": lambda x, y: g.cast(x, "float32"),
    "widen": lambda x, y: g.cast(x, "float64"),
    "max": lambda x, y: tw.max((x * y).reshape(256, 256), 1),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", _EXACT)
def test_compiled_code_computes_every_narrow_number_as_numpy(name: str, dtype: str) -> None:
    draw = np.random.default_rng(0)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x, y = (tw.source(draw.permutation(np.arange(1 << 16, dtype=np.uint16)).view(kind)) for _ in range(2))
    result = _EXACT[name](x, y)
    plan = tw.plan(result)
    assert all("cpu" in str(step.kernel) for step in plan.steps if step.stage == "block")
    with np.errstate(all="ignore"):
        found, wanted = tw.run(plan), np.asarray(result)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found.astype("f8"), wanted.astype("f8"), equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "int64"])
def test_long_sums_are_compiled_and_round_once(dtype: str) -> None:
    draw = np.random.default_rng(1)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = (
        draw.integers(-1000, 1000, (300, 400)).astype(kind)
        if kind.kind == "i"
        else draw.random((300, 400)).astype(kind)
    )
    total = tw.sum(tw.source(x))
    found = tw.run(total)
    exact = x.astype("f8").sum()
    assert found.dtype == total.dtype
    assert found == np.asarray(exact).astype(total.dtype)
    assert "cpu" in str(next(step for step in tw.plan(total).steps if step.stage != "store").kernel)
