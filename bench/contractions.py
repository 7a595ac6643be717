"""Contractions of shapes that nobody tuned for, at the user's call: `tileweave.contract` on NumPy's own arrays.

    python bench/contractions.py [--threads 1 2] [--rounds 7] [--seed 0] [--shapes 2] [--kinds ..] > rows.jsonl

Each kind draws its extents from a seeded generator; without ``--seed`` it is another one in each run, and every row
says which. All candidates allocate their results, but for etops and ``out``, which is our call into a given array.
``times_best_peer`` is the least time of the best peer over our least time: minima bear the load of a shared machine,
and so do seconds of the process, which stand for time where there is one thread.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from gemm import interleaved
from peers import einsum_peers
from run import main
from shapes import odd

import tileweave as tw

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """Contractions of one form.

    Args:
        equation: the einsum.
        extents: the least and the largest extent per letter, in the order of the alphabet.
        most: products at most; extents are drawn again where there are more.
        views: what a user does to an operand before: ``T`` stores it with its axes reversed, ``[::2]`` cuts it out of a
            larger one, ``0`` repeats its first axis without memory.
        dtype: of the operands.
    """

    equation: str
    extents: dict[str, tuple[int, int]]
    most: int = 1 << 27
    views: tuple[str, ...] = ()
    dtype: str = "float32"


def kind(text: str, dtype: str = "float32", most: int = 1 << 27) -> Kind:
    """From ``equation i=2..8 ..``, and a word for each operand that is no dense array: see `Kind`."""
    equation, *words = text.split()
    ranges = {w[0]: w[2:].split("..") for w in words if w[1:2] == "="}
    extents = {letter: (int(low), int(high)) for letter, (low, high) in ranges.items()}
    return Kind(equation, extents, most, tuple(w for w in words if w[1:2] != "="), dtype)


KINDS = {
    "product": kind("ik,kj->ij i=16..1024 j=16..1024 k=16..1024"),
    "product transposed": kind("ik,kj->ij i=16..1024 j=16..1024 k=16..1024 T T"),
    "matrix-vector": kind("ij,j->i i=64..4096 j=64..4096"),
    "vector-matrix": kind("i,ij->j i=64..4096 j=64..4096"),
    "batch of vectors": kind("ij,kj->ik i=2..8 j=256..4096 k=256..4096"),
    "vector by transposed": kind("ik,kj->ij i=1..1 k=256..4096 j=256..4096 . T"),
    "outer": kind("i,j->ij i=64..2048 j=64..2048"),
    "tall": kind("ki,kj->ij k=20000..200000 i=4..48 j=4..48"),
    "skinny": kind("ik,kj->ij i=4000..60000 k=8..64 j=8..64"),
    "few k": kind("ik,kj->ij i=100..2000 j=100..2000 k=1..8"),
    "few m": kind("ik,kj->ij i=1..8 j=100..2000 k=100..2000"),
    "few n": kind("ik,kj->ij i=100..2000 j=1..8 k=100..2000"),
    "tiny batch": kind("bij,bjk->bik b=10000..100000 i=3..16 j=3..16 k=3..16", most=1 << 26),
    "batch": kind("bij,bjk->bik b=8..64 i=16..128 j=16..128 k=16..128"),
    "batch last": kind("ijb,jkb->ikb b=64..4096 i=2..12 j=2..12 k=2..12", most=1 << 26),
    "batch of matrix-vector": kind("bij,bj->bi b=16..512 i=16..256 j=16..256"),
    "heads": kind("bqhd,bkhd->bhqk b=1..4 q=16..256 k=16..256 h=2..12 d=32..96"),
    "weights by values": kind("bhqk,bkhd->bqhd b=1..4 q=16..256 k=16..256 h=2..12 d=32..96"),
    "tensor": kind("abk,kc->abc a=8..64 b=8..64 k=8..128 c=8..128"),
    "tensor turned": kind("akb,kc->cba a=8..64 b=8..64 k=8..128 c=8..128"),
    "two summed": kind("aebf,fdec->abcd a=4..24 b=4..24 c=4..24 d=4..24 e=4..24 f=4..24"),
    "cut out": kind("ik,kj->ij i=32..768 j=32..768 k=32..768 [::2] [::2]"),
    "repeated": kind("bij,bjk->bik b=4..32 i=16..128 j=16..128 k=16..128 . 0"),
    "weighted sum": kind("bij,bij->b b=64..2048 i=8..64 j=8..64"),
    "three factors": kind("ij,jk,kl->il i=16..400 j=16..400 k=16..400 l=16..400", most=1 << 40),
    "mttkrp": kind("ijk,jr,kr->ir i=16..200 j=16..200 k=16..200 r=4..32", most=1 << 32),
    "tucker": kind("ijk,ia,jb,kc->abc i=16..100 j=16..100 k=16..100 a=4..24 b=4..24 c=4..24", most=1 << 40),
    "bilinear": kind("bi,ijk,bj->bk b=8..128 i=8..64 j=8..64 k=8..64", most=1 << 32),
    "product f64": kind("ik,kj->ij i=16..768 j=16..768 k=16..768", "float64"),
    "matrix-vector f64": kind("ij,j->i i=64..3000 j=64..3000", "float64"),
    "product int32": kind("ik,kj->ij i=16..300 j=16..300 k=16..300", "int32"),
    "matrix-vector int32": kind("ij,j->i i=64..2000 j=64..2000", "int32"),
    "product bf16": kind("ik,kj->ij i=16..768 j=16..768 k=16..768", "bfloat16"),
    "product f16": kind("ik,kj->ij i=16..300 j=16..300 k=16..300", "float16"),
    "matrix-vector bf16": kind("ij,j->i i=64..3000 j=64..3000", "bfloat16"),
}  # fmt: skip


def drawn(kind: Kind, rng: np.random.Generator) -> dict[str, int]:
    """Extents of the letters, evenly spread over magnitudes."""
    while True:
        sizes = {letter: odd(rng, *ends) for letter, ends in kind.extents.items()}
        if math.prod(sizes.values()) <= kind.most:
            return sizes


def operand(shape: tuple[int, ...], view: str, dtype: str, rng: np.random.Generator) -> Array:
    """An array as a user has it."""
    kept = shape[::-1] if view == "T" else tuple(2 * n for n in shape) if view == "[::2]" else shape
    kept = kept[1:] if view == "0" else kept
    if dtype == "int32":
        made = rng.integers(-9, 9, kept, np.int32)
    else:
        made = rng.standard_normal(kept, np.float64 if dtype == "float64" else np.float32)
    if dtype == "bfloat16":
        import ml_dtypes

        made = made.astype(ml_dtypes.bfloat16)
    made = made.astype(np.float16) if dtype == "float16" else made
    if view == "T":
        return made.T
    if view == "[::2]":
        return made[tuple([slice(None, None, 2)] * (len(shape) - 1) + [slice(shape[-1])])]
    return np.broadcast_to(made, shape) if view == "0" else made


def row(name: str, rng: np.random.Generator, threads: int, rounds: int) -> dict[str, object]:
    """One contraction of a kind."""
    kind = KINDS[name]
    sizes = drawn(kind, rng)
    inputs, _ = kind.equation.split("->")
    views = kind.views + (".",) * inputs.count(",")
    terms = zip(inputs.split(","), [*views, "."], strict=False)
    arrays = [operand(tuple(sizes[c] for c in term), view, kind.dtype, rng) for term, view in terms]
    peers, notes = einsum_peers(kind.equation, arrays, threads)
    found = tw.contract(kind.equation, *arrays, threads=threads)
    out = np.zeros_like(found)
    candidates = {
        "tileweave": lambda: tw.contract(kind.equation, *arrays, threads=threads),
        "out": lambda: tw.contract(kind.equation, *arrays, out=out, threads=threads),
        **peers,
    }
    clock = time.process_time if threads == 1 else time.perf_counter
    times = {who: min(taken) for who, taken in interleaved(candidates, rounds, 0.004, clock).items()}
    best = min(peers, key=lambda who: times[who])
    wide = [np.asarray(array, np.float64) for array in arrays]
    wanted = np.einsum(kind.equation, *wide, optimize=True)
    return {
        "kind": name,
        "dtype": kind.dtype,
        "sizes": sizes,
        **{f"{who}_us": round(taken * 1e6, 1) for who, taken in times.items()},
        "best_peer": best,
        "times_best_peer": round(times[best] / times["tileweave"], 3),
        "out_times_best_peer": round(times[best] / times["out"], 3),
        "error": float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30)),
        **notes,
    }


if __name__ == "__main__":
    sys.exit(main("contractions", "kinds", list(KINDS), row))
