"""Stores in larger blocks than the waves of what they store trail behind, and hold no more than they need."""

import random
from collections import Counter

import numpy as np
import pytest
from tests.planner.test_cost import agrees

import tileweave as tw
import tileweave.graph as g
from tileweave.lower import decide
from tileweave.planner.machine import machines
from tileweave.planner.plan import Plan
from tileweave.planner.steps import Waves, steps_of
from tileweave.planner.streams import issue_order, streams
from tileweave.planner.tasks import tasks


@pytest.mark.parametrize("seed", range(40))
def test_blocks_are_written_as_soon_as_they_are_made(seed, tmp_path):
    chance = random.Random(seed)
    rows, columns, count = chance.randint(20, 300), chance.randint(1, 5), chance.randint(1, 4)
    x = g.as_tensor(np.ones((rows, columns)))
    value = g.tanh(x * 2.0)
    total = g.sum(value, 1)
    graph = g.Graph.of(tw.sink(value, tmp_path / "a.zarr"), tw.sink(g.exp(total), tmp_path / "b.zarr"))
    atom, other = chance.randint(1, rows), chance.randint(1, rows)
    waves = Waves(chance.choice([1, 2, 3, 7, 16]))
    grids = {op: (chance.choice([count, 1]), *(1 for _ in op.index.shape[1:])) for op in graph.operations}
    steps = steps_of(
        graph, grids, count, decide, lambda sink: (atom, columns) if len(sink.tensor.shape) == 2 else (other,), waves
    )
    plan = Plan(graph, machines(count), steps)
    agrees(plan)
    assert all(before < task.number for task in tasks(plan) for before in task.needs)
    issued = Counter(zip(*(column.tolist() for column in issue_order(steps)), strict=True))
    assert set(issued.values()) == {1}
    assert len(issued) == sum(len(list(step.cuts)) for step in steps)


def test_two_files_of_one_stream_need_no_whole_result(tmp_path):
    """Chunks of the first hold several waves; the second needs what the first writes."""
    rng = np.random.default_rng(0)
    x, w = rng.random((300_000, 32), np.float32), rng.random((32, 8), np.float32)
    np.save(tmp_path / "x.npy", x)
    y = tw.source(tmp_path / "x.npy") @ w
    sinks = [tw.sink(y, tmp_path / "y.zarr"), tw.sink(tw.argmax(y, 1), tmp_path / "k.zarr")]
    plan = tw.plan(sinks, tw.machines(1, memory="9MiB"))  # the first file alone has 9.2
    assert any(stream.trailing for stream in streams(plan.steps))
    assert max(plan.peak_bytes) <= 9 << 20
    tw.run(plan)
    written = tw.run(tw.source(tmp_path / "y.zarr"))
    np.testing.assert_allclose(written, x @ w, rtol=1e-5)
    np.testing.assert_array_equal(tw.run(tw.source(tmp_path / "k.zarr")), written.argmax(1))
