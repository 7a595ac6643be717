"""The plan: a small value that says how every operation is cut, where its shards run, and what that costs.

A step is an operation with the cuts of its index. A cut reduction becomes two steps: ``partial`` over the index and
``combine`` over the output. A ``store`` step writes a sink. Shards are numbered row-major over the grid of cuts; the
placement is a layout from that number to the axes ``machine`` and ``wave``.

Source: Tapestry, "Sharded Expressions"; placement after Axe, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tileweave.backends.base import Decision
from tileweave.graph import Graph, Operation, Partition, Sink, Tensor
from tileweave.layout import Coord, Iter, Layout
from tileweave.planner.machines import Machines

__all__ = ["Costs", "Plan", "Stage", "Step", "placement"]

Stage = Literal["block", "partial", "combine", "store"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step costs. Bytes that two shards on one machine fetch are counted for each.

    Args:
        tasks: shards.
        flops: of all shards.
        bytes_moved: between machines.
        bytes_read: from sources.
        bytes_written: to sinks.
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
        outputs: names of the outputs that its tasks keep: those that are read, and all of a partial result.
        kernel: what computes one shard, and why.
        costs: estimates.
    """

    node: Operation | Sink
    stage: Stage
    cuts: Partition
    kernel: Decision = field(default=Decision(""))
    costs: Costs = field(default=Costs())
    outputs: tuple[str, ...] = ("out",)

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


def placement(count: int, machines: int) -> Layout:
    """Shard number -> machine and wave: consecutive shards of a machine follow each other as waves.

    Machines are numbered in the order in which they are filled (`Machines.order`).
    A count that the machines divide gives every machine as many; a smaller count uses the first machines; any other
    count leaves the last machines with fewer.

    Example:
        >>> print(placement(8, 4))
        (4:1@machine, 2:1@wave)
    """
    if count <= machines:
        return Layout((Iter(count, Coord((("machine", 1),))),))
    waves = -(-count // machines)
    return Layout((Iter(machines, Coord((("machine", 1),))), Iter(waves, Coord((("wave", 1),)))))


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph, machines, and a step for each operation and sink, dependencies first.

    Args:
        graph: what is computed.
        machines: where.
        steps: how, in an order in which they could run one after the other.
        seconds: estimated time of a run.
        peak_bytes: per machine, the most that the plan holds there.
        alternatives: other plans that were simulated, as (label, seconds, peak bytes, bytes moved).
    """

    graph: Graph
    machines: Machines
    steps: tuple[Step, ...]
    seconds: float = 0.0
    peak_bytes: tuple[int, ...] = ()
    alternatives: tuple[tuple[str, float, int, int], ...] = ()

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

    def explain(self) -> str:
        """The plan as a table for people: per step its cuts, tasks, flops, bytes, peak memory, time and kernel."""
        from tileweave.planner.explain import explain

        return explain(self)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data for programs."""
        from tileweave.planner.explain import to_json

        return to_json(self)

    def _repr_svg_(self) -> str:
        from tileweave.planner.picture import to_svg

        return to_svg(self)

    def __str__(self) -> str:
        return self.explain()
