"""From shards back to the abstract graph: the inverse of `expand`.

Blocks of one operator and signature whose results stand side by side where their indices say are one operation on the
bounding index. Its inputs are put together from what the blocks read; where that is again a join of blocks, the same
step applies below. Partial results that are stacked and reduced by the signature's monoid count as one block.

Source: Tapestry, "Polyhedral Type Information" (abstract graphs from sharded graphs).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from typing import Any, cast

from tileweave.graph.ir.nodes import (
    Graph,
    Node,
    Operation,
    Selector,
    SequencePoint,
    Signature,
    Sink,
    Tensor,
    TensorType,
)
from tileweave.graph.ir.resolve import common_map, resolve
from tileweave.graph.ir.select import concat, full, view_of
from tileweave.graph.passes.blocks import Fragment, OperationBlock, grown, merged_inputs, tiles, union
from tileweave.graph.passes.shard import join_sinks
from tileweave.space import AffineMap, Box

_MOST_CELLS = 4096
"""Inputs that would be put together from more parts than this are left as they are."""


def coalesce(graph: Graph) -> Graph:
    """The graph with shards joined to the operations and sinks that they are blocks of; its value is the same.

    Args:
        graph: any graph; what is no block of anything stays.

    Raises:
        GraphError: sinks that are cut do not write each element of their result once.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add, expand, partition
        >>> whole = Graph.of(add(np.ones(6), 1.0))
        >>> (operation,) = whole.operations
        >>> coalesce(expand(whole, {operation: partition(operation, [3])})) is whole
        True
    """
    graph = join_sinks(graph)
    known: dict[Operation, list[OperationBlock]] = {}
    for operation in graph.operations:
        known[operation] = [*grown(operation, known, _late), *_own(operation)]
    return cast("Graph", _run(_Coalescer(known), graph))


Request = Generator[Node, Node, Node]


def _run(coalescer: _Coalescer, root: Node) -> Node:
    """Answers a node's requests for other nodes with an explicit stack: graphs are deep."""
    stack: list[tuple[Node, Request]] = [(root, coalescer.build(root))]
    answer: Node | None = None
    while stack:
        node, steps = stack[-1]
        try:
            wanted = steps.send(answer) if answer is not None else next(steps)
        except StopIteration as done:
            coalescer.done[node] = answer = done.value
            stack.pop()
            continue
        answer = coalescer.done.get(wanted)
        if answer is None:
            stack.append((wanted, coalescer.build(wanted)))
    return cast("Node", answer)


class _Coalescer:
    def __init__(self, known: Mapping[Operation, Sequence[OperationBlock]]) -> None:
        self.known = known
        self.done: dict[Node, Node] = {}
        self.joined: dict[Operation, Operation] = {}

    def build(self, node: Node) -> Request:
        if isinstance(node, Tensor):
            return self._tensor(node)
        if isinstance(node, (Graph, SequencePoint)):
            return self._point(node)
        return self._plain(node)

    def _plain(self, node: Node) -> Request:
        """The node on its rebuilt parts."""
        if isinstance(node, Sink):
            (tensor,) = yield from _each([node.tensor])
            return replace(node, tensor=tensor)
        if isinstance(node, Selector):
            made = yield from _each([x for _, x in node.inputs])
            return replace(node, inputs=_named(node.inputs, made))
        if isinstance(node, Operation):
            made = yield from _each([x for _, x in node.inputs])
            after = yield from _each(node.after)
            return replace(node, inputs=_named(node.inputs, made), after=tuple(after))
        return node

    def _point(self, node: Graph | SequencePoint) -> Request:
        if isinstance(node, Graph):
            points = yield from _each(node.points)
            return replace(node, points=tuple(points))
        # sinks first: they tell which operations were joined
        yield from _each([item for item in node.before if isinstance(item, Sink)])
        yield from self._join([item for item in node.before if isinstance(item, Operation)])
        yield from _each([item for item in node.before if isinstance(item, Operation) and item not in self.joined])
        held: list[Node] = []
        seen: set[Operation] = set()
        for item in node.before:
            whole = self.joined.get(item) if isinstance(item, Operation) else None
            if whole is None or whole not in seen:
                held.append(whole if whole is not None else self.done[item])
                seen.update(() if whole is None else (whole,))
        return replace(node, before=tuple(cast("list[Sink]", held)))

    def _tensor(self, tensor: Tensor) -> Request:
        found = self._one_block(tensor)
        parts = _assembled(found[0]) if found is not None else None
        if found is None or parts is None:
            (producer,) = yield from _each([tensor.producer])
            return replace(tensor, producer=producer)
        block, output, map = found
        whole = yield from self._whole(block, parts)
        origins = [cast("Tensor", piece.origin) for piece in resolve(tensor, tensor.type.box)]
        self.joined.update({cast("Operation", origin.producer): whole for origin in origins})
        return view_of(Tensor(whole, output), tensor.shape, map)

    def _whole(self, block: OperationBlock, parts: Sequence[tuple[str, Tensor]]) -> Generator[Node, Node, Operation]:
        """The operation on a block, with inputs that are put together."""
        made = yield from _each([x for _, x in parts])
        after = yield from _each(block.of.after)
        outputs = tuple(
            (name, TensorType(_signature(block).output(name).span(block.index).shape, kind.dtype))
            for name, kind in block.of.outputs
        )
        return replace(block.of, index=block.index, inputs=_named(parts, made), outputs=outputs, after=tuple(after))

    def _join(self, operations: Sequence[Operation]) -> Generator[Node, Node, None]:
        """Joins shards that no value joins: a sequence point alone holds them."""
        groups: dict[object, list[tuple[Operation, OperationBlock]]] = {}
        for operation in operations:
            block = self._block(operation)
            if operation not in self.joined and block is not None:
                groups.setdefault(_kind(block), []).append((operation, block))
        for members in groups.values():
            blocks = [block for _, block in members]
            index = union([block.index for block in blocks])
            alone = len(members) == 1 and members[0][0] is blocks[0].of
            if alone or not tiles([block.index for block in blocks], index):
                continue
            block = OperationBlock(blocks[0].of, blocks[0].key, index, merged_inputs(blocks))
            parts = _assembled(block)
            if parts is not None:
                whole = yield from self._whole(block, parts)
                self.joined.update({operation: whole for operation, _ in members})

    def _one_block(self, tensor: Tensor) -> tuple[OperationBlock, str, AffineMap] | None:
        """The one block that a tensor of several shards reads, which of its outputs, and through which map."""
        if tensor.type.box.empty:
            return None
        pieces = resolve(tensor, tensor.type.box)
        origins = {piece.origin: self._block(piece.origin.producer) for piece in pieces if piece.origin is not None}
        blocks = [block for block in origins.values() if block is not None]
        if any(piece.origin is None for piece in pieces) or len(blocks) != len(origins):
            return None
        first, output = blocks[0], next(iter(origins)).output
        if len(blocks) == 1 and isinstance(first.of, Operation) and Tensor(first.of, output) in origins:
            return None  # an operation as it is
        if any(_kind(block) != _kind(first) for block in blocks) or any(origin.output != output for origin in origins):
            return None
        index = union([block.index for block in blocks])
        if not tiles([block.index for block in blocks], index):
            return None
        made = _signature(first).output(output)
        start = made.span(index).start
        lifted = []
        for piece in pieces:
            block = cast("OperationBlock", origins[cast("Tensor", piece.origin)])
            here = tuple(a - b for a, b in zip(made.span(block.index).start, start, strict=True))
            lifted.append((piece.box, AffineMap.shift(here).after(piece.map)))
        agreed = common_map(tensor.type.box, lifted)
        return (
            None
            if agreed is None
            else (OperationBlock(first.of, first.key, index, merged_inputs(blocks)), output, agreed)
        )

    def _block(self, producer: Node) -> OperationBlock | None:
        """What an operation's result is a block of: of itself, or of one that was cut along a reduction."""
        if not isinstance(producer, Operation):
            return None
        return next((block for block in self.known[producer] if not block.waits), None)


def _each(nodes: Sequence[Node]) -> Generator[Node, Node, list[Any]]:
    """Asks for nodes one after the other."""
    out = []
    for node in nodes:
        out.append((yield node))  # noqa: PERF401  (a comprehension cannot yield)
    return out


def _named(parts: Sequence[tuple[str, Tensor]], made: Sequence[Any]) -> tuple[tuple[str, Tensor], ...]:
    return tuple((name, x) for (name, _), x in zip(parts, made, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# recognising blocks


def _kind(block: OperationBlock) -> tuple[object, ...]:
    """What blocks have in common that are blocks of one operation."""
    return block.key, tuple(block.inputs)


def _own(operation: Operation) -> list[OperationBlock]:
    """An operation as a block of its own kind."""
    signature = operation.signature
    if signature is None or operation.index.empty:
        return []
    inputs = {name: ((signature.input(name).span(operation.index), x),) for name, x in operation.inputs}
    types = tuple((name, kind.dtype) for name, kind in operation.outputs)
    key = (operation.operator, operation.parameters, signature, types, operation.after)
    return [OperationBlock(operation, key, operation.index, inputs)]


def _late(block: OperationBlock, name: str, x: Tensor) -> OperationBlock | None:
    """A block with a late input, where the tensor has its shape."""
    region = _signature(block).input(name).span(block.index)
    return replace(block, inputs={**block.inputs, name: ((region, x),)}) if x.shape == region.shape else None


def _signature(block: OperationBlock) -> Signature:
    return cast("Signature", block.of.signature)


# ---------------------------------------------------------------------------------------------------------------------
# putting inputs together


def _assembled(block: OperationBlock) -> list[tuple[str, Tensor]] | None:
    out = []
    for name, projection in _signature(block).inputs:
        if name not in block.inputs:
            continue
        x = _from_fragments(block.inputs[name], projection.span(block.index))
        if x is None:
            return None
        out.append((name, x))
    return out


def _from_fragments(fragments: Sequence[Fragment], region: Box) -> Tensor | None:
    """The tensor of a region from parts that may overlap; None where they leave a hole or are too many."""
    first = fragments[0]
    if len(fragments) == 1:
        return first[1] if first[0] == region else None
    entries: dict[tuple[Box, Tensor | None, AffineMap, str], Any] = {}
    for box, x in fragments:
        shift = tuple(a - b for a, b in zip(box.start, region.start, strict=True))
        back = AffineMap.shift([-a for a in shift])
        for piece in resolve(x, x.type.box):
            entries[piece.box.translate(shift), piece.origin, piece.map.after(back), repr(piece.fill)] = piece.fill
    found = [(box, origin, map, fill) for (box, origin, map, _), fill in entries.items()]
    _, origin, map, _ = found[0]
    here = Box.of(region.shape)
    if origin is not None and all(e[1] is origin and e[2] == map for e in found):
        if origin.type.box.contains(map.cover(here)):  # a hole between the parts is read by no block
            return view_of(origin, region.shape, map)
    return _from_cells(found, region.shape, first[1].dtype)


def _from_cells(
    found: Sequence[tuple[Box, Tensor | None, AffineMap, Any]], shape: tuple[int, ...], dtype: Any
) -> Tensor | None:
    """A join of the cells of the grid that the boundaries of all parts make."""
    cuts = [
        sorted({0, n, *(b.start[k] for b, *_ in found), *(b.stop[k] for b, *_ in found)}) for k, n in enumerate(shape)
    ]
    if prod(len(row) - 1 for row in cuts) > _MOST_CELLS:
        return None

    owner: dict[tuple[int, ...], tuple[Box, Tensor | None, AffineMap, Any]] = {}
    for part in reversed(found):  # of parts that overlap, the first
        axes = zip(cuts, part[0].start, part[0].stop, strict=True)
        for corner in product(*([at for at in row if a <= at < b] for row, a, b in axes)):
            owner[corner] = part

    def join(cell: Box, dim: int) -> Tensor | None:
        if dim == len(shape):
            if cell.start not in owner:
                return None
            _, origin, map, fill = owner[cell.start]
            if origin is None:
                return full(cell.shape, fill, dtype)
            shift = AffineMap.shift(cell.start)
            return view_of(origin, cell.shape, map.after(shift))
        parts = [join(cell.with_range(dim, a, b), dim + 1) for a, b in pairwise(cuts[dim])]
        return None if any(p is None for p in parts) else concat(cast("list[Tensor]", parts), dim)

    return join(Box.of(shape), 0)
