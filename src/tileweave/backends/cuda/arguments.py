"""What a kernel is given: arrays, scalars, tensor maps, arrays of several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tileweave.errors import BackendError
from tileweave.kernel.atoms import atom, refusals

Array = np.ndarray[Any, Any]
Extent = int | Sequence[int]

#: NumPy type -> the driver's number of the element type.
_KINDS = {
    "uint8": 0,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    **dict.fromkeys(("int8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"), 0),  # maps move bytes
    "int16": 1,
}


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Contiguous memory of a CUDA device as an array, for parameters and tensor maps.

    Args:
        address: of the first element.
        shape: extents.
        dtype: NumPy's type of the elements.
        device: the device's number.
        owner: what keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int = 0
    owner: object = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours, by dimension."""
        return tuple(self.itemsize * prod(self.shape[d + 1 :]) for d in range(self.ndim))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = {"shape": self.shape, "typestr": f"|V{self.itemsize}", "version": 3}
        return {**kind, "data": (self.address, False), "strides": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor map of an array, for a parameter ``const __grid_constant__ CUtensorMap``.

    Args:
        array: the tensor, any strides that a map allows; its last dimension is the map's first.
        box: the extents of a box, in the array's order of dimensions.
        swizzle: bytes: 0, 32, 64 or 128.
        nan_fill: whether elements outside read as NaN instead of zero.
        dims: another view of the array's memory, for a box of rank 3 over a matrix: extents, **innermost first**; then
            ``strides`` (bytes, one fewer) and ``box`` are innermost first too.

    Raises:
        BackendError: a rule of tensor maps is broken; names it.

    Example:
        >>> TensorMap(np.zeros((64, 64), np.float16), box=(64, 64), swizzle=64)
        Traceback (most recent call last):
        ...
        tileweave.errors.BackendError: TensorMap(array, box, ..): the map breaks rule 'swizzle-row'
          dim      (64, 64)
          stride   (128,)
          box      (64, 64)
          swizzle  64
          legal    swizzle == 0 or box[0] * bytes <= swizzle
    """

    array: Array | DeviceArray
    box: tuple[int, ...]
    swizzle: int = 0
    nan_fill: bool = False
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = "TensorMap(array, box, ..)"
        if self.array.dtype.name not in _KINDS:
            raise BackendError(where, f"no tensor map holds {self.array.dtype}", legal=" | ".join(_KINDS))
        if not self.dims and (len(self.box) != self.array.ndim or self.array.strides[-1] != self.array.itemsize):
            raise BackendError(
                where, "the array does not fit the box: as many dimensions, the last one contiguous",
                inputs={"shape": self.array.shape, "strides": self.array.strides, "box": self.box},
            )  # fmt: skip
        values = {**self.values(), "base": 0, "bytes": self.array.itemsize, "swizzle": self.swizzle}
        row = atom("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes")
        broken = refusals(row, **values)
        if self.swizzle not in (0, 32, 64, 128):
            broken = ("swizzle",)
        if broken:
            rule = next((r.condition for r in row.legal if r.name == broken[0]), "0, 32, 64 or 128")
            shown = {name: values[name] for name in ("dim", "stride", "box", "swizzle")}
            raise BackendError(where, f"the map breaks rule {broken[0]!r}", inputs=shown, legal=rule)

    def values(self) -> dict[str, Any]:
        """Rank, extents, strides, box: innermost first."""
        dim = self.dims or tuple(reversed(self.array.shape))
        stride = self.strides if self.dims else tuple(reversed(self.array.strides[:-1]))
        box = self.box if self.dims else tuple(reversed(self.box))
        return {"rank": len(dim), "dim": dim, "stride": stride, "box": box, "element_stride": (1,) * len(dim)}

    @property
    def kind(self) -> int:
        """The driver's number of the element type."""
        return _KINDS[self.array.dtype.name]


@dataclass(frozen=True, eq=False)
class Peers:
    """One array per device; every device is given a pointer to the pointers of all: a parameter ``T* const*``."""

    arrays: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Multicast:
    """One array per device at one address, which ``multimem`` instructions alone may use: a parameter ``T*``.

    On devices it is the address of a multicast object to which the memory of each is bound at the same offset.
    """

    arrays: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class PerDevice:
    """One value per device: device d is given the d-th."""

    values: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel.

    Args:
        grid, block: blocks, and threads of a block, x first.
        arguments: a value for each parameter, by name.
        kernel: the name where the text has several kernels.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster, x first.
        cooperative: whether all blocks are resident, so that the grid may synchronise.
    """

    grid: Extent
    block: Extent
    arguments: Mapping[str, Any]
    kernel: str | None = None
    shared: int = 0
    cluster: Extent = 1
    cooperative: bool = False


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
