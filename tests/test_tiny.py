"""The whole system in seconds: a program through every layer, against NumPy."""

import numpy as np

import tileweave as tw


def test_a_program_runs_through_every_floor(tmp_path):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((13, 5), (5, 7), (7,)))
    np.save(tmp_path / "x.npy", x)
    y = tw.softmax(tw.relu(tw.linear(tw.source(tmp_path / "x.npy"), w, b)))
    want = np.maximum(x @ w + b, 0)
    want = np.exp(want - want.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    plan = tw.plan(tw.sink(y, tmp_path / "y.npy"), machines=tw.machines(3, memory="1MiB"))
    assert "batch/3" in plan.explain()
    np.testing.assert_allclose(np.load(tw.run(plan)), want, rtol=1e-5)


def test_the_documents_contraction():
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (4, 3, 5, 6)), rng.integers(-9, 9, (2, 7, 4, 5))
    got = tw.run(tw.einsum("trus,pqtu->pqrs", a, b))
    np.testing.assert_array_equal(got, np.einsum("trus,pqtu->pqrs", a, b))
