"""What tuning is worth: the 24 TCCG contractions as the backend cuts them, and as `tune` found best, in turns.

    python bench/tune.py [--threads 1 2] [--rounds 5] [--seconds 5] [--cases 0 1 ..] > bench/results/tune.jsonl

Nothing is remembered: every case is tuned anew, for at most so many seconds, and then timed again beside the backend's
own choice, so that a winner by chance shows as no gain.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time

import numpy as np
from gemm import about, dense, emit, interleaved, lines, rates
from peers import in_turn
from tccg import CASES, parsed

from tileweave.backends.cpu import compile, tune
from tileweave.teir import emit_contraction


def main() -> None:
    """Write the rows, and one with the geometric mean of the gains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cases", type=int, nargs="+", default=list(range(len(CASES))))
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    gains = []
    for number in options.cases:
        row = run(CASES[number], threads, options)
        gains.append(float(str(row["gain"])))
        emit({"bench": "tune", "case": number, **about(threads), **row})
    mean = math.exp(statistics.fmean(map(math.log, gains)))
    emit({"bench": "tune", "case": "geometric mean", **about(threads), "gain": round(mean, 3), "worst": min(gains)})


def run(case: str, threads: int, options: argparse.Namespace) -> dict[str, object]:
    """One contraction."""
    equation, sizes = parsed(case)
    inputs, out = equation.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (*inputs.split(","), out)]
    rng = np.random.default_rng(0)
    a, b, c = (lines(shape, "float32") for shape in shapes)
    a[:], b[:] = rng.random(a.shape, np.float32), rng.random(b.shape, np.float32)
    operands = [dense(shape, "FP32") for shape in shapes]
    program = emit_contraction(equation, operands[:2], operands[2])
    start = time.perf_counter()
    tuned = tune(program, threads=threads, seconds=options.seconds, cache=False)
    took = time.perf_counter() - start
    candidates = {"own": compile(program, threads=threads).prepare(a, b, c), "tileweave": tuned.kernel.prepare(a, b, c)}
    times = interleaved(candidates, options.rounds, 0.01)
    gain = statistics.median(own / best for own, best in zip(times["own"], times["tileweave"], strict=True))
    return {
        "equation": equation,
        "sizes": sizes,
        "winner": str(tuned.choice),
        "trials": len(tuned.trials),
        "tuning_seconds": round(took, 2),
        **rates(times, 2 * math.prod(sizes.values()) / 1e9, "gflops"),
        "gain": round(gain, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
