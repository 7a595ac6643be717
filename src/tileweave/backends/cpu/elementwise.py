"""Zero, Copy and ReLU over any number of axes with any strides.

Where the output's elements are all different, the order of execution is free: axes are sorted and fused, and the axis
in which the output is dense runs in vectors; where the input is dense in another axis, it is transposed. Otherwise the
axes run in their given order, one element at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tileweave.backends.cpu import vectors
from tileweave.backends.cpu.elements import Element, convert, vector, zero
from tileweave.backends.cpu.ir import Function, Module, Value
from tileweave.backends.cpu.loops import PARALLEL_BYTES, emit_nest, emit_points, fuse
from tileweave.backends.cpu.plan import Dim, Op, injective
from tileweave.backends.cpu.target import Target
from tileweave.backends.cpu.transpose import emit_transpose, paged, transposable

__all__ = ["Shape", "canonical", "emit_elementwise", "relu"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Axes ready for code: none of extent 1, and bytes to add to each operand's address."""

    dims: tuple[Dim, ...]
    offsets: tuple[int, ...]
    free: bool


def canonical(op: Op) -> Shape:
    """The axes of an elementwise operation, outermost first, fused where all operands allow it.

    ``free`` says that the order of execution does not matter.
    """
    dims = [dim for dim in op.dims if dim.extent > 1]
    offsets = list(op.offsets)
    free = injective(tuple(dims), -1, op.width_bytes)
    if not free and op.kind == "Zero":
        dims = [dim for dim in dims if dim.strides[-1]]
        free = True
    if not free:
        return Shape(tuple(dims), tuple(offsets), False)
    for k, dim in enumerate(dims):
        if dim.strides[-1] < 0:
            offsets = [o + s * (dim.extent - 1) for o, s in zip(offsets, dim.strides, strict=True)]
            dims[k] = Dim(dim.extent, tuple(-s for s in dim.strides))
    return Shape(fuse(sorted(dims, key=lambda d: (-d.strides[-1], d.extent))), tuple(offsets), True)


def emit_elementwise(
    module: Module, target: Target, name: str, op: Op, elements: tuple[Element, ...], *, parallel: bool
) -> None:
    """Add the function ``name(env, thread, operands..)`` that performs the operation.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: Zero, Copy or ReLU.
        elements: one per operand.
        parallel: whether it may use the pool.
    """
    shape = canonical(op)
    names = [f"p{k}" for k in range(len(op.operands))]
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), *(("ptr", p) for p in names)])
    pointers = [f.at(f"%{p}", offset) for p, offset in zip(names, shape.offsets, strict=True)]
    if shape.free and transposable(target, shape.dims, elements):
        emit_transpose(
            f,
            target,
            shape.dims,
            elements,
            pointers,
            lambda g, value, lanes: meaning(g, target, op, elements, [value], lanes),
            parallel=parallel,
        )
    else:
        rows = _Rows(target, op, elements, shape)
        shared = parallel and shape.free and rows.size_bytes >= PARALLEL_BYTES
        emit_points(f, rows.outer, pointers, rows.inner, parallel=shared)
    f.ret()


_LONG = 8192
"""Elements of a dense axis that one piece takes; a multiple of all vectors."""


class _Rows:
    """How one operation runs: outer axes, which may be cut into tasks, and what happens at each of their points."""

    def __init__(self, target: Target, op: Op, elements: tuple[Element, ...], shape: Shape) -> None:
        self.target = target
        self.op = op
        self.elements = elements
        self.out = elements[-1]
        self.lanes = target.lanes(max(e.width_bytes for e in elements))
        self.free = shape.free
        self.size_bytes = op.width_bytes * prod(dim.extent for dim in shape.dims)
        self.outer: tuple[Dim, ...] = shape.dims
        self.rest: tuple[Dim, ...] = ()
        self.long = False
        if self.free and shape.dims and self.dense(shape.dims[-1]):
            self.outer, self.rest = shape.dims[:-1], shape.dims[-1:]
            while len(self.outer) > 1 and self.rest[0].extent * prod(d.extent for d in self.rest[1:]) < 256:
                self.outer, self.rest = self.outer[:-1], (self.outer[-1], *self.rest)
            if len(self.rest) == 1 and op.kind == "Copy":
                self.outer = paged(self.outer)
            if len(self.rest) == 1 and self.rest[0].extent >= 2 * _LONG:
                blocks = -(-self.rest[0].extent // _LONG)
                self.long = True
                self.outer = (*self.outer, Dim(blocks, tuple(_LONG * s for s in self.rest[0].strides)))
        elif self.free and len(shape.dims) > 1:
            self.outer, self.rest = shape.dims[:-1], shape.dims[-1:]
        elif not self.free:
            self.outer, self.rest = (), shape.dims

    def inner(self, f: Function, pointers: list[str], digits: list[Value]) -> None:
        """What happens at one point of the outer axes."""
        block = digits[-1] if self.long else 0
        if self.rest and self.free and self.dense(self.rest[-1]):
            emit_nest(f, self.rest[:-1], pointers, lambda moved: self.row(f, self.rest[-1], moved, block))
        else:
            emit_nest(f, self.rest, pointers, lambda moved: self.point(f, moved, 1, None, ()))

    def dense(self, dim: Dim) -> bool:
        """Whether vectors may run along an axis: the output is dense in it, inputs are dense or stand still."""
        if dim.strides[-1] != self.out.width_bytes or self.lanes == 1:
            return False
        pairs = zip(dim.strides[:-1], self.elements[:-1], strict=True)
        return all(stride in (0, e.width_bytes) for stride, e in pairs)

    def row(self, f: Function, dim: Dim, pointers: list[str], block: Value) -> None:
        """One axis in vectors, or a block of it; the last vector is masked."""
        lanes, left = self.lanes, dim.extent % self.lanes
        still = tuple(stride == 0 for stride in dim.strides[:-1])
        whole: Value = dim.extent - left
        if self.long:
            whole = f.min(f.sub(whole, f.mul(block, _LONG)), _LONG)

        def step(index: Value, _: list[str]) -> None:
            moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
            self.point(f, moved, lanes, None, still)

        def tail() -> None:
            moved = [f.at(p, f.mul(whole, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
            if left == 1:
                # a lone lane: LLVM 22 widens a masked store of narrowed values whose constant mask has one lane
                self.point(f, moved, 1, None, still)
            else:
                self.point(f, moved, lanes, vectors.mask_of(left, lanes), still)

        f.loop(0, whole, step, step=lanes)
        if left:
            last = f.compare("eq", block, -(-dim.extent // _LONG) - 1) if self.long else 1
            f.when(last, tail)

    def point(
        self,
        f: Function,
        pointers: list[str],
        lanes: int,
        mask: str | None,
        still: tuple[bool, ...],
    ) -> None:
        """One element, or one vector of them."""
        values = []
        for k, (pointer, element) in enumerate(zip(pointers[:-1], self.elements[:-1], strict=True)):
            if lanes > 1 and still[k]:
                one = f.load(element.memory, pointer, element.width_bytes)
                values.append(vectors.broadcast(f, element.memory, lanes, one))
            else:
                values.append(vectors.load(f, element, lanes, pointer, mask))
        vectors.store(
            f, self.out, lanes, meaning(f, self.target, self.op, self.elements, values, lanes), pointers[-1], mask
        )


def meaning(f: Function, target: Target, op: Op, elements: tuple[Element, ...], values: list[str], lanes: int) -> str:
    """The value that is written."""
    if op.kind == "Zero":
        return zero(elements[-1], lanes)
    if op.kind == "Copy":
        return convert(f, target, values[0], elements[0], elements[-1], lanes)
    return relu(f, values[0], elements[-1], lanes)


def relu(f: Function, value: str, element: Element, lanes: int) -> str:
    """``max(value, 0)`` with NaN kept."""
    full = vector(element.memory, lanes)
    nothing = zero(element, lanes)
    if not element.floating:
        keep = f.value(f"icmp sgt {full} {value}, {nothing}")
    elif element.plain:
        keep = f.value(f"fcmp ugt {full} {value}, {nothing}")
    else:
        return _relu_bits(f, value, element, lanes)
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {nothing}")


def _relu_bits(f: Function, value: str, element: Element, lanes: int) -> str:
    """The same on the bits of BF16 and FP16: negative numbers become zero, negative NaNs do not."""
    infinity = 0xFF80 if element.name == "BF16" else 0xFC00
    full = vector("i16", lanes)
    bound = str(infinity - 65536)
    limit = bound if lanes == 1 else "<" + ", ".join(f"i16 {bound}" for _ in range(lanes)) + ">"
    positive = f.value(f"icmp sge {full} {value}, {zero(element, lanes)}")
    nan = f.value(f"icmp ugt {full} {value}, {limit}")
    keep = f.value(f"or {vector('i1', lanes)} {positive}, {nan}")
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {zero(element, lanes)}")
