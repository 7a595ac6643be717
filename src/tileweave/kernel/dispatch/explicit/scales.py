"""Products with scales whose sums are in registers: each 32 terms are a product of their own, scaled as it is added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tileweave.kernel.dispatch.explicit.draft import Draft
from tileweave.kernel.dispatch.layouts.places import columns
from tileweave.kernel.ir import (
    Alloc,
    For,
    Kernel,
    KernelTensor,
    On,
    Op,
    Region,
    Scalar,
    Statement,
    When,
    While,
    whole,
)

#: Terms that have one scale.
TERMS = 32


def scaled_apart(kernel: Kernel, draft: Draft) -> Kernel:
    """The kernel without products that have scales, but for those into tensor memory, whose instruction has them."""
    body = _apart(kernel.body, draft)
    return replace(kernel, body=body) if body != kernel.body else kernel


def _apart(body: Sequence[Statement], draft: Draft) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Op):
            registers = statement.name == "gemm" and statement.outs[0].tensor.space == "register"
            made = list(_products(statement, draft)) if registers and len(statement.ins) == 5 else [statement]
            if statement in draft.refused:
                draft.refused |= {s: draft.refused[statement] for s in made if isinstance(s, Op) and s.name == "gemm"}
            out += made
        elif isinstance(statement, When):
            yes, no = (_apart(one, draft) for one in (statement.body, statement.otherwise))
            out.append(replace(statement, body=yes, otherwise=no))
        elif isinstance(statement, For | While | On):
            out.append(replace(statement, body=_apart(statement.body, draft)))
        else:
            out.append(statement)
    return tuple(out)


def _products(op: Op, draft: Draft) -> Iterator[Statement]:
    a, b, old, *scales = op.ins
    acc, line = op.outs[0], op.line
    if not isinstance(a, Region) or not isinstance(b, Region):
        raise TypeError(op.name)
    if isinstance(old, Scalar):
        yield Op("fill", (acc,), (old,), line=line)
    kept = tuple(o for o in op.options if o[0] == "use")
    for first in range(0, a.shape[1], TERMS):
        part = KernelTensor(draft.fresh("part"), acc.shape, acc.tensor.dtype, "register")
        width = min(TERMS, a.shape[1] - first)
        factors = columns(a, first, width), columns(b, first, width)
        yield Alloc(part, line)
        yield Op("gemm", (whole(part),), (*factors, Scalar(0.0, part.dtype)), kept, line=line)
        for n, region in enumerate(scales):
            if not isinstance(region, Region):
                raise TypeError(op.name)
            column = columns(region, first // TERMS, 1)
            shown = column.transposed if n else column
            held = KernelTensor(draft.fresh("scale"), shown.shape, region.tensor.dtype, "register")
            yield Alloc(held, line)
            yield Op("copy", (whole(held),), (shown,), line=line)
            yield Op("map", (whole(part),), (whole(part), whole(held)), (("fn", "mul"),), line=line)
        yield Op("map", (acc,), (acc, whole(part)), (("fn", "add"),), line=line)
