"""The decision kernel: normal forms, equality of maps, the layout behind a function or the witness against it.

*D is a sum of carries.* With suffix products p, each dividing the next slower one, ``D(x) = sum of c(p) floor(x/p)``.
So the step ``D(m) - D(m-1)`` is the sum of c(p) over the levels p that divide m, and a function on [0, E) is a layout
exactly if its steps have that form for levels that divide E and form a chain. The smallest m whose step the levels
found so far do not explain is the next level, or the witness: Moebius inversion on the divisors of E, done greedily.
For R see `replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import LayoutError, Unproved
from tileweave.index import equal, equivalent, symbol
from tileweave.layout.core.checks import (
    BOUND,
    Witness,
    as_layout,
    need_axis,
    need_layouts,
    need_numbers,
    refuse,
    undecided,
)
from tileweave.layout.core.coord import DEFAULT_AXIS, ZERO, Coord, CoordLike, IntArray
from tileweave.layout.core.layout import Iter, Layout, all_symbols, has_symbols, iter_of, keep_normal, layout_of
from tileweave.layout.core.replicas import normal_replica, proved_replica, replica_ratio, set_normal
from tileweave.layout.core.rows import (
    coalesce,
    iters_of,
    rows_of,
    same_value,
    witness_at,
)
from tileweave.layout.core.search import any_of, refuted
from tileweave.layout.core.symbolic import divisors, evaluate_at, is_expr, proved, same, simple

Replicas = Literal["multiset", "set"]


# Normal forms.


def normalize(layout: Layout) -> Layout:
    """The unique normal form: two layouts with equal normal forms are the same map, as multisets, and conversely.

    D loses unit iters (D0) and merges an iter into the next faster one where its stride is that iter's extent times
    stride (D1). R gets positive strides (the first axis in name order decides), its offset moves into O, and it becomes
    the shortest list of iters with the same multiset of sums, the same for every list with that multiset.
    Iters with symbols are merged wherever the equation is proved for all values of the symbols; the map is kept.

    Example:
        >>> print(normalize(Layout(((2, 12), (3, 4), (1, 7), (4, 1)), ((2, -3), (2, 6)))))
        (24:1@m) + [4:3@m] - 3@m

    Source: Axe, appendix A (rules D0, D1, C0, C1); the form of R without the gap condition is our own.
    """
    need_layouts("normalize(layout)", layout)
    shard = normal_shard(layout)
    if not layout.replica:
        return layout_of(shard, (), layout.offset)
    replica, shift = normal_replica(layout.replica)
    return layout_of(shard, replica, layout.offset + shift)


def merge_shard(iters: Sequence[Iter]) -> tuple[Iter, ...]:
    """The unique normal list of iters (rules D0 and D1) with the same map; with symbols, merged where proved."""
    merged = coalesce([(it.extent, it.stride) for it in reversed(iters)])
    return tuple(iters) if len(merged) == len(iters) else tuple([iter_of(n, d) for n, d in reversed(merged)])


def normal_shard(layout: Layout) -> tuple[Iter, ...]:
    """`merge_shard` of a layout's D, worked out once."""
    found = layout._normal
    if found is None:
        found = merge_shard(layout.shard)
        keep_normal(layout, found)
    return found


def same_iters(a: Sequence[Iter], b: Sequence[Iter]) -> bool:
    """Whether two lists of iters are equal one by one; proved, where expressions take part."""
    return len(a) == len(b) and all(
        same(x.extent, y.extent) and same_value(x.stride, y.stride) for x, y in zip(a, b, strict=True)
    )


def canonical_key(layout: Layout, replicas: Replicas = "multiset") -> Hashable:
    """A hashable value, equal for two layouts exactly if they are the same map.

    Args:
        layout: any layout.
        replicas: whether f(x) counts replicas that collide (``"multiset"``) or not (``"set"``).

    Raises:
        Undecided: only for ``"set"``, where the replicas collide and have more than `BOUND` points.
        Unproved: the layout is symbolic.

    Example:
        >>> a, b = Layout((), ((2, 1), (2, 1))), Layout((), ((3, 1),))
        >>> canonical_key(a) == canonical_key(b), canonical_key(a, "set") == canonical_key(b, "set")
        (False, True)
    """
    layout = as_layout(layout, "canonical_key(layout, replicas)")
    need_numbers("canonical_key(layout, replicas)", layout)
    normal = normalize(layout)
    part: Hashable = normal.replica
    if by_set(replicas, "canonical_key(layout, replicas)"):
        part = set_normal(normal.replica)
    return layout.size, normal.shard, part, normal.offset


def by_set(replicas: object, where: str) -> bool:
    """Whether replicas that collide count once; an error if the word is neither ``"multiset"`` nor ``"set"``."""
    if not isinstance(replicas, str) or replicas not in ("multiset", "set"):
        raise LayoutError(where, f"{replicas!r} is no replica semantics", legal="'multiset' or 'set'")
    return replicas == "set"


def same_map(a: Layout, b: Layout, replicas: Replicas = "multiset") -> bool:
    """True exactly if ``f_a(x) = f_b(x)`` for every x of a common domain.

    The least element of each fibre, axes compared in name order, is D(x) + O once R has positive strides; so D and O
    must agree (Axe, lemma A.13, for vectors), and then R must, as a multiset or as a set. Symbolic layouts are
    the same map if they agree for all values of the symbols: that is proved, or values refute it.

    Args:
        a: a layout of any notation; x is its own linear index.
        b: another.
        replicas: ``"multiset"`` counts replicas that collide; ``"set"`` is the paper's meaning.

    Raises:
        Undecided: only for ``"set"``, where replicas collide and have more than `BOUND` points.
        Unproved: symbolic layouts that are neither proved equal nor refuted.

    Example:
        >>> same_map(Layout(((2, 3), (3, 1))), Layout(((6, 1),)))
        True

    Source: Axe, theorems A.8 and A.14, without the gap condition.
    """
    a, b = as_layout(a, "same_map(a, b, replicas)"), as_layout(b, "same_map(a, b, replicas)")
    as_sets = by_set(replicas, "same_map(a, b, replicas)")
    if has_symbols(a) or has_symbols(b):
        return _proved_same_map(a, b)
    if a.size != b.size or normal_shard(a) != normal_shard(b):
        return False
    (ra, shift_a), (rb, shift_b) = normal_replica(a.replica), normal_replica(b.replica)
    if not _same_offset(a.offset + shift_a, b.offset + shift_b):
        return False
    if ra == rb or not as_sets:
        return ra == rb
    return set_normal(ra) == set_normal(rb)


def _proved_same_map(a: Layout, b: Layout) -> bool:
    """Whether two symbolic layouts are the same map, as multisets, for all values of the symbols."""
    where = "same_map(a, b, replicas)"
    if not _decided(a.size, b.size, where):
        return False
    (ra, shift_a), (rb, shift_b) = proved_replica(a.replica), proved_replica(b.replica)
    if not same_iters(ra, rb):
        raise Unproved(
            where,
            "the replicas are not proved equal",
            inputs={"a": a, "b": b},
            facts={"condition": f"{[*map(str, ra)]} == {[*map(str, rb)]}"},
        )
    if same_iters(normal_shard(a), normal_shard(b)) and same_value(a.offset + shift_a, b.offset + shift_b):
        return True
    taken = {str(s) for s in all_symbols(a, b)}
    x = symbol(next(name for name in ("x", *(f"x{k}" for k in range(len(taken) + 1))) if name not in taken), 0, a.size)
    left, right = (
        evaluate_at([(it.extent, it.stride) for it in layout.shard], layout.offset + shift, layout.size, x)
        for layout, shift in ((a, shift_a), (b, shift_b))
    )
    return _same_offset(left, right)


def _same_offset(a: Coord, b: Coord) -> bool:
    """Whether two coordinates are equal for all values of the symbols; `Unproved` where neither is shown."""
    return all(_decided(a[axis], b[axis], "same_map(a, b, replicas)") for axis in {*a.axes, *b.axes})


def _decided(a: Any, b: Any, where: str) -> bool:
    """Whether two numbers are equal for all values of the symbols: proved, or refuted by values."""
    if not is_expr(a) and not is_expr(b):
        return bool(a == b)
    verdict = equivalent(a, b)
    if verdict.holds is None:
        raise Unproved(where, f"{a} == {b} is open", facts={"condition": f"{a} == {b}"})
    return verdict.holds


def is_contiguous(layout: Layout, axis: str = DEFAULT_AXIS) -> bool:
    """True exactly if the layout is injective and its image is [0, size) on one axis; decided without a search.

    The image is counted by the product of (1 - z^(es)) / (1 - z^s), which must be (1 - z^size) / (1 - z).

    Example:
        >>> is_contiguous(Layout(((4, 1), (8, -4)), (), 28))
        True

    Source: Rectilinear Chamber, section 3; the test is our own.
    """
    layout = as_layout(layout, "is_contiguous(layout, axis)")
    need_axis("is_contiguous(layout, axis)", axis)
    if layout.is_symbolic:
        return _proved_contiguous(layout, axis, "is_contiguous(layout, axis)")
    shift, copies, ratio = replica_ratio(layout.shard)
    size = layout.size
    if copies > 1 or any(it.extent > 1 and it.stride for it in layout.replica):
        return False
    want = {((axis, 1),): {size: 1, 1: -1}} if size > 1 else {}
    return ratio == want and not layout.offset + shift


def _proved_contiguous(layout: Layout, axis: str, where: str) -> bool:
    """Whether the layout is injective onto [0, size), for all values of the symbols: strides are a mixed radix."""
    replica = [it for it in layout.replica if it.stride and not same(it.extent, 1)]
    rows = [it for it in layout.shard if not same(it.extent, 1)]
    if replica or any(it.stride.axes != (axis,) for it in rows):
        return refuted(
            layout, equal(prod(it.extent for it in (*replica, *rows)), 1), partial(is_contiguous, axis=axis), where
        )
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
            return refuted(
                layout,
                any_of([c for e, s in sizes for c in (equal(s, pitch), e <= 1)]),
                partial(is_contiguous, axis=axis),
                where,
            )
        pitch = simple(pitch * sizes.pop(k)[0])
    others = [v for name, v in layout.offset.terms if name != axis]
    return all(same(v, 0) for v in (low, *others)) or refuted(
        layout, equal(low, 0), partial(is_contiguous, axis=axis), where
    )


# Recovery from values.

Values = Callable[[int], CoordLike] | Sequence[CoordLike] | IntArray | Mapping[str, IntArray] | Layout


def recover(f: Values, extent: int | None = None, *, bound: int = BOUND) -> Layout:
    """The unique layout with normal D that agrees with f at every point of [0, extent), verified, or the witness.

    Args:
        f: a function of one index to a coordinate (or an integer on the axis ``m``); or its table as a sequence, an
            integer array, or arrays by axis; or a layout, whose normal form is the answer without looking at any point.
        extent: the number of points; for tables and layouts it may be left out.
        bound: a function is enumerated up to this many points.

    Raises:
        NoLayout: no layout agrees with f; ``witness`` has the points, their values and the condition that they break.
        Undecided: f is a function on more than `bound` points, and no witness was found at the divisors of extent.

    Example:
        >>> print(recover([0, 1, 2, 10, 11, 12]))
        (2:10@m, 3:1@m)
        >>> recover([0, 1, 3])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tileweave.errors.NoLayout: recover(f, extent): no layout agrees with the definition: the steps into 1 ...

    Source: Axe, theorem A.8 (uniqueness), with vector strides and an exact refusal (own).
    """
    where = "recover(f, extent)"
    if type(bound) is not int:
        raise LayoutError(where, f"bound {bound!r} is not an integer", legal="the most points to enumerate")
    if extent is not None and type(extent) is not int:
        raise LayoutError(where, f"extent {extent!r} is not an integer", legal="the number of points of f")
    if isinstance(f, Layout):
        if extent not in (None, f.size):
            raise LayoutError(where, f"extent {extent} is not the layout's size {f.size}", inputs={"f": f})
        return normalize(f)
    if callable(f):
        if extent is None or extent < 1:
            raise LayoutError(where, f"extent {extent!r} is not positive", legal="the number of points of f")
        if extent > bound:
            probe(f, extent, where, {"extent": extent})
            raise undecided(where, "verifying a function point by point", {"extent": extent}, bound)
        return from_table(_columns([f(x) for x in range(extent)], where), extent, where, {})
    columns = _columns(f, where)
    count = len(next(iter(columns.values())))
    if extent not in (None, count):
        raise LayoutError(where, f"extent {extent} is not the table's length {count}")
    return from_table(columns, count, where, {})


def _columns(values: Sequence[CoordLike] | IntArray | Mapping[str, IntArray], where: str) -> dict[str, IntArray]:
    """A table as one integer array per axis."""
    if isinstance(values, np.ndarray):
        values = {DEFAULT_AXIS: values}
    if isinstance(values, Mapping):
        out = {axis: np.asarray(column) for axis, column in values.items()}
    elif isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise LayoutError(where, f"{values!r} is no function, table or layout", legal="a callable, a list, an array")
    else:
        coords = [Coord.of(v) for v in values]
        axes = sorted({axis for c in coords for axis in c.axes}) or [DEFAULT_AXIS]
        out = {axis: np.array([c[axis] for c in coords], dtype=object) for axis in axes}
        if all(abs(v) < 1 << 61 for column in out.values() for v in column):
            out = {axis: column.astype(np.int64) for axis, column in out.items()}
    shapes = {column.shape for column in out.values()}
    if (
        len(shapes) != 1
        or any(len(s) != 1 or not s[0] for s in shapes)
        or any(column.dtype.kind not in "iuO" for column in out.values())
    ):
        raise LayoutError(
            where, "the table is not one non-empty list of integers per axis", legal="equal, 1-D, integer"
        )
    return {axis: column.astype(np.int64) if column.dtype.kind != "O" else column for axis, column in out.items()}


def from_table(columns: Mapping[str, IntArray], extent: int, where: str, inputs: Mapping[str, object]) -> Layout:
    """The layout behind a full table (one array per axis), or `NoLayout`: every point is checked."""
    axes = sorted(columns)
    rest = {axis: np.diff(columns[axis]) for axis in axes}
    levels: list[tuple[int, Coord]] = []

    def value(x: int) -> Coord:
        return Coord(tuple((axis, int(columns[axis][x])) for axis in axes))

    while True:
        firsts = [int(np.argmax(column != 0)) for column in rest.values() if column.any()]
        if not firsts:
            break
        m = min(firsts) + 1
        witness = witness_at(extent, levels, m, value)
        if witness:
            raise refuse(where, witness, inputs)
        step = {axis: int(rest[axis][m - 1]) for axis in axes}
        for axis in axes:
            rest[axis][m - 1 :: m] -= step[axis]
        levels.append((m, Coord(tuple(step.items()))))
    return layout_of(iters_of(rows_of(extent, levels, ZERO), ""), (), value(0))


def probe(
    f: Callable[[int], CoordLike],
    extent: int,
    where: str,
    inputs: Mapping[str, object],
    check: Iterable[int] = (),
) -> tuple[Iter, ...]:
    """The only normal iters that can agree with f, from its steps at the divisors of extent; else `NoLayout`.

    The points in `check`, and some near the levels, are compared as well; the rest is not.
    """
    levels: list[tuple[int, Coord]] = []

    def value(x: int) -> Coord:
        return Coord.of(f(x))

    for m in divisors(extent, where)[:-1]:
        step = value(m) - value(m - 1)
        for level, c in levels:
            if m % level == 0:
                step = step - c
        if not step:
            continue
        witness = witness_at(extent, levels, m, value)
        if witness:
            raise refuse(where, witness, inputs)
        levels.append((m, step))
    iters = iters_of(rows_of(extent, levels, ZERO), "")
    guess = layout_of(iters, (), value(0))
    near = {x for p, _ in [*levels, (extent, ZERO)] for k in (1, 2, 3) for x in (k * p - 1, k * p, k * p + 1)}
    for x in [*check, *sorted(near)]:
        if 0 <= x < extent and value(x) != guess(x):
            condition = f"the steps at the divisors of {extent} force f({x}) = {guess(x)}"
            raise refuse(where, Witness((x,), (value(x),), condition), {**inputs, "forced": guess})
    return iters
