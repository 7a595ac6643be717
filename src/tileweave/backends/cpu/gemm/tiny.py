"""Many products so small that each is a few tiles: straight code with constant offsets, one point of the batch after
the other.

The code for larger products calls its tiles through tables of addresses, which cost more than the sums of a 9 x 5 x 14:
13,345 of those take 1.3 ms by it, and 0.4 ms here.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tileweave.backends.cpu.gemm.blocking import ProductBlocking
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import vector, zero
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import emit_points
from tileweave.backends.cpu.llvm.meanings import relu
from tileweave.backends.cpu.llvm.products import multiply_add
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import known
from tileweave.teir.merged.form import MergedOp, Mode

_MOST_PRODUCTS, _UNROLLED = 1024, 256
"""Products of vectors in the code for one point of the batch, and in a tile whose sums are no loop."""


def straight(c: ProductBlocking) -> bool:
    """Whether a product is computed here: a batch of constant sizes, both operands read where they lie."""
    columns, rows, summed = c.columns, c.rows, c.contracted
    sized = known(rows.total) and known(columns.total) and known(summed.total)
    if not c.batch or c.outer or c.untiled or c.transposed_panels or summed.paired or not sized:
        return False
    in_place = c.a_in_place and c.b_in_place and c.k_blocks == 1
    whole = columns.lanes == 1 or (columns.operand_dense and columns.output_dense and columns.segments == 1)
    products = rows.total * -(-columns.total // columns.lanes) * summed.total
    return in_place and whole and products <= _MOST_PRODUCTS


def emit_straight(
    module: Module,
    target: Target,
    name: str,
    parameters: Sequence[tuple[str, str]],
    op: MergedOp,
    c: ProductBlocking,
    *,
    parallel: bool,
) -> str:
    """Add the function of a contraction (`contract.emit_contraction`); how it works, in a line."""
    f = Function(module, name, parameters)
    order = ("%p1", "%p0", "%p2") if c.swapped else ("%p0", "%p1", "%p2")
    pointers = [f.at(p, offset) for p, offset in zip(order, c.offsets, strict=True)]
    flags = [f.value(f"zext i1 {flag} to i64") for flag in ("%init", "%relu")]
    rows = _offsets(c.rows.dims)
    columns = _offsets(c.columns.dims)[:: c.columns.lanes]
    sides = [(rows, c.rows.width), (columns, c.columns.groups)]
    row_panels, column_panels = ([side[k : k + n] for k in range(0, len(side), n)] for side, n in sides)

    def point(g: Function, moved: list[str], words: list[Value]) -> None:
        init, clip = (g.compare("ne", word, 0) for word in words[-2:])
        for tile_rows, (number, tile_columns) in product(row_panels, enumerate(column_panels)):
            live = min(c.columns.total - number * c.columns.width, c.columns.width)
            _Straight(g, target, op, c, moved, (init, clip), tile_rows, tile_columns, live).emit()

    emit_points(f, c.batch, pointers, point, parallel=parallel, words=flags)
    f.ret()
    return "each point of the batch in straight code; prefetch: none; stores: through the caches"


def _offsets(dims: Sequence[Mode]) -> list[tuple[int, ...]]:
    """The bytes by which each flat index moves both tensors of a pair, the first axis fastest."""
    found = [(0, 0)]
    for dim in dims:
        a, b = dim.strides
        found = [(x + k * a, y + k * b) for k in range(dim.extent) for x, y in found]
    return found  # type: ignore[return-value]


class _Straight:
    """Writes one tile of one point."""

    def __init__(
        self,
        f: Function,
        target: Target,
        op: MergedOp,
        c: ProductBlocking,
        bases: Sequence[str],
        flags: tuple[Value, Value],
        rows: Sequence[tuple[int, ...]],
        columns: Sequence[tuple[int, ...]],
        live: int,
    ) -> None:
        self.f, self.target, self.op, self.cut = f, target, op, c
        self.bases, self.flags = bases, flags
        self.rows, self.columns = rows, columns
        self.element, self.lanes = c.columns.sums, c.columns.lanes
        self.type = vector(self.element.memory, self.lanes)
        self.counts = [min(self.lanes, live - k * self.lanes) for k in range(len(columns))]

    def emit(self) -> None:
        sums = self.sums()
        init = self.flags[0] if self.op.init is not None else 0
        self.f.when(init, lambda: self.write(sums, add=False), lambda: self.write(sums, add=True))

    def masks(self) -> list[str | None]:
        return [None if n == self.lanes else vectors.mask_of(n, self.lanes) for n in self.counts]

    def sums(self) -> list[str]:
        """The products: all of them in a row, or in a loop over an axis where they are many."""
        f, dims = self.f, self.cut.contracted.dims
        start = [zero(self.element, self.lanes)] * (len(self.rows) * len(self.columns))
        if len(start) * self.cut.contracted.total <= _UNROLLED:
            sums = start
            for row, column in _offsets(dims):
                sums = self.step(sums, row, column)
            return sums

        def axis(level: int, sums: list[str], row: Value, column: Value) -> list[str]:
            if level < 0:
                return self.step(sums, row, column)
            strides = dims[level].strides

            def one(index: Value, carried: list[str]) -> Sequence[Value]:
                moved = (f.add(o, f.mul(index, s)) for o, s in zip((row, column), strides, strict=True))
                return axis(level - 1, carried, *moved)

            carry = [(self.type, value) for value in sums]
            return [str(value) for value in f.loop(0, dims[level].extent, one, carry=carry, nonempty=True)]

        return axis(len(dims) - 1, start, 0, 0)

    def step(self, sums: Sequence[str], row: Value, column: Value) -> list[str]:
        """One product of every row with every vector."""
        f, width = self.f, self.cut.rows.element.width_bytes
        base = f.at(self.bases[1], column)
        places = [f.at(base, offset) for offset, _ in self.columns]
        b = [
            vectors.load(f, self.element, self.lanes, place, mask)
            for place, mask in zip(places, self.masks(), strict=True)
        ]
        base, found = f.at(self.bases[0], row), []
        for k, (offset, _) in enumerate(self.rows):
            one = f.load(self.element.memory, f.at(base, offset), width)
            a = vectors.broadcast(f, self.element.memory, self.lanes, one)
            for group, value in enumerate(b):
                found.append(multiply_add(f, self.element, self.lanes, a, value, sums[k * len(b) + group]))
        return found

    def write(self, sums: Sequence[str], *, add: bool) -> None:
        """The sums to the output, or added to it."""
        f, masks = self.f, self.masks()
        for (k, (_, row)), (group, (_, column)) in product(enumerate(self.rows), enumerate(self.columns)):
            value, place = sums[k * len(masks) + group], f.at(self.bases[2], row + column)
            if add:
                old = vectors.load(f, self.element, self.lanes, place, masks[group])
                value = f.value(f"{'fadd' if self.element.floating else 'add'} {self.type} {value}, {old}")
            if self.op.relu is not None:
                clipped = relu(f, value, self.element, self.lanes)
                value = f.value(f"select i1 {self.flags[1]}, {self.type} {clipped}, {self.type} {value}")
            self.put(value, place, self.counts[group])

    def put(self, value: str, place: str, count: int) -> None:
        """The first elements of a vector; in whole pieces where masked stores are slow."""
        f, element, lanes = self.f, self.element, self.lanes
        if self.target.masks_stores:
            mask = None if count == lanes else vectors.mask_of(count, lanes)
            vectors.store(f, element, lanes, value, place, mask)
        else:
            vectors.store_runs(f, element, lanes, value, place, vectors.runs_of(f, count, lanes))
