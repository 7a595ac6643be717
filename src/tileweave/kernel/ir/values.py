"""Tensors, regions of them, scopes of threads: the values that statements speak of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

from tileweave.errors import LayoutError, VerifyError
from tileweave.index import Expr, as_expr, constant_of, maximum, minimum, simplify
from tileweave.kernel.ir.dtypes import Dtype, dtype_of
from tileweave.layout import Coord, Iter, Layout
from tileweave.layout.f2.swizzle import Swizzle

Number = int | Expr
"""An integer, or an index expression whose value a run knows."""

Space = Literal["global", "shared", "register", "tensor", "symmetric", "sbuf", "psum"]
SPACES: tuple[str, ...] = get_args(Space)
ScopeKind = Literal["kernel", "cluster", "cta", "warpgroup", "warp", "thread"]

AGENT_AXES = ("gpu", "cta", "warp", "lane")
"""Axes that say who: device of the mesh, block of the cluster, warp of the block, lane of the warp.

A warpgroup is four neighbouring warps, so it needs no axis of its own: warpgroup g is ``(4:1@warp) + 4g@warp``.
"""
WARP_LANES = 32
WARPGROUP_WARPS = 4


RESERVED = frozenset((
    "abs", "alignas", "alignof", "and", "and_eq", "asm", "assert", "auto", "bitand", "bitor", "blockDim",
    "blockIdx", "bool", "break", "case", "catch", "ceil", "char", "char16_t", "char32_t", "class", "compl", "const",
    "const_cast", "constexpr", "continue", "cos", "decltype", "default", "delete", "dim3", "do", "double",
    "dynamic_cast", "else", "enum", "EOF", "erf", "exp", "exp2", "explicit", "export", "extern", "false", "float",
    "floor", "fma", "for", "friend", "goto", "gridDim", "half", "half2", "if", "INFINITY", "inline", "int", "lane",
    "linux", "log", "log2", "long", "main", "max", "min", "mutable", "namespace", "NAN", "new", "noexcept", "not",
    "not_eq", "NULL", "nullptr", "operator", "or", "or_eq", "pow", "printf", "private", "protected", "public",
    "register", "reinterpret_cast", "return", "round", "rsqrt", "short", "signed", "sin", "sizeof", "sqrt",
    "static", "static_assert", "static_cast", "struct", "switch", "tan", "tanh", "template", "this", "thread_local",
    "threadIdx", "throw", "true", "try", "typedef", "typeid", "typename", "uint2", "uint4", "union", "unix",
    "unsigned", "using", "virtual", "void", "volatile", "warp", "warpSize", "wchar_t", "while", "xor", "xor_eq",
))  # fmt: skip
"""Names that printed text gives a meaning of its own: no tensor or symbol of the builder's is called so."""


@dataclass(frozen=True, slots=True)
class Line:
    """A place in the user's source."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


NOWHERE = Line("", 0)


def _plain(value: Number) -> Number:
    if isinstance(value, Expr):
        found = constant_of(value)
        return value if found is None else found
    return int(as_expr(value).args[0])


@dataclass(frozen=True, slots=True)
class KernelTensor:
    """Named storage: what it holds, where it is, and where in it each element lies.

    Args:
        name: unique in its kernel.
        shape: logical extents; empty for one element.
        dtype: the element type, by its PTX name.
        space: the memory.
        layout: the place of the row-major logical index. On ``m`` in elements for memory (``gpu`` as well for tensors
            over a mesh); on ``warp``, ``lane`` and ``reg`` for registers, whose R says which threads hold copies; on
            ``TLane`` and ``TCol`` for tensor memory. None where dispatch chooses: the value is then held by its scope.
        swizzle: a permutation of the places on ``m``, in elements, after the layout.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: Space
    layout: Layout | None = None
    swizzle: Swizzle | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of logical elements."""
        return prod(self.shape)

    @property
    def element(self) -> Dtype:
        """The element type."""
        return dtype_of(self.dtype)

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        layout = "?" if self.layout is None else str(self.layout)
        swizzle = "" if self.swizzle is None else f" {self.swizzle}"
        return f"{self.name}: {self.dtype}[{shape}] {self.space} {layout}{swizzle}"


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a tensor, the part of it that is there, and the order in which its dimensions are seen.

    Elements of the box from `mask` on do not exist: reading gives zero, writing does nothing, reductions skip them.

    Args:
        tensor: the tensor.
        begin: per dimension of the tensor, the first coordinate.
        extent: per dimension of the tensor, how many coordinates: known integers.
        mask: per dimension of the tensor, how many of them exist, counted from `begin`; `extent` where all do.
        dims: the dimensions of the tensor that the region shows, in its own order; the others have extent 1.
        skip: per dimension of the tensor, how many of the first coordinates do not exist; empty where all do.
    """

    tensor: KernelTensor
    begin: tuple[Number, ...]
    extent: tuple[int, ...]
    mask: tuple[Number, ...]
    dims: tuple[int, ...]
    skip: tuple[Number, ...] = ()

    def __post_init__(self) -> None:
        rank = self.tensor.rank
        lengths = {len(self.begin), len(self.extent), len(self.mask), len(self.skip) or rank}
        if lengths != {rank} or len(set(self.dims)) != len(self.dims) or not set(self.dims) <= set(range(rank)):
            raise VerifyError(
                "Region(tensor, begin, extent, mask, dims)",
                f"begin {self.begin}, extent {self.extent}, mask {self.mask}, dims {self.dims} do not fit rank {rank}",
                legal="one entry per dimension of the tensor; dims some of them, each once",
                facts={"rule": "box", "path": ""},
            )
        object.__setattr__(self, "begin", tuple(map(_plain, self.begin)))
        object.__setattr__(self, "mask", tuple(map(_plain, self.mask)))
        skip = tuple(map(_plain, self.skip))
        object.__setattr__(self, "skip", skip if any(not isinstance(n, int) or n for n in skip) else ())

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the dimensions that it shows."""
        return tuple(self.extent[d] for d in self.dims)

    @property
    def valid(self) -> tuple[Number, ...]:
        """How many coordinates exist, per dimension that it shows."""
        return tuple(self.mask[d] for d in self.dims)

    @property
    def masked(self) -> bool:
        """Whether some element may not exist."""
        return bool(self.skip) or any(m is not e and m != e for m, e in zip(self.mask, self.extent, strict=True))

    @property
    def transposed(self) -> Region:
        """The same box with its dimensions in the opposite order."""
        return replace(self, dims=self.dims[::-1])

    @property
    def size(self) -> int:
        """The number of elements of the box."""
        return prod(self.extent)

    def __str__(self) -> str:
        parts = []
        for d in range(self.tensor.rank):
            begin, extent, mask = self.begin[d], self.extent[d], self.mask[d]
            if d not in self.dims:
                parts.append(str(begin) if mask == extent else f"{begin} valid {mask}")
            elif begin == 0 and extent == self.tensor.shape[d] and mask == extent:
                parts.append(":")
            else:
                box = f":{extent}" if begin == 0 else f"{begin} +: {extent}"
                skip = self.skip[d] if self.skip else 0
                box += "" if isinstance(skip, int) and not skip else f" from {skip}"
                parts.append(box if mask == extent else f"{box} valid {mask}")
        inside = f"[{', '.join(parts)}]" if parts else "[]"
        order = "" if list(self.dims) == sorted(self.dims) else f".order{self.dims}"
        return f"{self.tensor.name}{inside}{order}"


def whole(tensor: KernelTensor) -> Region:
    """The region of all elements of a tensor."""
    zeros = (0,) * tensor.rank
    return Region(tensor, zeros, tensor.shape, tensor.shape, tuple(range(tensor.rank)))


def before(begin: Number, already: Number = 0) -> Number:
    """How many of the coordinates from `begin` on lie below `already`, simplified."""
    if isinstance(begin, int) and isinstance(already, int):
        return max(0, already - begin)
    return _plain(simplify(maximum(0, already - begin)))


def clipped(begin: Number, extent: int, size: Number) -> Number:
    """How many of `extent` coordinates from `begin` lie below `size`, simplified."""
    if isinstance(begin, int) and isinstance(size, int):
        return max(0, min(extent, size - begin))
    return _plain(simplify(minimum(extent, size - begin)))


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number among the inputs of an operator: a constant, or an index expression."""

    value: float | int | bool | Expr
    dtype: str

    def __str__(self) -> str:
        return f"{self.value}:{self.dtype}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Threads that execute a statement together: a slice of the block's threads is a layout over (warp, lane).

    Args:
        kind: what one entity of the scope is.
        layout: all its threads, row-major: entities slowest, lanes fastest.

    Example:
        >>> print(cta_scope(384).part("warpgroup", 1, 3))
        warpgroup (2:4@warp, 4:1@warp, 32:1@lane) + 4@warp
    """

    kind: ScopeKind
    layout: Layout

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.layout.size

    @property
    def entities(self) -> int:
        """The number of entities of its kind; 1 for a block or more."""
        return self.threads // _THREADS[self.kind] if self.kind in _THREADS else 1

    def part(self, kind: ScopeKind, start: int, stop: int) -> Scope:
        """Entities ``start .. stop - 1`` of a kind, counted within this scope.

        Raises:
            VerifyError: the scope has no such entities.
        """
        size = _THREADS.get(kind, self.threads)
        there = self.threads // size
        if self.threads % size or not 0 <= start < stop <= there:
            raise VerifyError(
                f"scope.{kind}[{start}:{stop}]",
                f"the scope {self} has {there} of these",
                legal=f"0 <= start < stop <= {there}; a {kind} is {size} threads",
                facts={"rule": "scope", "path": ""},
            )
        first = self.layout(start * size)
        inner = _inner(self.layout, size)
        if stop - start == 1:
            return Scope(kind, Layout(inner, (), first))
        step = self.layout((start + 1) * size) - first
        for k in range(start, stop):
            if self.layout(k * size) - first != (k - start) * step:
                raise LayoutError(f"scope.{kind}[{start}:{stop}]", "the entities have no common stride")
        return Scope(kind, Layout((Iter(stop - start, step), *inner), (), first))

    def members(self) -> frozenset[int]:
        """The threads of the block, as 32 * warp + lane; the offset must be a number."""
        found = self.layout.table()
        if not isinstance(found, dict):
            found = {self.layout.axes[0]: found}
        total: Any = 0
        for axis, scale in (("warp", WARP_LANES), ("lane", 1)):
            if axis in found:
                total = total + scale * found[axis]
        return frozenset([0]) if isinstance(total, int) else frozenset(total.tolist())

    def __str__(self) -> str:
        return f"{self.kind} {self.layout}"


_THREADS = {"thread": 1, "warp": WARP_LANES, "warpgroup": WARP_LANES * WARPGROUP_WARPS}


def _inner(layout: Layout, size: int) -> tuple[Iter, ...]:
    """The fastest iters that make up `size` points."""
    taken: list[Iter] = []
    for it in reversed(layout.shard):
        if size == 1:
            break
        step = min(it.extent, size)
        if it.extent % step or size % step:
            raise LayoutError("scope", f"{size} threads end inside the iter {it}", inputs={"layout": layout})
        taken.insert(0, Iter(step, it.stride))
        size //= step
    return tuple(taken)


def cta_scope(threads: int) -> Scope:
    """All threads of a block.

    Raises:
        VerifyError: not a multiple of 32, or more than 1024.
    """
    if type(threads) is not int or not 0 < threads <= 1024 or threads % WARP_LANES:
        raise VerifyError(
            "k.cta(threads)", f"a block of {threads!r} threads", legal="a multiple of 32 up to 1024",
            facts={"rule": "scope", "path": ""},
        )  # fmt: skip
    warps, lanes = Iter(threads // WARP_LANES, Coord.of({"warp": 1})), Iter(WARP_LANES, Coord.of({"lane": 1}))
    return Scope("cta", Layout((warps, lanes)))
