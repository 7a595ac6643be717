"""Contractions whose sums are formed in pieces, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.backends import cpu
from tileweave.errors import DtypeError, GraphError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    dtype_name,
    emit_contraction_in_pieces,
    interpret,
    problems,
    races,
    summed_length,
    uninitialised,
)

CASES = [
    ("i,i->", (23,), (23,)),
    ("ik,kj->ij", (3, 29), (29, 5)),
    ("ik,kj->ji", (3, 29), (29, 5)),
    ("bik,bkj->bij", (2, 3, 11), (2, 11, 4)),
    ("ii,ij->j", (13, 13), (13, 3)),
    ("ijl,jli->", (5, 7, 3), (7, 3, 5)),
    ("ik,kj->ij", (3, 32), (32, 5)),
]


def operand(array: np.ndarray) -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype_name(array.dtype))


def array(shape: tuple[int, ...], seed: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(("equation", "first", "second"), CASES)
@pytest.mark.parametrize("how", ["", "relu", "bias"])
def test_it_is_the_einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...], how: str) -> None:
    a, b = array(first, 0), array(second, 1)[..., ::-1]
    wanted = np.einsum(equation, a, b)
    out, arrays = np.full(wanted.shape, 7, "f4"), {"in0": a, "in1": b}
    flags = {}
    if how == "bias":
        arrays["bias"] = np.broadcast_to(array(wanted.shape[-1:], 2), wanted.shape)
        flags["init"] = operand(arrays["bias"])
        wanted = wanted + arrays["bias"]
    if how == "relu":
        flags["relu"] = True
        wanted = np.maximum(wanted, 0)
    program = emit_contraction_in_pieces(equation, (operand(a), operand(b)), operand(out), piece=8, **flags)
    assert problems(program) == () and races(program) is None and uninitialised(program) is None
    interpret(program, {**arrays, "out": out}, order="random")
    np.testing.assert_array_equal(out, wanted)
    out[...] = 7
    cpu.compile(program).run({**arrays, "out": out})
    np.testing.assert_array_equal(out, wanted)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(1, 50))
def test_pieces_of_any_length(k: int, i: int, j: int, piece: int) -> None:
    a, b, out = array((i, k), k), array((k, j), piece), np.zeros((i, j), "f4", order="F")
    program = emit_contraction_in_pieces("ik,kj->ij", (operand(a), operand(b)), operand(out), piece=piece)
    interpret(program, {"in0": a, "in1": b, "out": out})
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
def test_narrow_operands_are_narrowed_once(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a, b, out = array((3, 300), 0).astype(kind), array((300, 5), 1).astype(kind), np.zeros((3, 5), kind)
    program = emit_contraction_in_pieces("ik,kj->ij", (operand(a), operand(b)), operand(out), piece=64)
    cpu.compile(program)(a, b, out)
    np.testing.assert_array_equal(out, (a.astype("f8") @ b.astype("f8")).astype(kind))


def test_what_does_not_fit_is_refused() -> None:
    a = array((4, 4), 0)
    with pytest.raises(DtypeError, match="not formed in FP32"):
        emit_contraction_in_pieces("ik,kj->ij", [operand(a.astype("f8"))] * 2, operand(a.astype("f8")))
    with pytest.raises(GraphError, match="no letter is summed"):
        emit_contraction_in_pieces("ik,ik->ik", [operand(a)] * 2, operand(a))
    with pytest.raises(GraphError, match="pieces have no term"):
        emit_contraction_in_pieces("ik,kj->ij", [operand(a)] * 2, operand(a), piece=0)
    with pytest.raises(GraphError, match="has extents 4 and 3"):
        emit_contraction_in_pieces("ik,kj->ij", (operand(a), operand(a[:3])), operand(a))
    assert summed_length("ij,jk->", ((2, 3), (3, 4))) == 24
