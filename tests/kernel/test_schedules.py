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


@tk.kernel
def reduced(k, x, y, fn="sum", use=None, threads=128, rows=8):
    i = k.grid(x.blocks(0, rows))
    with k.cta(threads=threads) as cta:
        row = cta.load(x.tile(rows, x.shape[1])[i, 0])
        cta.store(y.tile(rows, 1)[i, 0], getattr(cta, fn)(row, 1, use=use))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("seed", range(6))
def test_a_reduction_meets_where_it_is_asked_to_or_says_why_not(seed):
    """Semantic, instruction order and printed text agree; the reason counts who has terms of one sum."""
    rng = np.random.default_rng(seed)
    dtype, threads = rng.choice(["float32", "float16", "int32"]), int(rng.choice([32, 96, 128]))
    fn, columns = str(rng.choice(["sum", "max", "min"])), int(rng.choice([1, 3, 40, 130]))
    x = (rng.standard_normal((19, columns)) * 9).astype(dtype)
    y = np.zeros((19, 1), "float32" if dtype == "float16" and fn == "sum" else dtype)
    wide = x.astype(np.float64)
    exact = {"sum": wide.sum, "max": wide.max, "min": wide.min}[fn](axis=1, keepdims=True)
    print(seed, dtype, threads, fn, x.shape)
    for use in (None, "slots", "shuffle", "shared"):
        table = reduced.explain(x, y, arch="sm_80", fn=fn, threads=threads)
        lanes, warps = "butterflies" in table, "warps have terms of one sum" in table
        fits = {"slots": not lanes and not warps, "shuffle": lanes and not warps, "shared": lanes or warps}
        settings = {"fn": fn, "use": use, "threads": threads}
        if use is not None and not fits[use]:
            with pytest.raises(BackendError, match=rf"{fn}\(\.\., use='{use}'\): .*(terms of one|all terms of a) sum"):
                reduced.text("cuda", x, y, **settings)
            continue
        want, got = reduced.check(x, y, arch="sm_80", **settings).outputs["y"], y.copy()
        reduced.run(x, got, on="cpu", arch="sm_80", **settings)
        assert got.tobytes() == want.tobytes()
        np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-2)
        assert ("shfl" in reduced.text("cuda", x, y, arch="sm_80", **settings)) == (lanes and use != "shared")


@tk.kernel
def asking(k, x, y, cells, use=None, of="map"):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=64) as cta:
        r = cta.load(x[row])
        if of == "map":
            r = cta.exp(r, use=use)
        elif of == "cast":
            r = cta.cast(r, "f16", use=use)
        elif of == "scan":
            r = cta.scan("add", r, use=use)
        elif of == "reduce":
            r = r - cta.max(r, use=use)
        elif of == "copy":
            cta.store(y[row], r, use=use)
        else:
            cta.atomic_add(cells[0], use=use)
        cta.store(y[row], r)


@pytest.mark.parametrize(
    ("of", "legal"),
    [
        ("map", "no use="), ("cast", "no use="), ("scan", "shared"),
        ("reduce", "multimem | peers | slots | shuffle | shared"), ("copy", "tma | st | shuffle | shared"),
        ("atomic_add", "atom.add"),
    ],
)  # fmt: skip
def test_an_unknown_way_names_those_that_there_are(of, legal):
    cells = np.zeros(1, np.uint32)
    with pytest.raises(BackendError, match=f"no way to {of} is called 'nonsense'") as refused:
        asking.explain(X, Y, cells, use="nonsense", of=of)
    assert f"legal  {legal}\n" in str(refused.value) and "test_schedules.py:" in str(refused.value)
    if of in ("scan", "atomic_add"):
        asking.check(X, Y, cells, use=legal, of=of, arch="sm_80")


def test_a_way_from_outside_is_forced_where_an_operator_is_written(by_exp2):
    cells = np.zeros(1, np.uint32)
    assert "exp2         yes: a multiplication and exp2" in asking.explain(X, Y, cells, use="exp2")
    with pytest.raises(BackendError, match=r"map\(\.\., use='exp2'\): results of f64"):
        asking.explain(X.astype(np.float64), Y.astype(np.float64), cells, use="exp2")


@tk.kernel
def scanned(k, x, y, fn="add", axis=1, rows=3, columns=5):
    i, j = k.grid(x.blocks(0, rows), x.blocks(1, 32 * columns))
    with k.cta(threads=32) as cta, cta.thread.each() as thread:
        at = j * 32 + thread.index
        thread.store(y.tile(rows, columns)[i, at], thread.scan(fn, thread.load(x.tile(rows, columns)[i, at]), axis))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fn", ["add", "max"])
def test_a_thread_scans_what_it_holds(fn, axis):
    x = np.random.default_rng(3).integers(-9, 9, (9, 320)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    scanned.run(x, got, on="cpu", fn=fn, axis=axis)
    scanned.run(x, want, fn=fn, axis=axis)
    step = {"add": np.add, "max": np.maximum}[fn]
    exact = step.accumulate(x.reshape(3, 3, 64, 5), axis=1 if axis == 0 else 3).reshape(x.shape)
    assert (got == exact).all() and (want == exact).all()


@pytest.mark.parametrize(("threads", "said"), [(1, "a scope of one thread"), (16, "a scope of parts of warps")])
def test_parts_of_warps_are_refused_with_what_to_write_instead(threads, said):
    @tk.kernel
    def partly(k, x, y):
        row = k.grid(x.blocks(0, 1))
        with k.cta(threads=64) as cta, cta.thread[0:threads]() as some:
            some.store(y[row], some.load(x[row]))

    with pytest.raises(BackendError, match=said) as refused:
        partly.text("cuda", X, Y)
    assert "`thread.each()` with `k.when(thread.index <" in str(refused.value)
