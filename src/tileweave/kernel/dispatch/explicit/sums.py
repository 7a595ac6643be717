"""Automatic products into tensor memory (sm_100a): sums leave the registers for the time of a loop.

One warp fills a ring of stages, one multiplies, a commit lets each stage go; behind the loop all threads of the rest
wait for the last product and load the sums into the registers that the user named. Where the warpgroups share the
columns evenly all of them are the rest; elsewhere the first one has both roles, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tileweave.index import as_expr, bounds, simplify
from tileweave.kernel.dispatch import tensor
from tileweave.kernel.dispatch.boxes import box_problem
from tileweave.kernel.dispatch.explicit.draft import Draft
from tileweave.kernel.dispatch.explicit.tiles import (
    StagedTiles,
    StageRing,
    barrier,
    barriers,
    far,
    scales_of,
    started,
)
from tileweave.kernel.ir import (
    Alloc,
    Commit,
    Fence,
    For,
    KernelTensor,
    On,
    Op,
    Region,
    Scalar,
    Scope,
    Statement,
    Wait,
    walk,
    whole,
)
from tileweave.kernel.ir.verify import TENSOR_COLUMNS, tensor_columns, tensor_layout

#: Columns of a warpgroup's part: what the narrowest load of 64 rows has.
_COLUMNS = 8


@dataclass(frozen=True)
class InTensorMemory:
    """A loop whose products have their sums in tensor memory.

    Args:
        ring: its tiles and their barriers.
        sums: register tensor -> the tensor in tensor memory that has its sums.
        zeros: the statements that filled the registers with 0: products begin anew instead.
        products: the body of the role that multiplies.
        done: the barrier of the last product.
    """

    ring: StageRing
    sums: dict[KernelTensor, KernelTensor]
    zeros: tuple[Op, ...]
    products: tuple[Op, ...]
    done: KernelTensor

    def start(self) -> list[Statement]:
        """Declarations, and the start of the barriers."""
        ring = self.ring
        line = ring.tiles.loop.line
        found = ring.tiles.allocated(ring.full, ring.empty, self.done)
        return [*found, *started({ring.full: 1, ring.empty: 1, self.done: 1}, line)]

    def roles(self, scope: Scope) -> list[Statement]:
        """The first warp of a scope loads, the second multiplies."""
        line = self.ring.tiles.loop.line
        loading = self.ring.filling()
        multiplying = self.ring.using(self.products, lambda bar, at: Commit("tcgen05", bar, line=at))
        last = Commit("tcgen05", barrier(self.done, 0), line=line)
        return [
            On(scope.part("warp", 0, 1), (loading,), line=line),
            On(scope.part("warp", 1, 2), (multiplying, last), line=line),
        ]

    def end(self) -> list[Statement]:
        """Wait for the last product, and load the sums."""
        line = self.ring.tiles.loop.line
        loads = [Op("copy", (whole(acc),), (whole(there),), line=line) for acc, there in self.sums.items()]
        return [Wait(barrier(self.done, 0), 0, line), Fence("tcgen05.after", line), *loads]

    def without_zeros(self, before: Sequence[Statement]) -> list[Statement]:
        """What comes before the loop, the registers not filled."""
        return [s for s in before if not any(s is zero for zero in self.zeros)]


def in_tensor_memory(
    before: Sequence[Statement], loop: For, arch: str, draft: Draft, stages: int, warpgroups: int
) -> InTensorMemory | str:
    """A loop of automatic products with its sums in tensor memory, or everything that stands against it.

    Args:
        before: the statements of the same body before the loop.
        loop: the loop.
        arch: the target.
        draft: the program that is written; it has the new tensors only where there is such a form.
        stages: of the ring.
        warpgroups: how many load the sums.
    """
    ops = [s for s in loop.body if isinstance(s, Op) and s.name == "gemm"]
    problems = list(dict.fromkeys(_of_the_loop(before, loop, ops, draft)))
    problems += uneven(loop, warpgroups)
    if not any(isinstance(v, Region) and v.tensor.space == "register" for op in ops for v in op.ins[:2]):
        taken = set(draft.taken)
        ring = StageRing.of(StagedTiles.of(loop, stages, draft.fresh, scales=True), draft.fresh)
        sums = {op.outs[0].tensor: _memory(op.outs[0].tensor, draft) for op in ops}
        products = tuple(_products(ring, sums))
        problems += [p for p in dict.fromkeys(_of_the_products(ring, products, sums, arch, draft)) if p not in problems]
        if problems:
            draft.taken = taken
    if problems:
        return "; ".join(problems)
    draft.sums += sums.values()
    draft.columns += _columns(ring, sums)
    zeros = tuple(s for s in before if isinstance(s, Op) and s.outs[0].tensor in sums)
    return InTensorMemory(ring, sums, zeros, products, barriers(draft.fresh("done"), 1))


def uneven(loop: For, warpgroups: int) -> list[str]:
    """The accumulators of a loop whose columns so many warpgroups do not share evenly."""
    sums = dict.fromkeys(s.outs[0].tensor for s in loop.body if isinstance(s, Op) and s.name == "gemm")
    return [
        f"{t.shape[-1]} columns of {t.name} are no multiple of {_COLUMNS} for each of {warpgroups} warpgroups"
        for t in sums
        if t.shape[-1] % (warpgroups * _COLUMNS)
    ]


def _of_the_loop(before: Sequence[Statement], loop: For, ops: Sequence[Op], draft: Draft) -> Iterator[str]:
    """What stands against tensor memory in the program around the products."""
    for op in ops:
        for role, v in zip("AB", op.ins[:2], strict=True):
            if isinstance(v, Region) and v not in far(op):
                yield f"{role} is in {v.tensor.space} memory"
        if op.option("use") not in (None, "tcgen05"):
            yield "another product was asked for"
        acc = op.outs[0]
        if acc.tensor.layout is not None:
            yield f"{acc.tensor.name} has a layout of its own"
        if acc.extent != acc.tensor.shape or acc.dims != (0, 1):
            yield f"sums in a part of {acc.tensor.name}"
        elif not _from_zero(before, op):
            yield f"{acc.tensor.name} is not filled with 0, and nothing else, before the loop"
        if draft.products[acc.tensor] != sum(one.outs[0].tensor == acc.tensor for one in ops):
            yield f"products elsewhere add to {acc.tensor.name}, too"
    for s in walk(loop.body):
        if isinstance(s, Op) and s not in ops and any(isinstance(v, Region) and v in _results(ops) for v in s.ins):
            yield f"{s.name} reads the sums inside the loop"
            return
    if len(ops) != len(loop.body):
        yield "the loop does more than its products"
    least = bounds(simplify(as_expr(loop.stop) - loop.start))[0]
    if least is None or least < 1:
        yield "the loop may have no turn"


def _results(ops: Sequence[Op]) -> list[Region]:
    return [op.outs[0] for op in ops]


def _from_zero(before: Sequence[Statement], op: Op) -> bool:
    """Whether an accumulator is declared before a loop, filled with zeros, and named nowhere else there."""
    acc = op.outs[0].tensor
    if not any(isinstance(s, Alloc) and s.tensor == acc for s in before):
        return False
    named = [s for s in walk(tuple(before)) if isinstance(s, Op) and _names(s, acc)]
    if isinstance(op.ins[2], Scalar):
        return not named
    first = named[0] if len(named) == 1 and any(s is named[0] for s in before) else None
    value = first.ins[0] if first is not None and first.name == "fill" else None
    return first is not None and first.outs[0].extent == acc.shape and isinstance(value, Scalar) and value.value == 0


def _names(op: Op, tensor_: KernelTensor) -> bool:
    return any(isinstance(v, Region) and v.tensor == tensor_ for v in (*op.outs, *op.ins))


def _of_the_products(
    ring: StageRing, products: Sequence[Op], sums: dict[KernelTensor, KernelTensor], arch: str, draft: Draft
) -> Iterator[str]:
    """What stands against tensor memory in the products themselves."""
    if draft.pair:
        yield "the kernel's other products are of two blocks"
    for op in products:
        yield from tensor.problems(op, arch)
    scales = scales_of(ring.tiles.loop.body)
    for copy in ring.tiles.copies(0, barrier(ring.full, 0)):
        problem = box_problem(arch, copy)
        source = copy.ins[0]
        if problem and isinstance(source, Region) and source not in scales:  # those are few: threads bring them
            yield f"{source.tensor.name} comes by no box: {problem}"
    needed = draft.columns + _columns(ring, sums)
    if needed > TENSOR_COLUMNS:
        yield f"{needed} columns of tensor memory; there are {TENSOR_COLUMNS}"


def _columns(ring: StageRing, sums: dict[KernelTensor, KernelTensor]) -> int:
    """Columns of tensor memory for sums and for the scales of all stages."""
    scales = [ring.tiles.tensors[r] for r in scales_of(ring.tiles.loop.body)]
    return sum(map(tensor_columns, (*sums.values(), *scales)))


def _memory(acc: KernelTensor, draft: Draft) -> KernelTensor:
    """The tensor in tensor memory for the sums of a register tensor."""
    return KernelTensor(draft.fresh(f"t{acc.name}"), acc.shape, acc.dtype, "tensor", tensor_layout(*acc.shape))


def _products(ring: StageRing, sums: dict[KernelTensor, KernelTensor]) -> Iterator[Op]:
    """The products of the loop, into tensor memory: the first of each begins with 0 in the first turn."""
    loop, begun = ring.tiles.loop, set[KernelTensor]()
    for op in ring.tiles.body(ring.tiles.stage):
        if not isinstance(op, Op) or op.name != "gemm":
            continue
        acc = op.outs[0].tensor
        keep = simplify(loop.symbol > loop.start) if acc not in begun else 1
        begun.add(acc)
        options = (*(o for o in op.options if o[0] not in ("use", "keep")), ("keep", keep))
        into = whole(sums[acc])
        yield replace(op, outs=(into,), ins=(*op.ins[:2], into, *op.ins[3:]), options=options)
