"""Elementwise functions beyond arithmetic: rounding, logic, bits, trigonometry, error and gamma functions.

Source: own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import pi
from typing import Any

import numpy as np

from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import (
    Call,
    add,
    cast,
    divide,
    elementwise,
    elementwise_operator,
    elementwise_row,
    exp,
    flat,
    maximum,
    minimum,
    multiply,
    negative,
    sign,
    sqrt,
    subtract,
)
from tileweave.graph.ops.operators import FLOP, FUNCTION, Array, Costs


def _of(ufunc: np.ufunc, gradient: Any = None, lowering: str = "", costs: Costs = FLOP) -> Call:
    return elementwise_operator(ufunc.__name__, ufunc, gradient=gradient, lowering=lowering, costs=costs)


_function = partial(_of, costs=FUNCTION)


# ---------------------------------------------------------------------------------------------------------------------
# rounding, tests, logic, bits


floor: Call = _of(np.floor, flat, "Floor")
ceil: Call = _of(np.ceil, flat, "Ceil")
trunc: Call = _of(np.trunc, flat, "Trunc")
rint: Call = _of(np.rint, flat, "Rint")
isnan: Call = _of(np.isnan, lowering="IsNan")
isinf: Call = _of(np.isinf, lowering="IsInf")
isfinite: Call = _of(np.isfinite, lowering="IsFinite")
signbit: Call = _of(np.signbit)
logical_and: Call = _of(np.logical_and, lowering="Min")  # of truths, which are all that TEIR computes so
logical_or: Call = _of(np.logical_or, lowering="Max")
logical_xor: Call = _of(np.logical_xor, lowering="NotEqual")
logical_not: Call = _of(np.logical_not, lowering="IsZero")
bitwise_and: Call = _of(np.bitwise_and, lowering="And")
bitwise_or: Call = _of(np.bitwise_or, lowering="Or")
bitwise_xor: Call = _of(np.bitwise_xor, lowering="Xor")
invert: Call = _of(np.invert, lowering="IsZero")
left_shift: Call = _of(np.left_shift, lowering="ShiftLeft")
right_shift: Call = _of(np.right_shift, lowering="ShiftRight")
gcd: Call = _of(np.gcd)
lcm: Call = _of(np.lcm)
nextafter: Call = _of(np.nextafter, lambda a, b, y, dy: [dy, None])


@public(np.round)
def round(x: object, decimals: int = 0) -> Tensor:
    """The nearest number of so many decimals, of two the even one, as `numpy.round`."""
    x = as_tensor(x, "round(x, decimals)")
    if x.dtype.kind in "biu" and decimals >= 0:
        return x
    if decimals == 0:
        return rint(x)
    scale = 10.0 ** abs(decimals)
    up, down = (multiply, divide) if decimals > 0 else (divide, multiply)
    out: Tensor = cast(down(rint(up(x, scale)), scale), x.dtype)
    return out


@public(np.clip)
def clip(x: object, low: Any = None, high: Any = None) -> Tensor:
    """Elementwise ``min(max(x, low), high)``; a bound that is None bounds nothing."""
    x = as_tensor(x, "clip(x, low, high)")
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


# ---------------------------------------------------------------------------------------------------------------------
# exponentials, trigonometry


def _over_one_less_square(sign: int, x: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    """The gradient of arcsin and arccos."""
    return [multiply(dy, divide(float(sign), sqrt(subtract(1.0, multiply(x, x)))))]


exp2: Call = _function(np.exp2, lambda x, y, dy: [multiply(dy, multiply(y, math.log(2.0)))])
expm1: Call = _function(np.expm1, lambda x, y, dy: [multiply(dy, add(y, 1.0))])
log1p: Call = _function(np.log1p, lambda x, y, dy: [divide(dy, add(x, 1.0))])
log2: Call = _function(np.log2, lambda x, y, dy: [divide(dy, multiply(x, math.log(2.0)))])
log10: Call = _function(np.log10, lambda x, y, dy: [divide(dy, multiply(x, math.log(10.0)))])
square: Call = _of(np.square, lambda x, y, dy: [multiply(dy, multiply(2.0, x))])
reciprocal: Call = _of(np.reciprocal, lambda x, y, dy: [negative(multiply(dy, multiply(y, y)))])
sin: Call = _function(np.sin, lambda x, y, dy: [multiply(dy, cos(x))], "Sin")
cos: Call = _function(np.cos, lambda x, y, dy: [negative(multiply(dy, sin(x)))], "Cos")
tan: Call = _function(np.tan, lambda x, y, dy: [multiply(dy, add(1.0, multiply(y, y)))])
arcsin: Call = _function(np.arcsin, partial(_over_one_less_square, 1))
arccos: Call = _function(np.arccos, partial(_over_one_less_square, -1))
arctan: Call = _function(np.arctan, lambda x, y, dy: [divide(dy, add(1.0, multiply(x, x)))])
sinh: Call = _function(np.sinh, lambda x, y, dy: [multiply(dy, cosh(x))])
cosh: Call = _function(np.cosh, lambda x, y, dy: [multiply(dy, sinh(x))])
arcsinh: Call = _function(np.arcsinh, lambda x, y, dy: [divide(dy, sqrt(add(multiply(x, x), 1.0)))])
arccosh: Call = _function(np.arccosh, lambda x, y, dy: [divide(dy, sqrt(subtract(multiply(x, x), 1.0)))])
arctanh: Call = _function(np.arctanh, lambda x, y, dy: [divide(dy, subtract(1.0, multiply(x, x)))])


def _arctan2_gradient(a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    share = divide(dy, add(multiply(a, a), multiply(b, b)))
    return [multiply(share, b), negative(multiply(share, a))]


def _fmod_gradient(a: Tensor, b: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    return [dy, negative(multiply(dy, trunc(divide(a, b))))]


arctan2: Call = _function(np.arctan2, _arctan2_gradient)
fmod: Call = _of(np.fmod, _fmod_gradient)


# ---------------------------------------------------------------------------------------------------------------------
# the error function


def erf_of(x: Array) -> Array:
    """The error function of every element, computed in float64, in the type of x; NaN stays NaN."""
    if not np.any(x):
        return np.array(x)  # zeros stay; SciPy takes 0.2 s to load
    from scipy.special import erf as of_floats  # type: ignore[import-untyped]

    return np.asarray(of_floats(x.astype(np.float64)).astype(x.dtype))


@public()
def erf(x: Any) -> Tensor:
    """Elementwise error function, to the last two places of float64; integers become float64."""
    x = as_tensor(x, "erf(x)")
    x = cast(x, np.float64) if x.dtype.kind in "biu" else x
    return elementwise("erf", [x], x.dtype)


def _erf_gradient(x: Tensor, y: Tensor, dy: Tensor) -> list[Tensor]:
    return [multiply(dy, multiply(2 / math.sqrt(pi), exp(negative(multiply(x, x)))))]


elementwise_row(
    "erf", lambda operation, inputs: {"out": erf_of(inputs["x"])}, 1, _erf_gradient, lowering="Erf", costs=FUNCTION
)


# ---------------------------------------------------------------------------------------------------------------------
# further functions of SciPy


def _special(name: str, gradient: Any = None, scipys: str = "", numpys: Sequence[Any] = ()) -> Call:
    """A function of `scipy.special`, computed in float64, in the type of x; integers become float64."""

    def block(x: Array) -> Array:
        import scipy.special  # type: ignore[import-untyped]

        return np.asarray(getattr(scipy.special, scipys or name)(x.astype(np.float64)))

    return elementwise_operator(name, block, types=np.exp, gradient=gradient, costs=FUNCTION, numpys=numpys)


erfc: Call = _special(
    "erfc", lambda x, y, dy: [multiply(dy, multiply(-2 / math.sqrt(pi), exp(negative(multiply(x, x)))))]
)
erfcx: Call = _special(
    "erfcx", lambda x, y, dy: [multiply(dy, subtract(multiply(multiply(2.0, x), y), 2 / math.sqrt(pi)))]
)
erfinv: Call = _special("erfinv", lambda x, y, dy: [multiply(dy, multiply(math.sqrt(pi) / 2, exp(multiply(y, y))))])
ndtri: Call = _special(
    "ndtri", lambda x, y, dy: [multiply(dy, multiply(math.sqrt(2 * pi), exp(multiply(0.5, multiply(y, y)))))]
)
log_ndtr: Call = _special("log_ndtr")
lgamma: Call = _special("lgamma", lambda x, y, dy: [multiply(dy, digamma(x))], "gammaln")
digamma: Call = _special("digamma")
i0: Call = _special("i0", lambda x, y, dy: [multiply(dy, i1(x))], numpys=(np.i0,))
i0e: Call = _special("i0e", lambda x, y, dy: [multiply(dy, subtract(i1e(x), multiply(sign(x), y)))])
i1: Call = _special("i1")
i1e: Call = _special("i1e")
j0: Call = _special("j0", lambda x, y, dy: [negative(multiply(dy, j1(x)))])
j1: Call = _special("j1")
