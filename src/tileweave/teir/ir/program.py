"""The tiled execution IR: the values of a program, one screen of grammar.

::

    Program    = profile, name, tensors: TensorSpec*, axes: Axis*, roots: id*, nodes: Node*, primitives: Primitive*
    Node       = Iteration | Invocation
    TensorSpec = name, dtype, role: in | out | inout | scratch, size_bytes (scratch only), shape (optional)
    Axis       = id, extent, strides: bytes per tensor, offsets: bytes per tensor
    Iteration  = id, axis, policy: sequential | parallel | registered, children: id*, guard: (First | Last)*
    Invocation = id, primitive, guard: (First | Last)*
    Primitive  = id, operation, axes: role -> id*, operands: tensor name*, metadata

Two profiles share this one type. ``document`` is the document to the letter: tensors are ``in0, in1, .., out`` by
position, strides are not negative, dtypes live in ``metadata``. ``tileweave`` adds by name what a compiler needs:
signed strides, a dtype per tensor, operands bound per primitive, scratch tensors. Construction checks nothing, not even
types; `tileweave.teir.ir.verify` holds every rule.

Strides and offsets are bytes. A schedule is an ordered forest: children run in list order.

Source: TEIR, tables 10.1.1, 10.2.1, 10.2.2, 10.3.1, 10.3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Id = str | int
Scalar = str | int | float | bool
Value: TypeAlias = "Scalar | tuple[Value, ...] | Entries"
Profile = Literal["document", "tileweave"]
Policy = str  # a name registered in tileweave.teir.ir.policies: sequential, parallel, and others
Operation = str  # a name registered in tileweave.teir.ir.primitives: Zero, Copy, ReLU, Contraction, and extensions


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping as a value, in the order in which it is written: what metadata may nest."""

    items: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key}: {show_value(value)}" for key, value in self.items) + "}"


def show_value(value: Value) -> str:
    """A value of metadata on one line."""
    return "[" + ", ".join(map(show_value, value)) + "]" if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a program addresses.

    Args:
        name: unique; by convention ``in0, in1, ..`` and ``out``.
        dtype: FP64, FP32, BF16, FP16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8.
        role: how the program may use it; ``inout`` tensors hold a value on entry that the program changes.
        size_bytes: for scratch tensors, the bytes that the runtime allocates; 0 otherwise.
        shape: the extents of its indices where its elements lie in row-major order from its base, so that files can
            be judged; None: nothing is said of them. No address depends on it.
    """

    name: str
    dtype: str
    role: Literal["in", "out", "inout", "scratch"]
    size_bytes: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A coordinate with a byte stride and a byte offset per tensor, in the order of `Program.tensors`."""

    id: Id
    extent: int
    strides: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class First:
    """True while the index of an ancestor's axis is zero."""

    axis: Id


@dataclass(frozen=True, slots=True)
class Last:
    """True while the index of an ancestor's axis is its extent minus one."""

    axis: Id


Guard = tuple[First | Last, ...]
"""A conjunction; the empty tuple is the document's None."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """A loop over one axis around its children, which run in order for every index."""

    id: Id
    axis: Id
    children: tuple[Id, ...]
    policy: Policy = "sequential"
    guard: Guard = ()


@dataclass(frozen=True, slots=True)
class Invocation:
    """A leaf: one call of a primitive at the tile that the ancestors address."""

    id: Id
    primitive: Id
    guard: Guard = ()


Node = Iteration | Invocation


@dataclass(frozen=True, slots=True)
class Primitive:
    """What an invocation computes: an operation and the axes that it consumes, by role.

    Args:
        id: unique among primitives.
        operation: Zero, Copy, ReLU, Contraction, or a registered extension.
        axes: (role, axis ids) pairs, e.g. ``(("M", ("m",)), ("N", ("n",)), ("K", ()))``.
        operands: names of the tensors it reads and writes, inputs first, output last. Empty in the
            ``document`` profile, where position binds them.
        metadata: (key, value) pairs, e.g. ``(("data_type", "FP32"),)``; values may be tuples and `Entries` of values.
    """

    id: Id
    operation: Operation
    axes: tuple[tuple[str, tuple[Id, ...]], ...]
    operands: tuple[str, ...] = ()
    metadata: tuple[tuple[str, Value], ...] = ()

    def role(self, name: str) -> tuple[Id, ...]:
        """The axes in a role; empty when the role is absent."""
        return next((ids for role, ids in self.axes if role == name), ())


@dataclass(frozen=True, slots=True)
class Program:
    """A TEIR program: axes say where, the schedule says when, primitives say what.

    Args:
        tensors: in the order of every axis' strides and offsets.
        axes: each id once.
        roots: ids of the root nodes, in execution order.
        nodes: iterations and invocations, one id namespace.
        primitives: each id once.
        profile: ``document`` or ``tileweave``.
    """

    tensors: tuple[TensorSpec, ...]
    axes: tuple[Axis, ...]
    roots: tuple[Id, ...]
    nodes: tuple[Node, ...]
    primitives: tuple[Primitive, ...]
    profile: Profile = "tileweave"
    name: str = field(default="program")

    def axis(self, id: Id) -> Axis:
        """The axis of this id; KeyError when there is none."""
        return {axis.id: axis for axis in self.axes}[id]

    def node(self, id: Id) -> Node:
        """The schedule node of this id; KeyError when there is none."""
        return {node.id: node for node in self.nodes}[id]

    def primitive(self, id: Id) -> Primitive:
        """The primitive of this id; KeyError when there is none."""
        return {primitive.id: primitive for primitive in self.primitives}[id]

    def position(self, tensor: str) -> int:
        """Where a tensor stands in every axis' strides; KeyError when there is none."""
        for k, spec in enumerate(self.tensors):  # asked for each operand of each call that is bound
            if spec.name == tensor:
                return k
        raise KeyError(tensor)

    def __str__(self) -> str:
        return _PRINTERS["text"](self)

    def _repr_svg_(self) -> str:
        return _PRINTERS["svg"](self)


_PRINTERS: dict[str, Callable[[Program], str]] = {"text": repr, "svg": repr}


def print_by(kind: Literal["text", "svg"], printer: Callable[[Program], str]) -> None:
    """From now on, ``str`` of a program, or its picture, is what this function of a module above gives."""
    _PRINTERS[kind] = printer
