"""What an expression costs to evaluate: counted operations, and a weighted cost with dear divisions.

`ops` is the number that tables of index simplifiers report. `cost` is what `simplify` minimises: every distinct
node once (common subexpressions are shared), a division or remainder by a power of two as cheap as a shift or a
mask, by another constant as a multiply and a shift, by a run-time value as the slow instruction that it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from tileweave.index.expr import Expr, as_expr, walk

Exprs = Expr | int | Iterable[Expr | int]


def exprs_of(exprs: Exprs) -> tuple[Expr, ...]:
    """One expression or many, as a tuple of nodes."""
    if isinstance(exprs, Expr) or not isinstance(exprs, Iterable):
        return (as_expr(exprs),)
    return tuple(as_expr(expr) for expr in exprs)


def ops(exprs: Exprs) -> int:
    """The operations of the expressions: each + - * // % compare, min, max, xor, select is one; shared // and % once.

    Other shared parts are counted at every use, as when the text is written out.

    Args:
        exprs: one expression, or several that are evaluated together.

    Returns:
        A count; constants and symbols are free.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> i = symbol("i", 0, 64)
        >>> ops([i // 8 + 1, i // 8 * 3 + i % 8])
        5

    Source: own; the metric of the comparison table of index simplifiers.
    """
    roots = exprs_of(exprs)
    return _ops(roots, walk(roots))


def scores(roots: tuple[Expr, ...]) -> tuple[int, int]:
    """``(cost, ops)`` of expressions that are evaluated together."""
    nodes = walk(roots)
    return _cost(nodes), _ops(roots, nodes)


def _ops(roots: tuple[Expr, ...], nodes: list[Expr]) -> int:
    written: dict[Expr, int] = {}  # operations when written out, divisions and remainders below left out
    divisions = 0
    for node in nodes:
        parts = node.parts
        count = 1 if parts else 0
        for part in parts:
            if part.op not in ("floordiv", "mod"):
                count += written[part]
        written[node] = count
        if node.op in ("floordiv", "mod"):
            divisions += written[node]
    return divisions + sum(written[root] for root in roots if root.op not in ("floordiv", "mod"))


def cost(exprs: Exprs) -> int:
    """The weighted cost after common-subexpression elimination; the unit is one addition.

    Args:
        exprs: one expression, or several that are evaluated together.

    Returns:
        The sum over distinct nodes: 1 for each, but // and % by a constant that is no power of two 4 and 5, by
        anything else 20; a remainder whose quotient is there too costs 2 more than the quotient.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> i, n = symbol("i", 0), symbol("n", 1)
        >>> cost(i // 8), cost(i // 6), cost(i // n), cost([i // n, i % n])
        (1, 4, 20, 22)

    Source: own; relative costs of integer instructions on current GPUs and CPUs, rounded.
    """
    return _cost(walk(exprs_of(exprs)))


def _cost(nodes: list[Expr]) -> int:
    quotients = {node.args for node in nodes if node.op == "floordiv"}
    total = 0
    for node in nodes:
        if not node.parts:
            continue
        total += 1
        if node.op == "floordiv":
            total += _division(node.args[1]) - 1
        elif node.op == "mod":
            dear = _division(node.args[1])
            total += 0 if dear == 1 else 1 if node.args in quotients else dear if dear == 4 else dear - 1
    return total


def _division(divisor: Expr) -> int:
    if divisor.op != "const":
        return 20
    value = divisor.args[0]
    return 1 if value > 0 and value & (value - 1) == 0 else 4
