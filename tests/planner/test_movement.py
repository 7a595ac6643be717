"""What moves between machines: the collectives by name, and the laws of redistribution costs.

The oracle counts points of boxes as Python sets.
"""

import random
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import Placement, machines, make_plan, movement, movements, redistribution, simulate
from tileweave.planner.plan import Plan
from tileweave.planner.steps import candidates, partition_of, steps_of
from tileweave.planner.tasks import tasks


def decide(operation, stage):
    return Decision(stage)


def digits(*rows):
    return tuple(tuple(row) for row in rows)


def at(rows, copies=(), offset=0):
    parts = tuple(prod(e for e, _ in row) for row in rows)
    return Placement(parts, digits(*rows), (1,) * len(rows), tuple(copies), offset)


ROWS, COLUMNS = at([[(4, 1)], []]), at([[], [(4, 1)]])
COPIES, ALONE = at([[], []], [(4, 1)]), at([[], []])
NAMED = [
    (ROWS, ROWS, "none", 1),
    (COPIES, ROWS, "slice", 1),
    (COPIES, ALONE, "slice", 1),
    (ROWS, COPIES, "all-gather", 4),
    (ROWS, COLUMNS, "all-to-all", 4),
    (ALONE, COPIES, "broadcast", 4),
    (ALONE, ROWS, "scatter", 4),
    (ROWS, ALONE, "gather", 4),
    (ROWS, at([[(4, 1)], []], offset=4), "permute", 2),
    (at([[(2, 2), (2, 1)], []]), at([[(2, 2)], [(2, 1)]]), "all-to-all", 2),
    (at([[(2, 2), (2, 1)], []]), at([[(2, 2)], []], [(2, 1)]), "all-gather", 2),
    (at([[(3, 1)], []]), COLUMNS, "exchange", 4),
]


@pytest.mark.parametrize(("source", "target", "kind", "members"), NAMED)
def test_a_redistribution_is_recognised(source, target, kind, members):
    found = redistribution(g.TensorType((12, 12), "float32"), source, target, 8)
    assert (found.collective.kind, found.collective.members) == (kind, members)
    assert (found.bytes_moved == 0) == (kind in ("none", "slice"))


@pytest.mark.parametrize("count", [2, 8, 64, 1000])
def test_partial_results_are_reduced_by_name(count):
    terms = ((count, 1),)
    source = movement._Spread(((), ()), (), 0, terms)
    everywhere = movement.recognised(source, movement._Spread(((), ()), terms))
    shared = movement.recognised(source, movement._Spread((terms, ())))
    alone = movement.recognised(source, movement._Spread(((), ())))
    assert [one.kind for one in (everywhere, shared, alone)] == ["all-reduce", "reduce-scatter", "reduce"]
    assert {one.members for one in (everywhere, shared, alone)} == {count}


def some_placement(rng, rank, count):
    """Digits of a random mesh, each cutting a dimension, holding copies, or left out."""
    mesh, left = [], count
    while left > 1:
        step = rng.choice([n for n in range(2, left + 1) if left % n == 0])
        mesh.append((step, left // step))
        left //= step
    rows, copies = [[] for _ in range(rank)], []
    for pair in mesh:
        where = rng.randrange(rank + 2)
        if where < rank:
            rows[where].append(pair)
        elif where == rank:
            copies.append(pair)
    return at(rows, copies)


def holdings(shape, where, count):
    """Machine -> the set of points that it holds."""
    cuts = partition_of(g.TensorType(shape, "float32").box, where)
    held = [set() for _ in range(count)]
    for block in range(cuts.count):
        place = cuts.place(block)
        for machine in where.machines(place):
            held[machine] |= set(cuts.at(place))
    return held


@pytest.mark.parametrize("cases", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_redistribution_is_a_metric_and_counts_points(cases):
    rng = random.Random(41)
    for case in range(cases):
        count = rng.choice([2, 4, 6, 8, 12])
        shape = tuple(rng.randint(count, 2 * count + 3) for _ in range(rng.randint(1, 2)))
        kind = g.TensorType(shape, "float32")
        a, b, c = (some_placement(rng, len(shape), count) for _ in range(3))
        held = [holdings(shape, where, count) for where in (a, b, c)]
        cost = {}
        for i, j in product(range(3), repeat=2):
            found = redistribution(kind, (a, b, c)[i], (a, b, c)[j], count)
            lacking = [4 * len(want - have) for have, want in zip(held[i], held[j], strict=True)]
            assert (found.bytes_moved, found.words_bytes) == (sum(lacking), max(lacking)), (41, case)
            exact = all(n % prod(w.parts) == 0 for w in (a, b, c) for n in shape)
            if exact or not any(lacking):
                assert not exact or (found.collective.kind in ("none", "slice")) == (not any(lacking)), (41, case)
            cost[i, j] = found
        assert cost[0, 2].bytes_moved <= cost[0, 1].bytes_moved + cost[1, 2].bytes_moved
        assert cost[0, 2].words_bytes <= cost[0, 1].words_bytes + cost[1, 2].words_bytes


@pytest.mark.parametrize("size", [5, 6, 12, 14, 16])
def test_few_places_of_a_digit_show_what_all_of_them_do(size, monkeypatch):
    spreads = [
        movement._Spread((((size, 1),), ())),
        movement._Spread(((), ((size, 1),))),
        movement._Spread(((), ()), ((size, 1),)),
        movement._Spread(((), ())),
        movement._Spread((((size, 2), (2, 1)), ())),
        movement._Spread((((size, 2),), ((2, 1),))),
        movement._Spread((((2, 1),), ((size, 2),))),
        movement._Spread((((2, 1),), ()), ((size, 2),)),
    ]
    short = {pair: movement.recognised(*pair) for pair in product(spreads, repeat=2)}
    monkeypatch.setattr(movement, "_few", lambda extent: extent)
    assert short == {pair: movement.recognised(*pair) for pair in product(spreads, repeat=2)}


def test_the_bytes_of_the_edges_are_those_of_the_steps():
    rng = random.Random(42)
    x, w = (g.as_tensor(np.ones(shape, np.float32)) for shape in ((24, 16), (16, 36)))
    y = g.softmax(g.matmul(g.relu(x), w) * 2.0)
    graph = g.Graph.of(g.sum(y, 0), g.transpose(y)[::2])
    for _ in range(20):
        count = rng.choice([2, 4, 6])
        grids = {op: rng.choice(candidates(op, count)) for op in graph.operations}
        plan = Plan(graph, machines(count), steps_of(graph, grids, count, decide, lambda sink: None))
        found, result = movements(plan), simulate(plan)
        for number, load in enumerate(result.loads):
            mine = [one for one in found if one.step == number]
            assert sum(one.bytes_moved for one in mine) == int(load.moved.sum())
            assert all(one.collective.kind not in ("none", "slice") for one in mine if one.bytes_moved), plan


def test_an_edge_names_the_line_that_causes_it():
    x = g.as_tensor(np.ones((512, 512), np.float32))
    y = g.sum(g.transpose(g.exp(x)) + g.exp(x), 0)  # the line
    plan = make_plan(g.Graph.of(y), machines(4, memory="1GiB"), decide, pin={})
    line = next(k for k, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the line"))
    assert {one.line.rpartition(":")[2] for one in movements(plan) if one.line} == {str(line)}
    moves = plan.to_json()["moves"]
    assert sum(one["bytes_moved"] for one in moves) == plan.bytes_moved
    assert all(f"test_movement.py:{line}" in text for text in plan.explain().split("moved:\n")[-1].splitlines()[:1])


@pytest.mark.parametrize("seed", range(40))
def test_an_exchange_says_how_many_machines_take_part(seed):
    """As by the tasks: every machine that reads a block of another one, and every machine whose block is read."""
    chance = random.Random(seed)
    rows, count = chance.randrange(4, 13), chance.choice([3, 4, 6])
    made = g.exp(g.Tensor(g.Source(g.Hole("x"), g.TensorType((rows, 6), "float32"), "x")))
    start, stop = sorted(chance.sample(range(rows + 1), 2))
    read = made[start:stop] if chance.random() < 0.7 else made[start:stop][::-1]
    graph = g.Graph.of(g.relu(read))
    first, second = (min(extent, chance.randrange(1, count + 1)) for extent in (rows, stop - start))
    grids = {made.producer: (first, 1), graph.operations[-1]: (second, 1)}
    steps = steps_of(graph, grids, count, decide, lambda sink: None)
    plan = Plan(graph, machines(count, memory="1GiB"), steps)
    work = list(tasks(plan))
    talking = set()
    for task in work:
        if task.step == 1:
            for piece in (piece for read in task.reads for piece in read.pieces):
                other = work[piece.task].machine
                talking |= {task.machine, other} if other != task.machine else set()
    found = next(one for one in movements(plan) if one.step == 1)
    if found.collective.kind == "exchange":
        assert found.collective.members * found.collective.groups == len(talking), (rows, count, start, stop, grids)
    else:
        assert bool(found.bytes_moved) == bool(talking)
