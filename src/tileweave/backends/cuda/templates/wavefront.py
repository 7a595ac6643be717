"""Needleman-Wunsch by anti-diagonals of blocks, its buffer in shared memory in rows, padded rows or anti-diagonals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import FOLDER, CudaText, Size, Trial, check_choice, count, size, tiles_of
from tileweave.errors import LayoutError
from tileweave.index import Expr, maximum, symbol
from tileweave.layout import cute
from tileweave.layout.lego import Slice, Template, antidiagonal, template
from tileweave.layout.template.accessor import Accessor, accessor

BUFFERS = ("row", "padded", "antidiagonal")
LARGEST_TILE = 128


def _accessor(kind: str, side: int) -> Accessor:
    """The accessor of a square buffer: rows of `side` words, of one more, or its anti-diagonals one after the other."""
    check_choice("buffer", kind, BUFFERS)
    if kind == "antidiagonal":
        return accessor(antidiagonal(side), "Arr2D")
    pitch = side + (kind == "padded")
    return accessor(cute.parse(f"({side},{side}):({pitch},1)"), "Arr2D")


def needleman_wunsch(
    rows: Size | None = None, columns: Size | None = None, *, B: int = 32, buffer: str = "antidiagonal"
) -> Mapping[str, Template]:
    """Global alignment scores of two sequences, tile by tile: B x B pairs for each block of B threads."""
    check_choice("B", B, range(1, LARGEST_TILE + 1))
    r, c = size("rows", rows), size("columns", columns)
    down, across = count(r, B), count(c, B)
    diagonal = symbol("diagonal", 0, down + across - 1)
    first = maximum(0, diagonal - (across - 1))
    block, t, k, m = (symbol(name, 0, n) for name, n in (("block", down), ("t", B), ("k", B), ("m", B)))
    i, j = (first + block) * B, (diagonal - first - block) * B
    ours = _accessor(buffer, B + 1)
    made = template(
        FOLDER / "needleman_wunsch.cu.j2",
        given=[diagonal - first - block >= 0, diagonal - first - block < across, first + block < down],
        above=_inside((r + 1, c + 1), i, j + t + 1),
        left=_inside((r + 1, c + 1), i + t + 1, j),
        corner=_flat((r + 1, c + 1), i, j),
        pair=_inside((r, c), i + k, j + t),
        filled=_inside((r + 1, c + 1), i + m + 1, j + t + 1),
        accessor=ours.text,
        buffer=ours.declare("buff"),
        B=B,
    )
    return {"needleman_wunsch": made}


def _flat(dims: tuple[Any, Any], i: Any, j: Any) -> Expr:
    out = i * dims[1] + j
    if not isinstance(out, Expr):
        raise LayoutError("needleman_wunsch(..)", f"the place {out} is a number", legal="an expression")
    return out


def _inside(dims: tuple[Any, Any], i: Any, j: Any) -> Slice:
    """An element of a row-major array that exists where its row and column do."""
    return Slice(f"Row({dims[0]}, {dims[1]})[.., ..]", _flat(dims, i, j), (i < dims[0]) & (j < dims[1]), ())


def reference(similarity: np.ndarray[Any, Any], penalty: int) -> np.ndarray[Any, Any]:
    """The scores, by rows: each from its three neighbours."""
    rows, columns = similarity.shape
    out = np.zeros((rows + 1, columns + 1), np.int64)
    out[0], out[:, 0] = -penalty * np.arange(columns + 1), -penalty * np.arange(rows + 1)
    for i in range(rows):
        for j in range(columns):
            out[i + 1, j + 1] = max(out[i, j] + similarity[i, j], out[i + 1, j] - penalty, out[i, j + 1] - penalty)
    return out


def trial(text: CudaText, rows: int = 45, columns: int = 83, *, B: int = 32, **_options: Any) -> Trial:
    """Random similarities, a launch for each anti-diagonal of blocks."""
    pairs = np.random.default_rng(3).integers(-10, 11, (rows, columns)).astype(np.int32)
    wanted = reference(pairs, 3)
    score = np.full_like(wanted, 1 << 20, dtype=np.int32)
    score[0], score[:, 0] = wanted[0], wanted[:, 0]
    fixed = {"score": score, "similarity": pairs, "penalty": 3}
    fixed |= {name: {"rows": rows, "columns": columns}[name] for name in text.arguments}
    down, across = tiles_of(rows, B), tiles_of(columns, B)
    launches = []
    for d in range(down + across - 1):
        blocks = min(d, down - 1) - max(0, d - across + 1) + 1
        launches.append(Launch(blocks, B, fixed | {"diagonal": d}))
    return Trial(f"{rows} x {columns} pairs", launches, score, wanted)
