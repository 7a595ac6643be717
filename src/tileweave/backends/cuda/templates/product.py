"""FP16 products on tensor cores: tiles in shared memory, ldmatrix, mma.sync; fragments from the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import (
    FOLDER,
    LARGEST,
    CudaText,
    Size,
    Trial,
    cell,
    check_choice,
    count,
    held,
    size,
    tiles_of,
)  # fmt: skip
from tileweave.index import symbol
from tileweave.kernel.atoms import atom
from tileweave.layout import cute
from tileweave.layout.lego import PartialTiles, Template, template
from tileweave.layout.template.accessor import at

__all__ = ["matmul", "stored_tile", "trial"]

THREADS, CHUNK = 128, 8
"""Threads of a block, 2 x 2 warps; and elements of 16 bytes."""
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
SWIZZLE_BYTES = 128
"""Rows of a tile as long as all banks, beyond which a wider swizzle moves nothing more."""


def stored_tile(kind: str, rows: int, columns: int) -> tuple[Any, int]:
    """A tile's layout in shared memory, and its elements: rows with 16 bytes between, or 16-byte chunks XORed."""
    check_choice("shared", kind, ("row", "padded", "swizzled"))
    if kind != "swizzled":
        pitch = columns + (CHUNK if kind == "padded" else 0)
        return cute.parse(f"({rows},{columns}):({pitch},1)"), rows * pitch
    bits = min(columns * 2, SWIZZLE_BYTES).bit_length() - 5
    return cute.composition(cute.Swizzle(bits, 3, 3), cute.parse(f"({rows},{columns}):({columns},1)")), rows * columns


def matmul(
    M: Size | None = None, N: Size | None = None, K: Size | None = None, *,
    BM: int = 64, BN: int = 64, BK: int = 32, shared: str = "swizzled", aligned: int = 1,
) -> Mapping[str, Template]:  # fmt: skip
    """C = A B, A by rows and B by columns (each column of B lies in one piece), sums in FP32.

    `aligned` says that K is a multiple of 8 where it is an argument: tiles then come by 16-byte asynchronous copies,
    else element by element.
    """
    check_choice("BM", BM, (32, 64, 128))
    check_choice("BN", BN, (32, 64, 128))
    check_choice("BK", BK, (16, 32, 64))
    check_choice("aligned", aligned, (0, 1))
    whole = symbol("K", 1, LARGEST, multiple_of=CHUNK) if aligned else size("K", None)
    m, n, k = size("M", M), size("N", N), whole if K is None else size("K", K)
    bx, by, s = symbol("bx", 0, count(n, BN)), symbol("by", 0, count(m, BM)), symbol("s", 0, count(k, BK))
    t, warp, lane = symbol("t", 0, THREADS), symbol("warp", 0, THREADS // 32), symbol("lane", 0, 32)
    stored_a, elements_a = stored_tile(shared, BM, BK)
    stored_b, elements_b = stored_tile(shared, BN, BK)
    bindings: dict[str, Any] = {}
    for name, counter, rows, extent, block, layout in (
        ("a", "u", BM, m, by, stored_a), ("b", "v", BN, n, bx, stored_b),
    ):  # fmt: skip
        chunks = rows * BK // CHUNK // THREADS
        chunk = symbol(counter, 0, chunks) * THREADS + t
        row, column = chunk // (BK // CHUNK), chunk % (BK // CHUNK)
        tiles = PartialTiles((extent, k), (rows, BK // CHUNK), (1, CHUNK))
        bindings |= {name: tiles[block, s, row, column, 0, :], f"to_{name}": at(layout, row, column * CHUNK)}
        bindings[f"chunks_{name}"] = chunks
    mma, kk = atom(MMA), symbol("kk", 0, BK // 16)
    WM, WN = BM // 2, BN // 2
    # of each 8 x 8 matrix, ldmatrix wants the row that lane 4 * row holds in the register of that matrix
    row, depth = held(mma["a"], lane % 8 * 4, lane // 8 * 2)
    bindings["at_a"] = at(stored_a, warp // 2 * WM + symbol("i", 0, WM // 16) * 16 + row, kk * 16 + depth)
    row, depth = held(mma["b"], lane % 8 * 4, lane // 8 % 2 * 2)
    column = warp % 2 * WN + symbol("j", 0, WN // 16) * 16 + lane // 16 * 8 + row
    bindings["at_b"] = at(stored_b, column, kk * 16 + depth)
    down, across = held(mma["d"], lane, symbol("r", 0, 4))
    i = warp // 2 * WM + symbol("y", 0, WM // 16) * 16 + down
    j = warp % 2 * WN + symbol("x", 0, WN // 8) * 8 + across
    bindings |= {"ea": bindings["a"].ranges[0], "eb": bindings["b"].ranges[0]}
    made = template(
        FOLDER / "matmul_mma.cu.j2", c=cell(PartialTiles((m, n), (BM, BN)), by, bx, i, j), stored=str(stored_a),
        elements_a=elements_a, elements_b=elements_b, steps=count(k, BK), BK=BK, WM=WM, WN=WN, **bindings,
    )  # fmt: skip
    return {"matmul": made}


def trial(
    text: CudaText, M: int = 70, N: int = 101, K: int | None = None, *, BM: int = 64, BN: int = 64, aligned: int = 1,
    **_options: Any,
) -> Trial:  # fmt: skip
    """Random halves; the answer in double precision."""
    depth = K or (72 if aligned else 75)
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((M, depth)).astype(np.float16), rng.standard_normal((N, depth)).astype(np.float16)
    c = np.full((M, N), np.nan, np.float32)
    sizes = {"M": M, "N": N, "K": depth}
    values = {"C": c, "A": a.view(np.uint16), "B": b.view(np.uint16)} | {name: sizes[name] for name in text.arguments}
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    launch = Launch((tiles_of(N, BN), tiles_of(M, BM)), THREADS, values)
    return Trial(f"{M} x {N} x {depth}", [launch], c, wanted, tolerance=1e-3)
