"""Panels of B pass by a packed block of A, which stays in the second cache; what is packed next is prepared meanwhile.

While a panel of B meets the block, the lines of the next one are prefetched, a few with every tile: between its
products (`prefetch_plan`), or before it where there are too few tiles. Where K is cut in blocks, so is this task's
share of the rows of the next block, which is packed too: panel by panel, each as soon as it was prefetched, since at
strides of large powers of two a cache holds few lines at once. No thread waits for memory, and a block of K is one
round of tasks.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tileweave.backends.cpu.gemm.packing.prefetch import NO_PREFETCH, prefetch_steps
from tileweave.backends.cpu.llvm.ir import Function, Value

if TYPE_CHECKING:
    from tileweave.backends.cpu.gemm.block import BlockWriter, Columns


@dataclass(frozen=True, slots=True)
class _Next:
    """What a task prepares for the next block of K.

    Args:
        block: the number; the last block has no next, and names itself.
        k: the K table, the first product, and how many products there are.
        rows: the row operand at the first product.
        columns: the vector operand there.
        first: the first row panel of this task's share.
        last: the one after its last; the same after the last block.
        tiles: how many tiles there are for each of its row panels.
    """

    block: Value
    k: tuple[str, Value, Value]
    rows: str
    columns: str
    first: Value
    last: Value
    tiles: Value


def emit_resident_a(chunk: BlockWriter, f: Function, columns: Columns, row_tables: str) -> None:
    """Write the tiles of one block, a few column panels at a time, which are packed first and then meet all rows."""
    c, at_once = chunk.cut, chunk.cut.columns.pack_panels
    following = _next(chunk, f) if c.ahead else None
    packed = chunk.packed_rows(f, "%shared", "%block")

    def unit(begin: Value, _: list[str]) -> None:
        end = f.min(f.add(begin, at_once), "%v1")
        chunk.pack_columns(f, columns, begin, end)
        source, k, after = _next_columns(chunk, f, columns, following, end)

        def tile(panel: Value, number: Value, into: str = "%out") -> None:
            local = f.sub(panel, "%r0")
            ahead, part = NO_PREFETCH, f.add(f.mul(local, at_once), f.sub(number, begin))
            if chunk.following is not None:
                ahead = chunk.following.part(f, part, source, k, f.at(after, chunk.layout.column_segments), after)
            elif chunk.module.has(f"{chunk.name}.columns.ask"):
                steps = prefetch_steps(c.columns, c.contracted, 1, k[2])
                first, last = (f.div(f.mul(p, steps), c.row_panels * at_once) for p in (part, f.add(part, 1)))
                chunk.prefetch(f, "columns", source, (k[0], k[2]), after, first, last)
            if following is not None:
                done = f.add(f.mul(f.sub(number, "%v0"), f.sub("%r1", "%r0")), local)
                _prepare_rows(chunk, f, row_tables, following, done)
            row = f.at(packed, f.mul(local, chunk.layout.row_panel))
            table = f.at(row_tables, f.mul(local, chunk.layout.row_table))
            chunk.tile(f, columns, (row, table), panel, number, begin, into, ahead)

        if chunk.stage is None:

            def row(panel: Value, _: list[str]) -> None:
                f.loop(begin, end, lambda number, _: tile(panel, number))

            f.loop("%r0", "%r1", row)
            return
        stage, row_panels = f.at("%memory", chunk.layout.at_stage), chunk.stage.row_panels
        tile_bytes = c.rows.width * c.columns.width * c.columns.sums.width_bytes

        def staged(first: Value, _: list[str]) -> None:
            last = f.min(f.add(first, row_panels), "%r1")

            def one(panel: Value, _: list[str]) -> None:
                tile(panel, begin, f.at(stage, f.mul(f.sub(panel, first), tile_bytes)))

            f.loop(first, last, one)
            rows = f.at(row_tables, f.mul(f.sub(first, "%r0"), chunk.layout.row_table))
            lanes = f.at(columns.tables, f.mul(f.sub(begin, "%v0"), chunk.layout.column_table))
            count = f.sub(f.min(f.mul(last, c.rows.width), c.rows.total), f.mul(first, c.rows.width))
            chunk.write_out(f, stage, rows, lanes, count)

        f.loop("%r0", "%r1", staged, step=row_panels)

    f.loop("%v0", "%v1", unit, step=at_once)
    if following is not None:
        tiles = f.mul(f.sub("%r1", "%r0"), f.sub("%v1", "%v0"))
        rest = f.add(following.first, f.div(f.sub(tiles, 1), following.tiles))
        f.loop(rest, following.last, lambda panel, _: _pack_row(chunk, f, row_tables, following, panel))


def _next(chunk: BlockWriter, f: Function) -> _Next:
    c = chunk.cut
    number = f.min(f.add("%block", 1), c.k_blocks - 1)
    k = chunk.products(f, f.at("%memory", chunk.layout.at_following), number)
    rows, columns = (chunk.source(f, pointer, operand, k[1]) for operand, pointer in enumerate(("%r", "%v")))
    share, panels = f.div("%v0", c.column_panels), f.sub("%r1", "%r0")
    first, last = (f.div(f.mul(part, panels), c.column_chunks) for part in (share, f.add(share, 1)))
    last = f.value(f"select i1 {f.compare('sgt', number, '%block')}, i64 {last}, i64 {first}")
    most = f.add(f.div(f.sub(panels, 1), c.column_chunks), 1)  # row panels of a share
    return _Next(number, k, rows, columns, first, last, f.div(f.mul(panels, f.sub("%v1", "%v0")), most))


def _next_columns(
    chunk: BlockWriter, f: Function, columns: Columns, following: _Next | None, end: Value
) -> tuple[str, tuple[str, Value, Value], str]:
    """What the unit that begins at ``end`` is packed from: the operand, the K table with first product and count, the
    unit's first table. After the chunk's last it is the first one in the next block of K."""
    source, (ktable, first, count), local = columns.source, columns.k, f.sub(f.min(end, f.sub("%v1", 1)), "%v0")
    if following is not None:
        over = f.compare("sge", end, "%v1")
        source = f.value(f"select i1 {over}, ptr {following.columns}, ptr {source}")
        ktable = f.value(f"select i1 {over}, ptr {following.k[0]}, ptr {ktable}")
        count = f.value(f"select i1 {over}, i64 {following.k[2]}, i64 {count}")
        local = f.value(f"select i1 {over}, i64 0, i64 {local}")
    return source, (ktable, first, count), f.at(columns.tables, f.mul(local, chunk.layout.column_table))


def _prepare_rows(chunk: BlockWriter, f: Function, row_tables: str, following: _Next, tile: Value) -> None:
    """With this tile, prefetch some of a row panel of the next block; pack the one prefetched before it."""
    c = chunk.cut
    panel, part = f.add(following.first, f.div(tile, following.tiles)), f.rem(tile, following.tiles)
    before = f.sub(panel, 1)
    asked = f.both(f.compare("eq", part, 0), f.compare("sge", before, following.first))
    ready = f.both(asked, f.compare("slt", before, following.last))
    f.when(ready, lambda: _pack_row(chunk, f, row_tables, following, before))
    if not chunk.module.has(f"{chunk.name}.rows.ask"):
        return
    steps = prefetch_steps(c.rows, c.contracted, 0, following.k[2])
    first, last = (f.div(f.mul(p, steps), following.tiles) for p in (part, f.add(part, 1)))
    table = f.at(row_tables, f.mul(panel, chunk.layout.row_table))
    f.when(
        f.compare("slt", panel, following.last),
        lambda: chunk.prefetch(f, "rows", following.rows, (following.k[0], following.k[2]), table, first, last),
    )


def _pack_row(chunk: BlockWriter, f: Function, row_tables: str, following: _Next, panel: Value) -> None:
    """One row panel of the next block of K."""
    into = f.at(chunk.packed_rows(f, "%shared", following.block), f.mul(panel, chunk.layout.row_panel))
    table = f.at(row_tables, f.mul(panel, chunk.layout.row_table))
    chunk.pack(f, "rows", into, following.rows, following.k, table)
