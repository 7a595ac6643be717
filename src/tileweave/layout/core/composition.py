"""Composition, decided exactly: the layout C with ``C(x) = A(B(x))`` at every x, or the witness that there is none.

The kernel works on rows, fastest first (`compose_rows`). Written in A's mixed radix, B's rows are right as they stand
if the digits that they add never carry (`place`: structural, for integers and expressions, and what people write).
Otherwise each row of B alone forces its pieces, since a piece ends where the slope of A first changes (`_recover`), and
what is left to decide is whether A is additive on them. Levels of A that no carry can cross split that question into
independent parts, and each part is listed, below a bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import LayoutError, Unproved
from tileweave.index import require
from tileweave.layout.core.by_points import compose_by_points
from tileweave.layout.core.checks import BOUND, Witness, need_axis, need_layouts, refuse, undecided
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord
from tileweave.layout.core.layout import Layout, layout_of
from tileweave.layout.core.replicas import normal_replica
from tileweave.layout.core.rows import (
    Row,
    are_numbers,
    coalesce,
    coord_on,
    evaluate,
    goes_on,
    iters_of,
    levels_of,
    rows_on,
    unit_rows,
    window,
)
from tileweave.layout.core.symbolic import Open, by_proof, is_expr, lowered, plain, proved, simple

WHERE = "compose(a, b)"

Pieces = list[list[Row]]
"""For each row of B the rows of C that refine it, fastest first."""

Digit = tuple[int, int, Any, int]
"""A recovered piece: (extent, step in A's domain, stride of C, the row of B that it refines)."""


def compose(a: Layout, b: Layout, *, axis: str = DEFAULT_AXIS) -> Layout:
    """``f_C(x) = union of f_A(y) over y in f_B(x)``, as multisets, for every x: the unique normal C, or the witness.

    Args:
        a: the outer layout, applied second.
        b: the inner layout; all its values lie on `axis`, in ``[0, a.size)``, and are a's row-major linear indices.
        axis: the axis of b that is a's index.

    Returns:
        the normal form of C, with ``C.size == b.size``. Regroup it with `group` to see b's modes again.

    Raises:
        NoLayout: no layout agrees at every point, or b leaves a's domain; ``witness`` has the points.
        LayoutError: b moves along another axis.
        Undecided: b is not nested in a's extents, has more than `BOUND` points, and no witness was found.
        Unproved: a or b is symbolic, and b's iters are not proved to fill a's digits without a carry.

    Example:
        >>> from tileweave.layout import strided
        >>> print(compose(strided((8, 4), (1, 8)), strided((4, 8), (1, 4))))
        (32:1@m)
        >>> compose(strided((4, 6), (4, 8)), strided((3, 2), (2, 3)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tileweave.errors.NoLayout: compose(a, b): no layout agrees with the definition: the steps into 1 and 5 ...
        >>> print(compose(strided((6, 2), (8, 2)), strided((2, 3), (1, 4))))
        (2:2@m, 3:16@m)

    Source: own; CuTe's composition is the case where its admissibility conditions hold.
    """
    need_layouts(WHERE, a, b)
    need_axis(WHERE, axis)
    return compose_in(a, b, axis, WHERE, {"a": a, "b": b})


def compose_in(a: Layout, b: Layout, axis: str, where: str, inputs: Mapping[str, object]) -> Layout:
    """`compose` on behalf of the public function `where`, with its inputs."""
    start = _on_axis(b, axis, where, inputs)
    rows, copies = rows_on(b.shard, axis), rows_on(b.replica, axis)
    _check_range(a, b, [*copies, *rows], start, where, inputs)
    unit, outer = unit_rows(a.shard)
    zero: Any = 0 if unit else ZERO
    found = compose_rows(outer, copies + rows, start, zero, where, inputs)
    if isinstance(found, Witness) and len(merged := coalesce(rows)) < len(rows):  # a layout that need not refine b
        found = compose_rows(outer, copies + merged, start, zero, where, inputs)
    if isinstance(found, Witness):
        return compose_by_points(a, b, axis, where, inputs)
    pieces, origin = found
    mine = [piece for row in pieces[len(copies) :] for piece in row]
    shard = iters_of(coalesce(mine), unit)
    offset = a.offset + coord_on(unit, origin)
    if not copies and not a.replica:
        return layout_of(shard, (), offset)
    mapped = iters_of([piece for row in pieces[: len(copies)] for piece in row if piece[0] != 1], unit)
    replica, shift = normal_replica(a.replica + mapped)
    return layout_of(shard, replica, offset + shift)


def _on_axis(b: Layout, axis: str, where: str, inputs: Mapping[str, object]) -> Any:
    """b's offset on the axis, if all of b lies on it."""
    for step in (b.offset, *(it.stride for it in b.shard), *(it.stride for it in b.replica)):
        terms = step.terms
        if terms and (len(terms) > 1 or terms[0][0] != axis):
            raise LayoutError(
                where, f"b moves along {step}", inputs=inputs, legal=f"integer strides on the axis {axis} only"
            )
    return b.offset.terms[0][1] if b.offset.terms else 0


def _check_range(a: Layout, b: Layout, rows: list[Row], start: Any, where: str, inputs: Mapping[str, object]) -> None:
    """Raise where b leaves [0, a.size)."""
    low = high = start
    size = a.size
    if any(v.__class__ is not int for row in rows for v in row) or start.__class__ is not int or is_expr(size):
        for e, s in rows:
            if proved(s >= 0):
                high = high + (e - 1) * s
            else:
                require(s <= 0, where)
                low = low + (e - 1) * s
        for inside in (simple(low) >= 0, simple(high) < size):
            require(inside, where)
        return
    for e, s in rows:
        if s > 0:
            high += (e - 1) * s
        else:
            low += (e - 1) * s
    if low < 0 or high >= size:
        below = low < 0
        x = 0
        for it in b.shard:
            s = it.stride.terms[0][1] if it.stride.terms else 0
            x = x * it.extent + ((it.extent - 1) if (s < 0 if below else s > 0) else 0)
        value = low if below else high
        raise refuse(
            where,
            Witness((x,), (value,), f"b({x}) reaches {value}, outside a's domain 0..{size - 1}"),
            inputs,
        )


# The kernel.


def compose_rows(
    outer: Sequence[Row], inner: Sequence[Row], start: Any, zero: Any, where: str, inputs: Mapping[str, object]
) -> tuple[Pieces, Any] | Witness:
    """For each inner row the rows of ``A(start + B)`` that refine it, and the value at the start; else the witness.

    Args:
        outer: the rows of A, any; the last runs on without bound. With more than one, A is read from 0 on.
        inner: the rows of B, of integer strides.
        start: the first index.
        zero: the zero of A's strides.
        where, inputs: for errors.

    Returns:
        the pieces, which are right at every point; or a `Witness` that no layout refines B: a point (one digit per
        inner row), A's value there, and the sum of what the rows give alone.

    Raises:
        Undecided: the exact search passed its bound.
        Unproved: there are symbols, and the structural step is not proved.
    """
    digits = unbounded(outer)
    symbolic = start.__class__ is not int
    backwards = False
    for n, s in inner:
        if n.__class__ is not int or s.__class__ is not int:
            symbolic = True
        elif s < 0:
            backwards = True
    for n, _t in digits:
        if n.__class__ is not int:
            symbolic = True
    if symbolic:
        return _proved_rows(digits, inner, start, zero, where)
    rows = inner
    if backwards:
        rows = [(n, abs(s)) for n, s in inner]
        start = start + sum((n - 1) * s for n, s in inner if s < 0)
        if start < 0 and len(digits) > 1:
            corner = tuple(n - 1 if s < 0 else 0 for n, s in inner)
            return Witness((corner,), (start,), "0 <= value, below which only a linear layout runs on")
    found: Any = place(digits, rows, start, zero)
    if found.__class__ is Open:
        if not are_numbers(digits):
            condition = found.expression()
            text = f"{found.condition[2]} is not proved to be a multiple of {found.condition[0]}"
            raise Unproved(where, text, inputs=inputs, facts={"condition": condition})
        a = _Outer(digits, start, evaluate(digits, start, zero), zero, where, inputs)
        found = _recovered(a, rows)
        if found.__class__ is Witness:
            return _flipped_witness(found, inner) if backwards else found
    return _flip_back(found, inner) if backwards else found


def unbounded(rows: Sequence[Row]) -> list[Row]:
    """A's rows with the same values on all numbers from 0 on; the last row, as it is written, runs on."""
    if len(rows) < 2:
        return [*rows]
    digits = coalesce(rows[:-1])
    n, d = rows[-1]
    if digits:
        run, stride = digits[-1]
        if d == run * stride if type(d) is type(stride) is type(run) is int else goes_on(run, stride, d):
            digits[-1] = (simple(run * n), stride)
            return digits
    digits.append((n, d))
    return digits


def _flip_back(found: tuple[Pieces, Any], inner: Sequence[Row]) -> tuple[Pieces, Any]:
    """The pieces of rows that were read backwards, turned around again."""
    pieces, origin = found
    out = []
    for row, (_n, s) in zip(pieces, inner, strict=True):
        if s < 0:
            for n, t in row:
                origin = origin + (n - 1) * t
            row = [(n, -1 * t) for n, t in row]
        out.append(row)
    return out, origin


def _flipped_witness(witness: Witness, inner: Sequence[Row]) -> Witness:
    points = (tuple(n - 1 - c if s < 0 else c for c, (n, s) in zip(p, inner, strict=True)) for p in witness.points)
    return Witness(tuple(points), witness.values, witness.condition)


def _proved_rows(digits: Sequence[Row], inner: Sequence[Row], start: Any, zero: Any, where: str) -> tuple[Pieces, Any]:
    """The structural step with expressions, every condition proved."""
    signs = []
    for n, s in inner:
        back = len(digits) > 1 and not proved(s >= 0)
        if back:
            require(s <= 0, where)
            start = start + (n - 1) * s
        signs.append(-1 if back else 1)
    rows = [(n, simple(s * sign)) for (n, s), sign in zip(inner, signs, strict=True)]
    start = simple(start)

    def step(lift: Any) -> Any:
        lifted = [(lift(n), t) for n, t in digits]
        return place(lifted, [(lift(n), lift(s)) for n, s in rows], lift(start), zero)

    pieces, origin = by_proof(step, where)
    plainly = [[(plain(n), _value(t)) for n, t in row] for row in pieces]
    return _flip_back((plainly, _value(origin)), [(1, sign) for sign in signs])


def _value(value: Any) -> Any:
    return value if isinstance(value, Coord) else simple(lowered(value))


def place(outer: Sequence[Row], inner: Sequence[Row], start: Any, zero: Any) -> tuple[Pieces, Any] | Open:
    """The structural step: the pieces of each inner row on the outer digits, if no sum carries; else what is open.

    A row whose reach stays below a digit's extent ends there. A stride that is a multiple of the extent passes over the
    digit. A stride that divides the extent fills the digit in whole turns, if the row has whole turns. A stride that
    moves a digit only a little on each step adds the same slant to all that follows.

    Args:
        outer: coalesced digits; the last is unbounded.
        inner: rows whose strides are not negative.
        start: the first index, not negative.
        zero: the zero of A's strides.
    """
    last = len(outer) - 1
    if last < 0:
        return [[(n, zero)] for n, _s in inner], zero
    front = outer[:last]
    used = [0] * last
    out: Pieces = []
    for n, s in inner:
        if n == 1 or s == 0:
            out.append([(n, zero)])
            continue
        row: list[Row] = []
        slant = None
        for r, (extent, stride) in enumerate(front):
            reach = s * (n - 1)
            if reach < extent:
                used[r] += reach
                row.append((n, s * stride if slant is None else slant + s * stride))
                break
            whole, low = divmod(s, extent)
            if low == 0:
                s = whole
                continue
            turn, left = divmod(extent, s)
            if left == 0:
                if n % turn != 0:
                    return Open(turn, "|", n)
                used[r] += extent - s
                row.append((turn, s * stride if slant is None else slant + s * stride))
                slant = None if slant is None else turn * slant
                n //= turn
                s = 1
                if n == 1:
                    break
            elif whole >= 1 and low * (n - 1) < extent:
                used[r] += low * (n - 1)
                slant = low * stride if slant is None else slant + low * stride
                s = whole
            else:
                return Open(extent, "|", s)
        else:
            step = s * outer[last][1]
            row.append((n, step if slant is None else slant + step))
        out.append(row)
    origin = zero
    for load, (extent, stride) in zip(used, front, strict=True):
        digit = 0
        if start:
            start, digit = divmod(start, extent)
            origin = origin + digit * stride
        if load != 0 and not load + digit < extent:
            return Open(load + digit, "<", extent)
    if start:
        origin = origin + start * outer[last][1]
    return out, origin


# Bounded search: each row recovered, then additivity decided part by part.


class _Outer(NamedTuple):
    """A as it is read from a first index on: rows, that index, the value there, the zero; and who asks, for errors."""

    rows: Sequence[Row]
    start: int
    first: Any
    zero: Any
    where: str
    inputs: Mapping[str, object]

    def at(self, step: int) -> Any:
        return evaluate(self.rows, self.start + step, self.zero)


def _recovered(a: _Outer, inner: Sequence[Row]) -> tuple[Pieces, Any] | Witness:
    """The pieces that each row alone forces, if A is additive on them; else the witness."""
    first = a.first
    digits: list[Digit] = []
    linear: set[int] = set()  # rows whose pieces are proved right at every point of the row
    for k, (n, s) in enumerate(inner):
        if n == 1 or s == 0:
            continue
        found = _by_levels(a, n, s)
        if found is None:
            found = _recover(a, n, s)
        else:
            linear.add(k)
        if isinstance(found, Witness):
            points = tuple(tuple(u if j == k else 0 for j in range(len(inner))) for u in found.points)
            values = found.values if k not in linear else tuple(first + v for v in found.values)
            return Witness(points, values, f"along row {k}, {found.condition}")
        step = s
        for q, v in found:
            digits.append((q, step, v, k))
            step *= q
    clash = _not_additive(a, digits, linear)
    if clash is not None:
        point = [0] * len(inner)
        for c, (_q, t, _v, k) in clash:
            point[k] += c * (t // inner[k][1])
        at = sum(c * t for c, (_q, t, _v, _k) in clash)
        forced = sum((c * v for c, (_q, _t, v, _k) in clash), start=first)
        return Witness((tuple(point),), (a.at(at), forced), "A(x + y) = A(x) + A(y)")
    pieces: Pieces = [[] for _row in inner]
    for q, _t, v, k in digits:
        pieces[k].append((q, v))
    return [row or [(n, a.zero)] for row, (n, _s) in zip(pieces, inner, strict=True)], first


def _by_levels(a: _Outer, n: int, s: int) -> list[Row] | Witness | None:
    """The pieces of one row at any size, if its stride nests with the levels of A that it reaches; else None."""
    zero, reach = a.zero, a.start + (n - 1) * s
    levels = [(q, c) for q, c in levels_of([*a.rows[:-1], (2, a.rows[-1][1])], zero) if q <= reach]
    if any(q % s and s % q for q, _ in levels):
        return None
    slant = zero
    rest = []
    for q, c in levels:
        if s % q == 0:
            slant = slant + (s // q) * c
        else:
            rest.append((q // s, c))
    found = window([(1, slant), *rest] if slant else rest, a.start // s, n, zero)
    return found if isinstance(found, Witness) else found or [(n, zero)]


def _recover(a: _Outer, n: int, s: int) -> list[Row] | Witness:
    """The only pieces that ``i -> A(start + s i)`` on [0, n) can have, each ending where the slope first changes."""
    out: list[Row] = []
    step = s
    done = 1
    while n > 1:
        value = a.at(step) - a.first
        change = _first_change(a, n, step)
        if change is None:
            out.append((n, value))
            break
        if n % change:
            points = (done, change * done)
            return Witness(
                points, (a.at(step), a.at(change * step)), f"the slope changes at {change}: {change} divides {n}"
            )
        out.append((change, value))
        n //= change
        step *= change
        done *= change
    return out


def _first_change(a: _Outer, n: int, step: int) -> int | None:
    """The least ``i < n`` at which ``A(start + i step)`` leaves the line through its first two values, or None.

    The slope changes at i only where ``floor((start + i step) / P)`` jumps, P a level of A, by more or less than it did
    at i = 1.
    """
    jumps: list[tuple[int, int, int, int, Any]] = []
    level = 1
    usual: Any = None
    for (extent, stride), (_n, ahead) in pairwise(a.rows):
        level *= extent
        low, base = step % level, a.start % level
        if low:
            weight = ahead - extent * stride
            at = -(-(level - base) // low)
            if at == 1:
                usual = weight if usual is None else usual + weight
            jumps.append((at, 1, low, level, weight))
    heapq.heapify(jumps)
    base_of = {level: a.start % level for _a, _k, _l, level, _w in jumps}
    last = 1
    for _round in range(BOUND):
        at = jumps[0][0] if jumps else n
        if usual and at > 1 and last + 1 < at and last + 1 < n:
            return last + 1  # the first step crossed a level, this one does not
        if at >= n:
            return None
        jump: Any = None
        while jumps and jumps[0][0] == at:
            _at, k, low, level, weight = jumps[0]
            jump = weight if jump is None else jump + weight
            heapq.heapreplace(jumps, (-(-((k + 1) * level - base_of[level]) // low), k + 1, low, level, weight))
        if at > 1 and (jump != usual if usual else jump):
            return at
        last = at
    raise undecided(a.where, "changes of slope that cancel each other", a.inputs)


def _not_additive(a: _Outer, digits: list[Digit], linear: set[int]) -> list[tuple[int, Digit]] | None:
    """Digits at which A is not additive on the recovered pieces, or None; decided between levels that none crosses."""
    level = 1
    members = 0
    rest = digits
    for r, (extent, _t) in enumerate(a.rows):
        level *= extent
        members += 1
        final = r == len(a.rows) - 1
        below = rest if final else [digit for digit in rest if digit[1] % level]
        if not final and a.start % level + sum(t * (q - 1) for q, t, _v, _k in below) >= level:
            continue
        one_row = len({digit[3] for digit in below}) == 1 and below[0][3] in linear
        if members > 1 and len(below) > 1 and not one_row:
            bad = _differs(a, below)
            if bad is not None:
                return list(zip(bad, below, strict=True))
        rest = [digit for digit in rest if not digit[1] % level]
        members = 0
    return None


def _differs(a: _Outer, digits: list[Digit]) -> tuple[int, ...] | None:
    """The first point of the box of digits where A is not the sum of their strides: corners first, then all points."""
    extents = [q for q, _t, _v, _k in digits]
    for point in _corners(extents):
        at = sum(c * t for c, (_q, t, _v, _k) in zip(point, digits, strict=True))
        forced = sum((c * v for c, (_q, _t, v, _k) in zip(point, digits, strict=True)), start=a.first)
        if a.at(at) != forced:
            return tuple(point)
    if prod(extents) > BOUND:
        raise undecided(a.where, f"comparing {prod(extents)} points", a.inputs)
    return _listed(a, digits, extents)


def _corners(extents: list[int]) -> list[list[int]]:
    """A few telling points: the far corner, and pairs of digits at 1 or at their ends."""
    out = [[q - 1 for q in extents]]
    for i, q in enumerate(extents):
        for j in range(i):
            for x, y in product({1, q - 1}, {1, extents[j] - 1}):
                point = [0] * len(extents)
                point[i], point[j] = x, y
                out.append(point)
    return out


def _listed(a: _Outer, digits: list[Digit], extents: list[int]) -> tuple[int, ...] | None:
    """The first box point, in row-major order, at which the two sides differ."""
    outer, start, first = a.rows, a.start, a.first
    vector = isinstance(first, Coord)
    axes = sorted({axis for _n, d in outer for axis in d.axes}) if vector else [""]
    top = start + sum(t * (q - 1) for q, t, _v, _k in digits)
    for axis in axes:
        pairs = [(n, d[axis] if vector else d) for n, d in outer]
        reach = abs(first[axis] if vector else first) + sum(abs(d) for _n, d in pairs) * (top + 1)
        kind: Any = np.int64 if reach < 1 << 62 else object
        at, want = np.full((), start, dtype=kind), np.full((), first[axis] if vector else first, dtype=kind)
        for q, t, v, _k in digits:
            steps = np.arange(q).astype(kind)
            at = at[..., None] + steps * t
            want = want[..., None] + steps * (v[axis] if vector else v)
        got = np.zeros_like(at)
        for k, (n, d) in enumerate(pairs):
            got = got + (at % n if k < len(pairs) - 1 else at) * d
            at = at // n
        bad = np.flatnonzero(got != want)
        if bad.size:
            return tuple(int(x) for x in np.unravel_index(int(bad[0]), tuple(extents)))
    return None
