"""Quantised tensors: integers with a scale and a zero point."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.arithmetic import element_type, saturated
from tileweave.frontends.onnx.networks import window_of
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.frontends.values import constant, tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import is_narrow
from tileweave.graph.nn.quantized import as_numbers, bytes_product


def _spread(node: OnnxNode, value: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point of one value, of one per index of an axis, or of one per block, to the shape of x."""
    rank = len(x.shape)
    if block:
        return g.take(value, np.arange(x.shape[axis]) // block, axis)
    if len(value.shape) == 1 and rank:
        if value.shape[0] == 1:
            return g.reshape(value, (1,) * rank)
        return g.reshape(value, (1,) * axis + (value.shape[0],) + (1,) * (rank - axis - 1))
    return value


@operator("QuantizeLinear")
def quantize(node: OnnxNode) -> Tensor:
    """round(x / scale) + zero point, kept within the type; halves are rounded to even."""
    x, scale = node.tensor(0), node.tensor(1)
    axis = node.get("axis", 1)
    axis = axis % len(x.shape) if x.shape else 0
    block = node.get("block_size", 0)
    if node.has(2):
        dtype = node.tensor(2).dtype
    else:
        dtype = element_type(node, node.get("output_dtype")) if node.get("output_dtype") else np.dtype(np.uint8)
    if dtype.kind not in "iu" and not is_narrow(dtype):
        raise node.refuse(f"quantisation to {dtype.name}", legal="int8, uint8, int16, uint16, floats of 8 bits")
    wide = np.dtype(np.float32 if x.dtype.itemsize <= 4 else np.float64)
    value = g.divide(g.cast(x, wide), g.cast(_spread(node, scale, x, axis, block), wide))
    if is_narrow(dtype):
        return saturated(value, dtype) if node.get("saturate", 1) else g.cast(value, dtype)
    rounded = g.round(value)
    if node.has(2):
        rounded = g.add(rounded, _spread(node, _held(node, 2, wide), x, axis, block))
    return saturated(rounded, dtype)


@operator("DequantizeLinear")
def dequantize(node: OnnxNode) -> Tensor:
    """(x - zero point) scale."""
    x, scale = node.tensor(0), node.tensor(1)
    if x.dtype.kind not in "iu" and not is_narrow(x.dtype):
        legal = "int8, uint8, int16, uint16, int32, floats of 8 bits"
        raise node.refuse(f"elements of type {x.dtype.name}", legal=legal)
    axis = node.get("axis", 1)
    axis = axis % len(x.shape) if x.shape else 0
    block = node.get("block_size", 0)
    out = element_type(node, node.get("output_dtype")) if node.get("output_dtype") else scale.dtype
    wide = np.dtype(np.float32) if scale.dtype.itemsize <= 4 else scale.dtype
    near = is_narrow(x.dtype) or x.dtype.itemsize < 4  # whose differences a float holds
    held = wide if near else np.dtype(np.int32)

    zero = _spread(node, _held(node, 2, held), x, axis, block) if node.has(2) else None
    if near:
        value = as_numbers(x, held, zero)
    else:
        value = g.cast(x, held) if zero is None else g.subtract(g.cast(x, held), zero)
    return g.cast(g.multiply(g.cast(value, wide), g.cast(_spread(node, scale, x, axis, block), wide)), out)


def _held(node: OnnxNode, index: int, dtype: np.dtype[Any]) -> Tensor:
    """An input in another type; one that is known is converted now, and one number is a number."""
    value = node.inputs[index]
    if isinstance(value, np.ndarray) and value.size == 1:
        return g.full((), value.astype(dtype).item(), dtype)
    if isinstance(value, np.ndarray):
        return tensor(constant(value.astype(dtype)), node.where)
    found = node.tensor(index)
    return as_numbers(found, dtype) if dtype.kind == "f" else g.cast(found, dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(node: OnnxNode) -> tuple[Tensor, ...]:
    """uint8 by the range of the data, zero included."""
    x = node.tensor(0)
    zero = g.full((), 0.0, x.dtype)
    low, high = g.minimum(g.min(x), zero), g.maximum(g.max(x), zero)
    scale = g.divide(g.subtract(high, low), g.full((), 255.0, x.dtype))
    safe = g.where(g.equal(scale, zero), g.full((), 1.0, x.dtype), scale)
    point = saturated(g.round(g.divide(g.subtract(zero, low), safe)), np.dtype(np.uint8))
    value = g.add(g.round(g.divide(x, safe)), as_numbers(point, x.dtype))
    return saturated(value, np.dtype(np.uint8)), scale, point


def _zero(node: OnnxNode, index: int) -> Any:
    """What stands for 0; 0 where that is left out."""
    return node.tensor(index) if node.has(index) else 0


@operator("MatMulInteger")
def matmul_integer(node: OnnxNode) -> Tensor:
    """A product in int32 of integers less their zero points."""
    return integer_product(node, node.tensor(0), 1, (_zero(node, 2), 3))


def integer_product(node: OnnxNode, x: Tensor, y: int, zeros: tuple[Any, int]) -> Tensor:
    """A product in int32 of integers less their zero points; y, and what stands for zero in it, are places of inputs.

    A known y is taken as signed bytes, less its zero point, where it fits.
    """
    x_zero, place = zeros
    own, zero = node.inputs[y], node.inputs[place] if node.has(place) else np.zeros((), np.int8)
    if isinstance(own, np.ndarray) and isinstance(zero, np.ndarray) and own.size and own.itemsize == 1:
        less = own.astype(np.int16) - zero.astype(np.int16)
        fits = less.shape == own.shape and max(-1 - less.min(), less.max()) <= 127
        if fits and own.ndim > 1 and len(x.shape) > 1 and x.dtype in (np.int8, np.uint8):
            sums = less.sum(-2, dtype=np.int32, keepdims=True)
            held = [tensor(constant(value), node.where) for value in (less.astype(np.int8), sums)]
            return bytes_product(x, held[0], x_zero, held[1])
    return g.matmul_integer(x, node.tensor(y), x_zero, _zero(node, place))


@operator("ConvInteger")
def conv_integer(node: OnnxNode) -> Tensor:
    """A convolution in int32 of integers less their zero points."""
    return _conv(node, (0, 1, 2, 3))


_EXACT = 1 << 24
"""Integers up to here, and sums whose parts all stay within, are exact in float32."""
_LARGEST = 255
"""Of an 8-bit integer less one of its type."""


def _conv(node: OnnxNode, places: tuple[int, int, int, int]) -> Tensor:
    """A convolution in int32; places of x, the filters, and what stands for zero in each among the inputs.

    With filters that are known it is formed in float32: of as many channels at a time as keep every sum exact.
    """
    x, w, x_zero, w_zero = node.tensor(places[0]), node.tensor(places[1]), *(_zero(node, k) for k in places[2:])
    strides, dilations, pads = window_of(node, x, node.get("kernel_shape", w.shape[2:]))
    options: dict[str, Any] = {"stride": strides, "padding": pads, "dilation": dilations}
    options["groups"] = node.get("group", 1)
    known = [isinstance(node.inputs[k], np.ndarray) for k in (places[1], places[3]) if node.has(k)]
    if not all(known) or x.dtype.itemsize > 1 or not w.type.box.size:
        return g.conv_integer(x, w, x_zero, w_zero, **options)
    filters = node.known(places[1]).astype(np.float32)
    if node.has(places[3]):
        filters -= node.known(places[3]).astype(np.float32).reshape(-1, *(1,) * (filters.ndim - 1))
    parts = _exact_parts(np.abs(filters).reshape(*filters.shape[:2], -1).sum(-1))
    if len(parts) > 1 and options["groups"] > 1:
        return g.conv_integer(x, w, x_zero, w_zero, **options)
    value, channels = as_numbers(x, np.float32), x.shape[1] // filters.shape[1]
    if node.has(places[2]):
        value = g.subtract(value, _held(node, places[2], np.dtype(np.float32)))
    made = [
        g.saturate(g.conv(value[:, a * channels : b * channels], constant(filters[:, a:b]), **options), np.int32)
        for a, b in parts
    ]
    return reduce(g.add, made)


def _exact_parts(sizes: Any) -> list[tuple[int, int]]:
    """Channels in runs, each with sums that float32 holds; sizes of [filter, channel]."""
    parts, first, total = list[tuple[int, int]](), 0, np.zeros(len(sizes))
    for channel in range(sizes.shape[1]):
        more = total + sizes[:, channel]
        if channel > first and _LARGEST * more.max() > _EXACT:
            parts.append((first, channel))
            first, more = channel, sizes[:, channel]
        total = more
    return [*parts, (first, sizes.shape[1])]


def _requantized(node: OnnxNode, total: Tensor, factor: Tensor, zero: int) -> Tensor:
    scaled = g.round(g.multiply(as_numbers(total, np.float32), factor))
    return saturated(g.add(scaled, _held(node, zero, np.dtype(np.float32))), node.tensor(zero).dtype)


@operator("QLinearMatMul")
def quantized_matmul(node: OnnxNode) -> Tensor:
    """A product of quantised tensors, quantised again."""
    a, a_scale, a_zero, b_scale, y_scale = (node.tensor(k) for k in (0, 1, 2, 4, 6))
    total = integer_product(node, a, 3, (a_zero, 5))
    scales = [g.cast(scale, np.float32) for scale in (a_scale, b_scale, y_scale)]
    factor = g.divide(g.multiply(scales[0], scales[1]), scales[2])
    return _requantized(node, total, factor, 7)


@operator("QLinearConv")
def quantized_conv(node: OnnxNode) -> Tensor:
    """A convolution of quantised tensors, quantised again."""
    x_scale, w_scale, y_scale = (node.tensor(k) for k in (1, 4, 6))
    total = _conv(node, (0, 3, 2, 5))
    rank = len(total.shape)
    if node.has(8):
        total = g.add(total, g.unsqueeze(node.tensor(8), tuple(range(1, rank - 1))))
    factor = g.divide(g.multiply(x_scale, w_scale), y_scale)
    if len(factor.shape) == 1 and factor.shape[0] > 1:
        factor = g.unsqueeze(factor, tuple(range(1, rank - 1)))
    elif len(factor.shape) == 1:
        factor = g.reshape(factor, ())
    return _requantized(node, total, factor, 7)
