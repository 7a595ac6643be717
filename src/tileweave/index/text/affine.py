"""Expressions as ``affine.apply``: one operation for each number that something needs, conditions in arith."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tileweave.errors import LayoutError
from tileweave.index.expr import Expr, constant_of
from tileweave.index.text.mlir import Operations
from tileweave.index.text.spell import PRODUCT, SUM, Spelling, spell

_SPELLING = Spelling(
    {
        "add": ("+", SUM),
        "sub": ("-", SUM),
        "mul": ("*", PRODUCT),
        "floordiv": ("floordiv", PRODUCT),
        "mod": ("mod", PRODUCT),
    },
    {},
    lambda node: str(node.args[0]),
)


class AffineOperations:
    """Writes expressions into `Operations`, numbers as affine maps of the symbols.

    Args:
        where: the public function, for errors.
        operations: holds names, lines and constants.
        nodes: every node, operands first.
        wanted: the numbers that the text names.
    """

    def __init__(self, where: str, operations: Operations, nodes: Iterable[Expr], wanted: Collection[Expr]) -> None:
        self.where = where
        self.operations = operations
        self._needed = set(wanted)
        for node in nodes:
            if node.is_condition:
                self._needed.update(node.parts)

    def write(self, node: Expr) -> None:
        """Append what the node needs, if anything does.

        Raises:
            LayoutError: a number that is no affine expression of the symbols.
        """
        if node.is_condition or (node.op in ("sym", "const") and node in self._needed):
            self.operations.write(node)
        elif node.parts and node in self._needed:
            self.operations.names[node] = self._apply(node)

    def _apply(self, root: Expr) -> str:
        names: dict[Expr, str] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            known = node in self.operations.names and node.op != "const"
            if known and node not in names:
                names[node] = f"d{len(names)}"
            elif not known:
                self._check(node)
                stack += reversed(node.parts)
        operands = ", ".join(self.operations.names[node] for node in names)
        dims = ", ".join(names.values())
        text = f"affine_map<({dims}) -> ({spell(root, _SPELLING, names)})>({operands})"
        return self.operations.apply(text)

    def _check(self, node: Expr) -> None:
        constants = [constant_of(part) is not None for part in node.parts]
        fine = node.op in ("add", "sub", "const") or (node.op == "mul" and any(constants))
        divisor = constant_of(node.parts[1]) if node.op in ("floordiv", "mod") else None
        if not fine and not (divisor is not None and divisor > 0):
            raise LayoutError(
                self.where, f"{node} is not affine", inputs={"dialect": "affine"},
                legal="sums, products with constants, // and % by positive constants; or the target mlir",
            )  # fmt: skip
