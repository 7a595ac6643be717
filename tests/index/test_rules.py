"""Each rule of the tables alone: where it fires, both sides have the same value at every point."""

import random

import pytest

from tileweave.index import Expr, const, minimum, symbol, symbols
from tileweave.index.normal.read import load, normal_of
from tileweave.index.normal.rules import FLOOR_RULES, MOD_RULES, SUM_RULES, XOR_RULES, extreme, floor, mod, recombine
from tileweave.index.normal.signs import positive
from tileweave.index.normal.write import Writer

M, N = symbol("M", 1, 5), symbol("N", 1, 4)
ATOMS = [
    symbol("a", 0, 4),
    symbol("b", 0, 8),
    symbol("c", -6, 7),
    symbol("t", 0, 48),
    symbol("m", 0, M),
    symbol("n", 0, N),
]


def some_sum(rng: random.Random) -> Expr:
    """Sums in which symbols, digits and products of parameters are scaled by numbers with common divisors."""
    out = const(rng.choice([0, 0, 0, 1, 2, 3, 5, -1, -4]))
    for _ in range(rng.randint(1, 3)):
        x = rng.choice(ATOMS)
        d = rng.choice([const(2), const(4), const(6), const(8), M, N, M * N])
        e = rng.choice([const(2), const(3), const(4), M])
        term = rng.choice([x, x, x, x // d, x % d, (x // d) % e, d * (x // d) + x % d, d * ((x // d) % e) + x % d])
        out = out + term * rng.choice(
            [const(1), const(1), const(2), const(4), const(8), const(-1), const(12), M, N, M * N]
        )
    return out


def some_divisor(rng: random.Random) -> Expr:
    return rng.choice([const(k) for k in (2, 3, 4, 6, 8, 12, 16, 24)] + [M, N, M * N, M * 2, N * 4, M * M, M + 1])


def loaded(*exprs):
    normal = normal_of()
    load(normal, exprs)
    return normal.facts, [normal.values[expr] for expr in exprs]


def text_of(facts, p):
    return Writer(facts, digits=False).expr(p)


def lone(rng, name):
    """Dividends of the shape that rules about a single inner operation ask for."""
    x = rng.choice(ATOMS) + rng.choice([0, 3]) * rng.choice(ATOMS)
    d, f = rng.choice([const(2), const(4), M]), rng.choice([const(2), const(3), N])
    if name == "floor of %":
        return x % (d * f), d
    if name in ("floor of xor", "% of xor"):
        return x ^ rng.choice(ATOMS), rng.choice([const(2), const(4)])
    if name == "ceiling":
        return -x * rng.choice([const(1), const(2), M]) - rng.choice([0, 2]) * rng.choice(ATOMS), d * f
    if name == "nested floor":
        return x // d + rng.choice([0, 1, -2]), f
    if name == "% of %":
        return (x % (d * f)) * rng.choice([const(1), f]) + rng.choice(ATOMS), d
    return some_sum(rng), some_divisor(rng)


@pytest.mark.parametrize("rule", FLOOR_RULES + MOD_RULES, ids=lambda rule: rule.name)
def test_division_rule_alone(rule, differ):
    rng = random.Random(rule.name)
    fired = 0
    for _ in range(300):
        dividend, divisor = lone(rng, rule.name)
        facts, (p, d) = loaded(dividend, divisor)
        if not p or not d or not (rule.name == "peel" or positive(facts, d)):
            continue
        result = rule.apply(facts, recombine(facts, p), d)
        if result is None:
            continue
        fired += 1
        raw = dividend // divisor if rule in FLOOR_RULES else dividend % divisor
        assert differ([raw], [text_of(facts, result)]) == ""
        if fired == 60:
            break
    assert fired >= 20


@pytest.mark.parametrize("rule", SUM_RULES, ids=lambda rule: rule.name)
def test_sum_rule_alone(rule, differ):
    rng = random.Random(rule.name)
    fired = 0
    for _ in range(300):
        raw = some_sum(rng)
        x, d = rng.choice(ATOMS), rng.choice([const(2), const(4), M])
        raw = raw + x % d * rng.choice([1, 3]) + x // d * rng.choice([1, 3])
        facts, (p,) = loaded(raw)
        result = rule.apply(facts, p)
        if result == p:
            continue
        fired += 1
        assert differ([raw], [text_of(facts, result)]) == ""
        if fired == 60:
            break
    assert fired >= 20


@pytest.mark.parametrize("rule", XOR_RULES, ids=lambda rule: rule.name)
def test_xor_rule_alone(rule, differ):
    rng = random.Random(rule.name)
    fired = 0
    for _ in range(400):
        x, y = rng.choice(ATOMS), rng.choice(ATOMS)
        k = rng.choice([4, 8])
        sides = [(x, rng.choice([x, const(0)])), (x ^ y, rng.choice([x, y])), (x * k + y, y), (x * k + y, y * k)]
        left, right = rng.choice([*sides, (const(rng.randint(-9, 9)), const(rng.randint(-9, 9)))])
        facts, (p, q) = loaded(left, right)
        result = rule.apply(facts, p, q)
        if result is None:
            continue
        fired += 1
        assert differ([left ^ right], [text_of(facts, result)]) == ""
    assert fired >= 20


def test_rules_stop_where_their_condition_fails():
    x, d, g = symbol("x"), symbol("d"), symbol("g", 1)
    low, high = symbol("low", 0, 9), symbol("high", -3, 4)
    refused = [
        ("fit", FLOOR_RULES, low, const(8)),  # 8 itself is possible
        ("fit", FLOOR_RULES, high, const(8)),  # both signs
        ("partition", FLOOR_RULES, 8 * x + low, const(64)),  # low may be 8
        ("partition", MOD_RULES, g * x + symbol("s", 0, g + 1), g * 4),  # s may be g
        ("floor of %", FLOOR_RULES, x % 6, const(4)),  # 4 does not divide 6
        ("% of %", MOD_RULES, x % 6, const(4)),
        ("floor of xor", FLOOR_RULES, x ^ low, const(6)),  # no power of two
        ("nested floor", FLOOR_RULES, x // 4 * 3, const(5)),
    ]
    for name, table, dividend, divisor in refused:
        facts, (p, q) = loaded(dividend, divisor)
        (rule,) = (rule for rule in table if rule.name == name)
        assert rule.apply(facts, p, q) is None
    facts, (p, q) = loaded(x, d)  # a divisor of unknown sign is only peeled
    assert text_of(facts, floor(facts, p, q)) is x // d and text_of(facts, mod(facts, p, q)) is x % d


def test_every_rule_states_its_law():
    for rule in FLOOR_RULES + MOD_RULES + XOR_RULES + SUM_RULES:
        assert rule.name and "==" in rule.law


def test_extremes_fold_where_the_order_is_proved():
    n = symbol("n", 1)
    i = symbol("i", 0, n)
    facts, (p, q) = loaded(i, n)
    assert extreme(facts, "min", p, q) == p and extreme(facts, "max", p, q) == q
    (other,) = symbols("other")
    facts, (p, q) = loaded(i, other)
    assert text_of(facts, extreme(facts, "min", p, q)) in (minimum(i, other), minimum(other, i))
