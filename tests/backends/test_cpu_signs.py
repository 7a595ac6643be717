"""Signs and rounding, compiled and interpreted, on the values where they are odd."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.backends.cpu.target.target import describe, host
from tileweave.layout import strided
from tileweave.teir import Operand, emit_elementwise, interpret, numpy_dtype

NUMPY = {"Neg": np.negative, "Abs": np.absolute, "Sign": np.sign}
ROUNDED = {"Floor": np.floor, "Ceil": np.ceil, "Trunc": np.trunc, "Rint": np.rint}


FLOATS, INTEGERS = ("FP64", "FP32", "BF16", "FP16"), ("INT64", "INT32", "INT8")
LESSER = [False, True] if host().has("avx2") else [False]


@pytest.mark.parametrize(("operation", "dtype"), [*product((*NUMPY, *ROUNDED), FLOATS), *product(NUMPY, INTEGERS)])
@pytest.mark.parametrize("lesser", LESSER)
def test_signs(operation: str, dtype: str, lesser: bool) -> None:
    kind = numpy_dtype(dtype)
    whole = dtype.startswith("INT")
    odd = [np.iinfo(kind).min, np.iinfo(kind).max, 0, -1] if whole else [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7]
    halves = [] if whole else [0.5, -0.5, 1.5, -2.5, 2.0**23 + 1, -(2.0**52) - 1, 0.49999997, -3.7, 8388607.5]
    with np.errstate(over="ignore"):
        x = np.array((odd + halves) * 11, "int64" if whole else "float64").astype(kind)
    out, again = np.zeros_like(x), np.zeros_like(x)
    row = Operand(strided(x.shape, (1,)), dtype)
    program = emit_elementwise(operation, (row,), row)
    plain = describe("x86-64", "+sse2", "x86_64", (32768, 524288, 8388608)) if lesser else None
    cpu.compile(program, target=plain)(x, out)
    interpret(program, {"in0": x, "out": again})
    wide = x if whole else x.astype("f8")
    wanted = {**NUMPY, **ROUNDED}[operation](wide).astype(kind)
    for got in (out, again):
        np.testing.assert_array_equal(got.astype(wide.dtype), wanted.astype(wide.dtype))
        if not whole:
            number = ~np.isnan(wide)
            assert np.array_equal(np.signbit(got.astype("f8"))[number], np.signbit(wanted.astype("f8"))[number])
