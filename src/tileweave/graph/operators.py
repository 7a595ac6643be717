"""The operators of tensor expressions: shapes, types, signatures and their meaning in NumPy.

Every function here takes tensors (or arrays and numbers, which become sources and constants), checks them,
and returns a tensor. Every operation carries a signature, so any of them can be cut along any dimension of its
index. `OPERATORS` holds what each operator computes on one block; that is its definition.

Element types follow NumPy 2 promotion: a Python number adapts to the tensor beside it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.nodes import ArrayData, Operation, Signature, Source, Tensor, TensorType, Value
from tileweave.graph.select import (
    full,
    squeeze,
    unsqueeze,
)
from tileweave.space import Box, Projection

__all__ = [
    "ELEMENTWISE",
    "OPERATORS",
    "Operator",
    "as_tensor",
    "cast",
    "einsum",
    "exp",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "min",
    "product",
    "relu",
    "softmax",
    "sum",
    "where",
]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Block = Callable[[Operation, Arrays], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator computes on one block of its index.

    Args:
        name: unique.
        block: (operation, input blocks) -> output blocks. On a block that holds only part of a reduction dimension the
            result is a partial value, to be combined by the signature's monoid.
        finish: names of inputs that a partial block does not use; `finished` applies them after the combination.
        finished: (operation, combined block, finish inputs) -> output block.
    """

    name: str
    block: Block
    finish: tuple[str, ...] = ()
    finished: Callable[[Operation, Array, Arrays], Array] | None = None


OPERATORS: dict[str, Operator] = {}
"""Operator name -> operator. Third parties call `register`."""


def register(operator: Operator) -> Operator:
    """Adds an operator; a name that is taken is refused."""
    if operator.name in OPERATORS:
        raise GraphError("register(operator)", f"the name {operator.name!r} is taken", legal="a new name")
    OPERATORS[operator.name] = operator
    return operator


def operator_of(operation: Operation) -> Operator:
    """The operator of an operation; the error lists the names there are."""
    try:
        return OPERATORS[operation.operator]
    except KeyError:
        raise GraphError(
            "operator_of(operation)", f"{operation.operator!r} is not an operator", legal=", ".join(sorted(OPERATORS))
        ) from None


# ---------------------------------------------------------------------------------------------------------------------
# operands

_SUPPORTED = "biuf"


def as_tensor(value: Any, where: str = "as_tensor(value)") -> Tensor:
    """A tensor from a tensor, or from anything that NumPy reads as an array of numbers (as a source in memory)."""
    if isinstance(value, Tensor):
        return value
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise GraphError(
            where, f"NumPy reads no array in it: {error}", legal="an array, a number, nested lists"
        ) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind not in _SUPPORTED and array.dtype.name != "bfloat16":
        raise DtypeError(where, f"element type {array.dtype} is not supported", legal="bool, integers, floats")
    return Tensor(Source(ArrayData(array), TensorType(array.shape, array.dtype)))


def _operands(where: str, values: Sequence[Any], ufunc: np.ufunc) -> tuple[list[Tensor], np.dtype[Any]]:
    """The operands as tensors of the types that the loop takes, and the type of its result."""
    kinds: list[Any] = []
    for value in values:
        if type(value) in (bool, int, float):
            kinds.append(np.dtype(bool) if isinstance(value, bool) else type(value))
        else:
            kinds.append(as_tensor(value, where).dtype)
    if builtins.all(isinstance(kind, type) for kind in kinds):
        kinds = [np.asarray(value).dtype for value in values]
    try:
        *loop, out = ufunc.resolve_dtypes((*kinds, None))
    except TypeError:
        types = {
            f"operand {k}": v if type(v) in (bool, int, float) else as_tensor(v).type for k, v in enumerate(values)
        }
        raise DtypeError(
            where, "no loop takes these element types", inputs=types, legal="types that NumPy's ufunc takes"
        ) from None
    tensors = []
    for value, dtype in zip(values, loop, strict=True):
        if type(value) in (bool, int, float):
            tensors.append(_constant(where, value, dtype))
        else:
            tensors.append(cast(as_tensor(value, where), dtype))
    return tensors, out


def _constant(where: str, value: bool | int | float, dtype: np.dtype[Any]) -> Tensor:
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise DtypeError(where, f"{value} does not fit {dtype.name}", legal=f"a number that {dtype.name} holds")
    return full((), value, dtype)


# ---------------------------------------------------------------------------------------------------------------------
# elementwise

UNARY: dict[str, np.ufunc] = {
    "negative": np.negative,
    "absolute": np.absolute,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
BINARY: dict[str, np.ufunc] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


def elementwise(name: str, inputs: Sequence[Tensor], dtype: np.dtype[Any], *parameters: tuple[str, Value]) -> Tensor:
    """An elementwise operation on inputs that broadcast; the operator must be registered."""
    where = f"{name}({', '.join('xyz'[: len(inputs)])})"
    try:
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
    except ValueError:
        raise GraphError(
            where,
            f"shapes {' and '.join(str(x.shape) for x in inputs)} do not broadcast",
            inputs={letter: x.type for letter, x in zip("xyz", inputs, strict=False)},
            legal="extents equal from the right, or 1",
        ) from None
    rank = len(shape)
    reads = []
    for x in inputs:
        extra = rank - len(x.shape)
        reads.append(tuple(None if n == 1 and shape[extra + k] != 1 else extra + k for k, n in enumerate(x.shape)))
    signature = _elementwise_signature(rank, tuple(reads))
    named = tuple((own, x) for (own, _), x in zip(signature.inputs, inputs, strict=True))
    return Tensor(Operation(name, Box.of(shape), named, (("out", TensorType(shape, dtype)),), parameters, signature))


@lru_cache(maxsize=1024)
def _elementwise_signature(rank: int, reads: tuple[tuple[int | None, ...], ...]) -> Signature:
    """The signature of an elementwise operator; `reads` holds, per input, the index dimension of each of its own."""
    names = [f"x{k}" for k in range(len(reads))] if len(reads) > 1 else ["x"]
    return Signature(
        tuple(f"d{k}" for k in range(rank)),
        tuple((name, Projection.select(dims, rank)) for name, dims in zip(names, reads, strict=True)),
        (("out", Projection.select(range(rank), rank)),),
        costs=(("flops", 1.0),),
    )


def _ufunc_block(ufunc: np.ufunc) -> Block:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return {"out": np.asarray(ufunc(*inputs.values()))}

    return block


def _unary(name: str, ufunc: np.ufunc) -> Callable[[Any], Tensor]:
    def function(x: Any) -> Tensor:
        (tensor,), dtype = _operands(f"{name}(x)", [x], ufunc)
        return elementwise(name, [tensor], dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise `numpy.{ufunc.__name__}`."
    return function


def _binary(name: str, ufunc: np.ufunc) -> Callable[[Any, Any], Tensor]:
    def function(x: Any, y: Any) -> Tensor:
        tensors, dtype = _operands(f"{name}(x, y)", [x, y], ufunc)
        if name == "power" and dtype.kind in "iu" and type(y) is int and y < 0:
            raise DtypeError(
                "power(x, y)",
                f"an integer to the power {y} is not an integer",
                inputs={"x": tensors[0].type},
                legal="a floating base, or an exponent of zero or more",
            )
        return elementwise(name, tensors, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise `numpy.{ufunc.__name__}` with broadcasting."
    return function


for _name, _ufunc in (UNARY | BINARY).items():
    register(Operator(_name, _ufunc_block(_ufunc)))

negative, absolute, sign, exp, log, sqrt, tanh = (_unary(name, ufunc) for name, ufunc in UNARY.items())
add, subtract, multiply, divide = (_binary(n, BINARY[n]) for n in ("add", "subtract", "multiply", "divide"))
floor_divide, remainder, power = (_binary(n, BINARY[n]) for n in ("floor_divide", "remainder", "power"))
maximum, minimum = (_binary(n, BINARY[n]) for n in ("maximum", "minimum"))
less, less_equal = (_binary(n, BINARY[n]) for n in ("less", "less_equal"))
greater, greater_equal = (_binary(n, BINARY[n]) for n in ("greater", "greater_equal"))
equal, not_equal = (_binary(n, BINARY[n]) for n in ("equal", "not_equal"))


def relu(x: Any) -> Tensor:
    """Elementwise ``max(x, 0)`` in the type of x; NaN stays NaN."""
    x = as_tensor(x, "relu(x)")
    if x.dtype.kind == "b":
        raise DtypeError("relu(x)", "bool has no relu", inputs={"x": x.type}, legal="integers, floats")
    return elementwise("relu", [x], x.dtype)


register(Operator("relu", lambda operation, inputs: {"out": np.maximum(inputs["x"], inputs["x"].dtype.type(0))}))


def sigmoid(x: Any) -> Tensor:
    """Elementwise ``1 / (1 + exp(-x))``, without overflow for large negative x."""
    (tensor,), dtype = _operands("sigmoid(x)", [x], np.exp)
    return elementwise("sigmoid", [tensor], dtype)


def _sigmoid_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x = inputs["x"]
    with np.errstate(all="ignore"):
        small = np.exp(-np.absolute(x))
        return {"out": np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype, copy=False))}


register(Operator("sigmoid", _sigmoid_block))


def cast(x: Any, dtype: Any) -> Tensor:
    """The same values in another element type, converted as `numpy.ndarray.astype` converts them."""
    x = as_tensor(x, "cast(x, dtype)")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise DtypeError("cast(x, dtype)", f"{dtype!r} is not an element type", inputs={"x": x.type}) from None
    if kind.kind not in _SUPPORTED and kind.name != "bfloat16":
        raise DtypeError("cast(x, dtype)", f"element type {kind} is not supported", legal="bool, integers, floats")
    return x if kind == x.dtype else elementwise("cast", [x], kind, ("dtype", kind.name))


def _cast_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return {"out": inputs["x"].astype(operation.output_types["out"].dtype)}


register(Operator("cast", _cast_block))


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """Elementwise ``x if condition else y`` with broadcasting."""
    condition = cast(as_tensor(condition, "where(condition, x, y)"), bool)
    (x, y), dtype = _operands("where(condition, x, y)", [x, y], np.maximum)
    return elementwise("where", [condition, x, y], dtype)


register(Operator("where", lambda operation, inputs: {"out": np.where(*inputs.values())}))

ELEMENTWISE: frozenset[str] = frozenset((*UNARY, *BINARY, "relu", "sigmoid", "cast", "where"))
"""Operators whose index is the shape of their output and that have no reduction."""


# ---------------------------------------------------------------------------------------------------------------------
# reductions


def _axes(where: str, x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    rank = len(x.shape)
    values = range(rank) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    for value in values:
        if not isinstance(value, (int, np.integer)) or not -rank <= value < rank:
            raise GraphError(
                where, f"axis {value!r} does not exist", inputs={"x": x.type}, legal=f"{-rank}..{rank - 1}"
            )
    dims = tuple(int(value) % rank for value in values)
    if len(set(dims)) != len(dims):
        raise GraphError(where, f"axis {axis} repeats", inputs={"x": x.type}, legal="each axis once")
    return tuple(sorted(dims))


_REDUCTIONS: dict[str, tuple[np.ufunc, str]] = {
    "sum": (np.add, "sum"),
    "product": (np.multiply, "product"),
    "max": (np.maximum, "max"),
    "min": (np.minimum, "min"),
}


def _reduce(name: str, x: Any, axis: int | Sequence[int] | None, keepdims: bool, dtype: Any = None) -> Tensor:
    where = f"{name}(x, axis)"
    x = as_tensor(x, where)
    ufunc, monoid = _REDUCTIONS[name]
    dims = _axes(where, x, axis)
    rank = len(x.shape)
    kept = [k for k in range(rank) if k not in dims]
    if name in ("max", "min") and builtins.any(x.shape[k] == 0 for k in dims):
        raise GraphError(where, f"the {name} over no element does not exist", inputs={"x": x.type, "axis": dims})
    dtype = np.dtype(dtype) if dtype is not None else ufunc.reduce(np.ones(1, x.dtype)).dtype
    if not dims:
        return cast(x, dtype)
    signature = Signature(
        tuple(f"d{k}" for k in range(rank)),
        (("x", Projection.select(range(rank), rank)),),
        (("out", Projection.select(kept, rank)),),
        tuple((k, monoid) for k in dims),
        (("flops", 1.0),),
    )
    out = TensorType(tuple(x.shape[k] for k in kept), dtype)
    operation = Operation(name, Box.of(x.shape), (("x", x),), (("out", out),), (("axes", dims),), signature)
    result = Tensor(operation)
    return unsqueeze(result, dims) if keepdims else result


def _reduce_block(ufunc: np.ufunc) -> Block:
    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        dtype = operation.output_types["out"].dtype
        with np.errstate(all="ignore"):
            return {"out": np.asarray(ufunc.reduce(inputs["x"], axis=operation.parameter("axes"), dtype=dtype))}

    return block


for _name, (_ufunc, _) in _REDUCTIONS.items():
    register(Operator(_name, _reduce_block(_ufunc)))


def sum(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The sum over some or all dimensions, in the type that `numpy.sum` gives, or in `dtype`."""
    return _reduce("sum", x, axis, keepdims, dtype)


def product(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False, dtype: Any = None) -> Tensor:
    """The product over some or all dimensions, in the type that `numpy.prod` gives, or in `dtype`."""
    return _reduce("product", x, axis, keepdims, dtype)


def max(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The greatest value over some or all dimensions; NaN wins, as in `numpy.max`."""
    return _reduce("max", x, axis, keepdims)


def min(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The least value over some or all dimensions; NaN wins, as in `numpy.min`."""
    return _reduce("min", x, axis, keepdims)


def mean(x: Any, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The mean over some or all dimensions: their sum divided by their number."""
    x = as_tensor(x, "mean(x, axis)")
    dims = _axes("mean(x, axis)", x, axis)
    count = prod(x.shape[k] for k in dims)
    wide = np.dtype(np.float64) if x.dtype.kind in "biu" else np.result_type(x.dtype, np.float32)
    out = divide(sum(cast(x, wide), dims, keepdims=keepdims), float(count))
    return out if x.dtype.kind in "biu" else cast(out, x.dtype)


def softmax(x: Any, axis: int = -1) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along one dimension."""
    x = as_tensor(x, "softmax(x, axis)")
    weights = exp(subtract(x, max(x, axis, keepdims=True)))
    return divide(weights, sum(weights, axis, keepdims=True))


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """``log(softmax(x))`` along one dimension, without losing small probabilities."""
    x = as_tensor(x, "log_softmax(x, axis)")
    shifted = subtract(x, max(x, axis, keepdims=True))
    return subtract(shifted, log(sum(exp(shifted), axis, keepdims=True)))


# ---------------------------------------------------------------------------------------------------------------------
# contractions


def _contract(name: str, inputs: Sequence[Tensor], labels: Sequence[Sequence[int]], out: Sequence[int]) -> Tensor:
    """``out[out labels] = sum over the other labels of the product of the inputs``; labels index the work."""
    dtype = np.result_type(*(x.dtype for x in inputs))
    inputs = [cast(x, dtype) for x in inputs]
    extents: dict[int, int] = {}
    for x, own in zip(inputs, labels, strict=True):
        extents.update(zip(own, x.shape, strict=True))
    order = [*out, *sorted(set(extents) - set(out))]
    place = {label: k for k, label in enumerate(order)}
    rank = len(order)
    names = [f"x{k}" for k in range(len(inputs))]
    ops_per_point = 2.0 if len(inputs) > 1 else 1.0
    signature = Signature(
        tuple(_letter(label) for label in order),
        tuple(
            (n, Projection.select([place[label] for label in own], rank)) for n, own in zip(names, labels, strict=True)
        ),
        (("out", Projection.select(range(len(out)), rank)),),
        tuple((k, "sum") for k in range(len(out), rank)),
        (("flops", ops_per_point),),
    )
    equation = ",".join("".join(_letter(place[q]) for q in own) for own in labels)
    equation += "->" + "".join(_letter(place[q]) for q in out)
    operation = Operation(
        name,
        Box.of([extents[label] for label in order]),
        tuple(zip(names, inputs, strict=True)),
        (("out", TensorType(tuple(extents[label] for label in out), dtype)),),
        (("equation", equation),),
        signature,
    )
    return Tensor(operation)


_LETTERS = "ijklmnopqrstuvwxyzabcdefghIJKLMNOPQRSTUVWXYZABCDEFGH"


def _letter(k: int) -> str:
    return _LETTERS[k]


def _contract_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    dtype = operation.output_types["out"].dtype
    out = np.einsum(operation.parameter("equation"), *inputs.values(), dtype=dtype, optimize=len(inputs) > 1)
    return {"out": np.asarray(out, dtype)}


register(Operator("einsum", _contract_block))
register(Operator("matmul", _contract_block))


def einsum(equation: str, *operands: Any) -> Tensor:
    """Einstein summation of any number of operands, as `numpy.einsum`; more than two go pairwise by opt_einsum's path.

    Example:
        >>> einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
    """
    import opt_einsum

    where = f"einsum({equation!r}, ..)"
    tensors = [as_tensor(x, where) for x in operands]
    shapes = {f"operand {k}": x.type for k, x in enumerate(tensors)}
    try:
        left, right, _ = opt_einsum.parser.parse_einsum_input((equation, *(x.shape for x in tensors)), shapes=True)
    except Exception as error:
        raise GraphError(where, f"the equation does not fit: {error}", inputs=shapes, legal="'ij,jk->ik'") from None
    labels = [[ord(c) for c in term] for term in left.split(",")]
    out = [ord(c) for c in right]
    batch = {ord(c) for c in left + right} - {ord(c) for c in equation}  # what the parser wrote for "..."
    tensors, labels = _einsum_batch(tensors, labels, batch)
    _check_einsum(where, tensors, labels, out, shapes)
    symbols = {label: k for k, label in enumerate(dict.fromkeys([*out, *(q for own in labels for q in own)]))}
    labels = [[symbols[q] for q in own] for own in labels]
    out = [symbols[q] for q in out]
    if len(tensors) <= 2:
        return _contract("einsum", tensors, labels, out)
    dtype = np.result_type(*(x.dtype for x in tensors))
    tensors = [cast(x, dtype) for x in tensors]
    terms = ["".join(opt_einsum.get_symbol(q) for q in own) for own in (*labels, out)]
    equation = ",".join(terms[:-1]) + "->" + terms[-1]
    path, _ = opt_einsum.contract_path(equation, *(x.shape for x in tensors), shapes=True)
    for step in path:
        picked = [(tensors.pop(k), labels.pop(k)) for k in sorted(step, reverse=True)]
        picked.reverse()
        used = {q for _, own in picked for q in own}
        later = set(out).union(*labels) if labels else set(out)
        kept = out if not labels else sorted(used & later)
        tensors.append(_contract("einsum", [t for t, _ in picked], [own for _, own in picked], kept))
        labels.append(list(kept))
    return tensors[0]


def _einsum_batch(
    tensors: Sequence[Tensor], labels: Sequence[list[int]], batch: set[int]
) -> tuple[list[Tensor], list[list[int]]]:
    """Operands without the ``...`` dimensions of extent 1 that another operand has longer: they broadcast."""
    extents: dict[int, int] = {}
    for x, own in zip(tensors, labels, strict=True):
        for label, extent in zip(own, x.shape, strict=False):
            extents[label] = extent if extents.get(label, 1) == 1 else extents[label]
    out: list[tuple[Tensor, list[int]]] = []
    for x, own in zip(tensors, labels, strict=True):
        single = [k for k, q in enumerate(own) if q in batch and x.shape[k] == 1 and extents[q] != 1]
        kept = [q for k, q in enumerate(own) if k not in single]
        out.append((squeeze(x, single) if single else x, kept))
    return [x for x, _ in out], [own for _, own in out]


def _check_einsum(
    where: str, tensors: Sequence[Tensor], labels: Sequence[list[int]], out: list[int], shapes: Mapping[str, object]
) -> None:
    extents: dict[int, int] = {}
    for k, (x, own) in enumerate(zip(tensors, labels, strict=True)):
        if len(own) != len(x.shape):
            raise GraphError(
                where,
                f"operand {k} has rank {len(x.shape)}, its term names {len(own)}",
                inputs=shapes,
                legal="equal ranks",
            )
        for label, extent in zip(own, x.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise GraphError(
                    where,
                    f"index {chr(label)!r} has extent {extents[label]} and {extent}",
                    inputs=shapes,
                    legal="one extent per index (extent 1 is not broadcast)",
                )
    if len(set(out)) != len(out):
        raise GraphError(where, "the output names an index twice", inputs=shapes, legal="each output index once")
    for label in out:
        if label not in extents:
            raise GraphError(where, f"output index {chr(label)!r} is in no operand", inputs=shapes)
    if len(extents) > len(_LETTERS):
        raise GraphError(where, f"{len(extents)} different indices", inputs=shapes, legal=f"{len(_LETTERS)} at most")
    if builtins.any(x.dtype.kind == "b" for x in tensors) and builtins.all(x.dtype.kind == "b" for x in tensors):
        raise DtypeError(where, "bool has no sum of products", inputs=shapes, legal="cast to an integer type first")


def matmul(x: Any, y: Any) -> Tensor:
    """Matrix product with NumPy's rules for vectors and for broadcast batch dimensions."""
    where = "matmul(x, y)"
    x, y = as_tensor(x, where), as_tensor(y, where)
    types = {"x": x.type, "y": y.type}
    if not x.shape or not y.shape:
        raise GraphError(where, "a scalar has no matrix product", inputs=types, legal="rank 1 or more")
    inner = (x.shape[-1], y.shape[-2] if len(y.shape) > 1 else y.shape[0])
    if inner[0] != inner[1]:
        raise GraphError(
            where, f"inner extents {inner[0]} and {inner[1]} differ", inputs=types, legal="x [.., m, k] @ y [.., k, n]"
        )
    if x.dtype.kind == "b" and y.dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    batch_x, batch_y = x.shape[:-2], y.shape[:-2]
    try:
        batch = np.broadcast_shapes(batch_x, batch_y)
    except ValueError:
        raise GraphError(where, f"batch shapes {batch_x} and {batch_y} do not broadcast", inputs=types) from None
    rank = len(batch)
    m, k, n = rank, rank + 1, rank + 2

    def batch_labels(t: Tensor, own: tuple[int, ...]) -> tuple[Tensor, list[int]]:
        places = list(range(rank - len(own), rank))
        single = [d for d, p in enumerate(places) if own[d] == 1 and batch[p] != 1]
        return squeeze(t, single) if single else t, [p for d, p in enumerate(places) if d not in single]

    x, labels_x = batch_labels(x, batch_x)
    y, labels_y = batch_labels(y, batch_y)
    labels_x += [m, k] if len(x.shape) > len(labels_x) + 1 else [k]
    labels_y += [k, n] if len(y.shape) > len(labels_y) + 1 else [k]
    out = [*range(rank), *([m] if m in labels_x else []), *([n] if n in labels_y else [])]
    return _contract("matmul", [x, y], [labels_x, labels_y], out)


def linear(x: Any, w: Any, b: Any = None) -> Tensor:
    """``x @ w + b`` as one operation over (batch.., out, in); without b it is `matmul`.

    Args:
        x: [.., in].
        w: [in, out].
        b: [out], or None.

    Source: Tapestry, "Sharding Linear, and Matmul, over the in dimension".
    """
    where = "linear(x, w, b)" if b is not None else "linear(x, w)"
    x, w = as_tensor(x, where), as_tensor(w, where)
    b = None if b is None else as_tensor(b, where)
    types = {"x": x.type, "w": w.type} | ({} if b is None else {"b": b.type})
    legal = "x [.., in], w [in, out], b [out]"
    if len(w.shape) != 2 or len(x.shape) < 1:
        raise GraphError(where, f"ranks {len(x.shape)} and {len(w.shape)} do not fit", inputs=types, legal=legal)
    if x.shape[-1] != w.shape[0]:
        raise GraphError(where, f"in is {x.shape[-1]} in x and {w.shape[0]} in w", inputs=types, legal=legal)
    if b is None:
        return matmul(x, w)
    if b.shape != (w.shape[1],):
        raise GraphError(where, f"b has shape {b.shape}, out is {w.shape[1]}", inputs=types, legal=legal)
    dtype = np.result_type(x.dtype, w.dtype, b.dtype)
    if dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    x, w, b = cast(x, dtype), cast(w, dtype), cast(b, dtype)
    batch = len(x.shape) - 1
    rank = batch + 2
    signature = Signature(
        (*(("batch",) if batch == 1 else tuple(f"batch{k}" for k in range(batch))), "out", "in"),
        (
            ("x", Projection.select([*range(batch), batch + 1], rank)),
            ("w", Projection.select([batch + 1, batch], rank)),
            ("b", Projection.select([batch], rank)),
        ),
        (("out", Projection.select(range(batch + 1), rank)),),
        ((batch + 1, "sum"),),
        (("flops", 2.0),),
    )
    out = TensorType((*x.shape[:-1], w.shape[1]), dtype)
    index = Box.of((*x.shape[:-1], w.shape[1], w.shape[0]))
    letters = "".join(_letter(k) for k in range(batch))
    o, i = _letter(batch), _letter(batch + 1)
    equation = f"{letters}{i},{i}{o}->{letters}{o}"
    inputs = (("x", x), ("w", w), ("b", b))
    return Tensor(Operation("linear", index, inputs, (("out", out),), (("equation", equation),), signature))


def linear_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    """What `linear` computes on a block; without b it is the partial product."""
    product = _contract_block(operation, {"x": inputs["x"], "w": inputs["w"]})["out"]
    return {"out": product + inputs["b"]} if "b" in inputs else {"out": product}


register(Operator("linear", linear_block, ("b",), lambda operation, combined, inputs: combined + inputs["b"]))
