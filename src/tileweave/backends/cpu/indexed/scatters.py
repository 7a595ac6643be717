"""Elements written, added, .. at places that are data: the inverse of `tileweave.backends.cpu.indexed.takes`.

What a task writes, no other one writes: it has blocks of its own, or it looks at all places and takes those in its part
of a block. So updates of one element come in the order of the places, as in NumPy. What lies outside is left out, and
the call says so (`Bound.fault`).

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.places import (
    EXTENTS,
    KINDS,
    STEPS,
    Lines,
    PlacesCode,
    at_once,
    emit_tasks,
    share,
    unrolled,
)
from tileweave.backends.cpu.indexed.takes import APART_BYTES, WIDTHS, Walk, walk_along, walk_at, write_walk
from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, emit_copy, passes_caches, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = (
    *("x", "places", "updates", "out", "tasks", "parts", "extent", "block_bytes", "past"),
    *("outer", "outer_bytes", "count", "length", "side", "per", "strip", "fault", *EXTENTS, *STEPS),
)
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_TYPES = {"f4": "float", "f8": "double", **{f"{k}{n}": f"i{8 * n}" for k in "iu" for n in WIDTHS}}
COPIED_BYTES = 16 * 1024
"""Blocks are copied so many bytes at a time, and then updated where they are still in the first cache."""
PART_BYTES = 64
"""Rows as long as a cache line are worth that each thread looks at all places for those of its part."""


def _walk(operator: str, how: Mapping[str, Any], x: Array, places: Array, updates: Array, out: Array) -> Walk | None:
    if x.dtype != out.dtype or x.dtype != updates.dtype or x.dtype.hasobject or not out.size or not places.size:
        return None
    if places.dtype.str[1:] not in KINDS or not all(one.dtype.isnative for one in (places, x)):
        return None
    if not all(one.flags.c_contiguous and one.flags.aligned for one in (x, places, updates, out)) or not updates.size:
        return None
    if how["reduction"] != "none" and x.dtype.str[1:] not in _TYPES:
        return None
    if operator == "scatter_nd":
        return walk_at(out, places, how["axis"], places.shape[-1], True)
    beside = [k for k in range(x.ndim) if k != how["axis"]]
    if x.itemsize not in WIDTHS or any(x.shape[k] != places.shape[k] for k in beside):
        return None
    return walk_along(out, places, how["axis"])


def scatterable(operator: str, how: Mapping[str, Any], x: Array, places: Array, updates: Array, out: Array) -> bool:
    """Whether there is code for ``scatter`` or ``scatter_nd`` with its parameters: dense arrays, not empty."""
    return _walk(operator, how, x, places, updates, out) is not None


class Scatter:
    """Updates at places, for `NativeCalls`; `scatterable` says whether there is one.

    Args:
        operator: ``scatter`` or ``scatter_nd``.
        how: its parameters.
        threads: that it may use.
    """

    def __init__(self, operator: str, how: Mapping[str, Any], threads: int) -> None:
        self.operator = operator
        self.how = how
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The first array with the third at the places of the second, into the fourth: the first one's very memory, or
        memory that is shared with none of them."""
        x, places, updates, out = arrays
        walk = _walk(self.operator, self.how, x, places, updates, out)
        if walk is None:
            problem = f"{x.dtype}{x.shape} is not updated at places {places.shape}"
            raise BackendError(f"Scatter({self.operator!r}, ..)", problem)
        kind, how = x.dtype.str[1:], self.how["reduction"]
        if how == "none":
            kind = f"i{walk.length}" if walk.length in WIDTHS else ""
        code = _code(walk.rows, kind, how, places.dtype.str[1:], len(walk.extents), _single(walk, x), host())
        bound = Bound(code, _BYTES, 0, [_AT[name] for name in ("x", "places", "updates", "out")])
        bound.fault = _AT["fault"]
        moved = out.nbytes + max(updates.nbytes, 0 if walk.rows else APART_BYTES * updates.size)
        threads = self.threads if moved >= PARALLEL_BYTES else 1
        blocks = walk.outer // walk.per
        parts = threads if blocks < 4 * threads and _pieces(walk) else 1
        groups = max(1, min(blocks, 4 * threads // parts)) if threads > 1 else 1
        write_walk(bound, _AT, walk, groups * parts, arrays)
        block = prod(walk.extents) * (
            walk.length if walk.rows else walk.length * max(1, walk.count if walk.side else 1)
        )
        past = int(passes_caches(x, out))
        for name, word in (("parts", parts), ("extent", prod(walk.extents)), ("block_bytes", block), ("past", past)):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


def _single(walk: Walk, x: Array) -> bool:
    """Whether what a place stands for is one element."""
    return not walk.rows or walk.length == x.itemsize


def _pieces(walk: Walk) -> bool:
    """Whether several tasks may share a block."""
    return walk.length >= PART_BYTES if walk.rows else bool(walk.side) and walk.length * walk.count >= 4 * PART_BYTES


@functools.cache
def _code(rows: bool, kind: str, how: str, places: str, deep: int, single: bool, target: Target) -> Code:
    """The code for a way to update elements of a kind.

    Args:
        rows: as `Walk`.
        kind: of the elements, or of what is moved as one; empty: rows of any bytes.
        how: the reduction.
        places: their kind.
        deep: dimensions of a place.
        single: whether a place stands for one element.
        target: the processor.
    """
    module = Module()
    f = Function(module, "entry", [("ptr", "env")], public=True)
    here = PlacesCode(f, _AT, places, deep)
    begin, dimensions, tasks = here.address("places"), here.dimensions(), here.word("tasks")

    def outside() -> list[Value]:
        many = here.word("count") if rows else f.mul(here.word("count"), here.word("outer"))
        return [unrolled(f, 0, many, lambda k: here.offset(f.at(begin, f.mul(k, here.bytes)), dimensions)[1], 0)]

    # what is written over stays as it is where a place is wrong
    over = f.compare("eq", here.address("x"), here.address("out"), "ptr")
    wrong = f.choose(over, ["i64"], outside, lambda: [0])[0]
    f.when(f.compare("ne", wrong, 0), lambda: here.fault(wrong), lambda: emit_tasks(f, tasks))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    emit_copy(module, target)
    updates = _Updates(g, kind, how, target)
    here = PlacesCode(g, _AT, places, deep)
    if not rows:
        _lines(here, updates, target)
    elif single and updates.width:
        _points(here, updates, target)
    else:
        _rows(here, updates)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


class _Updates:
    """Writes what an update does to elements.

    Args:
        g: where code goes.
        kind: of elements; empty: bytes, which are copied.
        how: the reduction.
        target: the processor.
    """

    def __init__(self, g: Function, kind: str, how: str, target: Target) -> None:
        self.g, self.how = g, how
        self.floats, self.unsigned = kind[:1] == "f", kind[:1] == "u"
        self.type, self.width = _TYPES[kind] if kind else "", int(kind[1:] or 0) if kind else 0
        self.lanes = target.lanes(self.width) if kind else 1

    def copy(self, into: str, source: str, count_bytes: Value) -> None:
        """Copy bytes."""
        past = self.g.load("i64", self.g.at("%env", _AT["past"]), 8)
        self.g.call("copy", f"ptr {into}", f"ptr {source}", f"i64 {count_bytes}", f"i64 {past}")

    def update(self, into: str, source: str, lanes: int = 1) -> None:
        """One element, or a vector of them."""
        type, g = vector(self.type, lanes), self.g
        value = g.load(type, source, self.width)
        if self.how != "none":
            value = self.combined(type, lanes, g.load(type, into, self.width), value)
        g.store(type, value, into, self.width)

    def row(self, into: str, source: str, count_bytes: Value) -> None:
        """A dense row."""
        g = self.g
        if not self.width:
            self.copy(into, source, count_bytes)
        else:
            size = self.lanes * self.width
            whole = g.mul(g.div(count_bytes, size), size)

            def some(lanes: int, at: Value) -> None:
                self.update(g.at(into, at), g.at(source, at), lanes)

            g.loop(0, whole, lambda at, _: some(self.lanes, at), step=size)
            g.loop(whole, count_bytes, lambda at, _: some(1, at), step=self.width)

    def combined(self, type: str, lanes: int, old: str, new: str) -> str:
        """What is there with an update; of numbers and NaN, NaN."""
        g = self.g
        if self.how in ("add", "mul"):
            return g.value(f"{'f' if self.floats else ''}{self.how} {type} {old}, {new}")
        less, truths = self.how == "min", vector("i1", lanes)
        if self.floats:
            before = g.value(f"fcmp {'olt' if less else 'ogt'} {type} {old}, {new}")
            before = g.value(f"or {truths} {before}, {g.value(f'fcmp uno {type} {old}, {old}')}")
        else:
            before = g.value(f"icmp {'u' if self.unsigned else 's'}{'lt' if less else 'gt'} {type} {old}, {new}")
        return g.value(f"select {truths} {before}, {type} {old}, {type} {new}")


def _groups(here: PlacesCode) -> tuple[Value, Value]:
    """(which part of a block a task has, which group of blocks), and of how many there are in all."""
    g = here.g
    parts = here.word("parts")
    return g.rem("%task", parts), g.div("%task", parts)


def _points(here: PlacesCode, updates: _Updates, target: Target) -> None:
    """Elements that lie side by side, of which a task has whole blocks."""
    g, width = here.g, updates.width
    x, places, new, out = (here.address(name) for name in ("x", "places", "updates", "out"))
    count, block_bytes = (here.word(name) for name in ("count", "block_bytes"))
    *before, (extent, last, _) = here.dimensions()
    dimensions, moves = [*before, (extent, last, str(width))], g.compare("ne", x, out, "ptr")

    def block(number: Value, carry: list[str]) -> list[Value]:
        begin = g.mul(number, block_bytes)
        into, own = g.at(out, begin), g.at(new, g.mul(g.mul(number, count), width))
        g.when(moves, lambda: updates.copy(into, g.at(x, begin), block_bytes))

        def one(index: Value, offset: Value) -> None:
            updates.update(g.at(into, offset), g.at(own, g.mul(index, width)))

        return [at_once(here, places, 0, count, dimensions, target, one, carry[0])]

    (outside,) = g.loop(*share(g, here.word("outer"), here.word("tasks")), block, carry=[("i64", 0)])
    here.fault(outside)


def _rows(here: PlacesCode, updates: _Updates) -> None:
    """Rows of a task: those of its blocks whose places are in its part."""
    g = here.g
    x, places, new, out = (here.address(name) for name in ("x", "places", "updates", "out"))
    count, length, block_bytes, extent = (here.word(name) for name in ("count", "length", "block_bytes", "extent"))
    parts, dimensions = here.word("parts"), here.dimensions()
    part, group = _groups(here)
    low, high = (g.mul(edge, length) for edge in share(g, extent, parts, part))
    size, moves = g.sub(high, low), g.compare("ne", x, out, "ptr")

    def block(number: Value, carry: list[str]) -> list[Value]:
        begin = g.mul(number, block_bytes)
        into, own = g.at(out, begin), g.at(new, g.mul(g.mul(number, count), length))
        there = g.at(g.at(x, begin), low)
        g.when(moves, lambda: updates.copy(g.at(into, low), there, size))

        def one(index: Value, carry: list[str]) -> list[Value]:
            offset, outside = here.offset(g.at(places, g.mul(index, here.bytes)), dimensions)
            mine = g.both(g.compare("ult", g.sub(offset, low), size), g.compare("eq", outside, 0))
            g.when(mine, lambda: updates.row(g.at(into, offset), g.at(own, g.mul(index, length)), length))
            return [g.value(f"or i64 {carry[0]}, {outside}")]

        return list(g.loop(0, count, one, carry=[("i64", carry[0])]))

    groups = g.div(here.word("tasks"), parts)
    (outside,) = g.loop(*share(g, here.word("outer"), groups, group), block, carry=[("i64", 0)])
    here.fault(outside)


def _lines(here: PlacesCode, updates: _Updates, target: Target) -> None:
    """Elements of a task: lines of its blocks, or its part of these."""
    g, width = here.g, updates.width
    x, places, new, out = (here.address(name) for name in ("x", "places", "updates", "out"))
    names = ("count", "per", "parts", "block_bytes", "extent")
    count, per, parts, block_bytes, extent = (here.word(name) for name in names)
    part, group = _groups(here)
    low, high = share(g, count, parts, part)
    moves = g.compare("ne", x, out, "ptr")

    def piece(begin: str, there: str, number: Value) -> None:
        at = g.mul(g.add(g.mul(number, count), low), width)
        updates.copy(g.at(begin, at), g.at(there, at), g.mul(g.sub(high, low), width))

    groups, blocks = g.div(here.word("tasks"), parts), g.div(here.word("outer"), per)
    first, end = share(g, blocks, groups, group)
    alone = g.compare("eq", parts, 1)
    many = g.add(g.value(f"select i1 {alone}, i64 {g.div(COPIED_BYTES, block_bytes)}, i64 0"), 1)
    lines = Lines(here, target, places, out, low, high)

    def use(begin: str, number: Value) -> tuple[Callable[[Value, Value], None], Callable[[Value], object]]:
        own = g.at(new, g.mul(number, width))
        return lambda index, offset: updates.update(g.at(begin, offset), g.at(own, g.mul(index, width))), lambda _: None

    def some(number: Value, carry: list[str]) -> list[Value]:
        behind, at = g.min(g.add(number, many), end), g.mul(number, block_bytes)
        begin, there = g.at(out, at), g.at(x, at)

        def whole() -> None:
            updates.copy(begin, there, g.mul(g.sub(behind, number), block_bytes))

        def in_pieces() -> None:
            g.loop(0, extent, lambda k, _: piece(begin, there, k))

        g.when(moves, lambda: g.when(alone, whole, in_pieces))
        wrong = lines.each(g.mul(number, per), g.mul(behind, per), use)
        return [g.value(f"or i64 {carry[0]}, {wrong}")]

    (outside,) = g.loop(first, end, some, step=many, carry=[("i64", 0)])
    here.fault(outside)
