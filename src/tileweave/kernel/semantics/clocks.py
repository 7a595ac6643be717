"""Who did what before whom: agents with vector clocks, and the events that accesses leave.

An agent is a set of threads that always execute the same statements. Its clock says, of every agent and every
asynchronous copy, up to which step *all* its threads know it. So two operators of one agent of several threads are
ordered only by a synchronisation between them: which thread moves which element is left to dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tileweave.kernel.ir import Line, Statement, head

Clock = dict[int, int]


def merge(into: Clock, other: Clock) -> None:
    """The later of both, per agent."""
    for who, when in other.items():
        if into.get(who, -1) < when:
            into[who] = when


@dataclass(slots=True, eq=False)
class Agent:
    """Threads that execute the same statements.

    Args:
        number: unique in a run.
        threads: of the block, as 32 * warp + lane.
        label: what errors call it.
        step: how many steps it has made.
        known: what all its threads know.
        fenced: what all its threads know to be visible to the asynchronous proxy.
        own_fence: up to which step its threads fenced their own writes; others know it after a synchronisation.
        landed: copies that each thread knows of only for its own part.
        products: what it issued into tensor memory: executed in order.
        tensor: what a fence has ordered before its next accesses to tensor memory.
        loads: reads of tensor memory that no fence has ordered before its next release.
    """

    number: int
    threads: frozenset[int]
    label: str
    step: int = 0
    known: Clock = field(default_factory=dict)
    fenced: Clock = field(default_factory=dict)
    own_fence: int = -1
    landed: list[int] = field(default_factory=list)
    open_copies: dict[str, list[int]] = field(default_factory=dict)
    groups: dict[str, list[list[int]]] = field(default_factory=dict)
    products: dict[int, Event] = field(default_factory=dict)
    tensor: Clock = field(default_factory=dict)
    loads: list[Event] = field(default_factory=list)

    def tick(self) -> int:
        """The next step; a single thread always knows what it did itself."""
        if len(self.threads) == 1:
            self.known[self.number] = self.step
        self.step += 1
        return self.step

    def land(self, copies: Iterable[int]) -> None:
        """These copies of its own are complete."""
        if len(self.threads) == 1:
            merge(self.known, dict.fromkeys(copies, 1))
        else:
            self.landed += copies

    def fence(self) -> None:
        """What it wrote before, and knew to be written, is visible to the asynchronous proxy."""
        self.own_fence = self.step
        merge(self.fenced, self.known)
        if len(self.threads) == 1:
            self.fenced[self.number] = self.step


def publish(agents: Iterable[Agent], *, whole: bool) -> tuple[Clock, Clock]:
    """What a release by these agents tells: all they know and, where every thread takes part, all they did."""
    known: Clock = {}
    fenced: Clock = {}
    for one in agents:
        merge(known, one.known)
        merge(fenced, one.fenced)
        if whole or len(one.threads) == 1:
            known[one.number] = max(known.get(one.number, -1), one.step)
            if one.own_fence >= 0:
                fenced[one.number] = max(fenced.get(one.number, -1), one.own_fence)
            merge(known, dict.fromkeys(one.landed, 1))
    return known, fenced


def synchronise(agents: tuple[Agent, ...]) -> None:
    """All threads of the agents have waited for each other."""
    known, fenced = publish(agents, whole=True)
    for one in agents:
        merge(one.known, known)
        merge(one.fenced, fenced)
        one.landed.clear()


@dataclass(slots=True, eq=False)
class Event:
    """An access: by whom, at which of their steps, where in the user's source.

    Args:
        who: (agent or copy, step).
        kind: read or write.
        statement: what did it.
        label: who, for people.
        asynchronous: whether the asynchronous proxy did it.
        held: of a copy of registers or into them, the layout that these share; empty elsewhere.
        settled: of a read of tensor memory, whether a fence came before the release that followed it.
    """

    who: tuple[tuple[int, int], ...]
    kind: Literal["read", "write"]
    statement: Statement
    label: str
    asynchronous: bool = False
    held: str = ""
    settled: bool = True

    @property
    def line(self) -> Line:
        """The user's line."""
        return self.statement.line

    @property
    def text(self) -> str:
        """The statement, on one line."""
        return head(self.statement)

    def before(self, clock: Clock) -> bool:
        """Whether a clock knows all of it."""
        return all(clock.get(number, -1) >= step for number, step in self.who)
