"""How a tensor that moves to another order of axes is cut into blocks, so that both tensors are met in whole lines.

A block takes a run of the input's dense axis, and a *row*, a run of the output that may span several axes. Figures
were chosen by measurement: a row that begins and ends with a cache line is worth most; then that runs divide their
axes; then the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, inf, log2, prod

from tileweave.backends.cpu.memory import rounded
from tileweave.index.sizes import plain
from tileweave.teir.merged.form import Mode

LEAST_ROW_BYTES = 128
"""Rows that are shorter are not worth collecting."""
LONG_ROW_BYTES = 768
"""Rows of both tensors that are at least so long are written as they are read."""
_LINE = 64
_SPAN_BYTES, _FAR_BYTES = 4096, 65536
"""Lines so far apart have one place in the first cache, and in the second one."""
_RUN_BYTES, _MOST_RUN_BYTES = 64, 288
"""Of the input's dense axis a block takes so much, at least and at most."""
_UNITS_BYTES = 1280
"""Of an axis whose elements are units of several, a block takes up to so much."""
_BLOCK_BYTES = 10 * 1024
"""What is collected, twice, stays in the first cache with what is read."""
_MOST_ROW_BYTES = 2560
_MOST_BLOCK_BYTES = 64 * 1024
"""What is collected is on the stack, twice."""
_STREAM_BYTES = 8192
"""Rows that share lines are continued to this length before others are begun."""
_COUNTS = 32
"""How many ways to cut an axis evenly are compared."""
_DIRECT_RUN_BYTES, _DIRECT_ROW = 2048, 512
"""Of the input's dense axis, and indices of the output's, where blocks are written as they are read."""
_CONSTANT_RUN = 16
"""Runs up to this are constants of the code: 330 blocks of 6 x 10 take 8.4 us so, and 11.2 with sizes that are read."""


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """An axis, and how much of it a block takes.

    Args:
        dim: the axis, as input and output have it.
        run: indices that a block takes.
        held: bytes from one index to the next where a block is collected.
    """

    dim: Mode
    run: int = 1
    held: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks cover the axis; the last begins earlier where the run does not divide the extent."""
        return -(-self.dim.extent // self.run)


@dataclass(frozen=True, slots=True)
class Digit:
    """One loop over blocks: the number of a side's block is the sum of its digits times their weights."""

    side: int
    extent: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Blocking:
    """A cut tensor.

    Args:
        sides: all axes.
        cross: which of them is dense in the input; None: the one that is dense in the output.
        along: which of them is dense in the output.
        inside: the others of which a block takes several indices.
        rows: those of a block that lead from row to row of what is collected.
        digits: the loops over blocks, outermost first.
        row_bytes: bytes of a row.
        buffer_bytes: what a block takes where it is collected; 0: it goes straight to the output.
    """

    sides: tuple[BlockAxis, ...]
    cross: int | None
    along: int
    inside: tuple[int, ...]
    rows: tuple[int, ...]
    digits: tuple[Digit, ...]
    row_bytes: int = 0
    buffer_bytes: int = 0


def cut_direct(dims: tuple[Mode, ...], cross: int, widths: tuple[int, int]) -> Blocking:
    """Blocks that are written as they are read: for tensors that the caches hold."""
    along = len(dims) - 1
    runs = {cross: max(1, _DIRECT_RUN_BYTES // widths[0]), along: _DIRECT_ROW}
    sides = tuple(
        BlockAxis(dim, min(runs.get(k, 1), dim.extent), dim.strides[1] if k in runs else 0)
        for k, dim in enumerate(dims)
    )
    digits = tuple(Digit(k, side.blocks) for k, side in enumerate(sides) if side.blocks > 1)
    return Blocking(sides, cross, along, (), (), digits)


def with_sizes(cut: Blocking, widths: tuple[int, int], size: Callable[[int], int]) -> Blocking:
    """The same cut of `cut_direct`, its extents and strides replaced by what a function makes of them.

    Not replaced: strides of one element, the runs that are chosen, which the code owes its form to, and short runs.
    """

    def stride(number: int, width: int) -> int:
        return plain(number) if number in (0, width, -width) else size(number)

    def side(one: BlockAxis) -> BlockAxis:
        strides = tuple([stride(s, w) for s, w in zip(one.dim.strides, widths, strict=True)])
        extent = size(one.dim.extent)
        whole = not one.run < one.dim.extent and one.run > _CONSTANT_RUN
        return BlockAxis(Mode(extent, strides), extent if whole else plain(one.run), stride(one.held, widths[1]))

    digits = tuple([Digit(one.side, size(one.extent), one.weight) for one in cut.digits])
    return replace(cut, sides=tuple(map(side, cut.sides)), digits=digits)


def cut_staged(dims: tuple[Mode, ...], cross: int | None, widths: tuple[int, int]) -> Blocking:
    """Blocks that are collected before their rows are written."""
    w_in, w_out = widths
    runs, row, aligned = _best_runs(dims, cross, widths)
    chain = list(row)
    rows = [] if cross is None or cross in row else [cross]
    runs |= row
    if cross is not None:
        room = _MOST_BLOCK_BYTES // (w_out * prod(runs.values()))
        lengthened = _more_runs(dims, cross, runs, w_in, room)
        rows += list(lengthened)
        runs |= lengthened
    held, steps = w_out, {}
    for k in chain:
        steps[k] = held
        held *= runs[k]
    row_bytes = held
    held = rounded(held) + 2 * _LINE
    for k in rows:
        held += (dims[k].strides[1] - held) % _LINE  # a row falls within lines here as it does in the output
        steps[k] = held
        held *= runs[k]
    sides = tuple(BlockAxis(dim, runs.get(k, 1), steps.get(k, 0)) for k, dim in enumerate(dims))
    along = len(dims) - 1
    inside = tuple(k for k in sorted(runs) if k not in (cross, along) and runs[k] > 1)
    digits = _digits(sides, chain, 0 if aligned else max(1, _STREAM_BYTES // row_bytes))
    return Blocking(sides, cross, along, inside, tuple(rows), digits, row_bytes, rounded(held) + 2 * _LINE)


def crowded(dim: Mode) -> bool:
    """Whether the input's lines along an axis compete for few places of the first cache."""
    return not dim.strides[0] % 2048


def overflowing(dim: Mode, count: int) -> bool:
    """Whether more than 24 of so many lines along the input's axis have one place: twice what the first cache holds."""
    return crowded(dim) and count * gcd(dim.strides[0], _SPAN_BYTES) > 24 * _SPAN_BYTES


def _waste(extent: int, run: int) -> float:
    """How much is done per element, where the last run begins earlier."""
    return ceil(extent / run) * run / extent


def _best_runs(
    dims: tuple[Mode, ...], cross: int | None, widths: tuple[int, int]
) -> tuple[dict[int, int], dict[int, int], bool]:
    """The run of the input's dense axis; the axes of a row, fastest first, with their runs; whether rows are lines.

    The cost is the time's logarithm as it was fitted to the rates of 1100 blockings of 40 permutations.
    """
    w_in, w_out = widths
    best = inf
    found: tuple[dict[int, int], dict[int, int], bool] = ({}, {len(dims) - 1: 1}, False)
    for runs in [{}] if cross is None else [{cross: run} for run in _cross_runs(dims[cross].extent, w_in)]:
        for row in _rows(dims, cross, runs, w_out):
            size = w_out * prod(row.values())
            last = next(reversed(row))
            extent, run = dims[last].extent, row[last]
            strides = [dim.strides[1] for k, dim in enumerate(dims) if k not in row]
            whole = not any(s % _LINE for s in (*strides, size, (extent - run) * (size // run)))
            block = (size + 2 * _LINE) * prod(r for k, r in runs.items() if k not in row)
            cost = log2(_waste(extent, run)) + 1.5 * _LINE / size
            if not whole:  # lines are shared with other rows
                cost += 0.15 + (extent % run > 0)
            if cross is not None:
                cost += _cost_of_reading(dims, cross, row.get(cross, runs[cross]), w_in) - 0.35 * (cross in row)
                if row.get(cross, 0) * w_in == 2 * _LINE and dims[-1].strides[0] % _FAR_BYTES:
                    cost += 0.5 * overflowing(dims[-1], dims[-1].extent)  # measured: up to half the rate is lost
                beyond = _beyond(dims, cross, runs[cross], w_in)
                if beyond is not None and beyond not in row:
                    block *= 2 * _LINE // (w_in * runs[cross])
            cost += 0.5 * max(0.0, log2(block / _BLOCK_BYTES))
            if cost < best:
                best, found = cost, (runs, row, whole)
    return found


def _cross_runs(extent: int, width: int) -> list[int]:
    """How much of the input's dense axis a block may take."""
    if width > 8:
        most = max(1, _UNITS_BYTES // width)
        return [ceil(extent / ceil(extent / most))]
    least, most = _RUN_BYTES // width, _MOST_RUN_BYTES // width
    if extent <= least:
        return [extent]
    runs = {*_even(extent, most), *range(least, most + 1, least // 2)}
    return sorted(run for run in runs if least <= run <= min(extent, most))


def _beyond(dims: tuple[Mode, ...], cross: int, run: int, width: int) -> int | None:
    """The axis that continues a short run of the input, if one does."""
    if run * width >= _RUN_BYTES or run < dims[cross].extent:
        return None
    return next((k for k, dim in enumerate(dims) if k != cross and abs(dim.strides[0]) == run * width), None)


def _cost_of_reading(dims: tuple[Mode, ...], cross: int, run: int, width: int) -> float:
    """Of a run of the input's dense axis."""
    extent, size = dims[cross].extent, run * width
    q, weight = (32, 1.0) if crowded(dims[-1]) else (16, 0.2)  # lines that compete are read in one go
    broken = any(abs(dim.strides[0]) % _LINE for dim in dims if abs(dim.strides[0]) >= size) or size % _LINE
    cost = log2(_waste(extent, run)) + weight * log2(_waste(run, max(1, min(q // width, run)))) + 0.33 * _LINE / size
    if broken:  # lines are shared with other runs
        cost += 0.25 * _LINE / size + (-0.2 if run == extent else 0.35 if extent % run else 0.0)
    return cost


def _rows(dims: tuple[Mode, ...], cross: int | None, runs: dict[int, int], width: int) -> Iterator[dict[int, int]]:
    """Candidates: some axes that follow one another in the output, all but the last of them whole."""
    row: dict[int, int] = {}
    length = width
    count = 1 if cross is None else runs[cross]
    limit = min(_MOST_ROW_BYTES, _MOST_BLOCK_BYTES // count)
    for k in reversed(range(len(dims))):
        extent = dims[k].extent
        most = 2 * _BLOCK_BYTES if cross in (None, k) or cross in row else limit
        if dims[k].strides[1] != length or (length > most // 2 and row):
            return
        least = min(extent, runs.get(k, 1))
        if least * length > _MOST_BLOCK_BYTES:
            return
        greatest = max(least, min(extent, most // length))
        for run in _runs(extent, least, greatest, _LINE // gcd(_LINE, length)):
            if run * length >= LEAST_ROW_BYTES or run == extent:
                yield {**row, k: run}
        row[k] = extent
        length *= extent


def _runs(extent: int, least: int, greatest: int, step: int) -> list[int]:
    """Lengths for an axis, in a range: all of a few; else those that waste the least, and multiples of a step."""
    if greatest - least <= _COUNTS:
        return list(range(least, greatest + 1))
    runs = {least, *_even(extent, greatest), *range(step * ceil(least / step), greatest + 1, step)}
    return sorted(run for run in runs if run >= least)


def _even(extent: int, most: int) -> list[int]:
    """The longest runs, up to a length, that cut an axis into equal parts but for the last."""
    count = ceil(extent / most)
    return [ceil(extent / (count + more)) for more in range(_COUNTS)]


def _more_runs(dims: tuple[Mode, ...], cross: int, runs: dict[int, int], width: int, room: int) -> dict[int, int]:
    """Runs of the axes that continue a short run of the input, with so much room for more indices."""
    found: dict[int, int] = {}
    size = width * runs[cross]
    whole = runs[cross] == dims[cross].extent
    while whole and size < _RUN_BYTES:
        k = next((j for j, dim in enumerate(dims) if abs(dim.strides[0]) == size), None)
        if k is None or k in runs or k in found:
            break
        extent, best = dims[k].extent, inf
        for run in range(1, max(1, min(extent, room, _MOST_RUN_BYTES // size)) + 1):
            cost = _waste(extent, run) + max(0.0, 0.1 * log2(2 * _LINE / (run * size)))
            if cost <= best:
                best, found[k] = cost, run
        whole = found[k] == extent
        size *= found[k]
        room //= found[k]
    return found


def _digits(sides: Sequence[BlockAxis], chain: list[int], stream: int) -> tuple[Digit, ...]:
    """Loops in the order of the input's memory; rows that share lines are continued first, for so many rows."""
    order = sorted(range(len(sides)), key=lambda k: -abs(sides[k].dim.strides[0]))
    digits = [Digit(k, sides[k].blocks) for k in order]
    near: list[Digit] = []
    k: int | None = chain[-1]
    while stream > 1 and k is not None:
        blocks = sides[k].blocks
        if blocks > stream * 3 // 2:
            part = _part(blocks, stream)
            near.insert(0, Digit(k, part))
            digits = [Digit(k, ceil(blocks / part), part) if digit.side == k else digit for digit in digits]
            break
        near.insert(0, Digit(k, blocks))
        digits = [digit for digit in digits if digit.side != k]
        stream //= blocks
        end = sides[k].dim.strides[1] * sides[k].dim.extent
        k = next((j for j, side in enumerate(sides) if side.dim.strides[1] == end and side.run == 1), None)
    return tuple(digit for digit in (*digits, *near) if digit.extent > 1)


def _part(extent: int, aim: int) -> int:
    """A part of an extent, near an aim, with the least waste."""
    return min(range(max(1, aim // 2), aim * 3 // 2 + 1), key=lambda run: (_waste(extent, run), -run))


def paged(dims: tuple[Mode, ...]) -> tuple[Mode, ...]:
    """Outer axes in an order that stays among few pages of the input and of the output at a time.

    The axis that is nearest in the input and the one that is nearest in the output are both cut into short runs, and
    the runs go innermost: for a while, both tensors are walked within pages that were just used.
    """
    if len(dims) < 2 or any(len(dim.strides) != 2 for dim in dims):
        return dims
    ends = min(dims, key=lambda d: abs(d.strides[0])), min(dims, key=lambda d: d.strides[1])
    if ends[0] is ends[1]:
        return (*(dim for dim in dims if dim is not ends[0]), ends[0])
    far, near = [dim for dim in dims if dim not in ends], []
    for dim in ends:
        run = max((d for d in range(1, 17) if dim.extent % d == 0), key=lambda d: (d <= 8, d))
        far.append(Mode(dim.extent // run, tuple(run * s for s in dim.strides)))
        near.append(Mode(run, dim.strides))
    return tuple(dim for dim in (*far, *near) if dim.extent > 1)
