"""What the operators compute, in NumPy: the definition that every printed text is judged against.

Floats of fewer than 64 bits compute in f32, each result rounded to the output's type; transcendental functions, sums
and products are computed in f64 and rounded once. Integers wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tileweave.kernel.ir import Dtype

Array = np.ndarray[Any, Any]


def rounded(values: Array, to: Dtype) -> Array:
    """Values in another type: floats to the nearest, ties to even; 8-bit floats saturate; to integers towards zero."""
    if values.dtype == to.numpy:
        return values
    with np.errstate(all="ignore"):
        if to.kind in ("signed", "unsigned") and values.dtype.kind not in "iub":
            info = np.iinfo(to.numpy)
            wide = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=info.max, neginf=info.min))
            small, great = wide <= info.min, wide >= info.max  # as floats: info.max may round up to what does not fit
            held = np.where(small | great, 0, wide).astype(to.numpy)
            return np.where(great, to.numpy.type(info.max), np.where(small, to.numpy.type(info.min), held))
        if to.kind == "float" and to.bits < 32 and values.dtype == np.float64:
            values = _odd(
                values
            )  # f32 whose last bit says that something is lost: then rounding twice is rounding once
        if to.name in ("e4m3", "e5m2"):
            most = float(_MOST[to.name])
            wide32 = values.astype(np.float32)
            return np.where(np.isnan(wide32), wide32, np.clip(wide32, -most, most)).astype(to.numpy)
        return values.astype(to.numpy)


def _odd(values: Array) -> Array:
    """Floats of 64 bits as floats of 32, rounded to odd: what does not fit is cut off, and the last bit set."""
    near = values.astype(np.float32)
    lost = (near.astype(np.float64) != values) & ~np.isnan(values)
    beyond = np.abs(near.astype(np.float64)) > np.abs(values)
    bits = near.view(np.int32) - (lost & beyond)
    return np.asarray(np.where(lost, bits | 1, bits), np.int32).view(np.float32)


_MOST = {"e4m3": 448.0, "e5m2": 57344.0}


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _wide(function: Callable[[Array], Array], own: Callable[[float], float] | None = None) -> Callable[..., Array]:
    """A function computed in f64 and rounded once to the type computed in.

    Args:
        function: NumPy's, whose last bit is not always that of the C library.
        own: the C library's, taken where the result is not rounded: in f64.
    """

    def one(x: float) -> float:
        try:
            return own(x)  # type: ignore[misc]
        except (OverflowError, ValueError):  # Python's word for an infinity or NaN
            return float(function(np.float64(x)))  # type: ignore[arg-type]

    def compute(x: Array) -> Array:
        if own is not None and x.dtype == np.float64:
            return np.asarray(np.frompyfunc(one, 1, 1)(x), np.float64)
        return function(x.astype(np.float64)).astype(x.dtype)

    return compute


def _divide(a: Array, b: Array) -> Array:
    return a // b if a.dtype.kind in "iu" else a / b


def _least(a: Array, b: Array) -> Array:
    return np.asarray(np.where((a != a) | (a < b), a, b))  # a NaN wins; of two zeros the second


def _greatest(a: Array, b: Array) -> Array:
    return np.asarray(np.where((a != a) | (a > b), a, b))


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == np.float32:  # the product is exact; what the sum loses goes into its last bit, so rounding is right
        product, more = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = product + more
        back = total - product
        lost = (product - (total - back)) + (more - back)
        bits = total.view(np.int64)
        odd = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
        step = np.where((lost > 0) == (total > 0), 1, -1)
        return np.asarray(np.where(odd, bits + step, bits).view(np.float64).astype(np.float32))
    if a.dtype == np.float64:
        with np.errstate(all="ignore"):
            return np.asarray(np.frompyfunc(_fused, 3, 1)(a, b, c), np.float64)
    return a * b + c


def _fused(a: float, b: float, c: float) -> float:
    """``a * b + c`` rounded once, in f64."""
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else plain
    except OverflowError:
        return math.copysign(math.inf, exact)


_LIBRARY = ("exp", "exp2", "log", "log2", "tanh", "sin", "cos")
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide,
    "min": _least, "max": _greatest,
    "neg": np.negative, "abs": np.abs, "square": np.square, "floor": np.floor,
    **{name: _wide(getattr(np, name), getattr(math, name)) for name in _LIBRARY}, "erf": _wide(_erf),
    "sqrt": np.sqrt, "rsqrt": _wide(lambda x: 1 / np.sqrt(x)), "recip": lambda x: (1 / x).astype(x.dtype),
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "fma": _fma, "where": np.where,
}  # fmt: skip
"""Elementwise functions on arrays of the type computed in."""


def neutral(fn: str, dtype: Dtype) -> Any:
    """The value that changes nothing."""
    if fn in ("add", "mul"):
        return 0 if fn == "add" else 1
    if dtype.kind == "float":
        most = _MOST.get(dtype.name, np.inf)  # 8-bit floats saturate; e4m3 has no infinity
        return -most if fn == "max" else most
    signed = dtype.kind == "signed"
    return (-(1 << dtype.bits - 1) if signed else 0) if fn == "max" else (1 << dtype.bits - signed) - 1


_FOLDS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _widened(values: Array, fn: str) -> Array:
    if fn in ("max", "min") or values.dtype.kind in "iub":
        return values if fn in ("max", "min") else values.astype(np.int64)
    return values.astype(np.float64)


def reduced(values: Array, fn: str, axes: tuple[int, ...], to: Dtype) -> Array:
    """Combined along axes, which stay with extent 1; sums and products in f64, rounded once."""
    wide = _widened(values, fn)
    if wide.dtype.kind not in "fiub":
        wide = wide.astype(np.float32)
    return rounded(_FOLDS[fn].reduce(wide, axis=axes, keepdims=True), to)


def scanned(values: Array, fn: str, axis: int, to: Dtype) -> Array:
    """Combined up to and with each coordinate, one after the other, each result rounded to its type."""
    given = np.moveaxis(rounded(values, to), axis, 0)
    out = np.array(given)
    for k in range(1, len(given)):
        out[k] = rounded(np.asarray(FUNCTIONS[fn](out[k - 1], given[k])), to)
    return np.moveaxis(out, 0, axis)


def factor(x: Array, precision: object) -> Array:
    """An operand of a product as it is multiplied: ``"tf32"`` leaves out the 13 lowest bits of an f32."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if precision else x


def scaled(x: Array, scales: Array) -> Array:
    """A factor of a product times a scale for every 32 terms of a row, exact in f64."""
    return x.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)[:, : x.shape[1]]


def matmul(a: Array, b: Array, c: Array, to: Dtype) -> Array:
    """``c + a b^T``: exact products, one sum in the widest type, rounded once."""
    wide: Any = np.float64 if to.kind == "float" else np.int64
    return rounded(a.astype(wide) @ b.astype(wide).T + c.astype(wide), to)
