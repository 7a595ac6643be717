"""Results of products leave through shared memory and boxes: when dispatch takes that way, and that it is right."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.printer import run, text
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch import expand, explain
from tileweave.kernel.ir import Op, walk
from tileweave.kernel.semantics import check_kernel

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples" / "kernels")]
products, mutants = import_module("matmul"), import_module("test_mutations").mutants


@tk.kernel
def product(k, A, B, C, bm=64, bn=64, bk=64, groups=2, stages=2, use=None):
    m, n = k.grid(A.blocks(0, bm), B.blocks(0, bn))
    with k.cta(warpgroups=groups) as cta:
        acc = cta.zeros((bm, bn))
        for i in cta.range(A.blocks(1, bk), stages=stages):
            cta.gemm(acc, A.tile(bm, bk)[m, i], B.tile(bn, bk)[n, i])
        cta.store(C.tile(bm, bn)[m, n], acc * 0.5, use=use)


def arguments(random, m, n, depth, dtype=np.float16):
    a, b = (random.integers(-3, 4, s).astype(dtype) for s in ((m, depth), (n, depth)))
    return [a, b, np.zeros((m, n), dtype)]


def stored(kernel, arch="sm_90a"):
    """Boxes that leave: one for each part of a tile."""
    there = (s for s in walk(expand(kernel, arch).body) if isinstance(s, Op) and s.name == "copy_async")
    return [s for s in there if s.outs[0].tensor.space == "global"]


@pytest.mark.parametrize("seed", range(6))
def test_random_products_leave_by_boxes_and_are_right(seed):
    random, shapes = Random(seed), np.random.default_rng(seed)
    groups, dtype = random.choice((1, 2, 3)), random.choice((np.float16, ml_dtypes.bfloat16))
    consumers = max(1, groups - 1)
    bm, bn = 64 * consumers * random.choice((1, 2)), random.choice((16, 32, 64, 96, 128, 192))
    sizes = random.randrange(1, 2 * bm), 8 * random.randrange(1, bn // 4), 8 * random.randrange(1, 20)
    arrays = arguments(shapes, *sizes, dtype)
    kernel = product.trace(*arrays, bm=bm, bn=bn, groups=groups)
    print(seed, groups, dtype.__name__, bm, bn, sizes)
    assert stored(kernel)
    a, b, c = arrays
    exact = (0.5 * (a.astype(float) @ b.astype(float).T)).astype(dtype)
    outputs = check_kernel(expand(kernel, "sm_90a"), [a, b, c.copy()]).outputs["C"]
    assert (outputs == exact).all()
    if bm * bn <= 128 * 128:  # fibers take their time
        run(kernel, arrays, arch="sm_90a", check=True)
        assert (c == exact).all()


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_tensor_memory_leave_by_boxes_and_are_right(seed):
    """A thread has a row: runs of 16 bytes to shared memory without conflicts, whether a result has 16 bits or 32."""
    random, shapes = Random(seed), np.random.default_rng(seed)
    groups, dtype = random.choice((1, 2, 3)), (np.float16, np.float32)[seed % 2]
    bn, sizes = random.choice((32, 64, 96, 128)), (random.randrange(1, 200), 8 * random.randrange(1, 20), 72)
    a, b, c = arguments(shapes, *sizes)
    c = c.astype(dtype)
    kernel = product.trace(a, b, c, bm=128, bn=bn, groups=groups)
    print(seed, groups, dtype.__name__, bn, sizes)
    assert stored(kernel, "sm_100a") and "st.shared sc, 16 B a lane: 4 passes" in explain(kernel, "sm_100a")
    exact = (0.5 * (a.astype(float) @ b.astype(float).T)).astype(dtype)
    assert (check_kernel(expand(kernel, "sm_100a"), [a, b, c.copy()]).outputs["C"] == exact).all()
    run(kernel, [a, b, c], arch="sm_100a", check=True)
    assert (c == exact).all()


def test_a_tile_that_shared_memory_does_not_hold_goes_in_parts():
    arrays = [tk.spec(s, "f16") for s in ((8192, 4096), (12288, 4096), (8192, 12288))]
    kernel = products.matmul.trace(*arrays)
    assert len(stored(kernel)) == 4
    assert "C[m * 128 +: 128, n * 256 + 192 +: 64]: tma" in explain(kernel, "sm_90a")
    assert "stmatrix     yes: four 8 x 8 tiles each" in explain(kernel, "sm_90a")
    assert len(stored(products.matmul.trace(*arrays, bn=128, stages=3))) == 1
    full = explain(products.matmul.trace(*arrays, bm=256, bn=64, stages=5), "sm_90a")
    assert "tma          no: 32768 bytes of shared memory for a part of it, 25600 left" in full


@pytest.mark.parametrize(
    ("arch", "parts", "buffers", "least"),
    [("sm_90a", 1, 0, 5), ("sm_90a", 3, 2, 14), ("sm_90a", 3, 1, 15), ("sm_100a", 1, 0, 5), ("sm_100a", 3, 2, 14)],
)
def test_every_fault_of_the_way_out_is_named(arch, parts, buffers, least):
    """Each fence, commit, wait and barrier of the trip, deleted or perturbed, breaks a rule that is named."""
    arrays = arguments(np.random.default_rng(0), 70, 192, 40)
    rows = 128 if arch == "sm_100a" else 64
    kernel = product.trace(*arrays, bm=rows, bn=64 if parts == 1 else 192, groups=1, stages=2)
    explicit = with_room(kernel, arch, buffers * rows * 64 * 2) if buffers else expand(kernel, arch)
    line = stored(explicit, arch)[0].line
    check_kernel(explicit, arrays)
    total, missed = 0, []
    for what, at, body in mutants(explicit.body):
        if at != line or "without the mask of C" in what:
            continue
        total += 1
        try:
            check_kernel(replace(explicit, body=body), [a.copy() for a in arrays])
            missed.append(what)
        except VerifyError as error:
            assert error.line.number == line.number or error.rule == "race", what
    print(parts, buffers, total)
    assert not missed
    assert total >= least


def with_room(kernel, arch, bytes_):
    """The explicit program of a block that has so much shared memory left."""
    from tileweave.kernel.dispatch.explicit import stores

    before, stores._left = stores._left, lambda program: bytes_
    try:
        return expand(kernel, arch)
    finally:
        stores._left = before


@tk.kernel
def twice(k, A, B, C, D, flags, kind="again"):
    with k.cta(threads=128) as cta:
        s = k.shared((64, 64), like=A, swizzle=128)
        cta.copy(s, A)
        cta.fence("proxy.async")
        cta.sync()
        acc = cta.zeros((64, 64))
        cta.gemm(acc, s, s)
        if kind == "each":
            with cta.warpgroup.each() as one:
                one.store(C, acc)
            return
        if kind == "added":
            cta.sync()
            acc += cta.load(C)
        cta.store(D if kind == "wide" else B[:, 0:64] if kind == "other" else C, acc)
        if kind == "flag":
            cta.signal(flags, 0)
        if kind == "again":
            cta.sync()
            cta.store(C, acc)


@pytest.mark.parametrize(
    ("kind", "arch", "said"),
    [
        ("again", "sm_90a", "C is read or written elsewhere in the kernel"),
        ("added", "sm_90a", "C is read or written elsewhere in the kernel"),
        ("wide", "sm_90a", "a warp's stores to memory fill whole sectors"),
        ("other", "sm_90a", "stride 70 of dimension 0 is 140 bytes, no multiple of 16"),
        ("once", "sm_80", "sm_80 has no tensor maps"),
    ],
)
def test_plain_stores_have_a_reason(kind, arch, said):
    shapes = (64, 64), (64, 70), (64, 64), (64, 64), (1,)
    given = [np.zeros(s, t) for s, t in zip(shapes, ("e", "e", "e", "f", "i"), strict=True)]
    assert f"tma          no: {said}" in twice.explain(*given, kind=kind, arch=arch)


def test_a_way_out_may_be_asked_for():
    arrays = arguments(np.random.default_rng(0), 64, 64, 64)
    assert not stored(product.trace(*arrays, use="st"))
    assert "plain stores were asked for" in product.explain(*arrays, use="st", arch="sm_90a")
    assert stored(product.trace(*arrays, use="tma"))
    with pytest.raises(BackendError, match=r"(?s)sm_80 has no tensor maps.*test_stores.py:\d+"):
        text(product.trace(*arrays, use="tma"), "sm_80")


@pytest.mark.parametrize("stages", [2, 3])
def test_one_warpgroup_fetches_by_boxes_what_it_multiplies(stages):
    """No warpgroup is free to fill a ring: one thread fetches ahead, and every barrier, byte and parity is needed."""
    arrays = arguments(np.random.default_rng(stages), 70, 64, 200)
    kernel = product.trace(*arrays, groups=1, stages=stages, use="st")
    explicit = expand(kernel, "sm_90a")
    assert "cp.async     yes" not in explain(kernel, "sm_90a")
    run(kernel, arrays, arch="sm_90a", check=True)
    a, b, c = arrays
    assert (c == (0.5 * (a.astype(float) @ b.astype(float).T)).astype(np.float16)).all()
    missed, total = [], 0
    for what, _, body in mutants(explicit.body):
        total += 1
        try:
            check_kernel(replace(explicit, body=body), [x.copy() for x in arrays])
            missed.append(what)
        except VerifyError:
            pass
    print(stages, total)
    assert not missed
    assert total >= 15


def test_a_residual_is_as_wide_as_the_product():
    """128 x 128 elements do not spread evenly over 384 threads, which is none of the residual's business."""

    @tk.kernel
    def added(k, A, B, R, C):
        m, n = k.grid(A.blocks(0, 128), B.blocks(0, 128))
        with k.cta(warpgroups=3) as cta:
            acc = cta.zeros((128, 128))
            for i in cta.range(A.blocks(1, 64), stages=2):
                cta.gemm(acc, A.tile(128, 64)[m, i], B.tile(128, 64)[n, i])
            cta.store(C.tile(128, 128)[m, n], acc + cta.load(R.tile(128, 128)[m, n]))

    random = np.random.default_rng(0)
    a, b, c = arguments(random, 100, 72, 72)
    r = random.integers(-3, 4, c.shape).astype(np.float16)
    added.run(a, b, r, c, on="cpu", arch="sm_90a")
    assert (c == a.astype(float) @ b.astype(float).T + r).all()
