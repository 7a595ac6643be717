"""Steps that a program takes twice: remainder branches that overlap, and loops that only repeat.

Source: own; TEIR asks emitters for branches that do not overlap (section 10.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.layout.core.search import Term, first_collision, reach
from tileweave.teir.analysis.calls import Call, calls
from tileweave.teir.ir.program import Program
from tileweave.teir.ir.verify import Problem, verify


def overlap(program: Program) -> Problem | None:
    """Two steps that accumulate the same input elements into the same output element, or None: there are none.

    Every product of a contraction, and every element of a reduction, should count once; where branches cut an axis into
    tiles and a rest, that is so exactly when they do not overlap. None is a proof.

    Args:
        program: well formed.

    Raises:
        VerifyError: the program is not well formed.
        Undecided: the search passed its bound.

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
    found = [call for call in calls(program) if call.spec.contracted]
    base = 4 * max(map(_reach_bytes, found), default=0) + 1
    for n, b in enumerate(found):
        numbers = _numbers(b, base)
        apart = first_collision([span.count for span in b.spans], numbers)
        if apart is not None:
            first = [span.low + max(0, step) for span, step in zip(b.spans, apart, strict=True)]
            second = [index - step for index, step in zip(first, apart, strict=True)]
            return _problem(b, first, b, second)
        for a in found[:n]:
            if (a.primitive.operation, a.primitive.metadata, a.names) != (
                b.primitive.operation,
                b.primitive.metadata,
                b.names,
            ):
                continue
            distance = _number([b.offset(k) - a.offset(k) for k in range(len(b.names))], base)
            terms = [*_terms(a, base, 1), *_terms(b, base, -1)]
            factors = reach(terms, distance, distance)
            if factors is not None:
                return _problem(b, factors[len(a.spans) :], a, factors[: len(a.spans)])
    return None


def _reach_bytes(call: Call) -> int:
    """More than the distance of any two addresses of one operand, or of an address from its base."""
    return 1 + max(
        abs(call.offset(k)) + sum(abs(stride) * high for stride, _, high in call.terms(k))
        for k in range(len(call.names))
    )


def _numbers(call: Call, base: int) -> list[int]:
    """Per span, the bytes that it moves all operands, as one number in a large base."""
    return [_number(moves, base) for moves in zip(*(call.strides(k) for k in range(len(call.names))), strict=True)]


def _terms(call: Call, base: int, sign: int) -> list[Term]:
    numbers = zip(_numbers(call, base), call.spans, strict=True)
    return [(sign * number, span.low, span.high) for number, span in numbers]


def _number(digits: Sequence[int], base: int) -> int:
    return sum(digit * base**k for k, digit in enumerate(digits))


def _problem(b: Call, at: Sequence[int], a: Call, other: Sequence[int]) -> Problem:
    def shown(call: Call, indices: Sequence[int]) -> str:
        return "(" + ", ".join(f"{span.axis.id}={index}" for span, index in zip(call.spans, indices, strict=True)) + ")"

    message = f"at {shown(b, at)} it repeats {a.path} at {shown(a, other)}"
    return Problem("branches.overlap", b.path, message, "branches that do not overlap")
