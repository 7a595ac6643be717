"""Register tensors: which thread holds which element in which slot.

A layout of a register tensor maps its row-major index to (warp, lane, reg); R names the threads that hold copies. A
printed kernel needs the way back: from the thread and the slot to the coordinates of the element. On each axis the
iters of D and R, sorted by stride, are the digits of that axis: the way back is a division and a remainder a digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import Expr, ExprLike, equal, simplify
from tileweave.kept import cached_property
from tileweave.layout import Coord, Iter, Layout, group

#: The axes of register layouts, from the outermost: warps of the scope, lanes of a warp, slots of a thread.
AXES = ("warp", "lane", "reg")


@dataclass(frozen=True, slots=True)
class RegisterDigit:
    """A digit of a thread's or slot's number: ``(axis // stride) % extent``, and what it adds to a coordinate.

    Args:
        axis: one of `AXES`.
        stride: its place on the axis.
        extent: how many values it has.
        dim: the dimension of the tensor that it moves along, or -1: it counts copies.
        weight: how far one step moves along that dimension.
    """

    axis: str
    stride: int
    extent: int
    dim: int
    weight: int

    def of(self, number: ExprLike) -> ExprLike:
        """The digit of a number on the axis."""
        return number // self.stride % self.extent


@dataclass(frozen=True)
class Holding:
    """Who holds what: the digits of a register layout over a shape.

    Args:
        layout: the layout; its size is the product of the shape.
        shape: the tensor's extents, padded to what the threads hold.
        digits: those of D, then those of R.
        warps: warps of the scope.
    """

    layout: Layout
    shape: tuple[int, ...]
    digits: tuple[RegisterDigit, ...]
    warps: int

    @cached_property
    def slots(self) -> int:
        """Elements that one thread holds."""
        return prod(d.extent for d in self.digits if d.axis == "reg" and d.dim >= 0)

    def coordinates(self, warp: ExprLike, lane: ExprLike, reg: ExprLike) -> tuple[ExprLike, ...]:
        """The coordinates of the element in a slot of a thread."""
        number = {"warp": warp, "lane": lane, "reg": reg}
        at: list[ExprLike] = [0] * len(self.shape)
        for digit in self.digits:
            if digit.dim >= 0:
                at[digit.dim] = at[digit.dim] + digit.weight * digit.of(number[digit.axis])
        return tuple(at)

    def first_copy(self, warp: ExprLike, lane: ExprLike) -> tuple[Expr, ...]:
        """The conditions under which a thread holds the first of the copies: that thread stores."""
        number = {"warp": warp, "lane": lane}
        return tuple(
            equal(digit.of(number[digit.axis]), 0)
            for digit in self.digits
            if digit.dim < 0 and digit.axis != "reg" and digit.extent > 1
        )

    def run(self, dim: int) -> int:
        """How many consecutive slots from slot 0 hold consecutive elements along a dimension."""
        length = 1
        for digit in sorted((d for d in self.digits if d.axis == "reg" and d.dim >= 0), key=lambda d: d.stride):
            if digit.dim != dim or digit.stride != length or digit.weight != length:
                break
            length *= digit.extent
        return length

    def part_slot(self, dims: Sequence[int], r: Any) -> Any:
        """The slot of :meth:`without` these dimensions that meets slot r."""
        total: Any = 0
        width = 1
        for digit in sorted((d for d in self.digits if d.axis == "reg" and d.dim >= 0), key=lambda d: d.stride):
            if digit.dim not in dims:
                total = total + digit.of(r) * width
                width *= digit.extent
        return simplify(total) if isinstance(total, Expr) else total

    def without(self, dims: Sequence[int]) -> Layout:
        """The layout when these dimensions are reduced to one element each: their threads hold copies, in one slot.

        The slots that remain close up: the digits of ``reg`` keep their order.
        """
        kept = [d for d in self.digits if d.dim >= 0 and d.dim not in dims]
        places: dict[RegisterDigit, int] = {}
        width = 1
        for digit in sorted((d for d in kept if d.axis == "reg"), key=lambda d: d.stride):
            places[digit] = width
            width *= digit.extent
        shard = [iter_at(d.extent, d.axis, places.get(d, d.stride)) for d in kept]
        copies = [d for d in self.digits if d.axis != "reg" and (d.dim < 0 or d.dim in dims)]
        return Layout(tuple(shard), tuple(iter_at(d.extent, d.axis, d.stride) for d in copies))


def holding(layout: Layout, shape: Sequence[int], warps: int, where: str = "holding(layout, shape, warps)") -> Holding:
    """Reads a register layout.

    Args:
        layout: places on ``warp``, ``lane``, ``reg``, an axis per iter; D and R together fill each thread axis.
        shape: the tensor's extents.
        warps: the warps of the scope; 0: one thread.

    Raises:
        LayoutError: the layout names another axis, leaves threads without an element, or gives two elements one place.

    Example:
        >>> from tileweave.layout import parse
        >>> held = holding(parse("(8:4@lane, 4:1@lane, 2:1@reg)"), (8, 8), 1)
        >>> held.slots, held.coordinates(0, 13, 1), held.run(1)
        (2, (3, 3), 2)
    """
    inputs = {"layout": layout, "shape": tuple(shape)}
    digits: list[RegisterDigit] = []
    for dim, block in enumerate(group(layout, tuple(shape))):
        weight = prod(it.extent for it in block)
        for it in block:
            weight //= it.extent
            digits.append(_digit(it.stride, it.extent, dim, weight, where, inputs))
    digits += [_digit(it.stride, it.extent, -1, 0, where, inputs) for it in layout.replica if it.extent > 1]
    extents = {"warp": warps, "lane": 32} if warps else {"warp": 1, "lane": 1}
    for axis in AXES:
        width = 1
        for digit in sorted((d for d in digits if d.axis == axis), key=lambda d: d.stride):
            if digit.stride != width:
                raise LayoutError(where, f"stride {digit.stride}@{axis} leaves a gap or overlaps", inputs=inputs)
            width *= digit.extent
        if width != extents.get(axis, width):
            raise LayoutError(
                where, f"the layout speaks of {width} on axis {axis}; the scope has {extents[axis]}", inputs=inputs,
                legal="copies in R where several threads hold one element",
            )  # fmt: skip
    return Holding(layout, tuple(shape), tuple(digits), warps)


def pieces(held: Holding) -> list[RegisterDigit]:
    """The digits of a holding as bits, and what is odd."""
    found = []
    for d in held.digits:
        extent, stride, weight = d.extent, d.stride, d.weight
        while extent % 2 == 0:
            found.append(RegisterDigit(d.axis, stride, 2, d.dim, weight))
            extent, stride, weight = extent // 2, 2 * stride, 2 * weight
        if extent > 1:
            found.append(RegisterDigit(d.axis, stride, extent, d.dim, weight))
    return found


def closed(parts: Sequence[RegisterDigit]) -> tuple[Layout, tuple[int, ...]]:
    """The layout of some digits, whose slots close up; and the slots that they were."""
    strides: dict[int, int] = {}
    slots, width = [0], 1
    for piece in sorted((p for p in parts if p.axis == "reg"), key=lambda p: p.stride):
        strides[piece.stride] = width
        slots = [at + k * piece.stride for k in range(piece.extent) for at in slots]
        width *= piece.extent
    shard = [
        iter_at(p.extent, p.axis, strides[p.stride] if p.axis == "reg" else p.stride)
        for p in sorted((p for p in parts if p.dim >= 0), key=lambda p: (p.dim, -p.weight))
    ]
    return Layout(tuple(shard), tuple(iter_at(p.extent, p.axis, p.stride) for p in parts if p.dim < 0)), tuple(slots)


@dataclass(frozen=True)
class Part:
    """A box of a register tensor that every thread has in slots of its own.

    Args:
        held: the box as a holding.
        slots: slot of the box -> slot of the tensor.
    """

    held: Holding
    slots: tuple[int, ...]

    @cached_property
    def runs(self) -> tuple[int, int]:
        """Slots of the box that follow each other in the tensor, and from one such run to the next; (1, 0): no rule."""
        slots, count = self.slots, len(self.slots)
        length = next((n for n in range(1, count) if slots[n] != slots[0] + n), count)
        step = slots[length] - slots[0] if length < count else 0
        steady = all(at == slots[0] + k % length + k // length * step for k, at in enumerate(slots))
        return (length, step) if steady else (1, 0)

    def slot(self, k: ExprLike) -> ExprLike:
        """The slot of the tensor for one of the box, by `runs`."""
        length, step = self.runs
        return self.slots[0] + (k % length + k // length * step if step else k)


def part_of(held: Holding, begin: Sequence[ExprLike], extent: Sequence[int], dims: Sequence[int]) -> Part | str:
    """A box of a register tensor as slots of the same threads, or why it is none.

    Args:
        held: the tensor's holding.
        begin, extent: per dimension of the tensor.
        dims: the dimensions that the box shows, in its order.
    """
    kept: list[RegisterDigit] = [p for p in pieces(held) if p.dim < 0]
    shape, first = [1] * len(dims), 0
    for dim, (start, length) in enumerate(zip(begin, extent, strict=True)):
        if not isinstance(start, int):
            return f"it begins at {start}"
        width = 1
        for piece in sorted((p for p in pieces(held) if p.dim == dim), key=lambda p: p.weight):
            if width < length:
                kept.append(replace(piece, dim=dims.index(dim)))
                width *= piece.extent
            elif piece.axis != "reg":
                return f"dimension {dim} from {start} on lies in some threads only"
            else:
                first += start // piece.weight % piece.extent * piece.stride
        if start % width:
            return f"{start} is no multiple of {width}, which lie together"
        if dim in dims:
            shape[dims.index(dim)] = width
    layout, slots = closed(kept)
    return Part(holding(layout, shape, held.warps), tuple(first + s for s in slots))


def iter_at(extent: int, axis: str, stride: int) -> Iter:
    """An iter on one axis."""
    return Iter(extent, Coord.of({axis: stride}))


def _digit(stride: Coord, extent: int, dim: int, weight: int, where: str, inputs: dict[str, object]) -> RegisterDigit:
    terms = stride.terms
    if len(terms) != 1 or terms[0][0] not in AXES or terms[0][1] < 1:
        raise LayoutError(
            where, f"iter {extent}:{stride} is no place of a thread or slot", inputs=inputs,
            legal="one axis an iter (warp, lane, reg), positive strides",
        )  # fmt: skip
    return RegisterDigit(terms[0][0], terms[0][1], extent, dim, weight)


def blocked(
    shape: Sequence[int], warps: int, vector: int, order: Sequence[int] | None = None
) -> tuple[Layout, tuple[int, ...]]:
    """A register layout for loads and stores, and the padded shape that it covers.

    Slots of a vector run along the fastest dimension, then lanes, then warps, then the slots that are left; copies fill
    the threads for which there is nothing.

    Args:
        shape: extents; each is padded to what the threads cover.
        warps: the warps of the scope.
        vector: slots along the fastest dimension, a power of two; halved until they fit its extent.
        order: dimensions, fastest first; by default from the last.

    Example:
        >>> layout, padded = blocked((100,), 4, 4)
        >>> print(layout, padded)
        (32:1@lane, 4:1@reg) + [4:1@warp] (128,)
    """
    extents = list(shape)
    order = tuple(order) if order is not None else tuple(range(len(extents)))[::-1]
    left = {dim: max(1, extents[dim]) for dim in order}
    parts: dict[int, list[tuple[int, str, int]]] = {dim: [] for dim in order}  # fastest first: extent, axis, stride

    def take(dim: int, extent: int, axis: str, stride: int) -> None:
        if extent > 1:
            parts[dim].append((extent, axis, stride))
            left[dim] = -(-left[dim] // extent)

    width = 1
    if order:
        while width * 2 <= vector and width * 2 <= left[order[0]]:
            width *= 2
        take(order[0], width, "reg", 1)
    copies: list[Iter] = []
    for axis, count in (("lane", 32), ("warp", warps)):
        free, stride = count, 1
        for dim in order:
            part = _part(free, left[dim])
            take(dim, part, axis, stride)
            free, stride = free // part, stride * part
        if free > 1:
            copies.append(iter_at(free, axis, stride))
    for dim in order:
        rest = left[dim]
        take(dim, rest, "reg", width)
        width *= rest
    shard = [iter_at(n, axis, stride) for dim in range(len(extents)) for n, axis, stride in reversed(parts[dim])]
    padded = tuple(prod(n for n, _, _ in parts[dim]) for dim in range(len(extents)))
    return Layout(tuple(shard), tuple(copies)), padded


def _part(free: int, need: int) -> int:
    """The largest divisor of the free threads that a dimension can use, rounding its extent up to a power of two."""
    if need <= 1:
        return 1
    if need >= free:
        return free
    return gcd(free, 1 << (need - 1).bit_length())
