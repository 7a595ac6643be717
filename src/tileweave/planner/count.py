"""Memory by counting: every task of a plan, one by one.

Tasks are issued in plan order, blocks are freed after their last reader. The peak is that of issuing the tasks one
after the other, which is the order that a runtime may always fall back to, so a budget that holds here can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import partition_of, takes_boxes
from tileweave.planner.tasks import Task, TaskColumns, kinds_of, tasks

EFFICIENCY = 0.7
"""The fraction of the peak rates that a task is expected to reach."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskMemory:
    """What tasks hold, by number.

    Args:
        steps: of which step each is.
        machines: where each runs.
        readers: how many tasks read its block.
        out_bytes: of its block, where it waits in memory.
        need_bytes: the most that it holds while it runs, its block included.
        held_bytes: what its machine holds then, where tasks are issued one after the other.
    """

    steps: IntArray
    machines: IntArray
    readers: IntArray
    out_bytes: IntArray
    need_bytes: IntArray
    held_bytes: IntArray

    def peaks(self, count: int) -> IntArray:
        """The most that each of so many machines holds."""
        out = np.zeros(count, np.int64)
        np.maximum.at(out, self.machines, self.held_bytes)
        return out


def task_memory(
    steps: Sequence[Step], kinds: Sequence[TaskColumns], temporary_bytes: IntArray | None = None
) -> TaskMemory:
    """What a plan's tasks hold, which are issued in the order of their numbers.

    Args:
        steps: of the plan.
        kinds: its tasks.
        temporary_bytes: that each newly holds to read its inputs, by number; None: as much as a plan counts.
    """
    count = sum(map(len, kinds))
    step, machine, readers, out, need = (np.zeros(count, np.int64) for _ in range(5))
    last = np.full(count, -1, np.int64)
    for kind in kinds:
        step[kind.numbers], machine[kind.numbers] = kind.sample.step, kind.machines
    made, reader = list[IntArray](), list[IntArray]()
    alone, kinds = [kind.sample for kind in kinds if len(kind) == 1], [kind for kind in kinds if len(kind) > 1]
    for task in alone:  # of a plan that is not cut, all are
        size, number = block_bytes(steps[task.step], task), task.number
        more = _newly_held(steps[task.step], task, machine) if temporary_bytes is None else temporary_bytes[number]
        need[number], out[number] = size + more, 0 if steps[task.step].spilled else size
        made.append(np.array(task.needs, np.int64))
        reader.append(np.full(len(task.needs), number, np.int64))
    for kind in kinds:
        size = block_bytes(steps[kind.sample.step], kind.sample)
        more = None if temporary_bytes is None else temporary_bytes[kind.numbers]
        need[kind.numbers] = size + (_temporary_bytes(steps[kind.sample.step], kind, machine) if more is None else more)
        out[kind.numbers] = 0 if steps[kind.sample.step].spilled else size
        needs = kind.needs
        if needs.size:
            made.append(needs.reshape(-1))
            reader.append(np.repeat(kind.numbers, needs.shape[1]))
    if made:
        needs, by = np.concatenate(made), np.concatenate(reader)
        there = needs >= 0
        readers = np.bincount(needs[there], minlength=count)
        np.maximum.at(last, needs[there], by[there])
    read = np.flatnonzero(readers)
    events = np.concatenate([read, last[read]])  # a block comes when its task is done, and goes after its last reader
    keys = np.concatenate([machine[read]] * 2) * (count + 1) + events
    order = np.argsort(keys, kind="stable")
    held = np.concatenate([[0], np.cumsum(np.concatenate([out[read], -out[read]])[order])])
    before = held[np.searchsorted(keys[order], machine * (count + 1) + np.arange(count))]
    return TaskMemory(step, machine, readers, out, need, before + need)


def counted_peaks(plan: Plan, made: Sequence[Task] | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the most that each machine holds, the most that any machine holds while each step runs).

    Args:
        plan: any.
        made: the tasks that are run, its own by default.
    """
    resident, most = np.array(resident_bytes(plan), np.int64), np.zeros(len(plan.steps), np.int64)
    found = task_memory(plan.steps, kinds_of(tasks(plan) if made is None else made))
    np.maximum.at(most, found.steps, found.held_bytes + resident[found.machines])
    return tuple((resident + found.peaks(len(resident))).tolist()), tuple(most.tolist())


def resident_bytes(plan: Plan) -> tuple[int, ...]:
    """Per machine, what it holds of sources that are resident."""
    out, order = [0] * len(plan.machines), plan.machines.order
    for source, home in plan.residents.items():
        cuts = partition_of(source.type.box, home)
        for k in range(cuts.count):
            for machine in home.machines(cuts.place(k)):
                out[order[machine]] += cuts.block(k).size * source.type.dtype.itemsize
    return tuple(out)


def _newly_held(step: Step, task: Task, machine: IntArray) -> int:
    """`_temporary_bytes` of one task."""
    total = 0
    for read in task.reads:
        sizes = [
            piece.region.size * read.dtype.itemsize
            for piece in read.pieces
            if not piece.constant and (piece.fetched or machine[piece.task] != task.machine)
        ]
        gathered = len(read.pieces) != 1 and not takes_boxes(step.node)
        total += max(sizes, default=0) + (read.size_bytes if gathered else 0)
    return total


def _temporary_bytes(step: Step, kind: TaskColumns, machine: IntArray) -> IntArray | int:
    """The bytes that a machine newly holds to read the inputs of tasks, while each runs.

    A region in one block of the machine's own is used where it lies. Anything else that comes in one piece is held as
    it comes, gaps of a strided read included; several pieces are gathered into a dense array, one at a time. A sink
    that takes any box is given its pieces one by one.

    Args:
        step: of the tasks.
        kind: the tasks.
        machine: where each task of the plan runs, by number.
    """
    total: IntArray | int = 0
    for read, columns in zip(kind.sample.reads, kind.reads, strict=True):
        most = np.zeros(len(kind), np.int64)  # of a piece that brings something new: no own block, no constant
        for piece, column in zip(read.pieces, columns.pieces, strict=True):
            if piece.constant:
                continue
            size = piece.region.size * read.dtype.itemsize
            if piece.fetched:
                most = np.maximum(most, size)
            else:
                most = np.maximum(most, np.where(machine[column.tasks] == kind.machines, 0, size))
        gathered = len(read.pieces) != 1 and not takes_boxes(step.node)
        total = total + most + (read.size_bytes if gathered else 0)
    return total


def block_bytes(step: Step, task: Task) -> int:
    """The bytes of what a task makes."""
    if step.stage == "store":
        return 0
    return sum(out.size * tensor.dtype.itemsize for out, tensor in zip(task.outs, step.tensors, strict=True))
