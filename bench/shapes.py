"""What a case of `run.py`, `places.py` or `contractions.py` is, and the shapes that cases are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


@dataclass
class Case:
    """What is computed from arrays of some shapes.

    Args:
        shapes: of the inputs, from a generator; inputs that are not normally distributed come as arrays.
        own: from tensors of tileweave.
        numpy: from arrays.
        torch: from torch and its tensors; None: not compared.
        jax: from `jax` and its arrays; None: not compared.
        scale: of the inputs, which are normally distributed.
        dtype: of the inputs; NumPy defines the result in it where it is no float32.
    """

    shapes: Callable[[np.random.Generator], Sequence[tuple[int, ...] | Array]]
    own: Call
    numpy: Call
    torch: Call | None = None
    jax: Call | None = None
    scale: float = field(default=1.0)
    dtype: str = "float32"


def odd(rng: np.random.Generator, low: int, high: int) -> int:
    """An extent, evenly spread over magnitudes."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def matrix(rng: np.random.Generator) -> tuple[int, int]:
    """Between 2^14 and 2^22 elements."""
    rows = odd(rng, 64, 4096)
    return rows, max(16, min(8192, odd(rng, 1 << 14, 1 << 22) // rows))


def one(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A matrix."""
    return [matrix(rng)]


def two(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Two matrices of one shape."""
    shape = matrix(rng)
    return [shape, shape]


def with_rows(count: int) -> Callable[[np.random.Generator], list[tuple[int, ...]]]:
    """A matrix and vectors along its rows."""

    def shapes(rng: np.random.Generator) -> list[tuple[int, ...]]:
        shape = matrix(rng)
        return [shape, *[shape[1:]] * count]

    return shapes


def heads(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Queries, keys and values."""
    batch, count, length, depth = odd(rng, 1, 4), odd(rng, 2, 12), odd(rng, 32, 512), 8 * odd(rng, 4, 16)
    return [(batch, count, length, depth)] * 3


def images(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Images and filters of 3 x 3."""
    channels, side = 8 * odd(rng, 1, 8), odd(rng, 14, 64)
    return [(odd(rng, 1, 8), channels, side, side), (8 * odd(rng, 1, 12), channels, 3, 3)]


def layers(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Of a perceptron with three layers."""
    batch, a, b, c = odd(rng, 1, 512), odd(rng, 32, 1024), odd(rng, 32, 1024), odd(rng, 10, 256)
    return [(batch, a), (a, b), (b,), (b, b), (b,), (b, c), (c,)]


def block(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A transformer's layer: x, its projections, and the two layers behind."""
    length, width = odd(rng, 16, 256), 64 * odd(rng, 1, 6)
    return [(length, width), (width, width), (width, width), (width, width), (width, width), (width,), (width,),
            (width, 4 * width), (4 * width, width)]  # fmt: skip


def maps(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Channels of images, and two vectors of their number."""
    batch, channels, height, width = odd(rng, 1, 8), 8 * odd(rng, 1, 16), odd(rng, 7, 64), odd(rng, 7, 64)
    return [(batch, channels, height, width), (channels,), (channels,)]


def scores(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Square matrices, of attention."""
    length = odd(rng, 16, 512)
    return [(odd(rng, 1, 16), length, length)]


def solids(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Of three dimensions, between 2^10 and 2^20 elements."""
    return [(odd(rng, 2, 64), odd(rng, 16, 128), odd(rng, 16, 128))]


def sides(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A column and a row."""
    rows, columns = matrix(rng)
    return [(rows, 1), (1, columns)]


def with_column(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A matrix, and a number for each of its rows."""
    shape = matrix(rng)
    return [shape, (shape[0], 1)]


def turned(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A matrix, and one whose transpose has its shape."""
    shape = matrix(rng)
    return [shape, shape[::-1]]


def signals(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Channels of signals, and filters."""
    channels = odd(rng, 4, 64)
    return [(odd(rng, 1, 8), channels, odd(rng, 64, 2048)), (odd(rng, 4, 64), channels, odd(rng, 1, 7))]


def volumes(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Channels of volumes, and filters of 3 x 3 x 3."""
    channels, side = odd(rng, 1, 16), odd(rng, 6, 20)
    return [(odd(rng, 1, 3), channels, side, side, side), (odd(rng, 4, 32), channels, 3, 3, 3)]


def alone(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Images, and one filter for each channel."""
    (images_of, channels, *sides_of), _ = images(rng)
    return [(images_of, channels, *sides_of), (channels, 1, 3, 3)]


def back(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Images, and filters of 3 x 3 that take them back to some channels."""
    channels, side = 8 * odd(rng, 1, 8), odd(rng, 5, 28)
    return [(odd(rng, 1, 4), channels, side, side), (channels, 8 * odd(rng, 1, 8), 3, 3)]
