"""Moving a tensor from one order of axes to another at the rate of memory.

A block (`tileweave.backends.cpu.maps.blocks`) is read in squares, which are transposed in registers and collected in
the order of the output. While the next block is collected, this one's rows are written, line by line, past the caches;
and the lines of the block after that are asked for. So reading, writing and waiting overlap.

A row that ends within a line leaves that line to the block that continues it: every line is written once and whole,
but for the first and the last of a stream of rows. Where an axis is no multiple of a block, or a block none of a
square, the last one begins earlier and does some elements once more: their values are the same, and all shapes are
known when code is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2, prod

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES, constants, run_tasks
from tileweave.backends.cpu.maps.blocks import (
    LEAST_ROW_BYTES,
    LONG_ROW_BYTES,
    BlockAxis,
    Blocking,
    crowded,
    cut_direct,
    cut_staged,
    overflowing,
    with_sizes,
)
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import derived, plain
from tileweave.kept import cached_property
from tileweave.teir.merged.form import Mode

Meaning = Callable[[Function, str, int], str]
"""What is written, from the function, what was read, and its lanes."""
_LINE = 64
_PIECE_BYTES = 512
"""What is written between two strips of squares, at least."""
_STRIP_BYTES = 1024
"""What is collected between two parts of the block before, about."""
_BYTE = Element("byte", "i8", 1, False)
_BEFORE = (("ptr", "held"), ("i64", "into"), ("i64", "fresh"), ("i64", "ending"))
"""The block that was collected before: where it is held, where it goes, whether its rows begin and end a stream."""


def transposable(target: Target, dims: tuple[Mode, ...], elements: tuple[Element, ...], *, plain: bool = False) -> bool:
    """Whether the output is dense in the last axis and the only input in another one.

    A ``plain`` copy, which changes no bits, may be dense in the same axis where it is larger than the caches and its
    rows are not long: they are then worth collecting, or neighbours in the input.
    """
    if len(elements) != 2 or not dims or target.lanes(max(e.width_bytes for e in elements)) == 1:
        return False
    w_in, w_out = (element.width_bytes for element in elements)
    along = dims[-1]
    if along.strides[1] != w_out or along.strides[0] == 0:
        return False
    if along.strides[0] == w_in:
        row_bytes = along.extent * w_out
        if not plain or row_bytes >= LONG_ROW_BYTES or w_out * prod(dim.extent for dim in dims) < target.l3_bytes:
            return False
        return row_bytes >= LEAST_ROW_BYTES or _unit(dims, (w_in, w_out)) > 1
    return any(abs(dim.strides[0]) == w_in for dim in dims[:-1])


def emit_transpose(
    f: Function,
    target: Target,
    dims: tuple[Mode, ...],
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
        dims: `transposable` axes, whose order of execution is free.
        elements: of the input and the output.
        pointers: the operands' addresses.
        meaning: what is written.
        parallel: whether it may use the pool.
    """
    size_bytes = elements[1].width_bytes * prod(dim.extent for dim in dims)
    widths = elements[0].width_bytes, elements[1].width_bytes
    collected = size_bytes > target.l2_bytes or dims[-1].strides[0] == widths[0]
    if collected or f.module.sizes is None:
        dims = constants(dims)  # how blocks are cut that are collected owes itself to all sizes
    unit = plain(_unit(dims, widths))
    whole = unit * widths[0], unit * widths[1]
    cut = _cut(target, dims[:-1] if unit > 1 else dims, whole, size_bytes)
    if f.module.sizes is not None and not collected:
        cut = with_sizes(cut, whole, f.module.sizes.parameter)
    streams = size_bytes >= target.l3_bytes and target.has("sse2")
    _Mover(f, target, elements, unit, cut, meaning, streams).emit(
        f, pointers, parallel=parallel and size_bytes >= PARALLEL_BYTES
    )


def _unit(dims: tuple[Mode, ...], widths: tuple[int, int]) -> int:
    """How many elements stay together: a short axis that is dense in both tensors, if the next ones differ; or 1."""
    count = dims[-1].extent
    if len(dims) < 3 or dims[-1].strides != widths or count * widths[1] >= LONG_ROW_BYTES:
        return 1
    beside = any(abs(dim.strides[0]) == count * widths[0] for dim in dims[:-2])
    return count if beside and dims[-2].strides[1] == count * widths[1] else 1


def _cut(target: Target, dims: tuple[Mode, ...], widths: tuple[int, int], size_bytes: int) -> Blocking:
    """Small tensors and short rows are written as they are read; others are collected."""
    if dims[-1].strides[0] == widths[0]:
        return cut_staged(dims, None, widths)
    cross = next(k for k, dim in enumerate(dims) if abs(dim.strides[0]) == widths[0])
    if size_bytes > target.l2_bytes:
        cut = cut_staged(dims, cross, widths)
        if cut.row_bytes >= LEAST_ROW_BYTES:
            return cut
    return cut_direct(dims, cross, widths)


class _Mover:
    """Writes the functions that move one tensor.

    ``plane`` reads a block of the two dense axes and collects it; ``drain`` writes pieces of the block before.
    """

    def __init__(
        self,
        f: Function,
        target: Target,
        elements: tuple[Element, ...],
        unit: int,
        cut: Blocking,
        meaning: Meaning,
        streams: bool,
    ) -> None:
        self.target = target
        self.module = f.module
        self.name = f.name
        self.elements = elements
        self.unit = unit
        self.cut = cut
        self.meaning = meaning
        self.streams = streams
        self.pieces_per_row = ceil((cut.row_bytes + _LINE) / _PIECE_BYTES)
        self.pieces = self.pieces_per_row * prod(cut.sides[k].run for k in cut.rows)
        self.asked_level = 1  # the cache: a core forgets many of the requests for the second one
        along = cut.sides[cut.along]
        if cut.cross is not None and crowded(along.dim):
            single = cut.sides[cut.cross].run * elements[0].width_bytes <= _LINE
            if single or overflowing(along.dim, along.run):
                self.asked_level = 2  # they would drive one another from the first

    # ---- tasks and blocks ---------------------------------------------------------------------------------------

    def emit(self, f: Function, pointers: list[str], *, parallel: bool) -> None:
        """The code of the whole, and the functions that it calls."""
        total = prod(digit.extent for digit in self.cut.digits)
        parallel = parallel and total > 1
        shares = f.min(f.mul(f.load("i64", f.at("%env", 24), 8), 8), total) if parallel else 1
        frame = f.slot("i64", 4)
        f.store("ptr", "%env", frame, 8)  # where a task finds the sizes
        f.store("i64", shares, f.at(frame, 8), 8)
        for k, pointer in enumerate(pointers):
            f.store("ptr", pointer, f.at(frame, 16 + 8 * k), 8)
        if self.cut.buffer_bytes:
            self.drain()
        self.plane()
        self.task(total)
        if parallel:
            run_tasks(f, f"{self.name}.task", frame, shares)
        else:
            f.call(f"{self.name}.task", f"ptr {frame}", "i64 0", "i64 %thread")

    def task(self, total: int) -> None:
        """The function ``(frame, task, thread)``: a share of the blocks, each written while the next is collected."""
        g = Function(self.module, f"{self.name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        shares = g.load("i64", g.at("%frame", 8), 8)
        bases = [g.load("ptr", g.at("%frame", 16 + 8 * k), 8) for k in range(2)]
        first = g.div(g.mul("%task", total), shares)
        last = g.div(g.mul(g.add("%task", 1), total), shares)
        if not self.cut.buffer_bytes:

            def next_one(_: Value, digits: list[str]) -> list[Value]:
                self.direct(g, digits, bases)
                return self.following(g, digits)

            g.loop(first, last, next_one, carry=[("i64", digit) for digit in self.digits(g, first)])
            g.ret()
            return
        buffers = g.slot("i8", 2 * self.cut.buffer_bytes)
        start = g.value(f"ptrtoint ptr {bases[1]} to i64")

        def one(flat: Value, before: list[str]) -> list[Value]:
            return self.staged(g, flat, bases[0], start, buffers, before)

        carry = [("i64", 0)] * 5
        into, place, fresh, pieces, _ = g.loop(first, last, one, carry=carry)
        held = self.held(g, buffers, place)
        g.call(f"{self.name}.drain", f"ptr {held}", f"i64 {into}", f"i64 {fresh}", "i64 1", "i64 0", f"i64 {pieces}")
        if self.streams:
            self.module.declare("llvm.x86.sse.sfence", "void {}()")
            g.emit("call void @llvm.x86.sse.sfence()")  # streamed lines are seen by whoever waits for the task
        g.ret()

    def direct(self, f: Function, digits: Sequence[Value], bases: list[str]) -> None:
        """One block, written as it is read."""
        source, into = (f.at(base, self.place(f, digits, k)) for k, base in enumerate(bases))
        f.call(f"{self.name}.plane", f"ptr {source}", f"ptr {into}", f"ptr {source}", "i64 0")

    def staged(
        self, f: Function, flat: Value, source: str, start: Value, buffers: str, before: list[str]
    ) -> list[Value]:
        """One block, collected while the one before is written.

        ``before`` and what is returned: where a block goes, where it is held (64 says in which of two buffers, what is
        below how far from a line), whether it begins streams of rows, how many pieces it has, where it comes from.
        """
        digits = self.digits(f, flat)
        into = f.add(start, self.place(f, digits, 1))
        continued = f.compare("eq", into, f.add(before[0], self.cut.row_bytes))
        ending = f.value(f"zext i1 {f.value(f'xor i1 {continued}, true')} to i64")
        turn = f.value(f"xor i64 {f.value(f'and i64 {before[1]}, {_LINE}')}, {_LINE}")
        place = f.value(f"or i64 {f.value(f'and i64 {into}, {_LINE - 1}')}, {turn}")
        old, new = self.held(f, buffers, before[1]), self.held(f, buffers, place)
        f.when(continued, lambda: self.carry_over(f, self.cut.rows, old, new))
        here = f.at(source, self.place(f, digits, 0))
        ahead = f.at(source, self.place(f, self.following(f, digits), 0))
        self.collect(f, [here, new, ahead], [old, before[0], before[2], ending, before[3]])
        return [into, place, ending, self.pieces, 0]

    def digits(self, f: Function, flat: Value) -> list[Value]:
        """The indices of the loops over blocks, from their common number."""
        found: list[Value] = []
        for digit in reversed(self.cut.digits):
            found.append(f.rem(flat, digit.extent) if len(found) < len(self.cut.digits) - 1 else flat)
            flat = f.div(flat, digit.extent)
        return found[::-1]

    def following(self, f: Function, digits: Sequence[Value]) -> list[Value]:
        """The next block's indices; after the last block, the first."""
        found: list[Value] = []
        carry: Value = 1
        for index, digit in zip(reversed(digits), reversed(self.cut.digits), strict=True):
            moved = f.add(index, carry)
            wraps = f.compare("eq", moved, digit.extent)
            found.append(f.value(f"select i1 {wraps}, i64 0, i64 {moved}"))
            carry = f.value(f"zext i1 {wraps} to i64")
        return found[::-1]

    def place(self, f: Function, digits: Sequence[Value], operand: int) -> Value:
        """Bytes from a tensor's start to a block."""
        numbers: dict[int, Value] = {}
        most: dict[int, int] = {}
        for index, digit in zip(digits, self.cut.digits, strict=True):
            numbers[digit.side] = f.add(numbers.get(digit.side, 0), f.mul(index, digit.weight))
            most[digit.side] = most.get(digit.side, 0) + (digit.extent - 1) * digit.weight
        total: Value = 0
        for k, number in numbers.items():
            side = self.cut.sides[k]
            begin, final = f.mul(number, side.run), side.dim.extent - side.run
            if most[k] * side.run > final:
                begin = f.min(begin, final)
            total = f.add(total, f.mul(begin, side.dim.strides[operand]))
        return total

    def held(self, f: Function, buffers: str, place: Value) -> str:
        """Where a block is collected."""
        which = f.value(f"lshr i64 {place}, {_LINE.bit_length() - 1}")
        past = f.value(f"and i64 {place}, {_LINE - 1}")
        return f.at(f.at(buffers, f.mul(which, self.cut.buffer_bytes)), past)

    def carry_over(self, f: Function, rows: Sequence[int], old: str, new: str) -> None:
        """The last line of every row, which is not whole yet, becomes the first of the block that continues it."""
        if rows:
            side = self.cut.sides[rows[0]]

            def one(index: Value, _: list[str]) -> None:
                step = f.mul(index, side.held)
                self.carry_over(f, rows[1:], f.at(old, step), f.at(new, step))

            f.loop(0, side.run, one)
            return
        ends = [f.value(f"ptrtoint ptr {p} to i64") for p in (f.at(old, self.cut.row_bytes), new)]
        lines = [f.value(f"inttoptr i64 {f.value(f'and i64 {end}, {-_LINE}')} to ptr") for end in ends]
        f.store(vector("i8", _LINE), f.load(vector("i8", _LINE), lines[0], _LINE), lines[1], _LINE)

    def collect(self, f: Function, places: list[str], before: list[Value]) -> None:
        """All planes of a block."""
        cut = self.cut
        strips = self.strips()
        total = strips * prod(cut.sides[k].run for k in cut.inside)
        more = [f"{type} {value}" for (type, _), value in zip(_BEFORE, before, strict=False)]

        def nest(inside: Sequence[int], places: list[str], number: Value) -> None:
            if not inside:
                arguments = [*(f"ptr {place}" for place in places), f"i64 {f.mul(number, strips)}"]
                f.call(f"{self.name}.plane", *arguments, *more, f"i64 {before[4]}", f"i64 {total}")
                return
            side = cut.sides[inside[0]]
            strides = (side.dim.strides[0], side.held, side.dim.strides[0])

            def one(index: Value, _: list[str]) -> None:
                moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(places, strides, strict=True)]
                nest(inside[1:], moved, f.add(f.mul(number, side.run), index))

            f.loop(0, side.run, one)

        nest(cut.inside, places, 0)

    # ---- squares ------------------------------------------------------------------------------------------------

    @cached_property
    def square(self) -> tuple[int, int]:
        """Lanes along the output and elements along the input of one square: those that cost the least."""
        cut = self.cut
        width = max(e.width_bytes for e in self.elements)
        along = cut.sides[cut.along]
        if self.unit > 1:
            return 1, 1
        if cut.cross is None:
            return min(8 * self.target.lanes(width), along.run), 1
        # short vectors: the shares of the block before come in finer turns
        most, x, y = min(self.target.lanes(width), 32 // width), cut.sides[cut.cross].run, along.run
        short, long = max(1, 16 // width), max(1, 32 // width)
        sizes = [(lanes, min(lanes, q)) for lanes in (2, 4, 8, 16, 32) if lanes <= most for q in (short, long)]

        gone = crowded(along.dim)  # a line may be gone before it is read again

        def cost(size: tuple[int, int], x: int, y: int) -> float:
            lanes, q = size
            loads = lanes * ((1.0 if q > short else 2.0) if gone else 2.2 if q > short else 1.0)
            tiles = ceil(x / q) + (0.25 if x > q and x % q else 0.0)
            return ceil(y / lanes) * tiles * (loads + (lanes - q) + q * log2(q) + q)

        def best(x: int, y: int) -> int:
            return min(range(len(sizes)), key=lambda k: cost(sizes[k], x, y))

        return sizes[plain(derived(best, x, y))]

    def plane(self) -> None:
        """The function ``(source, into, ahead, number, before.., pieces, total)``: a block of the two dense axes.

        After some strips of one vector's width, a part of the block before is written: strip ``number`` of ``total``.
        """
        cut = self.cut
        staged = bool(cut.buffer_bytes)
        parameters = [("ptr", "source"), ("ptr", "target"), ("ptr", "ahead"), ("i64", "number")]
        if staged:
            parameters += [*_BEFORE, ("i64", "pieces"), ("i64", "total")]
        f = Function(self.module, f"{self.name}.plane", parameters)
        along = cut.sides[cut.along]
        lanes, _ = self.square
        live = min(lanes, along.run)
        strips = self.strips()

        def strip(index: Value, _: list[str]) -> None:
            y = f.min(f.mul(index, lanes), along.run - live)
            places = [f.at("%source", f.mul(y, along.dim.strides[0])), f.at("%target", f.mul(y, along.held))]
            ahead = f.at("%ahead", f.mul(y, along.dim.strides[0]))
            if cut.cross is None:
                self.vectors(f, places, live, ahead)
            elif self.unit > 1:
                self.units(f, places, ahead, cut.sides[cut.cross])
            else:
                self.tiles(f, places, ahead, cut.sides[cut.cross], along)

        def turn(begin: Value, _: list[str]) -> None:
            end = f.min(f.add(begin, together), strips)
            f.loop(begin, end, strip)
            ends = [f.div(f.mul(f.add("%number", n), "%pieces"), "%total") for n in (begin, end)]
            before = [f"{type} %{name}" for type, name in _BEFORE]
            f.call(f"{self.name}.drain", *before, *(f"i64 {end}" for end in ends))

        if staged:
            breadth = self.unit * self.elements[1].width_bytes * (1 if cut.cross is None else cut.sides[cut.cross].run)
            together = max(1, min(strips, _STRIP_BYTES // (live * breadth)))
            f.loop(0, strips, turn, step=together)
        else:
            f.loop(0, strips, strip)
        f.ret()

    def strips(self) -> int:
        """How many strips a plane has."""
        return -(-self.cut.sides[self.cut.along].run // self.square[0])

    def vectors(self, f: Function, places: list[str], live: int, ahead: str | None = None) -> None:
        """Some elements of an axis in which both tensors are dense."""
        source, out = self.elements
        lanes = min(self.target.lanes(max(source.width_bytes, out.width_bytes)), 1 << live.bit_length() - 1)
        for begin in [*range(0, live - lanes, lanes), live - lanes]:
            value = vectors.load(f, source, lanes, f.at(places[0], begin * source.width_bytes))
            if ahead is not None:
                vectors.prefetch(f, f.at(ahead, begin * source.width_bytes), level=self.asked_level)
            place = f.at(places[1], begin * out.width_bytes)
            vectors.store(f, out, lanes, self.meaning(f, value, lanes), place)

    def units(self, f: Function, places: list[str], ahead: str, cross: BlockAxis) -> None:
        """A run of units, each to a row of its own."""
        size = cross.run * self.unit * self.elements[0].width_bytes
        lowest = min(0, (cross.run - 1) * cross.dim.strides[0])

        def one(index: Value, _: list[str]) -> None:
            strides = cross.dim.strides[0], cross.held
            self.vectors(f, [f.at(p, f.mul(index, s)) for p, s in zip(places, strides, strict=True)], self.unit)

        def ask(offset: Value, _: list[str]) -> None:
            vectors.prefetch(f, f.at(ahead, f.add(offset, lowest)), level=self.asked_level)

        if self.cut.buffer_bytes:
            f.loop(0, size, ask, step=_LINE)
        f.loop(0, cross.run, one)

    def tiles(self, f: Function, places: list[str], ahead: str, cross: BlockAxis, along: BlockAxis) -> None:
        """Some lanes of the output's dense axis times the run of the input's, in squares."""
        lanes, q = self.square
        source, out = self.elements
        staged = bool(self.cut.buffer_bytes)
        down = cross.dim.strides[0] < 0
        live_x, live_y = min(q, cross.run), min(lanes, along.run)
        loaded = None if live_x == q else vectors.mask_of(live_x, q)
        stored = None if live_y == lanes else vectors.mask_of(live_y, lanes)
        count = -(-cross.run // q)
        asked = 0
        if staged:
            run_bytes = cross.run * source.width_bytes
            sides = (*(self.cut.sides[k] for k in self.cut.inside), along)
            whole = not run_bytes % _LINE and not any(side.dim.strides[0] % _LINE for side in sides)
            touched = live_y * (ceil(run_bytes / _LINE) + (not whole))
            asked = next(d for d in range(1, live_y + 1) if live_y % d == 0 and (d * count >= touched or d == live_y))

        def tile(index: Value, _: list[str]) -> None:
            x = f.min(f.mul(index, q), cross.run - live_x)
            start = f.at(places[0], f.mul(x, cross.dim.strides[0]))
            if down:
                start = f.at(start, (live_x - 1) * cross.dim.strides[0])
            rows = []
            for lane in range(lanes):
                place = f.at(start, min(lane, live_y - 1) * along.dim.strides[0])
                rows.append(self.meaning(f, vectors.load(f, source, q, place, loaded), q))
            if staged:
                self.ask(f, ahead, f.mul(index, asked), asked, cross, along)
            upright = vectors.transpose(f, out.memory, lanes, rows, q)[:live_x]
            for t, value in enumerate(reversed(upright) if down else upright):
                vectors.store(f, out, lanes, value, f.at(places[1], f.mul(f.add(x, t), cross.held)), stored)

        f.loop(0, count, tile)

    def ask(self, f: Function, ahead: str, pair: Value, count: int, cross: BlockAxis, along: BlockAxis) -> None:
        """Ask for some of the lines that the same strip of the next block reads; pairs are row + rows * line."""
        rows = min(self.square[0], along.run)
        offset = f.min(f.mul(f.div(pair, rows), _LINE), cross.run * self.elements[0].width_bytes - 1)
        if cross.dim.strides[0] < 0:
            offset = f.sub(0, offset)
        start = f.at(f.at(ahead, offset), f.mul(f.rem(pair, rows), along.dim.strides[0]))
        for row in range(count):
            vectors.prefetch(f, f.at(start, row * along.dim.strides[0]), level=self.asked_level)

    # ---- rows ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """The function ``(before.., first, last)``: some pieces of the rows that were collected, written."""
        f = Function(self.module, f"{self.name}.drain", [*_BEFORE, ("i64", "first"), ("i64", "last")])
        count = self.pieces_per_row

        def piece(number: Value, _: list[str]) -> None:
            which, rest = f.rem(number, count), f.div(number, count)
            source, into = "%held", f.value("inttoptr i64 %into to ptr")
            for k in self.cut.rows:
                side = self.cut.sides[k]
                index = f.rem(rest, side.run) if k != self.cut.rows[-1] else rest
                rest = f.div(rest, side.run)
                source, into = f.at(source, f.mul(index, side.held)), f.at(into, f.mul(index, side.dim.strides[1]))
            self.write(f, which, source, into)

        f.loop("%first", "%last", piece)
        f.ret()

    def write(self, f: Function, which: Value, source: str, into: str) -> None:
        """One piece of a row: whole lines; what is less only where a stream begins or ends."""
        size, count = self.cut.row_bytes, self.pieces_per_row
        address = f.value(f"ptrtoint ptr {into} to i64")
        missing = f.value(f"and i64 {f.sub(0, address)}, {_LINE - 1}")
        fresh = f.compare("ne", "%fresh", 0)
        low = f.value(f"select i1 {fresh}, i64 {missing}, i64 {f.sub(0, f.value(f'and i64 {address}, {_LINE - 1}'))}")
        high = f.sub(f.value(f"and i64 {f.add(address, size)}, {-_LINE}"), address)
        begin = f.add(low, f.mul(which, _PIECE_BYTES))
        end = f.min(f.add(begin, _PIECE_BYTES), high)
        step = self.target.vector_bytes

        def line(at: Value, _: list[str]) -> None:
            value = f.load(vector("i8", step), f.at(source, at), step)
            vectors.store(f, _BYTE, step, value, f.at(into, at), streaming=self.streams)

        opens = f.both(fresh, f.both(f.compare("eq", which, 0), f.compare("ne", missing, 0)))
        f.when(opens, lambda: self.part(f, source, into, 0, missing))
        f.loop(begin, end, line, step=step)
        closes = f.both(f.compare("eq", which, count - 1), f.compare("ne", "%ending", 0))
        left = f.sub(size, high)
        f.when(f.both(closes, f.compare("ne", left, 0)), lambda: self.part(f, source, into, high, left))

    def part(self, f: Function, source: str, into: str, begin: Value, length: Value) -> None:
        """Less than a line."""
        if self.target.has("avx512bw"):
            every = vectors.broadcast(f, "i8", _LINE, f.value(f"trunc i64 {length} to i8"))
            numbers = "<" + ", ".join(f"i8 {lane}" for lane in range(_LINE)) + ">"
            mask = f.value(f"icmp ult <{_LINE} x i8> {numbers}, {every}")
            value = f.load(vector("i8", _LINE), f.at(source, begin))
            vectors.store(f, _BYTE, _LINE, value, f.at(into, begin), mask)
            return

        def one(index: Value, _: list[str]) -> None:
            f.store("i8", f.load("i8", f.at(source, index)), f.at(into, index))

        f.loop(begin, f.add(begin, length), one)
