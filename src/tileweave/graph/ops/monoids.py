"""Monoids: the associative combinations by which a cut reduction is put together again.

Source: Tapestry, "Reduction Operations".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MONOIDS", "Monoid"]


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative, commutative operation with an identity.

    Args:
        name: as signatures refer to it.
        combine: of two arrays, elementwise.
        identity: of an element type; None where the type has none (the maximum of an unbounded type).
    """

    name: str
    combine: Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    identity: Callable[[np.dtype[Any]], Any]


def _least(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.type(-np.inf)


def _greatest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.type(np.inf)


MONOIDS: dict[str, Monoid] = {
    monoid.name: monoid
    for monoid in (
        Monoid("sum", np.add, lambda dtype: dtype.type(0)),
        Monoid("product", np.multiply, lambda dtype: dtype.type(1)),
        Monoid("max", np.maximum, _least),
        Monoid("min", np.minimum, _greatest),
    )
}
"""Monoid name -> monoid."""
