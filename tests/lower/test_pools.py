"""The gradient of a maximum over windows as plans run it: equal to its definition, on any machines."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.graph.ops.windows import max_pool_gradient

SEED = 20261127
Array = np.ndarray[Any, Any]


def shares(x: Array, y: Array, dy: Array, window: Any, stride: Any, gap: Any) -> Array:
    """Window by window."""
    out = np.zeros_like(x)
    for at in np.ndindex(y.shape):
        rows = (
            slice(o * s, o * s + d * (n - 1) + 1, d) for o, s, d, n in zip(at[2:], stride, gap, window, strict=True)
        )
        here = (at[0], at[1], *rows)
        hits = x[here] == y[at]
        out[here] += np.where(hits, dy[at] / max(hits.sum(), 1), 0)
    return out


def test_greatest_elements_share_the_gradient() -> None:
    rng, kinds = np.random.default_rng(SEED), Counter[str]()
    for _ in range(60):
        rank, dtype = int(rng.integers(1, 4)), str(rng.choice(["f4", "f8", "f2"]))
        window, stride = rng.integers(1, 4, (2, rank)).tolist()
        gap = rng.choice([1, 1, 1, 2], rank).tolist()
        counts = np.exp(rng.uniform(0, np.log((60, 18, 5)[rank - 1]), rank)).astype(int)
        reach = [d * (k - 1) + 1 for k, d in zip(window, gap, strict=True)]
        extents = counts * stride + reach + rng.integers(0, 2, rank)
        x = np.round(rng.standard_normal((*rng.integers(1, 5, 2), *extents)) * 2).astype(dtype)  # with ties
        x[rng.random(x.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
        source = tw.source(x)
        y = g.max_pool(source, window, stride=stride, dilation=gap)
        dy = rng.integers(-9, 9, y.shape).astype(dtype)  # shares of few are exact
        slope = tw.grad(tw.sum(y * dy), [source])[0]
        plan = tw.plan(slope)
        kinds.update(str(step.kernel) for step in plan.steps)
        found, expected = tw.run(plan), shares(x, np.asarray(y), dy, window, stride, gap)
        np.testing.assert_allclose(found, expected, 1e-5 if dtype != "f2" else 1e-2, 1e-5, err_msg=f"{x.shape}{window}")
        np.testing.assert_array_equal(tw.run(slope, machines=3), found)
    assert kinds["cpu: max_pool_gradient"] > 20


def test_the_gradient_of_the_gradient() -> None:
    rng = np.random.default_rng(SEED)
    image, w = rng.permutation(np.arange(96.0)).reshape(2, 1, 8, 6), rng.standard_normal((2, 1, 8, 6))
    x = tw.source(image)
    y = g.max_pool(x, (2, 3), stride=(2, 1))
    pooled = tw.source(rng.standard_normal(y.shape))
    slope = tw.grad(tw.sum(y * pooled), [x])[0]
    (found,) = tw.grad(tw.sum(slope * w), [pooled])
    places, weights = (np.lib.stride_tricks.sliding_window_view(a, (2, 3), (2, 3))[:, :, ::2] for a in (image, w))
    expected = np.where(places == places.max((-2, -1), keepdims=True), weights, 0).sum((-2, -1))
    np.testing.assert_allclose(tw.run(found), expected)


def test_the_gradient_of_the_gradient_counts_all_of_a_window() -> None:
    """Also what narrow floats do not count; a window of NaN, which shares nothing, has none."""
    x = tw.source(np.array([[[0.0] * 300, [np.nan] * 300]], "float16"))
    pooled, w = tw.source(np.ones((1, 2, 1), "float16")), np.full((1, 2, 300), 16, "float16")
    tied = g.cast(x, "bfloat16")
    for image, dtype in ((x, "float16"), (tied, "bfloat16")):
        slope = tw.grad(tw.sum(g.max_pool(image, 300) * g.cast(pooled, dtype)), [image])[0]
        (found,) = tw.grad(tw.sum(slope * g.cast(w, dtype)), [pooled])
        np.testing.assert_array_equal(tw.run(found), [[[16], [0]]])


def test_what_does_not_fit_is_refused() -> None:
    x, y = tw.source(np.zeros((1, 1, 4, 4))), tw.source(np.zeros((1, 1, 2, 2)))
    fitting: dict[str, Any] = {"window": (2, 2), "stride": (2, 2), "dilation": (1, 1)}
    for other in ({"window": (2,)}, {"stride": (0, 2)}, {"dilation": (1,)}, {"window": (5, 5)}):
        with pytest.raises(GraphError, match=r"fit|have shapes"):
            max_pool_gradient(x, y, y, **{**fitting, **other})
    with pytest.raises(GraphError, match="no shares"):
        max_pool_gradient(x, y, g.cast(y, "int32"), **fitting)
