"""Whether one graph is a correct sharding of another, from signatures alone: neither is run.

Every operation of the sharded graph is recognised as a block of an operation of the whole one: same operator,
parameters and signature, an index inside, and inputs that are exactly the regions that the signature names. Then every
observed element must come from the block that makes it. Nothing is sampled: values are compared by where they stand.

Source: Tapestry, "Polyhedral Type Information".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from tileweave.errors import VerifyError
from tileweave.graph.ir.nodes import FileTarget, Graph, Operation, SequencePoint, Sink, Tensor
from tileweave.graph.ir.resolve import ViewPiece, resolve
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.blocks import OperationBlock, grown, tiles
from tileweave.graph.passes.shard import input_region, join_sinks, parts_wrong, results
from tileweave.space import AffineMap, Box

Lifted = tuple[Tensor | None, AffineMap, object]
"""Where a piece stands in the whole graph: tensor and map, or the constant."""


def is_sharding(sharded: Graph, whole: Graph) -> bool:
    """Whether `check_sharding` finds nothing."""
    return next(_problems(sharded, whole), None) is None


def check_sharding(sharded: Graph, whole: Graph) -> None:
    """Raises the first shard of a graph that does not belong to a correct sharding of another; returns when none does.

    Both graphs must have the same sources, and the same results in order, each in one sink or in several. Operations
    that are not cut may be as they are; partial results must be stacked and reduced by the monoid of the signature, as
    `expand` writes it. What a sequence point holds, and what comes after it, must be all shards of the same operations.

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
    match = _Match(whole)
    for node in sharded.nodes():
        if isinstance(node, Operation) and node not in match.known:
            match.recognise(node)
        elif isinstance(node, SequencePoint) and node not in match.stands and node not in sharded.points:
            match.place(node)
    if len(sharded.sinks) != len(whole.sinks):
        few = {"sharded": _sink_list(sharded), "whole": _sink_list(whole)}
        yield _problem("sinks", "the graph", f"{len(sharded.sinks)} sinks stand for {len(whole.sinks)}", **few)
        return
    for sink, other in zip(sharded.sinks, whole.sinks, strict=True):
        yield from match.sink_problem(sink, other)
    if len(sharded.points) != len(whole.points):
        counts = f"{len(sharded.points)} observed points stand for {len(whole.points)}"
        yield _problem("order", "the graph", counts)
        return
    for point, wanted in zip(sharded.points, whole.points, strict=True):
        why = match.point_problem(point, wanted)
        if why:
            yield _problem("order", point, why)
    for operation in sharded.operations:
        if operation in match.unknown:
            yield _problem("shard", operation, match.unknown[operation])


def _sink_list(graph: Graph) -> str:
    shown = [repr(sink) for sink in graph.sinks[:4]]
    return ", ".join([*shown, *(["..."] if len(graph.sinks) > 4 else [])]) or "no sink"


def _kind(operation: Operation) -> tuple[object, ...]:
    types = tuple(kind.dtype for _, kind in operation.outputs)
    return operation.operator, operation.parameters, operation.signature, types


def _done(block: OperationBlock) -> bool:
    signature = block.of.signature
    reduced = signature.monoids if signature is not None else ()
    return not block.waits and all(block.index.shape[k] == block.of.index.shape[k] for k in reduced)


@dataclass(slots=True)
class _Match:
    """The operations and sequence points of a whole graph, and what those of a sharded one stand for.

    Args:
        whole: the graph.
        known: operation -> the blocks of operations of the whole graph that it is, several where those overlap.
        unknown: operation that is no block -> why not.
        stands: sequence point -> that of the whole graph.
        kinds: operations of the whole graph by kind.
        readers: the same by kind, input, what is read and how.
    """

    whole: Graph
    known: dict[Operation, list[OperationBlock]] = field(default_factory=dict)
    unknown: dict[Operation, str] = field(default_factory=dict)
    stands: dict[SequencePoint, SequencePoint] = field(default_factory=dict)
    kinds: dict[tuple[object, ...], list[Operation]] = field(default_factory=dict)
    readers: dict[tuple[object, ...], dict[Operation, None]] = field(default_factory=dict)
    points: dict[object, list[SequencePoint]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for operation in self.whole.operations:
            kind = _kind(operation)
            self.kinds.setdefault(kind, []).append(operation)
            for name, x in operation.inputs:
                for piece in resolve(x, x.type.box):
                    for key in _reading(operation, name, piece, (piece.origin, piece.map, piece.fill)):
                        self.readers.setdefault((kind, name, key), {})[operation] = None
        for node in self.whole.nodes():
            if isinstance(node, Operation):
                self.recognise(node)
            elif isinstance(node, SequencePoint):
                self.stands[node] = node
                for item in node.before:
                    self.points.setdefault(_held(item), []).append(node)

    # -- operations -----------------------------------------------------------------------------------------------

    def recognise(self, operation: Operation) -> None:
        """Finds what an operation is a block of; those below it are known."""
        blocks: list[OperationBlock] = []
        why = f"no operation of the whole graph is a {operation.operator} with these parameters and this signature"
        tried: set[Operation] = set()
        for exact in (0, 1):  # those that read through the same map, else those that read the same tensor at all
            for whole in self._candidates(operation, exact):
                if whole in tried:
                    continue
                tried.add(whole)
                reason = "" if whole is operation else self._differs(operation, whole)
                if not reason:
                    every = {name: () for name, _ in operation.inputs}
                    blocks.append(OperationBlock(whole, whole, operation.index, every))
                why = reason or why
            if blocks:
                break
        blocks += grown(operation, self.known, self._late)
        self.known[operation] = blocks
        if not blocks:
            self.unknown[operation] = why

    def _candidates(self, operation: Operation, exact: int) -> Sequence[Operation]:
        """Those of which an operation may be a block; where none reads what it reads, the last of its kind.

        A dimension of one point has no map of its own, so blocks may be missing among those with the same maps.
        """
        kind = _kind(operation)
        best: dict[Operation, None] | None = None
        for name, x in operation.inputs:
            piece = next(iter(resolve(x, x.type.box)), None)
            found: dict[Operation, None] = {}
            for lifted in self._lifts(piece) if piece is not None else []:
                keys = list(_reading(operation, name, piece, lifted)) if piece is not None else []
                found |= self.readers.get((kind, name, keys[exact]), {})
            if piece is not None and found and (best is None or len(found) < len(best)):
                best = found
        if best is not None:
            return list(best)
        alike = self.kinds.get(kind, [])
        return alike if not operation.inputs else alike[-1:]

    def _differs(self, operation: Operation, whole: Operation) -> str:
        """Why an operation is no block of one of its kind; empty where it is one."""
        if not whole.index.contains(operation.index):
            return f"its index {operation.index} is not inside {whole.index}"
        partial = not _done(OperationBlock(whole, whole, operation.index))
        late = operator_of(whole).finish if partial else ()
        expected = [name for name, _ in whole.inputs if name not in late]
        if [name for name, _ in operation.inputs] != expected:
            return f"its inputs {[name for name, _ in operation.inputs]} are not {expected}"
        if len(operation.after) != len(whole.after):
            return f"{len(operation.after)} sequence points come before it, not {len(whole.after)}"
        if any(self.stands.get(a) is not b for a, b in zip(operation.after, whole.after, strict=True)):
            return "what comes before it is not what comes before the whole operation"
        for name, x in operation.inputs:
            if not self._reads(x, name, operation.index, whole):
                region = input_region(whole, name, operation.index)
                return f"its input {name} is not the region {region} of the whole input"
        return ""

    def _late(self, block: OperationBlock, name: str, x: Tensor) -> OperationBlock | None:
        known = any(name == own for own, _ in block.of.inputs)
        same = known and self._reads(x, name, block.index, block.of)
        return replace(block, inputs={**block.inputs, name: ()}) if same else None

    # -- values ---------------------------------------------------------------------------------------------------

    def _reads(self, x: Tensor, name: str, index: Box, whole: Operation) -> bool:
        region = input_region(whole, name, index)
        return x.shape == region.shape and self._same(x, whole.input(name), region.start)

    def _same(self, x: Tensor, whole: Tensor, at: Sequence[int]) -> bool:
        """Whether every element of x is, in the whole graph, the element of `whole` that stands `at` further on."""
        back = AffineMap.shift([-a for a in at])
        for piece in resolve(x, x.type.box):
            mine = self._lifts(piece)
            for other in resolve(whole, piece.box.translate(at)):
                theirs = self._lifts(other)
                if not any(_agree(a, b, back, other.box) for a in mine for b in theirs):
                    return False
        return True

    def _lifts(self, piece: ViewPiece) -> list[Lifted]:
        """Where a piece stands in the whole graph, everywhere; nowhere where that is not known."""
        producer = piece.origin.producer if piece.origin is not None else None
        if piece.origin is None or not isinstance(producer, Operation):
            return [(piece.origin, piece.map, piece.fill)]
        out: list[Lifted] = []
        for block in self.known.get(producer, ()):
            if _done(block):
                shift = AffineMap.shift(_start(block, piece.origin.output))
                out.append((Tensor(block.of, piece.origin.output), shift.after(piece.map), None))
        return out

    def sink_problem(self, sink: Sink, other: Sink) -> Iterator[VerifyError]:
        """Why a sink does not stand for one of the whole graph."""
        if sink.tensor.type != other.tensor.type or sink.target != other.target or sink.placement != other.placement:
            where = other.target.path if isinstance(other.target, FileTarget) else "memory"
            place = f" on machine {other.placement}" if other.placement is not None else ""
            yield _problem("sinks", sink, f"it stands for a sink of {other.tensor.type} to {where}{place}")
            return
        for piece in resolve(sink.tensor, sink.tensor.type.box):
            producer = piece.origin.producer if piece.origin is not None else None
            if not isinstance(producer, Operation):
                continue
            if producer in self.unknown:
                yield _problem("shard", *self._root(producer))
                return
            if not any(map(_done, self.known[producer])):
                block = self.known[producer][0]
                part = f"it is a partial result: {block.index} of {block.of.index}, not finished"
                yield _problem("shard", producer, part)
                return
        if not self._same(sink.tensor, other.tensor, (0,) * len(sink.tensor.shape)):
            yield _problem("cover", sink, "its elements are not each made once by the block that stands there")

    def _root(self, operation: Operation) -> tuple[Operation, str]:
        """The first unrecognised operation under an unrecognised one: the cause, not its consequences."""
        while True:
            below = (
                piece.origin.producer
                for _, x in operation.inputs
                for piece in resolve(x, x.type.box)
                if piece.origin is not None and isinstance(piece.origin.producer, Operation)
            )
            bad = next((producer for producer in below if producer in self.unknown), None)
            if bad is None:
                return operation, self.unknown[operation]
            operation = bad

    # -- order ----------------------------------------------------------------------------------------------------

    def place(self, point: SequencePoint) -> None:
        """Finds the sequence point of the whole graph that one stands for."""
        candidates: dict[SequencePoint, None] = {}
        for item in point.before[:1]:
            held = [block.of for block in self.known.get(item, ())] if isinstance(item, Operation) else [_held(item)]
            candidates.update(dict.fromkeys(chain.from_iterable(self.points.get(key, ()) for key in held)))
        for wanted in candidates:
            if not self.point_problem(point, wanted) and not self._sinks_differ(point, wanted):
                self.stands[point] = wanted
                return

    def _sinks_differ(self, point: SequencePoint, wanted: SequencePoint) -> bool:
        mine, theirs = ([item for item in p.before if isinstance(item, Sink)] for p in (point, wanted))
        if len(mine) != len(theirs):
            return True
        return any(next(self.sink_problem(a, b), None) is not None for a, b in zip(mine, theirs, strict=True))

    def point_problem(self, point: SequencePoint, wanted: SequencePoint) -> str:
        """Why the operations that a sequence point holds are not all shards of those of another; empty if they are."""
        left = dict.fromkeys(item for item in point.before if isinstance(item, Operation))
        blocks: dict[Operation, list[OperationBlock]] = {}
        for item in left:
            for block in self.known.get(item, ()):
                if _done(block):
                    blocks.setdefault(block.of, []).append(block)
        theirs = [item for item in wanted.before if isinstance(item, Operation)]
        for whole in theirs:
            if not tiles([block.index for block in blocks.get(whole, ())], whole.index):
                return f"it does not hold every shard of {whole!r} once"
        for item in left:
            if not any(block.of in theirs for block in self.known.get(item, ())):
                return f"it holds {item!r}, which the whole graph does not hold there"
        sinks = [sum(isinstance(item, Sink) for item in p.before) for p in (point, wanted)]
        return f"it holds {sinks[0]} results, not {sinks[1]}" if sinks[0] != sinks[1] else ""


def _held(item: Operation | Sink) -> object:
    return item if isinstance(item, Operation) else (item.target, item.placement, item.tensor.type)


def _start(block: OperationBlock, output: str) -> tuple[int, ...]:
    """Where a block's output begins in the whole output."""
    signature = block.of.signature
    if signature is None:
        return (0,) * len(block.of.output_types[output].shape)
    projection = signature.output(output)
    here, whole = projection.span(block.index).start, projection.span(block.of.index).start
    return tuple(a - b for a, b in zip(here, whole, strict=True))


def _reading(operation: Operation, name: str, piece: ViewPiece, lifted: Lifted) -> Iterator[object]:
    """How an operation reads a tensor, as a key that its blocks share: the map from the coordinates of the projection,
    and then the tensor alone."""
    origin, map, fill = lifted
    what = repr(fill) if origin is None else origin
    signature = operation.signature
    if origin is None or signature is None or name not in dict(signature.inputs):
        yield what, map.matrix if signature is None and origin is not None else None
    else:
        start = signature.input(name).span(operation.index).start
        absolute = map.after(AffineMap.shift([-a for a in start]))
        yield what, absolute.matrix, absolute.offset
    yield what


def _agree(a: Lifted, b: Lifted, back: AffineMap, box: Box) -> bool:
    """Whether a piece and one that stands further on are the same values: at a corner, and along every dimension that
    has two points."""
    if a[0] is not b[0]:
        return False
    if a[0] is None:
        return type(a[2]) is type(b[2]) and repr(a[2]) == repr(b[2])
    mine, theirs = a[1].after(back), b[1]
    if mine(box.start) != theirs(box.start):
        return False
    rows = zip(mine.matrix, theirs.matrix, strict=True)
    return all(p[k] == q[k] for p, q in rows for k, n in enumerate(box.shape) if n > 1)
