"""Neg and Abs, compiled and interpreted, on the values where signs are odd."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.layout import strided
from tileweave.teir import Operand, emit_elementwise, interpret, numpy_dtype


@pytest.mark.parametrize("operation", ["Neg", "Abs"])
@pytest.mark.parametrize("dtype", ["FP64", "FP32", "BF16", "FP16", "INT64", "INT32", "INT8"])
def test_signs(operation: str, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    whole = dtype.startswith("INT")
    odd = [np.iinfo(kind).min, np.iinfo(kind).max, 0, -1] if whole else [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7]
    x = np.array(odd * 11, "int64" if whole else "float64").astype(kind)
    out, again = np.zeros_like(x), np.zeros_like(x)
    row = Operand(strided(x.shape, (1,)), dtype)
    program = emit_elementwise(operation, (row,), row)
    cpu.compile(program)(x, out)
    interpret(program, {"in0": x, "out": again})
    wide = x if whole else x.astype("f8")
    wanted = (np.negative if operation == "Neg" else np.absolute)(wide).astype(kind)
    for got in (out, again):
        np.testing.assert_array_equal(got.astype(wide.dtype), wanted.astype(wide.dtype))
        if not whole:
            number = ~np.isnan(wide)
            assert np.array_equal(np.signbit(got.astype("f8"))[number], np.signbit(wanted.astype("f8"))[number])
