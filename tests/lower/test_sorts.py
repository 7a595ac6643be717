"""Sorted values, the first of them, and their places, as plans run them: each against NumPy."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g

SEED = 20261125


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """An array of 1 to 3 dimensions with ties, and NaN where there is such, and one of its dimensions."""
    rank = int(rng.integers(1, 4))
    shape = [round(np.exp(rng.uniform(0, (8, 5.5, 4)[rank - 1]))) for _ in range(rank)]
    x = np.round(rng.standard_normal(shape) * 9).astype(rng.choice(["f4", "f8", "f2", "i2", "i8", "bool"]))
    if x.dtype.kind == "f" and rng.random() < 0.4:
        x[rng.random(shape) < 0.1] = np.nan
    return x.transpose(rng.permutation(rank)) if rng.random() < 0.3 else x, int(rng.integers(0, rank))


@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_places_together_and_alone(threads: int) -> None:
    print("seed", SEED)
    rng = np.random.default_rng([SEED, threads])
    for _ in range(25):
        x, axis = drawn(rng)
        descending = bool(rng.random() < 0.5)
        count = int(rng.integers(0, x.shape[axis] + 1))
        whole = np.flip(np.sort(x, axis), axis) if descending else np.sort(x, axis)
        want = np.take(whole, range(count), axis)
        hole = tw.source(shape=x.shape, dtype=x.dtype, name="x")
        values, places = g.top_k(hole, count, axis, largest=descending)

        def run(*made: tw.Tensor, x: np.ndarray = x, **how: object) -> object:
            return tw.run(tw.plan(list(made) if len(made) > 1 else made[0]), bind={"x": x}, threads=threads, **how)

        both = run(values, places)
        np.testing.assert_array_equal(both[0], want)
        np.testing.assert_array_equal(np.take_along_axis(x, both[1], axis), want)
        np.testing.assert_array_equal(run(values), want)
        np.testing.assert_array_equal(run(places), both[1])
        ordered = g.sort(hole, axis, descending=descending)
        np.testing.assert_array_equal(run(ordered), whole)
        held = x.copy()
        run(ordered, x=held, out=held)
        np.testing.assert_array_equal(held, whole)


@pytest.mark.parametrize("shape", [(90, 4000), (4000, 90), (200000,), (7, 300, 200)])
def test_threads_share_the_rows(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(SEED).standard_normal(shape, "f4")
    for axis in range(x.ndim):
        plan = tw.plan(g.sort(tw.source(x), axis))
        first = tw.run(plan, threads=3)
        np.testing.assert_array_equal(first, np.sort(x, axis))
        np.testing.assert_array_equal(tw.run(plan, threads=3), first)
