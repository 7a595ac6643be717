"""Polynomials with integer coefficients over numbered atoms, as plain dicts.

A monomial is the ascending tuple of its atoms' numbers, repeated for powers; ``()`` is the constant monomial. A
polynomial maps monomials to coefficients that are not zero. Polynomials are shared freely, so no function here
changes its arguments.
What an atom stands for is `facts.Facts`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

Monomial = tuple[int, ...]
Poly = dict[Monomial, int]

ONE: Monomial = ()
MOST_DIVISION_STEPS = 64
"""Each takes one term out and may bring others in; stopping early is right: ``p == d * q + r`` holds all along."""


def constant(value: int) -> Poly:
    """The constant polynomial."""
    return {ONE: value} if value else {}


def is_constant(p: Poly) -> bool:
    """Whether p holds no atom."""
    return not p or (len(p) == 1 and ONE in p)


def add(p: Poly, q: Poly, factor: int = 1) -> Poly:
    """``p + factor * q``."""
    out = dict(p)
    if not factor:
        return out
    for mono, coefficient in q.items():
        total = out.get(mono, 0) + factor * coefficient
        if total:
            out[mono] = total
        else:
            del out[mono]
    return out


def subtract(p: Poly, q: Poly) -> Poly:
    """``p - q``."""
    return add(p, q, -1)


def negate(p: Poly) -> Poly:
    """``-p``."""
    return {mono: -coefficient for mono, coefficient in p.items()}


def scale(p: Poly, factor: int, mono: Monomial = ONE) -> Poly:
    """``factor * mono * p``."""
    if not factor:
        return {}
    if not mono:
        return {m: factor * c for m, c in p.items()} if factor != 1 else p
    return {tuple(sorted(m + mono)): factor * c for m, c in p.items()}


def multiply(p: Poly, q: Poly) -> Poly:
    """``p * q``, expanded."""
    if len(q) == 1:
        ((mono, coefficient),) = q.items()
        return scale(p, coefficient, mono)
    if len(p) == 1:
        ((mono, coefficient),) = p.items()
        return scale(q, coefficient, mono)
    out: Poly = {}
    for mono, coefficient in p.items():
        out = add(out, scale(q, coefficient, mono))
    return out


def monomial_quotient(mono: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial ``mono / divisor``, or None where it is none."""
    if not divisor:
        return mono
    rest = list(mono)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def content(terms: Iterable[tuple[Monomial, int]]) -> tuple[Monomial, int]:
    """The greatest monomial and the greatest positive integer that divide every term."""
    common: list[int] | None = None
    number = 0
    for mono, coefficient in terms:
        number = gcd(number, coefficient)
        if common is None:
            common = list(mono)
        elif common:
            rest, kept = list(mono), []
            for atom in common:
                if atom in rest:
                    rest.remove(atom)
                    kept.append(atom)
            common = kept
    return tuple(common or ()), number


def divide(p: Poly, d: Poly) -> tuple[Poly, Poly]:
    """Polynomials with ``p == d * q + r``, as much of p in ``d * q`` as exact division of terms finds.

    Coefficients over a constant d leave a remainder of their own sign; the constant term one in ``[0, d)``.
    """
    if len(d) == 1:
        ((lead, number),) = d.items()
        return _divide_by_term(p, lead, number)
    if not d:
        return {}, p
    lead = max((mono for mono in d), key=lambda mono: (len(mono), mono))
    number = d[lead]
    quotient: Poly = {}
    rest = p
    for _ in range(MOST_DIVISION_STEPS):
        for mono, coefficient in rest.items():
            step = monomial_quotient(mono, lead)
            if step is not None and coefficient % number == 0:
                break
        else:
            break
        factor = coefficient // number
        quotient = add(quotient, {step: factor})
        rest = add(rest, scale(d, -factor, step))
    return quotient, rest


def _divide_by_term(p: Poly, lead: Monomial, number: int) -> tuple[Poly, Poly]:
    quotient: Poly = {}
    rest: Poly = {}
    for mono, coefficient in p.items():
        step = monomial_quotient(mono, lead) if lead else mono
        if step is None:
            rest[mono] = coefficient
            continue
        if mono:
            factor = abs(coefficient) // abs(number)
            factor = factor if (coefficient < 0) == (number < 0) else -factor
        else:
            factor = coefficient // number
        if factor:
            quotient[step] = quotient.get(step, 0) + factor
        if coefficient != factor * number:
            rest[mono] = coefficient - factor * number
    return quotient, rest


def exact_quotient(p: Poly, d: Poly) -> Poly | None:
    """The polynomial ``p / d``, or None where it is none."""
    if not d:
        return None
    quotient, rest = divide(p, d)
    return None if rest else quotient


def split(p: Poly, atom: int) -> tuple[Poly, Poly, bool]:
    """``(A, B, linear)`` with ``p == A * atom + B``; where p is not linear in the atom, A holds it still."""
    factor: Poly = {}
    rest: Poly = {}
    linear = True
    for mono, coefficient in p.items():
        if atom in mono:
            at = mono.index(atom)
            lowered = mono[:at] + mono[at + 1 :]
            linear = linear and atom not in lowered
            factor[lowered] = coefficient
        else:
            rest[mono] = coefficient
    return factor, rest, linear


def substitute(p: Poly, atom: int, value: Poly) -> Poly:
    """p with every power of the atom replaced by the value."""
    factor, rest, linear = split(p, atom)
    if not factor:
        return p
    if not linear:
        factor = substitute(factor, atom, value)
    return add(rest, multiply(factor, value))


def replaced(p: Poly, values: dict[int, Poly]) -> Poly:
    """p with the atoms that have a value replaced by it, all at once."""
    if not any(number in values for mono in p for number in mono):
        return p
    out: Poly = {}
    for mono, coefficient in p.items():
        term = constant(coefficient)
        for number in mono:
            term = multiply(term, values.get(number, {(number,): 1}))
        out = add(out, term)
    return out


def known_divisor(p: Poly) -> int:
    """The greatest integer that divides every coefficient of p; 0 for the zero polynomial."""
    out = 0
    for coefficient in p.values():
        out = gcd(out, coefficient)
    return out


def tight(p: Poly) -> Poly:
    """The strongest ``q >= 0`` with the same solutions: divided by the common factor, constant rounded down."""
    divisor = known_divisor({mono: c for mono, c in p.items() if mono})
    if divisor <= 1:
        return p
    out = {mono: c // divisor for mono, c in p.items()}
    return out if out.get(ONE, 1) else {mono: c for mono, c in out.items() if c}
