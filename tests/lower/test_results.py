"""Arrays for results: they begin with a cache line, hold what they are given, and nothing larger is kept alive."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tileweave as tw
from tileweave.backends.host import empty, fills_its_memory
from tileweave.errors import GraphError
from tileweave.graph.ops.operators import OPERATORS
from tileweave.lower.reads import own
from tileweave.lower.values import ArrayAccess, ArrayAccesses, stand_in
from tileweave.space import Box


@pytest.mark.parametrize("shape", [(), (0, 5), (7,), (300, 401), (1 << 16,), (3, 1, 30_000)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int8", "bool"])
def test_new_arrays_are_as_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    array = empty(shape, np.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 1
    assert (array == 1).all()
    if array.nbytes >= 1 << 16:
        assert array.ctypes.data % 64 == 0
    assert fills_its_memory(array)


def test_large_results_begin_with_a_cache_line() -> None:
    a, b = np.ones((300, 40), np.float32), np.ones((40, 500), np.float32)
    for _ in range(2):  # the call that compiles, and one that finds the kernel
        assert tw.contract("ij,jk->ik", a, b).ctypes.data % 64 == 0
    y = tw.run(tw.source(a) @ tw.source(b))
    assert y.ctypes.data % 64 == 0
    assert (y == 40).all()


def test_blocks_keep_no_memory_of_others_alive() -> None:
    large = empty((400, 400), np.float32)
    large[:] = 1
    views = {"part": large[:2], "other": large.reshape(-1), "same": large, "turned": large.T}
    for view in views.values():
        block = own({"out": view}, ("out",), {"x": large})
        assert not np.shares_memory(block, large)
        assert np.array_equal(block, view)
    part = own({"out": large[:2]}, ("out",), {})
    assert not np.shares_memory(part, large)
    for whole in (empty((400, 1600), np.uint8).reshape(-1), np.zeros(1008), np.zeros(1064, np.float32)):
        width = 64 // whole.itemsize
        for short in (whole[width:], whole[:-width], whole[width // 2 : -width // 2]):  # less than it by one line
            assert not np.shares_memory(own({"out": short}, ("out",), {}), whole)
    twice = own({"a": large, "b": large.reshape(-1)}, ("a", "b"), {})
    assert isinstance(twice, dict)
    assert not np.shares_memory(twice["a"], twice["b"])
    assert own({"out": large}, ("out",), {}) is large


def test_python_objects_are_where_numpy_puts_them() -> None:
    for kind in (object, [("a", object), ("b", float)], np.dtypes.StringDType()):
        array = empty((9000,), kind)
        assert array.base is None
        assert str(array[5]) == str(np.empty((9000,), kind)[5])


def test_memory_of_large_results_serves_again_when_nothing_refers_to_it() -> None:
    first = empty((300, 301), np.float64)
    first[...] = 3
    view, address = first[5:7], first.ctypes.data
    del first
    other = empty((300, 301), np.float64)
    assert other.ctypes.data != address
    other[...] = 4
    assert (view == 3).all()  # the view keeps all of it
    del view
    assert any(empty((300, 301), np.float64).ctypes.data == address for _ in range(3))
    assert (other == 4).all()


def test_results_in_threads_never_share_memory() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            made = empty((70_000 + turn,), np.int64)
            made[...] = number
            if turn % 7 == 0:
                empty((80_000,), np.int64)[...] = -1
            wrong.extend([turn] if not (made == number).all() else [])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_where_a_result_may_be_written_over_is_found_among_blocks_that_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all pairs would say it, on random accesses; for blocks in rows, in time that grows with their number."""
    rng, x = np.random.default_rng(0), np.zeros((6, 6))

    def pairs(found: ArrayAccesses) -> frozenset[int]:
        over = {0, 1}
        for read in found.reads:
            for write in found.writes:
                meets = write.of == 0 and not read.box.intersect(write.box).empty and read.order >= write.order
                if meets and not (read.order == write.order and read.pointwise and read.box == write.box):
                    over.discard(read.of)
        return frozenset(over)

    def access() -> ArrayAccess:
        (a, c), (b, d) = rng.integers(0, 5, 2), rng.integers(0, 3, 2)
        return ArrayAccess(
            int(rng.integers(8)), int(rng.integers(2)), Box((int(a), int(c)), (int(b), int(d))), rng.random() < 0.5
        )

    seen = set()
    for _ in range(300):
        found = ArrayAccesses([access() for _ in range(rng.integers(4))], [access() for _ in range(rng.integers(4))])
        assert found.over(0, x, {0: x, 1: x}) == pairs(found)
        seen.add(pairs(found))
    assert {frozenset({0, 1}), frozenset({0})} < seen
    rows = [Box((k, 0), (1, 6)) for k in range(500)]
    many = ArrayAccesses([ArrayAccess(2 * k + 1, 0, box, True) for k, box in enumerate(rows)], [])
    many.writes += [ArrayAccess(2 * k + 1, 0, box) for k, box in enumerate(rows)]
    met: list[Box] = []
    intersect = Box.intersect
    monkeypatch.setattr(Box, "intersect", lambda self, other: met.append(other) or intersect(self, other))
    assert many.over(0, x, {0: x}) == {0} and len(met) <= 2 * len(rows)


def test_blocks_that_lack_a_dimension_of_the_result_are_put_there_whole() -> None:
    """As the steps of a recurrent layer that runs backwards: each is a matrix, the result a stack of them."""
    x = np.random.default_rng(3).random((3, 4, 40), np.float32)
    w = np.random.default_rng(4).random((40, 40), np.float32) / 40
    given, h, made = tw.source(x, name="x"), tw.source(np.zeros((4, 40), np.float32)), []
    for step in (2, 1, 0):
        h = tw.tanh(given[step] + h @ w)
        made.insert(0, h)
    total = tw.stack(made)
    np.testing.assert_allclose(tw.run(tw.plan([total, h]), bind={"x": x})[0], np.asarray(total), rtol=1e-5, atol=1e-6)


def test_a_column_that_numpy_computes_lies_in_a_wider_result() -> None:
    x = np.arange(80, dtype=np.float32).reshape(20, 4) - 7
    x[3, 0] = np.inf
    rows = (tw.source(x) * 2.0)[:-1]
    for made in (tw.concat([rows, -rows[:, :1]], 1), tw.concat([tw.isnan(rows), tw.isfinite(rows[:, :1])], 1)):
        np.testing.assert_array_equal(tw.run(made), np.asarray(made))


ELEMENTWISE = [name for name, row in OPERATORS.items() if row.into is not None and row.arity in (1, 2)]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operators_write_into_arrays_of_any_strides(name: str) -> None:
    arity = OPERATORS[name].arity
    for dtype in ("float32", "float64", "int32", "int64", "bool"):
        values = np.random.default_rng(5).integers(1, 7, (arity, 17 * 8)).astype(dtype)
        try:
            tensor = tw.graph.FUNCTIONS[name](*values[:, :17])
        except GraphError:
            continue
        for step, steps in itertools.product((1, 2, 4, 8, -1, -4), (1, 2, 3, -1)):
            given = [row[::step][:17] for row in values]
            out = np.zeros(17 * 3, tensor.dtype)[::steps][:17]
            named = dict(zip("xyz", given, strict=False))
            with np.errstate(all="ignore"):
                OPERATORS[name].into(tensor.producer, named, out)
                wanted = OPERATORS[name].block(tensor.producer, {k: v.copy() for k, v in named.items()})["out"]
            np.testing.assert_allclose(out.astype(float), wanted.astype(float), rtol=1e-5, err_msg=f"{step}, {steps}")


def test_what_stands_in_for_an_array_lies_as_it_does() -> None:
    whole = np.zeros(4 * 30_000 + 1, np.uint8)
    for array in (
        whole[:-1].view(np.float32).reshape(300, 100)[::-2, 3::5],
        whole[1:].view(np.float32).reshape(100, 300).T,  # not aligned
        np.broadcast_to(np.ones(3), (4, 3)),
        np.empty((0, 3)),
        np.ones(()),
    ):
        got = stand_in(array)
        assert (got.shape, got.dtype, got.strides) == (array.shape, array.dtype, array.strides)
        assert got.flags.aligned == array.flags.aligned
        got[...] = 1  # all of it is its own memory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_stands_in_for_large_arrays_takes_no_memory_that_was_in_use() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    array = np.ones(1 << 20)
    held, before = [], resident()
    for _ in range(40):
        used = np.ones(1 << 20)
        del used
        held.append(stand_in(array))
    assert resident() - before < 10 * array.nbytes
