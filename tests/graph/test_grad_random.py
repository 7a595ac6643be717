"""Gradients against central differences on random shapes, through selectors, broadcasting and second uses."""

from collections.abc import Callable

import numpy as np
import pytest
from random_graphs import random_partitions

from tileweave import graph as tw
from tileweave.graph.ops.grouped.ragged import ragged_outer
from tileweave.graph.ops.grouped.recurrence import GATES, WAYS, recurrence
from tileweave.graph.ops.operators import OPERATORS
from tileweave.graph.ops.windows import max_pool_gradient
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import OPTIMIZATIONS

Random = np.random.Generator


def some(rng: Random, rank: int, low: int = 1, high: int = 5) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high, rank))


def positive(x: tw.Tensor) -> tw.Tensor:
    return x * x + 0.5


# ---------------------------------------------------------------------------------------------------------------------
# operators: rng -> the shapes of the inputs, and a function of them

Maker = Callable[[Random], tuple[list[tuple[int, ...]], Callable[..., tw.Tensor]]]


def unary(function: Callable[[tw.Tensor], tw.Tensor]) -> Maker:
    return lambda rng: ([some(rng, int(rng.integers(0, 4)))], function)


def binary(function: Callable[[tw.Tensor, tw.Tensor], tw.Tensor]) -> Maker:
    """Shapes that broadcast: extents become 1, leading ones are dropped, on either side."""

    def maker(rng: Random):
        shape = some(rng, int(rng.integers(0, 4)))
        shapes = [tuple(1 if rng.random() < 0.3 else n for n in shape[int(rng.integers(0, len(shape) + 1)) :]), shape]
        return [shapes[k] for k in rng.permutation(2)], function

    return maker


def along(function: Callable[[tw.Tensor, int], tw.Tensor]) -> Maker:
    def maker(rng: Random):
        shape = some(rng, int(rng.integers(1, 4)), 2)
        dim = int(rng.integers(0, len(shape)))
        return [shape], lambda x: function(x, dim)

    return maker


def over(name: str) -> Maker:
    def maker(rng: Random):
        shape = some(rng, int(rng.integers(1, 4)), 2)
        axes = tuple(k for k in range(len(shape)) if rng.random() < 0.6)
        return [shape], lambda x: getattr(tw, name)(x, axes, keepdims=bool(len(axes) % 2))

    return maker


def convolution(rng: Random):
    rank, groups = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    kernel, stride, dilation, padding = (
        some(rng, rank, 1, 3),
        some(rng, rank, 1, 3),
        some(rng, rank, 1, 3),
        some(rng, rank, 0, 2),
    )
    extents = tuple((k - 1) * d + 1 + int(rng.integers(0, 3)) for k, d in zip(kernel, dilation, strict=True))
    channels, filters = groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    shapes = [(int(rng.integers(1, 3)), channels, *extents), (filters, channels // groups, *kernel), (filters,)]
    options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    return shapes, lambda x, w, b: tw.conv(x, w, b, **options)


def pooling(name: str) -> Maker:
    def maker(rng: Random):
        rank = int(rng.integers(1, 3))
        window, stride = some(rng, rank, 1, 4), some(rng, rank, 1, 3)
        shape = (int(rng.integers(1, 3)), int(rng.integers(1, 3)), *(k + int(rng.integers(0, 4)) for k in window))
        padding = tuple(k // 2 for k in window)
        return [shape], lambda x: getattr(tw, name)(x, window, stride=stride, padding=padding)

    return maker


def pooled_shares(rng: Random):
    rank = int(rng.integers(1, 3))
    window, stride, outputs = some(rng, rank, 1, 4), some(rng, rank, 1, 3), some(rng, rank)
    spatial = tuple((n - 1) * s + k for n, s, k in zip(outputs, stride, window, strict=True))
    how = {"window": window, "stride": stride, "dilation": (1,) * rank}
    return [(2, 1, *spatial), (2, 1, *outputs)], lambda x, dy: max_pool_gradient(
        x, tw.max_pool(x, window, stride=stride), dy, **how
    )


def stencil(rng: Random):
    rank = int(rng.integers(1, 3))
    weights = tuple(2 * n - 1 for n in some(rng, rank, 1, 3))
    mode = "reflect" if rng.random() < 0.5 else "constant"
    return [some(rng, rank, 2, 6), weights], lambda x, w: tw.stencil(x, w, mode)


def matrices(rng: Random):
    m, k, n = some(rng, 3)
    batch = some(rng, int(rng.integers(0, 3)))
    return [(*batch, m, k), (*batch[1:], k, n)], tw.matmul


def groups(rng: Random):
    """Rows of several groups, and how many each group has; the last rows may be of none."""
    rows, terms, columns = some(rng, 3)
    return rows, terms, columns, np.diff(np.sort(rng.integers(0, rows + 1, int(rng.integers(1, 4)))), prepend=0)


def ragged(rng: Random):
    rows, terms, columns, sizes = groups(rng)
    return [(rows, terms), (len(sizes), terms, columns)], lambda x, w: tw.ragged_dot(x, w, sizes)


def ragged_sums(rng: Random):
    rows, terms, columns, sizes = groups(rng)
    return [(rows, terms), (rows, columns)], lambda x, y: ragged_outer(x, y, sizes)


def recurrent(rng: Random):
    steps, batch, hidden = some(rng, 3)
    cell, ways = str(rng.choice(list(GATES))), str(rng.choice(list(WAYS)))
    count = len(WAYS[ways])
    more = {"lstm": [(count, batch, hidden)], "gru": [(count, hidden)]}.get(cell, [])
    wide = GATES[cell] * hidden

    def made(x, u, *states):
        states = map(tw.as_tensor, states)
        found = recurrence(cell, tw.as_tensor(x), tw.as_tensor(u), *states, ways=ways)
        return found[0] if found[1] is None else tw.concat(found, 0)

    return [(steps, batch, count, wide), (count, wide, hidden), (count, batch, hidden), *more], made


def contraction(rng: Random):
    equation = str(
        rng.choice(["ij,jk->ik", "iij->j", "ij,ij->", "i,j,k->kji", "ab,bc,cd->ad", "...i,ij->...j", "ii,i->i"])
    )
    extent = dict(zip("abcdijk", some(rng, 7), strict=True))
    terms = equation.split("->")[0].replace("...", "").split(",")
    return [tuple(extent[c] for c in term) for term in terms], lambda *xs: tw.einsum(equation, *xs)


def linear(rng: Random):
    k, n = some(rng, 2)
    return [(*some(rng, int(rng.integers(0, 3))), k), (k, n), (n,)], tw.linear


def norm(rng: Random):
    shape = (*some(rng, int(rng.integers(0, 3))), int(rng.integers(2, 5)))
    return [shape, shape[-1:], shape[-1:]], lambda x, w, b: tw.layer_norm(x, w, b, epsilon=0.1)


def attention(rng: Random):
    lead, (q, d, e) = some(rng, int(rng.integers(0, 3))), some(rng, 3)
    k = q + int(rng.integers(0, 3))
    causal, parts = bool(rng.random() < 0.5), int(rng.integers(0, k + 1))
    if parts:
        return [(*lead, q, d), (*lead, k, d), (*lead, k, e)], lambda *t: tw.attention_in_parts(*t, parts, causal=causal)
    return [(*lead, q, d), (*lead, k, d), (*lead, k, e)], lambda *t: tw.attention(*t, causal=causal)


def fused(rng: Random):
    """A chain that fusion makes one operation of, and the product with its epilogue."""
    k, n = some(rng, 2)

    def function(x: tw.Tensor, w: tw.Tensor, b: tw.Tensor) -> tw.Tensor:
        y = tw.relu(x @ w + b) * 2.0 - tw.exp(tw.tanh(x @ w))
        return rewrite(tw.Graph.of(y), OPTIMIZATIONS).graph.sinks[0].tensor

    return [(3, k), (k, n), (n,)], function


def placed(name: str) -> Maker:
    """Elements at fixed places of the last dimension, taken or put."""

    def maker(rng: Random):
        shape = some(rng, int(rng.integers(1, 4)), 2)
        at = rng.integers(-shape[-1], shape[-1], (*shape[:-1], 2))
        if name == "take":
            return [shape], lambda x: tw.take(x, at, -1)
        if name == "take_along_axis":
            return [shape], lambda x: tw.take_along_axis(x, at)
        if name == "scatter":
            return [shape, at.shape], lambda x, y: tw.scatter(x, at, y, reduction="add")
        rows = rng.integers(-shape[0], shape[0], (3, 1))
        if name == "gather_nd":
            return [shape], lambda x: tw.gather_nd(x, rows)
        return [shape, (3, *shape[1:])], lambda x, y: tw.scatter_nd(x, rows, y, reduction="add")

    return maker


def reshaped(rng: Random):
    a, b, c = some(rng, 3)
    return [(a, b, c)], lambda x: tw.reshape(x, (c, -1)) * np.arange(float(a * b * c)).reshape(c, -1)


CONDITION = np.random.default_rng(9).integers(0, 2, 2000).astype(bool)

ON_POSITIVE, BOUNDED = ("log1p", "log2", "log10", "reciprocal"), ("arcsin", "arccos", "arctanh", "tan")
SMOOTH = ("exp2", "expm1", "square", "sin", "cos", "arctan", "sinh", "cosh", "arcsinh")
MAKERS: dict[str, Maker] = {
    **{name: unary(lambda x, name=name: getattr(tw, name)(x * 0.25)) for name in SMOOTH},
    **{name: unary(lambda x, name=name: getattr(tw, name)(positive(x))) for name in ON_POSITIVE},
    **{name: unary(lambda x, name=name: getattr(tw, name)(tw.tanh(x) * 0.7)) for name in BOUNDED},
    **{name: unary(lambda x, name=name: getattr(tw, name)(x) * x) for name in ("floor", "ceil", "trunc", "rint")},
    "arccosh": unary(lambda x: tw.arccosh(positive(x) + 1.0)),
    "arctan2": binary(lambda x, y: tw.arctan2(x, positive(y))),
    "fmod": binary(lambda x, y: tw.fmod(x, positive(y) + 40.0)),
    "cumsum": along(lambda x, k: tw.cumsum(x, k)), "cumprod": along(lambda x, k: tw.cumprod(positive(x) * 0.1, k)),
    **{name: along(lambda x, k, name=name: getattr(tw, name)(x, k)) for name in ("cummax", "cummin", "logcumsumexp")},
    "erfc": unary(tw.erfc), "erfcx": unary(lambda x: tw.erfcx(positive(x))),
    "erfinv": unary(lambda x: tw.erfinv(tw.tanh(x) * 0.7)), "ndtri": unary(lambda x: tw.ndtri(tw.sigmoid(x))),
    "lgamma": unary(lambda x: tw.lgamma(positive(x))), "j0": unary(tw.j0),
    "i0": unary(lambda x: tw.i0(tw.tanh(x))), "i0e": unary(lambda x: tw.i0e(positive(x))),
    "nextafter": unary(lambda x: tw.nextafter(x, 9.0) * x),
    "sort": along(lambda x, k: tw.sort(x, k) * tw.cumsum(tw.full(x.shape, 1.0), k)), "reshape": reshaped,
    **{name: placed(name) for name in ("take", "take_along_axis", "scatter", "gather_nd", "scatter_nd")},
    "negative": unary(tw.negative), "absolute": unary(tw.absolute), "exp": unary(tw.exp), "tanh": unary(tw.tanh),
    "log": unary(lambda x: tw.log(positive(x))), "sqrt": unary(lambda x: tw.sqrt(positive(x))),
    "sigmoid": unary(tw.sigmoid), "relu": unary(tw.relu), "erf": unary(tw.erf), "gelu": unary(tw.gelu),
    "gelu tanh": unary(lambda x: tw.gelu(x, "tanh")), "sign": unary(lambda x: tw.sign(x) * x),
    "cast": unary(lambda x: tw.cast(tw.cast(tw.cast(x, "int64"), "float64") + x, "float64")),
    "add": binary(tw.add), "subtract": binary(tw.subtract), "multiply": binary(tw.multiply),
    "divide": binary(lambda x, y: tw.divide(x, positive(y))), "maximum": binary(tw.maximum),
    "minimum": binary(tw.minimum), "power": binary(lambda x, y: tw.power(positive(x), y)),
    "remainder": binary(lambda x, y: tw.remainder(x, positive(y) + 40.0)),
    "floor_divide": binary(lambda x, y: tw.floor_divide(x, positive(y) + 40.0) + x * y),
    "where": binary(lambda x, y: tw.where(CONDITION[: tw.add(x, y).size].reshape(tw.add(x, y).shape), x, y)),
    "sum": over("sum"), "product": over("product"), "max": over("max"), "min": over("min"), "mean": over("mean"),
    "variance": over("variance"), "logsumexp": over("logsumexp"), "softmax": along(tw.softmax),
    "log_softmax": along(tw.log_softmax), "rms_norm": along(lambda x, k: tw.rms_norm(x, axis=k, epsilon=0.1)),
    "deviation": along(lambda x, k: tw.sqrt(tw.variance(x, k) + 0.1)),
    "logsumexp in parts": along(lambda x, k: tw.reduce_in_parts("logsumexp", x, k, 2)),
    "variance in parts": along(lambda x, k: tw.reduce_in_parts("variance", x, k, 2)),
    "layer_norm": norm, "attention": attention, "matmul": matrices, "einsum": contraction, "linear": linear,
    "ragged_dot": ragged, "ragged_outer": ragged_sums, "recurrence": recurrent,
    "conv": convolution, "max_pool": pooling("max_pool"), "average_pool": pooling("average_pool"), "stencil": stencil,
    "max_pool_gradient": pooled_shares,
    "fused": fused,
}  # fmt: skip


def test_every_operator_with_a_gradient_is_here():
    ours = {name for name, row in OPERATORS.items() if row.block.__module__.startswith(("tileweave.", "numpy"))}
    known = {name for name in ours if OPERATORS[name].gradient is not None}
    assert known - set(MAKERS) <= {"linear_relu"}  # part of "fused"


# ---------------------------------------------------------------------------------------------------------------------
# selectors that keep the shape, along a dimension of two elements or more


def kept(rng: Random, x: tw.Tensor) -> tw.Tensor:
    dims = [k for k, n in enumerate(x.shape) if n > 1]
    if not dims:
        return x
    dim = int(rng.choice(dims))
    n = x.shape[dim]

    def part(t: tw.Tensor, cut: slice) -> tw.Tensor:
        return t[tuple(cut if k == dim else slice(None) for k in range(t.ndim))]

    mask = CONDITION[: x.size].reshape(x.shape)
    turned = tw.flip(x, dim)
    return [
        lambda: turned,
        lambda: part(tw.interleave([x * 3.0, turned, x], dim), slice(1, None, 3)),
        lambda: part(tw.interleave([x, turned], dim), slice(None, None, -2)),
        lambda: part(tw.copies(x, 3, dim), slice(n // 2, n // 2 + n)),
        lambda: part(tw.pad(x, 1, "reflect"), slice(2, n + 2)) if x.ndim == 1 else turned,
        lambda: part(tw.pad(x, [(2, 2) if k == dim else (0, 0) for k in range(x.ndim)], "reflect"), slice(0, n)),
        lambda: part(tw.pad(x, [(n, 1) if k == dim else (0, 0) for k in range(x.ndim)], value=2), slice(1, n + 1)),
        lambda: tw.concat([part(x, slice(1, None)), part(x, slice(0, 1))], dim),
        lambda: tw.where(mask, x, turned),
        lambda: tw.maximum(x, turned) + tw.minimum(x, 0.25),
        lambda: tw.broadcast_to(part(x, slice(0, 1)), x.shape) * x,
        lambda: tw.unsqueeze(tw.select(x, dim, n - 1), dim) + x,
        lambda: tw.transpose(tw.transpose(x) * 2.0),
    ][rng.integers(0, 13)]()


def difference(maker: Maker, seed: int) -> None:
    """Along random directions the gradient is the central difference of the weighted sum."""
    rng = np.random.default_rng(seed)
    shapes, function = maker(rng)
    arrays = [rng.uniform(-2.0, 2.0, shape) for shape in shapes]
    plan, weight = int(rng.integers(0, 2**31)), rng.normal(size=4096)

    def loss(tensors: list[tw.Tensor]) -> tw.Tensor:
        again = np.random.default_rng(plan)
        seen = [kept(again, x) if again.random() < 0.6 else x for x in tensors]
        y = function(*seen)
        y = kept(again, y) if again.random() < 0.6 else y
        total = tw.sum(y * weight[: y.size].reshape(y.shape))
        return total + tw.sum(tensors[0] * tensors[0] * seen[0]) * 0.5  # the first one is used again

    tensors = [tw.as_tensor(a) for a in arrays]
    value = loss(tensors)
    gradients = tw.grad(value, tensors)
    graph = tw.verify(tw.Graph.of(*gradients))
    grads = tw.evaluate(gradients)
    assert [g.shape for g in grads] == shapes and all(g.dtype == np.float64 for g in grads)
    for _ in range(2):
        step = 1e-6
        towards = [rng.normal(size=shape) for shape in shapes]
        ends = [loss([tw.as_tensor(a + s * step * v) for a, v in zip(arrays, towards, strict=True)]) for s in (1, -1)]
        high, low = (float(end) for end in tw.evaluate(ends))
        got = sum(float(np.sum(g * v)) for g, v in zip(grads, towards, strict=True))
        scale = (
            1.0
            + abs(float(np.asarray(value)))
            + sum(float(np.sum(np.abs(g * v))) for g, v in zip(grads, towards, strict=True))
        )
        assert abs(got - (high - low) / (2 * step)) < 1e-7 * scale, (seed, got, (high - low) / (2 * step))
    if seed % 5 == 0:  # a gradient is a graph like any other
        sharded = tw.verify(tw.expand(graph, random_partitions(rng, graph, 2)))
        for got, expected in zip(tw.evaluate([s.tensor for s in sharded.sinks]), grads, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10 * (1 + np.abs(expected).max(initial=0)))


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_are_central_differences(name):
    for seed in range(4):
        difference(MAKERS[name], seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_many_gradients_are_central_differences(name):
    for seed in range(100, 140):
        difference(MAKERS[name], seed)


# ---------------------------------------------------------------------------------------------------------------------
# second derivatives

LAST = {"lgamma", "j0", "i0", "i0e"}
"""Their derivatives have no gradient."""


def second_difference(maker: Maker, seed: int) -> None:
    """The gradient of a gradient along v is the central difference of gradients along v."""
    rng = np.random.default_rng(seed)
    shapes, function = maker(rng)
    arrays = [rng.uniform(-2.0, 2.0, shape) for shape in shapes]
    weight, along_these = rng.normal(size=4096), [rng.normal(size=shape) for shape in shapes]

    def first(tensors: list[tw.Tensor]) -> tw.Tensor:
        y = function(*tensors)
        loss = tw.sum(y * weight[: y.size].reshape(y.shape)) + tw.sum(y * y) * 0.3
        parts = [tw.sum(g * v) for g, v in zip(tw.grad(loss, tensors), along_these, strict=True)]
        return tw.sum(tw.stack(parts, 0))

    tensors = [tw.as_tensor(a) for a in arrays]
    value = first(tensors)
    grads = tw.evaluate(tw.grad(value, tensors))
    step, towards = 1e-6, [rng.normal(size=shape) for shape in shapes]
    ends = [first([tw.as_tensor(a + s * step * v) for a, v in zip(arrays, towards, strict=True)]) for s in (1, -1)]
    high, low = (float(end) for end in tw.evaluate(ends))
    got = sum(float(np.sum(g * v)) for g, v in zip(grads, towards, strict=True))
    lengths = (float(np.sum(np.abs(g * v))) for g, v in zip(grads, towards, strict=True))
    scale = 1.0 + abs(float(np.asarray(value))) + sum(lengths)
    assert abs(got - (high - low) / (2 * step)) < 1e-6 * scale, (seed, got, (high - low) / (2 * step))


@pytest.mark.parametrize("name", sorted(set(MAKERS) - LAST))
def test_second_derivatives_are_central_differences(name):
    second_difference(MAKERS[name], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MAKERS) - LAST))
def test_many_second_derivatives_are_central_differences(name):
    for seed in range(100, 112):
        second_difference(MAKERS[name], seed)


def test_a_running_logarithm_that_nothing_weighs_yet_has_a_second_derivative():
    """Of z * logcumsumexp(x) at z = 0: the derivative by x and then by z is that of logcumsumexp alone."""
    x, z = tw.as_tensor(np.random.default_rng(0).normal(size=7)), tw.as_tensor(np.zeros(7))
    mixed = tw.grad(tw.sum(tw.grad(tw.sum(z * tw.logcumsumexp(x)), x) * np.arange(7.0)), z)
    e = np.exp(np.asarray(x))
    np.testing.assert_allclose(np.asarray(mixed), np.cumsum(e * np.arange(7.0)) / np.cumsum(e), rtol=1e-12)
