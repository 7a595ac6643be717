"""Transforms that move work: initialisation out of a loop or into one, an operand into scratch memory.

As all transforms they keep the value of the program, or refuse with the reason (see `transform`).

Source: own; the guarded initialisation is that of TEIR, section 10.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from tileweave.layout.core.search import first_collision
from tileweave.teir.analysis.analyse import Access, accesses, find_conflict, iterations_conflict
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.primitives import operation
from tileweave.teir.ir.program import Axis, First, Guard, Id, Last, Node, Primitive, Program
from tileweave.teir.ir.walk import Visit, walk
from tileweave.teir.transform.edit import Edit, substitute


def hoist(program: Program, node: Id) -> Program:
    """A child that runs only in the first iteration of its loop stands before the loop, or after it if in the last.

    ::

        k                                zero
        ├── zero  [first(k)]     ->      k
        └── add                          └── add

    Where the loop's axis carries an offset on a tensor that the node touches, a loop of one step keeps it.

    Args:
        program: well formed.
        node: a child of an iteration, guarded by first or last of its axis.

    Raises:
        ScheduleError: there is no such node, or it conflicts with a sibling that it would pass; ``facts['witness']``.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"hoist(program, {node!r})")
    target = edit.node(node)
    loop = edit.parent(node)
    if loop is None:
        raise edit.refuse(f"node {node!r} is a root")
    axis = edit.axes[loop.axis]
    first, last = First(axis.id) in target.guard, Last(axis.id) in target.guard
    if first == last and not (first and axis.extent == 1):
        raise edit.refuse(f"the guard of node {node!r} does not hold exactly one of first({axis.id}), last({axis.id})")
    place = loop.children.index(node)
    passed = loop.children[:place] if first else loop.children[place + 1 :]
    _refuse_conflicts(edit, node, passed, {above.axis for above in edit.visit(node).path})

    never = () if axis.extent == 1 else None

    def outside(guard: Guard) -> Guard | None:
        return substitute(guard, axis.id, () if first else never, never if first else ())

    kept = edit.subtrees((node,), outside, copy=False)
    rest = tuple(child for child in loop.children if child != node)
    index = 0 if first else axis.extent - 1
    moved = [offset + stride * index for offset, stride in zip(axis.offsets, axis.strides, strict=True)]
    kept = tuple(_shifted(edit, id, f"{axis.id}_{'first' if first else 'last'}", moved, loop.guard) for id in kept)
    around = (loop.id,) if rest else ()
    edit.replace_in_parent(loop.id, (*kept, *around) if first else (*around, *kept))
    if rest:
        edit.set_node(replace(loop, children=rest))
    else:
        edit.nodes.pop(loop.id)
    return edit.done()


def sink(program: Program, node: Id, loop: Id) -> Program:
    """A node beside a loop becomes its first child, guarded by first, or its last, guarded by last; undoes `hoist`.

    ::

        zero                             k
        k                        ->      ├── zero  [first(k)]
        └── add                          └── add

    Args:
        program: well formed.
        node: the sibling just before the loop, or just after it.
        loop: an iteration.

    Raises:
        ScheduleError: the two are not neighbours, the loop's guard may keep it from being entered when the node is, or
            the loop is parallel and its iterations would conflict; ``facts['witness']``.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"sink(program, {node!r}, {loop!r})")
    target, outer = edit.node(node), edit.iteration(loop)
    neighbours = list(pairwise(edit.siblings(node)))
    before = (node, loop) in neighbours
    if not before and (loop, node) not in neighbours:
        raise edit.refuse(f"nodes {node!r} and {loop!r} are not neighbours")
    missing = [term for term in outer.guard if term not in target.guard]
    if missing:
        raise edit.refuse(f"node {loop!r} has a guard that node {node!r} has not")
    axis = edit.axes[outer.axis]
    index = 0 if before else axis.extent - 1
    moved = [-offset - stride * index for offset, stride in zip(axis.offsets, axis.strides, strict=True)]
    edit.replace_in_parent(node, ())
    term = First(axis.id) if before else Last(axis.id)
    child = _shifted(edit, node, f"{axis.id}_base", moved, (term,))
    children = (child, *outer.children) if before else (*outer.children, child)
    edit.set_node(replace(outer, children=children))
    result = edit.done()
    if any_order(outer.policy):
        conflict = iterations_conflict(result, accesses(result), _visit(result, loop))
        if conflict is not None:
            raise edit.refuse(f"node {loop!r} is parallel, and its iterations would conflict", conflict)
    return result


def pack(
    program: Program, node: Id, tensor: str, *, at: Id | None = None, order: Sequence[Id] | None = None
) -> Program:
    """An invocation works on an operand in scratch memory, dense and in a chosen order, which Copies fill and empty.

    ::

        m                                m
        └── k                            ├── pack_in0
            └── gemm             ->      └── k
                                             └── gemm

    The Copy stands before the node ``at`` and brings everything that the invocation touches below it. What the
    invocation writes, a second Copy behind ``at`` brings back; the first is then left out where nothing of it is read.
    Under parallel loops above ``at`` every iteration has scratch memory of its own.

    Args:
        program: well formed, in the ``tileweave`` profile.
        node: the invocation.
        tensor: an operand that it reads or writes.
        at: the invocation or an iteration above it; the invocation itself by default.
        order: the axes along which the packed operand moves, slowest first. By default those that are iterated, in
            order of nesting, before those that the primitive consumes, in the operand's own order.

    Raises:
        ScheduleError: the node does not touch the tensor, ``at`` is not above it, a guard below ``at`` depends on an
            index that the Copy would run over, another node below ``at`` writes what is packed, or touches what is
            packed and written (``facts['witness']``), elements that are written share a byte, or the order does not
            name the operand's axes.
        Undecided: the proof passed the bound of the search.

    Example:
        >>> from tileweave.teir import as_tileweave, examples
        >>> from tileweave.teir.ir.text import tree
        >>> program = as_tileweave(examples.contraction_gemm(dict.fromkeys("pqrstu", 2)))
        >>> print(tree(pack(program, "gemm", "in0", at="t")))
        p
        └── r
            ├── zero
            ├── pack_in0
            └── t
                └── gemm
    """
    edit = Edit(program, f"pack(program, {node!r}, {tensor!r})")
    target = edit.invocation(node)
    primitive = edit.primitives[target.primitive]
    if program.profile != "tileweave":
        raise edit.refuse("the document profile has no scratch tensors; as_tileweave binds operands by name")
    if tensor not in primitive.operands:
        raise edit.refuse(f"node {node!r} does not touch a tensor {tensor!r}")
    writes = tensor == primitive.operands[-1]
    reads = tensor in primitive.operands[:-1] or operation(primitive.operation).reads_output
    at = node if at is None else at
    visit = edit.visit(node)
    line: list[Node] = [*visit.path, target]
    if all(at != above.id for above in line):
        raise edit.refuse(f"node {at!r} is neither node {node!r} nor above it")
    cut = next(k for k, above in enumerate(line) if above.id == at)
    above, below = visit.path[:cut], visit.path[cut:]
    region = [edit.axes[loop.axis] for loop in below] + [edit.axes[id] for _, ids in primitive.axes for id in ids]
    guard = _guard_of_copy(edit, line[cut:], {axis.id for axis in region})
    _refuse_others(edit, visit, at, tensor, {loop.axis for loop in above})

    j = program.position(tensor)
    order = _order(region, len(below), j) if order is None else _checked(edit, region, j, tuple(order))
    width = width_bytes(program.tensors[j].dtype)
    if writes:
        _refuse_overlap(edit, _moving(region, j), j, width)
    apart = [loop.axis for loop in above if any_order(loop.policy)]
    dense = (*apart, *order)
    extents = [edit.axes[id].extent for id in dense]
    strides = {id: width * prod(extents[k + 1 :]) for k, id in enumerate(dense)}
    scratch = edit.new_scratch(f"{tensor}_packed", program.tensors[j].dtype, width * prod(extents), strides)
    still = tuple(axis.id for axis in region if axis.id not in order and axis.offsets[j])
    axes = (("M", (*still, *order[:-1])), ("N", tuple(order[-1:])))
    around = [at]
    if reads or not writes:
        copy = edit.new_primitive(Primitive(f"pack_{tensor}", "Copy", axes, (tensor, scratch)))
        around.insert(0, edit.new_invocation(f"pack_{tensor}", copy, guard))
    if writes:
        copy = edit.new_primitive(Primitive(f"unpack_{tensor}", "Copy", axes, (scratch, tensor)))
        around.append(edit.new_invocation(f"unpack_{tensor}", copy, guard))
    edit.replace_in_parent(at, around)
    operands = tuple(scratch if name == tensor else name for name in primitive.operands)
    edit.set_primitive(node, replace(primitive, operands=operands))
    return edit.done()


# ── hoisting ──


def _shifted(edit: Edit, node: Id, name: str, offsets: Sequence[int], guard: Guard) -> Id:
    """A node under a further guard, at addresses moved by offsets where it has any to move."""
    target = edit.nodes[node]
    tensors = {edit.program.position(access.tensor) for access in _below(edit, node)}
    needed = [offset if j in tensors else 0 for j, offset in enumerate(offsets)]
    terms = tuple(dict.fromkeys((*guard, *target.guard)))
    if not any(needed):
        edit.set_node(replace(target, guard=terms))
        return node
    axis = edit.new_axis(name, 1, [0] * len(needed), needed)
    edit.set_node(replace(target, guard=()))
    return edit.new_iteration(axis, axis, (node,), None, terms)


def _below(edit: Edit, node: Id) -> list[Access]:
    """The accesses of a node and of everything below it, before the change."""
    found = accesses(edit.program)
    return [a for a in found if any(n.id == node for n in (*a.visit.path, a.visit.node))]


def _refuse_conflicts(edit: Edit, node: Id, passed: Sequence[Id], fixed: set[Id]) -> None:
    """Siblings whose order to a node would change must not conflict with it in one iteration."""
    for sibling in passed:
        for a in _below(edit, node):
            for b in _below(edit, sibling):
                if a.tensor != b.tensor or not (a.writes or b.writes):
                    continue
                conflict = find_conflict(a, b, fixed, {}, reordered=True)
                if conflict is not None:
                    raise edit.refuse(f"it would pass node {sibling!r}, with which it conflicts", conflict)


def _visit(program: Program, id: Id) -> Visit:
    return next(visit for visit in walk(program) if visit.node.id == id)


# ── packing ──


def _guard_of_copy(edit: Edit, line: Sequence[Node], region: set[Id]) -> Guard:
    """When the invocation can run, as far as that is decided above the Copy; other guards are refused."""
    terms: list[First | Last] = []
    for node in line:
        for term in node.guard:
            if term.axis in region:
                raise edit.refuse(f"the guard of node {node.id!r} depends on axis {term.axis!r}, which is packed")
            terms.append(term)
    return tuple(dict.fromkeys(terms))


def _refuse_others(edit: Edit, visit: Visit, at: Id, tensor: str, fixed: set[Id]) -> None:
    """What is packed must not change, and what is packed and written must not be seen, between the Copies."""
    touches = [access for access in _below(edit, at) if access.tensor == tensor]
    for own in (access for access in touches if access.visit == visit):
        for other in touches:
            if not (own.writes or other.writes) or (own.writes and other.visit == visit):
                continue
            conflict = find_conflict(own, other, fixed, {})
            if conflict is not None:
                done = "written" if other.writes else "read"
                raise edit.refuse(f"{tensor!r} is {done} below node {at!r}", conflict)


def _refuse_overlap(edit: Edit, moving: Sequence[Axis], j: int, width: int) -> None:
    """Elements that come back from a dense copy must lie apart."""
    apart = first_collision([axis.extent for axis in moving], [axis.strides[j] for axis in moving], width)
    if apart is not None:
        shown = ", ".join(f"{axis.id} by {steps}" for axis, steps in zip(moving, apart, strict=True))
        raise edit.refuse(f"elements of {edit.tensors[j].name!r} share a byte: {shown}")


def _moving(region: Sequence[Axis], j: int) -> list[Axis]:
    return [axis for axis in region if axis.extent > 1 and axis.strides[j]]


def _order(region: Sequence[Axis], iterated: int, j: int) -> tuple[Id, ...]:
    outer, inner = _moving(region[:iterated], j), _moving(region[iterated:], j)
    return tuple(axis.id for axis in (*outer, *sorted(inner, key=lambda axis: -abs(axis.strides[j]))))


def _checked(edit: Edit, region: Sequence[Axis], j: int, order: tuple[Id, ...]) -> tuple[Id, ...]:
    moving = [axis.id for axis in _moving(region, j)]
    if sorted(map(str, order)) != sorted(map(str, moving)):
        shown = ", ".join(map(str, moving)) or "none"
        raise edit.refuse(f"the order {order} does not name the axes along which the operand moves: {shown}")
    return order
