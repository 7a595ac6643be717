"""A recurrent layer as one call: where its arrays lie, how its weights are arranged, how its steps are shared.

The weights of the state stand in panels: some vectors of the state's elements, all gates of each, term after term. So a
step reads them in one stream, from a cache that holds them from step to step. Weights that are constant are arranged
once, others at the beginning of each call. Two ways run side by side on a thread each, which need not meet before the
end; where there are more threads and steps are large, threads share each step of one way after the other.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.moves import run_on_pool
from tileweave.backends.cpu.recurrent.emit import ENV_BYTES, PLACES, StepTile, code
from tileweave.backends.cpu.target.calls import Bound
from tileweave.backends.cpu.target.target import host
from tileweave.backends.host import address_of, aligned
from tileweave.errors import BackendError

Array = NDArray[Any]
GATES = {"lstm": 4, "gru": 3, "early_gru": 3, "tanh": 1, "relu": 1}
WAYS = {"forward": (False,), "reverse": (True,), "both": (False, True)}
PARALLEL_STEP = 1 << 19
"""Bytes of weights, times rows that are computed while a vector of them is read, from which on threads share a step:
to begin a loop of theirs takes about a microsecond."""
_MOST_VECTORS = 4
"""Of the state's elements in a panel: with the gates enough sums at once to hide the time that one takes."""


def computable(arrays: Sequence[Array]) -> bool:
    """Whether there is code for a recurrence of these arrays (x, u, state, .., out): rows that are dense."""
    x, out = arrays[0], arrays[-1]
    dense = all(one.strides[-1] == one.itemsize and one.flags.aligned and one.size for one in arrays)
    same = all(one.dtype == x.dtype and one.dtype.isnative for one in arrays)
    return dense and same and x.dtype.str[1:] in ("f4", "f8") and out.flags.c_contiguous


@dataclass(frozen=True, slots=True)
class Recurrence:
    """All steps of a recurrent layer, for `NativeCalls`; `computable` says whether there is one.

    Args:
        cell: a key of `GATES`.
        ways: a key of `WAYS`.
        threads: that it may use.
    """

    cell: str
    ways: str
    threads: int

    def _tile(self, batch: int, hidden: int, width: int) -> tuple[StepTile, int]:
        """How a step is cut, and how many threads share it; 0: each way is computed by one thread."""
        target, gates = host(), GATES[self.cell]
        lanes, sums = target.lanes(width), target.registers * 3 // 4
        most = max(1, min(batch, sums // gates))
        rows = -(-batch // -(-batch // most))
        several = gates * hidden * hidden * width * rows >= PARALLEL_STEP
        threads = self.threads if several else 1
        if 1 < len(WAYS[self.ways]) <= self.threads and threads <= len(WAYS[self.ways]):
            threads = 0
        vectors = -(-hidden // lanes)
        panel = max(1, min(_MOST_VECTORS, sums // (rows * gates), -(-vectors // max(1, threads))))
        return StepTile(self.cell, gates, "float" if width == 4 else "double", lanes, rows, panel), threads

    def arranged(self, u: Array, batch: int) -> Array:
        """The weights in panels, [way, panel, term, gate, vector, lane]: what `bind` takes for them, too."""
        ways, _, hidden = u.shape
        tile, _ = self._tile(batch, hidden, u.itemsize)
        wide = tile.vectors * tile.lanes
        panels = -(-hidden // wide)
        parts = np.zeros((ways, tile.gates, panels * wide, hidden), u.dtype)
        parts[:, :, :hidden] = u.reshape(ways, tile.gates, hidden, hidden)
        parts = parts.reshape(ways, tile.gates, panels, tile.vectors, tile.lanes, hidden)
        panelled = parts.transpose(0, 2, 5, 1, 3, 4)
        made = aligned(panelled.shape, u.dtype)
        made[...] = panelled
        return made

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The recurrence on arrays (x, u, state, inner state or bias where the cell has one, out)."""
        x, u, state, *more, out = arrays
        if not computable(arrays):
            raise BackendError("Recurrence(..)", f"{x.dtype}{x.shape} is not computed by rows", legal="dense rows")
        (steps, batch, ways), hidden = x.shape[:3], out.shape[-1]
        tile, threads = self._tile(batch, hidden, x.itemsize)
        arranged = u.ndim == 6
        panels = -(-hidden // (tile.vectors * tile.lanes))
        panelled = 0 if arranged else ways * panels * hidden * tile.term_bytes
        between = 2 * ways * batch * hidden * x.itemsize if len(tile.loops) > 1 else 0
        work = panelled + between + 64 if panelled + between else 0
        names = ("x", "u", "state", *(["more"] if more else []), "out")
        bound = Bound(code(tile, host()), ENV_BYTES, work, [PLACES[name] for name in names])
        words = dict(zip(names, map(address_of, arrays), strict=True))
        words |= {"steps": steps, "batch": batch, "hidden": hidden, "panels": panels, "ways": ways}
        words["between"] = panelled
        words["backwards"] = sum(reverse << way for way, reverse in enumerate(WAYS[self.ways]))
        words |= {"arranged": int(arranged), "apart": int(not threads), "tasks": min(panels, max(1, threads))}
        words["arrangers"] = min(ways * panels, threads or self.threads)
        words |= dict(zip(("x_step", "x_row", "x_way"), x.strides, strict=False))
        words |= {"u_way": 0, "u_row": 0} if arranged else {"u_way": u.strides[0], "u_row": u.strides[1]}
        words |= {"state_way": state.strides[0], "state_row": state.strides[1]}
        if more:
            words |= {"more_way": more[0].strides[0], "more_row": more[0].strides[1] if more[0].ndim == 3 else 0}
        for name, word in words.items():
            bound.write(PLACES[name], word)
        run_on_pool(bound, self.threads)
        return bound
