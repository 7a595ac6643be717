"""The choice of cuts: a beam search over the operations in dependency order, then an exact simulation of the finalists.

Every operation is offered every grid whose parts are as many as the machines (and one part, and fewer where its
extents allow no more). A beam keeps the best partial choices by estimated time; ties go to fewer bytes moved and
fewer tasks. The finalists are simulated. When none fits the machines' memory, each machine's part is cut again, into
waves along one dimension or into blocks along all of them, so that less is alive at once. What a plan certainly needs
is known from its cuts, so most plans that do not fit are never simulated. If none fits, the least peak of the plans
that were considered is named with the operation: planning with that budget succeeds.

For a handful of operations the beam holds every combination, so the search is exhaustive there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import cast

from tileweave.errors import PlanError
from tileweave.graph import FileTarget, Graph, Operation, Source, Tensor, join_sinks, resolve, verify
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import input_region
from tileweave.planner.beam import beam
from tileweave.planner.cost import Traffic
from tileweave.planner.machines import Machines, size_text
from tileweave.planner.plan import Plan, Step
from tileweave.planner.simulate import Simulation, simulate, simulate_within, with_costs
from tileweave.planner.steps import WHOLE, Atoms, Decide, Waves, maker, out_size, steps_of
from tileweave.planner.tasks import block_partition

__all__ = ["make_plan", "search"]

MOST_WAVES = 4096
"""The most waves per machine that the search tries."""
MOST_WORK = 30_000
"""The most work of a plan that is simulated: tasks, and blocks that they read."""
FIRST_WORK = 150_000
"""The same for the waves of the first choice, by which data stream that are far larger than memory."""
NAMED_WORK = 10_000
"""A refusal names the least memory among plans of up to this work (or of the least of all)."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A choice of grids under a number of waves, as a plan that is not simulated yet.

    Args:
        rank: of the choice among the finalists.
        waves: how it is cut again.
        plan: without costs.
        label: for people.
    """

    rank: int
    waves: Waves
    plan: Plan
    label: str

    @property
    def small_enough(self) -> bool:
        """Whether it is simulated at all; the first choice in one wave always is."""
        streams = self.rank == 0 and not self.waves.square
        most = FIRST_WORK if streams else MOST_WORK
        return (streams and self.waves == WHOLE) or _work(self.plan, most) <= most


def search(graph: Graph, machines: Machines, decide: Decide, atoms: Atoms) -> tuple[Plan, Simulation]:
    """The fastest plan that was found among those that fit the machines' memory, with as few waves as that takes.

    What is tried does not depend on the budget, so a larger budget is never refused where a smaller one was met.

    Raises:
        PlanError: none fits; carries a budget that would do: the least that any plan that is considered needs, of
            those up to `NAMED_WORK`; and the operation that needs it.
    """
    budgets = [machine.memory_bytes for machine in machines.machines]
    for _, level in groupby(_offers(graph, machines, decide, atoms), lambda offer: offer.waves):
        fitting = []
        for offer in level:
            if _certain_bytes(offer.plan, max(budgets)) > max(budgets) or not offer.small_enough:
                continue
            result = simulate_within(offer.plan, budgets)
            if result is not None:
                fitting.append((offer.label, with_costs(offer.plan, result), result))
        if fitting:
            _, plan, result = min(fitting, key=lambda item: (item[1].seconds, item[1].bytes_moved, item[1].tasks))
            rows = tuple((label, p.seconds, max(p.peak_bytes, default=0), p.bytes_moved) for label, p, _ in fitting)
            return replace(plan, alternatives=rows), result
    raise _refusal(graph, machines, decide, atoms)


def _offers(graph: Graph, machines: Machines, decide: Decide, atoms: Atoms) -> Iterator[_Offer]:
    """Every plan that is considered: the choices of the beam in one wave, then in ever more; each plan once."""
    finalists = list(beam(graph, machines))
    seen: set[tuple[Step, ...]] = set()
    for waves in _wave_counts(graph):
        for rank, grids in enumerate(finalists):
            steps = steps_of(graph, grids, len(machines), decide, atoms, waves)
            if steps not in seen:
                seen.add(steps)
                yield _Offer(rank, waves, Plan(graph, machines, steps), _label(steps, rank, waves))


def _wave_counts(graph: Graph) -> Iterator[Waves]:
    """One wave, then ever more, as long as some dimension is long enough to be cut by them."""
    yield WHOLE
    largest = max((max(op.index.shape, default=1) for op in graph.operations), default=1)
    size = max((op.index.size for op in graph.operations), default=1)
    count = 2
    while count <= min(MOST_WAVES, size):
        if count <= largest:
            yield Waves(count)
        yield Waves(count, square=True)
        count *= 2


def _certain_bytes(plan: Plan, enough: int) -> int:
    """Bytes that some single task certainly needs, for what it reads and makes: a lower bound of the plan's peak.

    Args:
        plan: any.
        enough: more than this needs no further look.
    """
    least = 0
    for step in plan.steps:
        if isinstance(step.node, Operation):
            least = max(least, _made_bytes(step) + _read_bytes(step.node, step))
            if least > enough:
                break
    return least


def _work(plan: Plan, enough: int) -> int:
    """How many tasks a plan has, and how many blocks and sources they read: what simulating it takes.

    Args:
        plan: any.
        enough: more than this needs no further look.
    """
    work = plan.tasks
    made = {step.node: step for step in plan.steps if step.stage != "partial"}
    for step in plan.steps:
        node = step.node
        if work > enough or not isinstance(node, Operation):
            continue
        if step.stage == "combine":
            (cuts,) = (s.cuts for s in plan.steps if s.node is node and s.stage == "partial")
            reduced = node.signature.monoids if node.signature else {}
            work += step.cuts.count * prod(cuts.grid[k] for k in reduced)
            continue
        for name, _ in node.inputs:
            traffic = Traffic.of(node, name, step.cuts)
            if traffic is not None:
                work += traffic.pieces({t: block_partition(made[maker(t)], t.output) for t in traffic.origins})
    return work


def _made_bytes(step: Step) -> int:
    """The bytes of a step's first block, which is its largest."""
    box, size_bytes = step.cuts.block(0), 0
    for tensor in step.tensors:
        made = box.size
        if step.stage != "combine":
            made = out_size(cast("Operation", step.node), tensor.output, box)
        size_bytes += made * tensor.dtype.itemsize
    return size_bytes


def _read_bytes(node: Operation, step: Step) -> int:
    """The bytes that the first shard of a step certainly holds of what it reads."""
    if step.stage == "combine":  # one block of each part; late inputs are not counted
        return 0
    late = operator_of(node).finish if step.stage == "partial" else ()
    total = 0
    shared: dict[Tensor, int] = {}  # a block of the machine's own may serve several inputs
    for name, tensor in node.inputs:
        if name in late:
            continue
        region = input_region(node, name, step.cuts.block(0))
        pieces = resolve(tensor, region)
        if len(pieces) > 1:
            total += region.size * tensor.dtype.itemsize
        for piece in pieces if len(pieces) == 1 else ():
            origin = piece.origin
            if origin is not None:
                moving = {dim for row in piece.map.matrix for dim, c in enumerate(row) if c}
                points = prod(n for dim, n in enumerate(piece.box.shape) if dim in moving)
                shared[origin] = max(shared.get(origin, 0), points * tensor.dtype.itemsize)
    return total + sum(shared.values())


def _label(steps: Sequence[Step], rank: int, waves: Waves) -> str:
    whole = all(step.cuts.count == 1 for step in steps)
    name = "whole" if whole else f"choice {rank + 1}"
    if waves.count == 1:
        return name
    return f"{name}, {waves.count} {'blocks' if waves.square else 'waves'}"


def _refusal(graph: Graph, machines: Machines, decide: Decide, atoms: Atoms) -> PlanError:
    """The error that names the least that was found to do, for machines that all have it.

    The finest plans come first, so that most others certainly need more and are left aside.
    """
    budget = min(machine.memory_bytes for machine in machines.machines)
    alike = replace(machines, machines=tuple(replace(m, memory_bytes=budget) for m in machines.machines))
    first, *others = _offers(graph, alike, decide, atoms)
    small = [offer for offer in others if _work(offer.plan, NAMED_WORK) <= NAMED_WORK]
    order = [*reversed(small), first]
    found, result = order[0], simulate(order[0].plan)
    least = max(result.peak_bytes)
    for offer in order[1:]:
        if _certain_bytes(offer.plan, least - 1) < least:
            better = simulate_within(offer.plan, [least - 1] * len(machines))
            if better is not None:
                least, found, result = max(better.peak_bytes), offer, better
    step = found.plan.steps[result.peak_step]
    return PlanError(
        "plan(target, machines)",
        f"no plan that was found fits {size_text(budget)} per machine",
        inputs={
            "machines": machines,
            "operation": f"{step.name} {step.tensor.type} over {step.cuts.box}, cut {step.cuts}, stage {step.stage}",
            "least": f"{size_text(least)} ({least} bytes) per machine, by {found.label!r}, of {len(order)} plans",
        },
        legal=f"a budget of {least} bytes per machine, or more machines",
        facts={"least_bytes": least, "operation": step.name},
    )


def make_plan(graph: Graph, machines: Machines, decide: Decide, atoms: Atoms = lambda sink: None) -> Plan:
    """The verified graph's plan.

    Args:
        graph: what to compute. Sinks that are cut are planned as one per result: the plan cuts them itself.
        machines: where.
        decide: (operation, stage) -> what will compute a shard.
        atoms: sink -> the extents of the region that must have one writer, or None.
    """
    graph = join_sinks(verify(graph))
    for operation in graph.operations:
        if not operation.outputs:
            raise PlanError(
                "plan(target, machines)", f"operation {operation.operator} makes nothing", legal="one output or more"
            )
    for node in graph.nodes():
        if isinstance(node, Source) and node.placement is not None and not 0 <= node.placement < len(machines):
            raise PlanError(
                "plan(target, machines)",
                f"source {node.name!r} is placed on machine {node.placement}",
                inputs={"machines": machines},
                legal=f"0..{len(machines) - 1}",
            )
    for sink in graph.sinks:
        if sink.placement is not None and not 0 <= sink.placement < len(machines):
            raise PlanError(
                "plan(target, machines)",
                f"a sink is placed on machine {sink.placement}",
                inputs={"machines": machines, "sink": sink},
                legal=f"0..{len(machines) - 1}",
            )
    targets = [sink.target for sink in graph.sinks if isinstance(sink.target, FileTarget)]
    written = [(target.path, target.key) for target in targets]
    for path, key in written:
        if written.count((path, key)) > 1:
            raise PlanError("plan(target, machines)", f"two sinks write {path!r}", legal="one sink per file member")
    return search(graph, machines, decide, atoms)[0]
