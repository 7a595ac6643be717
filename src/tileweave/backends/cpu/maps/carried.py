"""Loops that carry values from element to element of a row, with vectors across rows that lie side by side.

A body of parallel rows, ``begin; for k: step; end``, keeps what a row carries in scratch memory: a running sum, or the
best element so far and its place. No other code reads it, so here it is kept in registers for a vector of rows, while
16 elements of each pass; between these, for the rows of a task, in a buffer in the first cache. So memory is read in
the order in which it lies, row after row of the operand.

What is the same in every row, as a count of elements, is computed once per vector of them. Truths stay in masks.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.meanings import COMPARISONS, KNOWN, Registers
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, Program
from tileweave.teir.merged.form import MONOIDS, Loop, MergedOp, Stage, Step

ROWS = 256
"""Rows that one task carries side by side, at most: what they carry, 8 to 16 bytes each, stays in the first cache."""
_RUN = 16
"""Elements of each row that pass before the next rows."""
_VECTORS = 4
"""Vectors of rows at a time: what they carry fills half of sixteen registers or more."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The body of parallel rows that carries values.

    Args:
        rows: the axis of the rows; None for one row.
        loop: along a row; its body is ``step`` alone.
        begin: what happens before it; reads nothing but scratch memory, and writes nothing else.
        step: what happens at each element.
        end: what happens after it; reads nothing but scratch memory.
        own: the tensors that hold what is carried, and what a step forms on its way.
        kept: those of them that go from one element to the next, or from ``begin`` to ``end``.
    """

    rows: Axis | None
    loop: Loop
    begin: tuple[MergedOp, ...]
    step: MergedOp
    end: tuple[MergedOp, ...]
    own: frozenset[int]
    kept: tuple[int, ...]


def carried_of(body: Sequence[Step], rows: Axis | None, program: Program) -> Carried | None:
    """The body of a parallel loop, or of a program, as one that carries values; None where it is none."""
    loops = [k for k, step in enumerate(body) if isinstance(step, Loop)]
    if len(loops) != 1:
        return None
    (at,) = loops
    loop = body[at]
    if not isinstance(loop, Loop) or loop.parallel or loop.guard or len(loop.body) != 1:
        return None
    begin, end = _operations(body[:at]), _operations(body[at + 1 :])
    inner = _operations(loop.body)
    if begin is None or end is None or inner is None:
        return None
    (step,) = inner
    every = (*begin, step, *end)
    own = frozenset(
        op.operands[stage.output]
        for op in every
        for stage in op.stages
        if program.tensors[op.operands[stage.output]].role == "scratch"
    )
    if not _alone(every, own, program) or not _in_order(begin, step, end, own):
        return None
    used: set[int] = set()  # what is read before it is made again
    for op in (step, *end):
        fresh: set[int] = set()
        for stage in op.stages:
            used |= {op.operands[o] for o in stage.inputs} - fresh
            fresh.add(op.operands[stage.output])
    return Carried(rows, loop, begin, step, end, own, tuple(sorted(used & own)))


def _operations(steps: Sequence[Step]) -> tuple[MergedOp, ...] | None:
    """Operations at one point each; None where some are more than that."""
    found = []
    for step in steps:
        if not isinstance(step, MergedOp) or step.guard or any(mode.extent > 1 for mode in step.modes):
            return None
        kinds = {stage.kind for stage in step.stages}
        if not kinds or not kinds <= KNOWN - MONOIDS.keys() or any(stage.reads_output for stage in step.stages):
            return None
        found.append(step)
    return tuple(found)


def _alone(every: Sequence[MergedOp], own: frozenset[int], program: Program) -> bool:
    """Whether no other operation of the program touches what is carried."""
    here = sum(
        not own.isdisjoint(op.operands[o] for o in (*stage.inputs, stage.output)) for op in every for stage in op.stages
    )
    names = {program.tensors[j].name for j in own}
    return here == sum(not names.isdisjoint(operands_of(one, program)) for one in program.primitives)


def _in_order(begin: Sequence[MergedOp], step: MergedOp, end: Sequence[MergedOp], own: frozenset[int]) -> bool:
    """Whether memory is read by steps alone, each before it writes, and written by the last stage of a step or end."""

    def reads(op: MergedOp) -> set[int]:
        return {op.operands[o] for stage in op.stages for o in stage.inputs} - own

    def writes(op: MergedOp) -> list[int]:
        return [k for k, stage in enumerate(op.stages) if op.operands[stage.output] not in own]

    if any(reads(op) or writes(op) for op in begin) or any(reads(op) for op in end):
        return False
    written = {op.operands[op.stages[k].output] for op in (step, *end) for k in writes(op)}
    last = all(writes(op) in ([], [len(op.stages) - 1]) for op in (step, *end))
    still = not any(step.offsets[o] for o, j in enumerate(step.operands) if j in own)
    return last and still and written.isdisjoint(reads(step))


def side_by_side(carried: Carried, elements: Sequence[Element]) -> bool:
    """Whether the rows lie side by side in every operand that moves along them."""
    rows, used = carried.rows, (carried.step, *carried.end)
    if rows is None or rows.extent < 2:
        return False
    memory = {j for op in used for j in op.operands} - carried.own
    written = {op.operands[stage.output] for op in used for stage in op.stages} - carried.own
    return all(rows.strides[j] in (0, elements[j].width_bytes) for j in memory) and all(
        rows.strides[j] for j in written
    )


def _strides(carried: Carried) -> tuple[int, ...]:
    """Bytes from row to row per tensor, of rows side by side."""
    return carried.rows.strides if carried.rows is not None else ()


# ---- one vector of rows ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Vectors:
    """The values of some vectors of rows, by tensor: one each, or one for all where every row has the same.

    Args:
        registers: what computes.
        carried: what is computed.
        elements: of the program's tensors.
        alike: tensors that are the same in every row.
        count: of vectors.
        held: (tensor, vector) -> the value; of what is alike, vector 0 has it.
        truths: as `held`, of comparisons: one bit per lane.
    """

    registers: Registers
    carried: Carried
    elements: Sequence[Element]
    alike: frozenset[int]
    count: int
    held: dict[tuple[int, int], str] = field(default_factory=dict)
    truths: dict[tuple[int, int], str] = field(default_factory=dict)

    def run(self, op: MergedOp, places: Sequence[Sequence[str]], mask: str | None) -> None:
        """All stages of an operation.

        Args:
            places: per vector, the address of every operand.
            mask: of the rows that there are, in the last vector.
        """
        lanes, seen = self.registers.lanes, dict[tuple[int, int], str]()
        for stage in op.stages:
            j = op.operands[stage.output]
            for u in range(1 if j in self.alike else self.count):
                inputs = [self._value(op, o, u, places, mask, seen) for o in stage.inputs]
                if stage.kind in COMPARISONS and j in self.carried.own and j not in self.carried.kept:
                    self.truths[j, u] = self._compared(op, stage, u, inputs)
                    continue
                value = self._computed(op, stage, u, inputs)
                if j in self.carried.own:
                    self.held[j, u] = value
                else:
                    one = self.elements[j]
                    vectors.store(self.registers.f, one, lanes, value, places[u][stage.output], mask)

    def _value(
        self,
        op: MergedOp,
        o: int,
        u: int,
        places: Sequence[Sequence[str]],
        mask: str | None,
        seen: dict[tuple[int, int], str],
    ) -> tuple[str, Element]:
        """An operand: carried, seen in this step, or read."""
        j = op.operands[o]
        u = 0 if j in self.alike else u
        one, f, lanes = self.elements[j], self.registers.f, self.registers.lanes
        if (j, u) in self.truths:
            truth = self.truths[j, u]
            return f.value(f"zext {vector('i1', lanes)} {truth} to {vector(one.memory, lanes)}"), one
        if (j, u) in self.held:
            return self.held[j, u], one
        if (o, u) not in seen:
            if _strides(self.carried)[j]:
                seen[o, u] = vectors.load(f, one, lanes, places[u][o], mask)
            else:
                seen[o, u] = vectors.broadcast(f, one.memory, lanes, f.load(one.memory, places[u][o], one.width_bytes))
        return seen[o, u], one

    def _bits(self, op: MergedOp, o: int, u: int) -> str | None:
        """A truth as one bit per lane, where it was formed here."""
        j = op.operands[o]
        return self.truths.get((j, 0 if j in self.alike else u))

    def _compared(self, op: MergedOp, stage: Stage, u: int, inputs: Sequence[tuple[str, Element]]) -> str:
        f, lanes = self.registers.f, self.registers.lanes
        bits = [self._bits(op, o, u) for o in stage.inputs]
        if stage.kind == "Less" and None not in bits:  # of truths: the second and not the first
            full = vector("i1", lanes)
            no = f.value(f"xor {full} {bits[0]}, {_every(lanes)}")
            return f.value(f"and {full} {no}, {bits[1]}")
        return self.registers.truth(stage.kind, inputs)

    def _computed(self, op: MergedOp, stage: Stage, u: int, inputs: Sequence[tuple[str, Element]]) -> str:
        one = self.elements[op.operands[stage.output]]
        if stage.kind == "Select":
            bits = self._bits(op, stage.inputs[0], u)
            if bits is not None:
                return self.registers.select(bits, inputs[1][0], inputs[2][0], vector(one.memory, self.registers.lanes))
        return self.registers.value(stage.kind, inputs, one, "", stage.number)


def _every(lanes: int) -> str:
    return "true" if lanes == 1 else "<" + ", ".join(["i1 true"] * lanes) + ">"


def _alike(carried: Carried) -> frozenset[int]:
    """The tensors that hold the same in every row."""
    every = (*carried.begin, carried.step, *carried.end)
    same = {j for op in every for j in op.operands if j in carried.own or not _strides(carried)[j]}
    while True:
        other = {
            op.operands[stage.output]
            for op in every
            for stage in op.stages
            if not {op.operands[o] for o in stage.inputs} <= same
        }
        if not other & same:
            return frozenset(same)
        same -= other


# ---- all rows of a task ----------------------------------------------------------------------------------------------


def emit_carried(
    module: Module,
    target: Target,
    name: str,
    carried: Carried,
    elements: Sequence[Element],
    sized: Callable[[Axis], Axis],
) -> None:
    """Add the function ``name(env, thread, tensors.., count)``: so many rows side by side, `ROWS` at most.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        carried: what each row does.
        elements: of the program's tensors.
        sized: an axis as code sees it.
    """
    bases = [("ptr", f"b{k}") for k in range(len(elements))]
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), *bases, ("i64", "count")])
    _Task(f, target, carried, elements, sized(carried.loop.axis)).emit()
    f.ret()


class _Task:
    """The code of a task: what each row carries lies in a buffer per tensor, and of what is alike two."""

    def __init__(self, f: Function, target: Target, carried: Carried, elements: Sequence[Element], along: Axis) -> None:
        self.f, self.carried, self.elements, self.along = f, carried, elements, along
        self.alike = _alike(carried)
        widths = [4 if not elements[j].plain else elements[j].width_bytes for j in carried.step.operands]
        self.lanes = target.lanes(max(widths))
        self.registers = Registers(f, target, self.lanes)
        rows = {j: self.lanes if j in self.alike else ROWS for j in carried.kept}
        self.buffers = {j: f.slot("i8", rows[j] * elements[j].width_bytes) for j in carried.kept}
        self.next = {j: f.slot("i8", self.lanes * elements[j].width_bytes) for j in carried.kept if j in self.alike}

    def emit(self) -> None:
        """Everything."""
        f, carried = self.f, self.carried
        self._rows(self._begun)
        f.loop(0, self.along.extent, self._run, step=_RUN)
        if carried.end:
            self._rows(self._ended)

    def _rows(self, body: Callable[[Value, int, str | None], None]) -> None:
        """All rows: some vectors at a time, then one at a time, then a masked one."""
        f, lanes = self.f, self.lanes
        many, whole = (f.sub("%count", f.rem("%count", size)) for size in (_VECTORS * lanes, lanes))
        f.loop(0, many, lambda index, _: body(index, _VECTORS, None), step=_VECTORS * lanes)
        f.loop(many, whole, lambda index, _: body(index, 1, None), step=lanes)

        def rest() -> None:
            mask = vectors.mask_below(f, str(f.sub("%count", whole)), lanes) if lanes > 1 else None
            body(whole, 1, mask)

        f.when(f.compare("sgt", "%count", whole), rest)

    def _vectors(self, count: int) -> _Vectors:
        return _Vectors(self.registers, self.carried, self.elements, self.alike, count)

    def _places(self, op: MergedOp, index: Value, count: int, along: Value | None) -> list[list[str]]:
        """Per vector the addresses of operands, at an element of the rows or at none."""
        f, strides = self.f, _strides(self.carried)
        found = []
        for u in range(count):
            place = []
            for o, j in enumerate(op.operands):
                if j in self.carried.own:
                    place.append("null")
                    continue
                at = f.add(f.mul(f.add(index, u * self.lanes), strides[j]), op.offsets[o])
                if along is not None:
                    at = f.add(at, f.add(f.mul(along, self.along.strides[j]), self.along.offsets[j]))
                place.append(f.at(f"%b{j}", at))
            found.append(place)
        return found

    def _each(self, count: int) -> list[tuple[int, int]]:
        """(tensor, vector) of all that is kept."""
        return [(j, u) for j in self.carried.kept for u in range(1 if j in self.alike else count)]

    def _held(self, j: int, u: int, index: Value) -> str:
        if j in self.alike:
            return self.buffers[j]
        return self.f.at(self.buffers[j], self.f.mul(self.f.add(index, u * self.lanes), self.elements[j].width_bytes))

    def _begun(self, index: Value, count: int, mask: str | None) -> None:
        values = self._vectors(count)
        for op in self.carried.begin:
            values.run(op, self._places(op, index, count, None), mask)
        for j, u in self._each(count):
            if (j, u) in values.held:
                one = self.elements[j]
                vectors.store(self.f, one, self.lanes, values.held[j, u], self._held(j, u, index))

    def _run(self, first: Value, _: list[str]) -> None:
        """Some elements of all rows."""
        f = self.f
        last = f.min(f.add(first, _RUN), self.along.extent)
        self._rows(partial(self._passed, first, last))
        for j in self.next:
            one = self.elements[j]
            value = vectors.load(f, one, self.lanes, self.next[j])
            vectors.store(f, one, self.lanes, value, self.buffers[j])

    def _passed(self, first: Value, last: Value, index: Value, count: int, mask: str | None) -> None:
        """Some elements of a few vectors of rows."""
        f, lanes, each, op = self.f, self.lanes, self._each(count), self.carried.step
        types = [vector(self.elements[j].memory, lanes) for j, _ in each]
        start = [vectors.load(f, self.elements[j], lanes, self._held(j, u, index)) for j, u in each]

        def turn(k: Value, carry: list[str]) -> list[Value]:
            values = self._vectors(count)
            values.held.update(zip(each, carry, strict=True))
            values.run(op, self._places(op, index, count, k), mask)
            return [values.held[one] for one in each]

        found = f.loop(first, last, turn, carry=list(zip(types, start, strict=True)), nonempty=True)
        for (j, u), value in zip(each, found, strict=True):
            at = self.next[j] if j in self.alike else self._held(j, u, index)
            vectors.store(f, self.elements[j], lanes, str(value), at)

    def _ended(self, index: Value, count: int, mask: str | None) -> None:
        values = self._vectors(count)
        for j, u in self._each(count):
            values.held[j, u] = vectors.load(self.f, self.elements[j], self.lanes, self._held(j, u, index))
        for op in self.carried.end:
            values.run(op, self._places(op, index, count, None), mask)
