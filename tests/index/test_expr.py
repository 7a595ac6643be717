import copy
import gc
import operator
import pickle
from fractions import Fraction

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import (
    Expr,
    as_expr,
    const,
    constant_of,
    equal,
    evaluate,
    maximum,
    minimum,
    select,
    symbol,
    symbols,
    symbols_of,
    unequal,
)
from tileweave.index.expr import _TABLE, CONDITIONS, NUMBERS, walk
from tileweave.index.text.spell import FULL, SHORT

i, j = symbol("i", 0, 8), symbol("j", -4, 5)


def test_same_parts_are_the_same_node():
    assert (i + 1) * j is (i + 1) * j
    assert symbol("i", 0, 8) is i
    assert symbol("i", 0, 9) is not i
    assert (i + 1 == i + 2) is False and (i + 1 == i + 1) is True
    assert len({i + 1, i + 1, 1 + i}) == 2
    assert symbol("k", const(0), 8) is symbol("k", 0, np.int64(8))


def test_operators_agree_with_ints_on_both_sides():
    ops = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.xor]
    for op in ops:
        for a in range(-4, 5):
            for b in (-3, -1, 2, 7):
                assert evaluate(op(j, b), j=a) == op(a, b)
                if a or op not in (operator.floordiv, operator.mod):
                    assert evaluate(op(b, j), j=a) == op(b, a)
                    assert evaluate(divmod(b, j)[1], j=a) == divmod(b, a)[1] if a else True
    assert [evaluate(part, j=-3) for part in divmod(j, 4)] == list(divmod(-3, 4))
    assert evaluate(-j + abs(j) + +j, j=-3) == 3
    assert evaluate(j**3, j=-3) == -27
    assert evaluate((j << 3) + (j >> 1), j=-3) == (-3 << 3) + (-3 >> 1)


@pytest.mark.parametrize("mask", [0, 1, 2, 3, 6, 12, 0b101101, -1, -2, -8, -13, 2**40 - 1])
def test_and_with_a_constant_mask(mask):
    for value in (*range(-4, 5), 77):
        assert evaluate(symbol("x") & mask, x=value) == value & mask
        assert evaluate(mask & symbol("x"), x=value) == value & mask


def test_comparisons_build_conditions():
    for a in range(-4, 5):
        for b in (-1, 0, 3):
            assert evaluate(j < b, j=a) is (a < b)
            assert evaluate(j <= b, j=a) is (a <= b)
            assert evaluate(b < j, j=a) is (b < a)
            assert evaluate(b >= j, j=a) is (b >= a)
            assert evaluate(equal(j, b), j=a) is (a == b)
            assert evaluate(unequal(j, b) | (j > 3), j=a) is (a != b or a > 3)
            assert evaluate(~((j < b) & (j > -3)), j=a) is not (-3 < a < b)
    assert (i < 3).is_condition and not (i + 3).is_condition
    assert ~(i < 3) is (i >= 3) and ~~((i < 3) & (j < 2)) is ((i < 3) & (j < 2))


def test_truth_only_of_constants():
    assert bool(const(1) < 2) and not bool(const(3) < 2) and bool(const(2)) and not bool(const(0))
    for maybe in (lambda: bool(i < 3), lambda: 0 <= i < 3, lambda: i and j, lambda: not i):
        with pytest.raises(LayoutError, match="no truth value"):
            maybe()


def test_an_expression_is_never_an_index():
    assert not hasattr(i, "__index__") and not hasattr(i, "__int__")
    for use in (lambda: range(i), lambda: [1, 2][const(1)], lambda: int(const(1)), lambda: hex(i)):
        with pytest.raises(TypeError):
            use()


def test_folding_needs_no_proof():
    assert i + 0 is i and i - 0 is i and i * 1 is i and i // 1 is i and 0 + i is i and 1 * i is i
    assert i * 0 is const(0) and i % 1 is const(0) and i - i is const(0) and i ^ i is const(0) and i ^ 0 is i
    assert const(-7) // 2 is const(-4) and const(-7) % 2 is const(1)
    assert minimum(i, i) is i and minimum(3, 2, 5) is const(2) and maximum(3, 2, 5) is const(5)
    assert select(True, i, j) is i and select(const(2) < 1, i, j) is j and select(i < 3, j, j) is j
    assert ((i < 3) & True) is (i < 3) and ((i < 3) | True).args == (True,)


@pytest.mark.parametrize("value", [1.5, 2.0, True, "3", None, np.float64(2), Fraction(1, 2), [1], np.arange(3)])
def test_what_is_no_integer_is_refused(value):
    for use in (lambda: const(value), lambda: as_expr(value), lambda: minimum(i, value), lambda: symbol("s", value)):
        if value is None and use is not None:
            continue
        with pytest.raises(LayoutError, match="is not an integer"):
            use()
    for op in (operator.add, operator.mul, operator.floordiv, operator.lt):
        with pytest.raises((LayoutError, TypeError)):
            op(i, value)
        with pytest.raises((LayoutError, TypeError)):
            op(value, i)


def test_errors_in_house_form():
    cases = {
        "a // b: division by zero\n  a      i\n  b      0\n  legal  b != 0": lambda: i // 0,
        "a % b: division by zero\n  a      i\n  b      0\n  legal  b != 0": lambda: i % 0,
        "a // b: division by zero\n  a      7\n  b      0\n  legal  b != 0": lambda: const(7) // 0,
        "symbol('n', start, stop): the range is empty\n  start  4\n  stop   4\n"
        "  legal  start < stop, with a multiple between": lambda: symbol("n", 4, 4),
        "symbol('n', start, stop): the range is empty\n  start        1\n  stop         8\n  multiple_of  8\n"
        "  legal        start < stop, with a multiple between": lambda: symbol("n", 1, 8, multiple_of=8),
        "a + b: a condition is not a number\n  condition  i < 3\n  legal      select(c, 1, 0)": lambda: (i < 3) + 1,
        "Expr / x: true division leaves the integers\n  x      2\n  legal  // or %": lambda: i / 2,
        "symbol('2x', start, stop): '2x' is not an identifier\n  legal  letters, digits and underscores": (
            lambda: symbol("2x")
        ),
        "Expr(...): expressions are not built by calling the class\n  legal  symbol(), const(), + - *": (
            lambda: Expr("add", i, j)
        ),
        "Expr >> k: shift by -1\n  legal  a constant number of bits, 0 or more": lambda: i >> -1,
        "Expr ** k: exponent -1\n  legal  a constant from 0 to 64": lambda: i**-1,
    }
    for text, use in cases.items():
        with pytest.raises(LayoutError) as error:
            use()
        assert str(error.value) == text
    for use in (lambda: select(i, 1, 2), lambda: i | j, lambda: i & j, lambda: symbol("n", 0, 4, multiple_of=j)):
        with pytest.raises(LayoutError):
            use()


def test_two_symbols_of_one_name_are_refused():
    with pytest.raises(LayoutError, match="two different symbols are called 'i'"):
        symbols_of([i + symbol("i", 0, 9)])
    assert symbols_of([symbol("k", 0, symbol("n", 1)) + i]) == (symbol("n", 1), symbol("k", 0, symbol("n", 1)), i)


def test_repr_parses_back(generator):
    names = {"symbol": symbol, "const": const, "equal": equal, "unequal": unequal}
    names |= {"minimum": minimum, "maximum": maximum, "select": select}
    for seed in range(150):
        source = generator(seed)
        for expr in (source.number(4), source.condition(3)):
            assert eval(repr(expr), names) is expr
    assert repr(symbol("K", 1, multiple_of=8)) == "symbol('K', 1, None, multiple_of=8)"


def test_pickle_and_copy_give_the_same_node():
    M = symbol("M", 1)
    expr = select(symbol("r", 0, M * 2) < M, minimum(i, j) ^ 5, symbol("K", 1, multiple_of=M) // 3)
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert copy.copy(expr) is expr and copy.deepcopy([expr])[0] is expr


def test_immutable():
    with pytest.raises(AttributeError):
        i.op = "const"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del i.args
    assert i.op == "sym"


def test_deep_shared_graphs_need_no_recursion():
    x = y = i
    for step in range(10_000):
        x = x * 3 + step
        y = y + y
    assert pickle.loads(pickle.dumps(x)) is x and copy.deepcopy(y) is y
    assert evaluate(y, i=1) == 2**10_000
    assert repr(x) == f"<expression of {len(walk([x]))} shared nodes>"
    assert str(y) == "<expression of 10001 shared nodes>"


def test_the_table_forgets_what_nobody_holds():
    gc.collect()
    before = len(_TABLE)
    x = symbol("only_here", 0, 8)
    for step in range(500):
        x = x * 3 + step
    assert len(_TABLE) > before + 900
    del x
    gc.collect()
    assert len(_TABLE) <= before + 8


def test_every_op_is_spelled_and_listed():
    leaves = {"const", "sym", "true"}
    for spelling in (SHORT, FULL):
        assert set(spelling.infix) | set(spelling.calls) | leaves == set(NUMBERS) | set(CONDITIONS)


def test_constant_of_and_symbols():
    assert constant_of(3) == 3 and constant_of(i * 0 + 4) == 4 and constant_of(i) is None
    a, b = symbols("a, b", 0, 4)
    assert (str(a), str(b)) == ("a", "b") and a is symbol("a", 0, 4)


def test_foreign_operands_may_answer():
    class Other:
        def __radd__(self, left):
            return "answered"

    assert i + Other() == "answered"
