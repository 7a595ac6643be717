"""Places of extreme elements: the program by the interpreter, the kernels in plans, each against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from tests.teir.test_emit_rows import run
from tests.teir.test_extensions import operand, random_array

import tileweave as tw
from tileweave import graph as g
from tileweave.errors import DtypeError, GraphError
from tileweave.layout import strided
from tileweave.teir import Operand, emit_place

SEED = 20261123
FUNCTIONS = {"max": (g.argmax, np.argmax), "min": (g.argmin, np.argmin)}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int16", "int32", "int64", "bool")


@pytest.mark.parametrize("extreme", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["FP32", "FP16", "INT64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_program_keeps_the_best_and_its_place(axis: int, dtype: str, extreme: str) -> None:
    rng = np.random.default_rng([SEED, axis])
    x = random_array(rng, (3, 4, 5), dtype)
    if dtype != "INT64":
        x[tuple(rng.integers(0, n) for n in x.shape)] = np.nan
    want = FUNCTIONS[extreme][1](x, axis)
    out = random_array(rng, want.shape, "INT64")
    np.testing.assert_array_equal(run(emit_place(extreme, operand(x), operand(out), axis), x, out), want)


def test_what_has_no_place_is_refused() -> None:
    a, out = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((4,), (1,)), "INT64")
    with pytest.raises(GraphError, match="no place of 'sum'"):
        emit_place("sum", a, out, 1)
    with pytest.raises(GraphError, match="axis 2 of 2"):
        emit_place("max", a, out, 2)
    with pytest.raises(DtypeError, match="places of FP32"):
        emit_place("max", a, Operand(strided((4,), (1,)), "FP32"), 1)
    with pytest.raises(GraphError):
        emit_place("max", a, out, 0)
    with pytest.raises(GraphError, match="over no element"):
        g.argmax(np.zeros((3, 0)), 1)


def drawn(rng: np.random.Generator, dtype: str) -> np.ndarray:
    """An array of 1 to 3 dimensions with ties, infinities and NaN, perhaps a view with other strides."""
    rank = int(rng.integers(1, 4))
    shape = tuple(round(np.exp(rng.uniform(0, (9, 5, 3.2)[rank - 1]))) for _ in range(rank))
    whole = rng.standard_normal([2 * n for n in shape]) * 3
    whole = np.round(whole) if rng.random() < 0.5 else whole
    if "float" in dtype:
        special, share = rng.choice([np.nan, np.inf, -np.inf]), rng.choice([0, 0.02, 0.5, 1])
        whole[rng.random(whole.shape) < share] = special
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    with np.errstate(all="ignore"):
        x = whole.astype(kind)
    x = x[tuple(slice(None, None, int(rng.choice([1, 2, -1, -2]))) for _ in shape)][tuple(slice(n) for n in shape)]
    x = x.transpose(rng.permutation(rank)) if rng.random() < 0.4 else x
    return x if rng.random() < 0.5 else x.copy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extreme", FUNCTIONS)
def test_any_axis_of_any_shape_and_strides(extreme: str, dtype: str) -> None:
    own, numpys = FUNCTIONS[extreme]
    print("seed", SEED)
    rng = np.random.default_rng([SEED, DTYPES.index(dtype), len(extreme)])
    compiled = 0
    for _ in range(8):
        x = drawn(rng, dtype)
        axis = int(rng.integers(-x.ndim, x.ndim))
        plan = tw.plan(own(tw.source(shape=x.shape, dtype=x.dtype, name="x"), axis))
        compiled += plan.steps[0].kernel.backend == "cpu"
        want = numpys(x.astype("f4") if dtype == "bfloat16" else x, axis)
        for threads in (1, 2):
            found = tw.run(plan, bind={"x": x}, threads=threads)
            np.testing.assert_array_equal(found, want, err_msg=f"{x.shape} {x.strides} axis {axis}")
            assert found.dtype == np.int64
    assert compiled >= 2


@pytest.mark.parametrize("shape", [(700, 33), (33, 700), (1, 5000), (5000, 1), (3, 400, 5), (300, 2), (257, 513)])
def test_nan_comes_first_and_the_first_of_equal_elements_is_found(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([SEED, *shape])
    for special in (0, np.nan, -np.inf):
        x = rng.integers(-4, 4, shape).astype("f4")
        x[rng.random(shape) < 0.1] = special
        for axis in range(x.ndim):
            for own, numpys in FUNCTIONS.values():
                np.testing.assert_array_equal(tw.run(tw.plan(own(tw.source(x), axis))), numpys(x, axis))


def test_shards_along_any_dimension_equal_the_whole() -> None:
    x = np.random.default_rng(SEED).integers(0, 9, (96, 20, 33)).astype("f4")
    for axis in range(3):
        graph = tw.plan(g.argmin(tw.source(x), axis)).graph
        np.testing.assert_array_equal(tw.run(tw.plan(graph, 3)), x.argmin(axis))
