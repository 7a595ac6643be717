"""Tiles that products read, in stages of shared memory: how they lie, what fills a stage, the body that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2, prod

from tileweave.index import Expr, as_expr, simplify, substitute
from tileweave.kernel.dispatch.context import always
from tileweave.kernel.dispatch.layouts.places import fastest, strided_layout
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Fence,
    For,
    Init,
    KernelTensor,
    Line,
    Op,
    Region,
    Statement,
    Sync,
    Wait,
    When,
)
from tileweave.kernel.ir.verify import scale_layout
from tileweave.layout.f2.swizzle import Swizzle


def automatic(statement: object) -> bool:
    """Whether a statement is a product that reads global memory."""
    return isinstance(statement, Op) and statement.name == "gemm" and bool(far(statement))


def far(op: Op) -> list[Region]:
    """The operands of a product that are in global memory."""
    return [v for v in op.ins[:2] if isinstance(v, Region) and v.tensor.space in ("global", "symmetric")]


def operands(body: Sequence[Statement]) -> list[Region]:
    """The tiles in global memory that products of a body read, each once."""
    return list(dict.fromkeys(r for s in body if isinstance(s, Op) and automatic(s) for r in far(s)))


def staged(region: Region, stages: int, name: str) -> KernelTensor:
    """A tensor in shared memory for some stages of a tile: its rows in memory, with their widest swizzle."""
    rows, columns = region.shape[::-1] if turned(region) else region.shape
    bytes_ = region.tensor.element.bits // 8
    width = next((w for w in (128, 64, 32) if columns * bytes_ % w == 0), 0)
    if not width or bytes_ > 4:
        pitch = columns + max(1, 16 // bytes_)
        layout = strided_layout([(stages, rows * pitch), (rows, pitch), (columns, 1)])
        return KernelTensor(name, (stages, rows, columns), region.tensor.dtype, "shared", layout)
    elements = width // bytes_
    inner = [(columns // elements, rows * elements)] if columns > elements else []
    layout = strided_layout([(stages, rows * columns), (rows, elements), *inner, (elements, 1)])
    swizzle = Swizzle(int(log2(width // 16)), int(log2(16 // bytes_)), 3)
    return KernelTensor(name, (stages, rows, columns), region.tensor.dtype, "shared", layout, swizzle)


def scales_of(body: Sequence[Statement]) -> list[Region]:
    """The scales in global memory of products of a body, each once."""
    found = (v for s in body if isinstance(s, Op) and automatic(s) for v in s.ins[3:])
    return list(dict.fromkeys(v for v in found if isinstance(v, Region) and v.tensor.space == "global"))


def staged_scales(region: Region, stages: int, name: str) -> KernelTensor:
    """A tensor in shared memory for some stages of scales, as tensor memory takes them where they come so."""
    shape = (stages, *region.shape)
    whole = region.shape[0] % 128 == 0 and region.shape[1] % 4 == 0
    rows = [(n, prod(shape[d + 1 :])) for d, n in enumerate(shape)]
    layout = scale_layout(shape) if whole else strided_layout(rows)
    return KernelTensor(name, shape, region.tensor.dtype, "shared", layout)


def turned(region: Region) -> bool:
    """Whether a tile is staged as it lies, though its product reads it by columns: what reads 16 bits turns them.

    ``ldmatrix.trans`` and the descriptors of ``wgmma`` and ``tcgen05.mma`` do; other types are turned on their way.
    """
    return region.tensor.element.bits == 16 and fastest(region) == 0


@dataclass(frozen=True)
class StagedTiles:
    """The tiles of a loop's products, in stages of shared memory.

    Args:
        loop: the loop.
        tensors: tile in global memory -> its stages.
        stages: how many.
    """

    loop: For
    tensors: dict[Region, KernelTensor]
    stages: int

    @classmethod
    def of(cls, loop: For, stages: int, fresh: Callable[[str], str], scales: bool = False) -> StagedTiles:
        """The tiles of a loop, and the scales of its products where they are asked for, under names of their own."""
        tiles = {r: staged(r, stages, fresh("s" + r.tensor.name.lower())) for r in operands(loop.body)}
        for r in scales_of(loop.body) if scales else ():
            tiles[r] = staged_scales(r, stages, fresh("s" + r.tensor.name.lower()))
        return cls(loop, tiles, stages)

    @property
    def turn(self) -> Expr:
        """The number of a turn of the loop."""
        return simplify((self.loop.symbol - self.loop.start) // self.loop.step)

    @property
    def count(self) -> Expr:
        """How many turns there are."""
        return simplify((as_expr(self.loop.stop) - self.loop.start) // self.loop.step)

    @property
    def stage(self) -> Expr:
        """The stage of a turn."""
        return simplify(self.turn % self.stages)

    @property
    def parity(self) -> Expr:
        """The parity of the phase in which a turn's stage is full."""
        return simplify(self.turn // self.stages % 2)

    @property
    def bytes(self) -> int:
        """Bytes of a stage."""
        return sum(r.size * r.tensor.element.bits // 8 for r in self.tensors)

    def allocated(self, *barriers: KernelTensor) -> list[Statement]:
        """The declarations of the stages and of barriers beside them."""
        return [Alloc(t, self.loop.line) for t in (*self.tensors.values(), *barriers)]

    def at(self, tile: Region, number: int | Expr) -> Region:
        """A tile in a stage, its dimensions in its own order."""
        tensor, dims = self.tensors[tile], (2, 1) if turned(tile) else (1, 2)
        return Region(tensor, (number, 0, 0), (1, *tensor.shape[1:]), (1, *tensor.shape[1:]), dims)

    def body(self, number: int | Expr) -> tuple[Statement, ...]:
        """The body of the loop, whose products read a stage."""
        there = {tile: self.at(tile, number) for tile in self.tensors}
        return tuple(
            replace(s, ins=tuple(there.get(v, v) if isinstance(v, Region) else v for v in s.ins))
            if isinstance(s, Op) and s.name == "gemm"
            else s
            for s in self.loop.body
        )

    def products(self) -> list[Op]:
        """The products as they read the first stage."""
        return [s for s in self.body(0) if isinstance(s, Op) and s.name == "gemm"]

    def copies(self, number: int | Expr, barrier: Region | None = None, step: Expr | None = None) -> tuple[Op, ...]:
        """The copies that fill a stage, of a turn or of another step; they complete on a barrier where one is given."""
        i, line = self.loop.symbol, self.loop.line
        there = {r: r if step is None else _moved(r, i, step, step < self.loop.stop) for r in self.tensors}
        return tuple(
            Op("copy_async", (self.at(r, number),), (source,), barrier=barrier, line=line)
            for r, source in there.items()
        )

    def announced(self, number: int | Expr, full: KernelTensor, step: Expr | None = None) -> tuple[Statement, ...]:
        """The same, the barrier of the stage being told how many bytes will come."""
        bar = barrier(full, number)
        return (Arrive(bar, "one", self.bytes, line=self.loop.line), *self.copies(number, bar, step))

    def ahead(self, fill: Callable[[int | Expr, Expr], tuple[Statement, ...]]) -> Iterator[list[Statement]]:
        """What fills the stages of the first turns: all but one."""
        for p in range(self.stages - 1):
            step = simplify(as_expr(self.loop.start) + p * as_expr(self.loop.step))
            yield when(as_expr(p) < self.count, partial(fill, p, step), self.loop.line)

    def next(self, fill: Callable[[int | Expr, Expr], tuple[Statement, ...]]) -> list[Statement]:
        """What fills, in one turn, the stage that the turn before it has read."""
        ahead = self.stages - 1
        later = simplify(self.loop.symbol + ahead * as_expr(self.loop.step))
        number = simplify((self.turn + ahead) % self.stages)
        return when(self.turn + ahead < self.count, partial(fill, number, later), self.loop.line)


def _moved(region: Region, symbol: Expr, value: Expr, given: Expr) -> Region:
    """A region with another number in place of a symbol, where a condition holds."""

    def at(part: int | Expr) -> int | Expr:
        return simplify(substitute(part, {symbol: value}, given=[given])) if isinstance(part, Expr) else part

    begin, mask, skip = (tuple(map(at, row)) for row in (region.begin, region.mask, region.skip))
    return replace(region, begin=begin, mask=mask, skip=skip)


def when(condition: Expr, body: Callable[[], tuple[Statement, ...]], line: Line) -> list[Statement]:
    """The body where its condition holds; nothing where it never does."""
    condition = simplify(condition)
    known = always(condition)
    if known is not None:
        return list(body()) if known else []
    return [When(condition, body(), (), line)]


def barriers(name: str, count: int) -> KernelTensor:
    """A row of mbarriers."""
    return KernelTensor(name, (count,), "mbarrier", "shared", strided_layout([(count, 1)]))


def barrier(tensor: KernelTensor, number: int | Expr) -> Region:
    """One mbarrier of a row."""
    return Region(tensor, (number,), (1,), (1,), ())


def started(counts: dict[KernelTensor, int], line: Line) -> list[Statement]:
    """The start of mbarriers, each row with its number of arrivals; all threads see them afterwards."""
    stages = max(t.size for t in counts)
    inits = [Init(barrier(t, s), n, line) for s in range(stages) for t, n in counts.items() if s < t.size]
    return [*inits, Fence("mbarrier_init", line), Sync(line=line)]


@dataclass(frozen=True)
class StageRing:
    """The mbarriers between the role that fills the stages of some tiles and the one that multiplies them.

    Args:
        tiles: the tiles.
        full, empty: a stage's barriers.
    """

    tiles: StagedTiles
    full: KernelTensor
    empty: KernelTensor

    @classmethod
    def of(cls, tiles: StagedTiles, fresh: Callable[[str], str]) -> StageRing:
        """The ring of some tiles, under names that nothing else has."""
        full, empty = (barriers(fresh(f"ring_{x}"), tiles.stages) for x in ("full", "empty"))
        return cls(tiles, full, empty)

    def filling(self) -> For:
        """The loop of the role that loads."""
        tiles, line = self.tiles, self.tiles.loop.line
        again = simplify((tiles.turn // tiles.stages + 1) % 2)
        body = (Wait(barrier(self.empty, tiles.stage), again, line), *tiles.announced(tiles.stage, self.full))
        return replace(tiles.loop, body=body, stages=1)

    def using(self, body: tuple[Statement, ...], free: Callable[[Region, Line], Statement]) -> For:
        """The loop of the role that multiplies: `free` is what lets a stage go."""
        tiles, line = self.tiles, self.tiles.loop.line
        wait = Wait(barrier(self.full, tiles.stage), tiles.parity, line)
        return replace(tiles.loop, body=(wait, *body, free(barrier(self.empty, tiles.stage), line)), stages=1)
