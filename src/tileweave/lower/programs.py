"""Which operations of a graph are TEIR programs, and of which kind.

A program is emitted for a kind and the layouts of operands (`tileweave.lower.emitted`). What has no program here runs
the operator's NumPy definition.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import copysign, isnan, prod
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from tileweave import teir
from tileweave.backends.base import ELEMENTS
from tileweave.graph import Operation, TensorType
from tileweave.graph.ir.dtypes import wide_type
from tileweave.graph.ir.interned import pairs_key
from tileweave.graph.ops.grouped.chained import product_of
from tileweave.graph.ops.grouped.rows import softmax_at_end
from tileweave.graph.ops.operators import operator_named, operator_of
from tileweave.teir import (
    dtype_name,
    summed_length,
)
from tileweave.teir.ir.dtypes import is_float
from tileweave.teir.ir.extensions import BINARY, CHOICES, FILL, REDUCTIONS, UNARY
from tileweave.teir.ir.form import may_be_of_sizes

Array = np.ndarray[Any, Any]

LONGEST_SUM = 1 << 16
"""Sums of FP64 of more elements than this, and products, are NumPy's, whose order keeps the rounding smaller."""
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
MONOIDS = {name: monoid for monoid, name in REDUCTIONS.items()}
RUNNING = {"cumsum": "sum", "cumprod": "product", "cummax": "max", "cummin": "min", "logcumsumexp": "logaddexp"}
PLACES = {"argmax": "max", "argmin": "min"}


def lowering(operation: Operation, stage: str) -> str:
    """Which family of programs an operation has: contraction, copy, windows, reduction, running, place, ..; or none.

    Whether there is one is decided by the whole operation, never by a shard: all shards are computed alike.
    """
    if operation.operator in PLACES:
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
    if operation.operator in RUNNING:
        return "running" if _runs(operation) else ""
    if operation.operator in ("rows", "attention"):
        found = {"rows": "group"}.get(operation.operator, operation.operator)
        return found if _group(operation) else ""
    if operation.operator == "conv_chain":
        return "windows, chain" if dtype in _FLOATS and _chain(operation) else ""
    if operation.operator == "product_chain":
        known = np.dtype(operation.parameter("sums")) in TEIR_DTYPES | _NARROW
        return "contraction, chain" if known and _chain(operation) else ""
    if asked in MONOIDS:
        if _slides(operation):
            return "windows" if operation.input("x").dtype == dtype and dtype in _FLOATS else ""
        return "reduction" if _reduces(operation) else ""
    return "chain" if _chain(operation) else ""


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """What a program depends on beside the layouts of its operands.

    Args:
        family: as `lowering` names it.
        operator: of the operation.
        asked: what the operator's row asks for.
        parameters: of the operation, but for those that the steps and the layouts say.
        names: of the operands.
        long: whether the sums of a contraction are so long that they are formed in pieces.
        steps: of a chain or a group, as primitives.
        product: of a chain behind a product: its operator, letters of its operands and its result, and their type.
    """

    family: str
    operator: str
    asked: str
    parameters: tuple[tuple[str, Any], ...]
    names: tuple[str, ...]
    long: bool = False
    steps: tuple[tuple[Any, ...], ...] = ()
    product: tuple[str, tuple[str, ...], str, str] | None = None

    def parameter(self, name: str) -> Any:
        """A parameter of the operation; KeyError where it has none of this name."""
        return dict(self.parameters)[name]

    def numbers(self) -> list[float]:
        """The constants of its steps that may come from extents: finite, not 0 and not 1."""
        return [step[1][0] for step in self.steps if _is_number(step)]

    def signs(self) -> tuple[float, ...]:
        """Of all constants of its steps: kinds with 0.0 and with -0.0 are equal, and not the same."""
        return signs_of([step[1][0] for step in self.steps if step[0] == FILL])

    def with_numbers(self, numbers: Sequence[float | None]) -> ProgramKind:
        """The kind with others of them."""
        if not numbers:
            return self
        rest = iter(numbers)
        return replace(self, steps=tuple([(s[0], (next(rest),), *s[2:]) if _is_number(s) else s for s in self.steps]))


def _is_number(step: tuple[Any, ...]) -> bool:
    return step[0] == FILL and may_be_of_sizes(step[1][0])


def signs_of(numbers: Sequence[float]) -> tuple[float, ...]:
    """The sign of each number, also of zeros."""
    return tuple([copysign(1.0, number) for number in numbers])


def program_kind(operation: Operation, stage: str, names: Sequence[str]) -> ProgramKind:
    """The kind of the programs of an operation that has a `lowering`.

    Args:
        operation, stage: as of `lowering`.
        names: of the operands that a shard reads.
    """
    family = lowering(operation, stage)
    steps: Sequence[tuple[Any, ...]] = ()
    if family in ("group", "attention"):
        steps = _group(operation)
    elif family.endswith("chain") or operation.operator == "product_chain":
        steps = _chain(operation)
    long, product = False, None
    if operation.operator == "product_chain":
        found, _ = product_of(operation)
        terms, whole = found.letters
        product = found.operator, tuple(terms), whole, dtype_name(found.dtype)
    elif family == "contraction":
        long = _is_long(operation)
    parameters = tuple([pair for pair in operation.parameters if pair[0] not in _SAID])
    asked = operator_of(operation).lowering
    return ProgramKind(family, operation.operator, asked, parameters, tuple(names), long, tuple(steps), product)


_SAID = frozenset(("program", "shape"))


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


def factors_of(one: Sequence[int], other: Sequence[int]) -> list[int]:
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
    return x.dtype in MOVED and x.type.box.size >= ELEMENTS and bool(factors_of(x.shape, out.shape))


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
    return _chain_steps(tuple(done), tuple(inputs))


@lru_cache(maxsize=1024)
def _chain_steps(done: Chain, inputs: tuple[str, ...]) -> Chain:
    """`_chain` of steps by operator, for inputs of some types."""
    found: list[tuple[str, tuple[int, ...], str]] = []
    for name, args, kind in done:
        types = [inputs[a] if a >= 0 else found[-1 - a][2] for a in args]
        made = _named(kind)
        step = _step(_asked(name), (*types, made)) if all(types) and made else ""
        if not step or (name in _OF_TRUTHS_ONLY and {*types} != {_BOOL}):
            return ()
        found.append((step, args, made))
    return tuple((step, args, _held(made)) for step, args, made in found)


def _group(operation: Operation) -> Sequence[tuple[Any, ...]]:
    """The steps of a group of rows as primitives; empty where some has none, or where a sum is long."""
    program: Sequence[tuple[str, tuple[Any, ...], str]] = operation.parameter("program")
    types, each = tuple([x.dtype for _, x in operation.inputs]), None
    if operation.operator == "attention":
        length = _keys(operation)
    else:
        rank, axes = operation.parameter("rank"), operation.parameter("axes")
        shapes = [(1,) * (rank - len(x.shape)) + x.shape for _, x in operation.inputs]
        length = prod([max([shape[k] for shape in shapes]) for k in axes])
        each = tuple([any(shape[k] > 1 for k in axes) for shape in shapes])
    numbers = [arguments[0] for name, arguments, _ in program if name == "full" and may_be_of_sizes(arguments[0])]
    if numbers:
        program = [(n, (2.0,), t) if n == "full" and may_be_of_sizes(a[0]) else (n, a, t) for n, a, t in program]
    dtype, signs = operation.output_types["out"].dtype, signs_of([a[0] for n, a, _ in program if n == "full"])
    steps = _group_steps(tuple(program), types, dtype, length > LONGEST_SUM, each, signs)
    rest = iter(numbers)
    return [(s[0], (next(rest),), *s[2:]) if _is_number(s) else s for s in steps] if numbers else steps


@lru_cache(maxsize=1024)
def _group_steps(
    program: Sequence[tuple[str, tuple[Any, ...], str]],
    types_in: tuple[np.dtype[Any], ...],
    dtype: np.dtype[Any],
    long: bool,
    each: tuple[bool, ...] | None,
    signs: tuple[float, ...],
) -> Sequence[tuple[Any, ...]]:
    """`_group` for a program whose numbers are left out, where they may come from extents.

    Args:
        program: steps by operator.
        types_in: of the inputs.
        dtype: of the result.
        long: whether a row is longer than sums may be.
        each: per input, whether it has a value per element of a row; None: it is attention.
        signs: of the numbers: programs with 0.0 and with -0.0 are equal, and not the same.
    """
    narrow = dtype in _NARROW  # steps compute in FP32, what is read and the last result may be of 16 bits
    own = dtype_name(dtype) if dtype in _FLOATS else "FP32" if narrow else ""
    halves = {dtype_name(one) for one in types_in if one in _NARROW} if own == "FP32" else set()
    inputs = list(map(_type_name, types_in))
    if each is None:
        inputs = [own, *inputs[3:]]
    types = [_named(kind) for _, _, kind in program]
    if not own or not {*inputs, *types} <= {own, _BOOL, dtype_name(dtype), *halves}:
        return []
    found: list[tuple[Any, ...]] = []
    for name, arguments, _ in program:
        if name == "full" and isnan(arguments[0]):
            return []
        lowering, made = FILL if name == "full" else _asked(name), types[len(found)]
        given = () if lowering == FILL else tuple(inputs[a] if a >= 0 else types[-1 - a] for a in arguments)
        if lowering in MONOIDS:
            if given != (made,) or (long and name not in ("max", "min")):
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
        return _by_inverses(each or (), found, own)
    # its division as a product with one inverse per row: the divisor is a sum of 1 and more, or NaN
    (power, total), k = found[-1][1], len(found)
    rounded = [("Cast", (-2 - k,), dtype_name(dtype))] if narrow else []
    return [*found[:-1], ("Fill", (1.0,), own), ("Div", (-k, total)), ("Mul", (power, -1 - k)), *rounded]


def _by_inverses(each_input: Sequence[bool], steps: Sequence[tuple[Any, ...]], own: str) -> list[tuple[Any, ...]]:
    """The steps of a group of rows, elements divided by a square root, one per row, as products with its inverse.

    A square root is so far from the ends of the range that its inverse is finite, but for that of zero, and normal, but
    for that of infinity: so special values stay what they are.
    """
    found: list[tuple[Any, ...]] = []
    at, each = list[int](), list[bool]()  # of every step: its place now, whether it has a value per element
    for kind, arguments, *more in steps:
        if kind == FILL:
            found.append((kind, arguments, *more))
            each.append(False)
        else:
            many = [each_input[a] if a >= 0 else each[-1 - a] for a in arguments]
            moved = tuple(a if a >= 0 else -1 - at[-1 - a] for a in arguments)
            each.append(any(many) and kind not in MONOIDS)
            if kind == "Div" and many == [True, False] and moved[1] < 0 and found[-1 - moved[1]][0] == "Sqrt":
                found += [(FILL, (1.0,), own), ("Div", (-1 - len(found), moved[1]))]
                kind, moved = "Mul", (moved[0], -len(found))
            found.append((kind, moved, *more))
        at.append(len(found) - 1)
    return found


def key_letter(letters: Sequence[str]) -> str:
    """The letter of an attention's keys."""
    _, k, v, made = letters
    (key,) = set(k) & set(v) - set(made)
    return str(key)


def _keys(operation: Operation) -> int:
    """How many keys an attention has."""
    letters: str = operation.parameter("letters")[1]
    return operation.input("k").shape[letters.index(key_letter(operation.parameter("letters")))]


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
    return operation.operator, pairs_key(operation.parameters), stage, family, long, shown


Thing = TypeVar("Thing")


def in_order(operation: Operation, arrays: Mapping[str, Thing], out: Thing) -> list[Thing]:
    """The arrays of a shard in the order of its program's tensors: inputs, the output, then what comes behind."""
    chained = operation.operator == "product_chain"
    last = list(arrays)[2:] if chained else operator_of(operation).finish
    late = [array for name, array in arrays.items() if name in last]
    return [*list(arrays.values())[: len(arrays) - len(late)], out, *late]
