"""The package `graph` on real data: handwritten digits as images, words of a real text as tokens."""

import string

import numpy as np
import pytest
from arrays import same
from random_graphs import random_partitions

from tileweave import graph as tw

datasets = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn")


@pytest.fixture(scope="module")
def digits():
    data = datasets.load_digits()
    return data.images / 16.0, data.target


@pytest.fixture(scope="module")
def mosaic(digits):
    """One image of 20 by 30 digits."""
    return digits[0][:600].reshape(20, 30, 8, 8).transpose(0, 2, 1, 3).reshape(160, 240)


def sharded(tensor, seed=0):
    graph = tw.Graph.of(tensor)
    out = tw.verify(tw.expand(graph, random_partitions(np.random.default_rng(seed), graph)))
    assert tw.is_sharding(out, graph)
    return out.sinks[0].tensor


def test_a_gaussian_blur_of_an_image(mosaic):
    row = np.exp(-(np.arange(-3.0, 4.0) ** 2) / 4)
    row /= row.sum()
    blurred = tw.stencil(mosaic, np.outer(row, row), "reflect")
    wide = np.pad(mosaic, 3, "reflect")
    down = sum(row[k] * wide[k : k + 160] for k in range(7))
    expected = sum(row[k] * down[:, k : k + 240] for k in range(7))
    same(blurred, expected, rtol=1e-12)
    same(sharded(blurred), expected, rtol=1e-12)
    assert expected.min() >= 0 and expected.max() <= 1


def test_heat_spreads_over_an_image_and_keeps_its_sum_inside(mosaic):
    heat = tw.as_tensor(mosaic)
    expected = mosaic
    kernel = np.array([[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]])
    for _ in range(4):
        heat = tw.stencil(heat, kernel)
        wide = np.pad(expected, 1)
        moved = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] + expected
        expected = 0.2 * moved
    same(heat, expected, rtol=1e-12)
    same(sharded(heat), expected, rtol=1e-12)


def test_a_convolutional_classifier_learns_in_one_step(digits):
    images, labels = digits[0][:64, None], digits[1][:64]
    rng = np.random.default_rng(0)
    filters, weights = rng.normal(size=(4, 1, 3, 3)) * 0.5, rng.normal(size=(4, 3, 3, 10)) * 0.3

    def loss(filters, weights):
        hidden = tw.max_pool(tw.relu(tw.conv(images, filters)), 2)
        scores = tw.einsum("ncxy,cxyk->nk", hidden, weights)
        return -tw.mean(tw.sum(np.eye(10)[labels] * tw.log_softmax(scores), 1)), scores

    f, w = tw.as_tensor(filters), tw.as_tensor(weights)
    before, scores = loss(f, w)
    steps = tw.evaluate([before, scores, *tw.grad(before, [f, w])])
    assert steps[1].shape == (64, 10)
    (after,) = tw.evaluate([loss(tw.as_tensor(filters - 0.1 * steps[2]), tw.as_tensor(weights - 0.1 * steps[3]))[0]])
    assert after < steps[0]
    gradient = tw.grad(before, f)
    same(sharded(gradient), steps[2], rtol=1e-10)


def test_attention_over_the_words_of_a_text():
    words = "".join(c if c in string.ascii_letters else " " for c in str(datasets.load_digits().DESCR)).lower().split()
    vocabulary = sorted(set(words))
    tokens = np.array([vocabulary.index(word) for word in words[:60]])
    table = np.random.default_rng(0).normal(size=(len(vocabulary), 8))
    x = table[tokens]
    out = tw.attention(x, x, x, causal=True)
    scores = np.where(np.tri(60, dtype=bool), x @ x.T / np.sqrt(8), -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ x
    same(out, expected, rtol=1e-12)
    same(tw.attention_in_parts(x, x, x, 7, 3, causal=True), expected, rtol=1e-12)
    same(sharded(out), expected, rtol=1e-12)
