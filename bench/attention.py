"""Attention at the user's call, beside PyTorch's scaled_dot_product_attention and JAX's, on NumPy's own arrays.

    python bench/attention.py [--threads 1 2] [--rounds 9] [--most 4096] > bench/results/attention.jsonl

A row has milliseconds (least of calls taken in turn, each behind an untimed one of the same library; with one thread
seconds of the calling thread, which other processes disturb less), the ratios peer / ours, and the largest difference
from float64 on some queries. A process has one number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

import tileweave as tw

SHAPES = [
    *((heads, keys, depth) for keys in (128, 256, 512, 1024, 2048, 4096) for heads, depth in ((8, 64), (8, 128))),
    (12, 128, 64),
    (12, 512, 64),
    (16, 1024, 64),
]
SECONDS = 3.0
"""Of a row, after which no further turn begins; there are two at least."""
Call = Callable[[], Any]


def calls(arrays: list[np.ndarray], causal: bool, threads: int) -> dict[str, Call]:
    """The libraries' calls."""
    sources = [tw.source(name=name, shape=x.shape, dtype=x.dtype) for name, x in zip("qkv", arrays, strict=True)]
    plan = tw.plan(tw.nn.attention(*sources, causal=causal))
    bind = dict(zip("qkv", arrays, strict=True))
    found: dict[str, Call] = {"tileweave": lambda: tw.run(plan, bind=bind, threads=threads)}
    if find_spec("torch"):
        import torch

        torch.set_num_threads(threads)
        own = [torch.from_numpy(x) for x in arrays]
        attention = torch.nn.functional.scaled_dot_product_attention
        found["torch"] = lambda: attention(*own, is_causal=causal).numpy()
    if find_spec("jax") and not (threads == 1 and len(os.sched_getaffinity(0)) > 1):  # it takes all cores there are
        import jax

        turned = [jax.numpy.array(x.swapaxes(1, 2)) for x in arrays]
        jitted = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
        found["jax"] = lambda: jax.block_until_ready(jitted(*turned))
    return found


def rows(threads: int, rounds: int, most: int) -> Iterator[dict[str, Any]]:
    """A row per shape, causal and not."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    for heads, keys, depth in SHAPES:
        for causal in (False, True) if keys <= most else ():
            draw = np.random.default_rng(0)
            arrays = [draw.standard_normal((1, heads, keys, depth), np.float32) for _ in range(3)]
            made = calls(arrays, causal, threads)
            times: dict[str, float] = dict.fromkeys(made, float("inf"))
            end = time.monotonic() + SECONDS
            for turn in range(max(3, rounds * 512 // max(keys, 512))):
                if turn > 1 and time.monotonic() > end:
                    break
                for name in sorted(made, reverse=turn % 2 == 1):
                    made[name]()
                    begin = clock()
                    made[name]()
                    times[name] = min(times[name], clock() - begin)
            some = np.linspace(0, keys - 1, 8).astype(int)
            wide = [x.astype(np.float64) for x in arrays]
            scores = wide[0][:, :, some] @ wide[1].swapaxes(2, 3) / np.sqrt(depth)
            scores = np.where(np.arange(keys) <= some[:, None], scores, -np.inf) if causal else scores
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = weights / weights.sum(-1, keepdims=True) @ wide[2]
            products = 4 * heads * keys * keys * depth * (0.5 if causal else 1)
            yield {
                "heads": heads,
                "keys": keys,
                "depth": depth,
                "causal": causal,
                "threads": threads,
                "ms": {name: round(t * 1e3, 3) for name, t in times.items()},
                "gflops": round(products / times["tileweave"] / 1e9, 1),
                "times": {n: round(t / times["tileweave"], 3) for n, t in times.items() if n != "tileweave"},
                "largest_difference": float(np.abs(made["tileweave"]()[:, :, some] - expected).max()),
                "load": round(os.getloadavg()[0], 1),
                "date": time.strftime("%Y-%m-%d"),
            }


def main() -> int:
    """Print a JSON line per row; a process per number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=4096, help="the most keys")
    options = parser.parse_args()
    if len(options.threads) > 1:
        for threads in options.threads:
            own = ["--threads", str(threads), "--rounds", str(options.rounds), "--most", str(options.most)]
            subprocess.run([sys.executable, __file__, *own], check=True)
        return 0
    for row in rows(options.threads[0], options.rounds, options.most):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
