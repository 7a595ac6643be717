"""Plans of fused graphs: searched, of whole operations on one machine, or bound to the steps of another plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.graph import ArrayData, Graph, Hole, MemoryTarget, Source
from tileweave.lower.forms import GROUPS, WAYS, decider, formed_like, fused_form
from tileweave.planner import Machines, Plan, make_plan
from tileweave.planner.search.make import problem_of
from tileweave.planner.steps import steps_of
from tileweave.runtime.io import files as io
from tileweave.runtime.prepare import prepare
from tileweave.runtime.session import PLAIN, current_session


def planned(graph: Graph, machines: Machines, how: Mapping[str, Any] | None = None) -> Plan:
    """The plan of the fused graph; where the memory is too small for whole rows, their parts may be cut further."""
    fused, small = fused_form(graph, machines, WAYS[0])
    try:
        return make_plan(fused, machines, decider(machines, small), io.atom, **(how or {}))
    except PlanError as refused:
        if not any(operation.operator in GROUPS for operation in fused.operations):
            raise
        apart, small = fused_form(graph, machines, WAYS[1])
        try:
            return make_plan(apart, machines, decider(machines, small), io.atom, **(how or {}))
        except PlanError as error:
            raise min(refused, error, key=lambda one: one.facts.get("least_bytes", 0)) from None


def whole(graph: Graph, machines: Machines) -> Plan | None:
    """The plan of a graph on arrays on one machine, with no estimates: the steps that `planned` takes,
    which looks at nothing else where the memory holds every operation whole. None where it may look at more.
    """
    for node in graph.nodes():
        if isinstance(node, Source) and (node.placement is not None or not isinstance(node.data, (ArrayData, Hole))):
            return None
    if len(machines) > 1 or not all(isinstance(sink.target, MemoryTarget) for sink in graph.sinks):
        return None
    fused, small = fused_form(graph, machines, WAYS[0])
    decide = decider(machines, small)
    return _fitting(problem_of(fused, machines, decide, io.atom).graph, machines, decide)


def bound_like(graph: Graph, other: Plan) -> Plan | None:
    """The steps of a plan, whole on one machine, for a graph that differs in extents; None where more differs."""
    whole = len(other.machines) == 1 and not other.homes and all(step.cuts.count == 1 for step in other.steps)
    found = formed_like(graph, other.graph, other.machines) if whole and current_session() is PLAIN else None
    return None if found is None else _fitting(found[0], other.machines, found[1])


def _fitting(fused: Graph, machines: Machines, decide: Callable[..., Decision]) -> Plan | None:
    """The plan of whole operations, where the memory of one machine holds it."""
    cuts = {operation: (1,) * operation.index.rank for operation in fused.operations}
    made = Plan(fused, machines, steps_of(fused, cuts, 1, decide, io.atom), gap=0.0 if cuts else None)
    return made if prepare(made).peak_bytes[0] <= machines.machines[0].memory_bytes else None
