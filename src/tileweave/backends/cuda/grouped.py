"""The kernel for products of groups of rows whose sizes are data: each group's rows by a matrix of its own."""

from __future__ import annotations

from typing import Any

from tileweave.kernel import kernel

ROWS, COLUMNS, TERMS = 64, 64, 32
"""The tile of a block: groups of a mixture of experts have few rows each."""


@kernel
def ragged_dot(
    k: Any, x: Any, w: Any, starts: Any, out: Any, bm: int = ROWS, bn: int = COLUMNS, bk: int = TERMS
) -> None:
    """``out[r] = x[r] @ w[g]`` for the rows ``starts[g] .. starts[g + 1]`` of each group; others stay as they are."""
    groups, rows = w.shape[0], x.shape[0]
    g, t, n = k.grid(groups, x.blocks(0, bm), w.blocks(2, bn))
    with k.cta(threads=128) as cta:
        first, last = (cta.read(starts[g + s], below=rows + 1) for s in (0, 1))
        begin = first + t * bm
        with k.when(begin < last):
            here, there = (one[begin : begin + bm].limit(0, last - begin) for one in (x, out))
            acc = cta.zeros((bm, bn), dtype="f64" if x.dtype == "f64" else "f32")
            for i in cta.range(x.blocks(1, bk)):
                cta.gemm(acc, here.tile(bm, bk)[0, i], w[g].tile(bk, bn)[i, n].T)
            cta.store(there.tile(bm, bn)[0, n], acc)
