"""Permutations of 100 MB tensors against NumPy, torch, JAX and etops, as a share of the memcpy rate of the same run.

    python bench/permute.py [--threads 1 2] [--dtypes FP32 FP64] [--rounds 5] [--all] [--peers numpy torch jax etops]
    python bench/permute.py --all --part 3/100 > part3.jsonl
    python bench/permute.py --summary part*.jsonl

The default is a choice of orders that ends within five minutes; ``--all`` takes every order of 2 to 6 axes, which
takes hours: ``--part K/N`` takes every N-th of them from the K-th on, and ``--summary`` is what all parts say. Rates
count bytes read and bytes written. ``memcpy`` is the C library's, in as many threads as the candidates use. Peers that
are not installed are left out: torch 2.13, JAX 0.10 and etops 26.2.1 (FP32 only) are what the project compares with.
Each count of threads runs in a process of its own that is bound to so many processors. A peer that needs more than
four times our time is timed in one round only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
from gemm import about, dense, emit, lines, seconds, spread

from tileweave.backends.cpu import compile
from tileweave.teir import emit_copy

Array = np.ndarray[Any, Any]
Case = tuple[tuple[int, ...], tuple[int, ...]]
Calls = dict[str, Callable[[], object]]

PEERS = ("numpy", "torch", "jax", "etops")
KINDS = {"FP32": "float32", "FP64": "float64", "FP16": "float16", "INT8": "int8"}
SHAPES = {
    2: (5120, 5000),
    3: (296, 300, 280),
    4: (72, 76, 64, 72),
    5: (32, 30, 28, 30, 31),
    6: (18, 16, 20, 15, 17, 16),
}
"""For elements of 4 bytes; the first extent changes with the width."""
CHOSEN: list[Case] = [
    ((5120, 5120), (1, 0)),
    ((4999, 5003), (1, 0)),
    ((296, 296, 296), (0, 2, 1)),
    ((296, 296, 296), (2, 1, 0)),
    ((296, 296, 296), (1, 0, 2)),
    ((293, 297, 291), (2, 0, 1)),
    ((72, 72, 72, 72), (3, 2, 1, 0)),
    ((72, 72, 72, 72), (2, 3, 0, 1)),
    ((64, 64, 96, 64), (3, 1, 2, 0)),
    ((64, 64, 96, 64), (0, 3, 2, 1)),
    ((2048, 4096, 3), (2, 0, 1)),
    ((3, 2048, 4096), (1, 2, 0)),
    ((30, 30, 30, 30, 30), (4, 3, 2, 1, 0)),
    ((30, 30, 30, 30, 30), (2, 4, 1, 3, 0)),
    ((18, 16, 20, 15, 17, 16), (5, 4, 3, 2, 1, 0)),
    ((24, 20, 20, 24, 20, 5), (4, 1, 5, 0, 3, 2)),
]


def main() -> None:
    """Write a row per case, and one with geometric mean and worst per count of threads and type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["FP32", "FP64"], choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--part", type=part, default=(0, 1), metavar="K/N")
    parser.add_argument("--summary", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.summary:
        summarize(options.summary)
        return
    if len(options.threads) > 1:
        for threads in options.threads:
            subprocess.run([sys.executable, *sys.argv, "--threads", str(threads)], check=True)
        return
    threads = options.threads[0]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    peers = {name: make for name in options.peers if (make := MAKERS[name](threads)) is not None}
    for dtype in options.dtypes:
        rows = []
        for shape, order in cases(options, np.dtype(KINDS[dtype]).itemsize):
            rows.append({**about(threads), "bench": "permute", **run(shape, order, dtype, threads, options, peers)})
            emit(rows[-1])
        emit({**about(threads), "bench": "permute", "dtype": dtype, **summary(rows)})


def part(text: str) -> tuple[int, int]:
    """What ``--part`` says: the first case of a part, and how far apart its cases are."""
    first, step = (int(number) for number in text.split("/"))
    if not 0 <= first < step:
        raise argparse.ArgumentTypeError(f"{text}: K/N with 0 <= K < N is asked for, as in 3/100")
    return first, step


def summarize(paths: Sequence[str]) -> None:
    """One summary per count of threads and type of the rows in some files."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            if row.get("bench") == "permute" and row["shape"] != "summary":
                groups.setdefault((row["threads"], row["dtype"]), []).append(row)
    for (threads, dtype), rows in sorted(groups.items()):
        emit({**about(threads), "bench": "permute", "dtype": dtype, **summary(rows)})


def cases(options: argparse.Namespace, width: int) -> list[Case]:
    """The permutations of about 100 MB of elements of this width."""
    chosen = [case for case in CHOSEN if len(case[0]) in options.ranks]
    if options.all:
        chosen = [(SHAPES[r], p) for r in options.ranks for p in permutations(range(r)) if p != tuple(range(r))]
    scaled = []
    for shape, order in chosen:
        large = max(range(len(shape)), key=lambda k: (shape[k] > 16, -k))
        scaled.append((tuple(e * 4 // width if k == large else e for k, e in enumerate(shape)), order))
    first, step = options.part
    return scaled[first::step]


def summary(rows: list[dict[str, Any]]) -> dict[str, object]:
    """Geometric mean and worst of the ratios, and how many cases some peer wins."""

    def mean(values: Sequence[float]) -> float:
        return round(math.exp(statistics.fmean(map(math.log, values))), 3)

    found: dict[str, object] = {"shape": "summary", "cases": len(rows), "right": all(row["right"] for row in rows)}
    keys = {key: None for row in rows for key in row if key.startswith(("times_", "share_"))}
    for key in keys:
        values = [row[key] for row in rows if key in row]
        found[key] = {"mean": mean(values), "worst": min(values)}
    found["behind_a_peer"] = sum(row.get("times_best_peer", 2) < 1 for row in rows)
    return found


def run(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str, threads: int, options: argparse.Namespace, peers: Any
) -> dict[str, object]:
    """One permutation."""
    kind = KINDS[dtype]
    source, target, other = (lines(s, kind) for s in (shape, *[[shape[k] for k in order]] * 2))
    source[:] = np.random.default_rng(0).integers(-99, 99, shape)
    letters = "abcdef"[: len(shape)]
    equation = f"{letters}->{''.join(letters[k] for k in order)}"
    program = emit_copy(dense(shape, dtype), dense(target.shape, dtype), equation)
    start = time.perf_counter()
    kernel = compile(program, threads=threads, cache=False)
    compiled = time.perf_counter() - start
    flat = dense((source.size,), dtype)
    copy = compile(emit_copy(flat, flat), threads=threads)
    calls: Calls = {
        "tileweave": kernel.prepare(source, target),
        "memcpy": memcpy(source, other, threads),
        "copy": copy.prepare(source.reshape(-1), other.reshape(-1)),
    }
    for make in peers.values():
        calls.update(make(source, other, order))
    times = interleaved(calls, options.rounds)
    gbytes = (source.nbytes + target.nbytes) / 1e9
    row: dict[str, object] = {"shape": shape, "order": order, "dtype": dtype}
    for name, values in times.items():
        rates = [gbytes / value for value in values]
        row[f"{name}_gbytes"] = round(statistics.median(rates), 2)
        if name in ("tileweave", "memcpy", "copy"):
            row[f"{name}_gbytes_spread"] = [round(rate, 2) for rate in spread(rates)]
    own = times["tileweave"]
    for name in times:
        if name != "tileweave":
            key = f"share_of_{name}" if name in ("memcpy", "copy") else f"times_{name}"
            row[key] = round(statistics.median(a / b for a, b in zip(times[name], own, strict=False)), 3)
    peer_times = [float(str(row[key])) for key in row if key.startswith("times_")]
    if peer_times:
        row["times_best_peer"] = min(peer_times)
    row["compile_seconds"] = round(compiled, 3)
    row["right"] = bool(np.array_equal(target, source.transpose(order)))
    return row


def interleaved(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Seconds per call in every round; peers that are far behind run once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if times[name] and times[name][0] > 4 * times["tileweave"][0]:
                continue
            time.sleep(0.02)  # threads of the candidate before fall asleep
            call()
            times[name].append(seconds(call, 0.01))
    return times


def memcpy(source: Array, target: Array, threads: int) -> Callable[[], object]:
    """The C library's memcpy, each thread taking an equal part."""
    function = ctypes.CDLL(None).memcpy
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None
    cuts = [source.nbytes * k // threads // 4096 * 4096 for k in range(threads)] + [source.nbytes]
    parts = [(target.ctypes.data + a, source.ctypes.data + a, b - a) for a, b in pairwise(cuts)]
    if threads == 1:
        return lambda: function(*parts[0])
    workers = ThreadPoolExecutor(threads - 1)

    def call() -> None:
        waiting = [workers.submit(function, *part) for part in parts[1:]]
        function(*parts[0])
        for one in waiting:
            one.result()

    return call


# ---- peers: each maker takes the count of threads, and returns a function from arrays and an order to calls ---------


def numpy_calls(_: int) -> Any:
    """NumPy's assignment."""
    return lambda source, out, order: {"numpy": lambda: np.copyto(out, source.transpose(order))}


def torch_calls(threads: int) -> Any:
    """Torch: into a given tensor, and with an allocation."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(threads)

    def calls(source: Array, out: Array, order: tuple[int, ...]) -> Calls:
        moved, into = torch.from_numpy(source).permute(order), torch.from_numpy(out)
        return {"torch_copy": lambda: into.copy_(moved), "torch_contiguous": lambda: moved.contiguous()}

    return calls


def jax_calls(_: int) -> Any:
    """JAX's jitted transpose; the result is allocated."""
    try:
        jax: Any = import_module("jax")
    except ImportError:
        return None
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)

    def calls(source: Array, out: Array, order: tuple[int, ...]) -> Calls:
        held = jax.numpy.asarray(source)
        move = jax.jit(lambda x: jax.numpy.transpose(x, order))
        return {"jax": lambda: move(held).block_until_ready()}

    return calls


def etops_calls(threads: int) -> Any:
    """etops' copy primitive with its optimizer; it takes dense arrays of 32-bit floats only."""
    try:
        etops: Any = import_module("etops")
    except ImportError:
        return None

    def calls(source: Array, out: Array, order: tuple[int, ...]) -> Calls:
        if source.dtype != np.float32:
            return {}
        rank = len(order)
        there = {axis: out.strides[k] // 4 for k, axis in enumerate(order)}
        config = etops.TensorOperationConfig(
            etops.float32,
            etops.prim.none,
            etops.prim.copy,
            etops.prim.none,
            (etops.dim.c,) * rank,
            (etops.exec.seq,) * rank,
            source.shape,
            ((tuple(s // 4 for s in source.strides), tuple(there[axis] for axis in range(rank))),),
        )
        settings = {**etops.backend.tpp.get_default_optimization_config(), "num_threads": threads}
        operation = etops.TensorOperation(etops.optimize(config, settings))
        return {"etops": lambda: operation.execute(source, None, out)}

    return calls


MAKERS: dict[str, Callable[[int], Any]] = {
    "numpy": numpy_calls,
    "torch": torch_calls,
    "jax": jax_calls,
    "etops": etops_calls,
}


if __name__ == "__main__":
    sys.exit(main())
