"""Reductions whose state is a tuple of tensors, put together from any number of parts in a tree of any arity.

::

    logsumexp  (max, sum of exp)              attention  (max, sum of exp, weighted values)
    moments    (count, mean, M2)              argmax, argmin  (value, index)

A state is made of ordinary tensors, so a cut reduction is an ordinary graph: parts are lifted, combined, finished.

Source: Tapestry, "Reduction Operations"; Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import full, slice_
from tileweave.graph.ops import operators as op
from tileweave.graph.ops.functions import argmax, argmin, attention_scores
from tileweave.graph.ops.monoids import MONOIDS
from tileweave.graph.ops.operators import as_tensor
from tileweave.space import even_cuts

__all__ = ["TUPLE_MONOIDS", "TupleMonoid", "attention_in_parts", "reduce_in_parts", "tree"]

State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class TupleMonoid:
    """An associative combination of states, each a tuple of tensors of one shape (up to trailing dimensions).

    Args:
        name: as `reduce_in_parts` takes it.
        parts: the names of the state's tensors.
        lift: (tensor, dimension, coordinate of its first element there) -> state.
        combine: of two states, in order.
        finish: state -> result.
        identity: (shape, element type of the reduced tensor) -> the state of no element, which changes no other.
        commutative: whether the order of the parts does not matter.
    """

    name: str
    parts: tuple[str, ...]
    lift: Callable[[Tensor, int, int], State]
    combine: Callable[[State, State], State]
    finish: Callable[[State], Tensor]
    identity: Callable[[tuple[int, ...], np.dtype[Any]], State]
    commutative: bool = True


def _finite(top: Tensor) -> Tensor:
    """The maximum where it may be subtracted, 0 where it is infinite."""
    return op.where(op.less(op.absolute(top), np.inf), top, 0.0)


def _no_exp(shape: tuple[int, ...], dtype: np.dtype[Any]) -> State:
    return full(shape, -np.inf, dtype), full(shape, 0.0, dtype)


def _lift_exp(x: Tensor, dim: int, first: int) -> State:
    if not x.shape[dim]:
        return _no_exp((*x.shape[:dim], *x.shape[dim + 1 :]), x.dtype)
    top = op.max(x, dim, keepdims=True)
    return op.sum(top, dim), op.sum(op.exp(op.subtract(x, _finite(top))), dim)


def _combine_exp(a: State, b: State) -> State:
    top = op.maximum(a[0], b[0])
    left, right = _shares(a[0], b[0], top)
    return top, op.add(op.multiply(a[1], left), op.multiply(b[1], right))


def _shares(left: Tensor, right: Tensor, top: Tensor) -> State:
    """What the sums over two maxima count for under their common one; nothing over minus infinities alone."""

    def share(own: Tensor) -> Tensor:
        return op.where(op.equal(own, -np.inf), 0.0, op.exp(op.subtract(_finite(own), _finite(top))))

    return share(left), share(right)


def _lift_moments(x: Tensor, dim: int, first: int) -> State:
    count = x.shape[dim]
    mean = op.divide(op.sum(x, dim, keepdims=True), float(max(count, 1)))
    distance = op.subtract(x, mean)
    spread = op.sum(op.multiply(distance, distance), dim)
    return full(spread.shape, float(count), spread.dtype), op.sum(mean, dim), spread


def _combine_moments(a: State, b: State) -> State:
    count = op.add(a[0], b[0])
    step = op.subtract(b[1], a[1])
    share = op.divide(b[0], op.maximum(count, 1.0))  # nothing beside nothing shares nothing
    mean = op.add(a[1], op.multiply(step, share))
    spread = op.multiply(op.multiply(step, step), op.multiply(a[0], share))
    return count, mean, op.add(op.add(a[2], b[2]), spread)


def _no_moments(shape: tuple[int, ...], dtype: np.dtype[Any]) -> State:
    return full(shape, 0.0, dtype), full(shape, 0.0, dtype), full(shape, 0.0, dtype)


def _no_arg(greatest: bool) -> Callable[[tuple[int, ...], np.dtype[Any]], State]:
    """The value that no other beats, at a place behind all others."""

    def identity(shape: tuple[int, ...], dtype: np.dtype[Any]) -> State:
        value = MONOIDS["max" if greatest else "min"].identity(dtype)
        return full(shape, value, dtype), full(shape, np.iinfo(np.int64).max, np.int64)

    return identity


def _lift_arg(greatest: bool) -> Callable[[Tensor, int, int], State]:
    def lift(x: Tensor, dim: int, first: int) -> State:
        value = (op.max if greatest else op.min)(x, dim)
        return value, op.add((argmax if greatest else argmin)(x, dim), first)

    return lift


def _combine_arg(greatest: bool) -> Callable[[State, State], State]:
    def combine(a: State, b: State) -> State:
        better = (op.greater if greatest else op.less)(a[0], b[0])
        tie = op.multiply(op.equal(a[0], b[0]), op.less(a[1], b[1]))
        # NaN wins, the first one of two
        nan_a, nan_b = op.not_equal(a[0], a[0]), op.not_equal(b[0], b[0])
        both = op.multiply(op.multiply(nan_a, nan_b), op.less(a[1], b[1]))
        alone = op.greater(nan_a, nan_b)
        first = op.maximum(op.maximum(better, tie), op.maximum(both, alone))
        return op.where(first, a[0], b[0]), op.where(first, a[1], b[1])

    return combine


TUPLE_MONOIDS: dict[str, TupleMonoid] = {
    monoid.name: monoid
    for monoid in (
        TupleMonoid(
            "logsumexp",
            ("max", "sum"),
            _lift_exp,
            _combine_exp,
            lambda s: op.add(_finite(s[0]), op.log(s[1])),
            _no_exp,
        ),
        TupleMonoid(
            "variance",
            ("count", "mean", "m2"),
            _lift_moments,
            _combine_moments,
            lambda s: op.divide(s[2], s[0]),
            _no_moments,
        ),
        TupleMonoid("argmax", ("value", "index"), _lift_arg(True), _combine_arg(True), lambda s: s[1], _no_arg(True)),
        TupleMonoid(
            "argmin", ("value", "index"), _lift_arg(False), _combine_arg(False), lambda s: s[1], _no_arg(False)
        ),
    )
}
"""Reduction name -> tuple-valued monoid."""


def tree(states: Sequence[State], combine: Callable[[State, State], State], arity: int = 2) -> State:
    """The combination of states in order, in a tree whose nodes join so many at a time."""
    if not states or arity < 2:
        raise GraphError("tree(states, combine, arity)", f"{len(states)} states, arity {arity}", legal="1.., 2..")
    level = list(states)
    while len(level) > 1:
        level = [reduce(combine, level[k : k + arity]) for k in range(0, len(level), arity)]
    return level[0]


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
    wide = x if ordered else op.widened(x)
    states = [monoid.lift(part, dim, first) for first, part in _parts(where, wide, dim, parts)]
    out = monoid.finish(tree(states, monoid.combine, arity))
    return out if ordered or x.dtype.kind in "biu" else op.cast(out, x.dtype)


def _dim(where: str, x: Tensor, axis: int) -> int:
    rank = len(x.shape)
    if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise GraphError(where, f"axis {axis!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}")
    return int(axis) % rank


def _parts(where: str, x: Tensor, dim: int, parts: int) -> list[tuple[int, Tensor]]:
    if not 1 <= parts <= max(x.shape[dim], 1):
        raise GraphError(where, f"{parts} parts of axis {dim}", inputs={"x": x.type}, legal=f"1..{x.shape[dim]}")
    cuts = even_cuts(x.shape[dim], parts)
    return [(a, slice_(x, x.type.box.with_range(dim, a, b))) for a, b in pairwise(cuts)]


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
        top = op.max(scores, -1, keepdims=True)
        weights = op.exp(op.subtract(scores, _finite(top)))
        states.append((top, op.sum(weights, -1, keepdims=True), op.matmul(weights, values)))
    top, total, mixed = tree(states, _combine_attention, arity)
    return op.cast(op.divide(mixed, total), op.common_type(as_tensor(q), k, v))


def _combine_attention(a: State, b: State) -> State:
    top, total = _combine_exp(a[:2], b[:2])
    left, right = _shares(a[0], b[0], top)
    return top, total, op.add(op.multiply(a[2], left), op.multiply(b[2], right))
