"""The rules that give a convolution, or a product, the elementwise chain behind it: bias, scale, residual, activation.

What the chain does costs nothing there: the sums are in registers, and neither written nor read again in between.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.graph.ir.dtypes import element_type, is_floating, wide_type
from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ops.grouped.chained import conv_chain, product_chain, product_of
from tileweave.graph.ops.grouped.steps import steps_behind, steps_of
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.grouping.attention import before_cast
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

MOST_STEPS, MOST_EXTRAS = 24, 8


_PRODUCTS = ("matmul", "einsum", "linear", "linear_relu", "product_chain")


def _conv_chain(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    if tensor.dtype.char not in "fd":
        return None
    return _behind(tensor, context, ("conv", "conv_chain"))


def _product_chain(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    return _behind(tensor, context, _PRODUCTS)


def _behind(tensor: Tensor, context: RewriteContext, operators: Sequence[str]) -> Tensor | None:
    """What one of the operators makes together with the elementwise operation that reads it."""
    outer: Any = tensor.producer
    if not isinstance(outer, Operation) or outer.signature is None:
        return None
    if not (outer.operator == "fused" or is_elementwise(outer.operator)):
        return None
    for place, (_, x) in enumerate(outer.inputs):
        below = x.producer
        if not isinstance(below, Operation) or below.operator not in operators or below.signature is None:
            continue
        known = dict(below.parameters)
        fits = len(below.inputs) > 1 if "equation" in known else x.type == tensor.type
        fits = fits and not known.get("summed")
        if fits and x.shape == tensor.shape and context.alone(x):
            made = _joined(outer, below, place)
            if made is not None:
                return made
    return None


def _joined(outer: Operation, below: Operation, place: int) -> Tensor | None:
    """The sums with their own chain and, behind it, the steps of `outer`, whose input `place` it is."""
    product, extras = product_of(below) if "equation" in dict(below.parameters) else (None, [])
    extras = extras if product else [x for _, x in below.inputs[2:]]
    first = steps_of(below) if below.operator in ("conv_chain", "product_chain") else ()
    second = steps_of(outer)
    numbers: list[int] = []
    for k, (_, x) in enumerate(outer.inputs):
        if k == place or x is outer.inputs[place][1]:
            numbers.append(-len(first))  # its last step, or argument 0: the sums themselves
        else:
            if x not in extras:
                extras.append(x)
            numbers.append(1 + extras.index(x))
    if len(first) + len(second) > MOST_STEPS or len(extras) > MOST_EXTRAS:
        return None
    steps = (*first, *steps_behind(len(first), second, numbers))
    return conv_chain(below, extras, steps) if product is None else product_chain(product, extras, steps)


def _summed_products(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    outer: Any = tensor.producer
    if not isinstance(outer, Operation) or outer.operator != "sum" or outer.signature is None:
        return None
    x = outer.input("x")
    below = x.producer
    if not isinstance(below, Operation) or below.operator != "product_chain" or below.parameter("summed"):
        return None
    if x.shape != below.outputs[0][1].shape or not context.alone(x):
        return None
    if not x.dtype == tensor.dtype == wide_type(tensor.dtype) or not is_floating(tensor.dtype):
        return None
    product, extras = product_of(below)
    inputs, out = product.letters
    summed = "".join(out[k] for k in outer.parameter("axes"))
    if len(product.operands) > 2 or not all(x.dtype.itemsize == 1 for _, x in product.operands):
        return None  # wider factors take their scales before the product
    if not all(c in inputs[0] and c in inputs[1] for c in summed):
        return None  # what is free in an operand could as well be summed before the product
    return product_chain(product, extras, below.parameter("program"), summed)


def _narrow_factors(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    product: Any = tensor.producer
    if not isinstance(product, Operation) or product.operator not in _PRODUCTS or tensor.dtype != np.float32:
        return None
    if len(product.inputs) < 2:
        return None
    (first, x), (second, y) = product.inputs[:2]
    for name in ("float8_e4m3fn", "float8_e5m2"):
        kind = element_type("narrow factors", name)
        a, b = before_cast(x, kind), before_cast(y, kind)
        if a is not None and b is not None:
            return Tensor(replace(product, inputs=((first, a), (second, b), *product.inputs[2:])))
    return None


CONV_CHAIN = RewriteRule(
    "conv-chain", "what is elementwise behind a convolution computes each of its sums alone", _conv_chain
)

PRODUCT_CHAIN = RewriteRule(
    "product-chain", "what is elementwise behind a product computes each of its sums alone", _product_chain
)
NARROW_FACTORS = RewriteRule(
    "narrow-factors", "factors cast from 8 bits to FP32 are multiplied as they are, in FP32", _narrow_factors
)
SUMMED_PRODUCTS = RewriteRule(
    "summed-products", "products of blocks that a chain scales are added as they are made", _summed_products
)
ON_DEVICES = (NARROW_FACTORS, PRODUCT_CHAIN, SUMMED_PRODUCTS)
"""For what a device has kernels for."""
