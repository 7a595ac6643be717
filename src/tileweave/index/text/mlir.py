"""Expressions as MLIR functions of the dialects func and arith (math for a square root)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of
from tileweave.index.expr import Expr, ExprLike, walk
from tileweave.index.normal.read import Normal, value_of
from tileweave.index.normal.signs import positive
from tileweave.index.text.dialect import MLIR
from tileweave.index.text.program import plain_division, program

Exprs = ExprLike | Iterable[ExprLike]


def to_mlir(
    exprs: Exprs, *, function: str = "index", type: str = "index", rename: Mapping[str, str] | None = None
) -> str:
    """An MLIR function of dialects func and arith that returns the values of the expressions; shared parts once.

    Args:
        exprs: one expression, or several.
        function: the function's name.
        type: ``"index"``, ``"i32"`` or ``"i64"``; arguments, in order of first use, and numbers are of this type,
            conditions are i1.
        rename: symbol name -> argument name.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> print(to_mlir(symbol("t", 0) // 8))
        func.func @index(%t: index) -> index {
          %c8 = arith.constant 8 : index
          %0 = arith.divui %t, %c8 : index
          return %0 : index
        }

    Source: LEGO section 4.2 (arith for index arithmetic).
    """
    where = "to_mlir(exprs)"
    if not isinstance(type, str) or type not in ("index", "i32", "i64"):
        raise LayoutError(where, f"unknown type {type!r}", legal="index, i32, i64")
    if not isinstance(rename, Mapping | None) or not isinstance(function, str) or not function.isidentifier():
        raise LayoutError(where, f"function {function!r}, rename {rename!r}", legal="an identifier, a mapping of names")
    roots = exprs_of(exprs)
    if not roots:
        raise LayoutError(where, "no expressions", legal="one or more")
    ready = program(where, roots, MLIR, rename, ctype="int32_t" if type == "i32" else "int64_t")
    names = {} if rename is None else rename
    for text in names.values():
        if not text.isidentifier():
            raise LayoutError(where, f"{text!r} is no name of an argument", legal="an identifier")
    order = walk(ready.roots)
    arguments = [node for node in order if node.op == "sym"]
    numbers = count()
    body = Operations(type, ready.normal, lambda: f"%{next(numbers)}")
    for node in arguments:
        body.names[node] = f"%{names.get(node.args[0], node.args[0])}"
    for node in order:
        body.write(node)
    results = ", ".join(body.names[root] for root in ready.roots)
    kinds = ", ".join("i1" if root.is_condition else type for root in roots)
    returned = kinds if len(roots) == 1 else f"({kinds})"
    head = ", ".join(f"{body.names[node]}: {type}" for node in arguments)
    lines = [
        f"func.func @{function}({head}) -> {returned} {{",
        *(f"  {line}" for line in (*body.constants, *body.lines)),
        f"  return {results} : {kinds}",
    ]
    return "\n".join([*lines, "}"])


class Operations:
    """Expressions as SSA operations of the dialect arith, each node once.

    Args:
        type: of arguments and numbers: ``index``, ``i32`` or ``i64``.
        normal: decides which divisions need no care for signs.
        fresh: a name, with its percent sign, that nobody has taken.
        taken: names without their percent sign that constants may not have.
    """

    def __init__(
        self, type: str, normal: Normal, fresh: Callable[[], str], taken: Collection[str] = frozenset()
    ) -> None:
        self.type = type
        self.normal = normal
        self.names: dict[Expr, str] = {}
        self.constants: list[str] = []
        self.lines: list[str] = []
        self._fresh = fresh
        self._taken = taken
        self._known: dict[str, str] = {}
        self._same: dict[tuple[str, ...], str] = {}

    def constant(self, value: int | bool) -> str:
        """The SSA name of a constant, declared once in `constants`."""
        key = str(value)
        if key not in self._known:
            if isinstance(value, bool):
                name, text = f"%{key.lower()}", f"arith.constant {key.lower()}"
            else:
                name = f"%c{value}" if value >= 0 else f"%cm{-value}"
                text = f"arith.constant {value} : {self.type}"
            while name in self.names.values() or name[1:] in self._taken:
                name += "_"
            self._known[key] = name
            self.constants.append(f"{name} = {text}")
        return self._known[key]

    def add(self, op: str, *operands: str, kind: str | None = None) -> str:
        """Append an operation; its SSA name."""
        name = self._fresh()
        text = f"{op} {', '.join(operands)}"
        self.lines.append(MLIR.statement.format(name=name, text=text, type=kind or self.type))
        return name

    def apply(self, text: str) -> str:
        """Append an ``affine.apply``; its SSA name."""
        name = self._fresh()
        self.lines.append(f"{name} = affine.apply {text}")
        return name

    def _root(self, operand: str) -> str:
        """The integer square root by way of 64-bit floats, which is exact below 2**52."""
        wide = operand if self.type == "i64" else self.add(_CASTS[self.type][0], operand, kind=f"{self.type} to i64")
        real = self.add("sitofp", wide, kind="i64 to f64")
        root = self._fresh()
        self.lines.append(f"{root} = math.sqrt {real} : f64")
        found = self.add("fptosi", root, kind="f64 to i64")
        return found if self.type == "i64" else self.add(_CASTS[self.type][1], found, kind=f"i64 to {self.type}")

    def write(self, node: Expr) -> None:
        """Append what the node needs beyond its operands."""
        if node.op == "sym":
            return
        if node.op in ("const", "true"):
            self.names[node] = self.constant(node.args[0])
            return
        parts = [self.names[part] for part in node.parts]
        key = (node.op, *(sorted(parts) if node.op in _COMMUTING else parts))
        if key in self._same:  # a + b and b + a are two nodes
            self.names[node] = self._same[key]
            return
        op = MLIR.calls.get(node.op, "")
        match node.op:
            case "floordiv" | "mod" if not plain_division(self.normal, node):
                name = self._floor(node, parts)
            case "isqrt":
                name = self._root(parts[0])
            case "and" | "or":
                name = self.add(op, *parts, kind="i1")
            case "not":
                name = self.add("xori", parts[0], self.constant(True), kind="i1")
            case _:
                name = self.add(op, *parts)
        self.names[node] = self._same[key] = name

    def _floor(self, node: Expr, parts: list[str]) -> str:
        """A quotient or remainder of unknown sign: by a power of two a shift or a mask, else the longer form."""
        value = node.args[1].args[0] if node.args[1].op == "const" else 0
        if value > 0 and value & (value - 1) == 0:
            by = value.bit_length() - 1 if node.op == "floordiv" else value - 1
            return self.add(MLIR.shifts[node.op][0], parts[0], self.constant(by))
        if node.op == "floordiv":
            return self.add(MLIR.floor[node.op][0], *parts)
        return self._remainder(node, parts)

    def _remainder(self, node: Expr, parts: list[str]) -> str:
        """The floor remainder: the truncated one, moved by the divisor where its sign differs from the divisor's."""
        truncated = self.add(MLIR.floor["mod"][0], *parts)
        zero = self.constant(0)
        moved = self.add("addi", truncated, parts[1])
        if positive(self.normal.facts, value_of(self.normal, node.args[1])):
            wrong = self.add("cmpi slt,", truncated, zero)
        else:
            nonzero = self.add("cmpi ne,", truncated, zero)
            differ = self.add("cmpi slt,", self.add("xori", truncated, parts[1]), zero)
            wrong = self.add("andi", nonzero, differ, kind="i1")
        return self.add("select", wrong, moved, truncated)


_COMMUTING = ("add", "mul", "xor", "and", "or", "min", "max", "eq", "ne")
_CASTS = {"i32": ("extsi", "trunci"), "index": ("index_cast", "index_cast")}
"""To 64 bits and back."""
