import numpy as np
import pytest

from tileweave.errors import LayoutError, Unproved
from tileweave.index import (
    bounds,
    divisor,
    equal,
    equivalent,
    evaluate,
    maximum,
    minimum,
    prove,
    require,
    select,
    symbol,
    symbols,
    unequal,
)
from tileweave.index.normal.poly import subtract
from tileweave.index.normal.read import normal_of
from tileweave.index.normal.signs import _refuted, nonnegative

i, j = symbol("i", 0, 12), symbol("j", 0, 7)
x, y = symbols("x y")


def test_three_answers():
    assert prove(i < 12).how == "ranges" and prove(i < 12).holds is True
    refuted = prove(i * j < 66)
    assert refuted.holds is False and refuted.witness["i"] * refuted.witness["j"] >= 66
    hard = prove(unequal(x * x * x + y * y * y, 4))
    assert hard.holds is None and hard.how == "open" and not hard and hard.points > 0
    exhaustive = prove(unequal(i * i % 7, 3))
    assert exhaustive.how == "every point" and exhaustive.points == 12


def test_verdicts_agree_with_every_point(generator, differ):
    settled = 0
    for seed in range(120):
        condition = generator(seed).condition(2)
        try:
            verdict = prove(condition, limit=0)
        except LayoutError:
            continue
        as_number = [select(condition, 1, 0)] if condition.op != "true" else [select(bool(condition), 1, 0)]
        always = differ(as_number, [select(True, 1, 0)]) == ""
        if verdict.holds is not None:
            settled += 1
        if verdict.holds:
            assert always
        if verdict.holds is False:
            assert evaluate(condition, verdict.witness) is False
    assert settled > 60


def test_equivalence_of_random_pairs(generator, differ):
    for seed in range(60):
        source = generator(seed)
        a, b = source.number(2), source.number(2)
        try:
            verdict = equivalent(a, b)
        except LayoutError:
            continue
        assert verdict.holds is not None or verdict.points > 0
        if verdict.holds is False:
            assert evaluate(a, verdict.witness) != evaluate(b, verdict.witness)
        elif verdict.holds:
            assert differ([a], [b]) == ""


def test_normal_forms_prove_identities_of_unbounded_symbols():
    d, e = symbols("d e", 1)
    same = [
        (x // d * d + x % d, x),
        (x // d // e, x // (d * e)),
        (x % (d * e) // d, x // d % e),
        (x // d % e * d + x % d, x % (d * e)),
        ((x + d * y) % d, x % d),
        (x % 60, x // 12 % 5 * 12 + x // 3 % 4 * 3 + x % 3),
        ((x + 4) // 4, x // 4 + 1),
        ((x + y) * (x - y), x * x - y * y),
        (minimum(x, y) + maximum(y, x), maximum(x, y) + minimum(y, x)),
        (select(x < y, x, y), select(x + 1 <= y, x, y)),
        (x < y, x + 1 <= y),
    ]
    for a, b in same:
        assert equivalent(a, b, limit=0).how == "normal form"


def test_counterexamples():
    assert equivalent(x // 2, (x + 1) // 2).witness == {"x": -1}
    verdict = equivalent(i // 5 + j, i // 4 + j)
    assert verdict.holds is False and verdict.witness["i"] // 5 != verdict.witness["i"] // 4
    m, n = symbols("m n", 1)
    lossy = equivalent(symbol("p", 0, m * n) // n * n, symbol("p", 0, m * n))
    assert lossy.holds is False and lossy.witness["p"] % lossy.witness["n"] != 0
    assert not equivalent(x < y, x <= y)


def test_injectivity_of_grouped_program_ids_is_refuted():
    """The grouped inverse without a minimum repeats tiles for 9 rows in groups of 4."""
    pid, other = symbols("pid other", 0, 36)
    rows, columns = lambda p: p // 16 % 2 * 4 + p % 4, lambda p: p // 4 % 4
    distinct = (pid < other) & equal(rows(pid), rows(other)) & equal(columns(pid), columns(other))
    verdict = prove(~distinct)
    a, b = verdict.witness["pid"], verdict.witness["other"]
    assert verdict.holds is False and a != b and (rows(a), columns(a)) == (rows(b), columns(b))


def test_given_conditions():
    n = symbol("n", 1)
    assert not prove(x + 1 < n) and prove(x + 1 < n, given=[x < n - 1])
    assert equivalent(x % n, x, given=[(x >= 0) & (x < n)])
    assert prove(i < 5, given=[i < 3]).how == "ranges"
    assert prove(unequal(i, 8), given=[equal(i % 3, 0)]).how == "every point"


def test_undefined_points_are_left_out():
    d = symbol("d", -3, 4)
    assert equivalent(i // d * d + i % d, i)
    assert prove(equal(d // d, 1)).holds is True


def test_limit_and_large_domains():
    a, b = symbols("a b", 0, 3000)
    assert prove(unequal(a * a - 2 * b * b, 3), limit=1 << 20).holds is None
    assert prove(unequal(a * a - 3 * b * b, 2), limit=1 << 24).how == "every point"
    assert prove(a * b < 10**30).how == "ranges"


def test_require_names_the_condition():
    require(i < 12, "tile(a, b)")
    n = symbol("n", 1)
    k = symbol("k", 0, n)
    with pytest.raises(Unproved) as error:
        require(k + 1 < n, "tile(a, b)")
    assert str(error.value) == (
        "tile(a, b): k + 1 < n fails at n = 1, k = 0\n"
        "  n      symbol('n', 1, None)\n"
        "  k      symbol('k', 0, symbol('n', 1, None))\n"
        "  legal  ranges or given conditions that imply it"
    )
    assert error.value.condition is (k + 1 < n) and error.value.witness == {"n": 1, "k": 0}
    with pytest.raises(Unproved, match="is not proved"):
        require(unequal(x * x * x + y * y * y, 4), "f(x)")


def test_bad_questions():
    for use in (lambda: prove(x), lambda: prove(3), lambda: equivalent(x, x < 3), lambda: equivalent(1.5, x)):
        with pytest.raises(LayoutError):
            use()
    n = symbol("n", -3, 1)
    with pytest.raises(LayoutError, match="range"):
        prove(unequal(symbol("k", 0, n) * n * n, 5))
    assert prove(True).holds is True and prove(False).holds is False


def test_bounds_and_divisor():
    assert bounds(i * 3 - j) == (-6, 33) and bounds(x) == (None, None) and bounds(7) == (7, 7)
    assert divisor(12 * x + 8 * y) == 4 and divisor(x) == 1 and divisor(0) == 0
    values = np.arange(12)
    assert (evaluate(12 * i + 6, i=values) % divisor(12 * i + 6) == 0).all()


def test_sample_points_refute_only_what_fails(generator):
    """What the prover refutes at its sample points fails: they lie in the ranges and satisfy what is given."""
    refuted = 0
    for seed in range(200):
        source = generator(seed)
        a, b = source.number(2), source.number(2)
        fact = source.leaf() <= source.leaf() + 2
        try:
            normal = normal_of([fact], (a, b))
            verdict = prove(a >= b, given=[fact])
        except LayoutError:  # a division by zero, or a fact that never holds
            continue
        p = subtract(normal.values[a], normal.values[b])
        if _refuted(normal.facts, p):
            refuted += 1
            assert not nonnegative(normal.facts, p)
            assert verdict.holds is not True
    assert refuted > 50
