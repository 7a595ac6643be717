"""Element types: bool, integers and floats of NumPy, and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.errors import DtypeError


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether an element type is a floating one: NumPy's own, or bfloat16."""
    return issubclass(dtype.type, np.floating) or dtype.name == "bfloat16"


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether tensors may have an element type: bool, integers, floats, in this machine's byte order."""
    return dtype.isnative and (dtype.kind in "biuf" or dtype.name == "bfloat16")


def element_type(where: str, dtype: Any) -> np.dtype[Any]:
    """The element type that a user names: bool, an integer or a floating type, in this machine's byte order."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        import ml_dtypes  # NumPy knows the name only once this is loaded

        dtype = ml_dtypes.bfloat16
    legal = "bool, integers, float16, bfloat16, float32, float64"
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise DtypeError(where, f"{dtype!r} is not an element type", legal=legal) from None
    if kind.kind not in "biu" and not is_floating(kind):
        raise DtypeError(where, f"element type {kind} is not supported", legal=legal)
    return kind if kind.isnative else kind.newbyteorder("=")


def wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type in which sums and products of this one are kept: float32 for narrower floats, else itself."""
    return np.dtype(np.float32) if is_floating(dtype) and dtype.itemsize < 4 else dtype


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a floating type."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def stored(where: str, value: Any, dtype: np.dtype[Any]) -> bool | int | float:
    """One number as an element type holds it.

    Floats round, to infinity where they are too large; integers must hold the number.

    Raises:
        DtypeError: the integer type does not hold the number.
        TypeError: the value is not one number.
    """
    whole = int(value) if isinstance(value, (int, np.integer)) else None
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
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
