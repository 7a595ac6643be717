"""Merging of two sorted runs of equal length, from both ends at once: neither end waits for the other, nor runs out.

Source: own; the two ends as in O. Peters' parity merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.sorting.keys import Keys


def emit_merges(module: Module, keys: Keys) -> None:
    """Adds ``merge_low``, ``merge_high`` and ``merge``, of (from, to, length, gap): the lesser half, the greater half,
    both. Parts of a record lie ``gap`` bytes apart."""
    for name, ends in (("merge_low", (False,)), ("merge_high", (True,)), ("merge", (False, True))):
        _emit(module, keys, name, ends)


def _emit(module: Module, keys: Keys, name: str, ends: Sequence[bool]) -> None:
    f = Function(module, name, [("ptr", "from"), ("ptr", "to"), ("i64", "length"), ("i64", "gap")])

    def record(place: Value) -> list[str]:
        at = f.at("%from", f.mul(place, keys.bytes))
        return [f.load(keys.type, at if k == 0 else f.at(at, "%gap"), keys.bytes) for k in range(keys.parts)]

    def put(found: list[str], place: Value) -> None:
        at = f.at("%to", f.mul(place, keys.bytes))
        for k, part in enumerate(found):
            f.store(keys.type, part, at if k == 0 else f.at(at, "%gap"), keys.bytes)

    def step(k: Value, carried: list[str]) -> list[Value]:
        following = list[Value]()
        for high, first, second in zip(ends, carried[::2], carried[1::2], strict=True):
            a, b = record(first), record(second)
            behind = keys.behind(f, 1, a, b)
            moved = f.value(f"zext i1 {behind} to i64")
            other = f.sub(1, moved)
            if high:
                put(keys.chosen(f, 1, behind, a, b), f.sub(f.sub(double, 1), k))
                following += [f.sub(first, moved), f.sub(second, other)]
            else:
                put(keys.chosen(f, 1, behind, b, a), k)
                following += [f.add(first, other), f.add(second, moved)]
        return following

    double = f.mul("%length", 2)
    starts = list[Value]()
    for high in ends:
        starts += [f.sub("%length", 1), f.sub(double, 1)] if high else [0, "%length"]
    f.loop(0, "%length", step, carry=[("i64", start) for start in starts], nonempty=True)
    f.ret()
