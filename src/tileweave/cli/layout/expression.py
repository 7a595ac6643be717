"""Expressions of the layout algebra as text: the three notations, and calls of their operations by name.

A small language of its own, read by its own tokenizer and never evaluated as Python::

    (4,8):(1,4)                                   CuTe: shape:stride, first mode fastest
    (8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp    Axe: shard, replica, offset; row-major
    OrderBy(Col(2,2), Row(3,3)).GroupBy((6,6))    LEGO: pieces and chains; row-major
    composition((4,8):(1,4), 8:2)                 an operation, on any of them
    Sw<3,3,3> o 0 o (8,64):(64,1)                 a swizzle before a layout

A list of pairs in round brackets is an Axe layout; where a CuTe operation takes a tiler it is a tiler, as is a list in
angle brackets, ``<3:4, 8:2>``.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import Expr
from tileweave.layout import Coord, Iter, Layout
from tileweave.layout.cute import ComposedLayout, CuteLayout, E, F2Map, Swizzle, XorLayout
from tileweave.layout.cute import _ as FREE

__all__ = ["Node", "PairList", "evaluate", "read", "signature_of"]

WHERE = "tileweave layout"
LEGAL = "such as (4,8):(1,4), (8:4@lane, 2:1@reg) + [2:1@warp], or composition((4,8):(1,4), 8:2); see --help"

TOKEN = re.compile(r"(?P<number>_?\d+)|(?P<name>[^\W\d_]\w*)|(?P<mark>//|[()\[\]<>:,@+\-*%=.^_])")

DEEPEST = 64
"""The deepest nesting of brackets and operators."""

LONGEST = 40
"""The most digits of a number."""

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


# ---------------------------------------------------------------------------------------------------------------------
# reading


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression: its kind, where it starts, its own text and its parts."""

    kind: str
    at: int
    text: str = ""
    parts: tuple[Node, ...] = ()


def read(text: str) -> Node:
    """The tree of an expression.

    Raises:
        LayoutError: the text is malformed; a caret points at the place.

    Example:
        >>> read("8:2").kind
        'pair'
    """
    reader = _Reader(text)
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

    def __init__(self, text: str) -> None:
        self.text = text
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
        raise LayoutError(WHERE, problem, inputs={"text": pointed(self.text, place)}, legal=LEGAL)

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

    def composed(self) -> Node:
        """``f o g o ..``; the right one is applied first."""
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"the nesting is deeper than {DEEPEST}")
        parts = [self.pair()]
        at = self.at
        while self.kind == "name" and self.peek() == "o":
            self.take()
            parts.append(self.pair())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Node("composed", at, parts=tuple(parts))

    def pair(self) -> Node:
        """``shape:stride``, ``extent:stride``, ``begin:end``; with ``^`` behind, a layout with XOR strides."""
        left = self.sum()
        if self.peek() != ":":
            return left
        at = self.at
        self.take()
        right = self.sum()
        if right.kind == "sum" and not all(part.kind in ("term", "negative") for part in right.parts):
            self.fail("a sum without axes as a stride; write (8:2) + 5 for an offset", right.at)
        if self.peek() == "^":
            self.take()
            return Node("xor", at, parts=(left, right))
        return Node("pair", at, parts=(left, right))

    def sum(self) -> Node:
        parts = [self.product()]
        signs = ""
        at = self.at
        while self.peek() in ("+", "-"):
            signs += self.take()
            parts.append(self.product())
        return parts[0] if not signs else Node("sum", at, "+" + signs, tuple(parts))

    def product(self) -> Node:
        node = self.signed()
        while self.peek() in OPERATORS:
            at = self.at
            node = Node("product", at, self.take(), (node, self.signed()))
        return node

    def signed(self) -> Node:
        at = self.at
        if self.peek() == "-":
            self.take()
            self.depth += 1
            if self.depth > DEEPEST:
                self.fail(f"the nesting is deeper than {DEEPEST}", at)
            node = Node("negative", at, parts=(self.signed(),))
            self.depth -= 1
            return node
        return self.chain()

    def chain(self) -> Node:
        """An atom, its axes (``4@lane``, ``1@0@1``) and its methods (``.GroupBy((6,6))``)."""
        node = self.atom()
        while self.peek() in ("@", "."):
            at = self.at
            mark = self.take()
            if self.kind != "name" and not (mark == "@" and self.kind == "number"):
                self.fail("a name is missing" if mark == "." else "the name of an axis is missing")
            name = self.take()
            if mark == "@":
                node = Node("term", at, name, (node,))
            else:
                node = Node("method", at + 1, name, (node, *self.arguments()))
        return node

    def atom(self) -> Node:
        at, kind, text = self.at, self.kind, self.peek()
        if kind == "number":
            self.take()
            if len(text) > LONGEST:
                self.fail(f"a number of {len(text)} digits", at)
            return Node("number", at, text.lstrip("_"))
        if text == "_":
            self.take()
            return Node("free", at)
        if text in ("(", "[", "<"):
            return self.brackets({"(": ")", "[": "]", "<": ">"}[text])
        if kind != "name":
            self.fail(f"{text!r} is not expected here" if text else "the text ends too early")
        self.take()
        if text == "Sw" and self.peek() == "<":
            return Node("call", at, "Swizzle", self.brackets(">").parts)
        if self.peek() == "(":
            return Node("call", at, text, self.arguments())
        return Node("name", at, text)

    def brackets(self, closing: str) -> Node:
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
        if opening == "(" and len(items) == 1 and not comma and items[0].kind != "pair":
            return items[0]
        return Node({"(": "tuple", "[": "list", "<": "tiler"}[opening], at, parts=tuple(items))

    def arguments(self) -> tuple[Node, ...]:
        """The arguments of a call; a named one is a node of kind "named"."""
        self.take("(")
        items = []
        while self.peek() != ")":
            at = self.at
            if self.kind == "name" and self.peek(1) == "=":
                name = self.take()
                self.take()
                items.append(Node("named", at, name, (self.composed(),)))
            else:
                items.append(self.composed())
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return tuple(items)


# ---------------------------------------------------------------------------------------------------------------------
# values


@dataclass(frozen=True, slots=True)
class PairList:
    """Pairs in brackets, before it is known what they are: iters, a tiler, or the intervals of a box."""

    pairs: tuple[tuple[Any, Any], ...]
    square: bool = False

    def core(self) -> Layout:
        """The Axe layout: D from round brackets, R from square ones."""
        iters = tuple(Iter(n, Coord.of(d)) for n, d in self.pairs)
        return Layout((), iters) if self.square else Layout(iters)

    def tiler(self) -> Any:
        """The CuTe tiler: one layout per mode; a single pair is a layout."""
        layouts = tuple(CuteLayout(n, d) for n, d in self.pairs)
        return layouts[0] if len(layouts) == 1 else layouts


def evaluate(
    text: str,
    functions: Mapping[str, Callable[..., Any]],
    methods: Mapping[str, tuple[type, ...]],
    symbols: Mapping[str, Any] | None = None,
) -> Any:
    """What an expression denotes; a list of pairs on its own is an Axe layout.

    Args:
        text: the expression.
        functions: the operations by name, each taking the evaluated arguments.
        methods: the names that may follow a dot, and the classes that have them.
        symbols: the values of names that are not called.

    Raises:
        LayoutError: the text is malformed, or an argument does not fit; a caret points at the place.
        TileweaveError: what the operations raise, with the place added.

    Example:
        >>> print(evaluate("(8:4@lane, 2:1@reg) + [2:1@warp] + 5@warp", {}, {}))
        (8:4@lane, 2:1@reg) + [2:1@warp] + 5@warp
    """
    return _Evaluator(text, functions, methods, symbols or {}).value()


class _Evaluator:
    """One expression with the names that it may use."""

    def __init__(
        self,
        text: str,
        functions: Mapping[str, Callable[..., Any]],
        methods: Mapping[str, tuple[type, ...]],
        symbols: Mapping[str, Any],
    ) -> None:
        self.text = text
        self.functions = functions
        self.methods = methods
        self.symbols = symbols
        self.root = read(text)

    def value(self) -> Any:
        out = self.evaluate(self.root)
        if isinstance(out, PairList) or out == ():
            return self.guarded(self.root, lambda: _as_core(out))
        return out

    def fail(self, problem: str, node: Node, legal: str = "", cause: Exception | None = None) -> NoReturn:
        text = pointed(self.text, node.at)
        raise LayoutError(WHERE, problem, inputs={"text": text}, legal=legal or LEGAL) from cause

    def guarded(self, node: Node, run: Callable[[], Any], legal: str = "", given: str = "") -> Any:
        """The result of a step; what goes wrong in it is raised with its place in the text."""
        try:
            return run()
        except TileweaveError as error:
            if "text" in error.inputs:
                raise
            inputs: dict[str, object] = {**error.inputs, "text": pointed(self.text, node.at)}
            raise type(error)(
                error.where, error.problem, inputs=inputs, legal=error.legal, facts=error.facts
            ) from error
        except (ArithmeticError, MemoryError, RecursionError) as error:
            self.fail(str(error) or "too large to compute", node, legal, error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            self.fail(f"these arguments do not fit: {given}" if given else "this does not fit", node, legal, error)

    def evaluate(self, node: Node) -> Any:
        match node.kind:
            case "number":
                return int(node.text)
            case "free":
                return FREE
            case "name":
                return self.symbols[node.text] if node.text in self.symbols else self.unknown(node, self.symbols)
            case "negative":
                return self.guarded(node, lambda: -self.evaluate(node.parts[0]))
            case "pair":
                return self.guarded(node, lambda: CuteLayout(*map(self.evaluate, node.parts)))
            case "xor":
                return self.guarded(node, lambda: XorLayout(*map(self.evaluate, node.parts)))
            case "tuple" | "list" | "tiler":
                return self.items(node)
            case _:  # term, product, sum, composed, call, method
                step: Callable[[Node], Any] = getattr(self, node.kind)
                return self.guarded(node, lambda: step(node))

    def items(self, node: Node) -> Any:
        pairs = bool(node.parts) and all(part.kind == "pair" for part in node.parts)
        if pairs and node.kind != "tiler":
            found = tuple((self.evaluate(p.parts[0]), self.evaluate(p.parts[1])) for p in node.parts)
            return PairList(found, node.kind == "list")
        values = [self.evaluate(part) for part in node.parts]
        return values if node.kind == "list" else tuple(values)

    def term(self, node: Node) -> Any:
        """``4@lane``; ``1@0`` is the unit of mode 0, and ``1@1@0`` that of mode 1 inside mode 0."""
        path = [node.text]
        inner = node.parts[0]
        while inner.kind == "term":
            path.append(inner.text)
            inner = inner.parts[0]
        factor = self.evaluate(inner)
        if not isinstance(factor, int | Expr):
            self.fail("an axis belongs to a number", node)
        if all(name.isdecimal() for name in path):
            return _times(factor, E(*map(int, path)))
        if len(path) > 1:
            self.fail("one stride has one axis; write sums, such as 1@a + 2@b", node)
        return _times(factor, Coord(((path[0], 1),)))

    def product(self, node: Node) -> Any:
        left, right = map(self.evaluate, node.parts)
        if isinstance(right, Coord) and node.text == "*":
            return _times(left, right)
        if not isinstance(left, int | Expr) or not isinstance(right, int | Expr):
            self.fail(f"{node.text} is for numbers", node)
        return OPERATORS[node.text](left, right)

    def sum(self, node: Node) -> Any:
        """A sum of numbers, of coordinates, or of the parts of an Axe layout."""
        values = [self.evaluate(part) for part in node.parts]
        if all(isinstance(v, int | Expr) for v in values):
            total = 0
            for sign, v in zip(node.text, values, strict=True):
                total = total + v if sign == "+" else total - v
            return total
        if all(isinstance(v, int | Expr | Coord) for v in values):
            return _sum([(sign, _coord(v)) for sign, v in zip(node.text, values, strict=True)])
        whole = Layout()
        shards = 0
        for sign, v, part in zip(node.text, values, node.parts, strict=True):
            if isinstance(v, int | Expr | Coord):
                whole = Layout(whole.shard, whole.replica, _sum([("+", whole.offset), (sign, _coord(v))]))
                continue
            if not isinstance(v, PairList | Layout) and v != ():
                self.fail(f"{_kind(v)} cannot be part of a sum", part, "(shard) + [replica] + offset")
            if sign == "-":
                self.fail("iters cannot be subtracted", part)
            piece = _as_core(v)
            shards += not (isinstance(v, PairList) and v.square)
            if shards > 1:
                self.fail("a second shard in one sum", part, "(shard) + [replica] + offset")
            shard = whole.shard + piece.shard
            whole = Layout(shard, whole.replica + piece.replica, whole.offset + piece.offset)
        return whole

    def composed(self, node: Node) -> Any:
        """``outer o offset o inner``, or without the offset."""
        values = [self.evaluate(part) for part in node.parts]
        inner = values.pop()
        place = node.parts[-1]
        while values:
            offset = values.pop() if isinstance(values[-1], int | Expr) else 0
            if not values or not isinstance(values[-1], Swizzle | CuteLayout):
                self.fail("o composes a swizzle or a CuTe layout with a CuTe layout", node, "Sw<3,3,3> o 0 o 64:1")
            if not isinstance(inner, CuteLayout | ComposedLayout):
                self.fail(f"{_kind(inner)} cannot be composed with o", place, "Sw<3,3,3> o 0 o 64:1")
            outer = values.pop()
            inner = self.guarded(node, partial(ComposedLayout, outer, offset, inner))
        return inner

    def call(self, node: Node) -> Any:
        function = self.functions.get(node.text)
        if function is None:
            self.unknown(node, self.functions)
        return self.run(node, function, node.parts)

    def method(self, node: Node) -> Any:
        owner = self.evaluate(node.parts[0])
        kinds = self.methods.get(node.text)
        if kinds is None or not isinstance(owner, kinds):
            known = ", ".join(name for name, kinds in self.methods.items() if isinstance(owner, kinds))
            self.fail(f"{_kind(owner)} has no method {node.text}", node, known or "an operation, f(x)")
        return self.run(node, getattr(owner, node.text), node.parts[1:])

    def run(self, node: Node, function: Callable[..., Any], arguments: tuple[Node, ...]) -> Any:
        args = [self.evaluate(a) for a in arguments if a.kind != "named"]
        named = {a.text: self.evaluate(a.parts[0]) for a in arguments if a.kind == "named"}
        shown = signature_of(node.text, function)
        try:
            inspect.signature(function).bind(*args, **named)
        except TypeError as error:
            self.fail(f"{node.text}: {error}", node, shown)
        given = ", ".join(map(_kind, (*args, *named.values()))) or "none"
        return self.guarded(node, lambda: function(*args, **named), shown, given)

    def unknown(self, node: Node, names: Iterable[str]) -> NoReturn:
        close = get_close_matches(node.text, list(names), 3, 0.6)
        what = "operation" if node.kind == "call" else "symbol"
        legal = f"perhaps {' or '.join(close)}" if close else "see --help; --symbol NAME=LOW:HIGH declares a symbol"
        self.fail(f"there is no {what} {node.text}", node, legal)


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """The names of an operation's parameters, without types."""
    out = []
    for p in inspect.signature(function).parameters.values():
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        out.append(f"{star}{p.name}" + ("" if p.default is p.empty else f"={p.default}"))
    return f"{name}({', '.join(out)})"


def _coord(value: Any) -> Coord:
    return Coord.of(value)


def _as_core(value: Any) -> Layout:
    return value.core() if isinstance(value, PairList) else value if isinstance(value, Layout) else Layout()


def _times(factor: Any, coord: Coord) -> Coord:
    """An integer or an index expression times a coordinate."""
    return Coord(tuple((axis, factor * value) for axis, value in coord.terms))


def _sum(terms: list[tuple[str, Coord]]) -> Coord:
    total = Coord()
    for sign, coord in terms:
        total = total + coord if sign == "+" else total - coord
    return total


_KINDS: Mapping[type, str] = {
    int: "a number",
    tuple: "a tuple",
    list: "a list",
    CuteLayout: "a CuTe layout",
    ComposedLayout: "a composed layout",
    Layout: "an Axe layout",
    PairList: "an Axe layout",
    Swizzle: "a swizzle",
    XorLayout: "an XOR layout",
    F2Map: "a bit matrix",
    Coord: "a coordinate",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")
