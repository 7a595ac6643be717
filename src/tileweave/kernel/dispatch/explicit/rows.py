"""Rows longer than the registers of a block hold: the body goes over them in parts, once for each reduction.

A block that loads a row, reduces it and uses it again keeps it in registers. Where it is too long for them, every
reduction and every result gets a loop over parts of the row, which computes what it needs of the values anew from
what was loaded: from shared memory, where the first loop leaves it if it fits, or else from global memory again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tileweave.index import Expr, simplify, symbol
from tileweave.kernel.dispatch.layouts.places import strided_layout
from tileweave.kernel.dispatch.report.resources import shared_limit
from tileweave.kernel.ir import (
    Alloc,
    Candidate,
    For,
    KernelTensor,
    On,
    Op,
    Region,
    Scalar,
    Statement,
    Sync,
    clipped,
    whole,
)
from tileweave.kernel.meaning import neutral

#: Registers of a thread that values may take across a reduction; with more nvcc spills (layer norms of 20,000).
HELD = 152
#: Registers of a thread that the values of one part take, all together.
_PART = 64
#: Bytes of shared memory that reductions exchange.
_LEFT = 4 << 10


@dataclass
class _Rows:
    """A body whose row is to be cut.

    Args:
        ops: its operators in order.
        length: elements of the row, padded as its tensors are.
        made: wide tensor -> the operator that makes it.
        threads: of the block.
    """

    ops: list[Op]
    length: int
    made: dict[KernelTensor, Op] = field(default_factory=dict)
    threads: int = 1


def in_parts(on: On, arch: str, fresh: Callable[[str], str]) -> On:
    """The body of a block with its row in parts; as it is where registers hold it, or where it has no such form."""
    found = _rows(on)
    if found is None or _held(found) <= HELD:
        return on
    return replace(on, body=_written(found, _shared_bytes(arch), fresh))


def reasons(on: On, arch: str) -> tuple[Candidate, ...]:
    """Where a row lies that registers do not hold; nothing where they do."""
    found = _rows(on)
    if found is None or _held(found) <= HELD:
        return ()
    bytes_, there = _staged_bytes(found), _shared_bytes(arch)
    loops, fits = len(_groups(found)), bytes_ <= there
    return (
        Candidate("registers", False, f"{_held(found)} of a thread across a reduction, at most {HELD}"),
        Candidate("shared memory", fits, f"{bytes_} bytes, {there} there, parts of {_part(found)}"),
        Candidate("passes", not fits, f"{loops} over global memory in parts of {_part(found)}"),
    )


def _shared_bytes(arch: str) -> int:
    return shared_limit(arch) - _LEFT


def _rows(on: On) -> _Rows | None:
    """The body as a row of operators; None where it is no straight line of loads, maps, reductions and stores."""
    if on.scope.kind != "cta" or on.each is not None:
        return None
    ops = [s for s in on.body if not isinstance(s, Alloc)]
    known = all(isinstance(s, Op) and s.name in ("copy", "map", "cast", "fill", "iota", "reduce") for s in ops)
    tensors = [s.tensor for s in on.body if isinstance(s, Alloc)]
    if not known or any(t.space != "register" or t.layout is not None for t in tensors) or not tensors:
        return None
    found = _Rows([s for s in ops if isinstance(s, Op)], max(t.shape[-1] if t.rank else 1 for t in tensors))
    found.threads = on.scope.threads
    loaded, stored = set(), set()
    for op in found.ops:
        if dict(op.options).keys() - {"fn", "axes", "axis"}:
            return None
        for region in (*op.outs, *op.ins):
            if isinstance(region, Region) and not _plain(found, region):
                return None
        out = op.outs[0].tensor
        if out.space != "register":
            stored.add(out.name)
        elif _wide(found, out):
            if out in found.made:
                return None
            found.made[out] = op
        loaded |= {v.tensor.name for v in op.ins if isinstance(v, Region) and v.tensor.space != "register"}
        sinks = op.name == "reduce" and op.option("axes") != (len(op.ins[0].shape) - 1,)  # type: ignore[union-attr]
        if sinks or (out.space != "register" and not _long(found, op.outs[0])):
            return None
    return None if loaded & stored else found


def _wide(found: _Rows, tensor: KernelTensor) -> bool:
    return tensor.rank > 0 and tensor.shape[-1] == found.length


def _long(found: _Rows, region: Region) -> bool:
    """Whether a region goes along the row."""
    return bool(region.dims) and region.extent[region.dims[-1]] == found.length


def _plain(found: _Rows, region: Region) -> bool:
    """Whether a region is all of a register tensor, or a row of global memory, with a length that is known."""
    if region.skip or list(region.dims) != sorted(region.dims):
        return False
    if region.tensor.space == "register":
        whole_ = all(isinstance(b, int) and b == 0 for b in region.begin) and region.extent == region.tensor.shape
        return whole_ and all(isinstance(m, int) for m in region.mask)
    return region.tensor.space == "global" and (not _long(found, region) or isinstance(region.valid[-1], int))


def _held(found: _Rows) -> int:
    """Registers of a thread that hold values across a reduction, at most."""
    last = {v.tensor: k for k, op in enumerate(found.ops) for v in op.ins if isinstance(v, Region)}
    first = {tensor: found.ops.index(op) for tensor, op in found.made.items()}
    sums = [k for k, op in enumerate(found.ops) if op.name == "reduce"]
    live = ([t for t, start in first.items() if start <= k < last.get(t, 0)] for k in sums)
    return max((sum(_registers(found, t) for t in row) for row in live), default=0)


def _registers(found: _Rows, tensor: KernelTensor) -> int:
    return -(-tensor.size * tensor.element.bits // (32 * found.threads))


def _part(found: _Rows) -> int:
    """Elements of a part: as many as the registers hold of all values at once, a power of two for each thread."""
    total = sum(_registers(found, tensor) for tensor in found.made)
    part = found.threads
    while part * 2 * total <= _PART * found.length:
        part *= 2
    return part


def _sources(found: _Rows) -> list[Op]:
    """The loads of rows that more than one loop needs."""
    groups = _groups(found)
    needs = [{id(op) for sink in group for op in _needed(found, sink)} for group in groups]
    loads = [op for op in found.made.values() if _load(op)]
    return [op for op in loads if sum(id(op) in one for one in needs) > 1]


def _load(op: Op) -> bool:
    return op.name == "copy" and isinstance(op.ins[0], Region) and op.ins[0].tensor.space == "global"


def _staged_bytes(found: _Rows) -> int:
    return sum(op.outs[0].size * op.outs[0].tensor.element.bits // 8 for op in _sources(found))


def _needed(found: _Rows, sink: Op) -> list[Op]:
    """The operators of wide values that a reduction or a store needs, in their order."""
    seen: set[KernelTensor] = set()

    def look(op: Op) -> None:
        for one in op.ins:
            if isinstance(one, Region) and one.tensor in found.made and one.tensor not in seen:
                seen.add(one.tensor)
                look(found.made[one.tensor])

    look(sink)
    return [op for op in found.ops if op.outs[0].tensor in seen and found.made.get(op.outs[0].tensor) is op]


def _is_sink(found: _Rows, op: Op) -> bool:
    long = any(isinstance(v, Region) and _long(found, v) for v in op.ins)
    return op.outs[0].tensor.space == "global" or (op.name == "reduce" and long)


def _groups(found: _Rows) -> list[list[Op]]:
    """Reductions and stores that one loop serves: none needs what another one of them gives."""
    groups: list[list[Op]] = []
    made: set[KernelTensor] = set()  # narrow values that hang on the last group
    for op in found.ops:
        out = op.outs[0].tensor
        if _is_sink(found, op):
            asked = {v.tensor for one in (*_needed(found, op), op) for v in one.ins if isinstance(v, Region)}
            if not groups or asked & made:
                groups.append([])
                made = set()
            groups[-1].append(op)
            made |= {out}
        elif out not in found.made and any(isinstance(v, Region) and v.tensor in made for v in op.ins):
            made.add(out)
    return groups


def _written(found: _Rows, there: int, fresh: Callable[[str], str]) -> tuple[Statement, ...]:
    part, staged = _part(found), {}
    if _staged_bytes(found) <= there:
        for op in _sources(found):
            shape = op.outs[0].tensor.shape
            layout = strided_layout([(n, prod(shape[d + 1 :])) for d, n in enumerate(shape)])
            name = fresh("row_" + op.outs[0].tensor.name)
            staged[op.outs[0].tensor] = KernelTensor(name, shape, op.outs[0].tensor.dtype, "shared", layout)
    groups = _groups(found)
    out: list[Statement] = [Alloc(t, found.ops[0].line) for t in staged.values()]
    filled: set[KernelTensor] = set()
    member = {id(sink): k for k, group in enumerate(groups) for sink in group}
    for op in found.ops:
        if id(op) in member:
            group = groups[member[id(op)]]
            if op is group[0]:
                loop = _Loop(found, part, fresh, staged, filled)
                out += loop.written(group)
                if loop.fills:
                    filled |= loop.fills
                    out.append(Sync(line=op.line))
        elif op.outs[0].tensor not in found.made:
            out += [Alloc(op.outs[0].tensor, op.line), op]
    return tuple(out)


class _Loop:
    """One loop over the parts of a row."""

    def __init__(
        self,
        found: _Rows,
        part: int,
        fresh: Callable[[str], str],
        staged: dict[KernelTensor, KernelTensor],
        filled: set[KernelTensor],
    ) -> None:
        self.found, self.part, self.fresh, self.staged, self.filled = found, part, fresh, staged, filled
        self.fills: set[KernelTensor] = set()
        masks = [
            v.valid[-1] for op in found.ops for v in (*op.outs, *op.ins) if isinstance(v, Region) and _long(found, v)
        ]
        self.count = -(-max(int(m) for m in masks) // part)  # type: ignore[arg-type]
        self.number = symbol(fresh("part"), 0, self.count)
        self.tensors: dict[KernelTensor, KernelTensor] = {}

    def written(self, group: Sequence[Op]) -> Iterator[Statement]:
        """What comes before the loop, and the loop."""
        body: list[Statement] = []
        needed = {id(op): op for sink in group for op in _needed(self.found, sink)}
        for op in self.found.ops:
            if id(op) in needed:
                body += self._value(op)
            elif any(op is sink for sink in group):
                if op.name != "reduce":
                    body.append(self._cut(op))
                    continue
                out, fn = op.outs[0], str(op.option("fn"))
                zero = Scalar(neutral(fn, out.tensor.element), out.tensor.dtype)
                yield from (Alloc(out.tensor, op.line), Op("fill", (out,), (zero,), line=op.line))
                one = replace(out.tensor, name=self.fresh(out.tensor.name))
                body += [Alloc(one, op.line), replace(self._cut(op), outs=(whole(one),))]
                body.append(Op("map", (out,), (out, whole(one)), (("fn", fn),), line=op.line))
        yield For(self.number, 0, self.count, 1, tuple(body), line=group[0].line)

    def _value(self, op: Op) -> list[Statement]:
        """A value of one part."""
        old = op.outs[0].tensor
        new = replace(old, name=self.fresh(old.name), shape=(*old.shape[:-1], self.part))
        self.tensors[old] = new
        made = self._cut(op)
        box = self.staged.get(old)
        if box is None:
            return [Alloc(new, op.line), made]
        here = self._region(whole(box), op.ins[0].valid[-1])  # type: ignore[union-attr]
        if old in self.filled:
            return [Alloc(new, op.line), replace(made, ins=(here,))]
        self.fills.add(old)
        return [Alloc(new, op.line), made, Op("copy", (here,), (made.outs[0],), line=op.line)]

    def _cut(self, op: Op) -> Op:
        ins = tuple(self._region(v) if isinstance(v, Region) else self._scalar(op, v) for v in op.ins)
        return replace(op, outs=tuple(map(self._region, op.outs)), ins=ins)

    def _scalar(self, op: Op, value: Scalar) -> Scalar:
        """What a range along the row begins with."""
        if op.name != "iota" or op.option("axis") != len(op.outs[0].shape) - 1:
            return value
        return replace(value, value=simplify(self.number * self.part + value.value))  # type: ignore[operator,arg-type]

    def _region(self, region: Region, valid: Any = None) -> Region:
        if not _long(self.found, region):
            return region
        d = region.dims[-1]
        exist = clipped(_begin(self.number, self.part), self.part, region.mask[d] if valid is None else valid)
        begin, extent, mask = list(region.begin), list(region.extent), list(region.mask)
        extent[d], mask[d] = self.part, exist
        if region.tensor.space != "register":
            begin[d] = simplify(begin[d] + self.number * self.part)
        tensor = self.tensors.get(region.tensor, region.tensor)
        return replace(region, tensor=tensor, begin=tuple(begin), extent=tuple(extent), mask=tuple(mask))


def _begin(number: Expr, part: int) -> Expr:
    return simplify(number * part)
