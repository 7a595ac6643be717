"""Ways to execute an operator from outside: taken where they fit, listed with a reason elsewhere."""

import math
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import BackendError
from tileweave.kernel.dispatch import Schedule, compute, lower, register, unregister
from tileweave.kernel.ir import Op, Scalar


def problem(context, op):
    if op.option("fn") != "exp":
        return f"{op.option('fn')} is no exp"
    return "" if op.outs[0].tensor.dtype == "f32" else f"results of {op.outs[0].tensor.dtype}"


def emit(context, op):
    out = op.outs[0]
    compute.elementwise(
        context, Op("map", (out,), (op.ins[0], Scalar(1 / math.log(2), "f32")), (("fn", "mul"),), line=op.line)
    )
    compute.elementwise(context, replace(op, ins=(out,), options=(("fn", "exp2"),)))
    return "a multiplication and exp2"


@pytest.fixture
def by_exp2():
    register(Schedule("exp2", "map", problem, emit))
    yield
    unregister("map", "exp2")


@tk.kernel
def grown(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        cta.store(y[row], cta.exp(cta.load(x[row])) + 1.0)


X, Y = np.linspace(-3, 3, 200, dtype=np.float32).reshape(2, 100), np.zeros((2, 100), np.float32)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_schedule_is_taken_where_it_fits_and_its_text_is_right(by_exp2):
    text, table = grown.text("cuda", X, Y, arch="sm_80"), grown.explain(X, Y, arch="sm_80")
    assert "tw_exp2(" in text and "tw_exp(" not in text
    assert "exp2         yes: a multiplication and exp2" in table
    y = np.zeros_like(Y)
    grown.run(X, y, on="cpu", arch="sm_80")
    np.testing.assert_allclose(y, np.exp(X) + 1, rtol=1e-6)


def test_without_it_nothing_of_it_is_left(by_exp2):
    assert "tw_exp2(" in grown.text("cuda", X, Y, arch="sm_80")
    unregister("map", "exp2")
    assert "tw_exp2(" not in grown.text("cuda", X, Y, arch="sm_80")
    register(Schedule("exp2", "map", problem, emit))


def test_where_it_does_not_fit_the_reason_is_listed(by_exp2):
    half = X.astype(np.float16)
    register(Schedule("tiny", "copy", lambda context, op: "never", lambda context, op: ""))
    try:
        table = grown.explain(half, Y, arch="sm_80")
        assert "tiny         no: never" in table

        @tk.kernel
        def forced(k, x, y):
            k.grid(1)
            s = k.shared((100,), like=x)
            with k.cta(threads=64) as cta:
                cta.copy(s, x[0], use="tiny")

        with pytest.raises(BackendError, match=r"copy\(.., use='tiny'\): never"):
            forced.text("cuda", X, Y)
    finally:
        unregister("copy", "tiny")
    for name, operator in (("exp2", "map"), ("tma", "copy")):
        with pytest.raises(BackendError, match="already"):
            register(Schedule(name, operator, problem, emit))
    with pytest.raises(BackendError, match="no way to gemm is called 'mine'"):
        unregister("gemm", "mine")


def test_pictures_show_the_layouts_that_dispatch_chose():
    """Swizzled places in shared memory, holders of the accumulator's elements, by the names of the user."""

    @tk.kernel
    def product(k, a, b, c):
        i, j = k.grid(a.blocks(0, 128), b.blocks(0, 128))
        with k.cta(warpgroups=3) as cta:
            acc = cta.zeros((128, 128), dtype="f32")
            for step in cta.range(a.blocks(1, 64), stages=2):
                cta.gemm(acc, a.tile(128, 64)[i, step], b.tile(128, 64)[j, step])
            cta.copy(c.tile(128, 128)[i, j], acc)

    shown = product.pictures(*[tk.spec((256, 256), "f16")] * 3)
    assert set(shown) == {"sa", "sb", "acc", "sc"}
    for picture in shown.values():
        assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert (
        ">72<" in shown["sa"] and "Sw&lt;3,3,3&gt;" in shown["sa"]
    )  # row 1 begins at 64, its chunks of 8 exchanged by 1
    assert "8:4@lane" in shown["acc"]


@pytest.mark.parametrize(
    ("load", "inner", "store", "product", "said"),
    [
        ("tma", None, None, None, "boxes move between global and shared memory, not registers"),
        ("shuffle", None, None, None, "not from registers to registers"),
        (None, "shared", None, None, "not from registers to registers"),
        (None, None, None, "mma.sync", "no instruction for f32 f32 f32"),
        (None, None, None, "wgmma", "A is in register memory|no instruction for f32"),
    ],
)
def test_a_way_that_is_asked_for_and_does_not_fit_is_refused_with_its_reason(load, inner, store, product, said):
    @tk.kernel
    def asked(k, x, y):
        with k.cta(threads=128) as cta:
            s = k.shared((64, 64), like=x)
            cta.copy(s, x, use=inner)
            cta.sync()
            acc = cta.load(x, use=load)
            cta.gemm(acc, s, s, use=product)
            cta.store(y, acc, use=store)

    with pytest.raises(BackendError, match=rf"(?s)({said}).*test_schedules.py:\d+"):
        lower(asked.trace(np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)), "sm_90a")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_ring_is_filled_by_the_copy_that_is_asked_for(arch, seed):
    random = np.random.default_rng(seed)
    rows, columns = int(random.integers(1, 40)), 8 * int(random.integers(1, 24))
    dtype, tile, deep = random.choice(["float16", "float32"]), int(random.choice([8, 16])), int(random.integers(1, 4))

    @tk.kernel
    def through(k, x, y, first="cp.async", second="cp.async"):
        i = k.grid(x.blocks(0, tile))
        s, t = k.shared((deep, tile, 64), like=x), k.shared((deep, tile, 64), like=x)
        ring = k.pipeline(deep, fills=1, uses=1)
        with k.warp[0]() as load:
            for j in load.range(x.blocks(1, 64)):
                with ring.fill(j) as stage:
                    load.copy_async(s[stage], x.tile(tile, 64)[i, j], use=first)
                    load.copy_async(t[stage], x.tile(tile, 64)[i, j], use=second)
        with k.warp[1]() as use:
            for j in use.range(x.blocks(1, 64)):
                with ring.use(j) as stage:
                    use.store(y.tile(tile, 64)[i, j], use.load(s[stage]) + use.load(t[stage]))

    x = random.integers(-9, 10, (rows, columns)).astype(dtype)
    tma = [] if arch == "sm_80" else ["tma"]
    for ways in [("cp.async", "cp.async"), *((one, "cp.async") for one in tma), *(("cp.async", one) for one in tma)]:
        options = {"first": ways[0], "second": ways[1], "arch": arch}
        y = np.zeros_like(x)
        through.run(x, y, on="cpu", **options)
        np.testing.assert_array_equal(y, 2 * x, err_msg=f"seed {seed}, {ways}")
        table = through.explain(x, y, **options)
        assert "no: \n" not in table and ("tma          no: cp.async was asked for" in table or not tma), table


@pytest.mark.parametrize(
    ("dtype", "use", "arch", "said"),
    [
        ("f16", "fma", "sm_80", "mma.sync     no: another product was asked for"),
        ("f16", "fma", "sm_90a", "wgmma        no: another product was asked for"),
        ("e4m3", None, "sm_80", "mma.sync     no: needs sm_89, not sm_80"),
        ("f32", None, "sm_90a", "mma.sync     no: no instruction for f32 f32 f32"),
    ],
)
def test_a_product_that_is_not_taken_has_its_own_reason(dtype, use, arch, said):
    @tk.kernel
    def product(k, a, b, c):
        with k.cta(threads=128) as cta:
            acc = cta.zeros((64, 64))
            for i in cta.range(a.blocks(1, 64), stages=2):
                cta.gemm(acc, a.tile(64, 64)[0, i], b.tile(64, 64)[0, i], use=use)
            cta.store(c, acc)

    parts = tk.spec((64, 128), dtype), tk.spec((64, 128), dtype), tk.spec((64, 64), "f32")
    assert said in product.explain(*parts, arch=arch)
