"""Permutations of 100 MB tensors against NumPy and torch, as a share of the copy rate of the same run.

    python bench/permute.py [--threads 1 2] [--rounds 5] [--all] > bench/results/permute.jsonl

Rates count bytes read and bytes written. ``--all`` takes every order of every rank from 2 to 5; otherwise a dozen.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from itertools import permutations

import numpy as np
from gemm import Candidates, about, dense, emit, interleaved, lines, rates, torch_or_none
from threadpoolctl import threadpool_limits

from tileweave.backends.cpu import compile
from tileweave.teir import emit_copy

SHAPES = {2: (5120, 5120), 3: (296, 296, 296), 4: (72, 72, 72, 72), 5: (30, 30, 30, 30, 30)}
CHOSEN: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5120, 5120), (1, 0)),
    ((4096, 6400), (1, 0)),
    ((296, 296, 296), (0, 2, 1)),
    ((296, 296, 296), (2, 1, 0)),
    ((296, 296, 296), (2, 0, 1)),
    ((296, 296, 296), (1, 0, 2)),
    ((72, 72, 72, 72), (3, 2, 1, 0)),
    ((72, 72, 72, 72), (2, 3, 0, 1)),
    ((64, 64, 96, 64), (3, 1, 2, 0)),
    ((64, 64, 96, 64), (0, 3, 2, 1)),
    ((30, 30, 30, 30, 30), (4, 3, 2, 1, 0)),
    ((30, 30, 30, 30, 30), (2, 4, 1, 3, 0)),
]


def main() -> None:
    """Write the rows, and one with the geometric means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="FP32", choices=["FP32", "FP64"])
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    cases = CHOSEN
    if options.all:
        cases = [(SHAPES[r], p) for r in SHAPES for p in permutations(range(r)) if p != tuple(range(r))]
    torch = torch_or_none()
    for threads in options.threads:
        rows = []
        with threadpool_limits(threads):
            if torch is not None:
                torch.set_num_threads(threads)
            for shape, order in cases:
                rows.append({"bench": "permute", **about(threads), **run(shape, order, threads, options)})
                emit(rows[-1])
        means = {
            key: round(math.exp(statistics.fmean(math.log(float(str(row[key]))) for row in rows)), 3)
            for key in rows[0]
            if key.startswith(("times_", "share_")) or key.endswith("_gbytes")
        }
        emit({"bench": "permute", "shape": "geometric mean", **about(threads), "cases": len(rows), **means})


def run(shape: tuple[int, ...], order: tuple[int, ...], threads: int, options: argparse.Namespace) -> dict[str, object]:
    """One permutation."""
    kind = {"FP32": "float32", "FP64": "float64"}[options.dtype]
    source, target = lines(shape, kind), lines([shape[k] for k in order], kind)
    source[:] = np.random.default_rng(0).random(shape)
    other = lines(target.shape, kind)
    letters = "abcdef"[: len(shape)]
    equation = f"{letters}->{''.join(letters[k] for k in order)}"
    kernel = compile(
        emit_copy(dense(shape, options.dtype), dense(target.shape, options.dtype), equation), threads=threads
    )
    flat = dense((source.size,), options.dtype)
    copy = compile(emit_copy(flat, flat), threads=threads)
    candidates: Candidates = {
        "tileweave": kernel.prepare(source, target),
        "copy": copy.prepare(source.reshape(-1), other.reshape(-1)),
        "memcpy": lambda: np.copyto(other.reshape(-1), source.reshape(-1)),
        "numpy": lambda: np.copyto(other, source.transpose(order)),
    }
    torch = torch_or_none()
    if torch is not None:
        t_source, t_other = torch.from_numpy(source).permute(order), torch.from_numpy(other)
        candidates["torch"] = lambda: t_other.copy_(t_source)
    times = interleaved(candidates, options.rounds, 0.01)
    right = bool(np.array_equal(target, source.transpose(order)))
    best = [min(a, b) for a, b in zip(times["copy"], times["memcpy"], strict=True)]
    share = statistics.median(a / b for a, b in zip(best, times["tileweave"], strict=True))
    gbytes = (source.nbytes + target.nbytes) / 1e9
    return {
        "shape": shape,
        "order": order,
        "dtype": options.dtype,
        **rates(times, gbytes, "gbytes"),
        "share_of_copy": round(share, 3),
        "right": right,
    }


if __name__ == "__main__":
    sys.exit(main())
