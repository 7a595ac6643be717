"""Transforms of whole trees: two loops become one, and one becomes two.

As all transforms they keep the value of the program, or refuse with the reason (see `transform`).

Source: own; known elsewhere as loop fusion and fission. `transform.fuse` is about two nested loops, not two neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tileweave.teir.analysis.analyse import Access, Conflict, accesses, find_conflict, iterations_conflict
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.program import First, Guard, Id, Iteration, Last, Program
from tileweave.teir.ir.walk import walk
from tileweave.teir.transform.edit import Edit, substitute


def merge(program: Program, node: Id, other: Id) -> Program:
    """Two neighbouring loops of the same extent become one, which runs the children of both; undoes `split_tree`.

    ::

        k                              k
        └── a                          ├── a
        k.2                    ->      └── b
        └── b

    Different axes become one, if they move alike on every tensor that both trees touch. What only one of the loops has
    as a guard goes to its children.

    Args:
        program: well formed.
        node: an iteration.
        other: the iteration just behind it, of the same policy.

    Raises:
        ScheduleError: the loops do not fit each other, or a step of the second would come before a later step of the
            first with which it conflicts; ``facts['witness']``.
        Undecided: the proof passed the bound of the search.

    Example:
        >>> from tileweave.teir import examples
        >>> from tileweave.teir.ir.text import tree
        >>> apart = split_tree(examples.guarded_reduction({"m": 2, "n": 3, "k": 4}), "k", "relu")
        >>> print(tree(apart))
        k
        ├── zero  [first(k)]
        └── contraction
        k.2
        └── relu  [last(k)]
        >>> merge(apart, "k", "k.2") == examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
        True
    """
    edit = Edit(program, f"merge(program, {node!r}, {other!r})")
    one, two = edit.iteration(node), edit.iteration(other)
    if (node, other) not in pairwise(edit.siblings(node)):
        raise edit.refuse(f"node {other!r} does not stand just behind node {node!r}")
    if one.policy != two.policy:
        raise edit.refuse(f"node {node!r} is {one.policy} and node {other!r} is {two.policy}")
    axis = _common_axis(edit, one, two)
    guard = tuple(term for term in one.guard if term in two.guard)
    for loop in (one, two):
        _guard_children(edit, loop, tuple(term for term in loop.guard if term not in guard), axis)
    edit.set_node(replace(one, axis=axis, guard=guard, children=(*one.children, *two.children)))
    edit.replace_in_parent(other, ())
    edit.nodes.pop(other)
    result = edit.done()
    visit = next(visit for visit in walk(result) if visit.node.id == node)
    found = accesses(result)
    conflict = _overtaking(found, one.children, two.children, {above.axis for above in visit.path}, result, axis)
    if conflict is None and any_order(one.policy):
        conflict = iterations_conflict(result, found, visit)
    if conflict is not None:
        raise edit.refuse("steps of the two trees conflict, and their order would change", conflict)
    return result


def split_tree(program: Program, node: Id, at: Id) -> Program:
    """A loop becomes two: one runs its children before ``at``, and behind it one runs ``at`` and the rest.

    ::

        k                              k
        ├── a                          └── a
        └── b                  ->      k.2
                                       └── b

    Args:
        program: well formed.
        node: an iteration of at least two children.
        at: a child other than the first.

    Raises:
        ScheduleError: there is no such child, or a step would come before a step of an earlier iteration with which it
            conflicts; ``facts['witness']``.
        Undecided: the proof passed the bound of the search.
    """
    edit = Edit(program, f"split_tree(program, {node!r}, {at!r})")
    target = edit.iteration(node)
    if at not in target.children[1:]:
        legal = ", ".join(map(str, target.children[1:])) or "none, it has one child"
        raise edit.refuse(f"{at!r} is no child of node {node!r} behind its first; legal: {legal}")
    place = target.children.index(at)
    first, second = target.children[:place], target.children[place:]
    fixed = {above.axis for above in edit.visit(node).path}
    conflict = _overtaking(accesses(program), first, second, fixed, program, target.axis)
    if conflict is not None:
        raise edit.refuse("two steps of different iterations conflict, and their order would change", conflict)
    edit.set_node(replace(target, children=first))
    behind = edit.new_iteration(node, target.axis, second, target, target.guard)
    edit.replace_in_parent(node, (node, behind))
    return edit.done()


def _overtaking(
    found: Sequence[Access], first: Sequence[Id], second: Sequence[Id], fixed: set[Id], program: Program, axis: Id
) -> Conflict | None:
    """A step below ``first`` and one below ``second``, of an earlier iteration, that conflict; or None."""
    last = program.axis(axis).extent - 1
    for a in _below(found, first):
        for b in _below(found, second):
            if a.tensor != b.tensor or not (a.writes or b.writes):
                continue
            conflict = find_conflict(a, b, fixed, {axis: (1, last)}, reordered=True)
            if conflict is not None:
                return conflict
    return None


def _below(found: Sequence[Access], ids: Sequence[Id]) -> list[Access]:
    return [a for a in found if any(node.id in ids for node in (*a.visit.path, a.visit.node))]


def _common_axis(edit: Edit, one: Iteration, two: Iteration) -> Id:
    """The axis of both loops: that of the first, where it moves as both trees need it, or a new one."""
    if one.axis == two.axis:
        return one.axis
    a, b = edit.axes[one.axis], edit.axes[two.axis]
    if a.extent != b.extent:
        raise edit.refuse(f"axis {a.id!r} has {a.extent} steps and axis {b.id!r} has {b.extent}")
    found = accesses(edit.program)
    left, right = ({access.tensor for access in _below(found, (loop.id,))} for loop in (one, two))
    moves = []
    for j, spec in enumerate(edit.tensors):
        step, other = (a.strides[j], a.offsets[j]), (b.strides[j], b.offsets[j])
        if spec.name in left & right and step != other:
            moved = f"by {step[0]} bytes from {step[1]} and by {other[0]} from {other[1]}"
            raise edit.refuse(f"axes {a.id!r} and {b.id!r} move {spec.name!r} differently: {moved}")
        moves.append(other if spec.name in right else step)
    strides, offsets = zip(*moves, strict=True)
    return a.id if (strides, offsets) == (a.strides, a.offsets) else edit.new_axis(a.id, a.extent, strides, offsets)


def _guard_children(edit: Edit, loop: Iteration, guard: Guard, axis: Id) -> None:
    """A loop's own guard goes to its children, and terms on its axis are about another axis."""

    def renamed(terms: Guard) -> Guard | None:
        return substitute(terms, loop.axis, (First(axis),), (Last(axis),))

    if loop.axis != axis:
        edit.subtrees(loop.children, renamed, copy=False)
    for id in loop.children if guard else ():
        child = edit.node(id)
        edit.set_node(replace(child, guard=tuple(dict.fromkeys((*guard, *child.guard)))))
