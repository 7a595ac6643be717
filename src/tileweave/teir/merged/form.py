"""The merged form of a program: what a backend executes, as a value that is printed, classified and interpreted.

::

    Merged = program, body: (Loop | MergedOp)*
    Loop   = axis, parallel, body: (Loop | MergedOp)*, guard
    MergedOp     = kind, operands: tensor*, modes: Mode*, offsets: bytes per operand, guard, init, relu, stages: Stage*,
             dropped: operand*
    Mode   = extent, strides: bytes per operand
    Stage  = kind, inputs: operand*, output: operand, number, reads_output, fresh

An operation walks its modes, outermost first. A Contraction may store instead of accumulating (``init``) and clip its
sums (``relu``) under guards; every other operation runs its stages one after the other at each point.
`tileweave.teir.merged.merge` makes it from a schedule, `tileweave.teir.merged.unmerge` makes a schedule of it again.

Source: own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index

from tileweave.errors import Undecided
from tileweave.layout.core.search import first_collision
from tileweave.teir.ir.extensions import REDUCTIONS
from tileweave.teir.ir.program import Axis, Guard, Program

MONOIDS = {reduction: monoid for monoid, reduction in REDUCTIONS.items()} | {"Contraction": "sum"}
"""Operation that reduces -> its monoid."""


@dataclass(frozen=True, slots=True)
class Mode:
    """An axis of an operation: its extent and its byte stride per operand (inputs first, output last)."""

    extent: int
    strides: tuple[int, ...]


def points(modes: Sequence[Mode]) -> int:
    """How many index points some modes have together."""
    return modes[0].extent if len(modes) == 1 else prod([mode.extent for mode in modes])


@dataclass(frozen=True, slots=True)
class Stage:
    """What one operation does at every point of an operation's axes.

    Args:
        kind: as TEIR names it.
        inputs: numbers of the operands that it reads.
        output: the number of the one that it writes.
        number: what a Fill writes.
        reads_output: whether an elementwise operation also reads what it writes.
        fresh: a reduction starts at its neutral element, not at what its output holds, where this holds; None: never.
    """

    kind: str
    inputs: tuple[int, ...]
    output: int
    number: float = 0.0
    reads_output: bool = False
    fresh: Guard | None = None


@dataclass(frozen=True, slots=True)
class MergedOp:
    """One operation on tiles.

    A Contraction may have a fourth operand, which its output starts from where ``init`` holds.

    Args:
        kind: as TEIR names it; ``Chain`` where several run one after the other at every point.
        operands: positions of its tensors in the program, inputs first, output last.
        modes: outermost first, in the order that a literal execution follows.
        offsets: bytes added to each operand's address.
        width_bytes: bytes of one element of the output.
        guard: when it runs at all.
        init: a Contraction stores instead of accumulating where this holds; None: never.
        relu: a Contraction applies ReLU after its sum where this holds; None: never.
        stages: what happens at each point, in order; none for a Contraction.
        dropped: numbers of operands that nothing reads afterwards, so that they are never written.
    """

    kind: str
    operands: tuple[int, ...]
    modes: tuple[Mode, ...]
    offsets: tuple[int, ...]
    width_bytes: int
    guard: Guard = ()
    init: Guard | None = None
    relu: Guard | None = None
    stages: tuple[Stage, ...] = ()
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that stays: its axis, whether its iterations may run at once, when it runs at all."""

    axis: Axis
    parallel: bool
    body: tuple[Step, ...]
    guard: Guard = ()


Step = Loop | MergedOp


@dataclass(frozen=True, slots=True)
class Merged:
    """A program as it is executed.

    Args:
        program: whose tensors the operations address, and whose value this form keeps.
        body: in order of execution.
    """

    program: Program
    body: tuple[Step, ...]

    def operations(self) -> Iterator[MergedOp]:
        """Every operation, in order of execution."""
        stack = list(reversed(self.body))
        while stack:
            step = stack.pop()
            if isinstance(step, MergedOp):
                yield step
            else:
                stack += reversed(step.body)


def sizes_of(op: MergedOp) -> list[int]:
    """The numbers of an operation's modes and offsets."""
    return [*op.offsets, *(number for mode in op.modes for number in (mode.extent, *mode.strides))]


def with_sizes(op: MergedOp, sizes: Sequence[int]) -> MergedOp:
    """The operation with other numbers for `sizes_of`."""
    count, width = len(op.operands), 1 + len(op.operands)
    rows = (sizes[k : k + width] for k in range(count, count + width * len(op.modes), width))
    return replace(op, modes=tuple(Mode(row[0], tuple(row[1:])) for row in rows), offsets=tuple(sizes[:count]))


def injective(modes: tuple[Mode, ...], operand: int, width: int) -> bool:
    """Whether different indices reach different elements of an operand; False also where it cannot be decided."""
    end = width
    for stride, extent in sorted([(abs(mode.strides[operand]), mode.extent) for mode in modes]):
        if stride < end and extent > 1:
            break
        end += stride * (extent - 1)
    else:
        return True  # each axis steps over all that the shorter strides reach
    try:
        strides = [index(mode.strides[operand]) for mode in modes]
        return first_collision([index(mode.extent) for mode in modes], strides, width) is None
    except Undecided:
        return False


def minus(guard: Guard, other: Guard) -> Guard | None:
    """The terms of a guard that another lacks; None when the other asks for more."""
    return None if set(other) - set(guard) else tuple(t for t in dict.fromkeys(guard) if t not in other)


def region(op: MergedOp, operand: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Which elements of an operand an operation meets, in a form that can be compared: tensor, offset, moving modes."""
    moves = sorted(
        (mode.strides[operand], mode.extent) for mode in op.modes if mode.extent > 1 and mode.strides[operand]
    )
    return op.operands[operand], op.offsets[operand], tuple(moves)


def fuse(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """Neighbours that together walk like one axis, for every operand, become one."""
    fused: list[Mode] = []
    for mode in modes:
        if fused and all(a == mode.extent * b for a, b in zip(fused[-1].strides, mode.strides, strict=True)):
            fused[-1] = Mode(fused[-1].extent * mode.extent, mode.strides)
        else:
            fused.append(mode)
    return tuple(fused)
