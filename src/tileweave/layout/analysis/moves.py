"""The steps of a conversion within one device: registers, lane shuffles, shared memory, memory.

Every step knows the placements before and after it, decides all of its indices when it is made, says what it costs,
and moves data: `execute` takes the slots of all agents, flat, and returns them as the placement after it has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from tileweave.errors import LayoutError, Undecided
from tileweave.layout.analysis.conflicts import Accesses, best_swizzle
from tileweave.layout.analysis.memory import WARP
from tileweave.layout.analysis.places import BOUND, Places, State, rows_of
from tileweave.layout.f2.swizzle import Swizzle

Array = np.ndarray[Any, Any]
WORD = 4
"""Bytes of a register, and of what a shuffle moves."""

VECTOR_BYTES = 16
"""Bytes of the widest access of one thread to memory."""


@dataclass(frozen=True, slots=True)
class MoveCost:
    """What a step costs.

    Args:
        instructions: instructions that one warp issues (for memory without threads: vector moves of one device).
        bytes: level -> bytes that move there, over all agents; shared memory counts stores and loads.
        passes: passes of shared memory over all warps, and
        least: the passes that no placement in shared memory could beat.
        words: elements that the busiest device sends or receives, whichever is more.
    """

    instructions: int = 0
    bytes: Mapping[str, int] = field(default_factory=dict)
    passes: int = 0
    least: int = 0
    words: int = 0


@dataclass(frozen=True)
class ConversionStep(ABC):
    """One step of a conversion.

    Args:
        source, target: the placements before and after.
        element_bytes: bytes per element.
    """

    kind: ClassVar[str]
    source: Places
    target: Places
    element_bytes: int

    @property
    @abstractmethod
    def cost(self) -> MoveCost:
        """What it costs."""

    @abstractmethod
    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""


def holders(have: Places, want: Places, least: int) -> Array:
    """For every place wanted, the replica of `have` that serves it; the nearest of those equal on levels from `least`.

    Raises:
        Undecided: too many pairs of replicas to compare.
    """
    n, rows, columns = want.size, want.at.shape[1], have.at.shape[1]
    if n * rows * columns > BOUND:
        raise Undecided(want.where, f"{n * rows * columns} pairs of places would be compared", facts={"bound": BOUND})
    score: Any = np.zeros((n, rows, columns), np.int64)
    for level in range(3, -1, -1):  # how many levels agree, from the outermost inwards
        kept = want.columns(level, level)
        same = (want.at[:, :, None, kept] == have.at[:, None, :, kept]).all(axis=3)
        score += same & (score == 3 - level)
    best = score.argmax(axis=2)
    if (np.take_along_axis(score, best[:, :, None], 2) < 4 - least).any():
        raise LayoutError(want.where, "an element is not where this step needs it")
    return np.asarray(best)


def _taken(have: Places, want: Places, least: int) -> Array:
    """The place in `have` from which every place of `want` is filled; -1 where `want` holds nothing."""
    take = np.full(len(want.agents) * want.slots, -1)
    take[want.place] = np.take_along_axis(have.place, holders(have, want, least), axis=1)
    return take


def gather(data: Array, take: Array) -> Array:
    """The data at places; 0 where the place is -1."""
    return np.where(take >= 0, data[take], np.zeros((), data.dtype))


def moved_bytes(level: str, elements: int, element_bytes: int) -> Mapping[str, int]:
    """Bytes by level, of one level."""
    return {level: elements * element_bytes}


def _selects(slot: Array) -> int:
    """Selects that read a register whose number depends on the thread: per row, distinct numbers less one."""
    return sum(max(0, len(set(row[row >= 0].tolist())) - 1) for row in slot)


@dataclass(frozen=True)
class LocalMove(ConversionStep):
    """Every agent takes what it needs from its own slots.

    Args:
        take: for each place of the target, flat, the place of the source; -1 where nothing is held.
    """

    kind: ClassVar[str] = "registers"
    take: Array

    @classmethod
    def make(cls, source: Places, target: Places, element_bytes: int) -> LocalMove:
        """Decide all indices of the step."""
        return cls(source, target, element_bytes, _taken(source, target, 1))

    @property
    def slots(self) -> Array:
        """The slot of the source by (agent, slot of the target)."""
        return np.where(self.take >= 0, self.take % self.source.slots, -1).reshape(-1, self.target.slots)

    @property
    def cost(self) -> MoveCost:
        """A renaming of registers is free; where it differs between threads, selects."""
        moved = int((self.take >= 0).sum())
        return MoveCost(_selects(self.slots.T), moved_bytes("register", moved, self.element_bytes))

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        return self.target.unflat(gather(self.source.flat(state), self.take))

    def __str__(self) -> str:
        selects = self.cost.instructions
        if selects:
            return f"registers: permuted within each thread, otherwise in different threads: {selects} selects"
        first = self.slots[0]
        shown = ", ".join(map(str, first[:16])) + (", .." if first.size > 16 else "")
        return f"registers: renamed in every thread alike, from ({shown})"


# --- lane shuffles


@dataclass(frozen=True)
class Shuffle(ConversionStep):
    """Every thread takes what it needs from threads of its warp: in a round each lane offers one value to all.

    Args:
        offer: slot that each lane offers, by (round, agent of the source), in vectors; -1 for none.
        lane: agent of the source whose offer is read, by (round, agent of the target); -1 for none.
        into: slot of the target where it goes, by the same.
        own: what each agent has itself: as `LocalMove.take`.
        vector: neighbouring slots that travel as one word.
        least: a lower bound on the rounds.
    """

    kind: ClassVar[str] = "lanes"
    offer: Array
    lane: Array
    into: Array
    own: Array
    vector: int
    least: int

    @classmethod
    def make(cls, source: Places, target: Places, element_bytes: int) -> Shuffle:
        """Decide all indices of the step."""
        take = _taken(source, target, 2)
        vector = _vector(take, source, target, max(1, WORD // element_bytes))
        mine = _owner(source, target)
        from_agent = np.where(take >= 0, take // source.slots, -1).reshape(-1, target.slots)
        stays = from_agent == mine[:, None]
        demands: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        warp = _groups(target, 2)
        for a, j in np.argwhere((from_agent >= 0) & ~stays).tolist():
            if j % vector == 0:
                slot = int(take[a * target.slots + j] % source.slots) // vector
                demands[int(warp[a])].append((int(from_agent[a, j]), slot, a, j // vector))
        words = -(-element_bytes * vector // WORD)
        held = _held(target, vector)
        stays_at: dict[int, list[Demand]] = defaultdict(list)
        for a, j in np.argwhere(stays[:, ::vector] & (mine[:, None] >= 0)).tolist():
            slot = int(take[a * target.slots + j * vector] % source.slots) // vector
            stays_at[int(warp[a])].append((int(mine[a]), slot, a, j))
        rounds = [_rounds(rows, stays_at[w], words, held[warp == w].sum(axis=0)) for w, rows in demands.items()]
        count = max(map(len, rounds), default=0)
        offer = np.full((count, len(source.agents)), -1)
        lane, into = np.full((2, count, len(target.agents)), -1)
        for found in rounds:
            for r, rows in enumerate(found):
                for s, p, a, j in rows:
                    offer[r, s], lane[r, a], into[r, a] = p, s, j
        own = np.where(stays.reshape(-1), take, -1)
        least = max((_least_rounds(rows) for rows in demands.values()), default=0)
        return cls(source, target, element_bytes, offer, lane, into, own, vector, least)

    @property
    def rounds(self) -> int:
        """How many shuffles of one register, or of several for wide elements, each warp issues."""
        return len(self.offer)

    @property
    def cost(self) -> MoveCost:
        """A shuffle per word and round, and the selects around it."""
        words = -(-self.element_bytes * self.vector // WORD)
        by_slot = np.where(self.own >= 0, self.own % self.source.slots, -1).reshape(-1, self.target.slots)
        held = _held(self.target, self.vector).sum(axis=0)
        taken = [np.bincount(row[row >= 0], minlength=len(held)) for row in self.into]
        merges = sum(int(((row > 0) & (row < held)).sum()) for row in taken)
        selects = _selects(self.offer) + merges + _selects(by_slot.T)
        moved = int((self.lane >= 0).sum()) * self.vector
        return MoveCost(self.rounds * words + selects, moved_bytes("lane", moved, self.element_bytes))

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        data = self.source.flat(state)
        out = gather(data, self.own)
        slots, v = self.source.slots, np.arange(self.vector)
        for offer, lane, into in zip(self.offer, self.lane, self.into, strict=True):
            offered = data[(np.arange(len(offer)) * slots + np.maximum(offer, 0) * self.vector)[:, None] + v]
            to = np.flatnonzero(lane >= 0)
            out[(to * self.target.slots + into[to] * self.vector)[:, None] + v] = offered[lane[to]]
        return self.target.unflat(out)

    def __str__(self) -> str:
        best = "the fewest" if self.rounds == self.least else f"at least {self.least} are needed"
        what = f"{self.vector} elements a word, " if self.vector > 1 else ""
        return f"lanes: {self.rounds} shuffles, {best}; {what}{self.cost.instructions} instructions a warp"


def _owner(source: Places, target: Places) -> Array:
    """For every agent of the target, its row among the agents of the source; -1 where it held nothing."""
    rows = {tuple(a): k for k, a in enumerate(source.agents.tolist())}
    return np.array([rows.get(tuple(a), -1) for a in target.agents.tolist()])


def _groups(placement: Places, least: int) -> Array:
    """A number for each agent: equal where the axes from a level outwards are."""
    names = [k for k, c in enumerate(placement.columns(1)) if c in placement.columns(least)]
    return rows_of(placement.agents[:, names])[1]


def _vector(take: Array, source: Places, target: Places, most: int) -> int:
    """The greatest power of two up to `most` so that aligned runs of so many slots come from aligned runs."""
    v = 1
    while 2 * v <= most and source.slots % (2 * v) == 0 and target.slots % (2 * v) == 0:
        runs = take.reshape(-1, 2 * v)
        empty = (runs < 0).all(axis=1)
        if not (((runs == runs[:, :1] + np.arange(2 * v)).all(axis=1) & (runs[:, 0] % (2 * v) == 0)) | empty).all():
            break
        v *= 2
    return v


Demand = tuple[int, int, int, int]
"""(agent that has it, slot there, agent that wants it, slot there)."""


def _least_rounds(rows: list[Demand]) -> int:
    """No lane offers more than one value a round, none receives more than one."""
    offers: dict[int, set[int]] = defaultdict(set)
    wants: dict[int, int] = defaultdict(int)
    for s, p, a, _ in rows:
        offers[s].add(p)
        wants[a] += 1
    return max(max(map(len, offers.values())), max(wants.values()))


def _held(target: Places, vector: int) -> Array:
    """Whether an agent holds a slot, by (agent, slot in vectors)."""
    out = np.zeros(len(target.agents) * target.slots, bool)
    out[target.place] = True
    return out.reshape(len(target.agents), -1, vector)[:, :, 0]


def _rounds(rows: list[Demand], stays: list[Demand], words: int, held: Array) -> list[list[Demand]]:
    """The demands of one warp in rounds: by target slot, or by colouring the edges of a graph; the cheaper.

    Args:
        rows: the demands. stays: what lanes have already, which they may also read from themselves.
        words: shuffles in a round. held: how many lanes hold each slot of the target.
    """
    offers = {(s, p) for s, p, _, _ in rows}
    ways = [_colour(rows) if len(offers) == len(rows) else _greedy(rows)]
    by_slot: dict[tuple[int, int], int] = {}
    if all(by_slot.setdefault((j, s), p) == p for s, p, _, j in rows):
        ways.append([j for _, _, _, j in rows])
    found = []
    for colours in ways:
        out: dict[int, list[Demand]] = defaultdict(list)
        for row, colour in zip(rows, colours, strict=True):
            out[colour].append(row)
        found.append([out[c] for c in sorted(out)])
    best = min(found, key=lambda rounds: sum(words + _around(one, held) for one in rounds))
    return [_with_own(one, stays, held) for one in best]


def _with_own(rows: list[Demand], stays: list[Demand], held: Array) -> list[Demand]:
    """A round of one slot in which lanes that have theirs read it from themselves, where that saves the select."""
    slots, offered = {j for _, _, _, j in rows}, {s: p for s, p, _, _ in rows}
    more = [row for row in stays if row[3] in slots]
    if len(slots) > 1 or any(offered.get(s, p) != p for s, p, _, _ in more):
        return rows
    return min(rows, [*rows, *more], key=lambda one: _around(one, held))


def _around(rows: list[Demand], held: Array) -> int:
    """Selects before and after one shuffle: of the slot offered, and of what the lanes keep that take nothing."""
    taken: dict[int, int] = defaultdict(int)
    for _, _, _, j in rows:
        taken[j] += 1
    return len({p for _, p, _, _ in rows}) - 1 + sum(bool(n < held[j]) for j, n in taken.items())


def _greedy(rows: list[Demand]) -> list[int]:
    """The first round in which the giver offers this value or nothing, and the taker takes nothing."""
    offered: dict[tuple[int, int], int] = {}
    busy: set[tuple[int, int]] = set()
    out = []
    for s, p, a, _ in rows:
        r = 0
        while (r, a) in busy or offered.get((r, s), p) != p:
            r += 1
        busy.add((r, a))
        offered[r, s] = p
        out.append(r)
    return out


def _colour(rows: list[Demand]) -> list[int]:
    """As many rounds as the greatest degree: edges of a bipartite graph, recoloured along alternating paths.

    Source: König's edge colouring theorem.
    """
    at: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (side, agent) -> round -> demand
    out = [0] * len(rows)

    def ends(k: int) -> tuple[tuple[int, int], tuple[int, int]]:
        return (0, rows[k][0]), (1, rows[k][2])

    def free(node: tuple[int, int]) -> int:
        return next(r for r in range(len(rows)) if r not in at[node])

    for k in range(len(rows)):
        u, v = ends(k)
        a, b = free(u), free(v)
        if a in at[v]:  # exchange rounds a and b along the path that leaves v by a; it cannot reach u
            path, node, colour = [], v, a
            while colour in at[node]:
                edge = at[node][colour]
                path.append(edge)
                node = next(end for end in ends(edge) if end != node)
                colour = a + b - colour
            for edge in path:
                for end in ends(edge):
                    at[end].pop(out[edge], None)
            for edge in path:
                out[edge] = a + b - out[edge]
                for end in ends(edge):
                    at[end][out[edge]] = edge
        out[k] = a
        at[u][a] = at[v][a] = k
    return out


# --- shared memory


@dataclass(frozen=True)
class Trip(ConversionStep):
    """Every thread stores what others need into shared memory, all wait, and every thread loads what it needs.

    Args:
        offset: where each element lies in the shared memory of each device, by (device, element); -1 for nowhere.
        order: the order in which the elements lie there, before the swizzle.
        swizzle: the swizzle chosen, or None.
        store, load: elements per access.
        passes, least: of stores and loads; what no placement can beat.
    """

    kind: ClassVar[str] = "shared"
    offset: Array
    order: str
    swizzle: Swizzle | None
    store: int
    load: int
    passes: int
    least: int

    @classmethod
    def make(cls, source: Places, target: Places, element_bytes: int) -> Trip:
        """Decide all indices of the step."""
        warps = max(int(_groups(one, 2).max()) + 1 for one in (source, target))
        trips = [t for name in ("target", "source", "logical") for t in _trips(source, target, name, element_bytes)]
        return min(trips, key=lambda trip: trip.passes + warps * trip.cost.instructions)

    @property
    def buffer(self) -> int:
        """Elements of shared memory that a device needs."""
        return int(self.offset.max()) + 1

    @property
    def cost(self) -> MoveCost:
        """Stores and loads of one warp, and one barrier."""
        stores, loads = -(-self.source.slots // self.store), -(-self.target.slots // self.load)
        elements = self.target.size * len(set(_groups(self.target, 3).tolist())) + self.target.place.size
        return MoveCost(
            stores + loads + 1, moved_bytes("shared", elements, self.element_bytes), self.passes, self.least
        )

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        data = self.source.flat(state)
        out = np.zeros(len(self.target.agents) * self.target.slots, data.dtype)
        devices = _groups(self.target, 3)[self.target.agent]
        for device, (elements, places) in enumerate(_writers(self.source, self.target)):
            buffer = np.zeros(int(self.offset[device].max()) + 1, data.dtype)
            buffer[self.offset[device, elements]] = data[places]
            x, r = np.nonzero(devices == device)
            out[self.target.place[x, r]] = buffer[self.offset[device, x]]
        return self.target.unflat(out)

    def __str__(self) -> str:
        how = f"behind {self.swizzle}" if self.swizzle else "without swizzle"
        free = "no conflicts" if self.passes == self.least else f"{self.least} without conflicts"
        return (
            f"shared: stores of {self.store}, loads of {self.load} elements, {self.order} order {how}; "
            f"{self.passes} passes, {free}"
        )


def _writers(source: Places, target: Places) -> list[tuple[Array, Array]]:
    """Per device of the target: the elements that it wants, and for each the place in the source that stores it."""
    kept = source.columns(3)
    out = []
    devices = _groups(target, 3)
    for device in range(int(devices.max()) + 1):
        wants = (devices[target.agent] == device).any(axis=1)
        row = target.agents[np.flatnonzero(devices == device)[0]]
        where = [k for k, c in enumerate(source.columns(1)) if c in kept]
        here = (source.at[:, :, kept] == row[where]).all(axis=2)
        first = here.argmax(axis=1)
        elements = np.flatnonzero(wants)
        out.append((elements, source.place[elements, first[elements]]))
    return out


def _trips(source: Places, target: Places, order: str, element_bytes: int) -> Iterator[Trip]:
    """Trips whose buffer has the elements in the order of one side, behind the best swizzle, for several vectors."""
    written = _writers(source, target)
    devices = _groups(target, 3)[target.agent]
    by = {"target": target, "source": source}.get(order)
    first = np.arange(target.size) if by is None else by.place.min(axis=1)
    rank = np.full((len(written), target.size), -1)
    stored, loaded = [], []
    for device, (elements, places) in enumerate(written):
        rank[device, elements[np.argsort(first[elements], kind="stable")]] = np.arange(len(elements))
        stored.append(_slots(source, places, rank[device, elements]))
        x, r = np.nonzero(devices == device)
        loaded.append(_slots(target, target.place[x, r], rank[device, x]))
    most = max(1, VECTOR_BYTES // element_bytes)
    store, load = (min(_run(table, most) for table in tables) for tables in (stored, loaded))
    while True:
        warps = [access for t in stored for access in _accesses(source, t, store)]
        warps += [access for t in loaded for access in _accesses(target, t, load)]
        cost = Accesses.of(warps, element_bytes, 32, 4)
        swizzle, passes, _ = best_swizzle(cost, int(rank.max()).bit_length()) or (None, 0, 0)  # ranks are aligned
        offset = rank if swizzle is None else np.where(rank >= 0, swizzle(np.maximum(rank, 0)), -1)
        least = cost.least()
        yield Trip(source, target, element_bytes, offset, order, swizzle, store, load, passes, least)
        if passes == least or store == load == 1 or max(store, load) * element_bytes <= WORD:
            return
        store, load = max(1, min(store, max(store, load) // 2)), max(1, min(load, max(store, load) // 2))


def _slots(placement: Places, places: Array, offsets: Array) -> Array:
    """The shared offset by (agent, slot); -1 where the slot takes no part."""
    out = np.full(len(placement.agents) * placement.slots, -1)
    out[places] = offsets
    return out.reshape(-1, placement.slots)


def _run(table: Array, most: int) -> int:
    """The greatest power of two so that aligned runs of slots go to aligned runs of shared memory."""
    v = 1
    while 2 * v <= most and table.shape[1] % (2 * v) == 0:
        runs = table.reshape(-1, 2 * v)
        whole = (runs == runs[:, :1] + np.arange(2 * v)).all(axis=1) & (runs[:, 0] % (2 * v) == 0)
        if not (whole | (runs < 0).all(axis=1)).all():
            break
        v *= 2
    return v


def _accesses(placement: Places, table: Array, vector: int) -> list[tuple[int, Array, Array]]:
    """One access per warp and vector of slots: (vector, threads in the warp, offsets)."""
    out = []
    warps = _groups(placement, 2)
    for warp in range(int(warps.max()) + 1):
        rows = table[warps == warp]
        for start in range(0, len(rows), WARP):
            for j in range(0, table.shape[1], vector):
                offsets = rows[start : start + WARP, j]
                lanes = np.flatnonzero(offsets >= 0)
                if lanes.size:
                    out.append((vector, lanes, offsets[lanes]))
    return out


# --- memory


@dataclass(frozen=True)
class Copy(ConversionStep):
    """Loads from memory into threads, stores from threads, or a copy within memory.

    Args:
        take: as `LocalMove.take`.
        vector: elements per access, contiguous and aligned on both sides.
        way: "loads", "stores" or "moves".
    """

    kind: ClassVar[str] = "memory"
    take: Array
    vector: int
    way: Literal["loads", "stores", "moves"]

    @classmethod
    def make(cls, source: Places, target: Places, element_bytes: int, way: Literal["loads", "stores", "moves"]) -> Copy:
        """Decide all indices of the step."""
        take = _taken(source, target, 3)
        vector = _vector(take, source, target, max(1, VECTOR_BYTES // element_bytes))
        return cls(source, target, element_bytes, take, vector, way)

    @property
    def cost(self) -> MoveCost:
        """Accesses of one thread, the bytes of all, and the passes that they take if the memory is a shared one."""
        table = self.offsets
        moved = int((self.take >= 0).sum())
        counts = (table if len(table) else self.take.reshape(1, -1)) >= 0
        most = -(-int(counts.sum(axis=1).max()) // self.vector)
        if not len(table):
            return MoveCost(most, moved_bytes("memory", moved, self.element_bytes))
        threads = self.target if self.way == "loads" else self.source
        banks = Accesses.of(_accesses(threads, table, self.vector), self.element_bytes, 32, 4)
        passes = banks(lambda offsets: offsets) or 0
        return MoveCost(most, moved_bytes("memory", moved, self.element_bytes), passes, banks.least())

    @property
    def offsets(self) -> Array:
        """The place in memory that each thread accesses, by (agent, slot); -1 for none; empty without threads."""
        if self.way == "loads":
            return np.where(self.take >= 0, self.take % self.source.slots, -1).reshape(-1, self.target.slots)
        if self.way == "moves":
            return np.zeros((0, 1), np.int64)
        out = np.full(len(self.source.agents) * self.source.slots, -1)
        at = np.flatnonzero(self.take >= 0)
        out[self.take[at]] = at % self.target.slots
        return out.reshape(-1, self.source.slots)

    def execute(self, state: State) -> State:
        """Move data: as placed before -> as placed after."""
        return self.target.unflat(gather(self.source.flat(state), self.take))

    def __str__(self) -> str:
        cost = self.cost
        if self.way == "moves":
            return f"memory: {cost.instructions} moves of {self.vector} elements a device"
        free = "no conflicts" if cost.passes == cost.least else f"{cost.least} without conflicts"
        shared = f"in shared memory {cost.passes} passes, {free}"
        return f"memory: {cost.instructions} {self.way} of {self.vector} elements a thread; {shared}"
