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
    check_choice,
    count,
    held,
    size,
    tiles_of,
)  # fmt: skip
from tileweave.errors import LayoutError
from tileweave.index import symbol
from tileweave.kernel.atoms import atom
from tileweave.kernel.threads import STATIC_SHARED
from tileweave.layout import cute
from tileweave.layout.lego import PartialTiles, Template, template
from tileweave.layout.template.accessor import at

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
    BM: int = 64, BN: int = 64, BK: int = 32, b: str = "col", shared: str = "swizzled", aligned: int = 1,
    stages: int = 1,
) -> Mapping[str, Template]:  # fmt: skip
    """C = A B, A by rows, B by columns (each column lies in one piece) or by rows, sums in FP32.

    `aligned` says that the extent of contiguous lines (K, and N for B by rows) is a multiple of 8 where it is an
    argument: tiles then come by 16-byte asynchronous copies, else element by element.
    `stages` tiles of A and of B are in shared memory: while one is used, the next ones are on their way.
    """
    check_choice("BM", BM, (32, 64, 128))
    check_choice("BN", BN, (32, 64, 128))
    check_choice("BK", BK, (16, 32, 64))
    check_choice("aligned", aligned, (0, 1))
    check_choice("b", b, ("col", "row"))
    for name, lines in (("BM", BM), ("BN", BN)):
        if lines * BK < CHUNK * THREADS:
            problem = f"a tile of {lines} x {BK} is less than {THREADS} threads copy at once"
            raise LayoutError("kernel(name, ..)", problem, legal=f"{name} * BK >= {CHUNK * THREADS}")
    check_choice("stages", stages, range(1, 9))
    m, k = size("M", M), _line("K", K, aligned)
    n = _line("N", N, aligned) if b == "row" else size("N", N)
    bx, by, s = symbol("bx", 0, count(n, BN)), symbol("by", 0, count(m, BM)), symbol("s", 0, count(k, BK))
    t, warp, lane = symbol("t", 0, THREADS), symbol("warp", 0, THREADS // 32), symbol("lane", 0, 32)
    stored_a, elements_a = stored_tile(shared, BM, BK)
    # lines of B's tile: columns of B, or its rows
    lines_b, shape_b, index_b = ((BN, BK), (n, k), (bx, s)) if b == "col" else ((BK, BN), (k, n), (s, bx))
    stored_b, elements_b = stored_tile(shared, *lines_b)
    if 2 * stages * (elements_a + elements_b) > STATIC_SHARED:
        problem = f"{stages} stages of {2 * (elements_a + elements_b)} bytes are more than a block has"
        raise LayoutError("kernel(name, ..)", problem, legal=f"stages * bytes <= {STATIC_SHARED}, or smaller tiles")
    bindings: dict[str, Any] = {"b_order": b, "stages": stages}
    for name, counter, (lines, along), shape, blocks, layout in (
        ("a", "u", (BM, BK), (m, k), (by, s), stored_a), ("b", "v", lines_b, shape_b, index_b, stored_b),
    ):  # fmt: skip
        chunks = lines * along // CHUNK // THREADS
        chunk = symbol(counter, 0, chunks) * THREADS + t
        row, column = chunk // (along // CHUNK), chunk % (along // CHUNK)
        tiles = PartialTiles(shape, (lines, along // CHUNK), (1, CHUNK))
        bindings |= {name: tiles[(*blocks, row, column, 0, slice(None))], f"to_{name}": at(layout, row, column * CHUNK)}
        bindings[f"chunks_{name}"] = chunks
    mma, kk = atom(MMA), symbol("kk", 0, BK // 16)
    WM, WN = BM // 2, BN // 2
    # of each 8 x 8 matrix, ldmatrix wants the row that lane 4 * row holds in the register of that matrix
    row, depth = held(mma["a"], lane % 8 * 4, lane // 8 * 2)
    bindings["at_a"] = at(stored_a, warp // 2 * WM + symbol("i", 0, WM // 16) * 16 + row, kk * 16 + depth)
    # two matrices for each 8 columns of B; turned ones have a row for each step of the depth
    row, depth = held(mma["b"], lane % 8 * 4 if b == "col" else 0 * lane, lane // 8 % 2 * 2)
    column = warp % 2 * WN + symbol("j", 0, WN // 16) * 16 + lane // 16 * 8 + row
    deep = kk * 16 + depth
    bindings["at_b"] = at(stored_b, column, deep) if b == "col" else at(stored_b, deep + lane % 8, column)
    down, across = held(mma["d"], lane, symbol("r", 0, 4))
    i = warp // 2 * WM + symbol("y", 0, WM // 16) * 16 + down
    j = warp % 2 * WN + symbol("x", 0, WN // 8) * 8 + across
    bindings |= {"ea": bindings["a"].ranges[0], "eb": bindings["b"].ranges[0]}
    made = template(
        FOLDER / "matmul_mma.cu.j2", c=PartialTiles((m, n), (BM, BN)).cell(by, bx, i, j), stored=str(stored_a),
        elements_a=elements_a, elements_b=elements_b, steps=count(k, BK), BK=BK, WM=WM, WN=WN, **bindings,
    )  # fmt: skip
    return {"matmul": made}


def _line(name: str, value: Size | None, aligned: int) -> Any:
    """The extent of contiguous lines in memory; as an argument a multiple of 16 bytes where that is asked for."""
    return symbol(name, 1, LARGEST, multiple_of=CHUNK) if value is None and aligned else size(name, value)


def trial(
    text: CudaText, M: int = 70, N: int | None = None, K: int | None = None, *,
    BM: int = 64, BN: int = 64, b: str = "col", aligned: int = 1, **_options: Any,
) -> Trial:  # fmt: skip
    """Random halves; the answer in double precision."""
    columns, depth = N or (104 if aligned and b == "row" else 101), K or (72 if aligned else 75)
    rng = np.random.default_rng(4)
    left = rng.standard_normal((M, depth)).astype(np.float16)
    right = rng.standard_normal((depth, columns)).astype(np.float16)
    c = np.full((M, columns), np.nan, np.float32)
    stored = np.ascontiguousarray(right if b == "row" else right.T)
    sizes = {"M": M, "N": columns, "K": depth}
    values = {"C": c, "A": left.view(np.uint16), "B": stored.view(np.uint16)}
    launch = Launch(
        (tiles_of(columns, BN), tiles_of(M, BM)), THREADS, values | {name: sizes[name] for name in text.arguments}
    )
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    return Trial(f"{M} x {columns} x {depth}", [launch], c, wanted, tolerance=1e-3)
