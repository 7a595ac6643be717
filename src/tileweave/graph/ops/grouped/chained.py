"""A convolution, or a product, and the elementwise chain behind it as one operation: bias, scale, residual, activation.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import element_type, wide_type
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.elementwise import input_names
from tileweave.graph.ops.fused import fused_block
from tileweave.graph.ops.grouped.steps import Step
from tileweave.graph.ops.operators import (
    OPERATORS,
    Array,
    Arrays,
    Operator,
    is_elementwise,
    made,
    program_costs,
    register,
)
from tileweave.graph.ops.windows import conv_projections, spatial_names
from tileweave.space import AffineMap, Projection

CONV = ("stride", "dilation", "filters", "channels", "groups")
"""The parameters that it has of a convolution."""


def conv_chain(conv: Operation, extras: Sequence[Tensor], program: Sequence[Step]) -> Tensor:
    """What a chain makes of a convolution's sums.

    The channels are summed whole: partial sums could not pass through the chain.

    Args:
        conv: the convolution.
        extras: what else the chain reads; they broadcast to the convolution's shape.
        program: steps (elementwise operator, arguments, element type of the result); argument 0 is the convolution,
            ``k > 0`` the extra k - 1, ``-1 - k`` the result of step k. The last step is the result.

    Raises:
        GraphError: there is no such operator or argument, or an extra does not broadcast.
    """
    shape = conv.outputs[0][1].shape
    _check("conv_chain(conv, extras, program)", shape, extras, program)
    x, w = conv.input("x"), conv.input("w")
    stride, dilation, each, groups = (conv.parameter(k) for k in ("stride", "dilation", "filters", "groups"))
    size = each if groups > 1 else 1
    read, filters, makes = conv_projections(w.shape, stride, dilation, groups)
    names = input_names(len(extras) + 1)[1:]
    reads = [_extra(extra.shape, shape, size) for extra in extras]
    return made(
        "conv_chain",
        (shape[0], groups if groups > 1 else shape[1], *shape[2:]),
        [("x", x, read), ("w", w, filters), *zip(names, extras, reads, strict=True)],
        (TensorType(shape, np.dtype(program[-1][2])), makes),
        *((name, conv.parameter(name)) for name in CONV),
        ("program", tuple(program)),
        dims=("batch", "group" if groups > 1 else "filter", *spatial_names(len(stride))),
        costs=program_costs(((step, size) for step, _, _ in program), 2.0 * prod(w.shape[1:]) * size),
    )


class ChainedProduct(NamedTuple):
    """A product of two tensors: a matmul, an einsum, or a linear, whose third operand is its bias."""

    operator: str
    operands: tuple[tuple[str, Tensor], ...]
    equation: str
    dtype: np.dtype[Any]

    @property
    def letters(self) -> tuple[list[str], str]:
        """Of each operand and of the result."""
        terms, out = self.equation.split("->")
        return [*terms.split(","), out[-1:]][: len(self.operands)], out

    @property
    def extents(self) -> dict[str, int]:
        """Letter -> extent."""
        owns = zip(self.letters[0], self.operands, strict=True)
        return {c: n for own, (_, x) in owns for c, n in zip(own, x.shape, strict=True)}


def product_of(operation: Operation) -> tuple[ChainedProduct, list[Tensor]]:
    """The product that an operation is, or that a chain stands behind, and what else the chain reads."""
    known: dict[str, Any] = dict(operation.parameters)
    operands = tuple(pair for pair in operation.inputs if not pair[0].startswith(_EXTRA))
    kind = element_type("product_of(operation)", known["sums"]) if "sums" in known else operation.outputs[0][1].dtype
    product = ChainedProduct(known.get("of", operation.operator), operands, known["equation"], kind)
    return product, [x for _, x in operation.inputs[len(operands) :]]


_EXTRA = "extra"


def product_chain(
    product: ChainedProduct, extras: Sequence[Tensor], program: Sequence[Step], summed: str = ""
) -> Tensor:
    """What a chain makes of a product, each element of which is as the product alone gives it.

    The terms are summed whole: partial sums could not pass through the chain. Products of blocks, each with scales of
    its own, are added behind the chain.

    Args:
        product: what the chain stands behind.
        extras: what else the chain reads; they broadcast to the product's shape.
        program: steps as of `conv_chain`; argument 0 is the product.
        summed: letters of the product that what the chain makes is added up along.

    Raises:
        GraphError: there is no such operator or argument, or an extra does not broadcast.
    """
    letters, whole = product.letters
    extents = product.extents
    _check("product_chain(product, extras, program)", [extents[c] for c in whole], extras, program)
    out = "".join(c for c in whole if c not in summed)
    shape = tuple(extents[c] for c in out)

    def read(own: str, sizes: Sequence[int]) -> Projection:
        moves = [c in out and n > 1 for c, n in zip(own, sizes, strict=True)]
        at = [out.index(c) if m else None for c, m in zip(own, moves, strict=True)]
        return Projection.select(at, len(out), [1 if m else n for n, m in zip(sizes, moves, strict=True)])

    reads = [read(own, [extents[c] for c in own]) for own in letters]
    reads += [read(whole[len(whole) - len(x.shape) :], x.shape) for x in extras]
    names = (*(name for name, _ in product.operands), *(f"{_EXTRA}{k}" for k in range(len(extras))))
    tensors = (*(x for _, x in product.operands), *extras)
    return made(
        "product_chain",
        shape,
        list(zip(names, tensors, reads, strict=True)),
        (TensorType(shape, np.dtype(program[-1][2])), Projection.select(range(len(shape)), len(shape))),
        ("of", product.operator),
        ("sums", product.dtype.name),
        ("equation", product.equation),
        ("program", tuple(program)),
        ("summed", summed),
        costs=program_costs(
            ((step, prod(extents[c] for c in summed)) for step, _, _ in program),
            2.0 * prod(n for c, n in extents.items() if c not in out) + bool(summed) * prod(extents[c] for c in summed),
        ),
    )


def _check(where: str, shape: Sequence[int], extras: Sequence[Tensor], program: Sequence[Step]) -> None:
    for k, (name, args, _) in enumerate(program):
        if not is_elementwise(name) or not all(-k <= a <= len(extras) for a in args):
            raise GraphError(where, f"step {k} is {name}{args}", legal="elementwise operators")
    for extra in extras:
        first = len(shape) - len(extra.shape)
        if first < 0 or any(n not in (1, shape[first + k]) for k, n in enumerate(extra.shape)):
            raise GraphError(where, f"{extra.type} does not broadcast to {shape}", legal="extents equal, or 1")


def _extra(own: Sequence[int], shape: Sequence[int], size: int) -> Projection:
    """What an index reads of an input that broadcasts; an index has `size` filters."""
    first = len(shape) - len(own)
    return _moving(tuple([n if n != m or m == 1 else 0 for n, m in zip(own, shape[first:], strict=True)]), first, size)


@lru_cache(maxsize=1024)
def _moving(whole: tuple[int, ...], first: int, size: int) -> Projection:
    """`_extra` of an input whose dimensions begin at a place of the index: what is read of each; 0: it moves."""
    rank = first + len(whole)
    rows, region = [], []
    for k, n in enumerate(whole):
        step = size if first + k == 1 else 1
        rows.append(tuple(step if not n and column == first + k else 0 for column in range(rank)))
        region.append(n or step)
    return Projection(AffineMap(tuple(rows), (0,) * len(rows), rank), tuple(region))


def _block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    arrays = dict(inputs)
    conv = replace(operation, operator="conv")
    sums = OPERATORS["conv"].block(conv, {"x": arrays.pop("x"), "w": arrays.pop("w")})["out"]
    out = fused_block(operation, {"x0": sums, **arrays})["out"]
    return {"out": np.asarray(np.broadcast_to(out, sums.shape))}


def _product_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    product, extras = product_of(operation)
    letters, made = product.letters[1], operation.outputs[0][1]
    alone = replace(
        operation,
        operator=product.operator,
        inputs=product.operands,
        outputs=(("out", TensorType(tuple(product.extents[c] for c in letters), product.dtype)),),
        signature=None,
    )
    arrays = dict(inputs)
    sums = OPERATORS[product.operator].block(alone, {name: arrays.pop(name) for name, _ in product.operands})["out"]
    given = dict(zip(input_names(len(extras) + 1), [sums, *arrays.values()], strict=True))
    chain = replace(operation, outputs=(("out", TensorType(sums.shape, made.dtype)),), signature=None)
    done = fused_block(chain, given)["out"]
    axes = tuple(letters.index(c) for c in operation.parameter("summed"))
    if axes:
        done = np.add.reduce(done, axis=axes, dtype=wide_type(made.dtype)).astype(made.dtype)
    return {"out": np.asarray(done)}


register(Operator("conv_chain", _block))
register(Operator("product_chain", _product_block))
