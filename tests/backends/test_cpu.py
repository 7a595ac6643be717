"""Compiled programs equal NumPy: every way to pack, every element type, every thread count, lesser processors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tileweave.backends.cpu import Target, compile, host
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import describe
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction, emit_copy, emit_relu
from tileweave.teir.analysis.interpret import interpret
from tileweave.teir.ir import examples
from tileweave.teir.ir.dtypes import DTYPES, numpy_dtype
from tileweave.teir.ir.program import Axis, First, Invocation, Iteration, Last, Primitive, Program, TensorSpec
from tileweave.teir.merged.form import Loop
from tileweave.teir.merged.merge import merged


def operand(array: np.ndarray, dtype: str) -> Operand:
    steps = tuple(step // array.itemsize for step in array.strides)
    return Operand(strided(array.shape, steps), dtype)


def whole_numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(numpy_dtype(dtype))


# Each pattern reaches another way to pack or to store; sizes divide vectors, or do not, or are tiny.
EQUATIONS = [
    ("ik,kj->ij", {"i": 70, "j": 100, "k": 50}),
    ("ik,jk->ij", {"i": 70, "j": 100, "k": 51}),
    ("ki,kj->ij", {"i": 33, "j": 130, "k": 90}),
    ("ki,jk->ji", {"i": 70, "j": 20, "k": 30}),
    ("ik,kj->ij", {"i": 5, "j": 900, "k": 500}),
    ("ik,kj->ij", {"i": 900, "j": 3, "k": 40}),
    ("ik,k->i", {"i": 77, "k": 201}),
    ("k,k->", {"k": 1000}),
    ("i,j->ij", {"i": 40, "j": 70}),
    ("bik,bkj->bij", {"b": 5, "i": 9, "j": 20, "k": 31}),
    ("bi,bi->b", {"b": 50, "i": 21}),
    ("bi,bi->bi", {"b": 7, "i": 35}),
    ("adb,cd->cba", {"a": 32, "b": 24, "c": 9, "d": 20}),
    ("adb,cd->cba", {"a": 48, "b": 16, "c": 30, "d": 400}),
    ("adb,cd->cba", {"a": 20, "b": 24, "c": 9, "d": 20}),
    ("aebd,ce->dcba", {"a": 32, "b": 6, "c": 12, "d": 12, "e": 30}),
    ("aebd,ce->dcba", {"a": 16, "b": 3, "c": 12, "d": 36, "e": 33}),
    ("acd,db->cba", {"a": 96, "b": 24, "c": 5, "d": 37}),
    ("dabe,ec->dcba", {"a": 32, "b": 7, "c": 24, "d": 5, "e": 18}),
    ("be,dcea->dcba", {"a": 52, "b": 14, "c": 6, "d": 5, "e": 17}),
    ("dac,bcd->ba", {"a": 40, "b": 30, "c": 20, "d": 9}),
    ("dac,bcd->ba", {"a": 80, "b": 75, "c": 48, "d": 96}),
    ("fbea,ecfd->dcba", {"a": 12, "b": 13, "c": 10, "d": 9, "e": 6, "f": 7}),
    ("aged,cbfg->fedcba", {"a": 6, "b": 5, "c": 4, "d": 7, "e": 5, "f": 4, "g": 8}),
    ("bgfd,caeg->fedcba", {"a": 24, "b": 5, "c": 4, "d": 3, "e": 5, "f": 4, "g": 8}),
    ("bae,ced->dcba", {"a": 8, "b": 17, "c": 8, "d": 32, "e": 8}),
    ("trus,pqtu->pqrs", {"p": 4, "q": 5, "r": 3, "s": 19, "t": 2, "u": 11}),
]


def run_einsum(
    equation: str, sizes: dict[str, int], dtype: str, *, target: Target | None = None, threads: int = 2
) -> None:
    left, rest = equation.split(",")
    right, out = rest.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right, out)]
    a, b = (whole_numbers(shape, dtype, k) for k, shape in enumerate(shapes[:2]))
    c = np.full(shapes[2], 77).astype(numpy_dtype(dtype))
    program = emit_contraction(equation, (operand(a, dtype), operand(b, dtype)), operand(c, dtype))
    compile(program, threads=threads, target=target, cache=False)(a, b, c)
    assert np.array_equal(c, np.einsum(equation, a, b)), equation


@pytest.mark.parametrize(("equation", "sizes"), EQUATIONS)
def test_einsums_equal_numpy(equation: str, sizes: dict[str, int]) -> None:
    run_einsum(equation, sizes, "FP32")


@pytest.mark.parametrize("dtype", ["FP64", "INT64", "INT32"])
def test_other_types_equal_numpy(dtype: str) -> None:
    for equation, sizes in EQUATIONS[::4]:
        run_einsum(equation, sizes, dtype)


# Large enough that columns sweep by rows that stay packed.
LARGER = [
    ("adb,cd->cba", {"a": 64, "b": 48, "c": 24, "d": 96}),  # dense in another column axis: stood up
    ("adb,cd->cba", {"a": 64, "b": 36, "c": 66, "d": 48}),  # the same with many rows: packed
    ("acd,db->cba", {"a": 40, "b": 20, "c": 49, "d": 150}),  # dense in K
    ("be,dcea->dcba", {"a": 52, "b": 30, "c": 14, "d": 9, "e": 60}),  # dense in the same axis, vectors cross it
    ("bgfd,caeg->fedcba", {"a": 24, "b": 20, "c": 8, "d": 9, "e": 5, "f": 4, "g": 40}),  # short runs on both sides
    ("ik,kj->ij", {"i": 170, "j": 900, "k": 333}),  # several blocks of K
]


@pytest.mark.parametrize(("equation", "sizes"), LARGER)
@pytest.mark.parametrize("threads", [1, 2])
def test_columns_that_sweep_by_the_rows_equal_numpy(equation: str, sizes: dict[str, int], threads: int) -> None:
    run_einsum(equation, sizes, "FP32", threads=threads)


def run_placed(
    equation: str,
    sizes: dict[str, int],
    dtype: str,
    shift: int,
    *,
    target: Target,
    threads: int,
    relu: bool = False,
    settings: Settings = DEFAULT,
) -> str:
    """As `run_einsum`, the output beginning so many elements after a line, nothing beside it touched; the choices."""
    left, rest = equation.split(",")
    right, out = rest.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right, out)]
    a, b = (whole_numbers(shape, dtype, k) for k, shape in enumerate(shapes[:2]))
    memory = np.full(int(np.prod(shapes[2])) + 32, 77, numpy_dtype(dtype))
    start = -memory.ctypes.data % 64 // memory.itemsize + shift
    c = memory[start : start + int(np.prod(shapes[2]))].reshape(shapes[2])
    program = emit_contraction(equation, (operand(a, dtype), operand(b, dtype)), operand(c, dtype), relu=relu)
    kernel = compile(program, threads=threads, target=target, cache=False, settings=settings)
    kernel(a, b, c)
    expected = np.einsum(equation, a, b)
    assert np.array_equal(c, np.maximum(expected, 0) if relu else expected), equation
    assert np.all(memory[:start] == 77) and np.all(memory[start + c.size :] == 77)
    return kernel.explain()


@pytest.mark.parametrize("columns", [63, 64, 65, 80, 96, 128, 130, 176])
def test_columns_end_anywhere_and_are_stored_and_added_to(columns: int) -> None:
    sizes = {"i": 13, "j": columns, "k": 70}
    for settings in (Settings(kc=32, pack_b=True), Settings(kc=32, pack_a=False), Settings()):
        for relu in (False, True):
            run_placed("ik,kj->ij", sizes, "FP32", columns % 2, target=host(), threads=1, relu=relu, settings=settings)


@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(97, 200, 113), (130, 530, 200), (211, 1100, 97)])
def test_rows_of_moderate_products_are_read_where_they_lie_and_columns_are_packed_for_many(
    sizes: tuple[int, int, int], threads: int, dtype: str
) -> None:
    large = replace(host(), l2_bytes=1 << 20)
    named = dict(zip("ikj", sizes, strict=True))
    how = run_placed("ik,kj->ij", named, dtype, 1, target=large, threads=threads, relu=threads == 1)
    assert ("A = in0 read in place; B = in1 packed" in how) or host().vector_bytes < 32
    few = run_placed("ik,kj->ij", named | {"i": 40, "k": 60}, dtype, 1, target=large, threads=threads)
    assert "B = in1 read in place" in few
    named |= {"k": 1024}  # lines that compete for too few ways are packed
    how = run_placed("ik,kj->ij", named, dtype, 0, target=large, threads=threads)
    assert "packed" in how or int(re.findall(r"mr (\d+)", how)[0]) <= large.l1_bytes // 4096


SMALL_CACHES = replace(host(), l2_bytes=1 << 17, l3_bytes=1 << 18)
"""A processor for which moderate outputs are large."""


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("ca,bc->ba", {"a": 600, "b": 43, "c": 300}),  # rows dense in K
        ("ac,cb->ba", {"a": 530, "b": 90, "c": 230}),  # rows dense in their own axis, columns in K
        ("dca,cbd->ba", {"a": 300, "b": 61, "c": 12, "d": 34}),  # rows dense in one of two axes of K
        ("dac,bcd->ba", {"a": 290, "b": 61, "c": 32, "d": 48}),  # both sides dense, each in another axis of K
        ("ca,bc->ba", {"a": 290, "b": 3, "c": 300}),  # a single row panel
    ],
)
@pytest.mark.parametrize("settings", [DEFAULT, Settings(mc=20, nc=70), Settings(nc=1000)])
def test_rows_of_the_next_block_are_packed_ahead(equation: str, sizes: dict[str, int], settings: Settings) -> None:
    settings = replace(settings, kc=64, pack_a=True, pack_b=True, share_a=True, resident="a")
    large = replace(SMALL_CACHES, l2_bytes=1 << 22)  # for which no lines are asked for
    for threads, target in ((1, SMALL_CACHES), (2, SMALL_CACHES), (3, SMALL_CACHES), (2, large)):
        how = run_placed(
            equation, sizes, "FP32", 0, target=target, threads=threads, relu=threads == 2, settings=settings
        )
        assert (
            ("the next block of k while" in how and "block of A stays" in how)
            or target is large
            or host().vector_bytes != 64
        )


def test_threads_give_the_same_bits_where_few_column_panels_are_shared() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((48, 384, 32), np.float32), rng.standard_normal((60, 32, 48), np.float32)
    results = []
    for threads in (1, 2, 3, 4, 5):
        c = np.empty((60, 384), np.float32)
        program = emit_contraction("dac,bcd->ba", (operand(a, "FP32"), operand(b, "FP32")), operand(c, "FP32"))
        compile(program, threads=threads, target=SMALL_CACHES, cache=False)(a, b, c)
        results.append(c)
    assert all(np.array_equal(results[0], c) for c in results[1:])
    assert np.allclose(results[0], np.einsum("dac,bcd->ba", a, b, optimize=True), atol=1e-3)


@pytest.mark.parametrize("a", [24, 12, 8, 4, 3])
@pytest.mark.parametrize(("threads", "shift"), [(1, 0), (2, 1)])
def test_outputs_in_short_runs_are_staged(a: int, threads: int, shift: int) -> None:
    sizes = {"a": a, "b": 16, "c": 96 // a + (a == 24), "d": 25, "e": 5, "f": 4, "g": 40}
    how = run_placed("bgfd,caeg->fedcba", sizes, "FP32", shift, target=SMALL_CACHES, threads=threads, relu=a == 8)
    assert "staged" in how or host().vector_bytes != 64


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("adb,cd->cba", {"a": 48, "b": 48, "c": 24, "d": 96}),
        ("adb,cd->cba", {"a": 64, "b": 32, "c": 23, "d": 121}),  # two vectors, rows that are no whole tile
        ("aebd,ce->dcba", {"a": 16, "b": 5, "c": 50, "d": 80, "e": 30}),  # one vector, more column axes
        ("adeb,dce->cba", {"a": 48, "b": 48, "c": 24, "d": 12, "e": 9}),  # two axes of K
        ("adb,c->cdba", {"a": 96, "b": 48, "c": 40, "d": 28}),  # no K
    ],
)
@pytest.mark.parametrize(("dtype", "threads", "shift"), [("FP32", 1, 0), ("FP32", 2, 1), ("FP64", 2, 0)])
def test_panels_along_the_operand_are_stood_up(
    equation: str, sizes: dict[str, int], dtype: str, threads: int, shift: int
) -> None:
    target = replace(SMALL_CACHES, l2_bytes=1 << 20)
    how = run_placed(equation, sizes, dtype, shift, target=target, threads=threads, relu=shift > 0)
    assert "transposed in a buffer" in how or "adb,c->" in equation or host().vector_bytes != 64


def lesser(cpu: str, without: tuple[str, ...]) -> Target:
    """This processor's family with fewer features."""
    off = [f.replace("+", "-") if any(f[1:].startswith(w) for w in without) else f for f in host().features.split(",")]
    return describe(cpu, ",".join(off), "x86_64", (32768, 262144, 4 << 20))


@pytest.mark.skipif(not host().has("avx2"), reason="needs a processor whose lesser kin are known: x86-64 with AVX2")
@pytest.mark.parametrize(
    ("cpu", "without", "bytes"), [("haswell", ("avx512",), 32), ("x86-64", ("avx", "fma", "f16c", "sse4", "ssse3"), 16)]
)
def test_lesser_processors_compute_the_same(cpu: str, without: tuple[str, ...], bytes: int) -> None:
    target = lesser(cpu, without)
    assert target.vector_bytes == bytes
    for equation, sizes in EQUATIONS[1::3]:
        run_einsum(equation, sizes, "FP32", target=target)
    run_einsum(*EQUATIONS[1], "FP64", target=target)
    target = replace(target, l2_bytes=1 << 20, l3_bytes=1 << 18)
    for equation, sizes in LARGER:
        run_einsum(equation, sizes, "FP32", target=target)
    check_conversions(target)


@pytest.mark.slow
def test_large_outputs_of_contractions_are_streamed_and_right() -> None:
    for equation, sizes in (
        ("aebd,ce->dcba", {"a": 96, "b": 60, "c": 24, "d": 72, "e": 20}),
        ("be,dcea->dcba", {"a": 64, "b": 84, "c": 50, "d": 40, "e": 12}),
        ("ik,kj->ij", {"i": 3000, "j": 3200, "k": 30}),
    ):
        run_einsum(equation, sizes, "FP32")


@pytest.mark.parametrize("sizes", [(300, 700, 500), (64, 1024, 64), (32, 512, 32), (90, 400, 100), (33, 2000, 70)])
def test_threads_give_the_same_bits(sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    m, k, n = sizes
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    results = []
    for threads in (1, 2, 3, 4):
        c = np.empty((m, n), np.float32)
        program = emit_contraction("ik,kj->ij", (operand(a, "FP32"), operand(b, "FP32")), operand(c, "FP32"))
        compile(program, threads=threads, cache=False)(a, b, c)
        results.append(c)
    assert all(np.array_equal(results[0], c) for c in results[1:])
    assert np.allclose(results[0], a @ b, atol=1e-3)


def test_strided_views_are_reached_through_their_base() -> None:
    store = whole_numbers((40, 90), "FP32")
    a, b = store[::-2, 80:20:-3], whole_numbers((60, 20), "FP32", 1).T[:, ::3]
    out = np.zeros((50, 40), np.float32)
    c = out[5:25, ::2]
    program = emit_contraction("ik,jk->ij", (operand(a, "FP32"), operand(b, "FP32")), operand(c, "FP32"))
    compile(program, cache=False)(a, b, c)
    assert np.array_equal(c, a @ b.T)
    c[:] = 0
    assert not out.any()


# ---- elementwise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (16399,), (70, 90), (129, 513), (33, 20, 65), (9, 30, 17, 18)])
@pytest.mark.parametrize("dtype", ["FP32", "FP64", "INT8"])
def test_permutations_equal_numpy(shape: tuple[int, ...], dtype: str) -> None:
    letters = "abcd"[: len(shape)]
    source = np.arange(np.prod(shape)).reshape(shape).astype(numpy_dtype(dtype))
    for order in {tuple(range(len(shape)))[::-1], tuple(range(1, len(shape))) + (0,), tuple(range(len(shape)))}:
        for sign in (1, -1):
            view = source[..., ::sign]
            out = np.zeros([shape[k] for k in order], source.dtype)
            equation = f"{letters}->{''.join(letters[k] for k in order)}"
            program = emit_copy(operand(view, dtype), operand(out, dtype), equation)
            compile(program, threads=2, cache=False)(view, out)
            assert np.array_equal(out, view.transpose(order))


def check_permutation(shape: tuple[int, ...], order: tuple[int, ...], offset: int, dtype: str = "FP32") -> None:
    """An output that begins so many elements after a cache line."""
    letters = "abcde"[: len(shape)]
    count, kind = int(np.prod(shape)), numpy_dtype(dtype)
    source = np.arange(count).astype(kind).reshape(shape)
    store = np.zeros(count + 128, kind)
    begin = -store.ctypes.data % 64 // kind.itemsize + offset
    out = store[begin : begin + count].reshape([shape[k] for k in order])
    equation = f"{letters}->{''.join(letters[k] for k in order)}"
    program = emit_copy(operand(source, dtype), operand(out, dtype), equation)
    compile(program, threads=2, cache=False)(source, out)
    assert np.array_equal(out, source.transpose(order))
    assert not store[:begin].any()
    assert not store[begin + count :].any()


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((602, 1205), (1, 0)),
        ((640, 1040), (1, 0)),
        ((50, 41, 22, 31), (3, 2, 1, 0)),
        ((3, 5, 30, 40, 64), (4, 1, 3, 2, 0)),
    ],
)
def test_permutations_beyond_the_caches(shape: tuple[int, ...], order: tuple[int, ...], offset: int) -> None:
    check_permutation(shape, order, offset)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((4096, 3000), (1, 0)),
        ((224, 296, 296), (2, 1, 0)),
        ((12, 1001, 1504), (0, 2, 1)),
        ((30, 30, 20, 30, 24), (4, 3, 2, 1, 0)),
    ],
)
def test_large_outputs_are_streamed_and_right(shape: tuple[int, ...], order: tuple[int, ...], offset: int) -> None:
    check_permutation(shape, order, offset)
    check_permutation(shape, order, offset, "FP64")


SPECIAL = [0.0, -0.0, 1.0, -1.5, 1 / 3, 65504.0, 65519.99, 65520.0, 1e-8, 6e-8, 3.0e-5, 6.1e-5, 2049.0, 2051.0]
SPECIAL += [1e30, -1e39, 1e300, float("inf"), -float("inf"), float("nan"), 1.00390625, 1.01171875, 5e-324, 1e-40]


def check_conversions(target: Target) -> None:
    for source, to in product(DTYPES, DTYPES):
        whole = to.lstrip("U").startswith("INT")
        if whole and source in ("FP64", "FP32", "FP16", "BF16"):
            continue
        with np.errstate(all="ignore"):
            if source.lstrip("U").startswith("INT"):
                limits = np.iinfo(numpy_dtype(source))
                wanted = [0, 1, limits.max - 1, 127, limits.max, limits.min, limits.min // 2, limits.max // 3]
                values = np.array(wanted * 3, numpy_dtype(source))
            else:
                values = np.array(SPECIAL).astype(numpy_dtype(source))
            expected = values.astype(numpy_dtype(to))
        out = np.zeros(len(values), numpy_dtype(to))
        program = emit_copy(operand(values, source), operand(out, to))
        compile(program, target=target, cache=False)(values, out)
        same = (out == expected) | ((out != out) & (expected != expected))
        assert same.all(), (source, to, values[~same], out[~same], expected[~same])


def test_conversions_equal_numpy() -> None:
    check_conversions(host())


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_relu_keeps_nan(dtype: str) -> None:
    floating = dtype in ("FP64", "FP32", "FP16", "BF16")
    values = np.array([1, -1, 0, 3, -5] * 9).astype(numpy_dtype(dtype))
    if floating:
        values[::7] = np.nan
        values[1] = -np.inf
        values[3] = np.copysign(np.float32(np.nan), np.float32(-1))
    out = np.ones_like(values)
    program = emit_relu(operand(values, dtype), operand(out, dtype))
    compile(program, cache=False)(values, out)
    expected = np.maximum(values, np.zeros_like(values))
    assert np.array_equal(out.astype("f8"), expected.astype("f8"), equal_nan=True)


def test_nan_and_infinity_stay_in_their_elements() -> None:
    a, b = np.ones((20, 30), np.float32), np.ones((30, 40), np.float32)
    a[3, 4], b[5, 6] = np.nan, np.inf
    c = np.full((20, 40), np.nan, np.float32)
    program = emit_contraction("ik,kj->ij", (operand(a, "FP32"), operand(b, "FP32")), operand(c, "FP32"))
    compile(program, cache=False)(a, b, c)
    assert np.array_equal(c, a @ b, equal_nan=True)


def test_integer_sums_wrap() -> None:
    for dtype in ("INT8", "INT32", "INT64"):
        kind = numpy_dtype(dtype)
        a = np.full((20, 30), np.iinfo(kind).max, kind)
        b = np.full((30, 40), 3, kind)
        c = np.empty((20, 40), kind)
        program = emit_contraction("ik,kj->ij", (operand(a, dtype), operand(b, dtype)), operand(c, dtype))
        compile(program, cache=False)(a, b, c)
        assert np.array_equal(c, a @ b)


# ---- plans ------------------------------------------------------------------------------------------------------


def scheduled(order: str, *, parallel: str = "", relu: bool = False) -> Program:
    """out[m, n] = sum over k, all axes iterated in this order, with guards on k."""
    axes = (
        Axis("m", 6, (40, 0, 36), (0, 0, 0)),
        Axis("n", 9, (0, 4, 4), (0, 0, 0)),
        Axis("k", 10, (4, 36, 0), (0,) * 3),
    )
    tensors = (TensorSpec("in0", "INT32", "in"), TensorSpec("in1", "INT32", "in"), TensorSpec("out", "INT32", "out"))
    primitives = [
        Primitive("z", "Zero", (("M", ()), ("N", ())), ("out",)),
        Primitive("c", "Contraction", (("M", ()), ("N", ()), ("K", ())), ("in0", "in1", "out")),
        Primitive("r", "ReLU", (("M", ()), ("N", ())), ("out", "out")),
    ]
    leaves = [Invocation("iz", "z", (First("k"),)), Invocation("ic", "c")]
    if relu:
        leaves.append(Invocation("ir", "r", (Last("k"),)))
    nodes: list[Iteration | Invocation] = list(leaves)
    children = tuple(leaf.id for leaf in leaves)
    for name in reversed(order):
        nodes.append(Iteration(f"n{name}", name, children, "parallel" if name in parallel else "sequential"))
        children = (f"n{name}",)
    return Program(tensors, axes, children, tuple(nodes), tuple(primitives[: 3 if relu else 2]))


@pytest.mark.parametrize("order", ["mnk", "kmn", "mkn", "nkm"])
@pytest.mark.parametrize("relu", [False, True])
def test_scalar_schedules_become_one_operation(order: str, relu: bool) -> None:
    program = scheduled(order, parallel="mn", relu=relu)
    steps = merged(program).body
    assert len(steps) == 1
    assert not isinstance(steps[0], Loop)
    assert {dim.extent for dim in steps[0].modes} == {6, 9, 10}
    for merge in (True, False):
        a, b = whole_numbers((6, 10), "INT32"), whole_numbers((10, 9), "INT32", 1)
        c, d = np.full((6, 9), 5, np.int32), np.zeros((6, 9), np.int32)
        compile(program, merge=merge, cache=False)(a, b, c)
        interpret(program, {"in0": a, "in1": b, "out": d})
        assert np.array_equal(c, d)
        assert np.array_equal(d, np.maximum(a @ b, 0) if relu else a @ b)


@pytest.mark.parametrize(
    "example",
    [
        examples.permutation_scalar,
        examples.permutation_tiled,
        examples.batched_gemm_scalar,
        examples.batched_gemm_reordered,
        examples.contraction_scalar,
        examples.contraction_gemm,
        examples.contraction_brgemm,
        examples.guarded_reduction,
        examples.branching,
    ],
)
def test_the_documents_examples_equal_the_interpreter(example: Callable[[dict[str, int]], Program]) -> None:
    sizes = {letter: 2 + k % 3 for k, letter in enumerate("abcdkmnpqrstuvxyz")}
    program = example(sizes)
    for merge in (True, False):
        kernel = compile(program, merge=merge, cache=False)
        arrays = {spec.name: whole_numbers((5000,), "FP32", k) for k, spec in enumerate(program.tensors)}
        expected = {name: array.copy() for name, array in arrays.items()}
        interpret(program, expected)
        kernel.run(arrays)
        assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)


def test_a_contraction_that_reads_its_output_runs_in_order() -> None:
    axes = (Axis("m", 4, (8, 8, 8), (0, 0, 0)), Axis("k", 3, (0, 0, 0), (0, 0, 0)))
    tensors = (TensorSpec("a", "INT64", "inout"),)
    axes = tuple(Axis(axis.id, axis.extent, axis.strides[:1], (0,)) for axis in axes)
    square = Primitive("c", "Contraction", (("M", ("m",)), ("N", ()), ("K", ("k",))), ("a", "a", "a"))
    program = Program(tensors, axes, ("i",), (Invocation("i", "c"),), (square,))
    a = np.array([1, 2, 3, -1], np.int64)
    b = a.copy()
    compile(program, cache=False)(a)
    interpret(program, {"a": b})
    assert np.array_equal(a, b)


@pytest.mark.parametrize("columns", [128, 256, 384, 640, 1000])
def test_one_row_times_a_matrix_is_exact_in_panels_of_any_width(columns: int) -> None:
    rng = np.random.default_rng(columns)
    x, w, b = (rng.integers(-9, 9, shape).astype("f4") for shape in ((1, 70), (70, columns), (columns,)))
    dense = [Operand(strided(a.shape, [s // 4 for s in a.strides]), "FP32") for a in (x, w)]
    out = np.empty((1, columns), "f4")
    row = Operand(strided(out.shape, (0, 1)), "FP32")
    program = emit_contraction(
        "ik,kj->ij", dense, Operand(strided(out.shape, (columns, 1)), "FP32"), init=row, relu=True
    )
    for threads in (1, 2):
        compile(program, threads=threads)(x, w, out, b)
        np.testing.assert_array_equal(out, np.maximum(x @ w + b, 0))


@pytest.mark.parametrize("dtype", ["INT64", "FP32"])
@pytest.mark.parametrize("step", [-1, 0, 2, -3])
def test_sums_without_rows_and_columns_walk_their_operands_in_any_direction(step: int, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    w = np.arange(3, 12).astype(kind)[6 if step < 0 else 0 :]
    x = np.broadcast_to(np.arange(3).astype(kind), (2, 3))
    w = np.lib.stride_tricks.as_strided(w, (3, 1), (step * w.itemsize, 0))
    bias, out = np.full(1, -5, kind), np.empty((2, 1), kind)
    for init, more in ((None, ()), (operand(np.broadcast_to(bias, (2, 1)), dtype), (bias,))):
        program = emit_contraction("ik,kj->ij", (operand(x, dtype), operand(w, dtype)), operand(out, dtype), init=init)
        compile(program)(x, w, out, *more)
        np.testing.assert_array_equal(out, x @ w + sum(more))
