"""Steps that a program takes twice: remainder branches that overlap, and loops that only repeat.

Source: own; TEIR asks emitters for branches that do not overlap (section 10.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Axis, Id, Invocation, Program
from tileweave.teir.ir.reach import SEARCH_LIMIT, Term, first_collision, reach
from tileweave.teir.ir.verify import Problem, verify
from tileweave.teir.ir.walk import axes_by_id, index_range, invocations, primitives_by_id, show_path

__all__ = ["overlap"]


@dataclass(frozen=True, slots=True)
class _Steps:
    """All scalar steps of one invocation: per axis its range and its bytes per operand, and where they start."""

    path: str
    what: object
    names: tuple[str, ...]
    offsets: tuple[int, ...]
    axes: tuple[tuple[Id, int, int, tuple[int, ...]], ...]

    def reach_bytes(self) -> int:
        """More than the distance of any two addresses of one operand, or of an address from its base."""
        strides = [sum(abs(moves[k]) * high for _, _, high, moves in self.axes) for k in range(len(self.names))]
        return 1 + max(abs(offset) + stride for offset, stride in zip(self.offsets, strides, strict=True))

    def terms(self, base: int, sign: int) -> list[Term]:
        """One term per axis, the addresses of all operands written as one number in a large base."""
        return [(sign * _number(moves, base), low, high) for _, low, high, moves in self.axes]


def overlap(program: Program, limit: int = SEARCH_LIMIT) -> Problem | None:
    """Two steps that accumulate the same input elements into the same output element, or None: there are none.

    Every product of a contraction, and every element of a reduction, should count once; where branches cut an axis into
    tiles and a rest, that is so exactly when they do not overlap. None is a proof.

    Args:
        program: well formed.
        limit: of the search, per pair of invocations.

    Raises:
        VerifyError: the program is not well formed.
        Undecided: the search passed ``limit``.

    Example:
        >>> from dataclasses import replace
        >>> from tileweave.teir import examples, split
        >>> program = split(examples.guarded_reduction({"m": 2, "n": 3, "k": 7}), "k", 3)
        >>> overlap(program) is None
        True
        >>> axes = tuple(replace(a, offsets=(0, 0, 0)) if a.id == "k_rest" else a for a in program.axes)
        >>> print(overlap(replace(program, axes=axes)))
        [branches.overlap] k_rest/contraction.2: at (k_rest=0, m=0, n=0) it repeats k_outer/k_inner/contraction at \
(k_outer=0, k_inner=0, m=0, n=0)

    Source: own.
    """
    verify(program)
    found = _accumulating(program)
    for k, b in enumerate(found):
        base = 4 * max(steps.reach_bytes() for steps in found) + 1
        extents = [high - low + 1 for _, low, high, _ in b.axes]
        apart = first_collision(extents, [_number(moves, base) for _, _, _, moves in b.axes], 1, limit)
        if apart is not None:
            first = [low + max(0, step) for (_, low, _, _), step in zip(b.axes, apart, strict=True)]
            second = [index - step for index, step in zip(first, apart, strict=True)]
            return _problem(b, first, b, second)
        for a in found[:k]:
            if (a.what, a.names) != (b.what, b.names):
                continue
            distance = _number(tuple(y - x for x, y in zip(a.offsets, b.offsets, strict=True)), base)
            factors = reach([*a.terms(base, 1), *b.terms(base, -1)], distance, distance, limit)
            if factors is not None:
                return _problem(b, factors[len(a.axes) :], a, factors[: len(a.axes)])
    return None


def _accumulating(program: Program) -> list[_Steps]:
    """The invocations that accumulate, those left out that no guard ever admits."""
    axes, primitives = axes_by_id(program), primitives_by_id(program)
    found = []
    for visit in invocations(program):
        if not isinstance(visit.node, Invocation):
            continue
        primitive = primitives[visit.node.primitive]
        spec, names = operation(primitive.operation), operands_of(primitive, program)
        if not spec.contracted:
            continue
        tensors = [program.position(name) for name in names]
        ranges: list[tuple[Axis, int, int]] = []
        for loop in visit.path:
            axis = axes[loop.axis]
            ranges.append((axis, *index_range(visit, axis)))
        ranges += [(axes[id], 0, axes[id].extent - 1) for _, ids in primitive.axes for id in ids]
        if any(low > high for _, low, high in ranges):
            continue
        offsets = tuple(sum(axis.offsets[j] for axis, _, _ in ranges) for j in tensors)
        moves = tuple((axis.id, low, high, tuple(axis.strides[j] for j in tensors)) for axis, low, high in ranges)
        found.append(_Steps(show_path(visit), (primitive.operation, primitive.metadata), names, offsets, moves))
    return found


def _number(digits: Sequence[int], base: int) -> int:
    return sum(digit * base**k for k, digit in enumerate(digits))


def _problem(b: _Steps, at: Sequence[int], a: _Steps, other: Sequence[int]) -> Problem:
    def shown(steps: _Steps, indices: Sequence[int]) -> str:
        return "(" + ", ".join(f"{axis[0]}={index}" for axis, index in zip(steps.axes, indices, strict=True)) + ")"

    message = f"at {shown(b, at)} it repeats {a.path} at {shown(a, other)}"
    return Problem("branches.overlap", b.path, message, "branches that do not overlap")
