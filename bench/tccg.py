"""The 24 TCCG contractions, read as einsums on row-major arrays, against NumPy, torch, JAX and etops.

    python bench/tccg.py [--threads 1 2] [--rounds 3] [--cases 0 1 ..] > bench/results/tccg.jsonl

Each row carries its roofline: the peak of multiply-adds and the rate of a copy, both measured in the same rounds.
NumPy, torch and JAX allocate their results, as their einsum functions do; tileweave and etops write into a given array.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time

import numpy as np
from gemm import about, dense, emit, interleaved, lines, peak, rates
from peers import compared, einsum_peers, in_turn, summary
from threadpoolctl import threadpool_limits

from tileweave.backends.cpu import compile
from tileweave.teir import Program, emit_contraction, emit_copy

CASES = """
adb,cd->cba a=384 b=384 c=24 d=384
acd,db->cba a=384 b=24 c=376 d=384
aebd,ce->dcba a=96 b=84 c=24 d=96 e=96
aced,eb->dcba a=96 b=24 c=84 d=96 e=84
dabe,ec->dcba a=96 b=84 c=24 d=84 e=96
dabfe,fc->edcba a=48 b=36 c=24 d=36 e=48 f=36
afbce,df->edcba a=48 b=36 c=36 d=24 e=48 f=48
dacfe,fb->edcba a=48 b=24 c=36 d=36 e=48 f=36
ae,dcbe->dcba a=96 b=84 c=84 d=84 e=96
be,dcea->dcba a=96 b=84 c=84 d=84 e=96
ce,deba->dcba a=96 b=84 c=84 d=84 e=96
ca,bc->ba a=2808 b=2808 c=2808
dca,cbd->ba a=384 b=376 c=376 d=384
dac,bcd->ba a=384 b=376 c=384 d=384
dca,bd->cba a=384 b=376 c=376 d=384
cda,db->cba a=384 b=384 c=376 d=376
ceda,dbe->cba a=96 b=84 c=84 d=84 e=96
fbea,ecfd->dcba a=48 b=52 c=52 d=48 e=52 f=52
fbea,cedf->dcba a=48 b=52 c=52 d=52 e=52 f=48
dfae,cebf->dcba a=48 b=52 c=52 d=52 e=48 f=48
aged,cbfg->fedcba a=24 b=20 c=20 d=24 e=20 f=20 g=24
bged,cafg->fedcba a=24 b=20 c=20 d=24 e=20 f=20 g=24
cged,bafg->fedcba a=24 b=20 c=20 d=24 e=20 f=20 g=24
bgfd,caeg->fedcba a=24 b=20 c=20 d=24 e=20 f=20 g=24
""".strip().splitlines()
"""An equation and its extents; the first of the list with 7248 per side at full size is run at 2808."""


def parsed(case: str) -> tuple[str, dict[str, int]]:
    """The equation and the extents of its letters."""
    equation, *sizes = case.split()
    return equation, {item[0]: int(item[2:]) for item in sizes}


def main() -> None:
    """Write the rows, and one with the geometric means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    rows = []
    with threadpool_limits(threads):
        for number in options.cases:
            rows.append({"bench": "tccg", "case": number, **about(threads), **run(CASES[number], threads, options)})
            emit(rows[-1])
    emit({"bench": "tccg", "case": "geometric mean", **about(threads), **summary(rows)})


def run(case: str, threads: int, options: argparse.Namespace) -> dict[str, object]:
    """One contraction."""
    equation, sizes = parsed(case)
    left, rest = equation.split(",")
    right, out = rest.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right, out)]
    rng = np.random.default_rng(0)
    a, b, c = (lines(shape, "float32") for shape in shapes)
    a[:], b[:] = rng.random(a.shape, np.float32), rng.random(b.shape, np.float32)
    operands = [dense(shape, "FP32") for shape in shapes]
    start = time.perf_counter()
    kernel = compile(emit_contraction(equation, operands[:2], operands[2]), threads=threads)
    compiled = time.perf_counter() - start
    call, flops = peak("FP32", threads)
    big, copied = lines((1 << 25,), "float32"), lines((1 << 25,), "float32")
    copy = compile(_copy(1 << 25), threads=threads).prepare(big, copied)
    peers, notes = einsum_peers(equation, (a, b), threads)
    candidates = {"tileweave": kernel.prepare(a, b, c), **peers, "peak": call, "copy": copy}
    times = interleaved(candidates, options.rounds, 0.01)
    gflop = 2 * math.prod(sizes.values()) / 1e9
    gbytes = (a.nbytes + b.nbytes + c.nbytes) / 1e9
    peaks = [flops / value / 1e9 for value in times.pop("peak")]
    copies = [2 * big.nbytes / value / 1e9 for value in times.pop("copy")]
    roofs = [max(gflop / p, gbytes / q) for p, q in zip(peaks, copies, strict=True)]
    expected = np.einsum(equation, a, b, optimize=True)
    return {
        "equation": equation,
        "sizes": sizes,
        **rates(times, gflop, "gflops"),
        **compared(times, "tileweave", list(peers)),
        **notes,
        "peak_gflops": round(statistics.median(peaks), 1),
        "copy_gbytes_per_second": round(statistics.median(copies), 1),
        "share_of_roofline": round(
            statistics.median(roof / own for roof, own in zip(roofs, times["tileweave"], strict=True)), 3
        ),
        "error": float(np.abs(c - expected).max() / np.abs(expected).max()),
        "compile_seconds": round(compiled, 4),
    }


def _copy(count: int) -> Program:
    return emit_copy(dense((count,), "FP32"), dense((count,), "FP32"))


if __name__ == "__main__":
    sys.exit(main())
