"""Wishes for how contractions are blocked: what the backend decides by rules, said by the caller instead.

Source: own; that a few measured settings beat one rule of thumb is common experience with blocked products.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from tileweave.errors import BackendError

if TYPE_CHECKING:
    from tileweave.backends.cpu.gemm.blocking import ProductBlocking

_PACKED_LIMIT = 64 << 20
"""Bytes of packed panels that wishes may ask for, per thread and shared."""


_SWITCHES = ("pack_a", "pack_b", "share_a", "prefetch", "streamed")


@dataclass(frozen=True, slots=True)
class Settings:
    """How every contraction of a program should be blocked; None leaves a choice to the backend.

    In the names of blocked products: A is the operand whose elements are broadcast, B the one along which vectors run,
    which is the one that shares the output's dense axis. `CpuKernel.explain` says which is which, and what was done. A
    wish never changes what is computed, except for the order of sums in floating point. What a contraction cannot have,
    such as a tile that its registers do not hold or an operand read in place where its strides forbid that, stays the
    backend's choice.

    Args:
        mr: rows of a register tile.
        nr: columns of a register tile, rounded up to whole vectors.
        kc: contracted steps per block.
        mc: rows per block, rounded up to whole tiles.
        nc: columns per block, rounded up to whole tiles; blocks are what threads share.
        pack_a: whether A is packed (True) or read in place (False).
        pack_b: the same for B.
        share_a: whether panels of A are packed once for all threads.
        resident: whose packed block stays in the second cache while panels of the other pass: ``"a"`` or ``"b"``.
        prefetch: whether lines of the operands are asked for before they are read: operands of any size (True), or none
            at all, nor lines of the output (False).
        streamed: whether whole lines of the output bypass the caches where they can, however small it is (True), or
            every line goes through them (False).

    Raises:
        BackendError: a number is not a positive integer, or a switch neither True nor False.

    Example:
        >>> print(Settings(kc=256, pack_a=True))
        kc 256, A packed
        >>> print(Settings())
        the backend's own choice
    """

    mr: int | None = None
    nr: int | None = None
    kc: int | None = None
    mc: int | None = None
    nc: int | None = None
    pack_a: bool | None = None
    pack_b: bool | None = None
    share_a: bool | None = None
    resident: Literal["a", "b"] | None = None
    prefetch: bool | None = None
    streamed: bool | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "resident":
                good, legal = value in ("a", "b"), "'a', 'b' or None"
            elif field.name in _SWITCHES:
                good, legal = isinstance(value, bool), "True, False or None"
            else:
                good, legal = type(value) is int and value > 0, "a positive integer or None"
            if value is not None and not good:
                raise BackendError(f"Settings({field.name}={value!r})", "it is no such wish", legal=legal)

    def __str__(self) -> str:
        words = [f"{name} {value}" for name in ("mr", "nr", "kc", "mc", "nc") if (value := getattr(self, name))]
        for wish, operand in ((self.pack_a, "A"), (self.pack_b, "B")):
            words += [] if wish is None else [f"{operand} {'packed' if wish else 'read in place'}"]
        if self.share_a is not None:
            words.append(f"A packed {'once' if self.share_a else 'by each thread'}")
        if self.resident is not None:
            words.append(f"{self.resident.upper()} in the second cache")
        if self.prefetch is not None:
            words.append("operands prefetched" if self.prefetch else "nothing prefetched")
        if self.streamed is not None:
            words.append(f"stores {'past' if self.streamed else 'through'} the caches")
        return ", ".join(words) or "the backend's own choice"

    def tile(self, chosen: tuple[int, int], choices: tuple[int, ...], registers: int, lanes: int) -> tuple[int, int]:
        """The register tile (rows, vectors): the wished one where panels and registers allow it, or the chosen."""
        if self.mr is None and self.nr is None:
            return chosen
        rows, vectors = self.mr or chosen[0], chosen[1] if self.nr is None else -(-self.nr // lanes)
        fits = vectors in choices and rows * vectors + vectors + 1 <= registers
        return (rows, vectors) if fits else chosen


DEFAULT = Settings()
"""No wish at all."""


def wished(c: ProductBlocking, settings: Settings) -> ProductBlocking:
    """A cut with the wishes that it can have."""
    if settings is DEFAULT or settings == DEFAULT:
        return c
    width = c.columns.sums.width_bytes
    kc = c.kc
    if settings.kc is not None and not c.contracted.interleaved:
        blocks = -(-c.contracted.total // settings.kc)
        kc = -(-c.contracted.total // blocks)
        if blocks > 1:
            kc = -(-kc // c.columns.lanes) * c.columns.lanes
    rows, columns = c.row_panels, c.column_panels
    if settings.mc is not None:
        rows = min(c.rows.panels, -(-settings.mc // c.rows.width))
    if settings.nc is not None:
        columns = min(c.columns.panels, -(-settings.nc // c.columns.width))
    at_once = c.columns.pack_panels
    columns = min(c.columns.panels, -(-columns // at_once) * at_once)
    in_place = c.columns.operand_dense and c.columns.output_dense and c.columns.segments == 1
    may_columns = c.columns.element == c.columns.sums and in_place
    a_in_place = c.a_in_place if settings.pack_a is None else c.may_place_rows and not settings.pack_a
    b_in_place = c.b_in_place if settings.pack_b is None else may_columns and not settings.pack_b
    shared = (c.shared if settings.share_a is None else settings.share_a) and not a_in_place
    packed = (
        0 if b_in_place else kc * c.columns.width * columns * width,
        kc * c.rows.width * rows * width if shared else 0,
    )
    if max(packed) > _PACKED_LIMIT:
        return c
    return replace(
        c.reading(a_in_place, b_in_place, shared),
        kc=kc,
        row_panels=rows,
        column_panels=columns,
        keep_a=c.keep_a if settings.resident is None else settings.resident == "a",
        prefetch=settings.prefetch,
        streamed=settings.streamed,
    )


def check_settings(settings: object) -> None:
    """Refuses what are no settings."""
    if not isinstance(settings, Settings):
        facts = {"source": "", "log": ""}
        problem = f"{settings!r} are no settings"
        raise BackendError("compile(program, settings=..)", problem, legal="Settings(..)", facts=facts)
