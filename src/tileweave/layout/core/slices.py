"""Slices of a layout: the layout of a box where there is one, else the fewest pieces that there are.

A layout that groups by the shape is a sum of one function per dimension. Then the slice of a box is a layout if and
only if each dimension's interval is one. (If the slice is a layout C and a sum over dimensions, then C groups by the
box: a level of C that is neither multiple nor divisor of a boundary would make some step in a block depend on the
block.) Each interval is decided by `window` at any size.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import chain, pairwise, product
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import LayoutError, Undecided, Unproved
from tileweave.index import require
from tileweave.layout.core.checks import PIECES, Witness, check_shape, need_layouts, refuse
from tileweave.layout.core.combine import Blocks, blocks_of
from tileweave.layout.core.composition import compose_in, compose_rows
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord, Shape, integers
from tileweave.layout.core.exact import normal_shard
from tileweave.layout.core.layout import Iter, Layout, iter_of, layout_of
from tileweave.layout.core.rows import (
    Row,
    are_numbers,
    coalesce,
    coord_on,
    iters_of,
    levels_of,
    prefixes,
    rows_on,
    unit_rows,
    window,
)
from tileweave.layout.core.symbolic import Open, by_proof, is_expr, plain, same


class Piece(NamedTuple):
    """The box ``[begin, begin + extent)`` in the coordinates of the whole, and its layout, which admits `extent`."""

    begin: tuple[int, ...]
    extent: tuple[int, ...]
    layout: Layout


class Pieces(NamedTuple):
    """Disjoint boxes that cover a box; `fewest` says that no cover with fewer cuts per dimension exists, proved."""

    pieces: tuple[Piece, ...]
    fewest: bool


def slice_layout(
    layout: Layout, shape: Shape, begin: int | Sequence[int], extent: Shape, *, written: bool = False
) -> Layout:
    """The layout S of a box: ``S(u) = layout(u + begin)`` for u in the box's shape `extent`; or the witness.

    Args:
        layout: any layout; R is kept.
        shape: a shape that the layout admits, last dimension fastest.
        begin: the first coordinate of the box.
        extent: how many coordinates the box has per dimension, at least one.
        written: keep the iters as they are written where the box ends between them; by default they are merged.

    Returns:
        a layout that admits `extent`, and groups by it if the layout groups by `shape`.

    Raises:
        LayoutError: the box is empty or leaves the shape.
        NoLayout: the box has no single layout; `slice_pieces` covers it with several.

    Example:
        >>> L = Layout(((2, 192), (8, 8), (3, 64), (8, 1)))
        >>> print(slice_layout(L, (16, 24), (0, 8), (8, 16)))
        (8:8@m, 2:64@m, 8:1@m) + 64@m
        >>> print(slice_layout(Layout(((4, {"t": 1}), (2, {"t": 4}))), (8,), (1,), (4,)))
        (2:1@t, 2:-3@t) + 4@t

    Source: Axe, section 3.3 and appendix E; exact where algorithm 4 is sufficient only.
    """
    return slice_in(layout, shape, begin, extent, "slice_layout(layout, shape, begin, extent)", written)


def slice_in(
    layout: Layout, shape: Shape, begin: int | Sequence[int], extent: Shape, where: str, written: bool = False
) -> Layout:
    """`slice_layout` on behalf of the public function `where`."""
    shape, begin, extent = _check_box(layout, shape, begin, extent, where)
    blocks = blocks_of(layout, shape, where, written)
    if not isinstance(blocks, tuple):
        return compose_in(layout, _box(shape, begin, extent), DEFAULT_AXIS, where, _shown(layout, shape, begin, extent))
    shard: list[Iter] = []
    offset = layout.offset
    for rank, block in enumerate(blocks):
        found, start = _interval(block, begin[rank], extent[rank], shape[rank], where)
        if isinstance(found, Witness):
            raise refuse(where, _in_box(layout, found, rank, shape, begin), _shown(layout, shape, begin, extent))
        shard += found
        if start:
            offset = offset + start
    return layout_of(tuple(shard), layout.replica, offset)


def _shown(layout: Layout, shape: object, begin: object, extent: object) -> dict[str, object]:
    return {"layout": layout, "shape": shape, "begin": begin, "extent": extent}


def _check_box(
    layout: Layout, shape: Shape, begin: int | Sequence[int], extent: Shape, where: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    need_layouts(where, layout)
    whole = check_shape(shape, layout.size, where, layout)
    begin, extent = integers(begin, where, "begin"), integers(extent, where, "extent")
    if not len(whole) == len(begin) == len(extent):
        inputs = _shown(layout, whole, begin, extent)
        raise LayoutError(where, "the ranks differ", inputs=inputs, legal=f"{len(whole)} entries each")
    for n, b, t in zip(whole, begin, extent, strict=True):
        if n.__class__ is not int or b.__class__ is not int or t.__class__ is not int:
            _require_interval(n, b, t, where)
        elif b < 0 or t < 1 or b + t > n:
            inputs = _shown(layout, whole, begin, extent)
            raise LayoutError(where, f"[{b}, {b} + {t}) is no interval of [0, {n})", inputs=inputs)
    return whole, begin, extent


def _require_interval(size: Any, begin: Any, extent: Any, where: str) -> None:
    """Raise `Unproved` unless an interval with symbols is proved to lie within [0, size) and to hold a point."""
    for condition in (begin >= 0, extent >= 1, begin + extent <= size):
        require(condition, where)


def _box(shape: Sequence[int], begin: Sequence[int], extent: Sequence[int]) -> Layout:
    """The linear indices of a box, as a layout on the axis m."""
    pitch = prod(shape)
    start = 0
    iters = []
    for n, b, t in zip(shape, begin, extent, strict=True):
        pitch = pitch // n
        start += b * pitch
        iters.append(iter_of(t, Coord.of(pitch)))
    return layout_of(tuple(iters), (), Coord.of(start))


def _interval(
    block: tuple[Iter, ...], begin: int, extent: int, size: int, where: str
) -> tuple[tuple[Iter, ...] | Witness, Coord]:
    """The iters of ``[begin, begin + extent)`` of one block, or the witness, and the value at begin."""
    if extent is size or extent == size or (is_expr(size) and same(extent, size)):
        return block, ZERO
    if not block:
        return (), ZERO
    if len(block) == 1 and extent.__class__ is begin.__class__ is block[0].extent.__class__ is int:
        stride = block[0].stride
        return ((iter_of(extent, stride),) if extent > 1 else ()), begin * stride
    unit, rows = unit_rows(block)
    numbers = are_numbers(rows)
    if not numbers:  # expressions compare as coordinates, simplified
        unit, rows = "", rows_on(block, "")
    zero: Any = 0 if unit else ZERO
    found: Any
    if numbers and begin.__class__ is int and extent.__class__ is int:
        found, start = _aligned(rows, begin, extent, zero)
    else:

        def step(lift: Any) -> Any:
            found, start = _aligned([(lift(n), d) for n, d in rows], lift(begin), lift(extent), zero)
            by_window = begin.__class__ is extent.__class__ is int and all(n.__class__ is int for n, _ in rows)
            return found if found.__class__ is Open and not by_window else (found, start)

        found, start = by_proof(step, where)
    if found.__class__ is Open:
        kept: Any = window(levels_of(rows, zero), begin, extent, zero)
        if kept.__class__ is Witness and not numbers:
            raise Unproved(where, f"not proved: {kept.condition}", facts={"condition": "the steps are equal"})
        return (kept if kept.__class__ is Witness else iters_of(kept, unit)), coord_on(unit, start)
    k, width = found
    width = plain(width)
    head = (iter_of(width, block[len(rows) - 1 - k].stride),) if width.__class__ is not int or width > 1 else ()
    return head + block[len(rows) - k :], coord_on(unit, start)


def _aligned(rows: Sequence[Row], begin: Any, extent: Any, zero: Any) -> tuple[tuple[int, Any] | Open, Any]:
    """The structural step: an interval that begins where a digit turns and ends within the next slower one.

    Returns:
        that digit and how many of its steps are taken, or what is open; and the value at begin.
    """
    start = zero
    found: Any = None
    pitch: Any = 1
    last = len(rows) - 1
    for k, (n, stride) in enumerate(rows):
        begin, digit = divmod(begin, n) if k < last else (0, begin)
        turned = digit == 0
        if not turned:
            start = start + digit * stride
        if found is None:
            width, left = divmod(extent, pitch)
            if left == 0 and (k == last or digit + width <= n):
                found = k, width
            elif not turned or k == last:
                found = Open(digit + width, "<=", n) if left == 0 else Open(pitch, "|", extent)
            pitch = pitch * n
    return found, start


def _in_box(layout: Layout, witness: Witness, rank: int, shape: Sequence[int], begin: Sequence[int]) -> Witness:
    """A witness along one dimension, as linear indices of the layout at the box's first corner."""
    pitch = prod(shape[rank + 1 :])
    corner = 0
    for n, b in zip(shape, begin, strict=True):
        corner = corner * n + b
    base = layout_of(layout.shard, (), layout.offset)
    points = tuple(corner + u * pitch for u in witness.points)
    return Witness(
        points,
        tuple(base(x) for x in points),
        f"along dimension {rank}, counted from the corner of the box, {witness.condition}",
    )


# Pieces.


def slice_pieces(layout: Layout, shape: Shape, begin: int | Sequence[int], extent: Shape) -> Pieces:
    """Layouts on disjoint boxes that cover the box: one if the slice is a layout, else as few cuts as were found.

    Where the layout groups by the shape, each dimension is cut on its own: into the fewest intervals, proved so for
    up to 4096 points, or up to three intervals at any size. Beyond that, only cuts near turns of the digits are tried,
    and `fewest` is False.

    Args:
        layout: any layout.
        shape: a shape that the layout admits, last dimension fastest.
        begin: the first coordinate of the box.
        extent: how many coordinates the box has per dimension.

    Raises:
        LayoutError: the box is empty or leaves the shape.
        Undecided: more than 4096 pieces would be needed.

    Example:
        >>> parts = slice_pieces(Layout(((4, 100), (4, 1))), (16,), (2,), (10,))
        >>> for piece in parts.pieces:
        ...     print(piece.begin, piece.extent, piece.layout)
        (2,) (2,) (2:1@m) + 2@m
        (4,) (8,) (2:100@m, 4:1@m) + 100@m
        >>> parts.fewest
        True

    Source: own.
    """
    where = "slice_pieces(layout, shape, begin, extent)"
    shape, begin, extent = _check_box(layout, shape, begin, extent, where)
    blocks = blocks_of(layout, shape, where)
    if not isinstance(blocks, tuple):
        return _halves(layout, shape, begin, extent, where)
    cuts, proved = [], True
    for rank, block in enumerate(blocks):
        intervals, sure = _cut_interval(block, begin[rank], extent[rank], shape[rank])
        cuts.append(intervals)
        proved = proved and sure
    if prod(len(c) for c in cuts) > PIECES:
        raise Undecided(
            where, f"more than {PIECES} pieces", inputs=_shown(layout, shape, begin, extent), facts={"bound": PIECES}
        )
    return Pieces(tuple(_assemble(layout, blocks, shape, choice, where) for choice in product(*cuts)), proved)


def _assemble(
    layout: Layout, blocks: Blocks, shape: Sequence[int], box: Sequence[tuple[int, int]], where: str
) -> Piece:
    parts = [_interval(block, b, t, n, where) for block, (b, t), n in zip(blocks, box, shape, strict=True)]
    offset = layout.offset
    for _, start in parts:
        offset = offset + start
    shard = tuple(chain.from_iterable(found for found, _ in parts))
    whole = layout_of(shard, layout.replica, offset)  # type: ignore[arg-type]
    return Piece(tuple(b for b, _ in box), tuple(t for _, t in box), whole)


def _cut_interval(block: tuple[Iter, ...], begin: int, extent: int, size: int) -> tuple[list[tuple[int, int]], bool]:
    """The fewest intervals that are layouts, as (begin, extent), and whether that is proved."""
    where = "slice_pieces(layout, shape, begin, extent)"
    if not isinstance(_interval(block, begin, extent, size, where)[0], Witness):
        return [(begin, extent)], True
    rows = _Runs.of(block, size)
    cuts = _one_cut(rows.ahead(begin, extent), rows.behind(begin + extent, extent), extent)
    proved = True
    if cuts is None and extent <= PIECES:
        cuts = _fewest_cuts(rows, begin, extent)
    elif cuts is None:
        cuts = _likely_cuts(rows, block, begin, extent, where)
        proved = len(cuts) <= 2
    marks = [begin, *(begin + m for m in cuts), begin + extent]
    return [(low, high - low) for low, high in pairwise(marks)], proved


Lengths = list[tuple[int, int, int]]  # (step, low, high): the multiples of step in (low, high]


class _Runs(NamedTuple):
    """A block read forwards and backwards: which lengths are layouts, from a point on or up to a point."""

    size: int
    zero: Any
    forwards: list[tuple[int, Any]]
    backwards: list[tuple[int, Any]]

    @classmethod
    def of(cls, block: tuple[Iter, ...], size: int) -> _Runs:
        unit, rows = unit_rows(block)
        zero: Any = 0 if unit else ZERO
        return cls(size, zero, levels_of(rows, zero), levels_of([(n, -s) for n, s in rows], zero))

    def ahead(self, begin: int, most: int) -> Lengths:
        """The lengths of layouts that begin here."""
        return prefixes(self.forwards, begin, most, self.zero)

    def behind(self, end: int, most: int) -> Lengths:
        """The lengths of layouts that end here."""
        return prefixes(self.backwards, self.size - end, most, self.zero)


def _one_cut(ahead: Lengths, behind: Lengths, extent: int) -> list[int] | None:
    """The least m such that m from the begin on, and the rest up to the end, are layouts; None if there is none."""
    found = []
    for p, low, high in ahead:
        for q, least, most in behind:
            g = gcd(p, q)
            if extent % g:
                continue
            first = max(low + 1, extent - most)  # m = p*k with p*k = extent (mod q)
            m = p * (extent // g * pow(p // g, -1, q // g) % (q // g) if q > g else 0)
            m += max(0, -((m - first) // lcm(p, q))) * lcm(p, q)
            if first <= m <= min(high, extent - least - 1):
                found.append(m)
    return [min(found)] if found else None


def _fewest_cuts(rows: _Runs, begin: int, extent: int) -> list[int]:
    """The fewest cuts, by a search through all places in order of the number of intervals before them."""
    before = np.full(extent + 1, -1)
    before[0] = 0
    layer = [0]
    while before[extent] < 0:
        for place in layer:
            for step, low, high in rows.ahead(begin + place, extent - place):
                reached = before[place + low + step : place + high + 1 : step]
                reached[reached < 0] = place
        layer = np.flatnonzero(np.isin(before, layer) & (np.arange(extent + 1) > 0)).tolist()
    cuts, place = [], int(before[extent])
    while place:
        cuts.append(place)
        place = int(before[place])
    return cuts[::-1]


def _likely_cuts(rows: _Runs, block: tuple[Iter, ...], begin: int, extent: int, where: str) -> list[int]:
    """The fewest cuts among those near turns of digits, and where the first or the last interval is longest."""
    end = begin + extent
    found = {0, extent}
    found |= {high - high % step for step, low, high in rows.ahead(begin, extent) if high - high % step > low}
    found |= {extent - (high - high % step) for step, low, high in rows.behind(end, extent)}
    level = 1
    for it in reversed(block):
        for mark in (-(-begin // level) * level, end // level * level):
            found |= {m - begin for m in (mark - level, mark, mark + level) if begin <= m <= end}
        level *= it.extent
    marks = sorted(found)
    best: dict[int, list[int]] = {0: []}
    for here in marks:  # grows: where no mark can be reached, the longest interval before the next one makes one
        if here not in best:
            continue
        lengths = rows.ahead(begin + here, extent - here)
        later = marks[bisect_right(marks, here) :]
        reached = [mark for mark in later if any(low < mark - here <= high and (mark - here) % step == 0
                                                 for step, low, high in lengths)]  # fmt: skip
        if later and not reached:
            room = later[0] - here
            reached = [
                here + max(most for step, low, high in lengths if (most := min(high, room) // step * step) > low)
            ]
            insort(marks, reached[0])
        trail = best[here]
        if len(trail) > PIECES:
            raise Undecided(where, f"more than {PIECES} pieces", facts={"bound": PIECES})
        for mark in reached:
            if mark not in best or len(trail) + 1 < len(best[mark]):
                best[mark] = [*trail, mark]
    return best[extent][:-1]


def _halves(
    layout: Layout, shape: tuple[int, ...], begin: tuple[int, ...], extent: tuple[int, ...], where: str
) -> Pieces:
    """Pieces of a box under a shape that does not group the layout.

    The slowest dimension is halved until the parts are layouts, or runs of neighbours, which are cut as one dimension.
    """
    unit, rows = unit_rows(layout.shard)
    zero: Any = 0 if unit else ZERO
    inputs = _shown(layout, shape, begin, extent)
    whole = normal_shard(layout)
    weights = [prod(shape[k + 1 :]) for k in range(len(shape))]
    todo = [(begin, extent)]
    done: list[Piece] = []
    while todo:
        b, t = todo.pop()
        start = sum(x * w for x, w in zip(b, weights, strict=True))
        box = [(n, w) for n, w in zip(t, weights, strict=True)][::-1]
        try:
            found = compose_rows(rows, box, start, zero, where, inputs)
        except Undecided:
            found = Witness((), (), "")
        if found.__class__ is not Witness:
            shard = iters_of(coalesce([piece for row in found[0] for piece in row]), unit)
            piece = layout_of(shard, layout.replica, layout.offset + coord_on(unit, found[1]))
            done.append(Piece(b, t, piece))
            continue
        rank = next(k for k, n in enumerate(t) if n > 1)
        if rank == len(t) - 1:
            for low, run in _cut_interval(whole, start, t[rank], layout.size)[0]:
                parts, first = _interval(whole, low, run, layout.size, where)
                piece = layout_of(parts, layout.replica, layout.offset + first)  # type: ignore[arg-type]
                done.append(Piece(_at(b, rank, b[rank] + low - start), _at(t, rank, run), piece))
        else:
            low = t[rank] // 2
            todo.append((_at(b, rank, b[rank] + low), _at(t, rank, t[rank] - low)))
            todo.append((b, _at(t, rank, low)))
        if len(done) + len(todo) > PIECES:
            raise Undecided(where, f"more than {PIECES} pieces", inputs=inputs, facts={"bound": PIECES})
    return Pieces(tuple(done), len(done) <= 2)


def _at(values: tuple[int, ...], k: int, value: int) -> tuple[int, ...]:
    return (*values[:k], value, *values[k + 1 :])
