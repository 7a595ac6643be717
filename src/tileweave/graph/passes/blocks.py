"""Which operations are blocks of one larger operation, and how blocks grow: the recogniser of shards.

An operation is a block by itself. Partial results that are stacked and reduced by the monoid of their signature are one
block, whose late inputs are still to be applied; the additions (and what follows them) that apply those finish it.
`check_sharding` compares blocks with the operations of a whole graph, `coalesce` joins them to new ones.

Source: Tapestry, "Polyhedral Type Information".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tileweave.graph.ir.nodes import Operation, Signature, Tensor
from tileweave.graph.ir.resolve import resolve
from tileweave.graph.ops.monoids import MONOIDS, STATES
from tileweave.graph.ops.operators import operator_of
from tileweave.space import Box, disjoint

Fragment = tuple[Box, Tensor]
"""A part of an input: its box in the coordinates of the projection, and the tensor that holds it."""


@dataclass(frozen=True, slots=True)
class OperationBlock:
    """A block of an operation.

    Args:
        of: the operation, or one that it is like.
        key: what blocks of one operation have in common.
        index: of the block.
        inputs: name -> the parts that it reads, where those are asked for.
        waits: what is still to be applied to a combined partial result: late inputs, then operators.
    """

    of: Operation
    key: object
    index: Box
    inputs: Mapping[str, tuple[Fragment, ...]] = field(default_factory=dict)
    waits: tuple[str, ...] = ()


Known = Mapping[Operation, Sequence[OperationBlock]]
Late = Callable[[OperationBlock, str, Tensor], OperationBlock | None]
"""(block, late input, tensor) -> the block with that input, or None where the tensor is not that input."""


def grown(operation: Operation, known: Known, late: Late) -> Iterator[OperationBlock]:
    """The blocks that an operation makes of blocks below it."""
    found = stacked(operation)
    if found is not None:
        monoid, parts = found
        rest = [{block.key: block for block in known.get(part, ()) if not _has_late(block)} for part in parts]
        for key, first in rest[0].items():
            same = [blocks[key] for blocks in rest if key in blocks]
            index = joined([block.index for block in same], first.of.signature, monoid)
            if len(same) == len(rest) and index is not None:
                row = operator_of(first.of).late
                yield OperationBlock(first.of, key, index, merged_inputs(same), (*row.names, *row.then) if row else ())
    first_input = operation.inputs[0][1] if operation.inputs else None
    if first_input is None or not isinstance(first_input.producer, Operation):
        return
    if operation.operator in ("add", "relu") and operation.output_types["out"].shape == first_input.shape:
        for block in known.get(first_input.producer, ()):
            if block.waits and operation.operator == "add":
                more = late(block, block.waits[0], operation.inputs[1][1])
                if more is not None:
                    yield replace(more, waits=block.waits[1:])
            elif block.waits and block.waits[0] == operation.operator:
                yield replace(block, waits=block.waits[1:])


def _has_late(block: OperationBlock) -> bool:
    """Whether inputs are applied already that come after the combination."""
    return any(name in block.inputs for name in operator_of(block.of).finish)


def joined(indices: Sequence[Box], signature: Signature | None, monoid: str) -> Box | None:
    """The box of blocks that stand side by side along reduced dimensions alone, once each."""
    if signature is None or set(signature.monoids.values()) != {monoid}:
        return None
    index = union(indices)
    for k in range(index.rank):
        if k not in signature.monoids:
            if any(b.start[k] != index.start[k] or b.shape[k] != index.shape[k] for b in indices):
                return None
    return index if tiles(indices, index) else None


def tiles(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes inside a whole one cover it once."""
    return sum(box.size for box in boxes) == whole.size and disjoint(boxes)


def union(boxes: Sequence[Box]) -> Box:
    """The bounding box of boxes."""
    out = boxes[0]
    for box in boxes[1:]:
        out = out.union(box)
    return out


def merged_inputs(blocks: Sequence[OperationBlock]) -> dict[str, tuple[Fragment, ...]]:
    """What several blocks read, each part once."""
    out: dict[str, dict[Fragment, None]] = {}
    for block in blocks:
        for name, fragments in block.inputs.items():
            out.setdefault(name, {}).update(dict.fromkeys(fragments))
    return {name: tuple(fragments) for name, fragments in out.items()}


def stacked(operation: Operation) -> tuple[str, list[Operation]] | None:
    """(monoid, the operations whose whole results an operation combines along their stack), if it does just that."""
    if operation.operator == "combine":
        monoid = str(operation.parameter("monoid"))
    elif operation.operator in MONOIDS and dict(operation.parameters).get("axes") == (0,):
        monoid = operation.operator
    else:
        return None
    layers = [_layers(x, name if monoid in STATES else None) for name, x in operation.inputs]
    return (monoid, layers[0]) if layers[0] and all(other == layers[0] for other in layers) else None


def _layers(stack: Tensor, output: str | None) -> list[Operation]:
    """The operations whose results (or this output of them) are a stack's layers in order; none if a layer is not."""
    found: list[Operation] = []
    for piece in sorted(resolve(stack, stack.type.box), key=lambda p: p.box.start):
        origin = piece.origin
        producer = origin.producer if origin is not None else None
        layer = piece.box.start[0] == len(found) and piece.box.shape == (1, *stack.shape[1:])
        if origin is None or not isinstance(producer, Operation) or not layer or origin.shape != stack.shape[1:]:
            return []
        if origin.output != output if output is not None else len(producer.outputs) != 1:
            return []
        ends = (piece.box.start, tuple(b - 1 for b in piece.box.stop))
        if any(piece.map(p) != p[1:] for p in ends):
            return []
        found.append(producer)
    return found
