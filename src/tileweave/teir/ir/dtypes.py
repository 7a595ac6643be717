"""The element types of TEIR: their names, their widths in bytes, and NumPy's types for them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tileweave.errors import DtypeError

DTYPES: dict[str, tuple[int, str]] = {
    "FP64": (8, "float64"),
    "FP32": (4, "float32"),
    "BF16": (2, "bfloat16"),
    "FP16": (2, "float16"),
    "INT64": (8, "int64"),
    "INT32": (4, "int32"),
    "INT16": (2, "int16"),
    "INT8": (1, "int8"),
    "UINT64": (8, "uint64"),
    "UINT32": (4, "uint32"),
    "UINT16": (2, "uint16"),
    "UINT8": (1, "uint8"),
}
"""Name -> (width in bytes, the name of NumPy's type, or of ml_dtypes' for BF16)."""
FACTORS: dict[str, tuple[int, str]] = {"FP8E4M3": (1, "float8_e4m3fn"), "FP8E5M2": (1, "float8_e5m2")}
"""The same of types that only factors of a contraction may have, whose sums are formed in FP32."""


def _known(where: str, name: str) -> tuple[int, str]:
    try:
        return DTYPES.get(name) or FACTORS[name]
    except (KeyError, TypeError):
        raise DtypeError(where, f"{name!r} is not an element type of TEIR", legal=", ".join(DTYPES)) from None


def width_bytes(name: str) -> int:
    """The bytes that one element takes.

    Example:
        >>> width_bytes("BF16")
        2
    """
    return _known("width_bytes(name)", name)[0]


def is_float(name: str) -> bool:
    """Whether a type holds floating-point numbers."""
    return not _known("is_float(name)", name)[1].startswith(("int", "uint"))


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's type of this name; those of BF16 and of 8 bits are from ``ml_dtypes``.

    Raises:
        DtypeError: the name is not one of `DTYPES`.

    Example:
        >>> numpy_dtype("FP32")
        dtype('float32')
    """
    spelled = _known("numpy_dtype(name)", name)[1]
    if spelled == "bfloat16" or name in FACTORS:
        import ml_dtypes

        narrow: np.dtype = np.dtype(getattr(ml_dtypes, spelled))
        return narrow
    return np.dtype(spelled)


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype) -> str:
    """The name of a NumPy type; the inverse of `numpy_dtype`.

    Raises:
        DtypeError: TEIR has no such type, or the bytes are not in the machine's own order.

    Example:
        >>> import numpy as np
        >>> dtype_name(np.dtype("int8"))
        'INT8'
    """
    dtype = np.dtype(dtype)
    if dtype.isnative:
        for name, (_, spelled) in (DTYPES | FACTORS).items():
            if dtype.name == spelled:
                return name
    raise DtypeError(
        "dtype_name(dtype)", f"{dtype} is not an element type of TEIR", legal=", ".join(s for _, s in DTYPES.values())
    )


def accumulator(name: str) -> str:
    """The type in which sums of this type are kept: FP32 for floats of 16 and 8 bits, itself otherwise.

    Integers wrap, so a narrow integer sum is the same in whichever order and width it is formed.
    """
    return "FP32" if name in ("BF16", "FP16", *FACTORS) else name


def contraction_dtype(*names: str) -> str:
    """The type in which a contraction of these operands accumulates, inputs and output alike.

    The widest of the operands, and FP32 at least for floating point. Integers and floating point do not mix.

    Raises:
        DtypeError: some are integers and some are not.

    Example:
        >>> contraction_dtype("BF16", "BF16", "BF16")
        'FP32'
    """
    if len({is_float(name) for name in names}) > 1:
        raise DtypeError(
            "contraction_dtype(..)",
            f"{', '.join(names)} mix integers and floating point",
            legal="convert the operands to one kind first",
        )
    return max(map(accumulator, names), key=width_bytes)
