"""The paper's notation as text: ``(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp``.

Round brackets hold D, slowest iter first; square brackets hold R; the remaining terms are O. An iter is
``extent:stride``, a stride a signed sum of ``integer@axis``; a term without an axis lies on ``m``. In the place of an
integer, brackets may hold an index expression. ``str(layout)`` prints this form, and `parse` reads it back.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import Expr, maximum, minimum
from tileweave.layout.core.checks import need_axis, need_layouts
from tileweave.layout.core.layout import DEFAULT_AXIS, Coord, Iter, Layout

__all__ = ["parse", "to_text"]

WHERE = "parse(text)"
TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[^\W\d]\w*)|(?P<mark>[()\[\]:,@+\-*/%^]))")
LEGAL = "(extent:stride@axis, ..) + [extent:stride@axis, ..] + offset@axis"


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
}


def parse(text: str, symbols: Mapping[str, Expr] | None = None) -> Layout:
    """The layout that a text in the paper's notation denotes; ``parse(str(layout)) == layout`` for every layout.

    Args:
        text: the notation; blanks are free.
        symbols: the symbols that index expressions in the text may use, by name.

    Raises:
        LayoutError: the text is malformed; the message points at the place.

    Example:
        >>> parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp").size
        128
        >>> print(parse("(4:1, 2:1@a - 3@b) + 64"))
        (4:1@m, 2:1@a - 3@b) + 64@m
        >>> from tileweave.index import symbol
        >>> print(parse("(4:1) + (tx // 8 * 4)", {"tx": symbol("tx", 0, 32)}))
        (4:1@m) + (tx // 8 * 4)@m

    Source: Axe, sections 2.1 and 2.2 (Figure 7: a stride without an axis means ``m``).
    """
    if not isinstance(text, str):
        raise LayoutError(WHERE, f"{text!r} is not a text", legal=LEGAL)
    if symbols is not None and not (isinstance(symbols, Mapping) and all(isinstance(name, str) for name in symbols)):
        raise LayoutError(WHERE, f"{symbols!r} are not symbols by name", legal="a mapping from names to symbols")
    return _Reader(text, symbols or {}).layout()


class _Reader:
    """A cursor over the tokens of one text."""

    def __init__(self, text: str, symbols: Mapping[str, Expr]) -> None:
        self.text = text
        self.symbols = symbols
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if not match:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self.error(f"{text[at]!r} is not expected", at)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self.tokens.append(("end", "the end", len(text.rstrip())))
        self.next = 0

    def error(self, problem: str, at: int) -> LayoutError:
        return LayoutError(WHERE, problem, inputs={"text": f"{self.text}\n{' ' * at}^"}, legal=LEGAL)

    def peek(self) -> str:
        return self.tokens[self.next][1]

    def take(self, want: str = "", kind: str = "") -> str:
        have_kind, have, at = self.tokens[self.next]
        if (want and have != want) or (kind and have_kind != kind):
            raise self.error(f"{have!r} is not expected here, {want or 'a ' + kind} is", at)
        self.next += 1
        return have

    def layout(self) -> Layout:
        shard: tuple[Iter, ...] | None = None
        replica: tuple[Iter, ...] | None = None
        offset = Coord()
        first = True
        while first or self.peek() != "the end":
            sign = self.take() if self.peek() in "+-" else ""
            at = self.tokens[self.next][2]
            if not sign and not first:
                raise self.error(f"{self.peek()!r} is not expected here, + or - is", at)
            opening = self.peek()
            if opening in "([" and sign == "-" and not self.is_expression():
                raise self.error("iters cannot be subtracted", at)
            if opening == "(" and self.is_expression():
                offset = offset + self.term(-1 if sign == "-" else 1)
            elif opening == "(" and shard is None:
                shard = self.iters("(", ")")
            elif opening == "[" and replica is None:
                replica = self.iters("[", "]")
            elif opening in "([":
                raise self.error(f"a second {opening!r}", at)
            else:
                offset = offset + self.term(-1 if sign == "-" else 1)
            first = False
        return Layout(shard or (), replica or (), offset)

    def iters(self, opening: str, closing: str) -> tuple[Iter, ...]:
        self.take(opening)
        out: list[Iter] = []
        while self.peek() != closing:
            at = self.tokens[self.next][2]
            extent = self.number()
            if not isinstance(extent, Expr) and extent < 1:
                raise self.error(f"the extent {extent} is not positive", at)
            self.take(":")
            out.append(Iter(extent, self.stride()))
            if self.peek() != closing:
                self.take(",")
        self.take(closing)
        return tuple(out)

    def stride(self) -> Coord:
        sign = self.take() if self.peek() in "+-" else "+"
        total = self.term(-1 if sign == "-" else 1)
        while self.peek() in "+-":
            total = total + self.term(-1 if self.take() == "-" else 1)
        return total

    def term(self, sign: int) -> Coord:
        value = self.number() if sign > 0 else -self.number()
        axis = DEFAULT_AXIS
        if self.peek() == "@":
            self.take()
            axis = self.take(kind="name")
        return Coord(((axis, value),))

    # Index expressions in brackets.

    def is_expression(self) -> bool:
        """Whether an index expression in brackets starts here, and not a list of iters."""
        inside = self.text[self.tokens[self.next][2] + 1 : self.closing()]
        return self.peek() == "(" and ":" not in inside and not re.fullmatch(r"[\d\s,]*", inside)

    def closing(self) -> int:
        """Where the bracket that opens here closes."""
        depth = 0
        for kind, mark, at in self.tokens[self.next :]:
            depth += (kind == "mark") * ((mark == "(") - (mark == ")"))
            if depth == 0:
                return at
        return len(self.text)

    def number(self) -> Any:
        if self.peek() != "(":
            return int(self.take(kind="number"))
        start, end = self.tokens[self.next][2], self.closing()
        try:
            tree = ast.parse(self.text[start + 1 : end].strip(), mode="eval").body
        except SyntaxError:
            raise self.error("this is no index expression", start) from None
        while self.tokens[self.next][0] != "end" and self.tokens[self.next][2] <= end:
            self.next += 1
        return self.build(tree, start)

    def build(self, node: ast.AST, at: int) -> Any:
        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.Name(id=name):
                known = ", ".join(self.symbols) or "none"
                raise self.error(f"the symbol {name} is not given; known: {known}", at)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.build(left, at), self.build(right, at))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.build(operand, at))
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=[]) if len(args) > 1:
                return (minimum if name == "min" else maximum)(*(self.build(a, at) for a in args))
        raise self.error(f"{ast.unparse(node)} is not allowed here", at)


def to_text(layout: Layout, *, bare_axis: str = "") -> str:
    """The text form of a layout, with one axis left unnamed if `bare_axis` names it (``"m"`` reads back as it was).

    Example:
        >>> to_text(Layout(((2, 192), (8, {"lane": 8}))), bare_axis="m")
        '(2:192, 8:8@lane)'
    """
    need_layouts("to_text(layout)", layout)
    if bare_axis.__class__ is not str or bare_axis:
        need_axis("to_text(layout, bare_axis)", bare_axis)
    text = str(layout)
    return re.sub(rf"@{re.escape(bare_axis)}\b", "", text) if bare_axis else text
