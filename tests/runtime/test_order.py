"""Sequence points are a strict happens-before: through sharding, rewriting and both runtimes, by the clock."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

import numpy as np
import pytest
from plans import random_plan

from tileweave import graph as g
from tileweave.graph.ops.operators import OPERATORS, Operator, register
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import RULES
from tileweave.planner import machines
from tileweave.runtime import run_plan
from tileweave.space import Projection

Array = np.ndarray[Any, Any]


def _clocked(operation: g.Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    start = monotonic_ns()
    sleep(operation.parameter("milliseconds") / 1e3)
    path = Path(operation.parameter("folder")) / f"{operation.parameter('label')}-{operation.index.start[0]}"
    out = inputs["x"] + 1
    path.write_text(f"{start} {monotonic_ns()}")
    return {"out": out}


if "test_clocked" not in OPERATORS:
    register(Operator("test_clocked", _clocked))


def clocked(x: g.Tensor, label: str, folder: Path, milliseconds: int, *after: g.SequencePoint) -> g.Tensor:
    """``x + 1``; each shard leaves the times at which it began and ended."""
    rank = x.ndim
    same = Projection.select(range(rank), rank)
    signature = g.Signature(tuple("ijk"[:rank]), (("x", same),), (("out", same),), costs=(("flops", 1e6),))
    parameters = (("label", label), ("folder", str(folder)), ("milliseconds", milliseconds))
    made = g.Operation("test_clocked", x.type.box, (("x", x),), (("out", x.type),), parameters, signature, after)
    return g.Tensor(made)


def in_order(folder: Path) -> g.Graph:
    """Three stages that no value joins: only sequence points say that one comes after another."""
    x = g.as_tensor(np.arange(48.0).reshape(12, 4))
    first = clocked(x, "first", folder, 25)
    point = g.SequencePoint((first.producer,))
    second = clocked(x * 2, "second", folder, 15, point)
    stored = g.SequencePoint((g.Sink(second, g.MemoryTarget()),))
    third = clocked(x * 3, "third", folder, 0, stored)
    return g.Graph.of(third, clocked(x * 5, "free", folder, 0))


def times(folder: Path, label: str) -> list[tuple[int, int]]:
    found = [path.read_text().split() for path in folder.glob(f"{label}-*")]
    assert found, f"{label} never ran"
    return [(int(start), int(end)) for start, end in found]


def check_order(folder: Path) -> None:
    stages = [times(folder, label) for label in ("first", "second", "third")]
    for before, after in pairwise(stages):
        assert max(end for _, end in before) <= min(start for start, _ in after)


def check_values(results: list[Any]) -> None:
    x = np.arange(48.0).reshape(12, 4)
    np.testing.assert_array_equal(results[0], x * 3 + 1)
    np.testing.assert_array_equal(results[1], x * 5 + 1)


@pytest.mark.parametrize("seed", range(4))
def test_threads_keep_the_order(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    graph = in_order(tmp_path)
    if seed % 2:
        whole, cuts = graph, {o: g.partition(o, (3, 1)) for o in graph.operations}
        graph = g.verify(g.expand(whole, cuts))
        g.check_sharding(graph, whole)
    graph = rewrite(graph, [*RULES.values()], passes=3).graph
    check_values(run_plan(random_plan(graph, machines(4, memory="1GiB"), rng), threads=4))
    check_order(tmp_path)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_keeps_the_order(tmp_path: Path) -> None:
    plan = random_plan(in_order(tmp_path), machines(3, memory="1GiB"), np.random.default_rng(1))
    check_values(run_plan(plan, runtime="ray", threads=2))
    check_order(tmp_path)


def test_every_shard_waits_for_every_shard(tmp_path: Path) -> None:
    """In the written-out graph: the point holds all shards, and each later shard comes after it."""
    graph = in_order(tmp_path)
    sharded = g.expand(graph, {o: g.partition(o, (4, 2)) for o in graph.operations})
    by_label: dict[str, list[g.Operation]] = {}
    for operation in sharded.operations:
        if operation.operator == "test_clocked":
            by_label.setdefault(operation.parameter("label"), []).append(operation)
    assert {label: len(shards) for label, shards in by_label.items()} == dict.fromkeys(by_label, 8)
    for operation in by_label["second"]:
        (point,) = operation.after
        assert set(point.before) == set(by_label["first"])
    assert g.coalesce(sharded) is graph


def test_rewrites_leave_what_is_ordered(tmp_path: Path) -> None:
    """Whatever rules are applied, what a point holds and what comes after one stays as it is."""
    x = g.as_tensor(np.arange(12.0).reshape(3, 4))
    held = g.relu(x + 1)
    point = g.SequencePoint((held.producer, g.negative(held).producer))
    late = replace(g.add(held, 2.0).producer, after=(point,))
    graph = g.Graph.of(g.negative(g.negative(g.Tensor(late))) * 1.0, g.relu(g.Tensor(late)))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rules = [list(RULES.values())[k] for k in rng.permutation(len(RULES))]
        done = rewrite(graph, rules, passes=3, choose=lambda found, rng=rng: int(rng.integers(-1, len(found))))
        order = list(done.graph.operations)
        (after,) = {o for o in done.graph.operations if o.after}
        assert after.operator == "add" and len(after.after) == 1
        assert [o.operator for o in after.after[0].before] == ["relu", "negative"]
        assert all(order.index(before) < order.index(after) for before in after.after[0].before)
        got = g.evaluate([s.tensor for s in done.graph.sinks])
        for one, other in zip(got, g.evaluate([s.tensor for s in graph.sinks]), strict=True):
            np.testing.assert_array_equal(one, other)
