"""Constant operands of products in another order: weights whose summed axes lie as those of what they multiply.

The windows of a convolution that is no direct one move through several summed axes. Where the weights have them in the
same order, they merge into one, and panels are packed in whole vectors instead of element by element. The weights of
a plain product lie in panels, each as it would be packed, and are read in place.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.gemm.contract import without_start
from tileweave.backends.cpu.gemm.gett import block_product
from tileweave.backends.cpu.gemm.tile import choose_tile, vector_registers
from tileweave.backends.cpu.llvm.elements import element
from tileweave.backends.cpu.memory import is_immutable
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import address_of, aligned, owner
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.program import Axis, Id, Iteration, Program
from tileweave.teir.merged.form import Merged, MergedOp


@dataclass(frozen=True, slots=True)
class Ordered:
    """An array in row-major order of some axes.

    Args:
        shape: their extents, outermost first.
        strides: bytes along them in the array that is given.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> object:
        """What the order of the elements depends on."""
        return self

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """The elements in this order."""
        found = np.lib.stride_tricks.as_strided(array, self.shape, self.strides, writeable=False)
        made = aligned(self.shape, array.dtype)  # a vector across two lines is loaded in twice the time
        made[...] = found
        return made.reshape(-1)


class Arrangement(Protocol):
    """An order of elements that code reads: `Ordered`, or the panels of a direct convolution."""

    @property
    def order(self) -> object:
        """What the order of the elements depends on."""

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """The elements in this order."""


_PACKED: WeakValueDictionary[Any, NDArray[Any]] = WeakValueDictionary()
_UNPACKED: WeakValueDictionary[Any, NDArray[Any]] = WeakValueDictionary()
"""Arranged arrays that somebody holds, and what owns the memory that they were made from."""


def arranged_once(packing: Arrangement, array: NDArray[Any]) -> NDArray[Any]:
    """A constant array arranged; once for all kernels that read it so, as those of a symbolic model's extents do.

    Only of memory that cannot be made writable again: another plan of an array that was changed has its new values.
    """
    whole = owner(array)
    if not is_immutable(whole):
        return packing.arranged(array)
    key = packing.order, address_of(array), array.shape, array.strides, array.dtype
    found = _PACKED.get(key)
    if found is None or _UNPACKED.get(key) is not whole:
        found = _PACKED[key] = packing.arranged(array)
        _UNPACKED[key] = whole
    return found


def reordered(
    form: Merged, constant: Collection[str], target: Target, threads: int
) -> tuple[Program, dict[str, Ordered]] | None:
    """The program on a constant operand in another order, and that order; None where nothing is gained."""
    found = [op for op in form.operations() if op.kind == "Contraction"]
    if len(found) != 1:
        return None
    program, (op,) = form.program, found
    users = [j for other in form.operations() for j in other.operands]
    for mine in (0, 1):
        j, other = op.operands[mine], op.operands[1 - mine]
        spec = program.tensors[j]
        if spec.name not in constant or users.count(j) != 1:
            continue
        axes = [axis for axis in program.axes if axis.extent > 1 and axis.strides[j]]
        if any(axis.offsets[j] for axis in program.axes) or not _dense(axes, j, width_bytes(spec.dtype)):
            continue
        # what is written moves first, then the summed axes as the other operand lies
        axes.sort(key=lambda axis: (not axis.strides[op.operands[2]], -abs(axis.strides[other]), -axis.strides[j]))
        made = _stored(program, j, axes)
        joined = _joined(made, [axis.id for axis in axes])
        if len(joined.axes) == len(made.axes):
            cut, axes = _panels(program, op, mine, axes, target, threads)
            joined = _stored(cut, j, axes)
        if axes:
            return joined, {spec.name: Ordered(tuple(a.extent for a in axes), tuple(a.strides[j] for a in axes))}
    return None


_FEW_ROWS = 512
"""With more rows than this, packing a panel in every call takes less than a hundredth of the time."""


def _panels(
    program: Program, op: MergedOp, mine: int, axes: list[Axis], target: Target, threads: int
) -> tuple[Program, list[Axis]]:
    """The program with a product's columns cut into panels, and the order in which these are packed; or no axes."""
    elements = tuple(element(program.tensors[k].dtype) for k in op.operands[:3])
    if len(axes) != 2 or op.operands[2] in op.operands[:2]:
        return program, []
    c = block_product(without_start(op), elements, target, threads)
    packed = not (c.outer or c.batch or c.untiled or c.transposed_panels) and c.columns.element == c.columns.sums
    (n, k), lanes, out = axes, c.columns.lanes, op.operands[2]
    if not packed or mine == int(c.swapped) or c.rows.total > _FEW_ROWS or n.strides[out] != c.columns.output_bytes:
        return program, []
    fitting = tuple(v for v in (2, 3, 4) if n.extent % (v * lanes) == 0 and v * lanes < n.extent)
    looped = {node.axis for node in program.nodes if isinstance(node, Iteration)}
    if not fitting or n.id in looped or any(n.offsets) or lanes * c.columns.sums.width_bytes != target.vector_bytes:
        return program, []
    width = lanes * choose_tile(vector_registers(target, c.contracted), c.rows.total, n.extent, lanes, fitting, 1)[1]
    outer = replace(n, extent=n.extent // width, strides=tuple(width * s for s in n.strides))
    inner = replace(n, id=f"{n.id}.panel", extent=width)
    primitives = tuple(
        replace(one, axes=tuple((role, _after(ids, n.id, inner.id)) for role, ids in one.axes))
        for one in program.primitives
    )
    cut = tuple(one for axis in program.axes for one in ((outer, inner) if axis.id == n.id else (axis,)))
    return replace(program, axes=cut, primitives=primitives), [outer, k, inner]


def _after(ids: tuple[Id, ...], axis: Id, new: Id) -> tuple[Id, ...]:
    return tuple(one for id in ids for one in ((id, new) if id == axis else (id,)))


def _stored(program: Program, j: int, axes: Sequence[Axis]) -> Program:
    """The program on an operand that lies in row-major order of its axes."""
    spec = program.tensors[j]
    new = {axis.id: width_bytes(spec.dtype) * prod(a.extent for a in axes[k + 1 :]) for k, axis in enumerate(axes)}
    tensors = [replace(one, shape=None) if one is spec else one for one in program.tensors]
    return replace(program, tensors=tuple(tensors), axes=tuple(_moved(axis, j, new) for axis in program.axes))


def _dense(axes: list[Axis], j: int, width: int) -> bool:
    """Whether axes walk through one stretch of memory, each element once."""
    for axis in sorted(axes, key=lambda axis: axis.strides[j]):
        if axis.strides[j] != width:
            return False
        width *= axis.extent
    return True


def _moved(axis: Axis, j: int, new: dict[Any, int]) -> Axis:
    strides = tuple(new.get(axis.id, 0) if k == j else stride for k, stride in enumerate(axis.strides))
    return replace(axis, strides=strides)


def _joined(program: Program, order: Sequence[Id]) -> Program:
    """The program with neighbours of these axes as one where every tensor moves alike, and nothing iterates them."""
    looped = {node.axis for node in program.nodes if isinstance(node, Iteration)}
    axes = {axis.id: axis for axis in program.axes}
    gone: set[Id] = set()
    for first, second in reversed(list(pairwise(order))):
        outer, inner = axes[first], axes[second]
        alike = all(a == inner.extent * b for a, b in zip(outer.strides, inner.strides, strict=True))
        uses = [frozenset(_roles(program, id)) for id in (first, second)]
        if alike and uses[0] == uses[1] and looped.isdisjoint((first, second)) and not any(outer.offsets):
            axes[first] = replace(inner, id=first, extent=outer.extent * inner.extent)
            gone.add(second)
    primitives = tuple(
        replace(one, axes=tuple((role, tuple(id for id in ids if id not in gone)) for role, ids in one.axes))
        for one in program.primitives
    )
    return replace(program, axes=tuple(axes[a.id] for a in program.axes if a.id not in gone), primitives=primitives)


def _roles(program: Program, axis: Id) -> Iterator[tuple[Id, str]]:
    """Where primitives consume an axis."""
    return ((one.id, role) for one in program.primitives for role, ids in one.axes if axis in ids)
