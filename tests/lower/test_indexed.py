"""Gathers and scatters of any kind as plans run them: equal to NumPy, in the order of the places, with its errors."""

from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.errors import RunError

SEED = 20261127
Array = np.ndarray[Any, Any]
TYPES = ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u4", "bool")
UPDATES = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def shape_of(rng: np.random.Generator, least: int = 1) -> list[int]:
    """Of one to four dimensions, some of them long."""
    rank = int(rng.integers(least, 5))
    most = (5000, 90, 24, 12)[rank - 1]
    return [round(np.exp(rng.uniform(0, np.log(most)))) for _ in range(rank)]


def values(rng: np.random.Generator, shape: Any, dtype: str) -> Array:
    """Numbers, among them NaN and infinities."""
    x = (rng.standard_normal(shape) * 9).astype(dtype) if dtype[0] != "u" else rng.integers(0, 200, shape, dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < 0.05] = np.nan
        x[rng.random(shape) < 0.05] = -np.inf
    return np.asarray(x)


def places_in(rng: np.random.Generator, extent: int, shape: Any) -> Array:
    """Places of any integer type; negative ones where there are such."""
    kind = str(rng.choice(["i2", "i4", "i8", "i8", "u2"]))
    return rng.integers(0 if kind == "u2" else -extent, extent, shape).astype(kind)


def held(rng: np.random.Generator, x: Array) -> Array:
    """The same array, perhaps in another order of memory."""
    choice = rng.random()
    if choice < 0.15:
        return np.asfortranarray(x)
    return np.repeat(x, 2, 0)[::2] if choice < 0.25 and x.ndim else x


def run(function: Any, *arrays: Array, **how: Any) -> tuple[Array, str]:
    """The result of a function of tensors, and what computes it."""
    holes = [tw.source(shape=x.shape, dtype=x.dtype, name=f"x{k}") for k, x in enumerate(arrays)]
    plan = tw.plan(function(*holes))
    bind = {f"x{k}": x for k, x in enumerate(arrays)}
    found = tw.run(plan, bind=bind, **how)
    np.testing.assert_array_equal(tw.run(plan, bind=bind, **how), found)
    return found, str(plan.steps[0].kernel)


def numpy_scatter(x: Array, at: Any, updates: Array, how: str | None) -> Array:
    """The updates one after the other."""
    out = x.copy()
    with np.errstate(all="ignore"):
        if how is None:
            for place in np.ndindex(at[0].shape):
                out[tuple(one[place] for one in at)] = updates[place]
        else:
            UPDATES[how].at(out, at, updates)
    return out


@pytest.mark.parametrize("threads", [1, 3])
def test_elements_along_a_dimension(threads: int) -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng([SEED, threads]), 0
    for _ in range(25):
        shape, dtype = shape_of(rng), str(rng.choice(TYPES))
        axis = int(rng.integers(0, len(shape)))
        fewer = [int(rng.integers(1, n + 1)) if rng.random() < 0.2 else n for n in shape]
        fewer[axis] = int(rng.integers(0, 2 * shape[axis] + 1))
        x, at = held(rng, values(rng, shape, dtype)), held(rng, places_in(rng, shape[axis], fewer))
        grid = list(np.ogrid[tuple(slice(n) for n in fewer)])
        grid[axis] = at
        found, kernel = run(lambda x, at, axis=axis: g.take_along_axis(x, at, axis), x, at, threads=threads)
        np.testing.assert_array_equal(found, x[tuple(grid)])
        native += kernel == "cpu: take_along_axis"
    assert native > 12


@pytest.mark.parametrize("threads", [1, 3])
def test_points_and_rows(threads: int) -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng([SEED, threads]), 0
    for _ in range(25):
        shape, dtype = shape_of(rng), str(rng.choice(TYPES))
        deep = int(rng.integers(0, len(shape) + 1))
        batch = int(rng.integers(0, len(shape) - deep + 1)) if rng.random() < 0.4 else 0
        count = (*shape[:batch], *rng.integers(0, 40, 1 + int(rng.integers(0, 2))).tolist())
        x = held(rng, values(rng, shape, dtype))
        at = np.stack(
            [rng.integers(-n, n, count) for n in shape[batch : batch + deep]] or [np.zeros((*count, 0), int)], -1
        )
        at = at[..., 0] if not deep else at
        lead = np.ogrid[tuple(slice(n) for n in count)][:batch] if batch else []
        want = x[(*lead, *np.moveaxis(at, -1, 0))] if batch or deep else x
        want = want if deep else np.broadcast_to(want, (*count, *x.shape[batch:]))
        found, kernel = run(lambda x, at, batch=batch: g.gather_nd(x, at, batch), x, at, threads=threads)
        np.testing.assert_array_equal(found, want)
        native += kernel == "cpu: gather_nd"
    assert native > 7


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("how", [None, "add", "mul", "min", "max"])
def test_updates_along_a_dimension(how: str | None, threads: int) -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng([SEED, threads, len(how or "")]), 0
    for _ in range(12):
        shape, dtype = shape_of(rng), str(rng.choice(TYPES))
        axis = int(rng.integers(0, len(shape)))
        many = list(shape)
        many[axis] = int(rng.integers(0, 2 * shape[axis] + 1))
        x, new = held(rng, values(rng, shape, dtype)), held(rng, values(rng, many, dtype))
        at = held(rng, places_in(rng, shape[axis], many))
        grid = list(np.broadcast_arrays(*np.ogrid[tuple(slice(n) for n in many)])) if len(many) > 1 else [at]
        grid[axis] = at
        scatter = lambda *given, axis=axis: g.scatter(*given, axis, reduction=how)  # noqa: E731
        found, kernel = run(scatter, x, at, new, threads=threads)
        np.testing.assert_array_equal(found, numpy_scatter(x, tuple(grid), new, how))
        native += kernel == "cpu: scatter"
    assert native > 3


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("how", [None, "add", "mul", "min", "max"])
def test_updates_of_rows(how: str | None, threads: int) -> None:
    print("seed", SEED)
    rng, native = np.random.default_rng([SEED, threads, len(how or "")]), 0
    for _ in range(12):
        shape, dtype = shape_of(rng), str(rng.choice(TYPES))
        deep = int(rng.integers(1, len(shape) + 1))
        axis, count = int(rng.integers(0, len(shape) - deep + 1)), int(rng.integers(0, 60))
        at = np.stack([rng.integers(-n, n, count) for n in shape[axis : axis + deep]], -1)
        x = values(rng, shape, dtype)
        new = held(rng, values(rng, (*shape[:axis], count, *shape[axis + deep :]), dtype))
        front = np.moveaxis(x, range(axis, axis + deep), range(deep))
        want = front.copy()
        with np.errstate(all="ignore"):
            for k in range(count):
                place, one = tuple(at[k]), np.moveaxis(new, axis, 0)[k]
                want[place] = one if how is None else UPDATES[how](want[place], one)
        want = np.moveaxis(want, range(deep), range(axis, axis + deep))
        scatter = lambda *given, axis=axis: g.scatter_nd(*given, axis=axis, reduction=how)  # noqa: E731
        found, kernel = run(scatter, x, at, new, threads=threads)
        np.testing.assert_array_equal(found, want)
        native += kernel == "cpu: scatter_nd"
        donated = x.copy()
        run_once(scatter, donated, at, new, out=donated, threads=threads)
        np.testing.assert_array_equal(donated, want)
    assert native > 3


def run_once(function: Any, *arrays: Array, **how: Any) -> None:
    """One run."""
    holes = [tw.source(shape=x.shape, dtype=x.dtype, name=f"x{k}") for k, x in enumerate(arrays)]
    tw.run(tw.plan(function(*holes)), bind={f"x{k}": x for k, x in enumerate(arrays)}, **how)


@pytest.mark.parametrize("shape", [(3000, 200), (4, 900, 160), (400000,)])
def test_large_updates_are_shared_among_threads(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal(shape, "f4")
    for axis in range(x.ndim):
        at = rng.integers(-x.shape[axis], x.shape[axis], shape)
        new = rng.standard_normal(shape, "f4")
        grid = list(np.ogrid[tuple(slice(n) for n in shape)])
        grid[axis] = at
        want = x.copy()
        np.add.at(want, tuple(grid), new)
        found, _ = run(lambda *given, axis=axis: g.scatter(*given, axis, reduction="add"), x, at, new, threads=3)
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(
            run(g.take_along_axis, x, at, threads=3)[0], np.take_along_axis(x, at, -1)
        ) if axis == x.ndim - 1 else None
    rows = rng.integers(-len(x), len(x), 5000)
    new = rng.standard_normal((5000, *shape[1:]), "f4")
    want = x.copy()
    np.add.at(want, rows, new)
    found, _ = run(
        lambda x, at, new: g.scatter_nd(x, g.unsqueeze(at, 1), new, reduction="add"), x, rows, new, threads=3
    )
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("bad", [-5, 4, 1 << 40, -(1 << 40)])
def test_a_place_outside_is_an_error(bad: int) -> None:
    x, new = np.arange(12.0).reshape(3, 4), np.ones((3, 2))
    at = np.array([[0, 1], [2, -4], [3, 0]])
    wrong = at.copy()
    wrong[1, 1] = bad
    cases: list[tuple[Any, tuple[Array, ...], tuple[Array, ...]]] = [
        (g.take_along_axis, (x, at), (x, wrong)),
        (g.scatter, (x, at, new), (x, wrong, new)),
        (lambda *given: g.scatter(*given, reduction="add"), (x, at, new), (x, wrong, new)),
        (lambda x, at: g.gather_nd(x, at), (x.T.copy(), at[:, ::-1] % 3), (x.T.copy(), wrong[:, ::-1] % (1 << 50))),
        (g.scatter_nd, (x.T.copy(), at[:, :1], x[:, :3].copy()), (x.T.copy(), wrong[:, 1:], x[:, :3].copy())),
    ]
    for function, good, given in cases:
        holes = [tw.source(shape=a.shape, dtype=a.dtype, name=f"x{k}") for k, a in enumerate(good)]
        plan = tw.plan(function(*holes))
        for _ in range(2):
            first = tw.run(plan, bind={f"x{k}": a for k, a in enumerate(good)})
            np.testing.assert_array_equal(first, np.asarray(function(*good)))
            if np.array_equal(given[1], good[1]):
                continue
            with pytest.raises(RunError, match=r"IndexError: .*out of bo"):
                tw.run(plan, bind={f"x{k}": a for k, a in enumerate(given)})


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2"])
def test_places_of_types_that_hold_no_extent(kind: str) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    rng = np.random.default_rng(seed)
    x, at = rng.normal(size=70_000), rng.integers(0, 128, 300).astype(kind)
    new, sums = rng.normal(size=300), x.copy()
    np.add.at(sums, at, new)
    tensor = tw.source(x)
    added = tw.run(tw.scatter(tensor, at, new, reduction="add"))
    np.testing.assert_allclose(added, sums, rtol=1e-12, err_msg=f"seed {seed}")
    nested = tw.run(tw.scatter_nd(tensor, at[:, None], new, reduction="add"))
    np.testing.assert_allclose(nested, sums, rtol=1e-12, err_msg=f"seed {seed}")
    (gradient,) = tw.grad(tw.sum(tw.take(tensor, at)), [tensor])
    np.testing.assert_array_equal(tw.run(gradient), np.bincount(at, minlength=len(x)), err_msg=f"seed {seed}")


def test_of_several_updates_of_one_place_the_last_stays_however_arrays_lie_in_memory() -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print("seed", seed)
    rng = np.random.default_rng(seed)

    def view(x: np.ndarray) -> np.ndarray:
        ways = (x, np.asfortranarray(x), x[:, ::-1].copy()[:, ::-1], np.broadcast_to(x[:, :1], x.shape))
        return ways[rng.integers(4)]

    for _ in range(50):
        rows, extent, count = (int(n) for n in rng.integers(1, 12, 3))
        x, updates = np.zeros((rows, extent)), view(rng.standard_normal((rows, count)))
        places = view(rng.integers(0, extent, (rows, count)))
        along, grid, of_grid = x.copy(), x.copy(), np.stack([places % rows, places], -1)
        of_grid = [of_grid, np.broadcast_to(of_grid[:, :1], of_grid.shape)][rng.integers(2)]
        for row, k in np.ndindex(rows, count):
            along[row, places[row, k]] = updates[row, k]
            grid[tuple(of_grid[row, k])] = updates[row, k]
        np.testing.assert_array_equal(tw.run(g.scatter(*map(tw.source, (x, places, updates)), 1)), along)
        np.testing.assert_array_equal(tw.run(g.scatter_nd(*map(tw.source, (x, of_grid, updates)))), grid)
