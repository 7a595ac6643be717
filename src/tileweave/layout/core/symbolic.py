"""The numbers of the layout algebra: integers, which decide, and index expressions, which prove.

An expression stands where an integer is written in the types of this package; `is_expr` tells them apart. The algebra's
structural steps are written once, in Python's arithmetic: on integers a comparison decides, on a `Proved` expression it
is true where it is proved for all values of the symbols. Prime factors and divisors, quick up to 2**64, are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any, TypeVar

import numpy as np

from tileweave.errors import Undecided, Unproved
from tileweave.index import Expr, constant_of, equal, maximum, minimum, require, simplify


def is_expr(value: object) -> bool:
    """Whether a value is an index expression and not an integer."""
    return isinstance(value, Expr)


def plain(value: Any) -> Any:
    """A constant expression as the integer that it is; anything else as it was."""
    if value.__class__ is Proved:
        value = value.expr
    if isinstance(value, Expr) and not value.is_condition:
        known = constant_of(value)
        return value if known is None else known
    return value


def simple(value: Any) -> Any:
    """An expression simplified, and an integer where it is constant."""
    return plain(simplify(value)) if isinstance(value, Expr) else value


class Proved:
    """An index expression in the place of an integer: a comparison is true where it is proved, or known.

    So code that takes a branch only on a true comparison, and stops where none is true, is right for all values of
    the symbols. Arithmetic simplifies, and gives a plain integer where the result is constant.

    Args:
        expr: the expression.
        known: conditions that were proved by other means.
    """

    __slots__ = ("expr", "known")

    def __init__(self, expr: Any, known: set[Any]) -> None:
        self.expr = expr
        self.known = known

    def _made(self, value: Any) -> Any:
        value = simple(value)
        return Proved(value, self.known) if isinstance(value, Expr) else value

    def _holds(self, condition: Any) -> bool:
        return proved(condition) or condition in self.known

    def __add__(self, other: Any) -> Any:
        return self._made(self.expr + lowered(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._made(self.expr - lowered(other))

    def __rsub__(self, other: Any) -> Any:
        return self._made(lowered(other) - self.expr)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int | Expr | Proved):
            return self._made(self.expr * lowered(other))
        return NotImplemented  # a coordinate multiplies its own terms

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self._made(-self.expr)

    def __floordiv__(self, other: Any) -> Any:
        return self._made(self.expr // lowered(other))

    def __rfloordiv__(self, other: Any) -> Any:
        return self._made(lowered(other) // self.expr)

    def __mod__(self, other: Any) -> Any:
        return self._made(self.expr % lowered(other))

    def __rmod__(self, other: Any) -> Any:
        return self._made(lowered(other) % self.expr)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __lt__(self, other: Any) -> bool:
        return self._holds(self.expr < lowered(other))

    def __le__(self, other: Any) -> bool:
        return self._holds(self.expr <= lowered(other))

    def __gt__(self, other: Any) -> bool:
        return self._holds(self.expr > lowered(other))

    def __ge__(self, other: Any) -> bool:
        return self._holds(self.expr >= lowered(other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Expr | Proved) and (
            same(self.expr, lowered(other)) or equal(self.expr, lowered(other)) in self.known
        )

    def __hash__(self) -> int:
        return hash(self.expr)

    def __bool__(self) -> bool:
        return not self.__eq__(0)

    def __repr__(self) -> str:
        return f"Proved({self.expr})"


class Open:
    """A condition that a structural step needs and that its numbers do not show; it stops there."""

    __slots__ = ("condition",)

    def __init__(self, left: Any, relation: str, right: Any) -> None:
        self.condition = (left, relation, right)

    def expression(self) -> Any:
        """The condition as an index expression (or a bool, of integers)."""
        left, relation, right = (lowered(v) for v in self.condition)
        if relation in ("<", "<="):
            return left < right if relation == "<" else left <= right
        return equal(simple(right % left), 0) if relation == "|" else equal(left, right)


def lowered(value: Any) -> Any:
    """The expression of a `Proved` number; anything else as it was."""
    return value.expr if value.__class__ is Proved else value


Answer = TypeVar("Answer")


def by_proof(step: Callable[[Callable[[Any], Any]], Answer | Open], where: str) -> Answer:
    """The answer of a structural step on symbolic numbers; each condition that stops it is proved, and it goes on.

    Args:
        step: the step, given the function that turns an expression into a `Proved` number.
        where: the public function that asks.

    Raises:
        Unproved: the first condition without a proof.
    """
    known: set[Any] = set()

    def lift(value: Any) -> Any:
        return Proved(value, known) if isinstance(value, Expr) else value

    while True:
        found = step(lift)
        if not isinstance(found, Open):
            return found
        condition = found.expression()
        if not isinstance(condition, Expr) or condition in known:  # of integers, or a proof that does not help
            left, relation, right = found.condition
            text = f"{lowered(left)} {relation} {lowered(right)}"
            raise Unproved(where, f"{text} is not proved", facts={"condition": text})
        require(condition, where)
        known.add(condition)


def require_positive(extent: Any, where: str) -> None:
    """Raise `Unproved` unless the ranges prove the extent positive."""
    require(extent >= 1, where)


def proved(condition: Any) -> bool:
    """Whether a condition is proved for all values of its symbols, by ranges and normal form: no point is tried."""
    return bool(simplify(condition).args == (True,)) if isinstance(condition, Expr) else bool(condition)


def same(a: Any, b: Any) -> bool:
    """Whether two numbers are proved equal."""
    return bool(a is b or simple(a - b) == 0) if isinstance(a, Expr) or isinstance(b, Expr) else bool(a == b)


def quotient(number: Any, divisor: Any) -> Any:
    """``number / divisor`` where the divisor is proved to divide it, else None; the divisor is not zero."""
    return None if simple(number % divisor) != 0 else simple(number // divisor)


def ascending(numbers: Sequence[Any]) -> list[Any]:
    """Integers sorted; with expressions, each number proved to divide all that follow, as far as there are such."""
    if not any(isinstance(n, Expr) for n in numbers):
        return sorted(numbers)
    rest, out = list(numbers), []
    while rest:
        nested = (k for k, n in enumerate(rest) if all(quotient(other, n) is not None for other in rest))
        out.append(rest.pop(next(nested, 0)))
    return out


def require_same(a: Any, b: Any, where: str) -> None:
    """Raise `Unproved`, naming the equation, unless two numbers are proved equal."""
    if not same(a, b):
        require(equal(a, b), where)


def require_quotient(number: Any, divisor: Any, where: str) -> Any:
    """``number / divisor``; `Unproved` names the condition where the divisor is not proved to divide."""
    found = quotient(number, divisor)
    if found is None:
        require(equal(number % divisor, 0), where)
        return simple(number // divisor)
    return found


def least_and_greatest(low: Any, high: Any, reaches: Sequence[Any]) -> tuple[Any, Any]:
    """The sum of low and the negative reaches, and of high and the positive ones, whatever their signs."""
    for reach in reaches:
        low = low + (minimum(reach, 0) if isinstance(reach, Expr) else min(reach, 0))
        high = high + (maximum(reach, 0) if isinstance(reach, Expr) else max(reach, 0))
    return simple(low), simple(high)


def flatten(coords: Sequence[Any], shape: Sequence[Any], size: Any, where: str) -> Any:
    """The row-major linear index of coordinates, each proved to lie within its dimension.

    Raises:
        Unproved: a coordinate may leave its dimension, or the shape may have another number of points than `size`.
    """
    points: Any = prod(shape)
    if simple(points - size) != 0:
        raise Unproved(
            where,
            f"the shape has {points} points and the layout {size}",
            legal="a shape with as many points",
            facts={"condition": f"{points} == {size}"},
        )
    index: Any = 0
    for c, n in zip(coords, shape, strict=True):
        require((c >= 0) & (c < n), where)
        index = index * n + c
    return index


def evaluate_at(iters: Sequence[tuple[Any, Any]], offset: Any, size: Any, index: Any) -> Any:
    """``offset + sum of digit * stride`` over iters given slowest first; the index is proved to lie in [0, size).

    Raises:
        Unproved: the ranges do not prove ``0 <= index < size``.
    """
    require((index >= 0) & (index < size), "Layout(index)")
    total = offset
    pitch: Any = 1
    for k, (extent, stride) in enumerate(reversed(iters)):
        digit = index // pitch
        if k < len(iters) - 1:
            digit = digit % extent
        total = total + simple(digit) * stride
        pitch = pitch * extent
    return total


# Whole numbers.


def factorize(n: int) -> dict[int, int]:
    """The prime factors of n with their powers.

    Example:
        >>> factorize(360)
        {2: 3, 3: 2, 5: 1}
    """
    out: dict[int, int] = {}
    for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        while n % p == 0:
            n //= p
            out[p] = out.get(p, 0) + 1
    p = 41
    while p * p <= n and p < 2000:
        while n % p == 0:
            n //= p
            out[p] = out.get(p, 0) + 1
        p += 2
    rest = [n] if n > 1 else []
    while rest:
        m = rest.pop()
        if _is_prime(m):
            out[m] = out.get(m, 0) + 1
        else:
            d = _split(m)
            rest += [d, m // d]
    return dict(sorted(out.items()))


def _is_prime(n: int) -> bool:
    """Miller and Rabin with bases that are exact below 3.3e24."""
    if n < 2:
        return False
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if any(n % p == 0 for p in bases):
        return n in bases
    d, twos = n - 1, 0
    while d % 2 == 0:
        d, twos = d // 2, twos + 1
    for base in bases:
        x = pow(base, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def _split(n: int) -> int:
    """A proper divisor of an odd composite n (Pollard's rho)."""
    for c in range(1, n):
        x = y = 2
        d = 1
        while d == 1:
            x = (x * x + c) % n
            y = (y * y + c) % n
            y = (y * y + c) % n
            d = gcd(abs(x - y), n)
        if d != n:
            return d
    return n


def divisors(n: int, where: str = "divisors(n)") -> list[int]:
    """Every divisor of n, ascending; `Undecided` where there are more than 2**16."""
    primes = factorize(n)
    count = 1
    for k in primes.values():
        count *= k + 1
    if count > 1 << 16:
        raise Undecided(where, f"{n} has {count} divisors, too many to probe", facts={"bound": 1 << 16})
    out = [1]
    for p, k in primes.items():
        out = [d * p**j for j in range(k + 1) for d in out]
    return sorted(out)


def primes(top: int) -> Any:
    """All primes up to `top`, as an array."""
    sieve = np.ones(top + 1, dtype=bool)
    sieve[:2] = False
    for p in range(2, int(top**0.5) + 1):
        if sieve[p]:
            sieve[p * p :: p] = False
    return np.flatnonzero(sieve)
