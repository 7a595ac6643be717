"""What it takes to turn one layout of a tensor into another: nothing, registers, lanes, shared memory or devices.

Both layouts send logical elements to named hardware axes. For every level of the machine the question is the same: with
the axes below that level forgotten, is every place where an element must be a place where it already is? The
outermost level at which it is not decides the means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided, Unproved
from tileweave.layout.core.carries import carries, from_carries
from tileweave.layout.core.checks import need_numbers
from tileweave.layout.core.composition import compose
from tileweave.layout.core.exact import same_map
from tileweave.layout.core.layout import Coord, Iter, Layout
from tileweave.layout.core.symbolic import same

__all__ = ["LEVELS", "Conversion", "Level", "Means", "Part", "conversion"]

Level = Literal["register", "lane", "warp", "device"]
Means = Literal["nothing", "registers", "lanes", "shared", "devices"]
Part = tuple[Level, int | None]
"""A digit of an axis that runs through several levels: its level, and its extent (None: as far as it goes)."""

ORDER: tuple[Level, ...] = ("register", "lane", "warp", "device")
MEANS: Mapping[Level, Means] = {"register": "registers", "lane": "lanes", "warp": "shared", "device": "devices"}

LEVELS: Mapping[str, Level] = {
    "reg": "register", "register": "register", "m": "register",
    "lane": "lane", "laneid": "lane",
    "warp": "warp", "warpid": "warp", "wg": "warp", "wgid": "warp",
    "gpu": "device", "gpuid": "device", "device": "device", "node": "device", "block": "device", "cta": "device",
}  # fmt: skip
"""The level of each axis name; pass `levels` for other names."""

BOUND = 1 << 24
"""The most (element, source, target) triples that are compared one by one."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion needs.

    Args:
        means: the cheapest means that suffices: nothing; a permutation of registers within each thread; a lane shuffle
            within each warp; shared memory within each block; or moving between devices.
        level: the outermost level at which an element is not yet where it must be; None for nothing.
        element: one logical index that has to move so far, and
        target: the coordinate that it must reach; None where the proof is structural.
    """

    means: Means
    level: Level | None
    element: int | None = None
    target: Coord | None = None


def conversion(
    source: Layout, target: Layout, levels: Mapping[str, Level | Sequence[Part]] | None = None
) -> Conversion:
    """The cheapest means by which a tensor held as `source` comes to be held as `target`; replicas count as holders.

    Args:
        source, target: core layouts of one tensor: equal sizes, indices row-major.
        levels: axis name -> "register", "lane", "warp" or "device"; left out, `LEVELS`. An axis that counts through
            several levels, such as a thread number, is given by its digits, innermost first:
            ``{"tid": (("lane", 32), ("warp", None))}``; they are named ``tid_lane`` and ``tid_warp`` in the answer.

    Raises:
        Incongruent: the sizes differ. LayoutError: an axis without a level, or a value outside its digits.
        Undecided: replicas, or digits that carry, and more than `BOUND` comparisons.
        Unproved: a layout is symbolic, and what has to be compared is not proved.

    Example:
        >>> rows = Layout(((4, {"lane": 1}), (2, {"reg": 1})))
        >>> columns = Layout(((4, {"reg": 1}), (2, {"lane": 1})))
        >>> conversion(rows, rows).means, conversion(rows, columns).means
        ('nothing', 'lanes')
        >>> tid = {"tid": (("lane", 32), ("warp", None)), "reg": "register"}
        >>> up, down = Layout(((64, {"tid": 1}),)), Layout(((64, {"tid": -1}),), (), {"tid": 63})
        >>> conversion(up, down, tid).target
        Coord((('tid_warp', 1),))

    Source: own.
    """
    where = "conversion(source, target)"
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise LayoutError(where, f"{layout!r} is no core layout", legal="layouts on named axes")
    if not same(source.size, target.size):
        raise Incongruent(
            where, f"sizes {source.size} and {target.size} differ", inputs={"source": source, "target": target}
        )
    if levels is not None and not isinstance(levels, Mapping):
        raise LayoutError(where, f"levels {levels!r} are no mapping", legal="axis name -> level")
    given = LEVELS if levels is None else levels
    digits = {axis: _digits(axis, given.get(axis), where) for axis in sorted({*_used(source), *_used(target)})}
    level_of = {name: level for row in digits.values() for name, level, _ in row}
    if len(level_of) < sum(map(len, digits.values())):
        raise LayoutError(where, "two digits have one name", legal="other names for the axes", inputs=dict(digits))
    try:
        have, want = (_split(layout, digits, where) for layout in (source, target))
    except (NoLayout, Undecided):
        return _listed(source, target, digits, where)
    return _structural(have, want, level_of, where)


def _structural(source: Layout, target: Layout, level_of: Mapping[str, Level], where: str) -> Conversion:
    """The outermost level at which the target is not contained in the source, all axes being of one level."""
    for k in reversed(range(len(ORDER))):
        kept = {axis for axis, level in level_of.items() if ORDER.index(level) >= k}
        if not _contained(target, source, kept, where):
            at, place = _example(target, source, kept)
            return Conversion(MEANS[ORDER[k]], ORDER[k], at, place)
    return Conversion("nothing", None)


Digit = tuple[str, Level, int | None]  # an axis of its own: name, level, extent


def _digits(axis: str, given: object, where: str) -> list[Digit]:
    """The digits of an axis, innermost first; an axis of one level is one digit, and keeps its name."""
    legal = f"levels={{{axis!r}: one of {', '.join(ORDER)}, or digits such as (('lane', 32), ('warp', None))}}"
    if isinstance(given, str) and given in ORDER:
        return [(axis, given, None)]
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


def _split(layout: Layout, digits: Mapping[str, Sequence[Digit]], where: str) -> Layout:
    """The layout with every axis written in its digits.

    Raises:
        NoLayout: digits carry, so that what is written is no layout. LayoutError: a value outside the digits.
    """
    for axis, row in digits.items():
        if row[0][0] == axis or axis not in _used(layout):
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
        written = compose(names, _project(layout, {axis}), axis=axis)
        layout = _sum(written, _project(layout, _used(layout) - {axis}), where)
    return layout


def _sum(a: Layout, b: Layout, where: str) -> Layout:
    """The layout whose value is the sum of both, each with its own axes; `NoLayout` if their digits do not nest."""
    levels: dict[int, Coord] = {}
    for p, c in [*carries(a.shard), *carries(b.shard)]:
        levels[p] = levels.get(p, Coord()) + c
    kept = sorted(levels.items())
    if any(high % low for (low, _), (high, _) in pairwise(kept)):
        raise NoLayout(where, "two axes turn at places that do not nest")
    return Layout(from_carries(a.size, kept), a.replica + b.replica, a.offset + b.offset)


def _listed(source: Layout, target: Layout, digits: Mapping[str, Sequence[Digit]], where: str) -> Conversion:
    """As `_structural`, every place written in its digits one by one."""
    need_numbers(where, source, target)
    copies = prod(it.extent for layout in (source, target) for it in layout.replica)
    if source.size * copies > BOUND:
        raise Undecided(where, f"{source.size * copies} places would have to be compared", facts={"bound": BOUND})
    columns = []
    for layout in (source, target):
        places = _places(layout, list(digits))
        column: list[Any] = []
        for k, row in enumerate(digits.values()):
            rest = places[:, :, k]
            for _, _, extent in row:
                column.append(rest if extent is None else rest % extent)
                rest = rest if extent is None else rest // extent
        columns.append(np.stack(column, axis=2))
    have, want = columns
    names = [(name, level) for row in digits.values() for name, level, _ in row]
    for k in reversed(range(len(ORDER))):
        kept = [j for j, (_, level) in enumerate(names) if ORDER.index(level) >= k]
        found = (want[:, :, None, kept] == have[:, None, :, kept]).all(axis=3).any(axis=2)
        if not found.all():
            x, r = (int(v) for v in np.argwhere(~found)[0])
            place = Coord(tuple((names[j][0], int(want[x, r, j])) for j in kept))
            return Conversion(MEANS[ORDER[k]], ORDER[k], x, place)
    return Conversion("nothing", None)


def _used(layout: Layout) -> set[str]:
    return set(layout.offset.axes) | {a for it in layout.shard + layout.replica for a in it.stride.axes}


def _project(layout: Layout, kept: set[str]) -> Layout:
    """The layout with all other axes forgotten."""

    def cut(stride: Coord) -> Coord:
        return Coord(tuple((axis, value) for axis, value in stride.terms if axis in kept))

    replica = tuple(Iter(it.extent, cut(it.stride)) for it in layout.replica if cut(it.stride))
    return Layout(tuple(Iter(it.extent, cut(it.stride)) for it in layout.shard), replica, cut(layout.offset))


def _contained(target: Layout, source: Layout, kept: set[str], where: str) -> bool:
    """Whether every target place of every element is among its source places, on the kept axes."""
    a, b = _project(target, kept), _project(source, kept)
    if not a.replica and not b.replica:
        return same_map(a, b)
    if same_map(a, b, replicas="set"):
        return True
    return _missing(a, b, where) is None


def _missing(a: Layout, b: Layout, where: str) -> tuple[int, Coord] | None:
    """The first element of `a` with a place that `b` does not hold, and that place."""
    need_numbers(where, a, b)
    many = a.size * prod(it.extent for it in a.replica) * prod(it.extent for it in b.replica)
    if many > BOUND:
        raise Undecided(where, f"{many} places would have to be compared", facts={"bound": BOUND})
    axes = sorted(_used(a) | _used(b))
    if not axes:
        return None
    places, held = _places(a, axes), _places(b, axes)
    found = (places[:, :, None, :] == held[:, None, :, :]).all(axis=3).any(axis=2)
    bad = np.argwhere(~found)
    if not bad.size:
        return None
    x, r = (int(v) for v in bad[0])
    return x, Coord(tuple((axis, int(v)) for axis, v in zip(axes, places[x, r], strict=True)))


def _places(layout: Layout, axes: list[str]) -> np.ndarray[Any, Any]:
    """An array (element, replica, axis) of coordinates."""
    index = np.arange(layout.size)
    base = np.zeros((layout.size, len(axes)), dtype=np.int64)
    for k, axis in enumerate(axes):
        base[:, k] = layout.offset[axis]
    for it in reversed(layout.shard):
        digit, index = index % it.extent, index // it.extent
        for k, axis in enumerate(axes):
            base[:, k] += digit * it.stride[axis]
    extra = np.array([[r[axis] for axis in axes] for r in layout.replicas()], dtype=np.int64)
    return base[:, None, :] + extra[None, :, :]


def _example(target: Layout, source: Layout, kept: set[str]) -> tuple[int | None, Coord | None]:
    """An element that has to move, where listing is cheap."""
    try:
        found = _missing(_project(target, kept), _project(source, kept), "conversion(source, target)")
    except (Undecided, Unproved):
        return None, None
    return found if found is not None else (None, None)
