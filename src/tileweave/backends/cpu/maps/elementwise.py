"""Chains of operations over one set of axes, with any strides: elementwise operations, and reductions behind them.

At every point of the axes, the stages of a chain run one after the other in registers: a tile that one stage writes and
the next one reads is stored once and never read. Where the order of points is free, axes are sorted and fused, and the
axis in which most operands are dense runs in vectors. Otherwise the axes run in their given order, one element at a
time.

How reductions are formed, `tileweave.backends.cpu.maps.sums` says: in an order that depends on extents, strides and the
processor, never on threads. Rows of an operand that no cache holds are taken two at a time, from both its halves: as
two streams from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES, constants, emit_nest, emit_points
from tileweave.backends.cpu.llvm.meanings import CHEAP, HEAVY, Registers, wide_of
from tileweave.backends.cpu.maps.blocks import LONG_ROW_BYTES, paged
from tileweave.backends.cpu.maps.order import Shape, shape_of, with_sizes
from tileweave.backends.cpu.maps.pieces import MOST_BYTES, SplitReduction, pieces_of
from tileweave.backends.cpu.maps.points import Points
from tileweave.backends.cpu.maps.sums import Along, moved_by, reduction_of
from tileweave.backends.cpu.maps.tiles import PIECE, RUN, Crossing, crossing_of, emit_tiles
from tileweave.backends.cpu.maps.transpose import emit_transpose, transposable
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import above, known, plain
from tileweave.teir.merged.form import MONOIDS, MergedOp, Mode, Stage
from tileweave.teir.merged.order import Pairs


def emit_elementwise(
    module: Module,
    target: Target,
    name: str,
    op: MergedOp,
    elements: tuple[Element, ...],
    rivals: Pairs,
    *,
    parallel: bool,
    totals: frozenset[int] = frozenset(),
) -> None:
    """Add the function ``name(env, thread, operands..)`` that performs a chain.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: any operation but a Contraction that is not a stage.
        elements: one per operand.
        rivals: operands that may lie in the same memory.
        parallel: whether it may use the pool.
        totals: operands that take totals, in FP64, of sums whose pieces are formed in FP32.
    """
    shape = shape_of(op, elements, rivals, target)
    names = [f"p{k}" for k in range(len(op.operands))]
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), *(("ptr", p) for p in names)])
    pointers = [f.at(f"%{p}", plain(offset)) for p, offset in zip(names, shape.offsets, strict=True)]
    stages = op.stages
    if not shape.free:
        points = Points(target, op, elements, rivals, shape.along.strides)
        emit_nest(f, constants(shape.dims), pointers, lambda moved: points.literal(f, moved))
    elif _maps(stages) and transposable(target, shape.dims, elements, plain=_plain(stages, elements)):
        only = stages[0]

        def meaning(g: Function, value: str, lanes: int) -> str:
            return Registers(g, target, lanes).value(only.kind, [(value, elements[0])], elements[1])

        emit_transpose(f, target, shape.dims, elements, pointers, meaning, parallel=parallel)
    else:
        few = prod(dim.extent for dim in shape.outer) < _FEW
        pieces = pieces_of(op, elements, totals) if parallel and few else None
        if pieces is not None:
            _emit_pieces(f, target, pieces, rivals)
            f.ret()
            return
        if module.sizes is not None:
            shape = with_sizes(shape, elements, module.sizes)
        chain = _Chain(target, op, elements, rivals, shape, totals)
        if not chain.outer:
            chain.inner(f, pointers, [])
            f.ret()
            return
        seen = ""
        if chain.streamed is not None:  # whoever waits for the task sees what it has streamed
            module.declare("llvm.x86.sse.sfence", "void {}()")
            seen = "call void @llvm.x86.sse.sfence()"
        many = parallel and chain.cost >= PARALLEL_BYTES
        emit_points(f, chain.outer, pointers, chain.inner, parallel=many, last=seen)
    f.ret()


def _emit_pieces(f: Function, target: Target, pieces: SplitReduction, rivals: Pairs) -> None:
    """Partial results, then what they come to; each in a function of its own."""
    sizes = f.module.sizes

    def word(offset: int) -> int:
        return offset if sizes is None or (known(offset) and not offset) else sizes.parameter(offset)

    held = f.slot("i8", pieces.size_bytes if sizes is None else MOST_BYTES)
    starts = {o: f.at(held, word(place)) for o, place in zip(pieces.results, pieces.places, strict=True)}
    operands = [starts.get(o, f"%p{o}") for o in range(len(pieces.part_elements))]
    for k, part in enumerate(pieces.parts):
        name = f"{f.name}.part{k}"
        types, totals = pieces.part_elements, pieces.totals
        emit_elementwise(f.module, target, name, part, types, rivals, parallel=k == 0, totals=totals)
        given = [f.at(p, word(over)) for p, over in zip(operands, pieces.over_by, strict=True)] if k else operands
        f.call(name, "ptr %env", "i64 %thread", *(f"ptr {p}" for p in given))
    name = f"{f.name}.whole"
    emit_elementwise(f.module, target, name, pieces.whole, pieces.whole_elements, frozenset(), parallel=False)
    results = [f"ptr {p}" for o in pieces.results for p in (starts[o], f"%p{o}")]
    f.call(name, "ptr %env", "i64 %thread", *results)


def _bisected(dim: Mode) -> tuple[Mode, tuple[int, ...]]:
    """The first half of an axis, which is the longer one, and the strides from there to the second one."""
    extent = -(-dim.extent // 2)
    return Mode(extent, dim.strides), tuple(extent * stride for stride in dim.strides)


def _maps(stages: tuple[Stage, ...]) -> bool:
    """Whether all there is to do is to write a function of one operand to another."""
    only = stages[0]
    return len(stages) == 1 and only.inputs == (0,) and not only.reads_output and only.kind not in MONOIDS


def _plain(stages: tuple[Stage, ...], elements: tuple[Element, ...]) -> bool:
    """Whether values are written as they were read."""
    return stages[0].kind == "Copy" and elements[0] == elements[-1]


_LONG, _SLICE = 8192, 1024
"""Elements of the vectors' axis that one slice takes: of what is short at each, and of functions of dozens of
instructions, of which so many keep a thread busy, or with a reduction along other axes."""
_WIDE_BYTES = 64
"""Functions of dozens of instructions take two vectors at once where vectors are narrower than this: their instructions
alternate, since each waits for the one before, and so many of one vector fill what the processor looks ahead (tanh of a
Zen 3 takes 0.8 of the time; two vectors one after the other gain nothing)."""
_GATHERED = 16
"""Most elements of a vector that are gathered or scattered one by one."""
_FEW = 16
"""Results of a reduction that are no work for many threads."""
_ENOUGH = 256
"""Elements that make the start of a piece worth its while."""
_APART_BYTES = 1 << 16
"""Between two places that are read as streams of their own, at least."""


@dataclass(frozen=True, slots=True)
class _Twins:
    """Points of an outer axis that are taken two at a time: one of its first half with one of its second half.

    Args:
        at: the place of the axis among the outer ones, where it has as many points as its first half.
        count: how many points have a twin; the last one has none where the whole is odd.
        strides: from a point to its twin.
    """

    at: int
    count: int
    strides: tuple[int, ...]


class _Chain:
    """How a chain runs: outer axes, which may be cut into tasks, and what happens at each of their points."""

    def __init__(
        self,
        target: Target,
        op: MergedOp,
        elements: tuple[Element, ...],
        rivals: Pairs,
        shape: Shape,
        totals: frozenset[int],
    ) -> None:
        self.target = target
        self.elements = elements
        self.rivals = rivals
        self.stages = op.stages
        self.dropped = op.dropped
        self.points = Points(target, op, elements, rivals, shape.along.strides, totals)
        self.begun = frozenset(stage.output for stage in self.points.reductions if stage.fresh is not None)
        self.heavy = any(stage.kind in HEAVY for stage in self.stages)
        width = max(e.width_bytes for e in elements)
        self.cost = (4 if self.heavy else 1) * width * prod(dim.extent for dim in shape.dims)
        self.along, self.sums, outer = shape.along, shape.sums, shape.outer
        self.across = bool(self.points.reductions) and not shape.sums_along
        self.lanes = self.most_lanes()
        self.unroll = self.vectors_at_once()
        self.crossing, self.crossed_at = None, 0
        if not self.points.reductions:
            self.crossing = crossing_of(self.along, outer, self.stages, elements, rivals, self.lanes)
        if self.crossing is None and target.vector_bytes < _WIDE_BYTES:
            self.fill_what_is_written()
        self.halves = not (self.points.reductions or self.heavy or target.masks_stores)
        self.streamed = self.streams(shape.dims)
        self.asks = not target.fetches_ahead and above(self.moved_bytes(shape.dims), target.l2_bytes)
        near = list[Mode]()
        if self.crossing is not None:
            self.crossed_at, cross = outer.index(self.crossing.dim), self.crossing.dim
            runs = Mode(-(-cross.extent // RUN), tuple(RUN * s for s in cross.strides))
            outer = tuple(runs if dim is cross else dim for dim in outer)
        else:
            size = self.along.extent * prod(dim.extent for dim in self.sums)
            while len(outer) > 1 and size < _ENOUGH and self.streamed is None:
                near.insert(0, outer[-1])
                size, outer = size * outer[-1].extent, outer[:-1]
        self.near = tuple(near)
        if self.crossing is not None:
            self.outer = outer
        elif self.streamed is not None:
            self.outer = self.as_read(outer)
        else:
            self.outer = outer if self.near or self.across or self.points.reductions else paged(outer)
        self.piece = 0
        step = self.lanes * self.unroll
        most = PIECE if self.crossing is not None else _SLICE if self.across or self.heavy else _LONG
        longest = -(-most // step) * step
        if not shape.sums_along and self.along.extent >= 2 * longest and not self.near:
            self.piece = longest
            pieces = -(-self.along.extent // longest)
            self.outer = (*self.outer, Mode(pieces, tuple(longest * s for s in self.along.strides)))
        if not self.outer:
            self.streamed = None
        self.twins = self.twins_of(shape)
        if self.twins is not None:
            at = self.twins.at
            self.outer = (*self.outer[:at], _bisected(self.outer[at])[0], *self.outer[at + 1 :])
            self.unroll = max(1, self.unroll // 2)
        read, written = self.read(), self.written()
        wanted = sorted(read | written) if self.asks and not self.across else ()
        ahead = tuple([(o, elements[o].width_bytes, o in written) for o in wanted])
        few = self.few if self.halves else None
        self.vectors = Along(self.along, self.lanes, self.unroll, self.piece, ahead, few, halving=self.across)
        self.reduction = None
        if self.points.reductions:
            dims, begun = self.sums, self.begun
            self.reduction = reduction_of(
                self.points, self.vectors, dims, begun, 2 * longest, across=self.across, heavy=self.heavy
            )

    def twins_of(self, shape: Shape) -> _Twins | None:
        """How to read a large operand of sums as two streams, which memory brings faster than one; None for others."""
        given = {o for stage in self.stages for o in stage.inputs} - {stage.output for stage in self.stages}
        moved = [self.elements[o].width_bytes * prod(dim.extent for dim in shape.dims if dim.strides[o]) for o in given]
        few = prod(dim.extent for dim in self.outer) < 4 * _FEW
        if not shape.sums_along or few or not moved or max(moved) < self.target.l3_bytes:
            return None
        for at, dim in enumerate(self.outer):
            half, strides = _bisected(dim)
            if half.extent > 1 and max(abs(strides[o]) for o in given) >= _APART_BYTES:
                return _Twins(at, dim.extent // 2, strides)
        return None

    def read(self) -> set[int]:
        """The operands that are read from memory."""
        before = {stage.output for stage in self.stages if stage.reads_output}
        return (before | {o for stage in self.stages for o in stage.inputs}) - self.dropped

    def written(self) -> set[int]:
        """The operands that are written to memory."""
        return {stage.output for stage in self.stages} - self.dropped

    def moved_bytes(self, dims: Sequence[Mode]) -> int:
        """Bytes of memory that are read and written."""
        return sum(
            self.elements[o].width_bytes * prod(dim.extent for dim in dims if dim.strides[o])
            for o in sorted(self.read() | self.written())
        )

    def streams(self, dims: Sequence[Mode]) -> int | None:
        """The output that goes past the caches: the only one, read by nothing, where the last one does not hold all.

        What is read and written would drive each other out; where the cache holds all of it, the next reader finds it.
        """
        stored = self.written()
        if self.crossing is not None or self.points.reductions or len(stored) != 1 or stored & self.read():
            return None
        o = stored.pop()
        width = self.elements[o].width_bytes
        large = self.moved_bytes(dims) >= self.target.l3_bytes and self.along.extent * width >= LONG_ROW_BYTES
        whole = self.along.strides[o] == width and self.lanes * width % self.target.vector_bytes == 0
        return o if large and whole and self.target.has("sse2") else None

    def as_read(self, outer: tuple[Mode, ...]) -> tuple[Mode, ...]:
        """Outer axes in the order of what is read: what is written past the caches may come in any."""
        return tuple(sorted(outer, key=lambda dim: -max((abs(dim.strides[o]) for o in self.read()), default=0)))

    def most_lanes(self) -> int:
        """Elements per vector: as the widest type asks for that is computed with, and no more than there are."""
        plain = all(stage.kind in CHEAP for stage in self.stages)
        lanes = self.target.lanes(max((e if plain else wide_of(e)).width_bytes for e in self.elements))
        pairs = zip(self.along.strides, self.elements, strict=True)
        if any(stride not in (0, one.width_bytes) for stride, one in pairs):
            lanes = min(lanes, _GATHERED)
        if self.heavy and self.target.vector_bytes < _WIDE_BYTES:
            lanes *= 2
        while lanes > 1 and lanes // 2 >= self.along.extent:
            lanes //= 2
        return lanes

    def vectors_at_once(self) -> int:
        """Vectors per turn of the innermost loop, a power of two."""
        most = 8 if self.points.reductions else 4
        if self.heavy:
            most = 1 if self.target.vector_bytes < _WIDE_BYTES and not self.points.reductions else 2
        while most > 1 and most * self.lanes > self.along.extent:
            most //= 2
        return most

    def fill_what_is_written(self) -> None:
        """As many lanes as fill a vector of what is written, where that is narrower than what is computed.

        Halves of a vector, or quarters, take more instructions than to pack several vectors into one; for processors
        that narrow vectors by one instruction, as those with AVX-512 do, they do not.
        """
        dense = all(s in (0, e.width_bytes) for s, e in zip(self.along.strides, self.elements, strict=True))
        if dense and not self.points.reductions:
            width = min((self.elements[o].width_bytes for o in self.written()), default=8)
            while self.unroll > 1 and 2 * self.lanes * width <= self.target.vector_bytes:
                self.lanes, self.unroll = 2 * self.lanes, self.unroll // 2

    # ---- one point of the outer axes ----------------------------------------------------------------------------

    def inner(self, f: Function, pointers: list[str], digits: list[Value]) -> None:
        """What happens at one point of the outer axes."""
        piece = digits[-1] if self.piece else 0
        if self.crossing is not None:
            self.tiles(f, pointers, self.crossing, digits[self.crossed_at], piece)
            return

        def rows(*twins: tuple[int, ...]) -> None:
            emit_nest(f, self.near, pointers, lambda moved: self.row(f, moved, piece, twins))

        if self.twins is None or self.twins.count == self.outer[self.twins.at].extent:
            rows(*(() if self.twins is None else (self.twins.strides,)))
        else:
            twins = self.twins
            f.when(f.compare("slt", digits[twins.at], twins.count), lambda: rows(twins.strides), rows)

    def tiles(self, f: Function, pointers: list[str], crossing: Crossing, run: Value, piece: Value) -> None:
        """A block of an axis that some operands are read across."""
        width = f.min(f.sub(crossing.dim.extent, f.mul(run, RUN)), RUN)
        length: Value = self.along.extent
        if self.piece:
            length = f.min(f.sub(length, f.mul(piece, self.piece)), self.piece)

        def point(places: list[str], mask: str | None, given: dict[int, str]) -> None:
            self.points.point(f, places, self.lanes, mask, [], given=given)

        sizes, unroll = (width, length), not self.heavy
        emit_tiles(f, crossing, self.along, self.elements, pointers, sizes, self.lanes, point, unroll=unroll)

    def row(self, f: Function, pointers: list[str], piece: Value, twins: tuple[tuple[int, ...], ...] = ()) -> None:
        """All of the axes that are left: the vectors' own and those that are summed."""
        if self.reduction is not None:
            self.reduction.emit(f, pointers, piece, ((0,) * len(pointers), *twins))
        else:
            still = self.points.still(f, pointers, self.lanes)

            def body(places: list[list[str]], mask: str | None, _: list[str]) -> list[str]:
                for place in places:
                    self.points.point(f, place, self.lanes, mask, [], given=still)
                return []

            def kept() -> None:
                self.vectors.run(f, pointers, piece, body, [])

            o = self.streamed
            if o is None:
                kept()
            else:
                f.when(self.apart(f, pointers, o), lambda: self.stream(f, pointers, piece, o), kept)

    def apart(self, f: Function, pointers: list[str], o: int) -> Value:
        """Whether an output begins with a whole element and is no operand's memory."""
        size = self.elements[o].width_bytes
        address = f.value(f"ptrtoint ptr {pointers[o]} to i64")
        result: Value = f.compare("eq", f.value(f"and i64 {address}, {size - 1}"), 0)
        for other in {rival for rival, w in self.rivals if w == o}:
            result = f.both(result, f.value(f"icmp ne ptr {pointers[o]}, {pointers[other]}"))
        return result

    def stream(self, f: Function, pointers: list[str], piece: Value, o: int) -> None:
        """The vectors' axis: whole vectors of the output's memory past the caches, the two ends by masks."""
        lanes, width = self.lanes, self.elements[o].width_bytes
        left = f.sub(self.along.extent, f.mul(piece, self.piece))
        count = f.min(left, self.piece) if self.piece else left

        strides = self.along.strides
        dense = [i for i in sorted(self.read()) if strides[i] == self.elements[i].width_bytes]

        def at(index: Value, mask: str | None) -> None:
            places = [f.at(p, f.mul(index, s)) for p, s in zip(pointers, strides, strict=True)]
            for i in dense if mask is None and self.asks else ():
                vectors.prefetch(f, f.at(places[i], vectors.AHEAD_BYTES))
            self.points.point(f, places, lanes, mask, [], streaming=mask is None)

        def ends(index: Value, left: Value) -> None:
            if self.halves:
                self.few(f, pointers, index, left)
            else:
                at(index, vectors.mask_below(f, str(left), lanes))

        address = f.value(f"ptrtoint ptr {pointers[o]} to i64")
        missing = f.value(f"and i64 {f.value(f'sub i64 0, {address}')}, {lanes * width - 1}")
        head = f.min(f.div(missing, width), count)
        whole = f.value(f"and i64 {f.sub(count, head)}, {-lanes}")
        tail = f.add(head, whole)
        ends(0, head)
        f.loop(head, tail, lambda index, _: at(index, None), step=lanes)
        ends(tail, f.sub(count, tail))

    def few(self, f: Function, pointers: Sequence[str], index: Value, count: Value) -> None:
        """Fewer elements than a vector has, from an index on: as vectors of half as many lanes, a quarter, ..

        For processors that mask no stores, or no narrow ones, or slowly (see `vectors.store_runs`).
        """
        places: Sequence[Value] = moved_by(f, pointers, [f.mul(index, s) for s in self.along.strides])

        def some(lanes: int, on: list[str]) -> list[str]:
            self.points.point(f, on, lanes, None, [], given=self.points.still(f, on, lanes))
            return moved_by(f, on, [lanes * s for s in self.along.strides])

        lanes = self.lanes // 2
        while lanes:
            on = list(map(str, places))
            if isinstance(count, int) and known(count):
                wanted: Value = int(bool(count & lanes))
            else:
                wanted = f.compare("ne", f.value(f"and i64 {count}, {lanes}"), 0)
            places = f.choose(wanted, ["ptr"] * len(on), partial(some, lanes, on), partial(list, on))
            lanes //= 2
