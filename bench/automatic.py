"""Plans beside what JAX and dask.array choose by themselves: the most bytes that a device receives, and seconds.

Both are given the operands in many even ways (of the activations and of the weights) and no other word; their best
result counts. JAX: the collectives of the compiled program on forced host devices, each as the least that a device
receives in it. dask: tasks of its graph go where most of their input lies, the least loaded among equals, as its
scheduler prefers; an array travels to a worker once. Seconds of both are equal shares of the arithmetic and the busiest
device's bytes over its link, one after the other, with no latency, no task, and nothing elementwise. Ours are given so
(``seconds_at_least``) and simulated with all of that, where transfers overlap with arithmetic.

With jax and dask installed; JSON lines.
"""

import argparse
import itertools
import os
import re
from collections import Counter
from math import prod

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=512"

from planner import BY_HAND, RATES, decide, row
from tileweave import graph as g
from tileweave.planner import machines, make_plan, simulate
from tileweave.planner.count import EFFICIENCY

GROUPS = re.compile(r"replica_groups=(?:\[(\d+),(\d+)\]|\{\{([\d,]*)\})")
RESULT = re.compile(
    r"= (\([^=]*?\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
RECEIVED = {
    "all-gather": lambda size, n: size * (n - 1) / n,
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
}


def square(count):
    """The factors of a count that are nearest to each other."""
    first = max(n for n in range(1, int(count**0.5) + 1) if count % n == 0)
    return first, count // first


# ---------------------------------------------------------------------------------------------------------------------
# JAX


def jax_mlp(x, w, v):
    import jax

    return jax.numpy.maximum(x @ w, 0) @ v


def jax_block(x, q, k, v, o, up, down):
    import jax
    from jax.numpy import einsum, maximum

    queries, keys, values = (einsum("bsw,whd->bhsd", x, w) for w in (q, k, v))
    mixed = einsum("bhst,bhtd->bhsd", jax.nn.softmax(einsum("bhsd,bhtd->bhst", queries, keys)), values)
    middle = x + einsum("bhsd,hdw->bsw", mixed, o)
    return middle + maximum(middle @ up, 0) @ down


def jax_ways(name, both=("a", "b")):
    """Shardings of the operands: every activation's with every pair of the weights', into and out of what is wide."""
    a, b = both
    if name == "MLP":
        ways = [(both, None), (None, both), (a, b), (b, a)]
        return [(x, w, v) for x, w, v in itertools.product(ways, ways, ways)]
    rows = [(both, None, None), (a, b, None), (b, a, None), (a, None, b), (b, None, a)]
    into = [((both, None, None), (both, None)), ((b, a, None), (b, a)), ((a, b, None), (a, b))]
    out = [((None, None, both), (None, both)), ((a, None, b), (a, b)), ((b, None, a), (b, a))]
    found = itertools.product(rows, into, out)
    return [(x, head, head, head, head_out, wide, wide_out) for x, (head, wide), (head_out, wide_out) in found]


def jax_found(name, sources, count):
    """(bytes, 1, operands) of every way."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    sizes = dict(zip("ab", square(count), strict=True))
    devices = np.array(jax.devices()[:count]).reshape(square(count))
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    program = {"MLP": jax_mlp, "block": jax_block}[name]
    shapes = [source.type.shape for source in sources]

    def even(shape, spec):
        return all(n % prod(sizes[axis] for axis in entry or ()) == 0 for n, entry in zip(shape, spec, strict=True))

    found = []
    for how in jax_ways(name):
        if all(map(even, shapes, how)):
            given = [
                jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*spec)))
                for shape, spec in zip(shapes, how, strict=True)
            ]
            made = jax.jit(program).lower(*given).compile()
            found.append((received(made.as_text(), count), 1.0, str(how)))
    return found


def received(text, count):
    """Bytes that a device receives in the collectives of a compiled program."""
    total = 0.0
    for line in text.splitlines():
        result = RESULT.search(line)
        if result is None:
            continue
        groups, members = GROUPS.search(line), count
        if groups is not None:
            members = int(groups[2]) if groups[2] else len(groups[3].split(",")) if groups[3] else count
        arrays = re.findall(r"(?:f32|s32|u32)\[([\d,]*)\]", result[1])
        size = sum(4 * prod(int(n) for n in dims.split(",") if n) for dims in arrays)
        total += RECEIVED[result[2]](size, members)
    return total


# ---------------------------------------------------------------------------------------------------------------------
# dask.array

SCALE = 8
"""dask's graphs run on extents so much smaller, in as many chunks, since only a run tells the sizes of chunks."""
MOST_TASKS = 60_000


def dask_found(name, sources, count):
    """(bytes, the most work of a worker over the mean, chunks) of every way of at most `MOST_TASKS` tasks."""
    import dask.array as da

    def array(source, parts):
        kept = (0,) if len(parts) == 3 and source.name == "x" else (1,) if source.name in "qkv" else ()
        kept = (0,) if source.name == "o" else kept  # the batch and the heads are as many as they are
        shape = [n if d in kept else n // SCALE for d, n in enumerate(source.type.shape)]
        return da.ones(shape, dtype="float32", chunks=[max(1, n // p) for n, p in zip(shape, parts, strict=True)])

    first, second = square(count)
    found = []
    if name == "MLP":
        ways = list(dict.fromkeys([(count, 1), (1, count), (first, second)]))
        weights = [(one, one, one) for one in [(1, 1), *ways]]
    else:
        batch = min(count, sources[0].type.shape[0])
        heads = min(count, sources[4].type.shape[0])
        ways = list(dict.fromkeys([(batch, count // batch, 1), (second, first, 1), (count // heads, 1, heads)]))
        ways = [way for way in ways if way[0] <= sources[0].type.shape[0]]
        weights = [((1, 1, 1), (1, 1, 1), (1, 1), (1, 1)), ((1, heads, 1), (heads, 1, 1), (1, heads), (heads, 1))]
    for ours, theirs in itertools.product(ways, weights):
        if name == "MLP":
            x, w, v = (array(source, p) for source, p in zip(sources, (ours, *theirs[1:]), strict=True))
            out = da.maximum(x @ w, 0) @ v
        else:
            head, head_out, wide, wide_out = theirs
            parts = (ours, head, head, head, head_out, wide, wide_out)
            x, q, k, v, o, up, down = (array(source, p) for source, p in zip(sources, parts, strict=True))
            queries, keys, values = (da.einsum("bsw,whd->bhsd", x, w) for w in (q, k, v))
            scores = da.einsum("bhsd,bhtd->bhst", queries, keys)
            e = da.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = da.einsum("bhst,bhtd->bhsd", e / e.sum(axis=-1, keepdims=True), values)
            middle = x + da.einsum("bhsd,hdw->bsw", mixed, o)
            out = middle + da.einsum("bsf,fw->bsw", da.maximum(da.einsum("bsw,wf->bsf", middle, up), 0), down)
        if sum(len(layer) for layer in out.dask.layers.values()) <= MOST_TASKS:
            words, uneven = scheduled(out, count)
            found.append((words * SCALE**2, uneven, f"{ours}, {theirs}"))
    return found


def scheduled(out, count):
    """(the most bytes that a worker receives of a dask array's graph, the most that one makes over their mean)."""
    from dask._task_spec import convert_legacy_graph
    from dask.order import order

    graph = convert_legacy_graph(dict(out.__dask_graph__()))
    turn = order(graph)
    needs = {key: set(task.dependencies) for key, task in graph.items()}
    left = Counter(need for row in needs.values() for need in row)
    roots = sorted((key for key in graph if not needs[key]), key=turn.__getitem__)
    at = {key: number * count // len(roots) for number, key in enumerate(roots)}
    values, sizes, load, got, held = {}, {}, Counter(), Counter(), {}
    for key in sorted(graph, key=turn.__getitem__):
        values[key] = graph[key]({need: values[need] for need in needs[key]})
        sizes[key] = getattr(values[key], "nbytes", 0)
        if key not in at:
            lies = Counter()
            for need in needs[key]:
                lies.update(dict.fromkeys(held[need], sizes[need]))
            most = max(lies.values())
            at[key] = min((w for w, n in lies.items() if n == most), key=lambda w: (load[w], w))
        worker = at[key]
        for need in needs[key]:
            got[worker] += sizes[need] * (worker not in held[need])
            held[need].add(worker)
            left[need] -= 1
            if not left[need]:
                del values[need]
        held[key] = {worker}
        load[worker] += sizes[key]
    return max(got.values(), default=0), max(load.values()) * count / sum(load.values())


# ---------------------------------------------------------------------------------------------------------------------
# all


def least_seconds(words, flops, used):
    """Bytes over the link and arithmetic at our derated rate, nothing else."""
    return words / used.link_bytes_per_second + flops / used.machines[0].flops_per_second / EFFICIENCY


def main(counts):
    for (name, (made, shape)), count in itertools.product(BY_HAND.items(), counts):
        sources, out, _ = made(shape, count)
        used, graph = machines(count, memory="64GiB", **RATES), g.Graph.of(out)
        place = {s.producer: "balanced" for s in sources}
        products = (op for op in graph.operations if op.operator in ("matmul", "einsum"))
        flops = sum(op.index.size * dict(op.signature.costs).get("flops", 0) for op in products) / count
        figures = {}
        for objective in ("seconds", "words"):
            plan = make_plan(graph, used, decide, place=place, objective=objective)
            words = simulate(plan).words_bytes
            at_least = least_seconds(words, flops, used)
            figures[objective] = {"seconds": plan.seconds, "seconds_at_least": at_least, "words_bytes": words}
        for peer, peer_found in (("jax", jax_found), ("dask", dask_found)):
            tried = [
                {"seconds_at_least": least_seconds(words, uneven * flops, used), "words_bytes": words, "how": how}
                for words, uneven, how in peer_found(name, [s.producer for s in sources], count)
            ]
            if tried:
                least = min(one["words_bytes"] for one in tried)
                best = min(tried, key=lambda one: one["seconds_at_least"])
                figures[peer] = {**best, "least_words_bytes": least, "ways": len(tried)}
        row(f"automatic: {name} on {count} devices", shape=shape, **figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="*", type=int, default=[8, 64, 512], help="numbers of devices")
    main(parser.parse_args().devices)
