"""Compiled elementwise operations, reductions, pairs and chains: the interpreter's values, functions within bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from random_programs import Place, extents, place, program_axes, schedule
from tests.teir import rows
from tests.teir.test_extensions import OF_BITS, operand, random_array, tilings

from tileweave.backends.cpu import compile
from tileweave.backends.cpu.target.target import describe, host
from tileweave.errors import BackendError
from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Operand,
    Primitive,
    Program,
    TensorSpec,
    contraction_tiles,
    emit_chain,
    emit_contraction,
    emit_elementwise,
    emit_reduction,
    interpret,
    numpy_dtype,
    operation,
    untiled,
)
from tileweave.teir.ir import primitives
from tileweave.teir.ir.dtypes import DTYPES, is_float, width_bytes
from tileweave.teir.ir.extensions import BINARY, IN_PLACE, NEUTRAL, REDUCTIONS, UNARY
from tileweave.teir.ir.text import show

FLOATS = [name for name in DTYPES if is_float(name)]
FUNCTIONS = ("Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Erf", "Gelu", "Sin", "Cos")
ROUNDED = ("Floor", "Ceil", "Trunc", "Rint")


def compiled(name: str, *inputs: np.ndarray, out: np.ndarray, **how) -> np.ndarray:
    program = emit_elementwise(name, [operand(x) for x in inputs], operand(out))
    compile(program, **how)(*inputs, out)
    return out


# ── functions and their errors ──


def wide_gelu(x: np.ndarray) -> np.ndarray:
    """In the type of x, with the error of erfc's argument taken into account."""
    z = -x / np.sqrt(x.dtype.type(2))
    near = z.astype("f8")
    tail = np.frompyfunc(math.erfc, 1, 1)(near).astype("f8").astype(x.dtype)
    tail -= (
        np.where(np.isfinite(z), z - near, 0)
        * np.exp(-(near.astype(x.dtype) ** 2))
        * x.dtype.type(2 / math.sqrt(math.pi))
    )
    return x * tail / 2


EXACT = {
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
    "Erf": lambda x: np.frompyfunc(math.erf, 1, 1)(x.astype("f8")).astype("f8").astype(x.dtype),
    "Gelu": wide_gelu,
    "Sin": np.sin,
    "Cos": np.cos,
}
BOUNDS = {
    "Exp": 1.1,
    "Log": 1.0,
    "Sqrt": 0.5001,
    "Tanh": 1.5,
    "Sigmoid": 2.1,
    "Erf": 3.0,
    "Gelu": 6.5,
    "Sin": 1.0,
    "Cos": 1.0,
}


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of the exact result's last place; NaN only where NaN is right."""
    info = np.finfo(found.dtype)
    size = np.maximum(np.abs(exact), exact.dtype.type(info.smallest_normal))
    unit = np.exp2(np.floor(np.log2(size)) - info.nmant)
    distance = np.abs(found.astype(exact.dtype) - exact) / unit
    beyond = np.abs(exact) > exact.dtype.type(info.max)
    distance[beyond & np.isinf(found) & (np.sign(found) == np.sign(exact))] = 0
    same = (np.isnan(found) & np.isnan(exact)) | (found == exact)
    distance[same] = 0
    distance[np.isnan(found) != np.isnan(exact)] = np.inf
    return distance


def arguments(dtype: str, count: int, name: str) -> np.ndarray:
    """Bit patterns of all kinds, numbers where the function is busy, and the ends of the line."""
    rng = np.random.default_rng(len(name))
    integer = {"FP32": "u4", "FP64": "u8"}[dtype]
    kind = numpy_dtype(dtype)
    bits = rng.integers(0, np.iinfo(integer).max, count, integer, endpoint=True).view(kind)
    busy = rng.uniform(-45, 45, count).astype(kind)
    near = rng.uniform(-1.5, 1.5, count).astype(kind)
    edge = np.log(float(np.finfo(kind).max))
    edges = rng.uniform(edge - 1, edge + 0.1, count).astype(kind)
    low = rng.uniform(-1.05 * edge, -edge, count).astype(kind)
    tiny, huge = np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    special = np.array([0, tiny, np.finfo(kind).smallest_normal, 1, 0.5, 0.55, 0.75, huge, math.inf, math.nan], kind)
    return np.concatenate([bits, busy, near, edges, low, special, -special])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_within_their_bounds(name, dtype):
    x = arguments(dtype, 4000 if name == "Gelu" else 20_000, name)
    if (name, dtype) == ("Gelu", "FP64"):
        x = x[~((x > -39) & (x < -37.4))]  # where math.erfc is subnormal itself
    wide = x.astype("f8" if dtype == "FP32" else np.longdouble)
    exact = np.where(np.isneginf(wide), 0, EXACT[name](wide)) if name == "Gelu" else EXACT[name](wide)
    found = compiled(name, x, out=np.empty_like(x))
    errors = ulps(found, exact)
    worst = int(errors.argmax())
    # in FP64 gelu is within 3.5, and math.erfc within 1.5
    bound = 5.0 if (name, dtype) == ("Gelu", "FP64") else BOUNDS[name] + 0.01
    assert errors[worst] <= bound, (x[worst], found[worst], exact[worst])


@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
def test_sigmoids_whose_last_place_is_half_their_exponentials_keep_within_it(dtype):
    count = np.repeat(np.arange(2, 12), 20_000)
    rng = np.random.default_rng(6)
    x = (rng.uniform(0, 0.5**count) - count * math.log(2)).astype(numpy_dtype(dtype))
    exact = EXACT["Sigmoid"](x.astype("f8" if dtype == "FP32" else np.longdouble))
    assert ulps(compiled("Sigmoid", x, out=np.empty_like(x)), exact).max() <= BOUNDS["Sigmoid"]


@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
@pytest.mark.parametrize("name", ["Sin", "Cos"])
def test_multiples_of_a_right_angle_are_exact_enough(name, dtype):
    kind, rng = numpy_dtype(dtype), np.random.default_rng(5)
    x = (rng.integers(-640_000, 640_000, 20_000) * (math.pi / 2)).astype(kind)
    x = np.concatenate([x, np.nextafter(x, kind.type(math.inf)), rng.uniform(-2e6, 2e6, 20_000).astype(kind)])
    exact = EXACT[name](x.astype("f8" if dtype == "FP32" else np.longdouble))
    assert ulps(compiled(name, x, out=np.empty_like(x)), exact).max() <= BOUNDS[name]
    zeros = np.array([0.0, -0.0], kind)
    assert np.signbit(compiled(name, zeros, out=np.empty_like(zeros))).tolist() == [False, name == "Sin"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors_and_single_elements_agree(name, dtype):
    x = arguments(dtype, 60, name)
    whole = compiled(name, x, out=np.empty_like(x))
    for k in range(0, len(x), 7):
        for count in (1, 2, 3):
            some = x[k : k + count].copy()
            np.testing.assert_array_equal(compiled(name, some, out=np.empty_like(some)), whole[k : k + count])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(not host().has("avx2"), reason="a lesser target needs a greater host")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lesser_processors_compute_as_well(name):
    plain = describe("x86-64", "+sse2", "x86_64", (32768, 524288, 8388608))
    x = arguments("FP32", 300, name)
    found = compiled(name, x, out=np.empty_like(x), target=plain, cache=False)
    exact = EXACT[name](x.astype("f8"))
    exact = np.where(np.isneginf(x), 0, exact) if name == "Gelu" else exact
    assert ulps(found, exact).max() <= BOUNDS[name] + 2  # without a fused multiply-add


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", sorted(DTYPES))
@pytest.mark.parametrize("source", sorted(DTYPES))
def test_casts_are_the_interpreters(source, target):
    values = [0, -0.9, 1.5, -2.5, 100.7, 1e30, -1e30, math.inf, -math.inf, math.nan, 127, 128, -129, 2.0**63, 65520.0]
    if is_float(source):
        x = np.array(values * 3).astype(numpy_dtype(source))
    else:
        x = np.random.default_rng(1).integers(-(2**63), 2**63, 45).astype(numpy_dtype(source))
    program = emit_elementwise("Cast", [operand(x)], operand(np.empty(45, numpy_dtype(target))))
    found, expected = np.empty((2, 45), numpy_dtype(target))
    compile(program)(x, found)
    interpret(program, {"in0": x, "out": expected})
    np.testing.assert_array_equal(found.astype("f8"), expected.astype("f8"))
    assert found.dtype == numpy_dtype(target)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["Max", "Min"])
def test_extremes_keep_nan(name, dtype):
    x, y = (np.array(v * 9).astype(numpy_dtype(dtype)) for v in ([math.nan, 1, -math.inf], [1, math.nan, 2]))
    found = compiled(name, x, y, out=np.empty_like(x)).astype("f8")
    np.testing.assert_array_equal(found, getattr(np, name.lower() + "imum")(x.astype("f8"), y.astype("f8")))


# ── single operations, any strides ──

TOLERANCE = {"FP64": 2.0**-52, "FP32": 2.0**-23, "FP16": 2.0**-10, "BF16": 2.0**-7}


def one_operation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, tolerance, near_zero = str(rng.choice(sorted(DTYPES))), 0.0, 0.0
    shape = [int(rng.choice([1, 2, 3, 5, 8, 16, 17, 33, 40, 70])) for _ in range(rng.integers(0, 4))]
    shape = shape if np.prod(shape, dtype=int) <= 20_000 else shape[:1]
    letters = "abcd"[: len(shape)]
    tiling = tilings(rng) if rng.random() < 0.5 else contraction_tiles if rng.random() < 0.2 else untiled
    if seed % 2 and letters:
        monoid = str(rng.choice(list(REDUCTIONS)))
        kept = [c for c in letters if rng.random() < 0.5][: len(shape) - 1]
        rng.shuffle(kept)
        x = random_array(rng, tuple(shape), dtype)
        if monoid in ("sum", "prod") and is_float(dtype):  # small integers, and ones where products would grow
            x[...] = np.sign(x.astype("f8")) if monoid == "prod" else np.round(x.astype("f8"))
        out = random_array(rng, tuple(shape[letters.index(c)] for c in kept), dtype)
        out[...] = np.round(out.astype("f8"))
        accumulate = bool(rng.random() < 0.4)
        equation = f"{letters}->{''.join(kept)}"
        program = emit_reduction(monoid, operand(x), operand(out), equation, accumulate=accumulate, tiling=tiling)
        inputs = [x]
    else:
        name = str(rng.choice([*UNARY, *BINARY, *IN_PLACE]))
        if name in (*FUNCTIONS, *ROUNDED, "Div", "LogAddExp", "Wrap") and not is_float(dtype):
            dtype = "FP32"
        if name in OF_BITS and is_float(dtype):
            dtype = "INT32"
        target = str(rng.choice(sorted(DTYPES))) if name == "Cast" else "INT16" if name == "Wrap" else dtype
        inputs, terms = [], []
        for _ in range(operation(name).inputs):
            used = [c for c in letters if rng.random() < 0.8]
            rng.shuffle(used)
            inputs.append(random_array(rng, tuple(shape[letters.index(c)] for c in used), dtype))
            terms.append("".join(used))
        out = random_array(rng, tuple(shape), target)
        equation = ",".join(terms) + "->" + letters
        program = emit_elementwise(name, [operand(x) for x in inputs], operand(out), equation, tiling=tiling)
        tolerance = (16 if name == "Gelu" else 4) * TOLERANCE[dtype] if name in (*FUNCTIONS, "LogAddExp") else 0
        near_zero = tolerance if name == "LogAddExp" else 0.0  # where the logarithm is small, its argument is not exact
    arrays = {**{f"in{k}": x for k, x in enumerate(inputs)}, "out": out}
    memory = out
    while memory.base is not None:
        memory = memory.base
    before = memory.copy()
    with np.errstate(all="ignore"):
        interpret(program, arrays)
        expected = memory.copy()
        memory[...] = before
        compile(program, cache=False, threads=1 + seed % 2, merge=seed % 7 > 0).run(arrays)
    wide = "f8" if is_float(str(program.tensors[-1].dtype)) else "i8"
    close: dict[str, Any] = {"rtol": tolerance, "atol": near_zero}
    np.testing.assert_allclose(memory.astype(wide), expected.astype(wide), **close, err_msg=show(program))


@pytest.mark.parametrize("block", range(6))
def test_single_operations_equal_the_interpreter(block):
    for seed in range(25):
        one_operation(1000 * block + seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_single_operations_equal_the_interpreter(block):
    for seed in range(500):
        one_operation(100_000 + 1000 * block + seed)


# ── chains ──


def chain(random: Random) -> tuple[Program, dict[str, np.ndarray]]:
    """Several operations in one nest, on tensors that move along some of the axes; integers, so that sums are exact."""
    axes = {name: min(extent, 33) for name, extent in extents(random, random.randint(0, 4)).items()}
    names = list(axes)
    dtype = random.choice(["FP32", "FP32", "INT32", "FP64", "FP16", "BF16", "INT8", "INT64"])
    wide = {"FP16": "FP32", "BF16": "FP32"}.get(dtype, dtype)
    tensors: list[TensorSpec] = []
    placed: list[Place] = []
    moves: list[list[str]] = []

    def add(name: str, dtype: str, role: str, moving: list[str], like: int | None = None) -> None:
        one = place(random, axes, moving, width_bytes(dtype)) if like is None else placed[like]
        if role == "scratch":
            one = Place({a: abs(s) for a, s in one.strides.items()}, 0, one.size)
        tensors.append(TensorSpec(name, dtype, role, one.size if role == "scratch" else 0))  # type: ignore[arg-type]
        placed.append(one)
        moves.append(moving)

    some = [name for name in names if random.random() < 0.6]
    add("full", dtype, "inout", names)
    add("in0", dtype, "in", names)
    add("in1", dtype, "in", some)
    rows = [f"row{k}" for k in range(random.choice((1, 2, 3, 3)))]
    for name in rows:
        add(name, wide, random.choice(["inout", "inout", "scratch"]), some)
    add("tmp", dtype, random.choice(["scratch", "inout"]), names)
    twin = random.random() < 0.3
    add("twin", dtype, "in", names, 0 if twin else None)
    loops = [name for name in names if random.random() < 0.4]
    random.shuffle(loops)
    consumed = [name for name in names if name not in loops]
    calls, leaves = [], []
    whole = ["full", "tmp"]
    readable = ["full", "in0", "in1", "twin", "tmp"]

    def invoke(
        kind: str, operands: tuple[str, ...], contracted: list[str] = (), *, always: bool = False, **metadata: float
    ) -> None:
        moving = moves[[t.name for t in tensors].index(operands[-1])]
        free = [name for name in consumed if name in moving]
        if random.random() < 0.2:
            random.shuffle(free)
        cut = random.randint(0, len(free))
        roles = [("M", tuple(free[:cut])), ("N", tuple(free[cut:]))]
        if "K" in operation(kind).roles:
            roles.append(("K", tuple(contracted)))
        id = f"p{len(calls)}"
        calls.append(Primitive(id, kind, tuple(roles), operands, tuple(metadata.items())))
        guard = (First(random.choice(loops)),) if loops and not always and random.random() < 0.1 else ()
        leaves.append(Invocation(f"i{len(leaves)}", id, guard))

    invoke("Fill", ("tmp",), always=True, value=2)
    begun = [spec.name for spec in tensors if spec.name in rows and spec.role == "scratch"]
    for name in begun:
        invoke("Zero", (name,), always=True)
    for _ in range(random.randint(2, 7)):
        choice = random.random()
        if choice < 0.35:
            invoke(
                random.choice(["Add", "Sub", "Max", "Min", "Mul"]),
                (random.choice(readable), random.choice(readable), random.choice(whole)),
            )
        elif choice < 0.5:
            invoke("Bias", (random.choice(readable), random.choice(whole)))
        elif choice < 0.6:
            invoke(random.choice(["Copy", "ReLU", "Cast"]), (random.choice(readable), random.choice(whole)))
        elif choice < 0.7:
            invoke(random.choice([NEUTRAL["max"], "Zero", "One"]), (random.choice(whole + rows),))
        else:
            still = [name for name in consumed if name not in some]
            for row in random.sample(rows, random.randint(1, len(rows))):
                monoid = random.choice(["sum", "max", "min"])
                if random.random() < 0.5:
                    invoke(NEUTRAL[monoid], (row,))
                if monoid == "sum" and random.random() < 0.3:
                    invoke("Contraction", (random.choice(readable), random.choice(readable), row), still)
                else:
                    invoke(REDUCTIONS[monoid], (random.choice(readable), row), still)
    written = {primitive.operands[-1] for primitive in calls}
    apart = {name for name in loops if all(name in m for t, m in zip(tensors, moves, strict=True) if t.name in written)}
    roots, nodes = schedule(random, loops, apart, leaves)
    program = Program(tuple(tensors), program_axes(axes, placed, Random(1), []), roots, nodes, tuple(calls))
    rng = np.random.default_rng(random.randrange(2**32))
    arrays = {}
    for spec, one in zip(tensors, placed, strict=True):
        if spec.role != "scratch":
            width = width_bytes(spec.dtype)
            values = rng.integers(-2, 3, one.size // width + 1).astype(numpy_dtype(spec.dtype))
            arrays[spec.name] = values[one.base // width :]
    if twin:
        arrays["twin"] = arrays["full"]
    return program, arrays


def one_chain(seed: int) -> None:
    random = Random(seed)
    program, arrays = chain(random)
    program = replace(program, name=f"seed {seed}")
    threads, merge = random.choice((1, 2)), random.random() < 0.85
    kernel = compile(program, threads=threads, merge=merge, cache=False)
    memories = {name: array.base for name, array in arrays.items()}
    before = {name: memory.copy() for name, memory in memories.items()}
    try:
        with np.errstate(all="ignore"):
            kernel.run(arrays)
    except BackendError as refused:
        assert "share memory" in str(refused)
        return
    found = {name: memory.copy() for name, memory in memories.items()}
    for name, memory in memories.items():
        memory[...] = before[name]
    interpret(program, arrays)
    for name, memory in memories.items():
        message = f"{name}\n{show(program)}\n{kernel.explain()}"
        np.testing.assert_array_equal(found[name].astype("f8"), memory.astype("f8"), err_msg=message)


@pytest.mark.parametrize("block", range(6))
def test_random_chains_equal_the_interpreter(block):
    for seed in range(25):
        one_chain(1000 * block + seed)


@pytest.mark.parametrize(("check", "seed"), [(one_operation, 110356), (one_chain, 103481)], ids=["FP64", "BF16"])
def test_a_last_vector_of_one_element_writes_that_element_alone(check, seed):
    """17 and 33 elements: with AVX-512, LLVM's stores of one lane wrote another value, or two elements."""
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_chains_equal_the_interpreter(block):
    for seed in range(500):
        one_chain(100_000 + 1000 * block + seed)


# ── row programs ──


def definitions(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> dict[str, np.ndarray]:
    """The row programs once more, in FP64 over the last axis."""
    x, scale, shift = x.astype("f8"), scale.astype("f8"), shift.astype("f8")
    e = np.exp(x - x.max(-1, keepdims=True))
    left = x - x.mean(-1, keepdims=True)
    return {
        "softmax": e / e.sum(-1, keepdims=True),
        "log_softmax": x - x.max(-1, keepdims=True) - np.log(e.sum(-1, keepdims=True)),
        "layer_norm": left / np.sqrt(np.square(left).mean(-1, keepdims=True) + 1e-5) * scale + shift,
        "rms_norm": x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * scale,
        "chain": np.maximum(x * scale + shift, 0),
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(6))
def test_row_programs_are_their_definitions(dtype, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.choice([1, 3, 7, 17, 40])) for _ in range(rng.integers(0, 3))) + (
        int(rng.choice([1, 5, 16, 67, 300])),
    )
    x = random_array(rng, shape, dtype)
    scale, shift = (random_array(rng, shape[-1:], dtype) for _ in range(2))
    out = np.empty_like(x) if seed % 2 else random_array(rng, shape, dtype)
    rest = "abc"[: len(shape)]
    programs = {
        "softmax": (rows.softmax(operand(x), operand(out)), (x, out)),
        "log_softmax": (rows.softmax(operand(x), operand(out), log=True), (x, out)),
        "layer_norm": (
            rows.layer_norm(operand(x), operand(out), operand(scale), operand(shift)),
            (x, scale, shift, out),
        ),
        "rms_norm": (rows.rms_norm(operand(x), operand(out), operand(scale)), (x, scale, out)),
        "chain": (
            emit_chain(
                [("Mul", (0, 1)), ("Add", (-1, 2)), ("ReLU", (-2,))],
                [operand(x), operand(scale), operand(shift)],
                operand(out),
                f"{rest},{rest[-1]},{rest[-1]}->{rest}",
            ),
            (x, scale, shift, out),
        ),
    }
    rtol = {"FP64": 1e-12, "FP32": 2e-5, "FP16": 3e-3, "BF16": 3e-2}[dtype]
    for name, expected in definitions(x, scale, shift).items():
        program, arrays = programs[name]
        for threads in (1, 2):
            compile(program, threads=threads)(*arrays)
            np.testing.assert_allclose(out.astype("f8"), expected, rtol=rtol, atol=rtol, err_msg=name)
            out[...] = 0


def test_row_programs_run_in_registers():
    x = operand(np.zeros((512, 1000), "f4"))
    shown = [line for line in compile(rows.softmax(x, x)).explain().splitlines() if "(" in line]
    assert shown == [
        "Fill(step4)  scalar",
        "a_chunk  (parallel)",
        "        ReduceMax(in0, step0)  1000",
        "        Sub; Exp; ReduceSum(in0, step0, step1, out, step3)  1000",
        "        Div(step4, step3, step5)  scalar",
        "        Mul(out, step5, out)  1000",
    ]
    chained = emit_chain([("Add", (0, 0)), ("Tanh", (-1,)), ("Mul", (-1, -2))], [x], x)
    assert compile(chained).explain() == "Add; Tanh; Mul(in0, step0, step1, out)  64 x 8 x 1000"


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_computed_in_place(threads):
    x = np.random.default_rng(2).standard_normal((33, 129), np.float32)
    expected = definitions(x, np.ones(129), np.zeros(129))
    norm = rows.layer_norm(operand(x), operand(x))
    for name, program in (("softmax", rows.softmax(operand(x), operand(x))), ("layer_norm", norm)):
        held = x.copy()
        compile(program, threads=threads)(held, held)
        np.testing.assert_allclose(held, expected[name], rtol=2e-5, atol=2e-5)


def test_large_sums_do_not_depend_on_threads():
    x = np.random.default_rng(3).standard_normal((700, 3001)).astype("f4")
    for equation, size in (("ab->a", 700), ("ab->b", 3001), ("ab->", 0)):
        program = emit_reduction("sum", operand(x), operand(np.empty(size or (), "f4")), equation)
        results = [np.empty(size or (), "f4") for _ in range(3)]
        for threads, out in zip((1, 2, 3), results, strict=True):
            compile(program, threads=threads)(x, out)
        axis = {"ab->a": 1, "ab->b": 0, "ab->": None}[equation]
        np.testing.assert_allclose(results[0], x.sum(axis, dtype="f8"), rtol=1e-4, atol=1e-3)
        assert all(np.array_equal(out, results[0]) for out in results)


# ── contractions that start at a bias ──


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 50, 49), (100, 700, 65), (64, 3, 500)])
def test_contractions_start_at_a_bias(shape, dtype):
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-3, 4, size).astype(dtype) for size in ((m, k), (k, n)))
    for bias_shape in ((1, n), (m, 1), (1, 1), (m, n)):
        bias = np.broadcast_to(rng.integers(-9, 10, bias_shape).astype(dtype), (m, n))
        expected = np.maximum(a.astype("i8") @ b.astype("i8") + bias, 0)
        for order in "CF":
            out = np.full((m, n), 7, dtype, order)
            for tiling in (untiled, contraction_tiles):
                program = emit_contraction(
                    "ik,kj->ij", (operand(a), operand(b)), operand(out), init=operand(bias), relu=True, tiling=tiling
                )
                compile(program, threads=2).run({"in0": a, "in1": b, "out": out, "bias": bias})
                np.testing.assert_array_equal(out, expected)
                out[...] = 7


def test_a_bias_is_no_pass_of_its_own():
    a, row = operand(np.zeros((64, 64), "f4")), operand(np.broadcast_to(np.zeros(64, "f4"), (64, 64)))
    program = emit_contraction("ik,kj->ij", (a, a), a, init=row, relu=True)
    plan = compile(program).explain().splitlines()
    assert plan[0] == "Contraction(in0, in1, out, bias)  64 x 64 x 64  stores  then ReLU"
    assert all(line.startswith("  ") for line in plan[1:])  # how it is blocked, and no further operation
    assert plan[-1] == "  sums start from bias, in registers"


# ── what is refused ──


def test_reductions_are_not_in_place():
    axes = (Axis("k", 5, (0, 0), (0, 0)),)
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "inout"))
    reduce = Primitive("r", "ReduceSum", (("M", ()), ("N", ()), ("K", ("k",))), ("in0", "out"))
    kernel = compile(Program(tensors, axes, ("i",), (Invocation("i", "r"),), (reduce,)))
    x = np.ones(1, "f4")
    with pytest.raises(BackendError, match="share memory and one of them is written"):
        kernel(x, x)


def test_an_operation_without_code_is_named(monkeypatch):
    monkeypatch.setitem(primitives._REGISTRY, "Sine", replace(operation("Exp"), name="Sine"))
    program = Program(
        (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "out")),
        (Axis("n", 2, (4, 4), (0, 0)),),
        ("i",),
        (Invocation("i", "p"),),
        (Primitive("p", "Sine", (("M", ()), ("N", ("n",))), ("in0", "out")),),
    )
    with pytest.raises(BackendError, match="no code for the operation 'Sine'"):
        compile(program)


@pytest.mark.parametrize("dtype", ["FP64", "FP32", "FP16", "BF16"])
def test_gelu_keeps_the_sign_of_zero(dtype):
    x = np.array([-0.0, 0.0, -60.0, -np.inf, np.inf, 1.0] * 7).astype(numpy_dtype(dtype))
    line = Operand(strided((len(x),), (1,)), dtype)
    program = emit_elementwise("Gelu", (line,), line)
    results = [np.empty_like(x) for _ in range(2)]
    interpret(program, {"in0": x, "out": results[0]})
    compile(program)(x, results[1])
    for result in results:
        assert np.array_equal(np.signbit(result.astype("f8")), np.signbit(x.astype("f8")))
