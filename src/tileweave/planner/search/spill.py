"""Plans whose blocks wait for their readers in files: what is looked at where memory does not suffice.

A block that only its own stream reads is gone with its wave. What another stream reads is held whole, which a budget
may refuse; such steps can be spilled. A sink that stores a source as it is has no step to spill, so it is given one: a
copy, cut as the source's file is, so that each chunk is read once, however the sink's file is cut.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tileweave.graph import FileData, FileTarget, Graph, Operation, Sink, Source, Tensor
from tileweave.graph.ir.nodes import Node
from tileweave.graph.ops.elementwise import elementwise
from tileweave.graph.passes.shard import moved
from tileweave.planner.costs import chunks_of
from tileweave.planner.plan import Plan, Step
from tileweave.planner.steps import Atoms, Waves, stored_alone
from tileweave.planner.streams import needed_steps, streams

COPY = "cast"
"""The operator that gives the same values where the element type is the same."""


def spilled(plan: Plan, atoms: Atoms, waves: Waves) -> Iterator[Plan]:
    """The plan with the largest of the steps that are held beyond their stream spilled, then with all of them.

    Files in chunks that store what is spilled are cut by their own chunks.
    """
    steps = plan.steps
    stream_of = {n: k for k, stream in enumerate(streams(steps)) for n in (*stream.steps, *stream.trailing)}
    needed = needed_steps(steps, reads_only=True)
    read_later = {n for number, row in enumerate(needed) for n in row if stream_of[n] != stream_of[number]}
    held = [n for n in read_later if isinstance(steps[n].node, Operation) and steps[n].stage != "partial"]
    held.sort(key=lambda n: -sum(tensor.type.size_bytes for tensor in steps[n].tensors))
    for chosen in {frozenset(held[:1]), frozenset(held)} - {frozenset()}:
        made = {steps[n].node for n in chosen}
        yield replace(plan, steps=tuple(_again(s, k in chosen, made, plan, atoms, waves) for k, s in enumerate(steps)))


def _again(step: Step, chosen: bool, made: Collection[Node], plan: Plan, atoms: Atoms, waves: Waves) -> Step:
    """A step of the plan that spills: what goes through whole chunks of a file is cut by these."""
    node = step.node
    atom: tuple[int, ...] | None = None
    if isinstance(node, Sink):
        atom = atoms(node) if node.tensor.producer in made and node.placement is None else None
    elif chosen and node.operator == COPY:
        read = node.inputs[0][1].producer
        atom = tuple(chunk for chunk, _ in chunks_of(read)) if isinstance(read, Source) else None
    if atom:
        cuts, where = stored_alone(step.tensor, atom, len(plan.machines), waves, step.where.weights)
        step = replace(step, cuts=cuts, where=where)
    return replace(step, spilled=chosen)


def with_copies(graph: Graph) -> Graph | None:
    """The graph with a copy before each zarr array that stores a source's file as it is; None where there is none."""
    stored = [node for node in graph.nodes() if isinstance(node, Sink) and _stores_source(node)]
    if not stored:
        return None
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        new[node] = moved(node, new)
        if node in stored and isinstance(node, Sink):
            new[node] = replace(node, tensor=copied(node.tensor))
    made = new[graph]
    return made if isinstance(made, Graph) else None


def copied(tensor: Tensor) -> Tensor:
    """An operation that gives the same values."""
    return elementwise(COPY, [tensor], tensor.dtype, ("dtype", tensor.dtype.name))


def copies(node: Operation) -> bool:
    """Whether an operation gives the values of its one input as they are."""
    return node.operator == COPY and node.inputs[0][1].type == node.output_types["out"]


def _stores_source(sink: Sink) -> bool:
    source, target = sink.tensor.producer, sink.target
    of_file = isinstance(source, Source) and isinstance(source.data, FileData)
    return of_file and isinstance(target, FileTarget) and target.format == "zarr" and bool(sink.tensor.type.box.size)
