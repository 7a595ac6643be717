"""Which layouts fill which MLIR template: a few lines for each kernel, for constant sizes or symbolic ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import LARGEST, Size, Trial, check_choice, count, held, size
from tileweave.backends.cuda.templates.product import stored_tile
from tileweave.backends.mlir.launch import Order, run_all
from tileweave.errors import LayoutError
from tileweave.index import Expr, const, divisor, substitute, symbol
from tileweave.kernel.atoms import atom
from tileweave.kernel.threads import STATIC_SHARED
from tileweave.layout.lego import GroupBy, OrderBy, PartialTiles, xor_swizzle
from tileweave.layout.notation.lego_slices import Slice
from tileweave.layout.template import Filled, Template, template
from tileweave.layout.template.accessor import at
from tileweave.layout.template.collection import check_options, named, options_of

FOLDER = Path(__file__).parent / "templates"
WORKGROUP = "#gpu.address_space<workgroup>"


def _memref(element: str, *sizes: Any) -> str:
    """The type of a flat array of that many elements; of unknown extent where a size is symbolic."""
    return f"memref<{'?' if any(isinstance(n, Expr) for n in sizes) else prod(sizes)}x{element}>"


def _at(tiles: Any, *index: Any) -> Slice:
    """One element of a layout, with its mask where it has one."""
    mask = tiles.mask(*index) if isinstance(tiles, PartialTiles) else True
    name = repr(tiles) if not isinstance(tiles, PartialTiles) else tiles[(*index[:2], slice(None), slice(None))].text
    return Slice(name, tiles.apply(*index), mask, ())


# -- transposes ---------------------------------------------------------------------------------------------

Form = Literal["row", "padded", "swizzled"]
_TILE = 32


def _transposed(M: Size | None, N: Size | None, threads: int) -> tuple[Any, ...]:
    """Sizes, thread symbols, and the elements that a thread reads and writes."""
    check_choice("threads", threads, (1, 2, 4, 8, 16, 32))
    m, n = size("M", M), size("N", N)
    rows, columns = ((x + _TILE - 1) // _TILE for x in (m, n))
    bx, by = symbol("bx", 0, columns), symbol("by", 0, rows)
    tx, ty = symbol("tx", 0, _TILE), symbol("ty", 0, threads)
    lines = [ty + k for k in range(0, _TILE, threads)]
    source, target = PartialTiles((m, n), (_TILE, _TILE)), PartialTiles((n, m), (_TILE, _TILE))
    return (m, n), (columns, rows), (bx, by, tx), lines, source, target


def transpose_naive(M: Size | None = None, N: Size | None = None, *, threads: int = 8) -> Template:
    """The transpose of an M x N array of FP32, every thread reading along rows and writing along columns."""
    sizes, grid, (bx, by, tx), lines, source, target = _transposed(M, N, threads)
    return template(
        FOLDER / "transpose_naive.mlir.j2",
        grid=grid,
        src=tuple(_at(source, by, bx, y, tx) for y in lines),
        dst=tuple(_at(target, bx, by, tx, y) for y in lines),
        memref=_memref("f32", *sizes),
        threads=threads,
        parts=len(lines),
    )


def transpose_shared(
    M: Size | None = None, N: Size | None = None, *, threads: int = 8, shared: Form = "swizzled"
) -> Template:
    """The transpose of an M x N array of FP32 by way of a tile in shared memory: rows padded by a word, or swizzled."""
    sizes, grid, (bx, by, tx), lines, source, target = _transposed(M, N, threads)
    layouts = {
        "padded": GroupBy((_TILE, _TILE + 1)),
        "swizzled": GroupBy((_TILE, _TILE), OrderBy(xor_swizzle(_TILE, _TILE))),
        "row": GroupBy((_TILE, _TILE)),
    }
    check_choice("shared", shared, tuple(layouts))
    tile = layouts[shared]
    words = tile.dims[0] * tile.dims[1]
    return template(
        FOLDER / "transpose_shared.mlir.j2",
        grid=grid,
        src=tuple(_at(source, by, bx, y, tx) for y in lines),
        rows=tuple(_at(tile, y, tx) for y in lines),
        columns=tuple(_at(tile, tx, y) for y in lines),
        dst=tuple(_at(target, bx, by, y, tx) for y in lines),
        memref=_memref("f32", *sizes),
        buffer=f"memref<{words}xf32, {WORKGROUP}>",
        threads=threads,
        parts=len(lines),
    )


# -- products -----------------------------------------------------------------------------------------------

_THREADS = 128
"""Of a block: 2 x 2 warps."""
_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def _chunk(length: Any, bits: int) -> int:
    """The elements of one asynchronous copy or vector: as many of a power of two as divide every row, to 16 bytes."""
    known = divisor(length) if isinstance(length, Expr) else length
    return next((width for width in (8, 4, 2) if known % width == 0 and width * bits <= 128), 1)


def _moved(
    name: str, extents: tuple[Any, Any], tile: tuple[int, int], blocks: tuple[Any, Any], counter: str,
    threads: int = _THREADS, bits: int = 16,
) -> Any:  # fmt: skip
    """How a block moves a tile: the slice of the array, row and column in the tile, chunks for a thread."""
    width = _chunk(extents[1], bits)
    across = tile[1] // width
    chunk = symbol(counter, 0, tile[0] * across // threads) * threads + symbol("t", 0, threads)
    row, column = chunk // across, chunk % across
    tiles = PartialTiles(extents, (tile[0], across), (1, width))
    named = {name: tiles[(*blocks, row, column, 0, slice(None))], f"width_{name}": width}
    named[f"chunks_{name}"] = tile[0] * across // threads
    return named, (row, column * width)


def matmul(
    M: Size | None = None, N: Size | None = None, K: Size | None = None, *, BM: int = 64, BN: int = 64, BK: int = 32,
    b: Literal["row", "col"] = "row", shared: str = "swizzled", stages: int = 1,
) -> Template:  # fmt: skip
    """C = A B of halves, A by rows, B by rows or columns, sums in FP32, on tensor cores; written through shared memory.

    Rows come by asynchronous copies as wide as what divides their length allows, of odd length element by element.
    `stages` tiles of A and of B are in shared memory: while one is used, the next ones are on their way.
    """
    check_choice("BM", BM, (32, 64, 128))
    check_choice("BN", BN, (32, 64, 128))
    check_choice("BK", BK, (16, 32, 64))
    check_choice("b", b, ("row", "col"))
    check_choice("stages", stages, range(1, 9))
    m, n, k = size("M", M), size("N", N), size("K", K)
    bx, by = symbol("bx", 0, count(n, BN)), symbol("by", 0, count(m, BM))
    s = symbol("s", 0, count(k, BK) + (stages - 1))  # with stages, tile s is copied while an earlier one is used
    warp, lane = symbol("warp", 0, _THREADS // 32), symbol("lane", 0, 32)
    shape_b, tile_b, blocks_b = ((k, n), (BK, BN), (s, bx)) if b == "row" else ((n, k), (BN, BK), (bx, s))
    stored = {"a": stored_tile(shared, BM, BK), "b": stored_tile(shared, *tile_b), "c": stored_tile("padded", BM, BN)}
    bindings: dict[str, Any] = {}
    for name, extents, tile, blocks, counter in (
        ("a", (m, k), (BM, BK), (by, s), "u"),
        ("b", shape_b, tile_b, blocks_b, "v"),
        ("c", (m, n), (BM, BN), (by, bx), "w"),
    ):  # fmt: skip
        named, place = _moved(name, extents, tile, blocks, counter)
        layout, elements = stored[name]
        depth = 1 if name == "c" else stages
        into = s % depth * elements if depth > 1 else 0
        bindings |= named | {
            f"{'from' if name == 'c' else 'to'}_{name}": at(layout, *place) + into,
            f"stored_{name}": str(layout),
        }
        bindings[name.upper()] = _memref("f16", *extents)
        bindings[f"S{name.upper()}"] = f"memref<{depth * elements}xf16, {WORKGROUP}>"
    total = 2 * sum(elements * (1 if name == "c" else stages) for name, (_, elements) in stored.items())
    if stages > 1 and total > STATIC_SHARED:
        problem = f"{stages} stages make {total} bytes of shared memory"
        raise LayoutError("kernel(name, ..)", problem, legal=f"at most {STATIC_SHARED}: fewer stages, smaller tiles")
    used = {name: (s + 1) % stages * stored[name][1] if stages > 1 else 0 for name in "ab"}
    for name in "ab":
        bindings[f"bypass_{name}"] = " {bypassL1}" if bindings[f"width_{name}"] == 8 else ""
    WM, WN, mma = BM // 2, BN // 2, atom(_MMA)
    # of each 8 x 8 matrix, ldmatrix wants the row that lane 4 * row holds in the register of that matrix
    row, depth = held(mma["a"], lane % 8 * 4, lane // 8 * 2)
    i, kk, h = symbol("i_", 0, WM // 16), symbol("kk_", 0, BK // 16), symbol("h_", 0, 2)
    pair, x = symbol("pair_", 0, WN // 16), symbol("x_", 0, WN // 8)
    at_a = at(stored["a"][0], warp // 2 * WM + i * 16 + row, kk * 16 + depth) + used["a"]
    at_b = _pair(stored["b"][0], b, warp % 2 * WN + pair * 16, kk * 16, lane) + used["b"]
    down, across = held(mma["d"], lane, h * 2)
    at_c = at(stored["c"][0], warp // 2 * WM + i * 16 + down, warp % 2 * WN + x * 8 + across)
    return template(
        FOLDER / "matmul.mlir.j2", grid=(count(n, BN), count(m, BM)), at_a=_unrolled(at_a, kk, i),
        at_b=_unrolled(at_b, kk, pair), at_c=_unrolled(at_c, i, x, h), steps=const(0) + count(k, BK),
        trans=str(b == "row").lower(), BK=BK, WM=WM, WN=WN, stages=stages, **bindings,
    )  # fmt: skip


def _unrolled(place: Expr, *counters: Expr) -> tuple[Expr, ...]:
    """An offset for all values of some counters, the last one fastest: made once, then each with its numbers."""
    values = product(*(range(counter.args[2].args[0]) for counter in counters))
    return tuple(substitute(place, dict(zip(counters, chosen, strict=True))) for chosen in values)


def _pair(layout: Any, order: str, column: Any, depth: Any, lane: Any) -> Any:
    """Where a lane's row of ldmatrix.x4 begins that loads two fragments of B side by side.

    Of B by rows the matrices are read transposed: a row runs along n.
    """
    if order == "row":
        return at(layout, depth + lane // 8 % 2 * 8 + lane % 8, column + lane // 16 * 8)
    row, inner = held(atom(_MMA)["b"], lane % 8 * 4, lane // 8 % 2 * 2)
    return at(layout, column + lane // 16 * 8 + row, depth + inner)


def matmul_transform(M: int = 64, N: int = 64, K: int = 64, *, BM: int = 32, BN: int = 16) -> Template:
    """C = A B of halves, A by rows and B by columns, C in FP32: vectors and contractions, and a transform for them.

    Sizes are constants: the index arithmetic is affine.
    """
    check_choice("BM", BM, (16, 32, 64))
    check_choice("BN", BN, (16, 32))
    for name, value in (("M", M), ("N", N), ("K", K)):
        if type(value) is not int or not 1 <= value < LARGEST:
            raise LayoutError("kernel(name, ..)", f"the size {name} is {value!r}", legal=f"1 .. {LARGEST - 1}")
    m, n, k = M, N, K
    bx, by, s = symbol("bx", 0, count(n, BN)), symbol("by", 0, count(m, BM)), symbol("s", 0, count(k, 16))
    bindings: dict[str, Any] = {}
    for name, extents, tile, blocks, counter, bits in (
        ("a", (m, k), (BM, 16), (by, s), "u", 16),
        ("b", (n, k), (BN, 16), (bx, s), "v", 16),
        ("c", (m, n), (BM, BN), (by, bx), "w", 32),
    ):
        named, (row, column) = _moved(name, extents, tile, blocks, counter, 32, bits)
        bindings |= named | {f"row_{name}": row, f"column_{name}": column}
        bindings[name.upper()] = _memref(f"f{bits}", *extents)
        pitch = tile[1] + 128 // bits  # rows padded by 16 bytes
        bindings[f"S{name.upper()}"] = f"memref<{tile[0]}x{pitch}xf{bits}, {WORKGROUP}>"
    return template(
        FOLDER / "matmul_transform.mlir.j2", grid=(count(n, BN), count(m, BM)), steps=const(count(k, 16)), BM=BM, BN=BN,
        **bindings,
    )  # fmt: skip


# -- by name ------------------------------------------------------------------------------------------------


def _transpose_trial(filled: Filled, M: int = 70, N: int = 101, *, threads: int = 8, **_options: Any) -> Trial:
    """An M x N array of distinct numbers."""
    source, target = np.arange(M * N, dtype=np.float32).reshape(M, N), np.full((N, M), np.nan, np.float32)
    launch = _launched(filled, (_TILE, threads), {"src": source, "dst": target}, {"M": M, "N": N})
    return Trial(f"{M} x {N}", [launch], target, np.ascontiguousarray(source.T))


def _matmul_trial(
    filled: Filled, M: int = 70, N: int = 101, K: int = 75, *, b: str = "row", threads: int = _THREADS,
    dtype: Any = np.float16, **_options: Any,
) -> Trial:  # fmt: skip
    """Small integers, whose sums are exact in halves."""
    rng = np.random.default_rng(4)
    left, right = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    found = np.full((M, N), np.nan, dtype)
    arrays = {"a": left, "b": np.ascontiguousarray(right.T) if b == "col" else right, "c": found}
    launch = _launched(filled, (threads,), arrays, {"M": M, "N": N, "K": K})
    wanted = (left.astype(np.float32) @ right.astype(np.float32)).astype(dtype)
    return Trial(f"{M} x {N} x {K}", [launch], found, wanted)


def _transform_trial(filled: Filled, M: int = 64, N: int = 64, K: int = 64, **_options: Any) -> Trial:
    """Small integers; the text has constant sizes."""
    return _matmul_trial(filled, M, N, K, b="col", threads=32, dtype=np.float32)


def _launched(filled: Filled, block: tuple[int, ...], arrays: dict[str, Any], sizes: dict[str, int]) -> Launch:
    """The launch of a filled template; sizes that it leaves open are arguments."""
    known = {name: sizes[name] for name in filled.arguments}
    return Launch(filled.launch(**sizes), block, arrays | known)


@dataclass(frozen=True, slots=True)
class MlirKernel:
    """A named kernel of the collection.

    Args:
        name: of the kernel.
        build: takes sizes and options, returns the template; sizes left out are arguments.
        trial: takes the filled template and the options, returns a problem; sizes left out divide nothing.
        target: how numbers are written: ``mlir`` in the dialect arith, ``affine`` as affine maps.
    """

    name: str
    build: Callable[..., Template]
    trial: Callable[..., Trial]
    target: str = "mlir"

    @property
    def options(self) -> tuple[str, ...]:
        """The names that `build` takes."""
        return options_of(self.build)

    def fill(self, **options: Any) -> Filled:
        """The text for sizes and options.

        Raises:
            LayoutError: an unknown option.
        """
        check_options(self.name, self.build, options)
        return self.build(**options).fill(self.target)


KERNELS: dict[str, MlirKernel] = {
    entry.name: entry
    for entry in (
        MlirKernel("transpose_naive", transpose_naive, _transpose_trial),
        MlirKernel("transpose_shared", transpose_shared, _transpose_trial),
        MlirKernel("matmul_mma", matmul, _matmul_trial),
        MlirKernel("matmul_transform", matmul_transform, _transform_trial, "affine"),
    )
}


def kernel(name: str) -> MlirKernel:
    """The kernel of that name.

    Raises:
        LayoutError: there is none; the message lists the names.
    """
    return named(KERNELS, name)


def run_trial(
    entry: MlirKernel,
    filled: Filled,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    order: Order | Sequence[Order] = "forward",
) -> Trial:
    """Runs a kernel's text on the CPU on its trial problem; `Trial.difference` says how far the answer is off.

    Args:
        entry, filled, options: a kernel, and its text for the options.
        check: whether every access is followed.
        order: of threads and blocks, or several.

    Raises:
        BackendError: tools are missing, or the text breaks a rule.
    """
    trial = entry.trial(filled, **(options or {}))
    run_all(filled.text, trial.launches, check=check, order=order)
    return trial
