"""Contractions: sums of products over any axes with any strides.

The scalar form runs every axis as a loop, in the given order, and is the fallback for a contraction that reads the
tensor it writes. All others are blocked, packed and computed in register tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileweave.backends.cpu.elements import Element, convert
from tileweave.backends.cpu.elementwise import emit_elementwise, emit_nest, relu
from tileweave.backends.cpu.ir import Function, Module
from tileweave.backends.cpu.plan import Dim, Op
from tileweave.backends.cpu.target import Target

__all__ = ["Workspace", "emit_contraction"]


@dataclass
class Workspace:
    """Working memory that the operations of a program ask for; they run one after the other and share it."""

    shared_bytes: int = 0
    thread_bytes: int = 0

    def ask(self, shared_bytes: int, thread_bytes: int) -> None:
        """Have at least so much."""
        self.shared_bytes = max(self.shared_bytes, shared_bytes)
        self.thread_bytes = max(self.thread_bytes, thread_bytes)


def emit_contraction(
    module: Module,
    target: Target,
    name: str,
    op: Op,
    elements: tuple[Element, ...],
    memory: Workspace,
    *,
    parallel: bool,
) -> None:
    """Add the function ``name(env, thread, in0, in1, out, init, relu)``.

    Args:
        module: where it is added.
        target: the processor.
        name: of the function.
        op: a Contraction.
        elements: of in0, in1 and out; sums are formed in the type of out.
        memory: grows by what the operation needs.
        parallel: whether it may use the pool.
    """
    _emit_scalar(module, target, name, op, elements)


PARAMETERS = [
    ("ptr", "env"),
    ("i64", "thread"),
    ("ptr", "p0"),
    ("ptr", "p1"),
    ("ptr", "p2"),
    ("i1", "init"),
    ("i1", "relu"),
]


def _emit_scalar(module: Module, target: Target, name: str, op: Op, elements: tuple[Element, ...]) -> None:
    f = Function(module, name, PARAMETERS)
    pointers = [f.at(f"%p{k}", offset) for k, offset in enumerate(op.offsets)]
    outputs = tuple(Dim(d.extent, (d.strides[-1],)) for d in op.dims if d.strides[-1] and d.extent > 1)
    out = elements[-1]
    around = replace(op, kind="Zero", operands=op.operands[-1:], dims=outputs, offsets=(0,))
    if op.init is not None:
        emit_elementwise(module, target, f"{name}.zero", around, (out,), parallel=False)
        f.when("%init", lambda: _discard(f.call(f"{name}.zero", "ptr %env", "i64 %thread", f"ptr {pointers[-1]}")))

    def point(moved: list[str]) -> None:
        values = [
            convert(f, target, f.load(e.memory, p, e.width_bytes), e, out)
            for p, e in zip(moved[:-1], elements[:-1], strict=True)
        ]
        old = f.load(out.memory, moved[-1], out.width_bytes)
        f.store(out.memory, multiply_add(f, out, 1, values[0], values[1], old), moved[-1], out.width_bytes)

    emit_nest(f, [d for d in op.dims if d.extent > 1], pointers, point)
    if op.relu is not None:

        def clip() -> None:
            def one(moved: list[str]) -> None:
                value = f.load(out.memory, moved[0], out.width_bytes)
                f.store(out.memory, relu(f, value, out, 1), moved[0], out.width_bytes)

            emit_nest(f, outputs, pointers[-1:], one)

        f.when("%relu", clip)
    f.ret()


def _discard(_: str) -> None:
    return None


def multiply_add(f: Function, element: Element, lanes: int, a: str, b: str, c: str) -> str:
    """``a * b + c``, in one rounding where the processor has such an instruction."""
    full = element.memory if lanes == 1 else f"<{lanes} x {element.memory}>"
    if not element.floating:
        product = f.value(f"mul {full} {a}, {b}")
        return f.value(f"add {full} {product}, {c}")
    kind = {"float": "f32", "double": "f64"}[element.memory]
    name = f"llvm.fmuladd.{kind if lanes == 1 else f'v{lanes}{kind}'}"
    f.module.declare(name, f"{full} {{}}({full}, {full}, {full})")
    return f.value(f"call {full} @{name}({full} {a}, {full} {b}, {full} {c})")
