"""Memory that a run may write over: donated arrays, caches that are updated, blocks that lie in results."""

import numpy as np
import pytest
from test_direct import executables

import tileweave as tw
from tileweave.errors import RunError
from tileweave.runtime.prepare import prepare


def donations(side=64):
    """What is computed of three matrices, which of them are donated, and how many may be written over."""
    m, p, d = (tw.source(name=name, shape=(side, side), dtype="float32") for name in "mpd")
    m1 = m * 0.9 + d * 0.1
    return {
        "moments": ([m1, p - m1 * 0.01], "mp", 2),
        "parameters first": ([p - m1 * 0.01, m1], "pm", 2),
        "read after it is written": ([m1, p - m * 0.01], "mp", 1),
        "written after it is read": ([p - m * 0.01, m1], "pm", 2),
        "other places": ([tw.concat([m[1:], m[:1]], 0), p * 2], "mp", 1),
        "parts": ([tw.concat([m[:4], d[: side - 4] + 1], 0)], "m", 1),
        "sums": ([m @ p], "m", 0),
        "rows": ([tw.softmax(m, -1)], "m", 1),
        "crossed": ([m * 2, p * 3], "pm", 1),
    }


@pytest.mark.parametrize("count,side", [(1, 64), (3, 64), (1, 6)])  # few elements are computed by NumPy
@pytest.mark.parametrize("name", donations())
def test_donated_arrays_are_written_over_where_nothing_is_read_afterwards(name: str, count: int, side: int) -> None:
    outputs, donated, over = donations(side)[name]
    plan, rng = tw.plan(outputs, count), np.random.default_rng(6)
    read = {source.name for source in prepare(plan).sources}
    arrays = {name: rng.standard_normal((side, side)).astype(np.float32) for name in read}
    out = [arrays[name] for name in donated]
    for _ in range(3):
        wanted = tw.run(plan, bind={name: array.copy() for name, array in arrays.items()})
        got = tw.run(plan, bind=arrays, out=out)
        for one, other, array in zip(wanted, got, out, strict=True):
            assert other is array
            np.testing.assert_array_equal(array, one)
    (kept,) = executables(plan)
    brought = [arrays[source.name] for source in prepare(plan).sources]
    assert len(out) - len(kept.apart.clashing([*brought, *out])) == over


@pytest.mark.parametrize("reduction", [None, "add"])
def test_a_donated_cache_is_updated_where_it_lies(reduction: str | None) -> None:
    """Without a copy: a text of n words would else cost n copies of caches for thousands of them."""
    cache, new, at = (
        tw.source(name=name, shape=shape, dtype=dtype)
        for name, shape, dtype in (("c", (2, 50, 16), "float32"), ("n", (2, 3, 16), "float32"), ("at", (3, 1), "int64"))
    )
    later = tw.scatter_nd(cache, at, new, axis=1, reduction=reduction)
    plan, rng = tw.plan([tw.sum(later, -1), later]), np.random.default_rng(21)
    held = rng.standard_normal((2, 50, 16)).astype(np.float32)
    for k in range(6):
        values, wanted = rng.standard_normal((2, 3, 16)).astype(np.float32), held.copy()
        places = np.array([[k], [-1 - k], [20]])
        if reduction is None:
            wanted[:, places[:, 0]] = values
        else:
            wanted[:, places[:, 0]] += values
        given, out = (held, held) if k % 3 else (held.copy(), held)  # over what is read, and beside it
        total, got = tw.run(plan, bind={"c": given, "n": values, "at": places}, out=[None, out])
        assert got is held
        np.testing.assert_array_equal(held, wanted)
        np.testing.assert_allclose(total, wanted.sum(-1), rtol=1e-5, atol=1e-5)
    (found,) = executables(plan)
    before = [source.name for source in prepare(plan).sources].index("c")
    assert found.apart.over[1] == {before}
    kept = held.copy()
    with pytest.raises(RunError, match="out of bounds"):
        tw.run(plan, bind={"c": held, "n": values, "at": places + 50}, out=[None, held])
    np.testing.assert_array_equal(held, kept)


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_caches_that_die_are_updated_where_they_lie(seed: int, count: int, donated: bool) -> None:
    """Updates in a row, of what a kernel makes or of a source; what is read again, or twice, is kept."""
    rng = np.random.default_rng(seed)
    held = rng.standard_normal((4, 60, 32)).astype(np.float32)
    x = tw.source(name="c", shape=held.shape, dtype="float32")
    state, wanted = (tw.tanh(x) + x * 2, np.tanh(held) + held * 2) if seed % 2 else (x, held.copy())
    read, expected = [], []
    for k in range(4):
        places = rng.integers(0, 60, (5, 1))
        new, again = rng.standard_normal((4, 5, 32)).astype(np.float32), bool(rng.integers(3) == 0)
        if again:
            read, expected = [*read, state * 3], [*expected, wanted * 3]
        own = state[:, :5] if k == 2 else tw.source(new)
        values = wanted[:, :5].copy() if k == 2 else new
        state = tw.scatter_nd(state, places, own, axis=1, reduction="add")
        wanted = wanted.copy()
        np.add.at(wanted, (slice(None), places[:, 0]), values)
    plan = tw.plan([state, *read], machines=count)
    for _ in range(3):
        given = held.copy()
        out = [given if donated else None, *[None] * len(read)]
        got = tw.run(plan, bind={"c": given}, out=out)
        got = got if isinstance(got, list) else [got]
        for one, value in zip(got, [wanted, *expected], strict=True):
            np.testing.assert_allclose(one, value, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(given, got[0] if donated else held)


def test_a_row_of_updates_needs_one_buffer() -> None:
    x = tw.source(name="c", shape=(64, 1000), dtype="float32")
    state = tw.exp(x)
    for k in range(5):
        state = tw.scatter_nd(state, np.array([[k]]), np.full((1, 1000), float(k), np.float32))
    plan = tw.plan(tw.sum(state, -1))
    got = tw.run(plan, bind={"c": np.zeros((64, 1000), np.float32)})
    assert got.tolist() == [0.0, 1000.0, 2000.0, 3000.0, 4000.0, *[1000.0] * 59]
    (found,) = executables(plan)
    assert found.arena_bytes == 4 * 64 * 1000


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_block_in_between_lies_in_a_result_that_is_not_made_yet(late: bool, donated: bool) -> None:
    """Of three, each dead when the next but one is made, the result takes the second; not while its memory is read."""
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal((512, 512), dtype=np.float32) / np.float32(s) for s in (1, 23, 23, 23, 23)]
    x, *weights = (tw.source(array, name=f"x{k}") for k, array in enumerate(arrays))
    y, wanted = x, arrays[0].astype(np.float64)
    for k, (weight, array) in enumerate(zip(weights, arrays[1:], strict=True)):
        y, wanted = tw.relu(y @ weight), np.maximum(wanted @ array, 0)
        if late and k == 2:
            y, wanted = y + x, wanted + arrays[0]
    plan = tw.plan(y, 1)
    for _ in range(2):
        given = arrays[0].copy()
        got = tw.run(plan, bind={"x0": given}, out=given if donated else None)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        assert (got is given) == donated
    (found,) = executables(plan)
    assert found.arena_bytes == (2 if late else 1) * arrays[0].nbytes


def test_what_scatters_may_be_written_over() -> None:
    """The result may take the memory of any input, of the places too."""
    for name in "xiu":
        arrays = {
            "x": np.array([[10], [20], [30], [40]]),
            "i": np.array([[0], [1], [2], [3]]),
            "u": np.array([[1], [2], [3], [4]]),
        }
        plan = tw.plan(tw.scatter_nd(*(tw.source(array, name=key) for key, array in arrays.items())))
        for _ in range(2):
            given = {key: array.copy() for key, array in arrays.items()}
            got = tw.run(plan, bind=given, out=given[name])
            assert got.ravel().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_views_of_what_is_written_over_keep_their_values(seed: int) -> None:
    """Reshapes of sources that are donated, of blocks with other readers, and of other reshapes."""
    rng = np.random.default_rng([seed, 41])
    a, b, c = (int(n) for n in rng.integers(2, 40, 3))
    x = rng.integers(-9, 10, (a, b, c)).astype("f4")
    given = tw.source(shape=x.shape, dtype="float32", name="x")
    flat = tw.reshape(tw.reshape(given, (a * b, c)), (a, b * c))
    block = given * 2
    turned = tw.reshape(block, (b * c, a))
    first = tw.reshape(flat + 1, (a, b, c)) - tw.reshape(tw.reshape(turned, (a * b * c,)), (a, b, c))
    outputs = [first, block + 3, tw.sum(flat, 1) + tw.max(turned, 0)]
    held = x.astype("f8")
    wanted = [held + 1 - 2 * held, held * 2 + 3, held.reshape(a, -1).sum(1) + 2 * held.reshape(-1, a).max(0)]
    plan = tw.plan(outputs)
    for threads in (1, 2):
        for out in (None, [x.copy(), None, None], [None, x.copy(), None]):
            array = x if out is None else next(one for one in out if one is not None)
            got = tw.run(plan, bind={"x": array}, out=out, threads=threads)
            for one, right in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(one, right)
