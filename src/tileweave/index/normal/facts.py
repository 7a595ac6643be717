"""What is known about the atoms of polynomials: intervals, symbolic bounds, divisors.

An atom is what a polynomial cannot look into: a symbol, a quotient, a remainder, a minimum. Each has a numeric
interval, and lower and upper bounds that are polynomials over atoms with smaller numbers, so that replacing the
highest atom by a bound, again and again, ends (`signs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

from tileweave.index.expr import Expr
from tileweave.index.normal.intervals import Interval, interval_of, product, sane
from tileweave.index.normal.poly import Monomial, Poly, is_constant

Sample = tuple[int | None, ...]
"""A value at each of a few points, which refute most of what no proof can show."""
POINTS = 6
"""As many as `_drawn` has kinds of values for."""
LONGEST_SAMPLE = 512
"""Bits of a value at a point beyond which it is not followed."""
Key = frozenset[tuple[tuple[int, ...], int]]


def key_of(p: Poly) -> Key:
    """A hashable value that is equal exactly for equal polynomials."""
    return frozenset(p.items())


@dataclass(slots=True)
class Indeterminate:
    """One opaque factor: its kind, its operands and what is known of its value.

    Args:
        kind: ``sym``, ``quot`` (a symbol over its declared divisor), ``floordiv``, ``mod``, ``min``, ``max``, ``xor``,
            ``select``, ``mul`` (a product kept factored).
        x, y: operands; dividend and divisor for ``floordiv`` and ``mod``.
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


@dataclass(slots=True)
class Memo:
    """Results under one set of given facts: signs by polynomial (of whole questions, and of steps on
    the way), quotients and remainders, sums with pairs joined.

    `local` ones hold in one branch of a select only.
    """

    proved: dict[Key, bool] = field(default_factory=dict)
    descents: dict[Key, bool] = field(default_factory=dict)
    floors: dict[tuple[Key, Key], Poly] = field(default_factory=dict)
    mods: dict[tuple[Key, Key], Poly] = field(default_factory=dict)
    joined: dict[Key, Poly] = field(default_factory=dict)
    local: bool = False

    def forget_signs(self) -> None:
        """More is known now: what was not proved may be provable."""
        self.proved.clear()
        self.descents.clear()


@dataclass(slots=True)
class Facts:
    """The atoms of some polynomials, what is known of them, and what was proved and divided so far.

    Args:
        atoms: by number.
        table: kind, operands and condition -> number.
        remainders: the numbers of the ``mod`` atoms.
        given: polynomials that are not negative, besides what the ranges say.
        kept: parameters, which are atoms of divisors and of bounds: symbolic bounds are written in them.
        multiples: quotient atom -> its symbol and the declared divisor (monomial, factor).
        memo: results that hold under `given`; cleared, or set aside, when that changes.
        symbols: the numbers of the atoms that are symbols, or symbols over their declared divisors.
        samples: of the atoms at a few points, by number, as far as they were asked for.
        steps, spent: replacements left for the question at hand, and those made for all questions so far.
    """

    atoms: list[Indeterminate] = field(default_factory=list)
    table: dict[tuple[object, ...], int] = field(default_factory=dict)
    remainders: set[int] = field(default_factory=set)
    given: list[Poly] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    symbols: list[int] = field(default_factory=list)
    multiples: dict[int, tuple[Expr, Monomial, int]] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    steps: int = 0
    spent: int = 0
    samples: list[Sample] = field(default_factory=list)


def atom_of(facts: Facts, kind: str, x: Poly, y: Poly, expr: Expr | None = None) -> int:
    """The number of the atom with these operands, made on first use."""
    keys = key_of(x), key_of(y)
    key = (kind, keys, expr)
    number = facts.table.get(key)
    if number is None:
        low, high = sane(interval_of(kind, (interval(facts, x), interval(facts, y))))
        facts.atoms.append(Indeterminate(kind, x, y, keys, expr, low, high))
        number = facts.table[key] = len(facts.atoms) - 1
        if kind == "mod":
            facts.remainders.add(number)
        if kind in ("floordiv", "mod"):
            facts.kept.update(atom for mono in y for atom in mono)
    return number


def symbol_atom(facts: Facts, expr: Expr, kind: str, lower: Poly | None, upper: Poly | None, x: Poly, y: Poly) -> int:
    """A new atom for a symbol, its bounds included in its range."""
    low, high = interval(facts, lower)[0] if lower is not None else None, None
    if upper is not None:
        high = interval(facts, upper)[1]
        facts.kept.update(atom for mono in upper for atom in mono)
    facts.symbols.append(len(facts.atoms))
    facts.atoms.append(Indeterminate(kind, x, y, (key_of(x), key_of(y)), expr, low, high, lower, upper))
    return len(facts.atoms) - 1


# -- sample points ----------------------------------------------------------------------------------------


def sample(facts: Facts) -> None:
    """Bring `Facts.samples` up to date: the values of all atoms at the sample points, operands first."""
    for number in range(len(facts.samples), len(facts.atoms)):
        atom = facts.atoms[number]
        if atom.kind in ("sym", "quot"):
            facts.samples.append(tuple(_drawn(facts, k, atom, number) for k in range(POINTS)))
        else:
            pairs = [(value_at(facts, atom.x, k), value_at(facts, atom.y, k)) for k in range(POINTS)]
            facts.samples.append(tuple(_applied(atom.kind, a, b) for a, b in pairs))


def value_at(facts: Facts, p: Poly, point: int) -> int | None:
    """The value of p at a sample point; None where an atom has none there."""
    out = 0
    for mono, c in p.items():
        for number in mono:
            value = facts.samples[number][point]
            if value is None:
                return None
            c *= value
        out += c
    return out


def _drawn(facts: Facts, point: int, atom: Indeterminate, number: int) -> int | None:
    """A symbol's value at a point: its least, its greatest, one between, each end for every other symbol, and a
    moderate one, at which what is given of products of sizes and of sums of indices still holds."""
    lower, upper = atom.lower, atom.upper
    low = None if lower is None else value_at(facts, lower, point)
    high = None if upper is None else value_at(facts, upper, point)
    if (low is None and lower is not None) or (high is None and upper is not None):
        return None
    spread = 3 + 4 * number
    if low is None:
        low = -spread if high is None else high - spread
    if high is None:
        high = low + spread
    if low > high:
        return None
    ends = (low, high) if number % 2 else (high, low)
    free = atom.upper is None or is_constant(atom.upper)
    moderate = low + (min(high - low, (1 << (high - low).bit_length() * 5 // 8) - 1) if free else (high - low) // 3)
    return (low, high, low + (high - low) * 2 // 3, *ends, moderate)[point]


def _applied(kind: str, a: int | None, b: int | None) -> int | None:
    """The value of an atom from those of its operands."""
    if a is None or b is None or max(a.bit_length(), b.bit_length()) > LONGEST_SAMPLE:
        return None
    match kind:
        case "floordiv" | "mod":
            return None if b == 0 else a // b if kind == "floordiv" else a % b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "xor":
            return a ^ b
        case "mul":
            return a * b
        case "isqrt":
            return isqrt(a) if a >= 0 else None
    return None  # which branch a select takes is not known here


def interval(facts: Facts, p: Poly) -> Interval:
    """Numeric bounds of p from those of its atoms, each taken on its own."""
    low: int | None = 0
    high: int | None = 0
    atoms = facts.atoms
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
                a, b = product((a, b), (atoms[number].low, atoms[number].high))
        if coefficient < 0:
            a, b = b, a
        low = None if low is None or a is None else low + coefficient * a
        high = None if high is None or b is None else high + coefficient * b
        if low is None and high is None:
            break
    return low, high
