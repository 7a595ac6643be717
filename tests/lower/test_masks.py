"""Comparisons, choices and truths in compiled chains and rows: NumPy's values, NaN and infinities included."""

from __future__ import annotations

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg
from tileweave.layout import strided
from tileweave.teir import Operand, emit_chain, interpret

SHAPE = (3, 40, 37)
COMPARISONS = {
    tg.less: np.less,
    tg.less_equal: np.less_equal,
    tg.greater: np.greater,
    tg.greater_equal: np.greater_equal,
    tg.equal: np.equal,
    tg.not_equal: np.not_equal,
}


def drawn(dtype, seed):
    """Arrays with many equal elements, and with every special value where there are such."""
    draw = np.random.default_rng(seed)
    x, y = (draw.integers(-3, 4, SHAPE).astype(dtype) for _ in range(2))
    if x.dtype.kind == "f":
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0]
        for array in (x, y):
            array.reshape(-1)[draw.integers(0, array.size, 400)] = draw.choice(special, 400)
    return x, y, draw.random(SHAPE[1:]) > 0.4


def ran(tensor, **bind):
    """The value of a plan and what computes it."""
    plan = tw.plan(tensor)
    return tw.run(plan, bind=bind), [step.kernel.backend for step in plan.steps if step.stage != "store"]


def holes(**arrays):
    return [tw.source(shape=a.shape, dtype=a.dtype.name, name=name) for name, a in arrays.items()]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_comparisons_and_choices_are_numpys(dtype):
    for seed, (compare, numpys) in enumerate(COMPARISONS.items()):
        x, y, mask = drawn(dtype, seed)
        a, b, m = holes(x=x, y=y, m=mask)
        cases = [
            (compare(a, b), numpys(x, y), {"x": x, "y": y}),
            (tg.where(m, a, b), np.where(mask, x, y), {"x": x, "y": y, "m": mask}),
            (tg.where(compare(a, b), a, b), np.where(numpys(x, y), x, y), {"x": x, "y": y}),
            (tg.equal(m, compare(a, b)), mask == numpys(x, y), {"x": x, "y": y, "m": mask}),
            (compare(a, b).astype("float64") * 2, numpys(x, y) * 2.0, {"x": x, "y": y}),
        ]
        for tensor, expected, bind in cases:
            found, backends = ran(tensor, **bind)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype and set(backends) == {"cpu"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden", [-np.inf, -1e30])
def test_a_masked_softmax_is_one_row_kernel(dtype, hidden):
    draw = np.random.default_rng(5)
    x, mask = draw.standard_normal((2, 6, 33, 50)).astype(dtype), draw.random((33, 50)) > 0.5
    mask[3] = False  # a row of -inf is NaN, as in NumPy
    x[0, 1, 5, :3] = np.inf, -np.inf, np.nan
    a, m = holes(x=x, m=mask)
    found, backends = ran(tw.softmax(tg.where(m, a * 0.5, hidden), -1), x=x, m=mask)
    with np.errstate(all="ignore"):
        scores = np.where(mask, x.astype(np.float64) * 0.5, hidden)
        power = np.exp(scores - scores.max(-1, keepdims=True))
        expected = power / power.sum(-1, keepdims=True)
    assert backends == ["cpu"]
    assert np.isnan(found[:, :, 3]).all() == np.isinf(hidden)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_casts_and_arithmetic_that_numpy_defines_otherwise_stay_numpys():
    """A float as an integer, anything as a truth, the sum of truths."""
    x, _, mask = drawn("float32", 9)
    a, m = holes(x=x, m=mask)
    with np.errstate(all="ignore"):
        for tensor, expected, bind in (
            (a.astype("bool"), x.astype(bool), {"x": x}),
            (a.astype("int64"), x.astype(np.int64), {"x": x}),
            (m + m, mask + mask, {"m": mask}),
            (m * m, mask * mask, {"m": mask}),
        ):
            np.testing.assert_array_equal(ran(tensor, **bind)[0], expected)


def test_the_interpreter_compares_and_chooses_as_numpy():
    x, y, _ = drawn("float32", 2)
    side = Operand(strided((5, 7), (7, 1)), "FP32")
    x, y = x[0, :5, :7].copy(), y[0, :5, :7].copy()
    out = np.empty((5, 7), np.float32)
    program = emit_chain([("LessEqual", (0, 1), "INT8"), ("Select", (-1, 0, 1))], (side, side), side)
    interpret(program, {"in0": x, "in1": y, "out": out})
    np.testing.assert_array_equal(out, np.where(x <= y, x, y))
    rows = emit_chain([("Fill", (np.inf,)), ("Less", (0, -1)), ("Select", (-2, 0, 1))], (side, side), side, axes=(1,))
    interpret(rows, {"in0": x, "in1": y, "out": out})
    np.testing.assert_array_equal(out, np.where(x < np.inf, x, y))
