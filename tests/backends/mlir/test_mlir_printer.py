"""Kernels as MLIR: verified, run on the fibers, byte for byte what the interpreter of the same program leaves."""

import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends import mlir
from tileweave.backends.mlir.printer.entry import run_together
from tileweave.errors import BackendError

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "kernel"), str(ROOT / "examples" / "kernels")]
random_kernel = import_module("random_kernels").random_kernel
needs_tools = pytest.mark.skipif(bool(mlir.installed()), reason=mlir.installed())
RANDOM = np.random.default_rng(5)


def rows(*shape, dtype="float16"):
    return RANDOM.standard_normal(shape).astype(dtype)


def same(runs, wanted, order):
    run_together(runs, "sm_80", order=order)
    for (kernel, arrays), want in zip(runs, wanted, strict=True):
        for p, array in zip(kernel.params, arrays, strict=True):
            assert array.tobytes() == want[p.name].tobytes(), f"{p.name} of {kernel.name}"


def random_ones(seeds, order):
    """The kernels of the seeds in one module; only products of BF16 are declined."""
    runs, wanted = [], []
    for seed in seeds:
        trial = random_kernel(seed)
        kernel = trial.kernel.trace(*trial.arrays)
        try:
            trial.kernel.text("mlir", arch="sm_80")
        except BackendError as error:
            assert "nvgpu.mma.sync of bf16" in str(error), f"seed {seed}: {error}"
            continue
        runs.append((kernel, [array.copy() for array in trial.arrays]))
        wanted.append(trial.kernel.check(*trial.arrays, arch="sm_80").outputs)
    same(runs, wanted, order)
    return len(runs)


@needs_tools
def test_random_kernels():
    assert random_ones(range(16), "forward") >= 14


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("part", range(25))
def test_many_random_kernels(part):
    assert random_ones(range(5000 + 20 * part, 5020 + 20 * part), ("forward", "reversed", 7)[part % 3]) >= 12


CASES = [
    ("matmul", "matmul", lambda: (rows(100, 72), rows(90, 72), rows(100, 90)), {"bm": 64, "bn": 64}),
    ("softmax", "softmax", lambda: (rows(3, 700, dtype="float32"), rows(3, 700, dtype="float32")), {}),
    ("transpose", "transpose", lambda: (rows(70, 45), rows(45, 70)), {}),
    ("attention", "attention", lambda: tuple(rows(1, 70, 64) for _ in range(4)), {}),
    ("norms", "layernorm", lambda: (rows(3, 300), rows(300), rows(300), rows(3, 300)), {}),
    ("gemm_cp_async", "gemm_cp_async", lambda: (rows(60, 200), rows(90, 200), rows(60, 90)), {"bm": 32, "bn": 32}),
    ("gemm_gelu", "gemm_gelu", lambda: (rows(60, 70), rows(90, 70), rows(1, 90), rows(60, 90)), {"bm": 64, "bn": 64}),
    ("stencil", "stencil", lambda: (rows(50, 70, dtype="float32"), rows(50, 70, dtype="float32")), {}),
    ("reduction", "column_sums", lambda: (rows(90, 200, dtype="float32"), rows(1, 200, dtype="float32")), {}),
]  # fmt: skip


@needs_tools
def test_examples_leave_what_the_interpreter_leaves():
    runs, wanted, texts = [], [], []
    for module, name, arrays, options in CASES:
        function, given = getattr(import_module(module), name), arrays()
        wanted.append(function.check(*given, arch="sm_80", **options).outputs)
        runs.append((function.trace(*given, **options), [array.copy() for array in given]))
        texts.append(function.text("mlir", *given, arch="sm_80", **options))
    same(runs, wanted, ("forward", "reversed", 7))
    assert texts[0].count("nvgpu.mma.sync") == texts[0].count("nvgpu.ldmatrix") == 4
    assert "math.exp" in texts[1]
    assert "device_async_copy" in texts[5] and "bypassL1" in texts[5]
    assert re.search(r"%s: memref<\d+xf16, #gpu.address_space<workgroup>>", texts[2])  # names of the user
    made = mlir.assemble(texts[0], "sm_80")
    assert made.ptx.count("mma.sync") >= 4
    assert made.spills == 0


@tk.kernel
def staged(k, x, y, careful=True):
    with k.cta(threads=64) as cta:
        s = k.shared(x.shape, like=x)
        cta.copy(s, x)
        if careful:
            cta.sync()
        cta.copy(y, s.T)


@needs_tools
def test_a_missing_sync_has_the_line_of_the_kernel():
    x, y = rows(40, 70), rows(70, 40)
    staged.run(x, y, on="mlir")
    assert (y == x.T).all()
    kernel = staged.trace(x, y, careful=False)
    with pytest.raises(BackendError) as caught:
        import_module("tileweave.backends.mlir.printer").run(kernel, [x, y], check=True)
    found = [f for f in caught.value.facts["findings"] if not f.note]
    assert any("test_mlir_printer.py:" in f.place for f in found), caught.value


@tk.kernel
def left(k, x, y):
    with k.cta(threads=32) as cta:
        for i in cta.range(4):
            cta.store(y[i], cta.load(x[i]))
            with k.when(i > 1):
                cta.break_()


@pytest.mark.parametrize(
    ("module", "name", "arrays", "options", "arch", "what"),
    [
        ("matmul", "matmul_roles", ((128, 64), (256, 64), (128, 256)), {}, "sm_90a", "tensor maps"),
        ("matmul", "matmul_roles", ((128, 64), (256, 64), (128, 256)), {}, "sm_80", "mbarriers"),
        ("clusters", "row_sums", ((2, 70), (2, 1)), {}, "sm_90a", "clusters of 4 blocks"),
        (None, "left", ((4, 32), (4, 32)), {}, "sm_80", "break of a loop"),
    ],
)
def test_what_mlir_cannot_say_is_declined_with_the_line(module, name, arrays, options, arch, what):
    function = getattr(import_module(module), name) if module else left
    with pytest.raises(BackendError) as caught:
        function.text("mlir", *(tk.spec(s, "f16") for s in arrays), arch=arch, **options)
    text = str(caught.value)
    assert what in text and "MLIR cannot say" in text and re.search(r"line +\S+\.py:\d+", text), text
