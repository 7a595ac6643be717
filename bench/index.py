"""Simplification of the index expressions of layouts: operations left and time taken, one JSON line each.

``bar_ops`` is the fewest operations that LEGO (sympy and Z3), TVM's analyzer, isl or egglog left of the same layout,
``bar_ms`` the time allowed; ``processor_ms`` leaves out what other programs took. The layouts are written with the
functions of the LEGO paper, so that the raw expressions are those of a direct translation.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tileweave.index import Expr, ExprLike, minimum, ops, select, simplify, symbol, symbols

ROUNDS = 15
BAR_MS = 3.0
Index = Sequence[ExprLike]


# -- LEGO in thirty lines -----------------------------------------------------------------------------------


def flat(index: Index, dims: Index) -> ExprLike:
    """The row-major flat position."""
    out: ExprLike = 0
    for place, extent in zip(index, dims, strict=True):
        out = out * extent + place
    return out


def unflat(position: ExprLike, dims: Index) -> list[ExprLike]:
    """The row-major coordinates, every one reduced by its extent."""
    out: list[ExprLike] = []
    for extent in reversed(dims):
        out.append(position % extent)
        position = position // extent
    return out[::-1]


@dataclass
class Perm:
    """A tile whose dims are laid out in the order `sigma` (RegP), or by a function of the index (GenP)."""

    dims: Index
    sigma: Sequence[int] = ()
    function: Callable[..., ExprLike] | None = None

    def apply(self, index: Index) -> ExprLike:
        if self.function is not None:
            return self.function(*index)
        return flat([index[k] for k in self.sigma], [self.dims[k] for k in self.sigma])

    def inv(self, position: ExprLike) -> list[ExprLike]:
        places = dict(zip(self.sigma, unflat(position, [self.dims[k] for k in self.sigma]), strict=True))
        return [places[k] for k in range(len(self.dims))]


def order_by(position: ExprLike, *perms: Perm) -> ExprLike:
    """OrderBy.apply: unflatten over all dims, apply each level, flatten the levels."""
    index = unflat(position, [extent for perm in perms for extent in perm.dims])
    parts, sizes = [], []
    for perm in perms:
        parts.append(perm.apply(index[: len(perm.dims)]))
        sizes.append(prod(perm.dims[1:], start=perm.dims[0]))
        index = index[len(perm.dims) :]
    return flat(parts, sizes)


def order_by_inv(position: ExprLike, *perms: Perm) -> ExprLike:
    """OrderBy.inv."""
    parts = unflat(position, [prod(perm.dims[1:], start=perm.dims[0]) for perm in perms])
    index = [place for perm, part in zip(perms, parts, strict=True) for place in perm.inv(part)]
    return flat(index, [extent for perm in perms for extent in perm.dims])


def row(*dims: ExprLike) -> Perm:
    return Perm(dims, range(len(dims)))


def col(*dims: ExprLike) -> Perm:
    return Perm(dims, range(len(dims))[::-1])


def tiled(levels: Sequence[Index]) -> Perm:
    """TileBy: the levels' indices, reordered so that each dimension's levels lie together."""
    rank = len(levels[0])
    dims = [extent for level in levels for extent in level]
    return Perm(dims, [level * rank + k for k in range(rank) for level in range(len(levels))])


def tile_by(levels: Sequence[Index], index: Index) -> ExprLike:
    """TileBy.apply: the flat position of the tiled view, through the reordering."""
    perm = tiled(levels)
    return order_by(flat(index, perm.dims), perm)


# -- the layouts --------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One layout: its raw expressions, the operations that the best other simplifier leaves of them, and, where they
    were measured, the operations and milliseconds of LEGO's public generator."""

    name: str
    exprs: Sequence[ExprLike]
    bar_ops: int
    lego: tuple[int, int] | None = None


def two_level_tile() -> list[Row]:
    rows_, cols_, BM, BK = symbols("rows cols BM BK", 1)
    index = [symbol("p", 0, rows_), symbol("k", 0, cols_), symbol("i", 0, BM), symbol("s", 0, BK)]
    position = tile_by([[rows_, cols_], [BM, BK]], index)
    M, K = symbol("M", 1, multiple_of=BM), symbol("K", 1, multiple_of=BK)
    whole = [symbol("p", 0, M // BM), symbol("k", 0, K // BK), symbol("i", 0, BM), symbol("s", 0, BK)]
    divided = tile_by([[M // BM, K // BK], [BM, BK]], whole)
    return [
        Row("2-level tile, row, symbolic", [order_by(position, row(rows_ * BM, cols_ * BK))], 6, (6, 390)),
        Row("2-level tile, col, symbolic", [order_by(position, col(rows_ * BM, cols_ * BK))], 6, (6, 204)),
        Row("2-level tile, row, M a multiple of BM", [order_by(divided, row(M, K))], 6),
        Row("2-level tile, col, M a multiple of BM", [order_by(divided, col(M, K))], 6),
    ]


def grouped_program_ids() -> list[Row]:
    def inverse(groups: ExprLike, size: ExprLike, columns: ExprLike, pid: Expr) -> list[Expr]:
        position = order_by_inv(pid, col(groups, 1), col(size, columns))
        outer_m, outer_n, inner_m, inner_n = unflat(position, [groups, 1, size, columns])
        return [outer_m * size + inner_m, outer_n * columns + inner_n]

    ng, G, nn, nm = symbols("ng G nn nm", 1)
    pid = symbol("pid", 0, nm * nn)
    first = pid // (G * nn) * G
    size = minimum(nm - first, G)  # Triton's own formula: the last group may be smaller
    return [
        Row("grouped pid inverse, symbolic", inverse(ng, G, nn, symbol("pid", 0, ng * G * nn)), 7, (12, 1010)),
        Row("grouped pid inverse, 64x32, G=8", inverse(8, 8, 32, symbol("pid", 0, 64 * 32)), 6, (6, 401)),
        Row("grouped pid, any count", [first + pid % (G * nn) % size, pid % (G * nn) // size], 14),
    ]


def bricks() -> list[Row]:
    index = [*symbols("bx by bz", 0, 48), *symbols("x y z", 0, 8)]
    position = flat(index, [48] * 3 + [8] * 3)
    X, Y, Z = symbols("x y z", 0, 384)
    stripes = Perm([48, 8] * 3, [0, 2, 4, 1, 3, 5])
    return [
        Row("bricks 384^3, 6 indices", [order_by(position, row(48, 48, 48), row(8, 8, 8))], 10, (10, 3853)),
        Row("bricks 384^3 from (x, y, z)", [order_by(flat([X, Y, Z], [384] * 3), stripes)], 16, (28, 1148)),
    ]


def antidiagonal(n: ExprLike) -> Callable[[ExprLike, ExprLike], Expr]:
    """The position of (i, j) in an n x n tile that is stored by its anti-diagonals."""

    def position(i: ExprLike, j: ExprLike) -> Expr:
        s = i + j + 1
        return select(s <= n, s * (s - 1) // 2 + i, n * n - n + i - (2 * n - s) * (2 * n - s - 1) // 2)

    return position


def figure_9() -> list[Row]:
    i, j = symbols("i j", 0, 6)
    position = order_by(flat([i, j], [6, 6]), Perm([2, 3, 2, 3], [0, 2, 1, 3]))
    block_i, block_j, inner_i, inner_j = unflat(position, [2, 2, 3, 3])
    whole = order_by(position, col(2, 2), Perm([3, 3], function=antidiagonal(3)))
    n = symbol("n", 1)
    return [
        Row("figure 9, block and in-tile coordinates", [block_j * 2 + block_i, inner_i, inner_j], 6),
        Row("figure 9, whole", [whole], 20, (37, 1447)),
        Row("antidiag n, symbolic", [antidiagonal(n)(symbol("i", 0, n), symbol("j", 0, n))], 27, (35, 386)),
    ]


def five_levels() -> list[Row]:
    levels = [[2, 3], [4, 2], [3, 5], [2, 2], [5, 3]]
    heights, widths = [level[0] for level in levels], [level[1] for level in levels]
    height, width = prod(heights), prod(widths)
    index = [symbol(f"t{k}{axis}", 0, levels[k][axis]) for k in range(5) for axis in (0, 1)]
    position = symbol("p", 0, height * width)
    y, x = symbol("y", 0, height), symbol("x", 0, width)
    interleaved = Perm(heights + widths, [k + 5 * axis for k in range(5) for axis in (0, 1)])
    return [
        Row("5-level 2D, 10 indices", [order_by(tile_by(levels, index), row(height, width))], 18, (18, 1730)),
        Row("5-level 2D inverse", tiled(levels).inv(position), 18, (18, 2994)),
        Row("5-level storage from (x, y)", [order_by(flat([y, x], [height, width]), interleaved)], 34, (39, 563)),
    ]


def others() -> list[Row]:
    p = symbol("p", 0, 32)
    scattered = order_by_inv(p, Perm([2] * 5, [1, 3, 0, 4, 2]))
    R, T = symbols("R T", 1)
    block = symbol("bi", 0, R) * R + symbol("bj", 0, R)
    position = order_by_inv(block * T * T + symbol("t", 0, T * T), row(R * T, R * T))
    sizes = [symbols(f"{name}0 {name}1 {name}2", 1) for name in "ABC"]
    index = [symbol(f"u{k}{axis}", 0, sizes[k][axis]) for k in range(3) for axis in range(3)]
    whole = [prod(level[axis] for level in sizes) for axis in range(3)]
    return [
        Row("figure 10 as 8x4, inverse", unflat(scattered, [8, 4]), 14, (14, 177)),
        Row("LUD inverse, symbolic", unflat(position, [R, R, T, T]), 2, (2, 847)),
        Row("3-level 3D, symbolic", [order_by(tile_by(sizes, index), row(*whole))], 16, (26, 8300)),
    ]


def rows() -> list[Row]:
    """Every layout of the table."""
    parts = (two_level_tile(), grouped_program_ids(), bricks(), figure_9(), five_levels(), others())
    return [row for part in parts for row in part]


def main() -> None:
    for case in rows():
        times, processor = [], []
        for _round in range(ROUNDS):
            start, busy = time.perf_counter(), time.process_time()
            result = simplify(case.exprs)
            times.append((time.perf_counter() - start) * 1e3)
            processor.append((time.process_time() - busy) * 1e3)
        line = {
            "bench": "index",
            "case": case.name,
            "raw_ops": ops(case.exprs),
            "ops": ops(result),
            "bar_ops": case.bar_ops,
            **({"lego_ops": case.lego[0], "lego_ms": case.lego[1]} if case.lego else {}),
            "median_ms": round(statistics.median(times), 3),
            "processor_ms": round(statistics.median(processor), 3),
            "spread_ms": round(max(times) - min(times), 3),
            "bar_ms": BAR_MS,
            "result": [str(expr) for expr in result],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
