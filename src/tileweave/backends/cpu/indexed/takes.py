"""Elements at places that are data: one piece of code for any sizes, as of `tileweave.backends.cpu.moves`.

Places count from the end where they are negative. Where one lies outside, some other element is taken for it, and the
call says so (`Bound.fault`), so that no memory is read that is not the array's.

A place stands for a dense row, in one dimension or several (`take`, `gather_nd`), or for one element
(`take_along_axis`).

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.llvm.elements import element, splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES, run_tasks
from tileweave.backends.cpu.llvm.vectors import AHEAD_BYTES, broadcast, gather, load, prefetch
from tileweave.backends.cpu.moves import HEAD, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import LINE_BYTES, address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
APART_BYTES = 32
"""What an element that lies anywhere counts as where it is asked whether threads share the work: some 2 ns each."""
MOST_DIMENSIONS = 4
"""That a place may be in."""
KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4")
"""Types of places."""
WIDTHS = (1, 2, 4, 8)
"""Bytes of elements that are moved as numbers."""
_UNROLLED = 4
"""Places per turn of the loop: each is a chain of a few cycles, and they do not wait for each other."""
EXTENTS, STEPS = (tuple(f"{name}{k}" for k in range(MOST_DIMENSIONS)) for name in ("extent", "step"))
"""Words of an environment that say how long each of these dimensions is, and how far apart its elements are."""
_CHUNK = 256
"""Places whose offsets are formed before the first is used: so many stay in the first cache."""
_LEAST_LANES = 4
"""With fewer numbers of 64 bits per vector, their products and comparisons would be slower than one by one."""
_OFFSET = element("INT64")
_WORDS = (
    *("x", "places", "out", "tasks", "outer", "outer_bytes", "count", "length", "side", "per", "fault"),
    *(*EXTENTS, *STEPS),
)
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_WORK = 16
"""Where an environment names the working memory."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How places go through an array of ``outer`` blocks.

    Args:
        rows: whether a place stands for a dense row; else for one element.
        outer: blocks: those of the dimensions in front of the places', or lines of elements.
        outer_bytes: of the array between blocks.
        per: lines that lie in one block, one behind the other in the places; 1 for rows.
        count: places of a block, or elements of a line.
        extents: of the dimensions that a place is in.
        steps: bytes between neighbours in these.
        shared: whether all blocks have the same places.
        length: bytes of a row, or of an element.
        side: bytes in the array between the elements of a line.
    """

    rows: bool
    outer: int
    outer_bytes: int
    per: int
    count: int
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    shared: bool
    length: int
    side: int = 0


def together(array: Array) -> tuple[int, int] | None:
    """(points, bytes from one to the next) where all dimensions walk as one; None where they do not."""
    found: tuple[int, int] | None = None
    for n, stride in zip(array.shape, array.strides, strict=True):
        if n == 1:
            continue
        if found is not None and found[1] != n * stride:
            return None
        found = (n if found is None else found[0] * n, stride)
    return found or (1, 0)


def _front(x: Array, rank: int) -> Array:
    """The first elements along the leading dimensions."""
    return x[(slice(None),) * rank + (0,) * (x.ndim - rank)]


def walk_at(x: Array, places: Array, first: int, deep: int, shared: bool) -> Walk | None:
    """The walk of places in ``deep`` dimensions from ``first`` on; None where rows are not dense.

    Args:
        x: where elements are.
        places: [places.., deep], behind the dimensions in front where those are not `shared`.
        first: the first dimension that places are in.
        deep: how many there are.
        shared: whether all blocks have the same places.
    """
    if not x.size or not 0 < deep <= MOST_DIMENSIONS or not x[(0,) * (first + deep)].flags.c_contiguous:
        return None
    blocks = together(_front(x, first))
    if blocks is None:
        return None
    count = places.size // deep // (1 if shared else max(blocks[0], 1))
    extents, steps = x.shape[first : first + deep], x.strides[first : first + deep]
    row = x.itemsize * prod(x.shape[first + deep :])
    return Walk(True, blocks[0], blocks[1], 1, count, extents, steps, shared, row)


def walk_along(x: Array, places: Array, axis: int) -> Walk | None:
    """The walk of elements that have places of their own along a dimension."""
    if not x.size or x.ndim != places.ndim:
        return None
    seen = x[tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(places.shape))]
    blocks, line = together(_front(seen, axis)), together(seen[(0,) * (axis + 1)])
    if blocks is None or line is None:
        return None
    extent, step, many = (x.shape[axis],), (x.strides[axis],), places.shape[axis]
    if line[0] == 1 and blocks[0] == 1:
        return Walk(True, 1, 0, 1, many, extent, step, True, x.itemsize)
    if line[0] == 1:
        return Walk(False, blocks[0], blocks[1], 1, many, extent, step, False, x.itemsize)
    return Walk(False, blocks[0] * many, blocks[1], many, line[0], extent, step, False, x.itemsize, line[1])


_WALKS: dict[str, Callable[[Array, Array, Mapping[str, Any]], Walk | None]] = {
    "take": lambda x, places, how: walk_at(x, places, how["axis"], 1, True),
    "take_along_axis": lambda x, places, how: walk_along(x, places, how["axis"]),
    "gather_nd": lambda x, places, how: walk_at(x, places, how["batch"], places.shape[-1], not how["batch"]),
}


def takeable(operator: str, how: Mapping[str, Any], x: Array, places: Array, out: Array) -> bool:
    """Whether there is code for an operator of `_WALKS` and its parameters: dense rows and places, not none."""
    return _walk(operator, how, x, places, out) is not None


def _walk(operator: str, how: Mapping[str, Any], x: Array, places: Array, out: Array) -> Walk | None:
    known = x.dtype == out.dtype and not x.dtype.hasobject and places.dtype.str[1:] in KINDS and out.size
    if not known or not places.dtype.isnative or not (places.flags.c_contiguous and out.flags.c_contiguous):
        return None
    if not all(one.flags.aligned for one in (x, places, out)):
        return None
    found = _WALKS[operator](x, places, how)
    return found if found is None or found.rows or found.length in WIDTHS else None


class Take:
    """Elements at places, for `NativeCalls`; `takeable` says whether there is one.

    Args:
        operator: ``take``, ``take_along_axis`` or ``gather_nd``.
        how: its parameters.
        threads: that it may use.
    """

    def __init__(self, operator: str, how: Mapping[str, Any], threads: int) -> None:
        self.operator = operator
        self.how = how
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """Elements of the first array at the places of the second, into the third, which shares no memory with them."""
        x, places, out = arrays
        walk = _walk(self.operator, self.how, x, places, out)
        if walk is None:
            problem = f"{x.dtype}{x.shape} is not taken by rows to {out.shape}"
            raise BackendError(f"Take({self.operator!r}, ..)", problem)
        width = walk.length if walk.length in WIDTHS else 0
        before = walk.rows and walk.shared and walk.outer > 1 and width > 0
        code = _code(walk.rows, width, places.dtype.str[1:], len(walk.extents), walk.shared, before, host())
        positions = [_AT[name] for name in ("x", "places", "out")]
        bound = Bound(code, _BYTES, 8 * walk.count if before else 0, positions)
        bound.fault = _AT["fault"]
        units = walk.outer * walk.count if walk.rows else walk.outer
        moved = units if walk.rows else out.size
        threads = self.threads if max(out.nbytes, APART_BYTES * moved) >= PARALLEL_BYTES else 1
        tasks = min(units, 4 * threads) if threads > 1 else 1
        write_walk(bound, _AT, walk, tasks, arrays)
        run_on_pool(bound, threads)
        return bound


def write_walk(bound: Bound, at: Mapping[str, int], walk: Walk, tasks: int, arrays: Sequence[Array]) -> None:
    """Write what code reads of a walk into its environment, with the addresses of arrays at their positions."""
    for position, array in zip(bound.positions, arrays, strict=True):
        bound.write(position, address_of(array))
    words = {"tasks": tasks, "outer": walk.outer, "outer_bytes": walk.outer_bytes, "count": walk.count, "fault": 0}
    words |= {"length": walk.length, "side": walk.side, "per": walk.per}
    words |= dict(zip(EXTENTS, walk.extents, strict=False)) | dict(zip(STEPS, walk.steps, strict=False))
    for name, word in words.items():
        bound.write(at[name], word)


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

    def several(self, at: str, count: Value, dimensions: Sequence[tuple[str, str, str]], into: str, lanes: int) -> str:
        """`offset` of so many places, brought to memory, and whether one lies outside.

        Args:
            at: where the places are.
            count: of the places.
            dimensions: as `dimensions` says.
            into: where the offsets go, 64 bits each.
            lanes: places per vector.
        """
        g, full, truths = self.g, vector("i64", lanes), vector("i1", lanes)
        kind = element(f"INT{8 * int(self.kind[1:])}")
        spread = [tuple(broadcast(g, "i64", lanes, word) for word in words) for words in dimensions]

        def vector_of(index: Value, carry: list[str]) -> list[Value]:
            total, wrong, outside = "", "", carry[0]
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
            return [g.value(f"or {full} {outside}, {wrong}")]

        def single(index: Value) -> Value:
            offset, outside = self.offset(g.at(at, g.mul(index, self.bytes)), dimensions)
            g.store("i64", offset, g.at(into, g.mul(index, 8)), 8)
            return outside

        if lanes == 1:
            return str(unrolled(g, 0, count, single, 0))
        # vectors of places that lie apart end where the last of them does
        whole = g.value(f"and i64 {count}, {-lanes}")
        (some,) = g.loop(0, whole, vector_of, step=lanes, carry=[(full, "zeroinitializer")])
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
    room = g.slot("i64", _CHUNK)

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
            count = g.min(g.sub(end, start), _CHUNK)
            own = g.at(places, g.mul(start, here.bytes))
            wrong = here.several(own, count, dimensions, room, lanes)

            def held(index: Value) -> None:
                one(g.add(start, index), g.load("i64", g.at(room, g.mul(index, 8)), 8))

            unrolled(g, 0, count, held, 0)
            return [g.value(f"or i64 {carry[0]}, {wrong}")]

        return [str(g.loop(begin, end, chunk, step=_CHUNK, carry=[("i64", outside)])[0])]

    return str(g.choose(g.compare("slt", g.sub(end, begin), 2 * lanes), ["i64"], few, many)[0])


def unrolled(g: Function, begin: Value, end: Value, one: Callable[[Value], Value | None], outside: Value) -> Value:
    """Do something for each number, and collect by ``or`` what says that a place lies outside."""

    def several(index: Value, carry: list[str]) -> list[Value]:
        found = list(carry)
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


@functools.cache
def _code(rows: bool, width: int, kind: str, deep: int, shared: bool, before: bool, target: Target) -> Code:
    """The code for elements or rows of so many bytes, 0 for any number of them.

    Args:
        rows: as `Walk`.
        width: in bytes.
        kind: of the places.
        deep: dimensions of a place.
        shared: as `Walk`.
        before: whether places become offsets first, which all blocks read.
        target: the processor.
    """
    module = Module()
    f = Function(module, "entry", [("ptr", "env")], public=True)
    if before:
        here = PlacesCode(f, _AT, kind, deep)
        places, work = here.address("places"), f.load("ptr", f.at("%env", _WORK), 8)
        dimensions = here.dimensions()

        def one(index: Value) -> Value:
            offset, outside = here.offset(f.at(places, f.mul(index, here.bytes)), dimensions)
            f.store("i64", offset, f.at(work, f.mul(index, 8)), 8)
            return outside

        here.fault(unrolled(f, 0, here.word("count"), one, 0))
    emit_tasks(f, f.load("i64", f.at("%env", _AT["tasks"]), 8))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    module.declare("llvm.memcpy.p0.p0.i64", "void {}(ptr, ptr, i64, i1)")
    (_rows if rows else _elements)(PlacesCode(g, _AT, kind, deep), width, shared, before, target)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


def _rows(here: PlacesCode, width: int, shared: bool, before: bool, target: Target) -> None:
    """The rows of a task."""
    g = here.g
    x, places, out = (here.address(name) for name in ("x", "places", "out"))
    outer, outer_bytes, count, length = (here.word(name) for name in ("outer", "outer_bytes", "count", "length"))
    work, dimensions = g.load("ptr", g.at("%env", _WORK), 8), [] if before else here.dimensions()
    first, end = share(g, g.mul(outer, count), here.word("tasks"))

    def block(number: Value, carry: list[str]) -> list[Value]:
        done = g.mul(number, count)
        begin, own = g.at(x, g.mul(number, outer_bytes)), g.at(places, 0 if shared else g.mul(done, here.bytes))
        to = g.at(out, g.mul(done, width or length))

        def row(index: Value, offset: Value) -> None:
            source, into = g.at(begin, offset), g.at(to, g.mul(index, width or length))
            if width:
                g.store(f"i{8 * width}", g.load(f"i{8 * width}", source, 1), into, 1)
            else:
                g.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {into}, ptr {source}, i64 {length}, i1 false)")

        low, high = most(g, 0, g.sub(first, done)), g.min(count, g.sub(end, done))
        if before:
            unrolled(g, low, high, lambda index: row(index, g.load("i64", g.at(work, g.mul(index, 8)), 8)), 0)
            return [carry[0]]
        return [at_once(here, own, low, high, dimensions, target, row, carry[0])]

    last = g.div(g.add(end, g.sub(count, 1)), count)
    (outside,) = g.loop(g.div(first, count), last, block, carry=[("i64", 0)])
    here.fault(outside)


def _elements(here: PlacesCode, width: int, shared: bool, before: bool, target: Target) -> None:
    """The lines of a task."""
    g, type = here.g, f"i{8 * width}"
    x, places, out = (here.address(name) for name in ("x", "places", "out"))
    names = ("outer", "outer_bytes", "count", "side", "per")
    outer, outer_bytes, count, side, per = (here.word(name) for name in names)
    dimensions = here.dimensions()

    lanes = target.lanes(8) if target.lanes(8) >= _LEAST_LANES else 1
    room = g.slot("i64", _CHUNK)
    first, end = share(g, outer, here.word("tasks"))
    many = most(g, 1, g.div(_CHUNK, count))  # lines whose places fill the room
    # the next block is read through ahead where its places meet most of its cache lines
    sweep = g.div(outer_bytes, count)
    near = g.both(g.compare("ule", sweep, LINE_BYTES), g.compare("eq", per, 1))
    sweep = g.value(f"select i1 {near}, i64 {sweep}, i64 0")

    def group(number: Value, carry: list[str]) -> list[Value]:
        lines = g.min(g.sub(end, number), many)
        done, total = g.mul(number, count), g.mul(lines, count)

        def chunk(start: Value, found: list[str]) -> list[Value]:
            size, before = g.min(g.sub(total, start), _CHUNK), g.add(done, start)
            wrong = here.several(g.at(places, g.mul(before, here.bytes)), size, dimensions, room, lanes)
            length = g.min(size, count)

            def line(which: Value, at: list[str]) -> list[Value]:
                within, begin = at
                passed = g.mul(which, count)

                def one(index: Value) -> None:
                    offset = g.load("i64", g.at(room, g.mul(g.add(passed, index), 8)), 8)
                    moved = g.add(offset, g.mul(g.add(start, index), side))
                    into = g.at(out, g.mul(g.add(g.add(before, passed), index), width))
                    prefetch(g, g.at(into, AHEAD_BYTES), write=True)
                    prefetch(g, g.at(begin, g.add(outer_bytes, g.mul(g.add(start, index), sweep))))
                    g.store(type, g.load(type, g.at(begin, moved), 1), into, 1)

                unrolled(g, 0, length, one, 0)
                more = g.add(within, 1)
                over = g.compare("eq", more, per)  # a division per line would take longer than a short one
                following = g.value(f"select i1 {over}, ptr {g.at(begin, outer_bytes)}, ptr {begin}")
                return [g.value(f"select i1 {over}, i64 0, i64 {more}"), following]

            places_of = list(zip(("i64", "ptr"), carry[1:], strict=True))  # all chunks of a long line begin there
            return [g.value(f"or i64 {found[0]}, {wrong}"), *g.loop(0, lines, line, carry=places_of)]

        return g.loop(0, total, chunk, step=_CHUNK, carry=list(zip(("i64", "i64", "ptr"), carry, strict=True)))

    block = g.at(x, g.mul(g.div(first, per), outer_bytes))
    carry: list[tuple[str, Value]] = [("i64", 0), ("i64", g.rem(first, per)), ("ptr", block)]
    here.fault(g.loop(first, end, group, step=many, carry=carry)[0])
