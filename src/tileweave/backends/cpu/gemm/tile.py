"""How large a register tile is: the least modelled time, with what is lost at edges and by idle threads."""

from __future__ import annotations

from tileweave.backends.cpu.target.target import Target

__all__ = ["choose_tile"]

_SECOND_CACHE = 0.1
"""Cycles that a vector costs more where threads share few rows, and every tile reads the vector operand anew."""


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
    best, least = (1, 1), float("inf")
    for vectors in choices:
        most = (target.registers - vectors - 1) // vectors
        if lanes == 1:
            most = min(most, 8)
        panels, last = divmod(columns, vectors * lanes)
        for height in range(min(most, 28, rows), 0, -1):
            if vectors == 3 and target.registers == 32 and height > 8:
                continue
            full, rest = divmod(rows, height)
            last_vectors = -(-last // lanes)
            time = panels * _panel_time(full, height, rest, vectors)
            time += _panel_time(full, height, rest, last_vectors) if last else 0
            if threads > 1:
                tiles = full + (rest > 0)
                time += _SECOND_CACHE * tiles * (panels * vectors + last_vectors)
                time *= min(_idle(tiles, threads), _idle(panels + (last > 0), threads))
            if time < least * 0.999:
                best, least = (height, vectors), time
    return best


def _idle(panels: int, threads: int) -> float:
    """How much longer the busiest thread works than it would if panels could be shared evenly."""
    return -(-panels // threads) * threads / panels


def _panel_time(full: int, height: int, rest: int, vectors: int) -> float:
    """Cycles per product for all rows: so many full tiles, and one of the rest."""
    return full * _tile_time(height, vectors) + (_tile_time(rest, vectors) + 0.1 if rest else 0)


def _tile_time(rows: int, vectors: int) -> float:
    """Cycles per product on a core with two multiply-adds and two loads per cycle, of latency 4.

    Loads cost a little even where they are not the bound.
    """
    loads = rows + vectors
    return max(rows * vectors / 2, loads / 2, 4.0) + 0.02 * loads
