"""Transposes: the output is dense in one axis and the input in another.

Squares are transposed in registers. Rows of the output that begin at different places within their cache lines are
collected first, so that lines are written whole.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tileweave.backends.cpu import vectors
from tileweave.backends.cpu.elements import Element
from tileweave.backends.cpu.ir import Function, Module, Value
from tileweave.backends.cpu.loops import PARALLEL_BYTES, emit_points
from tileweave.backends.cpu.plan import Dim
from tileweave.backends.cpu.target import Target

__all__ = ["emit_transpose", "paged", "transposable"]

Meaning = Callable[[Function, str, int], str]
"""What is written, from the function, what was read, and its lanes."""

_BLOCK_BYTES = 2048
"""Bytes of the input's dense axis that one transposed piece takes: half a page."""
_STAGED_BLOCK, _STAGED_ROW_BYTES = 64, 38 * 64
"""Rows that are collected before they are written, and the most bytes of one, whole lines."""


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


def transposable(target: Target, dims: tuple[Dim, ...], elements: tuple[Element, ...]) -> bool:
    """Whether the output is dense in the last axis and the only input in another one."""
    if len(elements) != 2 or target.lanes(max(e.width_bytes for e in elements)) == 1 or len(dims) < 2:
        return False
    dense = any(abs(dim.strides[0]) == elements[0].width_bytes for dim in dims[:-1])
    return dense and dims[-1].strides[-1] == elements[-1].width_bytes


def emit_transpose(
    f: Function,
    target: Target,
    dims: tuple[Dim, ...],
    elements: tuple[Element, ...],
    pointers: list[str],
    meaning: Meaning,
    *,
    parallel: bool,
) -> None:
    """Add the code that reads, maps and writes all elements.

    Args:
        f: the function that does it; it is called with ``env`` and ``thread``.
        target: the processor.
        dims: `transposable` axes, whose order of execution is free; the input shares no byte with the output.
        elements: of the input and the output.
        pointers: the operands' addresses.
        meaning: what is written.
        parallel: whether it may use the pool.
    """
    work = _Transposed(f.module, target, f.name, dims, elements, meaning)
    fence = ""
    if work.streams:
        f.module.declare("llvm.x86.sse.sfence", "void {}()")
        fence = "call void @llvm.x86.sse.sfence()"  # streamed lines are seen by whoever waits for the task
    shared = parallel and work.size_bytes >= PARALLEL_BYTES
    head = work.head(f, pointers[-1])
    emit_points(f, work.outer, pointers, work.inner, parallel=shared, words=[head], last=fence)


class _Transposed:
    """Outer axes, and what happens at each of their points."""

    def __init__(
        self,
        module: Module,
        target: Target,
        name: str,
        dims: tuple[Dim, ...],
        elements: tuple[Element, ...],
        meaning: Meaning,
    ) -> None:
        self.module = module
        self.target = target
        self.name = name
        self.elements = elements
        self.meaning = meaning
        self.out = elements[-1]
        self.lanes = min(target.lanes(max(e.width_bytes for e in elements)), 16)
        self.size_bytes = self.out.width_bytes * prod(dim.extent for dim in dims)
        self.pitch = 0
        self.after = Dim(1, (0,) * len(elements))
        self.emitted: set[str] = set()
        at = next(k for k, dim in enumerate(dims[:-1]) if abs(dim.strides[0]) == elements[0].width_bytes)
        self.crossed, self.along = dims[at], dims[-1]
        outer = self.outer = (*dims[:at], *dims[at + 1 : -1])
        self.block = _BLOCK_BYTES // self.out.width_bytes
        if not self.lines_fall_alike and self.size_bytes > target.l2_bytes:
            outer = self.stage(outer)
        blocks = Dim(-(-dims[at].extent // self.block), tuple(self.block * s for s in dims[at].strides))
        self.outer = (*paged(outer), blocks)

    def stage(self, outer: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Decide what is collected before rows are written: lines that would be written in pieces cost the most.

        A run of the axis that continues the output's dense one is collected with it. Returns the axes that are left.
        """
        along, width = self.along, self.out.width_bytes
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
        if self.lanes * self.out.width_bytes != self.target.vector_bytes:
            return False
        strides = [*(dim.strides[-1] for dim in self.outer), self.crossed.strides[-1]]
        return all(stride % self.target.vector_bytes == 0 for stride in strides)

    @property
    def streams(self) -> bool:
        """Whether whole lines bypass the caches: the output is larger than they are, and is not read."""
        large = self.size_bytes >= self.target.l3_bytes and self.target.has("sse2")
        if self.pitch and self.after.extent * self.along.extent * self.out.width_bytes % self.target.vector_bytes:
            return False
        return large and self.lines_fall_alike

    def head(self, f: Function, pointer: str) -> Value:
        """How many elements of the output's dense axis come before the first line that is whole."""
        if not self.lines_fall_alike:
            return 0
        line = self.target.vector_bytes
        address = f.value(f"ptrtoint ptr {pointer} to i64")
        missing = f.value(f"and i64 {f.sub(0, address)}, {line - 1}")
        whole = f.compare("eq", f.rem(missing, self.out.width_bytes), 0)
        return f.value(f"select i1 {whole}, i64 {f.div(missing, self.out.width_bytes)}, i64 0")

    def inner(self, f: Function, pointers: list[str], digits: list[Value]) -> None:
        """A block of the input's dense axis times all of the output's dense axis."""
        block, head = digits[-2:]
        crossed, along = self.crossed, self.along
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
        along, lanes = self.along, self.lanes
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
        if name in self.emitted:
            return name
        self.emitted.add(name)
        f = Function(self.module, name, [("ptr", "source"), ("ptr", "into"), ("i64", "count"), ("i64", "live")])
        along, lanes = self.along, self.lanes
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
                rows.append(self.meaning(f, value, q))
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
                value = vectors.load(f, self.elements[0], 1, moved[0])
                vectors.store(f, self.out, 1, self.meaning(f, value, 1), moved[1])

            f.loop(0, "%live", element)

        f.loop(squares, "%count", single)
        f.ret()
        return name
