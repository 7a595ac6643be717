"""Sine and cosine in IR, on FP32 and FP64, within one unit of the last place over every argument.

The argument is brought to ``|r| <= pi / 4`` as a number and what that lacks. Where a lane is so large that this would
be too coarse, the vector's lanes are the C library's results, one by one. The coefficients are minimax, found by the
Remez exchange, then rounded; the comment at each pair gives the largest relative errors.

Source: own, on the classical reduction of Cody and Waite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.functions import Floats, magic

_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
"""pi / 2 in parts of 33 bits, whose products with whole numbers below 2**20 are exact, and the rest."""
_HALF_PI_WHOLE = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
"""The same in parts of all bits that FP64 has, for products that are added in one rounding."""
_HALF_PI_FP32 = (1.5707963705062866, -4.377216100692749e-08, 6.093614501878619e-11, -1.6513995574653217e-13)
"""The same for FP32: a first part for products that are added in one rounding, and parts of 8 bits."""
_FAR, _FAR_FP32 = 1e6, 1e5
"""Beyond, whole numbers of pi / 2 have more than 20 bits, or 16: their products with a part would be rounded."""
# 2**-57.9 of sin(r), 2**-64.0 of cos(r), for |r| <= pi / 4
_SIN = (
    *(-0.16666666666666630686, 0.0083333333333221073516, -0.0001984126982958018202, 2.755731361802218599e-6),
    *(-2.5050747218841317023e-8, 1.5896197667697268651e-10),
)
_COS = (
    *(0.041666666666666592833, -0.0013888888888873040436, 0.000024801587288841427053, -2.7557314176245347065e-7),
    *(2.087570041651515086e-9, -1.1358513961732469591e-11),
)
# 2**-28.0 and 2**-33.0
_SIN_FP32 = (-0.16666654602243193221, 0.0083321602900514649633, -0.00019515217896333817425)
_COS_FP32 = (0.041666645670200306138, -0.001388731561819886865, 0.000024433082842773133997)


def sin(v: Floats, x: str) -> str:
    """The sine; of infinities, NaN."""
    return _turned(v, x, 0)


def cos(v: Floats, x: str) -> str:
    """The cosine likewise."""
    return _turned(v, x, 1)


def _turned(v: Floats, x: str, quarters: int) -> str:
    """The sine of ``x + quarters * pi / 2``."""
    short = v.type == "float"
    if short and not v.fuses:
        w = Floats(v.f, v.target, "double", v.lanes)
        value = _turned(w, v.f.value(f"fpext {v.full} {x} to {w.full}"), quarters)
        return v.f.value(f"fptrunc {w.full} {value} to {v.full}")
    shift = v.constant(magic(v))
    turned = v.multiply_add(x, v.constant(2 / math.pi), shift)
    q = v.sub(turned, shift)
    if v.fuses and not short:
        r, low = _less_whole(v, x, q)
    else:
        r, low = _less_halves(v, x, q, _HALF_PI_FP32 if short else _HALF_PI)
    z, one = v.mul(r, r), v.constant(1.0)
    square = v.mul(z, z)
    half = v.mul(z, v.constant(0.5))
    head = v.sub(one, half)
    # what low adds: low * cos(r), nearly, and -low * sin(r)
    bent = v.polynomial(_SIN_FP32 if short else _SIN, z, square)
    sine = v.add(r, v.multiply_add(v.mul(z, r), bent, v.mul(head, low)))
    lost = v.sub(v.sub(one, head), half)
    rest = v.multiply_add(v.negated(r), low, lost)
    cosine = v.add(head, v.multiply_add(square, v.polynomial(_COS_FP32 if short else _COS, z, square), rest))
    quadrant = v.on_bits("add", v.bits(turned), quarters)
    odd = v.on_bits("and", quadrant, 1)
    value = v.select(v.f.value(f"icmp ne {v.whole} {odd}, {v.integer(0)}"), cosine, sine)
    sign = v.on_bits("shl", v.on_bits("and", quadrant, 2), v.sign_bit - 1)
    value = v.of_bits(v.f.value(f"xor {v.whole} {v.bits(value)}, {sign}"))
    if quarters == 0:
        value = v.select(v.compare("oeq", x, v.constant(0.0)), x, value)  # of -0 it is -0
    return _or_far(v, x, value, "cos" if quarters else "sin")


def _less_halves(v: Floats, x: str, q: str, parts: Sequence[float]) -> tuple[str, str]:
    """``x - q * pi / 2`` as a number and what it lacks."""
    value, lost = v.multiply_add(q, v.constant(-parts[0]), x), list[str]()  # exact
    for part in parts[1:3]:
        product = v.mul(q, v.constant(part))  # exact
        less = v.sub(value, product)
        taken = v.sub(value, less)
        if v.type == "double":
            whole = v.sub(value, v.add(less, taken))  # of what is lost where the product is the greater
            lost.append(v.add(whole, v.sub(taken, product)))
        else:
            lost.append(v.sub(taken, product))
        value = less
    low = v.multiply_add(q, v.constant(-parts[3]), v.add(*lost))
    r = v.add(value, low)
    return r, v.sub(low, v.sub(r, value))


def _less_whole(v: Floats, x: str, q: str) -> tuple[str, str]:
    """``x - q * pi / 2`` as a number and what it lacks, where products are added in one rounding.

    Less the first part it is exact: below 1, and a multiple of 2**-53. The second part's product may be the greater.
    """
    first, second, third = _HALF_PI_WHOLE
    value = v.multiply_add(q, v.constant(-first), x)
    product = v.mul(q, v.constant(second))
    over = v.multiply_add(q, v.constant(second), v.negated(product))  # what the product lacks, exactly
    r = v.sub(value, product)
    taken = v.sub(value, r)
    lost = v.add(v.sub(value, v.add(r, taken)), v.sub(taken, product))
    return r, v.multiply_add(q, v.constant(-third), v.sub(lost, over))


def _or_far(v: Floats, x: str, near: str, name: str) -> str:
    """A vector of function values; by C's function where x lies so far away that the reduction is too coarse."""
    f, lanes, wide = v.f, v.lanes, vector("double", v.lanes)
    short = v.type == "float"
    far = v.compare("ogt", v.absolute(x), v.constant(_FAR_FP32 if short else _FAR))
    some = far
    if lanes > 1:
        some = f.value(f"icmp ne i{lanes} {f.value(f'bitcast <{lanes} x i1> {far} to i{lanes}')}, 0")
    f.module.declare(name, "double {}(double)")
    place = f.slot("double", lanes)

    def one(k: str | int, _: list[str]) -> None:
        at = f.value(f"getelementptr double, ptr {place}, i64 {k}")
        given = f.value(f"load double, ptr {at}, align 8")
        f.emit(f"store double {f.value(f'call double @{name}(double {given})')}, ptr {at}, align 8")

    def by_lane() -> list[str]:
        given = f.value(f"fpext {v.full} {x} to {wide}") if short else x
        f.emit(f"store {wide} {given}, ptr {place}, align 8")
        f.loop(0, lanes, one)
        found = f.value(f"load {wide}, ptr {place}, align 8")
        return [v.select(far, f.value(f"fptrunc {wide} {found} to {v.full}") if short else found, near)]

    return str(f.choose(some, [v.full], by_lane, lambda: [near])[0])
