"""Fused programs against NumPy, torch and JAX: relu(A B + bias), softmax, norms, row sums, gelu.

    python bench/fused.py [--threads 1 2] [--rounds 7] [--cases softmax ..] > bench/results/fused.jsonl

Every candidate computes from the same float32 arrays. ``torch`` is eager torch as one writes it, which allocates its
result; ``torch_out`` is given memory for it, where the function takes some. JAX is one jitted function, and allocates.
Rates are operations per second of the matrix product, else bytes of the operands per second; the copy rate is measured
in the same rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gemm import Candidates, about, dense, emit, interleaved, lines, rates
from peers import compared, in_turn, optional

from tileweave.backends.cpu import compile
from tileweave.layout import strided
from tileweave.teir import Operand, Program, emit_contraction, emit_elementwise, emit_reduction
from tileweave.teir.emit.rows import emit_layer_norm, emit_rms_norm, emit_softmax

Array = np.ndarray[Any, Any]
PRODUCTS = ((1152, 784, 512), (1152, 512, 512), (1024, 1024, 1024), (2048, 64, 2048), (4096, 128, 4096))
SHAPES = ((1024, 1024), (4096, 4096), (16384, 1024), (1024, 16384), (16384, 4096))


@dataclass
class Case:
    """A program with its inputs, and what the peers compute.

    Args:
        shapes: of the inputs.
        out: shape of the output.
        program: from these shapes.
        numpy: from the inputs and memory for the output.
        torch: from torch and the inputs.
        torch_out: likewise, into memory; None where torch has no such form.
        jax: from jax and the inputs.
        flops: of one call; 0 where memory is what counts.
    """

    shapes: Sequence[tuple[int, ...]]
    out: tuple[int, ...]
    program: Program
    numpy: Callable[..., object]
    torch: Callable[..., object]
    torch_out: Callable[..., object] | None
    jax: Callable[..., object]
    flops: float = 0.0
    amount: float = field(init=False)

    def __post_init__(self) -> None:
        self.amount = self.flops or 4.0 * sum(int(np.prod(shape)) for shape in (*self.shapes, self.out))


def linear_relu(m: int, k: int, n: int) -> Case:
    """relu(A B + bias)."""
    a, b, c = dense((m, k), "FP32"), dense((k, n), "FP32"), dense((m, n), "FP32")
    row = Operand(strided((m, n), (0, 1)), "FP32")

    def numpy(x: Array, y: Array, z: Array, out: Array) -> None:
        np.matmul(x, y, out=out)
        np.add(out, z, out=out)
        np.maximum(out, 0, out=out)

    return Case(
        ((m, k), (k, n), (n,)),
        (m, n),
        emit_contraction("ik,kj->ij", (a, b), c, init=row, relu=True),
        numpy,
        lambda torch, x, y, z: torch.relu(x @ y + z),
        lambda torch, x, y, z, out: torch.addmm(z, x, y, out=out).relu_(),
        lambda jax, x, y, z: jax.nn.relu(x @ y + z),
        2.0 * m * k * n,
    )


def softmax(m: int, n: int) -> Case:
    """Over the last axis."""
    x = dense((m, n), "FP32")

    def numpy(x: Array, out: Array) -> None:
        np.subtract(x, x.max(1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(1, keepdims=True), out=out)

    return Case(
        ((m, n),),
        (m, n),
        emit_softmax(x, x),
        numpy,
        lambda torch, x: torch.softmax(x, -1),
        lambda torch, x, out: torch.softmax(x, -1, out=out),
        lambda jax, x: jax.nn.softmax(x, -1),
    )


def layer_norm(m: int, n: int) -> Case:
    """Over the last axis, with scale and shift."""
    x, row = dense((m, n), "FP32"), dense((n,), "FP32")

    def numpy(x: Array, scale: Array, shift: Array, out: Array) -> None:
        np.subtract(x, x.mean(1, keepdims=True), out=out)
        np.multiply(out, 1 / np.sqrt(np.square(out).mean(1, keepdims=True) + 1e-5), out=out)
        np.multiply(out, scale, out=out)
        np.add(out, shift, out=out)

    def jitted(jax: Any, x: Any, scale: Any, shift: Any) -> Any:
        left = x - x.mean(1, keepdims=True)
        return left * jax.lax.rsqrt((left * left).mean(1, keepdims=True) + 1e-5) * scale + shift

    return Case(
        ((m, n), (n,), (n,)),
        (m, n),
        emit_layer_norm(x, x, row, row),
        numpy,
        lambda torch, x, scale, shift: torch.nn.functional.layer_norm(x, (n,), scale, shift),
        None,
        jitted,
    )


def rms_norm(m: int, n: int) -> Case:
    """Over the last axis, with a scale."""
    x, row = dense((m, n), "FP32"), dense((n,), "FP32")

    def numpy(x: Array, scale: Array, out: Array) -> None:
        np.multiply(x, 1 / np.sqrt(np.square(x).mean(1, keepdims=True) + 1e-5), out=out)
        np.multiply(out, scale, out=out)

    return Case(
        ((m, n), (n,)),
        (m, n),
        emit_rms_norm(x, x, row),
        numpy,
        lambda torch, x, scale: torch.nn.functional.rms_norm(x, (n,), scale, 1e-5),
        None,
        lambda jax, x, scale: x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-5) * scale,
    )


def row_sums(m: int, n: int) -> Case:
    """The sum of every row."""
    return Case(
        ((m, n),),
        (m,),
        emit_reduction("sum", dense((m, n), "FP32"), dense((m,), "FP32"), "ab->a"),
        lambda x, out: np.sum(x, 1, out=out),
        lambda torch, x: x.sum(1),
        lambda torch, x, out: torch.sum(x, 1, out=out),
        lambda jax, x: x.sum(1),
    )


def gelu(m: int, n: int) -> Case:
    """The exact function, by erf."""
    x = dense((m, n), "FP32")

    def numpy(x: Array, out: Array) -> None:  # NumPy has no erf: the approximation by tanh, which is less work
        np.multiply(x, x, out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, 0.044715, out=out)
        np.add(out, x, out=out)
        np.multiply(out, 0.7978846, out=out)
        np.tanh(out, out=out)
        np.add(out, 1, out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, 0.5, out=out)

    return Case(
        ((m, n),),
        (m, n),
        emit_elementwise("Gelu", (x,), x),
        numpy,
        lambda torch, x: torch.nn.functional.gelu(x),
        lambda torch, x, out: torch._C._nn.gelu(x, out=out),
        lambda jax, x: jax.nn.gelu(x, approximate=False),
    )


CASES: dict[str, tuple[Callable[..., Case], tuple[tuple[int, ...], ...]]] = {
    "linear_relu": (linear_relu, PRODUCTS),
    "softmax": (softmax, SHAPES),
    "layer_norm": (layer_norm, SHAPES),
    "rms_norm": (rms_norm, SHAPES),
    "row_sums": (row_sums, SHAPES),
    "gelu": (gelu, SHAPES),
}


def _prepared(program: Program, threads: int, inputs: Sequence[Array], out: Array) -> Callable[[], None]:
    """Our call; the inputs are in the order of the program's, wherever it has its output."""
    rest = iter(inputs)
    arrays = [out if spec.name == "out" else next(rest) for spec in program.tensors if spec.role != "scratch"]
    return compile(program, threads=threads).prepare(*arrays)


def run(name: str, sizes: tuple[int, ...], threads: int, rounds: int) -> dict[str, object]:
    """One row."""
    case = CASES[name][0](*sizes)
    rng = np.random.default_rng(len(sizes))
    inputs = [lines(shape, "float32") for shape in case.shapes]
    for array in inputs:
        array[...] = rng.standard_normal(array.shape, dtype=np.float32)
    own, other = lines(case.out, "float32"), lines(case.out, "float32")
    copied = lines(case.shapes[0], "float32")
    candidates: Candidates = {
        "tileweave": _prepared(case.program, threads, inputs, own),
        "numpy": lambda: case.numpy(*inputs, other),
    }
    torch, jax = optional("torch"), optional("jax")
    if torch is not None:
        tensors, out = [torch.from_numpy(array) for array in inputs], torch.empty(case.out)
        candidates["torch"] = lambda: case.torch(torch, *tensors)
        into = case.torch_out
        if into is not None:
            candidates["torch_out"] = lambda: into(torch, *tensors, out)
    if jax is not None:
        arrays = [jax.numpy.asarray(array) for array in inputs]
        jitted = jax.jit(lambda *given: case.jax(jax, *given))
        candidates["jax"] = lambda: jitted(*arrays).block_until_ready()
    candidates["copy"] = lambda: np.copyto(copied, inputs[0])
    times = interleaved(candidates, rounds)
    expected = np.asarray(candidates["torch" if torch is not None else "numpy"]()) if torch is not None else other
    copy = statistics.median(8 * copied.size / value / 1e9 for value in times.pop("copy"))
    row = rates(times, case.amount / 1e9, "gflops" if case.flops else "gbytes")
    row |= compared(times, "tileweave", [peer for peer in times if peer != "tileweave"])
    error = float(np.abs(own - expected).max() / np.abs(expected).max())
    return {"case": name, "sizes": list(sizes), **row, "copy_gbytes_1_thread": round(copy, 1), "error": error}


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    for name in options.cases:
        for sizes in CASES[name][1]:
            emit({**about(threads), "bench": "fused", **run(name, sizes, threads, options.rounds)})


if __name__ == "__main__":
    sys.exit(main())
