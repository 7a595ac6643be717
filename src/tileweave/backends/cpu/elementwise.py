"""Zero, Copy and ReLU over any number of axes with any strides.

Where the output's elements are all different, the order of execution is free: axes are sorted and fused, and the axis
in which the output is dense runs in vectors; where the input is dense in another axis, squares are transposed in
registers. Otherwise the axes run in their given order, one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tileweave.backends.cpu import vectors
from tileweave.backends.cpu.elements import Element, convert, vector, zero
from tileweave.backends.cpu.ir import Function, Module, Value
from tileweave.backends.cpu.plan import Dim, Op, injective
from tileweave.backends.cpu.target import Target

__all__ = ["Shape", "canonical", "emit_elementwise", "emit_nest", "run_tasks"]


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


def fuse(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Neighbours that together walk like one axis, for every operand, become one."""
    fused: list[Dim] = []
    for dim in dims:
        if fused and all(a == dim.extent * b for a, b in zip(fused[-1].strides, dim.strides, strict=True)):
            fused[-1] = Dim(fused[-1].extent * dim.extent, dim.strides)
        else:
            fused.append(dim)
    return tuple(fused)


def emit_nest(f: Function, dims: Sequence[Dim], pointers: Sequence[str], body: Callable[[list[str]], None]) -> None:
    """Loops over all axes, outermost first, around ``body``, which gets one address per operand."""
    if not dims:
        body(list(pointers))
        return
    dim = dims[0]

    def inside(index: Value, _: list[str]) -> None:
        moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
        emit_nest(f, dims[1:], moved, body)

    f.loop(0, dim.extent, inside)


_PARALLEL_BYTES = 256 * 1024
"""Operations that write less than this run on one thread."""


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
    work = _Elementwise(target, op, elements, shape)
    parameters = [("ptr", f"p{k}") for k in range(len(op.operands))]
    f = Function(module, name, [("ptr", "env"), ("i64", "thread"), *parameters])
    pointers = [f.at(f"%p{k}", offset) for k, offset in enumerate(shape.offsets)]
    outer, inner = work.split()
    tasks = 1
    for dim in outer:
        tasks *= dim.extent
    size = tasks * op.width_bytes
    for dim in inner:
        size *= dim.extent
    if not (parallel and shape.free and tasks > 1 and size >= _PARALLEL_BYTES):
        emit_nest(f, outer, pointers, lambda moved: work.inner(f, inner, moved))
        f.ret()
        return
    frame = f.slot("i64", len(pointers) + 1)
    for k, pointer in enumerate(pointers):
        f.store("ptr", pointer, f.at(frame, 8 * k), 8)
    shares = _shares(f, tasks)
    f.store("i64", shares, f.at(frame, 8 * len(pointers)), 8)
    run_tasks(f, f"{name}.task", frame, shares)
    f.ret()

    g = Function(module, f"{name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    bases = [g.load("ptr", g.at("%frame", 8 * k), 8) for k in range(len(pointers))]
    count = g.load("i64", g.at("%frame", 8 * len(pointers)), 8)
    first = g.div(g.mul("%task", tasks), count)
    last = g.div(g.mul(g.add("%task", 1), tasks), count)

    def one(index: Value, _: list[str]) -> None:
        moved = list(bases)
        rest = index
        for dim in reversed(outer):
            digit = g.rem(rest, dim.extent)
            rest = g.div(rest, dim.extent)
            moved = [g.at(p, g.mul(digit, s)) for p, s in zip(moved, dim.strides, strict=True)]
        work.inner(g, inner, moved)

    g.loop(first, last, one)
    g.ret()


def _shares(f: Function, tasks: int) -> Value:
    """Into how many parts the work is cut: several per thread, so that a slow thread does little."""
    threads = f.load("i64", f.at("%env", 24), 8)
    return f.min(f.mul(threads, 8), tasks)


def run_tasks(f: Function, task: str, frame: str, count: Value, thread: str = "%thread") -> None:
    """Run ``task(frame, 0 .. count - 1, thread)`` on the pool that the environment names."""
    pool = f.load("ptr", "%env", 8)
    run = f.load("ptr", f.at("%env", 8), 8)
    threads = f.load("i64", f.at("%env", 24), 8)
    f.call(run, f"ptr {pool}", f"ptr @{task}", f"ptr {frame}", f"i64 {count}", f"i64 {threads}", f"i64 {thread}")


class _Elementwise:
    """How one operation's innermost axes run."""

    def __init__(self, target: Target, op: Op, elements: tuple[Element, ...], shape: Shape) -> None:
        self.target = target
        self.op = op
        self.elements = elements
        self.shape = shape
        self.out = elements[-1]
        self.lanes = target.lanes(max(e.width_bytes for e in elements))

    def split(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        """Outer axes, which may be cut into tasks, and the inner ones that run together."""
        dims = self.shape.dims
        if not dims:
            return (), ()
        return dims[:-1], dims[-1:]

    def inner(self, f: Function, dims: tuple[Dim, ...], pointers: list[str]) -> None:
        """The innermost axes at these addresses."""
        if dims and self.shape.free and self.dense(dims[-1]):
            emit_nest(f, dims[:-1], pointers, lambda moved: self.row(f, dims[-1], moved))
        else:
            emit_nest(f, dims, pointers, lambda moved: self.point(f, moved, 1, None, ()))

    def dense(self, dim: Dim) -> bool:
        """Whether vectors may run along an axis: the output is dense in it, inputs are dense or stand still."""
        if dim.strides[-1] != self.out.width_bytes or self.lanes == 1:
            return False
        pairs = zip(dim.strides[:-1], self.elements[:-1], strict=True)
        return all(stride in (0, e.width_bytes) for stride, e in pairs)

    def row(self, f: Function, dim: Dim, pointers: list[str]) -> None:
        """One axis in vectors, the last one masked."""
        lanes, whole = self.lanes, dim.extent - dim.extent % self.lanes
        still = tuple(stride == 0 for stride in dim.strides[:-1])

        def step(index: Value, _: list[str]) -> None:
            moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
            self.point(f, moved, lanes, None, still)

        f.loop(0, whole, step, step=lanes)
        if dim.extent > whole:
            moved = [f.at(p, whole * stride) for p, stride in zip(pointers, dim.strides, strict=True)]
            if dim.extent == whole + 1:
                # a lone lane: LLVM 22 widens a masked store of narrowed values whose constant mask has one lane
                self.point(f, moved, 1, None, still)
            else:
                self.point(f, moved, lanes, vectors.mask_of(dim.extent - whole, lanes), still)

    def point(self, f: Function, pointers: list[str], lanes: int, mask: str | None, still: tuple[bool, ...]) -> None:
        """One element, or one vector of them."""
        values = []
        for k, (pointer, element) in enumerate(zip(pointers[:-1], self.elements[:-1], strict=True)):
            if lanes > 1 and still[k]:
                one = f.load(element.memory, pointer, element.width_bytes)
                values.append(vectors.broadcast(f, element.memory, lanes, one))
            else:
                values.append(vectors.load(f, element, lanes, pointer, mask))
        vectors.store(f, self.out, lanes, self.meaning(f, values, lanes), pointers[-1], mask)

    def meaning(self, f: Function, values: list[str], lanes: int) -> str:
        """The value that is written."""
        if self.op.kind == "Zero":
            return zero(self.out, lanes)
        if self.op.kind == "Copy":
            return convert(f, self.target, values[0], self.elements[0], self.out, lanes)
        return relu(f, values[0], self.out, lanes)


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
