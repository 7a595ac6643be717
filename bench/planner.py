"""Planning: seconds for a million shards, trials of the search, long graphs, large products in little memory."""

import json
import random
import time
import tracemalloc

import numpy as np

from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import machines, make_plan, simulate
from tileweave.planner.loads import Loads
from tileweave.planner.plan import Plan
from tileweave.planner.search.make import problem_of, tables_of
from tileweave.planner.search.pareto import Pareto
from tileweave.planner.steps import steps_of


def decide(operation, stage):
    return Decision(stage)


def nowhere(sink):
    return None


def row(case, **figures):
    print(json.dumps({"bench": "planner", "case": case, **figures}), flush=True)


def product(n):
    a, b = (g.Tensor(g.Source(g.Hole(name), g.TensorType((n, n), "float32"), name)) for name in "ab")
    return g.Graph.of(g.matmul(a, b))


def timed(function, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return value, min(times)


def million():
    graph, used = product(20_000), machines(64, memory="64GiB")

    def plan():
        steps = steps_of(graph, dict.fromkeys(graph.operations, (100, 100, 100)), 64, decide, nowhere)
        made = Plan(graph, used, steps)
        simulate(made)
        return made

    plan()
    made, seconds = timed(plan)
    tracemalloc.start()
    plan()
    peak = tracemalloc.get_traced_memory()[1]
    row("plan a product of 1,000,000 shards", seconds=seconds, shards=made.steps[0].cuts.count, peak_bytes=peak)
    tracemalloc.stop()


def trials():
    x = y = g.as_tensor(np.broadcast_to(np.float32(1), (256, 256)))
    for _ in range(10):
        y = g.relu(g.matmul(y, x))
    tables = tables_of(problem_of(g.Graph.of(y), machines(8, memory="1GiB"), decide, nowhere), Loads())
    search = Pareto(tables, 0)
    _, seconds = timed(lambda: search.run(8192), 1)
    row("trials of a graph of 20 operations", per_second=search.trials / seconds, frontier=len(search.frontier))


def long_graph(operations=600):
    chance = random.Random(0)
    values = [g.as_tensor(np.broadcast_to(np.float32(k), (128, 128))) for k in range(3)]
    total = values[0]
    while len(g.Graph.of(total).operations) < operations:
        for _ in range(25):
            a, b = chance.choice(values[-8:]), chance.choice(values[-8:])
            values.append(chance.choice([g.matmul, g.add, g.multiply])(a, b))
            total = total + values[-1]
    graph = g.Graph.of(total)
    _, seconds = timed(lambda: make_plan(graph, machines(16, memory="1GiB"), decide), 1)
    row("plan a long graph on 16 machines", operations=len(graph.operations), seconds=seconds)


def little_memory():
    graph = product(65536)
    plan, seconds = timed(lambda: make_plan(graph, machines(1024, memory="64MiB"), decide), 1)
    row("plan 65536^2 on 1,024 machines of 64 MiB", seconds=seconds, peak_bytes=max(plan.peak_bytes))


if __name__ == "__main__":
    million()
    trials()
    long_graph()
    little_memory()
