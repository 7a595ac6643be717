"""What kernels from templates cost, without a device: operations, passes, sectors, and the time of filling.

``python bench/codegen.py`` prints the tables of docs/codegen.md. Operations are those of all index expressions of a
kernel: as the layouts give them (what a printer without a simplifier emits), as printed, and written by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tileweave.backends import triton
from tileweave.backends.cuda import templates
from tileweave.backends.cuda.templates import transpose
from tileweave.index import Expr, cost, minimum, ops, simplify, symbol, symbols
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
    """The index expressions of well-known hand-written kernels, of the same symbols."""
    M, N, K, pid, k, i, j, q = symbols("M N K pid k i j q", 0, 1 << 15)
    per_group = (N + 63) // 64 * 8
    first = pid // per_group * 8
    tall = minimum((M + 63) // 64 - first, 8)
    row, column = (first + pid % per_group % tall) * 64 + i, pid % per_group // tall * 64 + j
    matmul = [
        row * K + k * 32 + q, (k * 32 + i) * N + column, row * N + column,
        row < M, k * 32 + q < K, k * 32 + i < K, column < N, row < M, column < N,
    ]  # fmt: skip
    bx, by, tx, ty = symbols("bx by tx ty", 0, 1 << 15)
    y, x = by * 32 + ty + 8 * k, bx * 32 + tx
    y2, x2 = bx * 32 + ty + 8 * k, by * 32 + tx
    naive = [y * N + x, x * M + y, y < M, x < N]
    shared = [y * N + x, (ty + 8 * k) * 33 + tx, y < M, x < N, y2 * M + x2, tx * 33 + ty + 8 * k, y2 < N, x2 < M]
    return {"triton matmul": matmul, "cuda transpose_naive": naive, "cuda transpose_shared": shared}


def rows() -> list[tuple[str, list[Expr], list[Expr], float]]:
    """Kernel, its expressions as given and as printed, and the seconds of filling."""
    out = []
    for name, entry in triton.KERNELS.items():
        parts = entry.template().fill("triton").parts
        out.append((f"triton {name}", parts, seconds(lambda e=entry: e.template().fill("triton"))))
    for name, kernel in templates.KERNELS.items():
        parts = tuple(part for filled in kernel.text().parts.values() for part in filled.parts)
        out.append((f"cuda {name}", parts, seconds(lambda e=kernel: e.text())))
    return [(name, [p.before for p in parts], [p.after for p in parts], taken) for name, parts, taken in out]


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
    print("| kernel | operations: as given | printed | by hand | cost: as given | printed | by hand | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name, before, after, taken in rows():
        mine = hand.get(name)
        shown = (ops(mine), cost(mine)) if mine else ("", "")
        print(
            f"| {name} | {ops(before)} | {ops(after)} | {shown[0]} | {cost(before)} | {cost(after)} | {shown[1]} "
            f"| {taken * 1e3:.0f} |"
        )
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
    main()
