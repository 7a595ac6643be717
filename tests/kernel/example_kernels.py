"""The kernels of the examples with arguments: sizes that divide nothing, and sizes that tiles divide."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from tileweave import kernel as tk

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
SPEC = tk.spec


def products(m, n, k, dtype="f16"):
    return [SPEC((m, k), dtype), SPEC((n, k), dtype), SPEC((m, n), dtype)]


def examples():
    row = SPEC((3, 300), "f32")
    flat = SPEC((300,), "f32")
    starts = np.array([0, 5, 5, 70, 100], np.int32)
    yield "softmax.softmax", [row, row]
    yield "norms.layernorm", [row, flat, flat, row]
    yield "norms.rmsnorm", [row, flat, row]
    yield "transpose.transpose", [SPEC((70, 45), "f16"), SPEC((45, 70), "f16")]
    yield "stencil.stencil", [SPEC((50, 70), "f32")] * 2
    yield "reduction.column_sums", [row, SPEC((1, 300), "f32")]
    yield "reduction.running_maximum", [row, row]
    yield "matmul.matmul", products(200, 300, 136)
    yield "matmul.matmul_roles", products(200, 300, 70)
    yield "tensor_memory.matmul_tensor", products(200, 300, 136)
    yield "tensor_memory.matmul_pair", products(600, 300, 136)
    yield "clusters.matmul_cluster", products(600, 300, 136)
    yield "clusters.row_sums", [SPEC((12, 5000), "f32"), SPEC((12, 1), "f32")]
    yield "gemm_cp_async.gemm_cp_async", products(100, 90, 200)
    yield "gemm_gelu.gemm_gelu", [*products(100, 150, 72)[:2], SPEC((1, 150), "f16"), SPEC((100, 150), "f16")]
    yield "fp8_gemm.fp8_gemm", import_module("fp8_gemm").arguments(70, 140, 256)
    yield "mx_gemm.mx_gemm", import_module("mx_gemm").arguments(200, 150, 272)
    yield "mx_gemm.mx_gemm_anywhere", import_module("mx_gemm").arguments(70, 140, 256)
    yield "attention.attention", [SPEC((2, 100, 64), "f16")] * 4
    yield "attention_tensor.attention_tensor", [SPEC((2, 300, 64), "f16")] * 4
    a, c = SPEC((100, 72), "f16"), SPEC((100, 90), "f16")
    yield "grouped_gemm.grouped_gemm", [a, SPEC((4, 90, 72), "f16"), starts, c]
    yield "moe.moe", import_module("moe").arguments(100, 64, 48, 4)
    yield (
        "gemm_reduce_scatter.gemm_rs",
        [[a] * 4, [SPEC((90, 72), "f16")] * 4, tk.sharded(np.zeros((100, 90)), "gpu", 0, 4)],
    )
    yield "copy_views.thread_view", [SPEC((32, 128), "f32"), SPEC((16, 64), "f32")]
    yield "copy_views.block_view", [SPEC((32, 128), "f32"), SPEC((16, 64), "f32")]
    gathered = [[SPEC((100, 72), "f16")] * 4, [SPEC((50, 72), "f16")] * 4, [np.zeros((400, 50), np.float32)] * 4]
    yield "gather_gemm.gather_gemm", gathered


def found(name):
    """The kernel of a name; those that are made for a mesh are made for four devices."""
    module, _, kernel = name.partition(".")
    loaded = import_module(module)
    return getattr(loaded, kernel, None) or loaded.on(4)


def even():
    """The examples at sizes that tiles divide, in the types that they are for."""
    for dtype in ("f16", "bf16", "f32"):
        row, flat = SPEC((64, 4096), dtype), SPEC((4096,), dtype)
        yield "softmax.softmax", [row, row]
        yield "softmax.softmax", [SPEC((64, 30000), dtype)] * 2
        yield "norms.layernorm", [row, flat, flat, row]
        yield "norms.rmsnorm", [row, flat, row]
        yield "transpose.transpose", [SPEC((512, 512), dtype)] * 2
        yield "stencil.stencil", [SPEC((512, 512), dtype)] * 2
        yield "reduction.column_sums", [SPEC((1024, 4096), dtype), SPEC((1, 4096), "f32")]
        yield "reduction.running_maximum", [row, row]
        yield "gemm_cp_async.gemm_cp_async", products(1024, 1024, 512, dtype)
        yield "attention.attention", [SPEC((8, 1024, 64), dtype)] * 4
    for dtype in ("f16", "bf16"):
        made = products(1024, 1024, 512, dtype)
        for name in (
            "matmul.matmul", "matmul.matmul_roles", "tensor_memory.matmul_tensor", "tensor_memory.matmul_pair",
            "clusters.matmul_cluster",
        ):  # fmt: skip
            yield name, made
        yield "gemm_gelu.gemm_gelu", [*made[:2], SPEC((1, 1024), dtype), made[2]]
        yield "attention.attention", [SPEC((8, 1024, 128), dtype)] * 4
        yield "attention_tensor.attention_tensor", [SPEC((8, 1024, 64), dtype)] * 4
        yield "attention_tensor.attention_tensor", [SPEC((8, 1024, 128), dtype)] * 4
    for scales in (np.float32, "float8_e8m0fnu"):
        yield "fp8_gemm.fp8_gemm", import_module("fp8_gemm").arguments(256, 256, 512, scales)
