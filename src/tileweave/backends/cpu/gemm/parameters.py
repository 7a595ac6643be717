"""The sizes of a blocked product that are no part of its code: extents, strides, block sizes.

What is left is what code is specialised on: how many axes there are of each role, where an operand is dense, the
register tile, what is packed, and the element types.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tileweave.backends.cpu.gemm.gett import ProductBlocking
from tileweave.teir.merged.form import Mode

__all__ = ["are_tiny", "key_of", "numbers_of", "with_sizes"]


_TINY, _MANY = 16**3, 16


def are_tiny(modes: Sequence[Mode]) -> bool:
    """Whether a contraction is many products so small that code with constant sizes pays.

    A thousand of 8 x 8 x 8 take 38 us with constants, 44 with sizes from a table; one of 16 x 16 x 16 takes as long.
    """
    shared = [all(mode.strides[:3]) for mode in modes]
    many = prod(mode.extent for mode, batch in zip(modes, shared, strict=True) if batch)
    return many >= _MANY and prod(m.extent for m, batch in zip(modes, shared, strict=True) if not batch) <= _TINY


def _groups(c: ProductBlocking) -> list[tuple[tuple[Mode, ...], tuple[int, ...]]]:
    """The axes by role, each with the widths in bytes of the operands that they walk."""
    a, b, out = c.rows.element.width_bytes, c.columns.element.width_bytes, c.columns.output_bytes
    every = a, b, out
    return [
        (c.outer, every),
        (c.batch, every),
        (c.rows.dims, (a, out)),
        (c.columns.dims, (b, out)),
        (c.contracted.dims, (a, b)),
    ]


def key_of(c: ProductBlocking) -> Hashable:
    """What code is specialised on, before any decision that it takes from a size."""
    rows, columns = c.rows, c.columns
    axes: list[Any] = [len(c.outer), len(c.batch), len(rows.dims), len(columns.dims), len(c.contracted.dims)]
    for dims, widths in _groups(c):
        for dim in dims:
            for s, w in zip(dim.strides, widths, strict=True):
                axes.append(s if s in (0, w, -w) else "s")
    flags = c.swapped, c.a_in_place, c.b_in_place, c.shared, c.keep_a, c.contracted.interleaved, c.contracted.paired
    sizes = rows.width, rows.lanes, columns.width, columns.lanes, c.transposed_panels
    kinds = rows.element.name, columns.element.name, columns.sums.name, columns.output_bytes
    return tuple(axes), flags, sizes, kinds, tuple(map(bool, c.offsets))


def numbers_of(c: ProductBlocking) -> list[int]:
    """The sizes, in the order in which `with_sizes` takes them."""
    numbers = []
    for dims, widths in _groups(c):
        for dim in dims:
            numbers.append(dim.extent)
            numbers += [s for s, w in zip(dim.strides, widths, strict=True) if s not in (0, w, -w)]
    return [*numbers, c.kc, c.row_panels, c.column_panels, *(o for o in c.offsets if o)]


def with_sizes(c: ProductBlocking, size: Callable[[int], int]) -> ProductBlocking:
    """The same product with every size replaced by what a function makes of it, in the order of `numbers_of`."""

    def mode(dim: Mode, widths: Sequence[int]) -> Mode:
        extent = size(dim.extent)
        return Mode(extent, tuple(s if s in (0, w, -w) else size(s) for s, w in zip(dim.strides, widths, strict=True)))

    outer, batch, rows, columns, summed = (tuple(mode(dim, widths) for dim in dims) for dims, widths in _groups(c))
    kc, row_panels, column_panels = map(size, (c.kc, c.row_panels, c.column_panels))
    a, b, out = (size(offset) if offset else 0 for offset in c.offsets)
    return replace(
        c,
        outer=outer,
        batch=batch,
        rows=replace(c.rows, dims=rows),
        columns=replace(c.columns, dims=columns),
        contracted=replace(c.contracted, dims=summed),
        kc=kc,
        row_panels=row_panels,
        column_panels=column_panels,
        offsets=(a, b, out),
    )
