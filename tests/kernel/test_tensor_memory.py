"""Tensor memory of sm_100a: products by one block and by two, their order, descriptors; what goes wrong is named."""

import shutil
import sys
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile as compile_text
from tileweave.backends.cuda.printer import run as run_text
from tileweave.backends.cuda.printer import text
from tileweave.backends.cuda.printer.entry import arguments, lowered, run_program
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch import estimate

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
examples, mutants = import_module("tensor_memory"), import_module("mutants").mutants
attention = import_module("attention_tensor").attention_tensor
expected = import_module("attention").expected
RANDOM = np.random.default_rng(6)
SMALL = {"bn": 32, "stages": 2}


def operands(m, n, k):
    a, b = (RANDOM.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (n, k)))
    return a, b, np.zeros((m, n), np.float16)


def kernel(name, arrays, **options):
    return getattr(examples, name).trace(*arrays, **{**SMALL, **options})


@pytest.mark.parametrize("name", ["matmul_tensor", "matmul_pair"])
def test_products_agree_with_numpy_at_sizes_that_divide_nothing(name):
    a, b, c = operands(300, 70, 136)
    assert (getattr(examples, name).check(a, b, c, **SMALL).outputs["C"] == a.astype(float) @ b.T.astype(float)).all()


HALVES, BYTES = ("float16", "bfloat16"), ("float8_e4m3fn", "float8_e5m2")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "left", "right", "order"),
    [
        ("matmul_tensor", "float8_e4m3fn", "float8_e5m2", "reversed"),
        ("matmul_pair", "bfloat16", "bfloat16", 5),
        *(
            pytest.param(name, left, right, "forward", marks=pytest.mark.slow)
            for name in ("matmul_tensor", "matmul_pair")
            for left, right in (*((h, h) for h in HALVES), *product(BYTES, BYTES))
        ),
    ],
)
def test_the_text_leaves_the_bytes_of_the_interpreter_on_the_cpu(name, left, right, order):
    a, b = (RANDOM.standard_normal(s).astype(t) for s, t in (((100, 144), left), ((30, 144), right)))
    c = np.zeros((100, 30), np.float32)
    options = {"bk": 128 // a.itemsize}
    want = getattr(examples, name).check(a, b, c, arch="sm_100a", **SMALL, **options).outputs["C"]
    run_text(kernel(name, (a, b, c), **options), [a, b, c], arch="sm_100a", order=order)
    assert c.tobytes() == want.tobytes()
    np.testing.assert_allclose(c, a.astype(float) @ b.T.astype(float), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("dtype", "bm", "precision"),
    [("float16", 64, None), ("float8_e5m2", 64, None), ("float32", 64, "tf32"), ("float32", 128, "tf32")],
)
def test_64_rows_and_tf32_leave_the_bytes_of_the_interpreter(dtype, bm, precision):
    a, b = (RANDOM.standard_normal(s).astype(dtype) for s in ((100, 144), (30, 144)))
    c = np.zeros((100, 30), np.float32)
    options = {"bm": bm, "bk": 128 // a.itemsize, "precision": precision}
    want = examples.matmul_tensor.check(a, b, c, arch="sm_100a", **SMALL, **options).outputs["C"]
    run_text(kernel("matmul_tensor", (a, b, c), **options), [a, b, c], arch="sm_100a", check=True)
    assert c.tobytes() == want.tobytes()
    exact, dropped = a.astype(float) @ b.T.astype(float), precision == "tf32"
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=0.1 if dropped else 1e-4)
    assert not dropped or np.abs(c - exact).max() > 1e-3  # all 24 bits would be exact to 1e-4
    if dropped:
        upper = [(x.view(np.uint32) >> 13 << 13).view(np.float32).astype(float) for x in (a, b)]
        np.testing.assert_allclose(c, upper[0] @ upper[1].T, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("arch", "atom"),
    [("sm_80", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"), ("sm_90a", "m64n32k8.f32.tf32.tf32")],
)
def test_tf32_is_multiplied_by_tensor_cores_of_other_targets(arch, atom):
    @tk.kernel
    def plain(k, A, B, C, bm=64, bn=32, bk=32):
        m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
        with k.cta(threads=128) as cta:
            acc = cta.zeros((bm, bn), "f32")
            for i in cta.range(A.blocks(1, bk), stages=2):
                cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i], precision="tf32")
            cta.copy(C.tile(bm, bn)[m, n], acc)

    a, b = (RANDOM.standard_normal(s).astype(np.float32) for s in ((70, 72), (30, 72)))
    c = np.zeros((70, 30), np.float32)
    want = plain.check(a, b, c, arch=arch).outputs["C"]
    assert atom in text(plain.trace(a, b, c), arch)
    run_text(plain.trace(a, b, c), [a, b, c], arch=arch)
    assert c.tobytes() == want.tobytes()
    with pytest.raises(VerifyError, match="'tf32' of f32 is all there is"):
        plain.trace(*(x.astype(np.float16) for x in (a, b, c)))


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        (("float32", "float32"), "as tf32, which drops 13 bits of it: precision='tf32'"),
        (("bfloat16", "float16"), "of two types"),
        (("float16", "float8_e4m3fn"), "of different kinds"),
    ],
)
def test_types_without_a_product_say_why(types, problem):
    a, b = (np.zeros(s, t) for s, t in zip(((128, 128), (32, 128)), types, strict=True))
    with pytest.raises(BackendError, match=problem):
        text(kernel("matmul_tensor", (a, b, np.zeros((128, 32), np.float32)), bk=128), "sm_100a")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matmul_tensor", "matmul_pair"])
def test_the_checked_fibers_find_nothing_wrong(name):
    a, b, c = operands(100, 30, 136)
    run_text(kernel(name, (a, b, c)), [a, b, c], arch="sm_100a", check=True)
    assert (c == a.astype(float) @ b.T.astype(float)).all()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("name", "number", "group", "options"),
    [
        ("matmul_tensor", "0x08200010u", 1, {}),
        ("matmul_pair", "0x10400010u", 2, {}),
        ("matmul_tensor", "0x04200010u", 1, {"bm": 64}),
        pytest.param(
            "matmul_tensor", "0x04200910u", 1, {"bm": 64, "bk": 32, "precision": "tf32"}, marks=pytest.mark.slow
        ),
    ],
)
def test_the_text_compiles_without_spills(name, number, group, options):
    dtype, kind = (np.float32, "tf32") if "precision" in options else (np.float16, "f16")
    arrays = [x.astype(dtype) for x in operands(512, 512, 512)]
    made = getattr(examples, name).trace(*arrays, **options)
    shown = text(made, "sm_100a")
    assert number in shown  # f16, f16 to f32; n / 8 from bit 17, m / 16 from bit 24
    assert f"tcgen05.mma.cta_group::{group}.kind::{kind} [%0], %1, %2, %3, p;" in shown
    assert compile_text(shown, "sm_100a").kernels[name].spill_bytes == 0


def sequences(length, width, keys=None, dtype="float16"):
    q, k, v = (RANDOM.standard_normal((2, n, width)).astype(dtype) for n in (length, keys or length, keys or length))
    return q, k, v, np.zeros((2, length, width), np.float32)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("length", "keys", "width", "dtype", "causal", "order"),
    [
        (150, 150, 64, "float16", True, "reversed"),
        pytest.param(70, 200, 128, "float16", False, "forward", marks=pytest.mark.slow),
        pytest.param(300, 300, 64, "bfloat16", True, 5, marks=pytest.mark.slow),
    ],
)
def test_weights_of_attention_are_multiplied_where_they_lie(length, keys, width, dtype, causal, order):
    q, k, v, out = sequences(length, width, keys, dtype)
    made = attention.trace(q, k, v, out, bn=32, causal=causal)
    want = attention.check(q, k, v, out, arch="sm_100a", bn=32, causal=causal).outputs["out"]
    run_text(made, [q, k, v, out], arch="sm_100a", order=order)
    assert out.tobytes() == want.tobytes()
    close = {"float16": 2e-3, "bfloat16": 2e-2}[dtype]  # weights are rounded to it
    np.testing.assert_allclose(out, expected(q, k, v, causal), atol=close)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_attention_compiles_without_spills():
    made = attention.trace(*sequences(256, 128))
    shown = text(made, "sm_100a")
    assert "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;" in shown
    assert "tcgen05.st.sync.aligned.32x32b.x" in shown and "tcgen05.wait::st" in shown
    used = compile_text(shown, "sm_100a").kernels["attention_tensor"]
    assert used.spill_bytes == 0
    needed = estimate(made, "sm_100a")
    assert needed.tensor_columns == 128 + 64 + 32 and "224 columns of tensor memory" in str(needed)
    assert abs(needed.registers - used.registers) <= used.registers // 4


@pytest.mark.parametrize(
    ("dtype", "problem"), [("f32", "multiplied as tf32"), ("bf16", "16-bit operands of two types")]
)
def test_left_operands_in_tensor_memory_have_the_type_of_the_right_ones(dtype, problem):
    def body(k, A, B, C, sa, sb):
        acc, left = k.tensor_memory(32), k.tensor_memory(64, dtype)
        with k.cta(threads=128) as cta:
            cta.store(left, cta.zeros((128, 64), dtype))
            cta.gemm(acc, left, sb, keep=False)

    with pytest.raises(BackendError, match=problem):
        text(wrong(body).trace(*operands(128, 32, 64)), "sm_100a")


def test_other_targets_say_that_they_have_no_tensor_memory():
    with pytest.raises(BackendError, match="sm_90a has no tensor memory"):
        text(kernel("matmul_tensor", operands(128, 32, 64)), "sm_90a")


def wrong(body):
    """A kernel with one product into tensor memory and something wrong behind it."""

    @tk.kernel
    def faulty(k, A, B, C):
        k.grid(1)
        sa, sb = k.shared((128, 64), like=A, swizzle=128), k.shared((32, 64), like=B, swizzle=128)
        body(k, A, B, C, sa, sb)

    return faulty


@pytest.mark.parametrize(
    ("columns", "problem"), [((32, 512), "544 columns of tensor memory, a block has 512"), ((600,), "600 columns")]
)
def test_columns_are_counted(columns, problem):
    def body(k, A, B, C, sa, sb):
        for n in columns:
            k.tensor_memory(n)
        with k.cta(threads=128) as cta:
            cta.copy(C, cta.load(C))

    with pytest.raises(VerifyError, match=problem):
        wrong(body).trace(*operands(128, 32, 64))


def test_tensor_memory_is_reached_by_products_and_loads_only():
    def body(k, A, B, C, sa, sb):
        acc = k.tensor_memory(32)
        with k.cta(threads=128) as cta:
            cta.copy(acc, C)

    with pytest.raises(VerifyError, match="written by products and from registers") as caught:
        wrong(body).trace(*operands(128, 32, 64))
    assert caught.value.rule == "tensor-memory"


def faulty(made, names, arrays, wanted, which=0):
    """The findings of the fibers for one mutant of a kind."""
    program = lowered(made, "sm_100a").program
    found = [one for what, _, one in mutants(program) if what.startswith(wanted)][which]
    given, _ = arguments(made, found, dict(zip(names, arrays, strict=True)))
    with pytest.raises(BackendError) as caught:
        run_program(found, given)
    return caught.value.facts["findings"][0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("wanted", "rules"),
    [
        ("no tcgen05.fence_after", {"tensor-fence"}),
        ("no tcgen05.dealloc", {"tensor-leak"}),
        pytest.param("no tcgen05.commit", {"deadlock"}, marks=pytest.mark.slow),
        pytest.param("half the columns", {"tensor-memory"}, marks=pytest.mark.slow),
        pytest.param("other number", {"tensor-descriptor"}, marks=pytest.mark.slow),
    ],
)
def test_the_fibers_name_faults_of_tensor_memory(wanted, rules):
    depth = 264 if wanted == "no tcgen05.commit" else 72  # a stage that is never let go is missed by the third fill
    given = operands(100, 30, depth)
    assert faulty(kernel("matmul_tensor", given), "ABC", given, wanted).rule in rules


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("wanted", "rule"),
    [
        ("no tcgen05.wait_st", "tensor-wait"),
        pytest.param("no tcgen05.fence_after", "tensor-fence", marks=pytest.mark.slow),
    ],
)
def test_the_fibers_name_faults_of_stores(wanted, rule):
    given = sequences(70, 64)  # one wait is behind several stores: that of the last one
    made = attention.trace(*given, bn=32)
    assert faulty(made, ("q", "keys", "values", "out"), given, wanted, -1).rule == rule
