"""What the code of a direct convolution is written for, and the numbers that it reads from the table of a call.

The text depends on the register tile, on how vectors of pixels are read, on the chain, and on the terms of short sums
within a row of a window. All else is numbers: of images, panels, tiles and pixels, strides of planes and rows, where
vectors and terms lie. So convolutions that differ in these share one text.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.direct.match import (
    Convolution,
    RegisterTiling,
    SummedMode,
    segments,
    term_places,
    tiling,
    tiling_like,
)
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import aligned

UNROLLED_TERMS = 32
"""Sums of so few terms are written out, with the places of the terms in the instructions."""
_UNROLLED_PRODUCTS = 1200
"""And of so few products of vectors in all."""
SEQUENTIAL_PRODUCTS = 1 << 18
"""Products of a convolution that one thread computes: some 3 us, less than another thread takes to begin."""
_ROW_PIXELS = 8
"""Terms so near behind another have their places in the instructions, beside its."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are arranged, once: panels of filters, in each the terms, in each the filters of the panel.

    Args:
        width_bytes: of an element.
        rows: filters of a panel.
        filters: how many, and bytes between them in the array that is given.
        groups: (how many, bytes between them), outermost first.
        terms: the modes of a sum.
    """

    width_bytes: int
    rows: int
    filters: tuple[int, int]
    groups: tuple[tuple[int, int], ...]
    terms: tuple[SummedMode, ...]

    @property
    def size_bytes(self) -> int:
        """What the arranged weights take."""
        count = prod([extent for extent, _ in self.groups]) * -(-self.filters[0] // self.rows) * self.rows
        return count * prod([extent for extent, _, _ in self.terms]) * self.width_bytes

    @property
    def order(self) -> object:
        """What the order of the elements depends on."""
        return self.rows, self.filters, self.groups, tuple([(extent, weight) for extent, _, weight in self.terms])

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """The weights as the code reads them."""
        width, (filters, filter_bytes) = self.width_bytes, self.filters
        first = np.minimum(np.arange(0, filters, self.rows), filters - self.rows)
        row = (first[:, None, None] + np.arange(self.rows)) * (filter_bytes // width)
        places = row + term_places(self.terms)[:, 1:] // width
        starts = [
            sum(i * stride // width for i, (_, stride) in zip(index, self.groups, strict=True))
            for index in product(*(range(extent) for extent, _ in self.groups))
        ]
        reach = int(places.max()) + max(starts) + 1  # places are of the array as it lies, a transposed one too
        flat = np.lib.stride_tricks.as_strided(array, (reach,), (width,), writeable=False)
        made = aligned((len(starts), places.size), array.dtype)
        for part, start in zip(made, starts, strict=True):
            part[:] = flat[places + start].reshape(-1)
        return made.reshape(-1)


@dataclass(frozen=True, slots=True)
class Reading:
    """How vectors of pixels are read.

    Args:
        step: elements between neighbouring pixels: 1 or 2.
        crossed: the most segments of a vector.
        by_rows: whether no vector crosses rows.
        ragged: whether some vector has lanes without pixels: by rows, each one.
    """

    step: int
    crossed: int
    by_rows: bool
    ragged: bool


@dataclass(frozen=True, slots=True)
class DirectForm:
    """What the code is written for.

    Args:
        element: of all operands.
        tensors: positions of the windowed operand, the weights, and what is written; then of the chain's operands.
        rows: filters of a register tile.
        widths: vectors of pixels of the tiles, the wider ones first.
        reading: how these are read.
        packed: whether the weights lie panel by panel.
        terms: (row of the windows, bytes behind its first term, bytes of the weight) of each; None where they are a
            loop.
        extras: (number in the chain, position, whether it has an element per pixel) of the chain's other operands.
    """

    element: Element
    tensors: tuple[int, ...]
    rows: int
    widths: tuple[int, ...]
    reading: Reading
    packed: bool
    terms: tuple[tuple[int, int, int], ...] | None
    extras: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True, slots=True)
class DirectNumbers:
    """The numbers that the code reads: counts, bytes and addresses. Nothing stays nothing: a stride of 0 costs nothing.

    Args:
        offsets: to the first element of the windowed operand, the weights, and what is written.
        outer: of each image or group: how many, and the strides of these three.
        filters: the first one of the last panel, the weights' stride, the output's, a panel of packed weights.
        extras: of each: the offset, the stride between filters, and those along the outer modes.
        terms: where rows of the windows begin; of a loop, how many terms.
        jobs: how many, and in how many tasks threads share them: 0 where one does all.
        parts: panels of filters, and blocks of tiles: 0 where there is one.
        pixels: tiles, wide tiles, pixels, pixels of a row.
    """

    offsets: tuple[int, ...]
    outer: tuple[tuple[int, ...], ...]
    filters: tuple[int, ...]
    extras: tuple[tuple[int, ...], ...]
    terms: tuple[int, ...]
    jobs: tuple[int, int]
    parts: tuple[int, int]
    pixels: tuple[int, int, int, int]


def with_sizes(numbers: DirectNumbers, size: Callable[[int], int]) -> DirectNumbers:
    """The same with each number that is not 0 replaced by what a function makes of it, in order."""

    def each(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple([each(one) for one in value])
        return size(value) if value else 0

    return DirectNumbers(*[each(getattr(numbers, name)) for name in DirectNumbers.__slots__])


@dataclass(frozen=True, slots=True)
class DirectCut:
    """A direct convolution as its code sees it.

    Args:
        form: what the code is written for.
        numbers: what it reads.
        packing: how the weights are arranged, if they are.
        vectors: what `segments` makes their table from.
        terms: the modes of a sum that is a loop.
    """

    form: DirectForm
    numbers: DirectNumbers
    packing: Packing | None
    vectors: tuple[tuple[tuple[int, int], ...], int, int, bool]
    terms: tuple[SummedMode, ...] | None

    def tables(self) -> tuple[NDArray[Any], ...]:
        """Arrays that the code reads: where vectors of pixels lie in the windowed operand, and where terms do."""
        rows, lanes, width, by_rows = self.vectors
        vectors = _shared(("vectors", self.vectors), lambda: segments(rows, lanes, width, by_rows=by_rows))
        terms = self.terms
        return (vectors,) if terms is None else (vectors, _shared(("terms", terms), lambda: term_places(terms)))


def numbers_of(cut: DirectCut) -> tuple[Hashable, list[int]]:
    """What the text depends on, and the numbers that it takes from a table, in the order of `with_sizes`."""
    found: list[int] = []

    def size(number: int) -> int:
        found.append(number)
        return -1

    return (cut.form, with_sizes(cut.numbers, size)), found


def cut_of(c: Convolution, target: Target, threads: int) -> DirectCut:
    """How a convolution is cut."""
    tiles = tiling(c, target)
    widths = (tiles.width,) if tiles.wide == tiles.tiles else (tiles.width, tiles.width - 1)
    return _cut(c, target, threads, tiles, widths, ragged=_is_ragged(c, target))


def cut_like(c: Convolution, form: DirectForm, target: Target, threads: int) -> DirectCut | None:
    """How a convolution is cut that runs on the code of another one; None where it cannot, or would be much slower."""
    own, ragged = form.reading, form.reading.ragged
    like = tiling_like(c, target, rows=form.rows, widths=form.widths, by_rows=own.by_rows)
    if like is None:
        return None
    c, tiles = like
    if ragged != _is_ragged(c, target) and (not ragged or own.by_rows or not target.masks_stores):
        return None  # lanes that all have pixels may be masked where that is free
    return _cut(c, target, threads, tiles, form.widths, ragged=ragged)


def _is_ragged(c: Convolution, target: Target) -> bool:
    """Whether some vector has lanes without pixels."""
    lanes = target.lanes(c.element.width_bytes)
    return c.rows[-1][0] < lanes if c.by_rows else c.pixels % lanes != 0


def _cut(
    c: Convolution, target: Target, threads: int, tiles: RegisterTiling, widths: tuple[int, ...], *, ragged: bool
) -> DirectCut:
    width, lanes = c.element.width_bytes, target.lanes(c.element.width_bytes)
    row, pixels = c.rows[-1][0], c.pixels
    reading = Reading(c.step, tiles.crossed, c.by_rows, ragged)
    looped = c.count > UNROLLED_TERMS or c.count * tiles.filters * tiles.width > _UNROLLED_PRODUCTS
    terms, begins = (None, (c.count,)) if looped else _written_terms(c.terms, width, tiles.filters if c.packed else 0)
    extras = tuple([(o, extra.tensor, extra.along_pixels) for o, extra in c.extras.items()])
    form = DirectForm(c.element, c.pointers, tiles.filters, widths, reading, c.packed, terms, extras)
    panels = -(-c.filters[0] // tiles.filters)
    jobs = prod([mode.extent for mode in c.outer]) * tiles.blocks * panels
    tasks = min(jobs, 4 * threads) if threads > 1 and c.products > SEQUENTIAL_PRODUCTS else 1
    groups = tuple([(mode.extent, mode.strides[1]) for mode in c.outer if mode.strides[1]])
    numbers = DirectNumbers(
        c.offsets,
        tuple([(mode.extent, *mode.strides) for mode in c.outer]),
        (c.filters[0] - tiles.filters, *c.filters[1:], c.count * tiles.filters * width if c.packed else 0),
        tuple([(extra.offset, extra.filter_stride, *extra.outer_strides) for extra in c.extras.values()]),
        begins,
        (jobs, tasks if tasks > 1 else 0),
        (panels if panels > 1 else 0, tiles.blocks if tiles.blocks > 1 else 0),
        (tiles.tiles, tiles.wide, pixels, row),
    )
    packing = Packing(width, tiles.filters, c.filters[:2], groups, c.terms) if c.packed else None
    return DirectCut(form, numbers, packing, (c.rows, lanes, width, c.by_rows), c.terms if terms is None else None)


@lru_cache(256)
def _written_terms(
    modes: tuple[SummedMode, ...], width_bytes: int, rows: int
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """The terms as the text has them, and where the rows of windows begin; of packed weights, so many in a row."""
    begins: list[int] = []
    terms: list[tuple[int, int, int]] = []
    reach = _ROW_PIXELS * width_bytes
    parts: dict[int, list[int]] = {}  # of as many bytes as a row reaches -> the rows that begin there
    for number, (place, weight) in enumerate(term_places(modes).tolist()):
        part = place // reach
        near = [k for k in (*parts.get(part - 1, ()), *parts.get(part, ())) if 0 <= place - begins[k] < reach]
        row = min(near, default=len(begins))
        if row == len(begins):
            begins.append(place)
            parts.setdefault(part, []).append(row)
        terms.append((row, place - begins[row], number * rows * width_bytes if rows else weight))
    return tuple(terms), tuple(begins)


_TABLES: WeakValueDictionary[Any, NDArray[Any]] = WeakValueDictionary()
"""Tables that somebody holds: layers of equal images share them."""


def _shared(key: Hashable, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    found = _TABLES.get(key)
    if found is None:
        found = _TABLES[key] = make()
    return found
