"""Tensors from what a user has: arrays, numbers, nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.nodes import ArrayData, Source, Tensor, trusted_type


def _only_dlpack(value: Any) -> bool:
    """Whether DLPack is the one protocol by which a value gives its elements."""
    known = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")
    return hasattr(type(value), "__dlpack__") and not any(hasattr(type(value), name) for name in known)


def read_array(where: str, value: Any, name: str = "it") -> np.ndarray[Any, Any]:
    """What NumPy reads as an array, of its base class, sharing the memory of one that is given."""
    if isinstance(value, np.ma.MaskedArray):
        raise GraphError(where, f"{name} is a masked array, whose mask would be lost", legal="its filled(value)")
    try:
        return np.from_dlpack(value) if _only_dlpack(value) else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        problem = f"NumPy reads no array in {name}: {error}"
        raise GraphError(where, problem, legal="an array, a number, nested lists") from None


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory, no more written through NumPy: what runs read of it alone is computed once, and kept.

    The array and those that it is a view of become read-only, so they have to be the caller's own.
    """
    held: Any = array
    while isinstance(held, np.ndarray):
        held.flags.writeable = False
        held = held.base
    return array


def as_tensor(value: Any, where: str = "as_tensor(value)") -> Tensor:
    """A tensor from a tensor, or from anything that NumPy reads as an array of numbers (as a source in memory)."""
    if isinstance(value, Tensor):
        return value
    array = value if type(value) is np.ndarray else read_array(where, value)
    kind = element_type(where, array.dtype)
    array = array if kind is array.dtype or kind == array.dtype else array.astype(kind)
    return Tensor(Source(ArrayData(array), trusted_type(array.shape, array.dtype)))
