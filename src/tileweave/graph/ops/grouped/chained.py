"""A convolution and the elementwise chain behind it as one operation: bias, scale, residual and activation.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.elementwise import fused_block, input_names
from tileweave.graph.ops.operators import OPERATORS, Array, Arrays, Operator, is_elementwise, made, register
from tileweave.graph.ops.windows import conv_projections, spatial_names
from tileweave.space import AffineMap, Projection

Step = tuple[str, tuple[int, ...], str]
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
    where = "conv_chain(conv, extras, program)"
    for k, (name, args, _) in enumerate(program):
        if not is_elementwise(name) or not all(-k <= a <= len(extras) for a in args):
            raise GraphError(where, f"step {k} is {name}{args}", legal="elementwise operators")
    shape = conv.outputs[0][1].shape
    for extra in extras:
        first = len(shape) - len(extra.shape)
        if first < 0 or any(n not in (1, shape[first + k]) for k, n in enumerate(extra.shape)):
            raise GraphError(where, f"{extra.type} does not broadcast to {shape}", legal="extents equal, or 1")
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
        costs=(("flops", 2.0 * prod(w.shape[1:]) * size + len(program) * size),),
    )


def _extra(own: Sequence[int], shape: Sequence[int], size: int) -> Projection:
    """What an index reads of an input that broadcasts; an index has `size` filters."""
    first, rank = len(shape) - len(own), len(shape)
    rows, region = [], []
    for k, n in enumerate(own):
        moves = n == shape[first + k] != 1
        step = size if first + k == 1 else 1
        rows.append(tuple(step if moves and column == first + k else 0 for column in range(rank)))
        region.append(step if moves else n)
    return Projection(AffineMap(tuple(rows), (0,) * len(rows), rank), tuple(region))


def _block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    arrays = dict(inputs)
    conv = replace(operation, operator="conv")
    sums = OPERATORS["conv"].block(conv, {"x": arrays.pop("x"), "w": arrays.pop("w")})["out"]
    out = fused_block(operation, {"x0": sums, **arrays})["out"]
    return {"out": np.asarray(np.broadcast_to(out, sums.shape))}


register(Operator("conv_chain", _block))
