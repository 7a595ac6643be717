"""ATen operators on single elements: arithmetic, functions, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten, cast, common, dtype_of, real
from tileweave.frontends.values import Value
from tileweave.graph import Tensor, array_api
from tileweave.graph.ir.dtypes import is_floating


def _unary(names: dict[str, str], convert: Callable[[Tensor], Tensor]) -> None:
    for name, function in names.items():

        def one(call: AtenCall, function: str = function) -> Any:
            return getattr(g, function)(convert(call.x()))

        aten(name)(one)


_unary(
    {"abs.default": "absolute", "prims.abs.default": "absolute",
     "neg.default": "negative", "prims.neg.default": "negative", "relu.default": "relu", "floor.default": "floor",
     "ceil.default": "ceil", "round.default": "round", "prims.round.default": "round",
     "logical_not.default": "logical_not",
     "bitwise_not.default": "invert", "isnan.default": "isnan", "isinf.default": "isinf", "trunc.default": "trunc",
     "prims.signbit.default": "signbit"},
    lambda x: x,
)  # fmt: skip
_unary(
    {"cos.default": "cos", "sin.default": "sin", "tan.default": "tan", "tanh.default": "tanh", "exp.default": "exp",
     "log.default": "log", "sqrt.default": "sqrt", "erf.default": "erf", "sigmoid.default": "sigmoid",
     "acos.default": "arccos", "asin.default": "arcsin", "atan.default": "arctan", "sinh.default": "sinh",
     "cosh.default": "cosh", "acosh.default": "arccosh", "asinh.default": "arcsinh", "atanh.default": "arctanh",
     "exp2.default": "exp2", "prims.exp2.default": "exp2", "expm1.default": "expm1", "log10.default": "log10",
     "log1p.default": "log1p", "log2.default": "log2", "lgamma.default": "lgamma", "digamma.default": "digamma",
     "erfc.default": "erfc", "erfinv.default": "erfinv", "special_erfcx.default": "erfcx",
     "special_ndtri.default": "ndtri", "special_log_ndtr.default": "log_ndtr", "i0.default": "i0",
     "special_i0e.default": "i0e", "special_i1.default": "i1", "special_i1e.default": "i1e",
     "special_modified_bessel_i0.default": "i0", "special_modified_bessel_i1.default": "i1",
     "special_bessel_j0.default": "j0", "special_bessel_j1.default": "j1", "prims.lgamma.default": "lgamma",
     "prims.digamma.default": "digamma", "prims.erfc.default": "erfc", "prims.erf_inv.default": "erfinv",
     "prims.erfcx.default": "erfcx", "prims.ndtri.default": "ndtri", "prims.bessel_i0.default": "i0",
     "prims.bessel_i0e.default": "i0e", "prims.bessel_i1.default": "i1", "prims.bessel_i1e.default": "i1e",
     "prims.bessel_j0.default": "j0", "prims.bessel_j1.default": "j1"},
    real,
)  # fmt: skip


@aten("sign.default")
def sign(call: AtenCall) -> Tensor:
    """-1, 0 or 1; of truth values, themselves."""
    x = call.x()
    return x if x.dtype.kind == "b" else g.sign(x)


@aten("round.decimals")
def rounded(call: AtenCall) -> Tensor:
    """To so many decimals; of two nearest numbers the even one."""
    return g.round(call.x(), int(call.get("decimals")))


@aten("rsqrt.default", "reciprocal.default")
def reciprocal(call: AtenCall) -> Tensor:
    """1 / x, or of its root."""
    x = real(call.x())
    x = g.sqrt(x) if "rsqrt" in call.where else x
    return g.divide(g.full((), 1.0, x.dtype), x)


def _binary(names: tuple[str, ...], function: str) -> None:
    def convert(call: AtenCall) -> Tensor:
        x = call.x()
        made: Tensor = getattr(g, function)(*common(x, call.like(1, x)))
        return made

    aten(*names)(convert)


for _name, _function in {
    "mul": "multiply", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "remainder": "remainder", "fmod": "fmod",
}.items():  # fmt: skip
    _binary((f"{_name}.Tensor", f"{_name}.Scalar"), _function)
for _name in ("gcd", "lcm", "nextafter"):
    _binary((f"{_name}.default", f"prims.{_name}.default"), _name)
_binary(("__lshift__.Tensor", "__lshift__.Scalar", "prims.shift_left.default"), "left_shift")
_binary(("__rshift__.Tensor", "__rshift__.Scalar", "prims.shift_right_arithmetic.default"), "right_shift")
_binary(("maximum.default",), "maximum")
_binary(("minimum.default",), "minimum")
_binary(("logical_and.default",), "logical_and")
_binary(("logical_or.default",), "logical_or")
_binary(("logical_xor.default",), "logical_xor")


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def add(call: AtenCall) -> Tensor:
    """x + alpha y."""
    x, y = common(call.x(), call.like(1, call.x()))
    alpha = call.get("alpha")
    y = y if alpha == 1 else g.multiply(y, g.full((), alpha, y.dtype))
    return g.add(x, y) if ".add." in call.where else g.subtract(x, y)


@aten("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def divide(call: AtenCall) -> Tensor:
    """A quotient, rounded where that is asked."""
    x, y = common(call.x(), call.like(1, call.x()))
    mode = call.get("rounding_mode") if "_mode" in call.where else None
    if mode == "floor":
        return g.floor_divide(x, y)
    out = g.divide(real(x), real(y))
    return (
        out
        if mode is None
        else cast(g.where(g.less(out, g.full((), 0, out.dtype)), g.ceil(out), g.floor(out)), x.dtype)
    )


@aten("atan2.default")
def angle(call: AtenCall) -> Tensor:
    """The angle of a point."""
    return g.arctan2(*common(real(call.x()), real(call.x(1))))


@aten("pow.Scalar")
def power_of(call: AtenCall) -> Tensor:
    """A number to powers."""
    return _power(*common(call.like(0, call.x(1)), call.x(1)))


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def power(call: AtenCall) -> Tensor:
    """x to a power; squares are products."""
    x = call.x()
    if call.value(1) == 2 if isinstance(call.value(1), (int, float)) else False:
        return g.multiply(x, x)
    given = call.value(1)
    known = isinstance(given, (int, float)) and not isinstance(given, bool)
    return (g.power if known else _power)(*common(x, call.like(1, x)))


def _power(x: Tensor, y: Tensor) -> Tensor:
    """x to the power y; of integers, to a negative one 0, but for 1 and -1, which stay or change their sign."""
    if x.dtype.kind == "b":
        return g.logical_or(x, g.logical_not(y))
    if x.dtype.kind != "i":
        return g.power(x, y)
    zero, one = (g.full((), n, x.dtype) for n in (0, 1))
    unit = g.equal(g.absolute(x), one)
    below = g.less(y, zero)
    parity = g.bitwise_and(y, one)  # a power of 1 or -1 depends on it alone
    made = g.power(x, g.where(g.logical_and(below, unit), parity, g.maximum(y, zero)))
    return g.where(g.logical_and(below, g.logical_not(unit)), zero, made)


@aten("clamp.default", "clamp.Tensor", "hardtanh.default")
def clamp(call: AtenCall) -> Tensor:
    """Between bounds, numbers or tensors."""
    x = call.x()
    for index, function in ((1, g.maximum), (2, g.minimum)):
        if call.value(index) is not None:
            x = function(*common(x, call.like(index, x)))
    return x


@aten("elu.default")
def elu(call: AtenCall) -> Tensor:
    """scale x, below zero scale alpha (exp(input_scale x) - 1)."""
    x, alpha, scale, inner = call.x(), call.get("alpha"), call.get("scale"), call.get("input_scale")
    low = g.multiply(g.expm1(g.multiply(x, g.full((), inner, x.dtype))), g.full((), alpha, x.dtype))
    made = g.where(g.greater(x, g.full((), 0, x.dtype)), x, low)
    return made if scale == 1 else g.multiply(made, g.full((), scale, x.dtype))


@aten("prims.fmax.default", "prims.fmin.default", "fmax.default", "fmin.default")
def extreme_number(call: AtenCall) -> Tensor:
    """The greater or the less of two; a number beside NaN is it."""
    x, y = common(call.x(), call.x(1))
    made = (g.maximum if "fmax" in call.where else g.minimum)(x, y)
    return g.where(g.isnan(x), y, g.where(g.isnan(y), x, made)) if is_floating(x.dtype) else made


@aten("copysign.Tensor", "copysign.Scalar", "prims.copysign.default")
def copysign(call: AtenCall) -> Tensor:
    """The magnitude of one with the sign of another."""
    x = real(call.x())
    return array_api.copysign(*common(x, call.like(1, x)))


@aten("angle.default")
def argument(call: AtenCall) -> Tensor:
    """The angle of a real number: pi below zero, else 0."""
    x = real(call.x())
    half = g.where(g.less(x, g.full((), 0, x.dtype)), g.full((), np.pi, x.dtype), g.full((), 0, x.dtype))
    return g.where(g.isnan(x), x, half)


@aten("prims.hypot.default")
def hypot(call: AtenCall) -> Tensor:
    """The square root of a sum of two squares."""
    return array_api.hypot(*common(call.x(), call.x(1)))


@aten("native_dropout.default")
def dropout(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The value itself, outside training."""
    if call.get("train"):
        raise GraphError(call.where, "dropout of training", legal="evaluation mode")
    return call.x(), g.full(call.x().shape, True, np.bool_)


@aten("copy.default")
def copied(call: AtenCall) -> Tensor:
    """The second tensor in the shape and type of the first one."""
    x = call.x()
    return g.broadcast_to(cast(call.x(1), x.dtype), x.shape)


@aten("fill.Scalar", "fill.Tensor")
def filled(call: AtenCall) -> Tensor:
    """One value in the shape and type of a tensor."""
    x = call.x()
    return g.broadcast_to(cast(call.like(1, x), x.dtype), x.shape)


@aten("gelu.default")
def gelu(call: AtenCall) -> Tensor:
    """Exact, or by tanh."""
    return g.gelu(call.x(), "tanh" if call.get("approximate") == "tanh" else "none")


@aten("leaky_relu.default")
def leaky_relu(call: AtenCall) -> Tensor:
    """x, or a multiple of it below zero."""
    return g.leaky_relu(call.x(), call.get("negative_slope"))


@aten("where.self")
def where(call: AtenCall) -> Tensor:
    """Elements of one of two tensors."""
    x, y = common(call.x(1), call.x(2))
    return g.where(call.x(), x, y)


@aten("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default")
def same(call: AtenCall) -> Value:
    """The value itself."""
    return call.value(0)


@aten("_assert_tensor_metadata.default", "_assert_async.msg", "sym_constrain_range_for_size.default")
def nothing(call: AtenCall) -> None:
    """A check that holds by the shapes."""


@aten("_to_copy.default", "to.dtype")
def to(call: AtenCall) -> Tensor:
    """Another element type."""
    kind = call.get("dtype")
    return call.x() if kind is None else cast(call.x(), dtype_of(kind))
