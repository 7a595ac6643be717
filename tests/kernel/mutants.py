"""Single faults in a thread program: each synchronisation deleted or perturbed, each mask dropped."""

from __future__ import annotations

from dataclasses import replace

from tileweave.index import Expr, as_expr, constant_of, simplify
from tileweave.kernel.threads import Address, Branch, Instruction, Repeat, ThreadLoop, rewritten

DELETED = (
    "bar.sync", "bar.warp.sync", "cp.async.commit_group", "cp.async.wait_group", "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group", "mbarrier.", "fence.", "wgmma.fence",
    "wgmma.commit_group", "wgmma.wait_group", "signal", "wait",
    "tcgen05.commit", "tcgen05.fence", "tcgen05.dealloc", "tcgen05.wait_st",
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
    if item.atom in (
        "cp.async.wait_group",
        "wgmma.wait_group",
        "cp.async.bulk.wait_group",
        "cp.async.bulk.wait_group.read",
    ):
        yield "one more pending", (replace(item, operands=(first + 1,)),)
    if item.atom.startswith("tcgen05.alloc"):
        yield "half the columns", (replace(item, operands=(first, rest[0] // 2)),)
    if item.atom.startswith("tcgen05.mma"):
        yield "other number", (replace(item, operands=(first, *rest[:2], rest[2] ^ 1 << 24, *rest[3:])),)
    if item.mask is not None and item.atom.startswith(("ld.", "st.", "cp.async.c")):
        yield f"no mask on {item.atom}", (replace(item, mask=None),)


def geometry(item):
    """The same for where an instruction goes: addresses, coordinates of boxes, descriptors."""
    for n, operand in enumerate(item.operands):
        if isinstance(operand, Address) and operand.element is not None:
            for what, by in (("an element on", 1), ("16 bytes on", 8)):
                yield f"operand {n} {what}", _with(item, n, replace(operand, offset=operand.offset + by))
            if isinstance(operand.offset, Expr) and constant_of(operand.offset) is None:
                yield f"operand {n} at twice the stride", _with(item, n, replace(operand, offset=operand.offset * 2))
        if item.option("cover") is not None and n >= len(item.operands) - len(item.option("cover")[1]):
            yield f"coordinate {n} one on", _with(item, n, simplify(as_expr(operand + 1)))
    fifth = item.atom.startswith("tcgen05.mma")
    if not fifth and not item.atom.startswith("wgmma.mma_async"):
        return
    if fifth:  # types, majors, n and m of the number
        for bit in (4, 7, 10, 15, 16, 18, 25):
            yield f"bit {bit} of the number", _with(item, 3, item.operands[3] ^ 1 << bit)
    swizzles = (2, 4, 6) if fifth else (1, 2, 3)
    majors = item.option("transposed", (False, False))
    for role, turned in zip("ab", majors, strict=True):
        lbo, sbo, swizzle = item.option(role)
        for what, other in (
            (f"half the stride of {role}", (lbo, sbo // 2, swizzle)),
            (f"twice the stride of {role}", (lbo, sbo * 2, swizzle)),
            (f"other swizzle of {role}", (lbo, sbo, swizzles[swizzles.index(swizzle) - 1])),
            (f"no swizzle of {role}", (lbo, sbo, 0)),
        ):
            yield what, _having(item, role, other)
        if fifth:
            yield f"a reserved swizzle of {role}", _having(item, role, (lbo, sbo, swizzle + 1))
        if turned:  # along k, one atom wide, the leading offset is not read
            yield f"half the leading offset of {role}", _having(item, role, (lbo // 2, sbo, swizzle))
    if item.option("transposed") is not None:
        for k in (0, 1):
            flipped = tuple(t != (n == k) for n, t in enumerate(majors))
            yield f"{'ab'[k]} turned", _having(item, "transposed", flipped)


def _with(item, n, operand):
    return replace(item, operands=(*item.operands[:n], operand, *item.operands[n + 1 :]))


def _having(item, name, value):
    return replace(item, options=tuple(sorted({**dict(item.options), name: value}.items())))


def misplaced(program):
    """(description, line, program) for each single fault of an address, a box or a descriptor."""
    numbered = _numbered(program.body)
    for k, item in enumerate(numbered):
        for what, other in geometry(item):
            yield f"{item.atom.split('.')[0]}: {what}", item.at, _changed(program, k, (other,))
    for n, (name, box) in enumerate(program.maps):
        others = [("other swizzle", replace(box, swizzle={0: 32, 32: 64, 64: 128, 128: 64}[box.swizzle]))]
        for d, extent in enumerate(box.box):
            if extent > 1:
                others.append((f"half of box {d}", replace(box, box=(*box.box[:d], extent // 2, *box.box[d + 1 :]))))
        for what, other in others:
            maps = (*program.maps[:n], (name, other), *program.maps[n + 1 :])
            yield f"map: {what}", None, replace(program, maps=maps)


def _changed(program, k, instead):
    seen = iter(range(1 << 30))

    def change(statement):
        if isinstance(statement, Instruction):
            return instead if next(seen) == k else (statement,)
        return None

    return replace(program, body=rewritten(program.body, change))


def _half(number):
    return simplify(number // 2) if isinstance(number, Expr) else number // 2


def mutants(program):
    """(description, line, program) for each single fault."""
    numbered = _numbered(program.body)
    for k, item in enumerate(numbered):
        for what, instead in faults(item):
            yield what, str(item.at), _changed(program, k, instead)


def _numbered(body):
    found = []
    for statement in body:
        if isinstance(statement, Instruction):
            found.append(statement)
        elif isinstance(statement, ThreadLoop | Repeat):
            found += _numbered(statement.body)
        elif isinstance(statement, Branch):
            found += _numbered(statement.body) + _numbered(statement.otherwise)
    return found
