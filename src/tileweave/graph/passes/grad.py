"""Gradients as ordinary graphs, built from one rule per operator.

Source: own; reverse accumulation over the nodes in topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.nodes import Operation, Selector, Source, Tensor, TensorType, topological
from tileweave.graph.ir.select import SEGMENTS, broadcast_to, concat, flip, full, permute, slice_, unsqueeze
from tileweave.graph.ops import operators as op
from tileweave.graph.ops.assemble import interleave, pad
from tileweave.graph.ops.windows import conv
from tileweave.space import AffineMap, Box

__all__ = ["GRADIENTS", "grad"]

Gradient = Tensor | Callable[[], Tensor]
Rule = Callable[[Operation, Tensor, Tensor], Mapping[str, Gradient]]


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
        if not op.is_floating(tensor.dtype):
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
        if node in targets or (op.is_floating(node.dtype) and any(t in found for _, t in inputs)):
            found.add(node)
    return found


def _backward(y: Tensor, dy: Tensor, needed: set[Tensor]) -> list[tuple[Tensor, Tensor]]:
    producer = y.producer
    if isinstance(producer, Source):
        return []
    wanted = {name: t for name, t in producer.inputs if t in needed}
    if not wanted:
        return []
    if isinstance(producer, Selector):
        parts: Mapping[str, Gradient] = _selector_gradient(producer, dy)
    elif producer.operator in GRADIENTS:
        parts = GRADIENTS[producer.operator](producer, y, dy)
    else:
        raise GraphError(
            "grad(y, wrt)",
            f"operator {producer.operator} has no gradient",
            inputs={"operation": producer},
            legal=", ".join(sorted(GRADIENTS)),
        )
    found = [(t, parts[name]) for name, t in wanted.items() if name in parts]
    return [(t, op.cast(part if isinstance(part, Tensor) else part(), t.dtype)) for t, part in found]


def _fold(dy: Tensor, like: Tensor) -> Tensor:
    """The sum over the dimensions along which `like` was broadcast to the shape of dy."""
    extra = len(dy.shape) - len(like.shape)
    ones = tuple(extra + k for k, n in enumerate(like.shape) if n == 1 and dy.shape[extra + k] != 1)
    out = op.sum(dy, (*range(extra), *ones)) if extra or ones else dy
    if ones:
        out = unsqueeze(out, tuple(k - extra for k in ones))
    return op.cast(out, like.dtype)


def _broadcasting(partials: Callable[..., Sequence[Tensor | None]]) -> Rule:
    """A rule for an elementwise operator from its partial derivatives times dy."""

    def rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
        tensors = [t for _, t in operation.inputs]
        parts = partials(*tensors, y, dy)
        return {
            name: _fold(part, t) for (name, t), part in zip(operation.inputs, parts, strict=True) if part is not None
        }

    return rule


def _choose(picked: Tensor, other: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """dy where `picked` is the result, shared equally where both are."""
    share = op.where(op.equal(picked, other), 0.5, 1.0)
    return op.multiply(op.where(op.equal(picked, y), dy, 0.0), op.cast(share, dy.dtype))


def _reduced(operation: Operation, value: Tensor) -> Tensor:
    """A reduction's result (or its gradient) at the shape of the reduction's input."""
    x = operation.input("x")
    return broadcast_to(unsqueeze(value, operation.parameter("axes")), x.shape)


def _sum_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return {"x": _reduced(operation, dy)}


def _product_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    # beside one zero only that zero has a gradient, beside two none has
    x, axes = operation.input("x"), operation.parameter("axes")
    zero = op.equal(x, 0)
    safe = op.where(zero, 1.0, x)
    zeros = _reduced(operation, op.sum(zero, axes))
    others = op.divide(_reduced(operation, op.multiply(dy, op.product(safe, axes))), safe)
    return {"x": op.where(op.equal(zeros, op.cast(zero, zeros.dtype)), others, 0.0)}


def _extreme_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x = operation.input("x")
    hit = op.equal(x, _reduced(operation, y))
    count = op.sum(hit, operation.parameter("axes"), dtype=op.wide_type(dy.dtype))
    return {"x": op.where(hit, _reduced(operation, op.divide(dy, count)), 0.0)}


def _contract_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    left, out = operation.parameter("equation").split("->")
    terms = left.split(",")
    tensors = dict(operation.inputs)
    names = [name for name in tensors if name != "b"]
    grads = {}
    for k, name in enumerate(names):
        others = [(terms[j], tensors[other]) for j, other in enumerate(names) if j != k]
        grads[name] = _term_gradient(terms[k], tensors[name], [(out, dy), *others])
    if "b" in tensors:
        grads["b"] = _fold(dy, tensors["b"])
    return grads


def _term_gradient(term: str, x: Tensor, factors: Sequence[tuple[str, Tensor]]) -> Tensor:
    """The contraction of the other factors back onto the indices of one operand."""
    known = {letter for own, _ in factors for letter in own}
    unique = "".join(dict.fromkeys(term))
    kept = "".join(letter for letter in unique if letter in known)
    part = op.einsum(",".join(own for own, _ in factors) + "->" + kept, *(t for _, t in factors))
    extent = dict(zip(term, x.shape, strict=True))
    for place, letter in enumerate(unique):
        if letter not in known:
            part = unsqueeze(part, place)
    part = broadcast_to(part, [extent[letter] for letter in unique])
    if len(unique) == len(term):
        return part
    # a repeated index reads a diagonal: the gradient is zero off it
    spread = part
    for place, letter in enumerate(term):
        first = term.index(letter)
        if place != first:
            spread = unsqueeze(spread, place)
    spread = broadcast_to(spread, x.shape)
    for place, letter in enumerate(term):
        first = term.index(letter)
        if place != first:
            n = extent[letter]
            eye = op.as_tensor(np.eye(n, dtype=x.dtype))
            dims = [place, first] if place < first else [first, place]
            lifted = unsqueeze(eye, [k for k in range(len(term)) if k not in dims])
            spread = op.multiply(spread, lifted)
    return spread


def _conv_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Both gradients are convolutions: of the spread dy with the turned filters, and of x with dy as the filter."""
    x, w = operation.input("x"), operation.input("w")
    stride, dilation, groups = (operation.parameter(name) for name in ("stride", "dilation", "groups"))
    rank, filters, channels = len(stride), w.shape[0] // groups, w.shape[1]

    def swapped(t: Tensor) -> Tensor:
        return permute(t, (1, 0, *range(2, rank + 2)))

    def group(t: Tensor, k: int, size: int, dim: int) -> Tensor:
        return slice_(t, t.type.box.with_range(dim, k * size, (k + 1) * size))

    def to_x() -> Tensor:
        spread = dy
        for k, s in enumerate(stride):
            spread = _spread(spread, k + 2, s, 0, (dy.shape[k + 2] - 1) * s + 1)
        margin = [(d * (n - 1), d * (n - 1)) for n, d in zip(w.shape[2:], dilation, strict=True)]
        spread = pad(spread, [(0, 0), (0, 0), *margin])
        turned = concat([swapped(group(w, k, filters, 0)) for k in range(groups)], 0)
        return conv(spread, flip(turned, tuple(range(2, rank + 2))), dilation=dilation, groups=groups)

    def to_w() -> Tensor:
        parts = []
        for k in range(groups):
            values, weights = swapped(group(x, k, channels, 1)), swapped(group(dy, k, filters, 1))
            parts.append(swapped(conv(values, weights, stride=dilation, dilation=stride)))
        return concat(parts, 0)

    return {"x": to_x, "w": to_w}


def _max_pool_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """dy goes to the greatest elements of each window, in equal shares."""
    x = operation.input("x")
    window, stride, dilation = (operation.parameter(name) for name in ("window", "stride", "dilation"))
    hits: list[tuple[tuple[int, ...], Tensor]] = []
    for place in Box.of(window):
        start = (0, 0, *(d * p for d, p in zip(dilation, place, strict=True)))
        seen = slice_(x, Box(start, y.shape), (1, 1, *stride))
        hits.append((start, op.equal(seen, y)))
    share = op.divide(dy, reduce(op.add, [op.cast(hit, dy.dtype) for _, hit in hits]))
    total = None
    for start, hit in hits:
        part = op.where(hit, share, 0.0)
        for k, s in enumerate(stride):
            part = _spread(part, k + 2, s, start[k + 2], x.shape[k + 2])
        total = part if total is None else op.add(total, part)
    return {"x": total} if total is not None else {}


def _linear_relu_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return _contract_rule(operation, y, op.where(op.greater(y, 0), dy, 0.0))


def _fused_rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """Backward through the steps of a program, which are made again as operations of their own."""
    given = [t for _, t in operation.inputs]
    program = operation.parameter("program")
    steps: list[Tensor] = []
    for name, args, dtype in program:
        parameters = (("dtype", dtype),) if name == "cast" else ()
        values = [given[a] if a >= 0 else steps[-1 - a] for a in args]
        steps.append(op.elementwise(name, values, np.dtype(dtype), *parameters))
    flow = {-len(program): _fold(dy, steps[-1])}  # argument, as programs number them -> its gradient
    for k in reversed(range(len(program))):
        name, args, _ = program[k]
        made = cast("Operation", steps[k].producer)
        parts = GRADIENTS[name](made, steps[k], flow[-1 - k]) if -1 - k in flow and name in GRADIENTS else {}
        for (own, t), a in zip(made.inputs, args, strict=True):
            if own in parts and op.is_floating(t.dtype):
                part = cast("Tensor", parts[own])
                flow[a] = op.add(flow[a], part) if a in flow else part
    return {name: flow[k] for k, (name, _) in enumerate(operation.inputs) if k in flow}


GRADIENTS: dict[str, Rule] = {
    "negative": _broadcasting(lambda x, y, dy: [op.negative(dy)]),
    "absolute": _broadcasting(lambda x, y, dy: [op.multiply(dy, op.sign(x))]),
    "sign": _broadcasting(lambda x, y, dy: [None]),
    "exp": _broadcasting(lambda x, y, dy: [op.multiply(dy, y)]),
    "log": _broadcasting(lambda x, y, dy: [op.divide(dy, x)]),
    "sqrt": _broadcasting(lambda x, y, dy: [op.divide(dy, op.multiply(2.0, y))]),
    "tanh": _broadcasting(lambda x, y, dy: [op.multiply(dy, op.subtract(1.0, op.multiply(y, y)))]),
    "sigmoid": _broadcasting(lambda x, y, dy: [op.multiply(dy, op.multiply(y, op.subtract(1.0, y)))]),
    "relu": _broadcasting(lambda x, y, dy: [op.where(op.greater(x, 0), dy, 0.0)]),
    "cast": _broadcasting(lambda x, y, dy: [dy]),
    "add": _broadcasting(lambda a, b, y, dy: [dy, dy]),
    "subtract": _broadcasting(lambda a, b, y, dy: [dy, op.negative(dy)]),
    "multiply": _broadcasting(lambda a, b, y, dy: [op.multiply(dy, b), op.multiply(dy, a)]),
    "divide": _broadcasting(lambda a, b, y, dy: [op.divide(dy, b), op.negative(op.divide(op.multiply(dy, y), b))]),
    "power": _broadcasting(
        lambda a, b, y, dy: [
            op.where(op.equal(b, 0), 0.0, op.multiply(dy, op.multiply(b, op.power(a, op.subtract(b, 1.0))))),
            op.multiply(dy, op.multiply(y, op.log(op.where(op.equal(a, 0), 1.0, a)))),
        ]
    ),
    "remainder": _broadcasting(lambda a, b, y, dy: [dy, op.negative(op.multiply(dy, op.floor_divide(a, b)))]),
    "floor_divide": _broadcasting(lambda a, b, y, dy: [None, None]),
    "maximum": _broadcasting(lambda a, b, y, dy: [_choose(a, b, y, dy), _choose(b, a, y, dy)]),
    "minimum": _broadcasting(lambda a, b, y, dy: [_choose(a, b, y, dy), _choose(b, a, y, dy)]),
    "where": _broadcasting(lambda c, a, b, y, dy: [None, op.where(c, dy, 0.0), op.where(c, 0.0, dy)]),
    "sum": _sum_rule,
    "product": _product_rule,
    "max": _extreme_rule,
    "min": _extreme_rule,
    "matmul": _contract_rule,
    "einsum": _contract_rule,
    "linear": _contract_rule,
    "linear_relu": _linear_relu_rule,
    "fused": _fused_rule,
    "conv": _conv_rule,
    "max_pool": _max_pool_rule,
    "erf": _broadcasting(
        lambda x, y, dy: [op.multiply(dy, op.multiply(2 / np.pi**0.5, op.exp(op.negative(op.multiply(x, x)))))]
    ),
}
"""Operator name -> (operation, its result, gradient of the result) -> gradient per input, or what builds it."""


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
        part = _spread(part, dim, segment.sign, segment.first, x.shape[dim])
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
        out = _spread(out, row, step, map.offset[row], kind.shape[row])
    return out


def _spread(x: Tensor, dim: int, step: int, start: int, extent: int) -> Tensor:
    """x placed at ``start + step * i`` of a zero dimension of the given extent."""
    count = x.shape[dim]
    if step < 0:
        start, step = start + (count - 1) * step, -step
        flipped = tuple(-1 if k == dim else 1 for k in range(len(x.shape)))
        x = slice_(x, Box(tuple(max(n - 1, 0) if k == dim else 0 for k, n in enumerate(x.shape)), x.shape), flipped)

    def zeros(n: int) -> Tensor:
        return full([n if k == dim else e for k, e in enumerate(x.shape)], 0.0, x.dtype)

    if count == 0:
        return zeros(extent)
    if step > 1 and count > 1:
        gaps = interleave([x, *[zeros(count)] * (step - 1)], dim)
        x = slice_(gaps, gaps.type.box.with_range(dim, 0, (count - 1) * step + 1))
    return pad(x, [(start, extent - start - x.shape[dim]) if k == dim else (0, 0) for k in range(len(x.shape))])
