"""Copies between arrays of any sizes by one piece of code: what paddings and parts of a read are put together with.

Extents and strides lie in the environment of a call, so a further shape costs no compilation. Rows are copied vector by
vector, from the last element on too, element by element where they lie apart, or filled with one element; large copies
are shared among threads by rows.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES, run_tasks
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.cpu.target.threads import pool
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
_BYTES = _OUT_STRIDES + 8 * (RANK - 1)
_WIDTHS = {1: "INT8", 2: "INT16", 4: "INT32", 8: "INT64"}
FEW = 1 << 16
"""Elements that lie apart, up to which a loop over them is faster than a step in Python to a kernel made for them."""
NEAR_BYTES = 64
"""Elements of a row that lie so near share cache lines, so that no other order would be faster."""
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
        words += [min(rows, 4 * threads) if threads > 1 else 1, rows, *dims[-1]]
        words += [dim[k] for k in range(3) for dim in outer]
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


@functools.cache
def _code(width: int, target: Target) -> Code:
    one, module = element(_WIDTHS[width]), Module()
    emit_entry(module, _TASKS)
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    source, out, tasks, rows, length, step, out_step = (
        g.load("ptr" if k < 2 else "i64", g.at("%env", at), 8)
        for k, at in enumerate((_SOURCE, _OUT, _TASKS, _ROWS, _LENGTH, _STEP, _OUT_STEP))
    )
    extents, from_strides, to_strides = (
        [g.load("i64", g.at("%env", at + 8 * k), 8) for k in range(RANK - 1)]
        for at in (_EXTENTS, _SOURCE_STRIDES, _OUT_STRIDES)
    )

    first, last = (g.div(g.mul(task, rows), tasks) for task in ("%task", g.add("%task", 1)))

    def each(write: Callable[[str, str], None]) -> Callable[[], None]:
        """All rows by one way of writing them: what way it is, is asked once."""

        def row(_: Value, digits: list[str]) -> list[Value]:
            begin, end = source, out
            for k, digit in enumerate(digits):
                begin, end = g.at(begin, g.mul(digit, from_strides[k])), g.at(end, g.mul(digit, to_strides[k]))
            write(begin, end)
            return _following(g, digits, extents)

        def all_rows() -> None:
            digits, rest = list[str](), first
            for k in reversed(range(RANK - 1)):
                digits.insert(0, str(g.rem(rest, extents[k]) if k else rest))
                rest = g.div(rest, extents[k]) if k else rest
            g.loop(first, last, row, carry=[("i64", digit) for digit in digits])

        return all_rows

    along = partial(_row, g, one, target, length)
    apart = each(lambda begin, end: _elements(g, one, length, (step, out_step), end, begin))
    turned = each(lambda begin, end: along(end, begin, turned=True))
    spread = each(lambda begin, end: along(end, "", g.load(one.memory, begin, width)))
    dense = each(lambda begin, end: along(end, begin))

    def sparse() -> None:
        backwards = partial(g.when, g.compare("eq", step, -width), turned, apart)
        g.when(g.compare("eq", step, 0), spread, backwards)

    def beside() -> None:
        g.when(g.compare("eq", step, width), dense, sparse)

    g.when(g.compare("eq", out_step, width), beside, apart)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


def _following(g: Function, digits: Sequence[str], extents: Sequence[str]) -> list[Value]:
    """The next row's digits: divisions, one per digit, would take longer than a short row."""
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
    g: Function,
    one: Element,
    target: Target,
    length: str,
    out: str,
    source: str,
    fill: str = "",
    turned: bool = False,
) -> None:
    """One row, from where it lies, to the right or to the left of there, or of one element."""
    lanes = target.lanes(one.width_bytes)
    size = lanes * one.width_bytes
    same = vectors.broadcast(g, one.memory, lanes, fill) if fill else ""
    whole = g.div(length, lanes)

    def vector_of(number: Value, _: list[str]) -> None:
        at = g.mul(number, size)
        begin = g.sub(one.width_bytes - size, at) if turned else at
        value = same or g.load(vector(one.memory, lanes), g.at(source, begin), one.width_bytes)
        if turned:
            value = vectors.reverse(g, one.memory, lanes, value)
        g.store(vector(one.memory, lanes), value, g.at(out, at), one.width_bytes)

    g.loop(0, whole, vector_of)
    if turned:
        at = g.mul(whole, lanes)
        rest = partial(_elements, g, one, g.sub(length, at), (str(-one.width_bytes), one.width_bytes))
        rest(g.at(out, g.mul(whole, size)), g.at(source, g.sub(0, g.mul(whole, size))))
        return
    at = g.mul(whole, size)
    mask = vectors.mask_below(g, str(g.sub(length, g.mul(whole, lanes))), lanes)
    value = same or vectors.load(g, one, lanes, g.at(source, at), mask)
    vectors.store(g, one, lanes, value, g.at(out, at), mask)
