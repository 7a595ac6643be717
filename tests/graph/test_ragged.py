"""Products of groups of rows: each group by itself in NumPy, however the sizes fall, cut in every way, and back."""

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg
from tileweave.errors import DtypeError, GraphError, TileweaveError


def example(seed, dtype=np.float32):
    """x, w, sizes and what the products are, in f64; groups without rows, and rows without a group."""
    random = np.random.default_rng(seed)
    rows, terms, columns, groups = (int(n) for n in random.integers(1, 40, 4))
    sizes = np.diff(np.sort(random.integers(0, rows + 1, groups)), prepend=0).astype(np.int32)
    x, w = (random.standard_normal(s).astype(dtype) for s in ((rows, terms), (groups, terms, columns)))
    want, ends = np.zeros((rows, columns)), np.cumsum(sizes)
    for g, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        want[end - size : end] = x[end - size : end].astype(float) @ w[g].astype(float)
    return x, w, sizes, want


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(np.float64, 1e-13), (np.float32, 1e-5), (np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)]
)
def test_each_group_is_multiplied_by_its_own_matrix(dtype, rounding):
    for seed in range(12):
        x, w, sizes, want = example(seed, dtype)
        for made in (tw.nn.ragged_dot(x, w, sizes), tw.run(tw.nn.ragged_dot(*map(tw.source, (x, w, sizes))))):
            found = np.asarray(made)
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype(float), want, rounding, rounding * 40, err_msg=f"seed {seed}")


def test_every_cut_has_the_same_value():
    """Rows, columns, terms and groups: partial results of groups are zero in the rows of the others."""
    for seed in range(8):
        x, w, sizes, want = example(seed, np.float64)
        whole = tg.verify(tg.Graph.of(tg.ragged_dot(x, w, sizes)))
        (operation,) = whole.operations
        random = np.random.default_rng(seed)
        cuts = [int(random.integers(1, min(n, 4) + 1)) for n in operation.index.shape]
        cut = tg.expand(whole, {operation: tg.partition(operation, cuts)})
        tg.check_sharding(cut, whole)
        np.testing.assert_allclose(cut.sinks[0].tensor, want, atol=1e-12, err_msg=f"seed {seed}, cuts {cuts}")


def test_plans_on_several_machines_have_the_same_value():
    x, w, sizes, want = example(3)
    y = tw.nn.ragged_dot(*map(tw.source, (x, w, sizes)))
    for machines in (1, 2, 5):
        np.testing.assert_allclose(tw.run(tw.plan(y, machines)), want, atol=1e-4)
    text = tg.to_json(tg.Graph.of(y))
    assert tg.to_json(tg.from_json(text)) == text


def test_sizes_are_data_of_a_run():
    x, w, sizes, _ = example(5)
    counts = tw.source(sizes)
    plan = tw.plan(tw.nn.ragged_dot(tw.source(x), tw.source(w), counts))
    moved = np.roll(sizes, 1)
    whole = np.asarray(tw.nn.ragged_dot(x, w, moved))
    np.testing.assert_allclose(tw.run(plan, bind={counts: moved}), whole, atol=1e-5)


def test_experts_without_rows_have_no_gradient():
    x, w = np.ones((3, 2)), np.ones((3, 2, 4))
    sources = tw.source(x), tw.source(w)
    y = tw.nn.ragged_dot(*sources, [2, 0, 1])
    dx, dw = tg.grad(tw.sum(y), list(sources))
    assert np.asarray(dx).tolist() == (4 * x).tolist()
    assert np.asarray(dw)[:, 0, 0].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("args", "kind", "said"),
    [
        ((np.ones((3, 2)), np.ones((2, 4)), [1, 2]), GraphError, "ranks 2, 2 and 1 do not fit"),
        ((np.ones((3, 2)), np.ones((2, 3, 4)), [1, 2]), GraphError, "in is 2 in x and 3 in w"),
        ((np.ones((3, 2)), np.ones((2, 2, 4)), [1, 1, 1]), GraphError, "2 matrices for 3 groups"),
        ((np.ones((3, 2)), np.ones((2, 2, 4)), [1.0, 2.0]), DtypeError, "sizes of type float64"),
        ((np.ones((3, 2), bool), np.ones((2, 2, 4), bool), [1, 2]), DtypeError, "bool has no sum of products"),
        ((np.ones((3, 2)), np.ones((2, 2, 4)), [2, 2]), GraphError, "groups of 2, 2 rows"),
        ((np.ones((3, 2)), np.ones((2, 2, 4)), [-1, 2]), GraphError, "groups of -1, 2 rows"),
    ],
)
def test_what_does_not_fit_is_refused(args, kind, said):
    with pytest.raises(kind, match=said) as caught:
        np.asarray(tw.nn.ragged_dot(*args))
    assert isinstance(caught.value, TileweaveError)
