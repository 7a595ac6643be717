"""Machines of unlike rates and sizes have parts of unlike lengths; costs still equal counting, values stay."""

import random
import re

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.planner import Machine, Machines, load, make_plan, simulate
from tileweave.planner.placement import nested_bounds, part_bounds


def decide(operation, stage):
    return Decision(stage)


def unlike(*rates, memory=1 << 30, **more):
    """Machines that compute so many Gflop/s; a memory for all, or one for each."""
    sizes = [memory] * len(rates) if isinstance(memory, int) else memory
    rows = zip(rates, sizes, strict=True)
    return Machines(tuple(Machine(f"m{k}", size, 1, rate * 1e9) for k, (rate, size) in enumerate(rows)), **more)


@pytest.mark.parametrize("seed", range(60))
def test_parts_are_in_proportion_and_nest(seed):
    chance = random.Random(seed)
    extents = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
    strides = [int(np.prod(extents[k + 1 :])) for k in range(len(extents))]
    digits, count = tuple(zip(extents, strides, strict=True)), int(np.prod(extents))
    weights = tuple(chance.choice([1, 1, 5, 100, 1024]) for _ in range(count))
    extent = chance.randint(count, 5000)
    edges = part_bounds(extent, digits, weights, 3)
    lengths = np.diff(edges)
    assert (edges[0], edges[-1], len(lengths)) == (3, 3 + extent, count) and lengths.min() >= 1
    ideal = extent * np.asarray(weights) / sum(weights)
    assert (np.abs(lengths - np.maximum(ideal, 1)) <= count + 1).all(), (lengths, ideal)
    outer = part_bounds(extent, digits[:1], weights, 3)
    assert set(outer.tolist()) <= set(edges.tolist())  # what two operations cut alike has common boundaries
    np.testing.assert_array_equal(part_bounds(extent, digits, (), 3), nested_bounds(extent, tuple(extents), 3))


@pytest.mark.parametrize("rates", [(100, 50, 50, 10), (30, 90), (1, 1, 1, 1, 20)])
def test_a_product_is_shared_by_the_rates_of_the_machines(rates):
    a, b = (tw.source(name=n, shape=(2048, 2048), dtype="float32") for n in "ab")
    used = unlike(*rates, link_bytes_per_second=1e12, link_seconds=1e-9, storage_bytes_per_second=1e12)
    plan = tw.plan(a @ b, used)
    flops = simulate(plan).loads[0].flops / np.asarray(rates)
    assert flops.max() <= 1.1 * plan.flops / sum(rates), plan.explain()
    again = tw.plan(a @ b, unlike(*[sum(rates) / len(rates)] * len(rates)))
    assert all(not step.where.weights for step in again.steps)


def test_values_stay_and_plans_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    x, v, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(210, 96), (96, 130), (130, 50)])
    sx = tw.source(name="x", shape=x.shape, dtype="float32")
    y = tw.sum(tw.relu(sx @ v) @ w, 0)
    plan = tw.plan(y, unlike(0.1, 0.007, 0.05, link_seconds=1e-9, task_seconds=1e-9))
    assert any(step.where.weights for step in plan.steps) and "by weights" in plan.steps[0].where.text()
    assert re.search(r"/3 \(\d+, \d+, \d+\)", plan.explain())
    want = (np.maximum(x @ v, 0) @ w).sum(0)
    events = []
    for listeners in ([], [events.append]):  # as one executable, and task by task
        np.testing.assert_array_equal(tw.run(plan, bind={"x": x}, listeners=listeners), want)
    plan.save(str(tmp_path / "plan.json"))
    assert load(str(tmp_path / "plan.json"), plan.graph) == plan


def test_a_machine_with_little_memory_has_a_small_part():
    """Equal parts of 100 MiB would need 25 MiB on each of four machines, of which two have 12."""
    x = g.Tensor(g.Source(g.Hole("x"), g.TensorType((25 << 10, 1 << 10), "float32"), "x"))
    graph = g.Graph.of(g.relu(x))
    small = unlike(50, 50, 50, 50, memory=[60 << 20, 60 << 20, 12 << 20, 12 << 20])
    plan = make_plan(graph, small, decide)
    assert all(peak <= machine.memory_bytes for peak, machine in zip(plan.peak_bytes, small.machines, strict=True))
    with pytest.raises(PlanError, match="least"):
        make_plan(graph, unlike(50, 100, memory=64), decide)
