"""Costs by counting, task by task: what the closed forms of the planner must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from tileweave.graph import FileTarget, Operation, Sink, Source
from tileweave.planner.costs import chunked, chunks_of, in_files
from tileweave.planner.count import EFFICIENCY, block_bytes
from tileweave.planner.machine import Machines
from tileweave.planner.placement import Placement
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.steps import partition_of, takes_boxes
from tileweave.planner.tasks import ReadPiece, Task, preimage
from tileweave.space import Box


def task_cost(plan: Plan, task: Task, made: Sequence[Task]) -> tuple[Costs, int, int]:
    """(costs of one task, bytes that it holds only while it runs, bytes of its output)."""
    step, machines = plan.steps[task.step], plan.machines
    disks = plan.disks
    homes = {**plan.residents, **disks}
    moved = fetched = carried = messages = touched = 0
    for read in task.reads:
        itemsize = read.dtype.itemsize
        touched += read.size_bytes
        for piece in read.pieces:
            if piece.source is None and piece.task < 0:
                continue
            if piece.source is not None and (piece.source not in homes or piece.source in disks):
                fetched += _read_points(piece.source, piece.region) * itemsize
                carried += piece.region.size * itemsize * (not in_files(piece.source))
                if piece.source not in disks:
                    continue
            fetched += piece.region.size * itemsize if piece.spilled else 0
            here = _points_here(plan, piece, task, made, homes)
            moved += (piece.points - here) * itemsize
            messages += here < piece.points
    out_bytes = block_bytes(plan.steps[task.step], task)
    written = task.out.size * step.tensor.dtype.itemsize if step.stage == "store" else out_bytes * step.spilled
    flops = 0.0
    node = step.node
    carried += written * (isinstance(node, Sink) and not isinstance(node.target, FileTarget))
    if isinstance(node, Operation):
        if step.stage == "combine":
            flops = float(task.out.size * max(0, len(task.reads) - len(node.outputs)))
        elif node.signature is not None:
            flops = node.signature.cost("flops", task.index)
    crossing = moved + (carried if len(machines) > 1 else 0)
    seconds = _seconds(
        machines, task.machine, flops, touched + out_bytes, crossing, messages, fetched + written - carried
    )
    costs = Costs(1, flops, moved, fetched, written, seconds)
    return costs, temporary_bytes(step, task, made), out_bytes


def temporary_bytes(step: Step, task: Task, made: Sequence[Task]) -> int:
    """The bytes that a machine newly holds to read a task's inputs, while the task runs.

    A region in one block of the machine's own is used where it lies. Anything else that comes in one piece is held as
    it comes, gaps of a strided read included; several pieces are gathered into a dense array, one at a time. A sink
    that takes any box is given its pieces one by one.
    """
    total = 0
    for read in task.reads:
        itemsize = read.dtype.itemsize
        arriving = [piece.region.size * itemsize for piece in read.pieces if not _is_here(piece, task, made)]
        if len(read.pieces) == 1:
            total += sum(arriving)
        elif takes_boxes(step.node):
            total += max(arriving, default=0)
        else:
            total += read.size_bytes + max(arriving, default=0)
    return total


def _is_here(piece: ReadPiece, task: Task, made: Sequence[Task]) -> bool:
    """Whether reading a piece brings nothing new to the machine: a block of its own, or a constant."""
    if piece.task >= 0:
        return made[piece.task].machine == task.machine and not piece.spilled
    return piece.source is None


def _read_points(source: Source, region: Box) -> int:
    """How many elements storage reads for a region: whole chunks, where the format has such."""
    chunks = chunks_of(source)
    if not chunks or region.empty:
        return region.size
    ends = zip(region.start, region.stop, chunks, strict=True)
    return prod(int(chunked(a, b - 1, chunk, extent)) for a, b, (chunk, extent) in ends)


def _points_here(plan: Plan, piece: ReadPiece, task: Task, made: Sequence[Task], homes: dict[Source, Placement]) -> int:
    """How many of the points that a piece reads its machine holds already."""
    if piece.task >= 0:
        return piece.points if made[piece.task].machine == task.machine else 0
    source = cast("Source", piece.source)
    home, here = homes[source], plan.machines.order.index(task.machine)
    cuts = partition_of(source.type.box, home)
    total = 0
    for place in cuts.places(piece.region):
        if here in home.machines(place):
            total += _points_in(piece, cuts.at(place))
    return total


def _points_in(piece: ReadPiece, block: Box) -> int:
    """Distinct points of a piece that fall into a block of its origin."""
    moving = {dim for row in piece.map.matrix for dim, c in enumerate(row) if c}
    inside = preimage(piece.map, piece.box, block)
    return prod(n for dim, n in enumerate(inside.shape) if dim in moving or n == 0)


def _seconds(
    machines: Machines, machine: int, flops: float, touched: int, moved: int, messages: int, stored: int
) -> float:
    one = machines.machines[machine]
    compute = max(flops / one.flops_per_second, touched / one.bytes_per_second) / EFFICIENCY
    transfer = (
        moved / machines.link_bytes_per_second
        + messages * machines.link_seconds
        + machines.exchange_seconds * (messages > 0)
    )
    return machines.task_seconds + compute + transfer + stored / machines.storage_bytes_per_second
