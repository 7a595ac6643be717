"""Transforms: Program -> Program, each keeping the value of the program, or refusing with the reason.

The value is what `interpret` computes: bit by bit on integers, and up to the rounding of a reordered sum otherwise. A
transform that changes the order of steps first proves that no two steps whose order changes share a byte that one of
them writes; two steps of one commutative monoid, such as two additions, may change places. A proof that fails carries
its witness.

Source: own; the vocabulary is TEIR's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tileweave.teir.analysis.analyse import accesses, find_conflict, iterations_conflict
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.primitives import operation
from tileweave.teir.ir.program import First, Guard, Id, Invocation, Iteration, Last, Program
from tileweave.teir.ir.walk import walk
from tileweave.teir.transform.edit import Edit, substitute


def split(program: Program, node: Id, factor: int, axis: Id | None = None) -> Program:
    """Two loops for one, or two axes for a consumed one; what the factor leaves over becomes a branch behind.

    ::

        k                      k_outer                     k_outer
        └── gemm     ->        └── k_inner        or       └── k_inner
                                   └── gemm                    └── gemm
                                                           k_rest
                                                           └── gemm.2

    Guards on the axis are rewritten: ``first(k)`` becomes ``first(k_outer) and first(k_inner)``, and stands only in the
    part that holds it; subtrees that can never be entered disappear.

    Args:
        program: well formed.
        node: an iteration; or an invocation, whose primitive's ``axis`` is split in its role.
        factor: steps of the inner axis, at least 1 and at most the extent.
        axis: with an invocation, the consumed axis.

    Raises:
        ScheduleError: there is no such node or axis, or the factor does not fit.
    """
    edit = Edit(program, f"split(program, {node!r}, {factor!r})")
    target = edit.node(node)
    if isinstance(target, Invocation):
        _split_role(edit, target, factor, axis)
    elif axis is not None and axis != target.axis:
        raise edit.refuse(f"node {node!r} iterates {target.axis!r}, not {axis!r}")
    else:
        _split_iteration(edit, target, factor)
    return edit.done()


def _split_iteration(edit: Edit, target: Iteration, factor: int) -> None:
    outer, inner, rest = _split_axis(edit, target.axis, factor)
    parts: list[Id] = []
    if rest is not None:  # copied first: the main part changes the originals

        def in_rest(guard: Guard) -> Guard | None:
            return substitute(guard, target.axis, None, (Last(rest),))

        children = edit.subtrees(target.children, in_rest, copy=True)
        if children:
            parts.append(edit.new_iteration(f"{target.id}_rest", rest, children, target, target.guard))

    def in_main(guard: Guard) -> Guard | None:
        last = (Last(outer), Last(inner)) if rest is None else None
        return substitute(guard, target.axis, (First(outer), First(inner)), last)

    children = edit.subtrees(target.children, in_main, copy=False)
    if children:
        below = edit.new_iteration(f"{target.id}_inner", inner, children, target, ())
        parts.insert(0, edit.new_iteration(f"{target.id}_outer", outer, [below], target, target.guard))
    edit.replace_in_parent(target.id, parts)
    edit.nodes.pop(target.id)


def _split_role(edit: Edit, target: Invocation, factor: int, axis: Id | None) -> None:
    old = edit.primitives[target.primitive]
    if axis is None or all(axis not in ids for _, ids in old.axes):
        raise edit.refuse(f"primitive {old.id!r} does not consume axis {axis!r}")
    outer, inner, rest = _split_axis(edit, axis, factor)
    if rest is not None:
        conflict = edit.consumed_conflict(target, axis)
        if conflict is not None:
            raise edit.refuse("steps that would change their order conflict", conflict)

    def with_axes(*instead: Id) -> tuple[tuple[str, tuple[Id, ...]], ...]:
        return tuple(
            (role, tuple(new for id in ids for new in (instead if id == axis else (id,)))) for role, ids in old.axes
        )

    edit.set_primitive(target.id, replace(old, axes=with_axes(outer, inner)))
    if rest is not None:
        left = edit.new_primitive(replace(old, axes=with_axes(rest)))
        extra = edit.new_invocation(target.id, left, target.guard)
        edit.replace_in_parent(target.id, (target.id, extra))


def _split_axis(edit: Edit, id: Id, factor: int) -> tuple[Id, Id, Id | None]:
    """The outer, the inner and the rest's axis; the rest's is None when the factor divides."""
    axis = edit.axes[id]
    if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= axis.extent:
        raise edit.refuse(f"the factor does not fit axis {id!r} of extent {axis.extent}; legal: 1..{axis.extent}")
    count, left = divmod(axis.extent, factor)
    still = [0] * len(axis.strides)
    outer = edit.new_axis(f"{id}_outer", count, [factor * s for s in axis.strides], axis.offsets)
    inner = edit.new_axis(f"{id}_inner", factor, axis.strides, still)
    rest = None
    if left:
        moved = [o + count * factor * s for o, s in zip(axis.offsets, axis.strides, strict=True)]
        rest = edit.new_axis(f"{id}_rest", left, axis.strides, moved)
    return outer, inner, rest


def fuse(program: Program, node: Id) -> Program:
    """One loop for an iteration and the iteration that is its only child; the inverse of an even `split`.

    Args:
        program: well formed.
        node: the outer iteration. On every tensor its stride must be the inner stride times the inner extent.

    Raises:
        ScheduleError: the nodes do not nest so, their policies differ, or a guard needs one of the two indices alone.
    """
    edit = Edit(program, f"fuse(program, {node!r})")
    outer = edit.iteration(node)
    inner = edit.only_iteration_below(outer)
    a, b = edit.axes[outer.axis], edit.axes[inner.axis]
    if outer.policy != inner.policy:
        raise edit.refuse(f"node {outer.id!r} is {outer.policy} and node {inner.id!r} is {inner.policy}")
    if any(s != t * b.extent for s, t in zip(a.strides, b.strides, strict=True)):
        raise edit.refuse(
            f"the strides {a.strides} of {a.id!r} are not those of {b.id!r}, {b.strides}, times its extent {b.extent}"
        )
    offsets = tuple(s + t for s, t in zip(a.offsets, b.offsets, strict=True))
    fused = edit.new_axis(f"{a.id}_{b.id}", a.extent * b.extent, b.strides, offsets)
    children = edit.subtrees(inner.children, lambda guard: _fuse_guard(edit, guard, a.id, b.id, fused), copy=False)
    edit.set_node(replace(outer, axis=fused, children=children))
    return edit.done()


def reorder(program: Program, node: Id) -> Program:
    """An iteration changes places with the iteration that is its only child.

    Args:
        program: well formed.
        node: the outer iteration.

    Raises:
        ScheduleError: the nodes do not nest so, or two steps that change their order conflict; ``facts['witness']``.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"reorder(program, {node!r})")
    outer = edit.iteration(node)
    inner = edit.only_iteration_below(outer)
    visit = edit.visit(node)
    found = [access for access in accesses(program) if inner in access.visit.path]
    fixed = {above.axis for above in visit.path}
    ahead = (-(edit.axes[outer.axis].extent - 1), -1)  # a runs before b by the outer index ..
    behind = (1, edit.axes[inner.axis].extent - 1)  # .. and after it by the inner
    for a in found:
        for b in found:
            if a.tensor != b.tensor or not (a.writes or b.writes):
                continue
            conflict = find_conflict(a, b, fixed, {outer.axis: ahead, inner.axis: behind}, reordered=True)
            if conflict is not None:
                raise edit.refuse("two steps that would change their order conflict", conflict)
    edit.replace_in_parent(outer.id, (inner.id,))
    edit.set_node(replace(inner, children=(outer.id,), guard=outer.guard))
    edit.set_node(replace(outer, children=inner.children, guard=()))
    result = edit.done()
    if any_order(inner.policy) and not any_order(outer.policy):
        above = next(visit for visit in walk(result) if visit.node.id == inner.id)
        conflict = iterations_conflict(result, accesses(result), above)
        if conflict is not None:
            raise edit.refuse(f"node {inner.id!r} is parallel, and its iterations would conflict", conflict)
    return result


def parallelize(program: Program, node: Id) -> Program:
    """The node's iterations may run in any order and at once.

    Args:
        program: well formed.
        node: an iteration.

    Raises:
        ScheduleError: two iterations conflict; ``facts['witness']`` holds both and the byte.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"parallelize(program, {node!r})")
    target = edit.iteration(node)
    conflict = iterations_conflict(program, accesses(program), edit.visit(node))
    if conflict is not None:
        raise edit.refuse("two iterations conflict", conflict)
    edit.set_node(replace(target, policy="parallel"))
    return edit.done()


def sequentialize(program: Program, node: Id) -> Program:
    """The node's iterations run in increasing order; always legal.

    Raises:
        ScheduleError: there is no such iteration.
    """
    edit = Edit(program, f"sequentialize(program, {node!r})")
    edit.set_node(replace(edit.iteration(node), policy="sequential"))
    return edit.done()


def promote(program: Program, node: Id, role: str, *, roles: Mapping[Id, str] | None = None) -> Program:
    """An iteration disappears and the primitives of its children, all invocations, consume its axis.

    The axis becomes the first of the role. Several children run one after the other for the whole axis.

    Args:
        program: well formed.
        node: an iteration whose children are invocations.
        role: the role that takes the axis.
        roles: a role for single children by invocation id, where it differs.

    Raises:
        ScheduleError: a child is an iteration, or a guard or role does not fit, or different iterations conflict.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"promote(program, {node!r}, {role!r})")
    target = edit.iteration(node)
    visit = edit.visit(node)
    conflict = iterations_conflict(program, accesses(program), visit, reordered=True)
    if conflict is not None:
        raise edit.refuse("different iterations conflict, and their order would change", conflict)
    for id in target.children:
        child = edit.node(id)
        if isinstance(child, Iteration):
            raise edit.refuse(f"child {id!r} of node {node!r} is an iteration")
        if any(term.axis == target.axis for term in child.guard):
            raise edit.refuse(f"the guard of node {id!r} needs the index of axis {target.axis!r}")
        taking = (roles or {}).get(id, role)
        old = edit.primitives[child.primitive]
        if taking not in operation(old.operation).roles:
            raise edit.refuse(f"{old.operation} of node {id!r} has no role {taking!r}")
        axes = tuple((name, (target.axis, *ids) if name == taking else ids) for name, ids in old.axes)
        edit.set_node(replace(child, guard=(*target.guard, *child.guard)))
        edit.set_primitive(id, replace(old, axes=axes))
    edit.replace_in_parent(node, target.children)
    edit.nodes.pop(node)
    return edit.done()


def demote(program: Program, node: Id, axis: Id) -> Program:
    """An axis that an invocation's primitive consumes is iterated around the invocation; the inverse of `promote`.

    Args:
        program: well formed.
        node: an invocation.
        axis: consumed by its primitive.

    Raises:
        ScheduleError: the primitive does not consume the axis, or steps that would change their order conflict.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"demote(program, {node!r}, {axis!r})")
    target = edit.invocation(node)
    old = edit.primitives[target.primitive]
    if all(axis not in ids for _, ids in old.axes):
        raise edit.refuse(f"primitive {old.id!r} does not consume axis {axis!r}")
    conflict = edit.consumed_conflict(target, axis)
    if conflict is not None:
        raise edit.refuse("steps that would change their order conflict", conflict)
    axes = tuple((name, tuple(id for id in ids if id != axis)) for name, ids in old.axes)
    loop = edit.new_iteration(axis, axis, (), None, target.guard)
    edit.replace_in_parent(node, (loop,))
    edit.set_node(replace(edit.iteration(loop), children=(node,)))
    edit.set_node(replace(target, guard=()))
    edit.set_primitive(node, replace(old, axes=axes))
    return edit.done()


def _fuse_guard(edit: Edit, guard: Guard, outer: Id, inner: Id, fused: Id) -> Guard:
    result: list[First | Last] = []
    for kind in (First, Last):
        both = {term.axis for term in guard if isinstance(term, kind)} & {outer, inner}
        if len(both) == 2:
            result.append(kind(fused))
        elif both:
            raise edit.refuse(f"a guard needs the index of {both.pop()!r} alone")
    return (*(term for term in guard if term.axis not in (outer, inner)), *result)
