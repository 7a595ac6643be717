"""Packing of columns whose operand is dense in another of their axes than the output.

A plane of the two axes is transposed in registers, a few rows by one vector at a time, and a vector of neighbouring
columns is stored into the panel, or the two panels, that hold them. So all panels of a chunk are packed at once, and
every cache line is read once per product, where panel by panel each element would be read alone. Where a vector goes
is the same for every product, and is computed for some of them at once.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tileweave.backends.cpu.gemm.panels import Contracted, Packer, Panels
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import digits_of
from tileweave.backends.cpu.target.target import Target

_LINE = 64
"""Bytes of a line of the caches."""


def turns(panels: Panels, contracted: Contracted) -> bool:
    """Whether columns are packed so: the operand is dense in their second axis, and in no axis that suits panels."""
    width = panels.element.width_bytes
    if len(panels.dims) < 2 or panels.lanes < 4 or contracted.paired or panels.grouped or panels.operand_dense:
        return False
    second = panels.dims[1]
    if second.strides[0] != width or contracted.dense(1, width):
        return False
    return panels.width % panels.lanes == 0 and second.extent >= vectors.short_row(panels.lanes, panels.sums.memory)


def strip_columns(panels: Panels) -> int:
    """Columns that are transposed together: a few of the operand's dense axis, times the first one."""
    return vectors.short_row(panels.lanes, panels.sums.memory) * panels.dims[0].extent


def emit_turn(module: Module, target: Target, name: str, panels: Panels, contracted: Contracted) -> None:
    """Add ``name(into, source, ktable, kcount, v0, v1, panelbytes)``, which packs a block of these column panels."""
    parameters = [("ptr", name) for name in ("into", "source", "ktable")]
    parameters += [("i64", name) for name in ("kcount", "v0", "v1", "panelbytes")]
    f = Function(module, name, parameters)
    _Turn(f, target, panels, contracted).all()
    f.ret()


class _Turn:
    """Writes the function."""

    def __init__(self, f: Function, target: Target, panels: Panels, contracted: Contracted) -> None:
        self.f = f
        self.target = target
        self.panels = panels
        self.packer = Packer(f, target, panels, contracted, 1, far=False)
        self.row_bytes = panels.width * panels.sums.width_bytes
        self.q = vectors.short_row(panels.lanes, panels.sums.memory)
        self.lanes = panels.lanes
        while self.lanes > self.q and panels.dims[0].extent <= self.lanes // 2:
            self.lanes //= 2
        self.first, self.second = panels.dims[:2]
        # products that are packed before the next strip of rows, so that this one meets its lines in the first cache
        self.at_once = max(1, target.l1_bytes // (2 * self.lanes * _LINE))
        self.begin = f.mul("%v0", panels.width)  # of the columns
        self.end = f.min(f.mul("%v1", panels.width), panels.total)
        # places are counted from some panels before the chunk, so that vectors of strips that begin before it have one:
        # the last strip of a plane begins up to q rows before the first wanted column
        self.before = self.q * self.first.extent // panels.width + 1
        self.base = f.at("%into", f.sub(0, f.mul(self.before, "%panelbytes")))

    def all(self) -> None:
        """Plane after plane of the first two axes."""
        f, dims = self.f, self.panels.dims
        short = f.compare("sgt", f.mul("%v1", self.panels.width), self.panels.total)
        f.when(short, lambda: f.loop(0, "%kcount", lambda k, _: self.zeros(k)))
        stride = self.first.strides[0]
        tail = self.first.extent // self.lanes * self.lanes
        whole: list[Value] = [f.mul(lane, stride) for lane in range(self.lanes)]
        last = self.first.extent - 1 - tail
        rest = [f.mul(f.min(lane, last), stride) for lane in range(self.lanes)]
        plane = self.first.extent * self.second.extent

        def one(number: Value, _: list[str]) -> None:
            offset: Value = 0
            for digit, dim in zip(digits_of(f, dims[2:], number), dims[2:], strict=True):
                offset = f.add(offset, f.mul(digit, dim.strides[0]))
            start = f.mul(number, plane)
            low = f.div(self.above(f.sub(self.begin, start), 0), self.first.extent)
            high = f.add(f.div(f.sub(f.min(f.sub(self.end, start), plane), 1), self.first.extent), 1)

            def some(k: Value, _: list[str]) -> None:
                after = f.min(f.add(k, self.at_once), "%kcount")

                def strips(a: Value, rows: Sequence[Value], count: Value) -> None:
                    def strip(number: Value, _: list[str]) -> None:
                        column = f.min(number, f.sub(self.second.extent, self.q))
                        at = f.add(f.mul(column, self.panels.element.width_bytes), f.mul(a, stride))
                        place = f.add(start, f.add(f.mul(column, self.first.extent), a))
                        self.squares(f.add(offset, at), rows, place, count, (k, after))

                    f.loop(low, high, strip, step=self.q)

                f.loop(0, tail, lambda a, _: strips(a, whole, self.lanes), step=self.lanes)
                left = self.first.extent - tail
                f.when(f.compare("sgt", left, 0), lambda: strips(tail, rest, left))

            f.loop(0, "%kcount", some, step=self.at_once)

        first = f.div(self.begin, plane)
        f.loop(first, f.add(f.div(f.sub(self.end, 1), plane), 1), one)

    def above(self, a: Value, least: int) -> Value:
        """The larger one."""
        return self.f.sub(0, self.f.min(self.f.sub(0, a), -least))

    def zeros(self, k: Value) -> None:
        """A row of the last panel, whose end no column fills: what is computed from it is stored nowhere."""
        f, panels = self.f, self.panels
        place = f.at("%into", f.mul(f.sub(f.sub("%v1", "%v0"), 1), "%panelbytes"))
        place = f.at(place, f.mul(k, self.row_bytes))
        kind = vector(panels.sums.memory, panels.lanes)
        for group in range(panels.groups):
            at = f.at(place, group * panels.lanes * panels.sums.width_bytes)
            f.store(kind, "zeroinitializer", at, panels.sums.width_bytes)

    def squares(
        self, at: Value, rows: Sequence[Value], place: Value, count: Value, products: tuple[Value, Value]
    ) -> None:
        """Short rows of the operand stood upright, of some products; ``place`` is the column of the first element, of
        so many."""
        f, panels = self.f, self.panels
        places = [self.vector(f.add(place, f.mul(t, self.first.extent)), count) for t in range(self.q)]

        def product(k: Value, _: list[str]) -> None:
            short = self.packer.rows_at(f.at(self.packer.source(k), at), rows, self.q)
            into = f.at(self.base, f.mul(k, self.row_bytes))
            upright = vectors.transpose(f, panels.sums.memory, self.lanes, short)
            for value, (inside, here, beyond, there) in zip(upright, places, strict=True):
                self.put(value, f.at(into, inside), here)
                f.when(f.compare("ne", there, 0), self.stored(value, f.at(into, beyond), there))

        f.loop(products[0], products[1], product, nonempty=True)

    def vector(self, place: Value, count: Value) -> tuple[Value, Value, Value, Value]:
        """Where the first lanes of a vector go, whose first one is this column: how far into the packed panels and
        which lanes, and the same of those that belong to the next panel."""
        f, panels, width = self.f, self.panels, self.panels.sums.width_bytes
        counted = f.add(f.sub(place, self.begin), f.mul(self.before, panels.width))
        panel = f.div(counted, panels.width)
        inside = f.sub(counted, f.mul(panel, panels.width))
        ones = f.sub(f.value(f"shl i64 1, {f.min(count, self.above(f.sub(self.end, place), 0))}"), 1)
        low = f.min(self.above(f.sub(self.begin, place), 0), self.lanes)
        ones = f.value(f"and i64 {ones}, {f.value(f'shl i64 -1, {low}')}")
        border = f.value(f"shl i64 -1, {f.min(f.sub(panels.width, inside), self.lanes)}")
        here = f.value(f"and i64 {ones}, {f.value(f'xor i64 {border}, -1')}")
        there = f.value(f"and i64 {ones}, {border}")
        at = f.add(f.mul(panel, "%panelbytes"), f.mul(inside, width))
        return at, here, f.add(at, f.sub("%panelbytes", self.row_bytes)), there

    def put(self, value: str, at: str, word: Value) -> None:
        """The lanes of a vector that a word names."""
        f = self.f
        some = f.compare("ne", word, 0)  # a masked store of nothing may still ask for its page
        if self.target.masks_stores:
            f.when(some, self.stored(value, at, word))
            return
        whole = f.compare("eq", word, (1 << self.lanes) - 1)
        f.when(
            whole,
            lambda: vectors.store(f, self.panels.sums, self.lanes, value, at),
            lambda: f.when(some, self.stored(value, at, word)),
        )

    def stored(self, value: str, at: str, word: Value) -> Callable[[], None]:
        """A masked store."""
        mask = partial(vectors.mask_from, self.f, str(word), self.lanes)
        return lambda: vectors.store(self.f, self.panels.sums, self.lanes, value, at, mask())
