import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import equal, evaluate, maximum, minimum, select, symbol

x, d = symbol("x"), symbol("d")


def test_floor_semantics_on_ints_and_arrays():
    values = np.arange(-9, 10)
    for divisor in (-5, -1, 1, 4, 7):
        assert [evaluate(x // d, x=int(v), d=divisor) for v in values] == [int(v) // divisor for v in values]
        assert np.array_equal(evaluate(x // d, x=values, d=divisor), values // divisor)
        assert np.array_equal(evaluate(x % d, {x: values, "d": divisor}), values % divisor)
    columns = evaluate(x * 10 + d, x=np.arange(3)[:, None], d=np.arange(4))
    assert np.array_equal(columns, np.arange(3)[:, None] * 10 + np.arange(4))


def test_every_op_on_arrays_agrees_with_ints(generator):
    for seed in range(60):
        source = generator(seed)
        source.symbols, source.params = [x, d], []
        expr = source.number(4)
        points = np.random.default_rng(seed).integers(-50, 50, (2, 40))
        whole = np.broadcast_to(evaluate(expr, x=points[0], d=points[1]), (40,))
        assert list(whole) == [evaluate(expr, x=int(a), d=int(b)) for a, b in points.T]


def test_no_overflow_is_silent():
    big = np.array([2**62, -(2**62), 5])
    assert list(evaluate(x * 4 + 1, x=big)) == [2**64 + 1, -(2**64) + 1, 21]
    assert evaluate(x * 4 + 1, x=np.array([5])).dtype == np.int64
    assert list(evaluate(x + 1, x=np.array([2**64 - 1], dtype=np.uint64))) == [2**64]
    assert list(evaluate(x * x, x=np.array([200, 100], dtype=np.uint8))) == [40000, 10000]
    assert evaluate(x**5, x=2**60) == 2**300
    assert list(evaluate(x // d, x=big, d=np.array([-1, 1, 2]))) == [-(2**62), -(2**62), 2]


def test_values_outside_are_refused():
    M = symbol("M", 1)
    i = symbol("i", 0, M)
    K = symbol("K", 8, multiple_of=8)
    cases = [
        (i + 1, {"i": 3, "M": 3}, "i lies at or above M"),
        (i + 1, {"i": -1}, "i lies below 0"),
        (i + 1, {"M": 0, "i": 0}, "M lies below 1"),
        (i + 1, {"i": np.array([0, 1, 5]), "M": 5}, "i lies at or above M"),
        (K, {"K": 12}, "K is no multiple of 8"),
        (i, {}, "symbol i has no value"),
        (x, {"x": 1.5}, "the value of x is 1.5"),
        (x, {"x": True}, "the value of x is True"),
        (x, {"x": np.array([1.0])}, "an array of float64"),
        (x // d, {"x": 1, "d": 0}, "division by zero"),
        (x % d, {"x": np.arange(3), "d": np.array([1, 0, 2])}, "division by zero"),
    ]
    for expr, values, problem in cases:
        with pytest.raises(LayoutError, match=problem):
            evaluate(expr, values)
    assert evaluate(i + 1, i=2) == 3  # a bound whose symbol has no value is not checked


def test_conditions_and_choices():
    values = np.arange(-3, 4)
    expr = select((x < 0) | equal(x, 2), minimum(x, -2), maximum(x, 1))
    assert list(evaluate(expr, x=values)) == [min(v, -2) if v < 0 or v == 2 else max(v, 1) for v in values]
    assert evaluate(~((x < 0) & (x > -2)), x=values).tolist() == [not (-2 < v < 0) for v in values]
    assert evaluate(equal(3, 3)) is True and evaluate(7) == 7
