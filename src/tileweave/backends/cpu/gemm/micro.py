"""The register tile: rows x vectors sums held in registers while K runs, then brought to the output once.

The row operand is broadcast element by element, the vector operand is read in vectors; each from its packed panel or
from in place. The output is reached through tables (`tileweave.backends.cpu.gemm.panels`), so any strides will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import cycle
from typing import Protocol, cast

from tileweave.backends.cpu.gemm.blocking import ReadFrom
from tileweave.backends.cpu.gemm.packing.prefetch import TURN, PrefetchPlan, PrefetchShare
from tileweave.backends.cpu.gemm.panels import LANE_BYTES, SEGMENT_BYTES, Contracted, Panels
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import splat, vector, zero
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.meanings import relu
from tileweave.backends.cpu.llvm.products import multiply_add, pair_product, quad_product
from tileweave.index.sizes import above

_AT_ONCE = 4
"""Products of one turn of rows that have a pointer each, a power of two: 300 x 12 x 300 takes 31 us so, 33 with one
index for all."""
_SHIFTED, _SHIFT = -0x7F7F7F80, "-128"
"""The bits that make four signed bytes unsigned ones, larger by 128, in 32 bits; 128 as such a byte."""
_PRODUCTS_AHEAD, _FIRST_CACHE = 8, 32 * 1024
"""How far ahead of its use a line of B is asked for, in products; B of fewer bytes is in a first cache already."""


class Start(Enum):
    """What the sums are added to."""

    OUTPUT = "what the output holds"
    ZERO = "nothing, where storing is wanted, else the output"
    ROW = "a row, where storing is wanted, else the output; every vector is one run of the output"


class Edges(Enum):
    """Whether vectors of the output are whole."""

    WHOLE = "every vector is one whole run"
    MASKED = "masked stores cost no more than whole ones"
    CHECKED = "asked at run time: whole vectors are cheaper"


class Stores(Enum):
    """How sums are brought to the output."""

    CACHED = "through the caches"
    PREFETCHED = "through the caches, the lines prefetched before the sums are formed"
    NON_TEMPORAL = "past the caches where the output is aligned and only stored"
    STAGED = "into the tile's place in a staging buffer, whole vectors in rows of a panel's width"


class Ahead(Enum):
    """What of B is prefetched between products."""

    NOTHING = "the packed panel is in the first cache"
    PANEL = "the panel, some products ahead"
    LINE = "a line of the next vectors with every product"
    NEVER = "nothing, wherever it lies: the caller wishes so"


@dataclass(frozen=True, slots=True)
class Tile:
    """A micro-kernel's form.

    Args:
        rows: rows computed; at most mr.
        vectors: vectors computed; at most nr of them.
        a: where A is read.
        b: where B is read.
        start: what the sums are added to.
        edges: whether vectors are whole.
        stores: how the output is written.
        ahead: what is prefetched.
        relu: whether a ReLU may be wanted.
        nested: whether all products are in one block and both operands are read in place.
        partial: whether fewer rows may be left: those beyond the last repeat it, and are not stored.
        following: what tiles prefetch of the columns that are packed next.
        output_caches: how often the output fills the second cache.
        half: whether the last vector has half of the lanes: where a processor computes the widest vectors in two parts,
            that takes half of the time.
    """

    rows: int
    vectors: int
    a: ReadFrom
    b: ReadFrom
    start: Start
    edges: Edges
    stores: Stores
    ahead: Ahead
    relu: bool
    nested: bool
    partial: bool
    following: PrefetchPlan | None
    output_caches: int
    half: bool = False


class TileStep(Protocol):
    """One product, or pair."""

    def __call__(
        self, k: Value, offsets: tuple[Value, Value], carried: list[str], given: Sequence[str] = ()
    ) -> list[Value]:
        """The sums behind it, from those before.

        Args:
            k: its number in the block.
            offsets: its offset in both operands.
            carried: the sums so far.
            given: where the rows' elements lie, if that is known already.
        """


def pointed(tile: Tile, rows: Panels, contracted: Contracted) -> bool:
    """Whether each row has a pointer of its own, at constant distances from which its elements lie.

    A product that is read from memory counts twice where an index finds it, which bounds tiles of one vector.
    """
    if tile.vectors != 1 or tile.rows < 2 or tile.a is not ReadFrom.IN_PLACE or contracted.tabled:
        return False
    return not contracted.paired and contracted.dense(0, rows.element.width_bytes)


PARAMETERS = [
    ("ptr", "r"),
    ("ptr", "v"),
    ("ptr", "out"),
    ("i64", "count"),
    ("ptr", "ktable"),
    ("ptr", "rlanes"),
    ("ptr", "vlanes"),
    ("ptr", "segments"),
    ("i1", "init"),
    ("i1", "relu"),
    ("ptr", "start"),
    ("ptr", "ahead"),
    ("ptr", "asktable"),
    ("i64", "askfirst"),
    ("i64", "asklast"),
]


def emit_tile(module: Module, name: str, tile: Tile, rows: Panels, columns: Panels, contracted: Contracted) -> None:
    """Add ``name`` with `PARAMETERS`: one tile over one block of K.

    ``r`` and ``v`` are packed panels, or the operands at the block's first product; ``out`` is the output's base.
    ``ahead`` and what follows it: a `PrefetchShare`.
    """
    f = Function(module, name, PARAMETERS)
    work = _Tile(f, tile, rows, columns, contracted)
    sums = work.sums()
    work.store(sums)
    f.ret()


class _Tile:
    """Writes one tile's function."""

    def __init__(self, f: Function, tile: Tile, rows: Panels, columns: Panels, contracted: Contracted) -> None:
        self.f = f
        self.tile = tile
        self.rows = rows
        self.columns = columns
        self.contracted = contracted
        self.lanes = columns.lanes
        self.element = columns.sums
        self.each = [self.lanes] * (tile.vectors - tile.half) + [self.lanes // 2] * tile.half
        self.types = [vector(self.element.memory, lanes) for lanes in self.each]
        self.quads = contracted.together == 4

    def row_offset(self, row: int, which: int) -> str:
        f = self.f
        return f.load("i64", f.at("%rlanes", row * LANE_BYTES + 8 * which), 8)

    def word(self, group: int, segment: int, which: int) -> str:
        place = 8 + (group * self.columns.segments + segment) * SEGMENT_BYTES + 8 * which
        return self.f.load("i64", self.f.at("%segments", place), 8)

    # ---- the loop over K ----------------------------------------------------------------------------------------

    def sums(self) -> list[str]:
        f, tile = self.f, self.tile
        width = self.element.width_bytes
        if tile.stores is Stores.PREFETCHED and self.columns.output_dense:
            f.when(f.above(tile.output_caches, 0), self.prefetch)
        row_bases = self.row_bases() if tile.a is ReadFrom.IN_PLACE else []
        column_bases, masks = self.column_bases() if tile.b is ReadFrom.IN_PLACE else ([], [])

        size = self.columns.total * self.contracted.total * width
        large = above(size, _FIRST_CACHE) and tile.ahead not in (Ahead.LINE, Ahead.NEVER)

        def step(
            masks: Sequence[str | None],
            k: Value,
            offsets: tuple[Value, Value],
            carried: list[str],
            given: Sequence[str] = (),
        ) -> list[Value]:
            b: list[str] = []
            if tile.b is ReadFrom.IN_PLACE:
                for base, mask in zip(column_bases, masks, strict=True):
                    place = f.at(base, offsets[1])
                    b.append(vectors.load(f, self.element, self.each[len(b)], place, mask))
                    if large:
                        vectors.prefetch(f, f.at(place, _PRODUCTS_AHEAD * self.contracted.stride(1)))
            else:
                panel = f.at("%v", f.mul(k, self.columns.width * width))
                places = [f.at(panel, group * self.lanes * width) for group in range(tile.vectors)]
                b = [vectors.load(f, self.element, n, place) for n, place in zip(self.each, places, strict=True)]
                ahead = tile.ahead not in (Ahead.NOTHING, Ahead.NEVER)  # else it comes from the second cache
                for place in places if ahead else ():
                    vectors.prefetch(f, f.at(place, _PRODUCTS_AHEAD * self.columns.width * width))
            if given:
                places = list(given)
            elif tile.a is ReadFrom.IN_PLACE:
                places = [f.at(f.at(base, offsets[0]), constant) for base, constant in row_bases]
            else:
                panel = f.at("%r", f.mul(k, self.rows.width * width))
                places = [f.at(panel, row * width) for row in range(tile.rows)]
            following: list[Value] = []
            for row, place in enumerate(places):
                one = f.load(self.element.memory, place, self.rows.element.width_bytes)
                a = vectors.broadcast(f, self.element.memory, self.lanes, one)
                if self.quads:
                    a = f.value(f"xor {self.types[0]} {a}, {splat('i32', self.lanes, str(_SHIFTED))}")
                for group, lanes in enumerate(self.each):
                    old = carried[row * tile.vectors + group]
                    a = a if lanes == self.lanes else vectors.broadcast(f, self.element.memory, lanes, one)
                    following.append(self.product(a, b[group], old, lanes))
            if self.quads:
                more = zip(b, carried[-tile.vectors :], strict=True)
                following += [self.product(shift, one, old, self.lanes) for one, old in more]
            return following

        shift = f"bitcast (<{4 * self.lanes} x i8> {splat('i8', 4 * self.lanes, _SHIFT)} to {self.types[0]})"

        nothing = [zero(self.element, lanes) for lanes in self.each]
        start = self.start() if tile.start is Start.ROW else nothing * tile.rows
        if self.quads:  # rows are taken as unsigned, 128 more than they are: what that adds is summed beside them
            start = start + nothing

        plain: list[str | None] = [None] * tile.vectors
        products = self.products()
        parts = [(plain, products)] if not any(masks) else [(plain, self.plain(products)), (masks, products)]
        sums, begin = start, cast("Value", 0)
        for seen, end in parts:
            loops = partial(self.nested if tile.nested else self.flat, partial(step, seen), sums, begin, end)
            kinds = [kind for kind, _ in self.carry(sums)]
            some = f.compare("slt", begin, end) if any(masks) else 1
            sums = list(map(str, f.choose(some, kinds, loops, lambda before=sums: before)))  # type: ignore[misc]
            begin = end
        if self.quads:
            more = sums[-tile.vectors :] * tile.rows
            sums = [f.value(f"sub {self.types[0]} {a}, {b}") for a, b in zip(sums, more, strict=False)]
        return sums

    def start(self) -> list[str]:
        """The sums before the first product: where storing is asked for, the row at ``start``, else zero."""
        f = self.f
        row = []
        for group, lanes in enumerate(self.each):
            kind, inside = f"<{lanes} x i1>", vectors.mask_of(lanes, lanes)
            inside = inside if self.tile.edges is Edges.WHOLE else vectors.mask_from(f, self.word(group, 0, 2), lanes)
            wanted = f.value(f"select i1 %init, {kind} {inside}, {kind} zeroinitializer")
            place = f.at("%start", self.word(group, 0, 1))
            row.append(vectors.load(f, self.element, lanes, place, wanted))
        return row * self.tile.rows

    def products(self) -> Value:
        """How many steps a block has; of those that are nested, how many the outermost axis has."""
        if self.tile.nested:
            return self.contracted.dims[-1].extent
        together = self.contracted.together
        return self.f.div(self.f.add("%count", together - 1), together)

    def plain(self, products: Value) -> Value:
        """The first of these whose vectors of B are read with masks: all where they are whole, else the last, as what
        the others read beyond their columns lies before what the last one reads; none where steps are short.

        A masked load takes a place among the multiply-adds, or far more: on a Zen 1 one of 256 bits takes tens of
        cycles.
        """
        f = self.f
        inside = self.word(self.tile.vectors - 1, 0, 2)
        whole = f.compare("eq", inside, (1 << self.each[-1]) - 1)
        last: Value = 0
        if self.tile.nested or not self.contracted.tabled:
            stride = self.contracted.dims[-1].strides[1] if self.tile.nested else self.contracted.stride(1)
            far = f.compare("sge", stride, (self.each[-1] - 1) * self.element.width_bytes)
            last = f.value(f"select i1 {far}, i64 {f.sub(products, 1)}, i64 0")
        return f.value(f"select i1 {whole}, i64 {products}, i64 {last}")

    def flat(self, step: TileStep, start: list[str], begin: Value, end: Value) -> list[Value]:
        """The products of a block one after the other; some at a time where lines are prefetched between them."""
        f, tile = self.f, self.tile
        together = self.contracted.together

        def one(k: Value, carried: list[str]) -> list[Value]:
            rows = self.contracted.offset(f, 0, "%ktable", f.mul(k, together)) if tile.a is ReadFrom.IN_PLACE else 0
            columns = self.contracted.offset(f, 1, "%ktable", k) if tile.b is ReadFrom.IN_PLACE else 0
            if tile.ahead is Ahead.LINE:
                vectors.prefetch(f, f.at("%ahead", columns))
            return step(k, (rows, columns), carried)

        carry = self.carry(start)
        following = tile.following
        if following is None and begin == 0 and pointed(tile, self.rows, self.contracted):
            return self.by_pointers(end, step, start)
        if following is None or begin != 0:
            return f.loop(begin, end, one, carry=carry, nonempty=True)
        stream = PrefetchShare("%ahead", "%asktable", "%askfirst", "%asklast")

        def turn(number: Value, carried: list[str]) -> Sequence[Value]:
            for part in range(following.at_once):
                vectors.prefetch(f, following.line(f, stream, f.add(f.mul(number, following.at_once), part)))
            sums: Sequence[Value] = carried
            for part in range(TURN):
                sums = one(f.add(f.mul(number, TURN), part), [str(value) for value in sums])
            return sums

        turns = f.div(end, TURN)
        sums = f.loop(0, turns, turn, carry=carry)
        return f.loop(f.mul(turns, TURN), end, one, carry=self.carry(map(str, sums)))

    def by_pointers(self, count: Value, step: TileStep, start: list[str]) -> list[Value]:
        """Some products at a time, then half as many, and so on down to the last one."""
        f, width, rows = self.f, self.rows.element.width_bytes, self.tile.rows
        in_place = self.tile.b is ReadFrom.IN_PLACE

        def some(first: Value, carried: list[str], number: int) -> list[Value]:
            sums: list[str] = carried[:-rows]
            # opaque, or LLVM would find all rows by one index
            here = [f.value(f'call ptr asm "", "=r,0"(ptr {pointer})') for pointer in carried[-rows:]]
            for part in range(number):
                k = f.add(first, part)
                columns = self.contracted.offset(f, 1, "%ktable", k) if in_place else 0
                places = [f.at(pointer, part * width) for pointer in here]
                sums = list(map(str, step(k, (0, columns), sums, places)))
            return [*sums, *(f.at(pointer, number * width) for pointer in here)]

        number, done = _AT_ONCE, f.sub(count, f.rem(count, _AT_ONCE))
        pointers: list[tuple[str, Value]] = [("ptr", f.at(base, constant)) for base, constant in self.row_bases()]
        carry = self.carry(start) + pointers
        kinds = [kind for kind, _ in carry]
        made = f.loop(0, done, lambda k, carried: some(k, carried, _AT_ONCE), step=_AT_ONCE, carry=carry)
        while number > 1:
            number //= 2
            before, first, size = list(map(str, made)), done, number
            more = f.compare("sge", f.sub(count, first), size)
            made = f.choose(more, kinds, partial(some, first, before, size), lambda before=before: before)  # type: ignore[misc]
            done = f.value(f"select i1 {more}, i64 {f.add(first, size)}, i64 {first}") if number > 1 else done
        return made[:-rows]

    def carry(self, sums: Iterable[str]) -> list[tuple[str, Value]]:
        """Sums with their types, row by row."""
        return list(zip(cycle(self.types), sums, strict=False))

    def nested(self, step: TileStep, start: list[str], begin: Value, end: Value) -> list[Value]:
        """All products as loops over their axes, which needs no table."""
        f, outermost = self.f, len(self.contracted.dims) - 1

        def axis(level: int, offsets: tuple[Value, Value], carried: list[str]) -> list[Value]:
            dim = self.contracted.dims[level]

            def one(index: Value, carried: list[str]) -> Sequence[Value]:
                rows, columns = (f.add(o, f.mul(index, s)) for o, s in zip(offsets, dim.strides, strict=True))
                return axis(level - 1, (rows, columns), carried) if level else step(0, (rows, columns), carried)

            first, last = (begin, end) if level == outermost else (0, dim.extent)
            return f.loop(first, last, one, carry=self.carry(carried), nonempty=True)

        return axis(outermost, (0, 0), start)

    def product(self, a: str, b: str, old: str, lanes: int) -> str:
        if self.quads:
            return quad_product(self.f, self.element, self.lanes, a, b, old)
        if self.contracted.paired:
            return pair_product(self.f, self.element, self.lanes, self.contracted.paired, a, b, old)
        return multiply_add(self.f, self.element, lanes, a, b, old)

    def prefetch(self) -> None:
        """The lines that will be written, while there is time."""
        f = self.f
        groups: list[Value] = [self.word(group, 0, 1) for group in range(self.tile.vectors)]
        groups.append(f.add(groups[-1], self.lanes * self.element.width_bytes - 1))  # vectors may straddle lines
        for row in range(self.tile.rows):
            line = f.at("%out", self.row_offset(row, 1))
            for group in groups:
                vectors.prefetch(f, f.at(line, group), write=True)

    def row_bases(self) -> list[tuple[str, int]]:
        """An address per row, as one pointer and a constant where the rows are evenly spaced."""
        f, panels = self.f, self.rows
        if len(panels.dims) > 1 or self.tile.partial:
            return [(f.at("%r", self.row_offset(row, 0)), 0) for row in range(self.tile.rows)]
        stride = panels.dims[0].strides[0] if panels.dims else 0
        base = f.at("%r", self.row_offset(0, 0))
        return [(base, row * stride) for row in range(self.tile.rows)]

    def column_bases(self) -> tuple[list[str], list[str | None]]:
        """An address and a mask per vector; direct reads need one segment per vector."""
        f = self.f
        bases = [f.at("%v", self.word(group, 0, 0)) for group in range(self.tile.vectors)]
        if self.tile.edges is Edges.WHOLE or self.lanes == 1:
            return bases, [None] * self.tile.vectors
        return bases, [vectors.mask_from(f, self.word(group, 0, 2), lanes) for group, lanes in enumerate(self.each)]

    # ---- the output ---------------------------------------------------------------------------------------------

    def each_row(self, body: Callable[[int], None]) -> None:
        """The rows of the tile that there are."""
        f = self.f
        live = f.load("i64", f.at("%rlanes", self.rows.lane_table_bytes), 8) if self.tile.partial else ""
        for row in range(self.tile.rows):
            f.when(f.compare("slt", row, live) if live and row else 1, partial(body, row))

    def store(self, sums: list[str]) -> None:
        if self.tile.stores is Stores.STAGED:
            self.put(sums)
            return
        if not self.columns.output_dense:
            self.scatter(sums)
            return
        f = self.f
        if self.tile.stores is not Stores.NON_TEMPORAL:
            self.store_cached(sums)
            return
        full = f.value(f"icmp ne i64 {f.load('i64', '%segments', 8)}, 0")
        low = f.value(f"and i64 {f.value('ptrtoint ptr %out to i64')}, {self.lanes * self.element.width_bytes - 1}")
        aligned = f.compare("eq", low, 0)
        may = f.both("%init", f.both(full, aligned))
        f.when(may, lambda: self.store_non_temporal(sums), lambda: self.store_cached(sums))

    def put(self, sums: list[str]) -> None:
        """Into the stage."""
        f, tile, width = self.f, self.tile, self.element.width_bytes
        for row in range(tile.rows):
            for group, lanes in enumerate(self.each):
                value = self.clipped(sums[row * tile.vectors + group], lanes)
                place = f.at("%out", (row * self.columns.width + group * self.lanes) * width)
                f.store(self.types[group], value, place, lanes * width)

    def store_cached(self, sums: list[str]) -> None:
        f = self.f
        if self.tile.edges is Edges.WHOLE:
            self.store_whole(sums)
            return
        if self.tile.edges is Edges.MASKED and self.columns.segments == 1:
            self.store_runs(sums)  # a whole vector is a run like any other
            return
        full = f.value(f"icmp ne i64 {f.load('i64', '%segments', 8)}, 0")
        f.when(full, lambda: self.store_whole(sums), lambda: self.store_runs(sums))

    def store_non_temporal(self, sums: list[str]) -> None:
        """Whole lines that nobody reads soon: past the caches, so that they are not read first."""
        f, tile = self.f, self.tile

        def stored(row: int) -> None:
            line = f.at("%out", self.row_offset(row, 1))
            for group, lanes in enumerate(self.each):
                value = self.clipped(sums[row * tile.vectors + group], lanes)
                vectors.store(f, self.element, lanes, value, f.at(line, self.word(group, 0, 1)), streaming=True)

        self.each_row(stored)

    def finished(self, value: str, old: str, lanes: int) -> str:
        """A sum with what was there before, clipped where that is asked for."""
        f = self.f
        full = vector(self.element.memory, lanes)
        value = f.value(f"{'fadd' if self.element.floating else 'add'} {full} {value}, {old}")
        return self.clipped(value, lanes)

    def clipped(self, value: str, lanes: int) -> str:
        """A sum after the ReLU, where that is asked for."""
        if not self.tile.relu:
            return value
        f, full = self.f, vector(self.element.memory, lanes)
        clipped = relu(f, value, self.element, lanes)
        return f.value(f"select i1 %relu, {full} {clipped}, {full} {value}")

    def old(self, place: str) -> str:
        """What one element of the output holds; zero, unread, where storing is asked for."""
        f, kind = self.f, self.element.memory
        if self.tile.start is Start.OUTPUT:
            return vectors.load(f, self.element, 1, place)
        return f.choose(
            "%init", [kind], lambda: [zero(self.element)], lambda: [vectors.load(f, self.element, 1, place)]
        )[0]  # type: ignore[return-value]

    def store_whole(self, sums: list[str]) -> None:
        """Whole vectors, each one run; the output is read only where it is added to."""
        f, tile = self.f, self.tile
        offsets = [self.word(group, 0, 1) for group in range(tile.vectors)]
        lines = [f.at("%out", self.row_offset(row, 1)) for row in range(tile.rows)]
        places = [f.at(line, offset) for line in lines for offset in offsets]
        pieces = list(zip(sums, places, cycle(self.each), strict=False))

        def stored(row: int) -> None:
            for value, place, lanes in pieces[row * tile.vectors : (row + 1) * tile.vectors]:
                vectors.store(f, self.element, lanes, self.clipped(value, lanes), place)

        def added(row: int) -> None:
            for value, place, lanes in pieces[row * tile.vectors : (row + 1) * tile.vectors]:
                old = vectors.load(f, self.element, lanes, place)
                vectors.store(f, self.element, lanes, self.finished(value, old, lanes), place)

        may_store = "%init" if tile.start is not Start.OUTPUT else 0
        f.when(may_store, lambda: self.each_row(stored), lambda: self.each_row(added))

    def store_runs(self, sums: list[str]) -> None:
        """Masked runs; the output is read only where it is added to: a run that follows would wait for its stores."""
        f, tile, segments = self.f, self.tile, self.columns.segments
        if tile.edges is Edges.CHECKED and segments == 1 and self.lanes > 1:
            self.store_first(sums)
            return
        entries = []
        for group, lanes in enumerate(self.each):
            masks = [vectors.mask_from(f, self.word(group, s, 2), lanes) for s in range(segments)]
            entries.append([(self.word(group, s, 1), masks[s]) for s in range(segments)])
        row_offsets = [self.row_offset(row, 1) for row in range(tile.rows)]

        def written(row: int, *, add: bool) -> None:
            line = f.at("%out", row_offsets[row])
            for group, lanes in enumerate(self.each):
                for offset, mask in entries[group]:
                    place, value = f.at(line, offset), sums[row * tile.vectors + group]
                    if add:
                        old = vectors.load(f, self.element, lanes, place, mask)
                        value = self.finished(value, old, lanes)
                    else:
                        value = self.clipped(value, lanes)
                    vectors.store(f, self.element, lanes, value, place, mask)

        may_store = "%init" if tile.start is not Start.OUTPUT else 0
        f.when(
            may_store,
            lambda: self.each_row(partial(written, add=False)),
            lambda: self.each_row(partial(written, add=True)),
        )

    def store_first(self, sums: list[str]) -> None:
        """The first elements of vectors, with no masked store; the output is read only where it is added to."""
        f, tile = self.f, self.tile
        f.module.declare("llvm.ctpop.i64", "i64 {}(i64)")
        words = [self.word(group, 0, 2) for group in range(tile.vectors)]
        offsets: list[Value] = [self.word(group, 0, 1) for group in range(tile.vectors)]
        lines = [f.at("%out", self.row_offset(row, 1)) for row in range(tile.rows)]

        def clipped() -> list[Value]:
            return [self.clipped(value, self.lanes) for value in sums]

        def added() -> list[Value]:
            masks = [vectors.mask_from(f, word, self.lanes) for word in words]
            places = [(f.at(line, offset), mask) for line in lines for offset, mask in zip(offsets, masks, strict=True)]
            old = [vectors.load(f, self.element, self.lanes, place, mask) for place, mask in places]
            return [self.finished(value, before, self.lanes) for value, before in zip(sums, old, strict=True)]

        may_store = "%init" if tile.start is not Start.OUTPUT else 0
        values = [str(value) for value in f.choose(may_store, [self.types[0]] * len(sums), clipped, added)]
        runs = [vectors.runs_of(f, f.value(f"call i64 @llvm.ctpop.i64(i64 {word})"), self.lanes) for word in words]

        def written(row: int) -> None:
            for group, offset in enumerate(offsets):
                place, value = f.at(lines[row], offset), values[row * tile.vectors + group]
                vectors.store_runs(f, self.element, self.lanes, value, place, runs[group])

        self.each_row(written)

    def scatter(self, sums: list[str]) -> None:
        """The output is not dense along the vectors: through the stack, one element at a time."""
        f, tile, width = self.f, self.tile, self.element.width_bytes
        count = tile.vectors * self.lanes
        buffer = f.slot(self.element.memory, tile.rows * count)
        for k, (kind, value) in enumerate(self.carry(sums)):
            f.store(kind, str(value), f.at(buffer, k * self.lanes * width), width)
        live = f.load("i64", f.at("%vlanes", self.columns.lane_table_bytes), 8)
        offsets = [self.row_offset(row, 1) for row in range(tile.rows)]

        def scattered(row: int) -> None:
            line = f.at("%out", offsets[row])

            def one(index: Value, _: list[str]) -> None:
                place = f.at(line, f.load("i64", f.at("%vlanes", f.add(f.mul(index, LANE_BYTES), 8)), 8))
                value = f.load(self.element.memory, f.at(buffer, f.mul(f.add(index, row * count), width)), width)
                f.store(self.element.memory, self.finished(value, self.old(place), 1), place, width)

            f.loop(0, live, one)

        self.each_row(scattered)
