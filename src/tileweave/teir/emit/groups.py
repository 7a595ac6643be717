"""The emitter of groups: elementwise operations and reductions over some axes, row by row.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.rows import Rows
from tileweave.teir.emit.terms import Operand, check_output, extents_of
from tileweave.teir.ir.extensions import BINARY, CHOICES, FILL, NEUTRAL, REDUCTIONS, UNARY
from tileweave.teir.ir.primitives import operation as named
from tileweave.teir.ir.program import Program

__all__ = ["emit_group"]

_COMPARISONS = frozenset(CHOICES) - {"Select"}
_START = {reduction: NEUTRAL[monoid] for monoid, reduction in REDUCTIONS.items()}


def emit_group(
    steps: Sequence[tuple[str, tuple[Any, ...]]],
    operands: Sequence[Operand],
    out: Operand,
    axes: Sequence[int],
    *,
    name: str = "group",
) -> Program:
    """The program of several steps on one row after the other, of which only the last is stored.

    Args:
        steps: (operation, arguments): an elementwise operation of `emit_chain`; a reduction (``ReduceSum``, ..) of one
            argument over the row; or ``Fill`` of a number. An argument ``k >= 0`` is input k, ``-1 - k`` is step k.
        operands: inputs with all indices, or without those of a row: one value per row.
        out: with all indices, or without those of a row.
        axes: the indices of a row, among all.
        name: of the program.

    Returns:
        A well-formed program; values per element lie in scratch rows, values per row in scratch memory.

    Raises:
        GraphError: the shapes do not fit, or there is no such operation.
        DtypeError: an element type is not floating point of 32 bits or more, or there is more than one.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, mean = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((4,), (1,)), "FP32")
        >>> steps = [("ReduceSum", (0,)), ("Fill", (0.125,)), ("Mul", (-1, -2))]
        >>> [p.operation for p in emit_group(steps, [a], mean, (1,)).primitives]
        ['Zero', 'ReduceSum', 'Fill', 'Mul']
    """
    where = "emit_group(steps, operands, out, axes)"
    rank = max(len(operand.shape) for operand in operands)
    letters = "".join(map(chr, range(ord("a"), ord("a") + rank)))
    row = "".join(letters[k] for k in axes)
    kept = "".join(letter for letter in letters if letter not in row)
    dtype = out.dtype
    if not {operand.dtype for operand in operands} <= {dtype, "INT8"} or dtype not in ("FP32", "FP64"):
        raise DtypeError(
            where, "element types differ, or are narrow", legal="FP32 or FP64 throughout, conditions of INT8"
        )
    terms = [(letters if len(one.shape) == rank else kept, one) for one in (*operands, out)]
    extents_of(where, terms)
    check_output(where, terms[-1][0], out)
    p = Rows(name, terms, row)
    names = [f"in{k}" for k in range(len(operands))]
    whole = [len(operand.shape) == rank for operand in operands]
    made: list[tuple[str, bool]] = []  # where a step's value is, and whether it is one per element

    def argument(a: int) -> tuple[str, bool]:
        return (names[a], whole[a]) if a >= 0 else made[-1 - a]

    held = _held(steps, whole) if len(out.shape) == rank else -1
    for k, (kind, arguments) in enumerate(steps):
        last = k == len(steps) - 1
        if kind == FILL:
            number = float(arguments[0])
            if isinf(number):  # no metadata hold it
                made.append((p.per_row(f"step{k}", dtype), False))
                p.once(NEUTRAL["max" if number < 0 else "min"], made[-1][0])
            else:
                made.append((p.constant(f"step{k}", dtype, number), False))
            continue
        given = [argument(a) for a in arguments]
        legal = kind in _START or kind in ("ReLU", "Copy", *UNARY, *BINARY, *CHOICES)
        if not legal or named(kind).inputs != len(given):
            raise GraphError(where, f"step {k}: {kind} of {arguments}", legal=", ".join((*_START, *UNARY, *BINARY)))
        each, own = kind not in _START and any(one for _, one in given), "INT8" if kind in _COMPARISONS else dtype
        target = "out" if last or k == held else p.scratch_row(f"step{k}", own) if each else p.per_row(f"step{k}", own)
        if kind in _START:
            p.once(_START[kind], target)
            p.over(kind, given[0][0], target)
        else:
            (p.each if each else p.once)(kind, *(place for place, _ in given), target)
        made.append((target, each))
    if made[-1][1] != (len(out.shape) == rank):
        raise GraphError(where, "the last step does not have the output's shape", legal="one value per element, or row")
    return p.program()


def _held(steps: Sequence[tuple[str, tuple[Any, ...]]], whole: Sequence[bool]) -> int:
    """The step whose row waits in the output for the last step; -1: none does.

    A row that is read again after another reduction is stored somewhere, and the output's own row is in cache when it
    is written again. It is free as long as nothing but the last value is stored behind it.
    """
    phase: list[int] = []  # how many reductions stand one behind the other before a step
    each: list[bool] = []
    late: list[int] = []  # steps with a row that a later phase reads
    for k, (kind, arguments) in enumerate(steps):
        below = [] if kind == FILL else [-1 - a for a in arguments if a < 0]
        phase.append(max([phase[b] + (steps[b][0] in _START) for b in below], default=0))
        rows = any(each[-1 - a] if a < 0 else whole[a] for a in arguments) if kind != FILL else False
        each.append(rows and kind not in _START)
        late += [
            b for b in below if each[b] and phase[b] < phase[k] and b not in late and steps[b][0] not in _COMPARISONS
        ]
    return late[-1] if late else -1
