"""Which side of a product is its columns, along which vectors run, and which its rows.

Source: own.
"""

from __future__ import annotations

from tileweave.backends.cpu.gemm.tile import tile_cycles
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode, fuse, points

VECTORS = 2, 4, 1, 3
"""Vectors of a tile. Three are taken where they hold all columns (12526 x 33 x 32: 325 us, with 14 x 32 366), for few
products (1134 x 80 x 1: 9.3 us and 12), and where columns divide by them best: 10 x 37 x 83 x 106 takes 72 us in
8 x 48, 85 in 10 x 32."""


def lanes_of(target: Target, out: Element, columns: int) -> int:
    """Elements of a vector: as few as hold all columns."""
    lanes = min(target.lanes(out.width_bytes), 16)
    while lanes > 1 and lanes // 2 >= columns:
        lanes //= 2
    return lanes


def dense_in(side0: list[Mode], width_bytes: int, side1: list[Mode]) -> bool:
    """Whether the columns should be in0's free axes."""
    dense0 = width_bytes in [dim.strides[2] for dim in side0]
    dense1 = width_bytes in [dim.strides[2] for dim in side1]
    if dense0 != dense1:
        return dense0
    return points(side0) > points(side1)


_SCATTERED, _ACROSS = 8, 0.9
"""Cycles that an element costs whose neighbours in a vector lie far apart in the output, and the share of the time from
which that pays: 40 x 7 x 28395 takes 670 us along the 7, 260 along the 40."""


def runs_across(
    sides: tuple[list[Mode], list[Mode]], operand: int, summed: list[Mode], out: Element, target: Target
) -> bool:
    """Whether vectors better run along the other side's axes than along the output's dense one.

    That is so where sums are long, the other side fills vectors better, and its operand is dense there. ``sides``: the
    one that has the output's dense axis, which is an axis of this operand, and the other one.
    """
    if points(summed) < _LONG:
        return False
    columns, others = (side_dims(dims, k) for dims, k in zip(sides, (operand, 1 - operand), strict=True))
    if not others or others[0].strides[0] != out.width_bytes:
        return False
    few, many = points(columns), points(others)
    along, across = (
        tile_cycles(target.registers, rows, n, lanes_of(target, out, n), VECTORS)
        for rows, n in ((many, few), (few, many))
    )
    stored = _SCATTERED * few * many / ACROSS_PRODUCTS
    return across + stored < _ACROSS * along


_LONG = ACROSS_PRODUCTS = 2048
"""Products of a sum that are many beside what it takes to store it, and those of a block then."""


def side_dims(dims: list[Mode], operand: int) -> tuple[Mode, ...]:
    """The axes of m or n with strides (operand, output), fastest first, fused."""
    if len(dims) == 1:
        return (Mode(dims[0].extent, (dims[0].strides[operand], dims[0].strides[2])),)
    ordered = sorted(dims, key=lambda d: (-d.strides[2], -abs(d.strides[operand])))
    pairs = [Mode(dim.extent, (dim.strides[operand], dim.strides[2])) for dim in ordered]
    return tuple(reversed(fuse(pairs)))
