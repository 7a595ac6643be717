"""Element types: bool, integers and floats of NumPy; bfloat16 and the floats of 8 bits, which ml_dtypes defines."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tileweave.errors import DtypeError

NARROW = (
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""The floats that NumPy knows through ml_dtypes only."""
HALVES = ("float16", "bfloat16")
"""The floats of 16 bits."""
LEGAL = "bool, integers, float16, bfloat16, float32, float64, floats of 8 bits"


@lru_cache  # NumPy makes the name of a type anew each time it is asked
def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether an element type is a float of ml_dtypes."""
    return dtype.name in NARROW


def narrow_type(name: str) -> np.dtype[Any] | None:
    """The float of ml_dtypes that has this name, or None."""
    if name not in NARROW:
        return None
    import ml_dtypes  # NumPy knows the name only once this is loaded

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether an element type is a floating one: NumPy's own, or a narrow one."""
    return issubclass(dtype.type, np.floating) or is_narrow(dtype)


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether tensors may have an element type: bool, integers, floats, in this machine's byte order."""
    return dtype.isnative and (dtype.kind in "biu" or is_floating(dtype))


_USUAL = {id(np.dtype(kind)) for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biuf"}
"""Of NumPy's own element types that tensors may have the objects that are there once, by identity."""


def element_type(where: str, dtype: Any) -> np.dtype[Any]:
    """The element type that a user names: bool, an integer or a floating type, in this machine's byte order."""
    if id(dtype) in _USUAL:
        return dtype  # type: ignore[no-any-return]
    try:
        kind: np.dtype[Any] = (narrow_type(dtype) if isinstance(dtype, str) else None) or np.dtype(dtype)
    except TypeError:
        raise DtypeError(where, f"{dtype!r} is not an element type", legal=LEGAL) from None
    if kind.kind not in "biu" and not is_floating(kind):
        raise DtypeError(where, f"element type {kind} is not supported", legal=LEGAL)
    return kind if kind.isnative else kind.newbyteorder("=")


def wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type in which sums and products of this one are kept: float32 for narrower floats, else itself."""
    return np.dtype(np.float32) if is_floating(dtype) and dtype.itemsize < 4 else dtype


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a floating type."""
    return float(limits(dtype).eps)


def bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The least and the greatest value of an element type, infinities where it has them."""
    if dtype.kind == "b":
        return False, True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    with np.errstate(all="ignore"):
        low, high = dtype.type(-np.inf), dtype.type(np.inf)
    found = limits(dtype)
    return low if low < high else found.min, high if low < high else found.max


def limits(dtype: np.dtype[Any]) -> Any:
    """What `numpy.finfo` says of a floating type, a narrow one too."""
    if not is_narrow(dtype):
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def stored(where: str, value: Any, dtype: np.dtype[Any]) -> bool | int | float:
    """One number as an element type holds it.

    Floats round, to infinity where they are too large; integers must hold the number.

    Raises:
        DtypeError: the integer type does not hold the number.
        TypeError: the value is not one number.
    """
    if dtype in _PLAIN and _is_moderate(value):
        return float(dtype.type(value))
    whole = int(value) if isinstance(value, (int, np.integer)) else None
    if dtype.kind in "iu":
        low, high = _range(dtype)
        if whole is None and np.isfinite(value):
            whole = int(value)
        if whole is None or not low <= whole <= high:
            raise DtypeError(where, f"{value} does not fit {dtype.name}", legal=f"{low}..{high}")
        return whole
    if is_floating(dtype) and whole is not None and abs(whole) >= 2**1024:
        raise DtypeError(where, f"an integer of {whole.bit_length()} bits does not fit {dtype.name}", legal="a float")
    with np.errstate(all="ignore"):
        found: bool | int | float = np.asarray(value).astype(dtype).item()
    return found


_PLAIN = np.dtype(np.float32), np.dtype(np.float64)


def _is_moderate(value: Any) -> bool:
    """Whether a Python number is one that FP32 rounds once, without a warning."""
    if type(value) is float:
        return not value or 1e-30 < abs(value) < 1e30
    return type(value) is int and abs(value) <= 1 << 24


@lru_cache
def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
