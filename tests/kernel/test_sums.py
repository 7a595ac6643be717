"""Automatic products on sm_100a: their sums lie in tensor memory for the time of a loop, or a reason says why not."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile as compile_text
from tileweave.backends.cuda.printer import run as run_text
from tileweave.backends.cuda.printer import text
from tileweave.errors import BackendError
from tileweave.kernel import to_text
from tileweave.kernel.dispatch import estimate, expand, lower

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
matmul = import_module("matmul").matmul
gelu, attention = import_module("gemm_gelu"), import_module("attention").attention
ARCH = "sm_100a"


@tk.kernel
def product(k, A, B, C, bm=128, bn=32, bk=32, warpgroups=1, stages=2, precision=None):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    with k.cta(warpgroups=warpgroups) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk), stages=stages):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i], precision=precision)
        cta.copy(C.tile(bm, bn)[m, n], acc)


def arrays(m, n, k, dtype=np.float16, out=np.float32, seed=2):
    random = np.random.default_rng(seed)
    return [*(random.standard_normal(s).astype(dtype) for s in ((m, k), (n, k))), np.zeros((m, n), out)]


def reasons(kernel):
    """What dispatch says of tensor memory, product by product."""
    rows = (c.reasons for c in lower(kernel, ARCH).choices if c.op.name == "gemm")
    return [r for row in rows for r in row if r.name == "tcgen05"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("order", ["forward", "reversed", 5])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (np.float16, {"warpgroups": 3}),
        (ml_dtypes.bfloat16, {"bm": 64}),
        (ml_dtypes.float8_e4m3fn, {"warpgroups": 2}),
        (np.float32, {"bk": 16, "precision": "tf32"}),
    ],
)
def test_the_text_leaves_the_bytes_of_the_interpreter_in_three_orders(dtype, options, order):
    a, b, c = arrays(150, 40, 80, dtype)
    kernel = product.trace(a, b, c, **options)
    assert all(reason.legal for reason in reasons(kernel))
    want = product.check(a, b, c, arch=ARCH, **options).outputs["C"]
    run_text(kernel, [a, b, c], arch=ARCH, order=order)
    assert c.tobytes() == want.tobytes()
    if "precision" in options:
        a, b = ((x.view(np.uint32) >> 13 << 13).view(np.float32) for x in (a, b))
    np.testing.assert_allclose(c, a.astype(float) @ b.T.astype(float), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("left", "right", "options"), [(np.int8, np.int8, {}), (np.uint8, np.int8, {"bm": 64, "bn": 24})]
)
def test_integers_are_exact(left, right, options):
    random = np.random.default_rng(1)
    a, b = (random.integers(np.iinfo(t).min, np.iinfo(t).max, (n, 96)).astype(t) for t, n in ((left, 140), (right, 40)))
    c = np.zeros((140, 40), np.int32)

    @tk.kernel
    def whole(k, A, B, C, bm=128, bn=32):
        m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
        with k.cta(warpgroups=1) as cta:
            acc = cta.zeros((bm, bn), "s32")
            for i in cta.range(A.blocks(1, 64), stages=2):
                cta.gemm(acc, A.tile(bm, 64)[m, i], B.tile(bn, 64)[n, i])
            cta.store(C.tile(bm, bn)[m, n], acc)

    kernel = whole.trace(a, b, c, **options)
    assert "tcgen05.mma.cta_group::1.kind::i8" in text(kernel, ARCH)
    run_text(kernel, [a, b, c], arch=ARCH, check=True)
    assert (c == a.astype(int) @ b.T.astype(int)).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_checked_fibers_find_nothing_wrong_in_an_epilogue():
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((140, 72), (40, 72)))
    bias, c = random.standard_normal((1, 40)).astype(np.float32), np.zeros((140, 40), np.float16)
    kernel = gelu.gemm_gelu.trace(a, b, bias, c, bm=128, bn=32)
    assert [reason.legal for reason in reasons(kernel)] == [True]
    want = gelu.gemm_gelu.check(a, b, bias, c, arch=ARCH, bm=128, bn=32).outputs["C"]
    run_text(kernel, [a, b, bias, c], arch=ARCH, check=True)
    assert c.tobytes() == want.tobytes()
    assert np.abs(c - gelu.expected(a, b, bias)).max() < 0.02


@tk.kernel
def written(k, A, B, C, bm=128, bn=32, bk=32, stages=2):
    """What dispatch makes of `product` by three warpgroups, by hand."""
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    acc = k.tensor_memory(bn)
    sa, sb = (k.shared((stages, rows, bk), like=x, swizzle=64) for rows, x in ((bm, A), (bn, B)))
    ring = k.pipeline(stages, products=True)
    done = k.barrier(1)
    with k.warpgroup[0], k.warp[0]() as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(bm, bk)[m, i])
                load.copy_async(sb[s], B.tile(bn, bk)[n, i])
    with k.warp[1]() as mma:
        for i in mma.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                mma.gemm(acc, sa[s], sb[s], keep=i > 0)
        mma.commit("tcgen05", done)
    with k.warpgroup[1:3] as wg:
        wg.wait(done, parity=0)
        wg.fence("tcgen05.after")
        wg.copy(C.tile(bm, bn)[m, n], wg.load(acc))


def test_the_explicit_program_is_what_one_writes_by_hand():
    args = arrays(256, 64, 128)
    automatic = to_text(expand(product.trace(*args, warpgroups=3), ARCH), lines=False)
    by_hand = to_text(expand(written.trace(*args), ARCH), lines=False)

    def statements(shown):
        lines = map(str.strip, shown.splitlines())
        said = ("wait", "arrive", "for", "commit", "fence tcgen05", "acc", "sa", "sb", "tacc", "C[")
        return [line for line in lines if line.startswith(said)]

    renamed = by_hand.replace("acc[", "tacc[").replace(" t[", " acc[").replace("(t[", "(acc[").replace("i_1", "i")
    assert statements(automatic) == statements(renamed) and len(statements(automatic)) == 16


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("warpgroups", [1, 3])
def test_the_text_compiles_without_spills_and_the_estimate_knows_its_needs(warpgroups):
    kernel = matmul.trace(*arrays(512, 512, 512, out=np.float16), bn=128) if warpgroups == 3 else product.trace(
        *arrays(512, 512, 512), bn=128, bk=64)  # fmt: skip
    shown = text(kernel, ARCH)
    assert "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;" in shown and "mma.sync" not in shown
    used = compile_text(shown, ARCH).kernels[kernel.name]
    assert used.spill_bytes == 0
    needed = estimate(kernel, ARCH)
    assert needed.tensor_columns == 128 and "128 columns of tensor memory" in str(needed)
    assert abs(needed.registers - used.registers) <= used.registers // 2


@pytest.mark.parametrize(
    ("shape", "options", "problem"),
    [
        ((128, 64, 70), {}, "A comes by no box: stride 70 of dimension 0 is 140 bytes, no multiple of 16"),
        ((128, 64, 64), {"bm": 32}, "m = 32 is not 64 or 128"),
        ((128, 64, 64), {"bn": 24}, "n = 24 is no multiple of 16 up to 256"),
        ((128, 64, 64), {"bn": 512}, "n = 512 is no multiple of 16 up to 256"),
        ((128, 64, 64), {"bk": 8}, "k = 8 is no multiple of 16"),
        ((128, 64, 64), {"bn": 48, "warpgroups": 5}, "48 columns of acc are no multiple of 8 for each of 4 warpgroups"),
    ],
)
def test_every_predicate_that_fails_is_named_and_the_product_is_right(shape, options, problem):
    a, b, c = arrays(*shape)
    (reason,) = reasons(product.trace(a, b, c, **options))
    assert not reason.legal and problem in reason.reason
    assert f"tcgen05      no: {reason.reason}" in product.explain(a, b, c, arch=ARCH, **options)
    got = product.check(a, b, c, arch=ARCH, **options).outputs["C"]
    np.testing.assert_allclose(got, a.astype(float) @ b.T.astype(float), rtol=1e-5, atol=1e-4)


def test_several_problems_are_named_together():
    (reason,) = reasons(product.trace(*arrays(128, 64, 70), bm=32, bk=24))
    assert [p in reason.reason for p in ("m = 32", "k = 24", "140 bytes")] == [True] * 3


def test_types_without_a_product_are_named():
    (reason,) = reasons(product.trace(*arrays(128, 64, 64, np.float32)))
    assert "f32 is multiplied as tf32, which drops 13 bits of it: precision='tf32'" in reason.reason


def automatic(body, columns=32):
    """A kernel whose block does `body(cta, acc, tiles)`, tiles being those of a turn."""

    @tk.kernel
    def made(k, A, B, C):
        m, n = k.grid(A.blocks(0, 128), B.blocks(0, columns))
        with k.cta(warpgroups=1) as cta:
            acc = body(cta, lambda i: (A.tile(128, 32)[m, i], B.tile(columns, 32)[n, i]), 4)
            cta.store(C.tile(128, columns)[m, n], acc)

    return made


def scaled(cta, tiles, turns):
    acc = cta.zeros((128, 32))
    for i in cta.range(turns):
        cta.gemm(acc, *tiles(i))
        acc *= 0.5
    return acc


def begun(cta, tiles, turns):
    acc = cta.full((128, 32), 1)
    for i in cta.range(turns):
        cta.gemm(acc, *tiles(i))
    return acc


def continued(cta, tiles, turns):
    acc = cta.zeros((128, 32))
    for part in (range(1), range(1, 4)):
        for i in cta.range(part.start, part.stop):
            cta.gemm(acc, *tiles(i))
    return acc


def nested(cta, tiles, turns):
    acc = cta.zeros((128, 32))
    for i in cta.range(2):
        for j in cta.range(2):
            cta.gemm(acc, *tiles(2 * i + j))
    return acc


def once(cta, tiles, turns):
    return cta.dot(*tiles(0)) + cta.dot(*tiles(1))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (scaled, "map reads the sums inside the loop"),
        (begun, "acc is not filled with 0, and nothing else, before the loop"),
        (nested, "a block comes here more than once"),
    ],
)
def test_programs_whose_sums_stay_in_registers_say_why(body, problem):
    a, b, c = arrays(140, 40, 128)
    kernel = automatic(body)
    (reason,) = reasons(kernel.trace(a, b, c))
    assert not reason.legal and problem in reason.reason
    want, got = kernel.check(a, b, c).outputs["C"], kernel.check(a, b, c, arch=ARCH).outputs["C"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_products_outside_of_loops_have_their_sums_in_tensor_memory_too():
    a, b, c = arrays(140, 40, 128)
    kernel = automatic(once)
    assert [reason.legal for reason in reasons(kernel.trace(a, b, c))] == [True, True]
    want = kernel.check(a, b, c, arch=ARCH).outputs["C"]
    run_text(kernel.trace(a, b, c), [a, b, c], arch=ARCH, check=True)
    assert c.tobytes() == want.tobytes()
    np.testing.assert_allclose(c, a[:, :64].astype(float) @ b[:, :64].T.astype(float), rtol=1e-5, atol=1e-4)


def test_a_second_loop_that_goes_on_with_the_sums_takes_both_from_registers():
    a, b, c = arrays(140, 40, 128)
    kernel = automatic(continued)
    found = reasons(kernel.trace(a, b, c))
    assert ["products elsewhere add to acc, too" in reason.reason for reason in found] == [True, True]
    got = kernel.check(a, b, c, arch=ARCH).outputs["C"]
    np.testing.assert_allclose(got, a.astype(float) @ b.T.astype(float), rtol=1e-5, atol=1e-4)


def test_attention_says_why_its_products_are_of_registers():
    args = [np.zeros((1, 64, 64), np.float16) for _ in range(4)]
    found = reasons(attention.trace(*args))
    assert all(not r.legal and "A is in register memory" in r.reason for r in found) and len(found) == 2


def test_what_is_asked_for_is_taken_or_refused_with_the_reason():
    @tk.kernel
    def asked(k, A, B, C, bm=128, use="tcgen05"):
        m, n = k.grid(A.blocks(0, bm), B.blocks(0, 32))
        with k.cta(warpgroups=1) as cta:
            acc = cta.zeros((bm, 32))
            for i in cta.range(A.blocks(1, 32)):
                cta.gemm(acc, A.tile(bm, 32)[m, i], B.tile(32, 32)[n, i], use=use)
            cta.store(C.tile(bm, 32)[m, n], acc)

    args = arrays(128, 32, 64)
    assert "tcgen05.mma" in text(asked.trace(*args), ARCH)
    assert "another product was asked for" in reasons(asked.trace(*args, use="mma.sync"))[0].reason
    with pytest.raises(BackendError, match="m = 32 is not 64 or 128"):
        text(asked.trace(*args, bm=32), ARCH)
    with pytest.raises(BackendError, match="needs sm_100a, not sm_90a"):
        text(asked.trace(*args), "sm_90a")
