"""What is known about the atoms of polynomials: intervals, symbolic bounds, divisors.

An atom is what a polynomial cannot look into: a symbol, a quotient, a remainder, a minimum. Each has a numeric
interval, and lower and upper bounds that are polynomials over atoms with smaller numbers, so that replacing the
highest atom by a bound, again and again, ends (`signs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from tileweave.index.expr import Expr
from tileweave.index.normal.intervals import Interval, interval_of, product, sane
from tileweave.index.normal.poly import Monomial, Poly

__all__ = ["Atom", "Facts", "Key", "Memo", "atom_of", "interval", "key_of", "known_divisor", "symbol_atom"]

Key = frozenset[tuple[tuple[int, ...], int]]


def key_of(p: Poly) -> Key:
    """A hashable value that is equal exactly for equal polynomials."""
    return frozenset(p.items())


@dataclass(slots=True)
class Atom:
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
    """Results under one set of given facts: signs by polynomial, quotients and remainders, sums with pairs joined.

    `local` ones hold in one branch of a select only.
    """

    proved: dict[Key, bool] = field(default_factory=dict)
    floors: dict[tuple[Key, Key], Poly] = field(default_factory=dict)
    mods: dict[tuple[Key, Key], Poly] = field(default_factory=dict)
    joined: dict[Key, Poly] = field(default_factory=dict)
    local: bool = False


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
        steps, spent: replacements left for the question at hand, and those made for all questions so far.
    """

    atoms: list[Atom] = field(default_factory=list)
    table: dict[tuple[object, ...], int] = field(default_factory=dict)
    remainders: set[int] = field(default_factory=set)
    given: list[Poly] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    multiples: dict[int, tuple[Expr, Monomial, int]] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    steps: int = 0
    spent: int = 0


def atom_of(facts: Facts, kind: str, x: Poly, y: Poly, expr: Expr | None = None) -> int:
    """The number of the atom with these operands, made on first use."""
    keys = key_of(x), key_of(y)
    key = (kind, keys, expr)
    number = facts.table.get(key)
    if number is None:
        low, high = sane(interval_of(kind, (interval(facts, x), interval(facts, y))))
        facts.atoms.append(Atom(kind, x, y, keys, expr, low, high))
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
    facts.atoms.append(Atom(kind, x, y, (key_of(x), key_of(y)), expr, low, high, lower, upper))
    return len(facts.atoms) - 1


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


def known_divisor(p: Poly) -> int:
    """The greatest integer that divides every coefficient of p; 0 for the zero polynomial."""
    out = 0
    for coefficient in p.values():
        out = gcd(out, coefficient)
    return out
