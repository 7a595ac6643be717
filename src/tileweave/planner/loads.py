"""The load of every step on every machine, in closed form: arrays over machines, in the order in which they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.graph import FileTarget, Operation, Sink, Source, Tensor
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import output_partition
from tileweave.planner.costs import (
    OBJECT_BYTES,
    Flags,
    Held,
    Term,
    TermDim,
    arithmetic,
    arrival,
    crossed_inputs,
    in_files,
    index_of_boxes,
    input_boxes,
    objects_of,
    output_boxes,
    partners,
    read_terms,
    volume,
)
from tileweave.planner.placement import (
    Boxes,
    IntArray,
    Placement,
    machine_blocks,
    machine_boxes,
    machine_runs,
    wave_counts,
)
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import partition_of, takes_boxes

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


@dataclass(frozen=True, slots=True)
class Load:
    """What one step does on each machine, all waves together unless said otherwise.

    Args:
        tasks: shards.
        flops: operations.
        functions: of these, exponentials and the like.
        touched: bytes of what it reads and makes, as the kernels see it.
        crossed: of these, what an elementwise step reads across the order of its result.
        moved: bytes that arrive from other machines.
        messages: blocks that they come from.
        read: bytes from storage, by the machine whose disk has them, and from blocks that are spilled.
        served: of these, what it reads from a disk of its own for all machines.
        written: bytes to sinks, and of blocks that are spilled.
        carried: bytes of both that are not in files but in the memory of the process that runs the plan.
        results: of these, those that are written.
        objects: how many regions of more than `OBJECT_BYTES` these are; of one that several machines read, each has its
            share.
        temporary: the most bytes that one shard newly holds while it runs.
        block: the most bytes that one shard makes.
        made: bytes of what it makes.
        edges: bytes moved for each tensor that is read, in the order of `read_tensors`; at last those of partial
            results, where the step combines them.
    """

    tasks: IntArray
    flops: Floats
    functions: Floats
    touched: IntArray
    crossed: IntArray
    moved: IntArray
    messages: IntArray
    read: IntArray
    served: IntArray
    written: IntArray
    carried: IntArray
    results: IntArray
    objects: Floats
    temporary: IntArray
    block: IntArray
    made: IntArray
    edges: tuple[int, ...]


Counts = tuple[IntArray, ...]
"""Per dimension, how many waves each machine has; nothing where there are no waves."""


class _Reading(NamedTuple):
    tensor: Tensor
    region: Boxes
    counts: Counts
    name: str = ""


class _Combined(NamedTuple):
    moved: IntArray
    messages: IntArray
    temporary: IntArray
    touched: IntArray
    parts: int


class Loads:
    """The loads of a graph's steps; what depends on the graph alone is kept from plan to plan.

    Steps that are alike (a model's layers) share one load: what a load depends on goes by small numbers.
    """

    def __init__(self) -> None:
        self.terms: dict[Tensor, tuple[Term, ...]] = {}
        self.loads: dict[Any, Load] = {}
        self._numbers: dict[Any, int] = {}
        self._kinds: dict[Operation | Sink, int] = {}
        self._crossed: dict[Operation, frozenset[str]] = {}

    def of(self, plan: Plan) -> list[Load]:
        """Per step of a plan."""
        return list(_PlanLoads(plan, self).run())

    def partners(self, plan: Plan) -> Callable[[int, Tensor], int]:
        """(step, tensor that it reads) -> how many machines give or take something of it."""
        one = _PlanLoads(plan, self)
        loads = list(one.run())
        return lambda at, tensor: int(one.partners(plan.steps[at], tensor, loads[at].moved > 0).sum())

    def terms_of(self, tensor: Tensor) -> tuple[Term, ...]:
        """Where the values of a tensor come from."""
        if tensor not in self.terms:
            self.terms[tensor] = read_terms(tensor)
        return self.terms[tensor]

    def crossed(self, operation: Operation) -> frozenset[str]:
        """Its inputs that lie across the order of its result."""
        if operation not in self._crossed:
            self._crossed[operation] = crossed_inputs(operation, self.terms_of)
        return self._crossed[operation]

    def number(self, value: Any) -> int:
        """A small number that stands for a value."""
        return self._numbers.setdefault(value, len(self._numbers))

    def kind(self, node: Operation | Sink) -> int:
        """The same number for nodes that are alike but for where their inputs come from."""
        if node not in self._kinds:
            tensors = [node.tensor] if isinstance(node, Sink) else [tensor for _, tensor in node.inputs]
            reads = [
                tuple(
                    (t.dims, t.fixed, t.itemsize, in_files(t.source), () if t.origin is None else t.origin.type.box)
                    for t in terms
                )
                for terms in map(self.terms_of, tensors)
            ]
            about: Any = (takes_boxes(node), isinstance(node, Sink) and isinstance(node.target, FileTarget))
            if isinstance(node, Operation):
                names = tuple(name for name, _ in node.inputs)
                about = (node.signature, node.index, node.outputs, names, operator_of(node).finish)
            self._kinds[node] = self.number((about, tuple(reads), tuple(tensor.type for tensor in tensors)))
        return self._kinds[node]


class _PlanLoads:
    def __init__(self, plan: Plan, known: Loads) -> None:
        self.plan, self.known, self.count = plan, known, len(plan.machines)
        self.made: dict[Operation, Step] = {}
        self.partials: dict[Operation, Step] = {}
        self.held: dict[Tensor, Held | None] = {}
        self.disks = plan.disks
        self.places: dict[Any, Any] = {**plan.residents, **self.disks}

    def run(self) -> Iterator[Load]:
        for step in self.plan.steps:
            key = self._key(step)
            if key not in self.known.loads:
                self.known.loads[key] = self._load(step)
            yield self.known.loads[key]
            if isinstance(step.node, Operation):
                (self.partials if step.stage == "partial" else self.made)[step.node] = step
                about = (self.known.kind(step.node), step.stage, step.cuts, step.where, step.spilled)
                self.places[step.node] = self.known.number(about)

    def _key(self, step: Step) -> Any:
        """What a load depends on: the step's own cuts and place, and those of what it reads."""
        node, known = step.node, self.known
        tensors = [node.tensor] if isinstance(node, Sink) else [tensor for _, tensor in node.inputs]
        places = tuple(
            (self.places.get(term.origin.producer), term.origin.output, term.source in self.disks)
            for tensor in tensors
            for term in known.terms_of(tensor)
            if term.origin is not None
        )
        own = self.places[node] if step.stage == "combine" and isinstance(node, Operation) else None
        about = step.cuts, step.where, step.outputs, step.spilled
        return known.kind(node), step.stage, about, own, self.count, places

    def _boxes(self, step: Step) -> tuple[Boxes, ...]:
        """All that each machine works on, of a step's index or of the tensor that it combines or stores."""
        return _all_of([np.asarray(edges, np.int64) for edges in step.cuts.cuts], step.where, self.count)

    def _waves(self, step: Step) -> list[tuple[Boxes, Counts]]:
        """The same wave by wave, and how many waves there are."""
        bounds = [np.asarray(edges, np.int64) for edges in step.cuts.cuts]
        if step.where.run:
            return machine_runs(bounds, step.where, self.count, waves=True)
        boxes = machine_boxes(bounds, step.where, self.count, waves=step.where.wave_count > 1)
        return [(boxes, wave_counts(step.where, self.count) if boxes.waves else ())]

    def _readings(self, step: Step, boxes: Boxes, counts: Counts) -> Iterator[_Reading]:
        node = step.node
        if isinstance(node, Sink):
            yield _Reading(node.tensor, boxes, counts)
            return
        late = operator_of(node).finish
        if step.stage == "combine":
            boxes = index_of_boxes(node, step.outputs[0], boxes)
        for name, tensor in node.inputs:
            if (name in late) if step.stage == "combine" else (step.stage == "block" or name not in late):
                yield _Reading(tensor, input_boxes(node, name, boxes), counts, name)

    def partners(self, step: Step, tensor: Tensor, receiving: Flags) -> Flags:
        """Which machines give or take something of a tensor; of partial results, those that receive."""
        found, read = np.zeros(self.count, np.bool_), False
        for boxes in self._boxes(step):
            for reading in self._readings(step, boxes, ()):
                if reading.tensor is tensor:
                    read = True
                    for term in self.known.terms_of(tensor):
                        held = None if term.origin is None else self._held(term.origin)
                        if held is not None:
                            found |= partners(term, reading.region, held)
        return found if read else receiving

    def _load(self, step: Step) -> Load:
        waves = self._waves(step)
        if len(waves) == 1:
            return self._load_of(step, *waves[0])
        if self.disks:  # what a disk serves counts for its owner, whoever reads
            return _joined([self._load_of(step, *one) for one in waves], machine_blocks(step.where, self.count))
        parts, first = [], step.where.first_of_rest
        for boxes, counts in waves:  # machines of the rest have blocks of several parts, and are few: they go apart
            some = np.flatnonzero(_some(boxes))
            for who in (some[some < first], some[some >= first]):
                if len(who):
                    part = self._load_of(step, boxes.of(who), tuple(count[who] for count in counts), who)
                    parts.append(_among_all(part, who, self.count))
        return _joined(parts, machine_blocks(step.where, self.count))

    def _load_of(self, step: Step, boxes: Boxes, counts: Counts, who: IntArray | None = None) -> Load:
        node, count = step.node, self.count if who is None else len(who)
        zero = np.zeros(count, np.int64)
        moved, messages, read, served, carried, temporary, touched, crossed = (zero.copy() for _ in range(8))
        across = self.known.crossed(node) if isinstance(node, Operation) else frozenset()
        written, results, block, made = zero, zero, zero, zero
        objects: Floats = np.zeros(count)
        flops: Floats = np.zeros(count)
        functions: Floats = np.zeros(count)
        edges: list[int] = []
        by_piece = takes_boxes(node)
        for reading in self._readings(step, boxes, counts):
            item = reading.tensor.dtype.itemsize
            size = volume(reading.region, counts) * item
            touched += size
            crossed += size * (reading.name in across)
            blocks, arriving = zero.copy(), zero.copy()
            arrived = 0
            for term in self.known.terms_of(reading.tensor):
                if term.origin is None:
                    blocks += _some(reading.region)
                    continue
                held = _held_by(self._held(term.origin), who)
                got = arrival(term, reading.region, held, counts)
                if held is None:
                    read += got.moved
                    if not in_files(term.source):
                        carried += got.moved
                        objects += objects_of(got, reading.region)
                else:
                    moved += got.moved
                    messages += got.messages
                    arrived += int(got.moved.sum())
                if term.source is not None and term.source in self.disks:
                    owner = self.disks[term.source].offset
                    served[owner] += arrival(term, reading.region, None, counts).moved.sum()
                if held is not None and self._spilled(term.origin):
                    got = arrival(term, reading.region, Held((), held.bounds), counts)  # nothing of it is in memory
                    read += got.moved
                blocks += got.blocks
                arriving = np.maximum(arriving, got.arriving)
            edges.append(arrived)
            one = _largest(reading.region) * item
            gathered = arriving if by_piece else one + arriving
            temporary += np.where(blocks <= 1, arriving, gathered)
        if isinstance(node, Sink):
            written = touched
            if not isinstance(node.target, FileTarget):
                results = written
                carried += written
                blocks = machine_blocks(step.where, count) if who is None else _some(boxes)
                objects += blocks * (written > blocks * OBJECT_BYTES)
        elif step.stage == "combine":
            joined = self._combined(node, boxes, counts, who)
            moved, messages = moved + joined.moved, messages + joined.messages
            temporary, touched = temporary + joined.temporary, touched + joined.touched
            finishing = sum(name in operator_of(node).finish for name, _ in node.inputs)
            flops = volume(boxes, counts) * float((joined.parts - 1) * len(node.outputs) + finishing)
            edges.append(int(joined.moved.sum()))
        elif node.signature is not None:
            points = volume(boxes, counts)
            flops, functions = (points * each for each in arithmetic(node))
        if isinstance(node, Operation):
            block, made = self._made(node, step, boxes, counts, zero)
            if step.accumulated:
                temporary = temporary + block
            written = made if step.spilled else written
        return Load(
            machine_blocks(step.where, count) if who is None else zero,
            flops,
            functions,
            touched + made,
            crossed,
            moved,
            messages,
            read + served,
            served,
            written,
            carried,
            results,
            objects,
            temporary,
            block,
            made,
            tuple(edges),
        )

    def _made(
        self, node: Operation, step: Step, boxes: Boxes, counts: Counts, zero: IntArray
    ) -> tuple[IntArray, IntArray]:
        """(bytes of the largest block, bytes of all blocks) per machine."""
        block = made = zero
        turns = prod(step.where.waves[k] for k in step.accumulated)
        for tensor in step.tensors:
            region = boxes if step.stage == "combine" else output_boxes(node, tensor.output, boxes)
            item = tensor.dtype.itemsize
            block = block + _largest(region) * item
            made = made + volume(region, counts) * item // turns
        return block, made

    def _combined(self, node: Operation, boxes: Boxes, counts: Counts, who: IntArray | None) -> _Combined:
        """What combining takes: each owner gets its part of every partial result but its own."""
        partial = self.partials[node]
        parts = prod(partial.where.parts[k] for k in (node.signature.monoids if node.signature else ()))
        (own,) = self._boxes(partial)
        own = own if who is None else own.of(who)
        moved = messages = temporary = touched = np.zeros(self.count if who is None else len(who), np.int64)
        for tensor in partial.tensors:
            cuts = output_partition(node, tensor.output, partial.cuts).cuts
            bounds = tuple(np.asarray(edges, np.int64) for edges in cuts)
            held = Held((output_boxes(node, tensor.output, own),), bounds)
            whole = tuple(TermDim((0, n), ((r, 1, 0),)) for r, n in enumerate(tensor.shape))
            got = arrival(Term(tensor, whole, (), tensor.dtype.itemsize), boxes, held, counts)
            here = (got.moved == 0).astype(np.int64)  # in all waves: one may hold a part that the next does not
            size = _largest(boxes) * tensor.dtype.itemsize
            moved = moved + got.wanted * parts - (got.wanted - got.moved)
            messages = messages + got.pieces * (parts - 1) + got.messages
            gathered = (size + np.maximum(got.arriving, size * (parts > 1))) * parts
            temporary = temporary + np.where(got.blocks > 1, gathered, size * (parts - here))
            touched = touched + got.wanted * parts
        return _Combined(moved, messages, temporary, touched, parts)

    def _spilled(self, origin: Tensor) -> bool:
        step = self.made.get(origin.producer) if isinstance(origin.producer, Operation) else None
        return step is not None and step.spilled

    def _held(self, origin: Tensor) -> Held | None:
        if origin not in self.held:
            self.held[origin] = self._find_held(origin)
        return self.held[origin]

    def _find_held(self, origin: Tensor) -> Held | None:
        producer = origin.producer
        if not isinstance(producer, Operation):
            home = self.places.get(producer) if isinstance(producer, Source) else None
            return None if home is None else held_at(origin, home, self.count)
        step = self.made[producer]
        boxes = self._boxes(step)
        if step.stage == "combine":
            return Held(boxes, tuple(np.asarray(edges, np.int64) for edges in step.cuts.cuts))
        cuts = output_partition(producer, origin.output, step.cuts)
        made = tuple(output_boxes(producer, origin.output, one) for one in boxes)
        return Held(made, tuple(np.asarray(edges, np.int64) for edges in cuts.cuts))


def _held_by(held: Held | None, who: IntArray | None) -> Held | None:
    """What some machines hold."""
    if held is None or who is None:
        return held
    boxes = [one.of(who) for one in held.boxes]
    return replace(held, boxes=tuple(one for one in boxes if one.here.any()) or tuple(boxes[:1]))


def _among_all(load: Load, who: IntArray, count: int) -> Load:
    """The load of some machines, in arrays of all."""
    arrays = {f.name: getattr(load, f.name) for f in fields(Load) if f.name != "edges"}
    for name, values in arrays.items():
        arrays[name] = np.zeros(count, values.dtype)
        arrays[name][who] = values
    return Load(**arrays, edges=load.edges)


def _joined(parts: Sequence[Load], tasks: IntArray) -> Load:
    """The load of waves that are given in several parts."""
    most = ("temporary", "block")
    arrays = {name: [getattr(part, name) for part in parts] for name in (f.name for f in fields(Load))}
    joined = {
        name: np.maximum.reduce(row) if name in most else sum(row) for name, row in arrays.items() if name != "edges"
    }
    return replace(Load(**joined, edges=tuple(map(sum, zip(*arrays["edges"], strict=True)))), tasks=tasks)


def _largest(boxes: Boxes) -> IntArray:
    """The points of each machine's box at its largest wave."""
    total: Any = _some(boxes)
    axes = tuple(range(-boxes.waves, 0))
    for low, high in zip(boxes.low, boxes.high, strict=True):
        size = np.maximum(high - low, 0)
        total = total * (size.max(axis=axes) if boxes.waves else size)
    return np.asarray(total, np.int64)


def _some(boxes: Boxes) -> IntArray:
    """1 where a machine has a box."""
    return np.asarray(boxes.here.reshape(boxes.here.shape[: boxes.here.ndim - boxes.waves]), np.int64)


def held_at(tensor: Tensor, home: Placement, count: int) -> Held:
    """A tensor that lies by a placement."""
    bounds = tuple(np.asarray(edges, np.int64) for edges in partition_of(tensor.type.box, home).cuts)
    return Held(_all_of(bounds, home, count), bounds)


def _all_of(bounds: Sequence[IntArray], where: Placement, count: int) -> tuple[Boxes, ...]:
    """All that each machine has, by a placement."""
    if where.run:
        return tuple(boxes for boxes, _ in machine_runs(bounds, where, count))
    return (machine_boxes(bounds, where, count),)
