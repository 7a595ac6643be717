"""The tasks of a plan: one per shard, with exactly what it reads, in the order in which they are issued.

Every read is resolved to pieces, each from one block of one producing task, from a source, or from a constant. Steps
whose waves follow each other one to one stream: they are issued wave by wave, so that a block is freed soon after it is
made (`streams`); the shards of one wave stand side by side, so machines work together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.graph import Operation, Partition, Selector, Sink, Source, Tensor, resolve
from tileweave.graph.ir.nodes import Value
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import index_of_output, input_regions, output_partition
from tileweave.planner.placement import Placement
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import drivers, partition_of
from tileweave.planner.streams import issue_order
from tileweave.space import AffineMap, Box

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
        return not self.constant and self.map.matrix == AffineMap.identity(self.box.rank).matrix

    @property
    def whole(self) -> bool:
        """Whether the values are the whole block as it is."""
        return self.shifts and self.box.translate(self.map.offset) == self.block


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


Key = tuple[int, int]  # (step, shard)
_Part = tuple[Box, AffineMap, Source | None, Box, Box, Value, str]  # a `ReadPiece` but for its task
_Pieces = list[tuple[Key | None, _Part]]
_Reads = list[tuple[str, np.dtype[Any], Box, _Pieces]]


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
        self.number: dict[Key, int] = {}
        self.blocks = lru_cache(maxsize=None)(lambda number, output: block_partition(plan.steps[number], output))
        self.shard_steps = lru_cache(maxsize=None)(self._shard_steps)
        self.outs = lru_cache(maxsize=None)(self._outs)
        self.inputs = lru_cache(maxsize=None)(self._inputs)
        self.after = lru_cache(maxsize=None)(self._after)

    def __iter__(self) -> Iterator[Task]:
        for number, places in issue_order(self.plan.steps):
            keys = [(number, self.plan.steps[number].cuts.number(place)) for place in places]
            for key in keys:
                self.number[key] = len(self.number)
            for key, place in zip(keys, places, strict=True):
                yield self._task(key, place)

    def _after(self, number: int) -> tuple[int, ...]:
        """The steps that a sequence point holds before a step."""
        node = self.plan.steps[number].node
        points = node.after if isinstance(node, Operation) else ()
        return tuple(dict.fromkeys(k for point in points for node in point.before for k in self.steps.get(node, ())))

    @staticmethod
    def _sources(reads: _Reads) -> dict[Key, None]:
        return {who: None for _, _, _, pieces in reads for who, _ in pieces if who is not None}

    def _find_reads(
        self, number: int, place: tuple[int, ...], box: Box
    ) -> Iterator[tuple[str, np.dtype[Any], Box, _Pieces]]:
        step = self.plan.steps[number]
        node = step.node
        if isinstance(node, Sink):
            yield "x", node.tensor.dtype, box, self._pieces(node.tensor, box)
            return
        index = box
        if step.stage == "combine":
            index = index_of_output(node, step.outputs[0], box)
            yield from self._partial_reads(node, box, index)
        for name, tensor, regions in self.inputs(number):
            region = regions(index)
            yield name, tensor.dtype, region, self._pieces(tensor, region)
        if step.accumulated:
            yield from self._accumulator(step, number, place)

    def _inputs(self, number: int) -> list[tuple[str, Tensor, Callable[[Box], Box]]]:
        """The inputs that shards of a step read beside partial results, and which region of each."""
        step = self.plan.steps[number]
        node = cast("Operation", step.node)
        late = operator_of(node).finish
        return [
            (name, tensor, input_regions(node, name))
            for name, tensor in node.inputs
            if step.stage == "block" or (name in late) == (step.stage == "combine")
        ]

    def _accumulator(
        self, step: Step, number: int, place: Sequence[int]
    ) -> Iterator[tuple[str, np.dtype[Any], Box, _Pieces]]:
        """The block of the wave before, which a later wave of a machine's part of a reduction adds to."""
        before = list(place)
        for k in reversed(step.accumulated):
            count = step.where.waves[k]
            before[k] += -1 if place[k] % count else count - 1
            if place[k] % count:
                break
        else:
            return
        for (cuts, rows), tensor in zip(self.outs(number), step.tensors, strict=True):
            box = cuts.at([0 if k is None else place[k] for k in rows])
            part = (box, AffineMap.identity(box.rank), None, box, box, None, tensor.output)
            yield f"{PARTIAL}0.{tensor.output}", tensor.dtype, box, [((number, step.cuts.number(before)), part)]

    def _partial_reads(
        self, node: Operation, box: Box, index: Box
    ) -> Iterator[tuple[str, np.dtype[Any], Box, _Pieces]]:
        """One read per part along the reduction dimensions and output, each gathered over the blocks that it spans."""
        number = self.partials[node]
        cuts = self.plan.steps[number].cuts
        reduced = sorted(node.signature.monoids) if node.signature else []
        tensors = self.plan.steps[number].tensors
        if box.empty:  # behind the last row of a part that is shorter than others
            yield from ((f"{PARTIAL}0.{tensor.output}", tensor.dtype, box, []) for tensor in tensors)
            return
        last = {k: self.plan.steps[number].where.waves[k] - 1 for k in self.plan.steps[number].accumulated}
        parts: dict[tuple[int, ...], list[tuple[Key, Box, Box]]] = {}
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
                parts.setdefault(part, []).append(((number, k), common, block))
        same = AffineMap.identity(box.rank)
        for at, part in enumerate(sorted(parts)):
            for tensor in tensors:
                yield (
                    f"{PARTIAL}{at}.{tensor.output}",
                    tensor.dtype,
                    box,
                    [
                        (who, (common, same, None, block, common, None, tensor.output))
                        for who, common, block in parts[part]
                    ],
                )

    def _pieces(self, tensor: Tensor, box: Box) -> _Pieces:
        if box.empty:
            return []
        if not isinstance(tensor.producer, Selector):  # what `resolve` answers, without asking
            return self._origin_pieces(tensor, box, AffineMap.identity(box.rank), box)
        found: _Pieces = []
        for piece in resolve(tensor, box):
            if piece.origin is None:
                nothing = Box.of(())
                found.append((None, (piece.box, piece.map, None, nothing, nothing, piece.fill, "out")))
            else:
                found += self._origin_pieces(piece.origin, piece.box, piece.map, piece.region)
        return found

    def _origin_pieces(self, origin: Tensor, box: Box, map: AffineMap, region: Box) -> _Pieces:
        """The pieces of a box that is seen in a source or in the result of an operation."""
        producer = origin.producer
        if isinstance(producer, Source):
            return [(None, (box, map, producer, producer.type.box, region, None, "out"))]
        return list(self._block_pieces(self.made[cast("Operation", producer)], origin.output, box, map, region))

    def _block_pieces(
        self, number: int, output: str, box: Box, map: AffineMap, region: Box
    ) -> Iterator[tuple[Key, _Part]]:
        blocks, steps = self.blocks(number, output), self.shard_steps(number, output)
        straight = map == AffineMap.identity(box.rank)
        for place in blocks.places(region):
            block = blocks.at(place)
            part = block.intersect(box) if straight else preimage(map, box, block)
            if not part.empty:
                shard = sum(digit * step for digit, step in zip(place, steps, strict=True))
                yield (number, shard), (part, map, None, block, part if straight else map.cover(part), None, output)

    def _shard_steps(self, number: int, output: str) -> tuple[int, ...]:
        """By how much a step's shard number grows along each dimension of the grid of an output's blocks.

        A block is made by the shard at 0 along every dimension that does not cut it.
        """
        step = self.plan.steps[number]
        grid, rows = step.cuts.grid, range(len(step.cuts.grid))
        node = step.node
        if step.stage == "block" and isinstance(node, Operation):
            if node.signature is None:
                return (0,) * len(node.output_types[output].shape)
            return tuple(0 if k is None else prod(grid[k + 1 :]) for k in drivers(node, output))
        return tuple(prod(grid[k + 1 :]) for k in rows)

    def _outs(self, number: int) -> list[tuple[Partition, tuple[int | None, ...]]]:
        """Per output that a step's index cuts: its blocks, and the index dimension that cuts each of its dimensions."""
        step = self.plan.steps[number]
        node = step.node
        if not isinstance(node, Operation) or step.stage == "combine":
            return []
        return [(output_partition(node, name, step.cuts), drivers(node, name)) for name in step.outputs]

    def _task(self, key: Key, place: tuple[int, ...]) -> Task:
        number, shard = key
        step = self.plan.steps[number]
        box = step.cuts.at(place)
        reads = list(self._find_reads(number, place, box))
        made = tuple(
            Read(
                name,
                dtype,
                region,
                tuple(
                    ReadPiece(part[0], _straight(part[1], part[0]), -1, *part[2:])
                    if who is None
                    else ReadPiece(
                        part[0],
                        _straight(part[1], part[0]),
                        self.number[who],
                        *part[2:],
                        self.plan.steps[who[0]].spilled,
                    )
                    for who, part in pieces
                ),
            )
            for name, dtype, region, pieces in reads
        )
        needs = tuple(sorted(self.number[who] for who in self._sources(reads)))
        machine = self.machines[step.where.machine(place)]
        outs = self.outs(number)
        if outs:
            boxes = tuple(cuts.at([0 if k is None else place[k] for k in drivers]) for cuts, drivers in outs)
        else:
            boxes = (box,) * max(1, len(step.outputs) if isinstance(step.node, Operation) else 1)
        return Task(
            self.number[key],
            number,
            shard,
            machine,
            box,
            made,
            boxes,
            needs,
            self.after(number),
        )


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
