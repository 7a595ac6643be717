"""Tensor memory (sm_100a): products by ``tcgen05.mma`` recognised from layouts, ``tcgen05.ld`` and ``tcgen05.st``."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np

from tileweave.index import Expr, ExprLike, as_expr, constant_of, divisor, simplify, symbol
from tileweave.kernel.atoms import atom
from tileweave.kernel.atoms.mma import SCALE_COPY, SCALED
from tileweave.kernel.dispatch.boxes import BoxTile, barrier_of, elected, tile_of_region
from tileweave.kernel.dispatch.context import Context, declined, place, slot
from tileweave.kernel.dispatch.groups import linear, types
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.orders import ChainOrder
from tileweave.kernel.dispatch.layouts.registers import Holding, iter_at
from tileweave.kernel.ir import Candidate, Commit, Kernel, KernelTensor, Op, Region, Scalar, walk
from tileweave.kernel.ir.statements import Alloc
from tileweave.kernel.ir.verify import TENSOR_LANES, tensor_columns
from tileweave.kernel.threads import Address, Buffer, Local
from tileweave.layout import Layout

#: Type of A and B -> the kind of product, and its number in the instruction's descriptor.
_KINDS = {"tf32": ("tf32", 2), "f16": ("f16", 0), "bf16": ("f16", 1), "e4m3": ("f8f6f4", 0), "e5m2": ("f8f6f4", 1),
          "u8": ("i8", 0), "s8": ("i8", 1)}  # fmt: skip
#: Swizzle width in bytes -> its code in a descriptor of sm_100.
_CODES = {128: 2, 64: 4, 32: 6}
_WIDEST = 64
#: Columns that a warpgroup loads before the next one's.
_TURN = 32


def has(arch: str) -> bool:
    """Whether a target has tensor memory."""
    return arch.startswith(("sm_100", "sm_103")) and arch.endswith("a")


def allocate(context: Context, tensor: KernelTensor) -> Buffer:
    """Columns of tensor memory, allocated by the first warp of the block; all threads learn where they are."""
    if not has(context.arch):
        raise declined(context.line, f"{context.arch} has no tensor memory", legal="sm_100a", tensor=tensor)
    if context.threads.warps != context.warps:
        raise declined(context.line, "tensor memory declared by a part of the block", legal="outside every scope")
    return _allocated(context, tensor.name, tensor)


def allocate_scales(context: Context, tensor: KernelTensor) -> None:
    """Columns for scales that lie in shared memory: four for every 512 bytes, in the same order."""
    if not has(context.arch):
        raise declined(context.line, f"{context.arch} has no tensor memory", legal="sm_100a", tensor=tensor)
    if context.threads.warps != context.warps:
        raise declined(context.line, "scales declared by a part of the block", legal="outside every scope")
    context.scales[tensor.name] = _allocated(context, f"{tensor.name}_cells", tensor)


def _allocated(context: Context, name: str, tensor: KernelTensor) -> Buffer:
    columns = tensor_columns(tensor)
    buffer = Buffer(name, tensor.dtype, "tensor", columns, 16, str(tensor.layout))
    where = Buffer(f"{name}_address", "u32", "shared", 1, 16)
    context.shared.append(where)
    first = symbol("warp", 0, context.warps) < 1
    context.instruction(f"tcgen05.alloc.{_group(context)}", Address(where), columns, mask=first)
    context.sync()
    context.emit(Local(_base(buffer), Address(where), place(context.line)))
    return buffer


def _group(context: Context) -> str:
    return f"cta_group::{2 if context.pair else 1}"


def pairs(kernel: Kernel) -> bool:
    """Whether products of a kernel are of two blocks: then everything of tensor memory is."""
    return any(isinstance(s, Op) and s.option("pair") for s in walk(kernel.body))


def release(context: Context, kernel: Kernel) -> None:
    """At the end of a block its tensor memory is given back, when nobody uses it any more."""
    tensors = [s.tensor for s in walk(kernel.body) if isinstance(s, Alloc) and s.tensor.space == "tensor"]
    buffers = [*map(context.buffer, tensors), *context.scales.values()]
    if not buffers:
        return
    (context.cluster_sync if context.pair else context.sync)()
    first = symbol("warp", 0, context.warps) < 1
    for buffer in buffers:
        context.instruction(f"tcgen05.dealloc.{_group(context)}", _base(buffer), buffer.elements, mask=first)
    context.instruction(f"tcgen05.relinquish_alloc_permit.{_group(context)}", mask=first)


def _base(buffer: Buffer) -> Expr:
    """The address of a tensor's first cell: lane in the upper half, column in the lower."""
    return symbol(f"{buffer.name}_at", 0, None)


def _cell(buffer: Buffer, lane: ExprLike, column: ExprLike) -> ExprLike:
    return simplify(as_expr(_base(buffer) + lane * 65536 + column))


def _element(context: Context, region: Region, lane: ExprLike, column: ExprLike) -> ExprLike:
    """The cell of an element of a region, the first one in it where several are in one."""
    per = 32 // region.tensor.element.bits
    at = simplify(as_expr(region.begin[1] + column))
    inside = constant_of(simplify(as_expr(at % per)))
    if inside != 0:
        raise declined(context.line, f"column {at} of {region.tensor.name}", legal=f"a multiple of {per}")
    return _cell(context.buffer(region.tensor), lane, simplify(as_expr(at // per)))


def problems(op: Op, arch: str) -> Iterator[str]:
    """Everything that stands against the ``tcgen05.mma`` of a product; nothing if it has one."""
    a, b, out = op.ins[0], op.ins[1], op.outs[0]
    if not isinstance(a, Region) or not isinstance(b, Region):
        yield "an operand is a number"
        return
    first, second, sums = types(op)
    kinds = [_KINDS.get(t, ("", 0))[0] for t in (first, second)]
    if "f32" in (first, second):
        yield "f32 is multiplied as tf32, which drops 13 bits of it: precision='tf32', or cast to f16 or bf16"
    elif "" in kinds:
        yield f"no product into tensor memory of {first} and {second}"
    elif kinds[0] != kinds[1]:
        yield f"{first} and {second} are of different kinds"
    elif a.tensor.element.bits == 16 and first != second:
        yield f"{first} and {second}: 16-bit operands of two types"
    elif not (row := atom(f"tcgen05.mma.cta_group::1.kind::{kinds[0]}")).runs_on(arch):
        yield f"needs {' or '.join(row.arch)}, not {arch}"
    yield from _scale_problems(op)
    whole = kinds[0] == "i8"
    if sums != ("s32" if whole else "f32"):
        yield f"sums in {sums}, not {'s32' if whole else 'f32'}"
    (rows, columns), bits = out.shape, a.tensor.element.bits
    step = 32 if op.option("pair") else 16 if whole and columns > 32 else rows // 8
    if op.option("pair") and rows != 128:
        yield f"m = {rows} of each block of a pair is not 128"
    elif rows not in TENSOR_LANES:
        yield f"m = {rows} is not {' or '.join(map(str, TENSOR_LANES))}"
    elif columns % step or columns > 256:
        yield f"n = {columns} is no multiple of {step} up to 256"
    if a.shape[1] % (256 // bits):
        yield f"k = {a.shape[1]} is no multiple of {256 // bits}"
    for role, region in (("A", a), ("B", b)):
        if region.tensor.space == "tensor":  # of A, as verify.py has it
            if region.shape[0] != 128 or region.dims != (0, 1) or op.option("pair"):
                yield f"{role} in tensor memory is not 128 lanes of one block, or turned"
            continue
        tile = tile_of_region(region)
        if region.masked:
            yield f"{role} has a mask"
        if isinstance(tile, str):
            yield f"{role}: {tile}"
        elif tile.swizzle == 0:
            yield f"{role} is not swizzled"
        elif tile.major == 0 and bits != 16:
            yield f"{role} is not contiguous along k, as {bits}-bit types must be"


def _scale_problems(op: Op) -> Iterator[str]:
    """What stands against the scales of a product."""
    if len(op.ins) == 3:
        return
    (rows, columns), a = op.outs[0].shape, op.ins[0]
    if rows != 128:
        yield f"m = {rows} of a product with scales is not 128"
    if columns % 128:
        yield f"n = {columns} of a product with scales is no multiple of 128: they come by 128 rows"
    if isinstance(a, Region) and a.shape[1] % 128:
        yield f"k = {a.shape[1]} of a product with scales is no multiple of 128: they come by four"
    for role, region in zip("AB", op.ins[3:], strict=True):
        if not isinstance(region, Region) or region.tensor.space != "shared" or len(region.dims) != 2:
            yield f"the scales of {role} are no matrix in shared memory"
        elif region.masked:
            yield f"the scales of {role} have a mask"
        elif region.shape[0] % 128 == 0 and region.shape[1] % 4 == 0 and not _lies_as_scales(region):
            yield f"the scales of {role} do not lie as tensor memory takes them: layout='scales'"


def _lies_as_scales(region: Region) -> bool:
    """Whether 512 bytes have four scales of 128 rows, blocks of rows side by side, wherever the region begins."""
    tensor, dims, rows = region.tensor, region.dims, region.shape[0]
    begins = [simplify(as_expr(region.begin[d])) for d in dims]
    whole = constant_of(begins[0]) == 0 and region.extent[dims[0]] == tensor.shape[dims[0]]
    if tensor.swizzle is not None or not whole or (divisor(begins[1]) or 4) % 4:
        return False
    row, column = np.indices((rows, tensor.shape[dims[1]]))
    at: list[Any] = [np.zeros_like(row)] * tensor.rank
    at[dims[0]], at[dims[1]] = row, column
    wanted = column // 4 * (rows * 4) + row // 128 * 512 + row % 32 * 16 + row // 32 % 4 * 4 + column % 4
    others = [n for d, line in enumerate(places.rows_of(tensor)) if d not in dims for e, n in line if e > 1]
    return bool(np.all(places.offset(tensor, at) == wanted)) and all(n % 512 == 0 for n in others)


def _recognised(op: Op, arch: str) -> tuple[BoxTile | None, BoxTile] | str:
    """The tiles of A, None where it is in tensor memory, and of B; or what stands against the product."""
    found = "; ".join(problems(op, arch))
    if found:
        return found
    tiles = [tile_of_region(v) for v in op.ins[:2] if isinstance(v, Region) and v.tensor.space != "tensor"]
    return (tiles[0] if len(tiles) == 2 else None), tiles[-1]  # type: ignore[return-value]


def product(context: Context, op: Op) -> None:
    """A product into tensor memory: one elected thread issues an instruction for every step along k."""
    found = _recognised(op, context.arch)
    a, b, out = op.ins[0], op.ins[1], op.outs[0]
    if isinstance(found, str) or not isinstance(a, Region) or not isinstance(b, Region):
        raise declined(op.line, f"a product into tensor memory: {found}", legal="swizzled tiles in shared memory")
    first, second, _ = types(op)
    kind, _ = _KINDS[first]
    scaled = len(op.ins) == 5
    row = atom(
        SCALED if scaled else f"tcgen05.mma.{_group(context)}.kind::{kind}{'.tensor_a' if found[0] is None else ''}"
    )
    depth = 256 // a.tensor.element.bits
    tiles = found
    turned = (tile is not None and tile.major == 0 for tile in tiles)
    rows = 256 if op.option("pair") else out.shape[0]
    number = (
        scaled_descriptor(first, second, out.shape[1])
        if scaled
        else instruction_descriptor(first, second, rows, out.shape[1], found)
    )
    options: dict[str, Any] = {
        role: (*tile.descriptor(region.tensor.element.bits // 8)[:2], _CODES[tile.swizzle])
        for role, tile, region in (("a", tiles[0], a), ("b", tiles[1], b))
        if tile is not None
    }
    options |= {"a_dims": a.dims, "b_dims": b.dims}
    options["declared"] = (
        ("d", 2 if kind == "i8" else 1), ("a", _KINDS[first][1]), ("b", _KINDS[second][1]),
        ("m", rows), ("n", out.shape[1]),
        *((f"{role} transposed", int(major)) for role, major in zip("ab", turned, strict=True)),
    )  # fmt: skip
    if scaled:
        options["declared"] = (
            ("a", _KINDS[first][1]), ("b", _KINDS[second][1]), ("m", 128), ("n", out.shape[1]), ("e8m0", 1),
            ("others", 0),
        )  # fmt: skip
    target = _cell(context.buffer(out.tensor), 0, out.begin[1])
    cells = [_copied_scales(context, v) for v in op.ins[3:] if isinstance(v, Region)]
    asked = op.option("keep", 0 if isinstance(op.ins[2], Scalar) else 1)
    kept = asked if isinstance(asked, Expr) else int(bool(asked))
    for step in range(a.shape[1] // depth):
        at = step * depth
        left: Any = _element(context, a, 0, at) if tiles[0] is None else linear(context, a, (0, at))
        right = linear(context, b, (0, at))
        keep = kept if step == 0 else 1
        place = step % 4 * (1 << 29 | 1 << 4)  # which byte of each cell
        scales = [one[step // 4] for one in cells]
        context.instruction(
            row.name, target, left, right, number | place * scaled, keep, *scales, mask=elected(context), **options
        )
    shape = f"m{rows}n{out.shape[1]}k{depth}"
    what = f"{a.shape[1] // depth} steps of {shape}" + ", a scale of 32 terms each by tcgen05.cp" * scaled
    reason = Candidate("tcgen05", True, what)
    apart = Candidate("mma.sync", False, "one thread multiplies whole tiles in shared memory")
    context.choose(op, row.name, reason, apart, order=ChainOrder(depth))


def _copied_scales(context: Context, region: Region) -> list[ExprLike]:
    """Copies scales to tensor memory; where those of each 128 terms lie there.

    Each 512 bytes have four columns of their own. So they are written anew only where the bytes are, which nobody may
    before the product that read them is complete: nothing else orders a copy behind a product.
    """
    found, cells = list[ExprLike](), context.scales[region.tensor.name]
    for block in range(region.shape[1] // 4):
        for part in range(region.shape[0] // 128):
            source = linear(context, region, (128 * part, 4 * block))
            at = _cell(cells, 0, simplify(as_expr(source.offset) // 128))
            found += [at] if part == 0 else []
            context.instruction(SCALE_COPY, at, source, mask=elected(context), dims=region.dims)
    return found


def scaled_descriptor(a: str, b: str, columns: int) -> int:
    """The 32-bit number of a ``tcgen05.mma`` of 128 rows with scales of type e8m0."""
    return _KINDS[a][1] << 7 | _KINDS[b][1] << 10 | columns // 8 << 17 | 1 << 23 | 1 << 27


def instruction_descriptor(a: str, b: str, rows: int, columns: int, tiles: tuple[BoxTile | None, BoxTile]) -> int:
    """The 32-bit number that names types and shape of a ``tcgen05.mma`` with a result in f32, or s32."""
    value = (2 if _KINDS[a][0] == "i8" else 1) << 4 | _KINDS[a][1] << 7 | _KINDS[b][1] << 10
    for bit, tile in zip((15, 16), tiles, strict=True):
        value |= (tile is not None and tile.major == 0) << bit
    return value | columns // 8 << 17 | rows // 16 << 24


def commit(context: Context, s: Commit) -> None:
    """An arrival when the products of the elected thread are complete."""
    bar = barrier_of(context, s.barrier)  # type: ignore[arg-type]
    mask: tuple[int, ...] = () if s.mask is None else (s.mask,)
    name = f"tcgen05.commit.{_group(context)}" + (".multicast" if mask else "")
    context.instruction(name, bar, *mask, mask=elected(context))


def loaded_layout(op: Op, warps: int) -> tuple[Layout, tuple[int, ...]]:
    """How registers that are loaded from tensor memory lie: a lane of it in each thread, its columns in slots.

    64 rows lie in the first 16 lanes of each warp, and in registers as the result of a ``wgmma`` does. Several
    warpgroups take turns at the columns.
    """
    rows, columns = op.outs[0].shape
    groups = max(1, warps // 4)
    each = columns // groups
    run = _run(each, groups)
    turns = [(each // run, "reg", run * rows // 128), (groups, "warp", 4)] if groups > 1 else []
    if rows == 64:
        lanes = [(4, "warp", 1), (2, "reg", 2), (8, "lane", 4)]
        slots = [(run // 8, "reg", 4), (4, "lane", 1), (2, "reg", 1)]
    else:
        lanes, slots = [(rows // 32, "warp", 1), (32, "lane", 1)], [(run, "reg", 1)]
    return Layout(tuple(iter_at(*one) for one in (*lanes, *turns, *slots))), (rows, groups * each)


def _run(each: int, groups: int) -> int:
    """Columns that a warpgroup has side by side: several take turns, so that each has some of every 128 bytes."""
    return gcd(each, _TURN) if groups > 1 else each


def move(context: Context, op: Op, buffer: Buffer, held: Holding) -> None:
    """Between tensor memory and registers: each of four warps reaches its own 32 lanes, and waits for its own part."""
    load = op.outs[0].tensor.space == "register"
    there = op.ins[0] if load else op.outs[0]
    if not isinstance(there, Region):
        raise TypeError(type(there).__name__)
    lanes, columns = there.shape
    how, warps = "ld" if load else "st", context.threads.warps
    groups = warps // 4
    if not groups or warps % 4 or context.threads.first % 4 or columns % groups or there.masked:
        raise declined(op.line, f"{lanes} lanes of tensor memory and {warps} warps",
                       legal="all lanes by warpgroups that share the columns evenly")  # fmt: skip
    layout, _ = loaded_layout(op, warps)
    if held.layout != layout or buffer.dtype != there.tensor.dtype:
        raise declined(op.line, f"registers of {buffer.dtype} that lie as {held.layout}",
                       legal=f"{there.tensor.dtype}, {layout}")  # fmt: skip
    per, each = 32 // there.tensor.element.bits, columns // groups
    if each % per:
        raise declined(op.line, f"{each} columns of {buffer.dtype}", legal=f"a multiple of {per}")
    if lanes == 64 and (per != 1 or each % 8):
        raise declined(op.line, f"64 rows of {each} columns of {buffer.dtype}", legal="f32, a multiple of 8")
    width = gcd(_run(each, groups) // per, _WIDEST)  # columns of an instruction
    shape = f"32x32b.x{width}" if lanes == 128 else f"16x256b.x{width // 8}"
    name = f"tcgen05.{how}.sync.aligned.{shape}.b32"
    warp = context.threads.warp
    lane, first = (warp, 0) if groups == 1 else (warp % 4, warp // 4 * (width * per))

    def one(v: ExprLike) -> None:
        where = _element(context, there, lane * 32, first + v * (width * per * groups))
        held_by_each = width * per * lanes // 128
        slots = slot(buffer, v * held_by_each, held_by_each)
        context.instruction(name, *((slots, where) if load else (where, slots)))

    context.loop(each // per // width, one)
    context.instruction(f"tcgen05.wait_{how}")
    said = f"{each // per // width} x {lanes // 4} lanes x {width} cells a warp"
    context.choose(op, name, Candidate(f"tcgen05.{how}", True, said))
