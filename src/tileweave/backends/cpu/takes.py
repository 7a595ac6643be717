"""Rows of an array at places that are data: one piece of code for any sizes, as of `tileweave.backends.cpu.moves`.

Places count from the end where they are negative. Where one lies outside, some other row is copied for it, and the
call says so (`Bound.fault`), so that no memory is read that is not the array's.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, emit_entry, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = ("x", "places", "out", "tasks", "rows", "count", "extent", "row_bytes", "outer", "step", "fault")
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))


def _walk(array: Array) -> tuple[int, int] | None:
    """(points, bytes from one to the next) where all dimensions walk as one; None where they do not."""
    found: tuple[int, int] | None = None
    for n, stride in zip(array.shape, array.strides, strict=True):
        if n == 1:
            continue
        if found is not None and found[1] != n * stride:
            return None
        found = (n if found is None else found[0] * n, stride)
    return found or (1, 0)


def takeable(x: Array, places: Array, out: Array, axis: int) -> bool:
    """Whether there is code for ``out[...] = numpy.take(x, places, axis)``: dense rows and places, not none."""
    if x.dtype != out.dtype or x.dtype.hasobject or places.dtype.str[1:] not in ("i4", "i8") or not out.size:
        return False
    row = x[(0,) * (axis + 1)] if x.size else x
    dense = row.flags.c_contiguous and places.flags.c_contiguous and out.flags.c_contiguous
    aligned = all(one.flags.aligned for one in (x, places, out))
    return bool(x.size) and dense and aligned and _walk(_lead(x, axis)) is not None


def _lead(x: Array, axis: int) -> Array:
    """The first elements along the dimensions in front of one."""
    return x[(slice(None),) * axis + (0,) * (x.ndim - axis)]


class Take:
    """Elements along a dimension, for `NativeCalls`; `takeable` says whether there is one.

    Args:
        axis: the dimension.
        threads: that it may use.
    """

    def __init__(self, axis: int, threads: int) -> None:
        self.axis = axis
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The rows of the first array at the places of the second, into the third, which shares no memory with them."""
        x, places, out = arrays
        walk = _walk(_lead(x, self.axis)) if takeable(x, places, out, self.axis) else None
        if walk is None:
            raise BackendError("Take(..)", f"{x.dtype}{x.shape} is not taken by rows to {out.shape}")
        row = x.itemsize * prod(x.shape[self.axis + 1 :])
        width = row if row in (1, 2, 4, 8) else 0
        bound = Bound(
            _code(width, places.itemsize, host()),
            _BYTES,
            0,
            [_AT[name] for name in ("x", "places", "out")],
        )
        bound.fault = _AT["fault"]
        rows = walk[0] * places.size
        threads = self.threads if out.nbytes >= PARALLEL_BYTES else 1
        tasks = min(rows, 4 * threads) if threads > 1 else 1
        words = [*map(address_of, arrays), tasks, rows, places.size, x.shape[self.axis], row, walk[1]]
        for name, word in zip(_WORDS, [*words, x.strides[self.axis], 0], strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


@functools.cache
def _code(width: int, place_bytes: int, target: Target) -> Code:
    """The code for rows of so many bytes, 0 for any number of them, and places of 4 or 8 bytes."""
    module = Module()
    emit_entry(module, _AT["tasks"])
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    x, places, out = (g.load("ptr", g.at("%env", _AT[name]), 8) for name in ("x", "places", "out"))
    tasks, rows, count, extent, row, outer, step = (
        g.load("i64", g.at("%env", _AT[name]), 8)
        for name in ("tasks", "rows", "count", "extent", "row_bytes", "outer", "step")
    )
    module.declare("llvm.memcpy.p0.p0.i64", "void {}(ptr, ptr, i64, i1)")

    def one(flat: Value, carry: list[str]) -> list[Value]:
        begin, number, outside = carry
        place = g.load(f"i{8 * place_bytes}", g.at(places, g.mul(number, place_bytes)), place_bytes)
        place = place if place_bytes == 8 else g.value(f"sext i32 {place} to i64")
        back = g.add(place, g.value(f"select i1 {g.compare('slt', place, 0)}, i64 {extent}, i64 0"))
        inside = g.compare("ult", back, extent)
        source = g.at(begin, g.mul(g.value(f"select i1 {inside}, i64 {back}, i64 0"), step))
        if width:
            to = g.at(out, g.mul(flat, width))
            g.store(f"i{8 * width}", g.load(f"i{8 * width}", source, 1), to, 1)
        else:
            to = g.at(out, g.mul(flat, row))
            g.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {row}, i1 false)")
        following = g.add(number, 1)
        last = g.compare("eq", following, count)
        return [
            g.value(f"select i1 {last}, ptr {g.at(begin, outer)}, ptr {begin}"),
            g.value(f"select i1 {last}, i64 0, i64 {following}"),
            g.value(f"select i1 {inside}, i64 {outside}, i64 1"),
        ]

    first, end = (g.div(g.mul(task, rows), tasks) for task in ("%task", g.add("%task", 1)))
    start = g.at(x, g.mul(g.div(first, count), outer))
    carry = [("ptr", start), ("i64", g.rem(first, count)), ("i64", 0)]
    outside = g.loop(first, end, one, carry=carry)[2]
    g.when(g.compare("ne", outside, 0), lambda: g.store("i64", 1, g.at("%env", _AT["fault"]), 8))
    g.ret()
    return compile_ir(module.text(), ("entry",), target)
