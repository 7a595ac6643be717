"""The plan: a small value that says how every operation is cut, where its shards run, and what that costs.

A step is an operation with the cuts of its index. A cut reduction becomes two steps: ``partial`` over the index and
``combine`` over the output. Parts of a reduction that one machine has in several waves accumulate: each wave adds to
the block of the wave before it. A ``store`` step writes a sink. Shards are numbered row-major over the grid of cuts;
where they run is a `Placement`, an Axe layout.

Source: Tapestry, "Sharded Expressions"; placement after Axe, section 2.2.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from math import prod
from typing import Any, Literal

from tileweave.backends.base import Decision
from tileweave.graph import FileData, Graph, Operation, Partition, Sink, Source, Tensor
from tileweave.planner.machine import Machines
from tileweave.planner.placement import Placement

VIEWS: dict[str, Callable[..., Any]] = {}
"""How a plan is shown, by name: what stands above the value registers here."""

Stage = Literal["block", "partial", "combine", "store"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step costs. Bytes that two shards on one machine fetch are counted for each.

    Args:
        tasks: shards.
        flops: of all shards.
        bytes_moved: between machines.
        bytes_read: from sources, and from blocks that are spilled.
        bytes_written: to sinks, and of blocks that are spilled.
        seconds: estimated from the first shard's start to the last one's end, alone on the machines.
        peak_bytes: the most that one machine holds while the step runs, everything else that is alive included.
    """

    tasks: int = 0
    flops: float = 0.0
    bytes_moved: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One operation (or sink) with its cuts.

    Args:
        node: the operation, or the sink of a ``store`` step.
        stage: ``block`` computes outputs; ``partial`` computes partial results of a cut reduction, which
            ``combine`` puts together; ``store`` writes a sink.
        cuts: of the index for ``block`` and ``partial``; of the output tensor for ``combine`` and ``store``.
        kernel: what computes one shard, and why.
        costs: estimates.
        outputs: names of the outputs that its tasks keep: those that are read, and all of a partial result.
        where: on which machine, and in which wave, each shard runs.
        spilled: whether its blocks wait for their readers in files of their machine, not in its memory.
    """

    node: Operation | Sink
    stage: Stage
    cuts: Partition
    kernel: Decision = field(default=Decision(""))
    costs: Costs = field(default=Costs())
    outputs: tuple[str, ...] = ("out",)
    where: Placement = field(default=Placement((), (), ()))
    spilled: bool = False

    @property
    def accumulated(self) -> tuple[int, ...]:
        """Reduction dimensions of which one machine has several waves, which add up in place."""
        if self.stage != "partial" or not isinstance(self.node, Operation) or self.node.signature is None:
            return ()
        return tuple(k for k in sorted(self.node.signature.monoids) if self.where.waves[k] > 1)

    @property
    def waves(self) -> int:
        """How often each machine works in turn, the waves that accumulate counted as one."""
        return self.where.wave_count // prod(self.where.waves[k] for k in self.accumulated)

    @property
    def name(self) -> str:
        """A short label."""
        return self.node.operator if isinstance(self.node, Operation) else "store"

    @property
    def tensor(self) -> Tensor:
        """The tensor that the step makes or stores; the first where it makes several."""
        return self.tensors[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the step makes, or the one that it stores."""
        if isinstance(self.node, Operation):
            return tuple(Tensor(self.node, name) for name in self.outputs)
        return (self.node.tensor,)


@dataclass(frozen=True, slots=True, repr=False, weakref_slot=True)
class Plan:
    """A graph, machines, and a step for each operation and sink, dependencies first.

    Args:
        graph: what is computed.
        machines: where.
        steps: how, in an order in which they could run one after the other.
        seconds: estimated time of a run.
        peak_bytes: per machine, the most that the plan holds there.
        alternatives: other plans that were simulated, as (label, seconds, peak bytes, bytes moved).
        homes: where sources lie that are not on storage.
        gap: by how much the additive costs of the cuts are above the least of all that were offered, at most: a
            fraction of them; None where nothing is known.
        listed: whether it is the plan of a sequence: a run gives a list, also of one result.
    """

    graph: Graph
    machines: Machines
    steps: tuple[Step, ...]
    seconds: float = 0.0
    peak_bytes: tuple[int, ...] = ()
    alternatives: tuple[tuple[str, float, int, int], ...] = ()
    homes: tuple[tuple[Source, Placement], ...] = ()
    gap: float | None = None
    listed: bool = field(default=False, compare=False)

    @property
    def residents(self) -> dict[Source, Placement]:
        """Where every source lies that machines hold in memory: placed there, or pinned to a machine and no file."""
        pinned, _ = _sources(self.graph)
        found = {source: _alone(source, self.machines) for source in pinned if not isinstance(source.data, FileData)}
        return {**found, **dict(self.homes)}

    @property
    def disks(self) -> dict[Source, Placement]:
        """The files that one machine reads for all: those pinned to it; where storage is private, all, on the first."""
        pinned, files = _sources(self.graph)
        alone = files if self.machines.storage == "private" else [s for s in pinned if isinstance(s.data, FileData)]
        homes = dict(self.homes)
        return {source: _alone(source, self.machines) for source in alone if source not in homes}

    @property
    def tasks(self) -> int:
        """The number of tasks of a run."""
        return sum(step.cuts.count for step in self.steps)

    @property
    def flops(self) -> float:
        """Floating (or integer) operations of a run."""
        return sum(step.costs.flops for step in self.steps)

    @property
    def bytes_moved(self) -> int:
        """Bytes between machines."""
        return sum(step.costs.bytes_moved for step in self.steps)

    @property
    def bytes_read(self) -> int:
        """Bytes from sources."""
        return sum(step.costs.bytes_read for step in self.steps)

    @property
    def bytes_written(self) -> int:
        """Bytes to sinks."""
        return sum(step.costs.bytes_written for step in self.steps)

    def explain(self, **options: Any) -> str:
        """The plan as a table for people: per step its cuts, tasks, flops, bytes, peak memory, time and kernel."""
        return str(VIEWS["explain"](self, **options))

    def to_json(self, **options: Any) -> dict[str, Any]:
        """The same as plain data for programs."""
        out: dict[str, Any] = VIEWS["json"](self, **options)
        return out

    def html(self) -> str:
        """The plan as one HTML page: graph, cuts, timeline, memory, what was considered."""
        return str(VIEWS["html"](self))

    def save(self, path: str) -> None:
        """Writes the plan as JSON, to be read by `planner.load`."""
        VIEWS["save"](self, path)

    def diff(self, other: Plan) -> str:
        """What another plan does otherwise, a line per difference; empty where nothing differs."""
        return str(VIEWS["diff"](self, other))

    def __repr__(self) -> str:
        peak = max(self.peak_bytes, default=0)
        return (
            f"<Plan of {len(self.steps)} steps, {self.tasks} tasks on {len(self.machines)} machines, peak {peak} bytes>"
        )

    def _repr_html_(self) -> str:
        return f"{self._repr_svg_()}<pre>{escape(self.explain())}</pre>"

    def _repr_svg_(self) -> str:
        return str(VIEWS["svg"](self))

    def __str__(self) -> str:
        return self.explain()


_Held = tuple[tuple[weakref.ref[Source], ...], tuple[weakref.ref[Source], ...]]
_SOURCES: weakref.WeakKeyDictionary[Graph, _Held] = weakref.WeakKeyDictionary()


def _sources(graph: Graph) -> tuple[list[Source], list[Source]]:
    """The sources of a graph that are pinned to one machine, and those that are files."""
    if graph not in _SOURCES:
        nodes = [node for node in graph.nodes() if isinstance(node, Source)]
        pinned = tuple(weakref.ref(node) for node in nodes if node.placement is not None)
        _SOURCES[graph] = pinned, tuple(weakref.ref(node) for node in nodes if isinstance(node.data, FileData))
    pinned, files = _SOURCES[graph]
    return [s for held in pinned if (s := held()) is not None], [s for held in files if (s := held()) is not None]


def _alone(source: Source, machines: Machines) -> Placement:
    rank = len(source.type.shape)
    where = machines.order.index(source.placement or 0)
    return Placement((1,) * rank, ((),) * rank, (1,) * rank, (), where)
