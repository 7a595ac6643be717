"""Shared tiles that tensor maps write and descriptors of products read: recognised from layout and swizzle."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileweave.index import Expr, ExprLike, as_expr, bounds, divisor, simplify
from tileweave.kernel.atoms.atom import generation
from tileweave.kernel.dispatch.context import Context
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.ir import Candidate, KernelTensor, Op, Region, before, clipped
from tileweave.kernel.threads import LANE, Address, Barrier, ClaimedElement, TensorBox

#: Swizzle width in bytes -> its code in a descriptor.
CODES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True, slots=True)
class BoxTile:
    """A tile in shared memory of one of the four canonical forms.

    Args:
        major: the shown dimension, 0 or 1, along which elements are neighbours.
        swizzle: the width of the swizzle in bytes, 0, 32, 64 or 128.
        width: elements of one row of the swizzle atom along `major`.
        atom: elements from one atom to the next along `major`; 0 where there is only one.
        pitch: elements from one row to the next across `major`.
    """

    major: int
    swizzle: int
    width: int
    atom: int
    pitch: int

    def descriptor(self, bytes_: int) -> tuple[int, int, int]:
        """Leading and stride byte offset, and the swizzle's code."""
        if self.major == 1:
            return 16, 8 * self.swizzle, CODES[self.swizzle]
        return self.atom * bytes_ or 16, 8 * self.swizzle, CODES[self.swizzle]


def tile_of_region(region: Region) -> BoxTile | str:
    """The form of a region of a shared tensor that shows two dimensions, or what is wrong with it."""
    tensor = region.tensor
    if tensor.space != "shared" or len(region.dims) != 2:
        return "not a matrix in shared memory"
    rows = places.rows_of(tensor)
    major = places.fastest(region)
    if major is None:
        return "no dimension with stride 1"
    fast, slow = rows[region.dims[major]], rows[region.dims[1 - major]]
    part = _part(region, major)
    if part:
        return part
    bytes_ = tensor.element.bits // 8
    if tensor.swizzle is None:
        if len(fast) == 1 and len(slow) == 1 and slow[0][1] == fast[0][0]:
            return BoxTile(major, 0, fast[0][0], 0, slow[0][1])
        return "neither dense nor swizzled"
    width = 16 << tensor.swizzle.bits
    unit = (16 // bytes_).bit_length() - 1
    if tensor.swizzle.base != unit or tensor.swizzle.shift != 3 or width not in (32, 64, 128):
        return f"the swizzle {tensor.swizzle} is not that of tensor maps, <B,{unit},3>"
    elements = width // bytes_
    if fast[-1] != (elements, 1) or len(fast) > 2:
        return f"rows of {fast[-1][0]} elements, not {elements}"
    if len(slow) != 1 or slow[0][1] != elements:
        return f"rows {slow[0][1] if slow else 0} elements apart, not {elements}"
    return BoxTile(major, width, elements, fast[0][1] if len(fast) == 2 else 0, elements)


def _part(region: Region, major: int) -> str:
    """Why a part of a tensor is no tile: it is cut along `major`, or not at a period of its swizzle, 8 rows."""
    tensor, slow = region.tensor, region.dims[1 - major]
    along = region.dims[major]
    if region.extent[along] != tensor.shape[along]:
        return "a part of the tensor's rows"
    if region.extent[slow] == tensor.shape[slow]:
        return ""
    begin = region.begin[slow]
    aligned = divisor(begin) % 8 == 0 if isinstance(begin, Expr) else begin % 8 == 0
    if tensor.swizzle is None or not aligned or region.extent[slow] % 8:
        return "a part of the tensor that is not of 8 swizzled rows"
    return ""


def map_problem(tensor: KernelTensor, arch: str) -> str:
    """Why no tensor map describes a tensor in global memory; empty if one does."""
    if generation(arch) < 90:
        return f"{arch} has no tensor maps"
    if len(tensor.shape) > 5:
        return f"rank {len(tensor.shape)}"
    strides = places.strides(tensor)
    if None in strides:
        return "a blocked layout"
    bytes_ = tensor.element.bits // 8
    if not strides or strides[-1] not in (0, 1) or (tensor.shape[-1] > 1 and strides[-1] != 1):
        return "the last dimension is not contiguous"
    for dim, stride in enumerate(strides[:-1]):
        if tensor.shape[dim] > 1 and (stride is None or stride * bytes_ % 16 or stride <= 0):
            return f"stride {stride} of dimension {dim} is {(stride or 0) * bytes_} bytes, no multiple of 16"
    if tensor.element.bits < 8 or tensor.dtype not in _MAPPED:
        return f"no map holds {tensor.dtype}"
    return ""


_MAPPED = frozenset({"f16", "bf16", "f32", "f64", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "e4m3", "e5m2"})


def boxes(region: Region, tile: BoxTile) -> list[tuple[int, int]]:
    """The boxes that fill a tile: for each its first coordinate along `major`, and its place in elements."""
    extent = region.shape[tile.major]
    if tile.swizzle == 0:
        return [(0, 0)]
    return [(start, start // tile.width * tile.atom) for start in range(0, extent, tile.width)]


def box_problem(arch: str, op: Op) -> str:
    """Why a copy cannot be boxes of the copy engine; empty if it can."""
    out, source = op.outs[0], op.ins[0]
    if op.name != "copy_async":
        return "no asynchronous copy was asked for"
    if not isinstance(source, Region) or {out.tensor.space, source.tensor.space} != {"global", "shared"}:
        return "not between global and shared memory"
    if out.tensor.dtype != source.tensor.dtype:
        return "the types differ"
    far, near = (source, out) if source.tensor.space == "global" else (out, source)
    problem = map_problem(far.tensor, arch)
    if problem:
        return problem
    if near is out and op.barrier is None:
        return "no mbarrier to complete on"
    tile = tile_of_region(near)
    if isinstance(tile, str):
        return tile
    if near.masked:
        return "the tile in shared memory has a mask"
    last = far.tensor.rank - 1
    if far.dims[tile.major] != last:
        return "neighbours in shared memory are none in global memory"
    rows = near.shape[1 - tile.major]
    width = tile.width if tile.swizzle else near.shape[tile.major]
    bytes_ = far.tensor.element.bits // 8
    if rows > 256 or width > 256 or width * bytes_ % 16:
        return f"a box of {rows} x {width}; at most 256 each, rows of a multiple of 16 bytes"
    for d in far.dims:
        if far.mask[d] != far.extent[d] and far.mask[d] != clipped(far.begin[d], far.extent[d], far.tensor.shape[d]):
            return "a mask that is not the tensor's end"
        if far.skip and far.skip[d] != before(far.begin[d]):
            return "a mask that is not the tensor's beginning"
    return "cp.async was asked for" if op.option("use") == "cp.async" else ""


def copy_boxes(context: Context, op: Op) -> None:
    """Emits a copy as boxes: one elected thread issues them."""
    out, source = op.outs[0], op.ins[0]
    load = out.tensor.space == "shared"
    far, near = (source, out) if load else (out, source)
    tile = tile_of_region(near)  # type: ignore[arg-type]
    if isinstance(tile, str) or not isinstance(far, Region) or not isinstance(near, Region):
        raise TypeError(tile)
    major, minor = far.dims[tile.major], far.dims[1 - tile.major]
    box = [1] * far.tensor.rank
    box[minor] = near.shape[1 - tile.major]
    box[major] = tile.width if tile.swizzle else near.shape[tile.major]
    map_ = context.tensor_map(TensorBox(far.tensor.name, tuple(box), tile.swizzle))
    plain = replace(near.tensor, swizzle=None)
    base = places.offset(plain, near.begin)
    rank = far.tensor.rank
    for start, at in boxes(near, tile):
        coordinates = list(far.begin)
        coordinates[major] = far.begin[major] + start
        spelled = [simplify(c) if isinstance(c, Expr) else c for c in reversed(coordinates)]
        corner = list(near.begin)
        corner[near.dims[tile.major]] = near.begin[near.dims[tile.major]] + start
        element = ClaimedElement(plain, tuple(corner), near.tensor)
        where = Address(context.buffer(near.tensor), simplify(as_expr(base + at)), 0, element)
        dims = tuple((n, f, box[f]) for n, f in zip(near.dims, far.dims, strict=True))
        cover = dims, tuple(coordinates)
        if load:
            name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
            bar = barrier_of(context, op.barrier)  # type: ignore[arg-type]
            several = {k: v for k, v in op.options if k == "multicast"}
            name += ".multicast::cluster" if several else ""
            if op.option("leader"):
                name += ".cta_group::2"
            context.instruction(name, where, map_, bar, *spelled, mask=elected(context), cover=cover, **several)
        else:
            name = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
            context.instruction(name, map_, where, *spelled, mask=elected(context), cover=cover)
    count = len(boxes(near, tile))
    shape = " x ".join(map(str, box))
    reason = f"{count} box{'es' * (count > 1)} {shape}, swizzle {tile.swizzle}"
    blocks = op.option("multicast")
    if isinstance(blocks, int):
        reason += f", to {blocks.bit_count()} blocks of the cluster"
    spared = "one thread asks the copy engine for all of it"
    context.choose(
        op, "tma", Candidate("tma", True, reason), *(Candidate(n, False, spared) for n in ("cp.async", "ld, st"))
    )


def barrier_of(context: Context, region: Region) -> Barrier:
    """The mbarrier that a region of one element is."""
    at: ExprLike = 0
    for dim, begin in enumerate(region.begin):
        at = at * region.tensor.shape[dim] + begin
    return Barrier(context.buffer(region.tensor), at)


def elected(context: Context) -> Expr:
    """The condition that a thread is the one that acts for its group."""
    lane = as_expr(LANE) < 1
    warp = context.threads.warp
    if isinstance(warp, Expr) and bounds(warp)[1] != 0:
        return (warp < 1) & lane
    return lane
