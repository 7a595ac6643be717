"""Products of warpgroups: ``wgmma`` recognised from layouts, its descriptors derived from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tileweave.errors import BackendError
from tileweave.index import ExprLike, as_expr, simplify
from tileweave.kernel.atoms import Atom, atom
from tileweave.kernel.dispatch.boxes import BoxTile, tile_of_region
from tileweave.kernel.dispatch.context import Context, slot
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.ir import Op, Region
from tileweave.kernel.threads import Address, Buffer, ClaimedElement
from tileweave.layout import Coord, Iter, Layout

_RESULTS = {
    ("f16", "f16", "f32"), ("bf16", "bf16", "f32"), ("f16", "f16", "f16"), ("tf32", "tf32", "f32"),
    *((a, a, "s32") for a in ("s8", "u8")),
    *((a, b, "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
}  # fmt: skip


@dataclass(frozen=True)
class Wide:
    """A product as ``wgmma``.

    Args:
        row: the instruction.
        groups: warpgroups of the scope, one below the other along m.
        tiles: instructions of one warpgroup along m and along n.
        a, b: the forms of the operands in shared memory.
    """

    row: Atom
    groups: int
    tiles: tuple[int, int]
    a: BoxTile
    b: BoxTile

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return self.row.name

    def result(self) -> tuple[Layout, tuple[int, int]]:
        """The layout of C and its extents."""
        width = self.row["d"].shape[1]
        slots = width // 2
        rows, columns = self.tiles
        shard = [
            *((self.groups, "warp", 4), (rows, "reg", slots * columns), (4, "warp", 1), (2, "reg", 2), (8, "lane", 4)),
            *((columns, "reg", slots), (width // 8, "reg", 4), (4, "lane", 1), (2, "reg", 1)),
        ]
        iters = tuple(Iter(n, Coord.of({axis: stride})) for n, axis, stride in shard if n > 1)
        return Layout(iters), (64 * self.groups * rows, width * columns)


def types(op: Op) -> tuple[str, str, str]:
    """The types that a product multiplies, A's and B's, and the type of its result."""
    a, b = (v.tensor.dtype if isinstance(v, Region) else v.dtype for v in op.ins[:2])
    precision = op.option("precision")
    return (str(precision),) * 2 + (op.outs[0].tensor.dtype,) if precision else (a, b, op.outs[0].tensor.dtype)


def _recognised(op: Op, warps: int, arch: str) -> Wide | str:
    a, b, out = op.ins[0], op.ins[1], op.outs[0]
    if arch != "sm_90a":
        return f"needs sm_90a, not {arch}"
    if not isinstance(a, Region) or not isinstance(b, Region):
        return "an operand is a number"
    if op.option("use") in ("mma.sync", "fma"):
        return "another product was asked for"
    kinds = types(op)
    if kinds not in _RESULTS:
        return f"no instruction for {' '.join(kinds)}"
    if warps % 4 or not warps:
        return f"{warps} warps are no warpgroups"
    m, n = out.shape
    groups = warps // 4
    if m % (64 * groups):
        return f"m = {m} is no multiple of {64 * groups}"
    for role, region in (("A", a), ("B", b)):
        if region.tensor.space != "shared":
            return f"{role} is in {region.tensor.space} memory"
        if region.masked:
            return f"{role} has a mask"
    tiles = []
    bits = a.tensor.element.bits
    for role, region in (("A", a), ("B", b)):
        tile = tile_of_region(region)
        if isinstance(tile, str):
            return f"{role}: {tile}"
        if tile.swizzle == 0:
            return f"{role} is not swizzled"
        if tile.major == 0 and bits != 16:
            return f"{role} is not contiguous along k, as {bits}-bit types must be"
        tiles.append(tile)
    depth = 256 // bits
    if a.shape[1] % depth:
        return f"k = {a.shape[1]} is no multiple of {depth}"
    legal = range(8, 257, 8) if kinds[2] != "s32" else (8, 16, 24, 32, *range(48, 257, 16))
    widths = [w for w in legal if n % w == 0]
    if not widths:
        return f"n = {n} is no multiple of 8"
    width = widths[-1]
    if tiles[1].major == 0 and width % tiles[1].width:
        narrower = [w for w in widths if w % tiles[1].width == 0 or tiles[1].width % w == 0]
        if not narrower:
            return f"n = {n} does not end with atoms of {tiles[1].width}"
        width = narrower[-1]
    row = atom(f"wgmma.mma_async.sync.aligned.m64n{width}k{depth}.{kinds[2]}.{kinds[0]}.{kinds[1]}")
    return Wide(row, groups, (m // (64 * groups), n // width), tiles[0], tiles[1])


def fits(op: Op, warps: int, arch: str) -> Wide | None:
    """The ``wgmma`` form of a product, or None.

    Raises:
        BackendError: ``use="wgmma"`` was asked for and does not fit; says why.
    """
    found = _recognised(op, warps, arch)
    if isinstance(found, Wide):
        return found
    if op.option("use") == "wgmma":
        raise BackendError("gemm(.., use='wgmma')", found, inputs={"line": str(op.line)})
    return None


def reason(op: Op, warps: int, arch: str) -> str:
    """What the ``wgmma`` of a product is, or why it is none."""
    found = _recognised(op, warps, arch)
    if isinstance(found, str):
        return found
    several = "s" * (found.groups > 1)
    return f"{found.groups} warpgroup{several}, {found.tiles[0]} x {found.tiles[1]} of {found.row.name.split('.')[4]}"


def product(context: Context, op: Op, wide: Wide, target: Buffer, keep: ExprLike) -> None:
    """The instructions of a product: fence, one product a step and tile, commit, wait."""
    a, b = op.ins[0], op.ins[1]
    if not isinstance(a, Region) or not isinstance(b, Region):
        raise TypeError(op.name)
    depth, width = wide.row["a"].shape[1], wide.row["d"].shape[1]
    rows, columns = wide.tiles
    slots = width // 2
    group = context.threads.warp // 4 if wide.groups > 1 else 0
    options: dict[str, Any] = {"a": wide.a.descriptor(_bytes(a)), "b": wide.b.descriptor(_bytes(b))}
    options |= {"a_dims": a.dims, "b_dims": b.dims}
    if wide.row["b"].dtype in ("f16", "bf16"):
        options["transposed"] = (wide.a.major == 0, wide.b.major == 0)
    context.instruction("wgmma.fence")

    def one(step: int, i: ExprLike, j: ExprLike) -> None:
        first = linear(context, a, (64 * (group * rows + i), step * depth))
        second = linear(context, b, (j * width, step * depth))
        into = slot(target, (i * columns + j) * slots, slots)
        context.instruction(wide.row.name, into, first, second, keep if step == 0 else 1, **options)

    for step in range(a.shape[1] // depth):
        context.loop(rows, lambda i, step=step: context.loop(columns, lambda j: one(step, i, j), "j"), "i")  # type: ignore[misc]
    context.instruction("wgmma.commit_group")
    context.instruction("wgmma.wait_group", 0)


def _bytes(region: Region) -> int:
    return region.tensor.element.bits // 8


def linear(context: Context, region: Region, at: tuple[ExprLike, ...]) -> Address:
    """The address of an element without the swizzle, which hardware applies to it."""
    plain = replace(region.tensor, swizzle=None)
    coordinates: list[ExprLike] = list(region.begin)
    for position, dim in enumerate(region.dims):
        coordinates[dim] = simplify(as_expr(region.begin[dim] + at[position]))
    found = places.offset(plain, coordinates)
    element = ClaimedElement(plain, tuple(coordinates), region.tensor)
    return Address(context.buffer(region.tensor), simplify(as_expr(found)), 0, element)
