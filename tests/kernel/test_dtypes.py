"""Each element type in each kind of operator: NumPy, the interpreter at both levels, and printed text byte for byte."""

import shutil

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.printer.entry import run_together

RANDOM = np.random.default_rng(5)
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
FLOATS = (E4M3, E5M2, BF16, np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int32, np.int64)


def values(shape, dtype):
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return RANDOM.integers(0 if kind.kind == "u" else -9, 10, shape).astype(dtype)
    return RANDOM.standard_normal(shape).astype(dtype)


def wide(array):
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


@tk.kernel
def transpose(k, x, y):
    i, j = k.grid(x.blocks(0, 16), x.blocks(1, 32))
    with k.cta(threads=64) as cta:
        s = k.shared((16, 32), like=x, layout="conflict_free")
        cta.copy(s, x.tile(16, 32)[i, j])
        cta.sync()
        cta.copy(y.tile(32, 16)[j, i], s.T)


@tk.kernel
def cast(k, x, y):
    i = k.grid(x.blocks(0, 2))
    with k.cta(threads=32) as cta:
        cta.store(y.tile(2, 64)[i, 0], cta.cast(cta.load(x.tile(2, 64)[i, 0]), y.dtype))


@tk.kernel
def bounded(k, x, y):
    """Every row less its greatest element, a row for each warp; rows are picked by an index that may be outside."""
    i = k.grid(x.blocks(0, 4))
    with k.cta(threads=128) as cta, cta.warp.each() as warp:
        row = warp.load(x.tile(4, 50)[i, 0][warp.index])
        warp.store(y.tile(4, 50)[i, 0][warp.index], row - warp.max(row))


@tk.kernel
def columns(k, x, y):
    k.grid(1)
    with k.cta(threads=96) as cta:
        cta.store(y, cta.sum(cta.load(x), axis=0))


@tk.kernel
def running(k, x, y):
    k.grid(1)
    with k.cta(threads=64) as cta:
        cta.store(y, cta.scan("max", cta.load(x), axis=1))


@tk.kernel
def product(k, A, B, C, acc="f32"):
    m, n = k.grid(A.blocks(0, 32), B.blocks(0, 16))
    with k.cta(threads=64) as cta:
        total = cta.zeros((32, 16), dtype=acc)
        for i in cta.range(A.blocks(1, 32)):
            cta.gemm(total, A.tile(32, 32)[m, i], B.tile(16, 32)[n, i])
        cta.store(C.tile(32, 16)[m, n], total)


@tk.kernel
def staged(k, x, y):
    i = k.grid(x.blocks(0, 16))
    with k.cta(threads=64) as cta:
        s = k.shared((16, 64), like=x)
        cta.copy_async(s, x.tile(16, 64)[i, 0])
        cta.commit()
        cta.wait_group(0)
        cta.sync()
        cta.store(y.tile(16, 64)[i, 0], cta.load(s))


@tk.kernel
def functions(k, x, y):
    i = k.grid(x.blocks(0, 2))
    with k.cta(threads=32) as cta:
        v = cta.load(x.tile(2, 32)[i, 0])
        a = abs(v) + 1
        smooth = (
            cta.exp(v) + cta.exp2(v) + cta.log(a) + cta.log2(a) + cta.tanh(v) + cta.erf(v) + cta.sin(v) * cta.cos(v)
        )
        cta.store(y.tile(2, 32)[i, 0], cta.fma(v, v, smooth) + cta.sqrt(a) + cta.rsqrt(a) + cta.recip(a) + cta.floor(v))


def of_functions(x):
    from math import erf

    v, a = x.astype(float), abs(x.astype(float)) + 1
    smooth = np.exp(v) + np.exp2(v) + np.log(a) + np.log2(a) + np.tanh(v) + np.vectorize(erf)(v) + np.sin(v) * np.cos(v)
    return v * v + smooth + np.sqrt(a) + 1 / np.sqrt(a) + 1 / a + np.floor(v)


def cases():
    """Kernel, arrays of which the last is written, what it must hold, tolerance."""
    for dtype in (*FLOATS, *INTEGERS):
        x = values((21, 45), dtype)
        yield transpose, (x, np.zeros((45, 21), dtype)), x.T, 0
        yield staged, (x, np.zeros((21, 45), dtype)), x, 0
        x = values((10, 50), dtype)
        less = wide(x) - wide(x).max(1, keepdims=True)
        yield bounded, (x, np.zeros((10, 50), dtype)), less.astype(dtype), 0.13
        x = values((7, 19), dtype)
        total = np.int32 if dtype in (np.int8, np.uint8) else np.float32 if dtype in FLOATS[:4] else dtype
        yield columns, (x, np.zeros((1, 19), total)), wide(x).sum(0, keepdims=True), 1e-6
        yield running, (x, np.zeros((7, 19), dtype)), np.maximum.accumulate(wide(x), 1), 0
    for dtype in FLOATS:
        x = values((5, 29), dtype)
        yield (
            functions,
            (x, np.zeros((5, 29), dtype)),
            of_functions(x),
            {E4M3: 0.1, E5M2: 0.2, BF16: 0.02}.get(dtype, 2e-3),
        )
    for dtype, acc, out in (
        *((d, "f32", np.float32) for d in FLOATS[:5]),
        (np.float64, "f64", np.float64),
        (np.int8, "s32", np.int32),
        (np.uint8, "s32", np.int32),
    ):
        a, b = values((40, 70), dtype), values((24, 70), dtype)
        yield product, (a, b, np.zeros((40, 24), out), acc), wide(a) @ wide(b).T, 1e-5
    for source, target in (
        (np.float32, E4M3), (np.float32, E5M2), (E4M3, np.float16), (E5M2, BF16), (BF16, np.float64),
        (np.float64, np.float16), (np.float32, np.int8), (np.float64, np.int32), (np.int8, BF16), (np.int32, np.uint8),
        (np.int64, np.int32), (np.uint8, np.float32), (E4M3, E5M2),
    ):  # fmt: skip
        x = values((9, 45), source)
        yield cast, (x, np.zeros((9, 45), target)), np.trunc(wide(x)) if np.dtype(target).kind in "iu" else x, 0.13


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_type_in_every_operator():
    runs, found = [], []
    for kernel, (*arrays, last), want, tolerance in cases():
        options = {"acc": last} if isinstance(last, str) else {}
        arrays = arrays if options else [*arrays, last]
        name = f"{kernel.name}: {', '.join(a.dtype.name for a in arrays)}"
        out = list(kernel.trace(*arrays, **options).params)[-1].name
        explicit = kernel.check(*arrays, arch="sm_90a", **options).outputs[out]
        for got in (kernel.check(*arrays, **options).outputs[out], explicit):
            scale = tolerance * np.abs(want.astype(float)).max()
            want_here = want.astype(got.dtype).astype(float)
            np.testing.assert_allclose(got.astype(float), want_here, tolerance, scale, err_msg=name)
        runs.append((kernel.trace(*arrays, **options), [a.copy() for a in arrays]))
        found.append((name, explicit))
    run_together(runs, "cpu", "sm_90a", optimise=False)
    for (_, arrays), (name, want) in zip(runs, found, strict=True):
        assert arrays[-1].tobytes() == want.tobytes(), name
