import ctypes
import operator
import re
import subprocess

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import (
    c_prelude,
    equal,
    evaluate,
    isqrt,
    maximum,
    minimum,
    select,
    simplify,
    symbol,
    symbols,
    symbols_of,
    to_c,
    to_mlir,
    to_python,
)
from tileweave.index.evaluate import values_of
from tileweave.index.expr import CONDITIONS, NUMBERS

x, y = symbols("x y")
n = symbol("n", 1)
t = symbol("t", 0, 1024)
s = symbol("s", -40, 40)
d = symbol("d", 1, 9)
e = symbol("e", -8, 0)

FIXED = [
    s // d * 10 + s % d,
    s // e * 10 + s % e,
    s // 8 * 10 + s % 8,
    s // 7 * 10 + s % 7,
    s // -4 + s % -4,
    t // d * 100 + t % d,
    t // 8 % 4 * 4 + t % 8,
    minimum(s, d) * 3 - maximum(s, e),
    (s ^ d) * 2 + (s ^ e),
    select((s < d) & (t > 5) | equal(s, 3), s - (d - t), -(s + d) // 4),
    select(~((s < d) | (s > e)), s, d) + (s - (t - d)),
    s % 8 * 3 + select(s % 8 < d - 5, 1, 0),
    select(s % 4 <= (s ^ 3), (s // 2) % 4, (d & 6) // (s % 3 + 1)),
    t * 0 + 2**33 + s * 2**20,
]


def random_programs(generator, count):
    """Random expressions without zero divisors, with one point per row of their symbols' ranges."""
    out = [(expr, points_of(expr, seed)) for seed, expr in enumerate(FIXED)]
    for seed in range(count):
        source = generator(seed)
        expr = source.number(3)
        points = points_of(expr, seed)
        (value,), defined = values_of((expr,), points)
        if np.all(defined) and len(next(iter(points.values()), [])) and fits(value):
            out.append((expr, points))
    return out


def fits(value):
    return all(abs(int(v)) < 2**40 for v in np.atleast_1d(value))


def points_of(expr, seed):
    random = np.random.default_rng(seed)
    points = {}
    for node in symbols_of((expr,)):
        (low, high, step), _ = values_of(node.args[1:], points)
        drawn = low + (random.random(30) * np.maximum(high - low, 1)).astype(np.int64)
        points[node] = np.where(drawn // step * step >= low, drawn // step * step, drawn // step * step + step)
    inside = np.ones(30, dtype=bool)
    for node, value in points.items():
        (low, high), _ = values_of(node.args[1:3], points)
        inside &= np.broadcast_to((low <= value) & (value < high), 30)
    return {node: np.broadcast_to(value, 30)[inside] for node, value in points.items()}


def rows_of(points):
    names = [str(node) for node in points]
    columns = [value.tolist() for value in points.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def test_python_text_has_the_same_values(generator):
    checked = 0
    for expr, points in random_programs(generator, 50):
        for row in rows_of(points):
            expected = evaluate(expr, row)
            assert eval(to_python(expr), {}, dict(row)) == expected
            space = dict(row)
            exec(to_python([expr, expr * 2], ["one", "two"], cse=True), {}, space)
            assert (space["one"], space["two"]) == (expected, expected * 2)
            checked += 1
        arrays = {str(node): value for node, value in points.items()}
        assert np.array_equal(eval(to_python(expr, dialect="numpy"), {"np": np}, arrays), evaluate(expr, points))
    assert checked > 1000


class Truncating(int):
    """An integer of 32 or 64 bits that wraps, whose // and % round towards zero, as in a Triton kernel."""

    bits = 32

    def __new__(cls, value, bits=None):
        bits = bits or (32 if -(1 << 31) <= value < 1 << 31 else 64)  # as Triton types a literal
        out = super().__new__(cls, (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))
        out.bits = bits
        return out

    def with_(self, other, value):
        return Truncating(value, max(self.bits, getattr(other, "bits", 32)))

    def __floordiv__(self, other):
        return self.with_(other, abs(int(self)) // abs(int(other)) * (1 if (self < 0) == (other < 0) else -1))

    def __mod__(self, other):
        return self.with_(other, int(self) - int(self // other) * int(other))


def wrapped(op):
    return lambda a, b: a.with_(b, op(int(a), int(b)))


for _name in ("add", "sub", "mul", "xor", "and_", "rshift"):
    setattr(Truncating, f"__{_name.rstrip('_')}__", wrapped(getattr(operator, _name)))


class Tl:
    int64 = 64
    minimum = staticmethod(min)
    maximum = staticmethod(max)

    @staticmethod
    def where(condition, a, b):  # both branches are evaluated before this is called
        return a if condition else b

    @staticmethod
    def cast(value, bits):
        return Truncating(value, bits)


def test_triton_text_is_right_where_division_truncates(generator):
    literal = re.compile(r"(?<![\w.])(\d+)")
    for expr, points in random_programs(generator, 50):
        text = literal.sub(r"T(\1)", to_python(expr, dialect="triton"))
        for row in rows_of(points):
            space = {name: Truncating(value, 32) for name, value in row.items()}
            assert eval(text, {"tl": Tl, "T": Truncating}, space) == evaluate(expr, row)


def test_c_text_compiled_by_gcc_has_the_same_values(generator, tmp_path):
    programs = random_programs(generator, 70)
    parts = [c_prelude()]
    for number, (expr, _) in enumerate(programs):
        arguments = ", ".join(f"int64_t {node}" for node in symbols_of((expr,)))
        parts.append(f"int64_t plain{number}({arguments or 'void'}) {{ return {to_c(expr)}; }}")
        shared = to_c([simplify(expr)], ["result"], cse=True)
        parts.append(f"int64_t shared{number}({arguments or 'void'}) {{\n{shared}\nreturn result; }}")
    source, library = tmp_path / "index.c", tmp_path / "index.so"
    source.write_text("\n".join(parts))
    command = ["gcc", "-std=c11", "-O1", "-fwrapv", "-Wno-unused", "-shared", "-fPIC", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    compiled = ctypes.CDLL(str(library))
    checked = 0
    for number, (expr, points) in enumerate(programs):
        for name in ("plain", "shared"):
            function = getattr(compiled, f"{name}{number}")
            function.restype = ctypes.c_int64
            for row in rows_of(points):
                assert function(*(ctypes.c_int64(value) for value in row.values())) == evaluate(expr, row)
                checked += 1
    assert checked > 2000


def run_mlir(text, row, bits=64):
    """The results of the function, each operation by its meaning in the arith dialect (division truncates)."""
    values = {f"%{name}": value for name, value in row.items()}

    def truncated(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    binary = {
        "addi": operator.add, "subi": operator.sub, "muli": operator.mul, "xori": operator.xor,
        "minsi": min, "maxsi": max, "andi": operator.and_, "ori": operator.or_,
        "divsi": truncated, "remsi": lambda a, b: a - truncated(a, b) * b, "floordivsi": operator.floordiv,
        "divui": lambda a, b: a % 2**bits // (b % 2**bits), "remui": lambda a, b: a % 2**bits % (b % 2**bits),
        "shrsi": operator.rshift,
    }  # fmt: skip
    compare = {"slt": operator.lt, "sle": operator.le, "eq": operator.eq, "ne": operator.ne}
    results = None
    for line in text.splitlines()[1:-1]:
        line = line.strip()
        if line.startswith("return"):
            results = [values[name] for name in re.findall(r"%\w+", line)]
            continue
        target, op, rest = re.fullmatch(r"(%\w+) = arith\.(\w+) (.*?)(?: : \w+)?", line).groups()
        operands = [values[name] for name in re.findall(r"%\w+", rest)]
        if op == "constant":
            values[target] = {"true": True, "false": False}.get(rest, rest)
            values[target] = int(values[target]) if isinstance(values[target], str) else values[target]
        elif op == "cmpi":
            values[target] = compare[rest.split(",")[0]](*operands)
        elif op == "select":
            values[target] = operands[1] if operands[0] else operands[2]
        else:
            values[target] = binary[op](*operands)
    return results


def test_mlir_text_has_the_same_values(generator):
    checked = 0
    for expr, points in random_programs(generator, 60):
        text = to_mlir([expr, expr + 1])
        names = {str(node) for node in symbols_of((expr,))}
        for row in rows_of(points)[:10]:
            expected = evaluate(expr, row)
            assert run_mlir(text, {name: row[name] for name in names}) == [expected, expected + 1]
            checked += 1
    assert checked > 400


def test_mlir_golden(golden):
    row, col = symbol("row", 0, 32), symbol("col", 0, 32)
    swizzled = simplify((row * 32 + col) ^ ((row % 8) * 4))
    parts = [
        to_mlir([t // 32, t % 32, t // 32 * 40 + t % 32], function="split"),
        to_mlir(swizzled, function="swizzled", type="i32"),
        to_mlir(
            [s // 8, s % 8, s % e, select((s < d) & ~((s < 2) | (t < 3)), minimum(s, d), maximum(s, t))],
            function="signed",
        ),
    ]
    golden("index_mlir.txt", "\n".join(parts) + "\n")
    assert parts[0].count("arith.divui") == 1


def test_c_and_triton_golden(golden):
    exprs = [t // 32 * 40 + t % 32, s // 8 + s % 8, s // d - s % d, minimum(s, t) ^ 5, select(s < d, s % 7, t // d)]
    lines = ["// C", c_prelude(cuda=True)]
    lines += [to_c(exprs, ["a", "b", "c", "f", "g"], cse=True), "", "# Triton"]
    lines += [to_python(exprs, ["a", "b", "c", "f", "g"], dialect="triton"), "", "# Python"]
    lines += [to_python(exprs, ["a", "b", "c", "f", "g"], cse=True), ""]
    golden("index_text.txt", "\n".join(lines))
    assert "tw_floordiv" in lines[2]


def test_plain_division_only_where_it_is_proved():
    k, BK = symbol("k", 0, n), symbol("BK", 1)
    assert to_c((k * BK + 3) // BK) == "(k * BK + 3) / BK"
    assert to_c((n - k) % BK) == "(n - k) % BK"
    assert to_c((k - n) % BK) == "tw_floormod(k - n, BK)"
    assert to_c((k - n) // 16) == "(k - n) >> 4" and to_c((k - n) % 16 + 1) == "((k - n) & 15) + 1"
    assert to_python((k - n) // BK, dialect="triton") == "((k - n) - ((k - n) % BK + BK) % BK) // BK"


def test_temporaries_and_names():
    q = x // n
    text = to_python([q, q * q + x % n, symbol("t0") + q * q], ["a", "b", "c"], cse=True)
    assert text == "t0_ = x // n\nt1 = t0_ * t0_\na = t0_\nb = t1 + x % n\nc = t0 + t1"
    assert to_c(x * 2, rename={"x": "blockIdx.x"}) == "(int64_t)blockIdx.x * 2"
    assert to_c([x * 2, x < 3], ["a", "b"]) == "const int64_t a = x * 2;\nconst int b = x < 3;"
    assert to_python(x, rename={"x": "tl.program_id(0)"}) == "tl.program_id(0)"
    assert to_mlir(x, rename={"x": "arg0"}).splitlines()[0] == "func.func @index(%arg0: index) -> index {"
    assert to_c(7) == "7" and to_python(equal(0, 0)) == "True" and to_c(equal(0, 0)) == "1"


def test_refusals():
    deep = x
    for _ in range(60):
        deep = deep * deep + 1
    cases = [
        (lambda: to_python(deep), "the text would hold"),
        (lambda: to_c([x, y]), "2 expressions without names"),
        (lambda: to_c([x, y], ["a", "a"]), "names"),
        (lambda: to_c([x], ["a b"]), "names"),
        (lambda: to_c(x, ctype="float"), "unknown type 'float'"),
        (lambda: to_mlir(x, type="f32"), "unknown type 'f32'"),
        (lambda: to_mlir([]), "no expressions"),
        (lambda: to_python(x, dialect="julia"), "unknown dialect 'julia'"),
        (lambda: to_c(symbol("i", 0, 2**20) * 2**12, ctype="int32_t"), "a part does not fit int32_t"),
        (lambda: to_c(symbol("i", 0, 2**62) * 4), "a part does not fit int64_t"),
        (lambda: to_mlir(symbol("i", 0, 2**31 + 1) + 0, type="i32"), "a part does not fit"),
        (lambda: to_c(symbol("a") + symbol("a", 0, 3)), "two different symbols"),
        (lambda: to_c(1.5), "is not an integer"),
    ]
    for use, problem in cases:
        with pytest.raises(LayoutError, match=re.escape(problem)):
            use()
    assert to_python([deep], ["r"], cse=True)


@pytest.mark.parametrize(
    ("printer", "name"),
    [(to_c, "int"), (to_c, "tw_min"), (to_c, "template"), (to_python, "min"), (to_python, "max")],
)
def test_a_symbol_that_would_hide_a_word_of_the_language_is_refused(printer, name):
    expr = minimum(symbol(name), x)
    with pytest.raises(LayoutError, match=f"'{name}' has a meaning"):
        printer(expr)
    with pytest.raises(LayoutError, match=f"'{name}' has a meaning"):
        printer([x + 1], [name])
    assert "renamed" in printer(expr, rename={name: "renamed"})
    assert to_python(expr, dialect="triton") == f"tl.minimum({name}, x)"


def test_every_op_prints_in_every_language():
    r = symbol("r", 0, 1000)
    samples = {
        "const": x + 3, "sym": x, "add": x + y, "sub": x - y, "mul": x * y, "floordiv": x // y, "mod": x % y,
        "min": minimum(x, y), "max": maximum(x, y), "xor": x ^ y, "select": select(x < y, x, y), "isqrt": isqrt(r),
        "true": equal(0, 0),
        "lt": x < y, "le": x <= y, "eq": equal(x, y), "ne": ~equal(x, y), "and": (x < y) & (x < 3),
        "or": (x < y) | (x < 3), "not": ~((x < y) & (x < 3)),
    }  # fmt: skip
    assert set(samples) == set(NUMBERS) | set(CONDITIONS)
    for expr in samples.values():
        for dialect in ("python", "numpy", "triton"):
            assert to_python(expr, dialect=dialect)
        assert to_c(expr) and to_mlir(expr) and str(expr) and repr(expr)
