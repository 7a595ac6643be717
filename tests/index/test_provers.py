import importlib.util

import pytest

from tileweave.errors import LayoutError
from tileweave.index import bijective, equal, prove, select, symbol, symbols, unequal
from tileweave.index.provers import ask, bijective_by_isl


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


x, y, d = symbols("x y d")


@needs("z3")
def test_z3_proves_and_refutes():
    i, n = symbol("i", 0, symbol("n", 1)), symbol("n", 1)
    assert ask("z3", i < n).holds is True
    refuted = ask("z3", i + 1 < n)
    assert refuted.holds is False and refuted.witness["i"] + 1 >= refuted.witness["n"]
    assert prove(unequal(x * 6 + y * 9, 4), limit=0, using="z3").holds is True
    assert ask("z3", x < y, given=[x + 1 < y]).holds is True
    assert ask("z3", equal(symbol("K", 1, multiple_of=8) % 4, 0)).holds is True


@needs("z3")
def test_z3_rounds_down_for_every_sign():
    for a in (-7, -1, 0, 5):
        for b in (-3, -2, 2, 3):
            assert (
                ask("z3", equal(x // d, a // b) & equal(x % d, a % b), given=[equal(x, a), equal(d, b)]).holds is True
            )
    chosen = select(x < 0, -x, x)
    assert ask("z3", chosen >= 0).holds is True


@needs("islpy")
def test_isl_certifies_bijections():
    i, j, k = symbols("i j k", 0, 384)
    brick = ((i // 8 * 48 + j // 8) * 48 + k // 8) * 512 + (i % 8 * 8 + j % 8) * 8 + k % 8
    assert bijective_by_isl([brick], [384**3])
    pid = symbol("pid", 0, 36)
    assert not bijective_by_isl([pid // 16 * 4 + pid % 4, pid // 4 % 4], [9, 4])


@needs("islpy")
def test_isl_agrees_with_every_point():
    e = symbol("e", 0, 16, multiple_of=2)
    i, j = symbols("i j", 0, 8)
    cases = [
        ([e // 2], [8], True), ([e], [16], False), ([i * 8 + j], [64], True), ([i * 4 + j], [64], False),
        ([i // 2, j, i % 2], [4, 8, 2], True), ([(i + j) % 8, j], [8, 8], True), ([i + 1], [8], False),
    ]  # fmt: skip
    for exprs, extents, holds in cases:
        assert bijective(exprs, extents).holds is holds
        assert bijective(exprs, extents, limit=0, using="isl").holds is holds
    assert bijective(cases[0][0], [8], limit=0).how == "open"


@pytest.mark.skipif(importlib.util.find_spec("z3") is not None, reason="z3 is installed")
def test_a_missing_prover_is_named():
    with pytest.raises(LayoutError, match="pip install z3-solver"):
        prove(unequal(x * x * x, 4 + y * y), limit=0, using="z3")


def test_bijections_are_counted_point_by_point():
    i, j = symbols("i j", 0, 600)
    assert bijective(i * 600 + j, [360_000]).points == 360_000
    twice = bijective(i * 600 + j % 599, [360_000])
    point, other = twice.witness, twice.other
    assert twice.holds is False and point != other
    assert point["i"] * 600 + point["j"] % 599 == other["i"] * 600 + other["j"] % 599
    beyond = bijective(i * 600 + j + 1, [360_000])
    assert beyond.holds is False and beyond.witness == {"i": 599, "j": 599} and not beyond.other
    missed = bijective([i, j], [600, 601])
    assert missed.holds is False and missed.points == 360_000
    n = symbol("n", 1, 5)
    assert bijective([symbol("k", 0, n), n], [5, 5]).holds is False  # a triangle does not fill the square
    for bad in (lambda: bijective(i, [8, 8]), lambda: bijective(i < 3, [2]), lambda: bijective(x, [4]),
                lambda: bijective(i, [0]), lambda: bijective(i, [600], limit=0, using="z3")):  # fmt: skip
        with pytest.raises(LayoutError):
            bad()


def test_unknown_provers_are_refused():
    with pytest.raises(LayoutError, match="no prover 'cvc'"):
        ask("cvc", x < y)
