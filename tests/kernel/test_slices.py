"""Parts of register tensors: slots where the threads have them, a trip through shared memory where others do."""

import shutil
from random import Random

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import BackendError, VerifyError

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
X = np.random.default_rng(0).integers(-9, 10, (64, 128)).astype(np.float32)


def outcomes(kernel, *arrays, arch="sm_80"):
    for on in ("interpreter", "cpu"):
        got = [a.copy() for a in arrays]
        kernel.run(*got, on=on, **({"arch": arch} if on == "cpu" else {}))
        yield got[-1]


@tk.kernel
def halves(k, x, y):
    k.grid(1)
    with k.cta(warps=4) as cta:
        r = cta.load(x)
        cta.store(y[0:32], r[0:32] * 2 + r[32:64])
        cta.store(y[32:64], r.tile(32, 64)[1, 0].T.T)


@tk.kernel
def any_part(k, x, y):
    k.grid(1)
    with k.cta(warps=4) as cta:
        r = cta.load(x)
        z = cta.zeros((64, 128))
        cta.copy(z[3:20, 5:50], r[10:27, 60:105])
        cta.copy(z[63], r[1])
        z[40:44, 0:128] += cta.sum(r[5:31, 3:77])
        for i in cta.range(2):
            cta.copy(z[50 + i], r[7 * i])
        cta.store(y, z)


@needs_gpp
def test_parts_in_slots_and_elsewhere():
    x = X[:, :64].copy()
    want = np.concatenate([x[:32] * 2 + x[32:], x[32:]])
    for got in outcomes(halves, x, np.zeros_like(x)):
        assert (got == want).all()
    want = np.zeros_like(X)
    want[3:20, 5:50], want[63], want[40:44] = X[10:27, 60:105], X[1], X[5:31, 3:77].sum()
    want[50], want[51] = X[0], X[7]
    for got in outcomes(any_part, X, np.zeros_like(X)):
        assert (got == want).all()


@tk.kernel
def by_columns(k, A, B, C, width=64):
    k.grid(1)
    with k.cta(warpgroups=1) as cta:
        a, b = k.shared((64, 64), like=A, swizzle=128), k.shared((128, 64), like=B, swizzle=128)
        cta.copy(a, A)
        cta.copy(b, B)
        cta.fence("proxy.async")
        cta.sync()
        acc = cta.zeros((64, 128))
        cta.gemm(acc, a, b)
        for j in range(128 // width):
            part = acc.tile(64, width)[0, j]
            cta.store(C.tile(64, width)[0, j], part + cta.max(part, axis=1))


@needs_gpp
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
def test_an_accumulator_is_used_by_columns(arch):
    A, B = X[:, :64].astype(np.float16), X.reshape(128, 64).astype(np.float16)
    acc = (A.astype(float) @ B.astype(float).T).reshape(64, 2, 64)
    want = (acc + acc.max(axis=2, keepdims=True)).reshape(64, 128)
    arrays = (A, B, np.zeros((64, 128), np.float32))
    for got in outcomes(by_columns, *arrays, arch=arch):
        assert (got == want).all()
    if arch == "sm_90a":
        table = by_columns.explain(*arrays, arch=arch)
        assert "32 slots of acc[:, 64 +: 64]" in table and "trip" not in table


def random_case(seed):
    random = Random(seed)
    warps, rows, columns = random.choice((1, 2, 4)), random.choice((16, 40, 64)), random.choice((32, 50, 128))

    def box():
        height, width = random.randint(1, rows), random.randint(1, columns)
        return random.randint(0, rows - height), random.randint(0, columns - width), height, width

    moves = []
    for _ in range(3):
        i, j, h, w = box()
        moves.append((i, j, random.randint(0, rows - h), random.randint(0, columns - w), h, w))

    @tk.kernel
    def parts(k, x, y):
        k.grid(1)
        with k.cta(warps=warps) as cta:
            r, z = cta.load(x, layout=None), cta.zeros((rows, columns))
            for i, j, a, b, h, w in moves:
                cta.copy(z[i : i + h, j : j + w], r[a : a + h, b : b + w])
            cta.store(y, z)

    x, want = X[:rows, :columns].copy(), np.zeros((rows, columns), np.float32)
    for i, j, a, b, h, w in moves:
        want[i : i + h, j : j + w] = x[a : a + h, b : b + w]
    return parts, x, want


@needs_gpp
@pytest.mark.parametrize("seed", [0, 87, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 60))])
def test_random_parts(seed):
    parts, x, want = random_case(seed)
    for got in outcomes(parts, x, np.zeros_like(x)):
        assert (got == want).all(), seed


def test_a_layout_that_does_not_fit_the_threads_is_refused_with_its_line():
    @tk.kernel
    def wrong(k, x, y):
        k.grid(1)
        with k.cta(warps=4) as cta:
            cta.store(y, cta.load(x, layout="(64:1@reg, 2:1@reg, 32:1@lane, 2:2@reg)"))

    with pytest.raises(BackendError, match="axis warp; the scope has 4") as caught:
        wrong.text("cuda", X, X)
    assert "test_slices.py:" in str(caught.value)


@tk.kernel
def corners(k, x, y, t=16):
    """The sum of two neighbours of a halo of four, which the copy engine fetches where it can."""
    i, j = k.grid(y.blocks(0, t), y.blocks(1, t))
    s = k.shared((1, t + 8, t + 8), like=x)
    ring = k.pipeline(1, fills=1, uses=1)
    with k.warpgroup[0] as load, ring.fill(0) as stage:
        load.copy_async(s[stage], x.tile(t, t, halo=4)[i, j])
    with k.warpgroup[1] as use, ring.use(0) as stage:
        use.store(y.tile(t, t)[i, j], use.load(s[0, 0:t, 0:t]) + use.load(s[0, 8 : t + 8, 8 : t + 8]))


@needs_gpp
@pytest.mark.parametrize(
    ("columns", "arch", "how"), [(72, "sm_90a", "tma          yes"), (70, "sm_80", "cp.async     yes")]
)
def test_tiles_with_halos_are_zero_outside(columns, arch, how):
    x = X[:50, :columns].copy()
    padded = np.pad(x, 4)
    for got in outcomes(corners, x, np.zeros_like(x), arch=arch):
        assert (got == padded[:50, :columns] + padded[8:, 8:]).all()
    assert how in corners.explain(x, x, arch=arch)


def test_a_halo_is_copied_before_it_is_used():
    @tk.kernel
    def reduced(k, x, y):
        i = k.grid(4)
        with k.cta(threads=32) as cta:
            cta.store(y[0:1, 0:1], cta.sum(x.tile(4, 4, halo=1)[i, 0]))

    with pytest.raises(VerifyError, match="begins before what exists"):
        reduced.check(X, X)
    with pytest.raises(VerifyError, match="positive sizes"):
        tk.kernel(lambda k, x: x.tile(4, 4, halo=-1)).check(X)
