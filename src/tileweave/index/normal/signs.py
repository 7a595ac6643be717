"""Signs of polynomials, proved from the ranges of their atoms and from what is given: the one prover of this package.

Every side condition of every rule, every condition and every printed division asks `nonnegative`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tileweave.index.normal.facts import POINTS, Facts, Indeterminate, interval, key_of, sample, value_at
from tileweave.index.normal.poly import (
    ONE,
    Poly,
    add,
    constant,
    content,
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

LARGEST_PROOF = 48
"""Terms of a polynomial beyond which only its numeric interval is asked."""
MOST_STEPS = 120
"""Replacements tried for one sign question."""
FEWEST_STEPS = 6
"""The same, once `STEPS_IN_ALL` were spent: huge graphs get the easy proofs only."""
MOST_FACTS = 3
"""Given facts that one proof adds up."""
STEPS_IN_ALL = 20_000
"""Under one set of facts."""


def positive(facts: Facts, p: Poly) -> bool:
    """Whether p >= 1 is proved."""
    return nonnegative(facts, add(p, constant(-1)))


def within(facts: Facts, p: Poly, stop: Poly) -> bool:
    """Whether 0 <= p < stop is proved."""
    return nonnegative(facts, p) and nonnegative(facts, add(subtract(stop, p), constant(-1)))


def nonnegative(facts: Facts, p: Poly) -> bool:
    """Whether p >= 0 is proved, from the ranges of its atoms and from what is given."""
    low, high = interval(facts, p)
    if low is not None and low >= 0:
        return True
    if (high is not None and high < 0) or len(p) > LARGEST_PROOF:
        return False
    if _interval_is_exact(facts, p):
        return False if not facts.given else _from_given(facts, p)
    key = key_of(p)
    if key not in facts.memo.proved:
        if _refuted(facts, p):
            facts.memo.proved[key] = False
            return False
        _start_question(facts)
        facts.memo.proved[key] = _descend(facts, p) or _from_given(facts, p)
    return facts.memo.proved[key]


def _refuted(facts: Facts, p: Poly) -> bool:
    """Whether p < 0 at a sample point at which all that is given holds."""
    sample(facts)
    for point in range(POINTS):
        value = value_at(facts, p, point)
        if value is not None and value < 0 and _is_inside(facts, point):
            return True
    return False


def _is_inside(facts: Facts, point: int) -> bool:
    for number in facts.symbols:
        atom, value = facts.atoms[number], facts.samples[number][point]
        if value is not None and (
            (atom.low is not None and value < atom.low) or (atom.high is not None and value > atom.high)
        ):
            return False
    return all((value_at(facts, fact, point) or 0) >= 0 for fact in facts.given)


def _start_question(facts: Facts) -> None:
    facts.steps = MOST_STEPS if facts.spent < STEPS_IN_ALL else FEWEST_STEPS


def _from_given(facts: Facts, p: Poly, uses: int = MOST_FACTS) -> bool:
    """p >= 0 since p is a sum of what is given, each times something not negative, and of what the ranges prove."""
    for fact in facts.given:
        factor = _multiplier(facts, p, fact)
        if factor is None and uses == MOST_FACTS and p.get(ONE, 0) > 0 and fact.get(ONE, 0) > 0:
            factor = constant(1)  # both are bounds from above: i*n + j stays below m*n, and m*n below what is given
        if factor is None:
            continue
        _start_question(facts)
        rest = subtract(p, multiply(fact, factor))
        if _descend(facts, rest) or (uses > 1 and _from_given(facts, rest, uses - 1)):
            return True
    return uses > 1 and bool(facts.given) and any(_from_given(facts, q, uses - 1) for q in _without_floor(facts, p))


def _without_floor(facts: Facts, p: Poly) -> Iterator[Poly]:
    """``r + x // d >= 0`` as ``x + d*r >= 0``, and ``r - x // d >= 0`` as ``d*r + d - 1 - x >= 0``, for d > 0."""
    for mono, coefficient in p.items():
        atom = facts.atoms[mono[0]] if len(mono) == 1 and abs(coefficient) == 1 else None
        if atom is None or atom.kind != "floordiv" or (interval(facts, atom.y)[0] or 0) < 1:
            continue
        yield _without_division(add(p, {mono: coefficient}, -1), atom, coefficient)


def _multiplier(facts: Facts, p: Poly, fact: Poly) -> Poly | None:
    """The factor, not negative, by which the fact takes away some term of p; None: they share none."""
    for mono, coefficient in p.items():
        for other, number in fact.items():
            rest = monomial_quotient(mono, other) if other else None
            if rest is None or (coefficient < 0) != (number < 0) or coefficient % number:
                continue
            if all(_from_zero(facts.atoms[atom].low) for atom in rest):
                return {rest: coefficient // number}
    return None


def limits(facts: Facts, fact: Poly) -> tuple[int, int | None, int | None] | None:
    """What a fact says of one symbol alone: the number of its atom, and the least or the greatest value."""
    offset = fact.get(ONE, 0)
    terms = [(mono, c) for mono, c in fact.items() if mono]
    if len(terms) != 1 or len(terms[0][0]) != 1:
        return None
    ((number,), c) = terms[0]
    if facts.atoms[number].kind not in ("sym", "quot"):
        return None
    return (number, -(offset // c), None) if c > 0 else (number, None, offset // -c)


def tighten(facts: Facts, fact: Poly) -> None:
    """Narrow the range of a symbol by a fact that is about it alone."""
    found = limits(facts, fact)
    if found is None:
        return
    number, least, most = found
    atom = facts.atoms[number]
    if least is not None and (atom.low is None or atom.low < least):
        atom.low = least
        if atom.lower is None or is_constant(atom.lower):
            atom.lower = constant(least)
    if most is not None and (atom.high is None or atom.high > most):
        atom.high = most
        if atom.upper is None or is_constant(atom.upper):
            atom.upper = constant(most)


def _interval_is_exact(facts: Facts, p: Poly) -> bool:
    """Whether the terms of p take their bounds independently, so that the interval is its range."""
    seen = set()
    for mono in p:
        if len(mono) > 1:
            return False
        for number in mono:
            atom = facts.atoms[number]
            if (
                atom.kind != "sym"
                or number in seen
                or not (
                    (atom.lower is None or is_constant(atom.lower)) and (atom.upper is None or is_constant(atom.upper))
                )
            ):
                return False
            seen.add(number)
    return True


def _descend(facts: Facts, p: Poly) -> bool:
    """p >= 0 by replacing its highest atom by the bound that makes p least."""
    low, high = interval(facts, p)
    if low is not None and low >= 0:
        return True
    if is_constant(p) or facts.steps <= 0 or len(p) > LARGEST_PROOF:
        return False
    if high is not None and high < 0:
        return False
    key, memo = key_of(p), facts.memo.descents
    if key not in memo:
        found = _replace_one(facts, p)
        if not found and facts.steps <= 0:
            return False  # perhaps for want of steps: asked again it may be found
        memo[key] = found
    return memo[key]


def _replace_one(facts: Facts, p: Poly) -> bool:
    """p >= 0 by one replacement, and what follows from it."""
    facts.steps -= 1
    facts.spent += 1
    if (whole := _without_paired_remainder(facts, p)) is not None and _descend(facts, whole):
        return True
    top = _coarsest(facts, p, max(mono[-1] for mono in p if mono))
    factor, rest, linear = split(p, top)
    atom = facts.atoms[top]
    if atom.kind == "mul":
        return _descend(facts, substitute(p, top, multiply(atom.x, atom.y)))
    if not linear:
        # every power grows with the atom where the atom and all that multiplies it are nonnegative
        if not _grows_with(facts, p, top):
            return False
        return _descend(facts, substitute(p, top, constant(atom.low or 0)))
    sign = _sign(facts, factor)
    if atom.kind in ("min", "max", "select"):
        return _cases(facts, p, top, atom, sign)
    if sign > 0:
        found = any(_descend(facts, add(rest, term)) for term in _lower_terms(facts, factor, atom))
        return found or _cross_multiplied(facts, factor, rest, atom)
    if sign < 0:
        found = any(_descend(facts, add(rest, term)) for term in _upper_terms(facts, factor, atom))
        return found or _cross_multiplied(facts, factor, rest, atom)
    lower, upper = lower_of(facts, atom), upper_of(facts, atom)
    if lower is None or upper is None:
        return False
    return all(_descend(facts, add(rest, multiply(factor, end))) for end in (lower, upper))


def _coarsest(facts: Facts, p: Poly, top: int) -> int:
    """The atom to replace: of quotients ``x // d`` and ``x // (g*d)`` the second, whose bound is in the first."""
    atom = facts.atoms[top]
    if atom.kind == "floordiv":
        for mono in p:
            for number in mono:
                other = facts.atoms[number]
                if number != top and other.kind == "floordiv" and other.keys[0] == atom.keys[0]:
                    if exact_quotient(other.y, atom.y) is not None:
                        return number
    return top


def _without_paired_remainder(facts: Facts, p: Poly) -> Poly | None:
    """p with ``x % d`` written ``x - d * (x // d)`` where p holds that quotient too, so that they may cancel."""
    if len(p) < 2 or not facts.remainders:
        return None
    held = {number for mono in p for number in mono}
    for number in sorted(held & facts.remainders):
        atom = facts.atoms[number]
        partner = facts.table.get(("floordiv", atom.keys, None))
        if partner in held and partner is not None:
            return substitute(p, number, subtract(atom.x, multiply(atom.y, {(partner,): 1})))
    return None


def _cross_multiplied(facts: Facts, factor: Poly, rest: Poly, atom: Indeterminate) -> bool:
    """``r + c * (x // d) >= 0`` by `_without_division`, for d > 0 symbolic."""
    if atom.kind != "floordiv" or is_constant(atom.y) or not is_constant(factor):
        return False
    if len(rest) * len(atom.y) > LARGEST_PROOF or not _at_least_one(facts, atom.y):
        return False
    return _descend(facts, _without_division(rest, atom, factor[ONE]))


def _without_division(rest: Poly, atom: Indeterminate, c: int) -> Poly:
    """A polynomial that is negative wherever ``rest + c * (x // d)`` is, for d > 0; for c = 1, -1 only there."""
    whole = add(multiply(rest, atom.y), atom.x, c)
    slack = add(atom.y, constant(-1))
    return add(whole, slack, 1 - c if c > 0 else 1)


def _sign(facts: Facts, p: Poly) -> int:
    """1 where p >= 0 is proved, -1 where p <= 0 is, else 0."""
    if is_constant(p):
        return 1 if p.get(ONE, 0) >= 0 else -1
    return 1 if _descend(facts, p) else -1 if _descend(facts, negate(p)) else 0


def _grows_with(facts: Facts, p: Poly, top: int) -> bool:
    """Whether every term that holds the atom is a product of nonnegative factors."""
    for mono, coefficient in p.items():
        if top in mono:
            lows = [facts.atoms[number].low for number in mono]
            if coefficient < 0 or any(low is None or low < 0 for low in lows):
                return False
    return True


def _cases(facts: Facts, p: Poly, top: int, atom: Indeterminate, sign: int) -> bool:
    """The atom takes the value of one operand; a minimum is at most both, a maximum at least both."""
    branches = (substitute(p, top, value) for value in (atom.x, atom.y))
    if (atom.kind == "min" and sign < 0) or (atom.kind == "max" and sign > 0):
        return any(_descend(facts, branch) for branch in branches)
    return all(_descend(facts, branch) for branch in branches)


def _lower_terms(facts: Facts, factor: Poly, atom: Indeterminate) -> list[Poly]:
    """Polynomials at most ``factor * atom``, given factor >= 0."""
    out = []
    if atom.kind == "floordiv":
        whole = exact_quotient(factor, atom.y)
        if whole is not None and _sign(facts, whole) > 0:  # d * (x // d) >= x - d + 1
            out.append(multiply(whole, add(subtract(atom.x, atom.y), constant(1))))
    if (lower := lower_of(facts, atom)) is not None:
        out.append(multiply(factor, lower))
    if atom.low is not None and (lower is None or not is_constant(lower)):
        out.append({mono: coefficient * atom.low for mono, coefficient in factor.items()} if atom.low else {})
    return out


def _upper_terms(facts: Facts, factor: Poly, atom: Indeterminate) -> list[Poly]:
    """Polynomials at most ``factor * atom``, given factor <= 0."""
    out = []
    if atom.kind == "floordiv":
        whole = exact_quotient(factor, atom.y)
        if whole is not None and _sign(facts, whole) < 0:  # d * (x // d) <= x
            out.append(multiply(whole, atom.x))
        out += _coarser_quotients(facts, factor, atom)
    if (upper := upper_of(facts, atom)) is not None:
        out.append(multiply(factor, upper))
    if atom.kind == "mod" and _sign(facts, atom.x) > 0:  # x % d <= x
        out.append(multiply(factor, atom.x))
    if atom.high is not None and (upper is None or not is_constant(upper)):
        out.append({mono: coefficient * atom.high for mono, coefficient in factor.items()} if atom.high else {})
    return out


def _coarser_quotients(facts: Facts, factor: Poly, atom: Indeterminate) -> list[Poly]:
    """Polynomials at most ``factor * (x // y)``, given factor <= 0, by ``g*(x // (g*d)) <= x // d``."""
    shared, number = content(list(atom.y.items()) + list(factor.items()))
    g = {shared: number}
    d, rest = exact_quotient(atom.y, g), exact_quotient(factor, g)
    if g == {ONE: 1} or d is None or rest is None or (is_constant(d) and d[ONE] == 1):
        return []
    if _sign(facts, g) <= 0 or not _descend(facts, add(d, constant(-1))):
        return []
    known = facts.table.get(("floordiv", (atom.keys[0], key_of(d)), None))
    out = [] if known is None else [multiply(rest, {(known,): 1})]
    most = bound(facts, atom.x, 1)
    if most is not None and (most := _quotient_at_most(facts, most, d)) is not None:
        out.append(multiply(rest, most))
    return out


def _quotient_at_most(facts: Facts, x: Poly, d: Poly) -> Poly | None:
    """A polynomial that ``x // d`` never exceeds, for d > 0: the quotient of the terms, if the rest is below d."""
    quotient, rest = divide(x, d)
    if _descend(facts, add(negate(rest), constant(-1))):
        return add(quotient, constant(-1))
    return quotient if _descend(facts, add(subtract(d, rest), constant(-1))) else None


# -- symbolic bounds ------------------------------------------------------------------------------------


def _at_least_one(facts: Facts, p: Poly) -> bool:
    low, high = interval(facts, p)
    if high is not None and high < 1:
        return False
    return (low is not None and low >= 1) or _descend(facts, add(p, constant(-1)))


def lower_of(facts: Facts, atom: Indeterminate) -> Poly | None:
    """A polynomial that the atom never falls below."""
    if atom.lower is None and atom.kind in ("mod", "floordiv") and _at_least_one(facts, atom.y):
        if atom.kind == "mod":
            atom.lower = {}
        elif (least := bound(facts, atom.x, -1)) is not None:
            quotient, rest = divide(least, atom.y)
            if _descend(facts, rest):
                atom.lower = quotient
            elif _descend(facts, add(rest, atom.y)):
                atom.lower = add(quotient, constant(-1))
    return atom.lower


def upper_of(facts: Facts, atom: Indeterminate) -> Poly | None:
    """A polynomial that the atom never exceeds."""
    if atom.upper is None and atom.kind in ("mod", "floordiv") and _at_least_one(facts, atom.y):
        if atom.kind == "mod":
            atom.upper = add(atom.y, constant(-1))
        elif (most := bound(facts, atom.x, 1)) is not None:
            atom.upper = _quotient_at_most(facts, most, atom.y)
    return atom.upper


def bound(facts: Facts, p: Poly, direction: int) -> Poly | None:
    """A polynomial over parameters that p never exceeds (direction 1) or never falls below (-1)."""
    for _ in range(len(facts.atoms)):
        free = [number for mono in p for number in mono if number not in facts.kept]
        if not free or facts.steps <= 0:
            break
        facts.steps -= 1
        top = max(free)
        factor, rest, linear = split(p, top)
        sign = _sign(facts, factor) * direction
        atom = facts.atoms[top]
        if not linear or sign == 0:
            return None
        value = upper_of(facts, atom) if sign > 0 else lower_of(facts, atom)
        if value is None:
            return None
        p = add(rest, multiply(factor, value))
    return p


def _from_zero(low: int | None) -> bool:
    return low is not None and low >= 0
