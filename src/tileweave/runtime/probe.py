"""What this machine, or each node of a Ray cluster, can do: measured at the user's call, as machines for the planner.

Rates are written as peak rates, such that what the planner derates them to is what was measured. Each figure is the
best of repeats within its share of the time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave import lower
from tileweave.backends.host import cache_bytes, last_caches
from tileweave.errors import PlanError, RunError
from tileweave.planner import Machine, Machines, Plan, machines
from tileweave.planner.costs import OBJECT_BYTES
from tileweave.planner.count import EFFICIENCY
from tileweave.planner.steps import steps_of
from tileweave.runtime import api
from tileweave.runtime.io import files as io

DTYPES = ("float32", "float64", "float16", "int32")
EDGE = 768
"""Rows and columns of the product by which arithmetic is measured."""
BYTES = 64 << 20
"""Of the arrays by which bandwidths are measured: more than most caches hold."""
SMALL = 4 * OBJECT_BYTES
"""Of arrays that are objects of their own, and pass in next to no time; halves of them are objects, too."""
LARGE = 1 << 24
"""Of arrays whose bytes count, and whose pages the store of objects has in use again after few runs."""
TINY = 1 << 12
"""Of arrays that travel with the tasks."""
LEAST_WORKING_SET = 1 << 16
"""Bytes of what is read and written together, for the rates of caches; less says more of calls than of caches."""
CROSSED = 500
"""Rows and columns of arrays that are read across; no power of two, whose columns would share a cache's set."""
CALLS = 32
TASKS = 500
WAIT_SECONDS = 120
"""How long a node of a cluster may take to answer."""


def probe(address: str | None = None, *, folder: str | None = None, seconds: float = 4.0) -> Machines:
    """Measured machines: this one, or every node of the Ray cluster at an address.

    Args:
        address: of a running cluster; this machine alone without one.
        folder: where sources and sinks will lie; a temporary folder by default.
        seconds: about how long each machine is measured.

    Raises:
        PlanError: seconds that are no time, a folder that cannot be written. RunError: no cluster answers.
    """
    if not seconds > 0:
        raise PlanError("probe(seconds)", f"{seconds!r} is no time", legal="more than 0")
    if folder is not None and not (Path(folder).is_dir() and os.access(folder, os.W_OK)):
        raise PlanError("probe(folder)", f"{folder!r} cannot be written", legal="a folder")
    return _cluster(address, folder, seconds) if address is not None else _host(folder, seconds)


def _host(folder: str | None, seconds: float) -> Machines:
    each = seconds / (len(DTYPES) + 9)
    run, call = _call_seconds(each)
    name = os.uname().nodename if hasattr(os, "uname") else "host"
    rates = {dtype: _flops_per_second(dtype, each) / EFFICIENCY for dtype in DTYPES}
    one = replace(
        machines(1).machines[0],
        name=name,
        flops_per_second=rates["float32"],
        bytes_per_second=_bytes_per_second(each) / EFFICIENCY,
        flops=tuple(sorted((dtype, rate) for dtype, rate in rates.items() if dtype != "float32")),
        functions_per_second=_functions_per_second(each, run) / EFFICIENCY,
        caches=_caches(each, run),
        crossing=_crossing(each, run),
    )
    bandwidth, latency = _copies(each)
    costs: dict[str, Any] = {"task_seconds": _task_seconds(folder, each), "call_seconds": call, "run_seconds": run}
    return Machines((one,), bandwidth, latency, **costs, **_storage(folder, 2 * each))


def _best(function: Callable[[], Any], seconds: float) -> float:
    """The least time of a call, of as many as fit; the first one is not counted, for it may compile."""
    function()
    end, least = time.perf_counter() + seconds, float("inf")
    while True:
        start = time.perf_counter()
        function()
        now = time.perf_counter()
        least = min(least, now - start)
        if now >= end:
            return max(least, 1e-9)


def _hole(name: str, like: np.ndarray[Any, Any]) -> g.Tensor:
    """A source that each run binds: what stands on constants is computed only once."""
    return api.source(name=name, shape=like.shape, dtype=like.dtype)


def _flops_per_second(dtype: str, seconds: float) -> float:
    data = np.ones((EDGE, EDGE), dtype)
    plan = api.plan(g.matmul(_hole("x", data), _hole("y", data)))
    return float(2 * EDGE**3 / _best(lambda: api.run(plan, bind={"x": data, "y": data}), seconds))


def _bytes_per_second(seconds: float, size: int = BYTES, apart: float = 0.0) -> float:
    """Of an operation from an array of so many bytes to another; a time is taken off that a run has anyhow."""
    data, out = (np.ones(size // 4, np.float32) for _ in range(2))
    plan = api.plan(g.relu(_hole("x", data)))
    took = _best(lambda: api.run(plan, bind={"x": data}, out=out), seconds)
    return 2 * size / max(took - apart, took / 4)


def _caches(seconds: float, apart: float) -> tuple[tuple[int, float], ...]:
    """(working set, rate) of ever larger ones, up to what the last cache holds."""
    last = max(cache_bytes()[2] * last_caches(), LEAST_WORKING_SET)
    sizes = [1 << power for power in range(LEAST_WORKING_SET.bit_length() - 1, last.bit_length())]
    each = seconds / len(sizes)
    return tuple((size, _bytes_per_second(each, size // 2, apart) / EFFICIENCY) for size in sizes)


def _crossing(seconds: float, apart: float) -> float:
    """How many times as long an operand takes that lies across the other and the result than one that lies along."""
    data, out = (np.ones((CROSSED, CROSSED), np.float32) for _ in range(2))
    took = []
    for other in (lambda y: y, g.transpose):
        plan = api.plan(g.add(_hole("x", data), other(_hole("y", data))))
        took.append(_best(lambda plan=plan: api.run(plan, bind={"x": data, "y": data}, out=out), seconds / 2) - apart)  # type: ignore[misc]
    return max(1.0, 1 + 3 * (took[1] / max(took[0], 1e-9) - 1))


def _functions_per_second(seconds: float, apart: float) -> float:
    """The geometric mean of a fast function and a slow one, of arrays in a cache."""
    data, out = (np.full(1 << 17, 0.5, np.float32) for _ in range(2))
    rates = []
    for function in (g.exp, g.tanh):
        plan = api.plan(function(_hole("x", data)))
        took = _best(lambda plan=plan: api.run(plan, bind={"x": data}, out=out), seconds / 2)  # type: ignore[misc]
        rates.append(data.size / max(took - apart, took / 4))
    return float(np.sqrt(rates[0] * rates[1]))


def _call_seconds(seconds: float) -> tuple[float, float]:
    """(what a run costs whatever it computes, what each call of native code in it adds)."""
    data, out = (np.ones((8, 8), np.float32) for _ in range(2))
    took = []
    for count in (1, 1 + CALLS):
        y = _hole("x", data)
        for _ in range(count):
            y = g.matmul(y, data)
        plan = api.plan(y)
        took.append(_best(lambda plan=plan: api.run(plan, bind={"x": data}, out=out), seconds / 2))  # type: ignore[misc]
    call = max((took[1] - took[0]) / CALLS, 1e-8)
    return max(took[0] - call, 1e-8), call


def _copies(seconds: float) -> tuple[float, float]:
    """(bytes per second, seconds of a copy of nothing) between two machines that are threads of one."""
    a, b = (np.ones(BYTES // 4, np.float32) for _ in range(2))
    return BYTES / _best(lambda: np.copyto(a, b), seconds), _best(lambda: np.copyto(a[:1], b[:1]), seconds / 10)


def _task_seconds(folder: str | None, seconds: float) -> float:
    """What a task costs that computes next to nothing, where tasks run one by one: where a file is read."""
    with _file(folder) as path:
        np.save(path, np.ones((TASKS, 1), np.float32))
        graph, used = g.Graph.of(g.exp(api.source(path))), machines(1)
        grids = dict.fromkeys(graph.operations, (TASKS, 1))
        plan = Plan(graph, used, steps_of(graph, grids, 1, lower.decide, io.atom))
        return _best(lambda: api.run(plan), seconds) / plan.tasks


def _storage(folder: str | None, seconds: float) -> dict[str, Any]:
    """Of files: bytes per second of writing to the device and of reading what the system's cache holds; what opening a
    source and storing a sink take that have one element."""
    data, each = np.ones(BYTES // 4, np.float32), seconds / 4
    with _file(folder) as path:

        def write() -> None:
            with path.open("wb") as file:
                np.save(file, data)
                file.flush()
                os.fsync(file.fileno())

        written = _best(write, each)
        read = _best(_summed(path), each)
        np.save(path, data[:1])
        opened = _best(_summed(path), each)
        one = api.sink(g.relu(_hole("x", data[:1])), path, overwrite=True)
        plan = api.plan(one)
        stored = _best(lambda: api.run(plan, bind={"x": data[:1]}), each)
    return {
        "storage_bytes_per_second": BYTES / max(written - stored, written / 2),
        "cached_bytes_per_second": BYTES / max(read - opened, read / 2),
        "open_seconds": opened,
        "store_seconds": stored,
    }


def _summed(path: Path) -> Callable[[], Any]:
    """A run of a plan that reads a file and makes one number of it."""
    plan = api.plan(g.sum(api.source(path)))
    return lambda: api.run(plan)


@contextlib.contextmanager
def _file(folder: str | None) -> Iterator[Path]:
    """A file of our own that is gone afterwards."""
    path = Path(folder or tempfile.gettempdir()) / f"tileweave-probe-{uuid.uuid4().hex}.npy"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------------
# a cluster


def _cluster(address: str | None, folder: str | None, seconds: float) -> Machines:
    from tileweave.runtime.ray.session import address_in_use, connect

    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():  # a session that is open stays
        connect(None, address)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def on(node: str, function: Callable[..., Any], *arguments: Any) -> Any:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(function).options(scheduling_strategy=where, num_cpus=1, max_retries=0).remote(*arguments)

    def answer(found: Any) -> Any:
        try:
            return ray.get(found, timeout=WAIT_SECONDS)
        except ray.exceptions.RayError as error:
            cause = {"cause": str(error).splitlines()[0]}
            raise RunError("probe(address)", "a node of the cluster does not answer", inputs=cause) from error

    hosts = [answer(on(node, _host, folder, seconds)) for node in nodes]  # one after the other: nodes may share a host
    ends = (nodes[0], nodes[-1])
    link = answer(on(ends[0], _put_seconds, seconds / 4)) + answer(
        on(ends[1], _arrival_seconds, [on(ends[0], _payload, BYTES // 8)])
    )
    latency = answer(on(ends[1], _arrival_seconds, [on(ends[0], _payload, 1)]))
    with _file(folder) as path:
        answer(on(ends[0], _touch, str(path)))
        shared = len(nodes) == 1 or all(answer([on(node, os.path.exists, str(path)) for node in nodes]))
        answer(on(ends[0], _remove, str(path)))
    task = _best(lambda: answer(on(nodes[0], _payload, 1)), seconds / 4)
    bandwidth = BYTES / max(link - latency, 1e-9)

    hosts_alone = len({host.machines[0].name for host in hosts})
    memory = hosts_alone * min(host.machines[0].bytes_per_second for host in hosts) * EFFICIENCY
    runs = _runs(max(2, len(nodes)), address_in_use(address), seconds / 2, memory)
    names = [f"{host.machines[0].name}-{k}" for k, host in enumerate(hosts)]
    share = 1 / max(1, len(hosts)) if hosts_alone == 1 else 1.0
    found: list[Machine] = []
    for name, host in zip(names, hosts, strict=True):
        one = host.machines[0]
        found.append(replace(one, name=name, memory_bytes=int(one.memory_bytes * share)))
    return Machines(
        tuple(found),
        bandwidth,
        latency,
        min(host.storage_bytes_per_second for host in hosts),
        task,
        storage="shared" if shared else "private",
        cached_bytes_per_second=min(host.cached_bytes_per_second or 0 for host in hosts) or None,
        open_seconds=max(host.open_seconds for host in hosts),
        store_seconds=max(host.store_seconds for host in hosts),
        run_seconds=max(runs["run"] - task, 0.0),
        driver_bytes_per_second=runs["to"],
        driver_result_bytes_per_second=runs["back"],
        driver_object_seconds=runs["object"],
        exchange_seconds=max(runs["exchange"] - task - latency, 0.0),
    )


def _runs(count: int, address: str | None, seconds: float, memory: float) -> dict[str, float]:
    """Of runs on so many machines that compute next to nothing: what one takes, what each array of the program and
    each result adds as an object, what it adds where each machine waits for a block of each other, and the bytes per
    second of arrays and of results on their way.

    Args:
        count: of machines.
        address: of the cluster.
        seconds: in all.
        memory: bytes per second that the machines read or write together.
    """

    def took(made: Callable[..., g.Tensor], *given: np.ndarray[Any, Any]) -> float:
        holes = [_hole(f"x{k}", array) for k, array in enumerate(given)]
        tensor = made(*holes)
        plan = api.plan(tensor, count, pin={tensor: (count, 1)})
        bind: dict[g.Tensor | str, Any] = {f"x{k}": array for k, array in enumerate(given)}
        return _best(lambda: api.run(plan, bind=bind, runtime="ray", address=address), seconds / 5)

    one, side = np.ones((count, SMALL // 4), np.float32), isqrt(LARGE // 4 // count)
    column, row = np.ones((count * side, 1), np.float32), np.ones((1, side), np.float32)
    none, some = took(g.relu, one[:, : TINY // 4]), took(g.relu, one)
    exchanged = took(lambda x: g.sum(x, 0), one)
    to, back = took(lambda x: g.sum(x, 1), column + row), took(g.add, column, row)
    moved, each = column.nbytes * side, max(some - none, 0.0) / (2 * count)
    apart = none + count * each + moved / memory
    rates = [moved / max(whole - apart, (whole - none) / 4, 1e-9) for whole in (to, back)]
    return {"run": none, "object": each, "exchange": max(exchanged - some, 0.0), "to": rates[0], "back": rates[1]}


def _payload(size: int, *blocks: Any) -> np.ndarray[Any, Any]:
    return np.ones(size)


def _put_seconds(seconds: float) -> float:
    """How long what a node made takes to be where others can fetch it."""
    import ray

    data = _payload(BYTES // 8)
    return _best(lambda: ray.put(data), seconds)


def _arrival_seconds(held: list[Any]) -> float:
    """How long what another node made takes to be here, once it is made."""
    import ray

    ray.wait(held, num_returns=len(held), fetch_local=False)
    start = time.perf_counter()
    ray.get(held)
    return time.perf_counter() - start


def _touch(path: str) -> None:
    Path(path).touch()


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)
