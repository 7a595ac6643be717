"""Running sums, products and extremes: each element takes in all before it, a vector of them at a time.

A loop holds one number, takes an element into it, and writes it: so each element waits for the one before. Here the
lanes of a vector first take in those below them, in steps of 1, 2, 4, ..; what all earlier vectors come to is added
then, so that from vector to vector only one addition waits for another. The order of a sum depends on the extents and
the processor, never on threads.

Source: own; the steps are those of Hillis and Steele.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.meanings import HEAVY, Registers
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import plain
from tileweave.teir.merged.form import Loop, MergedOp
from tileweave.teir.merged.order import Pairs

_MONOIDS = {
    "Add": ("sum", -0.0),
    "Mul": ("product", 1.0),
    "Max": ("max", -math.inf),
    "Min": ("min", math.inf),
    "LogAddExp": ("logaddexp", -math.inf),
}
"""What takes in an element -> its monoid, and the number that changes none, not even the sign of a zero."""
_VECTORS = 4
"""Vectors per turn of the loop."""


@dataclass(frozen=True, slots=True)
class Running:
    """A loop that takes elements into one number, and writes it each time.

    Args:
        op: what it runs: the number is operand 1, elements are operand 0, and operand 2 is written.
        strides: of the operands along the loop, in bytes.
    """

    op: MergedOp
    strides: tuple[int, ...]

    @property
    def kind(self) -> str:
        """What takes in an element."""
        return self.op.stages[0].kind


def running_of(loop: Loop, target: Target, elements: tuple[Element, ...], rivals: Pairs) -> Running | None:
    """The running sum or product that a loop is; None where it is none.

    Args:
        loop: of the merged form.
        target: the processor.
        elements: of the operands of the one operation in it.
        rivals: of its operands.
    """
    op = loop.body[0]
    if not isinstance(op, MergedOp) or len(loop.body) != 1 or op.guard or op.dropped or len(op.stages) != 2:
        return None
    take, write = op.stages
    alike = (take.inputs, take.output, write.inputs, write.output) == ((0, 1), 1, (1,), 2)
    if not alike or take.kind not in _MONOIDS or write.kind != "Copy" or any(mode.extent > 1 for mode in op.modes):
        return None
    strides = tuple(loop.axis.strides[j] for j in op.operands)
    one = elements[0]
    held = strides[1] == 0 and strides[2] != 0 and not {(0, 1), (1, 2)} & rivals
    if not held or set(elements) != {one} or not one.plain or target.lanes(one.width_bytes) < 2:
        return None
    return Running(op, tuple(map(plain, strides)))


def emit_running(module: Module, target: Target, name: str, running: Running, element: Element) -> None:
    """Add the function ``name(env, thread, p0, p1, p2, count)``: so many elements."""
    lanes = target.lanes(element.width_bytes)
    parameters = [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(3)), ("i64", "count")]
    f = Function(module, name, parameters)
    full = vector(element.memory, lanes)
    monoid, neutral = _MONOIDS[running.kind]
    strides = running.strides
    x, held, out = (f.at(f"%p{k}", offset) for k, offset in enumerate(running.op.offsets))

    def some(index: Value, count: int, lanes: int, before: str, mask: str | None = None) -> str:
        """So many vectors of lanes behind what every lane of ``before`` holds; all up to the last, in every lane."""
        r, type = Registers(f, target, lanes), vector(element.memory, lanes)
        start = r.fill(neutral, element)
        ends = ", ".join([f"i32 {lanes - 1}"] * lanes)
        places = [
            [f.at(p, f.mul(f.add(index, u * lanes), s)) for p, s in ((x, strides[0]), (out, strides[2]))]
            for u in range(count)
        ]
        sums = []
        for place, _ in places:
            dense = lanes == 1 or strides[0] == element.width_bytes
            if dense:
                value = vectors.load(f, element, lanes, place, mask, start)
            else:
                value = vectors.gather(f, element, lanes, place, strides[0], mask)
                value = value if mask is None else r.select(mask, value, start, type)
            for step in (1 << k for k in range(lanes.bit_length() - 1)):
                order = ", ".join(f"i32 {lane - step if lane >= step else lanes + lane}" for lane in range(lanes))
                below = f.value(f"shufflevector {type} {value}, {type} {start}, <{lanes} x i32> <{order}>")
                value = r.combined(monoid, below, value, element)
            sums.append(value)
        for value, (_, place) in zip(sums, places, strict=True):
            found, last = r.combined(monoid, before, value, element), value
            if lanes > 1:
                last = f.value(f"shufflevector {type} {value}, {type} poison, <{lanes} x i32> <{ends}>")
            before = r.combined(monoid, before, last, element)
            if lanes == 1 or strides[2] == element.width_bytes:
                vectors.store(f, element, lanes, found, place, mask)
            else:
                vectors.scatter(f, element, lanes, found, place, strides[2], mask)
        return before

    def over(begin: Value, end: Value, count: int, before: str) -> str:
        def turn(index: Value, carry: list[str]) -> list[Value]:
            return [some(index, count, lanes, carry[0])]

        return str(f.loop(begin, end, turn, step=count * lanes, carry=[(full, before)])[0])

    before = vectors.broadcast(f, element.memory, lanes, f.load(element.memory, held, element.width_bytes))
    if running.kind in HEAVY:  # some hundred instructions each, so that they stand here once, under a mask

        def masked(index: Value, carry: list[str]) -> list[Value]:
            mask = vectors.mask_below(f, str(f.sub("%count", index)), lanes)
            return [some(index, 1, lanes, carry[0], mask)]

        before = str(f.loop(0, "%count", masked, step=lanes, carry=[(full, before)])[0])
        f.store(element.memory, f.value(f"extractelement {full} {before}, i64 0"), held, element.width_bytes)
        f.ret()
        return
    many, whole = (f.sub("%count", f.rem("%count", size)) for size in (_VECTORS * lanes, lanes))
    before = over(many, whole, 1, over(0, many, _VECTORS, before))
    end: Value = f.value(f"extractelement {full} {before}, i64 0")

    def part(size: int, begin: Value, end: Value) -> list[Value]:
        found = some(begin, 1, size, vectors.broadcast(f, element.memory, size, str(end)))
        found = found if size == 1 else f.value(f"extractelement <{size} x {element.memory}> {found}, i64 0")
        return [found, f.add(begin, size)]

    for size in (1 << k for k in reversed(range(lanes.bit_length() - 1))):  # parts of a vector take less than masks
        more, kept = f.compare("ne", f.value(f"and i64 %count, {size}"), 0), [end, whole]
        end, whole = f.choose(more, [element.memory, "i64"], partial(part, size, whole, end), partial(list, kept))
    f.store(element.memory, end, held, element.width_bytes)
    f.ret()
