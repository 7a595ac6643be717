"""Running sums and products along rows: the program by the interpreter, the kernel in plans, each against NumPy."""

import numpy as np
import pytest
from tests.teir.test_emit_rows import run
from tests.teir.test_extensions import operand, random_array

import tileweave as tw
from tileweave import graph as g
from tileweave.errors import DtypeError, GraphError
from tileweave.layout import strided
from tileweave.teir import Operand, emit_running

SEED = 20260114
FUNCTIONS = {"cumsum": (g.cumsum, np.cumsum, "sum"), "cumprod": (g.cumprod, np.cumprod, "product")}


ACCUMULATED = {
    "sum": np.cumsum,
    "product": np.cumprod,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
    "logaddexp": np.logaddexp.accumulate,
}


@pytest.mark.parametrize("monoid", ACCUMULATED)
@pytest.mark.parametrize("dtype", ["FP32", "FP64", "INT64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_program_takes_one_element_after_the_other(axis: int, dtype: str, monoid: str) -> None:
    rng = np.random.default_rng(axis)
    x, out = random_array(rng, (3, 4, 5), dtype), random_array(rng, (3, 4, 5), dtype)
    x, out = x.transpose(2, 0, 1), out[::-1].transpose(2, 0, 1)
    if monoid == "logaddexp" and dtype == "INT64":
        with pytest.raises(DtypeError, match="logarithms of INT64"):
            emit_running(monoid, operand(x), operand(out), axis)
        return
    found = run(emit_running(monoid, operand(x), operand(out), axis), x, out)
    want = ACCUMULATED[monoid](x.astype("f8"), axis)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_what_has_no_running_form_is_refused() -> None:
    a, narrow, shared = (
        Operand(strided((4, 8), s), d) for s, d in (((8, 1), "FP32"), ((8, 1), "FP16"), ((0, 1), "FP32"))
    )
    with pytest.raises(GraphError, match="'mean' has no running form"):
        emit_running("mean", a, a, 1)
    with pytest.raises(GraphError, match="axis 2 of 2"):
        emit_running("sum", a, a, 2)
    with pytest.raises(DtypeError, match="FP16 to FP16"):
        emit_running("sum", narrow, narrow, 1)
    with pytest.raises(Exception, match="share"):
        emit_running("sum", a, shared, 1)


def drawn(rng: np.random.Generator, dtype: str) -> np.ndarray:
    """An array of 0 to 3 dimensions before its rows, perhaps a view with other strides."""
    lead = tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 40, rng.integers(0, 3)))
    shape = (*lead, int(rng.choice([1, 2, 7, 8, 9, 31, 33, 64, 100, 1000])))
    big = tuple(2 * n for n in shape)
    whole = rng.integers(-3, 4, big) if dtype.startswith("int") else rng.standard_normal(big)
    step = rng.choice([1, 2, -1])
    x = whole.astype(dtype)[tuple(slice(None, None, 2) for _ in lead) + (slice(None, None, step),)]
    x = x[..., : shape[-1]]
    return np.asfortranarray(x) if rng.random() < 0.2 else x if rng.random() < 0.5 else x.copy()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_running_logarithms_of_sums_of_exponentials(dtype: str, reverse: bool) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(8):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in np.exp(rng.uniform(0, 8 / rank + 0.5, rank)))
        axis, x = int(rng.integers(rank)), (rng.standard_normal(shape) * rng.choice([0.1, 5, 300])).astype(dtype)
        for odd in (-np.inf, np.inf, np.nan) if rng.random() < 0.5 else ():
            x[rng.random(shape) < 0.01] = odd
        ahead = np.flip(x, axis) if reverse else x
        with np.errstate(invalid="ignore"):
            want = np.logaddexp.accumulate(ahead.astype("f8"), axis)
        want = np.flip(want, axis) if reverse else want
        hole = tw.source(shape=shape, dtype=dtype, name="x")
        plan = tw.plan(g.logcumsumexp(hole, axis, reverse=reverse))
        found = tw.run(plan, bind={"x": x}, threads=int(rng.integers(1, 3)))
        eps = np.finfo(dtype).eps * (4 + shape[axis])
        np.testing.assert_allclose(found, want, rtol=eps, atol=eps * (1 + np.abs(x[np.isfinite(x)]).max(initial=0)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_keep_nan(name: str, dtype: str) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    ufunc = np.maximum if name == "cummax" else np.minimum
    for _ in range(6):
        x = drawn(rng, "int32" if dtype.startswith("uint") else dtype).astype(dtype)
        if dtype.startswith("float"):
            ends = rng.choice([np.nan, np.inf, -np.inf, -0.0], x.shape)
            x = np.where(rng.random(x.shape) < rng.choice([0, 0.02]), ends, x).astype(dtype)
        axis = int(rng.integers(x.ndim))
        reverse = bool(rng.integers(2))
        found = np.asarray(tw.run(tw.plan(getattr(g, name)(tw.source(x), axis, reverse=reverse))))
        wanted = np.flip(ufunc.accumulate(np.flip(x, axis), axis), axis) if reverse else ufunc.accumulate(x, axis)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_any_shape_and_strides(name: str, dtype: str, threads: int) -> None:
    own, numpys, _ = FUNCTIONS[name]
    print("seed", SEED)
    rng = np.random.default_rng([SEED, threads, len(dtype), len(name)])
    compiled = 0
    for _ in range(8):
        x = drawn(rng, dtype)
        hole = tw.source(shape=x.shape, dtype=dtype, name="x")
        plan = tw.plan(own(hole, -1, dtype=dtype))
        compiled += plan.steps[0].kernel.backend == "cpu"
        found = tw.run(plan, bind={"x": x}, threads=threads)
        if dtype.startswith("int"):
            np.testing.assert_array_equal(found, numpys(x, -1, dtype=dtype))
            continue
        wide = numpys(x.astype("f8"), -1)
        scale = np.cumsum(np.abs(x), -1, dtype="f8") if name == "cumsum" else np.maximum(np.abs(wide), 1e-30)
        limit = 4 * (10 + np.log2(x.shape[-1])) * (1 if name == "cumsum" else x.shape[-1]) * np.finfo(dtype).eps
        assert (np.abs(found - wide) <= limit * scale + np.finfo(dtype).tiny).all(), (x.shape, x.strides)
    assert compiled >= 2


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_numpys(name: str, special: float) -> None:
    own, numpys, _ = FUNCTIONS[name]
    x = np.random.default_rng(SEED).standard_normal((300, 61)).astype("f4")
    x[3, 5], x[7, ::9], x[9, 40:] = special, special, -special
    x[9, 2], x[11, 17], x[11, 30] = special, 0, special
    with np.errstate(all="ignore"):
        want = numpys(x, -1)
    found = tw.run(tw.plan(own(tw.source(x), -1)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(found[infinite], want[infinite])
    np.testing.assert_allclose(found[np.isfinite(want)], want[np.isfinite(want)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns_of_any_shape_and_strides(name: str, dtype: str) -> None:
    own, numpys, _ = FUNCTIONS[name]
    print("seed", SEED)
    rng = np.random.default_rng([SEED, len(dtype), len(name), 7])
    for _ in range(6):
        x = drawn(rng, dtype)
        x = np.moveaxis(x, -1, int(rng.integers(0, x.ndim)))
        x = x.copy() if rng.random() < 0.5 else x
        axis = int(rng.integers(0, x.ndim))
        plan = tw.plan(own(tw.source(shape=x.shape, dtype=dtype, name="x"), axis, dtype=dtype))
        for threads in (1, 2):
            found = tw.run(plan, bind={"x": x}, threads=threads)
            if dtype.startswith("int"):
                np.testing.assert_array_equal(found, numpys(x, axis, dtype=dtype))
                continue
            wide, count = numpys(x.astype("f8"), axis), x.shape[axis]
            scale = np.cumsum(np.abs(x), axis, dtype="f8") if name == "cumsum" else np.abs(wide)
            limit = 2 * count * np.finfo(dtype).eps * scale + np.finfo(dtype).tiny
            assert (np.abs(found - wide) <= limit).all(), (x.shape, x.strides, axis)


def test_columns_are_compiled() -> None:
    plan = tw.plan(g.cumsum(tw.source(shape=(50, 300), dtype="float32", name="x"), 0))
    assert plan.steps[0].kernel.backend == "cpu"


def test_the_sign_of_zero_stays() -> None:
    x = np.full((500, 40), -0.0, "f4")
    x[1, 3] = 0.0
    plan = tw.plan(g.cumsum(tw.source(x), -1))
    assert plan.steps[0].kernel.backend == "cpu"
    np.testing.assert_array_equal(np.signbit(tw.run(plan)), np.signbit(x.cumsum(-1)))


def test_shards_of_rows_equal_the_whole() -> None:
    x = np.random.default_rng(SEED).standard_normal((96, 20, 33))
    whole = tw.plan(g.cumsum(tw.source(x), 2, reverse=True))
    np.testing.assert_array_equal(tw.run(tw.plan(whole.graph, 3)), tw.run(whole))


TINY = np.finfo("f8").tiny
IN_PLACE = {
    "running sum of columns": (lambda x: g.cumsum(x, 0), lambda x: np.cumsum(x, 0)),
    "running product": (lambda x: g.cumprod(x, 1), lambda x: np.cumprod(x, 1)),
    "sort": (lambda x: g.sort(x, 1), lambda x: np.sort(x, 1)),
    "sort, greatest first": (lambda x: g.sort(x, 0, descending=True), lambda x: -np.sort(-x, 0)),
}


@pytest.mark.parametrize("shape", [(3, 4), (7, 5, 2), (9, 1100), (40, 33)])
@pytest.mark.parametrize("case", IN_PLACE)
def test_what_numpy_computes_is_written_where_it_is_wanted(case: str, shape: tuple[int, ...]) -> None:
    own, want = IN_PLACE[case]
    x = np.random.default_rng(SEED).standard_normal(shape)
    wanted = want(x)
    plan = tw.plan(own(tw.source(shape=shape, dtype="float64", name="x")))
    out = np.empty(shape)
    for _ in range(2):
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}), wanted, rtol=1e-12, atol=TINY)
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}, out=out), wanted, rtol=1e-12, atol=TINY)
    np.testing.assert_allclose(tw.run(plan, bind={"x": x}, out=x), wanted, rtol=1e-12, atol=TINY)
    both = tw.plan([own(tw.source(wanted, name="y")), own(tw.source(wanted) + 1)], 2)
    np.testing.assert_allclose(tw.run(both)[1], want(wanted + 1), rtol=1e-12, atol=TINY)


def test_the_order_of_a_sort_is_no_sorted_array() -> None:
    x = np.random.default_rng(SEED).integers(0, 9, (20, 30))
    assert x.dtype == np.int64
    np.testing.assert_array_equal(tw.run(tw.plan(g.argsort(tw.source(x), 1))), np.argsort(x, 1, "stable"))
