"""Long sums whose vectors run along either side, and columns packed by transposes: against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tileweave.backends.cpu import compile, host
from tileweave.backends.cpu.target.target import Target, describe
from tileweave.layout import strided
from tileweave.lower.eager import Contraction, contract
from tileweave.teir import Operand, emit_contraction
from tileweave.teir.ir.dtypes import dtype_name
from tileweave.teir.ir.program import Program

AVX2 = "+avx,+avx2,+fma,+f16c,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+bmi,+bmi2,+popcnt"
TARGETS = [host()]
if host().has("avx2"):
    TARGETS += [describe("haswell", AVX2, "x86_64", (32768, 1 << 19, 8 << 20))]
LONG = ["ki,kj->ij", "ki,kj->ji", "kai,kj->aij", "ki,kaj->aij", "bki,bkj->bij", "kli,klj->ij", "ki,jk->ij"]
TURNED = [
    "akb,kc->cba",
    "akb,kc->bca",
    "akbd,kc->cbda",
    "kc,akb->cba",
    "akb,ckd->cdba",
    "zakb,zkc->zcba",
    "akbl,klc->cba",
]


def surrounded(draw: np.random.Generator, shape: list[int], dtype: np.dtype) -> np.ndarray:
    """Small integers, in memory that holds NaN, or the largest number, everywhere else."""
    whole = np.full(
        [n + int(draw.integers(0, 3)) for n in shape], np.nan if dtype.kind == "f" else np.iinfo(dtype).max, dtype
    )
    part = whole[tuple(slice(n) for n in shape)]
    part[...] = draw.integers(-3, 4, shape)
    return part


def contraction(equation: str, *arrays: np.ndarray) -> Program:
    """The program of a product of arrays that lie as these do, the result last."""
    *given, out = (Operand(strided(a.shape, [s // a.itemsize for s in a.strides]), dtype_name(a.dtype)) for a in arrays)
    return emit_contraction(equation, given, out)


def check(seed: int, equation: str, sizes: dict[str, int], target: Target) -> None:
    """The product of arrays of these sizes, by a number of threads, where the output is dense and where it is not."""
    draw = np.random.default_rng(seed)
    dtype = np.dtype(["f4", "f8", "i4", "f2"][draw.integers(4)])
    inputs, _ = equation.split("->")
    arrays = [surrounded(draw, [sizes[c] for c in term], dtype) for term in inputs.split(",")]
    arrays = [a[::-1] if draw.random() < 0.2 else a for a in arrays]
    wanted = np.einsum(equation, *(a.astype("f8") for a in arrays), optimize=True).astype(dtype)
    for apart in (1, 2):
        room = np.full([apart * n for n in wanted.shape], 7, dtype)
        out = room[tuple(slice(None, None, apart) for _ in wanted.shape)]
        program = contraction(equation, *arrays, out)
        compile(program, threads=int(draw.integers(1, 4)), target=target, cache=False)(*arrays, out)
        assert np.array_equal(out, wanted), (seed, equation, sizes, dtype, target.cpu)
        out[...] = 7
        assert (room == 7).all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
@pytest.mark.parametrize("seed", range(7))
def test_long_sums_of_few_rows_and_columns(seed: int, target: Target) -> None:
    draw = np.random.default_rng([seed, 1])
    equation = LONG[seed % len(LONG)]
    sizes = {c: int(draw.integers(1, 50)) for c in "ij"} | {c: int(draw.integers(1, 4)) for c in "ab"}
    sizes |= {
        "l": int(draw.integers(30, 90)),
        "k": int(draw.integers(30, 90) if "l" in equation else draw.integers(1500, 5000)),
    }
    check(seed, equation, sizes, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
@pytest.mark.parametrize("seed", range(7))
def test_columns_that_are_dense_in_another_axis_than_the_output(seed: int, target: Target) -> None:
    draw = np.random.default_rng([seed, 2])
    equation = TURNED[seed % len(TURNED)]
    sizes = {c: int(draw.integers(2, draw.choice([6, 20, 45]))) for c in equation if c.isalpha()}
    check(seed, equation, sizes, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
@pytest.mark.parametrize("depth", [1, 3, 4, 5, 7, 9, 11, 16, 19])
def test_columns_that_are_dense_along_what_is_summed_are_packed_to_the_last_product(depth: int, target: Target) -> None:
    draw = np.random.default_rng([depth, 6])
    sizes = {"b": 2, "q": int(draw.integers(17, 40)), "k": int(draw.integers(9, 70)), "d": depth}
    check(depth, "bqd,bkd->bqk", sizes, target)


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_share_columns_that_are_transposed_in_strips(threads: int) -> None:
    """A chunk of less than a strip would transpose most of it in vain."""
    draw = np.random.default_rng(5)
    arrays = [draw.standard_normal((29, 106, 40), "f4"), draw.standard_normal((106, 60), "f4")]
    (plan,) = (
        line for line in Contraction("akb,kc->cba", *arrays, threads=threads).explain().split("\n") if ", nc " in line
    )
    words = plan.replace(",", "").split()
    assert int(words[words.index("nc") + 1]) >= min(4, host().lanes(4)) * 29


def test_threads_and_further_shapes_give_the_same_bits() -> None:
    draw = np.random.default_rng(3)
    for equation in ("ki,kj->ij", "akb,kc->cba"):
        for _ in range(4):  # later ones run on the code of the first
            sizes = {c: int(draw.integers(5, 40)) for c in "abcij"} | {"k": int(draw.integers(20, 3000))}
            terms = equation.split("->")[0].split(",")
            arrays = [draw.standard_normal([sizes[c] for c in term], "f4") for term in terms]
            once = contract(equation, *arrays, threads=1)
            assert all(np.array_equal(once, Contraction(equation, *arrays, threads=t)(*arrays)) for t in (1, 2, 3)), (
                sizes
            )


@pytest.mark.skipif(host().lanes(4) < 8, reason="with four lanes, seven columns fill two vectors well enough")
def test_vectors_run_along_the_side_that_fills_them() -> None:
    draw = np.random.default_rng(4)
    arrays = [draw.standard_normal((20000, n), "f4") for n in (3 * host().lanes(4), 7)]
    plan = Contraction("ki,kj->ij", *arrays, threads=1).explain()
    assert f"m 7, n {3 * host().lanes(4)}" in plan
    assert (
        f"m 7, n {3 * host().lanes(4)}" not in Contraction("ki,kj->ij", *(a[:500] for a in arrays), threads=1).explain()
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_products_side_by_side_share_no_panels(target: Target) -> None:
    """Batches of narrow sums are products of their own, many at a time; each packs its rows once for its own tasks."""
    small = replace(target, l2_bytes=1 << 14)
    sizes = {"z": 11, "a": 9, "b": 12, "c": 14, "k": 1625}
    draw = np.random.default_rng(4)
    for equation in ("zakb,zkc->zcba", "zka,zkc->zac"):
        inputs, output = equation.split("->")
        arrays = [draw.integers(-2, 3, [sizes[c] for c in term]).astype("f2") for term in inputs.split(",")]
        out = np.zeros([sizes[c] for c in output], "f2")
        wanted = np.einsum(equation, *(a.astype("f8") for a in arrays), optimize=True).astype("f2")
        kernel = compile(contraction(equation, *arrays, out), threads=3, target=small, cache=False)
        for _ in range(3):
            out[...] = 7
            kernel(*arrays, out)
            assert np.array_equal(out, wanted), (equation, target.cpu)
