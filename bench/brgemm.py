"""Batch-reduce products of small tiles, and whole products in blocked layouts, against etops and the libraries.

    python bench/brgemm.py [--threads 1] [--rounds 9] > bench/results/brgemm.jsonl

``tiles``: C[i, j] is the sum over b of A[b] @ B[b], as TEIR's batch-reduce GEMM (10.7.7): everything lies in the first
two caches. ``blocked``: a product of 1024 per side, all three tensors stored tile by tile. etops is LIBXSMM's kernels.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys

import numpy as np
from gemm import about, dense, emit, interleaved, lines, peak, rates
from peers import compared, einsum_peers, in_turn, summary
from threadpoolctl import threadpool_limits

from tileweave.backends.cpu import compile
from tileweave.teir import emit_contraction

TILES = (16, 24, 32, 48, 64)
BATCH, SIDE = 16, 1024


def main() -> None:
    """Write the rows, and one with the geometric means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    cases = [("tiles", "bik,bkj->ij", {"b": BATCH, "i": t, "j": t, "k": t}) for t in TILES]
    blocks = {t: SIDE // t for t in TILES if SIDE % t == 0}
    cases += [
        ("blocked", "xzik,zykj->xyij", {**dict.fromkeys("xyz", count), **dict.fromkeys("ijk", t)})
        for t, count in blocks.items()
    ]
    rows = []
    with threadpool_limits(threads):
        for kind, equation, sizes in cases:
            rows.append({**about(threads), "bench": "brgemm", "kind": kind, **run(equation, sizes, threads, options)})
            emit(rows[-1])
    emit({**about(threads), "bench": "brgemm", "kind": "geometric mean", **summary(rows)})


def run(equation: str, sizes: dict[str, int], threads: int, options: argparse.Namespace) -> dict[str, object]:
    """One contraction."""
    left, rest = equation.split(",")
    right, out = rest.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right, out)]
    rng = np.random.default_rng(0)
    a, b, c = (lines(shape, "float32") for shape in shapes)
    a[:], b[:] = rng.random(a.shape, np.float32), rng.random(b.shape, np.float32)
    operands = [dense(shape, "FP32") for shape in shapes]
    kernel = compile(emit_contraction(equation, operands[:2], operands[2]), threads=threads)
    peers, notes = einsum_peers(equation, (a, b), threads)
    call, flops = peak("FP32", threads)
    times = interleaved({"tileweave": kernel.prepare(a, b, c), **peers, "peak": call}, options.rounds)
    gflop = 2 * math.prod(sizes.values()) / 1e9
    peaks = [flops / value / 1e9 for value in times.pop("peak")]
    shares = [gflop / own / p for own, p in zip(times["tileweave"], peaks, strict=True)]
    expected = np.einsum(equation, a, b, optimize=True)
    return {
        "equation": equation,
        "sizes": sizes,
        **rates(times, gflop, "gflops"),
        **compared(times, "tileweave", list(peers)),
        **notes,
        "peak_gflops": round(statistics.median(peaks), 1),
        "share_of_peak": round(statistics.median(shares), 3),
        "error": float(np.abs(c - expected).max() / np.abs(expected).max()),
    }


if __name__ == "__main__":
    sys.exit(main())
