"""How the axes of a new result lie, as NumPy's ``order`` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileweave.errors import GraphError

Array = np.ndarray[Any, Any]


def order_of(equation: str, order: str, arrays: Sequence[Array], rank: int) -> tuple[int, ...]:
    """The axes of a new result from the largest stride to the smallest."""
    order = order.upper() if isinstance(order, str) else order
    if order not in ("C", "F", "A", "K"):
        raise GraphError(f"contract({equation!r}, ..)", f"order={order!r} is none", legal="C, F, A, K")
    if order == "F" or (order == "A" and all(array.flags.f_contiguous for array in arrays)):
        return tuple(reversed(range(rank)))
    if order != "K":
        return tuple(range(rank))
    import opt_einsum

    left, right, _ = opt_einsum.parser.parse_einsum_input((equation, *(array.shape for array in arrays)), shapes=True)
    strides = [
        dict(zip(term, map(abs, a.strides), strict=True)) for term, a in zip(left.split(","), arrays, strict=True)
    ]
    right += "".join(sorted(set(left) - {*right, ","}))  # what is summed tells how other axes lie to each other
    inside: list[int] = []  # from the smallest stride; where operands do not tell, an axis is outside of later ones
    for axis in reversed(range(len(right))):
        place = len(inside)
        for k in reversed(range(len(inside))):
            pairs = [(own.get(right[axis], 0), own.get(right[inside[k]], 0)) for own in strides]
            known = [new < other for new, other in pairs if new and other and new != other]
            if known and not known[0]:
                break
            place = k if known else place
        inside.insert(place, axis)
    return tuple(axis for axis in reversed(inside) if axis < rank)


def is_row_major(lies: tuple[int, ...]) -> bool:
    """Whether the first axis has the largest stride, and so on."""
    return lies == tuple(range(len(lies)))


def lying(shape: tuple[int, ...], dtype: np.dtype[Any], lies: tuple[int, ...]) -> Array:
    """A new array whose axes have strides in this order."""
    return np.empty([shape[axis] for axis in lies], dtype).transpose(np.argsort(lies))
