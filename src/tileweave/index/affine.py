"""Expressions taken apart and put together: substitution, bound symbols, and the affine part in one symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of
from tileweave.index.expr import Expr, ExprLike, as_number, constant_of, equal, symbol
from tileweave.index.normal.poly import Poly, exact_quotient, known_divisor, split
from tileweave.index.normal.read import Normal, normal_of, range_of, value_of
from tileweave.index.normal.write import Writer
from tileweave.index.prove import require
from tileweave.index.trees import rebuilt, symbols_of


@overload
def substitute(exprs: Expr, values: Mapping[Any, ExprLike], *, given: Sequence[Expr] = ()) -> Expr: ...
@overload
def substitute(
    exprs: Sequence[Expr], values: Mapping[Any, ExprLike], *, given: Sequence[Expr] = ()
) -> tuple[Expr, ...]: ...


def substitute(
    exprs: Expr | Sequence[Expr], values: Mapping[Any, ExprLike], *, given: Sequence[Expr] = ()
) -> Expr | tuple[Expr, ...]:
    """The expressions with symbols replaced, all at once; each new value is proved to lie in its symbol's range.

    The bounds of the symbols that stay are replaced too.

    Args:
        exprs: one expression, or several.
        values: symbol or name -> a number.
        given: conditions that hold besides the ranges of the symbols.

    Returns:
        One expression for one, a tuple for several.

    Raises:
        Unproved: a value may leave its symbol's range. LayoutError: a value is no integer.

    Example:
        >>> i, j = symbol("i", 0, 16), symbol("j", 0, 4)
        >>> print(substitute(i // 4 + i % 4, {i: j * 4 + 1}))
        (j * 4 + 1) // 4 + (j * 4 + 1) % 4

    Source: own.
    """
    where = "substitute(exprs, values)"
    roots = exprs_of(exprs)
    if not isinstance(values, Mapping):
        raise LayoutError(where, f"{values!r} is no mapping", legal="symbol or name -> number")
    new: dict[Expr, Expr] = {}
    for node in symbols_of(roots):  # each after the symbols of its bounds
        name, *limits = node.args
        bounds = [
            rebuilt((b,), lambda n, _parts: new.get(n))[b] if b is not None and b.parts else new.get(b, b)
            for b in limits
        ]
        value = values.get(node, values.get(name))
        if value is None:
            if bounds != limits:
                new[node] = symbol(name, bounds[0], bounds[1], multiple_of=bounds[2] if bounds[2] is not None else 1)
            continue
        new[node] = as_number(value, where)
        _require_within(new[node], bounds, where, given)
    done = rebuilt(roots, lambda node, _parts: new.get(node))
    found = tuple(done[root] for root in roots)
    return found[0] if isinstance(exprs, Expr) else found


def _require_within(value: Expr, bounds: Sequence[Expr | None], where: str, given: Sequence[Expr]) -> None:
    start, stop, step = bounds
    if start is not None:
        require(start <= value, where, given=given)
    if stop is not None:
        require(value < stop, where, given=given)
    if step is not None and constant_of(step) != 1:
        require(equal(value % step, 0), where, given=given)


def let(
    name: str,
    expr: ExprLike,
    start: ExprLike | None = None,
    stop: ExprLike | None = None,
    *,
    given: Sequence[Expr] = (),
) -> Expr:
    """A symbol that stands for an expression, with what is proved of it: its range, and what divides it.

    What is computed once, such as the tile of a program id, is proved once: later expressions use the symbol, and
    `substitute` puts the expression back.

    Args:
        name: of the symbol.
        expr: a number.
        start, stop: bounds to be proved, perhaps over other symbols; left out, the constant ones that are known.
        given: conditions that hold besides the ranges of the symbols.

    Raises:
        Unproved: the expression may leave the bounds.

    Example:
        >>> pid, n = symbol("pid", 0, 4096), symbol("n", 1)
        >>> let("row", pid // 64 * 8)
        symbol('row', 0, 505, multiple_of=8)
        >>> let("k", pid % n, 0, n)
        symbol('k', 0, symbol('n', 1, None))

    Source: own.
    """
    where = f"let({name!r}, expr)"
    node = as_number(expr, where)
    normal = normal_of(given)
    low, high = range_of(normal, node)
    if start is not None:
        require(as_number(start, where) <= node, where, given=given)
    if stop is not None:
        require(node < as_number(stop, where), where, given=given)
    least = low if start is None else start
    most = (None if high is None else high + 1) if stop is None else stop
    return symbol(name, least, most, multiple_of=max(known_divisor(value_of(normal, node)), 1))


def split_affine(expr: ExprLike, variable: Expr, *, given: Sequence[Expr] = ()) -> tuple[Expr, Expr] | None:
    """``(base, step)`` with ``expr == base + variable * step`` at every point, neither holding the variable, or None.

    A loop then adds the step instead of computing the expression anew.

    Args:
        expr: a number.
        variable: a symbol, such as a loop's counter.
        given: conditions that hold besides the ranges of the symbols.

    Returns:
        None where no such form is found: the variable stays inside a division, a select or a product with itself.

    Example:
        >>> k, j, K = symbol("k", 0, 64), symbol("j", 0, 32), symbol("K", 1)
        >>> base, step = split_affine((k * 32 + j) * K + 5, k)
        >>> print(base, "|", step)
        K * j + 5 | K * 32
        >>> split_affine((k * 32 + j) // 3, k) is None
        True

    Source: own (strength reduction).
    """
    where = "split_affine(expr, variable)"
    if not isinstance(variable, Expr) or variable.op != "sym":
        raise LayoutError(where, f"{variable!r} is no symbol", legal="a symbol of the expression")
    return split_in(normal_of(given), as_number(expr, where), variable)


def split_in(normal: Normal, expr: Expr, variable: Expr) -> tuple[Expr, Expr] | None:
    """`split_affine` where the facts are at hand."""
    p = value_of(normal, expr)
    ((mono, factor),) = value_of(normal, variable).items()  # the symbol, or its declared divisor times a quotient
    atom = mono[-1]
    slope, base, linear = split(p, atom)
    step = exact_quotient(slope, {mono[:-1]: factor})
    if not linear or step is None or _holds(normal, base, atom) or _holds(normal, step, atom):
        return None
    writer = Writer(normal.facts, digits=False)
    return writer.expr(base), writer.expr(step)


def _holds(normal: Normal, p: Poly, wanted: int) -> bool:
    """Whether an atom occurs in p, however deep, conditions of selects included."""
    seen: set[int] = set()
    stack = [number for mono in p for number in mono]
    symbol_wanted = normal.facts.atoms[wanted].expr
    while stack:
        number = stack.pop()
        if number == wanted:
            return True
        if number not in seen:
            seen.add(number)
            atom = normal.facts.atoms[number]
            if atom.kind == "select" and atom.expr is not None and symbol_wanted in symbols_of((atom.expr,)):
                return True
            stack += [inner for side in (atom.x, atom.y) for mono in side for inner in mono]
    return False
