"""Places that are data, as code reads them: offsets with checked bounds, of one place or of many at once.

Where vectors multiply numbers of 64 bits, offsets of many places are formed first, in vectors, and brought to memory:
then loads of elements are all that waits, and more of them do so at once. Elements themselves are loaded one by one:
gathers are no faster on processors that load twice per cycle, and much slower where they were mended for safety.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tileweave.backends.cpu.llvm.elements import element, splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.llvm.vectors import AHEAD_BYTES, broadcast, gather, load, prefetch
from tileweave.backends.cpu.target.target import Target

MOST_DIMENSIONS = 4
"""That a place may be in."""
KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4")
"""Types of places."""
EXTENTS, STEPS = (tuple(f"{name}{k}" for k in range(MOST_DIMENSIONS)) for name in ("extent", "step"))
"""Words of an environment that say how long each of these dimensions is, and how far apart its elements are."""
CHUNK = 256
"""Places whose offsets are formed before the first is used: so many stay in the first cache."""
_UNROLLED = 4
"""Places per turn of the loop: each is a chain of a few cycles, and they do not wait for each other."""
_LEAST_LANES = 8
"""With fewer numbers of 64 bits per vector, their products and comparisons would be slower than one by one."""


@dataclass(frozen=True, slots=True)
class PlacesCode:
    """Reads places.

    Args:
        g: where code goes.
        at: where the environment has words by name.
        kind: of the places.
        deep: dimensions of a place.
    """

    g: Function
    at: Mapping[str, int]
    kind: str
    deep: int

    def word(self, name: str) -> str:
        """A word of the environment."""
        return self.g.load("i64", self.g.at("%env", self.at[name]), 8)

    def address(self, name: str) -> str:
        """An address in the environment."""
        return self.g.load("ptr", self.g.at("%env", self.at[name]), 8)

    @property
    def bytes(self) -> int:
        """Of a place."""
        return self.deep * int(self.kind[1:])

    def dimensions(self) -> list[tuple[str, str, str]]:
        """(extent, the last place, step) of each dimension."""
        pairs = [(self.word(EXTENTS[k]), self.word(STEPS[k])) for k in range(self.deep)]
        return [(extent, str(self.g.sub(extent, 1)), step) for extent, step in pairs]

    def offset(self, at: str, dimensions: Sequence[tuple[str, str, str]]) -> tuple[Value, Value]:
        """(bytes from the first element, a number that is not 0 where the place lies outside) of the place there."""
        g, width = self.g, int(self.kind[1:])
        total: Value = 0
        outside: Value = 0
        for k, (extent, last, step) in enumerate(dimensions):
            place = g.load(f"i{8 * width}", g.at(at, k * width), width)
            if width < 8:
                place = g.value(f"{'sext' if self.kind[0] == 'i' else 'zext'} i{8 * width} {place} to i64")
            if self.kind[0] == "i":
                back = g.value(f"and i64 {g.value(f'ashr i64 {place}, 63')}, {extent}")
                place = str(g.add(place, back))
            inside = g.value(f"select i1 {g.compare('ult', place, last)}, i64 {place}, i64 {last}")
            wrong = g.value(f"xor i64 {place}, {inside}")
            outside = wrong if isinstance(outside, int) else g.value(f"or i64 {outside}, {wrong}")
            total = g.add(g.mul(inside, step), total)
        return total, outside

    def several(
        self,
        at: str,
        count: Value,
        dimensions: Sequence[tuple[str, str, str]],
        into: str,
        lanes: int,
        slope: Value = 0,
    ) -> str:
        """`offset` of so many places, brought to memory, and whether one lies outside.

        Args:
            at: where the places are.
            count: of the places.
            dimensions: as `dimensions` says.
            into: where the offsets go, 64 bits each.
            lanes: places per vector.
            slope: bytes that each has more than the one before.
        """
        g, full, truths = self.g, vector("i64", lanes), vector("i1", lanes)
        kind = element(f"INT{8 * int(self.kind[1:])}")
        spread = [tuple(broadcast(g, "i64", lanes, word) for word in words) for words in dimensions]
        sloped = slope != 0 and lanes > 1
        turn = broadcast(g, "i64", lanes, str(g.mul(slope, lanes))) if sloped else ""

        def vector_of(index: Value, carry: list[str]) -> list[Value]:
            total, wrong, outside = carry[1] if sloped else "", "", carry[0]
            prefetch(g, g.at(at, g.add(g.mul(index, self.bytes), AHEAD_BYTES)))
            for k, (extent, last, step) in enumerate(spread):
                begin = g.at(at, g.add(g.mul(index, self.bytes), k * kind.width_bytes))
                dense = self.deep == 1
                place = load(g, kind, lanes, begin) if dense else gather(g, kind, lanes, begin, self.bytes)
                if kind.width_bytes < 8:
                    widened = "sext" if self.kind[0] == "i" else "zext"
                    place = g.value(f"{widened} {vector(kind.memory, lanes)} {place} to {full}")
                if self.kind[0] == "i":
                    sign = g.value(f"ashr {full} {place}, {splat('i64', lanes, '63')}")
                    place = g.value(f"add {full} {place}, {g.value(f'and {full} {sign}, {extent}')}")
                below = g.value(f"icmp ult {full} {place}, {last}")
                inside = g.value(f"select {truths} {below}, {full} {place}, {full} {last}")
                lost = g.value(f"xor {full} {place}, {inside}")
                wrong = g.value(f"or {full} {wrong}, {lost}") if wrong else lost
                moved = g.value(f"mul {full} {inside}, {step}")
                total = g.value(f"add {full} {total}, {moved}") if total else moved
            g.store(full, total, g.at(into, g.mul(index, 8)), 8)
            found = g.value(f"or {full} {outside}, {wrong}")
            return [found, g.value(f"add {full} {carry[1]}, {turn}")] if sloped else [found]

        def single(index: Value) -> Value:
            offset, outside = self.offset(g.at(at, g.mul(index, self.bytes)), dimensions)
            g.store("i64", g.add(offset, g.mul(index, slope)), g.at(into, g.mul(index, 8)), 8)
            return outside

        # vectors of places that lie apart end where the last of them does
        whole = g.value(f"and i64 {count}, {-lanes}")
        carried: list[tuple[str, Value]] = [(full, "zeroinitializer")]
        if sloped:
            numbers = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
            each = broadcast(g, "i64", lanes, str(slope))
            carried.append((full, g.value(f"mul {full} {each}, {numbers}")))
        some = g.loop(0, whole, vector_of, step=lanes, carry=carried)[0]
        name = f"llvm.vector.reduce.or.v{lanes}i64"
        g.module.declare(name, f"i64 {{}}({full})")
        return str(unrolled(g, whole, count, single, g.value(f"call i64 @{name}({full} {some})")))

    def fault(self, outside: Value) -> None:
        """Say that a place was outside, if one was."""
        g = self.g
        g.when(g.compare("ne", outside, 0), lambda: g.store("i64", 1, g.at("%env", self.at["fault"]), 8))


def at_once(
    here: PlacesCode,
    places: str,
    begin: Value,
    end: Value,
    dimensions: Sequence[tuple[str, str, str]],
    target: Target,
    one: Callable[[Value, Value], None],
    outside: str,
) -> str:
    """Do something for each place from ``begin`` to ``end`` and its offset, and say whether one lies outside.

    Offsets of many places are formed first, in vectors: then loads are all that waits for memory, and more of them do
    so at once.
    """
    g, lanes = here.g, target.lanes(8)
    room = g.slot("i64", CHUNK)

    def few() -> list[str]:
        def alone(index: Value) -> Value:
            offset, wrong = here.offset(g.at(places, g.mul(index, here.bytes)), dimensions)
            one(index, offset)
            return wrong

        return [str(unrolled(g, begin, end, alone, outside))]

    if lanes < _LEAST_LANES:
        return few()[0]

    def many() -> list[str]:
        def chunk(start: Value, carry: list[str]) -> list[Value]:
            count = g.min(g.sub(end, start), CHUNK)
            own = g.at(places, g.mul(start, here.bytes))
            wrong = here.several(own, count, dimensions, room, lanes)

            def held(index: Value) -> None:
                one(g.add(start, index), g.load("i64", g.at(room, g.mul(index, 8)), 8))

            unrolled(g, 0, count, held, 0)
            return [g.value(f"or i64 {carry[0]}, {wrong}")]

        return [str(g.loop(begin, end, chunk, step=CHUNK, carry=[("i64", outside)])[0])]

    return str(g.choose(g.compare("slt", g.sub(end, begin), 2 * lanes), ["i64"], few, many)[0])


def unrolled(
    g: Function,
    begin: Value,
    end: Value,
    one: Callable[[Value], Value | None],
    outside: Value,
    before: Callable[[Value], object] = lambda index: None,
) -> Value:
    """Do something for each number, and ``before`` several of them, and collect by ``or`` what says that a place lies
    outside."""

    def several(index: Value, carry: list[str]) -> list[Value]:
        found = list(carry)
        before(index)
        for k in range(_UNROLLED):
            wrong = one(g.add(index, k))
            found = found if wrong is None else [g.value(f"or i64 {found[0]}, {wrong}")]
        return list(found)

    def single(index: Value, carry: list[str]) -> list[Value]:
        wrong = one(index)
        return list(carry) if wrong is None else [g.value(f"or i64 {carry[0]}, {wrong}")]

    length = g.sub(end, begin)
    whole = g.add(begin, g.sub(length, g.value(f"and i64 {length}, {_UNROLLED - 1}")))
    found = g.loop(begin, whole, several, step=_UNROLLED, carry=[("i64", outside)])
    return g.loop(whole, end, single, carry=[("i64", found[0])])[0]


Dimensions = Sequence[tuple[str, str, str]]
"""What `PlacesCode.dimensions` says."""
Use = tuple[Callable[[Value, Value], None], Callable[[Value], object]]
"""What is done for each place and its offset, and before several of them."""
OfPlaces = Callable[[str, Value], Use]
"""(where offsets count from, the number of the first place) -> what is done for each place from there on and its
offset, and what is done before several of them."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of places, each for the elements of a line of its own; several lines lie in one block.

    Args:
        here: reads the places.
        target: the processor.
        places: where they are.
        blocks: where the first block is.
        low: the first place of each line that is wanted.
        high: the one behind the last.
    """

    here: PlacesCode
    target: Target
    places: str
    blocks: str
    low: Value
    high: Value

    def each(self, first: Value, end: Value, use: OfPlaces) -> Value:
        """Do something for each place of some lines, and say whether one lies outside."""
        g, count = self.here.g, self.here.word("count")
        short = g.both(g.compare("ule", count, CHUNK // 2), g.compare("eq", g.sub(self.high, self.low), count))
        room = g.slot("i64", CHUNK)
        together = partial(self._together, first, end, use, room)
        return g.choose(short, ["i64"], together, partial(self._apart, first, end, use, room))[0]

    @property
    def _lanes(self) -> int:
        lanes = self.target.lanes(8)
        return lanes if lanes >= _LEAST_LANES else 1

    def _use(
        self, use: Use, at: str, count: Value, formed: str, slope: Value, dimensions: Dimensions, outside: Value
    ) -> Value:
        """Do something for so many places at ``at``, whose offsets are `formed` unless they are read one by one, and
        say whether one of these, or one before, lies outside."""
        here, g = self.here, self.here.g
        one, before = use

        def held(index: Value) -> Value | None:
            if self._lanes > 1:
                one(index, g.add(g.load("i64", g.at(formed, g.mul(index, 8)), 8), g.mul(index, slope)))
                return None
            offset, wrong = here.offset(g.at(at, g.mul(index, here.bytes)), dimensions)
            one(index, g.add(offset, g.mul(index, slope)))
            return wrong

        return unrolled(g, 0, count, held, outside, before)

    def _together(self, first: Value, end: Value, use: OfPlaces, room: str) -> list[Value]:
        """Offsets of several lines are formed at once."""
        here, g = self.here, self.here.g
        count, side, per, outer_bytes = (here.word(name) for name in ("count", "side", "per", "outer_bytes"))
        dimensions, many = here.dimensions(), g.div(CHUNK, count)

        def group(number: Value, carry: list[str]) -> list[Value]:
            lines, done = g.min(g.sub(end, number), many), g.mul(number, count)
            at = g.at(self.places, g.mul(done, here.bytes))
            outside: Value = carry[0]
            if self._lanes > 1:
                wrong = here.several(at, g.mul(lines, count), dimensions, room, self._lanes)
                outside = g.value(f"or i64 {outside}, {wrong}")

            def line(which: Value, carry: list[str]) -> list[Value]:
                within, block, outside = carry
                passed = g.mul(which, count)
                own, formed = g.at(at, g.mul(passed, here.bytes)), g.at(room, g.mul(passed, 8))
                found = self._use(use(block, g.add(done, passed)), own, count, formed, side, dimensions, outside)
                more = g.add(within, 1)
                over = g.compare("eq", more, per)  # a division per line would take longer than a short one
                following = g.value(f"select i1 {over}, ptr {g.at(block, outer_bytes)}, ptr {block}")
                return [g.value(f"select i1 {over}, i64 0, i64 {more}"), following, found]

            inside = list(zip(("i64", "ptr", "i64"), [*carry[1:], outside], strict=True))
            *where, found = g.loop(0, lines, line, carry=inside)
            return [found, *where]

        block = g.at(self.blocks, g.mul(g.div(first, per), outer_bytes))
        carry: list[tuple[str, Value]] = [("i64", 0), ("i64", g.rem(first, per)), ("ptr", block)]
        return g.loop(first, end, group, step=many, carry=carry)[:1]

    def _apart(self, first: Value, end: Value, use: OfPlaces, room: str) -> list[Value]:
        """Strips of all lines of a block, one after the other, so that what lines share stays in the caches."""
        here, g = self.here, self.here.g
        names = ("count", "side", "per", "outer_bytes", "strip")
        count, side, per, outer_bytes, strip = (here.word(name) for name in names)
        dimensions, at_once = here.dimensions(), self._lanes > 1

        def block(number: Value, carry: list[str]) -> list[Value]:
            begin, before = g.at(self.blocks, g.mul(number, outer_bytes)), g.mul(number, per)
            top, bottom = most(g, first, before), g.min(end, g.add(before, per))

            def strip_of(start: Value, carry: list[str]) -> list[Value]:
                last = g.min(g.add(start, strip), self.high)

                def line(which: Value, carry: list[str]) -> list[Value]:
                    done = g.mul(which, count)

                    def chunk(index: Value, carry: list[str]) -> list[Value]:
                        passed, size = g.add(done, index), g.min(g.sub(last, index), CHUNK)
                        at = g.at(self.places, g.mul(passed, here.bytes))
                        outside: Value = carry[0]
                        if at_once:
                            wrong = here.several(at, size, dimensions, room, self._lanes, side)
                            outside = g.value(f"or i64 {outside}, {wrong}")
                        own = use(g.at(begin, g.mul(index, side)), passed)
                        return [self._use(own, at, size, room, 0 if at_once else side, dimensions, outside)]

                    return g.loop(start, last, chunk, step=CHUNK, carry=[("i64", carry[0])])

                return g.loop(top, bottom, line, carry=[("i64", carry[0])])

            return g.loop(self.low, self.high, strip_of, step=strip, carry=[("i64", carry[0])])

        behind = g.div(g.add(end, g.sub(per, 1)), per)
        return g.loop(g.div(first, per), behind, block, carry=[("i64", 0)])


def share(g: Function, whole: Value, tasks: Value, task: Value = "%task") -> tuple[Value, Value]:
    """The first and the last of so many, exclusive, that a task does."""
    return g.div(g.mul(task, whole), tasks), g.div(g.mul(g.add(task, 1), whole), tasks)


def most(g: Function, a: Value, b: Value) -> str:
    """The greater of two signed numbers."""
    return g.value(f"select i1 {g.compare('sgt', a, b)}, i64 {a}, i64 {b}")


def emit_tasks(f: Function, tasks: str) -> None:
    """Run ``rows`` as so many tasks."""
    f.when(
        f.compare("sgt", tasks, 1),
        lambda: run_tasks(f, "rows", "%env", tasks, "0"),
        lambda: f.call("rows", "ptr %env", "i64 0", "i64 0"),
    )
