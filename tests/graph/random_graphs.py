"""Random graphs by seed, with a bound on the rounding of each result, and random partitions of them.

Integer graphs wrap around and are exact under any sharding. Float graphs carry, for every tensor, a bound of its
magnitude and of its rounding error in units of eps: the error of the same graph on absolute values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, prod

import numpy as np
from arrays import HOWS, strided

from tileweave import graph as tw
from tileweave.graph.ir.dtypes import element_type, epsilon, is_floating
from tileweave.space import Box

Random = np.random.Generator


@dataclass(frozen=True)
class Value:
    """A tensor, a bound of its magnitude, and one of its error in units of eps."""

    tensor: tw.Tensor
    size: float = 1.0
    error: float = 0.0

    def through(self, tensor: tw.Tensor) -> Value:
        return Value(tensor, self.size, self.error)


def source(rng: Random, shape: tuple[int, ...], dtype: str) -> Value:
    array = strided(rng, shape, dtype, str(rng.choice(HOWS)) if shape else "dense")
    return Value(tw.as_tensor(array), 9.0)


def random_shape(rng: Random, rank: int | None = None) -> tuple[int, ...]:
    rank = int(rng.integers(0, 4)) if rank is None else rank
    return tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 7], rank))


def fitting(rng: Random, x: tw.Tensor, dtype: str, pool: list[Value]) -> Value:
    """Something that broadcasts with x: of the pool where one fits, else a new source."""
    fits = [v for v in pool if broadcasts(v.tensor.shape, x.shape) and v.tensor.dtype == x.dtype]
    if fits and rng.random() < 0.6:
        return fits[rng.integers(len(fits))]
    cut = int(rng.integers(0, len(x.shape) + 1))
    return source(rng, tuple(n if rng.random() < 0.7 else 1 for n in x.shape[cut:]), dtype)


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return prod(np.broadcast_shapes(a, b)) <= 2000
    except ValueError:
        return False


def some_axes(rng: Random, x: tw.Tensor) -> tuple[int, ...]:
    return tuple(k for k in range(x.ndim) if rng.random() < 0.5)


# ---------------------------------------------------------------------------------------------------------------------
# steps: (rng, a value, element type, pool) -> a new value, or None where the step does not fit

Step = Callable[[Random, Value, str, list[Value]], Value | None]


def view(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    x = v.tensor
    how = rng.integers(0, 11)
    if how == 0:
        return v.through(tw.permute(x, tuple(rng.permutation(x.ndim))))
    if how == 1:
        return v.through(tw.flip(x, some_axes(rng, x)))
    if how == 2:
        key = []
        for n in x.shape:
            start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
            stop = stop if stop > start else n
            step = int(rng.choice([1, 1, 2, 3]))
            key.append(slice(start, stop, step) if rng.random() < 0.7 else slice(None, None, -step))
        return v.through(x[tuple(key)])
    if how == 3:
        return v.through(tw.unsqueeze(x, int(rng.integers(0, x.ndim + 1)))) if x.ndim < 4 else None
    if how == 4:
        return v.through(tw.squeeze(x))
    if how == 5:
        shape = tuple(3 if n == 1 else n for n in x.shape)
        return v.through(tw.broadcast_to(x, (2, *shape) if x.ndim < 3 else shape))
    if not x.ndim:
        return None
    if how == 6:
        dim = int(rng.integers(0, x.ndim))
        if not x.shape[dim]:
            return None
        return v.through(tw.select(x, dim, int(rng.integers(0, x.shape[dim]))))
    dim = int(rng.integers(0, x.ndim))
    if how == 8:
        return v.through(tw.copies(x, int(rng.integers(1, 4)), dim))
    if how == 9:
        mode = "reflect" if all(x.shape) and rng.random() < 0.5 else "constant"
        width = [(int(rng.integers(0, 4)), int(rng.integers(0, 3))) if k == dim else (0, 0) for k in range(x.ndim)]
        return v.through(tw.pad(x, width, mode, 5))
    if how == 10:
        other = source(rng, x.shape, dtype)
        parts = [x, other.tensor, x][: int(rng.integers(1, 4))]
        return Value(tw.interleave(parts, dim), max(v.size, other.size), v.error)
    other = source(rng, tuple(int(rng.integers(1, 4)) if k == dim else n for k, n in enumerate(x.shape)), dtype)
    parts = [x, other.tensor] if rng.random() < 0.5 else [other.tensor, x, x]
    return Value(tw.concat(parts, dim), max(v.size, other.size), v.error)


def arithmetic(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    w = fitting(rng, v.tensor, dtype, pool)
    x, y = v.tensor, w.tensor
    how = rng.integers(0, 5)
    if how < 2:
        size = v.size + w.size
        return Value((tw.add if how else tw.subtract)(x, y), size, v.error + w.error + size)
    if how == 2:
        size = v.size * w.size
        return Value(tw.multiply(x, y), size, v.error * w.size + w.error * v.size + size)
    return Value((tw.maximum if how == 3 else tw.minimum)(x, y), max(v.size, w.size), max(v.error, w.error))


def contract(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    x = v.tensor
    if not x.ndim or not all(x.shape):
        return None
    k, n = x.shape[-1], int(rng.choice([1, 2, 3, 5]))
    how = rng.integers(0, 4)
    if how == 0:
        w, b = source(rng, (k, n), dtype), source(rng, (n,), dtype)
        size = k * v.size * w.size + b.size
        return Value(tw.linear(x, w.tensor, b.tensor), size, k * v.error * w.size + (k + 1) * size)
    if how == 1:
        w = source(rng, (k, n) if rng.random() < 0.7 else (k,), dtype)
        out = tw.matmul(x, w.tensor)
    elif how == 2 and x.ndim >= 2:
        w = source(rng, (x.shape[0], n), dtype)
        out, k = tw.einsum("a...b,ac->cb...", x, w.tensor), x.shape[0]
    else:
        w = source(rng, (k, k), dtype)
        out, k = tw.einsum("...a,aa->...a", x, w.tensor), 1
    size = k * v.size * w.size
    return Value(out, size, k * v.error * w.size + k * size)


def windows(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    x = v.tensor
    if not 1 <= x.ndim <= 3 or not all(x.shape):
        return None
    kernel = tuple(int(rng.integers(1, min(n, 3) + 1)) for n in x.shape)
    stride = tuple(int(rng.integers(1, 3)) for _ in kernel)
    padding = [tuple(rng.integers(0, 2, 2).tolist()) for _ in kernel]
    wide = tw.unsqueeze(x, (0, 1))
    if rng.random() < 0.4:
        return v.through(tw.squeeze(tw.max_pool(wide, kernel, stride=stride), (0, 1)))
    w = source(rng, (int(rng.integers(1, 3)), 1, *kernel), dtype)
    out = tw.squeeze(tw.conv(wide, w.tensor, stride=stride, padding=padding), 0)
    count = prod(kernel)
    size = count * v.size * w.size
    return Value(out, size, count * v.error * w.size + count * size)


def reduction(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    axes = some_axes(rng, v.tensor)
    keep = bool(rng.random() < 0.5)
    count = prod(v.tensor.shape[k] for k in axes)
    if not count:
        return None
    how = rng.integers(0, 3)
    if how == 0:
        out = tw.sum(v.tensor, axes, keepdims=keep, dtype=dtype)
        return Value(out, count * v.size, count * v.error + count * count * v.size)
    return v.through((tw.max if how == 1 else tw.min)(v.tensor, axes, keepdims=keep))


def rectify(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    return v.through([tw.relu, tw.negative, tw.absolute][rng.integers(0, 3)](v.tensor))


def whole_numbers(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Steps that branch on values, for integers only."""
    w = fitting(rng, v.tensor, dtype, pool)
    how = rng.integers(0, 6)
    negative = v.tensor.dtype.kind == "i"
    if how == 5:
        if not v.tensor.ndim or not v.tensor.shape[0]:
            return None
        return v.through(tw.cast(tw.argmax(v.tensor, 0), dtype))
    if how == 0:
        return v.through(tw.remainder(v.tensor, int(rng.choice([5, 17, -3 if negative else 3]))))
    if how == 1:
        return v.through(tw.floor_divide(v.tensor, int(rng.choice([2, -7 if negative else 7]))))
    if how == 2:
        return v.through(tw.where(tw.greater(v.tensor, w.tensor), v.tensor, w.tensor))
    if how == 3:
        return v.through(tw.cast(tw.less_equal(v.tensor, w.tensor), dtype))
    return v.through(tw.product(v.tensor, some_axes(rng, v.tensor), dtype=dtype))


def smooth(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    how = rng.integers(0, 4)
    calm = Value(tw.tanh(v.tensor), 1.0, v.error + 4)
    if how == 0:
        return calm
    if how == 1:
        return Value(tw.exp(calm.tensor), exp(1), exp(1) * (calm.error + 4))
    if how == 2:
        return Value(tw.sigmoid(v.tensor), 1.0, v.error + 8)
    if not v.tensor.ndim or not v.tensor.shape[-1]:
        return None
    n = v.tensor.shape[-1]
    return Value(tw.softmax(v.tensor), 1.0, 4 * n * (v.error + v.size) + 8 * n)


SHARED: tuple[Step, ...] = (view, view, arithmetic, arithmetic, contract, contract, windows, reduction, rectify)


def random_graph(
    seed: int, dtype: str = "int64", steps: int = 8, table: tuple[Step, ...] = (), empty: float = 0.0
) -> list[Value]:
    """The last few values of a random graph; the same seed gives the same graph.

    Args:
        seed: any.
        dtype: of every value.
        steps: how many values are made.
        table: the steps to choose from; those that every package knows when left out.
        empty: how likely a source has no element.
    """
    rng = np.random.default_rng(seed)
    floats = is_floating(element_type("random_graph(seed, dtype)", dtype))
    table = table or ((*SHARED, smooth, smooth) if floats else (*SHARED, whole_numbers))
    largest = 2e4 if dtype == "float16" else np.inf  # no sum on the way overflows
    pool = []
    for _ in range(int(rng.integers(1, 4))):
        shape = random_shape(rng)
        pool.append(source(rng, (0, *shape[1:]) if empty and shape and rng.random() < empty else shape, dtype))
    made: list[Value] = []
    while len(made) < steps:
        v = made[-1] if made and rng.random() < 0.6 else pool[rng.integers(len(pool))]
        new = table[rng.integers(len(table))](rng, v, dtype, pool)
        if new is None or new.tensor.size > 2000 or (floats and new.size > largest):
            continue
        if floats and new.size > min(1e4, largest / 500):
            new = Value(tw.tanh(new.tensor), 1.0, new.error + 4)
        pool.append(new)
        made.append(new)
    return made[-int(rng.integers(1, 4)) :]


# ---------------------------------------------------------------------------------------------------------------------
# partitions


def random_cuts(rng: Random, box: Box, most: int = 3) -> tw.Partition:
    cuts = []
    for a, n in zip(box.start, box.shape, strict=True):
        inner = rng.choice(np.arange(1, n), min(int(rng.integers(0, most)), n - 1), replace=False) if n > 1 else []
        cuts.append((a, *sorted(a + int(k) for k in inner), a + n))
    return tw.Partition(tuple(cuts))


def random_partitions(rng: Random, graph: tw.Graph, most: int = 3) -> dict[tw.Operation, tw.Partition]:
    """Cuts along every dimension of most operations; few where shards would be many."""
    out = {}
    for operation in graph.operations:
        if rng.random() < 0.9 and operation.signature is not None:
            cuts = random_cuts(rng, operation.index, most)
            while cuts.count > 24:
                cuts = random_cuts(rng, operation.index, 2)
            out[operation] = cuts
    return out


def close(value: Value, got: np.ndarray, expected: np.ndarray) -> None:
    """Equal: integers exactly, floats within the bound of the value."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if is_floating(expected.dtype):
        bound = 4 * (value.error + value.size) * epsilon(expected.dtype)
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=0, atol=bound)
    else:
        np.testing.assert_array_equal(got, expected)
