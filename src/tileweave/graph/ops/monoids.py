"""Monoids: the associative, commutative combinations by which a cut reduction is put together again.

::

    plain   sum, product, max, min                                a value is its own state
    tuples  argmax, argmin (value, index)     max_and_sum (max, sum of exp)     moments (count, mean, m2)

A tuple-valued monoid is written once, in functions that NumPy and the graph both have: the same lines are the meaning
of an operator on arrays and a graph of tensors. Its laws hold for every row, also where a part is

- *empty*: the state is the identity, which changes no other;
- *infinite*: equal infinities differ by nothing, so they count one each. A row of n times minus infinity has the
  (max, sum of exp) (-inf, n), one with plus infinities counts those: ``max + log(sum)`` is the logarithm of the sum of
  exponentials of every row;
- *NaN*: the maximum and the sum are NaN; argmax and argmin find the first NaN, as NumPy does.

Source: Tapestry, "Reduction Operations"; Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tileweave.graph.ir.dtypes import bounds, is_narrow

Array = np.ndarray[Any, Any]
State = tuple[Any, ...]
"""Arrays of NumPy, or tensors of a graph."""


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative, commutative operation with an identity.

    Args:
        name: as signatures refer to it.
        combine: of two arrays, elementwise.
        identity: of an element type; None where the type has none (the maximum of an unbounded type).
    """

    name: str
    combine: Callable[[Array, Array], Array]
    identity: Callable[[np.dtype[Any]], Any]


MONOIDS: dict[str, Monoid] = {
    monoid.name: monoid
    for monoid in (
        Monoid("sum", np.add, lambda dtype: dtype.type(0)),
        Monoid("product", np.multiply, lambda dtype: dtype.type(1)),
        Monoid("max", np.maximum, lambda dtype: bounds(dtype)[0]),
        Monoid("min", np.minimum, lambda dtype: bounds(dtype)[1]),
    )
}
"""Monoid name -> monoid."""


# ---------------------------------------------------------------------------------------------------------------------
# tuples. The first argument `m` has the functions: `numpy`, or `tileweave.graph.ops.operators.TENSORS`.


@dataclass(frozen=True, slots=True)
class TupleMonoid:
    """An associative, commutative combination of states, each a tuple of arrays or tensors of one shape.

    Args:
        name: as signatures refer to it, and of the operator that makes its states.
        parts: (name, element type from that of the reduced tensor) per part of the state.
        lift: (functions, values, dimension, coordinate of their first element there) -> the state of that part of it.
        combine: (functions, state, state) -> state.
        finish: (functions, state) -> the result that the state is kept for.
        identity: (functions, shape, element type of what is reduced) -> the state of no element.
    """

    name: str
    parts: tuple[tuple[str, Callable[[np.dtype[Any]], np.dtype[Any]]], ...]
    lift: Callable[[Any, Any, int, int], State]
    combine: Callable[[Any, State, State], State]
    finish: Callable[[Any, State], Any]
    identity: Callable[[Any, Sequence[int], np.dtype[Any]], State]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(name for name, _ in self.parts)

    def of(self, m: Any, x: Any, dim: int, first: int) -> State:
        """`lift`, or the identity where the dimension has no element."""
        rest = tuple(n for k, n in enumerate(x.shape) if k != dim)
        return self.lift(m, x, dim, first) if x.shape[dim] else self.identity(m, rest, x.dtype)


def place_of(name: str, x: Any, dim: int) -> Any:
    """The first place of the extreme value of an array along a dimension; ``name``: argmax or argmin."""
    wide = x.astype(np.float32) if is_narrow(x.dtype) or x.dtype == np.float16 else x  # NumPy has no vectors of them
    return (np.argmax if name == "argmax" else np.argmin)(wide, dim)


def _lift_place(name: str) -> Callable[[Any, Any, int, int], State]:
    def lift(m: Any, x: Any, dim: int, first: int) -> State:
        if m is not np:
            value, place = (m.max, m.argmax) if name == "argmax" else (m.min, m.argmin)
            return value(x, dim), m.add(place(x, dim), first)
        found = place_of(name, x, dim)
        return np.take_along_axis(x, np.expand_dims(found, dim), dim).squeeze(dim), found + first

    return lift


def _combine_place(name: str) -> Callable[[Any, State, State], State]:
    """The first of the extreme values; NaN beats every number, as in NumPy."""

    def combine(m: Any, a: State, b: State) -> State:
        nan_a, nan_b = m.not_equal(a[0], a[0]), m.not_equal(b[0], b[0])
        better = (m.greater if name == "argmax" else m.less)(a[0], b[0])
        tie = m.maximum(m.equal(a[0], b[0]), m.multiply(nan_a, nan_b))
        sooner = m.multiply(tie, m.less(a[1], b[1]))
        wins = m.maximum(m.maximum(m.greater(better, nan_b), m.greater(nan_a, nan_b)), sooner)
        return m.where(wins, a[0], b[0]), m.where(wins, a[1], b[1])

    return combine


def _no_place(name: str) -> Callable[[Any, Sequence[int], np.dtype[Any]], State]:
    """The value that no other beats, at a place behind all others."""

    def identity(m: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> State:
        value = MONOIDS["max" if name == "argmax" else "min"].identity(dtype)
        return m.full(shape, value, dtype), m.full(shape, np.iinfo(np.int64).max, np.int64)

    return identity


def distance(m: Any, x: Any, top: Any) -> Any:
    """``x - top``, where equal infinities differ by nothing."""
    return m.where(m.equal(x, top), 0.0, m.subtract(x, top))


def _lift_exp(m: Any, x: Any, dim: int, first: int) -> State:
    top = m.max(x, dim, keepdims=True)
    return m.max(x, dim), m.sum(m.exp(distance(m, x, top)), dim)


def shares(m: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """(common maximum, what a sum under each of two maxima counts for under it)."""
    top = m.maximum(a, b)
    return top, m.exp(distance(m, a, top)), m.exp(distance(m, b, top))


def _combine_exp(m: Any, a: State, b: State) -> State:
    top, left, right = shares(m, a[0], b[0])
    return top, m.add(m.multiply(a[1], left), m.multiply(b[1], right))


def _no_exp(m: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> State:
    return m.full(shape, -np.inf, dtype), m.full(shape, 0.0, dtype)


def _lift_moments(m: Any, x: Any, dim: int, first: int) -> State:
    count = float(x.shape[dim])
    mean = m.divide(m.sum(x, dim, keepdims=True), count)
    distance = m.subtract(x, mean)
    spread = m.sum(m.multiply(distance, distance), dim)
    return m.full(spread.shape, count, spread.dtype), m.sum(mean, dim), spread


def _combine_moments(m: Any, a: State, b: State) -> State:
    count, step = m.add(a[0], b[0]), m.subtract(b[1], a[1])
    share = m.divide(b[0], m.maximum(count, 1.0))  # nothing beside nothing shares nothing
    spread = m.multiply(m.multiply(step, step), m.multiply(a[0], share))
    return count, m.add(a[1], m.multiply(step, share)), m.add(m.add(a[2], b[2]), spread)


def _no_moments(m: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> State:
    return m.full(shape, 0.0, dtype), m.full(shape, 0.0, dtype), m.full(shape, 0.0, dtype)


def _same(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype


def _int64(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.int64)


def _place(name: str) -> TupleMonoid:
    parts = (("value", _same), ("index", _int64))
    return TupleMonoid(name, parts, _lift_place(name), _combine_place(name), lambda m, s: s[1], _no_place(name))


STATES: dict[str, TupleMonoid] = {
    monoid.name: monoid
    for monoid in (
        _place("argmax"),
        _place("argmin"),
        TupleMonoid(
            "max_and_sum",
            (("max", _same), ("sum", _same)),
            _lift_exp,
            _combine_exp,
            lambda m, s: m.add(s[0], m.log(s[1])),
            _no_exp,
        ),
        TupleMonoid(
            "moments",
            (("count", _same), ("mean", _same), ("m2", _same)),
            _lift_moments,
            _combine_moments,
            lambda m, s: m.divide(s[2], s[0]),
            _no_moments,
        ),
    )
}
"""Name of a tuple-valued monoid, and of the operator that makes its states -> monoid."""

TUPLE_MONOIDS: dict[str, TupleMonoid] = {
    "logsumexp": STATES["max_and_sum"],
    "variance": STATES["moments"],
    "argmax": STATES["argmax"],
    "argmin": STATES["argmin"],
}
"""Reduction -> the monoid that carries it."""


def is_monoid(name: str) -> bool:
    """Whether a signature may name it."""
    return name in MONOIDS or name in STATES


def monoid_form(node: object, value: object) -> str:
    """What a parameter that names a monoid must be."""
    return "" if type(value) is str and is_monoid(value) else f"a monoid: {', '.join([*MONOIDS, *STATES])}"


def combine_states(monoid: str, states: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The combination of partial results, each with an array per output; new arrays, in the order given."""
    with np.errstate(all="ignore"):
        if monoid in MONOIDS:
            names = states[0]
            return {name: np.asarray(reduce(MONOIDS[monoid].combine, [s[name] for s in states])) for name in names}
        own = STATES[monoid]
        given = [tuple(state[name] for name in own.outputs) for state in states]
        total = reduce(lambda a, b: own.combine(np, a, b), given)
    return {name: np.asarray(part) for name, part in zip(own.outputs, total, strict=True)}
