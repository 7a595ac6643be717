"""Automatic products become explicit ones: operands staged in shared memory, by roles and a ring, or by a pipeline.

Rows that registers do not hold are gone over in parts (`rows`).

``cta.gemm(acc, A_tile, B_tile)`` on tiles in global memory says what to compute. `staged_products` gives the program
that does it: where the copy engine can fetch the tiles and warpgroups can multiply them, one warpgroup fills a ring of
stages and the others multiply; elsewhere all threads copy some steps ahead and multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import log2

from tileweave.index import Expr, as_expr, simplify, substitute
from tileweave.kernel.dispatch.boxes import map_problem
from tileweave.kernel.dispatch.context import always
from tileweave.kernel.dispatch.explicit.rows import in_parts
from tileweave.kernel.dispatch.groups import fits
from tileweave.kernel.dispatch.layouts.places import strided_layout
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Commit,
    Fence,
    For,
    Init,
    Kernel,
    KernelTensor,
    Line,
    On,
    Op,
    Region,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    walk,
)
from tileweave.kernel.ir.rewrite import free_symbols
from tileweave.layout.f2.swizzle import Swizzle

_LEAST = 2
#: Registers of a thread that only copies, and the most that others may have.
_FEW, _MOST = 40, 232


def staged_products(kernel: Kernel, arch: str, names: Names) -> Kernel:
    """The kernel with no product that reads global memory, and rows in parts that registers hold."""
    body = tuple(in_parts(s, arch, names.fresh) if isinstance(s, On) else s for s in kernel.body)
    if any(_automatic(s) for s in walk(body)):
        body = _outer(body, arch, names)
    return kernel if body == kernel.body else replace(kernel, body=body)


class Names:
    """Names that nothing else in a kernel has."""

    def __init__(self, kernel: Kernel) -> None:
        self.taken = {s.tensor.name for s in walk(kernel.body) if isinstance(s, Alloc)}
        self.taken |= {p.name for p in kernel.params} | {str(s) for s in free_symbols(kernel.grid)}
        self.taken |= {axis for axis, _ in kernel.mesh}

    def fresh(self, stem: str) -> str:
        """A stem, numbered where it is taken; taken from now on."""
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name


def _automatic(statement: object) -> bool:
    return isinstance(statement, Op) and statement.name == "gemm" and bool(_far(statement))


def _far(op: Op) -> list[Region]:
    """The operands of a product that are in global memory."""
    return [v for v in op.ins[:2] if isinstance(v, Region) and v.tensor.space in ("global", "symmetric")]


def _outer(body: Sequence[Statement], arch: str, names: Names) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, On) and statement.scope.kind == "cta":
            by_roles = _roles(statement, arch, names)
            once = statement.scope.threads // 32 if statement.each is None else 0
            out.append(by_roles or replace(statement, body=_inner(statement.body, arch, names, once)))
        elif isinstance(statement, On):
            once = statement.scope.threads // 32 if statement.each is None else 0
            out.append(replace(statement, body=_inner(statement.body, arch, names, once)))
        else:
            out.append(statement)
    return tuple(out)


def _inner(body: Sequence[Statement], arch: str, names: Names, once: int, again: bool = False) -> tuple[Statement, ...]:
    """Bodies whose products are staged by all threads of the scope.

    Args:
        once: the warps of a scope that executes them once, so that mbarriers count from 0; 0: no such.
        again: whether they may be executed more than once.
    """
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, For) and any(_automatic(s) for s in statement.body):
            by_boxes = None if again else _by_boxes(statement, arch, names, once)
            out += by_boxes or [Sync(line=statement.line)] * again + _pipeline(statement, arch, names)
        elif isinstance(statement, Op) and _automatic(statement):
            out += _single(statement, arch, names)
        elif isinstance(statement, When):
            yes, no = (_inner(b, arch, names, once, again) for b in (statement.body, statement.otherwise))
            out.append(replace(statement, body=yes, otherwise=no))
        elif isinstance(statement, For | While | On):
            inside = again or not isinstance(statement, On)
            out.append(replace(statement, body=_inner(statement.body, arch, names, 0, inside)))
        else:
            out.append(statement)
    return tuple(out)


def staged(region: Region, stages: int, name: str) -> KernelTensor:
    """A tensor in shared memory for some stages of a tile, with the widest swizzle that its rows have."""
    rows, columns = region.shape
    bytes_ = region.tensor.element.bits // 8
    width = next((w for w in (128, 64, 32) if columns * bytes_ % w == 0), 0)
    if not width or bytes_ > 4:
        pitch = columns + max(1, 16 // bytes_)
        layout = strided_layout([(stages, rows * pitch), (rows, pitch), (columns, 1)])
        return KernelTensor(name, (stages, rows, columns), region.tensor.dtype, "shared", layout)
    elements = width // bytes_
    inner = [(columns // elements, rows * elements)] if columns > elements else []
    layout = strided_layout([(stages, rows * columns), (rows, elements), *inner, (elements, 1)])
    swizzle = Swizzle(int(log2(width // 16)), int(log2(16 // bytes_)), 3)
    return KernelTensor(name, (stages, rows, columns), region.tensor.dtype, "shared", layout, swizzle)


def _stage(tensor: KernelTensor, number: int | Expr) -> Region:
    shape = tensor.shape[1:]
    return Region(tensor, (number, 0, 0), (1, *shape), (1, *shape), (1, 2))


def _moved(region: Region, symbol: Expr, value: Expr, given: Expr) -> Region:
    """A region with another number in place of a symbol, where a condition holds."""

    def at(part: int | Expr) -> int | Expr:
        return simplify(substitute(part, {symbol: value}, given=[given])) if isinstance(part, Expr) else part

    begin, mask, skip = (tuple(map(at, row)) for row in (region.begin, region.mask, region.skip))
    return replace(region, begin=begin, mask=mask, skip=skip)


def _operands(body: Sequence[Statement]) -> list[Region]:
    """The tiles in global memory that products of a body read, each once."""
    found: list[Region] = []
    for statement in body:
        if isinstance(statement, Op) and _automatic(statement):
            found += [r for r in _far(statement) if r not in found]
    return found


def _replaced(body: Sequence[Statement], tiles: dict[Region, Region]) -> tuple[Statement, ...]:
    """Products read the staged tiles."""
    return tuple(
        replace(s, ins=tuple(tiles.get(v, v) if isinstance(v, Region) else v for v in s.ins))
        if isinstance(s, Op) and s.name == "gemm"
        else s
        for s in body
    )


def _pipeline(loop: For, arch: str, names: Names) -> list[Statement]:
    """All threads copy some steps ahead, wait for the oldest copy, and multiply."""
    stages = max(_LEAST, loop.stages)
    regions = _operands(loop.body)
    tensors = [staged(r, stages, names.fresh("s" + r.tensor.name.lower())) for r in regions]
    i, line = loop.symbol, loop.line
    count = simplify((as_expr(loop.stop) - loop.start) // loop.step)
    ahead = stages - 1

    def copies(step: Expr, number: int | Expr) -> tuple[Statement, ...]:
        return tuple(
            Op("copy_async", (_stage(t, number),), (_moved(r, i, step, step < loop.stop),), line=line)
            for t, r in zip(tensors, regions, strict=True)
        )

    out: list[Statement] = [Alloc(t, line) for t in tensors]
    for p in range(ahead):
        step = simplify(as_expr(loop.start) + p * as_expr(loop.step))
        out += _when(as_expr(p) < count, partial(copies, step, p), line)
        out.append(Commit("cp.async", line=line))
    turn = simplify((i - loop.start) // loop.step)
    later = simplify(i + ahead * as_expr(loop.step))
    fence: list[Statement] = [Fence("proxy.async", line)] if arch == "sm_90a" else []
    body: list[Statement] = [WaitGroup("cp.async", ahead - 1, line=line), *fence, Sync(line=line)]
    body += _when(turn + ahead < count, partial(copies, later, simplify((turn + ahead) % stages)), line)
    body.append(Commit("cp.async", line=line))
    tiles = {r: _stage(t, simplify(turn % stages)) for t, r in zip(tensors, regions, strict=True)}
    body += _replaced(loop.body, tiles)
    return [*out, replace(loop, body=tuple(body), stages=1)]


def _by_boxes(loop: For, arch: str, names: Names, warps: int) -> list[Statement] | None:
    """The same by boxes, for warpgroups of which one thread fetches what all multiply; None where there is no form."""
    regions = _operands(loop.body)
    if arch != "sm_90a" or not warps or any(map_problem(r.tensor, arch) for r in regions):
        return None
    stages, i, line = max(_LEAST, loop.stages), loop.symbol, loop.line
    tensors = [staged(r, stages, names.fresh("s" + r.tensor.name.lower())) for r in regions]
    explicit = _replaced(loop.body, {r: _stage(t, 0) for t, r in zip(tensors, regions, strict=True)})
    if any(fits(s, warps, arch) is None for s in explicit if isinstance(s, Op) and s.name == "gemm"):
        return None
    full = KernelTensor(names.fresh("full"), (stages,), "mbarrier", "shared", strided_layout([(stages, 1)]))
    count, ahead = simplify((as_expr(loop.stop) - loop.start) // loop.step), stages - 1
    bytes_ = sum(r.size * r.tensor.element.bits // 8 for r in regions)

    def copies(step: Expr, number: int | Expr) -> tuple[Statement, ...]:
        return (
            Arrive(_bar(full, number), "one", bytes_, line=line),
            *(
                Op("copy_async", (_stage(t, number),), (_moved(r, i, step, step < loop.stop),),
                   barrier=_bar(full, number), line=line)
                for t, r in zip(tensors, regions, strict=True)
            ),
        )  # fmt: skip

    out: list[Statement] = [Alloc(t, line) for t in (*tensors, full)]
    out += [Init(_bar(full, s), 1, line) for s in range(stages)]
    out += [Fence("mbarrier_init", line), Sync(line=line)]
    for p in range(ahead):
        step = simplify(as_expr(loop.start) + p * as_expr(loop.step))
        out += _when(as_expr(p) < count, partial(copies, step, p), line)
    turn = simplify((i - loop.start) // loop.step)
    later = simplify(i + ahead * as_expr(loop.step))
    body: list[Statement] = [
        Wait(_bar(full, simplify(turn % stages)), simplify(turn // stages % 2), line),
        Sync(line=line),
    ]
    body += _when(turn + ahead < count, partial(copies, later, simplify((turn + ahead) % stages)), line)
    tiles = {r: _stage(t, simplify(turn % stages)) for t, r in zip(tensors, regions, strict=True)}
    body += _replaced(loop.body, tiles)
    return [*out, replace(loop, body=tuple(body), stages=1)]


def _when(condition: Expr, body: Callable[[], tuple[Statement, ...]], line: Line) -> list[Statement]:
    """The body where its condition holds; nothing where it never does."""
    condition = simplify(condition)
    known = always(condition)
    if known is not None:
        return list(body()) if known else []
    return [When(condition, body(), (), line)]


def _single(op: Op, arch: str, names: Names) -> list[Statement]:
    """One product outside a loop: copy, wait, multiply."""
    regions = list(dict.fromkeys(_far(op)))
    tensors = [staged(r, 1, names.fresh("s" + r.tensor.name.lower())) for r in regions]
    out: list[Statement] = [Alloc(t, op.line) for t in tensors]
    out.append(Sync(line=op.line))
    out += [Op("copy_async", (_stage(t, 0),), (r,), line=op.line) for t, r in zip(tensors, regions, strict=True)]
    out += [Commit("cp.async", line=op.line), WaitGroup("cp.async", 0, line=op.line)]
    out += [Fence("proxy.async", op.line)] if arch == "sm_90a" else []
    out.append(Sync(line=op.line))
    return [*out, *_replaced((op,), {r: _stage(t, 0) for t, r in zip(tensors, regions, strict=True)})]


def _roles(on: On, arch: str, names: Names) -> On | None:
    """One warpgroup fills a ring, the others run the body; None where copies or products have no such form."""
    warps = on.scope.threads // 32
    loops = [s for s in on.body if isinstance(s, For) and any(_automatic(x) for x in s.body)]
    others = [s for s in walk(tuple(x for x in on.body if x not in loops)) if _automatic(s)]
    if arch != "sm_90a" or warps % 4 or warps < 8 or len(loops) != 1 or others:
        return None
    loop = loops[0]
    regions = _operands(loop.body)
    if any(map_problem(r.tensor, arch) for r in regions):
        return None
    stages = max(_LEAST, loop.stages)
    tensors = [staged(r, stages, names.fresh("s" + r.tensor.name.lower())) for r in regions]
    explicit = _replaced(loop.body, {r: _stage(t, 0) for t, r in zip(tensors, regions, strict=True)})
    if any(fits(s, warps - 4, arch) is None for s in explicit if isinstance(s, Op) and s.name == "gemm"):
        return None
    line = loop.line
    full, empty = (
        KernelTensor(names.fresh(f"ring_{x}"), (stages,), "mbarrier", "shared", strided_layout([(stages, 1)]))
        for x in ("full", "empty")
    )
    turn = simplify((loop.symbol - loop.start) // loop.step)
    stage, parity = simplify(turn % stages), simplify(turn // stages % 2)
    fill: tuple[Statement, ...] = (
        Wait(_bar(empty, stage), simplify((turn // stages + 1) % 2), line),
        Arrive(_bar(full, stage), "one", sum(r.size * r.tensor.element.bits // 8 for r in regions), line=line),
        *(
            Op("copy_async", (_stage(t, stage),), (r,), barrier=_bar(full, stage), line=line)
            for t, r in zip(tensors, regions, strict=True)
        ),
    )
    use: tuple[Statement, ...] = (
        Wait(_bar(full, stage), parity, line),
        *_replaced(loop.body, {r: _stage(t, stage) for t, r in zip(tensors, regions, strict=True)}),
        Arrive(_bar(empty, stage), "warp", line=line),
    )
    groups = warps // 4
    inits = [Init(_bar(t, s), n, line) for s in range(stages) for t, n in ((full, 1), (empty, warps - 4))]
    most = min(_MOST, (65536 - 128 * _FEW) // (128 * (groups - 1)) // 8 * 8)
    here = on.body.index(loop)
    consumers: tuple[Statement, ...] = (*on.body[:here], replace(loop, body=use, stages=1), *on.body[here + 1 :])
    body: tuple[Statement, ...] = (
        *(Alloc(t, line) for t in (*tensors, full, empty)),
        *inits,
        Fence("mbarrier_init", line),
        Sync(line=line),
        On(on.scope.part("warpgroup", 0, 1), (replace(loop, body=fill, stages=1),), None, _FEW, line),
        On(on.scope.part("warpgroup", 1, groups), consumers, None, most, line),
    )
    return replace(on, body=body)


def _bar(tensor: KernelTensor, number: int | Expr) -> Region:
    return Region(tensor, (number,), (1,), (1,), ())
