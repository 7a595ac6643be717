"""What the next columns are packed from, prefetched while the present ones are computed.

A core holds few requests to memory at a time and forgets those that come in a burst beyond them. So the lines are
dealt out to the tiles as *shares*: the same vector of every product, or the same line of every lane where the operand
is dense in K; and a tile prefetches a few lines of one share with every few products.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tileweave.backends.cpu.gemm.panels import LANE_BYTES, SEGMENT_BYTES, Contracted, Packer, Panels
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.target.target import Target

TURN = 4
"""Products that are computed between requests."""


@dataclass(frozen=True, slots=True)
class PrefetchShare:
    """One tile's share: an address, a table of what to add to it, its first entry, and the last of the share."""

    base: str
    table: str
    first: Value
    last: Value


NO_PREFETCH = PrefetchShare("null", "null", 0, 0)
"""For tiles that do not ask."""


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """How the lines of a column panel, or of `Panels.pack_panels` panels, are dealt out to tiles.

    Args:
        panels: the columns.
        contracted: the contracted axes.
        count: shares.
        entries: lines of each.
        lanes: whether entries are lanes of a panel; else they are products.
        parts: tiles that have one share.
        at_once: lines prefetched in a turn.
    """

    panels: Panels
    contracted: Contracted
    count: int
    entries: int
    lanes: bool
    parts: int
    at_once: int

    def part(
        self, f: Function, tile: Value, operand: str, k: tuple[str, Value, Value], segments: str, lanes: str
    ) -> PrefetchShare:
        """What one of the tiles of a panel asks for of another.

        Args:
            f: where code is written.
            tile: its number.
            operand: the vector operand at the block's first product.
            k: the K table, the first product, and how many products there are.
            segments: the panel's segment table.
            lanes: its lane table.
        """
        number = f.min(f.div(tile, self.parts), self.count - 1)
        first = f.mul(f.sub(tile, f.mul(number, self.parts)), -(-self.entries // self.parts))
        panels, width = self.panels, self.panels.element.width_bytes
        if self.lanes:
            k0 = f.min(f.mul(number, 64 // width), f.sub(k[2], 1))
            return PrefetchShare(f.at(operand, self.contracted.offset(f, 1, k[0], k0)), lanes, first, panels.width - 1)
        if panels.operand_dense:  # the last share is where vectors that straddle lines end
            group = f.min(number, panels.groups - 1)
            begin = f.load("i64", f.at(segments, f.add(f.mul(group, panels.segments * SEGMENT_BYTES), 8)), 8)
            place = f.add(begin, f.mul(f.sub(number, group), panels.lanes * width - 1))
        else:
            place = f.add(f.load("i64", lanes, 8), f.mul(number, panels.dims[0].strides[0]))
        return PrefetchShare(f.at(operand, place), k[0], first, f.sub(k[2], 1))

    def line(self, f: Function, stream: PrefetchShare, number: Value) -> str:
        """A line of a share; the last one where there is no more."""
        entry = f.min(f.add(stream.first, number), stream.last)
        if self.lanes:
            return f.at(stream.base, f.load("i64", f.at(stream.table, f.mul(entry, LANE_BYTES)), 8))
        return f.at(stream.base, self.contracted.offset(f, 1, stream.table, entry))


def prefetch_plan(columns: Panels, contracted: Contracted, products: int, tiles: int) -> PrefetchPlan | None:
    """How the lines of a block of so many products are dealt out to so many tiles; None where these are too few."""
    by_product = columns.grouped or columns.operand_dense
    per_line = 64 // columns.element.width_bytes
    if not by_product and not contracted.dense(1, columns.element.width_bytes):
        return None
    turns = products // contracted.together // TURN
    entries = products if by_product else columns.width
    if columns.operand_dense:
        count = columns.groups + 1
    else:
        count = columns.lanes if by_product else -(-products // per_line)
    for at_once in range(1, TURN + 1):
        parts = -(-entries // (at_once * turns)) if turns else tiles + 1
        if parts * count <= tiles:
            return PrefetchPlan(columns, contracted, count, entries, not by_product, parts, at_once)
    return None


# ---- all lines of a panel, in steps --------------------------------------------------------------------------------


def emit_prefetch(
    module: Module, target: Target, name: str, panels: Panels, contracted: Contracted, operand: int
) -> None:
    """Add ``name(source, ktable, kcount, segments, lanes, begin, end)``, which prefetches what `emit_pack` will read.

    The lines pass through the first cache, since a core forgets most requests for the second one that come in a burst;
    they stay in the second. They come in steps (`prefetch_steps`), which all together are one panel's block, or,
    for `Panels.grouped` columns, that of `Panels.pack_panels` panels.
    """
    f = Function(
        module,
        name,
        [("ptr", "source"), ("ptr", "ktable"), ("i64", "kcount"), ("ptr", "segments"), ("ptr", "lanes")]
        + [("i64", "begin"), ("i64", "end")],
    )
    packer = Packer(f, target, panels, contracted, operand, far=True)
    places: list[Value] = []
    if panels.grouped and operand == 1:
        places = [f.add(packer.lane(0), i * panels.dims[0].strides[0]) for i in range(panels.lanes)]
    elif panels.operand_dense:
        places = [packer.word(group, 0, 0) for group in range(panels.groups)]
        places.append(f.add(places[-1], panels.lanes * panels.element.width_bytes - 1))  # vectors may straddle lines

    def product(k: Value, _: list[str]) -> None:
        packer.prefetch(packer.source(k), places)

    dense = contracted.dense(operand, panels.element.width_bytes)
    inside = (
        1 if dense else contracted.dims[0].extent if contracted.dims else 1
    )  # else interleaved: dense in the next axis

    def lane(index: Value, _: list[str]) -> None:
        line = packer.lane(index)

        def along(start: Value, _: list[str]) -> None:
            f.loop(0, inside, lambda k, _: packer.prefetch(packer.source(f.add(start, k)), [line]))

        f.loop(0, "%kcount", along, step=inside * (64 // panels.element.width_bytes))

    f.loop("%begin", "%end", product if places else lane)
    f.ret()


def prefetch_steps(panels: Panels, contracted: Contracted, operand: int, kcount: Value) -> Value:
    """Steps of `emit_prefetch`: one per product, or, where the operand is dense in K, one per lane; 0: none."""
    if (panels.grouped and operand == 1) or panels.operand_dense:
        return kcount
    interleaved = contracted.interleaved and operand == 0
    return panels.width if interleaved or contracted.dense(operand, panels.element.width_bytes) else 0
