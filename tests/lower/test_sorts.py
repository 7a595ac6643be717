"""Sorted values, the first of them, and their places, as plans run them: each against NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.cpu import host
from tileweave.backends.cpu.indexed import firsts
from tileweave.backends.cpu.sorting import bind
from tileweave.backends.cpu.target.calls import NativeCalls

SEED = 20261125


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """An array of 1 to 3 dimensions with ties, and NaN where there is such, and one of its dimensions."""
    rank = int(rng.integers(1, 4))
    shape = [round(np.exp(rng.uniform(0, (8, 5.5, 4)[rank - 1]))) for _ in range(rank)]
    x = np.round(rng.standard_normal(shape) * 9).astype(rng.choice(["f4", "f8", "f2", "i2", "i8", "bool"]))
    if x.dtype.kind == "f" and rng.random() < 0.4:
        x[rng.random(shape) < 0.1] = np.nan
    return x.transpose(rng.permutation(rank)) if rng.random() < 0.3 else x, int(rng.integers(0, rank))


@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_places_together_and_alone(threads: int) -> None:
    print("seed", SEED)
    rng = np.random.default_rng([SEED, threads])
    for _ in range(25):
        x, axis = drawn(rng)
        descending = bool(rng.random() < 0.5)
        count = int(rng.integers(0, x.shape[axis] + 1))
        whole = np.flip(np.sort(x, axis), axis) if descending else np.sort(x, axis)
        want = np.take(whole, range(count), axis)
        hole = tw.source(shape=x.shape, dtype=x.dtype, name="x")
        values, places = g.top_k(hole, count, axis, largest=descending)

        def run(*made: tw.Tensor, x: np.ndarray = x, **how: object) -> object:
            return tw.run(tw.plan(list(made) if len(made) > 1 else made[0]), bind={"x": x}, threads=threads, **how)

        both = run(values, places)
        np.testing.assert_array_equal(both[0], want)
        np.testing.assert_array_equal(np.take_along_axis(x, both[1], axis), want)
        np.testing.assert_array_equal(run(values), want)
        np.testing.assert_array_equal(run(places), both[1])
        ordered = g.sort(hole, axis, descending=descending)
        np.testing.assert_array_equal(run(ordered), whole)
        held = x.copy()
        run(ordered, x=held, out=held)
        np.testing.assert_array_equal(held, whole)


@pytest.mark.parametrize("shape", [(90, 4000), (4000, 90), (200000,), (7, 300, 200)])
def test_threads_share_the_rows(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(SEED).standard_normal(shape, "f4")
    for axis in range(x.ndim):
        plan = tw.plan(g.sort(tw.source(x), axis))
        first = tw.run(plan, threads=3)
        np.testing.assert_array_equal(first, np.sort(x, axis))
        np.testing.assert_array_equal(tw.run(plan, threads=3), first)


def first_places(x: np.ndarray, count: int, descending: bool) -> np.ndarray:
    """Of equal elements the first; NaN is the greatest."""
    if descending:
        order = x.shape[-1] - 1 - np.flip(np.argsort(np.flip(x, -1), -1, kind="stable"), -1)
    else:
        order = np.argsort(x, -1, kind="stable")
    return order[..., :count]


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_the_first_of_dense_rows(vector_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, of any type: ties, signed zeros, infinities and NaN, in order and against it, by 1 and 3 threads."""
    if vector_bytes > host().vector_bytes:
        pytest.skip("a processor without such vectors")
    narrow = replace(host(), vector_bytes=vector_bytes, registers=16)
    monkeypatch.setattr(firsts, "host", lambda: narrow)
    print("seed", SEED)
    rng = np.random.default_rng([SEED, vector_bytes])
    for kind in ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        for _ in range(3):
            extent = int(rng.integers(2, 300))
            count = int(rng.integers(1, min(extent, 4 * narrow.lanes(np.dtype(kind).itemsize) + 1)))
            shape = *(int(n) for n in rng.integers(1, 6, rng.integers(0, 3))), extent
            x = np.round(rng.standard_normal(shape) * rng.choice([2, 40])).astype(kind)
            if kind[0] == "f":
                for special in (np.nan, -np.nan, np.inf, -np.inf, -0.0):
                    x[rng.random(shape) < 0.05] = special
            x = np.sort(x, -1) if rng.random() < 0.2 else x
            for descending in (True, False):
                out = np.empty((*shape[:-1], count), x.dtype)
                assert firsts.searchable(x, out, x.ndim - 1)
                wanted = first_places(x, count, descending)
                for threads in (1, 3):
                    for places, want in ((False, np.take_along_axis(x, wanted, -1)), (True, wanted)):
                        found, calls = np.empty(want.shape, want.dtype), NativeCalls()
                        call = firsts.Firsts(descending, places, threads)
                        calls.sequence([calls.add(call, [x, found])]).run()
                        assert found.tobytes() == want.tobytes(), (kind, shape, count, descending)


def test_many_of_short_rows_are_sorted_whole() -> None:
    """By plans: the first of rows so short that the network takes them, and of longer ones, and their places."""
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    for _ in range(12):
        rows, extent = int(rng.integers(1, 90)), int(rng.integers(2, 400))
        x = special(rng, (rows, extent), str(rng.choice(["f4", "f8", "i2", "u1", "i8"])))
        count, largest = int(rng.integers(1, min(extent, 64))), bool(rng.random() < 0.5)
        wanted = first_places(x, count, largest)
        values, places = g.top_k(tw.source(x), count, largest=largest)
        np.testing.assert_array_equal(tw.run(places), wanted)
        np.testing.assert_array_equal(tw.run(values), np.take_along_axis(x, wanted, -1))


def test_threads_share_the_rows_of_which_the_first_are_wanted() -> None:
    x = np.random.default_rng(SEED).standard_normal((301, 700), "f4")
    for made, wanted in zip(g.top_k(tw.source(x), 5), (-np.sort(-x)[:, :5], first_places(x, 5, True)), strict=True):
        plan = tw.plan(made)
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(tw.run(plan, threads=threads), wanted)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_of_rows_beside_dimensions_of_one(seed: int) -> None:
    """Whose strides say nothing: a turned array is dense still, and its rows lie one behind the other."""
    rng = np.random.default_rng([SEED, seed])
    rows, extent = int(rng.integers(2, 9)), int(rng.integers(6, 40))
    shape = [rows, extent]
    for _ in range(int(rng.integers(1, 3))):
        shape.insert(int(rng.integers(0, 2)), 1)
    x = rng.standard_normal(shape, "f4")
    count, order = int(rng.integers(1, 5)), [*(int(k) for k in rng.permutation(x.ndim - 1)), x.ndim - 1]
    hole = tw.source(shape=x.shape, dtype=x.dtype, name="x")
    turned = g.permute(hole, order) if seed % 2 else g.reshape(hole, (rows, *[1] * (seed + 1), extent))
    for k, whole in enumerate((np.transpose(x, order), x.reshape(turned.shape))):
        if k == 1 - seed % 2:
            values, places = (tw.run(tw.plan(each), bind={"x": x}) for each in g.top_k(turned, count, -1))
            np.testing.assert_array_equal(values, -np.sort(-whole, -1)[..., :count])
            np.testing.assert_array_equal(np.take_along_axis(whole, places, -1), values)


def special(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Elements with ties, and with NaN of both signs, infinities and -0 where there are such."""
    x = np.round(rng.standard_normal(shape) * rng.choice([2, 40, 30000])).clip(-30000, 30000)
    x = x.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    if kind[0] in "fb" and kind != "bool":
        for one in (np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0):
            x[rng.random(shape) < 0.05] = one
    elif kind != "bool":
        x[rng.random(shape) < 0.1] = np.iinfo(kind).max
    return x


KINDS = ("f2", "bfloat16", "f4", "f8", "bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")


def placed(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """All places in order; of equal elements the first, NaN the greatest."""
    keys = np.moveaxis(x.astype("f4") if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x, axis, -1)
    return np.moveaxis(first_places(keys, keys.shape[-1], descending), -1, axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_whole_rows_of_any_strides(vector_bytes: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in one column each and in many, merged, by one thread and by some; written densely and apart."""
    if vector_bytes > host().vector_bytes:
        pytest.skip("a processor without such vectors")
    print("seed", SEED)
    rng = np.random.default_rng([SEED, vector_bytes, KINDS.index(kind)])
    for turn in range(8):
        cache = int(rng.choice([1 << 12, 1 << 15, 1 << 20]))
        narrow = replace(host(), vector_bytes=vector_bytes, registers=16 if turn % 2 else 32, l2_bytes=cache)
        monkeypatch.setattr(bind, "host", lambda narrow=narrow: narrow)
        rank = int(rng.integers(1, 4))
        x = special(rng, tuple(int(np.exp(rng.uniform(0, (8, 4.5, 3.2)[rank - 1]))) for _ in range(rank)), kind)
        axis = int(rng.integers(0, rank))
        x = x.transpose(rng.permutation(rank))[tuple(slice(None, None, int(rng.choice([1, -1, 2]))) for _ in x.shape)]
        count = x.shape[axis] if rng.random() < 0.5 else int(rng.integers(1, x.shape[axis] + 1))
        shape = tuple(count if k == axis else n for k, n in enumerate(x.shape))
        for descending in (False, True):
            order = np.take(placed(x, axis, descending), range(count), axis)
            for places in (False, True):
                out = np.zeros((*shape, 2), "i8" if places else x.dtype)[..., int(rng.integers(0, 2))]
                out = out if rng.random() < 0.5 else np.zeros(shape, out.dtype)
                for threads in (1, 3):
                    assert bind.sortable(x, out, axis)
                    calls = NativeCalls()
                    calls.sequence([calls.add(bind.Sort(axis, descending, places, threads), [x, out])]).run()
                    wanted = order if places else np.take_along_axis(x, order, axis)
                    np.testing.assert_array_equal(out.astype("f8"), wanted.astype("f8"), err_msg=f"{x.shape} {axis}")
                    if not places and count == x.shape[axis]:  # no -0 is lost, and no NaN
                        assert sorted(bits(out).ravel()) == sorted(bits(x).ravel())
                    out[...] = 0


def bits(x: np.ndarray) -> np.ndarray:
    """Elements as integers; all NaN are one."""
    dense = np.ascontiguousarray(x)
    missing = np.isnan(dense.astype("f8"))
    return np.where(missing, -1, dense.view(f"i{x.itemsize}").astype("i8"))


@pytest.mark.parametrize("extent", [70000, 1 << 17])
def test_a_long_row_is_cut(extent: int) -> None:
    rng = np.random.default_rng([SEED, extent])
    for kind in ("i2", "f4", "f8"):
        x = special(rng, (extent,), kind)
        for threads in (1, 2):
            np.testing.assert_array_equal(tw.run(tw.plan(g.sort(x)), threads=threads), np.sort(x))
            found = tw.run(tw.plan(g.argsort(x, descending=True)), threads=threads)
            np.testing.assert_array_equal(found, placed(x, 0, True))


def test_values_beside_places_are_taken_from_there() -> None:
    """Values alone are sorted without places."""
    x = tw.source(np.random.default_rng(SEED).integers(-50, 50, (90, 300)).astype("f4"))
    plan = tw.plan(list(g.top_k(x, 200)))
    assert [str(step.kernel) for step in plan.steps if step.stage == "block"] == ["cpu: sort", "cpu: take_along_axis"]
    alone = tw.plan(g.top_k(x, 200)[0])
    assert [str(step.kernel) for step in alone.steps if step.stage == "block"] == ["cpu: sort"]
    np.testing.assert_array_equal(tw.run(alone), -np.sort(-np.asarray(x), 1)[:, :200])
    values, places = tw.run(plan)
    np.testing.assert_array_equal(places, placed(np.asarray(x), 1, True)[:, :200])
    assert values.tobytes() == np.take_along_axis(np.asarray(x), places, 1).tobytes()


def test_sorted_values_that_serve_as_places_are_no_places_that_sort() -> None:
    x = np.argsort(np.random.default_rng(SEED).random((40, 64)), 1)
    taken = g.take_along_axis(tw.source(x), g.sort(tw.source(x), 1), 1)
    np.testing.assert_array_equal(tw.run(tw.plan(taken)), x)
    hole = tw.source(shape=x.shape, dtype=x.dtype, name="x")
    taken = g.take_along_axis(hole, g.sort(hole, 1), 1)
    np.testing.assert_array_equal(tw.run(tw.plan(taken), bind={"x": x}), x)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_sorted_where_they_lie(threads: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        shape = [int(rng.integers(*edges)) for edges in rng.permutation([(17, 60), (500, 3000)])]
        x, axis = rng.integers(-1000, 1000, shape), int(rng.integers(2))
        hole = tw.source(shape=shape, dtype="i8", name="x")
        for ours, numpys in ((g.sort, np.sort), (g.argsort, np.argsort)):
            held = x.copy()
            tw.run(tw.plan(ours(hole, axis)), bind={"x": held}, out=held, threads=threads)
            np.testing.assert_array_equal(held, numpys(x, axis, kind="stable"))
