"""Vectors in IR: whole and masked loads and stores, broadcasts, transposes in registers."""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.backends.cpu.elements import Element, vector
from tileweave.backends.cpu.ir import Function, Value

__all__ = ["broadcast", "load", "mask_below", "mask_of", "store", "transpose"]

_SUFFIX = {"float": "f32", "double": "f64", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8"}


def suffix(type: str, lanes: int) -> str:
    """How intrinsics name a vector type."""
    return _SUFFIX[type] if lanes == 1 else f"v{lanes}{_SUFFIX[type]}"


def mask_of(count: int, lanes: int) -> str:
    """The constant mask of the first ``count`` lanes."""
    return "<" + ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes)) + ">"


def mask_below(f: Function, count: Value, lanes: int) -> str:
    """The mask of the first ``count`` lanes, the count being known at run time."""
    if isinstance(count, int):
        return mask_of(min(count, lanes), lanes)
    one = f.value(f"insertelement <{lanes} x i64> poison, i64 {count}, i64 0")
    every = f.value(f"shufflevector <{lanes} x i64> {one}, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer")
    numbers = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
    return f.value(f"icmp slt <{lanes} x i64> {numbers}, {every}")


def load(
    f: Function, element: Element, lanes: int, pointer: str, mask: str | None = None, others: str | None = None
) -> str:
    """So many consecutive elements; masked lanes are not read and are zero, or those of ``others``."""
    full = vector(element.memory, lanes)
    if mask is None or lanes == 1:
        return f.load(full, pointer, element.width_bytes)
    name = f"llvm.masked.load.{suffix(element.memory, lanes)}.p0"
    f.module.declare(name, f"{full} {{}}(ptr, i32, <{lanes} x i1>, {full})")
    return f.value(
        f"call {full} @{name}(ptr {pointer}, i32 {element.width_bytes}, <{lanes} x i1> {mask}, "
        f"{full} {others or 'zeroinitializer'})"
    )


def store(
    f: Function,
    element: Element,
    lanes: int,
    value: str,
    pointer: str,
    mask: str | None = None,
    *,
    streaming: bool = False,
) -> None:
    """Write consecutive elements; masked lanes are left alone. ``streaming`` bypasses the caches and needs alignment."""
    full = vector(element.memory, lanes)
    if mask is None or lanes == 1:
        if streaming:
            align = element.width_bytes * lanes
            f.emit(f"store {full} {value}, ptr {pointer}, align {align}, !nontemporal !0")
        else:
            f.store(full, value, pointer, element.width_bytes)
        return
    name = f"llvm.masked.store.{suffix(element.memory, lanes)}.p0"
    f.module.declare(name, f"void {{}}({full}, ptr, i32, <{lanes} x i1>)")
    f.emit(f"call void @{name}({full} {value}, ptr {pointer}, i32 {element.width_bytes}, <{lanes} x i1> {mask})")


def broadcast(f: Function, type: str, lanes: int, value: str) -> str:
    """A scalar in every lane."""
    if lanes == 1:
        return value
    full = vector(type, lanes)
    one = f.value(f"insertelement {full} poison, {type} {value}, i64 0")
    return f.value(f"shufflevector {full} {one}, {full} poison, <{lanes} x i32> zeroinitializer")


def _shuffle(f: Function, type: str, lanes: int, a: str, b: str, indices: Sequence[int]) -> str:
    full = vector(type, lanes)
    mask = "<" + ", ".join(f"i32 {index}" for index in indices) + ">"
    return f.value(f"shufflevector {full} {a}, {full} {b}, <{len(indices)} x i32> {mask}")


def transpose(f: Function, type: str, rows: Sequence[str]) -> list[str]:
    """The transpose of a square of lanes x lanes elements, held as one vector per row.

    Each round exchanges, between rows ``d`` apart, the lanes whose bit ``d`` differs from the row's; after
    log2(lanes) rounds row and lane have changed places. Rounds of distance 1 and 2 stay within 128 bits.
    """
    lanes = len(rows)
    current = list(rows)
    distance = 1
    while distance < lanes:
        following = list(current)
        for row in range(lanes):
            if row & distance:
                continue
            a, b = current[row], current[row + distance]
            low = [lane if not lane & distance else lanes + lane - distance for lane in range(lanes)]
            high = [lane + distance if not lane & distance else lanes + lane for lane in range(lanes)]
            following[row] = _shuffle(f, type, lanes, a, b, low)
            following[row + distance] = _shuffle(f, type, lanes, a, b, high)
        current = following
        distance *= 2
    return current
