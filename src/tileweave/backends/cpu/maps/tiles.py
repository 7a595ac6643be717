"""Chains that read an operand across its dense axis: tiles of it are transposed in registers, where the chain goes on.

A block takes a run of the operand's dense axis by a piece of the vectors' axis, so that each of its lines is read while
it is in the first cache, and so is each of the output's lines written. Within a block, vectors of 16 bytes along the
operand's axis, one per lane, become vectors of the chain's lanes, one for each of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import Element, vector
from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.teir.merged.form import Mode, Stage
from tileweave.teir.merged.order import Pairs

RUN, PIECE = 128, 128
"""Elements of the operand's axis and of the vectors' axis that a block takes: of the sizes from 16 to 512, those that
were fast for matrices of 1 to 32 MB, with strides that are powers of two and others."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """An axis in which operands are dense that are not so along the vectors.

    Args:
        dim: the axis.
        operands: those that are transposed; nothing is written to them.
        q: elements of a tile along the axis, a power of two.
    """

    dim: Mode
    operands: tuple[int, ...]
    q: int


def crossing_of(
    along: Mode, outer: Sequence[Mode], stages: Sequence[Stage], elements: Sequence[Element], rivals: Pairs, lanes: int
) -> Crossing | None:
    """The axis across which most operands are read; None where there is none, or nothing to transpose.

    Args:
        along: the axis of the vectors.
        outer: the other axes.
        stages: of the chain.
        elements: one per operand.
        rivals: operands that may lie in the same memory.
        lanes: elements per vector.
    """
    written = {stage.output for stage in stages}
    read = sorted({o for stage in stages for o in stage.inputs} - written - {o for pair in rivals for o in pair})
    across = [o for o in read if abs(along.strides[o]) > elements[o].width_bytes]
    found = [(dim, tuple(o for o in across if dim.strides[o] == elements[o].width_bytes)) for dim in outer]
    dim, operands = max(found, key=lambda pair: len(pair[1]), default=(along, ()))
    if not operands or lanes == 1:
        return None
    return Crossing(dim, operands, max(vectors.short_row(lanes, elements[o].memory) for o in operands))


Point = Callable[[list[str], str | None, dict[int, str]], None]
"""A chain on a vector: the operands' addresses, a mask, and the vectors of those that were transposed."""


def emit_tiles(
    f: Function,
    crossing: Crossing,
    along: Mode,
    elements: Sequence[Element],
    pointers: list[str],
    sizes: tuple[Value, Value],
    lanes: int,
    point: Point,
    *,
    unroll: bool,
) -> None:
    """A block, tile by tile.

    Args:
        f: the function that does it.
        crossing: what is transposed.
        along: the axis of the vectors.
        elements: one per operand.
        pointers: where the block begins.
        sizes: how many elements it takes of the crossing and of the vectors' axis.
        lanes: elements per vector.
        point: the chain.
        unroll: whether the chain is written once for each vector of a whole tile; else there is a loop.
    """
    width, length = sizes
    q, cross = crossing.q, crossing.dim
    whole_width, whole_length = f.sub(width, f.rem(width, q)), f.sub(length, f.rem(length, lanes))
    held = {o: f.slot(vector(elements[o].memory, lanes), q) for o in crossing.operands}

    def upright(o: int, pointer: str, live: Value, mask: str | None) -> list[str]:
        """The vectors of an operand; rows beyond the live ones repeat the last of these."""
        rows = []
        for lane in range(lanes):
            row = lane if live is lanes or lane == 0 else f.min(lane, f.sub(live, 1))
            rows.append(vectors.load(f, elements[o], q, f.at(pointer, f.mul(row, along.strides[o])), mask))
        return vectors.transpose(f, elements[o].memory, lanes, rows, q)

    def tile(moved: list[str], live: Value, count: Value) -> None:
        """Some elements of the crossing for some lanes."""
        mask = None if live is lanes else vectors.mask_below(f, str(live), lanes)
        few = None if count is q else vectors.mask_below(f, str(count), q)
        found = {o: upright(o, moved[o], live, few) for o in crossing.operands}

        def at(t: Value) -> list[str]:
            return [f.at(p, f.mul(t, s)) for p, s in zip(moved, cross.strides, strict=True)]

        if unroll and count is q:
            for t in range(q):
                point(at(t), mask, {o: values[t] for o, values in found.items()})
            return
        for o, values in found.items():
            for t, value in enumerate(values):
                size = lanes * elements[o].width_bytes
                f.store(vector(elements[o].memory, lanes), value, f.at(held[o], t * size), size)

        def one(t: Value, _: list[str]) -> None:
            given = {}
            for o, place in held.items():
                size = lanes * elements[o].width_bytes
                given[o] = f.load(vector(elements[o].memory, lanes), f.at(place, f.mul(t, size)), size)
            point(at(t), mask, given)

        f.loop(0, count, one)

    def strip(index: Value, live: Value) -> None:
        """Some lanes for all elements of the crossing."""
        begin = [f.at(p, f.mul(index, s)) for p, s in zip(pointers, along.strides, strict=True)]

        def moved(t: Value) -> list[str]:
            return [f.at(p, f.mul(t, s)) for p, s in zip(begin, cross.strides, strict=True)]

        f.loop(0, whole_width, lambda t, _: tile(moved(t), live, q), step=q)
        rest = f.sub(width, whole_width)
        f.when(f.above(rest, 0), lambda: tile(moved(whole_width), live, rest))

    f.loop(0, whole_length, lambda index, _: strip(index, lanes), step=lanes)
    rest = f.sub(length, whole_length)
    f.when(f.above(rest, 0), lambda: strip(whole_length, rest))
