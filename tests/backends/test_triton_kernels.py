"""The Triton kernels from layouts: golden text, values in the interpreter at sizes that divide nothing, compiled."""

import numpy as np
import pytest

from backends.random_copies import random_copy
from tileweave.backends.triton import (
    ARCHITECTURES,
    FP8,
    KERNELS,
    TritonRun,
    compiled,
    installed,
    interpret,
    interpret_all,
    kernel,
)
from tileweave.backends.triton.trials import run_trial
from tileweave.errors import BackendError, LayoutError
from tileweave.layout.lego import template

MISSING = installed()
needs_triton = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ORDERS = [(a, b) for a in ("row", "col") for b in ("row", "col")]
RNG = np.random.default_rng(7)


def halves(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def stored(array, order):
    return array if order == "row" else np.ascontiguousarray(array.T)


def launched(name, filled, arrays, **sizes):
    """The arrays after a launch with the grid and the arguments of a filled template."""
    scalars = {key: sizes[key] for key in filled.arguments}
    return interpret(filled.text, name, filled.launch(**sizes), arrays, scalars)


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_of_every_kernel(name, golden):
    filled = kernel(name).template().fill("triton")
    assert filled.text == kernel(name).template().fill("triton").text
    compile(filled.text, name, "exec")
    golden(f"triton/{name}.py.txt", filled.text)


def test_masks_vanish_where_the_sizes_divide(golden):
    whole = kernel("matmul").template(M=4096, N=4096, K=4096, b="col").fill("triton")
    assert "mask" not in whole.text and "int64" not in whole.text and whole.arguments == ()
    assert whole.launch() == (64 * 64,)
    partial = kernel("matmul").template(M=100, N=70, K=90).fill("triton")
    assert partial.text.count("mask=") == 3 and partial.text.count("other=0.0") == 2 and "int64" not in partial.text
    golden("triton/matmul_4096.py.txt", whole.text)


def test_offsets_are_64_bits_wide_only_where_32_do_not_hold_them():
    assert "tl.int64" not in kernel("matmul").template(M=32768, N=32768, K=32768).fill().text
    wide = kernel("matmul").template(M=65536, N=65536, K=65536).fill().text
    assert "tl.int64" in wide and "tl.cast(pid" not in wide.split("acc")[0].split("t0 =")[0]


def test_options_and_names_are_checked():
    with pytest.raises(LayoutError, match="no kernel 'conv'"):
        kernel("conv")
    with pytest.raises(LayoutError, match="no option Q"):
        kernel("matmul").template(Q=3)
    with pytest.raises(LayoutError, match="order 'diagonal'"):
        kernel("matmul").template(a="diagonal")
    with pytest.raises(LayoutError, match="no power of two"):
        kernel("matmul").template(BM=48).fill("triton")
    with pytest.raises(LayoutError, match="a row of 100000"):
        kernel("softmax").template(N=100000)


@needs_triton
@pytest.mark.parametrize(("a", "b"), ORDERS)
@pytest.mark.parametrize("fixed", [True, False], ids=["constant sizes", "sizes at run time"])
def test_matmul_in_four_orders(a, b, fixed):
    M, N, K = 100, 70, 90
    sizes = {"M": M, "N": N, "K": K}
    options = {"BM": 32, "BN": 32, "BK": 32, "group": 3, "a": a, "b": b}
    filled = kernel("matmul").template(**options, **(sizes if fixed else {})).fill("triton")
    x, y = halves(M, K), halves(K, N)
    arrays = {"a_ptr": stored(x, a), "b_ptr": stored(y, b), "c_ptr": np.full((M, N), np.nan, np.float16)}
    found = launched("matmul", filled, arrays, **sizes)["c_ptr"]
    assert np.allclose(found, x.astype(np.float32) @ y.astype(np.float32), rtol=2e-3, atol=2e-2)


@needs_triton
@pytest.mark.parametrize("dtype", FP8)
def test_fp8_products_are_exact_where_their_sums_are(dtype):
    """Small whole numbers: exact in FP8, their products and sums in FP32, so equal bit for bit."""
    M, N, K = 50, 34, 70
    filled = kernel("matmul").template(M=M, N=N, K=K, BM=32, BN=32, BK=32, b="col").fill("triton")
    x, y = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((M, K), (K, N)))
    arrays = {
        "a_ptr": x.astype(dtype),
        "b_ptr": stored(y, "col").astype(dtype),
        "c_ptr": np.full((M, N), np.nan, np.float32),
    }
    assert np.array_equal(launched("matmul", filled, arrays)["c_ptr"], x @ y)


@needs_triton
@pytest.mark.parametrize("dtype", FP8)
def test_fp8_products_compile_from_the_architecture_that_has_them(dtype):
    triton_name, oldest = FP8[dtype]
    filled = kernel("matmul").template().fill("triton")
    signature = kernel("matmul").signature(triton_name, filled.arguments) | {"c_ptr": "*fp16"}
    assert "mma.sync" in compiled(filled.text, "matmul", signature, oldest)["ptx"]
    if oldest != "sm_80":
        with pytest.raises(BackendError):
            compiled(filled.text, "matmul", signature, "sm_80")


@needs_triton
@pytest.mark.parametrize("batches", [1, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_random_copies_equal_numpy(batches):
    """Fifty kernels in one module and one child process."""
    text = (
        "{{ layouts }}\n@triton.jit\ndef copy{{ number }}(y_ptr, x_ptr{{ arguments }}):\n    pid = tl.program_id(0)\n"
        "    {{ define('pid') }}\n    for k in range(0, {{ steps }}):\n        {{ loop('k') }}\n"
        "        {{ b.store('y_ptr', a.load('x_ptr', -1)) }}\n"
    )
    rng = np.random.default_rng(2028)
    print("seed 2028")
    for batch in range(batches):
        runs, cases, texts = [], [], ["import triton\nimport triton.language as tl\n\n"]
        for number in range(batch * 50, batch * 50 + 50):
            copy = random_copy(rng, number, powers=True)
            a, b, steps = copy.slices()
            filled = template(text, a=a, b=b, steps=steps, number=number).fill("triton")
            texts.append(filled.text)
            x = rng.permutation(copy.shape[0] * copy.shape[1]).astype(np.int32)
            arrays = {"y_ptr": np.full_like(x, -7), "x_ptr": x}
            scalars = {name: n for name, n in copy.sizes().items() if name in filled.arguments}
            runs.append(TritonRun(f"copy{number}", (copy.grid[0],), arrays, scalars))
            cases.append((copy, x))
        for (copy, x), found in zip(cases, interpret_all("\n\n".join(texts), runs), strict=True):
            assert np.array_equal(found["y_ptr"], copy.answer(x)), copy


@needs_triton
def test_grouped_program_ids_write_every_row():
    """Nine row blocks in groups of 4 left the last rows unwritten in the document's form."""
    M, N, K = 9 * 16, 4 * 16, 16
    filled = kernel("matmul").template(BM=16, BN=16, BK=16, group=4).fill("triton")
    x, y = halves(M, K), halves(K, N)
    arrays = {"a_ptr": x, "b_ptr": y, "c_ptr": np.full((M, N), np.nan, np.float16)}
    found = launched("matmul", filled, arrays, M=M, N=N, K=K)["c_ptr"]
    assert np.isfinite(found).all()
    assert np.allclose(found, x.astype(np.float32) @ y.astype(np.float32), rtol=2e-3, atol=2e-2)


@needs_triton
@pytest.mark.parametrize("fixed", [True, False], ids=["constant sizes", "sizes at run time"])
def test_softmax(fixed):
    x = RNG.standard_normal((7, 100)).astype(np.float32)
    options = {"M": 7, "N": 100} if fixed else {"BN": 128}
    filled = kernel("softmax").template(**options).fill("triton")
    found = launched("softmax", filled, {"x_ptr": x, "y_ptr": np.zeros_like(x)}, M=7, N=100)["y_ptr"]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.allclose(found, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)


@needs_triton
def test_layernorm_forward_and_backward():
    M, N, eps = 13, 75, 1e-5
    x, dy = (RNG.standard_normal((M, N)).astype(np.float32) for _ in range(2))
    w, b = (RNG.standard_normal(N).astype(np.float32) for _ in range(2))
    mean, var = x.mean(axis=1), x.var(axis=1)
    rstd = 1 / np.sqrt(var + eps)
    unit = (x - mean[:, None]) * rstd[:, None]
    arrays = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "y_ptr": np.zeros_like(x), "mean_ptr": np.zeros(M, np.float32)}
    arrays["rstd_ptr"] = np.zeros(M, np.float32)
    forward = launched("layernorm", kernel("layernorm").template(BN=128).fill(), arrays, M=M, N=N)
    assert np.allclose(forward["y_ptr"], unit * w + b, rtol=1e-4, atol=1e-5)
    assert np.allclose(forward["mean_ptr"], mean, atol=1e-6) and np.allclose(forward["rstd_ptr"], rstd, rtol=1e-5)
    g = w * dy
    expected = (g - unit * (unit * g).mean(axis=1, keepdims=True) - g.mean(axis=1, keepdims=True)) * rstd[:, None]
    arrays = {"x_ptr": x, "w_ptr": w, "dy_ptr": dy, "mean_ptr": forward["mean_ptr"], "rstd_ptr": forward["rstd_ptr"]}
    arrays["dx_ptr"] = np.zeros_like(x)
    found = launched("layernorm_dx", kernel("layernorm_dx").template(M=M, N=N).fill(), arrays, M=M, N=N)
    assert np.allclose(found["dx_ptr"], expected, rtol=1e-3, atol=1e-5)
    arrays = {key: arrays[key] for key in ("x_ptr", "dy_ptr", "mean_ptr", "rstd_ptr")}
    arrays |= {"dw_ptr": np.zeros(N, np.float32), "db_ptr": np.zeros(N, np.float32)}
    sums = launched("layernorm_dwdb", kernel("layernorm_dwdb").template(BM=8, BN=32).fill(), arrays, M=M, N=N)
    assert np.allclose(sums["dw_ptr"], (dy * unit).sum(axis=0), rtol=1e-3, atol=1e-4)
    assert np.allclose(sums["db_ptr"], dy.sum(axis=0), rtol=1e-4, atol=1e-5)


@needs_triton
def test_grouped_gemm():
    problems = [(33, 50, 20), (16, 16, 16), (70, 5, 41)]
    a = [halves(m, k) for m, _n, k in problems]
    b = [halves(k, n) for _m, n, k in problems]
    c = [np.full((m, n), np.nan, np.float16) for m, n, _k in problems]
    options = {"groups": 3, "programs": 5, "BM": 16, "BN": 16, "BK": 16}
    filled = kernel("grouped_gemm").template(**options).fill("triton")
    arrays = {"*a_ptrs": a, "*b_ptrs": b, "*c_ptrs": c, "sizes_ptr": np.array(problems, np.int32)}
    found = interpret(filled.text, "grouped_gemm", filled.launch(), arrays)
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        expected = x.astype(np.float32) @ y.astype(np.float32)
        assert np.allclose(found[f"c_ptrs.{k}"], expected, rtol=2e-3, atol=2e-2)


@needs_triton
@pytest.mark.parametrize("name", KERNELS)
def test_the_trial_of_every_kernel_passes(name):
    trial, off = run_trial(name, kernel(name).template().fill("triton"), {})
    assert off <= trial.tolerance and trial.wanted


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_every_architecture(name, architecture):
    check_compiles(name, architecture)


@needs_triton
@pytest.mark.parametrize("architecture", ["sm_80", "gfx942"])
def test_matmul_uses_the_matrix_units(architecture):
    stages = check_compiles("matmul", architecture)
    words = {"sm_80": ("ptx", "mma.sync"), "gfx942": ("amdgcn", "v_mfma")}[architecture]
    assert words[1] in stages[words[0]]


def check_compiles(name, architecture):
    entry = kernel(name)
    filled = entry.template().fill("triton")
    stages = compiled(filled.text, name, entry.signature("fp16", filled.arguments), architecture)
    assert len(stages["ttir"]) > 500
    return stages


@needs_triton
def test_a_kernel_that_fails_keeps_its_text_and_log():
    text = "import triton\n\n@triton.jit\ndef broken(x_ptr):\n    undefined(x_ptr)\n"
    with pytest.raises(BackendError) as caught:
        interpret(text, "broken", (1,), {"x_ptr": np.zeros(4, np.float32)})
    assert "undefined" in caught.value.facts["log"] and caught.value.facts["source"] == text


def test_what_the_interpreter_computes_wrongly_is_refused():
    import ml_dtypes

    with pytest.raises(LayoutError, match="bfloat16"):
        interpret("", "f", (1,), {"x_ptr": np.zeros(4, ml_dtypes.bfloat16)})


def test_unknown_architectures_and_missing_packages_are_named():
    with pytest.raises(LayoutError, match="unknown architecture 'sm_20'"):
        compiled("", "f", {}, "sm_20")
    if MISSING:
        with pytest.raises(BackendError, match="not installed"):
            interpret("", "f", (1,), {"x_ptr": np.zeros(4, np.float32)})
