"""Units: rows of tasks that travel together. The oracle is the graph's meaning; units run here one after the other."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from counted import task_cost
from plans import random_plan, rows_plan
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.errors import PlanError
from tileweave.planner import Plan, machines, movements, with_margins
from tileweave.planner.show.exchange import margined
from tileweave.planner.simulate import costed
from tileweave.planner.steps import steps_of
from tileweave.planner.tasks import margins, tasks
from tileweave.runtime.io import files as io
from tileweave.runtime.local import storing
from tileweave.runtime.prepare import Prepared, prepare, with_tasks
from tileweave.runtime.ray import units as units_module
from tileweave.runtime.ray.units import Unit, units
from tileweave.runtime.ray.worker import run_unit
from tileweave.runtime.resume import remaining
from tileweave.runtime.run import _open_destinations, _opened_sources

ROOM = 1 << 40


def run_units(prepared: Prepared, made: tuple[Unit, ...]) -> list[Any]:
    """What workers and driver do, without a cluster: each unit sees its arguments and nothing else."""
    gave: dict[tuple[int, Any], Any] = {}
    done: set[int] = set()
    with _opened_sources(prepared, {}) as sources:
        _, destinations, _ = _open_destinations(prepared, None, None)
        for number, unit in enumerate(made):
            assert set(unit.needs) <= done
            arguments = [gave[a] if a[0] >= 0 else sources[-1 - a[0]](a[1]) for a in unit.arguments]
            if unit.stores:
                (task,) = unit.tasks
                blocks = [None, *arguments]
                holds = lambda piece, blocks=blocks: None if piece.constant else blocks[piece.task]  # noqa: E731
                storing(task)(holds, destinations[prepared.sink(task)])
            else:
                results, _ = run_unit(unit, prepared.steps, arguments, 1)
                gave.update(zip(unit.results, results, strict=True))
            done.add(number)
    return [destination.value for destination in destinations]


def of_random(seed: int, dtype: str = "int64") -> tuple[Any, list[Any]]:
    tensors = [value.tensor for value in random_graph(seed, dtype)]
    tensors = list(dict.fromkeys(tensors))
    plan = random_plan(g.Graph.of(*tensors), machines(3, memory="1GiB"), np.random.default_rng(seed))
    return plan, tensors


def test_units_hold_every_task_once_and_compute_what_the_graph_means() -> None:
    for seed in range(15):
        plan, tensors = of_random(seed)
        prepared, made = units(prepare(plan), [ROOM] * 3)
        assert sorted(task.number for unit in made for task in unit.tasks) == list(range(plan.tasks))
        assert all(len({task.machine for task in unit.tasks}) == 1 for unit in made)
        for got, expected in zip(run_units(prepared, made), g.evaluate(tensors), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_no_task_waits_for_more_than_the_first_of_its_unit() -> None:
    for seed in range(15):
        plan, _ = of_random(seed)
        _, made = units(prepare(plan), [ROOM] * 3)
        home = {task.number: k for k, unit in enumerate(made) for task in unit.tasks}
        before: list[set[int]] = []
        for k, unit in enumerate(made):
            direct = [{home[n] for n in task.needs} - {k} for task in unit.tasks]
            first = set().union(direct[0], *(before[u] for u in direct[0]))
            assert all(waits <= first for waits in direct)
            before.append(first)


def test_a_chain_on_one_machine_is_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    y = g.softmax(g.relu(g.matmul(np.ones((64, 32)), np.ones((32, 16))) + 1))
    plan = rows_plan(y, machines(4, memory="1GiB"), 4)
    _, made = units(prepare(plan), [ROOM] * 4)
    assert [unit.stores for unit in made].count(False) == 4
    kernels = [unit for unit in made if not unit.stores]
    assert all(sum(g.whole for g in unit.gives) == 1 and not any(g.parts for g in unit.gives) for unit in kernels)
    assert all(unit.out_bytes == 16 * 16 * 8 for unit in kernels)
    monkeypatch.setattr(units_module, "UNIT_SECONDS", 0.0)
    monkeypatch.setattr(units_module, "PASSED_BYTES_PER_SECOND", 1e30)
    assert all(len(unit.tasks) == 1 for unit in units(prepare(plan), [ROOM] * 4)[1])


def test_what_takes_longer_to_pass_on_than_to_use_stays_in_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where work is long and passing on slow, a task joins the row whose blocks nobody else reads, and no other."""
    monkeypatch.setattr(units_module, "UNIT_SECONDS", 0.0)
    monkeypatch.setattr(units_module, "PASSED_BYTES_PER_SECOND", 1e-3)
    grown = 0
    for seed in range(15):
        plan, tensors = of_random(seed)
        prepared = prepare(plan)
        prepared, made = units(prepared, [ROOM] * 3)
        for unit in made:
            inside = {task.number for task in unit.tasks}
            for task in unit.tasks[:-1]:
                readers = {other.number for other in prepared.tasks if task.number in other.needs}
                assert readers <= inside or not prepared.steps[unit.tasks[-1].step].costs.seconds
            grown += len(unit.tasks) > 1
        for got, expected in zip(run_units(prepared, made), g.evaluate(tensors), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert grown > 20


def test_only_the_part_that_is_read_crosses_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 0.0)
    x = g.as_tensor(np.arange(4000.0)) + 1
    halo = x[1:-1] + x[2:] + x[:-2]
    plan = rows_plan(halo, machines(4, memory="1GiB"), 4)
    prepared, made = units(prepare(plan), [ROOM] * 4)
    crossing = [region.size for unit in made for gives in unit.gives for _, region in gives.parts]
    assert crossing
    assert sum(crossing) < 40
    np.testing.assert_array_equal(run_units(prepared, made)[0], g.evaluate([halo])[0])


def test_tasks_stay_alone_where_rows_would_hold_more_than_a_machine_has() -> None:
    plan, tensors = of_random(3)
    prepared, alone = units(prepare(plan), [0, 0, 0])
    assert all(len(unit.tasks) == 1 for unit in alone)
    for got, expected in zip(run_units(prepared, alone), g.evaluate(tensors), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_sequence_point_is_kept() -> None:
    x = g.as_tensor(np.arange(6)) + 1
    first = g.Sink(x, g.MemoryTarget())
    late = g.Tensor(
        g.Operation("negative", x.type.box, (("x", x),), (("out", x.type),), after=(g.SequencePoint((first,)),))
    )
    plan = rows_plan(late, machines(1, memory="1GiB"), 1)
    prepared, made = units(prepare(plan), [ROOM])
    order = [plan.steps[task.step].node for unit in made for task in unit.tasks]
    assert order.index(first) < order.index(late.producer)
    assert len([unit for unit in made if not unit.stores]) == 2
    assert run_units(prepared, made)[0].tolist() == [-1, -2, -3, -4, -5, -6]


def chain_plan(rng: np.random.Generator) -> Any:
    """Steps that read their neighbourhoods, of one field or two, all cut alike, one block on each machine."""
    shape = tuple(map(int, rng.integers(12, 60, 2)))
    fields = [g.as_tensor(rng.random(shape, np.float32)) for _ in range(2)]
    steps = []
    for _ in range(rng.integers(2, 24)):
        x, y = fields
        kind = rng.integers(4)
        if kind == 0:
            weights = rng.random((3, int(rng.choice([1, 3, 5]))), np.float32)
            made = g.stencil(x, weights, boundary=str(rng.choice(["constant", "reflect"])))
        elif kind == 1:
            made = x * np.float32(0.5) + y
        elif kind == 2:
            made = x + g.pad(y[1:], ((0, 1), (0, 0)))
        else:
            made = g.maximum(g.roll(x, 1, 0) if rng.random() < 0.3 else x, np.float32(0.25))
        fields = [made, x] if rng.random() < 0.5 else [made, y]
        steps.append(made)
    graph = g.Graph.of(steps[-1], *([steps[len(steps) // 2]] if rng.random() < 0.3 else []))
    parts = (int(rng.integers(1, 5)), int(rng.integers(1, 3)))
    grids = {
        operation: (1, 1, *parts, 1) if operation.index.rank == 5 else parts[-operation.index.rank :]
        for operation in graph.operations
    }
    used = machines(max(2, parts[0] * parts[1]), memory="1GiB")
    return costed(Plan(graph, used, steps_of(graph, grids, len(used), lower.decide, io.atom)))[0]


@pytest.mark.parametrize("seed", range(8))
def test_margins_save_units_and_change_no_bit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(units_module, "UNIT_SECONDS", float(rng.choice([0.0, 1e9, 1e9])))
    plan = chain_plan(rng)
    results = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(margins, "MESSAGE_SECONDS", seconds)
        prepared, made = units(prepare(plan), [ROOM] * len(plan.machines))
        assert sorted(task.number for unit in made for task in unit.tasks) == list(range(plan.tasks))
        results.append((run_units(prepared, made), made))
    (plain, some), (wide, few) = results
    assert len(few) <= len(some)
    for one, other in zip(plain, wide, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", range(12))
def test_what_margins_cost_is_what_their_tasks_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and flops of `with_margins` are those of its tasks, counted one by one."""
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 1e9)
    rng = np.random.default_rng(seed)
    plan = chain_plan(rng)
    wide = margins.widened(tasks(plan))
    found = with_margins(plan)
    assert (found is plan) == (wide is None)
    counted = [task_cost(plan, task, wide or tasks(plan))[0] for task in wide or tasks(plan)]
    for what in ("bytes_moved", "bytes_read", "flops"):
        assert sum(getattr(cost, what) for cost in counted) == getattr(found, what), what
    assert found.flops >= plan.flops
    assert [step.cuts for step in found.steps] == [step.cuts for step in plan.steps]
    loads = (margined(plan) or (plan, None))[1]
    edges = defaultdict[int, int](int)
    for edge in movements(plan, loads):
        edges[edge.step] += edge.bytes_moved
    assert {n: moved for n, moved in edges.items() if moved} == {
        n: step.costs.bytes_moved for n, step in enumerate(found.steps) if step.costs.bytes_moved
    }
    units_of = prepare(plan) if wide is None else with_tasks(prepare(plan), wide)
    assert units_of.peak_bytes == found.peak_bytes


def test_margins_save_seconds_where_messages_cost_them() -> None:
    y = tw.source(np.zeros((512, 64), np.float32))
    for _ in range(40):
        y = g.stencil(y, np.ones((3, 3), np.float32) / 9)
    graph, slow = g.Graph.of(y), replace(machines(4, memory="1GiB"), link_seconds=5e-3)
    grids = dict.fromkeys(graph.operations, (1, 1, 4, 1, 1))
    plan = costed(Plan(graph, slow, steps_of(graph, grids, 4, lower.decide, io.atom)))[0]
    found = with_margins(plan)
    assert found.seconds < 0.2 * plan.seconds
    told = [line for line in plan.explain(runtime="ray").splitlines() if " takes " in line]
    assert sum(bool(step.costs.bytes_moved) for step in found.steps) == len(told) < len(plan.steps) / 4
    assert "margins: chains of stencils exchange once" in plan.explain(runtime="ray")
    assert "margins" not in plan.explain()
    alone = rows_plan(y, machines(1), 1)
    assert with_margins(alone) is alone
    with pytest.raises(PlanError, match="there is no runtime 'dask'"):
        plan.explain(runtime="dask")


def test_a_chain_may_go_on_with_fewer_blocks_than_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    y = g.as_tensor(np.random.default_rng(0).random((24, 5), np.float32))
    for _ in range(6):
        y = g.stencil(y, np.ones((3, 1), np.float32), boundary="constant")
    graph = g.Graph.of(y)
    grids = {operation: (1, 1, 4 if k < 3 else 2, 1, 1) for k, operation in enumerate(graph.operations)}
    used = machines(4, memory="1GiB")
    plan = costed(Plan(graph, used, steps_of(graph, grids, len(used), lower.decide, io.atom)))[0]
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 1e9)
    prepared, made = units(prepare(plan), [ROOM] * 4)
    np.testing.assert_array_equal(run_units(prepared, made)[0], g.evaluate([y])[0])


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_left_of_a_chain_is_computed_alike(monkeypatch: pytest.MonkeyPatch, wide: bool) -> None:
    """A run that goes on has tasks of other numbers than its plan, and margins as that has."""
    first, y = (g.cumsum(np.arange(200.0).reshape(40, 5) * k, 1) for k in (1, 2))
    for _ in range(3):
        y = g.stencil(y, np.ones((3, 1)), boundary="constant")
    graph = g.Graph.of(first, y)
    grids = {o: (1, 1, 8, 1, 1) if o.operator == "conv" else (8,) for o in graph.operations}
    grids[first.producer] = (1,)
    used = machines(8, memory="1GiB")
    whole = prepare(costed(Plan(graph, used, steps_of(graph, grids, len(used), lower.decide, io.atom)))[0])
    finished = {task.index for task in whole.tasks if whole.sink(task) == 0}
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 1e9)
    kept = [task for task in whole.tasks if whole.sink(task) == 1]
    done = [finished, {task.index for task in kept[:3]}]
    prepared, made = units(whole, [ROOM] * 8, finished=done) if wide else units(remaining(whole, done), [ROOM] * 8)
    assert prepared.margins == wide and len(prepared.tasks) < len(whole.tasks)
    got, expected = run_units(prepared, made)[1], g.evaluate([y])[0]
    for task in kept[3:]:
        where = tuple(map(slice, task.index.start, task.index.stop))
        np.testing.assert_array_equal(got[where], expected[where])
