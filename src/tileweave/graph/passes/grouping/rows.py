"""The rule that makes groups of rows: reductions, and what only they read or only reads them, as one operation.

From a tensor backwards, an operation joins the group when all that read it are in the group, and when what it makes
has the shape of the rows or one value per row.

Source: own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tileweave.graph.ir.dtypes import HALVES
from tileweave.graph.ir.nodes import Operation, Selector, Tensor
from tileweave.graph.ir.select import unsqueeze
from tileweave.graph.ops.grouped.rows import REDUCTIONS, rows
from tileweave.graph.ops.grouped.steps import FULL, Step, steps_behind, steps_of
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule

MOST_INPUTS = 12
MOST_STEPS = 32
"""Of one group, so that what is done with a row stays in cache."""
FAR = 12
"""How many operations behind a reduction a group may end."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The shape of the rows and what is reduced."""

    shape: Shape
    axes: tuple[int, ...]

    @property
    def kept(self) -> Shape:
        """The shape of one value per row."""
        return tuple(n for k, n in enumerate(self.shape) if k not in self.axes)

    @property
    def ones(self) -> Shape:
        """The same with extent 1 along a row."""
        return tuple(1 if k in self.axes else n for k, n in enumerate(self.shape))


def _base(tensor: Tensor) -> Tensor:
    """What a tensor is with dimensions of extent 1 put in."""
    producer = tensor.producer
    if isinstance(producer, Selector) and producer.kind == "unsqueeze":
        return producer.inputs[0][1]
    return tensor


def _maps(name: str) -> bool:
    """Whether an operator computes each element alone."""
    return name == "fused" or is_elementwise(name)


def _joins(operation: object) -> bool:
    if not isinstance(operation, Operation) or operation.signature is None or len(operation.outputs) != 1:
        return False
    name = operation.operator
    kind = operation.outputs[0][1].dtype
    return kind.char in "fd" and (_maps(name) or name in REDUCTIONS or name == "rows")


def _rounds(operation: object) -> bool:
    """Whether an operation ends by rounding to 16 bits."""
    if not isinstance(operation, Operation) or operation.signature is None or len(operation.outputs) != 1:
        return False
    ends = _maps(operation.operator) or operation.operator == "rows"
    return ends and operation.outputs[0][1].dtype.name in HALVES and steps_of(operation)[-1][0] == "cast"


def _frame(root: Operation) -> _Frame | None:
    """The rows of the nearest reduction."""
    level, seen = [root], {root}
    for _ in range(FAR):
        for operation in level:
            if operation.operator in REDUCTIONS:
                return _Frame(operation.inputs[0][1].shape, operation.parameter("axes"))
            if operation.operator == "rows":
                return _Frame(_shape_of(operation), operation.parameter("axes"))
        below = [_base(x).producer for operation in level for _, x in operation.inputs]
        level = [p for p in dict.fromkeys(below) if isinstance(p, Operation) and p not in seen and _joins(p)]
        seen.update(level)
    return None


def _shape_of(operation: Operation) -> Shape:
    """What the rows of an operation together are shaped like."""
    axes, rank = operation.parameter("axes"), operation.parameter("rank")
    lengths: dict[int, int] = {}
    for _, x in operation.inputs:
        for k, n in enumerate(x.shape):
            place = k + rank - len(x.shape)
            lengths[place] = max(lengths.get(place, 1), n)
    free = iter(operation.index.shape)
    return tuple(lengths.get(k, 1) if k in axes else next(free) for k in range(rank))


@dataclass(slots=True)
class _Group:
    """A group that grows from its last operation."""

    root: Operation
    frame: _Frame
    context: RewriteContext
    members: set[Operation] = field(default_factory=set)

    def grow(self) -> None:
        """Take in operations until none joins."""
        self.members.add(self.root)
        grown = True
        while grown:
            grown = False
            for base in list(dict.fromkeys(_base(x) for one in self.members for _, x in one.inputs)):
                below = base.producer
                if isinstance(below, Operation) and below not in self.members and self._takes(base, below):
                    self.members.add(below)
                    grown = True

    def _takes(self, base: Tensor, below: Operation) -> bool:
        if not _joins(below) or below in self.context.pinned or not self.fits(below):
            return False
        direct, views = 0, dict[Tensor, int]()
        for one in self.members:
            for _, x in one.inputs:
                if _base(x) is not base:
                    continue
                if not self._may_read(one, x):
                    return False
                if x is base:
                    direct += 1
                else:
                    views[x] = views.get(x, 0) + 1
        uses = self.context.uses
        if any(uses.get(x, count) != count for x, count in views.items()):
            return False
        return uses.get(base, direct + len(views)) == direct + len(views)

    def fits(self, operation: Operation) -> bool:
        """Whether an operation has the frame's rows."""
        frame, shape = self.frame, operation.outputs[0][1].shape
        if operation.operator in REDUCTIONS:
            return operation.inputs[0][1].shape == frame.shape and operation.parameter("axes") == frame.axes
        if operation.operator == "rows":
            return _shape_of(operation) == frame.shape and operation.parameter("axes") == frame.axes
        if shape == frame.kept:
            return all(x.shape in (frame.kept, ()) for _, x in operation.inputs)
        return shape in (frame.shape, frame.ones)

    def _may_read(self, reader: Operation, x: Tensor) -> bool:
        """Whether a tensor that the group makes is read at its own rows."""
        frame, shape = self.frame, reader.outputs[0][1].shape
        if reader.operator in REDUCTIONS:
            return x.shape == frame.shape
        if reader.operator == "rows" or shape == frame.shape:
            return x.shape in (frame.shape, frame.ones)
        return x.shape == shape

    def _same_along_rows(self, x: Tensor) -> bool:
        first = len(self.frame.shape) - len(x.shape)
        return x.shape == self.frame.kept or all(k < first or x.shape[k - first] == 1 for k in self.frame.axes)

    def ordered(self) -> Iterator[Operation]:
        """The members, those that are read first."""
        done: set[Operation] = set()
        stack: list[tuple[Operation, bool]] = [(self.root, False)]
        while stack:
            one, ready = stack.pop()
            if ready and one not in done:
                done.add(one)
                yield one
            elif not ready and one not in done:
                stack.append((one, True))
                below = [_base(x).producer for _, x in one.inputs]
                stack += [(p, False) for p in reversed(below) if isinstance(p, Operation) and p in self.members]

    def tensor(self) -> Tensor | None:
        """The group as one operation; None where it has too many parts or inputs."""
        program: list[Step] = []
        inputs: dict[Tensor, int] = {}
        made: dict[Operation, int] = {}

        def argument(reader: Operation, x: Tensor) -> int:
            below = _base(x).producer
            if isinstance(below, Operation) and below in made:
                return made[below]
            if isinstance(below, Selector) and below.kind == FULL and self._same_along_rows(x):
                program.append((FULL, (below.parameter("value"),), x.dtype.name))
                return -len(program)
            once = reader.outputs[0][1].shape == self.frame.kept and _maps(reader.operator)
            given = unsqueeze(x, self.frame.axes) if once and x.shape else x
            return inputs.setdefault(given, len(inputs))

        for one in self.ordered():
            given = [argument(one, x) for _, x in one.inputs]
            program += steps_behind(len(program), steps_of(one), given)
            made[one] = -len(program)
        if len(program) > MOST_STEPS or not 0 < len(inputs) <= MOST_INPUTS:
            return None
        return rows(tuple(inputs), self.frame.shape, self.frame.axes, program)


def _rows(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    return _grouped(tensor, context) if _joins(tensor.producer) else None


def _narrow_rows(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    return _grouped(tensor, context) if _rounds(tensor.producer) else None


def _grouped(tensor: Tensor, context: RewriteContext) -> Tensor | None:
    root: Any = tensor.producer
    frame = _frame(root)
    if frame is None or frame.shape == frame.ones or 0 in frame.shape:
        return None
    group = _Group(root, frame, context)
    if not group.fits(root):
        return None
    group.grow()
    if len(group.members) < 2 or not any(one.operator in (*REDUCTIONS, "rows") for one in group.members):
        return None
    made = group.tensor()
    if made is None:
        return None
    if made.shape != tensor.shape:
        made = unsqueeze(made, frame.axes)
    return made if made.type == tensor.type else None


ROWS = RewriteRule("rows", "reductions and what is elementwise around them compute each row alone", _rows)
NARROW_ROWS = RewriteRule(
    "narrow-rows", "what a row gives may be rounded to 16 bits where it is computed", _narrow_rows
)
