"""Convolutions with the chain behind them: chosen by the plan, equal to the definition in float64, whole and cut."""

from __future__ import annotations

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg

TIMES = 5


def chain(x, w, b, s, rest, stride, groups):
    """Scale, bias, hard swish, a residual and ReLU behind a convolution."""
    y = tg.conv(x, w, stride=stride, padding=1, groups=groups) * s + b
    y = y * tg.minimum(tg.maximum(y + 3.0, 0.0), 6.0) / 6.0
    return tg.relu(y + rest)


def read_only(array):
    """What a model's weights are: packed, or computed with, once."""
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_convolution_takes_in_the_chain_behind_it(groups, dtype):
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    for number in range(TIMES):
        rank, filters, stride = int(draw.integers(1, 4)), 4 * int(draw.integers(1, 9)), int(draw.integers(1, 4))
        extents = draw.integers(1, (60, 24, 8)[rank - 1], rank).tolist()
        x = draw.standard_normal((2, 4, *extents)).astype(dtype)
        w = draw.standard_normal((filters, 4 // groups, *draw.integers(1, 4, rank))).astype(dtype)
        try:
            shape = tg.conv(x, w, stride=stride, padding=1, groups=groups).shape
        except tw.errors.GraphError:
            continue  # no window fits
        b, s = (draw.standard_normal((filters, *(1,) * rank)).astype(dtype) for _ in range(2))
        rest = draw.standard_normal((shape[0], *((1, *shape[2:]) if number % 2 else shape[1:]))).astype(dtype)
        expected = np.asarray(chain(*(a.astype(np.float64) for a in (x, w, b, s, rest)), stride, groups))
        bound = 20 * np.finfo(dtype).eps * max(1.0, np.abs(expected).max()) * np.sqrt(w[0].size)
        given = tw.source(shape=x.shape, dtype=dtype, name="x")
        weights = [read_only(a) if draw.integers(2) else a for a in (w, b, s, rest)]
        y = chain(given, *(tw.source(a) for a in weights), stride, groups)
        for machines in (1, 3):
            plan = tw.plan(y, tw.machines(machines))
            assert [operation.operator for operation in plan.graph.operations] == ["conv_chain"]
            for threads in (1, 2):
                found = tw.run(plan, bind={given: x}, threads=threads)
                assert found.dtype == dtype
                np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("kind", ["bool", "int8", "int64", "float64"])
def test_the_chain_may_read_what_is_of_another_type_than_the_sums(kind):
    """A mask chooses among the sums: an ONNX Trilu or Where behind a Conv."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    for constant in (True, False):
        filters, (height, width) = int(draw.integers(1, 40)), draw.integers(3, 40, 2).tolist()
        x = draw.standard_normal((2, 3, height, width)).astype(np.float32)
        w = read_only(draw.standard_normal((filters, 3, 3, 3)).astype(np.float32))
        mask = draw.integers(0, 2, (filters, height - 2, width - 2)).astype(kind)
        given = tw.source(shape=x.shape, dtype="float32", name="x")
        chosen = tw.source(read_only(mask)) if constant else tw.source(shape=mask.shape, dtype=kind, name="mask")
        y = tg.where(tg.not_equal(chosen, np.zeros((), kind)), tg.relu(tg.conv(given, w)), np.float32(-1))
        bound = {given: x} if constant else {given: x, chosen: mask}
        sums = np.asarray(tg.conv(x.astype(np.float64), w.astype(np.float64)))
        expected = np.where(mask != 0, np.maximum(sums, 0), -1)
        for machines in (1, 3):
            np.testing.assert_allclose(tw.run(tw.plan(y, tw.machines(machines)), bind=bound), expected, atol=1e-4)


def test_what_is_read_elsewhere_too_stays_apart():
    """The sums that somebody else reads are stored; the chain behind them is an operation of its own."""
    x, w = np.ones((1, 3, 12, 12), np.float32), np.ones((8, 3, 3, 3), np.float32)
    y = tg.conv(tw.source(x), w)
    plan = tw.plan([tg.relu(y - 1), y])
    assert sorted(operation.operator for operation in plan.graph.operations) == ["conv", "fused"]


def test_the_plan_says_what_the_chain_is():
    x = tw.source(shape=(1, 8, 16, 16), dtype="float32", name="x")
    plan = tw.plan(tg.relu(tg.conv(x, np.ones((8, 8, 3, 3), np.float32), np.ones(8, np.float32))))
    assert "conv_chain" in plan.explain() and "relu" in plan.explain()
    spared = 2 * 8 * 14 * 14 * 4  # the output, written once and read once less
    assert f"the chain runs on the sums: {spared} bytes less" in plan.steps[0].kernel.reason


def test_steps_without_code_stay_outside():
    """No chain is taken in that would bring the convolution to NumPy."""
    x = tw.source(shape=(1, 8, 16, 16), dtype="float32", name="x")
    plan = tw.plan(tg.sin(tg.relu(tg.conv(x, np.ones((8, 8, 3, 3), np.float32)))))
    assert next(step.kernel.backend for step in plan.steps if step.stage != "store") == "cpu"
