"""Which operations of a graph are TEIR programs, and which programs they are.

A program is emitted for concrete operands: their shapes, strides and element types. What has no program here runs the
operator's NumPy definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tileweave.graph import Operation
from tileweave.graph.ir.dtypes import wide_type
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    dtype_name,
    emit_chain,
    emit_contraction,
    emit_contraction_in_pieces,
    emit_copy,
    emit_reduction,
    summed_length,
)

__all__ = ["ELEMENTS", "TEIR_DTYPES", "in_order", "operand", "program", "steps"]

Array = np.ndarray[Any, Any]

ELEMENTS = 1 << 16
"""Operations on fewer elements than this that move, map or reduce them run in NumPy: compiling would not pay."""
LONGEST_SUM = 1 << 16
"""Sums and products of more elements than this are NumPy's, whose order keeps the rounding smaller."""
LONG_CONTRACTION = 1 << 18
"""Contractions that sum more products than this in FP32 do so in pieces, whose sums are added in FP64."""
TEIR_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "int32", "int64")))
_NARROW = frozenset((np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)))
_FLOATS = frozenset(map(np.dtype, ("float32", "float64")))
_REDUCTIONS = {"sum": "sum", "product": "prod", "max": "max", "min": "min"}
Chain = tuple[tuple[str, tuple[int, ...], str], ...]
_CONTRACTIONS = ("einsum", "matmul", "linear", "linear_relu")
_ANY = {
    "relu": "ReLU",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "maximum": "Max",
    "minimum": "Min",
    "negative": "Neg",
    "absolute": "Abs",
}
_FLOATING = {
    "divide": "Div",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


def steps(operation: Operation, stage: str) -> str:
    """The primitives of an operation's program, such as ``zero, contraction``; empty where it has no program.

    Whether there is one is decided by the whole operation, never by a shard: all shards are computed alike.
    """
    if "out" not in operation.output_types:
        return ""
    dtype = operation.output_types["out"].dtype
    name = operation.operator
    if name in _CONTRACTIONS and dtype in TEIR_DTYPES | _NARROW:
        if len(operation.inputs) == 1:
            return "copy" if dtype in TEIR_DTYPES and _is_permutation(operation) else ""
        biased = name.startswith("linear") and stage == "block"
        relu = ", relu" if name == "linear_relu" and stage == "block" else ""
        pieces = " in pieces" if _is_long(operation) else ""
        return f"{'copy bias' if biased else 'zero'}, contraction{pieces}{relu}"
    if operation.index.size < ELEMENTS:
        return ""
    if name in _REDUCTIONS:
        return f"reduce {_REDUCTIONS[name]}" if _reduces(operation) else ""
    return ", ".join(primitive.lower() for primitive, _, _ in _chain(operation))


def _is_permutation(operation: Operation) -> bool:
    left, out = operation.parameter("equation").split("->")
    return "," not in left and sorted(left) == sorted(out)


def _is_long(operation: Operation) -> bool:
    shapes = [tensor.shape for _, tensor in operation.inputs[:2]]
    wide = wide_type(operation.output_types["out"].dtype)
    return wide == np.float32 and summed_length(operation.parameter("equation"), shapes) > LONG_CONTRACTION


def _reduces(operation: Operation) -> bool:
    x, out = operation.input("x"), operation.output_types["out"]
    length = prod(x.shape[k] for k in operation.parameter("axes"))
    short = length <= LONGEST_SUM or operation.operator in ("max", "min")
    return x.dtype == out.dtype and out.dtype in _FLOATS and short


def _chain(operation: Operation) -> Chain:
    """The primitives that an elementwise operation is, with the arguments of each; empty where some has none."""
    dtype = operation.output_types["out"].dtype
    types = {dtype, *(tensor.dtype for _, tensor in operation.inputs)}
    if types != {dtype} or dtype not in TEIR_DTYPES:
        return ()
    if operation.operator == "fused":
        done: Sequence[tuple[str, tuple[int, ...], str]] = operation.parameter("program")
    else:
        done = [(operation.operator, tuple(range(len(operation.inputs))), dtype.name)]
    known = _ANY | _FLOATING if dtype in _FLOATS else _ANY
    if any(name not in known or kind != dtype.name for name, _, kind in done):
        return ()
    return tuple((known[name], arguments, dtype_name(dtype)) for name, arguments, _ in done)


def program(operation: Operation, arrays: Mapping[str, Array], out: Array) -> Program:
    """The program of one shard, on the tensors that `in_order` lists.

    Args:
        operation: whose `steps` are not empty.
        arrays: the shard's operands by name; only their types, shapes and strides matter.
        out: the shard's result.
    """
    values = [operand(array) for array in arrays.values()]
    made = operand(out)
    if operation.operator in _REDUCTIONS:
        letters = "".join(chr(ord("a") + k) for k in range(len(values[0].shape)))
        kept = "".join(letter for k, letter in enumerate(letters) if k not in operation.parameter("axes"))
        return emit_reduction(_REDUCTIONS[operation.operator], values[0], made, f"{letters}->{kept}")
    if operation.operator not in _CONTRACTIONS:
        spread = [operand(np.broadcast_to(array, out.shape)) for array in arrays.values()]
        return emit_chain(_chain(operation), spread, made, name=operation.operator)
    equation = operation.parameter("equation")
    if len(values) == 1:
        return emit_copy(values[0], made, equation)
    emit = emit_contraction_in_pieces if _is_long(operation) else emit_contraction
    bias = operand(np.broadcast_to(arrays["b"], out.shape)) if "b" in arrays else None
    relu = "b" in arrays and operation.operator == "linear_relu"
    return emit(equation, values[:2], made, init=bias, relu=relu, name=operation.operator)


def in_order(operation: Operation, arrays: Mapping[str, Array], out: Array) -> list[Array]:
    """The arrays of a shard in the order of its program's tensors: the inputs, the output, then the bias if any."""
    late = [array for name, array in arrays.items() if name == "b" and operation.operator in _CONTRACTIONS]
    return [*list(arrays.values())[: len(arrays) - len(late)], out, *late]


def operand(array: Array) -> Operand:
    """An array's layout (element strides, any sign) and element type, as TEIR's emitters take them."""
    layout = strided(array.shape, [stride // array.itemsize for stride in array.strides])
    return Operand(layout, dtype_name(array.dtype))
