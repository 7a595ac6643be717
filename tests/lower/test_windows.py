"""Convolutions and poolings compiled: their programs on random shapes equal the operators' definitions."""

from __future__ import annotations

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph, lower

TIMES = 6


def shapes(draw):
    """A random convolution: rank, batch, groups, channels, filters, kernel, stride, padding, dilation, extents."""
    rank = int(draw.integers(1, 4))
    groups = int(draw.choice([1, 1, 2, 5]))
    channels, filters = (groups * int(draw.integers(1, 6)) for _ in range(2))
    kernel, stride, dilation, padding = (draw.integers(low, 4, rank).tolist() for low in (1, 1, 1, 0))
    extents = [
        int(d * (k - 1) + 1 + draw.integers(0, (40, 14, 7)[rank - 1])) for d, k in zip(dilation, kernel, strict=True)
    ]
    return int(draw.integers(1, 4)), groups, channels, filters, kernel, stride, padding, dilation, extents


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_convolutions_of_random_shapes_equal_their_definition(dtype):
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    for _ in range(TIMES):
        batch, groups, channels, filters, kernel, stride, padding, dilation, extents = shapes(draw)
        x = draw.integers(-9, 10, (batch, channels, *extents)).astype(dtype)
        w = draw.integers(-9, 10, (filters, channels // groups, *kernel)).astype(dtype)
        b = draw.integers(-9, 10, filters).astype(dtype)
        y = graph.conv(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)
        made = next(node for node in graph.topological([y]) if getattr(node, "operator", "") == "conv")
        assert lower.decide(made, "block").backend == "cpu"
        expected = np.asarray(y)
        for machines in (1, 3):
            np.testing.assert_array_equal(tw.run(y, machines=machines), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_poolings_of_random_shapes_equal_their_definition(dtype):
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    for _ in range(TIMES):
        batch, _, channels, _, kernel, stride, padding, dilation, extents = shapes(draw)
        x = draw.integers(-9, 10, (batch, channels, *extents)).astype(dtype)
        if dtype != "int32":
            x[draw.random(x.shape) < 0.02] = np.nan
        y = graph.max_pool(x, kernel, stride=stride, padding=padding, dilation=dilation)
        np.testing.assert_array_equal(tw.run(y), np.asarray(y))
        np.testing.assert_array_equal(tw.run(y, machines=2), np.asarray(y))
