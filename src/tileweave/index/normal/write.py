"""From polynomials over atoms back to expressions, with few operations.

Sums are factored (Horner), a constant is folded into a floor where it vanishes outside, a symbol with a declared
divisor appears again wherever its quotient meets that divisor, and ``x // (d*e)`` is written ``x // d // e`` where
``x // d`` is needed anyway and that saves a product or a dear division.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from tileweave.index.expr import Expr, as_expr, const, isqrt, maximum, minimum, select
from tileweave.index.normal.facts import Facts, Indeterminate, Key, key_of
from tileweave.index.normal.poly import ONE, Monomial, Poly, add, exact_quotient, is_constant, monomial_quotient
from tileweave.index.normal.rules import merge_digits, recombine
from tileweave.index.normal.signs import positive
from tileweave.index.trees import made

Term = tuple[int, Monomial]
Operand = tuple[Key, Poly]
Part = tuple[bool, Expr]  # whether the part is added (else subtracted), and its expression

LARGEST_FACTORING = 200
"""Terms of a sum beyond which no common factors are looked for."""


class Writer:
    """Writes polynomials in one style; equal polynomials give the same expression.

    Args:
        facts: the atoms and what is known of them.
        digits: apply the rule ``c*(x % d) + k*(x // d) == c*x + (k - c*d)*(x // d)``.
        group: write ``a - (b + c)`` for ``a - b - c``, where ``b + c`` may be needed elsewhere too.
    """

    def __init__(self, facts: Facts, *, digits: bool, group: bool = False) -> None:
        self.facts = facts
        self.digits = digits
        self.group = group
        self.applied = False  # whether the rule on digits changed some sum
        self.merged: set[int] = set()  # remainders that it removed from some sum
        self.shapes: dict[Key, Poly] = {}
        self.done: dict[Key, Expr] = {}
        self.uses: dict[int, int] = {}  # how many sums hold the atom
        self.surveyed: set[Key] = set()
        self.operands: dict[int, tuple[Operand, ...]] = {}
        self.remainders: set[tuple[Key, Key]] = set()  # dividend and divisor of every remainder in use
        self.quotients: dict[Key, list[int]] = {}  # dividend -> the quotient atoms in use

    def all(self, polys: Iterable[Poly]) -> list[Expr]:
        """The expressions of several polynomials that are evaluated together."""
        polys = list(polys)
        for p in polys:
            self._survey(p)
        return [self.expr(p) for p in polys]

    def expr(self, p: Poly) -> Expr:
        """The expression of a polynomial; no recursion over nested atoms."""
        done = self.done
        stack = [(key_of(p), p)]
        while stack:
            key, top = stack[-1]
            if key in done:
                stack.pop()
                continue
            shape = self._shape(key, top)
            missing = [part for number in _atoms_of(shape) for part in self._operands(number) if part[0] not in done]
            if missing:
                stack += missing
            else:
                done[key] = self._sum(shape)
                stack.pop()
        return done[key_of(p)]

    def _shape(self, key: Key, p: Poly) -> Poly:
        """The polynomial as it will be written."""
        if key not in self.shapes:
            shape = recombine(self.facts, p)
            if self.digits:
                merged = merge_digits(self.facts, shape)
                if merged is not shape:
                    self.applied = True
                    self.merged.update(self._remainders_of(shape) - self._remainders_of(merged))
                shape = merged
            self.shapes[key] = shape
        return self.shapes[key]

    def _remainders_of(self, p: Poly) -> set[int]:
        return self.facts.remainders.intersection(chain.from_iterable(p))

    @property
    def torn(self) -> bool:
        """Whether the rule on digits left a remainder in use elsewhere, so that not applying it may be cheaper."""
        return any(number in self.uses for number in self.merged)

    def _survey(self, p: Poly) -> None:
        """Count the uses of every atom below p."""
        stack = [(key_of(p), p)]
        while stack:
            key, top = stack.pop()
            if key in self.surveyed:
                continue
            self.surveyed.add(key)
            for number in _atoms_of(self._shape(key, top)):
                self.uses[number] = self.uses.get(number, 0) + 1
                atom = self.facts.atoms[number]
                x, y = atom.keys
                if atom.kind == "mod":
                    self.remainders.add((x, y))
                if self.uses[number] == 1 and atom.kind == "floordiv":
                    self.quotients.setdefault(x, []).append(number)
                stack += ((x, atom.x), (y, atom.y))

    # -- atoms ----------------------------------------------------------------------------------------

    def _operands(self, number: int) -> tuple[Operand, ...]:
        """The polynomials whose expressions an atom is made of, with their keys."""
        found = self.operands.get(number)
        if found is None:
            atom = self.facts.atoms[number]
            whole = tuple(zip(atom.keys, (atom.x, atom.y), strict=True))
            if atom.kind == "sym":
                found = ()
            elif atom.kind == "quot":
                found = whole[1:]
            else:
                nested = self._find_nested(number, atom) if atom.kind == "floordiv" else None
                found = whole if nested is None else tuple((key_of(part), part) for part in nested)
            self.operands[number] = found
        return found

    def _find_nested(self, number: int, atom: Indeterminate) -> tuple[Poly, Poly] | None:
        """``x // (d*e)`` as the operands of ``(x // d) // e``, where x // d is in use and that is cheaper."""
        if not atom.y or (is_constant(atom.y) and _is_power_of_two(atom.y[ONE])):
            return None
        best: tuple[int, Poly] | None = None
        for other in self.quotients.get(atom.keys[0], ()):
            if other == number:
                continue
            rest = exact_quotient(atom.y, self.facts.atoms[other].y)
            if rest is None or not positive(self.facts, rest):
                continue
            if is_constant(atom.y) and not _is_power_of_two(rest[ONE]):
                if (key_of({(other,): 1}), key_of(rest)) not in self.remainders:
                    continue  # a division by a constant costs the same from either dividend
            weight = sum(map(len, rest)) + len(rest)
            if best is None or weight < best[0]:
                best = weight, rest
                found = other
        return None if best is None else ({(found,): 1}, best[1])

    def _atom(self, number: int) -> Expr:
        atom = self.facts.atoms[number]
        if atom.kind == "sym":
            return _symbol(atom)
        if atom.kind == "quot":
            return _symbol(atom) // self.done[atom.keys[1]]
        x, y = (self.done[key] for key, _ in self._operands(number))
        match atom.kind:
            case "floordiv":
                return x // y if atom.y else made("floordiv", (x, y))
            case "mod":
                return x % y if atom.y else made("mod", (x, y))
            case "isqrt":
                return isqrt(x)
            case "xor":
                return x ^ y
            case "min":
                return minimum(x, y)
            case "max":
                return maximum(x, y)
            case "mul":
                return x * y
        return select(_symbol(atom), x, y)

    # -- sums -----------------------------------------------------------------------------------------

    def _sum(self, p: Poly) -> Expr:
        extra: list[Part] = []
        if ONE in p and len(p) > 1:
            p, extra = self._fold_constant(p)
        offset = p.get(ONE, 0)
        parts = self._parts([(c, mono) for mono, c in p.items() if mono]) + extra
        if offset or not parts:
            parts.append((offset >= 0, const(abs(offset))))
        return _joined(parts, self.group)

    def _fold_constant(self, p: Poly) -> tuple[Poly, list[Part]]:
        """``m*(x // d) + m*k`` as ``m*((x + k*d) // d)`` where x has a constant already: one addition less."""
        offset = p[ONE]
        for mono, factor in p.items():
            atom = self.facts.atoms[mono[0]] if len(mono) == 1 else None
            if atom is None or atom.kind != "floordiv" or offset % factor or ONE not in atom.x:
                continue
            if self.uses.get(mono[0], 1) > 1 or self._operands(mono[0])[0][1] is not atom.x:
                continue
            moved = add(atom.x, atom.y, offset // factor)
            shape = self._shape(key_of(moved), moved)
            if len(shape) > len(self._shape(atom.keys[0], atom.x)) or not self._ready(shape):
                continue
            quotient = self._sum(shape) // self.done[atom.keys[1]]
            rest = {m: c for m, c in p.items() if m not in (mono, ONE)}
            return rest, [(factor > 0, quotient * abs(factor))]
        return p, []

    def _ready(self, shape: Poly) -> bool:
        return all(key in self.done for number in _atoms_of(shape) for key, _ in self._operands(number))

    def _parts(self, terms: list[Term]) -> list[Part]:
        """The terms as parts to add or subtract, common factors taken out greedily, the most shared one first."""
        terms = [self._with_symbols(c, mono) for c, mono in terms]
        parts: list[tuple[int, Part]] = []  # where the first term of the part stood
        places = list(enumerate(terms))
        while places:
            factor = _most_shared([term for _, term in places]) if len(places) <= LARGEST_FACTORING else None
            if factor is None:
                parts += [(place, self._product(term)) for place, term in places]
                break
            group = [(place, term) for place, term in places if _has(term, factor)]
            places = [(place, term) for place, term in places if not _has(term, factor)]
            inner = _joined_signed(self._parts_of_group([_without(term, factor) for _, term in group]), self.group)
            outer = const(factor) if isinstance(factor, int) else self._atom_or_symbol(factor[0])
            parts.append((group[0][0], (inner[0], inner[1] * outer)))
        parts.sort(key=lambda part: part[0])
        return [part for _, part in parts]

    def _parts_of_group(self, terms: list[Term]) -> list[Part]:
        offset = sum(c for c, mono in terms if not mono)
        parts = self._parts([term for term in terms if term[1]])
        return [*parts, (offset >= 0, const(abs(offset)))] if offset else parts

    def _with_symbols(self, coefficient: int, mono: Monomial) -> Term:
        """Quotients times their declared divisor become the symbol again, written as a negative atom number."""
        multiples = self.facts.multiples
        for number in mono:
            if number in multiples:
                _, divisor, factor = multiples[number]
                rest = monomial_quotient(mono, tuple(sorted((*divisor, number))))
                if rest is not None and coefficient % factor == 0:
                    return self._with_symbols(coefficient // factor, (~number, *rest))
        return coefficient, mono

    def _atom_or_symbol(self, number: int) -> Expr:
        return self._atom(number) if number >= 0 else _symbol(self.facts.atoms[~number])

    def _product(self, term: Term) -> Part:
        coefficient, mono = term
        out = const(1)
        kept = self.facts.kept  # parameters come last: row * columns, index * 8
        for number in sorted(mono, key=lambda number: (number in kept, number < 0, -number)):
            out = out * self._atom_or_symbol(number)
        return coefficient > 0, out * abs(coefficient)


def _atoms_of(p: Poly) -> Iterable[int]:
    """The atoms of a polynomial once each, in the order of its terms."""
    return dict.fromkeys(chain.from_iterable(p))


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _symbol(atom: Indeterminate) -> Expr:
    """The symbol, or the condition of a select."""
    if atom.expr is None:
        raise AssertionError(f"atom of kind {atom.kind!r} without its expression")
    return atom.expr


def _most_shared(terms: list[Term]) -> Monomial | int | None:
    """The atom, or the number that the absolute coefficients equal, which most terms share; None: none is shared."""
    counts: dict[Monomial | int, int] = {}
    for coefficient, mono in terms:
        for number in set(mono):
            counts[(number,)] = counts.get((number,), 0) + 1
        if abs(coefficient) != 1 and mono:
            counts[abs(coefficient)] = counts.get(abs(coefficient), 0) + 1
    best = None
    for factor, count in counts.items():
        if count > 1 and (best is None or count > counts[best]):
            best = factor
    return best


def _has(term: Term, factor: Monomial | int) -> bool:
    return abs(term[0]) == factor if isinstance(factor, int) else factor[0] in term[1]


def _without(term: Term, factor: Monomial | int) -> Term:
    coefficient, mono = term
    if isinstance(factor, int):
        return coefficient // factor, mono
    at = mono.index(factor[0])
    return coefficient, mono[:at] + mono[at + 1 :]


def _joined_signed(parts: list[Part], group: bool) -> Part:
    """The sum of the parts up to sign: an added part leads if there is one, else all signs turn."""
    taken = [expr for added, expr in parts if not added]
    if group and 1 < len(taken) < len(parts):
        subtracted = _joined_signed([(True, expr) for expr in taken], group=False)
        parts = [*(part for part in parts if part[0]), (False, subtracted[1])]
    lead = next((at for at, part in enumerate(parts) if part[0]), None)
    sign = lead is not None
    lead = lead or 0
    out = parts[lead][1]
    for at, (added, expr) in enumerate(parts):
        if at != lead:
            out = out + expr if added == sign else out - expr
    return sign, out


def _joined(parts: list[Part], group: bool) -> Expr:
    sign, out = _joined_signed(parts, group)
    if sign:
        return out
    if out.op == "mul" and out.args[1].op == "const":
        return const(-out.args[1].args[0]) * as_expr(out.args[0])
    return 0 - out
