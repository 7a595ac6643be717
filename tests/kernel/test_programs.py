"""The programs of the page trace as they stand, pass every check, and compute what NumPy computes."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.kernel import from_json, to_json, verify

sys.path.insert(0, str(Path(__file__).parent))

import programs

RANDOM = np.random.default_rng(16)


def matrices(m, n, k, dtype=np.float16):
    return RANDOM.standard_normal((m, k)).astype(dtype), RANDOM.standard_normal((n, k)).astype(dtype)


def softmax_of(x):
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("length", [1, 7, 256, 1000, 1025])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_softmax_of_any_length(length, dtype):
    x = RANDOM.standard_normal((3, length)).astype(dtype)
    y = np.full_like(x, np.nan)
    programs.softmax.run(x, y)
    np.testing.assert_allclose(y, softmax_of(x), rtol=2e-3 if dtype == np.float16 else 1e-6, atol=1e-7)
    assert not np.isnan(y).any()


@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (33, 70), (45, 64)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "u1"])
def test_transpose_of_any_shape(shape, dtype):
    x = (RANDOM.standard_normal(shape) * 50).astype(dtype)
    y = np.zeros(shape[::-1], dtype)
    programs.transpose.run(x, y)
    assert (y == x.T).all()


@pytest.mark.parametrize("program", [programs.matmul, programs.matmul_roles])
@pytest.mark.parametrize("sizes", [(128, 256, 64), (200, 300, 70), (1, 1, 1), (129, 257, 330)])
def test_matmul_of_any_shape(program, sizes):
    A, B = matrices(*sizes)
    C = np.full(sizes[:2], np.nan, np.float16)
    program.run(A, B, C)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=2e-3, atol=1e-2)


def test_the_two_matmuls_leave_the_same_bytes():
    A, B = matrices(200, 300, 130)
    first, second = (np.zeros((200, 300), np.float16) for _ in range(2))
    programs.matmul.run(A, B, first)
    programs.matmul_roles.run(A, B, second)
    assert first.tobytes() == second.tobytes()


def test_gemm_and_reduce_scatter_on_four_devices():
    pairs = [matrices(256, 130, 70) for _ in range(4)]
    A, B = [a for a, _ in pairs], [b for _, b in pairs]
    C = np.zeros((256, 130), np.float32)
    programs.gemm_rs.run(A, B, tk.sharded(C, "gpu", 0, 4), bm=64, bn=64)
    np.testing.assert_allclose(C, sum(a.astype(np.float64) @ b.T.astype(np.float64) for a, b in pairs), atol=1e-4)


def test_strided_arguments_are_read_through_their_layout():
    A, B = matrices(40, 30, 20)
    C = np.zeros((30, 40), np.float16).T
    programs.matmul.run(A.copy(order="F"), B, C, bm=64, bn=64)
    np.testing.assert_allclose(C, A.astype(np.float64) @ B.T.astype(np.float64), rtol=2e-3, atol=1e-2)


def test_check_leaves_the_arguments_alone():
    x, y = np.ones((2, 5), np.float32), np.zeros((2, 5), np.float32)
    report = programs.softmax.check(x, y)
    assert not y.any() and np.allclose(report.outputs["y"], 0.2)
    assert str(report).startswith("2 blocks, ")


def traced():
    f16, spec = "f16", tk.spec
    sizes = spec((200, 130), f16), spec((300, 130), f16), spec((200, 300), f16)
    return {
        "softmax": programs.softmax.trace(spec((4, 1000), "f32"), spec((4, 1000), "f32")),
        "transpose": programs.transpose.trace(spec((70, 45), "f32"), spec((45, 70), "f32")),
        "matmul": programs.matmul.trace(*sizes),
        "matmul_roles": programs.matmul_roles.trace(*sizes),
        "gemm_rs": programs.gemm_rs.trace(
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
    source = Path(programs.__file__).read_text().splitlines()
    copies = [row for row in tk.to_text(kernel).splitlines() if "copy_async" in row]
    lines = [int(row.rsplit(":", 1)[1]) for row in copies]
    assert [source[n - 1].strip().split("(")[0] for n in lines] == ["load.copy_async"] * 2
