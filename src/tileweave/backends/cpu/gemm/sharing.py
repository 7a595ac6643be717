"""How the chunks of a product are cut for threads.

Each thread has a range of consecutive chunks, those of the same rows being neighbours. So rows are shared first: then
no two threads write to one cache line but where their rows meet. Where columns are shared, each row has such a line,
which goes from one core to the other and back. On the other hand every chunk of rows packs its columns anew.

Source: own.
"""

from __future__ import annotations

from tileweave.backends.cpu.gemm.packing.turning import strip_columns, turns
from tileweave.backends.cpu.gemm.panels import Contracted, Panels

TASK_FLOPS = 250_000
"""Work of a task at least, where threads have one each: it fills tables of its own."""
_LINE, _PACK = 160.0, 3.0
"""Cycles in which a line comes from the core that wrote to it, and in which a vector is packed. 214 x 657 x 3 takes 42
us by two threads that share columns, whatever is summed up to 16, and 26 by two that share rows."""
_LEAST_ROWS = 4
"""Row panels of a chunk at least, where threads have one each."""


def share(parts: int, threads: int) -> float:
    """How much of the time threads work that share so many equal parts."""
    return parts / (-(-parts // threads) * threads)


def balanced(panels: int, most: int, threads: int) -> int:
    """Panels per chunk, at most so many, such that the chunks divide among the threads as evenly as can be."""
    rounds = max(1, -(-panels // (most * threads)))
    return max(1, -(-panels // (rounds * threads)))


def cut_for_threads(
    sides: tuple[Panels, Panels],
    contracted: Contracted,
    most: tuple[int, int],
    kc: int,
    batches: int,
    threads: int,
    in_place: tuple[bool, bool],
) -> tuple[int, int]:
    """Panels of rows, and of columns, of a chunk.

    Args:
        sides: the rows and the columns.
        contracted: what is summed.
        most: panels of a chunk of both at most.
        kc: products of a block.
        batches: points of the batch axes.
        threads: that share the work.
        in_place: whether both operands are read where they lie; else each chunk packs its part.
    """
    rows, columns = sides
    row_panels, column_panels = most
    work = 2 * batches * rows.total * columns.total * contracted.total
    wanted = max(threads, min(4 * threads, work // TASK_FLOPS))
    turned = not in_place[1] and turns(columns, contracted)
    least = _least_panels(columns, threads) if turned else 1
    packs = not in_place[1] and in_place[0]  # every chunk of rows packs the columns anew
    least = max(least, min(2, columns.panels)) if packs else least

    def tasks() -> int:
        return batches * -(-rows.panels // row_panels) * -(-columns.panels // column_panels)

    parts = -(-threads // batches)
    if _rows_first(sides, contracted, kc, parts, in_place):
        row_panels = balanced(rows.panels, row_panels, parts)
    # the longer side of a chunk is halved: chunks near squares read the fewest panels per tile
    while tasks() < wanted and (row_panels > _LEAST_ROWS or column_panels > least):
        longer = row_panels * rows.width >= column_panels * columns.width and not (turned or packs)
        if (longer or column_panels <= least) and row_panels > _LEAST_ROWS:
            if packs and tasks() >= 2 * threads:
                break
            row_panels = -(-row_panels // 2)
        elif column_panels > least:
            column_panels = max(least, -(-column_panels // 2))
        else:
            break
    if tasks() < threads and all(in_place):
        row_panels = balanced(rows.panels, row_panels, threads)
    return row_panels, column_panels


def _rows_first(
    sides: tuple[Panels, Panels], contracted: Contracted, kc: int, parts: int, in_place: tuple[bool, bool]
) -> bool:
    """Whether so many threads take less time where they share the rows than where they share the columns."""
    rows, columns = sides
    if parts < 2 or rows.panels < parts:
        return False
    lanes, total = columns.lanes, contracted.total
    cycles = rows.total * columns.total * total / (2 * lanes * parts)  # two multiply-adds in each
    again = _PACK * total / lanes * (1 - 1 / parts)
    packed = 0.0 if in_place[1] else again * columns.total
    met = _LINE * rows.total * -(-total // kc) + (0.0 if in_place[0] else again * rows.total)
    return cycles / share(rows.panels, parts) + packed <= cycles / share(columns.panels, parts) + met


def _least_panels(columns: Panels, threads: int) -> int:
    """Column panels of a chunk at least that `turning` packs: it transposes whole strips, of which a chunk uses parts
    at both ends, and every chunk of rows packs them anew."""
    strip = strip_columns(columns)
    some = min(4 * strip, max(strip, columns.panels * columns.width // threads))
    return -(-some // columns.width)
