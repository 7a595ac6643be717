"""Tasks bound in columns, against the evaluator: random graphs in random plans, sources that are written over."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from plans import random_plan, rows_plan
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.lower import binding
from tileweave.lower.tasks.places import BlockPlaces
from tileweave.planner import Plan, machines
from tileweave.planner.steps import steps_of
from tileweave.runtime import run_plan
from tileweave.runtime.direct import OFTEN
from tileweave.runtime.io import files as io
from tileweave.runtime.prepare import prepare

SEED = 20261127


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all plans bound in columns, however few their tasks."""
    monkeypatch.setattr(binding, "FEW", 1)
    monkeypatch.setattr(import_module("tileweave.lower.execute"), "MANY_COMBINED", 1)


def bound(plan: Plan) -> list:
    """The executables of a plan whose tasks are in columns."""
    kept = prepare(plan).extra.get("executables", {}).values()
    return [one for idle in kept for one in idle.kept() if one.in_columns]


def of_random(seeds: range, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Runs random plans, some without room for blocks to lie together; (those in columns, calls of kernels)."""
    found = kernels = 0
    monkeypatch.setattr(lower, "decide", partial(lower.decide, small=True))
    for seed in seeds:
        rng = np.random.default_rng(seed)
        room = {"room": 0} if seed % 3 == 0 else {}
        monkeypatch.setattr(binding, "BlockPlaces", lambda *a, own=room: BlockPlaces(*a[:-1], own.get("room", a[-1])))
        dtype = ("int64", "int32", "float32", "float64")[seed % 4]
        values = random_graph(seed, dtype)
        tensors = [value.tensor for value in values]
        plan = random_plan(g.Graph.of(*tensors), machines(1 + seed % 4), rng)
        wanted = g.evaluate(tensors)
        for turn in range(3):
            out = [np.full(one.shape, 7, one.dtype) for one in wanted] if turn == 2 else None
            got = run_plan(plan, threads=1 + turn % 2, out=out)
            for k, (value, one, expected) in enumerate(zip(values, got, wanted, strict=True)):
                assert (one.shape, one.dtype) == (expected.shape, expected.dtype)
                eps = float(np.finfo(expected.dtype).eps) if expected.dtype.kind == "f" else 0
                np.testing.assert_allclose(one, expected, rtol=0, atol=8 * eps * (value.error + 1), err_msg=str(seed))
                assert out is None or one is out[k]
        made = bound(plan)
        found += len(made)
        kernels += sum(one.kernels for one in made)
    return found, kernels


def test_random_plans_in_columns_compute_what_the_graph_means(monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED)
    found, kernels = of_random(range(SEED, SEED + 30), monkeypatch)
    assert found > 15 and kernels > 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_plans_in_columns_compute_what_the_graph_means(monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED + 100)
    found, kernels = of_random(range(SEED + 100, SEED + 400), monkeypatch)
    assert found > 150 and kernels > 3000


def cut(tensor: g.Tensor, grid: tuple[int, ...]) -> Plan:
    """A plan for one machine that cuts every operation alike."""
    graph = g.Graph.of(tensor)
    grids = {o: grid[: o.index.rank] + (1,) * (o.index.rank - len(grid)) for o in graph.operations}
    return Plan(graph, machines(1), steps_of(graph, grids, 1, lower.decide, io.atom))


def fields() -> dict[str, object]:
    """What is computed of two matrices of 64 x 96."""
    return {
        "one by one": lambda a, b: tw.exp(a * 0.5) + b,
        "neighbours": lambda a, b: tw.exp(a)[1:-1] + tw.exp(a)[2:] * b[:-2],
        "put together": lambda a, b: tw.exp(tw.concat([tw.exp(a)[5:], b[:5]], 0)),
        "turned": lambda a, b: tw.exp(tw.transpose(tw.exp(a))) + tw.transpose(b),
        "backwards": lambda a, b: tw.exp(tw.exp(a)[::-1]) + b,
        "product": lambda a, b: tw.exp(a) @ tw.transpose(b),
        "stored apart": lambda a, b: tw.concat([tw.exp(a), b, tw.exp(b)[:, ::-1]], 0),
        "rows": lambda a, b: tw.sum(tw.exp(a), 1) + tw.max(b, 1),
        "constants": lambda a, b: tw.exp(tw.pad(tw.exp(a), [(2, 3), (0, 0)])) + tw.pad(b, [(5, 0), (0, 0)]),
    }


@pytest.mark.parametrize("grid", [(16,), (8, 6), (13, 5)])
@pytest.mark.parametrize("name", fields())
def test_bound_arrays_and_results_are_read_and_written_where_they_lie(name: str, grid: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    a, b = (tw.source(name=one, shape=(64, 96), dtype="float32") for one in "ab")
    result = fields()[name](a, b)
    plan = cut(result, grid)
    arrays = [rng.standard_normal((64, 96)).astype(np.float32) for _ in range(4)]
    for x, y in ((arrays[0], arrays[1]), (arrays[2], arrays[3]), (np.asfortranarray(arrays[0]), arrays[1][::-1])):
        wanted = g.evaluate([fields()[name](tw.source(x), tw.source(y))])[0]
        for out in (None, np.zeros(result.shape, np.float32)):
            got = tw.run(plan, bind={"a": x, "b": y}, out=out)
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    assert bound(plan)


@pytest.mark.parametrize("name", ["one by one", "neighbours", "backwards", "stored apart"])
def test_donated_arrays_in_columns_are_written_over_where_nothing_is_read_afterwards(name: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (tw.source(name=one, shape=(64, 96), dtype="float32") for one in "ab")
    result = fields()[name](a, b)
    plan = cut(result, (8, 6))
    for donated in "ab":
        arrays = {one: rng.standard_normal((64, 96)).astype(np.float32) for one in "ab"}
        wanted = tw.run(plan, bind={one: array.copy() for one, array in arrays.items()})
        if wanted.shape == (64, 96):
            assert tw.run(plan, bind=arrays, out=arrays[donated]) is arrays[donated]
            np.testing.assert_array_equal(arrays[donated], wanted)
    over = {"one by one": {0}, "backwards": {0}}  # b is read when its place holds what a became
    kept = bound(plan)  # one for donated arrays, and where others came last as well, one for these
    assert len(kept) == 1 + (wanted.shape == (64, 96)) and all(
        one.apart.over[0] == over.get(name, set()) for one in kept
    )


def test_many_tasks_cost_no_object_each() -> None:
    x = tw.source(np.arange(3000 * 256, dtype=np.float32).reshape(3000, 256))
    plan = rows_plan(tw.sqrt(x), machines(1), 3000)
    np.testing.assert_allclose(run_plan(plan)[0], np.sqrt(x.producer.data.array), rtol=1e-6)
    assert len(prepare(plan).tasks._made) < 20 and bound(plan)[0].kernels == 3000


@pytest.mark.parametrize("work", ["product", "biased", "sum", "max", "least", "narrow"])
def test_partial_results_are_combined_in_columns_to_the_same_bits(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    dtype = "float16" if work == "narrow" else "float32"
    a, b = (tw.source(rng.standard_normal((24, 60)).astype(dtype)) for _ in "ab")
    bias = tw.source(rng.standard_normal(24).astype(dtype))
    results = {
        "product": lambda: a @ tw.transpose(b),
        "biased": lambda: g.linear(a, tw.transpose(b), bias),
        "sum": lambda: tw.sum(a * b, 1),
        "max": lambda: tw.max(a, 1) * 2,
        "least": lambda: tw.min(b, 0),
        "narrow": lambda: tw.sum(a, 0),
    }
    graph = g.Graph.of(results[work]())
    grids = {o: tuple(min(n, 4) for n in o.index.shape) for o in graph.operations}
    plan = Plan(graph, machines(64), steps_of(graph, grids, 64, lower.decide, io.atom))
    assert any(step.stage == "combine" for step in plan.steps)
    got = run_plan(plan)[0]
    (made,) = bound(plan)
    assert not made.python_steps or any(not step.kernel.backend for step in plan.steps if step.stage == "block")
    prepare(plan).extra.clear()
    monkeypatch.setattr(import_module("tileweave.lower.execute"), "MANY_COMBINED", 1 << 40)
    np.testing.assert_array_equal(run_plan(plan)[0], got)


@pytest.mark.parametrize("threads", [1, 2])
def test_combinations_are_code_after_many_runs_to_the_same_bits(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tileweave.lower.execute"), "MANY_COMBINED", 256)
    x = tw.source(name="x", shape=(300, 40), dtype="float32")
    array = np.random.default_rng(10).standard_normal((300, 40)).astype(np.float32)
    graph = g.Graph.of(tw.sum(x, 0))
    grids = {o: tuple(min(n, 5) for n in o.index.shape) for o in graph.operations}
    plan = Plan(graph, machines(25), steps_of(graph, grids, 25, lower.decide, io.atom))
    found, steps = [], []
    for _ in range(OFTEN + 5):
        found.append(tw.run(plan, bind={"x": array}, threads=threads))
        kept = prepare(plan).extra["executables"].values()
        steps.append([one.python_steps for idle in kept for one in idle.kept()])
    assert steps[0] == [5] and steps[-1] == [0]
    assert all((one == found[0]).all() for one in found)
    np.testing.assert_allclose(found[0], array.sum(0), rtol=1e-4, atol=1e-4)
