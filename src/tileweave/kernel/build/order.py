"""Orders of the blocks of a grid: which tile the block of a number works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tileweave.errors import VerifyError
from tileweave.index import Expr, ExprLike, minimum, simplify

Order = Callable[[Expr, Sequence[int]], tuple[ExprLike, ...]]


def row_major(block: ExprLike, extents: Sequence[int]) -> tuple[ExprLike, ...]:
    """The last coordinate is fastest."""
    found: list[ExprLike] = []
    for extent in reversed(extents):
        found.insert(0, block % extent)
        block = block // extent
    return tuple(simplify(found))


def grouped(rows: int) -> Order:
    """Groups of so many rows of tiles, columns within a group slowest: neighbours share tiles of both operands.

    The last group has the rows that are left, so every tile is visited once.

    Source: LEGO section 3, with its last group repaired.
    """
    if type(rows) is not int or rows < 1:
        raise VerifyError(f"grouped({rows!r})", "a group has at least one row", facts={"rule": "trace", "path": ""})

    def order(block: Expr, extents: Sequence[int]) -> tuple[ExprLike, ...]:
        if len(extents) != 2:
            raise VerifyError(f"grouped({rows})", f"a grid of rank {len(extents)}", legal="two extents",
                              facts={"rule": "trace", "path": ""})  # fmt: skip
        m, n = extents
        first = block // (rows * n) * rows
        inside, height = block % (rows * n), minimum(m - first, rows)
        return tuple(simplify((first + inside % height, inside // height)))

    return order


def owner_last(device: Expr, devices: int) -> Order:
    """Each device begins behind its own share of the rows and ends with it: others get their tiles early."""

    def order(block: Expr, extents: Sequence[int]) -> tuple[ExprLike, ...]:
        total = prod(extents)
        share = -(-extents[0] // devices) * prod(extents[1:])
        return row_major((block + (device + 1) * share) % total, extents)

    return order
