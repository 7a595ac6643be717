"""Extension operations against NumPy: every operation, element type, stride and tile; and what refuses them."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.errors import BackendError, DtypeError, GraphError, LayoutError, ScheduleError, VerifyError
from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    Invocation,
    Iteration,
    Operand,
    Tiling,
    as_document,
    contraction_tiles,
    dtype_name,
    elementwise_tiles,
    emit_elementwise,
    emit_reduction,
    from_json,
    interpret,
    numpy_dtype,
    operation,
    problems,
    promote,
    races,
    reorder,
    to_json,
    uninitialised,
    unwritten,
)
from tileweave.teir.ir.dtypes import DTYPES, is_float
from tileweave.teir.ir.extensions import BINARY, IN_PLACE, NEUTRAL, REDUCTIONS, UNARY

FLOATS = [name for name in DTYPES if is_float(name)]
INTEGERS = [name for name in DTYPES if not is_float(name)]
FLOATING = (
    "Floor",
    "Ceil",
    "Trunc",
    "Rint",
    "Exp",
    "Log",
    "Sqrt",
    "Tanh",
    "Sigmoid",
    "Erf",
    "Gelu",
    "Sin",
    "Cos",
    "Div",
    "LogAddExp",
)

OF_BITS = ("And", "Or", "Xor", "FloorDiv", "Remainder", "ShiftLeft", "ShiftRight")


def _bits(x: np.ndarray, y: np.ndarray, of_bits) -> np.ndarray:
    """What a function of single bits makes of small numbers, in two's complement."""
    pairs = [(np.floor(x / 2**k) % 2, np.floor(y / 2**k) % 2) for k in range(4)]
    return sum(of_bits(a, b) * 2**k * (-1 if k == 3 else 1) for k, (a, b) in enumerate(pairs))


def _floor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, 0, np.floor(x / np.where(y == 0, 1, y)))


# each function once more, written differently and in FP64
DEFINITIONS = {
    "Neg": np.negative,
    "Abs": np.absolute,
    "Sign": lambda x: 1.0 * (x > 0) - (x < 0),
    "Floor": lambda x: x // 1,
    "Ceil": lambda x: -(-x // 1),
    "Trunc": lambda x: x - np.fmod(x, 1),
    "Rint": lambda x: np.where(np.abs(x - x // 1 - 0.5) == 0, 2 * ((x / 2 + 0.25) // 1), (x + 0.5) // 1),
    "Exp": lambda x: np.power(math.e, x),
    "Log": lambda x: np.log2(x) * math.log(2),
    "Sqrt": lambda x: np.power(x, 0.5),
    "Tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "Sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "Erf": lambda x: np.vectorize(math.erf)(x) if x.size else x,
    "Gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "Sin": lambda x: np.exp(1j * x).imag,
    "Cos": lambda x: np.exp(1j * x).real,
    "Cast": lambda x: x,
    "Wrap": np.trunc,
    "FloorDiv": _floor,
    "Remainder": lambda x, y: np.where(y == 0, 0, x - y * _floor(x, y)),
    "ShiftLeft": lambda x, y: np.where(y < 0, 0, x * 2.0**y),
    "ShiftRight": lambda x, y: np.where(y < 0, -1.0 * (x < 0), np.floor(x / 2.0**y)),
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": lambda x, y: x / y,
    "LogAddExp": lambda x, y: np.log(np.exp(x) + np.exp(y)),
    "Max": lambda x, y: np.where(x > y, x, y),
    "Min": lambda x, y: np.where(x < y, x, y),
    "And": lambda x, y: _bits(x, y, lambda a, b: a * b),
    "Or": lambda x, y: _bits(x, y, lambda a, b: a + b - a * b),
    "Xor": lambda x, y: _bits(x, y, lambda a, b: (a + b) % 2),
    "Bias": lambda x, held: held + x,
    "Scale": lambda x, held: held * x,
}
REDUCED = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def operand(array: np.ndarray) -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype_name(array.dtype))


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low: float = -3) -> np.ndarray:
    """Values from low to 3, of unsigned types from 0, in an array of permuted, stepped, reversed or broadcast axes."""
    order = rng.permutation(len(shape))
    steps = rng.integers(1, 3, len(shape))
    extent = [shape[k] * steps[k] for k in order]
    values = rng.uniform(low, 3, extent) if is_float(dtype) else rng.integers(0 if dtype[0] == "U" else -3, 4, extent)
    view = values.astype(numpy_dtype(dtype)).transpose(np.argsort(order))
    return view[(*(slice(None, None, -s if rng.random() < 0.3 else s) for s in steps), ...)]


def tilings(rng: np.random.Generator):
    return lambda dims: Tiling(tuple(int(rng.integers(1, dim.extent + 1)) for dim in dims))


def check_equal(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """Integers modulo their range; floating point within a few units in the last place."""
    if not is_float(dtype):
        np.testing.assert_array_equal(found, expected.astype("i8").astype(numpy_dtype(dtype)))
        return
    rtol = {"FP64": 1e-12, "FP32": 1e-5, "FP16": 2e-3, "BF16": 2e-2}[dtype]
    with np.errstate(over="ignore"):
        expected = expected.astype(found.dtype)  # what is too large is infinite
    np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=rtol, atol=rtol)


# ── elementwise ──


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*UNARY, *BINARY, *IN_PLACE]),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(1, 5), max_size=4),
    st.integers(0, 2**32),
)
def test_elementwise_operations_are_numpy(name, dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if name in (*FLOATING, "Wrap") and not is_float(dtype):
        dtype = "FP32"
    if name in OF_BITS and is_float(dtype):
        dtype = "INT32"
    target = "INT16" if name == "Wrap" else dtype
    low = 0.25 if name in ("Log", "Sqrt", "Div") else -3
    letters = "abcd"[: len(shape)]
    inputs, terms = [], []
    for _ in range(operation(name).inputs):
        used = [c for c in letters if rng.random() < 0.8]  # other letters are broadcast
        rng.shuffle(used)
        inputs.append(random_array(rng, tuple(shape[letters.index(c)] for c in used), dtype, low))
        terms.append("".join(used))
    out = random_array(rng, tuple(shape), target)
    equation = ",".join(terms) + "->" + letters
    tiling = tilings(rng) if rng.random() < 0.7 else elementwise_tiles
    program = emit_elementwise(name, [operand(x) for x in inputs], operand(out), equation, tiling=tiling)
    assert problems(program) == () and races(program) is None and uninitialised(program) is None
    assert from_json(to_json(program)) == program
    full = [
        np.einsum(f"{t},{letters}->{letters}", x.astype("f8"), np.ones(shape))
        for t, x in zip(terms, inputs, strict=True)
    ]
    expected = DEFINITIONS[name](*full, *([out.astype("f8")] if name in IN_PLACE else []))
    interpret(program, {**{f"in{k}": x for k, x in enumerate(inputs)}, "out": out}, order="random")
    check_equal(out, expected, target)


def apply(name: str, *inputs: np.ndarray, out: np.ndarray) -> np.ndarray:
    program = emit_elementwise(name, [operand(x) for x in inputs], operand(out))
    interpret(program, {**{f"in{k}": x for k, x in enumerate(inputs)}, "out": out})
    return out


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_at_the_ends_of_the_line(dtype):
    kind = numpy_dtype(dtype)
    x = np.array([-math.inf, -80, -0.0, 0.0, 80, math.inf, math.nan]).astype(kind)

    def of(name: str) -> list[float]:
        return apply(name, x, out=np.zeros_like(x)).astype("f8").tolist()

    same = pytest.approx
    assert of("Sigmoid") == same([0, 0, 0.5, 0.5, 1, 1, math.nan], abs=1e-30, nan_ok=True)
    assert of("Gelu") == same([0, 0, 0, 0, 80, math.inf, math.nan], abs=1e-30, nan_ok=True)
    assert of("Erf") == same([-1, -1, 0, 0, 1, 1, math.nan], nan_ok=True)
    assert of("Tanh") == same([-1, -1, 0, 0, 1, 1, math.nan], nan_ok=True)
    assert of("Exp")[0] == 0 and of("Exp")[5] == math.inf
    assert of("Log")[2:4] == [-math.inf, -math.inf] and math.isnan(of("Log")[0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_and_min_keep_nan(dtype):
    x, y = (np.array(v).astype(numpy_dtype(dtype)) for v in ([math.nan, 1, -math.inf], [1, math.nan, 2]))
    assert np.isnan(apply("Max", x, y, out=np.zeros_like(x)).astype("f8")).tolist() == [True, True, False]
    assert np.isnan(apply("Min", x, y, out=np.zeros_like(x)).astype("f8")).tolist() == [True, True, False]


def test_gelu_keeps_the_digits_of_its_tail():
    x = np.array([-5.0, -10.0, -20.0])
    found = apply("Gelu", x, out=np.zeros(3))
    # x * Q(-x), and Q(z) = exp(-z*z/2) / z / sqrt(2 pi) * (1 - 1/z^2 + 3/z^4 - 15/z^6 + ..)
    z = -x[1:]
    series = 1 - z**-2 + 3 * z**-4 - 15 * z**-6 + 105 * z**-8 - 945 * z**-10
    np.testing.assert_allclose(found[1:], -np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * series, rtol=1e-7)


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_casts_to_integers_cut_clamp_and_zero(source, target):
    values = [0.0, -0.9, 1.5, -2.5, 100.7, 1e30, -1e30, math.inf, -math.inf, math.nan, 127, 128, -128, -129, 2.0**63]
    with np.errstate(over="ignore"):
        x = np.array(values).astype(numpy_dtype(source))
    limits = np.iinfo(numpy_dtype(target))

    def exact(value: float) -> int:
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return int(limits.max if value > 0 else limits.min)
        return max(int(limits.min), min(int(limits.max), int(value)))

    found = apply("Cast", x, out=np.zeros(len(x), numpy_dtype(target)))
    assert found.tolist() == [exact(float(v)) for v in x]


def test_casts_between_integers_wrap_and_to_floating_point_round():
    wide = np.array([300, -129, 2**40 + 5], "i8")
    assert apply("Cast", wide, out=np.zeros(3, "i1")).tolist() == [44, 127, 5]
    assert apply("Cast", np.array([2**53 + 1, 3], "i8"), out=np.zeros(2, "f8")).tolist() == [2.0**53, 3]


def test_narrow_operations_round_once():
    x = np.array([1.0, 3.0]).astype(numpy_dtype("BF16"))
    third = apply("Div", x, x[::-1].copy(), out=np.zeros_like(x)).astype("f8")
    assert third.tolist() == [0.333984375, 3.0]


def test_an_epilogue_takes_a_narrow_bias():
    held = np.ones((2, 3), "f4")
    row = np.array([1, 2, 3]).astype(numpy_dtype("BF16"))
    program = emit_elementwise("Bias", [operand(np.broadcast_to(row, (2, 3)))], operand(held))
    assert program.tensors[-1].role == "inout"
    interpret(program, {"in0": row, "out": held})
    assert held.tolist() == [[2, 3, 4], [2, 3, 4]]


# ── reductions ──


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_reductions_are_numpy(monoid, dtype, shape, accumulate, seed):
    rng = np.random.default_rng(seed)
    letters = "abcd"[: len(shape)]
    kept = [c for c in letters if rng.random() < 0.5][: len(shape) - 1]
    rng.shuffle(kept)
    x = random_array(rng, tuple(shape), dtype)
    targets = [name for name in DTYPES if is_float(name) == is_float(dtype)] if monoid == "sum" else [dtype]
    target = str(rng.choice(targets))
    out = random_array(rng, tuple(shape[letters.index(c)] for c in kept), target)
    tiling = tilings(rng) if rng.random() < 0.7 else contraction_tiles
    equation = f"{letters}->{''.join(kept)}"
    program = emit_reduction(monoid, operand(x), operand(out), equation, accumulate=accumulate, tiling=tiling)
    assert problems(program) == () and races(program) is None and uninitialised(program) is None
    lost = tuple(k for k, c in enumerate(letters) if c not in kept)
    expected = REDUCED[monoid](x.astype("f8" if is_float(dtype) else "i8"), axis=lost)
    left = [c for c in letters if c in kept]
    expected = expected.transpose([left.index(c) for c in kept])
    if accumulate:
        expected = REDUCED[monoid](np.stack([expected, out.astype(expected.dtype)]), axis=0)
    interpret(program, {"in0": x, "out": out}, order="random")
    narrow = max((dtype, target), key=lambda name: -numpy_dtype(name).itemsize)
    if is_float(target):
        check_equal(out, expected, "BF16" if "BF16" in (dtype, target) else narrow)
    else:
        np.testing.assert_array_equal(out, expected.astype(numpy_dtype(target)))


def test_narrow_sums_are_formed_wide():
    ones = np.ones(1000, np.float16) * np.float16(0.1)
    out = np.zeros((), np.float16)
    program = emit_reduction("sum", operand(ones), operand(out), "a->")
    assert [(t.name, t.dtype) for t in program.tensors] == [("in0", "FP16"), ("out", "FP16"), ("acc", "FP32")]
    interpret(program, {"in0": ones, "out": out})
    assert out == np.float16(np.float32(np.float16(0.1)) * 1000)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("monoid", sorted(REDUCTIONS))
def test_neutral_elements_are_neutral(monoid, dtype):
    neutral = operation(NEUTRAL[monoid]).step((), np.zeros(3, numpy_dtype(dtype)))
    values = np.array([-3, 0, 2]).astype(numpy_dtype(dtype))
    found = operation(REDUCTIONS[monoid]).step((values,), neutral)
    np.testing.assert_array_equal(found, values)
    assert found.dtype == values.dtype


def test_a_maximum_of_nan_is_nan():
    x = np.array([[1, math.nan], [2, 3]], "f4")
    out = np.zeros(2, "f4")
    interpret(emit_reduction("max", operand(x), operand(out), "ab->a"), {"in0": x, "out": out})
    np.testing.assert_array_equal(out, [math.nan, 3])


def test_tiles_of_a_reduction_cover_it():
    x = np.arange(433 * 701, dtype="i4").reshape(433, 701)
    out = np.zeros(433, "i4")
    program = emit_reduction("sum", operand(x), operand(out), "ab->a", tiling=contraction_tiles)
    assert len(program.nodes) > 4
    assert unwritten(program, "out", range(0, 4 * 433, 4)) == ()
    interpret(program, {"in0": x, "out": out})
    np.testing.assert_array_equal(out, x.sum(1))


# ── order: steps of one monoid commute, of two they do not ──


def two_steps(first: str, second: str):
    """Per k, two operations into one element, each with a row of x."""
    x = np.arange(6, dtype="i4").reshape(2, 3)
    base = emit_reduction("sum", operand(x), operand(np.zeros((), "i4")), "ab->", accumulate=True)
    axes, (sum_,) = base.axes, base.primitives
    primitives = tuple(
        replace(sum_, id=f"p{k}", operation=name, axes=(("M", ()), ("N", ()), ("K", ()))[: len(operation(name).roles)])
        for k, name in enumerate((first, second))
    )
    assert len(axes) == 1  # a and b are contiguous: split them again
    rows = (Axis("a", 2, (12, 0), (0, 0)), Axis("b", 3, (4, 0), (0, 0)))
    nodes = (Iteration("a", "a", ("b",)), Iteration("b", "b", ("s0", "s1")))
    leaves = (Invocation("s0", "p0"), Invocation("s1", "p1"))
    return replace(base, axes=rows, roots=("a",), nodes=(*nodes, *leaves), primitives=primitives)


def value(program) -> int:
    x, out = np.arange(1, 7, dtype="i4"), np.array([5], "i4")
    interpret(program, {"in0": x, "out": out})
    return int(out[0])


@pytest.mark.parametrize("name", [*REDUCTIONS.values(), *IN_PLACE])
def test_steps_of_one_monoid_change_places(name):
    program = two_steps(name, name)
    assert value(reorder(program, "a")) == value(program)


@pytest.mark.parametrize(
    ("first", "second"), [("Bias", "Scale"), ("ReduceSum", "ReduceMax"), ("Scale", "ReduceMin"), ("ReduceProd", "Bias")]
)
def test_steps_of_two_monoids_do_not(first, second):
    with pytest.raises(ScheduleError, match="conflict"):
        reorder(two_steps(first, second), "a")
    with pytest.raises(ScheduleError, match="conflict"):
        promote(two_steps(first, second), "b", "M")


# ── what is refused ──


A = Operand(strided((4, 4), (4, 1)), "FP32")
INT = Operand(A.layout, "INT32")
BF16 = Operand(A.layout, "BF16")
ROW = Operand(strided((4,), (1,)), "FP32")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: emit_elementwise("Sine", (A,), A), GraphError, "there is no such elementwise operation"),
        (lambda: emit_elementwise("Copy", (A,), A), GraphError, "there is no such elementwise operation"),
        (lambda: emit_elementwise("Add", (A,), A), GraphError, r"1 operand is given for out = in0 \+ in1"),
        (lambda: emit_elementwise("Exp", (INT,), INT), DtypeError, "a function of floating point, not of INT32"),
        (lambda: emit_elementwise("Div", (INT, INT), INT), DtypeError, "a function of floating point"),
        (lambda: emit_elementwise("Add", (A, INT), A), DtypeError, "its operands differ in type: FP32, INT32, FP32"),
        (lambda: emit_elementwise("Bias", (A,), BF16), DtypeError, "does not hold all of its values"),
        (lambda: emit_elementwise("Bias", (Operand(A.layout, "FP16"),), BF16), DtypeError, "does not hold all"),
        (lambda: emit_elementwise("Exp", (A,), A, "ab->a"), GraphError, "does not fit a shape of 2 indices"),
        (
            lambda: emit_elementwise("Exp", (A,), ROW, "ab->a"),
            GraphError,
            "a letter of the source is not in the output",
        ),
        (
            lambda: emit_elementwise("Exp", (A,), Operand(strided((4, 4), (0, 1)), "FP32")),
            LayoutError,
            "elements of the output",
        ),
        (lambda: emit_reduction("mean", A, ROW, "ab->a"), GraphError, "there is no such monoid"),
        (lambda: emit_reduction("sum", A, A, "ab->ab"), GraphError, "no letter is reduced over"),
        (lambda: emit_reduction("sum", A, ROW, "ab->c"), GraphError, "letter 'c' of the output is not in the source"),
        (lambda: emit_reduction("sum", INT, ROW, "ab->a"), DtypeError, "has no agreed meaning"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_extensions_are_not_in_the_document():
    with pytest.raises(VerifyError) as caught:
        as_document(emit_elementwise("Exp", (A,), A))
    assert "primitive.operation-known" in {problem.rule for problem in caught.value.facts["problems"]}


@pytest.mark.parametrize(("name", "why"), [("ReduceSum", "accumulates in BF16"), ("ReduceMax", None)])
def test_rules_of_reductions(name, why):
    monoid = next(m for m, reduction in REDUCTIONS.items() if reduction == name)
    program = emit_reduction(monoid, BF16, Operand(ROW.layout, "FP32" if why else "BF16"), "ab->a")
    narrow = replace(program, tensors=tuple(replace(t, dtype="BF16") for t in program.tensors))
    found = [problem for problem in problems(narrow) if problem.rule == "primitive.dtypes"]
    assert [why in problem.message for problem in found] == ([True] if why else [])
    axes = tuple(replace(axis, strides=(axis.strides[0], 4)) for axis in program.axes)
    assert "contraction.contracted-axes" in {problem.rule for problem in problems(replace(program, axes=axes))}


def test_the_cpu_backend_compiles_an_operation_or_refuses_it_by_name():
    from tileweave.backends import cpu

    refused = []
    for name in (*UNARY, *IN_PLACE, *BINARY):
        kind = "i4" if name in OF_BITS else "f4"
        inputs = [np.full((4, 4), 2, kind)] * operation(name).inputs
        expected = np.ones((4, 4), "i4" if name == "Wrap" else kind)
        program = emit_elementwise(name, [operand(x) for x in inputs], operand(expected))
        out = expected.copy()
        interpret(program, {**{f"in{k}": x for k, x in enumerate(inputs)}, "out": expected})
        try:
            cpu.compile(program, threads=1, cache=False)(*inputs, out)
        except BackendError as error:
            assert f"no code for the operation {name!r}" in str(error)
            refused.append(name)
        else:
            np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert len(set(refused)) == len(refused)


def test_gelu_is_right_in_its_tail():
    """Against the continued fraction of the tail of the normal distribution, in 60 digits."""

    def exact(x: float) -> Decimal:
        a, fraction = -Decimal(x), Decimal(0)
        for k in range(600, 0, -1):
            fraction = k / (a + fraction)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        return -a * (-a * a / 2).exp() / (2 * pi).sqrt() / (a + fraction)

    x = -np.random.default_rng(0).uniform(2.5, 37, 60)
    found = operation("Gelu").step((x,), x)
    with localcontext() as context:
        context.prec = 60
        errors = [abs((Decimal(float(f)) - exact(float(v))) / exact(float(v))) for f, v in zip(found, x, strict=True)]
    assert max(errors) < 2 * np.finfo("f8").eps
