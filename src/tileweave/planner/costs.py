"""Costs in closed form: what every machine reads, receives and holds, from signatures and placements alone.

A machine works on one box of an operation's index and holds one box of each tensor, so traffic is the size of the box
that it needs less what it holds of it: a product over dimensions. Waves cut a machine's box again; dimensions that no
common index dimension moves are summed apart, so a million shards cost no more than their cuts. Arrays run over
machines (and over candidates, in the search), never over shards. Counted are distinct points: a broadcast moves one.

Source: own; marginal costs per index point after Tapestry, "The Cost Information".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.graph import FileData, Graph, Operation, Source, Tensor, resolve
from tileweave.graph.ops.grouped.rows import REDUCTIONS
from tileweave.graph.ops.operators import is_elementwise
from tileweave.planner.placement import Boxes, IntArray
from tileweave.space import Box, Projection

Flags = np.ndarray[Any, np.dtype[np.bool_]]


# ---------------------------------------------------------------------------------------------------------------------
# projections on boxes of all machines


def _projected(projection: Projection, index: Box, boxes: Boxes) -> Boxes:
    """What boxes of the index touch, from the origin of the tensor."""
    base = projection.span(index).start
    rows = zip(projection.map.matrix, projection.map.offset, projection.shape, projection.stride, base, strict=True)
    low, high = [], []
    zero = np.zeros((1,) * boxes.here.ndim, np.int64)
    for row, offset, extent, stride, start in rows:
        first: IntArray = zero + (offset - start)
        last: IntArray = first + ((extent - 1) * stride + 1 if extent else 0)
        some: Any = True
        for k, c in enumerate(row):
            if c:
                a, b = c * boxes.low[k], c * (boxes.high[k] - 1)
                first, last = first + (a if c > 0 else b), last + (b if c > 0 else a)
                some = some & (boxes.low[k] < boxes.high[k])
        low.append(first)
        high.append(np.where(some, last, first))
    return Boxes(low, high, boxes.here, boxes.waves)


def input_boxes(operation: Operation, name: str, boxes: Boxes) -> Boxes:
    """The region of a named input that boxes of the index need."""
    if operation.signature is None:
        return _whole(operation.input(name).shape, boxes)
    return _projected(operation.signature.input(name), operation.index, boxes)


def output_boxes(operation: Operation, name: str, boxes: Boxes) -> Boxes:
    """The region of an output that boxes of the index make."""
    if operation.signature is None:
        return _whole(operation.output_types[name].shape, boxes)
    return _projected(operation.signature.output(name), operation.index, boxes)


def _whole(shape: Sequence[int], boxes: Boxes) -> Boxes:
    zero = np.zeros((1,) * boxes.here.ndim, np.int64)
    return Boxes([zero for _ in shape], [zero + n for n in shape], boxes.here, boxes.waves)


def index_of_boxes(operation: Operation, output: str, boxes: Boxes) -> Boxes:
    """The index points whose result falls in boxes of an output: all of every reduction dimension."""
    index, signature = operation.index, operation.signature
    zero = np.zeros((1,) * boxes.here.ndim, np.int64)
    low, high = [zero + a for a in index.start], [zero + b for b in index.stop]
    if signature is None:
        return Boxes(low, high, boxes.here, boxes.waves)
    projection = signature.output(output)
    base = projection.span(index).start
    for r, (row, offset) in enumerate(zip(projection.map.matrix, projection.map.offset, strict=True)):
        k = next((k for k, c in enumerate(row) if c), None)
        if k is not None:
            low[k] = (boxes.low[r] + base[r] - offset) // row[k]
            high[k] = -(-(boxes.high[r] + base[r] - offset) // row[k])
    return Boxes(low, high, boxes.here, boxes.waves)


# ---------------------------------------------------------------------------------------------------------------------
# reads through selectors


class TermDim(NamedTuple):
    """One dimension of the tensor that is read: the piece's own range, and (row, step, offset) of what it moves."""

    clip: tuple[int, int]
    rows: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Term:
    """One piece of an input: the values that it takes from one origin.

    Args:
        origin: the tensor of a source or an operation; None for constants.
        dims: of the tensor that is read.
        fixed: (row, coordinate) of the origin that no dimension moves.
        itemsize: bytes per element.
    """

    origin: Tensor | None
    dims: tuple[TermDim, ...]
    fixed: tuple[tuple[int, int], ...]
    itemsize: int

    @property
    def source(self) -> Source | None:
        """The source that holds the values, if one does."""
        made = self.origin.producer if self.origin is not None else None
        return made if isinstance(made, Source) else None


def read_terms(tensor: Tensor) -> tuple[Term, ...]:
    """Where the values of a tensor come from."""
    out = []
    for piece in resolve(tensor, tensor.type.box):
        moved: list[list[tuple[int, int, int]]] = [[] for _ in tensor.shape]
        fixed = []
        for r, (row, offset) in enumerate(zip(piece.map.matrix, piece.map.offset, strict=True)):
            dim = next((d for d, c in enumerate(row) if c), None)
            if dim is None:
                fixed.append((r, offset))
            else:
                moved[dim].append((r, row[dim], offset))
        dims = zip(piece.box.start, piece.box.stop, moved, strict=True)
        out.append(
            Term(
                piece.origin,
                tuple(TermDim((a, b), tuple(rows)) for a, b, rows in dims),
                tuple(fixed),
                tensor.dtype.itemsize,
            )
        )
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Held:
    """Where an origin lies.

    Args:
        boxes: the box of each machine, or several that have no point in common.
        bounds: boundaries of its blocks per dimension, or None where each machine's box is one block of even cuts.
        shape: of the tensor.
        parts: blocks per dimension, where there are no bounds.
    """

    boxes: tuple[Boxes, ...]
    bounds: tuple[IntArray, ...] | None
    shape: tuple[int, ...] = ()
    parts: tuple[Any, ...] = ()

    def part(self, row: int, at: IntArray) -> IntArray:
        """The number of the block along a dimension that holds a coordinate."""
        if self.bounds is not None:
            bounds = self.bounds[row]
            extent = int(bounds[-1] - bounds[0]) if len(bounds) else 0
            if 0 < 2 * extent < at.size:  # a table of all coordinates is smaller than what is asked for
                table = np.repeat(np.arange(-1, len(bounds)), [1, *np.diff(bounds), 1])
                return np.asarray(table[np.clip(at - (bounds[0] - 1), 0, extent + 1)])
            return np.asarray(np.searchsorted(bounds, at, "right") - 1)
        length, longer = self.shape[row] // self.parts[row], self.shape[row] % self.parts[row]
        head = longer * (length + 1)
        return np.asarray(np.where(at < head, at // (length + 1), longer + (at - head) // np.maximum(length, 1)))

    def hit(self, row: int, first: IntArray, last: IntArray, step: int) -> IntArray:
        """How many blocks along a dimension hold one of the coordinates first, first + step, .., last."""
        ends = self.part(row, first), self.part(row, last)
        if step == 1 or self.bounds is None or not first.size:
            return np.asarray(ends[1] - ends[0] + 1)
        below = (self.bounds[row] - 1 - first.flat[0]) // step  # all that are asked for are alike modulo the step
        found = np.cumsum(below[1:] > below[:-1])
        low, high = (np.clip(end, 0, len(found) - 1) for end in ends)
        return np.asarray(found[high] - found[low] + 1)

    def longest(self, row: int) -> Any:
        """The most coordinates of one block along a dimension."""
        if self.bounds is not None:
            return int(np.diff(self.bounds[row]).max()) if len(self.bounds[row]) > 1 else 0
        return -(-self.shape[row] // self.parts[row])


class Arrival(NamedTuple):
    """What machines take from one origin, over all waves; arrays over machines.

    Args:
        wanted: bytes that are needed.
        moved: bytes of them that lie elsewhere.
        messages: blocks that they come from.
        pieces: the same with the machine's own.
        blocks: the most blocks that one shard reads.
        arriving: the most bytes that one shard gets from one block elsewhere.
    """

    wanted: IntArray
    moved: IntArray
    messages: IntArray
    pieces: IntArray
    blocks: IntArray
    arriving: IntArray


def arrival(term: Term, reader: Boxes, held: Held | None, counts: Sequence[IntArray] = ()) -> Arrival:
    """What every machine takes through one term.

    Args:
        term: the piece.
        reader: the region that each machine (and wave) needs of the tensor that is read.
        held: where the origin lies; None for storage, which holds the whole of it; blocks that no machine has wait in
            files, of which a strided read takes the gaps too.
        counts: per index dimension, how many waves each machine has; without waves, nothing.
    """
    waves = len(counts)
    lengths, touched, longest, span = [], [], [], []
    chunks, covered = chunks_of(term.source) if held is None else (), []
    here = reader.here
    for at, dim in enumerate(term.dims):
        low, high = _clipped(reader, at, dim)
        size = np.maximum(high - low, 0)
        if not dim.rows:
            lengths.append(np.minimum(size, 1))
            continue
        lengths.append(size)
        for row, step, offset in dim.rows:
            ends = (step * low + offset, step * (high - 1) + offset)
            ends = ends if step > 0 else ends[::-1]
            span.append(np.where(size > 0, ends[1] - ends[0] + 1, 0))
            if chunks:
                covered.append(np.where(size > 0, chunked(ends[0], ends[1], *chunks[row]), 0))
            if held is not None and term.source is None:
                touched.append(np.where(size > 0, held.hit(row, *ends, abs(step)), 0))
                covered.append(abs(step) * size - (abs(step) - 1) * touched[-1])
                longest.append(np.minimum(span[-1], held.longest(row)))
    item = term.itemsize
    wanted = wave_sum([here, *lengths], counts) * item
    full = [np.minimum(n, 1) for n in lengths]
    if held is None:
        some = wave_sum([here, *full], counts)
        read = wave_sum([here, *full, *(covered or span)], counts) * item
        read = read * prod(int(chunked(at, at, *chunks[row])) for row, at in term.fixed) if chunks else read
        return Arrival(wanted, read, some, some, np.minimum(some, 1), _most([here, *full, *span], waves) * item)
    if not held.boxes:
        wanted = wave_sum([here, *full, *covered], counts) * item
    own: Any = 0
    near: Any = 0
    complete: Any = 0
    for boxes in held.boxes:
        own_here, mine, met = _held_part(term, reader, boxes, lengths, waves, held)
        own = own + wave_sum([here & own_here, *mine], counts) * item
        near = near + wave_sum([here & own_here, *(np.minimum(n, 1) for n in mine), *met], counts)
        all_here = [(m == n) * np.minimum(n, 1) for m, n in zip(mine, lengths, strict=True)]
        complete = complete + wave_sum([here & own_here, *all_here], counts)
    if term.source is not None:  # a source is read as one box, however many machines hold it
        some, one = wave_sum([here, *full], counts), _most([here, *full], waves)
        return Arrival(wanted, wanted - own, some - complete, some, one, _most([here, *full, *span], waves) * item)
    blocks = wave_sum([here, *full, *touched], counts)
    arriving = np.where(own < wanted, _most([here, *full, *longest], waves) * item, 0)
    away, most = np.maximum(blocks - near, 0), _most([here, *full, *touched], waves)
    return Arrival(wanted, wanted - own, away, blocks, most, arriving)


OBJECT_BYTES = 1 << 16
"""Arrays of the process that runs a plan travel with the tasks of a cluster up to this size; larger ones, and larger
results, are objects of their own."""


def objects_of(taken: Arrival, region: Boxes) -> Any:
    """How many arrays of the process that runs a plan are objects of their own, where machines take regions of them.

    Args:
        taken: from one origin, by machines (the last axis).
        region: that each of them needs, in whatever waves.

    Returns:
        Of each machine; where several take one region, each has its share.
    """
    key: Any = np.zeros(1, np.int64)
    for low in region.low:
        key = key * KEY + (low if not region.waves else low.reshape(*low.shape[: -region.waves], -1)[..., 0])
    some = taken.moved > 0
    keys = np.sort(np.where(some, key & np.iinfo(np.int64).max, -1), -1)  # of many dimensions they overflow
    distinct = (keys[..., 1:] != keys[..., :-1]).sum(-1, keepdims=True) + (keys[..., :1] >= 0)
    large = taken.moved > taken.messages * OBJECT_BYTES
    return taken.messages * large * distinct / np.maximum(some.sum(-1, keepdims=True), 1)


KEY = 1_000_003
"""By which the first coordinates of a region make one number."""


def crossed_inputs(operation: Operation, terms_of: Callable[[Tensor], Sequence[Term]]) -> frozenset[str]:
    """The inputs of an elementwise operation that lie in memory across the order in which its result is made, where
    others lie along it: a kernel then reads single elements of the one or the other."""
    shape = operation.index.shape
    fast = next((k for k in reversed(range(len(shape))) if shape[k] > 1), None)
    if not is_elementwise(operation.operator) or operation.signature is None or fast is None:
        return frozenset()
    along: dict[str, bool] = {}
    for name, tensor in operation.inputs:
        rows = operation.signature.input(name).map.matrix
        dims = {d for d, row in enumerate(rows) if row[fast]}
        for term in terms_of(tensor):
            if term.origin is not None and dims:
                wide = [r for r, n in enumerate(term.origin.shape) if n > 1]
                moved = {r for d in dims for r, _, _ in term.dims[d].rows}
                if moved and wide:
                    along[name] = along.get(name, True) and wide[-1] in moved
    return frozenset(name for name, is_along in along.items() if not is_along) if any(along.values()) else frozenset()


ROW_FUNCTIONS = 12.0
"""What a value of a whole row costs beside the row's elements, in functions: the lanes of a vector are put together,
and what follows waits for it. Of a reduction alone, rows of fewer elements cost a function each: several are formed in
the lanes of one vector."""


def arithmetic(operation: Operation) -> tuple[float, float]:
    """(operations, functions among them) per point of the index, as times are estimated by them."""
    costs = dict(operation.signature.costs) if operation.signature is not None else {}
    flops, functions = (costs.get(name, 0.0) for name in ("flops", "functions"))
    if operation.operator == "rows":
        functions += ROW_FUNCTIONS * sum(name in REDUCTIONS for name, _, _ in operation.parameter("program"))
    elif operation.operator in REDUCTIONS:
        row = _row(operation)
        functions += min(ROW_FUNCTIONS, row) / row if row > 1 else 0.0
    return flops, functions


def _row(operation: Operation) -> int:
    """How many neighbours in memory a reduction makes one value of, where its operand lies as it is; else 1."""
    reduced, out = {dim for dim, _ in operation.signature.reductions} if operation.signature is not None else set(), 1
    for dim, extent in reversed(list(enumerate(operation.index.shape))):
        if extent > 1 and dim not in reduced:
            break
        out *= extent
    return out


def in_files(source: Source | None) -> bool:
    """Whether a source is read from storage, not from the memory of the process that runs the plan."""
    return source is not None and isinstance(source.data, FileData)


def partners(term: Term, reader: Boxes, held: Held) -> Flags:
    """Which machines give or take something through a term, each taking from all others that hold some of what it has
    not got."""
    takes = arrival(term, reader, held).moved > 0
    found = takes.copy()
    for boxes in held.boxes:
        asked = np.flatnonzero(takes)[:, None]
        meets = boxes.here & (asked != np.arange(len(boxes.here)))
        for at, dim in enumerate(term.dims):
            low, high = (np.broadcast_to(x, takes.shape)[asked] for x in _clipped(reader, at, dim))
            meets = meets & (low < high)
            for row, step, offset in dim.rows:
                ends = (step * low + offset, step * (high - 1) + offset)
                ends = ends if step > 0 else ends[::-1]
                meets = meets & (ends[0] < boxes.high[row]) & (boxes.low[row] <= ends[1])
        for row, where in term.fixed:
            meets = meets & (boxes.low[row] <= where) & (where < boxes.high[row])
        found |= meets.any(0)
    return found


def stored_in_files(graph: Graph) -> tuple[int, int]:
    """(how many of a graph's sources are files, their bytes)."""
    sizes = [node.type.size_bytes for node in graph.nodes() if isinstance(node, Source) and in_files(node)]
    return len(sizes), sum(sizes)


def chunks_of(source: Source | None) -> tuple[tuple[int, int], ...]:
    """(extent of a chunk, extent) per dimension of a source whose file is read in whole chunks; else nothing."""
    data = source.data if source is not None else None
    if source is None or not isinstance(data, FileData) or not data.chunks:
        return ()
    return tuple(zip(data.chunks, source.type.shape, strict=True))


def chunked(first: Any, last: Any, chunk: int, extent: int) -> IntArray:
    """How many coordinates the chunks hold that hold these, both included."""
    return np.asarray(np.minimum((last // chunk + 1) * chunk, extent) - first // chunk * chunk)


def _clipped(reader: Boxes, at: int, dim: TermDim) -> tuple[IntArray, IntArray]:
    return np.maximum(reader.low[at], dim.clip[0]), np.minimum(reader.high[at], dim.clip[1])


def _held_part(
    term: Term, reader: Boxes, held: Boxes, lengths: Sequence[IntArray], waves: int, blocks: Held
) -> tuple[Flags, list[IntArray], list[IntArray]]:
    """(whether a machine's box of the origin can be read, how much of each dimension of the read lies in it, and in how
    many blocks per dimension of the origin)."""
    own_here = held.here.reshape(held.here.shape + (1,) * waves)
    mine, met = [], []
    for at, (dim, size) in enumerate(zip(term.dims, lengths, strict=True)):
        first, last = _clipped(reader, at, dim)
        for row, step, offset in dim.rows:
            a, b = (_spread(x[row], waves) for x in (held.low, held.high))
            a, b = (a - offset, b - 1 - offset) if step > 0 else (b - 1 - offset, a - offset)
            first, last = np.maximum(first, -(-a // step)), np.minimum(last, b // step + 1)
        mine.append(np.maximum(last - first, 0) if dim.rows else size)
        for row, step, offset in dim.rows if term.source is None else ():  # a source is read as one box
            ends = (step * first + offset, step * (last - 1) + offset)
            ends = ends if step > 0 else ends[::-1]
            met.append(np.where(mine[-1] > 0, blocks.hit(row, *ends, abs(step)), 0))
    for row, where in term.fixed:
        a, b = (_spread(x[row], waves) for x in (held.low, held.high))
        own_here = own_here & (a <= where) & (where < b)
    return own_here, mine, met


def _spread(array: IntArray, waves: int) -> IntArray:
    return array.reshape(array.shape + (1,) * waves) if waves else array


def _most(factors: Sequence[Any], waves: int) -> IntArray:
    """The product of the factors, each at its largest wave."""
    axes = tuple(range(-waves, 0))
    return np.asarray(prod(f.max(axis=axes) if waves else f for f in factors), np.int64)


def volume(boxes: Boxes, counts: Sequence[IntArray] = ()) -> IntArray:
    """Points of the boxes, summed over waves."""
    sizes = [np.maximum(high - low, 0) for low, high in zip(boxes.low, boxes.high, strict=True)]
    return wave_sum([boxes.here, *sizes], counts)


def wave_sum(factors: Sequence[Any], counts: Sequence[IntArray]) -> IntArray:
    """The sum over all waves of a product of arrays; factors that share no wave axis are summed apart.

    Args:
        factors: arrays over machines, then over the waves of each index dimension (length 1 where nothing varies).
        counts: per index dimension, how many waves each machine has: what a dimension that moves no factor multiplies
            by.
    """
    waves = len(counts)
    if not waves:
        return np.asarray(prod(factors[1:], start=factors[0].astype(np.int64)), np.int64)
    groups: list[tuple[set[int], list[Any]]] = []
    for factor in factors:
        axes = {k for k in range(waves) if factor.shape[k - waves] > 1}
        joined = [group for group in groups if group[0] & axes]
        groups = [group for group in groups if not group[0] & axes or not axes]
        groups.append((axes.union(*(a for a, _ in joined)), [factor, *(f for _, fs in joined for f in fs)]))
    total: Any = 1
    for _, members in groups:
        value = prod(members[1:], start=members[0].astype(np.int64))
        total = total * value.sum(axis=tuple(range(-waves, 0)))
    moved = set().union(*(axes for axes, _ in groups))
    for k, count in enumerate(counts):
        if k not in moved:
            total = total * count
    return np.asarray(total, np.int64)
