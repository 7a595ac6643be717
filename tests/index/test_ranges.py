import random

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import bounds, divisor, maximum, minimum, select, simplify, symbol, symbols
from tileweave.index.evaluate import evaluate, values_of
from tileweave.index.expr import const
from tileweave.index.normal.facts import interval
from tileweave.index.normal.poly import add, divide, exact_quotient, multiply, substitute, subtract
from tileweave.index.normal.read import normal_of, value_of
from tileweave.index.normal.signs import nonnegative


def proved(expr, given=()):
    """Whether expr >= 0 is proved by ranges."""
    normal = normal_of(given)
    return nonnegative(normal.facts, value_of(normal, expr))


def test_intervals_hold_and_are_tight_on_single_uses():
    i, j = symbol("i", -3, 9), symbol("j", 2, 6)
    cases = [i + j, i * j, i - 3 * j, i // j, i % j, i // 4, i % 5, minimum(i, j), maximum(i, j), i ^ j, j // 3 * i]
    grid = np.meshgrid(np.arange(-3, 9), np.arange(2, 6))
    for expr in cases:
        values = evaluate(expr, i=grid[0], j=grid[1])
        low, high = bounds(expr)
        assert low <= values.min() and values.max() <= high
    for expr in (i + j, i * j, i - 3 * j, i // 4, i % 5, minimum(i, j), maximum(i, j), i % j, i // j):
        values = evaluate(expr, i=grid[0], j=grid[1])
        assert bounds(expr) == (values.min(), values.max())


def test_random_intervals_and_signs_hold(generator):
    for seed in range(150):
        source = generator(seed)
        expr = source.number(3)
        try:
            normal = normal_of()
            low, high = interval(normal.facts, value_of(normal, expr))
        except LayoutError:
            continue
        rng = np.random.default_rng(seed)
        points = random_point(expr, rng)
        value, defined = values_of((expr,), points)
        value, defined = np.broadcast_to(value[0], (200,)), np.broadcast_to(defined, (200,))
        inside = value[defined & inside_ranges(points)]
        assert low is None or not inside.size or low <= inside.min()
        assert high is None or not inside.size or inside.max() <= high
        assert not nonnegative(normal.facts, value_of(normal, expr)) or not inside.size or inside.min() >= 0


def random_point(expr, rng):
    from tileweave.index import symbols_of

    return {node: rng.integers(-9, 30, 200) for node in symbols_of((expr,))}


def inside_ranges(points):
    inside = np.ones(200, dtype=bool)
    for node, value in points.items():
        _, start, stop, factor = node.args
        (low, high, step), _ = values_of((start, stop, factor), points)
        inside &= (low <= value) & (value < high) & (value % np.where(step == 0, 1, step) == 0)
    return inside


def test_symbolic_bounds():
    M, N, BK, nk = symbols("M N BK nk", 1)
    i, s, k = symbol("i", 0, M), symbol("s", 0, BK), symbol("k", 0, nk)
    assert proved(M - 1 - i) and proved(BK - s - 1) and not proved(M - 2 - i)
    assert proved(nk * BK - 1 - (k * BK + s)) and not proved(nk * BK - 2 - (k * BK + s))
    assert proved(M * N - 1 - i * N - symbol("j", 0, N))
    assert proved(M * N - 1) and proved(M * N - M) and not proved(M * N - M - 1)
    assert proved((M - i) * N - 1)
    t = symbol("t", 0, nk * BK)
    assert proved(nk - 1 - t // BK) and proved(t - t // BK * BK) and proved(BK - 1 - (t - t // BK * BK))
    assert proved(t - t % BK) and proved(t // BK) and not proved(t // BK - 1)
    assert proved(minimum(M, N) - 1) and proved(M - minimum(M, N)) and proved(maximum(M, i) - i)
    assert proved(select(i < 3, i, M)) and not proved(select(i < 3, i - 1, M))
    assert proved((M + 1) * (N + 2) - M * N) and proved(i * i) and proved(i * i + i * N)


def test_a_symbol_in_range_says_that_its_range_is_not_empty():
    M, a = symbol("M"), symbol("a")
    i = symbol("i", 0, M)
    assert proved(M - 1 + i) and not proved(M)
    k = symbol("k", 0, M * a)
    assert proved(M * a - 1 + 0 * k + k) and not proved(M * a)


def test_given_conditions_are_used():
    a, b, n = symbols("a b n")
    assert proved(b - a, [a <= b]) and proved(b - a - 1, [a < b]) and not proved(a - b, [a <= b])
    assert proved(2 * b - a - 3, [(a < b) & (b >= 3)]) is False  # needs two facts at once: not proved, never guessed
    assert proved(n - 4, [a * 0 + n >= 4]) and proved(n - 2, [symbol("c", 0, 9) + 2 <= n])


def test_declared_divisors():
    BK = symbol("BK", 1)
    K = symbol("K", 1, multiple_of=BK)
    assert simplify(K % BK) is const(0) and simplify(K // BK * BK) is K
    assert proved(K - BK) and not proved(K - BK - 1)
    assert proved(K // BK - 1)
    W = symbol("W", 5, 65, multiple_of=8)
    assert bounds(W) == (8, 64) and simplify(W % 4) is const(0) and simplify((W + 3) // 8) is simplify(W // 8)
    assert divisor(W * 3 + 12 * symbol("q")) == 12 and divisor(const(0)) == 0 and divisor(symbol("z")) == 1
    with pytest.raises(LayoutError, match="not known to be positive"):
        symbol("bad", multiple_of=symbol("q"))


def test_polynomials_are_a_ring():
    rng = random.Random(3)

    def some():
        monos = [(), (0,), (1,), (0, 0), (0, 1), (1, 2), (2,)]
        return {m: c for m in rng.sample(monos, rng.randint(0, 5)) if (c := rng.randint(-6, 6))}

    for _ in range(500):
        p, q, r = some(), some(), some()
        assert add(p, q) == add(q, p) and subtract(add(p, q), q) == p
        assert multiply(p, q) == multiply(q, p) and multiply(p, add(q, r)) == add(multiply(p, q), multiply(p, r))
        assert substitute(p, 0, {(0,): 1}) == p
        if q:
            quotient, rest = divide(p, q)
            assert add(multiply(quotient, q), rest) == p
            assert exact_quotient(multiply(p, q), q) == p or len(q) > 1
