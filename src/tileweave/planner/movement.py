"""What moves on each edge of a plan, and as which collective.

Where a tensor lies and where it is needed are Axe layouts from its elements to machines: cut dimensions are iters,
copies are replicas, partial results are terms. `layout.analysis.movement.conversion` recognises the collective between
the two. Digits that cut both alike stay out of it, and of digits that both have only a few places are looked at, so a
mesh of thousands costs no more than a small one. Bytes are those of the closed forms (`costs.arrival`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm, prod
from typing import Literal

import numpy as np

from tileweave.errors import Undecided
from tileweave.graph import Operation, Sink, Source, Tensor, TensorType
from tileweave.graph.ir.interned import line_of
from tileweave.graph.ir.nodes import Hole
from tileweave.layout import Coord, Iter, Layout
from tileweave.planner.costs import Term, TermDim, arrival
from tileweave.planner.costs import partners as partners_of
from tileweave.planner.loads import Load, Loads, held_at
from tileweave.planner.placement import Digits, Placement
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import drivers, output_placement
from tileweave.planner.streams import read_tensors

LONG = 12
"""Digits longer than that are looked at as shorter ones with the same divisors below 5 (`_few`)."""
MOST_MEMBERS = 256
"""Machines among which a collective is recognised; between more that are not cut alike it is an exchange."""
LEVELS: Mapping[str, Literal["device", "memory"]] = {"machine": "device", "element": "memory"}


@dataclass(frozen=True, slots=True)
class Recognised:
    """A collective: its kind, how many machines talk to each other, and in how many groups."""

    kind: str
    members: int = 1
    groups: int = 0

    def __str__(self) -> str:
        if self.kind in ("none", "slice", "read"):
            return self.kind
        return f"{self.kind} among {self.members}" + (f", {self.groups} groups" if self.groups > 1 else "")


@dataclass(frozen=True, slots=True)
class Movement:
    """What one step takes through one edge.

    Args:
        step: number of the step.
        tensor: what it reads; the tensor itself where it combines partial results of it.
        bytes_moved: between machines.
        collective: as which.
        line: file and line of the user's program that made the operation; empty where they are not known.
    """

    step: int
    tensor: Tensor
    bytes_moved: int
    collective: Recognised
    line: str


@dataclass(frozen=True, slots=True)
class _Spread:
    """A tensor over machines: cuts per dimension, copies, and terms of each element."""

    digits: tuple[Digits, ...]
    copies: Digits = ()
    offset: int = 0
    terms: Digits = ()

    @property
    def all_digits(self) -> list[tuple[int, int]]:
        return [pair for row in (*self.digits, self.copies, self.terms) for pair in row]


def movements(plan: Plan, loads: Sequence[Load] | None = None) -> list[Movement]:
    """Per step, every edge through which something moves (or could), in the order of the steps."""
    known = Loads()
    found = loads if loads is not None else known.of(plan)
    made: dict[Operation, Step] = {}
    partners: Callable[[int, Tensor], int] | None = None
    seen: dict[tuple[_Spread, _Spread], Recognised] = {}
    out: list[Movement] = []
    for number, (step, load) in enumerate(zip(plan.steps, found, strict=True)):
        ways = list(_edges(plan, step, made, known))
        for (tensor, way), moved in zip(ways, load.edges, strict=True):
            if way is None:
                kind = Recognised("exchange", 0, 1) if moved else Recognised("none")
            elif way not in seen:
                kind = seen[way] = recognised(*way)
            else:
                kind = seen[way]
            if not moved and kind.kind == "exchange":
                kind = Recognised("none")
            if kind.kind == "exchange":  # of ragged blocks some meet that others like them do not
                partners = partners or known.partners(plan)
                among = partners(number, tensor)
                kind = kind if kind.members * kind.groups == among else replace(kind, members=among, groups=1)
            out.append(Movement(number, tensor, moved, kind, line_of(step.node)))
        if isinstance(step.node, Operation):
            made[step.node] = step
    return out


Way = tuple[_Spread, _Spread]


def _edges(plan: Plan, step: Step, made: dict[Operation, Step], known: Loads) -> Iterator[tuple[Tensor, Way | None]]:
    """Per tensor that a step reads, from where to where; None where that is no permutation of dimensions."""
    node = step.node
    for tensor in read_tensors(step):
        need = needed_spread(step, tensor)
        term = known.terms_of(tensor)[0] if len(known.terms_of(tensor)) == 1 else None
        held = _held(plan, made, term.origin) if term is not None and term.origin is not None else None
        yield tensor, _way(tensor, need, term, held)
    if step.stage == "combine" and isinstance(node, Operation):
        before = made[node].where
        reduced = sorted(node.signature.monoids) if node.signature else ()
        terms = tuple(pair for k in reduced for pair in before.digits[k])
        rows = drivers(node, step.outputs[0])
        cut = tuple(() if k is None else before.digits[k] for k in rows)
        goal = step.where
        yield (
            step.tensor,
            None if (aim := _spread(goal)) is None else (_Spread(cut, (), before.offset, terms), aim),
        )


def needed_spread(step: Step, tensor: Tensor) -> _Spread | None:
    """Where a step needs a tensor; None where its blocks are not blocks of one cut (windows)."""
    node, where = step.node, step.where
    if where.run:
        return None
    if isinstance(node, Sink):
        return _Spread(where.digits, where.replica, where.offset)
    if node.signature is None:
        return _Spread(((),) * len(tensor.shape), where.replica, where.offset)
    cuts: list[Digits] = list(where.digits)
    if step.stage == "combine":
        cuts = [()] * node.index.rank
        for r, k in enumerate(drivers(node, step.outputs[0])):
            if k is not None:
                cuts[k] = where.digits[r]
    name = next(n for n, t in node.inputs if t is tensor)
    projection = node.signature.input(name)
    rows: list[Digits] = []
    used = set()
    for row, extent in zip(projection.map.matrix, projection.shape, strict=True):
        moved = [k for k, c in enumerate(row) if c]
        if any(cuts[k] for k in moved) and (len(moved) != 1 or row[moved[0]] != 1 or extent != 1):
            return None
        rows.append(cuts[moved[0]] if moved else ())
        used |= set(moved)
    copies = tuple(pair for k, row in enumerate(cuts) if k not in used for pair in row)
    return _Spread(tuple(rows), (*copies, *where.replica), where.offset)


def _held(plan: Plan, made: dict[Operation, Step], origin: Tensor) -> _Spread | None:
    """Where an origin lies; None for storage."""
    producer = origin.producer
    where: Placement | None = None
    if isinstance(producer, Source):
        where = {**plan.residents, **plan.disks}.get(producer)
    elif isinstance(producer, Operation):
        step = made[producer]
        where = output_placement(producer, origin.output, step.where) if step.stage == "block" else step.where
    return None if where is None else _spread(where)


def _spread(where: Placement) -> _Spread | None:
    """A placement as a spread; runs are like cuts of their longest dimension. None where machines differ."""
    if where.rest:
        return None
    if not where.run:
        return _Spread(where.digits, where.replica, where.offset)
    longest = max(range(len(where.waves)), key=lambda k: where.waves[k])
    rows = tuple((*row, *where.replica) if k == longest else row for k, row in enumerate(where.digits))
    return _Spread(rows, (), where.offset)


def _way(tensor: Tensor, need: _Spread | None, term: Term | None, held: _Spread | None) -> Way | None:
    """From where to where an origin moves, by its own dimensions."""
    if need is None or term is None or held is None or term.fixed:
        return None
    rows: list[Digits] = [()] * len(held.digits)
    copies = need.copies
    for n, dim, digits in zip(tensor.shape, term.dims, need.digits, strict=True):
        if dim.clip != (0, n) or len(dim.rows) > 1 or any((s, o) != (1, 0) for _, s, o in dim.rows):
            return None
        if dim.rows:
            rows[dim.rows[0][0]] = digits
        else:
            copies = (*copies, *digits)
    return held, _Spread(tuple(rows), copies, need.offset)


def recognised(source: _Spread, target: _Spread) -> Recognised:
    """The collective that turns one spread of a tensor into another; an exchange among nobody where the machines that
    take part are not known from that."""
    rows = [_without_common(a, b) for a, b in zip(source.digits, target.digits, strict=True)]
    alike = prod(extent for (_, _, same) in rows for extent, _ in same)
    one = _Spread(tuple(a for a, _, _ in rows), source.copies, source.offset, source.terms)
    other = _Spread(tuple(b for _, b, _ in rows), target.copies, target.offset)
    many = {*_apart(one, other), *_apart(other, one)}
    one, other = (_shrunk(side, many) for side in (one, other))
    if max(prod(e for e, _ in side.all_digits) for side in (one, other)) > MOST_MEMBERS:
        return Recognised("exchange", 0, 1)
    extents = [lcm(*(prod(e for e, _ in row) for row in pair)) for pair in zip(one.digits, other.digits, strict=True)]
    from tileweave.layout.analysis.movement import conversion  # a plan for one machine moves nothing

    ends = _layout(one, extents), _layout(other, extents)
    try:
        found = conversion(*ends, LEVELS, reduce="sum" if one.terms else None).collective
    except Undecided:
        return Recognised("exchange", 0, 1)
    if not found.groups:
        return Recognised(found.kind)
    every = {at[0] for group in found.groups for at in group}
    first = {at[0] for at in found.groups[0]}
    moving, inside = ({(e, s) for e, s in many if len({m // s % e for m in at}) > 1} for at in (every, first))
    members, groups = (prod(Fraction(e, _few(e)) for e, _ in pairs) for pairs in (inside, moving - inside))
    return Recognised(found.kind, int(len(first) * members), int(alike * len(found.groups) * groups))


def _apart(side: _Spread, other: _Spread) -> Iterator[tuple[int, int]]:
    """The long digits of a side that the other side has too, or has nothing along their machines."""
    for extent, stride in side.all_digits:
        pairs = [(e, s) for e, s in other.all_digits if s < stride * extent and stride < s * e]
        if extent > _few(extent) and all(pair == (extent, stride) for pair in pairs):
            yield extent, stride


def _few(extent: int) -> int:
    """The least extent that shows every collective and meets other extents as this one does: they share 2, 3 and 4."""
    return next(n for n in range(3, LONG + 1) if gcd(n, LONG) == gcd(extent, LONG)) if extent > 2 else extent


def _without_common(a: Digits, b: Digits) -> tuple[Digits, Digits, Digits]:
    """The digits of a dimension on both sides without the first ones that they share, and these."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return a[same:], b[same:], a[:same]


def _shrunk(side: _Spread, many: set[tuple[int, int]]) -> _Spread:
    def few(row: Digits) -> Digits:
        return tuple((_few(pair[0]) if pair in many else pair[0], pair[1]) for pair in row)

    return _Spread(tuple(map(few, side.digits)), few(side.copies), side.offset, few(side.terms))


def _layout(side: _Spread, extents: Sequence[int]) -> Layout:
    """The Axe layout: terms slowest, then dimension by dimension; an element has one address, wherever it lies."""
    shard = [Iter(extent, Coord((("machine", stride),))) for extent, stride in side.terms]
    for k, (row, length) in enumerate(zip(side.digits, extents, strict=True)):
        inside = prod(extents[k:])
        for extent, stride in row:
            inside //= extent
            shard.append(Iter(extent, Coord((("element", inside), ("machine", stride)))))
        rest = length // prod(extent for extent, _ in row)
        if rest > 1:
            shard.append(Iter(rest, Coord((("element", prod(extents[k + 1 :])),))))
    copies = tuple(Iter(extent, Coord((("machine", stride),))) for extent, stride in side.copies)
    start = Coord((("machine", side.offset),)) if side.offset else Coord()
    return Layout(tuple(shard) or (Iter(1, Coord((("machine", 1),))),), copies, start)


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What it costs to turn one placement of a tensor into another.

    Args:
        collective: as which.
        bytes_moved: by all machines.
        words_bytes: the most that one machine receives.
    """

    collective: Recognised
    bytes_moved: int
    words_bytes: int


def redistribution(kind: TensorType, source: Placement, target: Placement, machines: int) -> Redistribution:
    """The cost of a redistribution: zero exactly where nothing moves, and never more than by way of a third placement.

    Example:
        >>> rows, copies = Placement((4, 1), (((4, 1),), ()), (1, 1)), Placement((1, 1), ((), ()), (1, 1), ((4, 1),))
        >>> found = redistribution(TensorType((8, 8), "float32"), rows, copies, 4)
        >>> str(found.collective), found.bytes_moved, found.words_bytes
        ('all-gather among 4', 768, 192)
    """
    tensor = Tensor(Source(Hole("redistribution"), kind))
    held, need = (held_at(tensor, where, machines) for where in (source, target))
    whole = tuple(TermDim((0, n), ((r, 1, 0),)) for r, n in enumerate(kind.shape))
    term = Term(tensor, whole, (), kind.dtype.itemsize)
    moved = arrival(term, need.boxes[0], held).moved
    found = recognised(*(_Spread(where.digits, where.replica, where.offset) for where in (source, target)))
    if not found.members:
        found = replace(found, members=int(partners_of(term, need.boxes[0], held).sum()))
    return Redistribution(found, int(np.sum(moved)), int(np.max(moved)))
