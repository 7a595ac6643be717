"""Operations beyond the document's, registered as its own are; the ``tileweave`` profile has them.

- *Elementwise, one input*: Neg and Abs; Exp, Log, Sqrt, Tanh, Sigmoid, Erf, Gelu, Sin, Cos on floating point; Cast
  between any two types; Wrap from floating point to integers.
- *Elementwise, two inputs of one type*: Add, Sub, Mul, Max, Min; Div and LogAddExp on floating point; FloorDiv,
  Remainder, ShiftLeft, ShiftRight, And, Or, Xor of integers.
- *Comparisons and choices*: Less, LessEqual, Greater, GreaterEqual, Equal, NotEqual of two inputs of one type give 1 or
  0 as INT8, as IEEE 754 and NumPy compare; IsZero and NonZero compare one input with zero; IsNan, IsInf, IsFinite ask
  what a float is; Select takes one of two inputs of one type by such a truth.
- *In place on the output*: Bias adds in0 to it, Scale multiplies it by in0; in0 is usually broadcast by zero strides.
- *Neutral elements*: One, Lowest and Highest fill the output as Zero does, so that a reduction can start. Fill writes
  the number ``value`` of the primitive's metadata.
- *Reductions*: ReduceSum, ReduceProd, ReduceMax, ReduceMin take in0 into the output along their K axes.

Choices, each the same in every backend:

- Narrow floating point (BF16, FP16) is computed in FP32 and rounded once per step. Integers wrap.
- Max and Min give NaN when either input is NaN; which of 0.0 and -0.0 wins is free.
- Gelu is ``x * P(X <= x)`` of the normal distribution, to two units of the last place, and not the approximation by
  tanh. It has the sign of x: of -0.0, of what underflows, and of -inf it is -0.0.
- Cast rounds to nearest even between floating-point types, wraps between integers, and from floating point to integers
  cuts the fraction, clamps to the type's range and turns NaN into 0.
- Wrap cuts the fraction and wraps, by way of INT32, and of INT64 to INT64, whose least number stands for NaN and for
  what it does not hold. NumPy's ``astype`` gives the same on x86; to UINT32 and UINT64 it gives now this, now that, so
  Wrap takes none of them.
- FloorDiv and Remainder by zero are 0; of the least integer by -1 they are the least integer and 0. A shift by as many
  bits as there are, by more, or by a negative number, leaves 0, to the right the sign.

Source: own, in the form of TEIR's table 10.3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tileweave.teir.ir.dtypes import accumulator, contraction_dtype, dtype_name, is_float, numpy_dtype, width_bytes
from tileweave.teir.ir.primitives import OperationSpec, register

Function = Callable[..., Any]


def _wide(dtype: Any) -> Any:
    return numpy_dtype(accumulator(dtype_name(dtype)))


def _sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _erf(x: Any) -> Any:
    return np.frompyfunc(math.erf, 1, 1)(x.astype("float64")).astype("float64")


def _gelu(x: Any) -> Any:
    wide = x.astype("float64")
    return np.where(np.isneginf(x), -0.0, wide * np.frompyfunc(_below, 1, 1)(wide).astype("float64"))


_INVERSE_ROOT = (math.sqrt(0.5), -4.833646656726457e-17)
"""1 / sqrt(2), and what its nearest double lacks."""


def _below(x: float) -> float:
    """P(X <= x) of the normal distribution; in the tail the rounding of x / sqrt(2) would count thousandfold."""
    high, low = _INVERSE_ROOT
    u = -x * high
    near = math.erfc(u) / 2
    if not -40.0 < x < -1.0:
        return near
    lost = _product_error(-x, high, u) - x * low  # the argument is u + lost
    return near - math.exp(-u * u) * lost / math.sqrt(math.pi)


def _product_error(a: float, b: float, product: float) -> float:
    """``a * b - product`` without rounding, by Dekker's halves."""
    split = 134217729.0  # 2 ** 27 + 1
    a_high, b_high = (split * v - (split * v - v) for v in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _cast(inputs: tuple[Any, ...], output: Any) -> Any:
    (x,) = inputs
    if x.dtype == output.dtype or not is_float(dtype_name(x.dtype)) or is_float(dtype_name(output.dtype)):
        return x.astype(output.dtype)
    cut = np.trunc(x.astype("float64"))
    limits = np.iinfo(output.dtype)
    low, bound = float(limits.min), 2.0 ** limits.max.bit_length()
    inside = (cut >= low) & (cut < bound)  # false for NaN
    found = np.where(inside, cut, 0).astype(output.dtype)
    return np.where(
        cut >= bound, output.dtype.type(limits.max), np.where(cut < low, output.dtype.type(limits.min), found)
    )


def _wrap(inputs: tuple[Any, ...], output: Any) -> Any:
    cut = np.trunc(inputs[0].astype("float64"))
    held = np.dtype("int64" if output.dtype.itemsize == 8 else "int32")
    inside = np.abs(cut) < 2.0 ** np.iinfo(held).max.bit_length()  # false for NaN
    return np.where(inside, np.where(inside, cut, 0).astype(held), np.iinfo(held).min).astype(output.dtype)


def _of(function: Function) -> Callable[[tuple[Any, ...], Any], Any]:
    """A step that computes the inputs' function in the wide type."""

    @np.errstate(divide="ignore", over="ignore")  # of integers
    def step(inputs: tuple[Any, ...], output: Any) -> Any:
        return function(*(x.astype(_wide(x.dtype)) for x in inputs)).astype(output.dtype)

    return step


def _into(function: Function) -> Callable[[tuple[Any, ...], Any], Any]:
    """A step that takes the input into the output."""

    def step(inputs: tuple[Any, ...], output: Any) -> Any:
        wide = _wide(output.dtype)
        return function(output.astype(wide), inputs[0].astype(wide)).astype(output.dtype)

    return step


def _filled(value: Callable[[Any], Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    def step(inputs: tuple[Any, ...], output: Any) -> Any:
        return np.full_like(output, value(output.dtype))

    return step


def _lowest(dtype: Any) -> Any:
    return -math.inf if is_float(dtype_name(dtype)) else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return math.inf if is_float(dtype_name(dtype)) else np.iinfo(dtype).max


def _fill(inputs: tuple[Any, ...], output: Any) -> Any:
    return np.full_like(output, numpy_dtype(dtype_name(output.dtype)).type(inputs[0]))


# ── which element types fit ───────────────────────────────────────────────────────────────────────────────────────────


def _any(names: tuple[str, ...]) -> str:
    return ""


def _same(names: tuple[str, ...]) -> str:
    return "" if len(set(names)) == 1 else f"its operands differ in type: {', '.join(names)}"


def _floating(names: tuple[str, ...]) -> str:
    return _same(names) or ("" if is_float(names[0]) else f"it is a function of floating point, not of {names[0]}")


def _widens(names: tuple[str, ...]) -> str:
    source, target = names
    if is_float(source) != is_float(target) or width_bytes(source) > width_bytes(target):
        return f"it takes {source} into {target}, which does not hold all of its values"
    if source != target and width_bytes(source) == width_bytes(target):
        return f"it takes {source} into {target}, which does not hold all of its values"
    return ""


def _sums_wide(names: tuple[str, ...]) -> str:
    why = _widens(names)
    if not why and width_bytes(contraction_dtype(*names)) > width_bytes(names[1]):
        return f"it accumulates in {names[1]}, which is narrower than {contraction_dtype(*names)}"
    return why


def _integers(names: tuple[str, ...]) -> str:
    return _same(names) or (f"it is a function of integers, not of {names[0]}" if is_float(names[0]) else "")


def _wraps(names: tuple[str, ...]) -> str:
    source, target = names
    if not is_float(source) or is_float(target) or target in ("UINT32", "UINT64"):
        return f"it takes floating point into integers, not {source} into {target}"
    return ""


# ── the operations ────────────────────────────────────────────────────────────────────────────────────────────────────


def _elementwise(name: str, inputs: int, meaning: str, function: Function, fits: Callable[..., str]) -> str:
    register(OperationSpec(name, ("M", "N"), inputs, False, (), meaning, _of(function), fits, ()))
    return name


UNARY: tuple[str, ...] = (
    _elementwise("Neg", 1, "out = -in0", np.negative, _same),
    _elementwise("Abs", 1, "out = |in0|", np.absolute, _same),
    _elementwise("Sign", 1, "out = 1, 0 or -1 as in0 is above, at or below 0; NaN kept", np.sign, _same),
    _elementwise("Floor", 1, "out = the greatest whole number up to in0", np.floor, _floating),
    _elementwise("Ceil", 1, "out = the least whole number from in0", np.ceil, _floating),
    _elementwise("Trunc", 1, "out = in0 without its fraction", np.trunc, _floating),
    _elementwise("Rint", 1, "out = the nearest whole number, of two the even one", np.rint, _floating),
    _elementwise("Exp", 1, "out = exp(in0)", np.exp, _floating),
    _elementwise("Log", 1, "out = log(in0), natural", np.log, _floating),
    _elementwise("Sqrt", 1, "out = sqrt(in0)", np.sqrt, _floating),
    _elementwise("Tanh", 1, "out = tanh(in0)", np.tanh, _floating),
    _elementwise("Sigmoid", 1, "out = 1 / (1 + exp(-in0))", _sigmoid, _floating),
    _elementwise("Erf", 1, "out = erf(in0)", _erf, _floating),
    _elementwise("Gelu", 1, "out = in0 * P(X <= in0), X normal", _gelu, _floating),
    _elementwise("Sin", 1, "out = sin(in0)", np.sin, _floating),
    _elementwise("Cos", 1, "out = cos(in0)", np.cos, _floating),
    register(OperationSpec("Cast", ("M", "N"), 1, False, (), "out = in0 in out's type", _cast, _any, ())).name,
    register(
        OperationSpec("Wrap", ("M", "N"), 1, False, (), "out = in0 cut, modulo out's range", _wrap, _wraps, ())
    ).name,
)
"""Operations of one input, element by element."""

BINARY: tuple[str, ...] = (
    _elementwise("Add", 2, "out = in0 + in1", np.add, _same),
    _elementwise("Sub", 2, "out = in0 - in1", np.subtract, _same),
    _elementwise("Mul", 2, "out = in0 * in1", np.multiply, _same),
    _elementwise("Div", 2, "out = in0 / in1", np.divide, _floating),
    _elementwise("Max", 2, "out = max(in0, in1), NaN kept", np.maximum, _same),
    _elementwise("Min", 2, "out = min(in0, in1), NaN kept", np.minimum, _same),
    _elementwise("LogAddExp", 2, "out = log(exp(in0) + exp(in1))", np.logaddexp, _floating),
    _elementwise("FloorDiv", 2, "out = in0 / in1, rounded down", np.floor_divide, _integers),
    _elementwise("Remainder", 2, "out = in0 less in1 times the floor of in0 / in1", np.remainder, _integers),
    _elementwise("ShiftLeft", 2, "out = in0 times two to the power in1", np.left_shift, _integers),
    _elementwise("ShiftRight", 2, "out = in0 by two to the power in1, rounded down", np.right_shift, _integers),
    _elementwise("And", 2, "out = the bits that in0 and in1 both have", np.bitwise_and, _integers),
    _elementwise("Or", 2, "out = the bits that in0 or in1 has", np.bitwise_or, _integers),
    _elementwise("Xor", 2, "out = the bits that one of in0 and in1 has", np.bitwise_xor, _integers),
)
"""Operations of two inputs, element by element."""


def _compares(names: tuple[str, ...]) -> str:
    return _same(names[:-1]) or ("" if names[-1] == "INT8" else f"its truth is 1 or 0 of INT8, not of {names[-1]}")


def _selects(names: tuple[str, ...]) -> str:
    return _same(names[1:]) or ("" if names[0] == "INT8" else f"its condition is INT8, not {names[0]}")


def _tests(names: tuple[str, ...]) -> str:
    return _compares((names[0], *names))


def _asks(names: tuple[str, ...]) -> str:
    return _tests(names) or ("" if is_float(names[0]) else f"it asks of floating point, not of {names[0]}")


CHOICES: tuple[str, ...] = (
    _elementwise("IsZero", 1, "out = in0 == 0", lambda x: x == 0, _tests),
    _elementwise("NonZero", 1, "out = in0 != 0", lambda x: x != 0, _tests),
    _elementwise("IsNan", 1, "out = in0 is no number", np.isnan, _asks),
    _elementwise("IsInf", 1, "out = in0 is inf or -inf", np.isinf, _asks),
    _elementwise("IsFinite", 1, "out = in0 is neither of them", np.isfinite, _asks),
    _elementwise("Less", 2, "out = in0 < in1", np.less, _compares),
    _elementwise("LessEqual", 2, "out = in0 <= in1", np.less_equal, _compares),
    _elementwise("Greater", 2, "out = in0 > in1", np.greater, _compares),
    _elementwise("GreaterEqual", 2, "out = in0 >= in1", np.greater_equal, _compares),
    _elementwise("Equal", 2, "out = in0 == in1", np.equal, _compares),
    _elementwise("NotEqual", 2, "out = in0 != in1", np.not_equal, _compares),
    _elementwise("Select", 3, "out = in1 where in0 is not 0, else in2", lambda c, x, y: np.where(c, x, y), _selects),
)
"""Comparisons, whose truth is 1 or 0, and the choice by such a truth."""


def _in_place(name: str, meaning: str, function: Function, monoid: str) -> str:
    spec = OperationSpec(name, ("M", "N"), 1, True, (), meaning, _into(function), _widens, (), monoid)
    return register(spec).name


IN_PLACE: tuple[str, ...] = (
    _in_place("Bias", "out = out + in0", np.add, "sum"),
    _in_place("Scale", "out = out * in0", np.multiply, "prod"),
)
"""Operations that take one input into the element that the output holds."""


def _neutral(name: str, meaning: str, value: Callable[[Any], Any]) -> str:
    return register(OperationSpec(name, ("M", "N"), 0, False, (), meaning, _filled(value), _any, ())).name


NEUTRAL: dict[str, str] = {
    "sum": "Zero",
    "prod": _neutral("One", "out = 1", lambda dtype: 1),
    "max": _neutral("Lowest", "out = -inf, or the least integer", _lowest),
    "min": _neutral("Highest", "out = inf, or the greatest integer", _highest),
}
"""Monoid -> the operation that fills the output with its neutral element."""


def _reduction(monoid: str, name: str, meaning: str, function: Function, fits: Callable[..., str]) -> str:
    spec = OperationSpec(name, ("M", "N", "K"), 1, True, ("K",), meaning, _into(function), fits, (), monoid)
    return register(spec).name


REDUCTIONS: dict[str, str] = {
    "sum": _reduction("sum", "ReduceSum", "out = out + in0", np.add, _sums_wide),
    "prod": _reduction("prod", "ReduceProd", "out = out * in0", np.multiply, _sums_wide),
    "max": _reduction("max", "ReduceMax", "out = max(out, in0), NaN kept", np.maximum, _widens),
    "min": _reduction("min", "ReduceMin", "out = min(out, in0), NaN kept", np.minimum, _widens),
}
"""Monoid -> the operation that reduces by it."""

FILL: str = register(
    OperationSpec("Fill", ("M", "N"), 0, False, (), "out = value", _fill, _any, (), parameters=("value",))
).name
"""The operation that writes the number ``value`` of its metadata."""
