"""Transforms that bring an elementwise step into the loops before it or behind it: epilogues and initialisations.

The step works on a whole tensor, or in loops of its own; the loops that it joins work on tiles of the same tensor. Both
are boxes in the step's own indices: the tiles must cover the step exactly, once, and no step that it overtakes may
conflict with it. Every tile is found by solving for the indices, so any splits, reorders and remainders are followed.

Source: own; the guarded epilogue is that of TEIR, section 10.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tileweave.layout.core.search import first_collision, reach
from tileweave.space import Box
from tileweave.teir.analysis.analyse import Access, Conflict, accesses, find_conflict, iterations_conflict
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Axis, First, Id, Invocation, Iteration, Last, Node, Primitive, Program
from tileweave.teir.ir.walk import Visit, invocations, walk
from tileweave.teir.transform.edit import Edit


def fuse_epilogue(program: Program, node: Id) -> Program:
    """An elementwise step behind loops works on each of their tiles as soon as the tile is complete.

    ::

        p                              p
        └── k                          └── k
            └── gemm           ->          ├── gemm
        relu                               └── relu  [last(k)]

    Args:
        program: well formed.
        node: an invocation that reduces nothing, such as ReLU, Bias, Scale, Cast or a Copy out of a scratch tensor;
            loops around it alone disappear.

    Raises:
        ScheduleError: the trees before it have no tiles that cover it exactly, or a later step conflicts with it;
            ``facts['witness']``.
        Undecided: the proof passed the bound of the search.

    Example:
        >>> from tileweave.teir import examples, hoist
        >>> from tileweave.teir.ir.text import tree
        >>> apart = hoist(examples.guarded_reduction({"m": 2, "n": 3, "k": 4}), "relu")
        >>> print(tree(apart))
        k
        ├── zero  [first(k)]
        └── contraction
        relu
        >>> print(tree(fuse_epilogue(apart, "relu")))
        k
        ├── zero  [first(k)]
        ├── contraction
        └── relu  [last(k)]
    """
    return _joined(Edit(program, f"fuse_epilogue(program, {node!r})"), node, behind=True)


def fuse_prologue(program: Program, node: Id) -> Program:
    """An elementwise step before loops works on each of their tiles just before the tile is first used.

    ::

        zero                           p
        p                              └── k
        └── k                  ->          ├── zero  [first(k)]
            └── gemm                       └── gemm

    Args:
        program: well formed.
        node: an invocation that reduces nothing, such as Zero or the Copy of a bias.

    Raises:
        ScheduleError: the trees behind it have no tiles that cover it exactly, or an earlier step conflicts with it;
            ``facts['witness']``.
        Undecided: the proof passed the bound of the search.
    """
    return _joined(Edit(program, f"fuse_prologue(program, {node!r})"), node, behind=False)


@dataclass(frozen=True, slots=True)
class _Step:
    """The step that moves, as indices over the bytes of its operands.

    Args:
        primitive: what it computes.
        tensors: positions of its operands in the program, the output last.
        extents: one per index.
        moves: bytes per index and operand.
        base: bytes per operand where all indices are zero.
    """

    primitive: Primitive
    tensors: tuple[int, ...]
    extents: tuple[int, ...]
    moves: tuple[tuple[int, ...], ...]
    base: tuple[int, ...]

    def move(self, axis: Axis) -> tuple[int, ...]:
        """Bytes per operand that an axis moves."""
        return tuple(axis.strides[j] for j in self.tensors)

    def indices(self, distance: Sequence[int]) -> tuple[int, ...] | None:
        """The indices that lie so many bytes from the base on every operand; None: there are none."""
        outs = [(move[-1], 0, extent - 1) for move, extent in zip(self.moves, self.extents, strict=True)]
        found = reach(outs, distance[-1], distance[-1])
        if found is None:
            return None
        moved = tuple(sum(v * m[k] for v, m in zip(found, self.moves, strict=True)) for k in range(len(distance)))
        return found if moved == tuple(distance) else None

    def box(self, axes: Sequence[Axis], path: Sequence[Axis]) -> Box | None:
        """The box of indices at which a tile lies, or None where it is no box of them.

        Args:
            axes: along which the tile moves.
            path: all whose offsets count.
        """
        base = [sum(axis.offsets[j] for axis in path) for j in self.tensors]
        start = self.indices([b - own for b, own in zip(base, self.base, strict=True)])
        if start is None:
            return None
        runs: list[list[tuple[int, int]]] = [[] for _ in self.extents]
        for axis in axes:
            if axis.extent > 1:
                step = self.indices(self.move(axis))
                moved = [] if step is None else [k for k, v in enumerate(step) if v]
                if step is None or len(moved) != 1:
                    return None
                runs[moved[0]].append((step[moved[0]], axis.extent))
        shape = []
        for first, run, extent in zip(start, runs, self.extents, strict=True):
            length = 1
            for step_length, count in sorted(run):
                if step_length != length:
                    return None  # gaps, or steps that meet each other
                length *= count
            if first + length > extent:
                return None
            shape.append(length)
        return Box(start, tuple(shape))


@dataclass(frozen=True, slots=True)
class _Tile:
    """A place in the loops: the invocation there, the loops around it below the common ancestor, and its box."""

    node: Invocation
    loops: tuple[Iteration, ...]
    roles: tuple[tuple[str, tuple[Id, ...]], ...]
    box: Box


def _joined(edit: Edit, node: Id, *, behind: bool) -> Program:
    target = edit.invocation(node)
    if operation(edit.primitives[target.primitive].operation).contracted:
        raise edit.refuse(f"node {node!r} reduces")
    visit = edit.visit(node)
    root, above = _own_root(visit)
    own = [loop.axis for loop in visit.path[len(above) :]]
    line: list[Node] = [*visit.path[len(above) :], target]
    guard = tuple(dict.fromkeys(term for around in line for term in around.guard))
    if any(term.axis in own for term in guard):
        raise edit.refuse(f"a guard of node {node!r} depends on a loop around it that would disappear")
    step = _step(edit, visit, target)
    siblings = edit.siblings(root)
    place = siblings.index(root)
    passed = siblings[:place] if behind else siblings[place + 1 :]
    tiles = _chosen(edit, step, _tiles(edit, step, passed, len(above), behind), node)

    new = []
    for k, tile in enumerate(reversed(tiles) if behind else tiles):
        still = [loop.axis for loop in tile.loops if _stands(edit, step, loop)]
        terms = tuple(Last(id) if behind else First(id) for id in still)
        primitive = _primitive(edit, replace(step.primitive, axes=tile.roles))
        name = node if k == 0 else edit.new_invocation(node, primitive, ())
        edit.set_node(Invocation(name, primitive, tuple(dict.fromkeys((*guard, *terms)))))
        new.append((name, tile))
    beside = tuple(name for name, tile in new if not tile.loops)
    _replace_root(edit, root, node, beside)
    for name, tile in new:
        if tile.loops:
            pair = (tile.node.id, name) if behind else (name, tile.node.id)
            edit.replace_in_parent(tile.node.id, pair)
    result = edit.done()
    conflict = _overtaken(result, [name for name, _ in new], passed, len(above), behind)
    if conflict is not None:
        raise edit.refuse("it would overtake a step with which it conflicts", conflict)
    return result


def _own_root(visit: Visit) -> tuple[Id, tuple[Iteration, ...]]:
    """The outermost node that holds nothing but the step, and the loops above it."""
    root, above = visit.node.id, visit.path
    while above and len(above[-1].children) == 1:
        root, above = above[-1].id, above[:-1]
    return root, above


def _step(edit: Edit, visit: Visit, target: Invocation) -> _Step:
    """The step's indices, as few as they can be; refused where two of them meet in a byte of the output."""
    primitive = edit.primitives[target.primitive]
    _, above = _own_root(visit)
    tensors = tuple(edit.program.position(name) for name in operands_of(primitive, edit.program))
    axes = [edit.axes[loop.axis] for loop in visit.path[len(above) :]]
    axes += [edit.axes[id] for _, ids in primitive.axes for id in ids]
    base = tuple(sum(axis.offsets[j] for axis in axes) for j in tensors)
    dims = [(axis.extent, tuple(axis.strides[j] for j in tensors)) for axis in axes if axis.extent > 1]
    width = width_bytes(edit.tensors[tensors[-1]].dtype)
    if first_collision([n for n, _ in dims], [move[-1] for _, move in dims], width) is not None:
        raise edit.refuse(f"node {target.id!r} writes an element more than once")
    k = 0
    while k < len(dims):  # an index that steps over exactly another is the same index
        extent, move = dims[k]
        outer = next((d for d in dims if d[1] == tuple(extent * m for m in move)), None)
        if outer is None:
            k += 1
            continue
        dims[k] = (extent * outer[0], move)
        dims.remove(outer)
        k = 0
    return _Step(primitive, tensors, tuple(n for n, _ in dims), tuple(move for _, move in dims), base)


def _stands(edit: Edit, step: _Step, loop: Iteration) -> bool:
    axis = edit.axes[loop.axis]
    return axis.extent > 1 and not any(step.move(axis))


def _tiles(edit: Edit, step: _Step, passed: Sequence[Id], depth: int, behind: bool) -> Iterator[_Tile]:
    """The tiles of the invocations that share a tensor with the step, the nearest to it first."""
    wanted = {edit.tensors[j].name for j in step.tensors}
    output = edit.tensors[step.tensors[-1]].name
    found = []
    for visit in invocations(edit.program):
        line: list[Node] = [*visit.path, visit.node]
        if not isinstance(visit.node, Invocation) or len(line) <= depth or line[depth].id not in passed:
            continue
        primitive = edit.primitives[visit.node.primitive]
        names = operands_of(primitive, edit.program)
        if (names[-1] in wanted) if behind else (output in names):
            found.append((visit, primitive))
    for visit, primitive in reversed(found) if behind else found:
        tile = _tile(edit, step, visit, primitive, visit.path[depth:])
        if tile is not None:
            yield tile


def _tile(edit: Edit, step: _Step, visit: Visit, primitive: Primitive, loops: tuple[Iteration, ...]) -> _Tile | None:
    """Where an invocation's tile lies in the step's indices; None where that is no box."""
    if any(loop.guard for loop in loops) or not isinstance(visit.node, Invocation):
        return None
    spec = operation(primitive.operation)
    roles: dict[str, list[Id]] = {role: [] for role, _ in step.primitive.axes}
    for role, ids in primitive.axes:
        for id in ids:
            if role not in spec.contracted and (edit.axes[id].extent == 1 or any(step.move(edit.axes[id]))):
                roles[role if role in roles else next(iter(roles))].append(id)
    iterated = [edit.axes[loop.axis] for loop in loops]
    consumed = [edit.axes[id] for ids in roles.values() for id in ids]
    moving = [axis for axis in (*iterated, *consumed) if any(step.move(axis))]
    box = step.box(moving, (*iterated, *consumed))
    if box is None:
        return None
    return _Tile(visit.node, loops, tuple((role, tuple(ids)) for role, ids in roles.items()), box)


def _chosen(edit: Edit, step: _Step, tiles: Iterator[_Tile], node: Id) -> list[_Tile]:
    """Tiles that cover the step once, the nearest to it where there are several of the same elements."""
    chosen: list[_Tile] = []
    for tile in tiles:
        met = sum(other.box.intersect(tile.box).size for other in chosen)
        if 0 < met < tile.box.size:
            raise edit.refuse(f"the tile of node {tile.node.id!r} and others overlap in part")
        if not met:
            chosen.append(tile)
    whole, covered = Box.of(step.extents).size, sum(tile.box.size for tile in chosen)
    if covered != whole:
        raise edit.refuse(f"tiles of the trees that it passes cover {covered} of the {whole} elements of node {node!r}")
    if not any(tile.loops for tile in chosen):
        raise edit.refuse(f"node {node!r} stands beside node {chosen[0].node.id!r} already, with no loop between")
    return chosen


def _primitive(edit: Edit, wanted: Primitive) -> Id:
    """A primitive that computes this, an old one where there is one."""
    same = (p.id for p in edit.primitives.values() if replace(p, id=wanted.id) == wanted)
    return next(same, None) or edit.new_primitive(wanted)


def _replace_root(edit: Edit, root: Id, node: Id, beside: Sequence[Id]) -> None:
    """The step's own loops go; what is left beside the trees stands where they stood."""
    edit.replace_in_parent(root, beside)
    while root != node:
        gone = edit.nodes.pop(root)
        if not isinstance(gone, Iteration):
            break
        root = gone.children[0]


def _overtaken(program: Program, new: Sequence[Id], passed: Sequence[Id], depth: int, behind: bool) -> Conflict | None:
    """A conflict of a new node with a step that was before it and is now behind it, or the other way round."""
    order = {visit.node.id: k for k, visit in enumerate(walk(program))}
    found = accesses(program)
    moved = [access for access in found if access.visit.node.id in new]
    others = [a for a in found if a.visit.node.id not in new and len(_line(a)) > depth and _line(a)[depth].id in passed]
    for e in moved:
        for a in others:
            if e.tensor != a.tensor or not (e.writes or a.writes):
                continue
            conflict = _wrong_order(program, e, a, order, depth, behind)
            if conflict is not None:
                return conflict
    for visit in walk(program):
        loop = visit.node
        if isinstance(loop, Iteration) and any_order(loop.policy):
            if any(loop in e.visit.path[depth:] for e in moved):
                conflict = iterations_conflict(program, found, visit)
                if conflict is not None:
                    return conflict
    return None


def _line(access: Access) -> list[Node]:
    return [*access.visit.path, access.visit.node]


def _wrong_order(
    program: Program, e: Access, a: Access, order: dict[Id, int], depth: int, behind: bool
) -> Conflict | None:
    """A conflict of the new step with another where the other now is behind it (or, for a prologue, before it)."""
    shared = [x for x, y in zip(e.visit.path, a.visit.path, strict=False) if x == y]
    fixed = {loop.axis for loop in shared[:depth]}
    for loop in shared[depth:]:
        last = program.axis(loop.axis).extent - 1
        conflict = find_conflict(e, a, fixed, {loop.axis: (-last, -1) if behind else (1, last)}, reordered=True)
        if conflict is not None:
            return conflict
        fixed.add(loop.axis)
    is_behind = order[a.visit.node.id] > order[e.visit.node.id]
    return find_conflict(e, a, fixed, {}, reordered=True) if is_behind == behind else None
