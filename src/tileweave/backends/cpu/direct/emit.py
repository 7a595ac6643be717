"""The code of a direct convolution: register tiles of filters by pixels, read in place, finished in registers.

A job is one panel of filters on one block of pixels of one image. For each tile of pixels the sums stand in registers
while the terms pass; where their vectors are of filters, they are transposed then. Each is brought through the chain
and stored. Where vectors of pixels lie, and the terms of
long sums, is said by arrays beside the code; extents and strides are read from the table of the call. So one text
serves all images that have its register tile, its segments per vector, and its short sums (`direct.cut`).

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tileweave.backends.cpu.direct.convolution import Convolution
from tileweave.backends.cpu.direct.cut import DirectCut, DirectForm, DirectNumbers, with_sizes
from tileweave.backends.cpu.direct.tiles import pixels_at_once
from tileweave.backends.cpu.gemm.contract import Workspace
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import known
from tileweave.teir.merged.form import MergedOp

_TOGETHER = 4
"""Rows of a tile whose weights are read at once. LLVM would read those of all rows first, and keep sums in memory
meanwhile: 2 images of 48 x 25 x 25 with 64 filters of 3 x 3 take 1.2 times as long in tiles of 13 by 2 vectors. Where
there are 16 registers, tiles are small enough."""
_ENTRY_BYTES = 16
"""Of a segment in the table of vectors: bytes to lane 0, first lane, last lane; by rows, the output's bytes."""


def emit_direct(
    module: Module,
    target: Target,
    name: str,
    c: Convolution,
    cut: DirectCut,
    flat: Sequence[int],
    tables: Sequence[int],
    memory: Workspace,
) -> tuple[str, ...]:
    """Add the function ``name(env, thread, p0, p1, ..)``, a pointer per tensor; how it works, in a few lines.

    Args:
        module: where it goes.
        target: the processor.
        name: of the function.
        c: the convolution.
        cut: how it is cut.
        flat: where sizes are followed, those of `numbers_of`, followed.
        tables: the addresses of `DirectCut.tables`.
        memory: grows by the panels of weights that the code makes.
    """
    form, numbers, table = cut.form, cut.numbers, module.sizes
    read = numbers
    if numbers.packs[2]:
        each = iter(flat)
        memory.reserve((with_sizes(numbers, lambda _: next(each)) if flat else numbers).packs[2], 0)
    if table is not None:
        given = iter(flat)
        read = with_sizes(numbers, lambda n: table.parameter(next(given) if table.follows else n))
        tables = [table.parameter(address) for address in tables]
    _Writer(module, target, name, form, read, tables, c.chain, c.sums).write()
    lanes = target.lanes(form.element.width_bytes)
    pixels = f"{form.widths[0]} vectors of pixels"
    if form.reading.along == "filters":
        pixels = f"{pixels_at_once(form.rows, lanes, target)} pixels"
    panels = {"as given": "", "arranged": ", packed weights"}.get(form.weights, ", weights packed first")
    return (
        f"direct convolution: {form.rows} filters by {pixels}, {c.count} terms",
        f"{numbers.pixels[0]} tiles in {numbers.parts[1] or 1} blocks, {prod(mode.extent for mode in c.outer)} images "
        f"and groups, {form.reading.crossed} loads per vector{panels}"
        + (", the chain in registers" if c.chain is not None else ""),
    )


@dataclass
class _Writer:
    """Writes the functions of one convolution."""

    module: Module
    target: Target
    name: str
    form: DirectForm
    numbers: DirectNumbers
    tables: Sequence[int]
    chain: MergedOp | None
    sums: int

    def __post_init__(self) -> None:
        self.element = self.form.element
        self.width = self.element.width_bytes
        self.lanes = self.target.lanes(self.width)
        self.full = vector(self.element.memory, self.lanes)
        reading = self.form.reading
        self.short = reading.ragged and not reading.once
        self.by_filters = reading.along == "filters"
        self.last_alone = reading.ragged and reading.once and not self.target.masks_stores
        """Whether code of its own, with masks, is for the last tile of pixels: others have none where no row ends."""
        self.wide = -(-self.form.rows // self.lanes) if self.by_filters else 1  # vectors of filters
        self.panel_rows = self.wide * self.lanes if self.by_filters else self.form.rows
        self.entry_bytes = (self.lanes + 1) * 8 if self.by_filters else _ENTRY_BYTES * reading.crossed
        self.packs = self.form.weights in ("turned", "gathered")

    def write(self) -> None:
        """The function, its task, and a micro-kernel for each width of a tile."""
        tensors = self.form.tensors
        parameters = [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(max(tensors) + 1))]
        f = Function(self.module, self.name, parameters)
        frame = f.slot("ptr", 1 + len(tensors) + self.packs)
        f.store("ptr", "%env", frame, 8)
        for k, tensor in enumerate(tensors):
            f.store("ptr", f"%p{tensor}", f.at(frame, 8 * (k + 1)), 8)
        if self.packs:
            f.store("ptr", f.load("ptr", f.at("%env", 16), 8), f.at(frame, 8 * (len(tensors) + 1)), 8)
            self.share(f, "pack", frame, self.numbers.packs[1])
        self.share(f, "task", frame, self.numbers.jobs[1])
        f.ret()
        for width in self.form.widths:
            if self.by_filters:
                self.micro_of_filters()
            else:
                crossed = self.form.reading.crossed > 1
                self.micro(width, masked=crossed or (self.form.reading.ragged and not self.last_alone))
                if self.last_alone and not crossed:
                    self.micro(width, masked=True, name=f"micro{width}.ragged")
            self.finish(width)
        if self.by_filters:
            self.turn()
        if self.packs:
            self.pack()
        jobs, tasks = self.numbers.jobs
        self.task(f"{self.name}.task", jobs, 1 if _is_nothing(tasks) else tasks)

    def share(self, f: Function, part: str, frame: str, tasks: int) -> None:
        """Have a function of the module run, in tasks or in one."""
        if _is_nothing(tasks):
            f.call(f"{self.name}.{part}", f"ptr {frame}", "i64 0", "i64 %thread")
        else:
            run_tasks(f, f"{self.name}.{part}", frame, tasks)

    def pointer(self, f: Function, table: int) -> str:
        """Where a table begins."""
        return f.value(f"inttoptr i64 {self.tables[table]} to ptr")

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def task(self, name: str, jobs: int, count: int) -> None:
        """A share of the jobs."""
        form, n = self.form, self.numbers
        g = Function(self.module, name, [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        bases = {t: g.load("ptr", g.at("%frame", 8 * (k + 1)), 8) for k, t in enumerate(form.tensors)}
        tile = form.rows * form.widths[0]
        if self.by_filters:  # as they are formed, then turned
            tile = self.lanes * self.wide + -(-form.rows // self.turned) * self.turned
        sums = g.slot(self.full, tile)
        panels, blocks = (1 if _is_nothing(part) else part for part in n.parts)

        def job(flat: Value, _: list[str]) -> None:
            panel, rest = g.rem(flat, panels), g.div(flat, panels)
            block, rest = g.rem(rest, blocks), g.div(rest, blocks)
            digits: list[Value] = []
            for k, (extent, *_strides) in enumerate(reversed(n.outer)):
                digits.insert(0, g.rem(rest, extent) if k < len(n.outer) - 1 else rest)
                rest = g.div(rest, extent)
            first = g.min(g.mul(panel, form.rows), n.filters[0])
            moved = []
            for k, tensor in enumerate(form.tensors[:3]):
                at: Value = n.offsets[k]
                for digit, mode in zip(digits, n.outer, strict=True):
                    at = g.add(at, g.mul(digit, mode[1 + k]))
                if k:
                    at = g.add(at, g.mul(first, n.filters[k]))
                base = bases[tensor]
                if k == 1 and form.weights != "as given":
                    at = self.packed_panel(g, digits, panel, panels)
                    base = g.load("ptr", g.at("%frame", 8 * (len(form.tensors) + 1)), 8) if self.packs else base
                moved.append(g.at(base, at))
            others = []
            for (_number, tensor, _along), extra in zip(form.extras, n.extras, strict=True):
                at = g.add(extra[0], g.mul(first, extra[1]))
                for digit, stride in zip(digits, extra[2:], strict=True):
                    at = g.add(at, g.mul(digit, stride))
                others.append(g.at(bases[tensor], at))
            tiles = n.pixels[0]
            begin = g.div(g.mul(block, tiles), blocks)
            end = g.div(g.mul(g.add(block, 1), tiles), blocks)
            done = g.sub(g.mul(panel, form.rows), first)  # by the panel before, where the last one begins earlier
            self.tiles_of(g, begin, end, moved, others, sums, done)

        g.loop(g.div(g.mul("%task", jobs), count), g.div(g.mul(g.add("%task", 1), jobs), count), job)
        g.ret()

    def packed_panel(self, g: Function, digits: Sequence[Value], panel: Value, panels: int) -> Value:
        """Where a panel of packed weights begins."""
        number: Value = 0
        for digit, (extent, _, weights, _) in zip(digits, self.numbers.outer, strict=True):
            if not _is_nothing(weights):
                number = g.add(g.mul(number, extent), digit)
        return g.mul(g.add(g.mul(number, panels), panel), self.numbers.filters[3])

    def tiles_of(
        self,
        g: Function,
        begin: Value,
        end: Value,
        moved: Sequence[str],
        others: Sequence[str],
        sums: str,
        done: Value,
    ) -> None:
        """Tiles of pixels, by number: the wide ones first; so many of their filters are done."""
        widest, wide = self.form.widths[0], self.numbers.pixels[1]
        form, vectors_table = self.form, self.pointer(g, 0)

        def some(width: int, start: Value, stop: Value, first_vector: Callable[[Value], Value]) -> None:
            def tile(number: Value, _: list[str]) -> None:
                vector_number = first_vector(number)
                table = g.at(vectors_table, g.mul(vector_number, self.entry_bytes))
                pixel = g.mul(vector_number, self.lanes)
                done_sums = self.sums_of(g, width, moved, table, pixel, sums)
                where = f"i64 {pixel}" if form.reading.once else f"ptr {table}"
                arguments = [f"ptr {done_sums}", where, f"ptr {moved[2]}", *(f"ptr {p}" for p in others)]
                arguments += [f"i64 {done}"] if self.reads_output else []
                g.call(f"{self.name}.finish{width}", *arguments)

            g.loop(start, stop, tile)

        if len(self.form.widths) == 1:
            some(widest, begin, end, lambda t: g.mul(t, widest))
            return
        middle = g.min(end, wide)
        some(widest, begin, middle, lambda t: g.mul(t, widest))
        later = g.value(f"select i1 {g.compare('sgt', begin, wide)}, i64 {begin}, i64 {wide}")
        some(widest - 1, later, end, lambda t: g.add(g.mul(t, widest - 1), wide))

    def sums_of(self, g: Function, width: int, moved: Sequence[str], table: str, pixel: Value, sums: str) -> str:
        """The sums of a tile by its micro-kernel, and where they lie, pixels side by side."""
        where = [f"ptr {moved[0]}", f"ptr {moved[1]}"]
        if not self.by_filters:
            where += [f"ptr {table}", f"ptr {sums}"]
            whole: Value = 1
            if self.last_alone and self.form.reading.crossed == 1:
                whole = g.compare("sle", g.add(pixel, width * self.lanes), self.numbers.pixels[2])
            plain, ragged = (f"{self.name}.micro{width}{end}" for end in ("", ".ragged"))
            g.when(whole, lambda: g.call(plain, *where), lambda: g.call(ragged, *where))
            return sums
        pixels, size = self.at_once, self.wide * self.lanes * self.width

        def some(number: Value, _: list[str]) -> None:
            places, own = g.at(table, g.mul(number, 8 * pixels)), g.at(sums, g.mul(number, pixels * size))
            g.call(f"{self.name}.micro", *where, f"ptr {places}", f"ptr {own}")

        count: Value = self.lanes // pixels
        if self.form.reading.once and self.form.reading.ragged:
            left = g.sub(self.numbers.pixels[2], pixel)
            count = g.min(count, g.div(g.add(left, pixels - 1), pixels))
        g.loop(0, count, some)
        turned = g.at(sums, self.lanes * size)
        g.call(f"{self.name}.turn", f"ptr {sums}", f"ptr {turned}")
        return turned

    # ---- the sums -----------------------------------------------------------------------------------------------

    def micro(self, count: int, *, masked: bool, name: str = "") -> None:
        """The sums of a tile of so many vectors, to memory; whether they are read under masks."""
        name = f"{self.name}.{name or f'micro{count}'}"
        f = Function(self.module, name, [("ptr", n) for n in ("x", "w", "v", "sums")])
        form, crossed = self.form, self.form.reading.crossed
        rows, memory = form.rows, self.element.memory
        places: list[list[str]] = []
        masks: list[list[tuple[str, ...]]] = []
        short = self.lanes_of(f, "0", self.row_end(f)) if self.short else ()
        for j in range(count):
            entries = [f.at("%v", (j * crossed + s) * _ENTRY_BYTES) for s in range(crossed)]
            places.append([f.at("%x", f.load("i64", at, 8)) for at in entries])
            masks.append([short or (self.masks(f, at) if masked else ()) for at in entries])
        registers = Registers(f, self.target, self.lanes).floats(self.element)
        packed = form.weights == "arranged"
        stride: Value = self.width if packed else self.numbers.filters[1]

        # a tile of one vector multiplies by what lies in memory, and packed weights are read so as well
        some = self.target.has("avx512f") and count > 1 and not packed
        together = _TOGETHER if some else rows

        def term(place: Value, weights: str, held: Sequence[str]) -> list[str]:
            seen = [self.read(f, [f.at(p, place) for p in places[j]], masks[j]) for j in range(count)]
            done: list[str] = []
            for row in range(rows):
                near = row % together
                if row and not near:
                    weights = self.behind(f, f.at(weights, f.mul(stride, together)), done[-1])
                weight = f.load(memory, f.at(weights, f.mul(stride, near)), self.width)
                spread = vectors.broadcast(f, memory, self.lanes, weight)
                done += [registers.multiply_add(spread, x, held[row * count + j]) for j, x in enumerate(seen)]
            return done

        held = self.over_terms(f, term, ["zeroinitializer"] * (rows * count), packed=packed)
        for k, value in enumerate(held):
            f.store(self.full, value, f.at("%sums", k * self.lanes * self.width), self.lanes * self.width)
        f.ret()

    def over_terms(
        self,
        f: Function,
        term: Callable[[Value, str, Sequence[str]], list[str]],
        held: list[str],
        *,
        packed: bool,
    ) -> list[str]:
        """What becomes of values when all terms have passed, each by its place and that of its weights."""
        if self.form.terms is not None:
            for row, behind, weight in self.form.terms:
                held = term(f.add(self.numbers.terms[row], behind), f.at("%w", weight), held)
            return held
        terms, along = self.pointer(f, 1), self.panel_rows * self.width

        def body(number: Value, carried: list[str]) -> list[str]:
            entry = f.at(terms, f.mul(number, 16))
            place = f.load("i64", entry, 8)
            weight = f.mul(number, along) if packed else f.load("i64", f.at(entry, 8), 8)
            return term(place, f.at("%w", weight), carried)

        carry = [(self.full, start) for start in held]
        return [str(value) for value in f.loop(0, self.numbers.terms[0], body, carry=carry, nonempty=True)]

    def micro_of_filters(self) -> None:
        """The sums of some pixels, vectors of filters, to memory: pixel by pixel."""
        f = Function(self.module, f"{self.name}.micro", [("ptr", n) for n in ("x", "w", "v", "sums")])
        pixels, wide, size = self.at_once, self.wide, self.lanes * self.width
        places = [f.at("%x", f.load("i64", f.at("%v", 8 * k), 8)) for k in range(pixels)]
        registers = Registers(f, self.target, self.lanes).floats(self.element)

        def term(place: Value, weights: str, held: Sequence[str]) -> list[str]:
            rows = [f.load(self.full, f.at(weights, k * size), size) for k in range(wide)]
            done: list[str] = []
            for k, at in enumerate(places):
                one = f.load(self.element.memory, f.at(at, place), self.width)
                spread = vectors.broadcast(f, self.element.memory, self.lanes, one)
                done += [registers.multiply_add(spread, w, held[k * wide + j]) for j, w in enumerate(rows)]
            return done

        held = self.over_terms(f, term, ["zeroinitializer"] * (pixels * wide), packed=True)
        for k, value in enumerate(held):
            f.store(self.full, value, f.at("%sums", k * size), size)
        f.ret()

    @property
    def at_once(self) -> int:
        """Pixels of a micro-kernel whose vectors are of filters."""
        return pixels_at_once(self.form.rows, self.lanes, self.target)

    @property
    def turned(self) -> int:
        """Filters whose sums are turned together."""
        return vectors.short_row(self.lanes, self.element.memory)

    def turn(self) -> None:
        """The sums of a vector of pixels, each with its filters, as vectors of pixels."""
        f = Function(self.module, f"{self.name}.turn", [("ptr", "sums"), ("ptr", "turned")])
        q, size = self.turned, self.lanes * self.width

        def some(number: Value, _: list[str]) -> None:
            begin = f.at("%sums", f.mul(number, q * self.width))
            short = vector(self.element.memory, q)
            rows = [f.load(short, f.at(begin, k * self.wide * size), q * self.width) for k in range(self.lanes)]
            for k, row in enumerate(vectors.transpose(f, self.element.memory, self.lanes, rows)):
                f.store(self.full, row, f.at("%turned", f.add(f.mul(number, q * size), k * size)), size)

        f.loop(0, -(-self.form.rows // q), some)
        f.ret()

    def pack(self) -> None:
        """A share of the panels of weights, brought to memory that threads share."""
        form, n = self.form, self.numbers
        count, tasks, _bytes = n.packs
        tasks = 1 if _is_nothing(tasks) else tasks
        g = Function(self.module, f"{self.name}.pack", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        base = g.load("ptr", g.at("%frame", 16), 8)
        to = g.load("ptr", g.at("%frame", 8 * (len(form.tensors) + 1)), 8)
        panels = 1 if _is_nothing(n.parts[0]) else n.parts[0]
        groups = [(extent, stride) for extent, _, stride, _ in n.outer if not _is_nothing(stride)]
        terms: Value = n.terms[0] if form.terms is None else len(form.terms)
        q, size = self.turned, self.lanes * self.width
        along = self.wide * size

        def panel(number: Value, _: list[str]) -> None:
            rest: Value = g.div(number, panels)
            at = g.add(n.offsets[1], g.mul(g.min(g.mul(g.rem(number, panels), form.rows), n.filters[0]), n.filters[1]))
            for extent, stride in reversed(groups):
                at = g.add(at, g.mul(g.rem(rest, extent), stride))
                rest = g.div(rest, extent)
            begin, made = g.at(base, at), g.at(to, g.mul(number, n.filters[3]))
            for k in range(self.wide):
                own = [min(k * self.lanes + lane, form.rows - 1) for lane in range(self.lanes)]
                places = [g.at(begin, g.mul(n.filters[1], one)) for one in own]
                vector_of(places, g.at(made, k * size))

        def vector_of(places: Sequence[str], made: str) -> None:
            def one(number: Value, _: list[str]) -> None:
                if form.weights == "turned":
                    weight = g.mul(number, self.width)
                else:
                    weight = g.load("i64", g.at(self.pointer(g, 1), g.add(g.mul(number, 16), 8)), 8)
                value = "poison"
                for lane, place in enumerate(places):
                    element = g.load(self.element.memory, g.at(place, weight), self.width)
                    value = g.value(f"insertelement {self.full} {value}, {self.element.memory} {element}, i64 {lane}")
                g.store(self.full, value, g.at(made, g.mul(number, along)), size)

            def several(number: Value, _: list[str]) -> None:
                begin, short = g.mul(number, q * self.width), vector(self.element.memory, q)
                rows = [g.load(short, g.at(place, begin), self.width) for place in places]
                for k, row in enumerate(vectors.transpose(g, self.element.memory, self.lanes, rows)):
                    g.store(self.full, row, g.at(made, g.mul(g.add(g.mul(number, q), k), along)), size)

            whole: Value = g.div(terms, q) if form.weights == "turned" else 0
            g.loop(0, whole, several)
            g.loop(g.mul(whole, q), terms, one)

        begin, end = (g.div(g.mul(g.add("%task", k), count), tasks) for k in range(2))
        g.loop(begin, end, panel)
        g.ret()

    def behind(self, f: Function, pointer: str, value: str) -> str:
        """An address that LLVM takes to follow from a vector: what is read there is read when that is known."""
        return f.value(f'call ptr asm "", "=r,0,v"(ptr {pointer}, {self.full} {value})')

    def masks(self, f: Function, entry: str) -> tuple[str, ...]:
        """The lanes of a segment, and what is read for them."""
        begin, end = (f.load("i32", f.at(entry, 8 + 4 * k), 4) for k in range(2))
        return self.lanes_of(f, begin, end)

    def row_end(self, f: Function) -> str:
        """The pixels of a row that is shorter than a vector."""
        extent = self.numbers.pixels[3]
        return str(extent) if isinstance(extent, int) else f.value(f"trunc i64 {extent} to i32")

    def lanes_of(self, f: Function, begin: str, end: str) -> tuple[str, ...]:
        """The lanes from one to another, and what is read for them."""
        own = self.between(f, begin, end, 0)
        if self.form.reading.step == 1:
            return (own,)
        low = f.value(f"shl i32 {begin}, 1")
        high = f.value(f"sub i32 {f.value(f'shl i32 {end}, 1')}, 1")
        return own, self.between(f, low, high, 0), self.between(f, low, high, self.lanes)

    def between(self, f: Function, begin: str, end: str, first: int) -> str:
        """The lanes, numbered from `first` on, that lie between two numbers."""
        kind = f"<{self.lanes} x i32>"
        lanes = "<" + ", ".join(f"i32 {first + lane}" for lane in range(self.lanes)) + ">"
        above = f.value(f"icmp sge {kind} {lanes}, {vectors.broadcast(f, 'i32', self.lanes, begin)}")
        below = f.value(f"icmp slt {kind} {lanes}, {vectors.broadcast(f, 'i32', self.lanes, end)}")
        return f.value(f"and <{self.lanes} x i1> {above}, {below}")

    def read(self, f: Function, places: Sequence[str], masks: Sequence[tuple[str, ...]]) -> str:
        """A vector of pixels, from its segments."""
        e, lanes = self.element, self.lanes
        if self.form.reading.step == 1:
            value = vectors.load(f, e, lanes, places[0], masks[0][0] if masks[0] else None)
            for place, mask in zip(places[1:], masks[1:], strict=True):
                value = vectors.load(f, e, lanes, place, mask[0], others=value)
            return value
        even = "<" + ", ".join(f"i32 {2 * lane}" for lane in range(lanes)) + ">"
        if not masks[0]:  # all lanes are read, and the second vector ends with the last one that is needed
            odd = "<" + ", ".join(f"i32 {2 * lane + (2 * lane >= lanes)}" for lane in range(lanes)) + ">"
            pair = (f.load(self.full, f.at(places[0], k * (lanes - 1) * self.width), self.width) for k in range(2))
            return f.value(f"shufflevector {self.full} {next(pair)}, {self.full} {next(pair)}, <{lanes} x i32> {odd}")
        value = ""
        for place, mask in zip(places, masks, strict=True):
            low = vectors.load(f, e, lanes, place, mask[1])
            high = vectors.load(f, e, lanes, f.at(place, lanes * self.width), mask[2])
            both = f.value(f"shufflevector {self.full} {low}, {self.full} {high}, <{lanes} x i32> {even}")
            if value:
                both = f.value(f"select <{lanes} x i1> {mask[0]}, {self.full} {both}, {self.full} {value}")
            value = both
        return value

    # ---- what follows -------------------------------------------------------------------------------------------

    def finish(self, count: int) -> None:
        """The sums of a tile through the chain, into the output."""
        e, once, pixels = self.element, self.form.reading.once, self.numbers.pixels
        extras = self.form.extras
        where = ("i64", "pixel") if once else ("ptr", "v")
        names = [("ptr", "sums"), where, ("ptr", "out"), *(("ptr", f"e{k}") for k in range(len(extras)))]
        names += [("i64", "done")] if self.reads_output else []
        f = Function(self.module, f"{self.name}.finish{count}", names)
        if not once:  # of each vector, the table has the bytes to the first pixel
            outs = [f.at("%out", f.load("i64", f.at("%v", (j + 1) * self.entry_bytes - 8), 8)) for j in range(count)]
            starts = [f"%e{k}" for k in range(len(extras))]
        else:
            pixel_bytes = f.mul("%pixel", self.width)
            outs = [f.at("%out", f.add(pixel_bytes, j * self.lanes * self.width)) for j in range(count)]
            starts = [f.at(f"%e{k}", pixel_bytes if along else 0) for k, (_, _, along) in enumerate(extras)]
        strides = [extra[1] for extra in self.numbers.extras]

        def row(number: Value, masks: Sequence[str | None]) -> None:
            values = {}
            moved = [f.at(start, f.mul(number, stride)) for start, stride in zip(starts, strides, strict=True)]
            for (o, _tensor, along), at in zip(extras, moved, strict=True):
                if not along:
                    values[o] = vectors.broadcast(f, e.memory, self.lanes, f.load(e.memory, at, self.width))
            targets = [f.at(out, f.mul(number, self.numbers.filters[2])) for out in outs]
            for j in range(count):
                size = self.lanes * self.width
                sums = f.load(self.full, f.at("%sums", f.mul(f.add(f.mul(number, count), j), size)), size)
                for (o, _tensor, along), at in zip(extras, moved, strict=True):
                    if along:
                        values[o] = vectors.load(f, e, self.lanes, f.at(at, j * size), masks[j])
                result = self.chained(f, {**values, self.sums: sums}) if self.chain is not None else sums
                vectors.store(f, e, self.lanes, result, targets[j], masks[j])

        def rows(masks: Sequence[str | None]) -> None:
            first: Value = "%done" if self.reads_output else 0
            f.loop(first, self.form.rows, lambda number, _: row(number, masks))

        def ragged() -> None:
            left = [f.sub(pixels[2], f.add("%pixel", j * self.lanes)) for j in range(count)]
            rows([vectors.mask_below(f, str(each), self.lanes) for each in left])

        if self.short:
            rows([vectors.mask_below(f, str(pixels[3]), self.lanes)] * count)
        elif not self.form.reading.ragged:
            rows([None] * count)
        elif not self.last_alone:
            ragged()
        else:
            whole = f.compare("sle", f.add("%pixel", count * self.lanes), pixels[2])
            f.when(whole, lambda: rows([None] * count), ragged)
        f.ret()

    @property
    def reads_output(self) -> bool:
        """Whether the chain may read what lies where its result goes, so that no element may be stored twice."""
        return any(along for _, _, along in self.form.extras)

    def chained(self, f: Function, held: dict[int, str]) -> str:
        """The last result of the chain's stages on one vector."""
        registers, e = Registers(f, self.target, self.lanes), self.element
        result = ""
        for stage in self.chain.stages if self.chain is not None else ():
            inputs: list[tuple[str, Element]] = [(held[o], e) for o in stage.inputs]
            result = held[stage.output] = registers.value(stage.kind, inputs, e, number=stage.number)
        return result


def _is_nothing(number: int) -> bool:
    """Whether a number is 0, which no word of the table is."""
    return known(number) and number == 0
