"""Pictures of layouts: the place of an element in memory, its holder in registers, its device or partition."""

from __future__ import annotations

from tileweave.kernel.dispatch import products
from tileweave.kernel.dispatch.layouts.assign import assign
from tileweave.kernel.dispatch.layouts.places import rows_of
from tileweave.kernel.dispatch.lower import expand
from tileweave.kernel.ir import Kernel, KernelTensor, Op, walk
from tileweave.kernel.ir.statements import Alloc
from tileweave.layout.analysis.svg import svg
from tileweave.layout.cute import ComposedLayout, CuteLayout

_ELSEWHERE = frozenset({"gpu", "TLane", "P"})
"""Axes of tensors over a mesh, in tensor memory, on Trainium: their layouts are those that the kernel says."""
_MEMORY, _REGISTERS = (16, 64), (16, 16)
"""Rows and columns that are drawn."""


def pictures(kernel: Kernel, arch: str = "sm_90a") -> dict[str, str]:
    """SVG by the names of the tensors in registers, in shared and tensor memory, over a mesh and on Trainium.

    Tensors in shared memory are drawn by their last two dimensions.

    Args:
        kernel: the kernel.
        arch: the target.
    """
    drawn = {}
    for tensor in (*kernel.params, *(s.tensor for s in walk(kernel.body) if isinstance(s, Alloc))):
        axes = {axis for it in (tensor.layout.shard if tensor.layout else ()) for axis, _ in it.stride.terms}
        if axes & _ELSEWHERE:
            shape = tensor.shape if len(tensor.shape) == 2 else None
            drawn[tensor.name] = svg(tensor.layout, shape=shape, limit=_REGISTERS, title=str(tensor))
    if any(isinstance(s, Alloc) and s.tensor.space in ("sbuf", "psum") for s in walk(kernel.body)):
        return drawn
    kernel = expand(kernel, arch)
    found = tuple(s for s in walk(kernel.body) if isinstance(s, Op) and s.name == "gemm")
    holdings = assign(kernel.body, kernel.threads // 32, products.accumulator(arch, found))
    for statement in walk(kernel.body):
        if not isinstance(statement, Alloc):
            continue
        tensor = statement.tensor
        if tensor.space == "shared" and tensor.rank and tensor.dtype != "mbarrier":
            drawn[tensor.name] = _shared(tensor)
        elif tensor.space == "register" and tensor.name in holdings:
            held = holdings[tensor.name]
            shape = held.shape if len(held.shape) == 2 else None
            title = f"{tensor.name}: {tensor.dtype}, {held.layout}"
            drawn[tensor.name] = svg(held.layout, shape=shape, limit=_REGISTERS, title=title)
    return drawn


def _shared(tensor: KernelTensor) -> str:
    rows = rows_of(tensor)[-2:]
    modes = [[tuple(pair[k] for pair in reversed(row)) or (1,) for row in rows] for k in (0, 1)]
    shape, stride = (tuple(m[0] if len(m) == 1 else m for m in part) for part in modes)
    plain = CuteLayout(shape, stride)
    made = plain if tensor.swizzle is None else ComposedLayout(tensor.swizzle, 0, plain)
    return svg(made, limit=_MEMORY, title=str(tensor))
