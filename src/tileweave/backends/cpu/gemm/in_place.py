"""Plain matrix products of moderate size, whose operands are read in place: nothing is packed, or B alone.

Packing costs a pass over each operand, and threads wait for each other between packing and multiplying. Both are saved
where the operands' own memory serves the tiles as well: the row operand is dense along K, so that a tile reads
a few rows at a time, and a panel of the vector operand finds room in the second cache at the stride that it has.

Figures were chosen by measurement. Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tileweave.backends.cpu.gemm.panels import Contracted
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode


@dataclass(frozen=True, slots=True)
class InPlace:
    """How a product is cut whose row operand is read in place.

    Args:
        columns: whether the vector operand is read in place as well; otherwise it is packed, panel by panel.
        products: per block, at most.
        chunk: rows and columns of a chunk, at most.
    """

    columns: bool
    products: int
    chunk: tuple[int, int]


_LEAST_PRODUCTS, _LEAST_EXTENT = 192, 97
"""With fewer of either, other rules read operands in place where that pays."""
_WAY_BYTES, _PLACES = 64 * 1024, 4096
"""Lines of the second cache, and of the first, that are so far apart compete for its ways."""
_CHUNK = 96, 128
_BLOCK_BYTES = 2048


def may_read_in_place(contracted: Contracted, operand: Element, sums: Element) -> bool:
    """Whether tiles can read the row operand in place: in the type of the sums, or as whole pairs of products."""
    pairs = contracted.paired and contracted.dense(0, operand.width_bytes) and contracted.total % 2 == 0
    return pairs or operand == sums


def read_in_place(
    target: Target,
    free_dims: tuple[tuple[Mode, ...], tuple[Mode, ...]],
    contracted: Contracted,
    operands: tuple[Element, Element],
    sums: Element,
) -> InPlace | None:
    """How a product is cut if its operands are better not packed, or None.

    Args:
        target: the processor.
        free_dims: axes of the rows and of the columns, with strides (operand, output).
        contracted: the summed axes.
        operands: types of the row and of the vector operand.
        sums: the type of the output.
    """
    rows, columns = free_dims
    width, total = operands[0].width_bytes, contracted.total
    if not len(rows) == len(columns) == len(contracted.dims) == 1 or total < _LEAST_PRODUCTS:
        return None
    dense = contracted.dense(0, width) and columns[0].strides[1] == sums.width_bytes
    extents = rows[0].extent, columns[0].extent
    if not dense or min(extents) < _LEAST_EXTENT or not may_read_in_place(contracted, operands[0], sums):
        return None
    if contracted.paired:
        in_l1 = target.l1_bytes * 2 // 3 // (4 * target.lanes(sums.width_bytes) * width)
        return InPlace(False, in_l1, (extents[0], 1)) if extents[0] * total * width <= target.l2_bytes else None
    if not sums.floating or operands != (sums, sums) or columns[0].strides[0] != width:
        return None
    held = target.l2_bytes // _WAY_BYTES * (_WAY_BYTES // gcd(contracted.stride(1), _WAY_BYTES))
    fits = max(extents) * total * width <= 4 * target.l2_bytes and rows[0].strides[0] % _PLACES != 0
    products = _BLOCK_BYTES // width
    return InPlace(True, products, _CHUNK) if fits and min(total, products) <= held else None
