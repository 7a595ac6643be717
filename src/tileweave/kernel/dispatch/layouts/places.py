"""Where an element of a tensor in memory lies, as an index expression; and how wide an access may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

from tileweave.errors import LayoutError
from tileweave.index import Expr, ExprLike, as_expr, bounds, divisor, simplify
from tileweave.kernel.ir import KernelTensor, Region
from tileweave.layout import Coord, Iter, Layout, group
from tileweave.layout.f2.swizzle import Swizzle

Rows = tuple[tuple[tuple[int, int], ...], ...]
"""Per dimension the iters that its coordinate drives: (extent, stride on m), slowest first."""


def rows_of(tensor: KernelTensor, axis: str = "m") -> Rows:
    """The iters of a tensor in memory, dimension by dimension, with their strides on one axis.

    Raises:
        LayoutError: a stride is on another axis than ``m``, ``gpu`` and ``cta``, or a dimension ends inside an iter.
    """
    layout = memory_layout(tensor)
    rows = []
    for block in group(layout, tensor.shape) if tensor.shape else ():
        row = []
        for it in block:
            terms = dict(it.stride.terms)
            if set(terms) - {"m", "gpu", "cta"}:
                raise LayoutError("dispatch(kernel)", f"{tensor} is on other axes than m, gpu and cta")
            row.append((it.extent, terms.get(axis, 0)))
        rows.append(tuple(row))
    return tuple(rows)


def memory_layout(tensor: KernelTensor) -> Layout:
    """The layout of a tensor in memory; row-major where dispatch chooses."""
    if tensor.layout is not None:
        return tensor.layout
    shard: list[tuple[int, int]] = []
    stride = 1
    for extent in reversed(tensor.shape):
        shard.insert(0, (extent, stride))
        stride *= extent
    return strided_layout(shard)


def strided_layout(rows: Iterable[tuple[int, int]]) -> Layout:
    """A layout on ``m`` from (extent, stride) pairs."""
    return Layout(tuple(Iter(extent, Coord.of(stride)) for extent, stride in rows))


def offset(tensor: KernelTensor, at: Sequence[ExprLike]) -> ExprLike:
    """The place of an element in its buffer, in elements, swizzle included.

    The last digit of a coordinate is not reduced: coordinates beyond the extent, which masks keep from being accessed,
    give places beyond the tensor.
    """
    if tensor.swizzle is None:
        return _along(tensor, at, "m")
    return _swizzled(tensor, tensor.swizzle, at)


def _swizzled(tensor: KernelTensor, swizzle: Swizzle, at: Sequence[ExprLike]) -> ExprLike:
    """The place through a swizzle. Where the strides say which digits make up its source bits, and none of the others
    reaches these, only what lies below them is XORed, with these digits: the rest stays a sum, so places that differ
    by whole periods differ by a constant."""
    total, below = _along(tensor, at, "m"), 1 << (swizzle.base + swizzle.shift)
    if swizzle.shift > 0 and isinstance(total, Expr):
        terms = [as_expr(digit) * stride for digit, stride in _digits(tensor, at, "m")]
        terms.append(as_expr(memory_layout(tensor).offset["m"]))
        above = simplify(sum((t for t in terms if divisor(t) % below == 0), as_expr(0)))
        low = simplify(sum((t for t in terms if divisor(t) % below), as_expr(0)))
        least, most = bounds(low)
        if least is not None and least >= 0 and most is not None and most < below:
            source = simplify(above // below % (1 << swizzle.bits))
            return above + (low ^ source * (1 << swizzle.base))
    place: ExprLike = swizzle(simplify(total) if isinstance(total, Expr) else total)
    return place


def device(tensor: KernelTensor, at: Sequence[ExprLike]) -> ExprLike:
    """The device of a mesh that an element lies on; of shared memory, the block of the cluster."""
    return _along(tensor, at, "cta" if tensor.space == "shared" else "gpu")


def _along(tensor: KernelTensor, at: Sequence[ExprLike], axis: str) -> ExprLike:
    total: ExprLike = memory_layout(tensor).offset[axis]
    for digit, stride in _digits(tensor, at, axis):
        total = total + digit * stride
    return total


def _digits(tensor: KernelTensor, at: Sequence[ExprLike], axis: str) -> Iterator[tuple[ExprLike, int]]:
    """The digits of coordinates with their strides on an axis."""
    for coordinate, row in zip(at, rows_of(tensor, axis), strict=True):
        below = prod(extent for extent, _ in row)
        for i, (extent, stride) in enumerate(row):
            below //= extent
            digit = coordinate // below if below > 1 else coordinate
            if i:
                digit = digit % extent
            yield digit, stride


def cosize(tensor: KernelTensor) -> int:
    """Elements of the buffer: one more than the last place."""
    last = int(memory_layout(tensor).offset["m"])
    for row in rows_of(tensor):
        for extent, stride in row:
            if stride < 0:
                raise LayoutError("dispatch(kernel)", f"{tensor} runs backwards", legal="strides from 0")
            last += (extent - 1) * stride
    if tensor.swizzle is not None:
        unit = 1 << (tensor.swizzle.base + tensor.swizzle.bits + abs(tensor.swizzle.shift))
        last = -(-(last + 1) // unit) * unit - 1
    return last + 1


def strides(tensor: KernelTensor) -> tuple[int | None, ...]:
    """Per dimension its stride, or None where it is blocked."""
    found: list[int | None] = []
    for extent, row in zip(tensor.shape, rows_of(tensor), strict=True):
        found.append(0 if extent == 1 or not row else row[0][1] if len(row) == 1 else None)
    return tuple(found)


def fastest(region: Region) -> int | None:
    """The shown dimension, by its position, whose innermost iter has stride 1; None where there is none."""
    rows = rows_of(region.tensor)
    for position, dim in enumerate(region.dims):
        if region.extent[dim] > 1 and rows[dim] and rows[dim][-1][1] == 1:
            return position
    return None


def vector(region: Region, most: int) -> int:
    """How many consecutive elements of the box, aligned at multiples of themselves, one access may take.

    Every digit above the run, every other dimension's stride, the begin and what exists of the box are multiples of it.

    Args:
        region: a box in memory; its buffer is aligned to 16 bytes.
        most: the widest access in elements, a power of two.
    """
    tensor = region.tensor
    rows = rows_of(tensor)
    at = fastest(region)
    if at is None:
        return 1
    dim = region.dims[at]
    width = gcd(most, rows[dim][-1][0], region.extent[dim], _divisor(region.begin[dim]))
    if region.mask[dim] != region.extent[dim]:
        width = gcd(width, _divisor(region.mask[dim]), tensor.shape[dim])
    if region.skip:
        width = gcd(width, _divisor(region.skip[dim]))
    for d, row in enumerate(rows):
        for i, (extent, stride) in enumerate(row):
            if extent > 1 and not (d == dim and i == len(row) - 1):
                width = gcd(width, stride)
    width = gcd(width, _divisor(memory_layout(tensor).offset["m"]))
    if tensor.swizzle is not None:
        width = min(width, 1 << tensor.swizzle.base)
    while width & (width - 1):
        width &= width - 1
    return width


def _divisor(value: ExprLike) -> int:
    if isinstance(value, Expr) and value.op in ("min", "max"):
        return gcd(*map(_divisor, value.args))
    return divisor(value) if isinstance(value, Expr) else value or 1 << 30


def inside(region: Region, at: Sequence[ExprLike], padded: Sequence[int]) -> Expr | None:
    """The condition that an element of the box exists; None where all do.

    Args:
        region: the box.
        at: coordinates in the box, per dimension that it shows.
        padded: the extents that those coordinates run over.
    """
    condition: Expr | None = None
    shown = list(zip(at, region.dims, padded, strict=True))
    dropped = [(0, d, 1) for d in range(region.tensor.rank) if d not in region.dims]  # by an index: it may be outside
    for coordinate, dim, extent in (*dropped, *shown):
        valid = region.mask[dim]
        skip = region.skip[dim] if region.skip else 0
        if not isinstance(skip, int) or skip:
            test = as_expr(coordinate) >= skip
            condition = test if condition is None else condition & test
        if isinstance(valid, int) and valid >= extent:
            continue
        if isinstance(valid, int) and isinstance(coordinate, int) and coordinate < valid:
            continue
        test = as_expr(coordinate) < valid
        condition = test if condition is None else condition & test
    return condition


def columns(region: Region, start: int, width: int) -> Region:
    """Columns of the second shown dimension."""
    dim = region.dims[1]
    begin, extent, mask = list(region.begin), list(region.extent), list(region.mask)
    begin[dim] = region.begin[dim] + start
    there = region.extent[dim]
    full = region.mask[dim]
    if isinstance(full, int):
        mask[dim] = max(0, min(width, full - start))
    else:
        mask[dim] = simplify(full - start)
    extent[dim] = min(width, there - start)
    if full == there:
        mask[dim] = extent[dim]
    return replace(region, begin=tuple(begin), extent=tuple(extent), mask=tuple(mask))
