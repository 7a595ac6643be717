"""Placements: where the blocks of an index or a tensor lie, as an Axe layout over machines and waves.

A grid cuts every dimension into blocks. The layout sends the grid coordinates of a block to the axes ``machine`` and
``wave``: each dimension is split, slowest first, into iters that move along machines (one per mesh axis) and one iter
that moves along waves, the blocks of one machine in turn. Replica iters hold copies. So a machine always holds one
box per tensor, and every question about traffic is about two boxes per machine. A placement in runs lets several
machines share each part: row-major, so many of its blocks each. That is three boxes per machine at most.

A mesh numbers machines by several coordinates; "cut along a mesh axis" is an iter with that axis' stride.

Source: Axe, section 2.2 (D, R, O), on axes of our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import PlanError
from tileweave.layout import Coord, Iter, Layout

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Digits = tuple[tuple[int, int], ...]
"""(extent, stride along the machine axis) pairs, slowest first."""
Mesh = tuple[int, ...]
"""Extents of mesh axes; machine numbers are row-major over them, and may leave machines idle."""


class Boxes(NamedTuple):
    """One box per machine.

    Args:
        low: per dimension, the first coordinate of each machine's box.
        high: per dimension, the coordinate behind it.
        here: whether the machine has a box; what tells where a tensor without dimensions lies.
        waves: how many of the last axes of the arrays count waves.
    """

    low: list[IntArray]
    high: list[IntArray]
    here: np.ndarray[Any, np.dtype[np.bool_]]
    waves: int = 0

    def of(self, who: IntArray) -> Boxes:
        """The boxes of some machines."""
        low, high = ([x[who] if len(x) > 1 else x for x in rows] for rows in (self.low, self.high))
        return Boxes(low, high, self.here[who], self.waves)


def placement(count: int, machines: int) -> Layout:
    """Shard number -> machine and wave: consecutive shards of a machine follow each other as waves.

    Machines are numbered in the order in which they are filled (`Machines.order`).
    A count that the machines divide gives every machine as many; a smaller count uses the first machines; any other
    count leaves the last machines with fewer.

    Example:
        >>> print(placement(8, 4))
        (4:1@machine, 2:1@wave)
    """
    return run_placement((count,), machines).layout


@dataclass(frozen=True, slots=True)
class Placement:
    """Blocks of a grid on machines.

    Args:
        grid: blocks per dimension.
        digits: per dimension, how consecutive runs of its blocks go to machines.
        waves: per dimension, how many consecutive blocks one machine holds.
        replica: (extent, stride) of machines that hold copies; where there is a run, of those that share each part.
        offset: the machine of the first block.
        run: how many blocks each machine holds, row-major over the blocks (`waves`) of a part that several machines
            share, the last ones one less where there are not as many; 0: one machine holds all blocks of its part.
        weights: of all machines, in the order in which they fill: by these, machines have parts of unequal lengths.
        rest: how many machines behind those of the parts take the blocks that the runs of all parts leave.

    Raises:
        PlanError: the digits and waves of a dimension do not reach all of its blocks.

    Example:
        >>> place = Placement((4, 6), (((4, 2),), ((2, 1),)), (1, 3))
        >>> print(place.layout)
        (4:2@machine, 2:1@machine, 3:1@wave)
        >>> place.machine((1, 4)), place.wave((1, 4))
        (3, 1)
    """

    grid: tuple[int, ...]
    digits: tuple[Digits, ...]
    waves: tuple[int, ...]
    replica: Digits = ()
    offset: int = 0
    run: int = 0
    weights: tuple[int, ...] = ()
    rest: int = 0

    def __post_init__(self) -> None:
        if not len(self.grid) == len(self.digits) == len(self.waves):
            raise PlanError("Placement(grid, digits, waves)", "the ranks differ", inputs={"placement": self.grid})
        if self.run and self.left > 0 and not self.rest:
            raise PlanError(
                "Placement(.., run)",
                f"{self.owners} runs of {self.run} blocks do not hold {prod(self.waves)}",
                legal="longer runs, or more machines in replica",
            )
        if self.run > (even := -(-prod(self.waves) // self.owners)):
            raise PlanError(
                "Placement(.., run)",
                f"runs of {self.run} blocks leave some of {self.owners} machines without one of {prod(self.waves)}",
                legal=f"at most {even}",
            )
        for blocks, extent, waves in zip(self.grid, self.parts, self.waves, strict=True):
            if extent * waves < blocks:
                raise PlanError(
                    "Placement(grid, digits, waves)",
                    f"{extent} runs of {waves} blocks do not hold {blocks} blocks",
                    legal="extents whose product, times the waves, is at least the blocks",
                )

    @property
    def parts(self) -> tuple[int, ...]:
        """Machine parts per dimension."""
        return tuple(prod(extent for extent, _ in digits) for digits in self.digits)

    @property
    def layout(self) -> Layout:
        """The Axe layout, on the grid rounded up to whole runs of waves.

        With a run it is that of the parts, then of the blocks of a part, rounded up to whole runs and without those
        that are left. Where the last owners have a block less (`short`), no layout says which blocks are whose, since
        their runs start at no multiple of the run: `runs` and `machine` do.
        """
        start = Coord((("machine", self.offset),)) if self.offset else Coord()
        if self.run:
            parts = [pair for row in (*self.digits, self.replica) for pair in row if pair[0] > 1]
            machines = tuple(Iter(extent, Coord((("machine", stride),))) for extent, stride in parts)
            return Layout((*machines, Iter(self.run, Coord((("wave", 1),)))), (), start)
        steps = [prod(self.waves[k + 1 :]) for k in range(len(self.waves))]
        shard = []
        for digits, waves, step in zip(self.digits, self.waves, steps, strict=True):
            shard += [Iter(extent, Coord((("machine", stride),))) for extent, stride in digits if extent > 1]
            shard += [Iter(waves, Coord((("wave", step),)))] if waves > 1 else []
        copies = tuple(Iter(extent, Coord((("machine", stride),))) for extent, stride in self.replica)
        return Layout(tuple(shard) or (Iter(1, Coord((("machine", 1),))),), copies, start)

    @property
    def owners(self) -> int:
        """How many machines share each part of a placement in runs."""
        return prod(extent for extent, _ in self.replica)

    @property
    def short(self) -> int:
        """How many of the owners of a part, the last ones, have a block less than a run."""
        return max(0, self.run * self.owners - prod(self.waves))

    @property
    def left(self) -> int:
        """How many blocks of each part its owners leave to the rest of the machines."""
        return max(0, prod(self.waves) - self.run * self.owners) if self.run else 0

    @property
    def left_run(self) -> int:
        """How many of these each machine of the rest takes."""
        return -(-prod(self.parts) * self.left // self.rest) if self.rest else 0

    @property
    def first_of_rest(self) -> int:
        """The machine behind those of the parts."""
        rows = (*self.digits, self.replica)
        return self.offset + 1 + sum((extent - 1) * stride for row in rows for extent, stride in row)

    @property
    def copies(self) -> int:
        """How many machines hold each block."""
        return 1 if self.run else self.owners

    def machine(self, place: Sequence[int]) -> int:
        """The (first) machine that holds the block at grid coordinates, in the order in which machines are filled."""
        parts = [at // waves for at, waves in zip(place, self.waves, strict=True)]
        rows = [*zip(parts, self.digits, strict=True)]
        if self.run:
            number = self._left_number(place)
            if number >= 0:
                return self.first_of_rest + number // self.left_run
            rows.append((self._owner(self._inside(place))[0], self.replica))
        number = self.offset
        for part, digits in rows:
            for extent, stride in reversed(digits):
                part, digit = divmod(part, extent)
                number += digit * stride
        return number

    def machines(self, place: Sequence[int]) -> tuple[int, ...]:
        """Every machine that holds the block at grid coordinates."""
        found = [self.machine(place)]
        if self.run:
            return tuple(found)
        for extent, stride in self.replica:
            found = [number + digit * stride for number in found for digit in range(extent)]
        return tuple(found)

    def wave(self, place: Sequence[int]) -> int:
        """The number of the block among those of its machine, the last dimension fastest."""
        number, left = self._inside(place), self._left_number(place) if self.run else -1
        if left >= 0:
            return left % self.left_run
        return self._owner(number)[1] if self.run else number

    def _owner(self, number: int) -> tuple[int, int]:
        """(which of a part's owners holds a block of it, the number of the block among the owner's)."""
        full = (self.owners - self.short) * self.run
        if number < full:
            return divmod(number, self.run)
        owner, at = divmod(number - full, self.run - 1)
        return self.owners - self.short + owner, at

    def runs(self, owner: Any) -> tuple[Any, Any]:
        """(the first block of an owner's run, the one behind its last); of numbers or arrays of owners."""
        first = self.owners - self.short
        start = owner * self.run - np.maximum(owner - first, 0)
        return start, start + self.run - (owner >= first)

    def _left_number(self, place: Sequence[int]) -> int:
        """The number of a block among those that all runs leave; negative where it is none of them."""
        inside = self._inside(place) - self.run * self.owners
        part = 0
        for at, parts, waves in zip(place, self.parts, self.waves, strict=True):
            part = part * parts + at // waves
        return part * self.left + inside if inside >= 0 else -1

    def _inside(self, place: Sequence[int]) -> int:
        """The number of a block among those of its part."""
        number = 0
        for at, waves in zip(place, self.waves, strict=True):
            number = number * waves + at % waves
        return number

    @property
    def wave_count(self) -> int:
        """The most blocks that one machine holds."""
        return max(self.run, self.left_run) or prod(self.waves)

    def in_waves(self, inner: Sequence[int] = ()) -> tuple[IntArray, IntArray]:
        """(wave, block) of every block, in the order of the waves: at most one block per machine in each.

        Blocks have row-major numbers, waves numbers over those of all dimensions, the last fastest.

        Args:
            inner: dimensions whose waves follow each other first, faster than others.
        """
        dims = range(len(self.grid))
        order = (*reversed(inner), *(k for k in reversed(dims) if k not in inner))
        places = np.indices(self.grid, np.int64).reshape(len(self.grid), prod(self.grid))
        waves, count = np.zeros(places.shape[1], np.int64), 1
        for k in order:
            waves += places[k] % self.waves[k] * count
            count *= self.waves[k]
        if not self.run:
            blocks = np.argsort(waves, kind="stable")
            return waves[blocks], blocks
        whole = [np.flatnonzero(waves == number) for number in range(count)]
        found: list[IntArray] = []
        for wave in range(self.wave_count):
            starts, stops = self.runs(np.arange(self.owners))
            numbers = starts[starts + wave < stops] + wave
            row = [np.asarray(self._left_blocks(wave) if wave < self.left_run else [], np.int64)]
            found.append(np.concatenate([*row, *(whole[number] for number in numbers)]))
        return np.repeat(np.arange(len(found)), list(map(len, found))), np.concatenate(found)

    def machine_of_blocks(self) -> IntArray:
        """`machine` of every block."""
        blocks = prod(self.grid)
        if self.run:
            return np.array([self.machine(place) for place in product(*map(range, self.grid))], np.int64)
        out = np.full(self.grid, self.offset, np.int64)
        for k, (digits, waves) in enumerate(zip(self.digits, self.waves, strict=True)):
            part, row = np.arange(self.grid[k]) // waves, np.zeros(self.grid[k], np.int64)
            for extent, stride in reversed(digits):
                part, digit = np.divmod(part, extent)
                row += digit * stride
            out += row.reshape([-1 if d == k else 1 for d in range(len(self.grid))])
        return out.reshape(blocks)

    def _left_blocks(self, wave: int) -> list[int]:
        """The blocks of a wave among those that all runs leave."""
        found = []
        for number in range(wave, prod(self.parts) * self.left, self.left_run):
            part, inside = divmod(number, self.left)
            at = [0] * len(self.grid)
            inside += self.run * self.owners
            for k in reversed(range(len(self.grid))):
                inside, digit = divmod(inside, self.waves[k])
                part, mine = divmod(part, self.parts[k])
                at[k] = mine * self.waves[k] + digit
            if all(place < blocks for place, blocks in zip(at, self.grid, strict=True)):
                found.append(sum(place * prod(self.grid[k + 1 :]) for k, place in enumerate(at)))
        return found

    def text(self, names: Sequence[str] = ()) -> str:
        """For people: dimension, parts and the stride of each cut; ``m0`` where one machine holds everything."""
        words = [f"runs of {self.run} among {self.owners}"] if self.run else []
        words += [f"and {self.left_run} on {self.rest} more"] if self.left_run else []
        for k, digits in enumerate(self.digits):
            cut = [f"{extent}:{stride}" for extent, stride in digits if extent > 1]
            if cut:
                words.append(f"{names[k] if names else f'axis{k}'}/({', '.join(cut)})")
        if self.copies > 1:
            words.append(f"x{self.copies} copies")
        words += ["by weights"] if self.weights and any(self.digits) else []
        return " ".join(words) or f"m{self.offset}"


def run_placement(grid: Sequence[int], machines: int) -> Placement:
    """Any grid on so many machines: dimension by dimension, as many runs as machines are left, of as
    even lengths as can be.

    Example:
        >>> print(run_placement((6, 2), 4).layout)
        (3:1@machine, 2:2@wave, 2:1@wave)
    """
    return _run_placement(tuple(grid), machines)


@lru_cache(maxsize=1 << 10)
def _run_placement(grid: tuple[int, ...], machines: int) -> Placement:
    left, parts = machines, []
    for blocks in grid:
        parts.append(max(1, min(blocks, left)))
        left //= parts[-1]
    waves = [-(-blocks // n) for blocks, n in zip(grid, parts, strict=True)]
    parts = [-(-blocks // w) if blocks else 1 for blocks, w in zip(grid, waves, strict=True)]
    steps = [prod(parts[k + 1 :]) for k in range(len(parts))]
    digits = tuple(((n, s),) if n > 1 else () for n, s in zip(parts, steps, strict=True))
    return Placement(grid, digits, tuple(max(1, w) for w in waves))


@cache
def undivided(rank: int) -> Placement:
    """One block on the first machine."""
    return Placement((1,) * rank, ((),) * rank, (1,) * rank)


def mesh_digits(mesh: Mesh, axes: Sequence[int]) -> Digits:
    """The digits of a dimension that is cut along mesh axes, the first slowest."""
    return tuple((mesh[a], prod(mesh[a + 1 :])) for a in axes if mesh[a] > 1)


@lru_cache(maxsize=1 << 12)
def nested_bounds(extent: int, levels: tuple[int, ...], start: int = 0) -> IntArray:
    """The boundaries of even cuts, each part cut evenly again at the next level; equal parts stay equal.

    What is cut by two operations at the same first levels has its boundaries in common there.

    Example:
        >>> nested_bounds(10, (4,)).tolist(), nested_bounds(10, (2, 2)).tolist()
        ([0, 3, 6, 8, 10], [0, 3, 5, 8, 10])
    """
    edges = np.asarray([start, start + extent], np.int64)
    for parts in levels:
        edges = _cut_again(edges, parts)
    edges.setflags(write=False)
    return edges


def _cut_again(edges: IntArray, parts: int) -> IntArray:
    """The boundaries after every part was cut evenly."""
    if parts == 1:
        return edges
    steps = np.arange(parts, dtype=np.int64)
    lengths = np.diff(edges)[:, None]
    inner = edges[:-1, None] + (lengths // parts) * steps + np.minimum(steps, lengths % parts)
    return np.append(inner.reshape(-1), edges[-1])


@lru_cache(maxsize=1 << 12)
def part_bounds(extent: int, digits: Digits, weights: tuple[int, ...] = (), start: int = 0) -> IntArray:
    """The boundaries of the machines' parts of a dimension: even, or by the weights of those that have each part.

    Parts nest as in `nested_bounds`, and none is empty where there are points enough.

    Example:
        >>> part_bounds(12, ((3, 1),), (3, 2, 1)).tolist(), part_bounds(12, ((3, 1),)).tolist()
        ([0, 6, 10, 12], [0, 4, 8, 12])
    """
    extents = tuple(n for n, _ in digits)
    if not weights or prod(extents) > extent:
        return nested_bounds(extent, extents, start)
    at = np.zeros(len(weights), np.int64)
    for n, stride in digits:
        at = at * n + np.arange(len(weights)) // stride % n
    shares = np.bincount(at, weights, minlength=prod(extents)).reshape(extents)
    edges = np.asarray([start, start + extent], np.int64)
    for depth, n in enumerate(extents):
        inside = tuple(range(depth + 1, len(extents)))
        ends = shares.sum(axis=inside).reshape(-1, n).cumsum(1)
        least = np.arange(n + 1) * prod(extents[depth + 1 :])
        lengths = np.diff(edges)[:, None]
        inner = np.rint(lengths * ends / np.maximum(ends[:, -1:], 1e-300)).astype(np.int64)
        inner = np.concatenate([np.zeros_like(lengths), inner], 1)
        inner = np.maximum.accumulate(inner - least, 1) + least
        inner = np.minimum(inner, lengths - least[::-1])
        edges = np.append((edges[:-1, None] + inner[:, :-1]).reshape(-1), edges[-1])
    edges.setflags(write=False)
    return edges


def cut_bounds(extent: int, digits: Digits, waves: int, weights: tuple[int, ...] = (), start: int = 0) -> IntArray:
    """The boundaries of all blocks of a dimension: the machines' parts, each cut evenly into waves."""
    if not weights:
        return nested_bounds(extent, (*(n for n, _ in digits), waves), start)
    return _cut_again(part_bounds(extent, digits, weights, start), waves)


def _counter(extents: Sequence[int]) -> IntArray:
    """(digits, numbers): every combination of digits, the last fastest."""
    return np.indices(tuple(extents), np.int64).reshape(len(extents), prod(extents))


@lru_cache(maxsize=1 << 12)
def _machine_parts(
    digits: tuple[Digits, ...], replica: Digits, offset: int, machines: int
) -> tuple[IntArray, np.ndarray[Any, np.dtype[np.bool_]]]:
    """(machines, rank): the part of each dimension that a machine holds; and whether it holds any."""
    iters = [pair for dim in digits for pair in dim]
    coords = _counter([extent for extent, _ in iters])
    number = offset + np.asarray([stride for _, stride in iters], np.int64) @ coords
    parts = np.zeros((coords.shape[1], len(digits)), np.int64)
    at = 0
    for k, dim in enumerate(digits):
        for extent, _ in dim:
            parts[:, k] = parts[:, k] * extent + coords[at]
            at += 1
    shifts = _counter([extent for extent, _ in replica])
    out, here = np.zeros((machines, len(digits)), np.int64), np.zeros(machines, np.bool_)
    for shift in np.asarray([s for _, s in replica], np.int64) @ shifts:
        where = number + shift
        if not 0 <= int(where.min()) <= int(where.max()) < machines:
            raise PlanError(
                "plan(target, machines)", f"a placement needs machine {int(where.max())}", legal=f"0..{machines - 1}"
            )
        out[where], here[where] = parts, True
    out.setflags(write=False)
    return out, here


def wave_counts(where: Placement, machines: int) -> tuple[IntArray, ...]:
    """Per dimension, how many waves of each machine there are."""
    parts, _ = _machine_parts(where.digits, where.replica, where.offset, machines)
    pairs = zip(where.grid, where.waves, strict=True)
    return tuple(np.clip(blocks - parts[:, k] * count, 0, count) for k, (blocks, count) in enumerate(pairs))


def _segments(where: Placement, machines: int) -> list[tuple[IntArray, IntArray, IntArray]]:
    """(part of each dimension, first block of the part, the one behind the last) of each machine of a placement in
    runs; the rest of the machines have several parts' blocks, so there are several of these."""
    parts, here = _machine_parts((*where.digits, where.replica), (), where.offset, machines)
    blocks, left, most = prod(where.waves), where.left, where.left_run
    start, stop = where.runs(parts[:, -1])
    out = [(parts[:, :-1].copy(), start * here, stop * here)]
    if most:
        taker = np.arange(machines, dtype=np.int64) - where.first_of_rest
        takes = (taker >= 0) & (taker < where.rest)
        low = np.where(takes, taker * most, 0)
        high = np.where(takes, np.minimum(low + most, prod(where.parts) * left), 0)
        for turn in range((most - 2) // left + 2 if most > 1 else 1):
            part = low // left + turn
            first = np.maximum(low - part * left, 0)
            last = np.clip(high - part * left, first, np.maximum(left, first))
            at = np.stack(np.unravel_index(np.minimum(part, prod(where.parts) - 1), where.parts or (1,)), -1)
            at, base = at[:, : len(where.parts)], blocks - left
            if turn:
                out.append((at, (base + first) * takes, (base + last) * takes))
            else:
                rows, a, b = out[0]
                rows[takes] = at[takes]
                out[0] = rows, np.where(takes, base + first, a), np.where(takes, base + last, b)
    return out


def machine_blocks(where: Placement, machines: int) -> IntArray:
    """How many blocks each machine holds, empty ones among them."""
    if where.run:
        return np.asarray(sum(np.maximum(stop - start, 0) for _, start, stop in _segments(where, machines)))
    _, here = _machine_parts(where.digits, where.replica, where.offset, machines)
    return np.asarray(prod(wave_counts(where, machines), start=here.astype(np.int64)), np.int64)


def machine_boxes(bounds: Sequence[IntArray], where: Placement, machines: int, *, waves: bool = False) -> Boxes:
    """The box that each machine holds.

    Args:
        bounds: boundaries of the blocks per dimension.
        where: of the blocks.
        machines: how many.
        waves: whether each wave's own range is given: axis ``1 + k`` counts the waves of dimension k.

    Returns:
        Arrays of shape (machines,) or, with waves, (machines, 1, .., waves of the dimension, .., 1); one machine
        stands for all where nothing tells them apart.
    """
    parts, _ = _machine_parts(where.digits, where.replica, where.offset, machines)
    here, rank = machine_blocks(where, machines) > 0, len(where.grid)
    low, high = [], []
    for k, (edge, count) in enumerate(zip(bounds, where.waves, strict=True)):
        first, blocks = parts[:, k] * count, where.grid[k]
        shape: tuple[int, ...] = (machines,)
        if waves:
            if not where.digits[k]:  # all machines have the same waves
                first = first[:1]
            first = first[:, None] + np.arange(count, dtype=np.int64)
            shape = (len(first), *(count if j == k else 1 for j in range(rank)))
        last = first + (1 if waves else count)
        low.append(edge[np.minimum(first, blocks)].reshape(shape))
        high.append(edge[np.minimum(last, blocks)].reshape(shape))
    axes = rank if waves else 0
    return Boxes(low, high, here.reshape((machines,) + (1,) * axes), axes)


def machine_runs(
    bounds: Sequence[IntArray], where: Placement, machines: int, *, waves: bool = False
) -> list[tuple[Boxes, tuple[IntArray, ...]]]:
    """What each machine holds of a placement in runs: the end of a row, whole rows, the start of a row.

    Args:
        bounds: boundaries of the blocks per dimension; two at most have several in a part.
        where: of the blocks.
        machines: how many.
        waves: whether each block's own range is given, as by `machine_boxes`.

    Returns:
        Boxes, and with waves how many blocks of each dimension each machine has in them.
    """
    out: list[tuple[Boxes, tuple[IntArray, ...]]] = []
    cut = [k for k, blocks in enumerate(where.waves) if blocks > 1]
    row, column = ([-1, -1, *cut])[-2:]
    columns = 1 if column < 0 else where.waves[column]
    for parts, start, stop in _segments(where, machines):
        out += _segment_boxes(bounds, where, parts, start, stop, (row, column, columns), waves=waves)
    return out


def _segment_boxes(
    bounds: Sequence[IntArray],
    where: Placement,
    parts: IntArray,
    start: IntArray,
    stop: IntArray,
    cut: tuple[int, int, int],
    *,
    waves: bool,
) -> Iterator[tuple[Boxes, tuple[IntArray, ...]]]:
    """The blocks from one to another of one part per machine, as boxes."""
    (row, column, columns), rank, machines = cut, len(where.grid), len(start)
    some, zero = np.maximum(stop - start, 0), np.zeros_like(start)
    first, last = start // columns, np.maximum(stop - 1, start) // columns
    one, end = first == last, (stop - 1) % columns + 1
    ranges = [
        ((first, first + 1), (start % columns, np.where(one, end, columns)), some > 0),
        ((first + 1, last), (zero, zero + columns), (some > 0) & (last > first + 1)),
        ((last, last + 1), (zero, end), (some > 0) & ~one),
    ]
    for rows, places, here in ranges:
        if not here.any() and rows[0] is not first:
            continue
        low, high, counts = [], [], []
        for k, edge in enumerate(bounds):
            first_of_part = parts[:, k] * where.waves[k]
            ends = {row: rows, column: places}.get(k, (zero, zero + 1))
            a, b = (np.where(here, first_of_part + x, 0) for x in ends)
            counts.append(b - a)
            if waves:
                most = max(1, int(counts[-1].max(initial=0)))
                shape = (machines, *(most if j == k else 1 for j in range(rank)))
                a = np.minimum(a[:, None] + np.arange(most, dtype=np.int64), b[:, None])
                low.append(edge[a].reshape(shape))
                high.append(edge[np.minimum(a + 1, b[:, None])].reshape(shape))
            else:
                low.append(edge[a])
                high.append(edge[b])
        axes = rank if waves else 0
        yield Boxes(low, high, here.reshape((machines,) + (1,) * axes), axes), tuple(counts)
