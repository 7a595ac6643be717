"""From dims and tiles to a program: loops around primitives, with a remainder branch where a tile does not divide.

The emitters describe an operation as dims (`schedule.Dim`) and as the primitives that make up its body; this module
writes the axes and the schedule tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from tileweave.errors import ScheduleError
from tileweave.teir.emit.schedule import LoopDim, Tiling
from tileweave.teir.ir.extensions import REDUCTIONS
from tileweave.teir.ir.program import Axis, Id, Invocation, Iteration, Node, Policy, Primitive, Program, TensorSpec


@dataclass(frozen=True, slots=True)
class BodyStep:
    """A primitive of the body, before it is given axes.

    Args:
        operation: a registered operation.
        operands: tensor names, inputs first, output last.
        reduces: whether the contracted dims are its own; other steps stand before or behind them.
        first: before the loops along which results are added.
    """

    operation: str
    operands: tuple[str, ...]
    reduces: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a dim: the axis that the schedule iterates and the axis that a primitive consumes, either absent."""

    role: str
    loop: Id | None
    tile: Id | None


@dataclass(slots=True)
class _Builder:
    tensors: tuple[TensorSpec, ...]
    axes: list[Axis] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    used: set[Id] = field(default_factory=set)

    def axis(self, id: str, extent: int, strides: Sequence[int], offsets: Sequence[int] | None = None) -> Id:
        offsets = [0] * len(self.tensors) if offsets is None else offsets
        self.axes.append(Axis(id, extent, tuple(strides), tuple(offsets)))
        return id

    def fresh(self, id: Id) -> Id:
        name, count = str(id), 1
        while name in self.used:
            count += 1
            name = f"{id}.{count}"
        self.used.add(name)
        return name

    def loops(self, axes: Sequence[Id], children: Sequence[Id], policy: Policy) -> tuple[Id, ...]:
        """A chain of iterations around children, first axis outermost; the ids of what now stands at the top."""
        top = tuple(children)
        for axis in reversed(axes):
            id = self.fresh(axis)
            self.nodes.append(Iteration(id, axis, top, policy))
            top = (id,)
        return top

    def invoke(self, step: BodyStep, roles: dict[str, list[Id]]) -> Id:
        axes = tuple((role, tuple(ids)) for role, ids in roles.items())
        name = step.operation.lower()
        label = "_".join([name, *(str(id) for _, ids in axes for id in ids)])
        primitive = Primitive(label, step.operation, axes, step.operands)
        same = [
            p for p in self.primitives if (p.operation, p.axes, p.operands) == (step.operation, axes, step.operands)
        ]
        if same:
            primitive = same[0]
        else:
            taken = {p.id for p in self.primitives}
            while primitive.id in taken:
                label += "'"
                primitive = Primitive(label, step.operation, axes, step.operands)
            self.primitives.append(primitive)
        id = self.fresh(name)
        self.nodes.append(Invocation(id, primitive.id))
        return id

    def segments(self, dim: LoopDim, tile: int) -> list[_Segment]:
        """One part for a dim that is iterated, consumed or split evenly; two where a remainder is left."""
        if tile >= dim.extent:
            return [_Segment(dim.role, None, self.axis(dim.name, dim.extent, dim.strides))]
        if tile <= 1:
            return [_Segment(dim.role, self.axis(dim.name, dim.extent, dim.strides), None)]
        count, rest = divmod(dim.extent, tile)
        outer = None
        if count > 1:
            outer = self.axis(f"{dim.name}_outer", count, [tile * s for s in dim.strides])
        parts = [_Segment(dim.role, outer, self.axis(f"{dim.name}_inner", tile, dim.strides))]
        if rest:
            moved = [(dim.extent - rest) * s for s in dim.strides]
            parts.append(_Segment(dim.role, None, self.axis(f"{dim.name}_rest", rest, dim.strides, moved)))
        return parts


def build(
    name: str,
    tensors: tuple[TensorSpec, ...],
    dims: Sequence[LoopDim],
    tiling: Tiling,
    body: Sequence[BodyStep],
    offsets: Sequence[int],
) -> Program:
    """The program whose body runs over all dims: free loops parallel and outermost, contracted loops inside.

    Args:
        name: of the program.
        tensors: with roles; dims' strides are in this order.
        dims: free dims in the order in which they should be iterated, outermost first.
        tiling: one tile of at least 1 per dim.
        body: the steps in order; those that do not reduce see the free dims only.
        offsets: bytes per tensor between the base and the first element.

    Raises:
        ScheduleError: the tiling does not fit the dims.
    """
    if len(tiling.tiles) != len(dims) or any(tile < 1 for tile in tiling.tiles):
        raise ScheduleError(
            f"emit {name}",
            f"the tiles {tiling.tiles} do not fit",
            inputs={"dims": "\n".join(f"{dim.role} {dim.name} {dim.extent}" for dim in dims)},
            legal="one tile of at least 1 per dim",
        )
    b = _Builder(tensors)
    free = [b.segments(d, t) for d, t in zip(dims, tiling.tiles, strict=True) if d.role not in ("K", "added")]
    added = [b.axis(d.name, d.extent, d.strides) for d in dims if d.role == "added"]
    contracted = [b.segments(d, t) for d, t in zip(dims, tiling.tiles, strict=True) if d.role == "K"]
    shared = [parts[0] for parts in free if len(parts) == 1]
    split = [parts for parts in free if len(parts) > 1]
    outer = [part.loop for part in shared if part.loop is not None]
    if any(offsets):
        outer.insert(0, b.axis("origin", 1, [0] * len(tensors), offsets))
    branches: list[Id] = []
    for choice in product(*split):
        parts = [*shared, *choice]
        loops = [part.loop for part in choice if part.loop is not None]
        before = _body(b, [step for step in body if step.first], _roles(parts), contracted)
        inner = _body(b, [step for step in body if not step.first], _roles(parts), contracted)
        branches += b.loops(loops, [*before, *b.loops(added, inner, "sequential")], "parallel")
    roots = b.loops(outer, branches, "parallel")
    order = {id: k for k, id in enumerate(_preorder(roots, b.nodes))}
    nodes = tuple(sorted(b.nodes, key=lambda node: order[node.id]))
    return Program(tensors, tuple(b.axes), roots, nodes, tuple(b.primitives), "tileweave", name)


def _roles(parts: Sequence[_Segment]) -> dict[str, list[Id]]:
    """The consumed axes by role; a part of a batch dim that is consumed is an M axis that moves on every operand."""
    tiles = [("M" if part.role == "batch" else part.role, part.tile) for part in parts if part.tile is not None]
    return {wanted: [tile for role, tile in tiles if role == wanted] for wanted in ("M", "N")}


def _body(
    b: _Builder, body: Sequence[BodyStep], free: dict[str, list[Id]], contracted: Sequence[list[_Segment]]
) -> list[Id]:
    children: list[Id] = []
    for step in body:
        if not step.reduces:
            roles = {**free, "K": []} if step.operation in REDUCTIONS.values() else free
            children.append(b.invoke(step, roles))
            continue
        for choice in product(*contracted):
            tile = [part.tile for part in choice if part.tile is not None]
            call = b.invoke(step, {**free, "K": tile})
            children += b.loops([part.loop for part in choice if part.loop is not None], [call], "sequential")
    return children


def _preorder(roots: Sequence[Id], nodes: Sequence[Node]) -> list[Id]:
    children = {node.id: node.children for node in nodes if isinstance(node, Iteration)}
    order: list[Id] = []
    stack = list(reversed(roots))
    while stack:
        id = stack.pop()
        order.append(id)
        stack += reversed(children.get(id, ()))
    return order
