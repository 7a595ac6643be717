"""Rows of several operations, a few rows at a time: each operation takes all of them before the next one begins.

What there is once per row, as the logarithm of a sum, is computed for a vector of rows then; and what one row waits for
is hidden behind the others. Rows that a task takes one by one wait for each operation in turn.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tileweave.backends.cpu.target.target import Target
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.program import Axis, Program
from tileweave.teir.merged.form import Loop, MergedOp, Mode, Step
from tileweave.teir.merged.order import may_alias

ROWS = 16
"""Rows that pass together: a vector of FP32, and a multiple of all others."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Operations on one row after the other, none of which sees another row.

    Args:
        rows: the axis of the rows.
        body: the operations on a row.
    """

    rows: Axis
    body: tuple[MergedOp, ...]

    def together(self, op: MergedOp) -> MergedOp | None:
        """What is once per row, for `ROWS` rows; None for what has elements."""
        if any(mode.extent > 1 for mode in op.modes):
            return None
        return replace(op, modes=(Mode(ROWS, tuple(self.rows.strides[j] for j in op.operands)),))


def beside_of(loop: Loop, program: Program, target: Target) -> Beside | None:
    """A parallel loop over rows that may pass together, and do so better; None for others.

    Its body is the operations on a row, or a loop that goes on with its rows, one after the other because they would
    share scratch memory that nothing writes any more.
    """
    axis, steps = loop.axis, loop.body
    inner = steps[0]
    if len(steps) == 1 and isinstance(inner, Loop) and not inner.guard:
        axis, steps = inner.axis, inner.body
    body = _operations(steps)
    if body is None or any(loop.axis.offsets) or any(axis.offsets):
        return None
    if axis is not loop.axis:
        used = {tensor for op in body for tensor, _, _ in _spans(op)}
        if any(loop.axis.strides[j] != axis.extent * axis.strides[j] for j in used):
            return None
        axis = replace(axis, id=f"{loop.axis.id} {axis.id}", extent=loop.axis.extent * axis.extent)
    if axis.extent < 2 * ROWS:
        return None
    found = Beside(axis, body)
    alone = [found.together(op) is not None for op in body]
    if not any(alone) or all(alone) or not _apart(found, program):
        return None
    return found if ROWS * _row_bytes(body, program) <= target.l1_bytes else None


def _operations(steps: Sequence[Step]) -> tuple[MergedOp, ...] | None:
    """Operations that always run, and start anew where they reduce; None where others are among them."""
    found = []
    for step in steps:
        if not isinstance(step, MergedOp) or step.guard or not step.stages or any(s.fresh for s in step.stages):
            return None
        found.append(step)
    return tuple(found)


def _spans(op: MergedOp) -> list[tuple[int, int, int]]:
    """(tensor, first byte, byte behind the last element's first) of each operand that is in memory."""
    found = []
    for o, (tensor, offset) in enumerate(zip(op.operands, op.offsets, strict=True)):
        if o not in op.dropped:
            ends = [mode.strides[o] * (mode.extent - 1) for mode in op.modes]
            found.append((tensor, offset + sum(min(0, e) for e in ends), offset + sum(max(0, e) for e in ends)))
    return found


def _apart(found: Beside, program: Program) -> bool:
    """Whether what is written for one row lies apart from what is read or written for another one."""
    spans = [span for op in found.body for span in _spans(op)]
    written = {op.operands[s.output] for op in found.body for s in op.stages if s.output not in op.dropped}
    for tensor in written:
        same = [s for s in spans if s[0] == tensor or may_alias(program, s[0], tensor)]
        width = width_bytes(program.tensors[tensor].dtype)
        if max(s[2] for s in same) + width - min(s[1] for s in same) > abs(found.rows.strides[tensor]):
            return False
    return True


def _row_bytes(body: Sequence[MergedOp], program: Program) -> int:
    """Bytes of a row in all tensors."""
    held: dict[int, int] = {}
    for op in body:
        for tensor, first, last in _spans(op):
            held[tensor] = max(held.get(tensor, 0), last - first + width_bytes(program.tensors[tensor].dtype))
    return sum(held.values())
