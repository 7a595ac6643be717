"""Reductions and attention from any number of parts, put together in a tree of any arity.

A state is made of ordinary tensors, so a cut reduction is an ordinary graph: parts are lifted, combined, finished.

Source: Tapestry, "Reduction Operations".
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import slice_
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.nn.attention import attention_scores
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, cast, common_type, divide, exp, multiply
from tileweave.graph.ops.monoids import TUPLE_MONOIDS, distance, shares
from tileweave.graph.ops.operators import TENSORS
from tileweave.graph.ops.reductions import max, sum, widened
from tileweave.space import even_cuts

State = tuple[Tensor, ...]


def tree(states: Sequence[State], combine: Callable[[State, State], State], arity: int = 2) -> State:
    """The combination of states in order, in a tree whose nodes join so many at a time."""
    if not states or arity < 2:
        raise GraphError("tree(states, combine, arity)", f"{len(states)} states, arity {arity}", legal="1.., 2..")
    level = list(states)
    while len(level) > 1:
        level = [reduce(combine, level[k : k + arity]) for k in range(0, len(level), arity)]
    return level[0]


@public()
def reduce_in_parts(name: str, x: Any, axis: int = -1, parts: int = 2, arity: int = 2) -> Tensor:
    """A reduction along one dimension from so many parts of it: the same value as the whole, to rounding.

    Args:
        name: logsumexp, variance, argmax or argmin.
        x: any tensor.
        axis: the dimension.
        parts: how many parts; at most its extent.
        arity: how many states are joined at a time.

    Example:
        >>> np.asarray(reduce_in_parts("argmax", np.array([3, 9, 2, 9]), parts=3)).tolist()
        1
    """
    where = f"reduce_in_parts({name!r}, x)"
    x = as_tensor(x, where)
    if name not in TUPLE_MONOIDS:
        raise GraphError(where, f"{name!r} is not a tuple-valued reduction", legal=", ".join(TUPLE_MONOIDS))
    monoid, dim = TUPLE_MONOIDS[name], _dim(where, x, axis)
    ordered = name in ("argmax", "argmin")
    wide = x if ordered else widened(x)
    lift = monoid.lift if ordered else monoid.of  # there is no place in nothing
    states = [lift(TENSORS, part, dim, first) for first, part in _parts(where, wide, dim, parts)]
    out = monoid.finish(TENSORS, tree(states, partial(monoid.combine, TENSORS), arity))
    return out if ordered or x.dtype.kind in "biu" else cast(out, x.dtype)


def _dim(where: str, x: Tensor, axis: int) -> int:
    rank = len(x.shape)
    if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise GraphError(where, f"axis {axis!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}")
    return int(axis) % rank


def _parts(where: str, x: Tensor, dim: int, parts: int) -> list[tuple[int, Tensor]]:
    if not 1 <= parts <= builtins.max(x.shape[dim], 1):
        raise GraphError(where, f"{parts} parts of axis {dim}", inputs={"x": x.type}, legal=f"1..{x.shape[dim]}")
    cuts = even_cuts(x.shape[dim], parts)
    return [(a, slice_(x, x.type.box.with_range(dim, a, b))) for a, b in pairwise(cuts)]


@public()
def attention_in_parts(
    q: Any, k: Any, v: Any, parts: int = 2, arity: int = 2, *, scale: float | None = None, causal: bool = False
) -> Tensor:
    """`attention` with the keys in so many parts, each weighted by its own maximum, then combined as a reduction.

    No tensor of all queries by all keys is needed at once: a part's scores live only for its state.
    """
    where = "attention_in_parts(q, k, v)"
    k, v = as_tensor(k, where), as_tensor(v, where)
    if len(k.shape) < 2 or len(v.shape) < 2 or k.shape[-2] != v.shape[-2]:
        raise GraphError(where, "keys and values do not fit", inputs={"k": k.type, "v": v.type})
    states = []
    for (first, keys), (_, values) in zip(
        _parts(where, k, len(k.shape) - 2, parts), _parts(where, v, len(v.shape) - 2, parts), strict=True
    ):
        scores = attention_scores(q, keys, scale, causal, first=first, keys=k.shape[-2])
        top = max(scores, -1, keepdims=True)
        weights = exp(distance(TENSORS, scores, top))
        states.append((top, sum(weights, -1, keepdims=True), matmul(weights, values)))
    top, total, mixed = tree(states, combine_attention, arity)
    out = add(divide(mixed, total), multiply(top, 0.0))  # NaN where a softmax is: under an infinite maximum
    return cast(out, common_type(as_tensor(q), k, v))


def combine_attention(a: State, b: State) -> State:
    """Two states (max, sum of exp, weighted values) as one."""
    top, left, right = shares(TENSORS, a[0], b[0])
    total = add(multiply(a[1], left), multiply(b[1], right))
    return top, total, add(multiply(a[2], left), multiply(b[2], right))
