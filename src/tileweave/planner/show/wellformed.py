"""Whether a plan that was read from a document computes its graph: a tampered one is refused, not run.

Each rule is a function of its own. What they hold together is all that the enumeration of tasks takes for granted, so
that a plan that passes gives the values of its graph, whatever it says of costs.

Source: own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tileweave.backends.base import backend
from tileweave.errors import BackendError, PlanError
from tileweave.graph import Graph, Operation, Sink, Tensor
from tileweave.planner.costs import read_terms
from tileweave.planner.machine.values import MOST_MACHINES, Machines
from tileweave.planner.placement import Placement
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.streams import needed_steps, read_tensors
from tileweave.space import Box


def check_plan(plan: Plan) -> None:
    """Refuses a plan that could not be run, or that would compute something else than its graph.

    Raises:
        PlanError: what is wrong, with the step.
    """
    every_node_once(plan.graph, plan.steps)
    for number, step in enumerate(plan.steps):
        where = f"step {number} ({step.name}, {step.stage})"
        cuts_are_of_what_is_cut(where, step)
        placement_holds(where, step.where, step.cuts.grid, len(plan.machines), exact=isinstance(step.node, Operation))
        outputs_are_made(where, step)
        kernel_is_known(where, step)
    what_is_read_is_there(plan.steps)
    for source, home in plan.homes:
        where = f"the place of source {source.name or 'array'}"
        _is_rank(where, home, len(source.type.shape))
        placement_holds(where, home, home.grid, len(plan.machines), exact=not home.run)
    machines_are_described(plan.machines)
    numbers_are_numbers(plan)


def every_node_once(graph: Graph, steps: tuple[Step, ...]) -> None:
    """Every operation of the graph is a block, or partial results and then their combination; every sink is stored."""
    stages: dict[Operation | Sink, list[str]] = {}
    for step in steps:
        stages.setdefault(step.node, []).append(step.stage)
    nodes = [node for node in graph.nodes() if isinstance(node, (Operation, Sink))]
    for node in nodes:
        legal = (["block"], ["partial", "combine"]) if isinstance(node, Operation) else (["store"],)
        found = stages.pop(node, [])
        if found not in legal:
            name = node.operator if isinstance(node, Operation) else "a sink"
            said = " and ".join(map(str, found)) or "no step"
            raise _refused(f"{name} has {said}", " or ".join(" and ".join(one) for one in legal))
    if stages:
        raise _refused("a step is of no node of the graph", "the steps of its operations and sinks")


def cuts_are_of_what_is_cut(where: str, step: Step) -> None:
    """Cuts ascend from the beginning to the end of the index, or of the tensor that is combined or stored."""
    node, box = step.node, _box_of(step)
    legal = f"boundaries of {box} in order, per dimension"
    if len(step.cuts.cuts) != box.rank:
        raise _refused(f"{where} has cuts of {len(step.cuts.cuts)} dimensions", legal)
    for edges, first, stop in zip(step.cuts.cuts, box.start, box.stop, strict=True):
        if not all(type(at) is int for at in edges) or len(edges) < 2 or (edges[0], edges[-1]) != (first, stop):
            raise _refused(f"{where} has the cuts {list(edges)}", legal)
        if any(a > b for a, b in pairwise(edges)):
            raise _refused(f"{where} has the cuts {list(edges)}", legal)
    if not isinstance(node, Operation) or step.stage == "combine":
        return
    signature, grid = node.signature, step.cuts.grid
    if signature is None and any(n > 1 for n in grid):
        raise _refused(f"{where} is cut, and needs its inputs whole", "one block")
    reduced = any(grid[k] > 1 for k in signature.monoids) if signature is not None else False
    if reduced != (step.stage == "partial"):
        problem = "cuts" if reduced else "does not cut"
        raise _refused(f"{where} {problem} what it reduces", "partial where it does, else block")


def placement_holds(where: str, place: Placement, grid: tuple[int, ...], machines: int, exact: bool) -> None:
    """Every block lies on a machine, as one of its waves."""
    _is_rank(where, place, len(grid))
    pairs = [pair for row in (*place.digits, place.replica) for pair in row]
    counts = [*place.grid, *place.waves, *(extent for extent, _ in pairs), *(stride for _, stride in pairs)]
    sound = all(type(n) is int and 1 <= n <= MOST_MACHINES for n in counts[2 * len(grid) :])
    turns = zip(place.waves, grid, strict=True)
    if place.grid != grid or not sound or not all(type(w) is int and 1 <= w <= max(1, n) for w, n in turns):
        raise _refused(f"{where} is placed by {place}", f"extents, strides and waves for the grid {grid}")
    if exact and any(p * w != n for p, w, n in zip(place.parts, place.waves, grid, strict=True)):
        raise _refused(f"{where} is placed by {place}", "parts times waves that are the grid")
    last = place.first_of_rest - 1 + place.rest
    if min(place.offset, place.run, place.rest) < 0 or last >= machines:
        raise _refused(f"{where} is on the machines {place.offset} to {last}", f"machines 0 to {machines - 1}")
    if place.weights and (len(place.weights) != machines or min(place.weights) < 1):
        raise _refused(f"{where} has the weights {list(place.weights)}", f"{machines} of 1 or more")


def outputs_are_made(where: str, step: Step) -> None:
    """A step keeps outputs of its operation, each once; partial results are of all of them."""
    if not isinstance(step.node, Operation):
        return
    names = [name for name, _ in step.node.outputs]
    kept = list(step.outputs)
    wrong = not kept or len(set(kept)) < len(kept) or not set(kept) <= set(names)
    if wrong or (step.stage == "partial" and kept != names):
        raise _refused(f"{where} keeps the outputs {kept}", f"of {names}")


def kernel_is_known(where: str, step: Step) -> None:
    """There is the backend that computes a step."""
    one = step.kernel
    if not all(isinstance(text, str) for text in (one.kernel, one.reason, one.backend)):
        raise _refused(f"{where} has the kernel {one!r}", "names of a kernel and of a backend")
    try:
        if one.backend:
            backend(one.backend)
    except BackendError:
        raise _refused(f"{where} is for the backend {one.backend!r}", "a backend that there is") from None


def what_is_read_is_there(steps: tuple[Step, ...]) -> None:
    """Steps come after those that keep what they read, and after those that sequence points hold before them."""
    seen: set[Operation | Sink] = set()
    kept: set[Tensor] = set()
    for number, step in enumerate(steps):
        node = step.node
        held = [one for point in node.after for one in point.before] if isinstance(node, Operation) else []
        read = [term.origin for tensor in read_tensors(step) for term in read_terms(tensor)]
        made = {one for one in read if one is not None and isinstance(one.producer, Operation)}
        early = any(one not in seen for one in held if isinstance(one, (Operation, Sink)))
        if early or not {one.producer for one in made} <= seen:
            raise _refused(f"step {number} ({step.name}) comes before a step that it needs", "dependencies first")
        if not made <= kept:
            names = ", ".join(repr(one.output) for one in made - kept)
            raise _refused(
                f"step {number} ({step.name}) reads the output {names}, which no step keeps", "outputs that are read"
            )
        if step.stage != "partial":
            seen.add(node)
            kept.update(Tensor(node, name) for name in step.outputs if isinstance(node, Operation))
    try:
        needed_steps(steps)
    except KeyError:  # of what is empty nothing is read, but an order is kept
        raise _refused("a step comes before a step that it needs", "dependencies first") from None


def machines_are_described(machines: Machines) -> None:
    """Machines have names, sizes and rates, and groups are of whole machines."""
    for machine in machines.machines:
        if not isinstance(machine.name, str) or not isinstance(machine.gpu, str):
            raise _refused(f"a machine has the name {machine.name!r} and the device {machine.gpu!r}", "texts")
    for group in machines.groups:
        if not isinstance(group.name, str) or type(group.first) is not int or type(group.last) is not int:
            raise _refused(f"{group} is no group of machines", "a name, and numbers of machines")
    described: list[Any] = [machines, *machines.machines, *machines.groups]
    for one in described:
        for name, about in one.__dataclass_fields__.items():
            value = getattr(one, name)
            if name in ("name", "gpu", "storage", "machines", "groups") or (value is None and about.default is None):
                continue
            for n in [n for row in value for n in row[1:]] if isinstance(value, tuple) else [value]:
                rate = name.endswith("_per_second") or isinstance(value, tuple)
                some = rate or name in ("memory_bytes", "cores")
                if not (_is_number(n) or (rate and n == float("inf"))) or (some and n == 0):
                    raise _refused(f"{name} is {n!r}", "a number above 0" if some else "a number of 0 or more")


def numbers_are_numbers(plan: Plan) -> None:
    """What is said of costs can be shown and compared."""
    found: list[tuple[str, Any]] = [("seconds", plan.seconds), *(("peak_bytes", n) for n in plan.peak_bytes)]
    found += [("gap", plan.gap)] if plan.gap is not None else []
    for step in plan.steps:
        found += [(name, getattr(step.costs, name)) for name in Costs.__dataclass_fields__]
    found += [("alternatives", n) for row in plan.alternatives for n in row[1:]]
    for name, value in found:
        if not _is_number(value):
            raise _refused(f"{name} is {value!r}", "a number of 0 or more")
    if len(plan.peak_bytes) not in (0, len(plan.machines)):
        raise _refused(f"there are {len(plan.peak_bytes)} peaks of memory", f"one per machine: {len(plan.machines)}")


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return type(value) is int and 0 <= value < 1 << 63
    return isinstance(value, float) and 0 <= value < float("inf")


def _box_of(step: Step) -> Box:
    """What a step's cuts are of."""
    node = step.node
    if isinstance(node, Sink):
        return node.tensor.type.box
    return node.output_types[step.outputs[0]].box if step.stage == "combine" else node.index


def _is_rank(where: str, place: Placement, rank: int) -> None:
    if len(place.grid) != rank:
        raise _refused(f"{where} is placed by {len(place.grid)} dimensions", f"{rank}")


def _refused(problem: str, legal: str) -> PlanError:
    return PlanError("load(plan)", problem, legal=legal)
