"""The record of a shard's work: what it reads, piece by piece, and what it makes.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tileweave.graph import Source
from tileweave.graph.ir.nodes import Value
from tileweave.space import AffineMap, Box

identity_of = lru_cache(maxsize=64)(lambda rank: AffineMap.identity(rank).matrix)
PARTIAL = "partial"
"""How the names of partial results begin, by which a later wave or a combination reads them: ``partial0.out``."""


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Values of one block.

    Args:
        box: where they go, in coordinates of the tensor that is read.
        map: from those coordinates to the block's tensor.
        task: number of the producing task; -1 for a source or a constant.
        source: the source, if one holds the values.
        block: the box that the block (or the source) holds, in coordinates of its tensor.
        region: the part of the block that is read.
        fill: the constant, if there is neither.
        output: which output of the producing task.
        spilled: whether the block waits in a file.
    """

    box: Box
    map: AffineMap
    task: int
    source: Source | None
    block: Box
    region: Box
    fill: Value = None
    output: str = "out"
    spilled: bool = False

    @property
    def points(self) -> int:
        """The distinct elements that are read: a broadcast dimension counts once."""
        moving = {dim for row in self.map.matrix for dim, c in enumerate(row) if c}
        return prod(n for dim, n in enumerate(self.box.shape) if dim in moving or n == 0)

    @property
    def fetched(self) -> bool:
        """Whether the region is read from storage: of a source, or of a block that is spilled."""
        return self.task < 0 or self.spilled

    @property
    def constant(self) -> bool:
        """Whether neither a block nor a source holds the values."""
        return self.task < 0 and self.source is None

    @property
    def shifts(self) -> bool:
        """Whether the map only moves: the values are a slice of the block."""
        return (self.task >= 0 or self.source is not None) and self.map.matrix == identity_of(len(self.box.shape))

    @property
    def in_order(self) -> bool:
        """Whether the values are neighbours in the block as they are here: dimensions of extent 1 come or go."""
        if self.shifts or self.constant:
            return self.shifts
        moving = [[(dim, c) for dim, c in enumerate(row) if c] for row in self.map.matrix]
        fixed = all(row or n == 1 for row, n in zip(moving, self.region.shape, strict=True))
        found = [row[0] for row in moving if row]
        rest = {*range(self.box.rank)} - {dim for dim, _ in found}
        ones = all(self.box.shape[dim] == 1 for dim in rest)
        return (
            fixed
            and ones
            and found == sorted(found)
            and all(len(row) < 2 for row in moving)
            and all(c == 1 for _, c in found)
        )

    @property
    def whole(self) -> bool:
        """Whether the values are the whole block as it is."""
        return self.shifts and (self.region is self.block or self.region == self.block)


@dataclass(frozen=True, slots=True)
class Read:
    """One input of a task: a region of a tensor, and the pieces that fill it once.

    Args:
        name: as the kernel knows it: of the operation's input, or ``partial0.out`` and so on for partial results.
        dtype: of the tensor.
        box: the region.
        pieces: disjoint; together they cover the region.
    """

    name: str
    dtype: np.dtype[Any]
    box: Box
    pieces: tuple[ReadPiece, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of the region as a dense array."""
        return self.box.size * self.dtype.itemsize

    @property
    def partial(self) -> bool:
        """Whether it reads a partial result."""
        return self.name.startswith(PARTIAL) and "." in self.name


@dataclass(frozen=True, slots=True)
class Task:
    """A shard's work: the one record of it, from the planner's counting to the workers of a cluster.

    What all shards of a step share (operation, stage, kernel, names of outputs) is in the step.

    Args:
        number: its place in the issue order.
        step: number of the step in the plan.
        shard: number of the shard in the step.
        machine: where it runs.
        index: the block of the operation's index; of its output for ``combine``; the stored region for a sink.
        reads: its inputs.
        outs: per output that it keeps, the box that it makes (for ``partial``, as if it were complete), or the box that
            it stores.
        needs: numbers of the tasks that must be done first, since it reads what they make.
        after: numbers of the steps all of whose tasks must be done first, since a sequence point says so.
    """

    number: int
    step: int
    shard: int
    machine: int
    index: Box
    reads: tuple[Read, ...]
    outs: tuple[Box, ...]
    needs: tuple[int, ...]
    after: tuple[int, ...] = ()

    @property
    def out(self) -> Box:
        """The box of its first output."""
        return self.outs[0]
