"""What kernels from templates cost, without a device: operations, passes, sectors, and the time of filling.

``python bench/codegen.py`` prints the tables of docs/codegen.md. Operations are those of all index expressions of a
kernel: as the layouts give them (what a printer without a simplifier emits), as printed, and written by hand.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from index import rows as layouts
from tileweave.backends import triton
from tileweave.backends.cuda import templates
from tileweave.backends.cuda.templates import transpose
from tileweave.backends.mlir.kernels import KERNELS as MLIR_KERNELS
from tileweave.backends.mlir.kernels import kernel as mlir_kernel
from tileweave.index import (
    Expr,
    cost,
    evaluate,
    maximum,
    minimum,
    ops,
    simplify,
    symbol,
    symbols,
    symbols_of,
)
from tileweave.layout import cute, lego
from tileweave.layout.analysis.memory import bank_conflicts, coalescing
from tileweave.layout.template.accessor import at

REPEATS = 9


def seconds(make: Callable[[], object]) -> float:
    """The least processor time of several fillings."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        make()
        best = min(best, time.process_time() - start)
    return best


def by_hand() -> dict[str, list[Expr]]:
    """The index expressions that an engineer writes for the same kernels, of the same symbols."""
    M, N, K, pid, k, i, j, q = symbols("M N K pid k i j q", 0, 1 << 15)
    bx, by, tx, ty, t, step, block, d, m = symbols("bx by tx ty t step block d m", 0, 1 << 15)
    u, v, s, kk, x, y, z, r, lane, warp = symbols("u v s kk x y z r lane warp", 0, 1 << 10)
    per_group = (N + 63) // 64 * 8
    first = pid // per_group * 8
    tall = minimum((M + 63) // 64 - first, 8)
    row, column = (first + pid % per_group % tall) * 64 + i, pid % per_group // tall * 64 + j
    deep, at_k = k * 32 + q, k * 32 + i
    out = {"triton matmul": _product(row, column, deep, at_k, M, N, K)}
    for name in ("triton softmax", "triton layernorm", "triton layernorm_dx"):
        out[name] = [pid * N + i, i < N]
    line, across = k * 32 + i, pid * 64 + j
    out["triton layernorm_dwdb"] = [(M + 31) // 32, line * N + across, line < M, across < N, line, across]
    blocks = (N + 63) // 64
    row, column = pid // blocks * 64 + i, pid % blocks * 64 + j
    out["triton grouped_gemm"] = [
        (M + 63) // 64 * blocks, (K + 31) // 32, *_product(row, column, deep, at_k, M, N, K),
    ]  # fmt: skip
    band = maximum(0, d - (N - 1) // 32) + block
    over, wide = d - band, N + 1
    corner = band * 32 * wide + over * 32
    out["cuda needleman_wunsch"] = [
        corner, corner + t + 1, corner + (t + 1) * wide, (band * 32 + k) * N + over * 32 + t,
        corner + (m + 1) * wide + t + 1, over * 32 + t < N, band * 32 + t < M, band * 32 + k < M, band * 32 + m < M,
    ]  # fmt: skip
    near, far_y, far_x = step * 32, (step + 1 + by) * 32, (step + 1 + bx) * 32
    far = (step + 1 + block) * 32
    inner, outer = symbols("inner outer", 0, 1 << 15)
    iy, jx = inner * 16 + ty, outer * 16 + tx
    out["cuda lud"] = [
        (near + k) * N + near + t, near + k < N, near + t < N, (near + m) * N + near + t, near + m < N,
        (far + k) * N + near + t, far + k < N, (near + k) * N + far + t, far + t < N,
        (far + m) * N + near + t, far + m < N, (near + m) * N + far + t, iy, jx,
        (far_y + iy) * N + near + jx, far_y + iy < N, near + jx < N, (near + iy) * N + far_x + jx, near + iy < N,
        far_x + jx < N, (far_y + iy) * N + far_x + jx,
    ]  # fmt: skip
    out["cuda stencil"] = [
        ((c // 8 * M + b // 8) * N + a // 8) * 512 + (c % 8 * 8 + b % 8) * 8 + a % 8
        for c, b, a in ((z + d, y, x), (z, y + d, x), (z, y, x + d), (z, y, x))
    ]
    down, right = by * 32 + ty + 8 * k, bx * 32 + tx
    down2, right2 = bx * 32 + ty + 8 * k, by * 32 + tx
    out["cuda transpose_naive"] = [down * N + right, right * M + down, down < M, right < N]
    out["cuda transpose_shared"] = [
        down * N + right, (ty + 8 * k) * 32 + (tx ^ (ty + 8 * k)), down < M, right < N,
        down2 * M + right2, tx * 32 + (tx ^ (ty + 8 * k)), down2 < N, right2 < M,
    ]  # fmt: skip
    rows_a, rows_b, chunk = by * 64 + u * 32 + t // 4, bx * 64 + v * 32 + t // 4, s * 32 + t % 4 * 8
    held_a, held_b = warp // 2 * 32 + i * 16 + lane % 16, warp % 2 * 32 + j * 16 + lane // 16 * 8 + lane % 8
    c_row = by * 64 + warp // 2 * 32 + y * 16 + lane // 4 + r // 2 * 8
    c_column = bx * 64 + warp % 2 * 32 + x * 8 + lane % 4 * 2 + r % 2
    out["cuda matmul_mma"] = [
        (K + 31) // 32, rows_a * K + chunk, rows_a < M, chunk < K, rows_b * K + chunk, rows_b < N,
        (u * 32 + t // 4) * 32 + (t % 4 ^ t // 8 % 4) * 8, (v * 32 + t // 4) * 32 + (t % 4 ^ t // 8 % 4) * 8,
        held_a * 32 + (kk * 2 + lane // 16 ^ held_a // 2 % 4) * 8,
        held_b * 32 + (kk * 2 + lane // 8 % 2 ^ held_b // 2 % 4) * 8,
        c_row * N + c_column, c_row < M, c_column < N,
    ]  # fmt: skip
    return out


def _product(row: Expr, column: Expr, deep: Expr, at_k: Expr, M: Expr, N: Expr, K: Expr) -> list[Expr]:
    """The places of A, B and C in a tiled product, each with its mask."""
    return [
        row * K + deep, row < M, deep < K, at_k * N + column, at_k < K, column < N,
        row * N + column, row < M, column < N,
    ]  # fmt: skip


def forms() -> list[tuple[str, str, str, str]]:
    """Parts of kernels for which LEGO's layout or text is known: by hand, LEGO's, and ours."""
    K, N, k, row, column, i, q = symbols("K N k row column i q", 0, 1 << 15)
    pointers = [(row * 64 + i) * K + k * 32 + q, (k * 32 + i) * N + column * 64 + q]
    base, step, base_b, step_b = symbols("base step base_b step_b", 0, 1 << 15)
    sums = [base + k * step, base_b + k * step_b]
    text = mlir_kernel("transpose_shared").fill(M=4096, N=4096, threads=32).text
    counted = len(re.findall(r"= arith\.(?!constant|index_cast)", text)), len(re.findall("index_cast", text))
    tile = [cute.parse("(32,32):(33,1)"), cute.parse("(32,32):(32,1)"), transpose.buffer("swizzled")[0]]
    columns = [bank_conflicts(np.asarray(at(layout, LANES, LANES * 0))).passes[0] for layout in tile]
    rows_ = {b: [cute.parse(f"({b + 1},{b + 1}):({b + w},1)") for w in (1, 2)] for b in (16, 64)}
    nw = {b: [nw_passes(x, b) for x in (one, lego.antidiagonal(b + 1), two)] for b, (one, two) in rows_.items()}
    ids = np.arange(36)
    pid = symbol("pid", 0, 36)
    mine = {tuple(int(evaluate(e, {"pid": int(p)})) for e in lego.grouped(9, 4, 4).inv(pid)) for p in ids}
    across, apart = coalescing(LANES).sectors[0], coalescing(LANES * 384 * 384).sectors[0]
    wrong = [100 * float(np.mean([d / 8 for d in range(1, r + 1)])) for r in (1, 2)]
    return [
        ("operations of a step of the Triton product's loop", "2", f"{ops(pointers)}", f"{ops(sums)}"),
        ("distinct program ids, 9 x 4 blocks in groups of 4", "36 of 36", "32 of 36", f"{len(mine)} of 36"),
        ("a row of softmax and of layernorm, operations", "2", "2", str(ops(simplify([row * N + i])))),
        ("transpose_shared in MLIR, 4096 x 4096: operations, casts", "", "50 and 9", f"{counted[0]} and {counted[1]}"),
        ("transpose_shared, passes of a column", *map(str, columns)),
        ("transpose_naive, sectors that a warp writes, of 4", *[str(coalescing(LANES * 4096).sectors[0])] * 3),
        *(
            (f"Needleman-Wunsch, passes of an access, {b} x {b} pairs", *(f"{n:.1f}" for n in nw[b]))
            for b in (64, 16)
        ),
        ("stencil's baseline, sectors that a warp reads, of 4", str(across), str(apart), str(across)),
        ("stencil on bricks, wrong neighbours, r = 1 and 2", "0", f"{wrong[0]} %, {wrong[1]} %", "0"),
    ]  # fmt: skip


LANES = np.arange(32)
WARPS: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "needleman_wunsch": ({"t": LANES}, ("above", "left", "pair", "filled"), 4),
    "lud": ({"t": LANES, "tx": LANES % 16, "ty": LANES // 16}, ("tile", "column", "row", "left", "above", "own"), 4),
    "stencil": (
        {"x": 8 + LANES % 8, "y": 8 + LANES // 8, "z": np.full(32, 8), "d": np.ones(32, int)},
        ("along_z", "along_y", "along_x", "here"),
        4,
    ),
    "transpose_naive": ({"tx": LANES}, ("x", "y"), 4),
    "transpose_shared": ({"tx": LANES}, ("x", "y"), 4),
    "matmul_mma": ({"t": LANES, "lane": LANES}, ("a_first", "b_first", "c"), 2),
}
"""Kernel -> what the threads of a warp are, its accesses of global memory, bytes of an element."""


def at_lanes(expr: Expr, lanes: Mapping[str, Any]) -> Any:
    """The value for each lane; sizes are 4096, bricks 64 along each dimension, everything else is 0."""
    values: dict[str, Any] = {}
    for name in (s.args[0] for s in symbols_of(expr)):
        size = 64 if name.startswith("bricks") else 4096 if name.isupper() or name in ("rows", "columns") else 0
        values[name] = lanes.get(name, size)
    return np.broadcast_to(np.asarray(evaluate(expr, values)), 32)


def accesses(kernel: str) -> tuple[str, str]:
    """Elements of the widest access; sectors that each access of a warp touches, of those that its bytes fill."""
    lanes, names, size = WARPS[kernel]
    parts = {p.name: p.after for f in templates.kernel(kernel).text().parts.values() for p in f.parts}
    vectors = {name: 8 if name.endswith("_first") else 1 for name in names}
    found = []
    for name in names:
        if name in parts:
            width = 4 if name == "c" else size
            touched = coalescing(at_lanes(parts[name], lanes), element_bytes=width, vector=vectors[name])
            found.append(f"{touched.sectors[0]} of {32 * width * vectors[name] // 32}")
    return str(max(vectors.values())), ", ".join(dict.fromkeys(found))


def passes(kernel: str) -> str:
    """Passes of shared memory for each access of a warp, the worst, of those that are needed."""
    if kernel == "needleman_wunsch":
        return f"{nw_passes(lego.antidiagonal(65)):.1f} of 1"
    if kernel == "transpose_shared":
        layout, _words = transpose.buffer("swizzled")
        pairs = ((LANES * 0, LANES), (LANES, LANES * 0))
        return f"{max(bank_conflicts(np.asarray(at(layout, *p))).passes[0] for p in pairs)} of 1"
    if kernel == "matmul_mma":
        parts = {p.name: p.after for f in templates.kernel(kernel).text().parts.values() for p in f.parts}
        found = [
            bank_conflicts(at_lanes(parts[n], {"lane": LANES}), element_bytes=2, vector=8) for n in ("at_a", "at_b")
        ]
        return f"{max(one.passes[0] for one in found)} of {found[0].ideal[0]}"
    return ""


def rows() -> Iterator[tuple[str, list[Expr], list[Expr], float]]:
    """Kernel, its expressions as given and as printed, and the seconds of filling."""

    def row(name: str, parts: Iterable[Any], fill: Callable[[], object]) -> tuple[str, list[Expr], list[Expr], float]:
        listed = list(parts)
        return name, [p.before for p in listed], [p.after for p in listed], seconds(fill)

    for name, program in triton.KERNELS.items():
        filled = program.template().fill("triton")
        yield row(f"triton {name}", filled.parts, lambda e=program: e.template().fill("triton"))
    for name, kernel in templates.KERNELS.items():
        parts = (part for filled in kernel.text().parts.values() for part in filled.parts)
        yield row(f"cuda {name}", parts, lambda e=kernel: e.text())
    for name, entry in MLIR_KERNELS.items():
        yield row(f"mlir {name}", entry.fill().parts, lambda e=entry: e.fill())


def nw_passes(layout: object, b: int = 64) -> float:
    """Passes of shared memory for each access of a warp, over all steps of a tile of Needleman-Wunsch."""
    taken: list[int] = []
    for half in (0, 1):
        for d in range(b - half):
            for warp in range(0, b, 32):
                t = np.arange(warp, min(warp + 32, b - 1 - d if half else d + 1))
                if t.size:
                    x, y = (t + 2 + d, b - t) if half else (t + 1, d - t + 1)
                    for dy, dx in ((1, 1), (0, 1), (1, 0), (0, 0)):
                        taken += bank_conflicts(np.asarray(at(layout, y - dy, x - dx))).passes
    return float(np.mean(taken))


def main() -> None:
    """Print the tables."""
    hand = by_hand()
    print(
        "| kernel | operations: as given | printed | by hand | cost: as given | printed | by hand "
        "| vector | passes | sectors | ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, before, after, taken in rows():
        mine, kernel = hand.get(name), name.removeprefix("cuda ")
        vector, sectors = accesses(kernel) if kernel in WARPS else ("", "")
        print(
            f"| {name} | {ops(before)} | {ops(after)} | {ops(mine) if mine else ''} "
            f"| {cost(before)} | {cost(after)} | {cost(mine) if mine else ''} "
            f"| {vector} | {passes(kernel)} | {sectors} | {taken * 1e3:.0f} |",
            flush=True,
        )
    print("\n| layout | operations: as given | LEGO | printed | LEGO, ms | ms |")
    print("|---|---|---|---|---|---|")
    for case in layouts():
        if case.lego is not None:
            taken = seconds(lambda exprs=case.exprs: simplify(exprs))
            counts = f"{ops(case.exprs)} | {case.lego[0]} | {ops(simplify(case.exprs))}"
            print(f"| {case.name} | {counts} | {case.lego[1]} | {taken * 1e3:.1f} |", flush=True)
    print("\n| part of a kernel | by hand | LEGO | ours |\n|---|---|---|---|")
    for line in forms():
        print(f"| {' | '.join(line)} |")
    print("\n| buffer of Needleman-Wunsch, 64 x 64 pairs | words | passes for each access of a warp | operations |")
    print("|---|---|---|---|")
    i, j = symbol("i", 0, 65), symbol("j", 0, 65)
    padded, plain = cute.parse("(65,65):(66,1)"), cute.parse("(65,65):(65,1)")
    for name, layout, words in (
        ("rows", plain, 65 * 65), ("rows of one word more", padded, 64 * 66 + 65),
        ("anti-diagonals", lego.antidiagonal(65), 65 * 65),
    ):  # fmt: skip
        print(f"| {name} | {words} | {nw_passes(layout):.1f} | {ops(simplify(at(layout, i, j)))} |")
    print("\n| transpose, 32 x 32 tile | passes: rows | columns | sectors read | written, of 4 |")
    print("|---|---|---|---|---|")
    lanes, zero = np.arange(32), np.zeros(32, np.int64)
    wide = np.arange(32) * 4096
    for kind in ("none", *transpose.BUFFERS):
        reads, writes = coalescing(lanes).sectors[0], coalescing(wide if kind == "none" else lanes).sectors[0]
        found = [" ", " "]
        if kind != "none":
            layout, _words = transpose.buffer(kind)
            found = [str(bank_conflicts(np.asarray(at(layout, *p))).passes[0]) for p in ((zero, lanes), (lanes, zero))]
        print(f"| {kind} | {found[0]} | {found[1]} | {reads} | {writes} |")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
