"""Which operations of a graph are TEIR programs, and which programs they are.

A program is emitted for concrete operands: their shapes, strides and element types. What has no program here runs the
operator's NumPy definition.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan, prod
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from tileweave import teir
from tileweave.backends.base import ELEMENTS
from tileweave.graph import Operation, TensorType
from tileweave.graph.ir.dtypes import wide_type
from tileweave.graph.ops.grouped.chained import product_of
from tileweave.graph.ops.grouped.rows import softmax_at_end
from tileweave.graph.ops.operators import operator_named, operator_of
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    dtype_name,
    emit_attention,
    emit_chain,
    emit_contraction,
    emit_contraction_in_pieces,
    emit_copy,
    emit_place,
    emit_reduction,
    emit_running,
    summed_length,
)
from tileweave.teir.emit.compose import sequence
from tileweave.teir.ir.dtypes import is_float
from tileweave.teir.ir.extensions import BINARY, CHOICES, FILL, REDUCTIONS, UNARY
from tileweave.teir.ir.program import TensorSpec

Array = np.ndarray[Any, Any]

LONGEST_SUM = 1 << 16
"""Sums of more elements than this are formed in FP64; sums of FP64, and products, are NumPy's, whose order keeps the
rounding smaller."""
LONG_CONTRACTION = 1 << 18
"""Contractions that sum more products than this in FP32 do so in pieces, whose sums are added in FP64."""
TEIR_DTYPES = frozenset(map(np.dtype, ("float32", "float64", "int16", "int32", "int64")))
"""Element types of products."""
_NARROW = frozenset((np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)))
"""Computed in FP32 and rounded at each step, as NumPy does."""
_NUMBERS = TEIR_DTYPES | _NARROW | frozenset(map(np.dtype, ("int8", "uint8", "uint16", "uint32", "uint64")))
"""Element types of chains, of reductions, and of what is rearranged, beside bool."""
MOVED = _NUMBERS | {np.dtype(bool)}
"""Element types that compiled code rearranges."""
_FLOATS = frozenset(map(np.dtype, ("float32", "float64")))
Chain = tuple[tuple[str, tuple[int, ...], str], ...]
_CONTRACTION = "Contraction"
_SATURATE = "Saturate"
_STEPS = frozenset(("ReLU", *UNARY, *BINARY, *CHOICES))
_OF_TRUTHS = frozenset((*CHOICES, "Max", "Min", "And", "Or", "Xor", "Cast"))
"""What computes with truths, which are 1 or 0 of INT8, as NumPy computes with bool."""
_OF_TRUTHS_ONLY = {"logical_and", "logical_or", "logical_xor", "invert", "any", "all"}
"""Operators whose rows say how TEIR computes them of truths; of numbers they ask first which are zero."""
_BOOL, _TRUTH = "BOOL", "INT8"
"""The type of truths while steps are looked at, and what TEIR has for it."""
_MONOIDS = {name: monoid for monoid, name in REDUCTIONS.items()}
_RUNNING = {"cumsum": "sum", "cumprod": "product", "cummax": "max", "cummin": "min"}
_PLACES = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True, slots=True)
class OperandView:
    """An array without its elements: what a program is emitted for.

    Args:
        dtype: of the elements.
        shape: extents.
        strides: bytes between neighbours along each dimension.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> OperandView:
        """An array's."""
        return cls(array.dtype, array.shape, array.strides)

    @classmethod
    def dense(cls, kind: TensorType) -> OperandView:
        """A tensor's in row-major order."""
        strides, step = [0] * len(kind.shape), kind.dtype.itemsize
        for k in reversed(range(len(kind.shape))):
            strides[k], step = step, step * kind.shape[k]
        return cls(kind.dtype, kind.shape, tuple(strides))

    def spread(self, shape: tuple[int, ...]) -> OperandView:
        """The view broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        kept = (0 if n == 1 else stride for n, stride in zip(self.shape, self.strides, strict=True))
        return OperandView(self.dtype, shape, (*(0,) * missing, *kept))

    def without(self, axes: Sequence[int]) -> OperandView:
        """The view at the first index of some dimensions."""
        kept = [k for k in range(len(self.shape)) if k not in axes]
        return OperandView(self.dtype, tuple(self.shape[k] for k in kept), tuple(self.strides[k] for k in kept))

    def divided(self, axis: int, inner: int) -> OperandView:
        """One dimension as two, the second of extent `inner`."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis : axis + 1] = [shape[axis] // inner, inner]
        strides[axis : axis + 1] = [strides[axis] * inner, strides[axis]]
        return OperandView(self.dtype, tuple(shape), tuple(strides))

    def cut(self, factors: Sequence[int]) -> OperandView:
        """Every dimension as several, whose extents are consecutive factors; they end where the dimensions do."""
        shape, strides, rest = list[int](), list[int](), list(reversed(factors))
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            done = 1
            while done < extent:
                shape.append(rest.pop(0))
                strides.append(stride * done)
                done *= shape[-1]
        return OperandView(self.dtype, tuple(reversed(shape)), tuple(reversed(strides)))

    @property
    def operand(self) -> Operand:
        """Its layout (element strides, any sign) and element type, as TEIR's emitters take them."""
        return _operand(self)


@lru_cache(maxsize=4096)  # a plan asks for programs on a few layouts thousands of times
def _operand(view: OperandView) -> Operand:
    layout = strided(view.shape, [stride // view.dtype.itemsize for stride in view.strides])
    return Operand(layout, _TRUTH if view.dtype == np.bool_ else dtype_name(view.dtype))


def lowering(operation: Operation, stage: str) -> str:
    """Which family of programs an operation has: contraction, copy, windows, reduction, running, place, ..; or none.

    Whether there is one is decided by the whole operation, never by a shard: all shards are computed alike.
    """
    if operation.operator in _PLACES:
        known = operation.input("x").dtype in MOVED and result_of(operation)[0] == "index"
        return "place" if stage == "block" and known else ""
    if "out" not in operation.output_types or stage == "combine":
        return ""
    dtype = operation.output_types["out"].dtype
    asked = operator_of(operation).lowering
    if asked == _CONTRACTION and dtype in TEIR_DTYPES | _NARROW:
        if _slides(operation):
            return "windows" if dtype in TEIR_DTYPES else ""
        if len(operation.inputs) > 1:
            return "contraction"
    if asked == _CONTRACTION and len(operation.inputs) == 1:
        return "copy" if dtype in MOVED and _is_permutation(operation) else ""
    if operation.operator == "reshape":
        return "reshape" if _rearranges(operation) else ""
    if operation.operator in _RUNNING:
        return "running" if _runs(operation) else ""
    if operation.operator in ("rows", "attention"):
        found = {"rows": "group"}.get(operation.operator, operation.operator)
        return found if _group(operation) else ""
    if operation.operator == "conv_chain":
        return "windows, chain" if dtype in _FLOATS and _chain(operation) else ""
    if operation.operator == "product_chain":
        known = np.dtype(operation.parameter("sums")) in TEIR_DTYPES | _NARROW
        return "contraction, chain" if known and _chain(operation) else ""
    if asked in _MONOIDS:
        if _slides(operation):
            return "windows" if operation.input("x").dtype == dtype and dtype in _FLOATS else ""
        return "reduction" if _reduces(operation) else ""
    return "chain" if _chain(operation) else ""


def result_of(operation: Operation) -> tuple[str, TensorType]:
    """The output that a program computes: of several the last one, as a plan keeps it where it asks for a program."""
    return operation.outputs[-1]


def _slides(operation: Operation) -> bool:
    """Whether an operation reads windows: a convolution or a pooling."""
    return any(name == "dilation" for name, _ in operation.parameters)


def _is_permutation(operation: Operation) -> bool:
    left, out = operation.parameter("equation").split("->")
    return "," not in left and sorted(left) == sorted(out)


def _is_long(operation: Operation) -> bool:
    shapes = [tensor.shape for _, tensor in operation.inputs[:2]]
    wide = wide_type(operation.output_types["out"].dtype)
    return wide == np.float32 and summed_length(operation.parameter("equation"), shapes) > LONG_CONTRACTION


def _factors(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The fewest extents from which both shapes are made by joining neighbours; empty where there are none."""
    left, right, found = ([n for n in shape if n > 1] for shape in (one, other, ()))
    while left and right:
        factor = min(left[-1], right[-1])
        if left[-1] % factor or right[-1] % factor:
            return []
        found.insert(0, factor)
        for side in (left, right):
            side[-1] //= factor
            if side[-1] == 1:
                side.pop()
    return found


def _rearranges(operation: Operation) -> bool:
    """Whether a reshape is a copy by strides, and large enough for one to pay."""
    x, out = operation.inputs[0][1], operation.output_types["out"]
    return x.dtype in MOVED and x.type.box.size >= ELEMENTS and bool(_factors(x.shape, out.shape))


def _runs(operation: Operation) -> bool:
    """Whether a running sum is formed in the type of its elements."""
    kind = operation.output_types["out"]
    return kind.dtype in _NUMBERS and wide_type(kind.dtype) == kind.dtype


def _reduces(operation: Operation) -> bool:
    x, out = operation.input("x").dtype, operation.output_types["out"].dtype
    if operation.operator in _OF_TRUTHS_ONLY or out == np.bool_:
        return x == out == np.bool_ and operation.operator not in ("sum", "product")
    if out.kind in "iu":
        return x in MOVED and np.can_cast(x, out)
    known = x == out and out in TEIR_DTYPES | _NARROW
    return known and (not _is_long_sum(operation) or (operation.operator == "sum" and out.itemsize < 8))


def _is_long_sum(operation: Operation) -> bool:
    """Whether so many numbers are added or multiplied that FP32, or FP64, would round too often."""
    length = prod(operation.input("x").shape[k] for k in operation.parameter("axes"))
    return length > LONGEST_SUM and operation.operator not in ("max", "min")


@lru_cache(maxsize=256)
def _type_name(dtype: np.dtype[Any]) -> str:
    """TEIR's name of an element type, or that of truths. Empty where chains have no code for it."""
    return _BOOL if dtype == np.bool_ else dtype_name(dtype) if dtype in _NUMBERS else ""


@lru_cache(maxsize=256)
def _named(kind: str) -> str:
    """`_type_name` of an element type by its name, as programs of steps have it."""
    return _type_name(np.dtype(kind))


def _held(name: str) -> str:
    """TEIR's name of an element type."""
    return _TRUTH if name == _BOOL else name


def _chain(operation: Operation) -> Chain:
    """The primitives that an elementwise operation is, with the arguments of each; empty where some has none."""
    dtype = operation.output_types["out"].dtype
    inputs = [_type_name(tensor.dtype) for _, tensor in operation.inputs]
    if operation.operator == "conv_chain":
        inputs = [_type_name(dtype), *inputs[2:]]
    if operation.operator == "product_chain":
        product, extras = product_of(operation)
        inputs = [_type_name(product.dtype), *(_type_name(x.dtype) for x in extras)]
    if operation.operator in ("fused", "conv_chain", "product_chain"):
        done: Sequence[tuple[str, tuple[int, ...], str]] = operation.parameter("program")
    else:
        done = [(operation.operator, tuple(range(len(operation.inputs))), dtype.name)]
    found: list[tuple[str, tuple[int, ...], str]] = []
    for name, args, kind in done:
        types = [inputs[a] if a >= 0 else found[-1 - a][2] for a in args]
        made = _named(kind)
        step = _step(_asked(name), (*types, made)) if all(types) and made else ""
        if not step or (name in _OF_TRUTHS_ONLY and {*types} != {_BOOL}):
            return ()
        found.append((step, args, made))
    return tuple((step, args, _held(made)) for step, args, made in found)


def _group(operation: Operation) -> list[tuple[Any, ...]]:
    """The steps of a group of rows as primitives; empty where some has none, or where a sum is long."""
    dtype = operation.output_types["out"].dtype
    program: Sequence[tuple[str, tuple[Any, ...], str]] = operation.parameter("program")
    narrow = dtype in _NARROW  # steps compute in FP32, what is read and the last result may be of 16 bits
    own = dtype_name(dtype) if dtype in _FLOATS else "FP32" if narrow else ""
    halves = {dtype_name(x.dtype) for _, x in operation.inputs if x.dtype in _NARROW} if own == "FP32" else set()
    inputs = [_type_name(tensor.dtype) for _, tensor in operation.inputs]
    if operation.operator == "attention":
        inputs, length = [own, *inputs[3:]], _keys(operation)
    else:
        shapes = [x.shape for _, x in operation.inputs]
        length = prod(_row_lengths(operation.parameter("rank"), operation.parameter("axes"), shapes))
    types = [_named(kind) for _, _, kind in program]
    if not own or not {*inputs, *types} <= {own, _BOOL, dtype_name(dtype), *halves}:
        return []
    found: list[tuple[Any, ...]] = []
    for name, arguments, _ in program:
        if name == "full" and isnan(arguments[0]):
            return []
        lowering, made = FILL if name == "full" else _asked(name), types[len(found)]
        given = () if lowering == FILL else tuple(inputs[a] if a >= 0 else types[-1 - a] for a in arguments)
        if lowering in _MONOIDS:
            if given != (made,) or (length > LONGEST_SUM and name not in ("max", "min")):
                return []
        elif lowering != FILL:
            lowering = _step(lowering, (*given, made)) if lowering != "Cast" or narrow or halves else ""
            if lowering == "Cast":
                found.append((lowering, arguments, _held(made)))
                continue
        if not lowering:
            return []
        found.append((lowering, arguments, _held(made)) if lowering == FILL else (lowering, arguments))
    if softmax_at_end(program) is None:
        return _by_inverses(operation, found, own)
    # its division as a product with one inverse per row: the divisor is a sum of 1 and more, or NaN
    (power, total), k = found[-1][1], len(found)
    rounded = [("Cast", (-2 - k,), dtype_name(dtype))] if narrow else []
    return [*found[:-1], ("Fill", (1.0,), own), ("Div", (-k, total)), ("Mul", (power, -1 - k)), *rounded]


def _by_inverses(operation: Operation, steps: Sequence[tuple[Any, ...]], own: str) -> list[tuple[Any, ...]]:
    """The steps of a group of rows, elements divided by a square root, one per row, as products with its inverse.

    A square root is so far from the ends of the range that its inverse is finite, but for that of zero, and normal, but
    for that of infinity: so special values stay what they are.
    """
    rank, axes = operation.parameter("rank"), operation.parameter("axes")
    shapes = [(1,) * (rank - len(x.shape)) + x.shape for _, x in operation.inputs]
    each_input = [any(shape[k] > 1 for k in axes) for shape in shapes]
    found: list[tuple[Any, ...]] = []
    at, each = list[int](), list[bool]()  # of every step: its place now, whether it has a value per element
    for kind, arguments, *more in steps:
        if kind == FILL:
            found.append((kind, arguments, *more))
            each.append(False)
        else:
            many = [each_input[a] if a >= 0 else each[-1 - a] for a in arguments]
            moved = tuple(a if a >= 0 else -1 - at[-1 - a] for a in arguments)
            each.append(any(many) and kind not in _MONOIDS)
            if kind == "Div" and many == [True, False] and moved[1] < 0 and found[-1 - moved[1]][0] == "Sqrt":
                found += [(FILL, (1.0,), own), ("Div", (-1 - len(found), moved[1]))]
                kind, moved = "Mul", (moved[0], -len(found))
            found.append((kind, moved, *more))
        at.append(len(found) - 1)
    return found


def _row_lengths(rank: int, axes: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The extents of a row, from inputs that broadcast to it."""
    whole = np.broadcast_shapes((1,) * rank, *shapes)
    return [whole[k] for k in axes]


def _emit_rows(operation: Operation, views: Sequence[OperandView], out: OperandView) -> Program:
    rank, axes = operation.parameter("rank"), operation.parameter("axes")
    lengths = dict(zip(axes, _row_lengths(rank, axes, [view.shape for view in views]), strict=True))
    whole = len(out.shape) == rank
    free = iter(n for k, n in enumerate(out.shape) if not whole or k not in axes)
    shape = tuple(lengths[k] if k in axes else next(free) for k in range(rank))
    spread = [view.spread(shape) for view in views]
    along = [any(full.strides[k] and shape[k] > 1 for k in axes) for full in spread]
    if not whole and not any(along):
        along[0] = True  # rows of one element each, again and again: some operand says how long they are
    operands = [(full if each else full.without(axes)).operand for full, each in zip(spread, along, strict=True)]
    return emit_chain(_group(operation), operands, out.operand, axes=axes, name="group")


def _key(operation: Operation) -> str:
    """The letter of an attention's keys."""
    _, k, v, made = operation.parameter("letters")
    (key,) = set(k) & set(v) - set(made)
    return str(key)


def _keys(operation: Operation) -> int:
    """How many keys an attention has."""
    letters: str = operation.parameter("letters")[1]
    return operation.input("k").shape[letters.index(_key(operation))]


def _emit_attention(operation: Operation, views: Sequence[OperandView], out: OperandView) -> Program:
    letters, key = operation.parameter("letters"), _key(operation)
    kept = letters[3][:-1]
    scores = (*out.shape[:-1], views[1].shape[letters[1].index(key)])
    operands, owns = [view.operand for view in views[:3]], list(letters[:3])
    for view in views[3:]:
        full = view.spread(scores)
        along = full.strides[-1] and scores[-1] > 1
        operands.append((full if along else full.without((len(scores) - 1,))).operand)
        owns.append(kept + key if along else kept)
    return emit_attention(_group(operation), operands, out.operand, [*owns, letters[3]])


def _asked(name: str) -> str:
    """What an operator's row asks for; of `saturate`, whose Cast is TEIR's whatever the types, its own name."""
    return _SATURATE if name == "saturate" else operator_named(name).lowering


@lru_cache
def _step(lowering: str, dtypes: tuple[str, ...]) -> str:
    """The operation of TEIR that a row of the operator table asks for, where it takes these types; else empty."""
    made = dtypes[-1]
    if lowering == _SATURATE:
        return "Cast"
    if lowering not in _STEPS:
        return ""
    held = tuple(map(_held, dtypes))
    if lowering == "Cast" and made == _BOOL:
        return "NonZero"
    if lowering == "Cast" and is_float(held[0]) and not is_float(made):  # only `saturate` clamps
        lowering = "Wrap"
    if _BOOL in dtypes[:-1] and lowering not in _OF_TRUTHS:
        return ""
    spec = teir.operation(lowering)
    return "" if len(held) != spec.inputs + 1 or spec.dtypes(held) else lowering


def program(operation: Operation, stage: str, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """The program of one shard, on the tensors that `in_order` lists.

    Args:
        operation: that has a `lowering`.
        stage: ``block`` or ``partial``.
        views: the shard's operands by name.
        out: the shard's result.
    """
    values = [view.operand for view in views.values()]
    made = out.operand
    family = lowering(operation, stage)
    if family == "reduction":
        letters = "".join(chr(ord("a") + k) for k in range(len(values[0].shape)))
        kept = "".join(letter for k, letter in enumerate(letters) if k not in operation.parameter("axes"))
        wide = "FP64" if is_float(made.dtype) and _is_long_sum(operation) else None
        monoid = _MONOIDS[operator_of(operation).lowering]
        return emit_reduction(monoid, values[0], made, f"{letters}->{kept}", wide=wide)
    if family == "group":
        return _emit_rows(operation, list(views.values()), out)
    if family == "attention":
        return _emit_attention(operation, list(views.values()), out)
    if family == "running":
        return emit_running(_RUNNING[operation.operator], values[0], made, operation.parameter("axis"))
    if family == "place":
        return emit_place(_PLACES[operation.operator], values[0], made, operation.parameter("axis"))
    if family == "reshape":
        (x,) = views.values()
        factors = _factors(x.shape, out.shape)
        return emit_copy(x.cut(factors).operand, out.cut(factors).operand, name="reshape")
    if family == "windows":
        return _windowed(operation, views, out)
    if family == "windows, chain":
        return _windowed_chain(operation, views, out)
    if family == "chain":
        spread = [view.spread(out.shape).operand for view in views.values()]
        return emit_chain(_chain(operation), spread, made, name=operation.operator)
    equation = operation.parameter("equation")
    if family == "copy":
        return emit_copy(values[0], made, equation)
    emit = emit_contraction_in_pieces if _is_long(operation) else emit_contraction
    bias = views["b"].spread(out.shape).operand if "b" in views else None
    name, behind = operation.operator, dict[str, Any]()
    if name == "product_chain":
        product, _ = product_of(operation)
        terms, whole = product.letters
        own = zip(terms, views.values(), strict=False)
        extents = {c: n for one, view in own for c, n in zip(one, view.shape, strict=True)}
        shape, summed = tuple(extents[c] for c in whole), operation.parameter("summed")
        extras = [view.spread(shape).operand for view in list(views.values())[len(product.operands) :]]
        behind = {"chain": _chain(operation), "extras": extras, "sums": dtype_name(product.dtype), "added": summed}
        name, emit = product.operator, emit_contraction
    relu = bias is not None and name == "linear_relu"
    return emit(equation, values[:2], made, init=bias, relu=relu, name=name, **behind)


def _windowed(operation: Operation, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """A convolution or a pooling: the points of its windows are further letters, which overlap in memory."""
    x = views["x"]
    if "w" not in views:
        seen = _seen(x, operation.parameter("window"), out.shape[2:], operation)
        letters = _letters(len(seen.shape))
        kept = letters[: len(out.shape)]
        return emit_reduction(
            _MONOIDS[operator_of(operation).lowering], seen.operand, out.operand, f"{letters}->{kept}"
        )
    w = views["w"]
    spatial = _letters(len(out.shape) - 2)
    inner = spatial.upper()
    seen = _seen(x, w.shape[2:], out.shape[2:], operation)
    if operation.parameter("groups") == 1:
        equation = f"nc{spatial}{inner},fc{inner}->nf{spatial}"
    else:
        filters, channels = operation.parameter("filters"), operation.parameter("channels")
        seen, out = seen.divided(1, channels), out.divided(1, filters)
        w = w.divided(0, filters)
        equation = f"ngc{spatial}{inner},gfc{inner}->ngf{spatial}"
    return emit_contraction(equation, (seen.operand, w.operand), out.operand, name="conv")


def _windowed_chain(operation: Operation, views: Mapping[str, OperandView], out: OperandView) -> Program:
    """A convolution to scratch memory, and the chain from there: unless a backend keeps sums elsewhere."""
    sums = _windowed(operation, views, out)
    extras = [view.spread(out.shape).operand for name, view in views.items() if name not in ("x", "w")]
    chain = emit_chain(_chain(operation), [out.operand, *extras], out.operand, name=operation.operator)
    last = sum((n - 1) * abs(stride) for n, stride in zip(out.shape, out.strides, strict=True))
    dtype = dtype_name(out.dtype)
    names = {f"in{k + 1}": f"in{k + 2}" for k in range(len(extras))}
    rows = [spec for spec in chain.tensors if spec.role == "scratch"]
    tensors = (
        *(TensorSpec(f"in{k}", dtype, "in") for k in range(2)),
        *(TensorSpec(names[spec.name], spec.dtype, "in") for spec in chain.tensors if spec.name in names),
        TensorSpec("out", dtype, "out"),
        TensorSpec("sums", dtype, "scratch", last + out.dtype.itemsize),
        *rows,
    )
    parts = (
        (sums, {"in0": "in0", "in1": "in1", "out": "sums"}),
        (chain, {"in0": "sums", **names, "out": "out", **{spec.name: spec.name for spec in rows}}),
    )
    return sequence(parts, tensors, name=operation.operator)


def _letters(count: int) -> str:
    """So many letters, none of which names a batch, group, channel or filter."""
    return "opqrstuvwxyz"[:count]


def _seen(x: OperandView, kernel: Sequence[int], out: Sequence[int], operation: Operation) -> OperandView:
    """The windows of [batch, channels, spatial..] as [batch, channels, windows.., points of a window..]."""
    steps, gaps = operation.parameter("stride"), operation.parameter("dilation")
    strides = x.strides[2:]
    moves = (s * step for s, step in zip(strides, steps, strict=True))
    points = (s * gap for s, gap in zip(strides, gaps, strict=True))
    return OperandView(x.dtype, (*x.shape[:2], *out, *kernel), (*x.strides[:2], *moves, *points))


def whole_program(operation: Operation, stage: str) -> Program | None:
    """The program of a whole operation on dense operands, by which it is decided what computes it; None: it has none.

    Operands without elements have no program: they are answered before any kernel.
    """
    if not lowering(operation, stage):
        return None
    tensors = [(name, tensor) for name, tensor in operation.inputs if stage == "block" or name != "b"]
    _, out = result_of(operation)
    if out.box.empty or any(tensor.type.box.empty for _, tensor in tensors):
        return None
    return program(
        operation, stage, {name: OperandView.dense(tensor.type) for name, tensor in tensors}, OperandView.dense(out)
    )


def kind_of(operation: Operation, stage: str) -> Hashable | None:
    """What operations have in common whose programs have the same primitives, whatever their extents.

    None for small operations, and those without a program: they are looked at one by one.
    """
    family = lowering(operation, stage)
    if not family:
        return None
    types = [*(x.type for _, x in operation.inputs), *(kind for _, kind in operation.outputs)]
    if max(kind.box.size for kind in types) < ELEMENTS or any(kind.box.empty for kind in types):
        return None
    long = family == "contraction" and _is_long(operation)
    shown = tuple((kind.dtype, tuple(n == 1 for n in kind.shape)) for kind in types)
    return operation.operator, operation.parameters, stage, family, long, shown


Thing = TypeVar("Thing")


def in_order(operation: Operation, arrays: Mapping[str, Thing], out: Thing) -> list[Thing]:
    """The arrays of a shard in the order of its program's tensors: inputs, the output, then what comes behind."""
    chained = operation.operator == "product_chain"
    last = list(arrays)[2:] if chained else operator_of(operation).finish
    late = [array for name, array in arrays.items() if name in last]
    return [*list(arrays.values())[: len(arrays) - len(late)], out, *late]
