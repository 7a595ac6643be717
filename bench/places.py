"""`tileweave.run` of operators whose places are data, of whole rows, and of windows: the same bench as `run.py`.

    python bench/places.py [--threads 1 2] [--rounds 7] [--seed 0] [--cases take ..] > bench/results/places.jsonl

Places, labels and positions are integers between which no shape is chosen; everything else is as in `run.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from as_numpy import np_attention, np_back, np_filtered, np_groups
from run import main, row
from shapes import Case, images, maps, matrix, odd, one, solids

import tileweave as tw
from tileweave import array_api
from tileweave import graph as tg

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Inputs = Callable[[Generator], list[Array]]


def floats(rng: Generator, *shape: int) -> Array:
    """Normally distributed."""
    return rng.standard_normal(shape, dtype=np.float32)


def rows_at(rng: Generator) -> list[Array]:
    """A matrix and places among its rows, some from the end."""
    rows, columns = matrix(rng)
    return [floats(rng, rows, columns), rng.integers(-rows, rows, odd(rng, 16, 4096))]


def columns_at(rng: Generator) -> list[Array]:
    """A matrix and places among its columns."""
    rows, columns = matrix(rng)
    return [floats(rng, rows, columns), rng.integers(0, columns, odd(rng, 4, 1024))]


def words(rng: Generator) -> list[Array]:
    """A table, and numbers of words in sentences."""
    count, width = odd(rng, 256, 32768), 8 * odd(rng, 4, 96)
    return [floats(rng, count, width), rng.integers(0, count, (odd(rng, 1, 16), odd(rng, 8, 256)))]


def along_rows(rng: Generator) -> list[Array]:
    """A matrix, and places in each of its rows."""
    rows, columns = matrix(rng)
    return [floats(rng, rows, columns), rng.integers(0, columns, (rows, odd(rng, 1, columns)))]


def along_columns(rng: Generator) -> list[Array]:
    """A matrix, and places in each of its columns."""
    rows, columns = matrix(rng)
    return [floats(rng, rows, columns), rng.integers(0, rows, (odd(rng, 1, rows), columns))]


def points(rng: Generator) -> list[Array]:
    """A matrix, and points of it."""
    rows, columns = matrix(rng)
    count = odd(rng, 256, 65536)
    return [floats(rng, rows, columns), np.stack([rng.integers(0, n, count) for n in (rows, columns)], -1)]


def updates_along(rng: Generator) -> list[Array]:
    """What `along_rows` has, and what is written there."""
    x, places = along_rows(rng)
    return [x, places, floats(rng, *places.shape)]


def updates_apart(rng: Generator) -> list[Array]:
    """The same with no place of a row twice."""
    x, places, new = updates_along(rng)
    return [x, np.argsort(rng.random(x.shape, np.float32), 1)[:, : places.shape[1]].copy(), new]


def updates_of_rows(rng: Generator) -> list[Array]:
    """A matrix, places among its rows, and rows."""
    x, places = rows_at(rng)
    return [x, places % len(x), floats(rng, len(places), x.shape[1])]


def labelled(rng: Generator) -> list[Array]:
    """Scores of some classes, and the labels."""
    batch, classes = odd(rng, 16, 4096), odd(rng, 8, 4096)
    return [floats(rng, batch, min(classes, (1 << 22) // batch)), rng.integers(0, 8, batch)]


def pixels(rng: Generator) -> list[Array]:
    """Scores of some classes for every pixel, and the labels."""
    batch, classes, side = odd(rng, 1, 8), odd(rng, 3, 64), odd(rng, 16, 128)
    return [floats(rng, batch, classes, side, side), rng.integers(0, 3, (batch, side, side))]


def labels(rng: Generator) -> list[Array]:
    """Labels alone."""
    return [rng.integers(0, 10, odd(rng, 256, 65536))]


def short_rows(rng: Generator) -> list[Array]:
    """Many rows of a few elements."""
    columns = odd(rng, 4, 64)
    return [floats(rng, odd(rng, 1 << 12, 1 << 20) // columns, columns)]


def numbers(rng: Generator) -> list[Array]:
    """A vector."""
    return [floats(rng, odd(rng, 1 << 10, 1 << 20))]


def whole_numbers(rng: Generator) -> list[Array]:
    """A matrix of integers."""
    return [rng.integers(-1000, 1000, matrix(rng), dtype=np.int32)]


def in_order(rng: Generator) -> list[Array]:
    """A vector in order, and numbers."""
    return [np.sort(floats(rng, odd(rng, 16, 65536))), floats(rng, odd(rng, 256, 1 << 18))]


def decoding(rng: Generator, queries: int = 1) -> list[Array]:
    """One query per head, keys and values of a cache."""
    batch, count, keys, depth = odd(rng, 1, 4), odd(rng, 4, 32), odd(rng, 64, 4096), 8 * odd(rng, 4, 16)
    keys = min(keys, max(64, (1 << 22) // (batch * count * depth)))
    return [floats(rng, batch, count, n, depth) for n in (queries, keys, keys)]


def grouped(rng: Generator) -> list[Array]:
    """One query per head, and fewer heads of keys and values."""
    q, k, v = decoding(rng)
    return [np.repeat(q, 4, 1), k, v]


def cached(rng: Generator) -> list[Array]:
    """A cache, and keys for some of its places."""
    cache = decoding(rng)[1]
    return [cache, floats(rng, *cache.shape[:2], 1, cache.shape[3])]


def few_pixels(rng: Generator) -> list[Array]:
    """Small images of many channels, and filters of 3 x 3 or 4 x 4 that take them back."""
    channels, side, kernel = 8 * odd(rng, 2, 32), odd(rng, 3, 10), int(rng.integers(3, 5))
    return [
        floats(rng, odd(rng, 1, 4), channels, side, side),
        floats(rng, channels, 8 * odd(rng, 2, 16), kernel, kernel),
    ]


def twofold(rng: Generator) -> list[Array]:
    """Small images, and filters of 2 x 2."""
    x, w = few_pixels(rng)
    return [x, np.ascontiguousarray(w[:, :, :2, :2])]


def image(rng: Generator) -> list[tuple[int, ...]]:
    """Images."""
    return images(rng)[:1]


def sized(x: Any, factor: float) -> tuple[int, ...]:
    """The extents of images in another size."""
    return (*x.shape[:2], int(x.shape[2] * factor), int(x.shape[3] * factor))


def np_interpolated(x: Array, factor: float, mode: str) -> Array:
    """Images in another size, by a matrix per dimension."""
    for dim, size in ((2, int(x.shape[2] * factor)), (3, int(x.shape[3] * factor))):
        old = x.shape[dim]
        at = (np.arange(size) + 0.5) * (old / size) - 0.5
        base, total = np.floor(at).astype(int), np.zeros((size, old), x.dtype)
        for tap in (0, 1) if mode == "linear" else (-1, 0, 1, 2):
            far = np.abs(at - base - tap)
            near = (1.25 * far - 2.25) * far * far + 1
            cubic = np.where(far <= 1, near, -0.75 * (((far - 5) * far + 8) * far - 4))
            weight = 1 - far if mode == "linear" else cubic
            np.add.at(total, (np.arange(size), np.clip(base + tap, 0, old - 1)), weight.astype(x.dtype))
        x = np.moveaxis(np.tensordot(x, total, (dim, 1)), -1, dim)
    return x


def np_likelihood(x: Array, at: Array) -> Any:
    """The mean cross entropy of labels along dimension 1."""
    x = x - x.max(1, keepdims=True)
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    return -np.take_along_axis(logs, at[:, None], 1).mean()


def put(x: Array, at: Array, new: Array) -> Array:
    """x with other elements along its rows."""
    x = x.copy()
    np.put_along_axis(x, at, new, -1)
    return x


def added_along(x: Array, at: Array, new: Array) -> Array:
    """x with numbers added along its rows."""
    x = x.copy()
    np.add.at(x, (np.arange(len(x))[:, None], at), new)
    return x


def back_by_one(x: Array, w: Array) -> Array:
    """A transposed convolution without a stride: filters turned round."""
    return np_filtered(x, np.ascontiguousarray(w.swapaxes(0, 1)[:, :, ::-1, ::-1]), padding=w.shape[2] - 1)


def added(x: Array, at: Array, new: Array) -> Array:
    """x with rows added to its rows."""
    x = x.copy()
    np.add.at(x, at, new)
    return x


def written(x: Array, new: Array) -> Array:
    """A cache with a new place."""
    x = x.copy()
    x[:, :, 17:18] = new
    return x


def torch_written(t: Any, x: Any, new: Any) -> Any:
    """The same in torch."""
    x = x.clone()
    x[:, :, 17:18] = new
    return x


def torch_size(x: Any, factor: float) -> list[int]:
    """The extents of images in another size, as torch wants them."""
    return [int(x.shape[2] * factor), int(x.shape[3] * factor)]


def resized(factor: float, mode: str) -> Case:
    """Images by a factor."""
    name = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    return Case(
        image,
        lambda x: tg.resize(x, sized(x, factor), mode),
        lambda x: np_interpolated(x, factor, mode),
        lambda t, x: t.nn.functional.interpolate(x, torch_size(x, factor), mode=name, align_corners=False),
        None if mode == "cubic" or factor < 1 else lambda j, x: j.image.resize(x, sized(x, factor), "linear"),
    )


def f(t: Any) -> Any:
    """torch's functions of networks."""
    return t.nn.functional


def attending(given: Inputs, **options: Any) -> Case:
    """Attention of few queries."""
    return Case(
        given,
        tg.attention,
        lambda q, k, v: np_attention(
            q, np.repeat(k, q.shape[1] // k.shape[1], 1), np.repeat(v, q.shape[1] // k.shape[1], 1)
        ),
        lambda t, q, k, v: f(t).scaled_dot_product_attention(q, k, v, **options),
        None
        if options
        else lambda j, q, k, v: j.numpy.einsum(
            "bhqk,bhkd->bhqd",
            j.nn.softmax(j.numpy.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])),
            v,
        ),
    )


def along(name: str, axis: int, shapes: Any = one, torch: Any = None, numpy: Any = None) -> Case:
    """A running sum or an order along a dimension."""
    return Case(
        shapes,
        lambda x: getattr(tg, name)(x, axis),
        lambda x: (numpy or getattr(np, name))(x, axis),
        torch or (lambda t, x: getattr(t, name)(x, axis)),
        lambda j, x: getattr(j.numpy if hasattr(j.numpy, name) else j.lax, name)(x, axis % x.ndim),
    )


def in_torch(name: str, axis: int) -> Any:
    """The values alone."""
    return lambda t, x: getattr(t, name)(x, axis)[0]


def stable(x: Array, axis: int) -> Array:
    """The places that sort, of equal elements the first first."""
    return np.argsort(x, axis, "stable")


CASES: dict[str, Case] = {
    "take rows": Case(
        rows_at, lambda x, i: tw.take(x, i, 0), lambda x, i: x[i], lambda t, x, i: x[i], lambda j, x, i: x[i]
    ),
    "take columns": Case(
        columns_at,
        lambda x, i: tw.take(x, i, 1),
        lambda x, i: x.take(i, 1),
        lambda t, x, i: x.index_select(1, i),
        lambda j, x, i: j.numpy.take(x, i, 1),
    ),
    "embedding": Case(
        words,
        lambda x, i: tg.embedding(i, x),
        lambda x, i: x[i],
        lambda t, x, i: f(t).embedding(i, x),
        lambda j, x, i: x[i],
    ),
    "take along rows": Case(
        along_rows,
        lambda x, i: tg.take_along_axis(x, i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        lambda t, x, i: t.gather(x, 1, i),
        lambda j, x, i: j.numpy.take_along_axis(x, i, 1),
    ),
    "take along columns": Case(
        along_columns,
        lambda x, i: tg.take_along_axis(x, i, 0),
        lambda x, i: np.take_along_axis(x, i, 0),
        lambda t, x, i: t.gather(x, 0, i),
        lambda j, x, i: j.numpy.take_along_axis(x, i, 0),
    ),
    "gather points": Case(
        points,
        tg.gather_nd,
        lambda x, i: x[i[:, 0], i[:, 1]],
        lambda t, x, i: x[i[:, 0], i[:, 1]],
        lambda j, x, i: x[i[:, 0], i[:, 1]],
    ),
    "scatter": Case(
        updates_along,
        lambda x, i, u: tg.scatter(x, i, u, reduction="add"),
        added_along,
        lambda t, x, i, u: t.scatter_add(x, 1, i, u),
        lambda j, x, i, u: x.at[j.numpy.arange(x.shape[0])[:, None], i].add(u),
    ),
    "scatter without a sum": Case(
        updates_apart,
        tg.scatter,
        put,
        lambda t, x, i, u: t.scatter(x, 1, i, u),
        lambda j, x, i, u: x.at[j.numpy.arange(x.shape[0])[:, None], i].set(u),
    ),
    "add rows": Case(
        updates_of_rows,
        lambda x, i, u: tg.scatter_nd(x, tg.unsqueeze(i, 1), u, reduction="add"),
        added,
        lambda t, x, i, u: x.index_add(0, i, u),
        lambda j, x, i, u: x.at[i].add(u),
    ),
    "update of a cache": Case(
        cached,
        lambda x, new: tg.cache_update(x, new, 17),
        written,
        torch_written,
        lambda j, x, new: x.at[:, :, 17:18].set(new),
    ),
    "one_hot": Case(
        labels,
        lambda i: tg.one_hot(i, 10, dtype=np.float32),
        lambda i: np.eye(10, dtype=np.float32)[i],
        lambda t, i: f(t).one_hot(i, 10).float(),
        lambda j, i: j.nn.one_hot(i, 10),
    ),
    "cross_entropy": Case(
        labelled,
        tg.cross_entropy,
        np_likelihood,
        lambda t, x, i: f(t).cross_entropy(x, i),
        lambda j, x, i: -j.numpy.take_along_axis(j.nn.log_softmax(x, 1), i[:, None], 1).mean(),
    ),
    "cross_entropy of pixels": Case(
        pixels,
        tg.cross_entropy,
        np_likelihood,
        lambda t, x, i: f(t).cross_entropy(x, i),
        lambda j, x, i: -j.numpy.take_along_axis(j.nn.log_softmax(x, 1), i[:, None], 1).mean(),
    ),
    "sort short rows": along("sort", -1, short_rows, in_torch("sort", -1)),
    "sort columns": along("sort", 0, one, in_torch("sort", 0)),
    "sort a vector": along("sort", -1, numbers, in_torch("sort", -1)),
    "sort integers": along("sort", -1, whole_numbers, in_torch("sort", -1)),
    "argsort": along("argsort", -1, numpy=stable),
    "argsort short rows": along("argsort", -1, short_rows, numpy=stable),
    "top_k of many": Case(
        one,
        lambda x: tg.top_k(x, min(100, x.shape[1]))[0],
        lambda x: -np.sort(-x, -1)[:, :100],
        lambda t, x: t.topk(x, min(100, x.shape[1]))[0],
        lambda j, x: j.lax.top_k(x, min(100, x.shape[1]))[0],
    ),
    "places of top_k": Case(
        one,
        lambda x: tg.top_k(x, 5)[1],
        lambda x: np.argsort(-x, -1, "stable")[:, :5],
        lambda t, x: t.topk(x, 5)[1],
        lambda j, x: j.lax.top_k(x, 5)[1],
    ),
    "searchsorted": Case(
        in_order,
        array_api.searchsorted,
        np.searchsorted,
        lambda t, x, y: t.searchsorted(x, y),
        lambda j, x, y: j.numpy.searchsorted(x, y),
    ),
    "histogram": Case(
        labels,
        lambda i: tw.sum(tg.one_hot(i, 10, dtype=np.float32), 0),
        lambda i: np.bincount(i, minlength=10),
        lambda t, i: t.bincount(i, minlength=10),
        lambda j, i: j.numpy.bincount(i, length=10),
    ),
    "cumsum of the middle": along("cumsum", 1, solids),
    "cumprod": along("cumprod", -1),
    "cummax": along("cummax", -1, one, in_torch("cummax", -1), np.maximum.accumulate),
    "cummax of columns": along("cummax", 0, one, in_torch("cummax", 0), np.maximum.accumulate),
    "logcumsumexp": Case(
        one,
        lambda x: tg.logcumsumexp(x, -1),
        lambda x: np.logaddexp.accumulate(x, -1),
        lambda t, x: t.logcumsumexp(x, -1),
        lambda j, x: j.lax.cumlogsumexp(x, 1),
    ),
    "tril": Case(one, tg.tril, np.tril, lambda t, x: t.tril(x), lambda j, x: j.numpy.tril(x)),
    "triu": Case(
        solids,
        lambda x: tg.triu(x, 1),
        lambda x: np.triu(x, 1),
        lambda t, x: t.triu(x, 1),
        lambda j, x: j.numpy.triu(x, 1),
    ),
    "tile": Case(
        solids,
        lambda x: tg.tile(x, (1, 2, 3)),
        lambda x: np.tile(x, (1, 2, 3)),
        lambda t, x: t.tile(x, (1, 2, 3)),
        lambda j, x: j.numpy.tile(x, (1, 2, 3)),
    ),
    "stack": Case(
        lambda rng: [solids(rng)[0]] * 3,
        lambda *x: tg.stack(x, -1),
        lambda *x: np.stack(x, -1),
        lambda t, *x: t.stack(x, -1),
        lambda j, *x: j.numpy.stack(x, -1),
    ),
    "split": Case(
        lambda rng: [(odd(rng, 64, 2048), 3 * odd(rng, 16, 512))],
        lambda x: tg.stack(tg.split(x, 3, 1)),
        lambda x: np.stack(np.split(x, 3, 1)),
        lambda t, x: t.stack(t.chunk(x, 3, 1)),
        lambda j, x: j.numpy.stack(j.numpy.split(x, 3, 1)),
    ),
    "roll": Case(
        one,
        lambda x: tg.roll(x, 5, 1),
        lambda x: np.roll(x, 5, 1),
        lambda t, x: t.roll(x, 5, 1),
        lambda j, x: j.numpy.roll(x, 5, 1),
    ),
    "copies": Case(
        one,
        lambda x: tg.copies(x, 3, 0),
        lambda x: np.tile(x, (3, 1)),
        lambda t, x: t.cat([x, x, x]),
        lambda j, x: j.numpy.tile(x, (3, 1)),
    ),
    "group_norm of many": Case(
        maps,
        lambda x, w, b: tg.group_norm(x, 8, w, b),
        np_groups,
        lambda t, x, w, b: f(t).group_norm(x, 8, w, b),
    ),
    "instance_norm": Case(
        maps,
        tg.instance_norm,
        lambda x, w, b: (
            (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5) * w[:, None, None]
            + b[:, None, None]
        ),
        lambda t, x, w, b: f(t).instance_norm(x, None, None, w, b),
    ),
    "one query": attending(decoding),
    "two queries": attending(partial(decoding, queries=2)),
    "six queries": attending(partial(decoding, queries=6)),
    "one query of shared heads": attending(grouped, enable_gqa=True),
    "conv_transpose of few pixels": Case(
        few_pixels,
        lambda x, w: tg.conv_transpose(x, w, stride=2),
        np_back,
        lambda t, x, w: f(t).conv_transpose2d(x, w, stride=2),
    ),
    "conv_transpose without a stride": Case(
        few_pixels,
        tg.conv_transpose,
        back_by_one,
        lambda t, x, w: f(t).conv_transpose2d(x, w),
    ),
    "conv_transpose side by side": Case(
        twofold,
        lambda x, w: tg.conv_transpose(x, w, stride=2),
        np_back,
        lambda t, x, w: f(t).conv_transpose2d(x, w, stride=2),
    ),
    "linear resize": resized(2, "linear"),
    "linear resize by 1.5": resized(1.5, "linear"),
    "linear resize to fewer": resized(0.6, "linear"),
    "cubic resize": resized(2, "cubic"),
    "nearest resize by 1.5": Case(
        image,
        lambda x: tg.resize(x, sized(x, 1.5), coordinates="asymmetric", rounding="floor"),
        lambda x: x[:, :, (np.arange(int(x.shape[2] * 1.5)) * (x.shape[2] / int(x.shape[2] * 1.5))).astype(int)][
            ..., (np.arange(int(x.shape[3] * 1.5)) * (x.shape[3] / int(x.shape[3] * 1.5))).astype(int)
        ],
        lambda t, x: f(t).interpolate(x, torch_size(x, 1.5)),
    ),
    "average of windows": Case(
        image,
        lambda x: tg.average_pool(x, 3, stride=2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].mean((4, 5)),
        lambda t, x: f(t).avg_pool2d(x, 3, 2),
    ),
    "average of each image": Case(
        image,
        lambda x: tw.mean(x, (2, 3)),
        lambda x: x.mean((2, 3)),
        lambda t, x: x.mean((2, 3)),
        lambda j, x: x.mean((2, 3)),
    ),
    "max_pool of overlapping windows": Case(
        image,
        lambda x: tg.max_pool(x, 3, stride=1),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3)).max((4, 5)),
        lambda t, x: f(t).max_pool2d(x, 3, 1),
    ),
    "max_pool in 1-D": Case(
        solids,
        lambda x: tg.max_pool(x, 2),
        lambda x: x[..., : x.shape[2] // 2 * 2].reshape(*x.shape[:2], -1, 2).max(-1),
        lambda t, x: f(t).max_pool1d(x, 2),
    ),
}


if __name__ == "__main__":
    sys.exit(main("places", "cases", list(CASES), partial(row, CASES)))
