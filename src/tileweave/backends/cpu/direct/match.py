"""Which merged programs are direct convolutions: a product over windows, and a chain on its sums.

Modes are sorted by what moves along them: pixels (the windowed operand and the output), filters (the weights and the
output), terms of a sum (both operands), groups (all three). Pixels that lie densely in the output are one range, which
vectors cut; a vector that crosses rows is read in segments. Or each row is cut alone, and its last vector begins so
much earlier that it ends with the row: some pixels are computed twice, and no vector has a mask. Long rows of few
filters are done one after the other.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.llvm.elements import Element, element
from tileweave.backends.cpu.llvm.meanings import KNOWN
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import MONOIDS, Merged, MergedOp, Mode, injective

MOST_TERMS = 1 << 16
"""Terms of a sum: their places are a table."""
MOST_SEGMENTS = 4
"""Rows that a vector may cross: each is a load of its own."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Another operand of the chain.

    Args:
        tensor: its position in the program.
        offset: bytes to its first element.
        filter_stride: bytes from one filter to the next.
        outer_strides: bytes along the outer modes.
        along_pixels: whether it has an element per pixel, one behind the other; else one for all.
    """

    tensor: int
    offset: int
    filter_stride: int
    outer_strides: tuple[int, ...]
    along_pixels: bool


SEGMENT = np.dtype([("at", "i8"), ("first", "i4"), ("end", "i4")])
"""Of a vector of pixels: bytes to where its lane 0 would be, first lane, last lane."""
_BY_ROWS = np.dtype([("at", "i8"), ("out", "i8")])
"""The same by rows: bytes to its first pixel in the operand, and in the output."""


@lru_cache(256)
def _crossed(rows: tuple[tuple[int, int], ...], lanes: int) -> int:
    """The most rows that one vector of pixels crosses."""
    row, pixels = rows[-1][0], prod(extent for extent, _ in rows)
    first = np.arange(0, pixels, lanes)
    return int(((np.minimum(first + lanes, pixels) - 1) // row - first // row).max()) + 1


def segments(rows: tuple[tuple[int, int], ...], lanes: int, width_bytes: int, *, by_rows: bool) -> NDArray[Any]:
    """The segments of every vector of pixels, (vectors, crossed); those of fewer end with empty ones."""
    if by_rows:
        return _segments_by_rows(rows, lanes, width_bytes)
    row, step = rows[-1]
    pixels = prod(extent for extent, _ in rows)
    starts = np.zeros(1, np.int64)  # of every row of pixels
    for extent, stride in rows[:-1]:
        starts = (starts[:, None] + np.arange(extent) * stride).reshape(-1)
    first = np.arange(0, pixels, lanes)[:, None]
    last = np.minimum(first + lanes, pixels)
    number = np.minimum(first // row + np.arange(_crossed(rows, lanes)), (last - 1) // row)
    found = np.empty(number.shape, SEGMENT)
    found["at"] = starts[number] + (first - number * row) * step
    found["first"] = np.maximum(first, number * row) - first
    found["end"] = np.minimum((number + 1) * row, last) - first
    again = number[:, 1:] == number[:, :-1]
    for name in ("first", "end"):
        found[name][:, 1:][again] = 0
    return found


def _segments_by_rows(rows: tuple[tuple[int, int], ...], lanes: int, width_bytes: int) -> NDArray[Any]:
    """The one segment of every vector of pixels, (vectors, 1), where rows are cut alone; one that is shorter than a
    vector has one."""
    row, step = rows[-1]
    starts = np.zeros(1, np.int64)
    for extent, stride in rows[:-1]:
        starts = (starts[:, None] + np.arange(extent) * stride).reshape(-1)
    begin = np.minimum(np.arange(0, row, lanes), max(row - lanes, 0))
    found = np.empty((len(starts) * len(begin), 1), _BY_ROWS)
    found["at"] = (starts[:, None] + begin * step).reshape(-1, 1)
    found["out"] = (np.arange(len(starts))[:, None] * row + begin).reshape(-1, 1) * width_bytes
    return found


SummedMode = tuple[int, int, int]
"""A mode of a sum: its extent, and the bytes of the windowed operand and of the weights."""


def term_places(modes: Sequence[SummedMode]) -> NDArray[Any]:
    """The places of all terms of a sum, (terms, 2), in the order in which the weights lie."""
    places = np.zeros((1, 2), np.int64)
    for extent, *strides in modes:
        places = (places[:, None] + np.arange(extent)[:, None] * np.array(strides, np.int64)).reshape(-1, 2)
    return places


@dataclass(frozen=True, slots=True)
class Convolution:
    """A product over windows as loops of scalars: every number is in bytes, or counts.

    Args:
        element: of all operands.
        tensors: positions of the windowed operand, the weights, and what is written.
        offsets: bytes to the first element of these.
        outer: what is done one after the other: images, groups; strides of the three operands.
        filters: how many filters, the weights' stride and the output's.
        terms: the modes of a sum, in the order in which the weights lie.
        rows: (pixels, windowed operand's stride) of the modes that are one range of pixels, outermost first.
        chain: what follows each sum, or None.
        sums: the chain's operand that the sums are.
        extras: the chain's other operands, by number.
        packed: whether the weights lie panel by panel, as `Packing` arranges them.
        by_rows: whether no vector of pixels crosses rows.
    """

    element: Element
    tensors: tuple[int, int, int]
    offsets: tuple[int, int, int]
    outer: tuple[Mode, ...]
    filters: tuple[int, int, int]
    terms: tuple[SummedMode, ...]
    rows: tuple[tuple[int, int], ...]
    chain: MergedOp | None
    sums: int
    extras: dict[int, Extra]
    packed: bool = False
    by_rows: bool = False

    @property
    def pointers(self) -> tuple[int, ...]:
        """Positions of all tensors that are met."""
        return (*self.tensors, *dict.fromkeys(extra.tensor for extra in self.extras.values()))

    @property
    def pixels(self) -> int:
        """Output elements of one filter and one image."""
        return prod(extent for extent, _ in self.rows)

    @property
    def step(self) -> int:
        """Elements between neighbouring pixels in the windowed operand: 1 or 2."""
        return self.rows[-1][1] // self.element.width_bytes

    @property
    def spread(self) -> int:
        """Bytes from the first to the last element of the windowed operand that one image is read from."""
        ends = [(extent - 1) * stride for extent, stride, _ in self.terms]
        far = max(sum([end for end in ends if end > 0]), -sum([end for end in ends if end < 0]))
        return far + sum([(n - 1) * s for n, s in self.rows])

    @property
    def count(self) -> int:
        """Terms of a sum."""
        return prod([extent for extent, _, _ in self.terms])

    def vectors(self, target: Target) -> int:
        """Of the pixels of one filter and one image."""
        lanes, row = target.lanes(self.element.width_bytes), self.rows[-1][0]
        return self.pixels // row * -(-row // lanes) if self.by_rows else -(-self.pixels // lanes)

    def crossed(self, target: Target) -> int:
        """The most rows that one vector of pixels crosses."""
        return 1 if self.by_rows else _crossed(self.rows, target.lanes(self.element.width_bytes))

    def short(self, target: Target) -> bool:
        """Whether each vector is a row that does not fill it."""
        return self.by_rows and self.rows[-1][0] < target.lanes(self.element.width_bytes)

    @property
    def products(self) -> int:
        """Multiplications of the whole."""
        return prod(mode.extent for mode in self.outer) * self.filters[0] * self.count * self.pixels


_last: tuple[Any, ...] = (None, None, (), None)  # form, target, packed tensors, and the convolution: several ask


def match(form: Merged, target: Target, packed: Collection[str] = ()) -> Convolution | None:
    """The convolution that a program is; None where it is none, or where another way is better.

    Args:
        form: the program.
        target: the processor.
        packed: tensors that may be arranged otherwise, once, before any run.
    """
    global _last
    last = _last  # read once: other threads replace it
    if last[0] is form and last[1:3] == (target, frozenset(packed)):
        return cast("Convolution | None", last[3])
    found = _matched(form, target, packed)
    _last = form, target, frozenset(packed), found
    return found


def _matched(form: Merged, target: Target, packed: Collection[str]) -> Convolution | None:
    """`match`, found."""
    steps = form.body
    ops = [step for step in steps if isinstance(step, MergedOp) and not step.guard]
    if len(ops) != len(steps) or not 1 <= len(ops) <= 2:
        return None  # loops or guards are left, around which the nest calls code for each operation
    product_op, chain = ops[0], ops[1] if len(ops) == 2 else None
    specs = form.program.tensors
    # sums begin at zero in registers and are stored once: there is no code that adds to what the output holds
    plain = product_op.kind == "Contraction" and len(product_op.operands) == 3 and product_op.init == ()
    if not plain or product_op.relu is not None or product_op.operands[2] in product_op.operands[:2]:
        return None
    if len({specs[j].dtype for op in ops for j in op.operands}) != 1:
        return None  # one width of vectors throughout: nothing is converted on the way
    one = element(specs[product_op.operands[2]].dtype)
    if not (one.floating and one.plain) or target.lanes(one.width_bytes) < 4:
        return None
    if chain is not None and not _follows(chain, product_op):
        return None
    for x in (1, 0):
        found = _sorted(product_op, x, chain, one, target)
        if found is None:
            continue
        # `Packing.arranged` reads the whole array upwards from its first element
        constant = specs[found.tensors[1]].name in packed and found.offsets[1] == 0
        ahead = found.filters[1] >= 0 and all(mode.strides[1] >= 0 for mode in found.outer)
        found = replace(found, packed=constant and ahead and all(weight >= 0 for _, _, weight in found.terms))
        windowed = _windowed(product_op, x)
        if windowed or _reads_well(found, target):
            made = _cut_by_rows(_row_by_row(found, target), target)
            return None if _packs_better(made, windowed, target) else made
    return None


LONG_ROW = 64
"""Vectors of a row from which on to begin another one costs nothing beside it."""
FEW_FILTERS = 4
"""They are one panel on any processor."""


def _row_by_row(c: Convolution, target: Target) -> Convolution:
    """The convolution with long rows one after the other: a table of the vectors of all would fill the caches with
    half as many bytes as the pixels have. Several panels of filters read a block of rows each, so theirs stay."""
    few = c.filters[0] <= FEW_FILTERS and len(c.rows) > 1
    if not few or c.rows[-1][0] < LONG_ROW * target.lanes(c.element.width_bytes):
        return c
    moved, length = list[Mode](), c.rows[-1][0] * c.element.width_bytes
    for extent, stride in reversed(c.rows[:-1]):
        moved.insert(0, Mode(extent, (stride, 0, length)))
        length *= extent
    along = tuple(mode.strides[2] for mode in moved)
    extras = {
        o: replace(extra, outer_strides=(*extra.outer_strides, *(along if extra.along_pixels else (0,) * len(moved))))
        for o, extra in c.extras.items()
    }
    return replace(c, rows=c.rows[-1:], outer=(*c.outer, *moved), extras=extras)


_SHORT = 0.85
"""Of the cycles that vectors across rows take, those of rows shorter than a vector are to take so many at most: on a
Cascade Lake rows of 13 to 15 pixels gain a fifth to a third; at 0.87, rows of 12 that are read two apart lose a sixth.
"""


def _cut_by_rows(c: Convolution, target: Target) -> Convolution:
    """The convolution with its rows cut alone, where that takes fewer cycles; what is computed twice is read only."""
    lanes = target.lanes(c.element.width_bytes)
    if any(extra.along_pixels for extra in c.extras.values()):
        return c
    other = replace(c, by_rows=True)
    if c.rows[-1][0] % lanes == 0:  # the same vectors, by code that serves other widths too
        return other if c.filters[0] > FEW_FILTERS else c  # to ask the table costs a few filters up to a thirtieth
    if c.crossed(target) == 1 and c.rows[-1][0] < LONG_ROW * lanes:
        return c
    if other.short(target):  # all vectors are masked, alike; where that is free
        return other if target.masks_stores and _tiles(other, target)[0] < _SHORT * _tiles(c, target)[0] else c
    if c.crossed(target) == 1:
        return other  # no vector has a mask then
    return min((c, other), key=lambda one: _tiles(one, target)[0])


def _windowed(op: MergedOp, x: int) -> bool:
    """Whether the windows of a convolution overlap, or each channel has filters of its own."""
    modes = [mode for mode in op.modes if mode.extent > 1]
    each = not any(mode.strides[2] and not mode.strides[x] for mode in modes)
    each = each and any(mode.strides[2] and mode.strides[1 - x] for mode in modes)  # else a vector times a matrix
    width = op.width_bytes
    return each or not injective(tuple(mode for mode in op.modes if mode.strides[x]), x, width)


def _reads_well(c: Convolution, target: Target) -> bool:
    """Whether a product without windows is as fast read in place as packed: measured against packed panels.

    Vectors are mostly full and of one or two rows, and the weights lie in panels or in different sets of the cache.
    Pixels two apart would be packed one by one, for few filters: the means of 2 x 2 of 192 planes of 21 x 21 take
    110 us so, and 13 in place.
    """
    if c.step > 1 and c.filters[0] <= FEW_FILTERS:
        return True
    lanes = target.lanes(c.element.width_bytes)
    vectors = -(-c.pixels // lanes)
    crossed = c.crossed(target)
    full = c.pixels >= 0.8 * lanes * vectors and crossed * c.step <= 4
    return full and (c.packed or (c.step == 1 and _kept_rows(c.filters[1], target) >= 16))


_SUMMED, _PANELS = 64, 4
"""Terms of a sum, and panels of filters, from which on vectors may rather be packed once. Measured with ResNet-50's
convolutions, and 6 to 64 filters of 16 and 96 channels, on a Zen 3."""


def _packs_better(c: Convolution, windowed: bool, target: Target) -> bool:
    """Whether the operands are better packed, as those of a product, where vectors are short.

    Each panel of filters reads all vectors again. Where a first cache holds but a small part of them, a tile of two
    short vectors takes a line or two of each term from further away; vectors of pixels two apart, and those that cross
    rows, are put together anew each time.
    """
    if target.has("avx512f") or c.count < _SUMMED or c.spread <= 4 * target.l1_bytes:
        return False
    if windowed and c.step == 1 and c.crossed(target) == 1:
        return False
    blocks = prod(mode.extent for mode in c.outer if not mode.strides[0])  # of filters, where weights lie so
    panels = blocks * c.filters[0] / _tiles(c, target)[1]
    return panels >= _PANELS


def _follows(chain: MergedOp, product_op: MergedOp) -> bool:
    """Whether a chain reads sums and writes one result per sum, each alone."""
    sums = product_op.operands[2]
    writes = [stage.output for stage in chain.stages if stage.output not in chain.dropped]
    if len(writes) != 1 or chain.stages[-1].output != writes[0] or chain.operands.count(sums) != 1:
        return False
    known = all(stage.kind in KNOWN and stage.kind not in MONOIDS for stage in chain.stages)
    simple = not any(stage.reads_output for stage in chain.stages)
    reads = {o for stage in chain.stages for o in stage.inputs}
    return known and simple and chain.operands.index(sums) in reads - set(writes)


def _sorted(op: MergedOp, x: int, chain: MergedOp | None, one: Element, target: Target) -> Convolution | None:
    """The modes by what moves along them, `x` being the number of the windowed operand."""
    w, width = 1 - x, one.width_bytes
    sums = chain.operands.index(op.operands[2]) if chain is not None else -1
    out = chain.stages[-1].output if chain is not None else -1
    others = _others(chain, sums)
    modes = _refined([mode for mode in op.modes if mode.extent > 1], chain, sums)
    if modes is None:
        return None
    pixels, filters, terms, outer = [], [], [], []
    for mode, moves in modes:
        if not mode.strides[2]:
            terms.append((mode, moves))
        elif mode.strides[x] and mode.strides[w]:
            outer.append((mode, moves))
        elif mode.strides[x]:
            pixels.append((mode, moves))
        else:
            filters.append((mode, moves))

    def written(item: tuple[Mode, tuple[int, ...]]) -> int:
        return item[1][out] if chain is not None else item[0].strides[2]

    if prod(mode.extent for mode, _ in terms) > MOST_TERMS or not pixels:
        return None
    pixels.sort(key=written)
    dense: list[tuple[Mode, tuple[int, ...]]] = []
    length = width
    for item in pixels:
        same = not dense or all((item[1][o] == length) == (dense[0][1][o] == width) for o in others)
        if written(item) != length or not same or any(item[1][o] not in (0, length) for o in others):
            break
        dense.append(item)
        length *= item[0].extent
    if not dense or dense[0][0].strides[x] not in (width, 2 * width):
        return None
    outer += pixels[len(dense) :]
    filters.sort(key=lambda item: -item[0].extent)
    best, outer = filters[:1], outer + filters[1:]
    terms.sort(key=lambda item: -abs(item[0].strides[w]))
    modes_of_sums = tuple([(mode.extent, mode.strides[x], mode.strides[w]) for mode, _ in terms])
    if chain is None and not _windowed(op, x):
        return None  # a matrix product, which `gemm` blocks for the caches
    extras = {}
    for o in others:
        along = tuple(moves[o] for _, moves in outer)
        place = (chain.operands[o], chain.offsets[o]) if chain is not None else (0, 0)
        extras[o] = Extra(*place, best[0][1][o] if best else 0, along, dense[0][1][o] == width)
    found = Convolution(
        one,
        (op.operands[x], op.operands[w], chain.operands[out] if chain is not None else op.operands[2]),
        (op.offsets[x], op.offsets[w], chain.offsets[out] if chain is not None else op.offsets[2]),
        tuple(
            Mode(m.extent, (m.strides[x], m.strides[w], moves[out] if chain is not None else m.strides[2]))
            for m, moves in outer
        ),
        (best[0][0].extent, best[0][0].strides[w], written(best[0])) if best else (1, 0, 0),
        modes_of_sums,
        tuple((mode.extent, mode.strides[x]) for mode, _ in reversed(dense)),
        chain,
        sums,
        extras,
    )
    return found if found.crossed(target) <= MOST_SEGMENTS else None


def _others(chain: MergedOp | None, sums: int) -> list[int]:
    """The chain's operands that are read from memory, other than the sums."""
    if chain is None:
        return []
    written = {stage.output for stage in chain.stages}
    return sorted({o for stage in chain.stages for o in stage.inputs if o != sums and o not in written})


def _refined(modes: Sequence[Mode], chain: MergedOp | None, sums: int) -> list[tuple[Mode, tuple[int, ...]]] | None:
    """The product's modes, cut where those of the chain end, each with the bytes that the chain's operands move."""
    if chain is None:
        return [(mode, ()) for mode in modes]
    walked = sorted((m for m in chain.modes if m.extent > 1), key=lambda m: m.strides[sums])
    none = (0,) * len(chain.operands)
    found: list[tuple[Mode, tuple[int, ...]]] = []
    for mode in modes:
        if not mode.strides[2]:
            found.append((mode, none))
            continue
        stride, extent, inner = mode.strides[2], mode.extent, []
        while extent > 1:
            over = [m for m in walked if 0 < m.strides[sums] <= stride < m.strides[sums] * m.extent]
            if len(over) != 1 or stride % over[0].strides[sums]:
                return None
            times = stride // over[0].strides[sums]
            room = -(-over[0].extent // times)
            count = min(extent, room)
            if extent % count:
                return None
            scale = stride // mode.strides[2]
            part = Mode(count, tuple(s * scale for s in mode.strides))
            inner.append((part, tuple(s * times for s in over[0].strides)))
            extent //= count
            stride *= count
        found += reversed(inner)
    return found


# ---- register tiles -------------------------------------------------------------------------------------------------


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
_LOAD_CYCLES = {(False, False): 0.3, (False, True): 0.7, (True, False): 1.0, (True, True): 5.0}
"""Beyond the products, by whether vectors cross rows and whether pixels lie two elements apart: measured on a Zen 4,
where masks and shuffles compete with products."""

_MASKED_CYCLES = 2.0
"""The same, where a mask is a vector: for reading it again, and for joining what it leaves."""

_WEIGHT_CYCLES = 0.5
"""For reading a weight, once per row of a tile, where masks take no vector registers: a tile of one vector reads one
per product. Chosen by the time of ResNet-50's convolutions on a Zen 5. Where a core begins one product per cycle the
weight is read beside it: a Zen 4 takes 0.84 of the time for 8 images of 48 x 26 x 26 with 64 filters of 3 x 3, two
pixels apart, in tiles of 16 filters by one vector, beside 13 by 2."""


def _tiles(c: Convolution, target: Target) -> tuple[float, int, int]:
    """(cycles, filters, vectors) of the register tile with the fewest cycles."""
    return _best_tile(c.vectors(target), c.crossed(target), c.step, c.filters[0], _most_rows(c, target), target)


def _most_rows(c: Convolution, target: Target) -> int:
    """Filters of a register tile, at most."""
    return min(c.filters[0], 24, 24 if c.packed else _kept_rows(c.filters[1], target))


@lru_cache(1024)
def _best_tile(
    vectors: int, crossed: int, step: int, filters: int, most_rows: int, target: Target
) -> tuple[float, int, int]:
    """`_tiles`, of what it depends on."""
    registers = target.registers - (target.registers > 16)
    even = [rows for rows in range(1, most_rows + 1) if rows == -(-filters // -(-filters // rows))]  # no panel has less
    return min(
        (_cycles(vectors, crossed, step, filters, rows, width, target), rows, width)
        for width in range(1, min(8, vectors) + 1)
        if width == 1 or width * crossed * step <= _MOST_PLACES
        for rows in even
        if rows == 1 or rows * width + width + 1 <= registers
    )


def tiling(c: Convolution, target: Target) -> RegisterTiling:
    """The register tile with the fewest cycles."""
    vectors = c.vectors(target)
    _, rows, width = _tiles(c, target)
    tiles = -(-vectors // width)
    few, more = divmod(vectors, tiles)
    return _tiling(c, target, rows, few + (more > 0), more or tiles, tiles)


def _tiling(c: Convolution, target: Target, rows: int, width: int, wide: int, tiles: int) -> RegisterTiling:
    near = max(1, target.l2_bytes // 2)  # read again for each panel of filters
    blocks = 1 if c.filters[0] <= rows else min(tiles, max(1, -(-c.spread // near)))
    return RegisterTiling(rows, width, wide, tiles, c.crossed(target), blocks)


_SLACK = 1.05
"""Of the cycles of the best tile, those that another one may take whose code is there: what the estimates are worth."""


def tiling_like(
    c: Convolution, target: Target, *, rows: int, widths: Sequence[int], by_rows: bool
) -> tuple[Convolution, RegisterTiling] | None:
    """A convolution by register tiles and vectors that are given; None where that is impossible, or much slower.

    Args:
        c: the convolution, cut as is best for it.
        target: the processor.
        rows: filters of a tile.
        widths: vectors of a tile, the wider ones first; each of them is in the code.
        by_rows: whether no vector may cross rows.
    """
    best = _tiles(c, target)[0]
    if by_rows != c.by_rows:
        if by_rows and any(extra.along_pixels for extra in c.extras.values()):
            return None  # pixels that are computed twice would be added to twice, where the result lies in the operand
        c = replace(c, by_rows=by_rows)
    vectors, width = c.vectors(target), widths[0]
    tiles = -(-vectors // width)
    wide = vectors - tiles * (width - 1) if len(widths) > 1 else tiles
    fits = rows <= _most_rows(c, target) and c.crossed(target) <= MOST_SEGMENTS
    if not fits or wide <= 0 or (len(widths) == 1 and vectors % width):
        return None
    if _cycles(vectors, c.crossed(target), c.step, c.filters[0], rows, width, target) > _SLACK * best:
        return None
    return c, _tiling(c, target, rows, width, wide, tiles)


def _cycles(vectors: int, crossed: int, step: int, filters: int, rows: int, width: int, target: Target) -> float:
    """Of all tiles: one per product, some per load of a vector or a weight, and no less than a product takes.

    Where masks take vector registers, and weights are spread by loads of their own, no less than these loads take.
    """
    tiles = -(-vectors // width)
    wide = -(-vectors // tiles)
    load = _LOAD_CYCLES[crossed > 1, step > 1] * crossed
    busy = rows * wide + wide * load
    if not target.has("avx512f"):
        masked = wide * crossed * (crossed > 1)
        busy = max(busy + _MASKED_CYCLES * masked, rows + wide * crossed + 2.0 * masked)
    elif not target.one_product:
        busy += _WEIGHT_CYCLES * rows
    return (max(busy, 4.0) + 0.7) * tiles * -(-filters // rows)


def _kept_rows(stride_bytes: int, target: Target) -> int:
    """How many rows of weights a first cache holds at one place along them, its sets being eight lines."""
    sets = max(1, target.l1_bytes // (8 * 64))
    apart = sets // gcd(max(1, stride_bytes // 64), sets)
    return max(1, 4 * apart) if stride_bytes >= 64 else 24
