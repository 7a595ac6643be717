"""Vector mathematics in IR: exp, log, sqrt, tanh, sigmoid, erf, gelu on FP32 and FP64, a few instructions per vector.

Each function reduces its argument to a short interval, evaluates a polynomial there and puts the result together again.
All lanes take the same path; special values are selected at the end. No run-time library is called.

Errors in units of the last place of the result, over every argument, subnormal ones and results included: sqrt is
rounded correctly, log is within 1, exp within 1.1, tanh within 1.5, sigmoid within 2.1, erf within 1.2 in FP32 and 3
in FP64, gelu within 3.5 in FP64 and 6.5 in FP32. NaN gives NaN.

The coefficients but those of erf's series in FP64 are minimax: found by the Remez exchange, then rounded; the
comment at each set gives the largest relative error of the exact polynomial. Source: own, on the classical reductions
(Cody and Waite; Tang).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tileweave.backends.cpu.llvm.elements import splat, vector
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.vectors import suffix
from tileweave.backends.cpu.target.target import Target


@dataclass(frozen=True, slots=True)
class _Ratio:
    """``exp(a**2 / 2) * P(X <= -a)`` of the normal distribution as a ratio of two polynomials in ``0 <= a <= end``.

    Args:
        end: where ``a * P(X <= -a)`` is zero.
        over: the numerator.
        under: the denominator, without its highest coefficient, which is 1.
    """

    end: float
    over: tuple[float, ...]
    under: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Halves:
    """The normal distribution near zero and in its tail.

    Args:
        normal: of ``(P(X <= x) - 1/2) / x`` in ``x**2``, ``|x| <= 1``.
        end: where ``x * P(X <= -x)`` is zero.
        center: c of the variable ``t = (a - c) / (a + c)``.
        tail: of ``a * exp(a**2 / 2) * P(X <= -a)`` in t, ``1 <= a <= end``.
    """

    normal: tuple[float, ...]
    end: float
    center: float
    tail: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Format:
    """What the functions need to know of a floating-point type.

    Args:
        integer: the LLVM integer of the same width.
        mantissa: explicit bits of the significand.
        bias: of the exponent.
        ln2: the logarithm of 2 as a number with so few bits that its multiples by exponents are exact, and the rest.
        exp_range: arguments whose exponential is certainly zero, and certainly infinite.
        exp: of ``(exp(r) - 1 - r) / r**2`` for ``|r| <= log(2) / 2``.
        log: of ``(log(1 + f) - 2 s) / s**3`` in ``s**2``, ``s = f / (2 + f)``, ``sqrt(1/2) <= 1 + f <= sqrt(2)``.
        tanh: of ``(tanh(x) - x) / x**3`` in ``x**2``, ``|x| <= 0.55``.
        normal: the normal distribution: quick, or close.
    """

    integer: str
    mantissa: int
    bias: int
    ln2: tuple[float, float]
    exp_range: tuple[float, float]
    exp: tuple[float, ...]
    log: tuple[float, ...]
    tanh: tuple[float, ...]
    normal: _Ratio | _Halves


_FORMATS = {
    "float": _Format(
        "i32",
        23,
        127,
        (0.693145751953125, 1.4286068203094172e-06),
        (-104.0, 89.0),
        # 2**-26.1 of exp(r) - 1
        (0.50000000656709274656, 0.16666538014455691008, 0.041666266625933173697, 0.0083672468671555119267)
        + (0.0013947593848381096857,),
        # 2**-30.1 of the logarithm
        (0.66666778609142858628, 0.3997719079537336149, 0.29882690964209700884),
        # 2**-29.8
        (-0.33333318025363668593, 0.13332598500407119267, -0.053853401938521951832, 0.021075622109539541005)
        + (-0.0062792567673193980084,),
        # 2**-27.3
        _Ratio(
            14.5,
            (48.459294250458868572, 42.478925009089250483, 17.758889590359612190, 3.9381147552920712134)
            + (0.39894691032270055163,),
            (96.918587928178192057, 162.28773573324169612, 116.54489969216130525, 45.500427530484544925)
            + (9.8720146384266339227,),
        ),
    ),
    "double": _Format(
        "i64",
        52,
        1023,
        (0.6931471803691238, 1.9082149292705877e-10),
        (-746.0, 710.0),
        # 2**-55.5 of exp(r) - 1
        (0.50000000000000061241, 0.16666666666666687988, 0.041666666666565995957, 0.0083333333333130629577)
        + (0.0013888888935027638657, 0.00019841269906774592907, 0.000024801501113879037261, 2.7557224298400408945e-6)
        + (2.7627701051740285953e-7, 2.5115710946382832531e-8),
        # 2**-59.3 of the logarithm
        (0.66666666666667349347, 0.39999999999401252358, 0.28571428746931790795, 0.2222219798064078946)
        + (0.18183600635957079395, 0.15312998372240039445, 0.14807581160026305388),
        # 2**-60.5
        (-0.33333333333333303545, 0.13333333333327261923, -0.053968253964060516034, 0.021869488393117261891)
        + (-0.0088632327053576502741, 0.0035920929681955933037, -0.0014555483312874797695, 0.00058846525450535462184)
        + (-0.00023343068690612780291, 0.000083382431808507149436, -0.000019533120793283672776),
        _Halves(
            # 2**-62.4
            (0.39894228040143267647, -0.066490380066905327019, 0.0099735570100329170845, -0.0011873282154475243311)
            + (
                0.00011543468740637357769,
                -9.4446554364571502074e-6,
                6.6596726314682146706e-7,
                -4.1223176106925594676e-8,
            )
            + (2.2696791483032202052e-9, -1.1031872836006436907e-10, 4.012830140430807608e-12),
            39.0,
            4.0,
            # 2**-57.4
            (0.37764256520787574849, 0.073694244221929664502, -0.11037962061483965871, 0.10030777139128321375)
            + (-0.063062641534292856576, 0.026428192961883923638, -0.0055099406690636802644, -0.00092443694987570915506)
            + (0.00088208141502946113848, -0.000048875375826983177845, -0.00011650185386503967149)
            + (0.00001661872130840893555,)
            + (
                0.000017932005437951539746,
                -2.6043026022172997915e-6,
                -3.2791382594067464735e-6,
                2.0413361023581362406e-7,
            )
            + (6.5453354263207413769e-7, 4.194971640510858763e-8, -1.2790958057489941797e-7, -1.6921660964185531903e-8)
            + (1.9134783503321011354e-8,),
        ),
    ),
}


_LONG = 8
"""Coefficients of a polynomial that is formed as two."""


@dataclass(frozen=True, slots=True)
class Floats:
    """Arithmetic on vectors of one floating-point type.

    Args:
        f: the function that computes.
        target: the processor.
        type: ``float`` or ``double``.
        lanes: elements per vector; 1 for scalars.
    """

    f: Function
    target: Target
    type: str
    lanes: int

    @property
    def format(self) -> _Format:
        """The type's constants."""
        return _FORMATS[self.type]

    @property
    def fuses(self) -> bool:
        """Whether the processor multiplies and adds in one rounding."""
        return self.target.has("fma") or self.target.has("neon")

    @property
    def full(self) -> str:
        """The LLVM type of a value."""
        return vector(self.type, self.lanes)

    @property
    def whole(self) -> str:
        """The LLVM type of its bits."""
        return vector(self.format.integer, self.lanes)

    def constant(self, number: float) -> str:
        """A number in every lane, rounded to the type."""
        if self.type == "float":
            number = ctypes.c_float(number).value
        return splat(self.type, self.lanes, f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}")

    def integer(self, number: int) -> str:
        """An integer of the type's width in every lane."""
        return splat(self.format.integer, self.lanes, str(number))

    def arithmetic(self, operation: str, a: str, b: str) -> str:
        """``fadd``, ``fsub``, ``fmul`` or ``fdiv``."""
        return self.f.value(f"{operation} {self.full} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """``a + b``."""
        return self.arithmetic("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        """``a - b``."""
        return self.arithmetic("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        """``a * b``."""
        return self.arithmetic("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """``a / b``."""
        return self.arithmetic("fdiv", a, b)

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """``a * b + c``, in one rounding where the processor has such an instruction."""
        name, full = f"llvm.fmuladd.{suffix(self.type, self.lanes)}", self.full
        self.f.module.declare(name, f"{full} {{}}({full}, {full}, {full})")
        return self.f.value(f"call {full} @{name}({full} {a}, {full} {b}, {full} {c})")

    def polynomial(self, coefficients: Sequence[float], x: str, square: str = "") -> str:
        """By Horner's rule, the constant coefficient first; a long one as two, of the even and the odd powers.

        The two take as many instructions, beside ``x * x``, which the caller may have, and half as many wait for each
        other: as many vectors are under way as the processor holds waiting instructions for.
        """
        if len(coefficients) < _LONG:
            value = self.constant(coefficients[-1])
            for coefficient in reversed(coefficients[:-1]):
                value = self.multiply_add(value, x, self.constant(coefficient))
            return value
        square = square or self.mul(x, x)
        even, odd = (self.polynomial(coefficients[k::2], square) for k in (0, 1))
        return self.multiply_add(odd, x, even)

    def compare(self, predicate: str, a: str, b: str) -> str:
        """``fcmp``: ``olt``, ``uno``, .."""
        return self.f.value(f"fcmp {predicate} {self.full} {a}, {b}")

    def select(self, condition: str, yes: str, no: str) -> str:
        """Per lane, one of two values."""
        return self.f.value(f"select {vector('i1', self.lanes)} {condition}, {self.full} {yes}, {self.full} {no}")

    def at_most(self, x: str, bound: float) -> str:
        """The lesser of both, NaN kept."""
        limit = self.constant(bound)
        return self.select(self.compare("olt", limit, x), limit, x)

    def at_least(self, x: str, bound: float) -> str:
        """The greater of both, NaN kept."""
        limit = self.constant(bound)
        return self.select(self.compare("ogt", limit, x), limit, x)

    def bits(self, x: str) -> str:
        """The value's bits as an integer."""
        return self.f.value(f"bitcast {self.full} {x} to {self.whole}")

    def of_bits(self, x: str) -> str:
        """The value that has these bits."""
        return self.f.value(f"bitcast {self.whole} {x} to {self.full}")

    def on_bits(self, operation: str, a: str, constant: int) -> str:
        """An integer operation with a constant."""
        return self.f.value(f"{operation} {self.whole} {a}, {self.integer(constant)}")

    def absolute(self, x: str) -> str:
        """``|x|``."""
        return self.of_bits(self.on_bits("and", self.bits(x), (1 << self.sign_bit) - 1))

    def negated(self, x: str) -> str:
        """``-x``."""
        return self.f.value(f"fneg {self.full} {x}")

    def negative(self, x: str) -> str:
        """``-|x|``."""
        return self.of_bits(self.on_bits("or", self.bits(x), -(1 << self.sign_bit)))

    @property
    def sign_bit(self) -> int:
        """Its number."""
        return 31 if self.type == "float" else 63


# ---- exponentials -----------------------------------------------------------------------------------------------


_LOG2_E = 1.4426950408889634074


@dataclass(frozen=True, slots=True)
class _Reduced:
    """``exp(x) = 2**n * (1 + expm1)``: ``n + magic``, n being a number without a fraction, and ``exp(r) - 1``."""

    shifted: str
    expm1: str


def _reduced(v: Floats, x: str, more: str | None = None) -> _Reduced:
    """The exponential of ``x + more``, ``more`` being small; x lies within ``exp_range``."""
    form, shift = v.format, v.constant(magic(v))
    shifted = v.multiply_add(x, v.constant(_LOG2_E), shift)
    n = v.sub(shifted, shift)
    r = v.multiply_add(n, v.constant(-form.ln2[0]), x)
    low = v.multiply_add(n, v.constant(-form.ln2[1]), more) if more else None
    r = v.add(r, low) if low else v.multiply_add(n, v.constant(-form.ln2[1]), r)
    square = v.mul(r, r)
    return _Reduced(shifted, v.multiply_add(square, v.polynomial(form.exp, r, square), r))


def magic(v: Floats) -> float:
    """Numbers of this size have no fraction."""
    return 1.5 * 2.0**v.format.mantissa


def _bits_of(v: Floats, number: float) -> int:
    """The bits of a number of the type."""
    packed = struct.pack("<f", number) if v.type == "float" else struct.pack("<d", number)
    return int.from_bytes(packed, "little")


def _scales(v: Floats) -> bool:
    """Whether the processor scales whole vectors by powers of two."""
    return v.target.has("avx512f") and v.target.vector_bytes == 64 and v.lanes * (v.sign_bit + 1) == 512


def _scaled(v: Floats, value: str, shifted: str, *, normal: bool = False, alive: str = "", steps: int = 1) -> str:
    """``value * 2**n``, rounded once.

    Args:
        v: the type and its lanes.
        value: near 1.
        shifted: ``n + magic``, n having no fraction; its last bits are n, and those before vanish where n becomes an
            exponent.
        normal: whether the result surely is; else n may lead beyond the type's range, in two steps.
        alive: lanes whose results are wanted; the others are zero. Empty: all.
        steps: n counts as its whole part, and is ``shifted`` less ``magic / steps``.
    """
    if _scales(v):
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if v.type == 'float' else 'pd'}.512"
        mask = f"i{max(v.lanes, 8)}"
        v.f.module.declare(name, f"{v.full} {{}}({v.full}, {v.full}, {v.full}, {mask}, i32)")
        lanes = v.f.value(f"bitcast <{v.lanes} x i1> {alive} to {mask}") if alive else "-1"
        rest = f"{v.full} zeroinitializer, {mask} {lanes}, i32 4"
        n = v.sub(shifted, v.constant(magic(v) / steps))
        return v.f.value(f"call {v.full} @{name}({v.full} {value}, {v.full} {n}, {rest})")
    bits, place = v.bits(shifted), v.format.mantissa
    exponent = v.on_bits("shl", bits, place)
    if normal:
        return v.mul(value, _power(v, exponent))
    half = v.on_bits("shl", v.on_bits("ashr", bits, 1), place)
    other = v.f.value(f"sub {v.whole} {exponent}, {half}")
    scaled = v.mul(v.mul(value, _power(v, half)), _power(v, other))
    return v.select(alive, scaled, v.constant(0.0)) if alive else scaled


def _power(v: Floats, exponent: str) -> str:
    """Two to an exponent of a normal number, which stands where a number has it."""
    return v.of_bits(v.on_bits("add", exponent, v.format.bias << v.format.mantissa))


def exp(v: Floats, x: str) -> str:
    """The exponential."""
    lanes = v.target.vector_bytes // 8
    if v.type == "double" and v.lanes < lanes and _scales(Floats(v.f, v.target, v.type, lanes)):
        return _by_vectors(v, x, lanes, exp)  # so that no bit depends on where an element stands
    low, high = v.format.exp_range
    # zeros are set, not computed: some processors take 150 cycles for a vector with a product too small for its type
    alive = v.compare("uge", x, v.constant(low))
    x = v.select(alive, v.at_most(x, high), v.constant(0.0))
    if v.type == "double" and _scales(v):
        return _exp_by_steps(v, x, alive)
    parts = _reduced(v, x)
    return _scaled(v, v.add(parts.expm1, v.constant(1.0)), parts.shifted, alive=alive)


def _by_vectors(v: Floats, x: str, lanes: int, function: Callable[[Floats, str], str]) -> str:
    """A function of vectors of so many lanes, on fewer."""
    f, w = v.f, Floats(v.f, v.target, v.type, lanes)
    if v.lanes == 1:
        found = function(w, f.value(f"insertelement {w.full} zeroinitializer, {v.type} {x}, i32 0"))
        return f.value(f"extractelement {w.full} {found}, i32 0")
    there = ", ".join(f"i32 {min(k, v.lanes)}" for k in range(lanes))
    found = function(w, f.value(f"shufflevector {v.full} {x}, {v.full} zeroinitializer, <{lanes} x i32> <{there}>"))
    back = ", ".join(f"i32 {k}" for k in range(v.lanes))
    return f.value(f"shufflevector {w.full} {found}, {w.full} poison, <{v.lanes} x i32> <{back}>")


_STEPS = 8
"""Powers of two between 1 and 2, as many as a register holds."""
# 2**-58.2 of exp(r), for |r| <= log(2) / 16: of (exp(r) - 1 - r) / r**2
_EXP_OF_STEPS = (
    *(0.5000000000000301145216, 0.1666666666666740991997, 0.04166666656928533315797, 0.008333333316465610409604),
    *(0.001388978360651329472045, 0.000198424748261019793675),
)


def _exp_by_steps(v: Floats, x: str, alive: str) -> str:
    """``2**n * (1 + expm1)`` as `_reduced`, n being a multiple of 1/8: a short polynomial, and a power from a table.

    It is for processors that look lanes of a register up, and scale by the whole part of a number.
    """
    shift = magic(v) / _STEPS
    shifted = v.multiply_add(x, v.constant(_LOG2_E), v.constant(shift))
    n = v.sub(shifted, v.constant(shift))
    r = v.multiply_add(n, v.constant(-v.format.ln2[1]), v.multiply_add(n, v.constant(-v.format.ln2[0]), x))
    square = v.mul(r, r)
    expm1 = v.multiply_add(square, v.polynomial(_EXP_OF_STEPS, r), r)
    powers = ", ".join(f"i64 {_bits_of(v, 2 ** (k / _STEPS))}" for k in range(_STEPS))
    name = "llvm.x86.avx512.permvar.df.512"  # it looks at the last three bits
    v.f.module.declare(name, f"{v.full} {{}}({v.full}, {v.whole})")
    table = f"{v.full} bitcast ({v.whole} <{powers}> to {v.full})"
    power = v.f.value(f"call {v.full} @{name}({table}, {v.whole} {v.bits(shifted)})")
    return _scaled(v, v.multiply_add(power, expm1, power), shifted, alive=alive, steps=_STEPS)


def sigmoid(v: Floats, x: str) -> str:
    """``1 / (1 + exp(-x))``, from the exponential that does not overflow."""
    small = exp(v, v.negative(x))
    one = v.constant(1.0)
    below = v.add(small, one)
    ratio = v.div(v.select(v.compare("olt", x, v.constant(0.0)), small, one), below)
    # what was lost in 1 + small is exactly known; its share of the result needs no exact divisor
    lost = v.mul(v.sub(small, v.sub(below, one)), v.multiply_add(small, v.constant(-0.5), one))
    return v.sub(ratio, v.mul(ratio, lost))


def tanh(v: Floats, x: str) -> str:
    """A polynomial near zero, else ``1 - 2 / (exp(2 |x|) + 1)``, with the sign of x."""
    size, one = v.absolute(x), v.constant(1.0)
    square = v.mul(size, size)
    near = v.multiply_add(v.mul(size, square), v.polynomial(v.format.tanh, square), size)
    parts = _reduced(v, v.at_most(v.add(size, size), (v.format.mantissa + 5) * math.log(2)))  # from there on it is 1
    power = _scaled(v, v.add(parts.expm1, one), parts.shifted, normal=True)
    far = v.sub(one, v.div(v.constant(2.0), v.add(power, one)))
    return _signed(v, v.select(v.compare("olt", size, v.constant(0.55)), near, far), x)


def _signed(v: Floats, result: str, x: str) -> str:
    """A result that is zero or has the sign of x already, with the sign of x."""
    sign = v.on_bits("and", v.bits(x), -(1 << v.sign_bit))
    return v.of_bits(v.f.value(f"or {v.whole} {v.bits(result)}, {sign}"))


def gelu(v: Floats, x: str) -> str:
    """``x * P(X <= x)`` of the normal distribution, which has the sign of x, zero included."""
    normal = v.format.normal
    result = _gelu_ratio(v, x, normal) if isinstance(normal, _Ratio) else _gelu_halves(v, x, normal)
    return _signed(v, result, x)


_ERF = tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(19))
"""The error function's series in ``x * x``, divided by x; so many terms that for ``|x| < 1`` FP64 has no more."""

_ERF_BORDER, _ERF_END = 0.93, 4.0
"""In FP32: up to where erf is a polynomial, and from where on it is 1."""
# 2**-25.8 of (erf(x) / x - 1) in x**2; 2**-28.4 of erf by log(erfc(x)) / x
_ERF_NEAR = (
    *(0.12837914769085232, -0.37612481100036893, 0.11281682540910054, -0.0267617198606937),
    *(0.0049859405845029785, -0.0005953741615107201),
)
_ERF_FAR = (
    *(-1.1285111498123799, -0.6357291165343714, -0.10524767933699752, 0.022880920466190436),
    *(-0.003212145392981716, 0.00021364509404286477),
)


def erf(v: Floats, x: str) -> str:
    """A polynomial near zero, else 1 less the complement, with the sign of x."""
    size, one = v.absolute(x), v.constant(1.0)
    square = v.mul(size, size)
    if v.type == "float":  # the complement is the exponential of a polynomial, so nothing is divided
        near = v.multiply_add(size, v.polynomial(_ERF_NEAR, square), size)
        t = v.at_most(size, _ERF_END)
        parts = _reduced(v, v.mul(t, v.polynomial(_ERF_FAR, t)))
        far = v.sub(one, _scaled(v, v.add(parts.expm1, one), parts.shifted, normal=True))
        return _signed(v, v.select(v.compare("olt", size, v.constant(_ERF_BORDER)), near, far), x)
    near = v.mul(size, v.polynomial(_ERF, square))
    z = v.mul(size, v.constant(-math.sqrt(2.0)))  # the complement is 2 P(X <= -|x| sqrt(2))
    below = v.div(gelu(v, z), z)
    far = v.multiply_add(below, v.constant(-2.0), one)
    return _signed(v, v.select(v.compare("olt", size, one), near, far), x)


def _gelu_ratio(v: Floats, x: str, normal: _Ratio) -> str:
    """``max(x, 0) - a * P(X <= -a)`` with ``a = |x|``, the latter being ``exp(-a**2 / 2)`` times a ratio.

    Everything is short, and the ratio and the exponential can be formed at once. The remainder ``a**2 + 2 n log(2)`` is
    rounded but once, for its error is the result's relative error.
    """
    form, zero = v.format, v.constant(0.0)
    a = v.at_most(v.absolute(x), normal.end)
    under = v.add(a, v.constant(normal.under[-1]))
    for coefficient in reversed(normal.under[:-1]):
        under = v.multiply_add(under, a, v.constant(coefficient))
    ratio = v.div(v.mul(a, v.polynomial(normal.over, a)), under)
    shifted = v.multiply_add(a, v.mul(a, v.constant(-0.5 * _LOG2_E)), v.constant(magic(v)))
    n = v.sub(shifted, v.constant(magic(v)))
    u = _square_and(v, a, v.mul(n, v.constant(2 * form.ln2[0])))
    u = v.multiply_add(n, v.constant(2 * form.ln2[1]), u)
    # exp(-u / 2) - 1, divided by u
    rest = v.polynomial([c * (-0.5) ** (k + 1) for k, c in enumerate((1.0, *form.exp))], u)
    tail = _scaled(v, v.multiply_add(v.mul(ratio, u), rest, ratio), shifted)
    return v.sub(v.select(v.compare("olt", x, zero), zero, x), tail)


def _square_and(v: Floats, a: str, b: str) -> str:
    """``a**2 + b``, rounded once where both are nearly opposite."""
    if v.fuses:
        return v.multiply_add(a, a, b)
    high = _upper_half(v, a)
    return v.add(v.add(v.mul(high, high), b), v.mul(v.sub(a, high), v.add(a, high)))


def _gelu_halves(v: Floats, x: str, normal: _Halves) -> str:
    """Near zero by a polynomial, else as ``max(x, 0) - a * P(X <= -a)`` with ``a = |x|``.

    The tail is ``exp(-a**2 / 2)`` times a smooth function of a. The square is formed in two parts, for its error would
    be the result's relative error.
    """
    zero = v.constant(0.0)
    a = v.at_most(v.absolute(x), normal.end)
    high, low, square = _half_square(v, a)
    parts = _reduced(v, high, low)
    center = v.constant(normal.center)
    smooth = v.polynomial(normal.tail, v.div(v.sub(a, center), v.add(a, center)))
    tail = _scaled(v, v.multiply_add(parts.expm1, smooth, smooth), parts.shifted)
    far = v.sub(v.select(v.compare("olt", x, zero), zero, x), tail)
    # x/2 + x**2 (..), in -x**2 / 2 instead of x**2
    coefficients = [c * (-2.0) ** (k + 1) for k, c in enumerate(normal.normal)]
    near = v.multiply_add(square, v.polynomial(coefficients, square), v.mul(x, v.constant(0.5)))
    return v.select(v.compare("olt", a, v.constant(1.0)), near, far)


def _half_square(v: Floats, a: str) -> tuple[str, str, str]:
    """``-a**2 / 2`` in two parts, the second being small, and rounded."""
    half = v.mul(a, v.constant(-0.5))
    if v.fuses:
        square = v.mul(a, half)
        return square, v.multiply_add(a, half, v.f.value(f"fneg {v.full} {square}")), square
    # without such an instruction, the square of the upper half of a's digits is exact
    high = _upper_half(v, a)
    down = v.constant(-0.5)
    parts = v.mul(v.mul(high, high), down), v.mul(v.mul(v.sub(a, high), v.add(a, high)), down)
    return *parts, v.add(*parts)


def _upper_half(v: Floats, a: str) -> str:
    """So many of a number's first digits that their square is exact."""
    return v.of_bits(v.on_bits("and", v.bits(a), -(1 << (v.format.mantissa // 2 + 1))))


# ---- the others -------------------------------------------------------------------------------------------------


def sqrt(v: Floats, x: str) -> str:
    """The square root; of negative numbers, NaN."""
    name = f"llvm.sqrt.{suffix(v.type, v.lanes)}"
    v.f.module.declare(name, f"{v.full} {{}}({v.full})")
    return v.f.value(f"call {v.full} @{name}({v.full} {x})")


def _log_of(v: Floats, f: str, k: str) -> str:
    """The logarithm of ``2**k * (1 + f)``, for 1 + f from sqrt(1/2) to sqrt(2)."""
    form = v.format
    s = v.div(f, v.add(f, v.constant(2.0)))
    z = v.mul(s, s)
    rest = v.mul(z, v.polynomial(form.log, z))
    half = v.mul(v.mul(f, f), v.constant(0.5))
    inner = v.multiply_add(s, v.add(half, rest), v.mul(k, v.constant(form.ln2[1])))
    return v.multiply_add(k, v.constant(form.ln2[0]), v.sub(f, v.sub(half, inner)))


def logaddexp(v: Floats, a: str, b: str) -> str:
    """``log(exp(a) + exp(b))``: the greater, and the logarithm of one more than the exponential of the difference."""
    apart = v.negated(v.absolute(v.sub(a, b)))
    apart = v.select(v.compare("oeq", a, b), v.constant(0.0), apart)  # of equal infinities it would be NaN
    e = exp(v, apart)
    double = v.compare("ogt", e, v.constant(2.0**0.5 - 1))
    f = v.select(double, v.mul(v.sub(e, v.constant(1.0)), v.constant(0.5)), e)
    more = _log_of(v, f, v.select(double, v.constant(1.0), v.constant(0.0)))
    return v.add(v.select(v.compare("ogt", a, b), a, b), more)


def log(v: Floats, x: str) -> str:
    """The natural logarithm: -inf at zero, NaN below."""
    form = v.format
    up = form.mantissa + 1
    subnormal = v.compare("olt", x, v.constant(2.0 ** (1 - form.bias)))
    normal = v.select(subnormal, v.mul(x, v.constant(2.0**up)), x)
    # the significand m from sqrt(1/2) to sqrt(2), by an offset of the exponent's border
    border = _bits_of(v, 0.5**0.5)
    moved = v.on_bits("sub", v.bits(normal), border)
    exponent = v.on_bits("ashr", moved, form.mantissa)
    k = v.f.value(f"sitofp {v.whole} {exponent} to {v.full}")
    k = v.select(subnormal, v.sub(k, v.constant(up)), k)
    m = v.of_bits(v.on_bits("add", v.on_bits("and", moved, (1 << form.mantissa) - 1), border))
    value = _log_of(v, v.sub(m, v.constant(1.0)), k)
    infinite = v.constant(float("inf"))
    value = v.select(v.compare("olt", x, infinite), value, x)
    ends = v.select(v.compare("oeq", x, v.constant(0.0)), v.constant(float("-inf")), v.constant(float("nan")))
    return v.select(v.compare("ogt", x, v.constant(0.0)), value, ends)
