"""Building, walking, pickling and planning graphs: seconds, beside the same chain of additions in NumPy."""

import json
import pickle
import statistics
import time

import numpy as np

from tileweave import graph as g
from tileweave.planner import machines, make_plan

LENGTH, RUNS = 10_000, 5


def timed(function):
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return value, statistics.median(times), max(times) - min(times)


def chain(x, length=LENGTH):
    y = x
    for k in range(length):
        y = y + float(k % 7)
    return y


def row(case, seconds, spread, **more):
    print(json.dumps({"bench": "graph", "case": case, "median_seconds": seconds, "spread_seconds": spread, **more}))


def main() -> None:
    array = np.ones((2, 2))
    _, peer, _ = timed(lambda: chain(array))
    y, seconds, spread = timed(lambda: chain(g.as_tensor(array)))
    row(f"build a chain of {LENGTH} additions", seconds, spread, peer="numpy", peer_seconds=peer, ratio=seconds / peer)
    graph = g.Graph.of(y)
    nodes, seconds, spread = timed(graph.nodes)
    row(f"walk its {len(nodes)} nodes", seconds, spread)
    data, seconds, spread = timed(lambda: pickle.dumps(graph))
    row(f"pickle it to {len(data)} bytes", seconds, spread)
    for count in (1, 4):
        short = g.Graph.of(chain(g.as_tensor(np.ones((64, 64))), 100))
        _, seconds, spread = timed(
            lambda short=short, count=count: make_plan(short, machines(count), lambda op, stage: "")
        )
        row(f"plan 100 additions on {count} machines", seconds, spread)


if __name__ == "__main__":
    main()
