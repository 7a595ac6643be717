"""Register tiles of direct convolutions, and what they are estimated to take.

Vectors are of pixels, which meet weights that are spread over them, or of filters, whose weights meet pixels that are
spread. The latter read pixels one by one, wherever they lie: no vector is put together from several rows, or from every
other element. In return weights lie in panels, and sums are transposed before they are stored.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from tileweave.backends.cpu.direct.convolution import Along, Convolution
from tileweave.backends.cpu.target.target import Target

MOST_SEGMENTS = 4
"""Rows that a vector may cross: each is a load of its own."""


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """How many filters and vectors of pixels are computed at once.

    Args:
        filters: rows of a register tile.
        width: vectors of a wide tile of pixels: these come first, then those with one less.
        wide: how many tiles are wide.
        tiles: how many there are.
        crossed: the most segments of a vector.
        blocks: parts of the tiles that are computed for all filters before the next.
    """

    filters: int
    width: int
    wide: int
    tiles: int
    crossed: int
    blocks: int


_MOST_PLACES = 8
"""Addresses that a tile keeps in registers."""
_MOST_FILTER_VECTORS = 6
"""Vectors of filters of a tile, at most: they and four pixels take 31 registers."""
_LOAD_CYCLES = {(False, False): 0.3, (False, True): 0.7, (True, False): 1.0, (True, True): 5.0}
"""Beyond the products, by whether vectors cross rows and whether pixels lie two elements apart: measured on a Zen 4,
where masks and shuffles compete with products."""

_MASKED_CYCLES = 4.0
"""For a load whose mask is a vector: to read it again, and to join what it leaves: on a Zen 3 2, on a Zen 1 9."""
_READ_CYCLES = 0.2
"""For any load beside the products, where masks take vector registers: beyond the one that each takes where there are
more loads than products. Measured on a Zen 1, as the next."""
_PICK_CYCLES = 3.0
"""For picking every other element of two vectors, where masks take vector registers."""

_WEIGHT_CYCLES = 0.5
"""For reading a weight, once per row of a tile, where masks take no vector registers: a tile of one vector reads one
per product. Chosen by the time of ResNet-50's convolutions on a Zen 5. Where a core begins one product per cycle the
weight is read beside it: a Zen 4 takes 0.84 of the time for 8 images of 48 x 26 x 26 with 64 filters of 3 x 3, two
pixels apart, in tiles of 16 filters by one vector, beside 13 by 2."""
_TURN_CYCLES = 6.0
"""For a vector of sums that is transposed from filters to pixels."""
_PACK_CYCLES = {True: 0.7, False: 2.0}
"""For a weight that a call brings into panels, by whether the weights of a sum lie one behind the other."""


_FETCH_CYCLES = (0.0, 0.04, 0.12)
"""For a byte that comes from the first cache, the second one, or beyond, where lanes are filters."""
_PRODUCT_CYCLES = 1.4
"""For a product of packed operands, what all of it takes included."""
_COPY_CYCLES, _GATHER_CYCLES = 1.0, 5.0
"""For an element of the windows that is packed as a product's operand, by whether pixels lie one behind the other."""


def estimated(c: Convolution, target: Target) -> float:
    """The cycles that a convolution takes, a product being one."""
    cycles, rows, _ = best_tile(c, target)
    whole = cycles * c.count * c.repeated
    if c.along == "filters":
        panels = -(-c.filters[0] // rows)
        whole += _TURN_CYCLES * c.vectors(target) * panels * rows * c.repeated
        whole += _fetching(c, target, rows)[0] * c.repeated
        if not c.packed:
            size = c.weights * c.element.width_bytes
            whole += _PACK_CYCLES[c.dense_terms] * c.weights + 2 * size * _fetch_cycles(size, target)
    return whole


def estimated_packed(c: Convolution, target: Target) -> float:
    """The cycles that it takes as a product of operands that are packed first."""
    width = c.element.width_bytes
    packed = _COPY_CYCLES if c.rows[-1][1] == width else _GATHER_CYCLES
    return _PRODUCT_CYCLES * c.products / target.lanes(width) + packed * c.pixels * c.count * c.repeated


def _fetch_cycles(size_bytes: float, target: Target) -> float:
    """For a byte of so many, which are read one after the other, again and again."""
    return _FETCH_CYCLES[(size_bytes > target.l1_bytes // 2) + (size_bytes > target.l2_bytes // 2)]


def _fetching(c: Convolution, target: Target, rows: int) -> tuple[float, int]:
    """(cycles, blocks) of the best number of blocks of pixels, of one image: each of them reads all weights, and each
    panel of weights all pixels again."""
    if c.filters[0] <= rows:
        return 0.0, 1
    weights = c.filters[0] * c.count * c.element.width_bytes

    def cycles(blocks: int) -> float:
        again = -(-c.filters[0] // rows) * c.spread * _fetch_cycles(c.spread / blocks, target)
        return blocks * weights * _fetch_cycles(weights, target) + again

    near = min(c.vectors(target), max(1, -(-c.spread // max(1, target.l2_bytes // 2))))
    return min((cycles(blocks), blocks) for blocks in {1, near})


def best_tile(c: Convolution, target: Target) -> tuple[float, int, int]:
    """(cycles per term of all tiles of one image, filters, vectors of pixels) of the best register tile."""
    lanes = target.lanes(c.element.width_bytes)
    if c.along == "filters":
        return _best_of_filters(c.pixels, c.filters[0], lanes, target)
    return _best_tile(c.vectors(target), c.crossed(target), c.step, c.filters[0], _most_rows(c, target), target)


def _most_rows(c: Convolution, target: Target) -> int:
    """Filters of a register tile, at most."""
    return min(c.filters[0], 24, 24 if c.packed else kept_rows(c.filters[1], target))


def _even(filters: int, most: int) -> list[int]:
    """Filters of a tile, up to so many, where no panel has less than another one needs."""
    return [rows for rows in range(1, most + 1) if rows == -(-filters // -(-filters // rows))]


def _free_registers(target: Target) -> int:
    return target.registers - (target.registers > 16)


@lru_cache(1024)
def _best_tile(
    vectors: int, crossed: int, step: int, filters: int, most_rows: int, target: Target
) -> tuple[float, int, int]:
    """`best_tile` of vectors of pixels, of what it depends on."""
    registers = _free_registers(target)
    return min(
        (_cycles(vectors, crossed, step, filters, rows, width, target), rows, width)
        for width in range(1, min(8, vectors) + 1)
        if width == 1 or width * crossed * step <= _MOST_PLACES
        for rows in _even(filters, most_rows)
        if rows == 1 or rows * width + width + 1 <= registers
    )


def pixels_at_once(rows: int, lanes: int, target: Target) -> int:
    """Pixels whose sums a micro-kernel holds, where lanes are filters: a part of a vector of them."""
    vectors = -(-rows // lanes)
    fitting = (
        p for p in (1, 2, 4, _MOST_PLACES) if p <= lanes and p * vectors + vectors + 1 <= _free_registers(target)
    )
    return max(fitting)


@lru_cache(1024)
def _best_of_filters(pixels: int, filters: int, lanes: int, target: Target) -> tuple[float, int, int]:
    """`best_tile` of vectors of filters, of what it depends on."""
    most = min(_MOST_FILTER_VECTORS, (_free_registers(target) - 1) // 5) * lanes  # with four pixels
    return min(
        (_filter_cycles(pixels, filters, lanes, rows, target), rows, 1) for rows in _even(filters, min(filters, most))
    )


def _filter_cycles(pixels: int, filters: int, lanes: int, rows: int, target: Target) -> float:
    """Of all tiles: one per product, some per load of a pixel or of weights, and no less than these take."""
    some, wide = pixels_at_once(rows, lanes, target), -(-rows // lanes)
    busy = max(some * wide, some + wide) + _read_cycles(target) * (some + wide)
    return (max(busy, 4.0) + 0.7) * -(-pixels // some) * -(-filters // rows)


def _read_cycles(target: Target) -> float:
    """For a load beside the products."""
    if target.has("avx512f"):
        return 0.0 if target.one_product else _WEIGHT_CYCLES
    return _READ_CYCLES


_RUNS_CYCLES = 20.0
"""For storing a part of a vector where a mask is slow: as runs of 4, 2 and 1, each behind a branch."""


def stores_once(c: Convolution, target: Target, rows: int) -> bool:
    """Whether the last vector of pixels, of filters as lanes, has no pixel of the one before, though it is not full.

    So the sums of fewer pixels are formed, but it is stored under a mask.
    """
    lanes = target.lanes(c.element.width_bytes)
    some = pixels_at_once(rows, lanes, target)
    spared = -c.pixels % lanes // some
    return (
        c.added
        or c.pixels < lanes
        or (target.masks_stores and spared > 0)
        or spared * some * -(-rows // lanes) * c.count > rows * _RUNS_CYCLES
    )


def tiling(c: Convolution, target: Target) -> RegisterTiling:
    """The register tile with the fewest cycles."""
    vectors = c.vectors(target)
    _, rows, width = best_tile(c, target)
    tiles = -(-vectors // width)
    few, more = divmod(vectors, tiles)
    return _tiling(c, target, rows, few + (more > 0), more or tiles, tiles)


def _tiling(c: Convolution, target: Target, rows: int, width: int, wide: int, tiles: int) -> RegisterTiling:
    near = max(1, target.l2_bytes // 2)  # read again for each panel of filters
    blocks = 1 if c.filters[0] <= rows else min(tiles, max(1, -(-c.spread // near)))
    if c.along == "filters":
        blocks = _fetching(c, target, rows)[1]
    return RegisterTiling(rows, width, wide, tiles, c.crossed(target), blocks)


_SLACK = 1.05
"""Of the cycles of the best tile, those that another one may take whose code is there: what the estimates are worth."""


def tiling_like(
    c: Convolution, target: Target, *, rows: int, widths: Sequence[int], along: Along
) -> tuple[Convolution, RegisterTiling] | None:
    """A convolution by register tiles and vectors that are given; None where that is impossible, or much slower.

    Args:
        c: the convolution, cut as is best for it.
        target: the processor.
        rows: filters of a tile.
        widths: vectors of a tile, the wider ones first; each of them is in the code.
        along: what the lanes of its vectors are.
    """
    best = best_tile(c, target)[0]
    if along != c.along:
        if "filters" in (along, c.along) or (along == "rows" and c.added):
            return None
        c = replace(c, along=along)
    vectors, width = c.vectors(target), widths[0]
    tiles = -(-vectors // width)
    wide = vectors - tiles * (width - 1) if len(widths) > 1 else tiles
    lanes = target.lanes(c.element.width_bytes)
    if along == "filters":
        fits, cycles = rows <= c.filters[0], _filter_cycles(c.pixels, c.filters[0], lanes, rows, target)
    else:
        fits = rows <= _most_rows(c, target) and c.crossed(target) <= MOST_SEGMENTS
        cycles = _cycles(vectors, c.crossed(target), c.step, c.filters[0], rows, width, target)
    if not fits or wide <= 0 or (len(widths) == 1 and vectors % width) or cycles > _SLACK * best:
        return None
    return c, _tiling(c, target, rows, width, wide, tiles)


def _cycles(vectors: int, crossed: int, step: int, filters: int, rows: int, width: int, target: Target) -> float:
    """Of all tiles: one per product, some per load of a vector or a weight, and no less than a product takes."""
    tiles = -(-vectors // width)
    wide = -(-vectors // tiles)
    if target.has("avx512f"):
        busy = rows * wide + wide * _LOAD_CYCLES[crossed > 1, step > 1] * crossed
        busy += _read_cycles(target) * rows
    else:
        loads = wide * crossed * step
        busy = max(rows * wide, rows + loads) + _read_cycles(target) * (rows + loads)
        busy += _PICK_CYCLES * wide * crossed * (step > 1) + _MASKED_CYCLES * loads * (crossed > 1)
    return (max(busy, 4.0) + 0.7) * tiles * -(-filters // rows)


def kept_rows(stride_bytes: int, target: Target) -> int:
    """How many rows of weights a first cache holds at one place along them, its sets being eight lines."""
    sets = max(1, target.l1_bytes // (8 * 64))
    apart = sets // gcd(max(1, stride_bytes // 64), sets)
    return max(1, 4 * apart) if stride_bytes >= 64 else 24
