"""Losses, composed of operators."""

from __future__ import annotations

from typing import Any, Literal

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import squeeze, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import cast, divide, equal, multiply, negative, not_equal, subtract, where
from tileweave.graph.ops.indexing import take, take_along_axis
from tileweave.graph.ops.reductions import floating, log_softmax, mean, sum

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
    return _likelihood(name, log_softmax(scores, min(1, len(scores.shape) - 1)), targets, weight, ignore, reduction)


@public()
def nll_loss(
    logs: Any, targets: Any, *, weight: Any = None, ignore: int | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """The negative logarithms at the target class; else as `cross_entropy`, which takes the logarithm itself."""
    name = "nll_loss(logs, targets)"
    return _likelihood(name, floating(name, logs), as_tensor(targets, name), weight, ignore, reduction)


def _likelihood(name: str, logs: Tensor, targets: Tensor, weight: Any, ignore: int | None, reduction: str) -> Tensor:
    dim = min(1, len(logs.shape) - 1)
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
    counts = full_like_true(targets) if ignore is None else not_equal(targets, ignore)
    safe = targets if ignore is None else where(counts, targets, 0)
    picked = negative(squeeze(take_along_axis(logs, unsqueeze(safe, dim), dim), dim))
    share = cast(counts, logs.dtype)
    if weight is not None:
        share = multiply(share, take(cast(as_tensor(weight, name), logs.dtype), safe, 0))
    each = where(counts, multiply(picked, share), 0.0)
    if reduction == "none":
        return each
    return divide(sum(each), sum(share)) if reduction == "mean" else sum(each)


def full_like_true(x: Tensor) -> Tensor:
    """True everywhere."""
    return equal(x, x)


@public()
def mse_loss(x: Any, y: Any, *, reduction: Reduction = "mean") -> Tensor:
    """The squared differences: their mean, their sum, or each."""
    distance = subtract(floating("mse_loss(x, y)", x), y)
    each = multiply(distance, distance)
    return each if reduction == "none" else mean(each) if reduction == "mean" else sum(each)
