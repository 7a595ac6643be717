"""Merging of two sorted runs of equal length, from both ends at once: neither end waits for the other.

Records of one part are merged a vector at a time: of the two runs, the vector whose end is nearer comes next; it meets
the one that is held, turned round, so that the lesser and the greater of each pair are two vectors between which
nothing has to move, and both are put in order by stages of half as many lanes. Records of two parts are merged one by
one.

Source: own; K. E. Batcher, 1968; the two ends as in O. Peters' parity merge.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.sorting.keys import Keys


def emit_merges(module: Module, keys: Keys, lanes: int) -> None:
    """Adds ``merge_low``, ``merge_high`` and ``merge``, of (from, to, length, gap): the lesser half, the greater half,
    both. Parts of a record lie ``gap`` bytes apart; a length is a multiple of the lanes."""
    for name, ends in (("merge_low", (False,)), ("merge_high", (True,)), ("merge", (False, True))):
        f = Function(module, name, [("ptr", "from"), ("ptr", "to"), ("i64", "length"), ("i64", "gap")])
        if keys.parts == 1:
            _by_vectors(f, keys, lanes, ends)
        else:
            _one_by_one(f, keys, ends)
        f.ret()


def _one_by_one(f: Function, keys: Keys, ends: Sequence[bool]) -> None:
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


def _by_vectors(f: Function, keys: Keys, lanes: int, ends: Sequence[bool]) -> None:
    """Each end holds a vector, and knows how many elements of both runs it has taken."""
    full, size = vector(keys.type, lanes), lanes * keys.bytes
    for name in ("smin", "smax"):
        f.module.declare(f"llvm.{name}.v{lanes}{keys.type}", f"{full} {{}}({full}, {full})")
    second = f.at("%from", f.mul("%length", keys.bytes))

    def least(name: str, a: str, b: str) -> str:
        return f.value(f"call {full} @llvm.{name}.v{lanes}{keys.type}({full} {a}, {full} {b})")

    def ordered(value: str) -> str:
        apart = lanes // 2
        while apart:
            order = ", ".join(f"i32 {lane ^ apart}" for lane in range(lanes))
            other = f.value(f"shufflevector {full} {value}, {full} {value}, <{lanes} x i32> <{order}>")
            upper = "<" + ", ".join(f"i1 {'true' if lane & apart else 'false'}" for lane in range(lanes)) + ">"
            less, more = least("smin", value, other), least("smax", value, other)
            value = f.value(f"select <{lanes} x i1> {upper}, {full} {more}, {full} {less}")
            apart //= 2
        return value

    def met(held: str, new: str, high: bool) -> tuple[str, str]:
        """What comes next in order, and what is held."""
        turned = vectors.reverse(f, keys.type, lanes, new)
        less, more = ordered(least("smin", held, turned)), ordered(least("smax", held, turned))
        return (more, less) if high else (less, more)

    def at(run: str, taken: Value, high: bool) -> str:
        """The vector of a run behind what was taken from its end."""
        place = f.sub(f.sub("%length", lanes), taken) if high else taken
        return f.at(run, f.mul(place, keys.bytes))

    def put(value: str, k: Value, high: bool) -> None:
        place = f.sub(f.sub(f.mul("%length", 2), lanes), k) if high else k
        f.store(full, value, f.at("%to", f.mul(place, keys.bytes)), size)

    def head(run: str, taken: Value, high: bool) -> str:
        return f.load(keys.type, f.at(at(run, taken, high), size - keys.bytes if high else 0), keys.bytes)

    def step(k: Value, carried: list[str]) -> list[Value]:
        following = list[Value]()
        for number, high in enumerate(ends):
            held, first, other = carried[3 * number : 3 * number + 3]
            a, b = head("%from", first, high), head(second, other, high)
            nearer = f.value(f"icmp {'sgt' if high else 'slt'} {keys.type} {b}, {a}")
            none, left = f.compare("sge", first, "%length"), f.compare("slt", other, "%length")
            take = f.both(left, f.either(none, nearer))
            place = f.value(f"select i1 {take}, ptr {at(second, other, high)}, ptr {at('%from', first, high)}")
            moved = f.mul(f.value(f"zext i1 {take} to i64"), lanes)
            done, held = met(held, f.load(full, place, size), high)
            put(done, k, high)
            following += [held, f.add(first, f.sub(lanes, moved)), f.add(other, moved)]
        return following

    carry: list[tuple[str, Value]] = []
    for high in ends:
        first, other = (f.load(full, at(run, 0, high), size) for run in ("%from", second))
        done, held = met(first, other, high)
        put(done, 0, high)
        carry += [(full, held), ("i64", lanes), ("i64", lanes)]
    f.loop(lanes, "%length", step, step=lanes, carry=carry)
