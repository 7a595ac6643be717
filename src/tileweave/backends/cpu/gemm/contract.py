"""Contractions: sums of products over any axes with any strides.

The scalar form runs every axis as a loop, in the given order, and is the fallback for a contraction that reads the
tensor it writes. All others are cut (`gett`), and their blocks (`chunk`) become tasks of threads.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from tileweave.backends.cpu.gemm.block import BlockWriter
from tileweave.backends.cpu.gemm.blocking import (
    PARALLEL_WORK,
    ProductBlocking,
    axes_of,
    cut_near,
    tile_of,
    with_sizes,
)
from tileweave.backends.cpu.gemm.gett import block_product
from tileweave.backends.cpu.gemm.tiny import emit_straight, straight
from tileweave.backends.cpu.llvm.elements import Element, convert
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import constants, emit_nest, run_tasks
from tileweave.backends.cpu.llvm.products import multiply_add
from tileweave.backends.cpu.memory import rounded
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import shared, unrecorded
from tileweave.teir.merged.form import MergedOp, Mode, sizes_of
from tileweave.teir.merged.form import with_sizes as with_numbers

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
"""Contractions of less work than this run on one thread."""


@dataclass
class Workspace:
    """Working memory that the operations of a program ask for; they run one after the other and share it."""

    shared_bytes: int = 0
    thread_bytes: int = 0

    def reserve(self, shared_bytes: int, thread_bytes: int) -> None:
        """Have at least so much."""
        self.shared_bytes = max(self.shared_bytes, shared_bytes)
        self.thread_bytes = max(self.thread_bytes, thread_bytes)


def emit_contraction(
    module: Module,
    target: Target,
    name: str,
    op: MergedOp,
    elements: tuple[Element, ...],
    memory: Workspace,
    *,
    names: Sequence[str],
    threads: int,
    settings: Settings = DEFAULT,
    start: bool = False,
    alone: bool = False,
) -> tuple[str, ...]:
    """Add the function ``name(env, thread, in0, in1, out, init, relu, start)``; how it works, in a few lines.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: a Contraction.
        elements: of in0, in1 and out; sums are formed in the type of out.
        memory: grows by what the operation needs.
        names: of in0 and in1, for people.
        threads: how many it may use; 1 inside a parallel region.
        settings: wishes for how it is cut.
        start: whether sums that are stored begin with a row, which the columns alone walk as they walk the output.
        alone: whether other threads may be in the function too, as in a parallel region: what the tasks of one call
            share then lies in the memory of its thread.
    """
    decided = block_product(as_numbers(op), elements, target, threads, settings)
    if module.sizes is None and not start and straight(decided):
        several = threads > 1 and decided.work >= PARALLEL_WORK
        how = emit_straight(module, target, name, PARAMETERS, op, decided, parallel=several)
        return (*decided.explain(names), how)
    block = BlockWriter(module, target, name, op, decided, start)
    layout = block.layout
    notes = (*decided.explain(names), block.explain())
    if module.sizes is not None:
        size = module.sizes.parameter
        if module.sizes.follows:
            first, like = decided, with_numbers(op, [0] * len(sizes_of(op)))
            which = axes_of(first)[0], tile_of(first)[0]
            blocked = shared(_blocked, like, elements, target, threads, settings)

            def numbers(given: tuple[int, ...], near: float) -> tuple[int, ...] | None:
                c, (axes, extents), (tile, own) = blocked(given)
                if axes != which[0]:
                    return None
                blocks = own if tile == which[1] else cut_near(c, first, near, starts=start) if near else None
                return None if blocks is None else (*extents, *blocks)

            found = iter(module.sizes.answers(numbers, sizes_of(op)))
            decided = with_sizes(decided, lambda _: size(next(found)))
        else:
            decided = with_sizes(decided, size)
        block = BlockWriter(module, target, name, op, decided, start)
        module.sizes.results = (block.layout.shared_bytes, block.layout.thread_bytes)
        layout = block.layout if module.sizes.follows else layout
    if alone:
        memory.reserve(0, rounded(layout.thread_bytes) + layout.shared_bytes)
    else:
        memory.reserve(layout.shared_bytes, layout.thread_bytes)
    _Emitter(module, name, decided, block, threads, alone).emit()
    return notes


def _blocked(
    like: MergedOp, elements: tuple[Element, ...], target: Target, threads: int, how: Settings, sizes: tuple[int, ...]
) -> tuple[ProductBlocking, tuple[Hashable, list[int]], tuple[Hashable, list[int]]]:
    """How a product of some sizes is blocked, its axes and its tile."""
    c = block_product(with_numbers(like, sizes), elements, target, threads, how)
    return c, axes_of(c), tile_of(c)


def as_numbers(op: MergedOp) -> MergedOp:
    """The operation of sizes that may be followed, of whose use nothing is recorded."""
    return with_numbers(op, list(map(unrecorded, sizes_of(op))))


def may_start(op: MergedOp, elements: tuple[Element, ...], target: Target, threads: int, settings: Settings) -> bool:
    """Whether the sums of a contraction may begin with its fourth operand: a row that its columns alone walk.

    The row then lies, vector by vector, as far from its base as the output's vectors from theirs.
    """
    if op.operands[2] in op.operands[:2] or elements[3] != elements[2]:
        return False
    if not (_starts_along(op, 0) or _starts_along(op, 1)):
        return False
    alone = without_start(op)
    sizes = tuple(sizes_of(alone))
    blocked = shared(_blocked, with_numbers(alone, [0] * len(sizes)), elements[:3], target, threads, settings)
    return starts_in(op, blocked(sizes)[0])


def may_start_of(
    like: MergedOp, elements: tuple[Element, ...], target: Target, threads: int, how: Settings, sizes: tuple[int, ...]
) -> bool:
    """`may_start` for an operation of these sizes."""
    return may_start(with_numbers(like, sizes), elements, target, threads, how)


def starts_in(op: MergedOp, c: ProductBlocking) -> bool:
    """As `may_start`, of a contraction whose tensors allow it, cut in some way."""
    columns, v = c.columns, 0 if c.swapped else 1
    if c.outer or not columns.output_dense or columns.segments > 1 or columns.lanes == 1:
        return False
    return _starts_along(op, v)


def _starts_along(op: MergedOp, v: int) -> bool:
    """Whether the fourth operand lies along the output's columns, those of operand ``v``, and nowhere else."""
    return all(
        dim.strides[3] == (dim.strides[2] if dim.strides[v] and not dim.strides[1 - v] else 0) and dim.strides[3] >= 0
        for dim in op.modes
        if dim.extent > 1
    )


def without_start(op: MergedOp) -> MergedOp:
    """The contraction alone."""
    if len(op.operands) == 3:
        return op
    modes = tuple(Mode(mode.extent, mode.strides[:3]) for mode in op.modes)
    return replace(op, operands=op.operands[:3], offsets=op.offsets[:3], modes=modes)


def emit_scalar(module: Module, target: Target, name: str, op: MergedOp, elements: tuple[Element, ...]) -> None:
    """Add the same function for a contraction that reads what it writes: one product after the other, in order."""
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

    emit_nest(f, constants([d for d in op.modes if d.extent > 1]), pointers, point)
    f.ret()


# words of the frame that tasks read
_ENV, _ROWS, _COLUMNS, _OUT, _INIT, _RELU, _BLOCK, _CHUNK, _START, _FRAME_WORDS = range(10)


class _Emitter:
    """Writes the functions of one contraction."""

    def __init__(
        self,
        module: Module,
        name: str,
        c: ProductBlocking,
        chunk: BlockWriter,
        threads: int,
        alone: bool,
    ) -> None:
        self.module = module
        self.name = name
        self.cut = c
        self.chunk = chunk
        self.parallel = threads > 1
        self.alone = alone

    def emit(self) -> None:
        self.chunk.emit()
        if self.cut.shared:
            self.pack_task()
        self.task()
        self.entry()

    # ---- tasks --------------------------------------------------------------------------------------------------

    def opened(self, f: Function) -> tuple[str, list[str], str, str, str]:
        """What tasks share, operands, flags and the thread's memory, from a task's frame."""
        env = f.load("ptr", "%frame", 8)
        pointers = [f.load("ptr", f.at("%frame", 8 * word), 8) for word in (_ROWS, _COLUMNS, _OUT)]
        flags = [f.value(f"icmp ne i64 {f.load('i64', f.at('%frame', 8 * word), 8)}, 0") for word in (_INIT, _RELU)]
        start = f.load("ptr", f.at(env, 32), 8)
        each = f.load("i64", f.at(env, 40), 8)
        memory = f.at(start, f.mul("%thread", each))
        if self.alone:
            shared = f.at(memory, rounded(self.chunk.layout.thread_bytes))
        else:
            shared = f.load("ptr", f.at(env, 16), 8)
        return shared, pointers, flags[0], flags[1], memory

    def task(self) -> None:
        c = self.cut
        f = Function(self.module, f"{self.name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        shared, pointers, init, clip, memory = self.opened(f)
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
        """Packs a share of a chunk's row panels for everybody: a block of K, the first one where others follow."""
        c, chunk, where = self.cut, self.chunk, self.chunk.layout
        f = Function(self.module, f"{self.name}.packing", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        shared, pointers, _, _, memory = self.opened(f)
        block = f.load("i64", f.at("%frame", 8 * _BLOCK), 8)
        first = f.mul(f.load("i64", f.at("%frame", 8 * _CHUNK), 8), c.row_panels)
        count = f.min(f.sub(c.rows.panels, first), c.row_panels)
        begin = f.mul("%task", _PANELS_PER_TASK)
        end = f.min(f.add(begin, _PANELS_PER_TASK), count)
        k = chunk.products(f, memory, block)
        source = chunk.source(f, pointers[0], 0, k[1])

        def one(local: Value, _: list[str]) -> None:
            table = f.at(shared, f.mul(local, where.row_table))
            chunk.row_tables(f, table, f.add(first, local))
            into = f.at(chunk.packed_rows(f, shared, block), f.mul(local, where.row_panel))
            chunk.pack(f, "rows", into, source, k, table)

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
            if c.ahead:
                pack(0)
            f.loop(0, c.k_blocks, block)

        def pack(block: Value) -> None:
            f.store("i64", block, f.at(frame, 8 * _BLOCK), 8)
            self.spread(f, "packing", frame, -(-c.row_panels // _PANELS_PER_TASK))

        def block(index: Value, _: list[str]) -> None:
            if c.ahead:
                f.store("i64", index, f.at(frame, 8 * _BLOCK), 8)
            else:
                pack(index)
            self.spread(f, "task", frame, c.column_chunks)

        f.loop(0, c.batches, batch)

    def fill(self, f: Function, frame: str, pointers: list[str]) -> None:
        for word, pointer in zip((_ROWS, _COLUMNS, _OUT), pointers, strict=True):
            f.store("ptr", pointer, f.at(frame, 8 * word), 8)

    def spread(self, f: Function, task: str, frame: str, count: int) -> None:
        """Tasks on the pool, or one after the other."""
        name = f"{self.name}.{task}"

        def one(index: Value, _: list[str]) -> None:
            f.call(name, f"ptr {frame}", f"i64 {index}", "i64 %thread")

        several = f.both(f.above(self.cut.work, PARALLEL_WORK - 1), f.above(count, 1)) if self.parallel else 0
        f.when(several, lambda: run_tasks(f, name, frame, count), lambda: f.loop(0, count, one))


_PANELS_PER_TASK = 8
"""Row panels that one packing task takes."""
