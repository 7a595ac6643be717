"""Where numbers belong among others, as plans find it: equal to NumPy, by native code where arrays are dense."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.cpu.indexed.searches import Search, findable
from tileweave.errors import BackendError, GraphError

SEED = 20261127


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Numbers with ties, NaN, infinities and signed zeros."""
    if dtype[0] == "u":
        return rng.integers(0, 99, shape).astype(dtype)
    x = np.asarray(rng.standard_normal(shape) * 20).astype(dtype)
    if dtype[0] == "f":
        for odd in (np.nan, np.inf, -0.0, 0.0):
            x[rng.random(shape) < 0.03] = odd
    return x


@pytest.mark.parametrize("threads", [1, 3])
def test_any_numbers_among_any_rows(threads: int) -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng([SEED, threads]), 0
    for _ in range(25):
        dtype = str(rng.choice(["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u4"]))
        rows = [int(rng.integers(1, 6))] if rng.random() < 0.4 else []
        n, m = (round(np.exp(rng.uniform(0, 8))) for _ in range(2))
        x, values = np.sort(drawn(rng, dtype, *rows, n), -1), drawn(rng, dtype, *(rows or [2]), m)
        side = str(rng.choice(["left", "right"]))
        pairs = zip(x, values, strict=True) if rows else ((x, one) for one in values)
        want = np.stack([np.searchsorted(a, b, side) for a, b in pairs])
        holes = [tw.source(shape=a.shape, dtype=a.dtype, name=k) for k, a in (("x", x), ("v", values))]
        plan = tw.plan(g.searchsorted(*holes, side))
        for _ in range(2):
            np.testing.assert_array_equal(tw.run(plan, bind={"x": x, "v": values}, threads=threads), want)
        native += str(plan.steps[0].kernel) == "cpu: searchsorted"
    assert native > 12


def test_what_there_is_no_code_for() -> None:
    x, values = np.arange(6.0), np.arange(4.0)
    for a, b in ((x[::2], values), (x, values[::2]), (x.astype("f4"), values), (x[:0], values)):
        out = np.zeros(b.shape, np.int64)
        assert not findable(a, b, out)
        with pytest.raises(BackendError, match="is not searched"):
            Search({"side": "left"}, 1).bind([a, b, out])
    assert np.asarray(g.searchsorted(x[:0], values)).tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(np.searchsorted(tw.source(x), values), [0, 1, 2, 3])
    with pytest.raises(GraphError, match="side 'middle'"):
        g.searchsorted(x, values, "middle")
