"""Shapes, indices and flat numbers for LEGO, on integers, integer arrays and index expressions alike.

Row-major throughout: the last dimension is fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt as exact_isqrt
from typing import Any

import numpy as np

from tileweave.errors import Incongruent, LayoutError, Unproved
from tileweave.index import Expr, divisor, evaluate, isqrt, minimum, require, select, symbol
from tileweave.layout.core.symbolic import plain, require_positive
from tileweave.layout.notation.cute_tuples import split_digit

Dim = int | Expr
"""An extent: a positive integer, or an index expression."""


def choose(condition: Any, then: Any, otherwise: Any) -> Any:
    """`then` where the condition holds, else `otherwise`; of numbers, arrays or index expressions."""
    if isinstance(condition, Expr):
        return select(condition, then, otherwise)
    if isinstance(condition, bool | np.bool):
        return then if condition else otherwise
    where = "choose(condition, then, otherwise)"
    if not isinstance(condition, np.ndarray) or condition.dtype.kind != "b":
        raise LayoutError(where, f"{condition!r} is no condition", legal="a comparison of numbers, arrays, expressions")
    if isinstance(then, Expr) or isinstance(otherwise, Expr):
        raise LayoutError(where, "an array chooses between expressions", legal="arrays or integers to choose from")
    try:
        return np.where(condition, then, otherwise)
    except ValueError:
        shapes = {"condition": condition.shape, "then": np.shape(then), "otherwise": np.shape(otherwise)}
        raise Incongruent(where, "the shapes do not broadcast", inputs=shapes, legal="shapes that broadcast") from None


def lesser(a: Any, b: Any) -> Any:
    """The lesser of two numbers, arrays or index expressions."""
    return minimum(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else choose(a <= b, a, b)


def root(value: Any) -> Any:
    """The integer square root of a number, an array or an index expression, none of it negative."""
    if isinstance(value, np.ndarray):
        v = symbol("v")
        return evaluate(isqrt(v), {v: value})
    return isqrt(value) if isinstance(value, Expr) else exact_isqrt(value)


def make_dims(dims: Any, where: str) -> tuple[Dim, ...]:
    """A shape: positive integers or index expressions.

    Raises:
        LayoutError: anything else, or no dimension at all. Unproved: an expression that is not proved positive.
    """
    items = tuple(dims) if isinstance(dims, tuple | list) else (dims,)
    if not items:
        raise LayoutError(where, "there are no dimensions", legal="at least one extent")
    return tuple(_dim(n, where) for n in items)


def _dim(n: Any, where: str) -> Dim:
    n = plain(n)
    if isinstance(n, Expr):
        require_positive(n, where)
        return n
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise LayoutError(
            where, f"extent {n!r} is not a positive integer", legal="positive integers or index expressions"
        )
    return int(n)


def product_of(dims: Sequence[Dim]) -> Any:
    """The number of points of a shape."""
    out: Any = 1
    for n in dims:
        out = out * n
    return out


def flat_index(index: Sequence[Any], dims: Sequence[Dim]) -> Any:
    """The row-major flat number of a tuple index: the last dimension is fastest; unchecked."""
    out: Any = 0
    for i, n in zip(index, dims, strict=True):
        out = out * n + i if not (isinstance(out, int) and out == 0) else i
    return out


def tuple_index(flat: Any, dims: Sequence[Dim]) -> tuple[Any, ...]:
    """The tuple index of a row-major flat number; inverse of `flat_index`; unchecked."""
    out: list[Any] = []
    for n in reversed(dims[1:]):
        flat, digit = split_digit(flat, n)
        out.append(digit)
    out.append(flat)
    return tuple(reversed(out))


def same_number(a: Any, b: Any, where: str, what: str, inputs: dict[str, object]) -> None:
    """Refuses two sizes that differ; sizes with symbols must be proved equal.

    Raises:
        Incongruent: the sizes differ; Unproved: they hold symbols and are not provably equal.
    """
    if isinstance(a, int) and isinstance(b, int):
        if a != b:
            raise Incongruent(where, f"{what}: {a} and {b} differ", inputs=inputs, legal="equal numbers of points")
        return
    if a is b or proved_zero(a - b):
        return
    raise Unproved(
        where,
        f"{what}: {a} = {b} is not proved",
        inputs=inputs,
        legal="sizes that are equal for all values of the symbols",
        facts={"condition": f"{a} == {b}"},
    )


def proved_zero(difference: Any) -> bool:
    """Whether an index expression is zero for all values of its symbols, by its normal form."""
    return divisor(difference) == 0


ROOM = 16
"""How many times the number of points the intermediate values of a ready-made bijection may reach."""


def numbers(index: Sequence[Any], dims: Sequence[Dim]) -> tuple[Any, ...]:
    """Coordinates as this package computes with them, so that nothing wraps: the one policy on numbers from outside.

    An integer of NumPy becomes Python's; an integer array becomes int64, or Python integers where 64 bits might not
    hold what a layout of these extents computes. Expressions stay.
    """
    whole = product_of([n for n in dims if isinstance(n, int)])
    kind = np.int64 if whole * ROOM < 1 << 63 else object
    return tuple(
        i.astype(object if i.dtype == np.uint64 and i.size and int(i.max()) >= 1 << 63 else kind)
        if isinstance(i, np.ndarray)
        else int(i)
        if isinstance(i, np.integer)
        else i
        for i in index
    )


def check_index(index: Sequence[Any], dims: Sequence[Dim], where: str, *, beyond: int = 0) -> tuple[Any, ...]:
    """The coordinates as `numbers`; outside their dimension refused, and expressions that are not proved within.

    Args:
        index, dims: one coordinate for each extent.
        where: the public function that asks.
        beyond: in so many leading dimensions an expression may pass the end; a mask covers it.

    Raises:
        LayoutError: out of range, not an integer, or a wrong number of coordinates.
        Unproved: a range with symbols is not proved.
    """
    if len(index) != len(dims):
        raise Incongruent(where, f"{len(index)} coordinates for {len(dims)} dimensions", inputs={"dims": tuple(dims)})
    for k, (i, n) in enumerate(zip(index, dims, strict=True)):
        if isinstance(i, Expr):
            require(i >= 0 if k < beyond else (i >= 0) & (i < n), where)
        elif isinstance(i, np.ndarray):
            if not _holds_integers(i):
                raise LayoutError(where, f"coordinate {k} is an array of {i.dtype}", legal="integers")
            outside = (i < 0) | (i >= n) if isinstance(n, int) else i < 0
            if outside.any():
                raise _outside(where, int(i[outside].flat[0]), k, dims)
            if isinstance(n, Expr) and i.size:
                require(int(i.max()) < n, where)
        elif isinstance(i, bool) or not isinstance(i, int | np.integer):
            raise LayoutError(where, f"coordinate {k} is {i!r}", legal="integers, integer arrays, index expressions")
        elif i < 0 or (isinstance(n, int) and i >= n):
            raise _outside(where, int(i), k, dims)
        elif isinstance(n, Expr):
            require(int(i) < n, where)
    return numbers(index, dims)


def _holds_integers(values: np.ndarray[Any, Any]) -> bool:
    if values.dtype == object:
        return all(isinstance(v, int) and not isinstance(v, bool) for v in values.flat)
    return values.dtype.kind in "iu"


def _outside(where: str, value: int, k: int, dims: Sequence[Dim]) -> LayoutError:
    return LayoutError(
        where,
        f"coordinate {value} is out of range in dimension {k}",
        inputs={"dims": tuple(map(str, dims))},
        legal=f"0..{dims[k] - 1}",
    )
