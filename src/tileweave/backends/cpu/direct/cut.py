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
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.direct.convolution import Along, Convolution, SummedMode, VectorTable, term_places
from tileweave.backends.cpu.direct.tiles import RegisterTiling, pixels_at_once, stores_once, tiling, tiling_like
from tileweave.backends.cpu.llvm.elements import Element
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import aligned

UNROLLED_TERMS = 32
"""Sums of so few terms are written out, with the places of the terms in the instructions."""
_UNROLLED_PRODUCTS = 1200
"""And of so few products of vectors in all."""
SEQUENTIAL_PRODUCTS = 1 << 18
"""Products of a convolution that one thread computes: some 3 us, less than another thread takes to begin."""
SEQUENTIAL_WEIGHTS = 1 << 16
"""Bytes of weights that one thread brings into panels, for the same reason."""
_ROW_PIXELS = 8
"""Terms so near behind another have their places in the instructions, beside its."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are arranged, once: panels of filters, in each the terms, in each the filters of the panel.

    Args:
        width_bytes: of an element.
        rows: filters of a panel.
        held: places for them, as vectors of filters have.
        filters: how many, and bytes between them in the array that is given.
        groups: (how many, bytes between them), outermost first.
        terms: the modes of a sum.
    """

    width_bytes: int
    rows: int
    held: int
    filters: tuple[int, int]
    groups: tuple[tuple[int, int], ...]
    terms: tuple[SummedMode, ...]

    @property
    def size_bytes(self) -> int:
        """What the arranged weights take."""
        count = prod([extent for extent, _ in self.groups]) * -(-self.filters[0] // self.rows) * self.held
        return count * prod([extent for extent, _, _ in self.terms]) * self.width_bytes

    @property
    def order(self) -> object:
        """What the order of the elements depends on."""
        return (
            self.rows,
            self.held,
            self.filters,
            self.groups,
            tuple([(extent, weight) for extent, _, weight in self.terms]),
        )

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """The weights as the code reads them."""
        width, (filters, filter_bytes) = self.width_bytes, self.filters
        first = np.minimum(np.arange(0, filters, self.rows), filters - self.rows)
        row = (first[:, None, None] + np.minimum(np.arange(self.held), self.rows - 1)) * (filter_bytes // width)
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


Weights = Literal["as given", "arranged", "turned", "gathered"]
"""Whether they are read as they lie, or in panels: as they were arranged before, or as a call brings them there first,
by transposes where those of a sum lie one behind the other, else one by one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How vectors of pixels are read.

    Args:
        along: what its lanes are.
        once: whether no pixel is in two vectors; else the table says where each begins in the output.
        step: elements between neighbouring pixels: 1 or 2, where these are lanes.
        crossed: the most segments of a vector.
        ragged: whether some vector has lanes without pixels: of those that may overlap, each one.
    """

    along: Along
    once: bool
    step: int
    crossed: int
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
        weights: how they lie.
        terms: (row of the windows, bytes behind its first term, bytes of the weight) of each; None where they are a
            loop.
        extras: (number in the chain, position, whether it has an element per pixel) of the chain's other operands.
    """

    element: Element
    tensors: tuple[int, ...]
    rows: int
    widths: tuple[int, ...]
    reading: Reading
    weights: Weights
    terms: tuple[tuple[int, int, int], ...] | None
    extras: tuple[tuple[int, int, bool], ...]


@dataclass(frozen=True, slots=True)
class DirectNumbers:
    """The numbers that the code reads: counts, bytes and addresses. Nothing stays nothing: a stride of 0 costs nothing.

    Args:
        offsets: to the first element of the windowed operand, the weights, and what is written.
        outer: of each image or group: how many, and the strides of these three.
        filters: the first one of the last panel, the weights' stride, the output's, the bytes of a panel of weights.
        extras: of each: the offset, the stride between filters, and those along the outer modes.
        terms: where rows of the windows begin; of a loop, how many terms.
        packs: where a call makes the panels of weights: how many, in how many tasks, and the bytes of all.
        jobs: how many, and in how many tasks threads share them: 0 where one does all.
        parts: panels of filters, and blocks of tiles: 0 where there is one.
        pixels: tiles, wide tiles, pixels, pixels of a row.
    """

    offsets: tuple[int, ...]
    outer: tuple[tuple[int, ...], ...]
    filters: tuple[int, ...]
    extras: tuple[tuple[int, ...], ...]
    terms: tuple[int, ...]
    packs: tuple[int, int, int]
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
        vectors: what says where they lie.
        terms: the modes of a sum whose terms' places the code reads.
    """

    form: DirectForm
    numbers: DirectNumbers
    packing: Packing | None
    vectors: VectorTable
    terms: tuple[SummedMode, ...] | None

    def tables(self) -> tuple[NDArray[Any], ...]:
        """Arrays that the code reads: where vectors of pixels lie in the windowed operand, and where terms do."""
        vectors = _shared(self.vectors, self.vectors.made)
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
    once = c.along == "pixels" or (c.along == "filters" and stores_once(c, target, tiles.filters))
    return _cut(c, target, threads, tiles, widths, once=once, ragged=_is_ragged(c, target, once=once))


def cut_like(c: Convolution, form: DirectForm, target: Target, threads: int) -> DirectCut | None:
    """How a convolution is cut that runs on the code of another one; None where it cannot, or would be much slower."""
    own, ragged, once = form.reading, form.reading.ragged, form.reading.once
    like = tiling_like(c, target, rows=form.rows, widths=form.widths, along=own.along)
    if like is None or (c.added and not once):
        return None
    c, tiles = like
    if ragged != _is_ragged(c, target, once=once) and not (ragged and once and target.masks_stores):
        return None  # lanes that all have pixels may be masked where that is free
    return _cut(c, target, threads, tiles, form.widths, once=once, ragged=ragged)


def _is_ragged(c: Convolution, target: Target, *, once: bool) -> bool:
    """Whether some vector has lanes without pixels."""
    lanes = target.lanes(c.element.width_bytes)
    return c.pixels % lanes != 0 if once else (c.rows[-1][0] if c.along == "rows" else c.pixels) < lanes


def _cut(
    c: Convolution,
    target: Target,
    threads: int,
    tiles: RegisterTiling,
    widths: tuple[int, ...],
    *,
    once: bool,
    ragged: bool,
) -> DirectCut:
    width, lanes = c.element.width_bytes, target.lanes(c.element.width_bytes)
    filters = c.along == "filters"
    reading = Reading(c.along, once, 1 if filters else c.step, tiles.crossed, ragged)
    weights: Weights = "as given"
    if c.packed:
        weights = "arranged"
    elif filters:
        weights = "turned" if c.dense_terms else "gathered"
    held = -(-tiles.filters // lanes) * lanes if filters else tiles.filters
    at_once = held // lanes * pixels_at_once(tiles.filters, lanes, target) if filters else tiles.filters * tiles.width
    looped = c.count > UNROLLED_TERMS or c.count * at_once > _UNROLLED_PRODUCTS
    in_panels = weights != "as given"
    terms, begins = (None, (c.count,)) if looped else _written_terms(c.terms, width, held if in_panels else 0)
    extras = tuple([(o, extra.tensor, extra.along_pixels) for o, extra in c.extras.items()])
    form = DirectForm(c.element, c.pointers, tiles.filters, widths, reading, weights, terms, extras)
    panels = -(-c.filters[0] // tiles.filters)
    jobs = c.repeated * tiles.blocks * panels
    several = threads > 1 and c.products > SEQUENTIAL_PRODUCTS
    tasks = min(jobs, 4 * threads) if several else 1
    panel_bytes = c.count * held * width if in_panels else 0
    packs = (0, 0, 0)
    if weights in ("turned", "gathered"):
        made = prod([extent for extent, _ in c.groups]) * panels
        shared = min(made, 4 * threads) if several and made * panel_bytes > SEQUENTIAL_WEIGHTS else 0
        packs = (made, shared if shared > 1 else 0, made * panel_bytes)
    numbers = DirectNumbers(
        c.offsets,
        tuple([(mode.extent, *mode.strides) for mode in c.outer]),
        (c.filters[0] - tiles.filters, *c.filters[1:], panel_bytes),
        tuple([(extra.offset, extra.filter_stride, *extra.outer_strides) for extra in c.extras.values()]),
        begins,
        packs,
        (jobs, tasks if tasks > 1 else 0),
        (panels if panels > 1 else 0, tiles.blocks if tiles.blocks > 1 else 0),
        (tiles.tiles, tiles.wide, c.pixels, c.pixels if filters else c.rows[-1][0]),
    )
    packing = Packing(width, tiles.filters, held, c.filters[:2], c.groups, c.terms) if c.packed else None
    table = VectorTable(c.rows, lanes, width, c.along, once)
    return DirectCut(form, numbers, packing, table, c.terms if looped or weights == "gathered" else None)


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
