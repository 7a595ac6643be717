"""The laws of every monoid, plain and tuple-valued: associative, with an identity, commutative where it says so."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tileweave import graph as tw
from tileweave.graph.nn.parts import combine_attention as _combine_attention
from tileweave.graph.ops.monoids import MONOIDS, TUPLE_MONOIDS
from tileweave.graph.ops.operators import TENSORS

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)
EIGHTHS = st.integers(-80, 80).map(lambda k: k / 8)  # sums and products of three are exact
FLOATS = EIGHTHS | st.sampled_from(SPECIAL)


def triples(elements):
    return st.integers(1, 5).flatmap(lambda n: st.tuples(*[st.lists(elements, min_size=n, max_size=n)] * 3))


def laws(monoid, dtype, a, b, c):
    unit = np.full(a.shape, monoid.identity(np.dtype(dtype)), dtype)
    join = monoid.combine
    with np.errstate(all="ignore"):
        pairs = [
            (join(a, unit), a),
            (join(unit, a), a),
            (join(a, b), join(b, a)),
            (join(join(a, b), c), join(a, join(b, c))),
        ]
    for one, other in pairs:
        assert one.dtype == other.dtype == a.dtype
        wide = "float64" if one.dtype.kind == "V" else one.dtype  # NumPy does not compare the NaN of bfloat16
        np.testing.assert_array_equal(one.astype(wide), other.astype(wide))


@pytest.mark.parametrize("name", MONOIDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@given(triples(FLOATS))
def test_plain_monoids_of_floats(name, dtype, values):
    laws(MONOIDS[name], dtype, *(np.array(v, dtype) for v in values))


@pytest.mark.parametrize("name", MONOIDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@given(triples(st.integers(-(2**63), 2**63 - 1)))
def test_plain_monoids_of_integers(name, dtype, values):
    if dtype == "bool" and name in ("sum", "product"):
        return  # a sum of bools is an integer
    laws(MONOIDS[name], dtype, *(np.array(v, "int64").astype(dtype) for v in values))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@given(triples(FLOATS))
def test_plain_monoids_of_narrow_floats(name, dtype, values):
    laws(MONOIDS[name], dtype, *(np.array(v, dtype) for v in values))


# ---------------------------------------------------------------------------------------------------------------------
# tuples: states are lifted from parts of one row, the last of them possibly empty


def rows(elements, least):
    return st.tuples(*[st.lists(elements, min_size=least, max_size=4)] * 3)


def lifted(monoid, parts):
    places = np.cumsum([0, *map(len, parts)])
    return [
        monoid.of(TENSORS, tw.as_tensor(np.array([p], np.float64)), 1, int(k))
        for p, k in zip(parts, places, strict=False)
    ]


def equal(one, other):
    for a, b in zip(tw.evaluate(one), tw.evaluate(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def tuple_laws(monoid, parts):
    a, b, c = lifted(monoid, parts)
    unit, join = monoid.identity(TENSORS, a[0].shape, a[0].dtype), partial(monoid.combine, TENSORS)
    assert len(a) == len(unit) == len(monoid.parts)
    assert [t.type for t in unit] == [t.type for t in a]
    equal(join(a, unit), a)
    equal(join(unit, a), a)
    equal(join(unit, unit), unit)
    equal(join(join(a, b), c), join(a, join(b, c)))
    equal(join(a, b), join(b, a))
    return monoid.finish(TENSORS, join(join(a, b), c))


@given(rows(FLOATS, 0))
@example(([-np.inf], [-np.inf], []))
@example(([np.inf], [-np.inf], [np.inf, np.nan]))
@settings(max_examples=40)
def test_max_and_sum_of_exp(parts):
    got = np.asarray(tuple_laws(TUPLE_MONOIDS["logsumexp"], parts))
    row = np.concatenate(parts)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, [np.log(np.exp(row).sum())], rtol=1e-12, atol=1e-12)


@given(rows(EIGHTHS | st.just(np.nan), 0))
@example(([], [], []))
@settings(max_examples=40)
def test_count_mean_and_squares(parts):
    got = np.asarray(tuple_laws(TUPLE_MONOIDS["variance"], parts))
    row = np.concatenate(parts)
    np.testing.assert_allclose(got, [row.var() if row.size else np.nan], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@given(parts=rows(FLOATS, 1))
@example(parts=([-np.inf], [-np.inf], [np.inf]))
@example(parts=([1.0, np.nan], [np.nan], [np.inf]))
@settings(max_examples=40)
def test_value_and_index(name, parts):
    got = np.asarray(tuple_laws(TUPLE_MONOIDS[name], parts))
    np.testing.assert_array_equal(got, [getattr(np, name)(np.concatenate(parts))])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_value_and_index_of_integers_at_the_ends_of_their_range(name, dtype):
    kind = np.dtype(dtype)
    ends = [0, 1] if dtype == "bool" else [np.iinfo(kind).min, np.iinfo(kind).max]
    monoid, x = TUPLE_MONOIDS[name], np.array([ends + ends[::-1]], kind)
    state = monoid.of(TENSORS, tw.as_tensor(x), 1, 0)
    unit, join = monoid.identity(TENSORS, (1,), kind), partial(monoid.combine, TENSORS)
    equal(join(unit, state), state)
    equal(join(state, unit), state)
    got = np.asarray(monoid.finish(TENSORS, join(unit, state)))
    np.testing.assert_array_equal(got, getattr(np, name)(x, 1))


@given(st.lists(st.tuples(FLOATS, EIGHTHS), min_size=3, max_size=3))
@settings(max_examples=40)
def test_weighted_values_of_attention(parts):
    """(max, sum of exp, weighted values): one key and one value per state."""

    def state(score, value):
        top = np.array([[score]])
        mass = 1.0 if np.isfinite(score) else {-np.inf: 0.0}.get(score, score)
        return tuple(tw.as_tensor(t) for t in (top, np.array([[mass]]), np.array([[mass * value]])))

    a, b, c = (state(*part) for part in parts)
    unit = state(-np.inf, 0.0)
    equal(_combine_attention(a, unit), a)
    equal(_combine_attention(unit, a), a)
    equal(_combine_attention(_combine_attention(a, b), c), _combine_attention(a, _combine_attention(b, c)))
    equal(_combine_attention(a, b), _combine_attention(b, a))
