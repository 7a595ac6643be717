"""Single faults in a thread program: each synchronisation deleted or perturbed, each mask dropped."""

from __future__ import annotations

from dataclasses import replace

from tileweave.index import Expr, simplify
from tileweave.kernel.threads import Branch, Instruction, Loop, rewritten

DELETED = (
    "bar.sync", "bar.warp.sync", "cp.async.commit_group", "cp.async.wait_group", "mbarrier.", "fence.", "wgmma.fence",
    "wgmma.commit_group", "wgmma.wait_group", "signal", "wait",
)  # fmt: skip


def faults(item):
    """(what was done, the statements in its place) for one instruction."""
    if item.atom.startswith(DELETED):
        yield f"no {item.atom}", ()
    first, *rest = item.operands or (None,)
    if item.atom == "mbarrier.init":
        for change in (-1, 1):
            yield f"count {change:+}", (replace(item, operands=(first, rest[0] + change)),)
    if item.atom == "mbarrier.expect_tx":
        yield "half the bytes", (replace(item, operands=(first, _half(rest[0]))),)
    if item.atom == "mbarrier.wait":
        yield (
            "other parity",
            (replace(item, operands=(first, simplify(1 - rest[0]) if isinstance(rest[0], Expr) else 1 - rest[0])),),
        )
    if item.atom in ("cp.async.wait_group", "wgmma.wait_group"):
        yield "one more pending", (replace(item, operands=(first + 1,)),)
    if item.mask is not None and item.atom.startswith(("ld.", "st.", "cp.async.c")):
        yield f"no mask on {item.atom}", (replace(item, mask=None),)
    if item.atom.startswith("wgmma.mma_async"):
        lbo, sbo, swizzle = item.option("a")
        options = dict(item.options)
        yield (
            "half the stride of A",
            (replace(item, options=tuple({**options, "a": (lbo, sbo // 2, swizzle)}.items())),),
        )
        yield "other swizzle of A", (replace(item, options=tuple({**options, "a": (lbo, sbo, 2)}.items())),)


def _half(number):
    return simplify(number // 2) if isinstance(number, Expr) else number // 2


def mutants(program):
    """(description, line, program) for each single fault."""
    numbered = _numbered(program.body)
    for k, item in enumerate(numbered):
        for what, instead in faults(item):
            seen = iter(range(len(numbered)))

            def change(statement, seen=seen, k=k, instead=instead):
                if isinstance(statement, Instruction):
                    return instead if next(seen) == k else (statement,)
                return None

            yield what, str(item.at), replace(program, body=rewritten(program.body, change))


def _numbered(body):
    found = []
    for statement in body:
        if isinstance(statement, Instruction):
            found.append(statement)
        elif isinstance(statement, Loop):
            found += _numbered(statement.body)
        elif isinstance(statement, Branch):
            found += _numbered(statement.body) + _numbered(statement.otherwise)
    return found
