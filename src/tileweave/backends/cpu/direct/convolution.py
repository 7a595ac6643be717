"""A product over windows as loops of scalars, and the tables that say where vectors and terms lie.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import MergedOp, Mode

Along = Literal["pixels", "rows", "filters"]
"""What the lanes of a vector are: neighbouring pixels, those of one row alone, or filters of one pixel."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Another operand of the chain.

    Args:
        tensor: its position in the program.
        offset: bytes to its first element.
        filter_stride: bytes from one filter to the next.
        outer_strides: bytes along the outer modes.
        along_pixels: whether it has an element per pixel, one behind the other; else one for all.
    """

    tensor: int
    offset: int
    filter_stride: int
    outer_strides: tuple[int, ...]
    along_pixels: bool


SummedMode = tuple[int, int, int]
"""A mode of a sum: its extent, and the bytes of the windowed operand and of the weights."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A product over windows as loops of scalars: every number is in bytes, or counts.

    Args:
        element: of all operands.
        tensors: positions of the windowed operand, the weights, and what is written.
        offsets: bytes to the first element of these.
        outer: what is done one after the other: images, groups; strides of the three operands.
        filters: how many filters, the weights' stride and the output's.
        terms: the modes of a sum, in the order in which the weights lie.
        rows: (pixels, windowed operand's stride) of the modes that are one range of pixels, outermost first.
        chain: what follows each sum, or None.
        sums: the chain's operand that the sums are.
        extras: the chain's other operands, by number.
        packed: whether the weights lie panel by panel, as `Packing` arranges them, before any call.
        along: what the lanes of a vector are.
    """

    element: Element
    tensors: tuple[int, int, int]
    offsets: tuple[int, int, int]
    outer: tuple[Mode, ...]
    filters: tuple[int, int, int]
    terms: tuple[SummedMode, ...]
    rows: tuple[tuple[int, int], ...]
    chain: MergedOp | None
    sums: int
    extras: dict[int, Extra]
    packed: bool = False
    along: Along = "pixels"

    @property
    def pointers(self) -> tuple[int, ...]:
        """Positions of all tensors that are met."""
        return (*self.tensors, *dict.fromkeys(extra.tensor for extra in self.extras.values()))

    @property
    def pixels(self) -> int:
        """Output elements of one filter and one image."""
        return prod(extent for extent, _ in self.rows)

    @property
    def step(self) -> int:
        """Elements between neighbouring pixels in the windowed operand: 1 or 2, where these are lanes."""
        return self.rows[-1][1] // self.element.width_bytes

    @property
    def spread(self) -> int:
        """Bytes from the first to the last element of the windowed operand that one image is read from."""
        ends = [(extent - 1) * stride for extent, stride, _ in self.terms]
        far = max(sum([end for end in ends if end > 0]), -sum([end for end in ends if end < 0]))
        return far + sum([(n - 1) * s for n, s in self.rows])

    @property
    def count(self) -> int:
        """Terms of a sum."""
        return prod([extent for extent, _, _ in self.terms])

    @property
    def repeated(self) -> int:
        """Images and groups."""
        return prod([mode.extent for mode in self.outer])

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Of the outer modes that the weights move along, how many and their bytes, outermost first."""
        return tuple([(mode.extent, mode.strides[1]) for mode in self.outer if mode.strides[1]])

    @property
    def products(self) -> int:
        """Multiplications of the whole."""
        return self.repeated * self.filters[0] * self.count * self.pixels

    @property
    def weights(self) -> int:
        """How many there are."""
        return prod([extent for extent, _ in self.groups]) * self.filters[0] * self.count

    @property
    def dense_terms(self) -> bool:
        """Whether the weights of a sum lie one behind the other."""
        width = self.element.width_bytes
        for extent, _, weight in reversed(self.terms):
            if weight != width:
                return False
            width *= extent
        return True

    @property
    def added(self) -> bool:
        """Whether the chain reads an element per pixel, which may lie where the result goes: none is stored twice."""
        return any(extra.along_pixels for extra in self.extras.values())

    def vectors(self, target: Target) -> int:
        """Of the pixels of one filter and one image."""
        lanes, row = target.lanes(self.element.width_bytes), self.rows[-1][0]
        return self.pixels // row * -(-row // lanes) if self.along == "rows" else -(-self.pixels // lanes)

    def crossed(self, target: Target) -> int:
        """The most rows that one vector of pixels crosses; 1 where vectors are none of pixels across rows."""
        return _crossed(self.rows, target.lanes(self.element.width_bytes)) if self.along == "pixels" else 1

    def short(self, target: Target) -> bool:
        """Whether each vector is a row that does not fill it."""
        return self.along == "rows" and self.rows[-1][0] < target.lanes(self.element.width_bytes)


@lru_cache(256)
def _crossed(rows: tuple[tuple[int, int], ...], lanes: int) -> int:
    """The most rows that one vector of pixels crosses."""
    row, pixels = rows[-1][0], prod(extent for extent, _ in rows)
    first = np.arange(0, pixels, lanes)
    return int(((np.minimum(first + lanes, pixels) - 1) // row - first // row).max()) + 1


# ---- tables ---------------------------------------------------------------------------------------------------------

SEGMENT = np.dtype([("at", "i8"), ("first", "i4"), ("end", "i4")])
"""Of a vector of pixels: bytes to where its lane 0 would be, first lane, last lane."""
_BY_ROWS = np.dtype([("at", "i8"), ("out", "i8")])
"""The same by rows: bytes to its first pixel in the operand, and in the output."""


@dataclass(frozen=True, slots=True)
class VectorTable:
    """What says where the vectors of pixels lie that a convolution writes.

    Args:
        rows: (pixels, windowed operand's stride) of the modes that are one range of pixels, outermost first.
        lanes: of a vector.
        width_bytes: of an element.
        along: what lanes are where it is read.
        once: whether no pixel may be in two vectors.
    """

    rows: tuple[tuple[int, int], ...]
    lanes: int
    width_bytes: int
    along: Along
    once: bool

    def made(self) -> NDArray[Any]:
        """An entry per vector, and per segment of it where they cross rows."""
        if self.along == "filters":
            return self._of_filters()
        return self._by_rows() if self.along == "rows" else self._segments()

    def _starts(self) -> NDArray[Any]:
        """Bytes to every row of pixels."""
        starts = np.zeros(1, np.int64)
        for extent, stride in self.rows[:-1]:
            starts = (starts[:, None] + np.arange(extent) * stride).reshape(-1)
        return starts

    def _segments(self) -> NDArray[Any]:
        """The segments of every vector of pixels, (vectors, crossed); those of fewer end with empty ones."""
        (row, step), lanes, starts = self.rows[-1], self.lanes, self._starts()
        pixels = prod(extent for extent, _ in self.rows)
        first = np.arange(0, pixels, lanes)[:, None]
        last = np.minimum(first + lanes, pixels)
        number = np.minimum(first // row + np.arange(_crossed(self.rows, lanes)), (last - 1) // row)
        found = np.empty(number.shape, SEGMENT)
        found["at"] = starts[number] + (first - number * row) * step
        found["first"] = np.maximum(first, number * row) - first
        found["end"] = np.minimum((number + 1) * row, last) - first
        again = number[:, 1:] == number[:, :-1]
        for name in ("first", "end"):
            found[name][:, 1:][again] = 0
        return found

    def _by_rows(self) -> NDArray[Any]:
        """The one segment of every vector of pixels, (vectors, 1), where rows are cut alone; one that is shorter than
        a vector has one."""
        (row, step), lanes, starts = self.rows[-1], self.lanes, self._starts()
        begin = np.minimum(np.arange(0, row, lanes), max(row - lanes, 0))
        found = np.empty((len(starts) * len(begin), 1), _BY_ROWS)
        found["at"] = (starts[:, None] + begin * step).reshape(-1, 1)
        found["out"] = (np.arange(len(starts))[:, None] * row + begin).reshape(-1, 1) * self.width_bytes
        return found

    def _of_filters(self) -> NDArray[Any]:
        """(vectors, lanes + 1): bytes to each pixel in the operand, then to the first one in the output. Pixels that
        there are none of are read as the last one is; or the last vector begins so much earlier."""
        row, step = self.rows[-1]
        places = (self._starts()[:, None] + np.arange(row) * step).reshape(-1)
        pixels = len(places)
        begin = np.arange(0, pixels, self.lanes)
        if not self.once:
            begin = np.minimum(begin, max(pixels - self.lanes, 0))
        found = np.empty((len(begin), self.lanes + 1), np.int64)
        found[:, :-1] = places[np.minimum(begin[:, None] + np.arange(self.lanes), pixels - 1)]
        found[:, -1] = begin * self.width_bytes
        return found


def term_places(modes: Sequence[SummedMode]) -> NDArray[Any]:
    """The places of all terms of a sum, (terms, 2), in the order in which the weights lie."""
    places = np.zeros((1, 2), np.int64)
    for extent, *strides in modes:
        places = (places[:, None] + np.arange(extent)[:, None] * np.array(strides, np.int64)).reshape(-1, 2)
    return places
