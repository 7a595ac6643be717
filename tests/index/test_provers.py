import importlib.util

import pytest

from tileweave.errors import LayoutError
from tileweave.index import equal, prove, select, symbol, symbols, unequal
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


@pytest.mark.skipif(importlib.util.find_spec("z3") is not None, reason="z3 is installed")
def test_a_missing_prover_is_named():
    with pytest.raises(LayoutError, match="pip install z3-solver"):
        prove(unequal(x * x * x, 4 + y * y), limit=0, using="z3")


def test_unknown_provers_are_refused():
    with pytest.raises(LayoutError, match="no prover 'cvc'"):
        ask("cvc", x < y)
