"""Registers from one layout to another: renamed, shuffled within warps, or by a trip through shared memory.

The plan of a conversion within warps is `layout.analysis.conversion`; here it becomes instructions, and its cost is
held against that of the trip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import gcd, prod
from typing import Any

import numpy as np

from tileweave.errors import BackendError
from tileweave.index import ExprLike
from tileweave.kernel.dispatch import copies
from tileweave.kernel.dispatch.context import Context, slot
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.lanes import Within, lane_condition, lane_number, within
from tileweave.kernel.dispatch.layouts.registers import Holding
from tileweave.kernel.ir import Candidate, Op, Region, Tensor, dtype_of
from tileweave.kernel.threads import Buffer, Slots
from tileweave.layout.analysis.memory import loads, phases_of
from tileweave.layout.analysis.moves import Local, Shuffle

__all__ = ["alike", "converted", "copy"]

#: What two barriers cost beside one instruction a warp: tens of cycles in which the block's warps wait for each other.
_BARRIERS = 64
_BANKS, _WORD, _MOST = 32, 4, 16
Read = Callable[[int, int], Slots]
"""A slot of the source, and how many from it on."""


def copy(context: Context, op: Op) -> None:
    """Lowers ``copy`` and ``copy_async``; between registers by a conversion."""
    out, source = op.outs[0], op.ins[0]
    if isinstance(source, Region) and source.tensor.space == out.tensor.space == "register":
        have, want = copies.shown(context, source), copies.shown(context, out)
        buffer, held = converted(context, context.buffer(source.tensor), have, want, op)
        target = context.buffer(out.tensor)
        cast = "cast" if target.dtype != buffer.dtype else "id"
        context.loop(held.slots, lambda r: context.instruction(f"map.{cast}", slot(target, r), slot(buffer, r)))
    else:
        copies.copy(context, op)


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
    context.choose(op, first.name if shuffles else "shared memory trip", first, second)
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
    if isinstance(step, Local):
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
    context: Context, dtype: str, shape: tuple[int, ...], steps: Sequence[int] = (), elements: int = 0
) -> Region:
    """Shared memory for a tile on a trip, row-major unless steps are given, as a region."""
    steps = steps or [prod(shape[d + 1 :]) for d in range(len(shape))]
    memory = context.staging(dtype, elements or prod(shape))
    tensor = Tensor(memory.name, shape, dtype, "shared", places.strided_layout(zip(shape, steps, strict=True)))
    context.buffers[memory.name] = memory
    return Region(tensor, (0,) * len(shape), shape, shape, tuple(range(len(shape))))
