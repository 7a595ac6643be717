"""The solvers against exhaustive search; the stochastic search is deterministic, resumable and finds the frontier."""

import itertools
import random

import numpy as np
import pytest
from integer_program import exact

from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.planner import (
    OBJECTIVES,
    Objective,
    machines,
    make_plan,
    register_cost_model,
    register_objective,
    simulate,
)
from tileweave.planner.loads import Loads
from tileweave.planner.search.islands import searched_together
from tileweave.planner.search.make import problem_of, tables_of
from tileweave.planner.search.pareto import MUTATORS, Mutator, Pareto, register_mutator
from tileweave.planner.search.solve import beam, cost_of, polished, relaxed
from tileweave.planner.simulate import MODELS


def tables(count=4, size=3, width=64):
    x = g.as_tensor(np.broadcast_to(np.float32(1), (width, width)))
    y = x
    for _ in range(size):
        y = g.relu(g.matmul(y, x))
    problem = problem_of(
        g.Graph.of(g.sum(y, 0), y), machines(count, memory="1GiB"), lambda o, s: Decision(s), lambda s: None
    )
    return tables_of(problem, Loads())


def test_the_solvers_find_the_least_of_all_choices():
    weigh = OBJECTIVES["seconds"].weigh
    for width in (8, 64, 512):
        found = tables(4, 1, width)
        every = itertools.product(*(range(len(o.choices)) for o in found.offers))
        least = min(found.measured(chosen)[0] for chosen in every)
        best = beam(found, weigh)[0]
        assert found.measured(best.chosen)[0] == pytest.approx(least)
        certified = exact(found, weigh)
        assert certified.cost == pytest.approx(least, rel=1e-4) and certified.gap <= 1e-3
        assert polished(found, weigh, best).cost <= best.cost * (1 + 1e-12)


def test_the_beam_is_close_to_the_certified_optimum():
    weigh = OBJECTIVES["seconds"].weigh
    found = tables(8, 6, 256)
    certified = exact(found, weigh)
    assert beam(found, weigh)[0].cost <= certified.cost * 1.02


@pytest.mark.parametrize("seed", range(4))
def test_dual_ascent_certifies_what_the_integer_program_finds(seed):
    """Random graphs, on which the beam of partial choices misses the optimum by up to half."""
    chance = random.Random(seed)
    values = [g.as_tensor(np.broadcast_to(np.float32(k), (96, 96))) for k in range(2)]
    for _ in range(10):
        a, b = chance.choice(values[-4:]), chance.choice(values[-4:])
        values.append(chance.choice([g.matmul, g.add, g.maximum])(a, b))
    total = values[2]
    for value in values[3:]:
        total = total + value
    problem = problem_of(
        g.Graph.of(total, g.sum(values[-1], 0)), machines(4, memory="1GiB"), lambda o, s: Decision(s), lambda s: None
    )
    found, weigh = tables_of(problem, Loads()), OBJECTIVES["seconds"].weigh
    best, certified = relaxed(found, weigh), exact(found, weigh)
    assert best.cost == pytest.approx(cost_of(found, weigh, best.chosen)) and best.gap is not None
    assert best.cost * (1 - best.gap) <= certified.cost * (1 + 1e-9)
    assert best.cost <= certified.cost * 1.01
    assert best.cost <= beam(found, weigh)[0].cost * (1 + 1e-12)


def true_frontier(search):
    every = [tuple(c) for c in itertools.product(*(range(n) for n in search.counts))]
    costs = np.asarray([search.cost(c) for c in every])
    import moocore

    return {tuple(row) for row in costs[moocore.is_nondominated(costs)]}


@pytest.mark.parametrize("seed", range(10))
def test_the_true_frontier_of_a_small_graph_is_found(seed):
    search = Pareto(tables(4, 1), seed)
    search.run(20_000)
    found = {search.points[c] for c in search.frontier}
    assert found == true_frontier(search)


@pytest.mark.parametrize("seed", range(10))
def test_the_search_alone_comes_near_what_the_integer_program_certifies(seed):
    """Without a start from the additive solvers: 13 operations, some 10^15 choices."""
    found, weigh = tables(8, 6, 256), OBJECTIVES["seconds"].weigh
    search = Pareto(found, seed)
    search.run(20_000)
    assert search.least()[0] <= 1.05 * relaxed(found, weigh).cost


def test_the_same_seed_gives_the_same_frontier_and_a_search_goes_on_where_it_stopped():
    shared = tables(8, 4)
    one, two, three = (Pareto(shared, 5) for _ in range(3))
    one.run(2048)
    two.run(2048)
    assert one.frontier == two.frontier and one.points == two.points
    three.run(1024)
    halfway = three.least()
    three.run(1024)
    assert all(a <= b for a, b in zip(three.least(), halfway, strict=True))


def test_mutators_can_be_added_and_names_are_unique():
    seen = []

    def propose(search, parent, chance):
        seen.append(parent)
        return parent

    register_mutator(Mutator("test_same", propose))
    try:
        with pytest.raises(PlanError, match="there is a mutator"):
            register_mutator(Mutator("test_same", propose))
        Pareto(tables(4, 2), 1).run(1024)
        assert len(seen) > 20  # every rule keeps a least share
    finally:
        del MUTATORS["test_same"]


def test_plans_of_a_search_are_deterministic_and_no_worse():
    x = g.as_tensor(np.broadcast_to(np.float32(1), (512, 512)))
    graph = g.Graph.of(g.softmax(g.matmul(g.relu(g.matmul(x, x)), x)))
    plain = make_plan(graph, machines(4, memory="1GiB"), lambda o, s: Decision(s))
    one, two = (make_plan(graph, machines(4, memory="1GiB"), lambda o, s: Decision(s), trials=512) for _ in range(2))
    assert one == two and one.seconds <= plain.seconds


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_find_the_same_however_many_processes_they_run_in(processes):
    shared = tables(8, 4)
    found = searched_together(shared, 6000, seed=3, workers=3, processes=processes)
    alone = searched_together(shared, 6000, seed=3, workers=3, processes=1)
    assert (found.frontier, found.points, found.trials) == (alone.frontier, alone.points, alone.trials)
    assert found.trials <= 2048


def test_a_search_goes_on_from_its_state():
    shared = tables(8, 4)
    whole, first, second = (Pareto(shared, 5) for _ in range(3))
    whole.run(2048)
    first.run(1024)
    second.restore(first.state())
    second.run(1024)
    assert second.trials == whole.trials and second.least() == whole.least()


def test_a_search_stops_where_trials_cost_more_than_they_save():
    shared = tables(8, 6, 256)
    trials = []
    for runs in (1e-9, 1.0, None):
        search = Pareto(shared, 2, runs)
        search.run(40_000)
        trials.append(search.trials)
    assert trials[0] <= trials[1] <= trials[2] and trials[0] < trials[2]


def test_every_objective_takes_the_plan_with_its_least():
    x = g.as_tensor(np.broadcast_to(np.float32(1), (256, 256)))
    graph = g.Graph.of(g.softmax(g.matmul(g.relu(g.matmul(x, x)), x)), g.sum(x, 0))
    used, values = machines(4, memory="1GiB"), {}
    for name in OBJECTIVES:
        plan = make_plan(graph, used, lambda o, s: Decision(s), objective=name, trials=512)
        values[name] = {other: OBJECTIVES[other].of(plan, simulate(plan)) for other in OBJECTIVES}
    for name in OBJECTIVES:
        assert values[name][name] <= min(row[name] for row in values.values()) * 1.02, name
    assert values["peak_memory"]["peak_memory"] < values["seconds"]["peak_memory"]


def test_an_objective_of_the_users_own():
    x = g.as_tensor(np.broadcast_to(np.float32(1), (256, 256)))
    graph = g.Graph.of(g.matmul(x, x))
    used = machines(4, memory="1GiB")

    def tasks(plan, result):
        return float(plan.tasks)

    few = make_plan(graph, used, lambda o, s: Decision(s), objective=tasks)
    assert few.tasks == 2
    register_objective(Objective("test_tasks", tasks))
    try:
        assert make_plan(graph, used, lambda o, s: Decision(s), objective="test_tasks").steps == few.steps
        with pytest.raises(PlanError, match="there is an objective"):
            register_objective(Objective("test_tasks", tasks))
    finally:
        del OBJECTIVES["test_tasks"]


def test_a_cost_model_of_a_third_party_decides():
    """A model by which every task takes a second makes the plan with the fewest tasks the fastest."""
    x = g.as_tensor(np.broadcast_to(np.float32(1), (2048, 2048)))
    graph, used = g.Graph.of(g.matmul(x, x)), machines(4, memory="1GiB")
    plain = make_plan(graph, used, lambda o, s: Decision(s))
    register_cost_model("test_tasks", lambda step, load, rates: load.tasks * 1.0)
    try:
        with pytest.raises(PlanError, match="there is a cost model"):
            register_cost_model("test_tasks", lambda step, load, rates: load.tasks * 1.0)
        plan = make_plan(graph, used, lambda o, s: Decision(s), model="test_tasks")
        assert simulate(plan, model="test_tasks").seconds == pytest.approx(plan.seconds)
        assert plan.seconds <= simulate(plain, model="test_tasks").seconds and plan.seconds >= 1
    finally:
        del MODELS["test_tasks"]
    with pytest.raises(PlanError, match="is no cost model"):
        make_plan(graph, used, lambda o, s: Decision(s), model="test_tasks")
