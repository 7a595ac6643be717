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
attention, gemm_gelu, gemm_reduce_scatter, grouped_gemm, matmul, norms, reduction, softmax, transpose = map(
    import_module,
    [
        "attention",
        "gemm_gelu",
        "gemm_reduce_scatter",
        "grouped_gemm",
        "matmul",
        "norms",
        "reduction",
        "softmax",
        "transpose",
    ],
)

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
