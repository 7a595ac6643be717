"""Every invocation of a program as one value: its path, primitive and indices, and where its operands lie.

The one walker of a schedule: races, bounds, initialisation, coverage, costs, pictures, the interpreter and the backends
all read what `calls` yields. The addresses of an operand are an offset plus a stride times an index for every axis on
the path and every axis that the primitive consumes; guards restrict single indices, so every index has an interval.

Source: TEIR, section 10.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tileweave.layout import DEFAULT_AXIS, Layout, strided
from tileweave.layout.core.search import Term
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.primitives import OperationSpec, bound, operands_of
from tileweave.teir.ir.program import Axis, Id, Invocation, Primitive, Program
from tileweave.teir.ir.walk import Visit, axes_by_id, index_range, invocations, primitives_by_id, show_path


@dataclass(frozen=True, slots=True)
class Span:
    """The indices of one axis that an invocation meets.

    Args:
        axis: of the program.
        low: the least index.
        high: the greatest; less than ``low`` where a guard admits none.
        role: in which the primitive consumes the axis; empty where the schedule iterates it.
    """

    axis: Axis
    low: int
    high: int
    role: str = ""

    @property
    def count(self) -> int:
        """How many indices there are."""
        return max(0, self.high - self.low + 1)


@dataclass(frozen=True, slots=True)
class Call:
    """An invocation with everything that its meaning and its addresses depend on.

    Args:
        visit: the invocation and its path.
        primitive: what it invokes.
        spec: the primitive's operation, parameters bound.
        names: of the operands, inputs first, output last.
        tensors: positions of the operands in the program.
        dtypes: element types of the operands.
        spans: of the path, outermost first, then of the consumed axes, in the order of the operation's roles.
    """

    visit: Visit
    primitive: Primitive
    spec: OperationSpec
    names: tuple[str, ...]
    tensors: tuple[int, ...]
    dtypes: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def node(self) -> Id:
        """The invocation's identifier."""
        return self.visit.node.id

    @property
    def path(self) -> str:
        """The invocation's path."""
        return show_path(self.visit)

    @property
    def iterated(self) -> tuple[Span, ...]:
        """The spans of the path, outermost first."""
        return self.spans[: len(self.visit.path)]

    @property
    def consumed(self) -> tuple[Span, ...]:
        """The spans of the axes that the primitive consumes."""
        return self.spans[len(self.visit.path) :]

    @property
    def steps(self) -> int:
        """Scalar steps of all runs of the invocation."""
        return prod(span.count for span in self.spans)

    def width(self, k: int) -> int:
        """Bytes of an element of the k-th operand."""
        return width_bytes(self.dtypes[k])

    def offset(self, k: int) -> int:
        """Bytes from the base of the k-th operand to its element where all indices are zero."""
        return sum(span.axis.offsets[self.tensors[k]] for span in self.spans)

    def strides(self, k: int) -> tuple[int, ...]:
        """Bytes per step of every span on the k-th operand."""
        return tuple(span.axis.strides[self.tensors[k]] for span in self.spans)

    def terms(self, k: int) -> tuple[Term, ...]:
        """Per span, (stride in bytes on the k-th operand, least index, greatest index)."""
        return tuple((span.axis.strides[self.tensors[k]], span.low, span.high) for span in self.spans)

    def bounds(self, k: int) -> tuple[int, int]:
        """The least byte of the k-th operand and the byte behind the greatest, relative to the base."""
        low = high = self.offset(k)
        for stride, first, last in self.terms(k):
            ends = stride * first, stride * last
            low, high = low + min(ends), high + max(ends)
        return low, high + self.width(k)

    def layout(self, k: int) -> Layout:
        """The bytes at which elements of the k-th operand begin, by index above the least one of every span."""
        first = self.offset(k) + sum(stride * low for stride, low, _ in self.terms(k))
        return strided([span.count for span in self.spans], self.strides(k), first, DEFAULT_AXIS)

    def address(self, k: int, indices: Mapping[Id, int]) -> int:
        """The byte of an element of the k-th operand, relative to the base; axes that are not named are at zero."""
        j = self.tensors[k]
        moved = sum(span.axis.strides[j] * indices.get(span.axis.id, 0) for span in self.spans)
        return self.offset(k) + moved


def call_of(program: Program, visit: Visit) -> Call:
    """The call of an invocation of a well-formed program, whether or not a guard ever admits it."""
    return _Calls(program).of(visit)


def every_call(program: Program) -> Iterator[Call]:
    """`call_of` every invocation of a well-formed program, in execution order."""
    return map(_Calls(program).of, invocations(program))


class _Calls:
    """The calls of a program; holds what every one looks up."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes, self.primitives = axes_by_id(program), primitives_by_id(program)
        self.position = {spec.name: k for k, spec in enumerate(program.tensors)}

    def of(self, visit: Visit) -> Call:
        """The call of an invocation."""
        if not isinstance(visit.node, Invocation):
            raise TypeError(f"node {visit.node.id!r} is no invocation")
        return _call(self, visit, self.primitives[visit.node.primitive])


def _call(known: _Calls, visit: Visit, primitive: Primitive) -> Call:
    program, axes = known.program, known.axes
    spec, names = bound(primitive), operands_of(primitive, program)
    tensors = tuple([known.position[name] for name in names])
    iterated = [Span(axes[loop.axis], *index_range(visit, axes[loop.axis])) for loop in visit.path]
    consumed = [Span(axes[id], 0, axes[id].extent - 1, role) for role in spec.roles for id in primitive.role(role)]
    dtypes = tuple(program.tensors[j].dtype for j in tensors)
    return Call(visit, primitive, spec, names, tensors, dtypes, (*iterated, *consumed))


def calls(program: Program) -> Iterator[Call]:
    """Every invocation of a well-formed program in execution order; those that no guard ever admits are left out."""
    for call in every_call(program):
        if all(span.count for span in call.spans):
            yield call


def bounds(program: Program) -> dict[str, tuple[int, int]]:
    """Per tensor that a well-formed program touches, the least byte and the byte behind the greatest; exact."""
    found: dict[str, tuple[int, int]] = {}
    for call in calls(program):
        for k, name in enumerate(call.names):
            low, high = call.bounds(k)
            before = found.get(name, (low, high))
            found[name] = min(low, before[0]), max(high, before[1])
    return found
