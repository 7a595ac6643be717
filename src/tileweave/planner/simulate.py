"""The schedule simulator: when each task runs, what each machine holds, what each link carries.

Tasks are issued in plan order. A machine runs one task at a time with all its cores; a task starts when its machine
is free and everything that it reads has arrived. Blocks are freed after their last reader. The peak that is reported
is the peak of issuing the tasks one after the other, which is the order that a runtime may always fall back to, so a
budget that holds here can be kept.

Source: own, after Tapestry "Cost Optimization"; costs of messages as in LogGP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tileweave.graph import FileTarget, Operation, Sink
from tileweave.planner.machines import Machines
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.tasks import ReadPiece, Task, tasks

__all__ = ["EFFICIENCY", "Simulation", "costed", "simulate", "task_cost", "temporary_bytes"]

EFFICIENCY = 0.7
"""The fraction of the peak rates that a task is expected to reach."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a run of a plan is expected to do.

    Args:
        seconds: from start to end.
        peak_bytes: per machine.
        peak_step: number of the step that runs at the greatest peak.
        steps: costs per step of the plan.
        spans: (machine, step, start seconds, end seconds) per task.
    """

    seconds: float
    peak_bytes: tuple[int, ...]
    peak_step: int
    steps: tuple[Costs, ...]
    spans: tuple[tuple[int, int, float, float], ...]


def temporary_bytes(step: Step, task: Task, made: Sequence[Task]) -> int:
    """The bytes that a machine newly holds to read a task's inputs, while the task runs.

    A region in one block of the machine's own is used where it lies. Anything else that comes in one piece is held as
    it comes, gaps of a strided read included; several pieces are gathered into a dense array, one at a time. A sink
    that takes any box is given its pieces one by one.
    """
    node = step.node
    by_piece = isinstance(node, Sink) and not (isinstance(node.target, FileTarget) and node.target.format == "zarr")
    total = 0
    for read in task.reads:
        itemsize = read.tensor.dtype.itemsize
        arriving = [piece.region.size * itemsize for piece in read.pieces if not _is_here(piece, task, made)]
        if len(read.pieces) == 1:
            total += sum(arriving)
        elif by_piece:
            total += max(arriving, default=0)
        else:
            total += read.size_bytes + max(arriving, default=0)
    return total


def _is_here(piece: ReadPiece, task: Task, made: Sequence[Task]) -> bool:
    """Whether reading a piece brings nothing new to the machine: a block of its own, or a constant."""
    if piece.task >= 0:
        return made[piece.task].machine == task.machine
    return piece.source is None


def simulate(plan: Plan) -> Simulation:
    """The expected time, memory and traffic of a plan."""
    made = tasks(plan)
    machines = plan.machines
    readers = [0] * len(made)
    for task in made:
        for number in _read_tasks(task):
            readers[number] += 1
    free_at = [0.0] * len(machines)
    done = [0.0] * len(made)
    held = [0] * len(machines)
    peaks = [0] * len(machines)
    peak_step, top = 0, -1
    step_costs = [Costs() for _ in plan.steps]
    started: dict[int, float] = {}
    spans = []
    for task in made:
        step = plan.steps[task.step]
        cost, temporary, out_bytes = task_cost(plan, task, made)
        machine = task.machine
        now = held[machine] + temporary + out_bytes
        peaks[machine] = max(peaks[machine], now)
        if peaks[machine] == now and now > top:
            top, peak_step = now, task.step
        ready = max((done[n] for n in task.needs), default=0.0)
        start = max(free_at[machine], ready)
        end = start + cost.seconds
        free_at[machine] = done[task.number] = end
        spans.append((machine, task.step, start, end))
        if step.stage != "store":
            held[machine] += out_bytes
            if not readers[task.number]:
                held[machine] -= out_bytes
        for number in _read_tasks(task):
            readers[number] -= 1
            if not readers[number]:
                held[made[number].machine] -= _out_bytes(plan, made[number])
        first = started.setdefault(task.step, start)
        total = step_costs[task.step]
        step_costs[task.step] = Costs(
            total.tasks + 1,
            total.flops + cost.flops,
            total.bytes_moved + cost.bytes_moved,
            total.bytes_read + cost.bytes_read,
            total.bytes_written + cost.bytes_written,
            max(total.seconds, end - first),
            max(total.peak_bytes, now),
        )
    seconds = max(done, default=0.0)
    return Simulation(seconds, tuple(peaks), peak_step, tuple(step_costs), tuple(spans))


def _read_tasks(task: Task) -> set[int]:
    return {piece.task for read in task.reads for piece in read.pieces if piece.task >= 0}


def _out_bytes(plan: Plan, task: Task) -> int:
    step = plan.steps[task.step]
    if step.stage == "store":
        return 0
    return sum(out.size * tensor.dtype.itemsize for out, tensor in zip(task.outs, step.tensors, strict=True))


def task_cost(plan: Plan, task: Task, made: Sequence[Task]) -> tuple[Costs, int, int]:
    """(costs of one task, bytes that it holds only while it runs, bytes of its output)."""
    step, machines = plan.steps[task.step], plan.machines
    moved = fetched = messages = touched = 0
    for read in task.reads:
        itemsize = read.tensor.dtype.itemsize
        touched += read.size_bytes
        for piece in read.pieces:
            size = piece.points * itemsize
            home = piece.source.placement if piece.source is not None else None
            if piece.source is not None and home is None:
                fetched += piece.region.size * itemsize
            elif (home if home is not None else _machine(piece, task, made)) != task.machine:
                moved += size
                messages += 1
    out_bytes = _out_bytes(plan, task)
    written = task.out.size * step.tensor.dtype.itemsize if step.stage == "store" else 0
    flops = 0.0
    node = step.node
    if isinstance(node, Operation):
        if step.stage == "combine":
            flops = float(task.out.size * max(0, len(task.reads) - len(node.outputs)))
        elif node.signature is not None:
            flops = node.signature.cost("flops", task.index)
    seconds = _seconds(machines, task.machine, flops, touched + out_bytes, moved, messages, fetched + written)
    costs = Costs(1, flops, moved, fetched, written, seconds)
    return costs, temporary_bytes(step, task, made), out_bytes


def _machine(piece: ReadPiece, task: Task, made: Sequence[Task]) -> int:
    return made[piece.task].machine if piece.task >= 0 else task.machine


def _seconds(
    machines: Machines, machine: int, flops: float, touched: int, moved: int, messages: int, stored: int
) -> float:
    one = machines.machines[machine]
    compute = max(flops / one.flops_per_second, touched / one.bytes_per_second) / EFFICIENCY
    transfer = moved / machines.link_bytes_per_second + messages * machines.link_seconds
    return machines.task_seconds + compute + transfer + stored / machines.storage_bytes_per_second


def costed(plan: Plan) -> tuple[Plan, Simulation]:
    """The plan with its estimates filled in, and the simulation that gave them."""
    result = simulate(plan)
    steps = tuple(replace(step, costs=cost) for step, cost in zip(plan.steps, result.steps, strict=True))
    return replace(plan, steps=steps, seconds=result.seconds, peak_bytes=result.peak_bytes), result
