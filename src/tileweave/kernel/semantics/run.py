"""Runs of a kernel on the interpreter: every block of every device, with or without its arrays changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NoReturn

import numpy as np

from tileweave.index import evaluate
from tileweave.kernel.ir import Alloc, Kernel, Line, On, Op, Region, Statement, blocks_of, free_symbols, verify, walk
from tileweave.kernel.semantics.access import Ledger, refuse
from tileweave.kernel.semantics.clocks import Agent
from tileweave.kernel.semantics.cluster import Cluster
from tileweave.kernel.semantics.hangs import refuse_deadlock
from tileweave.kernel.semantics.machine import Frame, Interpreter, RunningBlock
from tileweave.kernel.semantics.memory import Storage
from tileweave.kernel.semantics.operate import operate
from tileweave.kernel.semantics.tensor_memory import require_complete
from tileweave.kernel.semantics.threads import entities

LIMIT = 20_000_000
"""Statements after which a run counts as endless: minutes of interpretation."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a check saw.

    Args:
        blocks: blocks of all devices.
        statements: statements executed.
        accesses: accesses to memory, each checked.
        outputs: parameter -> the array as the kernel leaves it.
        warnings: what could not be judged, or is seldom meant: tiles that do not exist, outputs written in part.
    """

    blocks: int
    statements: int
    accesses: int
    outputs: dict[str, Any] = field(repr=False, default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        blocks = f"{self.blocks} block{'s' * (self.blocks != 1)}"
        text = f"{blocks}, {self.statements} statements, {self.accesses} accesses: every claim holds"
        return "\n".join([text, *self.warnings])


def check_kernel(
    kernel: Kernel, args: Iterable[Any], *, limit: int = LIMIT, seed: int | None = None,
    orders: Mapping[Op, Callable[..., Any]] | None = None,
) -> Report:  # fmt: skip
    """Interpret a kernel on copies of the arrays; raise at the first claim that does not hold.

    Args:
        kernel: well formed.
        args: an array per parameter.
        limit: statements after which a run counts as endless.
        seed: of an order in which blocks start and strands take turns; None: in order, each until it waits. Where every
            claim holds, the values do not depend on it.
        orders: operator -> its sums in the order of a target, in place of sums in f64 that are rounded once.
    """
    verify(kernel)
    run = _Run(kernel, tuple(args), limit, None if seed is None else Random(seed), orders)
    run.execute()
    return Report(run.blocks, run.machine.statements, run.machine.ledger.accesses, run.outputs(),
                  (*run.machine.warnings.values(), *run.unwritten()))  # fmt: skip


def run_kernel(
    kernel: Kernel, args: Iterable[Any], *, limit: int = LIMIT, orders: Mapping[Op, Callable[..., Any]] | None = None
) -> Report:
    """The same, and the arrays take the values that the kernel leaves."""
    given = tuple(args)
    report = check_kernel(kernel, given, limit=limit, orders=orders)
    for tensor, value in zip(kernel.params, given, strict=True):
        found = report.outputs[tensor.name]
        if tensor.name not in _written(kernel.body):
            continue
        if isinstance(value, list | tuple):
            for one, array in zip(value, found, strict=True):
                _give(one, array)
        else:
            _give(getattr(value, "array", value), found)
    return report


def _give(target: Any, values: Any) -> None:
    if isinstance(target, np.ndarray):
        if not target.flags.writeable:
            refuse(
                "argument",
                "an array that the kernel writes is read-only",
                Line("", 0),
                legal="a copy, or kernel.check(..)",
            )
        target[...] = values
    else:
        np.from_dlpack(target)[...] = values


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else np.from_dlpack(value)


def _written(body: tuple[Statement, ...]) -> set[str]:
    names = set()
    for s in walk(body):
        if isinstance(s, Op):
            names |= {one.tensor.name for one in s.outs}
            if s.name == "atomic_add" and isinstance(s.ins[0], Region):
                names.add(s.ins[0].tensor.name)
    return names


def _alike(kernel: Kernel) -> dict[str, str]:
    """Register tensor -> a name of all that elementwise operators make lie as it does, and its layout if it has one."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    layouts = {s.tensor.name: s.tensor.layout for s in walk(kernel.body) if isinstance(s, Alloc)}
    for s in walk(kernel.body):
        if isinstance(s, Op) and s.name in ("map", "cast", "copy", "fill", "iota", "scan"):
            held = [r.tensor for r in (*s.outs, *s.ins) if isinstance(r, Region) and r.tensor.space == "register"]
            for one in held:
                if one.shape == held[0].shape:
                    parent[find(one.name)] = find(held[0].name)
    return {name: f"{find(name)} {layouts.get(name) or ''}" for name in list(parent)}


class _Run:
    def __init__(self, kernel: Kernel, args: tuple[Any, ...], limit: int, random: Random | None,
                 orders: Mapping[Op, Callable[..., Any]] | None) -> None:  # fmt: skip
        self.kernel = kernel
        self.devices = kernel.mesh[0][1] if kernel.mesh else 1
        self.blocks = 0
        self.memory: dict[tuple[str, int], Storage] = {}
        self.local: set[str] = set()
        for tensor, value in zip(kernel.params, args, strict=True):
            if isinstance(value, list | tuple):
                self.local.add(tensor.name)
                for device, one in enumerate(value):
                    self._load(tensor, device, one)
            else:
                self._load(tensor, 0, getattr(value, "array", value))
        for s in walk(kernel.body):
            if isinstance(s, Alloc) and s.tensor.space in ("global", "symmetric"):
                per_device = s.tensor.space == "global" and self.devices > 1
                for device in range(self.devices if per_device else 1):
                    self.memory[s.tensor.name, device] = Storage(s.tensor, self.devices, written=True)
                if per_device:
                    self.local.add(s.tensor.name)
        written = _written(kernel.body)
        for (name, _), storage in self.memory.items():
            if name in written and storage.aliased:
                refuse("injective", f"two elements of {storage.tensor} share a place, and it is written", kernel.line)
        self.machine = Interpreter(self._storage, Ledger(written), operate, limit, random, orders, _alike(kernel))

    def _load(self, tensor: Any, device: int, value: Any) -> None:
        storage = Storage(tensor, self.devices, written=True)
        storage.load(_array(value))
        self.memory[tensor.name, device] = storage

    def _storage(self, device: int, region: Region) -> Storage:
        name = region.tensor.name
        return self.memory[name, device if name in self.local else 0]

    def outputs(self) -> dict[str, Any]:
        """Parameter -> array, or one array per device."""
        found: dict[str, Any] = {}
        for tensor in self.kernel.params:
            arrays = []
            for device in range(self.devices if tensor.name in self.local else 1):
                storage = self.memory[tensor.name, device]
                arrays.append(np.array(storage.read(tuple((0, n) for n in tensor.shape))))
            found[tensor.name] = arrays if tensor.name in self.local else arrays[0]
        return found

    def unwritten(self) -> Iterator[str]:
        """Outputs that are written in part and never read."""
        read = {
            r.tensor.name for s in walk(self.kernel.body) if isinstance(s, Op) for r in s.ins if isinstance(r, Region)
        }
        outputs = self.machine.ledger.written - read
        for (name, device), storage in self.memory.items():
            left = storage.writers == 0 if name in outputs else np.zeros(0, bool)
            count = int(np.count_nonzero(left))
            if 0 < count < left.size:
                of = f" of device {device}" if name in self.local else ""
                first = [int(n) for n in np.unravel_index(int(left.argmax()), left.shape)]
                many = f"{count} of {left.size}"
                yield f"{self.kernel.line}: {many} elements of {name}{of} are never written, {name}{first} first"

    def execute(self) -> None:
        """All blocks: one after another on each device; one that waits for another block steps aside."""
        waiting: list[RunningBlock] = []
        clusters: Iterable[list[Frame]] = self._all_clusters()
        if self.machine.random is not None:
            listed = list(clusters)
            clusters = self.machine.random.sample(listed, len(listed))
        for frames in clusters:
            for frame in frames:
                self.blocks += 1
                self.machine.start(self.kernel.body, frame)
                waiting.append(frame.block)
            self._advance(waiting)
        while waiting:
            if not self._advance(waiting):
                self._deadlock(waiting)

    def _advance(self, waiting: list[RunningBlock]) -> bool:
        moved = False
        again = True
        while again:
            again = False
            for block in list(waiting):
                if self.machine.advance(block.strands):
                    moved = again = True
                block.strands[:] = [s for s in block.strands if not s.done]
                if not block.strands:
                    waiting.remove(block)
                    self._finish(block)
        stuck = [b for b in waiting if not any(
            s.blocked and s.blocked.elsewhere for one in b.cluster.blocks for s in one.strands
        )]  # fmt: skip
        if stuck:
            self._deadlock(stuck)
        return moved

    def _all_clusters(self) -> Iterator[list[Frame]]:
        """Blocks that run together, as frames that are about to start."""
        grid = self.kernel.grid
        for first in range(0, int(grid.size), grid.cluster):  # type: ignore[arg-type]
            for device in range(self.devices):
                cluster = Cluster()
                frames = [self._block(first + rank, device, cluster) for rank in range(grid.cluster)]
                cluster.blocks += [frame.block for frame in frames]
                yield frames

    def _block(self, number: int, device: int, cluster: Cluster) -> Frame:
        grid, symbols = self.kernel.grid, self._symbols(number, device)
        coords = ", ".join(f"{s} {symbols[str(s)]}" for s, _ in grid.coords)
        label = f"block {number}" + (f" ({coords})" if len(grid.coords) > 1 else "")
        label += f" of device {device}" if self.kernel.mesh else ""
        agents = tuple(Agent(self.machine.number(), threads, label) for threads in self._parts(symbols))
        block = RunningBlock(label, device, agents, cluster=cluster, rank=number % grid.cluster)
        return Frame(block, agents, label, symbols, {})

    def _symbols(self, number: int, device: int) -> dict[str, int]:
        """The numbers of a block's symbols."""
        grid, axis = self.kernel.grid, self.kernel.mesh[0][0] if self.kernel.mesh else ""
        symbols = {str(grid.block): number, **({axis: device} if axis else {})}
        for symbol, value in grid.coords:
            symbols[str(symbol)] = int(np.asarray(evaluate(value, _known(value, symbols))))
        return symbols

    def _parts(self, symbols: dict[str, int]) -> list[frozenset[int]]:
        """The coarsest sets of threads that always execute the same statements."""
        if not hasattr(self, "_cached"):
            parts = [frozenset(range(self.kernel.threads))]
            for members in _members(self.kernel.body, symbols):
                parts = [p for whole in parts for p in (whole & members, whole - members) if p]
            self._cached = sorted(parts, key=min)
        return self._cached

    def _finish(self, block: RunningBlock) -> None:
        """A block has ended: nothing is left half-done."""
        block.cluster.require_left(block.rank)
        require_complete(block.agents)
        block.ended = True
        for agent in block.agents:
            pending = [c for group in agent.groups.values() for g in group for c in g]
            for number in [*pending, *(c for opened in agent.open_copies.values() for c in opened)]:
                event, _ = block.copies[number]
                refuse(
                    "completion", f"the block ends while {event.text} is not known to be complete", event.line,
                    threads=event.label, legal="commit and wait_group(0) before the end",
                )  # fmt: skip
        for barrier in block.barriers.values():
            if barrier.arrived or barrier.pending_bytes:
                refuse(
                    "mbarrier", f"{barrier.name}: the block ends in the middle of a phase: {barrier.state()}",
                    barrier.line, threads=block.label, legal="as many arrivals and bytes per phase as announced",
                )  # fmt: skip
            for copy in barrier.landed[:1]:
                refuse(
                    "completion", f"the block ends and nobody has waited for phase {barrier.phase - 1} of "
                    f"{barrier.name}: {copy.text}", copy.line, threads=copy.label,
                    legal="a wait for every phase that copies complete: as many uses of a ring as fills",
                )  # fmt: skip

    def _deadlock(self, blocks: list[RunningBlock]) -> NoReturn:
        refuse_deadlock(self.kernel.body, self._symbols(0, 0), blocks)


def _known(value: Any, symbols: dict[str, int]) -> dict[str, int]:
    return {str(s): symbols[str(s)] for s in free_symbols(value) if str(s) in symbols}


def _members(body: tuple[Statement, ...], symbols: dict[str, int]) -> Iterator[frozenset[int]]:
    """The threads of every scope's entity."""
    for s in body:
        if isinstance(s, On):
            for _, members, inner in entities(s, symbols, ""):
                yield members
                yield from _members(s.body, inner)
        else:
            for inside in blocks_of(s):
                yield from _members(inside, symbols)
