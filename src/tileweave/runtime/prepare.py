"""A plan made ready to run: its tasks and what follows from them, once per plan.

A training loop runs one plan hundreds of times. What can be known before arrays are there is computed here and kept
for as long as the plan's graph lives: the order, who may be freed after whom, and the memory that this order needs.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tileweave.graph import Graph, MemoryTarget, Sink, Source
from tileweave.kept import lock_of_process
from tileweave.planner import Machines, Plan, Step, Task, tasks
from tileweave.planner.count import task_memory
from tileweave.planner.tasks import kinds_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan's tasks in issue order, and what follows from them for every run; lists are by the number of a task.

    Args:
        steps: of the plan.
        tasks: in issue order.
        sources: what is read, in order of first use.
        sinks: what is stored, each once.
        readers: how many tasks read its block.
        out_bytes: of its block, where it waits in memory.
        need_bytes: the most that it holds while it runs, its block included.
        peak_bytes: per machine, of the tasks run one after the other.
        margins: whether machines compute some of their neighbours' blocks too, and so exchange less often.
        extra: what a runtime keeps with the plan.
    """

    steps: tuple[Step, ...]
    tasks: Sequence[Task]
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]
    readers: tuple[int, ...]
    out_bytes: tuple[int, ...]
    need_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    margins: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the steps, for people."""
        return tuple(map(label, self.steps))

    def width(self, step: int) -> int:
        """How many shards of a step may run at once."""
        return min(self.steps[step].cuts.count, len(self.peak_bytes))

    def sink(self, task: Task) -> int:
        """The number of the sink that a task stores into, or -1."""
        node = self.steps[task.step].node
        return self.sinks.index(node) if isinstance(node, Sink) else -1

    def hands_over(self, task: Task) -> bool:
        """Whether the one block that a task stores may become the result itself, since nobody else holds it."""
        step, pieces = self.steps[task.step], task.reads[0].pieces
        in_memory = isinstance(step.node, Sink) and isinstance(step.node.target, MemoryTarget)
        if not in_memory or step.cuts.count > 1 or len(pieces) != 1:
            return False
        piece = pieces[0]
        if piece.task < 0 or piece.spilled or not piece.whole or self.readers[piece.task] > 1:
            return False
        return len(self.steps[self.tasks[piece.task].step].outputs) == 1


def label(step: Step) -> str:
    """A step's name for people."""
    return step.name if step.stage in ("block", "store") else f"{step.name} ({step.stage})"


_Key = tuple[tuple[Step, ...], Machines]
_KEPT: weakref.WeakKeyDictionary[Graph, list[tuple[_Key, Prepared]]] = weakref.WeakKeyDictionary()
_LOCK = lock_of_process()
KEEP_PER_GRAPH = 8
"""How many plans of one graph are kept ready."""


def prepare(plan: Plan) -> Prepared:
    """The plan's tasks; the same object for the same plan, as long as its graph lives."""
    with _LOCK:
        for (steps, machines), found in _KEPT.get(plan.graph, ()):
            if steps is plan.steps and machines == plan.machines:
                return found
    with keeping():
        made = _prepared(plan)
    with _LOCK:
        kept = _KEPT.setdefault(plan.graph, [])
        kept.insert(0, ((plan.steps, plan.machines), made))
        del kept[KEEP_PER_GRAPH:]
    return made


@contextmanager
def keeping() -> Iterator[None]:
    """While much is made that is kept, the collector, which would go through all of it again and again, waits."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _prepared(plan: Plan) -> Prepared:
    made = tasks(plan)
    stored = [step.node for step in plan.steps if isinstance(step.node, Sink)]  # some only order others
    sinks = tuple(dict.fromkeys([*plan.graph.sinks, *stored]))
    pieces = (piece.source for kind in made.kinds for read in kind.sample.reads for piece in read.pieces)
    sources = tuple(dict.fromkeys(source for source in pieces if source is not None))
    return prepare_tasks(plan.steps, made, sources, sinks, len(plan.machines))


def prepare_tasks(
    steps: tuple[Step, ...],
    made: Sequence[Task],
    sources: tuple[Source, ...],
    sinks: tuple[Sink, ...],
    machines: int,
) -> Prepared:
    """What follows from tasks, numbered in their order, for a run of them."""
    found = task_memory(steps, kinds_of(made))
    readers, out, need = (tuple(column.tolist()) for column in (found.readers, found.out_bytes, found.need_bytes))
    return Prepared(steps, made, sources, sinks, readers, out, need, tuple(found.peaks(machines).tolist()))


def with_tasks(prepared: Prepared, made: Sequence[Task], margins: bool = False) -> Prepared:
    """The same plan, run by other tasks; what is left of tasks with margins has margins."""
    found = prepare_tasks(prepared.steps, made, prepared.sources, prepared.sinks, len(prepared.peak_bytes))
    return replace(found, margins=margins or prepared.margins)
