"""Copies between arrays of any sizes by one piece of code: what paddings and parts of a read are put together with.

Extents and strides lie in the environment of a call, so a further shape costs no compilation. Rows are copied vector by
vector, from the last element on too, element by element where they lie apart, or filled with one element; a short row
takes two vectors that meet in its middle. Large copies are shared among threads by rows.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES, run_tasks
from tileweave.backends.cpu.llvm.vectors import AHEAD_BYTES
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.cpu.target.threads import pool
from tileweave.backends.host import LINE_BYTES
from tileweave.errors import BackendError

Array = NDArray[Any]
RANK = 4
"""Dimensions that are left after neighbours are joined, the rows' own included."""
HEAD = 6
"""Words of an environment before those of a call."""
_SOURCE, _OUT, _TASKS, _ROWS, _LENGTH, _STEP, _OUT_STEP = (8 * (HEAD + k) for k in range(7))
_EXTENTS = 8 * (HEAD + 7)
_SOURCE_STRIDES = _EXTENTS + 8 * (RANK - 1)
_OUT_STRIDES = _SOURCE_STRIDES + 8 * (RANK - 1)
_AHEAD = _OUT_STRIDES + 8 * (RANK - 1), _OUT_STRIDES + 8 * RANK
_PAST = _AHEAD[1] + 8
_BYTES = _PAST + 8
_WIDTHS = {1: "INT8", 2: "INT16", 4: "INT32", 8: "INT64"}
FEW = 1 << 16
"""Elements that lie apart, up to which a loop over them is faster than a step in Python to a kernel made for them."""
NEAR_BYTES = 64
"""Elements of a row that lie so near share cache lines, so that no other order would be faster."""
LONG_BYTES = 1024
"""Dense rows from here on are copied as bytes: how they are shared among threads, and end, asks no row."""
_AT_ONCE = 4
"""Elements that lie apart per turn of their loop."""
Dim = tuple[int, int, int]


def _dims(source: Array, out: Array) -> list[Dim]:
    """(extent, source stride, output stride) per dimension, neighbours that walk alike joined."""
    found: list[Dim] = []
    for n, a, b in zip(out.shape, source.strides, out.strides, strict=True):
        if n == 1:
            continue
        if found and found[-1][1] == n * a and found[-1][2] == n * b:
            found[-1] = (found[-1][0] * n, a, b)
        else:
            found.append((n, a, b))
    return found or [(1, out.itemsize, out.itemsize)]


def movable(source: Array, out: Array) -> bool:
    """Whether there is code for ``out[...] = source``: of one type, and few elements where those of a row lie apart: a
    kernel that goes through blocks moves many of them faster."""
    if source.dtype != out.dtype or source.shape != out.shape or out.size == 0 or source.dtype.hasobject:
        return False
    width = out.itemsize
    dims = _dims(source, out)
    return (
        width in _WIDTHS
        and len(dims) <= RANK
        and (out.size < FEW or (dims[-1][0] > 1 and all(abs(step) <= NEAR_BYTES for step in dims[-1][1:])))
        and all(a.flags.aligned for a in (source, out))
    )


class Move:
    """The copy of one array into another, for `NativeCalls`; `movable` says whether there is one.

    Args:
        threads: that it may use.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The copy of the first array into the second, which shares no memory with it."""
        source, out = arrays
        if not movable(source, out):
            raise BackendError("Move(..)", f"{source.dtype}{source.shape} is not copied by rows to {out.shape}")
        dims = _dims(source, out)
        code = _code(out.itemsize, host())
        bound = Bound(code, _BYTES, 0, (_SOURCE, _OUT))
        outer = [(1, 0, 0)] * (RANK - len(dims)) + dims[:-1]
        rows = int(np.prod([n for n, _, _ in outer]))
        threads = self.threads if out.nbytes >= PARALLEL_BYTES else 1
        words = [source.__array_interface__["data"][0], out.__array_interface__["data"][0]]
        dense = dims[-1][1:] == (out.itemsize,) * 2 and dims[-1][0] * out.itemsize >= LONG_BYTES
        most = 4 * threads if dense else min(rows, 4 * threads)
        words += [most if threads > 1 else 1, rows, *dims[-1]]
        words += [dim[k] for k in range(3) for dim in outer]
        length = dims[-1][0] * out.itemsize  # long rows are asked for so many bytes ahead, short ones so many rows
        rows_on = 0 if length >= 2 * AHEAD_BYTES else -(-AHEAD_BYTES // length)
        onward = AHEAD_BYTES if dims[-1][1] >= 0 else -AHEAD_BYTES  # rows to the left are read downwards
        words += [rows_on * outer[-1][1] or onward, rows_on * outer[-1][2] or AHEAD_BYTES]
        words += [int(passes_caches(source, out))]
        for k, word in enumerate(words):
            bound.write(8 * (HEAD + k), word)
        run_on_pool(bound, threads)
        bound.check = lambda addresses: None
        return bound


def run_on_pool(bound: Bound, threads: int) -> None:
    """Have a call without working memory of its own know the pool."""
    workers = pool(threads)

    def place(memory: int) -> None:
        for k, word in enumerate((workers.address, workers.run, memory, threads, memory, 0)):
            bound.write(8 * k, word)

    bound.place = place


def emit_entry(module: Module, tasks_at: int) -> None:
    """Add ``entry(env)``, which runs ``rows`` as the tasks that the environment counts."""
    f = Function(module, "entry", [("ptr", "env")], public=True)
    tasks = f.load("i64", f.at("%env", tasks_at), 8)
    f.when(
        f.compare("sgt", tasks, 1),
        lambda: run_tasks(f, "rows", "%env", tasks, "0"),
        lambda: f.call("rows", "ptr %env", "i64 0", "i64 0"),
    )
    f.ret()


_TOGETHER = 4
"""Vectors per turn of a dense copy."""


def passes_caches(*arrays: Array) -> bool:
    """Whether a copy among these writes past the caches: they fill most of the last one, which other cores share."""
    return 4 * sum(array.nbytes for array in arrays) > 3 * host().l3_bytes


def emit_copy(module: Module, target: Target) -> None:
    """Add ``copy(into, from, size, past)``: bytes that lie dense, by vectors of which those written are aligned, and
    ``past`` the caches where that is not 0.

    The C library's takes up to twice as long where both begin differently within a cache line, if it copies by a string
    instruction (glibc 2.36 on a Zen 4, from 64 KiB on).
    """
    parameters = [("ptr", "into"), ("ptr", "from"), ("i64", "size"), ("i64", "past")]
    f, width = Function(module, "copy", parameters), target.vector_bytes
    module.declare("llvm.memcpy.p0.p0.i64", "void {}(ptr, ptr, i64, i1)")
    full = vector("i8", width)
    streams = target.has("sse2")

    def vector_of(at: Value, align: int = 1) -> None:
        f.store(full, f.load(full, f.at("%from", at), 1), f.at("%into", at), align)

    def turn(past: bool, at: Value) -> None:
        for begin in range(0, _TOGETHER * width, LINE_BYTES) if past else ():
            vectors.prefetch(f, f.at("%from", f.add(f.add(at, begin), AHEAD_BYTES)))
        values = [f.load(full, f.at("%from", f.add(at, k * width)), 1) for k in range(_TOGETHER)]
        for k, value in enumerate(values):
            to = f.at("%into", f.add(at, k * width))
            f.emit(f"store {full} {value}, ptr {to}, align {width}{', !nontemporal !0' if past else ''}")

    def long() -> None:
        vector_of(0)
        begin = f.sub(width, f.value(f"and i64 {f.value('ptrtoint ptr %into to i64')}, {width - 1}"))
        last = f.sub("%size", width)
        whole = f.add(begin, f.value(f"and i64 {f.sub(last, begin)}, {-_TOGETHER * width}"))

        def turns(past: bool) -> None:
            f.loop(begin, whole, lambda at, _: turn(past, at), step=_TOGETHER * width)
            if past:
                module.declare("llvm.x86.sse.sfence", "void {}()")
                f.emit("call void @llvm.x86.sse.sfence()")

        past = f.compare("ne", "%past", 0) if streams else 0
        f.when(past, partial(turns, True), partial(turns, False))
        f.loop(whole, last, lambda at, _: vector_of(at, width), step=width)
        vector_of(last)

    def short() -> None:
        f.emit("call void @llvm.memcpy.p0.p0.i64(ptr %into, ptr %from, i64 %size, i1 false)")

    f.when(f.compare("ult", "%size", 2 * _TOGETHER * width), short, long)
    f.ret()


@functools.cache
def _code(width: int, target: Target) -> Code:
    one, module = element(_WIDTHS[width]), Module()
    emit_entry(module, _TASKS)
    emit_copy(module, target)
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    source, out, tasks, rows, length, step, out_step, ahead, out_ahead = (
        g.load("ptr" if k < 2 else "i64", g.at("%env", at), 8)
        for k, at in enumerate((_SOURCE, _OUT, _TASKS, _ROWS, _LENGTH, _STEP, _OUT_STEP, *_AHEAD))
    )
    extents, from_strides, to_strides = (
        [g.load("i64", g.at("%env", at + 8 * k), 8) for k in range(RANK - 1)]
        for at in (_EXTENTS, _SOURCE_STRIDES, _OUT_STRIDES)
    )
    near, past = extents[-1], g.load("i64", g.at("%env", _PAST), 8)

    def share(of: Value) -> list[Value]:
        return [g.div(g.mul(task, of), tasks) for task in ("%task", g.add("%task", 1))]

    def each(write: Callable[[str, str, Value], None], first: Value, last: Value) -> Callable[[], None]:
        """Some rows by one way of writing them: what way it is, is asked once."""

        def run(number: Value, digits: list[str]) -> list[Value]:
            begin, end, before = source, out, g.mul(number, near)
            for k, digit in enumerate(digits):
                begin, end = g.at(begin, g.mul(digit, from_strides[k])), g.at(end, g.mul(digit, to_strides[k]))
            low = g.sub(first, before)
            low = g.sub(low, g.min(low, 0))
            high = g.min(g.sub(last, before), near)
            begin, end = g.at(begin, g.mul(low, from_strides[-1])), g.at(end, g.mul(low, to_strides[-1]))

            def row(index: Value, places: list[str]) -> list[Value]:
                write(places[0], places[1], g.add(before, index))
                return [g.at(places[0], from_strides[-1]), g.at(places[1], to_strides[-1])]

            g.loop(low, high, row, carry=[("ptr", begin), ("ptr", end)])
            return _following(g, digits, extents[:-1])

        def all_rows() -> None:
            begin, end = g.div(first, near), g.div(g.sub(g.add(last, near), 1), near)
            digits, rest = list[str](), begin
            for k in reversed(range(RANK - 2)):
                digits.insert(0, str(g.rem(rest, extents[k]) if k else rest))
                rest = g.div(rest, extents[k]) if k else rest
            g.loop(begin, end, run, carry=[("i64", digit) for digit in digits])

        return all_rows

    def sized(size: int, way: _Way) -> None:
        """By vectors of so many elements where a row has so many, else by smaller ones."""
        onward = (ahead, out_ahead) if size == lanes else None
        written = lambda begin, end, _: _row(g, one, length, size, way, onward, begin, end)  # noqa: E731
        long = each(written, *share(rows))
        g.when(g.compare("sge", length, size), long, partial(sized, size // 2, way) if size > 1 else None)

    def as_bytes() -> None:
        """Long dense rows: a task has so many elements, from wherever in a row."""
        begin, end = share(g.mul(rows, length))

        def part(source: str, out: str, row: Value) -> None:
            before = g.mul(row, length)
            low, high = g.sub(begin, before), g.min(g.sub(end, before), length)
            low = g.value(f"select i1 {g.compare('sgt', low, 0)}, i64 {low}, i64 0")
            places = (f"ptr {g.at(place, g.mul(low, width))}" for place in (out, source))
            g.call("copy", *places, f"i64 {g.mul(g.sub(high, low), width)}", f"i64 {past}")

        behind = g.div(g.sub(g.add(end, length), 1), length)
        each(part, g.div(begin, length), behind)()

    lanes = target.lanes(width)
    apart = each(lambda begin, end, _: _elements(g, one, length, (step, out_step), end, begin), *share(rows))
    ways = {0: _Way.SPREAD, -width: _Way.TURNED, width: _Way.DENSE}

    def beside(left: list[int]) -> None:
        if left:
            found: Callable[[], None] = partial(sized, lanes, ways[left[0]])
            if left[0] == width:
                found = partial(g.when, g.compare("sge", length, LONG_BYTES // width), as_bytes, found)
            g.when(g.compare("eq", step, left[0]), found, partial(beside, left[1:]))
        else:
            apart()

    g.when(g.compare("eq", out_step, width), partial(beside, [width, 0, -width]), apart)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


class _Way(Enum):
    """Where the elements of a dense row come from."""

    DENSE = "a row to the right"
    TURNED = "a row to the left"
    SPREAD = "one element"


def _following(g: Function, digits: Sequence[str], extents: Sequence[str]) -> list[Value]:
    """The next digits: divisions, one per digit, would take longer than a short row."""
    found: list[Value] = []
    more: Value = 1
    for k in reversed(range(len(digits))):
        digit = g.add(digits[k], more)
        if k:
            over = g.compare("eq", digit, extents[k])
            found.insert(0, g.value(f"select i1 {over}, i64 0, i64 {digit}"))
            more = g.value(f"zext i1 {over} to i64")
        else:
            found.insert(0, digit)
    return found


def _elements(g: Function, one: Element, length: Value, steps: tuple[Value, Value], out: str, source: str) -> None:
    """One row of elements that lie a step apart, and are written a step apart."""

    def some(count: int) -> Callable[[Value, list[str]], list[Value]]:
        def elements_of(_: Value, places: list[str]) -> list[Value]:  # a product per element would take longer
            begin, end = places
            for _ in range(count):
                g.store(one.memory, g.load(one.memory, begin, one.width_bytes), end, one.width_bytes)
                begin, end = g.at(begin, steps[0]), g.at(end, steps[1])
            return [begin, end]

        return elements_of

    whole = g.mul(g.div(length, _AT_ONCE), _AT_ONCE)
    places = g.loop(0, whole, some(_AT_ONCE), step=_AT_ONCE, carry=[("ptr", source), ("ptr", out)])
    g.loop(whole, length, some(1), carry=[("ptr", str(place)) for place in places])


def _row(
    g: Function, one: Element, length: str, size: int, way: _Way, ahead: tuple[str, str] | None, source: str, out: str
) -> None:
    """One row of at least so many elements, of which the last vector ends with the row: it may meet the one before.

    Without what is to be asked for ``ahead``, it is less than two vectors.
    """
    width, full = one.width_bytes, vector(one.memory, size)
    turned = way is _Way.TURNED
    fill = ""
    if way is _Way.SPREAD:
        fill = vectors.broadcast(g, one.memory, size, g.load(one.memory, source, width))

    def vector_of(index: Value, _: list[str]) -> None:
        at = g.mul(index, width)
        begin = g.sub((1 - size) * width, at) if turned else at
        place, end = g.at(source, begin), g.at(out, at)
        if ahead is not None:
            if way is not _Way.SPREAD:
                vectors.prefetch(g, g.at(place, ahead[0]))
            vectors.prefetch(g, g.at(end, ahead[1]), write=True)
        value = fill or g.load(full, place, width)
        if turned and size > 1:
            value = vectors.reverse(g, one.memory, size, value)
        g.store(full, value, end, width)

    last = g.sub(length, size)
    if ahead is not None:
        g.loop(0, last, vector_of, step=size)
    elif size > 1:
        vector_of(0, [])
    vector_of(last, [])
    if ahead is not None:  # another row may have nothing behind it in the line where it ends
        vectors.prefetch(g, g.at(g.at(out, g.mul(g.sub(length, 1), width)), ahead[1]), write=True)
