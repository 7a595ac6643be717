"""The reader of the three notations, and of calls of operations by name.

A small language of its own, read by `grammar` and never evaluated as Python::

    (4,8):(1,4)                                   CuTe: shape:stride, first mode fastest
    (8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp    Axe: shard, replica, offset; row-major
    S[(8,2):(4@lane,1@warp)] + R[2:4@warp] + O[5@warp]    Axe, its parts named as in the paper
    OrderBy(Col(2,2), Row(3,3)).GroupBy((6,6))    LEGO: pieces and chains; row-major
    composition((4,8):(1,4), 8:2)                 an operation, on any of them
    Sw<3,3,3> o 0 o (8,64):(64,1)                 a swizzle before a layout

A list of pairs in round brackets is an Axe layout; where a CuTe operation takes a tiler it is a tiler, as is a list in
angle brackets, ``<3:4, 8:2>``. Names stand for symbols of index expressions, which are given.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import Expr, maximum, minimum
from tileweave.layout import lego
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.f2.maps import F2Map
from tileweave.layout.f2.swizzle import ComposedLayout, Swizzle, XorLayout
from tileweave.layout.lego import Chain, OrderBy
from tileweave.layout.notation.cute_tuples import E
from tileweave.layout.notation.cute_tuples import _ as FREE
from tileweave.layout.notation.cute_value import CuteLayout
from tileweave.layout.text.grammar import LEGAL, WHERE, Notation, Phrase, phrase, pointed

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.xor,
}


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


CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(lego, name)
        for name in (
            "Col", "GroupBy", "OrderBy", "PartialTiles", "RegP", "Row", "TileBy", "TileOrderBy", "antidiagonal",
            "bricks", "grouped", "hilbert", "morton", "permutation", "reversal", "xor_swizzle",
        )
    },
    "Swizzle": Swizzle,
    "XorLayout": XorLayout,
    "F2Map": F2Map,
    "min": minimum,
    "max": maximum,
}  # fmt: skip
"""What a text that denotes a layout may call."""

CHAINS: Mapping[str, tuple[type, ...]] = dict.fromkeys(
    ("OrderBy", "TileOrderBy", "GroupBy", "TileBy"), (OrderBy, Chain)
)
"""What may follow a dot in it."""


def read(text: str, symbols: Mapping[str, Any] | None = None) -> Any:
    """The layout that a text in any of the notations denotes, as a value of that notation.

    Args:
        text: see the module; blanks are free.
        symbols: the symbols that index expressions in the text may use, by name.

    Raises:
        LayoutError: the text is malformed; a caret points at the place.

    Example:
        >>> print(read("((2,2),4):((1,8),2)"))
        ((2,2),4):((1,8),2)
        >>> print(read("S[(8,2,4,2) : (4@lane,1@warp,1@lane,1@reg)] + R[2:4@warp] + 5@warp"))
        (8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp
        >>> read("OrderBy(Col(2,2), Row(3,3)).GroupBy((6,6))")[4, 2]
        17
    """
    return evaluate(text, CONSTRUCTORS, CHAINS, symbols)


def evaluate(
    text: str,
    functions: Mapping[str, Callable[..., Any]],
    methods: Mapping[str, tuple[type, ...]],
    symbols: Mapping[str, Any] | None = None,
    *,
    notation: Notation = "any",
    where: str = WHERE,
    legal: str = LEGAL,
) -> Any:
    """What an expression denotes; a list of pairs on its own is an Axe layout.

    Args:
        text: the expression.
        functions: the operations by name, each taking the evaluated arguments.
        methods: the names that may follow a dot, and the classes that have them.
        symbols: the values of names that are not called.
        notation: what shape:stride means.
        where, legal: the function that the user called, and what it takes, for errors.

    Raises:
        LayoutError: the text is malformed, or an argument does not fit; a caret points at the place.
        TileweaveError: what the operations raise, with the place added.

    Example:
        >>> print(evaluate("(8:4@lane, 2:1@reg) + [2:1@warp] + 5@warp", {}, {}))
        (8:4@lane, 2:1@reg) + [2:1@warp] + 5@warp
    """
    if not isinstance(text, str):
        raise LayoutError(where, f"{text!r} is not a text", legal=legal)
    if symbols is not None and not (isinstance(symbols, Mapping) and all(isinstance(name, str) for name in symbols)):
        raise LayoutError(where, f"{symbols!r} are not symbols by name", legal="a mapping from names to symbols")
    root = phrase(text, where, legal, notation)
    return _Evaluator(text, root, functions, methods, symbols or {}, notation, where, legal).value()


@dataclass(frozen=True, slots=True)
class _Evaluator:
    """One expression with the names that it may use."""

    text: str
    root: Phrase
    functions: Mapping[str, Callable[..., Any]]
    methods: Mapping[str, tuple[type, ...]]
    symbols: Mapping[str, Any]
    notation: Notation
    where: str
    legal: str

    def value(self) -> Any:
        out = self.evaluate(self.root)
        if self.notation == "axe" and self.root.kind == "number" and self.text.lstrip().startswith("("):
            self.fail(f"({out}) stands where extent:stride is expected", self.root)
        if self.notation != "cute" and (isinstance(out, PairList) or out == ()):
            return self.guarded(self.root, lambda: _as_core(out))
        return out

    def fail(self, problem: str, node: Phrase, legal: str = "", cause: Exception | None = None) -> NoReturn:
        text = pointed(self.text, node.at)
        raise LayoutError(self.where, problem, inputs={"text": text}, legal=legal or self.legal) from cause

    def guarded(self, node: Phrase, run: Callable[[], Any], legal: str = "", given: str = "") -> Any:
        """The result of a step; what goes wrong in it is raised with its place in the text."""
        try:
            return run()
        except TileweaveError as error:
            if "text" in error.inputs:
                raise
            inputs: dict[str, object] = {**error.inputs, "text": pointed(self.text, node.at)}
            where = self.where if error.where.startswith("Iter(") else error.where
            raise type(error)(where, error.problem, inputs=inputs, legal=error.legal, facts=error.facts) from error
        except (ArithmeticError, MemoryError, RecursionError) as error:
            self.fail(str(error) or "too large to compute", node, legal, error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            self.fail(f"these arguments do not fit: {given}" if given else "this does not fit", node, legal, error)

    def evaluate(self, node: Phrase) -> Any:
        match node.kind:
            case "number":
                return int(node.text)
            case "free":
                return FREE
            case "name":
                return self.symbols[node.text] if node.text in self.symbols else self.unknown(node, self.symbols)
            case "negative":
                return self.guarded(node, lambda: -self.evaluate(node.parts[0]))
            case "bracketed":
                return self.evaluate(node.parts[0])
            case "pair" if self.notation == "axe":
                return self.guarded(node, lambda: Layout(self.iters(node.parts)))
            case "pair":
                return self.guarded(node, lambda: CuteLayout(*map(self.evaluate, node.parts)))
            case "shard" | "replica":
                iters = self.guarded(node, lambda: tuple(it for p in node.parts for it in self.iters(p.parts)))
                return Layout(iters) if node.kind == "shard" else Layout((), iters)
            case "offset":
                at = [self.evaluate(part) for part in node.parts]
                for value, part in zip(at, node.parts, strict=True):
                    if not isinstance(value, int | Expr | Coord):
                        self.fail(f"{_kind(value)} is no offset", part, "O[3@m, 1@lane]")
                return Layout((), (), _sum([("+", _coord(value)) for value in at]))
            case "xor":
                return self.guarded(node, lambda: XorLayout(*map(self.evaluate, node.parts)))
            case "tuple" | "list" | "tiler":
                return self.items(node)
            case _:  # term, product, sum, composed, call, method
                step: Callable[[Phrase], Any] = getattr(self, node.kind)
                return self.guarded(node, lambda: step(node))

    def iters(self, pair: tuple[Phrase, ...]) -> tuple[Iter, ...]:
        """Iters of ``extent:stride``, or of tuples of both."""
        if len(pair) != 2:
            raise LayoutError(self.where, "an iter is extent:stride", legal="S[8:4@lane], S[(8,2):(4@lane,1@warp)]")
        extents, strides = (_leaves(self.evaluate(part)) for part in pair)
        if len(extents) != len(strides):
            raise LayoutError(self.where, f"{len(extents)} extents and {len(strides)} strides")
        return tuple(Iter(n, Coord.of(d)) for n, d in zip(extents, strides, strict=True))

    def items(self, node: Phrase) -> Any:
        pairs = bool(node.parts) and all(part.kind == "pair" for part in node.parts)
        if pairs and node.kind != "tiler":
            found = tuple((self.evaluate(p.parts[0]), self.evaluate(p.parts[1])) for p in node.parts)
            return PairList(found, node.kind == "list")
        values = [self.evaluate(part) for part in node.parts]
        return values if node.kind == "list" else tuple(values)

    def term(self, node: Phrase) -> Any:
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

    def product(self, node: Phrase) -> Any:
        left, right = map(self.evaluate, node.parts)
        if isinstance(right, Coord) and node.text == "*":
            return _times(left, right)
        if not isinstance(left, int | Expr) or not isinstance(right, int | Expr):
            self.fail(f"{node.text} is for numbers", node)
        return OPERATORS[node.text](left, right)

    def sum(self, node: Phrase) -> Any:
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
            shards += v == () or (not v.square if isinstance(v, PairList) else bool(v.shard))
            if shards > 1:
                self.fail("a second shard in one sum", part, "(shard) + [replica] + offset")
            shard = whole.shard + piece.shard
            whole = Layout(shard, whole.replica + piece.replica, whole.offset + piece.offset)
        return whole

    def composed(self, node: Phrase) -> Any:
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

    def call(self, node: Phrase) -> Any:
        function = self.functions.get(node.text)
        if function is None:
            self.unknown(node, self.functions)
        return self.run(node, function, node.parts)

    def method(self, node: Phrase) -> Any:
        owner = self.evaluate(node.parts[0])
        kinds = self.methods.get(node.text)
        if kinds is None or not isinstance(owner, kinds):
            known = ", ".join(name for name, kinds in self.methods.items() if isinstance(owner, kinds))
            self.fail(f"{_kind(owner)} has no method {node.text}", node, known or "an operation, f(x)")
        return self.run(node, getattr(owner, node.text), node.parts[1:])

    def run(self, node: Phrase, function: Callable[..., Any], arguments: tuple[Phrase, ...]) -> Any:
        args = [self.evaluate(a) for a in arguments if a.kind != "named"]
        named = {a.text: self.evaluate(a.parts[0]) for a in arguments if a.kind == "named"}
        shown = signature_of(node.text, function)
        try:
            inspect.signature(function).bind(*args, **named)
        except TypeError as error:
            self.fail(f"{node.text}: {error}", node, shown)
        given = ", ".join(map(_kind, (*args, *named.values()))) or "none"
        return self.guarded(node, lambda: function(*args, **named), shown, given)

    def unknown(self, node: Phrase, names: Iterable[str]) -> NoReturn:
        names = list(names)
        close = get_close_matches(node.text, names, 3, 0.6)
        what = "operation" if node.kind == "call" else "symbol"
        known = f"one of {', '.join(names)}" if 0 < len(names) < 8 else self.legal
        legal = f"perhaps {' or '.join(close)}" if close else known
        self.fail(f"there is no {what} {node.text}", node, legal)


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """The names of an operation's parameters, without types."""
    out = []
    for p in inspect.signature(function).parameters.values():
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        out.append(f"{star}{p.name}" + ("" if p.default is p.empty else f"={p.default}"))
    return f"{name}({', '.join(out)})"


def _leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple) else [tree]


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
        total = total + (coord if sign == "+" else Coord(tuple((axis, -value) for axis, value in coord.terms)))
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
