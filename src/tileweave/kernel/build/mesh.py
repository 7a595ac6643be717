"""Tensors over a mesh of devices: the box of one that lies on a device; the collective that a copy of one is.

The devices of a mesh of several axes are numbered with the last axis fastest, and a layout over these axes is one over
their number: whatever a layout says of the axes, it says of the devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from tileweave.errors import LayoutError
from tileweave.index import Expr
from tileweave.kernel.ir import KernelTensor, Number
from tileweave.layout import Coord, Iter, Layout, group
from tileweave.layout.analysis import Collective, conversion

Part = tuple[tuple[Number, ...], tuple[int, ...]]
"""The first coordinates and the extents of a box."""


DEVICES = "gpu"
"""The axis of layouts that counts the devices of a mesh, whatever its own axes are called."""


class Mesh(NamedTuple):
    """The axes of a mesh as the user names them, and the one axis that all else sees.

    Args:
        axes: (name, extent), the last fastest.
        number: how the device's number is called, and how many devices there are; empty where there is no mesh.
    """

    axes: tuple[tuple[str, int], ...]
    number: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, axes: Mapping[str, int]) -> Mesh:
        """The mesh of these axes; a place on a single axis is a device's number."""
        named = tuple(axes.items())
        if len(named) < 2:
            return cls(named, named)
        free = next(name for name in ("device", "devices", "mesh_device") if name not in axes)
        return cls(named, ((free, prod(axes.values())),))

    def coordinates(self, device: Any) -> dict[str, Any]:
        """The place of a device on each axis."""
        sizes = [extent for _, extent in self.axes]
        return {
            name: device // prod(sizes[k + 1 :]) % extent if k else device // prod(sizes[1:])
            for k, (name, extent) in enumerate(self.axes)
        }

    def joined(self, layout: Layout) -> Layout:
        """A layout over the axes as one over the devices' number, the axis `DEVICES`."""
        if not self.axes or self.axes[0][0] == DEVICES == self.axes[-1][0]:
            return layout
        sizes = [extent for _, extent in self.axes]
        steps = {name: prod(sizes[k + 1 :]) for k, (name, _) in enumerate(self.axes)}

        def coord(one: Coord) -> Coord:
            found = Counter[str]()
            for axis in one.axes:
                found[DEVICES if axis in steps else axis] += one[axis] * steps.get(axis, 1)
            return Coord.of(dict(found))

        def iters(row: Sequence[Iter]) -> tuple[Iter, ...]:
            return tuple(Iter(it.extent, coord(it.stride)) for it in row)

        return Layout(iters(layout.shard), iters(layout.replica), coord(layout.offset))

    def shown(self, found: Collective) -> str:
        """A collective in words, with the axes along which its groups lie where the mesh has several."""
        text = str(found)
        if len(self.axes) < 2 or found.kind in ("none", "slice"):
            return text
        groups = [[self.coordinates(device) for (device,) in group] for group in found.groups]
        along = [name for name, _ in self.axes if any(len({one[name] for one in g}) > 1 for g in groups)]
        return text.replace(" among ", f" over {', '.join(along)} among ", 1)


def own_part(tensor: KernelTensor, device: Expr | int) -> Part:
    """The box of a tensor that lies on a device.

    Args:
        tensor: cut along some of its dimensions, each into equal blocks, over the devices.
        device: which one.

    Raises:
        LayoutError: what lies on a device is no box.
    """
    where, layout = f"own({tensor})", tensor.layout
    if layout is None or DEVICES not in layout.axes:
        return (0,) * tensor.rank, tensor.shape
    begin: list[Number] = []
    extent: list[int] = []
    lowest = int(layout.offset[DEVICES])
    rows = []
    for size, row in zip(tensor.shape, group(layout, tensor.shape), strict=True):
        steps = [(int(it.extent), int(it.stride[DEVICES])) for it in row if it.extent > 1]
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


def collective_of(target: KernelTensor, source: KernelTensor, devices: int, *, sums: bool) -> Collective | None:
    """The collective that moves a whole tensor to where another lies, or adds its slowest dimension; None: unknown.

    A tensor that says nothing of the mesh is held by every device. A slowest dimension of the target that the source
    lacks is copies.
    """
    have, want = (_held(one, devices) for one in (source, target))
    if target.rank > source.rank - sums:
        copies, *rest = group(want, target.shape)
        want = Layout(tuple(it for row in rest for it in row), (*want.replica, *copies), want.offset)
    try:
        found = conversion(have, want, {DEVICES: "device", "m": "memory"}, reduce="sum" if sums else None)
        return found.collective
    except LayoutError:
        return None


def _held(tensor: KernelTensor, devices: int) -> Layout:
    layout = tensor.layout
    if layout is None or DEVICES in layout.axes:
        return layout if layout is not None else Layout((Iter(tensor.size, Coord.of(1)),))
    return Layout(layout.shard, (*layout.replica, Iter(devices, Coord.of({DEVICES: 1}))), layout.offset)
