"""What is known about the atoms of a polynomial: intervals, symbolic bounds, divisors, and signs proved from them.

An atom is what a polynomial cannot look into: a symbol, a quotient, a remainder, a minimum. Each has a numeric
interval, and lower and upper bounds that are polynomials over atoms with smaller numbers, so that replacing the
highest atom by a bound, again and again, ends. `Facts.nonnegative` is the one prover that every rule's side condition
goes through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

from tileweave.index.expr import Expr
from tileweave.index.poly import (
    ONE,
    Monomial,
    Poly,
    add,
    constant,
    divide,
    exact_quotient,
    is_constant,
    monomial_quotient,
    multiply,
    negate,
    split,
    substitute,
    subtract,
)

__all__ = ["Atom", "Facts", "Interval", "interval_of", "key_of"]

Interval = tuple[int | None, int | None]
"""Least and greatest value, both included; None: unbounded."""
Key = frozenset[tuple[tuple[int, ...], int]]

LARGEST_PROOF = 48
"""Terms of a polynomial beyond which only its numeric interval is asked."""
WIDEST = 4096
"""Bits of an interval's end beyond which it counts as unbounded."""
MOST_STEPS = 120
"""Replacements tried for one sign question."""
FEWEST_STEPS = 6
"""The same, once `STEPS_IN_ALL` were spent: huge graphs get the easy proofs only."""
MOST_FACTS = 3
"""Given facts that one proof adds up."""
STEPS_IN_ALL = 20_000


def key_of(p: Poly) -> Key:
    """A hashable value that is equal exactly for equal polynomials."""
    return frozenset(p.items())


@dataclass(slots=True)
class Atom:
    """One opaque factor: its kind, its operands and what is known of its value.

    Args:
        kind: ``sym``, ``quot`` (a symbol over its declared divisor), ``div``, ``mod``, ``min``, ``max``, ``xor``,
            ``select``, ``prod`` (a product kept factored).
        x, y: operands; dividend and divisor for ``div`` and ``mod``.
        keys: of x and y.
        expr: the symbol, or the condition of a select.
        low, high: the numeric interval, both ends included.
        lower, upper: symbolic bounds, both attained or beyond what is attained; None: unknown.
    """

    kind: str
    x: Poly = field(default_factory=dict)
    y: Poly = field(default_factory=dict)
    keys: tuple[Key, Key] = (frozenset(), frozenset())
    expr: Expr | None = None
    low: int | None = None
    high: int | None = None
    lower: Poly | None = None
    upper: Poly | None = None


class Facts:
    """The atoms of one simplification and the proofs about them."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.table: dict[tuple[object, ...], int] = {}
        self.remainders: set[int] = set()  # the numbers of the `mod` atoms
        self.given: list[Poly] = []
        self.kept: set[int] = set()  # parameters: atoms of divisors and of bounds, not replaced in `upper_bound`
        self.proved: dict[Key, bool] = {}
        self.multiples: dict[int, tuple[Expr, Monomial, int]] = {}  # quotient atom -> its symbol, declared divisor
        self.steps = 0  # left for the question at hand
        self.spent = 0

    # -- atoms ----------------------------------------------------------------------------------------

    def atom(self, kind: str, x: Poly, y: Poly, expr: Expr | None = None) -> int:
        """The number of the atom with these operands, made on first use."""
        keys = key_of(x), key_of(y)
        key = (kind, keys, expr)
        number = self.table.get(key)
        if number is None:
            low, high = _sane(self._interval_of(kind, x, y))
            self.atoms.append(Atom(kind, x, y, keys, expr, low, high))
            number = self.table[key] = len(self.atoms) - 1
            if kind == "mod":
                self.remainders.add(number)
            if kind in ("div", "mod"):
                self.kept.update(atom for mono in y for atom in mono)
        return number

    def symbol(self, expr: Expr, kind: str, lower: Poly | None, upper: Poly | None, x: Poly, y: Poly) -> int:
        """A new atom for a symbol, its bounds included in its range."""
        low, high = self.interval(lower)[0] if lower is not None else None, None
        if upper is not None:
            high = self.interval(upper)[1]
            self.kept.update(atom for mono in upper for atom in mono)
        self.atoms.append(Atom(kind, x, y, (key_of(x), key_of(y)), expr, low, high, lower, upper))
        return len(self.atoms) - 1

    def _interval_of(self, kind: str, x: Poly, y: Poly) -> Interval:
        (a, b), (c, d) = self.interval(x), self.interval(y)
        match kind:
            case "div" | "mod":
                return _division_interval("floordiv" if kind == "div" else "mod", a, b, c, d)
            case "min" | "max":
                return _extreme_interval(kind, (a, b), (c, d))
            case "select":
                return None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d)
            case "xor":
                return _xor_interval(a, b, c, d)
            case "prod":
                return _product((a, b), (c, d))
        return None, None

    # -- intervals and divisors -----------------------------------------------------------------------

    def interval(self, p: Poly) -> Interval:
        """Numeric bounds of p from those of its atoms, each taken on its own."""
        low: int | None = 0
        high: int | None = 0
        atoms = self.atoms
        for mono, coefficient in p.items():
            if not mono:
                a: int | None = 1
                b: int | None = 1
            elif len(mono) == 1:
                atom = atoms[mono[0]]
                a, b = atom.low, atom.high
            else:
                a, b = 1, 1
                for number in mono:
                    a, b = _product((a, b), (atoms[number].low, atoms[number].high))
            if coefficient < 0:
                a, b = b, a
            low = None if low is None or a is None else low + coefficient * a
            high = None if high is None or b is None else high + coefficient * b
            if low is None and high is None:
                break
        return low, high

    def known_divisor(self, p: Poly) -> int:
        """The greatest integer that divides every coefficient of p; 0 for the zero polynomial."""
        out = 0
        for coefficient in p.values():
            out = gcd(out, coefficient)
        return out

    # -- signs ----------------------------------------------------------------------------------------

    def positive(self, p: Poly) -> bool:
        """Whether p >= 1 is proved."""
        return self.nonnegative(add(p, constant(-1)))

    def within(self, p: Poly, stop: Poly) -> bool:
        """Whether 0 <= p < stop is proved."""
        return self.nonnegative(p) and self.nonnegative(add(subtract(stop, p), constant(-1)))

    def nonnegative(self, p: Poly) -> bool:
        """Whether p >= 0 is proved, from the ranges of its atoms and from what is given."""
        low, high = self.interval(p)
        if low is not None and low >= 0:
            return True
        if (high is not None and high < 0) or len(p) > LARGEST_PROOF:
            return False
        if self._interval_is_exact(p):
            return False if not self.given else self._from_given(p)
        key = key_of(p)
        if key not in self.proved:
            self._start_question()
            self.proved[key] = self._descend(p) or self._from_given(p)
        return self.proved[key]

    def _start_question(self) -> None:
        self.steps = MOST_STEPS if self.spent < STEPS_IN_ALL else FEWEST_STEPS

    def _from_given(self, p: Poly, uses: int = MOST_FACTS) -> bool:
        """p >= 0 since p is a sum of what is given, each times something not negative, and of what the ranges prove."""
        for fact in self.given:
            factor = self._multiplier(p, fact)
            if factor is None:
                continue
            self._start_question()
            rest = subtract(p, multiply(fact, factor))
            if self._descend(rest) or (uses > 1 and self._from_given(rest, uses - 1)):
                return True
        return uses > 1 and bool(self.given) and any(self._from_given(q, uses - 1) for q in self._without_floor(p))

    def _without_floor(self, p: Poly) -> Iterator[Poly]:
        """``r + x // d >= 0`` as ``x + d*r >= 0``, and ``r - x // d >= 0`` as ``d*r + d - 1 - x >= 0``, for d > 0."""
        for mono, coefficient in p.items():
            atom = self.atoms[mono[0]] if len(mono) == 1 and abs(coefficient) == 1 else None
            if atom is None or atom.kind != "div" or (self.interval(atom.y)[0] or 0) < 1:
                continue
            rest = multiply(add(p, {mono: coefficient}, -1), atom.y)
            yield add(rest, atom.x) if coefficient > 0 else add(add(rest, add(atom.y, constant(-1))), atom.x, -1)

    def _multiplier(self, p: Poly, fact: Poly) -> Poly | None:
        """The factor, not negative, by which the fact takes away some term of p; None: they share none."""
        for mono, coefficient in p.items():
            for other, number in fact.items():
                rest = monomial_quotient(mono, other) if other else None
                if rest is None or (coefficient < 0) != (number < 0) or coefficient % number:
                    continue
                if all(_from_zero(self.atoms[atom].low) for atom in rest):
                    return {rest: coefficient // number}
        return None

    def limits(self, fact: Poly) -> tuple[int, int | None, int | None] | None:
        """What a fact says of one symbol alone: the number of its atom, and the least or the greatest value."""
        offset = fact.get(ONE, 0)
        terms = [(mono, c) for mono, c in fact.items() if mono]
        if len(terms) != 1 or len(terms[0][0]) != 1:
            return None
        ((number,), c) = terms[0]
        if self.atoms[number].kind not in ("sym", "quot"):
            return None
        return (number, -(offset // c), None) if c > 0 else (number, None, offset // -c)

    def tighten(self, fact: Poly) -> None:
        """Narrow the range of a symbol by a fact that is about it alone."""
        found = self.limits(fact)
        if found is None:
            return
        number, least, most = found
        atom = self.atoms[number]
        if least is not None and (atom.low is None or atom.low < least):
            atom.low = least
            if atom.lower is None or is_constant(atom.lower):
                atom.lower = constant(least)
        if most is not None and (atom.high is None or atom.high > most):
            atom.high = most
            if atom.upper is None or is_constant(atom.upper):
                atom.upper = constant(most)

    def _interval_is_exact(self, p: Poly) -> bool:
        """Whether the terms of p take their bounds independently, so that the interval is its range."""
        seen = set()
        for mono in p:
            if len(mono) > 1:
                return False
            for number in mono:
                atom = self.atoms[number]
                if (
                    atom.kind != "sym"
                    or number in seen
                    or not (
                        (atom.lower is None or is_constant(atom.lower))
                        and (atom.upper is None or is_constant(atom.upper))
                    )
                ):
                    return False
                seen.add(number)
        return True

    def _descend(self, p: Poly) -> bool:
        """p >= 0 by replacing its highest atom by the bound that makes p least."""
        low, high = self.interval(p)
        if low is not None and low >= 0:
            return True
        if is_constant(p) or self.steps <= 0 or len(p) > LARGEST_PROOF:
            return False
        if high is not None and high < 0:
            return False
        self.steps -= 1
        self.spent += 1
        top = max(mono[-1] for mono in p if mono)
        factor, rest, linear = split(p, top)
        atom = self.atoms[top]
        if atom.kind == "prod":
            return self._descend(substitute(p, top, multiply(atom.x, atom.y)))
        if not linear:
            # every power grows with the atom where the atom and all that multiplies it are nonnegative
            if not self._grows_with(p, top):
                return False
            return self._descend(substitute(p, top, constant(atom.low or 0)))
        sign = self._sign(factor)
        if atom.kind in ("min", "max", "select"):
            return self._cases(p, top, atom, sign)
        if sign > 0:
            return any(self._descend(add(rest, term)) for term in self._lower_terms(factor, atom))
        if sign < 0:
            return any(self._descend(add(rest, term)) for term in self._upper_terms(factor, atom))
        lower, upper = self.lower_of(atom), self.upper_of(atom)
        if lower is None or upper is None:
            return False
        return all(self._descend(add(rest, multiply(factor, end))) for end in (lower, upper))

    def _sign(self, p: Poly) -> int:
        """1 where p >= 0 is proved, -1 where p <= 0 is, else 0."""
        if is_constant(p):
            return 1 if p.get(ONE, 0) >= 0 else -1
        return 1 if self._descend(p) else -1 if self._descend(negate(p)) else 0

    def _grows_with(self, p: Poly, top: int) -> bool:
        """Whether every term that holds the atom is a product of nonnegative factors."""
        for mono, coefficient in p.items():
            if top in mono:
                lows = [self.atoms[number].low for number in mono]
                if coefficient < 0 or any(low is None or low < 0 for low in lows):
                    return False
        return True

    def _cases(self, p: Poly, top: int, atom: Atom, sign: int) -> bool:
        """The atom takes the value of one operand; a minimum is at most both, a maximum at least both."""
        branches = (substitute(p, top, value) for value in (atom.x, atom.y))
        if (atom.kind == "min" and sign < 0) or (atom.kind == "max" and sign > 0):
            return any(self._descend(branch) for branch in branches)
        return all(self._descend(branch) for branch in branches)

    def _lower_terms(self, factor: Poly, atom: Atom) -> list[Poly]:
        """Polynomials at most ``factor * atom``, given factor >= 0."""
        out = []
        if atom.kind == "div":
            whole = exact_quotient(factor, atom.y)
            if whole is not None and self._sign(whole) > 0:  # d * (x // d) >= x - d + 1
                out.append(multiply(whole, add(subtract(atom.x, atom.y), constant(1))))
        if (lower := self.lower_of(atom)) is not None:
            out.append(multiply(factor, lower))
        if atom.low is not None and (lower is None or not is_constant(lower)):
            out.append({mono: coefficient * atom.low for mono, coefficient in factor.items()} if atom.low else {})
        return out

    def _upper_terms(self, factor: Poly, atom: Atom) -> list[Poly]:
        """Polynomials at most ``factor * atom``, given factor <= 0."""
        out = []
        if atom.kind == "div":
            whole = exact_quotient(factor, atom.y)
            if whole is not None and self._sign(whole) < 0:  # d * (x // d) <= x
                out.append(multiply(whole, atom.x))
        if (upper := self.upper_of(atom)) is not None:
            out.append(multiply(factor, upper))
        if atom.kind == "mod" and self._sign(atom.x) > 0:  # x % d <= x
            out.append(multiply(factor, atom.x))
        if atom.high is not None and (upper is None or not is_constant(upper)):
            out.append({mono: coefficient * atom.high for mono, coefficient in factor.items()} if atom.high else {})
        return out

    # -- symbolic bounds ------------------------------------------------------------------------------

    def lower_of(self, atom: Atom) -> Poly | None:
        """A polynomial that the atom never falls below."""
        if atom.lower is None and atom.kind in ("mod", "div") and (self.interval(atom.y)[0] or 0) >= 1:
            if atom.kind == "mod":
                atom.lower = {}
            elif (least := self.bound(atom.x, -1)) is not None:
                quotient, rest = divide(least, atom.y)
                if self._descend(rest):
                    atom.lower = quotient
                elif self._descend(add(rest, atom.y)):
                    atom.lower = add(quotient, constant(-1))
        return atom.lower

    def upper_of(self, atom: Atom) -> Poly | None:
        """A polynomial that the atom never exceeds."""
        if atom.upper is None and atom.kind in ("mod", "div") and (self.interval(atom.y)[0] or 0) >= 1:
            if atom.kind == "mod":
                atom.upper = add(atom.y, constant(-1))
            elif (most := self.bound(atom.x, 1)) is not None:
                quotient, rest = divide(most, atom.y)
                if self._descend(add(negate(rest), constant(-1))):
                    atom.upper = add(quotient, constant(-1))
                elif self._descend(add(subtract(atom.y, rest), constant(-1))):
                    atom.upper = quotient
        return atom.upper

    def bound(self, p: Poly, direction: int) -> Poly | None:
        """A polynomial over parameters that p never exceeds (direction 1) or never falls below (-1)."""
        for _ in range(len(self.atoms)):
            free = [number for mono in p for number in mono if number not in self.kept]
            if not free or self.steps <= 0:
                break
            self.steps -= 1
            top = max(free)
            factor, rest, linear = split(p, top)
            sign = self._sign(factor) * direction
            atom = self.atoms[top]
            if not linear or sign == 0:
                return None
            value = self.upper_of(atom) if sign > 0 else self.lower_of(atom)
            if value is None:
                return None
            p = add(rest, multiply(factor, value))
        return p


def _from_zero(low: int | None) -> bool:
    return low is not None and low >= 0


# -- interval arithmetic ----------------------------------------------------------------------------------


def _sane(p: Interval) -> Interval:
    """The interval, ends of absurd size taken as unbounded: repeated squaring must not fill the memory."""
    low, high = p
    if low is not None and low.bit_length() > WIDEST:
        low = None
    if high is not None and high.bit_length() > WIDEST:
        high = None
    return low, high


def _product(p: Interval, q: Interval) -> Interval:
    (a, b), (c, d) = p, q
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if (a, b) == (0, 0) or (c, d) == (0, 0):
        return 0, 0
    if a is None or b is None or c is None or d is None:
        return _unbounded_product(p, q)
    ends = (a * c, a * d, b * c, b * d)
    return min(ends), max(ends)


def _unbounded_product(p: Interval, q: Interval) -> Interval:
    """The product where some end is open: it is one-sided when both factors keep their sign."""
    (a, b), (c, d) = p, q
    left = 1 if a is not None and a >= 0 else -1 if b is not None and b <= 0 else 0
    right = 1 if c is not None and c >= 0 else -1 if d is not None and d <= 0 else 0
    if left * right > 0:
        near = (a or 0) * (c or 0) if left > 0 else (b or 0) * (d or 0)
        return near, None
    if left * right < 0:
        near = (a or 0) * (d or 0) if left > 0 else (b or 0) * (c or 0)
        return None, near
    return None, None


def _quotient_interval(a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    """Bounds of ``x // y`` for x in [a, b], y in [c, d]; only for positive y."""
    if c is None or c < 1:
        return None, None
    if a is None:
        low = None
    elif a >= 0:
        low = 0 if d is None else a // d
    else:
        low = a // c
    if b is None:
        high = None
    elif b >= 0:
        high = b // c
    else:
        high = -1 if d is None else b // d
    return low, high


def _xor_interval(a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    if a is None or c is None or a < 0 or c < 0:
        if a is None or b is None or c is None or d is None:
            return None, None
        bits = max((end if end >= 0 else ~end).bit_length() for end in (a, b, c, d))
        return -(1 << bits), (1 << bits) - 1
    if b is None or d is None:
        return 0, None
    return 0, (1 << max(b.bit_length(), d.bit_length())) - 1


def interval_of(node: Expr, parts: Sequence[Interval]) -> Interval:
    """Bounds of a number from the bounds of its operands; the operands are taken to be independent.

    Args:
        node: any op of integer value but ``sym``.
        parts: one interval per operand; that of a condition is not looked at.
    """
    match node.op:
        case "const":
            return node.args[0], node.args[0]
        case "add":
            (a, b), (c, d) = parts
            return None if a is None or c is None else a + c, None if b is None or d is None else b + d
        case "sub":
            (a, b), (c, d) = parts
            return None if a is None or d is None else a - d, None if b is None or c is None else b - c
        case "mul":
            return _sane(_product(parts[0], parts[1]))
        case "floordiv" | "mod":
            (a, b), (c, d) = parts
            if d is not None and d <= -1:  # x // y == -x // -y, x % y == -(-x % -y)
                a, b, c, d = _negated((a, b)) + _negated((c, d))
                low, high = _division_interval(node.op, a, b, c, d)
                return (low, high) if node.op == "floordiv" else _negated((low, high))
            return _division_interval(node.op, a, b, c, d)
        case "min" | "max":
            return _extreme_interval(node.op, parts[0], parts[1])
        case "select":
            (a, b), (c, d) = parts[1:]
            return None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d)
        case "xor":
            return _xor_interval(*parts[0], *parts[1])
    return None, None


def _negated(p: Interval) -> Interval:
    return None if p[1] is None else -p[1], None if p[0] is None else -p[0]


def _division_interval(op: str, a: int | None, b: int | None, c: int | None, d: int | None) -> Interval:
    if op == "floordiv":
        return _quotient_interval(a, b, c, d)
    if c is None or c < 1:
        return None, None
    known = [end for end in (None if d is None else d - 1, b if a is not None and a >= 0 else None) if end is not None]
    return 0, min(known) if known else None


def _extreme_interval(op: str, p: Interval, q: Interval) -> Interval:
    (a, b), (c, d) = p, q
    if op == "min":
        ends = [end for end in (b, d) if end is not None]
        return None if a is None or c is None else min(a, c), min(ends) if ends else None
    ends = [end for end in (a, c) if end is not None]
    return max(ends) if ends else None, None if b is None or d is None else max(b, d)
