"""Slices of LEGO layouts: an index in which ``:`` stands for all of a tile's dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileweave.errors import Incongruent, LayoutError
from tileweave.index import Expr, constant_of, symbol
from tileweave.layout.notation.lego_numbers import Dim

LONGEST_INDEX = 24
"""Letters of an index beyond which a comment leaves it out."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The offsets of a tile: an expression over one symbol per ``:``, each an axis of its own, and where it counts.

    Args:
        text: the layout and the index, for comments.
        offset: the flat number of the element at the symbols' values.
        mask: whether that element exists; True where it always does.
        ranges: the symbols of the ``:``, slowest axis first, each from 0 to its extent.
    """

    text: str
    offset: Any
    mask: Any
    ranges: tuple[Expr, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tile."""
        return tuple(constant_of(r.args[2]) or 0 for r in self.ranges)


def has_slices(index: Sequence[Any]) -> bool:
    """Whether some entry of an index is a slice."""
    return any(isinstance(i, slice) for i in index)


def sliced(
    index: Sequence[Any],
    dims: Sequence[Dim],
    text: str,
    offset: Callable[..., Any],
    mask: Callable[..., Any] | None = None,
) -> Slice:
    """The slice of a layout at an index with ``:`` in it.

    Args:
        index: one entry per dimension.
        dims: the extents; those of ``:`` are integers.
        text: the layout as text.
        offset, mask: functions of a whole index.

    Raises:
        LayoutError: a slice with bounds, or over an extent that is no constant.
    """
    where = f"{text.split('(')[0]}[index]"
    if len(index) != len(dims):
        raise Incongruent(where, f"{len(index)} coordinates for {len(dims)} dimensions", inputs={"dims": tuple(dims)})
    rank = sum(isinstance(i, slice) for i in index)
    whole: list[Any] = []
    ranges: list[Expr] = []
    for k, (i, n) in enumerate(zip(index, dims, strict=True)):
        if not isinstance(i, slice):
            whole.append(i)
            continue
        extent = constant_of(n)
        if i != slice(None):
            raise LayoutError(where, f"dimension {k} is cut to {i}", legal="`:`, all of a tile's dimension")
        if extent is None:
            raise LayoutError(where, f"dimension {k} has the extent {n}", legal="`:` over a constant extent")
        ranges.append(symbol(f"axis{len(ranges)}_{rank}_{extent}", 0, extent))
        whole.append(ranges[-1])
    texts = [":" if isinstance(i, slice) else str(i) for i in index]
    shown = ", ".join(text if len(text) <= LONGEST_INDEX else ".." for text in texts)
    return Slice(f"{text}[{shown}]", offset(*whole), True if mask is None else mask(*whole), tuple(ranges))
