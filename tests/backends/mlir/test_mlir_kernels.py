"""The document's kernels on the CPU, at sizes that divide nothing, in three orders of threads, beside NumPy."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tileweave.backends import mlir
from tileweave.errors import BackendError, LayoutError
from tileweave.index import evaluate

ORDERS = ("forward", "reversed", 3)


def run_cases(cases, symbolic=False, **options):
    """Fills, merges and runs kernels in one program; the largest difference of each from NumPy's answer.

    Args:
        cases: kernel, options and sizes of each.
        symbolic: sizes are arguments.
    """
    texts, trials = {}, []
    for k, (kernel, settings, sizes) in enumerate(cases):
        entry = mlir.kernel(kernel)
        filled = entry.fill(**settings, **({} if symbolic else sizes))
        texts[f"case{k}"] = filled.text
        trials.append(entry.trial(filled, **settings, **sizes))
    launches = [replace(launch, kernel=f"case{k}") for k, trial in enumerate(trials) for launch in trial.launches]
    mlir.run_all(mlir.merged(texts), launches, **({"order": ORDERS} | options))
    return [trial.difference() for trial in trials]


TRANSPOSES = [("transpose_naive", {}), *(("transpose_shared", {"shared": s}) for s in ("row", "padded", "swizzled"))]


@pytest.mark.parametrize("symbolic", [False, True])
def test_transposes_are_exact_at_sizes_that_divide_nothing(symbolic):
    sizes = [(1, 1), (37, 70), (64, 31)]
    assert not any(run_cases([(*form, {"M": m, "N": n}) for form in TRANSPOSES for m, n in sizes], symbolic))


def test_transposes_have_no_race_and_read_nothing_uninitialised():
    assert not any(run_cases([(*form, {"M": 33, "N": 65}) for form in TRANSPOSES], check=True))


def text_of(name, **options):
    return mlir.kernel(name).fill(**options).text


def operations(text):
    return len(re.findall(r"arith\.(?!constant)\w+", text))


def test_masks_vanish_where_tiles_are_whole_and_stay_where_they_are_not():
    assert "scf.if" not in text_of("transpose_shared", M=64, N=96)
    assert text_of("transpose_shared", M=64, N=97).count("scf.if") == 8
    assert "cmpi" not in text_of("transpose_naive", M=64, N=96)


def test_index_arithmetic_of_the_shared_transpose_is_short():
    """The document's printer leaves chains of divisions: 50 integer operations and 9 casts for this kernel."""
    text = text_of("transpose_shared", M=1024, N=1024, shared="padded")
    assert operations(text) == 27 and not re.findall(r"index_cast|(div|rem)[us]i", text)


def passes_of(form):
    """The passes that a warp needs to read a column of the shared tile: the most words of one bank."""
    column = mlir.kernel("transpose_shared").build(M=64, N=64, shared=form).bindings["columns"][0]
    banks = [int(evaluate(column.offset, {"tx": lane, "ty": 0})) % 32 for lane in range(32)]
    return max(banks.count(bank) for bank in banks)


@pytest.mark.parametrize(("form", "passes"), [("row", 32), ("padded", 1), ("swizzled", 1)])
def test_bank_passes_of_the_shared_tile(form, passes):
    assert passes_of(form) == passes


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_transposes_assemble_without_spills(arch):
    made = mlir.assemble(text_of("transpose_shared", M=1000, N=777), arch)
    assert re.search(r"bar(rier)?(\.cta)?\.sync", made.ptx)
    if shutil.which("ptxas"):
        assert made.cubin[:4] == b"\x7fELF" and made.spills == 0


def test_texts_are_golden(golden):
    golden("mlir_transpose_naive.mlir", text_of("transpose_naive", M=64, N=96))
    golden("mlir_transpose_swizzled.mlir", text_of("transpose_shared"))


PRODUCTS = [
    ("matmul_mma", {}, {"M": 64, "N": 64, "K": 32}),  # whole tiles: no mask
    ("matmul_mma", {"b": "col", "shared": "padded"}, {"M": 70, "N": 104, "K": 72}),
    ("matmul_mma", {"BK": 16}, {"M": 65, "N": 44, "K": 36}),  # rows of 8 and 4 halves at once
    ("matmul_mma", {}, {"M": 33, "N": 101, "K": 75}),  # odd rows: element by element
    ("matmul_mma", {"stages": 3}, {"M": 40, "N": 72, "K": 136}),
]


@pytest.mark.parametrize("symbolic", [False, True])
def test_products_are_exact_at_sizes_that_divide_nothing(symbolic):
    assert not any(run_cases(PRODUCTS[symbolic:], symbolic, order=("forward", 3) if symbolic else ORDERS))


def test_the_product_has_no_race_and_reads_nothing_uninitialised():
    assert not any(run_cases([("matmul_mma", {}, {"M": 40, "N": 72, "K": 24})], check=True, order="reversed"))


def test_the_product_without_its_last_barrier_is_caught():
    text = text_of("matmul_mma", M=64, N=64, K=96)
    at = text.rindex("gpu.barrier", 0, text.index("scf.yield %d"))
    text = text[:at] + text[at + len("gpu.barrier") :]
    arrays = {name: np.ones(shape, np.float16) for name, shape in (("a", (64, 96)), ("b", (96, 64)), ("c", (64, 64)))}
    with pytest.raises(BackendError, match="race"):
        mlir.run(text, (1, 1), 128, arrays, check=True)


@pytest.mark.parametrize(("old", "new"), [("numGroups = 1", "numGroups = 2"), ("          gpu.barrier\n", "")])
def test_a_pipeline_that_waits_too_little_is_caught(old, new):
    text = text_of("matmul_mma", M=64, N=64, K=160, stages=3)
    arrays = {name: np.ones(shape, np.float16) for name, shape in (("a", (64, 160)), ("b", (160, 64)), ("c", (64, 64)))}
    mlir.run(text, (1, 1), 128, arrays, check=True)
    assert text.count(old) == 1
    with pytest.raises(BackendError, match=r"race|uninitialised"):
        mlir.run(text.replace(old, new), (1, 1), 128, arrays, check=True)


def test_the_product_is_made_of_ldmatrix_asynchronous_copies_and_mma():
    text = text_of("matmul_mma", M=4096, N=4096, K=4096)
    counts = {word: text.count(f"nvgpu.{word} ") for word in ("mma.sync", "ldmatrix", "device_async_copy")}
    assert counts == {"mma.sync": 16, "ldmatrix": 8, "device_async_copy": 2}
    assert text.count("{bypassL1}") == 2 and "cmpi" not in text  # 16 bytes at once, whole tiles
    made = mlir.assemble(text, "sm_80")
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in made.ptx
    assert "cp.async.cg.shared.global" in made.ptx and "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in made.ptx
    if shutil.which("ptxas"):
        assert made.spills == 0 and made.registers <= 128


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("matmul_mma", {"BM": 48}, "BM is 48"),
        ("matmul_mma", {"b": "diagonal"}, "b is 'diagonal'"),
        ("matmul_mma", {"shared": "round"}, "shared is 'round'"),
        ("matmul_mma", {"M": 0}, "the size M is 0"),
        ("matmul_mma", {"stages": 0}, "stages is 0"),
        ("matmul_mma", {"stages": 8}, "8 stages make 74752 bytes"),
        ("transpose_shared", {"shared": "spiral"}, "shared is 'spiral'"),
        ("transpose_naive", {"N": 1.5}, "the size N is 1.5"),
        ("transpose_naive", {"X": 1}, "no option X"),
        ("conv", {}, "no kernel 'conv'"),
    ],
)
def test_bad_options_are_refused_before_any_text(name, options, words):
    with pytest.raises(LayoutError) as caught:
        mlir.kernel(name).fill(**options)
    assert words in str(caught.value) and str(caught.value).startswith("kernel(")


def test_the_transform_makes_copies_ldmatrix_and_mma_of_vectors():
    text = text_of("matmul_transform", M=64, N=64, K=64)
    assert "nvgpu.mma" not in text and text.count("vector.contract") == 4
    lowered = mlir.opt(text, "transform-interpreter", "canonicalize")
    counts = {word: lowered.count(f"{word} ") for word in ("nvgpu.ldmatrix", "nvgpu.device_async_copy")}
    assert counts == {"nvgpu.ldmatrix": 4, "nvgpu.device_async_copy": 2}
    assert lowered.count("nvgpu.mma.sync") == 4 and "vector.contract" not in lowered
    made = mlir.assemble(text, "sm_80")
    assert "cp.async.cg.shared.global" in made.ptx and "mma.sync" in made.ptx and made.spills == 0


def test_the_transformed_product_is_exact_at_sizes_that_divide_nothing():
    sizes = [(70, 44, 40), (33, 50, 75)]
    cases = [("matmul_transform", {}, dict(zip("MNK", s, strict=True))) for s in sizes]
    for case in cases:  # each text has its own transform
        assert run_trial(*case) == 0


def run_trial(kernel, settings, sizes):
    entry = mlir.kernel(kernel)
    options = settings | sizes
    return mlir.run_trial(entry, entry.fill(**options), options, check=True, order=("forward", 3)).difference()


def test_what_is_not_affine_is_refused_before_any_text():
    for options in ({}, {"M": 8}):
        with pytest.raises(LayoutError, match="is not affine"):
            mlir.kernel("transpose_shared").build(**options, shared="swizzled").fill("affine")
    with pytest.raises(LayoutError, match="the size K is None"):
        mlir.kernel("matmul_transform").fill(K=None)
