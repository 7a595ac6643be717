"""The running pair (maximum, sum of exponentials) has one definition in graphs, the interpreter and compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.graph.ops.monoids import STATES
from tileweave.layout import strided
from tileweave.teir import Operand, emit_max_sum_exp, interpret, operation

INF, NAN = np.inf, np.nan
ROWS = {
    "nothing but -inf": [-INF, -INF, -INF, -INF],
    "one inf": [1, INF, 2, 3],
    "two inf": [INF, 0, INF, 1],
    "inf and -inf": [-INF, INF, -INF, 0],
    "nan": [1, NAN, 2, 3],
    "nan beside -inf": [-INF, NAN, -INF, -INF],
    "nan beside inf": [INF, NAN, 0, 0],
    "some -inf": [-INF, 1, 2, -INF],
    "finite": [0.5, -3, 2, 2],
}


@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
def test_rows_of_infinities_and_nan_have_one_state(dtype: str) -> None:
    x = np.array(list(ROWS.values()), "f4" if dtype == "FP32" else "f8")
    count = len(x)
    program = emit_max_sum_exp(
        Operand(strided((count, 4), (4, 1)), dtype), Operand(strided((count, 2), (2, 1)), dtype), "ab->a"
    )
    with np.errstate(all="ignore"):
        state = STATES["max_and_sum"]
        parts = [state.lift(np, x[:, k : k + 1], 1, k) for k in range(4)]
        joined = state.identity(np, (count,), x.dtype)
        for part in parts:
            joined = state.combine(np, joined, part)
        whole = state.lift(np, x, 1, 0)
    results = [np.empty((count, 2), x.dtype) for _ in range(2)]
    interpret(program, {"in0": x, "out": results[0]})
    compile(program, cache=False)(x, results[1])
    for found in (*results, np.stack(whole, 1)):
        np.testing.assert_allclose(found, np.stack(joined, 1), rtol=1e-6, equal_nan=True)


def test_the_empty_row_is_the_neutral_pair() -> None:
    neutral = operation("LowestZero").step((), np.ones((1, 2), "f4"))
    assert neutral.tolist() == [[-INF, 0.0]]
    assert [part.tolist() for part in STATES["max_and_sum"].identity(np, (1,), np.dtype("f4"))] == [[-INF], [0.0]]
