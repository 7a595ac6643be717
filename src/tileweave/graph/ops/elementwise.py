"""Elementwise operators, one row each: NumPy's meaning, gradient, element types and lowering stand side by side.

Every function here takes tensors (or arrays and numbers, which become sources and constants), checks them, and returns
a tensor that broadcasts them. Its operation carries a signature, so it can be cut along any dimension.

Element types follow NumPy 2 promotion: a Python number adapts to the tensor beside it, bfloat16 included.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, is_floating, is_narrow, stored
from tileweave.graph.ir.forms import Check, Form, dtype_form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType, Value, trusted_type
from tileweave.graph.ir.select import full, unsqueeze
from tileweave.graph.ir.sugar import FUNCTIONS, public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.operators import (
    FLOP,
    FUNCTION,
    OPERATORS,
    Array,
    Arrays,
    Block,
    Costs,
    GradientRule,
    Into,
    Operator,
    program_costs,
    register,
)
from tileweave.space import Projection

Call = Callable[..., Tensor]

# ---------------------------------------------------------------------------------------------------------------------
# operands


def common_type(*tensors: Tensor) -> np.dtype[Any]:
    """The element type that several tensors promote to."""
    return promoted([x.dtype for x in tensors])


def promoted(types: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """The element type that several types promote to."""
    try:
        return np.result_type(*types)
    except TypeError:  # a narrow float beside a wide integer: as their sum; beside another narrow float: float32
        return reduce(lambda a, b: _FLOAT32 if is_narrow(a) and is_narrow(b) and a != b else _sum_type(a, b), types)


_FLOAT32 = np.dtype(np.float32)


def _sum_type(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    return np.add.resolve_dtypes((a, b, None))[-1]


def operands(where: str, values: Sequence[Any], ufunc: np.ufunc) -> tuple[list[Tensor], np.dtype[Any]]:
    """The operands as tensors of the types that the loop takes, and the type of its result."""
    given = [v if type(v) is Tensor or type(v) in _NUMBERS else as_tensor(v, where) for v in values]
    kinds = tuple([v.type.dtype if type(v) is Tensor else type(v) for v in given])
    tensors_alone = _NUMBERS.isdisjoint(kinds)
    if _NUMBERS.issuperset(kinds):
        kinds = tuple([np.asarray(value).dtype for value in values])
    try:
        loop, out = _loop(ufunc, kinds)
    except TypeError:
        types = {f"operand {k}": v if type(v) in _NUMBERS else v.type for k, v in enumerate(given)}
        raise DtypeError(
            where, "no loop takes these element types", inputs=types, legal="types that NumPy's ufunc takes"
        ) from None
    if tensors_alone and kinds == loop:
        return given, out
    tensors = []
    for value, kind, dtype in zip(given, kinds, loop, strict=True):
        if type(value) in _NUMBERS:
            held = stored(where, value, dtype)
            tensors.append(_constant(type(held).__name__, held, dtype) if held else full((), held, dtype))
        else:
            tensors.append(value if kind is dtype else cast(value, dtype))
    return tensors, out


@lru_cache(maxsize=256)
def _constant(kind: str, value: float, dtype: np.dtype[Any]) -> Tensor:
    """One number of a type other than 0: zeros of either sign are equal."""
    return full((), value, dtype)


_NUMBERS = {bool, int, float}
"""Types of operands that take the element type of the tensors beside them."""


@lru_cache(maxsize=1024)
def _loop(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> tuple[tuple[np.dtype[Any], ...], np.dtype[Any]]:
    """The element types that the loop of a ufunc takes, and the one that it makes, for those of operands."""
    kinds = tuple([np.dtype(bool) if kind is bool else kind for kind in kinds])
    narrow = next((kind for kind in kinds if not isinstance(kind, type) and is_narrow(kind)), None)
    if narrow is not None:  # NumPy does not know that it holds floats
        kinds = tuple([narrow if kind is float else kind for kind in kinds])
    *loop, out = ufunc.resolve_dtypes((*kinds, None))
    return tuple(loop), out


# ---------------------------------------------------------------------------------------------------------------------
# operations


def elementwise(name: str, inputs: Sequence[Tensor], dtype: np.dtype[Any], *parameters: tuple[str, Value]) -> Tensor:
    """An elementwise operation on inputs that broadcast; the operator must be registered."""
    types = [x.type for x in inputs]
    kind = types[0] if types else TensorType((), dtype)
    shape = kind.shape
    shapes = [own.shape for own in types]
    if len(shapes) > 1 and shapes.count(shape) < len(shapes):
        try:
            shape = _together(shapes)
        except ValueError:
            raise GraphError(
                f"{name}({', '.join('xyz'[: len(inputs)])})",
                f"shapes {' and '.join(str(own.shape) for own in types)} do not broadcast",
                inputs=dict(zip("xyz", types, strict=False)),
                legal="extents equal from the right, or 1",
            ) from None
    rank = len(shape)
    reads = tuple([_read_of(own, shape) for own in shapes])
    steps: Any = dict(parameters).get("program") if parameters else None
    costs = OPERATORS[name].costs if steps is None else program_costs((step, 1.0) for step, _, _ in steps)
    signature = _elementwise_signature(rank, reads, costs)
    named = tuple(zip(input_names(len(inputs)), inputs))  # noqa: B905  (as many names as inputs)
    if kind.dtype is not dtype or kind.shape is not shape:
        kind = trusted_type(shape, dtype)
    return Tensor(Operation(name, kind.box, named, (("out", kind),), parameters, signature))


def _together(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """As `np.broadcast_shapes`, in a fifth of the time; a ValueError where shapes do not broadcast."""
    rank = builtins.max(map(len, shapes))
    found = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape, rank - len(shape)):
            if n != 1 and found[k] not in (1, n):
                raise ValueError
            if n != 1:
                found[k] = n
    return tuple(found)


def _read_of(own: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """The index dimension that each dimension of an input moves with; None where it broadcasts."""
    if own == shape:
        return _RANGES[len(shape)] if len(shape) < len(_RANGES) else tuple(range(len(shape)))
    extra = len(shape) - len(own)
    return tuple([None if n == 1 and shape[extra + k] != 1 else extra + k for k, n in enumerate(own)])


_RANGES = [tuple(range(rank)) for rank in range(8)]


@cache
def input_names(count: int) -> tuple[str, ...]:
    """The names of an elementwise operation's inputs."""
    return tuple(f"x{k}" for k in range(count)) if count > 1 else ("x",)


@lru_cache(maxsize=1024)
def _elementwise_signature(rank: int, reads: tuple[tuple[int | None, ...], ...], costs: Costs) -> Signature:
    """The signature of an elementwise operator; `reads` holds, per input, the index dimension of each of its own."""
    return Signature(
        tuple(f"d{k}" for k in range(rank)),
        tuple((name, Projection.select(dims, rank)) for name, dims in zip(input_names(len(reads)), reads, strict=True)),
        (("out", Projection.select(range(rank), rank)),),
        costs=costs,
    )


def fold(dy: Tensor, like: Tensor) -> Tensor:
    """The sum over the dimensions along which `like` was broadcast to the shape of dy."""
    extra = len(dy.shape) - len(like.shape)
    ones = tuple(extra + k for k, n in enumerate(like.shape) if n == 1 and dy.shape[extra + k] != 1)
    out = FUNCTIONS["sum"](dy, (*range(extra), *ones)) if extra or ones else dy
    if ones:
        out = unsqueeze(out, tuple(k - extra for k in ones))
    return cast(out, like.dtype)


def broadcasting(partials: Callable[..., Sequence[Tensor | None]]) -> GradientRule:
    """The gradient of an elementwise operator from (inputs.., result, dy) -> its partial derivatives times dy."""

    def rule(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
        tensors = [t for _, t in operation.inputs]
        parts = partials(*tensors, y, dy)
        return {
            name: fold(part, t) for (name, t), part in zip(operation.inputs, parts, strict=True) if part is not None
        }

    return rule


def flat(*tensors: Tensor) -> list[None]:
    """The partial derivatives of a function that is constant between jumps."""
    return [None] * (len(tensors) - 2)


# ---------------------------------------------------------------------------------------------------------------------
# rows


def elementwise_row(
    name: str,
    block: Block,
    arity: int,
    gradient: Callable[..., Sequence[Tensor | None]] | None = None,
    *,
    lowering: str = "",
    costs: Costs = FLOP,
    into: Into | None = None,
    **parameters: Check,
) -> Operator:
    """Registers an elementwise operator of so many inputs; its gradient is written as in `broadcasting`."""
    rule = broadcasting(gradient) if gradient is not None else None
    form = Form(input_names(arity), parameters)
    return register(Operator(name, block, form, rule, costs, lowering, arity=arity, into=into))


_DENSE_RESULTS = (np.isfinite, np.negative)
"""NumPy 2.4's own code for these writes wrong elements where neither operand nor result is dense, as in
``np.negative(x[::4], out=y[::2])`` of float32."""


def elementwise_operator(
    name: str,
    function: Callable[..., Array],
    *,
    types: np.ufunc | None = None,
    gradient: Callable[..., Sequence[Tensor | None]] | None = None,
    lowering: str = "",
    costs: Costs = FLOP,
    numpys: Sequence[Callable[..., Any]] = (),
) -> Callable[..., Tensor]:
    """One more elementwise operator: its row and its public function.

    Args:
        name: of the operator, and of its function in `tileweave.graph`.
        function: from arrays that broadcast to the array of results; a ufunc of NumPy, or of your own.
        types: the ufunc whose loops tell which element types it takes and makes; `function` where it is one.
        gradient: (inputs.., result, gradient of the result) -> the gradient per input, None where it has none.
        lowering: the primitive that computes it, such as ``Exp`` of TEIR.
        costs: (resource, amount per element).
        numpys: functions of NumPy that mean the same.

    Example:
        >>> cube = elementwise_operator(
        ...     "doc_cube", lambda x: x * x * x, types=np.square, gradient=lambda x, y, dy: [3.0 * x * x * dy]
        ... )
        >>> np.asarray(cube(np.array([2.0, 3.0]))).tolist()
        [8.0, 27.0]
    """
    loops = types if types is not None else function
    if not isinstance(loops, np.ufunc):
        raise GraphError(f"elementwise_operator({name!r}, ..)", "no ufunc tells its types", legal="types=np.exp, ..")

    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        out = np.asarray(function(*inputs.values()))
        if function is not loops:
            kind = loops.resolve_dtypes((*(x.dtype for x in inputs.values()), None))[-1]
            out = out.astype(kind, copy=False)
        return {"out": out}

    def into(_: Operation, inputs: Arrays, out: Array) -> None:
        if loops in _DENSE_RESULTS and not out.flags.c_contiguous:
            out[...] = function(*inputs.values())
        else:
            function(*inputs.values(), out=out)

    # a runtime that sends operators to other processes must see whose it is
    block.__module__ = sys._getframe(1).f_globals.get("__name__", "")
    where = f"{name}({', '.join('xyz'[: loops.nin])})"

    def call(*values: Any) -> Tensor:
        tensors, dtype = operands(where, values, loops)
        return elementwise(name, tensors, dtype)

    made: Callable[..., Tensor] = (lambda x: call(x)) if loops.nin == 1 else (lambda x, y: call(x, y))
    made.__name__ = made.__qualname__ = name
    like = f" `numpy.{function.__name__}`" if isinstance(function, np.ufunc) else f" {name}"
    made.__doc__ = f"Elementwise{like}{' with broadcasting' if loops.nin > 1 else ''}."
    own = into if isinstance(function, np.ufunc) else None
    elementwise_row(name, block, loops.nin, gradient, lowering=lowering, costs=costs, into=own)
    same = (function,) if isinstance(function, np.ufunc) else ()
    public(*numpys, *same)(made)
    return made


def _of(
    ufunc: np.ufunc, gradient: Any = None, lowering: str = "", name: str = "", costs: Costs = FLOP
) -> Callable[..., Tensor]:
    own = name or ufunc.__name__
    return elementwise_operator(own, ufunc, gradient=gradient, lowering=lowering, costs=costs)


negative: Call = _of(np.negative, lambda x, y, dy: [negative(dy)], "Neg")
absolute: Call = _of(np.absolute, lambda x, y, dy: [multiply(dy, sign(x))], "Abs")
sign: Call = _of(np.sign, flat, "Sign")
exp: Call = _of(np.exp, lambda x, y, dy: [multiply(dy, y)], "Exp", costs=FUNCTION)
log: Call = _of(np.log, lambda x, y, dy: [divide(dy, x)], "Log", costs=FUNCTION)
sqrt: Call = _of(np.sqrt, lambda x, y, dy: [divide(dy, multiply(2.0, y))], "Sqrt")
tanh: Call = _of(np.tanh, lambda x, y, dy: [multiply(dy, subtract(1.0, multiply(y, y)))], "Tanh", costs=FUNCTION)
add: Call = _of(np.add, lambda a, b, y, dy: [dy, dy], "Add")
subtract: Call = _of(np.subtract, lambda a, b, y, dy: [dy, negative(dy)], "Sub")
multiply: Call = _of(np.multiply, lambda a, b, y, dy: [multiply(dy, b), multiply(dy, a)], "Mul")
divide: Call = _of(np.divide, lambda a, b, y, dy: [divide(dy, b), negative(divide(multiply(dy, y), b))], "Div")
floor_divide: Call = _of(np.floor_divide, flat, "FloorDiv")
remainder: Call = _of(np.remainder, lambda a, b, y, dy: [dy, negative(multiply(dy, floor_divide(a, b)))], "Remainder")
maximum: Call = _of(np.maximum, lambda a, b, y, dy: [_choose(a, b, y, dy), _choose(b, a, y, dy)], "Max")
minimum: Call = _of(np.minimum, lambda a, b, y, dy: [_choose(a, b, y, dy), _choose(b, a, y, dy)], "Min")


def _choose(picked: Tensor, other: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """dy where `picked` is the result, shared equally where both are."""
    share = where(equal(picked, other), 0.5, 1.0)
    return multiply(where(equal(picked, y), dy, 0.0), cast(share, dy.dtype))


# ---------------------------------------------------------------------------------------------------------------------
# comparisons


def _comparison(ufunc: np.ufunc) -> Callable[[Any, Any], Tensor]:
    """A comparison; Python integers beyond the range of the integers beside them compare as the numbers they are."""
    name = ufunc.__name__

    def compare(x: Any, y: Any) -> Tensor:
        decided = _decided(ufunc, x, y)
        if decided is not None:
            return decided
        tensors, dtype = operands(f"{name}(x, y)", [x, y], ufunc)
        return elementwise(name, tensors, dtype)

    compare.__name__ = compare.__qualname__ = name
    compare.__doc__ = f"Elementwise `numpy.{name}` with broadcasting."
    lowering = name.title().replace("_", "")  # Less, LessEqual, ..
    elementwise_row(name, lambda operation, inputs: {"out": np.asarray(ufunc(*inputs.values()))}, 2, lowering=lowering)
    public(ufunc)(compare)
    return compare


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


less, less_equal = _comparison(np.less), _comparison(np.less_equal)
greater, greater_equal = _comparison(np.greater), _comparison(np.greater_equal)
equal, not_equal = _comparison(np.equal), _comparison(np.not_equal)


# ---------------------------------------------------------------------------------------------------------------------
# operators that NumPy has otherwise, or not at all


def _power_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    try:
        return {"out": np.asarray(np.power(*inputs.values()))}
    except ValueError:
        problem = "an integer to a negative power is not an integer"
        raise GraphError("power(x, y)", problem, legal="a floating base, or exponents of zero or more") from None


@public(np.power)
def power(x: Any, y: Any) -> Tensor:
    """Elementwise `numpy.power` with broadcasting."""
    tensors, dtype = operands("power(x, y)", [x, y], np.power)
    if dtype.kind in "iu" and type(y) is int and y < 0:
        raise DtypeError(
            "power(x, y)",
            f"an integer to the power {y} is not an integer",
            inputs={"x": tensors[0].type},
            legal="a floating base, or an exponent of zero or more",
        )
    return elementwise("power", tensors, dtype)


def _power_gradient(a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    slope = multiply(b, power(a, subtract(b, 1.0)))
    return [
        where(equal(b, 0), 0.0, multiply(dy, slope)),
        multiply(dy, multiply(y, log(where(equal(a, 0), 1.0, a)))),
    ]


elementwise_row("power", _power_block, 2, _power_gradient, costs=FUNCTION)


@public()
def relu(x: Any) -> Tensor:
    """Elementwise ``max(x, 0)`` in the type of x; NaN stays NaN."""
    x = as_tensor(x, "relu(x)")
    if x.dtype.kind == "b":
        raise DtypeError("relu(x)", "bool has no relu", inputs={"x": x.type}, legal="integers, floats")
    return elementwise("relu", [x], x.dtype)


def _relu_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    return {"out": np.maximum(inputs["x"], inputs["x"].dtype.type(0))}


def _relu_gradient(x: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    return [where(greater(x, 0), dy, 0.0)]


elementwise_row("relu", _relu_block, 1, _relu_gradient, lowering="ReLU")


def sigmoid_of(x: Array) -> Array:
    """What `sigmoid` means."""
    small = np.exp(-np.absolute(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


sigmoid: Call = elementwise_operator(
    "sigmoid",
    sigmoid_of,
    types=np.exp,
    gradient=lambda x, y, dy: [multiply(dy, multiply(y, subtract(1.0, y)))],
    lowering="Sigmoid",
    costs=FUNCTION,
)
"""Elementwise ``1 / (1 + exp(-x))``, without overflow for large negative x."""


@public()
def cast(x: Any, dtype: Any) -> Tensor:
    """The same values in another element type, converted as `numpy.ndarray.astype` converts them."""
    given = as_tensor(x, "cast(x, dtype)")
    own = given.dtype
    if dtype is own:
        return given
    kind = element_type("cast(x, dtype)", dtype)
    return given if kind == own else elementwise("cast", [given], kind, ("dtype", kind.name))


elementwise_row(
    "cast",
    lambda operation, inputs: {"out": inputs["x"].astype(operation.output_types["out"].dtype)},
    1,
    lambda x, y, dy: [dy],
    lowering="Cast",
    dtype=dtype_form,
)


@public()
def saturate(x: Any, dtype: Any) -> Tensor:
    """Floats in an integer type: cut towards zero, those outside its range as its nearest end; NaN is 0.

    Example:
        >>> np.asarray(saturate(np.array([-3.7, 300.0, np.nan]), "uint8")).tolist()
        [0, 255, 0]
    """
    x = as_tensor(x, "saturate(x, dtype)")
    kind = element_type("saturate(x, dtype)", dtype)
    if not is_floating(x.dtype) or kind.kind not in "iu":
        problem = f"element type {x.dtype.name} as {kind.name}"
        raise DtypeError("saturate(x, dtype)", problem, inputs={"x": x.type}, legal="floats as integers")
    return elementwise("saturate", [x], kind, ("dtype", kind.name))


def _saturate_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, kind = inputs["x"], operation.output_types["out"].dtype
    limits = np.iinfo(kind)
    wide = x.astype(np.float64 if kind.itemsize < 8 or x.dtype.itemsize < 8 else x.dtype)
    low, high = wide <= limits.min, wide >= limits.max
    inside = np.where(low | high | np.isnan(wide), 0, wide).astype(kind)
    return {"out": np.where(low, limits.min, np.where(high, limits.max, inside)).astype(kind)}


elementwise_row("saturate", _saturate_block, 1, lowering="Cast", dtype=dtype_form)


@public(np.where)
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


elementwise_row(
    "where",
    lambda operation, inputs: {"out": np.where(*inputs.values())},
    3,
    lambda c, a, b, y, dy: [None, where(c, dy, 0.0), where(c, 0.0, dy)],
    lowering="Select",
)
