"""A sorting network on columns: as many rows as a vector has lanes, each in a lane of its own.

All comparisons are between vectors, in an order that knows no data. It is Batcher's bitonic sorter with all arrows
down: of two sorted halves of a block the last element meets the first one, then halves of halves meet as they lie,
until they are single vectors. So nothing moves behind the end of a column whose number of elements is no power of two:
what is missing there counts as the greatest. Several of these stages are done on as many vectors as registers hold,
read and written once; the first ones sort blocks of so many by his odd-even merge, which compares less.

Vectors lie with a gap of one behind each so many: else those of one turn would meet in one set of a cache.

Source: own; K. E. Batcher, Sorting networks and their applications, 1968.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tileweave.backends.cpu.llvm.elements import splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.sorting.keys import Keys
from tileweave.backends.cpu.target.target import Target

Pairs = Sequence[tuple[int, int]]


def odd_even(count: int) -> Iterator[tuple[int, int]]:
    """The comparisons of Batcher's odd-even merge sort of a power of two."""
    size = 1
    while size < count:
        gap = size
        while gap:
            for first in range(gap % size, count - gap, 2 * gap):
                for k in range(first, min(first + gap, count - gap)):
                    if k // (2 * size) == (k + gap) // (2 * size):
                        yield k, k + gap
            gap //= 2
        size *= 2


def _cleaning(count: int) -> Iterator[tuple[int, int]]:
    """The comparisons that sort a bitonic sequence of a power of two."""
    gap = count // 2
    while gap:
        yield from ((k, k + gap) for k in range(count) if not k & gap)
        gap //= 2


def _meeting(count: int) -> Iterator[tuple[int, int]]:
    """Those of two sorted halves: the last meets the first, then halves of both halves as they lie."""
    half = count // 2
    yield from ((k, count - 1 - k) for k in range(half))
    for start in (0, half) if half > 1 else ():
        yield from ((start + a, start + b) for a, b in _cleaning(half))


class Network:
    """Writes the function ``columns(base, count)``, which sorts columns of so many records.

    Args:
        module: where it goes.
        keys: how records compare.
        target: the processor.
    """

    def __init__(self, module: Module, keys: Keys, target: Target) -> None:
        self.module, self.keys, self.target = module, keys, target
        self.lanes = target.lanes(keys.bytes)
        self.stages = stages_of(keys, target)
        self.vector_bytes = row_bytes(keys, target)
        self._blocks()
        self._cleaned("ends", 1)
        self._cleaned("parts", None)
        for stages in range(1, self.stages + 1):
            self._met(stages)
        self._columns()

    # ---- addresses ----------------------------------------------------------------------------------------------

    def at(self, f: Function, place: Value) -> Value:
        """Bytes from the beginning of columns to a row of them."""
        if isinstance(place, int):
            return (place + (place >> 2 * self.stages)) * self.vector_bytes
        return f.mul(f.add(place, f.value(f"lshr i64 {place}, {2 * self.stages}")), self.vector_bytes)

    def load(self, f: Function, pointer: str) -> list[str]:
        """A row of records."""
        full, width = vector(self.keys.type, self.lanes), self.lanes * self.keys.bytes
        return [f.load(full, f.at(pointer, k * width), width) for k in range(self.keys.parts)]

    def store(self, f: Function, record: Sequence[str], pointer: str) -> None:
        """Writes a row of records."""
        full, width = vector(self.keys.type, self.lanes), self.lanes * self.keys.bytes
        for k, part in enumerate(record):
            f.store(full, part, f.at(pointer, k * width), width)

    # ---- stages -------------------------------------------------------------------------------------------------

    def _compare(self, f: Function, a: list[str], b: list[str]) -> tuple[list[str], list[str]]:
        """The lesser and the greater of records."""
        keys, full = self.keys, vector(self.keys.type, self.lanes)
        if keys.parts > 1:
            behind = keys.behind(f, self.lanes, a, b)
            return keys.chosen(f, self.lanes, behind, b, a), keys.chosen(f, self.lanes, behind, a, b)
        names = {}
        for name in ("smin", "smax"):
            kind = f"v{self.lanes}{keys.type}" if self.lanes > 1 else keys.type
            names[name] = f"llvm.{name}.{kind}"
            self.module.declare(names[name], f"{full} {{}}({full}, {full})")
        less = f.value(f"call {full} @{names['smin']}({full} {a[0]}, {full} {b[0]})")
        if self.target.vector_bytes == 64:  # one port compares, two do logic
            both = f.value(f"xor {full} {a[0]}, {b[0]}")
            return [less], [f.value(f"xor {full} {both}, {less}")]
        return [less], [f.value(f"call {full} @{names['smax']}({full} {a[0]}, {full} {b[0]})")]

    def _run(self, f: Function, pointers: Sequence[str], pairs: Pairs) -> None:
        held = [self.load(f, pointer) for pointer in pointers]
        for a, b in pairs:
            held[a], held[b] = self._compare(f, held[a], held[b])
        for record, pointer in zip(held, pointers, strict=True):
            self.store(f, record, pointer)

    def _turn(
        self, f: Function, pairs: Pairs, places: Callable[[], list[tuple[str, Value]]], whole: bool, missing: str
    ) -> None:
        """Some stages on rows that are given as (address, place); where not all are there, the others are missing."""
        found = places()
        if whole:
            self._run(f, [pointer for pointer, _ in found], pairs)
            return
        pointers = []
        for pointer, place in found:
            there = f.compare("slt", place, "%count")
            pointers.append(f.value(f"select i1 {there}, ptr {pointer}, ptr {missing}"))
        self._run(f, pointers, pairs)

    def _missing(self, f: Function) -> str:
        """A row behind all others."""
        slot = f.slot(vector(self.keys.type, self.lanes), self.keys.parts)
        self.store(f, [splat(self.keys.type, self.lanes, self.keys.last)] * self.keys.parts, slot)
        return slot

    def _blocks(self) -> None:
        """Sorts blocks of as many rows as a turn takes."""
        f = Function(self.module, "blocks", [("ptr", "base"), ("i64", "count")])
        size, missing = 1 << self.stages, self._missing(f)
        pairs = list(odd_even(size))

        def block(first: Value, _: object, whole: bool = True) -> None:
            base = f.at("%base", self.at(f, first))
            self._turn(
                f,
                pairs,
                lambda: [(f.at(base, k * self.vector_bytes), f.add(first, k)) for k in range(size)],
                whole,
                missing,
            )

        full = f.mul(f.div("%count", size), size)
        f.loop(0, full, block, step=size)
        f.when(f.compare("slt", full, "%count"), lambda: block(full, None, False))
        f.ret()

    def _cleaned(self, name: str, gap: int | None) -> None:
        """Stages within blocks, from rows that are so many turns' rows apart on; the gap is a parameter, or 1."""
        parameters = [("ptr", "base"), ("i64", "count"), *([("i64", "gap")] if gap is None else [])]
        f = Function(self.module, name, parameters)
        width: Value = gap or "%gap"
        missing, pairs = self._missing(f), list(_cleaning(1 << self.stages))
        block, step = f.mul(width, 1 << self.stages), self._step(f, width)

        def turns(first: Value, whole: bool) -> None:
            base = f.at("%base", self.at(f, first))

            def turn(k: Value, _: object) -> None:
                begin, place = f.at(base, self.at(f, k)), f.add(first, k)
                self._turn(
                    f, pairs, lambda: self._spread(f, begin, step, place, width, 1 << self.stages), whole, missing
                )

            f.loop(0, width, turn)

        full = f.mul(f.div("%count", block), block)
        f.loop(0, full, lambda first, _: turns(first, True), step=block)
        f.when(f.compare("slt", full, "%count"), lambda: turns(full, False))
        f.ret()

    def _step(self, f: Function, gap: Value) -> Value:
        """Bytes between the rows of a turn: the gaps in memory are within their blocks, or as many in each."""
        return self.at(f, gap)

    def _spread(
        self, f: Function, begin: str, step: Value, place: Value, gap: Value, count: int
    ) -> list[tuple[str, Value]]:
        """Rows that lie evenly."""
        return [(f.at(begin, f.mul(step, k)), f.add(place, f.mul(gap, k))) for k in range(count)]

    def _met(self, stages: int) -> None:
        """The first stages of blocks of ``size`` rows, whose halves are sorted."""
        f = Function(self.module, f"met{stages}", [("ptr", "base"), ("i64", "count"), ("i64", "size")])
        missing, pairs = self._missing(f), list(_meeting(1 << stages))
        gap, half = f.value(f"lshr i64 %size, {stages}"), f.value("lshr i64 %size, 1")
        step, many = self._step(f, gap), 1 << (stages - 1)

        def turns(first: Value, whole: bool) -> None:
            middle = f.add(first, half)
            low, high = (f.at("%base", self.at(f, start)) for start in (first, middle))

            def turn(k: Value, _: object) -> None:
                other = f.sub(f.sub(gap, 1), k)
                begins = ((low, first, k), (high, middle, other))

                def places() -> list[tuple[str, Value]]:
                    rows = list[tuple[str, Value]]()
                    for begin, start, index in begins:
                        at = f.at(begin, self.at(f, index))
                        rows += self._spread(f, at, step, f.add(start, index), gap, many)
                    return rows

                self._turn(f, pairs, places, whole, missing)

            f.loop(0, gap, turn)

        full = f.mul(f.div("%count", "%size"), "%size")
        f.loop(0, full, lambda first, _: turns(first, True), step="%size")
        # without a second half, the last block is sorted
        f.when(f.compare("slt", f.add(full, half), "%count"), lambda: turns(full, False))
        f.ret()

    def _columns(self) -> None:
        """All stages, block by block of twice as many rows."""
        f, stages = Function(self.module, "columns", [("ptr", "base"), ("i64", "count")]), self.stages
        self.module.declare("llvm.ctlz.i64", "i64 {}(i64, i1)")
        f.call("blocks", "ptr %base", "i64 %count")
        zeros = f.value(f"call i64 @llvm.ctlz.i64(i64 {f.sub('%count', 1)}, i1 false)")

        def level(number: Value, _: object) -> None:
            size = f.value(f"shl i64 1, {number}")
            first = f.add(f.rem(f.sub(number, 1), stages), 1)
            for k in range(1, stages + 1):
                f.when(f.compare("eq", first, k), partial(f.call, f"met{k}", "ptr %base", "i64 %count", f"i64 {size}"))

            def clean(_: Value, carried: list[str]) -> list[Value]:
                f.call("parts", "ptr %base", "i64 %count", f"i64 {carried[0]}")
                return [f.value(f"lshr i64 {carried[0]}, {stages}")]

            gap = f.value(f"lshr i64 {size}, {f.add(first, stages)}")
            f.loop(1, f.div(f.sub(number, first), stages), clean, carry=[("i64", gap)])
            f.call("ends", "ptr %base", "i64 %count")

        f.loop(stages + 1, f.sub(65, zeros), level)
        f.ret()


def stages_of(keys: Keys, target: Target) -> int:
    """How many stages are done at once: half of the registers hold records."""
    return (target.registers // 2 // keys.parts).bit_length() - 1


def row_bytes(keys: Keys, target: Target) -> int:
    """Bytes of a row of records."""
    return target.lanes(keys.bytes) * keys.bytes * keys.parts


def columns_bytes(keys: Keys, target: Target, count: int) -> int:
    """Memory that columns of so many records take, up to whole tiles of as many rows as there are lanes."""
    lanes = target.lanes(keys.bytes)
    count = -(-count // lanes) * lanes
    return (count + (count >> 2 * stages_of(keys, target)) + 1) * row_bytes(keys, target)
