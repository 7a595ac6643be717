"""What a bound plan is whatever the extents of its graph: who reads what by which kernel, and what shares memory.

Source: own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tileweave.backends.base import ELEMENTS
from tileweave.graph import Tensor
from tileweave.graph.ir.resolve import resolve
from tileweave.kept import cached_property
from tileweave.lower.again.form import GraphForm
from tileweave.lower.again.programs import StepPrograms
from tileweave.lower.programs import LONG_CONTRACTION, LONGEST_SUM
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Task

Array = np.ndarray[Any, Any]
Rows = tuple[tuple[int, ...], ...]


class Shaped(NamedTuple):
    """Where the extents of a tensor of the fused graph are found in the form.

    Args:
        place: of what makes a tensor there.
        output: of that.
        dims: its dimension that has each of the extents; -1: it is 1. None: just its extents.
    """

    place: int
    output: str = "out"
    dims: tuple[int, ...] | None = None

    def of(self, form: GraphForm) -> tuple[int, ...]:
        """The extents in a graph."""
        found = form.type_of(self.place, self.output).shape
        return found if self.dims is None else tuple([1 if k < 0 else found[k] for k in self.dims])


class SeenAs(NamedTuple):
    """How all of a tensor is seen in one block, source or constant.

    Args:
        task: that makes the block, or -1.
        source: the number of the source, or -1.
        fill: where the constant is found: the place of its selector, or the constant itself in a tuple.
        moves: the selectors between, from the tensor on: their matrices, and where the offset of each is found.
        rows: all of the matrices together; None: the identity.
    """

    task: int
    source: int
    fill: int | tuple[Any, ...] = -1
    moves: tuple[tuple[Rows, int], ...] = ()
    rows: Rows | None = None

    def offset(self, form: GraphForm) -> list[int] | None:
        """Where the first element lies, per dimension of what is seen; None: at its beginning."""
        if not self.moves:
            return None
        at: Sequence[int] = (0,) * (len(self.moves[0][0][0]) if self.moves[0][0] else 0)
        for rows, place in self.moves:
            own = form.order[place].parameters[1][1] if place >= 0 else (0,) * len(rows)
            at = [sum([c * x for c, x in zip(row, at, strict=True) if c]) + o for row, o in zip(rows, own, strict=True)]
        return list(at)


class PutTogether(NamedTuple):
    """A read that is put together from several pieces.

    Args:
        shaped: of the tensor.
        pieces: what each is seen in: the number of a task or of a source, or neither; and whether it is made there.
        buffer: in which it is put together.
    """

    shaped: Shaped
    pieces: tuple[tuple[int, int, bool], ...]
    buffer: int


@dataclass(frozen=True, slots=True)
class TaskInput:
    """What a task reads.

    Args:
        dtype: of its elements.
        shaped: its extents, all of a tensor.
        seen: where that is seen, or how it is put together.
        window: of each dimension that is read by windows: its number, the points of a window, its steps and gaps.
    """

    dtype: np.dtype[Any]
    shaped: Shaped
    seen: SeenAs | PutTogether
    window: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Amount:
    """How much an operation computes: what is decided by it must fall as it did.

    Args:
        large: whether one of its tensors has elements enough to be compiled.
        summed: per dimension that it sums, where its extent is found: (input, dimension) of those that may have it.
        longer: whether so many numbers are summed as `LIMITS` says.
        small: fewer points than this are one thread's.
        per: points per element of what is made; 0: times the numbers summed; -1: per element of the largest tensor.
        weight: that many count for each.
        filters: the extents of filters, on which ``per`` depends.
    """

    large: bool
    summed: tuple[tuple[tuple[int, int], ...], ...]
    longer: tuple[bool, ...]
    small: int
    per: float
    weight: int = 1
    filters: tuple[int, ...] = ()

    def alone(self, shapes: Sequence[tuple[int, ...]], made: tuple[int, ...]) -> bool | None:
        """Whether one thread computes it for inputs and a result of these extents; None where a decision falls
        otherwise."""
        sizes = [prod(shape) for shape in shapes]
        out = prod(made)
        largest = max(out, *sizes)
        if (largest >= ELEMENTS) != self.large:
            return None
        length = prod([max([shapes[k][dim] for k, dim in which]) for which in self.summed])
        if tuple([length > limit for limit in LIMITS]) != self.longer:
            return None
        if self.filters and shapes[1] != self.filters:
            return None
        points = largest * self.weight if self.per < 0 else out * (self.per or length)
        return points < self.small


LIMITS = LONGEST_SUM, LONG_CONTRACTION


@dataclass(frozen=True, slots=True)
class TaskWork:
    """What a run does for a task.

    Args:
        number: of the task.
        inputs: that it reads.
        made: the extents and the type of its block.
        order: which input each operand of the kernel is; -1: the block.
        programs: of its kernel; None: code for any sizes computes it.
        step: of the task.
        amount: what says whether one thread computes it, and which code may be chosen.
    """

    number: int
    inputs: tuple[TaskInput, ...]
    made: Shaped
    dtype: np.dtype[Any]
    order: tuple[int, ...]
    programs: StepPrograms | None
    step: Step
    amount: Amount


@dataclass(frozen=True, slots=True)
class ArenaBuffer:
    """Memory between the first and the last task that uses it: of a block, or of a read of a task."""

    first: int
    last: int
    shaped: Shaped
    width_bytes: int


@dataclass(frozen=True, slots=True)
class BlockHome:
    """Where a block lies: in a buffer or a result, at its beginning, or inside of a read that is put together."""

    buffer: int = -1
    result: int = -1
    inside: tuple[int, int] | None = None
    """(task, number of the read)."""


@dataclass(frozen=True, eq=False)
class Outline:
    """See above.

    Args:
        tasks: of the plan that was bound first, for what is said of failures.
        works: in the order of a run.
        homes: task -> where its block lies.
        views: task -> its block as one of another, or of a source, in the same order.
        fixed: task -> its block, which is the same for all extents.
        buffers: of the arena.
        sources: the place of each source, in order.
        bound: those of the sources that every run brings.
        results: per result its extents and type.
        over: per result the sources, by their place in `bound`, that it may be written over.
        still: sizes that must be what they were, by their place.
        alike: constants that were equal and must be: their places, by twos.
        memory_bytes: what all blocks may hold.
        threads: that kernels may use.
        leaves: the task and the source of tensors of the graph, by place and output; -1 for neither.
        constant_bytes: of the constants of the graph that the plan is of, which it keeps.
    """

    tasks: Sequence[Task]
    works: tuple[TaskWork, ...]
    homes: Mapping[int, BlockHome]
    views: Mapping[int, tuple[TaskInput, Shaped]]
    fixed: Mapping[int, Array]
    buffers: tuple[ArenaBuffer, ...]
    sources: tuple[int, ...]
    bound: tuple[int, ...]
    results: tuple[tuple[Shaped, np.dtype[Any]], ...]
    over: tuple[frozenset[int], ...]
    still: tuple[tuple[int, Any], ...]
    alike: tuple[tuple[int, int], ...]
    memory_bytes: int
    threads: int
    leaves: Mapping[tuple[int, str], tuple[int, int]]
    constant_bytes: int
    filled: dict[Hashable, Array] = field(default_factory=dict)
    """Constants of graphs by type and value, the last ones."""

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each of `bound`."""
        return {place: k for k, place in enumerate(self.bound)}

    @cached_property
    def bytes(self) -> int:
        """Of the constants that are held."""
        return sum([one.nbytes for one in self.fixed.values()]) + self.constant_bytes

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Those of the sources that no run brings."""
        return tuple([place for place in self.sources if place not in self.bound])

    @cached_property
    def at(self) -> dict[int, int]:
        """The place among `works` of that of each task."""
        return {work.number: k for k, work in enumerate(self.works)}


def pieces_of(
    form: GraphForm, shaped: Shaped, leaves: Mapping[tuple[int, str], tuple[int, int]]
) -> list[tuple[int, int, Any]] | None:
    """What a tensor of a graph is put together from: the task and the source of each piece, and the piece.

    Args:
        form: of the graph.
        shaped: the tensor.
        leaves: where tensors lie, by their place.
    """
    node = form.order[shaped.place]
    tensor: Tensor = Tensor(node, shaped.output)
    found = []
    for piece in resolve(tensor, tensor.type.box):
        leaf = (-1, -1)
        if piece.origin is not None:
            place = form.places.get(piece.origin.producer, -1)
            if (place, piece.origin.output) not in leaves:
                return None
            leaf = leaves[place, piece.origin.output]
        found.append((*leaf, piece))
    return found


def window_extents(
    shape: tuple[int, ...], made: tuple[int, ...], window: Sequence[tuple[int, int, int, int]]
) -> tuple[int, ...]:
    """The extents that windows reach of a tensor of these extents."""
    found = list(shape)
    for dim, points, step, gap in window:
        found[dim] = (made[dim] - 1) * step + (points - 1) * gap + 1
    return tuple(found)
