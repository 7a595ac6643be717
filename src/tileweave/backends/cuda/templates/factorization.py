"""LU decomposition in place, tile by tile as Rodinia does it, each thread of the inner step with several elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import FOLDER, CudaText, Size, Trial, check_choice, count, size
from tileweave.backends.cuda.templates.entry import tiles_of as ceil
from tileweave.index import Expr, simplify, symbol
from tileweave.layout.lego import PartialTiles, Template, TileBy, template


def lud(N: Size | None = None, *, b: int = 16, R: int = 2, order: str = "cyclic") -> Mapping[str, Template]:
    """A = L U without pivots; tiles of b R, blocks of b x b threads that each have R x R elements of a tile."""
    check_choice("b", b, (2, 4, 8, 16, 32))
    check_choice("R", R, (1, 2, 3, 4))
    check_choice("order", order, ("cyclic", "blocked"))
    n, T = size("N", N), b * R
    steps = count(n, T)
    step = symbol("step", 0, steps)
    tiles = PartialTiles((n, n), (T, T))
    t, k, m, block = symbol("t", 0, T), symbol("k", 0, T), symbol("m", 0, T), symbol("block", 0, steps)
    tx, ty, bx, by = (symbol(name, 0, n) for name, n in (("tx", b), ("ty", b), ("bx", steps), ("by", steps)))
    down, across = step + 1 + by, step + 1 + bx
    rows = [_element(order, b, R, symbol(name, 0, R), ty) for name in ("p", "p2", "p3")]
    columns = [_element(order, b, R, symbol(name, 0, R), tx) for name in ("q", "q2", "q3")]
    rest = [step + 1 + block < steps]
    return {
        "lud_diagonal": template(
            FOLDER / "lud_diagonal.cu.j2", T=T,
            tile=tiles.cell(step, step, k, t), tile_out=tiles.cell(step, step, m, t),
        ),
        "lud_perimeter": template(
            FOLDER / "lud_perimeter.cu.j2", given=rest, T=T, tile=tiles.cell(step, step, k, t),
            row=tiles.cell(step, step + 1 + block, k, t), row_out=tiles.cell(step, step + 1 + block, m, t),
            column=tiles.cell(step + 1 + block, step, k, t), column_out=tiles.cell(step + 1 + block, step, m, t),
        ),
        "lud_internal": template(
            FOLDER / "lud_internal.cu.j2", given=[across < steps, down < steps], T=T, R=R, order=order,
            i=rows[0], j=columns[0], i2=rows[1], j2=columns[1],
            left=tiles.cell(down, step, rows[0], columns[0]), above=tiles.cell(step, across, rows[0], columns[0]),
            own=tiles.cell(down, across, rows[2], columns[2]),
        ),
    }  # fmt: skip


def _element(order: str, b: int, R: int, which: Expr, thread: Expr) -> Any:
    """The row (or column) of a thread's element: threads side by side, or a thread's elements side by side."""
    return simplify(TileBy((R,), (b,))[which, thread] if order == "cyclic" else TileBy((b,), (R,))[thread, which])


def trial(text: CudaText, N: int = 45, *, b: int = 16, R: int = 2, **_options: Any) -> Trial:
    """A matrix that needs no pivots; the host's three launches for each tile on the diagonal."""
    T = b * R
    rng = np.random.default_rng(5)
    a = rng.standard_normal((N, N)) + 2 * N * np.eye(N)
    matrix = a.astype(np.float32)
    wanted = matrix.astype(np.float64)
    for p in range(N):
        wanted[p + 1 :, p] /= wanted[p, p]
        wanted[p + 1 :, p + 1 :] -= np.outer(wanted[p + 1 :, p], wanted[p, p + 1 :])
    launches = []
    for step in range(ceil(N, T)):
        values = {"a": matrix, "step": step} | dict.fromkeys(text.arguments, N)
        launches.append(Launch(1, T, values, "lud_diagonal"))
        rest = ceil(N, T) - step - 1
        if rest:
            launches.append(Launch(rest, 2 * T, values, "lud_perimeter"))
            launches.append(Launch((rest, rest), (b, b), values, "lud_internal"))
    return Trial(f"{N} x {N}", launches, matrix, wanted, tolerance=1e-4 * N)
