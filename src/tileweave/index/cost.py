"""What an expression costs to evaluate: counted operations, and a weighted cost with dear divisions.

`ops` is the number that tables of index simplifiers report. `cost` is what `simplify` minimises: every distinct
node once (common subexpressions are shared), a division or remainder by a power of two as cheap as a shift or a
mask, by another constant as a multiply and a shift, by a run-time value as the slow instruction that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
    return _tallied(exprs).ops


class Tally:
    """The score of expressions that are evaluated together, as one of them after another is exchanged.

    Args:
        is_wide: of a number, whether it may leave the wanted width; None: no width is asked for.
    """

    def __init__(self, is_wide: Callable[[Expr], bool] | None = None) -> None:
        self._is_wide = is_wide
        self._uses: dict[Expr, int] = {}  # node -> how many expressions and present nodes it is, or is a part of
        self._remainders: dict[tuple[Expr, ...], Expr] = {}
        self._written: dict[Expr, int] = {}  # operations when written out, divisions and remainders below left out
        self._single: dict[Expr, tuple[int, int, int]] = {}
        self._inner: dict[Expr, tuple[Expr, ...]] = {}  # node -> those of its parts that have parts themselves
        self._quotients: set[tuple[Expr, ...]] = set()
        self.wide = self.cost = self.ops = 0

    @property
    def score(self) -> tuple[int, int, int]:
        """Parts that may leave the width, `cost`, `ops`."""
        return self.wide, self.cost, self.ops

    def change(self, root: Expr, by: int) -> None:
        """One expression more, or one less."""
        if root not in self._written:
            for node in walk((root,), known=self._written):
                self._enter(node)
        if not _divides(root):
            self.ops += by * self._written[root]
        uses, turn, inner = self._uses, 0 if by > 0 else 1, self._inner
        stack = [root] if root.parts else []
        while stack:
            node = stack.pop()
            before = uses.get(node, 0)
            uses[node] = before + by
            if before == turn:
                self._present(node, by)
                stack += inner[node]

    def _enter(self, node: Expr) -> None:
        parts = node.parts
        self._inner[node] = tuple([part for part in parts if part.parts])
        own = sum([self._written[part] for part in parts if not _divides(part)], 1 if parts else 0)
        self._written[node] = own
        wide = self._is_wide is not None and bool(parts) and not node.is_condition and self._is_wide(node)
        self._single[node] = int(wide), _alone(node), own if _divides(node) else 0

    def _present(self, node: Expr, by: int) -> None:
        """A node comes or goes: a remainder beside its quotient costs less."""
        wide, cost, operations = self._single[node]
        self.wide += by * wide
        self.cost += by * cost
        self.ops += by * operations
        if not _divides(node):
            return
        key = node.args
        if node.op == "floordiv":
            (self._quotients.add if by > 0 else self._quotients.discard)(key)
            remainder = self._remainders.get(key)
            if remainder is not None:
                self.cost -= by * _saved(remainder)
        else:
            if key in self._quotients:
                self.cost -= by * _saved(node)
            if by > 0:
                self._remainders[key] = node
            else:
                del self._remainders[key]


def _divides(node: Expr) -> bool:
    return node.op in ("floordiv", "mod")


def _alone(node: Expr) -> int:
    """What a node costs where no other helps."""
    if not node.parts:
        return 0
    if node.op == "floordiv":
        return _division(node.args[1])
    dear = _division(node.args[1]) if node.op == "mod" else 1
    return 5 if dear == 4 else dear


def _saved(remainder: Expr) -> int:
    """What a remainder costs less where its quotient is there too."""
    dear = _alone(remainder)
    return 0 if dear == 1 else dear - 2


def _tallied(exprs: Exprs) -> Tally:
    tally = Tally()
    for root in exprs_of(exprs):
        tally.change(root, 1)
    return tally


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
    return _tallied(exprs).cost


def _division(divisor: Expr) -> int:
    if divisor.op != "const":
        return 20
    value = divisor.args[0]
    return 1 if value > 0 and value & (value - 1) == 0 else 4
