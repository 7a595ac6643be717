"""What a plan costs where its machines exchange margins, as processes of a cluster do.

In one process a message costs nothing, and tasks run as the plan has them. On a cluster, steps of stencils exchange
once for several of them (`planner.tasks.margins`): fewer messages, other bytes, and work that two machines do alike.

Source: own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from tileweave.graph import Operation, Source
from tileweave.planner.costs import in_files
from tileweave.planner.count import counted_peaks
from tileweave.planner.loads import Load, Loads
from tileweave.planner.placement import IntArray, Placement
from tileweave.planner.plan import Plan, Step
from tileweave.planner.simulate import COUNTED_TASKS, simulated, with_costs
from tileweave.planner.tasks import Task, tasks, widened


def with_margins(plan: Plan) -> Plan:
    """The plan with the estimates of a run that exchanges margins; the same plan where none does.

    Its steps, and so its results, are those of the plan: bytes that move, flops, seconds and the peak of memory differ.

    Args:
        plan: any.
    """
    found = margined(plan)
    return plan if found is None else found[0]


def margined(plan: Plan) -> tuple[Plan, list[Load]] | None:
    """The plan of `with_margins`, and what each machine does in each of its steps; None where no margins are exchanged.

    Args:
        plan: any.
    """
    made = tasks(plan)
    wide = widened(made) if len(plan.machines) > 1 else None
    if wide is None:
        return None
    more, homes = defaultdict[int, _More](lambda: _More(len(plan.machines))), plan.residents
    place = {machine: k for k, machine in enumerate(plan.machines.order)}
    for own, task in zip(made, wide, strict=True):
        if task is not own:
            at = place[own.machine]
            more[own.step].own[at] += own.out.size
            more[own.step].wide[at] += task.out.size
            for one, sign, among in ((task, 1, wide), (own, -1, made)):
                more[own.step].count(one, sign, among, homes, at)
    known = Loads()
    loads = [more[n].of(load, plan.steps[n]) if n in more else load for n, load in enumerate(known.of(plan))]
    result = simulated(plan, loads, known)
    if plan.tasks <= COUNTED_TASKS:
        peaks, at_step = counted_peaks(plan, wide)
        steps = tuple(replace(cost, peak_bytes=peak) for cost, peak in zip(result.steps, at_step, strict=True))
        result = replace(result, peak_bytes=peaks, steps=steps)
    return with_costs(plan, result), loads


@dataclass(slots=True, init=False)
class _More:
    """What tasks of one step do on each machine: elements that they make by the plan and with margins, and how much
    more they take with margins; `edges` is the latter by the input that it is taken for, of all machines."""

    own: IntArray
    wide: IntArray
    moved: IntArray
    messages: IntArray
    read: IntArray
    carried: IntArray
    edges: Counter[str]

    def __init__(self, machines: int) -> None:
        for name in self.__slots__:
            setattr(self, name, np.zeros(machines, np.int64))
        self.edges = Counter()

    def count(self, task: Task, sign: int, among: Sequence[Task], homes: Mapping[Source, Placement], at: int) -> None:
        """Adds what a task takes, or takes it off."""
        for read in task.reads:
            for piece in read.pieces:
                away = piece.task >= 0 and among[piece.task].machine != task.machine
                if away or piece.source in homes:
                    self.moved[at] += sign * piece.points * read.dtype.itemsize
                    self.edges[read.name] += sign * piece.points * read.dtype.itemsize
                    self.messages[at] += sign * away
                elif piece.source is not None:
                    size = sign * piece.region.size * read.dtype.itemsize
                    self.read[at] += size
                    self.carried[at] += 0 if in_files(piece.source) else size

    def of(self, load: Load, step: Step) -> Load:
        """The load of the step with all that."""
        names = [name for name, _ in step.node.inputs] if isinstance(step.node, Operation) else []
        more = [self.edges[name] for name in names]  # a step that exchanges margins reads all of its inputs at once
        edges = tuple(map(sum, zip_longest(load.edges, more, fillvalue=0)))
        grown = np.where(self.own > 0, self.wide / np.maximum(self.own, 1), 1.0)
        wider = {name: getattr(load, name) * grown for name in ("flops", "functions")}
        whole = {
            name: np.rint(getattr(load, name) * grown).astype(np.int64)
            for name in ("touched", "crossed", "temporary", "block", "made")
        }
        taken = {name: getattr(load, name) + getattr(self, name) for name in ("moved", "messages", "read", "carried")}
        return replace(load, **wider, **whole, **taken, edges=edges)
