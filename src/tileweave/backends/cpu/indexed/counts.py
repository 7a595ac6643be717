"""How often each small number occurs: one piece of code for any sizes, as of `tileweave.backends.cpu.moves`.

Neighbours count into tables of their own, one behind the other in a cache line, so that equal ones do not wait for each
other; where there are more numbers than such tables hold in the first cache, all count into one. Tables of threads are
added up at the end. What is no number that is counted goes into one more counter, so no branch depends on data.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.places import KINDS, emit_tasks, share
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import LINE_BYTES, address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = ("x", "out", "tasks", "rows", "pieces", "count", "length", "table_bytes")
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_MEMORY = 16
_TYPES = {"f4": "float", "f8": "double", **{f"{k}{n}": f"i{8 * n}" for k in "iu" for n in (1, 2, 4, 8)}}
_APART = LINE_BYTES // 8
"""Neighbours that count apart."""
_PER_NUMBER = 16
"""Elements per number that is counted from which on threads share a row: their tables have to be added up."""


def countable(x: Array, out: Array) -> bool:
    """Whether there is code to count numbers of rows [.., n] into [.., length]: dense arrays, not empty."""
    known = x.dtype.str[1:] in (*KINDS, "u8") and out.dtype.str[1:] in _TYPES and x.size and out.size
    return bool(known) and all(one.flags.c_contiguous and one.flags.aligned and one.dtype.isnative for one in (x, out))


class Count:
    """Numbers that are counted, for `NativeCalls`; `countable` says whether there is such a call.

    Args:
        threads: that it may use.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """How often 0, 1, .. occur in each row of the first array, into the second, which shares no memory with it."""
        x, out = arrays
        if not countable(x, out):
            raise BackendError("Count(..)", f"{x.dtype}{x.shape} is not counted into {out.dtype}{out.shape}")
        rows, count, length = prod(x.shape[:-1]), x.shape[-1], out.shape[-1]
        apart = LINE_BYTES * (length + 1) <= host().l1_bytes // 2
        threads = self.threads if x.nbytes >= PARALLEL_BYTES else 1
        pieces = threads if rows < threads and count >= _PER_NUMBER * length else 1
        tasks = pieces * rows if pieces > 1 else min(rows, 4 * threads) if threads > 1 else 1
        table_bytes = (LINE_BYTES if apart else 8) * (length + 1)
        table_bytes = -(-table_bytes // LINE_BYTES) * LINE_BYTES
        code = _code(x.dtype.str[1:], out.dtype.str[1:], _APART if apart else 1, host())
        bound = Bound(code, _BYTES, table_bytes * (tasks if pieces > 1 else threads), [_AT["x"], _AT["out"]])
        words = [*map(address_of, arrays), tasks, rows, pieces, count, length, table_bytes]
        for name, word in zip(_WORDS, words, strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


@functools.cache
def _code(kind: str, made: str, apart: int, target: Target) -> Code:
    """The code for numbers of a kind, counts of another one, and so many neighbours that count apart."""
    module = Module()
    module.declare("llvm.memset.p0.i64", "void {}(ptr, i8, i64, i1)")
    module.declare("llvm.umin.i64", "i64 {}(i64, i64)")
    f = Function(module, "entry", [("ptr", "env")], public=True)
    counts = _Counts(f, kind, made, apart)
    emit_tasks(f, counts.word["tasks"])
    pieces = counts.word["pieces"]

    def total(row: Value, _: object) -> None:
        counts.written(row, counts.table(f.mul(row, pieces)), pieces)

    f.when(f.compare("sgt", pieces, 1), lambda: f.loop(0, counts.word["rows"], total))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    counts = _Counts(g, kind, made, apart)
    cut = g.compare("sgt", counts.word["pieces"], 1)
    g.when(cut, counts.piece, counts.whole_rows)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


class _Counts:
    """Writes how numbers are counted.

    Args:
        g: where code goes.
        kind: of the numbers.
        made: the kind of the counts.
        apart: neighbours that count apart.
    """

    def __init__(self, g: Function, kind: str, made: str, apart: int) -> None:
        self.g, self.kind, self.made, self.apart = g, kind, made, apart
        self.word = {n: g.load("ptr" if n in ("x", "out") else "i64", g.at("%env", _AT[n]), 8) for n in _WORDS}
        self.memory = g.load("ptr", g.at("%env", _MEMORY), 8)

    def table(self, number: Value) -> str:
        """A table of counters."""
        return self.g.at(self.memory, self.g.mul(number, self.word["table_bytes"]))

    def piece(self) -> None:
        """A task's piece of a row, into a table of its own."""
        g, pieces = self.g, self.word["pieces"]
        row, part = g.div("%task", pieces), g.rem("%task", pieces)
        self.counted(row, *share(g, self.word["count"], pieces, part), self.table("%task"))

    def whole_rows(self) -> None:
        """A task's rows, one after the other."""
        g, table = self.g, self.table("%thread")

        def row(number: Value, _: object) -> None:
            self.counted(number, 0, self.word["count"], table)
            self.written(number, table)

        g.loop(*share(g, self.word["rows"], self.word["tasks"]), row)

    def counted(self, row: Value, begin: Value, end: Value, table: str) -> None:
        """Counts some elements of a row."""
        g, width = self.g, int(self.kind[1:])
        size = g.mul(g.add(self.word["length"], 1), 8 * self.apart)
        g.emit(f"call void @llvm.memset.p0.i64(ptr {table}, i8 0, i64 {size}, i1 false)")
        source = g.at(self.word["x"], g.mul(g.mul(row, self.word["count"]), width))

        def one(index: Value, own: int) -> None:
            number = g.load(f"i{8 * width}", g.at(source, g.mul(index, width)), width)
            if width < 8:
                number = g.value(f"{'sext' if self.kind[0] == 'i' else 'zext'} i{8 * width} {number} to i64")
            number = g.value(f"call i64 @llvm.umin.i64(i64 {number}, i64 {self.word['length']})")
            counter = g.at(table, g.add(g.mul(number, 8 * self.apart), 8 * own))
            g.store("i64", g.add(g.load("i64", counter, 8), 1), counter, 8)

        def several(index: Value, _: object) -> None:
            for k in range(_APART):
                one(g.add(index, k), k % self.apart)

        whole = g.add(begin, g.value(f"and i64 {g.sub(end, begin)}, {-_APART}"))
        g.loop(begin, whole, several, step=_APART)
        g.loop(whole, end, lambda index, _: one(index, 0))

    def written(self, row: Value, first: str, pieces: Value = 1) -> None:
        """What so many tables counted, one behind the other, as what is wanted of it."""
        g, type, width = self.g, _TYPES[self.made], int(self.made[1:])
        to = g.at(self.word["out"], g.mul(g.mul(row, self.word["length"]), width))

        def number(index: Value, _: object) -> None:
            def of(part: Value, carry: list[str]) -> list[Value]:
                at = g.at(g.at(first, g.mul(part, self.word["table_bytes"])), g.mul(index, 8 * self.apart))
                total: Value = carry[0]
                for k in range(self.apart):
                    total = g.add(total, g.load("i64", g.at(at, 8 * k), 8))
                return [total]

            total = str(g.loop(0, pieces, of, carry=[("i64", 0)])[0])
            if self.made[0] == "f":
                total = g.value(f"sitofp i64 {total} to {type}")
            elif width < 8:
                total = g.value(f"trunc i64 {total} to {type}")
            g.store(type, total, g.at(to, g.mul(index, width)), width)

        g.loop(0, self.word["length"], number)
