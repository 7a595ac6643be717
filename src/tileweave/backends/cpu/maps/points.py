"""One point of a chain of operations: all of its stages on one element, or on a vector of them, in registers.

The accumulators of a chain's reductions are carried from point to point: for each reduction, one register per result,
of the type that sums are formed in. See `tileweave.backends.cpu.maps.elementwise` for the loops around a point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.meanings import Registers, wide_of
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
    """

    target: Target
    op: MergedOp
    elements: tuple[Element, ...]
    rivals: Pairs
    strides: tuple[int, ...]

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

        Takes and returns the accumulators.
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
        wide = wide_of(self.elements[stage.output])
        if stage.kind == "Contraction":
            new = registers.multiply_add(inputs, old, wide)
        else:
            new = registers.combined(MONOIDS[stage.kind], old, registers.taken(stage.kind, inputs, wide), wide)
        return new if mask is None else registers.select(mask, new, old, vector(wide.memory, registers.lanes))

    # ---- accumulators ------------------------------------------------------------------------------------------------

    def neutral(self, registers: Registers) -> Carried:
        """Type and neutral element of every accumulator."""
        carried = []
        for stage in self.reductions:
            wide = wide_of(self.elements[stage.output])
            full = vector(wide.memory, registers.lanes)
            carried.append((full, registers.neutral(MONOIDS[stage.kind], wide)))
        return carried

    def joined(self, registers: Registers, a: list[str], b: list[str]) -> list[str]:
        """The accumulators of two places as one."""
        return [
            registers.combined(MONOIDS[stage.kind], x, y, wide_of(self.elements[stage.output]))
            for stage, x, y in zip(self.reductions, a, b, strict=True)
        ]

    def half(self, f: Function, values: list[str], lanes: int, upper: bool) -> list[str]:
        """The lower or upper lanes of accumulators."""
        kinds = [wide_of(self.elements[o]).memory for o in self.results]
        lanes_wanted = range(lanes, 2 * lanes) if upper else range(lanes)
        result = []
        for kind, value in zip(kinds, values, strict=True):
            full = vector(kind, 2 * lanes)
            if lanes == 1:
                result.append(f.value(f"extractelement {full} {value}, i64 {int(upper)}"))
                continue
            order = "<" + ", ".join(f"i32 {lane}" for lane in lanes_wanted) + ">"
            result.append(f.value(f"shufflevector {full} {value}, {full} poison, <{lanes} x i32> {order}"))
        return result

    def found(self, f: Function, pointers: list[str], lanes: int, mask: str | None) -> list[str]:
        """What the outputs of the reductions hold, as accumulators."""
        registers, values = Registers(f, self.target, lanes), []
        for o in self.results:
            value = self.load(f, o, pointers[o], lanes, mask)
            values.append(registers.convert(value, self.elements[o], wide_of(self.elements[o])))
        return values

    def keep(self, f: Function, pointers: list[str], values: Mapping[int, str], lanes: int, mask: str | None) -> None:
        """Write accumulators to outputs of reductions."""
        registers = Registers(f, self.target, lanes)
        for o, value in values.items():
            narrow = registers.convert(value, wide_of(self.elements[o]), self.elements[o])
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
