"""What a graph is planned as: with what can be one operation fused, where there is code that computes it so.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from tileweave.backends.base import ELEMENTS, Decision, OfDevice, backends
from tileweave.graph import Graph, Operation, Selector, Source, Tensor, join_sinks
from tileweave.graph.ops.grouped.rows import REDUCTIONS
from tileweave.graph.passes.grouping.alike import Descent, Places, alike
from tileweave.graph.passes.grouping.attention import ATTENTION, FEWEST_QUERIES, NARROW_ATTENTION
from tileweave.graph.passes.grouping.chains import CONV_CHAIN, ON_DEVICES
from tileweave.graph.passes.grouping.counts import COUNTED
from tileweave.graph.passes.grouping.rows import NARROW_ROWS, ROWS
from tileweave.graph.passes.grouping.sorts import VALUES_ALONE
from tileweave.graph.passes.grouping.triangles import TRIANGLE
from tileweave.graph.passes.rewrite import RewriteRule, rewrite
from tileweave.graph.passes.rules import FUSIONS
from tileweave.lower.execute import decide
from tileweave.lower.programs import lowering
from tileweave.planner import Machines

WAYS: tuple[tuple[Any, ...], ...] = (
    (COUNTED, TRIANGLE, *FUSIONS, VALUES_ALONE, CONV_CHAIN, ROWS, NARROW_ROWS, ATTENTION, NARROW_ATTENTION),
    (*FUSIONS, VALUES_ALONE),
    (),
)
"""What is fused before planning, and where that does not fit the memory; nothing where a plan is pinned."""


def planned_forms(graph: Graph, machines: Machines) -> Iterator[Graph]:
    """What a graph may be planned as on some machines: with everything fused, with less, as it is written."""
    for rules in WAYS:
        yield join_sinks(fused_form(graph, machines, rules)[0])


def decider(machines: Machines, small: bool = False) -> Callable[[Operation, Any], Decision]:
    """What computes a shard on these machines."""
    return partial(decide, devices=machines.devices, small=small)


MANY_COMPILED = 8
"""Operations that a plan compiles, from which on it compiles those of few elements, too: each would be a step in Python
between two rows of kernels, in every run, which takes as long as several small kernels (bench/training.py, digits)."""


_Descended = tuple[weakref.ref[Graph], tuple[Places, ...], bool]
_DESCENT: weakref.WeakKeyDictionary[Graph, _Descended] = weakref.WeakKeyDictionary()
"""Fused graph -> what it was made from, where its nodes come from, whether few elements are compiled. What it was made
from may keep it alive (`runtime.api`), so the reverse must not be."""


def formed_like(graph: Graph, other: Graph, machines: Machines) -> tuple[Graph, Callable[..., Decision]] | None:
    """(the graph fused as another one was that differs in extents, what computes a shard of it); None where they differ
    in more, or where a group would not be computed as one."""
    descent = _DESCENT.get(other)
    first = descent and descent[0]()
    if descent is None or first is None:
        return None
    _, places, small = descent
    fused = alike(first, other, places, graph)
    chosen = decider(machines, small)
    if fused is None or not all(op.operator not in GROUPS or chosen(op, "block").backend for op in fused.operations):
        return None
    _DESCENT[fused] = weakref.ref(graph), places, small
    return fused, chosen


def descent_of(fused: Graph) -> tuple[Graph, tuple[Places, ...]] | None:
    """The graph that a fused one was made from, and where its nodes come from."""
    found = _DESCENT.get(fused)
    first = found and found[0]()
    return None if found is None or first is None else (first, found[1])


def kind_of_graph(graph: Graph, machines: Machines) -> Hashable | None:
    """What graphs have in common of which the same is fused, whatever their extents: a guess, for `formed_like`.

    Which extents are equal, or few, and whether there are as many elements as are compiled. None where the sizes of
    single groups decide (see `_pays`).
    """
    makes = (Operation, Selector, Source)
    return kind_of_nodes([node for node in graph.nodes() if isinstance(node, makes)], machines)


def kind_of_nodes(nodes: Sequence[Any], machines: Machines) -> Hashable | None:
    """As `kind_of_graph`, of its operations, selectors and sources."""
    seen: dict[int, int] = {}
    found: list[Hashable] = []
    total, least = 0, _rows_wanted(machines)
    scarce = False
    for node in nodes:
        made = type(node) is Operation
        types = [kind for _, kind in node.outputs] if made else [node.out if type(node) is Selector else node.type]
        for kind in types:
            shape, size = kind.shape, prod(kind.shape)
            total += size
            found.append(kind.dtype)
            found.append(size < ELEMENTS)
            for n in shape:
                found.append(n if n < FEWEST_QUERIES else FEWEST_QUERIES)
                found.append(seen.setdefault(n, len(seen)))
        if made:
            found.append(node.operator)
            found.append(node.index.size < ELEMENTS)
            found += [value for _, value in node.parameters if type(value) is str]
            scarce = scarce or (node.operator in REDUCTIONS and min(prod(k.shape) for k in types) < least)
        else:
            found.append(type(node).__name__)
    if scarce and total >= SMALL_GROUP:
        return None
    return total < SMALL_GROUP, *found


def fused_form(graph: Graph, machines: Machines, rules: tuple[Any, ...]) -> tuple[Graph, bool]:
    """The fused graph, and whether operations of few elements are compiled in it."""
    descent, made, small = Descent(graph), graph, False
    device = machines.devices or any(isinstance(one, OfDevice) for one in backends())
    for small in (False, True) if rules else ():  # the second time goes on from where the first one ended
        choose = _chooser(machines, small)
        for group in (rules, ON_DEVICES) if device else (rules,):  # what a row or attention takes in comes first
            made = rewrite(made, group, choose=choose, watch=descent.watch).graph
        others = [operation for operation in made.operations if not decide(operation, "block").backend]
        few = len(made.operations) - len(others) < MANY_COMPILED
        if few or not any(decide(operation, "block", small=True).backend for operation in others):
            break
    _DESCENT[made] = weakref.ref(graph), descent.places(made), small
    return made, small


def _chooser(machines: Machines, small: bool) -> Callable[[Sequence[tuple[RewriteRule, int, Tensor]]], int]:
    """Takes the first replacement after which no less runs compiled, or on a device, than before; -1: none."""

    by_kind = not machines.devices and all(hasattr(one, "by_kind") for one in backends())  # as in `decide`
    known: dict[Hashable, bool] = {}

    def computed(made: Operation, small: bool = False) -> bool:
        sort = _sort_of(made) if by_kind else None
        answer = known.get((sort, small)) if sort is not None else None
        if answer is None:
            found = decide(made, "block", machines.devices, small)
            answer = known[sort, small] = bool(found.backend) or any(one.kernel for one in found.offered)
        return answer

    def on_device(made: Operation) -> bool:
        found = decide(made, "block", machines.devices, small)
        devices = {one.name for one in backends() if isinstance(one, OfDevice)}
        return found.backend in devices or any(one.kernel for one in found.offered)

    def choose(found: Sequence[tuple[RewriteRule, int, Tensor]]) -> int:
        for number, (rule, _, tensor) in enumerate(found):
            made = tensor.producer
            if isinstance(made, Selector):
                made = made.inputs[0][1].producer
            if rule in (COUNTED, TRIANGLE):
                if len(machines) == 1:  # several may share what these read whole
                    return number
            elif rule in ON_DEVICES:
                if isinstance(made, Operation) and on_device(made):
                    return number
            elif not isinstance(made, Operation) or made.operator not in ("fused", *GROUPS):
                return number
            elif made.operator in ("conv_chain", "attention"):
                if computed(made):
                    return number
            elif made.operator == "rows":
                if _pays(made, machines) and computed(made, small):
                    return number
            elif made.index.size < ELEMENTS or computed(made):
                return number
        return -1

    return choose


def _sort_of(made: Operation) -> Hashable:
    """What chains have in common for which there is code, or is none: a chain grows by an operation at a time.

    None for other operations.
    """
    if made.operator not in ("fused", "conv_chain"):
        return None
    steps = frozenset((name, dtype) for name, _, dtype in made.parameter("program"))
    types = [x.type for _, x in made.inputs] + [kind for _, kind in made.outputs]
    shown = frozenset((kind.dtype, kind.box.empty) for kind in types), max(kind.box.size for kind in types) < ELEMENTS
    return made.operator, lowering(made, "block"), steps, *shown


GROUPS = ("rows", "conv_chain", "product_chain", "attention")
"""Operators that only fusion makes."""
MOST_ROWS_WANTED = 16
"""A group is cut between its rows only: with fewer of them than half of a machine's processors, or so many, its parts,
which pass memory several times, could keep more processors busy."""
SMALL_GROUP = 1 << 16
"""Elements below which one thread computes a group anyway."""


def _pays(group: Operation, machines: Machines) -> bool:
    """Whether a group of rows is cheaper than its parts: every part reads and writes what the group keeps in cache."""
    axes, rank = group.parameter("axes"), group.parameter("rank")
    fastest = rank - 1 in axes  # else a row is not dense, and what is kept of it is not either
    small = len(machines) == 1 and sum(tensor.type.box.size for _, tensor in group.inputs) < SMALL_GROUP
    return fastest and (small or group.index.size >= _rows_wanted(machines))


def _rows_wanted(machines: Machines) -> int:
    return sum(min(MOST_ROWS_WANTED, -(-machine.cores // 2)) for machine in machines.machines)
