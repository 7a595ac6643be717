"""Contractions: sums of products over any axes with any strides.

The scalar form runs every axis as a loop, in the given order, and is the fallback for a contraction that reads the
tensor it writes. All others are cut (`gett`), packed (`sides`) and computed in register tiles (`micro`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileweave.backends.cpu import vectors
from tileweave.backends.cpu.elements import Element, convert
from tileweave.backends.cpu.gett import Cut, cut
from tileweave.backends.cpu.ir import Function, Module, Value
from tileweave.backends.cpu.loops import emit_nest, run_tasks
from tileweave.backends.cpu.micro import Tile, emit_tile, multiply_add
from tileweave.backends.cpu.plan import Dim, Op
from tileweave.backends.cpu.settings import DEFAULT, Settings
from tileweave.backends.cpu.sides import (
    LANE_BYTES,
    SEGMENT_BYTES,
    ask_steps,
    emit_ask,
    emit_lane_table,
    emit_pack,
    emit_segment_table,
)
from tileweave.backends.cpu.stage import Stage, emit_runs, emit_stood, stage_of, stood_streams
from tileweave.backends.cpu.target import Target

__all__ = ["Workspace", "emit_contraction", "may_start", "without_start"]

PARAMETERS = [
    ("ptr", "env"),
    ("i64", "thread"),
    ("ptr", "p0"),
    ("ptr", "p1"),
    ("ptr", "p2"),
    ("i1", "init"),
    ("i1", "relu"),
    ("ptr", "start"),
]
_PARALLEL_FLOPS = 500_000
"""Contractions of less work than this run on one thread."""


@dataclass
class Workspace:
    """Working memory that the operations of a program ask for; they run one after the other and share it."""

    shared_bytes: int = 0
    thread_bytes: int = 0

    def ask(self, shared_bytes: int, thread_bytes: int) -> None:
        """Have at least so much."""
        self.shared_bytes = max(self.shared_bytes, shared_bytes)
        self.thread_bytes = max(self.thread_bytes, thread_bytes)


def emit_contraction(
    module: Module,
    target: Target,
    name: str,
    op: Op,
    elements: tuple[Element, ...],
    memory: Workspace,
    *,
    threads: int,
    settings: Settings = DEFAULT,
    start: bool = False,
) -> str:
    """Add the function ``name(env, thread, in0, in1, out, init, relu, start)``; how it works, in a line.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: a Contraction.
        elements: of in0, in1 and out; sums are formed in the type of out.
        memory: grows by what the operation needs.
        threads: how many it may use; 1 inside a parallel region.
        settings: wishes for how it is cut.
        start: whether sums that are stored begin with a row, which the columns alone walk as they walk the output.
    """
    if op.operands[2] in op.operands[:2]:
        _emit_scalar(module, target, name, op, elements)
        return "one element at a time, for it reads what it writes"
    decided = cut(op, elements, target, threads, settings)
    emitter = _Emitter(module, target, name, op, decided, memory, threads, start)
    emitter.emit()
    return decided.explain() + (f", {emitter.stage.explain()}" if emitter.stage else "")


def may_start(op: Op, elements: tuple[Element, ...], target: Target, threads: int, settings: Settings) -> bool:
    """Whether the sums of a contraction may begin with its fourth operand: a row that its columns alone walk.

    The row then lies, vector by vector, as far from its base as the output's vectors from theirs.
    """
    plain = without_start(op)
    if op.operands[2] in op.operands[:2] or elements[3] != elements[2]:
        return False
    c = cut(plain, elements[:3], target, threads, settings)
    columns, v = c.columns, 0 if c.swapped else 1
    if c.outer or not columns.output_dense or columns.segments > 1 or columns.lanes == 1:
        return False
    return all(
        dim.strides[3] == (dim.strides[2] if dim.strides[v] and not dim.strides[1 - v] else 0) and dim.strides[3] >= 0
        for dim in op.dims
        if dim.extent > 1
    )


def without_start(op: Op) -> Op:
    """The contraction alone."""
    dims = tuple(Dim(dim.extent, dim.strides[:3]) for dim in op.dims)
    return replace(op, operands=op.operands[:3], offsets=op.offsets[:3], dims=dims)


def _emit_scalar(module: Module, target: Target, name: str, op: Op, elements: tuple[Element, ...]) -> None:
    f = Function(module, name, PARAMETERS)
    pointers = [f.at(f"%p{k}", offset) for k, offset in enumerate(op.offsets)]
    out = elements[-1]

    def point(moved: list[str]) -> None:
        values = [
            convert(f, target, f.load(e.memory, p, e.width_bytes), e, out)
            for p, e in zip(moved[:-1], elements[:-1], strict=True)
        ]
        old = f.load(out.memory, moved[-1], out.width_bytes)
        f.store(out.memory, multiply_add(f, out, 1, values[0], values[1], old), moved[-1], out.width_bytes)

    emit_nest(f, [d for d in op.dims if d.extent > 1], pointers, point)
    f.ret()


def _rounded(size: int) -> int:
    return -(-size // 64) * 64


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things lie in working memory, in bytes.

    Per thread: the K table, the tables of the row panels and of the column panels of a chunk, one packed row panel, the
    packed column panels, the stage. Shared, where rows are packed once: their tables and the packed panels.
    """

    row_table: int
    row_segments: int
    column_table: int
    column_segments: int
    row_panel: int
    column_panel: int
    at_rows: int
    at_columns: int
    at_row_pack: int
    at_column_pack: int
    at_stage: int
    thread_bytes: int
    shared_pack: int
    shared_bytes: int


def _column_lanes(c: Cut, stage: Stage | None) -> bool:
    """Whether anything asks where a single lane of a column panel lies."""
    return not c.stood and (stage is not None or not c.columns.operand_dense or not c.columns.output_dense)


def _layout(c: Cut, stage: Stage | None) -> _Layout:
    width = c.columns.sums.width_bytes
    row_segments = c.rows.lane_table_bytes + 8
    row_table = row_segments + (c.rows.segment_table_bytes if c.rows.operand_dense else 0)
    column_segments = c.columns.lane_table_bytes + 8 if _column_lanes(c, stage) else 0
    dense = c.columns.operand_dense or c.columns.output_dense
    column_table = column_segments + (c.columns.segment_table_bytes if dense else 0)
    row_panel = _rounded((c.kc + c.rows.lanes + 1) * c.rows.width * width)
    column_panel = _rounded((c.kc + c.columns.lanes + 1) * c.columns.width * width)
    at_rows = _rounded(c.kc * 16 if c.contracted.tabled and not c.nested else 0)
    at_columns = at_rows + (0 if c.shared else _rounded(row_table * c.row_panels))
    at_row_pack = at_columns + _rounded(column_table * c.column_panels)
    at_column_pack = at_row_pack + (0 if c.direct_rows or c.shared else row_panel)
    packed_panels = c.columns.pack_panels if c.swept else c.column_panels
    at_stage = at_column_pack + _rounded(0 if c.direct_columns else column_panel * packed_panels)
    staged_panels = c.stood * c.rows.panels or (stage.row_panels if stage else 0)
    staged_bytes = staged_panels * c.rows.width * c.columns.width * width
    end = at_stage + _rounded(staged_bytes) + 64
    shared_pack = _rounded(row_table * c.row_panels) if c.shared else 0
    shared_bytes = shared_pack + row_panel * c.row_panels + 64 if c.shared else 0
    return _Layout(
        row_table,
        row_segments,
        column_table,
        column_segments,
        row_panel,
        column_panel,
        at_rows,
        at_columns,
        at_row_pack,
        at_column_pack,
        at_stage,
        end,
        shared_pack,
        shared_bytes,
    )


# words of the frame that tasks read
_ENV, _ROWS, _COLUMNS, _OUT, _INIT, _RELU, _BLOCK, _CHUNK, _START, _FRAME_WORDS = range(10)


@dataclass(frozen=True, slots=True)
class _Columns:
    """What tiles need of the column side in one block of K: the operand at the block's first product, packed panels,
    tables, the K table with first product and count, and the flags."""

    source: str
    packed: str
    tables: str
    k: tuple[str, Value, Value]
    init: Value
    relu: Value


class _Emitter:
    """Writes the functions of one contraction."""

    def __init__(
        self, module: Module, target: Target, name: str, op: Op, c: Cut, memory: Workspace, threads: int, start: bool
    ) -> None:
        self.module = module
        self.target = target
        self.name = name
        self.op = op
        self.cut = c
        self.start = start
        self.stage = stage_of(c, target) if op.init == () else None
        self.layout = _layout(c, self.stage)
        self.parallel = threads > 1 and c.flops >= _PARALLEL_FLOPS
        memory.ask(self.layout.shared_bytes, self.layout.thread_bytes)

    def emit(self) -> None:
        self.helpers()
        self.tiles()
        self.block()
        if self.cut.shared:
            self.pack_task()
        self.task()
        self.entry()

    # ---- the pieces ---------------------------------------------------------------------------------------------

    def helpers(self) -> None:
        c, module, name = self.cut, self.module, self.name
        emit_lane_table(module, f"{name}.rows.lanes", c.rows)
        if _column_lanes(c, self.stage):
            emit_lane_table(module, f"{name}.columns.lanes", c.columns)
        if c.rows.operand_dense:
            emit_segment_table(module, f"{name}.rows.segments", c.rows)
        if c.columns.operand_dense or c.columns.output_dense:
            emit_segment_table(module, f"{name}.columns.segments", c.columns)
        if c.contracted.tabled and not c.nested:
            c.contracted.emit_table(module, f"{name}.products")
        if not c.direct_rows:
            emit_pack(module, self.target, f"{name}.rows.pack", c.rows, c.contracted, 0)
        if not c.direct_columns:
            emit_pack(module, self.target, f"{name}.columns.pack", c.columns, c.contracted, 1)
        if c.swept and not c.stood and self.far() and ask_steps(c.columns, c.contracted, 1, 1):
            emit_ask(module, self.target, f"{name}.columns.ask", c.columns, c.contracted, 1)

    def tile_names(self) -> dict[tuple[bool, bool], str]:
        """Tiles by whether the row panel and the column panel are the last, partial ones."""
        c = self.cut
        rest_rows = c.rows.total % c.rows.width
        rest_columns = -(-(c.columns.total % c.columns.width) // c.columns.lanes)
        if rest_columns == c.columns.groups:
            rest_columns = 0
        return {
            (
                bool(last_row),
                bool(last_column),
            ): f"{self.name}.tile{last_row or c.rows.width}x{last_column or c.columns.groups}"
            for last_row in {0, rest_rows}
            for last_column in {0, rest_columns}
        }

    def tiles(self) -> None:
        c = self.cut
        for (last_row, last_column), name in self.tile_names().items():
            rows = c.rows.total % c.rows.width if last_row else c.rows.width
            groups = -(-(c.columns.total % c.columns.width) // c.columns.lanes) if last_column else c.columns.groups
            init, clips, free = self.op.init is not None, self.op.relu is not None, self.target.vector_bytes == 64
            staged = self.stage is not None or c.stood > 0
            streams, asks = self.streams() and not staged, self.asks() and not staged
            tile = Tile(
                rows, groups, c.direct_rows, c.direct_columns, init, clips, free, streams, asks, staged, c.nested
            )
            tile = replace(tile, starts=self.start, ahead=c.stood > 0 and self.far())
            emit_tile(self.module, name, tile, c.rows, c.columns, c.contracted)
        if self.stage is not None:
            for streaming in (False, True):
                name = f"{self.name}.runs{'.streamed' if streaming else ''}"
                emit_runs(self.module, name, c, self.stage, self.layout.row_table, streaming=streaming)
        if c.stood:
            tables = self.layout.row_table, self.layout.column_table
            emit_stood(self.module, f"{self.name}.stood", c, *tables, streaming=False)
            if stood_streams(c, self.target):
                emit_stood(self.module, f"{self.name}.stood.streamed", c, *tables, streaming=True)

    def asks(self) -> bool:
        """Whether the output is large and is not streamed."""
        return self.cut.output_bytes >= self.target.l2_bytes and not self.streams()

    def streams(self) -> bool:
        """Whether the output is stored once, is larger than the caches, and its vectors are whole lines throughout."""
        c, line = self.cut, self.target.vector_bytes
        columns, rows = c.columns, c.rows
        large = self.op.init is not None and c.output_bytes >= self.target.l3_bytes and self.target.has("sse2")
        if not large or c.k_blocks > 1 or not columns.output_dense or columns.segments > 1:
            return False
        whole = columns.lanes * columns.sums.width_bytes == line and columns.width % columns.lanes == 0
        steps = [dim.strides[1] for dim in (*rows.dims, *columns.dims[1:])]
        steps += [dim.strides[2] for dim in (*c.batch, *c.outer)]
        return whole and all(step % line == 0 for step in steps)

    def row_tables(self, f: Function, table: str, panel: Value) -> None:
        f.call(f"{self.name}.rows.lanes", f"ptr {table}", f"i64 {panel}")
        if self.cut.rows.operand_dense:
            f.call(f"{self.name}.rows.segments", f"ptr {f.at(table, self.layout.row_segments)}", f"i64 {panel}")

    def pack(
        self,
        f: Function,
        side: str,
        into: str,
        source: str,
        k: tuple[str, Value, Value],
        table: str,
        groups: Value = 1,
    ) -> None:
        segments = self.layout.row_segments if side == "rows" else self.layout.column_segments
        ktable, first, count = k
        f.call(
            f"{self.name}.{side}.pack",
            f"ptr {into}",
            f"ptr {source}",
            f"ptr {ktable}",
            f"i64 {first}",
            f"i64 {count}",
            f"ptr {f.at(table, segments)}",
            f"ptr {table}",
            f"i64 {self.layout.row_panel if side == 'rows' else self.layout.column_panel}",
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

    def source(self, f: Function, pointer: str, operand: int, first: Value) -> str:
        """An operand at a block's first product; with a table, offsets are absolute."""
        if self.cut.contracted.tabled:
            return pointer
        return f.at(pointer, f.mul(first, self.cut.contracted.stride(operand)))

    # ---- one chunk of rows times one chunk of columns, one block of K -------------------------------------------

    def block(self) -> None:
        c, where = self.cut, self.layout
        f = Function(
            self.module,
            f"{self.name}.block",
            [("ptr", "memory"), ("ptr", "shared"), ("ptr", "r"), ("ptr", "v"), ("ptr", "out")]
            + [("i64", "r0"), ("i64", "r1"), ("i64", "v0"), ("i64", "v1"), ("i64", "block")]
            + [("i1", "init"), ("i1", "relu"), ("i1", "fresh"), ("ptr", "start")],
        )
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

        columns = _Columns(v_source, packed, column_tables, k, init, relu_now)
        if c.stood:
            self.stand(f, columns, row_tables)
        elif c.swept:
            self.sweep(f, columns, row_tables)
        else:
            self.pack_columns(f, columns, "%v0", "%v1")
            self.stay(f, columns, r_source, row_tables)
        if self.streams() or self.stage is not None or (c.stood and stood_streams(c, self.target)):
            self.module.declare("llvm.x86.sse.sfence", "void {}()")
            f.emit("call void @llvm.x86.sse.sfence()")
        f.ret()

    def stay(self, f: Function, columns: _Columns, r_source: str, row_tables: str) -> None:
        """All column panels of the chunk are packed and stay in the second cache, while row panels go by."""
        c, where = self.cut, self.layout

        def row(panel: Value, _: list[str]) -> None:
            local = f.sub(panel, "%r0")
            table = f.at(row_tables, f.mul(local, where.row_table))
            if c.direct_rows:
                r = r_source
            elif c.shared:
                r = f.at(f.at("%shared", where.shared_pack), f.mul(local, where.row_panel))
            else:
                r = f.at("%memory", where.at_row_pack)
                self.pack(f, "rows", r, r_source, columns.k, table)
            following = f.min(f.add(local, 1), f.sub(f.sub("%r1", "%r0"), 1))

            def column(number: Value, _: list[str]) -> None:
                if c.direct_rows:
                    part, parts = f.sub(number, "%v0"), f.sub("%v1", "%v0")
                    first, last = (f.div(f.mul(p, c.rows.width), parts) for p in (part, f.add(part, 1)))
                    self.ask_rows(f, r_source, f.at(row_tables, f.mul(following, where.row_table)), first, last)
                self.tile(f, columns, (r, table), panel, number, "%v0")

            f.loop("%v0", "%v1", column)

        f.loop("%r0", "%r1", row)

    def sweep(self, f: Function, columns: _Columns, row_tables: str) -> None:
        """The chunk's row panels are packed already; a few column panels at a time are packed and meet all of them.

        Meanwhile the lines of the next column panels are asked for, a few with every tile.
        """
        c, where, at_once = self.cut, self.layout, self.cut.columns.pack_panels
        steps = ask_steps(c.columns, c.contracted, 1, columns.k[2]) if self.far() else 0
        parts = c.row_panels * at_once
        stage = f.at("%memory", where.at_stage)
        tile_bytes = c.rows.width * c.columns.width * c.columns.sums.width_bytes

        def unit(begin: Value, _: list[str]) -> None:
            end = f.min(f.add(begin, at_once), "%v1")
            self.pack_columns(f, columns, begin, end)
            following = f.sub(f.min(end, f.sub("%v1", 1)), "%v0")

            def tile(panel: Value, number: Value, into: str) -> None:
                local = f.sub(panel, "%r0")
                if steps:
                    part = f.add(f.mul(local, at_once), f.sub(number, begin))
                    first, last = (f.div(f.mul(p, steps), parts) for p in (part, f.add(part, 1)))
                    self.ask_columns(f, columns, following, first, last)
                row = f.at(f.at("%shared", where.shared_pack), f.mul(local, where.row_panel))
                table = f.at(row_tables, f.mul(local, where.row_table))
                self.tile(f, columns, (row, table), panel, number, begin, into)

            def staged(first: Value, _: list[str]) -> None:
                last = f.min(f.add(first, row_panels), "%r1")
                f.loop(
                    first,
                    last,
                    lambda panel, _: tile(panel, begin, f.at(stage, f.mul(f.sub(panel, first), tile_bytes))),
                )
                table = f.at(row_tables, f.mul(f.sub(first, "%r0"), where.row_table))
                count = f.sub(f.min(f.mul(last, c.rows.width), c.rows.total), f.mul(first, c.rows.width))
                self.bring(f, stage, table, f.at(columns.tables, f.mul(f.sub(begin, "%v0"), where.column_table)), count)

            def row(panel: Value, _: list[str]) -> None:
                f.loop(begin, end, lambda number, _: tile(panel, number, "%out"))

            if self.stage is None:
                f.loop("%r0", "%r1", row)
            else:
                row_panels = self.stage.row_panels
                f.loop("%r0", "%r1", staged, step=row_panels)

        f.loop("%v0", "%v1", unit, step=at_once)

    def stand(self, f: Function, columns: _Columns, row_tables: str) -> None:
        """All row panels are packed; column panels are read where they lie, and those of a stage stood up together."""
        c, where = self.cut, self.layout
        stage = f.at("%memory", where.at_stage)
        tile_bytes = c.rows.width * c.columns.width * c.columns.sums.width_bytes
        group_bytes = SEGMENT_BYTES * c.columns.segments

        def unit(begin: Value, _: list[str]) -> None:
            f.loop(begin, f.add(begin, c.stood), lambda number, _: panel(number, f.sub(number, begin)))
            table = f.at(columns.tables, f.mul(f.sub(begin, "%v0"), where.column_table))
            self.call_aligned(f, "stood", [f"ptr {stage}", "ptr %out", f"ptr {row_tables}", f"ptr {table}"])

        def panel(number: Value, local: Value) -> None:
            following = f.sub(f.min(f.add(number, 1), f.sub("%v1", 1)), "%v0")
            table = f.at(columns.tables, f.add(f.mul(following, where.column_table), where.column_segments + 8))

            def row(index: Value, _: list[str]) -> None:
                packed = f.at(f.at("%shared", where.shared_pack), f.mul(index, where.row_panel))
                into = f.at(stage, f.mul(f.add(f.mul(local, c.rows.panels), index), tile_bytes))
                line = f.load("i64", f.at(table, f.mul(f.rem(index, c.columns.groups), group_bytes)), 8)
                ahead = f.at(columns.source, line)
                rows = packed, f.at(row_tables, f.mul(index, where.row_table))
                self.tile(f, columns, rows, index, number, number, into, ahead)

            f.loop(0, c.rows.panels, row)

        f.loop("%v0", "%v1", unit, step=c.stood)

    def call_aligned(self, f: Function, name: str, arguments: list[str]) -> None:
        """The function that bypasses the caches where there is one and the output begins where a line begins."""
        streamed = f"{self.name}.{name}.streamed"
        if not self.module.has(streamed):
            f.call(f"{self.name}.{name}", *arguments)
            return
        low = f.value(f"and i64 {f.value('ptrtoint ptr %out to i64')}, {self.target.vector_bytes - 1}")
        f.when(
            f.compare("eq", low, 0),
            lambda: _discard(f.call(streamed, *arguments)),
            lambda: _discard(f.call(f"{self.name}.{name}", *arguments)),
        )

    def bring(self, f: Function, stage: str, row_table: str, column_table: str, count: Value) -> None:
        """A full stage to the output, past the caches where its lines begin where lines begin."""
        arguments = [f"ptr {stage}", "ptr %out", f"ptr {row_table}", f"ptr {column_table}", f"i64 {count}"]
        self.call_aligned(f, "runs", arguments)

    def tile(
        self,
        f: Function,
        columns: _Columns,
        row: tuple[str, str],
        panel: Value,
        number: Value,
        first: Value,
        into: str = "%out",
        ahead: str = "null",
    ) -> None:
        """One tile: a row panel with its table, and a column panel, given which one was packed first."""
        c, where = self.cut, self.layout
        table = f.at(columns.tables, f.mul(f.sub(number, "%v0"), where.column_table))
        packed = f.at(columns.packed, f.mul(f.sub(number, first), where.column_panel))
        arguments = [
            f"ptr {row[0]}",
            f"ptr {columns.source if c.direct_columns else packed}",
            f"ptr {into}",
            f"i64 {columns.k[2]}",
            f"ptr {columns.k[0]}",
            f"ptr {row[1]}",
            f"ptr {table}",
            f"ptr {f.at(table, where.column_segments)}",
            f"i1 {columns.init}",
            f"i1 {columns.relu}",
            "ptr %start",
            f"ptr {ahead}",
        ]
        self.call_tile(f, panel, number, arguments)

    def far(self) -> bool:
        """Whether the vector operand is larger than the second cache."""
        columns = self.cut.columns
        return columns.total * self.cut.contracted.total * columns.element.width_bytes > self.target.l2_bytes

    def ask_columns(self, f: Function, columns: _Columns, local: Value, begin: Value, end: Value) -> None:
        table = f.at(columns.tables, f.mul(local, self.layout.column_table))
        f.call(
            f"{self.name}.columns.ask",
            f"ptr {columns.source}",
            f"ptr {columns.k[0]}",
            f"i64 {columns.k[2]}",
            f"ptr {f.at(table, self.layout.column_segments)}",
            f"ptr {table}",
            f"i64 {begin}",
            f"i64 {end}",
        )

    def ask_rows(self, f: Function, source: str, table: str, first: Value, last: Value) -> None:
        """The lines of some rows of the panel of this table, read where they lie, while the one before is computed."""
        c = self.cut
        rows, width = c.rows, c.rows.element.width_bytes
        large = rows.total * c.contracted.total * width > self.target.l2_bytes
        if not large or c.contracted.tabled or not c.contracted.dense(0, width):
            return

        def row(index: Value, _: list[str]) -> None:
            line = f.at(source, f.load("i64", f.at(table, f.mul(index, LANE_BYTES)), 8))
            for begin in range(0, c.kc * width, 64):
                vectors.prefetch(f, f.at(line, begin))

        f.loop(first, last, row)

    def pack_columns(self, f: Function, columns: _Columns, v0: Value, v1: Value) -> None:
        """Some of a chunk's column panels, in the order in which the operand lies in memory."""
        c, where, k = self.cut, self.layout, columns.k
        if c.direct_columns:
            return

        def table_of(number: Value) -> str:
            return f.at(columns.tables, f.mul(f.sub(number, "%v0"), where.column_table))

        if c.columns.grouped:
            groups = 1 if c.swept else f.div(f.sub(v1, v0), c.columns.pack_panels)
            self.pack(f, "columns", columns.packed, columns.source, k, table_of(v0), groups)
            return
        slab = _SLAB if c.columns.operand_dense and not c.swept else c.kc
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
        names = self.tile_names()
        last_row = f.compare("eq", row, self.cut.rows.panels - 1) if (True, False) in names else 0
        last_column = f.compare("eq", column, self.cut.columns.panels - 1) if (False, True) in names else 0

        def by_column(is_last_row: bool) -> None:
            f.when(
                last_column,
                lambda: _discard(f.call(names[is_last_row, True], *arguments)),
                lambda: _discard(f.call(names[is_last_row, False], *arguments)),
            )

        f.when(last_row, lambda: by_column(True), lambda: by_column(False))

    # ---- tasks --------------------------------------------------------------------------------------------------

    def opened(self, f: Function) -> tuple[str, list[str], str, str, str]:
        """Environment, operands, flags and the thread's memory, from a task's frame."""
        env = f.load("ptr", "%frame", 8)
        pointers = [f.load("ptr", f.at("%frame", 8 * word), 8) for word in (_ROWS, _COLUMNS, _OUT)]
        flags = [f.value(f"icmp ne i64 {f.load('i64', f.at('%frame', 8 * word), 8)}, 0") for word in (_INIT, _RELU)]
        start = f.load("ptr", f.at(env, 32), 8)
        each = f.load("i64", f.at(env, 40), 8)
        return env, pointers, flags[0], flags[1], f.at(start, f.mul("%thread", each))

    def task(self) -> None:
        c = self.cut
        f = Function(self.module, f"{self.name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        env, pointers, init, clip, memory = self.opened(f)
        shared = f.load("ptr", f.at(env, 16), 8)
        column = f.rem("%task", c.column_chunks)
        rest = f.div("%task", c.column_chunks)
        v0 = f.mul(column, c.column_panels)
        v1 = f.min(f.add(v0, c.column_panels), c.columns.panels)

        def run(pointers: list[str], row: Value, block: Value, fresh: str) -> None:
            r0 = f.mul(row, c.row_panels)
            r1 = f.min(f.add(r0, c.row_panels), c.rows.panels)
            f.call(
                f"{self.name}.block",
                f"ptr {memory}",
                f"ptr {shared}",
                *(f"ptr {p}" for p in pointers),
                *(f"i64 {v}" for v in (r0, r1, v0, v1, block)),
                f"i1 {init}",
                f"i1 {clip}",
                f"i1 {fresh}",
                f"ptr {f.load('ptr', f.at('%frame', 8 * _START), 8)}",
            )

        if c.shared:
            block = f.load("i64", f.at("%frame", 8 * _BLOCK), 8)
            run(pointers, f.load("i64", f.at("%frame", 8 * _CHUNK), 8), block, "true")
        else:
            row = f.rem(rest, c.row_chunks)
            moved = self.batched(f, pointers, f.div(rest, c.row_chunks))

            def one(block: Value, _: list[str]) -> None:
                fresh = f.compare("eq", block, 0)
                run(moved, row, block, fresh)

            f.loop(0, c.k_blocks, one)
        f.ret()

    def batched(self, f: Function, pointers: list[str], index: Value) -> list[str]:
        """The operands at a flat index of the batch axes."""
        moved = list(pointers)
        for dim in reversed(self.cut.batch):
            digit = f.rem(index, dim.extent)
            index = f.div(index, dim.extent)
            moved = [f.at(p, f.mul(digit, s)) for p, s in zip(moved, dim.strides, strict=True)]
        return moved

    def pack_task(self) -> None:
        """Packs a share of a chunk's row panels for everybody."""
        c, where = self.cut, self.layout
        f = Function(self.module, f"{self.name}.packing", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        env, pointers, _, _, memory = self.opened(f)
        shared = f.load("ptr", f.at(env, 16), 8)
        block = f.load("i64", f.at("%frame", 8 * _BLOCK), 8)
        first = f.mul(f.load("i64", f.at("%frame", 8 * _CHUNK), 8), c.row_panels)
        count = f.min(f.sub(c.rows.panels, first), c.row_panels)
        begin = f.mul("%task", _PANELS_PER_TASK)
        end = f.min(f.add(begin, _PANELS_PER_TASK), count)
        k = self.products(f, memory, block)
        source = self.source(f, pointers[0], 0, k[1])

        def one(local: Value, _: list[str]) -> None:
            table = f.at(shared, f.mul(local, where.row_table))
            self.row_tables(f, table, f.add(first, local))
            into = f.at(f.at(shared, where.shared_pack), f.mul(local, where.row_panel))
            self.pack(f, "rows", into, source, k, table)

        f.loop(begin, end, one)
        f.ret()

    # ---- the whole ----------------------------------------------------------------------------------------------

    def entry(self) -> None:
        c = self.cut
        f = Function(self.module, self.name, PARAMETERS)
        order = ("%p1", "%p0", "%p2") if c.swapped else ("%p0", "%p1", "%p2")
        pointers = [f.at(p, offset) for p, offset in zip(order, c.offsets, strict=True)]
        frame = f.slot("i64", _FRAME_WORDS)
        f.store("ptr", "%env", frame, 8)
        f.store("ptr", "%start", f.at(frame, 8 * _START), 8)
        for word, flag in ((_INIT, "%init"), (_RELU, "%relu")):
            f.store("i64", f.value(f"zext i1 {flag} to i64"), f.at(frame, 8 * word), 8)
        emit_nest(f, c.outer, pointers, lambda moved: self.phases(f, frame, moved))
        f.ret()

    def phases(self, f: Function, frame: str, pointers: list[str]) -> None:
        c = self.cut
        if not c.shared:
            self.fill(f, frame, pointers)
            self.spread(f, "task", frame, c.batches * c.row_chunks * c.column_chunks)
            return

        def batch(index: Value, _: list[str]) -> None:
            self.fill(f, frame, self.batched(f, pointers, index))
            f.loop(0, c.row_chunks, chunk)

        def chunk(index: Value, _: list[str]) -> None:
            f.store("i64", index, f.at(frame, 8 * _CHUNK), 8)
            f.loop(0, c.k_blocks, block)

        def block(index: Value, _: list[str]) -> None:
            f.store("i64", index, f.at(frame, 8 * _BLOCK), 8)
            self.spread(f, "packing", frame, -(-c.row_panels // _PANELS_PER_TASK))
            self.spread(f, "task", frame, c.column_chunks)

        f.loop(0, c.batches, batch)

    def fill(self, f: Function, frame: str, pointers: list[str]) -> None:
        for word, pointer in zip((_ROWS, _COLUMNS, _OUT), pointers, strict=True):
            f.store("ptr", pointer, f.at(frame, 8 * word), 8)

    def spread(self, f: Function, task: str, frame: str, count: int) -> None:
        """Tasks on the pool, or one after the other."""
        name = f"{self.name}.{task}"
        if self.parallel and count > 1:
            run_tasks(f, name, frame, count)
        else:

            def one(index: Value, _: list[str]) -> None:
                f.call(name, f"ptr {frame}", f"i64 {index}", "i64 %thread")

            f.loop(0, count, one)


_SLAB = 16
"""Products that are packed for all panels of a chunk before the next ones, where the operand's rows are dense."""
_PANELS_PER_TASK = 8
"""Row panels that one packing task takes."""


def _discard(_: str) -> None:
    return None
