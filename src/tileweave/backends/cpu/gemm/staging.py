"""A staging buffer: a piece of a large output that is summed in working memory first, and then written in whole lines.

Two outputs are hard to write from registers. Where the output's dense axis is short and the next one in memory is an
axis of the rows, no vector of a tile is a whole line (*runs*). Where the output's dense axis is not the vector
operand's, elements of a vector lie far apart (*transposed*). In both cases tiles store whole vectors into the buffer,
and when it is full its vectors are put together as the output has them: every line is written once, and never read.
`memory_map` says where the buffer lies in working memory, beside packed panels and tables.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from operator import index

from tileweave.backends.cpu.gemm.blocking import ProductBlocking
from tileweave.backends.cpu.gemm.panels import LANE_BYTES, SEGMENT_BYTES
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.memory import rounded
from tileweave.backends.cpu.target.target import Target


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    """A stage of `ProductBlocking.swept` columns.

    Args:
        row_panels: row panels that it holds.
        run: columns that are dense in the output.
        period: rows whose runs, one after the other, are whole lines.
    """

    row_panels: int
    run: int
    period: int

    def explain(self) -> str:
        """A few words for people."""
        return f"staged by {self.row_panels} row panels, then in whole lines"


def staging_of(c: ProductBlocking, target: Target) -> StagingBuffer | None:
    """The stage of a contraction whose large output is only stored, or None where none is needed."""
    columns, rows, width = c.columns, c.rows, c.columns.sums.width_bytes
    lanes = columns.lanes
    if (
        not c.a_resident
        or c.transposed_panels
        or c.k_blocks > 1
        or columns.pack_panels > 1
        or lanes * width != target.vector_bytes
    ):
        return None
    dense = bool(columns.dims) and columns.dims[0].strides[1] == width
    if not dense or not rows.dims or not c.may_stream(target):
        return None
    run = index(columns.dims[0].extent)
    period = lanes // gcd(run, lanes)
    if period == 1 or columns.width % run or columns.width % lanes:
        return None
    if rows.dims[0].strides[1] != run * width or rows.dims[0].extent % period:
        return None
    if c.row_chunks > 1 and c.row_panels * rows.width % period:
        return None
    steps = [dim.strides[1] for dim in (*rows.dims[1:], *columns.dims[1:])] + [dim.strides[2] for dim in c.outer]
    if any(step % target.vector_bytes for step in steps):
        return None
    least = lcm(rows.width, period) // rows.width
    room = target.l1_bytes // 4 // (columns.width * rows.width * width)
    return StagingBuffer(min(c.rows.panels, max(1, room // least) * least), run, period)


def transposed_non_temporal(c: ProductBlocking, target: Target) -> bool:
    """Whether transposed lines bypass the caches: the output is large, and its lines begin where lines begin."""
    steps = [dim.strides[1] for dim in (*c.rows.dims, c.columns.dims[0], *c.columns.dims[2:])]
    steps += [dim.strides[2] for dim in c.outer]
    return c.may_stream(target) and all(step % target.vector_bytes == 0 for step in steps)


def emit_transposed(
    module: Module, name: str, c: ProductBlocking, row_table_bytes: int, column_table_bytes: int, *, streaming: bool
) -> None:
    """Add ``name(stage, out, rows, columns)``, which writes all rows of `transposed_panels` column panels.

    The stage holds a tile per column panel and row panel, row panels faster. ``rows`` and ``columns`` are the tables of
    the row panels, and the segments of these column panels.
    """
    f = Function(module, name, [("ptr", "stage"), ("ptr", "out"), ("ptr", "rows"), ("ptr", "columns")])
    element, lanes, width = c.columns.sums, c.columns.lanes, c.columns.sums.width_bytes
    tile_bytes = c.rows.width * c.columns.width * width
    panel_bytes = c.rows.panels * tile_bytes
    step = c.columns.dims[0].strides[1]
    q = vectors.short_row(lanes, element.memory)

    def row(number: Value, _: list[str]) -> None:
        panel, local = f.div(number, c.rows.width), f.rem(number, c.rows.width)
        table = f.at("%rows", f.add(f.mul(panel, row_table_bytes), f.mul(local, LANE_BYTES)))
        line = f.at("%out", f.load("i64", f.at(table, 8), 8))
        source = f.at("%stage", f.add(f.mul(panel, tile_bytes), f.mul(local, c.columns.width * width)))
        f.loop(0, c.transposed_panels, lambda first, _: block(first, line, source), step=lanes)

    def block(first: Value, line: str, source: str) -> None:
        table = f.at("%columns", f.mul(first, column_table_bytes))
        start = f.at(source, f.mul(first, panel_bytes))
        for begin in range(0, c.columns.width, lanes):
            into = f.at(line, f.load("i64", f.at(table, 16 + begin // lanes * SEGMENT_BYTES), 8))
            for part in range(begin, begin + lanes, q):
                places = [f.at(start, lane * panel_bytes + part * width) for lane in range(lanes)]
                short = [vectors.load(f, element, q, place) for place in places]
                for t, value in enumerate(vectors.transpose(f, element.memory, lanes, short)):
                    place = f.at(into, (part - begin + t) * step)
                    vectors.store(f, element, lanes, value, place, streaming=streaming)

    f.loop(0, c.rows.total, row)
    f.ret()


def emit_runs(
    module: Module, name: str, c: ProductBlocking, stage: StagingBuffer, table_bytes: int, *, streaming: bool
) -> None:
    """Add ``name(stage, out, rows, columns, count)``, which writes ``count`` rows of a column panel.

    ``rows`` are tables of row panels, ``table_bytes`` apart; ``columns`` is the lane table of the column panel.
    """
    f = Function(
        module, name, [("ptr", "stage"), ("ptr", "out"), ("ptr", "rows"), ("ptr", "columns"), ("i64", "count")]
    )
    element, lanes, width = c.columns.sums, c.columns.lanes, c.columns.sums.width_bytes
    live = f.load("i64", f.at("%columns", c.columns.lane_table_bytes), 8)

    def run(index: Value, _: list[str]) -> None:
        first = f.mul(index, stage.run)
        line = f.at("%out", f.load("i64", f.at("%columns", f.add(f.mul(first, LANE_BYTES), 8)), 8))
        f.loop(0, "%count", lambda row, _: period(row, first, line), step=stage.period)

    def period(row: Value, first: Value, line: str) -> None:
        table = f.at("%rows", f.mul(f.div(row, c.rows.width), table_bytes))
        entry = f.at(table, f.mul(f.rem(row, c.rows.width), LANE_BYTES))
        into = f.at(line, f.load("i64", f.at(entry, 8), 8))
        source = f.at("%stage", f.mul(f.add(f.mul(row, c.columns.width), first), width))
        for start in range(0, stage.period * stage.run, lanes):
            place = f.at(into, start * width)
            vectors.store(f, element, lanes, gathered(source, start), place, streaming=streaming)

    def gathered(source: str, start: int) -> str:
        """The vector that begins at this element of the period."""
        value, lane = None, 0
        while lane < lanes:
            row, column = divmod(start + lane, stage.run)
            count = min(lanes - lane, stage.run - column)
            mask = None if count == lanes else vectors.mask_of(lane + count, lanes, lane)
            place = f.at(source, (row * c.columns.width + column - lane) * width)
            value = vectors.load(f, element, lanes, place, mask, value)
            lane += count
        assert value is not None
        return value

    f.loop(0, f.div(live, stage.run), run)
    f.ret()


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Where things lie in working memory, in bytes.

    Per thread: the K table, that of the next block where its rows are packed ahead, the tables of the row panels and of
    the column panels of a chunk, one packed row panel, the packed column panels, the stage. Shared, where rows are
    packed once: their tables and the packed panels, of two blocks of K where one is packed ahead.
    """

    row_table: int
    row_segments: int
    column_table: int
    column_segments: int
    row_panel: int
    column_panel: int
    at_following: int
    at_rows: int
    at_columns: int
    at_row_pack: int
    at_column_pack: int
    at_stage: int
    thread_bytes: int
    shared_pack: int
    shared_bytes: int


def column_lanes(c: ProductBlocking, stage: StagingBuffer | None) -> bool:
    """Whether anything asks where a single lane of a column panel lies."""
    met = stage is not None or not (c.columns.operand_dense or c.turned) or not c.columns.output_dense
    return met and not c.transposed_panels


def memory_map(c: ProductBlocking, stage: StagingBuffer | None) -> MemoryMap:
    """Where everything lies, one behind the other."""
    width = c.columns.sums.width_bytes
    row_segments = c.rows.lane_table_bytes + 8
    row_table = row_segments + (c.rows.segment_table_bytes if c.rows.operand_dense else 0)
    column_segments = c.columns.lane_table_bytes + 8 if column_lanes(c, stage) else 0
    dense = c.columns.operand_dense or c.columns.output_dense
    column_table = column_segments + (c.columns.segment_table_bytes if dense else 0)
    row_panel = rounded((c.kc + c.rows.lanes + 1) * c.rows.width * width)
    column_panel = rounded((c.kc + c.columns.lanes + 1) * c.columns.width * width)
    at_following = rounded(c.kc * 16 if c.contracted.tabled and not c.nested else 0)
    at_rows = at_following * (2 if c.ahead else 1)
    at_columns = at_rows + (0 if c.shared else rounded(row_table * c.row_panels))
    at_row_pack = at_columns + rounded(column_table * c.column_panels)
    at_column_pack = at_row_pack + (0 if c.a_in_place or c.shared else row_panel)
    packed_panels = c.columns.pack_panels if c.a_resident else c.column_panels
    at_stage = at_column_pack + rounded(0 if c.b_in_place else column_panel * packed_panels)
    staged_panels = c.transposed_panels * c.rows.panels or (stage.row_panels if stage else 0)
    staged_bytes = staged_panels * c.rows.width * c.columns.width * width
    end = at_stage + rounded(staged_bytes) + 64
    shared_pack = rounded(row_table * c.row_panels) if c.shared else 0
    shared_bytes = shared_pack + row_panel * c.row_panels * (2 if c.ahead else 1) + 64 if c.shared else 0
    return MemoryMap(
        row_table,
        row_segments,
        column_table,
        column_segments,
        row_panel,
        column_panel,
        at_following,
        at_rows,
        at_columns,
        at_row_pack,
        at_column_pack,
        at_stage,
        end,
        shared_pack,
        shared_bytes,
    )
