"""`select` evaluates only the chosen branch: its meaning, the provers, simplification, hoisting, and printed text."""

import ctypes
import random
import re
import subprocess

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import (
    bijective,
    c_prelude,
    constant_of,
    equal,
    equivalent,
    evaluate,
    isqrt,
    minimum,
    prove,
    select,
    simplify,
    symbol,
    symbols,
    to_c,
    to_mlir,
    to_python,
)
from tileweave.index.evaluate import values_of

x, t, s = symbol("x", 0, 40), symbol("t", 0, 6), symbol("s", -5, 6)
GRID = dict(zip((x, t, s), np.meshgrid(np.arange(0, 40, 3), np.arange(6), np.arange(-5, 6)), strict=True))


def meaning(expr, point):
    """The value at one point by plain recursion, lazily; ZeroDivisionError where it has none."""
    match expr.op:
        case "const" | "true":
            return expr.args[0]
        case "sym":
            return point[expr]
        case "select":
            return meaning(expr.args[1] if meaning(expr.args[0], point) else expr.args[2], point)
    parts = [meaning(part, point) for part in expr.parts]
    table = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max, "xor": lambda a, b: a ^ b,
        "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
        "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a,
    }  # fmt: skip
    return table[expr.op](*parts)


def value_or_none(expr, point):
    try:
        return meaning(expr, point)
    except ZeroDivisionError:
        return None


def nest(rng, depth):
    """A random nest of selects with divisions whose divisor is zero at some points."""
    leaf = rng.choice([x, t, s, x + t, x * 3 - s, x - 7, t + 1])
    if depth == 0:
        return leaf
    a, b = nest(rng, depth - 1), nest(rng, depth - 1)
    divisor = rng.choice([t, s, t - 2, s + t, t * s, minimum(t, 3)])
    match rng.randrange(7):
        case 0:
            return a // divisor
        case 1:
            return a % divisor + b
        case 2:
            return select(equal(divisor, 0), a, b // divisor)
        case 3:
            return select((divisor > 0) & (a < b), b % divisor, a)
        case 4:
            return select(divisor < 1, a + b, a // divisor * 2 + a % divisor)
        case 5:
            return select(a < b, a + rng.randint(-3, 3), b * rng.choice([1, 2, 70000]))
    return a + b


def points_of():
    return [dict(zip(GRID, row, strict=True)) for row in zip(*(v.ravel().tolist() for v in GRID.values()), strict=True)]


POINTS = points_of()[::5]
NESTS = [nest(random.Random(seed), 3) for seed in range(60)]


def test_evaluate_has_a_value_exactly_where_the_chosen_branches_have_one():
    undefined = 0
    for expr in NESTS:
        (values,), defined = values_of((expr,), GRID)
        values = np.broadcast_to(values, GRID[x].shape).ravel()
        defined = np.broadcast_to(defined, GRID[x].shape).ravel()
        for point, value, known in zip(points_of()[::5], values[::5], defined[::5], strict=True):
            expected = value_or_none(expr, point)
            assert known == (expected is not None)
            assert expected is None or value == expected
            undefined += expected is None
    assert undefined > 1000
    assert evaluate(select(t < 1, 3, x // t), t=0, x=7) == 3
    with pytest.raises(LayoutError, match="division by zero"):
        evaluate(select(t < 1, x // t, 3), t=0, x=7)


def test_simplify_keeps_every_value_of_random_nests():
    for expr in NESTS:
        result = simplify(expr)
        for point in POINTS:
            expected = value_or_none(expr, point)
            if expected is not None:
                assert meaning(result, point) == expected, (str(expr), str(result), point)


def test_a_divisor_that_is_zero_in_a_branch_is_left_there():
    assert simplify(select(t < 1, x // t, 3)) is select(t < 1, x // t, 3)
    n = symbol("n", 1)
    never = x // (n * 2 - n - n)
    assert simplify(select(x < 40, x, never)) is x
    with pytest.raises(LayoutError, match="division by zero"):
        simplify(select(x < 3, x, 4) + never)


def test_conditions_are_simplified_among_themselves():
    i = symbol("i")
    assert simplify((i < 5) & (i < 8)) is (i < 5)
    assert simplify((i < 5) | (i < 8)) is (i < 8)
    assert constant_of(select(simplify((i < 5) & (i > 7)), 1, 0)) == 0
    assert constant_of(select(simplify((i < 5) | (i >= 5)), 1, 0)) == 1
    assert simplify((i < 5) & equal(i, 2)) is equal(i, 2)
    assert simplify(select((i < 5) & (i < 8), 1, 0)) is select(i < 5, 1, 0)


def test_random_conditions_keep_their_truth():
    rng = random.Random(5)
    for _ in range(150):
        parts = [nest(rng, 1) < rng.randint(-3, 9) for _ in range(2)] + [equal(t, rng.randint(0, 5)), s < t]
        a, b, c = rng.choice(parts), rng.choice(parts), rng.choice(parts)
        condition = rng.choice([a & b, a | b, ~(a & ~b) | c, (a | b) & c, a & ~a, select(a & b, x, t) < 5])
        result = simplify(condition)
        for point in POINTS[::3]:
            expected = value_or_none(condition, point)
            if expected is not None:
                assert bool(meaning(result, point)) == bool(expected), (str(condition), str(result), point)


def test_provers_see_the_chosen_branch():
    guarded = select(t < 1, 5, x // t)
    assert prove(guarded >= 0)
    assert prove(guarded <= 39).holds and prove(guarded < 39).witness["t"] == 1
    assert equivalent(select(equal(t, 0), 0, x % t), select(t > 0, x % t, 0)).holds
    pytest.importorskip("z3")
    unbounded, d = symbol("u", 0), symbol("d", 0)
    assert prove(select(equal(d, 0), 1, unbounded // d) >= 0, limit=0, using="z3").holds
    refuted = prove(select(equal(d, 0), 1, unbounded // d) > 0, limit=0, using="z3")
    assert refuted.holds is False


def test_large_ranges_do_not_overflow():
    """`prove(equal(h % 2, 0))` ended in an OverflowError for large h."""
    for low, high in ((0, 1 << 63), (0, 1 << 70), (1 << 64, (1 << 64) + 100), (-(1 << 90), 1 << 90)):
        h = symbol("h", low, high)
        verdict = prove(equal(h % 2, 0))
        assert verdict.holds is False and verdict.witness["h"] % 2 == 1 and low <= verdict.witness["h"] < high
    h = symbol("h", 1 << 64, (1 << 64) + 100)
    assert bijective([h - (1 << 64)], [100]).how == "every point"


def test_grouped_program_ids_of_symbolic_sizes_are_proved():
    M, N, BM, BN, G = symbols("M N BM BN G", 1)
    for rows, columns in ((symbol("nm", 1), symbol("nn", 1)), ((M + BM - 1) // BM, (N + BN - 1) // BN)):
        pid = symbol("pid", 0, rows * columns)
        first = pid // (G * columns) * G
        height = minimum(rows - first, G)
        assert prove(first < rows, limit=0) and prove(height >= 1, limit=0)
        assert prove(first + pid % (G * columns) % height < rows, limit=0)
        assert prove(pid % (G * columns) // height < columns, limit=0)
        assert not prove(first + pid % (G * columns) % height < rows - 1)


def test_coarser_quotients_are_bounded():
    g, d, y = symbol("g", 1), symbol("d", 1), symbol("y", 0)
    assert prove(g * (y // (g * d)) <= y // d, limit=0)
    assert prove(6 * (y // 24) <= y // 4, limit=0)
    assert not prove(g * (y // (g * d)) <= y // d - 1)


# -- printed text -------------------------------------------------------------------------------------------


def test_no_guarded_division_is_hoisted():
    """A temporary before the text is evaluated whatever is chosen: a guarded division there traps."""
    q = x // t
    expr = select(t < 1, 0, q * q + x % 8)
    text = to_c([expr, expr + x % 8], ["a", "b"], cse=True)
    assert not re.search(r"int64_t t\d+ = x / t;", text)
    assert text.count("t < 1") == 1
    always = to_c([q + 1, select(t < 1, 0, q * q)], ["a", "b"], cse=True)
    assert "const int64_t t0 = x / t;" in always or "const int64_t t0 = tw_floordiv(x, t);" in always


def compiled(tmp_path, functions, flags=()):
    """A library of C functions, (name, arguments, body) each."""
    source, library = tmp_path / "select.c", tmp_path / "select.so"
    lines = [c_prelude(), *(f"int64_t {name}({args}) {{ {body} }}" for name, args, body in functions)]
    source.write_text("\n".join(lines))
    command = ["gcc", "-std=c11", "-O1", "-Wno-unused", *flags, "-shared", "-fPIC", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return ctypes.CDLL(str(library))


def test_c_text_of_random_nests_has_the_meaning(tmp_path):
    """Run in a child process: a division by zero in a branch that is not chosen would be its end."""
    functions = []
    for k, expr in enumerate(NESTS):
        args = "int64_t x, int64_t t, int64_t s"
        functions.append((f"plain{k}", args, f"return {to_c(expr)};"))
        both = to_c([expr, simplify(expr)], ["one", "two"], cse=True)
        functions.append((f"shared{k}", args, f"{both} return one == two ? one : -987654321;"))
    library = compiled(tmp_path, functions)
    checked = 0
    for k, expr in enumerate(NESTS):
        for point in POINTS:
            expected = value_or_none(expr, point)
            if expected is None:
                continue
            for name in ("plain", "shared"):
                function = getattr(library, f"{name}{k}")
                function.restype = ctypes.c_int64
                assert function(*(ctypes.c_int64(point[node]) for node in (x, t, s))) == expected
                checked += 1
    assert checked > 3000


def test_python_and_numpy_text_of_random_nests_has_the_meaning():
    checked = 0
    for expr in NESTS:
        text, arrays = to_python(expr), to_python(expr, dialect="numpy")
        shared = to_python([expr, expr * 2], ["one", "two"], cse=True)
        for point in POINTS[::3]:
            expected = value_or_none(expr, point)
            if expected is None:
                continue
            space = {str(node): value for node, value in point.items()}
            assert eval(text, {}, dict(space)) == expected
            assert eval(arrays, {"np": np}, {k: np.array([v]) for k, v in space.items()})[0] == expected
            exec(shared, {}, space)
            assert space["two"] == 2 * expected
            checked += 1
    assert checked > 1000


def test_languages_that_evaluate_both_branches_never_divide_by_zero():
    expr = select(t < 1, 3, x // t)
    assert to_python(expr, dialect="triton") == "tl.where(t < 1, 3, x // tl.maximum(t, 1))"
    assert "%1 = arith.maxsi %t, %c1" in to_mlir(expr) and "arith.divui %x, %1" in to_mlir(expr)
    assert to_python(select(s < 1, 3, 8 % s), dialect="numpy") == "np.where(s < 1, 3, 8 % np.where(s == 0, 1, s))"
    assert to_python(select(x < 3, x // (t + 1), x), dialect="triton") == "tl.where(x < 3, x // (t + 1), x)"


# -- widths -------------------------------------------------------------------------------------------------


def test_constants_of_c_are_as_wide_as_the_expression(tmp_path):
    """Two literals in a select are of type int in C: their product wrapped."""
    i = symbol("i", 0, 10)
    expr = select(i < 5, 70000, 3) * 70000
    library = compiled(tmp_path, [("f", "int64_t i", f"return {to_c(expr)};")], ["-fsanitize=undefined"])
    library.f.restype = ctypes.c_int64
    assert [library.f(ctypes.c_int64(k)) for k in (0, 9)] == [4_900_000_000, 210_000]


def test_triton_computes_in_64_bits_where_the_proved_range_needs_it():
    i, j = symbol("i", 0, 65536), symbol("j", 0, 65538)
    assert to_python(i * j, dialect="triton") == "tl.cast(i, tl.int64) * j"
    assert to_python(i * j // 65536, dialect="triton") == "tl.cast(i, tl.int64) * j // 65536"
    assert to_python(i * 3 + j, dialect="triton") == "i * 3 + j"
    assert to_python(i * 65537 + j, dialect="triton") == "tl.cast(i, tl.int64) * 65537 + j"


def test_square_roots_are_exact_in_every_language(tmp_path):
    r = symbol("r", 0, 1 << 52)
    values = [0, 1, 2, 3, 4, 8, 9, (1 << 26) ** 2 - 1, ((1 << 26) - 1) ** 2, ((1 << 26) - 1) ** 2 - 1, (1 << 52) - 1]
    expected = [int(np.floor(np.sqrt(np.longdouble(v)))) for v in values]
    assert [evaluate(isqrt(r), r=v) for v in values] == expected
    assert evaluate(isqrt(r), r=np.array(values)).tolist() == expected
    import math

    assert [eval(to_python(isqrt(r)), {"math": math}, {"r": v}) for v in values] == expected
    assert eval(to_python(isqrt(r), dialect="numpy"), {"np": np}, {"r": np.array(values)}).tolist() == expected
    library = compiled(tmp_path, [("f", "int64_t r", f"return {to_c(isqrt(symbol('r', 0)))};")])
    library.f.restype = ctypes.c_int64
    more = [*values, (1 << 63) - 1, 3037000499**2, 3037000499**2 - 1]
    assert [library.f(ctypes.c_int64(v)) for v in more] == [math.isqrt(v) for v in more]
    big = symbol("v", 0, (1 << 63) - 1)
    assert evaluate(isqrt(big), v=np.array([3037000499**2, 3037000499**2 - 1, (1 << 63) - 2])).tolist() == [
        3037000499, 3037000498, 3037000499
    ]  # fmt: skip
    with pytest.raises(LayoutError, match="not exact"):
        to_python(isqrt(symbol("w", 0)), dialect="triton")
    with pytest.raises(LayoutError, match="negative"):
        isqrt(-1)


# -- names --------------------------------------------------------------------------------------------------


def test_renamed_text_keeps_precedence_and_captures_nothing():
    a, b = symbols("a b")
    assert to_python(a * 2, rename={"a": "u + v"}) == "(u + v) * 2"
    assert to_c(a * 2, rename={"a": "blockIdx.x"}) == "(int64_t)blockIdx.x * 2"
    assert to_c(a * 2, ctype="int32_t", rename={"a": "p[i + 1]"}) == "(int32_t)p[i + 1] * 2"
    assert to_python(a - b, rename={"a": "b", "b": "a"}) == "b - a"
    with pytest.raises(LayoutError, match="both written 'b'"):
        to_python(a - b, rename={"a": "b"})
    for text in ("0", "a b", "%x"):
        with pytest.raises(LayoutError, match="no name of an argument"):
            to_mlir(a + b, rename={"a": text})
    with pytest.raises(LayoutError, match="'t' is also the text of a symbol"):
        to_python([t + 1, t + 2], ["t", "u"])
    text = to_python([(a + 1) * (a + 1), a + 1], ["u", "v"], cse=True, rename={"a": "f(t0)"})
    assert text.splitlines()[0] == "t0_ = f(t0) + 1"
