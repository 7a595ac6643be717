"""Graphs that differ from known ones in extents alone are run without a plan, and give the very same bits."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import GraphError
from tileweave.runtime.further.expressions import KNOWN
from tileweave.runtime.further.known import KnownForms

Array = np.ndarray[Any, Any]


def drawn(random: np.random.Generator, shape: tuple[int, ...], kind: str = "float32") -> Array:
    """An array that lies in one of several ways."""
    way = int(random.integers(0, 6))
    whole = tuple(2 * n + 1 for n in shape)
    if way == 0:  # every other element
        return random.standard_normal(whole).astype(kind)[tuple(slice(1, 1 + 2 * n, 2) for n in shape)]
    if way == 1:  # in column-major order
        return np.asfortranarray(random.standard_normal(shape).astype(kind))
    if way == 2 and shape:  # downwards
        return random.standard_normal(shape).astype(kind)[::-1]
    if way == 3 and shape:  # repeated
        return np.array(np.broadcast_to(random.standard_normal(shape[1:]).astype(kind), shape))
    return random.standard_normal(shape).astype(kind)


def softmax_of_product(s: Any, n: int, m: int, k: int) -> Any:
    return tw.softmax(s(n, k) @ s(k, m), -1)


def layers(s: Any, n: int, m: int, k: int) -> Any:
    return tw.relu(s(n, k) @ s(k, m) + s(m)) @ s(m, k) * 0.5 + s(k)


def norm(s: Any, n: int, m: int, k: int) -> Any:
    x = s(n, m, k)
    d = x - tw.mean(x, -1, keepdims=True)
    return d / tw.sqrt(tw.mean(d * d, -1, keepdims=True) + 1e-5) * s(k) + s(k)


def parts(s: Any, n: int, m: int, k: int) -> Any:
    x, y = s(n, m), s(k, m)
    joined = tw.concat([tw.exp(x), tw.permute(tw.tanh(tw.permute(y, (1, 0))), (1, 0))], 0)
    return joined[n // 2 :] + 1.0, tw.sum(joined[: n // 2 + 1], 1)


def halves(s: Any, n: int, m: int, k: int) -> Any:
    x, y = s(n, m, k), s(2, m, n)
    both = x[:, : m // 2] + x[:, m - m // 2 :, ::-1]
    return tw.tanh(both) ** 2 + 1.0, tw.sigmoid(tw.flip(y, 1)[1].T[:, m // 3 :] * 2.0)


def moved(s: Any, n: int, m: int, k: int) -> Any:
    x = tw.reshape(tw.sigmoid(s(n, m * k)), (n, m, k))
    return tw.sum(tw.permute(x, (2, 0, 1)) * s(m), 2) - tw.max(x, 1).T


def averaged(s: Any, n: int, m: int, k: int) -> Any:
    return tw.mean(s(n, m), 0) * (1 / max(n, 1)) + s(m), tw.max(tw.absolute(s(k, m)), 0)


def attended(s: Any, n: int, m: int, k: int) -> Any:
    q, x, v = s(2, n, k), s(2, m, k), s(2, m, k)
    return tw.softmax(q @ tw.permute(x, (0, 2, 1)) * (1 / (k + 1) ** 0.5), -1) @ v


def windows(s: Any, n: int, m: int, k: int) -> Any:
    x = tw.pad(s(1, 3, n + 3, m + 3), [(0, 0), (0, 0), (1, 1), (1, 1)])
    y = tw.relu(tw.conv(x, s(5, 3, 3, 3)) * 0.5 + 1.0)
    return tw.conv(tw.pad(y, [(0, 0), (0, 0), (1, 0), (0, 1)]), s(4, 5, 2, 2), stride=(2, 1))


def chosen(s: Any, n: int, m: int, k: int) -> Any:
    rows = tw.source(np.arange(k) % max(n, 1))
    return tw.take(tw.exp(s(n, m)), rows, 0) + s(m)


PROGRAMS = (softmax_of_product, layers, norm, parts, halves, moved, averaged, attended, windows, chosen)


def written(build: Any, seed: int, extents: tuple[int, int, int]) -> list[Any]:
    """The program on arrays of a seed."""
    random = np.random.default_rng(seed)
    made = build(lambda *shape: tw.source(drawn(random, shape)), *extents)
    return list(made) if isinstance(made, tuple) else [made]


def planned_anew(targets: list[Any], threads: int | None) -> list[Array]:
    """The values by the path that knows no other graph of the form."""
    known = dict(KNOWN.outlines)
    KNOWN.outlines.clear()
    try:
        return tw.run(targets, threads=threads)
    finally:
        KNOWN.outlines.update(known)


@pytest.fixture(autouse=True)
def nothing_known():
    """Each test begins without forms."""
    KNOWN.outlines.clear()
    KNOWN.bindings.clear()


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_further_extents_give_the_same_bits(build, threads):
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    random = np.random.default_rng(seed)
    bound = 0
    for turn in range(14):
        few = turn % 5 == 4
        extents = tuple(int(n) for n in (random.integers(0 if few else 3, 4 if few else 90, 3)))
        try:
            targets = written(build, seed + turn, extents)
        except GraphError:  # such as the largest of no numbers
            continue
        before = len(KNOWN.bindings)
        got = tw.run(targets, threads=threads)
        bound += len(KNOWN.bindings) > before
        further = [tw.run(targets, threads=threads) for _ in range(2)]  # bound, and bound before
        anew = planned_anew(written(build, seed + turn, extents), threads)
        for results in (got, *further):
            for one, other in zip(results, anew, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{extents}")
        for one, tensor in zip(got, targets, strict=True):
            expected = np.asarray(tensor)
            np.testing.assert_allclose(one, expected, rtol=2e-4, atol=2e-4, err_msg=f"{extents}")
    assert bound or build is averaged, "nothing was bound again"  # its few sums are NumPy's, which takes a plan


def two_dims(x: Any, y: Any) -> Any:
    """A model of two symbolic dimensions."""
    h = tw.relu(x @ tw.source(WEIGHTS[0]) + tw.source(WEIGHTS[1]))
    scores = tw.softmax(h @ tw.permute(y, (1, 0)) * (1 / x.shape[0]), -1)
    return {"scores": scores, "sums": tw.sum(scores @ y, 0), "ends": tw.tanh(tw.concat([h, y], 0)[1:])}


WEIGHTS = [np.random.default_rng(5).standard_normal(shape).astype("float32") for shape in ((24, 40), (40,))]


def symbolic(frozen: bool) -> Any:
    for one in WEIGHTS:
        one.flags.writeable = not frozen
    inputs = {"x": ((tw.dim("n", 0), 24), "float32"), "y": ((tw.dim("m", 0), 40), "float32")}
    return tw.program(two_dims, **inputs)


@pytest.mark.parametrize("frozen", [False, True])
def test_further_extents_of_a_symbolic_model_give_the_same_bits(frozen):
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    random, model, twin = np.random.default_rng(seed), symbolic(frozen), symbolic(frozen)
    object.__setattr__(twin, "known", KnownForms(twin.known.brought, 0, -1))  # which makes a plan of all extents
    for turn in range(14):
        n, m = (int(k) for k in random.integers(1 if turn % 5 == 4 else 3, 3 if turn % 5 == 4 else 70, 2))
        x, y = drawn(random, (n, 24)), drawn(random, (m, 40))
        several, anew = [model(x, y) for _ in range(3)], twin(x, y)
        got = several[0]
        for name, expected in anew.items():
            for one in several:
                np.testing.assert_array_equal(one[name], expected, err_msg=f"{n} x {m}")
        h = np.maximum(x @ WEIGHTS[0] + WEIGHTS[1], 0)
        np.testing.assert_allclose(got["ends"], np.tanh(np.concatenate([h, y])[1:]), rtol=1e-4, atol=1e-4)
    assert len(model.plans) < len(twin.plans), "every plan was made"
    assert model.known.bindings


def test_weights_that_are_written_are_read_anew():
    model, weights = symbolic(False), WEIGHTS[0].copy()
    try:
        for n in (8, 9, 10, 11, 10):
            WEIGHTS[0][...] = weights * n
            x, y = np.ones((n, 24), "float32"), np.ones((5, 40), "float32")
            h = np.maximum(x @ WEIGHTS[0] + WEIGHTS[1], 0)
            np.testing.assert_allclose(model(x, y)["ends"], np.tanh(np.concatenate([h, y])[1:]), rtol=1e-4, atol=1e-4)
    finally:
        WEIGHTS[0][...] = weights


def test_results_may_be_given_and_donated():
    random = np.random.default_rng(3)
    for n in (20, 21, 22, 23, 24, 25):
        x = random.standard_normal((n, 30)).astype("float32")
        expected = np.tanh(x) * 2 + 1
        out = np.empty((30, n), "float32").T if n % 2 else np.empty((n, 30), "float32")
        assert tw.run(tw.tanh(tw.source(x)) * 2 + 1, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        given = x.copy()
        assert tw.run(tw.tanh(tw.source(given)) * 2 + 1, out=given) is given
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)
        both = np.zeros((n, n + 30), "float32")
        given = both[:, :30]
        given[...] = x
        tw.run(tw.softmax(tw.source(given), -1), out=both[:, n:])  # they overlap
        weights = np.exp(x - x.max(-1, keepdims=True))
        np.testing.assert_allclose(both[:, n:], weights / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_threads_run_further_extents_at_once():
    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(12):
            n, m, k = (int(one) for one in random.integers(8, 40, 3))
            a, b = (random.standard_normal(s).astype("float32") for s in ((n, k), (k, m)))
            target = tw.relu(tw.source(a) @ tw.source(b)) + 1.0
            for _ in range(3):
                np.testing.assert_allclose(tw.run(target, threads=1), np.maximum(a @ b, 0) + 1, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [None] * 8


def test_one_tensor_runs_on_threads_at_once():
    arrays = [np.random.default_rng(n).standard_normal((40 + n, 300)).astype("float32") for n in range(4)]
    for array in arrays:
        target = tw.exp(tw.source(array)) * 3.0 - 1.0
        expected = np.exp(array) * 3 - 1
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _, target=target: tw.run(target, threads=1), range(40)):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_arrays_go_with_their_expressions():
    for n in (50, 51, 52, 53):
        array = np.ones((n, 70), "float32")
        gone = weakref.ref(array)
        target = tw.tanh(tw.source(array)) + 2.0
        first, second = tw.run(target), tw.run(target)
        np.testing.assert_array_equal(first, second)
        del array, target
        gc.collect()
        assert gone() is None, n


def test_what_a_model_knows_goes_with_it():
    model = symbolic(True)
    for n in (60, 61, 62):
        model(np.ones((n, 24), "float32"), np.ones((50, 40), "float32"))
    (outline,) = filter(None, model.known.outlines.values())
    gone = weakref.ref(outline)
    del outline, model
    gc.collect()
    assert gone() is None


def test_as_many_bindings_are_kept_as_is_said():
    array = np.ones((400, 400), "float32")
    for n in range(20, 20 + KNOWN.most + 30):
        tw.run(tw.tanh(tw.source(array[:n, :n])) * 2.0)
    assert 0 < len(KNOWN.bindings) <= KNOWN.most
    assert len(KNOWN.outlines) <= KNOWN.most


def test_constants_of_a_form_are_those_of_each_graph():
    def read_only(value: float, n: int) -> Array:
        made = np.full((30, n), value, "float32")
        made.flags.writeable = False
        return made

    for n in (40, 41, 42, 43, 44):
        x = np.random.default_rng(n).standard_normal((20, 30)).astype("float32")
        got = tw.run(tw.tanh(tw.source(x) @ tw.source(read_only(n / 50, n))))
        np.testing.assert_allclose(got, np.tanh(x @ read_only(n / 50, n)), rtol=1e-4, atol=1e-5)


def test_constants_that_do_not_lie_as_kernels_read_them():
    random = np.random.default_rng(11)

    def constant(shape: tuple[int, ...], aligned: bool) -> Array:
        values = random.standard_normal(shape).astype("float32")
        if not aligned:
            table = np.zeros(shape, [("mark", "u1"), ("value", "f4")])  # five bytes from one number to the next
            table["value"] = values
            table.flags.writeable = False
            values = table["value"]
        values.flags.writeable = False
        return values

    for n in (40, 41, 42, 43, 44, 45):
        x = random.standard_normal((n, 30)).astype("float32")
        weights, more = constant((30, n + 9), n < 43), constant((n, 30), n < 43)
        got = tw.run([tw.tanh(tw.source(x) @ tw.source(weights)), tw.exp(tw.source(x)) + tw.source(more) * 2.0])
        np.testing.assert_allclose(got[0], np.tanh(x @ weights), rtol=1e-4, atol=1e-5, err_msg=f"{n}")
        np.testing.assert_allclose(got[1], np.exp(x) + more * 2, rtol=1e-4, atol=1e-5, err_msg=f"{n}")


def test_constants_of_expressions_that_are_gone_are_let_go(monkeypatch):
    known = KnownForms(KNOWN.brought, KNOWN.most, 1 << 20)
    monkeypatch.setattr("tileweave.runtime.further.expressions.KNOWN", known)
    held, bound = [], False
    for n in range(300, 316):  # 0.36 MB and more each
        weights = np.ones((n, n), "float32")
        weights.flags.writeable = False
        tw.run(tw.tanh(tw.source(np.ones((n + 1, n), "float32")) @ tw.source(weights)))
        bound = bound or bool(known.bindings)
        held.append(weakref.ref(weights))
        del weights
    gc.collect()
    assert bound
    assert sum(one() is not None for one in held) <= 6


def sized(build: Any, extents: tuple[int, ...]) -> Any:
    """A model of one symbolic dimension, each of whose values is looked at."""
    model = tw.program(build, x=((tw.dim("n"), 60), "float32"))
    for n in extents:
        x = np.random.default_rng(n).standard_normal((n, 60)).astype("float32")
        made = model.at(n=n)
        wanted = tw.graph.evaluate([made.outputs["out"]], {made.inputs["x"].producer: x})[0]
        np.testing.assert_allclose(model(x)["out"], wanted, rtol=1e-4, atol=1e-4, err_msg=f"{n}")
    return model


def test_programs_that_decide_by_extents_keep_their_values():
    extents = (40, 41, 42, 80, 81, 120)
    forms = [
        lambda x: tw.tanh(x) ** (2 if x.shape[0] < 80 else 3),  # written as other products
        lambda x: tw.relu(x) + 1.0 if x.shape[0] < 80 else tw.tanh(x) + 1.0,
        lambda x: tw.sum(x, axis=1 if x.shape[0] < 80 else 0, keepdims=True) * x + x,
        lambda x: x[:20] + x[: x.shape[0] // 2][:20] + x[x.shape[0] // 4 :][:20] * 2,
        lambda x: x * 42.0 + x.shape[0] - x / x.shape[0],
        lambda x: x[: x.shape[0] // 2] * 2 + x[3 : 3 + x.shape[0] // 2],
        lambda x: tw.exp(tw.concat([x[: x.shape[0] // 2] * 2, x[3:]])),
        lambda x: tw.softmax(x.T @ x / x.shape[0], axis=1) @ x[x.shape[0] - 60 :] if x.shape[0] > 80 else x * 2.0,
        lambda x: x + tw.source(np.arange(x.shape[0] * 60, dtype="float32").reshape(-1, 60)),
    ]
    for build in forms:
        sized(build, extents)
