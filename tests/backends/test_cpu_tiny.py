"""Batches of products of a few elements: against NumPy in float64, with NaN around each operand in memory."""

import numpy as np
import pytest
from test_cpu_dots import surrounded

from tileweave import teir
from tileweave.backends import cpu
from tileweave.backends.cpu.target.target import Target
from tileweave.layout import strided
from tileweave.lower.eager import Contraction, contract

EQUATIONS = [
    "bij,bjk->bik",
    "bji,bjk->bik",
    "abij,bajk->abik",
    "bijl,bljk->bik",
    "bij,bjk->bki",
    "ijb,jkb->ikb",
    "ijb,kjb->kib",
    "bijk,bjk->bi",
    "bi,bk->bik",
]
TARGETS = [None, Target("x86-64-v3", "", vector_bytes=32, registers=16), Target("x86-64", "", 16, 16)]


def drawn(draw):
    """An einsum with its extents, element type, and operands of small integers."""
    equation = EQUATIONS[draw.integers(len(EQUATIONS))]
    dtype = np.dtype(["f4", "f8", "i4", "i8", "f2"][draw.integers(5)])
    sizes = {letter: int(draw.integers(1, 18)) for letter in "ijkl"}
    sizes |= {"a": int(draw.integers(2, 6)), "b": int(draw.integers(16, 60))}
    inputs, _ = equation.split("->")
    return equation, [surrounded(draw, [sizes[c] for c in term], dtype) for term in inputs.split(",")]


@pytest.mark.parametrize("seed", range(60))
def test_batches_of_tiny_products_are_those_of_numpy(seed):
    draw = np.random.default_rng(seed)
    equation, arrays = drawn(draw)
    dtype = arrays[0].dtype
    wanted = np.einsum(equation, *(array.astype("f8") for array in arrays)).astype(dtype)
    threads = int(draw.integers(1, 3))
    assert np.array_equal(contract(equation, *arrays, threads=threads), wanted), (seed, equation)
    room = np.full([2 * n for n in wanted.shape], 7, dtype)
    part = tuple(
        slice(None, 2 * n if k < wanted.ndim - 1 else n, 2 if k < wanted.ndim - 1 else 1)
        for k, n in enumerate(wanted.shape)
    )
    contract(equation, *arrays, out=room[part], threads=threads)
    assert np.array_equal(room[part], wanted), (seed, equation)
    room[part] = 7
    assert (room == 7).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(6))
def test_tiny_products_are_clipped_on_processors_with_any_vectors(seed, target):
    draw = np.random.default_rng(seed)
    m, n, k = (int(draw.integers(1, 14)) for _ in range(3))
    shapes = (40, m, k), (40, k, n), (40, m, n)
    a, b, out = (draw.integers(-4, 5, shape).astype("f4") for shape in shapes)
    operands = [teir.Operand(strided(s, [s[1] * s[2], s[2], 1]), "FP32") for s in shapes]
    program = teir.emit_contraction("bik,bkj->bij", operands[:2], operands[2], relu=True)
    cpu.compile(program, threads=1, target=target)(a, b, out)
    assert np.array_equal(out, np.maximum(a @ b, 0)), (seed, m, n, k)


def test_a_batch_of_tiny_products_is_straight_code_and_propagates_nan():
    a, b = np.ones((100, 5, 6), "f4"), np.ones((100, 6, 7), "f4")
    a[3, 2, 1], b[9, 4, 5], b[8, 0, 0] = np.nan, np.inf, -np.inf
    a[9, 1, 4] = 0
    with np.errstate(invalid="ignore"):
        assert np.array_equal(contract("bij,bjk->bik", a, b), a @ b, equal_nan=True)
    assert "straight code" in Contraction("bij,bjk->bik", a, b).explain()
