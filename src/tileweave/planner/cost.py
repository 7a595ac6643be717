"""Bytes moved between two partitions, in closed form: from cuts per dimension, never shard by shard.

A shard of a consumer needs a box of a tensor; the tensor lies in blocks on machines. Both grids are row-major, and a
machine owns a run of consecutive numbers of each, which is a few boxes of the grid. What a pair of grid boxes has in
common factors over dimensions, so the traffic costs a sum over the parts per dimension for each machine, however many
shards there are. Counted are distinct points: a broadcast moves its one copy.

A tensor dimension that several index dimensions move together (the window of a convolution) does not factor;
`Traffic.of` answers None there, and the caller counts shard by shard.

Source: own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from tileweave.graph import Operation, Partition, Tensor, resolve
from tileweave.space import AffineMap, Box

__all__ = ["Blocks", "Traffic", "grid_boxes", "input_intervals", "machine_runs"]

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where a tensor lies: its cuts, the grid whose row-major order places blocks, and the shards per machine.

    Args:
        cuts: of the tensor; its grid may be the image of a larger grid whose other dimensions are one part.
        order: for each dimension of the placement grid, the tensor dimension that it cuts, or None.
        grid: parts per dimension of the placement grid.
    """

    cuts: Partition
    order: tuple[int | None, ...]
    grid: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of blocks."""
        return prod(self.grid)


def machine_runs(count: int, machines: int) -> Iterator[Range]:
    """The consecutive shard numbers of each machine, as `planner.plan.placement` assigns them."""
    waves = -(-count // machines) if count > machines else 1
    for machine in range(machines):
        yield min(machine * waves, count), min((machine + 1) * waves, count)


def grid_boxes(grid: Sequence[int], run: Range) -> list[tuple[Range, ...]]:
    """Disjoint boxes of a row-major grid that hold exactly the numbers of a run; at most ``2 * rank - 1``.

    Example:
        >>> grid_boxes((3, 4), (2, 9))
        [((0, 1), (2, 4)), ((1, 2), (0, 4)), ((2, 3), (0, 1))]
    """
    low, high = run
    if low >= high:
        return []
    if not grid:
        return [()]
    size = prod(grid[1:])
    first, last = low // size, (high - 1) // size
    if first == last:
        inner = grid_boxes(grid[1:], (low - first * size, high - first * size))
        return [((first, first + 1), *rest) for rest in inner]
    boxes: list[tuple[Range, ...]] = []
    middle = first
    if low > first * size:
        inner = grid_boxes(grid[1:], (low - first * size, size))
        boxes += [((first, first + 1), *rest) for rest in inner]
        middle = first + 1
    stop = last + 1 if high == (last + 1) * size else last
    if middle < stop:
        boxes.append(((middle, stop), *((0, n) for n in grid[1:])))
    if stop == last:
        inner = grid_boxes(grid[1:], (0, high - last * size))
        boxes += [((last, last + 1), *rest) for rest in inner]
    return boxes


@dataclass(frozen=True, slots=True)
class _Dim:
    """One dimension of the tensor that is read: which index dimension moves it, and where it goes in the origin."""

    driver: int | None
    intervals: tuple[Range, ...]  # per part of the driver's cuts, or one
    clip: Range  # the piece's own range
    row: int | None
    step: int
    offset: int

    def points(self, part: int, target: Range | None) -> int:
        """How many of the part's points fall into a range of the origin's row; whether any, where no row moves."""
        low, high = self._clipped(part)
        if self.row is None or target is None:
            return max(0, high - low) if self.row is not None else int(high > low)
        low, high = _solve(self.step, self.offset, target, (low, high))
        return max(0, high - low)

    def parts(self, part: int, cuts: Sequence[int], among: Range) -> int:
        """How many of the origin's parts, among a range of them, the part's points touch."""
        low, high = self._clipped(part)
        if high <= low:
            return 0
        if self.row is None:
            return 1
        ends = sorted((self.step * low + self.offset, self.step * (high - 1) + self.offset))
        first, last = bisect_right(cuts, ends[0]) - 1, bisect_left(cuts, ends[1] + 1) - 1
        return max(0, min(last + 1, among[1]) - max(first, among[0]))

    def _clipped(self, part: int) -> Range:
        low, high = self.intervals[part]
        return max(low, self.clip[0]), min(high, self.clip[1])


def _solve(step: int, offset: int, target: Range, within: Range) -> Range:
    """The x of a range with ``step * x + offset`` in the target, as a range."""
    ends = (target[0] - offset, target[1] - 1 - offset)
    if step < 0:
        ends = (ends[1], ends[0])
    return max(within[0], -(-ends[0] // step)), min(within[1], ends[1] // step + 1)


@dataclass(frozen=True, slots=True)
class _Term:
    """One piece of one input: which origin, by number (-1: a source), and how the consumer's grid reads it."""

    origin: int
    dims: tuple[_Dim, ...]
    fixed: tuple[tuple[int, int], ...]  # origin rows that no dimension moves: (row, coordinate)
    itemsize: int

    def count(self, consumer: Sequence[Range], blocks: Blocks | None, producer: Sequence[Range] | None) -> int:
        """Distinct points that a box of consumer parts reads, in a box of producer blocks (or anywhere)."""
        targets = _targets(blocks, producer)
        if targets is not None and any(not targets[r][0] <= at < targets[r][1] for r, at in self.fixed):
            return 0

        def one(dim: _Dim, part: int) -> int:
            return dim.points(part, targets[dim.row] if targets is not None and dim.row is not None else None)

        return self._product(consumer, one)

    def messages(self, consumer: Sequence[Range], blocks: Blocks, producer: Sequence[Range]) -> int:
        """Pairs of a consumer part and a producer block that have points in common."""
        among = _block_ranges(blocks, producer)
        for row, at in self.fixed:
            part = bisect_right(blocks.cuts.cuts[row], at) - 1
            if not among[row][0] <= part < among[row][1]:
                return 0

        def one(dim: _Dim, part: int) -> int:
            if dim.row is None:
                return dim.parts(part, (), (0, 1))
            return dim.parts(part, blocks.cuts.cuts[dim.row], among[dim.row])

        return self._product(consumer, one)

    def _product(self, consumer: Sequence[Range], one: Callable[[_Dim, int], int]) -> int:
        total = 1
        for k, (first, last) in enumerate(consumer):
            own = [dim for dim in self.dims if dim.driver == k]
            if not own:
                total *= last - first
            else:
                total *= sum(prod(one(dim, part) for dim in own) for part in range(first, last))
            if not total:
                return 0
        for dim in self.dims:
            if dim.driver is None:
                total *= one(dim, 0)
        return total


def _block_ranges(blocks: Blocks, producer: Sequence[Range]) -> list[Range]:
    """Per tensor dimension the range of parts that a box of the placement grid covers."""
    ranges = [(0, parts) for parts in blocks.cuts.grid]
    for among, dim in zip(producer, blocks.order, strict=True):
        if dim is not None:
            ranges[dim] = among
    return ranges


def _targets(blocks: Blocks | None, producer: Sequence[Range] | None) -> list[Range] | None:
    if blocks is None or producer is None:
        return None
    among = _block_ranges(blocks, producer)
    return [(cuts[a], cuts[b]) for cuts, (a, b) in zip(blocks.cuts.cuts, among, strict=True)]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one input of an operation reads under a partition of the operation's index, piece by piece."""

    grid: tuple[int, ...]
    terms: tuple[_Term, ...]
    origins: tuple[Tensor, ...]

    @classmethod
    def of(cls, operation: Operation, name: str, cuts: Partition) -> Traffic | None:
        """The traffic of a named input; None where it does not factor over the index dimensions."""
        tensor = operation.input(name)
        intervals = input_intervals(operation, name, cuts)
        if intervals is None:
            return None
        terms: list[_Term] = []
        origins: dict[Tensor, int] = {}
        for piece in resolve(tensor, tensor.type.box):
            if piece.origin is None:
                continue
            made = isinstance(piece.origin.producer, Operation)
            number = origins.setdefault(piece.origin, len(origins)) if made else -1
            dims, fixed = _dims(intervals, piece.box, piece.map)
            terms.append(_Term(number, dims, fixed, tensor.dtype.itemsize))
        return cls(cuts.grid, tuple(terms), tuple(origins))

    def bytes_read(self) -> int:
        """Bytes from sources, over all shards."""
        whole = [(0, n) for n in self.grid]
        return sum(term.count(whole, None, None) * term.itemsize for term in self.terms if term.origin < 0)

    def pieces(self, places: Mapping[Tensor, Partition]) -> int:
        """How many pairs of a shard and a block (or source) that it reads there are, given how the origins are cut."""
        whole = [(0, n) for n in self.grid]
        total = 0
        for term in self.terms:
            if term.origin < 0:
                total += prod(self.grid)
                continue
            cuts = places[self.origins[term.origin]]
            blocks = Blocks(cuts, tuple(range(len(cuts.cuts))), cuts.grid)
            total += term.messages(whole, blocks, [(0, n) for n in cuts.grid])
        return total

    def moved(self, places: Mapping[Tensor, Blocks], machines: int) -> tuple[tuple[int, int], ...]:
        """(bytes, messages) that arrive at each machine from others."""
        return _moved(self.grid, self.terms, tuple(places[who] for who in self.origins), machines)


@lru_cache(maxsize=1 << 14)
def _moved(
    grid: tuple[int, ...], terms: tuple[_Term, ...], places: tuple[Blocks, ...], machines: int
) -> tuple[tuple[int, int], ...]:
    """By structure alone, so that operations that are cut alike are counted once."""
    arrived = []
    runs = list(machine_runs(prod(grid), machines))
    local_runs = [list(machine_runs(blocks.count, machines)) for blocks in places]
    for machine, run in enumerate(runs):
        size = messages = 0
        for mine in grid_boxes(grid, run):
            for term in terms:
                if term.origin < 0:
                    continue
                blocks = places[term.origin]
                size += term.count(mine, None, None) * term.itemsize
                messages += term.messages(mine, blocks, [(0, n) for n in blocks.grid])
                for local in grid_boxes(blocks.grid, local_runs[term.origin][machine]):
                    size -= term.count(mine, blocks, local) * term.itemsize
                    messages -= term.messages(mine, blocks, local)
        arrived.append((size, messages))
    return tuple(arrived)


def input_intervals(
    operation: Operation, name: str, cuts: Partition
) -> list[tuple[int | None, tuple[Range, ...]]] | None:
    """Per dimension of an input: the index dimension that moves it, and the range that each of its parts needs.

    None where several index dimensions move one dimension of the input together.
    """
    shape = operation.input(name).shape
    if operation.signature is None:
        return [(None, ((0, n),)) for n in shape]
    projection = operation.signature.input(name)
    base = projection.span(operation.index).start
    out: list[tuple[int | None, tuple[Range, ...]]] = []
    rows = zip(projection.map.matrix, projection.map.offset, projection.shape, projection.stride, strict=True)
    for k, (row, offset, extent, stride) in enumerate(rows):
        drivers = [d for d, c in enumerate(row) if c]
        reach = (extent - 1) * stride + 1 if extent else 0
        if not drivers:
            out.append((None, ((offset - base[k], offset - base[k] + reach),)))
            continue
        if len(drivers) > 1:
            return None
        step = row[drivers[0]]
        bounds = cuts.cuts[drivers[0]]
        parts = []
        for a, b in pairwise(bounds):
            ends = sorted((step * a, step * (b - 1)))
            start = ends[0] + offset - base[k]
            parts.append((start, start + ends[1] - ends[0] + reach) if b > a else (0, 0))
        out.append((drivers[0], tuple(parts)))
    return out


def _dims(
    intervals: Sequence[tuple[int | None, tuple[Range, ...]]], box: Box, map: AffineMap
) -> tuple[tuple[_Dim, ...], tuple[tuple[int, int], ...]]:
    rows: dict[int, tuple[int, int, int]] = {}
    fixed = []
    for r, (row, offset) in enumerate(zip(map.matrix, map.offset, strict=True)):
        moving = next((d for d, c in enumerate(row) if c), None)
        if moving is None:
            fixed.append((r, offset))
        else:
            rows[moving] = (r, row[moving], offset)
    dims = []
    for d, (driver, parts) in enumerate(intervals):
        clip = (box.start[d], box.stop[d])
        if d in rows:
            r, step, offset = rows[d]
            dims.append(_Dim(driver, parts, clip, r, step, offset))
        else:
            dims.append(_Dim(driver, parts, clip, None, 1, 0))
    return tuple(dims), tuple(fixed)
