"""The first place of the greatest, or least, element of a row, a vector of its elements at a time.

Every lane keeps the best of its own elements and where the vector began that had it; lanes are compared at the end,
where of equal ones the first place wins. NaN comes before every number, and the first NaN of a lane stays. The last
vectors of a row end where it ends, and take some elements again, which changes nothing.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, element, splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.meanings import Registers, wide_of
from tileweave.backends.cpu.maps.carried import Carried
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import MergedOp, Stage

_VECTORS = 4
"""Vectors per turn of the loop, each with lanes of its own."""
_AHEAD = {"Lowest": ("Greater", "LessEqual"), "Highest": ("Less", "GreaterEqual")}
"""What the best element starts as -> how an element compares with it that is ahead, and one that is not."""


@dataclass(frozen=True, slots=True)
class PlaceOf:
    """What a row is searched for.

    Args:
        x: the tensor.
        x_offset: bytes to its first element.
        out: the tensor that takes the place.
        out_offset: bytes to where it goes.
        number: the type in which elements are counted.
        greatest: whether the greatest element is wanted.
    """

    x: int
    x_offset: int
    out: int
    out_offset: int
    number: str
    greatest: bool


def place_of(carried: Carried, elements: Sequence[Element]) -> PlaceOf | None:
    """The search that a row carries out step by step; None where it does something else."""
    begun = {op.operands[stage.output]: stage for op in carried.begin for stage in op.stages}
    if len(carried.end) != 1 or len(carried.end[0].stages) != 1 or carried.end[0].stages[0].kind != "Cast":
        return None
    end, step = carried.end[0], carried.step
    if len(step.stages) < 4 or len(step.stages[0].inputs) != 2:
        return None
    x, best = (step.operands[o] for o in step.stages[0].inputs)
    place, out = (end.operands[o] for o in (end.stages[0].inputs[0], end.stages[0].output))
    start = begun.get(best)
    if start is None or start.kind not in _AHEAD or x in carried.own:
        return None
    counts = [_tensors(step, stage) for stage in step.stages if stage.kind == "Add"]
    if len(counts) != 1:
        return None
    (number, one, same) = counts[0]
    if len(begun.keys() - {one}) != 3:
        return None
    ahead, behind = _AHEAD[start.kind]
    taken = _tensors(step, step.stages[0])[-1]
    wanted: list[tuple[str, tuple[int, ...]]] = [(ahead, (x, best, taken))]
    if elements[x].floating:
        later = taken
        taken = _tensors(step, step.stages[2])[-1]
        other = _tensors(step, step.stages[1])[-1]
        wanted = [(behind, (x, best, later)), ("Equal", (best, best, other)), ("Less", (later, other, taken))]
    wanted += [("Select", (taken, x, best, best)), ("Select", (taken, number, place, place))]
    wanted.append(("Add", (number, one, number)))
    zeros = all(begun[j].kind == "Fill" and begun[j].number == 0 for j in (place, number) if j in begun)
    found = [(stage.kind, _tensors(step, stage)) for stage in step.stages]
    if found != wanted or same != number or not zeros or not {best, place, number} <= begun.keys():
        return None
    x_offset = next(step.offsets[o] for o, j in enumerate(step.operands) if j == x)
    out_offset = end.offsets[end.stages[0].output]
    return PlaceOf(x, x_offset, out, out_offset, elements[number].name, start.kind == "Lowest")


def _tensors(op: MergedOp, stage: Stage) -> tuple[int, ...]:
    return tuple(op.operands[o] for o in (*stage.inputs, stage.output))


def emit_place(
    module: Module,
    target: Target,
    name: str,
    place: PlaceOf,
    elements: Sequence[Element],
    along: tuple[int, int],
    rows: tuple[int, int],
) -> None:
    """Add the function ``name(env, thread, x, out, rows)``: the place in each of so many rows.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        place: what is wanted.
        elements: of the program's tensors.
        along: the extent of a row, and bytes from one element to the next.
        rows: bytes from row to row, of the operand and of the places.
    """
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), ("ptr", "x"), ("ptr", "out"), ("i64", "rows")])
    row = _Row(f, target, place, elements, along)

    def one(index: Value, _: list[str]) -> None:
        x, out = (f.at(p, f.mul(index, stride)) for p, stride in zip(("%x", "%out"), rows, strict=True))
        row.emit(f.at(x, place.x_offset), f.at(out, place.out_offset))

    f.loop(0, "%rows", one)
    f.ret()


class _Row:
    """The code of a row: accumulators are pairs of a value and the place where its vector began."""

    def __init__(
        self, f: Function, target: Target, place: PlaceOf, elements: Sequence[Element], along: tuple[int, int]
    ) -> None:
        self.f, self.target, self.place = f, target, place
        self.one = elements[place.x]
        self.wide = wide_of(self.one) if self.one.floating else self.one
        self.number = element(place.number)
        self.extent, self.stride = along
        self.lanes = target.lanes(max(self.wide.width_bytes, self.number.width_bytes))
        while self.lanes > self.extent:
            self.lanes //= 2
        self.count = _VECTORS if self.extent >= _VECTORS * self.lanes else 1

    def emit(self, x: str, out: str) -> None:
        """One row."""
        f, lanes, size = self.f, self.lanes, self.count * self.lanes
        start = Registers(f, self.target, lanes).fill(float("-inf" if self.place.greatest else "inf"), self.wide)
        zero = splat(self.number.memory, lanes, "0")
        types = [vector(one.memory, lanes) for one in (self.wide, self.number)] * self.count

        def turn(index: Value, carry: Sequence[str]) -> list[Value]:
            result: list[Value] = []
            at = self._began(index)
            for u in range(self.count):
                value = self._read(x, f.add(index, u * lanes))
                result += self._taken(carry[2 * u : 2 * u + 2], value, at)
            return result

        many = self.extent - self.extent % size
        held = f.loop(0, many, turn, step=size, carry=list(zip(types, [start, zero] * self.count, strict=True)))
        if self.extent % size:
            held = turn(f.sub(self.extent, size), list(map(str, held)))
        f.store("i64", self._first(list(map(str, held))), out, 8)

    def _first(self, held: list[str]) -> str:
        """The first place of the best of all lanes."""
        f, lanes, kind = self.f, self.lanes, self.number.memory
        full, bits = vector(self.wide.memory, lanes), vector("i1", lanes)
        pairs = []
        for u in range(self.count):
            numbered = [str(u * lanes + lane) for lane in range(lanes)]
            by = numbered[0] if lanes == 1 else "<" + ", ".join(f"{kind} {lane}" for lane in numbered) + ">"
            pairs.append([held[2 * u], f.value(f"add {vector(kind, lanes)} {held[2 * u + 1]}, {by}")])
        if not self.wide.floating:
            return self._wide(self._least(pairs))
        nan = [f.value(f"fcmp uno {full} {value}, {value}") for value, _ in pairs]
        some = nan[0]
        for other in nan[1:]:
            some = f.value(f"or {bits} {some}, {other}")
        if lanes > 1:
            some = f.value(f"icmp ne i{lanes} {f.value(f'bitcast {bits} {some} to i{lanes}')}, 0")

        def marked() -> list[str]:
            return [self._wide(self._sooner([(n, place) for n, (_, place) in zip(nan, pairs, strict=True)]))]

        return str(f.choose(some, ["i64"], marked, lambda: [self._wide(self._least(pairs))])[0])

    def _least(self, pairs: Sequence[Sequence[str]]) -> str:
        """The first place of the best values, none of which is NaN."""
        f, lanes = self.f, self.lanes
        best = self._reduced([value for value, _ in pairs], self.wide, greatest=self.place.greatest)
        every = vectors.broadcast(f, self.wide.memory, lanes, best)
        equal = f"{'fcmp oeq' if self.wide.floating else 'icmp eq'} {vector(self.wide.memory, lanes)}"
        return self._sooner([(f.value(f"{equal} {value}, {every}"), place) for value, place in pairs])

    def _sooner(self, marked: Sequence[tuple[str, str]]) -> str:
        """The first of those places that are marked."""
        registers = Registers(self.f, self.target, self.lanes)
        none = registers.fill(float("inf"), self.number)
        full = vector(self.number.memory, self.lanes)
        places = [registers.select(mark, place, none, full) for mark, place in marked]
        return self._reduced(places, self.number, greatest=False)

    def _reduced(self, values: Sequence[str], one: Element, *, greatest: bool) -> str:
        """The greatest or least element of some vectors."""
        f, lanes, found = self.f, self.lanes, list(values)

        def better(a: str, b: str, lanes: int) -> str:
            full = vector(one.memory, lanes)
            kind = f"{'fcmp o' if one.floating else 'icmp s' if one.signed else 'icmp u'}{'gt' if greatest else 'lt'}"
            return Registers(f, self.target, lanes).select(f.value(f"{kind} {full} {a}, {b}"), a, b, full)

        while len(found) > 1:
            half = len(found) // 2
            found = [better(a, b, lanes) for a, b in zip(found[:half], found[half:], strict=True)]
        result = found[0]
        while lanes > 1:
            lanes //= 2
            low, high = (self._half(one.memory, result, lanes, upper) for upper in (0, 1))
            result = better(low, high, lanes)
        return result

    def _wide(self, place: str) -> str:
        if self.number.width_bytes == 8:
            return place
        return self.f.value(f"sext {self.number.memory} {place} to i64")

    def _read(self, x: str, index: Value) -> str:
        f, lanes, one = self.f, self.lanes, self.one
        at = f.at(x, f.mul(index, self.stride))
        if lanes == 1 or self.stride == one.width_bytes:
            value = vectors.load(f, one, lanes, at)
        else:
            value = vectors.gather(f, one, lanes, at, self.stride)
        return Registers(f, self.target, lanes).convert(value, one, self.wide)

    def _began(self, index: Value) -> str:
        """The place of a vector's first element, in every lane."""
        narrow = str(index)
        if self.number.width_bytes < 8 and not isinstance(index, int):
            narrow = self.f.value(f"trunc i64 {index} to {self.number.memory}")
        return vectors.broadcast(self.f, self.number.memory, self.lanes, narrow)

    def _taken(self, pair: Sequence[str], value: str, at: str) -> list[str]:
        """The better of an accumulator and an element that comes later."""
        f, lanes, (best, place) = self.f, self.lanes, pair
        full = vector(self.wide.memory, lanes)
        sign = "gt" if self.place.greatest else "lt"
        if self.wide.floating:
            ahead = f.value(f"fcmp u{sign} {full} {value}, {best}")
            number = f.value(f"fcmp ord {full} {best}, {best}")
            ahead = f.value(f"and {vector('i1', lanes)} {ahead}, {number}")
        else:
            ahead = f.value(f"icmp {'s' if self.wide.signed else 'u'}{sign} {full} {value}, {best}")
        registers = Registers(f, self.target, lanes)
        return [
            registers.select(ahead, value, best, full),
            registers.select(ahead, at, place, vector(self.number.memory, lanes)),
        ]

    def _half(self, kind: str, value: str, lanes: int, upper: int) -> str:
        """The lower or upper lanes."""
        full = vector(kind, 2 * lanes)
        if lanes == 1:
            return self.f.value(f"extractelement {full} {value}, i64 {upper}")
        order = "<" + ", ".join(f"i32 {upper * lanes + lane}" for lane in range(lanes)) + ">"
        return self.f.value(f"shufflevector {full} {value}, {full} poison, <{lanes} x i32> {order}")
