"""CUDA kernels from layouts: texts, values at sizes that divide nothing, no races, compiled for devices."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tileweave.backends.cuda import compile
from tileweave.backends.cuda.compiled import nvrtc_cubin
from tileweave.backends.cuda.templates import KERNELS, kernel, run_trial
from tileweave.errors import BackendError, LayoutError

slow = pytest.mark.slow
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


def case(name, *marks, **options):
    return pytest.param(name, options, marks=marks, id=" ".join([name, *(f"{k}={v}" for k, v in options.items())]))


CASES = [
    case("transpose_naive"),
    case("transpose_naive", slow, M=64, N=96),
    case("transpose_shared", shared="row"),
    case("transpose_shared", shared="padded"),
    case("transpose_shared", shared="swizzled"),
    case("transpose_shared", slow, shared="swizzled", M=70, N=101),
    case("needleman_wunsch", buffer="row", B=16),
    case("needleman_wunsch", buffer="padded", B=16),
    case("needleman_wunsch", buffer="antidiagonal"),
    case("needleman_wunsch", slow, buffer="antidiagonal", B=7, rows=45, columns=83),
    case("lud", b=4, R=2, N=21),
    case("lud", b=4, R=3, order="blocked"),
    case("lud", slow, b=8, R=1),
    case("lud", slow),
    *(
        case("stencil", *([] if (shape, r) in (("cube", 2), ("star", 3)) else [slow]), shape=shape, r=r)
        for shape in ("star", "cube")
        for r in (1, 2, 3, 4)
    ),
    case("stencil", shape="star", r=4, layout="row", B=4),
    case("stencil", slow, shape="cube", r=1, layout="row"),
    case("stencil", slow, shape="cube", r=2, B=4, Z=19, Y=11, X=21),
    case("matmul_mma"),
    case("matmul_mma", shared="padded", BK=16, aligned=0),
    case("matmul_mma", slow, shared="row", BM=32, BN=128, BK=64),
    case("matmul_mma", b="row"),
    case("matmul_mma", slow, b="row", aligned=0, shared="padded", BM=32, BN=128),
    case("matmul_mma", slow, BM=128, BN=64, M=200, N=75, K=88),
    case("matmul_mma", stages=3, K=136),
    case("matmul_mma", slow, stages=2, b="row", K=24),
    case("matmul_mma", slow, stages=4, aligned=0, BK=16, shared="padded", K=33),
    case("matmul_mma", slow, stages=8, BM=32, BN=32),
]


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_of_every_kernel(name, golden):
    text = kernel(name).text().text
    assert text == kernel(name).text().text
    golden(f"cuda/{name}.cu.txt", text)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_values_at_sizes_that_divide_nothing_and_no_findings(name, options):
    entry = kernel(name)
    trial = run_trial(entry, entry.text(**options), options, check=True)
    assert trial.difference() <= trial.tolerance, (
        trial.sizes,
        np.argwhere(trial.read(trial.found) != trial.wanted)[:5],
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wait_group 1;", "wait_group 2;"),
        pytest.param("stages_a[(s + 1) % 3], *const sb", "stages_a[s % 3], *const sb", marks=slow),
        pytest.param("      __syncthreads();\n    }\n    if (s < steps)", "    }\n    if (s < steps)", marks=slow),
    ],
)
def test_a_pipeline_that_waits_too_little_is_caught(old, new):
    entry, options = kernel("matmul_mma"), {"stages": 3, "K": 136}
    made = entry.text(**options)
    assert made.text.count(old) == 1
    with pytest.raises(BackendError, match=r"race|uninitialised"):
        run_trial(entry, replace(made, text=made.text.replace(old, new)), options, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reversed", 5])
@pytest.mark.parametrize("name", KERNELS)
def test_values_in_other_orders_of_threads(name, order):
    trial = run_trial(kernel(name), kernel(name).text(), order=order)
    assert trial.difference() <= trial.tolerance


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=slow), pytest.param("sm_100a", marks=slow)])
def test_all_kernels_compile_for_a_device(arch):
    """In one file: each in a namespace of its own."""
    whole = "\n".join(f"namespace {name} {{\n{entry.text().text}\n}}" for name, entry in KERNELS.items())
    made = compile(whole, arch)
    assert len(made.kernels) == 8 and all(use.spill_bytes == 0 for use in made.kernels.values())
    if made.sass:
        assert made.sass["HMMA"] >= 16 and made.sass["LDSM"] >= 8 and made.sass["LDGSTS"] >= 4


@pytest.mark.parametrize("name", KERNELS)
def test_nvrtc_compiles_the_texts_without_headers_or_a_device(name):
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed: pip install 'tileweave[gpu]'")
    for arch in ("sm_80", "sm_90a"):
        cubin, compiler = nvrtc_cubin(kernel(name).text().text, arch)
        assert cubin.startswith(b"\x7fELF") and "NVRTC" in compiler


def test_only_the_buffer_changes_with_the_layout():
    """Needleman-Wunsch in three layouts: the accessor and one declaration differ, the kernel stays."""

    def kernel_alone(buffer):
        text = kernel("needleman_wunsch").text(buffer=buffer).text
        return re.sub(r"struct Arr2D \{.*?\n\};\n", "", text, flags=re.DOTALL).replace(str(33 * 34 - 1), "1089")

    row = kernel_alone("row")
    assert row == kernel_alone("padded") == kernel_alone("antidiagonal") and "buff[y - 1][x - 1]" in row


def test_masks_vanish_and_copies_are_wide_where_sizes_divide():
    whole = kernel("matmul_mma").text(M=4096, N=4096, K=4096).text
    assert "copy_16" in whole and "inside = true" in whole and "long long" not in whole
    assert "copy_16" not in kernel("matmul_mma").text(aligned=0).text
    assert "copy_16" not in kernel("matmul_mma").text(K=100).text
    assert "if (" not in kernel("transpose_shared").text(M=4096, N=4096).text


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("stencil", {"r": 5}, "r is 5"),
        ("stencil", {"shape": "ball"}, "shape is 'ball'"),
        ("lud", {"R": "two"}, "R is 'two'"),
        ("needleman_wunsch", {"buffer": "hilbert"}, "buffer is 'hilbert'"),
        ("transpose_shared", {"shared": "diagonal"}, "shared is 'diagonal'"),
        ("matmul_mma", {"BM": 48}, "BM is 48"),
        ("matmul_mma", {"M": 0}, "the size M is 0"),
        ("matmul_mma", {"b": "diagonal"}, "b is 'diagonal'"),
        ("matmul_mma", {"BM": 32, "BK": 16}, "less than 128 threads copy at once"),
        ("transpose_naive", {"Q": 1}, "no option Q"),
        ("fft", {}, "no kernel 'fft'"),
    ],
)
def test_bad_options_are_refused_before_any_text(name, options, problem):
    with pytest.raises(LayoutError, match=re.escape(problem)):
        kernel(name).text(**options)
