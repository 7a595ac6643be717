"""Kernels of one kind: the code of a product again, for other extents and strides.

A `Family` holds the code of one kind of product. It blocks other sizes by the same function, and looks for the variant
that comes out; what its code reads is a table (`tileweave.index.sizes`). Code lives as long
as a kernel holds it.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tileweave.backends.cpu.direct.match import match
from tileweave.backends.cpu.gemm.blocking import (
    NEAR,
    ProductBlocking,
    are_tiny,
    axes_of,
    cut_like,
    longer_in,
    may_lend,
    tile_of,
)
from tileweave.backends.cpu.gemm.contract import may_start, starts_in, without_start
from tileweave.backends.cpu.gemm.gett import block_product, cut_product
from tileweave.backends.cpu.llvm.elements import Element, element
from tileweave.backends.cpu.target.jit import Code
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import Table
from tileweave.teir.merged.form import Merged, MergedOp, Mode

Size = tuple[int, tuple[int, ...]]
"""An axis' extent, and its bytes per tensor of the program."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Variant:
    """Code of a kind for one way to block it.

    Args:
        code: machine code.
        table: what the code reads, for the sizes that it serves; None where its sizes are constants.
        functions: of the code, those that have been asked for.
    """

    code: Code
    table: Table | None
    functions: dict[str, Any] = field(default_factory=dict)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A public function of the code as ctypes calls it, of which all kernels on it share one."""
        found = self.functions.get(name)
        if found is None:
            found = self.functions[name] = self.code.function(name, result, *arguments)
        return found


Lender = tuple[weakref.ref[Variant], ProductBlocking]
"""Code, and how the product was cut for which it was made."""


@dataclass(frozen=True, slots=True)
class FoundCode:
    """Code for a product of some sizes.

    Args:
        variant: the code.
        table: what it reads.
        ends: the bytes of every tensor.
        lent: whether it was made for another tile, so that code of its own would be faster.
    """

    variant: Variant
    table: tuple[int, ...]
    ends: list[int]
    lent: bool


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Family:
    """A product without its sizes.

    Args:
        op: the product for some sizes.
        elements: of its operands.
        target: the processor.
        threads: that it may use.
        axes: for every mode of the product, the number of its axis in the program.
        still: for every mode, whether each operand stands still along it.
        variants: the code that is known, by `axes_of` and `tile_of`.
        cuts: how the product was cut for which code was made, with the same.
        lenders: of those cuts the ones with the same axes that may lend their code.
        near: the same by a tile, those with tiles most like it first.
        kernels: the last kernel that was compiled.
        widths: bytes of an element of every tensor.
    """

    op: MergedOp
    elements: tuple[Element, ...]
    target: Target
    threads: int
    axes: tuple[int, ...]
    still: list[list[bool]]
    variants: dict[tuple[Hashable, Hashable], list[weakref.ref[Variant]]]
    cuts: weakref.WeakKeyDictionary[Variant, tuple[ProductBlocking, tuple[Hashable, Hashable]]]
    lenders: dict[Hashable, list[Lender]]
    near: dict[Hashable, list[Lender]]
    kernels: list[weakref.ref[Any]]
    widths: list[int]

    @property
    def in_order(self) -> bool:
        """Whether the operands are the program's tensors, in its order."""
        return self.op.operands == (0, 1, 2, 3)[: len(self.op.operands)]

    def kernel(self) -> Any:
        """A kernel of the family, where one lives."""
        return self.kernels[0]() if self.kernels else None

    def add(self, op: MergedOp, variant: Variant, kernel: Any) -> None:
        """Code and the kernel for which it was made."""
        self.kernels[:] = [weakref.ref(kernel)]
        c = self.blocked(op)
        which = axes_of(c)[0], tile_of(c)[0]
        kept = [one for one in self.variants.get(which, ()) if one() not in (None, variant)]
        self.variants[which] = [weakref.ref(variant), *kept]
        self.cuts[variant] = c, which
        self.lenders.clear()
        self.near.clear()

    def blocked(self, op: MergedOp) -> ProductBlocking:
        """How the product is blocked for its sizes."""
        return block_product(without_start(op), self.elements[:3], self.target, self.threads)

    def find(self, sizes: Sequence[Size], *, lent: bool = False) -> FoundCode | None:
        """Code for other sizes; None where none is known.

        Args:
            sizes: of every axis of the program. All extents are 2 or more, all strides positive, or zero where the
                family's are.
            lent: whether code may serve that was made for another tile, and is slower by more than a little.
        """
        order = self.op.operands
        ends = ends_of(sizes, self.widths)
        if ends is None:
            return None
        old = self.op
        if self.in_order:
            modes = tuple([Mode(*sizes[k]) for k in self.axes])
        else:
            modes = tuple([Mode(sizes[k][0], tuple([sizes[k][1][j] for j in order])) for k in self.axes])
        if [[not stride for stride in mode.strides] for mode in modes] != self.still:
            return None
        starts = len(order) > 3
        if starts:
            op = MergedOp(old.kind, order, modes, old.offsets, old.width_bytes, init=old.init, relu=old.relu)
            c = self.blocked(op)
            if not starts_in(op, c):
                return None
        else:
            c = cut_product(modes, old.offsets, old.init == (), self.elements, self.target, self.threads)
        (axes, numbers), (tile, blocks) = axes_of(c), tile_of(c)
        known = self.variants.get((axes, tile))
        bounds = [number for end in ends for number in (0, end)]
        tiny = are_tiny(modes)
        if known is not None and not tiny:
            for one in known:
                found = _served(one(), (*numbers, *blocks, *bounds), ends)
                if found is not None:
                    return found
        if not may_lend(c, starts=starts) or c.columns.pack_panels > 1:
            return None
        ratio, slower = longer_in(c), list[Lender]()
        for other in self._like(axes, tile, c):
            if tiny or ratio(other[1]) > NEAR:
                slower.append(other)
                continue
            found = _lent(c, other, numbers, bounds, ends)
            if found is not None:
                return found
        for other in slower if lent and not starts else ():
            found = _lent(c, other, numbers, bounds, ends, slower=True)
            if found is not None:
                return found
        return None

    def _like(self, axes: Hashable, tile: Hashable, c: ProductBlocking) -> list[Lender]:
        """Code for products of some axes that may lend it, with the tiles most like a product's own first."""
        found = self.near.get((axes, tile))
        if found is None:
            cuts = self.lenders.get(axes)
            if cuts is None:
                alive = [(one, made) for one in self.cuts.keyrefs() if (made := one()) is not None]  # others may add
                known = [(one, self.cuts.get(variant)) for one, variant in alive]
                of_axes = [(one, about[0]) for one, about in known if about is not None and about[1][0] == axes]
                cuts = self.lenders[axes] = [(one, cut) for one, cut in of_axes if may_lend(cut)]
            found = self.near[axes, tile] = sorted(cuts, key=lambda one: _unlike(c, one[1]))
        return found


def _served(
    variant: Variant | None, numbers: tuple[int, ...], ends: list[int], *, lent: bool = False
) -> FoundCode | None:
    """Some code with the table of a product, where it serves its sizes."""
    if variant is None or variant.table is None:
        return None
    table = variant.table.of(numbers)
    return None if table is None else FoundCode(variant, table, ends, lent)


def _lent(
    c: ProductBlocking,
    by: Lender,
    sizes: Sequence[int],
    bounds: Sequence[int],
    ends: list[int],
    *,
    slower: bool = False,
) -> FoundCode | None:
    """The code of another product for one that is cut like it, where it serves its sizes."""
    cut = cut_like(c, by[1])
    return None if cut is None else _served(by[0](), (*sizes, *cut, *bounds), ends, lent=slower)


def _unlike(c: ProductBlocking, other: ProductBlocking) -> int:
    """How far the tile of another product is from a product's own, in elements; best first."""
    far = 0 if c.a is other.a and c.b is other.b and c.keep_a is other.keep_a else 1 << 10
    return far + 4 * abs(c.columns.width - other.columns.width) + abs(c.rows.width - other.rows.width)


def ends_of(sizes: Sequence[Size], widths: Sequence[int]) -> list[int] | None:
    """The bytes of every tensor; None where two indices may meet in a byte."""
    ends = []
    for j, width in enumerate(widths):
        end = width
        for stride, extent in sorted([(strides[j], extent) for extent, strides in sizes]):
            if stride:
                if stride < end or extent < 2:
                    return None
                end += stride * (extent - 1)
        ends.append(end)
    return ends


_FAMILIES: weakref.WeakValueDictionary[Hashable, Family] = weakref.WeakValueDictionary()


def family_of(form: Merged, target: Target, threads: int, settings: Settings) -> Family | None:
    """The family of a program that is one product; None where its sizes decide more than its blocks."""
    program = form.program
    count = len(program.tensors)
    if settings != DEFAULT or len(form.body) != 1 or count not in (3, 4) or match(form, target) is not None:
        return None
    op = form.body[0]
    if (
        not isinstance(op, MergedOp)
        or op.kind != "Contraction"  # an outer comparison walks its operands as an outer product does
        or op.operands[2:] != (2, 3)[: count - 2]
        or any(op.offsets)
        or op.guard
        or op.relu
        or op.init not in ((), None)
        or any(spec.role == "scratch" for spec in program.tensors)
    ):
        return None
    sizes: list[Size] = [(axis.extent, axis.strides) for axis in program.axes]
    modes: list[Size] = [(m.extent, tuple(m.strides[op.operands.index(j)] for j in range(count))) for m in op.modes]
    if sorted(modes) != sorted(sizes) or len(set(sizes)) < len(sizes) or any(any(a.offsets) for a in program.axes):
        return None
    sides = [[bool(s) for s in strides] for _, strides in sizes]
    elements = tuple(element(program.tensors[j].dtype) for j in op.operands)
    widths = [element(spec.dtype).width_bytes for spec in program.tensors]
    # with rows and columns, and operands whose elements are apart, it is a product for any sizes, never a convolution
    apart = [side[:3] for side in sides]
    if ends_of(sizes, widths) is None or not all([k == 0, k == 1, True] in apart for k in (0, 1)):
        return None
    if count > 3 and not may_start(op, elements, target, threads, settings):
        return None
    axes = tuple(sizes.index(mode) for mode in modes)
    specs = tuple((spec.name, spec.dtype, spec.role) for spec in program.tensors)
    key = (replace(op, modes=(), offsets=()), specs, target, threads, axes, tuple(map(tuple, sides)))
    still = [[not stride for stride in mode.strides] for mode in op.modes]
    found = _FAMILIES.get(key)
    if found is None:
        found = _FAMILIES[key] = Family(
            op, elements, target, threads, axes, still, {}, weakref.WeakKeyDictionary(), {}, {}, [], widths
        )
    return found
