"""Sinks that are cut: which of them write one result, and the one sink that they stand for.

Source: Tapestry, the sharded Add graph of "TEG", whose shards are stored by sinks of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import cast

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Graph, Node, Operation, SequencePoint, Sink, SinkPart, Tensor, TensorType
from tileweave.graph.ir.resolve import common_map, resolve
from tileweave.graph.ir.select import view_of
from tileweave.graph.passes.shard import Partition, join_blocks, moved
from tileweave.space import Box, disjoint


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
            held.append(_joined([cast("Sink", new[sink]) for sink in group]))
            rest = len(group) - 1
    return SequencePoint(tuple(held))


def _joined(group: Sequence[Sink]) -> Sink:
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
