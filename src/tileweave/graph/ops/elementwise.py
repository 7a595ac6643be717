"""Elementwise operators, and what every operator is made of: the registry, operands, element types.

Every function here takes tensors (or arrays and numbers, which become sources and constants), checks them,
and returns a tensor. Every operation carries a signature, so any of them can be cut along any dimension of its
index. `OPERATORS` holds what each operator computes on one block; that is its definition.

Element types follow NumPy 2 promotion: a Python number adapts to the tensor beside it, bfloat16 included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, stored
from tileweave.graph.ir.nodes import ArrayData, Operation, Signature, Source, Tensor, TensorType, Value
from tileweave.graph.ir.select import full
from tileweave.space import Box, Projection

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Block = Callable[[Operation, Arrays], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator computes on one block of its index.

    Args:
        name: unique.
        block: (operation, input blocks) -> output blocks. On a block that holds only part of a reduction dimension the
            result is a partial value, to be combined by the signature's monoid. It is called with NumPy's warnings
            of floating point off: NaN and infinity are values.
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


def _only_dlpack(value: Any) -> bool:
    """Whether DLPack is the one protocol by which a value gives its elements."""
    known = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")
    return hasattr(type(value), "__dlpack__") and not any(hasattr(type(value), name) for name in known)


def read_array(where: str, value: Any, name: str = "it") -> Array:
    """What NumPy reads as an array, of its base class, sharing the memory of one that is given."""
    if isinstance(value, np.ma.MaskedArray):
        raise GraphError(where, f"{name} is a masked array, whose mask would be lost", legal="its filled(value)")
    try:
        return np.from_dlpack(value) if _only_dlpack(value) else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        problem = f"NumPy reads no array in {name}: {error}"
        raise GraphError(where, problem, legal="an array, a number, nested lists") from None


def as_tensor(value: Any, where: str = "as_tensor(value)") -> Tensor:
    """A tensor from a tensor, or from anything that NumPy reads as an array of numbers (as a source in memory)."""
    if isinstance(value, Tensor):
        return value
    array = read_array(where, value)
    kind = element_type(where, array.dtype)
    array = array if kind == array.dtype else array.astype(kind)
    return Tensor(Source(ArrayData(array), TensorType(array.shape, array.dtype)))


def common_type(*tensors: Tensor) -> np.dtype[Any]:
    """The element type that several tensors promote to."""
    types = [x.dtype for x in tensors]
    try:
        return np.result_type(*types)
    except TypeError:  # bfloat16 beside a wide integer: as their sum
        return reduce(lambda a, b: np.add.resolve_dtypes((a, b, None))[-1], types)


def operands(where: str, values: Sequence[Any], ufunc: np.ufunc) -> tuple[list[Tensor], np.dtype[Any]]:
    """The operands as tensors of the types that the loop takes, and the type of its result."""
    kinds: list[Any] = []
    for value in values:
        if type(value) in (bool, int, float):
            kinds.append(np.dtype(bool) if isinstance(value, bool) else type(value))
        else:
            kinds.append(as_tensor(value, where).dtype)
    if all(isinstance(kind, type) for kind in kinds):
        kinds = [np.asarray(value).dtype for value in values]
    narrow = next((kind for kind in kinds if not isinstance(kind, type) and kind.name == "bfloat16"), None)
    if narrow is not None:  # NumPy does not know that bfloat16 holds floats
        kinds = [narrow if kind is float else kind for kind in kinds]
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
            tensors.append(full((), stored(where, value, dtype), dtype))
        else:
            tensors.append(cast(as_tensor(value, where), dtype))
    return tensors, out


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
COMPARISONS = frozenset(("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"))


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
        return {"out": np.asarray(ufunc(*inputs.values()))}

    return block


def _unary(name: str, ufunc: np.ufunc) -> Callable[[Any], Tensor]:
    def function(x: Any) -> Tensor:
        (tensor,), dtype = operands(f"{name}(x)", [x], ufunc)
        return elementwise(name, [tensor], dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise `numpy.{ufunc.__name__}`."
    return function


def _binary(name: str, ufunc: np.ufunc) -> Callable[[Any, Any], Tensor]:
    def function(x: Any, y: Any) -> Tensor:
        decided = _decided(ufunc, x, y) if name in COMPARISONS else None
        if decided is not None:
            return decided
        tensors, dtype = operands(f"{name}(x, y)", [x, y], ufunc)
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


def _decided(ufunc: np.ufunc, x: Any, y: Any) -> Tensor | None:
    """A comparison with a Python integer beyond the range of the integers beside it: the same for all of them."""
    for number, other, on_the_left in ((x, y, True), (y, x, False)):
        if type(number) is not int or type(other) in (bool, int, float):
            continue
        tensor = as_tensor(other)
        if tensor.dtype.kind in "biu":
            limits = np.iinfo(np.int64 if tensor.dtype.kind == "b" else tensor.dtype)
            side = int(number > limits.max) - int(number < limits.min)
            if side:
                return full(tensor.shape, bool(ufunc(side, 0) if on_the_left else ufunc(0, side)))
    return None


def _power_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    try:
        return {"out": np.asarray(np.power(*inputs.values()))}
    except ValueError:
        problem = "an integer to a negative power is not an integer"
        raise GraphError("power(x, y)", problem, legal="a floating base, or exponents of zero or more") from None


for _name, _ufunc in (UNARY | BINARY).items():
    register(Operator(_name, _power_block if _name == "power" else _ufunc_block(_ufunc)))

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
    (tensor,), dtype = operands("sigmoid(x)", [x], np.exp)
    return elementwise("sigmoid", [tensor], dtype)


def _sigmoid_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x = inputs["x"]
    small = np.exp(-np.absolute(x))
    return {"out": np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype, copy=False))}


register(Operator("sigmoid", _sigmoid_block))


def cast(x: Any, dtype: Any) -> Tensor:
    """The same values in another element type, converted as `numpy.ndarray.astype` converts them."""
    x = as_tensor(x, "cast(x, dtype)")
    kind = element_type("cast(x, dtype)", dtype)
    return x if kind == x.dtype else elementwise("cast", [x], kind, ("dtype", kind.name))


def _cast_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    return {"out": inputs["x"].astype(operation.output_types["out"].dtype)}


register(Operator("cast", _cast_block))


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """Elementwise ``x if condition else y`` with broadcasting.

    Tensors are values, so ``a == b`` asks whether they are the same one; `equal` compares their elements.

    Raises:
        GraphError: the condition is a Python bool.
    """
    if isinstance(condition, bool):
        problem = f"the condition is {condition}, one answer for all elements"
        raise GraphError("where(condition, x, y)", problem, legal="a tensor of bool, such as equal(x, y), less(x, y)")
    condition = cast(as_tensor(condition, "where(condition, x, y)"), bool)
    (x, y), dtype = operands("where(condition, x, y)", [x, y], np.maximum)
    return elementwise("where", [condition, x, y], dtype)


register(Operator("where", lambda operation, inputs: {"out": np.where(*inputs.values())}))

ELEMENTWISE: frozenset[str] = frozenset((*UNARY, *BINARY, "relu", "sigmoid", "cast", "where"))
"""Operators whose index is the shape of their output and that have no reduction."""
