"""Which rows every step of a sweep makes in each wave, and where they lie.

Source: own; time skewing is Wonnacott, "Achieving scalable locality with time skewing", 2002.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.lower.sweeps.fields import Band, Input, Member, Seen, Sweep, Track, seen_by

PANEL_BYTES = 1 << 19
"""Of the rows that a step makes at once: they and what they are made from stay in the caches of a processor (with half
as much or twice as much, a hundred steps of five points on 2048 x 2048 take as long; windows and calls take less)."""
FEWEST_WAVES = 16
"""Panels are no larger than this part of a field, so that windows stay small beside it."""
QUANTUM_BYTES = 1 << 10
"""Steps follow each other at multiples of so many bytes, so that panels have few different extents: each is a kernel of
its own."""
FAR = 1 << 60
"""A row behind all."""


@dataclass(slots=True)
class _State:
    """Rows that are made by each member and filled in each band, so far."""

    members: tuple[Member, ...]
    bands: tuple[Band, ...]
    places: Mapping[int, int]
    made: list[int]
    filled: list[int]

    def sights(self, one: Input | Band) -> Iterator[tuple[int, Seen]]:
        """(number of a member, how its rows are seen) for what is read, or put together, of blocks of the sweep."""
        pieces = one.pieces if isinstance(one, Band) else (one.piece,) if one.piece is not None else ()
        for piece in pieces:
            number = self.places.get(piece.task)
            if number is not None:
                yield number, seen_by(piece, one)

    def available(self, band: Band) -> int:
        """The rows of a band that can be there."""
        if band.host is not None or not (band.pieces or band.still):
            made = self.made[band.maker]
            return band.rows if made == self.members[band.maker].rows else band.top + made if made else 0
        return self._most(band, band.rows)

    def _most(self, one: Input | Band, most: int) -> int:
        for number, seen in self.sights(one):
            limit = seen.most(self.made[number], self.members[number].rows)
            most = most if limit is None else min(most, limit)
        return most

    def allowed(self, member: Member) -> int:
        """The rows that a member can have made."""
        most = member.rows
        for one in member.inputs:
            if one.row < 0:
                continue
            whole = one.read.box.shape[one.row]
            rows = self.available(self.bands[one.band]) if one.piece is None else self._most(one, whole)
            most = min(most, rows - one.more)
        return max(most, 0)

    def lows(self) -> array[int]:
        """Per band the first row that is still needed, or to be written; FAR where there is none."""
        found = array("q", [FAR]) * len(self.bands)

        def needs(number: int, row: int | None) -> None:
            if row is not None:
                found[number] = min(found[number], row)

        open_bands = set[int]()
        for member, made in zip(self.members, self.made, strict=True):
            if made == member.rows:
                continue
            if member.band >= 0:
                needs(member.band, self.filled[member.band])
            for one in member.inputs:
                if one.row >= 0 and one.piece is None:
                    needs(one.band, made)
                    open_bands.add(one.band)
                for number, seen in self.sights(one):
                    self._needs(needs, number, seen.low(made))
        for number in open_bands:
            band = self.bands[number]
            for maker, seen in self.sights(band) if self.filled[number] < band.rows else ():
                self._needs(needs, maker, seen.low(self.filled[number]))
        return found

    def _needs(self, needs: Callable[[int, int | None], None], number: int, row: int | None) -> None:
        band = self.members[number].band
        if band >= 0 and row is not None:
            needs(band, row + self.bands[band].top)


def scheduled(members: tuple[Member, ...], bands: tuple[Band, ...], places: Mapping[int, int]) -> Sweep | None:
    """The sweep of these members; None where a step would have to wait for all rows of another."""
    line_bytes = max(one.task.out.size // one.rows * one.dtype.itemsize for one in members)
    ahead = max(one.more for member in members for one in member.inputs)
    single = any(one.task.out.size == one.rows for one in members)
    quantum = max(-(-QUANTUM_BYTES // line_bytes), 1 + single)  # one element is a dot product, summed otherwise
    rows = max(one.rows for one in members)
    lines = max(min(PANEL_BYTES // line_bytes, rows // FEWEST_WAVES), 2 * ahead, 1)
    lines = -(-lines // quantum) * quantum
    state = _State(members, bands, places, [0] * len(members), [0] * len(bands))
    made, filled, lows = list[Sequence[int]](), list[Sequence[int]](), [state.lows()]
    waves = 2 + rows // lines + len(members) * (-(-ahead // quantum) * quantum) // lines
    while state.made != [one.rows for one in members]:
        if len(made) > 2 * waves:
            return None
        for number, member in enumerate(members):
            allowed, most = state.allowed(member), state.made[number] + lines
            if allowed < member.rows or most + quantum <= member.rows:  # the last rows are no panel of their own
                most = min(allowed, most, member.rows - quantum) // quantum * quantum
                state.made[number] = max(most, state.made[number])
            else:
                state.made[number] = member.rows
            for one in member.inputs:
                if one.row >= 0 and one.piece is None:
                    band = bands[one.band]
                    if band.host is None and state.made[number]:
                        rows = min(state.made[number] + one.more, band.rows)
                        state.filled[one.band] = max(state.filled[one.band], rows)
            if member.band >= 0:
                state.filled[member.band] = state.available(bands[member.band])
        made.append(array("q", state.made))
        filled.append(array("q", state.filled))
        lows.append(state.lows())
    shifts, tracks = _tracks(members, bands, places, filled, lows)
    return Sweep(members, bands, tracks, shifts, tuple(made), tuple(filled), lines, quantum)


def _tracks(
    members: Sequence[Member],
    bands: Sequence[Band],
    places: Mapping[int, int],
    filled: Sequence[Sequence[int]],
    lows: Sequence[Sequence[int]],
) -> tuple[tuple[int, ...], tuple[Track, ...]]:
    """Per band how it is shifted on its track, and the tracks.

    A band takes the track of others that are read before it is written, in every wave. Its rows stay behind those that
    are needed of the others in the waves that follow; where they would not, they are shifted.
    """
    ends, needs = np.array(filled, np.int64), np.array(lows, np.int64)
    last = [band.maker for band in bands]
    for number, member in enumerate(members):
        for one in member.inputs:
            if one.band >= 0:
                last[one.band] = max(last[one.band], number)
            band = bands[one.band] if one.band >= 0 and one.piece is None else None
            for piece in band.pieces if band is not None else ():
                if piece.task in places and (known := members[places[piece.task]].band) >= 0:
                    last[known] = max(last[known], number)
    shifts, rows = [0] * len(bands), dict[Any, list[list[int]]]()
    for number, band in enumerate(bands):
        for shared in rows.setdefault(band.lies, []):
            if all(last[other] < band.maker for other in shared):
                room = [int((needs[1:, other] + shifts[other] - ends[:, number]).min()) for other in shared]
                shifts[number] = min(shifts[shared[-1]], *room)
                shared.append(number)
                break
        else:
            rows[band.lies].append([number])
    found = []
    for shared in (one for several in rows.values() for one in several):
        by = np.array([shifts[number] for number in shared])
        low = (needs[:-1, shared] + by).min(1)
        alive = needs[:-1, shared] < FAR
        high = np.where(alive, ends[:, shared] + by, -FAR).max(1)
        before = np.where(alive[1:], ends[:-1, shared] + by, -FAR).max(1)
        window = int((high - low).max(where=low < FAR // 2, initial=0))
        first, needed, at = list[int](), list[tuple[int, int]](), int(low[0])
        for wave in range(len(low)):
            live = (int(low[wave]), int(before[wave - 1])) if wave and low[wave] < FAR // 2 else (0, 0)
            if low[wave] < FAR // 2 and high[wave] - at > window:
                at = int(low[wave])
            first.append(at)
            needed.append(live)
        found.append(Track(tuple(shared), window, tuple(first), tuple(needed)))
    return tuple(shifts), tuple(found)
