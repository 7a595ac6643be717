"""The rules of floor division, remainder and xor: a short table, each rule with its law and its proved side condition.

A rule takes a dividend p and a divisor d, both polynomials, and returns the rewritten value or None where its
condition is not proved. The driver tries them in order; each rule hands smaller divisions back to the driver. All laws
are about integers with floor semantics; d > 0 is proved before any rule but `peel` is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import isqrt

from tileweave.index.expr import Expr
from tileweave.index.normal.facts import Facts, Key, Memo, atom_of, interval, key_of
from tileweave.index.normal.poly import (
    ONE,
    Monomial,
    Poly,
    add,
    constant,
    content,
    divide,
    exact_quotient,
    is_constant,
    multiply,
    negate,
    scale,
    subtract,
)
from tileweave.index.normal.signs import nonnegative, positive, within

LARGEST_SUM = 64
"""Terms of a sum beyond which its terms are not paired up."""
LARGEST_UNWRAPPED = 24
"""Terms of a sum that unwrapping a remainder may make."""
MOST_MULTIPLES = 4
"""Multiples of a constant divisor that are tried where conditions are given."""
MOST_SHARED = 16
"""Terms of a select's common part beyond which they stay inside."""


@contextmanager
def supposing(facts: Facts, more: Sequence[Poly]) -> Iterator[None]:
    """Polynomials given not to be negative for a while: what is rewritten meanwhile is right only where they hold."""
    given, memo = facts.given, facts.memo
    facts.given = [*given, *more]
    facts.memo = Memo({key: True for key, found in memo.proved.items() if found}, local=True)
    yield
    facts.given, facts.memo = given, memo


def floor(facts: Facts, p: Poly, d: Poly) -> Poly:
    """``p // d``."""
    return _divided(facts, p, d, "floordiv", FLOOR_RULES, facts.memo.floors)


def mod(facts: Facts, p: Poly, d: Poly) -> Poly:
    """``p % d``."""
    return _divided(facts, p, d, "mod", MOD_RULES, facts.memo.mods)


def _divided(
    facts: Facts, p: Poly, d: Poly, kind: str, rules: tuple[DivisionRule, ...], memo: dict[tuple[Key, Key], Poly]
) -> Poly:
    if not p and d:
        return p
    key = key_of(p), key_of(d)
    found = memo.get(key)
    if found is None:
        found = memo[key] = _by_rules(facts, recombine(facts, p), d, kind, rules)
    return found


def _by_rules(facts: Facts, p: Poly, d: Poly, kind: str, rules: tuple[DivisionRule, ...]) -> Poly:
    if not d:  # never evaluated: it stands in a branch that is not chosen
        return {(atom_of(facts, kind, p, d),): 1}
    out = rules[0].apply(facts, p, d)  # peel, valid for every d != 0
    if out is not None:
        return out
    if not positive(facts, d):
        if positive(facts, negate(d)):  # p // d == -p // -d and p % d == -(-p % -d)
            return (
                floor(facts, negate(p), negate(d)) if kind == "floordiv" else negate(mod(facts, negate(p), negate(d)))
            )
        return {(atom_of(facts, kind, p, d),): 1}
    for rule in rules[1:]:
        out = rule.apply(facts, p, d)
        if out is not None:
            return out
    return {(atom_of(facts, kind, p, d),): 1}


def xor(facts: Facts, p: Poly, q: Poly) -> Poly:
    """``p ^ q``, two's complement."""
    for rule in XOR_RULES:
        out = rule.apply(facts, p, q)
        if out is not None:
            return out
    p, q = sorted((p, q), key=lambda side: sorted(side.items()))
    return {(atom_of(facts, "xor", p, q),): 1}


def root(facts: Facts, p: Poly) -> Poly:
    """``isqrt(p)``."""
    low, high = interval(facts, p)
    if low is not None and low >= 0 and high is not None and isqrt(low) == isqrt(high):
        return constant(isqrt(low))
    return {(atom_of(facts, "isqrt", p, {}),): 1}


def extreme(facts: Facts, kind: str, p: Poly, q: Poly) -> Poly:
    """``min(p, q)`` or ``max(p, q)``: the side that is proved to be it, else an atom."""
    for a, b in ((p, q), (q, p)):
        if nonnegative(facts, subtract(b, a)):
            return a if kind == "min" else b
    p, q = sorted((p, q), key=lambda side: sorted(side.items()))
    return {(atom_of(facts, kind, p, q),): 1}


def choice(facts: Facts, condition: Expr, p: Poly, q: Poly) -> Poly:
    """``select(condition, p, q)`` for a condition that is not decided; terms that p and q share stay outside."""
    if p == q:
        return p
    shared = {mono: c for mono, c in p.items() if q.get(mono) == c}
    for mono, c in p.items():  # x in one and 2*x in the other: x comes out
        other = q.get(mono, 0)
        if mono and other != c and c * other > 0 and min(abs(c), abs(other)) == 1:
            shared[mono] = 1 if c > 0 else -1
    if len(shared) > MOST_SHARED:  # a chain of selects would copy a growing sum at every step
        shared = {}
    return add(shared, {(atom_of(facts, "select", subtract(p, shared), subtract(q, shared), condition),): 1})


def only_atom(facts: Facts, p: Poly, kind: str) -> int | None:
    """The number of the atom that p is, if p is one atom of that kind."""
    if len(p) == 1:
        ((mono, coefficient),) = p.items()
        if coefficient == 1 and len(mono) == 1 and facts.atoms[mono[0]].kind == kind:
            return mono[0]
    return None


@dataclass(frozen=True, slots=True)
class DivisionRule:
    """One rewrite of ``p // d``, ``p % d`` or ``p ^ d``: a name, its law with the side condition, the function."""

    name: str
    law: str
    apply: Callable[[Facts, Poly, Poly], Poly | None]


@dataclass(frozen=True, slots=True)
class SumRule:
    """One rewrite of a sum."""

    name: str
    law: str
    apply: Callable[[Facts, Poly], Poly]


# -- floor and remainder ----------------------------------------------------------------------------------


def _peel_floor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    quotient, rest = divide(p, d)
    return add(quotient, floor(facts, rest, d)) if quotient else None


def _peel_mod(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    quotient, rest = divide(p, d)
    return mod(facts, rest, d) if quotient else None


def _multiple_below(facts: Facts, p: Poly, d: Poly) -> int | None:
    """The constant k with ``k*d <= p < (k+1)*d`` proved, if there is one near zero."""
    if is_constant(d):
        low, high = interval(facts, p)
        step = d[ONE]
        if low is not None and high is not None:
            if low // step == high // step:
                return low // step
            if facts.given and high // step - low // step <= MOST_MULTIPLES:
                for k in range(low // step, high // step + 1):
                    if within(facts, add(p, d, -k), d):
                        return k
                return None
    if nonnegative(facts, p):
        return 0 if nonnegative(facts, add(subtract(d, p), constant(-1))) else None
    if nonnegative(facts, add(negate(p), constant(-1))) and nonnegative(facts, add(p, d)):
        return -1
    return None


def _fit_floor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    multiple = _multiple_below(facts, p, d)
    return None if multiple is None else constant(multiple)


def _fit_mod(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    multiple = _multiple_below(facts, p, d)
    return None if multiple is None else add(p, d, -multiple)


def _partition(facts: Facts, p: Poly, d: Poly) -> tuple[Poly, Poly, Poly, Poly] | None:
    """``(g, a, b, c)`` with ``p == g*a + b``, ``0 <= b < g`` proved and ``d == g*c``, for the greatest such g > 1."""
    shared, number = content(d.items())
    for mono, factor in _common_factors(p, shared, number):
        g = {mono: factor}
        quotient = exact_quotient(d, g)
        if quotient is None or (is_constant(quotient) and quotient[ONE] == 1):
            continue
        a, b = divide(p, g)
        if not a:
            continue
        if b:
            multiple = _multiple_below(facts, b, g)
            if multiple is None:
                continue
            a, b = add(a, constant(multiple)), add(b, g, -multiple)
        return g, a, b, quotient
    return None


def _common_factors(p: Poly, shared: Monomial, number: int) -> Iterator[tuple[Monomial, int]]:
    """Factors of the divisor's content that some terms of p have in common, greatest first, 1 left out."""
    found: set[tuple[Monomial, int]] = set()
    terms = sorted(((m, c) for m, c in p.items() if m), key=lambda term: (-len(term[0]), -abs(term[1]), term[0]))
    running: tuple[Monomial, int] = shared, number
    for term in terms:
        running = content([running, term])
        found.update((running, content([(shared, number), term])))
    found.discard((ONE, 1))
    return iter(sorted(found, key=lambda g: (-len(g[0]), -g[1], g[0])))


def _partition_floor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    parts = _partition(facts, p, d)
    return None if parts is None else floor(facts, parts[1], parts[3])


def _partition_mod(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    parts = _partition(facts, p, d)
    if parts is None:
        return None
    g, a, b, quotient = parts
    return add(multiply(mod(facts, a, quotient), g), b)


def _nested_floor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    offset = p.get(ONE, 0)
    inner = only_atom(facts, add(p, constant(-offset)), "floordiv")
    if inner is None:
        return None
    atom = facts.atoms[inner]
    return floor(facts, add(atom.x, atom.y, offset), multiply(atom.y, d))


def _ceiling(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    if ONE not in p and all(c < 0 for c in p.values()):
        return negate(floor(facts, add(subtract(d, p), constant(-1)), d))
    return None


def _floor_of_mod(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    inner = only_atom(facts, p, "mod")
    if inner is None:
        return None
    atom = facts.atoms[inner]
    quotient = exact_quotient(atom.y, d)
    if quotient is None or not positive(facts, atom.y):
        return None
    return mod(facts, floor(facts, atom.x, d), quotient)


def _mod_of_mod(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    for mono, coefficient in p.items():
        for number in set(mono):
            atom = facts.atoms[number]
            if atom.kind != "mod" or len(p) + len(atom.x) > LARGEST_UNWRAPPED:
                continue
            at = mono.index(number)
            others = mono[:at] + mono[at + 1 :]
            if exact_quotient(scale(atom.y, coefficient, others), d) is not None:
                rest = add(p, {mono: coefficient}, -1)
                return mod(facts, add(rest, scale(atom.x, coefficient, others)), d)
    return None


def _bitwise(facts: Facts, p: Poly, d: Poly, kind: str) -> Poly | None:
    inner = only_atom(facts, p, "xor")
    if inner is None or not is_constant(d) or d[ONE] & (d[ONE] - 1):
        return None
    atom = facts.atoms[inner]
    part = floor if kind == "floordiv" else mod
    return xor(facts, part(facts, atom.x, d), part(facts, atom.y, d))


def _floor_of_xor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    return _bitwise(facts, p, d, "floordiv")


def _mod_of_xor(facts: Facts, p: Poly, d: Poly) -> Poly | None:
    return _bitwise(facts, p, d, "mod")


FLOOR_RULES = (
    DivisionRule("peel", "(d*q + r) // d == q + r // d, for d != 0", _peel_floor),
    DivisionRule("fit", "r // d == k, for k*d <= r < (k+1)*d", _fit_floor),
    DivisionRule("partition", "(g*a + b) // (g*c) == a // c, for 0 <= b < g and c > 0", _partition_floor),
    DivisionRule("nested floor", "(x // e + k) // d == (x + e*k) // (e*d), for d > 0", _nested_floor),
    DivisionRule("ceiling", "-x // d == -((x + d - 1) // d), for d > 0", _ceiling),
    DivisionRule("floor of %", "(x % (d*f)) // d == (x // d) % f, for d > 0 and f > 0", _floor_of_mod),
    DivisionRule("floor of xor", "(x ^ y) // d == (x // d) ^ (y // d), for d a power of two", _floor_of_xor),
)
MOD_RULES = (
    DivisionRule("peel", "(d*q + r) % d == r % d, for d != 0", _peel_mod),
    DivisionRule("fit", "r % d == r - k*d, for k*d <= r < (k+1)*d", _fit_mod),
    DivisionRule("partition", "(g*a + b) % (g*c) == g*(a % c) + b, for 0 <= b < g and c > 0", _partition_mod),
    DivisionRule("% of %", "(c*(x % e) + y) % d == (c*x + y) % d, for d dividing c*e", _mod_of_mod),
    DivisionRule("% of xor", "(x ^ y) % d == (x % d) ^ (y % d), for d a power of two", _mod_of_xor),
)


# -- xor --------------------------------------------------------------------------------------------------


def _xor_constants(facts: Facts, p: Poly, q: Poly) -> Poly | None:
    if not p or not q:
        return q or p
    if p == q:
        return {}
    if is_constant(p) and is_constant(q):
        return constant(p[ONE] ^ q[ONE])
    return None


def _xor_cancel(facts: Facts, p: Poly, q: Poly) -> Poly | None:
    for whole, part in ((p, q), (q, p)):
        inner = only_atom(facts, whole, "xor")
        if inner is not None:
            atom = facts.atoms[inner]
            if atom.x == part or atom.y == part:
                return atom.y if atom.x == part else atom.x
    return None


def _xor_split(facts: Facts, p: Poly, q: Poly) -> Poly | None:
    sizes = {c & -c for side in (p, q) for m, c in side.items()} - {1}
    for size in sorted(sizes, reverse=True):
        step = constant(size)
        halves = []
        for side in (p, q):
            high, low = divide(side, step)
            if low and not within(facts, low, step):
                break
            halves.append((high, low))
        else:
            (a, b), (c, d) = halves
            if not a or not c or a == c or not b or not d or b == d:
                if (a, c) != (p, q):
                    return add(scale(xor(facts, a, c), size), xor(facts, b, d))
    return None


XOR_RULES = (
    DivisionRule("xor of constants", "0 ^ q == q, p ^ p == 0, and constants", _xor_constants),
    DivisionRule("xor cancels", "(x ^ y) ^ y == x", _xor_cancel),
    DivisionRule(
        "xor by halves", "(g*a + b) ^ (g*c + d) == g*(a ^ c) + (b ^ d), g a power of two, 0 <= b, d < g", _xor_split
    ),
)


# -- sums -------------------------------------------------------------------------------------------------


Remainder = tuple[Monomial, int, Monomial, int]
"""A term with a remainder: the monomial, its coefficient, its other atoms, the remainder's atom."""


def _remainders(facts: Facts, p: Poly) -> list[Remainder]:
    """Every term of a sum with every remainder in it, powers once."""
    if facts.remainders.isdisjoint(chain.from_iterable(p)) or len(p) > LARGEST_SUM:
        return []
    return [
        (mono, coefficient, mono[:at] + mono[at + 1 :], number)
        for mono, coefficient in p.items()
        for at, number in enumerate(mono)
        if number in facts.remainders and number not in mono[:at]
    ]


def recombine(facts: Facts, p: Poly) -> Poly:
    """Join ``d*(x // d) + x % d`` to x and ``d*((x // d) % f) + x % d`` to ``x % (d*f)``, until no pair is left."""
    if len(p) < 2 or facts.remainders.isdisjoint(chain.from_iterable(p)):
        return p
    key = key_of(p)
    found = facts.memo.joined.get(key)
    if found is None:
        found = p
        while (joined := _recombine_once(facts, found)) is not None:
            found = joined
        facts.memo.joined[key] = found
    return found


def _recombine_once(facts: Facts, p: Poly) -> Poly | None:
    remainders = _remainders(facts, p)
    for mono, coefficient, others, number in remainders:
        atom = facts.atoms[number]
        quotient = floor(facts, atom.x, atom.y)
        partner = scale(multiply(quotient, atom.y), coefficient, others)
        if partner and all(p.get(m) == c for m, c in partner.items()):
            rest = add(subtract(p, partner), {mono: coefficient}, -1)
            return add(rest, scale(atom.x, coefficient, others))
        for _, _, _, digit in remainders:
            upper = facts.atoms[digit]
            if digit == number or upper.x != quotient:
                continue
            partner = scale(multiply({(digit,): 1}, atom.y), coefficient, others)
            if all(p.get(m) == c for m, c in partner.items()):
                rest = add(subtract(p, partner), {mono: coefficient}, -1)
                joined = mod(facts, atom.x, multiply(atom.y, upper.y))
                return add(rest, scale(joined, coefficient, others))
    return None


def merge_digits(facts: Facts, p: Poly) -> Poly:
    """``c*(x % d) + k*(x // d)`` to ``c*x + (k - c*d)*(x // d)``, which needs no remainder, from the top digit down."""
    while True:
        for mono, coefficient, others, number in _remainders(facts, p):
            atom = facts.atoms[number]
            if len(atom.x) != 1 or not is_constant(atom.y):
                continue
            quotient = scale(floor(facts, atom.x, atom.y), 1, others)
            if len(quotient) == 1 and next(iter(quotient)) in p and next(iter(quotient.values())) == 1:
                p = add(add(p, {mono: coefficient}, -1), scale(atom.x, coefficient, others))
                p = add(p, quotient, -coefficient * atom.y[ONE])
                break
        else:
            return p


def without_remainders(facts: Facts, p: Poly) -> Poly:
    """Every ``x % d`` written as ``x - d*(x // d)``: equal sums of digits become the same polynomial."""
    for _ in range(LARGEST_SUM):
        found = _remainders(facts, p)
        if not found:
            break
        mono, coefficient, others, number = found[0]
        atom = facts.atoms[number]
        value = subtract(atom.x, multiply(floor(facts, atom.x, atom.y), atom.y))
        p = add(add(p, {mono: coefficient}, -1), scale(value, coefficient, others))
    return p


SUM_RULES = (
    SumRule("recombine", "d*(x // d) + x % d == x and d*((x // d) % f) + x % d == x % (d*f)", recombine),
    SumRule("digits", "c*(x % d) + k*(x // d) == c*x + (k - c*d)*(x // d)", merge_digits),
    SumRule("no remainders", "x % d == x - d*(x // d)", without_remainders),
)
