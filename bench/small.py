"""Small contractions: what one call costs, through every way to call, against NumPy and torch.

    python bench/small.py [--rounds 9] > bench/results/small.jsonl

``tileweave`` is the public call into a new array, and ``times_einsum`` compares it; ``out`` writes to a given array;
``call`` is a kernel on arrays, checked; ``prepared`` is a kernel bound to its arrays; one thread.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np
from gemm import Candidates, about, dense, emit, interleaved, rates, torch_or_none
from threadpoolctl import threadpool_limits

from tileweave.backends.cpu import compile
from tileweave.lower import contract
from tileweave.teir import emit_einsum

CASES = [
    ("ik,kj->ij", {"i": 8, "j": 8, "k": 8}),
    ("ik,kj->ij", {"i": 16, "j": 16, "k": 16}),
    ("ik,kj->ij", {"i": 32, "j": 32, "k": 32}),
    ("ik,kj->ij", {"i": 64, "j": 64, "k": 64}),
    ("ik,kj->ij", {"i": 13, "j": 17, "k": 9}),
    ("abk,kc->abc", {"a": 8, "b": 8, "c": 8, "k": 8}),
    ("abk,kc->abc", {"a": 32, "b": 32, "c": 32, "k": 32}),
    ("bik,bkj->bij", {"b": 8, "i": 8, "j": 8, "k": 8}),
    ("abc,cdb->ad", {"a": 16, "b": 16, "c": 16, "d": 16}),
    ("ab,bc,cd->ad", {"a": 8, "b": 8, "c": 8, "d": 8}),
]


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch = torch_or_none()
    with threadpool_limits(1):
        if torch is not None:
            torch.set_num_threads(1)
        for equation, sizes in CASES:
            emit({"bench": "small", **about(1), **run(equation, sizes, options.rounds)})


def run(equation: str, sizes: dict[str, int], rounds: int) -> dict[str, object]:
    """One contraction."""
    inputs, output = equation.split("->")
    shapes = [tuple(sizes[letter] for letter in letters) for letters in (*inputs.split(","), output)]
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, dtype=np.float32) for shape in shapes[:-1]]
    out = np.zeros(shapes[-1], np.float32)
    *operands, result = (dense(shape, "FP32") for shape in shapes)
    start = time.perf_counter()
    kernel = compile(emit_einsum(equation, operands, result), threads=1)
    compiled = time.perf_counter() - start
    candidates: Candidates = {
        "tileweave": lambda: contract(equation, *arrays, threads=1),
        "out": lambda: contract(equation, *arrays, out=out, threads=1),
        "prepared": kernel.prepare(*arrays, out),
        "call": lambda: kernel(*arrays, out),
        "einsum": lambda: np.einsum(equation, *arrays),
        "einsum_out": lambda: np.einsum(equation, *arrays, out=out),
    }
    if len(arrays) > 2:  # NumPy sums pair by pair only when asked
        candidates["einsum_optimize"] = lambda: np.einsum(equation, *arrays, optimize=True)
    torch = torch_or_none()
    if torch is not None:
        tensors = [torch.from_numpy(array) for array in arrays]
        candidates["torch"] = lambda: torch.einsum(equation, *tensors)
    times = interleaved(candidates, rounds, 0.005)
    row = {"equation": equation, "sizes": sizes, **rates(times, 1e-6, "per_microsecond")}
    for name, values in times.items():
        row[f"{name}_microseconds"] = round(1e6 * sorted(values)[len(values) // 2], 3)
        row.pop(f"{name}_per_microsecond"), row.pop(f"{name}_per_microsecond_spread")
    if len(arrays) == 2:
        flops = 2 * math.prod(sizes.values())
        row["prepared_gflops"] = round(flops / sorted(times["prepared"])[rounds // 2] / 1e9, 2)
    return {**row, "compile_seconds": round(compiled, 4), "from_cache": kernel.from_cache}


if __name__ == "__main__":
    sys.exit(main())
