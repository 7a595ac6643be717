"""Row programs under construction: several operations on one row after the other, then the next row.

A *row* is what a primitive consumes: the axes that are normalised, or the fastest axis of a chain. All other axes are
loops. Results per row, and rows in a wider type than the operands', lie in scratch memory; a scratch row serves many
rows in turn, so the loop around it is cut into chunks that may run at once.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tileweave.index.sizes import derived
from tileweave.teir.emit.schedule import LoopDim, Role, fuse_dims
from tileweave.teir.emit.terms import Term, dims_of, extents_of, letter_strides, refined
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.extensions import FILL
from tileweave.teir.ir.program import (
    Axis,
    Id,
    Invocation,
    Iteration,
    Node,
    Policy,
    Primitive,
    Program,
    Scalar,
    TensorSpec,
)

_CHUNKS = 64
"""Parts of the outermost loop around a scratch row, at most where it divides."""


def _chunks(extent: int) -> int:
    """The parts of a loop of this extent."""
    count = max((d for d in range(1, _CHUNKS + 1) if extent % d == 0), default=1)
    return count if count >= min(8, extent) else extent


@dataclass(slots=True)
class Rows:
    """A row program under construction: dims of the operands first, then scratch tensors, then steps.

    Args:
        name: of the program.
        terms: the operands with their letters, the output last.
        row: the letters of a row; none: the output's fastest letter.
        elements: those letters of a row that its elements are numbered by; none: all.
    """

    name: str
    terms: Sequence[Term]
    row: str | None
    elements: str = ""
    tensors: list[TensorSpec] = field(default_factory=list)
    dims: list[LoopDim] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    constants: list[Id] = field(default_factory=list)
    body: list[Id] = field(default_factory=list)

    def __post_init__(self) -> None:
        where, given = f"emit {self.name}", {letter for letters, _ in self.terms for letter in letters}
        self.terms = refined(where, self.terms)
        extents = extents_of(where, self.terms)
        strides = [letter_strides(letters, operand) for letters, operand in self.terms]
        row = set()
        for letters, _ in self.terms:
            origin = ""
            for letter in letters:
                origin = letter if letter in given else origin  # parts of a letter follow it
                row |= {letter} if origin in (self.row or "") else set()
        if self.row is None:
            moving = [letter for letter in self.terms[-1][0] if extents[letter] > 1]
            row = {min(moving, key=lambda letter: abs(strides[-1][letter]))} if moving else row

        def role(letter: str) -> Role:
            return "K" if letter in row else "M"

        dims = fuse_dims(dims_of(extents, strides, role))
        self.dims = sorted(dims, key=lambda dim: (dim.role == "K", -abs(dim.strides[-1])))
        count = len(self.terms) - 1
        for k, (_, operand) in enumerate(self.terms):
            name, kind = (f"in{k}", "in") if k < count else ("out", "out")
            self.tensors.append(TensorSpec(name, operand.dtype, kind))  # type: ignore[arg-type]
            self.offsets.append(operand.offset_bytes)

    # ---- scratch ------------------------------------------------------------------------------------------------

    def scratch(self, name: str, dtype: str, strides: Sequence[int]) -> str:
        """A scratch tensor that moves along the dims as told."""
        size = width_bytes(dtype) + sum(s * (dim.extent - 1) for s, dim in zip(strides, self.dims, strict=True))
        self.tensors.append(TensorSpec(name, dtype, "scratch", size))
        self.offsets.append(0)
        self.dims = [
            replace(dim, strides=(*dim.strides, stride)) for dim, stride in zip(self.dims, strides, strict=True)
        ]
        return name

    def packed(self, name: str, dtype: str, wanted: Sequence[bool]) -> str:
        """A scratch tensor without gaps over some of the dims."""
        step, strides = width_bytes(dtype), [0] * len(self.dims)
        for k in reversed(range(len(self.dims))):
            if wanted[k]:
                strides[k], step = step, step * self.dims[k].extent
        return self.scratch(name, dtype, strides)

    def per_row(self, name: str, dtype: str) -> str:
        """One element per row."""
        return self.packed(name, dtype, [dim.role == "M" for dim in self.dims])

    def scratch_row(self, name: str, dtype: str) -> str:
        """A row, one per chunk of the longest loop, which is cut where that has not happened yet."""
        loops = [dim for dim in self.dims if dim.role == "M"]
        chunks = [dim for dim in loops if dim.name.endswith("_chunk")]
        if loops and not chunks:
            longest = max(loops, key=lambda dim: dim.extent)
            count = derived(_chunks, longest.extent)
            each = longest.extent // count
            chunk = LoopDim(f"{longest.name}_chunk", count, tuple(each * s for s in longest.strides), "M")
            inner = [LoopDim(longest.name, each, longest.strides, "M")] if each > 1 else []
            self.dims = [chunk, *inner, *(dim for dim in self.dims if dim is not longest)]
        own = self.row_axes(self.elements)
        return self.packed(name, dtype, [dim.name in own or dim.name.endswith("_chunk") for dim in self.dims])

    def constant(self, name: str, dtype: str, value: float) -> str:
        """One number, written before the first row."""
        self.scratch(name, dtype, [0] * len(self.dims))
        self.constants.append(self.invoke(FILL, (name,), {"M": (), "N": ()}, (("value", value),)))
        return name

    # ---- steps --------------------------------------------------------------------------------------------------

    def each(self, operation: str, *operands: str) -> None:
        """An operation on every element of a row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": self.row_axes(self.elements)}))

    def once(self, operation: str, *operands: str) -> None:
        """An operation on what there is once per row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": ()}))

    def over(self, operation: str, *operands: str) -> None:
        """A reduction of a row."""
        self.body.append(self.invoke(operation, operands, {"M": (), "N": (), "K": self.row_axes(self.elements)}))

    def row_axes(self, letters: str = "") -> tuple[Id, ...]:
        """The axes of a row; of some letters alone, where there are any."""
        return tuple(
            dim.name for dim in self.dims if dim.role == "K" and (not letters or not set(letters).isdisjoint(dim.name))
        )

    def invoke(
        self,
        operation: str,
        operands: tuple[str, ...],
        roles: dict[str, tuple[Id, ...]],
        metadata: tuple[tuple[str, Scalar], ...] = (),
    ) -> Id:
        """A primitive and its invocation."""
        used = sum(primitive.operation == operation for primitive in self.primitives)
        id = operation.lower() + (str(used + 1) if used else "")
        self.primitives.append(Primitive(id, operation, tuple(roles.items()), operands, metadata))
        self.nodes.append(Invocation(id, id))
        return id

    def program(self) -> Program:
        """The whole: constants, then the loops over rows around the body."""
        loops = [dim for dim in self.dims if dim.role == "M"]
        chunked = any(dim.name.endswith("_chunk") for dim in loops)
        axes = [Axis(dim.name, dim.extent, dim.strides, (0,) * len(self.tensors)) for dim in self.dims] + self.axes
        outer: list[tuple[str, Policy]] = []
        if any(self.offsets):
            axes.insert(0, Axis("origin", 1, (0,) * len(self.tensors), tuple(self.offsets)))
            outer.append(("origin", "parallel"))
        for dim in loops:
            alone = chunked and not dim.name.endswith("_chunk")
            outer.append((dim.name, "sequential" if alone else "parallel"))
        nodes: list[Node] = []
        below = tuple(self.body)
        for name, policy in reversed(outer):
            nodes.insert(0, Iteration(f"each {name}", name, below, policy))
            below = (f"each {name}",)
        roots = (*self.constants, *below)
        return Program(
            tuple(self.tensors),
            tuple(axes),
            roots,
            (*nodes, *self.nodes),
            tuple(self.primitives),
            "tileweave",
            self.name,
        )
