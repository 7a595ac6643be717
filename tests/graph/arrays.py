"""Arrays of every shape, stride and element type, and comparison with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave import graph as tw

DTYPES = ("float32", "float64", "int32", "int64")

Array = np.ndarray[Any, Any]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Small values: integers where the type holds integers, multiples of 1/8 of both signs otherwise."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "u":
        return rng.integers(0, 10, shape).astype(dtype)
    if kind == "i":
        return rng.integers(-9, 10, shape).astype(dtype)
    return (rng.integers(-40, 41, shape) / 8).astype(dtype)


def strided(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, how: str) -> Array:
    """An array of this shape that stands in memory in one of several ways."""
    if how == "transposed":
        return values(rng, shape[::-1], dtype).T
    if how == "sliced":
        return values(rng, tuple(2 * n + 1 for n in shape), dtype)[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
    if how == "reversed":
        return values(rng, shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
    if how == "broadcast":
        return np.broadcast_to(values(rng, tuple(1 if k == 0 else n for k, n in enumerate(shape)), dtype), shape)
    if how == "readonly":
        array = values(rng, shape, dtype)
        array.flags.writeable = False
        return array
    return values(rng, shape, dtype)


HOWS = ("dense", "transposed", "sliced", "reversed", "broadcast", "readonly")


def same(tensor: tw.Tensor, expected: Any, *, rtol: float = 0.0) -> None:
    """The tensor's value is the expected one: type, shape and values; bit for bit unless a tolerance is given."""
    expected = np.asarray(expected)
    (got,) = tw.evaluate([tensor])
    assert tensor.shape == expected.shape, f"shape {tensor.shape}, NumPy says {expected.shape}"
    assert tensor.dtype == expected.dtype, f"type {tensor.dtype}, NumPy says {expected.dtype}"
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if expected.dtype.kind == "V":  # bfloat16: NumPy compares neither its NaN nor its distance
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    if rtol and expected.dtype.kind == "f":
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * scale)
    else:
        np.testing.assert_array_equal(got, expected)
