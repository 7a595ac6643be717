"""Statistics, norms, gelu, attention, argmax, and tuple-valued reductions against NumPy."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from arrays import DTYPES, same, values
from random_graphs import random_partitions
from test_grad import check

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError
from tileweave.graph.nn.parts import tree

RNG = np.random.default_rng(0)
X = np.random.default_rng(4).normal(size=(4, 5))


def sharded_is_whole(tensor, rtol=1e-11):
    """The graph under random cuts of all of its operations has the value of the whole."""
    graph = tw.verify(tw.Graph.of(tensor))
    (whole,) = tw.evaluate([tensor])
    sharded = tw.expand(graph, random_partitions(np.random.default_rng(1), graph))
    same(tw.verify(sharded).sinks[0].tensor, whole, rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin(name, dtype):
    for shape in ((7,), (3, 4), (2, 3, 5), (0, 3)):
        x = values(RNG, shape, dtype) // 4  # many ties
        for axis in range(-len(shape), len(shape)):
            if shape[axis]:
                same(getattr(tw, name)(x, axis), getattr(np, name)(x, axis))
                same(getattr(tw, name)(x, axis, keepdims=True), getattr(np, name)(x, axis, keepdims=True))
    same(getattr(tw, name)(np.array([1.0, np.nan, 3.0, np.nan])), 1)
    sharded_is_whole(getattr(tw, name)(values(RNG, (5, 4, 3), dtype), 1))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keep", [False, True])
def test_statistics(axis, keep):
    for dtype in DTYPES:
        x = values(RNG, (3, 4, 5), dtype)
        rtol = 1e-5 if dtype == "float32" else 1e-12
        same(tw.variance(x, axis, keepdims=keep), np.var(x, axis=axis, keepdims=keep), rtol=rtol)
        same(tw.variance(x, axis, correction=1), np.var(x, axis=axis, ddof=1), rtol=rtol)
        same(tw.standard_deviation(x, axis), np.std(x, axis=axis), rtol=rtol)
        wide = x.astype(np.float64) if x.dtype.kind == "i" else x
        expected = np.log(np.exp(wide).sum(axis=axis, keepdims=keep))
        same(tw.logsumexp(x, axis, keepdims=keep), expected, rtol=rtol)
    sharded_is_whole(tw.variance(RNG.normal(size=(3, 4, 5)), axis, keepdims=keep))
    sharded_is_whole(tw.logsumexp(RNG.normal(size=(3, 4, 5)), axis, keepdims=keep))


def test_logsumexp_of_extremes():
    x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 3.0], [np.nan, 0]])
    expected = [1000 + math.log(2), -1000 + math.log(2), -np.inf, np.inf, 3.0, np.nan]
    same(tw.logsumexp(x, 1), expected, rtol=1e-13)
    same(tw.reduce_in_parts("logsumexp", x, 1), expected, rtol=1e-13)


def test_norms():
    x, w, b = RNG.normal(size=(3, 4, 5)), RNG.normal(size=5), RNG.normal(size=5)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    same(tw.layer_norm(x, w, b), (x - mean) / np.sqrt(var + 1e-5) * w + b, rtol=1e-12)
    same(tw.layer_norm(x), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-12)
    both = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-3)
    same(tw.layer_norm(x, axis=(1, 2), epsilon=1e-3), both, rtol=1e-12)
    same(tw.rms_norm(x, w), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w, rtol=1e-12)
    sharded_is_whole(tw.layer_norm(x, w, b))
    sharded_is_whole(tw.rms_norm(x, w))
    assert tw.layer_norm(x.astype("float32")).dtype == np.float32


def test_gelu():
    x = RNG.normal(size=(3, 4)) * 3
    phi = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)
    same(tw.gelu(x), x * phi, rtol=1e-13)
    same(tw.gelu(x, "tanh"), x * phi, rtol=1e-3)
    same(tw.erf(np.array([0.0, np.inf, -np.inf, np.nan])), [0.0, 1.0, -1.0, np.nan])
    check(tw.gelu, x)
    check(lambda x: tw.gelu(x, "tanh"), x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lead", "queries", "keys"), [((), 4, 4), ((2,), 3, 5), ((2, 2), 3, 3), ((1,), 1, 6)])
def test_attention(lead, queries, keys, causal):
    q, k, v = (RNG.normal(size=(*lead, n, d)) for n, d in ((queries, 6), (keys, 6), (keys, 3)))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(6)
    if causal:
        scores = np.where(np.tri(queries, keys, keys - queries, dtype=bool), scores, -np.inf)
    expected = softmax(scores) @ v
    same(tw.attention(q, k, v, causal=causal), expected, rtol=1e-12)
    for parts in {1, 3, keys}:
        if parts <= keys:
            same(tw.attention_in_parts(q, k, v, parts, causal=causal), expected, rtol=1e-12)
    same(tw.attention_in_parts(q, k, v, min(4, keys), 3, causal=causal), expected, rtol=1e-12)
    sharded_is_whole(tw.attention(q, k, v, causal=causal))
    sharded_is_whole(tw.attention_in_parts(q, k, v, min(2, keys), causal=causal))


def test_attention_in_parts_makes_no_table_of_all_queries_by_all_keys():
    q = np.zeros((16, 4))
    y = tw.attention_in_parts(q, q, q, 4)
    assert all(o.output_types["out"].shape != (16, 16) for o in tw.Graph.of(y).operations)


def test_attention_mask_scale_and_gradient():
    q, k, v = (RNG.normal(size=(3, 2)) for _ in range(3))
    mask = np.array([[True, False, True], [True, True, False], [False, True, True]])
    expected = softmax(np.where(mask, q @ k.T * 0.3, -np.inf)) @ v
    same(tw.attention(q, k, v, scale=0.3, mask=mask), expected, rtol=1e-12)
    check(lambda q, k, v: tw.attention(q, k, v, causal=True), q, k, v, rtol=1e-5)
    check(lambda q, k, v: tw.attention_in_parts(q, k, v, 2, causal=True), q, k, v, rtol=1e-5)


def test_gradients_of_statistics_and_norms():
    x, w, b = RNG.normal(size=(3, 4)), RNG.normal(size=4), RNG.normal(size=4)
    check(lambda x: tw.variance(x, 1), x)
    check(lambda x: tw.standard_deviation(x), x)
    check(lambda x: tw.logsumexp(x, 0), x)
    check(tw.layer_norm, x, w, b, rtol=1e-5)
    check(tw.rms_norm, x, w, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# tuple-valued monoids


WHOLE = {
    "logsumexp": lambda x: np.log(np.exp(x).sum(-1)),
    "variance": lambda x: x.var(-1),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_reductions_in_parts(name):
    x = (RNG.integers(-8, 8, (3, 11)) / 4).astype(np.float64)
    for parts, arity in itertools.product((1, 2, 5, 11), (2, 3)):
        same(tw.reduce_in_parts(name, x, -1, parts, arity), WHOLE[name](x), rtol=1e-12)
    sharded_is_whole(tw.reduce_in_parts(name, x, -1, 4))


def test_reductions_of_no_element():
    same(tw.reduce_in_parts("logsumexp", np.ones((2, 0)), 1, 1), [-np.inf, -np.inf])
    same(tw.logsumexp(np.ones((2, 0)), 1), [-np.inf, -np.inf])
    same(tw.reduce_in_parts("variance", np.ones((2, 0)), 1, 1), [np.nan, np.nan])
    same(tw.variance(np.ones((2, 0)), 1), [np.nan, np.nan])
    for name in ("argmax", "argmin"):
        with pytest.raises(GraphError, match="over no element"):
            tw.reduce_in_parts(name, np.ones((2, 0)), 1, 1)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: tw.argmax(np.ones((2, 3))), "needs an axis"),
        (lambda: tw.argmax(np.ones((2, 0)), 1), "over no element"),
        (lambda: tw.argmax(np.ones((2, 3)), 2), "axis 2"),
        (lambda: tw.gelu(np.ones(3), "fast"), "'fast'"),
        (lambda: tw.attention(np.ones((2, 3)), np.ones((2, 4)), np.ones((2, 3))), "queries and keys"),
        (lambda: tw.attention_in_parts(np.ones((2, 3)), np.ones((2, 3)), np.ones((4, 3))), "keys and values"),
        (lambda: tw.reduce_in_parts("median", np.ones(3)), "not a tuple-valued"),
        (lambda: tw.reduce_in_parts("argmax", np.ones(3), parts=4), "4 parts"),
        (lambda: tree([], lambda a, b: a), "0 states"),
        (lambda: tw.layer_norm(np.ones(())), "no axis"),
        (lambda: tw.variance(np.ones(3), 1.5), "axis 1.5"),
        (lambda: tw.variance(np.ones(3), correction="one"), "correction 'one'"),
        (lambda: tw.logsumexp(np.ones(3), 1), "axis 1"),
        (lambda: tw.attention(np.ones((2, 3)), np.ones((4, 3)), np.ones((5, 3))), "keys and values"),
        (lambda: tw.attention(np.ones((2, 3)), np.ones((0, 3)), np.ones((0, 3))), "keys and values"),
        (lambda: tw.attention(np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 3)), mask=np.ones((7, 7))), "the mask"),
    ],
)
def test_what_does_not_fit_is_refused(call, problem):
    with pytest.raises(GraphError, match=problem):
        call()


def test_attention_needs_floats():
    with pytest.raises(DtypeError, match="int64"):
        tw.attention(*[np.ones((2, 3), "int64")] * 3)


def test_erf_is_exact_to_three_units_of_the_last_place():
    rng = np.random.default_rng(3)
    ends = [0.0, -0.0, 5e-324, 1e-300, 1.0, np.nextafter(1, 2), np.nextafter(1, 0), 6.0, 5.9999, 30.0, np.inf]
    x = np.concatenate([rng.uniform(-7, 7, 40_000), 10.0 ** rng.uniform(-300, 1, 5_000), ends, np.negative(ends)])
    got, want = np.asarray(tw.erf(x)), np.array([math.erf(v) for v in x.tolist()])
    assert np.max(np.abs(got - want) / np.spacing(np.abs(want))) <= 3
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
    assert np.isnan(np.asarray(tw.erf([np.nan, 0.5]))).tolist() == [True, False]
    for dtype in ("float32", "float16", "bfloat16"):
        narrow = np.asarray(tw.cast(x[:500], dtype))
        got = np.asarray(tw.erf(narrow))
        assert got.dtype == narrow.dtype
        exact = np.array([math.erf(v) for v in narrow.astype("float64").tolist()]).astype(narrow.dtype)
        np.testing.assert_array_equal(got.astype("float64"), exact.astype("float64"))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: tw.linspace(1, 2, 7), lambda: np.linspace(1, 2, 7)),
        (lambda: tw.linspace(-3, 0.1, 1), lambda: np.linspace(-3, 0.1, 1)),
        (lambda: tw.eye(3, 5, 1), lambda: np.eye(3, 5, 1)),
        (lambda: tw.eye(4), lambda: np.eye(4)),
        (lambda: tw.tril(X, 1), lambda: np.tril(X, 1)),
        (lambda: tw.tril(X, np.int8(-128)), lambda: np.tril(X, -128)),
        (lambda: tw.triu(X.astype(int), -1), lambda: np.triu(X.astype(int), -1)),
        (lambda: tw.one_hot([2, 0, 7], 3, dtype="int8"), lambda: np.array([[0, 0, 1], [1, 0, 0], [0, 0, 0]], "int8")),
        (lambda: tw.one_hot([[2, 0]], 3, 0), lambda: np.moveaxis(np.eye(3)[[[2, 0]]], -1, 0)),
        (lambda: tw.one_hot([[2, 0]], 3, 1), lambda: np.moveaxis(np.eye(3)[[[2, 0]]], -1, 1)),
        (lambda: tw.round(X, 2), lambda: np.round(X, 2)),
        (lambda: tw.round(X * 100, -1), lambda: np.round(X * 100, -1)),
        (lambda: np.clip(tw.as_tensor(X), -0.5, None), lambda: np.clip(X, -0.5, None)),
        (lambda: tw.clip(X, X * 0, 1), lambda: np.clip(X, 0, 1)),
        (lambda: ~(tw.as_tensor(X) > 0) & (X < 2) | False, lambda: ~(X > 0) & (X < 2)),
        (
            lambda: tw.as_tensor([5, 6]) ^ 3 | 8 & tw.as_tensor([9, 9]) << 1,
            lambda: np.array([5, 6]) ^ 3 | 8 & (np.array([9, 9]) << 1),
        ),
        (lambda: tw.any(np.ones((2, 0)), 1), lambda: np.any(np.ones((2, 0)), 1)),
        (lambda: tw.all(np.ones((2, 0)), 1), lambda: np.all(np.ones((2, 0)), 1)),
    ],
)
def test_generators_rounding_and_logic(made, expected):
    same(tw.verify(tw.Graph.of(made())).sinks[0].tensor, expected(), rtol=1e-13)


@pytest.mark.parametrize("seed", range(40))
def test_places_of_the_best_are_those_of_a_stable_sort(seed: int) -> None:
    """Ties, NaN, infinities and narrow floats, along any dimension, few and many of all."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 40, int(rng.integers(1, 4))))
    axis, largest = int(rng.integers(len(shape))), bool(rng.random() < 0.5)
    n, count = shape[axis], int(rng.integers(0, shape[axis] + 1)) // int(rng.choice([1, 5]))
    names = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int8", "uint8")
    kind = np.dtype(names[int(rng.integers(len(names)))])
    drawn = rng.integers(-5, 6, shape) if rng.random() < 0.5 else rng.standard_normal(shape) * 50
    x = drawn.astype(np.int64).astype(kind) if kind.kind in "iu" else drawn.astype(kind)
    if kind.kind not in "iu" and rng.random() < 0.5:
        x[rng.random(shape) < 0.2] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    wide = x.astype(np.float64)
    order = np.argsort(wide, axis, kind="stable")
    if largest:
        order = n - 1 - np.flip(np.argsort(np.flip(wide, axis), axis, kind="stable"), axis)
    values, places = tw.top_k(x, count, axis, largest=largest)
    np.testing.assert_array_equal(np.asarray(places), np.take(order, range(count), axis))
    sorted_values = np.take_along_axis(wide, order, axis)
    np.testing.assert_array_equal(np.asarray(values).astype("f8"), np.take(sorted_values, range(count), axis))
    np.testing.assert_array_equal(np.asarray(tw.sort(x, axis, descending=largest)).astype("f8"), sorted_values)
    np.testing.assert_array_equal(np.asarray(tw.argmax(x, axis)), np.argmax(wide, axis))
    np.testing.assert_array_equal(np.asarray(tw.argmin(x, axis)), np.argmin(wide, axis))
