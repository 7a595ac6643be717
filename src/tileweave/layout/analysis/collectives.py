"""The steps of a conversion between devices: who sends what to whom, and which collective that is.

Only the devices of an element decide. The logical index is cut into *cells*, runs of digits on which they do not
change, so that recognition takes time in the number of devices and not of elements. Each device takes what it lacks
from the nearest holder; the devices that then talk to each other are a group, and every group is recognised by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from tileweave.errors import Undecided
from tileweave.layout.analysis.moves import ConversionStep, MoveCost
from tileweave.layout.analysis.places import (
    BOUND,
    Places,
    State,
    cells_of,
    coordinates,
    project,
    rows_of,
    shifts_of,
    turns_of,
)
from tileweave.layout.analysis.terms import MONOIDS
from tileweave.layout.core.layout import Layout

Array = np.ndarray[Any, Any]
Kind = Literal[
    "none", "slice", "permute", "broadcast", "scatter", "gather", "all-gather", "all-to-all",
    "reduce", "reduce-scatter", "all-reduce", "exchange",
]  # fmt: skip

CELLS = 1 << 20
"""The most cells, times terms and replicas, that are looked at one by one."""


@dataclass(frozen=True)
class Transfers:
    """Who has and who wants each cell.

    Args:
        devices: coordinates of the devices, one a row.
        have: the row of the device, by (cell, term, replica of the source).
        want: the row of the device, by (cell, replica of the target).
        giver: the row of the device that gives a term, by (cell, term, replica of the target).
        weight: elements in a cell.
    """

    devices: tuple[tuple[int, ...], ...]
    have: Array
    want: Array
    giver: Array
    weight: int

    @classmethod
    def of(cls, have: Array, want: Array, weight: int, where: str) -> Transfers:
        """From coordinates by (cell, term, replica, axis) and (cell, replica, axis)."""
        cells, terms, copies, _ = have.shape
        if cells * terms * copies * want.shape[1] > BOUND:
            raise Undecided(where, f"{cells} cells of devices would be looked at", facts={"bound": BOUND})
        rows = np.concatenate([one.reshape(prod(one.shape[:-1]), one.shape[-1]) for one in (have, want)])
        devices, number = rows_of(rows)
        held = number[: cells * terms * copies].reshape(have.shape[:3])
        wanted = number[cells * terms * copies :].reshape(want.shape[:2])
        far = _distances(devices, _radices(have, want))
        found = far[wanted[:, None, :, None], held[:, :, None, :]].argmin(axis=3)
        giver = np.take_along_axis(held, found, axis=2)
        return cls(tuple(map(tuple, devices.tolist())), held, wanted, giver, weight)

    @classmethod
    def listed(cls, source: Places, target: Places) -> Transfers:
        """From tables of all places; a cell is an element."""
        kept, terms = source.columns(3), source.size // target.size
        copies = source.at.shape[1]
        have = np.swapaxes(source.at[:, :, kept].reshape(terms, target.size, copies, len(kept)), 0, 1)
        return cls.of(have, target.at[:, :, kept], 1, target.where)


def _radices(have: Array, want: Array) -> list[list[int]]:
    """Per axis the distances at which devices that hold or want one thing lie apart: the digits of a mesh."""
    out = []
    for axis in range(have.shape[3]):
        steps = set()
        for rows in (have[..., axis].reshape(-1, have.shape[2]), want[..., axis]):
            steps |= set(np.unique(np.abs(rows - rows[:, :1])).tolist())
        chain = [1]
        for step in sorted(steps - {0}):
            if step % chain[-1] == 0 and step > chain[-1]:
                chain.append(step)
        out.append(chain)
    return out


def _distances(devices: Array, radices: Sequence[Sequence[int]]) -> Array:
    """By (taker, giver): in how many digits they differ, then how far ahead the giver is; itself before all."""
    n = len(devices)
    apart: Any = np.zeros((n, n), np.int64)
    for axis, chain in enumerate(radices):
        for low, high in [*pairwise(chain), (chain[-1], 0)]:
            digit = devices[:, axis] // low
            digit = digit % (high // low) if high else digit
            apart += digit[:, None] != digit[None, :]
    number = np.arange(n)
    return np.asarray(apart * n + (number[None, :] - number[:, None]) % n)


def traffic_of(source: Layout, target: Layout, devices: Sequence[str], where: str) -> Transfers:
    """The traffic between two layouts; the slowest indices of a larger source are terms of each element."""
    kept = set(devices)
    a, b = project(source, kept), project(target, kept)
    n, terms = target.size, source.size // target.size
    cells = cells_of([turns_of(a), turns_of(b)], n, where)
    given, wanted = (shifts_of(one, devices, where) for one in (a, b))
    if cells.size * terms * max(len(given), len(wanted)) > CELLS:
        raise Undecided(where, f"{cells.size * terms} cells would be looked at", facts={"bound": CELLS})
    index = cells[:, None] + n * np.arange(terms).astype(cells.dtype)
    have = coordinates(a, index, devices)[:, :, None, :] + given
    want = coordinates(b, cells, devices)[:, None, :] + wanted
    return Transfers.of(have.astype(np.int64), want.astype(np.int64), n // cells.size, where)


# --- recognition


@dataclass(frozen=True)
class Collective:
    """What devices do together.

    Args:
        kind: the collective; "slice" drops what is not wanted, "exchange" is any other set of messages.
        groups: the devices that talk to each other, by coordinate.
        messages: (giver, taker) -> elements that are sent directly, terms of one giver combined.
        words: elements that the busiest device sends or receives, whichever is more, by the algorithm that reaches the
            bandwidth bound (a ring; a pipeline from the root).
        total: elements sent by all devices together, by the same.
    """

    kind: Kind
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    messages: Mapping[tuple[tuple[int, ...], tuple[int, ...]], int]
    words: int
    total: int

    def __str__(self) -> str:
        if self.kind in ("none", "slice"):
            return self.kind
        shown = ", ".join("{" + ", ".join(map(_device, g)) + "}" for g in self.groups[:4])
        more = f" and {len(self.groups) - 4} groups more" if len(self.groups) > 4 else ""
        return f"{self.kind} among {shown}{more}: {self.words} words a device"


def _device(coordinate: tuple[int, ...]) -> str:
    text = ",".join(map(str, coordinate))
    return f"({text})" if len(coordinate) > 1 else text


Wants = Mapping[int, Mapping[int, frozenset[int]]]  # cell -> taker -> givers


def recognise(traffic: Transfers) -> Collective:
    """The collective of a traffic: that of all its groups, or an exchange."""
    rows, where = traffic.giver, traffic.want
    takers: dict[int, dict[int, frozenset[int]]] = {}
    messages: Counter[tuple[int, int]] = Counter()
    parent = list(range(len(traffic.devices)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for c in range(len(where)):
        by = takers[c] = {int(d): frozenset(rows[c, :, r].tolist()) for r, d in enumerate(where[c])}
        for d, givers in by.items():
            for s in givers - {d}:
                messages[s, d] += traffic.weight
                parent[root(s)] = root(d)
    groups: dict[int, list[int]] = defaultdict(list)
    for d in range(len(traffic.devices)):
        groups[root(d)].append(d)
    by_group: dict[int, dict[int, dict[int, frozenset[int]]]] = defaultdict(lambda: defaultdict(dict))
    for c, by in takers.items():
        for d, givers in by.items():
            by_group[root(d)][c][d] = givers
    talking = {key: members for key, members in groups.items() if len(members) > 1}
    kinds = {_kind(members, by_group[key]) for key, members in talking.items()}
    names = traffic.devices
    shown = tuple(tuple(names[d] for d in members) for members in talking.values())
    direct = {(names[s], names[d]): n for (s, d), n in sorted(messages.items())}
    if not talking:
        dropped = any(
            set(h.reshape(-1).tolist()) - set(by) for h, by in zip(traffic.have, takers.values(), strict=True)
        )
        return Collective("slice" if dropped else "none", (), {}, 0, 0)
    kind: Kind = kinds.pop() if len(kinds) == 1 else "exchange"
    words, total = _words(kind, talking, by_group, messages, traffic.weight)
    return Collective(kind, shown, direct, words, total)


def _kind(members: Sequence[int], cells: Wants) -> Kind:
    everyone = frozenset(members)
    wants = {frozenset(by) for by in cells.values()}
    givers = {s for by in cells.values() for s in by.values()}
    alone = all(len(by) == 1 for by in cells.values())
    share = Counter(next(iter(by)) for by in cells.values())
    if any(len(s) > 1 for s in givers):
        if givers != {everyone}:
            return "exchange"
        if wants == {everyone}:
            return "all-reduce"
        if alone and len(wants) == 1:
            return "reduce"
        return "reduce-scatter" if alone and _equal(share, everyone) else "exchange"
    if any(len(set(by.values())) > 1 for by in cells.values()):
        return "exchange"
    owner = {c: next(iter(next(iter(by.values())))) for c, by in cells.items()}
    owned = Counter(owner.values())
    if alone:
        sent = Counter((owner[c], next(iter(by))) for c, by in cells.items())
        if len({s for s, _ in sent}) == len(sent) == len({d for _, d in sent}):
            return "permute"
        if len(wants) == 1:
            return "gather" if _equal(owned, everyone) or _equal(owned, everyone - set(share)) else "exchange"
        if len(sent) == len(members) ** 2 and len(set(sent.values())) == 1:
            return "all-to-all"
    if len(owned) == 1:
        others = everyone - set(owned)
        if all(others <= by for by in wants):
            return "broadcast"
        if alone and (_equal(share, everyone) or _equal(share, others)):
            return "scatter"
    return "all-gather" if wants == {everyone} and _equal(owned, everyone) else "exchange"


def _equal(counts: Counter[int], members: frozenset[int]) -> bool:
    return set(counts) == set(members) and len(set(counts.values())) == 1


def _words(
    kind: Kind, groups: Mapping[int, Sequence[int]], cells: Mapping[int, Wants], messages: Counter[Any], weight: int
) -> tuple[int, int]:
    """(of the busiest device, of all), as in `Collective`."""
    if kind not in ("broadcast", "reduce", "reduce-scatter", "all-reduce"):
        sent, received = Counter[int](), Counter[int]()
        for (s, d), n in messages.items():
            sent[s] += n
            received[d] += n
        return max(max(sent.values()), max(received.values())), sum(messages.values())
    busiest = total = 0
    for key, members in groups.items():
        n, k = len(cells[key]) * weight, len(members)
        whole = {"broadcast": n, "reduce": n, "reduce-scatter": -(-(k - 1) * n // k)}
        each = whole[kind] if kind in whole else -(-2 * (k - 1) * n // k)
        busiest = max(busiest, each)
        total += each * (k - 1 if kind in ("broadcast", "reduce") else k)
    return busiest, total


# --- data


@dataclass(frozen=True)
class Exchange(ConversionStep):
    """A collective as a step: its messages, made by every giver and put in place by every taker."""

    kind: ClassVar[str] = "devices"
    collective: Collective
    monoid: str | None

    @property
    def cost(self) -> MoveCost:
        """Bytes that all devices send, words of the busiest one."""
        bytes_moved = {"device": self.collective.total * self.element_bytes}
        return MoveCost(bytes=bytes_moved, words=self.collective.words)

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        return self.run(state)[0]

    def run(self, state: State) -> tuple[State, dict[tuple[tuple[int, ...], tuple[int, ...]], int]]:
        """The data afterwards, and the elements that each device sent to each other directly."""
        source, target = self.source, self.target
        n, terms = target.size, source.size // target.size
        traffic = Transfers.listed(source, target)
        place = np.swapaxes(source.place.reshape(terms, n, -1), 0, 1)
        match = traffic.have[:, :, None, :] == traffic.giver[:, :, :, None]
        chosen = np.take_along_axis(place, match.argmax(axis=3), axis=2)  # by (element, term, replica of the target)
        unique, first = np.unique(target.place.reshape(-1), return_index=True)
        x, r = np.divmod(first, target.place.shape[1])
        data, taker = source.flat(state), traffic.want[x, r]
        combine = MONOIDS[self.monoid] if self.monoid else None
        out = np.zeros(len(target.agents) * target.slots, data.dtype)
        done = np.zeros(len(out), bool)
        sent: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for giver in range(len(traffic.devices)):
            part, begun = np.zeros(len(unique), data.dtype), np.zeros(len(unique), bool)
            for t in range(terms):
                mine = traffic.giver[x, t, r] == giver
                _add(part, begun, np.flatnonzero(mine), data[chosen[x, t, r][mine]], combine)
            rows = np.flatnonzero(begun)
            for d in np.unique(taker[rows]):
                if d != giver:
                    elements = np.unique(x[rows[taker[rows] == d]])
                    sent[traffic.devices[giver], traffic.devices[int(d)]] += len(elements)
            _add(out, done, unique[rows], part[rows], combine)
        return target.unflat(out), dict(sorted(sent.items()))

    def __str__(self) -> str:
        what = f", {self.monoid}" if self.monoid else ""
        return f"devices: {self.collective}{what}"


def _add(out: Array, begun: Array, at: Array, values: Array, combine: Any) -> None:
    """Values put where nothing is yet, and combined with what is there."""
    new = ~begun[at]
    out[at[new]] = values[new]
    if not new.all():
        out[at[~new]] = combine(out[at[~new]], values[~new])
    begun[at] = True
