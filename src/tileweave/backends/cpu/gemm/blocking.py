"""How a contraction is blocked, as a value; and which of its numbers are sizes, which code may take from a table.

What is left is what code is specialised on: how many axes there are of each role, where an operand is dense, the
register tile, what is packed, and the element types.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Any

from tileweave.backends.cpu.gemm.packing.prefetch import prefetch_steps
from tileweave.backends.cpu.gemm.packing.turning import turns
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.gemm.tile import cycles_in, may_read_in_place
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import above
from tileweave.teir.merged.form import Mode, points


class ReadFrom(Enum):
    """Where the micro-kernel reads an operand."""

    IN_PLACE = "read in place"
    PACKED = "packed"
    SHARED = "packed once for all threads"
    ALONG = "read in place in vectors along what is summed"
    SWEPT = "read in place, some whole rows at a time"

    __hash__ = object.__hash__
    """Of the object, of which there is one: cuts are looked up for every further shape."""


@dataclass(frozen=True, slots=True)
class ProductBlocking:
    """A contraction ready for code.

    Args:
        outer: axes that stay sequential loops around everything, with strides (row operand, vector operand, output).
        batch: axes that all three tensors share, or that only the output has; same strides.
        rows: panels of the operand that is broadcast (A).
        columns: panels of the operand along which vectors run (B).
        contracted: the axes that are summed.
        swapped: whether in1 is the row operand.
        offsets: bytes added to row operand, vector operand, output.
        kc: products per block.
        row_panels: row panels per chunk.
        column_panels: column panels per chunk.
        a: how the row operand is read.
        b: how the vector operand is read; never `SHARED`. `ALONG` and `SWEPT`: by `dots`.
        keep_a: where rows are packed once, every column panel meets all of a chunk's rows as soon as it is packed;
            where both operands are read in place, as soon as it is in the first cache.
        transposed_panels: column panels that are transposed together in a buffer, vectors running along the operand's
            memory and not the output's; 0 where they run along the output's.
        last: halves of a vector in tiles of the last, partial column panel, where panels are few; 0: as others do.
        prefetch: the caller's wish that operands are asked for before they are read, or not; None: as their size says.
        streamed: the caller's wish that stores bypass the caches where they can, or never; None: as the size says.
    """

    outer: tuple[Mode, ...]
    batch: tuple[Mode, ...]
    rows: Panels
    columns: Panels
    contracted: Contracted
    swapped: bool
    offsets: tuple[int, int, int]
    kc: int
    row_panels: int
    column_panels: int
    a: ReadFrom
    b: ReadFrom
    keep_a: bool
    transposed_panels: int = 0
    last: int = 0
    prefetch: bool | None = None
    streamed: bool | None = None

    def far(self, operand: int, target: Target) -> bool:
        """Whether the row operand (0), or the vector operand (1), is asked for before it is read.

        That is so where it is larger than the second cache, or as the caller wishes.
        """
        panels = self.columns if operand else self.rows
        size = panels.total * self.contracted.total * panels.element.width_bytes
        return above(size, target.l2_bytes) if self.prefetch is None else self.prefetch

    def may_stream(self, target: Target) -> bool:
        """Whether the output bypasses the caches where it can: it is larger than they are, or the caller wishes it."""
        large = self.output_bytes >= target.l3_bytes if self.streamed is None else self.streamed
        return large and target.has("sse2")

    def reading(self, a_in_place: bool, b_in_place: bool, shared: bool) -> ProductBlocking:
        """The same blocks with operands read in place or packed, A once for all threads where that is shared."""
        a = ReadFrom.IN_PLACE if a_in_place else ReadFrom.SHARED if shared else ReadFrom.PACKED
        return replace(self, a=a, b=ReadFrom.IN_PLACE if b_in_place else ReadFrom.PACKED)

    @property
    def a_in_place(self) -> bool:
        """Whether the row operand is read where it lies."""
        return self.a is ReadFrom.IN_PLACE

    @property
    def b_in_place(self) -> bool:
        """Whether the vector operand is read where it lies."""
        return self.b is not ReadFrom.PACKED

    @property
    def untiled(self) -> bool:
        """Whether it is computed by `dots`, without the tiles of `micro`."""
        return self.b in (ReadFrom.ALONG, ReadFrom.SWEPT)

    @property
    def shared(self) -> bool:
        """Whether row panels are packed once for all threads, in a phase of their own."""
        return self.a is ReadFrom.SHARED

    @property
    def a_resident(self) -> bool:
        """Whether column panels go by the rows, which stay; otherwise row panels go by the columns of a chunk."""
        return self.keep_a and self.shared and (not self.b_in_place or self.transposed_panels > 0 or self.in_panels)

    @property
    def in_panels(self) -> bool:
        """Whether the vector operand's own memory is panels, each as it would be packed."""
        return lies_in_panels(self.columns.dims, self.contracted, self.columns.element, self.columns.sums) == (
            self.columns.width
        )

    @property
    def turned(self) -> bool:
        """Whether all column panels of a chunk are packed at once, by `turning`."""
        return not self.b_in_place and not self.a_resident and turns(self.columns, self.contracted)

    @property
    def ahead(self) -> bool:
        """Whether the rows of the next block of K are packed while columns pass by the rows of this one.

        One panel at a time, so where panels share lines, being packed element by element, they are better packed apart.
        """
        return self.a_resident and self.k_blocks > 1 and prefetch_steps(self.rows, self.contracted, 0, 1) != 0

    @property
    def nested(self) -> bool:
        """Whether both operands are read in place, in loops over several axes of K."""
        return self.a_in_place and self.b_in_place and self.contracted.tabled and self.k_blocks == 1

    @property
    def may_place_rows(self) -> bool:
        """Whether the row operand can be read in place."""
        return may_read_in_place(self.contracted, self.rows.element, self.rows.sums)

    @property
    def k_blocks(self) -> int:
        """Blocks of K."""
        return -(-self.contracted.total // self.kc)

    @property
    def row_chunks(self) -> int:
        """Chunks of rows."""
        return -(-self.rows.panels // self.row_panels)

    @property
    def column_chunks(self) -> int:
        """Chunks of columns."""
        return -(-self.columns.panels // self.column_panels)

    @property
    def batches(self) -> int:
        """Points of the batch axes."""
        return points(self.batch)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output's elements."""
        return self.columns.output_bytes * self.batches * self.rows.total * self.columns.total

    @property
    def flops(self) -> int:
        """Multiplications and additions for one point of the outer axes."""
        return 2 * self.batches * self.rows.total * self.columns.total * self.contracted.total

    @property
    def work(self) -> int:
        """Of one point of the outer axes, by which it is decided whether threads share it."""
        return work_of(self.rows, self.columns, self.contracted, self.batches)

    def explain(self, names: Sequence[str]) -> tuple[str, ...]:
        """The sizes of the blocks, and what is packed, in the field's names: A is broadcast, B runs in vectors."""
        rows, columns = self.rows, self.columns
        a, b = reversed(names) if self.swapped else names
        batch = f"{self.batches} x " if self.batches > 1 else ""
        sizes = f"{batch}m {rows.total}, n {columns.total}, k {self.contracted.total}"
        blocks = f"mr {rows.width}, nr {columns.width}, kc {self.kc}, mc {self.row_panels * rows.width}"
        first = self.a.value
        ahead = ", the next block of k while this one is computed" if self.ahead else ""
        at_once = "" if self.b_in_place or columns.pack_panels == 1 else f" {columns.pack_panels} panels at once"
        second = self.b.value + at_once + (", in panels" if self.b_in_place and self.in_panels else "")
        if self.transposed_panels:
            second += f", tiles of {self.transposed_panels} panels transposed in a buffer"
        resident = "A" if self.a_resident else "B"
        return (
            f"{sizes}; {blocks}, nc {self.column_panels * columns.width}",
            f"A = {a} {first}{ahead}; B = {b} {second}; the block of {resident} stays in the second cache",
        )


def lies_in_panels(dims: tuple[Mode, ...], contracted: Contracted, element: Element, sums: Element) -> int:
    """The columns of a panel where the vector operand's memory is one panel after the other; 0 where it is not."""
    width = element.width_bytes
    if element != sums or len(dims) < 2 or len(contracted.dims) != 1 or dims[0].strides[0] != width:
        return 0
    run = dims[0].extent
    return run if dims[0].strides[1] == width and contracted.stride(1) == run * width else 0


PARALLEL_WORK = 500_000
"""Work from which threads share a contraction."""


def work_of(rows: Panels, columns: Panels, contracted: Contracted, batches: int) -> int:
    """Multiplications and additions, and as much again as there are bytes in the operands and the output.

    A matrix of 187 x 1320 in FP64 that meets a vector takes 84 us by one thread, and 34 by two; from 10 us on a second
    thread pays that is late now and then.
    """
    m, n, k = rows.total, columns.total, contracted.total
    read = rows.element.width_bytes * m * k + columns.element.width_bytes * n * k
    return batches * (2 * m * n * k + read + columns.output_bytes * m * n)


_TINY, _MANY = 16**3, 16
"""Multiplications of a tiny product, at most, and how many products are many; figures in `are_tiny`."""


def are_tiny(modes: Sequence[Mode]) -> bool:
    """Whether a contraction is many products so small that code with constant sizes pays.

    A thousand of 8 x 8 x 8 take 38 us with constants, 44 with sizes from a table; one of 16 x 16 x 16 takes as long.
    """
    shared = [all(mode.strides[:3]) for mode in modes]
    many = points([mode for mode, batch in zip(modes, shared, strict=True) if batch])
    return many >= _MANY and points([m for m, batch in zip(modes, shared, strict=True) if not batch]) <= _TINY


def _groups(c: ProductBlocking) -> list[tuple[tuple[Mode, ...], tuple[int, ...]]]:
    """The axes by role, each with the widths in bytes of the operands that they walk."""
    a, b, out = c.rows.element.width_bytes, c.columns.element.width_bytes, c.columns.output_bytes
    every = a, b, out
    return [
        (c.outer, every),
        (c.batch, every),
        (c.rows.dims, (a, out)),
        (c.columns.dims, (b, out)),
        (c.contracted.dims, (a, b)),
    ]


def axes_of(c: ProductBlocking) -> tuple[Hashable, list[int]]:
    """Of the axes: what code of a kind (`teir.merged.kind`) is specialised on, before it decides by any size; and the
    sizes, in the order in which `with_sizes` takes them."""
    rows, columns, summed = c.rows, c.columns, c.contracted
    about: list[Any] = [len(c.outer), len(c.batch), len(rows.dims), len(columns.dims), len(summed.dims), c.swapped]
    numbers = []
    for dims, widths in _groups(c):
        for dim in dims:
            numbers.append(dim.extent)
            for s, w in zip(dim.strides, widths, strict=True):
                if s in (0, w, -w):
                    about.append(s)
                else:
                    about.append("s")
                    numbers.append(s)
    kinds = rows.element.name, columns.element.name, columns.sums.name, columns.output_bytes
    return (*about, *kinds, summed.interleaved, summed.paired, *map(bool, c.offsets)), numbers


def tile_of(c: ProductBlocking) -> tuple[Hashable, list[int]]:
    """As `axes_of`, of how they are cut: what `cut_like` takes from another product comes first."""
    rows, columns = c.rows, c.columns
    tile = rows.width, rows.lanes, columns.width, columns.lanes, c.transposed_panels, c.last
    numbers = [c.kc, c.row_panels, c.column_panels, *(o for o in c.offsets if o)]
    return (*tile, c.a, c.b, c.keep_a, c.a_resident), numbers


def may_lend(c: ProductBlocking, *, starts: bool = False) -> bool:
    """Whether code of a product may serve others, and other code it: whatever the tiles, see `cut_like`.

    Where sums start with a row, that has to be one piece in panels of any width.
    """
    pieces = starts and len(c.columns.dims) > 1
    return not (c.untiled or c.transposed_panels or c.in_panels or pieces)


def cut_like(c: ProductBlocking, other: ProductBlocking) -> list[int] | None:
    """The numbers of `tile_of` of a product with the tile of another one of its kind and axes (`axes_of`), and its
    operands read as there.

    It is slower, of the same bits: every sum is formed in the blocks of K that it would have, in the same order. None
    where that code cannot serve. Both `may_lend`.
    """
    columns, width, lanes, height = c.columns, other.columns.width, other.columns.lanes, other.rows.width
    if other.keep_a and c.batches > 1:
        return None
    if (c.kc % lanes and c.k_blocks > 1) or (other.a_in_place and not c.may_place_rows):
        return None
    if columns.width != width or columns.lanes != lanes:
        columns = Panels(columns.dims, columns.element, columns.sums, columns.output_bytes, width, lanes)
    if columns.pack_panels > 1:
        return None
    if other.b_in_place and not (columns.element == columns.sums and columns.operand_dense and columns.output_dense):
        return None
    if other.b_in_place and columns.segments > 1:
        return None
    panels = -(-c.rows.total // height)
    row_panels = min(panels, -(-c.row_panels * c.rows.width // height))
    if other.keep_a:
        row_panels = min(panels, -(-row_panels // lanes) * lanes)
    column_panels = min(columns.panels, -(-c.column_panels * c.columns.width // width))
    return [c.kc, row_panels, column_panels, *(o for o in c.offsets if o)]


NEAR = 1.05
"""How many times as long a product may take in other tiles that serve it for good: to write code of its own takes as
long as hundreds of runs."""


def longer(c: ProductBlocking, other: ProductBlocking) -> float:
    """How many times as long a product takes in the tiles of another one; inf where operands are read otherwise."""
    return longer_in(c)(other)


def longer_in(c: ProductBlocking) -> Callable[[ProductBlocking], float]:
    """`longer` for others that are asked for one by one."""
    reads, cycles = (c.a, c.b, c.keep_a, c.a_resident), _cycles(c)
    own = cycles(*_tile(c))

    def of(other: ProductBlocking) -> float:
        return cycles(*_tile(other)) / own if reads == (other.a, other.b, other.keep_a, other.a_resident) else inf

    return of


def _tile(c: ProductBlocking) -> tuple[int, int, int, int]:
    return c.rows.width, c.columns.width, c.columns.lanes, c.last


def _cycles(c: ProductBlocking) -> Callable[[int, int, int, int], float]:
    """Of a product in a `_tile`, as code has it where sizes are words of the table."""
    rows, columns, held = c.rows.total, c.columns.total, c.a_in_place

    def of(height: int, width: int, lanes: int, last: int) -> float:
        vectors, (panels, rest) = -(-width // lanes), divmod(columns, width)
        least = last / 2 if last else vectors // 2 if vectors in (2, 4) else -(-rest // lanes)
        end = least if rest <= least * lanes else vectors
        return cycles_in(height, vectors, end if rest else 0, (-(-rows // height), panels), held=held)

    return of


def cut_near(c: ProductBlocking, other: ProductBlocking, most: float, *, starts: bool) -> list[int] | None:
    """As `cut_like`, where code of the other one would take ``most`` times the time of its own, by estimate."""
    if not may_lend(c, starts=starts) or not may_lend(other, starts=starts):
        return None
    if other.columns.lanes != c.columns.lanes or c.columns.pack_panels > 1:
        return None
    return cut_like(c, other) if most == inf or longer(c, other) <= most else None


def with_sizes(c: ProductBlocking, size: Callable[[int], int]) -> ProductBlocking:
    """The same product with every size replaced by what a function makes of it, in the order of `axes_of` and
    `tile_of`."""

    def mode(dim: Mode, widths: Sequence[int]) -> Mode:
        extent = size(dim.extent)
        return Mode(extent, tuple(s if s in (0, w, -w) else size(s) for s, w in zip(dim.strides, widths, strict=True)))

    outer, batch, rows, columns, summed = (tuple(mode(dim, widths) for dim in dims) for dims, widths in _groups(c))
    kc, row_panels, column_panels = map(size, (c.kc, c.row_panels, c.column_panels))
    a, b, out = (size(offset) if offset else 0 for offset in c.offsets)
    return replace(
        c,
        outer=outer,
        batch=batch,
        rows=replace(c.rows, dims=rows),
        columns=replace(c.columns, dims=columns),
        contracted=replace(c.contracted, dims=summed),
        kc=kc,
        row_panels=row_panels,
        column_panels=column_panels,
        offsets=(a, b, out),
    )
