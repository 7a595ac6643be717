"""What a kernel engineer asks of a layout: vector width, coalescing, bank conflicts.

Every answer is an exact count under a stated model, with the addresses that make it. A layout here is anything that
gives element offsets: a core layout on one axis, a CuTe or composed layout, a LEGO layout or piece, an XOR layout, a
map over F2, the text of one of these, or an array of offsets. A *thread set* is an array of logical indices, one per
thread; -1 marks an idle thread. Indices count in the layout's own linear order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import LayoutError, Undecided
from tileweave.layout.core.checks import integer_array, need_numbers
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Layout
from tileweave.layout.core.rows import coalesce as coalesce_rows
from tileweave.layout.f2.linear import LinearMap
from tileweave.layout.f2.maps import F2Map
from tileweave.layout.f2.swizzle import ComposedLayout, XorLayout
from tileweave.layout.notation.cute_tuples import size
from tileweave.layout.notation.cute_value import CuteLayout
from tileweave.layout.notation.lego_numbers import tuple_index
from tileweave.layout.notation.lego_value import GenP, GroupBy, OrderBy, RegP
from tileweave.layout.text.reader import read

__all__ = [
    "Banks",
    "Coalescing",
    "Collision",
    "VectorWidth",
    "bank_conflicts",
    "coalescing",
    "offsets_of",
    "vector_width",
]

Offsets = np.ndarray[Any, np.dtype[np.int64]]

TABLE_BOUND = 1 << 24
"""The most offsets that an analysis lists; beyond it the answer is `Undecided`."""

MOST = 1 << 20
"""The greatest number of bytes, banks or elements that a model of a machine may name."""

LEGO = (GroupBy, OrderBy, RegP, GenP)
LAYOUTS = (CuteLayout, ComposedLayout, XorLayout, F2Map, Layout, *LEGO, np.ndarray)

WARP = 32
"""Threads that access memory together."""


def offsets_of(layout: Any, index: Any, *, row_major: bool = False) -> Offsets:
    """The element offsets of logical indices, as an array.

    Args:
        layout: see the module; an array of offsets is looked up.
        index: an array of linear indices in the layout's own order (CuTe: first mode fastest; core and LEGO: last).
        row_major: whether the indices count coordinates of the top-level modes with the last fastest instead.

    Raises:
        LayoutError: a value with several axes, an index out of range, or no layout at all.

    Example:
        >>> offsets_of(CuteLayout((4, 8), (8, 1)), np.array([0, 1, 4])).tolist()
        [0, 8, 1]
    """
    where = "offsets_of(layout, index)"
    layout = known(layout)
    at = integer_array(where, index, "indices")
    need_numbers(where, layout)
    if isinstance(layout, np.ndarray):
        flat = layout.reshape(-1)
        if at.size and not (int(at.min()) >= 0 and int(at.max()) < flat.size):
            raise LayoutError(where, "an index is out of range", legal=f"0..{flat.size - 1}")
        return np.asarray(flat[at], dtype=np.int64)
    if isinstance(layout, LEGO):
        return np.asarray(layout.apply(*tuple_index(at, layout.dims)), dtype=np.int64)
    if isinstance(layout, CuteLayout | ComposedLayout | XorLayout | F2Map | Layout):
        if row_major and isinstance(layout, CuteLayout | ComposedLayout | XorLayout):
            at = _first_fastest(at, layout.shape)
        out = layout(at)
        if isinstance(out, dict | Coord):
            raise LayoutError(
                where,
                f"values lie on the axes {', '.join(out if isinstance(out, dict) else out.axes)}",
                inputs={"layout": layout},
                legal="values on one axis",
            )
        return np.asarray(out, dtype=np.int64)
    raise LayoutError(where, f"{type(layout).__name__} is no layout", legal="a layout, or an array of offsets")


def known(layout: Any) -> Any:
    """The value of a text; the bit matrix of a map with named inputs, the first of which is lowest; else itself."""
    if isinstance(layout, str):
        return known(read(layout))
    if isinstance(layout, LinearMap) and len(layout.outputs) == 1:
        return layout.map
    return layout


def _first_fastest(at: Any, shape: Any) -> Any:
    """Row-major numbers of coordinates of the top-level modes, as numbers with the first mode fastest."""
    modes = [size(mode) for mode in shape] if isinstance(shape, tuple) else [size(shape)]
    return sum(c * prod(modes[:k]) for k, c in enumerate(tuple_index(at, tuple(modes))))


def check_positive(where: str, **numbers: int) -> None:
    """Raise a `LayoutError` unless every number is a positive integer that hardware could have."""
    for name, value in numbers.items():
        if type(value) is not int or not 1 <= value <= MOST:
            raise LayoutError(where, f"{name} {value!r} is not a positive integer", legal=f"integers from 1 to {MOST}")


# --- vector width


@dataclass(frozen=True, slots=True)
class VectorWidth:
    """The widest vector access that is right at every index.

    Args:
        elements: elements per access, a power of two.
        bytes: the same in bytes.
        limit: why twice as many are too many.
    """

    elements: int
    bytes: int
    limit: str


def vector_width(layout: Any, element_bytes: int, *, most_bytes: int = 16, base_alignment: int = 16) -> VectorWidth:
    """The greatest V such that each aligned run of V logical indices is contiguous, ascending and V-aligned in memory.

    Args:
        layout: a layout (see the module), in its own linear order.
        element_bytes: bytes per element.
        most_bytes: the widest access of the machine, in bytes.
        base_alignment: the alignment of the buffer itself, in bytes.

    Example:
        >>> vector_width(CuteLayout((8, 4), (1, 12)), 4)
        VectorWidth(elements=4, bytes=16, limit='the machine moves at most 16 bytes at once')
        >>> vector_width(CuteLayout((6, 4), (1, 6)), 2).elements
        8

    Source: own; exact for strided layouts of any size.
    """
    where = "vector_width(layout, element_bytes)"
    layout = known(layout)
    need_numbers(where, layout)
    check_positive(where, element_bytes=element_bytes, most_bytes=most_bytes, base_alignment=base_alignment)
    fits = _structural_fit(layout) or _listed_fit(layout, where)
    width = 1
    while True:
        wider = 2 * width
        if wider * element_bytes > most_bytes:
            limit = f"the machine moves at most {most_bytes} bytes at once"
        elif base_alignment % (wider * element_bytes):
            limit = f"the buffer is aligned to {base_alignment} bytes"
        else:
            limit = fits(wider)
            if not limit:
                width = wider
                continue
        return VectorWidth(width, width * element_bytes, limit)


def _modes_of(layout: Any) -> tuple[list[tuple[int, int]], int] | None:
    """(coalesced modes first fastest, offset) of a strided layout; None for any other."""
    if isinstance(layout, CuteLayout) and not isinstance(layout.zero, Coord):
        return coalesce_rows(layout.flat), 0
    if isinstance(layout, Layout) and len(layout.axes) == 1 and not layout.replica:
        axis = layout.axes[0]
        return coalesce_rows([(it.extent, it.stride[axis]) for it in reversed(layout.shard)]), layout.offset[axis]
    return None


def _structural_fit(layout: Any) -> Callable[[int], str] | None:
    found = _modes_of(layout)
    if found is None:
        return None
    modes, offset = found

    def fits(v: int) -> str:
        if not modes or modes[0][1] != 1:
            return f"neighbours are {modes[0][1] if modes else 0} elements apart"
        if modes[0][0] % v:
            return f"runs of {modes[0][0]} elements are contiguous"
        bad = next((f"the stride {d}" for _n, d in modes[1:] if d % v), f"the offset {offset}" if offset % v else "")
        return f"{bad} is not a multiple of {v}" if bad else ""

    return fits


def _listed_fit(layout: Any, where: str) -> Callable[[int], str]:
    size = size_of(layout, where)
    if size > TABLE_BOUND:
        raise Undecided(where, f"{size} offsets would have to be listed", facts={"bound": TABLE_BOUND})
    offsets = offsets_of(layout, np.arange(size))

    def fits(v: int) -> str:
        if size % v:
            return f"the size {size} is no multiple of {v}"
        runs = offsets.reshape(-1, v)
        bad = np.flatnonzero((runs != runs[:, :1] + np.arange(v)).any(axis=1) | (runs[:, 0] % v != 0))
        if bad.size:
            return f"indices {int(bad[0]) * v}.. lie at {runs[bad[0]].tolist()}"
        return ""

    return fits


# --- warps


def size_of(layout: Any, where: str) -> int:
    """The number of logical indices of anything that is taken for a layout here."""
    layout = known(layout)
    if isinstance(layout, LAYOUTS):
        need_numbers(where, layout)
        return int(layout.size)
    raise LayoutError(where, f"{type(layout).__name__} is no layout", legal="a layout, or an array of offsets")


def warps_of(layout: Any, threads: Any, where: str) -> list[tuple[np.ndarray[Any, Any], Offsets]]:
    """For each warp the lanes that are active and their element offsets."""
    layout = known(layout)
    size = size_of(layout, where)
    index = np.arange(min(WARP, size)) if threads is None else integer_array(where, threads, "the threads")
    if not (index >= 0).any():
        raise LayoutError(where, "every thread is idle", legal="one index per thread, -1 for idle")
    index = index.reshape(-1)
    out = []
    for start in range(0, index.size, WARP):
        part = index[start : start + WARP]
        lanes = np.flatnonzero(part >= 0)
        if lanes.size:
            out.append((start + lanes, offsets_of(layout, part[lanes])))
    return out


# --- coalescing


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What the warps of a thread set move between global memory and the cores.

    Args:
        sectors: per warp, how many sectors its access touches.
        ideal: per warp, how many its distinct bytes would fill.
        first_bytes: per warp, the byte address of each sector touched, ascending.
    """

    sectors: tuple[int, ...]
    ideal: tuple[int, ...]
    first_bytes: tuple[tuple[int, ...], ...]

    @property
    def efficiency(self) -> float:
        """Ideal sectors over touched ones: 1.0 when coalesced."""
        return sum(self.ideal) / sum(self.sectors) if self.sectors else 1.0


def coalescing(
    layout: Any, threads: Any = None, *, element_bytes: int = 4, vector: int = 1, sector_bytes: int = 32
) -> Coalescing:
    """The sectors that each warp access touches, counted exactly.

    Args:
        layout: logical index -> element offset; the buffer starts at a sector.
        threads: the thread set; left out, 32 threads at the indices 0..31.
        element_bytes: bytes per element.
        vector: contiguous elements that each thread accesses from its offset on.
        sector_bytes: the unit of transfer.

    Example:
        >>> coalescing(CuteLayout(32, 1)).sectors, coalescing(CuteLayout(32, 64)).sectors
        ((4,), (32,))

    Source: the sector model of NVIDIA GPUs since Maxwell.
    """
    where = "coalescing(layout, threads)"
    check_positive(where, element_bytes=element_bytes, vector=vector, sector_bytes=sector_bytes)
    sectors, ideal, firsts = [], [], []
    for _lanes, offsets in warps_of(layout, threads, where):
        starts = np.unique(offsets) * element_bytes
        width = element_bytes * vector
        touched = np.unique((starts[:, None] + np.arange(width)).reshape(-1))
        hit = np.unique(touched // sector_bytes)
        sectors.append(int(hit.size))
        ideal.append(-(-int(touched.size) // sector_bytes))
        firsts.append(tuple(int(h) * sector_bytes for h in hit))
    return Coalescing(tuple(sectors), tuple(ideal), tuple(firsts))


# --- bank conflicts


@dataclass(frozen=True, slots=True)
class Collision:
    """Threads of one phase that want different words of one bank.

    Args:
        bank: the bank.
        threads: the threads, ascending.
        first_bytes: their byte addresses, in the same order.
    """

    bank: int
    threads: tuple[int, ...]
    first_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Banks:
    """How often shared memory serves the accesses of a thread set.

    Args:
        passes: per warp, how many passes its access takes.
        ideal: per warp, how many it would take without conflicts (its distinct words over the banks, per phase).
        collisions: in each phase with a conflict, the worst bank.
    """

    passes: tuple[int, ...]
    ideal: tuple[int, ...]
    collisions: tuple[Collision, ...]

    @property
    def free(self) -> bool:
        """Whether no access takes more passes than its words need."""
        return self.passes == self.ideal

    @property
    def mean(self) -> float:
        """Passes per warp access, on average."""
        return sum(self.passes) / len(self.passes) if self.passes else 0.0


def bank_conflicts(
    layout: Any,
    threads: Any = None,
    *,
    element_bytes: int = 4,
    vector: int = 1,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Banks:
    """The passes of each warp access to shared memory, with the addresses that collide.

    The model: a warp is served in phases of at most ``banks * bank_bytes`` bytes (all 32 threads for up to 4 bytes
    each, half warps for 8, quarter warps for 16); in a phase each bank gives one word per pass, to any
    number of threads.

    Args:
        layout: logical index -> element offset; the buffer starts at bank 0.
        threads: the thread set, warps of 32 in order; left out, 32 threads at the indices 0..31.
        element_bytes: bytes per element.
        vector: contiguous elements that each thread accesses; their bytes must be aligned.
        banks, bank_bytes: the shape of shared memory.

    Raises:
        LayoutError: a vector access that is not aligned.

    Example:
        >>> tile = CuteLayout((32, 32), (32, 1))
        >>> bank_conflicts(tile).passes, bank_conflicts(CuteLayout((32, 32), (33, 1))).passes
        ((32,), (1,))

    Source: the CUDA programming guide's shared memory; the count is exact for any layout.
    """
    where = "bank_conflicts(layout, threads)"
    check_positive(where, element_bytes=element_bytes, vector=vector, banks=banks, bank_bytes=bank_bytes)
    passes, ideal, collisions = [], [], []
    for lanes, offsets in warps_of(layout, threads, where):
        taken, needed, found = serve(lanes, offsets, element_bytes, vector, banks, bank_bytes, where)
        passes.append(taken)
        ideal.append(needed)
        collisions += found
    return Banks(tuple(passes), tuple(ideal), tuple(collisions))


def phase_length(width: int, banks: int, bank_bytes: int) -> int:
    """How many neighbouring threads are served together when each accesses `width` bytes."""
    return max(1, min(WARP, banks * bank_bytes // max(width, bank_bytes)))


def phases_of(lanes: np.ndarray[Any, Any], width: int, banks: int, bank_bytes: int) -> np.ndarray[Any, Any]:
    """The phase of its warp in which each thread is served."""
    return lanes % WARP // phase_length(width, banks, bank_bytes)


def loads(
    phase: np.ndarray[Any, Any], starts: Offsets, width: int, banks: int, bank_bytes: int
) -> np.ndarray[Any, Any]:
    """Per phase (rows) and bank (columns) the distinct words that accesses of `width` bytes at `starts` want."""
    words, owner = _words(starts, width, bank_bytes)
    low = int(words.min())
    reach = int(words.max()) - low + 1
    distinct = np.unique(phase[owner].astype(np.int64) * reach + (words - low))
    at = distinct // reach * banks + (distinct % reach + low) % banks
    counts = np.bincount(at, minlength=(int(phase.max()) + 1) * banks).reshape(-1, banks)
    return counts[counts.any(axis=1)]


def serve(
    lanes: np.ndarray[Any, Any],
    offsets: Offsets,
    element_bytes: int,
    vector: int,
    banks: int,
    bank_bytes: int,
    where: str,
) -> tuple[int, int, list[Collision]]:
    """(passes, least passes, collisions) of one warp."""
    width = element_bytes * vector
    starts = offsets * element_bytes
    if vector > 1 and (starts % width).any():
        k = int(np.flatnonzero(starts % width)[0])
        raise LayoutError(
            where,
            f"thread {int(lanes[k])} accesses {width} bytes at byte {int(starts[k])}",
            legal=f"multiples of {width}",
        )
    phase = phases_of(lanes, width, banks, bank_bytes)
    load = loads(phase, starts, width, banks, bank_bytes)
    least = -(-load.sum(axis=1) // banks)
    collisions = []
    for row in np.flatnonzero(load.max(axis=1) > least):
        here = phase == np.unique(phase)[row]
        bank = int(load[row].argmax())
        words, owner = _words(starts[here], width, bank_bytes)
        first = {int(w): int(o) for w, o in reversed(list(zip(words, owner, strict=True))) if w % banks == bank}
        who = sorted(set(first.values()))
        members = lanes[here]
        threads = tuple(int(members[o]) for o in who)
        collisions.append(Collision(bank, threads, tuple(int(starts[here][o]) for o in who)))
    return int(load.max(axis=1).sum()), int(least.sum()), collisions


def _words(starts: Offsets, width: int, bank_bytes: int) -> tuple[Offsets, Offsets]:
    """The words that accesses touch, and which access touches each."""
    count = -(-width // bank_bytes) + (1 if width % bank_bytes and width > bank_bytes else 0)
    first = starts // bank_bytes
    last = (starts + width - 1) // bank_bytes
    words = np.minimum(first[:, None] + np.arange(max(count, 2)), last[:, None])
    owner = np.broadcast_to(np.arange(len(starts))[:, None], words.shape)
    return words.reshape(-1), owner.reshape(-1)
