"""Block operators of the user's own."""

import numpy as np
import pytest
from arrays import same

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError, VerifyError
from tileweave.graph.ops.operators import OPERATORS
from tileweave.space import AffineMap, Projection

WINDOW = Projection(AffineMap.identity(1), (3,))
ONE = Projection.select((0,), 1)


@pytest.fixture
def register():
    """Operators of a test leave with it."""
    before = set(OPERATORS)
    yield tw.block_operator
    for name in set(OPERATORS) - before:
        del OPERATORS[name]


def median(x):
    return np.median(np.lib.stride_tricks.sliding_window_view(x, 3), -1)


def test_a_median_filter(register):
    filtered = register("median3", median)
    x = np.random.default_rng(0).normal(size=20)
    y = filtered({"x": (x, WINDOW)}, ONE, (18,), "float64", dims=("place",), flops=10)
    same(y, median(x))
    graph = tw.verify(tw.Graph.of(y))
    for count in (2, 5, 18):
        sharded = tw.expand(graph, {y.producer: tw.partition(y.producer, (count,))})
        same(tw.verify(sharded).sinks[0].tensor, median(x))


def test_an_operator_is_of_the_module_of_its_function(register):
    """A runtime with workers in other processes tells by the module which operators it must send along."""
    register("median9", median)
    assert OPERATORS["median9"].block.__module__ == median.__module__


def test_sampling_finds_a_halo_that_is_one_too_narrow_for_every_type(register):
    for dtype in ("float32", "int64", "bfloat16"):
        wide = register(f"wide_{dtype}", lambda x: np.concatenate([x[:-1] + x[1:], x[-1:]]))
        with pytest.raises(GraphError, match=r"in blocks and .* whole"):
            wide({"x": (tw.cast(np.arange(40.0), dtype), ONE)}, ONE, (40,), dtype)


def test_what_a_function_raises_is_told_in_the_house_form(register):
    broken = register("broken_block", lambda x: x.no_such_attribute)
    with pytest.raises(VerifyError, match="AttributeError"):
        broken({"x": (np.zeros(20), ONE)}, ONE, (20,), "float64")
    with pytest.raises(DtypeError, match="element type"):
        register("typed", median)({"x": (np.zeros(20), WINDOW)}, ONE, (18,), "no type")


def test_a_reduction_with_parameters_and_two_inputs(register):
    weighted = register("weighted", lambda x, w, power: (w * x**power).sum(-1))
    rows, row = Projection.select((0, 1), 2), Projection.select((1,), 2)
    x, w = np.arange(12).reshape(3, 4), np.arange(4)
    y = weighted(
        {"x": (x, rows), "w": (w, row)},
        Projection.select((0,), 2),
        (3, 4),
        "int64",
        reductions={1: "sum"},
        parameters={"power": 2},
    )
    same(y, (w * x**2).sum(-1))
    sharded = tw.expand(tw.Graph.of(y), {y.producer: tw.partition(y.producer, (3, 2))})
    same(sharded.sinks[0].tensor, (w * x**2).sum(-1))


def test_projections_that_are_not_enough_are_found(register):
    cumulative = register("cumulative", lambda x: np.cumsum(x))
    with pytest.raises(GraphError, match=r"in blocks and .* whole") as caught:
        cumulative({"x": (np.arange(50.0), ONE)}, ONE, (50,), "float64")
    assert "cuts" in str(caught.value)


def test_a_wrong_monoid_is_found(register):
    total = register("total", lambda x: x.sum(keepdims=False))
    none = Projection(AffineMap((), (), 1), ())
    with pytest.raises(GraphError, match="in blocks"):
        total({"x": (np.arange(50.0), ONE)}, none, (50,), "float64", reductions={0: "max"})


def test_a_declaration_that_does_not_fit_is_refused(register):
    filtered = register("median5", median)
    with pytest.raises(VerifyError) as caught:
        filtered({"x": (np.zeros(20), WINDOW)}, ONE, (17,), "float64")
    assert caught.value.rule == "operation.regions-fit"
    with pytest.raises(VerifyError) as caught:
        filtered({"x": (np.zeros(20), WINDOW)}, ONE, (18,), "float32")
    assert caught.value.rule == "operation.block-agrees"
    with pytest.raises(GraphError, match="'median5' is taken"):
        register("median5", median)


def test_gradients_of_block_operators(register):
    square = register(
        "square_block", lambda x: x * x, gradient=lambda operation, y, dy: {"x": dy * operation.input("x") * 2}
    )
    x = tw.as_tensor(np.arange(4.0))
    y = square({"x": (x, ONE)}, ONE, (4,), "float64")
    same(tw.grad(tw.sum(y), x), 2 * np.arange(4.0))
    other = register("square_other", lambda x: x * x)({"x": (x, ONE)}, ONE, (4,), "float64")
    with pytest.raises(GraphError, match="no gradient"):
        tw.grad(tw.sum(other), x)
