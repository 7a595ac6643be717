"""Tasks with margins: a machine computes some rows of its neighbours' blocks too, and so asks them less often.

A chain of stencils reads, at every step, a row or so from each neighbour, and a message costs far more than the row.
Here the steps of a chain are taken some at a time. Of the last of them a machine makes its own block; of each before it
also what the ones behind it read beyond that block. So only the first reads blocks of other machines, in one message
per neighbour that holds the rows of all these steps. The values are the same, bit by bit: an element that two machines
compute is computed alike by both.

Source: own; the ghost zones of Ding and He, "A ghost cell expansion method" (2001), and the communication-avoiding
kernels of Demmel et al. (2008).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from tileweave.graph import Operation
from tileweave.graph.ops.operators import operator_of
from tileweave.planner.plan import Step
from tileweave.planner.steps import drivers
from tileweave.planner.tasks.records import Read, ReadPiece, Task
from tileweave.planner.tasks.sequence import Tasks
from tileweave.planner.tasks.shards import Enumerator, output_block
from tileweave.space import Box

MOST_STEPS = 16
"""That exchange once: each has blocks of another shape, for which kernels are bound once per process."""
MESSAGE_SECONDS = 5e-3
"""What an exchange costs beside its bytes: as long may machines compute at the edges of blocks what they need not ask
for."""
LIGHT = 64
"""Points of the index per element up to which a step is cheap to repeat at the edges of a block."""

ByMachine = Mapping[int, Task]


def widened(tasks: Sequence[Task], message_seconds: float | None = None) -> list[Task] | None:
    """The same tasks, but that chains of steps exchange once for several of them; None where there is nothing to gain.

    Args:
        tasks: of a plan; of others, as a run that goes on has left, nothing is gained: their numbers are not those by
            which reads are found.
        message_seconds: what an exchange costs that is saved; what is computed twice costs less. By default
            `MESSAGE_SECONDS`.
    """
    message_seconds = MESSAGE_SECONDS if message_seconds is None else message_seconds
    if not isinstance(tasks, Tasks):
        return None
    enumerator, changed = tasks.enumerator, dict[int, Task]()
    steps = enumerator.steps
    of_step: defaultdict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        of_step[task.step].append(task)
    chains: list[list[int]] = [[]]
    for number, step in enumerate(steps):
        machines = {task.machine for task in of_step[number]}
        if len(machines) == len(of_step[number]) > 1 and _repeats(step):
            chains[-1].append(number)
        elif chains[-1]:
            chains.append([])
    for chain in chains:
        at = 0
        while at < len(chain) - 1:
            count = MOST_STEPS
            while count > 1:
                window = chain[at : at + count]
                made = _window(steps, {n: {t.machine: t for t in of_step[n]} for n in window}, enumerator)
                if made and _extra_seconds(steps, tasks, made) <= message_seconds * (len(window) - 1):
                    changed.update(made)
                    at += len(window) - 1
                    break
                count = min(count, len(window)) // 2
            at += 1
    if not changed:
        return None
    return [_reread(changed.get(task.number, task), changed) for task in tasks]


def _repeats(step: Step) -> bool:
    """Whether parts of a step's blocks may be computed by several machines, with equal values and for little."""
    node = step.node
    if step.stage != "block" or not isinstance(node, Operation) or node.signature is None or node.after:
        return False
    if len(step.outputs) != 1 or step.spilled or step.accumulated:
        return False
    if not (node.operator == "fused" or operator_of(node).arity or "dilation" in dict(node.parameters)):
        return False  # a sum of rows is rounded otherwise in a block of another size; windows are summed alike in any
    return node.index.size <= LIGHT * node.output_types[step.outputs[0]].box.size


def _window(steps: Sequence[Step], window: Mapping[int, ByMachine], enumerator: Enumerator) -> dict[int, Task] | None:
    """The tasks of steps that exchange once, those that change; None where that cannot be."""
    members = {task.number: task for tasks in window.values() for task in tasks.values()}
    outs = {number: task.out for number, task in members.items()}
    mine = {(task.step, task.machine): task.number for task in members.values()}
    reads: dict[int, tuple[Box, list[Read]]] = {}
    crossing = False
    for number, tasks in reversed(list(window.items())):
        for task in tasks.values():
            index = _index(steps[number], task, outs[task.number])
            if index is None:
                return None
            found = []
            for one in enumerator.shards(number).inputs:
                read, _ = enumerator.read(one, index if one.region is None else one.region(index))
                found.append(read)
                for piece in read.pieces:
                    made = members.get(piece.task)
                    if made is None:
                        continue
                    twin = mine.get((made.step, task.machine))
                    if twin is None:
                        return None
                    crossing |= made.machine != task.machine
                    outs[twin] = outs[twin].union(piece.region)
            reads[task.number] = index, found
    if not crossing:
        return None
    changed = {}
    for number, task in members.items():
        index, found = reads[number]
        twins = {other: mine.get((made.step, task.machine)) for other, made in members.items()}
        own = {other: twin for other, twin in twins.items() if twin is not None}
        new = tuple(_own_pieces(read, own, outs) for read in found)
        needs = tuple(sorted({piece.task for read in new for piece in read.pieces if piece.task >= 0}))
        if needs and needs[-1] >= number:
            return None
        if outs[number] != task.out or new != task.reads:
            changed[number] = replace(task, index=index, reads=new, outs=(outs[number],), needs=needs)
    return changed


def _index(step: Step, task: Task, out: Box) -> Box | None:
    """The block of the index that makes a larger box; None where none makes just that."""
    node, index = step.node, task.index
    assert isinstance(node, Operation)
    (name,) = step.outputs
    for row, dim in enumerate(drivers(node, name)):
        first, last = out.start[row] - task.out.start[row], out.stop[row] - task.out.stop[row]
        if first or last:
            if dim is None:
                return None
            index = index.with_range(dim, index.start[dim] + first, index.stop[dim] + last)
    return index if node.index.contains(index) and output_block(node, name, index) == out else None


def _own_pieces(read: Read, own: Mapping[int, int], outs: Mapping[int, Box]) -> Read:
    """A read with the blocks of the same machine in place of those that others make of the same steps."""
    groups: dict[tuple[object, ...], list[ReadPiece]] = {}
    for place, piece in enumerate(read.pieces):
        if piece.task in own:
            number = own[piece.task]
            made = replace(piece, task=number, block=outs[number])
            key: tuple[object, ...] = (number, piece.output, piece.map) if piece.shifts else (place,)
            groups.setdefault(key, []).append(made)
        else:
            groups[(place,)] = [piece]
    pieces: list[ReadPiece] = []
    for group in groups.values():
        box, region = (reduce(Box.union, (getattr(one, name) for one in group)) for name in ("box", "region"))
        dense = box.size == sum(one.box.size for one in group)
        pieces += [replace(group[0], box=box, region=region)] if dense else group
    return replace(read, pieces=tuple(pieces))


def _extra_seconds(steps: Sequence[Step], tasks: Sequence[Task], changed: Mapping[int, Task]) -> float:
    """What the machine with the widest margins computes beside its own blocks."""
    seconds: defaultdict[int, float] = defaultdict(float)
    for number, task in changed.items():
        own = tasks[number].out.size
        seconds[task.machine] += steps[task.step].costs.seconds * (task.out.size - own) / max(1, own)
    return max(seconds.values())


def _reread(task: Task, changed: Mapping[int, Task]) -> Task:
    """A task that knows which boxes the blocks hold that it reads."""
    if not any(number in changed for number in task.needs):
        return task

    def known(piece: ReadPiece) -> ReadPiece:
        made = changed.get(piece.task)
        return piece if made is None else replace(piece, block=made.out)

    return replace(task, reads=tuple(replace(read, pieces=tuple(map(known, read.pieces))) for read in task.reads))
