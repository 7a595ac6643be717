"""The steps of a conversion that combine terms: those that one agent holds, and those of lanes in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tileweave.layout.analysis.moves import WORD, ConversionStep, MoveCost, gather, holders, moved_bytes
from tileweave.layout.analysis.places import Places, State

Array = np.ndarray[Any, Any]
Monoid = Literal["sum", "prod", "max", "min"]
MONOIDS: Mapping[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
"""How terms are combined, by name."""


@dataclass(frozen=True)
class Combine(ConversionStep):
    """Every agent combines the terms of each element that it holds; the terms are the slowest logical index.

    Args:
        terms: for each place of the target, flat, the places of its terms; a row of -1 where nothing is held.
        monoid: "sum", "prod", "max" or "min".
    """

    kind: ClassVar[str] = "combine"
    terms: Array
    monoid: str

    @classmethod
    def make(cls, source: Places, target: Places, monoid: str, element_bytes: int, least: int = 1) -> Combine:
        """Decide all indices of the step."""
        count = source.size // target.size
        repeated = np.broadcast_to(target.at, (count, *target.at.shape)).reshape(source.size, *target.at.shape[1:])
        wanted = Places(repeated, target.names, target.levels, target.where)
        chosen = np.take_along_axis(source.place, holders(source, wanted, least), axis=1)
        terms = np.full((len(target.agents) * target.slots, count), -1)
        terms[target.place] = np.moveaxis(chosen.reshape(count, *target.place.shape), 0, -1)
        return cls(source, target, element_bytes, terms, monoid)

    @property
    def cost(self) -> MoveCost:
        """One operation per term after the first."""
        held = (self.terms[:, 0] >= 0).reshape(-1, self.target.slots).sum(axis=1)
        return MoveCost(int(held.max()) * (self.terms.shape[1] - 1))

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        data = self.source.flat(state)
        out = MONOIDS[self.monoid].reduce(data[self.terms], axis=1, dtype=data.dtype)
        return self.target.unflat(np.where(self.terms[:, 0] >= 0, out, np.zeros((), data.dtype)))

    def __str__(self) -> str:
        return f"combine: the {self.monoid} of {self.terms.shape[1]} terms that each agent holds"


@dataclass(frozen=True)
class Butterfly(ConversionStep):
    """Lanes combine their terms in pairs, each time with the lane whose number differs in one bit.

    Args:
        masks: the bits, as masks of lane numbers, in order.
    """

    kind: ClassVar[str] = "butterfly"
    masks: tuple[int, ...]
    partners: tuple[Array, ...]
    first: Array
    monoid: str

    @property
    def cost(self) -> MoveCost:
        """A shuffle and an operation per bit and slot."""
        words = -(-self.element_bytes // WORD)
        moved = len(self.masks) * self.target.place.size
        slots = int(np.bincount(self.target.place.reshape(-1) // self.target.slots).max())
        return MoveCost(len(self.masks) * slots * (words + 1), moved_bytes("lane", moved, self.element_bytes))

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        data = gather(self.source.flat(state), self.first)
        combine: Callable[..., Array] = MONOIDS[self.monoid]
        for partner in self.partners:
            data = combine(data, data[partner])
        return self.target.unflat(np.where(self.first >= 0, data, np.zeros((), data.dtype)))

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.masks))
        return f"butterfly: the {self.monoid} across lanes, by shuffles with lane xor {shown}"


def butterfly(source: Places, target: Places, monoid: str, element_bytes: int) -> Butterfly | None:
    """The butterfly that combines the terms of `source` into every replica of `target`, if lanes pair up so.

    Each term lies in a lane of its own, and the target holds the result in all of these lanes, in the term's slot.
    """
    count = source.size // target.size
    lanes = [k for k, level in enumerate(source.levels) if level == "lane"]
    if count < 2 or count & (count - 1) or len(lanes) != 1 or target.at.shape[1] % count:
        return None
    first = np.full(len(target.agents) * target.slots, -1)
    given = source.at.reshape(count, target.size, *source.at.shape[1:])
    lane = given[:, :, :, lanes[0]]
    masks = [int(lane[1 << b, 0, 0] ^ lane[0, 0, 0]) for b in range(count.bit_length() - 1)]
    number = np.arange(count)
    pattern: Any = np.zeros(count, np.int64)
    for b, mask in enumerate(masks):
        pattern ^= (number >> b & 1) * mask
    rest = [k for k in range(len(source.levels)) if k != lanes[0]]
    if (given[:, :, :, rest] != given[:1, :, :, rest]).any() or (lane != (lane[:1] ^ pattern[:, None, None])).any():
        return None
    wanted = {key: int(p) for key, p in zip(map(tuple, _rows(target)), target.place.reshape(-1), strict=True)}
    keys, places = list(map(tuple, _rows(source))), source.place.reshape(-1)
    if set(keys) != set(wanted):
        return None
    for key, p in zip(keys, places, strict=True):
        first[wanted[key]] = p
    partners = []
    for mask in masks:
        partner = np.arange(len(first))
        for key, p in wanted.items():
            other = (*key[: lanes[0]], key[lanes[0]] ^ mask, *key[lanes[0] + 1 :])
            if other not in wanted:
                return None
            partner[p] = wanted[other]
        partners.append(partner)
    return Butterfly(source, target, element_bytes, tuple(masks), tuple(partners), first, monoid)


def _rows(placement: Places) -> list[list[int]]:
    rows: list[list[int]] = placement.at.reshape(-1, placement.at.shape[2]).tolist()
    return rows
