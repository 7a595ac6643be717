"""The rules: selector simplification, fusions, definitions written out. Each is proved alone in the tests.

Third parties make their own `Rule` values and pass them beside these; nothing here needs to know.

Source: Tapestry, "Returning to Linear", "Graph Fusion Operators"; own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from tileweave.graph import ops as op
from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ir.resolve import common_map, resolve
from tileweave.graph.ir.select import broadcast_to, full, select, squeeze, unsqueeze, view_of
from tileweave.graph.ops.fused import fused as fused_operation
from tileweave.graph.ops.fused import once_more
from tileweave.graph.ops.grouped.steps import steps_behind, steps_of
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.dense import DENSE
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule


def _made_by(tensor: Tensor, *names: str) -> Operation | None:
    producer = tensor.producer
    return producer if isinstance(producer, Operation) and producer.operator in names else None


def _constant(tensor: Tensor) -> Any:
    """The number that a tensor holds everywhere, or None."""
    producer = tensor.producer
    return producer.parameter("value") if isinstance(producer, Selector) and producer.kind == "full" else None


# ---------------------------------------------------------------------------------------------------------------------
# selectors


def _one_view(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    producer = tensor.producer
    if not isinstance(producer, Selector) or producer.kind == "full" or tensor.type.box.empty:
        return None
    plain = "matrix" in dict(producer.parameters)
    if plain and not isinstance(producer.inputs[0][1].producer, Selector):
        return None
    pieces = resolve(tensor, tensor.type.box, lattices=True)
    first = pieces[0]
    if first.origin is None:
        same = all(p.origin is None and repr(p.fill) == repr(first.fill) for p in pieces)
        return full(tensor.shape, cast("Any", first.fill), tensor.dtype) if same else None
    if any(p.origin is not first.origin or p.lattice is not None for p in pieces):
        return None
    map = common_map(tensor.type.box, [(p.box, p.map) for p in pieces])
    return None if map is None else view_of(first.origin, tensor.shape, map)


ONE_VIEW = RewriteRule(
    "one-view",
    "a tree of selectors that reads one tensor through one map is that view of it: slices cancel concats",
    _one_view,
)


# ---------------------------------------------------------------------------------------------------------------------
# arithmetic that changes no bit


MOST_FACTORS = 4
"""A power is written as products up to this exponent: each rounds once more, and one costs a hundredth of a power."""


def _power_of_few(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    power = _made_by(tensor, "power")
    if power is None or tensor.dtype.kind not in "fiu":
        return None
    x, exponent = power.input("x0"), _constant(_through_views(power.input("x1")))
    if x.type != tensor.type or exponent not in range(1, MOST_FACTORS + 1):
        return None
    square = op.multiply(x, x)
    return (x, square, op.multiply(square, x), op.multiply(square, square))[int(exponent) - 1]


def _double_negative(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    outer = _made_by(tensor, "negative")
    inner = _made_by(outer.input("x"), "negative") if outer else None
    return inner.input("x") if inner else None


def _times_one(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    product = _made_by(tensor, "multiply", "divide")
    if product is None:
        return None
    x, y = product.input("x0"), product.input("x1")
    if _constant(y) == 1 and x.type == tensor.type:
        return x
    if product.operator == "multiply" and _constant(x) == 1 and y.type == tensor.type:
        return y
    return None


def _idempotent(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    outer = _made_by(tensor, "relu", "absolute")
    return outer.input("x") if outer and _made_by(outer.input("x"), outer.operator) else None


def _where_known(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    where = _made_by(tensor, "where")
    known = _constant(_through_views(where.input("x0"))) if where else None
    chosen = where.input("x1" if known else "x2") if where and known is not None else None
    if chosen is None or chosen.dtype != tensor.dtype:
        return None
    return chosen if chosen.shape == tensor.shape else broadcast_to(chosen, tensor.shape)


def _through_views(tensor: Tensor) -> Tensor:
    """What a tensor is a view of."""
    while isinstance(tensor.producer, Selector) and "matrix" in dict(tensor.producer.parameters):
        tensor = tensor.producer.inputs[0][1]
    return tensor


WHERE_KNOWN = RewriteRule("where-known", "where(c, x, y) is x or y where c is one constant", _where_known)
DOUBLE_NEGATIVE = RewriteRule("double-negative", "-(-x) is x, to the bit", _double_negative)
POWER_OF_FEW = RewriteRule(
    "power-of-few", "x to the power 1, 2, 3 or 4 is a product of so many x", _power_of_few, exact=False
)
TIMES_ONE = RewriteRule("times-one", "x * 1 and x / 1 are x, to the bit", _times_one)
IDEMPOTENT = RewriteRule("idempotent", "relu(relu(x)) is relu(x), and |(|x|)| is |x|", _idempotent)


# ---------------------------------------------------------------------------------------------------------------------
# fusions


def _matmul_bias(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    add = _made_by(tensor, "add")
    if add is None:
        return None
    for first, second in (("x0", "x1"), ("x1", "x0")):
        product, b = add.input(first), add.input(second)
        factors = _plain_product(product, context)
        if factors is None or len(b.shape) != 1:
            continue
        x, w = factors
        same = b.dtype == tensor.dtype == product.dtype
        if same and b.shape == w.shape[1:] and product.shape == tensor.shape:
            return op.linear(x, w, b)
    return None


def _plain_product(product: Tensor, context: RewriteContext) -> tuple[Tensor, Tensor] | None:
    """x and w of a matmul that could be the product of a linear, and that is read once."""
    matmul = _made_by(product, "matmul")
    if matmul is None or not context.alone(product) or matmul.signature is None:
        return None
    x, w = matmul.input("x0"), matmul.input("x1")
    plain = len(w.shape) == 2 and len(x.shape) >= 1 and product.shape == (*x.shape[:-1], w.shape[1])
    return (x, w) if plain and x.dtype == w.dtype == product.dtype else None


def _sum_of_products(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    """The document's Prod and SumDim, wherever they come from, as one contraction."""
    total = _made_by(tensor, "sum")
    product = _made_by(total.input("x"), "multiply") if total else None
    if total is None or product is None or product.signature is None or not context.alone(total.input("x")):
        return None
    if total.input("x").dtype != tensor.dtype or tensor.dtype.kind == "b":
        return None
    axes = total.parameter("axes")
    operands, labels = [], []
    for name, x in product.inputs:
        drivers = [next((k for k, c in enumerate(row) if c), None) for row in product.signature.input(name).map.matrix]
        spread = [k for k, d in enumerate(drivers) if d is None]  # of extent 1: it meets every index
        operands.append(squeeze(x, spread) if spread else x)
        labels.append([d for d in drivers if d is not None])
    if not set(axes) <= set(labels[0]) | set(labels[1]):  # the sum also repeats what does not change
        return None
    out = [k for k in range(product.index.rank) if k not in axes]
    if not set(out) <= set(labels[0]) | set(labels[1]):
        return None
    if labels[0] == [*out[:-1], *axes] and labels[1] == [*axes, *out[-1:]] and len(axes) == 1:
        return op.matmul(*operands)
    letters = ["".join(chr(ord("a") + k) for k in own) for own in (*labels, out)]
    return op.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", *operands)


def _linear_relu(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    relu = _made_by(tensor, "relu")
    linear = _made_by(relu.input("x"), "linear") if relu else None
    factors = _plain_product(relu.input("x"), context) if relu else None
    if factors is not None and tensor.dtype.kind != "b":
        x, w = factors
        made = op.linear(x, w, full(w.shape[1:], 0, tensor.dtype)).producer
        return Tensor(replace(cast("Operation", made), operator="linear_relu"))
    if relu is None or linear is None or not context.alone(relu.input("x")) or "b" not in dict(linear.inputs):
        return None
    return Tensor(replace(linear, operator="linear_relu"))


_MOST_INPUTS = 16
_MOST_STEPS = 64  # so that a chain of any length is fused in time that grows with its length alone


def _elementwise_chain(tensor: Tensor, context: RewriteContext) -> Iterator[Tensor]:
    """An elementwise operation with each input that only it reads, and that is elementwise of its own shape."""
    outer = tensor.producer
    if not isinstance(outer, Operation) or not _joins(outer) or outer.signature is None:
        return
    for place, (_, inner) in enumerate(outer.inputs):
        below = inner.producer
        if (
            isinstance(below, Operation)
            and _joins(below)
            and below.signature is not None
            and inner.shape == tensor.shape
            and context.alone(inner)
            and len(outer.inputs) + len(below.inputs) - 1 <= _MOST_INPUTS
            and len(steps_of(outer)) + len(steps_of(below)) <= _MOST_STEPS
        ):
            yield _joined_program(outer, below, place)


def _joins(operation: Operation) -> bool:
    return operation.operator == "fused" or is_elementwise(operation.operator)


def _joined_program(outer: Operation, below: Operation, place: int) -> Tensor:
    """The program of `below` followed by that of `outer`, whose input `place` it is."""
    first, second = steps_of(below), steps_of(outer)
    tensors = [t for _, t in below.inputs]
    numbers: list[int] = []
    for k, (_, t) in enumerate(outer.inputs):
        if k == place or t is outer.inputs[place][1]:
            numbers.append(-len(first))  # the last step of the first program
        elif t in tensors:
            numbers.append(tensors.index(t))
        else:
            numbers.append(len(tensors))
            tensors.append(t)
    return fused_operation(tensors, (*first, *steps_behind(len(first), second, numbers)))


SUM_OF_PRODUCTS = RewriteRule(
    "sum-of-products", "a sum over products is a contraction, by its definition", _sum_of_products, exact=False
)
MATMUL_BIAS = RewriteRule("matmul-bias", "x @ w + b is linear(x, w, b)", _matmul_bias, exact=False)
LINEAR_RELU = RewriteRule(
    "linear-relu", "relu(linear(x, w, b)) applies relu where the bias is added; x @ w has the bias zero", _linear_relu
)
ELEMENTWISE_CHAIN = RewriteRule(
    "elementwise-chain", "elementwise operations in a row compute each element alone", _elementwise_chain
)


# ---------------------------------------------------------------------------------------------------------------------
# definitions written out


def _linear_choices(tensor: Tensor, context: RewriteContext) -> list[Tensor] | None:
    """The two expansions of linear: a matmul with a bias, or the document's Prod, SumDim and Sum."""
    linear = _made_by(tensor, "linear")
    if linear is None or [name for name, _ in linear.inputs] != ["x", "w", "b"]:
        return None
    x, w, b = linear.input("x"), linear.input("w"), linear.input("b")
    product = op.multiply(unsqueeze(x, len(x.shape)), w)  # [.., in, out]
    total = op.sum(product, len(x.shape) - 1, dtype=product.dtype)
    return [op.add(op.matmul(x, w), b), op.add(total, b)]


def _relu_as_where(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    relu = _made_by(tensor, "relu")
    if relu is None:
        return None
    x = relu.input("x")
    return op.where(op.less(x, 0), full((), 0, x.dtype), x)  # NaN is not less, and stays


def _unfused(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    fused = _made_by(tensor, "fused")
    if fused is None:
        return None
    inputs = [t for _, t in fused.inputs]
    done: list[Tensor] = []
    for name, args, dtype in steps_of(fused):
        done.append(once_more(name, [inputs[a] if a >= 0 else done[-1 - a] for a in args], dtype))
    return done[-1] if done[-1].type == tensor.type else None


def _linear_relu_apart(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    both = _made_by(tensor, "linear_relu")
    if both is None or "b" not in dict(both.inputs):
        return None
    return op.relu(Tensor(replace(both, operator="linear")))


def _sum_as_selects(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    """A sum over few elements of one dimension as additions of selections."""
    total = _made_by(tensor, "sum")
    if total is None or len(total.parameter("axes")) != 1 or total.input("x").dtype != tensor.dtype:
        return None
    x, dim = total.input("x"), total.parameter("axes")[0]
    if not 1 <= x.shape[dim] <= 8:
        return None
    out = select(x, dim, 0)
    for k in range(1, x.shape[dim]):
        out = op.add(out, select(x, dim, k))
    return out


LINEAR = RewriteRule(
    "linear", "linear(x, w, b) is the sum over in of x * w, plus b", _linear_choices, "semantic", False
)
RELU_AS_WHERE = RewriteRule("relu-as-where", "relu(x) is 0 where x < 0 and x elsewhere", _relu_as_where, "semantic")
UNFUSED = RewriteRule("unfused", "a fused program is its steps one after the other", _unfused, "semantic")
LINEAR_RELU_APART = RewriteRule("linear-relu-apart", "linear_relu is relu of linear", _linear_relu_apart, "semantic")
SUM_AS_SELECTS = RewriteRule(
    "sum-as-selects", "a sum is the addition of its elements", _sum_as_selects, "semantic", False
)

FUSIONS = (POWER_OF_FEW, MATMUL_BIAS, LINEAR_RELU, ELEMENTWISE_CHAIN)
"""Several operations become one; nothing else changes."""
OPTIMIZATIONS = (ONE_VIEW, WHERE_KNOWN, DOUBLE_NEGATIVE, TIMES_ONE, IDEMPOTENT, SUM_OF_PRODUCTS, *FUSIONS)
"""Rules that make a graph cheaper; together they reach a fixed point."""

EXPANSIONS = (LINEAR, RELU_AS_WHERE, UNFUSED, LINEAR_RELU_APART, SUM_AS_SELECTS)
"""Rules that write definitions out; together they reach a fixed point."""

RULES = {rule.name: rule for rule in (*OPTIMIZATIONS, *EXPANSIONS, *DENSE)}
"""Rule name -> rule."""
