"""Sharding: an operation's index box cut along any of its dimensions, and the explicit graph that this gives.

A partition is stored as its cuts per dimension, never as its shards: a partition into a million shards is a small
value. Cutting a dimension that every output uses gives independent blocks. Cutting a reduction dimension gives
partial results, which the signature's monoid combines.

Source: Tapestry, "Operator Index Counting", "Reduction Operations", "Sharded Expressions".
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from math import prod
from typing import Any, TypeVar, cast

from tileweave.errors import GraphError
from tileweave.graph import ops as op
from tileweave.graph.ir.interned import built_for
from tileweave.graph.ir.nodes import (
    Graph,
    Node,
    Operation,
    SequencePoint,
    Signature,
    Sink,
    SinkPart,
    Source,
    Tensor,
    TensorType,
    children,
    keep_order,
    relinked,
    topological,
)
from tileweave.graph.ir.resolve import common_map, resolve
from tileweave.graph.ir.select import concat, slice_, unsqueeze, view_of
from tileweave.graph.ops.monoids import STATES
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.ops.reductions import combined
from tileweave.space import Box, disjoint, even_cuts
from tileweave.space.box import trusted_box


@dataclass(frozen=True, slots=True)
class Partition:
    """Cuts per dimension of a box: ascending boundaries, first and last those of the box.

    Example:
        >>> p = Partition(((0, 3, 6), (0, 4)))
        >>> p.count, str(p.block(1))
        (2, '[3:6, 0:4]')
    """

    cuts: tuple[tuple[int, ...], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of parts per dimension."""
        return tuple([len(cuts) - 1 for cuts in self.cuts])

    @property
    def count(self) -> int:
        """The number of blocks."""
        return prod([len(cuts) - 1 for cuts in self.cuts])

    @property
    def box(self) -> Box:
        """The box that is cut."""
        return Box.between([cuts[0] for cuts in self.cuts], [cuts[-1] for cuts in self.cuts])

    def place(self, k: int) -> tuple[int, ...]:
        """The grid coordinates of block k; the last dimension is fastest."""
        out = []
        for parts in reversed(self.grid):
            k, digit = divmod(k, parts)
            out.append(digit)
        return tuple(reversed(out))

    def number(self, place: Sequence[int]) -> int:
        """The linear number of the block at grid coordinates."""
        k = 0
        for digit, parts in zip(place, self.grid, strict=True):
            k = k * parts + digit
        return k

    def block(self, k: int) -> Box:
        """Block k as a box."""
        return self.at(self.place(k))

    def at(self, place: Sequence[int]) -> Box:
        """The block at grid coordinates."""
        start, shape = [], []
        for cuts, digit in zip(self.cuts, place, strict=True):
            low = cuts[digit]
            start.append(low)
            shape.append(cuts[digit + 1] - low)
        return trusted_box(tuple(start), tuple(shape))

    def __iter__(self) -> Iterator[Box]:
        for place in itertools.product(*(range(parts) for parts in self.grid)):
            yield self.at(place)

    def overlapping(self, box: Box) -> Iterator[tuple[int, Box]]:
        """(number, common part) of every block that has a point in common with a box."""
        for place in self.places(box):
            common = self.at(place).intersect(box)
            if not common.empty:
                yield self.number(place), common

    def places(self, box: Box) -> Iterator[tuple[int, ...]]:
        """The grid coordinates of every block that reaches into a box, empty blocks among them."""
        if box.empty:
            return iter(())
        ranges = []
        for cuts, low, high in zip(self.cuts, box.start, box.stop, strict=True):
            ranges.append(range(max(bisect_right(cuts, low) - 1, 0), min(bisect_left(cuts, high), len(cuts) - 1)))
        return itertools.product(*ranges)

    def __str__(self) -> str:
        return "x".join(map(str, self.grid)) or "1"


def partition(operation: Operation | Sink, parts: Sequence[int]) -> Partition:
    """The even partition of an operation's index into so many parts per dimension.

    The index of a sink is the box of its tensor: its signature is the identity projection.

    Raises:
        GraphError: an operation without a signature is cut, or a dimension has fewer points than parts.
    """
    index, label = _index(operation), _label(operation)
    names: Sequence[str] = [f"d{k}" for k in range(index.rank)]
    if isinstance(operation, Operation) and operation.signature is not None:
        names = operation.signature.dims
    if len(parts) != index.rank:
        raise GraphError(
            f"partition({label}, parts)",
            f"{len(parts)} counts do not fit an index of rank {index.rank}",
            inputs={"index": index},
            legal=f"one count for each of {', '.join(names)}",
        )
    if isinstance(operation, Operation) and operation.signature is None and prod(parts) > 1:
        raise GraphError(
            f"partition({label}, parts)",
            "the operation has no signature, so it cannot be cut",
            legal="1 part",
        )
    for name, extent, count in zip(names, index.shape, parts, strict=True):
        if count < 1 or count > max(extent, 1):
            raise GraphError(
                f"partition({label}, parts)",
                f"{count} parts do not fit extent {extent} of dimension {name}",
                inputs={"index": index, "parts": tuple(parts)},
                legal=f"1..{max(extent, 1)}",
            )
    return Partition(tuple(even_cuts(n, p, a) for n, p, a in zip(index.shape, parts, index.start, strict=True)))


def _index(node: Operation | Sink) -> Box:
    return node.index if isinstance(node, Operation) else node.tensor.type.box


def _label(node: Operation | Sink) -> str:
    return node.operator if isinstance(node, Operation) else "sink"


def _driver(signature: Signature, output: str, row: int) -> int | None:
    """The index dimension that moves one dimension of an output, or None when none does."""
    projection = signature.output(output)
    coefficients = projection.map.matrix[row]
    return next((k for k, c in enumerate(coefficients) if c), None)


def output_partition(operation: Operation, output: str, cuts: Partition) -> Partition:
    """How the blocks of an operation's partition cut one of its outputs; reduction dimensions do not."""
    signature = operation.signature
    shape = operation.output_types[output].shape
    if signature is None:
        return Partition(tuple((0, n) for n in shape))
    projection = signature.output(output)
    base = projection.span(operation.index).start
    out: list[tuple[int, ...]] = []
    for row, extent in enumerate(shape):
        driver = _driver(signature, output, row)
        if driver is None or extent == 0:
            out.append((0, extent))
            continue
        step, offset = projection.map.matrix[row][driver], projection.map.offset[row]
        out.append(tuple(step * cut + offset - base[row] for cut in cuts.cuts[driver][:-1]) + (extent,))
    return Partition(tuple(out))


def index_of_output(operation: Operation, output: str, box: Box) -> Box:
    """The index points whose result falls in a box of an output: all of every reduction dimension."""
    signature = operation.signature
    if signature is None:
        return operation.index
    projection = signature.output(output)
    base = projection.span(operation.index).start
    index = operation.index
    for row in range(box.rank):
        driver = _driver(signature, output, row)
        if driver is None:
            continue
        step, offset = projection.map.matrix[row][driver], projection.map.offset[row]
        low, high = box.start[row] + base[row] - offset, box.stop[row] + base[row] - offset
        index = index.with_range(driver, low // step, -(-high // step))
    return index


def input_region(operation: Operation, name: str, index: Box) -> Box:
    """The region of a named input, in the input tensor's own coordinates, that a block of the index needs."""
    return input_regions(operation, name)(index)


def input_regions(operation: Operation, name: str) -> Callable[[Box], Box]:
    """What `input_region` is, for many blocks of the index."""
    if operation.signature is None:
        whole = operation.input(name).type.box
        return lambda index: whole
    projection = operation.signature.input(name)
    back = tuple(-b for b in projection.span(operation.index).start)
    return (lambda index: projection.span(index).translate(back)) if any(back) else projection.span


def shard_operation(operation: Operation, index: Box) -> Operation:
    """The operation on one block of its index: the same signature, sliced inputs, its own part of the outputs.

    A block that holds only part of a reduction dimension is the partial operation: inputs that the operator applies
    after the combination are left out; the signature stays the parent's.
    """
    signature = operation.signature
    if signature is None:
        raise GraphError(f"shard({operation.operator})", "the operation has no signature, so it cannot be cut")
    whole = all(index.shape[k] == operation.index.shape[k] for k in signature.monoids)
    late = () if whole else operator_of(operation).finish
    inputs = tuple(
        (name, slice_(tensor, input_region(operation, name, index)))
        for name, tensor in operation.inputs
        if name not in late
    )
    outputs = tuple(
        (name, TensorType(signature.output(name).span(index).shape, kind.dtype)) for name, kind in operation.outputs
    )
    return replace(operation, index=index, inputs=inputs, outputs=outputs)


def expand(
    graph: Graph,
    partitions: Mapping[Operation, Partition] | Mapping[Operation | Sink, Partition],
    *,
    arity: int | None = None,
) -> Graph:
    """The explicit graph of a sharding: shards of the operations, slices of their inputs, concats of their outputs.

    Slices that fall inside one part of a concat read that part, so chains that are cut alike are never joined in
    between. Partial results are stacked along a new dimension and reduced by their monoid. A sequence point that
    held an operation holds all of its shards, and every shard keeps what happens before it. A sink that is cut becomes
    sinks of its regions; cut like the operation that it stores, it needs no concat.

    Args:
        graph: any graph.
        partitions: cuts for some of its operations and sinks; the others stay whole.
        arity: how many partial results are combined at a time, in a tree; all at once when left out.

    Raises:
        GraphError: the arity is below two, an operation without a signature is cut, or cuts do not fit an index.

    Source: Tapestry, the two Add graphs of "TEG", and "Sharding Linear, and Matmul, over the in dimension".
    """
    if arity is not None and arity < 2:
        raise GraphError("expand(graph, partitions, arity)", f"arity {arity}", legal="2 or more, or None")
    new: dict[Node, Node] = {}
    joined: dict[tuple[Operation, str], Tensor] = {}
    shards: dict[Node, tuple[Any, ...]] = {}
    for node in topological([graph]):
        if isinstance(node, Tensor) and (node.producer, node.output) in joined:
            new[node] = joined[cast("Operation", node.producer), node.output]
            continue
        if isinstance(node, SequencePoint):
            held = [shards.get(item, (new[item],)) for item in node.before]
            new[node] = SequencePoint(tuple(itertools.chain.from_iterable(held)))
            continue
        new[node] = moved(node, new)
        cuts = cast("Mapping[Node, Partition]", partitions).get(node)
        if isinstance(node, (Operation, Sink)) and cuts is not None:
            _check_cuts(node, cuts)
            if isinstance(node, Sink):
                shards[node] = _sinks(cast("Sink", new[node]), cuts)
            elif cuts.count > 1:
                made: dict[Operation, None] = {}
                for name, _ in node.outputs:
                    joined[node, name] = _joined(cast("Operation", new[node]), name, cuts, made, arity)
                shards[node] = tuple(made)
    return cast("Graph", new[graph])


def _check_cuts(operation: Operation | Sink, cuts: Partition) -> None:
    index = _index(operation)
    ascending = all(list(row) == sorted(row) for row in cuts.cuts)
    if len(cuts.cuts) != index.rank or cuts.box != index or not ascending:
        raise GraphError(
            f"expand({_label(operation)})",
            "the cuts do not fit the index",
            inputs={"cuts": cuts.cuts, "index": index},
            legal="ascending boundaries per dimension, first and last those of the index",
        )
    if isinstance(operation, Operation) and operation.signature is None and cuts.count > 1:
        raise GraphError(f"expand({operation.operator})", "the operation has no signature, so it cannot be cut")


def moved(node: Node, new: Mapping[Node, Node]) -> Node:
    """A node rebuilt on what its parts became."""
    return node if all(new[child] is child for child in children(node)) else relinked(node, new)


def with_sources(graph: Graph, new: Mapping[Source, Source]) -> Graph:
    """The graph that reads other sources, of the same types."""
    known = dict[Node, Node](new.items())
    for node in graph.nodes():
        if node not in known:
            if isinstance(node, Operation):
                with built_for(node):
                    known[node] = moved(node, known)
            else:
                known[node] = moved(node, known)
    made = cast("Graph", known[graph])
    if made is not graph:
        keep_order(made, [known[node] for node in graph.nodes()])
    return made


def _joined(
    operation: Operation, output: str, cuts: Partition, made: dict[Operation, None], arity: int | None
) -> Tensor:
    """The output of a sharded operation: partial results combined, blocks concatenated; `made` collects the shards."""

    def block(box: Box) -> Tensor:
        tensor = _output_block(operation, output, cuts, index_of_output(operation, output, box), arity)
        made[cast("Operation", tensor.producer)] = None
        return tensor

    return join_blocks(output_partition(operation, output, cuts), block)


def join_blocks(cuts: Partition, block: Callable[[Box], Tensor]) -> Tensor:
    """The tensor whose blocks are given, as a concat along each dimension that is cut."""

    def join(place: tuple[int, ...]) -> Tensor:
        dim = len(place)
        if dim == len(cuts.grid):
            return block(cuts.at(place))
        return concat([join((*place, k)) for k in range(cuts.grid[dim])], dim)

    return join(())


def _sinks(sink: Sink, cuts: Partition) -> tuple[Sink, ...]:
    """The shards of a sink, which may be a shard itself; blocks without elements need none."""
    boxes = [box for box in cuts if not box.empty]
    if len(boxes) < 2:
        return (sink,)
    whole = sink.part or SinkPart(sink.tensor.type.box, sink.tensor.shape)
    return tuple(
        replace(sink, tensor=slice_(sink.tensor, box), part=SinkPart(box.translate(whole.box.start), whole.shape))
        for box in boxes
    )


def _output_block(operation: Operation, output: str, cuts: Partition, index: Box, arity: int | None) -> Tensor:
    """One block of an output: one shard, or the partial results of several combined and finished."""
    monoids = cast("Signature", operation.signature).monoids
    if index.empty or all(cuts.grid[k] == 1 for k in monoids):
        return Tensor(shard_operation(operation, index), output)
    shards = [shard_operation(operation, index.intersect(box)) for _, box in cuts.overlapping(index)]
    monoid = monoids[min(monoids)]
    # all at once, or dimension by dimension, so that what is combined is always a box of the index
    counts = [sum(a < b for a, b in pairwise(cuts.cuts[k])) for k in sorted(monoids)]
    counts = [len(shards)] if arity is None else list(reversed(counts))
    if monoid in STATES:
        return Tensor(_tree(partial(combined, monoid), shards, counts, arity), output)
    total = _tree(partial(_combined, monoid), [Tensor(shard, output) for shard in shards], counts, arity)
    late = operator_of(operation).late
    if late is None:
        return total
    given = [slice_(x, input_region(operation, name, index)) for name, x in operation.inputs if name in late.names]
    return late.write(total, *given) if given else total


Part = TypeVar("Part", Tensor, Operation)


def _tree(join: Callable[[Sequence[Part]], Part], parts: list[Part], counts: Sequence[int], arity: int | None) -> Part:
    """Rows of `counts` parts after each other are joined, `arity` at a time."""
    for count in counts:
        rows = [parts[k : k + count] for k in range(0, len(parts), count)]
        parts = [_row(join, row, arity or count) for row in rows]
    return parts[0]


def _row(join: Callable[[Sequence[Part]], Part], parts: list[Part], arity: int) -> Part:
    while len(parts) > 1:
        groups = [parts[k : k + arity] for k in range(0, len(parts), arity)]
        parts = [join(group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def _combined(monoid: str, parts: Sequence[Tensor]) -> Tensor:
    """Partial results stacked along a new first dimension and reduced along it."""
    return _REDUCE[monoid](concat([unsqueeze(part, 0) for part in parts], 0), parts[0].dtype)


_REDUCE: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "sum": lambda x, dtype: op.sum(x, 0, dtype=dtype),
    "product": lambda x, dtype: op.product(x, 0, dtype=dtype),
    "max": lambda x, dtype: op.max(x, 0),
    "min": lambda x, dtype: op.min(x, 0),
}
"""Monoid name -> the combination of partial results that are stacked along dimension 0, in their own type."""


# ---------------------------------------------------------------------------------------------------------------------
# sinks that are cut


def results(point: SequencePoint) -> Iterator[tuple[Sink, ...]]:
    """The sinks of a sequence point, those of one result together, in order.

    Parts belong together as long as they follow each other, are alike, and have fewer elements than the result.
    """
    group: list[Sink] = []
    left = 0
    for sink in point.before:
        if not isinstance(sink, Sink):
            continue
        if group and (left <= 0 or _kind(sink) != _kind(group[0])):
            yield tuple(group)
            group = []
        if not group:
            left = prod(sink.part.shape) if sink.part is not None else 0
        left -= sink.part.box.size if sink.part is not None else 0
        group.append(sink)
    if group:
        yield tuple(group)


def _kind(sink: Sink) -> tuple[object, ...]:
    return sink.target, sink.placement, sink.tensor.dtype, sink.part and sink.part.shape


def parts_wrong(group: Sequence[Sink]) -> Iterator[str]:
    """Why the sinks of one result do not write each of its elements once, as blocks of a grid."""
    first = group[0].part
    if first is None:
        return
    boxes = [cast("SinkPart", sink.part).box for sink in group]
    kind = TensorType(first.shape, group[0].tensor.dtype)
    odd = next((sink for sink, box in zip(group, boxes, strict=True) if sink.tensor.shape != box.shape), None)
    if odd is not None:
        yield f"{odd!r} has a part of another shape than its tensor"
    elif not disjoint(boxes):
        a, b = next((a, b) for a, b in combinations(boxes, 2) if not a.intersect(b).empty)
        yield f"two sinks of one {kind} write {a.intersect(b)}: the parts {a} and {b}"
    elif sum(box.size for box in boxes) != kind.box.size:
        yield f"{_some(boxes)} do not cover {kind}: its sinks stand together, alike in target, placement and type"
    elif _grid(boxes).count != len(boxes):
        yield f"{_some(boxes)} of {kind} are not the blocks of a grid"


def _some(boxes: Sequence[Box]) -> str:
    return f"the parts {', '.join(map(str, boxes[:4]))}{', ..' if boxes[4:] else ''}"


def _grid(boxes: Sequence[Box]) -> Partition:
    """The cuts at every boundary of boxes that cover a result once."""
    ends = [(box.start, box.stop) for box in boxes]
    rank = boxes[0].rank
    return Partition(tuple(tuple(sorted({end[k] for pair in ends for end in pair})) for k in range(rank)))


def join_sinks(graph: Graph) -> Graph:
    """The graph with one sink for each result: what cut sinks store is joined by a concat. The inverse of cutting them.

    Raises:
        GraphError: the parts of a result do not write each element once.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add, expand, partition
        >>> whole = Graph.of(add(np.ones(6), 1.0))
        >>> cut = expand(whole, {sink: partition(sink, [3]) for sink in whole.sinks})
        >>> len(cut.sinks), join_sinks(cut) is whole
        (3, True)
    """
    nodes = graph.nodes()
    if not any(isinstance(node, Sink) and node.part is not None for node in nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in nodes:
        new[node] = _joined_point(node, new) if isinstance(node, SequencePoint) else moved(node, new)
    return cast("Graph", new[graph])


def _joined_point(point: SequencePoint, new: Mapping[Node, Node]) -> SequencePoint:
    groups = results(point)
    held: list[Operation | Sink] = []
    rest = 0
    for item in point.before:
        if not isinstance(item, Sink):
            held.append(cast("Operation", new[item]))
        elif rest:
            rest -= 1
        else:
            group = next(groups)
            held.append(_joined_sinks([cast("Sink", new[sink]) for sink in group]))
            rest = len(group) - 1
    return SequencePoint(tuple(held))


def _joined_sinks(group: Sequence[Sink]) -> Sink:
    if group[0].part is None:
        return group[0]
    for problem in parts_wrong(group):
        raise GraphError("join_sinks(graph)", problem, legal="each element in one part")
    tensors = {cast("SinkPart", sink.part).box: sink.tensor for sink in group}
    return replace(group[0], tensor=_simple(join_blocks(_grid(list(tensors)), tensors.__getitem__)), part=None)


def _simple(tensor: Tensor) -> Tensor:
    """Slices of one tensor that are joined again, as one view of it."""
    pieces = resolve(tensor, tensor.type.box)
    origin = pieces[0].origin
    if origin is None or any(piece.origin is not origin for piece in pieces):
        return tensor
    map = common_map(tensor.type.box, [(piece.box, piece.map) for piece in pieces])
    return tensor if map is None else view_of(origin, tensor.shape, map)
