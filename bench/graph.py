"""Building, sharing, comparing, running and planning graphs: seconds, beside the same chain of additions in NumPy."""

import argparse
import itertools
import json
import pickle
import statistics
import time

import numpy as np

from tileweave import graph as g
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.shard import input_region, output_partition
from tileweave.planner import machines, make_plan

LENGTH, RUNS = 10_000, 5
FRESH = itertools.count()


def timed(function):
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return value, statistics.median(times), max(times) - min(times)


def chain(x, length=LENGTH, first=0.0):
    y = x
    for k in range(length):
        y = y + (first + k % 7)
    return y


def tree(x, length=LENGTH):
    """Additions side by side, joined two by two: shallow and wide."""
    level = [x + float(k) for k in range(length // 2)]
    while len(level) > 1:
        level = [a + b for a, b in itertools.pairwise([*level, x])][::2]
    return level[0]


def row(case, seconds, spread, **more):
    print(json.dumps({"bench": "graph", "case": case, "median_seconds": seconds, "spread_seconds": spread, **more}))


def measure(case, function):
    value, seconds, spread = timed(function)
    row(case, seconds, spread)
    return value


def main() -> None:
    array = np.ones((2, 2))
    x = g.as_tensor(array)
    _, peer, _ = timed(lambda: chain(array))
    _, seconds, spread = timed(lambda: chain(x, first=1000.0 * next(FRESH)))
    row(f"build a chain of {LENGTH} additions", seconds, spread, peer="numpy", peer_seconds=peer, ratio=seconds / peer)
    y = chain(x)
    measure("build it again, sharing every node", lambda: chain(x))
    measure(f"build a tree of {LENGTH} additions", lambda: tree(g.as_tensor(np.ones((2, 2)))))
    graph = g.Graph.of(y)
    nodes = measure("walk its nodes", graph.nodes)
    measure(f"hash its {len(nodes)} nodes", lambda: len(set(nodes)))
    measure("compare it with itself built again", lambda: g.Graph.of(chain(x)) == graph)
    data = measure("pickle it", lambda: pickle.dumps(graph))
    measure(f"unpickle it from {len(data)} bytes", lambda: pickle.loads(data))
    measure("verify it", lambda: g.verify(graph))
    measure("evaluate it", lambda: g.evaluate([y]))
    measure("print it", lambda: str(graph))
    document = measure("write it as JSON", lambda: g.to_json(graph))
    measure("read it from JSON", lambda: g.from_json(document))
    measure("differentiate it", lambda: g.grad(g.sum(y * y), x))
    measure("fuse it", lambda: rewrite(graph, g.OPTIMIZATIONS))
    halves = {o: g.partition(o, (2, 1)) for o in graph.operations}
    sharded = measure("expand it to two shards each", lambda: g.expand(graph, halves))
    measure("check the sharding", lambda: g.is_sharding(sharded, graph))
    measure("coalesce the shards", lambda: g.coalesce(sharded))
    for length, count in ((100, 1), (100, 4), (1000, 1)):
        short = g.Graph.of(chain(g.as_tensor(np.ones((64, 64))), length))
        measure(
            f"plan {length} additions on {count} machine{'s' if count > 1 else ''}",
            lambda short=short, count=count: make_plan(short, machines(count), lambda op, stage: ""),
        )
    million()
    shards()


def million() -> None:
    """A contraction cut into a million shards: built, costed and printed from its cuts."""
    big = [g.as_tensor(np.broadcast_to(np.float32(1), (20_000, 20_000))) for _ in range(2)]
    operation = g.matmul(*big).producer

    def look():
        cuts = g.partition(operation, (100, 100, 100))
        flops = operation.signature.cost("flops", cuts.block(0)) * cuts.count
        read = sum(input_region(operation, x, cuts.block(0)).size * cuts.count * 4 for x in ("x0", "x1"))
        return (
            f"{cuts}: {cuts.count} shards, {flops} flops, {read} bytes read, {output_partition(operation, 'out', cuts)}"
        )

    _, seconds, spread = timed(look)
    row("build, cost and print a partition of 1000000 shards", seconds, spread)


def shards() -> None:
    """Ten thousand shards of two operations: written out, verified, checked against the whole, put together again."""
    graph = g.Graph.of(g.relu(g.as_tensor(np.ones((200, 200))) + 1.0))
    cuts = {operation: g.partition(operation, (100, 100)) for operation in graph.operations}
    sharded, seconds, spread = timed(lambda: g.expand(graph, cuts))
    row("expand two operations to 10000 shards each", seconds, spread)
    for name, act in {
        "verify": lambda: g.verify(sharded),
        "check the sharding of": lambda: g.check_sharding(sharded, graph),
        "coalesce": lambda: g.coalesce(sharded),
    }.items():
        _, seconds, spread = timed(act)
        row(f"{name} these 20000 shards", seconds, spread)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
