"""How often numbers occur, and triangles of matrices: found in what a user writes, equal to NumPy, in native code."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.cpu.indexed.counts import Count, countable
from tileweave.backends.cpu.indexed.triangles import Triangle, triangular
from tileweave.errors import BackendError, GraphError


def counted(x: np.ndarray, length: int) -> np.ndarray:
    rows = x.reshape(-1, x.shape[-1])
    found = [np.bincount(row[(row >= 0) & (row < length)].astype("i8"), minlength=length) for row in rows]
    return np.array(found).reshape(*x.shape[:-1], length)


def kernels(plan: tw.Plan) -> list[str]:
    return [str(step.kernel) for step in plan.steps if step.stage != "store"]


@pytest.mark.parametrize("threads", [1, 3])
def test_numbers_of_any_rows_are_counted(threads: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        rows = [int(n) for n in rng.integers(1, 9, rng.integers(0, 3))]
        count, length = (round(np.exp(rng.uniform(0, most))) for most in (10, 9))
        kind = str(rng.choice(["i1", "i2", "i4", "i8", "u1", "u2", "u4"]))
        most = min(length + 3, np.iinfo(kind).max)
        x = rng.integers(0 if kind[0] == "u" else -3, most, (*rows, count)).astype(kind)
        made = str(rng.choice(["f4", "f8", "i4", "i8"]))
        hole = tw.source(shape=x.shape, dtype=kind, name="x")
        plan = tw.plan(g.bincount(hole, length, made))
        for _ in range(2):
            found = tw.run(plan, bind={"x": x}, threads=threads)
            np.testing.assert_array_equal(found, counted(x, length).astype(made))
        assert kernels(plan) == ["cpu: bincount"] or x.size * length < 4096


@pytest.mark.parametrize("dtype", ["f4", "i8", None])
def test_a_sum_of_ones_where_a_label_is_a_number_is_a_count(dtype: str | None) -> None:
    x = np.random.default_rng(1).integers(-1, 12, (3, 5, 700))
    hole = tw.source(shape=x.shape, dtype=x.dtype, name="x")
    ones = g.one_hot(hole, 10, dtype=dtype) if dtype else g.equal(g.unsqueeze(hole, 3), g.arange(10))
    for axes, want in (((0, 1, 2), counted(x.reshape(-1), 10)), (2, counted(x, 10)), ((0, 1), None)):
        plan = tw.plan(tw.sum(ones, axes))
        found = tw.run(plan, bind={"x": x})
        every = (x[..., None] == np.arange(10)).astype(dtype or bool)
        np.testing.assert_array_equal(found, every.sum(axes))
        assert (want is None) or np.array_equal(found, want)
        assert ("cpu: bincount" in kernels(plan)) == (want is not None)


def test_what_is_no_count() -> None:
    x = tw.source(shape=(700,), dtype="i8", name="x")
    one = g.equal(g.unsqueeze(x, 1), g.arange(10))
    for no in (tw.sum(one, 1), tw.max(one, 0), tw.sum(g.equal(g.unsqueeze(x, 1), g.arange(1, 11)), 0)):
        assert "cpu: bincount" not in kernels(tw.plan(no))
    x = np.arange(600).astype("u1")  # numbers of a type that begins anew at 256
    wrapped = tw.sum(g.equal(g.unsqueeze(tw.source(x), 1), g.arange(300, dtype="u1")), 0)
    np.testing.assert_array_equal(tw.run(wrapped), (x[:, None] == np.arange(300).astype("u1")).sum(0))
    with pytest.raises(GraphError, match="no length"):
        g.bincount(x, -1)
    out, places = np.zeros(4, "i8"), np.arange(6)
    for a, b in ((places[::2], out), (places.astype("f4"), out), (places[:0], out), (places, out[::2])):
        assert not countable(a, b)
        with pytest.raises(BackendError, match="is not counted"):
            Count(1).bind([a, b])


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 4), (0, 3, 4), (0, 0)])
def test_no_labels_are_counted_as_often_as_there_are_rows(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "i8")
    for length in (0, 1, 5):
        for count in range(1, len(shape) + 1):
            axes = tuple(range(len(shape) - count, len(shape)))
            found = tw.run(tw.sum(g.one_hot(tw.source(x), length, dtype="i4"), axes))
            np.testing.assert_array_equal(found, np.zeros((*shape[: len(shape) - count], length)))


@pytest.mark.parametrize("threads", [1, 3])
def test_triangles_of_any_matrices(threads: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    native = 0
    for _ in range(25):
        front = [int(n) for n in rng.integers(1, 4, rng.integers(0, 2))]
        shape = (*front, *(int(n) for n in rng.integers(1, (300, 3000))))
        k, dtype = int(rng.integers(-shape[-2] - 3, shape[-1] + 4)), str(rng.choice(["f4", "f8", "i1", "i4"]))
        x = (rng.standard_normal(shape) * 9).astype(dtype)
        hole = tw.source(shape=shape, dtype=dtype, name="x")
        for ours, numpys in ((g.tril, np.tril), (g.triu, np.triu)):
            plan = tw.plan(ours(hole, k))
            np.testing.assert_array_equal(tw.run(plan, bind={"x": x}, threads=threads), numpys(x, k))
            native += kernels(plan) == ["cpu: triangle"]
            assert ("cpu: triangle" in kernels(plan)) == (shape[-1] * x.itemsize >= 1024)
    assert native > 20


def test_what_is_no_triangle() -> None:
    x = tw.source(shape=(300, 700), dtype="f4", name="x")
    below = g.less_equal(g.arange(700, dtype="i4"), g.unsqueeze(g.arange(300, dtype="i4"), 1))
    for no in (g.tril(x * 2), g.where(below, x, 1.0), g.where(g.logical_not(below), x, 0.0)):
        assert "cpu: triangle" not in kernels(tw.plan(no))
    a = -np.ones((300, 700), "f4")  # zeros with a sign, and numbers of a type that begins anew after 127
    signed = tw.run(g.where(g.less_equal(g.arange(700), g.unsqueeze(g.arange(300) + 1, 1)), tw.source(a), -0.0))
    np.testing.assert_array_equal(np.signbit(signed), True)
    a, rows, columns = np.ones((100, 128)), np.arange(100, dtype="i1"), np.arange(128, dtype="i1")
    below = g.less_equal(g.arange(128, dtype="i1"), g.unsqueeze(g.arange(100, dtype="i1") + 100, 1))
    expected = columns <= (rows + np.int8(100))[:, None]
    np.testing.assert_array_equal(tw.run(g.where(below, tw.source(a), 0.0)), expected)
    a = np.ones((4, 5))
    for one, other in ((a[:, ::2], a[:, ::2]), (a, a.astype("f4")), (a[0], a[0])):
        assert not triangular(one, other)
        with pytest.raises(BackendError, match="has no triangle"):
            Triangle({"offset": 0, "upper": True}, 1).bind([one, other])
