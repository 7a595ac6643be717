"""mbarriers and flags as the interpreter models them: phases, counts, bytes, and what a wait learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from tileweave.kernel.ir import Line
from tileweave.kernel.semantics.clocks import Clock, Event, merge


@dataclass(slots=True, eq=False)
class BarrierState:
    """One mbarrier: a phase completes when its arrivals and its bytes are there.

    Args:
        name: what errors call it.
        count: arrivals per phase.
        line: where it was started.
        started: (agent, step) of its start.
        fenced_start: whether a fence has made the start visible beyond the threads.
        copies, landed: those that bring bytes to this phase, and those of the last one that nobody has waited for yet.
        arrivers: who arrived, and where last.
    """

    name: str
    count: int
    line: Line
    started: tuple[tuple[int, int], ...] = ()
    fenced_start: bool = False
    arrived: int = 0
    pending_bytes: int = 0
    phase: int = 0
    observed: bool = True
    known: Clock = field(default_factory=dict)
    fenced: Clock = field(default_factory=dict)
    gathering: list[tuple[Clock, Clock]] = field(default_factory=list)
    copies: list[Event] = field(default_factory=list)
    landed: list[Event] = field(default_factory=list)
    arrivers: dict[str, Line] = field(default_factory=dict)

    def passes(self, parity: int) -> bool:
        """Whether the phase of this parity has completed."""
        return self.phase % 2 != parity

    def arrive(self, number: int, clocks: tuple[Clock, Clock], expected: int) -> str:
        """Arrivals and the bytes that they announce; what is wrong with them, '' if nothing."""
        if not self.observed:
            return f"phase {self.phase - 1} has completed and nobody has waited for it"
        if self.arrived + number > self.count:
            return f"{number} arrivals come to {self.arrived} of {self.count}: more than the count"
        self.gathering.append(clocks)
        self.pending_bytes += expected
        self.arrived += number
        self._complete()
        return ""

    def bring(self, size: int, clocks: tuple[Clock, Clock], copy: Event) -> None:
        """Bytes of a copy that is complete."""
        self.copies.append(copy)
        self.gathering.append(clocks)
        self.pending_bytes -= size
        self._complete()

    def _complete(self) -> None:
        if self.arrived == self.count and self.pending_bytes == 0:
            for known, fenced in self.gathering:
                merge(self.known, known)
                merge(self.fenced, fenced)
            self.gathering.clear()
            self.arrived = 0
            self.phase += 1
            self.observed = False
            self.landed, self.copies = self.copies, []

    def observe(self) -> None:
        """Somebody has waited for the phase that completed last."""
        self.observed = True
        self.landed = []

    def whose(self) -> str:
        """Who has arrived at all, for whoever waits in vain."""
        if not self.arrivers:
            return ""
        shown = [f"{label} at {line}" for label, line in list(self.arrivers.items())[:3]]
        return f"; on it arrived {', '.join(shown)}{', ..' * (len(self.arrivers) > 3)}"

    def state(self) -> str:
        """What the current phase has and lacks."""
        text = f"phase {self.phase} has {self.arrived} of {self.count} arrivals"
        if self.pending_bytes > 0:
            text += f", {self.pending_bytes} announced bytes have not come"
        if self.pending_bytes < 0:
            text += f", {-self.pending_bytes} bytes came that nobody announced"
        return text


@dataclass(slots=True, eq=False)
class Flag:
    """A flag in memory: its value, the blocks that signalled it, and what each signal tells.

    Whoever waits for a value learns what the signals up to that value tell, not what came later by chance.
    """

    value: int = 0
    blocks: set[str] = field(default_factory=set)
    signals: list[tuple[int, Clock, Clock]] = field(default_factory=list)

    def signal(self, value: int, clocks: tuple[Clock, Clock], block: str) -> None:
        """Grow by a value."""
        self.value += value
        self.signals.append((self.value, *clocks))
        self.blocks.add(block)

    def whose(self) -> str:
        """Who has signalled it, for whoever waits in vain."""
        return f"; signalled by {', '.join(sorted(self.blocks)[:4])}" if self.blocks else ""

    def tells(self, least: int) -> tuple[Clock, Clock]:
        """What is known of a flag that has reached a value."""
        known: Clock = {}
        fenced: Clock = {}
        for value, one, other in self.signals:
            merge(known, one)
            merge(fenced, other)
            if value >= least:
                break
        return known, fenced
