"""Blocks of a cluster as the interpreter sees them: their common barrier, and who may reach whose memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tileweave.kernel.ir import Line
from tileweave.kernel.semantics.access import RegionAccess, refuse
from tileweave.kernel.semantics.clocks import Agent, Event, synchronise
from tileweave.kernel.semantics.memory import Storage

LEGAL = "k.sync(cluster=True) before the first access and after the last one"


@dataclass(slots=True, eq=False)
class Cluster:
    """Blocks that run together.

    Args:
        blocks: by rank.
        shared: tensors that lie over all of them.
        arrived: who has come to the barrier of the cluster.
        turn: how often it has opened.
        visits: per rank, what other blocks did to its memory and barriers.
    """

    blocks: list[Any] = field(default_factory=list)
    shared: dict[str, Storage] = field(default_factory=dict)
    arrived: list[Agent] = field(default_factory=list)
    turn: int = 0
    visits: dict[int, list[Event]] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Threads of all blocks."""
        return sum(len(agent.threads) for block in self.blocks for agent in block.agents)

    def come(self, agents: tuple[Agent, ...]) -> bool:
        """Agents come to the barrier of the cluster; whether it opens."""
        for agent in agents:
            agent.tick()
        self.arrived += agents
        if sum(len(agent.threads) for agent in self.arrived) < self.threads:
            return False
        synchronise(tuple(self.arrived))
        self.arrived.clear()
        self.turn += 1
        return True

    def state(self) -> str:
        """Who is missing at the barrier."""
        found = sum(len(agent.threads) for agent in self.arrived)
        return f"for the barrier of its cluster: {found} of {self.threads} threads have come"

    def visit(self, rank: int, event: Event, agents: Iterable[Agent], line: Line) -> None:
        """An access to the memory or a barrier of a block by threads of another one: it has started, and not ended."""
        block = self.blocks[rank]
        rows = {"access": event.text, "threads": event.label, "legal": LEGAL}
        if block.ended:
            refuse("cluster", f"{block.label} has ended, and its shared memory is accessed", line, **rows)
        if not all(any(a.known.get(other.number, -1) >= 0 for other in block.agents) for a in agents):
            refuse("cluster", f"{block.label} is not known to have started, and its shared memory is accessed",
                   line, **rows)  # fmt: skip
        self.visits.setdefault(rank, []).append(event)

    def require_left(self, rank: int) -> None:
        """A block ends: what others did to its memory is known to it."""
        block = self.blocks[rank]
        for event in self.visits.get(rank, ()):
            if not any(event.before(agent.known) for agent in block.agents):
                refuse(
                    "cluster", f"{block.label} ends, and an access to its shared memory may come later", event.line,
                    access=event.text, threads=event.label, legal=LEGAL,
                )  # fmt: skip


def ranks_of(access: RegionAccess) -> Iterator[int]:
    """The blocks of the cluster on whose memory a region lies."""
    if access.storage.devices is not None and access.region.tensor.space == "shared" and not access.empty:
        held = access.storage.devices[tuple(slice(a, b) for a, b in access.box)]
        yield from (int(rank) for rank in np.unique(held))
