"""The peers of contractions: NumPy, torch, JAX and etops, each where it is installed, and how they are judged.

etops computes on the arrays that it is given, so they are dense arrays of float32; it is timed with the settings of its
own optimizer, and with the best of `TARGETS`, which a quick trial finds before the rounds. NumPy, torch and JAX
allocate their results, as their einsum functions do.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

__all__ = [
    "Candidates",
    "compared",
    "einsum_peers",
    "etops_calls",
    "etops_config",
    "in_turn",
    "optional",
    "summary",
    "torch_array",
]

Array = np.ndarray[Any, Any]
Candidates = dict[str, Callable[[], object]]
MATMUL = ("ik,kj->ij", "ij,jk->ik", "bij,bjk->bik", "ij,j->i", "i,ij->j")
"""Einsums for which a user of NumPy writes `@`."""
TARGETS = (
    (24, 24, 24),
    (96, 24, 24),
    (32, 32, 64),
    (48, 24, 96),
    (64, 24, 64),
    (64, 48, 96),
    (96, 48, 128),
    (48, 84, 96),
    (128, 24, 128),
    (64, 48, 256),
    (32, 48, 512),
    (64, 32, 384),
    (128, 48, 512),
)
"""Extents of tiles (m, n, k) that etops' optimizer is asked to come near, beside its own (16, 12, 64)."""


def optional(name: str) -> Any:
    """A module, where it is installed; None otherwise."""
    try:
        return import_module(name)
    except ImportError:
        return None


def in_turn(threads: Sequence[int]) -> int | None:
    """The one number of threads that this process measures; None where it had one process measure each in turn.

    JAX and OpenMP take as many threads as the process has processors, so a process is bound to as many as it uses.
    """
    if len(threads) > 1:
        arguments = sys.argv[1:]
        if "--threads" in arguments:
            at = arguments.index("--threads")
            end = next((k for k in range(at + 1, len(arguments)) if arguments[k].startswith("--")), len(arguments))
            del arguments[at:end]
        for count in threads:
            subprocess.run([sys.executable, sys.argv[0], *arguments, "--threads", str(count)], check=True)
        return None
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads[0] :])
    threadpool_limits(threads[0])  # threads that a library began earlier are bound to nothing
    torch = optional("torch")
    if torch is not None:
        torch.set_num_threads(threads[0])
    return threads[0]


def einsum_peers(equation: str, arrays: Sequence[Array], threads: int) -> tuple[Candidates, dict[str, object]]:
    """A call per peer that is installed, and what a row says of them: the settings chosen, the peers left out."""
    candidates: Candidates = {}
    first, path = arrays[0], np.einsum_path(equation, *arrays, optimize=True)[0]
    if first.dtype.kind in "fi" and first.dtype.itemsize > 2:  # elsewhere NumPy multiplies element by element
        candidates["numpy"] = lambda: np.einsum(equation, *arrays, optimize=path)
        if equation in MATMUL:
            candidates["numpy_matmul"] = lambda: np.matmul(*arrays)
    notes: dict[str, object] = {}
    torch, jax, etops = optional("torch"), optional("jax"), optional("etops")
    if torch is not None:
        tensors = [torch_array(torch, array) for array in arrays]
        candidates["torch"] = lambda: torch.einsum(equation, *tensors)
    if jax is not None:
        jax.config.update("jax_enable_x64", True)  # else it would compute FP64 in FP32
        given = [jax.numpy.asarray(array) for array in arrays]
        jitted = jax.jit(lambda *values: jax.numpy.einsum(equation, *values))
        candidates["jax"] = lambda: jitted(*given).block_until_ready()
    dense = len(arrays) == 2 and all(array.flags.c_contiguous for array in arrays)
    if etops is not None and dense and first.dtype == np.float32:
        try:
            candidates["etops"], (target, candidates["etops_tuned"]) = etops_calls(etops, equation, *arrays, threads)
            notes["etops_target"] = target
        except RuntimeError as error:  # it compiles not every shape
            notes["etops_refuses"] = str(error)
    missing = [name for name, module in (("torch", torch), ("jax", jax), ("etops", etops)) if module is None]
    if missing:
        notes["not_installed"] = missing
    return candidates, notes


def torch_array(torch: Any, array: Array) -> Any:
    """The same memory as torch sees it; BF16 has no NumPy type of its own."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# ---- etops ------------------------------------------------------------------------------------------------------


def etops_config(etops: Any, equation: str, a: Sequence[int], b: Sequence[int]) -> Any:
    """An einsum of two dense operands as etops describes it; the output's dense letter is one of its m."""
    (left, right, out), swapped = _letters(equation)
    shapes = (b, a) if swapped else (a, b)
    sizes = dict(zip(left, shapes[0], strict=True)) | dict(zip(right, shapes[1], strict=True))
    dims = list(dict.fromkeys(out + left + right))

    def strides(letters: str) -> tuple[int, ...]:
        steps, step = {}, 1
        for letter in reversed(letters):
            steps[letter] = step
            step *= sizes[letter]
        return tuple(steps.get(letter, 0) for letter in dims)

    kinds = {(True, True, True): etops.dim.c, (True, False, True): etops.dim.m, (False, True, True): etops.dim.n}
    return etops.TensorOperationConfig(
        backend="tpp",
        data_type=etops.float32,
        prim_first=etops.prim.zero,
        prim_main=etops.prim.gemm,
        prim_last=etops.prim.none,
        dim_types=tuple(kinds.get((d in left, d in right, d in out), etops.dim.k) for d in dims),
        exec_types=tuple(etops.exec.seq for _ in dims),
        dim_sizes=tuple(sizes[d] for d in dims),
        strides=((strides(left), strides(right), strides(out)),),
    )


def _letters(equation: str) -> tuple[tuple[str, str, str], bool]:
    """The letters of both operands and the output, the operand with the output's last letter first; whether swapped."""
    left, rest = equation.split(",")
    right, out = rest.split("->")
    swapped = out[-1:] not in left
    return ((right, left, out) if swapped else (left, right, out)), swapped


def etops_calls(
    etops: Any, equation: str, a: Array, b: Array, threads: int
) -> tuple[Callable[[], object], tuple[list[object], Callable[[], object]]]:
    """Calls as its optimizer makes them unasked, and for the fastest target, which stands before its call.

    Both write into the same array. The trial: one call that also compiles, then the best of two.
    """
    config = etops_config(etops, equation, a.shape, b.shape)
    (left, right, out), swapped = _letters(equation)
    first, second = (b, a) if swapped else (a, b)
    sizes = dict(zip(left, first.shape, strict=True)) | dict(zip(right, second.shape, strict=True))
    result = np.zeros([sizes[letter] for letter in out], np.float32)

    def made(**wishes: object) -> Callable[[], object]:
        settings = etops.backend.tpp.get_default_optimization_config() | {"num_threads": threads} | wishes
        operation = etops.TensorOperation(etops.optimize(config, settings))
        return lambda: operation.execute(first, second, result)

    plain = made()
    best: tuple[float, list[object], Callable[[], object]] = (math.inf, ["default"], plain)
    for m, n, k in TARGETS:
        for sfc in (True, False):
            try:
                call = made(target_m=m, target_n=n, target_k=k, sfc_support=sfc)
            except RuntimeError:
                continue  # its optimizer finds no way for this target
            took = _seconds(call)
            if took < 1.5 * best[0]:  # a first call that is far behind needs no second
                took = min(_seconds(call), _seconds(call))
            if took < best[0]:
                best = took, [m, n, k, sfc], call
    return plain, best[1:]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# ---- rows -------------------------------------------------------------------------------------------------------


def compared(times: Mapping[str, Sequence[float]], own: str, peers: Sequence[str]) -> dict[str, object]:
    """The best peer by its median, and the median over the rounds of the best peer's time over ours."""
    best = min(peers, key=lambda name: statistics.median(times[name]))
    rounds = zip(times[own], *(times[name] for name in peers), strict=True)
    ratio = statistics.median(min(row[1:]) / row[0] for row in rounds)
    return {"best_peer": best, "times_best_peer": round(ratio, 3)}


def summary(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Geometric means of every rate and ratio, and the row that stands worst against its best peer."""
    keys = [key for key in rows[0] if key.startswith(("times_", "share_")) or key.endswith("_gflops")]
    means: dict[str, object] = {
        key: round(math.exp(statistics.fmean(math.log(float(str(row[key]))) for row in rows)), 3) for key in keys
    }
    if "times_best_peer" in keys:
        worst = min(rows, key=lambda row: float(str(row["times_best_peer"])))
        means["worst_times_best_peer"] = worst["times_best_peer"]
        means["worst_case"] = worst.get("equation", worst.get("n"))
    return {"rows": len(rows), **means}
