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

from tileweave.backends.cpu.indexed.places import (
    CHUNK,
    EXTENTS,
    KINDS,
    MOST_DIMENSIONS,
    STEPS,
    Lines,
    PlacesCode,
    at_once,
    emit_tasks,
    most,
    share,
    unrolled,
)
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.llvm.vectors import AHEAD_BYTES, prefetch
from tileweave.backends.cpu.moves import HEAD, emit_copy, passes_caches, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
APART_BYTES = 32
"""What an element that lies anywhere counts as where it is asked whether threads share the work: some 2 ns each."""
WIDTHS = (1, 2, 4, 8)
"""Bytes of elements that are moved as numbers."""
_WORDS = (
    *(
        "x",
        "places",
        "out",
        "tasks",
        "outer",
        "outer_bytes",
        "count",
        "length",
        "side",
        "per",
        "strip",
        "past",
        "fault",
    ),
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
        bound.write(_AT["past"], int(passes_caches(out, out)))
        run_on_pool(bound, threads)
        return bound


def write_walk(bound: Bound, at: Mapping[str, int], walk: Walk, tasks: int, arrays: Sequence[Array]) -> None:
    """Write what code reads of a walk into its environment, with the addresses of arrays at their positions."""
    for position, array in zip(bound.positions, arrays, strict=True):
        bound.write(position, address_of(array))
    words = {"tasks": tasks, "outer": walk.outer, "outer_bytes": walk.outer_bytes, "count": walk.count, "fault": 0}
    words |= {"length": walk.length, "side": walk.side, "per": walk.per}
    # strips of lines that meet a block larger than the cache meet less of it
    wide = walk.per > 1 and walk.extents[0] * abs(walk.steps[0]) > host().l2_bytes // 2
    words["strip"] = CHUNK if wide else max(walk.count, 1)
    words |= dict(zip(EXTENTS, walk.extents, strict=False)) | dict(zip(STEPS, walk.steps, strict=False))
    for name, word in words.items():
        bound.write(at[name], word)


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
    emit_copy(module, target)
    here = PlacesCode(g, _AT, kind, deep)
    if rows:
        _rows(here, width, shared, before, target)
    else:
        _elements(here, width, target)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


def _rows(here: PlacesCode, width: int, shared: bool, before: bool, target: Target) -> None:
    """The rows of a task."""
    g = here.g
    x, places, out = (here.address(name) for name in ("x", "places", "out"))
    names = ("outer", "outer_bytes", "count", "length", "past")
    outer, outer_bytes, count, length, past = (here.word(name) for name in names)
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
                g.call("copy", f"ptr {into}", f"ptr {source}", f"i64 {length}", f"i64 {past}")

        low, high = most(g, 0, g.sub(first, done)), g.min(count, g.sub(end, done))
        if before:
            unrolled(g, low, high, lambda index: row(index, g.load("i64", g.at(work, g.mul(index, 8)), 8)), 0)
            return [carry[0]]
        return [at_once(here, own, low, high, dimensions, target, row, carry[0])]

    last = g.div(g.add(end, g.sub(count, 1)), count)
    (outside,) = g.loop(g.div(first, count), last, block, carry=[("i64", 0)])
    here.fault(outside)


def _elements(here: PlacesCode, width: int, target: Target) -> None:
    """The lines of a task."""
    g, type = here.g, f"i{8 * width}"
    x, places, out = (here.address(name) for name in ("x", "places", "out"))

    def use(begin: str, number: Value) -> tuple[Callable[[Value, Value], None], Callable[[Value], object]]:
        to = g.at(out, g.mul(number, width))

        def one(index: Value, offset: Value) -> None:
            g.store(type, g.load(type, g.at(begin, offset), 1), g.at(to, g.mul(index, width)), 1)

        return one, lambda index: prefetch(g, g.at(to, g.add(g.mul(index, width), AHEAD_BYTES)), write=True)

    lines = Lines(here, target, places, x, 0, here.word("count"))
    here.fault(lines.each(*share(g, here.word("outer"), here.word("tasks")), use))
