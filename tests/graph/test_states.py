"""Reductions with tuples as partial results: against NumPy, whole and cut along any dimension."""

from functools import partial

import numpy as np
import pytest

from tileweave import graph as tw
from tileweave.errors import GraphError
from tileweave.graph.ops import reductions as states
from tileweave.graph.ops.monoids import STATES
from tileweave.graph.ops.operators import TENSORS
from tileweave.graph.ops.reductions import max_and_sum, moments, state_of
from tileweave.graph.passes.shard import shard_operation
from tileweave.graph.passes.sharding import check_sharding
from tileweave.space import Box

RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 1.0, 2.5])


def tensors(operation):
    return [tw.Tensor(operation, name) for name, _ in operation.outputs]


def expected(name, x, dim):
    with np.errstate(all="ignore"):
        if name in ("argmax", "argmin"):
            return [getattr(np, name[3:])(x, axis=dim), getattr(np, name)(x, axis=dim)]
        if name == "max_and_sum":
            top = x.max(axis=dim, keepdims=True)
            return [top.squeeze(dim), np.where(x == top, 1.0, np.exp(x - top)).sum(axis=dim)]  # equal ones count one
        return [np.full(np.delete(x.shape, dim), x.shape[dim]), x.mean(axis=dim), x.var(axis=dim) * x.shape[dim]]


def partitions(rng, operation):
    cuts = []
    for n in operation.index.shape:
        inner = sorted(rng.choice(np.arange(1, n), min(int(rng.integers(0, 4)), n - 1), replace=False)) if n > 1 else []
        cuts.append((0, *map(int, inner), n))
    return tw.Partition(tuple(cuts))


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("arity", [None, 2, 3])
def test_cut_along_any_dimension_the_value_stays(name, arity):
    rng = np.random.default_rng(7)
    for shape in ((9,), (4, 7), (3, 2, 5), (6, 1)):
        for dim in range(len(shape)):
            x = rng.integers(-9, 10, shape).astype("float64")
            operation = state_of(name, tw.as_tensor(x), dim)
            whole = tw.verify(tw.Graph.of(*tensors(operation)))
            cuts = partitions(rng, operation)
            sharded = tw.verify(tw.expand(whole, {operation: cuts}, arity=arity))
            check_sharding(sharded, whole)
            assert tw.coalesce(sharded) is whole
            for graph in (whole, sharded):
                for got, want in zip(tw.evaluate([s.tensor for s in graph.sinks]), expected(name, x, dim), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("name", ["argmax", "argmin", "max_and_sum"])
def test_special_values_in_every_part(name):
    rng = np.random.default_rng(1)
    for _ in range(60):
        x = rng.choice(SPECIAL, 6)
        operation = state_of(name, tw.as_tensor(x), 0)
        sharded = tw.expand(tw.Graph.of(*tensors(operation)), {operation: tw.partition(operation, (3,))})
        for got, want in zip(tw.evaluate([s.tensor for s in sharded.sinks]), expected(name, x, 0), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-14)


def test_each_element_type_keeps_its_own():
    for dtype in ("int32", "uint8", "bool", "float32", "float16"):
        x = np.array([1, 0, 1, 0]).astype(dtype)
        operation = state_of("argmax", tw.as_tensor(x), 0)
        value, index = tw.evaluate(tensors(operation))
        assert value.dtype == x.dtype and index.dtype == np.int64 and int(index) == 0
    top, total = max_and_sum(np.array([1, 2], "float16"))
    assert top.dtype == total.dtype == np.float32 and moments([1, 2])[1].dtype == np.float64


@pytest.mark.parametrize("name", STATES)
def test_states_are_monoids(name):
    """Associative and commutative, on states of parts of random data."""
    monoid = STATES[name]
    rng = np.random.default_rng(3)
    for _ in range(30):
        x = rng.choice(SPECIAL, (12, 3)) if name != "moments" else rng.integers(-9, 10, (12, 3)).astype(float)
        with np.errstate(all="ignore"):
            a, b, c = (monoid.of(np, x[k : k + 4], 0, k) for k in (0, 4, 8))
            join = partial(monoid.combine, np)
            left = join(join(a, b), c)
            for other in (join(a, join(b, c)), join(c, join(b, a))):
                for p, q in zip(left, other, strict=True):
                    np.testing.assert_allclose(p, q, rtol=1e-13, atol=1e-12)


def test_nothing_to_reduce_is_refused():
    with pytest.raises(GraphError, match="no element"):
        max_and_sum(np.ones((3, 0)))
    with pytest.raises(GraphError, match="axis 2 does not exist"):
        moments(np.ones((3, 4)), 2)


def test_a_wrong_combination_is_no_sharding():
    """The states of an argmax combined by argmin, or one part twice."""
    x = tw.as_tensor(np.arange(8.0))
    operation = state_of("argmax", x, 0)
    whole = tw.Graph.of(tw.Tensor(operation, "index"))
    halves = [shard_operation(operation, Box((a,), (4,))) for a in (0, 4)]
    check_sharding(tw.Graph.of(tw.Tensor(states.combined("argmax", halves), "index")), whole)
    for bad in (states.combined("argmin", halves), states.combined("argmax", [halves[0], halves[0]])):
        assert not tw.is_sharding(tw.Graph.of(tw.Tensor(bad, "index")), whole)


ROWS = (
    [],
    [-np.inf] * 3,
    [-np.inf, 2.0],
    [np.inf, np.inf, 1.0],
    [np.inf, -np.inf],
    [np.nan, 1.0],
    [np.nan, np.inf],
    [0.0, -0.0, 1e308, -1e308],
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_there_is_one_maximum_and_sum_on_empty_infinite_and_nan_rows(row):
    """The operator, its monoid on arrays and on tensors, and logsumexp agree."""
    x = np.array([row], np.float64)
    with np.errstate(all="ignore"):
        state = STATES["max_and_sum"].of(np, x, 1, 0)
        same = tw.evaluate(STATES["max_and_sum"].of(TENSORS, tw.as_tensor(x), 1, 0))
    for k, part in enumerate(state):
        np.testing.assert_allclose(same[k], part, rtol=1e-15)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(state[0] + np.log(state[1]), np.asarray(tw.logsumexp(x, 1)), rtol=1e-15)
