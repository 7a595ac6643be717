"""The tasks of a plan: one per shard, with exactly what it reads, in the order in which they are issued.

Every read is resolved to pieces, each from one block of one producing task, from a source, or from a constant. Steps
whose waves follow each other one to one stream: they are issued wave by wave, so that a block is freed soon after it is
made (`streams`); the shards of one wave stand side by side, so machines work together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from math import prod
from operator import mul
from typing import Any, cast

import numpy as np

from tileweave.graph import Operation, Partition, Selector, Sink, Source, Tensor, resolve
from tileweave.graph.ir.nodes import Value
from tileweave.graph.ir.resolve import ViewPiece
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import index_of_output, input_regions, output_partition
from tileweave.planner.placement import Placement
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import drivers, partition_of
from tileweave.planner.streams import issue_order
from tileweave.space import AffineMap, Box
from tileweave.space.box import trusted_box

identity_of = lru_cache(maxsize=64)(lambda rank: AffineMap.identity(rank).matrix)
PARTIAL = "partial"
"""How the names of partial results begin, by which a later wave or a combination reads them: ``partial0.out``."""


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Values of one block.

    Args:
        box: where they go, in coordinates of the tensor that is read.
        map: from those coordinates to the block's tensor.
        task: number of the producing task; -1 for a source or a constant.
        source: the source, if one holds the values.
        block: the box that the block (or the source) holds, in coordinates of its tensor.
        region: the part of the block that is read.
        fill: the constant, if there is neither.
        output: which output of the producing task.
        spilled: whether the block waits in a file.
    """

    box: Box
    map: AffineMap
    task: int
    source: Source | None
    block: Box
    region: Box
    fill: Value = None
    output: str = "out"
    spilled: bool = False

    @property
    def points(self) -> int:
        """The distinct elements that are read: a broadcast dimension counts once."""
        moving = {dim for row in self.map.matrix for dim, c in enumerate(row) if c}
        return prod(n for dim, n in enumerate(self.box.shape) if dim in moving or n == 0)

    @property
    def fetched(self) -> bool:
        """Whether the region is read from storage: of a source, or of a block that is spilled."""
        return self.task < 0 or self.spilled

    @property
    def constant(self) -> bool:
        """Whether neither a block nor a source holds the values."""
        return self.task < 0 and self.source is None

    @property
    def shifts(self) -> bool:
        """Whether the map only moves: the values are a slice of the block."""
        return (self.task >= 0 or self.source is not None) and self.map.matrix == identity_of(len(self.box.shape))

    @property
    def in_order(self) -> bool:
        """Whether the values are neighbours in the block as they are here: dimensions of extent 1 come or go."""
        if self.shifts or self.constant:
            return self.shifts
        moving = [[(dim, c) for dim, c in enumerate(row) if c] for row in self.map.matrix]
        fixed = all(row or n == 1 for row, n in zip(moving, self.region.shape, strict=True))
        found = [row[0] for row in moving if row]
        rest = {*range(self.box.rank)} - {dim for dim, _ in found}
        ones = all(self.box.shape[dim] == 1 for dim in rest)
        return (
            fixed
            and ones
            and found == sorted(found)
            and all(len(row) < 2 for row in moving)
            and all(c == 1 for _, c in found)
        )

    @property
    def whole(self) -> bool:
        """Whether the values are the whole block as it is."""
        return self.shifts and (self.region is self.block or self.region == self.block)


@dataclass(frozen=True, slots=True)
class Read:
    """One input of a task: a region of a tensor, and the pieces that fill it once.

    Args:
        name: as the kernel knows it: of the operation's input, or ``partial0.out`` and so on for partial results.
        dtype: of the tensor.
        box: the region.
        pieces: disjoint; together they cover the region.
    """

    name: str
    dtype: np.dtype[Any]
    box: Box
    pieces: tuple[ReadPiece, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the region as a dense array."""
        return self.box.size * self.dtype.itemsize

    @property
    def partial(self) -> bool:
        """Whether it reads a partial result."""
        return self.name.startswith(PARTIAL) and "." in self.name


@dataclass(frozen=True, slots=True)
class Task:
    """A shard's work: the one record of it, from the planner's counting to the workers of a cluster.

    What all shards of a step share (operation, stage, kernel, names of outputs) is in the step.

    Args:
        number: its place in the issue order.
        step: number of the step in the plan.
        shard: number of the shard in the step.
        machine: where it runs.
        index: the block of the operation's index; of its output for ``combine``; the stored region for a sink.
        reads: its inputs.
        outs: per output that it keeps, the box that it makes (for ``partial``, as if it were complete), or the box that
            it stores.
        needs: numbers of the tasks that must be done first, since it reads what they make.
        after: numbers of the steps all of whose tasks must be done first, since a sequence point says so.
    """

    number: int
    step: int
    shard: int
    machine: int
    index: Box
    reads: tuple[Read, ...]
    outs: tuple[Box, ...]
    needs: tuple[int, ...]
    after: tuple[int, ...] = ()

    @property
    def out(self) -> Box:
        """The box of its first output."""
        return self.outs[0]


def in_one_process(plan: Plan) -> Plan:
    """The plan with the blocks of different machines put together: for a process that is all of these machines.

    Blocks that one machine has in turn stay apart, since memory asked for them, and partial results do, since their
    number decides how a sum is rounded.
    """

    def whole(step: Step) -> Step:
        if step.stage not in ("block", "store") or step.where.wave_count > 1 or step.cuts.count == 1:
            return step
        rank = len(step.where.grid)
        place = Placement((1,) * rank, ((),) * rank, (1,) * rank)
        return replace(step, cuts=partition_of(step.cuts.box, place), where=place)

    return replace(plan, steps=tuple(map(whole, plan.steps)))


def preimage(map: AffineMap, box: Box, target: Box) -> Box:
    """The points of `box` that a map with at most one coefficient per row sends into `target`; maybe empty."""
    out = box
    for row, b, low, high in zip(map.matrix, map.offset, target.start, target.stop, strict=True):
        dim = next((k for k, c in enumerate(row) if c), None)
        if dim is None:
            if not low <= b < high:
                return Box(box.start, (0,) * box.rank)
            continue
        c = row[dim]
        ends = (low - b, high - 1 - b) if c > 0 else (high - 1 - b, low - b)
        first = max(-(-ends[0] // c), out.start[dim])
        last = min(ends[1] // c, out.stop[dim] - 1)
        out = out.with_range(dim, first, max(first, last + 1))
    return out


def block_partition(step: Step, output: str) -> Partition:
    """How an output of a finished step is cut into blocks, one per task."""
    if step.stage == "block" and isinstance(step.node, Operation):
        return output_partition(step.node, output, step.cuts)
    return step.cuts


_Met = tuple[int, int, int, int, int, int, int]
"""Of a block along one row: its share of the shard's number; first and extent of the part that is read, in coordinates
of the reader and of the row; first and extent of the block."""


class _Sight:
    """A tensor, or a part of it, as it is seen through one map: in a source, in blocks, or a constant.

    Every row of the map has at most one coefficient. Where no dimension moves two rows, which blocks a box meets along
    a row follows from its range in one dimension, and the pieces are the product over rows; shards have few ranges.

    Args:
        map: from the tensor to where the values are.
        origin: what has them; None for a constant.
        fill: the constant.
        made: the shards that make the blocks, or None.
    """

    def __init__(self, map: AffineMap, origin: Tensor | None, fill: Value = None, made: _Shards | None = None) -> None:
        same = AffineMap.identity(map.inputs)
        self.map, self.fill, self.made = map, fill, made
        self.same, self.still = map.matrix == same.matrix, map == same
        producer = origin.producer if origin is not None else None
        self.source = producer if isinstance(producer, Source) else None
        self.whole = Box.of(()) if self.source is None else self.source.type.box
        if made is not None and origin is not None:
            self.output, self.spilled = origin.output, made.step.spilled
            self.cuts, self.steps = block_partition(made.step, origin.output), _shard_steps(made.step, origin.output)
            self.dims = [next((k for k, c in enumerate(row) if c), None) for row in map.matrix]
            moving = [k for k in self.dims if k is not None]
            self.apart = len(set(moving)) == len(moving) and len(self.dims) > 0
            self._met: list[dict[tuple[int, int], list[_Met]]] = [{} for _ in self.dims]

    def pieces(self, box: Box, needs: set[int]) -> Iterator[ReadPiece]:
        """The pieces of a box that is not empty; adds the numbers of the tasks that make them."""
        made = self.made
        if made is None:
            map = self.map if self.same or self.source is None else _straight(self.map, box)
            region = self.whole if self.source is None else box if self.still else self.map.cover(box)
            yield ReadPiece(box, map, -1, self.source, self.whole, region, self.fill)
            return
        for shard, part, region, block in self._product(box) if self.apart else self._together(box):
            task, map = made.shards[shard], self.map if self.same else _straight(self.map, part)
            needs.add(task)
            yield ReadPiece(part, map, task, None, block, region, None, self.output, self.spilled)

    def _product(self, box: Box) -> Iterator[tuple[int, Box, Box, Box]]:
        """(shard, part of the box, region of the block, block) of every block that the box meets."""
        found = []
        for row, (dim, met) in enumerate(zip(self.dims, self._met, strict=True)):
            span = (0, 1) if dim is None else (box.start[dim], box.shape[dim])
            known = met.get(span)
            if known is None:
                known = met[span] = list(self._along(row, *span))
            found.append(known)
        for one in product(*found):
            shards, low, extent, first, count, begin, length = zip(*one, strict=True)
            region = block = trusted_box(first, count)
            if (first, count) != (begin, length):
                block = trusted_box(begin, length)
            if self.still:
                part = region
            elif self.same:
                part = trusted_box(low, extent)
            else:
                starts, shape = list(box.start), list(box.shape)
                for dim, a, n in zip(self.dims, low, extent, strict=True):
                    if dim is not None:
                        starts[dim], shape[dim] = a, n
                part = trusted_box(tuple(starts), tuple(shape))
            yield sum(shards), part, region, block

    def _along(self, row: int, low: int, extent: int) -> Iterator[_Met]:
        """The blocks along a row that a range of its dimension meets."""
        cuts, b, dim = self.cuts.cuts[row], self.map.offset[row], self.dims[row]
        c = 0 if dim is None else self.map.matrix[row][dim]
        first, last = sorted((c * low + b, c * (low + extent - 1) + b))
        for at in range(max(bisect_right(cuts, first) - 1, 0), min(bisect_left(cuts, last + 1), len(cuts) - 1)):
            begin, end = cuts[at], cuts[at + 1]
            if begin == end:
                continue
            head, near, far = self.steps[row] * at, low, low + extent - 1
            if c:
                ends = (begin - b, end - 1 - b) if c > 0 else (end - 1 - b, begin - b)
                near, far = max(-(-ends[0] // c), near), min(ends[1] // c, far)
            if near <= far:
                seen = min(c * near + b, c * far + b)
                yield head, near, far - near + 1, seen, abs(c) * (far - near) + 1, begin, end - begin

    def _together(self, box: Box) -> Iterator[tuple[int, Box, Box, Box]]:
        """The same where a dimension moves two rows, as along a diagonal: block by block."""
        for place in self.cuts.places(self.map.cover(box)):
            block = self.cuts.at(place)
            part = preimage(self.map, box, block)
            if not part.empty:
                yield sum(map(mul, place, self.steps)), part, self.map.cover(part), block


class _Views:
    """Where the values of boxes of a tensor come from: what `resolve` says of the whole tensor, cut to each box.

    Args:
        parts: boxes of the tensor that have no point in common, and how each is seen.
    """

    def __init__(self, parts: Sequence[tuple[Box, _Sight]]) -> None:
        self.parts = parts
        ranks = range(parts[0][0].rank if len(parts) > 1 else 0)
        self.dim = max(ranks, key=lambda k: len({box.start[k] for box, _ in parts}), default=0)
        rows = sorted((box.start[self.dim], k) for k, (box, _) in enumerate(parts)) if ranks else []
        self.starts, self.order = [start for start, _ in rows], [k for _, k in rows]
        self.longest = max((box.shape[self.dim] for box, _ in parts), default=0) if ranks else 0

    def pieces(self, box: Box, needs: set[int]) -> Iterator[ReadPiece]:
        """As `_Sight` has them."""
        if not self.starts:
            for _, sight in self.parts:
                yield from sight.pieces(box, needs)
            return
        low = box.start[self.dim]
        first = bisect_right(self.starts, low - self.longest)
        for k in sorted(self.order[first : bisect_left(self.starts, low + box.shape[self.dim])]):
            whole, sight = self.parts[k]
            part = whole.intersect(box)
            if not part.empty:
                yield from sight.pieces(part, needs)


Found = tuple[Read, tuple[int, ...]]
"""A read, and the numbers of the tasks that make what it reads."""


@dataclass(slots=True)
class _Input:
    """An input of a step's shards.

    Args:
        name: as the kernel knows it.
        tensor: that is read.
        dtype: its type.
        region: of it that a block of the index needs; None: the same box.
        dims: the dimensions of the index that decide on the region, where others do not: reads are kept by them.
        known: reads by where they are along these.
    """

    name: str
    tensor: Tensor
    dtype: np.dtype[Any]
    region: Callable[[Box], Box] | None
    dims: tuple[int, ...] | None
    known: dict[tuple[int, ...], Found] = field(default_factory=dict)


class _Shards:
    """What all shards of a step share, and from that each of them by its place in the grid."""

    def __init__(self, tasks: Enumerator, number: int) -> None:
        self.tasks, self.number, self.step = tasks, number, tasks.plan.steps[number]
        step, node = self.step, self.step.node
        self.strides = _strides(step.cuts.grid)
        self.shards: dict[int, int] = {}  # shard -> the number of its task
        self.after = self._after()
        self.fixed = None if step.where.run or any(step.where.digits) else tasks.machines[step.where.offset]
        self.outs: list[tuple[Partition, tuple[int | None, ...]]] = []  # where the index cuts the outputs
        if isinstance(node, Operation) and step.stage != "combine":
            self.outs = [(output_partition(node, name, step.cuts), drivers(node, name)) for name in step.outputs]
        straight = tuple(range(len(step.cuts.grid)))
        self.straight = all(rows == straight and cuts == step.cuts for cuts, rows in self.outs)
        self.inputs = self._inputs()

    def _after(self) -> tuple[int, ...]:
        """The steps that a sequence point holds before it."""
        node, steps = self.step.node, self.tasks.steps
        points = node.after if isinstance(node, Operation) else ()
        return tuple(dict.fromkeys(k for point in points for node in point.before for k in steps.get(node, ())))

    def _inputs(self) -> list[_Input]:
        """The inputs that shards read beside partial results."""
        node, stage = self.step.node, self.step.stage
        if isinstance(node, Sink):
            return [_Input("x", node.tensor, node.tensor.dtype, None, None)]
        late = operator_of(node).finish
        taken = [(n, x) for n, x in node.inputs if stage == "block" or (n in late) == (stage == "combine")]
        return [_Input(name, x, x.dtype, *_regions(node, name, stage != "combine")) for name, x in taken]

    def task(self, shard: int, place: tuple[int, ...]) -> Task:
        """The task of a shard; those that make what it reads have their numbers."""
        step = self.step
        box = step.cuts.at(place)
        found = [*self._combined(box), *self._read(place, box), *self._accumulator(place)]
        if len(found) == 1:
            ((only, needs),) = found
            reads: tuple[Read, ...] = (only,)
        else:
            reads = tuple(read for read, _ in found)
            needs = tuple(sorted({number for _, row in found for number in row}))
        machine = self.tasks.machines[step.where.machine(place)] if self.fixed is None else self.fixed
        if self.straight or not self.outs:
            outs = (box,) * max(1, len(step.outputs) if isinstance(step.node, Operation) else 1)
        else:
            outs = tuple(cuts.at([0 if k is None else place[k] for k in rows]) for cuts, rows in self.outs)
        return Task(self.shards[shard], self.number, shard, machine, box, reads, outs, needs, self.after)

    def _read(self, place: tuple[int, ...], box: Box) -> Iterator[Found]:
        index = box
        if self.step.stage == "combine":
            index = index_of_output(cast("Operation", self.step.node), self.step.outputs[0], box)
        for one in self.inputs:
            if one.dims is None:
                yield self.tasks.read(one, index if one.region is None else one.region(index))
                continue
            key = tuple([place[k] for k in one.dims])
            known = one.known.get(key)
            if known is None:
                known = one.known[key] = self.tasks.read(one, index if one.region is None else one.region(index))
            yield known

    def _accumulator(self, place: Sequence[int]) -> Iterator[Found]:
        """The block of the wave before, which a later wave of a machine's part of a reduction adds to."""
        step, before = self.step, list(place)
        for k in reversed(step.accumulated):
            count = step.where.waves[k]
            before[k] += -1 if place[k] % count else count - 1
            if place[k] % count:
                break
        else:
            return
        task = self.shards[sum(map(mul, before, self.strides))]
        for (cuts, rows), tensor in zip(self.outs, step.tensors, strict=True):
            box = cuts.at([0 if k is None else place[k] for k in rows])
            same = AffineMap.identity(box.rank)
            piece = ReadPiece(box, same, task, None, box, box, None, tensor.output, step.spilled)
            yield Read(f"{PARTIAL}0.{tensor.output}", tensor.dtype, box, (piece,)), (task,)

    def _combined(self, box: Box) -> Iterator[Found]:
        """One read per part along the reduction dimensions and output, each gathered over the blocks that it spans."""
        if self.step.stage != "combine":
            return
        node = cast("Operation", self.step.node)
        index = index_of_output(node, self.step.outputs[0], box)
        made = self.tasks.shards(self.tasks.partials[node])
        cuts, tensors = made.step.cuts, made.step.tensors
        reduced = sorted(node.signature.monoids) if node.signature else []
        if box.empty:  # behind the last row of a part that is shorter than others
            yield from ((Read(f"{PARTIAL}0.{tensor.output}", tensor.dtype, box, ()), ()) for tensor in tensors)
            return
        last = {k: made.step.where.waves[k] - 1 for k in made.step.accumulated}
        parts: dict[tuple[int, ...], list[tuple[int, Box, Box]]] = {}
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for k, _ in cuts.overlapping(index):
            place = cuts.place(k)
            if any(place[d] % (at + 1) != at for d, at in last.items()):
                continue
            part = tuple(place[d] for d in reduced)
            kept = tuple(digit for d, digit in enumerate(place) if d not in reduced)
            if (part, kept) in seen:
                continue
            seen.add((part, kept))
            block = _output_block(node, tensors[0].output, cuts.at(place))  # the same for all outputs of a state
            common = block.intersect(box)
            if not common.empty:
                parts.setdefault(part, []).append((made.shards[k], common, block))
        same, spilled = AffineMap.identity(box.rank), made.step.spilled
        for at, part in enumerate(sorted(parts)):
            for tensor in tensors:
                pieces = tuple(
                    ReadPiece(common, same, task, None, block, common, None, tensor.output, spilled)
                    for task, common, block in parts[part]
                )
                needs = tuple(sorted({task for task, _, _ in parts[part]}))
                yield Read(f"{PARTIAL}{at}.{tensor.output}", tensor.dtype, box, pieces), needs


def _regions(node: Operation, name: str, of_index: bool) -> tuple[Callable[[Box], Box] | None, tuple[int, ...] | None]:
    """(`region`, `dims`) of an `_Input`; what a block of an output needs is not kept."""
    region, signature = input_regions(node, name), node.signature
    if signature is None:
        return region, ()
    one = signature.input(name)
    rows, rank = one.map.matrix, node.index.rank
    plain = one.map == AffineMap.identity(rank) and all(n == 1 for n in one.shape) and not any(node.index.start)
    moving = tuple(k for k in range(rank) if any(row[k] for row in rows))
    return (None if plain else region), (moving if of_index and len(moving) < rank else None)


def _strides(grid: Sequence[int]) -> tuple[int, ...]:
    """By how much the number of a block grows along each dimension of a grid."""
    return tuple(prod(grid[k + 1 :]) for k in range(len(grid)))


class Enumerator:
    """Numbers tasks and yields them in issue order: a task comes after everything that it needs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[Operation, int] = {}  # operation -> the step whose blocks are its output
        self.partials: dict[Operation, int] = {}
        self.steps: dict[Operation | Sink, list[int]] = {}
        for number, step in enumerate(plan.steps):
            self.steps.setdefault(step.node, []).append(number)
            if isinstance(step.node, Operation):
                (self.partials if step.stage == "partial" else self.made)[step.node] = number
        self.machines = plan.machines.order
        self.shards = lru_cache(maxsize=None)(partial(_Shards, self))
        self._views: dict[Tensor, _Sight | _Views | None] = {}

    def __iter__(self) -> Iterator[Task]:
        count = 0
        for number, places in issue_order(self.plan.steps):
            shards = self.shards(number)
            keys = [sum(map(mul, place, shards.strides)) for place in places]
            for key in keys:
                shards.shards[key] = count
                count += 1
            yield from map(shards.task, keys, places)

    def read(self, one: _Input, region: Box) -> Found:
        """The read of a region of an input."""
        if region.empty:
            return Read(one.name, one.dtype, region, ()), ()
        if one.tensor not in self._views:
            self._views[one.tensor] = self._view(one.tensor)
        view, needs = self._views[one.tensor], set[int]()
        if view is not None:
            pieces = tuple(view.pieces(region, needs))
        else:
            found = resolve(one.tensor, region)
            pieces = tuple(p for one in found for p in self._sight(one).pieces(one.box, needs))
        return Read(one.name, one.dtype, region, pieces), tuple(sorted(needs))

    def _view(self, tensor: Tensor) -> _Sight | _Views | None:
        """How boxes of a tensor are seen; None where each has to be resolved, since elements go by turns."""
        if not isinstance(tensor.producer, Selector):  # what `resolve` answers, without asking
            return self._sight(ViewPiece(tensor.type.box, tensor, AffineMap.identity(len(tensor.shape))))
        pieces = resolve(tensor, tensor.type.box, lattices=True)
        if any(piece.lattice is not None for piece in pieces):
            return None
        return _Views([(piece.box, self._sight(piece)) for piece in pieces])

    def _sight(self, piece: ViewPiece) -> _Sight:
        producer = piece.origin.producer if piece.origin is not None else None
        made = self.shards(self.made[producer]) if isinstance(producer, Operation) else None
        return _Sight(piece.map, piece.origin, piece.fill, made)


def _shard_steps(step: Step, output: str) -> tuple[int, ...]:
    """By how much a step's shard number grows along each dimension of the grid of an output's blocks.

    A block is made by the shard at 0 along every dimension that does not cut it.
    """
    node, steps = step.node, _strides(step.cuts.grid)
    if step.stage == "block" and isinstance(node, Operation):
        return tuple(0 if k is None else steps[k] for k in drivers(node, output))
    return steps


def _straight(map: AffineMap, box: Box) -> AffineMap:
    """The same map on a box, as a translation where it is one: in a dimension of extent 1 any coefficient will do."""
    if 1 not in box.shape or len(map.matrix) != box.rank:
        return map
    offset = []
    for dim, (row, b) in enumerate(zip(map.matrix, map.offset, strict=True)):
        moving = [(k, c) for k, c in enumerate(row) if c and box.shape[k] != 1]
        fixed = b + sum(c * box.start[k] for k, c in enumerate(row) if box.shape[k] == 1)
        if moving != ([(dim, 1)] if box.shape[dim] != 1 else []):
            return map
        offset.append(fixed - (box.start[dim] if box.shape[dim] == 1 else 0))
    return AffineMap(AffineMap.identity(box.rank).matrix, tuple(offset))


def _output_block(node: Operation, output: str, index: Box) -> Box:
    """The box of an output that a block of the index makes."""
    signature = node.signature
    if signature is None:
        return node.output_types[output].box
    projection = signature.output(output)
    base = projection.span(node.index).start
    return projection.span(index).translate(tuple(-b for b in base))


def tasks(plan: Plan) -> tuple[Task, ...]:
    """Every task of a plan in issue order; the order, and so the plan's peak memory, is deterministic."""
    return tuple(Enumerator(plan))
