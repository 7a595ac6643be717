"""From expressions to polynomials over atoms: the normal form that simplification, proofs and bounds share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from tileweave.errors import LayoutError
from tileweave.index.expr import Expr, const, equal, unequal, walk
from tileweave.index.normal.facts import Facts, Indeterminate, atom_of, interval, symbol_atom
from tileweave.index.normal.intervals import Interval, interval_of
from tileweave.index.normal.poly import (
    ONE,
    Poly,
    add,
    constant,
    divide,
    is_constant,
    known_divisor,
    multiply,
    negate,
    replaced,
    scale,
    subtract,
    tight,
)
from tileweave.index.normal.rules import choice, extreme, floor, mod, only_atom, root, supposing, xor
from tileweave.index.normal.signs import limits, nonnegative, positive, tighten
from tileweave.index.normal.write import Writer
from tileweave.index.trees import two_symbols

TRUE, FALSE = equal(const(0), 0), unequal(const(0), 0)

MOST_TERMS = 64
"""Terms of an expanded product beyond which it is kept factored."""
HIGHEST_DEGREE = 12
"""Of a product beyond which it is one atom: repeated squaring would double the degree each time."""
MOST_ATOMS = 64
"""Atoms under a branch of a select beyond which the condition is not used in it."""
WIDEST_SEARCH = 8
"""Values of a factor among which two neighbours are looked for."""


@dataclass(slots=True)
class Normal:
    """What was read of some expressions: the facts, and the normal form of every node; made by `normal_of`.

    Args:
        facts: the atoms and what is known of them.
        values: number -> its polynomial.
        conditions: condition -> its normal form.
        writer: writes the sums of conditions.
        expand: products of two sums are multiplied out.
        saw_product: some product of two sums was met, so `expand` matters.
        ranges: number -> its interval, as far as `range_of` was asked.
        wider: number -> an interval around it, as far as `fits` was asked.
    """

    facts: Facts
    values: dict[Expr, Poly]
    conditions: dict[Expr, Expr]
    writer: Writer
    expand: bool = True
    saw_product: bool = False
    ranges: dict[Expr, Interval] = field(default_factory=dict)
    wider: dict[Expr, Interval] = field(default_factory=dict)


def normal_of(given: Sequence[Expr] = (), roots: Iterable[Expr] = ()) -> Normal:
    """The normal forms of the roots, with the ranges of their symbols as facts.

    Args:
        given: conditions that hold besides the ranges; sums of symbols compared with ``< <= > >=`` or `equal`, joined
            by ``&``. Others are of no use to the prover and are skipped.
        roots: what is read at once; `load` reads more.
    """
    facts = Facts()
    normal = Normal(facts, {}, {}, Writer(facts, digits=False))
    if not isinstance(given, tuple) or given:
        _check_conditions(given)
        load(normal, numbers_of(given))
        for condition in given:
            _assume(normal, condition)
        facts.memo.forget_signs()
    if roots:
        load(normal, roots)
    return normal


def load(normal: Normal, roots: Iterable[Expr]) -> None:
    """Read every node under the roots; afterwards `values` and `conditions` hold their normal forms."""
    roots = tuple(roots)
    order = _unread(normal, roots)
    names: dict[str, Expr] = {}
    for node in order:
        if node.op == "sym":
            other = names.setdefault(node.args[0], node)
            if other is not node:
                raise two_symbols(other, node)
            if node not in normal.values:
                _load_symbol(normal, node)
    _load_nodes(normal, roots, order)


def _unread(normal: Normal, roots: Sequence[Expr]) -> list[Expr]:
    """Every node under the roots, and under the bounds of their symbols, that was not read yet; operands first."""
    return walk(roots, bounds=True, known=normal.values, also=normal.conditions)


def numbers_of(conditions: Iterable[Expr]) -> list[Expr]:
    """The numbers that conditions compare, however they are joined."""
    return [part for node in walk(conditions) if node.is_condition for part in node.parts if not part.is_condition]


def keep_products(normal: Normal, keep: bool = True) -> None:
    """Read anew, each product of two sums as one factored atom, or again as a sum; what was proved stays known."""
    normal.expand = not keep
    normal.values = {node: p for node, p in normal.values.items() if node.op == "sym"}
    normal.conditions = {}


def value_of(normal: Normal, expr: Expr) -> Poly:
    """The polynomial of a number, its symbols read first."""
    if expr not in normal.values:
        load(normal, (expr,))
    return normal.values[expr]


def range_of(normal: Normal, expr: Expr) -> Interval:
    """Least and greatest value of a number: what its normal form and what its operands say, taken together."""
    if expr in normal.ranges:
        return normal.ranges[expr]
    for node in walk((expr,)) if any(part not in normal.ranges for part in expr.parts) else (expr,):
        if node.is_condition or node in normal.ranges:
            continue
        low, high = interval(normal.facts, value_of(normal, node))
        if node.parts:
            least, most = interval_of(node.op, [normal.ranges[part] for part in node.parts if not part.is_condition])
            low = least if low is None else low if least is None else max(low, least)
            high = most if high is None else high if most is None else min(high, most)
        normal.ranges[node] = low, high
    return normal.ranges[expr]


def fits(normal: Normal, expr: Expr, most: int) -> bool:
    """Whether ``-most <= expr < most`` is known; the intervals of the operands are asked before any normal form."""
    low, high = _wider(normal, expr)
    if low is not None and high is not None and -most <= low and high < most:
        return True
    low, high = range_of(normal, expr)
    return low is not None and high is not None and -most <= low and high < most


def _wider(normal: Normal, expr: Expr) -> Interval:
    """An interval around the number from those of its operands alone."""
    if expr in normal.wider:
        return normal.wider[expr]
    for node in walk((expr,)) if any(part not in normal.wider for part in expr.parts) else (expr,):
        if node.is_condition or node in normal.wider:
            continue
        if node.parts:
            low, high = interval_of(node.op, [normal.wider[part] for part in node.parts if not part.is_condition])
        elif node.op == "const":
            low = high = node.args[0]
        else:
            low, high = range_of(normal, node)
        normal.wider[node] = low, high
    return normal.wider[expr]


# -- symbols --------------------------------------------------------------------------------------


def _load_symbol(normal: Normal, node: Expr) -> None:
    _, start, stop, factor = node.args
    lower = None if start is None else _bound(normal, start)
    upper = None if stop is None else add(_bound(normal, stop), constant(-1))
    if lower is not None and upper is not None and not (is_constant(lower) and is_constant(upper)):
        _nonempty(normal, node, lower, upper)
    if factor.op == "const" and factor.args[0] == 1:
        normal.values[node] = {(symbol_atom(normal.facts, node, "sym", lower, upper, {}, {}),): 1}
        return
    ((mono, number),) = _bound(normal, factor).items()
    step = {mono: number}
    low = None if lower is None else _quotient_at_least(normal, lower, step)
    high = None if upper is None else _quotient_at_most(normal, upper, step)
    quotient = symbol_atom(normal.facts, node, "quot", low, high, {}, step)
    normal.facts.multiples[quotient] = (node, mono, number)
    normal.values[node] = scale({(quotient,): 1}, number, mono)


def _bound(normal: Normal, expr: Expr) -> Poly:
    if expr.op == "const":
        return constant(expr.args[0])
    if expr not in normal.values:
        _load_nodes(normal, (expr,), _unread(normal, (expr,)))
    return normal.values[expr]


def _quotient_at_least(normal: Normal, lower: Poly, step: Poly) -> Poly | None:
    quotient, rest = divide(lower, step)
    if positive(normal.facts, rest):
        return add(quotient, constant(1))
    return quotient if positive(normal.facts, add(rest, step)) else None


def _quotient_at_most(normal: Normal, upper: Poly, step: Poly) -> Poly | None:
    quotient, rest = divide(upper, step)
    return quotient if positive(normal.facts, subtract(step, rest)) else None


def _nonempty(normal: Normal, node: Expr, lower: Poly, upper: Poly) -> None:
    """Where the symbol has a value its range is not empty, which may say more about the bounds."""
    room = subtract(upper, lower)
    if interval(normal.facts, room)[1] is not None and (interval(normal.facts, room)[1] or 0) < 0:
        raise LayoutError("simplify(...)", "the range is empty", inputs={"symbol": repr(node)}, legal="start < stop")
    if nonnegative(normal.facts, room):
        return
    offset = room.get(ONE, 0)
    rest = add(room, constant(-offset))
    single = only_atom(normal.facts, rest, "sym")
    atom = None if single is None else normal.facts.atoms[single]
    if atom is None or (atom.lower is not None and not is_constant(atom.lower)):
        normal.facts.given.append(room)
    elif atom.low is None or atom.low < -offset:
        atom.low, atom.lower = -offset, constant(-offset)
    normal.facts.memo.forget_signs()


def _facts_of(normal: Normal, condition: Expr) -> list[Poly]:
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
            room = subtract(normal.values[b], normal.values[a])
            facts.append(add(room, constant(-1)) if (node.op == "lt") == holds else room)
        elif node.op == ("eq" if holds else "ne"):
            room = subtract(normal.values[node.args[1]], normal.values[node.args[0]])
            facts += [room, negate(room)]
    return [fact for fact in facts if not is_constant(fact)]


def _assume(normal: Normal, condition: Expr) -> None:
    for fact in _facts_of(normal, condition):
        normal.facts.given.append(fact)
        tighten(normal.facts, fact)


# -- nodes ----------------------------------------------------------------------------------------


def _load_nodes(normal: Normal, roots: Sequence[Expr], order: Sequence[Expr]) -> None:
    """Read the nodes of an order, which are those under the roots that were not read before."""
    order = [node for node in order if node not in normal.values and node not in normal.conditions]
    uses = Counter(part for node in order for part in node.parts)
    uses.update(roots)
    values = normal.values
    own: set[Expr] = set()  # sums used once, whose dict may grow in place: a long sum costs its length, not its square
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
                values[node] = _times(normal, values[node.args[0]], values[node.args[1]])
            case "floordiv":
                values[node] = floor(normal.facts, values[node.args[0]], values[node.args[1]])
            case "mod":
                values[node] = mod(normal.facts, values[node.args[0]], values[node.args[1]])
            case "xor":
                values[node] = xor(normal.facts, values[node.args[0]], values[node.args[1]])
            case "min" | "max":
                values[node] = extreme(normal.facts, node.op, values[node.args[0]], values[node.args[1]])
            case "isqrt":
                values[node] = root(normal.facts, values[node.args[0]])
            case "select":
                values[node] = _select(normal, node)
            case "sym":
                _load_symbol(normal, node)
            case _:
                normal.conditions[node] = _condition(normal, node)


def _times(normal: Normal, p: Poly, q: Poly) -> Poly:
    if len(p) > 1 and len(q) > 1:
        normal.saw_product = True
        linear = _product_of_two_values(normal, p, q) if normal.facts.given else None
        if linear is not None:
            return linear
        if not normal.expand or len(p) * len(q) > MOST_TERMS:
            return {(atom_of(normal.facts, "mul", p, q),): 1}
    if p and q and max(map(len, p)) + max(map(len, q)) > HIGHEST_DEGREE:
        return {(atom_of(normal.facts, "mul", p, q),): 1}
    return multiply(p, q)


def _product_of_two_values(normal: Normal, p: Poly, q: Poly) -> Poly | None:
    """``p * (p + c)`` as ``a*(a + c) + (p - a)*(2*a + c + 1)``, where a <= p <= a + 1 is proved for some a."""
    difference = subtract(q, p)
    low, high = interval(normal.facts, p)
    if not is_constant(difference) or low is None or high is None or high - low > WIDEST_SEARCH:
        return None
    c = difference.get(ONE, 0)
    for a in range(low, high):
        above = add(p, constant(-a))
        if nonnegative(normal.facts, above) and nonnegative(normal.facts, add(negate(above), constant(1))):
            return add(constant(a * (a + c)), above, 2 * a + c + 1)
    return None


def _select(normal: Normal, node: Expr) -> Poly:
    condition = normal.conditions[node.args[0]]
    then, otherwise = normal.values[node.args[1]], normal.values[node.args[2]]
    if condition.op == "true":
        return then if condition.args[0] else otherwise
    return choice(normal.facts, condition, _where(normal, node.args[0], then), _where(normal, ~node.args[0], otherwise))


# -- branches -------------------------------------------------------------------------------------


def _where(normal: Normal, condition: Expr, p: Poly) -> Poly:
    """A polynomial with the value of p where the condition holds: its atoms rewritten with that fact given."""
    below = _atoms_below(normal, p)
    facts = _facts_of(normal, condition) if below else []
    told = {number for fact in facts for mono in fact for number in mono}  # and what holds such an atom
    again = _fixed(normal, facts)
    for number in below:
        atom = normal.facts.atoms[number]
        if atom.kind == "select":
            _preload(normal, cast("Expr", atom.expr))
    with supposing(normal.facts, facts):
        for number in sorted(below):  # operands have smaller numbers
            atom = normal.facts.atoms[number]
            if atom.kind in ("sym", "quot"):
                continue
            if atom.kind == "select" or not told.isdisjoint(_operand_atoms(atom)):
                told.add(number)
                again[number] = _atom_again(normal, number, again)
    return replaced(p, again)


def _fixed(normal: Normal, told: Sequence[Poly]) -> dict[int, Poly]:
    """The values of the symbols to which the facts leave one value."""
    least: dict[int, int | None] = {}
    most: dict[int, int | None] = {}
    for number, low, high in filter(None, (limits(normal.facts, fact) for fact in told)):
        lows = [end for end in (low, least.get(number, normal.facts.atoms[number].low)) if end is not None]
        highs = [end for end in (high, most.get(number, normal.facts.atoms[number].high)) if end is not None]
        least[number], most[number] = max(lows, default=None), min(highs, default=None)
    return {number: constant(end) for number, end in least.items() if end is not None and end == most[number]}


def _operand_atoms(atom: Indeterminate) -> Iterator[int]:
    return (number for side in (atom.x, atom.y) for mono in side for number in mono)


def _atoms_below(normal: Normal, p: Poly) -> set[int]:
    """The numbers of all atoms under p; none where there are too many to look at again."""
    found: set[int] = set()
    stack = [number for mono in p for number in mono]
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack += _operand_atoms(normal.facts.atoms[number])
        if len(found) > MOST_ATOMS:
            return set()
    return found


def _atom_again(normal: Normal, number: int, again: dict[int, Poly]) -> Poly:
    """The value of an atom, no symbol, from operands that were rewritten."""
    atom = normal.facts.atoms[number]
    x, y = replaced(atom.x, again), replaced(atom.y, again)
    if atom.kind in ("floordiv", "mod") and not y:
        return {(number,): 1}  # undefined wherever this branch is chosen: left as it was written
    match atom.kind:
        case "floordiv":
            return floor(normal.facts, x, y)
        case "mod":
            return mod(normal.facts, x, y)
        case "xor":
            return xor(normal.facts, x, y)
        case "mul":
            return _times(normal, x, y)
        case "min" | "max":
            return extreme(normal.facts, atom.kind, x, y)
        case "isqrt":
            return root(normal.facts, x)
    condition = _condition_again(normal, cast("Expr", atom.expr), again)
    if condition.op == "true":
        return x if condition.args[0] else y
    return choice(normal.facts, condition, x, y)


def _preload(normal: Normal, condition: Expr) -> None:
    """Read the numbers of a condition; done where no facts of a branch are given, for `values` outlive the branch."""
    for node in walk((condition,)):
        if not node.is_condition:
            value_of(normal, node)


def _condition_again(normal: Normal, condition: Expr, again: dict[int, Poly]) -> Expr:
    """A condition in normal form, read before, decided where the facts of the branch decide it."""
    if condition.op in ("and", "or", "not"):
        parts = [_condition_again(normal, part, again) for part in condition.parts]
        if condition.op == "not":
            return ~parts[0]
        return parts[0] & parts[1] if condition.op == "and" else parts[0] | parts[1]
    if condition.op == "true":
        return condition
    left, right = (replaced(normal.values[part], again) for part in condition.parts)
    return _compared(normal, condition.op, left, right)


# -- conditions -----------------------------------------------------------------------------------


def _compared(normal: Normal, op: str, left: Poly, right: Poly) -> Expr:
    """The comparison of two numbers in normal form."""
    if op in ("lt", "le"):
        room = subtract(right, left)
        return _at_least_zero(normal, add(room, constant(-1)) if op == "lt" else room)
    condition = _zero(normal, subtract(left, right))
    return condition if op == "eq" else ~condition


def follows(normal: Normal, condition: Expr) -> bool:
    """Whether a condition is proved; nothing is asked of its opposite, and nothing is written."""
    if condition.op == "and":
        return all(follows(normal, part) for part in condition.args)
    if condition.op not in ("lt", "le"):
        load(normal, (condition,))
        settled = normal.conditions[condition]
        return settled.op == "true" and bool(settled.args[0])
    load(normal, condition.args)
    room = subtract(normal.values[condition.args[1]], normal.values[condition.args[0]])
    return nonnegative(normal.facts, tight(add(room, constant(-1)) if condition.op == "lt" else room))


def _condition(normal: Normal, node: Expr) -> Expr:
    match node.op:
        case "lt" | "le" | "eq" | "ne":
            return _compared(normal, node.op, normal.values[node.args[0]], normal.values[node.args[1]])
        case "not":
            return ~normal.conditions[node.args[0]]
        case "and" | "or":
            return _joined(normal, node)
    return node


def _joined(normal: Normal, node: Expr) -> Expr:
    """Two conditions joined, without the one that the other implies; False or True where they contradict."""
    a, b = (normal.conditions[part] for part in node.args)
    both = node.op == "and"
    out = a & b if both else a | b
    order = walk((a, b))
    if out.op != node.op or len(order) > MOST_ATOMS:
        return out
    for condition in (a, b):
        _preload(normal, condition)
    for first, second in ((a, b), (b, a)):
        facts = _facts_of(normal, first if both else ~first)
        if not facts or _apart(normal, facts, second):
            continue
        with supposing(normal.facts, facts):
            known = _condition_again(normal, second, _fixed(normal, facts))
        if known.op == "true":
            return first if known.args[0] == both else known
    return out


def _apart(normal: Normal, told: Sequence[Poly], condition: Expr) -> bool:
    """Whether what is told says nothing of a condition: no bound and no given fact leads from one to the other."""
    compared = (normal.values[part] for part in numbers_of((condition,)))
    wanted = _reach(normal.facts, {atom for p in compared for mono in p for atom in mono})
    return wanted.isdisjoint(_reach(normal.facts, {atom for fact in told for mono in fact for atom in mono}))


def _reach(facts: Facts, numbers: set[int]) -> set[int]:
    """Atoms, those under them, those of their bounds, and those that given facts hold together with any of these."""
    found: set[int] = set()
    stack = list(numbers)
    ties = [{number for mono in fact for number in mono} for fact in facts.given]
    while stack:
        number = stack.pop()
        if number in found:
            continue
        found.add(number)
        atom = facts.atoms[number]
        for p in (atom.x, atom.y, atom.lower, atom.upper):
            for mono in p or ():
                stack += mono
        for tie in ties:
            if number in tie:
                stack += tie
    return found


def _decide(normal: Normal, p: Poly) -> bool | None:
    """Whether p >= 0 always (True), never (False), or neither is proved (None)."""
    return True if nonnegative(normal.facts, p) else False if positive(normal.facts, negate(p)) else None


def _at_least_zero(normal: Normal, p: Poly) -> Expr:
    """The condition ``p >= 0``, as a comparison of sums with positive terms in lowest terms."""
    p = tight(p)
    decided = _decide(normal, p)
    if decided is not None:
        return TRUE if decided else FALSE
    offset = p.get(ONE, 0)
    more = {mono: c for mono, c in p.items() if mono and c > 0}
    less = {mono: -c for mono, c in p.items() if mono and c < 0}
    if offset == -1:
        return _sum_of(normal, less) < _sum_of(normal, more)
    if offset >= 0 and not more:
        return _sum_of(normal, less) < offset + 1
    if offset >= 0:
        return _sum_of(normal, less) <= _sum_of(normal, add(more, constant(offset)))
    return _sum_of(normal, add(less, constant(-offset))) <= _sum_of(normal, more)


def _zero(normal: Normal, p: Poly) -> Expr:
    if not p:
        return TRUE
    divisor = known_divisor({mono: c for mono, c in p.items() if mono})
    if divisor == 0 or p.get(ONE, 0) % divisor or positive(normal.facts, p) or positive(normal.facts, negate(p)):
        return FALSE
    if nonnegative(normal.facts, p) and nonnegative(normal.facts, negate(p)):
        return TRUE
    p = {mono: c // divisor for mono, c in p.items()}
    offset = p.get(ONE, 0)
    more = {mono: c for mono, c in p.items() if mono and c > 0}
    less = {mono: -c for mono, c in p.items() if mono and c < 0}
    if not more or (less and min(less) < min(more)):
        more, less, offset = less, more, -offset
    return equal(
        _sum_of(normal, add(more, constant(max(offset, 0)))), _sum_of(normal, add(less, constant(max(-offset, 0))))
    )


def _sum_of(normal: Normal, p: Poly) -> Expr:
    """The expression of a polynomial, in the plain style."""
    writer = Writer(normal.facts, digits=False) if normal.facts.memo.local else normal.writer
    return writer.expr(p)


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
