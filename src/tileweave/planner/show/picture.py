"""A plan as a picture: steps with their cuts from left to right, and what moves between machines."""

from __future__ import annotations

from tileweave import draw
from tileweave.graph import Operation, Selector, Sink, Source, Tensor
from tileweave.planner.plan import Plan
from tileweave.planner.show.explain import cuts_text, step_label
from tileweave.words import seconds_text, size_text

OPERATION, STORE, SOURCE, MOVES = "#E5E8E8", "#B4F8C8", "#d0d0ff", "#ffd8a8"


def to_svg(plan: Plan, *, title: bool = True) -> str:
    """The steps of a plan as boxes, coloured where bytes move between machines, joined by what they read.

    Args:
        title: a line above says the machines and what the plan costs.
    """
    nodes: dict[str, draw.BoxNode] = {}
    edges: dict[tuple[str, str], draw.Edge] = {}
    made: dict[Operation, str] = {}
    for number, step in enumerate(plan.steps):
        key = f"step {number}"
        moved = step.costs.bytes_moved
        shards = "1 shard" if step.cuts.count == 1 else f"{step.cuts.count} shards: {cuts_text(step)}"
        lines = [step_label(step), ", ".join(str(tensor.type) for tensor in step.tensors), shards]
        if moved:
            lines.append(f"moves {size_text(moved)}")
        store = isinstance(step.node, Sink)
        fill = MOVES if moved else STORE if store else OPERATION
        tensors = [step.node.tensor] if isinstance(step.node, Sink) else [t for _, t in step.node.inputs]
        if step.stage == "combine" and isinstance(step.node, Operation):
            edges[made[step.node], key] = draw.Edge(made[step.node], key)
            tensors = []
        for tensor in tensors:
            for origin in _origins(tensor):
                if isinstance(origin, Source):
                    start = f"source {origin.name or id(origin)}"
                    name = origin.name.rpartition("/")[2] or "array"
                    nodes.setdefault(start, draw.BoxNode(start, (name, str(origin.type)), "cds", SOURCE))
                else:
                    start = made[origin]
                edges.setdefault((start, key), draw.Edge(start, key))
        nodes[key] = draw.BoxNode(key, tuple(lines), "cds" if store else "arrow", fill)
        if isinstance(step.node, Operation):
            made[step.node] = key
    peak = size_text(max(plan.peak_bytes, default=0))
    facts = (
        f"{plan.machines}: {plan.tasks} tasks, {size_text(plan.bytes_moved)} moved, "
        f"peak {peak} per machine, {seconds_text(plan.seconds)} estimated"
    )
    return draw.layers(list(nodes.values()), list(edges.values()), title=facts if title else "")


def _origins(tensor: Tensor) -> list[Operation | Source]:
    """The operations and sources that a tensor's selectors read, each once."""
    found: dict[Operation | Source, None] = {}
    todo = [tensor]
    while todo:
        producer = todo.pop().producer
        if isinstance(producer, Selector):
            todo += [t for _, t in producer.inputs]
        else:
            found[producer] = None
    return list(found)
