"""Matrices with zeros beside a diagonal: of each row what stays is copied, the rest is not read; any sizes.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.places import emit_tasks, share
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, emit_copy, passes_caches, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = ("x", "out", "tasks", "rows", "height", "width", "first", "upper", "bytes", "past")
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))


def triangular(x: Array, out: Array) -> bool:
    """Whether there is code for a triangle of matrices [.., rows, columns]: dense arrays of one type, not empty."""
    alike = x.dtype == out.dtype and x.shape == out.shape and x.ndim >= 2 and x.size and not x.dtype.hasobject
    return bool(alike and x.flags.c_contiguous and out.flags.c_contiguous)


class Triangle:
    """Triangles of matrices, for `NativeCalls`; `triangular` says whether there is such a call.

    Args:
        how: the parameters of ``triangle``.
        threads: that it may use.
    """

    def __init__(self, how: Mapping[str, Any], threads: int) -> None:
        self.how = how
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """A triangle of the first array, into the second, which shares no memory with it."""
        x, out = arrays
        if not triangular(x, out):
            raise BackendError("Triangle(..)", f"{x.dtype}{x.shape} has no triangle of {out.dtype}{out.shape}")
        bound = Bound(_code(host()), _BYTES, 0, [_AT["x"], _AT["out"]])
        height, width = x.shape[-2:]
        rows, upper = x.size // width, self.how["upper"]
        threads = self.threads if out.nbytes >= PARALLEL_BYTES else 1
        tasks = min(rows, 4 * threads) if threads > 1 else 1
        first = min(
            max(self.how["offset"] + (not upper), -height), width
        )  # of row 0 the first column beyond the border
        words = [*map(address_of, arrays), tasks, rows, height, width, first, int(upper), x.itemsize]
        for name, word in zip(_WORDS, [*words, int(passes_caches(x, out))], strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


@functools.cache
def _code(target: Target) -> Code:
    module = Module()
    emit_copy(module, target)
    module.declare("llvm.memset.p0.i64", "void {}(ptr, i8, i64, i1)")
    f = Function(module, "entry", [("ptr", "env")], public=True)
    emit_tasks(f, f.load("i64", f.at("%env", _AT["tasks"]), 8))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    word = {n: g.load("ptr" if n in ("x", "out") else "i64", g.at("%env", _AT[n]), 8) for n in _WORDS}
    begin, end = share(g, word["rows"], word["tasks"])
    size, upper = g.mul(word["width"], word["bytes"]), g.compare("ne", word["upper"], 0)

    def row(number: Value, carry: list[str]) -> list[Value]:
        (own,) = carry
        border = g.min(g.add(word["first"], own), word["width"])
        border = g.value(f"select i1 {g.compare('sgt', border, 0)}, i64 {border}, i64 0")
        at, middle = g.mul(number, size), g.mul(border, word["bytes"])
        rest, source, out = g.sub(size, middle), g.at(word["x"], at), g.at(word["out"], at)

        def part(kept: Value, kept_bytes: Value, cleared: Value, cleared_bytes: Value) -> None:
            places = (f"ptr {g.at(base, kept)}" for base in (out, source))
            g.call("copy", *places, f"i64 {kept_bytes}", f"i64 {word['past']}")
            zeros = f"ptr {g.at(out, cleared)}, i8 0, i64 {cleared_bytes}, i1 false"
            g.emit(f"call void @llvm.memset.p0.i64({zeros})")

        g.when(upper, lambda: part(middle, rest, 0, middle), lambda: part(0, middle, middle, rest))
        following = g.add(own, 1)
        over = g.compare("eq", following, word["height"])
        return [g.value(f"select i1 {over}, i64 0, i64 {following}")]

    g.loop(begin, end, row, carry=[("i64", g.rem(begin, word["height"]))])
    g.ret()
    return compile_ir(module.text(), ("entry",), target)
