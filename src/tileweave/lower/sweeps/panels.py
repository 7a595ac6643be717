"""What a sweep does, panel after panel: copies of rows, and kernels on rows.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.backends.host import LINE_BYTES
from tileweave.errors import BackendError
from tileweave.graph.ir.resolve import view
from tileweave.lower.reads import constant, slices
from tileweave.lower.sweeps.fields import Band, Input, Member, Sweep
from tileweave.lower.values import Slot, part_of
from tileweave.planner.tasks import ReadPiece, Task
from tileweave.space import Box

Array = np.ndarray[Any, Any]
Reads = Callable[[ReadPiece, np.dtype[Any]], Array | Slot]
"""What a piece of a source, or of a block that lies whole, is read as."""


class Copied(NamedTuple):
    """Rows that are copied, or constants."""

    number: int
    target: Array | Slot
    source: Array | Slot


class Made(NamedTuple):
    """Rows that a kernel makes: of a task, a block of its index."""

    task: Task
    block: Box
    inputs: Sequence[Array | Slot]
    target: Array | Slot


class SweepActions:
    """The actions of a sweep in their order.

    Args:
        sweep: what is done.
        memory: bytes for its tracks.
        read: what lies elsewhere.
        target: where the block of a task lies that lies whole.
    """

    def __init__(self, sweep: Sweep, memory: Array, read: Reads, target: Callable[[Task], Array | Slot | None]) -> None:
        self._sweep, self._read, self._target = sweep, read, target
        self._made_by = {member.task.number: member for member in sweep.members}
        self._tracks: list[Array] = []
        self._track_of: dict[int, int] = {}
        at = 0
        for number, (track, size) in enumerate(zip(sweep.tracks, sweep.sizes_bytes, strict=True)):
            band = sweep.bands[track.bands[0]]
            held = memory[at : at + size].view(band.dtype)
            self._tracks.append(held.reshape((track.rows, *band.line)))
            self._track_of.update(dict.fromkeys(track.bands, number))
            at += -(-size // LINE_BYTES) * LINE_BYTES
        self._wave = 0

    def actions(self) -> Iterator[Copied | Made]:
        """In their order."""
        sweep = self._sweep
        filled = [0] * len(sweep.bands)
        for track in sweep.tracks:
            yield from self._still(track.bands[0])
        for wave in range(len(sweep.made)):
            if wave:
                yield from self._moved(wave)
            self._wave = wave
            for number, member in enumerate(sweep.members):
                for one in member.inputs:
                    if one.row >= 0 and one.piece is None and sweep.bands[one.band].host is None:
                        made = sweep.made[wave][number]
                        rows = min(made + one.more, sweep.bands[one.band].rows) if made else 0
                        yield from self._filled(one.band, filled[one.band], rows)
                        filled[one.band] = max(filled[one.band], rows)
                for low, high in sweep.panels(wave, number):
                    yield self._part(member, low, high)
                if member.band >= 0:
                    rows = sweep.filled[wave][member.band]
                    yield from self._filled(member.band, filled[member.band], rows)
                    filled[member.band] = rows

    # ---- bands ------------------------------------------------------------------------------------------------------

    def _rows(self, number: int, low: int, high: int) -> Array:
        """Some rows of a band as an array with the dimensions of its box."""
        band, at = self._sweep.bands[number], self._track_of[number]
        begin = low + self._sweep.shifts[number] - self._sweep.tracks[at].first[self._wave]
        lead = (1,) * band.row
        return self._tracks[at][begin : begin + high - low].reshape((*lead, high - low, *band.line))

    def _still(self, number: int) -> Iterator[Copied]:
        """Writes the constants beside all rows of a track."""
        band, held = self._sweep.bands[number], self._tracks[self._track_of[number]]
        for piece in band.still:
            beside = [slice(a - low, b - low) for a, b, low in _spans(piece.box, band.box)][band.row + 1 :]
            target = held[(slice(None), *beside)]
            values = np.broadcast_to(np.asarray(piece.fill).astype(band.dtype), target.shape)
            yield Copied(self._sweep.members[band.maker].task.number, target, values)

    def _moved(self, wave: int) -> Iterator[Copied]:
        """Moves the rows of each track that are needed on to where the window begins now."""
        for held, track in zip(self._tracks, self._sweep.tracks, strict=True):
            step = track.first[wave] - track.first[wave - 1]
            low, high = (row - track.first[wave - 1] for row in track.needed[wave])
            while step and low < high:  # each part beside where it goes
                end = min(low + step, high)
                number = self._sweep.members[0].task.number
                yield Copied(number, held[low - step : end - step], held[low:end])
                low = end

    def _filled(self, number: int, low: int, high: int) -> Iterator[Copied]:
        """Fills some rows of a band, but for what its maker makes."""
        band = self._sweep.bands[number]
        for piece in band.pieces if low < high else ():
            box = piece.box.intersect(band.part(low, high))
            if box.empty:
                continue
            whole = self._rows(number, low, high)
            target = whole[slices(box.translate([-a for a in band.part(low, high).start]))]
            part = replace(piece, box=box)
            values = constant(part, band.dtype) if piece.constant else self._seen(part, band)
            yield Copied(self._sweep.members[band.maker].task.number, target, values)

    def _seen(self, piece: ReadPiece, band: Band) -> Array | Slot:
        """The values of a piece, of a block in a band or elsewhere."""
        member = self._made_by.get(piece.task)
        if member is None or member.band < 0:
            return self._read(piece, band.dtype)
        region = piece.map.cover(piece.box)
        hold = member.task.out.with_range(member.row, region.start[member.row], region.stop[member.row])
        first = member.task.out.start[member.row]
        rows = self._of_maker(member, region.start[member.row] - first, region.stop[member.row] - first)
        return view(rows, hold, piece.map, piece.box)

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def _of_maker(self, member: Member, low: int, high: int) -> Array:
        """Some rows of what a member makes, where they lie in its band."""
        band, shape = self._sweep.bands[member.band], list(member.task.out.shape)
        shape[member.row] = high - low
        if band.host is None:
            return self._rows(member.band, low, high).reshape(shape)
        rows = self._rows(member.band, band.top + low, band.top + high)
        inside = [slice(a - low, b - low) for a, b, low in _spans(band.host.box, band.box)]
        inside[band.row] = slice(None)
        part = rows[tuple(inside)]
        return part.reshape(shape) if part.flags.c_contiguous else _renamed(part, shape)

    def _part(self, member: Member, low: int, high: int) -> Made:
        """The kernel of some rows of a member."""
        task = member.task
        inputs = [self._input(one, low, high + one.more) for one in member.inputs]
        first = task.index.start[member.dim]
        index = task.index.with_range(member.dim, first + low, first + high)
        if member.band >= 0:
            return Made(task, index, inputs, self._of_maker(member, low, high))
        rows, whole = (slice(None),) * member.row + (slice(low, high),), self._target(task)
        if whole is None:
            raise BackendError("sweep", f"task {task.number} has no place", legal="a band, or a buffer")
        return Made(task, index, inputs, part_of(whole, lambda array: np.asarray(array[rows])))

    def _input(self, one: Input, low: int, high: int) -> Array | Slot:
        """Some rows of what is read; all of what does not go along rows."""
        read = one.read
        if one.row >= 0 and one.piece is None:
            return self._rows(one.band, low, high)
        piece = read.pieces[0]
        if one.row >= 0:
            first = read.box.start[one.row]
            piece = replace(piece, box=read.box.with_range(one.row, first + low, first + high))
        band = self._sweep.bands[one.band] if one.band >= 0 else None
        return self._read(piece, read.dtype) if band is None else self._seen(piece, band)


def _spans(box: Box, whole: Box) -> list[tuple[int, int, int]]:
    return list(zip(box.start, box.stop, whole.start, strict=True))


def _renamed(array: Array, shape: Sequence[int]) -> Array:
    """A view of an array with other dimensions of extent 1."""
    steps = iter([stride for n, stride in zip(array.shape, array.strides, strict=True) if n != 1])
    strides = [next(steps) if n != 1 else array.itemsize * prod(shape[k + 1 :]) for k, n in enumerate(shape)]
    return np.lib.stride_tricks.as_strided(array, shape, strides)
