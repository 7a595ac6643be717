"""Elementwise operators, casts and generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.frontends.values import Value, folded
from tileweave.graph import ArrayData, Operation, Selector, Source, Tensor
from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ir.sugar import FUNCTIONS
from tileweave.graph.nn.quantized import as_numbers

_UNARY = {
    "Abs": "absolute", "Acos": "arccos", "Acosh": "arccosh", "Asin": "arcsin", "Asinh": "arcsinh", "Atan": "arctan",
    "Atanh": "arctanh", "BitwiseNot": "invert", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "negative", "Not": "logical_not",
    "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "Less": "less", "LessOrEqual": "less_equal", "Mul": "multiply", "Or": "logical_or", "Sub": "subtract",
    "Xor": "logical_xor",
}  # fmt: skip


def _named(kind: str, name: str, count: int) -> None:
    def convert(node: OnnxNode) -> Tensor:
        return _call(name)(*(node.tensor(0), *([fitting(node)] if count == 2 else [])))

    operator(kind)(convert)


def fitting(node: OnnxNode) -> Tensor:
    """The second input; before version 7 its dimensions lie beside those of the first one from an axis on."""
    x, y = node.tensor(0), node.tensor(1)
    if node.version >= 7 or "axis" not in node.attributes or not node.get("broadcast", 0):
        return y
    behind = len(x.shape) - node.axis(x) - len(y.shape)
    return g.unsqueeze(y, tuple(len(y.shape) + k for k in range(max(behind, 0))))


def _call(name: str) -> Callable[..., Tensor]:
    return FUNCTIONS[name]


for _kind, _name in _UNARY.items():
    _named(_kind, _name, 1)
for _kind, _name in _BINARY.items():
    _named(_kind, _name, 2)


@operator("Binarizer")
def binarize(node: OnnxNode) -> Tensor:
    """One where a value is above the threshold, else zero."""
    x = node.tensor(0)
    return g.cast(g.greater(x, g.full((), node.get("threshold", 0.0), x.dtype)), x.dtype)


@operator("Identity")
def identity(node: OnnxNode) -> Value:
    """The input itself, a sequence too."""
    return node.inputs[0]


@operator("Div")
def divide(node: OnnxNode) -> Tensor:
    """Integers are divided towards zero."""
    x, y = node.tensor(0), fitting(node)
    if x.dtype.kind == "u":
        return g.floor_divide(x, y)
    if x.dtype.kind == "i":
        floored = g.floor_divide(x, y)
        exact = g.equal(g.multiply(floored, y), x)
        negative = g.not_equal(g.less(x, g.full((), 0, x.dtype)), g.less(y, g.full((), 0, y.dtype)))
        one = g.full((), 1, x.dtype)
        return g.where(g.logical_and(negative, g.logical_not(exact)), g.add(floored, one), floored)
    return g.divide(x, y)


@operator("Mod")
def modulo(node: OnnxNode) -> Tensor:
    """The remainder with the divisor's sign, or C's fmod."""
    x, y = node.tensor(0), node.tensor(1)
    return g.fmod(x, y) if node.get("fmod", 0) else g.remainder(x, y)


@operator("Pow")
def power(node: OnnxNode) -> Tensor:
    """In the type of the base."""
    x, y = node.tensor(0), fitting(node)
    given = node.inputs[1]
    if isinstance(given, np.ndarray | np.generic) and given.size == 1:  # a number that plans know: squares are products
        y = g.full(y.shape, given.item(), y.dtype)
    if x.dtype == y.dtype:
        return g.power(x, y)
    wide = np.result_type(x.dtype, y.dtype) if x.dtype.kind in "iu" and y.dtype.kind in "iu" else np.dtype("float64")
    return g.cast(g.power(g.cast(x, wide), g.cast(y, wide)), x.dtype)


@operator("Reciprocal")
def reciprocal(node: OnnxNode) -> Tensor:
    """1 / x."""
    x = node.tensor(0)
    return g.divide(g.full((), 1, x.dtype), x)


def _folding(kind: str, name: str) -> None:
    operator(kind)(lambda node: reduce(_call(name), node.tensors()))


_folding("Sum", "add")
_folding("Max", "maximum")
_folding("Min", "minimum")


@operator("Mean")
def mean(node: OnnxNode) -> Tensor:
    """Of any number of inputs, elementwise."""
    inputs = node.tensors()
    return g.divide(reduce(g.add, inputs), g.full((), len(inputs), inputs[0].dtype))


@operator("BitShift")
def bit_shift(node: OnnxNode) -> Tensor:
    """Logical shifts of unsigned integers."""
    shift = g.left_shift if node.text("direction") == "LEFT" else g.right_shift
    return shift(node.tensor(0), node.tensor(1))


@operator("Where")
def where(node: OnnxNode) -> Tensor:
    """Elements of one of two inputs."""
    return g.where(node.tensor(0), node.tensor(1), node.tensor(2))


@operator("Clip")
def clip(node: OnnxNode) -> Tensor:
    """Between bounds; where the lower one is above, the upper one wins."""
    x = node.tensor(0)
    if node.version < 11:
        low, high = node.get("min"), node.get("max")
        bounds = [None if b is None else g.full((), b, x.dtype) for b in (low, high)]
    else:
        bounds = [node.optional(1), node.optional(2)]
    x = x if bounds[0] is None else g.maximum(x, bounds[0])
    return x if bounds[1] is None else g.minimum(x, bounds[1])


@operator("IsInf")
def is_infinite(node: OnnxNode) -> Tensor:
    """Infinite, of one sign or both."""
    x = node.tensor(0)
    zero = g.full((), 0, x.dtype)
    found = g.isinf(x)
    if not node.get("detect_negative", 1):
        found = g.logical_and(found, g.greater(x, zero))
    if not node.get("detect_positive", 1):
        found = g.logical_and(found, g.less(x, zero))
    return found


@operator("Cast")
def cast(node: OnnxNode) -> Tensor:
    """To another element type."""
    to = node.get("to")
    if isinstance(to, bytes):  # by name, in the first versions
        import onnx

        to = onnx.TensorProto.DataType.Value(to.decode())
    return converted(node, node.tensor(0), element_type(node, to))


@operator("CastLike")
def cast_like(node: OnnxNode) -> Any:
    """To the element type of another tensor."""
    return folded(converted(node, node.tensor(0), node.tensor(1).dtype), isinstance(node.inputs[0], np.ndarray))


@operator("BitCast")
def bit_cast(node: OnnxNode) -> Any:
    """The same bytes as another type; of values that are known."""
    return node.known(0, "a bit cast").view(element_type(node, node.get("to")))


def converted(node: OnnxNode, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """A cast, unless the type is the same; to floats of 8 bits, what is too large becomes their largest number."""
    if x.dtype == dtype:
        return x
    if dtype.itemsize > 1 or not is_floating(dtype):
        return as_numbers(x, dtype) if is_floating(dtype) else g.cast(x, dtype)
    if dtype.name == "float8_e8m0fnu":
        return powers(node, x, dtype)
    return saturated(x, dtype) if node.get("saturate", 1) else g.cast(x, dtype)


def powers(node: OnnxNode, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Powers of two, rounded up, down or to the nearest one, kept within the type."""
    x = g.cast(x, np.float64)
    near = g.exp2(g.round(g.log2(x)))
    mode = node.text("round_mode", "up")
    if mode == "up":
        near = g.where(g.less(near, x), near * 2.0, near)
    elif mode == "down":
        near = g.where(g.greater(near, x), near / 2.0, near)
    else:
        near = x
    return saturated(near, dtype) if node.get("saturate", 1) else g.cast(near, dtype)


def saturated(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Floats in another type, kept between its least and greatest finite number; what is no number stays none, or is 0
    as an integer."""
    if dtype.kind in "iu":
        return g.saturate(x, dtype)
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)
    low, high = g.full((), float(info.min), x.dtype), g.full((), float(info.max), x.dtype)
    return g.cast(g.minimum(g.maximum(x, low), high), dtype)


def element_type(node: OnnxNode, number: int) -> np.dtype[Any]:
    """The element type that ONNX numbers so."""
    import onnx

    kind = onnx.TensorProto.DataType.Name(number)
    if kind == "STRING" or kind.startswith("COMPLEX"):
        raise node.refuse(f"elements of type {kind.lower()}", legal="bool, integers, floats")
    found: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    return found


@operator("Softplus")
def softplus_of(node: OnnxNode) -> Tensor:
    """log(1 + exp x)."""
    return g.softplus(node.tensor(0))


@operator("PRelu")
def prelu(node: OnnxNode) -> Tensor:
    """x, or slope times x below zero."""
    return g.leaky_relu(node.tensor(0), node.tensor(1))


@operator("LeakyRelu")
def leaky_relu(node: OnnxNode) -> Tensor:
    """x, or alpha x below zero."""
    return g.leaky_relu(node.tensor(0), node.get("alpha", 0.01))


@operator("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Tensor:
    """alpha x + beta between 0 and 1."""
    return g.hard_sigmoid(node.tensor(0), node.get("alpha", 0.2), node.get("beta", 0.5))


@operator("Gelu")
def gelu(node: OnnxNode) -> Tensor:
    """Exact, or by tanh."""
    return g.gelu(node.tensor(0), "tanh" if node.text("approximate", "none") == "tanh" else "none")


@operator("Constant")
def constant(node: OnnxNode) -> Any:
    """A value."""
    kinds = {"value": None, "sparse_value": None, "value_float": "f4", "value_floats": "f4", "value_int": "i8"}
    for name, dtype in (kinds | {"value_ints": "i8"}).items():
        if name in node.attributes:
            return np.asarray(node.attributes[name], dtype)
    raise node.refuse("a constant of strings", legal="numbers")


@operator("ConstantOfShape")
def constant_of_shape(node: OnnxNode) -> Tensor:
    """One value everywhere."""
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(-1)
    return g.full(tuple(node.integers(0) or ()), value[0].item(), value.dtype)


@operator("Range")
def numbers(node: OnnxNode) -> Any:
    """start, start + delta, .. below limit."""
    start, limit, delta = (node.known(k).item() for k in range(3))
    count = max(int(np.ceil((limit - start) / delta)), 0)
    return (start + np.arange(count) * delta).astype(node.known(0).dtype)


@operator("EyeLike")
def eye_like(node: OnnxNode) -> Any:
    """Ones on a diagonal, in the shape of another tensor."""
    like: Any = node.inputs[0]
    dtype = element_type(node, node.get("dtype")) if "dtype" in node.attributes else like.dtype
    rows, columns = like.shape
    return np.eye(rows, columns, k=node.get("k", 0), dtype=dtype)


@operator("Einsum")
def einsum(node: OnnxNode) -> Tensor:
    """Sums of products by letters."""
    return g.einsum(node.text("equation").replace(" ", ""), *node.tensors())


@operator("MatMul")
def matmul(node: OnnxNode) -> Tensor:
    """NumPy's product of matrices; ones that pick rows of known finite weights are read as those rows."""
    x, w = node.tensor(0), node.inputs[1]
    if isinstance(w, np.ndarray) and w.ndim == 2 and w.dtype == x.dtype and w.dtype.kind == "f":
        index = _picking(x)
        if index is not None and np.isfinite(w).all():  # zero times infinity would count
            near = g.maximum(g.minimum(index, w.shape[0] - 1), 0)
            rows = g.take(node.tensor(1), near, 0)
            return g.where(g.unsqueeze(g.equal(near, index), -1), rows, g.full((), 0, w.dtype))
    return g.matmul(x, node.tensor(1))


def _picking(x: Tensor) -> Tensor | None:
    """The places of the ones where a tensor is 1 at one place of each row, or at none, and 0 elsewhere."""
    made, one = x.producer, None
    if isinstance(made, Operation) and made.operator == "cast":
        one = made.input("x").producer
    elif isinstance(made, Operation) and made.operator == "where":
        ones, zeros = (_number_of(made.input(name)) for name in ("x1", "x2"))
        one = made.input("x0").producer if (ones, zeros) == (1, 0) else None
    if not isinstance(one, Operation) or one.operator != "equal":
        return None
    for name, other in (("x0", "x1"), ("x1", "x0")):
        index, line = one.input(name), one.input(other).producer
        if not isinstance(line, Source) or not isinstance(line.data, ArrayData):
            continue
        held = line.data.array
        counted = held.shape[-1:] == (held.size,) == x.shape[-1:] and np.array_equal(held.ravel(), np.arange(held.size))
        if counted and index.shape[-1:] == (1,) and index.dtype.kind in "iu":
            return g.broadcast_to(g.squeeze(index, -1), x.shape[:-1])
    return None


def _number_of(x: Tensor) -> Any:
    """The number that a constant tensor of one element holds, or None."""
    made = x.producer
    while isinstance(made, Selector) and len(made.inputs) == 1:
        x = made.inputs[0][1]
        made = x.producer
    if isinstance(made, Source) and isinstance(made.data, ArrayData) and made.data.array.size == 1:
        return made.data.array.reshape(-1)[0]
    return None


@operator("Gemm")
def gemm(node: OnnxNode) -> Tensor:
    """alpha A' B' + beta C."""
    a, b, c = node.tensor(0), node.tensor(1), node.optional(2)
    a = g.transpose(a) if node.get("transA", 0) else a
    b = g.transpose(b) if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if alpha == 1 and beta == 1 and c is not None and c.shape == (b.shape[1],):
        return g.linear(a, b, c)
    out = g.matmul(a, b)
    out = out if alpha == 1 else g.multiply(out, g.full((), alpha, out.dtype))
    if c is None:
        return out
    return g.add(out, c if beta == 1 else g.multiply(c, g.full((), beta, c.dtype)))


@operator("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
def random(node: OnnxNode) -> Tensor:
    """Refused: the specification leaves the numbers open, so no two systems agree."""
    raise node.refuse("the values of random operators are not specified", legal="random tensors as inputs")


def _training(node: OnnxNode, kinds: int) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """The rate, the count of updates in the rate's type, and per optimised tensor its inputs of all kinds."""
    rate = g.reshape(node.tensor(0), ())
    count = g.cast(g.reshape(node.tensor(1), ()), rate.dtype)
    rest = node.tensors(2)
    if not rest or len(rest) % kinds:
        raise node.refuse(f"{len(rest)} tensors after the count", legal=f"{kinds} for each optimised tensor")
    each = len(rest) // kinds
    return rate, count, [[rest[kind * each + k] for kind in range(kinds)] for k in range(each)]


def _by_kind(made: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """New values of all tensors, then their first state, then the second."""
    return tuple(tensor for kind in zip(*made, strict=True) for tensor in kind)


@operator("Adagrad")
def adagrad(node: OnnxNode) -> tuple[Tensor, ...]:
    """Steps divided by the root of the sum of all squared gradients."""
    rate, count, tensors = _training(node, 3)
    decay, norm, epsilon = node.get("decay_factor", 0.0), node.get("norm_coefficient", 0.0), node.get("epsilon", 1e-6)
    rate = rate / (1 + count * decay)
    made = []
    for x, gradient, squares in tensors:
        gradient = gradient + norm * x
        squares = squares + gradient * gradient
        made.append((x - rate * gradient / (g.sqrt(squares) + epsilon), squares))
    return _by_kind(made)


@operator("Adam")
def adam(node: OnnxNode) -> tuple[Tensor, ...]:
    """Steps by running means of gradients and of their squares."""
    rate, count, tensors = _training(node, 4)
    alpha, beta = node.get("alpha", 0.9), node.get("beta", 0.999)
    norm, after, epsilon = (
        node.get("norm_coefficient", 0.0),
        node.get("norm_coefficient_post", 0.0),
        node.get("epsilon", 1e-6),
    )
    # Without an update behind it the correction is 0 / 0, so it is made of a count of one and not used.
    steps = g.maximum(count, g.full((), 1, count.dtype))
    corrected = rate * g.sqrt(1 - g.exp(steps * float(np.log(beta)))) / (1 - g.exp(steps * float(np.log(alpha))))
    rate = g.where(g.greater(count, g.full((), 0, count.dtype)), corrected, rate)
    made = []
    for x, gradient, mean, squares in tensors:
        gradient = gradient + norm * x
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        made.append(((1 - after) * (x - rate * mean / (g.sqrt(squares) + epsilon)), mean, squares))
    return _by_kind(made)


@operator("Momentum")
def momentum(node: OnnxNode) -> tuple[Tensor, ...]:
    """Steps along a decaying sum of gradients, or with Nesterov's look ahead."""
    rate, count, tensors = _training(node, 3)
    alpha, norm = node.get("alpha"), node.get("norm_coefficient")
    zero, one = (g.full((), k, count.dtype) for k in (0, 1))
    beta = g.where(g.greater(count, zero), g.full((), node.get("beta"), count.dtype), one)
    made = []
    for x, gradient, velocity in tensors:
        gradient = gradient + norm * x
        velocity = alpha * velocity + beta * gradient
        ahead = gradient + alpha * velocity if node.text("mode") == "nesterov" else velocity
        made.append((x - rate * ahead, velocity))
    return _by_kind(made)
