"""`tileweave.run` of a ready plan at the user's call: plain NumPy arrays in, a new NumPy array out.

    python bench/run.py [--threads 1 2] [--rounds 7] [--seed 0] [--cases softmax ..] > bench/results/run.jsonl

Shapes come from a seeded generator, so that nobody tuned for them; without ``--seed`` it is another one in each run,
and every row says which. Arrays are bound by name in each call. Peers run as their users write them: NumPy, eager
torch on the same memory, JAX as one jitted function; torch and JAX where they are installed. With one thread, times
are seconds of the process, which other processes disturb less. ``error`` is the largest difference from NumPy in
float64, relative to the largest value.
"""

from __future__ import annotations

import argparse
import math
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from as_numpy import (
    causal,
    np_attention,
    np_back,
    np_batch,
    np_block,
    np_conv,
    np_filtered,
    np_groups,
    np_norm,
    np_softmax,
    np_windows,
)
from gemm import Candidates, about, emit, interleaved
from peers import compared, in_turn, optional
from shapes import (
    Array,
    Case,
    alone,
    back,
    block,
    heads,
    images,
    layers,
    maps,
    one,
    scores,
    sides,
    signals,
    solids,
    turned,
    two,
    volumes,
    with_column,
    with_rows,
)

import tileweave as tw
from tileweave import graph as tg


def picks(x: Any) -> Array:
    """Rows of a matrix: every third, from the last."""
    return np.arange(x.shape[0])[::-3].copy()


def own_block(x: Any, q: Any, k: Any, v: Any, o: Any, s: Any, t: Any, up: Any, down: Any) -> Any:
    """A transformer's layer with one head."""
    h = tg.layer_norm(x, s, t)
    x = x + tg.attention(h @ q, h @ k, h @ v) @ o
    return x + tg.gelu(tg.layer_norm(x, s, t) @ up) @ down


def torch_block(torch: Any, x: Any, q: Any, k: Any, v: Any, o: Any, s: Any, t: Any, up: Any, down: Any) -> Any:
    """The same in torch."""
    f = torch.nn.functional
    h = f.layer_norm(x, x.shape[-1:], s, t)
    x = x + f.scaled_dot_product_attention((h @ q)[None], (h @ k)[None], (h @ v)[None])[0] @ o
    return x + f.gelu(f.layer_norm(x, x.shape[-1:], s, t) @ up) @ down


CASES: dict[str, Case] = {
    "add": Case(two, lambda x, y: x + y, np.add, lambda t, x, y: x + y, lambda j, x, y: x + y),
    "chain": Case(
        two,
        lambda x, y: tw.tanh(x * 2 + y) * x,
        lambda x, y: np.tanh(x * 2 + y) * x,
        lambda t, x, y: t.tanh(x * 2 + y) * x,
        lambda j, x, y: j.numpy.tanh(x * 2 + y) * x,
    ),
    "gelu": Case(
        one,
        tg.gelu,
        lambda x: (x * (0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))).astype(x.dtype),
        lambda t, x: t.nn.functional.gelu(x),
        lambda j, x: j.nn.gelu(x, approximate=False),
    ),
    "softmax": Case(
        one, lambda x: tw.softmax(x, -1), np_softmax, lambda t, x: t.softmax(x, -1), lambda j, x: j.nn.softmax(x, -1)
    ),
    "log_softmax": Case(
        one,
        lambda x: tw.log_softmax(x, -1),
        lambda x: np.log(np_softmax(x)),
        lambda t, x: t.log_softmax(x, -1),
        lambda j, x: j.nn.log_softmax(x, -1),
    ),
    "layer_norm": Case(
        with_rows(2), tg.layer_norm, np_norm, lambda t, x, w, b: t.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    ),
    "rms_norm": Case(
        with_rows(1),
        tg.rms_norm,
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
        lambda t, x, w: t.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-5),
    ),
    "variance": Case(
        one,
        lambda x: tg.variance(x, -1),
        lambda x: x.var(-1),
        lambda t, x: x.var(-1, correction=0),
        lambda j, x: x.var(-1),
    ),
    "sum of rows": Case(
        one, lambda x: tw.sum(x, -1), lambda x: x.sum(-1), lambda t, x: x.sum(-1), lambda j, x: x.sum(-1)
    ),
    "max of columns": Case(
        one, lambda x: tw.max(x, 0), lambda x: x.max(0), lambda t, x: x.amax(0), lambda j, x: x.max(0)
    ),
    "attention": Case(
        heads,
        tg.attention,
        np_attention,
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v),
        lambda j, q, k, v: j.numpy.einsum(
            "bhqk,bhkd->bhqd",
            j.nn.softmax(j.numpy.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])),
            v,
        ),
    ),
    "conv": Case(images, tg.conv, np_conv, lambda t, x, w: t.nn.functional.conv2d(x, w)),
    "max_pool": Case(
        lambda rng: images(rng)[:1],
        lambda x: tg.max_pool(x, 3),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::3, ::3].max((4, 5)),
        lambda t, x: t.nn.functional.max_pool2d(x, 3),
    ),
    "mlp": Case(
        layers,
        lambda x, a, b, c, d, e, f: tw.relu(tw.relu(x @ a + b) @ c + d) @ e + f,
        lambda x, a, b, c, d, e, f: np.maximum(np.maximum(x @ a + b, 0) @ c + d, 0) @ e + f,
        lambda t, x, a, b, c, d, e, f: t.relu(t.relu(x @ a + b) @ c + d) @ e + f,
        lambda j, x, a, b, c, d, e, f: j.nn.relu(j.nn.relu(x @ a + b) @ c + d) @ e + f,
        0.1,
    ),
    "transformer": Case(block, own_block, np_block, torch_block, scale=0.1),
    "argmax of rows": Case(
        one, lambda x: tw.argmax(x, -1), lambda x: x.argmax(-1), lambda t, x: x.argmax(-1), lambda j, x: x.argmax(-1)
    ),
    "argmin of columns": Case(
        one, lambda x: tw.argmin(x, 0), lambda x: x.argmin(0), lambda t, x: x.argmin(0), lambda j, x: x.argmin(0)
    ),
    "cumsum of rows": Case(
        one, lambda x: tw.cumsum(x, -1), lambda x: x.cumsum(-1), lambda t, x: x.cumsum(-1), lambda j, x: x.cumsum(-1)
    ),
    "cumsum of columns": Case(
        one, lambda x: tw.cumsum(x, 0), lambda x: x.cumsum(0), lambda t, x: x.cumsum(0), lambda j, x: x.cumsum(0)
    ),
    "top_k": Case(
        one,
        lambda x: tw.top_k(x, 8)[0],
        lambda x: -np.sort(np.partition(-x, 7, -1)[:, :8], -1),
        lambda t, x: t.topk(x, 8)[0],
        lambda j, x: j.lax.top_k(x, 8)[0],
    ),
    "sort": Case(one, tw.sort, lambda x: np.sort(x, -1), lambda t, x: t.sort(x)[0], lambda j, x: j.numpy.sort(x)),
    "logsumexp": Case(
        one,
        lambda x: tw.logsumexp(x, -1),
        lambda x: np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1),
        lambda t, x: t.logsumexp(x, -1),
        lambda j, x: j.nn.logsumexp(x, -1),
    ),
    "where": Case(
        two,
        lambda x, y: tw.where(x > y, x, y * 2),
        lambda x, y: np.where(x > y, x, y * 2),
        lambda t, x, y: t.where(x > y, x, y * 2),
        lambda j, x, y: j.numpy.where(x > y, x, y * 2),
    ),
    "compare": Case(two, lambda x, y: x < y, np.less, lambda t, x, y: x < y, lambda j, x, y: x < y),
    "take": Case(
        one,
        lambda x: tw.take(x, picks(x), 0),
        lambda x: x[picks(x)],
        lambda t, x: x[t.from_numpy(picks(x))],
        lambda j, x: x[picks(x)],
    ),
    "transpose": Case(
        one,
        lambda x: tw.transpose(x) * 2,
        lambda x: np.ascontiguousarray(x.T) * 2,
        lambda t, x: x.T.contiguous() * 2,
        lambda j, x: x.T * 2,
    ),
    "masked softmax": Case(
        scores,
        lambda x: tw.softmax(tw.where(causal(np, x), -np.inf, x), -1),
        lambda x: np_softmax(np.where(causal(np, x), -np.inf, x)),
        lambda t, x: t.softmax(x.masked_fill(causal(t, x), -np.inf), -1),
        lambda j, x: j.nn.softmax(j.numpy.where(causal(j.numpy, x), -np.inf, x), -1),
    ),
    "group_norm": Case(
        maps,
        lambda x, w, b: tg.group_norm(x, 8, w, b),
        np_groups,
        lambda t, x, w, b: t.nn.functional.group_norm(x, 8, w, b),
    ),
    "batch_norm": Case(
        maps,
        tg.batch_norm,
        np_batch,
        lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True),
    ),
    "sin in float64": Case(one, tw.sin, np.sin, lambda t, x: t.sin(x), lambda j, x: j.numpy.sin(x), dtype="float64"),
    "exp in float64": Case(one, tw.exp, np.exp, lambda t, x: t.exp(x), lambda j, x: j.numpy.exp(x), dtype="float64"),
    "tanh in float64": Case(
        one, tw.tanh, np.tanh, lambda t, x: t.tanh(x), lambda j, x: j.numpy.tanh(x), dtype="float64"
    ),
    "softmax in float16": Case(
        one,
        lambda x: tw.softmax(x, -1),
        np_softmax,
        lambda t, x: t.softmax(x, -1),
        lambda j, x: j.nn.softmax(x, -1),
        dtype="float16",
    ),
    "add in int32": Case(two, lambda x, y: x + y, np.add, lambda t, x, y: x + y, lambda j, x, y: x + y, 9, "int32"),
    "multiply in float64": Case(
        two, lambda x, y: x * y, np.multiply, lambda t, x, y: x * y, lambda j, x, y: x * y, dtype="float64"
    ),
    "outer product": Case(sides, lambda x, y: x * y, np.multiply, lambda t, x, y: x * y, lambda j, x, y: x * y),
    "add a column": Case(with_column, lambda x, y: x + y, np.add, lambda t, x, y: x + y, lambda j, x, y: x + y),
    "add a transpose": Case(
        turned, lambda x, y: x + y.T, lambda x, y: x + y.T, lambda t, x, y: x + y.T, lambda j, x, y: x + y.T
    ),
    "every other column": Case(
        one, lambda x: x[:, ::2] + 1, lambda x: x[:, ::2] + 1, lambda t, x: x[:, ::2] + 1, lambda j, x: x[:, ::2] + 1
    ),
    "sum of a middle axis": Case(
        solids, lambda x: tw.sum(x, 1), lambda x: x.sum(1), lambda t, x: x.sum(1), lambda j, x: x.sum(1)
    ),
    "mean of two axes": Case(
        solids,
        lambda x: tw.mean(x, (0, 2)),
        lambda x: x.mean((0, 2)),
        lambda t, x: x.mean((0, 2)),
        lambda j, x: x.mean((0, 2)),
    ),
    "sum of all": Case(one, tw.sum, lambda x: x.sum(), lambda t, x: x.sum(), lambda j, x: x.sum()),
    "max in int32": Case(
        one, lambda x: tw.max(x, -1), lambda x: x.max(-1), lambda t, x: x.amax(-1), lambda j, x: x.max(-1), 99, "int32"
    ),
    "pad": Case(
        one,
        lambda x: tw.pad(x, ((1, 2), (3, 1))),
        lambda x: np.pad(x, ((1, 2), (3, 1))),
        lambda t, x: t.nn.functional.pad(x, (3, 1, 1, 2)),
        lambda j, x: j.numpy.pad(x, ((1, 2), (3, 1))),
    ),
    "concatenate": Case(
        two,
        lambda x, y: tw.concat([x, y], 1),
        lambda x, y: np.concatenate([x, y], 1),
        lambda t, x, y: t.cat([x, y], 1),
        lambda j, x, y: j.numpy.concatenate([x, y], 1),
    ),
    "flip": Case(
        one,
        lambda x: x[:, ::-1],
        lambda x: x[:, ::-1].copy(),
        lambda t, x: x.flip(1),
        lambda j, x: j.numpy.flip(x, 1),
    ),
    "conv in 1-D": Case(signals, tg.conv, np_filtered, lambda t, x, w: t.nn.functional.conv1d(x, w)),
    "conv in 3-D": Case(volumes, tg.conv, np_filtered, lambda t, x, w: t.nn.functional.conv3d(x, w)),
    "strided conv": Case(
        images,
        lambda x, w: tg.conv(x, w, stride=2, padding=1),
        lambda x, w: np_filtered(x, w, 2, 1),
        lambda t, x, w: t.nn.functional.conv2d(x, w, stride=2, padding=1),
    ),
    "dilated conv": Case(
        images,
        lambda x, w: tg.conv(x, w, dilation=2, padding=2),
        lambda x, w: np_filtered(x, w, 1, 2, 2),
        lambda t, x, w: t.nn.functional.conv2d(x, w, dilation=2, padding=2),
    ),
    "depthwise conv": Case(
        alone,
        lambda x, w: tg.conv(x, w, padding=1, groups=x.shape[1]),
        lambda x, w: np_filtered(x, w, 1, 1, 1, x.shape[1]),
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1, groups=x.shape[1]),
    ),
    "conv_transpose": Case(
        back,
        lambda x, w: tg.conv_transpose(x, w, stride=2),
        np_back,
        lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, stride=2),
    ),
    "padded max_pool": Case(
        lambda rng: images(rng)[:1],
        lambda x: tg.max_pool(x, 3, stride=2, padding=1),
        lambda x: np_windows(x, 1, 2),
        lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1),
    ),
    "average_pool": Case(
        lambda rng: images(rng)[:1],
        lambda x: tg.average_pool(x, 2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))[:, :, ::2, ::2].mean((4, 5)),
        lambda t, x: t.nn.functional.avg_pool2d(x, 2),
    ),
    "resize": Case(
        lambda rng: images(rng)[:1],
        lambda x: tg.resize(x, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])),
        lambda x: x.repeat(2, 2).repeat(2, 3),
        lambda t, x: t.nn.functional.interpolate(x, scale_factor=2),
    ),
    "causal attention": Case(
        heads,
        lambda q, k, v: tg.attention(q, k, v, causal=True),
        lambda q, k, v: (
            np_softmax(
                np.where(causal(np, q @ k.swapaxes(-1, -2)), -np.inf, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
            )
            @ v
        ),
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "add in int8": Case(two, lambda x, y: x + y, np.add, lambda t, x, y: x + y, lambda j, x, y: x + y, 30, "int8"),
    "choice in uint8": Case(
        two,
        lambda x, y: tw.where(x > 40, x, y),
        lambda x, y: np.where(x > 40, x, y),
        lambda t, x, y: t.where(x > 40, x, y),
        lambda j, x, y: j.numpy.where(x > 40, x, y),
        50,
        "uint8",
    ),
    "clip in int16": Case(
        one,
        lambda x: tw.clip(x, -500, 700),
        lambda x: np.clip(x, -500, 700),
        lambda t, x: t.clamp(x, -500, 700),
        lambda j, x: j.numpy.clip(x, -500, 700),
        600,
        "int16",
    ),
    "bits in int32": Case(
        two,
        lambda x, y: (x & y) ^ x,
        lambda x, y: (x & y) ^ x,
        lambda t, x, y: (x & y) ^ x,
        lambda j, x, y: (x & y) ^ x,
        1e6,
        "int32",
    ),
    "floor_divide in int32": Case(
        two,
        lambda x, y: x // (y | 1),
        lambda x, y: x // (y | 1),
        lambda t, x, y: t.div(x, y | 1, rounding_mode="floor"),
        lambda j, x, y: x // (y | 1),
        1e3,
        "int32",
    ),
    "uint8 to float32": Case(
        one,
        lambda x: tw.cast(x, "float32") / 255,
        lambda x: x.astype(np.float32) / 255,
        lambda t, x: x.to(t.float32) / 255,
        lambda j, x: x.astype(np.float32) / 255,
        50,
        "uint8",
    ),
    "float32 to int8": Case(
        one,
        lambda x: tw.cast(x, "int8"),
        lambda x: x.astype(np.int8),
        lambda t, x: x.to(t.int8),
        lambda j, x: x.astype(np.int8),
        20,
    ),
    "int32 to int64": Case(
        one,
        lambda x: tw.cast(x, "int64"),
        lambda x: x.astype(np.int64),
        lambda t, x: x.to(t.int64),
        None,
        1e6,
        "int32",
    ),
    "count in rows": Case(
        one,
        lambda x: tw.sum(x > 0, -1),
        lambda x: (x > 0).sum(-1),
        lambda t, x: (x > 0).sum(-1),
        lambda j, x: (x > 0).sum(-1),
    ),
    "any in columns": Case(
        one,
        lambda x: tw.any(x > 3, 0),
        lambda x: (x > 3).any(0),
        lambda t, x: (x > 3).any(0),
        lambda j, x: (x > 3).any(0),
    ),
    "sum of rows in uint8": Case(
        one,
        lambda x: tw.sum(x, -1, dtype="int64"),
        lambda x: x.sum(-1, dtype=np.int64),
        lambda t, x: x.sum(-1),
        None,
        50,
        "uint8",
    ),
    "every third row": Case(
        one, lambda x: x[::3] * 2, lambda x: x[::3] * 2, lambda t, x: x[::3] * 2, lambda j, x: x[::3] * 2
    ),
    "differences": Case(
        one,
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: x[:, 1:] - x[:, :-1],
        lambda t, x: x[:, 1:] - x[:, :-1],
        lambda j, x: x[:, 1:] - x[:, :-1],
    ),
    "added backwards": Case(
        one, lambda x: x + x[:, ::-1], lambda x: x + x[:, ::-1], lambda t, x: x + x.flip(1), lambda j, x: x + x[:, ::-1]
    ),
    "swapped axes": Case(
        solids,
        lambda x: tw.transpose(x, (1, 0, 2)),
        lambda x: x.transpose(1, 0, 2).copy(),
        lambda t, x: x.permute(1, 0, 2).contiguous(),
        lambda j, x: j.numpy.transpose(x, (1, 0, 2)),
    ),
    "softmax of columns": Case(
        one,
        lambda x: tw.softmax(x, 0),
        lambda x: np_softmax(x.T).T,
        lambda t, x: t.softmax(x, 0),
        lambda j, x: j.nn.softmax(x, 0),
    ),
}


def drawn(case: Case, rng: np.random.Generator) -> list[Array]:
    """The inputs of a case, from the generator; numbers of unsigned types are sizes of normally distributed ones."""

    def of(given: tuple[int, ...] | Array) -> Array:
        if isinstance(given, np.ndarray):
            return given
        numbers = rng.standard_normal(given, dtype=np.float32) * case.scale
        return (np.abs(numbers) if case.dtype.startswith("u") else numbers).astype(case.dtype)

    return [of(given) for given in case.shapes(rng)]


def row(cases: Mapping[str, Case], name: str, rng: np.random.Generator, threads: int, rounds: int) -> dict[str, object]:
    """One case on shapes of the generator."""
    case = cases[name]
    arrays = drawn(case, rng)
    holes = [tw.source(shape=x.shape, dtype=x.dtype, name=f"x{k}") for k, x in enumerate(arrays)]
    start = time.perf_counter()
    plan = tw.plan(case.own(*holes))
    bind = {f"x{k}": array for k, array in enumerate(arrays)}
    found = tw.run(plan, bind=bind, threads=threads)
    first = time.perf_counter() - start
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) if x.dtype.kind not in "iu" else x for x in arrays)
        wanted = np.asarray(case.numpy(*exact), float)
    candidates: Candidates = {
        "tileweave": lambda: tw.run(plan, bind=bind, threads=threads),
        "numpy": lambda: case.numpy(*arrays),
    }
    torch, jax = optional("torch"), optional("jax")
    eager, pure = case.torch, case.jax
    if torch is not None and eager is not None:
        tensors = [torch.from_numpy(array) for array in arrays]
        candidates["torch"] = lambda: eager(torch, *tensors)
    if jax is not None and pure is not None:
        jax.config.update("jax_enable_x64", case.dtype == "float64")
        given = [jax.numpy.asarray(array) for array in arrays]
        jitted = jax.jit(lambda *values: pure(jax, *values))
        candidates["jax"] = lambda: jitted(*given).block_until_ready()
    times = interleaved(candidates, rounds, clock=time.process_time if threads == 1 else time.perf_counter)
    kernels = [f"{step.name}: {step.kernel}" for step in plan.steps if step.stage != "store"]
    return {
        "case": name,
        "shapes": [x.shape for x in arrays],
        **{f"{who}_us": round(statistics.median(taken) * 1e6, 1) for who, taken in times.items()},
        **compared(times, "tileweave", [who for who in times if who != "tileweave"]),
        "first_ms": round(first * 1e3, 1),
        "kernels": kernels,
        "error": float(np.abs(np.asarray(found, np.float64) - wanted).max() / max(np.abs(wanted).max(), 1e-30)),
    }


Row = Callable[[str, np.random.Generator, int, int], dict[str, object]]


def main(bench: str, many: str, cases: Sequence[str], row: Row) -> None:
    """Write a row for each case and draw of its shapes, and the geometric mean of the ratios to the best peer.

    Args:
        bench: its name.
        many: what cases are called on the command line.
        cases: their names.
        row: of (a case, a generator, threads, rounds).
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--shapes", type=int, default=2, help=f"of each of the {many}")
    parser.add_argument(f"--{many}", dest="cases", nargs="+", default=cases, choices=cases)
    options = parser.parse_args()
    threads = in_turn(options.threads)
    if threads is None:
        return
    ratios = []
    for name in options.cases:
        for number in range(options.shapes):
            rng = np.random.default_rng([options.seed, cases.index(name), number])
            found = row(name, rng, threads, options.rounds)
            ratios.append(float(str(found["times_best_peer"])))
            emit({**about(threads), "bench": bench, "seed": options.seed, **found})
    mean = round(math.exp(statistics.fmean(map(math.log, ratios))), 3)
    every = {"rows": len(ratios), "times_best_peer": mean, "least": min(ratios)}
    emit({"bench": bench, "seed": options.seed, "threads": threads, **every})


if __name__ == "__main__":
    sys.exit(main("run", "cases", list(CASES), partial(row, CASES)))
