"""Arguments of a kernel: what tracing needs to know of an array, and how one is sharded over a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import LayoutError, VerifyError
from tileweave.kernel.ir import KernelTensor, dtype_of
from tileweave.layout import Coord, Iter, Layout, from_array, parse, strided


@dataclass(frozen=True, slots=True)
class Spec:
    """An array that is not there yet: its shape, its type, its layout (row-major unless given)."""

    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Sharded:
    """One logical array over the devices of a mesh; `layout` says on which device each element lies, and where.

    If it is `reached`, it lies in symmetric memory, which every device can read and write.
    """

    array: Any
    layout: Layout
    reached: bool = False


def spec(shape: Sequence[int], dtype: Any, layout: Layout | str | None = None) -> Spec:
    """An array's shape and type, for a kernel that is traced without data.

    Example:
        >>> spec((4, 8), "f16").dtype
        'f16'
    """
    found = parse(layout) if isinstance(layout, str) else layout
    return Spec(tuple(shape), dtype_of(dtype, "spec(shape, dtype)").name, found)


def sharded(array: Any, axis: str, dim: int, devices: int) -> Sharded:
    """An array cut into equal blocks along one dimension, one per device of a mesh's axis.

    Raises:
        VerifyError: the dimension does not divide.

    Example:
        >>> print(sharded(np.zeros((8, 6)), "gpu", 0, 4).layout)
        (4:1@gpu, 2:6@m, 6:1@m)
    """
    shape = tuple(array.shape)
    if not 0 <= dim < len(shape) or shape[dim] % devices:
        raise VerifyError(
            f"sharded(array, {axis!r}, {dim}, {devices})", f"shape {shape} is not cut evenly there",
            legal=f"a dimension that {devices} divides", facts={"rule": "argument", "path": ""},
        )  # fmt: skip
    local = (*shape[:dim], shape[dim] // devices, *shape[dim + 1 :])
    strides = [prod(local[d + 1 :]) for d in range(len(local))]
    iters = [Iter(n, Coord((("m", s),))) for n, s in zip(local, strides, strict=True)]
    iters.insert(dim, Iter(devices, Coord(((axis, 1),))))
    return Sharded(array, Layout(tuple(iters)))


def placed(array: Any, layout: Layout | str) -> Sharded:
    """An array over the devices of a mesh in symmetric memory, which every device reaches.

    Args:
        array: the whole.
        layout: of its row-major index over an axis of the mesh and ``m``, each element in one place.

    Raises:
        VerifyError: another number of elements, or copies of them.

    Example:
        >>> placed(np.zeros((8, 6)), "(4:1@gpu, 2:6, 6:1)").reached
        True
    """
    made = parse(layout) if isinstance(layout, str) else layout
    if made.size != prod(array.shape) or made.replica:
        problem = "copies of elements" if made.replica else f"{made.size} elements for shape {array.shape}"
        raise VerifyError(
            f"placed(array, {made})", problem, legal="each element once; a list of arrays has a copy on each device",
            facts={"rule": "argument", "path": ""},
        )  # fmt: skip
    return Sharded(array, made, True)


def param_of(name: str, value: Any, where: str, devices: int) -> KernelTensor:
    """The parameter that an argument makes.

    Raises:
        VerifyError: no array, an empty one, or one of a type that kernels do not have.
    """
    if isinstance(value, Spec):
        return _tensor(name, value.shape, value.dtype, value.layout)
    if isinstance(value, Sharded):
        made = _tensor(name, tuple(value.array.shape), _dtype(name, value.array, where), value.layout)
        return replace(made, space="symmetric") if value.reached else made
    if isinstance(value, list | tuple):
        params = {param_of(name, one, where, devices) for one in value}
        if len(value) != devices or len(params) != 1:
            raise _refused(where, name, f"{len(value)} arrays for {devices} devices, or of different shapes")
        return params.pop()
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise _refused(where, name, f"{type(value).__name__} is no array")
    dtype = _dtype(name, value, where)
    layout = None
    if isinstance(value, np.ndarray) and value.size and value.ndim and not value.flags.c_contiguous:
        try:
            layout = from_array(value)
            low = layout.bounds("m")[0]
            if low < 0:  # reversed: places count from the lowest
                layout = Layout(layout.shard, layout.replica, layout.offset + Coord((("m", -low),)))
        except LayoutError as error:
            raise _refused(where, name, str(error).splitlines()[0]) from None
    return _tensor(name, tuple(value.shape), dtype, layout, where)


def _dtype(name: str, array: Any, where: str) -> str:
    try:
        return dtype_of(str(array.dtype).removeprefix("torch."), where).name
    except TypeError:
        raise _refused(where, name, f"elements of type {array.dtype}") from None


def _tensor(
    name: str, shape: tuple[int, ...], dtype: str, layout: Layout | None, where: str = "kernel(..)"
) -> KernelTensor:
    if prod(shape) == 0:
        raise _refused(where, name, f"an empty array, of shape {shape}")
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    return KernelTensor(name, shape, dtype, "global", layout if layout is not None else strided(shape, strides))


def _refused(where: str, name: str, problem: str) -> VerifyError:
    return VerifyError(
        where, f"argument {name}: {problem}", legal="arrays of at least one element, or spec(shape, dtype)",
        facts={"rule": "argument", "path": name},
    )  # fmt: skip
