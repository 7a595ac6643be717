"""From a kernel to what each of its threads does: every operator becomes instructions of one target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Literal, NamedTuple

from tileweave.errors import BackendError, LayoutError
from tileweave.index import as_expr, constant_of, simplify, symbol
from tileweave.kernel.atoms import atom
from tileweave.kernel.atoms.atom import check_arch, generation
from tileweave.kernel.dispatch import compute, convert, copies, products, schedules, tensor
from tileweave.kernel.dispatch.boxes import barrier_of, box_problem, elected
from tileweave.kernel.dispatch.context import Context, Threads, declined, need_type, place, printed
from tileweave.kernel.dispatch.explicit.automatic import staged_products
from tileweave.kernel.dispatch.explicit.draft import Draft
from tileweave.kernel.dispatch.explicit.scales import scaled_apart
from tileweave.kernel.dispatch.explicit.stores import through_boxes
from tileweave.kernel.dispatch.layouts.assign import assign
from tileweave.kernel.dispatch.layouts.places import cosize
from tileweave.kernel.dispatch.layouts.registers import Holding
from tileweave.kernel.ir import (
    Alloc,
    Arrive,
    Await,
    Break,
    Choice,
    Commit,
    Continue,
    Fence,
    For,
    Init,
    Kernel,
    KernelTensor,
    Let,
    On,
    Op,
    Region,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    walk,
)
from tileweave.kernel.ir.verify import scales_of
from tileweave.kernel.threads import (
    LANE,
    Address,
    Branch,
    Buffer,
    Jump,
    Local,
    Repeat,
    Slots,
    ThreadLoop,
    ThreadProgram,
    instructions,
    statements,
)

_OPERATORS: dict[str, Callable[[Context, Op], None]] = {
    "copy": convert.copy, "copy_async": copies.copy, "fill": compute.elementwise, "iota": compute.elementwise,
    "cast": compute.elementwise, "map": compute.elementwise, "reduce": compute.reduce, "scan": compute.scan,
    "gemm": products.gemm, "atomic_add": compute.atomic_add,
}  # fmt: skip


class Lowered(NamedTuple):
    """What each thread does, and what was taken for each operator and why."""

    program: ThreadProgram
    choices: tuple[Choice, ...]


def lower(kernel: Kernel, arch: str = "sm_80", *, boxes: bool = True) -> Lowered:
    """Chooses an instruction for every operator.

    Args:
        kernel: a kernel, every extent known.
        arch: the target, ``sm_80``, ``sm_90a`` ..
        boxes: whether registers may leave by boxes of tensor maps, which not every text has.

    Raises:
        BackendError: something has no instruction on this target; names it and the user's line.
    """
    explicit, refused = _explicit(kernel, arch, boxes)
    return _lowered(explicit, arch, refused)


def expand(kernel: Kernel, arch: str = "sm_90a") -> Kernel:
    """The explicit program of a kernel: no product reads global memory, and no result leaves by boxes unseen.

    Args:
        kernel: the kernel.
        arch: the target.

    Raises:
        BackendError: the target is not known.
    """
    return _explicit(kernel, arch, True)[0]


def _explicit(kernel: Kernel, arch: str, boxes: bool) -> tuple[Kernel, dict[Op, str]]:
    """The explicit program; and why its products are none of tensor memory, its stores of registers none of boxes."""
    check_arch("dispatch(kernel, arch)", arch)
    for made in walk(kernel.body):
        if isinstance(made, Alloc) and made.tensor.space in ("sbuf", "psum"):
            raise declined(made.line, f"{arch} has no {made.tensor.space}", tensor=made.tensor, legal='text("nki")')
    draft = Draft(kernel)
    if tensor.has(arch):  # whose products have scales of their own, where sums lie in tensor memory
        staged = scaled_apart(staged_products(kernel, arch, draft), draft)
    else:
        staged = staged_products(scaled_apart(kernel, draft), arch, draft)
    if not boxes:
        return staged, draft.refused
    boxed, refused = through_boxes(
        staged, arch, lambda: _holdings(staged, arch), lambda plain: _lowered(plain, arch, {}).program, draft.fresh
    )
    return boxed, {**draft.refused, **refused}


def _holdings(kernel: Kernel, arch: str) -> dict[str, Holding]:
    """Where the register tensors of an explicit kernel lie."""
    found = tuple(s for s in walk(kernel.body) if isinstance(s, Op) and s.name == "gemm")
    return assign(kernel.body, kernel.threads // 32, products.accumulator(arch, found))


def _lowered(kernel: Kernel, arch: str, refused: dict[Op, str]) -> Lowered:
    """An explicit kernel as what each thread does."""
    warps, holdings = kernel.threads // 32, _holdings(kernel, arch)
    block = symbol("warp", 0, warps)
    devices = prod(extent for _, extent in kernel.mesh)
    context = Context(arch, warps, holdings, Threads(0, warps, block), devices=devices, refused=refused)
    parameters = []
    for one in (*kernel.params, *global_tensors(kernel)):
        need_type(one, kernel.line)
        space: Literal["global", "peers"] = "peers" if one.space == "symmetric" and kernel.mesh else "global"
        buffer = Buffer(printed(one.name), one.dtype, space, cosize(one), 16, str(one))
        context.buffers[one.name] = buffer
        parameters.append(buffer)
    parameters += [Buffer(axis, "s32", "value", 1) for axis, _ in kernel.mesh]
    number = kernel.grid.block
    size = kernel.grid.size
    if not isinstance(size, int):
        raise BackendError("dispatch(kernel, arch)", f"a grid of {size} blocks", legal="extents that are known")
    context.emit(Local(number, symbol("blockIdx_x", 0, size), place(kernel.line)))
    for name, value in kernel.grid.coords:
        if name != number:
            context.emit(Local(name, simplify(value), place(kernel.line)))
    if kernel.grid.cluster > 1 and generation(arch) < 90:
        raise declined(kernel.line, f"{arch} has no clusters of blocks", legal="sm_90 and later")
    context.pair, context.scaled = tensor.pairs(kernel), scales_of(kernel)
    _body(context, kernel.body)
    tensor.release(context, kernel)
    called = printed(kernel.name)
    program = ThreadProgram(
        called, _used(context, parameters), tuple(context.shared), (size,), warps, tuple(context.out), arch,
        (kernel.grid.cluster,), tuple((buffer.name, box) for box, buffer in context.maps.items()),
        devices, tuple((buffer.name, name) for name, buffer in context.multicasts.items()),
    )  # fmt: skip
    return Lowered(program, tuple(context.choices))


def global_tensors(kernel: Kernel) -> tuple[KernelTensor, ...]:
    """Tensors in global or symmetric memory that the kernel allocates: a launch provides them, full of zeros."""
    allocated = (s.tensor for s in walk(kernel.body) if isinstance(s, Alloc))
    return tuple(t for t in allocated if t.space in ("global", "symmetric"))


def _used(context: Context, parameters: list[Buffer]) -> tuple[Buffer, ...]:
    """The tensors that some instruction addresses, and the maps."""
    named = set()
    for item in instructions(tuple(context.out)):
        named |= {o.buffer.name for o in item.operands if isinstance(o, Address)}
    named |= {
        s.value.buffer.name
        for s in statements(tuple(context.out))
        if isinstance(s, Local) and isinstance(s.value, Address)
    }
    taken = (p for p in parameters if p.name in named or p.space == "value")
    return (*taken, *context.multicasts.values(), *context.maps.values())


def _body(context: Context, body: tuple[Statement, ...]) -> None:
    """Lowers statements; where a stage of a ring is filled by threads, its arrival comes behind the copies."""
    late: dict[int, list[Statement]] = {}
    early: set[int] = set()
    for i, statement in enumerate(body):
        if isinstance(statement, Arrive) and statement.bytes is not None:
            fills = [(j, op) for j, op in enumerate(body) if _fills(op, statement.barrier)]
            slow = [op.outs[0] for _, op in fills if isinstance(op, Op) and box_problem(context.arch, op)]
            if slow:
                moved = sum(region.size * region.tensor.element.bits // 8 for region in slow)
                left = simplify(as_expr(statement.bytes) - moved)
                bytes_ = None if constant_of(left) == 0 else left
                late.setdefault(max(i, fills[-1][0]), []).append(replace(statement, bytes=bytes_))
                early.add(i)
    for i, statement in enumerate(body):
        context.line = statement.line
        if i not in early:
            _statement(context, statement)
        for arrival in late.get(i, ()):
            if any(c.atom == "cp.async" and c.op in body for c in context.choices):  # nothing else says it is complete
                context.instruction("cp.async.commit_group")
                context.instruction("cp.async.wait_group", 0)
            context.instruction("fence.proxy.async")
            context.sync()
            _order(context, arrival)


def _fills(statement: Statement, barrier: Region) -> bool:
    return isinstance(statement, Op) and statement.barrier == barrier


def _statement(context: Context, statement: Statement) -> None:
    if isinstance(statement, Op):
        make = _OPERATORS.get(statement.name)
        if make is None:
            raise declined(statement.line, f"no instruction for the operator {statement.name}")
        known, asked = schedules.names(statement.name), statement.option("use")
        if asked is not None and asked not in known:
            raise declined(
                statement.line, f"no way to {statement.name} is called {asked!r}", legal=" | ".join(known) or "no use="
            )
        try:
            done, refused = schedules.tried(context, statement)
            if not done:
                before = len(context.choices)
                make(context, statement)
                if refused and len(context.choices) > before:
                    last = context.choices[-1]
                    context.choices[-1] = replace(last, reasons=(*last.reasons, *refused))
        except LayoutError as error:
            raise declined(statement.line, str(error).splitlines()[0], op=statement.name) from None
    elif isinstance(statement, Alloc):
        if statement.tensor.name not in context.buffers and statement.tensor.space == "tensor":
            context.buffers[statement.tensor.name] = tensor.allocate(context, statement.tensor)
        elif statement.tensor.name not in context.buffers:
            context.allocate(statement.tensor)
            if statement.tensor in context.scaled:
                tensor.allocate_scales(context, statement.tensor)
    elif isinstance(statement, For):
        _loop(context, statement)
    elif isinstance(statement, When):
        with context.body() as yes:
            _body(context, statement.body)
        with context.body() as no:
            _body(context, statement.otherwise)
        context.emit(Branch(simplify(statement.condition), tuple(yes), tuple(no), place(statement.line)))
    elif isinstance(statement, On):
        _on(context, statement)
    elif isinstance(statement, While):
        with context.body() as inside:
            _body(context, statement.body)
        context.emit(Repeat(simplify(statement.condition), tuple(inside), place(statement.line)))
    elif isinstance(statement, Break | Continue):
        context.emit(Jump("break" if isinstance(statement, Break) else "continue", place(statement.line)))
    elif isinstance(statement, Sync):
        (context.cluster_sync if statement.cluster else context.sync)()
    elif isinstance(statement, Let):
        _let(context, statement)
    else:
        _order(context, statement)


def _loop(context: Context, loop: For) -> None:
    with context.body() as inside:
        _body(context, loop.body)
    context.emit(
        ThreadLoop(loop.symbol, loop.start, loop.stop, tuple(inside), loop.step, loop.unroll, at=place(loop.line))
    )


def _on(context: Context, on: On) -> None:
    before = context.threads
    with context.body() as inside:
        inner = context.scope(on.scope, on.each)
        if inner is before and on.each is None and not on.registers:
            _body(context, on.body)
        else:
            context.threads = inner
            if on.each is not None:
                size = max(1, inner.warps) * (32 if inner.warps else 1)
                thread = symbol("warp", 0, context.warps) * 32 + LANE - 32 * inner.first
                context.emit(Local(on.each, simplify(thread // size), place(on.line)))
            if on.registers and atom("setmaxnreg.inc.sync.aligned.u32").runs_on(context.arch):
                more = on.registers * context.warps * 32 > 65536
                context.instruction("setmaxnreg." + ("inc" if more else "dec"), on.registers)
            _body(context, on.body)
            context.threads = before
    count = on.scope.threads // 32
    if inner is before or count == before.warps:
        context.emit(*inside)
        return
    warp = symbol("warp", 0, context.warps)
    first = inner.first
    condition = warp < first + count if not first else (warp >= first) & (warp < first + count)
    context.emit(Branch(simplify(condition), tuple(inside), (), place(on.line)))


def _let(context: Context, let: Let) -> None:
    if not isinstance(let.value, Region):
        context.emit(Local(let.symbol, let.value, place(let.line)))
        return
    region = let.value
    if region.tensor.space == "register":
        if context.holdings[region.tensor.name].slots != 1:
            raise declined(let.line, "a symbol from registers", legal="a tensor of one element", region=region)
        context.emit(Local(let.symbol, Slots(context.buffer(region.tensor)), place(let.line)))
        return
    where = copies.memory_at(context, region, (0,) * len(region.dims))
    context.emit(Local(let.symbol, where, place(let.line)))


def _order(context: Context, item: Statement) -> None:
    if isinstance(item, Init):
        context.instruction("mbarrier.init", barrier_of(context, item.barrier), item.count, mask=elected(context))
    elif isinstance(item, Arrive):
        where = barrier_of(context, item.barrier)
        if item.lanes == "warp" and item.bytes is None:
            context.instruction("bar.warp.sync")
        mask = {"each": None, "warp": as_expr(LANE) < 1, "one": elected(context)}[item.lanes]
        if item.cta is not None and item.bytes is not None:
            raise declined(item.line, "bytes announced at a barrier of another block", legal="each block its own")
        if item.bytes is not None:
            context.instruction("mbarrier.expect_tx", where, item.bytes, mask=mask)
        elif item.cta is not None:
            context.instruction("mbarrier.arrive.cluster", where, item.cta, mask=mask)
        else:
            context.instruction("mbarrier.arrive", where, mask=mask)
    elif isinstance(item, Wait):
        context.instruction("mbarrier.wait", barrier_of(context, item.barrier), item.parity)
    elif isinstance(item, Commit) and item.barrier is not None:
        tensor.commit(context, item)
    elif isinstance(item, Commit):
        context.instruction(
            {"cp.async": "cp.async.commit_group", "bulk": "cp.async.bulk.commit_group"}.get(
                item.kind, "wgmma.commit_group"
            )
        )
    elif isinstance(item, WaitGroup):
        name = {"cp.async": "cp.async.wait_group", "bulk": "cp.async.bulk.wait_group"}.get(
            item.kind, "wgmma.wait_group"
        )
        context.instruction(name + (".read" if item.read else ""), item.pending)
    elif isinstance(item, Fence):
        names = {
            "proxy.async": "fence.proxy.async",
            "mbarrier_init": "fence.mbarrier_init",
            "wgmma": "wgmma.fence",
            "tcgen05.before": "tcgen05.fence_before",
            "tcgen05.after": "tcgen05.fence_after",
        }
        if item.kind not in names:
            raise declined(item.line, f"no CUDA text for the fence {item.kind}")
        context.instruction(names[item.kind])
    elif isinstance(item, Signal):
        context.sync()
        flag = copies.memory_at(context, item.flag, (0,) * len(item.flag.dims))
        context.instruction("signal", flag, item.value, mask=elected(context))
    elif isinstance(item, Await):
        flag = copies.memory_at(context, item.flag, (0,) * len(item.flag.dims))
        context.instruction("wait", flag, item.at_least, mask=elected(context))
        context.sync()
