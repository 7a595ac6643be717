"""Tensors over a mesh of devices: the box of one that lies on a device; the collective that a copy of one is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import Expr
from tileweave.kernel.ir import KernelTensor, Number
from tileweave.layout import Coord, Iter, Layout, group
from tileweave.layout.analysis import Collective, conversion

Part = tuple[tuple[Number, ...], tuple[int, ...]]
"""The first coordinates and the extents of a box."""


def own_part(tensor: KernelTensor, axis: str, device: Expr | int) -> Part:
    """The box of a tensor that lies on a device.

    Args:
        tensor: cut along some of its dimensions, each into equal blocks, over an axis of the mesh.
        axis: of the mesh.
        device: which one.

    Raises:
        LayoutError: what lies on a device is no box.
    """
    where, layout = f"own({tensor})", tensor.layout
    if layout is None or axis not in layout.axes:
        return (0,) * tensor.rank, tensor.shape
    begin: list[Number] = []
    extent: list[int] = []
    lowest = int(layout.offset[axis])
    rows = []
    for size, row in zip(tensor.shape, group(layout, tensor.shape), strict=True):
        steps = [(int(it.extent), int(it.stride[axis])) for it in row if it.extent > 1]
        over = [one for one in steps if one[1]]
        if steps[: len(over)] != over:
            raise LayoutError(where, f"{layout} deals a dimension out by turns", legal="a block of it to each device")
        lowest += sum(min(0, (n - 1) * stride) for n, stride in over)
        rows.append((size, over))
    taken = sorted((abs(stride), n) for _, over in rows for n, stride in over)
    if any(n * step > following for (step, n), (following, _) in pairwise(taken)):
        raise LayoutError(where, f"{layout} gives a device several blocks", legal="one block to each")
    for size, over in rows:
        block = size // prod(n for n, _ in over)
        place: Number = 0
        for n, stride in over:
            digit: Any = (device - lowest) // abs(stride) % n
            place = place * n + (digit if stride > 0 else n - 1 - digit)
        begin.append(place * block)
        extent.append(block)
    return tuple(begin), tuple(extent)


def collective_of(target: KernelTensor, source: KernelTensor, mesh: Mapping[str, int]) -> Collective | None:
    """The collective that moves a whole tensor to where another lies, or adds its slowest dimension; None: unknown.

    A tensor that says nothing of the mesh is held by every device.
    """
    ((axis, devices), *_) = mesh.items()
    have, want = (_held(one, axis, devices) for one in (source, target))
    try:
        found = conversion(have, want, {axis: "device", "m": "memory"}, reduce="sum" if have.size > want.size else None)
        return found.collective
    except LayoutError:
        return None


def _held(tensor: KernelTensor, axis: str, devices: int) -> Layout:
    layout = tensor.layout
    if layout is None or axis in layout.axes:
        return layout if layout is not None else Layout((Iter(tensor.size, Coord.of(1)),))
    return Layout(layout.shard, (*layout.replica, Iter(devices, Coord.of({axis: 1}))), layout.offset)
