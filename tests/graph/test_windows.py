"""Convolution, pooling and stencils against their definitions, sharded along every dimension, with gradients."""

import itertools

import numpy as np
import pytest
from arrays import same, values
from random_graphs import random_cuts
from test_grad import check

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError

RNG = np.random.default_rng(0)


def conv_by_definition(x, w, stride, dilation, groups, pads):
    rank = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    kernel = w.shape[2:]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *out), np.result_type(x, w))
    each, channels = w.shape[0] // groups, w.shape[1]
    for f in range(w.shape[0]):
        seen = x[:, f // each * channels : (f // each + 1) * channels]
        for o in itertools.product(*map(range, out)):
            window = tuple(
                slice(s * p, s * p + d * (k - 1) + 1, d) for s, p, d, k in zip(stride, o, dilation, kernel, strict=True)
            )
            result[(slice(None), f, *o)] = (seen[(slice(None), slice(None), *window)] * w[f]).sum(
                tuple(range(1, rank + 2))
            )
    return result


CASES = [
    # x, w, stride, dilation, groups, padding
    ((2, 3, 9), (4, 3, 3), (1,), (1,), 1, (0,)),
    ((2, 3, 10), (4, 3, 3), (2,), (2,), 1, (2,)),
    ((1, 1, 5), (1, 1, 5), (3,), (1,), 1, (0,)),
    ((2, 4, 7, 6), (6, 2, 3, 2), (1, 2), (2, 1), 2, (1, 0)),
    ((2, 3, 6, 7), (3, 1, 2, 3), (1, 1), (1, 1), 3, (1, 1)),
    ((2, 3, 8, 8), (2, 3, 3, 3), (2, 3), (1, 1), 1, (0, 2)),
    ((1, 2, 4, 5, 4), (3, 2, 2, 2, 2), (1, 2, 1), (1, 1, 2), 1, (1, 0, 1)),
    ((0, 3, 9), (4, 3, 3), (1,), (1,), 1, (0,)),
    ((1, 2, 3, 3, 3, 3), (2, 2, 2, 2, 2, 2), (1,) * 4, (1,) * 4, 1, (0,) * 4),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_conv(case, dtype):
    xs, ws, stride, dilation, groups, padding = case
    x, w, b = values(RNG, xs, dtype), values(RNG, ws, dtype), values(RNG, ws[:1], dtype)
    expected = conv_by_definition(x, w, stride, dilation, groups, [(p, p) for p in padding])
    got = tw.conv(x, w, stride=stride, dilation=dilation, groups=groups, padding=padding)
    same(got, expected, rtol=1e-5)
    biased = tw.conv(x, w, b, stride=stride, dilation=dilation, groups=groups, padding=padding)
    same(biased, expected + b.reshape(-1, *(1,) * (len(ws) - 2)), rtol=1e-5)
    graph = tw.verify(tw.Graph.of(got))
    operation = graph.operations[-1]
    rng = np.random.default_rng(1)
    for _ in range(6):
        sharded = tw.verify(tw.expand(graph, {operation: random_cuts(rng, operation.index)}))
        same(sharded.sinks[0].tensor, expected, rtol=1e-5)


@pytest.mark.parametrize("case", [CASES[k] for k in (0, 1, 3, 6)])
def test_conv_along_every_dimension_alone(case):
    xs, ws, stride, dilation, groups, padding = case
    x, w = values(RNG, xs, "int64"), values(RNG, ws, "int64")
    got = tw.conv(x, w, stride=stride, dilation=dilation, groups=groups, padding=padding)
    (whole,) = tw.evaluate([got])
    graph = tw.Graph.of(got)
    operation = graph.operations[-1]
    for dim, extent in enumerate(operation.index.shape):
        for count in range(2, extent + 1):
            cuts = tw.partition(operation, [count if k == dim else 1 for k in range(operation.index.rank)])
            same(tw.expand(graph, {operation: cuts}).sinks[0].tensor, whole)


def test_padding_names_and_pairs():
    x, w = values(RNG, (1, 1, 7), "int64"), values(RNG, (1, 1, 3), "int64")
    same(tw.conv(x, w, padding="valid"), conv_by_definition(x, w, (1,), (1,), 1, [(0, 0)]))
    same(tw.conv(x, w, padding=[(2, 0)]), conv_by_definition(x, w, (1,), (1,), 1, [(2, 0)]))
    for stride in (1, 2, 3):
        out = tw.conv(x, w, padding="same", stride=stride)
        assert out.shape == (1, 1, -(-7 // stride))
    same(tw.conv(x, w, padding="same"), conv_by_definition(x, w, (1,), (1,), 1, [(1, 1)]))


def test_a_shard_reads_its_halo_and_no_more():
    y = tw.conv(np.zeros((1, 1, 100)), np.zeros((1, 1, 5)), stride=2)
    operation = y.producer
    from tileweave.graph.passes.shard import input_region

    index = tw.partition(operation, (1, 1, 4, 1)).block(1)
    region = input_region(operation, "x", index)
    assert index.start[2] == 12 and region.start[2] == 24 and region.shape[2] == 2 * (index.shape[2] - 1) + 5


def test_strided_convolution_is_the_dense_one_strided():
    """A striding projection, or the even and odd dense results: both of the document's ways."""
    x, w = values(RNG, (2, 3, 11), "int64"), values(RNG, (2, 3, 3), "int64")
    (expected,) = tw.evaluate([tw.conv(x, w, stride=2)])
    same(tw.stride(tw.conv(x, w), 2, 2), expected)
    halves = [tw.conv(x[:, :, k:], w, stride=2) for k in (0, 1)]
    joined = tw.interleave([halves[0][:, :, :4], halves[1][:, :, :4]], 2)
    same(joined, tw.evaluate([tw.conv(x, w)])[0][:, :, :8])


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_pooling(padding, dtype):
    x = values(RNG, (2, 3, 8, 7), dtype)
    for window, stride in ((2, None), ((2, 3), 1), (3, (2, 1))):
        k = (window,) * 2 if isinstance(window, int) else window
        s = k if stride is None else (stride,) * 2 if isinstance(stride, int) else stride
        least = np.iinfo(dtype).min if np.dtype(dtype).kind == "i" else -np.inf
        pads = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
        seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads, constant_values=least), k, (2, 3))
        got = tw.max_pool(x, window, stride=stride, padding=padding)
        same(got, seen[:, :, :: s[0], :: s[1]].max((-2, -1)))
        zeros = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), k, (2, 3))[:, :, :: s[0], :: s[1]]
        same(tw.average_pool(x, window, stride=stride, padding=padding), zeros.mean((-2, -1)), rtol=1e-12)
        graph = tw.verify(tw.Graph.of(got))
        rng = np.random.default_rng(3)
        cuts = {graph.operations[-1]: random_cuts(rng, graph.operations[-1].index)}
        same(tw.expand(graph, cuts).sinks[0].tensor, tw.evaluate([got])[0])


def test_pooling_of_nothing_has_its_windows():
    for x in (np.ones((0, 3, 8, 7)), np.ones((2, 0, 8, 7))):
        for function in (tw.average_pool, tw.max_pool):
            same(function(x, 2, padding=1), np.ones((*x.shape[:2], 5, 4)))


def test_nan_wins_a_window():
    x = np.array([[[1.0, np.nan, 2.0, 3.0]]])
    same(tw.max_pool(x, 2), [[[np.nan, 3.0]]])


@pytest.mark.parametrize("boundary", ["constant", "reflect"])
def test_stencils(boundary):
    x, weights = values(RNG, (6, 5), "int64"), values(RNG, (3, 3), "int64")
    wide = np.pad(x, 1, "constant" if boundary == "constant" else "reflect")
    expected = sum(weights[i, j] * wide[i : i + 6, j : j + 5] for i in range(3) for j in range(3))
    same(tw.stencil(x, weights, boundary), expected)


def test_heat_equation_in_shards_is_the_whole_one():
    x = RNG.normal(size=(12, 10))
    heat = np.array([[0, 0.1, 0], [0.1, 0.6, 0.1], [0, 0.1, 0]])
    y, expected = tw.as_tensor(x), x
    for _ in range(3):
        y = tw.stencil(y, heat, "reflect")
        w = np.pad(expected, 1, "reflect")
        expected = sum(heat[i, j] * w[i : i + 12, j : j + 10] for i in range(3) for j in range(3))
    same(y, expected, rtol=1e-12)
    graph = tw.Graph.of(y)
    cuts = {o: tw.partition(o, [1, 1, 3, 2, 1]) for o in graph.operations if o.operator == "conv"}
    assert len(cuts) == 3
    same(tw.verify(tw.expand(graph, cuts)).sinks[0].tensor, expected, rtol=1e-12)


GRADIENT_CASES = [
    ((2, 2, 6), (3, 2, 3), 1, 1, 1, 0),
    ((1, 2, 7), (2, 2, 2), 2, 2, 1, 1),
    ((1, 4, 5), (2, 2, 2), 1, 1, 2, 0),
    ((1, 2, 4, 5), (2, 2, 2, 2), (1, 2), (2, 1), 1, (0, 1)),
    ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2), 1, 1, 1, 0),
]


@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_gradients_of_convolution(case):
    xs, ws, stride, dilation, groups, padding = case
    check(
        lambda x, w, b: tw.conv(x, w, b, stride=stride, dilation=dilation, groups=groups, padding=padding),
        RNG.normal(size=xs),
        RNG.normal(size=ws),
        RNG.normal(size=ws[:1]),
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_a_convolution_of_no_images(stride):
    x, w = tw.as_tensor(np.ones((0, 3, 4, 5))), tw.as_tensor(np.ones((4, 3, 2, 2)))
    of_x, of_w = tw.grad(tw.sum(tw.conv(x, w, stride=stride)), [x, w])
    assert of_x.shape == x.shape
    np.testing.assert_array_equal(of_w, np.zeros(w.shape))


def test_gradients_of_pooling_and_stencils():
    x = RNG.permutation(2 * 5 * 6).reshape(1, 2, 5, 6) / 7.0
    check(lambda x: tw.max_pool(x, 2, stride=(1, 2)), x)
    check(lambda x: tw.max_pool(x, 2, padding=1), x)
    check(lambda x: tw.average_pool(x, (2, 3), stride=1), x)
    check(lambda x: tw.stencil(x, np.array([[0, 1.0, 0], [1, -4, 1], [0, 1, 0]]), "reflect"), x[0, 0])


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 2, 3))), "3 channels and 2 filters of 2"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3, 3))), "ranks 3 and 4"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 6))), "do not fit"),
        (lambda: tw.conv(np.ones((1, 4, 5)), np.ones((3, 2, 2)), groups=2), "3 filters"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), stride=0), "stride 0"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), padding="full"), "padding 'full'"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), padding=1.5), "padding 1.5"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), padding=None), "padding None"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), padding=[(1,)]), "padding"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), padding=[(1, -1)]), "padding"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), stride=None), "stride None"),
        (lambda: tw.conv(np.ones((1, 3, 5)), np.ones((2, 3, 3)), np.ones(3)), "b has shape"),
        (lambda: tw.max_pool(np.ones((3, 4)), 2), "rank 2 is too low"),
        (lambda: tw.max_pool(np.ones((1, 3, 4)), 5), "windows of"),
        (lambda: tw.stencil(np.ones((3, 4)), np.ones((2, 3))), "odd extents"),
    ],
)
def test_what_does_not_fit_is_refused(call, problem):
    with pytest.raises(GraphError, match=problem):
        call()


def test_bool_has_no_convolution():
    with pytest.raises(DtypeError, match="bool"):
        tw.conv(np.ones((1, 1, 3), bool), np.ones((1, 1, 2), bool))
