"""The code of a direct convolution: register tiles of filters by pixels, read in place, finished in registers.

A job is one panel of filters on one block of pixels of one image. For each tile of pixels the sums stand in registers
while the terms pass; then each is brought through the chain and stored. Where vectors of pixels lie, and the terms of
long sums, is said by arrays beside the code; extents and strides are read from the table of the call. So one text
serves all images that have its register tile, its segments per vector, and its short sums.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.direct.match import Convolution, RegisterTiling, tiling
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import address_of, aligned
from tileweave.teir.merged.form import Mode

UNROLLED_TERMS = 32
"""Sums of so few terms are written out, with the places of the terms in the instructions."""
SEQUENTIAL_PRODUCTS = 1 << 18
"""Products of a convolution that one thread computes: some 3 us, less than another thread takes to begin."""
_ROW_PIXELS = 8
"""Terms so near behind another have their places in the instructions, beside its."""
_ENTRY_BYTES = 16
"""Of a segment in the table of vectors: bytes to lane 0, first lane, last lane."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are arranged, once: panels of filters, in each the terms, in each the filters of the panel."""

    c: Convolution
    rows: int

    @property
    def size_bytes(self) -> int:
        """What the arranged weights take."""
        groups = prod(mode.extent for mode in self.c.outer if mode.strides[1])
        panels = -(-self.c.filters[0] // self.rows)
        return groups * panels * self.rows * len(self.c.terms) * self.c.element.width_bytes

    @property
    def order(self) -> object:
        """What the order of the elements depends on."""
        groups = tuple((mode.extent, mode.strides[1]) for mode in self.c.outer if mode.strides[1])
        return self.rows, self.c.filters[:2], groups, tuple(place for _, place in self.c.terms)

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """The weights as the code reads them."""
        c, width = self.c, self.c.element.width_bytes
        first = np.minimum(np.arange(0, c.filters[0], self.rows), c.filters[0] - self.rows)
        row = (first[:, None, None] + np.arange(self.rows)) * (c.filters[1] // width)
        places = row + np.array([place for _, place in c.terms])[:, None] // width
        groups = [range(mode.extent) for mode in c.outer if mode.strides[1]]
        strides = [mode.strides[1] // width for mode in c.outer if mode.strides[1]]
        starts = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*groups)]
        reach = int(places.max()) + max(starts) + 1  # places are of the array as it lies, a transposed one too
        flat = np.lib.stride_tricks.as_strided(array, (reach,), (width,), writeable=False)
        made = aligned((len(starts), places.size), array.dtype)
        for part, start in zip(made, starts, strict=True):
            part[:] = flat[places + start].reshape(-1)
        return made.reshape(-1)


def emit_direct(
    module: Module, target: Target, name: str, c: Convolution, threads: int
) -> tuple[tuple[str, ...], Packing | None, tuple[NDArray[Any], ...]]:
    """Add the function ``name(env, thread, p0, p1, ..)``, a pointer per tensor.

    Returns:
        How it works, in a few lines; how the weights are arranged, if they are; and arrays that the code reads.
    """
    tiles = tiling(c, target)
    tables = _Writer(module, target, name, c, tiles, threads).write()
    outer = prod(mode.extent for mode in c.outer)
    lines = (
        f"direct convolution: {tiles.filters} filters by {tiles.widths[0]} vectors of pixels, {len(c.terms)} terms",
        f"{len(tiles.widths)} tiles in {tiles.blocks} blocks, {outer} images and groups, "
        f"{tiles.crossed} loads per vector{', packed weights' if c.packed else ''}"
        + (", the chain in registers" if c.chain is not None else ""),
    )
    return lines, Packing(c, tiles.filters) if c.packed else None, tables


@dataclass
class _Writer:
    """Writes the functions of one convolution."""

    module: Module
    target: Target
    name: str
    c: Convolution
    tiles: RegisterTiling
    threads: int

    def __post_init__(self) -> None:
        c = self.c
        self.width = c.element.width_bytes
        self.lanes = self.target.lanes(self.width)
        self.full = vector(c.element.memory, self.lanes)
        self.short = c.short(self.target)
        self.masked = self.short or (not c.by_rows and (self.tiles.crossed > 1 or c.pixels % self.lanes != 0))
        self.panels = -(-c.filters[0] // self.tiles.filters)
        self.pointers = c.pointers
        self.places: tuple[int, ...] = ()  # of the tables

    def size(self, number: int) -> int:
        """A number of bytes, or a count, as code reads it: nothing stays nothing."""
        return self.module.sizes.parameter(number) if number and self.module.sizes is not None else number

    def write(self) -> tuple[NDArray[Any], ...]:
        """The function, its task, and a micro-kernel for each width of a tile; returns arrays that the code reads."""
        c, f = self.c, Function(self.module, self.name, self.parameters())
        frame = f.slot("ptr", 1 + len(self.pointers))
        f.store("ptr", "%env", frame, 8)
        for k, tensor in enumerate(self.pointers):
            f.store("ptr", f"%p{tensor}", f.at(frame, 8 * (k + 1)), 8)
        jobs = prod(mode.extent for mode in c.outer) * self.tiles.blocks * self.panels
        count = min(jobs, 4 * self.threads) if self.threads > 1 and c.products > SEQUENTIAL_PRODUCTS else 1
        task = f"{self.name}.task"
        if count > 1:
            run_tasks(f, task, frame, self.size(count))
        else:
            f.call(task, f"ptr {frame}", "i64 0", "i64 %thread")
        f.ret()
        tables = self.tables()
        for vectors_of_tile in dict.fromkeys(self.tiles.widths):
            self.micro(vectors_of_tile)
            self.finish(vectors_of_tile)
        self.task(task, self.size(jobs), self.size(count) if count > 1 else 1)
        return tables

    def parameters(self) -> list[tuple[str, str]]:
        last = max(self.pointers)
        return [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(last + 1))]

    # ---- tables -------------------------------------------------------------------------------------------------

    def tables(self) -> tuple[NDArray[Any], ...]:
        """Where vectors of pixels lie in the windowed operand, and where the terms of a sum do."""
        tables = (self.c.segments(self.target), np.array(self.c.terms, "i8"))
        self.places = tuple(self.size(address_of(table)) for table in tables)
        return tables

    def pointer(self, f: Function, table: int) -> str:
        """Where a table begins."""
        return f.value(f"inttoptr i64 {self.places[table]} to ptr")

    @property
    def looped(self) -> bool:
        """Whether the terms are a loop."""
        size = self.tiles.filters * self.tiles.widths[0]
        return len(self.c.terms) > UNROLLED_TERMS or len(self.c.terms) * size > 1200

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def task(self, name: str, jobs: int, count: int) -> None:
        """A share of the jobs."""
        c, tiles, size = self.c, self.tiles, self.size
        g = Function(self.module, name, [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        bases = {t: g.load("ptr", g.at("%frame", 8 * (k + 1)), 8) for k, t in enumerate(self.pointers)}
        sums = g.slot(self.full, tiles.filters * tiles.widths[0])
        outer = [Mode(size(mode.extent), tuple(map(size, mode.strides))) for mode in c.outer]
        panels = size(self.panels) if self.panels > 1 else 1
        blocks = size(tiles.blocks) if tiles.blocks > 1 else 1

        def job(flat: Value, _: list[str]) -> None:
            panel, rest = g.rem(flat, panels), g.div(flat, panels)
            block, rest = g.rem(rest, blocks), g.div(rest, blocks)
            digits: list[Value] = []
            for k, mode in enumerate(reversed(outer)):
                digits.insert(0, g.rem(rest, mode.extent) if k < len(outer) - 1 else rest)
                rest = g.div(rest, mode.extent)
            first = g.min(g.mul(panel, tiles.filters), size(c.filters[0] - tiles.filters))
            moved = []
            for k, tensor in enumerate(c.tensors):
                at: Value = size(c.offsets[k])
                for digit, mode in zip(digits, outer, strict=True):
                    at = g.add(at, g.mul(digit, mode.strides[k]))
                if k:
                    at = g.add(at, g.mul(first, size(c.filters[k])))
                if k == 1 and c.packed:
                    at = self.packed_panel(g, digits, panel)
                moved.append(g.at(bases[tensor], at))
            others = []
            for extra in c.extras.values():
                at = g.add(size(extra.offset), g.mul(first, size(extra.filter_stride)))
                for digit, stride in zip(digits, extra.outer_strides, strict=True):
                    at = g.add(at, g.mul(digit, size(stride)))
                others.append(g.at(bases[extra.tensor], at))
            n = size(len(tiles.widths))
            begin = g.div(g.mul(block, n), blocks)
            end = g.div(g.mul(g.add(block, 1), n), blocks)
            self.tiles_of(g, begin, end, moved, others, sums)

        g.loop(g.div(g.mul("%task", jobs), count), g.div(g.mul(g.add("%task", 1), jobs), count), job)
        g.ret()

    def packed_panel(self, g: Function, digits: Sequence[Value], panel: Value) -> Value:
        """Where a panel of packed weights begins."""
        number: Value = 0
        for digit, mode in zip(digits, self.c.outer, strict=True):
            if mode.strides[1]:
                number = g.add(g.mul(number, self.size(mode.extent)), digit)
        panel_bytes = self.size(len(self.c.terms) * self.tiles.filters * self.width)
        return g.mul(g.add(g.mul(number, self.size(self.panels)), panel), panel_bytes)

    def tiles_of(
        self, g: Function, begin: Value, end: Value, moved: Sequence[str], others: Sequence[str], sums: str
    ) -> None:
        """Tiles of pixels, by number: the wide ones first."""
        widest, wide = self.tiles.widths[0], self.size(self.tiles.wide)
        crossed, vectors_table = self.tiles.crossed, self.pointer(g, 0)

        def some(width: int, start: Value, stop: Value, first_vector: Callable[[Value], Value]) -> None:
            def tile(number: Value, _: list[str]) -> None:
                vector_number = first_vector(number)
                table = g.at(vectors_table, g.mul(vector_number, crossed * _ENTRY_BYTES))
                g.call(f"{self.name}.micro{width}", f"ptr {moved[0]}", f"ptr {moved[1]}", f"ptr {table}", f"ptr {sums}")
                pixel = g.mul(vector_number, self.lanes)
                where = f"ptr {table}" if self.c.by_rows else f"i64 {pixel}"
                arguments = [f"ptr {sums}", where, f"ptr {moved[2]}", *(f"ptr {p}" for p in others)]
                g.call(f"{self.name}.finish{width}", *arguments)

            g.loop(start, stop, tile)

        if self.tiles.wide == len(self.tiles.widths):
            some(widest, begin, end, lambda t: g.mul(t, widest))
            return
        middle = g.min(end, wide)
        some(widest, begin, middle, lambda t: g.mul(t, widest))
        later = g.value(f"select i1 {g.compare('sgt', begin, wide)}, i64 {begin}, i64 {wide}")
        some(widest - 1, later, end, lambda t: g.add(g.mul(t, widest - 1), wide))

    # ---- the sums -----------------------------------------------------------------------------------------------

    def micro(self, count: int) -> None:
        """The sums of a tile of so many vectors, to memory."""
        f = Function(self.module, f"{self.name}.micro{count}", [("ptr", n) for n in ("x", "w", "v", "sums")])
        rows, crossed = self.tiles.filters, self.tiles.crossed
        places: list[list[str]] = []
        masks: list[list[tuple[str, ...]]] = []
        short = self.lanes_of(f, "0", self.row_end(f)) if self.short else ()
        for j in range(count):
            entries = [f.at("%v", (j * crossed + s) * _ENTRY_BYTES) for s in range(crossed)]
            places.append([f.at("%x", f.load("i64", at, 8)) for at in entries])
            masks.append([short or (self.masks(f, at) if self.masked else ()) for at in entries])
        numbers = Registers(f, self.target, self.lanes).floats(self.c.element)
        stride: Value = self.width if self.c.packed else self.size(self.c.filters[1])
        along = rows * self.width  # from term to term, in packed weights

        def term(place: Value, weights: str, held: Sequence[str]) -> list[str]:
            seen = [self.read(f, [f.at(p, place) for p in places[j]], masks[j]) for j in range(count)]
            done: list[str] = []
            for row in range(rows):
                weight = f.load(self.c.element.memory, f.at(weights, f.mul(stride, row)), self.width)
                spread = vectors.broadcast(f, self.c.element.memory, self.lanes, weight)
                done += [numbers.multiply_add(spread, x, held[row * count + j]) for j, x in enumerate(seen)]
            return done

        held: list[str] = ["zeroinitializer"] * (rows * count)
        if self.looped:
            terms = self.pointer(f, 1)

            def body(number: Value, carried: list[str]) -> list[str]:
                entry = f.at(terms, f.mul(number, 16))
                place = f.load("i64", entry, 8)
                weight = f.mul(number, along) if self.c.packed else f.load("i64", f.at(entry, 8), 8)
                return term(place, f.at("%w", weight), carried)

            count_of_terms = self.size(len(self.c.terms))
            carry = [(self.full, start) for start in held]
            sums = f.loop(0, count_of_terms, body, carry=carry, nonempty=True)
            held = [str(value) for value in sums]
        else:
            near: dict[int, int] = {}  # where rows of a window begin, as code reads it
            for number, (place, weight) in enumerate(self.c.terms):
                row = next((row for row in near if 0 <= place - row < _ROW_PIXELS * self.width), place)
                begin = near.setdefault(row, self.size(row))
                at = f.at("%w", number * along if self.c.packed else weight)
                held = term(f.add(begin, place - row), at, held)
        for k, value in enumerate(held):
            f.store(self.full, value, f.at("%sums", k * self.lanes * self.width), self.lanes * self.width)
        f.ret()

    def masks(self, f: Function, entry: str) -> tuple[str, ...]:
        """The lanes of a segment, and what is read for them."""
        begin, end = (f.load("i32", f.at(entry, 8 + 4 * k), 4) for k in range(2))
        return self.lanes_of(f, begin, end)

    def row_end(self, f: Function) -> str:
        """The pixels of a row that is shorter than a vector."""
        extent = self.size(self.c.rows[-1][0])
        return str(extent) if isinstance(extent, int) else f.value(f"trunc i64 {extent} to i32")

    def lanes_of(self, f: Function, begin: str, end: str) -> tuple[str, ...]:
        """The lanes from one to another, and what is read for them."""
        own = self.between(f, begin, end, 0)
        if self.c.step == 1:
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
        e, lanes = self.c.element, self.lanes
        if self.c.step == 1:
            value = vectors.load(f, e, lanes, places[0], masks[0][0] if masks[0] else None)
            for place, mask in zip(places[1:], masks[1:], strict=True):
                value = vectors.load(f, e, lanes, place, mask[0], others=value)
            return value
        even = "<" + ", ".join(f"i32 {2 * lane}" for lane in range(lanes)) + ">"
        value = ""
        for place, mask in zip(places, masks, strict=True):
            low = vectors.load(f, e, lanes, place, mask[1] if mask else None)
            last = vectors.mask_of(lanes - 1, lanes)  # the element behind the last one that is needed may be nobody's
            high = vectors.load(f, e, lanes, f.at(place, lanes * self.width), mask[2] if mask else last)
            both = f.value(f"shufflevector {self.full} {low}, {self.full} {high}, <{lanes} x i32> {even}")
            if value:
                both = f.value(f"select <{lanes} x i1> {mask[0]}, {self.full} {both}, {self.full} {value}")
            value = both
        return value

    # ---- what follows -------------------------------------------------------------------------------------------

    def finish(self, count: int) -> None:
        """The sums of a tile through the chain, into the output."""
        c = self.c
        extras = list(c.extras)
        where = ("ptr", "v") if c.by_rows else ("i64", "pixel")
        names = [("ptr", "sums"), where, ("ptr", "out"), *(("ptr", f"e{k}") for k in range(len(extras)))]
        f = Function(self.module, f"{self.name}.finish{count}", names)
        if c.by_rows:  # of each vector, the table has the first pixel
            firsts = [f.load("i32", f.at("%v", j * _ENTRY_BYTES + 8), 4) for j in range(count)]
            wide = [f.value(f"sext i32 {first} to i64") for first in firsts]
            outs = [f.at("%out", f.mul(pixel, self.width)) for pixel in wide]
            starts = [f"%e{k}" for k in range(len(extras))]
        else:
            pixel_bytes = f.mul("%pixel", self.width)
            outs = [f.at("%out", f.add(pixel_bytes, j * self.lanes * self.width)) for j in range(count)]
            starts = [f.at(f"%e{k}", pixel_bytes if c.extras[o].along_pixels else 0) for k, o in enumerate(extras)]
        strides = {o: self.size(c.extras[o].filter_stride) for o in extras}
        out_stride = self.size(c.filters[2])
        row_mask = vectors.mask_below(f, str(self.size(c.rows[-1][0])), self.lanes) if self.short else None
        masks = [
            vectors.mask_below(f, str(f.sub(self.size(c.pixels), f.add("%pixel", j * self.lanes))), self.lanes)
            if c.pixels % self.lanes and not c.by_rows
            else row_mask
            for j in range(count)
        ]

        def row(number: Value, _: list[str]) -> None:
            values = {}
            moved = [f.at(start, f.mul(number, strides[o])) for o, start in zip(extras, starts, strict=True)]
            for o, at in zip(extras, moved, strict=True):
                if not c.extras[o].along_pixels:
                    one = f.load(c.element.memory, at, self.width)
                    values[o] = vectors.broadcast(f, c.element.memory, self.lanes, one)
            targets = [f.at(out, f.mul(number, out_stride)) for out in outs]
            for j in range(count):
                size = self.lanes * self.width
                sums = f.load(self.full, f.at("%sums", f.mul(f.add(f.mul(number, count), j), size)), size)
                for o, at in zip(extras, moved, strict=True):
                    if c.extras[o].along_pixels:
                        values[o] = vectors.load(f, c.element, self.lanes, f.at(at, j * size), masks[j])
                result = self.chained(f, {**values, c.sums: sums}) if c.chain is not None else sums
                vectors.store(f, c.element, self.lanes, result, targets[j], masks[j])

        f.loop(0, self.tiles.filters, row)
        f.ret()

    def chained(self, f: Function, held: dict[int, str]) -> str:
        """The last result of the chain's stages on one vector."""
        registers, e = Registers(f, self.target, self.lanes), self.c.element
        result = ""
        for stage in self.c.chain.stages if self.c.chain is not None else ():
            inputs: list[tuple[str, Element]] = [(held[o], e) for o in stage.inputs]
            result = held[stage.output] = registers.value(stage.kind, inputs, e, number=stage.number)
        return result
