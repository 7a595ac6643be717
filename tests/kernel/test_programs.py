"""The kernels of the examples pass every check and compute what NumPy computes, at sizes that divide nothing."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.kernel import from_json, to_json, verify

KERNELS = Path(__file__).resolve().parents[2] / "examples" / "kernels"
sys.path.insert(0, str(KERNELS))
NAMES = [
    "attention", "copy_views", "fp8_gemm", "gather_gemm", "gemm_cp_async", "gemm_gelu", "gemm_reduce_scatter",
    "grouped_gemm", "matmul", "moe", "mx_gemm", "norms", "reduction", "softmax", "stencil", "transpose",
]  # fmt: skip
(
    attention, copy_views, fp8_gemm, gather_gemm, gemm_cp_async, gemm_gelu, gemm_reduce_scatter, grouped_gemm, matmul,
    moe, mx_gemm, norms, reduction, softmax, stencil, transpose,
) = map(import_module, NAMES)  # fmt: skip

RANDOM = np.random.default_rng(16)


def matrices(m, n, k, dtype=np.float16):
    return RANDOM.standard_normal((m, k)).astype(dtype), RANDOM.standard_normal((n, k)).astype(dtype)


@pytest.mark.parametrize("length", [1, 7, 256, 1000, 1025])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_softmax_of_any_length(length, dtype):
    x = RANDOM.standard_normal((3, length)).astype(dtype)
    y = np.full_like(x, np.nan)
    softmax.softmax.run(x, y)
    np.testing.assert_allclose(y, softmax.expected(x), rtol=2e-3 if dtype == np.float16 else 1e-6, atol=1e-7)
    assert not np.isnan(y).any()


@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (33, 70), (45, 64)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "u1"])
def test_transpose_of_any_shape(shape, dtype):
    x = (RANDOM.standard_normal(shape) * 50).astype(dtype)
    y = np.zeros(shape[::-1], dtype)
    transpose.transpose.run(x, y)
    assert (y == x.T).all()


@pytest.mark.parametrize("program", [matmul.matmul, matmul.matmul_roles])
@pytest.mark.parametrize("sizes", [(128, 256, 64), (200, 300, 70), (1, 1, 1), (129, 257, 330)])
def test_matmul_of_any_shape(program, sizes):
    A, B = matrices(*sizes)
    C = np.full(sizes[:2], np.nan, np.float16)
    program.run(A, B, C)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=2e-3, atol=1e-2)


def test_the_two_matmuls_leave_the_same_bytes():
    A, B = matrices(200, 300, 130)
    first, second = (np.zeros((200, 300), np.float16) for _ in range(2))
    matmul.matmul.run(A, B, first)
    matmul.matmul_roles.run(A, B, second)
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
def test_matmul_of_any_type(dtype):
    A, B = ((RANDOM.standard_normal(s) * 3).astype(dtype) for s in ((40, 70), (50, 70)))
    C = np.zeros((40, 50), np.float32)
    matmul.matmul.run(A, B, C, bm=32, bn=32)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", [1, 37, 300, 1030])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_norms_of_any_length(length, dtype):
    x, weight, bias = (RANDOM.standard_normal(s).astype(dtype) for s in ((3, length), length, length))
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 3e-6}[dtype]
    y = np.zeros_like(x)
    norms.layernorm.run(x, weight, bias, y)
    np.testing.assert_allclose(y.astype(float), norms.expected_layernorm(x, weight, bias), tolerance, tolerance)
    norms.rmsnorm.run(x, weight, y)
    np.testing.assert_allclose(y.astype(float), norms.expected_rmsnorm(x, weight), tolerance, tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (33, 130), (100, 300)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_reductions(shape, dtype):
    x = (RANDOM.standard_normal(shape) * 9).astype(dtype)
    sums = np.zeros((1, shape[1]), np.int32 if dtype == "int32" else np.float32)
    reduction.column_sums.run(x, sums)
    np.testing.assert_allclose(sums[0], x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-4)
    maxima = np.zeros_like(x)
    reduction.running_maximum.run(x, maxima)
    assert (maxima == np.maximum.accumulate(x, 1)).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (64, 64), (100, 40), (129, 24)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(rows, width, causal, dtype):
    q, keys, values = (RANDOM.standard_normal((2, rows, width)).astype(dtype) for _ in range(3))
    out = np.zeros_like(q)
    attention.attention.run(q, keys, values, out, causal=causal)
    exact = attention.expected(q, keys, values, causal)
    tolerance = 5e-3 if dtype == "float16" else 4e-2
    np.testing.assert_allclose(out.astype(float), exact, tolerance, tolerance)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 128, 64), (100, 150, 70)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gemm_with_bias_and_gelu(sizes, dtype):
    m, n, depth = sizes
    A, B, bias = (RANDOM.standard_normal(s).astype(dtype) for s in ((m, depth), (n, depth), (1, n)))
    C = np.zeros((m, n), np.float32)
    gemm_gelu.gemm_gelu.run(A, B, bias, C)
    np.testing.assert_allclose(C, gemm_gelu.expected(A, B, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("starts", [[0, 5, 5, 70, 100], [0, 100], [0, 0, 32, 64, 100, 100]])
def test_grouped_gemm(starts):
    numbers = np.array(starts, np.int32)
    A, B = matrices(100, 90, 70)
    B = np.stack([B * (g + 1) for g in range(len(starts) - 1)])
    C = np.full((100, 90), np.nan, np.float32)
    grouped_gemm.grouped_gemm.run(A, B, numbers, C)
    np.testing.assert_allclose(C, grouped_gemm.expected(A, B, numbers), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (100, 200, 300), (64, 128, 256)])
@pytest.mark.parametrize("scales", ["float32", "float8_e8m0fnu"])
def test_fp8_gemm_with_scales_of_blocks(sizes, scales):
    arrays = fp8_gemm.arguments(*sizes, scales)
    fp8_gemm.fp8_gemm.run(*arrays)
    np.testing.assert_allclose(arrays[-1], fp8_gemm.expected(*arrays[:-1]), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 32), (100, 90, 200)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gemm_with_cp_async(sizes, dtype):
    A, B = (x.astype(dtype) for x in matrices(*sizes))
    C = np.full(sizes[:2], np.nan, np.float32)
    gemm_cp_async.gemm_cp_async.run(A, B, C)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("rows", [64, 70])
def test_all_gather_and_gemm(devices, rows):
    A, B = ([RANDOM.standard_normal((n, 40)).astype(np.float16) for _ in range(devices)] for n in (rows, 33))
    C = [np.zeros((rows * devices, 33), np.float32) for _ in range(devices)]
    gather_gemm.on(devices).run(A, B, C)
    whole = np.concatenate(A).astype(np.float64)
    for b, c in zip(B, C, strict=True):
        np.testing.assert_allclose(c, whole @ b.T.astype(np.float64), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("sizes", [(100, 64, 48, 4), (33, 40, 20, 7)])
def test_mixture_of_experts(sizes):
    arrays = moe.arguments(*sizes)
    moe.moe.run(*arrays)
    np.testing.assert_allclose(arrays[-1], moe.expected(*arrays[:-1]), atol=5e-3)


@pytest.mark.slow
def test_mixture_of_experts_of_qwen3():
    """All 128 experts at the widths of Qwen3-30B-A3B, one token to 8 of them; tiles of 8 rows and 256 columns."""
    arrays = moe.routed(1, 8, 2048, 768, 128)
    moe.moe.run(*arrays, bm=8, bn=256, bk=256)
    np.testing.assert_allclose(arrays[-1], moe.expected(*arrays[:-1]), atol=5e-3)


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (50, 70)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_stencil(shape, dtype):
    x = RANDOM.standard_normal(shape).astype(dtype)
    y = np.zeros(shape, np.float32)
    stencil.stencil.run(x, y)
    np.testing.assert_allclose(y, stencil.expected(x), rtol=1e-5, atol=1e-5)


def test_the_copies_of_both_views_are_equal():
    c = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    first, second = np.zeros((16, 64), np.float32), np.zeros((16, 64), np.float32)
    copy_views.thread_view.run(c, first)
    copy_views.block_view.run(c, second)
    assert (first == c[16:32, 64:128]).all() and first.tobytes() == second.tobytes()


def test_gemm_and_reduce_scatter_on_four_devices():
    pairs = [matrices(256, 130, 70) for _ in range(4)]
    A, B = [a for a, _ in pairs], [b for _, b in pairs]
    C = np.zeros((256, 130), np.float32)
    gemm_reduce_scatter.gemm_rs.run(A, B, tk.sharded(C, "gpu", 0, 4), bm=64, bn=64)
    np.testing.assert_allclose(C, sum(a.astype(np.float64) @ b.T.astype(np.float64) for a, b in pairs), atol=1e-4)


def test_strided_arguments_are_read_through_their_layout():
    A, B = matrices(40, 30, 20)
    C = np.zeros((30, 40), np.float16).T
    matmul.matmul.run(A.copy(order="F"), B, C, bm=64, bn=64)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=2e-3, atol=1e-2)


def test_check_leaves_the_arguments_alone():
    x, y = np.ones((2, 5), np.float32), np.zeros((2, 5), np.float32)
    report = softmax.softmax.check(x, y)
    assert not y.any() and np.allclose(report.outputs["y"], 0.2)
    assert str(report).startswith("2 blocks, ")


def traced():
    f16, spec = "f16", tk.spec
    sizes = spec((200, 130), f16), spec((300, 130), f16), spec((200, 300), f16)
    return {
        "softmax": softmax.softmax.trace(spec((4, 1000), "f32"), spec((4, 1000), "f32")),
        "transpose": transpose.transpose.trace(spec((70, 45), "f32"), spec((45, 70), "f32")),
        "matmul": matmul.matmul.trace(*sizes),
        "matmul_roles": matmul.matmul_roles.trace(*sizes),
        "gemm_rs": gemm_reduce_scatter.gemm_rs.trace(
            spec((256, 70), f16), spec((130, 70), f16), tk.spec((256, 130), "f32", "(4:1@gpu, 64:130@m, 130:1@m)"),
            bm=64, bn=64,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["softmax", "transpose", "matmul", "matmul_roles", "gemm_rs"])
def test_the_text_of_a_program(name, golden):
    kernel = traced()[name]
    verify(kernel)
    golden(f"kernel/{name}.txt", tk.to_text(kernel, lines=False))
    assert from_json(to_json(kernel)) == kernel


def test_statements_keep_the_users_lines():
    kernel = traced()["matmul_roles"]
    source = Path(matmul.__file__).read_text().splitlines()
    copies = [row for row in tk.to_text(kernel).splitlines() if "copy_async" in row]
    lines = [int(row.rsplit(":", 1)[1]) for row in copies]
    assert [source[n - 1].strip().split("(")[0] for n in lines] == ["load.copy_async"] * 2


@pytest.mark.parametrize("page", sorted(KERNELS.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_runs_as_a_program(page):
    found = import_module(page.stem)
    assert callable(found.main)
    if page.stem == "softmax":
        done = subprocess.run([sys.executable, page], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "every claim holds" in done.stdout, done.stderr
    else:
        found.main()
