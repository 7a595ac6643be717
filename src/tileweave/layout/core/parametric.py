"""Layouts whose extents, strides or offset are index expressions: the structural operations, every condition proved.

Each function here is the part of a public operation that decides something about iters, for iters with symbols. What is
returned is right for all values of the symbols within their ranges. A condition that neither range nor normal form
proves is named by `Unproved`, with values of the symbols at which it fails where such are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from tileweave.errors import LayoutError, Unproved
from tileweave.index import Expr, equal, equivalent, evaluate, prove, require, symbol, symbols_of
from tileweave.layout.core.coord import ZERO, Coord
from tileweave.layout.core.layout import Iter, Layout, is_symbolic, iter_of, layout_of
from tileweave.layout.core.symbolic import (
    evaluate_at,
    is_expr,
    proved,
    quotient,
    require_quotient,
    require_same,
    same,
    simple,
)

__all__ = [
    "complement_iters",
    "compose_symbolic",
    "cut_symbolic",
    "has_symbols",
    "interval_symbolic",
    "is_contiguous_symbolic",
    "is_injective_symbolic",
    "merge_symbolic",
    "refine_symbolic",
    "replica_symbolic",
    "same_iters",
    "same_map_symbolic",
    "same_offset",
    "substitute",
]

Blocks = tuple[tuple[Iter, ...], ...]


def has_symbols(layout: Layout) -> bool:
    """Whether an extent or a stride of D or R is an index expression; the offset does not count."""
    return any(map(is_symbolic, layout.shard)) or any(map(is_symbolic, layout.replica))


def substitute(layout: Layout, values: Mapping[str, int]) -> Layout:
    """The layout with every symbol replaced by its value: it agrees with the symbolic one evaluated there.

    Args:
        layout: any layout.
        values: a value within its range for each symbol, by name; other names are ignored.

    Raises:
        LayoutError: a symbol has no value, or one outside its range.

    Example:
        >>> from tileweave.index import symbol
        >>> n = symbol("n", 1)
        >>> print(substitute(Layout(((4, n), (n, 1)), (), 2 * n), {"n": 8}))
        (4:8@m, 8:1@m) + 16@m
    """
    if not isinstance(layout, Layout) or not isinstance(values, Mapping):
        raise LayoutError("substitute(layout, values)", "the arguments are no layout and no mapping", legal="name: int")

    def number(value: Any) -> Any:
        if not is_expr(value):
            return value
        names = [str(s) for s in symbols_of((value,))]
        return evaluate(value, {name: values[name] for name in names if name in values})

    def vector(value: Coord) -> Coord:
        return Coord(tuple((axis, number(v)) for axis, v in value.terms))

    shard, replica = (
        tuple(Iter(number(it.extent), vector(it.stride)) for it in part) for part in (layout.shard, layout.replica)
    )
    return Layout(shard, replica, vector(layout.offset))


def _all_symbols(*layouts: Layout) -> list[Expr]:
    numbers: list[Any] = []
    for layout in layouts:
        numbers += [v for _, v in layout.offset.terms]
        for it in (*layout.shard, *layout.replica):
            numbers += [it.extent, *(v for _, v in it.stride.terms)]
    return list(symbols_of([v for v in numbers if is_expr(v)]))


# Iters.


def _made(extent: Any, stride: Coord) -> Iter:
    return iter_of(simple(extent), stride)


def same_iters(a: Sequence[Iter], b: Sequence[Iter]) -> bool:
    """Whether two lists of iters are proved equal, one by one."""
    return len(a) == len(b) and all(
        same(x.extent, y.extent) and _same_coord(x.stride, y.stride) for x, y in zip(a, b, strict=True)
    )


def _same_coord(a: Coord, b: Coord) -> bool:
    return all(same(a[axis], b[axis]) for axis in {*a.axes, *b.axes})


def merge_symbolic(iters: Iterable[Iter]) -> tuple[Iter, ...]:
    """Iters with the same map: units dropped (D0) and neighbours merged (D1) wherever the equation is proved."""
    out: list[Iter] = []
    for it in iters:
        if same(it.extent, 1):
            continue
        if out and _same_coord(out[-1].stride, it.extent * it.stride):
            out[-1] = _made(out[-1].extent * it.extent, it.stride)
        else:
            out.append(it)
    return tuple(out)


def replica_symbolic(iters: Iterable[Iter]) -> tuple[tuple[Iter, ...], Coord]:
    """Replicas with the same multiset of sums, no units, negative strides turned; and the offset of the turns."""
    out: list[Iter] = []
    shift = ZERO
    for it in iters:
        if same(it.extent, 1):
            continue
        if it.stride.terms and proved(it.stride.terms[0][1] <= 0):
            shift = shift + (it.extent - 1) * it.stride
            it = _made(it.extent, -it.stride)
        out.append(it)
    return layout_of((), tuple(out), ZERO).replica, shift


def cut_symbolic(iters: Sequence[Iter], sizes: Sequence[Any], where: str) -> Blocks:
    """The blocks of D under a shape of as many points; each quotient of extents is proved.

    Raises:
        Unproved: neither of two extents that meet is proved to divide the other.
    """
    rest = list(iters)
    blocks: list[tuple[Iter, ...]] = []
    for n in reversed(sizes):
        need = simple(n)
        block: list[Iter] = []
        while not same(need, 1):
            if not rest:
                require_same(need, 1, where)
                break
            it = rest.pop()
            if (fewer := quotient(need, it.extent)) is not None:
                block.append(it)
                need = fewer
            else:
                left = require_quotient(it.extent, need, where)
                block.append(_made(need, it.stride))
                rest.append(_made(left, need * it.stride))
                need = 1
        blocks.append(tuple(reversed(block)))
    return tuple(reversed(blocks))


def refine_symbolic(layouts: Sequence[Layout], where: str) -> tuple[Any, ...]:
    """The shape, slowest first, whose boundaries are those of all layouts; each is proved to divide the next."""
    levels: list[Any] = []
    for layout in layouts:
        require_same(layout.size, layouts[0].size, where)
        level: Any = 1
        for it in reversed(merge_symbolic(layout.shard)):
            level = simple(level * it.extent)
            if not any(same(level, have) for have in levels):
                levels.append(level)
    shape: list[Any] = []
    below: Any = 1
    while levels:
        nested = (k for k, n in enumerate(levels) if all(quotient(other, n) is not None for other in levels))
        k = next(nested, None)
        if k is None:
            shown = " and ".join(map(str, levels))
            raise Unproved(where, f"{shown} are not proved to nest", facts={"condition": f"{shown} nest"})
        level = levels.pop(k)
        shape.append(require_quotient(level, below, where))
        below = level
    return tuple(reversed(shape))


def interval_symbolic(
    block: tuple[Iter, ...], begin: Any, extent: Any, size: Any, where: str
) -> tuple[tuple[Iter, ...], Coord]:
    """The iters of ``[begin, begin + extent)`` within a block of `size`, and the value at begin.

    Raises:
        Unproved: the interval is not proved to begin where a digit turns, or to end within the digit that it cuts.
    """
    if not block or (same(begin, 0) and same(extent, size)):
        return block, ZERO
    start = ZERO
    rest, pitch = begin, 1
    found: tuple[Iter, ...] | None = None
    for k in range(len(block) - 1, -1, -1):
        it = block[k]
        digit = simple(rest % it.extent) if k else rest
        rest = simple(rest // it.extent) if k else 0
        start = start + digit * it.stride
        if found is None:
            width = quotient(extent, pitch)
            if width is not None and (not k or proved(digit + width <= it.extent)):
                found = merge_symbolic([_made(width, it.stride), *block[k + 1 :]])
            elif not k:
                require_quotient(extent, pitch, where)
            elif not same(digit, 0):
                ends = begin % (pitch * it.extent) + extent <= pitch * it.extent
                if is_expr(ends):
                    require(ends, where)
                condition = f"[{begin}, {begin + extent}) ends within the digit of {it}, or begins where it turns"
                raise Unproved(where, f"{condition}: not proved", facts={"condition": condition})
        pitch = pitch * it.extent
    return found or (), start


# Composition.


def compose_symbolic(a: Layout, b: Layout, axis: str, where: str) -> Layout:
    """``f_C(x) = union of f_A(y) over y in f_B(x)`` where B's iters are proved to fill A's digits without a carry.

    Raises:
        LayoutError: b leaves the axis. Unproved: a sign, a quotient or a bound is open.
    """
    for step in [it.stride for it in (*b.shard, *b.replica)] + [b.offset]:
        if step.axes not in ((), (axis,)):
            raise LayoutError(where, f"b moves along {step}", inputs={"b": b}, legal=f"strides on the axis {axis}")
    start: Any = b.offset[axis]
    rows = []
    for it in (*b.replica, *b.shard):
        stride = it.stride[axis]
        back = not proved(stride >= 0)
        if back:
            require(stride <= 0, where)
            start = start + (it.extent - 1) * stride
        rows.append((it.extent, -stride if back else stride, back))
    reach: Any = start + sum((e - 1) * s for e, s, _ in rows)
    for inside in (start >= 0, reach < a.size):
        require(inside, where)
    digits = [(it.extent, it.stride) for it in reversed(merge_symbolic(a.shard))]
    used: list[Any] = [0] * len(digits)
    pieces = [_row(digits, e, simple(s), used, where) for e, s, _ in rows]
    origin = _start(digits, simple(start), used, where)
    out: list[list[Iter]] = []
    for row, (_, _, back) in zip(pieces, rows, strict=True):
        if back:
            origin = sum(((it.extent - 1) * it.stride for it in row), origin)
            row = [_made(it.extent, -it.stride) for it in row]
        out.append(row)
    copies = len(b.replica)
    replica, shift = replica_symbolic([*a.replica, *(it for row in out[:copies] for it in row)])
    shard = merge_symbolic(it for row in out[copies:] for it in row)
    return layout_of(shard, replica, a.offset + origin + shift)


def _row(digits: Sequence[tuple[Any, Coord]], e: Any, s: Any, used: list[Any], where: str) -> list[Iter]:
    """One iter ``e : s`` of B written on A's digits, slowest first; what it adds to each is counted in `used`."""
    out: list[Iter] = []
    if same(s, 0) or same(e, 1) or not digits:
        return [_made(e, ZERO)]
    last = len(digits) - 1
    for j, (extent, stride) in enumerate(digits):
        if j == last or proved((e - 1) * s < extent):
            used[j] = used[j] + (e - 1) * s
            out.append(_made(e, s * stride))
            break
        if (whole := quotient(s, extent)) is not None:
            s = whole
            continue
        turn = quotient(extent, s)
        left = None if turn is None else quotient(e, turn)
        if left is None:
            require(((e - 1) * s < extent) | equal(s % extent, 0), where)
            raise Unproved(where, f"{e}:{s} is not proved to carry nowhere in the digit of {extent}")
        used[j] = used[j] + extent - s
        out.append(_made(turn, s * stride))
        e, s = left, 1
        if same(e, 1):
            break
    return out[::-1]


def _start(digits: Sequence[tuple[Any, Coord]], start: Any, used: Sequence[Any], where: str) -> Coord:
    """A's value at the start, if its digits and what the rows add are proved to stay within each digit but the last."""
    origin: Coord = ZERO
    for j, (extent, stride) in enumerate(digits):
        if j == len(digits) - 1:
            origin = origin + start * stride
            break
        digit = simple(start % extent)
        start = simple(start // extent)
        if not same(used[j], 0):
            require(digit + used[j] < extent, where)
        origin = origin + digit * stride
    return origin


# Decisions.


def same_map_symbolic(a: Layout, b: Layout) -> bool:
    """Whether two layouts are the same map, as multisets, for all values of the symbols.

    Raises:
        Unproved: neither is proved.
    """
    where = "same_map(a, b)"
    if not _decided(a.size, b.size, where):
        return False
    (ra, shift_a), (rb, shift_b) = replica_symbolic(a.replica), replica_symbolic(b.replica)
    if not same_iters(ra, rb):
        raise Unproved(
            where,
            "the replicas are not proved equal",
            inputs={"a": a, "b": b},
            facts={"condition": f"{[*map(str, ra)]} == {[*map(str, rb)]}"},
        )
    if same_iters(merge_symbolic(a.shard), merge_symbolic(b.shard)) and _same_coord(
        a.offset + shift_a, b.offset + shift_b
    ):
        return True
    taken = {str(s) for s in _all_symbols(a, b)}
    x = symbol(next(name for name in ("x", *(f"x{k}" for k in range(len(taken) + 1))) if name not in taken), 0, a.size)
    left, right = (
        evaluate_at([(it.extent, it.stride) for it in layout.shard], layout.offset + shift, layout.size, x)
        for layout, shift in ((a, shift_a), (b, shift_b))
    )
    return same_offset(left, right)


def same_offset(a: Coord, b: Coord) -> bool:
    """Whether two coordinates are equal for all values of the symbols; `Unproved` where neither is shown."""
    return all(_decided(a[axis], b[axis], "same_map(a, b)") for axis in {*a.axes, *b.axes})


def _decided(a: Any, b: Any, where: str) -> bool:
    """Whether two numbers are equal for all values of the symbols: proved, or refuted by values."""
    if not is_expr(a) and not is_expr(b):
        return bool(a == b)
    verdict = equivalent(a, b)
    if verdict.holds is None:
        raise Unproved(where, f"{a} == {b} is open", facts={"condition": f"{a} == {b}"})
    return verdict.holds


def is_injective_symbolic(layout: Layout, test: Callable[[Layout], bool], where: str) -> bool:
    """Whether no coordinate has two indices, for all values of the symbols: strides are proved a mixed radix with gaps.

    Args:
        layout: strides of one axis each.
        test: decides the same question of a layout of numbers.
        where: the public function that asks.
    """
    open_question = _overlap([*layout.shard, *(it for it in layout.replica if it.stride)], where)
    return open_question is None or _refuted(layout, open_question, test, where)


def _overlap(iters: Sequence[Iter], where: str) -> Any:
    """The first condition of a mixed radix that is not proved, or None if the sums are proved distinct."""
    by_axis: dict[str, list[tuple[Any, Any]]] = {}
    for it in iters:
        if same(it.extent, 1):
            continue
        if len(it.stride.terms) != 1:
            return equal(it.extent, 1)
        ((axis, stride),) = it.stride.terms
        if not proved(stride >= 1) and not proved(stride <= -1):
            return _any([it.extent <= 1, stride >= 1])
        by_axis.setdefault(axis, []).append((it.extent, stride if proved(stride >= 1) else -stride))
    for rows in by_axis.values():
        while rows:
            gaps = [s > sum((f - 1) * t for j, (f, t) in enumerate(rows) if j != k) for k, (_, s) in enumerate(rows)]
            slowest = next((k for k, gap in enumerate(gaps) if proved(gap)), None)
            if slowest is None:
                return _any(gaps)
            del rows[slowest]
    return None


def _refuted(layout: Layout, condition: Any, test: Callable[[Layout], bool], where: str) -> bool:
    """False if values of the symbols at which the condition fails refute the question too; `Unproved` otherwise."""
    every = [s * s >= 0 for s in _all_symbols(layout)]
    verdict = prove(condition, given=every, limit=0)
    if verdict.holds is False and not test(substitute(layout, verdict.witness)):
        return False
    facts = {"condition": condition, "witness": verdict.witness}
    raise Unproved(where, f"{condition} is not proved", inputs={"layout": layout}, facts=facts)


def _any(conditions: Iterable[Any]) -> Expr:
    """Whether one of the conditions holds."""
    out = equal(0, 1)
    for condition in conditions:
        out = out | (condition if isinstance(condition, Expr) else equal(0, 0 if condition else 1))
    return out


def is_contiguous_symbolic(layout: Layout, axis: str, test: Callable[[Layout], bool], where: str) -> bool:
    """Whether the layout is injective onto [0, size), for all values of the symbols: strides are a mixed radix."""
    replica = [it for it in layout.replica if it.stride and not same(it.extent, 1)]
    rows = [it for it in layout.shard if not same(it.extent, 1)]
    if replica or any(it.stride.axes != (axis,) for it in rows):
        return _refuted(layout, equal(prod(it.extent for it in (*replica, *rows)), 1), test, where)
    low: Any = layout.offset[axis]
    sizes = []
    for it in rows:
        back = not proved(it.stride[axis] >= 1)
        low = low + (it.extent - 1) * it.stride[axis] if back else low
        sizes.append((it.extent, -it.stride[axis] if back else it.stride[axis]))
    pitch: Any = 1
    while sizes:
        k = next((k for k, (_, s) in enumerate(sizes) if same(s, pitch)), None)
        if k is None:
            return _refuted(layout, _any([c for e, s in sizes for c in (equal(s, pitch), e <= 1)]), test, where)
        pitch = simple(pitch * sizes.pop(k)[0])
    others = [v for name, v in layout.offset.terms if name != axis]
    return all(same(v, 0) for v in (low, *others)) or _refuted(layout, equal(low, 0), test, where)


def complement_iters(layout: Layout, size: Any, axis: str, where: str) -> tuple[tuple[Iter, ...], Any]:
    """The iters between the strides of a layout up to size, slowest first, and its least value."""
    rows, low = [], layout.offset[axis]
    for it in layout.shard:
        if same(it.extent, 1):
            continue
        if it.stride.axes != (axis,):
            raise LayoutError(where, f"{it} leaves the axis {axis}", inputs={"layout": layout})
        stride = it.stride[axis]
        if not proved(stride >= 1):
            require(stride <= -1, where)
            low, stride = low + (it.extent - 1) * stride, -stride
        rows.append((it.extent, stride))
    pitch: Any = 1
    out: list[Iter] = []
    while rows:
        nested = (
            k
            for k, (e, s) in enumerate(rows)
            if quotient(s, pitch) is not None
            and all(quotient(t, e * s) is not None for j, (_, t) in enumerate(rows) if j != k)
        )
        e, s = rows.pop(next(nested, 0))
        out.append(_made(require_quotient(s, pitch, where), Coord(((axis, pitch),))))
        pitch = simple(e * s)
    out.append(_made(require_quotient(size, pitch, where), Coord(((axis, pitch),))))
    return merge_symbolic(reversed(out)), low
