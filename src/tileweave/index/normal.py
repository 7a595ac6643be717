"""From expressions to polynomials over atoms: the normal form that simplification, proofs and bounds share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from tileweave.errors import LayoutError
from tileweave.index.emit import Emitter
from tileweave.index.expr import Expr, const, equal, symbols_of, unequal, walk
from tileweave.index.poly import ONE, Poly, add, constant, divide, is_constant, multiply, negate, scale, subtract
from tileweave.index.ranges import Atom
from tileweave.index.rules import Division

__all__ = ["FALSE", "TRUE", "Normalizer"]

TRUE, FALSE = equal(const(0), 0), unequal(const(0), 0)

MOST_TERMS = 64
"""Terms of an expanded product beyond which it is kept factored."""
HIGHEST_DEGREE = 12
MOST_ATOMS = 64
"""Atoms under a branch of a select beyond which the condition is not used in it."""
WIDEST_SEARCH = 8
"""Values of a factor among which two neighbours are looked for."""


class Normalizer(Division):
    """Reads expressions into polynomials, with the ranges of their symbols as facts.

    Args:
        given: conditions that hold besides the ranges; sums of symbols compared with ``< <= > >=`` or `equal`, joined
            by ``&``. Others are of no use to the prover and are skipped.
    """

    def __init__(self, given: Sequence[Expr] = ()) -> None:
        super().__init__()
        self.expand = True  # products of two sums are multiplied out
        self.saw_product = False  # some product of two sums was met, so `expand` matters
        self.values: dict[Expr, Poly] = {}
        self.conditions: dict[Expr, Expr] = {}  # condition -> its normal form
        self.emitter = Emitter(self, digits=False)  # writes the sums of conditions
        if not isinstance(given, tuple) or given:
            _check_conditions(given)
            self.load(given)
            for condition in given:
                self._assume(condition)
            self.proved.clear()

    def load(self, roots: Iterable[Expr]) -> None:
        """Read every node under the roots; afterwards `values` and `conditions` hold their normal forms."""
        roots = tuple(roots)
        for node in symbols_of(roots):
            if node not in self.values:
                self._load_symbol(node)
        self._load_nodes(roots)

    def keep_products(self) -> None:
        """Read anew, each product of two sums as one factored atom; what was proved and divided stays known."""
        self.expand = False
        self.values = {node: p for node, p in self.values.items() if node.op == "sym"}
        self.conditions = {}

    def value(self, expr: Expr) -> Poly:
        """The polynomial of a number, its symbols read first."""
        if expr not in self.values:
            self.load((expr,))
        return self.values[expr]

    # -- symbols --------------------------------------------------------------------------------------

    def _load_symbol(self, node: Expr) -> None:
        _, start, stop, factor = node.args
        lower = None if start is None else self._bound(start)
        upper = None if stop is None else add(self._bound(stop), constant(-1))
        if lower is not None and upper is not None and not (is_constant(lower) and is_constant(upper)):
            self._nonempty(node, lower, upper)
        if factor.op == "const" and factor.args[0] == 1:
            self.values[node] = {(self.symbol(node, "sym", lower, upper, {}, {}),): 1}
            return
        ((mono, number),) = self._bound(factor).items()
        step = {mono: number}
        low = None if lower is None else self._quotient_at_least(lower, step)
        high = None if upper is None else self._quotient_at_most(upper, step)
        quotient = self.symbol(node, "quot", low, high, {}, step)
        self.multiples[quotient] = (node, mono, number)
        self.values[node] = scale({(quotient,): 1}, number, mono)

    def _bound(self, expr: Expr) -> Poly:
        if expr.op == "const":
            return constant(expr.args[0])
        if expr not in self.values:
            self._load_nodes((expr,))
        return self.values[expr]

    def _quotient_at_least(self, lower: Poly, step: Poly) -> Poly | None:
        quotient, rest = divide(lower, step)
        if self.positive(rest):
            return add(quotient, constant(1))
        return quotient if self.positive(add(rest, step)) else None

    def _quotient_at_most(self, upper: Poly, step: Poly) -> Poly | None:
        quotient, rest = divide(upper, step)
        return quotient if self.positive(subtract(step, rest)) else None

    def _nonempty(self, node: Expr, lower: Poly, upper: Poly) -> None:
        """Where the symbol has a value its range is not empty, which may say more about the bounds."""
        room = subtract(upper, lower)
        if self.interval(room)[1] is not None and (self.interval(room)[1] or 0) < 0:
            raise LayoutError(
                "simplify(...)", "the range is empty", inputs={"symbol": repr(node)}, legal="start < stop"
            )
        if self.nonnegative(room):
            return
        offset = room.get(ONE, 0)
        rest = add(room, constant(-offset))
        single = self.only_atom(rest, "sym")
        atom = None if single is None else self.atoms[single]
        if atom is None or (atom.lower is not None and not is_constant(atom.lower)):
            self.given.append(room)
        elif atom.low is None or atom.low < -offset:
            atom.low, atom.lower = -offset, constant(-offset)
        self.proved.clear()

    def _facts_of(self, condition: Expr) -> list[Poly]:
        """Polynomials that are not negative where the condition holds: those of its comparisons joined by ``&``."""
        facts = []
        stack = [(condition, True)]
        while stack:
            node, holds = stack.pop()
            if node.op == "not":
                stack.append((node.args[0], not holds))
            elif node.op == ("and" if holds else "or"):
                stack += [(part, holds) for part in node.args]
            elif node.op in ("lt", "le"):
                a, b = node.args if holds else node.args[::-1]
                room = subtract(self.values[b], self.values[a])
                facts.append(add(room, constant(-1)) if (node.op == "lt") == holds else room)
            elif node.op == ("eq" if holds else "ne"):
                room = subtract(self.values[node.args[1]], self.values[node.args[0]])
                facts += [room, negate(room)]
        return [fact for fact in facts if not is_constant(fact)]

    def _assume(self, condition: Expr) -> None:
        for fact in self._facts_of(condition):
            self.given.append(fact)
            self.tighten(fact)

    # -- nodes ----------------------------------------------------------------------------------------

    def _load_nodes(self, roots: Sequence[Expr]) -> None:
        order = [node for node in walk(roots) if node not in self.values and node not in self.conditions]
        uses = Counter(part for node in order for part in node.parts)
        uses.update(roots)
        values = self.values
        own: set[Expr] = (
            set()
        )  # sums used once, whose dict may grow in place: a long sum costs its length, not its square
        for node in order:
            match node.op:
                case "const":
                    values[node] = constant(node.args[0])
                case "add" | "sub":
                    left, right = node.args
                    if node.op == "add" and right in own and uses[right] == 1:
                        left, right = right, left
                    if left in own and uses[left] == 1:
                        _accumulate(values[left], values[right], 1 if node.op == "add" else -1)
                        values[node] = values.pop(left)
                    else:
                        values[node] = add(values[left], values[right], 1 if node.op == "add" else -1)
                    own.add(node)
                case "mul":
                    values[node] = self._times(values[node.args[0]], values[node.args[1]])
                case "floordiv":
                    values[node] = self.floor(values[node.args[0]], self._divisor(node))
                case "mod":
                    values[node] = self.mod(values[node.args[0]], self._divisor(node))
                case "xor":
                    values[node] = self.xor(values[node.args[0]], values[node.args[1]])
                case "min" | "max":
                    values[node] = self.extreme(node.op, values[node.args[0]], values[node.args[1]])
                case "select":
                    values[node] = self._select(node)
                case "sym":
                    self._load_symbol(node)
                case _:
                    self.conditions[node] = self._condition(node)

    def _divisor(self, node: Expr) -> Poly:
        divisor = self.values[node.args[1]]
        if not divisor:
            raise LayoutError(
                f"simplify({node.op})", "division by zero", inputs={"dividend": node.args[0], "divisor": node.args[1]}
            )
        return divisor

    def _times(self, p: Poly, q: Poly) -> Poly:
        if len(p) > 1 and len(q) > 1:
            self.saw_product = True
            linear = self._product_of_two_values(p, q) if self.given else None
            if linear is not None:
                return linear
            if not self.expand or len(p) * len(q) > MOST_TERMS:
                return {(self.atom("prod", p, q),): 1}
        if p and q and max(map(len, p)) + max(map(len, q)) > HIGHEST_DEGREE:
            return {(self.atom("prod", p, q),): 1}
        return multiply(p, q)

    def _product_of_two_values(self, p: Poly, q: Poly) -> Poly | None:
        """``p * (p + c)`` as ``a*(a + c) + (p - a)*(2*a + c + 1)``, where a <= p <= a + 1 is proved for some a."""
        difference = subtract(q, p)
        low, high = self.interval(p)
        if not is_constant(difference) or low is None or high is None or high - low > WIDEST_SEARCH:
            return None
        c = difference.get(ONE, 0)
        for a in range(low, high):
            above = add(p, constant(-a))
            if self.nonnegative(above) and self.nonnegative(add(negate(above), constant(1))):
                return add(constant(a * (a + c)), above, 2 * a + c + 1)
        return None

    def _select(self, node: Expr) -> Poly:
        condition = self.conditions[node.args[0]]
        then, otherwise = self.values[node.args[1]], self.values[node.args[2]]
        if condition.op == "true":
            return then if condition.args[0] else otherwise
        return self.choice(condition, self._where(node.args[0], then), self._where(~node.args[0], otherwise))

    # -- branches -------------------------------------------------------------------------------------

    def _where(self, condition: Expr, p: Poly) -> Poly:
        """A polynomial with the value of p where the condition holds: its atoms rewritten with that fact given."""
        below = self._atoms_below(p)
        facts = self._facts_of(condition) if below else []
        told = {number for fact in facts for mono in fact for number in mono}  # and what holds such an atom
        again = self._fixed(facts)
        with self.supposing(facts):
            for number in sorted(below):  # operands have smaller numbers
                atom = self.atoms[number]
                if atom.kind in ("sym", "quot"):
                    continue
                if atom.kind == "select" or not told.isdisjoint(self._operand_atoms(atom)):
                    told.add(number)
                    again[number] = self._atom_again(atom, again)
        return _replaced(p, again)

    def _fixed(self, facts: Sequence[Poly]) -> dict[int, Poly]:
        """The values of the symbols to which the facts leave one value."""
        least: dict[int, int | None] = {}
        most: dict[int, int | None] = {}
        for number, low, high in filter(None, map(self.limits, facts)):
            lows = [end for end in (low, least.get(number, self.atoms[number].low)) if end is not None]
            highs = [end for end in (high, most.get(number, self.atoms[number].high)) if end is not None]
            least[number], most[number] = max(lows, default=None), min(highs, default=None)
        return {number: constant(end) for number, end in least.items() if end is not None and end == most[number]}

    def _operand_atoms(self, atom: Atom) -> Iterator[int]:
        return (number for side in (atom.x, atom.y) for mono in side for number in mono)

    def _atoms_below(self, p: Poly) -> set[int]:
        """The numbers of all atoms under p; none where there are too many to look at again."""
        found: set[int] = set()
        stack = [number for mono in p for number in mono]
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                stack += self._operand_atoms(self.atoms[number])
            if len(found) > MOST_ATOMS:
                return set()
        return found

    def _atom_again(self, atom: Atom, again: dict[int, Poly]) -> Poly:
        """The value of an atom, no symbol, from operands that were rewritten."""
        x, y = _replaced(atom.x, again), _replaced(atom.y, again)
        match atom.kind:
            case "div":
                return self.floor(x, y)
            case "mod":
                return self.mod(x, y)
            case "xor":
                return self.xor(x, y)
            case "prod":
                return self._times(x, y)
            case "min" | "max":
                return self.extreme(atom.kind, x, y)
        condition = self._condition_again(cast("Expr", atom.expr))
        if condition.op == "true":
            return x if condition.args[0] else y
        return self.choice(condition, x, y)

    def _condition_again(self, condition: Expr) -> Expr:
        """A condition in normal form, decided where the facts of the branch decide it."""
        if condition.op in ("and", "or", "not"):
            parts = [self._condition_again(part) for part in condition.parts]
            return (
                ~parts[0]
                if condition.op == "not"
                else parts[0] & parts[1]
                if condition.op == "and"
                else parts[0] | parts[1]
            )
        for part in condition.parts:
            self.value(part)
        return self._condition(condition)

    # -- conditions -----------------------------------------------------------------------------------

    def _condition(self, node: Expr) -> Expr:
        match node.op:
            case "lt" | "le":
                room = subtract(self.values[node.args[1]], self.values[node.args[0]])
                return self._at_least_zero(add(room, constant(-1)) if node.op == "lt" else room)
            case "eq" | "ne":
                difference = subtract(self.values[node.args[0]], self.values[node.args[1]])
                condition = self._zero(difference)
                return condition if node.op == "eq" else ~condition
            case "not":
                return ~self.conditions[node.args[0]]
            case "and":
                return self.conditions[node.args[0]] & self.conditions[node.args[1]]
            case "or":
                return self.conditions[node.args[0]] | self.conditions[node.args[1]]
        return node

    def decide_nonnegative(self, p: Poly) -> bool | None:
        """Whether p >= 0 always (True), never (False), or neither is proved (None)."""
        return True if self.nonnegative(p) else False if self.positive(negate(p)) else None

    def _at_least_zero(self, p: Poly) -> Expr:
        """The condition ``p >= 0``, as a comparison of sums with positive terms in lowest terms."""
        p = self._tight(p)
        decided = self.decide_nonnegative(p)
        if decided is not None:
            return TRUE if decided else FALSE
        offset = p.get(ONE, 0)
        more = {mono: c for mono, c in p.items() if mono and c > 0}
        less = {mono: -c for mono, c in p.items() if mono and c < 0}
        if offset == -1:
            return self.sum_of(less) < self.sum_of(more)
        if offset >= 0 and not more:
            return self.sum_of(less) < offset + 1
        if offset >= 0:
            return self.sum_of(less) <= self.sum_of(add(more, constant(offset)))
        return self.sum_of(add(less, constant(-offset))) <= self.sum_of(more)

    def _zero(self, p: Poly) -> Expr:
        if not p:
            return TRUE
        divisor = self.known_divisor({mono: c for mono, c in p.items() if mono})
        if divisor == 0 or p.get(ONE, 0) % divisor or self.positive(p) or self.positive(negate(p)):
            return FALSE
        if self.nonnegative(p) and self.nonnegative(negate(p)):
            return TRUE
        p = {mono: c // divisor for mono, c in p.items()}
        offset = p.get(ONE, 0)
        more = {mono: c for mono, c in p.items() if mono and c > 0}
        less = {mono: -c for mono, c in p.items() if mono and c < 0}
        if not more or (less and min(less) < min(more)):
            more, less, offset = less, more, -offset
        return equal(
            self.sum_of(add(more, constant(max(offset, 0)))), self.sum_of(add(less, constant(max(-offset, 0))))
        )

    def _tight(self, p: Poly) -> Poly:
        """The strongest ``q >= 0`` with the same solutions: divided by the common factor, constant rounded down."""
        divisor = self.known_divisor({mono: c for mono, c in p.items() if mono})
        if divisor <= 1:
            return p
        out = {mono: c // divisor for mono, c in p.items()}
        return out if out.get(ONE, 1) else {mono: c for mono, c in out.items() if c}

    def sum_of(self, p: Poly) -> Expr:
        """The expression of a polynomial, in the plain style."""
        return self.emitter.expr(p)


def _replaced(p: Poly, values: dict[int, Poly]) -> Poly:
    """p with the atoms that have a value replaced by it."""
    if not any(number in values for mono in p for number in mono):
        return p
    out: Poly = {}
    for mono, coefficient in p.items():
        term = constant(coefficient)
        for number in mono:
            term = multiply(term, values.get(number, {(number,): 1}))
        out = add(out, term)
    return out


def _check_conditions(given: Sequence[Expr]) -> None:
    if not isinstance(given, tuple | list) or not all(isinstance(fact, Expr) and fact.is_condition for fact in given):
        raise LayoutError("given", f"{given!r} holds more than conditions", legal="a list of comparisons")


def _accumulate(p: Poly, q: Poly, factor: int) -> None:
    for mono, coefficient in list(q.items()) if p is q else q.items():
        total = p.get(mono, 0) + factor * coefficient
        if total:
            p[mono] = total
        else:
            del p[mono]
