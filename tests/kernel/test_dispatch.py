"""Dispatched kernels as printed CUDA on the checked fibers: values, choices, and rules that name the user's lines."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.printer import run, text
from tileweave.errors import BackendError
from tileweave.index import symbol
from tileweave.kernel.dispatch import expand, explain, lower
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Fence,
    For,
    Grid,
    Init,
    Kernel,
    KernelTensor,
    Line,
    On,
    Op,
    Region,
    Scalar,
    Sync,
    Wait,
    clipped,
    cta_scope,
    to_text,
    walk,
    whole,
)
from tileweave.layout import parse
from tileweave.layout.f2.swizzle import Swizzle

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
import gather_gemm
import matmul as products
import softmax as rows
import transpose as transposes
from gemm_reduce_scatter import gemm_rs

NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "s32": np.int32,
}


def at(number):
    return Line("user.py", number)


def tile(tensor, rows, columns, i, j):
    begin = (i * rows, j * columns)
    mask = tuple(clipped(b, e, n) for b, e, n in zip(begin, (rows, columns), tensor.shape, strict=True))
    return Region(tensor, begin, (rows, columns), mask, (0, 1))


def product(m, n, k, bm, bn, bk, dtype="f16", sums="f32", threads=128, trans=False):
    a, b, c = (
        KernelTensor(x, s, d, "global") for x, s, d in (("A", (m, k), dtype), ("B", (n, k), dtype), ("C", (m, n), sums))
    )
    rows, columns = -(-m // bm), -(-n // bn)
    block, i, j, step = (
        symbol(s, 0, e) for s, e in (("block", rows * columns), ("i", rows), ("j", columns), ("s", -(-k // bk)))
    )
    text_of = (lambda r: f"({r}:1, {bk}:{r + 8})") if trans else (lambda r: f"({r}:{bk + 8}, {bk}:1)")
    sa, sb = (KernelTensor(x, (r, bk), dtype, "shared", parse(text_of(r))) for x, r in (("sa", bm), ("sb", bn)))
    acc = KernelTensor("acc", (bm, bn), sums, "register")
    body = (
        Alloc(sa), Alloc(sb), Alloc(acc),
        Op("fill", (whole(acc),), (Scalar(0, sums),), line=at(1)),
        For(step, 0, -(-k // bk), 1, (
            Op("copy", (whole(sa),), (tile(a, bm, bk, i, step),), line=at(2)),
            Op("copy", (whole(sb),), (tile(b, bn, bk, j, step),), line=at(3)),
            Sync(line=at(4)),
            Op("gemm", (whole(acc),), (whole(sa), whole(sb), whole(acc)), line=at(5)),
            Sync(line=at(6)),
        )),
        Op("copy", (tile(c, bm, bn, i, j),), (whole(acc),), line=at(7)),
    )  # fmt: skip
    grid = Grid(block, rows * columns, ((i, block // columns), (j, block % columns)), (rows, columns))
    return Kernel("product", (a, b, c), (), grid, (On(cta_scope(threads), body),))


def swizzled(name, stages, rows, k):
    inner = f", {k // 64}:{rows * 64}" if k > 64 else ""
    layout = parse(f"({stages}:{rows * k}, {rows}:64{inner}, 64:1)")
    return KernelTensor(name, (stages, rows, k), "f16", "shared", layout, Swizzle(3, 3, 3))


def ring(m, n, k, bm=128, bn=64, bk=64, stages=3):
    """A warpgroup fills a ring of stages, two multiply."""
    a, b, c = (
        KernelTensor(x, s, d, "global")
        for x, s, d in (("A", (m, k), "f16"), ("B", (n, k), "f16"), ("C", (m, n), "f32"))
    )
    rows, columns, steps = -(-m // bm), -(-n // bn), -(-k // bk)
    block, i, j, s, t = (
        symbol(x, 0, e) for x, e in (("block", rows * columns), ("i", rows), ("j", columns), ("s", steps), ("t", steps))
    )
    sa, sb = swizzled("sa", stages, bm, bk), swizzled("sb", stages, bn, bk)
    full, empty = (KernelTensor(x, (stages,), "mbarrier", "shared", parse(f"({stages}:1)")) for x in ("full", "empty"))
    acc = KernelTensor("acc", (bm, bn), "f32", "register")

    def stage(tensor, number):
        shape = tensor.shape[1:]
        return Region(tensor, (number, 0, 0), (1, *shape), (1, *shape), (1, 2))

    def bar(tensor, number):
        return Region(tensor, (number,), (1,), (1,), ())

    cta = cta_scope(384)
    load = For(s, 0, steps, 1, (
        Wait(bar(empty, s % stages), 1 - s // stages % 2, line=at(5)),
        Arrive(bar(full, s % stages), "one", (bm + bn) * bk * 2, line=at(6)),
        Op("copy_async", (stage(sa, s % stages),), (tile(a, bm, bk, i, s),), barrier=bar(full, s % stages), line=at(7)),
        Op("copy_async", (stage(sb, s % stages),), (tile(b, bn, bk, j, s),), barrier=bar(full, s % stages), line=at(8)),
    ))  # fmt: skip
    use = For(t, 0, steps, 1, (
        Wait(bar(full, t % stages), t // stages % 2, line=at(11)),
        Op("gemm", (whole(acc),), (stage(sa, t % stages), stage(sb, t % stages), whole(acc)), line=at(12)),
        Arrive(bar(empty, t % stages), "each", line=at(13)),
    ))  # fmt: skip
    inits = [Init(bar(x, r), n, line=at(1)) for r in range(stages) for x, n in ((full, 1), (empty, 256))]
    body = (
        Alloc(sa), Alloc(sb), Alloc(full), Alloc(empty), *inits, Fence("mbarrier_init", line=at(2)), Sync(line=at(3)),
        On(cta.part("warpgroup", 0, 1), (load,), registers=40, line=at(4)),
        On(cta.part("warpgroup", 1, 3), (
            Alloc(acc), Op("fill", (whole(acc),), (Scalar(0, "f32"),), line=at(10)), use,
            Op("copy", (tile(c, bm, bn, i, j),), (whole(acc),), line=at(14)),
        ), registers=232, line=at(9)),
    )  # fmt: skip
    grid = Grid(block, rows * columns, ((i, block // columns), (j, block % columns)), (rows, columns))
    return Kernel("ring", (a, b, c), (), grid, (On(cta, body),))


def multiplied(kernel, arch, seed=0, check=True):
    (m, k), (n, _) = kernel.params[0].shape, kernel.params[1].shape
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, s).astype(NUMPY[kernel.params[0].dtype]) for s in ((m, k), (n, k)))
    c = np.zeros((m, n), NUMPY[kernel.params[2].dtype])
    run(kernel, {"A": a, "B": b, "C": c}, arch=arch, check=check)
    return c.astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(
    ("sizes", "options", "atom"),
    [
        ((100, 72, 70, 64, 48, 32), {}, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ((70, 40, 40, 64, 64, 32), {"trans": True}, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ((33, 20, 17, 32, 24, 16), {"dtype": "f32", "threads": 64}, "fma"),
        ((33, 20, 17, 32, 24, 16), {"dtype": "f64", "sums": "f64", "threads": 64}, "mma.sync.aligned.m8n8k4"),
        ((50, 40, 64, 32, 24, 32), {"dtype": "s8", "sums": "s32", "threads": 96}, "mma.sync.aligned.m16n8k32"),
    ],
)
def test_products_of_all_kinds_are_right(sizes, options, atom):
    kernel = product(*sizes, **options)
    assert (multiplied(kernel, "sm_80") == 0).all()
    chosen = [c for c in lower(kernel, "sm_80").choices if c.op.name == "gemm"]
    assert chosen[0].atom.startswith(atom)


def test_products_of_eight_bit_floats():
    for dtype in ("e4m3", "e5m2"):
        kernel = product(50, 40, 64, 32, 24, 64, dtype=dtype, threads=64)
        assert (multiplied(kernel, "sm_89") == 0).all()
        assert lower(kernel, "sm_80").choices[-2].atom == "fma"


@pytest.mark.parametrize(("k", "copies"), [(200, "tma"), (70, "cp.async")])
def test_a_ring_of_stages_feeds_wgmma(k, copies):
    kernel = ring(140, 72, k)
    assert (multiplied(kernel, "sm_90a") == 0).all()
    choices = lower(kernel, "sm_90a").choices
    assert [c.atom for c in choices if c.op.name == "copy_async"] == [copies, copies]
    assert choices[2].atom == "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
    if k == 70:
        reasons = "; ".join(r.reason for r in choices[0].reasons)
        assert "140 bytes, no multiple of 16" in reasons
        odd = lower(ring(140, 72, 71), "sm_90a").choices
        assert [c.atom for c in odd if c.op.name == "copy_async"] == ["ld, st", "ld, st"]


def _without(body, line):
    kept = []
    for one in body:
        if one.line.number == line and not isinstance(one, On | For):
            continue
        kept.append(replace(one, body=_without(one.body, line)) if isinstance(one, On | For) else one)
    return tuple(kept)


@pytest.mark.parametrize(
    ("line", "rule", "named"),
    [
        (2, "mbarrier-fence", 7),
        (5, "mbarrier-count", 6),
        (6, "deadlock", 11),
        (11, "uninitialised", 12),
        (13, "deadlock", 11),
    ],
)
def test_a_missing_statement_of_the_ring_is_named_with_the_users_line(line, rule, named):
    kernel = ring(128, 64, 320)
    with pytest.raises(BackendError) as caught:
        multiplied(replace(kernel, body=_without(kernel.body, line)), "sm_90a")
    found = {(f.rule, f.place) for f in caught.value.findings}
    assert (rule, f"user.py:{named}") in found, found


def test_the_text_is_deterministic_and_readable():
    kernel = ring(128, 64, 128)
    assert text(kernel) == text(ring(128, 64, 128))
    assert "tw_wgmma_mma_async_m64n64k16" in text(kernel) and "// (3:8192@m, 128:64@m, 64:1@m) Sw<3,3,3>" in text(
        kernel
    )


def test_a_product_that_was_asked_for_and_does_not_fit_says_why():
    kernel = product(64, 64, 32, 64, 64, 32)

    def forced(body):
        return tuple(
            replace(s, body=forced(s.body)) if isinstance(s, On | For)
            else replace(s, options=(("use", "wgmma"),)) if isinstance(s, Op) and s.name == "gemm" else s
            for s in body
        )  # fmt: skip

    with pytest.raises(BackendError, match=r"not swizzled|neither dense") as caught:
        text(replace(kernel, body=forced(kernel.body)), "sm_90a")
    assert "user.py:5" in str(caught.value)


def _arrays(random, *shapes, dtype=np.float16):
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("k", [136, 130])
def test_automatic_products_expand_and_are_right(arch, k):
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((150, k), (90, k)))
    c = np.zeros((150, 90), np.float16)
    kernel = products.matmul.trace(a, b, c, bm=128, bn=64, stages=3)
    run(kernel, {"A": a, "B": b, "C": c}, arch=arch, check=True)
    assert (c == a.astype(float) @ b.astype(float).T).all()
    roles = any(isinstance(s, On) and s.registers for s in walk(expand(kernel, arch).body))
    assert roles == (arch == "sm_90a" and k % 8 == 0)


def test_the_expanded_product_is_the_explicit_one_up_to_names():
    arrays = [np.zeros(s, np.float16) for s in ((256, 512), (512, 512), (256, 512))]
    automatic = to_text(expand(products.matmul.trace(*arrays), "sm_90a"), lines=False)
    explicit = to_text(expand(products.matmul_roles.trace(*arrays), "sm_90a"), lines=False)
    assert automatic.replace("matmul", "matmul_roles") == explicit.replace("i_1", "i")
    written = to_text(products.matmul_roles.trace(*arrays), lines=False)  # but for C's way out
    assert explicit.startswith(written[: written.index("      C[")].replace("shared ?", "shared"))


def test_explain_lists_every_candidate_with_its_reason():
    arrays = [np.zeros(s, np.float16) for s in ((256, 70), (512, 70), (256, 512))]
    text_ = explain(products.matmul.trace(*arrays, bn=64), "sm_90a")
    assert "is 140 bytes, no multiple of 16" in text_ and "cp.async     yes: 4 B runs" in text_


def test_row_kernels_run_as_text():
    (x,) = _arrays(np.random.default_rng(1), (3, 1000), dtype=np.float32)
    y = np.zeros_like(x)
    run(rows.softmax.trace(x, y), {"x": x, "y": y}, check=True)
    exact = np.exp(x - x.max(1, keepdims=True).astype(float))
    assert abs(y - exact / exact.sum(1, keepdims=True)).max() < 1e-6
    (x,) = _arrays(np.random.default_rng(2), (70, 45), dtype=np.float32)
    y = np.zeros((45, 70), np.float32)
    run(transposes.transpose.trace(x, y), {"x": x, "y": y}, check=True)
    assert (y == x.T).all()


def test_a_mesh_of_devices_adds_what_each_of_them_multiplied():
    random = np.random.default_rng(3)
    a, b = ([random.integers(-3, 4, (rows_, 70)).astype(np.float16) for _ in range(4)] for rows_ in (256, 130))
    c = np.zeros((256, 130), np.float32)
    gemm_rs.run(a, b, tk.sharded(c, "gpu", 0, 4), bm=64, bn=64, on="cpu", arch="sm_80")
    assert (c == sum(x.astype(float) @ y.T.astype(float) for x, y in zip(a, b, strict=True))).all()


@tk.kernel
def through_shared(k, A, B, C, bm=64, bn=64, bk=64):
    """A product whose result leaves by stmatrix and boxes of the copy engine."""
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    sc = k.shared((bm, bn), like=C, swizzle=128)
    with k.cta(threads=128) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk), stages=2):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(sc, acc)
        cta.fence("proxy.async")
        cta.sync()
        cta.copy_async(C.tile(bm, bn)[m, n], sc)
        cta.commit("bulk")
        cta.wait_group(0, "bulk")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_90"])
def test_results_leave_by_stmatrix_and_boxes(arch):
    random = np.random.default_rng(5)
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((100, 136), (72, 136)))
    c = np.zeros((100, 72), np.float16)
    kernel = through_shared.trace(a, b, c)
    run(kernel, [a, b, c], arch=arch, check=True)
    assert (c == a.astype(float) @ b.astype(float).T).all()
    assert "stmatrix" in text(kernel, arch) and "global_shared_cta_bulk_group" in text(kernel, arch)


@tk.kernel
def turned_result(k, A, B, C, bm=64, bn=64, bk=64):
    """The transpose of a product, written to shared memory column by column."""
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    sc = k.shared((bn, bm), like=C, layout=f"({bn}:{bm + 8}@m, {bm}:1@m)")
    with k.cta(threads=128) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk), stages=2):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.copy(sc.T, acc)
        cta.sync()
        cta.copy(C.tile(bn, bm)[n, m], sc)


def test_a_turned_result_leaves_by_turned_stmatrix():
    random = np.random.default_rng(6)
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((100, 136), (72, 136)))
    c = np.zeros((72, 100), np.float16)
    kernel = turned_result.trace(a, b, c)
    run(kernel, [a, b, c], arch="sm_90a", check=True)
    assert (c == b.astype(float) @ a.astype(float).T).all()
    assert "tw_stmatrix_m8n8_x4_trans" in text(kernel, "sm_90a")
    assert "four 8 x 8 tiles each, turned" in turned_result.explain(a, b, c, arch="sm_90a")


@tk.kernel
def floor(k, lane, blockIdx):
    """Every name means something else in CUDA text."""
    warp = k.grid(lane.blocks(0, 1))
    with k.cta(threads=64) as cta:
        exp = cta.load(lane[warp])
        for threadIdx in cta.range(2):  # noqa: B007
            exp = exp + 1
        cta.store(blockIdx[warp], exp)


def test_names_that_text_gives_another_meaning():
    x = np.random.default_rng(0).random((3, 100), np.float32)
    y = np.zeros_like(x)
    floor.run(x, y, on="cpu")
    assert abs(y - x - 2).max() < 1e-6


def applied(fn, *arrays, out):
    """What the printed text leaves of an elementwise function of whole arrays, and what the interpreter leaves."""

    @tk.kernel
    def one(k, x, y):
        with k.cta(threads=64) as cta:
            cta.store(y[:, :], fn(cta, cta.load(x[:, :])))

    @tk.kernel
    def two(k, x, z, y):
        with k.cta(threads=64) as cta:
            cta.store(y[:, :], fn(cta, cta.load(x[:, :]), cta.load(z[:, :])))

    kernel, y = (one if len(arrays) == 1 else two), np.zeros(arrays[0].shape, out)
    want = kernel.check(*arrays, y).outputs["y"]
    kernel.run(*arrays, y, on="cpu")
    return y, want


INTEGERS = np.random.default_rng(3).integers(-9, 9, (3, 37))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_are_divided_towards_minus_infinity(dtype):
    a, b = INTEGERS.astype(dtype), INTEGERS[::-1].astype(dtype)
    got, want = applied(lambda c, x, z: x / z + c.maximum(x, 3), a, b, out=dtype)
    assert (got == want).all() and (got == np.where(b, a // np.where(b, b, 1), 0) + np.maximum(a, 3)).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_what_an_integer_cannot_hold_becomes_its_nearest(dtype):
    x = np.array([[1e30, -1e30, np.inf, -np.inf, np.nan, 127.9, -128.9, 300.0, -0.9]], np.float32)
    got, want = applied(lambda c, x: c.cast(x, dtype), x, out=dtype)
    info = np.iinfo(dtype)
    assert (got == want).all() and (got[0, :5] == [info.max, info.min, info.max, info.min, 0]).all()


def test_signed_beside_unsigned_compares_as_signed():
    a, b = INTEGERS.astype(np.int32), abs(INTEGERS[::-1]).astype(np.uint32)
    got, want = applied(lambda c, x, z: c.where(x < z, 1, c.maximum(x, z)), a, b, out=np.int32)
    assert (got == want).all() and (got == np.where(a < b, 1, a)).all()


def test_predicates_are_loaded_stored_and_negated():
    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    got, want = applied(lambda c, x, z: ~((x > 0) & (x < z)) | (x < -1), x, x[::-1].copy(), out=bool)
    assert (got == want).all()
    got, want = applied(lambda c, p, x: c.where(p, x, 0), got, x, out=np.float32)
    assert (got == want).all()


def test_numbers_of_64_bits_are_wide():
    x = INTEGERS.astype(np.uint64) % 9
    got, want = applied(lambda c, x: x + (2**63 + 5), x, out=np.uint64)
    assert (got == want).all() and (got == x + np.uint64(2**63 + 5)).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn])
def test_eight_bit_floats_are_stored(dtype):
    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    got, want = applied(lambda c, x: x, x, out=dtype)
    assert (got.view(np.uint8) == want.view(np.uint8)).all() and (
        got.astype(float) == x.astype(dtype).astype(float)
    ).all()


STRIDED = {
    "columns": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "transposed": np.asfortranarray,
    "reversed": lambda a: a[::-1].copy()[::-1],
    "part": lambda a: np.pad(a, 3)[3:-3, 3:-3],
}


@pytest.mark.parametrize("form", STRIDED)
def test_arrays_that_are_not_contiguous(form):
    x = STRIDED[form](np.random.default_rng(0).random((5, 100), np.float32))
    y = STRIDED[form](np.zeros_like(x))
    assert not x.flags.c_contiguous and not y.flags.c_contiguous
    for on in ("interpreter", "cpu"):
        y[...] = 0
        rows.softmax.run(x, y, on=on)
        np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), 1e-5)


def test_types_that_text_does_not_have_are_refused_with_the_line():
    with pytest.raises(BackendError, match="no CUDA type for elements of type tf32"):
        applied(lambda c, x: c.cast(x, "tf32"), np.zeros((3, 37), np.float32), out=np.float32)


def test_numbers_from_a_half():
    got, want = applied(lambda c, x: x + c.iota(x.shape, 1, 0.5, "f32"), np.zeros((3, 64), np.float32), out=np.float32)
    assert (got == want).all() and (got[0] == np.arange(64) + 0.5).all()


@tk.kernel
def by_warpgroups(k, x, sums, scans):
    with k.cta(threads=256) as cta, cta.warpgroup.each() as wg:
        part = wg.load(x.tile(8, 64)[wg.index, 0])
        wg.store(sums.tile(1, 64)[wg.index, 0], wg.sum(part, 0))
        wg.store(scans.tile(8, 64)[wg.index, 0], wg.scan("add", part, 0))


def test_each_warpgroup_has_barriers_and_staging_memory_of_its_own():
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    sums, scans = np.zeros((2, 64), np.float32), np.zeros_like(x)
    by_warpgroups.run(x, sums, scans, on="cpu")
    np.testing.assert_allclose(sums, x.reshape(2, 8, 64).sum(1), 1e-5, 1e-5)
    np.testing.assert_allclose(scans, x.reshape(2, 8, 64).cumsum(1).reshape(16, 64), 1e-5, 1e-5)


@tk.kernel
def through_a_ring(k, A, B, C, stages=2, bk=64):
    sa, sb = (k.shared((stages, 64, bk), like=x, swizzle=128) for x in (A, B))
    ring = k.pipeline(stages)
    with k.warpgroup[0] as load:
        for i in load.range(A.blocks(1, bk)):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(64, bk)[0, i])
                load.copy_async(sb[s], B.tile(64, bk)[0, i])
    with k.warpgroup[1] as wg:
        acc = wg.zeros((64, 64))
        for i in wg.range(A.blocks(1, bk)):
            with ring.use(i) as s:
                wg.gemm(acc, sa[s], sb[s])
        wg.store(C[:, :], acc)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_stage_that_cp_async_fills_is_full_when_its_copies_are_complete(arch):
    A, B = _arrays(np.random.default_rng(0), (64, 256), (64, 256))
    C = np.zeros((64, 64), np.float32)
    through_a_ring.run(A, B, C, on="cpu", arch=arch)
    np.testing.assert_allclose(C, A.astype(float) @ B.T.astype(float), 1e-3, 1e-3)


@tk.kernel
def by_threads(k, x, y):
    with k.cta(threads=64) as cta, cta.thread.each() as one:
        column = one.load(x[:, one.index : one.index + 1])
        one.store(y[0:1, one.index : one.index + 1], one.sum(column, 0))


def test_one_thread_reduces_what_it_holds():
    x, y = np.random.default_rng(0).random((16, 64), np.float32), np.zeros((1, 64), np.float32)
    by_threads.run(x, y, on="cpu")
    np.testing.assert_allclose(y, x.sum(0, keepdims=True), 1e-5)


def test_a_use_that_no_operator_has_is_refused_with_the_line():
    @tk.kernel
    def asked(k, x, y):
        with k.cta(threads=128) as cta:
            s = k.shared((16, 64), like=x)
            cta.copy_async(s, x[:, :], use="telepathy")

    with pytest.raises(BackendError, match=r"(?s)'telepathy'.*tma \| cp.async"):
        lower(asked.trace(np.zeros((16, 64), np.float16), np.zeros((1, 1), np.float16)), "sm_90a")


@tk.kernel
def halvings(k, x, y, limit=6):
    """A loop that ends by itself, one that is left, and turns that are skipped."""
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        r = cta.load(x[row])
        for i in cta.range(8):
            with k.when(i > limit):
                cta.break_()
            with k.when(i % 2 > 0):
                cta.continue_()
            r = r * 0.5
        cta.store(y[row], r)


def test_loops_are_left_and_turns_skipped():
    x = np.random.default_rng(0).random((3, 100), np.float32)
    y = np.zeros_like(x)
    want = halvings.check(x, y).outputs["y"]
    halvings.run(x, y, on="cpu")
    assert (y == want).all() and (y == x / 16).all()


def test_eight_devices_wait_for_each_other():
    """Each device has places of its own: blocks that wait do not keep out those that they wait for."""
    random = np.random.default_rng(4)
    a, b = ([random.integers(-3, 4, (n, 70)).astype(np.float16) for _ in range(8)] for n in (100, 50))
    c = [np.zeros((800, 50), np.float32) for _ in range(8)]
    gather_gemm.on(8).run(a, b, c, on="cpu", arch="sm_80")
    whole = np.concatenate(a).astype(float)
    assert all((one == whole @ y.T.astype(float)).all() for one, y in zip(c, b, strict=True))


@tk.kernel
def counted(k, x, y):
    row, n = k.grid(x.blocks(0, 1)), k.var(0)
    with k.cta(threads=64) as cta, k.while_(n.value < 4):
        n.set(n.value + 1)
        with k.when(n.value > 2):
            cta.break_()
        cta.store(y[row, 0:1], 7.0)


def test_a_loop_that_ends_by_its_condition():
    x, y = np.zeros((4, 96), np.float32), np.zeros((4, 96), np.float32)
    counted.run(x, y, on="cpu")
    assert (y[:, 0] == 7).all() and not y[:, 1:].any()


@tk.kernel
def branches(k, x, y):
    row, n = k.grid(x.blocks(0, 1)), k.var(0)
    with k.cta(threads=64) as cta:
        with k.when(row < 2):
            n.set(3)
        with k.otherwise():
            n.set(5)
        with k.when(n.value > 4):
            cta.store(y[row, 0:1], 7.0)


def test_a_number_that_branches_set():
    x, y = np.zeros((4, 96), np.float32), np.zeros((4, 96), np.float32)
    branches.run(x, y, on="cpu")
    assert y[:, 0].tolist() == [0, 0, 7, 7]
