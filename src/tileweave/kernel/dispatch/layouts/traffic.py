"""What accesses of a thread program cost: passes of shared memory, sectors of global memory, for one warp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tileweave.index import Expr, as_expr, bounds, evaluate, substitute, symbols_of
from tileweave.kernel.atoms import BITS
from tileweave.kernel.threads import Address, Instruction, Local, Slots, SourceLine, ThreadProgram, statements
from tileweave.layout.analysis.memory import loads, phases_of

_SECTOR, _BANKS, _WORD = 32, 32, 4
EMPTY: Mapping[str, Expr] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Traffic:
    """One access of the first warp: what memory serves, and what it would serve at best.

    Args:
        name: the instruction.
        buffer: the buffer's name.
        bytes_each: of one lane.
        unit: ``"passes"`` of shared memory's banks, or ``"sectors"`` of 32 bytes.
        served: how many there are.
        least: how many it takes at least to move the same bytes.
        at: the user's line.
    """

    name: str
    buffer: str
    bytes_each: int
    unit: str
    served: int
    least: int
    at: SourceLine | None

    def __str__(self) -> str:
        worse = "" if self.served <= self.least else f", {self.served / self.least:.1f} times what is needed"
        unit = self.unit if self.served != 1 else {"passes": "pass", "sectors": "sector"}[self.unit]
        return f"{self.name} {self.buffer}, {self.bytes_each} B a lane: {self.served} {unit}{worse}"


def accesses(program: ThreadProgram) -> Iterator[Traffic]:
    """The accesses of a program, each instruction at the first step of its loops; masks are not looked at."""
    known: dict[str, Expr] = {}
    for item in statements(program.body):
        if isinstance(item, Local) and isinstance(item.value, Expr) and symbols_of(item.value):
            known[str(item.symbol)] = as_expr(substitute(item.value, known))
        found = access_of(item, known) if isinstance(item, Instruction) else None
        if found is not None:
            yield found


def access_of(item: Instruction, known: Mapping[str, Expr] = EMPTY) -> Traffic | None:
    """The access of an instruction, if it is one that is counted.

    Args:
        item: the instruction.
        known: what symbols of its address stand for, as the number of a thread for its warp and lane.
    """
    where = next((o for o in item.operands if isinstance(o, Address)), None)
    if where is None:
        return None
    if item.atom.startswith(("ldmatrix", "stmatrix")):
        width, lanes = 16, 8 * int(item.atom.split(".x")[1][0])
    elif item.atom.startswith(("ld.", "st.", "multimem.")):
        slots = next(o for o in item.operands if isinstance(o, Slots))
        width, lanes = slots.count * BITS[slots.buffer.dtype] // 8, 32
    elif item.atom.startswith("cp.async.c") and len(item.operands) == 2:
        width, lanes = int(item.atom.rsplit(".", 1)[1]), 32
        where = item.operands[1]
    else:
        return None
    starts = _lanes(where, lanes, known) * (BITS[where.buffer.dtype] // 8)
    if where.buffer.space in ("shared", "cluster"):
        phase = phases_of(np.arange(lanes), width, _BANKS, _WORD)
        load = loads(phase, starts, width, _BANKS, _WORD)
        served, least = int(load.max(axis=1).sum()), int((-(-load.sum(axis=1) // _BANKS)).sum())
        return Traffic(item.atom, where.buffer.name, width, "passes", served, least, item.at)
    touched = np.unique((starts[:, None] + np.arange(width)) // _SECTOR)
    needed = np.unique(starts[:, None] + np.arange(width)).size
    return Traffic(item.atom, where.buffer.name, width, "sectors", touched.size, -(-needed // _SECTOR), item.at)


def _lanes(where: Address, count: int, known: Mapping[str, Expr]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The place of each lane's access, in elements; other symbols at their least value."""
    if not isinstance(where.offset, Expr):
        return np.full(count, int(where.offset))
    offset, values = as_expr(substitute(where.offset, known)), {}
    for symbol in symbols_of(offset):
        low = bounds(symbol)[0]
        values[str(symbol)] = np.arange(count) if str(symbol) == "lane" else np.full(count, low or 0)
    return np.broadcast_to(np.asarray(evaluate(offset, values)), (count,)).astype(np.int64)
