"""From a sharding of every operation to the steps of a plan.

A sharding says per index dimension how it is cut along machines, as iters of an Axe layout; waves cut each machine's
part again. Cuts nest: machine parts first, waves inside, so that what two operations cut alike has common boundaries.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from math import prod
from typing import Literal, cast

import numpy as np

from tileweave.backends.base import Decision
from tileweave.graph import FileTarget, Graph, Operation, Partition, Sink, Tensor
from tileweave.graph.passes.shard import output_partition
from tileweave.planner.costs import Term, read_terms
from tileweave.planner.placement import Digits, Placement, cut_bounds, part_bounds, run_placement, undivided
from tileweave.planner.plan import Stage, Step
from tileweave.space import Box, even_cuts

MOST_GRIDS = 24
"""The most grids that are offered for one operation."""


@dataclass(frozen=True, slots=True)
class Waves:
    """How each machine's part of an operation is cut again, so that less is alive at once.

    Args:
        count: parts; a power of two.
        along: "rows": one dimension of the result, so that chains stream; "longest": the longest dimension, a reduction
            too; "all": every dimension in turn, the longest blocks first.
    """

    count: int = 1
    along: Literal["rows", "longest", "all"] = "rows"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How an operation's index is cut.

    Args:
        digits: per dimension, its cuts along machines: (extent, stride) pairs, slowest first.
        waves: per dimension, into how many parts each machine's part is cut again.
        weights: of machines that have unequal parts (`Placement.weights`).
    """

    digits: tuple[Digits, ...]
    waves: tuple[int, ...]
    weights: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[int, ...]:
        """Machine parts per dimension."""
        return tuple(prod(extent for extent, _ in digits) for digits in self.digits)


WHOLE = Waves()
Grid = tuple[int, ...]
Decide = Callable[[Operation, Stage], Decision]
WRITE = Decision("write", "a sink")
Atoms = Callable[[Sink], tuple[int, ...] | None]


def candidates(operation: Operation, count: int) -> list[Grid]:
    """The grids of an operation's index that are offered for so many machines; the whole comes first."""
    index = operation.index
    whole = (1,) * index.rank
    if count == 1 or operation.signature is None or index.size <= 1:
        return [whole]
    fixed = uncut(operation)
    for parts in range(count, 1, -1):  # where no grid of all machines fits the index, some stay idle
        grids = [
            grid
            for grid in _factorizations(parts, index.rank)
            if all(g <= n for g, n in zip(grid, index.shape, strict=True)) and all(grid[k] == 1 for k in fixed)
        ]
        if grids:
            grids.sort(key=lambda grid: sum(g > 1 for g in grid))  # of many, those that cut fewest dimensions
            return [whole, *grids[:MOST_GRIDS]]
    return [whole]


_CHOOSING = frozenset(("max", "min", "argmax", "argmin"))
"""Monoids that choose among values and so never round."""


def uncut(operation: Operation) -> set[int]:
    """Dimensions that are never cut: reductions whose partial results are rounded to a narrow type, or not alike."""
    signature = operation.signature
    if signature is None:
        return set()
    narrow = any(kind.dtype.kind not in "biu" and kind.dtype.itemsize < 4 for _, kind in operation.outputs)
    narrow = narrow and not _CHOOSING.issuperset(signature.monoids.values())
    unlike = len({projection for _, projection in signature.outputs}) > 1
    return set(signature.monoids) if narrow or unlike else set()


@lru_cache(maxsize=1024)
def _factorizations(count: int, rank: int) -> tuple[Grid, ...]:
    if rank == 0:
        return ((),) if count == 1 else ()
    out = []
    for first in range(count, 0, -1):
        if count % first == 0:
            out += [(first, *rest) for rest in _factorizations(count // first, rank - 1)]
    return tuple(out)


# ---------------------------------------------------------------------------------------------------------------------
# shardings


def sharding_of(operation: Operation, grid: Grid, machines: int) -> Sharding:
    """A grid without a mesh: machines are filled in row-major order, and further parts are waves."""
    place = run_placement([max(1, min(p, n)) for p, n in zip(grid, operation.index.shape, strict=True)], machines)
    return Sharding(place.digits, place.waves)


def waved(operation: Operation, sharding: Sharding, waves: Waves) -> Sharding:
    """The sharding with each machine's part cut again."""
    if waves.count <= 1 or operation.signature is None:
        return sharding
    parts = [p * w for p, w in zip(sharding.parts, sharding.waves, strict=True)]
    wanted = {"rows": _streamed, "longest": _deep, "all": _spread}[waves.along](operation, parts, waves.count)
    return replace(sharding, waves=tuple(max(1, n // p) for n, p in zip(wanted, sharding.parts, strict=True)))


def _making(node: Operation, names: tuple[str, ...]) -> Operation:
    """The operation with those outputs alone that are read: there may be a kernel for one of several."""
    if len(names) == len(node.outputs):
        return node
    return replace(node, outputs=tuple((name, kind) for name, kind in node.outputs if name in names), signature=None)


def _following(operation: Operation, sharding: Sharding, made: Mapping[Operation, Step]) -> Sharding | None:
    """The waves of what an operation reads, so that it follows wave by wave; None where there is none to follow.

    Only operations without reductions follow, along dimensions that are cut alike.
    """
    signature = operation.signature
    if signature is None or signature.monoids:
        return None
    for name, tensor in operation.inputs:
        producer = tensor.producer
        if not isinstance(producer, Operation):
            continue
        before = made[producer]
        if before.where.run:
            continue  # runs go over the borders of dimensions: a wave of them is no cut of one
        held = output_placement(producer, tensor.output, before.where) if before.stage == "block" else before.where
        projection = signature.input(name)
        turns = [1] * operation.index.rank
        for row, extent, digits, waves in zip(
            projection.map.matrix, projection.shape, held.digits, held.waves, strict=True
        ):
            moved = [k for k, c in enumerate(row) if c]
            if len(moved) == 1 and row[moved[0]] == 1 and extent == 1 and sharding.digits[moved[0]] == digits:
                turns[moved[0]] = waves
        if prod(turns) > 1 and prod(turns) == prod(held.waves):  # else a wave would wait for several of what it reads
            return replace(sharding, waves=tuple(turns))
    return None


def _streamed(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along one dimension, so that chains of operations stream: the one that is cut, or the longest."""
    shape = operation.index.shape
    monoids = operation.signature.monoids if operation.signature else {}
    free = [k for k, n in enumerate(shape) if k not in monoids and n > parts[k]]
    cut = [k for k in free if parts[k] > 1] or sorted(free, key=lambda k: -shape[k])[:1]
    if not cut:
        cut = [k for k in monoids if shape[k] > parts[k] and k not in uncut(operation)][:1]
    return [min(p * waves, shape[k]) if k in cut[:1] else p for k, p in enumerate(parts)]


def _deep(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along the longest dimension, so that a long reduction streams with what it reads."""
    shape = operation.index.shape
    free = [k for k, n in enumerate(shape) if n > parts[k] and k not in uncut(operation)]
    cut = max(free, key=lambda k: shape[k] / parts[k], default=-1)
    return [min(p * waves, shape[k]) if k == cut else p for k, p in enumerate(parts)]


def _spread(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along every dimension in turn, the longest blocks first: small blocks of a contraction."""
    out, shape = list(parts), operation.index.shape
    while waves > 1:
        free = [k for k, n in enumerate(shape) if n >= 2 * out[k] and k not in uncut(operation)]  # no block is empty
        if not free:
            break
        longest = max(free, key=lambda k: shape[k] / out[k])
        out[longest] *= 2
        waves //= 2
    return out


def partition_of(box: Box, placement: Placement) -> Partition:
    """The cuts of a box by a placement's levels: machine parts first, waves inside."""
    if placement is undivided(box.rank):
        return Partition(tuple([(a, a + n) for a, n in zip(box.start, box.shape, strict=True)]))
    rows = zip(box.shape, placement.digits, placement.waves, box.start, strict=True)
    bounds = [cut_bounds(n, digits, waves, placement.weights, a) for n, digits, waves, a in rows]
    return Partition(tuple(tuple(edges.tolist()) for edges in bounds))


def _placed(
    shape: Sequence[int], digits: Sequence[Digits], waves: Sequence[int], weights: tuple[int, ...] = ()
) -> Placement:
    """The placement of a box; no dimension has more blocks than points."""
    if not weights and not any(digits) and all(count == 1 for count in waves):
        return undivided(len(shape))
    inner = []
    for n, row, count in zip(shape, digits, waves, strict=True):
        least = int(np.diff(part_bounds(n, tuple(row), weights)).min()) if weights and count > 1 else None
        inner.append(max(1, min(count, n // prod(extent for extent, _ in row) if least is None else least)))
    grid = [prod(extent for extent, _ in row) * w for row, w in zip(digits, inner, strict=True)]
    return Placement(tuple(grid), tuple(tuple(row) for row in digits), tuple(inner), weights=weights)


def index_placement(operation: Operation, sharding: Sharding) -> Placement:
    """Where the shards of an operation run."""
    return _placed(operation.index.shape, sharding.digits, sharding.waves, sharding.weights)


def drivers(operation: Operation, output: str) -> tuple[int | None, ...]:
    """Per dimension of an output the index dimension that moves it."""
    if operation.signature is None:
        return (None,) * len(operation.output_types[output].shape)
    rows = operation.signature.output(output).map.matrix
    return tuple(next((k for k, c in enumerate(row) if c), None) for row in rows)


def output_placement(operation: Operation, output: str, where: Placement) -> Placement:
    """Where the blocks of an output lie that a finished step makes, given where its shards run."""
    rows = drivers(operation, output)
    grid = tuple(1 if k is None else where.grid[k] for k in rows)
    digits = tuple(() if k is None else where.digits[k] for k in rows)
    waves = tuple(1 if k is None else where.waves[k] for k in rows)
    return Placement(grid, digits, waves, where.replica, where.offset, weights=where.weights)


def combine_placement(operation: Operation, where: Placement) -> Placement:
    """Where the results of a cut reduction are combined: over all owners of its partial results.

    The owners of the partial results of one block share it along its longest dimension, so that each receives only
    its own part of the others' (a reduce-scatter). Small results stay whole: a message costs more than their bytes.
    """
    (name, kind), *_ = operation.outputs  # all outputs of a cut reduction have one shape
    rows = drivers(operation, name)
    reduced = sorted(operation.signature.monoids) if operation.signature else []
    owners = [pair for k in reduced for pair in where.digits[k]]
    digits = [() if k is None else where.digits[k] for k in rows]
    waves = [1 if k is None else where.waves[k] for k in rows]
    if owners and prod(kind.shape) * kind.dtype.itemsize >= SMALL_BYTES:
        shared = _shared(kind.shape, digits, owners)
        if shared is not None:
            digits, waves = shared, [1] * len(waves)
    return _placed(kind.shape, digits, waves, where.weights)


def _shared(shape: Sequence[int], digits: Sequence[Digits], owners: Sequence[tuple[int, int]]) -> list[Digits] | None:
    """The cuts with the owners' cuts inside: along one dimension, or split over two where that leaves smaller parts.

    None where no dimension is long enough.
    """
    out = list(digits)
    for extent, stride in owners:
        lengths = [n // prod(e for e, _ in row) for n, row in zip(shape, out, strict=True)]
        best: tuple[int, int, int, int, int] | None = None  # (size of the largest part, cuts, first, its dim, other)
        for first in (n for n in range(1, extent + 1) if extent % n == 0):
            second = extent // first
            for a, b in permutations(range(len(shape)), 2) if first > 1 else ((k, k) for k in range(len(shape))):
                if (first > 1 and (first > lengths[a] or second > lengths[b])) or second > lengths[b]:
                    continue
                rest = prod(n for k, n in enumerate(lengths) if k not in (a, b))
                size = rest * -(-lengths[b] // second) * (-(-lengths[a] // first) if a != b else 1)
                found = (size, int(first > 1 and second > 1), first, a, b)
                best = found if best is None or found < best else best
        if best is None:
            return None
        _, _, first, a, b = best
        second = extent // first
        if first > 1:
            out[a] = (*out[a], (first, stride * second))
        if second > 1:
            out[b] = (*out[b], (second, stride))
    return out


def in_runs(
    shape: Sequence[int], digits: Sequence[Digits], owners: Digits, offset: int, machines: int, *, spare: bool = False
) -> Placement | None:
    """A placement by which so many owners share each part of a tensor, as evenly as single elements allow.

    A part is cut along its two longest dimensions: into as few rows, and those into as few pieces, as keep the run of
    each owner within 1 % of the least, since every piece is a task. Machines behind those of the parts take as much as
    the owners; if they are spare, up to twice as much, so that runs are rounded down. Else the owner with
    the least, which receives most, has as much as can be. None where there is nothing to share.
    """
    parts = [-(-n // prod(extent for extent, _ in row)) for n, row in zip(shape, digits, strict=True)]
    bare = Placement((1,) * len(shape), tuple(digits), (1,) * len(shape), owners, offset)
    used, rest = prod(bare.parts) * bare.owners, max(0, machines - bare.first_of_rest)
    rest = rest if prod(bare.parts) <= MOST_LEFT * rest else 0
    longest = sorted(sorted(range(len(shape)), key=lambda k: -parts[k])[:2])
    if bare.owners == 1 or not longest or prod(parts) <= 1:
        return None
    row, column = longest[0], longest[-1]
    rows, columns = parts[row] if row != column else 1, parts[column]
    coarse, fine = np.arange(1, rows + 1), np.arange(1, columns + 1)
    ways = [(coarse, np.ones_like(coarse)), (np.full_like(fine, rows), fine)]
    in_rows, in_pieces = (np.concatenate(both) for both in zip(*ways, strict=True))
    run = -(-in_rows * in_pieces * used // (bare.owners * (used + rest)))
    size = run * -(-rows // in_rows) * -(-columns // in_pieces)
    close = size <= 1.01 * size.min()
    if not spare and rows * columns <= min(SMALL_PART, 100 * bare.owners):
        shares = [_shares(rows, columns, *way, bare.owners) for way in zip(in_rows, in_pieces, run, strict=True)]
        least, most = (np.asarray(ends) for ends in zip(*shares, strict=True))
        even = most <= max(1.01 * most.min(), most[close].min())
        close = even & (rows * columns - least <= 1.01 * (rows * columns - least[even].max()))
    best = int(np.argmax(close))
    waves = [1] * len(shape)
    waves[row] = int(in_rows[best])
    waves[column] = int(in_pieces[best])
    grid = tuple(n * w for n, w in zip(bare.parts, waves, strict=True))
    found = replace(bare, grid=grid, waves=tuple(waves), run=int(run[best]), rest=rest)
    if spare and rest and found.run > 1:
        less = replace(found, run=prod(waves) * used // (bare.owners * (used + rest)))
        found = less if less.left_run <= 2 * less.run else found
    return found if found.left else replace(found, rest=0)


SMALL_PART = 1 << 12
"""Elements of a part up to which its owners' shares are counted, if an element of each is more than 1 %: to count those
of larger parts would take longer than the rest of planning."""


def _shares(rows: int, columns: int, in_rows: int, in_pieces: int, run: int, owners: int) -> tuple[int, int]:
    """(the least, the most) elements of any owner of a part that is cut so, in runs of so many blocks."""
    sizes = np.outer(np.diff(even_cuts(rows, in_rows)), np.diff(even_cuts(columns, in_pieces))).reshape(-1)
    one = Placement((len(sizes),), ((),), (len(sizes),), ((owners, 1),), run=run, rest=len(sizes))
    starts, stops = one.runs(np.arange(owners))
    held = np.append(0, np.cumsum(sizes))
    shares = held[stops] - held[starts]
    return int(shares.min()), int(shares.max())


Sharing = Literal["boxes", "runs"]
"""How owners of the same part of a result (or of a source) share it: in boxes, or in runs of single elements."""


def shared_in_runs(operation: Operation, where: Placement, machines: int) -> Placement | None:
    """Where the results of a cut reduction are combined as evenly as can be: by the owners of their partial results."""
    shape = operation.outputs[0][1].shape
    if where.weights:
        return None
    digits = [() if k is None else where.digits[k] for k in drivers(operation, operation.outputs[0][0])]
    reduced = sorted(operation.signature.monoids) if operation.signature else []
    return in_runs(
        shape, digits, tuple(pair for k in reduced for pair in where.digits[k]), where.offset, machines, spare=True
    )


MOST_LEFT = 12
"""The most parts of which one of the rest of the machines takes what is left: few idle machines save little."""
SMALL_BYTES = 1 << 16
"""Results below this are combined by one machine."""


# ---------------------------------------------------------------------------------------------------------------------
# shardings -> steps


def steps_of(
    graph: Graph,
    shardings: Mapping[Operation, Sharding] | Mapping[Operation, Grid],
    machines: int,
    decide: Decide,
    atoms: Atoms,
    waves: Waves = WHOLE,
    places: Sequence[int] = (),
    *,
    sharing: Sharing = "boxes",
) -> tuple[Step, ...]:
    """The steps of a choice: operations with their cuts, combinations of cut reductions, stores.

    Args:
        graph: what is computed.
        shardings: of every operation; a plain grid fills machines in order.
        machines: how many.
        decide: what will compute a shard.
        atoms: sink -> the extents of the region that must have one writer, or None.
        waves: how every machine's part is cut again.
        places: machine number -> its place in the order in which machines are filled, for sinks that are pinned.
        sharing: how the results of cut reductions are combined.
    """
    out: list[Step] = []
    made: dict[Operation, Step] = {}
    nodes = graph.nodes()
    read = {node for node in nodes if isinstance(node, Tensor)}
    weights = next((one.weights for one in shardings.values() if isinstance(one, Sharding)), ())
    for node in nodes:
        if isinstance(node, Operation):
            chosen = shardings[node]
            sharding = chosen if isinstance(chosen, Sharding) else sharding_of(node, chosen, machines)
            turns = waved(node, sharding, waves)
            where = index_placement(node, (_following(node, sharding, made) if waves.along == "all" else None) or turns)
            cuts = partition_of(node.index, where)
            names = tuple(name for name, _ in node.outputs)
            kept = tuple(name for name in names if Tensor(node, name) in read) or names[:1]
            if node.signature is not None and any(where.grid[k] > 1 for k in node.signature.monoids):
                out.append(Step(node, "partial", cuts, decide(node, "partial"), outputs=names, where=where))
                joined = shared_in_runs(node, where, machines) if sharing == "runs" else None
                joined = joined or combine_placement(node, where)
                cuts = partition_of(node.outputs[0][1].box, joined)
                made[node] = Step(node, "combine", cuts, decide(node, "combine"), outputs=kept, where=joined)
            else:
                found = decide(_making(node, kept), "block")
                made[node] = Step(node, "block", cuts, found, outputs=kept, where=where)
            out.append(made[node])
        elif isinstance(node, Sink):
            cuts, where = _store(node, made, atoms(node), machines, waves, weights)
            if node.placement is not None:
                where = _pinned(where, places[node.placement] if places else node.placement)
            out.append(Step(node, "store", cuts, WRITE, where=where))
    return tuple(out)


def _store(
    sink: Sink,
    made: Mapping[Operation, Step],
    atom: tuple[int, ...] | None,
    machines: int,
    waves: Waves,
    weights: tuple[int, ...],
) -> tuple[Partition, Placement]:
    """The blocks that exist, where the tensor is an operation's own output or shows most of one; otherwise even rows;
    aligned to chunks."""
    tensor = sink.tensor
    producer = tensor.producer
    step = made[producer] if isinstance(producer, Operation) else None
    if step is not None and not (step.where.run and (atom or sink.placement is not None)):
        producer = maker(tensor)
        cuts = output_partition(producer, tensor.output, step.cuts) if step.stage == "block" else step.cuts
        return _aligned_to(atom, tensor, cuts, _made_at(tensor, step))
    shown = _shown_at(tensor, made)
    if shown is not None:
        return _aligned_to(atom, tensor, partition_of(tensor.type.box, shown), shown)
    return stored_alone(tensor, atom, machines, waves, weights)


def _made_at(tensor: Tensor, step: Step) -> Placement:
    """Where the blocks of an operation's result lie, given its last step."""
    return output_placement(maker(tensor), tensor.output, step.where) if step.stage == "block" else step.where


def _shown_at(tensor: Tensor, made: Mapping[Operation, Step]) -> Placement | None:
    """The cuts of the result that most values of a selection come from, along the dimensions that show it; None where
    there is no such result, or a cut of it is not seen."""
    if tensor not in _SHOWN:
        term = max(read_terms(tensor), key=_values, default=None)
        _SHOWN[tensor] = term if term is not None and 2 * _values(term) > prod(tensor.shape) else None
    term = _SHOWN[tensor]
    if term is None or term.origin is None or not isinstance(term.origin.producer, Operation):
        return None
    where = _made_at(term.origin, made[term.origin.producer])
    shown = [[row for row, step, _ in dim.rows if where.grid[row] > 1 and step > 0] for dim in term.dims]
    if where.run or sum(map(len, shown)) != sum(n > 1 for n in where.grid) or any(len(rows) > 1 for rows in shown):
        return None
    digits = [where.digits[rows[0]] if rows else () for rows in shown]
    if any(prod(n for n, _ in row) > size for row, size in zip(digits, tensor.shape, strict=True)):
        return None
    turns = [where.waves[rows[0]] if rows else 1 for rows in shown]
    return replace(_placed(tensor.shape, digits, turns, where.weights), replica=where.replica, offset=where.offset)


_SHOWN: weakref.WeakKeyDictionary[Tensor, Term | None] = weakref.WeakKeyDictionary()
"""Selection -> the piece that most of its values come from: every plan that is considered asks for it."""


def _values(term: Term) -> int:
    return prod(b - a for (a, b), _ in term.dims)


def stored_alone(
    tensor: Tensor, atom: tuple[int, ...] | None, machines: int, waves: Waves, weights: tuple[int, ...] = ()
) -> tuple[Partition, Placement]:
    """Even rows of a tensor, along the first dimension that has enough of them; those of a file in chunks go by chunks.

    Args:
        tensor: what is stored.
        atom: the extents of the region that must have one writer, or None.
        machines: how many.
        waves: how every machine's part is cut again.
        weights: of machines that have unequal parts.
    """
    shape = tensor.shape
    rows = [-(-n // size) for n, size in zip(shape, atom or (1,) * len(shape), strict=True)]
    longest = max(range(len(shape)), key=lambda k: (min(rows[k], machines * waves.count), -k)) if shape else 0
    empty = not tensor.type.box.size
    across = [1 if empty or k != longest else min(n, machines) for k, n in enumerate(rows)]
    digits = [((n, 1),) if n > 1 else () for n in across]
    turns = [1 if empty or k != longest else min(waves.count, rows[k]) for k in range(len(shape))]
    where = _placed(shape, digits, turns, weights)
    return _aligned_to(atom, tensor, partition_of(tensor.type.box, where), where)


def _aligned_to(
    atom: tuple[int, ...] | None, tensor: Tensor, cuts: Partition, where: Placement
) -> tuple[Partition, Placement]:
    """Blocks whose boundaries are those of chunks."""
    if atom is None:
        return cuts, where
    cuts = Partition(
        tuple(_aligned(c, size, extent) for c, size, extent in zip(cuts.cuts, atom, tensor.shape, strict=True))
    )
    inner = tuple(max(1, -(-blocks // parts)) for blocks, parts in zip(cuts.grid, where.parts, strict=True))
    return cuts, Placement(cuts.grid, where.digits, inner, where.replica, where.offset, weights=where.weights)


def _pinned(where: Placement, machine: int) -> Placement:
    """The same blocks, all on one machine."""
    return Placement(where.grid, ((),) * len(where.grid), tuple(max(1, n) for n in where.grid), (), machine)


def _aligned(cuts: Sequence[int], atom: int, extent: int) -> tuple[int, ...]:
    """Boundaries moved to multiples of a chunk's extent, so that every chunk has one writer."""
    if extent == 0:
        return (0, 0)
    return tuple(sorted({0, extent} | {min(extent, round(cut / atom) * atom) for cut in cuts[1:-1]}))


def takes_boxes(node: Operation | Sink) -> bool:
    """Whether a node is a sink that takes any box, so that what it stores comes piece by piece."""
    return isinstance(node, Sink) and not (isinstance(node.target, FileTarget) and node.target.format == "zarr")


def maker(tensor: Tensor) -> Operation:
    """The operation that makes a tensor."""
    return cast("Operation", tensor.producer)
