"""Chains that read operands across their dense axes: the same values as NumPy's, and no element is gathered alone."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.layout import strided
from tileweave.teir import Operand, emit_chain, emit_elementwise

NAMES = {"f4": "FP32", "f8": "FP64", "f2": "FP16", "i4": "INT32", "i1": "INT8"}


def operand(array):
    strides = [step // array.itemsize for step in array.strides]
    return Operand(strided(array.shape, strides), NAMES[array.dtype.str[1:]])


def numbers(rng, dtype, *shape):
    """Small integers of a type, and a few that are no finite numbers; rows are sometimes those of a wider array."""
    spare = int(rng.integers(0, 3))
    held = rng.integers(-9, 10, (*shape[:-1], shape[-1] + spare)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        held.flat[rng.integers(0, held.size, 3)] = np.nan, np.inf, -np.inf
    return held[..., : shape[-1]]


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i1"])
@pytest.mark.parametrize("seed", range(4))
def test_an_operand_is_transposed_in_tiles(dtype, seed):
    rng = np.random.default_rng([seed, 7])
    b, i, j = (int(n) for n in (rng.integers(1, 4), rng.integers(2, 300), rng.integers(2, 300)))
    x, y = numbers(rng, dtype, b, j, i), numbers(rng, dtype, b, i, j)
    for threads in (1, 2):
        out = np.zeros((b, i, j), dtype)
        program = emit_elementwise("Add", (operand(x), operand(y)), operand(out), "bji,bij->bij")
        kernel = compile(program, threads=threads, cache=False)
        kernel(x, y, out)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, x.swapaxes(1, 2) + y, err_msg=f"{dtype} {(b, i, j)}")
        if min(i, j) > 16:
            assert "masked.gather" not in kernel.source


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_along_may_be_what_is_written(seed):
    rng = np.random.default_rng([seed, 8])
    i, j = (int(n) for n in rng.integers(17, 400, 2))
    x, out = rng.integers(-9, 10, (j, i)).astype("f4"), rng.integers(-9, 10, (i, j)).astype("f4")
    wanted = np.maximum(x.T * 2 - out, 0) * x.T
    steps = [("Fill", (2.0,)), ("Mul", (0, -1)), ("Sub", (-2, 1)), ("ReLU", (-3,)), ("Mul", (-4, 0))]
    program = emit_chain(steps, [operand(x), operand(out)], operand(out), "ji,ij->ij")
    compile(program, threads=2, cache=False)(x, out, out)
    np.testing.assert_array_equal(out, wanted, err_msg=f"{(i, j)}")


@pytest.mark.parametrize("seed", range(4))
def test_several_operands_of_several_types_are_transposed(seed):
    rng = np.random.default_rng([seed, 9])
    i, j, k = (int(n) for n in rng.integers(1, 70, 3))
    x, y = numbers(rng, "f4", k, j, i), numbers(rng, "f4", i, k, j)
    chosen = rng.integers(0, 2, (j, k, i)).astype("i1")
    out = np.zeros((i, j, k), "f4")
    steps = [("Less", (0, 1)), ("Select", (-1, 0, 1)), ("Select", (2, -2, 1)), ("Tanh", (-3,))]
    program = emit_chain(steps, [operand(x), operand(y), operand(chosen)], operand(out), "kji,ikj,jki->ijk")
    compile(program, cache=False)(x, y, chosen, out)
    a, b, c = x.transpose(2, 1, 0), y.transpose(0, 2, 1), chosen.transpose(2, 0, 1)
    wanted = np.tanh(np.where(c != 0, np.where(a < b, a, b), b))
    np.testing.assert_allclose(out, wanted, rtol=1e-6, err_msg=f"{(i, j, k)}")
