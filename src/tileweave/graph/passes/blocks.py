"""Blocks."""

from __future__ import annotations

from tileweave.graph.ir.nodes import Operation, Tensor
from tileweave.graph.ir.resolve import resolve
from tileweave.graph.ops.monoids import MONOIDS, STATES


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
