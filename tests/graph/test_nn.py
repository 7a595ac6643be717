"""Functions of neural networks against loops over NumPy arrays, cut at random, and by central differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import random_partitions

import tileweave as tw
from tileweave import graph as tg
from tileweave.errors import GraphError
from tileweave.graph.nn import images

RNG = np.random.default_rng(8)
X = RNG.normal(size=(2, 6, 5))
IMAGE = RNG.normal(size=(2, 4, 5, 6))
W, B = RNG.normal(size=4), RNG.normal(size=4)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def transposed(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, groups: int, more: Any) -> Any:
    """Every element of x adds its filters to the result, one after the other."""
    each, per = w.shape[0] // groups, w.shape[1]
    extents = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(x.shape[2:], stride, dilation, w.shape[2:], more, strict=True)
    ]
    out = np.zeros((x.shape[0], per * groups, *extents))
    for n, c, *place in np.ndindex(*x.shape):
        for f, *tap in np.ndindex(*w.shape[1:]):
            at = [s * p + d * t for s, p, d, t in zip(stride, place, dilation, tap, strict=True)]
            out[(n, c // each * per + f, *at)] += x[(n, c, *place)] * w[(c, f, *tap)]
    return out[(..., *(slice(a, e - b) for (a, b), e in zip(padding, extents, strict=True)))]


def normal(x: Any, axes: Any) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def channel(v: Any, rank: int) -> Any:
    return v.reshape(1, -1, *(1,) * (rank - 2))


def attended(q: Any, k: Any, v: Any, seen: Callable[[int, int], bool] = lambda i, j: True, cap: float = 0.0) -> Any:
    """One head, one query after the other."""
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        scores = np.array([q[i] @ k[j] / math.sqrt(q.shape[1]) if seen(i, j) else -np.inf for j in range(len(k))])
        scores = np.where(np.isfinite(scores), np.tanh(scores / cap) * cap, scores) if cap else scores
        weights = np.exp(scores - scores.max())
        out[i] = weights / weights.sum() @ v
    return out


def heads(q: Any, k: Any, v: Any, **options: Any) -> Any:
    share = q.shape[1] // k.shape[1]
    return np.stack(
        [
            np.stack([attended(q[n, h], k[n, h // share], v[n, h // share], **options) for h in range(q.shape[1])])
            for n in range(len(q))
        ]
    )


def resized(x: Any, size: int, weigh: Callable[[float], dict[int, float]]) -> Any:
    out = np.zeros((*x.shape[:-1], size))
    for i in range(size):
        for j, w in weigh((i + 0.5) * x.shape[-1] / size - 0.5).items():
            out[..., i] += w * x[..., min(max(j, 0), x.shape[-1] - 1)]
    return out


def linear_weights(at: float) -> dict[int, float]:
    low = math.floor(at)
    return {low: 1 - (at - low), low + 1: at - low}


def cubic_weights(at: float) -> dict[int, float]:
    a, low = -0.75, math.floor(at)

    def kernel(d: float) -> float:
        d = abs(d)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0

    return {j: kernel(at - j) for j in range(low - 1, low + 3)}


def lstm(x: Any, w: Any, u: Any, b: Any) -> Any:
    h = c = np.zeros((x.shape[1], u.shape[1]))
    out = []
    for t in range(len(x)):
        i, f, g, o = np.split(x[t] @ w.T + h @ u.T + b, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out)


def gru(x: Any, w: Any, u: Any, b: Any, d: Any, after: bool) -> Any:
    h = np.zeros((x.shape[1], u.shape[1]))
    out = []
    for t in range(len(x)):
        (r, z, n), (p, q, m) = np.split(x[t] @ w.T + b, 3, 1), np.split(h @ u.T + d, 3, 1)
        r, z = sigmoid(r + p), sigmoid(z + q)
        inner = r * m if after else (r * h) @ np.split(u, 3)[2].T + np.split(d, 3)[2]
        h = (1 - z) * np.tanh(n + inner) + z * h
        out.append(h)
    return np.stack(out)


Q, K, V = RNG.normal(size=(2, 4, 3, 5)), RNG.normal(size=(2, 2, 7, 5)), RNG.normal(size=(2, 2, 7, 6))
CLASSES = RNG.integers(0, 6, (2, 5))
TIME, U4, W4, B4 = RNG.normal(size=(4, 2, 3)), RNG.normal(size=(8, 2)), RNG.normal(size=(8, 3)), RNG.normal(size=8)
U3, W3, B3, D3 = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 3)), RNG.normal(size=6), RNG.normal(size=6)
FILTERS = RNG.normal(size=(4, 3, 2, 3))


def entropy(x: Any, weight: Any = None, ignore: int = -1) -> Any:
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    total = mass = 0.0
    for n, m in np.ndindex(*CLASSES.shape):
        share = 0.0 if CLASSES[n, m] == ignore else 1.0 if weight is None else weight[CLASSES[n, m]]
        total, mass = total - share * logs[n, CLASSES[n, m], m], mass + share
    return total / mass


CASES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "silu": (X, tg.silu, lambda x: x * sigmoid(x)),
    "softplus": (X * 9, tg.softplus, lambda x: np.log1p(np.exp(x))),
    "softsign": (X, tg.softsign, lambda x: x / (1 + abs(x))),
    "mish": (X, tg.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "leaky_relu": (X, lambda x: tg.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    "prelu": (IMAGE, lambda x: tg.leaky_relu(x, W[:, None, None]), lambda x: np.where(x > 0, x, W[:, None, None] * x)),
    "elu": (X, lambda x: tg.elu(x, 0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(x))),
    "selu": (X, tg.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    "celu": (X, lambda x: tg.celu(x, 2.0), lambda x: np.maximum(x, 0) + np.minimum(0, 2 * np.expm1(x / 2))),
    "hard_sigmoid": (X * 3, tg.hard_sigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hard_swish": (X * 3, tg.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "hard_tanh": (X, tg.hard_tanh, lambda x: np.clip(x, -1, 1)),
    "glu": (X, lambda x: tg.glu(x, 1), lambda x: x[:, :3] * sigmoid(x[:, 3:])),
    "batch_norm": (
        IMAGE,
        lambda x: tg.batch_norm(x, W, B),
        lambda x: normal(x, (0, 2, 3)) * channel(W, 4) + channel(B, 4),
    ),
    "batch_norm learnt": (
        IMAGE,
        lambda x: tg.batch_norm(x, W, B, B, W * W),
        lambda x: (x - channel(B, 4)) / np.sqrt(channel(W * W, 4) + 1e-5) * channel(W, 4) + channel(B, 4),
    ),
    "group_norm": (
        IMAGE,
        lambda x: tg.group_norm(x, 2, W, B),
        lambda x: normal(x.reshape(2, 2, 2, 5, 6), (2, 3, 4)).reshape(x.shape) * channel(W, 4) + channel(B, 4),
    ),
    "instance_norm": (IMAGE, lambda x: tg.instance_norm(x, W), lambda x: normal(x, (2, 3)) * channel(W, 4)),
    "lp_norm": (X, lambda x: tg.lp_norm(x, 1), lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
    "conv_transpose": (
        IMAGE,
        lambda x: tg.conv_transpose(
            x, FILTERS, stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2), output_padding=(1, 0)
        ),
        lambda x: transposed(x, FILTERS, (2, 1), ((1, 0), (0, 2)), (1, 2), 1, (1, 0)),
    ),
    "conv_transpose in groups": (
        IMAGE[..., 0],
        lambda x: tg.conv_transpose(x, FILTERS[:, :, 0], stride=3, padding=3, groups=2),
        lambda x: transposed(x, FILTERS[:, :, 0], (3,), ((3, 3),), (1,), 2, (0,)),
    ),
    "resize linear": (X, lambda x: tg.resize(x, [8], "linear"), lambda x: resized(x, 8, linear_weights)),
    "resize smaller": (X, lambda x: tg.resize(x, [3], "linear"), lambda x: resized(x, 3, linear_weights)),
    "resize cubic": (X, lambda x: tg.resize(x, [7], "cubic"), lambda x: resized(x, 7, cubic_weights)),
    "resize nearest": (X, lambda x: tg.resize(x, [12, 10]), lambda x: x.repeat(2, 1).repeat(2, 2)),
    "resize corners": (
        X,
        lambda x: tg.resize(x, [9], "linear", coordinates="align_corners"),
        lambda x: np.stack([[np.interp(np.linspace(0, 4, 9), np.arange(5), row) for row in part] for part in x]),
    ),
    "cross_entropy": (X, lambda x: tg.cross_entropy(x, CLASSES), entropy),
    "cross_entropy weighted": (
        X,
        lambda x: tg.cross_entropy(x, CLASSES, weight=np.arange(1.0, 7.0), ignore=int(CLASSES[0, 0])),
        lambda x: entropy(x, np.arange(1.0, 7.0), int(CLASSES[0, 0])),
    ),
    "cross_entropy soft": (
        X[0],
        lambda x: tg.cross_entropy(x, np.full((6, 5), 0.2), reduction="none"),
        lambda x: -(x - np.log(np.exp(x).sum(1, keepdims=True))).mean(1),
    ),
    "mse_loss": (X, lambda x: tg.mse_loss(x, 1.0), lambda x: ((x - 1) ** 2).mean()),
    "attention of shared heads": (Q, lambda q: tg.attention(q, K, V), lambda q: heads(q, K, V)),
    "attention causal": (
        Q,
        lambda q: tg.attention(q, K, V, causal=True),
        lambda q: heads(q, K, V, seen=lambda i, j: j <= i + 4),
    ),
    "attention in a window": (
        Q,
        lambda q: tg.attention(q, K, V, window=(2, 1), cap=0.5),
        lambda q: heads(q, K, V, seen=lambda i, j: i + 4 - 2 <= j <= i + 4 + 1, cap=0.5),
    ),
    "attention to a cache": (
        Q,
        lambda q: tg.attention(q, K, V, causal=True, length=tg.as_tensor(5)),
        lambda q: heads(q, K, V, seen=lambda i, j: j <= i + 2),
    ),
    "attention with numbers": (
        Q,
        lambda q: tg.attention(q, K, V, mask=np.where(np.arange(7) < 3, 0.0, -np.inf)),
        lambda q: heads(q, K, V, seen=lambda i, j: j < 3),
    ),
    "rotary": (
        X,
        lambda x: tg.rotary(x, [3, 1, 4, 1, 5, 9], size=4),
        lambda x: np.concatenate([turned(x[..., :4], [3, 1, 4, 1, 5, 9]), x[..., 4:]], -1),
    ),
    "lstm": (TIME, lambda x: tg.lstm(x, W4, U4, B4)[0], lambda x: lstm(x, W4, U4, B4)),
    "lstm reverse": (
        TIME,
        lambda x: tg.lstm(x, W4, U4, B4, reverse=True)[0],
        lambda x: lstm(x[::-1], W4, U4, B4)[::-1],
    ),
    "gru": (TIME, lambda x: tg.gru(x, W3, U3, B3, D3)[0], lambda x: gru(x, W3, U3, B3, D3, True)),
    "gru reset before": (
        TIME,
        lambda x: tg.gru(x, W3, U3, B3, D3, reset_after=False)[0],
        lambda x: gru(x, W3, U3, B3, D3, False),
    ),
}


def turned(x: Any, places: Any) -> Any:
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * np.outer(places, 10000.0 ** (-np.arange(half) / half)))
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_a_loop_computes_whole_and_cut(name: str) -> None:
    array, made, expected = CASES[name]
    whole = tg.verify(tg.Graph.of(made(tg.as_tensor(array))))
    want = np.asarray(expected(array))
    assert whole.sinks[0].tensor.shape == want.shape
    np.testing.assert_allclose(whole.sinks[0].tensor, want, rtol=1e-9, atol=1e-9)
    cut = tg.expand(whole, random_partitions(RNG, whole))
    tg.check_sharding(tg.verify(cut), whole)
    np.testing.assert_allclose(tg.join_sinks(cut).sinks[0].tensor, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_central_differences(name: str) -> None:
    array, made, expected = CASES[name]
    x = tg.as_tensor(array)
    y = made(x)
    weights = RNG.normal(size=y.shape)
    slope, way = np.asarray(tg.grad(tg.sum(y * weights), x)), RNG.normal(size=array.shape)
    ends = [(np.asarray(expected(array + sign * 1e-6 * way)) * weights).sum() for sign in (1, -1)]
    np.testing.assert_allclose((slope * way).sum(), (ends[0] - ends[1]) / 2e-6, rtol=2e-5, atol=1e-5)


def test_gradients_at_zeros_are_what_the_function_has_there() -> None:
    zero = tg.as_tensor(np.zeros(2))
    np.testing.assert_array_equal(tg.grad(tg.sum(tg.elu(zero)), zero), 1)
    x, dy = (
        np.array([[2.0, 0.0, 3.0, 0.0, 5.0], [0.0, 0.0, 1.0, 2.0, 4.0], [1.0, 3.0, 2.0, 7.0, 0.0]]),
        RNG.normal(size=(3, 5)),
    )
    want = np.zeros_like(x)  # the product of all others, one by one
    for row, k, end in np.ndindex(3, 5, 5):
        want[row, k] += dy[row, end] * np.prod(np.delete(x[row, : end + 1], k)) if end >= k else 0.0
    for axis, turned in ((1, x), (0, x.T)):
        t = tg.as_tensor(turned)
        slope = tg.grad(tg.sum(tg.cumprod(t, axis) * (dy if axis else dy.T)), t)
        np.testing.assert_allclose(slope if axis else np.asarray(slope).T, want, rtol=1e-12, atol=1e-12)


def test_a_cache_grows_in_steps_and_gives_what_all_keys_at_once_give() -> None:
    keys, values, queries = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 3)), RNG.normal(size=(6, 4))
    want = np.asarray(tg.attention(queries, keys, values, causal=True))
    k, v = tg.zeros((8, 4)), tg.zeros((8, 3))
    for at in range(6):
        place = tg.as_tensor(at)
        k, v = tg.cache_update(k, keys[at : at + 1], place), tg.cache_update(v, values[at : at + 1], place)
        step = tg.attention(queries[at : at + 1], k, v, causal=True, length=place + 1)
        np.testing.assert_allclose(step, want[at : at + 1], rtol=1e-12)


def test_dropout_drops_the_same_elements_whole_and_in_parts() -> None:
    x = np.ones((64, 50))
    whole = tg.Graph.of(tg.dropout(x, 0.25, seed=3))
    got = np.asarray(whole.sinks[0].tensor)
    assert set(np.unique(got)) == {0.0, 1 / 0.75} and abs((got == 0).mean() - 0.25) < 0.03
    cut = tg.expand(whole, random_partitions(RNG, whole))
    np.testing.assert_array_equal(tg.join_sinks(cut).sinks[0].tensor, got)
    np.testing.assert_array_equal(tg.dropout(x, 0.0, 1), x)
    np.testing.assert_array_equal(tg.dropout(x, 1.0, 1), x * 0)


def test_small_integers_are_exact() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5, 8)) * 3
    scale, zero = rng.uniform(0.01, 0.1, 8), rng.integers(-9, 9, 8).astype("int8")
    q = tg.quantize(x, scale, zero, "int8", axis=1)
    want = np.clip(np.rint(x / scale) + zero, -128, 127).astype("int8")
    np.testing.assert_array_equal(q, want)
    back = tg.dequantize(q, scale, zero, axis=1)
    np.testing.assert_array_equal(back, (want.astype(int) - zero) * scale)
    a, b = rng.integers(0, 256, (5, 7)).astype("uint8"), rng.integers(-128, 128, (7, 4)).astype("int8")
    rows, columns = rng.integers(0, 256, (5, 1)).astype("uint8"), rng.integers(-128, 128, 4).astype("int8")
    product = tg.matmul_integer(a, b, rows, columns)
    np.testing.assert_array_equal(product, (a.astype(int) - rows) @ (b.astype(int) - columns))
    assert product.dtype == np.int32
    image, filters = (
        rng.integers(0, 256, (1, 2, 5, 5)).astype("uint8"),
        rng.integers(-9, 9, (3, 2, 2, 2)).astype("int8"),
    )
    expected = tg.conv(image.astype("int32") - 7, filters.astype("int32"), padding=1)
    np.testing.assert_array_equal(tg.conv_integer(image, filters, 7, padding=1), expected)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tg.glu(np.ones((2, 3))), "there are no two halves"),
        (lambda: tg.dropout(X, 1.5, 1), "rate 1.5"),
        (lambda: tg.batch_norm(IMAGE, W[:2], B), "there are 4 channels"),
        (lambda: tg.batch_norm(IMAGE, W, B, W), "a mean needs a variance"),
        (lambda: tg.group_norm(IMAGE, 3), "3 groups of channels"),
        (lambda: tg.conv_transpose(IMAGE, FILTERS[:2]), "x and w do not fit"),
        (lambda: tg.resize(X, [2], "lanczos"), "do not fit"),
        (lambda: tg.cross_entropy(X, CLASSES[:1]), "targets do not fit the scores"),
        (lambda: tg.cross_entropy(X, CLASSES, reduction="max"), "reduction 'max'"),
        (lambda: tg.lstm(TIME, W3, U3), "x and the weights do not fit"),
        (lambda: tg.rotary(X), "5 features are no pairs"),
        (lambda: tg.cache_update(np.zeros((3, 2)), np.zeros((4, 2)), 0), "does not fit the cache"),
        (lambda: tg.quantize(X, 0.1, 0, "float32"), "element type float32"),
        (lambda: tg.matmul_integer(X, X), "element type float64"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(("fewest", "spared"), [(1, 1 << 20), (32, 1 << 20), (1, 0)])
def test_transposed_convolutions_of_any_steps(fewest: int, spared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that divide the window, that do not, and that are longer; nothing beside a window is touched.

    In phases, with zeros between the elements where sums are short, and multiplied first.
    """
    monkeypatch.setattr(images, "_FEWEST_PRODUCTS", fewest)
    monkeypatch.setattr(images, "_SPARED_PRODUCTS", spared)
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        rank, groups = int(rng.integers(1, 3)), int(rng.integers(1, 3 if spared else 2))
        steps, kernel, gaps = (tuple(int(n) for n in rng.integers(1, most, rank)) for most in (4, 6, 3))
        pads = tuple((int(a), int(b)) for a, b in rng.integers(0, 2, (rank, 2)))
        extra = tuple(int(rng.integers(step)) for step in steps)
        x = rng.standard_normal((2, 2 * groups, *rng.integers(2, 7, rank)))
        w = rng.standard_normal((2 * groups, 3, *kernel))
        if any(
            (n - 1) * s + d * (k - 1) + 1 + e <= a + b
            for n, s, k, d, e, (a, b) in zip(x.shape[2:], steps, kernel, gaps, extra, pads, strict=True)
        ):
            continue
        x.flat[0] = np.inf if min(kernel) > 1 else 1.0
        how = {"stride": steps, "padding": pads, "dilation": gaps, "groups": groups, "output_padding": extra}
        made = tg.conv_transpose(x, np.abs(w), **how)
        wanted = transposed(x, np.abs(w), steps, pads, gaps, groups, extra)
        np.testing.assert_allclose(np.asarray(tw.run(made)), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spared", [0, 1 << 20])
def test_gradients_of_strided_convolutions(spared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are those of the definition: each element adds its gradient times the filters around its place."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(images, "_FEWEST_PRODUCTS", 1)
    monkeypatch.setattr(images, "_SPARED_PRODUCTS", spared)
    for _ in range(8):
        rank, groups = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        steps, kernel = (tuple(int(n) for n in rng.integers(1, most, rank)) for most in (4, 6))
        spatial = tuple(k + int(rng.integers(0, 9)) for k in kernel)
        x = tw.source(rng.standard_normal((2, 2 * groups, *spatial)))
        w = rng.standard_normal((3 * groups, 2, *kernel))
        y = tg.conv(x, w, stride=steps, groups=groups)
        dy = rng.standard_normal(y.shape)
        wanted = np.zeros(x.shape)
        reached = transposed(dy, w, steps, ((0, 0),) * rank, (1,) * rank, groups, (0,) * rank)
        wanted[tuple(slice(n) for n in reached.shape)] = reached
        np.testing.assert_allclose(tw.run(tw.grad(tw.sum(y * dy), x)), wanted, rtol=1e-9, atol=1e-9)


def test_transposed_convolutions_take_two_types() -> None:
    x, w = np.arange(3, dtype="int32").reshape(1, 1, 3), np.ones((1, 1, 1), "float32")
    made = tw.run(tg.conv_transpose(x, w, stride=2))
    assert made.dtype == np.result_type(x, w)
    np.testing.assert_array_equal(made, [[[0, 0, 1, 0, 2]]])


def test_they_are_names_of_tileweave() -> None:
    for name in ("silu", "group_norm", "conv_transpose", "resize", "cross_entropy", "rotary", "lstm", "quantize"):
        assert getattr(tw, name) is getattr(tg, name) and getattr(tw.nn, name) is getattr(tg, name)
