"""Whether one graph is a correct sharding of another, from signatures alone: neither is run.

Every operation of the sharded graph is recognised as a block of an operation of the whole one: same operator,
parameters and signature, an index inside, and inputs that are exactly the regions that the signature names. Then every
observed element must come from the block that makes it. Nothing is sampled: values are compared by where they stand.

Source: Tapestry, "Polyhedral Type Information".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

from tileweave.errors import VerifyError
from tileweave.graph.ir.nodes import FileTarget, Graph, Node, Operation, SequencePoint, Sink, Tensor, children
from tileweave.graph.ir.resolve import Piece, resolve
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.blocks import stacked
from tileweave.graph.passes.shard import input_region
from tileweave.graph.passes.sinks import join_sinks, parts_wrong, results
from tileweave.space import AffineMap, Box, disjoint


@dataclass(frozen=True, slots=True)
class _Block:
    """What an operation of the sharded graph is: a block of an operation of the whole one.

    Args:
        of: the operation of the whole graph.
        index: the block; for a partial result with part of the reduction dimensions.
        stage: ``done``, or ``partial``, or ``combined`` (all of the reduction, late inputs not yet applied).
    """

    of: Operation
    index: Box
    stage: str

    def start(self, output: str) -> tuple[int, ...]:
        """Where the block's output begins in the whole output."""
        signature = self.of.signature
        if signature is None:
            return (0,) * len(self.of.output_types[output].shape)
        projection = signature.output(output)
        here, whole = projection.span(self.index).start, projection.span(self.of.index).start
        return tuple(a - b for a, b in zip(here, whole, strict=True))


def is_sharding(sharded: Graph, whole: Graph) -> bool:
    """Whether `check_sharding` finds nothing."""
    return next(_problems(sharded, whole), None) is None


def check_sharding(sharded: Graph, whole: Graph) -> None:
    """Raises the first shard of a graph that does not belong to a correct sharding of another; returns when none does.

    Both graphs must have the same sources, and the same results in order, each in one sink or in several. Operations
    that are not cut may be as they are; partial results must be stacked and reduced by the monoid of the signature, as
    `expand` writes it.

    Raises:
        VerifyError: names the shard, and what is wrong with it.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add, expand, partition
        >>> whole = Graph.of(add(np.ones(6), 1.0))
        >>> (operation,) = whole.operations
        >>> check_sharding(expand(whole, {operation: partition(operation, [3])}), whole)
    """
    for problem in _problems(sharded, whole):
        raise problem


def _problem(rule: str, node: object, problem: str, **inputs: object) -> VerifyError:
    return VerifyError(
        f"check_sharding(sharded, whole) [{rule}]",
        problem,
        inputs=inputs or {"shard": repr(node)},
        facts={"rule": rule, "path": repr(node)},
    )


def _problems(sharded: Graph, whole: Graph) -> Iterator[VerifyError]:
    points = [node for node in (*sharded.nodes(), *whole.nodes()) if isinstance(node, SequencePoint)]
    for group in chain.from_iterable(map(results, points)):
        for why in parts_wrong(group):
            yield _problem("sinks", group[0], why)
            return
    sharded, whole = join_sinks(sharded), join_sinks(whole)
    blocks: dict[Operation, _Block] = {}
    table = _Candidates({}, {})
    for operation in _larger_first(whole):
        # of operations of which one is a block of another, the other stands for both
        found, _ = _recognised(operation, table.of(operation, blocks), blocks)
        if found is None or found.stage != "done":
            found = _Block(operation, operation.index, "done")
            table.add(operation, blocks)
        blocks[operation] = found
    unknown: dict[Operation, str] = {}
    for operation in sharded.operations:
        if operation in blocks:
            continue
        found, why = _recognised(operation, table.of(operation, blocks), blocks)
        if found is None:
            found = _combination(operation, blocks) or _finishing(operation, blocks)
        if found is not None:
            blocks[operation] = found
        else:
            unknown[operation] = why
    if len(sharded.sinks) != len(whole.sinks):
        few = {"sharded": _sink_list(sharded), "whole": _sink_list(whole)}
        yield _problem("sinks", "the graph", f"{len(sharded.sinks)} sinks stand for {len(whole.sinks)}", **few)
        return
    for sink, other in zip(sharded.sinks, whole.sinks, strict=True):
        yield from _sink_problem(sink, other, blocks, unknown)
    used = {node for node in sharded.operations if node in unknown}
    for operation in used:
        yield _problem("shard", operation, unknown[operation])


def _larger_first(graph: Graph) -> list[Operation]:
    """The operations in an order that has dependencies first and, as far as that allows, the larger ones."""
    depth: dict[Node, int] = {}
    for node in graph.nodes():
        below = max((depth[child] for child in children(node)), default=0)
        depth[node] = below + isinstance(node, Operation)
    return sorted(graph.operations, key=lambda operation: (depth[operation], -operation.index.size))


def _sink_list(graph: Graph) -> str:
    shown = [repr(sink) for sink in graph.sinks[:4]]
    return ", ".join([*shown, *(["..."] if len(graph.sinks) > 4 else [])]) or "no sink"


def _kind(operation: Operation) -> tuple[object, ...]:
    types = tuple(kind.dtype for _, kind in operation.outputs)
    return operation.operator, operation.parameters, operation.signature, types


# ---------------------------------------------------------------------------------------------------------------------
# recognising blocks


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The operations of the whole graph by kind, and by kind and what they read."""

    kinds: dict[tuple[object, ...], list[Operation]]
    readers: dict[tuple[object, ...], list[Operation]]

    def add(self, operation: Operation, blocks: dict[Operation, _Block]) -> None:
        kind = _kind(operation)
        self.kinds.setdefault(kind, []).append(operation)
        for part in dict.fromkeys(_parts(operation, blocks)):
            self.readers.setdefault((*kind, part), []).append(operation)

    def of(self, operation: Operation, blocks: dict[Operation, _Block]) -> Sequence[Operation]:
        """Those of which an operation may be a block; where none reads what it reads, the last of its kind."""
        kind = _kind(operation)
        for part in _parts(operation, blocks):  # the first one tells
            return self.readers.get((*kind, part)) or self.kinds.get(kind, [])[-1:]
        return self.kinds.get(kind, [])


def _parts(operation: Operation, blocks: dict[Operation, _Block]) -> Iterator[object]:
    """What the inputs are made of, in the whole graph: tensors and constants; None where that is not known."""
    for _, x in operation.inputs:
        for piece in resolve(x, x.type.box):
            lifted = _lifted(piece, blocks)
            yield None if lifted is None else lifted[0] if lifted[0] is not None else repr(lifted[2])


def _recognised(
    operation: Operation, candidates: Sequence[Operation], blocks: dict[Operation, _Block]
) -> tuple[_Block | None, str]:
    """The operation of which this is a block, or the nearest miss in words."""
    why = f"no operation of the whole graph is a {operation.operator} with these parameters and this signature"
    for whole in candidates:
        if not whole.index.contains(operation.index):
            why = f"its index {operation.index} is not inside {whole.index}"
            continue
        reduced = list(whole.signature.monoids) if whole.signature else []
        partial = any(operation.index.shape[k] != whole.index.shape[k] for k in reduced)
        late = operator_of(whole).finish if partial else ()
        expected = [name for name, _ in whole.inputs if name not in late]
        if [name for name, _ in operation.inputs] != expected:
            why = f"its inputs {[name for name, _ in operation.inputs]} are not {expected}"
            continue
        if len(operation.after) != len(whole.after):
            why = f"{len(operation.after)} sequence points come before it, not {len(whole.after)}"
            continue
        wrong = next((n for n, x in operation.inputs if not _reads(x, n, operation.index, whole, blocks)), None)
        if wrong is None:
            return _Block(whole, operation.index, "partial" if partial else "done"), ""
        why = f"its input {wrong} is not the region {input_region(whole, wrong, operation.index)} of the whole input"
    return None, why


def _reads(x: Tensor, name: str, index: Box, whole: Operation, blocks: dict[Operation, _Block]) -> bool:
    region = input_region(whole, name, index)
    return x.shape == region.shape and _same(x, whole.input(name), region.start, blocks)


def _same(x: Tensor, whole: Tensor, at: Sequence[int], blocks: dict[Operation, _Block]) -> bool:
    """Whether every element of x is, in the whole graph, the element of `whole` that stands `at` further on."""
    for piece in resolve(x, x.type.box):
        mine = _lifted(piece, blocks)
        if mine is None:
            return False
        origin, map, fill = mine
        for other in resolve(whole, piece.box.translate(at)):
            theirs = _lifted(other, blocks)
            if theirs is None or theirs[0] is not origin or (origin is None and not _equal(theirs[2], fill)):
                return False
            back = AffineMap.shift([-a for a in at])
            if origin is not None and not _agree(theirs[1], map.after(back), other.box):
                return False
    return True


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


def _agree(a: AffineMap, b: AffineMap, box: Box) -> bool:
    """Whether two maps are equal on a box: at its corner, and along every dimension that has two points."""
    if a(box.start) != b(box.start):
        return False
    rows = zip(a.matrix, b.matrix, strict=True)
    return all(p[k] == q[k] for p, q in rows for k, n in enumerate(box.shape) if n > 1)


def _lifted(piece: Piece, blocks: dict[Operation, _Block]) -> tuple[Tensor | None, AffineMap, object] | None:
    """A piece's origin and map in the whole graph; None where they are not known."""
    if piece.origin is None or not isinstance(piece.origin.producer, Operation):
        return piece.origin, piece.map, piece.fill
    block = blocks.get(piece.origin.producer)
    if block is None or block.stage != "done":
        return None
    start = block.start(piece.origin.output)
    shift = AffineMap.shift(start)
    return Tensor(block.of, piece.origin.output), shift.after(piece.map), None


# ---------------------------------------------------------------------------------------------------------------------
# partial results


def _combination(operation: Operation, blocks: dict[Operation, _Block]) -> _Block | None:
    """A reduction over the first dimension of stacked partial results that lie side by side in the whole reduction."""
    found = stacked(operation)
    if found is None:
        return None
    monoid, operations = found
    parts = [blocks.get(below) for below in operations]
    if any(part is None or part.stage != "partial" for part in parts):
        return None
    return _merged(monoid, cast("list[_Block]", parts))


def _merged(monoid: str, parts: Sequence[_Block]) -> _Block | None:
    whole = parts[0].of
    if whole.signature is None or any(part.of is not whole for part in parts):
        return None
    monoids = whole.signature.monoids
    if set(monoids.values()) != {monoid}:
        return None
    index = parts[0].index
    for part in parts[1:]:
        index = index.union(part.index)
    kept = [k for k in range(index.rank) if k not in monoids]
    if any(
        part.index.start[k] != index.start[k] or part.index.shape[k] != index.shape[k] for part in parts for k in kept
    ):
        return None
    if not disjoint([part.index for part in parts]) or sum(part.index.size for part in parts) != index.size:
        return None
    if any(index.shape[k] != whole.index.shape[k] for k in monoids):
        return _Block(whole, index, "partial")  # one level of a tree
    late = [name for name, _ in whole.inputs if name in operator_of(whole).finish]
    return _Block(whole, index, "combined" if late else "done")


def _finishing(operation: Operation, blocks: dict[Operation, _Block]) -> _Block | None:
    """The late inputs added to a combined result, and what the operator does after that."""
    first = operation.inputs[0][1].producer if operation.inputs else None
    block = blocks.get(first) if isinstance(first, Operation) else None
    if block is None or operation.inputs[0][1].shape != operation.output_types[operation.outputs[0][0]].shape:
        return None
    if operation.operator == "add" and block.stage == "combined":
        late = [name for name, _ in block.of.inputs if name in operator_of(block.of).finish]
        if len(late) == 1 and _reads(operation.inputs[1][1], late[0], block.index, block.of, blocks):
            return _Block(block.of, block.index, "done" if block.of.operator == "linear" else "added")
    if operation.operator == "relu" and block.stage == "added" and block.of.operator == "linear_relu":
        return _Block(block.of, block.index, "done")
    return None


def _sink_problem(
    sink: Sink, other: Sink, blocks: dict[Operation, _Block], unknown: dict[Operation, str]
) -> Iterator[VerifyError]:
    if sink.tensor.type != other.tensor.type or sink.target != other.target or sink.placement != other.placement:
        where = other.target.path if isinstance(other.target, FileTarget) else "memory"
        place = f" on machine {other.placement}" if other.placement is not None else ""
        yield _problem("sinks", sink, f"it stands for a sink of {other.tensor.type} to {where}{place}")
        return
    for piece in resolve(sink.tensor, sink.tensor.type.box):
        producer = piece.origin.producer if piece.origin is not None else None
        if isinstance(producer, Operation) and producer not in blocks:
            yield _problem("shard", *_root(producer, blocks, unknown))
            return
        if isinstance(producer, Operation) and blocks[producer].stage != "done":
            block = blocks[producer]
            yield _problem(
                "shard", producer, f"it is a partial result: {block.index} of {block.of.index}, not finished"
            )
            return
    if not _same(sink.tensor, other.tensor, (0,) * len(sink.tensor.shape), blocks):
        yield _problem("cover", sink, "its elements are not each made once by the block that stands there")


def _root(
    operation: Operation, blocks: dict[Operation, _Block], unknown: dict[Operation, str]
) -> tuple[Operation, str]:
    """The first unrecognised operation under an unrecognised one: the cause, not its consequences."""
    while True:
        below = (
            piece.origin.producer
            for _, x in operation.inputs
            for piece in resolve(x, x.type.box)
            if piece.origin is not None and isinstance(piece.origin.producer, Operation)
        )
        bad = next((producer for producer in below if producer in unknown), None)
        if bad is None:
            return operation, unknown[operation]
        operation = bad
