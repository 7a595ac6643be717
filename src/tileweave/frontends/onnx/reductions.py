"""Reductions, softmax, sorting and what counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.graph import Tensor


def _reduction(kind: str, function: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> None:
    def convert(node: OnnxNode) -> Tensor:
        x = node.tensor(0)
        given = node.integers(1, "axes")
        keep = bool(node.get("keepdims", 1))
        if not given and node.get("noop_with_empty_axes", 0):
            return function(g.unsqueeze(x, 0), (0,), False) if kind not in _PLAIN else x
        axes = tuple(node.axis(x, given=k) for k in given) if given else tuple(range(len(x.shape)))
        return function(x, axes, keep)

    operator(kind)(convert)


_PLAIN = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp")
"""Reductions that leave an element as it is where nothing is reduced."""


def _extreme(name: str) -> Callable[[Tensor, tuple[int, ...], bool], Tensor]:
    def reduce(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if any(x.shape[k] == 0 for k in axes):
            return _of_nothing(name, x, axes, keep)
        if x.dtype.kind == "b":
            return g.cast(getattr(g, name)(g.cast(x, np.uint8), axes, keepdims=keep), x.dtype)
        reduced: Tensor = getattr(g, name)(x, axes, keepdims=keep)
        return reduced

    return reduce


def _of_nothing(name: str, x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    """The least or the largest value of the type, as the specification says for empty sets."""
    shape = tuple((1 if keep else None) if k in axes else n for k, n in enumerate(x.shape))
    low = name == "max"
    if x.dtype.kind == "f":
        value: Any = -np.inf if low else np.inf
    elif x.dtype.kind == "b":
        value = not low
    else:
        value = np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max
    return g.full(tuple(n for n in shape if n is not None), value, x.dtype)


_reduction("ReduceSum", lambda x, axes, keep: g.cast(g.sum(x, axes, keepdims=keep), x.dtype))
_reduction("ReduceProd", lambda x, axes, keep: g.cast(g.product(x, axes, keepdims=keep), x.dtype))
_reduction("ReduceMean", lambda x, axes, keep: g.cast(g.mean(x, axes, keepdims=keep), x.dtype))
_reduction("ReduceMax", _extreme("max"))
_reduction("ReduceMin", _extreme("min"))
_reduction("ReduceL1", lambda x, axes, keep: g.cast(g.sum(g.absolute(x), axes, keepdims=keep), x.dtype))
_reduction("ReduceSumSquare", lambda x, axes, keep: g.cast(g.sum(g.multiply(x, x), axes, keepdims=keep), x.dtype))


def _l2(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    total = g.sum(g.multiply(x, x), axes, keepdims=keep)
    return g.cast(g.sqrt(total if total.dtype.kind == "f" else g.cast(total, np.float64)), x.dtype)


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    total = g.sum(x, axes, keepdims=keep)
    return g.cast(g.log(total if total.dtype.kind == "f" else g.cast(total, np.float64)), x.dtype)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    wide = x if x.dtype.kind == "f" else g.cast(x, np.float64)
    if any(x.shape[k] == 0 for k in axes):
        return g.cast(g.log(g.sum(wide, axes, keepdims=keep)), x.dtype)
    return g.cast(g.logsumexp(wide, axes, keepdims=keep), x.dtype)


_reduction("ReduceL2", _l2)
_reduction("ReduceLogSum", _log_sum)
_reduction("ReduceLogSumExp", _log_sum_exp)


def _positions(kind: str, name: str) -> None:
    def convert(node: OnnxNode) -> Tensor:
        x, keep = node.tensor(0), bool(node.get("keepdims", 1))
        axis = node.axis(x)
        if not node.get("select_last_index", 0):
            return g.cast(getattr(g, name)(x, axis, keepdims=keep), np.int64)
        last = g.full((), x.shape[axis] - 1, np.int64)
        return g.subtract(last, g.cast(getattr(g, name)(g.flip(x, axis), axis, keepdims=keep), np.int64))

    operator(kind)(convert)


_positions("ArgMax", "argmax")
_positions("ArgMin", "argmin")


def _softmax(kind: str, function: str) -> None:
    def convert(node: OnnxNode) -> Tensor:
        x = node.tensor(0)
        if 0 in x.shape:
            return x
        axis = node.get("axis", -1 if node.version >= 13 else 1)
        rank = max(len(x.shape), 1)
        if node.version >= 13 or axis % rank == rank - 1:
            made: Tensor = getattr(g, function)(x, axis=axis)
            return made
        axis %= rank
        rows, columns = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))
        return g.reshape(getattr(g, function)(g.reshape(x, (rows, columns)), axis=-1), x.shape)

    operator(kind)(convert)


_softmax("Softmax", "softmax")
_softmax("LogSoftmax", "log_softmax")


@operator("Hardmax")
def hardmax(node: OnnxNode) -> Tensor:
    """One at the first maximum, zero elsewhere; in older versions of all axes from one on together."""
    x = node.tensor(0)
    axis = node.axis(x, -1 if node.version >= 13 else 1)
    if node.version < 13 and axis != len(x.shape) - 1:
        rows = g.reshape(x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))
        return g.reshape(_hardmax(rows, 1), x.shape)
    return _hardmax(x, axis)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    best = g.cast(g.argmax(x, axis, keepdims=True), np.int64)
    shape = tuple(n if k == axis else 1 for k, n in enumerate(x.shape))
    places = g.as_tensor(np.arange(x.shape[axis], dtype=np.int64).reshape(shape))
    return g.cast(g.equal(places, best), x.dtype)


@operator("CumSum", "CumProd")
def cumulate(node: OnnxNode) -> Tensor:
    """Running sums or products along an axis."""
    function = g.cumsum if node.kind == "CumSum" else g.cumprod
    axis = int(node.known(1).reshape(-1)[0])
    x = node.tensor(0)
    options = {"exclusive": bool(node.get("exclusive", 0)), "reverse": bool(node.get("reverse", 0))}
    return g.cast(function(x, axis, **options), x.dtype)


@operator("TopK")
def top_k(node: OnnxNode) -> tuple[Tensor, Tensor]:
    """The k largest or smallest along an axis, and their places."""
    x = node.tensor(0)
    count = int(node.known(1).reshape(-1)[0]) if node.has(1) else node.get("k")
    axis = node.get("axis", -1)
    values, places = g.top_k(x, count, axis, largest=bool(node.get("largest", 1)))
    return values, g.cast(places, np.int64)
