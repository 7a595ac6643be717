"""How products are cut: the register tile, whether tiles read operands where they lie, and the chunks of threads.

A tile is that of the least modelled time, with what is lost at edges and by idle threads. Packing costs a pass over
each operand, and threads wait for each other between packing and multiplying. Both are saved where the operands' own
memory serves the tiles as well: the row operand is dense along K, so that a tile reads a few rows at a time, and a
panel of the vector operand finds room in the second cache at the stride that it has.

Each thread has a range of consecutive chunks, those of the same rows being neighbours. So rows are shared first: then
no two threads write to one cache line but where their rows meet. Where columns are shared, each row has such a line,
which goes from one core to the other and back. On the other hand every chunk of rows packs its columns anew.

Figures were chosen by measurement. Source: own.
"""

from __future__ import annotations

from functools import cache

from tileweave.backends.cpu.gemm.packing.turning import strip_columns, turns
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode

_SECOND_CACHE = 0.1
"""Cycles that a vector costs more where threads share few rows, and every tile reads the vector operand anew."""

_STEP = 1.0
"""Cycles of a tile's step beside its products: loops and addresses, and sums that come and go between blocks. So large
tiles are better than small ones: 128 x 3072 x 768 runs at 97 GFLOP/s with 4 x 64, at 109 to 115 with 8 x 48."""

_HEIGHTS = 14, 12, 10, 8, 6, 4
"""Rows of tiles: few heights, so that products share code; 500 x 500 x 500 runs at 95 to 102 GFLOP/s with any of 8 to
14 rows. With more, their addresses no longer stay in registers: 1000 x 5 x 300 takes 84 us with 28 rows, 66 with 12."""

_ALONE, _ALONE_OF_FEW = 12, 10
"""Rows of tiles of one vector at most; of few registers, where two vectors by six rows are to be had: 7230 x 31 x 20
takes 219 us in 12 x 8, 203 in 6 x 16, and 7230 x 31 x 8 takes 100 in 12 x 8, 90 in 10 x 8."""


def choose_tile(
    registers: int, rows: int, columns: int, lanes: int, choices: tuple[int, ...], threads: int, *, held: bool = False
) -> tuple[int, int]:
    """Rows and vectors of a register tile.

    Args:
        registers: for vectors.
        rows: of the output.
        columns: of the output.
        lanes: columns of one vector.
        choices: vectors per tile, the first of equals preferred.
        threads: that share few rows; 1 where there is enough for everybody.
        held: whether the rows are read in place (`holds_rows`).
    """
    return _best(registers, rows, columns, lanes, choices, threads, held=held)[0]


def tile_cycles(registers: int, rows: int, columns: int, lanes: int, choices: tuple[int, ...]) -> float:
    """Cycles per product of all rows and columns in the tiles that `choose_tile` takes."""
    return _best(registers, rows, columns, lanes, choices, 1, held=False)[1]


def _best(
    registers: int, rows: int, columns: int, lanes: int, choices: tuple[int, ...], threads: int, *, held: bool
) -> tuple[tuple[int, int], float]:
    """The tile of the least time, and the time."""
    best, least = (min(rows, 4), min(choices)), float("inf")
    needed = -(-columns // lanes)
    for vectors in [v for v in choices if v <= needed] or [min(choices)]:
        panels, last = divmod(columns, vectors * lanes)
        last_vectors = -(-last // lanes)
        last_vectors = vectors if vectors == 4 and last_vectors == 3 else last_vectors  # there is a tile of two, or all
        for height, one, edge in _times(registers, vectors, last_vectors, lanes, min(rows, _HEIGHTS[0] + 1), held):
            # the last tile computes all of its rows, and stores those that there are
            time = -(-rows // height) * (panels * one + edge)
            if threads > 1:
                tiles = -(-rows // height)
                time += _SECOND_CACHE * tiles * (panels * vectors + last_vectors)
                time *= min(_idle(tiles, threads), _idle(panels + (last > 0), threads))
            if time < least:
                best, least = (height, vectors), time * 0.999  # of equals, but for rounding, the first
    return best, least


def cycles_in(height: int, vectors: int, last: float, panels: tuple[int, int], *, held: bool) -> float:
    """Cycles per product of so many row panels and whole column panels in tiles of one size; ``last``: vectors of those
    of a last, partial column panel; 0: there is none."""
    return panels[0] * (panels[1] * _tile_time(height, vectors, held) + _tile_time(height, last, held))


def vector_registers(target: Target, contracted: Contracted) -> int:
    """Registers for a tile and its factors; products of 8 bits, four at a time, need some beside: see `micro`."""
    return target.registers - 4 if contracted.together == _QUADS else target.registers


_QUADS = 4
"""Products of 8 bits that are multiplied and added together."""


_FAR_ROWS = 1.0
"""Cycles that a step takes more where more rows are read in place than addresses stay in registers: 336 x 192 x 330 in
FP64 runs at 57 GFLOP/s with 14 x 16, at 60 with 12 x 16, at 62 with 8 x 24, and packed at 53, 52 and 56."""


@cache
def _times(
    registers: int, vectors: int, last: int, lanes: int, rows: int, held: bool
) -> tuple[tuple[int, float, float], ...]:
    """The heights of tiles that there are registers for, with the time of a whole tile, and of one at the edge."""
    alone = _ALONE if registers > 16 else _ALONE_OF_FEW
    # sums take rows x vectors registers, the vectors of B their number, and what a row is multiplied by one more
    most = min((registers - vectors - 1) // vectors, 8 if lanes == 1 else {1: alone, 3: 8}.get(vectors, _HEIGHTS[0]))
    heights = (rows,) if rows <= most else [height for height in _HEIGHTS if height <= most]
    return tuple((height, _tile_time(height, vectors, held), _tile_time(height, last, held)) for height in heights)


def halves(target: Target, lanes: int, sums: Element, contracted: Contracted) -> bool:
    """Whether tiles may end with half of a vector: a processor may compute the widest ones in two parts."""
    return target.vector_bytes == 64 == lanes * sums.width_bytes and not contracted.paired


def _idle(panels: int, threads: int) -> float:
    """How much longer the busiest thread works than it would if panels could be shared evenly."""
    return -(-panels // threads) * threads / panels


def _tile_time(rows: int, vectors: float, held: bool) -> float:
    """Cycles per product on a core with two multiply-adds and two loads per cycle, of latency 4.

    Loads cost a little even where they are not the bound. Four instructions begin per cycle, which bounds tiles of one
    vector: each of their products takes a broadcast of its own.
    """
    loads = rows + vectors
    begun = (2 * rows + 4) / 4 if vectors <= 1 else 0.0
    far = _FAR_ROWS if held and rows > _ALONE else 0.0
    return max(rows * vectors / 2, loads / 2, begun, 4.0) + 0.02 * loads + _STEP + far if vectors else 0.0


# ---- operands in place ---------------------------------------------------------------------------------------------


_LEAST_PRODUCTS, _LEAST_EXTENT = 192, 97
"""Of paired elements, beside those whose row operand is packed."""
PLACES = 4096
"""Lines of the first cache that are so far apart compete for its ways."""
BLOCK_BYTES = 2048
"""Of one row or column in a block of K."""


def spreads(dims: tuple[Mode, ...], operand: int) -> bool:
    """Whether what an operand's only axis of a kind walks spreads over the sets of the first cache."""
    return not dims or (len(dims) == 1 and (dims[0].strides[operand] % PLACES != 0 or not dims[0].strides[operand]))


FEW_ROWS = 96
"""Rows that are better packed, or that find what they read in the second cache as it lies."""


def holds_rows(rows: tuple[Mode, ...], contracted: Contracted, operand: Element, *, same: bool) -> bool:
    """Whether rows that are dense along K are read in place however many columns meet them.

    878 x 136 x 162 in FP64 runs at 39 GFLOP/s with packed rows that stay, at 59 so, 2993 x 635 x 1406 in FP32 at 103
    and 128; few rows are better packed: 86 x 921 x 370 at 109 and 99. ``same``: whether all elements are of one type.
    """
    single = len(rows) == len(contracted.dims) == 1 and rows[0].extent > FEW_ROWS
    return same and single and contracted.dense(0, operand.width_bytes) and spreads(rows, 0)


def may_read_in_place(contracted: Contracted, operand: Element, sums: Element) -> bool:
    """Whether tiles can read the row operand in place: in the type of the sums, or as whole groups of products."""
    groups = contracted.dense(0, operand.width_bytes) and contracted.total % contracted.together == 0
    held = contracted.paired != "" and operand.width_bytes == contracted.held_bytes
    return (held and groups) or operand == sums


def paired_in_place(
    target: Target,
    free_dims: tuple[tuple[Mode, ...], tuple[Mode, ...]],
    contracted: Contracted,
    operand: Element,
    sums: Element,
) -> int:
    """Products of a block where the row operand of paired elements is read in place; else 0.

    The vector operand is packed, a panel at a time, which stays in the first cache.

    Args:
        target: the processor.
        free_dims: axes of the rows and of the columns, with strides (operand, output).
        contracted: the summed axes.
        operand: the type of the row operand.
        sums: the type of the output.
    """
    rows, columns = free_dims
    width, total = operand.width_bytes, contracted.total
    single = contracted.paired and len(rows) == len(columns) == len(contracted.dims) == 1
    if not single or total < _LEAST_PRODUCTS:
        return 0  # with several axes a side, addresses come from tables, which packing reads once and tiles always
    dense = contracted.dense(0, width) and columns[0].strides[1] == sums.width_bytes
    few = min(rows[0].extent, columns[0].extent) < _LEAST_EXTENT or rows[0].extent * total * width > target.l2_bytes
    if not dense or few or not may_read_in_place(contracted, operand, sums):
        return 0
    return target.l1_bytes * 2 // 3 // (4 * target.lanes(sums.width_bytes) * width)


# ---- chunks for threads ---------------------------------------------------------------------------------------------

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
