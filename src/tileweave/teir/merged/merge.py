"""From a schedule to its merged form: what may be one operation becomes one.

Three changes, which keep every value up to the order of a sum:

- *Fusion*: a Zero before a Contraction into the same tile, and a ReLU after it, become flags of the Contraction.
- *Absorption*: a loop around a single operation becomes one more mode of the operation.
- *Chains*: neighbours that visit the same points run point by point (`tileweave.teir.merged.chain`).

So a contraction that was scheduled down to scalars is again one contraction, which a backend then blocks for the caches
and registers of its machine. What cannot be merged stays a loop.

Source: own.
"""

from __future__ import annotations

from dataclasses import replace

from tileweave.teir.analysis.calls import Call, every_call
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.program import Axis, First, Guard, Id, Invocation, Last, Program
from tileweave.teir.ir.walk import axes_by_id, nodes_by_id
from tileweave.teir.merged.chain import chained
from tileweave.teir.merged.form import Loop, Merged, MergedOp, Mode, Stage, Step, injective, minus, region


def merged(program: Program, *, merge: bool = True) -> Merged:
    """The merged form of a well-formed program.

    Args:
        program: verified.
        merge: whether operations are fused, loops absorbed and neighbours joined in chains; without, the schedule is
            followed to the letter.

    Example:
        >>> from tileweave.teir import examples
        >>> from tileweave.teir.merged.text import show
        >>> print(show(merged(examples.contraction_scalar(dict.fromkeys("pqrstu", 4)))))
        Contraction(in0, in1, out)  4 x 4 x 4 x 4 x 4 x 4  stores
    """
    body = _Merger(program, merge).forest()
    return Merged(program, chained(body, program) if merge else body)


class _Merger:
    """Builds steps bottom-up; holds what every step looks up."""

    def __init__(self, program: Program, merge: bool) -> None:
        self.program = program
        self.merge = merge
        self.nodes = nodes_by_id(program)
        self.axes = axes_by_id(program)
        self.calls = {call.node: call for call in every_call(program)}

    def forest(self) -> tuple[Step, ...]:
        return self.merged([self.step(root) for root in self.program.roots])

    def step(self, id: Id) -> Step:
        node = self.nodes[id]
        if isinstance(node, Invocation):
            return _operation(self.calls[id], node.guard)
        body = self.merged([self.step(child) for child in node.children])
        loop = Loop(self.axes[node.axis], any_order(node.policy), body, node.guard)
        if self.merge and len(body) == 1:
            return _absorbed(loop) or loop
        return loop

    def merged(self, steps: list[Step]) -> tuple[Step, ...]:
        """Siblings with initialisations and epilogues fused into the contraction between them."""
        if not self.merge:
            return tuple(steps)
        kept: list[Step] = []
        for step in steps:
            before, fused = kept[-1] if kept else None, None
            if isinstance(before, MergedOp) and isinstance(step, MergedOp):
                fused = _with_zero(before, step) or _with_relu(before, step) or _with_start(before, step, self.program)
            if fused is not None:
                kept[-1] = fused
            else:
                kept.append(step)
        return tuple(kept)


def _operation(call: Call, guard: Guard) -> MergedOp:
    """One invocation: the axes that its primitive consumes are its modes."""
    axes = [span.axis for span in call.consumed]
    operands = call.tensors
    offsets = [sum(axis.offsets[j] for axis in axes) for j in operands]
    modes = tuple(Mode(a.extent, tuple(a.strides[j] for j in operands)) for a in axes)
    width = call.width(len(call.names) - 1)
    return MergedOp(call.spec.name, operands, modes, tuple(offsets), width, guard, stages=_stages(call))


def _stages(call: Call) -> tuple[Stage, ...]:
    """What an operation does at a point; the operands are its inputs and its output."""
    kind, inputs = call.spec.name, len(call.names) - 1
    if kind == "Contraction":
        return ()
    value = dict(call.primitive.metadata).get("value") if kind == "Fill" else 0
    number = value if isinstance(value, int | float) else 0
    return (Stage(kind, tuple(range(inputs)), inputs, number, reads_output=kind in ("Bias", "Scale")),)


def _self_reading(op: MergedOp) -> bool:
    """Whether a contraction reads the tensor that it writes, so that the order of its steps is its meaning."""
    return op.kind == "Contraction" and op.operands[2] in op.operands[:2]


# ---- fusion -----------------------------------------------------------------------------------------------------


def _out(op: MergedOp) -> int:
    """The number of the output among the operands."""
    return 2 if op.kind == "Contraction" else len(op.operands) - 1


def _written(op: MergedOp) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Which elements of its output an operation writes, in a form that can be compared."""
    return region(op, _out(op))


def _moving(op: MergedOp) -> tuple[Mode, ...]:
    out = _out(op)
    return tuple(mode for mode in op.modes if mode.extent > 1 and mode.strides[out] != 0)


def _with_zero(before: MergedOp, step: MergedOp) -> MergedOp | None:
    if before.kind != "Zero" or step.kind != "Contraction":
        return None
    condition = minus(before.guard, step.guard)
    same = _written(before) == _written(step) and injective(_moving(step), 2, step.width_bytes)
    if condition is None or not same or step.init is not None or _self_reading(step):
        return None
    return replace(step, init=condition)


def _with_relu(before: MergedOp, step: MergedOp) -> MergedOp | None:
    if before.kind != "Contraction" or step.kind != "ReLU":
        return None
    condition = minus(step.guard, before.guard)
    in_place = step.operands[0] == step.operands[1] == before.operands[2]
    same = _written(before) == _written(step) and injective(_moving(before), 2, before.width_bytes)
    if condition is None or not in_place or not same or before.relu is not None or _self_reading(before):
        return None
    return replace(before, relu=condition)


def _with_start(before: MergedOp, step: MergedOp, program: Program) -> MergedOp | None:
    """A contraction whose output starts as a copy of what moves as the output does, or not at all."""
    if before.kind != "Copy" or step.kind != "Contraction":
        return None
    condition = minus(before.guard, step.guard)
    same = _written(before) == _written(step) and injective(_moving(step), 2, step.width_bytes)
    if condition is None or not same or step.init is not None or _self_reading(step):
        return None
    source, out = before.operands
    types = program.tensors[source].dtype, program.tensors[out].dtype
    moved = [mode for mode in before.modes if mode.extent > 1]  # compared, not hashed: followed sizes stay open
    if types[0] != types[1] or source == out or any(mode.strides[0] not in (0, mode.strides[1]) for mode in moved):
        return None
    if all(mode.strides[0] for mode in moved):  # it may be the very output
        return None

    def start(mode: Mode) -> int:
        """Its stride in the source."""
        same = (one.strides[0] for one in moved if one.strides[1] == mode.strides[2])
        return next(same, 0) if mode.extent > 1 else 0

    modes = tuple(Mode(mode.extent, (*mode.strides, start(mode))) for mode in step.modes)
    operands, offsets = (*step.operands, source), (*step.offsets, before.offsets[0])
    return replace(step, operands=operands, offsets=offsets, modes=modes, init=condition)


def start_of(op: MergedOp) -> MergedOp:
    """The copy that a contraction's output starts as."""
    modes = tuple(Mode(d.extent, (d.strides[3], d.strides[2])) for d in op.modes if d.extent > 1 and d.strides[2])
    stage = Stage("Copy", (0,), 1)
    operands, offsets = (op.operands[3], op.operands[2]), (op.offsets[3], op.offsets[2])
    return MergedOp("Copy", operands, modes, offsets, op.width_bytes, stages=(stage,))


# ---- absorption -------------------------------------------------------------------------------------------------


def _absorbed(loop: Loop) -> MergedOp | None:
    """The loop and its only operation as one operation; None where that would change the meaning."""
    op = loop.body[0]
    axis = loop.axis
    if not isinstance(op, MergedOp) or any(term.axis == axis.id for term in op.guard):
        return None
    mode = Mode(axis.extent, tuple(axis.strides[j] for j in op.operands))
    merged = replace(
        op,
        modes=(mode, *op.modes),
        offsets=tuple(o + axis.offsets[j] for o, j in zip(op.offsets, op.operands, strict=True)),
        guard=tuple(dict.fromkeys((*loop.guard, *op.guard))),
    )
    if op.kind != "Contraction":
        return merged
    if _self_reading(op):
        return None
    if op.init is None and op.relu is None:
        return merged  # it adds to what the output holds: one more axis of any kind is more terms
    still = mode.strides[2] == 0 or mode.extent == 1
    if len(op.operands) > 3 and mode.strides[3] not in (0, mode.strides[2]):
        return None  # what the output starts as would move otherwise than the output does
    init, relu = op.init, op.relu
    if still and mode.extent > 1:
        # one more contracted axis: initialised at its first index, finished at its last, or not at all
        return _contracted(merged, axis)
    if any(term.axis == axis.id for term in (*(init or ()), *(relu or ()))):
        if mode.extent > 1:
            return None  # some elements would be initialised, others not: an operation does all or none
        init = None if init is None else tuple(t for t in init if t.axis != axis.id)
        relu = None if relu is None else tuple(t for t in relu if t.axis != axis.id)
    if not injective(_moving(merged), 2, merged.width_bytes):
        return None  # a later step would initialise an element that an earlier one has summed
    return replace(merged, init=init, relu=relu)


def _contracted(merged: MergedOp, axis: Axis) -> MergedOp | None:
    init, relu = merged.init, merged.relu
    if init is not None:
        if First(axis.id) not in init or Last(axis.id) in init:
            return None  # at each index, or at the last one, it would throw away what was summed before
        init = tuple(t for t in init if t != First(axis.id))
    if relu is not None:
        if Last(axis.id) not in relu or First(axis.id) in relu:
            return None  # it would clip partial sums
        relu = tuple(t for t in relu if t != Last(axis.id))
    return replace(merged, init=init, relu=relu)
