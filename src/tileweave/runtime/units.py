"""What one message to a cluster carries: the jobs of one machine that can run in a row, and what they exchange.

A cluster charges a fixed price per task, far above that of a small shard. So jobs of one machine are put together as
long as no job waits for anything that the first of them does not wait for, and as long as the machine's memory
allows. Blocks that only such a row reads never leave its process. Where only a part of a block crosses machines, the
job that makes the block cuts the part out, so that no more than the part travels.

Source: own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tileweave.lower.reads import Fetch, Part, make_part
from tileweave.runtime.prepare import Job, Prepared
from tileweave.space import Box

__all__ = ["Unit", "left_bytes", "units"]

UNIT_SECONDS = 0.25
"""Jobs are put together up to this much estimated work: what a lost worker costs, and what a progress bar shows."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Jobs of one machine in a row, or one job that stores.

    Args:
        jobs: in order; a part of their reads refers, by `Part.task`, to a block of this unit (numbers below the count
            of jobs) or to an argument (numbers from there on).
        arguments: (task, k): the k-th value that a task gives, 0 being its block; or (-1 - source, region).
        keep: per job, whether its whole block is given.
        given: per job, (output, region) of what is given beside its block, in coordinates of the output's tensor.
        drops: per job, the blocks of this unit that nobody needs after it.
        needs: numbers of the units that come before it.
        releases: numbers of the tasks of other units whose blocks it reads.
        need_bytes: the most that it holds while it runs.
        out_bytes: what it leaves behind.
    """

    jobs: tuple[Job, ...]
    arguments: tuple[tuple[int, Any], ...]
    keep: tuple[bool, ...]
    given: tuple[tuple[tuple[str, Box], ...], ...]
    drops: tuple[tuple[int, ...], ...]
    needs: tuple[int, ...]
    releases: tuple[int, ...]
    need_bytes: int
    out_bytes: int

    @property
    def machine(self) -> int:
        """Where it runs."""
        return self.jobs[0].machine

    @property
    def stores(self) -> bool:
        """Whether it is a store, which no worker runs."""
        return self.jobs[0].sink >= 0

    @property
    def width(self) -> int:
        """How many units like it may run at once."""
        return max(job.width for job in self.jobs)

    @property
    def results(self) -> list[tuple[int, int]]:
        """(task, k) of every value that it gives, in order."""
        out: list[tuple[int, int]] = []
        for job, keep, given in zip(self.jobs, self.keep, self.given, strict=True):
            out += [(job.number, 0)] if keep else []
            out += [(job.number, k) for k in range(1, 1 + len(given))]
        return out


def units(prepared: Prepared, limits_bytes: Sequence[int]) -> tuple[Unit, ...]:
    """The units of a plan, in an order in which they may run one after the other.

    Args:
        prepared: the plan.
        limits_bytes: per machine, what it may hold. Where rows would hold more, every job stays alone.
    """
    rows = _units(prepared, _rows(prepared.jobs))
    if all(peak <= limit for peak, limit in zip(_peaks(rows, len(limits_bytes)), limits_bytes, strict=True)):
        return rows
    return _units(prepared, [[job] for job in prepared.jobs])


def _rows(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs grouped into rows. A row that another row reads takes no further job, so rows never wait in a circle."""
    rows: list[list[Job]] = []
    before: list[int] = []  # per row, the rows that it waits for, however far back, as bits
    seconds: list[float] = []
    row_of: dict[int, int] = {}
    growing: dict[int, int] = {}  # machine -> row
    rows_of_step: defaultdict[int, set[int]] = defaultdict(set)

    for job in jobs:
        waits = {row_of[number] for number in job.needs}.union(*(rows_of_step[step] for step in job.after))
        mine = growing.get(job.machine, -1)
        if getattr(job.node, "after", ()):
            growing.clear()  # a strict happens-before: nothing that came earlier grows past it
            mine = -1
        others = 0
        for row in waits - {mine}:
            others |= 1 << row | before[row]
            if job.sink < 0 and growing.get(rows[row][0].machine) == row:
                del growing[rows[row][0].machine]
        joins = job.sink < 0 and mine >= 0 and not others & ~before[mine]
        if joins and seconds[mine] + job.seconds <= UNIT_SECONDS:
            rows[mine].append(job)
            seconds[mine] += job.seconds
            row_of[job.number] = mine
            rows_of_step[job.step].add(mine)
            continue
        if mine in waits:
            others |= 1 << mine | before[mine]
        row_of[job.number] = len(rows)
        rows_of_step[job.step].add(len(rows))
        if job.sink < 0:
            growing[job.machine] = len(rows)
        rows.append([job])
        before.append(others)
        seconds.append(job.seconds)
    return rows


class _Exchange:
    """Who gives what to whom: filled while the rows' reads are gone through."""

    def __init__(self, jobs: Sequence[Job], rows: Sequence[Sequence[Job]]) -> None:
        self.jobs = jobs
        self.place = {job.number: (row, k) for row, members in enumerate(rows) for k, job in enumerate(members)}
        self.keep = [False] * len(jobs)
        self.given: list[dict[tuple[str, Box], int]] = [{} for _ in jobs]  # (output, region) -> k

    def argument(self, part: Part, reader: Job) -> tuple[tuple[int, Any], Box, str]:
        """(the value that a part is read from, the box that it holds, which output of it)."""
        if part.source >= 0:
            return (-1 - part.source, part.hold), part.hold, ""
        region = part.map.cover(part.box)
        if self.jobs[part.task].machine == reader.machine or (region == part.hold and not part.output):
            self.keep[part.task] = True
            return (part.task, 0), part.hold, part.output
        given = self.given[part.task]
        return (part.task, given.setdefault((part.output, region), 1 + len(given))), region, ""


def _units(prepared: Prepared, rows: Sequence[Sequence[Job]]) -> tuple[Unit, ...]:
    exchange = _Exchange(prepared.jobs, rows)
    rows_of_step: defaultdict[int, set[int]] = defaultdict(set)
    for number, row in enumerate(rows):
        for job in row:
            rows_of_step[job.step].add(number)
    read = [_reads(number, row, exchange) for number, row in enumerate(rows)]
    out = []
    for number, (row, (jobs, arguments)) in enumerate(zip(rows, read, strict=True)):
        keep = tuple(exchange.keep[job.number] for job in row)
        given = tuple(tuple(exchange.given[job.number]) for job in row)
        drops = _drops(jobs)
        need_bytes, out_bytes = _bytes(jobs, keep, given, drops)
        waits = {exchange.place[n][0] for job in row for n in job.needs}
        waits = waits.union(*(rows_of_step[step] for job in row for step in job.after)) - {number}
        releases = tuple(sorted({where for where, _ in arguments if where >= 0}))
        needs = tuple(sorted(waits))
        out.append(Unit(jobs, arguments, keep, given, drops, needs, releases, need_bytes, out_bytes))
    return tuple(out)


def _reads(number: int, row: Sequence[Job], exchange: _Exchange) -> tuple[tuple[Job, ...], tuple[tuple[int, Any], ...]]:
    """The row's jobs with reads that refer to the row's own blocks and arguments, and these arguments."""
    known: dict[tuple[int, Any], int] = {}

    def read(part: Part, job: Job) -> Part:
        if part.task < 0 and part.source < 0:
            return part
        if part.task >= 0 and exchange.place[part.task][0] == number:
            return replace(part, task=exchange.place[part.task][1])
        argument, hold, output = exchange.argument(part, job)
        k = known.setdefault(argument, len(row) + len(known))
        return make_part(part.box, part.place, part.map, hold, task=k, output=output)

    def fetch(one: Fetch, job: Job) -> Fetch:
        return replace(one, parts=tuple(read(part, job) for part in one.parts))

    jobs = tuple(replace(job, fetches=tuple(fetch(one, job) for one in job.fetches)) for job in row)
    return jobs, tuple(known)


def _drops(jobs: Sequence[Job]) -> tuple[tuple[int, ...], ...]:
    """Per job, the blocks of the row that no later job of the row reads."""
    last = list(range(len(jobs)))
    for k, job in enumerate(jobs):
        for fetch in job.fetches:
            for part in fetch.parts:
                if 0 <= part.task < len(jobs):
                    last[part.task] = k
    return tuple(tuple(b for b, at in enumerate(last) if at == k) for k in range(len(jobs)))


def left_bytes(job: Job, keep: bool, given: Sequence[tuple[str, Box]]) -> int:
    """The bytes that a job leaves for other units."""
    itemsizes = {name: itemsize for name, _, itemsize in job.outs}
    itemsizes[""] = job.outs[0][2]
    return job.out_bytes * keep + sum(itemsizes[output] * region.size for output, region in given)


def _bytes(
    jobs: Sequence[Job],
    keep: Sequence[bool],
    given: Sequence[Sequence[tuple[str, Box]]],
    drops: Sequence[Sequence[int]],
) -> tuple[int, int]:
    """(the most that a row holds, what it leaves)."""
    held = most = total = 0
    for k, job in enumerate(jobs):
        left = left_bytes(job, keep[k], given[k])
        total += left
        cut_out = left - job.out_bytes * keep[k]
        most = max(most, held + job.need_bytes + cut_out)
        held += job.out_bytes + cut_out - sum(jobs[b].out_bytes for b in drops[k] if not keep[b])
    return most, total


def _peaks(made: Sequence[Unit], machines: int) -> list[int]:
    """Per machine, the most that is held when the units run one after the other."""
    readers: dict[int, int] = {}
    for unit in made:
        for task in unit.releases:
            readers[task] = readers.get(task, 0) + 1
    left: dict[int, tuple[int, int]] = {}  # task -> (machine, bytes)
    held, peaks = [0] * machines, [0] * machines
    for unit in made:
        peaks[unit.machine] = max(peaks[unit.machine], held[unit.machine] + unit.need_bytes)
        held[unit.machine] += unit.out_bytes
        for job, keep, given in zip(unit.jobs, unit.keep, unit.given, strict=True):
            left[job.number] = unit.machine, left_bytes(job, keep, given)
        for task in unit.releases:
            readers[task] -= 1
            if not readers[task]:
                held[left[task][0]] -= left[task][1]
    return peaks
