"""Elements at places that are data, among the calls of kernels: any shapes, strides and types, equal to NumPy's."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.cpu.indexed import takes
from tileweave.backends.cpu.indexed.takes import Take, takeable
from tileweave.backends.cpu.target.target import describe, host
from tileweave.errors import BackendError, RunError

SEED = 20261124


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """An array, perhaps a view with other strides, places along a dimension, and that."""
    rank = int(rng.integers(1, 4))
    shape = [int(rng.integers(1, 40)) for _ in range(rank)]
    x = (rng.standard_normal([2 * n for n in shape]) * 9).astype(rng.choice(["f4", "f8", "f2", "i1", "i8", "bool"]))
    x = x[tuple(slice(None, None, int(rng.choice([1, 2, -1]))) for _ in shape)][tuple(slice(n) for n in shape)]
    x = x.transpose(rng.permutation(rank)) if rng.random() < 0.3 else x
    x = x.copy() if rng.random() < 0.5 else x
    axis = int(rng.integers(0, rank))
    deep = tuple(int(rng.integers(0, 20)) for _ in range(rng.integers(0, 3)))
    places = rng.integers(-x.shape[axis], x.shape[axis], deep).astype(rng.choice(["i4", "i8", "i2"]))
    return x, places, axis


def test_any_places_along_any_axis() -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng(SEED), 0
    for _ in range(60):
        x, places, axis = drawn(rng)
        want = np.take(x, places, axis)
        native += takeable("take", {"axis": axis}, x, places, np.empty_like(want))
        holes = [tw.source(shape=a.shape, dtype=a.dtype, name=n) for n, a in (("x", x), ("places", places))]
        plan = tw.plan(g.take(*holes, axis))
        for threads in (1, 2, 1):
            np.testing.assert_array_equal(tw.run(plan, bind={"x": x, "places": places}, threads=threads), want)
        moved = tw.plan(g.sort(g.take(g.sort(holes[0], axis), places, axis), axis) if places.ndim == 1 else holes[0])
        want = np.sort(np.take(np.sort(x, axis), places, axis), axis) if places.ndim == 1 else x
        np.testing.assert_array_equal(tw.run(moved, bind={"x": x}), want)
    assert native > 20


@pytest.mark.skipif(not host().has("avx2"), reason="a lesser target needs a greater host")
@pytest.mark.parametrize("lesser", [None, ("x86-64-v3", "+avx2,+fma,+sse2"), ("x86-64", "+sse2")])
def test_places_of_elements_and_points_by_vectors_of_any_width(
    lesser: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    if lesser is not None:
        monkeypatch.setattr(takes, "host", lambda: describe(*lesser, "x86_64", (32768, 524288, 8388608)))
    for count in (1, 5, 60, 300):  # of places of a line: with others in one chunk, and more than one chunk
        rows, kind = int(rng.integers(2, 40)), rng.choice(["i8", "i4", "i2"])
        x = rng.standard_normal((rows, 310))
        along = rng.integers(-310, 310, (rows, count)).astype(kind)
        made = tw.run(tw.plan(g.take_along_axis(tw.source(x), tw.source(along), 1)))
        np.testing.assert_array_equal(made, np.take_along_axis(x, along.astype("i8"), 1))
        down = rng.integers(-rows, rows, (count, 310)).astype(kind)
        made = tw.run(tw.plan(g.take_along_axis(tw.source(x), tw.source(down), 0)))
        np.testing.assert_array_equal(made, np.take_along_axis(x, down.astype("i8"), 0))
        points = np.stack([rng.integers(-n, n, 7 * count) for n in x.shape], 1).astype(kind)
        made = tw.run(tw.plan(g.gather_nd(tw.source(x), tw.source(points))))
        np.testing.assert_array_equal(made, x[points[:, 0].astype("i8"), points[:, 1].astype("i8")])


@pytest.mark.parametrize("shape", [(3000, 200), (4, 900, 160), (400000,)])
def test_large_takes_are_shared_among_threads(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(SEED).standard_normal(shape, "f4")
    for axis in range(x.ndim):
        places = np.random.default_rng(SEED).permutation(2 * x.shape[axis]) - x.shape[axis]
        plan = tw.plan(g.take(tw.source(x), places, axis))
        np.testing.assert_array_equal(tw.run(plan, threads=2), np.take(x, places, axis))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("bad", [[0, 3, 1], [-4, 0, 0]])
def test_a_place_outside_is_the_error_of_numpy(bad: list[int], before: bool) -> None:
    x = np.arange(12.0).reshape(3, 4)
    hole, places = (tw.source(shape=s, dtype=d, name=n) for s, d, n in (((3, 4), "f8", "x"), ((3,), "i8", "places")))
    plan = tw.plan(g.take(g.sort(hole, 0) if before else hole, places, 0))
    for _ in range(2):
        np.testing.assert_array_equal(tw.run(plan, bind={"x": x, "places": np.array([2, -3, 0])}), x[[2, -3, 0]])
        with pytest.raises(RunError, match=r"IndexError: .*out of bo"):
            tw.run(plan, bind={"x": x, "places": np.array(bad)})


def test_a_result_is_not_written_over_what_is_taken() -> None:
    x = np.arange(3000.0).reshape(30, 100)
    places = np.arange(30)[::-1].copy()
    plan = tw.plan(g.take(tw.source(shape=x.shape, dtype="f8", name="x"), places, 0))
    for _ in range(2):
        want = x[::-1].copy()
        tw.run(plan, bind={"x": x}, out=x)
        np.testing.assert_array_equal(x, want)


def test_what_there_is_no_code_for_is_refused() -> None:
    x, places = np.zeros((4, 6), "f4"), np.array([1, 0])
    for given in ((x.T, places), (x, places.astype("u8")), (x[:0], places[:0]), (x, np.arange(4)[::2])):
        out = np.zeros((len(given[1]), given[0].shape[1]), "f4")
        assert not takeable("take", {"axis": 0}, *given, out)
        with pytest.raises(BackendError, match="is not taken by rows"):
            Take("take", {"axis": 0}, 1).bind([*given, out])
