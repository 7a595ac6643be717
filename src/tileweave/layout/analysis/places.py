"""Where the elements of a tensor lie: the levels of a machine's axes, places as tables, and data as arrays per agent.

An *agent* is what holds data of its own: a coordinate on the axes of devices, warps and lanes. A *slot* is a coordinate
on the other axes, those of registers and memory. A layout that uses no axis of warps, lanes or registers lies in
memory, which all threads of a device read; any other layout lies in the threads, and a memory axis that it uses is
memory of each thread's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import LayoutError, NoLayout, Undecided
from tileweave.kept import cached_property
from tileweave.layout.analysis.memory import offsets_of
from tileweave.layout.core.checks import need_numbers
from tileweave.layout.core.composition import compose
from tileweave.layout.core.coord import DEFAULT_AXIS, Coord
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.core.rows import carries, from_carries

Level = Literal["register", "memory", "lane", "warp", "device"]
Part = tuple[Level, int | None]
"""A digit of an axis that runs through several levels: its level, and its extent (None: as far as it goes)."""
Digit = tuple[str, Level, int | None]
"""An axis of one level: its name, its level, its extent."""
State = Mapping[tuple[int, ...], np.ndarray[Any, Any]]
"""Data in place: for each agent, its slots in row-major order."""

ORDER: Mapping[Level, int] = {"register": 0, "memory": 0, "lane": 1, "warp": 2, "device": 3}
"""How far out each level is."""

LEVELS: Mapping[str, Level] = {
    "reg": "register", "register": "register",
    "m": "memory", "smem": "memory", "gmem": "memory", "P": "memory", "F": "memory", "Lane": "memory", "Col": "memory",
    "lane": "lane", "laneid": "lane",
    "warp": "warp", "warpid": "warp", "wg": "warp", "wgid": "warp",
    "gpu": "device", "gpuid": "device", "device": "device", "node": "device", "block": "device", "cta": "device",
}  # fmt: skip
"""The level of each axis name; pass `levels` for other names."""

BOUND = 1 << 24
"""The most places that are listed one by one."""


# --- axes


def used(layout: Layout) -> set[str]:
    """The axes that a layout names."""
    return set(layout.offset.axes) | {a for it in layout.shard + layout.replica for a in it.stride.axes}


def digits_of(axis: str, given: object, where: str) -> list[Digit]:
    """The digits of an axis, innermost first; an axis of one level is one digit, and keeps its name."""
    words = ", ".join(ORDER)
    legal = f"levels={{{axis!r}: one of {words}, or digits such as (('lane', 32), ('warp', None))}}"
    if isinstance(given, str) and given in ORDER:
        return [(axis, level, None) for level in ORDER if level == given]
    if not isinstance(given, tuple | list) or not given:
        raise LayoutError(where, f"axis {axis} has no level", legal=legal)
    out: list[Digit] = []
    for k, part in enumerate(given):
        if not isinstance(part, tuple) or len(part) != 2 or part[0] not in ORDER:
            raise LayoutError(where, f"{part!r} is no digit of axis {axis}", legal=legal)
        level, extent = part
        if (extent is None and k < len(given) - 1) or (extent is not None and (type(extent) is not int or extent < 1)):
            raise LayoutError(where, f"digit {k} of axis {axis} has the extent {extent!r}", legal=legal)
        out.append((f"{axis}_{level}", level, extent))
    return out


def split(layout: Layout, digits: Mapping[str, Sequence[Digit]], where: str) -> Layout:
    """The layout with every axis written in its digits.

    Raises:
        NoLayout: digits carry, so that what is written is no layout. LayoutError: a value outside the digits.
    """
    for axis, row in digits.items():
        if row[0][0] == axis or axis not in used(layout):
            continue
        low, high = layout.bounds(axis)
        whole = prod(extent for _, _, extent in row if extent is not None)
        if low < 0 or (row[-1][2] is not None and high >= whole):
            raise LayoutError(
                where,
                f"axis {axis} takes {low}..{high}, outside its digits",
                inputs={"layout": layout},
                legal="values from 0 on, below the product of the extents",
            )
        names = Layout(
            tuple(Iter(high // whole + 1 if e is None else e, Coord(((name, 1),))) for name, _, e in reversed(row))
        )
        if any(axis in it.stride.axes and len(it.stride.axes) > 1 for it in layout.replica):
            raise NoLayout(where, f"a replica moves along {axis} and another axis")
        written = compose(names, project(layout, {axis}), axis=axis)
        layout = _sum(written, project(layout, used(layout) - {axis}), where)
    return layout


def project(layout: Layout, kept: set[str]) -> Layout:
    """The layout with all other axes forgotten."""

    def cut(stride: Coord) -> Coord:
        return Coord(tuple((axis, value) for axis, value in stride.terms if axis in kept))

    replica = tuple(Iter(it.extent, cut(it.stride)) for it in layout.replica if cut(it.stride))
    return Layout(tuple(Iter(it.extent, cut(it.stride)) for it in layout.shard), replica, cut(layout.offset))


def _sum(a: Layout, b: Layout, where: str) -> Layout:
    """The layout whose value is the sum of both, each with its own axes; `NoLayout` if their digits do not nest."""
    levels: dict[int, Coord] = {}
    for p, c in [*carries(a.shard), *carries(b.shard)]:
        levels[p] = levels.get(p, Coord()) + c
    kept = sorted(levels.items())
    if any(high % low for (low, _), (high, _) in pairwise(kept)):
        raise NoLayout(where, "two axes turn at places that do not nest")
    return Layout(from_carries(a.size, kept), a.replica + b.replica, a.offset + b.offset)


# --- cells

Turns = Mapping[int, Coord]
"""A function on the logical index as ``sum of c * floor(x / p)`` over p -> c."""


def turns_of(*layouts: Layout, signs: Sequence[int] = (1,)) -> Turns:
    """The signed sum of the shards of layouts, as its turns."""
    total: dict[int, Coord] = {}
    for layout, sign in zip(layouts, signs, strict=True):
        for p, c in carries(layout.shard):
            total[p] = total.get(p, Coord()) + sign * c
    return {p: c for p, c in total.items() if c}


def cells_of(functions: Sequence[Turns], n: int, where: str) -> np.ndarray[Any, Any]:
    """One index in [0, n) for each value that functions take together; each stands for equally many.

    Where the turns of all functions nest, digits on which all are constant are left out.

    Raises:
        Undecided: more than `BOUND` cells.
    """
    turns = {p for f in functions for p in f}
    levels = sorted({1, n, *turns})
    nested = all(high % low == 0 for low, high in pairwise(levels))
    steps = list(pairwise(p for p in levels if p <= n)) if nested else [(gcd(n, *turns), n)]
    if nested:
        steps = [(low, high) for low, high in steps if any(_step(f, low) for f in functions)]
    count = prod(high // low for low, high in steps)
    if count > BOUND:
        raise Undecided(where, f"{count} cells would have to be compared", facts={"bound": BOUND})
    out: Any = np.zeros(1, object if n >= 1 << 62 else np.int64)
    for low, high in steps:
        out = (np.arange(high // low).astype(out.dtype)[:, None] * low + out).reshape(-1)
    return np.asarray(out)


def _step(turns: Turns, low: int) -> Coord:
    """What one step of the digit from `low` on adds."""
    total = Coord()
    for p, c in turns.items():
        total = total + low // p * c
    return total


def coordinates(layout: Layout, index: np.ndarray[Any, Any], axes: Sequence[str]) -> np.ndarray[Any, Any]:
    """The least replica's coordinates at indices, one more dimension for the axes."""
    found = layout(index)
    table = found if isinstance(found, dict) else {layout.axes[0]: found}
    columns = [np.asarray(table.get(axis, np.full(index.shape, layout.offset[axis]))) for axis in axes]
    return np.stack(columns, axis=-1) if columns else np.zeros((*index.shape, 0), np.int64)


def shifts_of(layout: Layout, axes: Sequence[str], where: str) -> np.ndarray[Any, Any]:
    """What each replica adds, by (replica, axis)."""
    copies = prod(it.extent for it in layout.replica)
    if copies > BOUND:
        raise Undecided(where, f"{copies} replicas would have to be listed", facts={"bound": BOUND})
    rows = [[r[axis] for axis in axes] for r in layout.replicas()]
    return np.array(rows).reshape(copies, len(axes))


# --- places


def listed(layout: Any, digits: Mapping[str, Sequence[Digit]], where: str) -> np.ndarray[Any, Any]:
    """An array (element, replica, digit) of coordinates; whatever is no core layout lies on the axis ``m``."""
    if isinstance(layout, Layout):
        need_numbers(where, layout)
        copies = prod(it.extent for it in layout.replica)
        if layout.size * copies > BOUND:
            raise Undecided(where, f"{layout.size * copies} places would have to be listed", facts={"bound": BOUND})
        table = layout.table()
        table = table if isinstance(table, dict) else {layout.axes[0]: table}
        shifts = list(layout.replicas())
        flat = {
            axis: np.asarray(table.get(axis, np.zeros(layout.size, np.int64)))[:, None]
            + np.array([r[axis] for r in shifts])
            for axis in digits
        }
        shape = (layout.size, copies)
    else:
        flat = {DEFAULT_AXIS: offsets_of(layout, np.arange(layout.size), row_major=True)[:, None]}
        shape = (layout.size, 1)
    columns: list[Any] = []
    for axis, row in digits.items():
        rest = flat.get(axis, np.zeros(shape, np.int64))
        for _, _, extent in row:
            columns.append(rest if extent is None else rest % extent)
            rest = rest if extent is None else rest // extent
    return np.stack(columns, axis=2) if columns else np.zeros((*shape, 0), np.int64)


def rows_of(table: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The distinct rows of a table, ascending, and for every row its number among them."""
    if not table.shape[1]:
        return table[:1], np.zeros(len(table), np.int64)
    rows, found = np.unique(table, axis=0, return_inverse=True)
    return rows, np.asarray(found).reshape(-1)


def rekeyed(state: State, have: Sequence[str], want: Sequence[str]) -> State:
    """The same data with agents named by other axes; an axis that is not named is 0."""
    if tuple(have) == tuple(want):
        return state
    named = ((dict(zip(have, key, strict=True)), row) for key, row in state.items())
    return {tuple(at.get(axis, 0) for axis in want): row for at, row in named}


@dataclass(frozen=True)
class Places:
    """A tensor in place, as a table.

    Args:
        at: coordinates by (element, replica, axis).
        names: the axes. levels: their levels.
        where: the function that the user called.
    """

    at: np.ndarray[Any, Any]
    names: tuple[str, ...]
    levels: tuple[Level, ...]
    where: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.at.shape[0])

    def columns(self, least: int, most: int = 3) -> list[int]:
        """The axes whose level lies between two, as in `ORDER`."""
        return [k for k, level in enumerate(self.levels) if least <= ORDER[level] <= most]

    @cached_property
    def agents(self) -> np.ndarray[Any, Any]:
        """The agents that hold something, one a row, ascending."""
        return self._agents[0]

    @cached_property
    def agent(self) -> np.ndarray[Any, Any]:
        """The row of the agent, by (element, replica)."""
        return self._agents[1]

    @cached_property
    def _agents(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        kept = self.at[:, :, self.columns(1)]
        rows, found = rows_of(kept.reshape(prod(kept.shape[:2]), kept.shape[2]))
        return rows, found.reshape(self.at.shape[:2])

    @cached_property
    def box(self) -> list[tuple[int, int]]:
        """(least, extent) of the slot axes; counted from 0 unless values are negative."""
        kept = self.at[:, :, self.columns(0, 0)]
        lows = np.minimum(kept.min(axis=(0, 1)), 0)
        return [(int(low), int(n)) for low, n in zip(lows, kept.max(axis=(0, 1)) - lows + 1, strict=True)]

    @cached_property
    def slot(self) -> np.ndarray[Any, Any]:
        """The number of the slot within its agent, by (element, replica).

        Raises:
            Undecided: the agents' slots together are more than `BOUND`.
        """
        if self.slots * len(self.agents) > BOUND:
            problem = f"{len(self.agents)} agents would need {self.slots} slots each"
            raise Undecided(self.where, problem, facts={"bound": BOUND})
        out: Any = np.zeros(self.at.shape[:2], np.int64)
        for k, (low, extent) in zip(self.columns(0, 0), self.box, strict=True):
            out = out * extent + self.at[:, :, k] - low
        return np.asarray(out)

    @property
    def slots(self) -> int:
        """How many slots an agent has."""
        return prod(extent for _, extent in self.box)

    @cached_property
    def place(self) -> np.ndarray[Any, Any]:
        """The place, numbered ``agent * slots + slot``, by (element, replica).

        Raises:
            LayoutError: two elements share a place, so that no data lies like this.
        """
        out = self.agent * self.slots + self.slot
        flat = np.sort(out, axis=1) if out.shape[1] > 1 else out
        order = np.argsort(flat.reshape(-1), kind="stable")
        sorted_at, element = flat.reshape(-1)[order], order // out.shape[1]
        bad = np.flatnonzero((sorted_at[1:] == sorted_at[:-1]) & (element[1:] != element[:-1]))
        if bad.size:
            x, y = int(element[bad[0]]), int(element[bad[0] + 1])
            raise LayoutError(self.where, f"the elements {x} and {y} share a place", legal="an injective layout")
        return np.asarray(out)

    @property
    def agent_axes(self) -> tuple[str, ...]:
        """The axes whose coordinates are the keys of a state, outermost first."""
        return tuple(self.names[k] for k in self.columns(1))

    def distribute(self, values: Any) -> State:
        """The values of the elements, put in all their places; slots that hold nothing are 0."""
        flat = np.asarray(values).reshape(-1)
        if flat.size != self.size:
            raise LayoutError(self.where, f"{flat.size} values for {self.size} elements")
        place = self.place
        data = np.zeros(len(self.agents) * self.slots, flat.dtype)
        data[place] = flat[:, None]
        return self.unflat(data)

    def collect(self, state: State) -> np.ndarray[Any, Any]:
        """The values of the elements, from any one of their places.

        Raises:
            LayoutError: copies of an element differ; both places are named.
        """
        place = self.place
        found = self.flat(state)[place]
        different = (found != found[:, :1]) & ~((found != found) & (found[:, :1] != found[:, :1]))  # NaN is NaN
        if different.any():
            x, r = (int(v) for v in np.argwhere(different)[0])
            places = [self.coordinate(x, 0), self.coordinate(x, r)]
            raise LayoutError(
                self.where, f"element {x} is {found[x, 0]} at {places[0]} and {found[x, r]} at {places[1]}"
            )
        return np.asarray(found[:, 0])

    def coordinate(self, element: int, replica: int) -> Coord:
        """One place as a coordinate."""
        return Coord(tuple((self.names[k], int(self.at[element, replica, k])) for k in self.columns(0)))

    def flat(self, state: State) -> np.ndarray[Any, Any]:
        """All slots of all agents, in order."""
        rows = []
        for key in map(tuple, self.agents.tolist()):
            if key not in state or np.shape(state[key]) != (self.slots,):
                raise LayoutError(self.where, f"agent {key} needs an array of {self.slots} slots")
            rows.append(np.asarray(state[key]))
        return np.concatenate(rows)

    def unflat(self, data: np.ndarray[Any, Any]) -> State:
        """The inverse of `flat`."""
        rows = data.reshape(len(self.agents), self.slots)
        return {tuple(key): row for key, row in zip(self.agents.tolist(), rows, strict=True)}
