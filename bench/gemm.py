"""Square matrix products against NumPy, torch, JAX and etops, with the peak of multiply-adds measured in the same run.

    python bench/gemm.py [--threads 1 2] [--sizes 512 1024 ..] [--rounds 9] [--dtype FP32] > bench/results/gemm.jsonl

With ``--dtype BF16`` our products are written in FP32, those of torch and JAX in BF16; NumPy and etops have none.

Every row is one JSON line: medians over interleaved rounds, the spread (10th to 90th percentile), and the median of
the ratios within a round, so that a slow moment of the machine touches all candidates alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from peers import Candidates, compared, einsum_peers, in_turn, optional, summary, torch_array
from threadpoolctl import threadpool_limits

from tileweave.backends.cpu import compile, host
from tileweave.backends.cpu.target.jit import compile_ir
from tileweave.backends.cpu.target.threads import pool
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction
from tileweave.teir.ir.dtypes import numpy_dtype

LOOK, LONGEST_REST = 0.005, 0.5
"""Seconds between two looks whether all threads of the process sleep, and for how long they are waited for."""
WAKING = 0.01
"""Seconds of untimed calls: a thread that was woken on a busy processor is moved to another one within some 5 ms."""


def torch_or_none() -> Any:
    """The torch module, where it is installed."""
    return optional("torch")


def dense(shape: Sequence[int], dtype: str) -> Operand:
    """A row-major operand."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return Operand(strided(tuple(shape), tuple(reversed(strides))), dtype)


def lines(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of ones that begins where a cache line begins, as the arrays of torch do; every candidate uses it."""
    count = int(np.prod(shape))
    width = np.dtype(dtype).itemsize
    raw = np.ones(count + 64 // width, dtype)
    start = -raw.ctypes.data % 64 // width
    return raw[start : start + count].reshape(tuple(shape))


def seconds(call: Callable[[], object], least: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per call, calls being repeated until the least time has passed."""
    count = 0
    start = clock()
    while True:
        call()
        count += 1
        passed = clock() - start
        if passed >= least:
            return passed / count


def interleaved(
    candidates: Candidates, rounds: int, least: float = 0.02, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds per call of every candidate in every round; each candidate runs once before.

    Libraries let their threads spin for a while, those of OpenBLAS for 0.1 s, and these would take a processor from
    the next candidate; so each begins when they sleep. Then it is called untimed until its own threads are awake and
    apart. Every round begins with another candidate.
    """
    for call in candidates.values():
        call()
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rest()
            seconds(candidates[name], WAKING)
            times[name].append(seconds(candidates[name], least, clock))
    return times


def rest() -> None:
    """Wait until the threads of this process sleep."""
    end = time.perf_counter() + LONGEST_REST
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(LOOK)
        if time.process_time() - used < LOOK / 10:
            return


def spread(values: Sequence[float]) -> list[float]:
    """The 10th and the 90th percentile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[round(0.1 * last)], ordered[round(0.9 * last)]]


def rates(times: dict[str, list[float]], amount: float, unit: str) -> dict[str, object]:
    """Median and spread of amount per second for each candidate, and each peer's time over ours, round by round."""
    row: dict[str, object] = {}
    for name, values in times.items():
        done = [amount / value for value in values]
        row[f"{name}_{unit}"] = round(statistics.median(done), 2)
        row[f"{name}_{unit}_spread"] = [round(value, 2) for value in spread(done)]
    for name in times:
        if name not in ("tileweave", "copy", "peak"):
            pairs = zip(times[name], times["tileweave"], strict=True)
            row[f"times_{name}"] = round(statistics.median(peer / own for peer, own in pairs), 3)
    return row


def emit(row: dict[str, object]) -> None:
    """One JSON line."""
    print(json.dumps(row), flush=True)


def about(threads: int) -> dict[str, object]:
    """What every row says of the machine; ``load`` is what else wanted its processors, of so many."""
    torch = torch_or_none()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "cpu": host().cpu,
        "machine": platform.machine(),
        "threads": threads,
        "numpy": np.__version__,
        "torch": None if torch is None else torch.__version__,
    }


def peak(dtype: str, threads: int) -> tuple[Callable[[], None], float]:
    """A call that multiplies and adds in registers only, and its number of floating-point operations."""
    kind, width = {"FP64": ("double", 8)}.get(dtype, ("float", 4))
    paired = dtype == "BF16" and host().has("avx512bf16")  # elsewhere BF16 is widened first
    lanes = host().lanes(width)
    vector, chains, turns = f"<{lanes} x {kind}>", min(20, host().registers - 4), 100_000
    suffix = f"v{lanes}f{8 * width}"
    lines = [f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %again ]" for i in range(chains)]
    lines += ["  %k = phi i64 [ 0, %entry ], [ %next, %again ]"]
    if paired:
        name, pairs = "llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"
        declared = f"declare {vector} @{name}({vector}, {pairs}, {pairs})"
        lines += [f"  %p = bitcast {vector} %x to {pairs}"]
        lines += [f"  %b{i} = call {vector} @{name}({vector} %a{i}, {pairs} %p, {pairs} %p)" for i in range(chains)]
    else:
        name = f"llvm.fmuladd.{suffix}"
        declared = f"declare {vector} @{name}({vector}, {vector}, {vector})"
        lines += [f"  %b{i} = call {vector} @{name}({vector} %x, {vector} %x, {vector} %a{i})" for i in range(chains)]
    sums = [f"  %s0 = fadd {vector} %b0, %b1"]
    sums += [f"  %s{i} = fadd {vector} %s{i - 1}, %b{i + 1}" for i in range(1, chains - 1)]
    source = "\n".join(
        [
            declared,
            "define void @turn(ptr %memory, i64 %task, i64 %thread) nounwind {\nentry:",
            "  %far = mul i64 %task, 256\n  %at = getelementptr i8, ptr %memory, i64 %far",
            f"  %x = load {vector}, ptr %at, align 8\n  br label %again\nagain:",
            *lines,
            f"  %next = add i64 %k, 1\n  %more = icmp slt i64 %next, {turns}",
            "  br i1 %more, label %again, label %done\ndone:",
            *sums,
            f"  store {vector} %s{chains - 2}, ptr %at, align 8\n  ret void\n}}",
            "define void @entry(ptr %pool, ptr %run, ptr %memory, i64 %count) nounwind {\nentry:",
            "  call void %run(ptr %pool, ptr @turn, ptr %memory, i64 %count, i64 %count, i64 0)\n  ret void\n}",
        ]
    )
    code = compile_ir(source, ("entry",), host(), disk=False)
    entry = code.function("entry", None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    shared, memory = pool(threads), np.zeros(64 * threads, np.float64)
    flops = (4.0 if paired else 2.0) * lanes * chains * turns * threads
    return lambda: entry(shared.address, shared.run, memory.ctypes.data, threads), flops


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 768, 1000, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="FP32", choices=["FP32", "FP64", "BF16"])
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    rows = []
    with threadpool_limits(threads):
        for n in options.sizes:
            rows.append({**about(threads), "bench": "gemm", "n": n, **_row(n, threads, options)})
            emit(rows[-1])
    emit({**about(threads), "bench": "gemm", "dtype": options.dtype, "n": "geometric mean", **summary(rows)})


def _row(n: int, threads: int, options: argparse.Namespace) -> dict[str, object]:
    kind, sums = numpy_dtype(options.dtype), "FP32" if options.dtype == "BF16" else options.dtype
    rng = np.random.default_rng(n)
    a, b, c, d = (lines((n, n), dtype) for dtype in (kind, kind, numpy_dtype(sums), numpy_dtype(sums)))
    a[:], b[:] = rng.random((n, n)), rng.random((n, n))
    square = dense((n, n), options.dtype)
    start = time.perf_counter()
    kernel = compile(emit_contraction("ik,kj->ij", (square, square), dense((n, n), sums)), threads=threads)
    compiled = time.perf_counter() - start
    call, flops = peak(options.dtype, threads)
    peers, notes = einsum_peers("ik,kj->ij", (a, b), threads)
    if options.dtype == "BF16":
        np.matmul(a.astype(np.float32), b.astype(np.float32), out=d)
    else:  # as fast as these two can be asked: into a given array
        peers["numpy"] = lambda: np.matmul(a, b, out=d)
    torch = torch_or_none()
    if torch is not None:
        ta, tb = torch_array(torch, a), torch_array(torch, b)
        tc = torch.empty((n, n), dtype=ta.dtype)
        peers["torch"] = lambda: torch.mm(ta, tb, out=tc)
    times = interleaved({"tileweave": kernel.prepare(a, b, c), **peers, "peak": call}, options.rounds)
    peaks = [flops / value / 1e9 for value in times.pop("peak")]
    row = rates(times, 2 * n**3 / 1e9, "gflops")
    own = [2 * n**3 / 1e9 / value for value in times["tileweave"]]
    shares = [x / y for x, y in zip(own, peaks, strict=True)]
    error = float(np.abs(c - d).max() / np.abs(d).max())
    return {
        "dtype": options.dtype,
        **row,
        **compared(times, "tileweave", list(peers)),
        **notes,
        "peak_gflops": round(statistics.median(peaks), 1),
        "share_of_peak": round(statistics.median(shares), 3),
        "error": error,
        "compile_seconds": round(compiled, 4),
        "from_cache": kernel.from_cache,
    }


if __name__ == "__main__":
    sys.exit(main())
