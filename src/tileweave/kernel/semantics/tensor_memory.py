"""Tensor memory: products that run in the background in the order of their thread, commits, fences, loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tileweave.kernel.ir import Commit, Op
from tileweave.kernel.meaning import factor, matmul, scaled
from tileweave.kernel.semantics.access import RegionAccess, refuse
from tileweave.kernel.semantics.clocks import Agent, Clock, Event, merge, publish
from tileweave.kernel.semantics.memory import overlap

AFTER = 'fence("tcgen05.after") behind the wait'
BEFORE = 'fence("tcgen05.before") before the arrival or sync that follows it'


def fence(kind: str, agents: Iterable[Agent]) -> None:
    """A fence of tensor memory on one side of a synchronisation."""
    for agent in agents:
        if kind == "tcgen05.after":
            merge(agent.tensor, agent.known)
        elif kind == "tcgen05.before":
            for event in agent.loads:
                event.settled = True
            agent.loads.clear()


def released(agents: Iterable[Agent]) -> None:
    """Threads tell others what they did: a later fence does not order it before that."""
    for agent in agents:
        agent.loads.clear()


def reached(access: RegionAccess, event: Event, agents: tuple[Agent, ...]) -> None:
    """Threads load from tensor memory or store to it: behind the products that they know to be complete."""
    event.settled = False
    for agent in agents:
        agent.loads.append(event)
    storage = access.storage
    products = {storage.products[n] for n in _writers(access) if n in storage.products}
    if event.kind == "write":
        late = (one.event for one in storage.reads if one.event.asynchronous and overlap(one.box, access.box))
        products |= {one.who[0][0] for one in late}
    for number in products:
        for agent in agents:
            if agent.known.get(number, -1) >= 1 > agent.tensor.get(number, -1):
                refuse("tcgen05", f"{access.region} is {'read' if event.kind == 'read' else 'written'}, and no fence "
                       "lies behind the wait for its product", event.line, threads=event.label, legal=AFTER,
                       **{"reader" if event.kind == "read" else "writer": event.text})  # fmt: skip


def _writers(access: RegionAccess) -> set[int]:
    """The numbers of the events that wrote a region."""
    at = tuple(slice(a, b) for a, b in access.box)
    return {int(n) for n in access.storage.writers[at].flat} - {-1, 0}


def _require_fenced(machine: Any, access: RegionAccess, writes: bool, earlier: Clock, op: Op, frame: Any) -> None:
    """What threads loaded and stored is ordered before a product, by a fence on both sides."""
    found = [one for n in _writers(access) if (one := machine.ledger.events[n]) is not None]
    if writes:
        found += [one.event for one in access.storage.reads]
    for event in found:
        if event.asynchronous:
            continue
        ordered = all(event.before({**agent.tensor, **earlier}) for agent in frame.agents)
        if not (event.settled and ordered):
            what, done = ("load", "loaded") if event.kind == "read" else ("store", "stored")
            problem = f"{access.region} was {done}, and no fence orders the {what} before this product"
            refuse("tcgen05", problem, op.line,
                   first=f"{event.text} at {event.line}", threads=frame.label,
                   legal=AFTER if event.settled else BEFORE)  # fmt: skip


def product(machine: Any, op: Op, frame: Any) -> None:
    """A product into tensor memory, of this block or of a pair: an agent of its own, behind earlier ones."""
    number = machine.number()
    for agent in frame.agents:
        agent.tick()
    label = f"a product of {frame.label}"
    reads = Event(((number, 1),), "read", op, label, True)
    writes = Event(((number, 1),), "write", op, label, True)
    earlier: Clock = {n: 1 for agent in frame.agents for n in agent.products}
    clocks, fenced = [{**a.known, **earlier, number: 1} for a in frame.agents], [a.fenced for a in frame.agents]
    blocks = frame.block.cluster.blocks if op.option("pair") else [frame.block]
    if blocks[0] is not frame.block:
        refuse("tcgen05", "a product of two blocks is issued by the second of them", op.line, threads=frame.label,
               legal="with k.when(k.rank < 1)")  # fmt: skip
    regions: tuple[Any, ...] = (op.outs[0], op.ins[0], op.ins[1], *op.ins[3:])
    found = []
    for block in blocks:
        row = [machine.access(region, frame, op.line) for region in regions]
        if block is not frame.block:
            frame.block.cluster.visit(block.rank, writes, frame.agents, op.line)
            row = [RegionAccess(one.region, storage_of(block, one.region.tensor.name, op, frame), one.begin,
                          tuple(b - a for a, b in one.box)) for one in row]  # fmt: skip
        found.append(row)
    keep = op.option("keep", 1)
    kept = bool(machine.value(keep, frame, op.line))
    precision = op.option("precision")
    b_rows = [_factor(b, scales[1:], precision) for _, _, b, *scales in found]
    for _, *read in found:
        for one in read:
            machine.ledger.read(one, reads, clocks, fenced)
    wide = _joined(b_rows)
    for acc, a, _, *scales in found:
        if kept:
            machine.ledger.read(acc, reads, clocks, fenced)
        _require_fenced(machine, acc, True, earlier, op, frame)
        if a.region.tensor.space == "tensor":
            _require_fenced(machine, a, False, earlier, op, frame)
        machine.ledger.write(acc, writes, clocks, fenced)
        acc.storage.products[len(machine.ledger.events) - 1] = number
        old = acc.values() if kept else acc.values() * 0
        rows = _factor(a, scales[:1], precision)
        acc.put(machine.orders.get(op, matmul)(rows, wide, old, acc.region.tensor.element))
    for agent in frame.agents:
        agent.products[number] = writes


def _factor(access: RegionAccess, scales: list[RegionAccess], precision: object) -> Any:
    """A factor as it is multiplied, with its scales where it has any."""
    values = factor(access.values(), precision)
    return scaled(values, scales[0].values()) if scales else values


def _joined(parts: list[Any]) -> Any:
    import numpy as np

    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def storage_of(block: Any, name: str, op: Op, frame: Any) -> Any:
    """The memory of another block of the pair."""
    found = block.shared.get(name) or block.tensors.get(name)
    if found is None:
        refuse("cluster", f"{block.label} has not come to the declaration of {name}", op.line, threads=frame.label,
               legal="k.sync(cluster=True) behind the declarations")  # fmt: skip
    return found


def commit(machine: Any, s: Commit, frame: Any) -> None:
    """An arrival that comes when all products of these threads are complete."""
    for agent in frame.agents:
        agent.tick()
    known, fenced = publish(frame.agents, whole=False)
    merge(known, {n: 1 for agent in frame.agents for n in agent.products})
    for block in frame.block.cluster.blocks:
        if (s.mask is None and block is not frame.block) or (s.mask is not None and not s.mask >> block.rank & 1):
            continue
        if block is not frame.block:
            event = Event(tuple((a.number, a.step) for a in frame.agents), "write", s, frame.label)
            frame.block.cluster.visit(block.rank, event, frame.agents, s.line)
        barrier = machine.barrier(s.barrier, frame, s.line, block)
        merge(known, {a.number: a.step for a in frame.agents})
        problem = barrier.arrive(1, (known, fenced), 0)
        if problem:
            refuse("mbarrier", f"{barrier.name}: {problem}", s.line, started_at=barrier.line, threads=frame.label,
                   legal="one arrival per commit, and a wait per phase")  # fmt: skip


def require_complete(agents: tuple[Agent, ...]) -> None:
    """A block ends: somebody knows that its products are complete."""
    for issuer in agents:
        for event in issuer.products.values():
            if not any(event.before(agent.known) for agent in agents):
                refuse("completion", f"the block ends while {event.text} is not known to be complete", event.line,
                       threads=event.label, legal='commit("tcgen05", barrier) and a wait')  # fmt: skip
