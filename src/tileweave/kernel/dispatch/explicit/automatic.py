"""Automatic products become explicit ones: operands staged in shared memory, by roles and a ring, or by a pipeline.

Rows that registers do not hold are gone over in parts (`rows`).

``cta.gemm(acc, A_tile, B_tile)`` on tiles in global memory says what to compute. `staged_products` gives the program
that does it: where the copy engine can fetch the tiles and the target has products that read shared memory, one role
fills a ring of stages and another multiplies, by ``wgmma`` or with sums in tensor memory (`sums`); elsewhere all
threads copy some steps ahead and multiply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tileweave.index import constant_of, symbol
from tileweave.kernel.dispatch import tensor
from tileweave.kernel.dispatch.boxes import map_problem
from tileweave.kernel.dispatch.explicit.draft import Draft
from tileweave.kernel.dispatch.explicit.rows import in_parts
from tileweave.kernel.dispatch.explicit.sums import InTensorMemory, in_tensor_memory, uneven
from tileweave.kernel.dispatch.explicit.tiles import StagedTiles, StageRing, automatic, barrier, barriers, started
from tileweave.kernel.dispatch.groups import fits
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Commit,
    Fence,
    For,
    Kernel,
    On,
    Op,
    Scope,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    walk,
)

_LEAST = 2
#: Registers of a thread that only copies, and the most that others may have.
_FEW, _MOST = 40, 232


def staged_products(kernel: Kernel, arch: str, draft: Draft) -> Kernel:
    """The kernel with no product that reads global memory, and rows in parts that registers hold."""
    body = tuple(in_parts(s, arch, draft.fresh) if isinstance(s, On) else s for s in kernel.body)
    if any(automatic(s) for s in walk(body)):
        made = _outer(body, arch, draft)
        body = (*(Alloc(t, kernel.line) for t in draft.sums), *made)
    return kernel if body == kernel.body else replace(kernel, body=body)


def _outer(body: Sequence[Statement], arch: str, draft: Draft) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, On):
            by_roles = _roles(statement, arch, draft) if statement.scope.kind == "cta" else None
            once = statement.scope if statement.each is None else None
            out.append(by_roles or replace(statement, body=_inner(statement.body, arch, draft, once)))
        else:
            out.append(statement)
    return tuple(out)


def _inner(
    body: Sequence[Statement], arch: str, draft: Draft, once: Scope | None, again: bool = False
) -> tuple[Statement, ...]:
    """Bodies whose products are staged by all threads of the scope.

    Args:
        once: the scope, where it executes them once, so that mbarriers count from 0; None: no such.
        again: whether they may be executed more than once.
    """
    out: list[Statement] = []
    for here, statement in enumerate(body):
        loop = _loop(statement, draft)
        if loop is not None:
            made = _with_sums(body[:here], loop, arch, draft, once, again)
            if isinstance(made, InTensorMemory) and once is not None:
                out = [*made.without_zeros(out), *made.start(), *made.roles(once), *made.end()]
                continue
            if isinstance(statement, For):
                warps = once.threads // 32 if once is not None and not again else 0
                by_boxes = _by_boxes(statement, arch, draft, warps)
                staged = by_boxes or [Sync(line=statement.line)] * again + _pipeline(statement, arch, draft)
            else:
                staged = _single(loop, arch, draft)
            if isinstance(made, str):
                _refuse(draft, staged, made)
            out += staged
        elif isinstance(statement, When):
            yes, no = (_inner(b, arch, draft, once, again) for b in (statement.body, statement.otherwise))
            out.append(replace(statement, body=yes, otherwise=no))
        elif isinstance(statement, For | While | On):
            inside = again or not isinstance(statement, On)
            out.append(replace(statement, body=_inner(statement.body, arch, draft, None, inside)))
        else:
            out.append(statement)
    return tuple(out)


def _loop(statement: Statement, draft: Draft) -> For | None:
    """A loop with automatic products, or one product as a loop of one turn."""
    if isinstance(statement, For) and any(automatic(s) for s in statement.body):
        return statement
    if isinstance(statement, Op) and automatic(statement):
        return For(symbol(draft.fresh("turn"), 0, 1), 0, 1, 1, (statement,), line=statement.line)
    return None


def _with_sums(
    before: Sequence[Statement], loop: For, arch: str, draft: Draft, scope: Scope | None, again: bool
) -> InTensorMemory | str | None:
    """The form of a loop with its sums in tensor memory, what stands against it, or None on targets that have none."""
    if not tensor.has(arch):
        return None
    for known in (draft.refused[s] for s in loop.body if isinstance(s, Op) and s in draft.refused):
        return known
    if again:
        return "a block comes here more than once, and the phases of its barriers would go on"
    if scope is None:
        return "each part of a scope has a product of its own"
    warps = scope.threads // 32
    if not warps or warps % 4 or scope.members() != frozenset(range(32 * warps)):
        return f"{warps} warps of {scope.kind} are no warpgroups from the first on"
    return in_tensor_memory(before, loop, arch, draft, _depth(loop), warps // 4)


def _depth(loop: For) -> int:
    """Stages of a ring: as asked, and no more than turns."""
    count = constant_of(StagedTiles(loop, {}, 1).count)
    return min(max(_LEAST, loop.stages), count) if count else max(_LEAST, loop.stages)


def _refuse(draft: Draft, made: Iterable[Statement], why: str) -> None:
    draft.refused |= {s: why for s in walk(tuple(made)) if isinstance(s, Op) and s.name == "gemm"}


def _pipeline(loop: For, arch: str, draft: Draft) -> list[Statement]:
    """All threads copy some steps ahead, wait for the oldest copy, and multiply."""
    tiles, line = StagedTiles.of(loop, max(_LEAST, loop.stages), draft.fresh), loop.line
    out = tiles.allocated()
    for first in tiles.ahead(lambda number, step: tiles.copies(number, step=step)):
        out += [*first, Commit("cp.async", line=line)]
    fence: list[Statement] = [Fence("proxy.async", line)] if arch == "sm_90a" else []
    body: list[Statement] = [WaitGroup("cp.async", tiles.stages - 2, line=line), *fence, Sync(line=line)]
    body += tiles.next(lambda number, step: tiles.copies(number, step=step))
    body.append(Commit("cp.async", line=line))
    body += tiles.body(tiles.stage)
    return [*out, replace(loop, body=tuple(body), stages=1)]


def _by_boxes(loop: For, arch: str, draft: Draft, warps: int) -> list[Statement] | None:
    """The same by boxes, for warpgroups of which one thread fetches what all multiply; None where there is no form."""
    tiles, line = _fetched(loop, arch, draft, warps), loop.line
    if tiles is None:
        return None
    full = barriers(draft.fresh("full"), tiles.stages)
    out = [*tiles.allocated(full), *started({full: 1}, line)]
    for first in tiles.ahead(lambda number, step: tiles.announced(number, full, step)):
        out += first
    body: list[Statement] = [Wait(barrier(full, tiles.stage), tiles.parity, line), Sync(line=line)]
    body += tiles.next(lambda number, step: tiles.announced(number, full, step))
    body += tiles.body(tiles.stage)
    return [*out, replace(loop, body=tuple(body), stages=1)]


def _fetched(loop: For, arch: str, draft: Draft, warps: int) -> StagedTiles | None:
    """The tiles of a loop that maps describe and some warps multiply by ``wgmma``; None where there is no such form."""
    if arch != "sm_90a" or not warps or any(map_problem(r.tensor, arch) for r in StagedTiles.of(loop, 1, str).tensors):
        return None
    if any(fits(s, warps, arch) is None for s in StagedTiles.of(loop, 1, str).products()):
        return None
    return StagedTiles.of(loop, max(_LEAST, loop.stages), draft.fresh)


def _single(loop: For, arch: str, draft: Draft) -> list[Statement]:
    """One product outside a loop: copy, wait, multiply."""
    tiles, line = StagedTiles.of(loop, 1, draft.fresh), loop.line
    out = [*tiles.allocated(), Sync(line=line), *tiles.copies(0)]
    out += [Commit("cp.async", line=line), WaitGroup("cp.async", 0, line=line)]
    out += [Fence("proxy.async", line)] if arch == "sm_90a" else []
    return [*out, Sync(line=line), *tiles.body(0)]


def _roles(on: On, arch: str, draft: Draft) -> On | None:
    """The first warpgroup fills a ring, the others run the body; None where copies or products have no such form."""
    warps = on.scope.threads // 32
    loops = [s for s in on.body if isinstance(s, For) and any(automatic(x) for x in s.body)]
    others = [s for s in walk(tuple(x for x in on.body if x not in loops)) if automatic(s)]
    if warps % 4 or warps < 8 or len(loops) != 1 or others or on.each is not None:
        return None
    loop, groups = loops[0], warps // 4
    here, line = on.body.index(loop), loop.line
    workers = on.scope.part("warpgroup", 1, groups)
    loading: tuple[Statement, ...]
    if tensor.has(arch):
        if not uneven(loop, groups):
            return None
        made = in_tensor_memory(on.body[:here], loop, arch, draft, _depth(loop), groups - 1)
        if isinstance(made, str):
            _refuse(draft, loop.body, made)
            return None
        start, loading = made.start(), tuple(made.roles(on.scope.part("warpgroup", 0, 1)))
        before, multiplied = made.without_zeros(on.body[:here]), made.end()
    else:
        tiles = _fetched(loop, arch, draft, warps - 4)
        if tiles is None:
            return None
        ring = StageRing.of(tiles, draft.fresh)
        start = [*tiles.allocated(ring.full, ring.empty), *started({ring.full: 1, ring.empty: warps - 4}, line)]
        loading = (ring.filling(),)
        use = ring.using(tiles.body(tiles.stage), lambda bar, at: Arrive(bar, "warp", line=at))
        before, multiplied = list(on.body[:here]), [use]
    registers: tuple[int | None, int | None] = None, None  # sums that lie elsewhere leave enough to every warp
    if not tensor.has(arch):
        registers = _FEW, min(_MOST, (65536 - 128 * _FEW) // (128 * (groups - 1)) // 8 * 8)
    rest = (*before, *multiplied, *on.body[here + 1 :])
    roles = (
        On(on.scope.part("warpgroup", 0, 1), loading, None, registers[0], line),
        On(workers, rest, None, registers[1], line),
    )
    return replace(on, body=(*start, *roles))
