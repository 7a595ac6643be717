"""The machine: strands of threads that execute statements, interleaved; a hang says who waits for whom.

A scope's control flow is the same for all its threads, so one strand executes it for all. A scope inside it becomes a
strand of its own, which runs on beside it until the outer one needs its threads again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import Expr, bounds, evaluate
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Await,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Init,
    Let,
    Line,
    Number,
    On,
    Op,
    Region,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    walk,
)
from tileweave.kernel.semantics import tensor_memory
from tileweave.kernel.semantics.access import BY_LANE, Ledger, RegionAccess, refuse
from tileweave.kernel.semantics.barriers import BarrierState, Flag
from tileweave.kernel.semantics.clocks import Agent, Clock, Event, merge, publish, synchronise
from tileweave.kernel.semantics.cluster import Cluster, ranks_of
from tileweave.kernel.semantics.memory import Storage
from tileweave.kernel.semantics.threads import BUILTINS, compiled, entities, names_of

Steps = Generator["Blocked", None, str]


@dataclass(slots=True)
class Blocked:
    """What a strand waits for.

    Args:
        ready: whether it may go on.
        why: what it waits for and what that lacks.
        line: of the wait.
        elsewhere: whether another block may bring it.
        on: the barrier or flag.
        by: the labels of those that have brought something to it.
    """

    ready: Callable[[], bool]
    why: Callable[[], str]
    line: Line
    elsewhere: bool = False
    on: Region | None = None
    by: Callable[[], Iterable[str]] = tuple


ELEMENTWISE_MOVES = ("copy", "cast", "map")
"""Operators whose registers meet memory element by element."""
TURNS = 20_000
"""Turns of one loop with a condition after which it counts as endless."""
PAUSE = Blocked(lambda: True, lambda: "for its turn", Line("", 0))


@dataclass(slots=True, eq=False)
class Strand:
    """Threads on their way through a body."""

    steps: Steps
    agents: tuple[Agent, ...]
    label: str
    blocked: Blocked | None = None
    done: bool = False


@dataclass(slots=True, eq=False)
class RunningBlock:
    """A block of the grid on a device: its threads, its shared memory, its barriers."""

    label: str
    device: int
    agents: tuple[Agent, ...]
    shared: dict[str, Storage] = field(default_factory=dict)
    barriers: dict[tuple[str, int], BarrierState] = field(default_factory=dict)
    copies: dict[int, tuple[Event, bool]] = field(default_factory=dict)
    strands: list[Strand] = field(default_factory=list)
    tensors: dict[str, Storage] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    rank: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class Frame:
    """What a strand knows: its block, its threads, the numbers of symbols, the tensors in reach."""

    block: RunningBlock
    agents: tuple[Agent, ...]
    label: str
    symbols: dict[str, int]
    tensors: dict[str, Storage]
    children: list[Strand] = field(default_factory=list)


class Interpreter:
    """The state of a run.

    Args:
        memory: tensors in global and symmetric memory, per device.
        ledger: the events.
        operate: executes an operator.
        limit: statements after which a run counts as endless.
        random: draws which strand goes on, statement by statement; None: each until it waits, in order.
        orders: operator -> its sums in the order of a target.
        alike: register tensor -> what those share that lie alike.
    """

    def __init__(
        self, memory: Callable[[int, Region], Storage], ledger: Ledger, operate: Callable[..., None], limit: int,
        random: Random | None = None, orders: Mapping[Op, Callable[..., Any]] | None = None,
        alike: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.memory = memory
        self.ledger = ledger
        self.operate = operate
        self.flags: dict[tuple[str, tuple[int, ...]], Flag] = {}
        self.atomics: dict[tuple[str, tuple[int, ...]], Clock] = {}
        self.statements = 0
        self.limit = limit
        self.random = random
        self.orders = orders or {}
        self.alike = alike or {}
        self.numbers = 0
        self.warnings: dict[tuple[str, Line], str] = {}
        self.tickets = False

    def number(self) -> int:
        """A new number of an agent or a copy."""
        self.numbers += 1
        return self.numbers

    # Numbers and regions.

    def value(self, number: Number, frame: Frame, line: Line) -> Any:
        """The number of an expression here."""
        if not isinstance(number, Expr):
            return number
        try:
            return eval(compiled(number), BUILTINS, frame.symbols)
        except (ZeroDivisionError, NameError) as error:
            refuse("range", str(error), line, expression=number, threads=frame.label)

    def bind(self, symbol: Expr, value: int, frame: Frame, line: Line) -> None:
        """Give a symbol a number within its range."""
        try:
            evaluate(
                symbol, {str(symbol): value, **{n: frame.symbols[n] for n in names_of(symbol) if n in frame.symbols}}
            )
        except LayoutError:
            low, high = bounds(symbol)
            there = f"at least {low}" if high is None else f"below {high + 1}" if low is None else f"{low}..{high}"
            refuse("range", f"{symbol} is {value}, and was declared {there}", line, threads=frame.label,
                   legal="a wider `below=`, or a mask where it is used")  # fmt: skip
        frame.symbols[str(symbol)] = value

    def access(self, region: Region, frame: Frame, line: Line) -> RegionAccess:
        """A region at this moment, in bounds."""
        begin = tuple(self.value(b, frame, line) for b in region.begin)
        valid = tuple(self.value(m, frame, line) for m in region.mask)
        skip = tuple(self.value(s, frame, line) for s in region.skip)
        found = RegionAccess(region, self.storage(region, frame), begin, valid, skip)
        found.require_inside(frame.label, line, frame.block.device)
        return found

    def storage(self, region: Region, frame: Frame) -> Storage:
        """Where a region's tensor is."""
        name = region.tensor.name
        return frame.tensors[name] if name in frame.tensors else self.memory(frame.block.device, region)

    def barrier(self, region: Region, frame: Frame, line: Line, block: RunningBlock | None = None) -> BarrierState:
        """An mbarrier that has been started, of this block or of another one of the cluster."""
        key, owner = self._key(region, frame, line), block or frame.block
        if key not in owner.barriers:
            refuse("mbarrier", f"{key[0]}[{key[1]}] is used before its init", line, threads=frame.label)
        found = owner.barriers[key]
        missing = "" if found.fenced_start else 'a fence("mbarrier_init")'
        if any(a.known.get(number, -1) < step for a in frame.agents for number, step in found.started):
            missing = missing or "a sync"
        if missing:
            refuse(
                "mbarrier", f"{found.name} is used, and between its init and here {missing} is missing", line,
                init_at=found.line, threads=frame.label, legal='init, fence("mbarrier_init"), sync',
            )  # fmt: skip
        return found

    def _key(self, region: Region, frame: Frame, line: Line) -> tuple[str, int]:
        access = self.access(region, frame, line)
        return region.tensor.name, access.begin[0]

    # Strands.

    def start(self, body: tuple[Statement, ...], frame: Frame) -> Strand:
        """A strand of its own for a body; what it started itself belongs to it."""
        strand = Strand(self._whole(body, frame), frame.agents, frame.label)
        frame.block.strands.append(strand)
        return strand

    def _whole(self, body: tuple[Statement, ...], frame: Frame) -> Steps:
        yield from self.body(body, frame)
        yield from self._join(frame)
        return ""

    def advance(self, strands: list[Strand]) -> bool:
        """Run every strand until it waits, or for one statement where chance decides; whether any made a step."""
        moved = False
        if self.random is not None:
            strands = self.random.sample(strands, len(strands))
        for strand in strands:
            while not strand.done and (strand.blocked is None or strand.blocked.ready()):
                moved = True
                try:
                    strand.blocked = next(strand.steps)
                except StopIteration:
                    strand.done, strand.blocked = True, None
                if strand.blocked is PAUSE:
                    break
        return moved

    def _join(self, frame: Frame, agents: frozenset[int] | None = None) -> Iterator[Blocked]:
        for child in frame.children:
            if not child.done and (agents is None or agents & {a.number for a in child.agents}):
                yield Blocked(lambda c=child: c.done, lambda c=child: f"for {c.label} to come back", Line("", 0))  # type: ignore[misc]
        frame.children[:] = [c for c in frame.children if not c.done]

    # Statements.

    def body(self, body: tuple[Statement, ...], frame: Frame) -> Steps:
        """Execute statements in order."""
        for s in body:
            self.statements += 1
            if self.statements > self.limit:
                refuse("endless", f"no end after {self.limit} statements", s.line, threads=frame.label)
            if isinstance(s, Break | Continue):
                return "break" if isinstance(s, Break) else "continue"
            if isinstance(s, For | While | When):
                left = yield from self._control(s, frame)
                if left:
                    return left
            elif isinstance(s, On):
                yield from self._scope(s, frame)
            elif isinstance(s, Alloc):
                self._alloc(s, frame)
            elif isinstance(s, Let) and not isinstance(s.value, Region):
                self.bind(s.symbol, self.value(s.value, frame, s.line), frame, s.line)
            else:
                yield from self._join(frame)
                if self.random is not None and self.random.random() < 0.5:
                    yield PAUSE
                yield from self._simple(s, frame)
        return ""

    def _control(self, s: For | While | When, frame: Frame) -> Steps:
        if isinstance(s, When):
            chosen = s.body if self.value(s.condition, frame, s.line) else s.otherwise
            return (yield from self.body(chosen, frame))
        if isinstance(s, For):
            start, stop, step = (self.value(v, frame, s.line) for v in (s.start, s.stop, s.step))
            for number in range(start, stop, step):
                frame.symbols[str(s.symbol)] = number
                if (yield from self.body(s.body, frame)) == "break":
                    break
            return ""
        turns = 0
        before: dict[str, int] = {}
        steady = not any(isinstance(one, Let) and isinstance(one.value, Region) for one in walk(s.body))
        while self.value(s.condition, frame, s.line):
            turns, self.statements = turns + 1, self.statements + 1
            if turns > TURNS:
                refuse("endless", f"no end after {TURNS} turns", s.line, threads=frame.label)
            if steady and before == frame.symbols:
                refuse("endless", f"a turn changes no index, and {s.condition} holds", s.line, threads=frame.label)
            before = dict(frame.symbols) if steady else {}
            if (yield from self.body(s.body, frame)) == "break":
                break
        return ""

    def _scope(self, s: On, frame: Frame) -> Steps:
        for label, members, symbols in entities(s, frame.symbols, frame.block.label):
            agents = tuple(a for a in frame.agents if a.threads <= members)
            numbers = frozenset(a.number for a in agents)
            yield from self._join(frame, numbers)
            inner = Frame(frame.block, agents, label, symbols, dict(frame.tensors))
            if agents == frame.agents and s.each is None:
                yield from self._whole(s.body, inner)
            elif agents:
                frame.children.append(self.start(s.body, inner))
        return ""

    def _alloc(self, s: Alloc, frame: Frame) -> None:
        tensor = s.tensor
        if tensor.space in ("global", "symmetric"):
            return
        if tensor.space == "shared":
            spread = tensor.layout is not None and "cta" in tensor.layout.axes
            if spread and tensor.name not in frame.block.shared:
                cluster = frame.block.cluster
                frame.block.shared[tensor.name] = cluster.shared.setdefault(
                    tensor.name, Storage(tensor, len(cluster.blocks))
                )
            elif tensor.name not in frame.block.shared:
                made = frame.block.shared[tensor.name] = Storage(tensor, written=tensor.dtype == "mbarrier")
                if made.aliased and tensor.name in self.ledger.written:
                    refuse("injective", f"two elements of {tensor} share a place", s.line, legal="an injective layout")
            frame.tensors[tensor.name] = frame.block.shared[tensor.name]
        else:
            if tensor.layout is not None and tensor.space == "register":
                self._require_held(s, frame)
            frame.tensors[tensor.name] = frame.block.tensors[tensor.name] = Storage(tensor)

    def _require_held(self, s: Alloc, frame: Frame) -> None:
        """Every place that the layout names is a thread of the scope; warps count from its first."""
        layout = s.tensor.layout
        if layout is None or any(not isinstance(v, int) for _, v in layout.offset.terms):
            return
        threads = frozenset().union(*(a.threads for a in frame.agents))
        first = min(threads) // 32
        for axis, size in (("warp", 32), ("lane", 1)):
            low, high = layout.bounds(axis)
            there = {t // 32 - first if size == 32 else t % 32 for t in threads}
            if low < min(there) or high > max(there):
                refuse(
                    "replicas", f"{s.tensor} is held by {axis} {low if low < min(there) else high}, which is not in "
                    f"{frame.label}", s.line, legal="a layout over the threads of the scope",
                )  # fmt: skip

    def _simple(self, s: Statement, frame: Frame) -> Iterator[Blocked]:
        if isinstance(s, Arrive | Sync | Signal):
            tensor_memory.released(frame.agents)
        if isinstance(s, Op):
            self.operate(self, s, frame)
        elif isinstance(s, Let):
            access = self.access(s.value, frame, s.line)  # type: ignore[arg-type]
            self.note(access, "read", s, frame)
            self.bind(s.symbol, int(access.values()), frame, s.line)
        elif isinstance(s, Init):
            key = self._key(s.barrier, frame, s.line)
            count = self.value(s.count, frame, s.line)
            started = tuple((a.number, a.tick()) for a in frame.agents)
            frame.block.barriers[key] = BarrierState(f"{key[0]}[{key[1]}]", count, s.line, started)
        elif isinstance(s, Arrive):
            self._arrive(s, frame)
        elif isinstance(s, Wait):
            yield from self._wait(s, frame)
        elif isinstance(s, Commit) and s.barrier is not None:
            tensor_memory.commit(self, s, frame)
        elif isinstance(s, Commit):
            for agent in frame.agents:
                agent.groups.setdefault(s.kind, []).append(agent.open_copies.pop(s.kind, []))
        elif isinstance(s, WaitGroup):
            self._wait_group(s, frame)
        elif isinstance(s, Fence):
            self._fence(s, frame)
        elif isinstance(s, Sync) and s.cluster:
            cluster, turn = frame.block.cluster, frame.block.cluster.turn
            if not cluster.come(frame.agents):
                yield Blocked(lambda: cluster.turn != turn, cluster.state, s.line)
        elif isinstance(s, Sync):
            for agent in frame.agents:
                agent.tick()
            synchronise(frame.agents)
        elif isinstance(s, Signal):
            self._signal(s, frame)
        elif isinstance(s, Await):
            yield from self._await(s, frame)

    def _fence(self, s: Fence, frame: Frame) -> None:
        if s.kind == "proxy.async":
            for agent in frame.agents:
                agent.fence()
        elif s.kind == "mbarrier_init":
            own = {a.number for a in frame.agents}
            for barrier in frame.block.barriers.values():
                barrier.fenced_start |= any(number in own for number, _ in barrier.started)
        else:
            tensor_memory.fence(s.kind, frame.agents)

    def _arrive(self, s: Arrive, frame: Frame) -> None:
        cluster = frame.block.cluster
        rank = frame.block.rank if s.cta is None else self.value(s.cta, frame, s.line)
        if rank != frame.block.rank:
            who = tuple((a.number, a.step + 1) for a in frame.agents)
            cluster.visit(rank, Event(who, "write", s, frame.label), frame.agents, s.line)
        barrier = self.barrier(s.barrier, frame, s.line, cluster.blocks[rank])
        threads = sum(len(a.threads) for a in frame.agents)
        number = {"each": threads, "warp": max(1, threads // 32), "one": 1}[s.lanes]
        expected = 0 if s.bytes is None else self.value(s.bytes, frame, s.line)
        for agent in frame.agents:
            agent.tick()
        barrier.arrivers[frame.label] = s.line
        problem = barrier.arrive(number, publish(frame.agents, whole=s.lanes != "one"), expected)
        if problem:
            refuse(
                "mbarrier", f"{barrier.name}: {problem}", s.line, started_at=barrier.line, threads=frame.label,
                legal="as many arrivals per phase as its count, and a wait per phase",
            )  # fmt: skip

    def _wait(self, s: Wait, frame: Frame) -> Iterator[Blocked]:
        barrier = self.barrier(s.barrier, frame, s.line)
        parity = self.value(s.parity, frame, s.line)
        if parity not in (0, 1):
            refuse("mbarrier", f"{barrier.name}: a wait for parity {parity}", s.line, legal="0 or 1")
        if not barrier.passes(parity):
            yield Blocked(
                lambda: barrier.passes(parity),
                lambda: f"for {barrier.name} parity {parity}: {barrier.state()}{barrier.whose()}",
                s.line,
                on=s.barrier,
                by=lambda: tuple(barrier.arrivers),
            )
        barrier.observe()
        for agent in frame.agents:
            merge(agent.known, barrier.known)
            merge(agent.fenced, barrier.fenced)

    def _wait_group(self, s: WaitGroup, frame: Frame) -> None:
        for agent in frame.agents:
            groups = agent.groups.get(s.kind, [])
            done = groups[: max(0, len(groups) - s.pending)]
            agent.groups[s.kind] = groups[len(done) :]
            agent.land(copy for group in done for copy in group)
            for group in done:
                for copy in group:
                    frame.block.copies.pop(copy, None)

    def _signal(self, s: Signal, frame: Frame) -> None:
        access = self.access(s.flag, frame, s.line)
        flag = self.flags.setdefault(self._flag_key(access, frame), Flag())
        synchronise(frame.agents)
        clocks = publish(frame.agents, whole=True)
        flag.signal(self.value(s.value, frame, s.line), clocks, frame.block.label)

    def _await(self, s: Await, frame: Frame) -> Iterator[Blocked]:
        access = self.access(s.flag, frame, s.line)
        flag = self.flags.setdefault(self._flag_key(access, frame), Flag())
        least = self.value(s.at_least, frame, s.line)
        name = f"{s.flag.tensor.name}{list(access.begin)}"
        if flag.value < least:
            yield Blocked(
                lambda: flag.value >= least,
                lambda: f"for {name} to reach {least}: it is {flag.value}{flag.whose()}",
                s.line,
                True,
                s.flag,
                lambda: tuple(flag.blocks),
            )
        if flag.blocks - {frame.block.label} and not self.tickets:
            self.warnings["wait", s.line] = (
                f"{s.line}: blocks wait for other blocks: a possible deadlock, unless the whole grid is resident at "
                "once or blocks take tickets (atomic_add)"
            )
        known, fenced = flag.tells(least)
        for agent in frame.agents:
            merge(agent.known, known)
            merge(agent.fenced, fenced)

    def _flag_key(self, access: RegionAccess, frame: Frame) -> tuple[str, tuple[int, ...]]:
        own = () if access.region.tensor.space == "symmetric" else (frame.block.device,)
        return access.region.tensor.name, (*own, *access.begin)

    # Accesses.

    def held(self, op: Op) -> str:
        """What the registers of a copy lie like: what one of them reads, another one of these writes back itself."""
        if op.name not in ELEMENTWISE_MOVES:
            return ""
        names = [r.tensor.name for r in (*op.outs, *op.ins) if isinstance(r, Region) and r.tensor.space == "register"]
        return self.alike.get(names[0], "") if names else ""

    def note(self, access: RegionAccess, kind: Any, s: Statement, frame: Frame, *, held: str = "") -> None:
        """Check an access of the frame's threads and remember it."""
        who = tuple((a.number, a.tick()) for a in frame.agents)
        in_tensor = access.region.tensor.space == "tensor"
        event = Event(who, kind, s, frame.label, False, BY_LANE if in_tensor else held)
        if in_tensor:
            tensor_memory.reached(access, event, frame.agents)
        for rank in ranks_of(access):
            if rank != frame.block.rank:
                frame.block.cluster.visit(rank, event, frame.agents, s.line)
        clocks = [a.known for a in frame.agents]
        fenced = [a.fenced for a in frame.agents]
        (self.ledger.read if kind == "read" else self.ledger.write)(access, event, clocks, fenced)

    def note_atomic(self, cell: RegionAccess, s: Statement, frame: Frame) -> None:
        """An atomic update: its cell has a value, and atomic updates of one cell are no race."""
        self.tickets = True
        key = (cell.region.tensor.name, (frame.block.device, *cell.begin))
        before = self.atomics.setdefault(key, {})
        for agent in frame.agents:
            merge(agent.known, before)
        self.note(cell, "write", s, frame)
        who = {a.number: a.step for a in frame.agents}
        merge(before, who)
