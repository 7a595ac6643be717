"""One point of a chain of operations: all of its stages on one element, or on a vector of them, in registers.

The accumulators of a chain's reductions are carried from point to point: for each reduction, one register per result,
of the type that short pieces are formed in; between pieces, of the type that these are combined in. See
`tileweave.backends.cpu.maps.elementwise` for the loops around a point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, element, vector
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.meanings import Registers, total_of, wide_of
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import MONOIDS, MergedOp, Stage
from tileweave.teir.merged.order import Pairs

Carried = list[tuple[str, str]]
"""Types and values that a loop carries on."""


@dataclass(frozen=True, slots=True)
class Points:
    """How to run the stages of an operation at a point.

    Args:
        target: the processor.
        op: whose stages run one after the other.
        elements: one per operand.
        rivals: operands that may lie in the same memory.
        strides: of every operand along the axis of the vectors.
        totals: operands that take totals, in FP64, of sums whose pieces are formed in FP32.
        across: whether the results of reductions move along the axis of the vectors.
        pieces: whether reductions have more than one piece.
    """

    target: Target
    op: MergedOp
    elements: tuple[Element, ...]
    rivals: Pairs
    strides: tuple[int, ...]
    totals: frozenset[int] = frozenset()
    across: bool = False
    pieces: bool = False

    @property
    def reductions(self) -> list[Stage]:
        """The stages that take elements into results."""
        return [stage for stage in self.op.stages if stage.kind in MONOIDS]

    @property
    def results(self) -> list[int]:
        """The operands that reductions write."""
        return [stage.output for stage in self.reductions]

    def literal(self, f: Function, pointers: list[str]) -> None:
        """One element, every result brought to memory before the next."""
        sums = self.point(f, pointers, 1, None, self.found(f, pointers, 1, None))
        self.keep(f, pointers, dict(zip(self.results, sums, strict=True)), 1, None)

    def point(
        self,
        f: Function,
        pointers: list[str],
        lanes: int,
        mask: str | None,
        carried: list[str],
        *,
        streaming: bool = False,
        given: Mapping[int, str] = MappingProxyType({}),
    ) -> list[str]:
        """All stages on one element or one vector of them, ``given`` operands being read already.

        Takes and returns the accumulators; an empty one begins with the element.
        """
        registers = Registers(f, self.target, lanes)
        held = dict(given)
        waiting: list[int] = []

        def write(o: int) -> None:
            waiting.remove(o)
            self.store(f, o, held[o], pointers[o], lanes, mask, streaming=streaming)

        def read(o: int) -> tuple[str, Element]:
            if o not in held:
                for other in [w for w in waiting if (w, o) in self.rivals]:
                    write(other)  # it may lie in the same memory
                held[o] = self.load(f, o, pointers[o], lanes, mask)
            return held[o], self.elements[o]

        result, k = list(carried), 0
        for stage in self.op.stages:
            inputs = [read(o) for o in stage.inputs]
            if stage.kind in MONOIDS:
                result[k] = self.taken(registers, stage, inputs, carried[k], mask)
                k += 1
                continue
            o = stage.output
            old = read(o)[0] if stage.reads_output else ""
            value = registers.value(stage.kind, inputs, self.elements[o], old, stage.number)
            for other in [h for h in held if h != o and (o, h) in self.rivals]:
                if other in waiting:
                    write(other)
                del held[other]
            held[o] = value
            if o not in waiting:
                waiting.append(o)
        for o in [w for w in waiting if w not in self.op.dropped]:
            write(o)
        return result

    def still(self, f: Function, pointers: list[str], lanes: int) -> dict[int, str]:
        """What stands still along the vectors' axis and is written by nobody, read once.

        So what is computed of it alone, as a divisor's inverse, leaves the loop.
        """
        stored = {stage.output for stage in self.op.stages}
        read = {o for stage in self.op.stages for o in stage.inputs} - stored
        alone = [o for o in sorted(read) if not any((o, w) in self.rivals or (w, o) in self.rivals for w in stored)]
        return {o: self.load(f, o, pointers[o], lanes, None) for o in alone if self.strides[o] == 0 and lanes > 1}

    def taken(
        self,
        registers: Registers,
        stage: Stage,
        inputs: list[tuple[str, Element]],
        old: str,
        mask: str | None,
    ) -> str:
        """An accumulator with one more element; masked lanes keep theirs."""
        wide = self.piece(stage)
        if not old:
            new, old = registers.taken(stage.kind, inputs, wide), registers.neutral(MONOIDS[stage.kind], wide)
        elif stage.kind == "Contraction":
            new = registers.multiply_add(inputs, old, wide)
        else:
            new = registers.combined(MONOIDS[stage.kind], old, registers.taken(stage.kind, inputs, wide), wide)
        return new if mask is None else registers.select(mask, new, old, vector(wide.memory, registers.lanes))

    # ---- accumulators ------------------------------------------------------------------------------------------------

    def piece(self, stage: Stage) -> Element:
        """The type in which a short piece of a reduction is formed."""
        if stage.output in self.totals:
            return element("FP32")
        wide = [wide_of(self.elements[o]) for o in (stage.output, *stage.inputs)]
        return max(wide, key=lambda one: one.width_bytes) if wide[0].floating else wide[0]

    def total(self, stage: Stage) -> Element:
        """The type in which the pieces of a reduction are combined."""
        return total_of(MONOIDS[stage.kind], self.piece(stage)) if self.pieces else self.piece(stage)

    def total_lanes(self, stage: Stage, lanes: int) -> int:
        """The lanes of a total whose pieces have so many: of one result, no more than fill a register."""
        total = self.total(stage)
        return lanes if self.across or total == self.piece(stage) else min(lanes, self.target.lanes(total.width_bytes))

    def neutral(self, registers: Registers) -> Carried:
        """Type and neutral element of a piece of every reduction."""
        kinds = [(MONOIDS[stage.kind], self.piece(stage)) for stage in self.reductions]
        return [(vector(one.memory, registers.lanes), registers.neutral(monoid, one)) for monoid, one in kinds]

    def neutral_totals(self, f: Function, lanes: int) -> Carried:
        """Type and neutral element of the total of every reduction, for pieces of so many lanes."""
        found = []
        for stage in self.reductions:
            total, count = self.total(stage), self.total_lanes(stage, lanes)
            value = Registers(f, self.target, count).neutral(MONOIDS[stage.kind], total)
            found.append((vector(total.memory, count), value))
        return found

    def joined(self, registers: Registers, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """The pieces of two places as one."""
        return [
            registers.combined(MONOIDS[stage.kind], x, y, self.piece(stage))
            for stage, x, y in zip(self.reductions, a, b, strict=True)
        ]

    def as_one(self, registers: Registers, parts: Sequence[list[str]]) -> list[str]:
        """Pieces of some places in pairs, the pairs in pairs, and so on."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [*(self.joined(registers, a, b) for a, b in pairs), *parts[len(parts) & ~1 :]]
        return parts[0]

    def tree(self, f: Function, places: Sequence[list[str]], lanes: int, mask: str | None) -> list[str]:
        """The elements of some places as one piece."""
        parts, none = list[list[str]](), [""] * len(self.reductions)
        for u, place in enumerate(places):
            parts.append(self.point(f, place, lanes, mask, parts.pop() if u % 2 else none))
        return self.as_one(Registers(f, self.target, lanes), parts)

    def added(self, f: Function, totals: Sequence[str], piece: Sequence[str], lanes: int) -> list[str]:
        """The totals with one more piece."""
        found = []
        for stage, total, value in zip(self.reductions, totals, piece, strict=True):
            count = self.total_lanes(stage, lanes)
            registers, wide = Registers(f, self.target, count), self.total(stage)
            value = self._folded(f, stage, value, self.piece(stage), lanes, count)
            value = registers.convert(value, self.piece(stage), wide)
            found.append(registers.combined(MONOIDS[stage.kind], total, value, wide))
        return found

    def combined(self, f: Function, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Totals of one lane as one."""
        return [
            Registers(f, self.target, 1).combined(MONOIDS[stage.kind], x, y, self.total(stage))
            for stage, x, y in zip(self.reductions, a, b, strict=True)
        ]

    def results_of(self, f: Function, totals: Sequence[str], lanes: int) -> list[str]:
        """The lanes of totals combined, for pieces of so many lanes."""
        return [
            self._folded(f, stage, total, self.total(stage), self.total_lanes(stage, lanes), 1)
            for stage, total in zip(self.reductions, totals, strict=True)
        ]

    def _folded(self, f: Function, stage: Stage, value: str, one: Element, lanes: int, fewest: int) -> str:
        """A vector's lower half combined with the upper one, until there are no more lanes than these."""
        while lanes > fewest:
            full, lanes = vector(one.memory, lanes), lanes // 2
            if lanes == 1:
                halves = [f.value(f"extractelement {full} {value}, i64 {k}") for k in (0, 1)]
            else:
                orders = (", ".join(f"i32 {k + lane}" for lane in range(lanes)) for k in (0, lanes))
                halves = [
                    f.value(f"shufflevector {full} {value}, {full} poison, <{lanes} x i32> <{order}>")
                    for order in orders
                ]
            low, high = halves
            value = Registers(f, self.target, lanes).combined(MONOIDS[stage.kind], low, high, one)
        return value

    def found(
        self, f: Function, pointers: list[str], lanes: int, mask: str | None, *, totals: bool = False
    ) -> list[str]:
        """What the outputs of the reductions hold, as pieces or as totals."""
        registers, values = Registers(f, self.target, lanes), []
        for stage in self.reductions:
            o, one = stage.output, self.total(stage) if totals else self.piece(stage)
            values.append(registers.convert(self.load(f, o, pointers[o], lanes, mask), self.elements[o], one))
        return values

    def keep(
        self,
        f: Function,
        pointers: list[str],
        values: Mapping[int, str],
        lanes: int,
        mask: str | None,
        *,
        totals: bool = False,
    ) -> None:
        """Write pieces or totals to those outputs of reductions that have one here."""
        registers = Registers(f, self.target, lanes)
        for stage in self.reductions:
            o, one = stage.output, self.total(stage) if totals else self.piece(stage)
            if o in values:
                narrow = registers.convert(values[o], one, self.elements[o])
                self.store(f, o, narrow, pointers[o], lanes, mask)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def load(self, f: Function, o: int, pointer: str, lanes: int, mask: str | None) -> str:
        """An operand's element, or a vector of them: dense, standing still, or gathered."""
        one, stride = self.elements[o], self.strides[o] if lanes > 1 else 0
        if lanes > 1 and stride == 0:
            return vectors.broadcast(f, one.memory, lanes, f.load(one.memory, pointer, one.width_bytes))
        if lanes == 1 or stride == one.width_bytes:
            return vectors.load(f, one, lanes, pointer, mask)
        return vectors.gather(f, one, lanes, pointer, stride, mask)

    def store(
        self,
        f: Function,
        o: int,
        value: str,
        pointer: str,
        lanes: int,
        mask: str | None,
        *,
        streaming: bool = False,
    ) -> None:
        """Write an element, or a vector of them: dense or scattered."""
        one = self.elements[o]
        if lanes == 1 or self.strides[o] == one.width_bytes:
            vectors.store(f, one, lanes, value, pointer, mask, streaming=streaming)
        else:
            vectors.scatter(f, one, lanes, value, pointer, self.strides[o], mask)
