"""Rows that pass together, operation by operation: the same bits as one row after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.teir.test_extensions import operand

from tileweave.backends.cpu import compile, host, nest
from tileweave.backends.cpu.maps.beside import ROWS
from tileweave.teir import emit_chain

LOG_SOFTMAX = [
    *(("ReduceMax", (0,)), ("Sub", (0, -1)), ("Exp", (-2,)), ("ReduceSum", (-3,))),
    *(("Log", (-4,)), ("Sub", (-2, -5))),
]
NORM = [
    *(("ReduceSum", (0,)), ("Fill", (0.0625,)), ("Mul", (-1, -2)), ("Sub", (0, -3)), ("Mul", (-4, -4))),
    *(("ReduceSum", (-5,)), ("Sqrt", (-6,)), ("Mul", (-4, -7)), ("Add", (-8, 1))),
]
SPREAD = [*NORM[:6], ("Sqrt", (-6,)), ("Sub", (-7, -3))]
TARGETS = [replace(host(), vector_bytes=size, registers=16) for size in (16, 32, 64) if size <= host().vector_bytes]


def log_softmax(x, w):
    with np.errstate(all="ignore"):
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))


def norm(x, w):
    with np.errstate(all="ignore"):
        c = x - x.sum(-1, keepdims=True) / 16
        return c * np.sqrt((c * c).sum(-1, keepdims=True)) + w


def spread(x, w):
    with np.errstate(all="ignore"):
        mean = x.sum(-1, keepdims=True) / 16
        return (np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True)) - mean)[..., 0]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(2 * ROWS, 17), (127, 5), (2, 41, 16), (3, 31, 2, 9)])
@pytest.mark.parametrize(
    ("steps", "meaning", "vectors"), [(LOG_SOFTMAX, log_softmax, 0), (NORM, norm, 1), (SPREAD, spread, 0)]
)
def test_rows_that_pass_together_are_what_each_is_alone(monkeypatch, steps, meaning, vectors, shape, dtype):
    """Dense, with gaps, and in place; with infinities and NaN in some rows."""
    rng = np.random.default_rng(7)
    wide = rng.standard_normal((*shape[:-1], shape[-1] + 3)).astype(dtype)
    wide[(0,) * (len(shape) - 1)][0], wide[(-1,) * len(shape[:-1])][0] = -np.inf, np.nan
    w = rng.standard_normal(shape[-1]).astype(dtype)
    letters = "abcdef"[: len(shape)]
    kept = letters if meaning is not spread else letters[:-1]
    equation = ",".join([letters, *[letters[-1]] * vectors]) + "->" + kept
    for x in (wide[..., : shape[-1]], wide[..., : shape[-1]].copy()):
        expected = meaning(x.astype("f8"), w.astype("f8"))
        operands = [operand(x), *[operand(w)] * vectors]
        out = np.empty(expected.shape, dtype)
        program = emit_chain(steps, operands, operand(out), equation, axes=(len(shape) - 1,))
        for target in TARGETS:
            found, texts = [], set()
            for together in (True, False):
                with monkeypatch.context() as patch:
                    if not together:
                        patch.setattr(nest, "beside_of", lambda *_: None)
                    kernel = compile(program, target=target, threads=3, cache=False)
                made = np.full_like(out, 7)
                kernel(x, *[w] * vectors, made)
                found.append(made)
                texts.add(kernel.source)
                if meaning is not spread and x.flags.c_contiguous:
                    held = x.copy()
                    kernel(held, *[w] * vectors, held)
                    np.testing.assert_array_equal(held, made)
            np.testing.assert_array_equal(*found)
            assert len(texts) == 2 or shape != (127, 5)
            close = 3e-5 if dtype == "f4" else 1e-12
            np.testing.assert_allclose(found[0], expected, rtol=close, atol=close)
