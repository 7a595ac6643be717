"""The axes of a chain made ready for code: whether their order is free, which one runs in vectors, which are summed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.llvm.vectors import NEAR
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import Sizes, plain
from tileweave.teir.merged.form import MONOIDS, MergedOp, Mode, fuse
from tileweave.teir.merged.order import Pairs, free


@dataclass(frozen=True, slots=True)
class Shape:
    """Axes ready for code: none of extent 1.

    Args:
        dims: outermost first.
        offsets: bytes to add to each operand's address.
        free: whether the order of execution does not matter; if not, what follows is empty.
        along: the axis that runs in vectors.
        sums: axes on which the outputs of reductions stand still, ``along`` left out.
        outer: the other axes.
        sums_along: whether the outputs of reductions stand still on ``along``.
    """

    dims: tuple[Mode, ...]
    offsets: tuple[int, ...]
    free: bool
    along: Mode
    sums: tuple[Mode, ...] = ()
    outer: tuple[Mode, ...] = ()
    sums_along: bool = False


def shape_of(op: MergedOp, elements: tuple[Element, ...], rivals: Pairs, target: Target) -> Shape:
    """The axes of a chain, sorted and fused where that is free."""
    widths = tuple(e.width_bytes for e in elements)
    dims = [dim for dim in op.modes if dim.extent > 1]
    offsets = list(op.offsets)
    none = Mode(1, (0,) * len(elements))
    if [stage.kind for stage in op.stages] == ["Zero"]:  # zero any number of times is zero
        dims = [dim for dim in dims if dim.strides[-1]]
    elif not free(op, widths, rivals):
        return Shape(tuple(dims), tuple(offsets), False, none)
    lead = _leading(op)
    for k, dim in enumerate(dims):
        first = next((s for s in (dim.strides[lead], *dim.strides) if s), 0)
        if first < 0:
            offsets = [o + s * (dim.extent - 1) for o, s in zip(offsets, dim.strides, strict=True)]
            dims[k] = Mode(dim.extent, tuple(-s for s in dim.strides))
    reduced = [stage.output for stage in op.stages if stage.kind in MONOIDS]
    sums = fuse(_sorted([dim for dim in dims if reduced and not dim.strides[reduced[0]]], lead))
    rest = fuse(_sorted([dim for dim in dims if not reduced or dim.strides[reduced[0]]], lead))
    together = (*rest, *sums)
    if not together:
        return Shape((), tuple(offsets), True, none)
    lanes = target.lanes(max(widths))
    written = {stage.output for stage in op.stages if stage.kind not in MONOIDS}
    moved = tuple(2 if o in written else 1 for o in range(len(widths)))
    along = min(reversed(together), key=lambda dim: _cost(dim, widths, moved, lanes))
    return Shape(
        together,
        tuple(offsets),
        True,
        along,
        tuple(dim for dim in sums if dim is not along),
        tuple(dim for dim in rest if dim is not along),
        any(dim is along for dim in sums),
    )


_CONSTANT_ALONG, _CONSTANT = 64, 4
"""Extents up to these stay constants of the code, along the vectors and elsewhere: a row of one or two vectors takes no
loop, and no mask that is made at run time. Where several lengths of such rows come, code serves all of them."""


def with_sizes(shape: Shape, elements: tuple[Element, ...], sizes: Sizes) -> Shape:
    """The same axes with extents and strides replaced by words of a table.

    Not replaced: short extents, strides of 0 or one element, and along the vectors strides of a few elements.
    """
    widths = tuple(e.width_bytes for e in elements)
    made: dict[int, Mode] = {}

    def mode(dim: Mode) -> Mode:
        if id(dim) not in made:
            inner = dim is shape.along
            most, near = (
                (_CONSTANT_ALONG, NEAR) if inner and not sizes.any_length else (_CONSTANT, NEAR if inner else 1)
            )
            pairs = zip(dim.strides, widths, strict=True)
            strides = tuple(plain(s) if abs(s) <= near * w else sizes.parameter(s) for s, w in pairs)
            short = dim.extent <= most
            sizes.one_length |= short and inner
            made[id(dim)] = Mode(plain(dim.extent) if short else sizes.parameter(dim.extent), strides)
        return made[id(dim)]

    dims, sums, outer = (tuple(map(mode, dims)) for dims in (shape.dims, shape.sums, shape.outer))
    return replace(shape, dims=dims, along=mode(shape.along), sums=sums, outer=outer)


def _leading(op: MergedOp) -> int:
    """The operand in whose order memory is walked: the last output of all points, or what is reduced."""
    written = [stage.output for stage in op.stages if stage.kind not in MONOIDS]
    return written[-1] if written else op.stages[0].inputs[0]


def _sorted(dims: list[Mode], lead: int) -> list[Mode]:
    return sorted(dims, key=lambda dim: (-dim.strides[lead], dim.extent))


def _cost(dim: Mode, widths: tuple[int, ...], moved: tuple[int, ...], lanes: int) -> float:
    """Bytes that a vector along an axis moves per element: a line where an operand is not dense.

    What is written is moved twice, since its lines are read before.
    """
    touched = [
        times * (width if stride == width else 0 if stride == 0 else 64)
        for stride, width, times in zip(dim.strides, widths, moved, strict=True)
    ]
    return (1 + sum(touched)) * (-(-dim.extent // lanes) * lanes / dim.extent)
