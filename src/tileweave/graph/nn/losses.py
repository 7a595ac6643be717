"""Losses, composed of operators."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Literal

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import squeeze, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import cast, divide, exp, log, multiply, negative, not_equal, subtract, where
from tileweave.graph.ops.indexing import take, take_along_axis
from tileweave.graph.ops.reductions import floating, log_softmax, max, mean, narrowed, sum, widened

Reduction = Literal["mean", "sum", "none"]


@public()
def cross_entropy(
    scores: Any, targets: Any, *, weight: Any = None, ignore: int | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """``-log(softmax(scores))`` at the target class, which is dimension 1 of the scores, or the only one.

    Args:
        scores: [batch, classes, more..], or [classes].
        targets: integers [batch, more..], or probabilities of the shape of the scores.
        weight: per class; the mean is weighted by it.
        ignore: a target that does not count.
        reduction: mean, sum, or none of them.

    Example:
        >>> round(float(cross_entropy([[0.0, 0.0]], [1])), 6)
        0.693147
    """
    name = "cross_entropy(scores, targets)"
    scores, targets = floating(name, scores), as_tensor(targets, name)
    dim = builtins.min(1, len(scores.shape) - 1)
    logs = log_softmax(scores, dim)  # of all classes: only where targets are probabilities

    def at(places: Tensor) -> Tensor:
        wide = widened(scores)
        top = max(wide, dim, keepdims=True)
        total = log(sum(exp(subtract(wide, top)), dim, keepdims=True))
        return narrowed(subtract(subtract(widened(take_along_axis(scores, places, dim)), top), total), scores)

    return _likelihood(name, logs, at, targets, weight, ignore, reduction)


@public()
def nll_loss(
    logs: Any, targets: Any, *, weight: Any = None, ignore: int | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """The negative logarithms at the target class; else as `cross_entropy`, which takes the logarithm itself."""
    name = "nll_loss(logs, targets)"
    logs, targets = floating(name, logs), as_tensor(targets, name)
    dim = builtins.min(1, len(logs.shape) - 1)
    return _likelihood(
        name, logs, lambda places: take_along_axis(logs, places, dim), targets, weight, ignore, reduction
    )


def _likelihood(
    name: str,
    logs: Tensor,
    at: Callable[[Tensor], Tensor],
    targets: Tensor,
    weight: Any,
    ignore: int | None,
    reduction: str,
) -> Tensor:
    """The loss of logarithms of probabilities; `at` gives those at places along the classes."""
    dim = builtins.min(1, len(logs.shape) - 1)
    types = {"scores": logs.type, "targets": targets.type}
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(name, f"reduction {reduction!r}", inputs=types, legal="mean, sum, none")
    if targets.shape == logs.shape and targets.dtype.kind not in "iub":  # probabilities
        each = negative(sum(multiply(logs, targets), dim))
        return each if reduction == "none" else mean(each) if reduction == "mean" else sum(each)
    if targets.dtype.kind not in "iu":
        raise DtypeError(name, f"targets of type {targets.dtype.name}", inputs=types, legal="integers, probabilities")
    if targets.shape != (*logs.shape[:dim], *logs.shape[dim + 1 :]):
        raise GraphError(name, "targets do not fit the scores", inputs=types, legal="[batch, more..]")
    counts = None if ignore is None else not_equal(targets, ignore)
    safe = targets if counts is None else where(counts, targets, 0)
    each = squeeze(negative(at(unsqueeze(safe, dim))), dim)
    if counts is None and weight is None:
        return each if reduction == "none" else mean(each) if reduction == "mean" else sum(each)
    share = None if counts is None else cast(counts, logs.dtype)
    if weight is not None:
        own = take(cast(as_tensor(weight, name), logs.dtype), safe, 0)
        share = own if share is None else multiply(share, own)
    each = multiply(each, share) if counts is None else where(counts, multiply(each, share), 0.0)
    if reduction == "none":
        return each
    return divide(sum(each), sum(share)) if reduction == "mean" else sum(each)


@public()
def mse_loss(x: Any, y: Any, *, reduction: Reduction = "mean") -> Tensor:
    """The squared differences: their mean, their sum, or each."""
    distance = subtract(floating("mse_loss(x, y)", x), y)
    each = multiply(distance, distance)
    return each if reduction == "none" else mean(each) if reduction == "mean" else sum(each)
