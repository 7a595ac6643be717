"""Which bytes a program touches: of its own memory, of an array's owner, and of two tensors at once.

Source: own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import BackendError
from tileweave.layout import DEFAULT_AXIS
from tileweave.teir.analysis.calls import calls
from tileweave.teir.ir.program import Program

Array = NDArray[Any]
Span = tuple[int, int]
Bounds = Mapping[str, Span]
_LINE = 64


def rounded(size: int, unit: int = _LINE) -> int:
    """Up to whole units; to whole cache lines."""
    return -(-size // unit) * unit


def is_immutable(owner: Array) -> bool:
    """Whether an owner's memory is read-only and stays so: bytes, or a file that is mapped to be read."""
    held: Any = owner.base
    try:
        while isinstance(held, memoryview) and held.readonly:  # of what may be written otherwise, as by an array
            held = held.obj
        return not isinstance(held, np.ndarray) and memoryview(held).readonly
    except (TypeError, ValueError):  # the array's own memory, or an object's that does not say; a released view
        return False


def scratch_offsets(program: Program, extents: Bounds, end: int) -> tuple[dict[str, int], int]:
    """Where each scratch tensor lies in the call's memory, from a first free byte on, and the next free byte."""
    offsets = {}
    for spec in program.tensors:
        if spec.role == "scratch":
            low, high = extents.get(spec.name, (0, 0))
            if low < 0 or high > spec.size_bytes:
                raise BackendError(
                    "compile(program)",
                    f"scratch tensor {spec.name!r} holds {spec.size_bytes} bytes, "
                    f"and the program touches bytes {low} to {high}",
                    legal="accesses between 0 and size_bytes",
                    facts={"source": "", "log": ""},
                )
            offsets[spec.name] = end
            end = rounded(end + spec.size_bytes)
    return offsets, end


_OVERLAP_WORK: Any = 100_000
"""Steps that NumPy may take to decide whether two tensors meet in a byte."""


def share_bytes(program: Program, one: tuple[str, int], two: tuple[str, int]) -> bool:
    """Whether accesses to two tensors meet in a byte; True also where that is too hard to say."""
    try:
        firsts, seconds = _views(program, *one), _views(program, *two)
        return any(np.shares_memory(a, b, max_work=_OVERLAP_WORK) for a in firsts for b in seconds)
    except (np.exceptions.TooHardError, OverflowError, ValueError):  # the last: more axes or points than NumPy counts
        return True


class _Memory:
    """A stretch of memory as NumPy's array interface names it; never read or written here."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{width}",
            "version": 3,
        }


def near(pairs: Sequence[tuple[int, int, Span, Span]], addresses: NDArray[np.int64]) -> list[int]:
    """The rows of addresses of which some pair of tensors may share bytes.

    Args:
        pairs: (a tensor, another, the first byte of each that is touched and the one behind the last, from its base).
        addresses: a column per tensor.
    """
    found = np.zeros(len(addresses), bool)
    for j, k, (low, high), (low2, high2) in pairs:
        shift = addresses[:, j] - addresses[:, k]
        found |= (shift + low < high2) & (low2 < shift + high)
    return list(np.flatnonzero(found).tolist())


def _views(program: Program, name: str, base: int) -> list[Array]:
    """One array per invocation that touches a tensor, over all of its indices."""
    views = []
    for call in calls(program):
        for k in {call.names.index(name)} if name in call.names else ():
            place, width = call.layout(k), call.width(k)
            moving = [(it.extent, it.stride[DEFAULT_AXIS]) for it in place.shard if it.extent > 1 and it.stride]
            shape, strides = tuple(n for n, _ in moving), tuple(stride for _, stride in moving)
            views.append(np.asarray(_Memory(base + place.offset[DEFAULT_AXIS], shape, strides, width)))
    return views
