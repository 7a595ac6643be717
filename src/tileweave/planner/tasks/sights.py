"""Where the values of boxes of a tensor come from: pieces of blocks, of sources, and constants.

Source: own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from operator import mul

from tileweave.graph import Operation, Partition, Source, Tensor
from tileweave.graph.ir.nodes import Value
from tileweave.graph.passes.shard import output_partition
from tileweave.planner.plan import Step
from tileweave.planner.steps import drivers
from tileweave.planner.tasks.records import ReadPiece
from tileweave.space import AffineMap, Box
from tileweave.space.box import trusted_box


def preimage(map: AffineMap, box: Box, target: Box) -> Box:
    """The points of `box` that a map with at most one coefficient per row sends into `target`; maybe empty."""
    out = box
    for row, b, low, high in zip(map.matrix, map.offset, target.start, target.stop, strict=True):
        dim = next((k for k, c in enumerate(row) if c), None)
        if dim is None:
            if not low <= b < high:
                return Box(box.start, (0,) * box.rank)
            continue
        c = row[dim]
        ends = (low - b, high - 1 - b) if c > 0 else (high - 1 - b, low - b)
        first = max(-(-ends[0] // c), out.start[dim])
        last = min(ends[1] // c, out.stop[dim] - 1)
        out = out.with_range(dim, first, max(first, last + 1))
    return out


def whole_partition(shape: Sequence[int]) -> Partition:
    """A tensor in one block."""
    return Partition(tuple([(0, n) for n in shape]))


def block_partition(step: Step, output: str) -> Partition:
    """How an output of a step is cut into blocks, one per task, or one per part of a reduction."""
    if step.stage != "combine" and isinstance(step.node, Operation):
        return output_partition(step.node, output, step.cuts)
    return step.cuts


Met = tuple[int, int, int, int, int, int, int]
"""Of a block along one row: its share of the shard's number; first and extent of the part that is read, in coordinates
of the reader and of the row; first and extent of the block."""


class Sight:
    """A tensor, or a part of it, as it is seen through one map: in a source, in blocks, or a constant.

    Every row of the map has at most one coefficient. Where no dimension moves two rows, which blocks a box meets along
    a row follows from its range in one dimension, and the pieces are the product over rows; shards have few ranges.

    Args:
        map: from the tensor to where the values are.
        origin: what has them; None for a constant.
        fill: the constant.
        made: the step that makes the blocks, or None.
        numbers: of its tasks, by shard.
    """

    __slots__ = (
        "_met",
        "apart",
        "cuts",
        "dims",
        "fill",
        "made",
        "map",
        "numbers",
        "only",
        "output",
        "same",
        "source",
        "spilled",
        "steps",
        "still",
        "whole",
    )

    def __init__(
        self,
        map: AffineMap,
        origin: Tensor | None,
        fill: Value = None,
        made: Step | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        same = AffineMap.identity(map.inputs)
        self.map, self.fill, self.made, self.numbers = map, fill, made, numbers
        self.still = map is same or map == same
        self.same = self.still or map.matrix == same.matrix
        producer = origin.producer if origin is not None else None
        self.source = producer if isinstance(producer, Source) else None
        self.whole = Box.of(()) if self.source is None else self.source.type.box
        if made is not None and origin is not None:
            self.output, self.spilled = origin.output, made.spilled
            self.only = origin.type.box if self.still and made.cuts.count == 1 else None
            if made.cuts.count == 1:
                self.cuts, self.steps = whole_partition(origin.shape), (0,) * len(origin.shape)
            else:
                self.cuts, self.steps = block_partition(made, origin.output), _shard_steps(made, origin.output)
            self.dims = [next((k for k, c in enumerate(row) if c), None) for row in map.matrix]
            moving = [k for k in self.dims if k is not None]
            self.apart = len(set(moving)) == len(moving) and len(self.dims) > 0
            self._met: list[dict[tuple[int, int], list[Met]]] = [{} for _ in self.dims]

    def pieces(self, box: Box, needs: set[int]) -> Iterator[ReadPiece]:
        """The pieces of a box that is not empty; adds the numbers of the tasks that make them."""
        if self.made is None:
            map = self.map if self.same or self.source is None else straight(self.map, box)
            region = self.whole if self.source is None else box if self.still else self.map.cover(box)
            yield ReadPiece(box, map, -1, self.source, self.whole, region, self.fill)
            return
        if self.only is not None:
            needs.add(self.numbers[0])
            block = box if box == self.only else self.only
            yield ReadPiece(box, self.map, self.numbers[0], None, block, box, None, self.output, self.spilled)
            return
        for shard, part, region, block in self._product(box) if self.apart else self._together(box):
            task, map = self.numbers[shard], self.map if self.same else straight(self.map, part)
            needs.add(task)
            yield ReadPiece(part, map, task, None, block, region, None, self.output, self.spilled)

    def _product(self, box: Box) -> Iterator[tuple[int, Box, Box, Box]]:
        """(shard, part of the box, region of the block, block) of every block that the box meets."""
        found = []
        for row, (dim, met) in enumerate(zip(self.dims, self._met, strict=True)):
            span = (0, 1) if dim is None else (box.start[dim], box.shape[dim])
            known = met.get(span)
            if known is None:
                known = met[span] = list(self.along(row, *span))
            found.append(known)
        for one in product(*found):
            shards, low, extent, first, count, begin, length = zip(*one, strict=True)
            region = block = trusted_box(first, count)
            if (first, count) != (begin, length):
                block = trusted_box(begin, length)
            if self.still:
                part = region
            elif self.same:
                part = trusted_box(low, extent)
            else:
                starts, shape = list(box.start), list(box.shape)
                for dim, a, n in zip(self.dims, low, extent, strict=True):
                    if dim is not None:
                        starts[dim], shape[dim] = a, n
                part = trusted_box(tuple(starts), tuple(shape))
            yield sum(shards), part, region, block

    def along(self, row: int, low: int, extent: int) -> Iterator[Met]:
        """The blocks along a row that a range of its dimension meets."""
        cuts, b, dim = self.cuts.cuts[row], self.map.offset[row], self.dims[row]
        c = 0 if dim is None else self.map.matrix[row][dim]
        first, last = sorted((c * low + b, c * (low + extent - 1) + b))
        for at in range(max(bisect_right(cuts, first) - 1, 0), min(bisect_left(cuts, last + 1), len(cuts) - 1)):
            begin, end = cuts[at], cuts[at + 1]
            if begin == end:
                continue
            head, near, far = self.steps[row] * at, low, low + extent - 1
            if c:
                ends = (begin - b, end - 1 - b) if c > 0 else (end - 1 - b, begin - b)
                near, far = max(-(-ends[0] // c), near), min(ends[1] // c, far)
            if near <= far:
                seen = min(c * near + b, c * far + b)
                yield head, near, far - near + 1, seen, abs(c) * (far - near) + 1, begin, end - begin

    def _together(self, box: Box) -> Iterator[tuple[int, Box, Box, Box]]:
        """The same where a dimension moves two rows, as along a diagonal: block by block."""
        for place in self.cuts.places(self.map.cover(box)):
            block = self.cuts.at(place)
            part = preimage(self.map, box, block)
            if not part.empty:
                yield sum(map(mul, place, self.steps)), part, self.map.cover(part), block


class Views:
    """Where the values of boxes of a tensor come from: what `resolve` says of the whole tensor, cut to each box.

    Args:
        parts: boxes of the tensor that have no point in common, and how each is seen.
    """

    def __init__(self, parts: Sequence[tuple[Box, Sight]]) -> None:
        self.parts = parts
        ranks = range(parts[0][0].rank if len(parts) > 1 else 0)
        self.dim = max(ranks, key=lambda k: len({box.start[k] for box, _ in parts}), default=0)
        rows = sorted((box.start[self.dim], k) for k, (box, _) in enumerate(parts)) if ranks else []
        self.starts, self.order = [start for start, _ in rows], [k for _, k in rows]
        self.longest = max((box.shape[self.dim] for box, _ in parts), default=0) if ranks else 0

    def pieces(self, box: Box, needs: set[int]) -> Iterator[ReadPiece]:
        """As `Sight` has them."""
        if not self.starts:
            for _, sight in self.parts:
                yield from sight.pieces(box, needs)
            return
        low = box.start[self.dim]
        first = bisect_right(self.starts, low - self.longest)
        for k in sorted(self.order[first : bisect_left(self.starts, low + box.shape[self.dim])]):
            whole, sight = self.parts[k]
            part = whole.intersect(box)
            if not part.empty:
                yield from sight.pieces(part, needs)


def _shard_steps(step: Step, output: str) -> tuple[int, ...]:
    """By how much a step's shard number grows along each dimension of the grid of an output's blocks.

    A block is made by the shard at 0 along every dimension that does not cut it.
    """
    node, steps = step.node, grid_strides(step.cuts.grid)
    if step.stage != "combine" and isinstance(node, Operation):
        return tuple(0 if k is None else steps[k] for k in drivers(node, output))
    return steps


def grid_strides(grid: Sequence[int]) -> tuple[int, ...]:
    """By how much the number of a block grows along each dimension of a grid."""
    return tuple(prod(grid[k + 1 :]) for k in range(len(grid)))


def straight(map: AffineMap, box: Box) -> AffineMap:
    """The same map on a box, as a translation where it is one: in a dimension of extent 1 any coefficient will do."""
    if 1 not in box.shape or len(map.matrix) != box.rank:
        return map
    offset = []
    for dim, (row, b) in enumerate(zip(map.matrix, map.offset, strict=True)):
        moving = [(k, c) for k, c in enumerate(row) if c and box.shape[k] != 1]
        fixed = b + sum(c * box.start[k] for k, c in enumerate(row) if box.shape[k] == 1)
        if moving != ([(dim, 1)] if box.shape[dim] != 1 else []):
            return map
        offset.append(fixed - (box.start[dim] if box.shape[dim] == 1 else 0))
    return AffineMap(AffineMap.identity(box.rank).matrix, tuple(offset))
