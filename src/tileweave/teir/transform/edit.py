"""The bench on which transforms work: a program taken apart, changed in place, and put together again.

Identifiers of what stays never change. Putting together drops the nodes, axes and primitives that the change left
unused, writes nodes in execution order, and verifies.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tileweave.errors import ScheduleError, VerifyError
from tileweave.teir.analysis.analyse import Conflict, accesses, find_conflict
from tileweave.teir.ir.program import (
    Axis,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Node,
    Primitive,
    Program,
    TensorSpec,
)
from tileweave.teir.ir.text import tree
from tileweave.teir.ir.verify import verify
from tileweave.teir.ir.walk import Visit, walk

GuardMap = Callable[[Guard], Guard | None]
"""A guard's new form; None when it can never hold."""


class Edit:
    """One change to one program, and the errors that it may raise."""

    def __init__(self, program: Program, where: str) -> None:
        verify(program)
        self.program = program
        self.where = where
        self.axes = {axis.id: axis for axis in program.axes}
        self.nodes = {node.id: node for node in program.nodes}
        self.primitives = {primitive.id: primitive for primitive in program.primitives}
        self.roots = program.roots
        self.tensors = program.tensors

    def refuse(self, problem: str, witness: Conflict | None = None) -> ScheduleError:
        """The error of this change."""
        inputs = {"program": "\n".join([self.program.name, tree(self.program)])}
        if witness is not None:
            problem = f"{problem}: {witness}"
        return ScheduleError(self.where, problem, inputs=inputs, facts={"witness": witness})

    def done(self) -> Program:
        """The changed program, verified."""
        spare = self.put_together()
        before, after = _used(self.program), _used(spare)
        gone = [old - new for old, new in zip(before, after, strict=True)]
        program = replace(
            spare,
            axes=tuple(axis for axis in spare.axes if axis.id not in gone[0]),
            primitives=tuple(p for p in spare.primitives if p.id not in gone[1]),
        )
        try:
            verify(program)
        except VerifyError as error:
            raise self.refuse(f"the result would break {error.facts['rule']}: {error.problem}") from error
        return program

    def put_together(self) -> Program:
        """The program as it stands: reachable nodes in execution order."""
        loose = replace(self.program, tensors=self.tensors, roots=self.roots, nodes=tuple(self.nodes.values()))
        nodes = tuple(visit.node for visit in walk(loose))
        return replace(loose, nodes=nodes, axes=tuple(self.axes.values()), primitives=tuple(self.primitives.values()))

    # ── looking ──

    def node(self, id: Id) -> Node:
        """The node of this id."""
        if not isinstance(id, str | int) or id not in self.nodes:
            raise self.refuse(f"there is no node {id!r}")
        return self.nodes[id]

    def iteration(self, id: Id) -> Iteration:
        """The iteration of this id."""
        node = self.node(id)
        if isinstance(node, Invocation):
            raise self.refuse(f"node {id!r} is an invocation")
        return node

    def invocation(self, id: Id) -> Invocation:
        """The invocation of this id."""
        node = self.node(id)
        if isinstance(node, Iteration):
            raise self.refuse(f"node {id!r} is an iteration")
        return node

    def only_iteration_below(self, outer: Iteration) -> Iteration:
        """The only child of an iteration, an unguarded iteration."""
        child = self.nodes[outer.children[0]]
        if len(outer.children) != 1 or isinstance(child, Invocation) or child.guard:
            raise self.refuse(f"node {outer.id!r} does not have one child that is an unguarded iteration")
        return child

    def visit(self, id: Id) -> Visit:
        """The node with its path, in the program before the change."""
        return next(visit for visit in walk(self.program) if visit.node.id == id)

    def consumed_conflict(self, node: Invocation, axis: Id) -> Conflict | None:
        """A byte on which two steps of one invocation conflict that differ in a consumed axis, or None."""
        visit = self.visit(node.id)
        found = [access for access in accesses(self.program) if access.visit == visit]
        fixed = {above.axis for above in visit.path}
        last = self.axes[axis].extent - 1
        for k, a in enumerate(found):
            for b in found[k:]:
                if a.tensor != b.tensor or not (a.writes or b.writes):
                    continue
                for between in ((1, last), (-last, -1)):
                    conflict = find_conflict(a, b, fixed, {axis: between}, reordered=True)
                    if conflict is not None:
                        return conflict
        return None

    # ── changing ──

    def new_axis(self, id: Id, extent: int, strides: Sequence[int], offsets: Sequence[int]) -> Id:
        """A further axis; its id is made unique."""
        id = _fresh(id, self.axes)
        self.axes[id] = Axis(id, extent, tuple(strides), tuple(offsets))
        return id

    def new_scratch(self, name: str, dtype: str, size_bytes: int, strides: Mapping[Id, int]) -> str:
        """A further scratch tensor, which moves along the given axes; its name is made unique."""
        name = str(_fresh(name, [spec.name for spec in self.tensors]))
        self.tensors = (*self.tensors, TensorSpec(name, dtype, "scratch", size_bytes))
        for id, axis in self.axes.items():
            self.axes[id] = replace(axis, strides=(*axis.strides, strides.get(id, 0)), offsets=(*axis.offsets, 0))
        return name

    def new_iteration(self, id: Id, axis: Id, children: Sequence[Id], like: Iteration | None, guard: Guard) -> Id:
        """A further iteration, with the policy of another; its id is made unique."""
        id = _fresh(id, self.nodes)
        self.nodes[id] = Iteration(id, axis, tuple(children), like.policy if like else "sequential", guard)
        return id

    def new_invocation(self, id: Id, primitive: Id, guard: Guard) -> Id:
        """A further invocation; its id is made unique."""
        id = _fresh(id, self.nodes)
        self.nodes[id] = Invocation(id, primitive, guard)
        return id

    def set_node(self, node: Node) -> None:
        """A node in place of the one with its id."""
        self.nodes[node.id] = node

    def new_primitive(self, primitive: Primitive) -> Id:
        """A further primitive; its id is made unique."""
        id = _fresh(primitive.id, self.primitives)
        self.primitives[id] = replace(primitive, id=id)
        return id

    def set_primitive(self, node: Id, primitive: Primitive) -> None:
        """An invocation's primitive; a shared one is copied under a new id."""
        invocation = self.invocation(node)
        users = [n for n in self.nodes.values() if isinstance(n, Invocation) and n.primitive == primitive.id]
        if len(users) > 1:
            primitive = replace(primitive, id=_fresh(primitive.id, self.primitives))
        self.primitives[primitive.id] = primitive
        self.nodes[node] = replace(invocation, primitive=primitive.id)

    def parent(self, id: Id) -> Iteration | None:
        """The iteration that has this node as a child, or None for a root."""
        return next((n for n in self.nodes.values() if isinstance(n, Iteration) and id in n.children), None)

    def siblings(self, id: Id) -> tuple[Id, ...]:
        """The children list, or the roots, that hold this node."""
        parent = self.parent(id)
        return self.roots if parent is None else parent.children

    def replace_in_parent(self, id: Id, instead: Iterable[Id]) -> None:
        """Other nodes where this one stands; a parent that is left without children goes as well."""
        new = tuple(instead)
        if id in self.roots:
            k = self.roots.index(id)
            self.roots = (*self.roots[:k], *new, *self.roots[k + 1 :])
            return
        for parent in self.nodes.values():
            if isinstance(parent, Iteration) and id in parent.children:
                k = parent.children.index(id)
                children = (*parent.children[:k], *new, *parent.children[k + 1 :])
                self.nodes[parent.id] = replace(parent, children=children)
                if not children:
                    self.replace_in_parent(parent.id, ())
                return

    def subtrees(self, ids: Sequence[Id], guard: GuardMap, *, copy: bool) -> tuple[Id, ...]:
        """Subtrees with rewritten guards, in place or as copies under new ids; what is never entered is left out."""
        kept: list[Id] = []
        for id in ids:
            node = self.nodes[id]
            term = guard(node.guard)
            if term is None:
                continue
            name = _fresh(id, self.nodes) if copy else id
            self.nodes[name] = replace(node, id=name, guard=term)
            if isinstance(node, Iteration):
                children = self.subtrees(node.children, guard, copy=copy)
                if not children:
                    continue
                self.nodes[name] = replace(node, id=name, guard=term, children=children)
            kept.append(name)
        return tuple(kept)


def substitute(guard: Guard, axis: Id, first: Guard | None, last: Guard | None) -> Guard | None:
    """A guard with other terms for first(axis) and last(axis); None when a term that it has can never hold."""
    result: list[First | Last] = []
    for term in guard:
        if term.axis != axis:
            result.append(term)
            continue
        instead = first if isinstance(term, First) else last
        if instead is None:
            return None
        result += instead
    return tuple(dict.fromkeys(result))


def _fresh(id: Id, taken: Iterable[Id]) -> Id:
    names = set(taken)
    if id not in names:
        return id
    stem, _, number = str(id).rpartition(".")
    count = int(number) if stem and number.isdigit() else 1
    stem = stem if stem and number.isdigit() else str(id)
    while f"{stem}.{count + 1}" in names:
        count += 1
    return f"{stem}.{count + 1}"


def _used(program: Program) -> tuple[set[Id], set[Id]]:
    """The axes and the primitives that the schedule reaches."""
    primitives = {node.primitive for node in program.nodes if isinstance(node, Invocation)}
    axes = {node.axis for node in program.nodes if isinstance(node, Iteration)}
    axes |= {id for p in program.primitives if p.id in primitives for _, ids in p.axes for id in ids}
    return axes, primitives
