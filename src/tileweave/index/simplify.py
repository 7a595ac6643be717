"""`simplify`: the same values with fewer operations, by the rules of `rules.py`, never more than were given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of, scores
from tileweave.index.expr import Expr, ExprLike, walk
from tileweave.index.normal.read import Normal, keep_products, load, normal_of, range_of
from tileweave.index.normal.write import Writer
from tileweave.index.trees import unconditional


@overload
def simplify(exprs: ExprLike, *, given: Sequence[Expr] = (), width: int | None = None) -> Expr: ...
@overload
def simplify(
    exprs: Iterable[ExprLike], *, given: Sequence[Expr] = (), width: int | None = None
) -> tuple[Expr, ...]: ...


def simplify(
    exprs: ExprLike | Iterable[ExprLike], *, given: Sequence[Expr] = (), width: int | None = None
) -> Expr | tuple[Expr, ...]:
    """The result has the value of the input at every point of the ranges, and neither more `cost` nor more `ops`.

    Several styles of writing the normal form are tried and the cheapest is kept, the input itself among them. The
    same input always gives the same result.

    Args:
        exprs: one expression, or several that are evaluated together and may share parts.
        given: conditions that hold besides the ranges of the symbols.
        width: bits of an integer; the form with the fewest parts that may leave it comes before the cheapest.

    Returns:
        One expression for one, a tuple for several.

    Raises:
        LayoutError: a division by zero, an empty range, or two symbols of one name.

    Example:
        >>> from tileweave.index.expr import symbol, symbols
        >>> nk, BK = symbols("nk BK", 1)
        >>> k, j = symbol("k", 0, nk), symbol("j", 0, BK)
        >>> flat = k * BK + j
        >>> print(simplify(flat // BK * BK + flat % BK))
        k * BK + j

    Source: LEGO section 4.1 and Table 1, with the rules that it lacks; the method is our own.
    """
    single = isinstance(exprs, Expr) or not isinstance(exprs, Iterable)
    roots = exprs_of(exprs)
    normal = normal_of(given)
    best = _cheapest([roots, *_candidates(normal, roots, width is not None)], normal, width)
    return best[0] if single else best


def _candidates(normal: Normal, roots: tuple[Expr, ...], every: bool = False) -> list[tuple[Expr, ...]]:
    if all(not root.parts for root in roots):
        return []
    out = _styles(normal, roots, every)
    _refuse_zero_divisors(normal, roots)
    if normal.saw_product:
        keep_products(normal)
        out += _styles(normal, roots, every)
    return out


def _refuse_zero_divisors(normal: Normal, roots: tuple[Expr, ...]) -> None:
    """A divisor that is always zero is an error where it is always evaluated; in a branch it may never be chosen."""
    for node in unconditional(roots):
        if node.op in ("floordiv", "mod") and not normal.values[node.args[1]]:
            inputs = {"dividend": node.args[0], "divisor": node.args[1]}
            raise LayoutError(f"simplify({node.op})", "division by zero", inputs=inputs, legal="divisors != 0")


def _styles(normal: Normal, roots: tuple[Expr, ...], every: bool) -> list[tuple[Expr, ...]]:
    load(normal, roots)
    numbers = [root for root in roots if not root.is_condition]
    out = []
    for digits in (True, False):
        writer = Writer(normal.facts, digits=digits, group=not normal.expand)
        written = dict(zip(numbers, writer.all(normal.values[root] for root in numbers), strict=True))
        out.append(tuple(normal.conditions[root] if root.is_condition else written[root] for root in roots))
        if not every and (normal.saw_product or not writer.torn):
            break  # the other style is hardly cheaper, and there is the other way with products
    return out


def _cheapest(candidates: list[tuple[Expr, ...]], normal: Normal, width: int | None) -> tuple[Expr, ...]:
    """The first of the least cost, then of the least ops, among those with no more ops than the first candidate."""
    first, *others = candidates
    best, least = first, (_wide_parts(first, normal, width), *scores(first))
    most = least[2]
    for candidate in dict.fromkeys(others):
        score = (_wide_parts(candidate, normal, width), *scores(candidate))
        if score[2] <= most and score < least:
            best, least = candidate, score
    return best


def _wide_parts(roots: tuple[Expr, ...], normal: Normal, width: int | None) -> int:
    """The operations whose value is not known to fit the width; none where no width is asked for."""
    if width is None:
        return 0
    most, count = 1 << (width - 1), 0
    for node in walk(roots):
        if node.parts and not node.is_condition:
            low, high = range_of(normal, node)
            count += low is None or high is None or low < -most or high >= most
    return count
