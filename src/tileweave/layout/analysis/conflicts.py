"""Removing bank conflicts: the best swizzle or padding of a buffer for a set of accesses, and whether it is optimal.

The families are searched whole, the passes counted as in `memory.bank_conflicts`. When the passes reach the bound that
no placement can beat, the remedy is optimal; otherwise it is the best of its family, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np

from tileweave.errors import LayoutError
from tileweave.layout.analysis.memory import (
    TABLE_BOUND,
    WARP,
    Offsets,
    check_positive,
    known,
    loads,
    offsets_of,
    phases_of,
    size_of,
    warps_of,
)
from tileweave.layout.core.coord import Coord
from tileweave.layout.f2.swizzle import ComposedLayout, Swizzle
from tileweave.layout.notation.cute_tuples import zip_shape
from tileweave.layout.notation.cute_value import CuteLayout

__all__ = ["Accesses", "Remedy", "best_swizzle", "remove_conflicts", "search_padding", "search_swizzle"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """The best way found to lay a buffer out for a set of accesses.

    Args:
        kind: nothing was needed or helped, a swizzle, or padding.
        layout: the new layout: same logical indices, new offsets.
        swizzle: the swizzle, if one is used.
        padding: elements added after each row, if any.
        passes: passes of all accesses together, after.
        before: the same for the layout as it was; None if its vectors were not aligned.
        lower_bound: no placement whatever takes fewer passes.
        searched: candidates that were counted; every member of the stated family is among them.
    """

    kind: Literal["none", "swizzle", "padding"]
    layout: Any
    swizzle: Swizzle | None
    padding: int
    passes: int
    before: int | None
    lower_bound: int
    searched: int

    @property
    def optimal(self) -> bool:
        """Whether the bound proves that no placement of any kind is better; otherwise it is best within its family."""
        return self.passes == self.lower_bound

    @property
    def cosize(self) -> int:
        """Elements that the buffer needs: a swizzle may reach past the layout that it permutes, to a power of two."""
        if isinstance(self.layout, ComposedLayout):
            return self.layout.cosize
        offsets = offsets_of(self.layout, np.arange(size_of(self.layout, "Remedy.cosize")))
        return int(offsets.max()) + 1


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses of fixed threads, whose passes are counted under any change of their offsets.

    Args:
        groups: for each vector length the phase of every access, numbered over all warps, and its offset; and how often
            each phase occurs.
        element_bytes, banks, bank_bytes: as in `memory.bank_conflicts`.
    """

    groups: tuple[tuple[int, np.ndarray[Any, Any], Offsets, np.ndarray[Any, Any]], ...]
    element_bytes: int
    banks: int
    bank_bytes: int

    @classmethod
    def of(cls, warps: Iterable[tuple[int, np.ndarray[Any, Any], Offsets]], *model: int) -> Accesses:
        """From (vector length, lanes, offsets) of each warp access, and the model's three numbers."""
        element_bytes, banks, bank_bytes = model
        found: dict[int, list[tuple[np.ndarray[Any, Any], Offsets]]] = {}
        for vector, lanes, offsets in warps:
            rows = found.setdefault(vector, [])
            phase = phases_of(lanes, element_bytes * vector, banks, bank_bytes)
            rows.append((phase + WARP * len(rows), offsets))
        groups = []
        for vector, rows in found.items():
            phase, offsets = (np.concatenate(part) for part in zip(*rows, strict=True))
            number = np.unique(phase, return_inverse=True)[1].reshape(-1)
            groups.append((vector, number, offsets, np.ones(int(number.max()) + 1, np.int64)))
        return cls(tuple(groups), element_bytes, banks, bank_bytes)

    def up_to_xor(self) -> Accesses:
        """Phases whose offsets differ by an XOR counted together: a swizzle and the choice of banks are linear over F2.

        The same accesses where the model's numbers are no powers of two.
        """
        if any(n & (n - 1) for n in (self.element_bytes, self.banks, self.bank_bytes, *(g[0] for g in self.groups))):
            return self
        groups = []
        for vector, phase, offsets, often in self.groups:
            counts: dict[tuple[int, ...], int] = {}
            for part, n in zip(np.split(offsets, np.flatnonzero(np.diff(phase)) + 1), often, strict=True):
                key = tuple((part ^ part[0]).tolist()) if (part >= 0).all() else tuple(part.tolist())
                counts[key] = counts.get(key, 0) + int(n)
            number = np.repeat(np.arange(len(counts)), [len(key) for key in counts])
            at = np.array([offset for key in counts for offset in key])
            groups.append((vector, number, at, np.array(list(counts.values()))))
        return Accesses(tuple(groups), self.element_bytes, self.banks, self.bank_bytes)

    def __call__(self, change: Callable[[Offsets], Offsets]) -> int | None:
        """The passes of all accesses after the change; None if a vector is no longer aligned."""
        total = 0
        for vector, phase, offsets, often in self.groups:
            moved = change(offsets)
            if vector > 1 and (moved % vector).any():
                return None
            width = self.element_bytes * vector
            load = loads(phase, moved * self.element_bytes, width, self.banks, self.bank_bytes)
            total += int(load.max(axis=1) @ often)
        return total

    def least(self) -> int:
        """What no placement can beat: in each phase, the distinct bytes over the bytes of one pass."""
        row = self.banks * self.bank_bytes
        total = 0
        for vector, phase, offsets, often in self.groups:
            count = np.bincount(np.unique(np.stack([phase, offsets]), axis=1)[0])
            total += int(-(-count * self.element_bytes * vector // row) @ often)
        return total

    def top(self) -> int:
        """The greatest offset."""
        return max(int(offsets.max()) for _vector, _phase, offsets, _often in self.groups)


def _cost(
    layout: Any, accesses: Sequence[Any], element_bytes: int, vector: int, banks: int, bank_bytes: int, where: str
) -> Accesses:
    check_positive(where, element_bytes=element_bytes, vector=vector, banks=banks, bank_bytes=bank_bytes)
    if not isinstance(accesses, Sequence) or isinstance(accesses, str | bytes) or not accesses:
        raise LayoutError(where, "there are no accesses", legal="a list of thread sets, at least one")
    warps = [(vector, *warp) for threads in accesses for warp in warps_of(layout, threads, where)]
    return Accesses.of(warps, element_bytes, banks, bank_bytes)


def _unaligned(layout: Any, vector: int, where: str) -> LayoutError:
    legal = f"padding that makes rows multiples of {vector}, or shorter vectors"
    return LayoutError(where, f"accesses of {vector} elements are not aligned", inputs={"layout": layout}, legal=legal)


Found = tuple[Any, int, int]
"""(the best change, its passes, how many were counted)."""


def _search(cost: Accesses, changes: Iterable[tuple[Any, Callable[[Offsets], Offsets]]]) -> Found | None:
    """The first of the changes with the fewest passes, no change at all before the others; None if none is aligned."""
    best: tuple[Any, int] | None = None
    least, searched = cost.least(), 0
    for name, change in chain([(None, lambda offsets: offsets)], changes):
        if best is not None and best[1] == least:
            break
        passes = cost(change)
        searched += 1
        if passes is not None and (best is None or passes < best[1]):
            best = (name, passes)
    return None if best is None else (*best, searched)


def best_swizzle(cost: Accesses, bits: int) -> Found | None:
    """The swizzle within so many address bits with the fewest passes, or None for no swizzle."""
    if cost(lambda offsets: offsets) is None:
        return None
    cost = cost.up_to_xor()
    low = max((vector - 1).bit_length() for vector, *_ in cost.groups)  # what stays, so that vectors stay whole
    return _search(cost, ((swizzle, swizzle) for swizzle in _swizzles(low, bits, cost.banks)))


def search_swizzle(
    layout: Any,
    accesses: Sequence[Any],
    *,
    element_bytes: int = 4,
    vector: int = 1,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Remedy:
    """The swizzle with the fewest passes over all accesses, all ``Swizzle(B, M, S)`` within the buffer tried.

    Args:
        layout: the buffer without swizzle; its offsets fill whole powers of two for the swizzle to stay inside.
        accesses: thread sets, as in `bank_conflicts`.
        element_bytes, vector, banks, bank_bytes: as in `bank_conflicts`.

    Returns:
        a `Remedy`; `optimal` tells whether no placement at all could do better. Fewest bits win among equals.

    Example:
        >>> tile = CuteLayout((32, 32), (32, 1))
        >>> rows, columns = np.arange(32) * 32, np.arange(32)
        >>> found = search_swizzle(tile, [rows, columns])
        >>> print(found.swizzle, found.before, found.passes, found.optimal)
        Sw<5,0,5> 33 2 True

    Source: own; the family is CuTe's.
    """
    where = "search_swizzle(layout, accesses)"
    layout = known(layout)
    cost = _cost(layout, accesses, element_bytes, vector, banks, bank_bytes, where)
    bits = _buffer_bits(layout, cost.top(), where)
    before, least = cost(lambda offsets: offsets), cost.least()
    found = best_swizzle(cost, bits)
    if found is None:
        raise _unaligned(layout, vector, where)
    chosen, passes, searched = found
    if chosen is None:
        return Remedy("none", layout, None, 0, passes, before, least, searched)
    return Remedy("swizzle", _behind(chosen, layout), chosen, 0, passes, before, least, searched)


def _buffer_bits(layout: Any, top: int, where: str) -> int:
    """How many address bits the buffer has, so that a swizzle stays within it."""
    if isinstance(layout, CuteLayout):
        top = sum(d * (n - 1) for n, d in layout.flat if d > 0)
    elif layout.size <= TABLE_BOUND:
        top = int(offsets_of(layout, np.arange(layout.size)).max())
    if top >= 1 << 40:
        raise LayoutError(where, f"the buffer reaches offset {top}", legal="buffers that fit shared memory")
    return top.bit_length()


def _swizzles(low: int, bits: int, banks: int) -> list[Swizzle]:
    """All swizzles whose source and target lie within the bits from `low` to below `bits`, fewest bits first."""
    out = []
    for b in range(1, min((bits - low) // 2, banks.bit_length() - 1) + 1):
        for base in range(low, bits - 2 * b + 1):
            out += [Swizzle(b, base, s * shift) for shift in range(b, bits - base - b + 1) for s in (1, -1)]
    return out


def _behind(swizzle: Swizzle, layout: Any) -> Any:
    """The layout behind the swizzle: composed where that has a form, else a table of offsets."""
    if isinstance(layout, CuteLayout):
        return ComposedLayout(swizzle, 0, layout)
    return swizzle(offsets_of(layout, np.arange(layout.size)))


def search_padding(
    layout: Any,
    accesses: Sequence[Any],
    row: int,
    *,
    most: int = 32,
    element_bytes: int = 4,
    vector: int = 1,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Remedy:
    """The least padding with the fewest passes: up to `most` elements inserted after every `row` elements.

    Args:
        layout: the buffer without padding.
        accesses: thread sets, as in `bank_conflicts`.
        row: elements per row; offset o moves to ``o + o // row * padding``.
        most: the greatest padding tried, in elements.
        element_bytes, vector, banks, bank_bytes: as in `bank_conflicts`.

    Example:
        >>> tile = CuteLayout((32, 32), (32, 1))
        >>> found = search_padding(tile, [np.arange(32) * 32, np.arange(32)], 32)
        >>> found.padding, found.passes, found.optimal, str(found.layout)
        (1, 2, True, '(32,32):(33,1)')

    Source: own.
    """
    where = "search_padding(layout, accesses, row)"
    layout = known(layout)
    check_positive(where, row=row)
    cost = _cost(layout, accesses, element_bytes, vector, banks, bank_bytes, where)
    before, least = cost(lambda offsets: offsets), cost.least()
    found = _search(cost, ((p, partial(_spread, row=row, padding=p)) for p in range(1, most + 1)))
    if found is None:
        raise _unaligned(layout, vector, where)
    padding, passes, searched = found[0] or 0, found[1], found[2]
    kind: Literal["none", "padding"] = "padding" if padding else "none"
    return Remedy(kind, _padded(layout, row, padding), None, padding, passes, before, least, searched)


def _spread(offsets: Offsets, row: int, padding: int) -> Offsets:
    return offsets + offsets // row * padding


def _padded(layout: Any, row: int, padding: int) -> Any:
    """The padded layout: strided where every stride is within a row or of whole rows, else a table of offsets."""
    if not padding:
        return layout
    if isinstance(layout, CuteLayout) and not isinstance(layout.zero, Coord):
        inside = sum(abs(d) * (n - 1) for n, d in layout.flat if d % row)
        if inside < row and all(d >= 0 for _n, d in layout.flat):
            strides = iter([d + d // row * padding for _n, d in layout.flat])
            return CuteLayout(layout.shape, zip_shape(layout.shape, strides))
    offsets = offsets_of(layout, np.arange(layout.size))
    return _spread(offsets, row, padding)


def remove_conflicts(layout: Any, accesses: Sequence[Any], row: int | None = None, **model: int) -> Remedy:
    """The better of the best swizzle and, if `row` is given, the best padding; a swizzle wins ties.

    A swizzle costs no memory.

    Args:
        layout: the buffer as it is.
        accesses: thread sets, as in `bank_conflicts`.
        row: elements per row, for padding.
        model: ``element_bytes``, ``vector``, ``banks``, ``bank_bytes`` as in `bank_conflicts`.

    Example:
        >>> remove_conflicts(CuteLayout((32, 32), (32, 1)), [np.arange(32)], 32).kind
        'swizzle'
    """
    try:
        swizzled = search_swizzle(layout, accesses, **model)
    except LayoutError:
        if row is None:
            raise
        return search_padding(layout, accesses, row, **model)
    if row is None or swizzled.optimal:
        return swizzled
    padded = search_padding(layout, accesses, row, **model)
    return padded if padded.passes < swizzled.passes else swizzled
