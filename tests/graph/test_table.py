"""The operator table: one row makes an operator, also a row that is not ours."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg
from tileweave import lower
from tileweave.errors import GraphError, VerifyError
from tileweave.graph.ir.sugar import FUNCTIONS, NUMPY
from tileweave.graph.ops.operators import OPERATORS
from tileweave.graph.passes.rules import OPTIMIZATIONS
from tileweave.planner import machines, make_plan
from tileweave.runtime import run_plan


@pytest.fixture
def magnitude() -> Iterator[str]:
    """A row as somebody else writes it, in one place: meaning, types, gradient, costs and lowering."""
    tg.elementwise_operator(
        "magnitude",
        lambda x: np.where(x < 0, -x, x),
        types=np.negative,
        gradient=lambda x, y, dy: [tg.where(tg.less(x, 0), tg.negative(dy), dy)],
        lowering="Abs",
        costs=(("flops", 3.0), ("comparisons", 1.0)),
        numpys=[np.real_if_close],
    )
    yield "magnitude"
    del OPERATORS["magnitude"], FUNCTIONS["magnitude"], NUMPY[np.real_if_close]


def test_one_row_from_outside_is_an_operator_everywhere(magnitude: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(300, 400))
    x = tg.as_tensor(a)

    # its public function, in both packages and in NumPy's notation, and the list of operators
    assert magnitude in OPERATORS and magnitude in dir(tg) and magnitude in dir(tw)
    y = tg.magnitude(x)
    assert y is tw.magnitude(x) is np.real_if_close(x)
    np.testing.assert_array_equal(y, np.abs(a))

    # checks: element types, shapes, parameters of documents
    with pytest.raises(GraphError, match=r"^magnitude\(x\): no loop takes these element types"):
        tg.magnitude(np.ones(3, bool))
    whole = tg.verify(tg.Graph.of(y))
    document = json.loads(tg.to_json(whole))
    for node in document["nodes"]:
        if node["kind"] == "operation":
            node["parameters"] = [["sign", 1]]
    with pytest.raises(VerifyError, match="there is no parameter 'sign'"):
        tg.from_json(json.dumps(document))

    # documents
    text = tg.to_json(whole)
    again = tg.from_json(text)
    assert tg.to_json(again) == text and again.operations[0].operator == magnitude

    # marginal costs per resource and dimension
    (operation,) = whole.operations
    signature = operation.signature
    assert signature is not None
    assert signature.cost("flops", operation.index) == 3 * a.size
    assert signature.marginal_cost("comparisons", operation.index, 0) == 400

    # shards, fusion and the way back
    cut = tg.expand(whole, {operation: tg.partition(operation, (3, 2))})
    tg.check_sharding(cut, whole)
    assert tg.coalesce(cut) is whole
    np.testing.assert_array_equal(cut.sinks[0].tensor, np.abs(a))
    fused = tg.rewrite(tg.Graph.of(tg.exp(tg.negative(y))), OPTIMIZATIONS).graph
    assert [o.operator for o in fused.operations] == ["fused"]
    tg.verify(fused)
    np.testing.assert_allclose(fused.sinks[0].tensor, np.exp(-np.abs(a)))

    # plans, runs, and the backend's primitive of its lowering column
    assert "abs" in str(lower.decide(operation, "block"))
    np.testing.assert_array_equal(run_plan(make_plan(whole, machines(2), lower.decide))[0], np.abs(a))
    np.testing.assert_array_equal(tw.run(y), np.abs(a))

    # gradients, also through the fused program
    slope = tg.grad(tg.sum(y * y), x)
    np.testing.assert_allclose(slope, 2 * a)
    program = fused.sinks[0].tensor
    np.testing.assert_allclose(tg.grad(tg.sum(program), x), -np.sign(a) * np.exp(-np.abs(a)), atol=1e-15)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(GraphError, match="'tanh' is taken"):
        tg.elementwise_operator("tanh", np.tanh)
    with pytest.raises(GraphError, match="no ufunc tells its types"):
        tg.elementwise_operator("half", lambda x: x / 2)
    assert "half" not in OPERATORS


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_a_lowering_is_an_operation_of_teir(name: str) -> None:
    from tileweave.teir import operations

    row = OPERATORS[name]
    assert row.name == name and (not row.lowering or row.lowering in operations())
    assert all(amount >= 0 for _, amount in row.costs)
