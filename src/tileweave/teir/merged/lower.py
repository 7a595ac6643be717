"""Which kernel of the document a merged operation is; a backend dispatches on it.

Source: TEIR, section 10.6, tables 10.6.1 and 10.6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tileweave.teir.analysis import lower
from tileweave.teir.analysis.lower import Explanation
from tileweave.teir.ir.program import Axis, Program
from tileweave.teir.merged.form import MONOIDS, MergedOp, Mode, fuse


def classified(op: MergedOp, program: Program) -> Explanation:
    """The document's kernel for an operation, its modes joined where they walk like one axis.

    Modes along which a Contraction's three operands move, or its output alone, are a batch of such kernels. Chains of
    several stages are none of the document's.

    Example:
        >>> from tileweave.teir import examples
        >>> from tileweave.teir.merged.merge import merged
        >>> form = merged(examples.batched_gemm_scalar({"a": 4, "b": 5, "c": 6, "d": 7}))
        >>> print(classified(form.body[0], form.program))
        Contraction: Gemm
          batch of 7
          roles: |M| = 1, |N| = 1, |K| = 1
          A = in0: row-major, unit stride on k, leading dimension 4 on m
          B = in1: row-major, unit stride on n, leading dimension 6 on k
          C = out: row-major, unit stride on n, leading dimension 6 on m
    """
    count = 3 if op.kind == "Contraction" else len(op.operands)
    names = [program.tensors[j].name for j in op.operands[:count]]
    dtypes = [program.tensors[j].dtype for j in op.operands[:count]]
    roles = roles_of(op)
    batch = prod(mode.extent for mode in roles.pop("batch", []))
    axes = {role: _axes(role.lower(), modes, count) for role, modes in roles.items()}
    found = lower.classify(op.kind, op.kind, axes, names, dtypes)
    return replace(found, lines=(f"batch of {batch}", *found.lines)) if batch > 1 else found


def roles_of(op: MergedOp) -> dict[str, list[Mode]]:
    """The modes of more than one step by role, outermost first, joined where that is exact.

    Of a Contraction: K where the output stands still, M where in0 moves alone, N where in1 does, else batch. Of other
    operations: the reduced modes K, the last of the others N.
    """
    modes = [mode for mode in op.modes if mode.extent > 1]
    if op.kind != "Contraction":
        out = len(op.operands) - 1
        reduces = any(stage.kind in MONOIDS for stage in op.stages)
        summed = [mode for mode in modes if reduces and not mode.strides[out]]
        kept = _joined([mode for mode in modes if mode not in summed], out)
        return {"M": kept[:-1], "N": kept[-1:], **({"K": _joined(summed, 0)} if reduces else {})}
    roles: dict[str, list[Mode]] = {"batch": [], "M": [], "N": [], "K": []}
    for mode in modes:
        a, b, c = map(bool, mode.strides[:3])
        roles["K" if not c else "batch" if a == b else "M" if a else "N"].append(mode)
    order = {"batch": 2, "M": 2, "N": 2, "K": 0}
    return {role: _joined(group, order[role]) for role, group in roles.items()}


def _joined(modes: Sequence[Mode], lead: int) -> list[Mode]:
    return list(fuse(sorted(modes, key=lambda mode: -abs(mode.strides[lead]))))


def _axes(name: str, modes: Sequence[Mode], count: int) -> list[Axis]:
    names = [name] if len(modes) == 1 else [f"{name}{k}" for k in range(len(modes))]
    return [Axis(n, mode.extent, mode.strides[:count], (0,) * count) for n, mode in zip(names, modes, strict=True)]
