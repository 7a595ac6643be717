"""Copies: between memory and registers by vectors, within memory by all threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tileweave.errors import BackendError
from tileweave.index import Expr, ExprLike, as_expr, simplify
from tileweave.kernel.atoms import atom
from tileweave.kernel.dispatch.boxes import box_problem, copy_boxes
from tileweave.kernel.dispatch.context import Context, declined, slot
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.registers import Holding, RegisterDigit, blocked, holding
from tileweave.kernel.ir import Candidate, Op, Region
from tileweave.kernel.threads import LANE, Address, Allocate, Buffer, ClaimedElement, Slots

#: Turns of a copy between memories that are written out at a time: each needs registers for its addresses and what is
#: under way, and no register outlives a turn. All 32 of an FP16 tile with odd strides took more than a role's 40.
_TURNS = 8
STORE = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
#: The digits of an 8 x 8 tile over the lanes, and of its two halves over the slots.
_TILE = {
    RegisterDigit("lane", 4, 8, 0, 1),
    RegisterDigit("lane", 1, 4, 1, 2),
    RegisterDigit("reg", 1, 2, 1, 1),
    RegisterDigit("reg", 2, 2, 0, 8),
}


def copy(context: Context, op: Op) -> None:
    """Lowers ``copy`` and ``copy_async`` within memory."""
    out, source = op.outs[0], op.ins[0]
    if not isinstance(source, Region):
        raise declined(op.line, "a copy of a number", op=op.name)
    if op.option("use") in (None, "tma") and not box_problem(context.arch, op):
        copy_boxes(context, op)
    else:
        if op.option("use") == "tma" or op.option("multicast") is not None:
            asked = "use='tma'" if op.option("use") == "tma" else "multicast=.."
            raise BackendError(f"copy_async(.., {asked})", box_problem(context.arch, op), inputs={"line": str(op.line)})
        memory_copy(context, op, out, source)


def memory_at(context: Context, region: Region, at: Sequence[ExprLike]) -> Address:
    """The place of an element of a box, by its coordinates in the dimensions that the box shows."""
    coordinates: list[ExprLike] = list(region.begin)
    for position, dim in enumerate(region.dims):
        coordinates[dim] = region.begin[dim] + at[position]
    buffer = context.buffer(region.tensor)
    found = simplify(as_expr(places.offset(region.tensor, coordinates)))
    element = ClaimedElement(region.tensor, tuple(coordinates))
    if buffer.space not in ("peers", "cluster"):
        return Address(buffer, found, 0, element)
    return Address(buffer, found, simplify(as_expr(places.device(region.tensor, coordinates))), element)


def both(*conditions: Expr | None) -> Expr | None:
    """The conjunction of conditions, None being true."""
    found: Expr | None = None
    for condition in conditions:
        if condition is not None:
            found = condition if found is None else found & condition
    return found


def _width(held: Holding, memory: Region, bits: int) -> tuple[int, ...]:
    """Slots that one access moves, and the widest access that memory and slots allow by themselves, for reasons."""
    at = places.fastest(memory)
    free = places.vector(memory, max(1, 128 // bits))
    run = held.run(at) if at is not None else 1
    return gcd(free, run), free, run


def store_width(held: Holding, memory: Region) -> int:
    """Elements that a thread stores at once from registers that lie as `held` says."""
    return _width(held, memory, memory.tensor.element.bits)[0]


def load(context: Context, op: Op, buffer: Buffer, held: Holding, source: Region) -> None:
    """Memory to registers."""
    width, free, run = _width(held, source, source.tensor.element.bits)
    context.choose(op, f"ld.{source.tensor.space}", *_reasons("ld", source, width, free, run))
    load_into(context, buffer, held, source, width)


def _reasons(name: str, memory: Region, width: int, free: int, run: int) -> tuple[Candidate, ...]:
    bits = memory.tensor.element.bits
    limit = "the registers hold runs of" if run < free else "memory allows"
    return (
        Candidate(
            f"{name}.{memory.tensor.space} {width * bits // 8} B",
            True,
            f"{limit} {min(run, free)} element{'s' * (min(run, free) > 1)}",
        ),
    )


def load_into(context: Context, buffer: Buffer, held: Holding, source: Region, width: int | None = None) -> None:
    """Loads a box into registers that lie as `held` says; what does not exist is zero."""
    element = source.tensor.element
    if width is None:
        width = _width(held, source, element.bits)[0]
    if source.tensor.dtype != buffer.dtype:
        load_each(context, held, source, width, lambda at, raw: context.instruction("map.cast", slot(buffer, at), raw))
        return
    memory = context.buffer(source.tensor)

    def one(v: ExprLike) -> None:
        at = held.coordinates(context.threads.warp, LANE, v * width)
        mask, where = places.inside(source, at, held.shape), memory_at(context, source, at)
        context.instruction(f"ld.{_kind(memory)}", slot(buffer, v * width, width), where, mask=mask, fill=0)

    context.loop(held.slots // width, one)


def load_each(
    context: Context, held: Holding, source: Region, width: int | None, use: Callable[[ExprLike, Slots], None],
    part: int = 0,
) -> None:  # fmt: skip
    """Loads the elements that lie as `held` says and uses each, by its slot, before the next run is loaded.

    Args:
        part: after so many slots what is used goes on with the same: runs of one place in it follow each other.
    """
    bits, memory = source.tensor.element.bits, context.buffer(source.tensor)
    each = width if width is not None else _width(held, source, bits)[0]

    def one(v: ExprLike) -> None:
        at = held.coordinates(context.threads.warp, LANE, v * each)
        mask = places.inside(source, at, held.shape)
        raw = Buffer(context.fresh("raw"), source.tensor.dtype, "register", each, min(16, each * bits // 8))
        context.emit(Allocate(raw))
        where = memory_at(context, source, at)
        context.instruction(f"ld.{_kind(memory)}", slot(raw, 0, each), where, mask=mask, fill=0)
        context.loop(each, lambda j: use(v * each + j, slot(raw, j)))

    if part > each and part % each == 0:
        context.loop(part // each, lambda p: context.loop(held.slots // part, lambda t: one(t * (part // each) + p)))
    else:
        context.loop(held.slots // each, one)


Place = Callable[[ExprLike], ExprLike]
"""Where a slot of a holding is among the slots of its buffer."""


def store(context: Context, op: Op, out: Region, source: Region, buffer: Buffer, held: Holding, at: Place) -> None:
    """Registers to memory: where several threads hold an element, the first one writes."""
    width, free, run = _width(held, out, out.tensor.element.bits)
    unboxed = context.refused.get(op)
    apart = () if unboxed is None else (Candidate("tma", False, unboxed),)
    problem = "an addition" if op.option("accumulate") else store_problem(held, out, context.arch)
    if not problem:
        how = ", turned" * (places.fastest(out) == 0)
        context.choose(op, STORE, Candidate("stmatrix", True, f"four 8 x 8 tiles each{how}"))
        _store_matrices(context, buffer, held, out, at)
        return
    reasons = (Candidate("stmatrix", False, problem),) if out.tensor.space == "shared" else ()
    context.choose(op, f"st.{out.tensor.space}", *apart, *reasons, *_reasons("st", out, width, free, run))
    store_from(context, buffer, held, out, width, bool(op.option("accumulate")), source, at)


def store_from(
    context: Context, buffer: Buffer, held: Holding, out: Region, width: int | None = None, accumulate: bool = False,
    shown: Region | None = None, place: Place = lambda k: k,
) -> None:  # fmt: skip
    """Stores registers that lie as `held` says into a box; `place` says where its runs of `width` slots are."""
    element = out.tensor.element
    if width is None:
        width = _width(held, out, element.bits)[0]
    memory = context.buffer(out.tensor)
    cast = out.tensor.dtype != buffer.dtype
    copies = held.first_copy(context.threads.warp, LANE) if context.threads.warps else ()
    exists = shown if shown is not None and shown.masked else None

    def one(v: ExprLike) -> None:
        at = held.coordinates(context.threads.warp, LANE, v * width)
        mask = both(places.inside(out, at, held.shape), *copies)
        if exists is not None:
            mask = both(mask, places.inside(exists, at, held.shape))
        where = memory_at(context, out, at)
        if not cast and not accumulate:
            context.instruction(f"st.{_kind(memory)}", where, slot(buffer, place(v * width), width), mask=mask)
            return
        raw = Buffer(context.fresh("raw"), out.tensor.dtype, "register", width, min(16, width * element.bits // 8))
        context.emit(Allocate(raw))
        if accumulate:
            old = Buffer(context.fresh("old"), out.tensor.dtype, "register", width, raw.alignment)
            context.emit(Allocate(old))
            context.instruction(f"ld.{_kind(memory)}", slot(old, 0, width), where, mask=mask, fill=0)
            context.loop(
                width,
                lambda j: context.instruction(
                    "map.add", slot(raw, j), slot(old, j), slot(buffer, place(v * width) + j)
                ),
            )
        else:
            context.loop(
                width, lambda j: context.instruction("map.cast", slot(raw, j), slot(buffer, place(v * width) + j))
            )
        context.instruction(f"st.{_kind(memory)}", where, slot(raw, 0, width), mask=mask)

    context.loop(held.slots // width, one)


def _store_matrices(context: Context, buffer: Buffer, held: Holding, out: Region, place: Place) -> None:
    raw = context.registers("raw", out.tensor.dtype, 8)
    turned = places.fastest(out) == 0  # rows in memory are columns of the tiles
    name = STORE.replace(".x4.", ".x4.trans.") if turned else STORE

    def one(v: ExprLike) -> None:
        context.loop(8, lambda j: context.instruction("map.cast", slot(raw, j), slot(buffer, place(v * 8) + j)))
        where = memory_at(context, out, store_row(held, context.threads.warp, v * 8, turned))
        context.instruction(name, where, slot(raw, 0, 8))

    context.loop(held.slots // 8, one)


def store_problem(held: Holding, out: Region, arch: str) -> str:
    """Why registers are not stored by ``stmatrix``; empty if they are."""
    if out.tensor.space != "shared":
        return "not to shared memory"
    if out.tensor.element.bits != 16:
        return f"elements of {out.tensor.element.bits} bits"
    if not atom(STORE).runs_on(arch):
        return f"needs sm_90, not {arch}"
    if len(held.shape) != 2 or not set(held.digits) >= _TILE or any(d.dim < 0 for d in held.digits):
        return "the registers are no fragments of 8 x 8 tiles"
    pairs = [d for d in held.digits if d.axis == "reg" and d.stride == 4]
    if not pairs or pairs[0].dim != 1 or pairs[0].weight != 8 or pairs[0].extent % 2:
        return "neighbouring slots are no neighbouring tiles"
    if out.masked or out.shape != held.shape:
        return "a mask"
    if places.fastest(out) not in (0, 1) or places.vector(out, 8) != 8:
        return "rows of fewer than 16 aligned bytes"
    return ""


def store_row(held: Holding, warp: ExprLike, first: ExprLike, turned: bool) -> tuple[ExprLike, ExprLike]:
    """Where the row begins that a lane supplies for the four tiles of slots ``first .. first + 7``."""
    row, column = held.coordinates(warp, 0, first)
    if turned:
        return simplify(row + LANE // 8 % 2 * 8), simplify(column + LANE // 16 * 8 + LANE % 8)
    return simplify(row + LANE // 8 % 2 * 8 + LANE % 8), simplify(column + LANE // 16 * 8)


def memory_copy(context: Context, op: Op, out: Region, source: Region) -> None:
    """Memory to memory through registers; global to shared by ``cp.async`` where asked."""
    bits = source.tensor.element.bits
    wanted = [places.vector(region, max(1, 128 // bits)) for region in (out, source)]
    alike = places.fastest(out) == places.fastest(source)
    width = min(wanted) if alike else 1
    at = places.fastest(source if source.tensor.space == "global" else out)
    order = tuple(range(len(out.shape)))[::-1]
    if at is not None:
        order = (at, *(d for d in order if d != at))
    layout, padded = blocked(out.shape, max(1, context.threads.warps), width, order)
    held = holding(layout, padded, max(1, context.threads.warps))
    width = gcd(width, held.run(order[0])) if order else 1
    asynchronous = op.name == "copy_async" and source.tensor.space == "global" and out.tensor.space == "shared"
    size = width * bits // 8
    fits = size in (4, 8, 16) and source.tensor.dtype == out.tensor.dtype and not out.masked
    reason = (
        f"{size} B runs" if fits else f"{size} B runs, of 4, 8 or 16 that it moves" if size < 4 else "the types differ"
    )
    if not asynchronous:
        asked = op.name == "copy_async"
        reason = "not from global to shared memory" if asked else "no asynchronous copy was asked for"
    by_copy = asynchronous and fits
    if op.option("use") == "cp.async" and not by_copy:
        raise BackendError("copy_async(.., use='cp.async')", reason, inputs={"line": str(op.line)})
    context.choose(
        op, "cp.async" if by_copy else "ld, st", Candidate("tma", False, box_problem(context.arch, op)),
        Candidate("cp.async", by_copy, reason),
        Candidate("ld, st", not by_copy, "cp.async needs no registers" if by_copy else f"{size} B an access"),
    )  # fmt: skip
    copies = held.first_copy(context.threads.warp, LANE)
    target, memory = context.buffer(out.tensor), context.buffer(source.tensor)

    def one(v: ExprLike) -> None:
        place = held.coordinates(context.threads.warp, LANE, v * width)
        mask = places.inside(source, place, held.shape)
        to = memory_at(context, out, place)
        guard = both(places.inside(out, place, held.shape), *copies)
        where = memory_at(context, source, place)
        if by_copy:
            name = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
            if guard is None:
                context.instruction(name, to, where, mask=mask)
            else:
                context.branch(guard, lambda: context.instruction(name, to, where, mask=mask))
            return
        raw = Buffer(context.fresh("raw"), source.tensor.dtype, "register", width, min(16, size))
        context.emit(Allocate(raw))
        context.instruction(f"ld.{_kind(memory)}", slot(raw, 0, width), where, mask=both(mask, guard), fill=0)
        if source.tensor.dtype != out.tensor.dtype:
            other = Buffer(context.fresh("raw"), out.tensor.dtype, "register", width, raw.alignment)
            context.emit(Allocate(other))
            context.loop(width, lambda j: context.instruction("map.cast", slot(other, j), slot(raw, j)))
            raw = other
        context.instruction(f"st.{_kind(target)}", to, slot(raw, 0, width), mask=guard)

    context.loop(held.slots // width, one, turns=_TURNS)


def _kind(buffer: Buffer) -> str:
    return "shared" if buffer.space in ("shared", "cluster") else "global"
