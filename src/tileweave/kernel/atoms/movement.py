"""Movement of data: 8 x 8 tiles, asynchronous copies, boxes, tensor memory, vectors, devices at once, shuffles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tileweave.kernel.atoms.atom import BITS, Atom, Condition, Cost, Fragment, fragment, shared
from tileweave.layout import parse

_TILES = "({j}:2@reg, 8:4@lane, 4:1@lane, 2:1@reg)"
_TILES_TRANSPOSED = "({j}:2@reg, 4:1@lane, 2:1@reg, 8:4@lane)"
_ROW_ALIGNED = Condition("row-aligned", "address % 16 == 0")
_SIZES = {"ca": (4, 8, 16), "cg": (16,)}
#: tcgen05.ld: shape -> (lanes, columns per repetition, repetitions, layout of n repetitions).
_TENSOR_LOADS: dict[str, tuple[int, int, tuple[int, ...], str]] = {
    "32x32b": (32, 1, (1, 2, 4, 8, 16, 32, 64, 128), "(32:1@lane, {n}:1@reg)"),
    "16x256b": (16, 8, (1, 2, 4, 8, 16, 32), "(2:2@reg, 8:4@lane, {n}:4@reg, 4:1@lane, 2:1@reg)"),
    "16x128b": (16, 4, (1, 2, 4, 8, 16, 32, 64), "(2:1@reg, 8:4@lane, {n}:2@reg, 4:1@lane)"),
    "16x64b": (16, 2, (1, 2, 4, 8, 16, 32, 64, 128), "(2:1@lane, 8:4@lane, {n}:1@reg, 2:2@lane)"),
    "16x32bx2": (16, 2, (1, 2, 4, 8, 16, 32, 64, 128), "(16:1@lane, 2:16@lane, {n}:1@reg)"),
}
#: What the driver demands of a tensor map, innermost dimension first; sizes and strides in bytes where they say so.
TENSOR_MAP_RULES = (
    Condition("rank", "rank >= 1 and rank <= 5"),
    Condition("base-aligned", "base % 16 == 0"),
    Condition("extent", "dim[i] >= 1 and dim[i] <= 4294967296", "rank"),
    Condition("stride", "stride[i] % 16 == 0 and stride[i] < 1099511627776", "rank - 1"),
    Condition("box", "box[i] >= 1 and box[i] <= 256", "rank"),
    Condition("element-stride", "element_stride[i] >= 1 and element_stride[i] <= 8", "rank"),
    Condition("box-row", "box[0] * bytes % 16 == 0"),
    Condition("swizzle-row", "swizzle == 0 or box[0] * bytes <= swizzle"),
)
_BOX_RULES = (
    Condition("destination-aligned", "address % 128 == 0 and (swizzle == 0 or address % (8 * swizzle) == 0)"),
    Condition("bytes-expected", "expected == bytes"),
)


def _matrix_names() -> Iterator[str]:
    for operation in ("ldmatrix", "stmatrix"):
        for j in (1, 2, 4):
            for trans in ("", ".trans"):
                yield f"{operation}.sync.aligned.m8n8.x{j}{trans}.shared.b16"
    yield "movmatrix.sync.aligned.m8n8.trans.b16"


def _matrix_atom(name: str) -> Atom:
    tiles = _TILES_TRANSPOSED if ".trans" in name else _TILES
    if name.startswith("movmatrix"):
        operands = (
            ("d", fragment("b16", (1, 8, 8), tiles.format(j=1))),
            ("a", fragment("b16", (1, 8, 8), _TILES.format(j=1))),
        )
        return Atom(name, "movmatrix", ("sm_75",), operands, emulate=lambda t: {"d": t["a"]})
    j = int(name.split(".x")[1][0])
    registers = fragment("b16", (j, 8, 8), tiles.format(j=j))
    rows = fragment("b16", (j, 8), f"({j}:8@lane, 8:1@lane)")
    cost = Cost(bytes_moved=128 * j)
    if name.startswith("ldmatrix"):
        return Atom(
            name, "ldmatrix", ("sm_75",), (("d", registers), ("row", rows)), (_ROW_ALIGNED,),
            lambda t: {"d": t["row"]}, cost,
        )  # fmt: skip
    return Atom(
        name, "stmatrix", ("sm_90",), (("row", rows), ("d", registers)), (_ROW_ALIGNED,),
        lambda t: {"row": t["d"]}, cost,
    )  # fmt: skip


def _copy_names() -> Iterator[str]:
    for cached, sizes in _SIZES.items():
        for size in sizes:
            yield f"cp.async.{cached}.shared.global.{size}"
    yield "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    yield "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    yield "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    yield "cp.async.bulk.global.shared::cta.bulk_group"
    for rank in range(1, 6):
        yield f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        yield f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        yield f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2"
        yield f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
        yield f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.bulk_group"


def _copy_atom(name: str) -> Atom:
    if ".bulk" not in name:
        size = int(name.rsplit(".", 1)[1])
        rules = (
            Condition("aligned", f"source % {size} == 0 and destination % {size} == 0"),
            Condition("source-bytes", f"source_bytes >= 0 and source_bytes <= {size}"),
        )
        run = f"({size}:1)"
        operands = (("d", shared("b8", (size,), run)), ("s", Fragment("b8", (size,), parse(run), "global")))
        return Atom(name, "cp.async", ("sm_80",), operands, rules, lambda t: {"d": t["s"]}, Cost(bytes_moved=size))
    if ".tensor" in name:
        first = ("sm_100a", "sm_103a") if "cta_group" in name else ("sm_90",)
        return Atom(name, "tensor copy", first, (), TENSOR_MAP_RULES + _BOX_RULES)
    rules = (Condition("aligned", "source % 16 == 0 and destination % 16 == 0"), Condition("size", "bytes % 16 == 0"))
    return Atom(name, "bulk copy", ("sm_90",), (), rules)


def _tensor_memory_names() -> Iterator[str]:
    for direction in ("ld", "st"):
        for shape, (_, _, repetitions, _) in _TENSOR_LOADS.items():
            for n in repetitions:
                yield f"tcgen05.{direction}.sync.aligned.{shape}.x{n}.b32"


def _tensor_memory_atom(name: str) -> Atom:
    _, direction, _, _, shape, times, _ = name.split(".")
    lanes, columns, _, text = _TENSOR_LOADS[shape]
    n = int(times[1:])
    registers = fragment("b32", (lanes, columns * n), text.format(n=n))
    cells = Fragment("b32", (lanes, columns * n), parse(f"({lanes}:1@TLane, {columns * n}:1@TCol)"), "tensor")
    operands = (("d", registers), ("t", cells)) if direction == "ld" else (("t", cells), ("d", registers))
    source, target = ("t", "d") if direction == "ld" else ("d", "t")
    return Atom(
        name, "tcgen05." + direction, ("sm_100a", "sm_103a"), operands,
        (Condition("lanes", "lane == 32 * (warp % 4)"),),
        lambda tiles: {target: tiles[source]}, Cost(bytes_moved=4 * lanes * columns * n),
    )  # fmt: skip


def _vector_names() -> Iterator[str]:
    for direction in ("ld", "st"):
        for dtype, widths in (("f32", (1, 2, 4, 8)), ("b64", (1, 2, 4)), ("b16", (1, 2, 4)), ("b8", (1, 2, 4))):
            for width in widths:
                yield f"{direction}.global" + (f".v{width}" if width > 1 else "") + f".{dtype}"


def _vector_atom(name: str) -> Atom:
    parts = name.split(".")
    width = int(parts[2][1:]) if parts[2][0] == "v" else 1
    size = width * BITS[parts[-1]] // 8
    registers = fragment(parts[-1], (width,), f"({width}:1@reg)")
    memory = Fragment(parts[-1], (width,), parse(f"({width}:1)"), "global")
    operands = (("d", registers), ("s", memory)) if parts[0] == "ld" else (("s", memory), ("d", registers))
    first = ("sm_100",) if size == 32 else ("sm_75",)
    source, target = ("s", "d") if parts[0] == "ld" else ("d", "s")
    return Atom(
        name, "vector", first, operands, (Condition("aligned", f"address % {size} == 0"),),
        lambda tiles: {target: tiles[source]}, Cost(bytes_moved=32 * size),
    )  # fmt: skip


#: multimem.ld_reduce: type -> (elements at once, what of the type stands in the name).
_MULTICAST: dict[str, tuple[tuple[int, ...], dict[int, str]]] = {
    "f32": ((1, 2, 4), {1: "f32", 2: "v2.f32", 4: "v4.f32"}),
    **{t: ((2, 4, 8), {2: f"{t}x2", 4: f"v2.{t}x2", 8: f"v4.{t}x2"}) for t in ("f16", "bf16")},
    **{t: ((1,), {1: t}) for t in ("f64", "s32", "u32", "u64")},
}


def multicast_name(fn: str, dtype: str, width: int) -> str | None:
    """The ``multimem.ld_reduce`` that combines so many elements of a type over all devices; None where there is none.

    Narrow floats are added in FP32 and rounded once. A maximum of floats would drop NaN, so there is none.

    Example:
        >>> multicast_name("add", "f16", 8)
        'multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2'
    """
    widths, spelled = _MULTICAST.get(dtype, ((), {}))
    if width not in widths or not (fn == "add" or (fn in ("min", "max") and dtype[0] in "su")):
        return None
    precision = ".acc::f32" if dtype in ("f16", "bf16") else ""
    return f"multimem.ld_reduce.relaxed.sys.global.{fn}{precision}.{spelled[width]}"


def multicast_widths(dtype: str) -> tuple[int, ...]:
    """How many elements of a type a ``multimem.ld_reduce`` may combine at once; none where it has not the type."""
    return _MULTICAST.get(dtype, ((), {}))[0]


def _multicast_names() -> Iterator[str]:
    for dtype, (widths, _) in _MULTICAST.items():
        for fn in ("add", "min", "max"):
            yield from (name for width in widths if (name := multicast_name(fn, dtype, width)) is not None)


def _multicast_atom(name: str) -> Atom:
    last = name.rsplit(".", 1)[1]
    dtype = last.removesuffix("x2")
    width = (2 if last.endswith("x2") else 1) * int((re.findall(r"\.v(\d)\.", name) or ["1"])[0])
    size = width * BITS[dtype] // 8
    operands = (
        ("d", fragment(dtype, (width,), f"({width}:1@reg)")),
        ("s", Fragment(dtype, (width,), parse(f"({width}:1)"), "global")),
    )
    return Atom(
        name, "multimem", ("sm_90",), operands, (Condition("aligned", f"address % {size} == 0"),),
        cost=Cost(bytes_moved=32 * size),
    )  # fmt: skip


def _warp_names() -> Iterator[str]:
    for mode in ("idx", "up", "down", "bfly"):
        yield f"shfl.sync.{mode}.b32"
    for operation in ("add", "min", "max"):
        yield f"redux.sync.{operation}.s32"
    yield "redux.sync.min.f32"
    yield "redux.sync.max.f32"
    yield "setmaxnreg.inc.sync.aligned.u32"
    yield "setmaxnreg.dec.sync.aligned.u32"
    yield "elect.sync"


def _warp_atom(name: str) -> Atom:
    word = fragment("b32", (32,), "(32:1@lane)")
    if name.startswith("shfl"):
        return Atom(
            name, "shuffle", ("sm_75",), (("d", word), ("a", word)), (Condition("lane-in-mask", "lane_in_mask"),)
        )
    if name.startswith("redux"):
        total = Fragment("b32", (1,), parse("(1:0) + [32:1@lane]"))
        arch = ("sm_100a", "sm_103a") if name.endswith("f32") else ("sm_80",)
        return Atom(name, "reduction", arch, (("d", total), ("a", word)))
    if name.startswith("setmaxnreg"):
        rule = Condition("registers", "count % 8 == 0 and count >= 24 and count <= 256")
        return Atom(name, "registers", ("sm_90a", "sm_100a", "sm_103a", "sm_120a"), (), (rule,))
    return Atom(name, "elect", ("sm_90",), ())


_GROUPS = (
    (_matrix_names, _matrix_atom),
    (_copy_names, _copy_atom),
    (_tensor_memory_names, _tensor_memory_atom),
    (_vector_names, _vector_atom),
    (_multicast_names, _multicast_atom),
    (_warp_names, _warp_atom),
)


def movement_names() -> Iterator[str]:
    """Every row of this module."""
    for names, _ in _GROUPS:
        yield from names()


def movement_atom(name: str) -> Atom | None:
    """The row of one instruction, or None."""
    for names, build in _GROUPS:
        if name in names():
            return build(name)
    return None
