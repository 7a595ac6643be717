"""What one message to a cluster carries: the tasks of one machine that can run in a row, and what they exchange.

A cluster charges a fixed price per task, far above that of a small shard, and one per byte that a task leaves for the
next. So tasks of one machine are put together as long as no task waits for anything that the first of them does not
wait for, and as long as the machine's memory allows. Blocks that only such a row reads never leave its process. Where
only a part of a block crosses machines, the task that makes the block cuts the part out, so that no more than the part
travels. Machines that would exchange a row per step, as those of a stencil do, exchange the rows of some steps at once
(`planner.tasks.margins`).

Source: own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tileweave.graph import Operation
from tileweave.planner import Read, ReadPiece, Task
from tileweave.planner.tasks import widened
from tileweave.runtime.prepare import Prepared, with_tasks
from tileweave.runtime.resume import remaining
from tileweave.space import Box

UNIT_SECONDS = 0.25
"""Tasks are put together up to this much estimated work: what a lost worker costs, and what a progress bar shows."""
PASSED_BYTES_PER_SECOND = 1 << 28
"""How fast a block goes from one process to the next on a busy node; what is used in less time joins, too."""


@dataclass(frozen=True, slots=True)
class Gives:
    """What a task of a unit leaves.

    Args:
        whole: whether its whole block is given.
        parts: (output, region) of what is given beside it, in coordinates of the output's tensor.
        drops: the blocks of the unit that nobody needs after the task.
    """

    whole: bool
    parts: tuple[tuple[str, Box], ...]
    drops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """Tasks of one machine in a row, or one task that stores.

    Args:
        tasks: in order; a piece that they read refers, by its `task`, to a block of this unit (numbers below the count
            of tasks) or to an argument (numbers from there on).
        arguments: (task, k): the k-th value that a task gives, 0 being its block; or (-1 - source, region).
        makers: per argument, the machine that makes it; -1 for a source.
        gives: per task.
        needs: numbers of the units that come before it.
        releases: numbers of the tasks of other units whose blocks it reads.
        need_bytes: the most that it holds while it runs.
        out_bytes: what it leaves behind.
        stores: whether it is a store, which no worker runs.
    """

    tasks: tuple[Task, ...]
    arguments: tuple[tuple[int, Any], ...]
    makers: tuple[int, ...]
    gives: tuple[Gives, ...]
    needs: tuple[int, ...]
    releases: tuple[int, ...]
    need_bytes: int
    out_bytes: int
    stores: bool

    @property
    def machine(self) -> int:
        """Where it runs."""
        return self.tasks[0].machine

    def machine_of(self, piece: ReadPiece) -> int:
        """The machine that holds a piece of its reads; -1 for a source."""
        return self.machine if piece.task < len(self.tasks) else self.makers[piece.task - len(self.tasks)]

    @property
    def results(self) -> list[tuple[int, int]]:
        """(task, k) of every value that it gives, in order."""
        out: list[tuple[int, int]] = []
        for task, gives in zip(self.tasks, self.gives, strict=True):
            out += [(task.number, 0)] if gives.whole else []
            out += [(task.number, k) for k in range(1, 1 + len(gives.parts))]
        return out


def units(
    prepared: Prepared,
    limits_bytes: Sequence[int],
    stored: frozenset[int] = frozenset(),
    finished: Sequence[Collection[Box]] = (),
) -> tuple[Prepared, tuple[Unit, ...]]:
    """The units of a plan, in an order in which they may run one after the other, and the plan whose tasks they are:
    the same, or with margins where that saves messages, or what is left of either.

    Args:
        prepared: the plan.
        limits_bytes: per machine, what it may hold. Where rows would hold more, every task stays alone.
        stored: numbers of the steps whose stores workers do.
        finished: per sink, the parts that an earlier run has stored.
    """
    wide = widened(prepared.tasks)
    for whole in (prepared,) if wide is None else (with_tasks(prepared, wide, margins=True), prepared):
        one = remaining(whole, finished)
        rows = _units(one, _rows(one, stored), stored)
        peaks = _peaks(one, rows, len(limits_bytes))
        if all(peak <= limit for peak, limit in zip(peaks, limits_bytes, strict=True)):
            return one, rows
    return one, _units(one, [[task] for task in one.tasks], stored)


def _rows(prepared: Prepared, stored: frozenset[int]) -> list[list[Task]]:
    """Tasks grouped into rows. A row that another row reads takes no further task, so rows never wait in a circle."""
    rows: list[list[Task]] = []
    before: list[int] = []  # per row, the rows that it waits for, however far back, as bits
    seconds: list[float] = []
    awaited: list[int] = []  # per row, how many reads of its blocks are still to come
    row_of: dict[int, int] = {}
    growing: dict[int, int] = {}  # machine -> row
    rows_of_step: defaultdict[int, set[int]] = defaultdict(set)

    for task in prepared.tasks:
        step, stores = prepared.steps[task.step], _by_driver(prepared, task, stored)
        waits = {row_of[number] for number in task.needs}.union(*(rows_of_step[n] for n in task.after))
        mine = growing.get(task.machine, -1)
        if getattr(step.node, "after", ()):
            growing.clear()  # a strict happens-before: nothing that came earlier grows past it
            mine = -1
        others = 0
        for row in waits - {mine}:
            others |= 1 << row | before[row]
            if not stores and growing.get(rows[row][0].machine) == row:
                del growing[rows[row][0].machine]
        joins = not stores and mine >= 0 and not others & ~before[mine]
        lasts = step.costs.seconds * prepared.width(task.step) / step.cuts.count
        own = [number for number in task.needs if row_of[number] == mine]
        passing = sum(prepared.out_bytes[number] for number in own) / PASSED_BYTES_PER_SECOND
        last = joins and awaited[mine] == len(own)  # nobody else waits for the row
        if joins and (seconds[mine] + lasts <= UNIT_SECONDS or (last and lasts <= passing)):
            rows[mine].append(task)
            seconds[mine] += lasts
            awaited[mine] += prepared.readers[task.number] - len(own)
            row_of[task.number] = mine
            rows_of_step[task.step].add(mine)
            continue
        if mine in waits:
            others |= 1 << mine | before[mine]
        row_of[task.number] = len(rows)
        rows_of_step[task.step].add(len(rows))
        if not stores:
            growing[task.machine] = len(rows)
        rows.append([task])
        before.append(others)
        seconds.append(lasts)
        awaited.append(prepared.readers[task.number])
    return rows


def _by_driver(prepared: Prepared, task: Task, stored: frozenset[int]) -> bool:
    """Whether a task stores, and the driver does so."""
    return prepared.steps[task.step].stage == "store" and task.step not in stored


class _Exchange:
    """Who gives what to whom: filled while the rows' reads are gone through."""

    def __init__(self, prepared: Prepared, rows: Sequence[Sequence[Task]]) -> None:
        self.prepared = prepared
        self.sources = {source: number for number, source in enumerate(prepared.sources)}
        self.place = {task.number: (row, k) for row, members in enumerate(rows) for k, task in enumerate(members)}
        self.keep = [False] * len(prepared.tasks)
        self.given: list[dict[tuple[str, Box], int]] = [{} for _ in prepared.tasks]  # (output, region) -> k

    def argument(self, piece: ReadPiece, reader: Task) -> tuple[tuple[int, Any], Box]:
        """(the value that a piece is read from, the box that it holds)."""
        if piece.source is not None:
            return (-1 - self.sources[piece.source], piece.region), piece.region
        made = self.prepared.tasks[piece.task]
        if made.machine == reader.machine or (piece.region == piece.block and len(made.outs) == 1):
            self.keep[piece.task] = True
            return (piece.task, 0), piece.block
        given = self.given[piece.task]
        return (piece.task, given.setdefault((piece.output, piece.region), 1 + len(given))), piece.region


def _units(prepared: Prepared, rows: Sequence[Sequence[Task]], stored: frozenset[int]) -> tuple[Unit, ...]:
    exchange = _Exchange(prepared, rows)
    rows_of_step: defaultdict[int, set[int]] = defaultdict(set)
    for number, row in enumerate(rows):
        for task in row:
            rows_of_step[task.step].add(number)
    read = [_reads(number, row, exchange) for number, row in enumerate(rows)]
    out = []
    for number, (row, (made, arguments)) in enumerate(zip(rows, read, strict=True)):
        gives = tuple(
            Gives(exchange.keep[task.number], tuple(exchange.given[task.number]), drops)
            for task, drops in zip(row, _drops(made), strict=True)
        )
        need_bytes, out_bytes = _bytes(prepared, row, gives)
        waits = {exchange.place[n][0] for task in row for n in task.needs}
        waits = waits.union(*(rows_of_step[step] for task in row for step in task.after)) - {number}
        releases = tuple(sorted({where for where, _ in arguments if where >= 0}))
        stores = _by_driver(prepared, row[0], stored)
        makers = tuple(prepared.tasks[where].machine if where >= 0 else -1 for where, _ in arguments)
        out.append(Unit(made, arguments, makers, gives, tuple(sorted(waits)), releases, need_bytes, out_bytes, stores))
    return tuple(out)


def _reads(
    number: int, row: Sequence[Task], exchange: _Exchange
) -> tuple[tuple[Task, ...], tuple[tuple[int, Any], ...]]:
    """The row's tasks with reads that refer to the row's own blocks and arguments, and these arguments."""
    known: dict[tuple[int, Any], int] = {}

    def refer(piece: ReadPiece, task: Task) -> ReadPiece:
        if piece.constant:
            return piece
        if piece.task >= 0 and exchange.place[piece.task][0] == number:
            return replace(piece, task=exchange.place[piece.task][1])
        argument, hold = exchange.argument(piece, task)
        return replace(piece, task=known.setdefault(argument, len(row) + len(known)), source=None, block=hold)

    def read(one: Read, task: Task) -> Read:
        return replace(one, pieces=tuple(refer(piece, task) for piece in one.pieces))

    return tuple(replace(task, reads=tuple(read(one, task) for one in task.reads)) for task in row), tuple(known)


def _drops(tasks: Sequence[Task]) -> tuple[tuple[int, ...], ...]:
    """Per task, the blocks of the row that no later task of the row reads."""
    last = list(range(len(tasks)))
    for k, task in enumerate(tasks):
        for read in task.reads:
            for piece in read.pieces:
                if 0 <= piece.task < len(tasks):
                    last[piece.task] = k
    return tuple(tuple(b for b, at in enumerate(last) if at == k) for k in range(len(tasks)))


def left_bytes(prepared: Prepared, task: Task, gives: Gives) -> int:
    """The bytes that a task leaves for other units."""
    step = prepared.steps[task.step]
    whole = prepared.out_bytes[task.number] if gives.whole else 0
    if not isinstance(step.node, Operation):
        return whole
    types = step.node.output_types
    return whole + sum(types[output].dtype.itemsize * region.size for output, region in gives.parts)


def _bytes(prepared: Prepared, row: Sequence[Task], gives: Sequence[Gives]) -> tuple[int, int]:
    """(the most that a row holds, what it leaves)."""
    held = most = total = 0
    blocks = [prepared.out_bytes[task.number] for task in row]
    for task, given, block in zip(row, gives, blocks, strict=True):
        left = left_bytes(prepared, task, given)
        total += left
        cut_out = left - block * given.whole
        most = max(most, held + prepared.need_bytes[task.number] + cut_out)
        held += block + cut_out - sum(blocks[b] for b in given.drops if not gives[b].whole)
    return most, total


def _peaks(prepared: Prepared, made: Sequence[Unit], machines: int) -> list[int]:
    """Per machine, the most that is held when the units run one after the other."""
    readers: dict[int, int] = {}
    for unit in made:
        for number in unit.releases:
            readers[number] = readers.get(number, 0) + 1
    left: dict[int, tuple[int, int]] = {}  # task -> (machine, bytes)
    held, peaks = [0] * machines, [0] * machines
    for unit in made:
        peaks[unit.machine] = max(peaks[unit.machine], held[unit.machine] + unit.need_bytes)
        held[unit.machine] += unit.out_bytes
        for task, gives in zip(unit.tasks, unit.gives, strict=True):
            left[task.number] = unit.machine, left_bytes(prepared, task, gives)
        for number in unit.releases:
            readers[number] -= 1
            if not readers[number]:
                held[left[number][0]] -= left[number][1]
    return peaks
