"""Where numbers belong among others in order: several binary searches at once, by one piece of code for any sizes.

All searches among one row take as many steps, without a branch on what they find, so some of them advance together and
do not wait for each other's loads. NaN is the greatest, as in NumPy.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.places import emit_tasks, most, share
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.moves import HEAD, run_on_pool
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.host import address_of
from tileweave.errors import BackendError

Array = NDArray[Any]
_WORDS = ("x", "values", "out", "tasks", "rows", "count", "extent")
_AT = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
_BYTES = 8 * (HEAD + len(_WORDS))
_TYPES = {"f4": "float", "f8": "double", **{f"{k}{n}": f"i{8 * n}" for k in "iu" for n in (1, 2, 4, 8)}}
_TOGETHER = 8
"""Searches that advance together."""
PARALLEL_STEPS = 1 << 15
"""Steps of searches from which on threads share them: some 30 us of work."""


def findable(x: Array, values: Array, out: Array) -> bool:
    """Whether there is code to search values [rows.., count] among x [rows.., extent]: dense arrays, not empty."""
    known = x.dtype == values.dtype and x.dtype.isnative and x.dtype.str[1:] in _TYPES and out.dtype.str[1:] == "i8"
    return bool(known and x.size and out.size) and all(
        one.flags.c_contiguous and one.flags.aligned for one in (x, values, out)
    )


class Search:
    """Binary searches, for `NativeCalls`; `findable` says whether there is one.

    Args:
        how: the parameters of ``searchsorted``.
        threads: that it may use.
    """

    def __init__(self, how: Mapping[str, Any], threads: int) -> None:
        self.right = how["side"] == "right"
        self.threads = threads

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The places among the rows of the first array of those of the second, into the third."""
        x, values, out = arrays
        if not findable(x, values, out):
            raise BackendError("Search(..)", f"{x.dtype}{x.shape} is not searched for {values.dtype}{values.shape}")
        bound = Bound(_code(x.dtype.str[1:], self.right, host()), _BYTES, 0, [_AT[k] for k in ("x", "values", "out")])
        rows, extent = prod(x.shape[:-1]), x.shape[-1]
        threads = self.threads if values.size * extent.bit_length() >= PARALLEL_STEPS else 1
        tasks = min(values.size, 4 * threads) if threads > 1 else 1
        words = [*map(address_of, arrays), tasks, rows, values.size // rows, extent]
        for name, word in zip(_WORDS, words, strict=True):
            bound.write(_AT[name], word)
        run_on_pool(bound, threads)
        return bound


@functools.cache
def _code(kind: str, right: bool, target: Target) -> Code:
    """The code for elements of a kind, behind equal ones or in front of them."""
    module = Module()
    f = Function(module, "entry", [("ptr", "env")], public=True)
    emit_tasks(f, f.load("i64", f.at("%env", _AT["tasks"]), 8))
    f.ret()
    g = Function(module, "rows", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    type, width = _TYPES[kind], int(kind[1:])
    x, values, out = (g.load("ptr", g.at("%env", _AT[name]), 8) for name in ("x", "values", "out"))
    tasks, rows, count, extent = (g.load("i64", g.at("%env", _AT[k]), 8) for k in ("tasks", "rows", "count", "extent"))

    def before(begin: str, index: Value, value: str, missing: str) -> str:
        """1 where an element is in front of a value, else 0; ``missing`` says whether that is NaN."""
        one = g.load(type, g.at(begin, g.mul(index, width)), width)
        if kind[0] != "f":
            order = ("u" if kind[0] == "u" else "s") + ("le" if right else "lt")
            found = g.value(f"icmp {order} {type} {one}, {value}")
        elif right:
            found = g.value(f"or i1 {g.value(f'fcmp ole {type} {one}, {value}')}, {missing}")
        else:
            less, number = (
                g.value(f"fcmp {how} {type} {one}, {other}") for how, other in (("ult", value), ("ord", one))
            )
            found = g.value(f"and i1 {less}, {number}")
        return g.value(f"zext i1 {found} to i64")

    def searched(begin: str, first: Value, many: int) -> None:
        sought = [g.load(type, g.at(values, g.mul(g.add(first, k), width)), width) for k in range(many)]
        missing = [g.value(f"fcmp uno {type} {one}, {one}") if kind[0] == "f" else "" for one in sought]

        def steps() -> list[Value]:
            head, done = g.new_label(), g.new_label()
            held, start = [g.fresh() for _ in range(many)], g.block
            left = g.fresh()
            more = g.compare("sgt", extent, 1)
            g.emit(f"br i1 {more}, label %{head}, label %{done}")
            g.place(head)
            after, new = [g.fresh() for _ in range(many)], g.fresh()
            for name, following in zip([*held, left], [*after, new], strict=True):
                initial = extent if name == left else 0
                g.emit(f"{name} = phi i64 [ {initial}, %{start} ], [ {following}, %{head} ]")
            half = g.value(f"lshr i64 {left}, 1")
            for name, following, value, nan in zip(held, after, sought, missing, strict=True):
                ahead = before(begin, g.sub(g.add(name, half), 1), value, nan)
                g.emit(f"{following} = add i64 {name}, {g.mul(ahead, half)}")
            g.emit(f"{new} = sub i64 {left}, {half}")
            g.emit(f"br i1 {g.compare('sgt', new, 1)}, label %{head}, label %{done}")
            g.place(done)
            return [g.value(f"phi i64 [ 0, %{start} ], [ {one}, %{head} ]") for one in after]

        for k, at in enumerate(steps()):
            place = g.add(at, before(begin, at, sought[k], missing[k]))
            g.store("i64", place, g.at(out, g.mul(g.add(first, k), 8)), 8)

    begin, end = share(g, g.mul(rows, count), tasks)

    def row(number: Value, _: list[str]) -> None:
        source, done = g.at(x, g.mul(g.mul(number, extent), width)), g.mul(number, count)
        first, last = most(g, begin, done), g.min(end, g.add(done, count))
        whole = g.add(first, g.mul(g.div(g.sub(last, first), _TOGETHER), _TOGETHER))
        g.loop(first, whole, lambda k, _: searched(source, k, _TOGETHER), step=_TOGETHER)
        g.loop(whole, last, lambda k, _: searched(source, k, 1))

    g.loop(g.div(begin, count), g.div(g.add(end, g.sub(count, 1)), count), row)
    g.ret()
    return compile_ir(module.text(), ("entry",), target)
