"""Values while a model is read: arrays where they are known, tensors where they are computed."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tileweave.graph import Tensor, as_tensor
from tileweave.graph import evaluate as evaluated

Array = np.ndarray[Any, Any]
Value = Any
"""A NumPy array where the value is known, a Tensor where it is computed, a list of them for a sequence."""
FOLDED = 1 << 22
"""Constants of more elements than this are computed when the model runs, not when it is loaded."""


def folded(value: Value, known: bool) -> Value:
    """The value of a small result that depends on nothing unknown, which no run changes either."""
    if known and isinstance(value, Tensor) and prod(value.shape) <= FOLDED:
        return constant(np.asarray(evaluated([value])[0]))
    return value


def constant(array: Array) -> Array:
    """A copy that nobody can write: its memory is bytes."""
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def tensor(value: Value, where: str) -> Tensor:
    """A value as a tensor."""
    return value if isinstance(value, Tensor) else as_tensor(np.asarray(value), where)
