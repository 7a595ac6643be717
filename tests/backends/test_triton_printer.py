"""Kernels as Triton text: what is printed, what is declined, and values in its interpreter where it is installed."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from kernel.random_kernels import random_kernel
from tileweave import kernel as tk
from tileweave.backends import triton
from tileweave.backends.triton import printer
from tileweave.backends.triton.run import TritonRun, interpret_all
from tileweave.errors import BackendError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
MISSING = triton.installed()
needs_triton = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def rows(*shape, dtype="float16"):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


CASES = [
    ("softmax", "softmax", (rows(3, 1000), rows(3, 1000)), {}),
    ("norms", "layernorm", (rows(3, 300), rows(300), rows(300), rows(3, 300)), {}),
    ("norms", "rmsnorm", (rows(3, 300), rows(300), rows(3, 300)), {}),
    ("transpose", "transpose", (rows(70, 45), rows(45, 70)), {}),
    ("reduction", "column_sums", (rows(100, 300, dtype="float32"), rows(1, 300, dtype="float32")), {}),
    ("reduction", "running_maximum", (rows(3, 300), rows(3, 300)), {}),
    ("matmul", "matmul", (rows(130, 70), rows(90, 70), rows(130, 90)), {"bm": 64, "bn": 64}),
    ("attention", "attention", tuple(rows(2, 100, 64) for _ in range(4)), {}),
    ("gemm_gelu", "gemm_gelu", (rows(100, 70), rows(150, 70), rows(1, 150), rows(100, 150)), {}),
    (
        "grouped_gemm",
        "grouped_gemm",
        (rows(100, 70), rows(4, 90, 70), np.array([0, 5, 5, 70, 100], np.int32), rows(100, 90)),
        {},
    ),
]
KINDS = {"f16": "*fp16", "f32": "*fp32", "s32": "*i32", "e4m3": "*fp8e4nv"}


CASES.append(("fp8_gemm", "fp8_gemm", tuple(import_module("fp8_gemm").arguments(100, 200, 300)), {}))


def traced(module, name, arrays, options):
    function = getattr(import_module(module), name)
    return function, function.trace(*arrays, **options)


@pytest.mark.parametrize(("module", "name", "arrays", "options"), CASES, ids=[case[1] for case in CASES])
def test_every_example_without_roles_is_printed_as_python(module, name, arrays, options):
    _, kernel = traced(module, name, arrays, options)
    text = printer.text(kernel)
    compile(text, name, "exec")
    assert f"def {name}(" in text and text == printer.text(kernel)


def test_texts_are_golden(golden):
    for module, name, arrays, options in (CASES[0], CASES[6]):
        golden(f"triton_printed_{name}.py.txt", printer.text(traced(module, name, arrays, options)[1]))


@needs_triton
@pytest.mark.parametrize(("module", "name", "arrays", "options"), CASES, ids=[case[1] for case in CASES])
def test_the_interpreter_of_triton_leaves_what_ours_leaves(module, name, arrays, options):
    function, kernel = traced(module, name, arrays, options)
    got = [array.copy() for array in arrays]
    function.run(*got, on="triton", **options)
    want = function.check(*arrays, **options).outputs
    for tensor, array in zip(function.tensors, got, strict=True):
        tolerance = 2e-3 if array.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(array.astype(float), want[tensor].astype(float), tolerance, tolerance)
    stages = triton.compiled(printer.text(kernel), name, {p.name: KINDS[p.dtype] for p in kernel.params}, "sm_90")
    assert "ptx" in stages


@needs_triton
@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_random_kernels_in_the_interpreter_of_triton_equal_numpy(count):
    """Copies, maps, reductions, scans and products, in one child process; BF16 is computed wrongly there."""
    texts, runs, trials = [], [], []
    for seed in range(count):
        trial = random_kernel(seed)
        if any(array.dtype.name == "bfloat16" for array in trial.arrays):
            continue
        kernel = replace(trial.kernel.trace(*trial.arrays), name=f"random{seed}")
        try:
            texts.append(printer.text(kernel))
        except BackendError as error:
            assert "Triton cannot say" in error.problem
            continue
        arrays = dict(zip([p.name for p in kernel.params], trial.arrays, strict=True))
        runs.append(TritonRun(kernel.name, (kernel.grid.size,), arrays))
        trials.append((seed, trial))
    assert len(trials) > count // 2
    for (seed, trial), found in zip(trials, interpret_all("\n".join(texts), runs), strict=True):
        got, want = list(found.values())[-1].astype(float), trial.expected.astype(float)
        message = f"seed {seed}"
        np.testing.assert_allclose(got.reshape(want.shape), want, trial.tolerance, trial.tolerance, err_msg=message)


@tk.kernel
def peak(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=32) as cta:
        cta.store(y[row], cta.max(cta.load(x[row])))


@needs_triton
def test_a_maximum_keeps_a_nan_as_numpy_does():
    x, y = np.arange(40, dtype=np.float32).reshape(4, 10), np.zeros((4, 1), np.float32)
    x[1, 3] = np.nan
    peak.run(x, y, on="triton")
    np.testing.assert_array_equal(y, x.max(1, keepdims=True))


@tk.kernel
def parts(k, x, y):
    i = k.grid(x.blocks(0, 64))
    with k.cta(threads=64), k.warp[0]() as warp:
        warp.store(y.tile(64)[i], warp.load(x.tile(64)[i]))


@tk.kernel
def small_product(k, a, b, c):
    with k.cta(threads=32) as cta:
        acc = cta.zeros((8, 8), dtype="f32")
        cta.gemm(acc, a.tile(8, 16)[0, 0], b.tile(8, 16)[0, 0])
        cta.copy(c.tile(8, 8)[0, 0], acc)


def refused(function, *arrays):
    with pytest.raises(BackendError) as caught:
        function.text("triton", *arrays)
    return str(caught.value)


def test_what_triton_cannot_say_is_declined_with_reason_and_line():
    roles = import_module("matmul").matmul_roles
    message = refused(roles, rows(130, 136), rows(260, 136), rows(130, 260))
    assert message.startswith("text('triton'): Triton cannot say a tensor of mbarrier")
    assert "matmul.py:" in message and "Triton's own choice" in message
    x = np.zeros(128, np.float32)
    message = refused(parts, x, x.copy())
    assert "Triton cannot say a scope of warps" in message and "test_triton_printer.py:" in message
    a, c = np.zeros((8, 16), np.float16), np.zeros((8, 8), np.float32)
    assert "tl.dot takes extents from 16" in refused(small_product, a, a.copy(), c)


def test_running_without_triton_says_what_to_install():
    if not MISSING:
        pytest.skip("triton is installed")
    x = rows(3, 64)
    with pytest.raises(BackendError, match="pip install"):
        import_module("softmax").softmax.run(x, x.copy(), on="triton")
