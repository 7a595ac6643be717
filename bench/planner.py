"""Planning, in processor seconds: a million shards, trials, long graphs, large products in little memory.

``defaults``: only the seconds that plans predict without a probe, beside those of runs. ``sizes``: those predicted with
and without a probe for programs of random sizes, by a seed that is printed.
"""

import argparse
import json
import os
import random
import time
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import machines, make_plan, simulate
from tileweave.planner.bounds import best_grid
from tileweave.planner.loads import Loads
from tileweave.planner.plan import Plan
from tileweave.planner.search.make import problem_of, tables_of
from tileweave.planner.search.pareto import Pareto
from tileweave.planner.steps import steps_of
from tileweave.runtime.probe import probe
from tileweave.runtime.trace import RunReport

RATES = {"bytes_per_second": 10e9, "task_seconds": 10e-6}
"""Of the devices of the table of plans by hand, beside 50 Gflop/s."""


def decide(operation, stage):
    return Decision(stage)


def nowhere(sink):
    return None


def row(case, **figures):
    print(json.dumps({"bench": "planner", "case": case, **figures}), flush=True)


def product(n):
    a, b = (g.Tensor(g.Source(g.Hole(name), g.TensorType((n, n), "float32"), name)) for name in "ab")
    return g.Graph.of(g.matmul(a, b))


def timed(function, repeats=3, clock=time.process_time):
    times = []
    for _ in range(repeats):
        start = clock()
        value = function()
        times.append(clock() - start)
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


def long_graph(operations, count):
    chance = random.Random(0)
    values = [g.as_tensor(np.broadcast_to(np.float32(k), (128, 128))) for k in range(3)]
    total = values[0]
    while len(g.Graph.of(total).operations) < operations:
        for _ in range(25):
            a, b = chance.choice(values[-8:]), chance.choice(values[-8:])
            values.append(chance.choice([g.matmul, g.add, g.multiply])(a, b))
            total = total + values[-1]
    graph = g.Graph.of(total)
    plan, seconds = timed(lambda: make_plan(graph, machines(count, memory="1GiB"), decide), 1)
    row(f"plan a long graph on {count} machines", operations=len(graph.operations), seconds=seconds, gap=plan.gap)


def little_memory():
    graph = product(65536)
    plan, seconds = timed(lambda: make_plan(graph, machines(1024, memory="64MiB"), decide), 1)
    row("plan 65536^2 on 1,024 machines of 64 MiB", seconds=seconds, peak_bytes=max(plan.peak_bytes))


def source(shape, name):
    return g.Tensor(g.Source(g.Hole(name), g.TensorType(shape, "float32"), name))


def mlp(shape, count):
    """The sources, the result, and parallelisations by hand as pins."""
    tokens, width = shape
    x, w1, w2 = source((tokens, width), "x"), source((width, 4 * width), "w1"), source((4 * width, width), "w2")
    up = g.matmul(x, w1)
    mid = g.relu(up)
    down = g.matmul(mid, w2)
    ways = {
        "megatron": {up: (1, count, 1), mid: (1, count), down: (1, 1, count)},
        "fsdp": {up: (count, 1, 1), mid: (count, 1), down: (count, 1, 1)},
        "data 1/4, tensor 4": {up: (count // 4, 4, 1), mid: (count // 4, 4), down: (count // 4, 1, 4)},
    }
    return (x, w1, w2), down, ways


def block(shape, count):
    """A transformer block of attention in heads and a perceptron, with what is added back and without its norms.

    By hand: tensor parallelism takes as many heads as there are, the batch the rest; the others cut the batch and then
    the sequence, of which keys and values are gathered. What is not pinned is planned.
    """
    batch, tokens, width, heads = shape
    each = width // heads
    x, out = source((batch, tokens, width), "x"), source((heads, each, width), "o")
    up, down = source((width, 4 * width), "up"), source((4 * width, width), "down")
    weights = [source((width, heads, each), name) for name in "qkv"]
    q, k, v = (g.einsum("bsw,whd->bhsd", x, w) for w in weights)
    scores = g.einsum("bhsd,bhtd->bhst", q, k)
    mixed = g.einsum("bhst,bhtd->bhsd", g.softmax(scores), v)
    joined = g.einsum("bhsd,hdw->bsw", mixed, out)
    middle = x + joined
    wide = g.einsum("bsw,wf->bsf", middle, up)
    opened = g.relu(wide)
    narrow = g.einsum("bsf,fw->bsw", opened, down)

    def cut(data, sequence, tensor):
        rows = {q: (data, tensor, sequence, 1, 1), scores: (data, tensor, sequence, 1, 1)}
        rows |= dict.fromkeys((k, v, mixed), rows[q]) | {joined: (data, sequence, 1, tensor, 1)}
        return rows | {
            wide: (data, sequence, tensor, 1),
            opened: (data, sequence, tensor),
            narrow: (data, sequence, 1, tensor),
        }

    most, data = min(count, heads), min(count, batch)
    ways = {
        "megatron": cut(count // most, 1, most),
        "fsdp": cut(data, count // data, 1),
        "data 1/4, tensor 4": cut(min(count // 4, batch), count // 4 // min(count // 4, batch), 4),
    }
    return (x, *weights, out, up, down), middle + narrow, ways


BY_HAND = {"MLP": (mlp, (8192, 1024)), "block": (block, (32, 256, 1024, 16))}


def by_hand():
    """Our plan beside parallelisations written by hand: seconds and the most bytes that a machine receives."""
    for name, (made, shape) in BY_HAND.items():
        for count in (8, 64, 512):
            sources, out, ways = made(shape, count)
            place = {s.producer: "balanced" for s in sources}
            used, graph = machines(count, memory="64GiB", **RATES), g.Graph.of(out)

            def planned(graph=graph, used=used, place=place, **how):
                plan = make_plan(graph, used, decide, place=place, **how)
                return {"seconds": plan.seconds, "words_bytes": simulate(plan).words_bytes}

            figures = {"ours": planned(), "ours, words": planned(objective="words")}
            figures |= {way: planned(pin=pins) for way, pins in ways.items()}
            row(f"{name} on {count} devices", shape=shape, **figures)


def random_products(cases=100, seed=7):
    """The most bytes that a machine receives over those of the best of all grids, for products of random shapes."""
    chance = random.Random(seed)
    ratios, slowest = [], 0.0
    for _ in range(cases):
        m, n, k = (int(2 ** chance.uniform(6, 16.5)) for _ in range(3))
        count = chance.choice([2, 3, 5, 7, 8, 12, 31, 64, 100, 127, 250, 512, 1000, 1024, 2048, 4096])
        a, b = source((m, k), "a"), source((k, n), "b")
        place = {s.producer: "balanced" for s in (a, b)}
        used = machines(count, memory="64GiB")
        graph = g.Graph.of(g.matmul(a, b))
        plan, seconds = timed(partial(make_plan, graph, used, decide, place=place, objective="words"), 1)
        slowest = max(slowest, seconds)
        ratios.append(simulate(plan).words_bytes / 4 / best_grid(m, n, k, count)[1])
    within = sum(r <= 1.01 for r in ratios)
    figures = {"within_1_percent": within, "median": np.median(ratios), "most": max(ratios), "seconds_most": slowest}
    row("products of random shapes", cases=cases, **figures)


def drawn(seed, cases=12):
    """(name, tensor) of programs on arrays in memory: products, chains, softmaxes, sums, perceptrons, transposes."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)

    def array(m, n):
        return tw.source(rng.standard_normal((m, n), dtype=np.float32))

    for number in range(cases):
        m, n, k = (chance.choice([512, 1024, 1536, 2048]) for _ in range(3))
        x, kind = array(m, k), number % 6
        if kind == 0:
            yield f"product {m} x {n} x {k}", x @ array(k, n)
        elif kind == 1:
            yield f"chain {4 * m} x {k}", tw.exp(array(4 * m, k) * 0.5) + 1.0
        elif kind == 2:
            yield f"softmax {4 * m} x {k}", tw.softmax(array(4 * m, k))
        elif kind == 3:
            axis = chance.randrange(2)
            yield f"sum {4 * m} x {k}, axis {axis}", tw.sum(array(4 * m, k), axis)
        elif kind == 4:
            for width in (k, n, n):
                x = tw.relu(x @ array(x.shape[1], width))
            yield f"perceptron of three layers {m} x {k} x {n}", x
        else:
            yield f"x + transposed y {n} x {n}", array(n, n) + tw.transpose(array(n, n))


def predicted(runtime="local", seed=0):
    """Bytes and seconds that plans predict for the machines that the probe measures, beside those of runs."""
    if runtime == "ray":
        from tileweave.runtime.ray.session import connect

        connect(2)
        used = probe("auto", seconds=4.0)
        one = used.machines[0]
        half = replace(
            one, cores=1, flops_per_second=one.flops_per_second / 2, bytes_per_second=one.bytes_per_second / 2
        )
        used = replace(used, machines=tuple(replace(half, name=f"half{k}") for k in range(2)))
    else:
        used = probe(seconds=4.0)
    ratios = []
    for name, tensor in drawn(seed):
        plan = tw.plan(tensor, used)
        report = RunReport(plan)
        tw.run(plan, runtime=runtime, listeners=[report])
        _, seconds = timed(lambda plan=plan: tw.run(plan, runtime=runtime), 7, time.perf_counter)
        ratios.append(plan.seconds / seconds)
        figures = {"predicted_ms": 1e3 * plan.seconds, "measured_ms": 1e3 * seconds, "ratio": ratios[-1]}
        for what in ("bytes_read", "bytes_moved"):
            figures |= {f"{what}_predicted": getattr(plan, what)}
            figures |= {f"{what}_measured": sum(getattr(step, what) for step in report.steps)}
        row(f"predicted, {runtime}: {name}", **figures)
    row(f"predicted, {runtime}", least=min(ratios), median=np.median(ratios), most=max(ratios))


def of_random_sizes(seed, cases):
    """(name, tensor) of programs on arrays in memory, of some bytes to some 64 MiB."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)

    def extent(most):
        return int(2 ** chance.uniform(3 if most < 11 else 4, most))

    def array(*shape):
        return tw.source(rng.standard_normal(shape, dtype=np.float32))

    for number in range(cases):
        kind, m, n, k = number % 6, extent(12), extent(12), extent(10)
        if kind == 0:
            m, n = extent(10.5), extent(10.5)
            yield f"product {m} x {n} x {k}", array(m, k) @ array(k, n)
        elif kind == 1:
            x, y, which = array(m, n), array(m, n), chance.randrange(4)
            made = tw.exp(x * 0.5) + 1.0, x + y, tw.relu(x * 2.0 + 1.0) + x, tw.tanh(x) * x
            yield f"chain {which} {m} x {n}", made[which]
        elif kind == 2:
            axis = chance.randrange(2)
            yield f"sum {m} x {n}, axis {axis}", tw.sum(array(m, n), axis)
        elif kind == 3:
            yield f"softmax {m} x {n}", tw.softmax(array(m, n))
        elif kind == 4:
            yield f"x + transposed y {m} x {n}", array(m, n) + tw.transpose(array(n, m))
        else:
            m, n = extent(10), extent(10)
            x = array(m, k)
            for width in (k, n, n):
                x = tw.relu(x @ array(x.shape[1], width))
            yield f"perceptron of three layers {m} x {k} x {n}", x


def sizes(seed, cases=84, seconds=0.15):
    """Seconds that plans predict for programs of random sizes, beside the least of many runs."""
    used, ratios = probe(seconds=6.0), {"probed": [], "by default": []}
    for name, tensor in of_random_sizes(seed, cases):
        plans = {"probed": tw.plan(tensor, used), "by default": tw.plan(tensor)}
        plan, end = plans["probed"], time.perf_counter() + seconds
        least = timed(lambda plan=plan: tw.run(plan), 5, time.perf_counter)[1]
        while time.perf_counter() < end:
            least = min(least, timed(lambda plan=plan: tw.run(plan), 5, time.perf_counter)[1])
        found = {how: one.seconds / least for how, one in plans.items()}
        for how, ratio in found.items():
            ratios[how].append(ratio)
        row(f"of random sizes: {name}", measured_ms=1e3 * least, **found)
    for how, every in ratios.items():
        figures = {f"within_{k}": sum(1 / k <= ratio <= k for ratio in every) for k in (2, 3)}
        figures |= {"least": min(every), "median": np.median(every), "most": max(every)}
        row(f"of random sizes, {how}", seed=seed, cases=cases, load=os.getloadavg()[0], **figures)


def of_sizes():
    """(name, tensor) of programs on arrays that fit into caches of the processor, and on larger ones."""
    rng = np.random.default_rng(0)

    def array(m, n):
        return tw.source(rng.random((m, n), np.float32))

    for n in (128, 512, 1024):
        yield f"product {n} x {n} x {n}", array(n, n) @ array(n, n)
    for m, n in ((256, 256), (1024, 1024), (4096, 1536), (6144, 4096)):
        x = array(m, n)
        yield f"sum {m} x {n}, axis 0", tw.sum(x, 0)
        yield f"sum {m} x {n}, axis 1", tw.sum(x, 1)
        yield f"exp {m} x {n}", tw.exp(x)
        yield f"x + y {m} x {n}", x + array(m, n)
        yield f"relu(2 x + 1) + x {m} x {n}", tw.relu(x * 2.0 + 1.0) + x
        yield f"softmax {m} x {n}", tw.softmax(x)


def defaults(seconds=0.5):
    """Seconds that plans predict for the machines that nobody measured, beside the least of many runs."""
    ratios = []
    for name, tensor in of_sizes():
        plan, end = tw.plan(tensor), time.perf_counter() + seconds
        least = timed(lambda plan=plan: tw.run(plan), 5, time.perf_counter)[1]
        while time.perf_counter() < end:
            least = min(least, timed(lambda plan=plan: tw.run(plan), 5, time.perf_counter)[1])
        ratios.append(plan.seconds / least)
        figures = {"predicted_ms": 1e3 * plan.seconds, "measured_ms": 1e3 * least, "ratio": ratios[-1]}
        row(f"by default: {name}", **figures)
    within = sum(1 / 3 <= ratio <= 3 for ratio in ratios)
    row("by default", cases=len(ratios), within_3=within, least=min(ratios), median=np.median(ratios), most=max(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("defaults", "sizes"), help="one table instead of all the others")
    parser.add_argument("--seed", type=int, default=None, help="of the sizes")
    options = parser.parse_args()
    if options.part == "defaults":
        defaults()
    elif options.part == "sizes":
        sizes(random.randrange(1 << 20) if options.seed is None else options.seed)
    else:
        million()
        trials()
        long_graph(600, 16)
        long_graph(1000, 64)
        little_memory()
        by_hand()
        random_products()
        defaults()
        sizes(random.randrange(1 << 20))
        predicted()
        predicted("ray")


if __name__ == "__main__":
    main()
