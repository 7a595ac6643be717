"""Element types by their PTX names: bits, kind, and the NumPy type that holds one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tileweave.errors import DtypeError

Kind = Literal["float", "signed", "unsigned", "pred", "opaque"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type: its bits in memory, its kind, and the NumPy type of one element."""

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Bytes of one element in a buffer of the interpreter; types below a byte take one."""
        return max(1, self.bits // 8)


def _table() -> dict[str, Dtype]:
    rows: list[tuple[str, int, Kind, Any]] = [
        ("f64", 64, "float", np.float64),
        ("f32", 32, "float", np.float32),
        ("tf32", 32, "float", np.float32),
        ("f16", 16, "float", np.float16),
        ("bf16", 16, "float", ml_dtypes.bfloat16),
        ("e4m3", 8, "float", ml_dtypes.float8_e4m3fn),
        ("e5m2", 8, "float", ml_dtypes.float8_e5m2),
        ("e8m0", 8, "float", ml_dtypes.float8_e8m0fnu),
        ("s64", 64, "signed", np.int64),
        ("s32", 32, "signed", np.int32),
        ("s16", 16, "signed", np.int16),
        ("s8", 8, "signed", np.int8),
        ("s4", 4, "signed", np.int8),
        ("u64", 64, "unsigned", np.uint64),
        ("u32", 32, "unsigned", np.uint32),
        ("u16", 16, "unsigned", np.uint16),
        ("u8", 8, "unsigned", np.uint8),
        ("u4", 4, "unsigned", np.uint8),
        ("pred", 8, "pred", np.bool_),
        ("mbarrier", 64, "opaque", np.uint64),
    ]
    return {name: Dtype(name, bits, kind, np.dtype(kept)) for name, bits, kind, kept in rows}


DTYPES = _table()
"""Every element type, by name."""


def dtype_of(value: object, where: str = "dtype_of(value)") -> Dtype:
    """The element type of a name, of a `Dtype` or of anything that NumPy reads as a type.

    Raises:
        DtypeError: no element type of kernels.

    Example:
        >>> dtype_of(np.float16).name, dtype_of("bf16").bits
        ('f16', 16)
    """
    if isinstance(value, Dtype):
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    found = _by_numpy().get(_numpy_name(value))
    if found is None:
        raise DtypeError(where, f"{value!r} is no element type", legal=" | ".join(DTYPES))
    return found


def _numpy_name(value: Any) -> str:
    try:
        return str(np.dtype(value).name)
    except TypeError:
        return ""


@cache
def _by_numpy() -> dict[str, Dtype]:
    found: dict[str, Dtype] = {}
    for one in DTYPES.values():
        if one.kind != "opaque":
            found.setdefault(one.numpy.name, one)
    return found


def promote(a: Dtype, b: Dtype, where: str = "promote(a, b)") -> Dtype:
    """The type in which an elementwise operator computes on elements of two types.

    Floats of fewer than 32 bits compute in f32; a float and an integer in the float; two integers in the wider, in the
    signed one at equal width.

    Raises:
        DtypeError: a predicate meets a number.

    Example:
        >>> promote(DTYPES["f16"], DTYPES["s32"]).name
        'f32'
    """
    if (a.kind == "pred") != (b.kind == "pred") or "opaque" in (a.kind, b.kind):
        raise DtypeError(where, f"{a.name} and {b.name} have no common type", legal="two numbers, or two predicates")
    if "float" in (a.kind, b.kind):
        return DTYPES["f64"] if DTYPES["f64"] in (a, b) else DTYPES["f32"]
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, other = (a, b) if a.kind == "signed" else (b, a)
    return signed if signed.bits >= other.bits else other
