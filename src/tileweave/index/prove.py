"""Proofs and counterexamples: a condition over all points of the ranges, and the equality of two expressions.

Three ways, in this order: the normal form with range and divisibility proofs, which knows symbolic bounds; every point,
below a stated number of points; and a search for a counterexample at corners and random points. What none of them
decides stays open, and is reported as open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import LayoutError, Unproved
from tileweave.index.cost import exprs_of
from tileweave.index.evaluate import IntArray, Value, values_of
from tileweave.index.expr import Expr, ExprLike, as_expr, as_number, equal, unequal
from tileweave.index.normal.intervals import Interval
from tileweave.index.normal.poly import known_divisor, subtract
from tileweave.index.normal.read import follows, normal_of, range_of, value_of
from tileweave.index.normal.rules import without_remainders
from tileweave.index.provers import Verdict, ask, bijective_by_isl, facts_of
from tileweave.index.trees import symbols_of

EXHAUSTIVE_LIMIT = 1 << 24
"""Points up to which every point is tried, unless the caller says otherwise."""
CHUNK = 1 << 18
"""Points tried at once: an array of 2 MiB per node of the expressions."""
SAMPLES = 1 << 12
"""Points drawn at once, where there are too many to try all."""
MEMORY = 1 << 12
"""Conditions whose proof is remembered: a kernel's layouts ask for the range of the same index again and again."""
REACH = 40
"""How far beyond a bound a symbol without an opposite bound is sampled."""


def prove(
    condition: Expr | bool, *, given: Sequence[Expr] = (), limit: int = EXHAUSTIVE_LIMIT, using: str | None = None
) -> Verdict:
    """Whether the condition holds wherever it is defined and its symbols are in range: proved, refuted or open.

    Args:
        condition: comparisons, joined by ``& | ~``.
        given: conditions that hold besides the ranges.
        limit: the most points that are all tried when the ranges alone do not decide; 0: none.
        using: ``"z3"`` asks that solver where the question would stay open.

    Raises:
        LayoutError: not a condition, or the ranges hold no point.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> BK, nk = symbol("BK", 1), symbol("nk", 1)
        >>> k, s = symbol("k", 0, nk), symbol("s", 0, BK)
        >>> prove(k * BK + s < nk * BK).how
        'ranges'
        >>> prove(k * BK + s < nk * BK - 1).witness
        {'nk': 1, 'k': 0, 'BK': 1, 's': 0}

    Source: own.
    """
    condition = _condition("prove(condition)", condition)
    if proved(condition, given=given):
        return Verdict(True, "ranges")
    normal = normal_of(given, (condition,))
    settled = normal.conditions[condition]
    if settled.op == "true" and settled.args[0]:
        return Verdict(True, "ranges")
    return _search(condition, given, limit, using)


def proved(condition: Expr | bool, *, given: Sequence[Expr] = ()) -> bool:
    """Whether the ranges alone prove a condition: `prove` without its search for a point where the condition fails.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> n = symbol("n", 1)
        >>> i = symbol("i", 0, n)
        >>> proved(i < n), proved(i < 5)
        (True, False)
    """
    condition = _condition("proved(condition)", condition)
    if isinstance(given, tuple | list) and all(isinstance(fact, Expr) for fact in given):
        return _proved(condition, tuple(given))
    return follows(normal_of(given), condition)  # which refuses what is given


@lru_cache(maxsize=MEMORY)
def _proved(condition: Expr, given: tuple[Expr, ...]) -> bool:
    return follows(normal_of(given), condition)


def require(condition: Expr | bool, where: str, *, given: Sequence[Expr] = ()) -> None:
    """Nothing, if the condition is proved; else an `Unproved` that names it.

    Args:
        condition: what must hold.
        where: the public function on whose behalf it is asked.
        given: conditions that hold besides the ranges.

    Raises:
        Unproved: with the condition, and the point where it fails if one is known.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> i = symbol("i", 0, 8)
        >>> require(i < 9, "f(i)")
    """
    condition = _condition(where, condition)
    if proved(condition, given=given):
        return
    verdict = prove(condition, given=given)
    if verdict:
        return
    facts: dict[str, Any] = {"condition": condition, "witness": verdict.witness}
    ranges = {str(node): repr(node) for node in symbols_of((condition,))}
    if verdict.holds is False:
        point = ", ".join(f"{name} = {value}" for name, value in verdict.witness.items())
        problem = f"{condition} fails at {point}"
    else:
        problem = f"{condition} is not proved"
    raise Unproved(where, problem, inputs=ranges, legal="ranges or given conditions that imply it", facts=facts)


def equivalent(
    a: ExprLike,
    b: ExprLike,
    *,
    given: Sequence[Expr] = (),
    limit: int = EXHAUSTIVE_LIMIT,
    using: str | None = None,
) -> Verdict:
    """Whether a and b have the same value wherever both are defined: by normal form, every point, or a counterexample.

    Args:
        a, b: two numbers, or two conditions.
        given: conditions that hold besides the ranges.
        limit: the most points that are all tried; 0: none.
        using: ``"z3"`` asks that solver where the question would stay open.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> x, d = symbol("x"), symbol("d", 1)
        >>> equivalent(x // d * d + x % d, x).how
        'normal form'
        >>> equivalent(x // 2, (x + 1) // 2).witness
        {'x': -1}

    Source: own.
    """
    a, b = as_expr(a, "equivalent(a, b)"), as_expr(b, "equivalent(a, b)")
    if a.is_condition != b.is_condition:
        inputs = {"a": a, "b": b}
        raise LayoutError("equivalent(a, b)", "a number and a condition", inputs=inputs, legal="two of a kind")
    normal = normal_of(given, (a, b))
    if a.is_condition:
        same = normal.conditions[a] is normal.conditions[b]
        question = (a & b) | (~a & ~b)
    else:
        same = not without_remainders(normal.facts, subtract(normal.values[a], normal.values[b]))
        question = equal(a, b)
    return Verdict(True, "normal form") if same else _search(question, given, limit, using)


def bijective(
    exprs: ExprLike | Iterable[ExprLike],
    extents: Sequence[int],
    *,
    limit: int = EXHAUSTIVE_LIMIT,
    using: str | None = None,
) -> Verdict:
    """Whether the expressions take every value of the box of extents exactly once over the ranges of their symbols.

    Args:
        exprs: one number, or one per dimension of the box.
        extents: of the box, from zero.
        limit: the most points, and values, that are all tried; 0: none.
        using: ``"isl"`` asks that library where the question would stay open; quasi-affine expressions only.

    Returns:
        A verdict; where two points have one value, or a value leaves the box, they are its `witness` and `other`.

    Raises:
        LayoutError: as many extents as expressions are needed, all positive; a symbol without constant bounds.

    Example:
        >>> from tileweave.index.expr import symbols
        >>> i, j = symbols("i j", 0, 8)
        >>> bijective(i // 2 * 16 + i % 2 + j * 2, [64]).how
        'every point'
        >>> verdict = bijective(i * 4 + j, [64])
        >>> verdict.holds, verdict.witness, verdict.other
        (False, {'i': 0, 'j': 4}, {'i': 1, 'j': 0})

    Source: own.
    """
    where = "bijective(exprs, extents)"
    roots = exprs_of(exprs)
    if not isinstance(extents, tuple | list) or len(extents) != len(roots) or any(root.is_condition for root in roots):
        raise LayoutError(where, f"{len(roots)} expressions for {extents!r}", legal="one number for each extent")
    if any(type(n) is not int or n < 1 for n in extents) or type(limit) is not int:
        raise LayoutError(where, f"extents {extents!r}, limit {limit!r}", legal="positive extents, an int as limit")
    nodes = symbols_of(roots)
    boxes = _boxes(nodes)
    if boxes is None:
        raise LayoutError(where, "a symbol has no constant bounds", inputs={s.args[0]: repr(s) for s in nodes})
    if max(prod(high - low + 1 for low, high in boxes), prod(extents)) <= limit:
        return _count_values(roots, extents, nodes, boxes)
    if using is None:
        return Verdict(None, "open")
    if using != "isl":
        raise LayoutError(where, f"no prover {using!r}", legal="'isl'")
    return Verdict(bijective_by_isl(roots, extents), "isl")


def _count_values(
    roots: Sequence[Expr], extents: Sequence[int], nodes: Sequence[Expr], boxes: Sequence[tuple[int, int]]
) -> Verdict:
    """Every point tried: each value of the box must be met, and none twice."""
    sizes = [high - low + 1 for low, high in boxes]
    holder = np.full(prod(extents), -1, dtype=np.int64)  # the number of the point that has the value
    tried = start = 0

    def point(number: int) -> dict[str, int]:
        found = {}
        for node, (low, _), size in zip(reversed(nodes), reversed(boxes), reversed(sizes), strict=True):
            number, digit = divmod(number, size)
            found[str(node)] = digit + low
        return dict(reversed(found.items()))

    for env in _grid(nodes, boxes):
        count = _length(env)
        values, defined = values_of(roots, env)
        inside = np.flatnonzero(np.broadcast_to(_inside(nodes, (), env) & np.asarray(defined), count))
        flat, kept = np.zeros(len(inside), dtype=np.int64), np.ones(len(inside), dtype=bool)
        for value, extent in zip(values, extents, strict=True):
            digit = np.broadcast_to(np.asarray(value), count)[inside]
            kept &= np.asarray((digit >= 0) & (digit < extent), dtype=bool)
            flat = flat * extent + np.where(kept, digit, 0).astype(np.int64)
        numbers = inside + start
        tried += len(inside)
        if not kept.all():
            return Verdict(False, "counterexample", point(int(numbers[np.argmin(kept)])), tried)
        order = np.argsort(flat, kind="stable")
        again = np.flatnonzero(flat[order][1:] == flat[order][:-1])
        taken = np.flatnonzero(holder[flat] >= 0)
        if taken.size:
            at = int(taken[0])
            return Verdict(False, "counterexample", point(int(holder[flat[at]])), tried, point(int(numbers[at])))
        if again.size:
            one, two = (point(int(numbers[order[int(again[0]) + k]])) for k in (0, 1))
            return Verdict(False, "counterexample", one, tried, two)
        holder[flat] = numbers
        start += count[0]
    return Verdict(tried == len(holder), "every point" if tried == len(holder) else "counterexample", points=tried)


def bounds(expr: ExprLike, *, given: Sequence[Expr] = ()) -> Interval:
    """Integers ``(low, high)`` with ``low <= expr <= high`` proved; None where no constant bound is found.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> i = symbol("i", 0, 100)
        >>> bounds(i // 8 * 4 + 3)
        (3, 51)
        >>> bounds(symbol("n", 1) * 2)
        (2, None)
    """
    return range_of(normal_of(given), as_number(expr, "bounds(expr)"))


def divisor(expr: ExprLike) -> int:
    """The greatest integer known to divide the expression at every point; 0 only for the constant zero.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> divisor(symbol("i") * 12 + symbol("n", multiple_of=8) + 4)
        4
    """
    return known_divisor(value_of(normal_of(), as_number(expr, "divisor(expr)")))


def _condition(where: str, condition: Expr | bool) -> Expr:
    if isinstance(condition, bool):
        return equal(0, 0) if condition else unequal(0, 0)
    if not isinstance(condition, Expr) or not condition.is_condition:
        raise LayoutError(where, f"{condition} is not a condition", legal="a comparison of expressions")
    return condition


# -- points -----------------------------------------------------------------------------------------------


def _search(condition: Expr, given: Sequence[Expr], limit: int, using: str | None) -> Verdict:
    if type(limit) is not int:
        raise LayoutError("prove(condition)", f"limit {limit!r} is no number of points", legal="an int from 0")
    nodes = symbols_of((condition, *given))
    boxes = _boxes(nodes)
    size = None if boxes is None else prod(high - low + 1 for low, high in boxes)
    every = size is not None and size <= limit
    points = 0
    for env in _grid(nodes, boxes) if every and boxes is not None else _samples(nodes):
        inside = _inside(nodes, given, env)
        (holds,), defined = values_of((condition,), env)
        inside = np.broadcast_to(inside & np.asarray(defined), _length(env))
        points += int(np.count_nonzero(inside))
        failing = inside & ~np.broadcast_to(np.asarray(holds, dtype=bool), inside.shape)
        if failing.any():
            at = int(np.argmax(failing))
            witness = {str(node): int(np.broadcast_to(env[node], inside.shape)[at]) for node in nodes}
            return Verdict(False, "counterexample", witness, points)
    if every:
        if points == 0:
            raise LayoutError(
                "prove(condition)", "the ranges hold no point", inputs={s.args[0]: repr(s) for s in nodes}
            )
        return Verdict(True, "every point", points=points)
    if using is not None:
        return ask(using, condition, given)
    return Verdict(None, "open", points=points)


def _length(env: dict[Expr, Value]) -> tuple[int]:
    return (max((np.size(value) for value in env.values()), default=1),)


def _boxes(nodes: Sequence[Expr]) -> list[tuple[int, int]] | None:
    """The numeric interval of every symbol, if all are bounded."""
    normal = normal_of()
    out = []
    for node in nodes:
        low, high = range_of(normal, node)
        if low is None or high is None:
            return None
        out.append((low, max(low, high)))
    return out


def _grid(nodes: Sequence[Expr], boxes: Sequence[tuple[int, int]]) -> Iterator[dict[Expr, Value]]:
    """Every point of the boxes, in chunks; the first symbol slowest."""
    sizes = [high - low + 1 for low, high in boxes]
    for start in range(0, prod(sizes), CHUNK):
        flat = np.arange(start, min(start + CHUNK, prod(sizes)), dtype=np.int64)
        env: dict[Expr, Value] = {}
        for node, (low, _), size in zip(reversed(nodes), reversed(boxes), reversed(sizes), strict=True):
            small = -(1 << 62) <= low < 1 << 62  # and size is at most the number of points
            env[node] = flat % size + low if small else (flat % size).astype(object) + low
            flat = flat // size
        yield env


def _samples(nodes: Sequence[Expr]) -> Iterator[dict[Expr, Value]]:
    """Points near the bounds and random ones, the bounds of a symbol chosen before the symbol; always the same."""
    random = np.random.default_rng(0)
    for reach in (2, REACH, REACH * REACH):
        env: dict[Expr, Value] = {}
        for node in nodes:
            _, start, stop, factor = node.args
            (step,), _ = values_of((factor,), env)
            below, above = _end(start, env), _end(stop, env)
            low: Any = below if below is not None else -reach * step if above is None else above - 1 - reach * step
            high: Any = above if above is not None else low + reach * step + 1
            drawn = low + _drawn(random, np.maximum(high - low, 1))
            corner = random.integers(0, 4, SAMPLES)
            corner[0] = 0  # every symbol at its least value comes first
            drawn = np.where(corner == 0, low, np.where(corner == 1, high - 1, drawn))
            env[node] = -(-drawn // step) * step
        yield env


def _drawn(random: np.random.Generator, width: Any) -> IntArray:
    """A number below each width, of any size."""
    parts = random.random(SAMPLES)
    if np.max(width) < 1 << 52:
        return np.asarray(parts * width, dtype=np.int64)
    scaled = [int(part * (1 << 53)) for part in parts]
    return np.array([s * int(w) >> 53 for s, w in zip(scaled, np.broadcast_to(width, (SAMPLES,)), strict=True)], object)


def _end(bound: Expr | None, env: dict[Expr, Value]) -> IntArray | None:
    if bound is None:
        return None
    (value,), _ = values_of((bound,), env)
    return np.broadcast_to(np.asarray(value), (SAMPLES,))  # NumPy chooses objects for what no int64 holds


def _inside(nodes: Sequence[Expr], given: Sequence[Expr], env: dict[Expr, Value]) -> Any:
    """Where the symbols are in their ranges and everything given holds."""
    inside: Any = np.bool_(True)
    for node in nodes:
        values, defined = values_of(facts_of(node), env)
        for value in (*values, defined):
            inside = inside & np.asarray(value, dtype=bool)
    values, defined = values_of(list(given), env)
    for value in (*values, defined):
        inside = inside & np.asarray(value, dtype=bool)
    return inside
