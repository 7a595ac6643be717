"""Reshapes as copies by strides: of permuted and sliced tensors, whole and cut."""

from __future__ import annotations

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg

CASES = [
    ((4, 30, 8, 16), (0, 2, 1, 3), (4, 8, 480), "cpu"),
    ((24, 20, 20, 2, 2), (0, 1, 3, 2, 4), (24, 40, 40), "cpu"),
    ((8, 9, 13, 7), (3, 2, 0, 1), (91, 72), "cpu"),
    ((6, 400), (1, 0), (48, 50), "numpy"),  # borders that do not divide each other
    ((3, 5, 7), (2, 0, 1), (105,), "numpy"),  # a copy of so few elements does not pay
]


@pytest.mark.parametrize(("shape", "order", "to", "by"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_reshapes_are_copies_by_strides(shape, order, to, by, dtype):
    x = np.random.default_rng(1).integers(-99, 99, shape).astype(dtype)
    given = tw.source(shape=shape, dtype=dtype, name="x")
    moved = tg.permute(given, order)
    for tensor, expected in (
        (tg.reshape(moved, to), x.transpose(order).reshape(to)),
        (tg.reshape(tg.flip(moved, 0), to) + 1, x.transpose(order)[::-1].reshape(to) + 1),
    ):
        for machines in (1, 3):
            plan = tw.plan(tensor, tw.machines(machines))
            (first, *_) = (step for step in plan.steps if step.stage != "store")
            assert (first.kernel.backend or "numpy") == by
            for threads in (1, 2):
                np.testing.assert_array_equal(tw.run(plan, bind={"x": x}, threads=threads), expected)
