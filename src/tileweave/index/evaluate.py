"""The meaning of an expression: its value at a point, or at many points at once with NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from operator import index as as_index
from typing import Any

import numpy as np

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of
from tileweave.index.expr import ON_NUMBERS, Expr, ExprLike, const, walk
from tileweave.index.normal.intervals import Interval, interval_of
from tileweave.index.trees import symbols_of

IntArray = np.ndarray[Any, Any]
Value = int | bool | IntArray

_INT64 = np.iinfo(np.int64)


def evaluate(expr: ExprLike, values: Mapping[str, Any] | Mapping[Expr, Any] | None = None, **named: Any) -> Value:
    """The value of the expression where its symbols have the given values; exact at any size.

    Args:
        expr: a number or a condition.
        values: symbol or name -> an int or an integer array; arrays broadcast.
        named: more values by name.

    Returns:
        An int or a bool; with arrays an array: int64, or Python ints (dtype object) where 64 bits might not hold
        an intermediate value.

    Raises:
        LayoutError: a symbol has no value, a value is no integer or outside its symbol's range, a division by zero.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> i = symbol("i", -8, 8)
        >>> evaluate(i // 4 * 10 + i % 4, i=-3)
        -9
        >>> evaluate(i % 4, i=np.arange(-2, 3))
        array([2, 3, 0, 1, 2])

    Source: own.
    """
    (root,) = exprs_of((expr,))
    if not isinstance(values, Mapping | None):
        raise LayoutError("evaluate(expr, values)", f"{values!r} is no mapping", legal="symbol or name -> integer")
    env = _environment((root,), {**dict(values or {}), **named})
    (value,), defined = values_of((root,), env)
    if not np.all(defined):
        where = "evaluate(expr, values)"
        raise LayoutError(
            where, "division by zero", inputs={"expr": root, **_sample(env, defined)}, legal="divisors != 0"
        )
    return value


def _environment(roots: Sequence[Expr], values: Mapping[Any, Any]) -> dict[Expr, Value]:
    """The value of every symbol under the roots, checked: integers, within the range, multiples where declared."""
    where = "evaluate(expr, values)"
    env: dict[Expr, Value] = {}
    needed = {node for node in walk(roots) if node.op == "sym"}
    for node in symbols_of(roots):
        given = values.get(node, values.get(node.args[0]))
        if given is None:
            if node in needed:
                raise LayoutError(where, f"symbol {node} has no value", inputs={"given": sorted(map(str, values))})
            continue
        env[node] = _integers(where, node, given)
        _, start, stop, factor = node.args
        if (low := _known(start, env)) is not None:
            _refuse(where, node, env[node], env[node] < low, f"{node} lies below {start}")
        if (high := _known(stop, env)) is not None:
            _refuse(where, node, env[node], env[node] >= high, f"{node} lies at or above {stop}")
        if factor is not const(1) and (step := _known(factor, env)) is not None:
            _refuse(where, node, env[node], env[node] % step != 0, f"{node} is no multiple of {factor}")
    return env


def _known(bound: Expr | None, env: Mapping[Expr, Value]) -> Any:
    """The value of a bound, if there is one and all its symbols have values."""
    if bound is None or bound.op == "const":
        return None if bound is None else bound.args[0]
    if not all(s in env for s in symbols_of((bound,))):
        return None
    (value,), defined = values_of((bound,), env)
    return value if np.all(defined) else None


def _refuse(where: str, node: Expr, value: Any, bad: Any, problem: str) -> None:
    if np.any(bad):
        first = np.broadcast_to(value, np.shape(bad))[bad].flat[0] if np.ndim(bad) else value
        raise LayoutError(where, problem, inputs={"value": first}, legal=repr(node))


def _integers(where: str, node: Expr, given: Any) -> Value:
    if isinstance(given, np.ndarray):
        if given.dtype.kind in "iu" or (given.dtype == object and all(type(v) is int for v in given.flat)):
            return given if given.dtype != np.uint64 else given.astype(object)
    elif not isinstance(given, bool):
        try:
            return int(as_index(given))
        except TypeError:
            pass
    shown = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else repr(given)
    raise LayoutError(where, f"the value of {node} is {shown}", legal="an int or an array of integers")


def _sample(env: Mapping[Expr, Value], defined: Any) -> dict[str, object]:
    """The values of the symbols at the first undefined point."""
    at = int(np.argmin(np.asarray(defined)))
    shape = np.shape(defined)
    return {str(s): np.broadcast_to(v, shape).flat[at] if np.ndim(v) else v for s, v in env.items()}


def values_of(roots: Sequence[Expr], env: Mapping[Expr, Value]) -> tuple[list[Value], Any]:
    """The values of several expressions at the same points, and where they are all defined (no divisor is zero).

    Nothing is checked: the ranges of symbols are the caller's business. Undefined points have some value.
    """
    order = walk(roots)
    values: dict[Expr, Any] = {}
    arrays = [node for node in order if node.op == "sym" and isinstance(env[node], np.ndarray)]
    if arrays:
        dtype = np.int64 if _fits(order, env) else object
        values = {node: np.asarray(env[node]).astype(dtype) for node in arrays}
    undefined: dict[Expr, Any] = {}  # node -> where it has no value; absent: nowhere
    for node in order:
        if node in values:
            continue
        parts = [values[part] for part in node.parts]
        bad: Any = False
        if node.op in ("floordiv", "mod"):
            bad = parts[1] == 0
            if np.any(bad):
                parts[1] = np.where(bad, 1, parts[1]) if isinstance(bad, np.ndarray) else 1
        elif node.op == "isqrt":
            bad = parts[0] < 0
            if np.any(bad):
                parts[0] = np.where(bad, 0, parts[0]) if isinstance(bad, np.ndarray) else 0
        values[node] = _apply(node, parts, env)
        if undefined:
            bad = np.logical_or(bad, _undefined_below(node, parts, undefined))
        if np.any(bad):
            undefined[node] = bad
    defined: Any = True
    for root in roots:
        if root in undefined:
            defined = defined & ~np.asarray(undefined[root])
    return [values[root] for root in roots], defined


def _undefined_below(node: Expr, parts: list[Any], undefined: Mapping[Expr, Any]) -> Any:
    """Where an operand has no value; of a select, where its condition or the branch that is chosen has none."""
    below = [undefined.get(part, False) for part in node.parts]
    if node.op == "select":
        return np.logical_or(below[0], np.where(np.asarray(parts[0], dtype=bool), below[1], below[2]))
    return np.logical_or.reduce(np.broadcast_arrays(*below)) if below else False


def _fits(order: Sequence[Expr], env: Mapping[Expr, Value]) -> bool:
    """Whether every intermediate value fits 64 bits, by interval arithmetic on the least and greatest inputs."""
    ends: dict[Expr, Interval] = {}
    for node in order:
        if node.op == "sym":
            value = env[node]
            if isinstance(value, np.ndarray):
                ends[node] = (int(value.min()), int(value.max())) if value.size else (0, 0)
            else:
                ends[node] = (int(value), int(value))
        elif node.op == "const":
            ends[node] = node.args[0], node.args[0]
        elif not node.is_condition:
            ends[node] = interval_of(node.op, [ends[part] for part in node.parts if not part.is_condition])
        else:
            continue
        low, high = ends[node]
        if low is None or high is None:  # a divisor whose interval holds zero
            x = ends[node.args[0]]
            widest = max(abs(end) for end in (*x, *ends[node.args[1]]) if end is not None)
            ends[node] = low, high = -widest - 1, widest + 1
        if low < _INT64.min or high > _INT64.max:
            return False
    return True


def _apply(node: Expr, parts: list[Any], env: Mapping[Expr, Value]) -> Any:
    arrays = any(isinstance(part, np.ndarray) for part in parts)
    match node.op:
        case "const" | "true":
            return node.args[0]
        case "sym":
            return env[node]
        case "min":
            return np.minimum(*parts) if arrays else min(parts)
        case "max":
            return np.maximum(*parts) if arrays else max(parts)
        case "isqrt":
            return _roots(parts[0]) if arrays else isqrt(parts[0])
        case "select":
            return np.where(*parts) if arrays else parts[1] if parts[0] else parts[2]
        case "and":
            return parts[0] & parts[1]
        case "or":
            return parts[0] | parts[1]
        case "not":
            return ~parts[0] if arrays else not parts[0]
    return ON_NUMBERS[node.op](*parts)


def _roots(values: IntArray) -> IntArray:
    """The integer square root of every element; the float root is off by at most one below 2**63."""
    if values.dtype == object:
        return np.asarray(np.frompyfunc(isqrt, 1, 1)(values), dtype=object)
    out = np.sqrt(values).astype(np.int64)
    out = np.minimum(out, isqrt(_INT64.max))  # its square must not wrap
    out -= out * out > values
    more = np.minimum(out + 1, isqrt(_INT64.max))
    return np.where(more * more <= values, more, out)
