"""Walking a schedule: every node with the path that leads to it, in execution order.

The walk never loops and never fails: it skips identifiers that name nothing and nodes that it has met before, so that
rules and printers can use it on programs that are not well formed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tileweave.teir.ir.program import Axis, First, Guard, Id, Invocation, Iteration, Node, Primitive, Program

Named = TypeVar("Named", Axis, Iteration | Invocation, Primitive)


@dataclass(frozen=True, slots=True)
class Visit:
    """A node and the iterations from a root down to it, outermost first."""

    path: tuple[Iteration, ...]
    node: Node

    @property
    def guards(self) -> Guard:
        """Every term that must hold for the node to be entered, its own and its ancestors'."""
        return tuple(term for node in (*self.path, self.node) for term in node.guard)


def axes_by_id(program: Program) -> dict[Id, Axis]:
    """The axes by identifier; the first of each identifier counts."""
    return _by_id(program.axes)


def nodes_by_id(program: Program) -> dict[Id, Node]:
    """The schedule nodes by identifier; the first of each identifier counts."""
    return _by_id(program.nodes)


def primitives_by_id(program: Program) -> dict[Id, Primitive]:
    """The primitives by identifier; the first of each identifier counts."""
    return _by_id(program.primitives)


def _by_id(items: Iterable[Named]) -> dict[Id, Named]:
    found: dict[Id, Named] = {}
    for item in items:
        found.setdefault(item.id, item)
    return found


def walk(program: Program) -> Iterator[Visit]:
    """Every reachable node once, parents before children, siblings in order."""
    nodes = nodes_by_id(program)
    met: set[Id] = set()
    stack: list[tuple[tuple[Iteration, ...], Id]] = [((), root) for root in reversed(program.roots)]
    while stack:
        path, id = stack.pop()
        if id in met or id not in nodes:
            continue
        met.add(id)
        node = nodes[id]
        yield Visit(path, node)
        if isinstance(node, Iteration):
            stack += [((*path, node), child) for child in reversed(node.children)]


def invocations(program: Program) -> Iterator[Visit]:
    """The visits of `walk` that are invocations, in execution order of one pass."""
    return (visit for visit in walk(program) if isinstance(visit.node, Invocation))


def index_range(visit: Visit, axis: Axis) -> tuple[int, int]:
    """The least and greatest index of an ancestor's axis when a node is entered; least > greatest: it never is.

    A guard is a conjunction of conditions on single indices, so the set is always an interval.
    """
    low, high = 0, axis.extent - 1
    for term in visit.guards:
        if term.axis == axis.id:
            if isinstance(term, First):
                high = min(high, 0)
            else:
                low = max(low, axis.extent - 1)
    return low, high


_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printed(name: object) -> str:
    """A name as it may stand on a line: control characters, directions and halves of surrogates as Python escapes them.

    Example:
        >>> printed("k"), printed(3), printed("a\\nb")
        ('k', '3', 'a\\\\nb')
    """
    return _UNPRINTED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(name))


def show_guard(guard: Guard) -> str:
    """A guard as the document writes it: ``first(k) and last(j)``, or ``None``."""
    terms = [f"{type(term).__name__.lower()}({printed(getattr(term, 'axis', term))})" for term in guard]
    return " and ".join(terms) or "None"


def show_path(visit: Visit) -> str:
    """The node identifiers from the root down, joined by slashes."""
    return "/".join(printed(node.id) for node in (*visit.path, visit.node))
