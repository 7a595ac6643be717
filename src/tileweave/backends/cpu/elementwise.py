"""Zero, Copy and ReLU over any number of axes with any strides.

Where the output's elements are all different, the order of execution is free: axes are sorted and fused, and the axis
in which the output is dense runs in vectors; where the input is dense in another axis, squares are transposed in
registers. Otherwise the axes run in their given order, one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tileweave.backends.cpu import vectors
from tileweave.backends.cpu.elements import Element, convert, vector, zero
from tileweave.backends.cpu.ir import Function, Module, Value
from tileweave.backends.cpu.plan import Dim, Op, injective
from tileweave.backends.cpu.target import Target

__all__ = ["Shape", "canonical", "emit_elementwise", "emit_nest", "run_tasks"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Axes ready for code: none of extent 1, and bytes to add to each operand's address."""

    dims: tuple[Dim, ...]
    offsets: tuple[int, ...]
    free: bool


def canonical(op: Op) -> Shape:
    """The axes of an elementwise operation, outermost first, fused where all operands allow it.

    ``free`` says that the order of execution does not matter.
    """
    dims = [dim for dim in op.dims if dim.extent > 1]
    offsets = list(op.offsets)
    free = injective(tuple(dims), -1, op.width_bytes)
    if not free and op.kind == "Zero":
        dims = [dim for dim in dims if dim.strides[-1]]
        free = True
    if not free:
        return Shape(tuple(dims), tuple(offsets), False)
    for k, dim in enumerate(dims):
        if dim.strides[-1] < 0:
            offsets = [o + s * (dim.extent - 1) for o, s in zip(offsets, dim.strides, strict=True)]
            dims[k] = Dim(dim.extent, tuple(-s for s in dim.strides))
    return Shape(fuse(sorted(dims, key=lambda d: (-d.strides[-1], d.extent))), tuple(offsets), True)


def fuse(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Neighbours that together walk like one axis, for every operand, become one."""
    fused: list[Dim] = []
    for dim in dims:
        if fused and all(a == dim.extent * b for a, b in zip(fused[-1].strides, dim.strides, strict=True)):
            fused[-1] = Dim(fused[-1].extent * dim.extent, dim.strides)
        else:
            fused.append(dim)
    return tuple(fused)


def emit_nest(f: Function, dims: Sequence[Dim], pointers: Sequence[str], body: Callable[[list[str]], None]) -> None:
    """Loops over all axes, outermost first, around ``body``, which gets one address per operand."""
    if not dims:
        body(list(pointers))
        return
    dim = dims[0]

    def inside(index: Value, _: list[str]) -> None:
        moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
        emit_nest(f, dims[1:], moved, body)

    f.loop(0, dim.extent, inside)


_PARALLEL_BYTES = 256 * 1024
"""Operations that write less than this run on one thread."""


def emit_elementwise(
    module: Module, target: Target, name: str, op: Op, elements: tuple[Element, ...], *, parallel: bool
) -> None:
    """Add the function ``name(env, thread, operands..)`` that performs the operation.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: Zero, Copy or ReLU.
        elements: one per operand.
        parallel: whether it may use the pool.
    """
    shape = canonical(op)
    work = _Elementwise(module, target, name, op, elements, shape)
    count = len(op.operands)
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(count))])
    pointers = [f.at(f"%p{k}", offset) for k, offset in enumerate(shape.offsets)]
    tasks = prod(dim.extent for dim in work.outer)
    shared = parallel and shape.free and tasks > 1 and work.size_bytes >= _PARALLEL_BYTES
    frame = f.slot("i64", count + 2)
    for k, pointer in enumerate(pointers):
        f.store("ptr", pointer, f.at(frame, 8 * k), 8)
    shares: Value = 1
    if shared:
        shares = f.min(f.mul(f.load("i64", f.at("%env", 24), 8), 8), tasks)
    f.store("i64", shares, f.at(frame, 8 * count), 8)
    f.store("i64", work.head(f, pointers[-1]), f.at(frame, 8 * count + 8), 8)
    if shared:
        run_tasks(f, f"{name}.task", frame, shares)
    else:
        f.call(f"{name}.task", f"ptr {frame}", "i64 0", "i64 %thread")
    f.ret()
    _emit_task(module, target, name, work, tasks, count)


def _emit_task(module: Module, target: Target, name: str, work: _Elementwise, tasks: int, count: int) -> None:
    """One share of the outer axes' points."""
    g = Function(module, f"{name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    bases = [g.load("ptr", g.at("%frame", 8 * k), 8) for k in range(count)]
    shares = g.load("i64", g.at("%frame", 8 * count), 8)
    first = g.div(g.mul("%task", tasks), shares)
    last = g.div(g.mul(g.add("%task", 1), tasks), shares)

    head = g.load("i64", g.at("%frame", 8 * count + 8), 8)

    def one(index: Value, _: list[str]) -> None:
        moved, rest = list(bases), index
        block: Value = 0
        for k, dim in enumerate(reversed(work.outer)):
            digit = g.rem(rest, dim.extent) if k < len(work.outer) - 1 else rest
            rest = g.div(rest, dim.extent)
            block = digit if k == 0 else block
            moved = [g.at(p, g.mul(digit, s)) for p, s in zip(moved, dim.strides, strict=True)]
        work.inner(g, moved, block, head)

    g.loop(first, last, one)
    if work.streams:
        module.declare("llvm.x86.sse.sfence", "void {}()")
        g.emit("call void @llvm.x86.sse.sfence()")  # streamed lines are seen by whoever waits for this task
    g.ret()


def run_tasks(f: Function, task: str, frame: str, count: Value, thread: str = "%thread") -> None:
    """Run ``task(frame, 0 .. count - 1, thread)`` on the pool that the environment names."""
    pool = f.load("ptr", "%env", 8)
    run = f.load("ptr", f.at("%env", 8), 8)
    threads = f.load("i64", f.at("%env", 24), 8)
    f.call(run, f"ptr {pool}", f"ptr @{task}", f"ptr {frame}", f"i64 {count}", f"i64 {threads}", f"i64 {thread}")


def paged(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Outer axes in an order that stays among few pages of the input and of the output at a time.

    The axis that is nearest in the input and the one that is nearest in the output are both cut into short runs, and
    the runs go innermost: for a while, both tensors are walked within pages that were just used.
    """
    if len(dims) < 2 or any(len(dim.strides) != 2 for dim in dims):
        return dims
    ends = min(dims, key=lambda d: abs(d.strides[0])), min(dims, key=lambda d: d.strides[1])
    if ends[0] is ends[1]:
        return (*(dim for dim in dims if dim is not ends[0]), ends[0])
    far, near = [dim for dim in dims if dim not in ends], []
    for dim in ends:
        run = max((d for d in range(1, 17) if dim.extent % d == 0), key=lambda d: (d <= 8, d))
        far.append(Dim(dim.extent // run, tuple(run * s for s in dim.strides)))
        near.append(Dim(run, dim.strides))
    return tuple(dim for dim in (*far, *near) if dim.extent > 1)


_LONG = 8192
"""Elements of a dense axis that one piece takes; a multiple of all vectors."""
_BLOCK_BYTES = 2048
"""Bytes of the input's dense axis that one transposed piece takes: half a page."""
_STAGED_BLOCK, _STAGED_ROW_BYTES = 64, 38 * 64
"""Rows that are collected before they are written, and the most bytes of one, whole lines."""


class _Elementwise:
    """How one operation runs: outer axes, which may be cut into tasks, and what happens at each of their points."""

    def __init__(
        self, module: Module, target: Target, name: str, op: Op, elements: tuple[Element, ...], shape: Shape
    ) -> None:
        self.module = module
        self.target = target
        self.name = name
        self.op = op
        self.elements = elements
        self.out = elements[-1]
        self.lanes = target.lanes(max(e.width_bytes for e in elements))
        self.free = shape.free
        self.size_bytes = op.width_bytes * prod(dim.extent for dim in shape.dims)
        self.outer: tuple[Dim, ...] = shape.dims
        self.rest: tuple[Dim, ...] = ()
        self.crossed: Dim | None = None
        self.long = False
        self.block = 1
        self.pitch = 0
        self.after = Dim(1, (0,) * len(elements))
        self.emitted: set[str] = set()
        if self.free and shape.dims and self.dense(shape.dims[-1]):
            self.outer, self.rest = shape.dims[:-1], shape.dims[-1:]
            while len(self.outer) > 1 and self.rest[0].extent * prod(d.extent for d in self.rest[1:]) < 256:
                self.outer, self.rest = self.outer[:-1], (self.outer[-1], *self.rest)
            if len(self.rest) == 1 and op.kind == "Copy":
                self.outer = paged(self.outer)
            if len(self.rest) == 1 and self.rest[0].extent >= 2 * _LONG:
                blocks = -(-self.rest[0].extent // _LONG)
                self.long = True
                self.outer = (*self.outer, Dim(blocks, tuple(_LONG * s for s in self.rest[0].strides)))
        elif self.free and self.transposable(shape.dims):
            self.cross(shape.dims)
        elif self.free and len(shape.dims) > 1:
            self.outer, self.rest = shape.dims[:-1], shape.dims[-1:]
        elif not self.free:
            self.outer, self.rest = (), shape.dims

    def transposable(self, dims: tuple[Dim, ...]) -> bool:
        """Whether the output is dense in the last axis and the input in another one."""
        if self.op.kind == "Zero" or self.lanes == 1 or len(dims) < 2:
            return False
        dense = any(abs(dim.strides[0]) == self.elements[0].width_bytes for dim in dims[:-1])
        return dense and dims[-1].strides[-1] == self.out.width_bytes

    def cross(self, dims: tuple[Dim, ...]) -> None:
        """Cut the input's dense axis into blocks; blocks are the innermost of the outer axes."""
        width = self.elements[0].width_bytes
        at = next(k for k, dim in enumerate(dims[:-1]) if abs(dim.strides[0]) == width)
        self.crossed = dims[at]
        self.lanes = min(self.lanes, 16)
        outer, self.rest = (*dims[:at], *dims[at + 1 : -1]), dims[-1:]
        self.outer = outer
        self.block = _BLOCK_BYTES // self.out.width_bytes
        if not self.lines_fall_alike and self.size_bytes > self.target.l2_bytes:
            outer = self.stage(outer)
        blocks = Dim(-(-dims[at].extent // self.block), tuple(self.block * s for s in dims[at].strides))
        self.outer = (*paged(outer), blocks)

    def stage(self, outer: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Decide what is collected before rows are written: lines that would be written in pieces cost the most.

        A run of the axis that continues the output's dense one is collected with it. Returns the axes that are left.
        """
        along, width = self.rest[0], self.out.width_bytes
        self.block = _STAGED_BLOCK
        most = max(1, _STAGED_ROW_BYTES // (along.extent * width))
        after = next((dim for dim in outer if dim.strides[-1] == along.extent * width), None)
        if after is not None and most > 1:
            line, row = self.target.vector_bytes, along.extent * width
            runs = [d for d in range(1, most + 1) if after.extent % d == 0]
            run = max(runs, key=lambda d: (d * row % line == 0, d))
            far = Dim(after.extent // run, tuple(run * s for s in after.strides))
            outer = tuple(far if dim is after else dim for dim in outer)
            outer = tuple(dim for dim in outer if dim.extent > 1)
            self.after = Dim(run, after.strides)
        row = self.after.extent * min(along.extent, _STAGED_ROW_BYTES // width)
        self.pitch = -(-row * width // 64) * 64 + 64
        return outer

    @property
    def lines_fall_alike(self) -> bool:
        """Whether every row of a transposed output has the same place within its cache lines as the first."""
        if self.crossed is None or self.lanes * self.out.width_bytes != self.target.vector_bytes:
            return False
        strides = [*(dim.strides[-1] for dim in self.outer), self.crossed.strides[-1]]
        return all(stride % self.target.vector_bytes == 0 for stride in strides)

    @property
    def streams(self) -> bool:
        """Whether whole lines bypass the caches: the output is larger than they are, and is not read."""
        in_place = self.op.operands[0] == self.op.operands[-1]
        large = self.size_bytes >= self.target.l3_bytes and self.target.has("sse2")
        if self.pitch and self.after.extent * self.rest[0].extent * self.out.width_bytes % self.target.vector_bytes:
            return False
        return large and self.lines_fall_alike and not in_place

    def head(self, f: Function, pointer: str) -> Value:
        """How many elements of the output's dense axis come before the first line that is whole."""
        if not self.lines_fall_alike:
            return 0
        line = self.target.vector_bytes
        address = f.value(f"ptrtoint ptr {pointer} to i64")
        missing = f.value(f"and i64 {f.sub(0, address)}, {line - 1}")
        whole = f.compare("eq", f.rem(missing, self.out.width_bytes), 0)
        return f.value(f"select i1 {whole}, i64 {f.div(missing, self.out.width_bytes)}, i64 0")

    def inner(self, f: Function, pointers: list[str], block: Value, head: Value) -> None:
        """What happens at one point of the outer axes."""
        if self.crossed is not None:
            self.transposed(f, pointers, block, head)
        elif self.rest and self.free and self.dense(self.rest[-1]):
            emit_nest(f, self.rest[:-1], pointers, lambda moved: self.row(f, self.rest[-1], moved, block))
        else:
            emit_nest(f, self.rest, pointers, lambda moved: self.point(f, moved, 1, None, ()))

    # ---- transposes ---------------------------------------------------------------------------------------------

    def transposed(self, f: Function, pointers: list[str], block: Value, head: Value) -> None:
        """A block of the input's dense axis times all of the output's dense axis."""
        crossed, along = self.crossed, self.rest[0]
        if crossed is None:
            return
        count = f.min(f.sub(crossed.extent, f.mul(block, self.block)), self.block)
        if not self.pitch:
            self.strips(f, pointers[0], pointers[1], count, head, along.extent)
            return
        buffer = f.slot("i8", self.pitch * self.block)
        width = self.out.width_bytes
        piece = along.extent if self.after.extent > 1 else min(along.extent, _STAGED_ROW_BYTES // width)

        def collected(begin: Value, extent: Value) -> None:
            source = f.at(pointers[0], f.mul(begin, along.strides[0]))

            def one(index: Value, _: list[str]) -> None:
                into = f.at(buffer, f.mul(index, along.extent * width))
                self.strips(f, f.at(source, f.mul(index, self.after.strides[0])), into, count, 0, extent)

            f.loop(0, self.after.extent, one)
            start = f.at(pointers[1], f.mul(begin, width))
            length = f.mul(extent, self.after.extent)

            def rows(streaming: bool) -> None:
                def row(index: Value, _: list[str]) -> None:
                    source = f.at(buffer, f.mul(index, self.pitch))
                    self.copy(f, source, f.at(start, f.mul(index, crossed.strides[-1])), length, streaming)

                f.loop(0, count, row)

            aligned = f.compare("eq", head, 0) if self.streams else 0
            f.when(aligned, lambda: rows(True), lambda: rows(False))

        f.loop(0, along.extent, lambda x, _: collected(x, f.min(f.sub(along.extent, x), piece)), step=piece)

    def copy(self, f: Function, source: str, into: str, length: Value, streaming: bool) -> None:
        """Finished elements from one dense place to another."""
        lanes, width = self.lanes, self.out.width_bytes
        whole = f.mul(f.div(length, lanes), lanes)

        def vector(index: Value, _: list[str]) -> None:
            place = f.mul(index, width)
            value = vectors.load(f, self.out, lanes, f.at(source, place))
            vectors.store(f, self.out, lanes, value, f.at(into, place), streaming=streaming)

        def single(index: Value, _: list[str]) -> None:
            place = f.mul(index, width)
            vectors.store(f, self.out, 1, vectors.load(f, self.out, 1, f.at(source, place)), f.at(into, place))

        f.loop(0, whole, vector, step=lanes)
        f.loop(whole, length, single)

    def strips(self, f: Function, source: str, into: str, count: Value, head: Value, extent: Value) -> None:
        """All of the output's dense axis, in strips of one vector, cut where lines begin."""
        along, lanes = self.rest[0], self.lanes
        head = f.min(head, extent)
        end = f.add(head, f.mul(f.div(f.sub(extent, head), lanes), lanes))

        def strip(index: Value, live: Value) -> None:
            places = (f.at(source, f.mul(index, along.strides[0])), f.at(into, f.mul(index, along.strides[1])))
            whole = isinstance(live, int) and live == lanes
            f.call(self.strip(whole), *(f"ptr {place}" for place in places), f"i64 {count}", f"i64 {live}")

        f.when(f.compare("sgt", head, 0) if isinstance(head, str) else 0, lambda: strip(0, head))
        f.loop(head, end, lambda index, _: strip(index, lanes), step=lanes)
        left = f.sub(extent, end)
        if isinstance(left, str) or left:
            f.when(f.compare("sgt", left, 0), lambda: strip(end, left))

    def strip(self, whole: bool) -> str:
        """The function ``(source, into, count, live)``: some lanes times ``count`` elements of the crossed axis."""
        name = f"{self.name}.strip{'' if whole else '.part'}"
        crossed = self.crossed
        if name in self.emitted or crossed is None:
            return name
        self.emitted.add(name)
        f = Function(self.module, name, [("ptr", "source"), ("ptr", "into"), ("i64", "count"), ("i64", "live")])
        along, lanes = self.rest[0], self.lanes
        q = vectors.short_row(lanes, self.out.memory)
        down = crossed.strides[0] < 0
        pitch = self.pitch or crossed.strides[-1]
        squares = f.mul(f.div("%count", q), q)
        final = f.sub("%live", 1)
        places = [f.mul(lane if whole else f.min(lane, final), along.strides[0]) for lane in range(lanes)]
        mask = None if whole else vectors.mask_below(f, "%live", lanes)

        def square(index: Value, _: list[str]) -> None:
            start = f.at("%source", f.mul(index, crossed.strides[0]))
            if down:
                start = f.at(start, (q - 1) * crossed.strides[0])
            rows = []
            for place in places:
                value = vectors.load(f, self.elements[0], q, f.at(start, place))
                rows.append(self.meaning(f, [value], q))
            upright = vectors.transpose(f, self.out.memory, lanes, rows)
            for t, value in enumerate(reversed(upright) if down else upright):
                into = f.at("%into", f.mul(f.add(index, t), pitch))
                vectors.store(
                    f, self.out, lanes, value, into, mask, streaming=whole and self.streams and not self.pitch
                )

        f.loop(0, squares, square, step=q)

        def single(index: Value, _: list[str]) -> None:
            def element(lane: Value, _: list[str]) -> None:
                moved = [
                    f.at(p, f.add(f.mul(index, a), f.mul(lane, b)))
                    for p, a, b in zip(("%source", "%into"), (crossed.strides[0], pitch), along.strides, strict=True)
                ]
                self.point(f, moved, 1, None, ())

            f.loop(0, "%live", element)

        f.loop(squares, "%count", single)
        f.ret()
        return name

    # ---- rows ---------------------------------------------------------------------------------------------------

    def dense(self, dim: Dim) -> bool:
        """Whether vectors may run along an axis: the output is dense in it, inputs are dense or stand still."""
        if dim.strides[-1] != self.out.width_bytes or self.lanes == 1:
            return False
        pairs = zip(dim.strides[:-1], self.elements[:-1], strict=True)
        return all(stride in (0, e.width_bytes) for stride, e in pairs)

    def row(self, f: Function, dim: Dim, pointers: list[str], block: Value) -> None:
        """One axis in vectors, or a block of it; the last vector is masked."""
        lanes, left = self.lanes, dim.extent % self.lanes
        still = tuple(stride == 0 for stride in dim.strides[:-1])
        whole: Value = dim.extent - left
        if self.long:
            whole = f.min(f.sub(whole, f.mul(block, _LONG)), _LONG)

        def step(index: Value, _: list[str]) -> None:
            moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
            self.point(f, moved, lanes, None, still)

        def tail() -> None:
            moved = [f.at(p, f.mul(whole, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
            if left == 1:
                # a lone lane: LLVM 22 widens a masked store of narrowed values whose constant mask has one lane
                self.point(f, moved, 1, None, still)
            else:
                self.point(f, moved, lanes, vectors.mask_of(left, lanes), still)

        f.loop(0, whole, step, step=lanes)
        if left:
            last = f.compare("eq", block, -(-dim.extent // _LONG) - 1) if self.long else 1
            f.when(last, tail)

    def point(
        self,
        f: Function,
        pointers: list[str],
        lanes: int,
        mask: str | None,
        still: tuple[bool, ...],
    ) -> None:
        """One element, or one vector of them."""
        values = []
        for k, (pointer, element) in enumerate(zip(pointers[:-1], self.elements[:-1], strict=True)):
            if lanes > 1 and still[k]:
                one = f.load(element.memory, pointer, element.width_bytes)
                values.append(vectors.broadcast(f, element.memory, lanes, one))
            else:
                values.append(vectors.load(f, element, lanes, pointer, mask))
        vectors.store(f, self.out, lanes, self.meaning(f, values, lanes), pointers[-1], mask)

    def meaning(self, f: Function, values: list[str], lanes: int) -> str:
        """The value that is written."""
        if self.op.kind == "Zero":
            return zero(self.out, lanes)
        if self.op.kind == "Copy":
            return convert(f, self.target, values[0], self.elements[0], self.out, lanes)
        return relu(f, values[0], self.out, lanes)


def relu(f: Function, value: str, element: Element, lanes: int) -> str:
    """``max(value, 0)`` with NaN kept."""
    full = vector(element.memory, lanes)
    nothing = zero(element, lanes)
    if not element.floating:
        keep = f.value(f"icmp sgt {full} {value}, {nothing}")
    elif element.plain:
        keep = f.value(f"fcmp ugt {full} {value}, {nothing}")
    else:
        return _relu_bits(f, value, element, lanes)
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {nothing}")


def _relu_bits(f: Function, value: str, element: Element, lanes: int) -> str:
    """The same on the bits of BF16 and FP16: negative numbers become zero, negative NaNs do not."""
    infinity = 0xFF80 if element.name == "BF16" else 0xFC00
    full = vector("i16", lanes)
    bound = str(infinity - 65536)
    limit = bound if lanes == 1 else "<" + ", ".join(f"i16 {bound}" for _ in range(lanes)) + ">"
    positive = f.value(f"icmp sge {full} {value}, {zero(element, lanes)}")
    nan = f.value(f"icmp ugt {full} {value}, {limit}")
    keep = f.value(f"or {vector('i1', lanes)} {positive}, {nan}")
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {zero(element, lanes)}")
