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
from typing import cast

from tileweave.graph import FileTarget, Operation, Sink
from tileweave.planner.machines import Machines
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.tasks import Enumerator, ReadPiece, Task

__all__ = [
    "EFFICIENCY",
    "Simulation",
    "costed",
    "simulate",
    "simulate_within",
    "task_cost",
    "temporary_bytes",
    "with_costs",
]

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
    return cast("Simulation", simulate_within(plan))


def simulate_within(plan: Plan, limits_bytes: Sequence[int] = ()) -> Simulation | None:
    """The same, or None as soon as it is certain that a machine will hold too much.

    Args:
        plan: any.
        limits_bytes: what each machine may hold; anything when left out.
    """
    enumerator = Enumerator(plan)
    alive = _Alive(enumerator, limits_bytes or [_ANYTHING] * len(plan.machines))
    made: list[Task] = []
    costs = []
    for task in enumerator:
        made.append(task)
        costs.append(task_cost(plan, task, made))
        _, temporary, out_bytes = costs[-1]
        if not alive.fits(task, temporary, out_bytes):
            return None
    result = _simulated(plan, made, costs)
    fits = all(peak <= limit for peak, limit in zip(result.peak_bytes, alive.limits_bytes, strict=True))
    return result if fits else None


_ANYTHING = 1 << 80


class _Alive:
    """A lower bound of what machines hold, while tasks are still being found: blocks with a known reader to come."""

    def __init__(self, enumerator: Enumerator, limits_bytes: Sequence[int]) -> None:
        self.enumerator, self.limits_bytes = enumerator, limits_bytes
        self.held = [0] * len(limits_bytes)
        self.left: dict[tuple[int, int], int] = {}  # readers to come, of blocks by step and shard
        self.made: dict[tuple[int, int], tuple[int, int]] = {}  # machine and bytes of blocks
        self.keys: list[tuple[int, int]] = []

    def fits(self, task: Task, temporary: int, out_bytes: int) -> bool:
        """Whether there is room for a task; then it runs."""
        for key in self.enumerator.found:
            self._count(key, 1)
        self.enumerator.found.clear()
        if self.held[task.machine] + temporary + out_bytes > self.limits_bytes[task.machine]:
            return False
        key = task.step, task.shard
        self.keys.append(key)
        self.made[key] = task.machine, out_bytes
        if self.left.get(key):
            self.held[task.machine] += out_bytes
        for number in task.needs:
            self._count(self.keys[number], -1)
        return True

    def _count(self, key: tuple[int, int], step: int) -> None:
        """One reader more, or one less: a block is held while it has any."""
        before = self.left.get(key, 0)
        self.left[key] = before + step
        if key in self.made and not (before and before + step):
            machine, size_bytes = self.made[key]
            self.held[machine] += step * size_bytes


def _simulated(plan: Plan, made: Sequence[Task], costs: Sequence[tuple[Costs, int, int]]) -> Simulation:
    machines = plan.machines
    readers = [0] * len(made)
    for task in made:
        for number in task.needs:
            readers[number] += 1
    free_at = [0.0] * len(machines)
    done = [0.0] * len(made)
    ended = [0.0] * len(plan.steps)
    held = [0] * len(machines)
    peaks = [0] * len(machines)
    peak_step, top = 0, -1
    started: dict[int, float] = {}
    spans = []
    totals: list[list[Costs]] = [[] for _ in plan.steps]
    for task, (cost, temporary, out_bytes) in zip(made, costs, strict=True):
        machine = task.machine
        now = held[machine] + temporary + out_bytes
        peaks[machine] = max(peaks[machine], now)
        if peaks[machine] == now and now > top:
            top, peak_step = now, task.step
        ready = max([free_at[machine], *(done[n] for n in task.needs), *(ended[n] for n in task.after)])
        end = ready + cost.seconds
        free_at[machine] = done[task.number] = end
        ended[task.step] = max(ended[task.step], end)
        spans.append((machine, task.step, ready, end))
        if readers[task.number]:
            held[machine] += out_bytes
        for number in task.needs:
            readers[number] -= 1
            if not readers[number]:
                held[made[number].machine] -= costs[number][2]
        first = started.setdefault(task.step, ready)
        totals[task.step].append(replace(cost, seconds=end - first, peak_bytes=now))
    seconds = max(done, default=0.0)
    return Simulation(seconds, tuple(peaks), peak_step, tuple(map(_total, totals)), tuple(spans))


def _total(costs: Sequence[Costs]) -> Costs:
    return Costs(
        len(costs),
        sum(cost.flops for cost in costs),
        sum(cost.bytes_moved for cost in costs),
        sum(cost.bytes_read for cost in costs),
        sum(cost.bytes_written for cost in costs),
        max((cost.seconds for cost in costs), default=0.0),
        max((cost.peak_bytes for cost in costs), default=0),
    )


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
    return with_costs(plan, result), result


def with_costs(plan: Plan, result: Simulation) -> Plan:
    """The plan with the estimates of a simulation filled in."""
    steps = tuple(replace(step, costs=cost) for step, cost in zip(plan.steps, result.steps, strict=True))
    return replace(plan, steps=steps, seconds=result.seconds, peak_bytes=result.peak_bytes)
