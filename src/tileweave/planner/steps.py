"""From a choice of grids to the steps of a plan: which grids an operation is offered, and what they cut.

A grid is a number of parts per dimension of an operation's index; waves cut each machine's part again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import cast

from tileweave.backends.base import Decision
from tileweave.graph import Graph, Operation, Partition, Sink, Tensor
from tileweave.graph.passes.shard import output_partition
from tileweave.planner.plan import Stage, Step
from tileweave.space import Box, even_cuts

__all__ = [
    "WHOLE",
    "Atoms",
    "Decide",
    "Grid",
    "Waves",
    "candidates",
    "combine_cuts",
    "cut",
    "maker",
    "out_size",
    "steps_of",
]

MOST_GRIDS = 24
"""The most grids that are offered for one operation."""


@dataclass(frozen=True, slots=True)
class Waves:
    """How each machine's part of an operation is cut again, so that less is alive at once.

    Args:
        count: parts; a power of two.
        square: along every dimension in turn, not along one.
    """

    count: int = 1
    square: bool = False


WHOLE = Waves()
Grid = tuple[int, ...]
Decide = Callable[[Operation, Stage], Decision]
WRITE = Decision("write", "a sink")
Atoms = Callable[[Sink], tuple[int, ...] | None]


def candidates(operation: Operation, count: int) -> list[Grid]:
    """The grids of an operation's index that are offered for so many machines; the whole comes first."""
    index = operation.index
    whole = (1,) * index.rank
    if count == 1 or operation.signature is None or index.size <= 1:
        return [whole]
    fixed = uncut(operation)
    for parts in range(count, 1, -1):
        grids = [
            grid
            for grid in _factorizations(parts, index.rank)
            if all(g <= n for g, n in zip(grid, index.shape, strict=True)) and all(grid[k] == 1 for k in fixed)
        ]
        if grids:
            grids.sort(key=lambda grid: sum(g > 1 for g in grid))  # of many, those that cut fewest dimensions
            return [whole, *grids[:MOST_GRIDS]]
    return [whole]


_CHOOSING = frozenset(("max", "min", "argmax", "argmin"))
"""Monoids that choose among values and so never round."""


def uncut(operation: Operation) -> set[int]:
    """Dimensions that are never cut: reductions whose partial results are rounded to a narrow type, or not alike."""
    signature = operation.signature
    if signature is None:
        return set()
    narrow = any(kind.dtype.kind not in "biu" and kind.dtype.itemsize < 4 for _, kind in operation.outputs)
    narrow = narrow and not _CHOOSING.issuperset(signature.monoids.values())
    unlike = len({projection for _, projection in signature.outputs}) > 1
    return set(signature.monoids) if narrow or unlike else set()


@lru_cache(maxsize=1024)
def _factorizations(count: int, rank: int) -> tuple[Grid, ...]:
    if rank == 0:
        return ((),) if count == 1 else ()
    out = []
    for first in range(count, 0, -1):
        if count % first == 0:
            out += [(first, *rest) for rest in _factorizations(count // first, rank - 1)]
    return tuple(out)


# ---------------------------------------------------------------------------------------------------------------------
# a choice of grids -> steps


def steps_of(
    graph: Graph, grids: Mapping[Operation, Grid], machines: int, decide: Decide, atoms: Atoms, waves: Waves = WHOLE
) -> tuple[Step, ...]:
    """The steps of a choice: operations with their cuts, combinations of cut reductions, stores."""
    out: list[Step] = []
    made: dict[Operation, Step] = {}
    nodes = graph.nodes()
    read = {node for node in nodes if isinstance(node, Tensor)}
    for node in nodes:
        if isinstance(node, Operation):
            cuts = cut(node, grids[node], waves)
            names = tuple(name for name, _ in node.outputs)
            kept = tuple(name for name in names if Tensor(node, name) in read) or names[:1]
            partial = node.signature is not None and any(cuts.grid[k] > 1 for k in node.signature.monoids)
            if partial:
                out.append(Step(node, "partial", cuts, decide(node, "partial"), outputs=names))
                joined = combine_cuts(node, cuts, machines)
                made[node] = Step(node, "combine", joined, decide(node, "combine"), outputs=kept)
            else:
                made[node] = Step(node, "block", cuts, decide(node, "block"), outputs=kept)
            out.append(made[node])
        elif isinstance(node, Sink):
            out.append(Step(node, "store", _store_cuts(node, made, atoms(node), machines * waves.count), WRITE))
    return tuple(out)


def cut(operation: Operation, grid: Grid, waves: Waves = WHOLE) -> Partition:
    """The cuts of a grid, with each machine's part cut again into waves."""
    index = operation.index
    parts = [max(1, min(p, n)) for p, n in zip(grid, index.shape, strict=True)]
    if waves.count > 1 and operation.signature is not None:
        spread = _spread if waves.square else _streamed
        parts = spread(operation, parts, waves.count)
    return Partition(tuple(even_cuts(n, p, a) for n, p, a in zip(index.shape, parts, index.start, strict=True)))


def _streamed(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along one dimension, so that chains of operations stream: the one that is cut, or the longest."""
    shape = operation.index.shape
    monoids = operation.signature.monoids if operation.signature else {}
    free = [k for k, n in enumerate(shape) if k not in monoids and n > parts[k]]
    cut = [k for k in free if parts[k] > 1] or sorted(free, key=lambda k: -shape[k])[:1]
    if not cut:
        cut = [k for k in monoids if shape[k] > parts[k] and k not in uncut(operation)][:1]
    return [min(p * waves, shape[k]) if k in cut[:1] else p for k, p in enumerate(parts)]


def _spread(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along every dimension in turn, the longest blocks first: small blocks of a contraction."""
    out, shape = list(parts), operation.index.shape
    while waves > 1:
        free = [k for k, n in enumerate(shape) if n >= 2 * out[k] and k not in uncut(operation)]
        if not free:
            break
        longest = max(free, key=lambda k: shape[k] / out[k])
        out[longest] *= 2
        waves //= 2
    return out


def combine_cuts(operation: Operation, cuts: Partition, machines: int) -> Partition:
    """The output blocks of the index cuts, cut further along the largest dimension so that every machine combines."""
    (name, kind), *_ = operation.outputs  # all outputs of a cut reduction have one shape
    blocks = output_partition(operation, name, cuts)
    shape = kind.shape
    parts = machines // blocks.count if blocks.count and machines % blocks.count == 0 else 1
    if parts == 1 or not shape:
        return blocks
    dim = max(range(len(shape)), key=lambda k: shape[k] // max(1, blocks.grid[k]))
    wanted = blocks.grid[dim] * parts
    small = prod(shape) * kind.dtype.itemsize < 1 << 16
    if small or blocks.grid[dim] > 1 or wanted > shape[dim]:
        return blocks
    return Partition(tuple(even_cuts(shape[dim], wanted) if k == dim else c for k, c in enumerate(blocks.cuts)))


def _store_cuts(sink: Sink, made: Mapping[Operation, Step], atom: tuple[int, ...] | None, parts: int) -> Partition:
    """The blocks that exist, where the tensor is an operation's own output; otherwise even rows; aligned to chunks."""
    tensor = sink.tensor
    producer = tensor.producer
    if isinstance(producer, Operation):
        step = made[producer]
        cuts = output_partition(producer, tensor.output, step.cuts) if step.stage == "block" else step.cuts
    else:
        shape = tensor.shape
        parts = min(parts, shape[0]) if shape and tensor.type.box.size else 1
        cuts = Partition(tuple(even_cuts(n, max(1, parts) if k == 0 else 1) for k, n in enumerate(shape)))
    if atom is None:
        return cuts
    return Partition(
        tuple(_aligned(c, size, extent) for c, size, extent in zip(cuts.cuts, atom, tensor.shape, strict=True))
    )


def _aligned(cuts: Sequence[int], atom: int, extent: int) -> tuple[int, ...]:
    """Boundaries moved to multiples of a chunk's extent, so that every chunk has one writer."""
    if extent == 0:
        return (0, 0)
    return tuple(sorted({0, extent} | {min(extent, round(cut / atom) * atom) for cut in cuts[1:-1]}))


def maker(tensor: Tensor) -> Operation:
    """The operation that makes a tensor."""
    return cast("Operation", tensor.producer)


def out_size(operation: Operation, name: str, index: Box) -> int:
    """How many elements of an output a block of the index makes."""
    if operation.signature is None:
        return operation.output_types[name].box.size
    return operation.signature.output(name).span(index).size
