"""The schedule simulator: when each step runs on each machine, what machines hold, what links carry.

Events are (step, machine) pairs in issue order, computed for all machines at once; the shards of a step on one machine
are alike, so a million of them cost no more than one. A machine computes and receives at the same time: a step's data
travel over the machine's link, and over the links of the groups that it crosses, each used by one step at a time; its
waves then overlap transfer and computation. Memory is counted at its peak inside each stream of steps: an upper bound,
and `costed` counts small plans task by task.

Source: own, after Tapestry "Cost Optimization"; costs of messages as in LogGP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import PlanError
from tileweave.graph import FileTarget, Operation, Sink, Source, Tensor
from tileweave.planner.costs import Flags, in_files, stored_in_files, volume
from tileweave.planner.count import counted_peaks
from tileweave.planner.loads import Load, Loads, held_at
from tileweave.planner.machine import LinkGroup, Machines
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.rates import Floats, Rates
from tileweave.planner.streams import needed_steps, read_tensors, streams

COUNTED_TASKS = 500
"""Plans of up to so many tasks have their peak memory counted task by task (about 0.1 ms each)."""


@dataclass(frozen=True, slots=True)
class Busy:
    """When one step runs on machines that do the same.

    Args:
        step: number of the step.
        machine: the first of them.
        alike: how many.
        tasks: of each.
        arrive: seconds at which data begin to move.
        start: seconds at which the machine begins to compute.
        end: seconds at which it is done.
    """

    step: int
    machine: int
    alike: int
    tasks: int
    arrive: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a run of a plan is expected to do.

    Args:
        seconds: from start to end.
        peak_bytes: per machine.
        steps: costs per step of the plan.
        spans: per step and group of like machines, when it runs.
        loads: per step, what every machine does, in the order in which machines fill.
    """

    seconds: float
    peak_bytes: tuple[int, ...]
    steps: tuple[Costs, ...]
    spans: tuple[Busy, ...]
    loads: tuple[Load, ...]

    @property
    def words_bytes(self) -> int:
        """The most bytes that any machine receives from others."""
        return int(sum((load.moved for load in self.loads), np.zeros(1, np.int64)).max())


CostModel = Callable[[Step, Load, Rates], np.ndarray[Any, Any]]
"""(step, what it does on each machine, rates of these) -> seconds that each machine, in the order in which they fill,
computes and reads from storage, without what it waits for."""
MODELS: dict[str, CostModel] = {}


def register_cost_model(name: str, model: CostModel) -> None:
    """Adds a model that plans can be asked for by name.

    Raises:
        PlanError: there is one of that name.
    """
    if name in MODELS:
        raise PlanError("register_cost_model(name, model)", f"there is a cost model {name!r}", legal="another name")
    MODELS[name] = model


def simulate(plan: Plan, known: Loads | None = None, model: str = "roofline") -> Simulation:
    """The expected time, memory and traffic of a plan.

    Args:
        plan: any.
        known: keeps what depends on the graph alone, for planning it again.
        model: a name in `MODELS`: how long a step computes.

    Raises:
        PlanError: no such model.
    """
    if model not in MODELS:
        raise PlanError("simulate(model)", f"{model!r} is no cost model", legal=", ".join(MODELS))
    known = known or Loads()
    return simulated(plan, known.of(plan), known, model)


def simulated(plan: Plan, loads: Sequence[Load], known: Loads, model: str = "roofline") -> Simulation:
    """As `simulate`, where machines do other than the plan's own tasks.

    Args:
        plan: any.
        loads: per step, what every machine does.
        known: what depends on the graph alone.
        model: a name in `MODELS`.
    """
    held = _held(plan, loads)
    seconds, spans, durations = _timeline(plan, loads, MODELS[model], known)
    steps = tuple(
        Costs(
            int(load.tasks.sum()),
            float(load.flops.sum()),
            int(load.moved.sum()),
            int(load.read.sum()),
            int(load.written.sum()),
            duration,
            int(peak),
        )
        for load, duration, peak in zip(loads, durations, held.steps, strict=True)
    )
    return Simulation(seconds, held.machines, steps, spans, tuple(loads))


class Peaks(NamedTuple):
    """The most bytes that each machine holds, and the most that any holds while each step runs."""

    machines: tuple[int, ...]
    steps: IntArray


def peaks_of(plan: Plan, known: Loads | None = None) -> Peaks:
    """The expected memory of a plan, without its time."""
    return _held(plan, (known or Loads()).of(plan))


def _held(plan: Plan, loads: Sequence[Load]) -> Peaks:
    peaks, at_step = peak_bound(plan, loads)
    back = np.empty(len(plan.machines), np.int64)
    back[list(plan.machines.order)] = peaks
    return Peaks(tuple(back.tolist()), at_step)


# ---------------------------------------------------------------------------------------------------------------------
# time


def roofline(step: Step, load: Load, rates: Rates) -> Floats:
    """What kernels take (`Rates.kernel_seconds`), what storage takes, and a task's own cost.

    Arrays in the memory of the process that runs the plan are no storage: one machine uses them where they lie, to
    several they travel over the link.
    """
    machines = rates.machines
    compute = rates.kernel_seconds(step.tensor.dtype, load.flops, load.functions, load.touched, load.crossed)
    read, written = load.read - load.served - load.carried, load.written
    if isinstance(step.node, Sink) and not isinstance(step.node.target, FileTarget):
        return (read + written) / rates.read  # results in memory are computed where they belong
    stored = read / rates.read + written / machines.storage_bytes_per_second
    if isinstance(step.node, Sink):
        stored = stored + machines.store_seconds * (written > 0)
    out: Floats = load.tasks * rates.task_seconds + compute + stored
    return out


MODELS["roofline"] = roofline


def _timeline(
    plan: Plan, loads: Sequence[Load], model: CostModel, known: Loads
) -> tuple[float, tuple[Busy, ...], list[float]]:
    machines, count = plan.machines, len(plan.machines)
    files, stored = stored_in_files(plan.graph)
    opened = _Opened(known, count) if files and machines.open_seconds else None
    direct = (
        count == 1
        and not machines.driver_bytes_per_second
        and all((x.read + x.written == x.carried).all() for x in loads)
    )  # no files
    rates = Rates(machines, direct=direct, stored=stored)
    needed = needed_steps(plan.steps)
    done: list[Floats] = []
    free, link_free, disk_free = (np.full(count, machines.run_seconds) for _ in range(3))
    driver_free = machines.run_seconds
    place = {machine: k for k, machine in enumerate(machines.order)} if machines.groups else {}
    groups = [_Group(machines, group, place) for group in machines.groups]
    spans: list[Busy] = []
    durations = []
    for number, (step, load) in enumerate(zip(plan.steps, loads, strict=True)):
        here = load.tasks > 0
        crossing = bool((load.moved > 0).any())
        ready = np.zeros(count)
        for n in needed[number]:
            ready = np.maximum(ready, done[n].max() if crossing or _waits(step, plan.steps[n]) else done[n])
        if opened is not None:
            opening = opened.first(step, load) * machines.open_seconds
            free, disk_free = free + opening, disk_free + opening
        crosses = load.moved + load.carried if count > 1 and not machines.driver_bytes_per_second else load.moved
        transfer = crosses / rates.link + machines.waited_seconds(load.messages)
        arrive = np.where(transfer > 0, np.maximum(ready, link_free), ready)
        arrived = arrive + transfer
        for group in groups:
            arrived = np.maximum(arrived, group.arrived(load, arrive))
        if machines.driver_bytes_per_second and load.carried.any():  # it serves one machine after the other
            begin = max(driver_free, float(ready[load.carried > 0].min()))
            passed = np.cumsum(machines.driver_seconds(load.carried - load.results, load.results, load.objects))
            driver_free = begin + float(passed[-1])
            arrived = np.where(load.carried > 0, np.maximum(arrived, begin + passed), arrived)
        taken, owners = arrived - arrive, load.served > 0
        if owners.any():  # one disk and one link serve all machines, one step at a time
            serving = load.served / np.minimum(rates.link, rates.read)
            disk_free = np.where(owners, np.maximum(disk_free, ready) + serving, disk_free)
            arrived = np.where(here, np.maximum(arrived, disk_free[owners].max()), arrived)
            taken = np.where(here, np.maximum(taken, serving[owners].max()), taken)
        link_free = np.where(transfer > 0, arrived, link_free)
        compute = model(step, load, rates)
        waves = np.maximum(load.tasks, 1)
        start = np.maximum(arrive + (arrived - arrive) / waves, free)
        end = np.maximum(start + compute, arrived + compute / waves)
        free = np.where(here, end, free)
        done.append(np.where(here, end, 0.0))
        spans += _spans(number, machines, load, arrive, start, end)
        alone = np.maximum(taken / waves + compute, taken + compute / waves)
        durations.append(float(alone[here].max()) if here.any() else 0.0)
    return float(max((d.max() for d in done), default=0.0)), tuple(spans), durations


class _Opened:
    """Which machines have opened which files."""

    def __init__(self, known: Loads, count: int) -> None:
        self.known, self.count = known, count
        self.open: dict[Source, Flags] = {}

    def first(self, step: Step, load: Load) -> IntArray:
        """How many files each machine opens for a step: those that the step reads, where the machine reads storage."""
        out, reads = np.zeros(self.count, np.int64), load.read > 0
        found = {term.source for tensor in read_tensors(step) for term in self.known.terms_of(tensor)}
        for source in found:
            if source is not None and in_files(source):
                before = self.open.get(source, np.zeros(self.count, np.bool_))
                out += reads & ~before
                self.open[source] = before | reads
        return out


def _waits(step: Any, before: Any) -> bool:
    """Whether a sequence point holds one step before another, on all machines."""
    node = step.node
    return isinstance(node, Operation) and any(before.node in point.before for point in node.after)


class _Group:
    """The link of a group of machines: what enters it from outside passes one step at a time."""

    def __init__(self, machines: Machines, group: LinkGroup, place: Mapping[int, int]) -> None:
        self.members = [place[k] for k in range(group.first, group.last)]
        self.bytes_per_second, self.seconds = group.bytes_per_second, group.seconds
        self.free = 0.0
        self.share = 1 - (len(self.members) - 1) / max(1, len(machines) - 1)

    def arrived(self, load: Load, arrive: Floats) -> Floats:
        """When the last byte from outside is there, for the group's machines."""
        out = np.zeros_like(arrive)
        inside = load.moved[self.members]
        size = float(inside.sum()) * self.share
        if size:
            begin = max(self.free, float(arrive[self.members].min()))
            self.free = begin + size / self.bytes_per_second + self.seconds
            out[self.members] = np.where(inside > 0, self.free, 0.0)
        return out


def _spans(number: int, machines: Machines, load: Load, arrive: Floats, start: Floats, end: Floats) -> list[Busy]:
    """One span per group of machines that do the same at the same time."""
    here = np.flatnonzero(load.tasks)
    if not len(here):
        return []
    rows = np.stack([load.tasks[here].astype(np.float64), arrive[here], start[here], end[here]], 1)
    if (rows == rows[0]).all():
        first, counts = np.zeros(1, np.int64), np.asarray([len(here)])
    else:
        _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    order = machines.order
    return [
        Busy(number, order[here[k]], int(n), int(rows[k, 0]), *map(float, rows[k, 1:]))
        for k, n in zip(first, counts, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# memory


def peak_bound(plan: Plan, loads: Sequence[Load]) -> tuple[IntArray, IntArray]:
    """(the most that each machine holds, in the order in which they fill; the most while each step runs).

    What another stream reads is held whole, from the stream that makes it to the last one that reads it; what only the
    same stream reads is held for a wave, and so is a block that is spilled.
    """
    found = streams(plan.steps)
    rows = [[*stream.steps, *stream.trailing] for stream in found]
    late = {trail.made: trail.held for stream in found for trail in stream.trailing.values()}
    stream_of = {number: k for k, row in enumerate(rows) for number in row}
    last = dict.fromkeys(stream_of, -1)
    last_in_row: dict[int, int] = {}
    for number, needed in enumerate(needed_steps(plan.steps, reads_only=True)):
        for n in needed:
            last[n] = max(last[n], stream_of[number])
            last_in_row[n] = number
    live = np.zeros(len(plan.machines), np.int64)
    for source, home in plan.residents.items():
        for boxes in held_at(Tensor(source), home, len(plan.machines)).boxes:
            live = live + volume(boxes) * source.type.dtype.itemsize
    peaks, at_step = live.copy(), np.zeros(len(loads), np.int64)
    ends: dict[int, list[int]] = {}
    for number, k in last.items():
        ends.setdefault(k, []).append(number)
    for k, row in enumerate(rows):
        kept = [n for n in row if last[n] > k and not plan.steps[n].spilled]
        alone = len(row) == 1
        live = live + sum((loads[n].made for n in kept), np.zeros_like(live))
        waiting = sum((loads[n].block * (late[n] - 1) for n in row if n in late and n not in kept), np.zeros_like(live))
        for at, number in enumerate(row):
            load = loads[number]
            now = live + waiting + load.temporary
            if number not in kept:
                whole = alone and last[number] == k
                now = now + (load.made if whole else load.block)
            for n in row[:at]:
                if n not in kept and not plan.steps[n].spilled and (n in late or last_in_row.get(n, -1) >= number):
                    now = now + loads[n].block
            peaks = np.maximum(peaks, now)
            at_step[number] = now.max()
        for n in ends.get(k, ()):
            if stream_of[n] < k and not plan.steps[n].spilled:
                live = live - loads[n].made
    return peaks, at_step


def costed(plan: Plan, known: Loads | None = None, model: str = "roofline") -> tuple[Plan, Simulation]:
    """The plan with its estimates filled in, and the simulation that gave them; small plans have their peak counted."""
    result = simulate(plan, known, model)
    if plan.tasks <= COUNTED_TASKS:
        peaks, at_step = counted_peaks(plan)
        steps = tuple(replace(cost, peak_bytes=peak) for cost, peak in zip(result.steps, at_step, strict=True))
        result = replace(result, peak_bytes=peaks, steps=steps)
    return with_costs(plan, result), result


def with_costs(plan: Plan, result: Simulation) -> Plan:
    """The plan with the estimates of a simulation filled in."""
    steps = tuple(replace(step, costs=cost) for step, cost in zip(plan.steps, result.steps, strict=True))
    return replace(plan, steps=steps, seconds=result.seconds, peak_bytes=result.peak_bytes)
