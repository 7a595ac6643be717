"""Gradients as ordinary graphs, built from the gradient column of the operator table.

Source: own; reverse accumulation over the nodes in topological order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tileweave.errors import DtypeError, GraphError
from tileweave.graph import ops as op
from tileweave.graph.ir.assemble import spread
from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ir.nodes import Operation, Selector, Source, Tensor, TensorType, topological
from tileweave.graph.ir.resolve import SEGMENTS
from tileweave.graph.ir.select import full, permute, slice_, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ops.grouped.rows import softmax_parts
from tileweave.graph.ops.operators import OPERATORS, Gradient, operator_of
from tileweave.space import AffineMap


@public()
def grad(y: Tensor, wrt: Tensor | Sequence[Tensor]) -> Any:
    """The gradient of a scalar tensor with respect to one tensor or several, as ordinary tensors.

    Args:
        y: a tensor of rank 0 and of a floating type.
        wrt: tensors that y may depend on; the gradient of one that it does not depend on is zero.

    Returns:
        One tensor, or a list in the order of `wrt`, each of the shape and type of its tensor.

    Raises:
        GraphError: y is not a scalar, or an operator on the way has no gradient rule.

    Example:
        >>> import numpy as np
        >>> x = op.as_tensor(np.array([1.0, 2.0]))
        >>> np.asarray(grad(op.sum(x * x), x)).tolist()
        [2.0, 4.0]
    """
    targets = [wrt] if isinstance(wrt, Tensor) else list(wrt) if isinstance(wrt, Iterable) else [wrt]
    for tensor in (y, *targets):
        if not isinstance(tensor, Tensor):
            raise GraphError("grad(y, wrt)", f"{tensor!r:.60} is not a tensor", legal="tensors of the graph of y")
    if y.shape != ():
        raise GraphError("grad(y, wrt)", "y is not a scalar", inputs={"y": y.type}, legal="rank 0; sum(y), for example")
    for tensor in (y, *targets):
        if not is_floating(tensor.dtype):
            raise DtypeError("grad(y, wrt)", f"{tensor.type} has no gradient", legal="floating types")
    nodes = topological([y])
    needed = _dependent(nodes, set(targets))
    flow: dict[Tensor, Tensor] = {y: full((), 1.0, y.dtype)}
    for node in reversed(nodes):
        if isinstance(node, Tensor) and node in flow and node in needed:
            for source, part in _backward(node, flow[node], needed):
                flow[source] = op.add(flow[source], part) if source in flow else part
    out = [flow[t] if t in flow else full(t.shape, 0.0, t.dtype) for t in targets]
    return out[0] if isinstance(wrt, Tensor) else out


def _dependent(nodes: Sequence[Any], targets: set[Tensor]) -> set[Tensor]:
    """The tensors whose value depends on a target through floating values."""
    found: set[Tensor] = set()
    for node in nodes:
        if not isinstance(node, Tensor):
            continue
        inputs = () if isinstance(node.producer, Source) else node.producer.inputs
        if node in targets or (is_floating(node.dtype) and any(t in found for _, t in inputs)):
            found.add(node)
    return found


def _backward(y: Tensor, dy: Tensor, needed: set[Tensor]) -> list[tuple[Tensor, Tensor]]:
    producer = y.producer
    if isinstance(producer, Source):
        return []
    wanted = {name: t for name, t in producer.inputs if t in needed}
    if not wanted:
        return []
    softmax = _softmax(y)
    if softmax is not None and softmax[0] in needed:
        x, axes, log = softmax
        if log:
            return [(x, op.subtract(dy, op.multiply(op.exp(y), op.sum(dy, axes, keepdims=True))))]
        return [(x, op.multiply(y, op.subtract(dy, op.sum(op.multiply(dy, y), axes, keepdims=True))))]
    if isinstance(producer, Selector):
        parts: Mapping[str, Gradient] = _selector_gradient(producer, dy)
    else:
        rule = operator_of(producer).gradient
        if rule is None:
            raise GraphError(
                "grad(y, wrt)",
                f"operator {producer.operator} has no gradient",
                inputs={"operation": producer},
                legal=", ".join(sorted(name for name, row in OPERATORS.items() if row.gradient is not None)),
            )
        parts = rule(producer, y, dy)
    found = [(t, parts[name]) for name, t in wanted.items() if name in parts]
    return [(t, op.cast(part if isinstance(part, Tensor) else part(), t.dtype)) for t, part in found]


def _softmax(y: Tensor) -> tuple[Tensor, tuple[int, ...], bool] | None:
    """Of what, and along which axes, a tensor is the softmax, or its logarithm (True).

    Its gradient is known as a whole. That of its parts would go through the maximum as well, where it adds up to zero.
    """

    def made(tensor: Tensor) -> tuple[str, tuple[Tensor, ...]]:
        producer = _kept(tensor).producer
        if not isinstance(producer, Operation) or not producer.inputs:
            return "", (tensor,)
        return producer.operator, tuple(x for _, x in producer.inputs)

    found = softmax_parts(y, made)
    if found is None:
        return None
    log, (x, top, *_, total) = found
    most, summed = (cast("Operation", _kept(one).producer) for one in (top, total))
    axes = summed.parameter("axes")
    kept = tuple(1 if k in axes else n for k, n in enumerate(y.shape))
    fits = most.parameter("axes") == axes and x.type == y.type and total.shape == top.shape == kept
    return (x, axes, log) if fits else None


def _kept(tensor: Tensor) -> Tensor:
    """What a tensor is with dimensions of extent 1 put in."""
    made = tensor.producer
    return made.inputs[0][1] if isinstance(made, Selector) and made.kind == "unsqueeze" else tensor


def _selector_gradient(selector: Selector, dy: Tensor) -> dict[str, Tensor]:
    if selector.kind in SEGMENTS:
        return _assembly_gradient(selector, dy)
    if selector.kind == "full":
        return {}
    (name, x) = selector.inputs[0]
    map = AffineMap(selector.parameter("matrix"), selector.parameter("offset"), len(selector.out.shape))
    return {name: _scatter(map, x.type, dy)}


def _assembly_gradient(selector: Selector, dy: Tensor) -> dict[str, Tensor]:
    """Per input the sum over its segments of dy there, put back where the segment read."""
    dim = selector.parameter("dim")
    parts: dict[Tensor, Tensor] = {}
    for segment in SEGMENTS[selector.kind](selector):
        x = segment.source
        if x is None or not segment.count:
            continue
        rank = len(dy.shape)
        box = dy.type.box.with_range(dim, segment.start, segment.start + segment.count)
        part = slice_(dy, box, [segment.step if k == dim else 1 for k in range(rank)])
        part = spread(part, dim, segment.sign, segment.first, x.shape[dim])
        parts[x] = op.add(parts[x], part) if x in parts else part
    # a tensor that is an input twice is told its whole gradient once
    out: dict[str, Tensor] = {}
    for name, x in selector.inputs:
        if x in parts:
            out[name] = parts.pop(x)
    return out


def _scatter(map: AffineMap, kind: TensorType, dy: Tensor) -> Tensor:
    """The transpose of a view: dy put back where the view read it, summed where it read twice, zero elsewhere."""
    used = [k for row in map.matrix for k, c in enumerate(row) if c]
    summed = [k for k in range(map.inputs) if k not in used]
    out = op.sum(dy, summed) if summed else dy
    left = [k for k in range(map.inputs) if k not in summed]
    order = [left.index(k) for k in used]
    out = permute(out, order)
    for row, coefficients in enumerate(map.matrix):
        if not any(coefficients):
            out = unsqueeze(out, row)
    for row, coefficients in enumerate(map.matrix):
        step = next((c for c in coefficients if c), 1)
        out = spread(out, row, step, map.offset[row], kind.shape[row])
    return out
