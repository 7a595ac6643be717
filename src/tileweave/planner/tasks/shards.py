"""What the shards of a step share, and from that the task of each: with exactly what it reads.

Every read is resolved to pieces, each from one block of one producing task, from a source, or from a constant. Steps
whose waves follow each other one to one stream: they are issued wave by wave, so that a block is freed soon after it is
made (`streams`); the shards of one wave stand side by side, so machines work together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, cast

import numpy as np

from tileweave.graph import Hole, Operation, Partition, Selector, Sink, Source, Tensor, resolve
from tileweave.graph.ir.resolve import ViewPiece
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import index_of_output, input_regions, output_partition
from tileweave.planner.plan import Step
from tileweave.planner.steps import drivers
from tileweave.planner.streams import issue_order
from tileweave.planner.tasks.records import PARTIAL, Read, ReadPiece, Task
from tileweave.planner.tasks.sights import Sight, Views, grid_strides, whole_partition
from tileweave.space import AffineMap, Box

Found = tuple[Read, tuple[int, ...]]
"""A read, and the numbers of the tasks that make what it reads."""


@dataclass(slots=True)
class StepInput:
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


class Shards:
    """What all shards of a step share, and from that each of them by its place in the grid."""

    def __init__(self, tasks: Enumerator, number: int) -> None:
        self.tasks: Enumerator = weakref.proxy(tasks)  # which owns this: both go with the last task, uncollected
        self.number, self.step = number, tasks.steps[number]
        step, node = self.step, self.step.node
        self.strides = grid_strides(step.cuts.grid)
        self.issued = np.flatnonzero(tasks.step_of == number)
        """The numbers of its tasks, in their order."""
        numbers = np.full(step.cuts.count, -1, np.int64)
        numbers[tasks.shard_of[self.issued]] = self.issued
        self.numbers: list[int] = numbers.tolist()
        """The number of each shard's task."""
        self.after = self._after()
        self.fixed = None if step.where.run or any(step.where.digits) else tasks.machines[step.where.offset]
        self.outs: list[tuple[Partition, tuple[int | None, ...]]] = []  # where the index cuts the outputs
        self.whole = step.cuts.count == 1 and not step.cuts.box.empty
        """Whether there is one, which reads whole tensors."""
        if isinstance(node, Operation) and step.stage != "combine" and self.whole:
            shapes = [node.output_types[name].shape for name in step.outputs]
            self.outs = [(whole_partition(shape), (None,) * len(shape)) for shape in shapes]
        elif isinstance(node, Operation) and step.stage != "combine":
            self.outs = [(output_partition(node, name, step.cuts), drivers(node, name)) for name in step.outputs]
        straight = tuple(range(len(step.cuts.grid)))
        self.straight = all(rows == straight and cuts == step.cuts for cuts, rows in self.outs)
        self.inputs = self._inputs()

    def _after(self) -> tuple[int, ...]:
        """The steps that a sequence point holds before it."""
        node, steps = self.step.node, self.tasks.nodes
        points = node.after if isinstance(node, Operation) else ()
        return tuple(dict.fromkeys(k for point in points for node in point.before for k in steps.get(node, ())))

    def _inputs(self) -> list[StepInput]:
        """The inputs that shards read beside partial results."""
        node, stage = self.step.node, self.step.stage
        if isinstance(node, Sink):
            return [StepInput("x", node.tensor, node.tensor.dtype, None, None)]
        late = operator_of(node).finish
        taken = [(n, x) for n, x in node.inputs if stage == "block" or (n in late) == (stage == "combine")]
        if self.whole:  # by the law of projections
            return [StepInput(name, x, x.dtype, _whole_of(x), None) for name, x in taken]
        return [StepInput(name, x, x.dtype, *_regions(node, name, stage != "combine")) for name, x in taken]

    def task(self, shard: int) -> Task:
        """The task of a shard."""
        step, place = self.step, self.step.cuts.place(shard)
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
        return Task(self.numbers[shard], self.number, shard, machine, box, reads, outs, needs, self.after)

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
        task = self.numbers[sum(map(mul, before, self.strides))]
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
            block = output_block(node, tensors[0].output, cuts.at(place))  # the same for all outputs of a state
            common = block.intersect(box)
            if not common.empty:
                parts.setdefault(part, []).append((made.numbers[k], common, block))
        same, spilled = AffineMap.identity(box.rank), made.step.spilled
        for at, part in enumerate(sorted(parts)):
            for tensor in tensors:
                pieces = tuple(
                    ReadPiece(common, same, task, None, block, common, None, tensor.output, spilled)
                    for task, common, block in parts[part]
                )
                needs = tuple(sorted({task for task, _, _ in parts[part]}))
                yield Read(f"{PARTIAL}{at}.{tensor.output}", tensor.dtype, box, pieces), needs


def _whole_of(x: Tensor) -> Callable[[Box], Box]:
    box = x.type.box
    return lambda index: box


def _regions(node: Operation, name: str, of_index: bool) -> tuple[Callable[[Box], Box] | None, tuple[int, ...] | None]:
    """(`region`, `dims`) of an `StepInput`; what a block of an output needs is not kept."""
    region, signature = input_regions(node, name), node.signature
    if signature is None:
        return region, ()
    one = signature.input(name)
    rows, rank = one.map.matrix, node.index.rank
    plain = one.map == AffineMap.identity(rank) and all(n == 1 for n in one.shape) and not any(node.index.start)
    moving = tuple(k for k in range(rank) if any(row[k] for row in rows))
    return (None if plain else region), (moving if of_index and len(moving) < rank else None)


class Enumerator:
    """Numbers the tasks of a plan's steps in issue order, and makes each: it comes after everything that it needs.

    Args:
        steps: of the plan.
        machines: their numbers, in the order in which they are filled.
    """

    def __init__(self, steps: Sequence[Step], machines: Sequence[int]) -> None:
        self.made: dict[Operation, int] = {}  # operation -> the step whose blocks are its output
        self.partials: dict[Operation, int] = {}
        self.nodes: dict[Operation | Sink, list[int]] = {}
        for number, step in enumerate(steps):
            self.nodes.setdefault(step.node, []).append(number)
            if isinstance(step.node, Operation):
                (self.partials if step.stage == "partial" else self.made)[step.node] = number
        self.steps, self.machines = steps, machines
        self.step_of, self.shard_of = issue_order(steps)
        self._shards: dict[int, Shards] = {}
        self._views: dict[Tensor, Sight | Views | None] = {}

    def shards(self, number: int) -> Shards:
        """The shards of a step."""
        found = self._shards.get(number)
        if found is None:
            found = self._shards[number] = Shards(self, number)
        return found

    def task(self, number: int) -> Task:
        """The task of a number."""
        return self.shards(int(self.step_of[number])).task(int(self.shard_of[number]))

    def read(self, one: StepInput, region: Box) -> Found:
        """The read of a region of an input."""
        if region.empty:
            return Read(one.name, one.dtype, region, ()), ()
        if isinstance(one.tensor.producer, Source) and not isinstance(one.tensor.producer.data, Hole):
            return _of_source(one.name, one.tensor, one.tensor.producer, region)
        view, needs = self.view(one.tensor), set[int]()
        if view is not None:
            pieces = tuple(view.pieces(region, needs))
        else:
            found = resolve(one.tensor, region)
            pieces = tuple(p for one in found for p in self._sight(one).pieces(one.box, needs))
        return Read(one.name, one.dtype, region, pieces), tuple(sorted(needs))

    def view(self, tensor: Tensor) -> Sight | Views | None:
        """How boxes of a tensor are seen; None where each has to be resolved, since elements go by turns."""
        try:
            return self._views[tensor]
        except KeyError:  # another thread may `forget` it at any time
            found = self._views[tensor] = self._view(tensor)
            return found

    def forget(self, inputs: Iterable[StepInput]) -> None:
        """Forgets how inputs are seen, and what was read of them: it is found again when somebody asks."""
        for one in inputs:
            one.known.clear()
            self._views.pop(one.tensor, None)

    def _view(self, tensor: Tensor) -> Sight | Views | None:
        if not isinstance(tensor.producer, Selector):  # what `resolve` answers, without asking
            return self._sight(ViewPiece(tensor.type.box, tensor, AffineMap.identity(len(tensor.shape))))
        pieces = resolve(tensor, tensor.type.box, lattices=True)
        if any(piece.lattice is not None for piece in pieces):
            return None
        return Views([(piece.box, self._sight(piece)) for piece in pieces])

    def _sight(self, piece: ViewPiece) -> Sight:
        producer = piece.origin.producer if piece.origin is not None else None
        if not isinstance(producer, Operation):
            return Sight(piece.map, piece.origin, piece.fill)
        made = self.shards(self.made[producer])
        return Sight(piece.map, piece.origin, piece.fill, made.step, made.numbers)


_WHOLE: weakref.WeakKeyDictionary[Tensor, dict[str, Found]] = weakref.WeakKeyDictionary()
"""How inputs of some names read a whole source: weights are read alike by the plans of all extents of a model."""


def _of_source(name: str, tensor: Tensor, source: Source, region: Box) -> Found:
    """The read of a region of a source's tensor."""
    known, whole = _WHOLE.get(tensor), source.type.box
    found = known.get(name) if known is not None else None
    if found is None or found[0].box != region:
        piece = ReadPiece(region, AffineMap.identity(region.rank), -1, source, whole, region)
        found = Read(name, source.type.dtype, region, (piece,)), ()
        if region == whole:
            _WHOLE.setdefault(tensor, {})[name] = found
    return found


def output_block(node: Operation, output: str, index: Box) -> Box:
    """The box of an output that a block of the index makes."""
    signature = node.signature
    if signature is None:
        return node.output_types[output].box
    projection = signature.output(output)
    base = projection.span(node.index).start
    return projection.span(index).translate(tuple(-b for b in base))
