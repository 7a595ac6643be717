"""The document's kernels on the CPU, at sizes that divide nothing, in three orders of threads, beside NumPy."""

import re
import shutil

import numpy as np
import pytest

from tileweave.backends import mlir
from tileweave.index import evaluate

ORDERS = ("forward", "reversed", 3)


def launch_all(cases, **options):
    """Fills, merges and runs kernels in one program.

    Args:
        cases: name of the case -> (kernel, options, arrays, scalars).
    """
    texts, launches = {}, []
    for name, (kernel, settings, arrays, sizes) in cases.items():
        entry = mlir.kernel(kernel)
        filled = entry.template(**settings).fill("mlir")
        texts[name] = filled.text
        grid = filled.launch(**sizes)
        scalars = {argument: sizes[argument] for argument in filled.arguments}
        launches.append(mlir.Launch(grid, entry.block(settings), arrays | scalars, name))
    mlir.run_all(mlir.merged(texts), launches, **({"order": ORDERS} | options))


def transposes(sizes, symbolic):
    cases, wanted = {}, []
    forms = [("transpose_naive", {}), *(("transpose_shared", {"form": f}) for f in ("padded", "swizzled", "plain"))]
    for rows, columns in sizes:
        for kernel, settings in forms:
            given = {"M": rows, "N": columns}
            source = np.random.default_rng(rows).random((rows, columns), np.float32)
            target = np.full((columns, rows), np.nan, np.float32)
            options = settings if symbolic else settings | given
            cases[f"case{len(cases)}"] = (kernel, options, {"src": source, "dst": target}, given)
            wanted.append((target, source.T))
    return cases, wanted


@pytest.mark.parametrize("symbolic", [False, True])
def test_transposes_are_exact_at_sizes_that_divide_nothing(symbolic):
    cases, wanted = transposes([(1, 1), (37, 70), (64, 31)], symbolic)
    launch_all(cases)
    for found, want in wanted:
        assert np.array_equal(found, want)


def test_transposes_have_no_race_and_read_nothing_uninitialised():
    cases, wanted = transposes([(33, 65)], False)
    launch_all(cases, check=True)
    assert all(np.array_equal(found, want) for found, want in wanted)


def text_of(name, **options):
    return mlir.kernel(name).template(**options).fill("mlir").text


def operations(text):
    return len(re.findall(r"arith\.(?!constant)\w+", text))


def test_masks_vanish_where_tiles_are_whole_and_stay_where_they_are_not():
    assert "scf.if" not in text_of("transpose_shared", M=64, N=96)
    assert text_of("transpose_shared", M=64, N=97).count("scf.if") == 8
    assert "cmpi" not in text_of("transpose_naive", M=64, N=96)


def test_index_arithmetic_of_the_shared_transpose_is_short():
    """The document's printer leaves chains of divisions: 50 integer operations and 9 casts for this kernel."""
    text = text_of("transpose_shared", M=1024, N=1024, form="padded")
    assert operations(text) == 27 and not re.findall(r"index_cast|(div|rem)[us]i", text)


def passes_of(form):
    """The passes that a warp needs to read a column of the shared tile: the most words of one bank."""
    column = mlir.kernel("transpose_shared").template(M=64, N=64, form=form).bindings["columns"][0]
    banks = [int(evaluate(column.offset, {"tx": lane, "ty": 0})) % 32 for lane in range(32)]
    return max(banks.count(bank) for bank in banks)


@pytest.mark.parametrize(("form", "passes"), [("plain", 32), ("padded", 1), ("swizzled", 1)])
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
