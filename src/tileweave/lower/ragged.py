"""Products of groups of rows: their sizes are data, so no program holds them; a backend may have a kernel for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tileweave.backends.base import Backend, Decision
from tileweave.graph import Operation
from tileweave.graph.ops.grouped.ragged import spans

Array = np.ndarray[Any, Any]


@runtime_checkable
class MultipliesGroups(Protocol):
    """A backend with a kernel for products of groups of rows, each group with a matrix of its own."""

    def supports_groups(self, x: tuple[int, ...], w: tuple[int, ...], dtype: np.dtype[Any]) -> Decision:
        """Whether it multiplies x [rows, in] with w [groups, in, out]; as `Backend.supports`."""

    def multiply_groups(self, x: Array, w: Array, starts: Array, out: Array) -> None:
        """Writes the rows ``starts[g] .. starts[g + 1]`` of out by w[g], for each group; others stay as they are."""


def takes(operation: Operation) -> bool:
    """Whether an operation is such a product."""
    return operation.operator == "ragged_dot"


def decided(operation: Operation, by: Backend) -> Decision:
    """What a backend answers to an operation that has no program."""
    if not takes(operation) or not isinstance(by, MultipliesGroups):
        return Decision("", "there is no program for it")
    x, w = operation.input("x"), operation.input("w")
    return by.supports_groups(x.shape, w.shape, x.dtype)


def multiplied(shard: Operation, inputs: Mapping[str, Array], by: Backend) -> dict[str, Array]:
    """The output of a shard by a backend's kernel; rows of no group are zero.

    Raises:
        GraphError: the sizes of groups are wrong.
    """
    assert isinstance(by, MultipliesGroups)
    x, w = inputs["x"], inputs["w"]
    starts = np.zeros(w.shape[0] + 1, np.int32)
    for g, rows in spans(shard, inputs["group_sizes"], 0, 3):
        starts[g], starts[g + 1 :] = rows.start, rows.stop
    kind = shard.output_types["out"]
    out = np.zeros(kind.shape, kind.dtype)
    by.multiply_groups(np.ascontiguousarray(x), np.ascontiguousarray(w), starts, out)
    return {"out": out}
