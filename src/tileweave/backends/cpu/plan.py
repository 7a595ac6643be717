"""From a schedule to the loops and operations that are compiled: what may be one operation becomes one.

A plan is a forest like the schedule, with two changes that keep every value (up to the order of a sum):

- *Fusion*: a Zero before a Contraction into the same tile, and a ReLU after it, become flags of the Contraction.
- *Absorption*: a loop around a single operation becomes one more axis of the operation.

So a contraction that was scheduled down to scalars is again one contraction, which the backend then blocks for the
caches and registers of the machine. What cannot be merged stays a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileweave.errors import Undecided
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, First, Guard, Id, Invocation, Last, Primitive, Program
from tileweave.teir.ir.reach import first_collision
from tileweave.teir.ir.walk import axes_by_id, nodes_by_id, primitives_by_id

__all__ = [
    "Dim",
    "Loop",
    "Op",
    "Stage",
    "Step",
    "describe",
    "injective",
    "make_plan",
    "minus",
    "start_of",
]


@dataclass(frozen=True, slots=True)
class Dim:
    """An axis of an operation: its extent and its byte stride per operand (inputs first, output last)."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one operation does at every point of an operation's axes.

    Args:
        kind: as TEIR names it.
        inputs: numbers of the operands that it reads.
        outputs: numbers of those that it writes: two for the halves of a pair, else one.
        number: what a Fill writes.
        reads_output: whether an elementwise operation also reads what it writes.
        fresh: a reduction starts at its neutral element, not at what its output holds, where this holds; None: never.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    number: float = 0.0
    reads_output: bool = False
    fresh: Guard | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on tiles.

    A Contraction may have a fourth operand, which its output starts from where ``init`` holds.

    Args:
        kind: as TEIR names it; ``Chain`` where several run one after the other at every point.
        operands: positions of its tensors in the program, inputs first, output last.
        dims: outermost first, in the order that a literal execution follows.
        offsets: bytes added to each operand's address.
        width_bytes: bytes of one element of the output.
        guard: when it runs at all.
        init: a Contraction stores instead of accumulating where this holds; None: never.
        relu: a Contraction applies ReLU after its sum where this holds; None: never.
        stages: what happens at each point, in order; none for a Contraction.
        dropped: numbers of operands that nothing reads afterwards, so that they are never written.
    """

    kind: str
    operands: tuple[int, ...]
    dims: tuple[Dim, ...]
    offsets: tuple[int, ...]
    width_bytes: int
    guard: Guard = ()
    init: Guard | None = None
    relu: Guard | None = None
    stages: tuple[Stage, ...] = ()
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that stays: its axis, whether its iterations may run at once, when it runs at all."""

    axis: Axis
    parallel: bool
    body: tuple[Step, ...]
    guard: Guard = ()


Step = Loop | Op


def make_plan(program: Program, *, merge: bool = True) -> tuple[Step, ...]:
    """The plan of a well-formed program.

    Args:
        program: verified.
        merge: whether operations are fused and loops absorbed; without, the schedule is followed to the letter.
    """
    return _Planner(program, merge).forest()


class _Planner:
    """Builds steps bottom-up; holds what every step looks up."""

    def __init__(self, program: Program, merge: bool) -> None:
        self.program = program
        self.merge = merge
        self.nodes = nodes_by_id(program)
        self.axes = axes_by_id(program)
        self.primitives = primitives_by_id(program)
        self.positions = {spec.name: k for k, spec in enumerate(program.tensors)}

    def forest(self) -> tuple[Step, ...]:
        return self.merged([self.step(root) for root in self.program.roots])

    def step(self, id: Id) -> Step:
        node = self.nodes[id]
        if isinstance(node, Invocation):
            return self.operation(node, self.primitives[node.primitive])
        body = self.merged([self.step(child) for child in node.children])
        loop = Loop(self.axes[node.axis], node.policy == "parallel", body, node.guard)
        if self.merge and len(body) == 1:
            return _absorbed(loop) or loop
        return loop

    def operation(self, node: Invocation, primitive: Primitive) -> Op:
        operands = tuple(self.positions[name] for name in operands_of(primitive, self.program))
        axes = [self.axes[id] for role in ("M", "N", "K") for id in primitive.role(role)]
        pair = [self.axes[id] for id in primitive.role("P")]
        offsets = [sum(axis.offsets[j] for axis in (*axes, *pair)) for j in operands]
        if pair:  # the second half is an operand of its own
            operands = (*operands, operands[-1])
            offsets.append(offsets[-1] + pair[0].strides[operands[-1]])
        dims = tuple(Dim(axis.extent, tuple(axis.strides[j] for j in operands)) for axis in axes)
        width = width_bytes(self.program.tensors[operands[-1]].dtype)
        stages = _stages(primitive, len(operands) - len(pair) - 1)
        return Op(primitive.operation, operands, dims, tuple(offsets), width, node.guard, stages=stages)

    def merged(self, steps: list[Step]) -> tuple[Step, ...]:
        """Siblings with initialisations and epilogues fused into the contraction between them."""
        if not self.merge:
            return tuple(steps)
        kept: list[Step] = []
        for step in steps:
            fused = None
            if kept:
                fused = _with_zero(kept[-1], step) or _with_relu(kept[-1], step)
                fused = fused or _with_start(kept[-1], step, self.program)
            if fused is not None:
                kept[-1] = fused
            else:
                kept.append(step)
        return tuple(kept)


def _stages(primitive: Primitive, inputs: int) -> tuple[Stage, ...]:
    """What an operation does at a point; the operands are its inputs, its output, and the other half of a pair."""
    kind, reads = primitive.operation, tuple(range(inputs))
    if kind == "Contraction":
        return ()
    if kind == "LowestZero":
        return Stage("Lowest", (), (0,)), Stage("Zero", (), (1,))
    outputs = (inputs, inputs + 1) if primitive.role("P") else (inputs,)
    value = dict(primitive.metadata).get("value") if kind == "Fill" else 0
    number = value if isinstance(value, int | float) else 0
    return (Stage(kind, reads, outputs, number, reads_output=kind in ("Bias", "Scale")),)


def injective(dims: tuple[Dim, ...], operand: int, width: int) -> bool:
    """Whether different indices reach different elements of an operand; False also where it cannot be decided."""
    try:
        strides = [dim.strides[operand] for dim in dims]
        return first_collision([dim.extent for dim in dims], strides, width) is None
    except Undecided:
        return False


def _self_reading(op: Op) -> bool:
    """Whether a contraction reads the tensor that it writes, so that the order of its steps is its meaning."""
    return op.kind == "Contraction" and op.operands[2] in op.operands[:2]


# ---- fusion -----------------------------------------------------------------------------------------------------


def _region(op: Op) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Which elements of its output an operation writes, in a form that can be compared."""
    out = _out(op)
    moves = sorted((d.strides[out], d.extent) for d in op.dims if d.extent > 1 and d.strides[out] != 0)
    return op.operands[out], op.offsets[out], tuple(moves)


def _out(op: Op) -> int:
    """The number of the output among the operands."""
    return 2 if op.kind == "Contraction" else len(op.operands) - 1


def _moving(op: Op) -> tuple[Dim, ...]:
    out = _out(op)
    return tuple(dim for dim in op.dims if dim.extent > 1 and dim.strides[out] != 0)


def minus(guard: Guard, other: Guard) -> Guard | None:
    """The terms of a guard that another lacks; None when the other asks for more."""
    return None if set(other) - set(guard) else tuple(t for t in dict.fromkeys(guard) if t not in other)


def _with_zero(before: Step, step: Step) -> Op | None:
    if not (isinstance(before, Op) and isinstance(step, Op) and before.kind == "Zero" and step.kind == "Contraction"):
        return None
    condition = minus(before.guard, step.guard)
    same = _region(before) == _region(step) and injective(_moving(step), 2, step.width_bytes)
    if condition is None or not same or step.init is not None or _self_reading(step):
        return None
    return replace(step, init=condition)


def _with_relu(before: Step, step: Step) -> Op | None:
    if not (isinstance(before, Op) and isinstance(step, Op) and before.kind == "Contraction" and step.kind == "ReLU"):
        return None
    condition = minus(step.guard, before.guard)
    in_place = step.operands[0] == step.operands[1] == before.operands[2]
    same = _region(before) == _region(step) and injective(_moving(before), 2, before.width_bytes)
    if condition is None or not in_place or not same or before.relu is not None or _self_reading(before):
        return None
    return replace(before, relu=condition)


def _with_start(before: Step, step: Step, program: Program) -> Op | None:
    """A contraction whose output starts as a copy of what moves as the output does, or not at all."""
    if not (isinstance(before, Op) and isinstance(step, Op) and before.kind == "Copy" and step.kind == "Contraction"):
        return None
    condition = minus(before.guard, step.guard)
    same = _region(before) == _region(step) and injective(_moving(step), 2, step.width_bytes)
    if condition is None or not same or step.init is not None or _self_reading(step):
        return None
    source, out = before.operands
    types = program.tensors[source].dtype, program.tensors[out].dtype
    strides = {dim.strides[1]: dim.strides[0] for dim in before.dims if dim.extent > 1}
    if types[0] != types[1] or source == out or any(stride not in (0, s) for s, stride in strides.items()):
        return None
    if all(strides.values()):  # it may be the very output
        return None
    dims = tuple(
        Dim(dim.extent, (*dim.strides, strides.get(dim.strides[2], 0) if dim.extent > 1 else 0)) for dim in step.dims
    )
    operands, offsets = (*step.operands, source), (*step.offsets, before.offsets[0])
    return replace(step, operands=operands, offsets=offsets, dims=dims, init=condition)


def start_of(op: Op) -> Op:
    """The copy that a contraction's output starts as."""
    dims = tuple(Dim(d.extent, (d.strides[3], d.strides[2])) for d in op.dims if d.extent > 1 and d.strides[2])
    stage = Stage("Copy", (0,), (1,))
    operands, offsets = (op.operands[3], op.operands[2]), (op.offsets[3], op.offsets[2])
    return Op("Copy", operands, dims, offsets, op.width_bytes, stages=(stage,))


# ---- absorption -------------------------------------------------------------------------------------------------


def _absorbed(loop: Loop) -> Op | None:
    """The loop and its only operation as one operation; None where that would change the meaning."""
    op = loop.body[0]
    axis = loop.axis
    if not isinstance(op, Op) or any(term.axis == axis.id for term in op.guard):
        return None
    dim = Dim(axis.extent, tuple(axis.strides[j] for j in op.operands))
    merged = replace(
        op,
        dims=(dim, *op.dims),
        offsets=tuple(o + axis.offsets[j] for o, j in zip(op.offsets, op.operands, strict=True)),
        guard=tuple(dict.fromkeys((*loop.guard, *op.guard))),
    )
    if op.kind != "Contraction":
        return merged
    if _self_reading(op):
        return None
    if op.init is None and op.relu is None:
        return merged
    still = dim.strides[2] == 0 or dim.extent == 1
    if len(op.operands) > 3 and dim.strides[3] not in (0, dim.strides[2]):
        return None
    init, relu = op.init, op.relu
    if still and dim.extent > 1:
        # one more contracted axis: initialised at its first index, finished at its last, or not at all
        return _contracted(merged, axis, dim.extent)
    if any(term.axis == axis.id for term in (*(init or ()), *(relu or ()))):
        if dim.extent > 1:
            return None
        init = None if init is None else tuple(t for t in init if t.axis != axis.id)
        relu = None if relu is None else tuple(t for t in relu if t.axis != axis.id)
    if not injective(_moving(merged), 2, merged.width_bytes):
        return None
    return replace(merged, init=init, relu=relu)


def _contracted(merged: Op, axis: Axis, extent: int) -> Op | None:
    init, relu = merged.init, merged.relu
    if init is not None:
        if First(axis.id) not in init or Last(axis.id) in init:
            return None
        init = tuple(t for t in init if t != First(axis.id))
    if relu is not None:
        if Last(axis.id) not in relu or First(axis.id) in relu:
            return None
        relu = tuple(t for t in relu if t != Last(axis.id))
    return replace(merged, init=init, relu=relu)


# ---- text ---------------------------------------------------------------------------------------------------------


def describe(steps: tuple[Step, ...], program: Program, indent: str = "") -> str:
    """A plan as an indented tree, for people.

    Example:
        >>> describe((), Program((), (), (), (), ()))
        ''
    """
    lines = []
    for step in steps:
        condition = f"  [{_terms(step.guard)}]" if step.guard else ""
        if isinstance(step, Loop):
            lines.append(f"{indent}{step.axis.id}{'  (parallel)' if step.parallel else ''}{condition}")
            lines.append(describe(step.body, program, indent + "    "))
            continue
        names = ", ".join(program.tensors[j].name for j in step.operands)
        shape = " x ".join(str(dim.extent) for dim in step.dims) or "scalar"
        kind = "; ".join(stage.kind for stage in step.stages) if step.kind == "Chain" else step.kind
        flags = "".join(
            f"  {word}{f' if {_terms(guard)}' if guard else ''}"
            for word, guard in (("stores", step.init), ("then ReLU", step.relu))
            if guard is not None
        )
        lines.append(f"{indent}{kind}({names})  {shape}{flags}{condition}")
    return "\n".join(lines)


def _terms(guard: Guard) -> str:
    return " and ".join(f"{type(term).__name__.lower()}({term.axis})" for term in guard)
