"""The grammar of the three notations: a text as a tree of phrases.

Read by its own tokenizer and by recursive descent, and never evaluated as Python; `reader` says what phrases mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from tileweave.errors import LayoutError

Notation = Literal["any", "axe", "cute"]
"""What ``8:1`` or ``(4,2):(2,1)`` means: CuTe's layout, or Axe's. Iters in brackets are Axe's in either case."""

WHERE = "read(text)"
LEGAL = "such as (4,8):(1,4), (8:4@lane, 2:1@reg) + [2:1@warp], or OrderBy(Col(2,2)).GroupBy((4,))"

TOKEN = re.compile(r"(?P<number>_?\d+)|(?P<name>[^\W\d_]\w*|(?<=@)_\w+)|(?P<mark>//|[()\[\]<>:,@+\-*%=.^_])")

DEEPEST = 64
"""The deepest nesting of brackets and operators."""

LONGEST = 1000
"""The most digits of a number."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A part of an expression: its kind, where it starts, its own text and its parts."""

    kind: str
    at: int
    text: str = ""
    parts: tuple[Phrase, ...] = ()


def phrase(text: str, where: str = WHERE, legal: str = LEGAL, notation: Notation = "any") -> Phrase:
    """The tree of an expression.

    Raises:
        LayoutError: the text is malformed; a caret points at the place.

    Example:
        >>> phrase("8:2").kind
        'pair'
    """
    reader = _Reader(text, where, legal, notation)
    node = reader.composed()
    if reader.peek():
        reader.fail(f"{reader.peek()!r} is not expected here")
    return node


def pointed(text: str, at: int) -> str:
    """The text, cut to the neighbourhood of a place if it is long, over a caret at the place."""
    line = text.replace("\n", " ").replace("\t", " ")
    start = max(0, at - 60)
    shown = ("..." if start else "") + line[start : at + 60] + ("..." if len(line) > at + 60 else "")
    return f"{shown}\n{' ' * (at - start + 3 * bool(start))}^"


class _Reader:
    """A recursive-descent reader over the tokens of one text."""

    def __init__(self, text: str, where: str, legal: str, notation: Notation) -> None:
        self.text, self.where, self.legal, self.notation = text, where, legal, notation
        self.tokens: list[tuple[str, str, int]] = []
        self.next = self.depth = 0
        at = 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if match:
                self.tokens.append((match.lastgroup or "", match[0], at))
            elif not text[at].isspace():
                self.fail(f"{text[at]!r} is not expected", at)
            at = match.end() if match else at + 1
        self.tokens.append(("end", "", len(text.rstrip())))

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        raise LayoutError(self.where, problem, inputs={"text": pointed(self.text, place)}, legal=self.legal)

    def peek(self, ahead: int = 0) -> str:
        """The text of a token, "" at the end."""
        return self.tokens[min(self.next + ahead, len(self.tokens) - 1)][1]

    @property
    def kind(self) -> str:
        return self.tokens[self.next][0]

    @property
    def at(self) -> int:
        return self.tokens[self.next][2]

    def take(self, want: str = "") -> str:
        have = self.peek()
        if want and have != want:
            self.fail(f"{have!r} stands where {want!r} is expected" if have else f"the text ends before {want!r}")
        self.next += 1
        return have

    def composed(self) -> Phrase:
        """``f o g o ..``; the right one is applied first."""
        self.depth += 1
        if self.depth > DEEPEST + 1:  # the whole text is no bracket
            self.fail(f"the nesting is deeper than {DEEPEST}")
        parts = [self.pair()]
        at = self.at
        while self.kind == "name" and self.peek() == "o":
            self.take()
            parts.append(self.pair())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Phrase("composed", at, parts=tuple(parts))

    def pair(self) -> Phrase:
        """``shape:stride``, ``extent:stride``, ``begin:end``; with ``^`` behind, a layout with XOR strides."""
        left = self.xored()
        if self.peek() != ":":
            return left
        at = self.at
        self.take()
        right = self.xored()
        if right.kind == "sum" and right.parts[0].kind == "tuple":  # (8,2):(4@lane,1@warp) + R[..]
            whole = Phrase("pair", at, parts=(left, right.parts[0]))
            return Phrase("sum", right.at, right.text, (Phrase("shard", at, parts=(whole,)), *right.parts[1:]))
        if right.kind == "sum" and not all(part.kind in ("term", "negative") for part in right.parts):
            if self.notation != "axe":
                self.fail("a sum without axes as a stride; write (8:2) + 5 for an offset", right.at)
        if self.peek() == "^":
            self.take()
            return Phrase("xor", at, parts=(left, right))
        return Phrase("pair", at, parts=(left, right))

    def xored(self) -> Phrase:
        """Sums with ``^`` between them."""
        node = self.sum()
        while self.peek() == "^" and (self.tokens[self.next + 1][0] in ("name", "number") or self.peek(1) == "("):
            at = self.at
            self.take()
            node = Phrase("product", at, "^", (node, self.sum()))
        return node

    def sum(self) -> Phrase:
        parts = [self.product()]
        signs = ""
        at = self.at
        while self.peek() in ("+", "-"):
            signs += self.take()
            parts.append(self.product())
        return parts[0] if not signs else Phrase("sum", at, "+" + signs, tuple(parts))

    def product(self) -> Phrase:
        node = self.signed()
        while self.peek() in ("*", "//", "%"):
            at = self.at
            node = Phrase("product", at, self.take(), (node, self.signed()))
        return node

    def signed(self) -> Phrase:
        at = self.at
        if self.peek() == "-":
            self.take()
            self.depth += 1
            if self.depth > DEEPEST:
                self.fail(f"the nesting is deeper than {DEEPEST}", at)
            node = Phrase("negative", at, parts=(self.signed(),))
            self.depth -= 1
            return node
        return self.chain()

    def chain(self) -> Phrase:
        """An atom, its axes (``4@lane``, ``1@0@1``) and its methods (``.GroupBy((6,6))``)."""
        node = self.atom()
        while self.peek() in ("@", "."):
            at = self.at
            mark = self.take()
            if self.kind != "name" and not (mark == "@" and self.kind == "number" and self.notation != "axe"):
                self.fail("a name is missing" if mark == "." else "the name of an axis is missing")
            name = self.take()
            if mark == "@":
                node = Phrase("term", at, name, (node,))
            else:
                node = Phrase("method", at + 1, name, (node, *self.arguments()))
        return node

    def atom(self) -> Phrase:
        at, kind, text = self.at, self.kind, self.peek()
        if kind == "number":
            self.take()
            if len(text) > LONGEST:
                self.fail(f"a number of {len(text)} digits", at)
            return Phrase("number", at, text.lstrip("_"))
        if text == "_":
            self.take()
            return Phrase("free", at)
        if text in ("(", "[", "<"):
            return self.brackets({"(": ")", "[": "]", "<": ">"}[text])
        if kind != "name":
            self.fail(f"{text!r} is not expected here" if text else "the text ends too early")
        self.take()
        if text == "Sw" and self.peek() == "<":
            return Phrase("call", at, "Swizzle", self.brackets(">").parts)
        if text in ("S", "R") and self.peek() == "[":
            return Phrase("shard" if text == "S" else "replica", at, parts=self.brackets("]").parts)
        if text == "O" and self.peek() == "[":
            return Phrase("offset", at, parts=self.brackets("]").parts)
        if self.peek() == "(":
            return Phrase("call", at, text, self.arguments())
        return Phrase("name", at, text)

    def brackets(self, closing: str) -> Phrase:
        at = self.at
        opening = self.take()
        items = []
        comma = False
        while self.peek() != closing:
            items.append(self.composed())
            comma = self.peek() == ","
            if self.peek() != closing:
                if not comma:
                    have = self.peek()
                    self.fail(f"{have!r} stands where ',' or {closing!r} is expected" if have else f"no {closing!r}")
                self.take()
        self.take(closing)
        alone = len(items) == 1 and not comma and items[0].kind != "pair"
        if opening == "(" and alone and self.notation != "cute":  # CuTe writes (4) for a tuple of one
            return Phrase("bracketed", at, parts=tuple(items)) if items[0].kind == "sum" else items[0]
        return Phrase({"(": "tuple", "[": "list", "<": "tiler"}[opening], at, parts=tuple(items))

    def arguments(self) -> tuple[Phrase, ...]:
        """The arguments of a call; a named one is a node of kind "named"."""
        self.take("(")
        items = []
        while self.peek() != ")":
            at = self.at
            if self.kind == "name" and self.peek(1) == "=":
                name = self.take()
                self.take()
                items.append(Phrase("named", at, name, (self.composed(),)))
            else:
                items.append(self.composed())
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return tuple(items)
