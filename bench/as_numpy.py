"""What cases of `run.py` are in NumPy, as a user of NumPy writes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def np_windows(x: Array, padding: int, stride: int) -> Array:
    """The maxima of windows of 3 x 3."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=-np.inf)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::stride, ::stride].max((4, 5)))


def np_filtered(x: Array, w: Array, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Array:
    """A convolution of any rank, by windows and an einsum."""
    rank, edge = x.ndim - 2, (padding, padding)
    x = np.pad(x, ((0, 0), (0, 0), *[edge] * rank))
    wide = [dilation * (n - 1) + 1 for n in w.shape[2:]]
    seen = np.lib.stride_tricks.sliding_window_view(x, wide, tuple(range(2, x.ndim)))
    seen = seen[(slice(None), slice(None), *[slice(None, None, stride)] * rank, *[slice(None, None, dilation)] * rank)]
    seen = seen.reshape(len(x), groups, -1, *seen.shape[2:])
    parts = w.reshape(groups, -1, *w.shape[1:])
    at, window = "uvw"[:rank], "xyz"[:rank]
    made = np.einsum(f"ngc{at}{window},gfc{window}->ngf{at}", seen, parts, optimize=True)
    return np.asarray(made.reshape(len(x), -1, *made.shape[3:]))


def np_back(x: Array, w: Array) -> Array:
    """A transposed convolution of stride 2: zeros between the elements, and filters turned round."""
    n, c, h, v = x.shape
    wide = np.zeros((n, c, 2 * h - 1, 2 * v - 1), x.dtype)
    wide[:, :, ::2, ::2] = x
    return np_filtered(wide, np.ascontiguousarray(w.swapaxes(0, 1)[:, :, ::-1, ::-1]), padding=w.shape[2] - 1)


def np_groups(x: Array, w: Array, b: Array) -> Array:
    """Normalisation of eight groups of channels."""
    rows = x.reshape(len(x), 8, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    return np.asarray(rows.reshape(x.shape) * w[:, None, None] + b[:, None, None])


def np_batch(x: Array, w: Array, b: Array) -> Array:
    """Normalisation of each channel over the images."""
    axes = (0, 2, 3)
    x = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return np.asarray(x * w[:, None, None] + b[:, None, None])


def causal(m: Any, x: Any) -> Any:
    """Where a row may not look, as an array."""
    return m.asarray(np.triu(np.ones(x.shape[-2:], bool), 1))


def np_softmax(x: Array, axis: int = -1) -> Array:
    """As a user of NumPy writes it."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def np_norm(x: Array, w: Array, b: Array) -> Array:
    """Layer normalisation likewise."""
    c = x - x.mean(-1, keepdims=True)
    return np.asarray(c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * w + b)


def np_attention(q: Array, k: Array, v: Array) -> Array:
    """Attention likewise."""
    return np.asarray(np_softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v)


def np_conv(x: Array, w: Array) -> Array:
    """Convolution by windows and one matrix product."""
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.asarray(np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2))


def np_block(x: Any, q: Any, k: Any, v: Any, o: Any, s: Any, t: Any, up: Any, down: Any) -> Any:
    """The same in NumPy."""
    h = np_norm(x, s, t)
    x = x + np_attention(h @ q, h @ k, h @ v) @ o
    z = np_norm(x, s, t) @ up
    return x + z * (0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))).astype(z.dtype) @ down
