"""Which merged programs are direct convolutions: a product over windows, and a chain on its sums.

Modes are sorted by what moves along them: pixels (the windowed operand and the output), filters (the weights and the
output), terms of a sum (both operands), groups (all three). Pixels that lie densely in the output are one range, which
vectors cut; a vector that crosses rows is read in segments. Or each row is cut alone, and its last vector begins so
much earlier that it ends with the row: some pixels are computed twice, and no vector has a mask. Or vectors are of
filters, and meet one pixel after the other. Long rows of few filters are done one after the other.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

from tileweave.backends.cpu.direct.convolution import Convolution, Extra
from tileweave.backends.cpu.direct.tiles import MOST_SEGMENTS, best_tile, estimated, estimated_packed, kept_rows
from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, element
from tileweave.backends.cpu.llvm.meanings import KNOWN
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import MONOIDS, Merged, MergedOp, Mode, injective

MOST_TERMS = 1 << 16
"""Terms of a sum: their places are a table."""


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
        found = _sorted(product_op, x, chain, one)
        if found is None:
            continue
        # `Packing.arranged` reads the whole array upwards from its first element
        constant = specs[found.tensors[1]].name in packed and found.offsets[1] == 0
        ahead = found.filters[1] >= 0 and all(mode.strides[1] >= 0 for mode in found.outer)
        found = replace(found, packed=constant and ahead and all(weight >= 0 for _, _, weight in found.terms))
        windowed = _windowed(product_op, x)
        if chain is None and not windowed and not _picks(found, target):
            continue  # a matrix product, which `gemm` blocks for the caches
        if windowed or _picks(found, target) or (_has_vectors(found, target) and _reads_well(found, target)):
            return _best(found, windowed, target)
    return None


def _best(c: Convolution, windowed: bool, target: Target) -> Convolution | None:
    """The convolution by vectors of pixels or of filters; None where its operands are better packed."""
    ways = []
    if _has_vectors(c, target):
        made = _cut_by_rows(_row_by_row(c, target), target)
        ways += [] if _packs_better(made, windowed, target) else [made]
    other = replace(c, along="filters")
    some = c.filters[0] > 1  # a vector of one filter is a matrix times a vector, or a window of each channel's own
    if some and (windowed or _picks(c, target)) and (ways or estimated(other, target) < estimated_packed(c, target)):
        ways.append(other)
    return min(ways, key=lambda one: estimated(one, target) / (_SURE if one.along == "filters" else 1.0), default=None)


_SURE = 0.9
"""Of the cycles of vectors of pixels, those of vectors of filters are to take so many at most."""


def _picks(c: Convolution, target: Target) -> bool:
    """Whether to pack the windowed operand is to pick elements: neither pixels nor terms lie one behind the other."""
    width = c.element.width_bytes
    dense = [extent for extent, stride, _ in c.terms if abs(stride) == width]
    return width < c.rows[-1][1] <= vectors.NEAR * width and max(dense, default=1) < target.lanes(width)


def _has_vectors(c: Convolution, target: Target) -> bool:
    """Whether pixels can be read in vectors."""
    width = c.element.width_bytes
    return c.rows[-1][1] in (width, 2 * width) and c.crossed(target) <= MOST_SEGMENTS


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
    if c.added:
        return c
    other = replace(c, along="rows")
    if c.rows[-1][0] % lanes == 0:  # the same vectors, by code that serves other widths too
        return other if c.filters[0] > FEW_FILTERS else c  # to ask the table costs a few filters up to a thirtieth
    if c.crossed(target) == 1 and c.rows[-1][0] < LONG_ROW * lanes and target.masks_stores:
        return c
    if other.short(target):  # all vectors are masked, alike; where that is free
        return other if target.masks_stores and best_tile(other, target)[0] < _SHORT * best_tile(c, target)[0] else c
    if c.crossed(target) == 1:
        return other  # no vector has a mask then
    return min((c, other), key=lambda one: best_tile(one, target)[0])


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
    return full and (c.packed or (c.step == 1 and kept_rows(c.filters[1], target) >= 16))


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
    panels = blocks * c.filters[0] / best_tile(c, target)[1]
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


def _sorted(op: MergedOp, x: int, chain: MergedOp | None, one: Element) -> Convolution | None:
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
    if not dense:
        return None
    outer += pixels[len(dense) :]
    filters.sort(key=lambda item: -item[0].extent)
    best, outer = filters[:1], outer + filters[1:]
    terms.sort(key=lambda item: -abs(item[0].strides[w]))
    modes_of_sums = tuple([(mode.extent, mode.strides[x], mode.strides[w]) for mode, _ in terms])
    extras = {}
    for o in others:
        along = tuple(moves[o] for _, moves in outer)
        place = (chain.operands[o], chain.offsets[o]) if chain is not None else (0, 0)
        extras[o] = Extra(*place, best[0][1][o] if best else 0, along, dense[0][1][o] == width)
    return Convolution(
        one,
        (op.operands[x], op.operands[w], chain.operands[out] if chain is not None else op.operands[2]),
        (op.offsets[x], op.offsets[w], chain.offsets[out] if chain is not None else op.offsets[2]),
        tuple(
            Mode(m.extent, (m.strides[x], m.strides[w], moves[out] if chain is not None else m.strides[2]))
            for m, moves in outer
        ),
        (best[0][0].extent, best[0][0].strides[w], written(best[0])) if best else (1, 0, 0),
        modes_of_sums,
        _rows(tuple((mode.extent, mode.strides[x]) for mode, _ in dense)),
        chain,
        sums,
        extras,
    )


def _rows(pixels: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(extent, stride) of pixels, innermost first, as rows, outermost first: dense ones are one."""
    rows: list[tuple[int, int]] = []
    for extent, stride in pixels:
        if rows and stride == rows[0][0] * rows[0][1]:
            rows[0] = rows[0][0] * extent, rows[0][1]
        else:
            rows.insert(0, (extent, stride))
    return tuple(rows)


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
