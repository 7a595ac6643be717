"""Whole programs beside the systems that people would write them in: seconds, and the memory that each needs.

    python bench/side_by_side.py [--systems tileweave numpy dask ..] [--programs relu4096 ..] [--rounds 3] [--passes 1]

Every system runs every program in a process of its own, which is bound to ``--threads`` processors: NumPy with its own
threads, dask.array and cubed with their threaded schedulers (dask with the chunks that it chooses, cubed with 2048 x
2048), JAX as one jitted function; systems that are not installed are left out. The first call is not timed (a plan, a
compilation), the rounds after it are, until a few seconds have passed; ratios are of the least of each. Where others
use the machine too, ``--passes 3`` has the systems take turns. ``peak`` is the most resident memory of the process
above what it held after a small program, before its operands were made, and ``of_data`` its ratio to the operands plus
the result. Results are compared with NumPy's in samples.

``relu*`` is relu(a @ b), ``mlp`` four layers of 4096 with a batch of 2048, ``columns`` reads a zarr array chunked by
rows and writes one chunked by columns (``columns_bounded``: tileweave with a budget of 64 MiB, cubed with its
smallest), ``heat`` a hundred steps of five points on 2048 x 2048.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from gemm import about

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]

SYSTEMS = ("tileweave", "numpy", "dask", "cubed", "jax")
PROGRAMS = ("relu4096", "relu8192", "mlp", "columns", "columns_bounded", "heat")
FLOW = 0.2
STEPS = 100
WIDTH = 2048
"""Lines and columns of the field of heat."""
EDGE = 8192
"""Rows and columns of the array that is written by columns."""
ENOUGH_SECONDS = 4.0
"""No round begins after so many of them."""
PANEL = 256
"""Rows of a chunk that is read, columns of one that is written."""


# ---- what is computed -------------------------------------------------------------------------------------------


def operands(program: str) -> list[Array]:
    """The arrays that a program reads, from a generator of its own."""
    rng = np.random.default_rng(7)

    def of(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(np.float32, copy=False)

    if program.startswith("relu"):
        n = int(program[4:])
        return [of(n, n), of(n, n)]
    if program == "mlp":
        return [of(2048, 4096), *(of(4096, 4096, scale=1 / 64) for _ in range(4))]
    if program == "heat":
        return [of(WIDTH, WIDTH)]
    return []


def by_arrays(program: str, arrays: Sequence[Any], np_like: Any) -> Any:
    """The program in the words that NumPy, dask, cubed and JAX share."""
    if program.startswith("relu"):
        return np_like.maximum(arrays[0] @ arrays[1], np.float32(0))
    if program == "mlp":
        x, *weights = arrays
        for weight in weights[:-1]:
            x = np_like.maximum(x @ weight, np.float32(0))
        return x @ weights[-1]
    raise ValueError(program)


def heat_of(x: Any, pad: Callable[[Any], Any], steps: int = STEPS) -> Any:
    """So many steps of five points; outside lies zero."""
    flow = np.float32(FLOW)
    for _ in range(steps):
        wide = pad(x)
        around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        x = x + flow * (around - np.float32(4) * x)
    return x


# ---- one system, in a process of its own ------------------------------------------------------------------------


def own(program: str, arrays: Sequence[Array], folder: Path, threads: int) -> tuple[Call, Call]:
    """What runs the program, and its result as an array; the others are called alike."""
    import tileweave as tw
    from tileweave.graph import stencil

    if program.startswith("columns"):
        memory = "64MiB" if program.endswith("bounded") else None
        target = tw.sink(
            tw.source(str(folder / "rows.zarr")), str(folder / "own.zarr"), chunks=(EDGE, PANEL), overwrite=True
        )
        plan = tw.plan(target, tw.machines(1, memory=memory) if memory else None)
        return lambda: tw.run(plan, threads=threads), lambda: read(folder / "own.zarr")
    sources = [tw.source(array, name=f"x{k}") for k, array in enumerate(arrays)]
    if program == "heat":
        five = np.array([[0, FLOW, 0], [FLOW, 1 - 4 * FLOW, FLOW], [0, FLOW, 0]], np.float32)
        x = sources[0]
        for _ in range(STEPS):
            x = stencil(x, five)
    else:
        x = by_arrays(program, sources, tw)
    plan = tw.plan(x)
    return repeated(lambda: tw.run(plan, threads=threads))


def plain(program: str, arrays: Sequence[Array], folder: Path, threads: int) -> tuple[Call, Call]:
    """NumPy, with as many threads as its library takes of the processors that the process may use."""
    if program.startswith("columns"):
        import zarr

        def copied() -> None:
            rows = zarr.open_array(str(folder / "rows.zarr"), mode="r")
            by_columns(folder / "numpy.zarr")[...] = rows[...]

        return copied, lambda: read(folder / "numpy.zarr")
    if program == "heat":
        return repeated(lambda: heat_of(arrays[0], lambda x: np.pad(x, 1)))
    return repeated(lambda: by_arrays(program, arrays, np))


def by_dask(program: str, arrays: Sequence[Array], folder: Path, threads: int) -> tuple[Call, Call]:
    """dask.array on its threads; BLAS keeps to one thread in each, as its manual asks."""
    import dask
    import dask.array as da
    from threadpoolctl import threadpool_limits

    dask.config.set(scheduler="threads", num_workers=threads)
    threadpool_limits(1)
    if program.startswith("columns"):

        def copied() -> None:
            rows = da.from_zarr(str(folder / "rows.zarr"))
            rows.rechunk((EDGE, PANEL)).to_zarr(str(folder / "dask.zarr"), overwrite=True)

        return copied, lambda: read(folder / "dask.zarr")
    made = [da.from_array(array) for array in arrays]
    if program == "heat":

        def step(x: Array) -> Array:
            around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
            return np.asarray(x[1:-1, 1:-1] + np.float32(FLOW) * (around - np.float32(4) * x[1:-1, 1:-1]))

        def run() -> Any:
            x = made[0]
            for _ in range(STEPS):
                x = da.map_overlap(step, x, depth=1, boundary=0.0, trim=False, dtype=np.float32)
            return x.compute()

        return repeated(run)
    return repeated(lambda: by_arrays(program, made, da).compute())


def by_cubed(program: str, arrays: Sequence[Array], folder: Path, threads: int) -> tuple[Call, Call]:
    """cubed on its threads, allowed 2 GB, or, bounded, four times what a strip of either chunking takes."""
    import cubed
    import cubed.array_api as xp
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    bounded = program.endswith("bounded")
    options = {"max_workers": threads}
    spec = cubed.Spec(
        work_dir=str(folder / "cubed"),
        allowed_mem="100MB" if bounded else "2GB",
        executor_name="threads",
        executor_options=options,
    )
    if program.startswith("columns"):

        def copied() -> None:
            shutil.rmtree(folder / "cubed.zarr", ignore_errors=True)
            rows = cubed.from_zarr(str(folder / "rows.zarr"), spec=spec)
            cubed.to_zarr(rows.rechunk((EDGE, PANEL)), str(folder / "cubed.zarr"))
            shutil.rmtree(folder / "cubed", ignore_errors=True)

        return copied, lambda: read(folder / "cubed.zarr")
    if program == "heat":
        raise LookupError("a hundred steps of slices and pads")
    chunks = 64 if program == "relu64" else 2048  # its automatic chunks exceed what is allowed
    made = [cubed.from_array(array, chunks=(chunks, chunks), spec=spec) for array in arrays]

    class Names:
        @staticmethod
        def maximum(x: Any, low: Any) -> Any:
            return xp.maximum(x, xp.asarray(low, spec=spec))

    return repeated(lambda: by_arrays(program, made, Names).compute())


def by_jax(program: str, arrays: Sequence[Array], folder: Path, threads: int) -> tuple[Call, Call]:
    """JAX as one jitted function of arrays that it holds already."""
    import jax
    import jax.numpy as jnp

    if program.startswith("columns"):
        raise LookupError("it reads no zarr")
    made = [jnp.asarray(array) for array in arrays]
    if program == "heat":
        jitted = jax.jit(lambda x: jax.lax.fori_loop(0, STEPS, lambda _, y: heat_of(y, lambda z: jnp.pad(z, 1), 1), x))
    else:
        jitted = jax.jit(lambda *values: by_arrays(program, values, jnp))
    return repeated(lambda: np.asarray(jitted(*made)))


CALLS: dict[str, Callable[[str, Sequence[Array], Path, int], tuple[Call, Call]]] = {
    "tileweave": own,
    "numpy": plain,
    "dask": by_dask,
    "cubed": by_cubed,
    "jax": by_jax,
}


def repeated(call: Call) -> tuple[Call, Call]:
    """The call, and the result of its last time."""
    last: list[Any] = []

    def kept() -> None:
        last.clear()
        last.append(call())

    return kept, lambda: np.asarray(last[0])


def by_columns(path: Path) -> Any:
    """A new zarr array of EDGE x EDGE in panels of columns."""
    import zarr

    return zarr.create_array(str(path), shape=(EDGE, EDGE), chunks=(EDGE, PANEL), dtype=np.float32, overwrite=True)


def read(path: Path) -> Array:
    import zarr

    return np.asarray(zarr.open_array(str(path), mode="r")[...])


def resident(key: str) -> int:
    """Bytes of a line of this process's status."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(key))


def measure(program: str, system: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """One system's row: run in the process that it describes."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    small, _ = CALLS[system]("relu64", operands("relu64"), folder, threads)
    small()  # what is imported and made once is no part of the program's memory
    if program.startswith("columns"):
        import_module("zarr")
    before = resident("VmRSS")
    arrays = operands(program)
    try:
        call, result = CALLS[system](program, arrays, folder, threads)
    except LookupError as error:
        return {"left_out": str(error)}
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    times: list[float] = []
    while len(times) < rounds and sum(times) < ENOUGH_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    peak = resident("VmHWM") - before
    value = result()
    data = sum(array.nbytes for array in arrays) + value.nbytes * (2 if program.startswith("columns") else 1)
    samples = value[:: max(1, value.shape[0] // 64), :: max(1, value.shape[1] // 64)]
    np.save(folder / f"{program}-{system}.npy", samples)
    return {
        "seconds": round(statistics.median(times), 4),
        "least": round(min(times), 4),
        "first": round(first, 4),
        "peak_MiB": round(peak / 2**20, 1),
        "of_data": round(peak / data, 2),
    }


# ---- all of them ------------------------------------------------------------------------------------------------


def in_own_process(program: str, system: str, threads: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One system's row, from a process of its own."""
    command = [sys.executable, __file__, "--one", program, system, "--folder", str(folder)]
    command += ["--threads", str(threads), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:] or ["no word"]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def rows(programs: Sequence[str], systems: Sequence[str], threads: int, rounds: int, passes: int, folder: Path) -> None:
    """A line per program and system, the quickest of its passes, then one that says the ratios."""
    if any(program.startswith("columns") for program in programs):
        import zarr

        array = zarr.create_array(str(folder / "rows.zarr"), shape=(EDGE, EDGE), chunks=(PANEL, EDGE), dtype=np.float32)
        array[...] = np.random.default_rng(7).standard_normal((EDGE, EDGE), dtype=np.float32)
    for program in programs:
        seconds: dict[str, float] = {}
        turns = [{one: in_own_process(program, one, threads, rounds, folder) for one in systems} for _ in range(passes)]
        for system in systems:
            row = min((turn[system] for turn in turns), key=lambda row: row.get("least", float("inf")))
            print(json.dumps({"program": program, "system": system, "threads": threads, **row}), flush=True)
            if "seconds" in row:
                seconds[system] = row["least"]
        mine = seconds.pop("tileweave", None)
        ratios = {f"times_{name}": round(took / mine, 2) for name, took in seconds.items()} if mine else {}
        print(
            json.dumps({"program": program, **about(threads), **ratios, **errors(folder, program)}),
            flush=True,
        )


def errors(folder: Path, program: str) -> dict[str, float]:
    """The largest difference of each system's samples from NumPy's, relative to the largest value."""
    reference = folder / f"{program}-numpy.npy"
    if not reference.exists():
        return {}
    wanted = np.load(reference).astype(np.float64)
    found = {path.stem.removeprefix(f"{program}-"): np.load(path) for path in folder.glob(f"{program}-*.npy")}
    scale = max(float(np.abs(wanted).max()), 1e-30)
    return {f"error_{name}": float(f"{np.abs(value - wanted).max() / scale:.1e}") for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=1, help="how often the systems take turns")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "SYSTEM"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(*asked.one, asked.folder, asked.threads, asked.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        rows(asked.programs, asked.systems, asked.threads, asked.rounds, asked.passes, Path(folder))


if __name__ == "__main__":
    main()
