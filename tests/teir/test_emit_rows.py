"""Row programs by the interpreter: well formed, without races, equal to NumPy; and what refuses them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.teir import rows
from tests.teir.test_extensions import operand, random_array

from tileweave.errors import DtypeError, GraphError, LayoutError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    emit_chain,
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
    spread = tuple(x.shape[k] if k in {axis % 3 for axis in axes} else 1 for k in range(3))
    by, on = (v.astype("f8").transpose(order).reshape(spread) for v in (scale, shift))
    left = wide - wide.mean(axes, keepdims=True)
    expected = {
        "softmax": softmax(wide, axes),
        "log": np.log(softmax(wide, axes)),
        "norm": left / np.sqrt(np.square(left).mean(axes, keepdims=True) + 1e-3) * by + on,
        "rms": wide / np.sqrt(np.square(wide).mean(axes, keepdims=True) + 1e-5) * by,
    }
    given = operand(x), operand(out)
    found = {
        "softmax": run(rows.softmax(*given, axes), x, out),
        "log": run(rows.softmax(*given, axes, log=True), x, out),
        "norm": run(
            rows.layer_norm(*given, operand(scale), operand(shift), axes=axes, epsilon=1e-3), x, scale, shift, out
        ),
        "rms": run(rows.rms_norm(*given, operand(scale), axes=axes), x, scale, out),
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
    sizes = {spec.size_bytes for spec in rows.softmax(x, x).tensors if spec.role == "scratch" and spec.dtype == "FP32"}
    assert max(sizes) == 64 * 100 * 4
    primes = operand(np.zeros((641, 100), numpy_dtype("BF16")))
    assert max(spec.size_bytes for spec in rows.softmax(primes, primes).tensors) == 641 * 100 * 4


def test_rows_of_blocked_operands():
    x = np.random.default_rng(3).standard_normal((8, 24))
    blocks = np.ascontiguousarray(x.reshape(2, 4, 3, 8).transpose(0, 2, 1, 3))
    blocked, plain = Operand(strided((2, 4, 3, 8), (96, 8, 32, 1)), "FP64", (8, 24)), operand(x)
    row, out = np.arange(24.0), np.empty((8, 24))
    np.testing.assert_allclose(run(rows.softmax(blocked, plain), blocks, out), softmax(x, (1,)), rtol=1e-12)
    chain = emit_chain([("Add", (0, 1)), ("ReLU", (-1,))], (blocked, operand(row)), plain, "ab,b->ab")
    np.testing.assert_allclose(run(chain, blocks, row, out), np.maximum(x + row, 0))


A = operand(np.zeros((4, 4), "f4"))
INT, BF16, WIDE = Operand(A.layout, "INT32"), Operand(A.layout, "BF16"), Operand(A.layout, "FP64")
SHARED, SUM = Operand(strided((4, 4), (0, 1)), "FP32"), [("ReduceSum", (0,))]
ROW, PAIRS = operand(np.zeros(4, "f4")), operand(np.zeros((4, 2), "f4"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: emit_chain(SUM, (A,), A, axes=(2,)), GraphError, r"axes \(2,\) of 2 indices"),
        (lambda: emit_chain(SUM, (A,), A, axes=(1, -1)), GraphError, "axes"),
        (lambda: emit_chain(SUM, (A,), A, axes=(1,)), GraphError, "the last step does not have the output's shape"),
        (lambda: emit_chain(SUM, (INT,), INT, axes=(1,)), GraphError, "the last step does not have"),
        (lambda: emit_chain(SUM, (BF16,), BF16, axes=(1,)), DtypeError, "narrower than FP32"),
        (lambda: emit_chain(SUM, (A,), A), GraphError, "no such operation 'ReduceSum'"),
        (lambda: emit_chain([("Fill", ())], (A,), A), GraphError, "step 0: Fill of nothing"),
        (lambda: emit_chain([("Exp", (0,))], (A,), SHARED), LayoutError, "share memory"),
        (lambda: emit_chain([("Add", (0, 1))], (A, PAIRS), A, "ab,ab->ab"), GraphError, "."),
        (lambda: emit_chain([], (A,), A), GraphError, "there are no steps"),
        (lambda: emit_chain([("Sine", (0,))], (A,), A), GraphError, "no such operation 'Sine'"),
        (lambda: emit_chain([("Add", (0,))], (A,), A), GraphError, "step 0: Add of 0"),
        (lambda: emit_chain([("Exp", (-1,))], (A,), A), GraphError, "step 0: Exp of -1"),
        (lambda: emit_chain([("Exp", (1,))], (A,), A), GraphError, "step 0: Exp of 1"),
        (lambda: emit_chain([("Exp", (0,))], (INT,), INT), DtypeError, "step 0: it is a function of floating point"),
        (lambda: emit_chain([("Exp", (0,))], (A,), WIDE), DtypeError, "the last result is FP32 and the output FP64"),
        (lambda: emit_chain([("Exp", (0,))], (A,), ROW, "ab->a"), GraphError, "a letter of an input is not in"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
