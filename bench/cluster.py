"""`tileweave.run(.., runtime="ray")` beside the program that one would write for Ray by hand, on one local cluster.

    python bench/cluster.py [--threads 2] [--rounds 5] [--size 2048] [--programs relu ..] > bench/results/cluster.jsonl

Both start from arrays of the driver, or from a zarr that every worker reads, and end there. By hand, the rows are cut
into as many panels as there are workers; weights are put once per run; a worker computes its panel in one task, with
one thread of BLAS. ``relu`` is relu(a @ b), ``mlp`` three layers, ``columns`` stores an array that is chunked by rows
chunked by columns: a task reads a band of rows and returns it in pieces, another writes a column of chunks. ``files``
is relu(x @ w) from .npy to .npy, x of eight squares (2 GiB at 8192): a worker maps x, multiplies its panel of rows and
writes it where it belongs; both have it on the disk when they end. ``heat`` is a hundred steps of five points: by hand
an actor per panel of rows, which keeps it and exchanges rows with its neighbours. Rounds alternate; ``times_by_hand``
is the median of the rounds' ratios. ``bytes`` and ``by_hand_bytes`` are what the driver puts and gets, counted on the
arrays, and what goes from one worker to another: as the events of a run say, and by what is written here.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gemm import about, emit

import tileweave as tw
from tileweave.graph import stencil
from tileweave.runtime.events import Progress

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]
PROGRAMS = ("relu", "mlp", "columns", "files", "heat")
STEPS, FLOW = 100, 0.2
STRIPS = 8
"""Chunks of the array on disk, and tasks of either stage that rearrange them."""


def layers(x: Any, weights: Sequence[Any], maximum: Any) -> Any:
    """What is computed: each layer a product and a relu."""
    for weight in weights:
        x = maximum(x @ weight, np.float32(0))
    return x


def by_hand(x: Array, weights: Sequence[Array], workers: int) -> Call:
    """The program on panels of rows."""
    import ray

    @ray.remote(num_cpus=1)
    def panel(x: Array, *weights: Array) -> Array:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            made: Array = layers(x, weights, np.maximum)
        return made

    def run() -> Array:
        held = [ray.put(weight) for weight in weights]
        made = [panel.remote(ray.put(part), *held) for part in np.array_split(x, workers)]
        return np.concatenate(ray.get(made))

    return run


def columns_by_hand(rows: str, columns: str, size: int) -> tuple[Call, int]:
    """Bands of rows in, strips of columns out, each piece an object of its own."""
    import ray
    import zarr

    width = size // STRIPS

    @ray.remote(num_cpus=1, num_returns=STRIPS)
    def band(number: int) -> tuple[Array, ...]:
        part = zarr.open_array(rows, mode="r")[number * width : (number + 1) * width]
        return tuple(np.ascontiguousarray(part[:, k * width : (k + 1) * width]) for k in range(STRIPS))

    @ray.remote(num_cpus=1)
    def strip(number: int, *parts: Array) -> None:
        zarr.open_array(columns, mode="r+")[:, number * width : (number + 1) * width] = np.concatenate(parts)

    def run() -> None:
        zarr.create_array(columns, shape=(size, size), chunks=(size, width), dtype=np.float32, overwrite=True)
        made = [band.remote(k) for k in range(STRIPS)]
        ray.get([strip.remote(k, *(parts[k] for parts in made)) for k in range(STRIPS)])

    return run, 4 * size * size


def files_by_hand(folder: Path, shape: tuple[int, int], workers: int) -> Call:
    """A panel of rows per worker, from a mapped file into a mapped file."""
    import ray

    @ray.remote(num_cpus=1)
    def panel(first: int, stop: int) -> None:
        from threadpoolctl import threadpool_limits

        x, w = np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "w.npy", mmap_mode="r")
        out = np.load(folder / "hand.npy", mmap_mode="r+")
        with threadpool_limits(1):
            out[first:stop] = layers(x[first:stop], [w], np.maximum)
        out.flush()

    def run() -> None:
        np.lib.format.open_memmap(folder / "hand.npy", "w+", np.float32, shape)
        edges = [shape[0] * k // workers for k in range(workers + 1)]
        ray.get([panel.remote(first, stop) for first, stop in itertools.pairwise(edges)])

    return run


def heat_by_hand(x: Array, workers: int) -> tuple[Call, int]:
    """An actor per panel of rows, and the bytes of the rows that they exchange."""
    import ray

    @ray.remote(num_cpus=1)
    class Panel:
        def __init__(self, rows: Array) -> None:
            self.wide = np.pad(rows, 1)

        def edges(self) -> tuple[Array, Array]:
            return self.wide[1].copy(), self.wide[-2].copy()

        def step(self, above: tuple[Array, Array] | None, below: tuple[Array, Array] | None) -> tuple[Array, Array]:
            wide, flow = self.wide, np.float32(FLOW)
            if above is not None:
                wide[0] = above[1]
            if below is not None:
                wide[-1] = below[0]
            around = wide[:-2, 1:-1] + wide[2:, 1:-1]
            around += wide[1:-1, :-2]
            around += wide[1:-1, 2:]
            around *= flow
            wide[1:-1, 1:-1] *= 1 - 4 * flow
            wide[1:-1, 1:-1] += around
            return self.edges()

        def rows(self) -> Array:
            return self.wide[1:-1, 1:-1]

    def run() -> Array:
        panels = [Panel.remote(ray.put(rows)) for rows in np.array_split(x, workers)]
        edges = [panel.edges.remote() for panel in panels]
        for _ in range(STEPS):
            ends = [None, *edges, None]
            edges = [panel.step.remote(ends[k], ends[k + 2]) for k, panel in enumerate(panels)]
        return np.concatenate(ray.get([panel.rows.remote() for panel in panels]))

    return run, STEPS * 2 * (workers - 1) * x[0].nbytes


def counted(call: Call) -> int:
    """Bytes of the arrays that this process puts into the object store and gets from it in one run."""
    import ray

    put, get, total = ray.put, ray.get, 0

    def size(value: Any) -> int:
        if isinstance(value, list | tuple):
            return sum(map(size, value))
        return value.nbytes if isinstance(value, np.ndarray) else 0

    def counting_put(value: Any, *more: Any, **how: Any) -> Any:
        nonlocal total
        total += size(value)
        return put(value, *more, **how)

    def counting_get(asked: Any, *more: Any, **how: Any) -> Any:
        nonlocal total
        got = get(asked, *more, **how)
        total += size(got)
        return got

    try:
        ray.put, ray.get = counting_put, counting_get
        call()
    finally:
        ray.put, ray.get = put, get
    return total


def calls(program: str, size: int, workers: int, folder: Path) -> tuple[Call, Call, int, Any]:
    """(tileweave, by hand, bytes between its workers, the plan)."""
    rng = np.random.default_rng(5)
    machines = tw.machines(workers)
    if program == "columns":
        import zarr

        rows, width = str(folder / "rows.zarr"), size // STRIPS
        made = zarr.create_array(rows, shape=(size, size), chunks=(width, size), dtype=np.float32, overwrite=True)
        made[...] = rng.standard_normal((size, size), dtype=np.float32)
        sink = tw.sink(tw.source(rows), str(folder / "own.zarr"), chunks=(size, width), overwrite=True)
        plan = tw.plan(sink, machines)
        hand, moved = columns_by_hand(rows, str(folder / "hand.zarr"), size)
        read = [
            lambda name=name: zarr.open_array(str(folder / name), mode="r")[...] for name in ("own.zarr", "hand.zarr")
        ]

        def own(listeners: Sequence[Any] = ()) -> Any:
            tw.run(plan, runtime="ray", threads=workers, listeners=listeners)

        own(), hand()
        np.testing.assert_array_equal(read[0](), read[1]())
        return own, hand, moved, plan
    if program == "files":
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (8 * size, size))
        for band in range(0, 8 * size, size):
            x[band : band + size] = rng.standard_normal((size, size), dtype=np.float32)
        np.save(folder / "w.npy", rng.standard_normal((size, size // 16), dtype=np.float32) / np.float32(size**0.5))
        y = layers(tw.source(folder / "x.npy"), [tw.source(folder / "w.npy")], tw.maximum)
        plan = tw.plan(tw.sink(y, folder / "own.npy", overwrite=True), machines)
        hand = files_by_hand(folder, y.shape, workers)

        def into_file(listeners: Sequence[Any] = ()) -> Any:
            tw.run(plan, runtime="ray", threads=workers, listeners=listeners)

        into_file(), hand()
        made = [np.load(folder / name, mmap_mode="r") for name in ("own.npy", "hand.npy")]
        np.testing.assert_allclose(*made, rtol=1e-3, atol=1e-3)
        return into_file, hand, 0, plan
    if program == "heat":
        x = rng.random((size, size), np.float32)
        around = np.array([[0, FLOW, 0], [FLOW, 1 - 4 * FLOW, FLOW], [0, FLOW, 0]], np.float32)
        y = tw.source(x)
        for _ in range(STEPS):
            y = stencil(y, around)
        hand, moved = heat_by_hand(x, workers)
        return checked(tw.plan(y, machines), hand, moved, workers)
    count = 1 if program == "relu" else 3
    x = rng.standard_normal((size, size), dtype=np.float32)
    weights = [rng.standard_normal((size, size), dtype=np.float32) / np.float32(size**0.5) for _ in range(count)]
    plan = tw.plan(layers(tw.source(x), [tw.source(weight) for weight in weights], tw.maximum), machines)
    return checked(plan, by_hand(x, weights, workers), 0, workers)


def checked(plan: Any, hand: Call, moved: int, workers: int) -> tuple[Call, Call, int, Any]:
    """What runs the plan, beside the program by hand, whose result is the same."""

    def run(listeners: Sequence[Any] = ()) -> Any:
        return tw.run(plan, runtime="ray", threads=workers, listeners=listeners)

    np.testing.assert_allclose(run(), hand(), rtol=1e-3, atol=1e-3)
    return run, hand, moved, plan


def main() -> None:
    """A row per program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, choices=PROGRAMS)
    given = parser.parse_args()
    from tileweave.runtime.ray.session import connect

    connect(given.threads)
    folder = Path(tempfile.mkdtemp())
    try:
        for program in given.programs:
            own, hand, moved, plan = calls(program, given.size, given.threads, folder)
            seconds: list[tuple[float, float]] = []
            for number in range(given.rounds):
                took = {}
                for call in (own, hand) if number % 2 else (hand, own):
                    began = time.perf_counter()
                    call()
                    took[call] = time.perf_counter() - began
                seconds.append((took[own], took[hand]))
            events: list[Any] = []
            emit(
                {
                    **about(given.threads),
                    "bench": "cluster",
                    "program": program,
                    "size": given.size,
                    "tileweave_ms": round(1e3 * min(one for one, _ in seconds), 1),
                    "by_hand_ms": round(1e3 * min(other for _, other in seconds), 1),
                    "times_by_hand": round(statistics.median(one / other for one, other in seconds), 3),
                    "bytes": counted(lambda own=own, events=events: own([events.append]))
                    + sum(event.bytes_moved for event in events if isinstance(event, Progress)),
                    "by_hand_bytes": counted(hand) + moved,
                    "tasks": plan.tasks,
                }
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
