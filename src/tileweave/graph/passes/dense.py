"""Strided convolutions in dense parts: the document's second way, as rules.

A window with gaps meets every d-th element, a window that moves by s starts at every s-th. Sorted by remainder, the
elements that meet are neighbours: strided slices of the input feed convolutions without gaps and steps, whose results
are interleaved (gaps) or added (steps). Neighbouring blocks then share all of what they read.

Source: Tapestry, "Sparse Strided Convolution Operators".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import gcd

from tileweave.graph.ir.assemble import interleave
from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ir.select import concat, getitem
from tileweave.graph.ops.elementwise import add
from tileweave.graph.ops.windows import conv
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule


def _convolution(tensor: Tensor) -> Operation | None:
    producer = tensor.producer
    if isinstance(producer, Operation) and producer.operator == "conv" and producer.signature is not None:
        return producer
    return None


def _every(x: Tensor, axis: int, first: int, step: int, count: int) -> Tensor:
    """So many elements of an axis, `step` apart."""
    return getitem(x, (*(slice(None),) * axis, slice(first, first + step * (count - 1) + 1, step)))


def _again(operation: Operation, x: Tensor, w: Tensor, stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The convolution of other operands with the same groups; a block of groups has fewer than the whole."""
    groups = x.shape[1] // w.shape[1]
    return conv(x, w, stride=stride, dilation=dilation, groups=groups)


def _put(values: Sequence[int], k: int, value: int) -> tuple[int, ...]:
    return tuple(value if j == k else v for j, v in enumerate(values))


def _gaps_interleaved(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    """``y[d * i + p]`` is the dense convolution of ``x[p::d]`` at i."""
    operation = _convolution(tensor)
    if operation is None:
        return None
    x, w = operation.input("x"), operation.input("w")
    stride, dilation = operation.parameter("stride"), operation.parameter("dilation")
    for k, (s, d) in enumerate(zip(stride, dilation, strict=True)):
        axis, window = k + 2, w.shape[k + 2]
        if s != 1 or d == 1 or window == 1:
            continue
        out, dense = tensor.shape[axis], _put(dilation, k, 1)
        parts = []
        for phase in range(min(d, out)):
            count = -(-(out - phase) // d)
            part = _every(x, axis, phase, d, count + window - 1)
            parts.append(_again(operation, part, w, stride, dense))
        even = out // d  # so many turns are complete; the first phases may have one element more
        turns = [_every(part, axis, 0, 1, even) for part in parts] if even else []
        rest = [_every(part, axis, even, 1, 1) for part in parts[: out - even * d]]
        return concat([*([interleave(turns, axis)] if turns else []), *rest], axis)
    return None


def _steps_added(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    """The sum over remainders p of the window's points: ``w[p::s]`` meets ``x[d * p::s]``, without steps."""
    operation = _convolution(tensor)
    if operation is None:
        return None
    x, w = operation.input("x"), operation.input("w")
    stride, dilation = operation.parameter("stride"), operation.parameter("dilation")
    for k, (s, d) in enumerate(zip(stride, dilation, strict=True)):
        axis, window, out = k + 2, w.shape[k + 2], tensor.shape[k + 2]
        if s == 1:
            continue
        common = gcd(s, d)
        if common > 1:  # only multiples are read at all
            count = (x.shape[axis] - 1) // common + 1
            part = _every(x, axis, 0, common, count)
            return _again(operation, part, w, _put(stride, k, s // common), _put(dilation, k, d // common))
        steps = _put(stride, k, 1)
        parts = []
        for phase in range(min(s, window)):
            points = -(-(window - phase) // s)
            part = _every(x, axis, d * phase, s, out + d * (points - 1))
            parts.append(_again(operation, part, _every(w, axis, phase, s, points), steps, dilation))
        return reduce(add, parts)
    return None


GAPS_INTERLEAVED = RewriteRule(
    "conv-gaps-interleaved",
    "a window with gaps of d sees one remainder modulo d: dense convolutions of strided slices, interleaved",
    _gaps_interleaved,
    "semantic",
    False,
)
STEPS_ADDED = RewriteRule(
    "conv-steps-added",
    "a window that moves by s meets each remainder modulo s with its own points: dense convolutions, added",
    _steps_added,
    "semantic",
    False,
)

DENSE = (GAPS_INTERLEAVED, STEPS_ADDED)
"""Rules that make every convolution dense; together they reach a fixed point."""
