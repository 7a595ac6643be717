"""Sums of what is one where a label is a number: counted, each label once instead of once per number."""

from __future__ import annotations

import numpy as np

from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ops.along import reshape
from tileweave.graph.ops.grouped.steps import steps_of
from tileweave.graph.ops.indexing import bincount
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

_ONE_HOT = (["equal"], ["equal", "cast"])
"""The steps that make ones of labels and numbers."""


def numbered(tensor: Tensor, extent: int, offset: int = 0) -> bool:
    """Whether a tensor holds 0, 1, .., extent - 1, in a type of integers that has these with an offset added, too."""
    made = tensor.producer
    if not isinstance(made, Operation) or made.operator != "arange" or tensor.dtype.kind not in "iu":
        return False
    kind = np.iinfo(tensor.dtype)
    fits = kind.min <= offset and extent - 1 + max(offset, 0) <= kind.max
    return fits and tensor.shape == (extent,) and (made.parameter("start"), made.parameter("step")) == (0, 1)


def _labels_of(tensor: Tensor, rank: int) -> Tensor | None:
    """The integers of this rank, at least one, of which a tensor is the view with one dimension more, at the end."""
    producer = tensor.producer
    if not isinstance(producer, Selector) or producer.kind != "unsqueeze" or tensor.dtype.kind not in "iu":
        return None
    labels = producer.inputs[0][1]
    one_more = tensor.shape == (*labels.shape, 1) and len(labels.shape) == rank
    return labels if one_more and not labels.type.box.empty else None


def _counted(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    total = tensor.producer
    if (
        not isinstance(total, Operation)
        or total.operator != "sum"
        or total.signature is None
        or tensor.dtype.kind == "b"
    ):
        return None
    ones, axes = total.input("x"), total.parameter("axes")
    made, rank = ones.producer, len(ones.shape) - 1
    if not isinstance(made, Operation) or made.signature is None or not context.alone(ones):
        return None
    if axes != tuple(range(rank - len(axes), rank)) or [name for name, _, _ in steps_of(made)] not in _ONE_HOT:
        return None
    given = [x for _, x in made.inputs]
    for one, other in (given, given[::-1]):
        labels = _labels_of(one, rank)
        if labels is not None and numbered(other, ones.shape[-1]):
            rows = labels.shape[: rank - len(axes)]
            return bincount(reshape(labels, (*rows, -1)), ones.shape[-1], tensor.dtype)
    return None


COUNTED = RewriteRule("counted", "a sum of what is one where a label is a number is how often it occurs", _counted)
