"""Costs in closed form equal counting, task by task and point by point."""

import random
from dataclasses import replace

import numpy as np
import pytest
from counted import task_cost
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import Placement, machines, make_plan, simulate, tasks
from tileweave.planner.count import counted_peaks
from tileweave.planner.placement import machine_boxes, nested_bounds, placement, run_placement
from tileweave.planner.plan import Plan
from tileweave.planner.search.make import SHARINGS
from tileweave.planner.simulate import costed
from tileweave.planner.steps import Sharding, Waves, candidates, partition_of, sharding_of, steps_of
from tileweave.space import Box


def decide(operation, stage):
    return Decision(stage)


@pytest.mark.parametrize("machine_count", [1, 3, 4])
@pytest.mark.parametrize("grid", [(1,), (5,), (7,), (3, 4), (6, 2), (2, 3, 4), (1, 4, 1, 3)])
def test_a_machine_holds_one_box_of_every_grid(grid, machine_count):
    where = run_placement(grid, machine_count)
    box = Box.of([3 * n + 1 for n in grid])
    cuts = partition_of(box, Placement(grid, where.digits, where.waves)) if grid == where.grid else None
    held = {}
    for k in range(int(np.prod(grid))):
        place = np.unravel_index(k, grid)
        held.setdefault(where.machine(place), []).append(place)
    assert set(held) <= set(range(machine_count))
    for places in held.values():
        sides = [max(p[d] for p in places) - min(p[d] for p in places) + 1 for d in range(len(grid))]
        assert np.prod(sides) == len(places)
        assert len({where.wave(p) for p in places}) == len(places)
    if cuts is not None and cuts.grid == grid:
        boxes = machine_boxes([np.asarray(c) for c in cuts.cuts], where, machine_count)
        for machine in range(machine_count):
            size = (
                int(np.prod([h[machine] - l[machine] for l, h in zip(boxes.low, boxes.high, strict=True)]))
                * boxes.here[machine]
            )
            assert size == sum(cuts.at(p).size for p in held.get(machine, []))


def test_the_layout_of_a_placement_says_where_blocks_lie():
    for grid, count in [((4, 6), 8), ((12,), 4), ((3, 2, 2), 12)]:
        where = run_placement(grid, count)
        padded = [p * w for p, w in zip(where.parts, where.waves, strict=True)]
        if tuple(padded) != grid:
            continue
        for k in range(int(np.prod(grid))):
            place = np.unravel_index(k, grid)
            at = where.layout(k)
            assert (at["machine"], at["wave"]) == (where.machine(place), where.wave(place))
    assert str(placement(8, 4)) == "(4:1@machine, 2:1@wave)"


def test_nested_cuts_have_the_boundaries_of_the_outer_level():
    for n in range(1, 40):
        for a in range(1, min(n, 6) + 1):
            outer = nested_bounds(n, (a,)).tolist()
            lengths = np.diff(outer)
            assert lengths.max() - lengths.min() <= 1
            for b in range(1, int(lengths.min()) + 1):
                inner = nested_bounds(n, (a, b)).tolist()
                assert inner[::b] == outer and np.diff(inner).min() >= 1


def some_graphs():
    a = g.exp(g.as_tensor(np.ones((8, 6))))
    b = g.exp(g.as_tensor(np.ones((6, 10))))
    v = g.exp(g.as_tensor(np.ones(10)))
    image, kernel = g.exp(g.as_tensor(np.ones((2, 3, 12, 9)))), g.as_tensor(np.ones((4, 3, 3, 3)))
    yield g.matmul(a, b)
    yield g.relu(g.linear(a, b, v))
    yield g.matmul(a, b) + v
    yield g.matmul(b.T, a[::-1].T)
    yield g.concat([a, g.relu(a)], 0)[3:13] * 2.0
    yield g.sum(g.concat([a, a[:, ::-1]], 1), 1)
    yield g.einsum("ij,jk,ik->k", a, b, g.matmul(a, b))
    yield g.relu(g.broadcast_to(g.unsqueeze(v, 0), (8, 10))[:, 2:9])
    yield g.relu(a[1:7, 4])
    yield g.relu(a[::2, ::3])
    yield g.conv(image, kernel)
    yield g.softmax(g.matmul(a, b)) @ b.T


def counted(plan):
    """Totals per step and machine, by counting what every task says."""
    made = tasks(plan)
    rows = {}
    for task in made:
        cost, temporary, out_bytes = task_cost(plan, task, made)
        row = rows.setdefault((task.step, task.machine), [0] * 7)
        for k, value in enumerate((1, cost.flops, cost.bytes_moved, cost.bytes_read, cost.bytes_written)):
            row[k] += value
        row[5], row[6] = max(row[5], temporary), max(row[6], out_bytes)
    return rows


def counted_messages(plan):
    """Per step and machine the messages of its tasks: what they take where nothing else takes time."""
    never = {"flops_per_second": 1e300, "bytes_per_second": 1e300}
    free = replace(
        plan.machines,
        machines=tuple(replace(m, **never) for m in plan.machines.machines),
        link_bytes_per_second=1e300,
        storage_bytes_per_second=1e300,
        link_seconds=1.0,
        task_seconds=0.0,
    )
    plan, out = replace(plan, machines=free), {}
    made = tasks(plan)
    for task in made:
        key = task.step, task.machine
        out[key] = out.get(key, 0) + round(task_cost(plan, task, made)[0].seconds)
    return out


def agrees(plan):
    """Every load in closed form equals counting; what is held only while a task runs is at most what was said."""
    result, rows, messages = simulate(plan), counted(plan), counted_messages(plan)
    for number, load in enumerate(result.loads):
        for k, machine in enumerate(plan.machines.order):
            want = rows.get((number, machine), [0] * 7)
            got = [load.tasks, load.flops, load.moved, load.read, load.written, load.temporary, load.block]
            got = [float(x[k]) for x in got]
            assert got[:5] == pytest.approx(want[:5], rel=1e-12), (number, machine, plan.steps[number].stage)
            assert got[5] >= want[5] and got[6] >= want[6], (number, machine, plan.steps[number].stage)
            assert load.messages[k] >= messages.get((number, machine), 0), (number, machine)
    peaks, _ = counted_peaks(plan)
    assert all(a <= b for a, b in zip(peaks, result.peak_bytes, strict=True))


def some_plan(graph, count, chance, homes=()):
    grids = {op: chance.choice(candidates(op, chance.randint(1, 2 * count))) for op in graph.operations}
    waves = chance.choice([Waves(), Waves(2), Waves(3), Waves(4, "longest"), Waves(4, "all"), Waves(8, "all")])
    steps = steps_of(graph, grids, count, decide, lambda sink: None, waves, sharing=chance.choice(SHARINGS))
    if chance.random() < 0.3:
        may = [isinstance(step.node, g.Operation) and step.stage != "partial" for step in steps]
        steps = tuple(replace(s, spilled=yes and chance.random() < 0.5) for s, yes in zip(steps, may, strict=True))
    return Plan(graph, machines(count), steps, homes=homes)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("waves", [Waves(), Waves(4), Waves(4, "all")])
def test_every_wave_of_a_combination_has_messages_of_its_own(waves, sharing):
    a, b = (g.as_tensor(np.ones(shape)) for shape in [(9, 40), (40, 7)])
    product = g.matmul(a, b)
    steps = steps_of(
        g.Graph.of(product), {product.producer: (1, 4, 1)}, 4, decide, lambda sink: None, waves, sharing=sharing
    )
    plan = Plan(g.Graph.of(product), machines(4), steps)
    result, messages = simulate(plan), counted_messages(plan)
    for number, load in enumerate(result.loads):
        assert [messages.get((number, k), 0) for k in range(4)] == load.messages.tolist()


@pytest.mark.parametrize("case", range(12))
def test_loads_equal_counting(case):
    tensor = list(some_graphs())[case]
    chance = random.Random(case)
    graph = g.Graph.of(tensor)
    for _ in range(12):
        agrees(some_plan(graph, chance.choice([1, 2, 3, 4, 6]), chance))


@pytest.mark.parametrize("seed", range(12))
def test_loads_equal_counting_on_random_graphs(seed):
    chance = random.Random(seed)
    values = random_graph(seed, ["float32", "int64"][seed % 2], steps=6)
    graph = g.Graph.of(*(value.tensor for value in values))
    for _ in range(3):
        agrees(some_plan(graph, chance.choice([2, 3, 4]), chance))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_loads_equal_counting_on_many_random_graphs(seed):
    chance = random.Random(seed)
    values = random_graph(seed, ["float32", "int64"][seed % 2], steps=9)
    graph = g.Graph.of(*(value.tensor for value in values))
    for _ in range(3):
        agrees(some_plan(graph, chance.choice([1, 2, 3, 5, 8]), chance))


@pytest.mark.parametrize("seed", range(6))
def test_loads_of_resident_sources_equal_counting(seed):
    chance = random.Random(seed)
    sources = [g.Tensor(g.Source(g.Hole(str(k)), g.TensorType(s, "float64"))) for k, s in enumerate([(8, 6), (6, 10)])]
    y = g.matmul(sources[0][::-1], g.relu(sources[1])) + sources[1][:1]
    graph, count = g.Graph.of(y), 6
    for _ in range(6):
        homes = []
        for tensor in sources:
            grid = chance.choice([(1, 1), (2, 1), (2, 3), (3, 2), (1, 6)])
            run = run_placement(grid, count)
            copies = ((count // int(np.prod(run.parts)), int(np.prod(run.parts))),) if chance.random() < 0.5 else ()
            homes.append((tensor.producer, Placement(run.grid, run.digits, run.waves, copies)))
        agrees(some_plan(graph, count, chance, tuple(homes)))


def uneven_plan(graph, count, chance):
    weights = tuple(chance.choice([1, 2, 7, 40]) for _ in range(count))
    cut = {}
    for op in graph.operations:
        plain = sharding_of(op, chance.choice(candidates(op, count)), count)
        cut[op] = Sharding(plain.digits, plain.waves, weights)
    waves = chance.choice([Waves(), Waves(2), Waves(3), Waves(4, "longest"), Waves(4, "all")])
    return Plan(graph, machines(count), steps_of(graph, cut, count, decide, lambda sink: None, waves))


@pytest.mark.parametrize("case", range(12))
def test_loads_of_unequal_parts_equal_counting(case):
    chance = random.Random(case)
    graph = g.Graph.of(list(some_graphs())[case])
    for _ in range(4):
        agrees(uneven_plan(graph, chance.choice([2, 3, 4]), chance))
    values = random_graph(case, ["float32", "int64"][case % 2], steps=5)
    agrees(uneven_plan(g.Graph.of(*(value.tensor for value in values)), 3, chance))


@pytest.mark.parametrize("seed", range(6))
def test_loads_of_files_on_the_disk_of_one_machine_equal_counting(seed):
    chance = random.Random(seed)
    kinds = [g.TensorType(shape, "float32") for shape in [(12, 9), (9, 14)]]
    files = [g.FileData("a.npy", "npy", ""), g.FileData("b.zarr", "zarr", "", (4, 5))]
    a, b = (g.Tensor(g.Source(f, kind, "f", chance.choice([None, 1]))) for f, kind in zip(files, kinds, strict=True))
    graph = g.Graph.of(g.relu(g.matmul(a[::-1], b)))
    for _ in range(6):
        plan = some_plan(graph, chance.choice([2, 3, 4]), chance)
        plan = replace(plan, machines=replace(plan.machines, storage="private"))
        rows, loads = counted(plan), simulate(plan).loads
        for number, load in enumerate(loads):
            mine = [rows.get((number, k), [0] * 7) for k in range(len(plan.machines))]
            assert load.moved.tolist() == [row[2] for row in mine]
            assert load.read.sum() == sum(row[3] for row in mine) and (load.read >= load.served).all()
            assert set(np.flatnonzero(load.served).tolist()) <= {0, 1}
        peaks, _ = counted_peaks(plan)
        assert all(x <= y for x, y in zip(peaks, simulate(plan).peak_bytes, strict=True))


def test_a_million_shards_are_costed_from_their_cuts():
    a, b = (g.as_tensor(np.broadcast_to(np.float32(1), (20000, 20000))) for _ in range(2))
    graph = g.Graph.of(g.matmul(a, b))
    (operation,) = graph.operations
    steps = steps_of(graph, {operation: (100, 100, 100)}, 1000, decide, lambda sink: None)
    plan = Plan(graph, machines(1000), steps)
    assert plan.steps[0].cuts.count == 10**6
    first = simulate(plan).loads[0]
    assert int(first.tasks.sum()) == 10**6
    assert int(first.read.sum()) == 2 * 100 * 20000 * 20000 * 4
    assert float(first.flops.sum()) == 2.0 * 20000**3


def test_planning_does_not_slow_down_with_the_size_of_the_data():
    """The same graph over a thousand times the rows plans to the same cuts."""
    plans = []
    for rows in (1000, 1_000_000):
        x = g.as_tensor(np.broadcast_to(np.float32(1), (rows, 16)))
        w = g.as_tensor(np.ones((16, 8), np.float32))
        plans.append(make_plan(g.Graph.of(g.relu(x @ w)), machines(4, memory="1GiB"), decide))
    assert [s.cuts.grid for s in plans[0].steps] == [s.cuts.grid for s in plans[1].steps] == [(4, 1, 1), (4, 1), (4, 1)]


def test_bytes_read_from_storage_are_whole_chunks() -> None:
    rng = np.random.default_rng(3)
    kind = g.TensorType((23, 30), np.dtype("float64"))
    for seed in range(12):
        chunks = tuple(int(n) for n in rng.integers(1, 12, 2))
        x = g.Tensor(g.Source(g.FileData(f"none{seed}.zarr", "zarr", "", chunks), kind))
        y = [g.sum(x, 0), g.exp(x) * x[:, ::-1], g.max(x[4] + x[:5, 2:].sum(0)[0]), x[3:, 1:] + 1][seed % 4]
        graph = g.Graph.of(y)
        grids = {o: (lambda c: c[int(rng.integers(len(c)))])(candidates(o, 4)) for o in graph.operations}
        waves = Waves(int(rng.choice([1, 2, 4])), "all")
        steps = steps_of(graph, grids, 3, decide, lambda sink: None, waves)
        plan = costed(Plan(graph, machines(3), steps))[0]
        made = tasks(plan)
        assert plan.bytes_read == sum(task_cost(plan, task, made)[0].bytes_read for task in made)


@pytest.mark.parametrize("seed", range(6))
def test_seconds_of_a_step_do_not_count_what_it_waits_for(seed: int) -> None:
    """As `Costs.seconds` says: beside other steps, which keep the machines busy, each is as long as without them."""
    draw = random.Random(seed)
    count, rows, columns = draw.randint(1, 4), draw.randint(30, 200), draw.randint(30, 200)
    x, y = (tw.source(name=name, shape=(rows, columns), dtype="float32") for name in "xy")
    many = tw.source(name="z", shape=(700, 700), dtype="float32")
    few = [g.sum(g.exp(x) + y, axis=draw.choice([0, 1, None]))]
    used = machines(count, memory="1GiB", cores=1)
    alone, beside = (tw.plan(targets, machines=used) for targets in (few, [many @ many @ many, *few]))
    held = {step.node: step for step in beside.steps if step.stage == "block"}
    same = 0
    for step in alone.steps:
        other = held.get(step.node)
        if other is not None and (other.cuts, other.where) == (step.cuts, step.where):
            assert other.costs.seconds == pytest.approx(step.costs.seconds)
            same += 1
    assert same or count > 1
