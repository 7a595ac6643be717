"""Operators that no program holds, and that a backend has code for: `backends.base.CallsOperators`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tileweave.backends.base import Backend, CallsOperators, Decision
from tileweave.backends.calls import Outcome
from tileweave.graph import Operation, TensorType

Array = np.ndarray[Any, Any]
_NAMES = frozenset(
    (
        *("take", "take_along_axis", "gather_nd", "scatter", "scatter_nd", "sort", "searchsorted"),
        *("bincount", "triangle", "recurrence", "max_pool_gradient"),
    )
)


def takes(operation: Operation) -> bool:
    """Whether an operation is such an operator."""
    return operation.operator in _NAMES


def decided(operation: Operation, by: Backend) -> Decision:
    """What a backend answers to an operation on dense arrays."""
    if not takes(operation) or not isinstance(by, CallsOperators):
        return Decision("", "there is no program for it")
    if len(operation.outputs) > 1:
        return Decision("", "a call makes one output alone")
    name, kind = operation.outputs[0]
    given = [_dense(x.type) for _, x in operation.inputs]
    some = kind.box.size and all(array.size for array in given)
    call = caller(operation, name, [*given, _dense(kind)], by, 1) if some else None
    if call is None:
        return Decision("", "there is no code for its types and extents")
    return Decision(operation.operator, "native code for any sizes", by.name)


def _dense(kind: TensorType) -> Array:
    """What lies as a dense array does, and holds one element."""
    steps, step = list[int](), kind.dtype.itemsize
    for n in reversed(kind.shape):
        steps.insert(0, step)
        step *= n
    return as_strided(np.empty(1, kind.dtype), kind.shape, steps)


def caller(operation: Operation, output: str, arrays: Sequence[Array], by: Backend, threads: int) -> Any | None:
    """What `Calls.add` takes to compute an output from arrays like these, the last of which is the result."""
    if not isinstance(by, CallsOperators):
        return None
    return by.caller(operation.operator, {**dict(operation.parameters), "output": output}, arrays, threads)


def computed(
    shard: Operation, output: str, inputs: Mapping[str, Array], by: Backend, threads: int
) -> dict[str, Array] | None:
    """An output of a shard by a backend's code; None where it has none, or where a place lies outside."""
    kind, given = shard.output_types[output], list(inputs.values())
    out = by.empty(kind.shape, kind.dtype)()
    call = caller(shard, output, [*given, out], by, threads)
    if call is None:
        return None
    calls = by.calls()
    number = calls.add(call, [*given, out])
    return {output: out} if calls.sequence([number]).run() == Outcome.DONE else None
