"""Few rows or few columns, the others dense along what is summed: dot products, several side by side in registers.

Vectors run along the summed axis of both operands, and their lanes are added at the end. So a matrix that meets one
vector, or a few, is read once, where the tiles of `micro` would first transpose it. The few may lie otherwise: they are
copied first. One row that meets a matrix dense along its columns is added up in the output, some of its rows at a time.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tileweave.backends.cpu.gemm import sides
from tileweave.backends.cpu.gemm.blocking import PARALLEL_WORK, ProductBlocking, ReadFrom
from tileweave.backends.cpu.gemm.panels import Panels
from tileweave.backends.cpu.gemm.sides import VECTORS
from tileweave.backends.cpu.gemm.tile import tile_cycles
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, convert, vector, zero
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.meanings import relu
from tileweave.backends.cpu.llvm.products import multiply_add
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import known
from tileweave.teir.merged.form import points

_FEW_ROWS, _FEW_COLUMNS, _AT_ONCE = 16, 8, 6
"""Rows, or columns, that are few, and how many of them a tile has at most, one more where there are 32 registers
(300 x 7 x 1500: 162 us by four, 132 by seven). 24 x 512 x 2048 takes 486 us so and 559 in packed panels, 16 x 100 x
1000 takes 47 and 39, 4 x 512 x 2048 takes 82 and 240. 800 x 8 x 31 takes 18.7 with vectors of sixteen, and 9.3 in tiles
that read both operands in place; 80 x 8 x 800 takes 19.4 and 16.5."""
_SWEEP = 8
"""Rows of a matrix that a vector meets in one sweep, and vectors by which its columns are shared. 3499 x 885 takes 190
us so and 293 in strips of 128 columns, whose lines the processor does not foresee."""
_MANY = 64
"""Rows or columns for which the few that they meet are copied."""
_LEAST = (2, 3), (4, 8), (8, 12)
"""Eighths of a vector that are summed at least, for so many rows or columns at most, beside tiles that pack. 206 x 110
x 12 by one vector each takes 33 us so and 106 in packed panels, 206 x 110 x 20 by four 152 and 155, 206 x 110 x 31 by
eight 296 and 515."""
_LINE, _FAR_LINE = 2.5, 4.0
"""Cycles in which a line of the rows comes, and one of the few where the first cache does not keep them."""
_END, _ADD = 24, 3
"""Cycles at the end of a tile, and for each sum whose lanes are added. 800 x 4 x 16 takes 7.0 us as dot products and
6.0 in tiles, 800 x 4 x 64 takes 11.2 and 15.5; 800 x 2 x 14 takes 5.0 and 5.7; 800 x 7 x 100 takes 23.9 and 22.2,
800 x 7 x 160 takes 27.7 and 33.5. With AVX2, 800 x 3 x 16 takes 6.3 and 7.8, 800 x 6 x 250 takes 80 and 62."""
_TILE_BEGINS, _TILE_SLOWER, _RUNS = 10, 1.1, 5
"""Products that a tile would form in the time before its first one; how much longer it takes than is modelled; cycles
per row that is stored in runs."""
_SUMS = 8
"""Sums that must be under way for a core to multiply and add in each cycle."""


def cut_dots(c: ProductBlocking, target: Target, threads: int) -> ProductBlocking | None:
    """The contraction as dot products; None where another way is faster or the operands do not lie so.

    Args:
        c: how it is cut otherwise.
        target: the processor.
        threads: that share the work.
    """
    rows, columns, summed, out = c.rows, c.columns, c.contracted, c.columns.sums
    if summed.paired or len(rows.dims) > 1 or len(columns.dims) != 1:
        return None
    lanes = lanes_of(target, out)
    if not out.plain or lanes < 4:
        return None
    m, n = rows.total, columns.total
    if m == 1 and columns.output_dense and columns.operand_dense:
        return _cut_sweep(c, lanes, threads) if len(summed.dims) == 1 else None
    lie = [summed.dense(k, panels.element.width_bytes) for k, panels in enumerate((rows, columns))]
    if not lie[m <= _FEW_ROWS] or not (all(lie) or (len(summed.dims) == 1 and max(m, n) >= _MANY)):
        return None
    if n < 2 or (m > _FEW_ROWS and n > _FEW_COLUMNS):
        return None
    few = m if m <= _FEW_ROWS else n
    packs = m <= _FEW_ROWS or not c.a_in_place  # else tiles read the many rows where they lie, too
    if packs and 8 * summed.dims[0].extent < next((x for most, x in _LEAST if few <= most), 8 * few) * lanes:
        return None  # adding lanes costs more than packing
    most = _AT_ONCE if target.registers <= 16 else _AT_ONCE + 1
    some = -(-few // -(-few // most))
    others = max(w for w in (8, 4, 3, 2, 1) if w <= lanes and (w == 1 or some * w + min(some, w) < target.registers))
    mr, nr = (some, min(others, 1 << (n - 1).bit_length())) if m <= _FEW_ROWS else (others, min(some, lanes))
    if nr < 2:
        return None
    if not packs and (n > most or _tiles_faster(c, target, lanes, mr)):
        return None  # the first: dot products would read the rows twice
    wide = replace(columns, width=nr, lanes=1 << (nr - 1).bit_length())
    tall = replace(rows, width=mr, lanes=1)
    row_panels, column_panels = tall.panels, wide.panels
    if threads > 1 and c.work >= PARALLEL_WORK and c.batches < 4 * threads:
        # the side with many is shared: each thread reads the few once, and its own part of the matrix alone
        parts = -(-4 * threads // c.batches)
        if m <= _FEW_ROWS:
            column_panels = -(-column_panels // parts)
        else:
            row_panels = -(-row_panels // parts)
    return replace(
        c,
        rows=tall,
        columns=wide,
        kc=summed.total,
        row_panels=row_panels,
        column_panels=column_panels,
        a=ReadFrom.IN_PLACE,
        b=ReadFrom.ALONG,
        keep_a=False,
        transposed_panels=0,
    )


def _tiles_faster(c: ProductBlocking, target: Target, lanes: int, height: int) -> bool:
    """Whether tiles that read rows in place, too, are faster than dot products of so many rows by all columns."""
    out, (first, *others) = c.columns.sums, c.contracted.dims
    m, n, products = c.rows.total, c.columns.total, c.contracted.total
    vector_bytes = lanes * out.width_bytes
    kept = n * products * out.width_bytes <= target.l1_bytes // 2
    line = (_LINE + (0 if kept else _FAR_LINE) * n / height) * vector_bytes / 64
    per_vector = line + n / 2 + n / height / 2  # lines, multiply-adds, loads of the few
    sums = height * (1 << (n - 1).bit_length())
    dots = (_END + _ADD * sums) / height + points(others) * -(-first.extent // lanes) * per_vector
    across = sides.lanes_of(target, out, n)
    per_product = _TILE_SLOWER * tile_cycles(target.registers, m, n, across, VECTORS) / m
    runs = 0 if target.masks_stores or n == across else _RUNS
    return per_product * (products + _TILE_BEGINS) + runs <= dots


def _cut_sweep(c: ProductBlocking, lanes: int, threads: int) -> ProductBlocking:
    """A vector times a matrix that is dense along its rows: each thread takes some columns of it."""
    wide = replace(c.columns, width=_SWEEP * lanes, lanes=lanes)
    parts = threads if threads > 1 and c.work >= PARALLEL_WORK and c.batches < 4 * threads else 1
    panels = -(-wide.panels // parts)
    a, b = ReadFrom.IN_PLACE, ReadFrom.SWEPT
    return replace(c, columns=wide, kc=c.contracted.total, row_panels=1, column_panels=panels, a=a, b=b, keep_a=False)


def copied(c: ProductBlocking) -> Panels | None:
    """The few rows, or the few columns, where they are copied first."""
    if c.b is ReadFrom.SWEPT:
        return None
    for k, panels in enumerate((c.rows, c.columns)):
        if not c.contracted.dense(k, panels.element.width_bytes):
            return panels
    return None


def working_bytes(c: ProductBlocking) -> int:
    """Bytes of the copies that a thread makes."""
    panels = copied(c)
    return 0 if panels is None else c.columns.sums.width_bytes * panels.total * c.contracted.total + 64


def lanes_of(target: Target, out: Element) -> int:
    """Products of one vector."""
    return min(target.lanes(out.width_bytes), 16)


def emit_dots(
    module: Module,
    target: Target,
    name: str,
    c: ProductBlocking,
    parameters: Sequence[tuple[str, str]],
    start: bool,
    clips: bool,
) -> None:
    """Add ``name``: all tiles of some row panels and some column panels.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        c: how the contraction is cut.
        parameters: of the function, those of every block.
        start: whether sums that are stored begin with a row.
        clips: whether a ReLU may be wanted.
    """
    f = Function(module, name, parameters)
    work = _Dots(f, target, c, start, clips)
    work.copy()
    if (
        c.rows.total > _FEW_ROWS and c.columns.panels > 1
    ):  # the side with many is read once: a panel of it meets all of the few
        f.loop("%r0", "%r1", lambda row, _: f.loop("%v0", "%v1", lambda column, _: work.tile(row, column)))
    else:
        f.loop("%v0", "%v1", lambda column, _: f.loop("%r0", "%r1", lambda row, _: work.tile(row, column)))
    f.ret()


def emit_sweep(
    module: Module,
    target: Target,
    name: str,
    c: ProductBlocking,
    parameters: Sequence[tuple[str, str]],
    start: bool,
    clips: bool,
) -> None:
    """Add ``name``: a vector times some columns of a matrix, some of its rows at a time, added up in the output.

    The arguments are those of `emit_dots`.
    """
    f = Function(module, name, parameters)
    out, lanes = c.columns.sums, c.columns.lanes
    sums = vector(out.memory, lanes)
    (summed,), (dim,) = c.contracted.dims, c.columns.dims
    first = f.mul("%v0", c.columns.width)
    last = f.min(f.mul("%v1", c.columns.width), dim.extent)
    whole = f.add(first, f.mul(f.div(f.sub(last, first), lanes), lanes))
    rest = vectors.mask_below(f, str(f.sub(last, whole)), lanes)

    def rows(k: Value, count: int) -> None:
        """The sums with the products of so many rows."""
        xs = []
        for r in range(count):
            place = f.at("%r", f.mul(f.add(k, r), summed.strides[0]))
            x = convert(
                f, target, f.load(c.rows.element.memory, place, c.rows.element.width_bytes), c.rows.element, out
            )
            xs.append(vectors.broadcast(f, out.memory, lanes, x))
        lines = [f.at("%v", f.mul(f.add(k, r), summed.strides[1])) for r in range(count)]
        begins = f.both("%init", f.compare("eq", k, 0))
        ends = f.both("%relu", f.compare("eq", f.add(k, count), summed.extent))

        def one(column: Value, mask: str | None) -> None:
            place = f.at("%out", f.mul(column, out.width_bytes))

            def begun() -> list[Value]:
                row = f.at("%start", f.mul(column, out.width_bytes))
                return [vectors.load(f, out, lanes, row, mask) if start else zero(out, lanes)]

            (total,) = f.choose(begins, [sums], begun, lambda: [vectors.load(f, out, lanes, place, mask)])
            for x, line in zip(xs, lines, strict=True):
                element = c.columns.element
                y = vectors.load(f, element, lanes, f.at(line, f.mul(column, element.width_bytes)), mask)
                total = multiply_add(f, out, lanes, x, convert(f, target, y, element, out, lanes), str(total))
            if clips:
                total = f.value(f"select i1 {ends}, {sums} {relu(f, str(total), out, lanes)}, {sums} {total}")
            if mask is None or target.masks_stores:
                vectors.store(f, out, lanes, str(total), place, mask)
            else:
                vectors.store_runs(f, out, lanes, str(total), place, vectors.runs_of(f, f.sub(last, whole), lanes))

        f.loop(first, whole, lambda column, _: one(column, None), step=lanes)
        f.when(f.compare("slt", whole, last), lambda: one(whole, rest))

    begin: Value = 0
    for count in (_SWEEP, _SWEEP // 2, _SWEEP // 4, 1):
        end = (summed.extent // count) * count
        f.loop(begin, end, lambda k, _, count=count: rows(k, count), step=count)  # type: ignore[misc]
        begin = end
    f.ret()


class _Dots:
    """Writes one tile."""

    def __init__(self, f: Function, target: Target, c: ProductBlocking, start: bool, clips: bool) -> None:
        self.f = f
        self.target = target
        self.cut = c
        self.start = start
        self.clips = clips
        self.out = c.columns.sums
        self.lanes = lanes_of(target, self.out)
        self.type = vector(self.out.memory, self.lanes)
        self.few = copied(c)

    def copy(self) -> None:
        """The few into working memory, each dense along what is summed, in the type of the sums."""
        f, panels, width = self.f, self.few, self.out.width_bytes
        if panels is None:
            return
        (summed,), which, element = self.cut.contracted.dims, int(panels is self.cut.columns), panels.element
        source = "%v" if which else "%r"
        stride = panels.dims[0].strides[0] if panels.dims else 0

        def one(k: Value, _: list[str]) -> None:
            near, into = f.at(source, f.mul(k, summed.strides[which])), f.at("%memory", f.mul(k, width))

            def other(index: Value, _: list[str]) -> None:
                value = f.load(element.memory, f.at(near, f.mul(index, stride)), element.width_bytes)
                value = convert(f, self.target, value, element, self.out)
                f.store(self.out.memory, value, f.at(into, f.mul(index, summed.extent * width)), width)

            f.loop(0, panels.total, other)

        f.loop(0, summed.extent, one)

    def tile(self, row: Value, column: Value) -> None:
        """The products of two panels; those beyond the last row or column repeat it, and are not stored."""
        f, c = self.f, self.cut
        rows = self.places(c.rows, row)
        columns = self.places(c.columns, column)
        sides = ("%r", c.rows, rows), ("%v", c.columns, columns)
        bases = [
            [f.at("%memory" if panels is self.few else base, operand) for operand, _ in found]
            for base, panels, found in sides
        ]
        sums = [zero(self.out, self.lanes)] * (len(rows) * len(columns))
        sums = self.nested(len(c.contracted.dims) - 1, bases, sums)
        left = f.sub(c.rows.total, f.mul(row, c.rows.width))
        count = f.min(f.sub(c.columns.total, f.mul(column, c.columns.width)), c.columns.width)
        mask = vectors.mask_below(f, str(count), c.columns.lanes)
        runs = [] if self.target.masks_stores else vectors.runs_of(f, count, c.columns.lanes)
        places = [output for _, output in columns]
        lines = [f.at("%out", output) for _, output in rows]
        totals = self.added(sums, len(columns))
        if c.columns.output_dense:
            totals = self.begun(totals, lines, places[0], mask)
        for k, (total, line) in enumerate(zip(totals, lines, strict=True)):
            store = partial(self.store_run, total, f.at(line, places[0]), mask, runs)
            if not c.columns.output_dense:
                store = partial(self.scatter, total, line, places)
            f.when(f.compare("slt", k, left) if k else 1, store)

    def places(self, panels: Panels, number: Value) -> list[tuple[Value, Value]]:
        """Where the indices of a panel lie in the operand and in the output."""
        f = self.f
        if not panels.dims:
            return [(0, 0)] * panels.width
        (dim,) = panels.dims
        far = dim.strides[0] if panels is not self.few else self.cut.contracted.total * self.out.width_bytes
        first = f.mul(number, panels.width)
        indices = [f.min(f.add(first, k), panels.total - 1) if k else first for k in range(panels.width)]
        return [(f.mul(index, far), f.mul(index, dim.strides[1])) for index in indices]

    # ---- sums ---------------------------------------------------------------------------------------------------

    def nested(self, level: int, bases: Sequence[list[str]], sums: list[str]) -> list[str]:
        """The products of all summed axes up to a level."""
        if not level:
            return self.along(bases, sums)
        f, dim = self.f, self.cut.contracted.dims[level]

        def one(index: Value, carried: list[str]) -> Sequence[Value]:
            a, b = (f.mul(index, stride) for stride in dim.strides)
            moved = [f.at(base, a) for base in bases[0]], [f.at(base, b) for base in bases[1]]
            return self.nested(level - 1, moved, carried)

        return list(map(str, f.loop(0, dim.extent, one, carry=[(self.type, s) for s in sums], nonempty=True)))

    def along(self, bases: Sequence[list[str]], sums: list[str]) -> list[str]:
        """The products of the dense axis: some vectors at a time where there are few sums, vectors, then the rest."""
        f, extent, lanes = self.f, self.cut.contracted.dims[0].extent, self.lanes
        several = max(1, _SUMS // len(sums))
        begin: Value = 0
        if several > 1:
            begin = (extent // (several * lanes)) * (several * lanes)
            carry = [(self.type, s) for s in sums + [zero(self.out, lanes)] * (len(sums) * (several - 1))]

            def turn(k: Value, carried: list[str]) -> Sequence[Value]:
                parts = [carried[p * len(sums) : (p + 1) * len(sums)] for p in range(several)]
                return [s for p, part in enumerate(parts) for s in self.products(bases, f.add(k, p * lanes), part)]

            carried = list(map(str, f.loop(0, begin, turn, step=several * lanes, carry=carry)))
            sums = carried[: len(sums)]
            for p in range(1, several):
                sums = [self.plus(a, b) for a, b in zip(sums, carried[p * len(sums) :], strict=False)]
        end = (extent // lanes) * lanes
        made = f.loop(
            begin, end, lambda k, now: self.products(bases, k, now), step=lanes, carry=[(self.type, s) for s in sums]
        )
        sums, rest = list(map(str, made)), extent - end

        def last() -> Sequence[Value]:
            return self.products(bases, end, sums, vectors.mask_below(f, str(rest), lanes))

        left: Value = int(rest > 0) if known(rest) else f.compare("sgt", rest, 0)
        return list(map(str, f.choose(left, [self.type] * len(sums), last, lambda: sums)))

    def products(self, bases: Sequence[list[str]], k: Value, sums: Sequence[str], mask: str | None = None) -> list[str]:
        """The sums with one more vector of products each."""
        a, b = (
            [self.read(self.out if panels is self.few else panels.element, base, k, mask) for base in side]
            for side, panels in zip(bases, (self.cut.rows, self.cut.columns), strict=True)
        )
        pairs = [(x, y) for x in a for y in b]
        return [multiply_add(self.f, self.out, self.lanes, x, y, s) for (x, y), s in zip(pairs, sums, strict=True)]

    def read(self, element: Element, base: str, k: Value, mask: str | None) -> str:
        """A vector of an operand in the type of the sums; lanes that are masked are zero, unread."""
        place = self.f.at(base, self.f.mul(k, element.width_bytes))
        found = vectors.load(self.f, element, self.lanes, place, mask)
        return convert(self.f, self.target, found, element, self.out, self.lanes)

    def plus(self, a: str, b: str, lanes: int = 0) -> str:
        sign = "fadd" if self.out.floating else "add"
        return self.f.value(f"{sign} {vector(self.out.memory, lanes or self.lanes)} {a}, {b}")

    def added(self, sums: list[str], columns: int) -> list[str]:
        """The lanes of each sum added up: a vector per row, with a lane for each of its columns.

        As many rows as a vector has room for are added together, so that few of its lanes are added for nothing. A
        round joins two vectors, in which the sums then alternate in runs of ``run`` lanes.
        """
        wide = self.cut.columns.lanes
        together, totals = self.lanes // wide, list[str]()
        every = [sums[k : k + columns] + ["poison"] * (wide - columns) for k in range(0, len(sums), columns)]
        for first in range(0, len(every), together):
            rows = every[first : first + together]
            some = [one for row in rows for one in row]
            some += ["poison"] * ((1 << (len(some) - 1).bit_length()) - len(some))
            total, lanes, run = self.joined(some)
            while lanes > run:
                half = lanes // 2
                low, high = (self.shuffle(total, "poison", range(at, at + half), lanes) for at in (0, half))
                total, lanes = self.plus(low, high, half), half
            for k in range(len(rows)):
                part = range(k * wide, (k + 1) * wide)
                totals.append(total if lanes == wide else self.shuffle(total, "poison", part, lanes))
        return totals

    def joined(self, sums: list[str]) -> tuple[str, int, int]:
        """A power of two of vectors as one, of how many lanes, and how many sums these are, over and over."""
        lanes, run = self.lanes, 1
        while len(sums) > 1:
            even = [k if not k & run else k - run + lanes for k in range(lanes)]
            odd = [k + run if not k & run else k + lanes for k in range(lanes)]
            sums = [
                "poison" if a == b == "poison" else self.plus(self.shuffle(a, b, even), self.shuffle(a, b, odd))
                for a, b in zip(sums[::2], sums[1::2], strict=True)
            ]
            run *= 2
        return sums[0], lanes, run

    def shuffle(self, a: str, b: str, indices: Sequence[int], lanes: int = 0) -> str:
        full = vector(self.out.memory, lanes or self.lanes)
        mask = "<" + ", ".join(f"i32 {index}" for index in indices) + ">"
        return self.f.value(f"shufflevector {full} {a}, {full} {b}, <{len(indices)} x i32> {mask}")

    # ---- the output ---------------------------------------------------------------------------------------------

    def begun(self, totals: list[str], lines: Sequence[str], column: Value, mask: str) -> list[str]:
        """Rows of sums with what they begin with: where they are stored, a row or nothing, else what the output holds.

        All is read before any is stored: a row that follows would wait for a masked store beside it.
        """
        f, lanes = self.f, self.cut.columns.lanes

        def stored() -> list[str]:
            if not self.start:
                return totals
            row = vectors.load(f, self.out, lanes, f.at("%start", column), mask)
            return [self.plus(total, row, lanes) for total in totals]

        def held() -> list[str]:
            old = [vectors.load(f, self.out, lanes, f.at(line, column), mask) for line in lines]
            return [self.plus(total, one, lanes) for total, one in zip(totals, old, strict=True)]

        return list(map(str, f.choose("%init", [vector(self.out.memory, lanes)] * len(totals), stored, held)))

    def store_run(self, total: str, place: str, mask: str, runs: Sequence[Value]) -> None:
        """A row of sums that lie side by side in the output."""
        f, lanes = self.f, self.cut.columns.lanes
        total = self.clipped(total, lanes)
        if runs:
            vectors.store_runs(f, self.out, lanes, total, place, runs)
        else:
            vectors.store(f, self.out, lanes, total, place, mask)

    def scatter(self, total: str, line: str, columns: Sequence[Value]) -> None:
        """A row of sums one by one: all are read before any is stored, since the last column may stand there twice."""
        f, kind, width = self.f, self.out.memory, self.out.width_bytes
        full = vector(kind, self.cut.columns.lanes)
        spots = [f.at(line, column) for column in columns]
        values = [f.value(f"extractelement {full} {total}, i64 {k}") for k in range(len(spots))]

        def added() -> Sequence[Value]:
            return [self.plus(v, f.load(kind, spot, width), 1) for v, spot in zip(values, spots, strict=True)]

        for value, spot in zip(f.choose("%init", [kind] * len(values), lambda: values, added), spots, strict=True):
            f.store(kind, self.clipped(str(value), 1), spot, width)

    def clipped(self, value: str, lanes: int) -> str:
        """A sum after the ReLU, where that is asked for."""
        if not self.clips:
            return value
        full = vector(self.out.memory, lanes)
        return self.f.value(f"select i1 %relu, {full} {relu(self.f, value, self.out, lanes)}, {full} {value}")
