"""What makes a kernel well formed: one function per rule, each with an id; `verify` names the first broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from tileweave.errors import VerifyError
from tileweave.index import Expr, bounds, symbols_of
from tileweave.kernel.ir.dtypes import DTYPES
from tileweave.kernel.ir.operators import ELEMENTWISE, MONOIDS, OPERATORS
from tileweave.kernel.ir.statements import (
    Alloc,
    Arrive,
    Await,
    Break,
    Commit,
    Continue,
    For,
    Init,
    Kernel,
    Let,
    On,
    Op,
    Signal,
    Statement,
    Sync,
    Wait,
    When,
    While,
    walk,
)
from tileweave.kernel.ir.text import head
from tileweave.kernel.ir.values import SPACES, KernelTensor, Line, Region, Scalar, Scope, cta_scope
from tileweave.layout import Coord, Iter, Layout

SHARED_BYTES = 232_448
"""Shared memory that a block may have, at most (sm_90, sm_100); dispatch knows the target's own limit."""
VALUE_ELEMENTS = 1 << 28  # of one value: a row that long is still worked through in parts
TENSOR_LANES, TENSOR_COLUMNS = (64, 128), 512
TENSOR_TYPES = ("f32", "s32", "f16", "bf16")
"""Tensor memory of a block (sm_100a): lanes, and columns of 32 bits."""
CLUSTER_BLOCKS = 8
"""Blocks of the largest cluster that every device with clusters runs."""
REGISTERS = 65_536
"""Registers of a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Visited:
    """A statement and what is around it: tensors and symbols in reach, scopes from outside in, whether in a loop."""

    statement: Statement
    path: str
    tensors: dict[str, tuple[KernelTensor, int]]
    symbols: frozenset[Expr]
    scopes: tuple[On, ...]
    in_loop: bool

    @property
    def scope(self) -> Scope | None:
        """The threads that execute the statement."""
        return self.scopes[-1].scope if self.scopes else None


Rule = Callable[[Visited], Iterator[str]]
RULES: dict[str, Rule] = {}
"""Rule id -> the function that yields what is wrong at one node."""


def _rule(function: Rule) -> Rule:
    RULES[function.__name__.strip("_").replace("_", "-")] = function
    return function


def verify(kernel: Kernel) -> None:
    """Nothing, if the kernel is well formed.

    Raises:
        VerifyError: the first broken rule, with the statement and the user's line. ``facts['rule']`` is its id.
    """
    for path, problem in _params(kernel):
        raise _error("params", problem, path, kernel.line)
    for statement, problem in _resources(kernel):
        raise _error("resources", problem, "body", statement.line)
    for line, problem in _clusters(kernel):
        raise _error("cluster", problem, "body", line)
    for node in _nodes(kernel):
        for name, rule in RULES.items():
            for problem in rule(node):
                raise _error(name, f"{head(node.statement)}: {problem}", node.path, node.statement.line)


def _error(rule: str, problem: str, path: str, line: Line) -> VerifyError:
    inputs = {"rule": rule, "line": str(line)} if line.number else {"rule": rule}
    return VerifyError("verify(kernel)", problem, inputs=inputs, facts={"rule": rule, "path": path, "line": line})


def _params(kernel: Kernel) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for one in kernel.params:
        if one.name in seen:
            yield f"params.{one.name}", f"two parameters are called {one.name!r}"
        seen.add(one.name)
        if one.space not in ("global", "symmetric"):
            yield f"params.{one.name}", f"{one} is a parameter in {one.space} memory, which no caller can give"
        for problem in _tensor(one):
            yield f"params.{one.name}", problem
    if any(extent < 1 for _, extent in kernel.mesh):
        yield "mesh", f"a mesh of {kernel.mesh}"


def _resources(kernel: Kernel) -> Iterator[tuple[Statement, str]]:
    """What a block asks for is what the largest block may have."""
    total, rows = 0, list[str]()
    for s in walk(kernel.body):
        if isinstance(s, Alloc) and s.tensor.space == "shared" and s.tensor.layout is not None:
            size = s.tensor.layout.span("m") * s.tensor.element.bytes
            total, rows = total + size, [*rows, f"{s.tensor.name} {size}"]
            if total > SHARED_BYTES:
                yield s, f"{total} bytes of shared memory ({', '.join(rows)}), a block has at most {SHARED_BYTES}"
        elif isinstance(s, On) and s.registers is not None:
            if s.scope.threads % 128 or s.scope.kind not in ("cta", "warpgroup"):
                yield s, f"{head(s)}: registers are set by whole warpgroups"
    scales = scales_of(kernel)
    columns = [
        (s, tensor_columns(s.tensor))
        for s in walk(kernel.body)
        if isinstance(s, Alloc) and (s.tensor.space == "tensor" or s.tensor in scales)
    ]
    if sum(n for _, n in columns) > TENSOR_COLUMNS:
        yield columns[-1][0], f"{sum(n for _, n in columns)} columns of tensor memory, a block has {TENSOR_COLUMNS}"
    asked = [s for s in walk(kernel.body) if isinstance(s, On) and s.registers is not None]
    registers = sum(s.scope.threads * (s.registers or 0) for s in asked)
    if registers > REGISTERS:
        yield asked[-1], f"{registers} registers of a block's {REGISTERS}"


def tensor_layout(rows: int, columns: int) -> Layout:
    """How a tile lies in tensor memory: a row in a lane; 64 rows in the first 16 lanes of each warp."""
    lanes = [(rows // 16, 32), (16, 1)] if rows == 64 else [(rows, 1)]
    iters = (*(Iter(n, Coord.of({"TLane": s})) for n, s in lanes), Iter(columns, Coord.of({"TCol": 1})))
    return Layout(iters)


def scale_layout(shape: tuple[int, ...]) -> Layout:
    """Scales as ``tcgen05.cp`` takes them: 512 bytes for 128 rows and 4 columns, blocks of rows fastest."""
    *outer, rows, columns = shape
    size, blocks = rows * columns, rows // 128
    strides = [(n, size * prod(outer[d + 1 :])) for d, n in enumerate(outer)]
    inner = [(blocks, 512), (4, 4), (32, 16), (columns // 4, blocks * 512), (4, 1)]
    return Layout(tuple(Iter(n, Coord.of(stride)) for n, stride in (*strides, *inner) if n > 1))


def scales_of(kernel: Kernel) -> tuple[KernelTensor, ...]:
    """The tensors in shared memory whose elements are scales of products into tensor memory, each once."""
    found = (s for s in walk(kernel.body) if isinstance(s, Op) and s.name == "gemm" and len(s.ins) == 5)
    used = (v.tensor for s in found if s.outs[0].tensor.space == "tensor" for v in s.ins[3:] if isinstance(v, Region))
    return tuple(dict.fromkeys(t for t in used if t.space == "shared"))


def tensor_columns(tensor: KernelTensor) -> int:
    """Columns that an allocation of tensor memory takes: a power of two, 32 at least."""
    cells = -(-tensor.shape[-1] * tensor.element.bits // 32)
    if tensor.space == "shared":  # scales: 512 bytes take four columns
        cells = -(-prod(tensor.shape) // 512) * 4
    return max(32, 1 << (cells - 1).bit_length())


def _clusters(kernel: Kernel) -> Iterator[tuple[Line, str]]:
    """The grid is made of whole clusters, and only their blocks reach each other's memory and barriers."""
    size, grid = kernel.grid.cluster, kernel.grid.size
    if type(size) is not int or not 1 <= size <= CLUSTER_BLOCKS or size & (size - 1):
        yield kernel.line, f"clusters of {size} blocks; a power of two up to {CLUSTER_BLOCKS} runs everywhere"
    elif isinstance(grid, int) and grid % size:
        yield kernel.line, f"{grid} blocks are no clusters of {size}"
    for s in walk(kernel.body):
        if isinstance(s, Alloc) and s.tensor.layout is not None and "cta" in s.tensor.layout.axes:
            low, high = s.tensor.layout.bounds("cta")
            if low != 0 or high != size - 1:
                yield s.line, f"{s.tensor} lies on blocks {low}..{high} of a cluster of {size}"
        elif isinstance(s, Arrive) and s.cta is not None:
            least, most = bounds(s.cta)
            if least is None or most is None or least < 0 or most >= size:
                yield s.line, f"{head(s)}: a cluster has the blocks 0..{size - 1}"
        elif isinstance(s, Op) and s.option("multicast") is not None:
            mask = s.option("multicast")
            if not isinstance(mask, int) or not 0 < mask < 1 << size:
                yield s.line, f"{head(s)}: the mask {mask} names blocks beyond a cluster of {size}, or none"
            elif s.barrier is None or s.outs[0].tensor.space != "shared" or "cta" in s.outs[0].tensor.layout.axes:  # type: ignore[union-attr]
                yield (
                    s.line,
                    f"{head(s)}: a multicast goes to each block's own shared memory and completes on an mbarrier",
                )
        elif isinstance(s, Op) and (s.option("pair") or s.option("leader")) and size != 2:
            yield s.line, f"{head(s)}: a product of two blocks in clusters of {size}"
        elif isinstance(s, Commit) and s.mask is not None and not 0 < s.mask < 1 << size:
            yield s.line, f"{head(s)}: a cluster has {size} blocks"
        elif isinstance(s, Sync) and s.cluster and size == 1:
            yield s.line, "a sync of the cluster, and the grid has none: k.grid(.., cluster=2)"


def _nodes(kernel: Kernel) -> Iterator[Visited]:
    tensors = {one.name: (one, 0) for one in kernel.params}
    bound = {kernel.grid.block, *(symbol for symbol, _ in kernel.grid.coords)}
    bound |= {s for s in _symbols_in(kernel.body) if str(s) in {axis for axis, _ in kernel.mesh}}
    yield from _walk(kernel.body, "body", tensors, frozenset(bound), (), False)


def _symbols_in(value: Any) -> set[Expr]:
    if isinstance(value, Expr):
        return set(symbols_of(value))
    if isinstance(value, tuple):
        return set().union(*map(_symbols_in, value))
    if isinstance(value, Region | Scalar | Scope) or hasattr(value, "line"):
        return set().union(*(_symbols_in(getattr(value, one.name)) for one in fields(value)))
    return set()


def _walk(
    body: tuple[Statement, ...],
    path: str,
    tensors: dict[str, tuple[KernelTensor, int]],
    symbols: frozenset[Expr],
    scopes: tuple[On, ...],
    in_loop: bool,
) -> Iterator[Visited]:
    tensors = dict(tensors)
    for number, s in enumerate(body):
        here = f"{path}[{number}]"
        yield Visited(s, here, tensors, symbols, scopes, in_loop)
        if isinstance(s, Alloc):
            tensors[s.tensor.name] = (s.tensor, len(scopes))
        elif isinstance(s, Let):
            symbols |= {s.symbol}
        elif isinstance(s, For):
            yield from _walk(s.body, f"{here}.body", tensors, symbols | {s.symbol}, scopes, True)
        elif isinstance(s, While):
            yield from _walk(s.body, f"{here}.body", tensors, symbols, scopes, True)
        elif isinstance(s, When):
            yield from _walk(s.body, f"{here}.body", tensors, symbols, scopes, in_loop)
            yield from _walk(s.otherwise, f"{here}.otherwise", tensors, symbols, scopes, in_loop)
        elif isinstance(s, On):
            inner = symbols if s.each is None else symbols | {s.each}
            yield from _walk(s.body, f"{here}.body", tensors, inner, (*scopes, s), in_loop)


def regions_of(s: Statement) -> tuple[Region, ...]:
    """The regions that a statement itself names."""
    if isinstance(s, Op):
        parts: tuple[Any, ...] = (*s.outs, *s.ins, s.barrier)
    elif isinstance(s, Let):
        parts = (s.value,)
    elif isinstance(s, Init | Arrive | Wait | Commit):
        parts = (s.barrier,)
    elif isinstance(s, Signal | Await):
        parts = (s.flag,)
    else:
        parts = ()
    return tuple(one for one in parts if isinstance(one, Region))


def _tensor(tensor: KernelTensor) -> Iterator[str]:
    if tensor.dtype not in DTYPES:
        yield f"{tensor.name} has elements of type {tensor.dtype!r}, which is none of {', '.join(DTYPES)}"
    if tensor.space not in SPACES:
        yield f"{tensor.name} is in {tensor.space!r}, which is none of {', '.join(SPACES)}"
    if any(type(e) is not int or e < 0 for e in tensor.shape):
        yield f"{tensor.name} has shape {tensor.shape}: extents are integers from 0"
    elif tensor.layout is None:
        if tensor.space not in ("register", "tensor"):
            yield f"{tensor.name} is in {tensor.space} memory and has no layout"
    elif tensor.size and tensor.layout.size != tensor.size:
        yield f"{tensor} has {tensor.size} elements, its layout {tensor.layout.size}"
    if tensor.layout is not None:
        known = _AXES[tensor.space]
        others = [axis for axis in tensor.layout.axes if axis not in known and tensor.layout.axes != ("m",)]
        if others:
            yield f"{tensor} lies on {', '.join(others)}; {tensor.space} has {', '.join(known)}"
    if tensor.space == "register" and tensor.size > VALUE_ELEMENTS:
        yield f"{tensor} has {tensor.size} elements, values have at most {VALUE_ELEMENTS}"
    if tensor.swizzle is not None and tensor.space != "shared":
        yield f"{tensor} is swizzled outside shared memory"


_AXES = {
    "global": ("m", "gpu"),
    "symmetric": ("m", "gpu"),
    "shared": ("m", "cta"),
    "register": ("warp", "lane", "reg"),
    "tensor": ("TLane", "TCol"),
    "sbuf": ("P", "F"),
    "psum": ("P", "F"),
}


@_rule
def tensor(node: Visited) -> Iterator[str]:
    """A declared tensor has a type, a space, and a layout of its size on the axes of that space."""
    if isinstance(node.statement, Alloc):
        yield from _tensor(node.statement.tensor)


@_rule
def one_name(node: Visited) -> Iterator[str]:
    """No name is declared twice where both could be meant."""
    if isinstance(node.statement, Alloc) and node.statement.tensor.name in node.tensors:
        yield f"{node.statement.tensor.name!r} is declared already"


@_rule
def declared(node: Visited) -> Iterator[str]:
    """A region is of a tensor that is declared around it, the same one."""
    for region in regions_of(node.statement):
        found = node.tensors.get(region.tensor.name)
        if found is None:
            yield f"{region.tensor.name!r} is not declared here"
        elif found[0] != region.tensor:
            yield f"{region.tensor} was declared as {found[0]}"


@_rule
def box(node: Visited) -> Iterator[str]:
    """A region's box has positive extents, and shows every dimension of more than one coordinate."""
    for region in regions_of(node.statement):
        if any(type(e) is not int or e < 1 for e in region.extent):
            yield f"{region} has the extents {region.extent}"
        elif any(extent != 1 for d, extent in enumerate(region.extent) if d not in region.dims):
            yield f"{region} hides a dimension of more than one coordinate"


@_rule
def inside(node: Visited) -> Iterator[str]:
    """No region certainly leaves its tensor; what stays open is checked at each access."""
    for region in regions_of(node.statement):
        skips = region.skip or (0,) * len(region.begin)
        for begin, mask, size, skip in zip(region.begin, region.mask, region.tensor.shape, skips, strict=False):
            least, most = bounds(begin + skip)
            reach = bounds(begin + mask)[0]
            outside = (most is not None and most < 0) or (reach is not None and reach > size)
            if outside and (bounds(mask)[0] or 0) > 0:
                yield f"{region} leaves {region.tensor.name} of shape {region.tensor.shape}"
            if isinstance(begin, int) and isinstance(skip, int) and least is not None and least < 0:
                yield f"{region} begins before {region.tensor.name}"


@_rule
def halo(node: Visited) -> Iterator[str]:
    """What begins before its tensor is copied: other operators read what has all of its first elements."""
    s = node.statement
    for region in regions_of(s):
        copied = isinstance(s, Op) and s.name in ("copy", "copy_async") and region in s.ins
        if region.skip and (not copied or region.tensor.space == "register"):
            yield f"{region} begins before what exists: copy or load it first"


@_rule
def symbols(node: Visited) -> Iterator[str]:
    """Every symbol has a value where it is used."""
    own = tuple(
        getattr(node.statement, one.name)
        for one in fields(node.statement)
        if one.name not in ("body", "otherwise", "line", "symbol", "each")
    )
    for one in _symbols_in(own) - node.symbols:
        if one is not getattr(node.statement, "each", None):
            yield f"the symbol {one} has no value here"


@_rule
def scope(node: Visited) -> Iterator[str]:
    """The outermost scope is a block; every other one is a part of the one around it; operators are inside one."""
    s = node.statement
    if isinstance(s, On):
        if not node.scopes:
            if s.scope != cta_scope(s.scope.threads):
                yield "the outermost scope is not a whole block"
        elif node.scopes[-1].each is None and not s.scope.members() <= node.scopes[-1].scope.members():
            yield f"the threads are not all in {node.scopes[-1].scope}"
    elif isinstance(s, Op | Arrive | Wait) and not node.scopes:
        yield "no threads are named to execute it"


@_rule
def registers(node: Visited) -> Iterator[str]:
    """Registers are used by the threads that own them, all together: a part of these holds a part of the elements."""
    for region in regions_of(node.statement):
        found = node.tensors.get(region.tensor.name)
        if found and region.tensor.space == "register":
            inner = node.scopes[found[1] :]
            if not found[1]:
                yield f"{region.tensor.name} was declared outside every scope: no thread owns it"
            elif any(
                one.each is not None or one.scope.layout != node.scopes[found[1] - 1].scope.layout for one in inner
            ):
                yield f"{region.tensor.name} is held by {node.scopes[found[1] - 1].scope}, not by {inner[-1].scope}"


@_rule
def loop_control(node: Visited) -> Iterator[str]:
    """Break and continue are inside a loop."""
    if isinstance(node.statement, Break | Continue) and not node.in_loop:
        yield "there is no loop around it"


@_rule
def loop(node: Visited) -> Iterator[str]:
    """A loop counts up by a positive step, with at least one stage."""
    if isinstance(node.statement, For):
        least = bounds(node.statement.step)[0]
        if least is None or least < 1 or node.statement.stages < 1:
            yield "the step and the stages are positive"


@_rule
def barrier(node: Visited) -> Iterator[str]:
    """What is waited on is one mbarrier in shared memory, or one flag in global memory."""
    s = node.statement
    if isinstance(s, Init | Arrive | Wait | Op | Commit):
        one = s.barrier
        if one is not None and (one.tensor.dtype != "mbarrier" or one.tensor.space != "shared" or one.size != 1):
            yield f"{one} is not one mbarrier in shared memory"
    elif isinstance(s, Signal | Await):
        if s.flag.size != 1 or s.flag.tensor.space not in ("global", "symmetric") or s.flag.tensor.dtype != "u32":
            yield f"{s.flag} is not one u32 in global or symmetric memory"


@_rule
def tensor_memory(node: Visited) -> Iterator[str]:
    """Tensor memory holds results and left operands of products; commits of products name a barrier."""
    s = node.statement
    if isinstance(s, Commit) and (s.kind == "tcgen05") != (s.barrier is not None):
        yield "a commit of tcgen05 names the mbarrier that it arrives at, others name none"
    if isinstance(s, Alloc) and s.tensor.space == "tensor":
        if s.tensor.rank != 2 or s.tensor.shape[0] not in TENSOR_LANES or s.tensor.dtype not in TENSOR_TYPES:
            yield f"{s.tensor} is not (64 or 128, columns) of {' or '.join(TENSOR_TYPES)}"
    if isinstance(s, Op):
        out = s.outs[0]
        reads = [v for v in s.ins if isinstance(v, Region) and v.tensor.space == "tensor"]
        if s.name == "gemm" and out.tensor.space == "tensor":
            if any(v.tensor == out.tensor or v is not s.ins[0] for v in reads if v != out):
                yield f"a product into {out.tensor.name}: of its operands the left one may be in tensor memory"
            elif out.shape != out.tensor.shape or out.tensor.dtype not in ("f32", "s32"):
                yield f"a product into a part of {out.tensor.name}, or into {out.tensor.dtype}"
        elif out.tensor.space == "tensor":
            if s.name != "copy" or not isinstance(s.ins[0], Region) or s.ins[0].tensor.space != "register":
                yield "tensor memory is written by products and from registers: scope.store(acc[..], values)"
        elif reads and (s.name != "copy" or s.outs[0].tensor.space != "register"):
            yield "tensor memory is read into registers: scope.load(acc[..])"
        if (s.option("keep") is not None or s.option("pair")) and s.outs[0].tensor.space not in ("tensor", "psum"):
            yield "keep= and pair= speak of products into tensor memory or PSUM"


@_rule
def operator(node: Visited) -> Iterator[str]:
    """An operator is in the table, with as many operands as it takes and the options that it knows."""
    s = node.statement
    if not isinstance(s, Op):
        return
    row = OPERATORS.get(s.name)
    if row is None:
        yield f"no operator {s.name!r}; there are {', '.join(OPERATORS)}"
    elif len(s.outs) != 1 or len(s.ins) not in row.inputs:
        yield f"{len(s.outs)} outputs and {len(s.ins)} inputs; it takes 1 and {' or '.join(map(str, row.inputs))}"
    elif set(dict(s.options)) - set(row.options):
        yield f"the options {sorted(set(dict(s.options)) - set(row.options))} are unknown; it knows {row.options}"
    else:
        yield from filter(None, [row.shapes(s)])
        if s.name != "copy_async" and s.barrier is not None:
            yield "only copy_async completes on a barrier"


@_rule
def function(node: Visited) -> Iterator[str]:
    """`map` names an elementwise function with its arity; `reduce` and `scan` a monoid."""
    s = node.statement
    if not isinstance(s, Op) or s.name not in ("map", "reduce", "scan"):
        return
    name = s.option("fn")
    if s.name != "map":
        if name not in MONOIDS:
            yield f"fn={name!r} is none of {', '.join(MONOIDS)}"
    elif name not in ELEMENTWISE:
        yield f"fn={name!r} is none of {', '.join(ELEMENTWISE)}"
    elif ELEMENTWISE[str(name)].arity != len(s.ins):
        yield f"{name} takes {ELEMENTWISE[str(name)].arity} operands"


@_rule
def types(node: Visited) -> Iterator[str]:
    """Element types fit the operator: nothing but `copy` and `cast` changes them silently, predicates stay apart."""
    s = node.statement
    if not isinstance(s, Op) or not s.outs:
        return
    out = DTYPES.get(s.outs[0].tensor.dtype)
    ins = [DTYPES.get(one.tensor.dtype if isinstance(one, Region) else one.dtype) for one in s.ins]
    if out is None or None in ins:
        return
    if s.name == "copy_async" and out != ins[0]:
        yield f"it moves bytes: {s.outs[0].tensor.dtype} is not the type of {s.ins[0]}"
    if s.name == "map" and s.option("fn") in ELEMENTWISE:
        row = ELEMENTWISE[str(s.option("fn"))]
        if (row.result == "pred") != (out.kind == "pred"):
            yield f"the result of {s.option('fn')} is {'a predicate' if row.result == 'pred' else 'a number'}"
        if row.inputs == "float" and out.kind != "float":
            yield f"{s.option('fn')} is a function of floats"
    if s.name == "gemm" and (out.kind == "float") != (ins[0] is not None and ins[0].kind == "float"):
        yield "A, B and C are all floats, or all integers"
