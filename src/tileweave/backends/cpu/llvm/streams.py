"""What the next columns are packed from, asked for while the present ones are computed.

A core holds few requests to memory at a time and forgets those that come in a burst beyond them. So the lines are
dealt out to the tiles as *streams*: the same vector of every product, or the same line of every lane where the operand
is dense in K; and a tile asks for a few lines of one stream with every few products.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tileweave.backends.cpu.gemm.sides import LANE_BYTES, SEGMENT_BYTES, Contracted, Side
from tileweave.backends.cpu.llvm.ir import Function, Value

__all__ = ["NOTHING", "TURN", "Stream", "Streams", "streams"]

TURN = 4
"""Products that are computed between requests."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A tile's part of a stream: an address, a table of what to add to it, its first entry, and the stream's last."""

    base: str
    table: str
    first: Value
    last: Value


NOTHING = Stream("null", "null", 0, 0)
"""For tiles that do not ask."""


@dataclass(frozen=True, slots=True)
class Streams:
    """How the lines of a column panel, or of `Side.pack_panels` panels, are dealt out to tiles.

    Args:
        side: the columns.
        contracted: the contracted axes.
        count: streams.
        entries: lines of each.
        lanes: whether entries are lanes of a panel; else they are products.
        parts: tiles that share a stream.
        at_once: lines asked for in a turn.
    """

    side: Side
    contracted: Contracted
    count: int
    entries: int
    lanes: bool
    parts: int
    at_once: int

    def part(
        self, f: Function, tile: Value, operand: str, k: tuple[str, Value, Value], segments: str, lanes: str
    ) -> Stream:
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
        side, width = self.side, self.side.element.width_bytes
        if self.lanes:
            k0 = f.min(f.mul(number, 64 // width), f.sub(k[2], 1))
            return Stream(f.at(operand, self.contracted.offset(f, 1, k[0], k0)), lanes, first, side.width - 1)
        if side.operand_dense:  # the last stream is where vectors that straddle lines end
            group = f.min(number, side.groups - 1)
            begin = f.load("i64", f.at(segments, f.add(f.mul(group, side.segments * SEGMENT_BYTES), 8)), 8)
            place = f.add(begin, f.mul(f.sub(number, group), side.lanes * width - 1))
        else:
            place = f.add(f.load("i64", lanes, 8), f.mul(number, side.dims[0].strides[0]))
        return Stream(f.at(operand, place), k[0], first, f.sub(k[2], 1))

    def line(self, f: Function, stream: Stream, number: Value) -> str:
        """A line of a stream; the last one where there is no more."""
        entry = f.min(f.add(stream.first, number), stream.last)
        if self.lanes:
            return f.at(stream.base, f.load("i64", f.at(stream.table, f.mul(entry, LANE_BYTES)), 8))
        return f.at(stream.base, self.contracted.offset(f, 1, stream.table, entry))


def streams(columns: Side, contracted: Contracted, products: int, tiles: int) -> Streams | None:
    """The streams of a block of so many products, for so many tiles; None where they are too few to ask for all."""
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
            return Streams(columns, contracted, count, entries, not by_product, parts, at_once)
    return None
