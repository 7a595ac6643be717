"""Contractions of BF16 into FP32, of INT16 and INT8 into INT32: several products at once where the processor can."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cpu import Target, compile, host
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction
from tileweave.teir.analysis.interpret import interpret

PAIRS = host().has("avx512bf16")
WIDENED = replace(host(), features=host().features.replace("+avx512bf16", "-avx512bf16"))
TARGETS = [pytest.param(host(), id="host"), pytest.param(WIDENED, id="widened")]

# dense along rows or columns, along K, odd and even K, several axes of K, several blocks of K, one row, one column
CASES = [
    ("ik,kj->ij", {"i": 70, "j": 101, "k": 51}),
    ("ik,jk->ij", {"i": 21, "j": 100, "k": 33}),
    ("ki,kj->ij", {"i": 33, "j": 130, "k": 91}),
    ("ki,jk->ji", {"i": 70, "j": 37, "k": 64}),
    ("ik,kj->ij", {"i": 5, "j": 300, "k": 2501}),
    ("ik,jk->ij", {"i": 40, "j": 50, "k": 1300}),
    ("ik,k->i", {"i": 77, "k": 201}),
    ("bik,bkj->bij", {"b": 3, "i": 9, "j": 20, "k": 31}),
    ("ikl,klj->ij", {"i": 30, "j": 40, "k": 7, "l": 12}),
    ("ikl,jkl->ij", {"i": 30, "j": 40, "k": 8, "l": 9}),
    ("ikl,lkj->ij", {"i": 30, "j": 40, "k": 6, "l": 10}),
    ("adb,cd->cba", {"a": 32, "b": 24, "c": 9, "d": 20}),
    ("ik,kj->ij", {"i": 300, "j": 320, "k": 333}),
    ("ik,kj->ij", {"i": 131, "j": 200, "k": 300}),
    ("ik,jk->ij", {"i": 110, "j": 130, "k": 700}),
]


def dense(array: np.ndarray, dtype: str) -> Operand:
    return Operand(strided(array.shape, tuple(step // array.itemsize for step in array.strides)), dtype)


def arrays(equation: str, sizes: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left, rest = equation.split(",")
    right, out = rest.split("->")
    a, b, c = (np.zeros([sizes[letter] for letter in letters], ml_dtypes.bfloat16) for letters in (left, right, out))
    return a, b, np.full(c.shape, 77, np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("equation", "sizes"), CASES)
def test_whole_numbers_are_exact(equation: str, sizes: dict[str, int], target: Target) -> None:
    a, b, c = arrays(equation, sizes)
    rng = np.random.default_rng(0)
    a[...], b[...] = rng.integers(-3, 4, a.shape), rng.integers(-3, 4, b.shape)
    program = emit_contraction(equation, (dense(a, "BF16"), dense(b, "BF16")), dense(c, "FP32"))
    compile(program, threads=2, target=target, cache=False)(a, b, c)
    assert np.array_equal(c, np.einsum(equation, a.astype(np.float32), b.astype(np.float32)))


def without(*names: str) -> Target:
    """This processor with fewer features; its vectors stay as wide as they are."""
    return replace(host(), features=",".join(f for f in host().features.split(",") if f[1:] not in names))


FEWER = {"host": host(), "no vnni": without("avx512vnni"), "no pairs": without("avx512vnni", "avx512bw", "avx2")}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("target", [pytest.param(target, id=name) for name, target in FEWER.items()])
@pytest.mark.parametrize(("equation", "sizes"), CASES)
def test_integers_of_few_bits_are_exact(equation: str, sizes: dict[str, int], target: Target, bits: int) -> None:
    rng, most = np.random.default_rng(0), 1 << (bits - 1)
    a, b, _ = (np.empty(x.shape, f"int{bits}") for x in arrays(equation, sizes))
    a[...], b[...] = rng.integers(-most, most, a.shape), rng.integers(-most, most, b.shape)
    wide = np.einsum(equation, a.astype(np.int64), b.astype(np.int64))
    c = np.full(wide.shape, 77, np.int32)
    program = emit_contraction(equation, (dense(a, f"INT{bits}"), dense(b, f"INT{bits}")), dense(c, "INT32"))
    compile(program, threads=2, target=target, cache=False)(a, b, c)
    assert np.array_equal(c, wide.astype(np.int32))  # sums wrap


@pytest.mark.parametrize("target", [pytest.param(target, id=name) for name, target in FEWER.items()])
@pytest.mark.parametrize(("x", "y"), [(-128, -128), (-128, 127), (127, -128), (127, 127)])
def test_products_of_the_ends_of_8_bits_do_not_saturate(x: int, y: int, target: Target) -> None:
    a, b = np.full((13, 67), x, np.int8), np.full((67, 49), y, np.int8)
    start = np.arange(13 * 49, dtype=np.int32).reshape(13, 49)
    c = start.copy()
    operands = dense(a, "INT8"), dense(b, "INT8")
    program = emit_contraction("ik,kj->ij", operands, dense(c, "INT32"), accumulate=True)
    compile(program, threads=1, target=target, cache=False)(a, b, c)
    assert np.array_equal(c, start + 67 * x * y)


@pytest.mark.skipif(not host().has("avx512vnni"), reason="needs a processor with AVX512_VNNI")
def test_bytes_are_multiplied_four_at_a_time() -> None:
    a, b, c = np.ones((16, 32), np.int8), np.ones((32, 64), np.int8), np.zeros((16, 64), np.int32)
    kernel = compile(
        emit_contraction("ik,kj->ij", (dense(a, "INT8"), dense(b, "INT8")), dense(c, "INT32")), cache=False
    )
    assert "vpdpbusd" in kernel.source


@pytest.mark.parametrize("bits", [8, 16])
def test_integers_in_random_places_are_exact(bits: int) -> None:
    """Random extents and strides, also with what is no part of the operands beside them."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    rng, most = np.random.default_rng(seed), 1 << (bits - 1)
    for _ in range(8):
        m, k, n = (int(rng.choice([1, 2, 5, 16, 33, 70, 150])) for _ in range(3))
        wide = [rng.integers(-most, most, (x + 3, y + 5)).astype(f"int{bits}") for x, y in ((m, k), (k, n))]
        a, b = wide[0][1 : m + 1, 2 : k + 2], wide[1][2 : k + 2, 1 : n + 1]
        if rng.random() < 0.3:
            a = np.asfortranarray(a)
        if rng.random() < 0.3:
            b = np.asfortranarray(b)
        c = np.full((m, n), 77, np.int32)
        program = emit_contraction("ik,kj->ij", (dense(a, f"INT{bits}"), dense(b, f"INT{bits}")), dense(c, "INT32"))
        threads = int(rng.integers(1, 3))
        for target in FEWER.values():
            c[...] = 77
            compile(program, threads=threads, target=target, cache=False)(a, b, c)
            exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
            assert np.array_equal(c, exact), (m, k, n, a.strides, b.strides, target.features)


@pytest.mark.parametrize("target", [pytest.param(target, id=name) for name, target in FEWER.items()])
def test_sums_of_the_least_integers_wrap(target: Target) -> None:
    """Two products of -2^15 and itself are 2^31: the one pair whose sum leaves INT32."""
    a, b = np.full((9, 64), -(2**15), np.int16), np.full((64, 33), -(2**15), np.int16)
    c = np.full((9, 33), 77, np.int32)
    program = emit_contraction("ik,kj->ij", (dense(a, "INT16"), dense(b, "INT16")), dense(c, "INT32"))
    compile(program, threads=1, target=target, cache=False)(a, b, c)
    assert np.array_equal(c, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_those_of_the_interpreter_within_their_rounding(target: Target) -> None:
    """Products of BF16 are exact in FP32; each of the K sums rounds once, in another order."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((6, 37)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((37, 18)).astype(ml_dtypes.bfloat16)
    program = emit_contraction(
        "ik,kj->ij", (dense(a, "BF16"), dense(b, "BF16")), Operand(strided((6, 18), (18, 1)), "FP32")
    )
    found, expected = np.zeros((6, 18), np.float32), np.zeros((6, 18), np.float32)
    compile(program, threads=1, target=target, cache=False)(a, b, found)
    interpret(program, {"in0": a, "in1": b, "out": expected})
    terms = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert np.all(np.abs(found - expected) <= 2 * 37 * np.finfo(np.float32).eps / 2 * terms)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [700, 701, 194])
def test_nothing_beside_the_rows_is_multiplied(k: int, target: Target) -> None:
    """Rows of moderate matrices are read where they lie; what is next to them is not a number."""
    rng = np.random.default_rng(2)
    wide = np.full((120, 720), np.nan, ml_dtypes.bfloat16)
    a, b, c = wide[:, :k], np.zeros((k, 150), ml_dtypes.bfloat16), np.zeros((120, 150), np.float32)
    a[...], b[...] = rng.integers(-3, 4, a.shape), rng.integers(-3, 4, b.shape)
    program = emit_contraction("ik,kj->ij", (dense(a, "BF16"), dense(b, "BF16")), dense(c, "FP32"))
    kernel = compile(program, threads=2, target=target, cache=False)
    kernel(a, b, c)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    assert ("in0 read in place" in kernel.explain()) == (target is host() and PAIRS and k % 2 == 0)


@pytest.mark.skipif(not PAIRS, reason="needs a processor with AVX512_BF16")
def test_pairs_are_used_and_subnormal_factors_count_as_zero() -> None:
    a, b, c = (
        np.full((16, 32), 2.0, ml_dtypes.bfloat16),
        np.ones((32, 64), ml_dtypes.bfloat16),
        np.zeros((16, 64), "f4"),
    )
    a[0, 0], b[0] = 1e-39, 1e38
    program = emit_contraction("ik,kj->ij", (dense(a, "BF16"), dense(b, "BF16")), dense(c, "FP32"))
    kernel = compile(program, threads=1, cache=False)
    assert "dpbf16" in kernel.source
    kernel(a, b, c)
    assert np.all(c[0] == 62) and np.all(c[1:] == np.float32(2 * b[0, 0].astype(np.float32) + 62))
