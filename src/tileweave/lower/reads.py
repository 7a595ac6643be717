"""What a kernel reads: regions of blocks and sources, as views where one block holds them, else as copies.

A read is resolved once, when a plan is prepared; what is left for a run is indexing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.backends.host import empty, fills_its_memory
from tileweave.errors import RunError
from tileweave.graph.ir.resolve import view
from tileweave.lower.execute import copy
from tileweave.space import AffineMap, Box

__all__ = ["Block", "Fetch", "Part", "assemble", "block_bytes", "make_part", "own", "slices", "values"]

Array = np.ndarray[Any, Any]
Block = Array | dict[str, Array]
"""What a task makes: an array, or an array per output where it keeps several."""


def slices(box: Box) -> Any:
    """A box as an index of an array that starts at the origin; what it gives is an array even at rank 0."""
    return (*(slice(a, b) for a, b in zip(box.start, box.stop, strict=True)), ...)


def block_bytes(block: Block) -> int:
    """The bytes of a block."""
    return sum(array.nbytes for array in block.values()) if isinstance(block, dict) else block.nbytes


def own(made: Mapping[str, Array], outputs: Sequence[str], inputs: Mapping[str, Array]) -> Block:
    """What a kernel made, as a block that holds no other memory than its own: a view would keep an input alive."""
    kept = {}
    taken = {id(_memory(x)) for x in inputs.values()}
    for name in outputs:
        array = np.asarray(made[name])
        alone = fills_its_memory(array) and id(_memory(array)) not in taken
        kept[name] = array if alone else array.copy()
        taken.add(id(_memory(kept[name])))
    return kept if len(kept) > 1 else kept[outputs[0]]


def _memory(array: Array) -> Any:
    """What holds the bytes of an array."""
    return array if array.base is None else array.base


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a read: one view of one held array.

    Args:
        box: the part, in coordinates of the tensor that is read.
        place: the part as an index of the whole read.
        map: from those coordinates to the held array's tensor.
        hold: the box of its tensor that the held array has.
        index: the view as a plain index of the held array, where the map allows that.
        task: number of the task whose block is held, or -1.
        source: number of the source, or -1; with both -1 the part is constant.
        fill: the constant, as an array of rank 0.
        output: which output of a block that has several; empty where the block is one array.
    """

    box: Box
    place: Any
    map: AffineMap
    hold: Box
    index: Any
    task: int
    source: int
    fill: Array | None = None
    output: str = ""

    @property
    def whole(self) -> bool:
        """Whether the view is the held array itself."""
        return bool(self.index == (...,))


def make_part(
    box: Box,
    place: Any,
    map: AffineMap,
    hold: Box,
    *,
    task: int = -1,
    source: int = -1,
    fill: Array | None = None,
    output: str = "",
) -> Part:
    """A part; a map that only moves becomes an index."""
    index = None
    if fill is None and map.matrix == AffineMap.identity(box.rank).matrix:
        region = box.translate(map.offset)
        index = (...,) if region == hold else slices(region.translate([-a for a in hold.start]))
    return Part(box, place, map, hold, index, task, source, fill, output)


def values(part: Part, held: Block | None) -> Array:
    """The values of a part as a view of the block that holds them; not to be written."""
    if part.fill is not None:
        return np.broadcast_to(part.fill, part.box.shape)
    if held is None:
        raise RunError("run(plan)", f"the block that holds {part.box} is gone", legal="a block that is still held")
    held = held[part.output] if isinstance(held, dict) else held
    if part.index is not None:
        return held if part.whole else np.asarray(held[part.index])
    return view(held, part.hold, part.map, part.box)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One input of a kernel: a region of a tensor.

    Args:
        name: of the kernel's input.
        shape: of the region.
        dtype: of the tensor.
        parts: disjoint; together they cover the region.
        local: whether one block of the reader's own machine holds the region, so that nothing is copied.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[Part, ...]
    local: bool


def assemble(fetch: Fetch, held: Callable[[Part], Block | None], threads: int = 1) -> tuple[Array, int]:
    """(the region as one array, not to be written; the bytes that were newly made for it)."""
    if len(fetch.parts) == 1:
        part = fetch.parts[0]
        block = held(part)
        return values(part, block), _fresh(part, block)
    out = empty(fetch.shape, fetch.dtype)
    fresh = 0
    for part in fetch.parts:
        block = held(part)
        fresh = max(fresh, _fresh(part, block))
        copy(out[part.place], values(part, block), threads=threads)
    return out, out.nbytes + fresh


def _fresh(part: Part, block: Block | None) -> int:
    """The bytes that were newly made to read a part of a source."""
    return block.nbytes if isinstance(block, np.ndarray) and part.task < 0 and block.base is None else 0
