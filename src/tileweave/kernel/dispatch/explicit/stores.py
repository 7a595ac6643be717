"""Results of products leave through shared memory: ``stmatrix`` or runs of 16 bytes, then boxes of the copy engine.

A thread of a product's fragment holds pairs of a row, so that a warp's store of 16 bits fills half a sector of each of
eight rows; a thread that has loaded a lane of tensor memory has a row, of which a store takes 16 bytes. Where the block
has shared memory left, such a tile goes there first, as boxes of a tensor map lie, and one thread asks the copy engine
for whole rows. The explicit program shows the fences, barriers, commits and waits of this trip. A tile for which there
is no room goes in parts, through two buffers in turn, or one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tileweave.kernel.dispatch.boxes import box_problem, map_problem
from tileweave.kernel.dispatch.copies import store_problem, store_width
from tileweave.kernel.dispatch.explicit.tiles import staged
from tileweave.kernel.dispatch.layouts.registers import Holding, Part, part_of
from tileweave.kernel.dispatch.report.resources import resident, shared_limit, shared_of
from tileweave.kernel.ir import (
    Alloc,
    Commit,
    Fence,
    For,
    Kernel,
    KernelTensor,
    On,
    Op,
    Region,
    Scope,
    Signal,
    Statement,
    Sync,
    WaitGroup,
    When,
    While,
    clipped,
    walk,
)
from tileweave.kernel.threads import ThreadProgram

#: Columns of the narrowest part of a tile: the bytes of a row of the widest swizzle, or more.
_NARROWEST = 64
#: Bytes of a sector of global memory, and of the widest store to shared memory.
_SECTOR, _STORE = 32, 16


@dataclass(frozen=True)
class _Site:
    """A store of registers.

    Args:
        scope: the threads that execute it together.
        again: whether they may execute it more than once.
    """

    scope: Scope
    again: bool


@dataclass(frozen=True)
class _Way:
    """Buffers for a tile, and in how many parts it goes through them."""

    tensor: KernelTensor
    parts: int

    @property
    def bytes(self) -> int:
        return -(-self.tensor.size * self.tensor.element.bits // 8 // 1024) * 1024


def through_boxes(
    kernel: Kernel,
    arch: str,
    holdings: Callable[[], Mapping[str, Holding]],
    program: Callable[[Kernel], ThreadProgram],
    fresh: Callable[[str], str],
) -> tuple[Kernel, dict[Op, str]]:
    """The kernel with its stores through shared memory; and why the others are not.

    Args:
        kernel: an explicit kernel.
        arch: the target.
        holdings: where register tensors lie.
        program: what the threads of a kernel do, as it stands: says what shared memory is left.
        fresh: a name that nothing else has.
    """
    changed: dict[Op, list[Statement]] = {}
    refused: dict[Op, str] = {}
    left: int | None = None
    for op, site in _sites(kernel.body, None, False):
        ways = _ways(kernel, op, site, holdings, arch)
        if isinstance(ways, str) or isinstance(site, str):
            refused[op] = str(ways)
            continue
        if left is None:
            left = _left(program(_plain(kernel)))
        fitting = [way for way in ways if way.bytes <= left]
        if not fitting:
            refused[op] = f"{ways[-1].bytes} bytes of shared memory for a part of it, {left} left"
            continue
        changed[op] = _written(op, site, fitting[0], fresh)
        left -= fitting[0].bytes
    if not changed:
        return kernel, refused
    return replace(kernel, body=_replaced(kernel.body, changed)), refused


def _sites(body: tuple[Statement, ...], scope: Scope | None, again: bool) -> Iterator[tuple[Op, _Site | str]]:
    """Every copy from registers to global memory, with the threads that execute it."""
    for s in body:
        if isinstance(s, Op) and s.name == "copy" and _leaves(s):
            yield s, _Site(scope, again) if scope is not None else "parts of the scope store a tile each"
        elif isinstance(s, On):
            yield from _sites(s.body, s.scope if s.each is None else None, again)
        elif isinstance(s, When):
            yield from _sites((*s.body, *s.otherwise), scope, again)
        elif isinstance(s, For | While):
            yield from _sites(s.body, scope, True)


def _leaves(op: Op) -> bool:
    source = op.ins[0] if op.ins else None
    near = isinstance(source, Region) and source.tensor.space == "register"
    return near and op.outs[0].tensor.space in ("global", "symmetric")


def _ways(
    kernel: Kernel, op: Op, site: _Site | str, holdings: Callable[[], Mapping[str, Holding]], arch: str
) -> list[_Way] | str:
    """The stagings of a store, the largest first, or why it goes straight to global memory."""
    out, source = op.outs[0], op.ins[0]
    if isinstance(site, str) or not isinstance(source, Region):
        return str(site)
    problem = _problem(kernel, op, arch) or map_problem(out.tensor, arch)
    if problem:
        return problem
    last = out.dims[-1]
    if len(out.dims) != 2 or last != out.tensor.rank - 1:
        return "its rows are none in global memory"
    if out.mask[last] not in (out.extent[last], clipped(out.begin[last], out.extent[last], out.tensor.shape[last])):
        return "a mask that is not the tensor's end"
    if out.skip and any(not isinstance(n, int) or n for n in out.skip):
        return "a mask at its beginning"
    if source.masked or source.extent != source.tensor.shape or source.dims != (0, 1):
        return "a part of the registers"
    held, asked = holdings()[source.tensor.name], op.option("use") == "tma"
    if _together(held, out) >= _SECTOR and not asked:
        return "a warp's stores to memory fill whole sectors"
    found, rows, columns = list[_Way](), *out.shape
    for width in (w for w in range(columns, 0, -1) if columns % w == 0 and (w == columns or w % _NARROWEST == 0)):
        parts = columns // width
        tensor = staged(_columns(out, 0, width), min(2, parts), "s")
        near, part = _stage(tensor, 0), part_of(held, (0, 0), (rows, width), (0, 1))
        problem = f"rows of {columns} elements" if tensor.swizzle is None else ""
        problem = problem or (_unfit(part.held, near, arch, asked) if isinstance(part, Part) else part)
        problem = problem or box_problem(arch, Op("copy_async", (_columns(out, 0, width),), (near,)))
        found += [] if problem else [_Way(tensor, parts)]
    if found and found[-1].parts > 1:
        shape = found[-1].tensor.shape[1:]
        found.append(_Way(staged(_columns(out, 0, shape[1]), 1, "s"), found[-1].parts))
    return found or problem


def _together(held: Holding, out: Region) -> int:
    """Bytes of a row that the lanes of a warp store side by side, at once or by further stores of the same lanes."""
    last, width = len(held.shape) - 1, store_width(held, out)
    run = full = width
    for digit in sorted((d for d in held.digits if d.dim == last), key=lambda d: d.weight):
        if digit.axis == "lane" and digit.weight == run:
            run = full = digit.weight * digit.extent
        elif digit.axis == "reg" and digit.weight <= run < digit.weight * digit.extent:
            run = digit.weight * digit.extent  # counts where another lane goes on
    return full * out.tensor.element.bits // 8


def _unfit(held: Holding, near: Region, arch: str, asked: bool) -> str:
    """Why registers are not brought to shared memory for a box; empty if they are."""
    problem = store_problem(held, near, arch)
    wide = store_width(held, near) * near.tensor.element.bits // 8 == _STORE
    return "" if wide or (asked and near.tensor.element.bits == 32) else problem


def _problem(kernel: Kernel, op: Op, arch: str) -> str:
    """What else in a kernel, or in the store itself, asks for plain stores."""
    out = op.outs[0].tensor
    if op.option("use") == "st":
        return "plain stores were asked for"
    if op.option("accumulate"):
        return "an addition"
    if out.space != "global":
        return "memory over the mesh"
    if out.element.bits not in (16, 32):
        return f"elements of {out.element.bits} bits"
    if _elsewhere(kernel, op):
        return f"{out.name} is read or written elsewhere in the kernel"
    if any(isinstance(s, Signal) for s in walk(kernel.body)):
        return "flags tell others what was written, and order no boxes"
    return ""


def _elsewhere(kernel: Kernel, op: Op) -> bool:
    """Whether another statement touches the tensor that a store writes."""
    named = op.outs[0].tensor.name
    others = (s for s in walk(kernel.body) if isinstance(s, Op) and s is not op)
    return any(isinstance(v, Region) and v.tensor.name == named for s in others for v in (*s.outs, *s.ins))


def _plain(kernel: Kernel) -> Kernel:
    """The kernel with no store that asks for boxes."""
    plain: dict[Op, list[Statement]] = {}
    for s in walk(kernel.body):
        if isinstance(s, Op) and _leaves(s) and s.option("use") == "tma":
            plain[s] = [replace(s, options=tuple(o for o in s.options if o[0] != "use"))]
    return replace(kernel, body=_replaced(kernel.body, plain))


def _left(program: ThreadProgram) -> int:
    """Shared memory that a block may still take; a buffer begins at a multiple of 1 KiB.

    Where two blocks share a multiprocessor, two still do: one's way out runs beside the other's product.
    """
    blocks = min(2, max(1, resident(program)))
    return shared_limit(program.arch) // blocks // 1024 * 1024 - -(-shared_of(program) // 1024) * 1024 - 1024


def _columns(out: Region, begin: int, width: int) -> Region:
    """Columns of a tile in global memory; its mask is the tensor's end, as boxes have it."""
    d = out.dims[1]
    first = out.begin[d] + begin
    whole = out.mask[d] == out.extent[d]
    mask = width if whole else clipped(first, width, out.tensor.shape[d])
    begins, masks = (*out.begin[:d], first), (*out.mask[:d], mask)
    return replace(out, begin=begins, extent=(*out.extent[:d], width), mask=masks)


def _stage(tensor: KernelTensor, number: int) -> Region:
    shape = tensor.shape[1:]
    return Region(tensor, (number, 0, 0), (1, *shape), (1, *shape), (1, 2))


def _written(op: Op, site: _Site, way: _Way, fresh: Callable[[str], str]) -> list[Statement]:
    """Each part: registers to a buffer that is free, the fence, a barrier, boxes by the first warp."""
    source, out, line = op.ins[0], op.outs[0], op.line
    if not isinstance(source, Region):
        raise TypeError(type(source).__name__)
    tensor, parts = replace(way.tensor, name=fresh("s" + out.tensor.name.lower())), way.parts
    buffers, rows, width = tensor.shape
    first = site.scope.part("warp", 0, 1)
    body: list[Statement] = [Alloc(tensor, line)]
    for part in range(parts):
        if part >= buffers or site.again:
            body.append(Sync(line=line))
        near = _stage(tensor, part % buffers)
        some = replace(source, begin=(0, part * width), extent=(rows, width), mask=(rows, width))
        box = Op("copy_async", (_columns(out, part * width, width),), (near,), line=line)
        last, free = part == parts - 1, part + 1 >= buffers
        waits = [WaitGroup("bulk", 0 if last else buffers - 1, read=not last, line=line)] if last or free else []
        body += [
            Op("copy", (near,), (source if parts == 1 else some,), line=line),
            Fence("proxy.async", line),
            Sync(line=line),
            On(first, (box, Commit("bulk", line=line), *waits), None, None, line),
        ]
    return body


def _replaced(body: tuple[Statement, ...], changed: Mapping[Op, list[Statement]]) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Op):
            out += changed.get(s, [s])
        elif isinstance(s, When):
            yes, no = (_replaced(b, changed) for b in (s.body, s.otherwise))
            out.append(replace(s, body=yes, otherwise=no))
        elif isinstance(s, For | While | On):
            out.append(replace(s, body=_replaced(s.body, changed)))
        else:
            out.append(s)
    return tuple(out)
