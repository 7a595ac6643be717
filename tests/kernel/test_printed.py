"""The kernels of the examples as CUDA text on the CPU leave the bytes that the interpreter leaves."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.printer import run as run_text
from tileweave.errors import BackendError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
RANDOM = np.random.default_rng(7)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def rows(*shape, dtype="float16"):
    return RANDOM.standard_normal(shape).astype(dtype)


def case(module, name, arrays, *, slow=True, **options):
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(module, name, arrays, options, id=f"{name}-{arrays[0].shape}", marks=marks)


CASES = [
    case("softmax", "softmax", (rows(3, 1000), rows(3, 1000)), slow=False),
    case("softmax", "softmax", (rows(3, 7, dtype="float32"), rows(3, 7, dtype="float32"))),
    case("norms", "layernorm", (rows(3, 300), rows(300), rows(300), rows(3, 300))),
    case("norms", "rmsnorm", (rows(3, 300), rows(300), rows(3, 300))),
    case("transpose", "transpose", (rows(70, 45), rows(45, 70))),
    case("reduction", "column_sums", (rows(100, 300, dtype="float32"), rows(1, 300, dtype="float32"))),
    case("reduction", "running_maximum", (rows(3, 300), rows(3, 300))),
    case("matmul", "matmul", (rows(130, 70), rows(90, 70), rows(130, 90)), bm=64, bn=64),
    case("matmul", "matmul_roles", (rows(130, 136), rows(260, 136), rows(130, 260)), slow=False),
    case("matmul", "matmul_roles", (rows(130, 70), rows(260, 70), rows(130, 260))),
    case("attention", "attention", tuple(rows(2, 100, 64) for _ in range(4)), slow=False),
    case("gemm_gelu", "gemm_gelu", (rows(100, 70), rows(150, 70), rows(1, 150), rows(100, 150))),
    case(
        "grouped_gemm", "grouped_gemm",
        (rows(100, 70), rows(4, 90, 70), np.array([0, 5, 5, 70, 100], np.int32), rows(100, 90)),
    ),
    case("gemm_cp_async", "gemm_cp_async", (rows(100, 200), rows(90, 200), rows(100, 90))),
    case("stencil", "stencil", (rows(50, 70, dtype="float32"), rows(50, 70, dtype="float32"))),
    case("copy_views", "thread_view", (rows(32, 128, dtype="float32"), rows(16, 64, dtype="float32"))),
    case("copy_views", "block_view", (rows(32, 128, dtype="float32"), rows(16, 64, dtype="float32"))),
    case("fp8_gemm", "fp8_gemm", tuple(import_module("fp8_gemm").arguments(70, 140, 200))),
    case("fp8_gemm", "fp8_gemm", tuple(import_module("fp8_gemm").arguments(70, 140, 200, "float8_e8m0fnu"))),
    case("moe", "moe", tuple(import_module("moe").arguments(100, 64, 48, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "arrays", "options"), CASES)
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_printed_text_leaves_the_bytes_that_the_interpreter_leaves(module, name, arrays, options, arch):
    """Bit for bit, in three orders of the fibers: sums are formed in the order of the target's instructions."""
    kernel = getattr(import_module(module), name)
    want = kernel.check(*arrays, arch=arch, **options).outputs
    traced = kernel.trace(*arrays, **options)
    for order in ("forward", "reversed", 7):
        got = [array.copy() for array in arrays]
        run_text(traced, got, arch=arch, order=order)
        for tensor, array in zip(kernel.tensors, got, strict=True):
            assert array.tobytes() == want[tensor].tobytes(), (tensor, order)


@pytest.mark.parametrize(("module", "name", "arrays", "options"), CASES[:3] + CASES[7:8])
def test_the_order_of_sums_is_all_that_a_target_changes(module, name, arrays, options):
    kernel = getattr(import_module(module), name)
    wide, ordered = kernel.check(*arrays, **options).outputs, kernel.check(*arrays, arch="sm_80", **options).outputs
    for tensor in kernel.tensors:
        np.testing.assert_allclose(ordered[tensor].astype(float), wide[tensor].astype(float), 2e-3, 2e-3)


@tk.kernel
def doubled(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        cta.store(y[row], cta.load(x[row]) * 2.0)


def test_every_scale_of_eight_bits_is_read_as_it_is():
    """Powers of two in 8 bits (e8m0) and their NaN; nothing rounds to them, which is refused."""
    scales = np.arange(256, dtype=np.uint8).view("float8_e8m0fnu").reshape(1, 256)
    out, wide = np.zeros((1, 256), np.float32), np.zeros((1, 256), np.float32)
    doubled.run(scales, out, on="cpu")
    doubled.run(scales, wide)
    assert out.tobytes() == wide.tobytes() and out[0, 127] == 2
    with pytest.raises(BackendError, match="no CUDA text rounds to powers of two"):
        doubled.text("cuda", out, scales)


@tk.kernel
def accumulated(k, x, y, z):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        total = cta.zeros(x[row].shape)
        for _ in cta.range(3):
            total += cta.load(x[row])
            total -= cta.load(y[row])
        cta.store(z[row], total)


@pytest.mark.parametrize(("first", "second"), [("float64", "float64"), ("float64", "float16"), ("float32", "float64")])
def test_a_wider_operand_is_rounded_before_it_is_added(first, second):
    """Sums in f32 take f64 operands in f32, as the language says; C would add in double and round after."""
    x, y, z, want = rows(3, 128, dtype=first), rows(3, 128, dtype=second), rows(3, 128, dtype="float32"), rows(3, 128)
    want = want.astype(np.float32)
    accumulated.run(x, y, z, on="cpu")
    accumulated.run(x, y, want)
    assert z.tobytes() == want.tobytes()
