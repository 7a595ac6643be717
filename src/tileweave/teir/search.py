"""The search for a good schedule: tile sizes, order of loops, parallel axes, packing, ranked by a model of a machine.

A program is first gathered: loops that its primitives can consume are promoted. Then the invocation with most steps is
cut in many ways on paper, each is put to the model, and the best few are made by transforms, so that every candidate
computes what the program computes. Initialisations and epilogues follow the tiles.

Source: own; the model is `tileweave.teir.analysis.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import ceil, prod

from tileweave.errors import ScheduleError, Undecided
from tileweave.teir.analysis.model import Cost, Machine, Nest, cost, estimate, nests
from tileweave.teir.emit.schedule import Dim, Role, Target, tiles_for
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Axis, Id, Invocation, Iteration, Policy, Primitive, Program
from tileweave.teir.ir.walk import Visit, show_path, walk
from tileweave.teir.transform.follow import fuse_epilogue, fuse_prologue
from tileweave.teir.transform.move import hoist, pack
from tileweave.teir.transform.steps import demote, parallelize, promote, split

__all__ = ["Candidate", "candidates", "gather", "tile"]

SIZES = {"M": (16, 32, 64, 128, 256), "N": (32, 64, 128, 256, 512), "K": (64, 128, 256, 512)}
"""Steps per tile that are tried, per role."""

Groups = dict[Role, list[Axis]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program of the same value as another, what was done to that, and what the model thinks of it.

    Args:
        program: well formed.
        how: what was decided, in words; empty for the program as it was given.
        costs: of every invocation.
    """

    program: Program
    how: tuple[str, ...]
    costs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        """The modelled time."""
        return sum(cost.seconds for cost in self.costs)

    def explain(self) -> str:
        """What was decided, and where the time goes."""
        title = f"{self.seconds * 1e6:.3g} us: {'; '.join(self.how) or 'as it was given'}"
        return "\n".join([title, *(f"  {cost}" for cost in self.costs)])


def candidates(program: Program, machine: Machine | None = None, limit: int = 8) -> tuple[Candidate, ...]:
    """Programs of the same value, the fastest first as far as the model knows; the given one is among them.

    Args:
        program: well formed, in the ``tileweave`` profile.
        machine: what it will run on; None: the model's default.
        limit: how many at most.

    Returns:
        At least one. The first is the pick where nothing can be measured.

    Raises:
        VerifyError: the program is not well formed.

    Example:
        >>> from tileweave.layout import strided
        >>> from tileweave.teir import Machine, Operand, emit_contraction
        >>> from tileweave.teir.ir.text import tree
        >>> side = Operand(strided((512, 512), (512, 1)), "FP32")
        >>> best = candidates(emit_contraction("ik,kj->ij", (side, side), side), Machine(cores=4))[0]
        >>> [line.strip("├└─│ ") for line in tree(best.program).splitlines()][-3:]
        ['k_outer', 'zero  [first(k_outer)]', 'contraction']

    Source: own.
    """
    machine = machine or Machine()
    given = Candidate(program, (), estimate(program, machine))
    whole = gather(program)
    most = max(nests(whole), key=lambda nest: (nest.reduces, nest.calls * nest.steps), default=None)
    if most is None:
        return (given,)
    main = next(visit.node.id for visit in walk(whole) if show_path(visit) == most.path)
    found = [given]
    if whole != program:
        found.append(Candidate(whole, ("loops gathered",), estimate(whole, machine)))
    for plan in _plans(whole, main, most, machine, limit):
        made = _made(whole, main, plan)
        if made is not None and all(made != other.program for other in found):
            found.append(Candidate(made, plan.words(), estimate(made, machine)))
    found.sort(key=lambda candidate: candidate.seconds)
    for candidate in found[:2]:
        found += _packed(candidate, main, machine)
    found.sort(key=lambda candidate: candidate.seconds)
    return tuple(found[: max(1, limit)])


# ── gathering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── plans on paper ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Plan:
    """How an invocation is cut: steps that stay in the primitive per axis, and the loops around it, outermost first."""

    tiles: tuple[tuple[Axis, int], ...]
    order: tuple[Id, ...]
    free: tuple[Id, ...]

    def words(self) -> tuple[str, ...]:
        cut = [f"{axis.id} {tile} of {axis.extent}" for axis, tile in self.tiles if 1 < tile < axis.extent]
        looped = f"loops {', '.join(map(str, self.order))}" if self.order else "no loops"
        return (*([f"tiles {', '.join(cut)}"] if cut else []), looped)


def _plans(program: Program, main: Id, nest: Nest, machine: Machine, limit: int) -> list[_Plan]:
    """The best cuts of the main invocation on paper, the best first."""
    if any(ids for role, ids in _primitive(program, main).axes if role not in SIZES):
        return []  # an axis of another role, such as the halves of a pair, is nothing to cut
    groups = _groups(program, main)
    ranked: dict[_Plan, float] = {}
    for tiles in _tilings(groups):
        loops = {role: [axis for axis in axes if tiles[axis.id] < axis.extent] for role, axes in groups.items()}
        cut = tuple((axis, tiles[axis.id]) for axes in groups.values() for axis in axes)
        inner: list[Role] = [role for role in ("M", "N", "K") if loops[role]]
        for order in permutations(inner):
            chain = [*loops["batch"], *(axis for role in order for axis in loops[role])]
            free = tuple(axis.id for axis in chain if axis not in groups["K"])
            plan = _Plan(cut, tuple(axis.id for axis in chain), free)
            if plan not in ranked:
                ranked[plan] = cost(_on_paper(program, main, nest, plan), machine).seconds
    best: dict[object, _Plan] = {}
    for plan in sorted(ranked, key=lambda plan: ranked[plan]):
        best.setdefault(plan.tiles, plan)  # of the orders of one tiling, the fastest
    return list(best.values())[:limit]


def _groups(program: Program, main: Id) -> Groups:
    """The axes that the main primitive consumes, by what tiles of them are for; outermost first."""
    primitive = _primitive(program, main)
    axes = [(role, program.axis(id)) for role, ids in primitive.axes for id in ids]
    moves = {axis.id: _moves(program, main, axis) for _, axis in axes}

    def far(axis: Axis) -> int:
        return -max(abs(moves[axis.id][-1]), 0 if moves[axis.id][-1] else max(map(abs, moves[axis.id])))

    groups: Groups = {"batch": [], "M": [], "N": [], "K": []}
    if operation(primitive.operation).contracted:
        for role, axis in axes:
            batch = role != "K" and len(moves[axis.id]) > 2 and all(moves[axis.id])
            groups["batch" if batch else _as_role(role)].append(axis)
    else:
        left = sorted((axis for _, axis in axes), key=far)
        groups["N"] = left[-1:]
        left = left[:-1]
        if left:
            source = min(left, key=lambda axis: abs(moves[axis.id][0]) or 1 << 62)
            groups["M"] = [source]
            groups["batch"] = [axis for axis in left if axis is not source]
    for group in groups.values():
        group.sort(key=far)
    return groups


def _as_role(role: str) -> Role:
    return "K" if role == "K" else "N" if role == "N" else "M"


def _tilings(groups: Groups) -> Iterator[dict[Id, int]]:
    """Steps per axis that stay in the primitive, for every size of tile that is tried, each once."""
    axes = [(role, axis) for role, group in groups.items() if role != "batch" for axis in group]
    dims = [Dim(str(axis.id), axis.extent, (), role) for role, axis in axes]
    met = set()
    for sizes in product(*SIZES.values()):
        wanted = zip(SIZES, sizes, strict=True)
        targets = {role: Target(size, size // 2, size * 3 // 2, 8) for role, size in wanted}
        tiles = tiles_for(dims, targets).tiles
        if tiles not in met:
            met.add(tiles)
            cut = {axis.id: size for (_, axis), size in zip(axes, tiles, strict=True)}
            yield {**{axis.id: 1 for axis in groups["batch"]}, **cut}


def _on_paper(program: Program, main: Id, nest: Nest, plan: _Plan) -> Nest:
    """The main invocation's nest after a cut, remainders counted as whole tiles."""
    cut = {axis.id: (axis, size, _moves(program, main, axis)) for axis, size in plan.tiles}
    loops = list(nest.loops)
    for place, id in enumerate(plan.order):
        axis, size, moves = cut[id]
        policy: Policy = "parallel" if all(other in plan.free for other in plan.order[: place + 1]) else "sequential"
        loops.append((ceil(axis.extent / size), tuple(size * move for move in moves), policy))
    consumed = tuple((size, moves) for _, size, moves in cut.values() if size > 1)
    lanes = prod(size for _, size, moves in cut.values() if moves[-1] == nest.widths[-1])
    return replace(nest, loops=tuple(loops), consumed=consumed, lanes_used=lanes)


# ── making them ───────────────────────────────────────────────────────────────────────────────────────────────────────


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


def _made(program: Program, main: Id, plan: _Plan) -> Program | None:
    """The program of a plan, with everything that follows its tiles; None where a proof fails."""
    made = _tried(lambda: tile(program, main, {axis.id: size for axis, size in plan.tiles}, plan.order))
    if made is None:
        return None
    order = [visit.node.id for visit in walk(program) if isinstance(visit.node, Invocation)]
    place = order.index(main)
    for id in reversed(order[:place]):
        made = _tried(lambda: fuse_prologue(made, id)) or made  # type: ignore[arg-type]  # noqa: B023
    for id in order[place + 1 :]:
        made = _tried(lambda: fuse_epilogue(made, id)) or made  # type: ignore[arg-type]  # noqa: B023
    return _parallel(made)


def _parallel(program: Program) -> Program:
    """Every outermost loop whose iterations may run at once does so, and those directly below it."""
    for visit in list(walk(program)):
        node = visit.node
        if isinstance(node, Iteration) and node.policy == "sequential":
            above = [program.node(loop.id) for loop in visit.path]
            if all(isinstance(loop, Iteration) and loop.policy == "parallel" for loop in above):
                program = _tried(lambda: parallelize(program, node.id)) or program  # noqa: B023
    return program


def _packed(candidate: Candidate, main: Id, machine: Machine) -> list[Candidate]:
    """The candidate with an operand packed at the place that the model likes best, where that is faster."""
    program = candidate.program
    visit = next(visit for visit in walk(program) if visit.node.id == main)
    if not isinstance(visit.node, Invocation):
        return []
    better = []
    for tensor in dict.fromkeys(program.primitive(visit.node.primitive).operands[:-1]):
        for at in (main, *(loop.id for loop in visit.path)):
            made = _tried(lambda: pack(program, main, tensor, at=at))  # noqa: B023
            if made is None:
                continue
            costs = estimate(made, machine)
            better.append(Candidate(made, (*candidate.how, f"{tensor} packed before {at}"), costs))
    return [one for one in better if one.seconds < candidate.seconds]


def _tried(change: Callable[[], Program]) -> Program | None:
    try:
        return change()
    except (ScheduleError, Undecided):
        return None
