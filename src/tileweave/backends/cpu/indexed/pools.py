"""The gradient of a maximum over windows: one piece of code for any images, per width of a window's rows.

Windows of a row are taken a vector at a time. A first pass counts the elements that are the greatest, a second one
gives each its share. Where windows tile the image, their shares are written; where they overlap or leave gaps, they are
added to zeros.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.places import emit_tasks, share
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import PARALLEL_BYTES
from tileweave.backends.cpu.moves import HEAD, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_NAMES = ("x", "y", "dy", "out")
_ROWS = ("depth", "height")
_WORDS = (
    *(*_NAMES, "tasks", "images", "channels", "width", "outputs"),
    *(f"{axis}_{what}" for axis in _ROWS for what in ("count", "window", "stride", "gap", "extent")),
    *(f"{name}_{axis}" for name in _NAMES for axis in ("batch", "channel", *_ROWS)),
)
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_KINDS = {"f4": "FP32", "f8": "FP64"}
_WIDEST = 8
"""Elements of a window's row, and from one to the next: the code says what happens to each."""


def poolable(how: Mapping[str, Any], x: Array, y: Array, dy: Array, out: Array) -> bool:
    """Whether there is code for ``max_pool_gradient``: FP32 or FP64, 1-D to 3-D, rows dense and undilated, windows
    of at most `_WIDEST` elements along them."""
    arrays = x, y, dy, out
    if any(one.dtype != x.dtype or not one.flags.aligned or not one.size for one in arrays):
        return False
    if x.dtype.str[1:] not in _KINDS or not x.dtype.isnative or not 3 <= x.ndim <= 5 or how["dilation"][-1] != 1:
        return False
    if max(how["window"][-1], how["stride"][-1]) > _WIDEST:
        return False
    return all(one.shape[-1] == 1 or one.strides[-1] == x.itemsize for one in arrays)


class PoolGradient:
    """Shares of a gradient for the greatest elements of windows, for `NativeCalls`; see `poolable`.

    Args:
        how: the parameters of ``max_pool_gradient``.
        threads: that it may use.
    """

    def __init__(self, how: Mapping[str, Any], threads: int) -> None:
        self.how = how
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """Of images, what was pooled of them, and its gradient, into the fourth, which shares no memory with them."""
        x, y, _, out = arrays
        if not poolable(self.how, *arrays):
            raise BackendError("PoolGradient(..)", f"there is no code for windows of {x.dtype}{x.shape}")
        window, stride, gap = (self.how[name] for name in ("window", "stride", "dilation"))
        spatial = zip(window, stride, gap, x.shape[2:], y.shape[2:], strict=True)
        tiled = all(n == s and d == 1 and extent == n * count for n, s, d, extent, count in spatial)
        lanes = min(host().lanes(x.itemsize), 1 << (y.shape[-1].bit_length() - 1))
        code = _code(x.dtype.str[1:], window[-1], stride[-1], tiled, lanes, host())
        bound = Bound(code, _BYTES, 0, [_AT[name] for name in _NAMES])
        images = x.shape[0] * x.shape[1]
        threads = self.threads if x.nbytes + out.nbytes >= PARALLEL_BYTES else 1
        tasks = min(images, 4 * threads) if threads > 1 else 1
        words = [*map(address_of, arrays), tasks, images, x.shape[1], x.shape[-1], y.shape[-1]]
        lacking = 5 - x.ndim
        for k in range(2):
            axis = k - lacking  # of the spatial dimensions, the last one apart
            here = (
                (y.shape[2 + axis], window[axis], stride[axis], gap[axis], x.shape[2 + axis]) if axis >= 0 else (1,) * 5
            )
            words += here
        for array in arrays:
            words += [*array.strides[:2], *(0,) * lacking, *array.strides[2:-1]]
        for name, word in zip(_WORDS, words, strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


@functools.cache
def _code(kind: str, window: int, stride: int, tiled: bool, lanes: int, target: Target) -> Code:
    """The code for windows of so many elements in a row, so many apart; ``tiled``: they cover each element once."""
    module = Module()
    f = Function(module, "entry", [("ptr", "env")], public=True)
    emit_tasks(f, f.load("i64", f.at("%env", _AT["tasks"]), 8))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    module.declare("llvm.memset.p0.i64", "void {}(ptr, i8, i64, i1)")
    windows = _Windows(g, kind, window, stride, tiled, lanes)
    g.loop(*share(g, windows.word["images"], windows.word["tasks"]), windows.image)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)


class _Windows:
    """Writes the loops over the windows of an image.

    Args:
        g: where code goes.
        kind: of the elements.
        window: elements of its rows.
        stride: elements between two of a row.
        tiled: whether each element is in one window.
        lanes: of a vector.
    """

    def __init__(self, g: Function, kind: str, window: int, stride: int, tiled: bool, lanes: int) -> None:
        self.g, self.element = g, element(_KINDS[kind])
        self.type, self.bytes = self.element.memory, self.element.width_bytes
        self.window, self.stride, self.tiled, self.lanes = window, stride, tiled, lanes
        self.word = {n: g.load("ptr" if n in _NAMES else "i64", g.at("%env", _AT[n]), 8) for n in _WORDS}

    def image(self, number: Value, _: object) -> None:
        """All windows of an image."""
        g, at = self.g, dict[str, str]()
        batch, channel = g.div(number, self.word["channels"]), g.rem(number, self.word["channels"])
        for name in _NAMES:
            image = g.at(self.word[name], g.mul(batch, self.word[f"{name}_batch"]))
            at[name] = g.at(image, g.mul(channel, self.word[f"{name}_channel"]))
        if not self.tiled:
            size = g.mul(self.word["width"], self.bytes)
            zero = "call void @llvm.memset.p0.i64(ptr {}, i8 0, i64 {}, i1 false)"
            self.rows("extent", lambda *row: g.emit(zero.format(self.at(at["out"], "out", *row), size)))
        self.rows("count", lambda *row: self.windows(at, row))

    def rows(self, what: str, row: Callable[[Value, Value], object]) -> None:
        """A loop over pairs (plane, row)."""

        def plane(k: Value, _: object) -> None:
            def one(n: Value, _: object) -> None:
                row(k, n)

            self.g.loop(0, self.word[f"height_{what}"], one)

        self.g.loop(0, self.word[f"depth_{what}"], plane)

    def at(self, image: str, name: str, depth: Value, height: Value) -> str:
        """Where a row of an image begins."""
        g = self.g
        plane = g.at(image, g.mul(depth, self.word[f"{name}_depth"]))
        return g.at(plane, g.mul(height, self.word[f"{name}_height"]))

    def windows(self, images: Mapping[str, str], row: tuple[Value, Value]) -> None:
        """The windows of a row: vectors of them, and what is left in halves of vectors."""
        g, outputs = self.g, self.word["outputs"]
        ends = {name: self.at(images[name], name, *row) for name in ("y", "dy")}
        first = [g.mul(self.word[f"{axis}_stride"], k) for axis, k in zip(_ROWS, row, strict=True)]

        def vectors_of(lanes: int, begin: Value, end: Value, most: Value) -> None:
            def some(k: Value, _: object) -> None:
                self.some(images, ends, first, g.min(k, most), lanes)

            g.loop(begin, end, some, step=lanes)

        if self.tiled:  # the last vector ends with the row: what two write is the same
            vectors_of(self.lanes, 0, outputs, g.sub(outputs, self.lanes))
            return
        done, lanes = "0", self.lanes
        while lanes:
            end = g.add(done, g.mul(g.div(g.sub(outputs, done), lanes), lanes))
            vectors_of(lanes, done, end, end)
            done, lanes = str(end), lanes // 2

    def some(
        self, images: Mapping[str, str], ends: Mapping[str, str], first: Sequence[Value], k: Value, lanes: int
    ) -> None:
        """So many windows of a row."""
        g, full, truths = self.g, vector(self.type, lanes), vector("i1", lanes)
        y, dy = (g.load(full, g.at(ends[name], g.mul(k, self.bytes)), self.bytes) for name in ("y", "dy"))
        begin = g.mul(k, self.stride * self.bytes)
        zero, one = (f"splat ({self.type} {x})" if lanes > 1 else x for x in ("0.0", "1.0"))

        def hits(depth: Value, height: Value) -> list[str]:
            line = g.at(self.at(images["x"], "x", depth, height), begin)
            return [g.value(f"fcmp oeq {full} {x}, {y}") for x in self.seen(line, lanes)]

        def count(depth: Value, height: Value, carry: list[str]) -> list[Value]:
            total = carry[0]
            for hit in hits(depth, height):
                more = g.value(f"select {truths} {hit}, {full} {one}, {full} {zero}")
                total = g.value(f"fadd {full} {total}, {more}")
            return [total]

        (total,) = self.places(first, count, [(full, zero)])
        part = g.value(f"fdiv {full} {dy}, {total}")
        part = g.value(f"fadd {full} {part}, {zero}")  # as what is added to zeros, never -0

        def give(depth: Value, height: Value, carry: list[str]) -> list[Value]:
            line = g.at(self.at(images["out"], "out", depth, height), begin)
            shares = [g.value(f"select {truths} {hit}, {full} {part}, {full} {zero}") for hit in hits(depth, height)]
            self.give(line, shares, lanes)
            return []

        self.places(first, give, [])

    def places(
        self,
        first: Sequence[Value],
        row: Callable[[Value, Value, list[str]], list[Value]],
        carry: list[tuple[str, Value]],
    ) -> list[Value]:
        """A loop over the rows of a window."""
        g, word = self.g, self.word

        def plane(k: Value, carried: list[str]) -> list[Value]:
            depth = g.add(first[0], g.mul(k, word["depth_gap"]))

            def one(n: Value, now: list[str]) -> list[Value]:
                return row(depth, g.add(first[1], g.mul(n, word["height_gap"])), now)

            kept = [(type, value) for (type, _), value in zip(carry, carried, strict=True)]
            return list(g.loop(0, word["height_window"], one, carry=kept, nonempty=True))

        return list(g.loop(0, word["depth_window"], plane, carry=carry, nonempty=True))

    def seen(self, line: str, lanes: int) -> list[str]:
        """What windows have at each place of a row of theirs."""
        places = [self.g.at(line, k * self.bytes) for k in range(self.window)]
        if lanes == 1 or self.stride == 1:
            return [self.g.load(vector(self.type, lanes), place, self.bytes) for place in places]
        return [vectors.gather(self.g, self.element, lanes, place, self.stride * self.bytes) for place in places]

    def give(self, line: str, shares: Sequence[str], lanes: int) -> None:
        """Write shares to a row of the result, or add them to it, place by place."""
        g = self.g
        if self.tiled and lanes > 1:
            size = lanes * self.window
            order = [k * lanes + lane for lane in range(lanes) for k in range(self.window)]
            g.store(vector(self.type, size), self.chosen(self.joined(shares, lanes), size, order), line, self.bytes)
            return
        size = (lanes - 1) * self.stride + 1
        wide = vector(self.type, size)
        for k, value in enumerate(shares):
            at = g.at(line, k * self.bytes)
            if not self.tiled:
                apart = [lanes if n % self.stride else n // self.stride for n in range(size)]
                here = value if size == lanes else self.chosen(value, lanes, apart, "zeroinitializer")
                value = g.value(f"fadd {wide} {g.load(wide, at, self.bytes)}, {here}")
            g.store(wide, value, at, self.bytes)

    def joined(self, parts: Sequence[str], lanes: int) -> str:
        """One vector of several, behind each other."""
        value = parts[0]
        for k, part in enumerate(parts[1:], 1):
            wide = self.chosen(part, lanes, [*range(lanes), *[lanes] * ((k - 1) * lanes)]) if k > 1 else part
            value = self.chosen(value, k * lanes, range((k + 1) * lanes), wide)
        return value

    def chosen(self, value: str, size: int, order: Sequence[int], other: str = "poison") -> str:
        """These elements of a vector of this size, and of another one behind it."""
        full, places = vector(self.type, size), ", ".join(f"i32 {k}" for k in order)
        return self.g.value(f"shufflevector {full} {value}, {full} {other}, <{len(order)} x i32> <{places}>")
