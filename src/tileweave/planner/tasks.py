"""The tasks of a plan: one per shard, with exactly what it reads, in the order in which they are issued.

Every read is resolved to pieces, each from one block of one producing task, from a source, or from a constant. The
order follows demand: the shards of one wave of a sink pull in the waves of everything that they need, so blocks are
freed early, and the shards of one wave stand side by side, so machines work together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tileweave.graph import Operation, Partition, Sink, Source, Tensor, resolve
from tileweave.graph.nodes import Value
from tileweave.graph.operators import operator_of
from tileweave.graph.shard import index_of_output, input_region, output_partition
from tileweave.planner.plan import Plan, Step, placement
from tileweave.space import AffineMap, Box

__all__ = ["PARTIAL", "Read", "ReadPiece", "Task", "block_partition", "preimage", "tasks"]

PARTIAL = "partial"
"""The input name under which a combine task reads its partial results, one read per part."""


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
    """

    box: Box
    map: AffineMap
    task: int
    source: Source | None
    block: Box
    region: Box
    fill: Value = None
    output: str = "out"

    @property
    def points(self) -> int:
        """The distinct elements that are read: a broadcast dimension counts once."""
        moving = {dim for row in self.map.matrix for dim, c in enumerate(row) if c}
        return prod(n for dim, n in enumerate(self.box.shape) if dim in moving or n == 0)


@dataclass(frozen=True, slots=True)
class Read:
    """One input of a task: a region of a tensor, and the pieces that fill it once.

    Args:
        name: the input's name; `PARTIAL` for each output of each partial result that a combine task reads.
        tensor: the tensor that is read.
        box: the region.
        pieces: disjoint; together they cover the region.
    """

    name: str
    tensor: Tensor
    box: Box
    pieces: tuple[ReadPiece, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the region as a dense array."""
        return self.box.size * self.tensor.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Task:
    """One shard of a step.

    Args:
        number: its place in the issue order.
        step: number of the step in the plan.
        shard: number of the shard in the step.
        machine: where it runs.
        index: the block of the operation's index; the stored region for a sink.
        reads: its inputs.
        outs: per output that it keeps, the box that it makes (for ``partial``, as if it were complete), or the box that
            it stores.
        needs: numbers of the tasks that must be done first.
    """

    number: int
    step: int
    shard: int
    machine: int
    index: Box
    reads: tuple[Read, ...]
    outs: tuple[Box, ...]
    needs: tuple[int, ...]

    @property
    def out(self) -> Box:
        """The box of its first output."""
        return self.outs[0]


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


class _Enumerator:
    """Numbers tasks on demand. Keys are (step, shard)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[Operation, int] = {}  # operation -> the step whose blocks are its output
        self.partials: dict[Operation, int] = {}
        for number, step in enumerate(plan.steps):
            if isinstance(step.node, Operation):
                (self.partials if step.stage == "partial" else self.made)[step.node] = number
        self.machines = plan.machines.order
        self.order: list[tuple[int, int]] = []
        self.number: dict[tuple[int, int], int] = {}
        self.reads: dict[tuple[int, int], list[tuple[str, Tensor, Box, list[tuple[tuple[int, int] | None, ReadPiece]]]]]
        self.reads = {}
        self.shards: dict[Operation | Sink, list[tuple[int, int]]] = {}
        self.blocks = lru_cache(maxsize=None)(lambda number, output: block_partition(plan.steps[number], output))

    def run(self) -> tuple[Task, ...]:
        for number, step in enumerate(self.plan.steps):
            if step.stage == "store":
                for wave in range(self._waves(number)):
                    self._visit((number, wave))
        for number in range(len(self.plan.steps)):  # operations that only a sequence point observes
            for wave in range(self._waves(number)):
                self._visit((number, wave))
        return tuple(self._task(key) for key in self.order)

    def _waves(self, number: int) -> int:
        return -(-self.plan.steps[number].cuts.count // len(self.plan.machines))

    def _shards(self, group: tuple[int, int]) -> list[int]:
        number, wave = group
        count, waves = self.plan.steps[number].cuts.count, self._waves(number)
        return list(range(wave, count, waves)) if waves > 1 else list(range(count))

    def _group_of(self, key: tuple[int, int]) -> tuple[int, int]:
        number, shard = key
        waves = self._waves(number)
        return number, shard % waves if waves > 1 else 0

    def _visit(self, root: tuple[int, int]) -> None:
        """Issues a group after the groups that it needs; an explicit stack, since graphs are deep."""
        if self._issued(root):
            return
        stack = [(root, iter(self._needed(root)))]
        open_groups = {root}
        while stack:
            group, rest = stack[-1]
            child = next((g for g in rest if g not in open_groups and not self._issued(g)), None)
            if child is None:
                stack.pop()
                for shard in self._shards(group):
                    self.number[group[0], shard] = len(self.order)
                    self.order.append((group[0], shard))
            else:
                open_groups.add(child)
                stack.append((child, iter(self._needed(child))))

    def _issued(self, group: tuple[int, int]) -> bool:
        return (group[0], self._shards(group)[0]) in self.number

    def _needed(self, group: tuple[int, int]) -> list[tuple[int, int]]:
        needed: dict[tuple[int, int], None] = {}
        for shard in self._shards(group):
            for key in self._needs((group[0], shard)):
                needed[self._group_of(key)] = None
        return list(needed)

    def _needs(self, key: tuple[int, int]) -> Iterator[tuple[int, int]]:
        for _, _, _, pieces in self._reads(key):
            for producer, _ in pieces:
                if producer is not None:
                    yield producer
        node = self.plan.steps[key[0]].node
        if isinstance(node, Operation):
            for point in node.after:
                for before in point.before:
                    yield from self._all_of(before)

    def _all_of(self, node: Operation | Sink) -> list[tuple[int, int]]:
        if node not in self.shards:
            steps = enumerate(self.plan.steps)
            self.shards[node] = [(n, k) for n, step in steps if step.node is node for k in range(step.cuts.count)]
        return self.shards[node]

    def _reads(
        self, key: tuple[int, int]
    ) -> list[tuple[str, Tensor, Box, list[tuple[tuple[int, int] | None, ReadPiece]]]]:
        if key not in self.reads:
            self.reads[key] = list(self._find_reads(key))
        return self.reads[key]

    def _find_reads(
        self, key: tuple[int, int]
    ) -> Iterator[tuple[str, Tensor, Box, list[tuple[tuple[int, int] | None, ReadPiece]]]]:
        step = self.plan.steps[key[0]]
        box = step.cuts.block(key[1])
        node = step.node
        if isinstance(node, Sink):
            yield "x", node.tensor, box, self._pieces(node.tensor, box)
            return
        late = operator_of(node).finish
        if step.stage == "combine":
            index = index_of_output(node, step.outputs[0], box)
            yield from self._partial_reads(node, box, index)
            wanted = [(name, t) for name, t in node.inputs if name in late]
        else:
            index = box
            wanted = [(name, t) for name, t in node.inputs if not (step.stage == "partial" and name in late)]
        for name, tensor in wanted:
            region = input_region(node, name, index)
            yield name, tensor, region, self._pieces(tensor, region)

    def _partial_reads(
        self, node: Operation, box: Box, index: Box
    ) -> Iterator[tuple[str, Tensor, Box, list[tuple[tuple[int, int] | None, ReadPiece]]]]:
        """One read per part along the reduction dimensions and output, each gathered over the blocks that it spans."""
        number = self.partials[node]
        cuts = self.plan.steps[number].cuts
        reduced = sorted(node.signature.monoids) if node.signature else []
        tensors = self.plan.steps[number].tensors
        parts: dict[tuple[int, ...], list[tuple[tuple[int, int], Box, Box]]] = {}
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for k, _ in cuts.overlapping(index):
            place = cuts.place(k)
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
        for part in sorted(parts):
            for tensor in tensors:
                found: list[tuple[tuple[int, int] | None, ReadPiece]] = [
                    (who, ReadPiece(common, same, -1, None, block, common, output=tensor.output))
                    for who, common, block in parts[part]
                ]
                yield PARTIAL, tensor, box, found

    def _pieces(self, tensor: Tensor, box: Box) -> list[tuple[tuple[int, int] | None, ReadPiece]]:
        found: list[tuple[tuple[int, int] | None, ReadPiece]] = []
        for piece in resolve(tensor, box):
            if piece.origin is None:
                nothing = Box.of(())
                found.append((None, ReadPiece(piece.box, piece.map, -1, None, nothing, nothing, piece.fill)))
                continue
            producer = piece.origin.producer
            if isinstance(producer, Source):
                whole = producer.type.box
                found.append((None, ReadPiece(piece.box, piece.map, -1, producer, whole, piece.region)))
            elif isinstance(producer, Operation):  # resolve passes through every selector
                found += self._block_pieces(
                    self.made[producer], piece.origin.output, piece.box, piece.map, piece.region
                )
        return found

    def _block_pieces(
        self, number: int, output: str, box: Box, map: AffineMap, region: Box
    ) -> Iterator[tuple[tuple[int, int] | None, ReadPiece]]:
        blocks = self.blocks(number, output)
        step = self.plan.steps[number]
        for k, _ in blocks.overlapping(region):
            block = blocks.block(k)
            part = preimage(map, box, block)
            if not part.empty:
                shard = _shard_of_block(step, output, blocks, k)
                yield (number, shard), ReadPiece(part, map, -1, None, block, map.cover(part), output=output)

    def _task(self, key: tuple[int, int]) -> Task:
        number, shard = key
        step = self.plan.steps[number]
        box = step.cuts.block(shard)
        reads = tuple(
            Read(
                name,
                tensor,
                region,
                tuple(replace(piece, task=-1 if who is None else self.number[who]) for who, piece in pieces),
            )
            for name, tensor, region, pieces in self._reads(key)
        )
        needs = tuple(sorted({self.number[who] for who in self._needs(key)}))
        machine = self.machines[placement(step.cuts.count, len(self.machines))(shard)["machine"]]
        pinned = step.node.placement if isinstance(step.node, Sink) else None
        outs = (box,) * len(step.tensors)
        if isinstance(step.node, Operation) and step.stage in ("block", "partial"):
            outs = tuple(_output_block(step.node, output, box) for output in step.outputs)
        return Task(self.number[key], number, shard, machine if pinned is None else pinned, box, reads, outs, needs)


def _output_block(node: Operation, output: str, index: Box) -> Box:
    """The box of an output that a block of the index makes."""
    signature = node.signature
    if signature is None:
        return node.output_types[output].box
    projection = signature.output(output)
    base = projection.span(node.index).start
    return projection.span(index).translate(tuple(-b for b in base))


def _shard_of_block(step: Step, output: str, blocks: Partition, k: int) -> int:
    """The shard that makes block k of an output of a step: the place of the block, 0 along every other dimension."""
    node = step.node
    if step.stage != "block" or not isinstance(node, Operation) or node.signature is None:
        return k
    place = [0] * node.index.rank
    matrix = node.signature.output(output).map.matrix
    for digit, row in zip(blocks.place(k), matrix, strict=True):
        for dim, c in enumerate(row):
            if c:
                place[dim] = digit
    return step.cuts.number(place)


def tasks(plan: Plan) -> tuple[Task, ...]:
    """Every task of a plan in issue order; the order, and so the plan's peak memory, is deterministic."""
    return _Enumerator(plan).run()
