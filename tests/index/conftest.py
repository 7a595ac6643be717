"""Random index expressions and the points to compare them at."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tileweave.index import Expr, const, equal, maximum, minimum, select, symbol, symbols_of
from tileweave.index.evaluate import values_of

Points = dict[Expr, Any]


class Generator:
    """Random symbols with constant and symbolic ranges, and random expressions over them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.params: list[Expr] = []
        self.symbols = [
            symbol("i", 0, pick([3, 4, 8, 16, 24])),
            symbol("j", pick([0, 0, -5, -8]), pick([4, 7, 12])),
            symbol("u", 0, 64, multiple_of=pick([1, 4, 8])) if self.random.random() < 0.7 else symbol("u", -9, 9),
        ]
        if self.random.random() < 0.5:
            M, N = symbol("M", 1, 5), symbol("N", 1, 4)
            self.params = [M, N, symbol("K", 1, 13, multiple_of=4)]
            self.symbols = [symbol("m", 0, M), symbol("n", 0, N), symbol("f", 0, M * N), *self.params]
            if self.random.random() < 0.3:
                X = symbol("X", -2, 5)
                self.symbols += [symbol("x", 0, X), X]
            if self.random.random() < 0.3:
                self.symbols.append(symbol("Q", 1, 20, multiple_of=M))

    def leaf(self) -> Expr:
        if self.random.random() < 0.75:
            return self.random.choice(self.symbols)
        return const(self.random.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, -1, -2, -3, -8]))

    def divisor(self) -> Expr:
        if self.params and self.random.random() < 0.4:
            factors = [self.random.choice(self.params), self.random.choice([const(1), const(2), *self.params])]
            return factors[0] * factors[1]
        return const(self.random.choice([2, 3, 4, 4, 6, 8, 8, 12, 16, 24, -2, -4, 5]))

    def number(self, depth: int) -> Expr:
        if depth == 0 or self.random.random() < 0.12:
            return self.leaf()
        kinds = ["add"] * 4 + ["sub", "times", "times", "mul", "min", "max", "select", "xor"] + ["div"] * 3
        kind = self.random.choice([*kinds, "mod", "mod", "mod", "digits"])
        a = self.number(depth - 1)
        match kind:
            case "times":
                return a * self.random.choice([2, 3, 4, 6, 8, -1, -2, 12, *self.params])
            case "div":
                return a // self.divisor()
            case "mod":
                return a % self.divisor()
            case "digits":
                return self.digits(a)
        b = self.number(depth - 1)
        match kind:
            case "sub":
                return a - b
            case "mul":
                return a * b
            case "min":
                return minimum(a, b)
            case "max":
                return maximum(a, b)
            case "xor":
                return a ^ b
            case "select":
                return select(self.condition(1), a, b)
        return a + b

    def digits(self, a: Expr) -> Expr:
        d, e = self.random.choice([2, 3, 4, 8]), self.random.choice([2, 3, 4])
        return self.random.choice(
            [
                a // d * d + a % d,
                (a // d % e) * d + a % d,
                a % d * 7 + a // d * 3,
                (a % (d * e)) // d,
                (a * d + a % d) // (d * e),
            ]
        )

    def condition(self, depth: int) -> Expr:
        a, b = self.number(depth), self.number(depth)
        options = [a < b, a <= b, equal(a, b), (a < b) & (a >= 0), ~equal(a, b) | (b < 3)]
        return self.random.choice(options)


def every_point(exprs: Sequence[Expr]) -> Points:
    """All points of constant ranges, or a fair sample of many; symbols bounded by symbols get the values that fit."""
    points: Points = {}
    count = 1
    for node in symbols_of(exprs):
        bounds, _ = values_of(list(node.args[1:]), points)
        low, high, step = (np.broadcast_to(np.asarray(bound), (count,)) for bound in bounds)
        widths = np.maximum(high - low, 0)
        rows = np.repeat(np.arange(count), widths)
        value = low[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(widths) - widths, widths)
        fits = np.flatnonzero(value % step[rows] == 0)
        if len(fits) > 4000:
            fits = np.sort(np.random.default_rng(0).choice(fits, 1500, replace=False))
        points = {s: v[rows[fits]] for s, v in points.items()}
        points[node] = value[fits]
        count = len(fits)
    return points


def mismatch(left: Sequence[Expr], right: Sequence[Expr]) -> str:
    """A point where the expressions differ, in words; empty where they agree wherever the left ones are defined."""
    points = every_point([*left, *right])
    if points and not len(next(iter(points.values()))):
        return ""  # the ranges hold no point
    a, defined = values_of(left, points)
    b, _ = values_of(right, points)
    for x, y, old, new in zip(a, b, left, right, strict=True):
        bad = np.atleast_1d(np.asarray(defined) & np.asarray(x != y))
        if bad.any():
            at = int(np.argmax(bad))
            where = {str(node): int(np.broadcast_to(v, bad.shape)[at]) for node, v in points.items()}
            return f"{old!r}  became  {new}  which differs at {where}"
    return ""


@pytest.fixture
def generator() -> Callable[[int], Generator]:
    """A generator of random expressions by seed."""
    return Generator


@pytest.fixture
def differ() -> Callable[[Sequence[Expr], Sequence[Expr]], str]:
    """`mismatch`, the oracle: both sides are evaluated at every point."""
    return mismatch
