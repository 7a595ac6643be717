"""Reductions to few results: cut into pieces, whose partial results are combined in their order.

How many pieces there are depends on extents and types alone, so the result has the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.llvm.meanings import total_of, wide_of
from tileweave.index.sizes import derived
from tileweave.teir.merged.form import MONOIDS, MergedOp, Mode, Stage

_MOST, _LEAST = 64, 4
"""How many pieces there are."""
_PIECE_POINTS = 8192
"""Points that are worth a piece."""
_HELD_BYTES = 32 * 1024
"""Partial results are on the stack."""
MOST_BYTES = 2 * _HELD_BYTES
_STEP = 256
"""A piece of a long axis is a multiple of this, so that whole vectors fill it."""
_KINDS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


@dataclass(frozen=True, slots=True)
class SplitReduction:
    """A cut reduction.

    Args:
        results: numbers of the operands that are reductions' results, in the order of their stages.
        totals: those of them whose partial results are totals in FP64 of sums whose pieces are formed in FP32.
        parts: what forms partial results: pieces that may be formed at once, and what is left over. They have the
            operands of the whole, with partial results for results.
        over_by: bytes from the operands of the pieces to those of what is left over.
        part_elements: the types of these operands.
        places: bytes from the beginning of all partial results to those of each result.
        size_bytes: of all partial results, `MOST_BYTES` at most.
        whole: takes partial results into results; its operands are, for every result, the partial ones and itself.
        whole_elements: the types of these.
    """

    results: tuple[int, ...]
    totals: frozenset[int]
    parts: tuple[MergedOp, ...]
    over_by: tuple[int, ...]
    part_elements: tuple[Element, ...]
    places: tuple[int, ...]
    size_bytes: int
    whole: MergedOp
    whole_elements: tuple[Element, ...]


def pieces_of(
    op: MergedOp, elements: tuple[Element, ...], totals: frozenset[int] = frozenset()
) -> SplitReduction | None:
    """A chain with reductions in pieces; None where it has many results, or few points.

    Args:
        op: a chain whose points may be visited in any order.
        elements: one per operand.
        totals: operands that take totals in FP64 of sums whose pieces are formed in FP32.
    """
    sums = [stage for stage in op.stages if stage.kind in MONOIDS]
    dims = [dim for dim in op.modes if dim.extent > 1]
    if not sums or any(MONOIDS[stage.kind] not in _KINDS for stage in sums):
        return None
    results = tuple(stage.output for stage in sums)
    kept = sorted((dim for dim in dims if dim.strides[results[0]]), key=lambda dim: -abs(dim.strides[results[0]]))
    over = sorted((dim for dim in dims if not dim.strides[results[0]]), key=lambda dim: dim.extent)
    wide = [total_of(MONOIDS[stage.kind], wide_of(elements[stage.output])) for stage in sums]
    totals |= {o for o, one in zip(results, wide, strict=True) if one != wide_of(elements[o])}
    spans = [one.width_bytes * prod(dim.extent for dim in kept) for one in wide]
    count = derived(_count, prod(dim.extent for dim in dims), sum(spans))
    if not over or count < _LEAST or over[-1].extent < count:
        return None
    cut = over[-1]
    length = derived(_length, cut.extent, count)
    count = cut.extent // length
    rest = cut.extent - count * length
    places = [sum(spans[:k]) * (count + 1) if k else 0 for k in range(len(spans) + 1)]

    def part(*ahead: Mode) -> MergedOp:
        """A chain over these axes and the others, into partial results."""
        into = {o: [one.width_bytes * n for n in _packed(kept)] for o, one in zip(results, wide, strict=True)}
        axes: list[tuple[Mode, dict[int, int]]] = [(dim, {}) for dim in over[:-1]]
        axes += [(dim, {o: row[k] for o, row in into.items()}) for k, dim in enumerate(kept)]
        axes += [(dim, dict(zip(results, spans, strict=True)) if dim is steps else {}) for dim in ahead]
        offsets = [0 if o in into else offset for o, offset in enumerate(op.offsets)]
        moved = tuple(
            Mode(dim.extent, tuple(row.get(o, 0) if o in into else s for o, s in enumerate(dim.strides)))
            for dim, row in axes
        )
        stages = tuple(replace(s, fresh=()) if s.kind in MONOIDS else s for s in op.stages)
        return replace(op, kind="Chain", modes=moved, offsets=tuple(offsets), stages=stages, guard=())

    steps = Mode(count, tuple(length * s for s in cut.strides))
    parts = [part(steps, Mode(length, cut.strides))] + ([part(Mode(rest, cut.strides))] if rest else [])
    behind = dict(zip(results, spans, strict=True))
    over_by = [count * behind[o] if o in behind else count * length * s if s else 0 for o, s in enumerate(cut.strides)]
    return SplitReduction(
        results,
        totals,
        tuple(parts),
        tuple(over_by),
        tuple(wide[results.index(o)] if o in results else one for o, one in enumerate(elements)),
        tuple(places[:-1]),
        places[-1],
        _whole(op, sums, kept, wide, len(parts) - 1 + count),
        tuple(one for k, o in enumerate(results) for one in (wide[k], elements[o])),
    )


def _count(points: int, span_bytes: int) -> int:
    """How many pieces: whole ones, so that all partial results and those of what is left over have room."""
    return min(_MOST, points // _PIECE_POINTS, _HELD_BYTES // span_bytes - 1)


def _length(extent: int, count: int) -> int:
    """Of an axis in a piece; there are less than twice as many pieces as were asked for."""
    length = extent // count
    return length - length % _STEP if length >= 16 * _STEP else length


def _packed(dims: Sequence[Mode]) -> list[int]:
    """How many elements apart neighbours along an axis are where all are dense, the last axis innermost."""
    return [prod(dim.extent for dim in dims[k + 1 :]) for k in range(len(dims))]


def _whole(op: MergedOp, sums: Sequence[Stage], kept: Sequence[Mode], wide: Sequence[Element], count: int) -> MergedOp:
    """The reduction of partial results."""
    results = [stage.output for stage in sums]
    apart = [*_packed(kept), prod(dim.extent for dim in kept)]
    dims = tuple(
        Mode(
            dim.extent,
            tuple(s for o, one in zip(results, wide, strict=True) for s in (one.width_bytes * n, dim.strides[o])),
        )
        for dim, n in zip((*kept, Mode(count, (0,) * len(op.operands))), apart, strict=True)
    )
    stages = [
        Stage(_KINDS[MONOIDS[stage.kind]], (2 * k,), 2 * k + 1, fresh=stage.fresh) for k, stage in enumerate(sums)
    ]
    operands = tuple(op.operands[o] for o in results for _ in range(2))
    offsets = tuple(offset for o in results for offset in (0, op.offsets[o]))
    return MergedOp("Chain", operands, dims, offsets, op.width_bytes, stages=tuple(stages))
