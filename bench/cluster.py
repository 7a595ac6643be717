"""`tileweave.run(.., runtime="ray")` beside the program that one would write for Ray by hand, on one local cluster.

    python bench/cluster.py [--threads 2] [--rounds 5] [--size 2048] > bench/results/cluster.jsonl

Both start from arrays of the driver, or from a zarr that every worker reads, and end there. By hand, the rows are cut
into as many panels as there are workers; weights are put once per run; a worker computes its panel in one task, with
one thread of BLAS. ``relu`` is relu(a @ b), ``mlp`` three layers, ``columns`` stores an array that is chunked by rows
chunked by columns: a task reads a band of rows and returns it in pieces, another writes a column of chunks. ``files``
is relu(x @ w) from .npy to .npy, x of eight squares (2 GiB at 8192): a worker maps x, multiplies its panel of rows and
writes it where it belongs. Rounds alternate; ``times_by_hand`` is the median of the rounds' ratios. ``by_hand_bytes``
is what the program puts and returns; ``read_bytes`` and ``moved_bytes`` are the plan's.
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

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
PROGRAMS = ("relu", "mlp", "columns", "files")
STRIPS = 8
"""Chunks of the array on disk, and tasks of either stage that rearrange them."""


def layers(x: Any, weights: Sequence[Any], maximum: Any) -> Any:
    """What is computed: each layer a product and a relu."""
    for weight in weights:
        x = maximum(x @ weight, np.float32(0))
    return x


def by_hand(x: Array, weights: Sequence[Array], workers: int) -> tuple[Call, int]:
    """The program on panels of rows, and the bytes that it puts and returns."""
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

    return run, sum(array.nbytes for array in (x, *weights)) + x.shape[0] * weights[-1].shape[1] * x.itemsize


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


def files_by_hand(folder: Path, shape: tuple[int, int], workers: int) -> tuple[Call, int]:
    """A panel of rows per worker, from a mapped file into a mapped file."""
    import ray

    @ray.remote(num_cpus=1)
    def panel(first: int, stop: int) -> None:
        from threadpoolctl import threadpool_limits

        x, w = np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "w.npy", mmap_mode="r")
        out = np.load(folder / "hand.npy", mmap_mode="r+")
        with threadpool_limits(1):
            out[first:stop] = layers(x[first:stop], [w], np.maximum)

    def run() -> None:
        np.lib.format.open_memmap(folder / "hand.npy", "w+", np.float32, shape)
        edges = [shape[0] * k // workers for k in range(workers + 1)]
        ray.get([panel.remote(first, stop) for first, stop in itertools.pairwise(edges)])

    return run, 0


def calls(program: str, size: int, workers: int, folder: Path) -> tuple[Call, Call, int, Any]:
    """(tileweave, by hand, bytes by hand, the plan)."""
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

        def own() -> Any:
            tw.run(plan, runtime="ray", threads=workers)

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
        hand, moved = files_by_hand(folder, y.shape, workers)

        def into_file() -> Any:
            tw.run(plan, runtime="ray", threads=workers)

        into_file(), hand()
        made = [np.load(folder / name, mmap_mode="r") for name in ("own.npy", "hand.npy")]
        np.testing.assert_allclose(*made, rtol=1e-3, atol=1e-3)
        return into_file, hand, moved, plan
    count = 1 if program == "relu" else 3
    x = rng.standard_normal((size, size), dtype=np.float32)
    weights = [rng.standard_normal((size, size), dtype=np.float32) / np.float32(size**0.5) for _ in range(count)]
    plan = tw.plan(layers(tw.source(x), [tw.source(weight) for weight in weights], tw.maximum), machines)
    hand, moved = by_hand(x, weights, workers)

    def product() -> Any:
        return tw.run(plan, runtime="ray", threads=workers)

    np.testing.assert_allclose(product(), hand(), rtol=1e-3, atol=1e-3)
    return product, hand, moved, plan


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
            emit(
                {
                    **about(given.threads),
                    "bench": "cluster",
                    "program": program,
                    "size": given.size,
                    "tileweave_ms": round(1e3 * min(one for one, _ in seconds), 1),
                    "by_hand_ms": round(1e3 * min(other for _, other in seconds), 1),
                    "times_by_hand": round(statistics.median(one / other for one, other in seconds), 3),
                    "by_hand_bytes": moved,
                    "read_bytes": plan.bytes_read,
                    "moved_bytes": plan.bytes_moved,
                    "tasks": plan.tasks,
                }
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
