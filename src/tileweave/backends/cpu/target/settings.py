"""Wishes for how contractions are cut: what the backend decides by a rule of thumb, said by the caller instead.

Source: own; that a few measured settings beat one rule of thumb is common experience with blocked products.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from tileweave.errors import BackendError

if TYPE_CHECKING:
    from tileweave.backends.cpu.gemm.gett import Cut

__all__ = ["DEFAULT", "Settings", "wished"]

_PACKED_LIMIT = 64 << 20
"""Bytes of packed panels that wishes may ask for, per thread and shared."""


_SWITCHES = ("pack_rows", "pack_columns", "share_rows", "sweep")


@dataclass(frozen=True, slots=True)
class Settings:
    """How every contraction of a program should be cut; None leaves a choice to the backend.

    A wish never changes what is computed, except for the order of sums in floating point. What a contraction cannot
    have, such as a tile that its registers do not hold or an operand read in place where its strides forbid that, stays
    the backend's choice; `Kernel.explain` shows what was done.

    Args:
        rows: rows of a register tile.
        vectors: vectors of a register tile.
        products: contracted steps per block.
        row_block: rows per chunk, rounded up to whole tiles.
        column_block: columns per chunk, rounded up to whole tiles; chunks are what threads share.
        pack_rows: whether the row operand is packed (True) or read where it lies (False).
        pack_columns: the same for the operand along which vectors run.
        share_rows: whether row panels are packed once for all threads.
        sweep: whether column panels go by rows that are all packed once, instead of rows by packed columns.

    Raises:
        BackendError: a number is not a positive integer.

    Example:
        >>> print(Settings(products=256, pack_rows=True))
        256 products, packed rows
        >>> print(Settings())
        the backend's own choice
    """

    rows: int | None = None
    vectors: int | None = None
    products: int | None = None
    row_block: int | None = None
    column_block: int | None = None
    pack_rows: bool | None = None
    pack_columns: bool | None = None
    share_rows: bool | None = None
    sweep: bool | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, switch = getattr(self, field.name), field.name in _SWITCHES
            good = isinstance(value, bool) if switch else type(value) is int and value > 0
            if value is not None and not good:
                legal = "True, False or None" if switch else "a positive integer or None"
                raise BackendError(f"Settings({field.name}={value!r})", "it is no such wish", legal=legal)

    def __str__(self) -> str:
        tile = [f"tile {self.rows or 'any'} x {self.vectors or 'any'} vectors"] if self.rows or self.vectors else []
        blocks = [
            f"{count} {word}"
            for count, word in (
                (self.products, "products"),
                (self.row_block, "rows per chunk"),
                (self.column_block, "columns per chunk"),
            )
            if count is not None
        ]
        packing = [
            f"{'packed' if wish else 'direct'} {side}"
            for wish, side in ((self.pack_rows, "rows"), (self.pack_columns, "columns"))
            if wish is not None
        ]
        sharing = [] if self.share_rows is None else [f"rows packed {'once' if self.share_rows else 'by each thread'}"]
        sweeping = [] if self.sweep is None else ["columns sweep by" if self.sweep else "rows sweep by"]
        return ", ".join([*tile, *blocks, *packing, *sharing, *sweeping]) or "the backend's own choice"

    def tile(self, chosen: tuple[int, int], choices: tuple[int, ...], registers: int) -> tuple[int, int]:
        """The register tile (rows, vectors): the wished one where panels and registers allow it, or the chosen."""
        rows, vectors = self.rows or chosen[0], self.vectors or chosen[1]
        fits = vectors in choices and rows * vectors + vectors + 1 <= registers
        return (rows, vectors) if fits else chosen


DEFAULT = Settings()
"""No wish at all."""


def wished(c: Cut, settings: Settings) -> Cut:
    """A cut with the wishes that it can have."""
    if settings == DEFAULT:
        return c
    width = c.columns.sums.width_bytes
    kc = c.kc
    if settings.products is not None and not c.contracted.woven:
        blocks = -(-c.contracted.total // settings.products)
        kc = -(-c.contracted.total // blocks)
        if blocks > 1:
            kc = -(-kc // c.columns.lanes) * c.columns.lanes
    rows, columns = c.row_panels, c.column_panels
    if settings.row_block is not None:
        rows = min(c.rows.panels, -(-settings.row_block // c.rows.width))
    if settings.column_block is not None:
        columns = min(c.columns.panels, -(-settings.column_block // c.columns.width))
    at_once = c.columns.pack_panels
    columns = min(c.columns.panels, -(-columns // at_once) * at_once)
    in_place = c.columns.operand_dense and c.columns.output_dense and c.columns.segments == 1
    may_columns = c.columns.element == c.columns.sums and in_place
    direct_rows = c.direct_rows if settings.pack_rows is None else c.may_place_rows and not settings.pack_rows
    direct_columns = c.direct_columns if settings.pack_columns is None else may_columns and not settings.pack_columns
    shared = (c.shared if settings.share_rows is None else settings.share_rows) and not direct_rows
    packed = (
        0 if direct_columns else kc * c.columns.width * columns * width,
        kc * c.rows.width * rows * width if shared else 0,
    )
    if max(packed) > _PACKED_LIMIT:
        return c
    return replace(
        c,
        kc=kc,
        row_panels=rows,
        column_panels=columns,
        direct_rows=direct_rows,
        direct_columns=direct_columns,
        shared=shared,
        sweeps=c.sweeps if settings.sweep is None else settings.sweep,
    )
