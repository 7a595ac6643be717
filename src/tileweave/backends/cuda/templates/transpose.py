"""Transposes: through registers, and through shared memory in rows, padded rows or swizzled rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import FOLDER, CudaText, Size, Trial, check_choice, count, size
from tileweave.backends.cuda.templates.entry import tiles_of as ceil
from tileweave.index import symbol
from tileweave.layout import cute
from tileweave.layout.lego import PartialTiles, Template, template, xor_swizzle
from tileweave.layout.template.accessor import at

TILE, ROWS = 32, 8
"""A block's tile, and the rows of threads that move it: each thread moves TILE // ROWS elements."""
BUFFERS = ("row", "padded", "swizzled")


def buffer(kind: str) -> tuple[Any, int]:
    """The layout of the tile in shared memory, and its elements."""
    check_choice("shared", kind, BUFFERS)
    if kind == "swizzled":
        return xor_swizzle(TILE, TILE), TILE * TILE
    pitch = TILE + (kind == "padded")
    return cute.parse(f"({TILE},{TILE}):({pitch},1)"), TILE * pitch


def _grid(M: Size | None, N: Size | None) -> tuple[Any, ...]:
    m, n = size("M", M), size("N", N)
    bx, by = symbol("bx", 0, count(n, TILE)), symbol("by", 0, count(m, TILE))
    thread = symbol("tx", 0, TILE), symbol("ty", 0, ROWS), symbol("k", 0, TILE // ROWS)
    return m, n, bx, by, *thread


def naive(M: Size | None = None, N: Size | None = None) -> Mapping[str, Template]:
    """y = x transposed, each element by one thread: reads are contiguous, writes are not."""
    m, n, bx, by, tx, ty, k = _grid(M, N)
    row, column = ty + ROWS * k, tx
    x = PartialTiles((m, n), (TILE, TILE)).cell(by, bx, row, column)
    y = PartialTiles((n, m), (TILE, TILE)).cell(bx, by, column, row)
    return {"transpose": template(FOLDER / "transpose_naive.cu.j2", x=x, y=y, steps=TILE // ROWS)}


def shared(M: Size | None = None, N: Size | None = None, *, shared: str = "swizzled") -> Mapping[str, Template]:
    """y = x transposed through a tile in shared memory, so that reads and writes of y and x are contiguous."""
    m, n, bx, by, tx, ty, k = _grid(M, N)
    layout, elements = buffer(shared)
    row, column, again = ty + ROWS * k, tx, ty + ROWS * symbol("m", 0, TILE // ROWS)
    return {
        "transpose": template(
            FOLDER / "transpose_shared.cu.j2",
            x=PartialTiles((m, n), (TILE, TILE)).cell(by, bx, row, column),
            y=PartialTiles((n, m), (TILE, TILE)).cell(bx, by, again, column),
            to=at(layout, row, column),
            elements=elements,
            layout=repr(layout) if shared == "swizzled" else str(layout),
            steps=TILE // ROWS,
            **{"from": at(layout, column, again)},
        )
    }


def naive_trial(text: CudaText, M: int = 70, N: int = 101, **_options: Any) -> Trial:
    """An M x N array of distinct numbers."""
    x = np.arange(M * N, dtype=np.float32).reshape(M, N)
    y = np.full((N, M), np.nan, np.float32)
    values = {"y": y, "x": x} | {name: {"M": M, "N": N}[name] for name in text.arguments}
    launch = Launch((ceil(N, TILE), ceil(M, TILE)), (TILE, ROWS), values)
    return Trial(f"{M} x {N}", [launch], y, np.ascontiguousarray(x.T))


shared_trial = naive_trial
