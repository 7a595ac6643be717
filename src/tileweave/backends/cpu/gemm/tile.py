"""How large a register tile is: the least modelled time, with what is lost at edges and by idle threads."""

from __future__ import annotations

from functools import cache

from tileweave.backends.cpu.target.target import Target

_SECOND_CACHE = 0.1
"""Cycles that a vector costs more where threads share few rows, and every tile reads the vector operand anew."""

_HEIGHTS = 14, 12, 10, 8, 6, 4
"""Rows of tiles: few heights, so that products share code; 500 x 500 x 500 runs at 95 to 102 GFLOP/s with any of 8 to
14 rows. With more, their addresses no longer stay in registers: 1000 x 5 x 300 takes 84 us with 28 rows, 66 with 12."""


def choose_tile(
    target: Target, rows: int, columns: int, lanes: int, choices: tuple[int, ...], threads: int
) -> tuple[int, int]:
    """Rows and vectors of a register tile.

    Args:
        target: the processor.
        rows: of the output.
        columns: of the output.
        lanes: columns of one vector.
        choices: vectors per tile, the first of equals preferred.
        threads: that share few rows; 1 where there is enough for everybody.
    """
    best, least = (min(rows, 4), min(choices)), float("inf")
    needed = -(-columns // lanes)
    for vectors in [v for v in choices if v <= needed] or [min(choices)]:
        panels, last = divmod(columns, vectors * lanes)
        last_vectors = -(-last // lanes)
        last_vectors = vectors if vectors == 4 and last_vectors == 3 else last_vectors  # there is a tile of two, or all
        for height, one, edge in _times(target.registers, vectors, last_vectors, lanes, min(rows, _HEIGHTS[0] + 1)):
            tiles = -(-rows // height)  # the last one computes all of its rows, and stores those that there are
            time = tiles * (panels * one + edge)
            if threads > 1:
                time += _SECOND_CACHE * tiles * (panels * vectors + last_vectors)
                time *= min(_idle(tiles, threads), _idle(panels + (last > 0), threads))
            if time < least * 0.999:
                best, least = (height, vectors), time
    return best


@cache
def _times(registers: int, vectors: int, last: int, lanes: int, rows: int) -> tuple[tuple[int, float, float], ...]:
    """The heights of tiles that there are registers for, with the time of a whole tile, and of one at the edge."""
    most = min((registers - vectors - 1) // vectors, 8 if lanes == 1 else {1: 12, 3: 8}.get(vectors, _HEIGHTS[0]))
    heights = (rows,) if rows <= most else [height for height in _HEIGHTS if height <= most]
    return tuple((height, _tile_time(height, vectors), _tile_time(height, last)) for height in heights)


def _idle(panels: int, threads: int) -> float:
    """How much longer the busiest thread works than it would if panels could be shared evenly."""
    return -(-panels // threads) * threads / panels


def _tile_time(rows: int, vectors: int) -> float:
    """Cycles per product on a core with two multiply-adds and two loads per cycle, of latency 4.

    Loads cost a little even where they are not the bound.
    """
    loads = rows + vectors
    return max(rows * vectors / 2, loads / 2, 4.0) + 0.02 * loads if vectors else 0.0
