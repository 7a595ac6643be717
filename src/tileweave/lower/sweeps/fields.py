"""What a sweep is: its steps, the fields between them, and the rows of each that are made when.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.backends.host import LINE_BYTES
from tileweave.graph import Source, TensorType
from tileweave.planner.tasks import Read, ReadPiece, Task
from tileweave.space import Box


class Seen(NamedTuple):
    """The rows of a block that a piece of a read sees: row x of the read, first <= x < stop, sees offset + sign * x.

    Args:
        first: row of the read.
        stop: behind the last.
        sign: 1, -1, or 0; None: any row may be seen.
        offset: as above.
    """

    first: int
    stop: int
    sign: int | None
    offset: int

    def most(self, made: int, whole: int) -> int | None:
        """The rows of the read that may be read when so many rows of a block are made; None: this piece allows all."""
        if made == whole:
            return None
        if self.sign == 1:
            return None if self.stop + self.offset <= made else max(self.first, made - self.offset)
        seen = self.offset + (self.sign or 0) * self.first
        return None if self.sign is not None and seen < made else self.first

    def low(self, done: int) -> int | None:
        """The first row of the block that rows of the read from one on see; None: they see none."""
        if done >= self.stop:
            return None
        if self.sign is None:
            return 0
        return self.offset + self.sign * (max(done, self.first) if self.sign > 0 else self.stop - 1)


def seen_by(piece: ReadPiece, one: Input | Band) -> Seen:
    """How a piece of what is read sees the rows of the block that it is of."""
    box = one.read.box if isinstance(one, Input) else one.box
    row, start = next((k for k, n in enumerate(piece.block.shape) if n > 1), 0), box.start[one.row]
    first, rows = piece.box.start[one.row] - start, piece.box.shape[one.row]
    line, offset = (piece.map.matrix[row], piece.map.offset[row]) if piece.map.matrix else ((), 0)
    still = [(c, low) for c, low, n in zip(line, piece.box.start, piece.box.shape, strict=True) if n == 1]
    offset += sum(c * low for c, low in still) - piece.block.start[row] if line else 0
    moving = [(k, c) for k, (c, n) in enumerate(zip(line, piece.box.shape, strict=True)) if c and n > 1]
    if any(k != one.row or abs(c) != 1 for k, c in moving):
        return Seen(first, first + rows, None, 0)
    if rows == 1:  # which it sees may be told by any coefficient
        return Seen(first, first + 1, 1, offset - first)
    sign = line[one.row] if line else 0
    return Seen(first, first + rows, sign, offset + sign * start)


@dataclass(frozen=True, slots=True)
class Input:
    """How a step of a sweep reads.

    Args:
        read: the whole of it.
        row: the dimension along which the rows of the sweep go; -1: none.
        more: rows that are read beyond as many as are made.
        band: the number of the band that holds the rows; -1: a source, or a block that lies whole.
        piece: what is read of it; None: the band's rows as they are.
    """

    read: Read
    row: int
    more: int
    band: int
    piece: ReadPiece | None


@dataclass(frozen=True, slots=True)
class Member:
    """A step of a sweep.

    Args:
        task: that makes its whole field.
        dim: the dimension of its index along which rows go.
        row: that of what it makes.
        rows: how many there are.
        dtype: of its elements.
        inputs: in the order of the task's reads.
        band: the number of the band that it writes; -1: it lies whole.
    """

    task: Task
    dim: int
    row: int
    rows: int
    dtype: np.dtype[Any]
    inputs: tuple[Input, ...] = ()
    band: int = -1


@dataclass(frozen=True, slots=True)
class Band:
    """A field of which only some rows are held at a time, or what a step reads that has to be put together.

    Args:
        box: of the tensor that it is.
        row: its dimension of rows; those before it have one element.
        dtype: of its elements.
        maker: the member that makes it, or in whose turn it is put together.
        host: where in the box what the maker makes lies; None: all of it is put together.
        pieces: what else fills it, as its rows come.
        still: constants beside all of its rows, which are written once.
    """

    box: Box
    row: int
    dtype: np.dtype[Any]
    maker: int
    host: ReadPiece | None
    pieces: tuple[ReadPiece, ...]
    still: tuple[ReadPiece, ...] = ()

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.box.shape[self.row]

    @property
    def top(self) -> int:
        """The row where what the maker makes begins."""
        return 0 if self.host is None else self.host.box.start[self.row] - self.box.start[self.row]

    @property
    def line(self) -> tuple[int, ...]:
        """The extents of a row."""
        return self.box.shape[self.row + 1 :]

    @property
    def lies(self) -> Any:
        """Bands of one kind may share a track."""
        beside = [(p.box.start[self.row + 1 :], p.box.shape[self.row + 1 :], p.fill) for p in self.still]
        return self.line, self.dtype, tuple(beside)

    def part(self, low: int, high: int) -> Box:
        """The box of some rows."""
        first = self.box.start[self.row]
        return self.box.with_range(self.row, first + low, first + high)


class Track(NamedTuple):
    """Memory of rows that bands share: a window that moves over them.

    Args:
        bands: their numbers.
        rows: of the window.
        first: per wave, the row of which the window begins; where that changes, rows that are needed move.
        needed: per wave, the rows (first, behind the last) that are needed of what the waves before it made.
    """

    bands: tuple[int, ...]
    rows: int
    first: tuple[int, ...]
    needed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Steps that go together over the rows of their fields.

    Args:
        members: in their order.
        bands: by number.
        tracks: the memory of the bands.
        shifts: per band, how much further down a row of it lies on its track than its number says.
        made: per wave and member, the rows that are made after it.
        filled: per wave and band, the rows that are filled after it.
        lines: the rows of a whole panel.
        quantum: other panels are multiples of so many, if they can.
    """

    members: tuple[Member, ...]
    bands: tuple[Band, ...]
    tracks: tuple[Track, ...]
    shifts: tuple[int, ...]
    made: Sequence[Sequence[int]]
    filled: Sequence[Sequence[int]]
    lines: int
    quantum: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the tasks."""
        return tuple(member.task.number for member in self.members)

    @property
    def held(self) -> tuple[int, ...]:
        """The numbers of tasks whose fields do not lie whole."""
        return tuple(member.task.number for member in self.members if member.band >= 0)

    @property
    def sizes_bytes(self) -> list[int]:
        """The bytes of each track."""
        return [
            track.rows * prod(band.line) * band.dtype.itemsize
            for track in self.tracks
            for band in (self.bands[track.bands[0]],)
        ]

    def panels(self, wave: int, number: int) -> Iterator[tuple[int, int]]:
        """The rows that a member makes in a wave, in parts of few different extents."""
        at, end = self.made[wave - 1][number] if wave else 0, self.made[wave][number]
        while at < end:
            rows = self.lines
            while rows > end - at and rows > self.quantum:
                rows = max(rows // 2 // self.quantum, 1) * self.quantum
            rows = rows if at + rows + self.quantum <= end else end - at
            yield at, at + rows
            at += rows

    @property
    def kind(self) -> TensorType:
        """Of the buffer of its tracks: no task of a sweep has a read that is put together."""
        return TensorType((sum(-(-size // LINE_BYTES) * LINE_BYTES for size in self.sizes_bytes),), np.dtype(np.uint8))

    def follows(self, held: Collection[int | Source], writer: int) -> bool:
        """Whether a member may write each of its rows where that row of sources or earlier blocks was: what is still
        read of them lies behind."""
        for number, member in enumerate(self.members):
            for one in member.inputs:
                mine = [p for p in one.read.pieces if (p.task if p.source is None else p.source) in held]
                if mine and (number >= writer or one.row < 0):
                    return False
                for seen in map(partial(seen_by, one=one), mine):
                    for made, filled in zip(self.made[:-1], self.filled[:-1], strict=True):
                        low = seen.low(made[number] if one.piece is not None else filled[one.band])
                        if low is not None and low < made[writer]:
                            return False
        return True
