"""Whether the points of an operation may be visited in any order: what its operands share decides."""

from __future__ import annotations

from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Program
from tileweave.teir.merged.form import MONOIDS, MergedOp, injective

Pairs = frozenset[tuple[int, int]]
"""Numbers of operands that may lie in the same memory, in both orders."""


def may_alias(program: Program, j: int, k: int) -> bool:
    """Whether two different tensors may lie in the same memory.

    A caller may give one array for both where they agree in type, strides and offsets; but not where contractions or
    reductions write both, or one of these reads one and writes the other. Scratch is never shared.
    """
    a, b = program.tensors[j], program.tensors[k]
    if a.dtype != b.dtype or "scratch" in (a.role, b.role):
        return False
    if any(x.strides[j] != x.strides[k] or x.offsets[j] != x.offsets[k] for x in program.axes):
        return False
    names = {a.name, b.name}
    sums = [operands_of(p, program) for p in program.primitives if operation(p.operation).contracted]
    return not names <= {out for *_, out in sums} and not any(out in names and names & set(read) for *read, out in sums)


def rivals_of(op: MergedOp, program: Program) -> Pairs:
    """The operands of an operation that may lie in the same memory, one of them being written."""
    places: dict[int, list[int]] = {}
    for o, tensor in enumerate(op.operands):
        places.setdefault(tensor, []).append(o)
    outside = [tensor for tensor in places if program.tensors[tensor].role != "scratch"]
    found = set()
    for w in {stage.output for stage in op.stages}:
        own = op.operands[w]
        near = [other for other in outside if other != own and may_alias(program, other, own)] if own in outside else []
        for o in (o for tensor in (own, *near) for o in places[tensor] if o != w):
            found |= {(o, w), (w, o)}
    return frozenset(found)


def free(op: MergedOp, widths: tuple[int, ...], rivals: Pairs) -> bool:
    """Whether the points of a chain may be visited in any order, and vectors of them at once.

    Each output that is stored is written at most once per point, or taken into along the same axes; and what may share
    its memory is read and written at the same place at every point.
    """
    modes = [mode for mode in op.modes if mode.extent > 1]
    still: set[frozenset[int]] = set()
    for stage in op.stages:
        o = stage.output
        if o in op.dropped:
            continue
        moving = [mode for mode in modes if mode.strides[o]]
        if stage.kind in MONOIDS:
            still.add(frozenset(k for k, mode in enumerate(modes) if not mode.strides[o]))
            if any((o, other) in rivals for other in range(len(op.operands))):
                return False
        elif len(moving) < len(modes):
            return False
        if not injective(tuple(moving), o, widths[o]):
            return False
    same = all(mode.strides[a] == mode.strides[b] for mode in modes for a, b in rivals)
    return same and all(op.offsets[a] == op.offsets[b] for a, b in rivals) and len(still) <= 1
