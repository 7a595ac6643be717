"""Vectors in IR: whole and masked loads and stores, broadcasts, transposes in registers."""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.index.sizes import known

_SUFFIX = {"float": "f32", "double": "f64", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8"}


def suffix(type: str, lanes: int) -> str:
    """How intrinsics name a vector type."""
    return _SUFFIX[type] if lanes == 1 else f"v{lanes}{_SUFFIX[type]}"


def mask_of(end: int, lanes: int, begin: int = 0) -> str:
    """The constant mask of the lanes from ``begin`` to ``end``, exclusive."""
    return "<" + ", ".join(f"i1 {'true' if begin <= lane < end else 'false'}" for lane in range(lanes)) + ">"


def mask_below(f: Function, count: str, lanes: int) -> str:
    """The mask of the first ``count`` lanes, the count being known at run time, or a constant."""
    if count.isdecimal():
        return mask_of(int(count), lanes)
    every = broadcast(f, "i64", lanes, count)
    numbers = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
    return f.value(f"icmp slt <{lanes} x i64> {numbers}, {every}")


def mask_from(f: Function, word: str, lanes: int) -> str:
    """The mask whose lanes are the lowest bits of a word."""
    narrow = word if lanes == 64 else f.value(f"trunc i64 {word} to i{lanes}")
    return f.value(f"bitcast i{lanes} {narrow} to <{lanes} x i1>")


def _only(mask: str) -> int | None:
    """The lane of a constant mask of one lane.

    Such accesses are written as those of one element: LLVM 22 itself makes them so where there is AVX-512, and forgets
    a conversion before a store, or takes another element of a vector that came by a broadcast.
    """
    return mask[: mask.index("true")].count(",") if mask.count("true") == 1 else None


def load(
    f: Function, element: Element, lanes: int, pointer: str, mask: str | None = None, others: str | None = None
) -> str:
    """So many consecutive elements; masked lanes are not read and are zero, or those of ``others``; one has no mask."""
    full = vector(element.memory, lanes)
    if mask is None or lanes == 1:
        return f.load(full, pointer, element.width_bytes)
    lane = _only(mask)
    if lane is not None:
        one = f.load(element.memory, f.at(pointer, lane * element.width_bytes), element.width_bytes)
        return f.value(f"insertelement {full} {others or 'zeroinitializer'}, {element.memory} {one}, i64 {lane}")
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
    """Write consecutive elements; masked lanes are left alone. ``streaming``, past the caches, needs alignment."""
    full = vector(element.memory, lanes)
    if mask is None or lanes == 1:
        if streaming:
            align = element.width_bytes * lanes
            f.emit(f"store {full} {value}, ptr {pointer}, align {align}, !nontemporal !0")
        else:
            f.store(full, value, pointer, element.width_bytes)
        return
    lane = _only(mask)
    if lane is not None:
        one = f.value(f"extractelement {full} {value}, i64 {lane}")
        f.store(element.memory, one, f.at(pointer, lane * element.width_bytes), element.width_bytes)
        return
    name = f"llvm.masked.store.{suffix(element.memory, lanes)}.p0"
    f.module.declare(name, f"void {{}}({full}, ptr, i32, <{lanes} x i1>)")
    f.emit(f"call void @{name}({full} {value}, ptr {pointer}, i32 {element.width_bytes}, <{lanes} x i1> {mask})")


def runs_of(f: Function, count: Value, lanes: int) -> list[Value]:
    """Whether runs of ``lanes``, half as many, .., 1 elements belong to the first ``count`` of a vector."""
    if isinstance(count, int):
        return [int(bool(count & lanes >> k)) for k in range(lanes.bit_length())]
    return [f.compare("ne", f.value(f"and i64 {count}, {lanes >> k}"), 0) for k in range(lanes.bit_length())]


def store_runs(f: Function, element: Element, lanes: int, value: str, pointer: str, runs: Sequence[Value]) -> None:
    """Write the first elements of a vector as the runs that `runs_of` says.

    For processors whose masked stores are slow: on a Zen 3 one takes 20 to 40 cycles, runs take two to eight.
    """
    f.when(runs[0], lambda: store(f, element, lanes, value, pointer))
    for k, wanted in enumerate(runs[1:], 1):
        size = lanes >> k
        low, high = (_piece(f, element, value, 2 * size, start, size) for start in (0, size))
        if size == 1:
            f.when(wanted, lambda one=low, at=pointer: store(f, element, 1, one, at))  # type: ignore[misc]
            return

        def written(part: str = low, rest: str = high, size: int = size, at: str = pointer) -> Sequence[Value]:
            store(f, element, size, part, at)
            return rest, f.at(at, size * element.width_bytes)

        kinds = vector(element.memory, size), "ptr"
        left = f.choose(wanted, kinds, written, lambda part=low, at=pointer: (part, at))  # type: ignore[misc]
        value, pointer = map(str, left)


def _piece(f: Function, element: Element, value: str, lanes: int, start: int, size: int) -> str:
    """So many lanes of a vector, from ``start`` on."""
    full = vector(element.memory, lanes)
    if size == 1:
        return f.value(f"extractelement {full} {value}, i64 {start}")
    indices = ", ".join(f"i32 {start + lane}" for lane in range(size))
    return f.value(f"shufflevector {full} {value}, {full} poison, <{size} x i32> <{indices}>")


def _places(f: Function, lanes: int, pointer: str, stride_bytes: int) -> str:
    """The addresses of evenly spaced elements."""
    step = stride_bytes if known(stride_bytes) else 1
    offsets = "<" + ", ".join(f"i64 {lane * step}" for lane in range(lanes)) + ">"
    if not known(stride_bytes):
        offsets = f.value(f"mul <{lanes} x i64> {broadcast(f, 'i64', lanes, str(stride_bytes))}, {offsets}")
    return f.value(f"getelementptr i8, ptr {pointer}, <{lanes} x i64> {offsets}")


NEAR = 4
"""Elements from one to the next up to which whole vectors are read and those in between dropped: so many loads and
shuffles, where a gather takes a load per element."""


def _picked(f: Function, element: Element, lanes: int, pointer: str, step: int) -> str:
    """Every so manieth element, forwards or backwards, of whole vectors that end where the last element does."""
    full, size = vector(element.memory, lanes), abs(step)
    span = (lanes - 1) * size + 1
    low = min(0, (lanes - 1) * step)
    starts = [min(k * lanes, span - lanes) for k in range(size)]
    parts = [f.load(full, f.at(pointer, (low + at) * element.width_bytes), element.width_bytes) for at in starts]
    wanted = [lane * step - low for lane in range(lanes)]
    found, held = parts[0], list[int | None](at if at < lanes else None for at in wanted)
    if size == 1:
        return reverse(f, element.memory, lanes, found)
    for k, (part, start) in enumerate(zip(parts[1:], starts[1:], strict=True), 1):
        own = [at // lanes == k for at in wanted]
        chosen = [
            lanes + at - start if mine else at_now or 0 for mine, at, at_now in zip(own, wanted, held, strict=True)
        ]
        found = _shuffle(f, element.memory, lanes, found, part, chosen)
        held = [lane if at < (k + 1) * lanes else None for lane, at in enumerate(wanted)]
    return found


def gather(f: Function, element: Element, lanes: int, pointer: str, stride_bytes: int, mask: str | None = None) -> str:
    """Evenly spaced elements; masked lanes are not read and are zero.

    A stride that is a word of the call's table is one of more than `NEAR` elements.
    """
    full = vector(element.memory, lanes)
    if mask is None and lanes > 1 and known(stride_bytes):
        step, rest = divmod(stride_bytes, element.width_bytes)
        if not rest and 0 < abs(step) <= NEAR:
            return _picked(f, element, lanes, pointer, step)
    name = f"llvm.masked.gather.{suffix(element.memory, lanes)}.v{lanes}p0"
    f.module.declare(name, f"{full} {{}}(<{lanes} x ptr>, i32, <{lanes} x i1>, {full})")
    places = _places(f, lanes, pointer, stride_bytes)
    return f.value(
        f"call {full} @{name}(<{lanes} x ptr> {places}, i32 {element.width_bytes}, "
        f"<{lanes} x i1> {mask or mask_of(lanes, lanes)}, {full} zeroinitializer)"
    )


def scatter(
    f: Function, element: Element, lanes: int, value: str, pointer: str, stride_bytes: int, mask: str | None = None
) -> None:
    """Write evenly spaced elements; masked lanes are left alone."""
    full = vector(element.memory, lanes)
    name = f"llvm.masked.scatter.{suffix(element.memory, lanes)}.v{lanes}p0"
    f.module.declare(name, f"void {{}}({full}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
    places = _places(f, lanes, pointer, stride_bytes)
    f.emit(
        f"call void @{name}({full} {value}, <{lanes} x ptr> {places}, i32 {element.width_bytes}, "
        f"<{lanes} x i1> {mask or mask_of(lanes, lanes)})"
    )


AHEAD_BYTES = 2048
"""What lies dense is asked for so long before it is read or written: what a processor fetches by itself ahead of loops,
above all of stores, leaves much of what its caches could bring (a Cascade Lake adds 24 MB in 0.6 of the time)."""


def prefetch(f: Function, pointer: str, *, write: bool = False, level: int = 1) -> None:
    """Ask for a cache line that will be read, or written, in the cache of this level; any address will do."""
    f.module.declare("llvm.prefetch.p0", "void {}(ptr, i32, i32, i32)")
    f.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {4 - level}, i32 1)")


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


def reverse(f: Function, type: str, lanes: int, value: str) -> str:
    """A vector from its last lane to its first."""
    return _shuffle(f, type, lanes, value, value, range(lanes)[::-1])


def transpose(f: Function, type: str, lanes: int, rows: Sequence[str], q: int = 0) -> list[str]:
    """Short rows stood upright: ``rows[lane]`` has ``q`` elements, the result has ``q`` vectors of ``lanes``.

    Rows ``r, r + q, r + 2q, ..`` are joined first, which costs little when they come from memory; what remains is the
    transpose of q x q squares in parallel. Squares of more than 16 bytes swap their quarters until they are no wider.
    Then each round interleaves row ``r`` with row ``r + q / 2``, within 16 bytes, which is one instruction everywhere:
    it turns the digits of an element's number, its row's and its lane's, by one place; after log2(q) rounds rows and
    lanes have changed places. ``q`` is a power of two that divides ``lanes``; by default what `short_row` says.
    """
    q = q or short_row(lanes, type)
    current = [joined(f, type, [rows[r + part * q] for part in range(lanes // q)], q) for r in range(q)]
    size = q
    while size > short_row(lanes, type):
        size //= 2
        low = [lane if not lane & size else lanes + lane - size for lane in range(lanes)]
        high = [lane + size if not lane & size else lanes + lane for lane in range(lanes)]
        for row in range(q):
            if not row & size:
                a, b = current[row], current[row + size]
                current[row] = _shuffle(f, type, lanes, a, b, low)
                current[row + size] = _shuffle(f, type, lanes, a, b, high)
    starts = [lane // size * size + lane % size // 2 + lanes * (lane % 2) for lane in range(lanes)]
    for begin in range(0, q, size):
        part = current[begin : begin + size]
        for _ in range(size.bit_length() - 1):
            pairs = list(zip(part[: size // 2], part[size // 2 :], strict=True))
            part = [
                _shuffle(f, type, lanes, a, b, [start + half for start in starts])
                for a, b in pairs
                for half in (0, size // 2)
            ]
        current[begin : begin + size] = part
    return current


def short_row(lanes: int, type: str) -> int:
    """How many elements fill 16 bytes, or all lanes where there are fewer."""
    width = {"double": 8, "i64": 8, "float": 4, "i32": 4, "i16": 2, "i8": 1}[type]
    return min(lanes, 16 // width)


def joined(f: Function, type: str, parts: Sequence[str], size: int) -> str:
    """Vectors one after the other in one vector."""
    current, count = list(parts), size
    while len(current) > 1:
        joined = []
        for a, b in zip(current[::2], current[1::2], strict=True):
            joined.append(_shuffle(f, type, count, a, b, range(2 * count)))
        current, count = joined, 2 * count
    return current[0]
