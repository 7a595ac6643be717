"""Composition, decided exactly: the layout C with ``C(x) = A(B(x))`` at every x, or the witness that there is none.

Write B's iters in A's mixed radix. If the digits that they add never carry, A is linear on them and C is read off (the
fast path, which covers what people write). Otherwise A's levels are cut where no carry crosses, and each piece between
cuts is decided alone: one iter by `window`, at any size; several by listing their points. If a piece is not linear
the whole function is recovered from its table, or refused with a witness.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import gcd, prod
from random import Random
from typing import Any

import numpy as np

from tileweave.errors import LayoutError
from tileweave.layout.core.carries import Witness, levels_of, window
from tileweave.layout.core.checks import need_axis, need_layouts
from tileweave.layout.core.coord import ZERO
from tileweave.layout.core.exact import BOUND, from_table, merge_shard, normal_replica, probe, refuse, undecided
from tileweave.layout.core.layout import DEFAULT_AXIS, Coord, Iter, Layout, coord_of_terms, iter_of, layout_of
from tileweave.layout.core.parametric import compose_symbolic, has_symbols
from tileweave.layout.core.symbolic import is_expr

__all__ = ["compose", "iters_on", "only_axis"]

Row = tuple[int, int]  # (extent, stride) of an iter of B, in elements of A's domain
Piece = tuple[int, Any]  # (extent, stride) of an iter of C; the stride an int on A's only axis, or a Coord
WHERE = "compose(a, b)"


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
    symbolic = has_symbols(a) or has_symbols(b) or is_expr(b.offset[axis])
    if symbolic and (is_expr(a.size) or has_symbols(b) or is_expr(b.offset[axis])):
        return compose_symbolic(a, b, axis, WHERE)
    rows = _rows(b.shard, axis, b)
    copies = _rows(b.replica, axis, b)
    start = _on_axis(b.offset, axis, b)
    _check_range(a, b, [*copies, *rows], start)
    outer = merge_shard(a.shard)
    unit = "" if symbolic else only_axis(outer)
    digits = [(it.extent, it.stride[unit] if unit else it.stride) for it in reversed(outer)]
    zero: Any = 0 if unit else ZERO
    joint = copies + rows if copies else rows
    found = _no_carry(digits, joint, start, zero)
    if found is None and symbolic:  # only a's strides are
        return compose_symbolic(a, b, axis, WHERE)
    if found is None:
        rows = _rows(merge_shard(b.shard), axis, b)
        found = _by_parts(digits, copies + rows, start, zero)
    if found is None:
        return _by_table(a, b, axis)
    pieces, origin = found
    split = len(copies)
    shard = _build([p for row in pieces[split:] for p in row], unit)
    if symbolic:
        shard = merge_shard(shard)
    offset = a.offset + (coord_of_terms(((unit, origin),)) if unit and origin else origin or ZERO)
    if not split and not a.replica:
        return layout_of(shard, (), offset)
    mapped = _build([p for row in pieces[:split] for p in row], unit, merge=False)
    replica, shift = normal_replica(a.replica + mapped)
    return layout_of(shard, replica, offset + shift)


def _on_axis(stride: Coord, axis: str, b: Layout) -> int:
    terms = stride.terms
    if not terms:
        return 0
    if len(terms) == 1 and terms[0][0] == axis and terms[0][1].__class__ is int:
        return terms[0][1]
    raise LayoutError(
        WHERE, f"b moves along {stride}", inputs={"b": b}, legal=f"integer strides on the axis {axis} only"
    )


def _rows(iters: Sequence[Iter], axis: str, b: Layout) -> list[Row]:
    return [(it.extent, _on_axis(it.stride, axis, b)) for it in iters]


def _check_range(a: Layout, b: Layout, rows: list[Row], start: int) -> None:
    low = high = start
    for e, s in rows:
        if s > 0:
            high += (e - 1) * s
        else:
            low += (e - 1) * s
    if low < 0 or high >= a.size:
        below = low < 0
        x = 0
        for it, (e, s) in zip(b.shard, rows[len(rows) - len(b.shard) :], strict=True):
            x = x * it.extent + ((e - 1) if (s < 0 if below else s > 0) else 0)
        value = low if below else high
        raise refuse(
            WHERE,
            Witness((x,), (value,), f"b({x}) reaches {value}, outside a's domain 0..{a.size - 1}"),
            {"a": a, "b": b},
        )


def only_axis(iters: Sequence[Iter]) -> str:
    """The one axis that all strides use; an empty string if there are several."""
    axis = ""
    for it in iters:
        terms = it.stride.terms
        if len(terms) > 1 or (terms and axis and terms[0][0] != axis):
            return ""
        if terms:
            axis = terms[0][0]
    return axis or DEFAULT_AXIS


def _build(pieces: Sequence[Piece], unit: str, merge: bool = True) -> tuple[Iter, ...]:
    """Iters from pieces, slowest first; merged into normal form unless they are replicas."""
    out: list[list[Any]] = []
    for e, t in pieces:
        if e == 1:
            continue
        if merge and out and out[-1][1] == e * t:
            out[-1][0] *= e
            out[-1][1] = t
        else:
            out.append([e, t])
    return iters_on(out, unit)


def iters_on(rows: Sequence[Sequence[Any]], unit: str) -> tuple[Iter, ...]:
    """Iters from (extent, stride) pairs, the strides integers on the axis `unit`, or coordinates if it is empty."""
    if unit:
        return tuple([iter_of(e, coord_of_terms(((unit, t),)) if t else ZERO) for e, t in rows])
    return tuple([iter_of(e, t) for e, t in rows])


# The fast path.


def _no_carry(digits: list[Piece], rows: list[Row], start: int, zero: Any) -> tuple[list[list[Piece]], Any] | None:
    """C's pieces per row of B and its origin, if no carry can ever happen; else None.

    Each row is written in A's radix: a stride below a digit's extent fills it in whole turns before it moves on.
    """
    last = len(digits) - 1
    if last < 0:
        return [[(e, zero)] for e, _ in rows], zero
    used = [0] * (last + 1)
    origin = zero
    out: list[list[Piece]] = []
    flipped = [e for e in rows if e[1] < 0]
    start += sum((e - 1) * s for e, s in flipped)
    for e, s in rows:
        row = _write_row(digits, e, abs(s), used, last, zero)
        if row is None:
            return None
        if s < 0:
            for k, t in row:
                origin = origin + (k - 1) * t
            row = [(k, -t) for k, t in row]
        out.append(row)
    for j in range(last):
        extent, t = digits[j]
        start, digit = divmod(start, extent)
        if used[j] + digit >= extent:
            return None
        if digit:
            origin = origin + digit * t
    if start:
        origin = origin + start * digits[last][1]
    return out, origin


def _write_row(digits: list[Piece], e: int, s: int, used: list[int], last: int, zero: Any) -> list[Piece] | None:
    """One iter ``e : s`` as pieces on A's digits, slowest first, counted in `used`; None if it carries."""
    if not s or e == 1:
        return [(e, zero)]
    out: list[Piece] = []
    slant = zero  # what the digits already passed add per step
    for j in range(last):
        extent, t = digits[j]
        whole, low = divmod(s, extent)
        if not low:
            s = whole
        elif (e - 1) * s < extent:
            used[j] += (e - 1) * s
            out.append((e, slant + s * t))
            break
        elif not whole:
            turn, rest = divmod(extent, s)
            if rest or e % turn:
                return None
            used[j] += extent - s
            out.append((turn, slant + s * t))
            slant = turn * slant
            e //= turn
            s = 1
            if e == 1:
                break
        elif (e - 1) * low < extent:
            used[j] += (e - 1) * low
            slant = slant + low * t
            s = whole
        else:
            return None
    else:
        out.append((e, slant + s * digits[last][1]))
    out.reverse()
    return out


# Pieces between cuts.


def _by_parts(digits: list[Piece], rows: list[Row], start: int, zero: Any) -> tuple[list[list[Piece]], Any] | None:
    """As `_no_carry`, with the carries inside each part decided exactly; None if some part is not linear."""
    start += sum((e - 1) * s for e, s in rows if s < 0)
    out: list[list[Piece]] = [[(e, zero)] for e, _ in rows]
    origin = zero
    positive = [(k, e, abs(s)) for k, (e, s) in enumerate(rows) if s and e > 1]
    for part, members, base in _parts(digits, positive, start):
        solved = _solve_part(part, [(e, s) for _, e, s in members], base, zero)
        if solved is None:
            return None
        pieces, first = solved
        origin = origin + first
        for (k, _, _), row in zip(members, pieces, strict=True):
            out[k] = row
    for k, (_, s) in enumerate(rows):
        if s < 0:
            for e, t in out[k]:
                origin = origin + (e - 1) * t
            out[k] = [(e, -t) for e, t in out[k]]
    return out, origin


def _parts(
    digits: list[Piece], rows: list[tuple[int, int, int]], start: int
) -> list[tuple[list[Piece], list[tuple[int, int, int]], int]]:
    """A's digits cut at every level that no sum carries across: (digits, rows with strides in their unit, offset)."""
    out = []
    first, unit, level = 0, 1, 1
    rest = rows
    for j, (extent, _) in enumerate(digits):
        level *= extent
        low = [row for row in rest if row[2] % level]
        final = j == len(digits) - 1
        if final:
            low = rest
        elif start % level + sum((e - 1) * s for _, e, s in low) >= level:
            continue
        base = (start // unit) % (level // unit) if not final else start // unit
        out.append((digits[first : j + 1], [(k, e, s // unit) for k, e, s in low], base))
        rest = [row for row in rest if row not in low]
        first, unit = j + 1, level
    return out


def _solve_part(digits: list[Piece], rows: list[Row], start: int, zero: Any) -> tuple[list[list[Piece]], Any] | None:
    """The pieces of each row within one part, and the value at the start; None if the part is not linear."""
    easy = _no_carry(digits, rows, start, zero)
    if easy or not rows:
        return easy
    first = _value(digits, start, zero)
    if len(rows) == 1:
        pieces = _one_row(digits, *rows[0], start, zero)
        if pieces is not None:
            return ([pieces], first) if pieces != "no" else None
    split = [(k, e, s) for k, row in enumerate(rows) for e, s in _split_row(digits, *row)]
    if len(split) > len(rows):
        return _solve_split(digits, rows, split, start, zero)
    if prod(e for e, _ in rows) > BOUND:
        return None
    return _by_listing(digits, rows, start, zero, first)


def _value(digits: list[Piece], y: int, zero: Any) -> Any:
    out = zero
    for j, (extent, t) in enumerate(digits):
        y, digit = divmod(y, extent) if j < len(digits) - 1 else (0, y)
        out = out + digit * t
    return out


def _one_row(digits: list[Piece], e: int, s: int, start: int, zero: Any) -> Any:
    """The pieces of one iter by `window`; ``"no"`` if it is not linear, None if not nested in A's levels."""
    top = start + (e - 1) * s
    levels = [(q, c) for q, c in levels_of(digits, zero) if q <= top]
    if any(q % s and s % q for q, _ in levels):
        return None
    slant = zero
    rest = []
    for q, c in levels:
        if s % q == 0:
            slant = slant + (s // q) * c
        else:
            rest.append((q // s, c))
    found = window([(1, slant), *rest] if slant else rest, start // s, e, zero)
    return "no" if isinstance(found, Witness) else found or [(1, zero)]


def _split_row(digits: list[Piece], e: int, s: int) -> list[Row]:
    """One iter cut at A's levels where its extent allows, slowest first."""
    out: list[Row] = []
    level = 1
    for extent, _ in digits[:-1]:
        level *= extent
        turn = level // gcd(level, s)
        if 1 < turn < e and e % turn == 0:
            out.append((turn, s))
            e, s = e // turn, s * turn
    out.append((e, s))
    return out[::-1]


def _solve_split(
    digits: list[Piece], rows: list[Row], split: list[tuple[int, int, int]], start: int, zero: Any
) -> tuple[list[list[Piece]], Any] | None:
    """Solve a part again with its rows cut finer, and put the pieces of each row back in order."""
    numbered = [(n, e, s) for n, (_, e, s) in enumerate(split)]
    found: dict[int, list[Piece]] = {}
    origin = zero
    for part, members, base in _parts(digits, numbered, start):
        inner = [(e, s) for _, e, s in members]
        first = _value(part, base, zero)
        solved = _no_carry(part, inner, base, zero)
        if solved is None and prod(e for e, _ in inner) <= BOUND:
            solved = _by_listing(part, inner, base, zero, first)
        if solved is None:
            return None
        origin = origin + solved[1]
        for (n, _, _), row in zip(members, solved[0], strict=True):
            found[n] = row
    out: list[list[Piece]] = [[] for _ in rows]
    for n, (k, _, _) in enumerate(split):
        out[k] += found[n]
    return out, origin


def _by_listing(
    digits: list[Piece], rows: list[Row], start: int, zero: Any, first: Any
) -> tuple[list[list[Piece]], Any] | None:
    """Whether A is linear on these rows, by listing every combination of their digits."""
    strides = [_value(digits, start + s, zero) + -1 * first for _, s in rows]
    lifted = [(n, t if isinstance(t, Coord) else Coord.of(t)) for n, t in reversed(digits)]
    top = start + sum((e - 1) * s for e, s in rows)
    lifted[0] = (max(lifted[0][0], top // prod(n for n, _ in lifted[1:]) + 1), lifted[0][1])
    here = layout_of(tuple(iter_of(n, t) for n, t in lifted), (), ZERO)
    index = Layout(tuple(Iter(e, Coord.of(s)) for e, s in rows), (), Coord.of(start)).table()
    guess = Layout(tuple(Iter(e, t) for (e, _), t in zip(rows, strides, strict=True)), (), first)
    values = here(np.asarray(index))
    mine = values if isinstance(values, dict) else {here.axes[0]: values}
    table = guess.table()
    forced = table if isinstance(table, dict) else {guess.axes[0]: table}
    for axis in {*mine, *forced}:
        if np.any(mine.get(axis, 0) != forced.get(axis, 0)):
            return None
    return [[(e, t)] for (e, _), t in zip(rows, strides, strict=True)], first


# The whole table.


def _by_table(a: Layout, b: Layout, axis: str) -> Layout:
    """The answer from every point of b (and every replica), or a refusal; `Undecided` past the bound."""
    inputs = {"a": a, "b": b}
    if b.replica:
        from tileweave.layout.core.fibres import compose_fibres  # only for replicas that do not map to replicas

        return compose_fibres(a, b, axis)
    base = layout_of(a.shard, (), a.offset)

    def value(x: int) -> Any:
        return base(b(x)[axis])

    if b.size > BOUND:
        probe(value, b.size, WHERE, inputs, _corners(b))
        raise undecided(WHERE, "b is not nested in a's extents; comparing all its points", inputs)
    table = b.table()
    values = base(table if not isinstance(table, dict) else table[axis])
    found = from_table(values if isinstance(values, dict) else {base.axes[0]: values}, b.size, WHERE, inputs)
    replica, shift = normal_replica(a.replica)
    return layout_of(found.shard, replica, found.offset + shift)


def _corners(b: Layout) -> list[int]:
    """Indices where carries show first: one or two digits at 1 or at their ends, and some random ones."""
    weights, weight = [], 1
    for it in reversed(b.shard):
        weights.append((it.extent, weight))
        weight *= it.extent
    ends = [k * w for e, w in weights for k in {1, e // 2, e - 1} if 0 < k < e]
    random = Random(0)
    least = greatest = 0
    for it in b.shard:
        rising = sum(v for _, v in it.stride.terms) > 0
        least = least * it.extent + (0 if rising else it.extent - 1)
        greatest = greatest * it.extent + (it.extent - 1 if rising else 0)
    pairs = (x + y for x, y in combinations(ends, 2))
    return [least, greatest, *ends, *pairs, b.size - 1, *(random.randrange(b.size) for _ in range(256))]
