"""NumPy arrays and layouts: shape, strides and offset both ways, and the one function between elements and bytes.

Layouts count elements; NumPy and TEIR count bytes. `byte_strides` is the only place where one becomes the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import LayoutError
from tileweave.layout.core.checks import asked, need_arrays, need_axis, need_layouts, need_numbers
from tileweave.layout.core.combine import group
from tileweave.layout.core.coord import DEFAULT_AXIS, IntArray, Shape, integers
from tileweave.layout.core.layout import Layout, strided

__all__ = ["Strides", "as_array", "byte_strides", "from_array", "to_strides"]


class Strides(NamedTuple):
    """A strided array without its memory: extents, strides and offset, all in one unit (elements or bytes)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def from_array(array: IntArray, base: IntArray | None = None, axis: str = DEFAULT_AXIS) -> Layout:
    """The layout of an array's elements: ``layout.at(u, array.shape)`` is the place of ``array[u]``, in elements.

    Args:
        array: a NumPy array with at least one element, of any strides.
        base: an array of the same dtype whose first element is place 0; by default the array itself.
        axis: the axis on which the elements lie.

    Raises:
        LayoutError: the array is empty, or lies between elements.

    Example:
        >>> a = np.arange(24, dtype=np.int32).reshape(4, 6)
        >>> print(from_array(a[::-1, ::2], a))
        (4:-6@m, 3:2@m) + 18@m
    """
    where = "from_array(array, base)"
    need_arrays(where, array, *([] if base is None else [base]))
    inputs = {"array": f"shape {array.shape}, strides {array.strides} bytes, dtype {array.dtype}"}
    if not array.size:
        raise LayoutError(where, "an empty array has no layout", inputs=inputs)
    if base is not None and base.dtype != array.dtype:
        raise LayoutError(where, f"the base has dtype {base.dtype}", inputs=inputs, legal=f"{array.dtype}")
    step = array.dtype.itemsize
    start = 0 if base is None else _address(array) - _address(base)
    strides = [s if n > 1 else 0 for n, s in zip(array.shape, array.strides, strict=True)]
    if any(s % step for s in (*strides, start)):
        raise LayoutError(
            where, "the elements are not whole elements apart", inputs=inputs, legal=f"multiples of {step} bytes"
        )
    return strided(array.shape, [s // step for s in strides], start // step, axis)


def _address(array: IntArray) -> int:
    return int(array.__array_interface__["data"][0])


@asked("to_strides(layout, shape)")
def to_strides(layout: Layout, shape: Shape | None = None, axis: str = DEFAULT_AXIS) -> Strides:
    """The array view in elements: one stride per dimension of the shape, by default one dimension per iter of D.

    Raises:
        LayoutError: the layout is replicated or leaves the axis.
        NoLayout: the layout does not group by the shape, or a dimension needs more than one stride.

    Example:
        >>> to_strides(Layout(((4, 8), (8, 1))), (2, 2, 8))
        Strides(shape=(2, 2, 8), strides=(16, 8, 1), offset=0)
    """
    where = "to_strides(layout, shape)"
    need_layouts(where, layout)
    need_axis(where, axis)
    if (
        layout.replica
        or any(a != axis for it in layout.shard for a in it.stride.axes)
        or layout.offset.axes
        not in (
            (),
            (axis,),
        )
    ):
        raise LayoutError(where, f"the layout is not one array on the axis {axis}", inputs={"layout": layout})
    if shape is None:
        return Strides(layout.extents, tuple(it.stride[axis] for it in layout.shard), layout.offset[axis])
    strides = []
    for k, block in enumerate(group(layout, shape)):
        if len(block) > 1:
            raise LayoutError(
                where,
                f"dimension {k} needs {len(block)} strides",
                inputs={"layout": layout, "shape": shape},
                legal="a dimension per iter, in order: " + ", ".join(map(str, block)),
            )
        strides.append(block[0].stride[axis] if block else 0)
    return Strides(integers(shape, where, "extent"), tuple(strides), layout.offset[axis])


def byte_strides(view: Strides | Layout, itemsize: int) -> Strides:
    """The same array counted in bytes: strides and offset times `itemsize`, the extents unchanged.

    Args:
        view: strides in elements, or a layout (see `to_strides`).
        itemsize: bytes per element, positive.

    Example:
        >>> byte_strides(Strides((2, 3), (3, 1), 4), 8)
        Strides(shape=(2, 3), strides=(24, 8), offset=32)
    """
    if not isinstance(itemsize, int) or itemsize < 1:
        raise LayoutError("byte_strides(view, itemsize)", f"itemsize {itemsize!r} is not a positive integer")
    elements = view if isinstance(view, Strides) else to_strides(view)
    return Strides(elements.shape, tuple(s * itemsize for s in elements.strides), elements.offset * itemsize)


@asked("as_array(buffer, layout, shape)")
def as_array(
    buffer: np.ndarray[Any, Any], layout: Layout, shape: Shape | None = None, axis: str = DEFAULT_AXIS
) -> np.ndarray[Any, Any]:
    """The view of a flat buffer that a layout describes: ``view[u] = buffer[layout.at(u, shape)]``; no copy.

    Args:
        buffer: a one-dimensional contiguous array.
        layout: places in elements of the buffer.
        shape: the shape of the view; by default one dimension per iter of D.
        axis: the axis that counts the buffer's elements.

    Raises:
        LayoutError: the layout leaves the buffer, or is not one strided array.

    Example:
        >>> as_array(np.arange(6), Layout(((3, 1), (2, 3))))
        array([[0, 3],
               [1, 4],
               [2, 5]])
    """
    where = "as_array(buffer, layout, shape)"
    need_arrays(where, buffer)
    need_layouts(where, layout)
    need_numbers(where, layout)
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise LayoutError(where, f"the buffer has shape {buffer.shape}", legal="one contiguous dimension")
    low, high = layout.bounds(axis)
    if low < 0 or high >= buffer.size:
        raise LayoutError(
            where,
            f"the layout takes {low}..{high}, outside the buffer",
            inputs={"layout": layout},
            legal=f"0..{buffer.size - 1}",
        )
    view = byte_strides(to_strides(layout, shape, axis), buffer.dtype.itemsize)
    start = view.offset // buffer.dtype.itemsize
    if buffer.dtype.isbuiltin == 2:  # NumPy's array interface cannot name types of extensions
        plain = buffer.view(f"V{buffer.dtype.itemsize}")[start:]
        return np.lib.stride_tricks.as_strided(plain, view.shape, view.strides).view(buffer.dtype)
    return np.lib.stride_tricks.as_strided(buffer[start:], view.shape, view.strides)
