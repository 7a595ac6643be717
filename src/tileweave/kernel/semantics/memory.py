"""Storage of tensors: elements in a flat buffer, reached only through the layout; who wrote and who read what."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import LayoutError
from tileweave.kernel.ir import KernelTensor
from tileweave.kernel.semantics.clocks import Event
from tileweave.layout import as_array, is_injective

Array = np.ndarray[Any, Any]
Box = tuple[tuple[int, int], ...]
"""Per dimension the first coordinate and the first behind."""

UNWRITTEN = -1


class ReadMark(NamedTuple):
    """A read that a later write must be ordered behind."""

    box: Box
    event: Event


def overlap(a: Box, b: Box) -> Box | None:
    """The common part of two boxes."""
    found = tuple((max(x, u), min(y, v)) for (x, y), (u, v) in zip(a, b, strict=True))
    return found if all(x < y for x, y in found) else None


class Storage:
    """A tensor's elements.

    Args:
        tensor: whose.
        devices: how many devices a mesh axis in its layout counts.
        written: whether the elements have values from the start.
    """

    def __init__(self, tensor: KernelTensor, devices: int = 1, *, written: bool = False) -> None:
        self.tensor = tensor
        self.devices: Array | None = None
        self.reads: list[ReadMark] = []
        self.products: dict[int, int] = {}  # event -> the product that it is
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}  # begin, extent -> what exists
        self.writers: Array = np.full(tensor.shape, 0 if written else UNWRITTEN, np.int32)
        self._places: Array | None = None
        self._view: Array | None = None
        self._allocate(devices)

    def _allocate(self, devices: int) -> None:
        tensor, layout = self.tensor, self.tensor.layout
        dtype = tensor.element.numpy
        if layout is None or tensor.space in ("register", "tensor", "sbuf", "psum"):
            self._view = self.buffer = np.zeros(tensor.shape, dtype)
            return
        on_m = layout.bounds("m")
        size = int(on_m[1]) + 1 if tensor.swizzle is None else 1 << int(on_m[1]).bit_length()
        mesh = [axis for axis in layout.axes if axis != "m"]
        self.buffer = np.zeros(size * (devices if mesh else 1), dtype)
        if mesh:
            table = layout.table()
            table = table if isinstance(table, dict) else {layout.axes[0]: table}
            zeros = np.zeros(layout.size, np.int64)
            self.devices = np.asarray(table.get(mesh[0], zeros)).reshape(tensor.shape)
            places = np.asarray(table.get("m", zeros)).reshape(tensor.shape)
            self._places = self.devices * size + places
        elif tensor.swizzle is None:
            try:
                self._view = as_array(self.buffer, layout, tensor.shape)
            except LayoutError:
                self._places = np.asarray(layout.table()).reshape(tensor.shape)
        else:
            self._places = tensor.swizzle(np.asarray(layout.table()).reshape(tensor.shape))

    @property
    def aliased(self) -> bool:
        """Whether two elements share a place, so that writing one changes the other."""
        layout = self.tensor.layout
        return layout is not None and self.tensor.space not in ("register", "tensor") and not is_injective(layout)

    def read(self, box: Box) -> Array:
        """The elements of a box."""
        at = tuple(slice(a, b) for a, b in box)
        if self._view is not None:
            return self._view[at]
        return self.buffer[self._places[at]]  # type: ignore[index]

    def write(self, box: Box, values: Any) -> None:
        """Give the elements of a box values."""
        at = tuple(slice(a, b) for a, b in box)
        if self._view is not None:
            self._view[at] = values
        else:
            self.buffer[self._places[at]] = values  # type: ignore[index]

    def load(self, values: Any) -> None:
        """Take every element from an array."""
        self.write(tuple((0, n) for n in self.tensor.shape), np.asarray(values))

    def store(self, array: Any) -> None:
        """Give every element to an array."""
        array[...] = self.read(tuple((0, n) for n in self.tensor.shape))
