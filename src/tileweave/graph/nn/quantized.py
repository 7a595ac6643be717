"""Numbers as small integers: quantize, dequantize, and products of such integers in int32."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.errors import DtypeError
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, cast, divide, multiply, subtract
from tileweave.graph.ops.functions import clip, rint
from tileweave.graph.ops.reductions import floating
from tileweave.graph.ops.windows import Padding, Sizes, conv


def _along(value: Any, x: Tensor, axis: int | None) -> Tensor:
    """One value for all elements, or one for each along a dimension."""
    given = as_tensor(value)
    if axis is None or len(given.shape) != 1:
        return given
    return unsqueeze(given, tuple(range(1, len(x.shape) - axis % len(x.shape))))


@public()
def quantize(x: Any, scale: Any, zero: Any = 0, dtype: Any = np.uint8, axis: int | None = None) -> Tensor:
    """``round(x / scale) + zero`` in an integer type, which clips it; of two nearest integers the even one.

    Args:
        x: floating.
        scale: one number, or one per element of the dimension `axis`.
        zero: what stands for 0, likewise.
        dtype: int8, uint8, int16, ..
        axis: the dimension that scale and zero stand along.
    """
    where = "quantize(x, scale, zero)"
    x, kind = floating(where, x), element_type(where, dtype)
    if kind.kind not in "iu":
        raise DtypeError(where, f"element type {kind.name}", inputs={"x": x.type}, legal="int8, uint8, ..")
    limits = np.iinfo(kind)
    steps = rint(divide(x, cast(_along(scale, x, axis), x.dtype)))
    return cast(clip(add(steps, cast(_along(zero, x, axis), x.dtype)), float(limits.min), float(limits.max)), kind)


@public()
def dequantize(x: Any, scale: Any, zero: Any = 0, axis: int | None = None) -> Tensor:
    """``(x - zero) * scale`` in the type of the scale; else as `quantize`."""
    x = as_tensor(x, "dequantize(x, scale, zero)")
    scale = _along(scale, x, axis)
    wide = subtract(cast(x, np.int32), cast(_along(zero, x, axis), np.int32))
    return multiply(cast(wide, scale.dtype), scale)


def _signed(x: Any, zero: Any, axis: int | None = None) -> Tensor:
    x = as_tensor(x)
    if x.dtype.kind not in "iu":
        raise DtypeError("matmul_integer(x, y)", f"element type {x.dtype.name}", legal="int8, uint8, ..")
    wide = cast(x, np.int32)
    given = None if zero is None or (isinstance(zero, int) and zero == 0) else _along(zero, x, axis)
    return wide if given is None else subtract(wide, cast(given, np.int32))


@public()
def matmul_integer(x: Any, y: Any, x_zero: Any = 0, y_zero: Any = 0) -> Tensor:
    """``(x - x_zero) @ (y - y_zero)`` of small integers, exact in int32; zeros per row of x, or per column of y."""
    return matmul(_signed(x, x_zero, -2), _signed(y, y_zero, -1))


@public()
def conv_integer(
    x: Any,
    w: Any,
    x_zero: Any = 0,
    w_zero: Any = 0,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of small integers less their zeros, exact in int32; padding stands for zero; zeros of w per filter."""
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return conv(_signed(x, x_zero), _signed(w, w_zero, 0), **options)
