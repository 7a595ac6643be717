"""Tasks that are alike but for where their boxes begin: one of them, and the rest as columns of numbers.

Shards of one step share its operation and kernel. Along each dimension of the grid, those whose blocks have one
extent and meet the blocks that they read in the same way are alike, and a shard is alike to another where that holds
along every dimension: so a step of any number of shards has few kinds of tasks, the inner ones and those at borders.
What no single dimension decides (elements that go by turns, diagonals) is compared task by task.

Source: own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tileweave.graph import Operation
from tileweave.graph.passes.shard import index_of_output
from tileweave.planner.placement import IntArray
from tileweave.planner.tasks.records import Read, ReadPiece, Task
from tileweave.planner.tasks.shards import Enumerator, Shards, StepInput
from tileweave.planner.tasks.sights import Sight
from tileweave.space import AffineMap, Box


@dataclass(frozen=True, slots=True, eq=False)
class PieceColumns:
    """A piece of every task of a kind, as in `ReadPiece`; a row per task.

    Args:
        tasks: the numbers of the producing tasks, or -1.
        boxes: the first points of the boxes.
        regions: those of the regions.
        blocks: those of the blocks.
    """

    tasks: IntArray
    boxes: IntArray
    regions: IntArray
    blocks: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ReadColumns:
    """An input of every task of a kind.

    Args:
        boxes: the first points of the regions that are read.
        pieces: that fill them.
    """

    boxes: IntArray
    pieces: tuple[PieceColumns, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TaskColumns:
    """Tasks of one step that differ in their numbers, shards, machines, and where their boxes begin; a row per task.

    Args:
        sample: the first of them.
        numbers: of the tasks, ascending.
        shards: numbers of the shards in the step.
        machines: where they run.
        index: the first points of the blocks of the index.
        outs: per output, those of the boxes that they make.
        reads: their inputs.
    """

    sample: Task
    numbers: IntArray
    shards: IntArray
    machines: IntArray
    index: IntArray
    outs: tuple[IntArray, ...]
    reads: tuple[ReadColumns, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def made(self) -> IntArray:
        """Per task the number of the producing task of each piece of its reads, or -1."""
        columns = [piece.tasks for read in self.reads for piece in read.pieces]
        return np.stack(columns, 1) if columns else np.zeros((len(self), 0), np.int64)

    @property
    def needs(self) -> IntArray:
        """Per task the numbers of those whose blocks it reads, each once; -1 where there are fewer."""
        found = np.sort(self.made, 1)
        found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
        return found


# ---------------------------------------------------------------------------------------------------------------------
# task by task


def grouped(tasks: Iterable[Task], step_of: Sequence[int]) -> list[TaskColumns]:
    """The kinds of tasks, in the order of their first ones, by comparing task by task.

    Args:
        tasks: any of a plan's.
        step_of: of which step each of the plan's tasks is, by number.
    """
    kinds: dict[Any, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(form(task, step_of), []).append(task)
    return [_stacked(kind) for kind in kinds.values()]


def form(task: Task, step_of: Sequence[int]) -> Hashable:
    """What tasks have in common that are alike; arguments as in `grouped`."""
    reads = tuple(
        (r.name, r.dtype, r.box.shape, tuple(_piece_form(p, r, step_of) for p in r.pieces)) for r in task.reads
    )
    return task.step, task.index.shape, tuple(out.shape for out in task.outs), reads, task.after


def _piece_form(piece: ReadPiece, read: Read, step_of: Sequence[int]) -> Hashable:
    at = piece.box.start  # of another tensor where a read goes through a view
    if len(at) == read.box.rank:
        at = tuple(a - b for a, b in zip(at, read.box.start, strict=True))
    made = step_of[piece.task] if piece.task >= 0 else -1, piece.output, piece.spilled, piece.source
    shapes = piece.box.shape, at, piece.map.matrix, piece.map.offset, piece.region.shape, piece.block.shape
    return *shapes, piece.whole, *made, type(piece.fill), repr(piece.fill)


def _alone(task: Task) -> TaskColumns:
    """The kind of a task that is the only one of its step."""
    reads = tuple([_read_alone(read.box.start, tuple(map(_starts_of, read.pieces))) for read in task.reads])
    number, shard, machine = [_row((one,))[0] for one in (task.number, task.shard, task.machine)]
    outs = tuple([_row(out.start) for out in task.outs])
    return TaskColumns(task, number, shard, machine, _row(task.index.start), outs, reads)


def _stacked(kind: Sequence[Task]) -> TaskColumns:
    sample = kind[0]
    if len(kind) == 1:
        return _alone(sample)
    reads = []
    for k, read in enumerate(sample.reads):
        pieces = []
        for j in range(len(read.pieces)):
            row = [task.reads[k].pieces[j] for task in kind]
            boxes = _starts([p.box for p in row]), _starts([p.region for p in row]), _starts([p.block for p in row])
            pieces.append(PieceColumns(np.array([p.task for p in row], np.int64), *boxes))
        reads.append(ReadColumns(_starts([task.reads[k].box for task in kind]), tuple(pieces)))
    return TaskColumns(
        sample,
        np.array([task.number for task in kind], np.int64),
        np.array([task.shard for task in kind], np.int64),
        np.array([task.machine for task in kind], np.int64),
        _starts([task.index for task in kind]),
        tuple(_starts([task.outs[k] for task in kind]) for k in range(len(sample.outs))),
        tuple(reads),
    )


def _starts(boxes: Sequence[Box]) -> IntArray:
    return np.array([box.start for box in boxes], np.int64).reshape(len(boxes), boxes[0].rank)


_PieceStarts = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _starts_of(piece: ReadPiece) -> _PieceStarts:
    """What a row of `PieceColumns` says."""
    return piece.task, piece.box.start, piece.region.start, piece.block.start


@lru_cache(4096)
def _read_alone(start: tuple[int, ...], pieces: tuple[_PieceStarts, ...]) -> ReadColumns:
    """An input of one task: plans that are not cut have many that are alike, those of other extents the same."""
    columns = [PieceColumns(_row((task,))[0], *map(_row, starts)) for task, *starts in pieces]
    return ReadColumns(_row(start), tuple(columns))


@lru_cache(4096)
def _row(numbers: tuple[int, ...]) -> IntArray:
    """One row: steps that are not cut have many of them, most alike."""
    row = np.array(numbers, np.int64).reshape(1, len(numbers))
    row.flags.writeable = False
    return row


# ---------------------------------------------------------------------------------------------------------------------
# dimension by dimension


def columns_of(tasks: Enumerator) -> list[TaskColumns]:
    """The kinds of a plan's tasks, in the order of their first ones."""
    found, step_of = list[TaskColumns](), tasks.step_of.tolist()
    last = {one.tensor: number for number in range(len(tasks.steps)) for one in tasks.shards(number).inputs}
    for number in range(len(tasks.steps)):
        shards = tasks.shards(number)
        if shards.step.cuts.count == 1:
            found.append(_alone(shards.task(0)))
            continue
        known = _Along(tasks, shards).kinds()
        found += grouped(map(tasks.task, shards.issued.tolist()), step_of) if known is None else known
        tasks.forget(one for one in shards.inputs if last[one.tensor] == number)  # nobody else reads these
    return sorted(found, key=lambda kind: kind.sample.number)


class _Undecided(Exception):
    """No single dimension of the grid decides on something that is read."""


@dataclass(slots=True, eq=False)
class _Row:
    """Numbers that one dimension of the grid decides on.

    Args:
        dim: the dimension, or -1 where none does.
        values: by place along it; one row where none does.
    """

    dim: int
    values: IntArray

    def at(self, places: IntArray) -> IntArray:
        """The values of shards."""
        if self.dim < 0:
            return np.broadcast_to(self.values[0], (len(places), *self.values.shape[1:]))
        return self.values[places[:, self.dim]]


@dataclass(slots=True, eq=False)
class _Part:
    """A part of a tensor through one sight, as the shards of a step read it.

    Args:
        sight: that has it.
        low: per dimension of the tensor, where what is read of it begins.
        extent: how long that is; not positive where nothing is read.
        met: per row of the blocks' tensor, the blocks along it, as `sights.Met` without their extents: what is moved
            by a place with fewer blocks is followed by zeros. None for a source or a constant.
        counts: per row and place, how many.
    """

    sight: Sight
    low: list[_Row]
    extent: list[_Row]
    met: list[_Row] | None
    counts: list[IntArray]


class _Along:
    """The kinds of a step's tasks, where each row of what they read is decided on by one dimension of the grid."""

    def __init__(self, tasks: Enumerator, shards: Shards) -> None:
        self.tasks, self.shards, self.cuts = tasks, shards, shards.step.cuts
        self.grid = self.cuts.grid
        self.keys: list[list[IntArray]] = [[] for _ in self.grid]

    def kinds(self) -> list[TaskColumns] | None:
        """The kinds; None where something is not decided on so."""
        step, shards = self.shards.step, self.shards
        if self.cuts.box.empty:
            return None
        edges = [np.asarray(row, np.int64) for row in self.cuts.cuts]
        if any((np.diff(row) == 0).any() for row in edges):
            return None
        index = [_Row(k, row[:-1]) for k, row in enumerate(edges)]
        for k, row in enumerate(edges):
            self._tell(k, np.diff(row))
        try:
            inputs = [*self._partial(index), *(self._input(one) for one in shards.inputs)]
        except _Undecided:
            return None
        for k in step.accumulated:
            self._tell(k, np.sign(np.arange(self.grid[k]) % step.where.waves[k]))
        outs = [index] * max(1, len(step.outputs) if isinstance(step.node, Operation) else 1)
        if shards.outs and not shards.straight:
            outs = [
                [_Row(-1 if k is None else k, np.asarray(row[:-1] if k is not None else row[:1])) for row, k in both]
                for both in (zip(cuts.cuts, rows, strict=True) for cuts, rows in shards.outs)
            ]
        order = self.tasks.shard_of[shards.issued]
        places = np.stack(np.unravel_index(order, self.grid), 1)
        machines = np.asarray(self.tasks.machines, np.int64)[step.where.machine_of_blocks()[order]]
        made = []
        for members in self._alike(places):
            at, sample = places[members], self.tasks.task(int(shards.issued[members[0]]))
            starts = tuple(_stack(rows, at) for rows in outs)
            reads = (*(self._read(one, at) for one in inputs), *self._accumulators(at, starts))
            about = shards.issued[members], order[members], machines[members]
            made.append(TaskColumns(sample, *about, _stack(index, at), starts, reads))
        return made

    def _tell(self, dim: int, about: IntArray) -> None:
        """Shards are alike only where these, by place along a dimension, are the same."""
        if dim >= 0:
            self.keys[dim].append(about.reshape(len(about), -1))

    def _alike(self, places: IntArray) -> list[IntArray]:
        """The shards of each kind, in their order."""
        number = np.zeros(len(places), np.int64)
        for k, keys in enumerate(self.keys):
            changing = [column for key in keys for column in key.T if (column != column[0]).any()]
            if changing:
                found, kind = np.unique(np.stack(changing, 1), axis=0, return_inverse=True)
                number = number * len(found) + kind.reshape(-1)[places[:, k]]
        order = np.argsort(number, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)

    def _input(self, one: StepInput) -> tuple[list[_Row], list[_Part]]:
        """(where what is read begins, the parts that it comes from)."""
        low, extent = self._region(one)
        if any((row.values <= 0).any() for row in extent):
            raise _Undecided
        for row in extent:
            self._tell(row.dim, row.values)
        view = self.tasks.view(one.tensor)
        if view is None:
            raise _Undecided
        if isinstance(view, Sight):
            return low, [self._part(view, low, low, extent)]
        if len(view.parts) == 1:
            return low, [self._part(view.parts[0][1], low, low, extent)]
        parts = []
        for whole, sight in view.parts:
            first = [_Row(a.dim, np.maximum(a.values, b)) for a, b in zip(low, whole.start, strict=True)]
            rows = zip(low, extent, first, whole.stop, strict=True)
            count = [_Row(a.dim, np.minimum(a.values + n.values, end) - f.values) for a, n, f, end in rows]
            if all((row.values > 0).any() for row in count):
                parts.append(self._part(sight, low, first, count))
        return low, parts

    def _partial(self, index: list[_Row]) -> list[tuple[list[_Row], list[_Part]]]:
        """As `_input`, of each part of a reduction that a combination reads, and of each output."""
        node, found = self.shards.step.node, list[tuple[list[_Row], list[_Part]]]()
        if self.shards.step.stage != "combine" or not isinstance(node, Operation):
            return found
        made = self.tasks.shards(self.tasks.partials[node])
        step, extent = (
            made.step,
            [_Row(row.dim, np.diff(edges)) for row, edges in zip(index, self.cuts.cuts, strict=True)],
        )
        reduced = sorted(node.signature.monoids) if node.signature else []
        if any(not np.diff(row).all() for row in step.cuts.cuts):
            raise _Undecided
        turns = [step.where.waves[k] if k in step.accumulated else 1 for k in reduced]
        for place in product(*(range(n - 1, step.cuts.grid[k], n) for k, n in zip(reduced, turns, strict=True))):
            first = sum(at * made.strides[k] for k, at in zip(reduced, place, strict=True))
            for tensor in step.tensors:
                sight = Sight(AffineMap.identity(len(index)), tensor, None, step, made.numbers[first:])
                found.append((index, [self._part(sight, index, index, extent)]))
        return found

    def _accumulators(self, places: IntArray, outs: Sequence[IntArray]) -> Iterable[ReadColumns]:
        """What shards that are alike add to: the blocks of the wave before."""
        step, before = self.shards.step, places.copy()
        borrows = np.ones(len(places), bool)
        for k in reversed(step.accumulated):
            count = step.where.waves[k]
            at_first = places[:, k] % count == 0
            before[:, k] += borrows * np.where(at_first, count - 1, -1)
            borrows &= at_first
        if borrows.any():
            return
        numbers = np.asarray(self.shards.numbers, np.int64)[before @ np.array(self.shards.strides, np.int64)]
        for starts in outs:
            yield ReadColumns(starts, (PieceColumns(numbers, starts, starts, starts),))

    def _region(self, one: StepInput) -> tuple[list[_Row], list[_Row]]:
        """(first points, extents) of what an input reads, row by row."""
        rank = len(one.tensor.shape)
        low, extent = [_NOWHERE] * rank, [_NOWHERE] * rank
        edges = [np.asarray(row, np.int64) for row in self.cuts.cuts]
        for k, count in enumerate(self.grid):
            if count == 1 and k:
                continue
            boxes = [np.broadcast_to([row[0], row[1] - row[0]], (count, 2)) for row in edges]
            boxes[k] = np.stack([edges[k][:-1], np.diff(edges[k])], 1)
            for r, values in enumerate(self._regions(one, np.stack(boxes, 1))):
                if (values == values[0]).all():
                    if low[r] is _NOWHERE:
                        low[r], extent[r] = _Row(-1, values[:1, 0]), _Row(-1, values[:1, 1])
                    continue
                if low[r].dim >= 0:
                    raise _Undecided
                low[r], extent[r] = _Row(k, values[:, 0]), _Row(k, values[:, 1])
        return low, extent

    def _regions(self, one: StepInput, boxes: IntArray) -> IntArray:
        """What an input reads for blocks of the index; (first point, extent) by row and block, as boxes by block."""
        node, step = self.shards.step.node, self.shards.step
        if step.stage == "combine" and isinstance(node, Operation):
            wanted = [Box(tuple(low), tuple(extent)) for low, extent in boxes.transpose(0, 2, 1).tolist()]
            found = [index_of_output(node, step.outputs[0], box) for box in wanted]
            seen = found if one.region is None else list(map(one.region, found))
            return np.array([(box.start, box.shape) for box in seen], np.int64).transpose(2, 0, 1)
        if one.region is None:
            return boxes.transpose(1, 0, 2)
        if not isinstance(node, Operation) or node.signature is None:
            raise _Undecided
        projection = node.signature.input(one.name)
        back = projection.span(node.index).start
        matrix = np.array(projection.map.matrix, np.int64).reshape(len(back), boxes.shape[1])
        reach = boxes[:, :, 1] - 1
        low = boxes[:, :, 0] @ matrix.T + reach @ np.minimum(matrix, 0).T
        low += np.array(projection.map.offset, np.int64) - np.array(back, np.int64)
        own = [(n - 1) * step if n else 0 for n, step in zip(projection.shape, projection.stride, strict=True)]
        extent = 1 + reach @ np.abs(matrix).T + np.array(own, np.int64)
        extent[:, [n == 0 for n in projection.shape]] = 0
        return np.stack([low.T, extent.T], 2)

    def _part(self, sight: Sight, read: list[_Row], low: list[_Row], extent: list[_Row]) -> _Part:
        """A part of what is read; shards are alike where it lies alike, and meets blocks alike."""
        for a, b, n in zip(read, low, extent, strict=True):
            self._tell(b.dim, np.where(n.values > 0, b.values - a.values, 0))
            self._tell(n.dim, np.maximum(n.values, 0))
        turned = not sight.same and (sight.made is not None or sight.source is not None)
        if turned and any((row.values == 1).any() for row in extent):
            raise _Undecided  # the map of such a piece may be another one
        if sight.made is None:
            return _Part(sight, low, extent, None, [])
        if not sight.apart:
            raise _Undecided
        rows, counts = [], []
        for row, dim in enumerate(sight.dims):
            by, first = (-1, 0) if dim is None else (low[dim].dim, read[dim].values)
            begin, count = (_ZERO, _ZERO + 1) if dim is None else (low[dim].values, extent[dim].values)
            known, met = _met(sight, row, begin, count)
            if turned and (met[:, :, 2] == 1).any():
                raise _Undecided
            met_of_read = met[:, :, [1, 2, 4, 6]]
            met_of_read[:, :, 0] -= np.where(met[:, :, 2] > 0, np.reshape(first, (-1, 1)), 0)
            self._tell(by, np.concatenate([known[:, None], met_of_read.reshape(len(known), -1)], 1))
            rows.append(_Row(by, met[:, :, [0, 1, 3, 5]]))
            counts.append(known)
        return _Part(sight, low, extent, rows, counts)

    def _read(self, one: tuple[list[_Row], list[_Part]], places: IntArray) -> ReadColumns:
        """An input of shards that are alike."""
        low, parts = one
        pieces: list[PieceColumns] = []
        for part in parts:
            if all(row.at(places[:1])[0] > 0 for row in part.extent):
                pieces += self._pieces(part, places)
        return ReadColumns(_stack(low, places), tuple(pieces))

    def _pieces(self, part: _Part, places: IntArray) -> Iterable[PieceColumns]:
        sight, boxes, count = part.sight, _stack(part.low, places), len(places)
        if part.met is None:
            regions = np.zeros((count, sight.whole.rank), np.int64)
            if sight.source is not None:
                last = boxes + _stack(part.extent, places) - 1
                matrix = np.array(sight.map.matrix, np.int64).reshape(regions.shape[1], boxes.shape[1])
                regions = np.maximum(matrix, 0) @ boxes.T + np.minimum(matrix, 0) @ last.T
                regions = regions.T + np.array(sight.map.offset, np.int64)
            blocks = np.broadcast_to(np.array(sight.whole.start, np.int64), regions.shape)
            yield PieceColumns(np.full(count, -1, np.int64), boxes, regions, blocks)
            return
        numbers, tables = np.asarray(sight.numbers, np.int64), [row.at(places) for row in part.met]
        first = [0 if row.dim < 0 else places[0, row.dim] for row in part.met]
        for each in product(*(range(counts[at]) for counts, at in zip(part.counts, first, strict=True))):
            met = np.stack([table[:, k] for table, k in zip(tables, each, strict=True)], 1)
            begins = boxes.copy()
            for row, dim in enumerate(sight.dims):
                if dim is not None:
                    begins[:, dim] = met[:, row, 1]
            yield PieceColumns(numbers[met[:, :, 0].sum(1)], begins, met[:, :, 2], met[:, :, 3])


def _met(sight: Sight, row: int, low: IntArray, extent: IntArray) -> tuple[IntArray, IntArray]:
    """The blocks along a row that ranges meet: (how many, per range and block what `Sight.along` says, or zeros)."""
    cuts, b, dim = np.asarray(sight.cuts.cuts[row], np.int64), sight.map.offset[row], sight.dims[row]
    c = 0 if dim is None else sight.map.matrix[row][dim]
    if abs(c) > 1 or (np.diff(cuts) == 0).any():  # it passes over some blocks
        spans = zip(low.tolist(), extent.tolist(), strict=True)
        found = [list(sight.along(row, *span)) if span[1] > 0 else [] for span in spans]
        out = np.zeros((len(found), max(map(len, found)), 7), np.int64)
        for at, met in enumerate(found):
            out[at, : len(met)] = np.array(met, np.int64).reshape(len(met), 7)
        return np.array(list(map(len, found)), np.int64), out
    last = low + extent - 1
    least, most = np.minimum(c * low, c * last) + b, np.maximum(c * low, c * last) + b
    begins = np.maximum(np.searchsorted(cuts, least, "right") - 1, 0)
    ends = np.minimum(np.searchsorted(cuts, most + 1, "left"), len(cuts) - 1)
    count = np.where(extent > 0, ends - begins, 0)
    places = begins[:, None] + np.arange(int(count.max(initial=0)))
    there = places < (begins + count)[:, None]
    places = np.where(there, places, 0)
    begin, end = cuts[places], cuts[places + 1]
    near, far = np.broadcast_to(low[:, None], there.shape), np.broadcast_to(last[:, None], there.shape)
    if c:
        one, other = (begin - b, end - 1 - b) if c > 0 else (b - end + 1, b - begin)
        near, far = np.maximum(one, near), np.minimum(other, far)
    seen = np.minimum(c * near, c * far) + b
    about = sight.steps[row] * places, near, far - near + 1, seen, abs(c) * (far - near) + 1, begin, end - begin
    return count, np.stack(about, 2) * there[:, :, None]


_ZERO = np.zeros(1, np.int64)
_NOWHERE = _Row(-1, np.zeros(0, np.int64))


def _stack(rows: Sequence[_Row], places: IntArray) -> IntArray:
    """A column per row."""
    if not rows:
        return np.zeros((len(places), 0), np.int64)
    return np.stack([row.at(places) for row in rows], 1)
