"""Numbers as small integers: quantize, dequantize, and products of such integers in int32."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.errors import DtypeError
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ir.select import unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, cast, divide, multiply, saturate, subtract
from tileweave.graph.ops.functions import clip, rint, trunc
from tileweave.graph.ops.reductions import floating
from tileweave.graph.ops.reductions import sum as sum_
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
    steps = rint(divide(x, cast(_along(scale, x, axis), x.dtype)))
    point = float(zero) if type(zero) is int else cast(_along(zero, x, axis), x.dtype)
    out: Tensor = saturate(add(steps, point), kind)
    return out


def as_numbers(x: Tensor, dtype: Any, zero: Tensor | float | None = None) -> Tensor:
    """Integers in a floating type, as a cast makes them, less what stands for zero where that is given.

    Those that `saturate` made of such floats come from the floats, so that both are one chain; there NaN stays NaN, and
    where both name the same zero, it is left out, so that zero may be -0.
    """
    made, dtype = x.producer, np.dtype(dtype)
    if not isinstance(made, Operation) or made.operator != "saturate" or made.input("x").dtype != dtype:
        value = cast(x, dtype)
    else:
        value, limits = made.input("x"), np.iinfo(x.dtype)
        low, high, less = float(limits.min), float(limits.max), _known(zero)
        steps = value.producer
        if less is not None and x.dtype.itemsize <= 2 and isinstance(steps, Operation) and steps.operator == "add":
            if _known(steps.input("x1")) == less and steps.input("x0").shape == value.shape:
                value, low, high, zero = steps.input("x0"), low - less, high - less, None
        value = clip(value if _whole(value) else trunc(value), low, high)
    return value if zero is None else subtract(value, zero)


def _known(value: Tensor | float | None) -> float | None:
    """The whole number that a value is; None where it is not known, or another."""
    if isinstance(value, Tensor):
        made = value.producer
        value = made.parameter("value") if isinstance(made, Selector) and made.kind == "full" else None
    return float(value) if isinstance(value, (int, float)) and float(value).is_integer() else None


def _whole(value: Tensor) -> bool:
    """Whether floats are whole numbers, infinite or NaN, by what makes them."""
    made = value.producer
    if not isinstance(made, Operation):
        return _known(value) is not None
    if made.operator == "add":
        return all(_whole(x) for _, x in made.inputs)
    return made.operator in ("rint", "trunc", "floor", "ceil")


@public()
def dequantize(x: Any, scale: Any, zero: Any = 0, axis: int | None = None) -> Tensor:
    """``(x - zero) * scale`` in the type of the scale; else as `quantize`."""
    x = as_tensor(x, "dequantize(x, scale, zero)")
    scale = _along(scale, x, axis)
    if x.dtype.itemsize <= 2 and scale.dtype == np.float32:  # whose differences float32 holds
        less = float(zero) if type(zero) is int else as_numbers(_along(zero, x, axis), scale.dtype)
        return multiply(as_numbers(x, scale.dtype, less), scale)
    point = _along(zero, x, axis)
    return multiply(cast(subtract(cast(x, np.int32), cast(point, np.int32)), scale.dtype), scale)


def _signed(x: Any, zero: Any, dtype: Any, axis: int | None = None) -> Tensor:
    """Integers less what stands for zero, in a type that holds the differences."""
    x = as_tensor(x)
    if x.dtype.kind not in "iu":
        raise DtypeError("matmul_integer(x, y)", f"element type {x.dtype.name}", legal="int8, uint8, ..")
    if isinstance(x.producer, Operation) and x.producer.operator == "saturate" and x.dtype.itemsize == 1:
        return saturate(subtract(as_numbers(x, np.float32), as_numbers(_along(zero, x, axis), np.float32)), dtype)
    wide = cast(x, dtype)
    given = None if zero is None or (isinstance(zero, int) and zero == 0) else _along(zero, x, axis)
    return wide if given is None else subtract(wide, cast(given, dtype))


def bytes_product(x: Tensor, y: Tensor, zero: Any, sums: Tensor) -> Tensor:
    """``(x - zero) @ y`` as a product of signed bytes and what a shift of x adds: the shift times the sums of y.

    Args:
        x: int8 or uint8 [.., m, k].
        y: int8 [.., k, n].
        zero: what stands for 0 in x: one number, or one per row.
        sums: of the columns of y, in int32 [.., 1, n].
    """
    shift = 128 if x.dtype == np.uint8 else 0
    if shift:
        x = saturate(subtract(as_numbers(x, np.float32), float(shift)), np.int8)
    out = matmul(x, y, dtype=np.int32)
    if isinstance(zero, int) and zero == shift:
        return out
    by = saturate(subtract(float(shift), as_numbers(_along(zero, x, -2), np.float32)), np.int32)
    return add(out, multiply(by, sums))


@public()
def matmul_integer(x: Any, y: Any, x_zero: Any = 0, y_zero: Any = 0) -> Tensor:
    """``(x - x_zero) @ (y - y_zero)`` of small integers, exact in int32; zeros per row of x, or per column of y."""
    x, y = as_tensor(x), as_tensor(y)
    if x.dtype in (np.int8, np.uint8) and y.dtype == np.int8 and type(y_zero) is int and y_zero == 0:
        if len(x.shape) > 1 and len(y.shape) > 1:
            return bytes_product(x, y, x_zero, sum_(cast(y, np.int32), -2, keepdims=True, dtype=np.int32))
    kind = np.int16 if x.dtype.itemsize == y.dtype.itemsize == 1 else np.int32
    return matmul(_signed(x, x_zero, kind, -2), _signed(y, y_zero, kind, -1), dtype=np.int32)


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
    return conv(_signed(x, x_zero, np.int32), _signed(w, w_zero, np.int32, 0), **options)
