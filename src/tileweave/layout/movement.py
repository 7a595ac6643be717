"""What it takes to turn one layout of a tensor into another: nothing, registers, lanes, shared memory or devices.

Both layouts send logical elements to named hardware axes. For every level of the machine the question is the same: with
the axes below that level forgotten, is every place where an element must be a place where it already is? The
outermost level at which it is not decides the means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import Incongruent, LayoutError, Undecided
from tileweave.layout.exact import same_map
from tileweave.layout.layout import Coord, Iter, Layout

__all__ = ["LEVELS", "Conversion", "Level", "Means", "conversion"]

Level = Literal["register", "lane", "warp", "device"]
Means = Literal["nothing", "registers", "lanes", "shared", "devices"]

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


def conversion(source: Layout, target: Layout, levels: Mapping[str, Level] | None = None) -> Conversion:
    """The cheapest means by which a tensor held as `source` comes to be held as `target`; replicas count as holders.

    Args:
        source, target: core layouts of one tensor: equal sizes, indices row-major.
        levels: axis name -> "register", "lane", "warp" or "device"; left out, `LEVELS`.

    Raises:
        Incongruent: the sizes differ. LayoutError: an axis without a level.
        Undecided: replicas, and more than `BOUND` comparisons.

    Example:
        >>> rows = Layout(((4, {"lane": 1}), (2, {"reg": 1})))
        >>> columns = Layout(((4, {"reg": 1}), (2, {"lane": 1})))
        >>> conversion(rows, rows).means, conversion(rows, columns).means
        ('nothing', 'lanes')

    Source: own.
    """
    where = "conversion(source, target)"
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise LayoutError(where, f"{layout!r} is no core layout", legal="layouts on named axes")
    if source.size != target.size:
        raise Incongruent(
            where, f"sizes {source.size} and {target.size} differ", inputs={"source": source, "target": target}
        )
    if levels is not None and not isinstance(levels, Mapping):
        raise LayoutError(where, f"levels {levels!r} are no mapping", legal="axis name -> level")
    level_of = dict(LEVELS if levels is None else levels)
    for axis in {*_used(source), *_used(target)}:
        if level_of.get(axis) not in ORDER:
            raise LayoutError(
                where, f"axis {axis} has no level", legal=f"levels={{{axis!r}: one of {', '.join(ORDER)}}}"
            )
    for k in reversed(range(len(ORDER))):
        kept = {axis for axis, level in level_of.items() if ORDER.index(level) >= k}
        if not _contained(target, source, kept, where):
            at, place = _example(target, source, kept)
            return Conversion(MEANS[ORDER[k]], ORDER[k], at, place)
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
    except Undecided:
        return None, None
    return found if found is not None else (None, None)
