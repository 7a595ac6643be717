"""The axes of a chain made ready for code: whether their order is free, which one runs in vectors, which are summed."""

from __future__ import annotations

from dataclasses import dataclass

from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.llvm.loops import fuse
from tileweave.backends.cpu.llvm.meanings import MONOIDS
from tileweave.backends.cpu.plan import Dim, Op, injective
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Program

__all__ = ["Pairs", "Shape", "free", "may_alias", "rivals_of", "shape_of"]

Pairs = frozenset[tuple[int, int]]
"""Numbers of operands that may lie in the same memory, in both orders."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Axes ready for code: none of extent 1.

    Args:
        dims: outermost first.
        offsets: bytes to add to each operand's address.
        free: whether the order of execution does not matter; if not, what follows is empty.
        along: the axis that runs in vectors.
        sums: axes on which the outputs of reductions stand still, ``along`` left out.
        outer: the other axes.
        sums_along: whether the outputs of reductions stand still on ``along``.
    """

    dims: tuple[Dim, ...]
    offsets: tuple[int, ...]
    free: bool
    along: Dim
    sums: tuple[Dim, ...] = ()
    outer: tuple[Dim, ...] = ()
    sums_along: bool = False


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


def rivals_of(op: Op, program: Program) -> Pairs:
    """The operands of an operation that may lie in the same memory, one of them being written."""
    written = {o for stage in op.stages for o in stage.outputs}
    found = set()
    for w in written:
        for o, tensor in enumerate(op.operands):
            if o != w and (tensor == op.operands[w] or may_alias(program, tensor, op.operands[w])):
                found |= {(o, w), (w, o)}
    return frozenset(found)


def free(op: Op, widths: tuple[int, ...], rivals: Pairs) -> bool:
    """Whether the points of a chain may be visited in any order, and vectors of them at once.

    Each output that is stored is written at most once per point, or taken into along the same axes; and what may share
    its memory is read and written at the same place at every point.
    """
    dims = [dim for dim in op.dims if dim.extent > 1]
    still: set[frozenset[int]] = set()
    for stage in op.stages:
        for o in stage.outputs:
            if o in op.dropped:
                continue
            moving = [dim for dim in dims if dim.strides[o]]
            if stage.kind in MONOIDS:
                still.add(frozenset(k for k, dim in enumerate(dims) if not dim.strides[o]))
                if any((o, other) in rivals for other in range(len(op.operands))):
                    return False
            elif len(moving) < len(dims):
                return False
            if not injective(tuple(moving), o, widths[o]):
                return False
    same = all(dim.strides[a] == dim.strides[b] for dim in dims for a, b in rivals)
    return same and all(op.offsets[a] == op.offsets[b] for a, b in rivals) and len(still) <= 1


def shape_of(op: Op, elements: tuple[Element, ...], rivals: Pairs, target: Target) -> Shape:
    """The axes of a chain, sorted and fused where that is free."""
    widths = tuple(e.width_bytes for e in elements)
    dims = [dim for dim in op.dims if dim.extent > 1]
    offsets = list(op.offsets)
    none = Dim(1, (0,) * len(elements))
    if [stage.kind for stage in op.stages] == ["Zero"]:  # zero any number of times is zero
        dims = [dim for dim in dims if dim.strides[-1]]
    elif not free(op, widths, rivals):
        return Shape(tuple(dims), tuple(offsets), False, none)
    lead = _leading(op)
    for k, dim in enumerate(dims):
        first = next((s for s in (dim.strides[lead], *dim.strides) if s), 0)
        if first < 0:
            offsets = [o + s * (dim.extent - 1) for o, s in zip(offsets, dim.strides, strict=True)]
            dims[k] = Dim(dim.extent, tuple(-s for s in dim.strides))
    reduced = [stage.outputs[0] for stage in op.stages if stage.kind in MONOIDS]
    sums = fuse(_sorted([dim for dim in dims if reduced and not dim.strides[reduced[0]]], lead))
    rest = fuse(_sorted([dim for dim in dims if not reduced or dim.strides[reduced[0]]], lead))
    together = (*rest, *sums)
    if not together:
        return Shape((), tuple(offsets), True, none)
    lanes = target.lanes(max(widths))
    along = min(reversed(together), key=lambda dim: _cost(dim, widths, lanes))
    return Shape(
        together,
        tuple(offsets),
        True,
        along,
        tuple(dim for dim in sums if dim is not along),
        tuple(dim for dim in rest if dim is not along),
        any(dim is along for dim in sums),
    )


def _leading(op: Op) -> int:
    """The operand in whose order memory is walked: the last output of all points, or what is reduced."""
    written = [stage.outputs[0] for stage in op.stages if stage.kind not in MONOIDS]
    return written[-1] if written else op.stages[0].inputs[0]


def _sorted(dims: list[Dim], lead: int) -> list[Dim]:
    return sorted(dims, key=lambda dim: (-dim.strides[lead], dim.extent))


def _cost(dim: Dim, widths: tuple[int, ...], lanes: int) -> float:
    """Bytes that a vector along an axis touches per element: a line where an operand is not dense."""
    touched = [
        width if stride == width else 0 if stride == 0 else 64
        for stride, width in zip(dim.strides, widths, strict=True)
    ]
    return (1 + sum(touched)) * (-(-dim.extent // lanes) * lanes / dim.extent)
