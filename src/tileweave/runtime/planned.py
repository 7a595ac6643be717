"""Plans of fused graphs: searched, of whole operations on one machine, or bound to the steps of another plan."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from tileweave.backends.base import Decision, backends
from tileweave.errors import PlanError
from tileweave.graph import ArrayData, Graph, Hole, MemoryTarget, Source
from tileweave.lower.forms import GROUPS, WAYS, decider, formed_like, fused_form, kind_of_graph
from tileweave.planner import Machines, Plan, make_plan
from tileweave.planner.search.make import problem_of
from tileweave.planner.steps import steps_of
from tileweave.runtime.io import files as io
from tileweave.runtime.prepare import keeping, prepare
from tileweave.runtime.session import PLAIN, current_session


@keeping()
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


@keeping()
def whole(graph: Graph, machines: Machines) -> Plan | None:
    """The plan of a graph on arrays on one machine, with no estimates: the steps that `planned` takes,
    which looks at nothing else where the memory holds every operation whole. None where it may look at more.
    """
    for node in graph.nodes():
        if isinstance(node, Source) and (node.placement is not None or not isinstance(node.data, (ArrayData, Hole))):
            return None
    if len(machines) > 1 or current_session() is not PLAIN:
        return None
    if not all(isinstance(sink.target, MemoryTarget) for sink in graph.sinks):
        return None
    kind = kind_of_graph(graph, machines)
    key = (kind, machines, *map(id, backends()))
    other = _LIKE.get(key) if kind is not None else None
    made = _bound(graph, other, machines) if other is not None else None
    if made is None:
        fused, small = fused_form(graph, machines, WAYS[0])
        decide = decider(machines, small)
        made = _fitting(problem_of(fused, machines, decide, io.atom).graph, machines, decide)
    if made is not None and kind is not None:
        _LIKE[key] = made.graph
    return made


_LIKE: weakref.WeakValueDictionary[Hashable, Graph] = weakref.WeakValueDictionary()
"""The last that was fused of graphs that differ in extents, while a plan of it lives."""


@keeping()
def bound_like(graph: Graph, other: Plan) -> Plan | None:
    """The steps of a plan, whole on one machine, for a graph that differs in extents; None where more differs."""
    whole = len(other.machines) == 1 and not other.homes and all(step.cuts.count == 1 for step in other.steps)
    return _bound(graph, other.graph, other.machines) if whole and current_session() is PLAIN else None


def _bound(graph: Graph, other: Graph, machines: Machines) -> Plan | None:
    """The plan of whole operations of a graph, fused as another one was."""
    found = formed_like(graph, other, machines)
    return None if found is None else _fitting(found[0], machines, found[1])


def _fitting(fused: Graph, machines: Machines, decide: Callable[..., Decision]) -> Plan | None:
    """The plan of whole operations, where the memory of one machine holds it."""
    cuts = {operation: (1,) * operation.index.rank for operation in fused.operations}
    made = Plan(fused, machines, steps_of(fused, cuts, 1, decide, io.atom), gap=0.0 if cuts else None)
    return made if prepare(made).peak_bytes[0] <= machines.machines[0].memory_bytes else None
