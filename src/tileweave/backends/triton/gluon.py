"""Kernels as Gluon: Triton's text, and with it who holds what, as dispatch decided it.

Every value has the layout that is its holding's map, every conversion is written out, and shared memory has the layout
that puts each element where ours does. What has no such text is declined with the statement and the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tileweave.backends.triton.gluon_layouts import Map, bases_of, candidates, fragments, once, rounded, shared_text
from tileweave.backends.triton.printer import _TYPES, Printer, _name, known
from tileweave.errors import BackendError, LayoutError
from tileweave.kernel.dispatch import products
from tileweave.kernel.dispatch.layouts.assign import Accumulator, along_memory, assign
from tileweave.kernel.dispatch.layouts.registers import Holding, holding
from tileweave.kernel.ir import Alloc, Kernel, KernelTensor, On, Op, Region, Statement, Sync, walk
from tileweave.layout import Layout, normalize

_LETTERS = {"f16": 2, "bf16": 2, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4}
"""Element types that mma v2 multiplies here -> how many fill a register."""


def text(kernel: Kernel, arch: str = "") -> str:
    """The Gluon module of a kernel.

    Args:
        kernel: a kernel, every extent known.
        arch: any that is known; layouts are those that dispatch chooses where products are mma.sync's.

    Raises:
        BackendError: a statement or a layout that Gluon cannot say; names it, the reason and the user's line. An
            unknown architecture.
    """
    known("text(kernel, arch)", arch)
    return GluonPrinter(kernel).module()


class GluonPrinter(Printer):
    """A kernel on its way to Gluon: every value has a layout, and conversions are written out."""

    language = "Gluon"
    owner = "roles, rings and barriers have no text here"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.warps = kernel.threads // 32
        self.layouts: dict[str, tuple[str, Map]] = {}  # text -> its name and its map
        self.notes: list[str] = []
        self.at: dict[str, str] = {}  # value -> the name of its layout
        self.within = ""  # the layout that the current value is computed in
        if self.warps & (self.warps - 1) or kernel.threads % 32:
            raise self.declined(f"a block of {kernel.threads} threads", "it takes a power of two of warps")
        for one in walk(kernel.body):
            if isinstance(one, On) and (one.scope.kind != "cta" or one.each is not None):
                self.line = one.line
                raise self.declined(f"a scope of {one.scope.kind}s", "all of a block works together")
            if isinstance(one, Op) and one.name == "gemm" and (problem := self.product_problem(one)):
                self.line = one.line
                raise self.declined("a product", problem)
        allocated = [s for s in walk(kernel.body) if isinstance(s, Alloc) and s.tensor.space == "register"]
        lines = {s.tensor.name: s.line for s in allocated}
        try:
            self.holdings = held = assign(kernel.body, self.warps, self.accumulator())
        except (BackendError, LayoutError) as error:
            raise self.declined("the register layouts", error.problem) from None
        tensors = {s.tensor.name: s.tensor for s in allocated if s.tensor.dtype in _TYPES and s.tensor.name in held}
        for name in sorted(tensors, key=lambda n: -prod(held[n].shape)):
            self.line = lines[name]
            self.at[name] = self.named(held[name], tensors[name].shape)
        self.line = kernel.line

    def accumulator(self) -> Accumulator:
        """How results of products lie: as dispatch has the fragments of mma.sync, the warps taking turns."""
        gemms = tuple(s for s in walk(self.kernel.body) if isinstance(s, Op) and s.name == "gemm")
        choose = products.accumulator("sm_80", gemms)

        def fitted(op: Op, warps: int) -> tuple[Layout, tuple[int, ...]] | None:
            found = choose(op, warps)
            if found is None or op.name != "gemm" or self.product_problem(op):
                return found
            grid = [1, 1]
            for digit in holding(*found, warps).digits:
                if digit.axis == "warp" and digit.dim >= 0:
                    grid[digit.dim] *= digit.extent
            shape = tuple(rounded(n) for n in op.outs[0].shape)
            return fragments((grid[0], grid[1]), shape), shape

        return fitted

    # -- layouts --------------------------------------------------------------------------------------------

    def named(self, held: Holding, shape: Sequence[int]) -> str:
        """The name of the layout that is this holding, printed at the head once."""
        bases = bases_of(held)
        if isinstance(bases, str):
            raise self.declined(f"the layout {held.layout}", bases)
        whole = tuple(rounded(n) for n in held.shape)
        if whole != tuple(rounded(n) for n in shape):
            raise self.declined(f"the layout {held.layout}", f"it covers {whole}, more than the value {tuple(shape)}")
        found = next((name for name, map in self.layouts.values() if once(map(whole)) == bases), "")
        if not found:
            made, map = next(candidates(bases, whole))
            found = self.constant(made, str(normalize(held.layout)), map)
        return found

    def constant(self, made: str, note: str, map: Map) -> str:
        """The name of a layout, printed at the head once."""
        if made not in self.layouts:
            name = f"L{len(self.layouts)}"
            while name in self.taken:
                name += "_"
            self.layouts[made] = name, map
            self.notes.append(f"    {name}: gl.constexpr = {made}  # {note}")
        return self.layouts[made][0]

    def near(self, region: Region) -> str:
        """The layout for a value that is copied from or to memory."""
        return self.named(along_memory(region.shape, [region], self.warps), region.shape)

    def home(self, *regions: object) -> str:
        """The layout that an operator computes in: that of its first whole value, else one along memory."""
        shown = [r for r in regions if isinstance(r, Region)]
        for region in shown:
            if region.tensor.name in self.at and list(region.dims) == list(range(region.tensor.rank)):
                return self.at[region.tensor.name]
        return self.near(next((r for r in shown if r.tensor.space == "global"), shown[0]))

    def converted(self, value: str, layout: str) -> str:
        """A value in another layout."""
        return value if layout == self.within else f"gl.convert_layout({value}, {self.within})"

    def held_in(self) -> str:
        """The layout that is being computed in."""
        return f", {self.within}"

    def range_key(self, position: int, rank: int, extent: int) -> str:
        """A range of each layout is its own."""
        return f"{super().range_key(position, rank, extent)}_{self.within}"

    def range_in(self, key: str) -> str:
        """The slice of the layout that a range has."""
        _, position, rank, _ = self.ranges[key]
        found = key.split("_", 3)[3]
        for dim in reversed([d for d in range(rank) if d != position]):
            found = f"gl.SliceLayout({dim}, {found})"
        return f", layout={found}"

    # -- the frame ------------------------------------------------------------------------------------------

    def framed(self, lines: Sequence[str]) -> str:
        """The body behind its layouts."""
        found = re.sub(r"\btl\.(?!PropagateNan)", "gl.", super().framed([*self.notes, *lines]))
        return found.replace("@triton.jit", "@gluon.jit")

    def imports(self, helpers: str) -> list[str]:
        """The first lines of code, and how many warps a launch needs."""
        where = "from triton.experimental import gluon", "from triton.experimental.gluon import language as gl"
        body = "\n".join([helpers, *self.lines])
        more = ["import triton.language as tl"] if "tl.PropagateNan" in body else []
        if "mma_v2(" in body:
            more.append("from triton.experimental.gluon.language.nvidia.ampere import mma_v2")
        return [f"# num_warps={self.warps}", *more, *where]

    @staticmethod
    def trips(bounds: str, stages: int) -> str:
        """A loop does not prefetch by itself."""
        return f"range({bounds})"

    def sync(self, statement: Sync) -> None:
        """All threads meet."""
        if statement.barrier is not None:
            raise self.declined("a barrier of some warps", self.owner)
        self.emit("gl.barrier()")

    def allocate(self, tensor: KernelTensor, later: Sequence[Statement]) -> None:
        """A value, or shared memory."""
        if tensor.space == "shared" and tensor.dtype in _TYPES:
            layout = shared_text(tensor)
            if not layout:
                raise self.declined(str(tensor), "no shared layout of Gluon puts its elements there")
            made = f"gl.allocate_shared_memory(gl.{_TYPES[tensor.dtype]}, {[*tensor.shape]}, {layout})"
            self.emit(f"{_name(tensor.name)} = {made}  # {tensor.layout} {tensor.swizzle or ''}".rstrip())
            return
        self.within = self.at.get(tensor.name, "")
        super().allocate(tensor, later)

    # -- values ---------------------------------------------------------------------------------------------

    def shown(self, region: Region) -> str:
        """A whole value in the layout that is being computed in."""
        name, plain = _name(region.tensor.name), list(region.dims) == list(range(region.tensor.rank))
        if region.tensor.space != "shared":
            found = super().shown(region).replace("tl.trans(", "tl.permute(").replace(f"({name})", f"({name}, (1, 0))")
            return self.converted(found, self.at[region.tensor.name] if plain else "")
        self.whole(region)
        if len(region.dims) < region.tensor.rank:
            raise self.declined(str(region), "shared memory is loaded whole")
        return f"{name}{'' if plain else f'.permute({[*region.dims]})'}.load({self.within})"

    def write(self, target: Region, value: str, dtype: str) -> None:
        """Assigns, converts or stores."""
        tensor = target.tensor
        if tensor.space == "global":
            super().write(target, value, dtype)
        elif tensor.space == "shared":
            self.whole(target)
            if len(target.dims) < tensor.rank:
                raise self.declined(str(target), "shared memory is stored whole")
            view = "" if list(target.dims) == sorted(target.dims) else f".permute({[*target.dims]})"
            if dtype != tensor.dtype:
                value = f"({value}).to(gl.{_TYPES[tensor.dtype]})"
            self.emit(f"{_name(tensor.name)}{view}.store({value})")
        elif list(target.dims) != list(range(tensor.rank)):
            raise self.declined(str(target), "a value is written in the order of its dimensions")
        else:
            before, self.within = self.within, self.at[tensor.name]
            super().write(target, self.converted(value, before), dtype)

    def broadcast(self, value: str, extents: Sequence[int], dtype: str) -> str:
        """A value with the extents of a larger one."""
        zero = self.full(extents, "0", dtype)
        return f"gl.where({zero} == 0, {value}, {zero})"

    def operator(self, op: Op) -> None:
        """One operator, in the layout of its result (of its source: a reduction)."""
        first = op.ins[:1] if op.name == "reduce" else op.outs
        self.within = self.home(*first, *op.ins, *op.outs)
        super().operator(op)

    def element(self, region: Region) -> str:
        """The one element of a region, as a number."""
        if region.tensor.space != "global":
            self.within = self.home(region)
            if region.tensor.rank != 1:
                raise self.declined(str(region), "a number is read from a value of one dimension")
            return f"gl.max({self.read(region)}, 0)"
        return super().element(region)

    def reduce(self, op: Op) -> None:
        """A reduction; what remains lies in the same layout."""
        source = op.ins[0]
        self.rank = len(source.shape) if isinstance(source, Region) else 0
        super().reduce(op)

    def reduced(self, value: str, axis: int, function: str, dtype: str, keep: str) -> str:
        """One dimension; nothing is left of a vector but a number, which all threads then hold."""
        if self.rank > 1:
            return super().reduced(value, axis, function, dtype, keep)
        return self.full((1,), super().reduced(value, axis, function, dtype, ""), dtype)

    def product_problem(self, op: Op) -> str:
        """Why mma v2 does not take a product; empty where it does."""
        out, (a, b) = op.outs[0], op.ins[:2]
        if len(op.ins) != 3:
            return "mma v2 has no scales"
        if not (isinstance(a, Region) and isinstance(b, Region)) or a.tensor.dtype != b.tensor.dtype:
            return "its factors are not of one type"
        kind, wanted = a.tensor.dtype, "f32" if a.tensor.element.kind == "float" else "s32"
        if kind not in _LETTERS or out.tensor.dtype != wanted:
            return f"mma v2 has no {kind} summed in {out.tensor.dtype} here"
        m, n, k = (rounded(e) for e in (*out.shape, a.shape[1]))
        least = 8 * _LETTERS[kind]
        if m < 16 or n < 8 or k < least:
            return f"mma v2 takes tiles from 16 x 8 x {least}, not {m} x {n} x {k}"
        return ""

    def gemm(self, op: Op) -> None:
        """A product of fragments by mma v2."""
        (out,), (a, b, c) = op.outs, op.ins
        problem = self.product_problem(op)
        if problem or not (isinstance(a, Region) and isinstance(b, Region)):
            raise self.declined("a product", problem)
        held = self.home(out)
        if "NVMMA" not in next(made for made, (name, _) in self.layouts.items() if name == held):
            raise self.declined(f"a product into {out}", "its layout is not that of mma v2")
        width, factors = _LETTERS[a.tensor.dtype], []
        for place, factor in enumerate((a, b)):
            made = f"gl.DotOperandLayout({place}, {held}, {width})"
            role = self.constant(made, f"fragments of operand {'ab'[place]}", lambda shape: {})
            if factor.tensor.space == "shared":
                self.within = role
                value = self.read(factor if place == 0 else replace(factor, dims=factor.dims[::-1]))
            else:
                self.within = self.home(factor)
                value = self.read(factor, fill="0.0" if factor.tensor.element.kind == "float" else "0")
                value = f"gl.convert_layout({value if place == 0 else f'gl.permute({value}, (1, 0))'}, {role})"
            factors.append(f"{_name(out.tensor.name)}_{'ab'[place]}")
            while factors[-1] in self.taken:
                factors[-1] += "_"
            self.emit(f"{factors[-1]} = {value}")
        self.within = held
        added = self.read(c) if isinstance(c, Region) else self.full(out.shape, "0", out.tensor.dtype)
        self.write(out, f"mma_v2({factors[0]}, {factors[1]}, {added})", out.tensor.dtype)
