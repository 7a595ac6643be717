"""Layouts for register tensors that have none: one for all that meet in elementwise operators.

Accumulators of products get the fragments of their instruction, what is loaded gets vectors along its memory, what is
smaller in a dimension is held by all threads that need it. Where one tensor is wanted in two layouts, it keeps the
first, and the operator that wants the other converts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tileweave.errors import BackendError, LayoutError
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.registers import Holding, Part, RegisterDigit, blocked, holding, part_of
from tileweave.kernel.ir import Alloc, KernelTensor, Line, On, Op, Region, Statement
from tileweave.kernel.ir.statements import blocks_of
from tileweave.layout import Coord, Iter, Layout

#: Operators whose output and inputs of the same shape lie alike.
_ALIKE = frozenset({"map", "cast", "copy", "fill", "iota", "scan"})

Accumulator = Callable[[Op, int], tuple[Layout, tuple[int, ...]] | None]


@dataclass
class _Groups:
    """Register tensors that lie alike, and how groups depend on each other."""

    parent: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, KernelTensor] = field(default_factory=dict)
    warps: dict[str, int] = field(default_factory=dict)
    derived: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)  # (whole, part, dims of extent 1)
    parts: list[tuple[Region, str]] = field(default_factory=list)  # (a box of a tensor, what is made of it)
    lines: dict[str, Line] = field(default_factory=dict)
    memory: dict[str, list[Region]] = field(default_factory=dict)
    products: dict[str, Op] = field(default_factory=dict)

    def find(self, name: str) -> str:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(b)] = self.find(a)


def _ops(body: tuple[Statement, ...]) -> Iterator[Op]:
    for statement in body:
        if isinstance(statement, Op):
            yield statement
        for inner in blocks_of(statement):
            yield from _ops(inner)


def _allocated(body: tuple[Statement, ...], warps: int) -> Iterator[tuple[Alloc, int]]:
    for statement in body:
        if isinstance(statement, Alloc) and statement.tensor.space == "register":
            yield statement, warps
        if isinstance(statement, On):
            threads = statement.scope.threads // (statement.scope.entities if statement.each is not None else 1)
            yield from _allocated(statement.body, threads // 32)
        else:
            for inner in blocks_of(statement):
                yield from _allocated(inner, warps)


def _register(value: object) -> KernelTensor | None:
    return value.tensor if isinstance(value, Region) and value.tensor.space == "register" else None


def _plain(region: Region) -> bool:
    """Whether a region shows its whole tensor in the tensor's order."""
    return region.extent == region.tensor.shape and region.dims == tuple(range(region.tensor.rank))


def assign(body: tuple[Statement, ...], warps: int, accumulator: Accumulator) -> dict[str, Holding]:
    """A holding for each register tensor of a body.

    Args:
        body: the statements of the block.
        warps: warps of the block.
        accumulator: the layout and padded shape of a product's result, or None where any layout serves.
    """
    groups = _Groups()
    for alloc, of in _allocated(body, warps):
        tensor = alloc.tensor
        groups.lines[tensor.name] = alloc.line
        groups.parent[tensor.name] = tensor.name
        groups.tensors[tensor.name] = tensor
        groups.warps[tensor.name] = of
    for op in _ops(body):
        _note(groups, op)
    found: dict[str, Holding] = {}
    for name, tensor in groups.tensors.items():
        if tensor.layout is not None:
            found.setdefault(groups.find(name), _asked(groups, tensor))
    for name, op in groups.products.items():
        root = groups.find(name)
        if root not in found:
            chosen = accumulator(op, groups.warps[name])
            if chosen is not None:
                layout, padded = chosen
                found[root] = holding(layout, padded, groups.warps[name])
    _spread(groups, found)
    result = {name: found[groups.find(name)] for name in groups.tensors}
    for name, tensor in groups.tensors.items():
        if tensor.layout is not None:
            result[name] = _asked(groups, tensor)
    return result


def _asked(groups: _Groups, tensor: KernelTensor) -> Holding:
    """The holding of the layout that the user gave.

    Raises:
        BackendError: it does not fit the scope's threads; with the user's line.
    """
    if tensor.layout is None:
        raise TypeError(tensor.name)
    try:
        return holding(tensor.layout, tensor.shape, groups.warps[tensor.name])
    except LayoutError as error:
        problem = str(error).splitlines()[0].split(": ", 2)[-1]
        inputs = {"tensor": tensor, "line": str(groups.lines[tensor.name])}
        raise BackendError("dispatch(kernel, arch)", f"{tensor.name}: {problem}", inputs=inputs) from None


def _note(groups: _Groups, op: Op) -> None:
    out = op.outs[0]
    target = _register(out)
    if op.name == "gemm":
        if target is not None:
            groups.products.setdefault(target.name, op)
        return
    if target is not None and isinstance(op.ins[0], Region) and op.ins[0].tensor.space == "tensor":
        groups.products.setdefault(target.name, op)
        return
    for value in op.ins:
        source = _register(value)
        if source is not None and out.tensor.space == "tensor":
            groups.products.setdefault(source.name, op)
        if source is None or target is None or not isinstance(value, Region):
            if target is None and source is not None and op.name in _ALIKE:
                groups.memory.setdefault(source.name, []).append(out)
            if target is not None and isinstance(value, Region) and source is None and op.name in _ALIKE:
                groups.memory.setdefault(target.name, []).append(value)
            if target is not None and isinstance(value, Region) and source is None and op.name == "reduce":
                groups.memory.setdefault(target.name, []).append(_reduced(value, op))
            continue
        if _plain(out) and not _plain(value) and op.name in _ALIKE and value.shape == out.shape:
            groups.parts.append((value, target.name))
        if not (_plain(value) and _plain(out)) or groups.warps[source.name] != groups.warps[target.name]:
            continue
        ones = tuple(d for d, (a, b) in enumerate(zip(source.shape, target.shape, strict=True)) if a == 1 and b > 1)
        if op.name == "reduce":
            dims = op.option("axes")
            groups.derived.append((source.name, target.name, dims))  # type: ignore[arg-type]
        elif op.name in _ALIKE and source.shape == target.shape:
            groups.join(target.name, source.name)
        elif op.name in _ALIKE and ones:
            groups.derived.append((target.name, source.name, ones))


def _reduced(region: Region, op: Op) -> Region:
    """The box of one term of each sum."""
    axes = op.option("axes")
    dims = {region.dims[axis] for axis in axes} if isinstance(axes, tuple) else set()
    extent = tuple(1 if d in dims else n for d, n in enumerate(region.extent))
    return replace(region, extent=extent, mask=tuple(1 if d in dims else n for d, n in enumerate(region.mask)))


def _spread(groups: _Groups, found: dict[str, Holding]) -> None:
    """Gives every group a holding: derived from a larger one, else by its memory, else along its last dimension."""
    roots = list(dict.fromkeys(groups.find(name) for name in groups.tensors))
    while True:
        for whole, part, dims in groups.derived:
            root = groups.find(part)
            if root not in found and groups.find(whole) in found:
                held = found[groups.find(whole)]
                padded = tuple(1 if d in dims else n for d, n in enumerate(held.shape))
                found[root] = holding(held.without(dims), padded, held.warps)
                break
        else:
            if _by_part(groups, found):
                continue
            waiting = [root for root in roots if root not in found]
            if not waiting:
                return
            parts = {groups.find(part) for whole, part, _ in groups.derived if groups.find(whole) not in found}
            free = [root for root in waiting if root not in parts] or waiting
            root = max(free, key=lambda r: groups.tensors[r].size)
            found[root] = _by_memory(groups, root)


def _by_part(groups: _Groups, found: dict[str, Holding]) -> bool:
    """Gives one group the holding that a part of a tensor has, where its threads have it in slots."""
    for box, name in groups.parts:
        root, whole = groups.find(name), found.get(groups.find(box.tensor.name))
        if root not in found and whole is not None:
            part = part_of(whole, box.begin, box.extent, box.dims)
            if isinstance(part, Part):
                found[root] = part.held
                return True
    return False


def _by_memory(groups: _Groups, root: str) -> Holding:
    members = [name for name in groups.tensors if groups.find(name) == root]
    shape, warps = groups.tensors[root].shape, groups.warps[root]
    regions = [region for name in members for region in groups.memory.get(name, ()) if region.shape == shape]
    return _alone(shape) if warps == 0 else along_memory(shape, regions, warps)


def along_memory(shape: tuple[int, ...], regions: Iterable[Region], warps: int) -> Holding:
    """A holding whose slots run along the memory of the regions that are copied from it or to it."""
    order, width = tuple(range(len(shape)))[::-1], 1
    best = 0
    for region in regions:
        if region.tensor.space == "register":
            continue
        at = places.fastest(region)
        bits = region.tensor.element.bits
        wide = places.vector(region, max(1, 128 // bits))
        if at is not None and wide * bits > best:
            best, width = wide * bits, wide
            order = (at, *(d for d in range(len(shape))[::-1] if d != at))
    layout, padded = blocked(shape, warps, width, order)
    return holding(layout, padded, warps)


def _alone(shape: tuple[int, ...]) -> Holding:
    """One thread holds everything."""
    digits, stride = [], 1
    for dim in range(len(shape))[::-1]:
        digits.append(RegisterDigit("reg", stride, shape[dim], dim, 1))
        stride *= shape[dim]
    layout = Layout(tuple(Iter(d.extent, Coord.of({"reg": d.stride})) for d in reversed(digits)))
    return Holding(layout, shape, tuple(d for d in digits if d.extent > 1), 0)
