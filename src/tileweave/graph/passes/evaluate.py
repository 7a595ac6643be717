"""The meaning of a graph: every operation evaluated in NumPy, one at a time, whole.

Slow and obvious. Every plan and every runtime is judged against it.

Source: Tapestry, "Evaluation Theory Derivation" (value equivalence).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import ArrayData, Operation, Selector, Source, Tensor, topological
from tileweave.graph.ir.resolve import resolve, view
from tileweave.graph.ir.sugar import EVALUATE
from tileweave.graph.ops.operators import operator_of

Array = np.ndarray[Any, Any]


def evaluate(tensors: Sequence[Tensor], bind: Mapping[Source, Array] | None = None) -> list[Array]:
    """The values of tensors, in order.

    Args:
        tensors: any tensors.
        bind: arrays for sources that hold none (files and holes), or instead of the one that they hold.

    Returns:
        New arrays of each tensor's shape and element type.

    Raises:
        GraphError: a source has no array.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import relu
        >>> evaluate([relu(np.array([-1.0, 2.0]))])[0].tolist()
        [0.0, 2.0]
    """
    given = dict(bind or {})
    values: dict[Tensor, Array] = {}
    for node in topological(tensors):
        if isinstance(node, Tensor) and not isinstance(node.producer, Selector):
            producer = node.producer
            if isinstance(producer, Source):
                values[node] = _source_array(producer, given)
            elif node not in values:
                outputs = _run(producer, values)
                for name, array in outputs.items():
                    values[Tensor(producer, name)] = array
    return [gather(tensor, values) for tensor in tensors]


def gather(tensor: Tensor, values: Mapping[Tensor, Array]) -> Array:
    """The whole tensor as a new array, read through its selectors from the arrays that it stands on."""
    out = np.empty(tensor.shape, tensor.dtype)
    for piece in resolve(tensor, tensor.type.box, lattices=True):
        if piece.origin is None:
            out[piece.place] = piece.fill
        else:
            out[piece.place] = view(values[piece.origin], piece.origin.type.box, piece.map, piece.box)
    return out


def _run(operation: Operation, values: Mapping[Tensor, Array]) -> dict[str, Array]:
    inputs = {name: gather(tensor, values) for name, tensor in operation.inputs}
    with np.errstate(all="ignore"):
        outputs = operator_of(operation).block(operation, inputs)
    for name, kind in operation.outputs:
        got = outputs[name]
        if got.shape != kind.shape or got.dtype != kind.dtype:
            raise GraphError(
                f"evaluate: {operation.operator}",
                f"output {name} has shape {got.shape} and type {got.dtype.name}",
                inputs={"operation": operation, "declared": kind},
                legal="a block function that returns what the operation declares",
            )
    return outputs


def _source_array(source: Source, given: Mapping[Source, Array]) -> Array:
    if source in given:
        array = np.asarray(given[source])
    elif isinstance(source.data, ArrayData):
        array = source.data.array
    else:
        raise GraphError(
            "evaluate(tensors)", f"source {source.name or source.data} has no array", legal="bind={source: array}"
        )
    if array.shape != source.type.shape or array.dtype != source.type.dtype:
        raise GraphError(
            "evaluate(tensors)",
            f"the array bound to source {source.name!r} has shape {array.shape} and type {array.dtype.name}",
            inputs={"source": source.type},
        )
    return array


EVALUATE[:] = [evaluate]
