"""The first few of each row in order: one piece of code for any sizes, as of `tileweave.backends.cpu.moves`.

A row passes once, a vector of elements at a time, each compared with the worst of the best so far. What is better is
put in its place among these, which are a few vectors in order: lanes behind the place take the one in front of them.
Of equal elements the first stays in front, and NaN is the greatest.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, emit_entry, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = ("x", "out", "tasks", "rows", "count", "extent", "row_bytes")
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_MOST = 4
"""Vectors that hold the best: putting an element among more takes longer than to sort."""
_SCANNED = 32
"""Elements that are compared at once, at most: their truths are bits of one word."""
_TYPES = {"f4": "float", "f8": "double", **{f"{k}{n}": f"i{8 * n}" for k in "iu" for n in (1, 2, 4, 8)}}


def searchable(x: Array, out: Array, axis: int) -> bool:
    """Whether there is code for the first elements along an axis, or their places: dense rows, few of many."""
    if axis != x.ndim - 1 or x.dtype.str[1:] not in _TYPES or not x.dtype.isnative or not out.size:
        return False
    if x.shape[-1] >= 1 << 31 or not out.shape[-1] < x.shape[-1] or not x.flags.aligned or not out.flags.aligned:
        return False
    return out.shape[-1] <= _MOST * host().lanes(x.itemsize) and x.flags.c_contiguous and out.flags.c_contiguous


class Firsts:
    """The first elements along the last dimension, or their places, for `NativeCalls`: see `searchable`.

    Args:
        descending: whether the greatest come first.
        places: whether their places are wanted, as INT64.
        threads: that it may use.
    """

    def __init__(self, descending: bool, places: bool, threads: int) -> None:
        self.descending = descending
        self.places = places
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The first of each row of the first array, into the second, which shares no memory with it."""
        x, out = arrays
        if not searchable(x, out, x.ndim - 1):
            raise BackendError("Firsts(..)", f"{x.dtype}{x.shape} is not searched for {out.shape}")
        count, target = out.shape[-1], host()
        lanes = target.lanes(x.itemsize)
        while lanes > 1 and lanes // 2 >= count:
            lanes //= 2
        code = _code(x.dtype.str[1:], lanes, -(-count // lanes), self.descending, self.places, target)
        bound = Bound(code, _BYTES, 0, [_AT["x"], _AT["out"]])
        rows = prod(x.shape[:-1])
        threads = self.threads if x.nbytes >= PARALLEL_BYTES else 1
        tasks = min(rows, 4 * threads) if threads > 1 else 1
        words = [*map(address_of, arrays), tasks, rows, count, x.shape[-1], x.shape[-1] * x.itemsize]
        for name, word in zip(_WORDS, words, strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


class _Best:
    """How the best so far are held: in the last lanes of some vectors, elements and their places; the first ones rest.

    Args:
        f: where code goes.
        kind: of the elements.
        lanes: of a vector.
        held: vectors of elements, and as many of places.
        descending: whether the greatest are the best.
        resting: how many lanes hold nothing.
    """

    def __init__(self, f: Function, kind: str, lanes: int, held: int, descending: bool, resting: Value) -> None:
        self.f, self.lanes, self.held, self.descending = f, lanes, held, descending
        self.element, self.width = _TYPES[kind], int(kind[1:])
        self.floats, self.unsigned = kind[0] == "f", kind[0] == "u"
        self.types = [vector(self.element, lanes)] * held + [vector("i32", lanes)] * held
        self.resting = resting
        self.rest = self.below(resting)

    def below(self, count: Value) -> list[str]:
        """Truths of the first so many lanes."""
        if self.lanes == 1:
            return [self.f.compare("sgt", count, k) for k in range(self.held)]
        return [
            vectors.mask_below(self.f, str(self.f.sub(count, k * self.lanes)), self.lanes) for k in range(self.held)
        ]

    def stays(self, best: str, x: str, lanes: int) -> str:
        """Where what is held stays in front of another element."""
        f, full = self.f, vector(self.element, lanes)
        if not self.floats:
            order = ("u" if self.unsigned else "s") + ("ge" if self.descending else "le")
            return f.value(f"icmp {order} {full} {best}, {x}")
        order, greatest = ("oge", best) if self.descending else ("ole", x)
        before = f.value(f"fcmp {order} {full} {best}, {x}")
        return f.value(f"or {vector('i1', lanes)} {before}, {f.value(f'fcmp uno {full} {greatest}, {greatest}')}")

    def put(self, values: Sequence[str], x: str, place: str, filled: Sequence[str] | None = None) -> list[str]:
        """What is held with one element more in its place; ``filled`` are the lanes in use, None: all."""
        f, lanes, held, truths = self.f, self.lanes, self.held, vector("i1", self.lanes)
        new = [vectors.broadcast(f, self.element, lanes, x), vectors.broadcast(f, "i32", lanes, place)]
        stay = []
        for k in range(held):
            kept = self.stays(values[k], new[0], lanes)
            kept = kept if filled is None else f.value(f"and {truths} {kept}, {filled[k]}")
            stay.append(f.value(f"or {truths} {kept}, {self.rest[k]}"))
        first = "true" if lanes == 1 else "<i1 true" + ", i1 true" * (lanes - 1) + ">"
        result = []
        for n, type in enumerate(self.types):
            k = n % held
            before = self.behind(truths, stay[k], stay[k - 1] if k else first)
            moved = self.behind(type, values[n], values[n - 1] if k else values[n])
            value = f.value(f"select {truths} {before}, {type} {new[n // held]}, {type} {moved}")
            result.append(f.value(f"select {truths} {stay[k]}, {type} {values[n]}, {type} {value}"))
        return result

    def worst(self, values: Sequence[str]) -> str:
        """The last of the best."""
        if self.lanes == 1:
            return values[self.held - 1]
        last = values[self.held - 1]
        return self.f.value(f"extractelement {self.types[0]} {last}, i64 {self.lanes - 1}")

    def behind(self, type: str, values: str, before: str) -> str:
        """Lanes one further on, the first from the last lane of others."""
        if self.lanes == 1:
            return before
        order = ", ".join(f"i32 {lane}" for lane in (2 * self.lanes - 1, *range(self.lanes - 1)))
        return self.f.value(f"shufflevector {type} {values}, {type} {before}, <{self.lanes} x i32> <{order}>")


@functools.cache
def _code(kind: str, lanes: int, held: int, descending: bool, places: bool, target: Target) -> Code:
    """The code for so many vectors that hold the best."""
    module = Module()
    emit_entry(module, _AT["tasks"])
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    x, out = (g.load("ptr", g.at("%env", _AT[name]), 8) for name in ("x", "out"))
    tasks, rows, count, extent, row_bytes = (
        g.load("i64", g.at("%env", _AT[name]), 8) for name in ("tasks", "rows", "count", "extent", "row_bytes")
    )
    best = _Best(g, kind, lanes, held, descending, g.sub(held * lanes, count))
    type, width = best.element, best.width
    scanned = max(1, min(_SCANNED, target.lanes(width)))
    state = g.slot("i8", held * lanes * max(4, width))
    module.declare("llvm.cttz.i64", "i64 {}(i64, i1)")
    module.declare("llvm.ctpop.i64", "i64 {}(i64)")

    def taken(begin: str, index: Value, values: list[str], filled: Sequence[str] | None = None) -> list[str]:
        value = g.load(type, g.at(begin, g.mul(index, width)), width)
        return best.put(values, value, g.value(f"trunc i64 {index} to i32"), filled)

    def unless_worse(begin: str, index: Value, values: list[str]) -> list[Value]:
        value = g.load(type, g.at(begin, g.mul(index, width)), width)
        worse = best.stays(best.worst(values), value, 1)
        return g.choose(worse, best.types, lambda: values, lambda: taken(begin, index, values))

    def row(number: Value, _: list[str]) -> None:
        begin = g.at(x, g.mul(number, row_bytes))

        def first(index: Value, values: list[str]) -> list[str]:
            return taken(begin, index, values, best.below(g.add(best.resting, index)))

        def some(index: Value, values: list[str]) -> list[Value]:
            worst = vectors.broadcast(g, type, scanned, best.worst(values))
            here = g.load(vector(type, scanned), g.at(begin, g.mul(index, width)), width)
            worse = best.stays(worst, here, scanned)
            truths = g.value(f"bitcast <{scanned} x i1> {worse} to i{scanned}") if scanned > 1 else worse
            bits = g.value(f"zext i{scanned} {g.value(f'xor i{scanned} {truths}, -1')} to i64")

            def better(_: Value, carried: list[str]) -> list[Value]:
                left, *now = carried
                lane = g.value(f"call i64 @llvm.cttz.i64(i64 {left}, i1 true)")
                following = g.value(f"and i64 {left}, {g.sub(left, 1)}")
                return [following, *unless_worse(begin, g.add(index, lane), now)]

            def each() -> list[Value]:
                several = g.value(f"call i64 @llvm.ctpop.i64(i64 {bits})")
                return list(g.loop(0, several, better, carry=[("i64", bits), *carry(values)])[1:])

            return g.choose(g.compare("ne", bits, 0), best.types, each, lambda: values)

        def carry(values: Sequence[Value]) -> list[tuple[str, Value]]:
            return list(zip(best.types, values, strict=True))

        none: list[Value] = [
            "zeroinitializer" if lanes > 1 else "0.0" if t == type and best.floats else "0" for t in best.types
        ]
        values = g.loop(0, count, first, carry=carry(none), nonempty=True)
        values = g.loop(count, g.sub(extent, scanned - 1), some, step=scanned, carry=carry(values))
        whole = g.mul(g.div(g.sub(extent, count), scanned), scanned)
        values = g.loop(g.add(count, whole), extent, lambda k, now: unless_worse(begin, k, now), carry=carry(values))
        _write(g, best, values, places, state, g.at(out, g.mul(g.mul(number, count), 8 if places else width)), count)

    g.loop(g.div(g.mul("%task", rows), tasks), g.div(g.mul(g.add("%task", 1), rows), tasks), row)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


def _write(
    g: Function, best: _Best, values: Sequence[Value], places: bool, state: str, into: str, count: Value
) -> None:
    """The best of a row, or their places, by way of the stack."""
    type, width = ("i32", 4) if places else (best.element, best.width)
    for k in range(best.held):
        n = best.held + k if places else k
        g.store(best.types[n], values[n], g.at(state, k * best.lanes * width))
    begin = g.at(state, g.mul(best.resting, width))

    def one(index: Value, _: list[str]) -> None:
        found = g.load(type, g.at(begin, g.mul(index, width)), width)
        if places:
            g.store("i64", g.value(f"zext i32 {found} to i64"), g.at(into, g.mul(index, 8)), 8)
        else:
            g.store(type, found, g.at(into, g.mul(index, width)), width)

    g.loop(0, count, one)
