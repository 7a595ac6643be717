"""Memory by counting: every task of a plan, one by one.

Tasks are issued in plan order, blocks are freed after their last reader. The peak is that of issuing the tasks one
after the other, which is the order that a runtime may always fall back to, so a budget that holds here can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import partition_of, takes_boxes
from tileweave.planner.tasks import Enumerator, ReadPiece, Task

EFFICIENCY = 0.7
"""The fraction of the peak rates that a task is expected to reach."""


def counted_peaks(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the most that each machine holds, the most that any machine holds while each step runs)."""
    made = tuple(Enumerator(plan))
    readers = [0] * len(made)
    for task in made:
        for number in task.needs:
            readers[number] += 1
    outs = [block_bytes(plan.steps[task.step], task) for task in made]
    held = list(resident_bytes(plan))
    peaks, steps = list(held), [0] * len(plan.steps)
    for task, out_bytes in zip(made, outs, strict=True):
        machine = task.machine
        now = held[machine] + temporary_bytes(plan.steps[task.step], task, made) + out_bytes
        peaks[machine] = max(peaks[machine], now)
        steps[task.step] = max(steps[task.step], now)
        if readers[task.number] and not plan.steps[task.step].spilled:
            held[machine] += out_bytes
        for number in task.needs:
            readers[number] -= 1
            if not readers[number] and not plan.steps[made[number].step].spilled:
                held[made[number].machine] -= outs[number]
    return tuple(peaks), tuple(steps)


def resident_bytes(plan: Plan) -> tuple[int, ...]:
    """Per machine, what it holds of sources that are resident."""
    out, order = [0] * len(plan.machines), plan.machines.order
    for source, home in plan.residents.items():
        cuts = partition_of(source.type.box, home)
        for k in range(cuts.count):
            for machine in home.machines(cuts.place(k)):
                out[order[machine]] += cuts.block(k).size * source.type.dtype.itemsize
    return tuple(out)


def temporary_bytes(step: Step, task: Task, made: Sequence[Task]) -> int:
    """The bytes that a machine newly holds to read a task's inputs, while the task runs.

    A region in one block of the machine's own is used where it lies. Anything else that comes in one piece is held as
    it comes, gaps of a strided read included; several pieces are gathered into a dense array, one at a time. A sink
    that takes any box is given its pieces one by one.
    """
    total = 0
    for read in task.reads:
        itemsize = read.dtype.itemsize
        arriving = [piece.region.size * itemsize for piece in read.pieces if not _is_here(piece, task, made)]
        if len(read.pieces) == 1:
            total += sum(arriving)
        elif takes_boxes(step.node):
            total += max(arriving, default=0)
        else:
            total += read.size_bytes + max(arriving, default=0)
    return total


def _is_here(piece: ReadPiece, task: Task, made: Sequence[Task]) -> bool:
    """Whether reading a piece brings nothing new to the machine: a block of its own, or a constant."""
    if piece.task >= 0:
        return made[piece.task].machine == task.machine and not piece.spilled
    return piece.source is None


def block_bytes(step: Step, task: Task) -> int:
    """The bytes of what a task makes."""
    if step.stage == "store":
        return 0
    return sum(out.size * tensor.dtype.itemsize for out, tensor in zip(task.outs, step.tensors, strict=True))
