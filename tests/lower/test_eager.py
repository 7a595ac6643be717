"""Einsums of arrays at once, judged by NumPy's."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tileweave.errors import BackendError, DtypeError, GraphError, LayoutError, TileweaveError
from tileweave.graph import Graph, as_tensor, einsum
from tileweave.lower import Contraction, contract

EQUATIONS = [
    ("ij,jk->ik", [(5, 7), (7, 3)]),
    ("ij,jk", [(5, 7), (7, 3)]),
    ("ij,kj->ki", [(5, 7), (3, 7)]),
    ("...ij,...jk->...ik", [(2, 1, 4, 3), (6, 3, 5)]),
    ("ij->ji", [(5, 7)]),
    ("ij->", [(5, 7)]),
    ("ii->i", [(6, 6)]),
    ("ii", [(6, 6)]),
    ("i,i->", [(9,), (9,)]),
    ("i,j->ij", [(4,), (5,)]),
    (",ij->ij", [(), (4, 5)]),
    ("ij,k->i", [(4, 5), (3,)]),
    ("ab,bc,cd,de->ae", [(4, 5), (5, 6), (6, 3), (3, 2)]),
    ("trus,pqtu->pqrs", [(3, 4, 5, 6), (2, 3, 3, 5)]),
    ("ij,jk->ik", [(0, 7), (7, 3)]),
    ("ij,jk->ik", [(5, 0), (0, 3)]),
]


@pytest.mark.parametrize("equation,shapes", EQUATIONS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("dtype", ["int64", "float32", "int8"])
def test_is_the_einsum(equation: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    wanted = np.einsum(equation, *arrays)
    for _ in range(2):  # the second call takes the short way
        got = contract(equation, *arrays)
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        assert np.array_equal(got, wanted)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_strides(data: st.DataObject) -> None:
    def array(shape: tuple[int, int]) -> np.ndarray:
        steps = [data.draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
        whole = np.arange(-40, -40 + np.prod([n * abs(s) for n, s in zip(shape, steps, strict=True)]), dtype="int64")
        made = whole.reshape([n * abs(s) for n, s in zip(shape, steps, strict=True)])
        made = made[tuple(slice(None, None, s) for s in steps)]
        return made if data.draw(st.booleans()) else np.asfortranarray(made)

    i, j, k = (data.draw(st.integers(1, 9)) for _ in range(3))
    a, b = array((i, j)), array((j, k))
    out = array((i, k)).copy(order=data.draw(st.sampled_from("CF")))
    assert np.array_equal(contract("ij,jk->ik", a, b), a @ b)
    assert contract("ij,jk->ik", a, b, out=out) is out
    assert np.array_equal(out, a @ b)


def test_kinds_of_operands() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(contract("ij,kj->ik", a.tolist(), a), a @ a.T)
    swapped = a.astype(">f8")
    assert np.array_equal(contract("ij,kj->ik", swapped, swapped), a @ a.T)
    odd = np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view("f8").reshape(2, 3)  # not aligned
    for _ in range(2):
        assert np.array_equal(contract("ij,kj->ik", odd, a), a @ a.T)
    overlapping = np.lib.stride_tricks.sliding_window_view(np.arange(8.0), 3)
    assert np.array_equal(contract("ij,kj->ik", overlapping, a), overlapping @ a.T)
    assert contract("ij,kj->ik", a.astype("f2"), a.astype("f2")).dtype == np.float16
    assert contract("ij,kj->ik", a.astype("f4"), a).dtype == np.float64

    class Special(np.ndarray):
        pass

    assert type(contract("ij,kj->ik", a.view(Special), a)) is np.ndarray


def test_an_output() -> None:
    a = np.arange(6.0).reshape(2, 3)
    frame = np.zeros((4, 6))
    contract("ij,kj->ik", a, a, out=frame[::2, ::3])
    assert np.array_equal(frame[::2, ::3], a @ a.T)
    assert frame.sum() == (a @ a.T).sum()
    total = np.zeros(())
    contract("ij,jk,k->", a, a.T, np.ones(2), out=total)
    assert total == (a @ a.T).sum()


def test_made_ready() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    product = Contraction("ij,jk->ik", a, b)
    assert np.array_equal(product(a + 1, b), (a + 1) @ b)
    out = np.empty((2, 4))
    again = product.prepare(a, b, out=out)
    a += 1
    again()
    assert np.array_equal(out, a @ b)
    assert "Contraction" in product.explain()
    path = Contraction("ij,jk,kl->il", a, b, b.T)
    assert np.allclose(path(a, b, b.T), a @ b @ b.T)
    path.prepare(a, b, b.T, out=(wide := np.empty((2, 3))))()
    assert np.allclose(wide, a @ b @ b.T)
    assert path.explain().count("einsum") == 2


def test_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path))
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for _ in range(2):
        assert np.array_equal(contract("ij,jk->ik", a, b, tune=True), a @ b)
    assert Contraction("ij,jk->ik", a, b, tune=True).tuned
    found = len(list(tmp_path.glob("tuned/*/*")))
    assert np.array_equal(contract("ij,jk,kl->il", a, b, b.T, tune=True), a @ b @ b.T)
    assert len(list(tmp_path.glob("tuned/*/*"))) > found  # each kernel of a path is tuned


def test_an_output_of_other_strides_is_tuned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path))
    a, b = np.arange(6.0).reshape(2, 3), np.arange(15.0).reshape(3, 5)
    out = np.empty((2, 5), order="F")
    for _ in range(2):
        assert contract("ij,jk->ik", a, b, out=out, tune=True) is out
        assert np.array_equal(out, a @ b)
    assert len([path for path in tmp_path.glob("tuned/*/*") if path.is_file()]) == 1
    assert np.array_equal(contract("ij,jk->ik", a, b), a @ b)


def test_refusals() -> None:
    a, b = np.ones((2, 3)), np.ones((3, 4))
    with pytest.raises(GraphError, match="index 'j' has extent 3 and 2"):
        contract("ij,jk->ik", a, a)
    with pytest.raises(GraphError, match="the equation does not fit"):
        contract("ij,jk->ik", a)
    with pytest.raises(GraphError, match="out is no array"):
        contract("ij,jk->ik", a, b, out=[[0.0] * 4] * 2)
    with pytest.raises(GraphError, match="out does not fit"):
        contract("ij,jk->ik", a, b, out=np.empty((2, 5)))
    with pytest.raises(GraphError, match="out does not fit"):
        contract("ij,jk->ik", a, b, out=np.empty((2, 4), "f4"))
    square = np.ones((3, 3))
    with pytest.raises(BackendError, match="share memory"):
        contract("ij,jk->ik", square, square, out=square)
    with pytest.raises(LayoutError, match=r"elements of out .* share memory"):
        contract("ij,jk->ik", square, square, out=np.broadcast_to(0.0, (3, 3)))
    fixed = np.empty((3, 3))
    fixed.flags.writeable = False
    with pytest.raises(BackendError, match="read-only"):
        contract("ij,jk->ik", square, square, out=fixed)
    with pytest.raises(GraphError, match="made for other operands"):
        Contraction("ij,jk->ik", a, b)(a, b.astype("f4"))
    with pytest.raises(TileweaveError):
        contract("ij,jk->ik", a, "words")
    for words in ((a, b, "ij,jk->ik"), (None, a, b)):
        with pytest.raises(GraphError, match="the equation comes first, and is a text"):
            contract(*words)
    with pytest.raises(GraphError, match="NumPy reads no array in operand 1"):
        contract("ij,jk->ik", a, [[1, 2], [3]])
    with pytest.raises(GraphError, match="NumPy reads no array in operand 0"):
        contract("ij,jk->ik", [a, b])
    with pytest.raises(GraphError, match="operand 1 is a masked array, whose mask would be lost"):
        contract("ij,jk->ik", a, np.ma.masked_array(b, b > 0))


@pytest.mark.parametrize("dtype", ["float32", "uint64"])  # compiled, and NumPy's
@pytest.mark.parametrize("extent", [3, 0])
def test_an_output_is_refused_alike_whatever_computes_it(dtype: str, extent: int) -> None:
    a, b = np.ones((3, extent), dtype), np.ones((extent, 3), dtype)
    fixed = np.empty((3, 3), dtype)
    fixed.flags.writeable = False
    with pytest.raises(BackendError, match=r"^contract\('ij,jk->ik', ..\): .*read-only"):
        contract("ij,jk->ik", a, b, out=fixed)
    crossed = as_strided(np.zeros(5, dtype), (3, 3), (fixed.itemsize, fixed.itemsize))
    with pytest.raises(LayoutError, match=r"^contract\('ij,jk->ik', ..\): .*share memory"):
        contract("ij,jk->ik", a, b, out=crossed)


def test_refusals_name_the_call_that_was_made() -> None:
    a, b = np.ones((2, 3), "f4"), np.ones((3, 2), "f4")
    square, out = np.ones((3, 3), "f4"), np.empty((2, 2), "f4")
    calls = [
        lambda: contract("ij,jk->ik", a, a),
        lambda: contract("ij,jk->ik", a, b, out=out.T[:1]),
        lambda: contract("ij,jk->ik", a, b, out=np.empty((2, 2), ">f4")),
        lambda: contract("ij,jk->ik", a.astype("c8"), b),
        lambda: contract("ij,jk->ik", square, square, out=square),
        lambda: contract("ij,jk->ik", square, square, out=square),  # the short way
        lambda: contract("ij,jk->ik", a, b, threads=0),
    ]
    for call in calls:
        with pytest.raises(TileweaveError, match=r"^contract\('ij,jk->ik', ..\): "):
            call()
    with pytest.raises(GraphError, match="bytes in the other order"):
        contract("ij,jk->ik", a, b, out=np.empty((2, 2), ">f4"))


@pytest.mark.parametrize("name", ["float4_e2m1fn", "uint4", "int4"])
def test_element_types_of_other_libraries_are_refused(name: str) -> None:
    x = np.ones((2, 2)).astype(getattr(ml_dtypes, name))
    with pytest.raises(DtypeError, match=f"element type {name} is not supported"):
        contract("ij,jk->ik", x, x)
    with pytest.raises(DtypeError, match=f"element type {name} is not supported"):
        as_tensor(x)


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork() -> None:
    a = np.ones((300, 300))
    wanted = contract("ij,jk->ik", a, a, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(contract("ij,jk->ik", a, a, threads=2), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_process_that_compiles_can_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path))
    begun = threading.Event()

    def many() -> None:
        for n in range(40, 52):
            contract("ij,kj->ik", np.ones((n, 9)), np.ones((n, 9)))
            begun.set()

    thread = threading.Thread(target=many)
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)  # a child that waits for a lock of its parent's thread ends here
        square = contract("ij,kj->ik", np.ones((39, 7)), np.ones((39, 7)))
        os._exit(0 if (square == 7).all() else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, [2]])
def test_threads_are_counted(threads: object) -> None:
    contract("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2)), threads=1)
    with pytest.raises(BackendError, match="is no number of threads"):
        contract("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2)), threads=threads)


@pytest.mark.parametrize("equation", ["k,k->", "ik,jk->ij", "ki,kj->ij", "ik,k->i"])
def test_long_sums_lose_no_digits(equation: str) -> None:
    rng = np.random.default_rng(0)
    terms = equation.split("->")[0].split(",")
    a, b = (rng.random([1_000_003 if q == "k" else 2 for q in term], np.float32) for term in terms)
    got = contract(equation, a, b)
    wanted = np.einsum(equation, a.astype("f8"), b.astype("f8"), optimize=True)
    assert np.all(np.abs(got - wanted) <= 4 * np.finfo("f4").eps * wanted)
    assert "part" in Contraction(equation, a, b).explain()


@pytest.mark.parametrize(
    ("equation", "shapes", "count"),
    [
        ("ij,k->i", [(30, 40), (90,)], 3),
        ("i,j->", [(300,), (400,)], 3),
        ("ij,jk->", [(40, 50), (50, 60)], 3),
        ("ijk->ki", [(40, 50, 60)], 2),
        ("ijk->ik", [(40, 50, 60)], 1),
        ("iik,l->k", [(90, 90, 9), (90,)], 2),
        ("ij,jk->ik", [(40, 50), (50, 60)], 1),
        ("ij,k->i", [(3, 4), (5,)], 1),
        ("ab,bc,d->a", [(50, 60), (60, 70), (80,)], None),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "int64", "float16"])
def test_sums_of_one_operand_come_first(
    equation: str, shapes: list[tuple[int, ...]], count: int | None, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-1, 2, shape).astype(dtype) for shape in shapes]
    wanted = np.einsum(equation, *(a.astype("f8") if dtype == "float16" else a for a in arrays)).astype(dtype)
    got = contract(equation, *arrays)
    assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
    operations = Graph.of(einsum(equation, *arrays)).operations
    assert count is None or len(operations) == (1 if dtype == "float16" else count)


@pytest.mark.parametrize("equation,shapes", [("ij,jk->ik", [(4, 5), (5, 4)]), ("ab,bc,cd->ad", [(4, 4)] * 3)])
def test_an_output_that_is_known_is_checked_no_less(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.arange(np.prod(shape), dtype="float32").reshape(shape) for shape in shapes]
    wanted = np.einsum(equation, *arrays)
    out = np.empty(wanted.shape, "float32")
    for _ in range(3):  # the later calls take the short way
        assert contract(equation, *arrays, out=out) is out
        np.testing.assert_array_equal(out, wanted)
        out[:] = np.nan
    whole = np.zeros(64, "float32")
    whole[-arrays[-1].size :] = arrays[-1].ravel()
    last = whole[-arrays[-1].size :].reshape(shapes[-1])
    near = whole[40 : 40 + out.size].reshape(out.shape)  # shares bytes with the last operand
    with pytest.raises(BackendError, match="share memory"):
        contract(equation, *arrays[:-1], last, out=near)
    apart = whole[: out.size].reshape(out.shape)
    np.testing.assert_array_equal(contract(equation, *arrays[:-1], last, out=apart), wanted)
    out.flags.writeable = False
    with pytest.raises(BackendError, match="read-only"):
        contract(equation, *arrays, out=out)
    with pytest.raises(GraphError):
        contract(equation, *arrays, out)  # an output in the place of an operand


def test_several_operands_are_kernels_bound_to_each_other() -> None:
    a, b, c = (np.arange(16.0).reshape(4, 4) + k for k in range(3))
    chain, out = Contraction("ab,bc,cd->ad", a, b, c), np.empty((4, 4))
    call = chain.prepare(a, b, c, out=out)
    for _ in range(2):
        a += 1
        call()
        np.testing.assert_array_equal(out, a @ b @ c)
    assert len(chain.explain().splitlines()) == 2


def test_products_of_numbers_take_any_result() -> None:
    for k in range(6):  # more than once: what is known of a kind is used again
        a, b, out = np.array(float(k)), np.array(3.0), np.zeros(())
        assert contract(",->", a, b) == 3 * k
        assert contract(",->", a, b, out=out) is out and out == 3 * k
        assert contract(" , ", a, b) == 3 * k
