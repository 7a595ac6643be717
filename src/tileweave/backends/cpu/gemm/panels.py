"""The free axes of one operand, cut into panels: tables of addresses, and packing.

They are the axes that the output shares with the operand, flattened into one index, the axis with the least output
stride fastest. A *panel* is ``width`` consecutive indices, held as ``groups`` vectors of ``lanes`` elements. Panels pay
no attention to the borders of axes, so nothing is wasted there. Where elements lie is said by tables, filled per panel:

- a *lane table* holds, for each index of a panel, the byte offset in the operand and in the output;
- a *segment table* holds, for each vector, up to ``segments`` runs of lanes that are dense in the fastest axis:
  a byte offset in the operand, one in the output, and the mask of the lanes. Offsets are those of lane 0, whether or
  not lane 0 belongs to the run, so that a masked access needs no shuffle.

Packing copies a block of K times a panel into ``[k][width]`` order, in the type in which sums are formed; where
products are `Contracted.paired`, into ``[k / 2][width][2]`` of 16 bits, or ``[k / 4][width][4]`` of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, convert, splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode, points

SEGMENT_BYTES = 24
"""A run of a vector in a table: where its first lane would lie in the operand and in the output, and its mask."""
LANE_BYTES = 16
"""An index in a table: where it lies in the operand and in the output."""
_MOST_SEGMENTS = 4
"""Runs that make up a vector, at most: each is a load of its own, under a mask; beyond, elements are met one by one."""
_PRODUCTS_AHEAD, _BYTES_AHEAD = 2, 768
"""How far ahead of its use a line is asked for: in products, or along a row."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Axes as (extent, strides = (operand, output)), fastest first, and how they are cut.

    Args:
        dims: fastest first; possibly none.
        element: of the operand.
        sums: the type in which the panel is packed.
        output_bytes: width of an output element.
        width: indices per panel.
        lanes: elements per vector; a power of two.
    """

    dims: tuple[Mode, ...]
    element: Element
    sums: Element
    output_bytes: int
    width: int
    lanes: int

    @property
    def total(self) -> int:
        """How many indices there are."""
        return points(self.dims)

    @property
    def panels(self) -> int:
        """How many panels there are; the last one may be partial."""
        return -(-self.total // self.width)

    @property
    def groups(self) -> int:
        """Vectors per panel."""
        return -(-self.width // self.lanes)

    @property
    def segments(self) -> int:
        """The most runs of the fastest axis that a vector meets."""
        dims = self.stored
        if len(dims) < 2 or (dims[0].extent % self.lanes == 0 and self.width % self.lanes == 0):
            return 1
        return index((self.lanes - 2) // dims[0].extent + 2) if self.lanes > 1 else 1

    @property
    def stored(self) -> tuple[Mode, ...]:
        """The axes as segments meet them: one, where the output has them in a row and the operand is read otherwise."""
        dims = self.dims
        if len(dims) < 2 or dims[0].strides[0] == self.element.width_bytes:
            return dims
        if any(far.strides[1] != near.extent * near.strides[1] for near, far in pairwise(dims)):
            return dims
        return (Mode(self.total, (0, dims[0].strides[1])),)

    @property
    def operand_dense(self) -> bool:
        """Whether segments describe the operand."""
        return self._dense(0, self.element.width_bytes)

    @property
    def output_dense(self) -> bool:
        """Whether segments describe the output."""
        return self._dense(1, self.output_bytes)

    def _dense(self, which: int, width_bytes: int) -> bool:
        if not self.dims or self.segments > _MOST_SEGMENTS or self.lanes == 1:
            return False
        return self.dims[0].strides[which] == width_bytes

    @property
    def grouped(self) -> bool:
        """Whether the operand is dense in the second axis while every vector is one run of the first."""
        if len(self.dims) < 2 or self.lanes == 1 or self.operand_dense:
            return False
        first, second = self.dims[:2]
        q = vectors.short_row(self.lanes, self.sums.memory)
        fits = first.extent == self.lanes and self.width == self.groups * self.lanes
        dense = second.strides[0] == self.element.width_bytes
        return fits and dense and second.extent % q == 0 and second.extent % self.groups == 0

    @property
    def pack_panels(self) -> int:
        """How many panels are packed at once."""
        return self.dims[1].extent // self.groups if self.grouped else 1

    @property
    def segment_table_bytes(self) -> int:
        """One panel's segments, and one word: whether every vector is one whole segment."""
        return 8 + self.groups * self.segments * SEGMENT_BYTES

    @property
    def lane_table_bytes(self) -> int:
        """One panel's lanes; the word after them says how many are inside."""
        return self.width * LANE_BYTES


@dataclass(frozen=True, slots=True)
class Contracted:
    """The contracted axes as (extent, strides = (row operand, vector operand)), fastest first.

    ``interleaved`` says that the row operand is dense in the second axis, and that every block of K holds whole tiles
    of the first two. ``paired``: by which feature of the processor two 16-bit products are formed at
    a time, or four of 8 bits, side by side in 32 bits of a packed panel, zero where there are no more; empty where one
    is. ``together``: how many.
    """

    dims: tuple[Mode, ...]
    interleaved: bool = False
    paired: str = ""
    together: int = 1

    @property
    def held_bytes(self) -> int:
        """The width of a packed element where products are formed together."""
        return 4 // self.together

    @property
    def total(self) -> int:
        """How many products each sum has."""
        return points(self.dims)

    @property
    def tabled(self) -> bool:
        """Whether offsets come from a table, there being more than one axis."""
        return len(self.dims) > 1

    def stride(self, operand: int) -> int:
        """The only axis' stride."""
        return self.dims[0].strides[operand] if self.dims else 0

    def dense(self, operand: int, width_bytes: int) -> bool:
        """Whether the fastest contracted axis is dense in an operand."""
        return bool(self.dims) and self.dims[0].strides[operand] == width_bytes

    def offset(self, f: Function, operand: int, table: str, k: Value) -> Value:
        """The byte offset of the k-th product of the current block in an operand.

        The table holds pairs, relative to the block's first product where there is one axis only.
        """
        if not self.tabled:
            return f.mul(k, self.stride(operand))
        return f.load("i64", f.at(table, f.add(f.mul(k, 16), 8 * operand)), 8)

    def emit_table(self, module: Module, name: str) -> None:
        """Add ``name(table, first, count)``, which fills the pairs of a block."""
        f = Function(module, name, [("ptr", "table"), ("i64", "first"), ("i64", "count")])

        def one(index: Value, _: list[str]) -> None:
            rest = f.add("%first", index)
            offsets: list[Value] = [0, 0]
            for dim in self.dims:
                digit = f.rem(rest, dim.extent) if dim is not self.dims[-1] else rest
                rest = f.div(rest, dim.extent)
                offsets = [f.add(o, f.mul(digit, s)) for o, s in zip(offsets, dim.strides, strict=True)]
            for k, offset in enumerate(offsets):
                f.store("i64", offset, f.at("%table", f.add(f.mul(index, 16), 8 * k)), 8)

        f.loop(0, "%count", one)
        f.ret()


# ---- packing ----------------------------------------------------------------------------------------------------


def emit_pack(
    module: Module, target: Target, name: str, panels: Panels, contracted: Contracted, operand: int, *, far: bool
) -> None:
    """Add ``name(into, source, ktable, kfirst, kcount, segments, lanes, panelbytes, tablebytes, groups)``.

    It packs one panel of one block, or, for `Panels.grouped` columns, ``groups`` times `Panels.pack_panels` panels that
    lie ``panelbytes`` apart and whose groups' tables lie ``tablebytes`` apart.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        panels: the panels to pack.
        contracted: the contracted axes.
        operand: 0 for the row operand, 1 for the vector operand: whose strides of the contracted axes count.
        far: whether lines are asked for before they are read.
    """
    f = Function(
        module,
        name,
        [("ptr", "into"), ("ptr", "source"), ("ptr", "ktable"), ("i64", "kfirst"), ("i64", "kcount")]
        + [("ptr", "segments"), ("ptr", "lanes"), ("i64", "panelbytes"), ("i64", "tablebytes"), ("i64", "groups")],
    )
    packer = Packer(f, target, panels, contracted, operand, far=far)
    if panels.grouped and operand == 1:  # row panels are packed one by one
        packer.grouped()
    elif panels.operand_dense:
        packer.dense()
    elif panels.lanes > 1 and contracted.dense(operand, panels.element.width_bytes):
        packer.transposed()
    elif panels.lanes > 1 and contracted.interleaved and operand == 0:
        packer.crossed()
    else:
        packer.gathered()
    f.ret()


class Packer:
    """The three ways to pack, by where the operand is dense."""

    def __init__(
        self, f: Function, target: Target, panels: Panels, contracted: Contracted, operand: int, *, far: bool
    ) -> None:
        self.f = f
        self.target = target
        self.panels = panels
        self.contracted = contracted
        self.operand = operand
        self.row_bytes = panels.width * panels.sums.width_bytes
        self.together = contracted.together
        self.far = far

    def prefetch(self, start: str, places: Sequence[Value]) -> None:
        """Lines that will be read soon, of an operand too large for the second cache."""
        for place in places:
            vectors.prefetch(self.f, self.f.at(start, place))

    def source(self, k: Value) -> str:
        """Where the operand's k-th product of the block begins."""
        return self.f.at("%source", self.contracted.offset(self.f, self.operand, "%ktable", k))

    def put(self, values: Sequence[str], row: Value, group: int) -> None:
        """One vector of a packed row; of two products, their elements side by side."""
        f, panels, lanes = self.f, self.panels, self.panels.lanes
        place = f.at("%into", f.add(f.mul(row, self.row_bytes), group * lanes * panels.sums.width_bytes))
        if not self.contracted.paired:
            value = convert(f, self.target, values[0], panels.element, panels.sums, lanes)
            f.store(vector(panels.sums.memory, lanes), value, place, panels.sums.width_bytes)
            return
        part = 8 * self.contracted.held_bytes
        wide = [f.value(f"zext <{lanes} x i{part}> {self.held(v, lanes)} to <{lanes} x i32>") for v in values]
        word = wide[0]
        for k, value in enumerate(wide[1:], 1):
            high = f.value(f"shl <{lanes} x i32> {value}, {splat('i32', lanes, str(k * part))}")
            word = f.value(f"or <{lanes} x i32> {word}, {high}")
        f.store(f"<{lanes} x i32>", word, place, 4)

    def held(self, value: str, count: int = 1) -> str:
        """Elements as they are packed where products are formed together: those of 8 bits may be held in 16."""
        part, memory = f"i{8 * self.contracted.held_bytes}", self.panels.element.memory
        if memory == part:
            return value
        return self.f.value(f"sext {vector(memory, count)} {value} to {vector(part, count)}")

    def rows(self, row: Callable[[Value, Sequence[Value]], None]) -> None:
        """Every packed row and its products; a product that is not there is -1."""
        f = self.f
        if not self.contracted.paired:
            f.loop(0, "%kcount", lambda k, _: row(k, [k]))
            return
        together = self.together
        whole = f.div("%kcount", together)

        def products(number: Value, count: int) -> list[Value]:
            there: list[Value] = [f.add(f.mul(number, together), k) if k else f.mul(number, together)
                                  for k in range(count)]  # fmt: skip
            return there + [-1] * (together - count)

        f.loop(0, whole, lambda number, _: row(number, products(number, together)))
        for left in range(1, together):
            there = f.compare("eq", f.rem("%kcount", together), left)
            f.when(there, lambda left=left: row(whole, products(whole, left)))  # type: ignore[misc]

    def dense(self) -> None:
        """The panel's own fastest axis: whole vectors where possible, runs of lanes otherwise."""
        f, panels = self.f, self.panels
        full = f.value(f"icmp ne i64 {f.load('i64', '%segments', 8)}, 0")

        def whole() -> None:
            offsets = [self.word(group, 0, 0) for group in range(panels.groups)]

            def loaded(k: Value, group: int) -> str:
                if k == -1:
                    return "zeroinitializer"
                return vectors.load(f, panels.element, panels.lanes, f.at(self.source(k), offsets[group]))

            def row(number: Value, products: Sequence[Value]) -> None:
                values = [[loaded(k, group) for k in products] for group in range(panels.groups)]
                for group, value in enumerate(values):
                    self.put(value, number, group)

            self.rows(row)

        def runs() -> None:
            table = [
                [
                    (self.word(group, s, 0), vectors.mask_from(f, self.word(group, s, 2), panels.lanes))
                    for s in range(panels.segments)
                ]
                for group in range(panels.groups)
            ]

            def joined(k: Value, group: int) -> str:
                value = None
                for offset, mask in table[group] if k != -1 else []:
                    value = vectors.load(f, panels.element, panels.lanes, f.at(self.source(k), offset), mask, value)
                return value or "zeroinitializer"

            def row(number: Value, products: Sequence[Value]) -> None:
                for group in reversed(range(panels.groups)):
                    self.put([joined(k, group) for k in products], number, group)

            self.rows(row)

        f.when(full, whole, runs)

    def word(self, group: int, segment: int, which: int) -> str:
        """A word of a segment of a vector: where its lane 0 lies in the operand, or in the output, or its mask."""
        place = 8 + (group * self.panels.segments + segment) * SEGMENT_BYTES + 8 * which
        return self.f.load("i64", self.f.at("%segments", place), 8)

    def lane(self, index: Value) -> str:
        """Where an index of the panel lies in the operand."""
        return self.f.load("i64", self.f.at("%lanes", self.f.mul(index, LANE_BYTES)), 8)

    def rows_at(self, source: str, places: Sequence[Value], size: int) -> list[str]:
        """Short rows of the operand, converted; where products are paired, the pairs are its elements."""
        f, panels = self.f, self.panels
        if self.contracted.paired:
            memory, width, count = panels.element.memory, panels.element.width_bytes, size * self.together
            if width == self.contracted.held_bytes:
                return [f.load(vector(panels.sums.memory, size), f.at(source, place), width) for place in places]
            found = [f.load(vector(memory, count), f.at(source, place), width) for place in places]
            return [
                f.value(f"bitcast <{count} x i16> {self.held(row, count)} to {vector(panels.sums.memory, size)}")
                for row in found
            ]
        rows = [vectors.load(f, panels.element, size, f.at(source, place)) for place in places]
        return [convert(f, self.target, row, panels.element, panels.sums, size) for row in rows]

    def transposed(self) -> None:
        """The operand is dense in K: a few products of all lanes at a time, transposed in registers."""
        panels = self.panels
        q = vectors.short_row(panels.lanes, panels.sums.memory)
        if panels.lanes >= 4 * q and not self.contracted.paired and not self.contracted.tabled:
            q *= 2  # as many shuffles for half as many reads of rows: 24 x 17 x 25 x 55 takes 21.7 us so, and 22.7 else
        limit = self.contracted.dims[0].extent
        for group in reversed(range(panels.groups)):
            self.transposed_lanes(q, limit, group)

    def transposed_lanes(self, q: int, limit: int, group: int) -> None:
        """One vector of lanes along all of K, so that few rows are read at a time."""
        f, panels = self.f, self.panels
        first = group * panels.lanes
        lanes = [self.lane(min(first + lane, panels.width - 1)) for lane in range(panels.lanes)]

        def transpose_at(k: Value) -> None:
            if self.far and not self.contracted.interleaved:  # whose next products are elsewhere
                at_line = f.compare("eq", f.rem(k, 64 // panels.element.width_bytes), 0)
                f.when(at_line, lambda: self.prefetch(f.at(self.source(k), _BYTES_AHEAD), lanes))
            rows = self.rows_at(self.source(k), lanes, q)
            for t, value in enumerate(vectors.transpose(f, panels.sums.memory, panels.lanes, rows, q)):
                row = f.add(f.div(k, self.together), t)
                place = f.add(f.mul(row, self.row_bytes), first * panels.sums.width_bytes)
                f.store(vector(panels.sums.memory, panels.lanes), value, f.at("%into", place), panels.sums.width_bytes)

        live = min(first + panels.lanes, panels.width)
        if not self.contracted.tabled and not self.contracted.paired:
            # the last products are transposed together with some before them, once more: alone they would go one by one
            end = f.sub("%kcount", q)
            f.when(
                f.compare("sge", end, 0),
                lambda: f.loop(0, "%kcount", lambda k, _: transpose_at(f.min(k, end)), step=q),
                lambda: f.loop(0, "%kcount", lambda k, _: self.one_product(k, first, live)),
            )
            return
        head, inside, done = f.new_label(), f.new_label(), f.new_label()
        before = f.block
        f.branch(head)
        f.place(head)
        k, following = f.fresh(), f.fresh()
        f.emit(f"{k} = phi i64 [ 0, %{before} ], [ {following}, %{inside}.end ]")
        f.emit(f"br i1 {f.compare('slt', k, '%kcount')}, label %{inside}, label %{done}")
        f.place(inside)
        run = f.sub("%kcount", k)
        if self.contracted.tabled:
            run = f.min(run, f.sub(limit, f.rem(f.add("%kfirst", k), limit)))
        whole = f.compare("sge", run, q * self.together)
        f.when(whole, lambda: transpose_at(k), lambda: self.one_product(k, first, live))
        f.branch(f"{inside}.end")
        f.place(f"{inside}.end")
        step = f.value(f"select i1 {whole}, i64 {q * self.together}, i64 1")
        f.emit(f"{following} = add i64 {k}, {step}")
        f.branch(head)
        f.place(done)

    def crossed(self) -> None:
        """The operand is dense in the second axis of K: as `transposed`, in steps of the first axis' extent."""
        f, panels = self.f, self.panels
        q = vectors.short_row(panels.lanes, panels.sums.memory)
        first, second = (dim.extent for dim in self.contracted.dims[:2])

        def group(number: int) -> None:
            begin = number * panels.lanes
            live = min(panels.lanes, panels.width - begin)
            lanes = [self.lane(begin + min(lane, live - 1)) for lane in range(panels.lanes)]
            # nothing may run over into the next product, which may be written already
            mask = None if live == panels.lanes else vectors.mask_of(live, panels.lanes)

            def transpose_at(k: Value) -> None:
                rows = self.rows_at(self.source(k), lanes, q)
                for t, value in enumerate(vectors.transpose(f, panels.sums.memory, panels.lanes, rows)):
                    at = f.add(f.mul(f.add(k, t * first), self.row_bytes), begin * panels.sums.width_bytes)
                    vectors.store(f, panels.sums, panels.lanes, value, f.at("%into", at), mask)

            def line(start: Value) -> None:
                f.loop(0, second, lambda j, _: transpose_at(f.add(start, f.mul(j, first))), step=q)

            def tile(start: Value, _: list[str]) -> None:
                f.loop(0, first, lambda i, _: line(f.add(start, i)))

            f.loop(0, "%kcount", tile, step=first * second)

        for number in range(panels.groups):
            group(number)

    def grouped(self) -> None:
        """The operand is dense in the panels' second axis, and a vector is one run of the first.

        Several panels share each line that is read, and several of their groups each page: products run outermost.
        """
        f, panels = self.f, self.panels
        q = vectors.short_row(panels.lanes, panels.sums.memory)
        stride, width = panels.dims[0].strides[0], panels.sums.width_bytes

        def row(k: Value, _: list[str]) -> None:
            source = self.source(k)
            ahead = self.source(f.min(f.add(k, _PRODUCTS_AHEAD), f.sub("%kcount", 1))) if self.far else ""
            f.loop(0, "%groups", lambda group, _: one(k, source, ahead, group), nonempty=True)

        def one(k: Value, source: str, ahead: str, number: Value) -> None:
            offset = f.load("i64", f.at("%lanes", f.mul(number, "%tablebytes")), 8)
            start = f.at(source, offset)
            if ahead:
                self.prefetch(f.at(ahead, offset), [lane * stride for lane in range(panels.lanes)])
            into = f.at("%into", f.mul(number, f.mul("%panelbytes", panels.pack_panels)))
            into = f.at(into, f.mul(k, self.row_bytes))
            for part in range(panels.dims[1].extent // q):
                places = [lane * stride + part * q * panels.element.width_bytes for lane in range(panels.lanes)]
                rows = self.rows_at(start, places, q)
                for t, value in enumerate(vectors.transpose(f, panels.sums.memory, panels.lanes, rows)):
                    panel, group = divmod(part * q + t, panels.groups)
                    place = f.at(f.at(into, f.mul("%panelbytes", panel)), group * panels.lanes * width)
                    f.store(vector(panels.sums.memory, panels.lanes), value, place, width)

        f.loop(0, "%kcount", row)

    def gathered(self) -> None:
        """Dense nowhere that helps: one element at a time, a vector of them before it is stored."""
        f, panels = self.f, self.panels
        if self.contracted.paired or panels.lanes == 1 or panels.element != panels.sums:
            f.loop(0, "%kcount", lambda k, _: self.one_product(k, 0, panels.width))
            return
        kind = vector(panels.element.memory, panels.lanes)

        def row(k: Value, group: int, places: Sequence[Value]) -> None:
            source, value = self.source(k), "poison"
            for lane, place in enumerate(places):
                one = f.load(panels.element.memory, f.at(source, place), panels.element.width_bytes)
                value = f.value(f"insertelement {kind} {value}, {panels.element.memory} {one}, i64 {lane}")
            self.put([value], k, group)

        for group in reversed(range(panels.groups)):  # a last vector may reach into the next row
            first = group * panels.lanes
            places = [self.lane(first + lane) for lane in range(min(panels.lanes, panels.width - first))]
            f.loop(0, "%kcount", lambda k, _, group=group, places=places: row(k, group, places))  # type: ignore[misc]

    def one_product(self, k: Value, first: int, last: int) -> None:
        """One product of some lanes, element by element."""
        f, panels = self.f, self.panels
        source = self.source(k)
        place = f.mul(f.div(k, self.together), self.row_bytes)
        held, part = self.contracted.held_bytes, f.rem(k, self.together) if self.contracted.paired else 0
        later = f.compare("ne", part, 0) if self.contracted.paired else ""

        def one(index: Value, _: list[str]) -> None:
            value = f.load(panels.element.memory, f.at(source, self.lane(index)), panels.element.width_bytes)
            if later:
                value, kind = self.held(value), f"i{8 * held}"
                at = f.at("%into", f.add(place, f.mul(index, 4)))
                word = f.value(f"zext {kind} {value} to i32")  # zeros beside it, until there are others
                beside = f.at(at, f.mul(part, held))
                f.when(later, lambda: f.store(kind, value, beside, held), lambda: f.store("i32", word, at, 4))
                return
            value = convert(f, self.target, value, panels.element, panels.sums)
            at = f.at("%into", f.add(place, f.mul(index, panels.sums.width_bytes)))
            f.store(panels.sums.memory, value, at, panels.sums.width_bytes)

        f.loop(first, last, one)
