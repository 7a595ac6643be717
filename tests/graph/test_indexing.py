"""Places, running sums, sorting, reshaping: against NumPy, whole and cut at random, with gradients by differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import random_partitions

from tileweave import graph as tg
from tileweave.errors import GraphError
from tileweave.graph.ops.operators import operator_of

RNG = np.random.default_rng(5)
A = RNG.normal(size=(4, 6, 5))
INTS = RNG.integers(-9, 10, (4, 6, 5))
ROWS = RNG.integers(-4, 4, (2, 3))
PLACES = RNG.integers(-6, 6, (4, 2, 5))


def scattered(x: Any, indices: Any, updates: Any, dim: int, how: str) -> Any:
    """A loop over every element."""
    out = np.array(x)
    for place in np.ndindex(*indices.shape):
        at = (*place[:dim], int(indices[place]), *place[dim + 1 :])
        old, new = out[at], updates[place]
        out[at] = {"none": new, "add": old + new, "mul": old * new, "min": min(old, new), "max": max(old, new)}[how]
    return out


def put(x: Any, at: Any, values: Any) -> Any:
    """x with other values somewhere."""
    out = np.array(x)
    out[at] = values
    return out


NEW = np.arange(12.0).reshape(4, 3)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "take": (lambda x: tg.take(x, ROWS, 0), lambda x: np.take(x, ROWS, 0)),
    "take middle": (lambda x: tg.take(x, ROWS, 1), lambda x: np.take(x, ROWS, 1)),
    "take flat": (lambda x: tg.take(x, [3, -1, 50]), lambda x: np.take(x, [3, -1, 50])),
    "embedding": (lambda x: tg.embedding(ROWS, x), lambda x: x[ROWS]),
    "take_along_axis": (lambda x: tg.take_along_axis(x, PLACES, 1), lambda x: np.take_along_axis(x, PLACES, 1)),
    "repeat": (lambda x: tg.repeat(x, 3, 1), lambda x: np.repeat(x, 3, 1)),
    "repeat flat": (lambda x: tg.repeat(x, 2), lambda x: np.repeat(x, 2)),
    "repeat by counts": (
        lambda x: tg.repeat(x, np.arange(x.shape[0]), 0),
        lambda x: np.repeat(x, np.arange(x.shape[0]), 0),
    ),
    "gather_nd": (lambda x: tg.gather_nd(x, [[0, 5], [-1, 2]]), lambda x: x[[0, -1], [5, 2]]),
    "gather_nd batch": (
        lambda x: tg.gather_nd(x, [[[1, 2]], [[3, 4]], [[5, 0]], [[0, 0]]], batch=1),
        lambda x: np.stack([x[0, [1], [2]], x[1, [3], [4]], x[2, [5], [0]], x[3, [0], [0]]]),
    ),
    **{
        f"scatter {how}": (
            lambda x, how=how: tg.scatter(x, PLACES, A[:, :2] + 0.5, 1, reduction=how),
            lambda x, how=how: scattered(x, PLACES, A[:, :2] + 0.5, 1, how),
        )
        for how in ("none", "add", "mul", "min", "max")
    },
    "scatter fewer": (
        lambda x: tg.scatter(x, PLACES[:2, :, :3], A[:2, :2, :3], 1, reduction="add"),
        lambda x: scattered(x, PLACES[:2, :, :3], A[:2, :2, :3], 1, "add"),
    ),
    "scatter_nd": (
        lambda x: tg.scatter_nd(x, [[0, 1], [3, 5]], np.ones((2, 5))),
        lambda x: np.stack([np.where((np.arange(6) == {0: 1, 3: 5}.get(k, -1))[:, None], 1.0, x[k]) for k in range(4)]),
    ),
    "scatter_nd last": (
        lambda x: tg.scatter_nd(x, [[0, 1], [3, 2], [5, 0]], NEW, axis=1),
        lambda x: put(x, (slice(None), [0, 3, 5], [1, 2, 0]), NEW),
    ),
    "scatter_nd rows": (
        lambda x: tg.scatter_nd(x, [[[4], [2]]], NEW[:, None, :2, None] * np.ones(5), axis=-2),
        lambda x: put(x, (slice(None), [[4, 2]]), NEW[:, None, :2, None] * np.ones(5)),
    ),
    "cumsum": (lambda x: tg.cumsum(x, 1), lambda x: np.cumsum(x, 1)),
    "cumsum flat": (tg.cumsum, np.cumsum),
    "cumsum back": (
        lambda x: tg.cumsum(x, 2, exclusive=True, reverse=True),
        lambda x: np.flip(np.cumsum(np.flip(x, 2), 2), 2) - x,
    ),
    "cumprod": (lambda x: tg.cumprod(x, 0), lambda x: np.cumprod(x, 0)),
    "cumprod exclusive": (
        lambda x: tg.cumprod(x, 0, exclusive=True),
        lambda x: np.concatenate([np.ones_like(x[:1]), np.cumprod(x, 0)[:-1]]),
    ),
    "sort": (lambda x: tg.sort(x, 1), lambda x: np.sort(x, 1)),
    "sort down": (lambda x: tg.sort(x, descending=True), lambda x: -np.sort(-x)),
    "argsort": (lambda x: tg.argsort(x, 0), lambda x: np.argsort(x, 0, "stable")),
    "top_k": (lambda x: tg.top_k(x, 3, 1)[0], lambda x: -np.sort(-x, 1)[:, :3]),
    "top_k places": (lambda x: tg.top_k(x, 3, 1)[1], lambda x: np.argsort(-x, 1, "stable")[:, :3]),
    "top_k least": (lambda x: tg.top_k(x, 2, 0, largest=False)[1], lambda x: np.argsort(x, 0, "stable")[:2]),
    "reshape": (lambda x: tg.reshape(x, (8, -1)), lambda x: x.reshape(8, -1)),
    "reshape apart": (lambda x: tg.reshape(x, (2, 2, 3, 10)), lambda x: x.reshape(2, 2, 3, 10)),
    "ravel": (tg.ravel, np.ravel),
    "flatten": (tg.flatten, lambda x: x.reshape(4, 30)),
    "stack": (lambda x: tg.stack([x, x + 1], 1), lambda x: np.stack([x, x + 1], 1)),
    "split": (lambda x: tg.split(x, [2, 3], 1)[2], lambda x: np.split(x, [2, 3], 1)[2]),
    "split even": (lambda x: tg.split(x, 2)[1], lambda x: np.split(x, 2)[1]),
    "tile": (lambda x: tg.tile(x, (2, 1, 2, 1)), lambda x: np.tile(x, (2, 1, 2, 1))),
    "swapaxes": (lambda x: tg.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1)),
    "moveaxis": (lambda x: tg.moveaxis(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0))),
    "roll": (lambda x: tg.roll(x, 2, 1), lambda x: np.roll(x, 2, 1)),
    "any": (lambda x: tg.any(x > 1, 1), lambda x: np.any(x > 1, 1)),
    "all": (lambda x: tg.all(x > -2, (0, 2), keepdims=True), lambda x: np.all(x > -2, (0, 2), keepdims=True)),
}
FLAT = {"argsort", "top_k places", "top_k least", "any", "all"}
WITHOUT = {"scatter mul", "scatter min", "scatter max", "gather_nd batch"}


@pytest.mark.parametrize("name", CASES)
def test_it_is_numpys_whole_and_cut(name: str) -> None:
    made, expected = CASES[name]
    for array in (A, INTS.astype(float)):
        whole = tg.verify(tg.Graph.of(made(tg.as_tensor(array))))
        tensor = whole.sinks[0].tensor
        want = np.asarray(expected(array))
        assert tensor.shape == want.shape
        np.testing.assert_allclose(tensor, want, rtol=1e-12, atol=1e-12)
        for _ in range(3):
            cut = tg.expand(whole, random_partitions(RNG, whole))
            tg.check_sharding(tg.verify(cut), whole)
            np.testing.assert_allclose(
                tg.evaluate([tg.join_sinks(cut).sinks[0].tensor])[0], want, rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("name", [name for name in CASES if name not in FLAT | WITHOUT])
def test_gradients_are_central_differences(name: str) -> None:
    made, expected = CASES[name]
    x = tg.as_tensor(A)
    weights = RNG.normal(size=made(x).shape)
    slope = np.asarray(tg.grad(tg.sum(made(x) * weights), x))
    for _ in range(4):
        way = RNG.normal(size=A.shape)
        step = 1e-6 * way
        ends = [(np.asarray(expected(A + sign * step)) * weights).sum() for sign in (1, -1)]
        np.testing.assert_allclose((slope * way).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_updates_of_a_scatter_have_a_gradient() -> None:
    x, updates = tg.as_tensor(A), tg.as_tensor(A[:, :2])
    for how in (None, "add"):
        out = tg.scatter(x, np.broadcast_to([[[0], [3]]], (4, 2, 5)), updates, 1, reduction=how)
        to_x, to_updates = tg.grad(tg.sum(out * A.copy()), [x, updates])
        np.testing.assert_array_equal(to_updates, A[:, [0, 3]])
        hit = np.isin(np.arange(6), [0, 3])[:, None]
        np.testing.assert_array_equal(to_x, A if how else np.where(hit, 0, A))


KEYS: list[Any] = [
    np.array([0, 2, -1]),
    [1, 1],
    (slice(None), [0, 3]),
    (slice(1, 3), np.array([[0], [1]]), slice(None, None, 2)),
    ([0, 1], [2, 3]),
    ([0, 1], slice(None), [2, 3]),
    (slice(None), [0, 1], 2),
    (0, slice(None), [4, 1]),
    (..., np.array([[0, 1]])),
    (None, [0, 1], ..., [2, 2]),
    (np.array([[0], [3]]), np.array([1, 2])),
    [],
    A > 0,
    (slice(1, None), A[0] > 0),
    [k % 2 == 0 for k in range(A.shape[0])],
    (..., A[0, 0] > 0),
    (None, A[:, :, 0] > 0, 1),
    (A[:, 0, 0] > 0, slice(None), 2),
    (0, ..., np.zeros(A.shape[2], bool)),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_arrays_of_integers_and_known_masks_index_as_in_numpy(key: Any) -> None:
    x = tg.as_tensor(A)
    got = x[key]
    np.testing.assert_array_equal(got, A[key])
    tg.verify(tg.Graph.of(got))
    np.testing.assert_array_equal(x[tg.as_tensor([1, 0])], A[[1, 0]])


def test_random_reshapes_cut_at_random() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        factors = rng.choice([1, 2, 2, 3, 4, 5], rng.integers(1, 6)).tolist()
        shapes = []
        for _ in range(2):
            order, shape = rng.permutation(factors).tolist(), [1]
            for f in order:
                if rng.random() < 0.5:
                    shape.append(f)
                else:
                    shape[-1] *= f
            shapes.append(tuple(shape))
        x = rng.normal(size=shapes[0])
        whole = tg.verify(tg.Graph.of(tg.as_tensor(x).reshape(*shapes[1])))
        cut = tg.expand(whole, random_partitions(rng, whole))
        tg.check_sharding(cut, whole)
        for graph in (whole, tg.join_sinks(cut), tg.coalesce(cut)):
            np.testing.assert_array_equal(graph.sinks[0].tensor, x.reshape(shapes[1]))


def test_special_values_are_sorted_as_in_numpy() -> None:
    x = np.array([np.nan, 1.0, -np.inf, np.inf, 1.0, -0.0, 0.0, np.nan])
    np.testing.assert_array_equal(tg.sort(x), np.sort(x))
    np.testing.assert_array_equal(tg.argsort(x, descending=True), [0, 7, 3, 1, 4, 5, 6, 2])
    for dtype in ("int8", "uint8", "bool", "float16", "bfloat16"):
        values = tg.cast([1, 0, 1, 0], dtype)
        np.testing.assert_array_equal(tg.argsort(values), [1, 3, 0, 2])
        np.testing.assert_array_equal(tg.argsort(values, descending=True), [0, 2, 1, 3])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tg.take(A, [0.5], 0), "take(x, indices, axis): places of type float64"),
        (lambda: tg.take(A[:0], [0], 0), "axis 0 is empty"),
        (lambda: tg.take_along_axis(A, [[1]], 1), "x and places do not fit"),
        (lambda: tg.repeat(A, -1, 0), "repeats is -1"),
        (lambda: tg.repeat(A, [1] * (A.shape[0] + 1), 0), "repeats is"),
        (lambda: tg.scatter(A, PLACES, A, 1), "updates do not fit their places"),
        (lambda: tg.scatter(A, PLACES, A[:, :2], 1, reduction="mean"), "reduction 'mean'"),
        (lambda: tg.gather_nd(A, [[0, 0, 0, 0]]), "x and places do not fit"),
        (lambda: tg.reshape(A, (7, -1)), "120 elements do not fit the shape (7, -1)"),
        (lambda: tg.reshape(A, (-1, -1)), "120 elements do not fit"),
        (lambda: tg.top_k(A, 9, 1), "k is 9"),
        (lambda: tg.split(A, 4, 1), "4 equal parts"),
        (lambda: tg.as_tensor(A)[tg.as_tensor(A > 0)], "the shape of tensor[mask] depends on values"),
        (lambda: tg.as_tensor(A)[A[:2] > 0], "the mask at axis 0 has shape (2,"),
        (lambda: tg.as_tensor(A)[..., [True, False]], "the mask at axis 2 has shape (2,)"),
        (lambda: tg.as_tensor(A)[[0.5]], "places of type float64"),
        (lambda: tg.as_tensor(A)[[0, 1], [1, 2, 3]], "do not broadcast"),
        (lambda: tg.moveaxis(A, (0, 1), 0), "does not go to"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        call()
    assert said in str(caught.value)


def test_places_outside_are_an_error_of_the_run() -> None:
    with pytest.raises(IndexError):
        np.asarray(tg.take(A, [9], 0))


def test_what_writes_into_an_array_writes_what_the_definition_returns():
    draw = np.random.default_rng(0)
    x, i = draw.standard_normal((5, 6)), draw.integers(0, 99, (5, 6))
    for tensor in (tg.floor(x), tg.isnan(x), tg.left_shift(i, i % 7), tg.cumsum(x, 0), tg.sort(x, 1)):
        operation = tensor.producer
        operator, values = operator_of(operation), [np.asarray(t) for _, t in operation.inputs]
        named = dict(zip((name for name, _ in operation.inputs), values, strict=True))
        (wanted,) = operator.block(operation, named).values()
        out = np.empty_like(wanted)
        operator.into(operation, named, out)
        assert np.array_equal(out, wanted)
        if wanted.dtype == values[0].dtype and wanted.shape == values[0].shape:  # the very memory of the first input
            (first, array), *others = named.items()
            same = array.copy()
            operator.into(operation, {first: same, **dict(others)}, same)
            assert np.array_equal(same, wanted)


def test_places_outside_are_refused_as_numpy_refuses_them():
    operation = tg.take(np.ones((3, 2)), np.array([0, 3]), 0).producer
    named = {name: np.asarray(tensor) for name, tensor in operation.inputs}
    with pytest.raises(IndexError):
        operator_of(operation).block(operation, named)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_running_sums_of_many_rows_are_those_of_numpy(axis, dtype):
    x = np.random.default_rng(1).integers(-9, 9, (7, 30, 40)).astype(dtype)
    assert np.array_equal(np.asarray(tg.cumsum(x, axis, dtype=dtype)), np.cumsum(x, axis, dtype))
    signs = np.where(x < 0, -1, 1).astype(dtype)
    assert np.array_equal(np.asarray(tg.cumprod(signs, axis, dtype=dtype)), np.cumprod(signs, axis, dtype))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_places_are_those_of_a_stable_sort(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        rows, total = int(rng.integers(1, 6)), int(rng.integers(1, 400))
        x = rng.standard_normal((rows, total)) * 50
        x = np.round(x / 40) if rng.random() < 0.4 else x  # many are equal
        x = x.astype(str(rng.choice(["f4", "f8", "f2", "i4", "i1", "?"])))
        if x.dtype.kind == "f":
            x[rng.random(x.shape) < rng.choice([0, 0.02])] = np.nan
            for number in (np.inf, -np.inf, -0.0):
                x[rng.random(x.shape) < 0.05] = number
        k, largest = int(rng.integers(0, 1 + total // int(rng.choice([1, 4, 30])))), bool(rng.integers(2))
        order = np.argsort(x[:, ::-1], 1, "stable")[:, ::-1] if largest else np.argsort(x, 1, "stable")
        wanted = (total - 1 - order if largest else order)[:, :k]
        values, places = tg.top_k(x, k, 1, largest=largest)
        np.testing.assert_array_equal(np.asarray(places), wanted)
        np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, wanted, 1))
