"""Runs of whole plans on one machine: as an executable, against the evaluator and against the runtime by tasks."""

import gc
import os
import pickle
import random
import sys
import threading
from collections import Counter
from functools import partial
from itertools import accumulate, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.backends.cpu.target import calls as cpu_calls
from tileweave.errors import DtypeError, GraphError, PlanError, RunError
from tileweave.lower import values as lower_values
from tileweave.lower.values import place_in_time
from tileweave.planner import Plan, machines, make_plan
from tileweave.planner.steps import steps_of
from tileweave.runtime import direct, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.prepare import prepare
from tileweave.space import Projection


def executables(plan) -> list:
    """The executables that are kept with a plan."""
    return [one for idle in prepare(plan).extra.get("executables", {}).values() for one in idle.kept()]


def mlp(rng, dtype="float32"):
    arrays = [(rng.standard_normal(s) / 4).astype(dtype) for s in ((64, 32), (32, 48), (48,), (48, 16))]
    x, w, b, v = (tw.source(a, name=n) for a, n in zip(arrays, "xwbv", strict=True))
    return tw.relu(x @ w + b) @ v, arrays


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_an_executable_computes_what_the_graph_means(dtype: str) -> None:
    direct = 0
    for seed in range(25):
        values = random_graph(seed, dtype)
        tensors = [value.tensor for value in values]
        decide = partial(tw.lower.decide, small=seed % 4 == 1)  # which a plan wishes that compiles much anyway
        plan = make_plan(g.Graph.of(*tensors), machines(1), decide)
        for _ in range(2):
            results = run_plan(plan, threads=1 + seed % 2)
            for value, got, expected in zip(values, results, g.evaluate(tensors), strict=True):
                assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
                bound = 8 * float(np.finfo(expected.dtype).eps) * (value.error + 1) if expected.dtype.kind == "f" else 0
                np.testing.assert_allclose(got, expected, rtol=0, atol=bound)
        direct += len(executables(plan))
    assert direct > 20


def test_what_depends_on_read_only_arrays_alone_is_computed_once() -> None:
    """A writeable array may change between runs, so what is made of it is made anew."""
    rng = np.random.default_rng(0)
    x = tw.source(None, name="x", shape=(4, 6), dtype="float32")
    for writeable in (True, False):
        weight = np.abs(rng.standard_normal(6)).astype(np.float32) + 1
        held = weight if writeable else np.frombuffer(weight.tobytes(), np.float32)
        scale = 1 / tw.sqrt(tw.source(held) + 0.5)
        both = tw.concat([scale, tw.exp(scale)], 0)
        plan = tw.plan([x * both[:6] + both[6:], scale])
        given = rng.standard_normal((4, 6)).astype(np.float32)
        for factor in (1, 3) if writeable else (1, 1):
            weight *= factor
            expected = 1 / np.sqrt(weight + 0.5)
            for _ in range(2):
                got, own = tw.run(plan, bind={"x": given})
                np.testing.assert_allclose(got, given * expected + np.exp(expected), rtol=1e-5)
                np.testing.assert_allclose(own, expected, rtol=1e-6)
                own[:] = 0  # results are the caller's
        (found,) = executables(plan)
        assert bool(found.fixed) != writeable


def test_a_read_only_view_of_what_is_written_is_no_constant() -> None:
    """Broadcasts and windows are read-only, and show what is written to their array between runs."""
    weight = np.ones(6, np.float32)
    view = weight.view()
    view.flags.writeable = False
    windows = np.lib.stride_tricks.sliding_window_view(weight, 6)
    through = np.frombuffer(memoryview(weight).toreadonly(), np.float32)
    for held in (view, np.broadcast_to(weight, (2, 6)), windows, through):
        x = tw.source(None, name="x", shape=(), dtype="float32")
        plan = tw.plan(tw.sum(tw.exp(tw.source(held))) + x)
        for value in (1, 2):
            weight[:] = value
            got = tw.run(plan, bind={"x": np.float32(1)})
            np.testing.assert_allclose(got, held.size * np.exp(np.float64(value)) + 1, rtol=1e-6)


def test_results_are_the_users_own() -> None:
    y, _ = mlp(np.random.default_rng(0))
    plan = tw.plan(y)
    first = tw.run(plan)
    kept = first.copy()
    first[:] = 7
    second = tw.run(plan)
    np.testing.assert_array_equal(second, kept)
    assert not np.shares_memory(first, second)


def test_bound_arrays_may_change_from_run_to_run_strides_included() -> None:
    rng = np.random.default_rng(1)
    y, (x, w, b, v) = mlp(rng)
    plan = tw.plan(y)
    for view in (x, x + 1, np.asfortranarray(x - 1), np.repeat(x, 2, 0)[::2], x[::-1], np.broadcast_to(x[:1], x.shape)):
        got = tw.run(plan, bind={"x": view})
        np.testing.assert_allclose(got, np.maximum(view @ w + b, 0) @ v, rtol=1e-4, atol=1e-5)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view("f4").reshape(x.shape)
    unaligned[:] = x
    np.testing.assert_allclose(tw.run(plan, bind={"x": unaligned}), np.maximum(x @ w + b, 0) @ v, rtol=1e-4, atol=1e-5)
    assert len(prepare(plan).extra["executables"]) <= 8


def test_results_are_written_where_the_caller_wants_them() -> None:
    y, (x, w, b, v) = mlp(np.random.default_rng(2))
    plan, want = tw.plan(y), np.maximum(x @ w + b, 0) @ v
    for out in (np.empty_like(want), np.asfortranarray(np.empty_like(want)), np.empty((64, 32), "f4")[:, ::2]):
        assert tw.run(plan, out=out) is out
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    out = np.empty_like(want)
    assert tw.run(tw.plan(y, machines=3), out=out) is out
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def test_an_output_may_share_memory_with_what_is_read() -> None:
    a = np.random.default_rng(3).standard_normal((300, 300))
    want = a @ a.T
    x = tw.source(a)
    assert tw.run(x @ tw.transpose(x), out=a) is a
    np.testing.assert_allclose(a, want)


@pytest.mark.parametrize("native", [True, False])
def test_arrays_that_differ_from_those_of_the_last_run_are_looked_at_anew(native: bool, monkeypatch) -> None:
    if not native:  # as on interpreters whose objects native code does not know
        monkeypatch.setattr(cpu_calls, "_takes_objects", lambda: False)
    x, y = (tw.source(name=f"{name}{native}", shape=(40, 50), dtype="float32") for name in "xy")
    plan, rng = tw.plan(x - y), np.random.default_rng(8)
    a, b = (rng.standard_normal((40, 50)).astype(np.float32) for _ in range(2))
    other = np.frombuffer(b.tobytes(), pickle.loads(pickle.dumps(b.dtype))).reshape(b.shape)
    assert other.dtype is not b.dtype
    out, shared = np.empty_like(a), np.zeros((41, 50), np.float32)
    read_only = b.copy()
    read_only.flags.writeable = False
    for array in (a, np.asfortranarray(a), a.tolist(), a[:, ::-1], other, read_only, a.view(np.recarray), shared[1:]):
        for into in (None, out, other if other.flags.writeable else None, shared[:40]):
            wanted = np.asarray(array, np.float32) - b
            got = tw.run(plan, bind={f"x{native}": array, f"y{native}": b}, threads=1, out=into)
            assert type(got) is np.ndarray and (into is None or got is into)
            np.testing.assert_array_equal(got, wanted)
    for bad in (a[:39], a.astype("f8"), "text", None):
        with pytest.raises((GraphError, DtypeError, RunError)):
            tw.run(plan, bind={f"x{native}": bad, f"y{native}": b}, threads=1)
    with pytest.raises(RunError, match="read-only"):
        tw.run(plan, bind={f"x{native}": a, f"y{native}": b}, threads=1, out=read_only)
    with pytest.raises(GraphError, match="no data"):
        tw.run(plan, bind={f"x{native}": a}, threads=1)


@pytest.mark.parametrize("native", [True, False])
def test_runs_leave_no_reference_to_what_was_bound(native: bool, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr(cpu_calls, "_takes_objects", lambda: False)
    x, y = (tw.source(name=f"{name}-{native}", shape=(40, 50), dtype="float32") for name in "xy")
    plan, rng = tw.plan(x - y), np.random.default_rng(9)
    a, b = (rng.standard_normal((40, 50)).astype(np.float32) for _ in range(2))
    key, other = f"x-{native}", "-".join(["x", str(native)])
    assert key == other and key is not other
    turned = np.asfortranarray(a)
    for bind in 3 * [{x: a, f"y-{native}": b}, {key: a, y: b}, {other: turned, y: b}, {y: b, key: a}]:
        tw.run(plan, bind=bind, threads=1)
        before = [sys.getrefcount(one) for one in (a, b, turned)]
        for _ in range(9):
            got = tw.run(plan, bind=bind, threads=1)
            np.testing.assert_array_equal(got, a - b)
            assert sys.getrefcount(got) == 2  # `got` and the argument
        assert [sys.getrefcount(one) for one in (a, b, turned)] == before
        for bad in ({**bind, "z": a}, dict(list(bind.items())[:1]), {y: b[:1], next(iter(bind)): a}):
            with pytest.raises(GraphError):
                tw.run(plan, bind=bad, threads=1)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("side", [6, 40])  # computed by NumPy, and by a kernel
def test_memory_that_is_shared_with_results_is_found_in_every_run(native: bool, side: int, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr(cpu_calls, "_takes_objects", lambda: False)
    rng, count = np.random.default_rng(17), side * side
    held = np.zeros(4 * count, np.float32)
    x = tw.source(name=f"x{native}{side}", shape=(side, side), dtype="float32")
    y = tw.source(held[: 2 * count : 2].reshape(side, side))
    plan = tw.plan([x - y, x * y])

    def anywhere() -> np.ndarray:
        start = int(rng.choice([0, count // 2, count - 1, count, 2 * count, int(rng.integers(3 * count))]))
        return held[start : start + count].reshape(side, side)

    for k in range(60):
        held[:] = rng.integers(-9, 9, held.size)
        given, out = anywhere(), [anywhere() if rng.random() < 0.7 else None for _ in range(2)]
        if all(one is not None for one in out) and np.may_share_memory(*out):
            out[0] = None
        wanted = given - y.producer.data.array, given * y.producer.data.array
        got = tw.run(plan, bind={f"x{native}{side}": given}, out=out)
        for one, into, value in zip(got, out, wanted, strict=True):
            assert into is None or one is into, (k, out)
            np.testing.assert_array_equal(one, value, err_msg=str(k))


@pytest.mark.parametrize(
    "out,problem",
    [
        (np.zeros(3), "cannot take a result"),
        (np.zeros((2, 2), "f4"), "cannot take a result"),
        ([np.zeros((2, 2)), None], "2 arrays are given"),
        (["x"], "str cannot take"),
        (np.broadcast_to(np.zeros(2), (2, 2)), "read-only"),
        (3, "int is no array"),
        ({0: np.zeros((2, 2))}, "dict is no array"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_before_work(out, problem) -> None:
    y = tw.exp(tw.source(np.ones((2, 2))))
    for _ in range(3):  # the first run, and further ones
        with pytest.raises(RunError, match=problem):
            tw.run(y, out=out)
        tw.run(y)


def test_runs_at_once_do_not_share_memory() -> None:
    y, (x, w, b, v) = mlp(np.random.default_rng(4))
    plan, wrong = tw.plan(y), []

    def work(shift: float) -> None:
        for _ in range(50):
            got = tw.run(plan, bind={"x": x + shift})
            want = np.maximum((x + shift) @ w + b, 0) @ v
            wrong.extend([] if np.allclose(got, want, rtol=1e-3, atol=1e-4) else [shift])

    threads = [threading.Thread(target=work, args=(np.float32(k),)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("seed", range(3))
def test_further_runs_at_once_with_outputs_threads_and_listeners_are_right(seed: int) -> None:
    """Of a plan and of a tensor: new results, given ones, ones over what is read, strides that change, listeners."""
    rng = np.random.default_rng([seed, 5])
    shape = tuple(int(n) for n in rng.integers(20, 90, 2))
    holes = [tw.source(name=name, shape=shape, dtype="int32") for name in "xy"]
    plan, wrong = tw.plan(holes[0] + holes[1] * 2), []
    arrays = [rng.integers(-99, 99, shape, np.int32) for _ in range(4)]
    held = tw.source(arrays[0]) + tw.source(arrays[1]) * 2

    def work(number: int) -> None:
        own = np.random.default_rng([seed, number])
        for _ in range(120):
            x, y = (arrays[k] for k in own.integers(0, 4, 2))
            how, threads = int(own.integers(0, 7)), int(own.integers(1, 3))
            wanted, out = x + y * 2, None
            if how == 0:
                x = np.asfortranarray(x)
            elif how == 1:
                x = out = x.copy()
            elif how == 2:
                out = np.empty(shape, np.int32)
            elif how == 3:
                out = np.empty(shape[::-1], np.int32).T
            if how == 4:
                wanted, out = arrays[0] + arrays[1] * 2, np.empty(shape, np.int32) if threads == 1 else None
                got = tw.run(held, out=out)
            else:
                listeners = [lambda event: None] if how == 5 else ()
                got = tw.run(plan, bind={"x": x, "y": y}, threads=threads, out=out, listeners=listeners)
            if not np.array_equal(got, wanted) or (out is not None and got is not out):
                wrong.append((number, how, threads))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, seed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_child_that_is_forked_during_a_run_finds_its_own_runs() -> None:
    x = np.arange(5000, dtype=np.float32)
    plan = tw.plan(tw.source(name="x", shape=x.shape, dtype="float32") * 2)
    for _ in range(3):
        tw.run(plan, bind={"x": x}, threads=1)
    *_, (_, executable) = direct.QUICK[id(plan)]
    with executable._first.claimed():
        child = os.fork()
        if not child:
            right = [np.array_equal(tw.run(plan, bind={"x": x}, threads=1), x * 2) for _ in range(3)]
            os._exit(0 if all(right) and not direct.QUICK[id(plan)][-1][1].running else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_a_further_run_finds_first_goes_with_what_was_run() -> None:
    """What another run refuses is refused behind a first one, too."""
    x = np.arange(6000, dtype=np.float32)
    tensor = tw.source(x) * 3 + 1
    for _ in range(3):
        np.testing.assert_array_equal(tw.run(tensor), x * 3 + 1)
    assert id(tensor) in direct.QUICK
    with pytest.raises(PlanError, match="machines"):
        tw.run(tw.plan(tensor), machines=2)
    with pytest.raises(GraphError, match="is not one source"):
        tw.run(tensor, bind={"z": x})
    with pytest.raises(RunError, match="cannot take a result"):
        tw.run(tensor, out=np.empty(6001, np.float32))
    read_only = np.zeros(6000, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(RunError, match="read-only"):
        tw.run(tensor, out=read_only)
    assert (tw.run(tensor, out=x) is x) and x[1] == 4
    number = id(tensor)
    del tensor
    gc.collect()
    assert number not in direct.QUICK


def test_a_failing_operator_is_named_and_the_next_run_is_right() -> None:
    failing = g.block_operator("test_direct_failing", lambda x: 1 / 0 if x[0] < 0 else x * 2)
    each = Projection.select((0,), 1)
    x = tw.source(np.ones(4), name="x")
    plan = tw.plan(failing({"x": (x, each)}, each, (4,), "float64", samples=0) + 1)
    with pytest.raises(RunError, match="test_direct_failing failed with ZeroDivisionError"):
        tw.run(plan, bind={"x": -np.ones(4)})
    np.testing.assert_array_equal(tw.run(plan), np.full(4, 3.0))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 9), st.integers(0, 9)), max_size=12), st.booleans())
def test_buffers_that_are_alive_together_lie_apart(buffers, many) -> None:
    buffers = [(size, min(a, b), max(a, b)) for size, a, b in buffers]
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(lower_values, "MANY_BUFFERS", 0)
        starts, total = place_in_time(buffers)
    for (s, one), (t, two) in combinations(zip(starts, buffers, strict=True), 2):
        meet = one[1] <= two[2] and two[1] <= one[2]
        assert not meet or s + one[0] <= t or t + two[0] <= s
    assert all(s % 64 == 0 and s + size <= total for s, (size, _, _) in zip(starts, buffers, strict=True))
    alive = [sum(size for size, a, b in buffers if a <= at <= b) for at in range(10)]
    assert total >= max(alive, default=0)


def test_many_equal_buffers_take_what_is_alive_at_once() -> None:
    chance = random.Random(3)
    buffers = [(640, at, at + chance.randrange(40)) for at in (chance.randrange(3000) for _ in range(5000))]
    _, total = place_in_time(buffers)
    ends = Counter(at for _, _, at in buffers)
    begins = Counter(at for _, at, _ in buffers)
    alive = accumulate(begins[at] - ends[at - 1] for at in range(3100))
    assert total == 640 * max(alive)


@pytest.mark.parametrize("objects", [True, False])
def test_many_tasks_of_a_few_kinds(monkeypatch, objects) -> None:
    """Shards that lie alike are called at other addresses: of blocks, sources, results, and of views by steps."""
    if not objects:
        monkeypatch.setattr(cpu_calls, "_takes_objects", lambda: False)
    rng = np.random.default_rng(11)
    x, w = tw.source(name="x", shape=(130, 24), dtype="float32"), tw.source(name="w", shape=(24, 16), dtype="float32")
    y = tw.exp(x * 0.5)
    z = tw.concat([y[65:], y[:65]], 0) + y[::-1]
    graph = g.Graph.of(tw.relu(z @ w), tw.tanh(z))
    grids = {operation: (26, *(1,) * (operation.index.rank - 1)) for operation in graph.operations}
    plan = Plan(graph, machines(1), steps_of(graph, grids, 1, lower.decide, io.atom))
    for seed in range(3):
        given = rng.standard_normal((130, 24), np.float32), rng.standard_normal((24, 16), np.float32)
        got = tw.run(plan, bind=dict(zip("xw", given, strict=True)))
        y = np.exp(given[0] * np.float32(0.5))
        z = np.concatenate([y[65:], y[:65]]) + y[::-1]
        for one, expected in zip(got, (np.maximum(z @ given[1], 0), np.tanh(z)), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5, err_msg=str(seed))
    (made,) = executables(plan)
    assert made.kernels > 100
    assert not made.python_steps


def test_the_planned_memory_holds_without_listeners() -> None:
    x = tw.source(np.ones((512, 512)))
    y = x
    for _ in range(12):
        y = tw.exp(y @ x)
    plan = tw.plan(y)
    tw.run(plan)
    (made,) = executables(plan)
    assert made.arena_bytes <= plan.peak_bytes[0]
    assert made.kernels == 24


def test_a_number_between_kernels_is_read_after_it_was_made() -> None:
    x = np.random.default_rng(5).random((256, 300))
    y = tw.source(x, name="x")
    plan = tw.plan(g.matmul(y / tw.sum(g.max(y, 0) * 1), np.ones((300, 4))))
    for scale in (1, 2, 3):
        want = (x * scale) / (x * scale).max(0).sum() @ np.ones((300, 4))
        np.testing.assert_allclose(tw.run(plan, bind={"x": x * scale}), want, rtol=1e-12)
    total = g.sum(y)
    plan = tw.plan(g.exp(g.absolute(g.einsum("ij,k->k", y, np.ones(300)) * 1e-5)) + total)
    for scale in (1, 2, 3):
        got = tw.run(plan, bind={"x": x * scale})
        np.testing.assert_allclose(got, np.exp(np.full(300, (x * scale).sum() * 1e-5)) + (x * scale).sum(), rtol=1e-12)


@pytest.mark.parametrize("bound", [(), (0,), (1,), (0, 1)])
def test_views_of_sources_are_stored_and_computed_with(bound: tuple[int, ...]) -> None:
    arrays = [np.arange(24.0).reshape(2, 12), np.arange(24.0, 48.0).reshape(2, 12)]
    h, k = (tw.source(a, name=n) for a, n in zip(arrays, "hk", strict=True))
    a, b = (array * 3 if place in bound else array for place, array in enumerate(arrays))

    def views(x, y, of):
        seen = [x[:, 9:], x[::-1, 3:9:2], of.transpose(y), of.broadcast_to(y[:1, 2:3], (4, 5)), y[1]]
        return [x * 2, *seen, x[:, 2:] + y[:, :10], of.transpose(x[:, :2]) @ y, of.concatenate([x[:, :3], y], 1)]

    class Numpy:
        transpose, broadcast_to, concatenate = np.transpose, np.broadcast_to, np.concatenate

    class Graph:
        transpose, broadcast_to = staticmethod(tw.transpose), staticmethod(tw.broadcast_to)
        concatenate = staticmethod(tw.concat)

    plan = tw.plan(views(h, k, Graph))
    for _ in range(2):
        got = tw.run(plan, bind={"hk"[place]: arrays[place] * 3 for place in bound})
        for one, want in zip(got, views(a, b, Numpy), strict=True):
            np.testing.assert_array_equal(one, want)


@pytest.mark.parametrize("name", ["column sum", "row maximum", "product", "chain"])
def test_several_machines_in_one_process_run_the_kernels_of_one(name: str) -> None:
    """Column panels of a long array took up to three times as long as the whole."""
    x = np.random.default_rng(0).random((512, 256), dtype=np.float32)
    make = {
        "column sum": lambda t: tw.sum(t, 0),
        "row maximum": lambda t: tw.max(t, 1),
        "product": lambda t: tw.relu(t @ x.T),
        "chain": lambda t: tw.exp(t) * 2.0 - t,
    }[name]
    one, four = (tw.plan(make(tw.source(x)), count) for count in (1, 4))
    assert four.steps[0].cuts.count > 1
    np.testing.assert_array_equal(tw.run(four), tw.run(one))
    (apart,), (whole,) = executables(four), executables(one)
    assert apart.kernels == whole.kernels and apart.arena_bytes == whole.arena_bytes


def test_a_plan_that_compiles_much_has_no_step_in_python() -> None:
    """Steps on few elements would interrupt a training step of a small network: a loss, biases of ten elements."""
    rng = np.random.default_rng(5)
    shapes = {"x": (32, 64), "t": (32, 10), "w1": (64, 96), "b1": (96,), "w2": (96, 10), "b2": (10,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    p = {name: tw.source(name=name, shape=shape, dtype="float32") for name, shape in shapes.items()}
    hidden = tw.relu(tw.linear(p["x"], p["w1"], p["b1"]))
    loss = -tw.mean(tw.sum(tw.log_softmax(tw.linear(hidden, p["w2"], p["b2"])) * p["t"], axis=1))
    weights = ["w1", "b1", "w2", "b2"]
    new = [p[name] - 0.05 * slope for name, slope in zip(weights, tw.grad(loss, [p[n] for n in weights]), strict=True)]
    plan = tw.plan([loss, *new])
    expected = tw.run(tw.plan([loss, *new], fuse=False), bind=arrays)
    got = tw.run(plan, bind=arrays, out=[None, *(arrays[name] for name in weights)])
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    (found,) = executables(plan)
    assert not found.python_steps and not found._actions
    alone = tw.plan(tw.sum(tw.source(np.ones((4, 4))), 0))
    assert all(not step.kernel.backend for step in alone.steps)  # compiling would not pay


def test_a_chain_of_stencils_makes_each_step_where_the_next_reads_it() -> None:
    wide, steps = (40, 1024), 6
    kernel = np.array([[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]], np.float32)
    start = tw.source(name="start", shape=wide, dtype="float32")
    field = start
    for _ in range(steps):
        field = g.stencil(field, kernel)
    plan = tw.plan(field)
    rng = np.random.default_rng(3)
    for _ in range(2):  # what lies around a step is zero in the second run too
        array = rng.standard_normal(wide, dtype=np.float32)
        wanted = array.astype(np.float64)
        for _ in range(steps):
            w = np.pad(wanted, 1)
            wanted = 0.2 * (w[:-2, 1:-1] + w[2:, 1:-1] + w[1:-1, :-2] + w[1:-1, 2:] + wanted)
        np.testing.assert_allclose(tw.run(plan, bind={"start": array}), wanted, rtol=1e-5, atol=1e-5)
    (kept,) = executables(plan)
    padded = 4 * (wide[0] + 2) * (wide[1] + 2)
    assert kept.kernels == steps and kept.arena_bytes <= 2.1 * padded


@pytest.mark.parametrize("shape", [(2, 12, 5, 7), (1, 24, 30, 20), (3, 16, 31, 16)])
def test_reshapes_between_kernels_are_views(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(shape)
    x, w = rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(shape[1], dtype=np.float32)
    given = tw.source(shape=shape, dtype="float32", name="x")
    plan = tw.plan(tw.nn.group_norm(given, 4, w, w), machines=tw.machines(1))
    rows = x.astype("f8").reshape(shape[0], 4, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    wanted = rows.reshape(shape) * w[:, None, None] + w[:, None, None]
    for threads in (1, 2):
        for array in (x, np.asfortranarray(x), x.copy()):
            np.testing.assert_allclose(tw.run(plan, bind={"x": array}, threads=threads), wanted, atol=2e-5)
    prepared = prepare(plan)
    (held, *_) = (idle.kept()[0] for key, idle in prepared.extra["executables"].items() if key[1][1] == x.strides)
    assert held.kernels == 2 and held.python_steps == 0


@pytest.mark.parametrize("seed", range(12))
def test_steps_of_few_elements_give_the_bits_of_the_definition_in_every_run(seed: int) -> None:
    """What NumPy computes lies at places that later steps share, and write over; also in a result that is given."""
    rng = np.random.default_rng([seed, 71])
    shape = tuple(int(n) for n in rng.integers(2, 11, 2))
    dtype = ("float32", "float64", "int32", "bool")[seed % 4]
    held = tw.source(shape=shape, dtype=dtype, name="x")
    x = held * 1 if dtype == "bool" else held
    low, total = tw.min(x, axis=0), tw.sum(x, axis=1, keepdims=True)
    y = (x - low) * 2 + total
    outputs = [tw.maximum(y, total) - tw.max(y), tw.sum(y, axis=0) * low, y * y + tw.sum(x, axis=1, keepdims=True)]
    plan = tw.plan(outputs)
    assert all(not step.kernel.backend for step in plan.steps)
    given = [(rng.standard_normal(shape) * 4).astype(dtype) for _ in range(3)]
    wanted = [g.evaluate(outputs, {held.producer: array}) for array in given]
    for k in (0, 1, 2, 0):
        for out in (None, [np.empty(one.shape, one.dtype) for one in wanted[k]]):
            for one, right in zip(tw.run(plan, bind={"x": given[k]}, out=out), wanted[k], strict=True):
                np.testing.assert_array_equal(one, right)
