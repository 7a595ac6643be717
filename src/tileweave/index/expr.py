"""Symbolic integer expressions: immutable, interned nodes that Python operators build.

The grammar (integers are unbounded; ``//`` and ``%`` round towards minus infinity, as Python's do)::

    number    = const | sym | add | sub | mul | floordiv | mod | min | max | xor | isqrt | select
    condition = true | lt | le | eq | ne | and | or | not

Equality is identity: building the same expression twice yields the same node, so ``==`` is ``is``, and a set or a
dict of expressions costs the same for a deep graph as for a symbol. ``<  <=  >  >=`` build conditions, and so do
`equal` and `unequal`. A condition has a truth value only when it is constant; `prove` decides the others.
"""

from __future__ import annotations

import operator
import re
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from keyword import iskeyword
from math import isqrt as exact_isqrt
from typing import Any, Literal, Union, cast

from tileweave.errors import LayoutError

Op = Literal[
    "const", "sym", "add", "sub", "mul", "floordiv", "mod", "min", "max", "xor", "isqrt", "select",
    "true", "lt", "le", "eq", "ne", "and", "or", "not",
]  # fmt: skip
ExprLike = Union["Expr", int]

NUMBERS = ("const", "sym", "add", "sub", "mul", "floordiv", "mod", "min", "max", "xor", "isqrt", "select")
"""Ops of integer value."""
CONDITIONS = ("true", "lt", "le", "eq", "ne", "and", "or", "not")
"""Ops of truth value; ``true`` holds the constant True or False."""

_LEAVES = frozenset(("const", "sym", "true"))
_IS_CONDITION = frozenset(CONDITIONS)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()
_REFUSED = (bool, float, complex, str, bytes, type(None), list, tuple, dict)


def _operators(op: Op) -> tuple[Callable[[Expr, ExprLike], Expr], Callable[[Expr, ExprLike], Expr]]:
    """An operator of the class and its mirror image, for operands the other way round."""

    def forward(self: Expr, other: ExprLike) -> Expr:
        return binary(op, self, other)

    def mirrored(self: Expr, other: ExprLike) -> Expr:
        return binary(op, other, self)

    return forward, mirrored


class Expr:
    """One node of an integer expression; the same parts always give the same node.

    Build nodes with `symbol`, `const`, Python's operators, `minimum`, `maximum`, `select`, `equal`; the class itself
    is not called. ``+ - * // % divmod ** abs ^ << >> &`` take an `Expr` or an int on either side: ``<< k`` and
    ``>> k`` are ``* 2**k`` and ``// 2**k``, and ``& mask`` cuts out the runs of ones of a constant mask. On conditions
    ``& | ~`` are and, or, not. There is no ``__index__``: an expression never passes silently for a number.

    Example:
        >>> i = symbol("i", 0, 8)
        >>> 3 + i * 2 is 3 + i * 2
        True
        >>> i % 4
        symbol('i', 0, 8) % 4
        >>> print((i + 1) // 4)
        (i + 1) // 4

    Source: LEGO section 4.1 (what its indices are made of); the node design is our own.
    """

    __slots__ = ("__weakref__", "args", "is_condition", "op", "parts")
    __array_ufunc__ = None  # NumPy leaves `array + expr` to us, and we refuse it

    op: Op
    args: tuple[Any, ...]
    parts: tuple[Expr, ...]
    """The operands; empty for a constant or a symbol."""
    is_condition: bool
    """Whether the value is a truth value and not an integer."""

    def __new__(cls, *args: object, **kwargs: object) -> Expr:
        """Refused: `symbol`, `const` and operators make expressions."""
        raise LayoutError(
            "Expr(...)", "expressions are not built by calling the class", legal="symbol(), const(), + - *"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Expr is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Expr is immutable: cannot delete {name}")

    # -- arithmetic ---------------------------------------------------------------------------------

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __floordiv__, __rfloordiv__ = _operators("floordiv")
    __mod__, __rmod__ = _operators("mod")
    __xor__, __rxor__ = _operators("xor")
    __lt__, __gt__ = _operators("lt")
    __le__, __ge__ = _operators("le")

    def __divmod__(self, other: ExprLike) -> tuple[Expr, Expr]:
        return self // other, self % other

    def __rdivmod__(self, other: ExprLike) -> tuple[Expr, Expr]:
        return other // self, other % self

    def __truediv__(self, other: object) -> Expr:
        raise LayoutError("Expr / x", "true division leaves the integers", inputs={"x": other}, legal="// or %")

    __rtruediv__ = __truediv__

    def __pow__(self, exponent: int) -> Expr:
        if type(exponent) is not int or not 0 <= exponent <= 64:
            raise LayoutError("Expr ** k", f"exponent {exponent!r}", legal="a constant from 0 to 64")
        out = const(1)
        for _ in range(exponent):
            out = out * self
        return out

    def __neg__(self) -> Expr:
        return binary("sub", 0, self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return maximum(self, -self)

    def __lshift__(self, bits: int) -> Expr:
        return self * _power_of_two("Expr << k", bits)

    def __rshift__(self, bits: int) -> Expr:
        return self // _power_of_two("Expr >> k", bits)

    # -- conditions ---------------------------------------------------------------------------------

    def __and__(self, other: ExprLike | bool) -> Expr:
        if self.is_condition:
            return logic("and", self, other)
        if isinstance(other, Expr):
            raise LayoutError("Expr & x", "the mask must be constant", inputs={"x": other}, legal="an int, or // and %")
        return _masked(self, other)

    __rand__ = __and__

    def __or__(self, other: ExprLike | bool) -> Expr:
        return logic("or", self, other)

    __ror__ = __or__

    def __invert__(self) -> Expr:
        if not self.is_condition:
            return binary("sub", -1, self)
        match self.op:
            case "true":
                return node_of("true", (not self.args[0],))
            case "lt" | "le":  # not a < b is b <= a
                return node_of("le" if self.op == "lt" else "lt", (self.args[1], self.args[0]))
            case "eq" | "ne":
                return node_of("ne" if self.op == "eq" else "eq", self.args)
            case "not":
                return cast("Expr", self.args[0])
        return node_of("not", (self,))

    def __bool__(self) -> bool:
        if self.op == "true":
            return bool(self.args[0])
        if self.op == "const":
            return bool(self.args[0] != 0)
        raise LayoutError(
            "bool(Expr)",
            "a symbolic expression has no truth value",
            inputs={"expr": self},
            legal="prove(condition), select(condition, a, b), or `&` in place of `and` and of chained comparisons",
        )

    # -- equality -------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Expr | int) or not _READS_CONDITIONS.get():
            return self is other
        raise LayoutError(
            "Expr == x",
            "== compares expressions as such, and is False here whatever the values are",
            inputs={"expr": self, "x": other},
            legal="equal(expr, x) or unequal(expr, x), in choose(condition, a, b) or select(condition, a, b)",
        )

    __hash__ = object.__hash__


_READS_CONDITIONS: ContextVar[bool] = ContextVar("reads_conditions", default=False)


@contextmanager
def conditions_only() -> Iterator[None]:
    """While a function written for integers is called with expressions, ``==`` and ``!=`` are refused.

    Elsewhere ``==`` is identity, as sets and layouts need; in such a function it would take one branch silently.
    """
    token = _READS_CONDITIONS.set(True)
    try:
        yield
    finally:
        _READS_CONDITIONS.reset(token)


def node_of(op: Op, args: tuple[Any, ...]) -> Expr:
    """The one node of an operation and its arguments."""
    key = (op, *args)
    found = _TABLE.get(key)
    if found is None:
        found = _new(Expr)
        _set_op(found, op)
        _set_args(found, args)
        _set_parts(found, () if op in _LEAVES else args)
        _set_condition(found, op in _IS_CONDITION)
        _TABLE[key] = found
    return found


_new = object.__new__
_set_op = Expr.__dict__["op"].__set__  # the slots themselves: assignment is closed
_set_args = Expr.__dict__["args"].__set__
_set_parts = Expr.__dict__["parts"].__set__
_set_condition = Expr.__dict__["is_condition"].__set__
_SMALL = tuple(node_of("const", (value,)) for value in range(257))  # kept alive, so they are made once


def as_expr(value: ExprLike, where: str = "as_expr(value)") -> Expr:
    """The node of an int, or the expression itself; anything that is not an integer is refused.

    Example:
        >>> as_expr(3) is const(3)
        True
    """
    if isinstance(value, Expr):
        return value
    if type(value) is int:
        return _SMALL[value] if 0 <= value < 257 else node_of("const", (value,))
    if not isinstance(value, _REFUSED):
        try:
            return node_of("const", (int(operator.index(value)),))
        except TypeError:
            pass
    raise LayoutError(where, f"{value!r} is not an integer", legal="an int or an Expr")


def const(value: int) -> Expr:
    """The constant `value`; Python ints of any size.

    Raises:
        LayoutError: `value` is not an integer (a bool is not).

    Example:
        >>> const(2) + const(3) is const(5)
        True
    """
    return as_expr(value, "const(value)")


def constant_of(expr: ExprLike) -> int | None:
    """The integer that a constant holds, else None.

    Example:
        >>> constant_of(const(7)), constant_of(symbol("i"))
        (7, None)
    """
    if isinstance(expr, Expr):
        return int(expr.args[0]) if expr.op == "const" else None
    return constant_of(as_expr(expr))


def symbol(
    name: str, start: ExprLike | None = None, stop: ExprLike | None = None, *, multiple_of: ExprLike = 1
) -> Expr:
    """An unknown integer ``start <= name < stop`` that `multiple_of` divides.

    Args:
        name: an identifier of ASCII letters, digits and underscores.
        start: the least value, an int or an expression over other symbols; None: unbounded.
        stop: one more than the greatest value (half-open, like `range`); None: unbounded.
        multiple_of: a positive int, or a product of positive symbols, that divides every value.

    Raises:
        LayoutError: the name is no identifier, a bound is no integer, the range is empty.

    Example:
        >>> M = symbol("M", 1)
        >>> i = symbol("i", 0, M)
        >>> print(i + M * 2)
        i + M * 2

    Source: LEGO section 4.1 (ranges of the index variables); divisibility and symbolic bounds as in facts of Table 1.
    """
    where = f"symbol({name!r}, start, stop)"
    if not isinstance(name, str) or not _IDENTIFIER.match(name) or iskeyword(name):
        raise LayoutError(where, f"{name!r} is not an identifier", legal="letters, digits and underscores")
    low, high, factor = (_bound(where, start), _bound(where, stop), as_expr(multiple_of, where))
    least, end, step = (None if b is None else constant_of(b) for b in (low, high, factor))
    if factor.is_condition or (step is not None and step < 1) or not _positive_product(factor):
        raise LayoutError(
            where,
            "multiple_of is not known to be positive",
            inputs={"multiple_of": factor},
            legal="a positive int, or a product of symbols whose start is 1 or more",
        )
    if least is not None and end is not None and (end <= least or (step and -(-least // step) * step >= end)):
        inputs = {"start": least, "stop": end, **({"multiple_of": step} if step != 1 else {})}
        raise LayoutError(where, "the range is empty", inputs=inputs, legal="start < stop, with a multiple between")
    return node_of("sym", (name, low, high, factor))


def symbols(names: str, start: ExprLike | None = None, stop: ExprLike | None = None) -> tuple[Expr, ...]:
    """One symbol per name, split at spaces and commas, all with the same range.

    Example:
        >>> a, b = symbols("a b", 0, 4)
        >>> print(a * 4 + b)
        a * 4 + b
    """
    if not isinstance(names, str):
        raise LayoutError("symbols(names, start, stop)", f"{names!r} is no text", legal="names split at spaces")
    return tuple(symbol(name, start, stop) for name in names.replace(",", " ").split())


def minimum(first: ExprLike, *rest: ExprLike) -> Expr:
    """The least of the given integers.

    Example:
        >>> print(minimum(symbol("n") - 4, 8))
        min(n - 4, 8)
    """
    return _fold("min", first, rest)


def maximum(first: ExprLike, *rest: ExprLike) -> Expr:
    """The greatest of the given integers.

    Example:
        >>> maximum(2, 5, 3) is const(5)
        True
    """
    return _fold("max", first, rest)


def isqrt(value: ExprLike) -> Expr:
    """The greatest integer whose square is at most `value`, which must not be negative.

    Raises:
        LayoutError: a constant below zero, or no integer.

    Example:
        >>> isqrt(17) is const(4), str(isqrt(symbol("p", 0) * 8 + 1))
        (True, 'isqrt(p * 8 + 1)')
    """
    node = as_number(value, "isqrt(value)")
    if node.op == "const" and node.args[0] < 0:
        raise LayoutError("isqrt(value)", f"{node.args[0]} is negative", legal="0 or more")
    return node_of("const", (exact_isqrt(node.args[0]),)) if node.op == "const" else node_of("isqrt", (node,))


def select(condition: Expr | bool, then: ExprLike, otherwise: ExprLike) -> Expr:
    """`then` where the condition holds, else `otherwise`; only the chosen branch is evaluated, and need be defined.

    A division by zero in the branch that is not chosen does no harm: not in `evaluate`, not to the provers, not in
    printed text, whether the language evaluates one branch or both.

    Raises:
        LayoutError: the condition is none, or a branch is no integer.

    Example:
        >>> i = symbol("i", 0, 8)
        >>> print(select(i < 4, i, i - 4))
        select(i < 4, i, i - 4)
    """
    where = "select(condition, then, otherwise)"
    if isinstance(condition, bool):
        condition = node_of("true", (condition,))
    if not isinstance(condition, Expr) or not condition.is_condition:
        raise LayoutError(where, f"{condition} is not a condition", legal="a comparison of expressions, or a bool")
    a, b = as_number(then, where), as_number(otherwise, where)
    if condition.op == "true":
        return a if condition.args[0] else b
    return a if a is b else node_of("select", (condition, a, b))


def equal(a: ExprLike, b: ExprLike) -> Expr:
    """The condition that a and b have the same value (``==`` compares the expressions themselves).

    Example:
        >>> print(equal(symbol("i", 0, 8) % 2, 0))
        i % 2 == 0
    """
    return binary("eq", a, b)


def unequal(a: ExprLike, b: ExprLike) -> Expr:
    """The condition that a and b differ in value.

    Example:
        >>> bool(unequal(const(2), 2))
        False
    """
    return binary("ne", a, b)


def walk(
    roots: Iterable[Expr], *, bounds: bool = False, known: Container[Expr] = (), also: Container[Expr] = ()
) -> list[Expr]:
    """Every node under the roots once, operands before their users, in a deterministic order; no recursion.

    Args:
        roots: expressions.
        bounds: whether the bounds of symbols count as their operands.
        known, also: nodes that are left out, with what is under them alone.
    """
    done: set[Expr] = set()
    order: list[Expr] = []
    stack: list[Expr | None] = [*reversed(tuple(roots))]
    while stack:
        node = stack.pop()
        if node is None:  # the operands of the node below are done
            node = cast("Expr", stack.pop())
        elif node in done or node in known or node in also:
            continue
        else:
            parts = node.parts
            if bounds and node.op == "sym":
                parts = tuple(bound for bound in node.args[1:] if bound is not None)
            if parts:
                stack += (node, None, *parts[::-1])
                continue
        done.add(node)
        order.append(node)
    return order


# -- construction ---------------------------------------------------------------------------------------


def _foreign(value: object) -> bool:
    """Whether an operand is some other library's object, which may know how to combine with us."""
    return (
        not isinstance(value, (Expr, int, *_REFUSED))
        and not hasattr(value, "__array__")
        and not hasattr(value, "__index__")
    )


def as_number(value: ExprLike, where: str) -> Expr:
    """The node of an int or of an expression of integer value; a condition is refused, as what is no integer is."""
    expr = as_expr(value, where)
    if expr.is_condition:
        raise LayoutError(where, "a condition is not a number", inputs={"condition": expr}, legal="select(c, 1, 0)")
    return expr


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "xor": "^",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
ON_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "xor": operator.xor, "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def binary(op: Op, left: ExprLike, right: ExprLike) -> Expr:
    """A node of two numbers, with what needs no proof folded: constants, neutral elements, equal operands."""
    if type(right) is int:
        right = as_expr(right)
    elif type(left) is int:
        left = as_expr(left)
    if type(left) is not Expr or type(right) is not Expr or left.op in _IS_CONDITION or right.op in _IS_CONDITION:
        if _foreign(left) or _foreign(right):
            return cast("Expr", NotImplemented)
        where = f"a {_SIGNS[op]} b"
        left, right = as_number(left, where), as_number(right, where)
    if right.op == "const":
        value = right.args[0]
        if value == 0 and op in ("floordiv", "mod"):
            raise LayoutError(f"a {_SIGNS[op]} b", "division by zero", inputs={"a": left, "b": 0}, legal="b != 0")
        if left.op == "const":
            return _constants(op, left.args[0], value)
        if value == 0:
            if op in ("add", "sub", "xor"):
                return left
            if op == "mul":
                return right
        elif value == 1:
            if op in ("mul", "floordiv"):
                return left
            if op == "mod":
                return node_of("const", (0,))
    elif left.op == "const":
        value = left.args[0]
        if value == 0 and op in ("add", "xor"):
            return right
        if value == 0 and op == "mul":
            return left
        if value == 1 and op == "mul":
            return right
    if left is right and op in ("sub", "xor"):
        return node_of("const", (0,))
    if left is right and op in ("lt", "le", "eq", "ne"):
        return node_of("true", (op in ("le", "eq"),))
    return node_of(op, (left, right))


def _constants(op: Op, a: int, b: int) -> Expr:
    value = ON_NUMBERS[op](a, b)
    return node_of("true" if isinstance(value, bool) else "const", (value,))


def _fold(op: Literal["min", "max"], first: ExprLike, rest: Sequence[ExprLike]) -> Expr:
    where = "minimum(...)" if op == "min" else "maximum(...)"
    out = as_number(first, where)
    for value in rest:
        other = as_number(value, where)
        if out.op == "const" and other.op == "const":
            out = const((min if op == "min" else max)(out.args[0], other.args[0]))
        elif out is not other:
            out = node_of(op, (out, other))
    return out


def logic(op: Literal["and", "or"], left: Expr, right: object) -> Expr:
    """A conjunction or a disjunction; bools are conditions."""
    if isinstance(right, bool):
        right = node_of("true", (right,))
    if not (isinstance(right, Expr) and right.is_condition and left.is_condition):
        sign = "&" if op == "and" else "|"
        inputs = {"a": left, "b": right}
        raise LayoutError(f"a {sign} b", f"{sign} takes two conditions", inputs=inputs, legal="comparisons")
    for a, b in ((left, right), (right, left)):
        if a.op == "true":
            return b if a.args[0] == (op == "and") else a
    return left if left is right else node_of(op, (left, right))


def _power_of_two(where: str, bits: int) -> int:
    if type(bits) is not int or not 0 <= bits <= 4096:
        raise LayoutError(where, f"shift by {bits!r}", legal="a constant number of bits, 0 or more")
    return 1 << bits


def _masked(expr: Expr, mask: int) -> Expr:
    """``expr & mask`` as a sum over the runs of ones of the mask; a negative mask keeps all high bits."""
    mask = operator.index(as_expr(mask, "Expr & mask").args[0])
    if mask < 0:
        return expr - _masked(expr, ~mask)
    out, low = const(0), 0
    while mask >> low:
        low += ((mask >> low) & -(mask >> low)).bit_length() - 1
        run = (~(mask >> low) & ((mask >> low) + 1)).bit_length() - 1
        out = out + (expr // (1 << low)) % (1 << run) * (1 << low)
        low += run
    return out


def _bound(where: str, value: ExprLike | None) -> Expr | None:
    return None if value is None else as_number(value, where)


def _positive_product(factor: Expr) -> bool:
    for node in walk([factor]):
        if node.op == "sym":
            low = node.args[1]
            if low is None or (constant_of(low) or 0) < 1:
                return False
        elif node.op != "mul" and not (node.op == "const" and node.args[0] > 0):
            return False
    return True
