"""Products: tensor cores where the types and tiles fit an instruction of the table, else fused multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tileweave.errors import BackendError
from tileweave.index import ExprLike
from tileweave.kernel.atoms import Atom, atom
from tileweave.kernel.dispatch import convert, groups, tensor
from tileweave.kernel.dispatch.context import Context, declined, slot
from tileweave.kernel.dispatch.copies import load_into, memory_at, store_from
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.assign import Accumulator
from tileweave.kernel.dispatch.layouts.orders import ChainOrder
from tileweave.kernel.dispatch.layouts.registers import Holding, blocked, holding, iter_at
from tileweave.kernel.ir import Candidate, Op, Region, Scalar
from tileweave.kernel.threads import LANE, Buffer
from tileweave.layout import Iter, Layout, group

#: (type of A, type of B, type of C) -> the product of a warp, and its depth.
_WARP = {
    **{(a, a, "f32"): (f"m16n8k16.row.col.f32.{a}.{a}.f32", 16) for a in ("f16", "bf16")},
    ("tf32", "tf32", "f32"): ("m16n8k8.row.col.f32.tf32.tf32.f32", 8),
    ("f16", "f16", "f16"): ("m16n8k16.row.col.f16.f16.f16.f16", 16),
    ("f64", "f64", "f64"): ("m8n8k4.row.col.f64.f64.f64.f64", 4),
    **{(a, b, "f32"): (f"m16n8k32.row.col.f32.{a}.{b}.f32", 32) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")},
    **{(a, b, "s32"): (f"m16n8k32.row.col.s32.{a}.{b}.s32", 32) for a in ("s8", "u8") for b in ("s8", "u8")},
}


@dataclass(frozen=True)
class WarpTiling:
    """How the warps of a scope share a product: an arrangement of warps, and tiles of one instruction for each.

    Args:
        row: the instruction.
        warps: warps along m, along n, and how many repeat the others' work.
        tiles: instructions of one warp along m and along n.
    """

    row: Atom
    warps: tuple[int, int, int]
    tiles: tuple[int, int]

    @property
    def depth(self) -> int:
        """k of one instruction."""
        return self.row["a"].shape[1]

    def result(self) -> tuple[Layout, tuple[int, int]]:
        """The layout of C and the extents that it covers."""
        return self._layout("d", (self.tiles[0], self.tiles[1]))

    def operand(self, role: str, steps: int = 1) -> Holding:
        """The holding of A (m, k) or B (n, k), for some steps along k."""
        layout, shape = self._layout(role, (self.tiles["ab".index(role)], steps))
        return holding(layout, shape, prod(self.warps))

    def _layout(self, role: str, tiles: tuple[int, int]) -> tuple[Layout, tuple[int, int]]:
        part = self.row[role]
        blocks = group(part.layout, part.shape)
        along_m, along_n, spare = self.warps
        of_warp: tuple[tuple[int, int], tuple[int, int]] = {
            "d": ((along_m, along_n), (along_n, 1)),
            "a": ((along_m, along_n), (1, 0)),
            "b": ((along_n, 1), (1, 0)),
        }[role]
        copies = {"d": [], "a": [(along_n, 1)], "b": [(along_m, along_n)]}[role]
        slots = part.elements
        steps = (tiles[1] * slots, slots)
        shard: list[Iter] = []
        for dim in (0, 1):
            count, stride = of_warp[dim]
            shard += [iter_at(count, "warp", stride)] if count > 1 else []
            shard += [iter_at(tiles[dim], "reg", steps[dim])] if tiles[dim] > 1 else []
            shard += blocks[dim]
        replica = [iter_at(n, "warp", s) for n, s in [*copies, (spare, along_m * along_n)] if n > 1]
        padded = (of_warp[0][0] * tiles[0] * part.shape[0], of_warp[1][0] * tiles[1] * part.shape[1])
        return Layout(tuple(shard), tuple(replica)), padded


def tiling(op: Op, warps: int, arch: str, chained: bool = False) -> WarpTiling | None:
    """The tiling of a product by ``mma.sync``, or None where no instruction has its types.

    Args:
        op: the product.
        warps: warps of its scope.
        arch: the target.
        chained: whether warps must hold whole rows, since the result is an operand of the next product.
    """
    found = _WARP.get(groups.types(op))
    if found is None or warps == 0 or op.option("use") == "fma":
        return None
    row = atom("mma.sync.aligned." + found[0])
    if not row.runs_on(arch):
        return None
    m, n = op.outs[0].shape
    tile_m, tile_n = row["d"].shape
    best = None
    for along_m in range(1, warps + 1):
        if warps % along_m:
            continue
        for along_n in range(1, warps // along_m + 1):
            if (warps // along_m) % along_n or (chained and along_n > 1):
                continue
            tiles = (-(-m // (along_m * tile_m)), -(-n // (along_n * tile_n)))
            work = tiles[0] * tiles[1]
            loads = tiles[0] * tile_m + tiles[1] * tile_n
            key = (work, loads, along_n)
            if best is None or key < best[0]:
                best = (key, WarpTiling(row, (along_m, along_n, warps // (along_m * along_n)), tiles))
    return best[1] if best is not None else None


def _not_by_warps(op: Op, warps: int, arch: str) -> str:
    """Why ``mma.sync`` has no tiling of a product; empty if it has one."""
    if op.option("use") == "fma":
        return "another product was asked for"
    found = _WARP.get(groups.types(op))
    if found is None:
        return f"no instruction for {' '.join(groups.types(op))}"
    if not warps:
        return "a scope of no whole warp"
    row = atom("mma.sync.aligned." + found[0])
    return "" if row.runs_on(arch) else f"needs {' or '.join(row.arch)}, not {arch}"


def accumulator(arch: str, products: tuple[Op, ...] = ()) -> Accumulator:
    """How the results of products lie on a target."""
    rows = any(isinstance(v, Region) and v.tensor.space == "register" for p in products for v in p.ins[:2])

    def choose(op: Op, warps: int) -> tuple[Layout, tuple[int, ...]] | None:
        if op.name == "copy":
            return tensor.loaded_layout(op, warps)
        wide = groups.fits(op, warps, arch)
        if wide is not None:
            return wide.result()
        found = tiling(op, warps, arch, rows)
        if found is not None:
            return found.result()
        return blocked(op.outs[0].shape, max(1, warps), 1)

    return choose


def gemm(context: Context, op: Op) -> None:
    """Lowers ``gemm``."""
    a, b = op.ins[0], op.ins[1]
    out = op.outs[0]
    if not isinstance(a, Region) or not isinstance(b, Region):
        raise declined(op.line, "a product with a number", op=op.name)
    if out.tensor.space == "tensor":
        tensor.product(context, op)
        return
    if out.tensor.space != "register":
        raise declined(op.line, "a product into memory", legal="an accumulator in registers", out=out)
    target, held, finish = convert.into(context, op, out, keep=isinstance(op.ins[2], Region))
    _product(context, op, (a, b), target, held)
    finish()


def _product(context: Context, op: Op, factors: tuple[Region, Region], target: Buffer, held: Holding) -> None:
    a, b = factors
    warps = context.threads.warps
    keep: ExprLike = 1
    if isinstance(op.ins[2], Scalar):
        keep = 0
    wide = groups.fits(op, warps, context.arch)
    lies = "the accumulator lies as another product leaves it"
    apart = Candidate("mma.sync", False, _not_by_warps(op, warps, context.arch) or lies)
    fma = Candidate("fma", False, "tensor cores multiply these types")
    taken = wide is not None and convert.alike(held, holding(*wide.result(), held.warps))
    reasons = [Candidate("wgmma", taken, groups.reason(op, warps, context.arch) if taken or wide is None else lies)]
    refused = context.refused.get(op, "its sums are written out in registers; k.tensor_memory(..) would hold them")
    if tensor.has(context.arch):
        reasons.insert(0, Candidate("tcgen05", False, refused))
    if op.option("use") == "tcgen05":
        why = refused if tensor.has(context.arch) else f"needs sm_100a, not {context.arch}"
        raise BackendError("gemm(.., use='tcgen05')", why, inputs={"line": str(op.line)})
    if wide is not None and taken:
        if tiling(op, warps, context.arch) is not None:
            apart = Candidate("mma.sync", False, "wgmma reads shared memory itself, for a warpgroup at once")
        context.choose(op, wide.name, *reasons, apart, fma, order=ChainOrder(wide.row["a"].shape[1]))
        groups.product(context, op, wide, target, keep)
        return
    if not keep:
        context.loop(held.slots, lambda r: context.instruction("map.id", slot(target, r), 0))
    for found in (tiling(op, warps, context.arch), tiling(op, warps, context.arch, chained=True)):
        if found is not None and convert.alike(held, holding(*found.result(), held.warps)):
            used = Candidate("mma.sync", True, f"{found.tiles} tiles a warp")
            context.choose(op, found.row.name, *reasons, used, fma, order=ChainOrder(found.depth))
            _by_warps(context, op, found, a, b, target)
            return
    if op.option("use") == "mma.sync":
        raise BackendError(
            "gemm(.., use='mma.sync')", apart.reason, inputs={"line": str(op.line)}, legal="another type, or fma"
        )
    if op.option("precision"):
        raise declined(op.line, f"a product with precision='tf32' and use={op.option('use')!r}", legal="tensor cores")
    context.choose(
        op,
        "fma",
        *reasons,
        apart,
        Candidate("fma", True, "any type"),
        order=ChainOrder(0),
    )
    _by_threads(context, op, a, b, held, target)


def _by_warps(context: Context, op: Op, how: WarpTiling, a: Region, b: Region, target: Buffer) -> None:
    depth = how.depth
    steps = -(-a.shape[1] // depth)
    first = _source(context, op, how, "a", a, steps)
    second = _source(context, op, how, "b", b, steps)
    size = how.row["d"].elements
    rows, columns = how.tiles
    for step in range(steps):
        from_a, at_a, pitch_a = first(step)
        from_b, at_b, pitch_b = second(step)

        def one(i: ExprLike) -> None:
            context.loop(
                columns,
                lambda j: context.instruction(
                    how.row.name,
                    slot(target, (i * columns + j) * size, size),
                    slot(from_a, i * pitch_a + at_a, how.row["a"].elements),  # noqa: B023
                    slot(from_b, j * pitch_b + at_b, how.row["b"].elements),  # noqa: B023
                ),
                "j",
            )

        context.loop(rows, one, "i")


Fetch = Callable[[int], tuple[Buffer, int, int]]


def _source(context: Context, op: Op, how: WarpTiling, role: str, region: Region, steps: int) -> Fetch:
    """For a step along k: the registers of an operand, the first slot, and the slots from tile to tile."""
    elements = how.row[role].elements
    if region.tensor.space == "register":
        want = how.operand(role, steps)
        buffer, have = convert.held(context, op, region)
        buffer, _ = convert.converted(context, buffer, have, want, op)
        return lambda step: (buffer, step * elements, steps * elements)
    held = how.operand(role)
    buffer = context.registers(role, region.tensor.dtype, held.slots)
    matrix = _matrices(context, how, role, region)

    def fetch(step: int) -> tuple[Buffer, int, int]:
        part = places.columns(region, step * how.depth, how.depth)
        if matrix is not None:
            matrix(part, buffer)
        else:
            load_into(context, buffer, held, part)
        return buffer, 0, elements

    return fetch


def _matrices(context: Context, how: WarpTiling, role: str, region: Region) -> Callable[[Region, Buffer], None] | None:
    """``ldmatrix`` for an operand in shared memory, or None: rows of 16 bytes, aligned, no masks, no padding."""
    index = "ab".index(role)
    if region.tensor.space != "shared" or region.tensor.element.bits != 16 or region.masked or how.depth != 16:
        return None
    padded = how.operand(role).shape[0]
    if padded != region.shape[0] or region.shape[1] % 16:
        return None
    fast = places.fastest(region)
    if fast is None or places.vector(region, 8) != 8:
        return None
    trans = ".trans" if fast == 0 else ""
    along_m, along_n, _ = how.warps
    warp = context.threads.warp
    tiles = how.tiles[index]
    height = how.row[role].shape[0]
    start = (warp // along_n % along_m if index == 0 else warp % along_n) * (tiles * height)

    def fetch(part: Region, buffer: Buffer) -> None:
        def one(i: ExprLike, count: int, per: int) -> None:
            tile = LANE // 8
            row: ExprLike
            if index == 0:
                row, column = 8 * (tile % 2), 8 * (tile // 2)
            else:
                row, column = 8 * (tile // 2 % 2) if count == 4 else 0, 8 * (tile % 2)
            inside = LANE % 8
            at = (row, column + inside) if trans else (row + inside, column)
            where = memory_at(context, part, (start + i * (height * per) + at[0], at[1]))
            context.instruction(
                f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16",
                slot(buffer, i * 2 * count, 2 * count), where,
            )  # fmt: skip

        if index == 0:
            context.loop(tiles, lambda i: one(i, 4, 1), "i")
            return
        pairs, odd = divmod(tiles, 2)
        if pairs:
            context.loop(pairs, lambda j: one(j, 4, 2), "j")
        if odd:
            tile = LANE // 8 % 2
            at = (0, 8 * tile + LANE % 8) if trans else (LANE % 8, 8 * tile)
            where = memory_at(context, part, (start + pairs * 2 * height + at[0], at[1]))
            context.instruction(
                f"ldmatrix.sync.aligned.m8n8.x2{trans}.shared.b16",
                slot(buffer, pairs * 8, 4), where,
            )  # fmt: skip

    return fetch


def _by_threads(context: Context, op: Op, a: Region, b: Region, held: Holding, target: Buffer) -> None:
    """Each thread adds the products of its rows and columns, one k at a time."""
    a, b = _memory(context, op, a), _memory(context, op, b)
    of_a = holding(held.without((1,)), (held.shape[0], 1), held.warps) if held.warps else None
    of_b = holding(held.without((0,)), (1, held.shape[1]), held.warps) if held.warps else None
    if of_a is None or of_b is None:
        raise declined(context.line, "a product by single threads")
    left = context.registers("a", a.tensor.dtype, of_a.slots)
    right = context.registers("b", b.tensor.dtype, of_b.slots)

    def step(k: ExprLike) -> None:
        load_into(context, left, of_a, _column(a, k), None)
        load_into(context, right, of_b, _column(b, k).transposed, None)

        def one(r: ExprLike) -> None:
            context.instruction(
                "map.fma", slot(target, r), slot(left, held.part_slot((1,), r)), slot(right, held.part_slot((0,), r)),
                slot(target, r), dtype=target.dtype,
            )  # fmt: skip

        context.loop(held.slots, one)

    context.loop(a.shape[1], step, "k", unroll=False)


def _column(region: Region, k: ExprLike) -> Region:
    """One column of the second shown dimension; zero where it does not exist."""
    dim = region.dims[1]
    begin, extent, mask = list(region.begin), list(region.extent), list(region.mask)
    begin[dim] = region.begin[dim] + k
    extent[dim] = 1
    mask[dim] = 1 if region.mask[dim] == region.extent[dim] else region.mask[dim] - k
    return replace(region, begin=tuple(begin), extent=tuple(extent), mask=tuple(mask))


def _memory(context: Context, op: Op, region: Region) -> Region:
    """An operand in memory: itself, or a copy of registers in shared memory."""
    if region.tensor.space != "register":
        return region
    buffer, have = convert.held(context, op, region)
    shape = have.shape
    box = convert.staged(context, buffer.dtype, shape, own=True)
    context.sync()
    store_from(context, buffer, have, box)
    context.sync()
    return replace(box, extent=region.shape, mask=region.shape)
