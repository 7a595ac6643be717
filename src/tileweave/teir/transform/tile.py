"""Transforms of whole invocations: loops gathered into them, and tiles cut out of them.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tileweave.errors import ScheduleError, Undecided
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Axis, Id, Invocation, Iteration, Primitive, Program
from tileweave.teir.ir.walk import Visit, walk
from tileweave.teir.transform.move import hoist
from tileweave.teir.transform.steps import demote, promote, split


def gather(program: Program) -> Program:
    """The program with every loop promoted whose axis the primitives below it can consume, innermost first.

    What a loop runs in its first or last iteration only is hoisted out of it before.

    Example:
        >>> from tileweave.teir import as_tileweave, examples
        >>> from tileweave.teir.ir.text import tree
        >>> print(tree(gather(as_tileweave(examples.contraction_scalar(dict.fromkeys("pqrstu", 2))))))
        zero
        contraction
    """
    changed: Program | None = program
    while changed is not None:
        program = changed
        attempts = (_promoted(program, visit) for visit in reversed(list(walk(program))))
        changed = next((attempt for attempt in attempts if attempt is not None), None)
    return program


def _promoted(program: Program, visit: Visit) -> Program | None:
    """The program without a loop, or with a guarded child of one outside; None where neither is possible."""
    node = visit.node
    if node.guard and visit.path:
        return _tried(lambda: hoist(program, node.id))
    if isinstance(node, Invocation):
        return None
    roles = {child: _role(program, child, node.axis) for child in node.children}
    if any(role is None for role in roles.values()):
        return None
    return _tried(lambda: promote(program, node.id, "N", roles=_known(roles)))


def _known(roles: Mapping[Id, str | None]) -> dict[Id, str]:
    return {id: role for id, role in roles.items() if role is not None}


def _role(program: Program, node: Id, axis: Id) -> str | None:
    """The role in which an invocation's primitive would consume an axis; None for an iteration."""
    if isinstance(program.node(node), Iteration):
        return None
    primitive = _primitive(program, node)
    moves = _moves(program, node, program.axis(axis))
    if operation(primitive.operation).contracted and not moves[-1]:
        return "K"
    if len(moves) > 2 and moves[1] and not moves[0]:
        return "N"
    return "M" if len(moves) > 1 else "N"


def _primitive(program: Program, node: Id) -> Primitive:
    """The primitive of an invocation."""
    invocation = program.node(node)
    if isinstance(invocation, Iteration):
        raise ScheduleError("tile(program, node, ..)", f"node {node!r} is an iteration", legal="an invocation")
    return program.primitive(invocation.primitive)


def _moves(program: Program, node: Id, axis: Axis) -> tuple[int, ...]:
    """Bytes that an axis moves on each operand of an invocation."""
    return tuple(axis.strides[program.position(name)] for name in operands_of(_primitive(program, node), program))


def tile(program: Program, node: Id, tiles: Mapping[Id, int], order: Sequence[Id]) -> Program:
    """An invocation cut into tiles, with the loops over them around it; what does not divide becomes branches.

    Args:
        program: well formed.
        node: an invocation.
        tiles: steps that stay in the primitive, per axis that it consumes; 1 iterates the axis whole.
        order: the axes that are cut or iterated, outermost first.

    Raises:
        ScheduleError: a tile does not fit its axis, or the steps may not change their order so.
        Undecided: a proof passed the bound of the search.

    Example:
        >>> from tileweave.teir import as_tileweave, examples
        >>> from tileweave.teir.ir.text import tree
        >>> program = gather(as_tileweave(examples.contraction_scalar(dict.fromkeys("pqrstu", 6))))
        >>> print(tree(tile(program, "contraction", {"p": 1, "u": 3}, ["p", "u"])))
        zero
        p
        └── u_outer
            └── contraction
    """
    branches: list[tuple[Id, dict[Id, Id]]] = [(node, {})]  # invocations, and which axis to iterate for a cut one
    for axis in order:
        size, extent = tiles[axis], program.axis(axis).extent
        if size == 1 or size == extent:
            branches = [(id, {**outer, axis: axis} if size == 1 else outer) for id, outer in branches]
            continue
        cut: list[tuple[Id, dict[Id, Id]]] = []
        for id, outer in branches:
            before = {n.id for n in program.nodes}
            place = _consumed(program, id).index(axis)
            program = split(program, id, size, axis)
            made = _consumed(program, id)[place]
            cut.append((id, {**outer, axis: made}))
            cut += [(n.id, outer) for n in program.nodes if n.id not in before]
        branches = cut
    for id, outer in branches:
        for axis in order:
            if axis in outer:
                program = demote(program, id, outer[axis])
    return program


def _consumed(program: Program, node: Id) -> list[Id]:
    return [id for _, ids in _primitive(program, node).axes for id in ids]


def _tried(change: Callable[[], Program]) -> Program | None:
    try:
        return change()
    except (ScheduleError, Undecided):
        return None
