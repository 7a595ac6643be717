"""Infix text of expressions with the fewest parentheses; every printer of one-line text is a `Spelling`.

Importing this module gives expressions their `str` and `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tileweave.index.expr import Expr, walk

# Binding strengths, weakest first, in Python's order; C binds & ^ | differently, so its spelling uses parentheses.
COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(9)
LONGEST_TEXT = 4000
"""Nodes in the written-out tree beyond which `str` and `repr` give a summary instead."""

Piece = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one language writes an expression: infix signs with their binding strength, and calls.

    Args:
        infix: op -> (sign, binding strength); the left operand may bind as weakly, the right one not.
        calls: op -> a format string with one ``{}`` per operand.
        leaf: text of a constant or a symbol.
        special: op -> a function of the node and its operands' pieces, tried first; None: not special after all.
        exact: keep the grouping of ``a + (b + c)``, which has the value of ``a + b + c`` but is another node.
    """

    infix: Mapping[str, tuple[str, int]]
    calls: Mapping[str, str]
    leaf: Callable[[Expr], str]
    special: Mapping[str, Callable[[Expr, list[Piece]], Piece | None]] = field(default_factory=dict)
    exact: bool = False


def bracket(piece: Piece, least: int) -> str:
    """The text of a piece, in parentheses where it binds more weakly than `least`."""
    text, strength = piece
    return text if strength >= least else f"({text})"


def spell(root: Expr, spelling: Spelling, names: Mapping[Expr, str]) -> str:
    """The text of one expression; nodes under `names` (temporaries) are written by their name. No recursion."""
    pieces: dict[Expr, Piece] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in pieces:
            stack.pop()
            continue
        if node in names and node is not root:
            pieces[stack.pop()] = names[node], ATOM
            continue
        missing = [part for part in node.parts if part not in pieces]
        if missing:
            stack += missing
        else:
            pieces[stack.pop()] = _piece(node, [pieces[part] for part in node.parts], spelling)
    return pieces[root][0]


def _piece(node: Expr, parts: list[Piece], spelling: Spelling) -> Piece:
    if node.op in spelling.special:
        piece = spelling.special[node.op](node, parts)
        if piece is not None:
            return piece
    if node.op in ("const", "sym", "true"):
        text = spelling.leaf(node)
        return text, UNARY if text.startswith("-") else ATOM
    if node.op in spelling.infix:
        sign, strength = spelling.infix[node.op]
        commutes = node.op in ("add", "and", "or") and not spelling.exact
        left = bracket(parts[0], strength if strength > COMPARE else COMPARE + 1)
        right = bracket(parts[1], strength if commutes else strength + 1)
        return f"{left} {sign} {right}", strength
    return spelling.calls[node.op].format(*(bracket(part, COMPARE) for part in parts)), ATOM


def tree_size(root: Expr, names: Collection[Expr] = ()) -> int:
    """The number of nodes of the expression written out as a tree, shared parts counted each time; names count one."""
    size: dict[Expr, int] = {}
    for node in walk([root]):
        size[node] = 1 if node in names and node is not root else 1 + sum(size[part] for part in node.parts)
    return size[root]


_INFIX = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "floordiv": ("//", PRODUCT), "mod": ("%", PRODUCT),
    "xor": ("^", XOR), "lt": ("<", COMPARE), "le": ("<=", COMPARE), "and": ("&", AND), "or": ("|", OR),
}  # fmt: skip


def _full_symbol(node: Expr) -> str:
    name, start, stop, factor = node.args
    words = [repr(name)]
    if start is not None or stop is not None:
        words += [render(b, full_symbols=True, leaf=True) if b is not None else "None" for b in (start, stop)]
    if factor.op != "const" or factor.args[0] != 1:
        words.append(f"multiple_of={render(factor, full_symbols=True, leaf=True)}")
    return f"symbol({', '.join(words)})"


def _leaf(node: Expr) -> str:
    return str(node.args[0])


def _full_leaf(node: Expr) -> str:
    if node.op == "true":
        return "equal(0, 0)" if node.args[0] else "equal(0, 1)"
    return _full_symbol(node) if node.op == "sym" else str(node.args[0])


SHORT = Spelling(
    {**_INFIX, "eq": ("==", COMPARE), "ne": ("!=", COMPARE)},
    {"min": "min({}, {})", "max": "max({}, {})", "isqrt": "isqrt({})", "select": "select({}, {}, {})", "not": "~({})"},
    _leaf,
)
FULL = Spelling(
    _INFIX,
    {
        "min": "minimum({}, {})",
        "max": "maximum({}, {})",
        "isqrt": "isqrt({})",
        "select": "select({}, {}, {})",
        "eq": "equal({}, {})",
        "ne": "unequal({}, {})",
        "not": "~({})",
    },
    _full_leaf,
    exact=True,
)


def render(root: Expr, *, full_symbols: bool, leaf: bool = False) -> str:
    """The text of an expression in this package's notation; with full symbols it evaluates back to the same node.

    Args:
        root: the expression.
        full_symbols: write ``symbol('i', 0, 8)`` and not ``i``.
        leaf: the text stands inside a call, where a constant needs no ``const(...)``.
    """
    if tree_size(root) > LONGEST_TEXT:
        return f"<expression of {len(walk([root]))} shared nodes>"
    if full_symbols and not leaf and root.op == "const":
        return f"const({root.args[0]})"
    return spell(root, FULL if full_symbols else SHORT, {})


def _text(self: Expr) -> str:
    return render(self, full_symbols=False)


def _full_text(self: Expr) -> str:
    return render(self, full_symbols=True)


for _name, _function in (("__str__", _text), ("__repr__", _full_text)):
    setattr(Expr, _name, _function)
