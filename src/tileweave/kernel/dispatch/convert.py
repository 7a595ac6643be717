"""Registers from one layout to another: renamed, shuffled within warps, or by a trip through shared memory.

The plan of a conversion within warps is `layout.analysis.conversion`; here it becomes instructions, and its cost is
held against that of the trip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import gcd, prod
from typing import Any

import numpy as np

from tileweave.errors import BackendError
from tileweave.index import ExprLike, as_expr, simplify
from tileweave.kernel.dispatch import copies, tensor
from tileweave.kernel.dispatch.context import Context, declined, slot
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.lanes import Within, lane_condition, lane_number, within
from tileweave.kernel.dispatch.layouts.registers import Holding, Part, blocked, holding, part_of
from tileweave.kernel.ir import Candidate, KernelTensor, Op, Region, dtype_of
from tileweave.kernel.threads import LANE, Buffer, Slots
from tileweave.layout.analysis.memory import loads, phases_of
from tileweave.layout.analysis.moves import LocalMove, Shuffle

#: What two barriers cost beside one instruction a warp: tens of cycles in which the block's warps wait for each other.
_BARRIERS = 64
_BANKS, _WORD, _MOST = 32, 4, 16
Read = Callable[[int, int], Slots]
"""A slot of the source, and how many from it on."""


def copy(context: Context, op: Op) -> None:
    """Lowers ``copy`` and ``copy_async`` where registers take part; between registers by a conversion."""
    out, source = op.outs[0], op.ins[0]
    from_registers = isinstance(source, Region) and source.tensor.space == "register"
    _check_asked(op, from_registers, out.tensor.space == "register", context.refused.get(op))
    if out.tensor.space == "register":
        target, want, finish = into(context, op, out)
        if isinstance(source, Region) and from_registers:
            buffer, have = held(context, op, source)
            buffer, _ = converted(context, buffer, have, want, op)
            cast = "cast" if target.dtype != buffer.dtype else "id"
            context.loop(want.slots, lambda r: context.instruction(f"map.{cast}", slot(target, r), slot(buffer, r)))
        elif isinstance(source, Region) and source.tensor.space == "tensor":
            tensor.move(context, op, target, want)
        else:
            copies.load(context, op, target, want, source)  # type: ignore[arg-type]
        finish()
    elif isinstance(source, Region) and from_registers and out.tensor.space == "tensor":
        if source.masked:
            raise declined(op.line, "values with a mask go to tensor memory", legal="where(.., values, 0) without one")
        want = holding(*tensor.loaded_layout(op, context.threads.warps), context.threads.warps)
        tensor.move(context, op, *converted(context, *held(context, op, source), want, op))
    elif isinstance(source, Region) and from_registers:
        copies.store(context, op, out, source, *_stored(context, op, source))
    else:
        copies.copy(context, op)


def _check_asked(op: Op, from_registers: bool, to_registers: bool, unboxed: str | None) -> None:
    """Refuses a way that is asked for and is none between these memories.

    Args:
        unboxed: of a store, why it does not leave by boxes.
    """
    asked, why = op.option("use"), ""
    if asked in ("shuffle", "shared") and not (from_registers and to_registers):
        why = "not from registers to registers"
    elif asked == "st" and (to_registers or not from_registers):
        why = "not from registers to memory"
    elif asked == "tma" and (from_registers or to_registers):
        why = unboxed or "boxes move between global and shared memory, not registers"
    if why:
        legal = {"tma": "copy_async to or from shared memory", "st": "no use=, or a store of registers"}.get(
            str(asked), "no use=, or a copy between registers"
        )
        raise BackendError(f"{op.name}(.., use={asked!r})", why, inputs={"line": str(op.line)}, legal=legal)


def held(context: Context, op: Op, region: Region) -> tuple[Buffer, Holding]:
    """The registers of a region: the tensor's, the slots of a part, or a part that comes through shared memory."""
    whole, buffer = context.holdings[region.tensor.name], context.buffer(region.tensor)
    if _shows_all(region):
        return buffer, _turned(whole, region.dims)
    part = part_of(whole, region.begin, region.extent, region.dims)
    _choose_part(context, op, region, part)
    if isinstance(part, Part):
        return _moved(context, buffer, part), part.held
    box = staged(context, buffer.dtype, region.shape)
    have = _even(context, region)
    result = context.registers("part", buffer.dtype, have.slots, str(have.layout))
    context.sync()
    _boxed(context, buffer, whole, box, region, "st")
    context.sync()
    copies.load_into(context, result, have, box)
    return result, have


def _stored(context: Context, op: Op, region: Region) -> tuple[Buffer, Holding, Callable[[ExprLike], ExprLike]]:
    """The registers of a region to be stored, and where its slots are: parts of runs of eight stay where they are."""
    if not _shows_all(region):
        part = part_of(context.holdings[region.tensor.name], region.begin, region.extent, region.dims)
        if isinstance(part, Part) and part.runs[0] % 8 == 0:
            _choose_part(context, op, region, part)
            return context.buffer(region.tensor), part.held, part.slot
    return *held(context, op, region), lambda k: k


def _even(context: Context, region: Region) -> Holding:
    """A holding of a box's own, one element beside the other."""
    layout, padded = blocked(region.shape, max(1, context.threads.warps), 1)
    return holding(layout, padded, max(1, context.threads.warps))


def into(context: Context, op: Op, region: Region, keep: bool = False) -> tuple[Buffer, Holding, Callable[[], None]]:
    """Registers for the values of a region, and what brings them there afterwards.

    Args:
        keep: whether the registers begin with the values that the region has.
    """
    whole, buffer = context.holdings[region.tensor.name], context.buffer(region.tensor)
    if _shows_all(region):
        return buffer, _turned(whole, region.dims), lambda: None
    if keep:
        target, have = held(context, op, region)
    part = part_of(whole, region.begin, region.extent, region.dims)
    if isinstance(part, Part):
        if not keep:
            have = part.held
            target = context.registers("part", buffer.dtype, have.slots, str(have.layout))

        def back() -> None:
            box = replace(region, mask=region.extent)
            for k, at in enumerate(part.slots):
                inside = places.inside(box, have.coordinates(context.threads.warp, LANE, k), have.shape)
                context.instruction("map.id", slot(buffer, at), slot(target, k), mask=inside)

        return target, have, back
    _choose_part(context, op, region, part)
    if not keep:
        have = _even(context, region)
        target = context.registers("part", buffer.dtype, have.slots, str(have.layout))
    return target, have, lambda: _brought(context, buffer, whole, target, have, region)


def _brought(context: Context, buffer: Buffer, whole: Holding, values: Buffer, have: Holding, region: Region) -> None:
    """Values of a part go to the threads that hold it, through shared memory."""
    box = staged(context, buffer.dtype, region.shape)
    context.sync()
    copies.store_from(context, values, have, box)
    context.sync()
    _boxed(context, buffer, whole, box, region, "ld")


def _boxed(context: Context, buffer: Buffer, whole: Holding, box: Region, region: Region, how: str) -> None:
    """Each thread stores or loads those of its elements that a region has, at their places in a box."""
    copies_ = whole.first_copy(context.threads.warp, LANE) if how == "st" else ()

    def one(r: ExprLike) -> None:
        at = whole.coordinates(context.threads.warp, LANE, r)
        inside = [simplify(as_expr(c - b)) for c, b in zip(at, region.begin, strict=True)]
        where = copies.memory_at(context, box, [inside[d] for d in region.dims])
        there = [(c >= 0) & (c < n) for c, n in zip(inside, region.extent, strict=True)]
        operands = (where, slot(buffer, r)) if how == "st" else (slot(buffer, r), where)
        condition = copies.both(*there, *copies_)
        if condition is not None:
            context.branch(condition, lambda: context.instruction(f"{how}.shared", *operands))

    context.loop(whole.slots, one)


def _shows_all(region: Region) -> bool:
    hidden = [d for d in range(region.tensor.rank) if d not in region.dims and region.tensor.shape[d] != 1]
    return not hidden and region.extent == region.tensor.shape


def _turned(held: Holding, dims: tuple[int, ...]) -> Holding:
    """A holding with its dimensions in another order, those of one element perhaps left out."""
    if dims == tuple(range(len(held.shape))):
        return held
    digits = tuple(replace(d, dim=dims.index(d.dim)) if d.dim in dims else d for d in held.digits)
    return Holding(held.layout, tuple(held.shape[d] for d in dims), digits, held.warps)


def _choose_part(context: Context, op: Op, region: Region, part: Part | str) -> None:
    direct = isinstance(part, Part)
    name = "slots" if direct else "shared memory trip"
    reason = f"{len(part.slots)} slots of {region}" if isinstance(part, Part) else part
    context.choose(op, name, Candidate("slots", direct, reason), Candidate("shared memory", not direct, "any part"))


def _moved(context: Context, buffer: Buffer, part: Part) -> Buffer:
    result = context.registers("part", buffer.dtype, len(part.slots), str(part.held.layout))
    for k, at in enumerate(part.slots):
        context.instruction("map.id", slot(result, k), slot(buffer, at))
    return result


def alike(a: Holding, b: Holding) -> bool:
    """Whether two holdings put every element into the same slots of the same threads."""
    return a.shape == b.shape and set(a.digits) == set(b.digits)


def converted(context: Context, buffer: Buffer, have: Holding, want: Holding, op: Op) -> tuple[Buffer, Holding]:
    """The registers in the layout that is wanted: as they are, or by the cheaper of shuffles and a trip.

    Raises:
        BackendError: ``use="shuffle"`` was asked for and some element changes its warp; says why.
    """
    if alike(have, want):
        return buffer, want
    bits = dtype_of(buffer.dtype).bits
    plan, trip = within(have, want, bits), _best_trip(have, want, bits)
    asked = op.option("use") if op.name == "copy" else None
    if isinstance(plan, Within) and not _printable(plan):
        plan = "the lanes' numbers are no xor of bits"
    if asked == "shuffle" and isinstance(plan, str):
        raise BackendError("copy(.., use='shuffle')", plan, inputs={"line": str(op.line)})
    shuffles = isinstance(plan, Within) and asked != "shared" and (asked == "shuffle" or _cost(plan) <= trip.cost)
    if isinstance(plan, Within):
        count = plan.turns * sum(step.rounds for step in plan.plan.steps if isinstance(step, Shuffle))
        name = "shuffles" if count else "registers"
        said = f"cost {_cost(plan)}: {count} shuffles, {plan.instructions - count} selects"
        first = Candidate(name, shuffles, said if count else f"cost {_cost(plan)}: slots renamed")
    else:
        first = Candidate("shuffles", False, plan)
    second = Candidate("shared memory", not shuffles, str(trip))
    what = "" if op.name == "copy" else f" for another layout of {buffer.name}"
    context.choose(op, f"{first.name if shuffles else 'shared memory trip'}{what}", first, second)
    if isinstance(plan, Within) and shuffles:
        return _shuffled(context, buffer, want, plan), want
    return _by_trip(context, buffer, have, want, trip), want


# --- within warps


def _cost(plan: Within) -> int:
    return plan.instructions


def _lanes(table: Sequence[int]) -> dict[int, list[int]]:
    """Number -> the lanes that have it; where the plan has one row, all lanes are alike. Negative: none has."""
    row = list(table) * (32 // len(table))
    return {n: [lane for lane, k in enumerate(row) if k == n] for n in sorted(set(row)) if n >= 0}


def _printable(plan: Within) -> bool:
    """Whether every lane that is read is an expression of the reader's."""
    return all(
        lane_number([None if n < 0 else n for n in row.tolist()]) is not None
        for step in plan.plan.steps
        if isinstance(step, Shuffle)
        for row in step.lane
    )


def _shuffled(context: Context, buffer: Buffer, want: Holding, plan: Within) -> Buffer:
    result = context.registers("moved", buffer.dtype, want.slots, str(want.layout))

    def turn(v: ExprLike) -> None:
        first, into = plan.offsets(v)
        steps = plan.plan.steps

        def from_buffer(p: int, count: int) -> Slots:
            return slot(buffer, first + plan.have[p], count)

        read: Read = from_buffer
        for k, step in enumerate(steps):
            last = k == len(steps) - 1
            out = result if last else context.registers("half", buffer.dtype, step.target.slots)

            def write(p: int, count: int, out: Buffer = out, last: bool = last) -> Slots:
                return slot(out, into + plan.want[p] if last else p, count)

            _step(context, step, buffer.dtype, read, write)
            read = write

    context.loop(plan.turns, turn)
    return result


def _step(context: Context, step: object, dtype: str, read: Read, write: Read) -> None:
    if isinstance(step, LocalMove):
        _take(context, step.slots.T, read, write)
    elif isinstance(step, Shuffle):
        _take(context, _own(step), read, write)
        for offer, lane, into in zip(step.offer, step.lane, step.into, strict=True):
            _round(context, step.vector, dtype, (offer.tolist(), lane.tolist(), into.tolist()), read, write)
    else:
        raise TypeError(type(step).__name__)


def _own(step: Shuffle) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.where(step.own >= 0, step.own % step.source.slots, -1).reshape(-1, step.target.slots).T


def _take(context: Context, table: object, read: Read, write: Read) -> None:
    """Slots from the thread's own: by (slot of the target, lane) the slot of the source."""
    for p, row in enumerate(np.asarray(table).tolist()):
        _assign(context, write(p, 1), [(read(q, 1), lanes) for q, lanes in _lanes(row).items()])


def _assign(context: Context, target: Slots, choices: Sequence[tuple[Slots, Sequence[int]]]) -> None:
    """One register from one of several by lane: all but the first by a select; lanes without a choice take any."""
    for k, (source, lanes) in enumerate(choices):
        chosen = lane_condition(lanes) if k else None
        if chosen is None:
            context.instruction("map.id", target, source)
        else:
            context.instruction("map.where", target, chosen, source, target)


Round = tuple[Sequence[int], Sequence[int], Sequence[int]]


def _round(context: Context, vector: int, dtype: str, tables: Round, read: Read, write: Read) -> None:
    """One shuffle: each lane offers a word, each reads that of some lane, and those that take it keep it."""
    offer, lane, into = tables
    offers = _lanes(offer)
    if len(offers) == 1:
        offered = read(next(iter(offers)) * vector, vector)
    else:
        raw = context.registers("offer", dtype, vector)
        offered = Slots(raw, 0, vector)
        for j in range(vector):
            _assign(context, slot(raw, j), [(_at(read(p * vector, vector), j), who) for p, who in offers.items()])
    number = lane_number([None if n < 0 else n for n in lane])
    if number is None:
        raise TypeError("a lane without an expression")
    takers = _lanes(into)
    if len(takers) == 1 and lane_condition(next(iter(takers.values()))) is None:
        context.instruction("shfl.sync.idx.b32", write(next(iter(takers)) * vector, vector), offered, number)
        return
    got = Slots(context.registers("got", dtype, vector), 0, vector)
    context.instruction("shfl.sync.idx.b32", got, offered, number)
    for p, who in takers.items():
        condition = lane_condition(who)
        for j in range(vector):
            to = _at(write(p * vector, vector), j)
            if condition is None:
                context.instruction("map.id", to, _at(got, j))
            else:
                context.instruction("map.where", to, condition, _at(got, j), to)


def _at(slots: Slots, j: int) -> Slots:
    return slot(slots.buffer, slots.first + j)


# --- through shared memory


@dataclass(frozen=True)
class _Trip:
    """A buffer for a trip: steps of the dimensions in elements, accesses of a thread and passes of the first warp."""

    steps: tuple[int, ...]
    elements: int
    accesses: tuple[int, int]
    passes: int

    @property
    def cost(self) -> int:
        return sum(self.accesses) + self.passes + _BARRIERS

    def __str__(self) -> str:
        stores, reads = self.accesses
        return f"cost {self.cost}: {stores} stores and {reads} loads a thread, {self.passes} passes, two barriers"


def _best_trip(have: Holding, want: Holding, bits: int) -> _Trip:
    """The cheapest buffer: some dimension is the fastest, rows are padded by a vector or not."""
    shape = tuple(max(a, b) for a, b in zip(have.shape, want.shape, strict=True))
    pad = max(1, _MOST * 8 // bits)
    found = []
    for order in permutations(range(len(shape))) if len(shape) < 4 else [tuple(range(len(shape)))]:
        for extra in (0, pad) if len(shape) > 1 else (0,):
            steps, width = [1] * len(shape), 1
            for dim in reversed(order):
                steps[dim] = width
                width *= shape[dim] + (extra if dim == order[-1] else 0)
            found.append(_trip(have, want, tuple(steps), width, bits))
    return min(found, key=lambda trip: (trip.cost, trip.elements))


def _trip(have: Holding, want: Holding, steps: tuple[int, ...], elements: int, bits: int) -> _Trip:
    passes, accesses = 0, []
    for held in (have, want):
        width = _run(held, steps, bits)
        count = held.slots // width
        at: Any = held.coordinates(0, np.arange(32), 0)  # type: ignore[arg-type]  # expressions take arrays
        starts = sum((np.broadcast_to(c, 32) * s for c, s in zip(at, steps, strict=True)), np.zeros(32, int))
        bytes_ = width * bits // 8
        phase = phases_of(np.arange(32), bytes_, _BANKS, _WORD)
        load = loads(phase, starts * bits // 8, bytes_, _BANKS, _WORD)
        accesses.append(count)
        passes += count * int(load.max(axis=1).sum())
    return _Trip(steps, elements, (accesses[0], accesses[1]), passes)


def _run(held: Holding, steps: tuple[int, ...], bits: int) -> int:
    """Elements of one access: slots that run along the fastest dimension, as far as the other steps are aligned."""
    fastest = [d for d, step in enumerate(steps) if step == 1 and held.shape[d] > 1]
    if not fastest:
        return 1
    others = (step for d, step in enumerate(steps) if d != fastest[0])
    return gcd(held.run(fastest[0]), max(1, 128 // bits), *others)


def _by_trip(context: Context, buffer: Buffer, have: Holding, want: Holding, trip: _Trip) -> Buffer:
    shape = tuple(max(a, b) for a, b in zip(have.shape, want.shape, strict=True))
    box = staged(context, buffer.dtype, shape, trip.steps, trip.elements)
    result = context.registers("moved", buffer.dtype, want.slots, str(want.layout))
    context.sync()
    copies.store_from(context, buffer, have, box)
    context.sync()
    copies.load_into(context, result, want, box)
    return result


def staged(
    context: Context, dtype: str, shape: tuple[int, ...], steps: Sequence[int] = (), elements: int = 0,
    own: bool = False,
) -> Region:  # fmt: skip
    """Shared memory for a tile on a trip, row-major unless steps are given, as a region; `own`: of no other trip."""
    steps = steps or [prod(shape[d + 1 :]) for d in range(len(shape))]
    memory = context.staging(dtype, elements or prod(shape), own)
    tensor = KernelTensor(memory.name, shape, dtype, "shared", places.strided_layout(zip(shape, steps, strict=True)))
    context.buffers[memory.name] = memory
    return Region(tensor, (0,) * len(shape), shape, shape, tuple(range(len(shape))))
