"""The rule that makes attention one operation: a product, the softmax of its rows, and a product with these.

Scores are then formed, weighted and used tile by tile, and no tensor holds them. That pays where a row of scores is
longer than what it is made from and gives; a query alone leaves scores that are fewer than what is read anyway.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tileweave.graph.ir.dtypes import HALVES
from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ops.grouped.attention import attended
from tileweave.graph.ops.grouped.rows import softmax_at_end
from tileweave.graph.ops.grouped.steps import FULL, Step
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

MOST_EXTRAS = 8
FEWEST_QUERIES = 8
"""Queries that share keys, from which tiles of scores are faster than matrix-vector products: those read the keys once,
as they lie, where tiles pack them first. Narrow floats would be widened to be read so, which takes longer."""


def _attention(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    outer = _product(tensor)
    if outer is None or tensor.dtype.char not in "fd":
        return None
    weights, v = outer.input("x0"), outer.input("x1")
    group: Any = weights.producer
    if not isinstance(group, Operation) or group.operator != "rows" or not context.alone(weights):
        return None
    if group.parameter("axes") != (len(weights.shape) - 1,) or 0 in weights.shape:
        return None
    split = _softmax(group.parameter("program"))
    place = _scores(group, context)
    if split is None or place is None or any(x.dtype not in (tensor.dtype, bool) for _, x in group.inputs):
        return None
    scores = group.inputs[place][1]
    inner = scores.producer
    letters = _letters(inner, outer)  # type: ignore[arg-type]
    extras = [x for k, (_, x) in enumerate(group.inputs) if k != place]
    if letters is None or len(extras) > MOST_EXTRAS or any(x.dtype != tensor.dtype for x in (scores, v)):
        return None
    shared = prod(n for c, n in zip(letters[3][:-1], scores.shape[:-1], strict=True) if c not in letters[1])
    if shared < FEWEST_QUERIES and all(before_cast(v, np.dtype(kind)) is None for kind in HALVES):
        return None
    moved = {k: 0 if k == place else 1 + k - (k > place) for k in range(len(group.inputs))}
    program = tuple(
        (name, args if name == FULL else tuple(moved[a] if a >= 0 else a for a in args), dtype)
        for name, args, dtype in group.parameter("program")
    )
    return attended(inner.input("x0"), inner.input("x1"), v, extras, letters, program)  # type: ignore[union-attr]


def _product(tensor: Tensor) -> Operation | None:
    """The product of two tensors that makes one."""
    made = tensor.producer
    fits = isinstance(made, Operation) and made.operator in ("matmul", "einsum") and len(made.inputs) == 2
    return made if fits and made.signature is not None else None  # type: ignore[union-attr,return-value]


def _softmax(program: Sequence[Step]) -> int | None:
    """How many steps stand before a softmax that ends a program; None where it does not end so."""
    first = len(program) - 5
    if softmax_at_end(program) != tuple(range(first, first + 4)):
        return None
    return first if all(name == FULL or is_elementwise(name) for name, _, _ in program[:first]) else None


def _scores(group: Operation, context: RewriteContext) -> int | None:
    """Which input of a group of rows is a product that only it reads; the only such input."""
    shape = group.output_types["out"].shape
    found = [
        k for k, (_, x) in enumerate(group.inputs) if x.shape == shape and _product(x) is not None and context.alone(x)
    ]
    return found[0] if len(found) == 1 else None


def _letters(inner: Operation, outer: Operation) -> tuple[str, str, str, str] | None:
    """The letters of queries, keys, values and the result in one alphabet; None where the products are others."""
    left, made = inner.parameter("equation").split("->")
    q, k = left.split(",")
    weights, v = outer.parameter("equation").split("->")[0].split(",")
    out = outer.parameter("equation").split("->")[1]
    to = dict(zip(weights, made, strict=True))
    feature = set(v) - set(weights)
    if len(feature) != 1 or len(to) != len(weights) or any(len(set(own)) != len(own) for own in (q, k, v)):
        return None
    (name,) = feature
    free = next(c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in q + k)
    to[name] = free
    key, result = made[-1], "".join(to[c] for c in out)
    summed = (set(q) & set(k)) - set(made)
    fits = result == made[:-1] + free and len(summed) == 1 and set(made) <= set(q) | set(k)
    values = "".join(to[c] for c in v)
    if not fits or key not in k or key in q or key not in values or set(q) - set(made) != summed:
        return None
    if set(k) - set(made) != summed or not set(values) <= {*made, free}:
        return None
    if set(made[:-1]) & set(k) != set(made[:-1]) & set(values) or not set(made[:-1]) <= set(q):
        return None
    return q, k, values, result


def _narrow_attention(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    root, kind = tensor.producer, tensor.dtype
    if not isinstance(root, Operation) or root.operator != "cast" or kind.name not in HALVES:
        return None
    wide = root.inputs[0][1]
    below = wide.producer
    if not isinstance(below, Operation) or below.operator != "attention" or not context.alone(wide):
        return None
    given = [before_cast(x, kind) for _, x in below.inputs[:3]]
    q, k, v = given
    if q is None or k is None or v is None:
        return None
    return attended(q, k, v, [x for _, x in below.inputs[3:]], below.parameter("letters"), below.parameter("program"))


def before_cast(tensor: Tensor, dtype: np.dtype[Any]) -> Tensor | None:
    """What a tensor was before it was cast from a type, through views; None where it was not."""
    made = tensor.producer
    if isinstance(made, Selector) and len(made.inputs) == 1:
        ((name, x),) = made.inputs
        found = before_cast(x, dtype)
        if found is None:
            return None
        return Tensor(replace(made, inputs=((name, found),), out=replace(made.out, dtype=dtype)))
    if isinstance(made, Operation) and made.operator == "cast" and made.inputs[0][1].dtype == dtype:
        return made.inputs[0][1]
    return None


NARROW_ATTENTION = RewriteRule(
    "narrow-attention",
    "attention of narrow floats computes in FP32 whether or not they are cast before; its weights are rounded to them",
    _narrow_attention,
    exact=False,
)


ATTENTION = RewriteRule(
    "attention",
    "softmax(q @ k) @ v is formed query by query: each needs its own row of scores alone",
    _attention,
    exact=False,
)
