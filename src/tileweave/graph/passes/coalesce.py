"""From shards back to the abstract graph: the inverse of `expand`.

Blocks of one operator and signature whose results stand side by side where their indices say are one operation on the
bounding index. Its inputs are put together from what the blocks read; where that is again a join of blocks, the same
step applies below. Partial results that are stacked and reduced by the signature's monoid count as one block.

Source: Tapestry, "Polyhedral Type Information" (abstract graphs from sharded graphs).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.blocks import stacked
from tileweave.graph.passes.sinks import join_sinks
from tileweave.space import AffineMap, Box, disjoint

Fragment = tuple[Box, Tensor]
"""A part of an input: its box in the coordinates of the projection, and the tensor that holds it."""

_MOST_CELLS = 4096
"""Inputs that would be put together from more parts than this are left as they are."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of an operation that may itself be made of several.

    Args:
        like: one of the operations that it is made of.
        index: of the block.
        inputs: name -> the parts that it reads.
        waits: what is still to be applied to a combined partial result: late inputs, then ``relu``.
    """

    like: Operation
    index: Box
    inputs: Mapping[str, tuple[Fragment, ...]]
    waits: tuple[str, ...] = ()

    @property
    def signature(self) -> Signature:
        return cast("Signature", self.like.signature)

    @property
    def kind(self) -> tuple[object, ...]:
        """What blocks of one operation have in common."""
        types = tuple((name, kind.dtype) for name, kind in self.like.outputs)
        return self.like.operator, self.like.parameters, self.signature, types, self.like.after, tuple(self.inputs)


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
    return cast("Graph", _run(_Coalescer(), join_sinks(graph)))


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
    def __init__(self) -> None:
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
        for item in node.before:
            whole = self.joined.get(item) if isinstance(item, Operation) else None
            if whole is None or whole not in held:
                held.append(whole if whole is not None else self.done[item])
        return replace(node, before=tuple(cast("list[Sink]", held)))

    def _tensor(self, tensor: Tensor) -> Request:
        found = _one_block(tensor)
        parts = _assembled(found[0]) if found is not None else None
        if found is None or parts is None:
            (producer,) = yield from _each([tensor.producer])
            return replace(tensor, producer=producer)
        block, output, map = found
        whole = yield from self._whole(block, parts)
        origins = [cast("Tensor", piece.origin) for piece in resolve(tensor, tensor.type.box)]
        self.joined.update({cast("Operation", origin.producer): whole for origin in origins})
        return view_of(Tensor(whole, output), tensor.shape, map)

    def _whole(self, block: _Block, parts: Sequence[tuple[str, Tensor]]) -> Generator[Node, Node, Operation]:
        """The operation on a block, with inputs that are put together."""
        made = yield from _each([x for _, x in parts])
        after = yield from _each(block.like.after)
        outputs = tuple(
            (name, TensorType(block.signature.output(name).span(block.index).shape, kind.dtype))
            for name, kind in block.like.outputs
        )
        return replace(block.like, index=block.index, inputs=_named(parts, made), outputs=outputs, after=tuple(after))

    def _join(self, operations: Sequence[Operation]) -> Generator[Node, Node, None]:
        """Joins shards that no value joins: a sequence point alone holds them."""
        groups: dict[object, list[tuple[Operation, _Block]]] = {}
        for operation in operations:
            block = _block(Tensor(operation, operation.outputs[0][0])) if operation.outputs else None
            if operation not in self.joined and block is not None and not block.waits:
                groups.setdefault(block.kind, []).append((operation, block))
        for members in groups.values():
            blocks = [block for _, block in members]
            index = _union([block.index for block in blocks])
            alone = len(members) == 1 and members[0][0] is blocks[0].like
            if alone or sum(block.index.size for block in blocks) != index.size:
                continue
            block = _Block(blocks[0].like, index, _merged_inputs(blocks))
            parts = _assembled(block) if disjoint([b.index for b in blocks]) else None
            if parts is not None:
                whole = yield from self._whole(block, parts)
                self.joined.update({operation: whole for operation, _ in members})


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


def _one_block(tensor: Tensor) -> tuple[_Block, str, AffineMap] | None:
    """The one block that a tensor of several shards reads, which of its outputs, and through which map."""
    if tensor.type.box.empty:
        return None
    pieces = resolve(tensor, tensor.type.box)
    origins = {piece.origin: _block(piece.origin) for piece in pieces if piece.origin is not None}
    blocks = [block for block in origins.values() if block is not None and not block.waits]
    if any(piece.origin is None for piece in pieces) or len(blocks) != len(origins):
        return None
    first, output = blocks[0], next(iter(origins)).output
    if len(blocks) == 1 and isinstance(first.like, Operation) and Tensor(first.like, output) in origins:
        return None  # an operation as it is
    if any(block.kind != first.kind for block in blocks) or any(origin.output != output for origin in origins):
        return None
    index = _union([block.index for block in blocks])
    if sum(block.index.size for block in blocks) != index.size or not disjoint([block.index for block in blocks]):
        return None
    made = first.signature.output(output)
    start = made.span(index).start
    lifted = []
    for piece in pieces:
        block = cast("_Block", origins[cast("Tensor", piece.origin)])
        here = tuple(a - b for a, b in zip(made.span(block.index).start, start, strict=True))
        lifted.append((piece.box, AffineMap.shift(here).after(piece.map)))
    agreed = common_map(tensor.type.box, lifted)
    return None if agreed is None else (_Block(first.like, index, _merged_inputs(blocks)), output, agreed)


def _union(boxes: Sequence[Box]) -> Box:
    out = boxes[0]
    for box in boxes[1:]:
        out = out.union(box)
    return out


def _merged_inputs(blocks: Sequence[_Block]) -> dict[str, tuple[Fragment, ...]]:
    out: dict[str, dict[Fragment, None]] = {}
    for block in blocks:
        for name, fragments in block.inputs.items():
            out.setdefault(name, {}).update(dict.fromkeys(fragments))
    return {name: tuple(fragments) for name, fragments in out.items()}


def _block(tensor: Tensor) -> _Block | None:
    """What an operation's result is a block of: of the operation itself, or of one that was cut along a reduction."""
    operation = tensor.producer
    if not isinstance(operation, Operation):
        return None
    return _combined(operation) or _finished(operation) or _own(operation)


def _own(operation: Operation) -> _Block | None:
    signature = operation.signature
    if signature is None or operation.index.empty:
        return None
    inputs = {name: ((signature.input(name).span(operation.index), x),) for name, x in operation.inputs}
    return _Block(operation, operation.index, inputs)


def _combined(operation: Operation) -> _Block | None:
    """Stacked partial results, reduced along the stack by the monoid of their signature."""
    found = stacked(operation)
    if found is None:
        return None
    parts: list[_Block] = []
    for below in found[1]:
        part = _combined(below) or _own(below)
        if part is None:
            return None
        parts.append(part)
    first = parts[0]
    finish = operator_of(first.like).finish
    named = any(name in finish for name in first.inputs)
    if named or any(part.kind != first.kind for part in parts):
        return None
    if set(first.signature.monoids.values()) != {found[0]}:
        return None
    index = _union([part.index for part in parts])
    kept = [k for k in range(index.rank) if k not in first.signature.monoids]
    same = all(
        part.index.start[k] == index.start[k] and part.index.shape[k] == index.shape[k] for part in parts for k in kept
    )
    if not same or not disjoint([part.index for part in parts]) or sum(part.index.size for part in parts) != index.size:
        return None
    late = tuple(name for name, _ in first.signature.inputs if name in finish)
    then = ("relu",) if first.like.operator == "linear_relu" else ()
    return _Block(first.like, index, _merged_inputs(parts), (*late, *then))


def _finished(operation: Operation) -> _Block | None:
    """A late input added to a combined result, or the last step of an operator that has one."""
    if operation.operator not in ("add", "relu"):
        return None
    x = operation.inputs[0][1]
    below = x.producer
    if not isinstance(below, Operation) or operation.output_types["out"].shape != x.shape:
        return None
    block = _combined(below) if operation.operator == "add" else _finished(below)
    if block is None or not block.waits or (block.waits[0] == "relu") != (operation.operator == "relu"):
        return None
    if operation.operator == "relu":
        return replace(block, waits=block.waits[1:])
    name, late = block.waits[0], operation.inputs[1][1]
    region = block.signature.input(name).span(block.index)
    if late.shape != region.shape:
        return None
    return replace(block, inputs={**block.inputs, name: ((region, late),)}, waits=block.waits[1:])


# ---------------------------------------------------------------------------------------------------------------------
# putting inputs together


def _assembled(block: _Block) -> list[tuple[str, Tensor]] | None:
    out = []
    for name, projection in block.signature.inputs:
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
