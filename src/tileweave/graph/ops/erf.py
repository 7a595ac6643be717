"""The error function of whole arrays, to about one unit of the last place of float64.

Near zero it is its Taylor series. Farther out it is ``1 - exp(-x * x) * g(x)``, whose slowly varying factor g is
interpolated at Chebyshev points. Both factors are small there, so their rounding hardly counts.

Source: own.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import cos, erfc, exp, factorial, pi, sqrt
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NEAR = 1.0
"""Below this the series is used: its terms shrink from the first on, so nothing cancels."""
_FAR = 6.0
"""From here on erf is 1 in float64."""
_TERMS, _DEGREE = 19, 24
"""So many that what is left out is below 2**-54, measured against `math.erf`."""
_CHUNK = 1 << 13
"""Elements at a time, so that intermediate arrays stay in cache."""


@cache
def _coefficients() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of the series in x * x, and of g in t, which is 1 / x scaled to -1..1. Both decay, so plain powers do."""
    series = [2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)) for n in range(_TERMS)]
    middle, half = (Fraction(1 / _NEAR) + Fraction(1 / _FAR)) / 2, (Fraction(1 / _NEAR) - Fraction(1 / _FAR)) / 2
    points = [1 / float(middle + half * Fraction(cos(pi * (k + 0.5) / _DEGREE))) for k in range(_DEGREE)]
    places = [(1 / Fraction(x) - middle) / half for x in points]
    values = [Fraction(erfc(x) * exp(x * x)) * (1 + Fraction(_lost(x))) for x in points]
    return tuple(series), tuple(map(float, _through(places, values)))


def _through(places: list[Fraction], values: list[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial through points, by Newton's differences: exact, so that none is lost."""
    rest = list(values)
    for order in range(1, len(rest)):
        for k in range(len(rest) - 1, order - 1, -1):
            rest[k] = (rest[k] - rest[k - 1]) / (places[k] - places[k - order])
    out = [rest[-1]]
    for place, value in zip(reversed(places[:-1]), reversed(rest[:-1]), strict=True):
        out = [value - place * out[0], *(a - place * b for a, b in pairwise(out)), out[-1]]
    return out


def _lost(x: float) -> float:
    """What rounding takes from x * x; its exponential would count it up to 36 times."""
    return float(Fraction(x) ** 2 - Fraction(x * x))


def erf_of(x: Array) -> Array:
    """The error function of every element, computed in float64, in the type of x; NaN stays NaN."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty(flat.shape, flat.dtype)
    with np.errstate(all="ignore"):
        for k in range(0, flat.size, _CHUNK):
            out[k : k + _CHUNK] = _chunk(flat[k : k + _CHUNK].astype(np.float64))
    return out.reshape(x.shape)


def _chunk(x: Array) -> Array:
    series, factor = _coefficients()
    size = np.abs(x)
    near = np.minimum(size, _NEAR)
    low = _horner(series, near * near) * near
    if not (size > _NEAR).any():
        return np.asarray(np.copysign(low, x))
    far = np.clip(size, _NEAR, _FAR)
    t = (2 / far - (1 / _FAR + 1 / _NEAR)) / (1 / _NEAR - 1 / _FAR)
    tail = _horner(factor, t) * np.exp(-far * far)
    np.subtract(1.0, tail, out=tail)
    high = np.where(size >= _FAR, 1.0, tail)
    out: Array = np.where(np.isnan(x), x, np.copysign(np.where(size > _NEAR, high, low), x))
    return out


def _horner(coefficients: tuple[float, ...], t: Array) -> Array:
    out = np.full(t.shape, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out *= t
        out += c
    return out
