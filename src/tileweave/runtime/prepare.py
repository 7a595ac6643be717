"""A plan made ready to run: its tasks with every read resolved to array operations, once per plan.

A training loop runs one plan hundreds of times. What can be known before arrays are there is computed here and kept
for as long as the plan's graph lives: the order, the reads as slices and views, who may be freed after whom,
and the memory that the plan's own order needs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tileweave.backends.base import Decision
from tileweave.graph import Graph, MemoryTarget, Operation, Sink, Source
from tileweave.graph.passes.shard import index_of_output
from tileweave.lower.reads import Fetch, Part, make_part, slices
from tileweave.planner import Machines, Plan, Read, ReadPiece, Step, Task, tasks
from tileweave.planner.count import task_cost
from tileweave.planner.tasks import PARTIAL
from tileweave.space import Box

__all__ = ["Job", "Prepared", "label", "prepare"]


@dataclass(frozen=True, slots=True)
class Job:
    """One task, ready.

    Args:
        number: its place in the issue order.
        step: number of its step.
        shard: number of the shard in the step.
        machine: where it runs.
        node: the operation, or the sink that it stores into.
        stage: block, partial, combine or store.
        index: what the kernel is told: the block of the index, or for ``store`` the stored box.
        fetches: its inputs.
        needs: numbers of the tasks whose blocks it reads.
        after: numbers of the steps all of whose tasks come before it.
        releases: numbers of the tasks whose blocks it reads, once each.
        readers: how many tasks read its block.
        outs: (output, box in its tensor, bytes per element) for each output that its block keeps.
        out_bytes: of its block.
        need_bytes: the most that the task holds while it runs, its block included.
        width: how many shards of its step may run at once.
        seconds: estimated.
        decision: what computes it.
        sink: number of the sink among the plan's sinks, or -1.
        hand_over: the stored block may become the result itself, since nobody else holds it.
    """

    number: int
    step: int
    shard: int
    machine: int
    node: Operation | Sink
    stage: str
    index: Box
    fetches: tuple[Fetch, ...]
    needs: tuple[int, ...]
    after: tuple[int, ...]
    releases: tuple[int, ...]
    readers: int
    outs: tuple[tuple[str, Box, int], ...]
    out_bytes: int
    need_bytes: int
    width: int
    seconds: float
    decision: Decision
    sink: int = -1
    hand_over: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan's jobs in issue order, and what they stand on.

    Args:
        jobs: in issue order.
        sources: what is read.
        sinks: what is stored, each once.
        labels: of the steps, for people.
        peak_bytes: per machine, of the jobs run one after the other.
        extra: what a runtime keeps with the plan.
    """

    jobs: tuple[Job, ...]
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]
    labels: tuple[str, ...]
    peak_bytes: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict)


def label(step: Step) -> str:
    """A step's name for people."""
    return step.name if step.stage in ("block", "store") else f"{step.name} ({step.stage})"


_Key = tuple[tuple[Step, ...], Machines]
_KEPT: weakref.WeakKeyDictionary[Graph, list[tuple[_Key, Prepared]]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
KEEP_PER_GRAPH = 8
"""How many plans of one graph are kept ready."""


def prepare(plan: Plan) -> Prepared:
    """The plan's jobs; the same object for the same plan, as long as its graph lives."""
    with _LOCK:
        for (steps, machines), found in _KEPT.get(plan.graph, ()):
            if steps is plan.steps and machines == plan.machines:
                return found
    made = _Maker(plan).run()
    with _LOCK:
        kept = _KEPT.setdefault(plan.graph, [])
        kept.insert(0, ((plan.steps, plan.machines), made))
        del kept[KEEP_PER_GRAPH:]
    return made


class _Maker:
    """Turns a plan's tasks into jobs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tasks = tasks(plan)
        stored = [step.node for step in plan.steps if isinstance(step.node, Sink)]  # some only order others
        self.sinks = tuple(dict.fromkeys([*plan.graph.sinks, *stored]))
        self.sources: dict[Source, int] = {}
        self.readers = [0] * len(self.tasks)
        for task in self.tasks:
            for number in _read_tasks(task):
                self.readers[number] += 1

    def run(self) -> Prepared:
        jobs = tuple(self._job(task) for task in self.tasks)
        labels = tuple(map(label, self.plan.steps))
        return Prepared(jobs, tuple(self.sources), self.sinks, labels, self._peaks(jobs))

    def _job(self, task: Task) -> Job:
        step = self.plan.steps[task.step]
        node = step.node
        fetches = tuple(self._fetch(task, read, name) for read, name in zip(task.reads, _names(task), strict=True))
        costs, temporary, out_bytes = task_cost(self.plan, task, self.tasks)
        index = task.index
        if step.stage == "combine" and isinstance(node, Operation):
            index = index_of_output(node, step.outputs[0], task.out)
        sink = self.sinks.index(node) if isinstance(node, Sink) else -1
        return Job(
            task.number,
            task.step,
            task.shard,
            task.machine,
            node,
            step.stage,
            index,
            fetches,
            task.needs,
            task.after,
            tuple(sorted(_read_tasks(task))),
            self.readers[task.number],
            tuple((t.output, out, t.dtype.itemsize) for t, out in zip(step.tensors, task.outs, strict=True)),
            out_bytes,
            temporary + out_bytes,
            min(step.cuts.count, len(self.plan.machines)),
            costs.seconds,
            step.kernel,
            sink,
            isinstance(node, Sink) and self._hands_over(node, step, fetches),
        )

    def _hands_over(self, sink: Sink, step: Step, fetches: Sequence[Fetch]) -> bool:
        if not isinstance(sink.target, MemoryTarget) or step.cuts.count > 1 or len(fetches[0].parts) != 1:
            return False
        part = fetches[0].parts[0]
        return part.whole and part.task >= 0 and not part.output and self.readers[part.task] == 1

    def _fetch(self, task: Task, read: Read, name: str) -> Fetch:
        parts = tuple(self._part(read, piece) for piece in read.pieces)
        only = parts[0].task if len(parts) == 1 else -1
        local = only >= 0 and self.tasks[only].machine == task.machine
        return Fetch(name, read.box.shape, read.tensor.dtype, parts, local)

    def _part(self, read: Read, piece: ReadPiece) -> Part:
        place = slices(piece.box.translate([-a for a in read.box.start]))
        if piece.task >= 0:
            several = len(self.plan.steps[self.tasks[piece.task].step].outputs) > 1
            output = piece.output if several else ""
            return make_part(piece.box, place, piece.map, piece.block, task=piece.task, output=output)
        if piece.source is not None:
            number = self.sources.setdefault(piece.source, len(self.sources))
            return make_part(piece.box, place, piece.map, piece.region, source=number)
        fill = np.asarray(piece.fill).astype(read.tensor.dtype)
        return make_part(piece.box, place, piece.map, piece.block, fill=fill)

    def _peaks(self, jobs: Sequence[Job]) -> tuple[int, ...]:
        """Per machine, the most that is held when the jobs run one after the other, as the planner counts it."""
        held = [0] * len(self.plan.machines)
        peaks = list(held)
        left = list(self.readers)
        for job in jobs:
            peaks[job.machine] = max(peaks[job.machine], held[job.machine] + job.need_bytes)
            held[job.machine] += job.out_bytes if job.readers else 0
            for number in job.releases:
                left[number] -= 1
                if not left[number]:
                    held[jobs[number].machine] -= jobs[number].out_bytes
        return tuple(peaks)


def _names(task: Task) -> list[str]:
    """Names of a task's reads as kernels know them: partial results are numbered, and name their output."""
    names = []
    counts: dict[str, int] = {}
    for read in task.reads:
        if read.name != PARTIAL:
            names.append(read.name)
            continue
        output = read.tensor.output
        number = counts[output] = counts.get(output, -1) + 1
        names.append(f"{PARTIAL}{number}.{output}")
    return names


def _read_tasks(task: Task) -> set[int]:
    return {piece.task for read in task.reads for piece in read.pieces if piece.task >= 0}
