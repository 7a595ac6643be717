"""`simplify`: the same values with fewer operations, by the rules of `rules.py`, never more than were given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from tileweave.errors import LayoutError
from tileweave.index.cost import Tally, exprs_of
from tileweave.index.expr import Expr, ExprLike
from tileweave.index.normal.read import Normal, fits, keep_products, load, normal_of
from tileweave.index.normal.write import Writer
from tileweave.index.trees import symbols_of, unconditional


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

    Several styles of writing the normal form are tried, and each expression keeps the writing with which all together
    cost least, the input itself among them. The same input always gives the same result.

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
    symbols_of(roots)  # one range for each name
    normal = normal_of(given)
    best = simplified(normal, roots, width)
    return best[0] if single else best


def simplified(normal: Normal, roots: tuple[Expr, ...], width: int | None = None) -> tuple[Expr, ...]:
    """`simplify` where the facts are at hand; they serve for more afterwards."""
    best = _cheapest([roots, *_candidates(normal, roots, width is not None)], normal, width)
    if not normal.expand:
        keep_products(normal, keep=False)
    return best


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
        if not writer.applied or (not every and (normal.saw_product or not writer.torn)):
            break  # the other style is the same, or hardly cheaper where there is the other way with products
    return out


def _cheapest(candidates: list[tuple[Expr, ...]], normal: Normal, width: int | None) -> tuple[Expr, ...]:
    """The candidate of the least score, then each expression as that candidate writes it with which all cost least.

    No choice has more ops than the first candidate.
    """
    most = 0 if width is None else 1 << (width - 1)
    tally = Tally(None if width is None else lambda node: not fits(normal, node, most))
    chosen = list(candidates[0])
    for root in chosen:
        tally.change(root, 1)
    limit = tally.ops
    for candidate in candidates[1:]:
        _exchange(tally, chosen, list(enumerate(candidate)), limit)
    if len(chosen) > 1:
        for place in range(len(chosen)):
            for writing in dict.fromkeys(candidate[place] for candidate in candidates):
                _exchange(tally, chosen, [(place, writing)], limit)
    return tuple(chosen)


def _exchange(tally: Tally, chosen: list[Expr], places: list[tuple[int, Expr]], limit: int) -> None:
    """Write some expressions otherwise, where that costs less."""
    places = [(place, writing) for place, writing in places if writing is not chosen[place]]
    before = tally.score
    for place, writing in places:
        tally.change(chosen[place], -1)
        tally.change(writing, 1)
    if tally.ops <= limit and tally.score < before:
        for place, writing in places:
            chosen[place] = writing
        return
    for place, writing in places:
        tally.change(writing, -1)
        tally.change(chosen[place], 1)
