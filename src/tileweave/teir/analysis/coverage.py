"""Which elements a program writes, and whether it reads any that it has not.

Both answers are closed forms where strides nest, of any size: what an invocation reads, and what others have written
by then, are boxes of digits (`regions`). An element that is surely read too early is found by one exact search per
writer. What neither settles is run on flags instead of values, up to a bound of steps, and beyond it `Undecided`.

Source: own; TEIR leaves these questions to the emitter (sections 10.2.1 and 10.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product, takewhile
from random import Random

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import Undecided, VerifyError
from tileweave.layout import Layout, strided
from tileweave.layout.core.search import Term, reach
from tileweave.space import Box
from tileweave.teir.analysis.calls import Call, bounds, calls
from tileweave.teir.analysis.interpret import Memory, Run
from tileweave.teir.analysis.regions import DigitGrid, DigitRegion, subtracted
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.primitives import OperationSpec
from tileweave.teir.ir.program import Id, Program, TensorSpec
from tileweave.teir.ir.verify import Problem, verify

STEP_LIMIT = 2_000_000
"""Scalar steps that are enumerated at most, where the closed form does not decide."""

BYTE_LIMIT = 1 << 30
"""Bytes of all tensors together, from the first to the last that is touched, for which a flag is kept at most."""

HELD, WRITTEN = 1, 2

CORNERS = 64
"""Corners of the loops at most at which a read is looked for that comes too early."""


def uninitialised(program: Program, limit: int = STEP_LIMIT) -> Problem | None:
    """A node that reads a byte of an ``out`` or scratch tensor which nothing has written, or None: a proof.

    A caller whose output holds a value (``C += A B``) says so by the role ``inout``.

    Args:
        program: well formed.
        limit: of the steps, where the strides do not nest.

    Raises:
        VerifyError: the program is not well formed.
        Undecided: the strides do not nest, and the program takes more steps, or reaches over more than `BYTE_LIMIT`.

    Example:
        >>> from dataclasses import replace
        >>> from tileweave.teir import examples
        >>> program = examples.contraction_gemm(dict.fromkeys("pqrstu", 1000))
        >>> uninitialised(program) is None
        True
        >>> print(uninitialised(replace(program, nodes=tuple(
        ...     replace(n, children=("t",)) if n.id == "r" else n for n in program.nodes if n.id != "zero"))))
        [output.initialised] node 'gemm': it reads byte 0 of 'out' before anything writes it
    """
    verify(program)
    found = list(calls(program))
    empty = {spec.name for spec in program.tensors if spec.role in ("out", "scratch")}
    grids = {name: _grid(found, name) for name in empty}
    open_questions = False
    for number, call in enumerate(found):
        reads = call.names if call.spec.reads_output else call.names[:-1]
        for k, name in enumerate(reads):
            if name not in empty:
                continue
            touches = [_Touch(m, other, name) for m, other in enumerate(found) if other.names[-1] == name]
            reader = _Touch(number, call, name, k)
            grid = grids[name]
            if grid is not None and _held(grid, reader, touches):
                continue
            byte = _unheld(reader, touches)
            if byte is not None:
                return _problem(call.node, name, byte)
            open_questions = True
    return _Flags("uninitialised(program)", program, limit).first_problem() if open_questions else None


def unwritten(program: Program, tensor: str, elements: Iterable[int], limit: int = STEP_LIMIT) -> tuple[int, ...]:
    """The elements of a tensor that the program does not write whole: the gaps that its tiles leave.

    Args:
        program: well formed.
        tensor: its name.
        elements: the byte of every element that should be written, relative to the base; a range may be of any length
            where few are missing.
        limit: of the steps, where the strides do not nest.

    Raises:
        VerifyError: the program is not well formed, or has no such tensor.
        Undecided: the strides do not nest, and the program takes more steps, or reaches over more than `BYTE_LIMIT`.

    Example:
        >>> from tileweave.teir import examples
        >>> unwritten(examples.branching({"r": 2, "s": 1, "t": 2}), "out", range(0, 32, 4))
        (24, 28)
    """
    boxes = _missing(program, tensor, elements)
    if boxes is not None:
        return tuple(boxes[0].bytes_of(boxes[1]))
    return _enumerated(program, tensor, elements, limit)


def gaps(program: Program, tensor: str, elements: range, limit: int = STEP_LIMIT) -> tuple[int, int]:
    """How many elements of a tensor the program does not write, and the byte of the first: `unwritten` in two numbers.

    Example:
        >>> from tileweave.teir import examples
        >>> gaps(examples.branching({"r": 2, "s": 1, "t": 2}), "out", range(0, 4 * 10**9, 4))
        (999999994, 24)
    """
    boxes = _missing(program, tensor, elements)
    if boxes is not None:
        grid, left = boxes
        return sum(box.size for box in left), min((grid.byte(box.start) for box in left), default=0)
    found = _enumerated(program, tensor, elements, limit)
    return len(found), min(found, default=0)


def _problem(node: Id, name: str, byte: int) -> Problem:
    message = f"it reads byte {byte} of {name!r} before anything writes it"
    return Problem("output.initialised", f"node {node!r}", message, "a Zero or a Copy before it")


# ---- closed form ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Touch:
    """One operand of one call.

    Args:
        number: of the call in order of execution.
        call: the invocation.
        name: of the tensor.
        operand: the number of the operand; the last by default, which is written.
    """

    number: int
    call: Call
    name: str
    operand: int = -1

    @property
    def terms(self) -> tuple[Term, ...]:
        """Per span, bytes per step, and the least and greatest index."""
        return self.call.terms(self.operand)

    def layout(self, depth: int) -> Layout:
        """The elements touched while the loops outside of this depth stand at index 0."""
        inner = self.terms[depth:]
        first = self.call.offset(self.operand) + sum(stride * low for stride, low, _ in inner)
        return strided([high - low + 1 for _, low, high in inner], [stride for stride, _, _ in inner], first)

    def shared(self, other: _Touch) -> int:
        """How many of the outermost loops are the same."""
        pairs = zip(self.call.visit.path, other.call.visit.path, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def precedes(self, reader: _Touch, depth: int) -> bool:
        """Whether it runs before the reader, at the same indices of the shared loops that move the tensor."""
        strict = False
        for place in range(depth):
            own, theirs = self.call.spans[place], reader.call.spans[place]
            if self.terms[place][0]:
                if own.low > theirs.low or own.high < theirs.high:
                    return False
            elif strict:
                continue
            elif own.low > theirs.low:
                return False
            else:
                strict = own.low < theirs.low
        return strict or self.number < reader.number


def _grid(found: Sequence[Call], name: str, *more: Layout) -> DigitGrid | None:
    touched = [(call, k) for call in found for k, other in enumerate(call.names) if other == name]
    width = max((call.width(k) for call, k in touched), default=1)
    # from index 0 on, where loops are taken to stand, even where guards admit no such index
    places = [strided([span.high + 1 for span in call.spans], call.strides(k), call.offset(k)) for call, k in touched]
    return DigitGrid.of([*places, *more], width)


def _held(grid: DigitGrid, reader: _Touch, writers: Sequence[_Touch]) -> bool:
    """Whether all that is read was written before: proved from the innermost loop outwards."""
    depth = len(reader.call.visit.path)
    # where loops stand at index 0, digits count from there: a translation, the same for all that share the loops
    left: Sequence[Box] = grid.region(reader.layout(depth)).boxes
    shared = [(writer.shared(reader), writer) for writer in writers]
    while True:
        for at, writer in shared:
            region = grid.region(writer.layout(depth)) if at == depth and writer.precedes(reader, depth) else None
            for box in region.boxes if region is not None and region.exact else ():
                left = subtracted(left, box)
        if not left:
            return True
        if not depth:
            return False
        depth -= 1
        left = grid.moved(DigitRegion(tuple(left), True), [reader.terms[depth]]).boxes


def _unheld(reader: _Touch, writers: Sequence[_Touch]) -> int | None:
    """A byte that is read at some corner of the loops and that surely nothing has written by then; None: unknown."""
    spans, terms = reader.call.iterated, reader.terms
    for corner in islice(product(*({span.low: 0, span.high: 0} for span in spans)), CORNERS):
        moved = sum(stride * index for (stride, _, _), index in zip(terms, corner, strict=False))
        byte = reader.call.offset(reader.operand) + moved
        if not any(_hits(writer, reader, corner, byte) for writer in writers):
            return byte
    return None


def _hits(writer: _Touch, reader: _Touch, corner: Sequence[int], byte: int) -> bool:
    """Whether the writer, before the reader's first step at this corner, writes the byte."""
    shared, terms = writer.shared(reader), writer.terms
    offset, width = writer.call.offset(writer.operand), writer.call.width(writer.operand)
    for place in range(shared + 1):  # the same indices of the outer loops, and an earlier one of the next
        equal = list(zip(terms[:place], corner, strict=False))
        if not all(low <= index <= high for (_, low, high), index in equal):
            return False
        fixed = [(stride, index, index) for (stride, _, _), index in equal]
        rest = list(terms[place:])
        if place < shared:
            stride, low, high = rest[0]
            rest[0] = stride, low, min(high, corner[place] - 1)
        elif writer.number >= reader.number:
            return False
        if reach([*fixed, *rest], byte - width + 1 - offset, byte - offset) is not None:
            return True
    return False


def _missing(program: Program, tensor: str, elements: Iterable[int]) -> tuple[DigitGrid, Sequence[Box]] | None:
    """The grid and the boxes of the elements that are not written; None where they are no boxes."""
    verify(program)
    spec = _tensor(program, tensor)
    if not isinstance(elements, range) or not elements or elements.step <= 0:
        return None
    found = [call for call in calls(program) if call.names[-1] == tensor]
    wanted = strided((len(elements),), (elements.step,), elements.start)
    grid = _grid(found, tensor, wanted)
    if grid is None or grid.units[0] < width_bytes(spec.dtype):
        return None
    regions = [grid.region(call.layout(-1)) for call in found]
    left: Sequence[Box] = grid.region(wanted).boxes
    if not all(region.exact for region in regions):
        return None
    for region in regions:
        for box in region.boxes:
            left = subtracted(left, box)
    return grid, left


# ---- enumeration ------------------------------------------------------------------------------------------------


def _tensor(program: Program, tensor: str) -> TensorSpec:
    spec = next((spec for spec in program.tensors if spec.name == tensor), None)
    if spec is None:
        facts = {"rule": "unwritten.tensor", "path": f"tensor {tensor!r}"}
        legal = ", ".join(spec.name for spec in program.tensors)
        raise VerifyError(
            "unwritten(program, tensor, elements)", f"there is no tensor {tensor!r}", legal=legal, facts=facts
        )
    return spec


def _enumerated(program: Program, tensor: str, elements: Iterable[int], limit: int) -> tuple[int, ...]:
    flags = _Flags("unwritten(program, tensor, elements)", program, limit)
    flags.first_problem()
    written, width = flags.written[tensor], width_bytes(_tensor(program, tensor).dtype)

    def whole(element: int) -> bool:
        start = element + written.base
        cells = written.data[max(start, 0) : max(start + width, 0)]
        return start >= 0 and len(cells) == width and bool((cells == WRITTEN).all())

    return tuple(element for element in elements if not whole(element))


class _Flags:
    """A run whose memories hold, per byte, whether it holds a value and whether the program wrote it."""

    def __init__(self, where: str, program: Program, limit: int) -> None:
        verify(program)
        steps = sum(call.steps for call in calls(program))
        if steps > limit:
            raise Undecided(where, f"the program takes {steps} steps, more than {limit}", facts={"bound": limit})
        reached_bytes = bounds(program)
        reached = sum(high - low for low, high in reached_bytes.values())
        if reached > BYTE_LIMIT:
            problem = f"the program reaches over {reached} bytes, more than {BYTE_LIMIT}"
            raise Undecided(where, problem, facts={"bound": BYTE_LIMIT})
        self.program = program
        self.written: dict[str, Memory] = {}
        for spec in program.tensors:
            low, high = reached_bytes.get(spec.name, (0, 0))
            holds = HELD if spec.role in ("in", "inout") else 0
            self.written[spec.name] = Memory(np.full(high - low, holds, np.uint8), -low, None)
        self.widths = {spec.name: width_bytes(spec.dtype) for spec in program.tensors}
        self.problem: Problem | None = None

    def first_problem(self) -> Problem | None:
        Run(self.program, self.written, "forward", Random(0)).forest(self.apply)
        return self.problem

    def apply(self, node: Id, spec: OperationSpec, names: tuple[str, ...], addresses: list[NDArray[np.int64]]) -> None:
        reads = names if spec.reads_output else names[:-1]
        cells = [at[..., None] + np.arange(self.widths[name]) for name, at in zip(names, addresses, strict=True)]
        for name, at in zip(reads, cells, strict=False):
            held = self.written[name].data[at]
            if self.problem is None and not held.all():
                byte = int(at[held == 0][0]) - self.written[name].base
                self.problem = _problem(node, name, byte)
        self.written[names[-1]].data[cells[-1]] = WRITTEN
