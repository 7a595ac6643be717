"""Neighbours that visit the same points become one chain: each point goes through all of them in registers.

The pass keeps every value, up to the order of a sum. It works on a finished plan, from the leaves up:

- *Begun*: a neutral element before its reduction is not written: the reduction starts there. Under a guard, this comes
  true with the loop that the guard names; where that loop stays, the neutral element is written after all.
- *Joined*: two operations over the same axes run point by point, where what one writes is read by the other at the same
  point only.
- *Absorbed*: a loop around a single chain becomes one more axis of it.
- *Dropped*: a result in scratch memory that nothing reads outside its own chain is never written.

A contraction without rows or columns of its own, a dot product, is such a chain as well; so are small products of a
batch that lie side by side in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.extensions import NEUTRAL
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, First, Guard, Invocation, Program
from tileweave.teir.ir.walk import invocations, primitives_by_id
from tileweave.teir.merged.form import MONOIDS, Loop, MergedOp, Mode, Stage, Step, minus, region
from tileweave.teir.merged.order import free, may_alias, rivals_of

_MOST_STAGES = 32
"""Of one chain: longer ones would hold no more in registers, and take time that grows with the square."""


def chained(steps: tuple[Step, ...], program: Program) -> tuple[Step, ...]:
    """A plan with neighbours joined.

    Args:
        steps: the plan of the program.
        program: verified.
    """
    joined = _forest(steps, program, _touched(program))
    readers: dict[int, set[int]] = {}
    for op in _operations(joined):
        for tensor in _read(op):
            readers.setdefault(tensor, set()).add(id(op))
    return _each(joined, lambda op: _written_out(_without_dead(op, program, readers)))


def _operations(steps: tuple[Step, ...]) -> Iterator[MergedOp]:
    for step in steps:
        if isinstance(step, MergedOp):
            yield step
        else:
            yield from _operations(step.body)


def _each(steps: tuple[Step, ...], change: Callable[[MergedOp], tuple[MergedOp, ...]]) -> tuple[Step, ...]:
    found: list[Step] = []
    for step in steps:
        found += change(step) if isinstance(step, MergedOp) else (replace(step, body=_each(step.body, change)),)
    return tuple(found)


def _touched(program: Program) -> Counter[str]:
    """How many invocations touch each tensor."""
    primitives = primitives_by_id(program)
    return Counter(
        name
        for visit in invocations(program)
        if isinstance(visit.node, Invocation)
        for name in set(operands_of(primitives[visit.node.primitive], program))
    )


def _forest(steps: tuple[Step, ...], program: Program, touched: Counter[str]) -> tuple[Step, ...]:
    found: list[Step] = []
    for step in steps:
        if isinstance(step, MergedOp):
            found.append(_dot(step, program) or step)
            continue
        body = _forest(step.body, program, touched)
        step = replace(step, body=tuple(_without_own(below, program, touched) for below in body))
        found.append(_absorbed(step, program) or step)
    begun: list[Step] = []
    for step in found:
        if isinstance(step, MergedOp) and step.stages:
            begun += _fills(step) or (_begun(begun, step, program),)
        else:
            begun.append(step)
    joined: list[Step] = []
    for step in begun:
        before = joined[-1] if joined else None
        both = None
        if isinstance(before, MergedOp) and isinstance(step, MergedOp) and before.guard == step.guard:
            both = _joined(before, step, program) if before.stages and step.stages else None
        joined[-1 if both else len(joined) :] = [both or step]
    return tuple(joined)


def _widths(op: MergedOp, program: Program) -> tuple[int, ...]:
    return tuple(width_bytes(program.tensors[j].dtype) for j in op.operands)


def _free(op: MergedOp, program: Program) -> bool:
    """Whether the points of a chain may be visited in any order, and each result of a reduction is met once in it."""
    if not free(op, _widths(op, program), rivals_of(op, program)):
        return False
    sums = [stage.output for stage in op.stages if stage.kind in MONOIDS]
    uses = [o for stage in op.stages for o in (*stage.inputs, stage.output)]
    return all(uses.count(o) == 1 for o in sums)


def _dot(op: MergedOp, program: Program) -> MergedOp | None:
    """A contraction none of whose axes belongs to one input and the output alone, or a small one of a batch along which
    all operands are dense, as a reduction."""
    if op.kind != "Contraction" or op.relu is not None or len(op.operands) > 3:
        return None  # with a fourth operand the output starts from other values than zero
    alone = [mode for mode in op.modes if mode.extent > 1 and bool(mode.strides[0]) != bool(mode.strides[1])]
    if any(mode.strides[2] for mode in alone) and not _along_batch(op, program):
        return None
    stage = Stage("Contraction", (0, 1), 2, fresh=op.init)
    chain = replace(op, kind="Chain", init=None, stages=(stage,))
    return chain if _free(chain, program) else None


_LEAST_BATCH, _SMALL_PRODUCT = 32, 1 << 15
"""Small products that lie side by side: 3,032 of 5 x 2 x 2 take 203 us one after the other and 18 as a chain along the
batch, 4,000 of 12 x 12 x 12 take 1.85 ms and 1.18."""


def _along_batch(op: MergedOp, program: Program) -> bool:
    """Whether all operands of many small products are dense along the batch, and sums have the type of the output."""
    dtypes = {program.tensors[number].dtype for number in op.operands}
    widths = _widths(op, program)
    batch = max((mode.extent for mode in op.modes if mode.strides == widths), default=0)
    small = prod(mode.extent for mode in op.modes) <= _SMALL_PRODUCT * batch
    return batch >= _LEAST_BATCH and small and len(dtypes) == 1 and widths[2] >= 4


# ---- what a reduction starts at ---------------------------------------------------------------------------------


def _fills(op: MergedOp) -> tuple[MergedOp, ...]:
    """Operations of one stage each, where all stages write without reading; else none."""
    if op.dropped or any(stage.inputs or stage.reads_output for stage in op.stages):
        return ()
    return tuple(_fill(op, stage.output, stage.kind, op.guard, stage.number) for stage in op.stages)


def _fill(op: MergedOp, o: int, kind: str, guard: Guard, number: float = 0.0) -> MergedOp:
    """An operation that writes wherever an operand of another one is."""
    modes = tuple(Mode(mode.extent, (mode.strides[o],)) for mode in op.modes if mode.strides[o])
    stage = Stage(kind, (), 0, number)
    return MergedOp(kind, (op.operands[o],), modes, (op.offsets[o],), op.width_bytes, guard, stages=(stage,))


def _begun(before: list[Step], step: MergedOp, program: Program) -> MergedOp:
    """The operation, with reductions that start at the neutral elements written before it, which are taken away."""
    if not any(stage.kind in MONOIDS and stage.fresh is None for stage in step.stages) or not _free(step, program):
        return step  # its points read what others write: what lies there before is part of the meaning
    stages = list(step.stages)
    for k, stage in enumerate(stages):
        if stage.kind in MONOIDS and stage.fresh is None:
            fill = _fill_of(before, step, stage, program)
            fresh = minus(fill.guard, step.guard) if fill else None
            if fresh is not None:
                stages[k] = replace(stage, fresh=fresh)
                before[:] = [one for one in before if one is not fill]
    return replace(step, stages=tuple(stages))


def _fill_of(before: list[Step], step: MergedOp, stage: Stage, program: Program) -> MergedOp | None:
    """The operation that last wrote what a reduction takes its elements into, if it wrote its neutral element."""
    wanted = NEUTRAL[MONOIDS[stage.kind]], region(step, stage.output)
    out = step.operands[stage.output]
    for one in reversed(before):
        if not isinstance(one, MergedOp):
            return None  # a loop: what it writes is not looked into
        if _fills(one) and (one.stages[0].kind, region(one, 0)) == wanted:
            return one
        if any(j == out or may_alias(program, j, out) for j in one.operands):
            return None  # between the two, it may read the neutral elements or write others
    return None


def _written_out(op: MergedOp) -> tuple[MergedOp, ...]:
    """The operation, behind the neutral elements of those reductions that start there under a guard."""
    fills: list[MergedOp] = []
    for stage in op.stages:
        if stage.fresh:
            guard = tuple(dict.fromkeys((*op.guard, *stage.fresh)))
            fills.append(_fill(op, stage.output, NEUTRAL[MONOIDS[stage.kind]], guard))
    stages = tuple(replace(stage, fresh=None) if stage.fresh else stage for stage in op.stages)
    return (*fills, replace(op, stages=stages)) if fills else (op,)


# ---- two neighbours ---------------------------------------------------------------------------------------------


def _joined(before: MergedOp, step: MergedOp, program: Program) -> MergedOp | None:
    """Both in one chain."""
    if len(before.stages) + len(step.stages) > _MOST_STAGES:
        return None
    first, second = _modes(before), _matching(_modes(step), [mode.extent for mode in _modes(before)])
    if second is None or _crossed(before, program) or _crossed(step, program):
        return None  # a transpose moves whole lines alone, and would take single elements in a chain
    places: list[tuple[int, int, tuple[int, ...]]] = []  # compared, not hashed: sizes that are followed stay open

    def number(place: tuple[int, int, tuple[int, ...]]) -> int:
        if place not in places:
            places.append(place)
        return places.index(place)

    numbers = [
        [
            number((tensor, op.offsets[o], tuple([mode.strides[o] for mode in modes])))
            for o, tensor in enumerate(op.operands)
        ]
        for op, modes in ((before, first), (step, second))
    ]
    stages = [
        replace(stage, inputs=tuple(new[o] for o in stage.inputs), output=new[stage.output])
        for op, new in zip((before, step), numbers, strict=True)
        for stage in op.stages
    ]
    both = replace(
        before,
        kind="Chain",
        operands=tuple(tensor for tensor, _, _ in places),
        offsets=tuple(offset for _, offset, _ in places),
        modes=tuple(Mode(mode.extent, tuple(strides[k] for _, _, strides in places)) for k, mode in enumerate(first)),
        stages=tuple(stages),
    )
    return both if _free(both, program) else None


def _modes(op: MergedOp) -> tuple[Mode, ...]:
    return tuple(mode for mode in op.modes if mode.extent > 1)


def _matching(modes: tuple[Mode, ...], extents: list[int]) -> tuple[Mode, ...] | None:
    """The axes in an order that has these extents; None where there is none, or a choice to make."""
    own = [mode.extent for mode in modes]
    if own == extents:
        return modes
    if sorted(own) != sorted(extents) or len(set(own)) < len(own):
        return None
    return tuple(modes[own.index(extent)] for extent in extents)


def _crossed(op: MergedOp, program: Program) -> bool:
    """Whether an operation is best done as a transpose: one input, dense in another axis than the output."""
    if len(op.stages) != 1 or len(op.operands) != 2 or op.stages[0].kind in MONOIDS:
        return False
    source, out = _widths(op, program)
    modes = _modes(op)
    along = any(mode.strides[1] == out and abs(mode.strides[0]) not in (0, source) for mode in modes)
    return along and any(abs(mode.strides[0]) == source for mode in modes)


# ---- a loop around a chain --------------------------------------------------------------------------------------


def _absorbed(loop: Loop, program: Program) -> MergedOp | None:
    """The loop as one more axis of the only chain in it; None where that would change the meaning."""
    op, axis = loop.body[0], loop.axis
    if len(loop.body) > 1 or not isinstance(op, MergedOp) or not op.stages:
        return None
    if any(term.axis == axis.id for term in op.guard):
        return None  # it runs in some iterations only, and a chain visits all points
    mode = Mode(axis.extent, tuple(0 if o in op.dropped else axis.strides[j] for o, j in enumerate(op.operands)))
    stages = [_around(stage, axis, still=not mode.strides[stage.output]) for stage in op.stages]
    if None in stages:
        return None
    merged = replace(
        op,
        stages=tuple(stage for stage in stages if stage),
        modes=(mode, *op.modes),
        offsets=tuple(o + axis.offsets[j] for o, j in zip(op.offsets, op.operands, strict=True)),
        guard=tuple(dict.fromkeys((*loop.guard, *op.guard))),
    )
    return merged if _free(merged, program) else None


def _around(stage: Stage, axis: Axis, *, still: bool) -> Stage | None:
    """A stage with one more axis, on which its output stands still or not; None where it would begin midway."""
    if stage.fresh is None:
        return stage
    rest = tuple(term for term in stage.fresh if term.axis != axis.id)
    met = set(stage.fresh) - set(rest)
    if axis.extent > 1 and met != ({First(axis.id)} if still else set()):
        return None
    return replace(stage, fresh=rest)


# ---- results that nothing reads ---------------------------------------------------------------------------------


def _read(op: MergedOp) -> set[int]:
    """The tensors that an operation reads from memory, as far as one can tell without following its stages."""
    if not op.stages:
        return set(op.operands)
    found = {op.operands[o] for stage in op.stages for o in stage.inputs}
    for stage in op.stages:
        if stage.reads_output or (stage.kind in MONOIDS and stage.fresh != ()):
            found.add(op.operands[stage.output])
    return found


def _without_dead(op: MergedOp, program: Program, readers: dict[int, set[int]]) -> MergedOp:
    """The chain without writing what only it reads, after it has written it."""
    return _dropping(op, program, lambda tensor: readers.get(tensor, set()) <= {id(op)})


def _without_own(step: Step, program: Program, touched: Counter[str]) -> Step:
    """The chain without writing scratch tensors that no other invocation of the program touches.

    It may then become part of an outer loop along which they do not move.
    """
    if not isinstance(step, MergedOp) or not step.stages:
        return step

    def own(tensor: int) -> bool:
        stages = sum(any(step.operands[o] == tensor for o in (*s.inputs, s.output)) for s in step.stages)
        return stages == touched[program.tensors[tensor].name]

    return _dropping(step, program, own)


def _dropping(op: MergedOp, program: Program, unread: Callable[[int], bool]) -> MergedOp:
    """The chain with more results in scratch memory that are never stored, so that their places do not matter."""
    dropped = set(op.dropped)
    for k, stage in enumerate(op.stages):
        o = stage.output
        tensor = op.operands[o]
        if program.tensors[tensor].role != "scratch" or stage.kind in MONOIDS or stage.reads_output:
            continue
        earlier = any(op.operands[i] == tensor for before in op.stages[: k + 1] for i in before.inputs)
        first = all(op.operands[before.output] != tensor for before in op.stages[:k])
        if first and not earlier and op.operands.count(tensor) == 1 and unread(tensor):
            dropped.add(o)
    if dropped == op.dropped:
        return op
    modes = tuple(
        Mode(mode.extent, tuple(0 if o in dropped else s for o, s in enumerate(mode.strides))) for mode in op.modes
    )
    return replace(op, modes=modes, dropped=frozenset(dropped))
