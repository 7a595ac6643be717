"""Few rows or columns by dot products: against NumPy in float64, with NaN around each operand in memory."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as tg
from tileweave.backends.cpu import host
from tileweave.lower.eager import Contraction, contract


def surrounded(draw, shape, dtype):
    """An array dense along its last axis, in memory that is NaN, or the largest number, everywhere else."""
    kept = [n + draw.integers(0, 3) for n in shape[:-1]] + [shape[-1] + int(draw.integers(1, 5))]
    other = np.nan if dtype.kind == "f" else np.iinfo(dtype).max
    whole = np.full(kept, other, dtype)
    part = whole[tuple(slice(n) for n in shape)]
    part[...] = draw.integers(-4, 5, shape)
    return part


EQUATIONS = [
    *("ij,j->i", "ik,jk->ij", "ik,jk->ji", "bij,bj->bi", "bik,bjk->bij", "iak,jak->ij", "bij,bjk->bik"),
    *("ki,jk->ij", "ki,jk->ji", "bki,bjk->bij", "k,kj->j", "bk,bkj->bj", "k,kj->j"),
]


@pytest.mark.parametrize("seed", range(80))
def test_dot_products_of_any_extents_are_those_of_numpy(seed):
    draw = np.random.default_rng(seed)
    equation = EQUATIONS[seed % len(EQUATIONS)]
    dtype = np.dtype(["f4", "f8", "i4", "f2", "i8"][draw.integers(5)])
    sizes = {"a": 3, "b": int(draw.integers(1, 5)), "i": int(draw.integers(1, 20)), "j": int(draw.integers(2, 90))}
    sizes["k"] = int(draw.integers(30, 90))
    inputs, _ = equation.split("->")
    a, b = (surrounded(draw, [sizes[c] for c in term], dtype) for term in inputs.split(","))
    wanted = np.einsum(equation, a.astype("f8"), b.astype("f8"))
    threads = int(draw.integers(1, 3))
    assert np.array_equal(contract(equation, a, b, threads=threads), wanted.astype(dtype)), (seed, sizes, dtype)
    room = np.full([2 * n for n in wanted.shape], 7, dtype)
    out = room[tuple(slice(None, 2 * n, 2) for n in wanted.shape)]
    contract(equation, a, b, out=out, threads=threads)
    assert np.array_equal(out, wanted.astype(dtype)), (seed, sizes, dtype)
    room[tuple(slice(None, 2 * n, 2) for n in wanted.shape)] = 7
    assert (room == 7).all()


@pytest.mark.parametrize("columns", range(2, 9))
def test_few_columns_that_many_rows_meet_are_those_of_numpy(columns):
    draw = np.random.default_rng(columns)
    for dtype in map(np.dtype, ("f4", "f8", "i4")):
        rows, products = int(draw.integers(17, 60)), int(draw.integers(90, 300))
        a, b = (surrounded(draw, shape, dtype) for shape in ((rows, products), (products, columns)))
        room = np.full((rows, columns + 1), 7, dtype)
        contract("ik,kj->ij", a, b, out=room[:, :columns])
        wanted = (a.astype("f8") @ b.astype("f8")).astype(dtype)
        assert np.array_equal(room[:, :columns], wanted), (rows, products, dtype)
        assert (room[:, columns] == 7).all()
        if dtype.kind == "f":
            bias = draw.integers(-4, 5, columns).astype(dtype)
            layer = tw.relu(tg.linear(tw.source(a), tw.source(b), tw.source(bias)))
            assert np.array_equal(tw.run(layer), np.maximum(wanted + bias, 0)), (rows, products, dtype)


def test_few_columns_are_dot_products_where_their_time_is_less():
    if host().lanes(4) < 8:
        pytest.skip("vectors are short")

    def how(columns, products):
        a, b = np.ones((800, products), "f4"), np.ones((products, columns), "f4")
        return "in vectors along what is summed" in Contraction("ik,kj->ij", a, b, threads=1).explain()

    assert how(4, 64) and how(2, 31)
    assert not (how(8, 31) or how(4, 16))


@pytest.mark.parametrize("rows", [1, 3, 8, 13])
def test_a_layer_of_few_rows_adds_its_bias_and_clips(rows):
    draw = np.random.default_rng(rows)
    x, w, b = (draw.integers(-4, 5, shape).astype("f4") for shape in ((rows, 261), (37, 261), (37,)))
    wanted = np.maximum(x @ w.T + b, 0)
    assert np.array_equal(tw.run(tw.relu(tg.linear(tw.source(x), tw.source(w.T), tw.source(b)))), wanted)
    assert np.array_equal(tw.run(tw.relu(tg.linear(tw.source(x), tw.source(w).T, tw.source(b)))), wanted)
    turned = np.ascontiguousarray(w.T)
    assert np.array_equal(tw.run(tw.relu(tg.linear(tw.source(x), tw.source(turned), tw.source(b)))), wanted)


def test_a_matrix_that_meets_one_vector_is_read_where_it_lies():
    if host().lanes(4) < 4:
        pytest.skip("there are no vectors")
    a, x = np.ones((64, 96), "f4"), np.ones(96, "f4")
    assert "in vectors along what is summed" in Contraction("ij,j->i", a, x).explain()


def test_nan_and_infinities_are_where_numpy_has_them():
    a, x = np.ones((20, 70), "f4"), np.ones(70, "f4")
    a[3, 69], a[5, 1], a[7, 0], a[7, 68] = np.nan, np.inf, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        wanted = a @ x
    assert np.array_equal(contract("ij,j->i", a, x), wanted, equal_nan=True)
