"""Layouts of Gluon that are the map of ours, found by comparison bit by bit.

A register layout over powers of two is linear: each bit of a register's, lane's or warp's number adds a fixed vector to
the coordinates. Gluon's named layouts are such maps too; a name stands for ours where all these vectors are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product
from math import prod

from tileweave.index import as_expr, constant_of
from tileweave.kernel.dispatch.layouts.places import offset
from tileweave.kernel.dispatch.layouts.registers import AXES, Holding, RegisterDigit, closed
from tileweave.kernel.ir import KernelTensor
from tileweave.layout import Layout

Basis = tuple[int, ...]
Bases = dict[str, list[Basis]]
"""Axis -> what each bit of a number on it adds to the coordinates."""
Map = Callable[[Sequence[int]], Bases]
"""The bits that a layout of Gluon has on a shape."""


def rounded(extent: int) -> int:
    """The next power of two."""
    return 1 << max(0, extent - 1).bit_length()


def bases_of(held: Holding) -> Bases | str:
    """The bits of a holding, or why they are none.

    An odd count of slots is rounded up where it is the outermost: the map stays ours on our slots, and what the others
    hold does not exist.
    """
    top: dict[int, int] = {}
    for digit in held.digits:
        top[digit.dim] = max(top.get(digit.dim, 0), digit.weight)
    last = max((d.stride for d in held.digits if d.axis == "reg"), default=0)
    found: Bases = {axis: [] for axis in reversed(AXES)}
    zero = (0,) * len(held.shape)
    for digit in sorted(held.digits, key=lambda d: d.stride):
        extent = digit.extent
        if extent & (extent - 1):
            if digit.axis != "reg" or digit.weight != top[digit.dim] or digit.stride != last:
                return f"{extent} parts along {digit.axis} are no power of two"
        for bit in range(rounded(extent).bit_length() - 1):
            found[digit.axis].append(zero if digit.dim < 0 else _unit(len(held.shape), digit.dim, digit.weight << bit))
    return once(found)


def _unit(rank: int, dim: int, value: int) -> Basis:
    return tuple(value if d == dim else 0 for d in range(rank))


def _fitted(shape: Sequence[int], order: Sequence[int], parts: Sequence[tuple[str, Basis]]) -> Bases:
    """The bits of parts in their order, cut to a shape: beyond it are copies, and registers fill what is left."""
    rank = len(shape)
    found: Bases = {axis: [] for axis in reversed(AXES)}
    at = [1] * rank
    for axis, counts in parts:
        for dim in order:
            for _ in range(counts[dim].bit_length() - 1):
                found[axis].append(_unit(rank, dim, at[dim] if at[dim] < shape[dim] else 0))
                at[dim] *= 2
    for dim in order:
        while at[dim] < shape[dim]:
            found["reg"].append(_unit(rank, dim, at[dim]))
            at[dim] *= 2
    return found


def once(bases: Bases) -> Bases:
    """The bits without registers that copy another one of the same thread: ours holds an element once."""
    return {axis: [b for b in bits if any(b) or axis != "reg"] for axis, bits in bases.items()}


def blocked_bases(shape: Sequence[int], registers: Basis, lanes: Basis, warps: Basis, order: Basis) -> Bases:
    """The bits of ``BlockedLayout(registers, lanes, warps, order)``: all three along the order, then the rest."""
    return once(_fitted(shape, order, (("reg", registers), ("lane", lanes), ("warp", warps))))


def mma_bases(shape: Sequence[int], warps: Basis) -> Bases:
    """The bits of ``NVMMADistributedLayout([2, 0], warps, [16, 8])``: fragments of 16 x 8, warps, then the rest."""
    parts = (("reg", (1, 2)), ("lane", (1, 4)), ("lane", (8, 1)), ("reg", (2, 1)), ("warp", warps))
    return _fitted(shape, (1, 0), parts)


def candidates(bases: Bases, shape: Sequence[int]) -> Iterator[tuple[str, Map]]:
    """Layouts of Gluon that are this map on this shape: those with a name, then the bits themselves."""
    if len(shape) == 2 and shape[0] >= 16 and shape[1] >= 8:
        grid = [1, 1]
        for basis in bases["warp"]:
            grid[1 if basis[1] else 0] *= 2
        if once(mma_bases(shape, (grid[0], grid[1]))) == bases:
            yield f"gl.NVMMADistributedLayout([2, 0], {grid}, [16, 8])", partial(mma_bases, warps=(grid[0], grid[1]))
    yield from _blocked(bases, shape)
    bits = ", ".join(str([list(b) for b in bases[axis]]) for axis in reversed(AXES))
    whole = tuple(shape)
    yield f"gl.DistributedLinearLayout({bits}, [], {[*shape]})", lambda s: bases if tuple(s) == whole else {}


def _blocked(bases: Bases, shape: Sequence[int]) -> Iterator[tuple[str, Map]]:
    """The `BlockedLayout`s that are this map."""
    rank = len(shape)
    registers = bases["reg"]

    def counts(axis: str, spare: int) -> Basis:
        found = [1] * rank
        for basis in bases[axis]:
            found[next((d for d in range(rank) if basis[d]), spare)] *= 2
        return tuple(found)

    for order in permutations(range(rank)[::-1]):
        for first in range(len(registers), -1, -1):
            size = tuple(1 << sum(1 for basis in registers[:first] if basis[d]) for d in range(rank))
            for one, other in product(range(rank), repeat=2):
                lanes, warps = counts("lane", one), counts("warp", other)
                map = partial(blocked_bases, registers=size, lanes=lanes, warps=warps, order=order)
                if map(shape) == bases:
                    yield f"gl.BlockedLayout({[*size]}, {[*lanes]}, {[*warps]}, {[*order]})", map


def fragments(warps: Basis, shape: Sequence[int]) -> Layout:
    """The layout over warps, lanes and slots whose bits are `mma_bases`: warps take turns along each dimension."""
    digits = []
    for axis, bits in once(mma_bases(shape, warps)).items():
        for place, basis in enumerate(bits):
            dim = next((d for d, value in enumerate(basis) if value), -1)
            digits.append(RegisterDigit(axis, 1 << place, 2, dim, basis[dim] if dim >= 0 else 0))
    return closed(digits)[0]


def shared_text(tensor: KernelTensor) -> str:
    """The shared layout that puts each element where the tensor's layout does, or nothing."""
    shape, bits = tensor.shape, tensor.element.bits
    if any(n & (n - 1) for n in shape):
        return ""
    wanted = {at: _place(tensor, at) for at in product(*map(range, shape))}
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]

    def rows(at: Sequence[int]) -> int:
        return sum(i * s for i, s in zip(at, strides, strict=True))

    order = list(range(len(shape)))[::-1]
    swizzle, columns = tensor.swizzle, shape[-1]
    vector, phase, phases = 1, 1, 1
    if swizzle is not None and len(shape) == 2:
        vector, phases = 1 << swizzle.base, 1 << swizzle.bits
        phase = max(1, (1 << swizzle.base + swizzle.shift) // columns)
    turned = {
        at: rows((*at[:-1], at[-1] ^ (at[-2] // phase % phases * vector))) if phases > 1 else rows(at) for at in wanted
    }
    if wanted == turned:
        width = columns * bits // 8
        if (
            len(shape) == 2
            and (vector * bits, phase, phases) == (128, 128 // max(width, 1), width // 16)
            and width >= 32
        ):
            return f"gl.NVMMASharedLayout({width}, {bits}, 2)"
        return f"gl.SwizzledSharedLayout({vector}, {phase}, {phases}, {order})"
    gap = _place(tensor, _unit(len(shape), len(shape) - 2, 1)) - columns if len(shape) > 1 else 0
    if gap > 0 and gap & (gap - 1) == 0 and all(wanted[at] == rows(at) + rows(at) // columns * gap for at in wanted):
        return f"gl.PaddedSharedLayout.with_identity_for([[{columns}, {gap}]], {[*shape]}, {order})"
    return ""


def _place(tensor: KernelTensor, at: Sequence[int]) -> int:
    found = constant_of(as_expr(offset(tensor, at)))
    return -1 if found is None else found
