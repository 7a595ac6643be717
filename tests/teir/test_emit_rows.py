"""Row programs by the interpreter: well formed, without races, equal to NumPy; and what refuses them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.teir.test_extensions import operand, random_array

from tileweave.errors import DtypeError, GraphError, LayoutError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    emit_chain,
    emit_layer_norm,
    emit_max_sum_exp,
    emit_rms_norm,
    emit_softmax,
    from_json,
    interpret,
    numpy_dtype,
    problems,
    races,
    to_json,
    uninitialised,
)

TOLERANCE = {"FP64": 1e-12, "FP32": 2e-5, "FP16": 3e-3, "BF16": 3e-2}


def run(program: Program, *arrays: np.ndarray) -> np.ndarray:
    """By the interpreter, after every analysis has passed; the last array is the output."""
    assert problems(program) == () and races(program) is None and uninitialised(program) is None
    assert from_json(to_json(program)) == program
    names = [spec.name for spec in program.tensors if spec.role != "scratch"]
    with np.errstate(all="ignore"):
        interpret(program, dict(zip(names, arrays, strict=True)), order="random")
    return arrays[-1].astype("f8")


def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("axes", [(-1,), (0,), (1, 2), (0, 1, 2), (2, 0)])
def test_rows_may_be_any_axes(axes, dtype):
    rng = np.random.default_rng(len(axes))
    x, out = random_array(rng, (4, 3, 5), dtype), random_array(rng, (4, 3, 5), dtype)
    shape = tuple(x.shape[axis] for axis in axes)
    scale, shift = random_array(rng, shape, dtype), random_array(rng, shape, dtype)
    wide = x.astype("f8")
    order = sorted(range(len(axes)), key=lambda k: axes[k] % 3)
    rows = tuple(x.shape[k] if k in {axis % 3 for axis in axes} else 1 for k in range(3))
    by, on = (v.astype("f8").transpose(order).reshape(rows) for v in (scale, shift))
    left = wide - wide.mean(axes, keepdims=True)
    expected = {
        "softmax": softmax(wide, axes),
        "log": np.log(softmax(wide, axes)),
        "norm": left / np.sqrt(np.square(left).mean(axes, keepdims=True) + 1e-3) * by + on,
        "rms": wide / np.sqrt(np.square(wide).mean(axes, keepdims=True) + 1e-5) * by,
    }
    given = operand(x), operand(out)
    found = {
        "softmax": run(emit_softmax(*given, axes), x, out),
        "log": run(emit_softmax(*given, axes, log=True), x, out),
        "norm": run(emit_layer_norm(*given, operand(scale), operand(shift), axes, epsilon=1e-3), x, scale, shift, out),
        "rms": run(emit_rms_norm(*given, operand(scale), axes), x, scale, out),
    }
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


def test_chains_convert_and_use_results_twice():
    x = np.array([[1, -2, 300], [4, 5, -6]], "i4")
    out = np.empty((2, 3), "f4")
    steps = [("Cast", (0,), "FP32"), ("Tanh", (-1,)), ("Mul", (-1, -2)), ("Mul", (-3, -1))]
    found = run(emit_chain(steps, [operand(x)], operand(out)), x, out)
    np.testing.assert_allclose(found, x * np.tanh(x) * x, rtol=1e-6)


def test_a_scratch_row_serves_many_rows():
    x = operand(np.zeros((640, 100), numpy_dtype("BF16")))
    (row,) = (spec for spec in emit_softmax(x, x).tensors if spec.name == "row")
    assert (row.dtype, row.size_bytes) == ("FP32", 64 * 100 * 4)
    primes = operand(np.zeros((641, 100), numpy_dtype("BF16")))
    (row,) = (spec for spec in emit_softmax(primes, primes).tensors if spec.name == "row")
    assert row.size_bytes == 641 * 100 * 4


def test_rows_of_blocked_operands():
    x = np.random.default_rng(3).standard_normal((8, 24))
    blocks = np.ascontiguousarray(x.reshape(2, 4, 3, 8).transpose(0, 2, 1, 3))
    blocked, plain = Operand(strided((2, 4, 3, 8), (96, 8, 32, 1)), "FP64", (8, 24)), operand(x)
    row, out = np.arange(24.0), np.empty((8, 24))
    np.testing.assert_allclose(run(emit_softmax(blocked, plain), blocks, out), softmax(x, (1,)), rtol=1e-12)
    chain = emit_chain([("Add", (0, 1)), ("ReLU", (-1,))], (blocked, operand(row)), plain, "ab,b->ab")
    np.testing.assert_allclose(run(chain, blocks, row, out), np.maximum(x + row, 0))
    pairs = np.empty((8, 2))
    found = run(emit_max_sum_exp(blocked, operand(pairs), "ab->a"), blocks, pairs)
    np.testing.assert_allclose(found[:, 0] + np.log(found[:, 1]), np.log(np.exp(x).sum(1)))


def test_pairs_are_kept_by_cutting_rows():
    x = np.random.default_rng(4).standard_normal((3, 10))
    x[1] = -math.inf
    whole, parts = np.empty((3, 2)), np.empty((2, 3)).T
    run(emit_max_sum_exp(operand(x), operand(whole), "ab->a"), x, whole)
    for k, part in enumerate((x[:, :4], x[:, 4:])):
        run(emit_max_sum_exp(operand(part), operand(parts), "ab->a", accumulate=k > 0), part, parts)
    np.testing.assert_allclose(parts, whole, rtol=1e-14)
    np.testing.assert_array_equal(whole[1], [-math.inf, 10])


A = operand(np.zeros((4, 4), "f4"))
INT, BF16, WIDE = Operand(A.layout, "INT32"), Operand(A.layout, "BF16"), Operand(A.layout, "FP64")
ROW, PAIRS = operand(np.zeros(4, "f4")), operand(np.zeros((4, 2), "f4"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: emit_softmax(A, ROW), GraphError, r"shapes \(4, 4\) and \(4,\) differ"),
        (lambda: emit_softmax(A, A, (2,)), GraphError, r"axes \(2,\) of 2 indices"),
        (lambda: emit_softmax(A, A, (1, -1)), GraphError, "axes"),
        (lambda: emit_softmax(A, A, ()), GraphError, "axes"),
        (lambda: emit_softmax(INT, INT), DtypeError, "INT32 to INT32"),
        (lambda: emit_softmax(A, BF16), DtypeError, "FP32 to BF16"),
        (lambda: emit_softmax(A, Operand(strided((4, 4), (0, 1)), "FP32")), LayoutError, "share memory"),
        (lambda: emit_layer_norm(A, A, PAIRS), GraphError, "does not fit a shape of 2 indices"),
        (lambda: emit_rms_norm(A, A, Operand(ROW.layout, "FP64")), DtypeError, "FP64 with FP32"),
        (lambda: emit_chain([], (A,), A), GraphError, "there are no steps"),
        (lambda: emit_chain([("Sine", (0,))], (A,), A), GraphError, "no such operation 'Sine'"),
        (lambda: emit_chain([("Add", (0,))], (A,), A), GraphError, "step 0: Add of 0"),
        (lambda: emit_chain([("Exp", (-1,))], (A,), A), GraphError, "step 0: Exp of -1"),
        (lambda: emit_chain([("Exp", (1,))], (A,), A), GraphError, "step 0: Exp of 1"),
        (lambda: emit_chain([("Exp", (0,))], (INT,), INT), DtypeError, "step 0: it is a function of floating point"),
        (lambda: emit_chain([("Exp", (0,))], (A,), WIDE), DtypeError, "the last result is FP32 and the output FP64"),
        (lambda: emit_chain([("Exp", (0,))], (A,), ROW, "ab->a"), GraphError, "a letter of an input is not in"),
        (lambda: emit_max_sum_exp(A, ROW, "ab->"), GraphError, "a last index of extent 2"),
        (lambda: emit_max_sum_exp(PAIRS, PAIRS, "ab->ab"), GraphError, "does not fit a shape of 2 indices"),
        (lambda: emit_max_sum_exp(INT, PAIRS, "ab->a"), DtypeError, "does not hold all of its values"),
        (lambda: emit_max_sum_exp(A, Operand(PAIRS.layout, "BF16"), "ab->a"), DtypeError, "does not hold all"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
