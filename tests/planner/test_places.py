"""Where things run: pinned sources and sinks, machines of unlike sizes, sources too large for any machine."""

import random
from dataclasses import replace
from math import prod

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.planner import Machine, Machines, machines, make_plan, tasks
from tileweave.planner.placement import machine_blocks, machine_runs
from tileweave.planner.plan import Plan
from tileweave.planner.simulate import costed
from tileweave.planner.steps import Waves, candidates, in_runs, partition_of, steps_of
from tileweave.space import Box


def decide(operation, stage):
    return Decision("")


def by_rows(graph, count, parts):
    """The plan that cuts the first dimension of every operation into so many parts."""
    grids = {o: (parts, *(1 for _ in o.index.shape[1:])) for o in graph.operations}
    steps = steps_of(graph, grids, count, decide, lambda sink: None)
    return costed(Plan(graph, machines(count, memory="1GiB"), steps))[0]


def source(shape, placement=None, name="x"):
    return g.Tensor(g.Source(g.Hole(), g.TensorType(shape, "float64"), name, placement))


def test_a_source_in_memory_of_a_machine_moves_to_the_others_and_costs_no_storage():
    here, there = (by_rows(g.Graph.of(g.exp(source((40, 10), place))), 4, 4) for place in (None, 2))
    assert (here.bytes_moved, here.bytes_read) == (0, 40 * 10 * 8)
    assert (there.bytes_moved, there.bytes_read) == (30 * 10 * 8, 0)
    assert {task.machine for task in tasks(there) if there.steps[task.step].stage == "block"} == {0, 1, 2, 3}


def test_a_pinned_sink_is_stored_where_it_belongs():
    sink = g.Sink(g.exp(source((40, 10))), g.MemoryTarget(), 3)
    plan = by_rows(g.Graph.of(sink), 4, 4)
    stores = [task for task in tasks(plan) if plan.steps[task.step].stage == "store"]
    assert len(stores) == 4 and {task.machine for task in stores} == {3}
    assert sum(step.costs.bytes_moved for step in plan.steps if step.stage == "store") == 30 * 10 * 8


@pytest.mark.parametrize("seed", range(12))
def test_a_view_of_a_result_is_stored_where_the_result_lies(seed):
    """Renamed, turned and broadcast by one: nothing moves; of a part, only what lies beyond the even boundaries."""
    rng = random.Random(seed)
    shape = tuple(rng.choice((8, 12, 24)) for _ in range(3))
    made = g.exp(source(shape))
    parts, along = rng.choice((2, 4)), rng.randrange(3)
    order = rng.sample(range(3), 3)
    view = g.transpose(made, order)
    view = g.unsqueeze(view, rng.randrange(4)) if rng.random() < 0.5 else view
    graph = g.Graph.of(view)
    grids = {o: tuple(parts if k == along else 1 for k in range(3)) for o in graph.operations}
    plan = costed(
        Plan(graph, machines(4, memory="1GiB"), steps_of(graph, grids, 4, decide, lambda sink: None, Waves(2)))
    )[0]
    assert plan.bytes_moved == 0, (seed, shape, parts, along, order)
    cut = g.Graph.of(g.transpose(made[1:], order))
    grids = {o: tuple(parts if k == along else 1 for k in range(3)) for o in cut.operations}
    plan = costed(Plan(cut, machines(4, memory="1GiB"), steps_of(cut, grids, 4, decide, lambda sink: None)))[0]
    assert plan.bytes_moved <= (0 if along else (parts - 1) * prod(shape[1:]) * 8)


def test_what_cannot_be_followed_is_stored_by_rows():
    """A result that is shown backwards, and one that is the smaller part of what is shown."""
    made = g.exp(source((24, 12)))
    for view, grid in ((made[::-1], (4, 1)), (g.concat([source((40, 12), name="y"), made]), (1, 4))):
        graph = g.Graph.of(view)
        grids = dict.fromkeys(graph.operations, grid)
        store = steps_of(graph, grids, 4, decide, lambda sink: None)[-1]
        assert store.cuts.cuts[0][1:-1] == (view.shape[0] // 4, view.shape[0] // 2, 3 * view.shape[0] // 4)
        assert store.cuts.grid == (4, 1) and store.where.digits == (((4, 1),), ())


@pytest.mark.parametrize("what", ["source", "sink"])
def test_a_machine_that_does_not_exist_is_refused(what):
    y = g.exp(source((4, 4), 7 if what == "source" else None))
    graph = g.Graph.of(g.Sink(y, g.MemoryTarget(), 7 if what == "sink" else None))
    with pytest.raises(PlanError, match="placed on machine 7"):
        make_plan(graph, machines(2, memory="1GiB"), decide)


def test_what_is_not_cut_runs_where_there_is_most_room():
    unlike = Machines((Machine("small", 1000), Machine("large", 1 << 30), Machine("middle", 1 << 20)))
    assert unlike.order == (1, 2, 0)
    graph = g.Graph.of(g.sum(g.exp(source((100, 20)))))
    plan = make_plan(graph, unlike, decide)
    assert plan.peak_bytes[1] > 1000 and plan.peak_bytes[0] <= 1000
    even = Machines(tuple(Machine(f"m{k}", 1 << 20) for k in range(3)))
    assert even.order == (0, 1, 2)


def test_a_source_larger_than_every_machine_streams():
    """Sources and sinks are cut by their own identity signature: 3 TB through four machines of 2 GiB."""
    big = source((400_000, 1_000_000))
    graph = g.Graph.of(g.max(big, 1))
    plan = make_plan(graph, machines(4, memory="2GiB"), decide)
    assert plan.bytes_read == 400_000 * 1_000_000 * 8
    assert max(plan.peak_bytes) <= 2 << 30
    reads = [r.box for t in tasks(plan) if plan.steps[t.step].stage != "store" for r in t.reads if r.name == "x"]
    assert sum(box.size for box in reads) == 400_000 * 1_000_000


def test_narrow_choices_are_cut_and_narrow_sums_are_not():
    x = g.Tensor(g.Source(g.Hole(), g.TensorType((4096,), "float16")))
    assert any(grid[0] > 1 for grid in candidates(g.max(x, 0).producer, 4))
    (narrow,) = [o for o in g.Graph.of(g.argmax(x, 0)).operations if o.operator == "argmax"]
    assert any(grid[0] > 1 for grid in candidates(narrow, 4))
    wide = g.sum(source((4096,)), 0).producer
    out = (("out", g.TensorType((), "float16")),)
    total = g.Operation("sum", wide.index, (("x", x),), out, wide.parameters, wide.signature)
    assert candidates(total, 4) == [(1,)] and (4,) in candidates(wide, 4)


def file_source(shape, placement=None, chunks=()):
    data = g.FileData("x.zarr", "zarr", "", chunks) if chunks else g.FileData("x.npy", "npy", "")
    return g.Tensor(g.Source(data, g.TensorType(shape, "float64"), "x", placement))


@pytest.mark.parametrize("placement", [None, 2])
def test_a_file_on_the_disk_of_one_machine_is_read_there_and_sent(placement):
    """Private storage: the owner reads for all, boxes are sent, nothing is held in memory for it."""
    private = replace(machines(4, memory="1GiB"), storage="private")
    graph = g.Graph.of(g.exp(file_source((40, 10), placement)))
    grids = dict.fromkeys(graph.operations, (4, 1))
    shared, alone = (
        costed(Plan(graph, used, steps_of(graph, grids, 4, decide, lambda sink: None)))
        for used in (machines(4, memory="1GiB"), private)
    )
    owner = placement or 0
    load = alone[1].loads[0]
    assert load.read.tolist() == load.served.tolist() == [40 * 10 * 8 if k == owner else 0 for k in range(4)]
    assert load.moved.tolist() == [0 if k == owner else 10 * 10 * 8 for k in range(4)]
    assert alone[0].bytes_moved == 30 * 10 * 8 and alone[0].bytes_read == 40 * 10 * 8
    if placement is None:
        assert shared[0].bytes_moved == 0 and alone[0].seconds > shared[0].seconds
    assert max(alone[0].peak_bytes) < 40 * 10 * 8  # no machine holds the file


def test_planning_reads_a_private_file_once_where_sending_costs_more_than_computing():
    """Copies of the small operand for all are worth it; of the large one, whose owner would send it ever again, not."""
    private = replace(machines(4, memory="1GiB", link_bytes_per_second=1e9), storage="private")
    big, small = file_source((4096, 1024)), g.Tensor(g.Source(g.Hole("w"), g.TensorType((1024, 64), "float64"), "w"))
    plan = make_plan(g.Graph.of(g.matmul(big, small)), private, decide)
    assert plan.bytes_read == 4096 * 1024 * 8 + plan.steps[0].cuts.grid[0] * 1024 * 64 * 8
    assert plan.bytes_moved < 4096 * 1024 * 8
    assert "exchange" not in plan.explain()


@pytest.mark.parametrize("seed", range(40))
def test_what_machines_share_in_runs_is_covered_once(seed):
    """Against sets of points: who holds which, in which wave, and the same by boxes; idle machines take their share."""
    chance = random.Random(seed)
    shape = tuple(chance.randint(1, 12) for _ in range(chance.randint(1, 3)))
    count = left = chance.randint(2, 14)
    extents = []
    for most in (*shape, 14):
        extents.append(chance.randint(1, max(1, min(most, left))))
        left //= extents[-1]
    strides, step = [0] * len(extents), 1
    for k in chance.sample(range(len(extents)), len(extents)):
        strides[k], step = step, step * extents[k]
    *rows, owners = (((extent, stride),) for extent, stride in zip(extents, strides, strict=True))
    where = in_runs(shape, rows, owners, 0, count)
    if where is None:
        assert owners[0][0] == 1 or prod(shape) <= prod(extents)
        return
    cuts, blocks = partition_of(Box.of(shape), where), {k: {} for k in range(count)}
    for number in range(cuts.count):
        place = cuts.place(number)
        mine = blocks[where.machine(place)]
        assert where.wave(place) not in mine
        mine[where.wave(place)] = place
    held = {k: [set(cuts.at(place)) for place in mine.values()] for k, mine in blocks.items()}
    assert machine_blocks(where, count).tolist() == [len(held[k]) for k in range(count)]
    assert sum(len(points) for row in held.values() for points in row) == prod(shape)
    if not where.rest:  # owners of a part share it evenly
        assert {len(row) for row in held.values() if row} <= {where.run, where.run - 1}
    found = {k: [] for k in range(count)}
    for boxes, _ in machine_runs([np.asarray(edges) for edges in cuts.cuts], where, count):
        for k in np.flatnonzero(boxes.here):
            found[k] += Box.between([int(x[k]) for x in boxes.low], [int(x[k]) for x in boxes.high])
    for k in range(count):
        assert sorted(found[k]) == sorted(set().union(*held[k]))
    waves, numbers = where.in_waves()
    assert (np.diff(waves) >= 0).all() and sorted(numbers) == [*range(cuts.count)]
    assert all(where.wave(cuts.place(n)) == wave for wave, n in zip(waves.tolist(), numbers.tolist(), strict=True))
    assert where.machine_of_blocks().tolist() == [where.machine(cuts.place(n)) for n in range(cuts.count)]


def test_arrays_in_memory_of_the_only_machine_are_not_charged_as_files(tmp_path):
    """Seconds of a chain over 64 MiB: by the memory's rate where it lies in memory, by that of files where in files."""
    data = np.zeros((1 << 12, 1 << 12), np.float32)
    np.save(tmp_path / "x.npy", data)
    held = g.exp(g.as_tensor(data))
    filed = g.exp(tw.source(str(tmp_path / "x.npy")))
    one = machines(1, memory="1GiB")
    fast, slow = (make_plan(g.Graph.of(tensor), one, decide).seconds for tensor in (held, filed))
    memory = 2 * data.nbytes / one.machines[0].bytes_per_second
    assert memory <= fast <= 2 * memory + 2e-3
    assert slow - fast == pytest.approx(data.nbytes / one.cached_bytes_per_second + one.open_seconds, rel=0.01)


def test_files_that_do_not_fit_into_memory_are_read_as_the_storage_is_and_sinks_take_a_time_of_their_own(tmp_path):
    used = replace(machines(1, memory="64GiB"), store_seconds=7.0)
    source = g.Tensor(g.Source(g.FileData("x.npy", "npy", ""), g.TensorType((1 << 16, 1 << 16), "float32"), "x"))
    size = source.type.size_bytes
    assert used.read_bytes_per_second(size) == used.cached_bytes_per_second
    seconds = {}
    for memory in ("64GiB", "1GiB"):
        less = machines(used, memory=memory)
        seconds[memory] = make_plan(g.Graph.of(g.sum(source)), less, decide).seconds
    assert seconds["64GiB"] < size / used.storage_bytes_per_second < seconds["1GiB"]
    stored = g.Sink(g.exp(g.as_tensor(np.zeros(4, np.float32))), g.FileTarget(str(tmp_path / "y.npy"), "npy"))
    assert 7 < make_plan(g.Graph.of(stored), used, decide).seconds < 7.1
