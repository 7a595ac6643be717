"""Random kernels with what NumPy computes for them: copies, maps, reductions, scans, products.

``random_kernel(seed)`` is a function of its seed; sizes divide nothing, tiles, scopes, memory, layouts and types vary.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from tileweave import kernel as tk

FLOATS = (np.float16, np.float32, ml_dtypes.bfloat16)
NARROW = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
TYPES = (*FLOATS, np.int32, np.uint8, np.int8)


@dataclass
class Trial:
    """A kernel, its arguments, what its last argument must hold, and how far it may be off."""

    name: str
    kernel: Any
    arrays: list[np.ndarray]
    expected: np.ndarray
    tolerance: float


def random_kernel(seed: int) -> Trial:
    """One of the five families, chosen by the seed."""
    random = Random(seed)
    make = random.choice((copies, copies, maps, reductions, scans, products, products))
    return make(random, np.random.default_rng(seed))


def random_wide_product(seed: int) -> Trial:
    """A product whose tiles the copy engine can fetch and whose sums may leave the registers."""
    return wide_products(Random(seed), np.random.default_rng(seed))


def values(numbers: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return numbers.integers(0, 100, shape).astype(dtype)
    return numbers.standard_normal(shape).astype(dtype)


def random_layout(random: Random, shape: tuple[int, ...], threads: int) -> str | None:
    """Registers of a tile over warps, lanes and slots in any order; None where threads would hold nothing."""
    factors: list[list[Any]] = [[], []]
    for d, extent in enumerate(shape):
        while extent > 1:
            prime = 2 if extent % 2 == 0 else 3
            factors[d].append([prime, "reg"])
            extent //= prime
    twos = [one for column in factors for one in column if one[0] == 2]
    if 2 ** len(twos) < threads:
        return None
    warps = (threads // 32).bit_length() - 1
    for k, one in enumerate(random.sample(twos, 5 + warps)):
        one[1] = "lane" if k < 5 else "warp"
    stride = {"lane": 1, "warp": 1, "reg": 1}
    order = [one for column in factors for one in column]
    for one in random.sample(order, len(order)):
        one.append(stride[one[1]])
        stride[one[1]] *= one[0]
    return "(" + ", ".join(f"{extent}:{at}@{axis}" for extent, axis, at in order) + ")"


def copies(random: Random, numbers: np.random.Generator) -> Trial:
    """Tile by tile through registers or shared memory of some layout, transposed or not, waited for or not."""
    rows, columns = random.randint(1, 90), random.randint(1, 90)
    bm, bn = random.choice((8, 16, 32, 48)), random.choice((16, 32, 64))
    dtype, to = random.choice(TYPES), None
    threads = random.choice((32, 64, 128))
    who = random.choice(("block", "block", "one warp", "warps", "warpgroup"))
    threads = 256 if who == "warpgroup" else threads
    through = random.choice(("registers", "laid out", "shared", "padded", "conflict_free", "columns", "async"))
    parts = threads // 32 if who == "warps" else 1
    within = {"one warp": 32, "warps": 32, "warpgroup": 128}.get(who, threads)
    held = random_layout(random, (bm, bn), within) if through == "laid out" else None
    turned = random.random() < 0.5
    if through in ("registers", "laid out", "shared") and random.random() < 0.4 and np.dtype(dtype) == np.float32:
        to = random.choice((np.float16, ml_dtypes.bfloat16))
    layout = {
        "padded": f"({parts}:{bm * (bn + 8)}@m, {bm}:{bn + 8}@m, {bn}:1@m)",
        "columns": f"({parts}:{bm * bn}@m, {bm}:1@m, {bn}:{bm}@m)",
        "conflict_free": "conflict_free",
    }.get(through)

    @tk.kernel
    def copy(k, x, y):
        i, j = k.grid(-(-x.blocks(0, bm) // parts), x.blocks(1, bn))

        def move(scope, i):
            target = y.tile(bn, bm)[j, i].T if turned else y.tile(bm, bn)[i, j]
            if through in ("registers", "laid out"):
                scope.store(target, scope.load(x.tile(bm, bn)[i, j], layout=held))
                return
            whole = k.shared((parts, bm, bn), like=x, layout=layout)
            s = whole[scope.index if parts > 1 else 0]
            if through == "async":
                scope.copy_async(s, x.tile(bm, bn)[i, j])
                scope.commit()
                scope.wait_group(0)
            else:
                scope.copy(s, x.tile(bm, bn)[i, j])
            scope.sync()
            scope.copy(target, s)

        with k.cta(threads=threads) as cta:
            if who == "warps":
                with cta.warp.each() as warp, k.when(i * parts + warp.index < x.blocks(0, bm)):
                    move(warp, i * parts + warp.index)
            elif who in ("one warp", "warpgroup"):
                with k.warp[threads // 32 - 1]() if who == "one warp" else k.warpgroup[1]() as part:
                    move(part, i)
            else:
                move(cta, i)

    x = values(numbers, (rows, columns), dtype)
    want = (x.T if turned else x).astype(to or dtype)
    name = f"copy {rows}x{columns} by {bm}x{bn} {np.dtype(dtype)} {through} {held or ''}"
    name += f"{' turned' * turned} {who} of {threads}"
    return Trial(name, copy, [x, np.zeros(want.shape, want.dtype)], want, 0.0)


def once_rounded(fn: Any) -> Any:
    """A function as it is defined: in f64, rounded once. NumPy's f32 is an ulp off, which a chain of exp amplifies."""
    return lambda v: fn(v.astype(np.float64)).astype(np.float32)


UNARY = {
    "neg": np.negative, "abs": np.abs, "square": np.square, "exp": once_rounded(np.exp), "tanh": once_rounded(np.tanh),
    "floor": np.floor,
}  # fmt: skip
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def maps(random: Random, numbers: np.random.Generator) -> Trial:
    """A short chain of elementwise functions of rows, a broadcast column and numbers."""
    rows, columns, threads = random.randint(1, 9), random.randint(1, 300), random.choice((32, 96, 256))
    dtype = random.choice(FLOATS)
    steps = []
    for _ in range(random.randint(1, 4)):
        if random.random() < 0.5:
            steps.append((random.choice(sorted(UNARY)), None))
        else:
            other = random.choice(("x", "b", 0.5, 3))
            steps.append((random.choice(sorted(BINARY)), other))
    chosen = random.random() < 0.5

    @tk.kernel
    def chain(k, x, b, y):
        row = k.grid(x.blocks(0, 1))
        with k.cta(threads=threads) as cta:
            given = {"x": cta.load(x[row]), "b": cta.load(b[row])}
            v = given["x"]
            for fn, other in steps:
                v = cta.map(fn, v) if other is None else cta.map(fn, v, given.get(other, other))
            if chosen:
                v = cta.where(v > given["b"], v, -v)
            cta.store(y[row], v)

    x, b = values(numbers, (rows, columns), dtype), values(numbers, (rows, 1), dtype)
    wide = {"x": x.astype(np.float32), "b": b.astype(np.float32)}
    v = wide["x"]
    with np.errstate(all="ignore"):
        for fn, other in steps:
            if other is None:
                v = UNARY[fn](v)
            else:
                v = BINARY[fn](v, wide[other] if isinstance(other, str) else np.float32(other))
        if chosen:
            v = np.where(v > wide["b"], v, -v)
        want = v.astype(dtype)
    tolerance = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3}.get(np.dtype(dtype), 2e-2)
    name = f"map {rows}x{columns} {np.dtype(dtype)} {steps}{' where' * chosen} {threads}"
    return Trial(name, chain, [x, b, np.zeros_like(x)], want, tolerance)


def reductions(random: Random, numbers: np.random.Generator) -> Trial:
    """Along either axis, by one tile after another."""
    rows, columns = random.randint(1, 60), random.randint(1, 100)
    bm, bn, axis = random.choice((4, 16)), random.choice((32, 64)), random.randint(0, 1)
    fn, dtype = random.choice(("add", "max", "min")), random.choice((np.float16, np.float32, np.int32))
    threads = random.choice((32, 64, 128))

    @tk.kernel
    def reduce(k, x, y):
        j = k.grid(x.blocks(1 - axis, (bm, bn)[1 - axis]))
        with k.cta(threads=threads) as cta:
            shape = (1, bn) if axis == 0 else (bm, 1)
            start = {"add": 0, "max": -(2**24), "min": 2**24}[fn]
            kind = {"i": "s32"}.get(np.dtype(dtype).kind, "f32")
            total = cta.full(shape, start, kind)
            for i in cta.range(x.blocks(axis, (bm, bn)[axis])):
                part = x.tile(bm, bn)[(i, j) if axis == 0 else (j, i)]
                total = cta.map(fn, total, cta.cast(cta.reduce(fn, cta.load(part), axis), kind))
            cta.store(y.tile(*shape)[(0, j) if axis == 0 else (j, 0)], total)

    x = values(numbers, (rows, columns), dtype)
    wide = x.astype(np.float64)
    want = {"add": np.sum, "max": np.max, "min": np.min}[fn](wide, axis=axis, keepdims=True)
    out = np.zeros(want.shape, np.int32 if np.dtype(dtype).kind == "i" else np.float32)
    name = f"reduce {fn} axis {axis} {rows}x{columns} by {bm}x{bn} {np.dtype(dtype)} {threads}"
    return Trial(name, reduce, [x, out], want.astype(out.dtype), 1e-4 if fn == "add" else 0.0)


def scans(random: Random, numbers: np.random.Generator) -> Trial:
    """Along a row."""
    rows, columns, threads = random.randint(1, 5), random.randint(1, 200), random.choice((32, 128))
    fn, dtype = random.choice(("add", "max")), random.choice((np.float32, np.int32))

    @tk.kernel
    def scan(k, x, y):
        row = k.grid(x.blocks(0, 1))
        with k.cta(threads=threads) as cta:
            cta.store(y[row], cta.scan(fn, cta.load(x[row])))

    x = values(numbers, (rows, columns), dtype)
    want = {"add": np.add, "max": np.maximum}[fn].accumulate(x.astype(np.float64), axis=1).astype(dtype)
    name = f"scan {fn} {rows}x{columns} {np.dtype(dtype)} {threads}"
    return Trial(name, scan, [x, np.zeros_like(x)], want, 1e-4 if fn == "add" else 0.0)


def products(random: Random, numbers: np.random.Generator) -> Trial:
    """A B^T by tiles, operands from global memory, shared memory or registers, with or without stages."""
    m, n, depth = (random.randint(1, 100) for _ in range(3))
    bm, bn, bk = random.choice((16, 32, 64)), random.choice((16, 32, 64)), random.choice((16, 32, 64))
    warps, dtype = random.choice((1, 2, 4)), random.choice((*FLOATS, np.float64, np.int8, *NARROW))
    where, stages = random.choice(("global", "shared", "turned")), random.choice((1, 2, 3))
    kind = "s32" if np.dtype(dtype).kind == "i" else "f64" if dtype is np.float64 else "f32"

    @tk.kernel
    def product(k, A, B, C):
        i, j = k.grid(-(-m // bm), -(-n // bn))
        with k.cta(warps=warps) as cta:
            acc = cta.zeros((bm, bn), kind)
            if where == "global":
                for p in cta.range(-(-depth // bk), stages=stages):
                    cta.gemm(acc, A.tile(bm, bk)[i, p], B.tile(bn, bk)[j, p])
            else:
                a, b = k.shared((bm, bk), like=A), k.shared((bk, bn) if where == "turned" else (bn, bk), like=B)
                for p in cta.range(-(-depth // bk)):
                    cta.copy(a, A.tile(bm, bk)[i, p])
                    cta.copy(b, B.tile(bk, bn)[p, j] if where == "turned" else B.tile(bn, bk)[j, p])
                    cta.sync()
                    cta.gemm(acc, a, b.T if where == "turned" else b)
                    cta.sync()
            cta.store(C.tile(bm, bn)[i, j], acc)

    A, B = values(numbers, (m, depth), dtype), values(numbers, (n, depth), dtype)
    if kind == "s32":
        A, B = A % 7 - 3, B % 7 - 3
    want = A.astype(np.float64) @ B.astype(np.float64).T
    out = np.zeros((m, n), {"s32": np.int32, "f64": np.float64}.get(kind, np.float32))
    name = f"product {m}x{n}x{depth} by {bm}x{bn}x{bk} {np.dtype(dtype)} {where} {stages} stages {warps} warps"
    given = np.ascontiguousarray(B.T) if where == "turned" else B
    return Trial(name, product, [A, given, out], want.astype(out.dtype), 0.0 if kind == "s32" else 1e-4)


def wide_products(random: Random, numbers: np.random.Generator) -> Trial:
    """A B^T of large tiles, operands as they lie or turned, one or two accumulators, a chain behind them."""
    dtype = random.choice((np.float16, np.float16, ml_dtypes.bfloat16, *NARROW, np.float32))
    step = 16 // np.dtype(dtype).itemsize
    m, n = random.randint(1, 140), random.randint(1, 90)
    depth = random.choice((random.randint(1, 100), *(step * random.randint(1, 12) for _ in range(5))))
    bm, bn, bk = random.choice((64, 128, 128, 96)), random.choice((16, 32, 64, 48)), step * random.choice((2, 4, 8))
    turned = [random.random() < 0.3 if np.dtype(dtype).itemsize == 2 else False for _ in range(2)]
    m, n = (-(-size // step) * step if turn else size for size, turn in zip((m, n), turned, strict=True))
    groups, stages, twice = random.choice((1, 1, 2, 3)), random.choice((1, 2, 3)), random.random() < 0.2
    chain = random.choice(("plain", "bias", "relu") if bn != 48 and bm != 96 else ("plain", "relu"))
    precision = "tf32" if dtype is np.float32 else None

    @tk.kernel
    def product(k, A, B, bias, C):
        i, j = k.grid(-(-m // bm), -(-n // bn))
        a, b = A.T if turned[0] else A, B.T if turned[1] else B
        with k.cta(warpgroups=groups) as cta:
            sums = [cta.zeros((bm, bn)) for _ in range(1 + twice)]
            for p in cta.range(-(-depth // bk), stages=stages):
                for acc in sums:
                    cta.gemm(acc, a.tile(bm, bk)[i, p], b.tile(bn, bk)[j, p], precision=precision)
            total = sums[0] + sums[1] if twice else sums[0]
            if chain == "bias":
                total = total + cta.load(bias.tile(1, bn)[0, j])
            elif chain == "relu":
                total = cta.maximum(total, 0)
            cta.store(C.tile(bm, bn)[i, j], total)

    shapes = [(m, depth), (n, depth)]
    A, B = (values(numbers, shape, dtype) for shape in shapes)
    given = [np.ascontiguousarray(x.T) if turn else x for x, turn in zip((A, B), turned, strict=True)]
    rounded = [x.astype(np.float64) for x in (A, B)]
    if precision:
        rounded = [(x.view(np.uint32) >> 13 << 13).view(np.float32).astype(np.float64) for x in (A, B)]
    want = rounded[0] @ rounded[1].T * (1 + twice)
    bias = values(numbers, (1, n), np.float32)
    want = want + bias if chain == "bias" else np.maximum(want, 0) if chain == "relu" else want
    name = f"wide product {m}x{n}x{depth} by {bm}x{bn}x{bk} {np.dtype(dtype)} turned {turned} {stages} stages"
    name += f" {groups} warpgroups {chain}{' twice' * twice}"
    return Trial(name, product, [*given, bias, np.zeros((m, n), np.float32)], want.astype(np.float32), 1e-4)
