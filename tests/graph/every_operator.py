"""Steps of random graphs that the other packages do not need: every operator and selector, mixed types, empty tensors.

Each step bounds magnitude and error as `random_graphs` does. M and e stand for those of its input, n for the number of
elements that a result is made of.
"""

from __future__ import annotations

from math import log, prod, sqrt

import numpy as np
from random_graphs import SHARED, Random, Step, Value, fitting, smooth, some_axes, source, whole_numbers

from tileweave import graph as tw
from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ops.grouped.ragged import ragged_outer
from tileweave.graph.ops.grouped.recurrence import recurrence
from tileweave.graph.ops.windows import max_pool_gradient

INTEGERS = ("int64", "int32", "int8", "uint8")
FLOATS = ("float64", "float32", "float16", "bfloat16")


def calm(v: Value) -> Value:
    return Value(tw.tanh(v.tensor), 1.0, v.error + 4)


def one_axis(rng: Random, v: Value) -> tuple[int, int] | None:
    """A dimension that is not empty, and its extent."""
    dims = [k for k, n in enumerate(v.tensor.shape) if n]
    if not dims or v.tensor.size == 0:
        return None
    dim = int(rng.choice(dims))
    return dim, v.tensor.shape[dim]


def truth(rng: Random, x: tw.Tensor) -> tw.Tensor:
    """Something to choose by: comparisons of whole numbers, so that no rounding decides."""
    a, b = source(rng, x.shape, "int32").tensor, source(rng, x.shape[1:], "int8").tensor
    how = rng.integers(0, 3)
    return [tw.greater, tw.not_equal, tw.less][how](a, b) if how else tw.greater_equal(tw.add(a, b), 2)


def generated(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """v beside numbers that come from nowhere."""
    x, seed = v.tensor, int(rng.integers(0, 2**40))
    how = rng.integers(0, 5)
    if how == 0:
        low = source(rng, x.shape, "int32").tensor
        drawn = Value(tw.cast(tw.uniform(x.shape, seed, -1.0, tw.absolute(low)), dtype), 10.0, 40.0)
        drawn = drawn if is_floating(x.dtype) else Value(tw.cast(tw.random_integers(x.shape, seed, 0, 9), dtype), 9.0)
    elif how == 1:
        drawn = Value(tw.cast(tw.random_integers(x.shape, seed, 0, 9), dtype), 9.0)
    elif how == 2 and is_floating(x.dtype):
        drawn = Value(tw.normal(x.shape, seed, dtype=x.dtype), 10.0, 80.0)
    elif how == 3 and x.shape:
        drawn = Value(tw.broadcast_to(tw.arange(0, x.shape[-1], dtype=dtype), x.shape), float(max(x.shape[-1], 1)))
    else:
        drawn = Value(tw.full(x.shape, 3, dtype), 3.0)
    size = v.size + drawn.size
    return Value(tw.add(x, drawn.tensor), size, v.error + drawn.error + size)


def assembled(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Selectors of selectors: parts of one tensor put together again in another way, beside constants."""
    x = v.tensor
    if not x.ndim:
        return v.through(x[None, ..., None])
    dim = int(rng.integers(0, x.ndim))
    how = rng.integers(0, 5)
    if how == 0:
        parts = [tw.stride(tw.flip(x, dim), int(rng.integers(1, 4)), dim), tw.full(x.shape, 2, dtype), x]
        return Value(tw.concat(parts, dim), max(v.size, 2.0), v.error)
    if how == 1:
        both = tw.interleave([x, tw.zeros(x.shape, dtype), tw.flip(x, dim)], dim)
        cut = tuple(slice(1, None, 2) if k == dim else slice(None) for k in range(x.ndim))
        return v.through(both[cut])
    if how == 2:
        wide = tw.copies(tw.pad(x, 1, "constant", 1), 2, dim)
        return v.through(tw.transpose(wide)[..., ::-2]) if x.ndim else None
    if how == 3:
        return v.through(tw.concat([tw.slice_(x, x.type.box.with_range(dim, 0, 0)), x], dim))
    empty = tw.slice_(x, x.type.box.with_range(dim, 0, 0))
    return v.through(empty)


def chosen(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    w = fitting(rng, v.tensor, dtype, pool)
    out = tw.where(truth(rng, v.tensor), v.tensor, w.tensor)
    return Value(out, max(v.size, w.size), max(v.error, w.error))


def mixed(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """With another element type, and back."""
    floats = is_floating(v.tensor.dtype)
    other = str(rng.choice(["float32", "float64", "int8", "bool"] if floats else ["int16", "int32", "uint8", "bool"]))
    w = source(rng, v.tensor.shape[1:], other)
    how, size = rng.integers(0, 3), v.size + w.size
    if how == 0:
        return Value(tw.cast(tw.add(v.tensor, w.tensor), dtype), size, v.error + 2 * size)
    if how == 1:
        size = v.size * w.size
        return Value(tw.cast(tw.multiply(v.tensor, w.tensor), dtype), size, v.error * w.size + 2 * size)
    return Value(tw.cast(tw.maximum(v.tensor, w.tensor), dtype), size, v.error + size)


def more_windows(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    x = v.tensor
    if not 1 <= x.ndim <= 3 or min(x.shape) < 3:
        return None
    rank, how = x.ndim, rng.integers(0, 3)
    if how == 0:  # stencils take odd weights
        w = source(rng, tuple(int(n) for n in rng.choice([1, 3], rank)), dtype)
        out, count = tw.stencil(x, w.tensor, "reflect" if rng.random() < 0.5 else "constant"), w.tensor.size
        return Value(out, count * v.size * w.size, count * v.error * w.size + count * count * v.size * w.size)
    wide = tw.unsqueeze(x, (0, 1))
    kernel, gaps = (2,) * rank, tuple(int(n) for n in rng.integers(1, 3, rank))
    if how == 1:
        return v.through(tw.squeeze(tw.max_pool(wide, kernel, stride=2, padding=1, dilation=gaps), (0, 1)))
    two = tw.concat([wide, tw.flip(wide)], 1)
    w = source(rng, (4, 1, *kernel), dtype)
    out = tw.squeeze(tw.conv(two, w.tensor, dilation=gaps, groups=2), 0)
    count = prod(kernel)
    size = count * v.size * w.size
    return Value(out, size, count * v.error * w.size + count * size)


def exact(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Whole numbers through operators that round or branch: exact where every number on the way is small."""
    x, small = v.tensor, tw.remainder(v.tensor, 11)  # 0..10
    w = fitting(rng, x, dtype, pool).tensor
    axis, how = one_axis(rng, v), rng.integers(0, 13)
    out = None
    if how == 0:
        out = tw.sign(tw.absolute(x))
    elif how == 1:
        out = tw.power(x, int(rng.integers(0, 4)))
    elif how == 2:
        out = tw.floor_divide(x, w) if rng.random() < 0.5 else tw.remainder(x, w)
    elif how == 3:
        out = tw.sqrt(tw.cast(small, "float64"))
    elif how == 4:
        out = tw.divide(small, 3)
    elif how == 5:
        out = tw.equal(x, w) if rng.random() < 0.5 else tw.less(300, x)
    elif axis is None:
        return None
    elif how == 6:
        out = tw.mean(small, axis[0])
    elif how == 7:
        out = tw.argmin(x, axis[0])
    elif how in (8, 9):
        name = "argmax" if how == 8 else "argmin"
        out = tw.reduce_in_parts(name, x, axis[0], int(rng.integers(1, axis[1] + 1)))
    elif how == 10 and x.ndim >= 3:
        out = tw.average_pool(small, 1, stride=2)
    elif how == 11 and x.ndim <= 2:
        out = tw.einsum("...a,ab,...b->...", x, source(rng, (x.shape[-1], x.shape[-1]), dtype).tensor, x)
    elif how == 12 and 1 <= x.ndim <= 3 and min(x.shape) > 1:
        image, window = tw.unsqueeze(tw.cast(small, "float64"), (0, 1)), (2,) * x.ndim
        image = image[(0, 0, *(slice(n // 2 * 2) for n in x.shape))][None, None]
        pooled = tw.max_pool(image, window)
        shares = max_pool_gradient(image, pooled, pooled, window=window, stride=window, dilation=(1,) * x.ndim)
        out = tw.pad(shares[0, 0], [(0, n % 2) for n in x.shape])  # 2^n elements at most share a number
    return None if out is None else v.through(tw.cast(out, dtype))


def rounded(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Elementwise functions, kept where they are smooth."""
    x, M, e = v.tensor, v.size, v.error
    w, t = fitting(rng, x, dtype, pool), calm(v)
    how = rng.integers(0, 7)
    if how == 0:
        return Value(tw.divide(x, tw.add(tw.absolute(w.tensor), 1)), M, e + M * w.error + 3 * M)
    if how == 1:
        size = log(1 + M) + 1
        return Value(tw.log(tw.add(tw.absolute(x), 1.0)), size, e + 3 + 4 * size)
    if how == 2:
        return Value(tw.sqrt(tw.absolute(x) + 1), sqrt(M + 1), e + 3 * sqrt(M + 1))
    if how == 3:
        return Value(tw.power(t.tensor, int(rng.integers(1, 4))), 1.0, 3 * t.error + 8)
    if how == 4:
        return Value(tw.gelu(x, "none" if rng.random() < 0.5 else "tanh"), M + 1, 1.3 * e + 8 * M + 8)
    if how == 5:
        return Value(tw.erf(t.tensor), 1.0, 1.2 * t.error + 8)
    axes = some_axes(rng, x)
    n = prod(x.shape[k] for k in axes)
    return Value(tw.product(t.tensor, axes, dtype=dtype), 1.0, n * (t.error + 2)) if n else None


def statistics(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Reductions that are compositions."""
    axis = one_axis(rng, v)
    if axis is None:
        return None
    (dim, n), x, M, e = axis, v.tensor, v.size, v.error
    keep, parts, root = bool(rng.random() < 0.5), int(rng.integers(1, axis[1] + 1)), sqrt(n)
    centred = 2 * e + (n + 3) * M
    how = rng.integers(0, 8)
    if how == 0:
        return Value(tw.mean(x, dim, keepdims=keep), M, e + (n + 2) * M)
    if how in (1, 2):
        out = tw.variance(x, dim, keepdims=keep) if how == 1 else tw.reduce_in_parts("variance", x, dim, parts)
        return Value(out, 4 * M * M, 8 * M * centred + 8 * (n + 4) * M * M)
    if how in (3, 4):
        out = tw.logsumexp(x, dim, keepdims=keep) if how == 3 else tw.reduce_in_parts("logsumexp", x, dim, parts, 3)
        return Value(out, M + log(n), 2 * (e + 3 * M + 2 * n + 8))
    if how == 5:
        return Value(tw.log_softmax(x, dim), 2 * M + log(n), 2 * e + 6 * M + 2 * n + 12)
    own = centred if how == 6 else e
    out = tw.layer_norm(x, axis=dim, epsilon=1.0) if how == 6 else tw.rms_norm(x, axis=dim, epsilon=1.0)
    return Value(out, root, (1 + root) * own + root * (n + 8))


def attending(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    q = calm(v)
    x = q.tensor
    if x.ndim < 2 or x.size == 0:
        return None
    d, n = x.shape[-1], int(rng.integers(x.shape[-2], x.shape[-2] + 3))
    k, values = source(rng, (n, d), dtype), source(rng, (n, 2), dtype)
    causal = bool(rng.random() < 0.5)
    if rng.random() < 0.5:
        out = tw.attention(x, k.tensor, values.tensor, scale=0.125, causal=causal)
    else:
        parts = int(rng.integers(1, n + 1))
        out = tw.attention_in_parts(x, k.tensor, values.tensor, parts, scale=0.125, causal=causal)
    score = d * k.size / 8
    weight = 4 * n * (score * (q.error + d + 2)) + 8 * n
    return Value(out, values.size, n * values.size * (weight + n + 2))


def pooled(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    x = v.tensor
    if not 1 <= x.ndim <= 3 or min(x.shape) < 3:
        return None
    kernel = tuple(int(n) for n in rng.integers(1, 4, x.ndim))
    out = tw.average_pool(tw.unsqueeze(x, (0, 1)), kernel, stride=int(rng.integers(1, 3)), padding=1)
    return (
        v.through(tw.squeeze(out, (0, 1)))
        if not prod(kernel)
        else Value(tw.squeeze(out, (0, 1)), v.size, v.error + (prod(kernel) + 3) * v.size)
    )


def placed(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Elements by their places, in order, in another shape; sums up to each one."""
    x, axis, how = v.tensor, one_axis(rng, v), rng.integers(0, 10)
    if axis is None:
        return None
    (dim, n), first = axis, x.shape[0]
    at = rng.integers(-n, n, tuple(2 if k == dim else m for k, m in enumerate(x.shape)))
    if how == 0:
        return v.through(tw.take(x, rng.integers(-n, n, (2,)), dim))
    if how == 1:
        return v.through(tw.take_along_axis(x, at, dim))
    if how == 2:
        new = source(rng, at.shape, dtype)
        return Value(tw.scatter(x, at, new.tensor, dim), max(v.size, new.size), v.error)
    if how == 3:
        return v.through(tw.gather_nd(x, rng.integers(-first, first, (3, 1))))
    if how == 4:
        new = source(rng, (1, *x.shape[1:]), dtype)
        out = tw.scatter_nd(x, [[int(rng.integers(0, first))]], new.tensor)
        return Value(out, max(v.size, new.size), v.error)
    if how == 5:
        return v.through(tw.reshape(x, (x.shape[0] * x.shape[1], -1) if x.ndim > 1 else (-1, 1)))
    if how == 6:
        return v.through(tw.sort(x, dim, descending=bool(rng.random() < 0.5)))
    if how == 7:
        return v.through((tw.cummax if rng.random() < 0.5 else tw.cummin)(x, dim))
    if how == 8 and at.sum() % 2:
        return Value(tw.bincount(at, n, dtype), at.shape[-1], 0.0)
    if how == 8:
        return Value(tw.cast(tw.searchsorted(np.arange(-n, n, 2), at), dtype), n, 0.0)
    return Value(tw.cumsum(x, dim, dtype=dtype), n * v.size, n * v.error + n * n * v.size)


def ragged(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Groups of rows, some without any, each with its matrix; and what rows of two matrices sum up to in each group."""
    x, groups = v.tensor, int(rng.integers(1, 5))
    if x.ndim != 2 or not all(x.shape):
        return None
    (m, k), n = x.shape, int(rng.integers(1, 4))
    ends = np.sort(rng.integers(0, m + 1, groups))
    sizes = np.diff(ends, prepend=0).astype(str(rng.choice(["int32", "int64", "uint8"])))
    if rng.random() < 0.5:
        w = source(rng, (groups, k, n), dtype)
        return Value(tw.ragged_dot(x, w.tensor, sizes), k * v.size * 9, 9 * k * (v.error + (k + 1) * v.size))
    y = source(rng, (m, n), dtype)
    return Value(ragged_outer(x, y.tensor, sizes), m * v.size * 9, 9 * m * (v.error + (m + 1) * v.size))


def recurrent(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Steps of a layer whose weights are small: a state depends on two inputs' worth of those before."""
    x = v.tensor
    if x.ndim != 3 or not all(x.shape) or dtype not in ("float32", "float64"):
        return None
    hidden = x.shape[2]
    cell, ways = str(rng.choice(["tanh", "relu"])), str(rng.choice(["forward", "reverse", "both"]))
    count = 1 + (ways == "both")
    u = source(rng, (count, hidden, hidden), dtype).tensor / (20.0 * hidden)
    state, inputs = tw.full((count, x.shape[1], hidden), 0.5, dtype), tw.stack([x] * count, 2)
    states = recurrence(cell, inputs, u, state, ways=ways)[0]
    return Value(states[:, :, -1], 2 * v.size + 1, 2 * v.error + 8 * v.size + 16)


def logical(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Bits, truth values and rounding of whole numbers: exact."""
    x, w = v.tensor, fitting(rng, v.tensor, dtype, pool).tensor
    small, few = tw.cast(tw.remainder(x, 11), "float64"), int(rng.integers(0, 4))
    odd = tw.divide(small, 0.0)  # infinity and NaN
    made = [
        lambda: tw.bitwise_and(x, w), lambda: tw.bitwise_or(x, w), lambda: tw.bitwise_xor(x, w), lambda: tw.invert(x),
        lambda: tw.left_shift(x, few), lambda: tw.right_shift(x, few), lambda: tw.fmod(x, 7),
        lambda: tw.logical_and(x, w), lambda: tw.logical_or(x, w), lambda: tw.logical_xor(x, w),
        lambda: tw.logical_not(x), lambda: tw.isnan(odd), lambda: tw.isinf(odd), lambda: tw.isfinite(odd),
        lambda: tw.signbit(tw.subtract(small, 5.0)), lambda: tw.floor(small / 3.0), lambda: tw.ceil(small / 3.0),
        lambda: tw.saturate(tw.trunc(small / 3.0), "int8"), lambda: tw.rint(small / 3.0),
        lambda: tw.any(x, some_axes(rng, x)),
        lambda: tw.gcd(x, w), lambda: tw.lcm(tw.remainder(x, 11), tw.remainder(w, 11)),
        lambda: tw.all(x, some_axes(rng, x)), lambda: tw.cumprod(x, -1) if x.ndim else x,
    ]  # fmt: skip
    return v.through(tw.cast(made[rng.integers(len(made))](), dtype))


def curved(rng: Random, v: Value, dtype: str, pool: list[Value]) -> Value | None:
    """Smooth functions of -1..1, kept where their slope is below 3."""
    c = calm(v)
    t = c.tensor
    part, more = t * 0.7, tw.absolute(t) + 1.0
    made = [
        lambda: tw.sin(t), lambda: tw.cos(t), lambda: tw.tan(part), lambda: tw.arcsin(part), lambda: tw.arccos(part),
        lambda: tw.arctan(t), lambda: tw.sinh(t), lambda: tw.cosh(t), lambda: tw.arcsinh(t), lambda: tw.arctanh(part),
        lambda: tw.arccosh(t + 3.0), lambda: tw.exp2(t), lambda: tw.expm1(t), lambda: tw.log1p(tw.absolute(t)),
        lambda: tw.log2(more), lambda: tw.log10(more), lambda: tw.square(t), lambda: tw.reciprocal(more),
        lambda: tw.arctan2(t, more), lambda: tw.nextafter(t, more), lambda: tw.erfc(t), lambda: tw.erfcx(more),
        lambda: tw.erfinv(part), lambda: tw.ndtri(t * 0.35 + 0.5), lambda: tw.log_ndtr(t), lambda: tw.lgamma(more),
        lambda: tw.digamma(more), lambda: tw.i0(t), lambda: tw.i0e(t), lambda: tw.i1(t), lambda: tw.i1e(t),
        lambda: tw.j0(t), lambda: tw.j1(t), lambda: tw.logcumsumexp(t, -1) if t.ndim else t,
    ]  # fmt: skip
    return Value(made[rng.integers(len(made))](), 3.0, 3 * c.error + 16)


BOTH: tuple[Step, ...] = (*SHARED, generated, assembled, chosen, mixed, more_windows, placed, placed, placed, ragged)


def steps_for(dtype: str) -> tuple[Step, ...]:
    """Every step that graphs of an element type take."""
    if dtype in FLOATS:
        return (*BOTH, smooth, rounded, rounded, statistics, statistics, attending, pooled, recurrent, *[curved] * 9)
    return (*BOTH, whole_numbers, exact, exact, exact, *[logical] * 6)
