"""One block of a contraction: a chunk of row panels times a chunk of column panels over one block of K.

Three orders of its loops, which `ProductBlocking` chooses between: the packed block of B stays in the second cache
while panels of A pass; or that of A stays while panels of B pass, each packed into the first cache; or A stays while
panels of B are read in place, their tiles transposed in a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index

from tileweave.backends.cpu.gemm.blocking import ProductBlocking, ReadFrom
from tileweave.backends.cpu.gemm.dots import copied, emit_dots, emit_sweep, working_bytes
from tileweave.backends.cpu.gemm.micro import Ahead, Edges, Start, Stores, Tile, emit_tile
from tileweave.backends.cpu.gemm.packing.prefetch import (
    NO_PREFETCH,
    TURN,
    PrefetchPlan,
    PrefetchShare,
    emit_prefetch,
    prefetch_plan,
    prefetch_steps,
)
from tileweave.backends.cpu.gemm.packing.tables import emit_lane_table, emit_segment_table
from tileweave.backends.cpu.gemm.packing.turning import emit_turn
from tileweave.backends.cpu.gemm.panels import (
    SEGMENT_BYTES,
    emit_pack,
)
from tileweave.backends.cpu.gemm.resident_a import emit_resident_a
from tileweave.backends.cpu.gemm.staging import (
    column_lanes,
    emit_runs,
    emit_transposed,
    memory_map,
    staging_of,
    transposed_non_temporal,
)
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import known
from tileweave.teir.merged.form import MergedOp

PARAMETERS = [
    *(("ptr", name) for name in ("memory", "shared", "r", "v", "out")),
    *(("i64", name) for name in ("r0", "r1", "v0", "v1", "block")),
    *(("i1", name) for name in ("init", "relu", "fresh")),
    ("ptr", "start"),
]
"""Of a block's function."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What tiles need of the column panels in one block of K: the operand at the block's first product, packed panels,
    tables, the K table with first product and count, and the flags."""

    source: str
    packed: str
    tables: str
    k: tuple[str, Value, Value]
    init: Value
    relu: Value


class BlockWriter:
    """Writes the function ``name.block`` of one contraction, and those that it calls.

    Args:
        module: where they are added.
        target: the processor.
        name: of the contraction.
        op: the contraction.
        c: how it is cut.
        start: whether sums that are stored begin with a row.
    """

    def __init__(
        self, module: Module, target: Target, name: str, op: MergedOp, c: ProductBlocking, start: bool
    ) -> None:
        self.module = module
        self.target = target
        self.name = name
        self.op = op
        self.cut = c
        self.start = start
        self.stage = staging_of(c, target) if op.init == () else None
        self.layout = memory_map(c, self.stage)
        if c.untiled:
            self.layout = replace(self.layout, thread_bytes=working_bytes(c))

    def emit(self) -> None:
        """Add them."""
        if self.cut.untiled:
            emit = emit_dots if self.cut.b is ReadFrom.ALONG else emit_sweep
            clips = self.op.relu is not None
            emit(self.module, self.target, f"{self.name}.block", self.cut, PARAMETERS, self.start, clips)
            return
        self.helpers()
        self.tiles()
        self.block()

    def explain(self) -> str:
        """What is prefetched, and how the output is stored."""
        c = self.cut
        if c.untiled:
            which = "rows" if copied(c) is c.rows else "columns"
            few = "" if copied(c) is None else f"the few {which} are copied first; "
            return f"{few}prefetch: none; stores: through the caches"
        if c.prefetch is False:
            fetched = "none"
        elif self.following is not None:
            fetched = f"B's next panels, {self.following.at_once} lines every {TURN} products"
        elif self.asks_columns:
            fetched = "B's next panels, before each tile"
        elif c.transposed_panels and c.far(1, self.target):
            fetched = "B's next vectors, a line with every product"
        else:
            fetched = "within the panels"
        if self.stage is not None:
            stored = self.stage.explain()
        elif c.transposed_panels:
            stored = f"transposed in the buffer{', non-temporal' if transposed_non_temporal(c, self.target) else ''}"
        elif self.non_temporal():
            stored = "non-temporal where the output begins with a whole vector"
        else:
            stored = "through the caches" + (", prefetched" if self.prefetches_output() else "")
        return f"prefetch: {fetched}; stores: {stored}"

    # ---- the pieces ---------------------------------------------------------------------------------------------

    def helpers(self) -> None:
        """Tables and packing."""
        c, module, name = self.cut, self.module, self.name
        emit_lane_table(module, f"{name}.rows.lanes", c.rows)
        if column_lanes(c, self.stage):
            emit_lane_table(module, f"{name}.columns.lanes", c.columns)
        if c.rows.operand_dense:
            emit_segment_table(module, f"{name}.rows.segments", c.rows)
        if c.columns.operand_dense or c.columns.output_dense:
            emit_segment_table(module, f"{name}.columns.segments", c.columns)
        if c.contracted.tabled and not c.nested:
            c.contracted.emit_table(module, f"{name}.products")
        if not c.a_in_place:
            emit_pack(module, self.target, f"{name}.rows.pack", c.rows, c.contracted, 0, far=c.far(0, self.target))
        if c.turned:
            emit_turn(module, self.target, f"{name}.columns.turn", c.columns, c.contracted)
        elif not c.b_in_place:
            far = c.far(1, self.target)
            emit_pack(module, self.target, f"{name}.columns.pack", c.columns, c.contracted, 1, far=far)
        if self.asks_columns:
            emit_prefetch(module, self.target, f"{name}.columns.ask", c.columns, c.contracted, 1)
        if c.ahead and c.far(0, self.target):
            emit_prefetch(module, self.target, f"{name}.rows.ask", c.rows, c.contracted, 0)

    @property
    def asks_columns(self) -> bool:
        """Whether what the next column panels are packed from is prefetched before each tile."""
        c = self.cut
        if not c.a_resident or c.transposed_panels or not c.far(1, self.target):
            return False
        return prefetch_steps(c.columns, c.contracted, 1, 1) != 0 and self.following is None

    @property
    def known_rows(self) -> bool:
        """Whether the number of rows is a constant: the last, partial row panel then has a tile of its own."""
        return known(self.cut.rows.total)

    def tile_sizes(self) -> dict[tuple[bool, bool], tuple[int, int, bool]]:
        """Rows and vectors of tiles by whether the row panel and the column panel are the last, partial ones; and
        whether the last vector is half of one.

        Where sizes are no constants, and panels are many, a tile of half as many vectors serves all last columns that
        fit in it.
        """
        c = self.cut
        columns, groups = c.columns, c.columns.groups
        rest_rows = c.rows.total % c.rows.width if self.known_rows else 0
        rest = columns.total % columns.width
        size = 0, False
        if rest != 0 and c.last:
            size = (-(-c.last // 2), c.last % 2 > 0) if c.last < 2 * groups else size
        elif rest != 0:
            every = known(columns.total) or groups not in (2, 4)
            size = index(-(-rest // columns.lanes)) % groups if every else groups // 2, False
        return {
            (bool(last_row), bool(last_column[0])): (last_row or c.rows.width, last_column[0] or groups, last_column[1])
            for last_row in {0, rest_rows}
            for last_column in {(0, False), size}
        }

    def tile_name(self, size: tuple[int, int, bool]) -> str:
        """The function of a tile of so many rows and vectors."""
        return f"{self.name}.tile{size[0]}x{size[1]}{'.half' if size[2] else ''}"

    def tiles(self) -> None:
        """The register tiles, and what brings a stage to the output."""
        c = self.cut
        sizes = self.tile_sizes()
        packed_bytes = c.kc * c.columns.width * c.columns.sums.width_bytes // c.contracted.together
        for (_, last_column), (rows, groups, half) in sizes.items():
            rest = c.columns.total % c.columns.width
            if known(rest) and (False, True) in sizes:  # the last columns have a tile of their own
                rest = rest % (c.columns.lanes // 2 if half else c.columns.lanes) if last_column else 0
            whole = c.columns.segments == 1 and c.columns.width % c.columns.lanes == 0 and rest == 0
            tile = Tile(
                rows,
                groups,
                c.a,
                c.b,
                Start.OUTPUT if self.op.init is None else Start.ROW if self.start else Start.ZERO,
                Edges.WHOLE if whole else Edges.MASKED if self.target.masks_stores else Edges.CHECKED,
                self.stores(),
                self.ahead(packed_bytes),
                self.op.relu is not None,
                c.nested,
                not self.known_rows,
                self.following,
                c.output_bytes // self.target.l2_bytes,
                half,
            )
            emit_tile(self.module, self.tile_name((rows, groups, half)), tile, c.rows, c.columns, c.contracted)
        if self.stage is not None:
            for streaming in (False, True):
                name = f"{self.name}.runs{'.streamed' if streaming else ''}"
                emit_runs(self.module, name, c, self.stage, self.layout.row_table, streaming=streaming)
        if c.transposed_panels:
            tables = self.layout.row_table, self.layout.column_table
            emit_transposed(self.module, f"{self.name}.stood", c, *tables, streaming=False)
            if transposed_non_temporal(c, self.target):
                emit_transposed(self.module, f"{self.name}.stood.streamed", c, *tables, streaming=True)

    def ahead(self, packed_bytes: int) -> Ahead:
        """What tiles prefetch of B, a block of a packed panel of which is so large."""
        c = self.cut
        if c.prefetch is False:
            return Ahead.NEVER
        if c.transposed_panels and c.far(1, self.target):
            return Ahead.LINE
        return Ahead.NOTHING if c.a_resident and packed_bytes <= self.target.l1_bytes * 3 // 4 else Ahead.PANEL

    @property
    def following(self) -> PrefetchPlan | None:
        """What tiles ask for while columns sweep by; None where there are too few tiles for all of the next columns."""
        c = self.cut
        if not c.a_resident or c.transposed_panels or not c.far(1, self.target):
            return None
        return prefetch_plan(c.columns, c.contracted, c.kc, c.row_panels * c.columns.pack_panels)

    def stores(self) -> Stores:
        """How tiles bring their sums to the output."""
        if self.stage is not None or self.cut.transposed_panels:
            return Stores.STAGED
        if self.non_temporal():
            return Stores.NON_TEMPORAL
        return Stores.PREFETCHED if self.prefetches_output() else Stores.CACHED

    def prefetches_output(self) -> bool:
        """Whether the output is large and is not streamed; where its size is no constant, tiles ask.

        Not where the processor fetches what is stored: 1649 x 567 of one product each take 77 us with it on a Zen 4,
        and 69 without.
        """
        if self.cut.prefetch is False or (self.cut.prefetch is None and self.target.fetches_ahead):
            return False
        unknown = not known(self.cut.output_bytes)
        return (unknown or self.cut.output_bytes >= self.target.l2_bytes) and not self.non_temporal()

    def non_temporal(self) -> bool:
        """Whether the output is stored once, is larger than the caches, and its vectors are whole lines throughout."""
        c, line = self.cut, self.target.vector_bytes
        columns, rows = c.columns, c.rows
        if (
            self.op.init is None
            or not c.may_stream(self.target)
            or c.k_blocks > 1
            or not columns.output_dense
            or columns.segments > 1
        ):
            return False
        whole = columns.lanes * columns.sums.width_bytes == line and columns.width % columns.lanes == 0
        steps = [dim.strides[1] for dim in (*rows.dims, *columns.dims[1:])]
        steps += [dim.strides[2] for dim in (*c.batch, *c.outer)]
        return whole and all(step % line == 0 for step in steps)

    def row_tables(self, f: Function, table: str, panel: Value) -> None:
        """Fill the tables of one row panel."""
        f.call(f"{self.name}.rows.lanes", f"ptr {table}", f"i64 {panel}")
        if self.cut.rows.operand_dense:
            f.call(f"{self.name}.rows.segments", f"ptr {f.at(table, self.layout.row_segments)}", f"i64 {panel}")

    def pack(
        self,
        f: Function,
        panels: str,
        into: str,
        source: str,
        k: tuple[str, Value, Value],
        table: str,
        groups: Value = 1,
    ) -> None:
        """Pack one panel of a panels, or so many groups of them."""
        segments = self.layout.row_segments if panels == "rows" else self.layout.column_segments
        ktable, first, count = k
        f.call(
            f"{self.name}.{panels}.pack",
            f"ptr {into}",
            f"ptr {source}",
            f"ptr {ktable}",
            f"i64 {first}",
            f"i64 {count}",
            f"ptr {f.at(table, segments)}",
            f"ptr {table}",
            f"i64 {self.layout.row_panel if panels == 'rows' else self.layout.column_panel}",
            f"i64 {self.layout.column_table * self.cut.columns.pack_panels}",
            f"i64 {groups}",
        )

    def products(self, f: Function, memory: str, block: Value) -> tuple[str, Value, Value]:
        """The K table of a block, the block's first product and how many there are."""
        c = self.cut
        first = f.mul(block, c.kc)
        count = f.min(f.sub(c.contracted.total, first), c.kc)
        if c.contracted.tabled and not c.nested:
            f.call(f"{self.name}.products", f"ptr {memory}", f"i64 {first}", f"i64 {count}")
        return memory, first, count

    def packed_rows(self, f: Function, shared: str, block: Value) -> str:
        """Where the chunk's row panels of a block of K are, packed once for all."""
        where, c = self.layout, self.cut
        half = f.mul(f.rem(block, 2), where.row_panel * c.row_panels) if c.ahead else 0
        return f.at(shared, f.add(half, where.shared_pack))

    def source(self, f: Function, pointer: str, operand: int, first: Value) -> str:
        """An operand at a block's first product; with a table, offsets are absolute."""
        if self.cut.contracted.tabled:
            return pointer
        return f.at(pointer, f.mul(first, self.cut.contracted.stride(operand)))

    # ---- one chunk of rows times one chunk of columns, one block of K -------------------------------------------

    def block(self) -> None:
        """The function itself."""
        c, where = self.cut, self.layout
        f = Function(self.module, f"{self.name}.block", PARAMETERS)
        row_tables = "%shared" if c.shared else f.at("%memory", where.at_rows)
        column_tables = f.at("%memory", where.at_columns)
        k = self.products(f, "%memory", "%block")
        last = f.compare("eq", "%block", c.k_blocks - 1)
        first = f.compare("eq", "%block", 0)
        init = f.both("%init", first)
        relu_now = f.both("%relu", last)
        r_source = self.source(f, "%r", 0, k[1])
        v_source = self.source(f, "%v", 1, k[1])
        f.when("%fresh", lambda: self.tables(f, row_tables, column_tables))
        packed = f.at("%memory", where.at_column_pack)

        columns = Columns(v_source, packed, column_tables, k, init, relu_now)
        if c.transposed_panels:
            self.transpose_tiles(f, columns, row_tables)
        elif c.a_resident:
            emit_resident_a(self, f, columns, row_tables)
        else:
            self.pack_columns(f, columns, "%v0", "%v1")
            self.keep_b(f, columns, r_source, row_tables)
        streamed = c.transposed_panels > 0 and transposed_non_temporal(c, self.target)
        if self.non_temporal() or self.stage is not None or streamed:
            self.module.declare("llvm.x86.sse.sfence", "void {}()")
            f.emit("call void @llvm.x86.sse.sfence()")
        f.ret()

    def keep_b(self, f: Function, columns: Columns, r_source: str, row_tables: str) -> None:
        """All column panels of the chunk are packed and stay in the second cache, while row panels go by."""
        c, where = self.cut, self.layout

        def row(panel: Value, _: list[str]) -> None:
            local = f.sub(panel, "%r0")
            table = f.at(row_tables, f.mul(local, where.row_table))
            if c.a_in_place:
                r = r_source
            elif c.shared:
                r = f.at(self.packed_rows(f, "%shared", "%block"), f.mul(local, where.row_panel))
            else:
                r = f.at("%memory", where.at_row_pack)
                self.pack(f, "rows", r, r_source, columns.k, table)
            f.loop("%v0", "%v1", lambda number, _: self.tile(f, columns, (r, table), panel, number, "%v0"))

        def tile_of(panel: Value, number: Value) -> None:
            table = f.at(row_tables, f.mul(f.sub(panel, "%r0"), where.row_table))
            self.tile(f, columns, (r_source, table), panel, number, "%v0")

        if c.keep_a and c.a_in_place and c.b_in_place:  # the rows are in the first cache, and columns are read once
            f.loop("%v0", "%v1", lambda number, _: f.loop("%r0", "%r1", lambda row, _: tile_of(row, number)))
        else:
            f.loop("%r0", "%r1", row)

    def transpose_tiles(self, f: Function, columns: Columns, row_tables: str) -> None:
        """All row panels are packed; column panels are read in place, and those of a stage stood up together."""
        c, where = self.cut, self.layout
        stage = f.at("%memory", where.at_stage)
        tile_bytes = c.rows.width * c.columns.width * c.columns.sums.width_bytes
        group_bytes = SEGMENT_BYTES * c.columns.segments

        def unit(begin: Value, _: list[str]) -> None:
            f.loop(begin, f.add(begin, c.transposed_panels), lambda number, _: panel(number, f.sub(number, begin)))
            table = f.at(columns.tables, f.mul(f.sub(begin, "%v0"), where.column_table))
            self.call_aligned(f, "stood", [f"ptr {stage}", "ptr %out", f"ptr {row_tables}", f"ptr {table}"])

        def panel(number: Value, local: Value) -> None:
            following = f.sub(f.min(f.add(number, 1), f.sub("%v1", 1)), "%v0")
            table = f.at(columns.tables, f.add(f.mul(following, where.column_table), where.column_segments + 8))

            def row(index: Value, _: list[str]) -> None:
                packed = f.at(f.at("%shared", where.shared_pack), f.mul(index, where.row_panel))
                into = f.at(stage, f.mul(f.add(f.mul(local, c.rows.panels), index), tile_bytes))
                line = f.load("i64", f.at(table, f.mul(f.rem(index, c.columns.groups), group_bytes)), 8)
                ahead = replace(NO_PREFETCH, base=f.at(columns.source, line))
                rows = packed, f.at(row_tables, f.mul(index, where.row_table))
                self.tile(f, columns, rows, index, number, number, into, ahead)

            f.loop(0, c.rows.panels, row)

        f.loop("%v0", "%v1", unit, step=c.transposed_panels)

    def call_aligned(self, f: Function, name: str, arguments: list[str]) -> None:
        """The function that bypasses the caches where there is one and the output begins where a line begins."""
        streamed = f"{self.name}.{name}.streamed"
        if not self.module.has(streamed):
            f.call(f"{self.name}.{name}", *arguments)
            return
        low = f.value(f"and i64 {f.value('ptrtoint ptr %out to i64')}, {self.target.vector_bytes - 1}")
        f.when(
            f.compare("eq", low, 0),
            lambda: f.call(streamed, *arguments),
            lambda: f.call(f"{self.name}.{name}", *arguments),
        )

    def write_out(self, f: Function, stage: str, row_table: str, column_table: str, count: Value) -> None:
        """A full stage to the output, past the caches where its lines begin where lines begin."""
        arguments = [f"ptr {stage}", "ptr %out", f"ptr {row_table}", f"ptr {column_table}", f"i64 {count}"]
        self.call_aligned(f, "runs", arguments)

    def tile(
        self,
        f: Function,
        columns: Columns,
        row: tuple[str, str],
        panel: Value,
        number: Value,
        first: Value,
        into: str = "%out",
        ahead: PrefetchShare = NO_PREFETCH,
    ) -> None:
        """One tile: a row panel with its table, and a column panel, given which one was packed first."""
        c, where = self.cut, self.layout
        table = f.at(columns.tables, f.mul(f.sub(number, "%v0"), where.column_table))
        packed = f.at(columns.packed, f.mul(f.sub(number, first), where.column_panel))
        arguments = [
            f"ptr {row[0]}",
            f"ptr {columns.source if c.b_in_place else packed}",
            f"ptr {into}",
            f"i64 {columns.k[2]}",
            f"ptr {columns.k[0]}",
            f"ptr {row[1]}",
            f"ptr {table}",
            f"ptr {f.at(table, where.column_segments)}",
            f"i1 {columns.init}",
            f"i1 {columns.relu}",
            "ptr %start",
            f"ptr {ahead.base}",
            f"ptr {ahead.table}",
            f"i64 {ahead.first}",
            f"i64 {ahead.last}",
        ]
        self.call_tile(f, panel, number, arguments)

    def prefetch(
        self, f: Function, panels: str, source: str, k: tuple[str, Value], table: str, begin: Value, end: Value
    ) -> None:
        """Prefetch some of what a panel, or the panels of a group, will be packed from; ``k``: table and count."""
        segments = self.layout.row_segments if panels == "rows" else self.layout.column_segments
        f.call(
            f"{self.name}.{panels}.ask",
            f"ptr {source}",
            f"ptr {k[0]}",
            f"i64 {k[1]}",
            f"ptr {f.at(table, segments)}",
            f"ptr {table}",
            f"i64 {begin}",
            f"i64 {end}",
        )

    def pack_columns(self, f: Function, columns: Columns, v0: Value, v1: Value) -> None:
        """Some of a chunk's column panels, in the order in which the operand lies in memory."""
        c, where, k = self.cut, self.layout, columns.k
        if c.b_in_place:
            return

        def table_of(number: Value) -> str:
            return f.at(columns.tables, f.mul(f.sub(number, "%v0"), where.column_table))

        if c.turned:
            given = (
                f"ptr {columns.packed}",
                f"ptr {columns.source}",
                f"ptr {k[0]}",
                f"i64 {k[2]}",
                f"i64 {v0}",
                f"i64 {v1}",
            )
            f.call(f"{self.name}.columns.turn", *given, f"i64 {where.column_panel}")
            return
        if c.columns.grouped:
            groups = 1 if c.a_resident else f.div(f.sub(v1, v0), c.columns.pack_panels)
            self.pack(f, "columns", columns.packed, columns.source, k, table_of(v0), groups)
            return
        slab = _SLAB if c.columns.operand_dense else _GATHERED
        if c.a_resident or (not c.columns.operand_dense and c.contracted.dense(1, c.columns.element.width_bytes)):
            slab = c.kc
        row_bytes = c.columns.width * c.columns.sums.width_bytes // c.contracted.together

        def part(begin: Value, _: list[str]) -> None:
            count = f.min(f.sub(k[2], begin), slab)
            ktable = f.at(k[0], f.mul(begin, 16)) if c.contracted.tabled else k[0]
            moved = f.mul(begin, c.contracted.stride(1))
            here = columns.source if c.contracted.tabled else f.at(columns.source, moved)

            def panel(number: Value, _: list[str]) -> None:
                local = f.sub(number, v0)
                into = f.at(columns.packed, f.add(f.mul(local, where.column_panel), f.mul(begin, row_bytes)))
                self.pack(f, "columns", into, here, (ktable, f.add(k[1], begin), count), table_of(number))

            f.loop(v0, v1, panel)

        f.loop(0, k[2], part, step=slab)

    def tables(self, f: Function, row_tables: str, column_tables: str) -> None:
        """Fill the tables of the chunk's panels; those of rows that are packed once are filled then."""
        where = self.layout

        def row(panel: Value, _: list[str]) -> None:
            self.row_tables(f, f.at(row_tables, f.mul(f.sub(panel, "%r0"), where.row_table)), panel)

        def column(panel: Value, _: list[str]) -> None:
            table = f.at(column_tables, f.mul(f.sub(panel, "%v0"), where.column_table))
            if self.module.has(f"{self.name}.columns.lanes"):
                f.call(f"{self.name}.columns.lanes", f"ptr {table}", f"i64 {panel}")
            if self.module.has(f"{self.name}.columns.segments"):
                f.call(f"{self.name}.columns.segments", f"ptr {f.at(table, where.column_segments)}", f"i64 {panel}")

        if not self.cut.shared:
            f.loop("%r0", "%r1", row)
        f.loop("%v0", "%v1", column)

    def call_tile(self, f: Function, row: Value, column: Value, arguments: list[str]) -> None:
        """The tile of two panels, of which each may be the last, partial one."""
        sizes, columns = self.tile_sizes(), self.cut.columns
        names = {which: self.tile_name(size) for which, size in sizes.items()}
        last_row = f.compare("eq", row, self.cut.rows.panels - 1) if (True, False) in names else 0
        last_column: Value = 0
        if (False, True) in names:
            last_column = f.compare("eq", column, columns.panels - 1)
            if not known(columns.total):
                lanes = sizes[False, True][1] * columns.lanes - sizes[False, True][2] * columns.lanes // 2
                last_column = f.both(last_column, f.compare("sle", columns.total % columns.width, lanes))

        def by_column(is_last_row: bool) -> None:
            f.when(
                last_column,
                lambda: f.call(names[is_last_row, True], *arguments),
                lambda: f.call(names[is_last_row, False], *arguments),
            )

        f.when(last_row, lambda: by_column(True), lambda: by_column(False))


_SLAB, _GATHERED = 16, 8
"""Products that are packed for all panels of a chunk before the next ones, where the operand's rows are dense; where
elements are gathered, neighbouring panels then meet their lines in the first cache."""
