"""Costs in closed form equal counting, shard by shard and point by point."""

import random
from math import prod

import numpy as np
import pytest

from tileweave import graph as g
from tileweave.graph.passes.shard import input_region, output_partition
from tileweave.planner import machines, placement
from tileweave.planner.beam import _Estimator
from tileweave.planner.cost import Blocks, Traffic, grid_boxes, machine_runs
from tileweave.planner.search import make_plan
from tileweave.planner.steps import candidates
from tileweave.space import Box


@pytest.mark.parametrize("grid", [(), (1,), (5,), (3, 4), (2, 3, 4), (1, 4, 1, 3)])
def test_grid_boxes_hold_exactly_the_numbers_of_a_run(grid):
    count = prod(grid)
    for low in range(count + 1):
        for high in range(low, count + 1):
            boxes = grid_boxes(grid, (low, high))
            numbers = []
            for box in boxes:
                for place in Box.between([a for a, _ in box], [b for _, b in box]):
                    k = 0
                    for digit, n in zip(place, grid, strict=True):
                        k = k * n + digit
                    numbers.append(k)
            assert sorted(numbers) == list(range(low, high))
            assert len(boxes) <= max(1, 2 * len(grid) - 1)


@pytest.mark.parametrize("machine_count", [1, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12])
def test_machine_runs_are_the_placement(count, machine_count):
    layout = placement(count, machine_count)
    for machine, (first, last) in enumerate(machine_runs(count, machine_count)):
        assert [k for k in range(count) if layout(k)["machine"] == machine] == list(range(first, last))


def counted(operation, name, cuts, places, machine_count):
    """(bytes, messages) per machine, by enumerating shards and resolving what each one reads."""
    arrived = [[0, 0] for _ in range(machine_count)]
    tensor = operation.input(name)
    mine = placement(cuts.count, machine_count)
    for shard in range(cuts.count):
        machine = mine(shard)["machine"]
        pairs = {}
        for piece in g.resolve(tensor, input_region(operation, name, cuts.block(shard))):
            if piece.origin is None or not isinstance(piece.origin.producer, g.Operation):
                continue
            blocks = places[piece.origin]
            owner = placement(blocks.count, machine_count)
            points = {piece.map(p) for p in piece.box}
            for k in range(blocks.count):
                place, rest = [], k
                for n in reversed(blocks.grid):
                    rest, digit = divmod(rest, n)
                    place.append(digit)
                place.reverse()
                where = [0] * len(blocks.cuts.grid)
                for digit, dim in zip(place, blocks.order, strict=True):
                    if dim is not None:
                        where[dim] = digit
                block = blocks.cuts.at(where)
                inside = {p for p in points if block.contains(p)}
                if inside and owner(k)["machine"] != machine:
                    pairs[id(piece), piece.origin, k] = len(inside)
        arrived[machine][0] += sum(pairs.values()) * tensor.dtype.itemsize
        arrived[machine][1] += len(pairs)
    return [tuple(pair) for pair in arrived]


def some_graphs():
    a = g.exp(g.as_tensor(np.ones((8, 6))))
    b = g.exp(g.as_tensor(np.ones((6, 10))))
    v = g.exp(g.as_tensor(np.ones(10)))
    yield g.matmul(a, b)
    yield g.linear(a, b, v)
    yield g.matmul(a, b) + v
    yield g.matmul(b.T, a[::-1].T)
    yield g.concat([a, g.relu(a)], 0)[3:13] * 2.0
    yield g.sum(g.concat([a, a[:, ::-1]], 1), 1)
    yield g.einsum("ij,jk,ik->k", a, b, g.matmul(a, b))
    yield g.relu(g.broadcast_to(g.unsqueeze(v, 0), (8, 10))[:, 2:9])
    yield g.relu(a[1:7, 4])


@pytest.mark.parametrize("case", range(9))
def test_traffic_equals_counting(case):
    tensor = list(some_graphs())[case]
    chance = random.Random(case)
    graph = g.Graph.of(tensor)
    for machine_count in (2, 3, 4, 6):
        for _ in range(6):
            estimator = _Estimator(machines(machine_count))
            grids = {op: chance.choice(candidates(op, machine_count)) for op in graph.operations}
            for operation, grid in grids.items():
                cuts = g.partition(operation, grid)
                for name, _ in operation.inputs:
                    traffic = Traffic.of(operation, name, cuts)
                    assert traffic is not None
                    places = {made: estimator._place(made, grids[made.producer]) for made in traffic.origins}
                    got = traffic.moved(places, machine_count)
                    assert list(got) == counted(operation, name, cuts, places, machine_count)


def test_a_million_shards_are_costed_from_their_cuts():
    a, b = (g.exp(g.as_tensor(np.broadcast_to(np.float32(1), (20000, 20000)))) for _ in range(2))
    operation = g.matmul(a, b).producer
    cuts = g.partition(operation, (100, 100, 100))
    assert cuts.count == 10**6
    traffic = Traffic.of(operation, "x0", cuts)
    (made,) = traffic.origins
    blocks = output_partition(made.producer, "out", g.partition(made.producer, (100, 1)))
    arrived = traffic.moved({made: Blocks(blocks, (0, 1), blocks.grid)}, 1)
    assert arrived == ((0, 0),)
    assert sum(t.count([(0, n) for n in cuts.grid], None, None) for t in traffic.terms) == 20000 * 20000 * 100


def test_planning_does_not_slow_down_with_the_size_of_the_data():
    """The same graph over a thousand times the rows plans to the same cuts."""
    plans = []
    for rows in (1000, 1_000_000):
        x = g.as_tensor(np.broadcast_to(np.float32(1), (rows, 16)))
        w = g.as_tensor(np.ones((16, 8), np.float32))
        plans.append(make_plan(g.Graph.of(g.relu(x @ w)), machines(4, memory="1GiB"), lambda op, stage: ""))
    assert [s.cuts.grid for s in plans[0].steps] == [s.cuts.grid for s in plans[1].steps] == [(4, 1, 1), (4, 1), (4, 1)]
