"""The decision kernel: normal forms, equality of maps, the layout behind a function or the witness against it.

Two facts carry everything here.

*D is a sum of carries.* With suffix products p, each dividing the next slower one, ``D(x) = sum of c(p) floor(x/p)``.
So the step ``D(m) - D(m-1)`` is the sum of c(p) over the levels p that divide m, and a function on [0, E) is a layout
exactly if its steps have that form for levels that divide E and form a chain. The smallest m whose step the levels
found so far do not explain is the next level, or the witness: Moebius inversion on the divisors of E, done greedily.

*R is a product of (1 - z^(es)) / (1 - z^s).* The factors 1 - z^n are multiplicatively independent, so two replica lists
are equal as multisets exactly if their numerators and denominators agree after cancelling. No divisor is ever listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import gcd
from typing import Literal

import numpy as np

from tileweave.errors import LayoutError, NoLayout, Undecided, Unproved
from tileweave.layout.core.carries import Witness, carries, from_carries, rows_of, witness_at
from tileweave.layout.core.checks import need_layouts
from tileweave.layout.core.integers import divisors
from tileweave.layout.core.layout import (
    DEFAULT_AXIS,
    ZERO,
    Coord,
    CoordLike,
    IntArray,
    Iter,
    Layout,
    Terms,
    coord_of_terms,
    is_symbolic,
    iter_of,
    layout_of,
    require_numbers,
)
from tileweave.layout.core.parametric import (
    has_symbols,
    merge_symbolic,
    replica_symbolic,
    same_map_symbolic,
    same_offset,
)
from tileweave.layout.core.symbolic import is_expr

__all__ = [
    "BOUND",
    "Replicas",
    "Witness",
    "canonical_key",
    "carries",
    "from_carries",
    "normalize",
    "recover",
    "same_map",
]

BOUND = 1 << 20
"""The greatest number of points (or search states) that an exact search visits before it answers `Undecided`."""

Replicas = Literal["multiset", "set"]


def refuse(where: str, witness: Witness, inputs: Mapping[str, object], legal: str = "") -> NoLayout:
    """The error for a function that no layout describes, with its witness in the facts."""
    shown = dict(inputs)
    if witness.values:
        shown["witness"] = ", ".join(f"f({x}) = {v}" for x, v in zip(witness.points, witness.values, strict=True))
    return NoLayout(
        where,
        f"no layout agrees with the definition: {witness.condition}",
        inputs=shown,
        legal=legal,
        facts={"witness": witness},
    )


def undecided(where: str, what: str, inputs: Mapping[str, object], bound: int = BOUND) -> Undecided:
    """The error for an exact search that passed its bound, with the bound in the facts."""
    return Undecided(
        where, f"{what} needs more than {bound} steps", inputs=inputs, legal="a smaller domain", facts={"bound": bound}
    )


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
    shard = merge_shard(layout.shard)
    if not layout.replica:
        return layout_of(shard, (), layout.offset)
    replica, shift = normal_replica(layout.replica)
    return layout_of(shard, replica, layout.offset + shift)


def merge_shard(iters: Iterable[Iter]) -> tuple[Iter, ...]:
    """The unique normal list of iters (rules D0 and D1) with the same map; with symbols, merged where proved."""
    iters = tuple(iters)
    out: list[Iter] = []
    for it in iters:
        extent = it.extent
        if extent == 1:
            continue
        terms = it.stride.terms
        if extent.__class__ is not int or (
            terms and (terms[0][1].__class__ is not int or (len(terms) > 1 and is_symbolic(it)))
        ):
            return merge_symbolic(iters)
        if out and _continues(out[-1].stride.terms, extent, it.stride.terms):
            out[-1] = iter_of(out[-1].extent * extent, it.stride)
        else:
            out.append(it)
    return tuple(out)


def _continues(slower: Terms, extent: int, faster: Terms) -> bool:
    """Whether the slower stride is the faster iter's extent times its stride."""
    if len(slower) == 1 and len(faster) == 1:
        return slower[0][1] == extent * faster[0][1] and slower[0][0] == faster[0][0]
    return len(slower) == len(faster) and all(
        a == b and v == extent * w for (a, v), (b, w) in zip(slower, faster, strict=True)
    )


def normal_replica(iters: Iterable[Iter]) -> tuple[tuple[Iter, ...], Coord]:
    """The unique shortest replica list with the same multiset of sums, and the offset that its signs cost."""
    iters = tuple(iters)
    if any(map(is_symbolic, iters)):
        return replica_symbolic(iters)
    if len(iters) == 1 and iters[0].extent > 1 and iters[0].stride.terms:
        (it,) = iters
        if it.stride.terms[0][1] > 0:
            return iters, ZERO
        return (iter_of(it.extent, -1 * it.stride),), (it.extent - 1) * it.stride
    shift, copies, ratio = replica_ratio(iters)
    out = [iter_of(copies, ZERO)] if copies > 1 else []
    for direction, exponents in ratio.items():
        pairs = match_ratio(exponents)
        if pairs is None:  # cannot happen: the list that was given is a matching before cancelling
            raise LayoutError("normalize(layout)", f"the replicas {list(map(str, iters))} have no normal form")
        out += [iter_of(n // m, coord_of_terms(tuple((a, m * v) for a, v in direction))) for m, n in pairs]
    out.sort(key=lambda it: (it.extent, it.stride.terms))
    return tuple(out), shift


def replica_ratio(iters: Iterable[Iter]) -> tuple[Coord, int, dict[Terms, Counter[int]]]:
    """The multiset of sums as ``copies * product of (1 - z^n)^k`` per primitive direction, after a shift.

    Each iter ``e : s*u`` with u primitive contributes +1 at n = es and -1 at n = s. Entries that cancel are dropped.
    """
    shift, copies = ZERO, 1
    ratio: dict[Terms, Counter[int]] = {}
    for it in iters:
        extent, terms = it.extent, it.stride.terms
        require_numbers(it)
        if extent == 1:
            continue
        if not terms:
            copies *= extent
            continue
        if terms[0][1] < 0:
            shift = shift + (extent - 1) * it.stride
            terms = tuple((a, -v) for a, v in terms)
        pitch = gcd(*(v for _, v in terms))
        direction = tuple((a, v // pitch) for a, v in terms)
        exponents = ratio.setdefault(direction, Counter())
        exponents[extent * pitch] += 1
        exponents[pitch] -= 1
    for direction, exponents in list(ratio.items()):
        kept = Counter({n: k for n, k in exponents.items() if k})
        if kept:
            ratio[direction] = kept
        else:
            del ratio[direction]
    return shift, copies, ratio


def match_ratio(
    exponents: Mapping[int, int], allowed: Callable[[int, int], bool] = lambda _m, _n: True
) -> list[tuple[int, int]] | None:
    """Pair every denominator m with a numerator n, m dividing n: the first such pairing in order, or None.

    A product of (1 - z^n)^k is a product of iters (n/m : m) exactly if there is such a pairing. `allowed` restricts it.
    """
    numerators = sorted(n for n, k in exponents.items() for _ in range(k))
    denominators = sorted(m for m, k in exponents.items() for _ in range(-k))
    if len(numerators) != len(denominators):
        return None
    fits = [[n % m == 0 and allowed(m, n) for n in numerators] for m in denominators]
    chosen: list[int] = []
    for row in range(len(denominators)):
        for column in range(len(numerators)):
            if fits[row][column] and column not in chosen and _matches(fits, row + 1, {*chosen, column}):
                chosen.append(column)
                break
        else:
            return None
    return [(m, numerators[c]) for m, c in zip(denominators, chosen, strict=True)]


def _matches(fits: list[list[bool]], first: int, used: set[int]) -> bool:
    """Whether rows from `first` on can all be matched to columns that are not used (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in used and column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(first, len(fits)))


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
    need_layouts("canonical_key(layout, replicas)", layout)
    if has_symbols(layout) or any(is_expr(v) for _, v in layout.offset.terms):
        raise Unproved(
            "canonical_key(layout)",
            "a symbolic layout has no key",
            inputs={"layout": layout},
            legal="numbers; same_map decides symbolic layouts",
            facts={"condition": "extents, strides and offset are numbers"},
        )
    normal = normalize(layout)
    part: Hashable = normal.replica
    if by_set(replicas, "canonical_key(layout, replicas)"):
        from tileweave.layout.core.search import set_key  # search builds on this module

        part = set_key(normal.replica)
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
        a: a layout.
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
    need_layouts("same_map(a, b, replicas)", a, b)
    as_sets = by_set(replicas, "same_map(a, b, replicas)")
    if has_symbols(a) or has_symbols(b):
        return same_map_symbolic(a, b)
    if a.size != b.size or merge_shard(a.shard) != merge_shard(b.shard):
        return False
    (ra, shift_a), (rb, shift_b) = normal_replica(a.replica), normal_replica(b.replica)
    if not same_offset(a.offset + shift_a, b.offset + shift_b):
        return False
    if ra == rb or not as_sets:
        return ra == rb
    from tileweave.layout.core.search import set_key  # search builds on this module

    return set_key(ra) == set_key(rb)


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
    return layout_of(_iters(extent, levels), (), value(0))


def _iters(extent: int, levels: Sequence[tuple[int, Coord]]) -> tuple[Iter, ...]:
    return tuple(iter_of(e, stride) for e, stride in rows_of(extent, levels, ZERO))


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
    iters = _iters(extent, levels)
    guess = layout_of(iters, (), value(0))
    near = {x for p, _ in [*levels, (extent, ZERO)] for k in (1, 2, 3) for x in (k * p - 1, k * p, k * p + 1)}
    for x in [*check, *sorted(near)]:
        if 0 <= x < extent and value(x) != guess(x):
            condition = f"the steps at the divisors of {extent} force f({x}) = {guess(x)}"
            raise refuse(where, Witness((x,), (value(x),), condition), {**inputs, "forced": guess})
    return iters
